//! The live turn: the tool-call engine reads the chunks of a streaming upstream, and the certain parts leave
//! immediately, as the steps of the turn.
//!
//! The same engine and ids as for a whole reply; only the order is that of arrival. The end of the turn waits
//! for the end of the stream, because only the usage that comes last shows whether the token limit cut a
//! call. Pure. Called by `reply_reader`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fault::Fault;
use super::free_text::FreeTextPatterns;
use super::ids::Ids;
use super::interpret::{ReplyRules, push_content};
use super::reply::Head;
use super::response_template::ResponseTemplate;
use tool_call_parser::{End, Engine, Field, NativeCall, Tools};
use wire::turn::{
    ChoiceEvent, Dropped, FinishReason, KeptFields, Note, ToolCall, Turn, TurnEnd, TurnEvent, Usage,
};
use wire::{Malformed, Object, array_elements, content_text, decode_string, parse_usage, pruned_logprobs};

/// The client's rules for a live turn.
#[derive(Debug)]
pub struct LiveRules {
    /// The request's rules for its reply.
    pub reply: ReplyRules,
    /// True when reasoning leaves.
    pub shows_reasoning: bool,
    /// Fields to keep although OpenAI's API has no such field.
    pub keep: Vec<String>,
    /// The tokens of earlier attempts, which the usage that leaves includes.
    pub spent: Usage,
    /// The expressions that the free text of custom tools must match.
    pub free_text: Arc<FreeTextPatterns>,
}

/// Follows one live reply.
#[derive(Debug)]
pub struct LiveTurn {
    rules: LiveRules,
    ids: Ids,
    head: Head,
    has_head: bool,
    choices: BTreeMap<u64, LiveChoice>,
    usage: Option<Usage>,
    kept: Vec<(String, String)>,
}

#[derive(Debug)]
struct LiveChoice {
    engine: Engine,
    native: Option<(Option<u64>, NativeCall)>,
    /// Text that waits for the end of the reply, because a template needs whole texts.
    unread: String,
    response_template: Option<Arc<ResponseTemplate>>,
    gap: String,
    logprobs: Vec<String>,
    finish_reason: Option<String>,
    /// The parts that have left.
    turn: Turn,
    kept: Vec<(String, String)>,
    message_kept: Vec<(String, String)>,
    /// True when the model refused to answer, in the field `refusal`.
    has_refused: bool,
}

impl LiveTurn {
    /// Begins a reply. `created` and `model` are used if the upstream does not send them.
    pub fn new(rules: LiveRules, ids: Ids, created: u64, model: String) -> Self {
        let head = Head { id: String::new(), created, model, tags: vec![] };
        Self { rules, ids, head, has_head: false, choices: BTreeMap::new(), usage: None, kept: vec![] }
    }

    /// Returns the reply's id, time and model; `None` before the upstream has begun.
    pub fn head(&self) -> Option<&Head> {
        Some(&self.head).filter(|_| self.has_head)
    }

    /// Returns the token counts, once they are known.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Returns true once a chunk with a choice has come.
    pub fn has_begun(&self) -> bool {
        !self.choices.is_empty()
    }

    /// Returns true once reasoning, content or a call has left.
    pub fn has_spoken(&self) -> bool {
        let spoke =
            |turn: &Turn| !(turn.reasoning.is_empty() && turn.content.is_empty() && turn.calls.is_empty());
        self.turns().any(spoke) || self.has_refused()
    }

    fn has_refused(&self) -> bool {
        self.choices.values().any(|choice| choice.has_refused)
    }

    /// Returns true when every choice has its finish reason.
    pub fn is_finished(&self) -> bool {
        self.has_begun() && self.choices.values().all(|choice| choice.finish_reason.is_some())
    }

    /// Takes one chunk; appends to `out` the steps that may leave.
    ///
    /// # Errors
    /// When the payload is not a JSON object.
    pub fn push(&mut self, payload: &str, out: &mut Vec<ChoiceEvent>) -> Result<(), Malformed> {
        let chunk = Object::parse(payload)?;
        self.read_head(&chunk);
        self.usage = chunk.get("usage").and_then(parse_usage).or(self.usage);
        keep_last(&mut self.kept, &chunk, &self.rules.keep);
        for (place, text) in
            chunk.get("choices").and_then(array_elements).unwrap_or_default().into_iter().enumerate()
        {
            let choice = Object::parse(text)?;
            let index = choice.number("index").unwrap_or(place as u64).min(4096);
            let keep = self.rules.keep.clone();
            let events = self.choice_mut(index).push(&choice, &keep);
            self.emit_events(index, events, out);
        }
        Ok(())
    }

