//! Writes errors in Anthropic's format, with the words by which Claude Code recognises an overflow.
//!
//! Called by `relay` and `events`.

use super::super::client_program::ClientProgram;
use super::super::error_reply::{ErrorReply, is_final, is_overflow};
use super::super::overflow::read_overflow;
use wire::{ApiError, encode_string};

/// Writes the error as an HTTP reply with the header that says whether to try again.
pub fn http_error(error: &ApiError, program: ClientProgram, request_id: &str) -> ErrorReply {
    let mut headers = vec![("request-id", request_id.to_owned())];
    if is_final(error) {
        headers.push(("x-should-retry", "false".to_owned()));
    }
    let status = if is_retried_with_changes(error, program) { 500 } else { final_status(error, program) };
    let error = ApiError { status: final_status(error, program), ..error.clone() };
    ErrorReply { status, headers, body: error_json(&error, request_id) }
}

/// Returns true for an error that Claude Code would repeat: it ignores the `x-should-retry` of a 400 or 422
/// and tries six times with fewer beta features.
fn is_retried_with_changes(error: &ApiError, program: ClientProgram) -> bool {
    program == ClientProgram::ClaudeCode && matches!(error.status, 400 | 422) && !is_overflow(error)
}

/// Returns the status of an error that a client must not repeat. With the header, Claude Code does not repeat
/// a 500 (otherwise twelve times), but it still repeats an overloaded server (503, 529) and a rate limit,
/// because of the error's type. Qwen Code and the AI SDK always repeat 429 and 5xx (measured on 2.1.330,
/// 0.24.4 and 7.0.173).
pub fn final_status(error: &ApiError, program: ClientProgram) -> u16 {
    match (program, error.status) {
        _ if !is_final(error) => error.status,
        (ClientProgram::ClaudeCode, 408 | 409 | 429 | 503 | 504 | 529) => 500,
        (ClientProgram::QwenCode | ClientProgram::AiSdk, 429 | 500..) => 422,
        (_, status) => status,
    }
}

/// Writes the error's JSON, which is the same in a body and in an `error` event.
pub fn error_json(error: &ApiError, request_id: &str) -> String {
    let message = if is_overflow(error) { overflow_message(error) } else { error.message.clone() };
    format!(
        r#"{{"type":"error","error":{{"type":"{}","message":{}}},"request_id":{}}}"#,
        error_type(error.status),
        encode_string(&message),
        encode_string(request_id),
    )
}

fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Writes the message of an overflow: "prompt is too long" makes Claude Code compact the conversation.
fn overflow_message(error: &ApiError) -> String {
    let numbers = read_overflow(&error.message, None).and_then(|found| {
        let window = found.window?;
        let prompt = found.prompt.or_else(|| Some(window + found.over?)).filter(|prompt| *prompt > window);
        Some((prompt?, window))
    });
    match numbers {
        Some((prompt, window)) => format!("prompt is too long: {prompt} tokens > {window} maximum"),
        None => format!("prompt is too long: {}", error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ErrorCode;

    #[test]
    fn an_overflow_makes_claude_code_compact() {
        let says = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.";
        let error = ApiError::new(400, ErrorCode::ContextLengthExceeded, says);
        let reply = http_error(&error, ClientProgram::ClaudeCode, "req_1");
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 5000 tokens > 4096 maximum"},"request_id":"req_1"}"#
            )
        );
        let error = ApiError::new(400, ErrorCode::ContextLengthExceeded, "no numbers");
        assert!(error_json(&error, "req_1").contains("prompt is too long: no numbers"));
    }

    #[test]
    fn what_is_final_is_not_repeated() {
        let reply = |status, caller| {
            let reply = http_error(&ApiError::new(status, None, "what"), caller, "req_1");
            (reply.status, reply.headers.len())
        };
        assert_eq!(reply(422, ClientProgram::ClaudeCode), (500, 2));
        assert_eq!(reply(400, ClientProgram::Other), (400, 2));
        assert_eq!(reply(502, ClientProgram::Other), (502, 2));
        assert_eq!(reply(429, ClientProgram::ClaudeCode), (429, 1));
        assert_eq!(reply(503, ClientProgram::ClaudeCode), (500, 2));
        assert_eq!(reply(503, ClientProgram::QwenCode), (422, 2));
        assert_eq!(reply(422, ClientProgram::QwenCode), (422, 2));
        assert_eq!(reply(503, ClientProgram::AiSdk), (422, 2));
        assert_eq!(reply(503, ClientProgram::Other), (503, 2));
    }

    #[test]
    fn each_status_has_its_type() {
        let kinds: Vec<&str> = [400, 401, 403, 404, 413, 422, 429, 500, 503, 529].map(error_type).to_vec();
        assert_eq!(
            kinds.join(" "),
            "invalid_request_error authentication_error permission_error not_found_error request_too_large invalid_request_error rate_limit_error api_error overloaded_error overloaded_error"
        );
    }
}
