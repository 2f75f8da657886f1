//! Errors on the Responses route: OpenAI's error object, or a stream that fails immediately if Codex would
//! repeat the status.
//!
//! Called by `relay`.

use super::super::client_program::ClientProgram;
use super::super::error_reply::{is_busy, is_final, is_overflow};
use wire::{ApiError, ErrorCode};

/// Returns true when a client that asked for a stream understands a failed stream better than a status. Codex
/// shows a 400 as raw JSON, recognises an overflow only in a stream, and repeats other statuses except 429 up
/// to 30 times.
pub fn fails_as_stream(error: &ApiError, program: ClientProgram) -> bool {
    program == ClientProgram::Codex && error.status != 429
}

/// Returns the `code` of `response.failed`. Codex does not repeat `invalid_prompt` and shows its message; it
/// repeats `server_error` and `rate_limit_exceeded` five times.
pub fn failure_code(error: &ApiError, program: ClientProgram) -> &'static str {
    match error.status {
        _ if is_overflow(error) => ErrorCode::ContextLengthExceeded.as_str(),
        _ if program == ClientProgram::Codex && !is_busy(error) => "invalid_prompt",
        429 if program == ClientProgram::QwenCode && is_final(error) => "invalid_prompt",
        429 => "rate_limit_exceeded",
        400..500 => "invalid_prompt",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::error_reply::openai_error;
    use super::*;

    #[test]
    fn final_errors_have_harmless_statuses() {
        for (status, is_final, program, expected) in [
            (429, true, ClientProgram::QwenCode, (422, "invalid_prompt")),
            (429, false, ClientProgram::QwenCode, (429, "rate_limit_exceeded")),
            (502, true, ClientProgram::QwenCode, (422, "server_error")),
            (429, true, ClientProgram::AiSdk, (422, "rate_limit_exceeded")),
            (502, true, ClientProgram::AiSdk, (422, "server_error")),
            (429, true, ClientProgram::Other, (429, "rate_limit_exceeded")),
        ] {
            let error = ApiError { is_final, ..ApiError::new(status, None, "what happened") };
            let found = (openai_error(&error, program).status, failure_code(&error, program));
            assert_eq!(found, expected, "{status} {program:?}");
        }
    }

    #[test]
    fn codex_gets_what_it_does_not_repeat() {
        let error = |status, code| ApiError::new(status, code, "what happened");
        for (error, streamed, codex, other) in [
            (
                error(400, ErrorCode::ContextLengthExceeded),
                true,
                "context_length_exceeded",
                "context_length_exceeded",
            ),
            (error(422, ErrorCode::NoAnswer), true, "invalid_prompt", "invalid_prompt"),
            (error(502, ErrorCode::BrokenReply), true, "invalid_prompt", "server_error"),
            (error(503, ErrorCode::UpstreamUnreachable), true, "invalid_prompt", "server_error"),
            (error(503, ErrorCode::ShuttingDown), true, "server_error", "server_error"),
            (error(429, ErrorCode::QueueFull), false, "rate_limit_exceeded", "rate_limit_exceeded"),
            (error(429, ErrorCode::RateLimitExceeded), false, "invalid_prompt", "rate_limit_exceeded"),
        ] {
            assert_eq!(fails_as_stream(&error, ClientProgram::Codex), streamed, "{error:?}");
            assert_eq!(failure_code(&error, ClientProgram::Codex), codex, "{error:?}");
            assert_eq!(failure_code(&error, ClientProgram::Other), other, "{error:?}");
            assert!(!fails_as_stream(&error, ClientProgram::Other));
        }
    }

    #[test]
    fn a_final_error_says_so() {
        let reply = openai_error(&ApiError::new(502, ErrorCode::BrokenReply, "x"), ClientProgram::Other);
        assert_eq!((reply.status, reply.headers), (502, vec![("x-should-retry", "false".to_owned())]));
        assert!(
            openai_error(&ApiError::new(503, ErrorCode::ShuttingDown, "x"), ClientProgram::Other)
                .headers
                .is_empty()
        );
    }
}
