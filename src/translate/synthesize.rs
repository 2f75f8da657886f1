//! Spools a turn out: as the chunks of a stream that no client can trip over, or as one completion. Both from the same
//! [`Reply`].
//!
//! The order of a choice's chunks is fixed: role, reasoning, content, calls (each whole, in one chunk), finish. Called by
//! `relay`.

use crate::sse::{DONE, write_data};
use crate::turn::{FinishReason, ToolCall, Turn, TurnEvent, Usage};
use crate::wire::encode_string;

/// What every chunk of a reply repeats.
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
}

/// One choice of a reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyChoice {
    /// Its index.
    pub index: u64,
    /// What the model said; every call has its final id.
    pub turn: Turn,
    /// `message.refusal`.
    pub refusal: Option<String>,
    /// `message.annotations` and `message.audio`, as JSON texts.
    pub extras: Vec<(&'static str, String)>,
    /// `logprobs` as JSON text, when the client asked for them.
    pub logprobs: Option<String>,
    /// Fields that the user asked to keep, of the choice.
    pub kept: Vec<(String, String)>,
    /// The same, of its message.
    pub message_kept: Vec<(String, String)>,
    /// It was cut where the model's window ends, and not at a limit that the client set.
    pub fills_window: bool,
}

impl Reply {
    /// A reply that respool itself gives, in the model's place.
    pub fn canned(head: Head, text: &str) -> Self {
        let turn = Turn { content: text.to_owned(), finish: Some(FinishReason::Stop), ..Turn::default() };
        let usage = Some(Usage::default());
        Self { head, choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }], usage, kept: vec![] }
    }
}

/// What the last chunk of a choice carries: why it ended, log probabilities that found no other chunk, and the fields that
/// the user asked to keep, of the reply, of the choice and of its message.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// Why it ended.
    pub reason: FinishReason,
    /// `logprobs` as JSON text.
    pub logprobs: Option<&'a str>,
    /// Kept fields of the reply.
    pub reply: &'a [(String, String)],
    /// Kept fields of the choice.
    pub choice: &'a [(String, String)],
    /// Kept fields of the message.
    pub message: &'a [(String, String)],
}

/// Writes chunks.
#[derive(Clone, Debug)]
pub struct Spool {
    prefix: String,
    reasoning: Option<&'static str>,
}

impl Spool {
    /// `reasoning`: the name under which reasoning leaves; `None`: not at all.
    pub fn new(head: &Head, reasoning: Option<&'static str>) -> Self {
        let prefix = format!(
            r#"{{"id":{},"object":"chat.completion.chunk","created":{},"model":{}{}"#,
            encode_string(&head.id),
            head.created,
            encode_string(&head.model),
            fields(&head.tags),
        );
        Self { prefix, reasoning }
    }

