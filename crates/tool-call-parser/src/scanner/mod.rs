//! Walks over a growing text once, finds the places where a dialect may begin, and asks the dialects to read
//! from there.
//!
//! It holds back only text that may still become a call (or the space before one), and releases it when that
//! is impossible. Every decision depends on the text and on offsets in it, never on its split into pieces.
//! Work is linear: text after a failed mark is searched again only while there is credit for it. Used by the
//! engine, once per field.

mod attempt;
mod held;
mod lanes;
mod state;

use std::ops::Range;

pub(crate) use self::state::Io;
use self::state::{HeldParts, Open};
use super::Field;
use super::dialects::{BEHIND, Lane, lane_of_beginning};
use super::openers::{OPENERS, Openers};
use super::space::is_ascii_non_space;

/// A longer run of space is content, even before a call.
const MAX_SPACE: usize = 1024;
/// A longer line does not close a fence, unless that is decided earlier.
const MAX_CLOSING: usize = 256;
/// The longest run of backticks. The rest of a longer one counts as another run.
const MAX_RUN: usize = 64;
/// The length of the pieces in which a long text is read, in bytes: text leaves the buffer before more is
/// copied into it.
const PIECE: usize = 64 << 10;
/// Replaces the length of a backtick run when the line is quoted and has no calls.
const QUOTED_LINE: usize = usize::MAX;

/// One field's text.
#[derive(Debug)]
pub(crate) struct Scanner {
    openers: &'static Openers,
    buffer: String,
    /// Bytes that have left the buffer.
    gone: usize,
    /// The first byte of the buffer that has not left.
    head: usize,
    scan: usize,
    /// The end of the space that begins at `head`.
    white: usize,
    pub(crate) lane: Lane,
    /// The length of the backtick run that opened an inline code span on this line.
    code: Option<usize>,
    fresh: bool,
    after_call: bool,
    long_space: bool,
    blank: bool,
    open: Option<Open>,
    held: HeldParts,
    examples: bool,
    rescanned: usize,
    eof: bool,
    cut: bool,
    /// True when the text is only searched for calls: nothing in it is firm.
    reasoning: bool,
    /// The place of the last mark that was found by a byte inside it.
    tried_late: Option<usize>,
    /// The bytes of the last calls that were held and left, from the beginning of the text.
    last_calls: Option<Range<usize>>,
    last_note: Option<&'static str>,
    noted_framing: bool,
    /// True inside the reasoning with which the text began.
    pub(crate) in_beginning: bool,
}

impl Scanner {
    /// Makes a scanner for content or, for `reasoning`, one that looks for calls and emits nothing else.
    pub(crate) fn new(reasoning: bool) -> Self {
        Self::with_openers(&OPENERS, reasoning)
    }

    /// Makes a scanner with its own table.
    pub(super) fn with_openers(openers: &'static Openers, reasoning: bool) -> Self {
        Self {
            openers,
            buffer: String::new(),
            gone: 0,
            head: 0,
            scan: 0,
            white: 0,
            lane: Lane::Content,
            code: None,
            fresh: true,
            after_call: false,
            long_space: false,
            blank: true,
            open: None,
            held: HeldParts::default(),
            examples: false,
            rescanned: 0,
            eof: false,
            cut: false,
            reasoning,
            tried_late: None,
            last_calls: None,
            last_note: None,
            noted_framing: false,
            in_beginning: false,
        }
    }