    /// Ends the stream and releases the text that was held back. Returns the fault of the turns, if there is
    /// one.
    pub fn settle(&mut self, out: &mut Vec<ChoiceEvent>) -> Option<Fault> {
        let used = self.usage.map(|usage| usage.completion);
        let limit = self.rules.reply.token_limit;
        let spent =
            self.choices.len() == 1 && used.is_some_and(|used| limit.is_some_and(|limit| used >= limit));
        let below = self.rules.reply.is_below_limit(used);
        for index in self.choice_indexes() {
            let events = self.choice_mut(index).finish_choice(spent, below);
            self.emit_events(index, events, out);
            if let Some(gap) = self.choice_mut(index).last_gap() {
                self.send_step(index, gap, out);
            }
            let reason = self.choice_mut(index).finish_reason_now();
            self.choice_mut(index).turn.finish = Some(reason);
        }
        // A refusal is an answer, as in a whole reply.
        if self.has_refused() {
            return None;
        }
        Fault::find_in_turns(&self.turns().collect::<Vec<_>>(), self.usage)
    }

    /// Ends the turns, after [`LiveTurn::settle`]. `fills_window`: the reply has filled the model's window.
    pub fn close(&mut self, fills_window: bool, out: &mut Vec<ChoiceEvent>) {
        let usage = self.usage.map(|usage| usage.plus(self.rules.spent));
        for (index, choice) in &mut self.choices {
            let reason = choice.turn.finish.unwrap_or_else(|| choice.finish_reason_now());
            let kept = KeptFields {
                reply: self.kept.clone(),
                choice: std::mem::take(&mut choice.kept),
                message: std::mem::take(&mut choice.message_kept),
            };
            let fills_window = fills_window && reason == FinishReason::Length;
            let event = TurnEvent::Finish(TurnEnd { reason, usage, fills_window, kept });
            out.push(ChoiceEvent {
                choice: *index,
                event,
                logprobs: join_logprobs(std::mem::take(&mut choice.logprobs)),
            });
        }
    }

    /// Returns the declared tools.
    pub fn tools(&self) -> &Tools {
        &self.rules.reply.tools
    }

    /// Adds the calls that `of` finds in each turn, after [`LiveTurn::settle`].
    pub fn add_calls(&mut self, of: impl Fn(&Turn, &Tools) -> Vec<ToolCall>, out: &mut Vec<ChoiceEvent>) {
        let tools = Arc::clone(&self.rules.reply.tools);
        for index in self.choice_indexes() {
            for call in of(&self.choice_mut(index).turn, &tools) {
                self.send_step(index, TurnEvent::ToolCall(call), out);
            }
            let choice = self.choice_mut(index);
            choice.turn.finish = Some(choice.finish_reason_now());
        }
    }

