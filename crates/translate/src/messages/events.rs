//! Writes a turn as the events of a Messages stream, and as the message object.
//!
//! Claude Code needs `content_block_stop`; `ping` is the heartbeat. Both forms of a reply come from the same
//! blocks. Called by `server`.

use std::sync::Arc;

use bytes::BufMut;

use super::super::ids::Ids;
use super::super::items::{ItemEvents, Items, Proof};
use super::super::plain_turn::STOP_REASON;
use super::super::sealed::Sealer;
use super::errors::error_json;
use super::request::{AskedMessage, ShownThinking};
use wire::sse::write_event;
use wire::turn::{FinishReason, ItemEnd, ItemKind, ToolCall, TurnEnd, TurnEvent, Usage};
use wire::{ApiError, decode_string, encode_string};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Thinking,
    Text,
}

#[derive(Debug)]
struct OpenBlock {
    piece: Piece,
    text: String,
}

/// Writes one message.
#[derive(Debug)]
pub struct MessageEvents {
    asked: AskedMessage,
    items: Items,
    id: String,
    /// The expected tokens of the prompt, which Anthropic sends at the beginning.
    expected_prompt: u64,
    blocks: Vec<String>,
    open: Option<OpenBlock>,
    refused: bool,
    /// True when the turn has ended and no event may follow.
    closed: bool,
    ended: Option<String>,
}

impl MessageEvents {
    /// Begins a message. `expected_prompt`: an estimate of the prompt's tokens, or 0.
    pub fn new(asked: AskedMessage, sealer: Arc<Sealer>, mut ids: Ids, expected_prompt: u64) -> Self {
        let id = ids.id_with_prefix("msg_");
        let proof = if asked.thinking == ShownThinking::Text { Proof::Signature } else { Proof::Seal };
        Self {
            asked,
            items: Items::new(ids, sealer, proof),
            id,
            expected_prompt,
            blocks: vec![],
            open: None,
            refused: false,
            closed: false,
            ended: None,
        }
    }

    /// Returns the message's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sets the model that answers, if it is another one than was asked. A stream names it in its first event
    /// only.
    pub fn set_model(&mut self, model: String) {
        self.asked.model = model;
    }

