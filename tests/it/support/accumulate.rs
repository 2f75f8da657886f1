//! An accumulator of chat streams that is independent of `src/` and forgives nothing: what a client could
//! trip over is a flaw. It rebuilds the turn from the chunks, and the same turn from a whole completion, so
//! that both can be compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::openai_fields;

/// The values that OpenAI defines.
const FINISH_REASONS: [&str; 5] = ["stop", "length", "tool_calls", "content_filter", "function_call"];

/// The expectations of this reply beyond the protocol.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The name under which reasoning may come.
    pub reasoning: Option<&'static str>,
    /// Whether usage must (or must not) come; either is fine when none.
    pub usage: Option<bool>,
    /// How many choices there are.
    pub choices: usize,
    /// Fields that OpenAI does not have and that were asked to be kept.
    pub kept: Vec<&'static str>,
    /// Content may follow a call, and reasoning content: on the live route they leave in the order in which
    /// they came.
    pub as_it_came: bool,
    /// Usage on every chunk, which vLLM has as `continuous_usage_stats`.
    pub continuous_usage: bool,
    /// Another model may answer from some chunk on.
    pub fallback: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            reasoning: Some("reasoning_content"),
            usage: None,
            choices: 1,
            kept: Vec::new(),
            as_it_came: false,
            continuous_usage: false,
            fallback: false,
        }
    }
}

impl Rules {
    fn allowed(&self) -> Vec<&'static str> {
        self.kept.iter().copied().chain(self.reasoning).collect()
    }
}

/// The turn that came.
#[derive(Clone, Debug, Default)]
pub struct Accumulated {
    /// The one id of all chunks.
    pub id: String,
    /// The model of all chunks, or of the last one with `fallback`.
    pub model: String,
    /// By index.
    pub choices: BTreeMap<u64, Choice>,
    /// The usage.
    pub usage: Option<Value>,
    /// The `error` of an error event.
    pub error: Option<Value>,
    /// How many `data:` events came before `[DONE]`.
    pub chunks: usize,
    /// How many of them were heartbeats: a delta of nothing but empty content.
    pub heartbeats: usize,
    /// How many comments came.
    pub comments: usize,
}

/// One choice of the turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// All reasoning.
    pub reasoning: String,
    /// All content; `null` counts as none.
    pub content: String,
    /// The refusal.
    pub refusal: String,
    /// The calls, in order.
    pub tool_calls: Vec<Call>,
    /// Why it ended.
    pub finish_reason: Option<String>,
    /// The entries of `logprobs.content`.
    pub logprobs: Vec<Value>,
    has_role: bool,
}

/// One tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The JSON text of an object.
    pub arguments: String,
}

impl Call {
    /// The arguments, parsed.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.arguments).expect("judged when it was accumulated")
    }
}

/// The turn of an SSE stream, or all its flaws.
pub fn stream(body: &[u8], rules: &Rules) -> Result<Accumulated, Vec<String>> {
    let mut reader = Reader::new(rules);
    match std::str::from_utf8(body) {
        Ok(text) => reader.events(text),
        Err(error) => reader.flaw(format!("not UTF-8: {error}")),
    }
    reader.end()
}

/// The turn of a whole `chat.completion`, or all its flaws.
pub fn completion(body: &Value, rules: &Rules) -> Result<Accumulated, Vec<String>> {
    let mut reader = Reader::new(rules);
    reader.foreign(body, &openai_fields::COMPLETION);
    reader.envelope(body, "chat.completion");
    reader.turn.usage = Some(body["usage"].clone()).filter(Value::is_object);
    for choice in body["choices"].as_array().into_iter().flatten() {
        reader.whole_choice(choice);
    }
    reader.done = true;
    reader.end()
}

/// The order in which the parts of a choice may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    #[default]
    Reasoning,
    Content,
    Calls,
    Finish,
}

