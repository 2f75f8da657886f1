//! What respool adds to a conversation on its way up: a warning of a loop.
//!
//! It is appended to the last tool result. There no template objects (many allow
//! no second system message, and no user message behind a result), and everything before it keeps its place in the server's
//! prefix cache. It is never shown to the client. Called by `relay`.

use super::loop_guard::LoopFound;
use crate::wire::{Message, encode_string, is_empty_array};

/// What is to be added to one request.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// The loop to warn the model of.
    pub warning: Option<LoopFound>,
}

impl Additions {
    /// Makes them; returns the names of the edits.
    pub fn apply(&self, messages: &mut [Message<'_>]) -> Vec<&'static str> {
        let mut edits = Vec::new();
        let result = messages.iter_mut().rfind(|message| message.is_from("tool"));
        if let (Some(found), Some(result)) = (&self.warning, result) {
            append(result, &found.warning());
            edits.push("loop_warning");
        }
        edits
    }
}

/// Appends a text to a message's content, whose own bytes stay.
fn append(message: &mut Message<'_>, note: &str) {
    let content = message.object.get("content").unwrap_or("\"\"");
    let appended = match (content.strip_suffix('"'), content.strip_suffix(']')) {
        (Some(open), _) => format!("{open}{}", &encode_string(&format!("\n\n{note}"))[1..]),
        (None, Some(open)) => {
            let comma = if is_empty_array(content) { "" } else { "," };
            format!(r#"{open}{comma}{{"type":"text","text":{}}}]"#, encode_string(note))
        }
        (None, None) => return,
    };
    message.edit(|object| object.set("content", appended));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::LoopKind;
    use crate::wire::ChatRequest;

    fn check(message: &str, additions: &Additions, expected: &str) {
        let body = format!(r#"{{"messages":[{message}]}}"#);
        let mut request = ChatRequest::parse(body.as_bytes()).unwrap();
        additions.apply(&mut request.messages);
        assert_eq!(request.messages[0].json(), expected);
    }

    #[test]
    fn a_warning_is_appended_to_the_last_result() {
        let found = LoopFound { kind: LoopKind::Repeated, tools: "`f`".into(), count: 4, limit: 8 };
        let note = encode_string(&found.warning());
        let note = note.trim_matches('"');
        let additions = Additions { warning: Some(found) };
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