    /// Takes the next piece.
    pub(crate) fn push(&mut self, delta: &str, io: &mut Io<'_>) {
        let mut rest = delta;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.floor_char_boundary(PIECE));
            self.buffer.push_str(head);
            self.run(io);
            rest = tail;
        }
    }

    /// Settles everything.
    pub(crate) fn finish(&mut self, cut: bool, io: &mut Io<'_>) {
        self.eof = true;
        self.cut = cut;
        self.run(io);
        self.accept_held(false, io);
        self.release_up_to(self.buffer.len(), true, io);
    }

    /// Returns the bytes of the last calls that were held and left, from the beginning of the text.
    pub(crate) fn last_calls(&self) -> Option<Range<usize>> {
        self.last_calls.clone()
    }

    fn run(&mut self, io: &mut Io<'_>) {
        while self.step(io) {}
        let certain = self.certain_end();
        self.release_text(certain, io);
        self.forget_released();
    }

    /// Takes one step; false when more text is needed.
    fn step(&mut self, io: &mut Io<'_>) -> bool {
        match self.lane {
            Lane::Reasoning(closers, kept) => self.reasoning_step(closers, kept, io),
            Lane::Answer(closers, kept) => self.answer_step(closers, kept, io),
            Lane::Fence(char, length) => self.fence_step(char, length),
            Lane::Beginning => {
                let Some(lane) = lane_of_beginning(&self.buffer, self.eof) else { return false };
                self.in_beginning = lane != Lane::Content;
                self.lane = lane;
                true
            }
            Lane::Content => match self.open.take() {
                Some(open) => self.try_candidates(open, io),
                None if self.fresh => self.line_start(io),
                None => self.next_trigger(io),
            },
        }
    }

    /// Returns the offset before which everything is certainly text.
    fn certain_end(&self) -> usize {
        if !self.held.0.is_empty() {
            return self.head;
        }
        let end = self.open.as_ref().map_or(self.scan, |open| open.at);
        if self.lane == Lane::Content && self.open.is_none() && !self.eof {
            self.end_before_late_mark(end)
        } else {
            end
        }
    }

    /// Excludes a suffix that may become a mark which a later byte will reveal.
    fn end_before_late_mark(&self, end: usize) -> usize {
        end - self.openers.partial_late(&self.buffer.as_bytes()[self.head..end])
    }

    /// Emits text up to `end`. The space at its end is held back, because a call would drop it.
    fn release_text(&mut self, end: usize, io: &mut Io<'_>) {
        self.release_up_to(end, false, io);
    }

    fn release_up_to(&mut self, end: usize, last: bool, io: &mut Io<'_>) {
        if end <= self.head {
            return;
        }
        let blank = self.is_space_up_to(end);
        let text = &self.buffer[self.head..end];
        let visible = match text.as_bytes() {
            _ if blank => 0,
            [.., last] if is_ascii_non_space(*last) => text.len(),
            _ => text.trim_end().len(),
        };
        if self.after_call && visible == 0 {
            if last {
                self.head = end;
            }
            return;
        }
        let space = text.len() - visible;
        let keeps = last || self.long_space && visible == 0 || space > MAX_SPACE;
        let length = if keeps { text.len() } else { visible };
        let start = if self.after_call && self.blank { text.len() - text.trim_start().len() } else { 0 };
        if length > start {
            let text = &text[start..length];
            if !self.reasoning {
                io.ledger.emit_text(Field::Content, text);
            }
            self.blank &= visible == 0;
            self.after_call = false;
            self.long_space = space > MAX_SPACE || self.long_space && visible == 0;
            self.head += length;
            self.white = end;
        }
    }

    /// Returns true if there is only space between `head` and `end`. No byte is compared twice.
    fn is_space_up_to(&mut self, end: usize) -> bool {
        let from = self.white.max(self.head);
        if from < end {
            if is_ascii_non_space(self.buffer.as_bytes()[from]) {
                return false;
            }
            let rest = &self.buffer[from..end];
            self.white = end - rest.trim_start().len();
        }
        self.white >= end || self.head >= end
    }

    /// Emits the text before a mark and skips the mark. Space between the two is dropped.
    fn take_mark(&mut self, at: usize, end: usize, io: &mut Io<'_>) {
        self.release_text(at, io);
        if self.long_space && at > self.head && !self.reasoning {
            io.ledger.emit_text(Field::Content, &self.buffer[self.head..at]);
        }
        self.long_space = false;
        self.head = end;
        self.scan = end;
        self.after_call = true;
        self.fresh = true;
        self.code = None;
    }

    fn forget_released(&mut self) {
        let keep = self.head.min(self.scan).saturating_sub(BEHIND);
        if keep < 4096 {
            return;
        }
        let keep = self.buffer.floor_char_boundary(keep);
        self.buffer.drain(..keep);
        self.gone += keep;
        self.head -= keep;
        self.scan -= keep;
        self.white = self.white.saturating_sub(keep);
        if let Some(open) = &mut self.open {
            open.at -= keep;
            open.resume -= keep;
        }
        for held in &mut self.held.0 {
            held.source = held.source.start - keep..held.source.end - keep;
        }
    }
}

/// Finding candidates.
impl Scanner {
    fn line_start(&mut self, io: &mut Io<'_>) -> bool {
        let rest = &self.buffer[self.scan..];
        let at = self.scan + rest.len() - rest.trim_start().len();
        self.scan = at;
        let rest = &self.buffer.as_bytes()[at..];
        let Some(&first) = rest.first() else { return false };
        if (first == b'`' || first == b'~')
            && rest.len() < 3
            && rest.iter().all(|byte| *byte == first)
            && !self.eof
        {
            return false;
        }
        self.fresh = false;
        let resume = at + usize::from(first.is_ascii());
        self.try_candidates(Open::new(at, resume.max(at), true), io)
    }

    fn next_trigger(&mut self, io: &mut Io<'_>) -> bool {
        let bytes = &self.buffer.as_bytes()[self.scan..];
        let Some(found) = self.openers.next_trigger(bytes) else {
            self.scan = self.buffer.len();
            return false;
        };
        let at = self.scan + found;
        self.scan = at + 1;
        match bytes[found] {
            b'\n' => {
                self.code = None;
                self.fresh = true;
                true
            }
            b'`' => self.read_backticks(at),
            _ if self.code.is_some() => true,
            _ => match self.late_mark(at) {
                Some(start) => self.try_candidates(Open::new(start, self.scan, false), io),
                None if !self.openers.may_begin(&self.buffer.as_bytes()[at..]) => true,
                None => self.try_candidates(Open::new(at, at + 1, false), io),
            },
        }
    }

    /// Reads a run of backticks, which opens or closes an inline code span.
    fn read_backticks(&mut self, at: usize) -> bool {
        let rest = &self.buffer.as_bytes()[at..];
        let length = rest.iter().take(MAX_RUN).take_while(|byte| **byte == b'`').count();
        if length == rest.len() && length < MAX_RUN && !self.eof {
            self.scan = at;
            return false;
        }
        self.scan = at + length;
        self.code = match self.code {
            None => Some(length),
            Some(opened) if opened == length => None,
            code => code,
        };
        true
    }

    /// Returns the beginning of a mark that was found by a byte inside it. If the mark fails, that byte may
    /// still begin another.
    fn late_mark(&mut self, at: usize) -> Option<usize> {
        let text = &self.buffer.as_bytes()[self.head..];
        let before = self.openers.late_before(text, at - self.head)?;
        if self.tried_late == Some(self.gone + at) {
            return None;
        }
        self.tried_late = Some(self.gone + at);
        self.scan = at;
        Some(at - before)
    }
}
