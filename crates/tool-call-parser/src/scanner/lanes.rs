//! Reads stretches of text as a whole: reasoning, an answer in its own message, a fence.

use super::state::Io;
use super::{MAX_CLOSING, Scanner};
use crate::Field;
use crate::dialects::Lane;
use crate::marks::{find_earliest, partial_suffix};

impl Scanner {
    pub(super) fn fence_step(&mut self, char: u8, length: usize) -> bool {
        let bytes = self.buffer.as_bytes();
        let Some(found) = memchr::memchr(b'\n', &bytes[self.scan..]) else {
            self.scan = bytes.len();
            return false;
        };
        let newline = self.scan + found;
        let end = self.buffer.floor_char_boundary((newline + 1).saturating_add(MAX_CLOSING));
        let rest = self.buffer[newline + 1..end].trim_start_matches([' ', '\t']);
        let run = rest.bytes().take_while(|byte| *byte == char).count();
        let after = rest[run..].trim_start_matches([' ', '\t']);
        if after.is_empty() && end == self.buffer.len() && !self.eof {
            self.scan = newline;
            return false;
        }
        self.scan = newline + 1;
        if run >= length && (after.is_empty() || after.starts_with('\n')) {
            self.scan = end - after.len();
            self.lane = Lane::Content;
        }
        true
    }

    /// Emits reasoning up to its closing mark.
    pub(super) fn reasoning_step(
        &mut self,
        closers: &'static [&'static str],
        kept: &[&str],
        io: &mut Io<'_>,
    ) -> bool {
        let rest = &self.buffer[self.scan..];
        let found = find_earliest(rest, closers);
        let (end, mark) = match found {
            Some((at, length)) => (self.scan + at, Some(length)),
            None if self.eof => (self.buffer.len(), None),
            None => (self.buffer.len() - partial_suffix(rest, closers), None),
        };
        if !self.reasoning {
            io.ledger.emit_text(Field::Reasoning, &self.buffer[self.scan..end]);
        }
        self.head = end;
        self.scan = end;
        let Some(length) = mark else { return false };
        self.lane = Lane::Content;
        self.in_beginning = false;
        if !self.reasoning {
            io.ledger.close_reasoning();
        }
        self.leave_lane(end, length, kept, io);
        true
    }

    /// Emits a message to the user up to its closing mark. Calls in it are quotations.
    pub(super) fn answer_step(
        &mut self,
        closers: &'static [&'static str],
        kept: &[&str],
        io: &mut Io<'_>,
    ) -> bool {
        let rest = &self.buffer[self.scan..];
        let Some((at, length)) = find_earliest(rest, closers) else {
            self.scan = self.buffer.len() - if self.eof { 0 } else { partial_suffix(rest, closers) };
            return false;
        };
        self.lane = Lane::Content;
        self.leave_lane(self.scan + at, length, kept, io);
        true
    }

    fn leave_lane(&mut self, end: usize, length: usize, kept: &[&str], io: &mut Io<'_>) {
        let keeps = kept.contains(&&self.buffer[end..end + length]);
        let next = if keeps { end } else { end + length };
        self.take_mark(end, next, io);
    }
}
