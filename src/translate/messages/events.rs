//! A turn as the events of a Messages stream, and as the message object.
//!
//! `content_block_stop` is what Claude Code cannot do without; `ping` is the heartbeat. Both forms of a reply come from the same
//! blocks. Called by `server`.

use std::sync::Arc;

use bytes::BufMut;

use super::super::chunk_events::STOP_REASON;
use super::super::ids::Ids;
use super::super::sealed::Sealer;
use super::super::synthesize::Reply;
use super::errors::error_json;
use super::request::{AskedMessage, ShownThinking};
use crate::sse::write_event;
use crate::turn::{FinishReason, ToolCall, TurnEvent, Usage};
use crate::wire::{ApiError, decode_string, encode_string};

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
    sealer: Arc<Sealer>,
    id: String,
    /// What the prompt is expected to cost, in tokens: Anthropic tells it at the beginning.
    expected_prompt: u64,
    blocks: Vec<String>,
    open: Option<OpenBlock>,
    refused: bool,
    /// The stop sequence that the model wrote.
    stopped_by: Option<String>,
    /// The reply was cut where the model's window ends.
    fills_window: bool,
    /// Nothing leaves any more.
    closed: bool,
    ended: Option<String>,
}

impl MessageEvents {
    /// `expected_prompt`: an estimate of the prompt's tokens, 0 when there is none.
    pub fn new(asked: AskedMessage, sealer: Arc<Sealer>, mut ids: Ids, expected_prompt: u64) -> Self {
        let id = ids.prefixed("msg_");
        Self {
            asked,
            sealer,
            id,
            expected_prompt,
            blocks: vec![],
            open: None,
            refused: false,
            stopped_by: None,
            fills_window: false,
            closed: false,
            ended: None,
        }
    }

