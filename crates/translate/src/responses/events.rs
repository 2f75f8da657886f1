//! Writes a turn as the events of a Responses stream, in OpenAI's standard sequence, and as the response
//! object.
//!
//! The official SDKs expect every event of the sequence and no other; Codex needs `response.output_item.done`
//! and `response.completed`. A repeated `response.in_progress` is the heartbeat: comments do not reset
//! Codex's watchdog. Both forms of a reply come from the same events. Called by `server`.

use std::io::Write as _;
use std::sync::Arc;

use bytes::BufMut;

use super::super::free_text::{FreeTextPatterns, free_text};
use super::super::ids::Ids;
use super::super::items::{ItemEvents, Items, Proof};
use super::super::sealed::Sealer;
use super::kept::{FinishedResponse, item_id, stored_input};
use super::names::{NamedTool, ToolKind};
use super::object::{Head, Status, response_json, strict_json};
use super::request::AskedResponse;
use wire::sse::write_event;
use wire::turn::{FinishReason, ItemEnd, ItemKind, ToolCall, TurnEvent, Usage};
use wire::{ApiError, Object, array_elements, encode_string};

/// The part of an item that is still being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Reasoning,
    Text,
    Refusal,
}

#[derive(Debug)]
struct OpenItem {
    piece: Piece,
    id: String,
    text: String,
    /// The log probabilities of its text, as JSON separated by commas.
    logprobs: String,
    /// The fixed JSON of a delta: up to its `sequence_number`, and from there to its text.
    delta: [String; 2],
}

/// Writes one response.
#[derive(Debug)]
pub struct ResponseEvents {
    asked: Arc<AskedResponse>,
    items: Items,
    head: Head,
    sequence: u64,
    output: Vec<String>,
    open: Option<OpenItem>,
    /// The log probabilities of the next text, as JSON separated by commas.
    logprobs: String,
    /// The id of the next call.
    call_id: String,
    ended: Option<String>,
    failed: bool,
}

impl ResponseEvents {
    /// Begins a response. `created`: seconds since 1970.
    pub fn new(asked: Arc<AskedResponse>, sealer: Arc<Sealer>, mut ids: Ids, created: u64) -> Self {
        let head = Head {
            id: ids.id_with_prefix("resp_"),
            created,
            // Set when it ends.
            completed: created,
            model: asked.model.clone(),
            store: asked.store,
        };
        let proof = if asked.sealed_reasoning { Proof::Seal } else { Proof::Nothing };
        Self {
            items: Items::new(ids, sealer, proof),
            asked,
            head,
            sequence: 0,
            output: vec![],
            open: None,
            logprobs: String::new(),
            call_id: String::new(),
            ended: None,
            failed: false,
        }
    }

    /// Returns the response's id.
    pub fn id(&self) -> &str {
        &self.head.id
    }

    /// Returns true for `truncation: "auto"`: the oldest items may be dropped when the conversation does not
    /// fit.
    pub fn may_trim(&self) -> bool {
        self.asked.truncate
    }

    /// Returns the expressions that the texts of custom calls must match.
    pub fn patterns(&self) -> Arc<FreeTextPatterns> {
        Arc::clone(&self.asked.patterns)
    }

    /// Returns the finished items, as JSON.
    pub fn output(&self) -> &[String] {
        &self.output
    }

