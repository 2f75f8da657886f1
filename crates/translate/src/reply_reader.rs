//! One reply as it streams, read in the way that its request wants: passed through as bytes, given out as the
//! steps of a turn, or read by the tool-call engine. Pure. Called by `relay`.

use bytes::BytesMut;

use super::correctable::correctable_calls;
use super::fault::{Fault, Shows};
use super::live::LiveTurn;
use super::plain_turn::PlainTurn;
use super::reply::Head;
use super::stream::{Passed, StreamState};
use wire::Malformed;
use wire::sse::{DONE, Frame, write_data};
use wire::turn::{ChoiceEvent, Turn, Usage};

/// Reads one stream.
#[derive(Debug)]
pub enum ReplyReader {
    /// Its chunks go through, to a client of chat completions.
    Passed(Box<Passthrough>),
    /// Its steps are the chunks as they are.
    Plain(Box<PlainTurn>),
    /// They are read for calls.
    Live(Box<LiveTurn>),
}

/// The chunks that go through, and the end of a reply that said nothing: it leaves only when asking again
/// does not help.
#[derive(Debug)]
pub struct Passthrough {
    state: StreamState,
    held: BytesMut,
}

/// What of a reply may leave: chat frames as they are, or the steps of its turns.
#[derive(Debug, Default)]
pub struct ReplyPart {
    /// Whole frames.
    pub frames: BytesMut,
    /// Steps, in order.
    pub steps: Vec<ChoiceEvent>,
}

impl ReplyPart {
    /// True when there is nothing.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.steps.is_empty()
    }

    /// Drops all of it.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.steps.clear();
    }
}

impl ReplyReader {
    /// Lets the chunks of a stream through.
    pub fn passing(state: StreamState) -> Self {
        Self::Passed(Box::new(Passthrough { state, held: BytesMut::new() }))
    }

    /// respool itself has sent this head; chunks that go through are made to fit.
    pub fn head_was_sent(&mut self, head: &Head) {
        if let Self::Passed(passed) = self {
            passed.state.head_was_sent(&head.id, head.created, &head.model);
        }
    }

    /// The head of a reply that comes as steps; `None` before the upstream has begun.
    pub fn head(&self) -> Option<&Head> {
        match self {
            Self::Live(turn) => turn.head(),
            Self::Passed(_) | Self::Plain(_) => None,
        }
    }

    /// A chunk that carries nothing, for a reply that goes through; `None` before the stream has an id.
    pub fn heartbeat(&self) -> Option<String> {
        match self {
            Self::Passed(passed) => passed.state.heartbeat(),
            Self::Plain(_) | Self::Live(_) => None,
        }
    }

