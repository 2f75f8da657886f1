//! The sink of chat completions: writes a turn as the chunks of a stream that every client can read, or as
//! one completion. Only this module writes respool's own chunks. Called by `server`.

use bytes::BufMut;

use super::reply::{Head, Reply, ReplyChoice};
use wire::encode_string;
use wire::sse::{DONE, write_data};
use wire::turn::{ChoiceEvent, FinishReason, ToolCall, TurnEnd, TurnEvent, Usage};

/// Writes the chunks of a chat stream. The order of a choice's chunks is fixed: its role, its content, and
/// the finish.
#[derive(Clone, Debug)]
pub struct ChatSink {
    reasoning: Option<&'static str>,
    wants_usage: bool,
    /// The reply's head, once it is known.
    head: Option<Head>,
    /// The beginning of every chunk, once the head is known.
    prefix: Option<String>,
    /// The role chunks of all choices have left.
    roles_sent: bool,
    choices: Vec<ChoiceState>,
    usage: Option<Usage>,
}

/// The progress of a choice.
#[derive(Clone, Copy, Debug)]
struct ChoiceState {
    index: u64,
    role_sent: bool,
    calls: usize,
}

impl ChatSink {
    /// Makes a sink. `reasoning`: the field for reasoning; `None` drops it. `wants_usage`: the client asked
    /// for usage.
    pub fn new(reasoning: Option<&'static str>, wants_usage: bool) -> Self {
        Self {
            reasoning,
            wants_usage,
            head: None,
            prefix: None,
            roles_sent: false,
            choices: vec![],
            usage: None,
        }
    }

    /// Sets the reply's head, unless another one has left already.
    pub fn set_head(&mut self, head: &Head) {
        if self.head.is_none() {
            self.prefix = Some(chunk_prefix(head));
            self.head = Some(head.clone());
        }
    }

    /// Sets the model that later chunks name, because another one answers than the head says.
    pub fn set_model(&mut self, model: &str) {
        if let Some(head) = self.head.as_mut().filter(|head| head.model != model) {
            model.clone_into(&mut head.model);
            self.prefix = Some(chunk_prefix(head));
        }
    }

    /// Writes the role chunks of several choices, before anything is known about them.
    pub fn write_roles(&mut self, choices: u64, out: &mut impl BufMut) {
        (0..choices).for_each(|index| self.write_role(index, out));
        self.roles_sent = true;
    }

