//! Handles calls that were read: firm ones leave immediately, others only if nothing but calls follows. An
//! unreadable call is dropped next to other calls, and is text without them.

use std::ops::Range;

use super::Scanner;
use super::state::{Held, Holds, Io, Open};
use crate::calls::RawCall;
use crate::dialects::{self, Dialect};
use crate::event::{Dropped, Note};
use crate::settle::{Settled, settle_call};

/// Taking and releasing calls.
impl Scanner {
    pub(super) fn hold_part(&mut self, held: Held, end: usize) {
        self.held.0.push(held);
        self.scan = end;
        self.fresh = true;
    }
    pub(super) fn take_calls(
        &mut self,
        calls: Vec<RawCall>,
        firm: bool,
        open: Open,
        dialect: &'static Dialect,
        end: usize,
        io: &mut Io<'_>,
    ) -> bool {
        let settled = |call: RawCall| {
            let settled = match settle_call(&call, io.tools, io.steps) {
                // The call has its own end, so nothing cut it.
                Settled::Refused(Dropped::Truncated) => Settled::Refused(Dropped::Unclosed),
                settled => settled,
            };
            (call, settled)
        };
        let calls: Vec<_> = calls.into_iter().map(settled).collect();
        let source = open.at..end;
        let refused = |why| calls.iter().all(|(_, settled)| *settled == Settled::Refused(why));
        if refused(Dropped::Undeclared) {
            let name = calls.first().map(|(call, _)| call.name.clone()).unwrap_or_default();
            let held = Held { dialect, holds: Holds::Broken(name, Dropped::Undeclared), source };
            return self.hold_undeclared(held, firm, open, io);
        }
        let unreadable = calls.iter().all(|(_, settled)| {
            matches!(settled, Settled::Refused(Dropped::Unreadable | Dropped::Undeclared | Dropped::Unclosed))
        });
        if unreadable {
            let name = calls.first().map(|(call, _)| call.name.clone()).unwrap_or_default();
            self.hold_part(Held { dialect, holds: Holds::Broken(name, Dropped::Unreadable), source }, end);
        } else if firm && !self.reasoning {
            self.accept_held(true, io);
            self.take_mark(open.at, end, io);
            self.send_calls(calls, dialect, source, io);
        } else if self.examples {
            self.pass_over(&open, io);
        } else {
            self.hold_part(Held { dialect, holds: Holds::Calls(calls), source }, end);
        }
        true
    }

    /// Holds a call of an undeclared tool, because another dialect may read the text better. If none does, a
    /// call with its own marks is held: next to other calls it counts as a call that cannot leave.
    fn hold_undeclared(&mut self, held: Held, firm: bool, open: Open, io: &mut Io<'_>) -> bool {
        let own_marks = dialects::holds_mark(&self.buffer[held.source.clone()]);
        let mut next = open.skip_opener();
        self.spend_credit(&mut next, held.source.len());
        if firm && own_marks && !self.reasoning {
            next.keep_undeclared(held);
        }
        self.try_candidates(next, io)
    }

    fn send_calls(
        &mut self,
        calls: Vec<(RawCall, Settled)>,
        dialect: &'static Dialect,
        source: Range<usize>,
        io: &mut Io<'_>,
    ) {
        let source = &self.buffer[source];
        if self.last_note != Some(dialect.name) {
            self.last_note = Some(dialect.name);
            io.ledger.add_note(Note::Dialect(dialect.name));
        }
        for (raw, settled) in calls {
            io.ledger.take_text_call(&raw, settled, source);
        }
    }

    /// Accepts the held parts as calls, because nothing but calls followed. Unreadable ones are dropped next
    /// to calls, and are text alone.
    pub(super) fn accept_held(&mut self, among_calls: bool, io: &mut Io<'_>) {
        let Some(first) = self.held.0.first() else { return };
        let start = first.source.start;
        let real = among_calls || self.held.have_calls() || !io.ledger.is_without_calls();
        if !real && !self.reasoning {
            return self.take_frames(io);
        }
        let holds_calls = self.held.have_calls();
        let held = std::mem::take(&mut self.held).0;
        let end = held.last().map_or(start, |last| last.source.end);
        if holds_calls {
            self.last_calls = Some(self.gone + start..self.gone + end);
        }
        self.take_aside(start..end, io);
        for held in held {
            match held.holds {
                Holds::Calls(calls) => self.send_calls(calls, held.dialect, held.source, io),
                Holds::Broken(name, why) => io.ledger.note_dropped(&name, why),
                Holds::Frame => self.note_framing(io),
            }
        }
    }

    /// Releases the held parts as text, because text followed. Every later call that is not firm is an
    /// example too.
    pub(super) fn release_held(&mut self, at: usize, io: &mut Io<'_>) {
        if self.held.0.is_empty() {
            return;
        }
        self.examples |= self.held.have_calls();
        self.take_frames(io);
        self.release_text(at, io);
    }

    /// Releases the held parts as text, except for the marks between them.
    fn take_frames(&mut self, io: &mut Io<'_>) {
        for held in std::mem::take(&mut self.held).0 {
            match held.holds {
                Holds::Frame => {
                    self.take_aside(held.source, io);
                    self.note_framing(io);
                }
                Holds::Broken(name, why) if !self.reasoning => {
                    io.ledger.add_note(Note::LeftAsText { name, why });
                }
                Holds::Broken(..) | Holds::Calls(_) => {}
            }
        }
    }

    /// Takes a part that the scan has already passed.
    fn take_aside(&mut self, part: Range<usize>, io: &mut Io<'_>) {
        let (scan, fresh, code) = (self.scan, self.fresh, self.code);
        self.take_mark(part.start, part.end, io);
        (self.scan, self.fresh, self.code) = (scan.max(part.end), fresh, code);
    }
}
