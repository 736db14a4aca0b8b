//! A message in pieces, so that changing an id in front of a 16 MiB result copies nothing of it.

use bytes::{Bytes, BytesMut};

use crate::Message;

/// Slices of shared buffers which, one after another, are a message.
#[derive(Clone)]
pub struct Segments(Repr);

#[derive(Clone)]
enum Repr {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Segments {
    /// Small messages are copied into one buffer: a second allocation is cheaper than three writes.
    const COPY_BELOW: usize = 4096;

    pub(crate) fn from_pieces(pieces: Vec<Bytes>) -> Self {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        if length <= Self::COPY_BELOW {
            Self(Repr::One(joined(&pieces, length)))
        } else {
            Self(Repr::Many(pieces))
        }
    }

    /// Length in bytes, over all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().all(Bytes::is_empty)
    }

    /// The pieces in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        match &self.0 {
            Repr::One(bytes) => std::slice::from_ref(bytes).iter(),
            Repr::Many(pieces) => pieces.iter(),
        }
    }

    /// All bytes in one buffer; copies only if there is more than one piece.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Repr::One(bytes) => bytes,
            Repr::Many(pieces) => joined(&pieces, pieces.iter().map(Bytes::len).sum()),
        }
    }
}

fn joined(pieces: &[Bytes], length: usize) -> Bytes {
    let mut all = BytesMut::with_capacity(length);
    pieces.iter().for_each(|piece| all.extend_from_slice(piece));
    all.freeze()
}

impl Default for Segments {
    fn default() -> Self {
        Self(Repr::One(Bytes::new()))
    }
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segments({} bytes in {})", self.len(), self.iter().len())
    }
}

impl From<Bytes> for Segments {
    fn from(bytes: Bytes) -> Self {
        Self(Repr::One(bytes))
    }
}

impl From<Message> for Segments {
    fn from(message: Message) -> Self {
        Self(Repr::One(message.bytes().clone()))
    }
}

impl<'a> IntoIterator for &'a Segments {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Segments {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        match self.0 {
            Repr::One(bytes) => vec![bytes].into_iter(),
            Repr::Many(pieces) => pieces.into_iter(),
        }
    }
}
