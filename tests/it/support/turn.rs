//! The turn that a client reads, and the one it must read.

use serde_json::{Value, json};

use super::accumulate::Accumulated;

/// The turn that answers a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// Name and arguments of each call.
    pub calls: Vec<(String, Value)>,
}

impl Turn {
    /// The right answer.
    pub fn of(marker: &str, tools: bool) -> Self {
        let call = ("read".to_owned(), json!({"path": format!("/tmp/{marker}")}));
        Self {
            reasoning: format!("Thinking of {marker}."),
            content: pieces(marker).concat(),
            calls: if tools { vec![call] } else { vec![] },
        }
    }

    /// The turn that a client read. No right answer has a tab; a tab that a row puts in must arrive.
    pub fn read(turn: &Accumulated) -> Self {
        let choice = turn.choices.get(&0).cloned().unwrap_or_default();
        let calls = choice.tool_calls.iter().map(|call| (call.name.clone(), call.json())).collect();
        Self { reasoning: choice.reasoning, content: choice.content.replace('\t', ""), calls }
    }

    /// True for what may have arrived of `whole` when it broke off.
    pub fn begins(&self, whole: &Self) -> bool {
        whole.reasoning.starts_with(&self.reasoning)
            && whole.content.starts_with(&self.content)
            && whole.calls.starts_with(&self.calls)
    }
}

/// The pieces of its content, as a stream brings them.
pub fn pieces(marker: &str) -> [String; 4] {
    [
        format!("Answer to {marker}: "),
        "zwölf Bäume, ".to_owned(),
        "🙂 日本".to_owned(),
        format!(" ({marker})."),
    ]
}