    /// Returns the turns with the parts that have left and the notes.
    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.choices.values().map(|choice| &choice.turn)
    }

    fn choice_indexes(&self) -> Vec<u64> {
        self.choices.keys().copied().collect()
    }

    /// Releases the held text of a broken stream. Calls are dropped, because they may be incomplete.
    pub fn give_up(&mut self, out: &mut Vec<ChoiceEvent>) {
        for index in self.choice_indexes() {
            let mut events = self.choice_mut(index).finish_choice(true, false);
            events.retain(|event| matches!(event, TurnEvent::Content(_) | TurnEvent::Reasoning(_)));
            self.emit_events(index, events, out);
        }
    }

    fn read_head(&mut self, chunk: &Object<'_>) {
        if self.has_head {
            return;
        }
        self.has_head = true;
        self.head.id = chunk.string("id").filter(|id| !id.is_empty()).unwrap_or_else(|| self.ids.reply_id());
        self.head.created = chunk.number("created").unwrap_or(self.head.created);
        self.head.model = chunk.string("model").unwrap_or_else(|| std::mem::take(&mut self.head.model));
    }

    fn choice_mut(&mut self, index: u64) -> &mut LiveChoice {
        let Self { choices, rules, .. } = self;
        choices.entry(index).or_insert_with(|| LiveChoice {
            engine: Engine::new(Arc::clone(&rules.reply.tools), rules.reply.options),
            native: None,
            unread: String::new(),
            response_template: rules.reply.response_template.clone(),
            gap: String::new(),
            logprobs: vec![],
            finish_reason: None,
            turn: Turn::default(),
            kept: vec![],
            message_kept: vec![],
            has_refused: false,
        })
    }

    fn emit_events(&mut self, index: u64, events: Vec<TurnEvent>, out: &mut Vec<ChoiceEvent>) {
        for mut event in events {
            if let TurnEvent::ToolCall(call) = event {
                event = self.rules.free_text.check_call(call);
            }
            if !self.choice_mut(index).holds_gap(&mut event) {
                self.send_step(index, event, out);
            }
        }
    }

    fn send_step(&mut self, index: u64, mut event: TurnEvent, out: &mut Vec<ChoiceEvent>) {
        if let TurnEvent::ToolCall(call) = &mut event {
            call.id = Some(self.ids.choose_id(call.id.as_deref()));
        }
        let shows_reasoning = self.rules.shows_reasoning;
        let choice = self.choice_mut(index);
        let logprobs = matches!(event, TurnEvent::Content(_))
            .then(|| join_logprobs(std::mem::take(&mut choice.logprobs)))
            .flatten();
        let leaves = match event {
            TurnEvent::Reasoning(_) => shows_reasoning,
            TurnEvent::Content(_) | TurnEvent::ToolCall(_) | TurnEvent::Refusal(_) => true,
            _ => false,
        };
        if leaves {
            out.push(ChoiceEvent { choice: index, event: event.clone(), logprobs });
        }
        choice.turn.apply_event(event);
    }
}

impl LiveChoice {
    fn push(&mut self, choice: &Object<'_>, keep: &[String]) -> Vec<TurnEvent> {
        let mut events = Vec::new();
        let delta = choice.get("delta").or_else(|| choice.get("message")).unwrap_or("{}");
        let Ok(delta) = Object::parse(delta) else { return events };
        let reasoning =
            ["reasoning", "reasoning_content"].iter().find_map(|key| delta.get(key).and_then(content_text));
        let content = delta.get("content").and_then(content_text).filter(|text| !text.is_empty());
        let reasons_only = reasoning.as_ref().is_some_and(|text| !text.is_empty()) && content.is_none();
        for (field, text) in [(Field::Reasoning, reasoning), (Field::Content, content)] {
            let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
            if field == Field::Content && self.response_template.is_some() {
                self.unread.push_str(&text);
            } else {
                self.engine.push(field, &text, &mut events);
            }
        }
        if let Some(text) = delta.get("refusal").and_then(content_text).filter(|text| !text.is_empty()) {
            self.has_refused = true;
            events.push(TurnEvent::Refusal(text));
        }
        // Log probabilities of reasoning are dropped: clients expect only those of the text.
        if let Some(logprobs) = choice.get("logprobs").filter(|_| !reasons_only) {
            self.logprobs.push(pruned_logprobs(logprobs).into_owned());
        }
        for call in delta.get("tool_calls").and_then(array_elements).unwrap_or_default() {
            self.read_native_piece(call, &mut events);
        }
        self.finish_reason = choice.string("finish_reason").or_else(|| self.finish_reason.take());
        keep_last(&mut self.kept, choice, keep);
        keep_last(&mut self.message_kept, &delta, keep);
        self.message_kept.retain(|(key, _)| !IN_PIECES.contains(&key.as_str()));
        events
    }

    fn finish_choice(&mut self, spent: bool, is_below_limit: bool) -> Vec<TurnEvent> {
        let mut events = Vec::new();
        self.complete_native_call(&mut events);
        let unread = std::mem::take(&mut self.unread);
        push_content(&mut self.engine, &unread, self.response_template.as_deref(), &mut events);
        let cut = spent || self.finish_reason.as_deref().is_none_or(|reason| reason == "length");
        self.engine.finish(End { cut }, &mut events);
        if !cut && is_below_limit {
            events.iter_mut().for_each(mark_unclosed);
        }
        events
    }

    /// Returns white space if it is the only content, unless there were calls.
    fn last_gap(&mut self) -> Option<TurnEvent> {
        let gap = std::mem::take(&mut self.gap);
        (!gap.is_empty() && self.turn.calls.is_empty()).then_some(TurnEvent::Content(gap))
    }

