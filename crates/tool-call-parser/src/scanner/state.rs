//! The state of a scanner between two pieces of text: the candidate that waits for more, and the parts that
//! wait for the text after them.

use std::ops::Range;

use crate::Options;
use crate::calls::RawCall;
use crate::dialects::{Dialect, Wait};
use crate::event::Dropped;
use crate::json_span::{JsonSpan, Style};
use crate::ledger::Ledger;
use crate::schema::Steps;
use crate::settle::Settled;
use crate::tools::Tools;

/// The longest candidate that the dialects see, in bytes. A longer one is text: no argument is that long.
pub(super) const MAX_HELD: usize = 24 << 20;
/// The bytes of one candidate that may be read again, in addition to a multiple of its length.
const REREAD: usize = 64 << 10;

/// The parts of the engine that the scanner uses.
#[derive(Debug)]
pub(crate) struct Io<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) steps: &'a Steps,
    pub(crate) options: Options,
    pub(crate) ledger: &'a mut Ledger,
}

/// A candidate: a place at which a dialect may begin.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) at: usize,
    /// The place at which the scan goes on if the candidate fails.
    pub(super) resume: usize,
    pub(super) line_start: bool,
    /// The place in the order in which the openers are asked.
    pub(super) opener: usize,
    /// A call of an undeclared tool that a dialect read here, in case no other reads the text better.
    pub(super) undeclared: Option<Box<Held>>,
    pub(super) waits: Option<Waiting>,
    /// The number of bytes that dialects read before they asked for more.
    read: usize,
    /// The length of text at which dialects are asked again.
    pub(super) until: usize,
}

impl Open {
    pub(super) fn new(at: usize, resume: usize, line_start: bool) -> Self {
        Self { at, resume, line_start, opener: 0, undeclared: None, waits: None, read: 0, until: 0 }
    }

    /// Continues at the same place with the next dialects.
    pub(super) fn skip_opener(self) -> Self {
        Self { opener: self.opener + 1, waits: None, read: 0, until: 0, ..self }
    }

    /// Remembers the first call of an undeclared tool.
    pub(super) fn keep_undeclared(&mut self, held: Held) {
        self.undeclared.get_or_insert_with(|| Box::new(held));
    }

    /// Charges a dialect that reads `length` bytes from the beginning each time. Without credit, it waits
    /// until the text has grown by an eighth.
    pub(super) fn charge_reread(&mut self, length: usize) {
        self.read += length;
        if self.read > REREAD + 8 * length {
            self.until = MAX_HELD.min(length + length / 8);
        }
    }
}

/// The text that a dialect waits for.
#[derive(Debug)]
pub(super) enum Waiting {
    Any,
    Value(Box<JsonSpan>),
    Mark(usize, &'static [&'static str]),
}

impl From<Wait> for Waiting {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Any => Self::Any,
            Wait::Json(from) => Self::Value(Box::new(JsonSpan::new(from, Style::Json))),
            Wait::Python(from) => Self::Value(Box::new(JsonSpan::new(from, Style::Python))),
            Wait::Mark(from, marks) => Self::Mark(from, marks),
        }
    }
}

/// A part of the text that waits for the text after it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) dialect: &'static Dialect,
    pub(super) holds: Holds,
    pub(super) source: Range<usize>,
}

/// The parts that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct HeldParts(pub(super) Vec<Held>);

impl HeldParts {
    /// True when there are parts, and none has calls.
    pub(super) fn are_broken_only(&self) -> bool {
        !self.0.is_empty() && !self.have_calls()
    }

    /// True when one of them has calls.
    pub(super) fn have_calls(&self) -> bool {
        self.0.iter().any(|held| matches!(held.holds, Holds::Calls(_)))
    }
}

#[derive(Debug)]
pub(super) enum Holds {
    /// Calls that leave only if nothing but calls follows.
    Calls(Vec<(RawCall, Settled)>),
    /// Text in the form of a call of this name that cannot leave.
    Broken(String, Dropped),
    /// Marks between such parts.
    Frame,
}
