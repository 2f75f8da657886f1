//! The content of a reply: events as they become certain, or all of them together.
//!
//! Plain data: no serde, no I/O. Produced by the engine.

/// One complete tool call: a declared name and arguments that are a JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The server's own id, if it sent one. The parser makes no ids.
    pub id: Option<String>,
    /// A tool's name exactly as it was declared.
    pub name: String,
    /// The text of one JSON object, `{}` when there are no arguments.
    pub arguments: String,
    /// The remaining violations of the tool's schema in the arguments.
    pub problems: Vec<String>,
}

/// A note for the log: a repair, or output that did not leave as a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Text was read as calls in this dialect (the dialect's name in the table).
    Dialect(&'static str),
    /// A repair made to the next call, or marks that left the text (`framing`). The name is stable and used
    /// as a metric label; [`describe_repair`](crate::describe_repair) explains it.
    Repaired(&'static str),
    /// A call that the model wrote or began, and that was not sent.
    Dropped {
        /// The name as the model wrote it, empty if it ended before that.
        name: String,
        /// The reason why it was not sent.
        why: Dropped,
        /// The arguments as the model wrote them, or as they would have left. `None` when they are not whole,
        /// or were not read.
        arguments: Option<String>,
    },
    /// Text in the form of a call, with a dialect's own marks, that stayed in the content: other text
    /// followed it, or the reply has no call that can leave. Dialects that ask for a declared name before
    /// they read on (`qwen_xml`, `glm`) leave such text without a note.
    LeftAsText {
        /// The name as the model wrote it, empty when it cannot be read.
        name: String,
        /// The reason why it is not a call.
        why: Dropped,
    },
}

impl Note {
    /// Corrects a note when the reply was not cut: a call that ends early is the model's own mistake.
    pub fn mark_unclosed(&mut self) {
        if let Self::Dropped { why: why @ Dropped::Truncated, .. } = self {
            *why = Dropped::Unclosed;
        }
    }
}

/// The reason why a call was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// No declared tool has that name.
    Undeclared,
    /// The reply ended inside the call.
    Truncated,
    /// The model ended its turn inside the call, although no limit was reached.
    Unclosed,
    /// The call is in the reasoning: the model only considered it.
    InReasoning,
    /// The arguments could not be read as a JSON object.
    Unreadable,
    /// A field that the tool's schema requires is missing.
    MissingRequired,
    /// The same call has left already: as a native call, or before another call of the text (A, B, A). One
    /// that follows its like at once leaves again, unless the reply was cut.
    Duplicate,
    /// The client asked for one call at most.
    NotParallel,
    /// The client asked for no calls (`tool_choice: "none"`).
    NotWanted,
}

impl Dropped {
    /// Returns a stable name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Undeclared => "undeclared",
            Self::Truncated => "truncated",
            Self::Unclosed => "unclosed",
            Self::InReasoning => "in_reasoning",
            Self::Unreadable => "unreadable",
            Self::MissingRequired => "missing_required",
            Self::Duplicate => "duplicate",
            Self::NotParallel => "not_parallel",
            Self::NotWanted => "not_wanted",
        }
    }
}

/// One step of a reply, in the order in which it became certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A piece of the model's reasoning.
    Reasoning(String),
    /// A piece of the answer.
    Content(String),
    /// One whole call.
    ToolCall(ToolCall),
    /// For a log or a metric, never for the reader of the answer.
    Note(Note),
}

/// A whole reply: the content of its events, with neighbouring pieces joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
    /// Notes, in the order of their events, which the pieces of a text may change.
    pub notes: Vec<Note>,
}

impl Parsed {
    /// Adds one event.
    pub fn apply_event(&mut self, event: Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::Content(text) => self.content.push_str(&text),
            Event::ToolCall(call) => self.calls.push(call),
            Event::Note(note) => self.notes.push(note),
        }
    }

    /// Returns true when the reply has neither content nor a call.
    pub fn is_blank(&self) -> bool {
        self.calls.is_empty() && self.content.trim().is_empty()
    }
}

impl FromIterator<Event> for Parsed {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut parsed = Self::default();
        events.into_iter().for_each(|event| parsed.apply_event(event));
        parsed
    }
}
