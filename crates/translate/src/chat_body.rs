//! Builds the messages of a chat request from another API's conversation: one system message first, one
//! assistant message for each of the model's turns, and the tool results right after it.
//!
//! Chat templates refuse a system message in mid-conversation and two assistant messages in a row, so pieces
//! are joined here. Texts stay encoded as JSON. Called by `responses` and `messages`.

use wire::encode_string;

/// Marks a text that a client inserted among the user's own. Late system messages get the same mark.
const REMINDER: &str = "<system-reminder>";

/// The inside of a JSON string, with its escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonText(String);

impl JsonText {
    /// Takes the inside of a JSON string; `None` for other JSON.
    pub(super) fn from_json(json: &str) -> Option<Self> {
        let inside = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inside.map(|inside| Self(inside.to_owned()))
    }

    /// Encodes a plain text.
    pub(super) fn from_plain(text: &str) -> Self {
        Self::from_json(&encode_string(text)).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn starts_with(&self, beginning: &str) -> bool {
        self.0.starts_with(beginning)
    }

    /// Returns the JSON string.
    pub(super) fn to_json(&self) -> String {
        ["\"", &self.0, "\""].concat()
    }

    /// Joins texts with an empty line between them.
    pub(super) fn join_texts(texts: &[Self]) -> Self {
        Self(texts.iter().map(|text| text.0.as_str()).collect::<Vec<_>>().join("\\n\\n"))
    }

    /// Puts the text between two plain texts.
    pub(super) fn enclose(&self, before: &str, after: &str) -> Self {
        Self([Self::from_plain(before).0.as_str(), &self.0, &Self::from_plain(after).0].concat())
    }
}

/// One part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Text.
    Text(JsonText),
    /// A content part of the chat API, as JSON: an image or a sound.
    Media(String),
}

#[derive(Debug, Default)]
struct Assistant {
    content: Vec<JsonText>,
    reasoning: Vec<JsonText>,
    calls: Vec<String>,
}

#[derive(Debug)]
enum Message {
    User(Vec<Part>),
    Assistant(Assistant),
    Tool { id: String, text: JsonText },
}

/// Collects a conversation piece by piece.
#[derive(Debug, Default)]
pub(super) struct ChatMessages {
    system: Vec<JsonText>,
    messages: Vec<Message>,
    /// Images that tools returned. They follow the results as a user's message, because few templates accept
    /// them in a result.
    media: Vec<Part>,
    /// True once the model has spoken. Later system messages would spoil the prefix cache at the beginning.
    answered: bool,
}

impl ChatMessages {
    pub(super) fn add_system(&mut self, text: JsonText) {
        if text.is_empty() {
            return;
        }
        if !self.answered {
            return self.system.push(text);
        }
        let marked = if text.starts_with(REMINDER) {
            text
        } else {
            text.enclose("<system-reminder>\n", "\n</system-reminder>")
        };
        self.add_user(vec![Part::Text(marked)]);
    }

    /// Adds to the first system message, even in mid-conversation.
    pub(super) fn add_leading_system(&mut self, text: JsonText) {
        self.system.push(text);
    }

    pub(super) fn add_user(&mut self, parts: Vec<Part>) {
        self.flush_media();
        self.push_user(parts);
    }