    fn finish_reason_now(&self) -> FinishReason {
        let truncated =
            self.turn.notes.iter().any(|note| matches!(note, Note::Dropped { why: Dropped::Truncated, .. }));
        let upstream = if truncated { Some("length") } else { self.finish_reason.as_deref() };
        FinishReason::from_upstream(upstream, !self.turn.calls.is_empty())
    }

    /// Holds back line breaks before other content: next to calls they mean nothing, but before a text they
    /// are part of it. Returns true when the event was held back.
    fn holds_gap(&mut self, event: &mut TurnEvent) -> bool {
        let TurnEvent::Content(text) = event else { return false };
        if !self.turn.content.is_empty() {
            return false;
        }
        let blank = text.trim().is_empty();
        self.gap.push_str(text);
        if !blank {
            *text = std::mem::take(&mut self.gap);
        }
        blank
    }

    /// Collects a native call, whose arguments come in pieces. It is complete when the next call begins, or
    /// at the end.
    fn read_native_piece(&mut self, text: &str, events: &mut Vec<TurnEvent>) {
        let Ok(piece) = Object::parse(text) else { return };
        let index = piece.number("index");
        let function = piece.get("function").and_then(|text| Object::parse(text).ok()).unwrap_or_default();
        let id = piece.string("id").filter(|id| !id.is_empty());
        let name = function.string("name").filter(|name| !name.is_empty());
        let another = |(current, call): &(Option<u64>, NativeCall)| {
            let other_id = id.is_some() && call.id.is_some() && id != call.id;
            // A server that sends neither index nor ids begins a call with its name.
            let named_anew = id.is_none() && name.is_some() && Object::parse(&call.arguments).is_ok();
            *current != index || other_id || named_anew
        };
        if self.native.as_ref().is_some_and(another) {
            self.complete_native_call(events);
        }
        let (_, call) = self.native.get_or_insert_with(|| (index, NativeCall::default()));
        call.id = call.id.take().or(id);
        if call.name.is_empty() {
            call.name = name.unwrap_or_default();
        }
        if let Some(arguments) = function.get("arguments") {
            call.arguments.push_str(&decode_string(arguments).unwrap_or_else(|| arguments.to_owned()));
        }
    }

    fn complete_native_call(&mut self, events: &mut Vec<TurnEvent>) {
        if let Some((_, call)) = self.native.take() {
            self.engine.push_native(call, events);
        }
    }
}

/// Marks a call that ends early in a reply that no limit cut, as the model's own mistake.
fn mark_unclosed(event: &mut TurnEvent) {
    if let TurnEvent::Note(note) = event {
        note.mark_unclosed();
    }
}

/// The fields of a delta that come in pieces or belong to the engine, so that they have no last value.
const IN_PIECES: [&str; 6] = ["role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls"];

/// Remembers the last value of each field that the user asked to keep.
fn keep_last(kept: &mut Vec<(String, String)>, object: &Object<'_>, keep: &[String]) {
    for key in keep {
        let Some(value) = object.get(key) else { continue };
        kept.retain(|(known, _)| known != key);
        kept.push((key.clone(), value.to_owned()));
    }
}

