//! Whole replies: reads them as turns where the engine is wanted, and else prunes them on their way through.
//! Called by `exchange`.

use bytes::{Buf as _, Bytes};

use super::request::{ClientRequest, ReplyForm};
use telemetry::RequestRecord;
use translate::{
    Ids, PrunedCompletion, Reply, ReplyRules, correctable_calls, interpret_completion, prune_completion,
};
use upstream::{UpstreamError, UpstreamResponse, UpstreamResult, shorten_body};
use wire::turn::FinishReason;
use wire::{Completion, ErrorCode, Object, is_empty_array};

/// Some servers begin a JSON text with it, which RFC 8259 forbids them and lets a reader forgive.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns the body of an answer that may be a JSON object; it may still be an error in disguise. The record
/// takes whatever came.
pub(super) async fn json_body(
    mut answer: Box<UpstreamResponse>,
    name: &str,
    max_body: usize,
    record: &RequestRecord,
) -> UpstreamResult<Bytes> {
    let media_type = answer.media_type();
    let is_json = media_type.is_empty() || media_type.ends_with("json");
    let mut body = answer.whole_json(max_body).await?;
    record.content().take_reply(&body);
    if body.starts_with(BYTE_ORDER_MARK) {
        body.advance(BYTE_ORDER_MARK.len());
    }
    if !is_json && !body.trim_ascii_start().starts_with(b"{") {
        let text = text_of(&body, name)?;
        let what = format!(
            "answered with {media_type} instead of JSON ({}); is its `url` right?",
            shorten_body(text)
        );
        return Err(Box::new(UpstreamError::new_broken(name, 502, ErrorCode::UpstreamNotJson, &what, "")));
    }
    Ok(body)
}

/// Returns the error of an answer that should have been a stream of events.
pub(super) async fn not_a_stream(
    mut answer: Box<UpstreamResponse>,
    media_type: &str,
    record: &RequestRecord,
) -> UpstreamError {
    let name = answer.upstream().to_owned();
    let status = answer.status();
    let excerpt = answer.read_excerpt().await;
    record.content().take_upstream_error(&excerpt);
    let what = format!(
        "answered HTTP {} with {} instead of an event stream ({}); is its `url` right?",
        status.as_u16(),
        if media_type.is_empty() { "no content type" } else { media_type },
        shorten_body(&excerpt),
    );
    UpstreamError::new_broken(&name, 502, ErrorCode::UpstreamNotAStream, &what, "")
}

/// Returns a body as a completion.
///
/// # Errors
/// When it is something else; an error that came with status 200 leaves as that error.
pub(super) fn parse_completion(
    body: &[u8],
    name: &str,
    keep: &[String],
) -> Result<Completion, UpstreamError> {
    let text = text_of(body, name)?;
    if let Some(error) = UpstreamError::from_success(name, text) {
        return Err(error);
    }
    Completion::parse(text, keep).map_err(|fault| without_choices(text, name, &fault.to_string()))
}

/// Returns a completion read as turns.
pub(super) fn read_reply(completion: Completion, request: &ClientRequest, token_limit: Option<u64>) -> Reply {
    let mut ids = Ids::new(rand::random(), request.traits.taken_ids.clone());
    let rules = ReplyRules { token_limit, ..request.rules.clone() };
    let mut reply = interpret_completion(completion, &rules, &mut ids);
    request.profile.free_text.remove_mismatches(&mut reply);
    if reply.head.created == 0 {
        reply.head.created = request.profile.created;
    }
    if reply.head.model.is_empty() {
        reply.head.model.clone_from(&request.profile.model);
    }
    reply
}

/// Adds the calls that the client can turn into a correction, in the place of the text that shows them.
pub(super) fn add_correctable_calls(reply: &mut Reply, request: &ClientRequest) {
    let mut ids = Ids::new(rand::random(), request.traits.taken_ids.clone());
    for choice in &mut reply.choices {
        let mut calls = correctable_calls(&choice.turn, &request.rules.tools);
        calls.iter_mut().for_each(|call| call.id = Some(ids.choose_id(None)));
        let Some(first) = calls.first() else { continue };
        if choice.turn.content.trim().starts_with(&first.name) {
            choice.turn.content.clear();
        }
        choice.turn.calls = calls;
        choice.turn.finish = Some(FinishReason::ToolCalls);
    }
}

/// Returns a completion as it leaves, and its token counts.
pub(super) fn prune_body(
    body: Bytes,
    name: &str,
    form: &ReplyForm,
) -> Result<(Bytes, PrunedCompletion), UpstreamError> {
    let text = text_of(&body, name)?;
    let mut pruned = prune_completion(text, form.reasoning, &form.keep)
        .map_err(|fault| not_json(name, &fault.to_string()))?;
    match UpstreamError::from_success(name, text) {
        Some(error) => Err(error),
        None if !pruned.has_choices => Err(without_choices(text, name, "it holds no choices")),
        None => Ok((pruned.text.take().map_or(body, Bytes::from), pruned)),
    }
}

fn text_of<'a>(body: &'a [u8], name: &str) -> Result<&'a str, UpstreamError> {
    std::str::from_utf8(body).map_err(|_| not_json(name, "it is not UTF-8"))
}

fn not_json(name: &str, fault: &str) -> UpstreamError {
    let what = format!("sent a reply that is not a chat completion: {fault}");
    UpstreamError::new_broken(name, 502, ErrorCode::UpstreamInvalidJson, &what, "")
}

/// Returns the error of a success without a choice: the reply is empty, or it is not a completion.
fn without_choices(text: &str, name: &str, fault: &str) -> UpstreamError {
    let object = Object::parse(text).ok();
    if object.is_some_and(|object| object.get("choices").is_some_and(is_empty_array)) {
        return UpstreamError::new_broken(
            name,
            502,
            ErrorCode::NoAnswer,
            "sent a reply without a choice",
            "",
        );
    }
    not_json(name, fault)
}
