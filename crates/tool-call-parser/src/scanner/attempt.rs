//! Tries candidates: asks the dialects whose marks may begin at a place to read from there, and takes the
//! result.

use std::ops::Range;

use super::state::{Held, Holds, Io, MAX_HELD, Open, Waiting};
use super::{MAX_RUN, QUOTED_LINE, Scanner};
use crate::calls::RawCall;
use crate::dialects::{BEHIND, Dialect, Found, Lane, MarkAt, Opens, Step, View, Wait};
use crate::event::Dropped;
use crate::json_span::Span;
use crate::openers::Opener;
use crate::repairs::Repair;
use crate::settle::{Settled, settle_call};

/// The part of a mark, in bytes, that counts as the beginning of a call at the end of a cut reply.
const CUT_MARK: usize = 6;

/// Trying candidates.
impl Scanner {
    /// Asks the dialects that may begin at `open.at`, in order. False when one of them needs more text.
    pub(super) fn try_candidates(&mut self, mut open: Open, io: &mut Io<'_>) -> bool {
        if !self.is_woken(&mut open) {
            self.open = Some(open);
            return false;
        }
        let spaced = self.is_space_up_to(open.at);
        let text = &self.buffer.as_bytes()[open.at..];
        let list = self.openers.openers_for(text[0]);
        for (rank, place) in
            io.options.preferred_dialects.ask_order(list, self.openers.candidate_places(text))
        {
            if rank < open.opener {
                continue;
            }
            let opener = &list[place];
            open.opener = rank;
            if !self.may_open(&open, opener, io) {
                continue;
            }
            match self.ask_dialect(&open, opener, spaced, io) {
                Step::More(_) if self.buffer.len() - open.at >= MAX_HELD => {
                    open.resume = open.resume.max(self.buffer.floor_char_boundary(open.at + MAX_HELD));
                }
                Step::More(wait) => {
                    open.waits = Some(wait.into());
                    open.charge_reread(self.buffer.len() - open.at);
                    self.open = Some(open);
                    return false;
                }
                Step::Read(found, length) => return self.take_found(found, open, opener.dialect, length, io),
                Step::ReadIfValid(calls, firm, length) if may_leave(&calls, io) => {
                    let end = open.at + length;
                    return self.take_calls(calls, firm, open, opener.dialect, end, io);
                }
                Step::Not(seen) | Step::ReadIfValid(_, _, seen) => self.spend_credit(&mut open, seen),
            }
        }
        match open.undeclared.take() {
            Some(held) => {
                let end = held.source.end;
                self.hold_part(*held, end);
            }
            None => self.pass_over(&open, io),
        }
        true
    }

    fn is_woken(&self, open: &mut Open) -> bool {
        let text = &self.buffer[open.at..];
        if text.len() < open.until && !self.eof {
            return false;
        }
        let wakes = self.eof
            || text.len() >= MAX_HELD
            || match &mut open.waits {
                None | Some(Waiting::Any) => true,
                Some(Waiting::Value(span)) => span.advance(text, false) != Span::More,
                Some(Waiting::Mark(from, marks)) => {
                    let bytes = &text.as_bytes()[(*from).min(text.len())..];
                    let found =
                        marks.iter().any(|mark| memchr::memmem::find(bytes, mark.as_bytes()).is_some());
                    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
                    *from = (*from).max((text.len() + 1).saturating_sub(longest));
                    found
                }
            };
        if wakes {
            open.waits = None;
        }
        wakes
    }

    /// Returns true if the mark begins at the candidate, or if the text there is a beginning of the mark.
    fn may_open(&self, open: &Open, opener: &Opener, io: &Io<'_>) -> bool {
        let bytes = &self.buffer.as_bytes()[open.at..];
        if opener.line && !open.line_start {
            return false;
        }
        opener.may_begin(bytes) && (!opener.mark.is_empty() || io.tools.may_begin_with(bytes[0]))
    }

    fn ask_dialect(&self, open: &Open, opener: &Opener, spaced: bool, io: &Io<'_>) -> Step {
        let text = &self.buffer[open.at..];
        let mut view = self.make_view(open, spaced, io);
        view.mark = match (opener.dialect.opens, view.mark_at(0, &[opener.mark])) {
            (Opens::Name, _) => 0,
            (_, MarkAt::Here(length)) => length,
            (_, MarkAt::Perhaps) => return Step::More(Wait::Any),
            (_, MarkAt::No) if self.cut && text.len() >= CUT_MARK && opener.mark.starts_with(text) => {
                return Step::Read(Found::Drop(String::new(), Dropped::Truncated), text.len());
            }
            (_, MarkAt::No) => return Step::Not(0),
        };
        debug_assert!(text.len() >= view.mark);
        (opener.dialect.read)(&view)
    }

