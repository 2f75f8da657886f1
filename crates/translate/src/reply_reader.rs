//! Reads a streaming reply in the way that its request needs: forwards the bytes, converts them to the steps
//! of a turn, or lets the tool-call engine read them. Pure. Called by `relay`.

use bytes::BytesMut;

use super::correctable::correctable_calls;
use super::fault::{Fault, Salvage};
use super::live::LiveTurn;
use super::plain_turn::PlainTurn;
use super::reply::Head;
use super::stream::{ChunkVerdict, StreamState};
use wire::Malformed;
use wire::sse::{DONE, Frame, write_data};
use wire::turn::{ChoiceEvent, Turn, Usage};

/// Reads one stream.
#[derive(Debug)]
pub enum ReplyReader {
    /// Forwards the chunks to a client of chat completions.
    Passthrough(Box<Passthrough>),
    /// Converts the chunks to steps.
    Plain(Box<PlainTurn>),
    /// Reads the chunks with the tool-call engine.
    Live(Box<LiveTurn>),
}

/// Forwards chunks, and holds back the end of an empty reply: it leaves only when a second attempt does not
/// help.
#[derive(Debug)]
pub struct Passthrough {
    state: StreamState,
    held: BytesMut,
}

/// The part of a reply that may leave: frames of chat chunks, or the steps of its turns.
#[derive(Debug, Default)]
pub struct ReplyPart {
    /// Whole frames.
    pub frames: BytesMut,
    /// Steps, in order.
    pub steps: Vec<ChoiceEvent>,
}

impl ReplyPart {
    /// Returns true when the part is empty.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.steps.is_empty()
    }

    /// Drops the part.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.steps.clear();
    }
}

impl ReplyReader {
    /// Makes a reader that forwards the chunks of a stream.
    pub fn passthrough(state: StreamState) -> Self {
        Self::Passthrough(Box::new(Passthrough { state, held: BytesMut::new() }))
    }

    /// Notes that respool itself has sent this head; forwarded chunks get the same head.
    pub fn set_sent_head(&mut self, head: &Head) {
        if let Self::Passthrough(passed) = self {
            passed.state.set_sent_head(&head.id, head.created, &head.model);
        }
    }

    /// Returns the head of a reply that comes as steps; `None` before the upstream has begun.
    pub fn head(&self) -> Option<&Head> {
        match self {
            Self::Live(turn) => turn.head(),
            Self::Passthrough(_) | Self::Plain(_) => None,
        }
    }

    /// Makes an empty chunk for a reply that is forwarded; `None` before the stream has an id.
    pub fn heartbeat(&self) -> Option<String> {
        match self {
            Self::Passthrough(passed) => passed.state.heartbeat(),
            Self::Plain(_) | Self::Live(_) => None,
        }
    }

