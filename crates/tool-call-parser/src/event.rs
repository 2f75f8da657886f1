//! The content of a reply: events as they become certain, or all of them together.
//!
//! Plain data: no serde, no I/O. Produced by the engine.

/// One tool call, complete: a name the request declared and arguments that are a JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The server's own id, if it gave one. The parser invents none.
    pub id: Option<String>,
    /// A tool's name exactly as it was declared.
    pub name: String,
    /// The text of one JSON object, `{}` when there are no arguments.
    pub arguments: String,
    /// Violations of the tool's schema that are left in the arguments; empty when there are none.
    pub problems: Vec<String>,
}

/// Something worth a log field: a repair, or model output that did not leave as a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Text was read as calls in this dialect (the dialect's name in the table).
    Dialect(&'static str),
    /// A repair made to a call; the name is stable and used as a metric label.
    Repaired(&'static str),
    /// A call that the model began or wrote and that was not sent.
    Dropped {
        /// The name as the model wrote it, empty when it got no further.
        name: String,
        /// Why it was held back.
        why: Dropped,
        /// The arguments as the model wrote them; `None` when it did not get that far.
        arguments: Option<String>,
    },
    /// Text that is written like a call, in a dialect's own marks, and stayed in the content: other text
    /// followed it, or the reply has no call that can leave.
    LeftAsText {
        /// The name as the model wrote it, empty when it cannot be read.
        name: String,
        /// The reason why it is not a call.
        why: Dropped,
    },
}

impl Note {
    /// The reply was not cut: a call that ends early is the model's own mistake.
    pub fn mark_unclosed(&mut self) {
        if let Self::Dropped { why: why @ Dropped::Truncated, .. } = self {
            *why = Dropped::Unclosed;
        }
    }
}

/// Why a call was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// No declared tool answers to that name.
    Undeclared,
    /// The reply ended inside the call.
    Truncated,
    /// The model ended its turn inside the call, although no limit was reached.
    Unclosed,
    /// The call stands in the reasoning: the model only considered it.
    InReasoning,
    /// The arguments could not be read as a JSON object.
    Unreadable,
    /// A field that the tool's schema requires is missing.
    MissingRequired,
    /// The same call came twice, by different ways.
    Duplicate,
    /// The client asked for one call at most.
    NotParallel,
    /// The client asked for no calls (`tool_choice: "none"`).
    NotWanted,
}

impl Dropped {
    /// A stable name for logs and metrics.
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

/// A whole reply: the same as its events, with neighbouring pieces joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
    /// Notes, in order.
    pub notes: Vec<Note>,
}

impl Parsed {
    /// Adds one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::Content(text) => self.content.push_str(&text),
            Event::ToolCall(call) => self.calls.push(call),
            Event::Note(note) => self.notes.push(note),
        }
    }

    /// True when the reply has neither content nor a call.
    pub fn is_blank(&self) -> bool {
        self.calls.is_empty() && self.content.trim().is_empty()
    }
}

impl FromIterator<Event> for Parsed {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut parsed = Self::default();
        events.into_iter().for_each(|event| parsed.apply(event));
        parsed
    }
}