    /// Makes the dialect's view. `spaced`: only space separates the released text from the mark.
    fn make_view<'a>(&'a self, open: &Open, spaced: bool, io: &'a Io<'_>) -> View<'a> {
        let from = self.buffer.ceil_char_boundary(open.at.saturating_sub(BEHIND));
        let before = &self.buffer[from..open.at];
        let end = self.buffer.floor_char_boundary(open.at.saturating_add(MAX_HELD));
        let whole = end == self.buffer.len();
        View {
            text: &self.buffer[open.at..end],
            mark: 0,
            eof: self.eof && whole,
            cut: self.cut && whole,
            tools: io.tools,
            steps: io.steps,
            before: if self.gone == 0 && from == 0 { &self.buffer[..open.at] } else { before },
            line_start: open.line_start,
            first: self.blank && spaced && self.held.0.is_empty(),
            after_call: self.after_call && spaced,
            json_wanted: io.options.json_wanted || !io.options.calls_wanted,
            reasoning: self.reasoning,
            native: io.ledger.native_arguments(),
            reasoned: io.ledger.has_reasoned(),
        }
    }

    /// Charges a failed candidate for the text that was read. Without credit, that text is skipped instead of
    /// searched again.
    pub(super) fn spend_credit(&mut self, open: &mut Open, seen: usize) {
        self.rescanned += seen;
        if self.rescanned > 64 * 1024 + 4 * (self.gone + open.at) {
            open.resume = open.resume.max(self.buffer.ceil_char_boundary(open.at + seen));
        }
    }

    /// Continues after a place where no dialect begins. Text that was held for it is released.
    pub(super) fn pass_over(&mut self, open: &Open, io: &mut Io<'_>) {
        let bytes = &self.buffer.as_bytes()[open.at..];
        let char = bytes[0];
        let fences = open.line_start && (char == b'`' || char == b'~');
        let run = bytes.iter().take(MAX_RUN).take_while(|byte| **byte == char);
        let fence = if fences { run.count() } else { 0 };
        self.release_held(open.at, io);
        self.scan = open.resume;
        if open.line_start && char == b'>' {
            self.code = Some(QUOTED_LINE);
        } else if fence >= 3 {
            self.lane = Lane::Fence(char, fence);
            self.scan = open.at + fence;
        } else if open.line_start && char == b'`' {
            self.scan = open.at;
        }
    }

    fn take_found(
        &mut self,
        found: Found,
        open: Open,
        dialect: &'static Dialect,
        length: usize,
        io: &mut Io<'_>,
    ) -> bool {
        let end = open.at + length;
        let source = open.at..end;
        match found {
            Found::Calls { calls, firm } => return self.take_calls(calls, firm, open, dialect, end, io),
            Found::Broken(name, why) => {
                self.hold_part(Held { dialect, holds: Holds::Broken(name, why), source }, end);
            }
            Found::Skip if self.held.are_broken_only() => {
                self.hold_part(Held { dialect, holds: Holds::Frame, source }, end);
            }
            Found::Skip | Found::Lane(_) | Found::EndOfReasoning => {
                self.accept_held(false, io);
                self.take_mark(open.at, end, io);
                // If the reply has only the end of its reasoning, the server may have lost the rest.
                if !(matches!(found, Found::EndOfReasoning) && io.ledger.is_blank()) {
                    self.note_framing(io);
                }
                match found {
                    Found::Lane(lane) => self.lane = lane,
                    Found::EndOfReasoning if !self.reasoning => io.ledger.reclassify_as_reasoning(),
                    _ => {}
                }
            }
            Found::Drop(name, why) => {
                self.accept_held(false, io);
                self.take_mark(open.at, end, io);
                self.note_dropped_call(&name, why, source, io);
            }
        }
        true
    }

    /// Notes once that marks have left the text.
    pub(super) fn note_framing(&mut self, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.noted_framing, true) && !self.reasoning {
            io.ledger.note_repair(Repair::Framing);
        }
    }

    /// Notes a call that was not sent. Only a reply that was cut has truncated calls. Otherwise the model did
    /// not finish the call, and its text is shown if there is no other.
    fn note_dropped_call(&self, name: &str, why: Dropped, source: Range<usize>, io: &mut Io<'_>) {
        let unclosed = why == Dropped::Truncated && !self.cut;
        if self.reasoning {
            return;
        }
        io.ledger.note_dropped(name, if unclosed { Dropped::Unclosed } else { why });
        if unclosed {
            io.ledger.keep_refused(&self.buffer[source]);
        }
    }
}

/// Returns true if each of these calls fits its tool.
fn may_leave(calls: &[RawCall], io: &Io<'_>) -> bool {
    calls.iter().all(|call| matches!(settle_call(call, io.tools, io.steps), Settled::Call(_)))
}
