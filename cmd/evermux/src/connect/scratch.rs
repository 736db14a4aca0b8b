//! One buffer for everything that is read: a shim that waits holds no memory for what may come.

use std::io;
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

/// How much is read at once, in bytes.
const SIZE: usize = 64 << 10;
/// More than this leaves with the buffer; less is copied out of it.
const COPIED: usize = 16 << 10;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    /// Reads once. `None`: nothing is there now. Empty: the end.
    pub(crate) fn read(&mut self, from: impl AsFd) -> io::Result<Option<Bytes>> {
        self.0.reserve(SIZE);
        loop {
            return match rustix::io::read(&from, spare_capacity(&mut self.0)) {
                Ok(length) if length > COPIED => Ok(Some(std::mem::take(&mut self.0).into())),
                Ok(_) => {
                    let bytes = Bytes::copy_from_slice(&self.0);
                    self.0.clear();
                    Ok(Some(bytes))
                }
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Whether a read of so much left nothing behind, as far as one can know.
    pub(crate) const fn drained(length: usize) -> bool {
        length < SIZE
    }
}
