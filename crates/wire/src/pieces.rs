//! A body in pieces: the unchanged parts of a large request are shared with the text that it was read from
//! instead of copied. Made by `object` and from forms, sent by `upstream`.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::object::ValueText;

/// Shorter parts are copied, because a separate piece costs more.
const SHARED: usize = 1 << 10;

/// A text in pieces, in order.
#[derive(Clone, Debug)]
pub struct Pieces(Parts);

/// Most texts have one piece, for which no list is allocated.
#[derive(Clone, Debug)]
enum Parts {
    One(Bytes),
    Several(Vec<Bytes>),
}

impl Pieces {
    /// Returns the bytes of all pieces together.
    pub fn len(&self) -> usize {
        self.as_slice().iter().map(Bytes::len).sum()
    }

    /// Returns true when there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first piece, with which the text begins.
    pub fn first_piece(&self) -> &[u8] {
        self.as_slice().first().map_or(&[], |piece| piece)
    }

    /// Joins the text to one piece. Only several pieces are copied.
    pub fn to_bytes(&self) -> Bytes {
        let pieces = self.as_slice();
        if let [only] = pieces {
            return only.clone();
        }
        let mut all = BytesMut::with_capacity(self.len());
        pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        all.freeze()
    }

    /// Returns the only piece, or else all pieces as the error.
    pub fn into_single(self) -> Result<Bytes, Vec<Bytes>> {
        match self.0 {
            Parts::One(piece) => Ok(piece),
            Parts::Several(pieces) => Err(pieces),
        }
    }

    fn as_slice(&self) -> &[Bytes] {
        match &self.0 {
            Parts::One(piece) => std::slice::from_ref(piece),
            Parts::Several(pieces) => pieces,
        }
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self(Parts::Several(Vec::new()))
    }
}

impl From<Bytes> for Pieces {
    fn from(text: Bytes) -> Self {
        Self(Parts::One(text))
    }
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self(Parts::Several(pieces))
    }
}

impl PartialEq for Pieces {
    /// Compares the texts, regardless of where they are cut.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.to_bytes() == other.to_bytes()
    }
}

/// The owner of a piece that is shared with others.
struct SharedText(Arc<str>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Assembles pieces from new texts and parts of an original.
#[derive(Debug)]
pub(super) struct Assembly<'o> {
    original: &'o Bytes,
    pieces: Vec<Bytes>,
    /// New text that does not form a piece yet.
    text: String,
    /// The part of the original that follows it.
    part: (usize, usize),
}

impl<'o> Assembly<'o> {
    pub(super) fn new(original: &'o Bytes) -> Self {
        Self { original, pieces: Vec::new(), text: String::new(), part: (0, 0) }
    }

    /// Adds new text.
    pub(super) fn add_text(&mut self, text: &str) {
        self.end_part();
        self.text.push_str(text);
    }

    /// Adds new text that may be large.
    pub(super) fn add_value(&mut self, value: ValueText<'_>) {
        let piece = match value {
            ValueText::Owned(value) if value.len() >= SHARED => value.into(),
            ValueText::Shared(value) if value.len() >= SHARED => Bytes::from_owner(SharedText(value)),
            value => return self.add_text(&value),
        };
        self.end_part();
        self.end_text();
        self.pieces.push(piece);
    }

    /// Adds a member of an object as the original has it. Neighbours there are taken with the comma between
    /// them.
    pub(super) fn add_member(&mut self, member: Range<usize>, is_first: bool) {
        let (_, reached) = self.part;
        if reached > 0
            && self.original.get(reached..member.start).is_some_and(|between| between.trim_ascii() == b",")
        {
            self.part.1 = member.end;
            return;
        }
        self.add_text(if is_first { "" } else { "," });
        self.part = (member.start, member.end);
    }

    /// Returns the bytes of a text in the original.
    pub(super) fn range_of(&self, text: &str) -> Option<(usize, usize)> {
        let start = (text.as_ptr() as usize).checked_sub(self.original.as_ptr() as usize)?;
        let end = start + text.len();
        (end <= self.original.len()).then_some((start, end))
    }

    pub(super) fn finish(mut self) -> Pieces {
        self.end_part();
        self.end_text();
        self.pieces.into()
    }

    fn end_part(&mut self) {
        let (start, end) = std::mem::take(&mut self.part);
        if end - start >= SHARED {
            self.end_text();
            self.pieces.push(self.original.slice(start..end));
        } else {
            self.text.push_str(std::str::from_utf8(&self.original[start..end]).unwrap_or_default());
        }
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push(std::mem::take(&mut self.text).into());
        }
    }
}
