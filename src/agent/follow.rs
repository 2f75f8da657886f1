//! Follows a model's reply to its end, whichever way the relay gives it, and tells of the pieces of a stream as they come.
//! Called by `driver`.

use bytes::Bytes;
use serde_json::Value;

use super::happening::{Audience, Happening};
use crate::relay::{Batch, Feed, Opened};
use crate::sse::{DONE, Frames};
use crate::translate::Reply;
use crate::turn::{FinishReason, Turn};
use crate::wire::{ApiError, Completion};

/// The relay bounds its own frames; these are those that it wrote.
const LARGEST_FRAME: usize = usize::MAX;

/// The first choice of a reply, with what the reply cost.
///
/// # Errors
/// When the stream breaks off, or the reply cannot be read.
pub(super) async fn turn(opened: Opened, audience: &Audience) -> Result<Turn, ApiError> {
    match opened {
        Opened::Reply(reply) => Ok(of_reply(*reply)),
        Opened::Body(body) => of_body(&body),
        Opened::Feed(feed) => of_feed(*feed, audience).await,
    }
}

fn of_reply(reply: Reply) -> Turn {
    let turn = reply.choices.into_iter().next().map(|choice| choice.turn).unwrap_or_default();
    Turn { usage: reply.usage, ..turn }
}

/// A completion without tools, as it would have left for a client.
fn of_body(body: &Bytes) -> Result<Turn, ApiError> {
    let unreadable = || ApiError::new(502, "upstream_invalid_json", "the reply is no chat completion");
    let text = std::str::from_utf8(body).map_err(|_| unreadable())?;
    let completion = Completion::parse(text, &[]).map_err(|_| unreadable())?;
    let message: Value = serde_json::from_str(text).map_err(|_| unreadable())?;
    let mut turn = Turn { usage: completion.usage, ..Turn::default() };
    add(&mut turn, &message["choices"][0], "message", &|_| {});
    Ok(turn)
}

async fn of_feed(mut feed: Feed, audience: &Audience) -> Result<Turn, ApiError> {
    let mut frames = Frames::new(LARGEST_FRAME);
    let mut turn = Turn::default();
    loop {
        match feed.batch().await {
            Batch::Bytes(bytes) => frames.push(bytes),
            Batch::Failed(error) => return Err(error),
            Batch::End => break,
        }
        while let Ok(Some(frame)) = frames.next_frame() {
            let Ok(Some(data)) = frame.data() else { continue };
            if data.trim() != DONE
                && let Ok(chunk) = serde_json::from_str::<Value>(&data)
            {
                add(&mut turn, &chunk["choices"][0], "delta", audience);
            }
        }
    }
    let usage = feed.usage();
    // The engine's turn knows more than its chunks tell.
    Ok(Turn { usage, ..feed.turn().unwrap_or(turn) })
}

/// Adds a delta, or a whole message.
fn add(turn: &mut Turn, choice: &Value, key: &str, audience: &Audience) {
    let text = |name: &str| choice[key][name].as_str().filter(|text| !text.is_empty());
    if let Some(text) = text("reasoning_content").or_else(|| text("reasoning")) {
        turn.reasoning.push_str(text);
        audience(Happening::Reasoning(text));
    }
    if let Some(text) = text("content") {
        turn.content.push_str(text);
        audience(Happening::Content(text));
    }
    if let Some(reason) = choice["finish_reason"].as_str() {
        turn.finish = Some(FinishReason::resolve(Some(reason), false));
    }
}