struct Reader<'r> {
    rules: &'r Rules,
    turn: Accumulated,
    created: Option<u64>,
    parts: BTreeMap<u64, Part>,
    ids: BTreeSet<String>,
    usage_chunk: bool,
    done: bool,
    flaws: Vec<String>,
}

impl<'r> Reader<'r> {
    fn new(rules: &'r Rules) -> Self {
        Self {
            rules,
            turn: Accumulated::default(),
            created: None,
            parts: BTreeMap::new(),
            ids: BTreeSet::new(),
            usage_chunk: false,
            done: false,
            flaws: Vec::new(),
        }
    }

    fn flaw(&mut self, flaw: impl Into<String>) {
        let place = self.turn.chunks;
        self.flaws.push(format!("event {place}: {}", flaw.into()));
    }

    fn require(&mut self, holds: bool, flaw: &str) {
        if !holds {
            self.flaw(flaw);
        }
    }

    fn foreign(&mut self, value: &Value, shape: &openai_fields::Shape) {
        for field in openai_fields::foreign_fields(value, shape, &self.rules.allowed()) {
            self.flaw(format!("foreign field {field}"));
        }
    }

    /// Each event is one `data: ` line (or comments alone), LF LF ends it, and nothing follows the last.
    fn events(&mut self, text: &str) {
        self.require(text.ends_with("\n\n"), "the stream does not end with a blank line");
        self.require(!text.contains('\r'), "CR in the stream");
        for event in text.split_terminator("\n\n") {
            let (comments, lines): (Vec<&str>, Vec<&str>) =
                event.lines().partition(|line| line.starts_with(':'));
            self.turn.comments += comments.len();
            match lines.as_slice() {
                [] if !comments.is_empty() => {}
                [line] => match line.strip_prefix("data: ") {
                    Some(data) => self.data(data),
                    None => self.flaw(format!("no data line: {line:?}")),
                },
                _ => self.flaw(format!("not one data line: {event:?}")),
            }
        }
    }

    fn data(&mut self, data: &str) {
        if self.done {
            return self.flaw(format!("after [DONE]: {data:?}"));
        }
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        self.require(self.turn.error.is_none(), "a chunk after the error event");
        self.turn.chunks += 1;
        match serde_json::from_str::<Value>(data) {
            Ok(event) if event.get("error").is_some() => self.error(&event),
            Ok(chunk @ Value::Object(_)) => self.chunk(&chunk),
            Ok(_) => self.flaw(format!("no JSON object: {data:?}")),
            Err(error) => self.flaw(format!("no JSON: {error} in {data:?}")),
        }
    }

    fn error(&mut self, event: &Value) {
        self.foreign(event, &openai_fields::ERROR);
        let error = &event["error"];
        let readable = error["message"].as_str().is_some_and(|message| !message.is_empty());
        self.require(readable, "an error without a message");
        self.require(error["type"].is_string(), "an error without a type");
        self.turn.error = Some(error.clone());
    }

    /// The fields that all chunks and a completion share.
    fn envelope(&mut self, body: &Value, object: &str) {
        self.require(body["object"] == object, &format!("object is {}", body["object"]));
        let (id, model) =
            (body["id"].as_str().unwrap_or_default(), body["model"].as_str().unwrap_or_default());
        self.require(!id.is_empty() && !model.is_empty(), "no id or no model");
        let created = body["created"].as_u64();
        self.require(created.is_some(), "created is no Unix time");
        if self.turn.id.is_empty() {
            (self.turn.id, self.turn.model, self.created) = (id.to_owned(), model.to_owned(), created);
        }
        if self.rules.fallback {
            model.clone_into(&mut self.turn.model);
        }
        let same = self.turn.id == id && self.turn.model == model && self.created == created;
        self.require(same, "id, model or created changed");
        self.require(body["choices"].is_array(), "choices is no array");
        let fingerprint = &body["system_fingerprint"];
        self.require(fingerprint.is_null() || fingerprint.is_string(), "system_fingerprint is no string");
    }

