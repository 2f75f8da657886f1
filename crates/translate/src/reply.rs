//! A whole reply that is ready to leave: its head, its choices, and the steps of its turns. Made by
//! `interpret`; used by `relay` and by the sinks.

use wire::turn::{ChoiceEvent, FinishReason, KeptFields, Turn, TurnEnd, TurnEvent, Usage};

/// The head of a reply, which every chunk repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The reply's id.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// `system_fingerprint` and `service_tier` as JSON texts.
    pub tags: Vec<(&'static str, String)>,
}

/// A reply ready to leave.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Its id, time and model.
    pub head: Head,
    /// Its choices.
    pub choices: Vec<ReplyChoice>,
    /// Token counts, over all choices.
    pub usage: Option<Usage>,
    /// Fields that the user asked to keep, as key and JSON text.
    pub kept: Vec<(String, String)>,
    /// Prompt tokens of earlier attempts, which `usage` omits for clients that take it for the size of the
    /// conversation.
    pub earlier_prompts: u64,
}

/// One choice of a reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyChoice {
    /// Its index.
    pub index: u64,
    /// The model's turn; every call has its final id.
    pub turn: Turn,
    /// `message.refusal`.
    pub refusal: Option<String>,
    /// `message.annotations` and `message.audio`, as JSON texts.
    pub extras: Vec<(&'static str, String)>,
    /// `logprobs` as JSON text, when the client asked for them.
    pub logprobs: Option<String>,
    /// Fields of the choice that the user asked to keep.
    pub kept: Vec<(String, String)>,
    /// Fields of its message that the user asked to keep.
    pub message_kept: Vec<(String, String)>,
    /// The model's window cut it, not a limit that the client set.
    pub fills_window: bool,
}

impl Reply {
    /// Keeps only the first choice.
    #[must_use]
    pub fn keep_first_choice(mut self) -> Self {
        self.choices.truncate(1);
        self.choices.iter_mut().for_each(|choice| choice.index = 0);
        self
    }

    /// Returns the steps of its turns, one choice after the other.
    pub fn into_events(self) -> Vec<ChoiceEvent> {
        let (usage, kept) = (self.usage, self.kept);
        self.choices.into_iter().flat_map(|choice| choice.into_events(usage, kept.clone())).collect()
    }

    /// Makes a reply with respool's own text, in place of the model's.
    pub fn from_text(head: Head, text: &str) -> Self {
        let turn = Turn { content: text.to_owned(), finish: Some(FinishReason::Stop), ..Turn::default() };
        let usage = Some(Usage::default());
        Self { head, choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }], usage, ..Self::default() }
    }
}

impl ReplyChoice {
    fn into_events(self, usage: Option<Usage>, reply: Vec<(String, String)>) -> Vec<ChoiceEvent> {
        let Turn { reasoning, content, calls, finish, .. } = self.turn;
        let texts = [
            TurnEvent::Reasoning(reasoning),
            TurnEvent::Content(content),
            TurnEvent::Refusal(self.refusal.unwrap_or_default()),
        ];
        let said = texts.into_iter().filter(|event| event.text_len() > 0);
        let end = TurnEvent::Finish(TurnEnd {
            reason: finish.unwrap_or(FinishReason::Stop),
            usage,
            fills_window: self.fills_window,
            kept: KeptFields { reply, choice: self.kept, message: self.message_kept },
        });
        let steps = said.chain(calls.into_iter().map(TurnEvent::ToolCall)).chain([end]);
        let mut events: Vec<ChoiceEvent> = steps.map(|event| ChoiceEvent::new(self.index, event)).collect();
        // Log probabilities belong to the content, or to the end of a turn without content.
        let content =
            events.iter_mut().find(|it| matches!(it.event, TurnEvent::Content(_) | TurnEvent::Finish(_)));
        if let Some(beside) = content {
            beside.logprobs = self.logprobs;
        }
        events
    }
}