    /// The first chunk of a choice.
    pub fn role(&self, index: u64) -> String {
        self.delta(index, r#""role":"assistant","content":"""#, None)
    }

    /// A chunk that carries nothing: unlike a comment, it feeds clients' watchdogs.
    pub fn heartbeat(&self) -> String {
        self.delta(0, r#""content":"""#, None)
    }

    /// The usage chunk.
    pub fn usage(&self, usage: &Usage) -> String {
        format!(r#"{},"choices":[],"usage":{}}}"#, self.prefix, usage_json(usage))
    }

    /// The whole rest of a stream, as bytes: every choice, usage if it is wanted, and the end. `heads_sent`: the role
    /// chunks have already left.
    pub fn rest(&self, reply: &Reply, heads_sent: bool, usage_wanted: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        if !heads_sent {
            reply.choices.iter().for_each(|choice| write_data(&mut out, &self.role(choice.index)));
        }
        for choice in &reply.choices {
            self.choice(choice, &reply.kept, &mut out);
        }
        if let Some(usage) = reply.usage.as_ref().filter(|_| usage_wanted) {
            write_data(&mut out, &self.usage(usage));
        }
        write_data(&mut out, DONE);
        out
    }

    /// The chunk of one event; `None` for what is not for the client. `place`: how many calls the choice has had.
    pub fn event(
        &self,
        index: u64,
        event: &TurnEvent,
        place: usize,
        logprobs: Option<&str>,
    ) -> Option<String> {
        let fields = match event {
            TurnEvent::Reasoning(text) => text_field(self.reasoning?, text),
            TurnEvent::Content(text) => text_field("content", text),
            TurnEvent::ToolCall(call) => call_field(place, call),
            TurnEvent::Progress(_) | TurnEvent::Note(_) | TurnEvent::Finish { .. } => return None,
        };
        Some(self.delta(index, &fields, logprobs))
    }

    fn choice(&self, choice: &ReplyChoice, kept: &[(String, String)], out: &mut Vec<u8>) {
        let turn = &choice.turn;
        if let Some(name) = self.reasoning.filter(|_| !turn.reasoning.is_empty()) {
            write_data(out, &self.delta(choice.index, &text_field(name, &turn.reasoning), None));
        }
        let mut logprobs = choice.logprobs.as_deref();
        if !turn.content.is_empty() {
            write_data(
                out,
                &self.delta(choice.index, &text_field("content", &turn.content), logprobs.take()),
            );
        }
        if let Some(refusal) = &choice.refusal {
            write_data(out, &self.delta(choice.index, &text_field("refusal", refusal), None));
        }
        for (place, call) in turn.calls.iter().enumerate() {
            write_data(out, &self.delta(choice.index, &call_field(place, call), None));
        }
        let reason = turn.finish.unwrap_or(FinishReason::Stop);
        let end =
            Ending { reason, logprobs, reply: kept, choice: &choice.kept, message: &choice.message_kept };
        write_data(out, &self.finish_chunk(choice.index, &end));
    }

    /// The chunk that ends a choice.
    pub fn finish_chunk(&self, index: u64, end: &Ending<'_>) -> String {
        let message = fields(end.message);
        format!(
            r#"{}{},"choices":[{{"index":{index},"delta":{{{}}}{},"finish_reason":"{}"{}}}]}}"#,
            self.prefix,
            fields(end.reply),
            message.trim_start_matches(','),
            logprobs_field(end.logprobs),
            end.reason.as_str(),
            fields(end.choice),
        )
    }

    fn delta(&self, index: u64, delta: &str, logprobs: Option<&str>) -> String {
        format!(
            r#"{},"choices":[{{"index":{index},"delta":{{{delta}}}{},"finish_reason":null}}]}}"#,
            self.prefix,
            logprobs_field(logprobs),
        )
    }
}

/// The `chat.completion` object of a reply.
pub fn completion_json(reply: &Reply, reasoning: Option<&'static str>) -> String {
    let choices: Vec<String> = reply.choices.iter().map(|choice| choice_json(choice, reasoning)).collect();
    format!(
        r#"{{"id":{},"object":"chat.completion","created":{},"model":{},"choices":[{}]{}{}{}}}"#,
        encode_string(&reply.head.id),
        reply.head.created,
        encode_string(&reply.head.model),
        choices.join(","),
        reply.usage.as_ref().map_or_else(String::new, |usage| format!(r#","usage":{}"#, usage_json(usage))),
        fields(&reply.head.tags),
        fields(&reply.kept),
    )
}

fn choice_json(choice: &ReplyChoice, reasoning: Option<&'static str>) -> String {
    let turn = &choice.turn;
    let content = match turn.content.as_str() {
        "" if !turn.calls.is_empty() || choice.refusal.is_some() => "null".to_owned(),
        text => encode_string(text),
    };
    let reasoning = reasoning.filter(|_| !turn.reasoning.is_empty());
    let reasoning =
        reasoning.map_or_else(String::new, |name| format!(",{}", text_field(name, &turn.reasoning)));
    let calls: Vec<String> = turn.calls.iter().map(|call| format!("{{{}}}", call_fields(call))).collect();
    let calls =
        if calls.is_empty() { String::new() } else { format!(r#","tool_calls":[{}]"#, calls.join(",")) };
    format!(
        r#"{{"index":{},"message":{{"role":"assistant","content":{content},"refusal":{}{reasoning}{calls}{}{}}},"logprobs":{},"finish_reason":"{}"{}}}"#,
        choice.index,
        choice.refusal.as_deref().map_or_else(|| "null".to_owned(), encode_string),
        fields(&choice.extras),
        fields(&choice.message_kept),
        choice.logprobs.as_deref().unwrap_or("null"),
        turn.finish.unwrap_or(FinishReason::Stop).as_str(),
        fields(&choice.kept),
    )
}

fn call_field(place: usize, call: &ToolCall) -> String {
    format!(r#""tool_calls":[{{"index":{place},{}}}]"#, call_fields(call))
}

fn call_fields(call: &ToolCall) -> String {
    format!(
        r#""id":{},"type":"function","function":{{"name":{},"arguments":{}}}"#,
        encode_string(call.id.as_deref().unwrap_or_default()),
        encode_string(&call.name),
        encode_string(&call.arguments),
    )
}

/// OpenAI's `usage` object.
pub fn usage_json(usage: &Usage) -> String {
    let detail = |group: &str, key: &str, count: Option<u64>| {
        count.map_or_else(String::new, |count| format!(r#","{group}":{{"{key}":{count}}}"#))
    };
    format!(
        r#"{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}{}{}}}"#,
        usage.prompt,
        usage.completion,
        usage.total(),
        detail("prompt_tokens_details", "cached_tokens", usage.cached),
        detail("completion_tokens_details", "reasoning_tokens", usage.reasoning),
    )
}

fn text_field(name: &str, text: &str) -> String {
    format!(r#""{name}":{}"#, encode_string(text))
}

fn logprobs_field(logprobs: Option<&str>) -> String {
    logprobs.map_or_else(String::new, |text| format!(r#","logprobs":{text}"#))
}

/// Fields with a comma before each.
fn fields<K: AsRef<str>>(fields: &[(K, String)]) -> String {
    let mut out = String::new();
    for (key, value) in fields {
        out.extend([",\"", key.as_ref(), "\":", value]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Reply {
        let call = |id: &str, name: &str| ToolCall {
            id: Some(id.into()),
            name: name.into(),
            arguments: "{}".into(),
            problems: vec![],
        };
        let turn = Turn {
            reasoning: "why\n".into(),
            content: "say \"hi\"".into(),
            calls: vec![call("aaaaaaaaa", "f"), call("bbbbbbbbb", "g")],
            finish: Some(FinishReason::ToolCalls),
            ..Turn::default()
        };
        let head = Head {
            id: "id".into(),
            created: 7,
            model: "m".into(),
            tags: vec![("system_fingerprint", "\"fp\"".into())],
        };
        let usage = Some(Usage { prompt: 1, completion: 2, cached: Some(1), reasoning: None });
        Reply { head, choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }], usage, kept: vec![] }
    }

    #[test]
    fn a_stream() {
        let reply = reply();
        let out = Spool::new(&reply.head, Some("reasoning_content")).rest(&reply, false, true);
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
    }

    #[test]
    fn a_completion() {
        let json = completion_json(&reply(), Some("reasoning_content"));
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
        insta::assert_snapshot!(json);
    }

    #[test]
    fn what_was_not_asked_for_is_left_out() {
        let reply = reply();
        let out = Spool::new(&reply.head, None).rest(&reply, true, false);
        let out = String::from_utf8(out).unwrap();
        assert!(!out.contains("why") && !out.contains("usage") && !out.contains("role"), "{out}");
        let json = completion_json(&Reply::canned(reply.head, "stop"), None);
        assert!(json.contains(r#""content":"stop""#) && json.contains(r#""total_tokens":0"#), "{json}");
    }
}