    fn chunk(&mut self, chunk: &Value) {
        self.foreign(chunk, &openai_fields::CHUNK);
        self.envelope(chunk, "chat.completion.chunk");
        let choices = chunk["choices"].as_array().map_or(&[][..], Vec::as_slice);
        self.usage(&chunk["usage"], choices.is_empty());
        let is_heartbeat = |choice: &Value| {
            choice["delta"] == serde_json::json!({"content": ""}) && choice["finish_reason"].is_null()
        };
        self.turn.heartbeats += usize::from(!choices.is_empty() && choices.iter().all(is_heartbeat));
        for choice in choices {
            self.choice(choice);
        }
    }

    fn usage(&mut self, usage: &Value, alone: bool) {
        if alone {
            self.require(!self.usage_chunk, "a second chunk without choices");
            self.require(usage.is_object(), "a chunk with neither choices nor usage");
            let open = self.turn.choices.values().any(|choice| choice.finish_reason.is_none());
            self.require(!open && !self.turn.choices.is_empty(), "usage before the choices finished");
            self.usage_chunk = true;
        } else {
            self.require(!self.usage_chunk, "a chunk with choices after the usage chunk");
            self.require(usage.is_null() || self.rules.continuous_usage, "usage on a chunk with choices");
        }
        if usage.is_object() {
            self.turn.usage = Some(usage.clone());
        }
    }

    fn choice(&mut self, choice: &Value) {
        let Some(index) = choice["index"].as_u64() else { return self.flaw("a choice without index") };
        let delta = &choice["delta"];
        self.require(delta.is_object(), "a choice without delta");
        let finished = self.turn.choices.get(&index).is_some_and(|choice| choice.finish_reason.is_some());
        self.require(!finished, "a chunk of a choice that has finished");
        self.role(index, &delta["role"]);
        let reasoning = self.rules.reasoning.map_or(&Value::Null, |name| &delta[name]);
        self.text(index, reasoning, Part::Reasoning);
        self.text(index, &delta["content"], Part::Content);
        self.refusal(index, &delta["refusal"]);
        for call in self.list(&delta["tool_calls"], "tool_calls") {
            self.advance(index, Part::Calls);
            let place = self.of(index).tool_calls.len();
            self.require(call["index"] == place, &format!("call {place} has index {}", call["index"]));
            self.call(index, &call);
        }
        self.logprobs(index, &choice["logprobs"]);
        self.finish(index, &choice["finish_reason"]);
    }

    fn whole_choice(&mut self, choice: &Value) {
        let Some(index) = choice["index"].as_u64() else { return self.flaw("a choice without index") };
        self.require(!self.turn.choices.contains_key(&index), "two choices of one index");
        let message = &choice["message"];
        self.role(index, &message["role"]);
        let reasoning = self.rules.reasoning.map_or(&Value::Null, |name| &message[name]);
        self.text(index, reasoning, Part::Reasoning);
        self.text(index, &message["content"], Part::Content);
        self.refusal(index, &message["refusal"]);
        for call in self.list(&message["tool_calls"], "tool_calls") {
            self.advance(index, Part::Calls);
            self.require(call.get("index").is_none(), "a call with an index in a whole reply");
            self.call(index, &call);
        }
        self.logprobs(index, &choice["logprobs"]);
        self.finish(index, &choice["finish_reason"]);
    }

    fn of(&mut self, index: u64) -> &mut Choice {
        self.turn.choices.entry(index).or_default()
    }

    fn list(&mut self, value: &Value, name: &str) -> Vec<Value> {
        self.require(value.is_null() || value.is_array(), &format!("{name} is {value}"));
        value.as_array().cloned().unwrap_or_default()
    }

    fn role(&mut self, index: u64, role: &Value) {
        let first = !self.of(index).has_role;
        let expected = if first { Value::from("assistant") } else { Value::Null };
        self.require(*role == expected, &format!("role is {role} where {expected} belongs"));
        self.of(index).has_role = true;
    }