/// Joins several objects of log probabilities.
pub(super) fn join_logprobs(waiting: Vec<String>) -> Option<String> {
    if waiting.len() < 2 {
        return waiting.into_iter().next();
    }
    let objects: Vec<Object<'_>> = waiting.iter().filter_map(|text| Object::parse(text).ok()).collect();
    let entries = |key: &str| -> Vec<&str> {
        objects.iter().filter_map(|object| object.get(key).and_then(array_elements)).flatten().collect()
    };
    Some(format!(
        r#"{{"content":[{}],"refusal":[{}]}}"#,
        entries("content").join(","),
        entries("refusal").join(",")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChatSink;
    use tool_call_parser::{Options, Tools};

    fn live(token_limit: Option<u64>) -> LiveTurn {
        let tools = Tools::from_json(
            r#"[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}}]"#,
        ).unwrap();
        let reply = ReplyRules {
            tools: Arc::new(tools),
            options: Options::default(),
            response_template: None,
            token_limit,
        };
        let rules = LiveRules {
            reply,
            shows_reasoning: true,
            keep: vec![],
            spent: Usage::default(),
            free_text: Arc::default(),
        };
        LiveTurn::new(rules, Ids::new(1, std::collections::HashSet::new()), 5, "m".into())
    }

    fn chunk(delta: &str, finish: &str) -> String {
        format!(
            r#"{{"id":"x","created":1,"model":"m","choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":{finish}}}]}}"#
        )
    }

    fn run(turn: &mut LiveTurn, chunks: &[String]) -> (String, Option<Fault>) {
        let mut steps = Vec::new();
        chunks.iter().for_each(|chunk| turn.push(chunk, &mut steps).unwrap());
        let fault = turn.settle(&mut steps);
        turn.close(false, &mut steps);
        let (mut sink, mut out) = (ChatSink::new(Some("reasoning_content"), true), Vec::new());
        sink.set_head(turn.head().unwrap());
        steps.iter().for_each(|step| sink.write_step(step, &mut out));
        sink.end_stream(&mut out);
        (String::from_utf8(out).unwrap(), fault)
    }

    #[test]
    fn text_leaves_at_once_and_a_native_call_whole() {
        let mut turn = live(None);
        let mut out = Vec::new();
        turn.push(&chunk(r#""role":"assistant","content":"""#, "null"), &mut out).unwrap();
        turn.push(&chunk(r#""reasoning":"why""#, "null"), &mut out).unwrap();
        assert_eq!(out, [ChoiceEvent::new(0, TurnEvent::Reasoning("why".into()))]);
        let calls = [
            chunk(
                r#""tool_calls":[{"index":0,"id":"abcdefghi","type":"function","function":{"name":"read","arguments":"{\"pa"}}]"#,
                "null",
            ),
            chunk(r#""tool_calls":[{"index":0,"function":{"arguments":"th\":\"a\"}"}}]"#, "null"),
            chunk("", r#""stop""#),
        ];
        let (out, fault) = run(&mut turn, &calls);
        assert_eq!((fault, turn.turns().next().unwrap().calls.len()), (None, 1));
        assert!(out.contains(r#""id":"abcdefghi","type":"function","function":{"name":"read","arguments":"{\"path\":\"a\"}"}"#), "{out}");
        assert!(
            out.contains(r#""finish_reason":"tool_calls""#) && out.ends_with("data: [DONE]\n\n"),
            "{out}"
        );
    }

    #[test]
    fn kept_fields_leave_with_the_last_chunk() {
        let mut turn = live(None);
        turn.rules.keep = ["stop_reason", "token_ids", "content"].map(str::to_owned).to_vec();
        let first = chunk(r#""content":"Hi","token_ids":[7]"#, "null");
        let last = chunk("", r#""stop","stop_reason":7"#);
        let (out, _) = run(&mut turn, &[first, last]);
        assert!(
            out.contains(r#""delta":{"token_ids":[7]},"finish_reason":"stop","stop_reason":7}"#),
            "{out}"
        );
        assert_eq!(out.matches("\"content\":\"Hi\"").count(), 1, "{out}");
    }

    #[test]
    fn a_refusal_is_an_answer() {
        let mut turn = live(None);
        let (out, fault) = run(&mut turn, &[chunk(r#""refusal":"no""#, "null"), chunk("", r#""stop""#)]);
        assert!(fault.is_none() && turn.has_spoken() && out.contains(r#""refusal":"no""#), "{fault:?} {out}");
    }

    #[test]
    fn a_stream_without_finish_reason_counts_as_cut() {
        let mut turn = live(None);
        turn.push(&chunk(r#""content":"a""#, "null"), &mut Vec::new()).unwrap();
        assert!(turn.has_begun() && !turn.is_finished());
    }

    #[test]
    fn a_template_reads_a_live_reply_at_its_end() {
        let template =
            r#"{"fields": {"content": {}, "tool_calls": {"open": "@@", "close": "@@", "content": "json"}}}"#;
        let mut turn = live(None);
        turn.rules.reply.response_template = Some(Arc::new(ResponseTemplate::parse(template).unwrap()));
        let mut out = Vec::new();
        for piece in ["I look. @", r#"@{\"name\": \"read\", \"argu"#, r#"ments\": {\"path\": \"a\"}}@@"#] {
            turn.push(&chunk(&format!(r#""content":"{piece}""#), "null"), &mut out).unwrap();
        }
        assert_eq!(out, []);
        let (out, fault) = run(&mut turn, &[chunk("", r#""stop""#)]);
        assert_eq!((fault, turn.turns().next().unwrap().calls.len()), (None, 1));
        assert_eq!(turn.turns().next().unwrap().content.trim(), "I look.");
        assert!(out.contains(r#""finish_reason":"tool_calls""#), "{out}");
    }
}
