//! Writes an error as an HTTP reply, and decides for which errors a repeat is useless.
//!
//! Measured on Codex 0.169 and Claude Code 2.1.330: both repeat a 500 or a 422 up to 30 times. An error after
//! respool's own repeats must reach them in a form that they do not repeat. Called by `responses` and
//! `messages`, and by `relay`.

use super::client_program::ClientProgram;
use wire::{ApiError, ErrorCode};

/// An error in its HTTP form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// The status.
    pub status: u16,
    /// Additional headers.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: String,
}

/// Writes the error for clients of OpenAI's APIs. Qwen Code ignores `x-should-retry` and repeats 429
/// and 5xx for more than a minute; the AI SDK ignores it and repeats twice (measured on 0.24.4 and 7.0.173).
pub fn openai_error(error: &ApiError, program: ClientProgram) -> ErrorReply {
    let ignores_header = matches!(program, ClientProgram::QwenCode | ClientProgram::AiSdk);
    let is_repeated = ignores_header && matches!(error.status, 429 | 500..);
    let status = if is_repeated && is_final(error) { 422 } else { error.status };
    ErrorReply { status, headers: retry_headers(error), body: error.to_json() }
}

/// Returns the header that stops an OpenAI client from trying again. Without it, the client repeats only 408,
/// 409, 429 and 5xx.
pub(super) fn retry_headers(error: &ApiError) -> Vec<(&'static str, String)> {
    let is_repeated = matches!(error.status, 408 | 409 | 429 | 500..);
    if error.is_final || (is_repeated && is_final(error)) {
        return vec![("x-should-retry", "false".to_owned())];
    }
    vec![]
}

/// Returns true when respool is busy or restarting, or its store away: the same request may succeed later.
pub(super) fn is_busy(error: &ApiError) -> bool {
    use ErrorCode::{BodiesFull, QueueFull, ResponsesFull, ShuttingDown, StoreFailed};
    matches!(error.code, Some(ShuttingDown | QueueFull | BodiesFull | ResponsesFull | StoreFailed))
}

/// Returns true when a repeat of the request is useless: the request is at fault, or respool has already
/// repeated it and waited for the server.
pub fn is_final(error: &ApiError) -> bool {
    error.is_final || (!is_busy(error) && !matches!(error.status, 408 | 409 | 425 | 429))
}

pub(super) fn is_overflow(error: &ApiError) -> bool {
    error.code == Some(ErrorCode::ContextLengthExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCode::{BodiesFull, QueueFull, ResponsesFull, ShuttingDown, StoreFailed};

    #[test]
    fn what_may_help_later_is_not_final() {
        let finals: Vec<u16> = [400, 401, 404, 408, 413, 422, 429, 500, 502, 503, 504, 529]
            .into_iter()
            .filter(|status| is_final(&ApiError::new(*status, None, "")))
            .collect();
        assert_eq!(finals, [400, 401, 404, 413, 422, 500, 502, 503, 504, 529]);
        for code in [ShuttingDown, QueueFull, BodiesFull, ResponsesFull, StoreFailed] {
            assert!(!is_final(&ApiError::new(503, code, "")), "{code}");
        }
        let final_error = ApiError { is_final: true, ..ApiError::new(429, ErrorCode::RateLimitExceeded, "") };
        assert!(is_final(&final_error));
    }
}