    fn advance(&mut self, index: u64, part: Part) {
        let reached = *self.parts.entry(index).or_default();
        let in_order =
            reached <= part || (self.rules.as_it_came && part != Part::Finish && reached != Part::Finish);
        self.require(in_order, &format!("{part:?} after {reached:?}"));
        self.parts.insert(index, reached.max(part));
    }

    fn text(&mut self, index: u64, text: &Value, part: Part) {
        let Some(piece) = text.as_str() else {
            return self.require(text.is_null(), &format!("{part:?} is {text}"));
        };
        if piece.is_empty() {
            return;
        }
        self.advance(index, part);
        let choice = self.of(index);
        let whole = if part == Part::Reasoning { &mut choice.reasoning } else { &mut choice.content };
        whole.push_str(piece);
    }

    fn refusal(&mut self, index: u64, refusal: &Value) {
        self.require(refusal.is_null() || refusal.is_string(), &format!("refusal is {refusal}"));
        self.of(index).refusal.push_str(refusal.as_str().unwrap_or_default());
    }

    fn call(&mut self, index: u64, call: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let function = &call["function"];
        let call_read = Call {
            id: text(&call["id"]),
            name: text(&function["name"]),
            arguments: text(&function["arguments"]),
        };
        self.require(call["type"] == "function", &format!("the type of a call is {}", call["type"]));
        let well_formed = (9..=40).contains(&call_read.id.len())
            && call_read.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        self.require(well_formed, &format!("the id of a call is {}", call["id"]));
        let unique = self.ids.insert(call_read.id.clone());
        self.require(unique, &format!("two calls of id {}", call["id"]));
        self.require(!call_read.name.trim().is_empty(), "a call without a name");
        let arguments = serde_json::from_str::<Value>(&call_read.arguments);
        self.require(
            arguments.is_ok_and(|value| value.is_object()),
            &format!("arguments are no string holding a JSON object: {}", function["arguments"]),
        );
        self.of(index).tool_calls.push(call_read);
    }

    fn logprobs(&mut self, index: u64, logprobs: &Value) {
        for entry in self.list(&logprobs["content"], "logprobs.content") {
            self.require(entry["token"].is_string() && entry["logprob"].is_number(), "a malformed logprob");
            self.of(index).logprobs.push(entry);
        }
    }

    fn finish(&mut self, index: u64, reason: &Value) {
        match reason {
            Value::Null => {}
            Value::String(reason) => {
                self.require(
                    FINISH_REASONS.contains(&reason.as_str()),
                    &format!("finish_reason is {reason:?}"),
                );
                let calls = !self.of(index).tool_calls.is_empty();
                self.require(calls == (reason == "tool_calls"), &format!("{reason:?} with calls: {calls}"));
                self.advance(index, Part::Finish);
                self.of(index).finish_reason = Some(reason.clone());
            }
            other => self.flaw(format!("finish_reason is {other}")),
        }
    }

    /// Judges what needs the whole reply.
    fn end(mut self) -> Result<Accumulated, Vec<String>> {
        self.require(self.done, "no [DONE]");
        if self.turn.error.is_none() {
            let indexes: Vec<u64> = self.turn.choices.keys().copied().collect();
            let expected: Vec<u64> = (0..).take(self.rules.choices).collect();
            self.require(indexes == expected, &format!("choices {indexes:?}, not {expected:?}"));
            let open = self.turn.choices.values().any(|choice| choice.finish_reason.is_none());
            self.require(!open, "a choice without finish_reason");
            let usage = self.turn.usage.is_some();
            let expected = self.rules.usage.is_none_or(|expected| expected == usage);
            self.require(expected, &format!("usage came: {usage}"));
            if let Some(usage) = self.turn.usage.clone() {
                let counts = ["prompt_tokens", "completion_tokens", "total_tokens"];
                self.require(counts.iter().all(|name| usage[name].is_u64()), "a token count is missing");
            }
        }
        if self.flaws.is_empty() { Ok(self.turn) } else { Err(self.flaws) }
    }
}
