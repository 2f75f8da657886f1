//! The turn: the meaning of one model reply, in whatever form it arrived.
//!
//! Sources (a whole reply, a live stream, an agent run, a canned answer) produce [`TurnEvent`]s; sinks (chat
//! chunks, a chat completion, the Responses API, Messages, a terminal) consume them, each in its own form.
//! This module is plain data: no serde, no I/O, no clock, no randomness. Calls and notes are the tool-call
//! parser's own.

use tool_call_parser::Event;
pub use tool_call_parser::{Dropped, Note, ToolCall, describe_repair};

/// Why the model stopped. Only values that OpenAI's API defines exist here, so nothing else can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A natural end or a stop sequence.
    Stop,
    /// The token limit cut the reply.
    Length,
    /// The turn ends with tool calls.
    ToolCalls,
    /// The provider withheld content.
    ContentFilter,
}

impl FinishReason {
    /// Returns the name on the wire, as in OpenAI's `finish_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }

    /// Returns true for the names that OpenAI's API defines.
    pub fn is_openai(name: &str) -> bool {
        matches!(name, "stop" | "length" | "tool_calls" | "content_filter" | "function_call")
    }

    /// Maps an upstream's finish reason to one that OpenAI defines. `calls`: whether the turn has tool calls.
    ///
    /// vLLM's own values (`abort`, `eos`, `repetition`, null) make clients end a run with an error, and a
    /// `stop` in a turn with calls makes OpenClaw drop the calls, so calls always win.
    pub fn from_upstream(upstream: Option<&str>, calls: bool) -> Self {
        match upstream {
            _ if calls => Self::ToolCalls,
            Some("length" | "max_tokens") => Self::Length,
            Some("content_filter") => Self::ContentFilter,
            _ => Self::Stop,
        }
    }
}

/// Token counts of one reply, in tokens. `None` means that the upstream did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the rendered prompt.
    pub prompt: u64,
    /// Tokens the model wrote, reasoning included.
    pub completion: u64,
    /// Prompt tokens served from the prefix cache.
    pub cached: Option<u64>,
    /// Prompt tokens that were written to the prefix cache (vLLM 0.33 and later).
    pub cache_written: Option<u64>,
    /// Completion tokens spent on reasoning.
    pub reasoning: Option<u64>,
}

impl Usage {
    /// Returns prompt plus completion tokens.
    pub fn total_tokens(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }

    /// Adds two counts. A detail that only one of them has is taken from it.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        Self {
            prompt: self.prompt.saturating_add(other.prompt),
            completion: self.completion.saturating_add(other.completion),
            cached: both(self.cached, other.cached),
            cache_written: both(self.cache_written, other.cache_written),
            reasoning: both(self.reasoning, other.reasoning),
        }
    }
}

/// Fields that leave although OpenAI's API does not define them, as key and JSON text: the owner asked to
/// keep them, or another API needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptFields {
    /// Of the reply.
    pub reply: Vec<(String, String)>,
    /// Of the choice.
    pub choice: Vec<(String, String)>,
    /// Of the message.
    pub message: Vec<(String, String)>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnEnd {
    /// Why it ended.
    pub reason: FinishReason,
    /// Token counts, when known: those of all attempts.
    pub usage: Option<Usage>,
    /// The model's window cut it, not a limit that the client set.
    pub fills_window: bool,
    /// Fields to keep.
    pub kept: KeptFields,
}

impl TurnEnd {
    /// Makes an end without further details.
    pub fn new(reason: FinishReason, usage: Option<Usage>) -> Self {
        Self { reason, usage, fills_window: false, kept: KeptFields::default() }
    }
}

/// The kind of an item: a part of a turn that a client keeps as a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// Reasoning.
    Reasoning,
    /// A text.
    Text,
    /// A refusal.
    Refusal,
    /// A call.
    Call,
}

/// How an item ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemEnd {
    /// The proof that reasoning comes back unchanged: its signature, or the sealed reasoning itself.
    pub signature: Option<String>,
    /// True when nothing cut it.
    pub is_whole: bool,
}

/// One step of one of a reply's choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceEvent {
    /// The choice's index.
    pub choice: u64,
    /// The step.
    pub event: TurnEvent,
    /// The log probabilities of its text as JSON text, when the client asked for them.
    pub logprobs: Option<String>,
}

impl ChoiceEvent {
    /// Makes a step without log probabilities.
    pub fn new(choice: u64, event: TurnEvent) -> Self {
        Self { choice, event, logprobs: None }
    }
}