    /// The message's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The whole message object, once the turn has ended.
    pub fn message(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// The first event.
    pub fn begin(&mut self, out: &mut impl BufMut) {
        let usage = Usage { prompt: self.expected_prompt, ..Usage::default() };
        let message = self.object("null", "null", &usage);
        write_event(out, "message_start", &format!(r#"{{"type":"message_start","message":{message}}}"#));
    }

    /// An event that says nothing new, and that every client's watchdog takes for life.
    pub fn heartbeat(&self, out: &mut impl BufMut) {
        write_event(out, "ping", r#"{"type":"ping"}"#);
    }

    /// Tells one event of the turn. After its end nothing leaves any more.
    pub fn tell(&mut self, event: &TurnEvent, out: &mut impl BufMut) {
        if self.closed {
            return;
        }
        match event {
            TurnEvent::Reasoning(text) => self.text(Piece::Thinking, text, out),
            TurnEvent::Content(text) => self.text(Piece::Text, text, out),
            TurnEvent::ToolCall(call) => self.call(call, out),
            TurnEvent::Finish { reason, usage } => self.finish(*reason, usage.as_ref(), out),
            TurnEvent::Progress(_) | TurnEvent::Note(_) => {}
        }
    }

    /// Tells a whole reply, its end included.
    pub fn tell_reply(&mut self, reply: &Reply, out: &mut impl BufMut) {
        let Some(choice) = reply.choices.first() else {
            return self.finish(FinishReason::Stop, reply.usage.as_ref(), out);
        };
        let turn = &choice.turn;
        self.text(Piece::Thinking, &turn.reasoning, out);
        self.text(Piece::Text, &turn.content, out);
        if let Some(refusal) = &choice.refusal {
            self.text(Piece::Text, refusal, out);
            self.refused = true;
        }
        turn.calls.iter().for_each(|call| self.call(call, out));
        let said = choice.kept.iter().find(|(key, _)| key == STOP_REASON);
        self.stopped_by = said.and_then(|(_, json)| decode_string(json));
        self.fills_window = choice.fills_window;
        self.finish(turn.finish.unwrap_or(FinishReason::Stop), reply.usage.as_ref(), out);
    }

    /// The model has written this one of the request's stop sequences: the server says so.
    pub fn stopped_by(&mut self, sequence: &str) {
        self.stopped_by = Some(sequence.to_owned());
    }

    /// The reply was cut where the model's window ends: a larger `max_tokens` would not have helped.
    pub fn filled_window(&mut self) {
        self.fills_window = true;
    }

    /// What the model has said is a refusal.
    pub fn refused(&mut self) {
        self.refused = true;
    }

    fn finish(&mut self, reason: FinishReason, usage: Option<&Usage>, out: &mut impl BufMut) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.close(out);
        let stopped_by = self.stopped_by.take();
        let stop_sequence = stopped_by.as_deref().filter(|_| reason == FinishReason::Stop);
        let reason = match (reason, stop_sequence) {
            _ if self.refused => "\"refusal\"",
            (FinishReason::Stop, Some(_)) => "\"stop_sequence\"",
            (FinishReason::Stop, None) => "\"end_turn\"",
            (FinishReason::ToolCalls, _) => "\"tool_use\"",
            (FinishReason::Length, _) if self.fills_window => "\"model_context_window_exceeded\"",
            (FinishReason::Length, _) => "\"max_tokens\"",
            (FinishReason::ContentFilter, _) => "\"refusal\"",
        };
        let sequence = stop_sequence.map_or_else(|| "null".to_owned(), encode_string);
        let usage = usage.copied().unwrap_or(Usage { prompt: self.expected_prompt, ..Usage::default() });
        let told = usage_json(&usage);
        let delta = format!(r#"{{"stop_reason":{reason},"stop_sequence":{sequence}}}"#);
        let data = format!(r#"{{"type":"message_delta","delta":{delta},"usage":{told}}}"#);
        write_event(out, "message_delta", &data);
        write_event(out, "message_stop", r#"{"type":"message_stop"}"#);
        self.ended = Some(self.object(reason, &sequence, &usage));
    }

    /// The turn failed after its beginning.
    pub fn fail(&mut self, error: &ApiError, request_id: &str, out: &mut impl BufMut) {
        if !std::mem::replace(&mut self.closed, true) {
            write_event(out, "error", &error_json(error, request_id));
        }
    }

    fn text(&mut self, piece: Piece, text: &str, out: &mut impl BufMut) {
        if text.is_empty() || (piece == Piece::Thinking && self.asked.thinking == ShownThinking::Nothing) {
            return;
        }
        if self.open.as_ref().is_none_or(|open| open.piece != piece) {
            self.close(out);
            let block = match piece {
                Piece::Thinking => r#"{"type":"thinking","thinking":"","signature":""}"#,
                Piece::Text => r#"{"type":"text","text":""}"#,
            };
            self.started(block, out);
            self.open = Some(OpenBlock { piece, text: String::new() });
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let text = encode_string(text);
        match piece {
            Piece::Text => self.delta(&format!(r#"{{"type":"text_delta","text":{text}}}"#), out),
            Piece::Thinking if self.asked.thinking == ShownThinking::Text => {
                self.delta(&format!(r#"{{"type":"thinking_delta","thinking":{text}}}"#), out);
            }
            Piece::Thinking => {}
        }
    }

    fn close(&mut self, out: &mut impl BufMut) {
        let Some(OpenBlock { piece, text }) = self.open.take() else { return };
        let block = match piece {
            Piece::Text => format!(r#"{{"type":"text","text":{}}}"#, encode_string(&text)),
            Piece::Thinking => {
                let (shown, signature) = match self.asked.thinking {
                    ShownThinking::Text => (text.as_str(), self.sealer.sign(&text)),
                    _ => ("", self.sealer.seal(&text)),
                };
                let signature = encode_string(&signature);
                self.delta(&format!(r#"{{"type":"signature_delta","signature":{signature}}}"#), out);
                format!(
                    r#"{{"type":"thinking","thinking":{},"signature":{signature}}}"#,
                    encode_string(shown)
                )
            }
        };
        self.stopped(block, out);
    }

    fn call(&mut self, call: &ToolCall, out: &mut impl BufMut) {
        self.close(out);
        let id = encode_string(call.id.as_deref().unwrap_or_default());
        let name = encode_string(&call.name);
        let block = |input: &str| format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#);
        self.started(&block("{}"), out);
        let arguments = encode_string(&call.arguments);
        self.delta(&format!(r#"{{"type":"input_json_delta","partial_json":{arguments}}}"#), out);
        self.stopped(block(&call.arguments), out);
    }

    fn started(&self, block: &str, out: &mut impl BufMut) {
        let index = self.blocks.len();
        let data = format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#);
        write_event(out, "content_block_start", &data);
    }

    fn delta(&self, delta: &str, out: &mut impl BufMut) {
        let index = self.blocks.len();
        let data = format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#);
        write_event(out, "content_block_delta", &data);
    }

    fn stopped(&mut self, block: String, out: &mut impl BufMut) {
        let index = self.blocks.len();
        write_event(
            out,
            "content_block_stop",
            &format!(r#"{{"type":"content_block_stop","index":{index}}}"#),
        );
        self.blocks.push(block);
    }

    fn object(&self, stop_reason: &str, stop_sequence: &str, usage: &Usage) -> String {
        format!(
            r#"{{"id":"{}","type":"message","role":"assistant","model":{},"content":[{}],"stop_reason":{stop_reason},"stop_sequence":{stop_sequence},"usage":{}}}"#,
            self.id,
            encode_string(&self.asked.model),
            self.blocks.join(","),
            usage_json(usage),
        )
    }
}

/// Anthropic counts what came from the cache apart.
fn usage_json(usage: &Usage) -> String {
    let cached = usage.cached.unwrap_or_default().min(usage.prompt);
    format!(
        r#"{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{cached},"output_tokens":{}}}"#,
        usage.prompt - cached,
        usage.completion,
    )
}
