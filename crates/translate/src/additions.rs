//! Adds to a conversation on its way up: reasoning that the client dropped, and a warning of a loop.
//!
//! Reasoning goes back only inside the current tool loop: gpt-oss's own format keeps it exactly there, and
//! other templates that know the field drop it elsewhere. A warning is appended to the last tool result.
//! Every template accepts it there (many allow no second system message, and no user message after a result),
//! and the text before it stays in the server's prefix cache. Neither is ever shown to the client. Called by
//! `relay`.

use std::sync::Arc;

use super::loop_guard::{LoopFound, is_real_user, loop_start};
use wire::turn::ToolCall;
use wire::{Message, encode_string, is_empty_array};

/// The fields in which a client may send reasoning.
const REASONING: [&str; 2] = ["reasoning", "reasoning_content"];

/// An assistant message with calls, in the current tool loop, that came without reasoning.
#[derive(Clone, Debug)]
pub struct SilentTurn {
    /// The message's index.
    pub place: usize,
    /// Its calls; each has an id.
    pub calls: Vec<ToolCall>,
}

/// The additions to one request.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Reasoning, by the index of its message.
    pub reasoning: Vec<(usize, Arc<str>)>,
    /// The loop to warn the model of.
    pub warning: Option<LoopFound>,
}

impl Additions {
    /// Makes the additions; returns the names of the edits.
    pub fn apply(&self, messages: &mut [Message<'_>]) -> Vec<&'static str> {
        let mut edits = Vec::new();
        let mut put_back = false;
        for (place, reasoning) in &self.reasoning {
            put_back |= messages.get_mut(*place).is_some_and(|message| restore_reasoning(message, reasoning));
        }
        if put_back {
            edits.push("reasoning_memory");
        }
        let result = messages.iter_mut().rfind(|message| message.has_role("tool"));
        if let (Some(found), Some(result)) = (&self.warning, result) {
            append_text(result, &found.warning());
            edits.push("loop_warning");
        }
        edits
    }
}

/// Finds the turns whose reasoning may be restored.
pub fn silent_turns(messages: &[Message<'_>]) -> Vec<SilentTurn> {
    let turn = |(place, message): (usize, &Message<'_>)| {
        let sent = REASONING.iter().any(|key| message.object.get(key).is_some_and(|text| text != "\"\""));
        let is_silent = !sent && message.has_role("assistant") && !message.tool_calls().is_empty();
        is_silent.then(|| SilentTurn { place, calls: message.tool_calls().to_vec() })
    };
    messages.iter().enumerate().skip(loop_start(messages)).filter_map(turn).collect()
}

/// Returns the user's own messages in this conversation, as JSON texts.
pub fn user_texts<'m>(messages: &'m [Message<'_>]) -> impl Iterator<Item = &'m str> {
    messages
        .iter()
        .filter(|message| is_real_user(message))
        .filter_map(|message| message.object.get("content"))
}

/// Restores a message's reasoning; `outbound` chooses the field that the upstream reads. A client that sends
/// reasoning as part of the content has not dropped it.
fn restore_reasoning(message: &mut Message<'_>, reasoning: &str) -> bool {
    let text = encode_string(reasoning);
    if message.object.get("content").is_some_and(|content| content.contains(text.trim_matches('"'))) {
        return false;
    }
    message.edit_fields(|object| {
        object.remove(REASONING[1]);
        object.set(REASONING[0], text);
    });
    true
}

/// Appends a text to a message's content without changing the content's own bytes.
fn append_text(message: &mut Message<'_>, note: &str) {
    let content = message.object.get("content").unwrap_or("\"\"");
    let appended = match (content.strip_suffix('"'), content.strip_suffix(']')) {
        (Some(open), _) => format!("{open}{}", &encode_string(&format!("\n\n{note}"))[1..]),
        (None, Some(open)) => {
            let comma = if is_empty_array(content) { "" } else { "," };
            format!(r#"{open}{comma}{{"type":"text","text":{}}}]"#, encode_string(note))
        }
        (None, None) => return,
    };
    message.edit_fields(|object| object.set("content", appended));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoopKind;
    use wire::ChatRequest;

    const CALL: &str = r#"[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]"#;

    fn assistant(fields: &str) -> String {
        format!(r#"{{"role":"assistant","content":null,"tool_calls":{CALL}{fields}}}"#)
    }

    fn silent(messages: &[String]) -> Vec<usize> {
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        silent_turns(&request.messages).iter().map(|turn| turn.place).collect()
    }

    #[test]
    fn a_turn_without_reasoning_is_silent() {
        for (fields, expected) in [
            ("", true),
            (r#","reasoning":null"#, true),
            (r#","reasoning_content":"""#, true),
            (r#","reasoning":"","reasoning_content":"why""#, false),
            (r#","reasoning":"why""#, false),
        ] {
            assert_eq!(!silent(&[assistant(fields)]).is_empty(), expected, "{fields}");
        }
        assert!(silent(&[r#"{"role":"assistant","content":"x"}"#.into()]).is_empty());
    }

    #[test]
    fn only_the_current_tool_loop_is_looked_at() {
        let user = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        let context = user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> x");
        let messages = [user("q"), assistant(""), user("q"), assistant(""), context, assistant("")];
        assert_eq!(silent(&messages), [3, 5]);
    }

    fn check(message: &str, additions: &Additions, expected: &str) {
        let body = format!(r#"{{"messages":[{message}]}}"#);
        let mut request = ChatRequest::parse(body.as_bytes()).unwrap();
        additions.apply(&mut request.messages);
        assert_eq!(request.messages[0].to_json(), expected);
    }

    #[test]
    fn reasoning_takes_the_place_of_an_empty_one() {
        let additions = Additions { reasoning: vec![(0, "say \"hi\"".into())], warning: None };
        check(
            r#"{"role":"assistant", "content":"x","reasoning_content":""}"#,
            &additions,
            r#"{"role":"assistant","content":"x","reasoning":"say \"hi\""}"#,
        );
        let thought = r#"{"role":"assistant", "content":[{"type":"text","text":"say \"hi\""}]}"#;
        check(thought, &additions, thought);
    }

    #[test]
    fn a_warning_is_appended_to_the_last_result() {
        let found = LoopFound { kind: LoopKind::Repeated, tools: "`f`".into(), count: 4, limit: 8 };
        let note = encode_string(&found.warning());
        let note = note.trim_matches('"');
        let additions = Additions { warning: Some(found), ..Additions::default() };
        for (content, expected) in [
            (r#""a\u00e9""#, format!(r#""a\u00e9\n\n{note}""#)),
            (r#""""#, format!(r#""\n\n{note}""#)),
            ("null", format!(r#""\n\n{note}""#)),
            ("[]", format!(r#"[{{"type":"text","text":"{note}"}}]"#)),
            (
                r#"[{"type":"text","text":"r"}]"#,
                format!(r#"[{{"type":"text","text":"r"}},{{"type":"text","text":"{note}"}}]"#),
            ),
        ] {
            let message = |content: &str| format!(r#"{{"role":"tool","content":{content}}}"#);
            check(&message(content), &additions, &message(&expected));
        }
        let user = r#"{"role":"user", "content":"x"}"#;
        check(user, &additions, user);
    }
}