/// One step of a turn, in the order in which a client may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// The model has begun, but has said nothing yet.
    Begun,
    /// An item with this id begins; the next steps belong to it.
    ItemBegun(ItemKind, String),
    /// The item ends.
    ItemEnded(ItemEnd),
    /// A piece of the model's reasoning.
    Reasoning(String),
    /// A piece of the answer.
    Content(String),
    /// A piece of a refusal to answer.
    Refusal(String),
    /// One whole call.
    ToolCall(ToolCall),
    /// A note about respool's own progress.
    Progress(String),
    /// For the log, never for the client.
    Note(Note),
    /// The end of the turn.
    Finish(TurnEnd),
}

impl TurnEvent {
    /// Returns the bytes of its text.
    pub fn text_len(&self) -> usize {
        match self {
            Self::Reasoning(text) | Self::Content(text) | Self::Refusal(text) | Self::Progress(text) => {
                text.len()
            }
            Self::ToolCall(call) => call.name.len() + call.arguments.len(),
            Self::Begun | Self::ItemBegun(..) | Self::ItemEnded(_) | Self::Note(_) | Self::Finish(_) => 0,
        }
    }

    /// Merges the next event when both are pieces of the same text; otherwise returns it.
    pub fn append_same_kind(&mut self, next: Self) -> Option<Self> {
        match (self, next) {
            (Self::Content(text), Self::Content(more))
            | (Self::Reasoning(text), Self::Reasoning(more))
            | (Self::Refusal(text), Self::Refusal(more)) => {
                text.push_str(&more);
                None
            }
            (_, next) => Some(next),
        }
    }
}

impl From<Event> for TurnEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Reasoning(text) => Self::Reasoning(text),
            Event::Content(text) => Self::Content(text),
            Event::ToolCall(call) => Self::ToolCall(call),
            Event::Note(note) => Self::Note(note),
        }
    }
}

/// A collected turn: the content of its events, with neighbouring pieces joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
    /// Notes, in order.
    pub notes: Vec<Note>,
    /// The end, once it came.
    pub finish: Option<FinishReason>,
    /// Token counts, when known.
    pub usage: Option<Usage>,
}

impl Turn {
    /// Adds one event. Progress is skipped, because the model did not say it. So are refusals, which are kept
    /// apart from the turn.
    pub fn apply_event(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Reasoning(text) => self.reasoning.push_str(&text),
            TurnEvent::Content(text) => self.content.push_str(&text),
            TurnEvent::ToolCall(call) => self.calls.push(call),
            TurnEvent::Note(note) => self.notes.push(note),
            TurnEvent::Begun
            | TurnEvent::ItemBegun(..)
            | TurnEvent::ItemEnded(_)
            | TurnEvent::Progress(_)
            | TurnEvent::Refusal(_) => {}
            TurnEvent::Finish(end) => {
                self.finish = Some(end.reason);
                self.usage = end.usage;
            }
        }
    }

    /// Returns true when the turn has no content and no call for the client.
    pub fn is_blank(&self) -> bool {
        self.calls.is_empty() && self.content.trim().is_empty()
    }
}

impl FromIterator<TurnEvent> for Turn {
    fn from_iter<I: IntoIterator<Item = TurnEvent>>(events: I) -> Self {
        let mut turn = Self::default();
        events.into_iter().for_each(|event| turn.apply_event(event));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_reasons_that_openai_does_not_define_never_leave() {
        for (upstream, calls, expected) in [
            (Some("stop"), false, FinishReason::Stop),
            (Some("stop"), true, FinishReason::ToolCalls),
            (Some("length"), false, FinishReason::Length),
            (Some("abort"), false, FinishReason::Stop),
            (Some("eos"), false, FinishReason::Stop),
            (Some("repetition"), false, FinishReason::Stop),
            (Some("tool_calls"), false, FinishReason::Stop),
            (Some("function_call"), true, FinishReason::ToolCalls),
            (Some("content_filter"), false, FinishReason::ContentFilter),
            (None, false, FinishReason::Stop),
        ] {
            assert_eq!(FinishReason::from_upstream(upstream, calls), expected, "{upstream:?} {calls}");
        }
    }

    #[test]
    fn events_join_into_a_turn() {
        let turn: Turn = [
            TurnEvent::Reasoning("a".into()),
            TurnEvent::Reasoning("b".into()),
            TurnEvent::Progress("…".into()),
            TurnEvent::Content("c".into()),
            TurnEvent::Finish(TurnEnd::new(FinishReason::Stop, None)),
        ]
        .into_iter()
        .collect();
        assert_eq!((turn.reasoning.as_str(), turn.content.as_str()), ("ab", "c"));
        assert_eq!(turn.finish, Some(FinishReason::Stop));
        assert!(!turn.is_blank());
    }
}