    /// Returns the token counts, once they are known.
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Self::Passthrough(passed) => passed.state.usage(),
            Self::Plain(turn) => turn.usage(),
            Self::Live(turn) => turn.usage(),
        }
    }

    /// Returns the turns up to now; empty if no engine reads them.
    pub fn turns(&self) -> Vec<Turn> {
        match self {
            Self::Live(turn) => turn.turns().cloned().collect(),
            Self::Passthrough(_) | Self::Plain(_) => vec![],
        }
    }

    /// Returns true once a chunk with a choice has come.
    pub fn has_begun(&self) -> bool {
        match self {
            Self::Passthrough(passed) => passed.state.has_begun(),
            Self::Plain(turn) => turn.has_begun(),
            Self::Live(turn) => turn.has_begun(),
        }
    }

    /// Returns true once something was said.
    pub fn has_spoken(&self) -> bool {
        match self {
            Self::Passthrough(passed) => passed.state.has_spoken(),
            Self::Plain(turn) => turn.has_spoken(),
            Self::Live(turn) => turn.has_spoken(),
        }
    }

    /// Returns true once reasoning has come.
    pub fn has_reasoned(&self) -> bool {
        match self {
            Self::Passthrough(passed) => passed.state.has_reasoned(),
            Self::Plain(turn) => turn.has_reasoned(),
            Self::Live(turn) => turn.turns().any(|turn| !turn.reasoning.trim().is_empty()),
        }
    }

    /// Returns true when every choice has its finish reason.
    pub fn is_finished(&self) -> bool {
        match self {
            Self::Passthrough(passed) => passed.state.is_finished(),
            Self::Plain(turn) => turn.is_finished(),
            Self::Live(turn) => turn.is_finished(),
        }
    }

    /// Returns true when the reader keeps the whole reply, so that its size needs a limit.
    pub fn keeps_all(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// Takes one chunk. `original`: its frame, if that can leave unchanged.
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
            Self::Passthrough(passed) => passed.push(original, data, &mut out.frames),
            Self::Plain(turn) => turn.push(data, &mut out.steps),
            Self::Live(turn) => turn.push(data, &mut out.steps),
        }
    }

    /// Ends the reply and returns its fault, with its usable part. `is_full`: whether a reply with this fault
    /// has filled the window.
    pub fn settle(
        &mut self,
        is_full: impl Fn(&Fault) -> bool,
        out: &mut ReplyPart,
    ) -> Option<(Fault, Salvage)> {
        match self {
            Self::Passthrough(passed) => passed.settle(is_full),
            Self::Plain(turn) => turn.settle(is_full),
            Self::Live(turn) => {
                let fault = turn.settle(&mut out.steps)?;
                let shows = fault.usable_part(&turn.turns().collect::<Vec<_>>(), turn.tools());
                Some((fault, shows))
            }
        }
    }

    /// Writes the end of the reply; `fills_window`: it has filled the model's window.
    pub fn close(&mut self, shows: Salvage, fills_window: bool, out: &mut ReplyPart) {
        match self {
            Self::Passthrough(passed) => passed.close(&mut out.frames),
            Self::Plain(turn) => turn.close(fills_window, &mut out.steps),
            Self::Live(turn) => {
                if shows == Salvage::CorrectableCall {
                    turn.add_calls(correctable_calls, &mut out.steps);
                }
                turn.close(fills_window, &mut out.steps);
            }
        }
    }

    /// Releases the held text of a broken stream.
    pub fn give_up(&mut self, out: &mut ReplyPart) {
        if let Self::Live(turn) = self {
            turn.give_up(&mut out.steps);
        }
    }

    /// Makes the reader of another stream that replaces this one, of which only the head has left. `spent`:
    /// the tokens of earlier attempts. `fallback`: the model that answers now, if it is another one. `None`
    /// when the new reader needs nothing of this one.
    pub fn replacement(&self, spent: Usage, fallback: Option<&str>) -> Option<Self> {
        match self {
            Self::Passthrough(passed) => Some(Self::passthrough(passed.state.replacement(spent, fallback))),
            Self::Plain(_) | Self::Live(_) => None,
        }
    }
}

impl Passthrough {
    /// Forwards a chunk, unchanged in its original frame if there is one.
    fn push(&mut self, original: Option<&Frame>, data: &str, out: &mut BytesMut) -> Result<(), Malformed> {
        match self.state.judge_chunk(data)? {
            ChunkVerdict::Untouched => match original {
                Some(frame) => out.extend_from_slice(&frame.bytes),
                None => write_line(out, data),
            },
            ChunkVerdict::Changed => write_line(out, self.state.text()),
            ChunkVerdict::Withheld => {}
        }
        if self.state.has_ended_silent() {
            self.held.unsplit(out.split());
        }
        Ok(())
    }

    fn settle(&self, is_full: impl Fn(&Fault) -> bool) -> Option<(Fault, Salvage)> {
        if self.held.is_empty() {
            return None;
        }
        if self.state.is_empty() {
            return Some((Fault::Empty, Salvage::Blank));
        }
        // A limit is the client's own, unless the window has ended.
        Some((Fault::CutReasoning, Salvage::Answer)).filter(|(fault, _)| is_full(fault))
    }

    fn close(&mut self, out: &mut BytesMut) {
        self.held.unsplit(out.split());
        *out = std::mem::take(&mut self.held);
        self.state.take_missing_end().iter().for_each(|chunk| write_line(out, chunk));
        write_data(out, DONE);
    }
}

/// Writes one frame. A line end outside strings means nothing in JSON, but would end the line of the frame.
fn write_line(out: &mut BytesMut, json: &str) {
    out.reserve(json.len() + 8);
    if memchr::memchr(b'\n', json.as_bytes()).is_some() {
        write_data(out, &json.replace('\n', " "));
    } else {
        write_data(out, json);
    }
}
