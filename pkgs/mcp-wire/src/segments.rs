//! A message in pieces, so that changing an id in front of a 16 MiB result copies nothing of it.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

use crate::Message;

/// Slices of shared buffers which, one after another, are a message.
#[derive(Clone)]
pub struct Segments {
    repr: Repr,
    /// Known to hold no raw line end.
    is_one_line: bool,
}

#[derive(Clone)]
enum Repr {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Segments {
    pub(crate) fn from_pieces(pieces: Vec<Bytes>, is_one_line: bool) -> Self {
        Self { repr: Repr::Many(pieces), is_one_line }
    }

    /// A message whose parser saw whether it holds raw line ends.
    pub(crate) fn of(bytes: Bytes, is_one_line: bool) -> Self {
        Self { repr: Repr::One(bytes), is_one_line }
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

    /// Whether there are raw line ends, which would cut the message in two where lines frame messages. What came out of
    /// a parser without any is not looked through again.
    #[must_use]
    pub fn has_line_ends(&self) -> bool {
        !self.is_one_line && self.iter().any(|piece| memchr2(b'\r', b'\n', piece).is_some())
    }

    /// The pieces in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        match &self.repr {
            Repr::One(bytes) => std::slice::from_ref(bytes).iter(),
            Repr::Many(pieces) => pieces.iter(),
        }
    }

    /// All bytes in one buffer; copies only if there is more than one piece.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.repr {
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
        Self { repr: Repr::One(Bytes::new()), is_one_line: true }
    }
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segments({} bytes in {})", self.len(), self.iter().len())
    }
}

impl From<Bytes> for Segments {
    fn from(bytes: Bytes) -> Self {
        Self::of(bytes, false)
    }
}

impl From<Message> for Segments {
    fn from(message: Message) -> Self {
        Self::of(message.bytes().clone(), !message.may_hold_line_ends())
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
        match self.repr {
            Repr::One(bytes) => vec![bytes].into_iter(),
            Repr::Many(pieces) => pieces.into_iter(),
        }
    }
}