    fn push_user(&mut self, mut parts: Vec<Part>) {
        if parts.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(Message::User(earlier)) => earlier.append(&mut parts),
            _ => self.messages.push(Message::User(parts)),
        }
    }

    pub(super) fn add_assistant_text(&mut self, text: JsonText) {
        if !text.is_empty() {
            self.edit_assistant_turn(|turn| turn.content.push(text));
        }
    }

    pub(super) fn add_assistant_reasoning(&mut self, text: JsonText) {
        if !text.is_empty() {
            self.edit_assistant_turn(|turn| turn.reasoning.push(text));
        }
    }

    /// Adds a call of the assistant. `id` and `arguments` are JSON strings.
    pub(super) fn add_assistant_call(&mut self, id: &str, name: &str, arguments: &str) {
        let name = encode_string(name);
        let call = [
            r#"{"id":"#,
            id,
            r#","type":"function","function":{"name":"#,
            &name,
            r#","arguments":"#,
            arguments,
            "}}",
        ];
        let call = call.concat();
        self.edit_assistant_turn(|turn| turn.calls.push(call));
    }

    /// Adds a tool's result. `id` is a JSON string.
    pub(super) fn add_tool_result(&mut self, id: &str, text: JsonText, media: Vec<Part>) {
        let text = if text.is_empty() { JsonText::from_plain("(no output)") } else { text };
        self.messages.insert(self.result_place(), Message::Tool { id: id.to_owned(), text });
        if !media.is_empty() {
            self.media.push(Part::Text(JsonText::from_plain("What the tool returned besides its text:")));
            self.media.extend(media);
        }
    }

    /// Returns the place of a tool result. Templates want results right after the calls, before any message
    /// between them.
    fn result_place(&self) -> usize {
        let end = self.messages.len();
        match self.messages.as_slice() {
            [.., Message::Tool { .. }, Message::User(_)] => end - 1,
            [.., Message::Assistant(turn), Message::User(_)] if !turn.calls.is_empty() => end - 1,
            _ => end,
        }
    }

    /// Changes the model's present turn. It begins a turn if the last message is not the model's.
    fn edit_assistant_turn(&mut self, change: impl FnOnce(&mut Assistant)) {
        self.flush_media();
        self.answered = true;
        let mut turn = match self.messages.pop() {
            Some(Message::Assistant(turn)) => turn,
            other => {
                self.messages.extend(other);
                Assistant::default()
            }
        };
        change(&mut turn);
        self.messages.push(Message::Assistant(turn));
    }

    fn flush_media(&mut self) {
        let media = std::mem::take(&mut self.media);
        self.push_user(media);
    }

    /// Returns true when the conversation is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.media.is_empty() && self.system.iter().all(JsonText::is_empty)
    }

    /// Writes the `messages` array.
    pub(super) fn into_json(mut self) -> String {
        self.flush_media();
        // A conversation may be long, so it is written once, in one piece.
        let mut out = String::with_capacity(self.estimate_size());
        out.push('[');
        if self.system.iter().any(|text| !text.is_empty()) {
            out.push_str(r#"{"role":"system","content":"#);
            write_joined(&self.system, &mut out);
            out.push_str("},");
        }
        for message in &self.messages {
            message.write_json(&mut out);
            out.push(',');
        }
        if out.ends_with(',') {
            out.pop();
        }
        out.push(']');
        out
    }

    /// Estimates the bytes of the JSON.
    fn estimate_size(&self) -> usize {
        let texts = |texts: &[JsonText]| texts.iter().map(|text| text.0.len() + 4).sum::<usize>();
        let message = |message: &Message| match message {
            Message::User(parts) => parts.iter().map(Part::estimate_size).sum(),
            Message::Assistant(turn) => {
                let calls: usize = turn.calls.iter().map(|call| call.len() + 1).sum();
                texts(&turn.content) + texts(&turn.reasoning) + calls
            }
            Message::Tool { id, text } => id.len() + text.0.len(),
        };
        texts(&self.system) + self.messages.iter().map(|each| message(each) + 80).sum::<usize>() + 80
    }
}

impl Part {
    fn estimate_size(&self) -> usize {
        match self {
            Self::Text(text) => text.0.len() + 30,
            Self::Media(json) => json.len() + 1,
        }
    }
}