    /// Returns the whole response object, once the turn has ended or failed.
    pub fn finished_response(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Sets the time of the turn's end, in seconds since 1970.
    pub fn set_end_time(&mut self, seconds: u64) {
        self.head.completed = seconds.max(self.head.created);
    }

    /// Sets the model that answers, if it is another one than was asked.
    pub fn set_model(&mut self, model: String) {
        self.head.model = model;
    }

    /// Continues the response that was begun with this id.
    pub fn continue_as(&mut self, id: String) {
        self.head.id = id;
    }

    /// Returns the response object of an unfinished response: queued in the background, or in progress.
    pub fn pending_response(&self, is_queued: bool) -> String {
        self.response_object(true, if is_queued { Status::Queued } else { Status::InProgress }, None)
    }

    /// Returns the bytes of the request's own items, which are kept for stored responses.
    pub fn input_bytes(&self) -> usize {
        self.asked.items.iter().map(String::len).sum()
    }

    /// Returns the request's own items in their stored form.
    pub fn stored_input(&mut self) -> String {
        stored_input(&self.asked.items, &mut self.items.ids)
    }

    /// Returns the response in its stored form; `None` unless the client wants it stored and it has ended.
    pub fn to_stored(&mut self) -> Option<FinishedResponse> {
        let body = self.ended.clone().filter(|_| self.asked.store)?;
        Some(FinishedResponse {
            id: self.head.id.clone(),
            previous: self.asked.previous.clone(),
            status: Object::parse(&body).ok()?.string("status")?,
            input: self.stored_input(),
            items: self.output.iter().filter_map(|item| item_id(item)).collect(),
            body,
        })
    }

    /// Returns true when the turn failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Writes the first two events.
    pub fn begin(&mut self, out: &mut impl BufMut) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response_object(true, Status::InProgress, None);
            self.send_event(out, name, &format!(r#","response":{response}"#));
        }
    }

    /// Writes an event without news, which resets every client's watchdog.
    pub fn heartbeat(&mut self, out: &mut impl BufMut) {
        let response = self.response_object(false, Status::InProgress, None);
        self.send_event(out, "response.in_progress", &format!(r#","response":{response}"#));
    }

    /// Adds the log probabilities of the next text, in the format of chat completions.
    pub fn add_logprobs(&mut self, chat: &str) {
        let Ok(object) = Object::parse(chat) else { return };
        for token in object.get("content").and_then(array_elements).unwrap_or_default() {
            append_json(&mut self.logprobs, &strict_json(token, "{}"));
        }
    }

    /// Writes one event of the turn. Events after its end are dropped.
    pub fn write(&mut self, event: &TurnEvent, out: &mut impl BufMut) {
        if self.ended.is_some() {
            return;
        }
        let ItemEvents { before, after } = self.items.item_events(event);
        before.iter().for_each(|event| self.write_single(event, out));
        self.write_single(event, out);
        after.iter().for_each(|event| self.write_single(event, out));
    }

    fn write_single(&mut self, event: &TurnEvent, out: &mut impl BufMut) {
        match event {
            TurnEvent::ItemBegun(kind, id) => self.begin_item(*kind, id, out),
            TurnEvent::ItemEnded(end) => self.close_item(end, out),
            TurnEvent::Reasoning(text) | TurnEvent::Content(text) | TurnEvent::Refusal(text) => {
                self.write_text(text, out);
            }
            TurnEvent::ToolCall(call) => self.write_call(call, out),
            TurnEvent::Finish(end) => self.write_finish(end.reason, end.usage.as_ref(), out),
            TurnEvent::Begun | TurnEvent::Progress(_) | TurnEvent::Note(_) => {}
        }
    }

    /// Ends a turn that failed after its beginning. `code`: see [`super::failure_code`].
    pub fn fail(&mut self, code: &str, error: &ApiError, out: &mut impl BufMut) {
        if self.ended.is_some() {
            return;
        }
        self.items.end_item(false).iter().for_each(|event| self.write_single(event, out));
        // A failure is stored only if the client will ask for it later.
        self.head.store &= self.asked.background;
        let response = self.response_object(true, Status::Failed(code, &error.message), None);
        self.send_event(out, "response.failed", &format!(r#","response":{response}"#));
        self.failed = true;
        self.ended = Some(response);
    }

    fn write_finish(&mut self, reason: FinishReason, usage: Option<&Usage>, out: &mut impl BufMut) {
        let (name, status) = match reason {
            FinishReason::Stop | FinishReason::ToolCalls => ("response.completed", Status::Completed),
            FinishReason::Length => ("response.incomplete", Status::Incomplete("max_output_tokens")),
            FinishReason::ContentFilter => ("response.incomplete", Status::Incomplete("content_filter")),
        };
        let response = self.response_object(true, status, usage);
        self.send_event(out, name, &format!(r#","response":{response}"#));
        self.ended = Some(response);
    }

    fn begin_item(&mut self, kind: ItemKind, id: &str, out: &mut impl BufMut) {
        match kind {
            ItemKind::Reasoning => self.start_item(Piece::Reasoning, format!("rs_{id}"), out),
            ItemKind::Text => self.start_item(Piece::Text, format!("msg_{id}"), out),
            ItemKind::Refusal => self.start_item(Piece::Refusal, format!("msg_{id}"), out),
            ItemKind::Call => id.clone_into(&mut self.call_id),
        }
    }

    fn write_text(&mut self, text: &str, out: &mut impl BufMut) {
        if text.is_empty() {
            return;
        }
        let Some(open) = &mut self.open else { return };
        let piece = open.piece;
        open.text.push_str(text);
        // Nearly all events are of this kind, so it is written straight into the stream, where writing cannot
        // fail.
        let mut out = out.writer();
        let [before, between] = &open.delta;
        let _ = write!(out, "{before}{}{between}", self.sequence);
        let _ = serde_json::to_writer(&mut out, text);
        if piece == Piece::Text {
            let _ = write!(out, r#","logprobs":[{}]"#, self.logprobs);
            append_json(&mut open.logprobs, &self.logprobs);
            self.logprobs.clear();
        }
        let _ = out.write_all(b"}\n\n");
        self.sequence += 1;
    }

    fn start_item(&mut self, piece: Piece, id: String, out: &mut impl BufMut) {
        let item = match piece {
            Piece::Reasoning => {
                format!(
                    r#"{{"id":"{id}","type":"reasoning","summary":[],"content":[],"status":"in_progress"}}"#
                )
            }
            _ => message_item(&id, "in_progress", ""),
        };
        self.write_item_added(&item, out);
        let place = item_fields(&id, self.output.len());
        let fields = format!(r#"{place},"content_index":0,"part":{}"#, piece.part_json("", ""));
        self.send_event(out, "response.content_part.added", &fields);
        let name = piece.delta_event();
        let before = format!("event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":");
        let delta = [before, format!(r#"{place},"content_index":0,"delta":"#)];
        self.open = Some(OpenItem { piece, id, text: String::new(), logprobs: String::new(), delta });
    }

    fn close_item(&mut self, end: &ItemEnd, out: &mut impl BufMut) {
        let Some(OpenItem { piece, id, text, logprobs, .. }) = self.open.take() else { return };
        let status = if end.is_whole { "completed" } else { "incomplete" };
        let place = item_fields(&id, self.output.len());
        let (field, encoded) = (piece.text_field(), encode_string(&text));
        let beside =
            if piece == Piece::Text { format!(r#","logprobs":[{logprobs}]"#) } else { String::new() };
        self.send_event(
            out,
            piece.done_event(),
            &format!(r#"{place},"content_index":0,"{field}":{encoded}{beside}"#),
        );
        let part = piece.part_json(&text, &logprobs);
        self.send_event(
            out,
            "response.content_part.done",
            &format!(r#"{place},"content_index":0,"part":{part}"#),
        );
        let item = match piece {
            Piece::Reasoning => reasoning_item(&id, status, end.signature.as_deref(), &part),
            _ => message_item(&id, status, &part),
        };
        self.write_item_done(item, out);
    }

    fn write_call(&mut self, call: &ToolCall, out: &mut impl BufMut) {
        let plain = NamedTool { kind: ToolKind::Function, namespace: None, name: call.name.clone() };
        let asked = Arc::clone(&self.asked);
        let tool = asked.tools.client_tool(&call.name).unwrap_or(&plain);
        let call_id = encode_string(call.id.as_deref().unwrap_or_default());
        match tool.kind {
            ToolKind::Function => self.write_function_call(tool, &call_id, &call.arguments, out),
            ToolKind::Custom => self.write_custom_call(tool, &call_id, &free_text(&call.arguments), out),
            ToolKind::ToolSearch => self.write_tool_search_call(&call_id, &call.arguments, out),
        }
    }

    fn write_function_call(
        &mut self,
        tool: &NamedTool,
        call_id: &str,
        arguments: &str,
        out: &mut impl BufMut,
    ) {
        let id = format!("fc_{}", self.call_id);
        let (name, arguments) = (encode_string(&tool.name), encode_string(arguments));
        let item = |arguments: &str, status: &str| {
            format!(
                r#"{{"id":"{id}","type":"function_call","call_id":{call_id},"name":{name}{},"arguments":{arguments},"status":"{status}"}}"#,
                namespace_field(tool)
            )
        };
        let place = item_fields(&id, self.output.len());
        self.write_item_added(&item("\"\"", "in_progress"), out);
        let delta = format!(r#"{place},"delta":{arguments}"#);
        self.send_event(out, "response.function_call_arguments.delta", &delta);
        let done = format!(r#"{place},"name":{name},"arguments":{arguments}"#);
        self.send_event(out, "response.function_call_arguments.done", &done);
        self.write_item_done(item(&arguments, "completed"), out);
    }

    fn write_custom_call(&mut self, tool: &NamedTool, call_id: &str, input: &str, out: &mut impl BufMut) {
        let id = format!("ctc_{}", self.call_id);
        let (name, input) = (encode_string(&tool.name), encode_string(input));
        let item = |input: &str, status: &str| {
            format!(
                r#"{{"id":"{id}","type":"custom_tool_call","call_id":{call_id},"name":{name}{},"input":{input},"status":"{status}"}}"#,
                namespace_field(tool)
            )
        };
        let place = item_fields(&id, self.output.len());
        self.write_item_added(&item("\"\"", "in_progress"), out);
        self.send_event(out, "response.custom_tool_call_input.delta", &format!(r#"{place},"delta":{input}"#));
        self.send_event(out, "response.custom_tool_call_input.done", &format!(r#"{place},"input":{input}"#));
        self.write_item_done(item(&input, "completed"), out);
    }

    fn write_tool_search_call(&mut self, call_id: &str, arguments: &str, out: &mut impl BufMut) {
        let (id, arguments) = (format!("tsc_{}", self.call_id), strict_json(arguments, "{}"));
        let item = |status: &str| {
            format!(
                r#"{{"id":"{id}","type":"tool_search_call","call_id":{call_id},"execution":"client","arguments":{arguments},"status":"{status}"}}"#
            )
        };
        self.write_item_added(&item("in_progress"), out);
        self.write_item_done(item("completed"), out);
    }

    fn write_item_added(&mut self, item: &str, out: &mut impl BufMut) {
        let fields = format!(r#","output_index":{},"item":{item}"#, self.output.len());
        self.send_event(out, "response.output_item.added", &fields);
    }

    fn write_item_done(&mut self, item: String, out: &mut impl BufMut) {
        let fields = format!(r#","output_index":{},"item":{item}"#, self.output.len());
        self.send_event(out, "response.output_item.done", &fields);
        self.output.push(item);
    }

    fn response_object(&self, with_tools: bool, status: Status<'_>, usage: Option<&Usage>) -> String {
        response_json(&self.head, &self.asked.echo, with_tools, status, &self.output, usage)
    }

    /// Writes an event. `fields` begin with a comma.
    fn send_event(&mut self, out: &mut impl BufMut, name: &str, fields: &str) {
        let data = format!(r#"{{"type":"{name}","sequence_number":{}{fields}}}"#, self.sequence);
        self.sequence += 1;
        write_event(out, name, &data);
    }
}

impl Piece {
    fn delta_event(self) -> &'static str {
        match self {
            Self::Reasoning => "response.reasoning_text.delta",
            Self::Text => "response.output_text.delta",
            Self::Refusal => "response.refusal.delta",
        }
    }

    fn done_event(self) -> &'static str {
        match self {
            Self::Reasoning => "response.reasoning_text.done",
            Self::Text => "response.output_text.done",
            Self::Refusal => "response.refusal.done",
        }
    }

    fn text_field(self) -> &'static str {
        if self == Self::Refusal { "refusal" } else { "text" }
    }

    fn part_json(self, text: &str, logprobs: &str) -> String {
        let text = encode_string(text);
        match self {
            Self::Reasoning => format!(r#"{{"type":"reasoning_text","text":{text}}}"#),
            Self::Text => {
                format!(r#"{{"type":"output_text","text":{text},"annotations":[],"logprobs":[{logprobs}]}}"#)
            }
            Self::Refusal => format!(r#"{{"type":"refusal","refusal":{text}}}"#),
        }
    }
}

/// Appends to JSON texts that are separated by commas.
fn append_json(list: &mut String, more: &str) {
    if !list.is_empty() && !more.is_empty() {
        list.push(',');
    }
    list.push_str(more);
}

fn item_fields(id: &str, index: usize) -> String {
    format!(r#","item_id":"{id}","output_index":{index}"#)
}

fn message_item(id: &str, status: &str, part: &str) -> String {
    format!(r#"{{"id":"{id}","type":"message","role":"assistant","content":[{part}],"status":"{status}"}}"#)
}

fn reasoning_item(id: &str, status: &str, sealed: Option<&str>, part: &str) -> String {
    let sealed = sealed.map_or_else(|| "null".to_owned(), encode_string);
    format!(
        r#"{{"id":"{id}","type":"reasoning","summary":[],"content":[{part}],"encrypted_content":{sealed},"status":"{status}"}}"#
    )
}

fn namespace_field(tool: &NamedTool) -> String {
    let field = |namespace: &String| format!(r#","namespace":{}"#, encode_string(namespace));
    tool.namespace.as_ref().map_or_else(String::new, field)
}
