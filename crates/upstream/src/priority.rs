//! Finds out how urgent a request is: its client says it, or marks it in a way that is known. A person who
//! waits goes before a sub-agent, which goes before work in the background. No client rises above a person.
//! Pure. Called for the queue by `conversation`.

use http::HeaderMap;
use serde::Deserialize;

use wire::{ChatRequest, Object};

/// How urgent a request is. The smaller is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// A person may wait for it.
    #[default]
    Interactive,
    /// An agent that another agent has started waits for it.
    Subagent,
    /// No person waits: heartbeats, scheduled jobs, titles of conversations.
    Background,
}

impl Priority {
    /// Returns the priority that a word means.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        match word {
            "interactive" => Some(Self::Interactive),
            "subagent" => Some(Self::Subagent),
            "background" => Some(Self::Background),
            _ => None,
        }
    }
}

/// The header that says it.
const HEADER: &str = "x-respool-priority";
/// Claude Code names the sub-agent that asks.
const CLAUDE_AGENT: &str = "x-claude-code-agent-id";
/// Where the marks stand in a message, in bytes of its JSON.
const BEGINNING: usize = 1_024;
/// Words with which `OpenClaw` begins turns for which no person waits.
const BACKGROUND_MARKS: [&str; 2] = ["Read HEARTBEAT.md if it exists", "[cron:"];
/// Words with which `OpenClaw` begins the conversation of a sub-agent.
const SUBAGENT_MARK: &str = "[Subagent Context]";

/// Reads how urgent a chat request is, from its header, its `metadata.priority`, or its client's marks.
pub(super) fn read_priority(headers: &HeaderMap, request: &ChatRequest<'_>) -> Priority {
    let header = headers.get(HEADER).and_then(|value| value.to_str().ok());
    let stated = header.and_then(Priority::from_word).or_else(|| {
        let metadata = Object::parse(request.object.get("metadata")?).ok()?;
        Priority::from_word(&metadata.string("priority")?)
    });
    stated.unwrap_or_else(|| read_marks(headers, request))
}

fn read_marks(headers: &HeaderMap, request: &ChatRequest<'_>) -> Priority {
    if is_background_of_claude_code(headers, request) || has_background_mark(request) {
        return Priority::Background;
    }
    let first = request.messages.iter().find(|message| message.has_role("user"));
    let is_subagent = first.is_some_and(|message| begins_with(&message.to_json(), SUBAGENT_MARK));
    if is_subagent || headers.contains_key(CLAUDE_AGENT) { Priority::Subagent } else { Priority::Interactive }
}

/// The turn that the conversation waits for was begun by a timer.
fn has_background_mark(request: &ChatRequest<'_>) -> bool {
    let since_reply = request.messages.iter().rev().take_while(|message| !message.has_role("assistant"));
    let mut users = since_reply.filter(|message| message.has_role("user"));
    users.any(|message| {
        let text = message.to_json();
        BACKGROUND_MARKS.iter().any(|mark| begins_with(&text, mark))
    })
}

/// Claude Code asks its small model for titles and summaries while a person works with the large one.
fn is_background_of_claude_code(headers: &HeaderMap, request: &ChatRequest<'_>) -> bool {
    let agent = headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("claude-cli/"))
        && request.tools().is_none()
        && request.model().contains("haiku")
}

fn begins_with(text: &str, mark: &str) -> bool {
    text[..text.floor_char_boundary(BEGINNING)].contains(mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[expect(clippy::needless_pass_by_value, reason = "literals read better without a reference")]
    fn check(headers: &[(&'static str, &'static str)], body: Value, expected: Priority) {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let text = body.to_string();
        let request = ChatRequest::parse(text.as_bytes()).unwrap();
        assert_eq!(read_priority(&headers.collect(), &request), expected, "{text}");
    }

    #[test]
    fn a_request_says_how_urgent_it_is() {
        let hi = json!({"messages": [{"role": "user", "content": "hi"}]});
        check(&[], hi.clone(), Priority::Interactive);
        check(&[("x-respool-priority", "background")], hi.clone(), Priority::Background);
        check(&[("x-respool-priority", "urgent")], hi, Priority::Interactive);
        let metadata = json!({"messages": [], "metadata": {"priority": "subagent"}});
        check(&[], metadata.clone(), Priority::Subagent);
        check(&[("x-respool-priority", "interactive")], metadata, Priority::Interactive);
    }

    #[test]
    fn clients_mark_background_work() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let assistant = json!({"role": "assistant", "content": "HEARTBEAT_OK"});
        let beat = "[Sat 2026-11-21 01:22 UTC] Read HEARTBEAT.md if it exists (workspace context).";
        check(&[], json!({"messages": [user("hi"), user(beat)]}), Priority::Background);
        check(&[], json!({"messages": [user(beat), assistant, user("hi")]}), Priority::Interactive);
        check(&[], json!({"messages": [user("[cron:7 report] go")]}), Priority::Background);
        let child = user("[Sat] [Subagent Context] You are running as a subagent");
        check(&[], json!({"messages": [child, user("more")]}), Priority::Subagent);
        let claude = ("user-agent", "claude-cli/2.1.330 (external, cli)");
        let title = json!({"model": "claude-haiku-4-5", "messages": [user("Write a title")]});
        check(&[claude], title.clone(), Priority::Background);
        check(&[], title, Priority::Interactive);
        let hi = json!({"messages": [user("hi")]});
        check(&[claude, ("x-claude-code-agent-id", "a1")], hi, Priority::Subagent);
    }
}