impl Message {
    fn write_json(&self, out: &mut String) {
        match self {
            Self::User(parts) => {
                out.push_str(r#"{"role":"user","content":"#);
                write_content(parts, out);
                out.push('}');
            }
            Self::Assistant(message) => message.write_json(out),
            Self::Tool { id, text } => {
                out.extend([r#"{"role":"tool","tool_call_id":"#, id, r#","content":""#, &text.0, "\"}"]);
            }
        }
    }
}

impl Assistant {
    fn write_json(&self, out: &mut String) {
        out.push_str(r#"{"role":"assistant","content":"#);
        match self.content.as_slice() {
            [] => out.push_str("null"),
            texts => write_joined(texts, out),
        }
        if !self.reasoning.is_empty() {
            out.push_str(r#","reasoning_content":"#);
            write_joined(&self.reasoning, out);
        }
        if !self.calls.is_empty() {
            out.extend([r#","tool_calls":["#, &self.calls.join(","), "]"]);
        }
        out.push('}');
    }
}

/// Writes texts as one JSON string, with an empty line between them.
fn write_joined<'t>(texts: impl IntoIterator<Item = &'t JsonText>, out: &mut String) {
    out.push('"');
    for (place, text) in texts.into_iter().enumerate() {
        out.extend([if place == 0 { "" } else { "\\n\\n" }, &text.0]);
    }
    out.push('"');
}

/// Writes a string if there is only text, which every template accepts; else an array of parts.
fn write_content(parts: &[Part], out: &mut String) {
    let texts = parts.iter().map(|part| match part {
        Part::Text(text) => Some(text),
        Part::Media(_) => None,
    });
    if let Some(texts) = texts.collect::<Option<Vec<&JsonText>>>() {
        return write_joined(texts, out);
    }
    let mut before = "[";
    for part in parts {
        out.push_str(before);
        before = ",";
        match part {
            Part::Text(text) => out.extend([r#"{"type":"text","text":""#, &text.0, "\"}"]),
            Part::Media(json) => out.push_str(json),
        }
    }
    out.push(']');
}

/// Makes a content part of the chat API for an image. `url` is a JSON string.
pub(super) fn image_part(url: &str, detail: Option<&str>) -> Part {
    let detail = detail.map_or_else(String::new, |detail| format!(r#","detail":{detail}"#));
    Part::Media([r#"{"type":"image_url","image_url":{"url":"#, url, &detail, "}}"].concat())
}

/// Declares a function for the chat API; `parameters` and `strict` are JSON texts.
pub(super) fn function_json(name: &str, description: &str, parameters: &str, strict: Option<&str>) -> String {
    let strict = strict.map_or_else(String::new, |strict| format!(r#","strict":{strict}"#));
    let name = encode_string(name);
    [
        r#"{"type":"function","function":{"name":"#,
        &name,
        r#","description":"#,
        description,
        r#","parameters":"#,
        parameters,
        &strict,
        "}}",
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(text: &str) -> JsonText {
        JsonText::from_plain(text)
    }

    fn built(build: impl FnOnce(&mut ChatMessages)) -> Value {
        let mut messages = ChatMessages::default();
        build(&mut messages);
        serde_json::from_str(&messages.into_json()).unwrap()
    }

    #[test]
    fn the_pieces_of_one_turn_are_one_message() {
        let messages = built(|messages| {
            messages.add_user(vec![Part::Text(text("a")), Part::Text(text("b"))]);
            messages.add_assistant_reasoning(text("why"));
            messages.add_assistant_text(text("I \"look\""));
            messages.add_assistant_call("\"c1\"", "read", r#""{\"path\":\"x\"}""#);
            messages.add_assistant_call("\"c2\"", "read", "\"{}\"");
            messages.add_tool_result("\"c1\"", text("one"), vec![]);
            messages.add_tool_result("\"c2\"", text(""), vec![]);
            messages.add_assistant_text(text("done"));
        });
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}});
        assert_eq!(
            messages,
            json!([
                {"role": "user", "content": "a\n\nb"},
                {"role": "assistant", "content": "I \"look\"", "reasoning_content": "why",
                    "tool_calls": [call("c1", r#"{"path":"x"}"#), call("c2", "{}")]},
                {"role": "tool", "tool_call_id": "c1", "content": "one"},
                {"role": "tool", "tool_call_id": "c2", "content": "(no output)"},
                {"role": "assistant", "content": "done"},
            ])
        );
    }

    #[test]
    fn a_system_message_is_first_or_a_reminder() {
        let messages = built(|messages| {
            messages.add_system(text("rules"));
            messages.add_user(vec![Part::Text(text("a"))]);
            messages.add_system(text("more"));
            messages.add_assistant_text(text("b"));
            messages.add_system(text("late"));
            messages.add_system(text("<system-reminder>\nmarked\n</system-reminder>"));
        });
        let late =
            "<system-reminder>\nlate\n</system-reminder>\n\n<system-reminder>\nmarked\n</system-reminder>";
        assert_eq!(
            messages,
            json!([
                {"role": "system", "content": "rules\n\nmore"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": late},
            ])
        );
    }

    #[test]
    fn messages_before_a_result_follow_it() {
        let messages = built(|messages| {
            messages.add_assistant_call("\"c1\"", "read", "\"{}\"");
            messages.add_system(text("<system-reminder>x</system-reminder>"));
            messages.add_tool_result("\"c1\"", text("one"), vec![]);
        });
        assert_eq!((&messages[1]["role"], &messages[2]["role"]), (&json!("tool"), &json!("user")));
    }

    #[test]
    fn images_of_results_follow_all_results() {
        let messages = built(|messages| {
            messages.add_assistant_call("\"c1\"", "shot", "\"{}\"");
            messages.add_assistant_call("\"c2\"", "shot", "\"{}\"");
            messages.add_tool_result("\"c1\"", text(""), vec![image_part("\"data:x\"", None)]);
            messages.add_tool_result("\"c2\"", text("two"), vec![]);
        });
        let roles: Vec<&str> =
            messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["assistant", "tool", "tool", "user"]);
        assert_eq!(messages[3]["content"][1]["image_url"]["url"], "data:x");
    }
}