    /// Token counts, once they are known.
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Self::Passed(passed) => passed.state.usage(),
            Self::Plain(turn) => turn.usage(),
            Self::Live(turn) => turn.usage(),
        }
    }

    /// The turns as far as they came; none where no engine reads them.
    pub fn turns(&self) -> Vec<Turn> {
        match self {
            Self::Live(turn) => turn.turns().cloned().collect(),
            Self::Passed(_) | Self::Plain(_) => vec![],
        }
    }

    /// True once a chunk with a choice has come.
    pub fn has_begun(&self) -> bool {
        match self {
            Self::Passed(passed) => passed.state.has_begun(),
            Self::Plain(turn) => turn.has_begun(),
            Self::Live(turn) => turn.has_begun(),
        }
    }

    /// True once something was said.
    pub fn has_spoken(&self) -> bool {
        match self {
            Self::Passed(passed) => passed.state.has_spoken(),
            Self::Plain(turn) => turn.has_spoken(),
            Self::Live(turn) => turn.has_spoken(),
        }
    }

    /// True when every choice has its finish reason.
    pub fn is_finished(&self) -> bool {
        match self {
            Self::Passed(passed) => passed.state.is_finished(),
            Self::Plain(turn) => turn.is_finished(),
            Self::Live(turn) => turn.is_finished(),
        }
    }

    /// True when what was read is kept until the end, so that it must be bounded.
    pub fn keeps_all(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// Takes one chunk. `original`: its frame, where that can leave as it is.
    ///
    /// # Errors
    /// When the payload is not JSON.
    pub fn push(
        &mut self,
        original: Option<&Frame>,
        data: &str,
        out: &mut ReplyPart,
    ) -> Result<(), Malformed> {
        match self {
            Self::Passed(passed) => passed.push(original, data, &mut out.frames),
            Self::Plain(turn) => turn.push(data, &mut out.steps),
            Self::Live(turn) => turn.push(data, &mut out.steps),
        }
    }

    /// The reply has ended: what is wrong with it, and what it still shows. `is_full`: one with this fault
    /// has filled the window.
    pub fn settle(
        &mut self,
        is_full: impl Fn(&Fault) -> bool,
        out: &mut ReplyPart,
    ) -> Option<(Fault, Shows)> {
        match self {
            Self::Passed(passed) => passed.settle(is_full),
            Self::Plain(turn) => turn.settle(is_full),
            Self::Live(turn) => {
                let fault = turn.settle(&mut out.steps)?;
                let shows = fault.shows(&turn.turns().collect::<Vec<_>>(), turn.tools());
                Some((fault, shows))
            }
        }
    }

    /// The end of the reply leaves; `fills_window`: it has filled the model's window.
    pub fn close(&mut self, shows: Shows, fills_window: bool, out: &mut ReplyPart) {
        match self {
            Self::Passed(passed) => passed.close(&mut out.frames),
            Self::Plain(turn) => turn.close(fills_window, &mut out.steps),
            Self::Live(turn) => {
                if shows == Shows::CorrectableCall {
                    turn.add_calls(correctable_calls, &mut out.steps);
                }
                turn.close(fills_window, &mut out.steps);
            }
        }
    }

    /// The stream broke: what was held back leaves as the text it is.
    pub fn give_up(&mut self, out: &mut ReplyPart) {
        if let Self::Live(turn) = self {
            turn.give_up(&mut out.steps);
        }
    }

    /// The reader of another stream in the place of this one, of which no more than its head has left.
    /// `spent`: the tokens of the attempts before it. `None` when it begins from nothing.
    pub fn anew(&self, spent: Usage) -> Option<Self> {
        match self {
            Self::Passed(passed) => Some(Self::passing(passed.state.anew(spent))),
            Self::Plain(_) | Self::Live(_) => None,
        }
    }
}

impl Passthrough {
    /// Forwards a chunk, changed or as it is: in the original frame, where that is one any client reads.
    fn push(&mut self, original: Option<&Frame>, data: &str, out: &mut BytesMut) -> Result<(), Malformed> {
        match self.state.pass(data)? {
            Passed::Untouched => match original {
                Some(frame) => out.extend_from_slice(&frame.bytes),
                None => write_line(out, data),
            },
            Passed::Changed => write_line(out, self.state.text()),
            Passed::Withheld => {}
        }
        if self.state.has_ended_silent() {
            self.held.unsplit(out.split());
        }
        Ok(())
    }

    fn settle(&self, is_full: impl Fn(&Fault) -> bool) -> Option<(Fault, Shows)> {
        if self.held.is_empty() {
            return None;
        }
        if self.state.is_empty() {
            return Some((Fault::Empty, Shows::Blank));
        }
        // A limit is the client's business, unless it is the window's end.
        Some((Fault::CutReasoning, Shows::Answer)).filter(|(fault, _)| is_full(fault))
    }

    fn close(&mut self, out: &mut BytesMut) {
        self.held.unsplit(out.split());
        *out = std::mem::take(&mut self.held);
        self.state.missing_end().iter().for_each(|chunk| write_line(out, chunk));
        write_data(out, DONE);
    }
}

/// Writes one frame. A line end outside of its strings means nothing to JSON, and would end the frame.
fn write_line(out: &mut BytesMut, json: &str) {
    out.reserve(json.len() + 8);
    if json.contains('\n') {
        write_data(out, &json.replace('\n', " "));
    } else {
        write_data(out, json);
    }
}