    /// Makes an empty chunk. Unlike a comment, it resets clients' watchdogs. `None` before the head is known.
    pub fn heartbeat(&self) -> Option<String> {
        self.prefix.is_some().then(|| self.delta_chunk(0, r#""content":"""#, None))
    }

    /// Writes one step.
    pub fn write_step(&mut self, step: &ChoiceEvent, out: &mut impl BufMut) {
        let (index, logprobs) = (step.choice, step.logprobs.as_deref());
        let fields = match &step.event {
            TurnEvent::Reasoning(text) => match self.reasoning {
                Some(name) => text_field(name, text),
                None => return,
            },
            TurnEvent::Content(text) => text_field("content", text),
            TurnEvent::Refusal(text) => text_field("refusal", text),
            TurnEvent::ToolCall(call) => {
                let choice = self.choice_mut(index);
                choice.calls += 1;
                call_field(choice.calls - 1, call)
            }
            TurnEvent::Finish(end) => return self.write_finish(index, end, logprobs, out),
            // Chat completions know no items.
            TurnEvent::Begun
            | TurnEvent::ItemBegun(..)
            | TurnEvent::ItemEnded(_)
            | TurnEvent::Progress(_)
            | TurnEvent::Note(_) => return,
        };
        self.write_role(index, out);
        write_data(out, &self.delta_chunk(index, &fields, logprobs));
    }

    /// Writes a whole reply with its end.
    pub fn write_reply(&mut self, reply: Reply, out: &mut impl BufMut) {
        self.set_head(&reply.head);
        reply.choices.iter().for_each(|choice| self.write_role(choice.index, out));
        self.usage = reply.usage;
        reply.into_events().iter().for_each(|step| self.write_step(step, out));
        self.end_stream(out);
    }

    /// Ends the stream with usage, if the client asked for it, and `[DONE]`.
    pub fn end_stream(&mut self, out: &mut impl BufMut) {
        if let Some(usage) = self.usage.filter(|_| self.wants_usage) {
            let usage = format!(r#"{},"choices":[],"usage":{}}}"#, self.prefix(), usage_json(&usage));
            write_data(out, &usage);
        }
        write_data(out, DONE);
    }

    fn write_finish(&mut self, index: u64, end: &TurnEnd, logprobs: Option<&str>, out: &mut impl BufMut) {
        self.write_role(index, out);
        self.usage = end.usage;
        let message = join_fields(&end.kept.message);
        let chunk = format!(
            r#"{}{},"choices":[{{"index":{index},"delta":{{{}}}{},"finish_reason":"{}"{}}}]}}"#,
            self.prefix(),
            join_fields(&end.kept.reply),
            message.trim_start_matches(','),
            logprobs_field(logprobs),
            end.reason.as_str(),
            join_fields(&end.kept.choice),
        );
        write_data(out, &chunk);
    }

    /// Writes the first chunk of a choice, unless it has left.
    fn write_role(&mut self, index: u64, out: &mut impl BufMut) {
        if !std::mem::replace(&mut self.choice_mut(index).role_sent, true) {
            write_data(out, &self.delta_chunk(index, r#""role":"assistant","content":"""#, None));
        }
    }

    fn choice_mut(&mut self, index: u64) -> &mut ChoiceState {
        let place = self.choices.iter().position(|choice| choice.index == index).unwrap_or_else(|| {
            self.choices.push(ChoiceState { index, role_sent: self.roles_sent, calls: 0 });
            self.choices.len() - 1
        });
        &mut self.choices[place]
    }

    fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or(r#"{"object":"chat.completion.chunk""#)
    }

    fn delta_chunk(&self, index: u64, delta: &str, logprobs: Option<&str>) -> String {
        let (index, logprobs) = (index.to_string(), logprobs_field(logprobs));
        let prefix = self.prefix();
        [prefix, r#","choices":[{"index":"#, &index, r#","delta":{"#, delta, "}", &logprobs, NO_FINISH]
            .concat()
    }
}

/// Returns the beginning of every chunk of a reply with this head.
fn chunk_prefix(head: &Head) -> String {
    format!(
        r#"{{"id":{},"object":"chat.completion.chunk","created":{},"model":{}{}"#,
        encode_string(&head.id),
        head.created,
        encode_string(&head.model),
        join_fields(&head.tags),
    )
}

/// The end of a chunk whose choice continues.
const NO_FINISH: &str = r#","finish_reason":null}]}"#;

/// Writes the `chat.completion` object of a reply.
pub fn completion_json(reply: &Reply, reasoning: Option<&'static str>) -> String {
    let choices: Vec<String> = reply.choices.iter().map(|choice| choice_json(choice, reasoning)).collect();
    format!(
        r#"{{"id":{},"object":"chat.completion","created":{},"model":{},"choices":[{}]{}{}{}}}"#,
        encode_string(&reply.head.id),
        reply.head.created,
        encode_string(&reply.head.model),
        choices.join(","),
        reply.usage.as_ref().map_or_else(String::new, |usage| format!(r#","usage":{}"#, usage_json(usage))),
        join_fields(&reply.head.tags),
        join_fields(&reply.kept),
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
        join_fields(&choice.extras),
        join_fields(&choice.message_kept),
        choice.logprobs.as_deref().unwrap_or("null"),
        turn.finish.unwrap_or(FinishReason::Stop).as_str(),
        join_fields(&choice.kept),
    )
}

fn call_field(place: usize, call: &ToolCall) -> String {
    [r#""tool_calls":[{"index":"#, &place.to_string(), ",", &call_fields(call), "}]"].concat()
}

fn call_fields(call: &ToolCall) -> String {
    let id = encode_string(call.id.as_deref().unwrap_or_default());
    let (name, arguments) = (encode_string(&call.name), encode_string(&call.arguments));
    let function = r#","type":"function","function":{"name":"#;
    [r#""id":"#, &id, function, &name, r#","arguments":"#, &arguments, "}"].concat()
}

/// Writes OpenAI's `usage` object.
pub fn usage_json(usage: &Usage) -> String {
    let detail = |group: &str, key: &str, count: Option<u64>| {
        count.map_or_else(String::new, |count| format!(r#","{group}":{{"{key}":{count}}}"#))
    };
    format!(
        r#"{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}{}{}}}"#,
        usage.prompt,
        usage.completion,
        usage.total_tokens(),
        detail("prompt_tokens_details", "cached_tokens", usage.cached),
        detail("completion_tokens_details", "reasoning_tokens", usage.reasoning),
    )
}

fn text_field(name: &str, text: &str) -> String {
    ["\"", name, "\":", &encode_string(text)].concat()
}

fn logprobs_field(logprobs: Option<&str>) -> String {
    logprobs.map_or_else(String::new, |text| format!(r#","logprobs":{text}"#))
}

/// Writes fields with a comma before each.
fn join_fields<K: AsRef<str>>(fields: &[(K, String)]) -> String {
    let mut out = String::new();
    for (key, value) in fields {
        out.extend([",\"", key.as_ref(), "\":", value]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::reply::{Head, ReplyChoice};
    use super::*;
    use wire::turn::Turn;

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
        let usage = Some(Usage { prompt: 1, completion: 2, cached: Some(1), ..Usage::default() });
        Reply {
            head,
            choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }],
            usage,
            ..Reply::default()
        }
    }

    fn stream(reply: Reply, reasoning: Option<&'static str>, roles_sent: bool, usage: bool) -> String {
        let (mut sink, mut out) = (ChatSink::new(reasoning, usage), Vec::new());
        if roles_sent {
            sink.write_roles(1, &mut Vec::new());
        }
        sink.write_reply(reply, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_stream() {
        insta::assert_snapshot!(stream(reply(), Some("reasoning_content"), false, true));
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
        let out = stream(reply.clone(), None, true, false);
        assert!(!out.contains("why") && !out.contains("usage") && !out.contains("role"), "{out}");
        let json = completion_json(&Reply::from_text(reply.head, "stop"), None);
        assert!(json.contains(r#""content":"stop""#) && json.contains(r#""total_tokens":0"#), "{json}");
    }
}