    /// Returns the whole message object, once the turn has ended.
    pub fn message_json(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Writes the first event.
    pub fn begin(&mut self, out: &mut impl BufMut) {
        let usage = Usage { prompt: self.expected_prompt, ..Usage::default() };
        let message = self.message_object("null", "null", &usage);
        write_event(out, "message_start", &format!(r#"{{"type":"message_start","message":{message}}}"#));
    }

    /// Writes an event without news, which resets every client's watchdog.
    pub fn heartbeat(&self, out: &mut impl BufMut) {
        write_event(out, "ping", r#"{"type":"ping"}"#);
    }

    /// Writes one event of the turn. Events after its end are dropped.
    pub fn write(&mut self, event: &TurnEvent, out: &mut impl BufMut) {
        if self.closed {
            return;
        }
        match event {
            TurnEvent::Reasoning(_) if self.asked.thinking == ShownThinking::Nothing => return,
            // In this API a refusal is a text with its own stop reason.
            TurnEvent::Refusal(text) => {
                self.refused = true;
                return self.write(&TurnEvent::Content(text.clone()), out);
            }
            _ => {}
        }
        let ItemEvents { before, after } = self.items.item_events(event);
        before.iter().for_each(|event| self.write_single(event, out));
        self.write_single(event, out);
        after.iter().for_each(|event| self.write_single(event, out));
    }

    fn write_single(&mut self, event: &TurnEvent, out: &mut impl BufMut) {
        match event {
            TurnEvent::ItemBegun(kind, _) => self.begin_item(*kind, out),
            TurnEvent::ItemEnded(end) => self.close_block(end, out),
            TurnEvent::Reasoning(text) | TurnEvent::Content(text) => self.write_text(text, out),
            TurnEvent::ToolCall(call) => self.write_call(call, out),
            TurnEvent::Finish(end) => self.write_finish(end, out),
            TurnEvent::Refusal(_) | TurnEvent::Begun | TurnEvent::Progress(_) | TurnEvent::Note(_) => {}
        }
    }

    fn write_finish(&mut self, end: &TurnEnd, out: &mut impl BufMut) {
        self.closed = true;
        let said = end.kept.choice.iter().find(|(key, _)| key == STOP_REASON);
        let stopped_by = said.and_then(|(_, json)| decode_string(json));
        let stop_sequence = stopped_by.as_deref().filter(|_| end.reason == FinishReason::Stop);
        let reason = match (end.reason, stop_sequence) {
            _ if self.refused => "\"refusal\"",
            (FinishReason::Stop, Some(_)) => "\"stop_sequence\"",
            (FinishReason::Stop, None) => "\"end_turn\"",
            (FinishReason::ToolCalls, _) => "\"tool_use\"",
            (FinishReason::Length, _) if end.fills_window => "\"model_context_window_exceeded\"",
            (FinishReason::Length, _) => "\"max_tokens\"",
            (FinishReason::ContentFilter, _) => "\"refusal\"",
        };
        let sequence = stop_sequence.map_or_else(|| "null".to_owned(), encode_string);
        let usage = end.usage.unwrap_or(Usage { prompt: self.expected_prompt, ..Usage::default() });
        let counts = usage_json(&usage);
        let delta = format!(r#"{{"stop_reason":{reason},"stop_sequence":{sequence}}}"#);
        let data = format!(r#"{{"type":"message_delta","delta":{delta},"usage":{counts}}}"#);
        write_event(out, "message_delta", &data);
        write_event(out, "message_stop", r#"{"type":"message_stop"}"#);
        self.ended = Some(self.message_object(reason, &sequence, &usage));
    }

    /// Ends a turn that failed after its beginning.
    pub fn fail(&mut self, error: &ApiError, request_id: &str, out: &mut impl BufMut) {
        if !std::mem::replace(&mut self.closed, true) {
            write_event(out, "error", &error_json(error, request_id));
        }
    }

    fn begin_item(&mut self, kind: ItemKind, out: &mut impl BufMut) {
        let (piece, block) = match kind {
            ItemKind::Reasoning => (Piece::Thinking, r#"{"type":"thinking","thinking":"","signature":""}"#),
            ItemKind::Text | ItemKind::Refusal => (Piece::Text, r#"{"type":"text","text":""}"#),
            ItemKind::Call => return,
        };
        self.write_block_start(block, out);
        self.open = Some(OpenBlock { piece, text: String::new() });
    }

    fn write_text(&mut self, text: &str, out: &mut impl BufMut) {
        if text.is_empty() {
            return;
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let (piece, text) = (open.piece, encode_string(text));
        match piece {
            Piece::Text => self.write_delta(&format!(r#"{{"type":"text_delta","text":{text}}}"#), out),
            Piece::Thinking if self.asked.thinking == ShownThinking::Text => {
                self.write_delta(&format!(r#"{{"type":"thinking_delta","thinking":{text}}}"#), out);
            }
            Piece::Thinking => {}
        }
    }

    fn close_block(&mut self, end: &ItemEnd, out: &mut impl BufMut) {
        let Some(OpenBlock { piece, text }) = self.open.take() else { return };
        let block = match piece {
            Piece::Text => format!(r#"{{"type":"text","text":{}}}"#, encode_string(&text)),
            Piece::Thinking => {
                let shown = if self.asked.thinking == ShownThinking::Text { text.as_str() } else { "" };
                let signature = encode_string(end.signature.as_deref().unwrap_or_default());
                self.write_delta(&format!(r#"{{"type":"signature_delta","signature":{signature}}}"#), out);
                format!(
                    r#"{{"type":"thinking","thinking":{},"signature":{signature}}}"#,
                    encode_string(shown)
                )
            }
        };
        self.write_block_stop(block, out);
    }

    fn write_call(&mut self, call: &ToolCall, out: &mut impl BufMut) {
        let id = encode_string(call.id.as_deref().unwrap_or_default());
        let name = encode_string(&call.name);
        let block = |input: &str| format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#);
        self.write_block_start(&block("{}"), out);
        let arguments = encode_string(&call.arguments);
        self.write_delta(&format!(r#"{{"type":"input_json_delta","partial_json":{arguments}}}"#), out);
        self.write_block_stop(block(&call.arguments), out);
    }

    fn write_block_start(&self, block: &str, out: &mut impl BufMut) {
        let index = self.blocks.len();
        let data = format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#);
        write_event(out, "content_block_start", &data);
    }

    fn write_delta(&self, delta: &str, out: &mut impl BufMut) {
        let index = self.blocks.len();
        let data = format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#);
        write_event(out, "content_block_delta", &data);
    }

    fn write_block_stop(&mut self, block: String, out: &mut impl BufMut) {
        let index = self.blocks.len();
        write_event(
            out,
            "content_block_stop",
            &format!(r#"{{"type":"content_block_stop","index":{index}}}"#),
        );
        self.blocks.push(block);
    }

    fn message_object(&self, stop_reason: &str, stop_sequence: &str, usage: &Usage) -> String {
        format!(
            r#"{{"id":"{}","type":"message","role":"assistant","model":{},"content":[{}],"stop_reason":{stop_reason},"stop_sequence":{stop_sequence},"usage":{}}}"#,
            self.id,
            encode_string(&self.asked.model),
            self.blocks.join(","),
            usage_json(usage),
        )
    }
}

/// Writes Anthropic's `usage`, which counts tokens from and to the cache separately.
fn usage_json(usage: &Usage) -> String {
    let cached = usage.cached.unwrap_or_default().min(usage.prompt);
    let written = usage.cache_written.unwrap_or_default().min(usage.prompt - cached);
    format!(
        r#"{{"input_tokens":{},"cache_creation_input_tokens":{written},"cache_read_input_tokens":{cached},"output_tokens":{}}}"#,
        usage.prompt - cached - written,
        usage.completion,
    )
}
