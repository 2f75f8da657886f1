//! The form of an error for one client, so that it does not repeat a request in vain and its owner reads the
//! true cause.
//!
//! OpenClaw repeats 5xx, 408 and 429 for a minute or longer, and tries its fallback model only afterwards;
//! after a 422 it does so at once (docs/openclaw-measured.md). opencode repeats an error by its words, aider
//! all but a bad request. Codex understands a stream that fails, Claude Code a status of 500 with
//! `x-should-retry: false` (docs/clients-measured.md). Other clients get the true status, and
//! `x-should-retry: false`.
//! How an API writes an error is `translate`'s. Pure. Every route of `server` uses it where an error leaves.

use std::borrow::Cow;

use relay::{FinalErrors, Wire};
use translate::{
    ClientProgram, ErrorReply, is_harmless_for_openclaw, is_harmless_for_opencode, is_harmless_overflow,
    messages, openai_error, responses,
};
use wire::{ApiError, Cause, ErrorCode};

/// The status that ends a turn in OpenClaw without a repeat.
const FINAL: u16 = 422;
/// The only status that ends one in aider.
const BAD_REQUEST: u16 = 400;
/// By these words in its text, `LiteLLM` takes an error in a stream for a bad request.
const BAD_REQUEST_FOR_LITELLM: &str = "invalid_request_error";

/// The form of errors for one client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorForm {
    /// The API that the client speaks.
    pub(super) wire: Wire,
    /// The program that asked.
    pub(super) program: ClientProgram,
    /// The form that the configuration asks for.
    pub(super) final_errors: FinalErrors,
}

impl ErrorForm {
    /// Returns the program, if errors differ for it: they do not where the owner wants plain ones.
    fn program(self) -> ClientProgram {
        match self.final_errors {
            FinalErrors::Auto => self.program,
            FinalErrors::Plain => ClientProgram::Other,
        }
    }

    /// Returns the error with the status and the words that the client gets.
    #[must_use]
    pub(super) fn apply_to(self, error: ApiError) -> ApiError {
        match self.program() {
            ClientProgram::OpenClaw => openclaw_error(error),
            ClientProgram::OldOpenClaw => old_openclaw_error(error),
            ClientProgram::Opencode => opencode_error(error),
            // On the other APIs the status is enough for them.
            ClientProgram::QwenCode | ClientProgram::AiSdk if self.wire == Wire::Chat => {
                opencode_error(error)
            }
            ClientProgram::Aider => aider_error(error),
            _ => error,
        }
    }

    /// Returns the error with the words that the client gets in a stream of chunks that has begun.
    #[must_use]
    pub(super) fn apply_in_stream(self, error: ApiError) -> ApiError {
        let mut error = self.apply_to(error);
        if self.program() == ClientProgram::Aider && error.status == BAD_REQUEST {
            error.message = format!("{} ({BAD_REQUEST_FOR_LITELLM})", error.message);
        }
        error
    }

    /// Returns the applied error as an HTTP reply. `request_id`: Anthropic's clients read it in the body.
    pub(super) fn error_reply(self, error: &ApiError, request_id: &str) -> ErrorReply {
        match self.wire {
            Wire::Chat | Wire::Responses => openai_error(error, self.program()),
            Wire::Messages => messages::http_error(error, self.program(), request_id),
        }
    }

    /// Returns true if the client of a request for a stream understands a stream that fails better than a
    /// status.
    pub(super) fn fails_as_stream(self, error: &ApiError) -> bool {
        self.wire == Wire::Responses && responses::fails_as_stream(error, self.program())
    }

    /// Returns the error as the end of a stream that has begun, and the `code` of its event where the API
    /// has such codes. OpenClaw finds the status of these errors only at the beginning of their text, and
    /// repeats a request whose error has none (measured on 2026.9.6).
    pub(super) fn apply_at_end(self, error: ApiError) -> (ApiError, Cow<'static, str>) {
        let mut error = self.apply_to(error);
        let names_status = self.program().is_openclaw() && error.is_final;
        let code = match self.wire {
            Wire::Responses if names_status => error.status.to_string().into(),
            _ => responses::failure_code(&error, self.program()).into(),
        };
        if self.wire == Wire::Messages && names_status {
            error.message = format!("{} {}", error.status, error.message);
        }
        if self.wire == Wire::Messages {
            error.status = messages::final_status(&error, self.program());
        }
        (error, code)
    }
}

/// Returns the error in a form that OpenClaw does not repeat, in words that it shows to its owner unchanged.
/// An error that asks OpenClaw to shorten the conversation stays as it is. After the end of respool, and
/// while its store is away, OpenClaw should try again.
fn openclaw_error(error: ApiError) -> ApiError {
    match error.code {
        Some(ErrorCode::ShuttingDown) => error,
        Some(ErrorCode::StoreFailed) => {
            let message = "the store of respool cannot be used at the moment; its log says why".to_owned();
            ApiError { message, ..error }
        }
        Some(ErrorCode::ContextLengthExceeded) if is_harmless_overflow(&error.message) => error,
        Some(ErrorCode::ContextLengthExceeded) => {
            let message =
                "This model's maximum context length is exceeded; please reduce the length of the messages.";
            ApiError { message: message.to_owned(), ..error }
        }
        code => {
            let repeated = matches!(error.status, 401..=403 | 408 | 413 | 429 | 500..);
            let status = if repeated { FINAL } else { error.status };
            let plain = ApiError::new(status, code, harmless_text(&error, is_harmless_for_openclaw));
            ApiError { param: error.param, is_final: true, cause: error.cause, ..plain }
        }
    }
}

/// Returns the error for the old client. After an upstream's failure it tries its fallback model only when
/// the text contains words that it knows (measured on 2026.2.26).
fn old_openclaw_error(error: ApiError) -> ApiError {
    let mut error = openclaw_error(error);
    if error.status == FINAL && error.cause.as_ref().is_some_and(|cause| cause.is_failure) {
        let end = if error.message.ends_with(['.', '!', '?']) { "" } else { "." };
        error.message.push_str(end);
        error.message.push_str(" Another server for this model does not exist.");
    }
    error
}

/// Returns a final error in a form that aider does not repeat.
fn aider_error(error: ApiError) -> ApiError {
    let shown = opencode_error(error);
    if shown.status == FINAL { ApiError { status: BAD_REQUEST, ..shown } } else { shown }
}

/// Returns a final error in a form that opencode, Qwen Code and programs made with the AI SDK do not repeat.
/// An overflow stays, because opencode shortens the conversation after it.
fn opencode_error(error: ApiError) -> ApiError {
    let may_pass = matches!(error.status, 408 | 409 | 429 | 500..);
    let is_kept = matches!(error.code, Some(ErrorCode::ShuttingDown | ErrorCode::ContextLengthExceeded));
    if is_kept || (may_pass && !error.is_final) {
        return error;
    }
    let status = if may_pass { FINAL } else { error.status };
    let code = error.code.filter(|code| is_harmless_for_opencode(code.as_str()));
    let plain = ApiError::new(status, code, harmless_text(&error, is_harmless_for_opencode));
    ApiError { param: error.param, is_final: true, cause: error.cause, ..plain }
}

/// Returns the most informative text that is harmless.
fn harmless_text(error: &ApiError, is_harmless: impl Fn(&str) -> bool) -> String {
    let in_own_words = error.cause.as_deref().map(|Cause { upstream, what, efforts, .. }| {
        let named = format!("the model server `{upstream}` {what}");
        let efforts = if efforts.is_empty() { named.clone() } else { format!("{named} ({efforts})") };
        [efforts, named, format!("the model server {what}")]
    });
    let texts = std::iter::once(error.message.clone()).chain(in_own_words.into_iter().flatten());
    texts
        .into_iter()
        .find(|text| is_harmless(text))
        .unwrap_or_else(|| "the model gave no answer that could be used; respool's log says why".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use upstream::UpstreamError;

    /// Returns the error that OpenClaw gets after an answer with this status and text, these attempts and
    /// seconds.
    fn shown(name: &str, status: u16, said: &str, (asked, waited): (u32, u64)) -> ApiError {
        let cause = UpstreamError::from_answer(name, status, said);
        openclaw_error(cause.with_efforts(asked, Duration::from_secs(waited)))
    }

    #[test]
    fn openclaw_shows_errors_and_repeats_none() {
        let said = [
            "Service Unavailable",
            "rate limit reached, 429",
            "the session expired",
            "connection reset by peer",
            "Internal Server Error at 10.0.0.1:15002",
            "plain words",
        ];
        for said in said {
            for status in [400, 401, 402, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504] {
                for name in ["box", "gpt-500", "timeout"] {
                    let error = shown(name, status, said, (3, 500));
                    assert!(matches!(error.status, 400 | 404 | 409 | FINAL), "{error:?}");
                    assert!(is_harmless_for_openclaw(&error.message), "{}", error.message);
                }
            }
        }
    }

    #[test]
    fn opencode_repeats_no_final_error() {
        for said in ["Service Unavailable", "rate limit reached, 429", "Internal Server Error", "plain words"]
        {
            for status in [400, 401, 404, 408, 429, 500, 502, 503, 504] {
                let cause = UpstreamError::from_answer("box", status, said);
                let error = opencode_error(cause.with_efforts(3, Duration::from_secs(500)));
                let body = openai_error(&error, ClientProgram::Opencode).body;
                assert!(is_harmless_for_opencode(&body) && error.status < 429, "{body}");
            }
        }
        let cause = UpstreamError::from_answer("box", 500, "CUDA error: an illegal memory access");
        let shown = opencode_error(cause.with_efforts(3, Duration::ZERO)).message;
        assert_eq!(shown, "upstream `box` failed: CUDA error: an illegal memory access (asked 3 times)");
    }

    #[test]
    fn aider_gets_final_errors_as_bad_requests() {
        let cause = UpstreamError::from_answer("box", 429, "Too many requests");
        let busy = cause.with_efforts(3, Duration::from_secs(8));
        let shown = |program, wire| {
            let form = ErrorForm { wire, program, ..ErrorForm::default() };
            let error = form.apply_in_stream(busy.clone());
            (error.status, error.message)
        };
        let text = "the model server `box` is busy (asked 3 times; respool waited 8 s for it)";
        assert_eq!(shown(ClientProgram::Aider, Wire::Chat), (400, format!("{text} (invalid_request_error)")));
        for program in [ClientProgram::QwenCode, ClientProgram::AiSdk, ClientProgram::Opencode] {
            assert_eq!(shown(program, Wire::Chat), (422, text.to_owned()));
        }
        assert_eq!(
            shown(ClientProgram::AiSdk, Wire::Responses).0,
            429,
            "its status is changed where it leaves"
        );
        let form = ErrorForm { program: ClientProgram::Aider, ..ErrorForm::default() };
        let overflow =
            ApiError::new(400, ErrorCode::ContextLengthExceeded, "This model's maximum context length is 1.");
        assert_eq!(form.apply_to(overflow.clone()), overflow);
    }

    #[test]
    fn harmful_words_give_way_to_the_cause() {
        let check = |status, said, tried, expected| {
            assert_eq!(shown("box", status, said, tried).message, expected);
        };
        check(
            500,
            "CUDA error: an illegal memory access",
            (3, 0),
            "upstream `box` failed: CUDA error: an illegal memory access (asked 3 times)",
        );
        check(
            503,
            "Service Unavailable",
            (1, 60),
            "the model server `box` answered that it is unavailable (respool waited 60 s for it)",
        );
        check(
            400,
            "the meeting is forbidden",
            (1, 0),
            "the model server `box` refuses this request; its own words are in respool's log if `[log] content = true` is set",
        );
    }

    #[test]
    fn overflows_and_shutdowns_stay_as_they_are() {
        let says = "This model's maximum context length is 10 tokens.";
        let overflow = UpstreamError::from_answer("box", 400, says).error;
        assert_eq!(openclaw_error(overflow.clone()), overflow);
        let echo = UpstreamError::from_answer("box", 400, &format!("{says} You sent: 'unauthorized'")).error;
        assert_eq!((echo.status, openclaw_error(echo.clone()).code), (400, echo.code));
        assert!(!openclaw_error(echo).message.contains("unauthorized"));
        let stopping = ApiError::new(503, ErrorCode::ShuttingDown, "respool is being stopped");
        assert_eq!(openclaw_error(stopping.clone()), stopping);
        let away = openclaw_error(ApiError::new(503, ErrorCode::StoreFailed, "connection refused"));
        assert!(away.status == 503 && is_harmless_for_openclaw(&away.message), "{away:?}");
    }

    #[test]
    fn other_clients_get_the_true_error() {
        let error = UpstreamError::from_answer("box", 503, "Service Unavailable").error;
        for (program, final_errors) in [
            (ClientProgram::Other, FinalErrors::Auto),
            (ClientProgram::Agent, FinalErrors::Auto),
            (ClientProgram::Codex, FinalErrors::Auto),
            (ClientProgram::OpenClaw, FinalErrors::Plain),
        ] {
            let form = ErrorForm { program, final_errors, ..ErrorForm::default() };
            assert_eq!(form.apply_to(error.clone()), error);
        }
        let form = ErrorForm { program: ClientProgram::OpenClaw, ..ErrorForm::default() };
        assert_eq!(form.apply_to(error).status, FINAL);
    }

    #[test]
    fn old_openclaw_falls_back_after_failures_only() {
        let old = |status| {
            let cause = UpstreamError::from_answer("box", status, "no");
            old_openclaw_error(cause.with_efforts(1, Duration::ZERO)).message
        };
        let of_sentence = UpstreamError::from_answer("box", 503, "It ended.").with_efforts(1, Duration::ZERO);
        assert!(!old_openclaw_error(of_sentence).message.contains(".."));
        assert!(old(503).ends_with(". Another server for this model does not exist."));
        assert!(!old(400).contains("Another server"));
    }

    /// The errors that clients treat differently.
    fn errors() -> Vec<(&'static str, ApiError)> {
        let answered = |status, text| {
            let cause = UpstreamError::from_answer("box", status, text);
            cause.with_efforts(3, Duration::from_mins(1))
        };
        let own = |status, code| ApiError::new(status, code, "what happened");
        vec![
            ("the server refuses the request", answered(400, "temperature must be non-negative")),
            ("the window is full", answered(400, "This model's maximum context length is 10 tokens.")),
            ("no such model", own(404, ErrorCode::ModelNotFound)),
            ("the model gave no answer", own(422, ErrorCode::NoAnswer)),
            ("the server says 429", answered(429, "Too many requests")),
            ("the server says 500", answered(500, "EngineCore encountered an issue.")),
            ("a gateway says 502", answered(502, "Bad Gateway")),
            ("the server is overloaded", answered(503, "overloaded")),
            ("the key's limit is reached", own(429, ErrorCode::KeyLimitReached)),
            ("the queue is full", own(503, ErrorCode::QueueFull)),
            ("respool is being stopped", own(503, ErrorCode::ShuttingDown)),
        ]
    }

    /// Returns the error as the client gets it: before the head of a stream has left, and after.
    fn seen(form: ErrorForm, error: &ApiError) -> String {
        let (end, code) = form.apply_at_end(error.clone());
        let error = form.apply_to(error.clone());
        let reply = form.error_reply(&error, "req_1");
        let is_final = reply.headers.iter().any(|(name, _)| *name == "x-should-retry");
        let status = format!("{}{}", reply.status, if is_final { " final" } else { "" });
        let before = if form.fails_as_stream(&error) { "stream".to_owned() } else { status };
        let after = match form.wire {
            Wire::Chat => end.status.to_string(),
            Wire::Responses => code.into_owned(),
            Wire::Messages => {
                let body: serde_json::Value =
                    serde_json::from_str(&messages::error_json(&end, "req_1")).unwrap();
                let kind = body["error"]["type"].as_str().unwrap();
                let text = body["error"]["message"].as_str().unwrap();
                let status = text.split(' ').next().filter(|word| word.parse::<u16>().is_ok());
                status.map_or_else(|| kind.to_owned(), |status| format!("{kind}: {status} …"))
            }
        };
        format!("{before:<10} | {after}")
    }

    /// Every error in every API for every program: the status before the head has left, and the end of a
    /// stream after it.
    #[test]
    fn every_client_gets_each_error_in_its_form() {
        use std::fmt::Write as _;
        let programs = [
            ("any", ClientProgram::Other),
            ("OpenClaw", ClientProgram::OpenClaw),
            ("Codex", ClientProgram::Codex),
            ("Claude Code", ClientProgram::ClaudeCode),
            ("Qwen Code", ClientProgram::QwenCode),
            ("AI SDK", ClientProgram::AiSdk),
            ("opencode", ClientProgram::Opencode),
            ("aider", ClientProgram::Aider),
        ];
        let wires = [("chat", Wire::Chat), ("responses", Wire::Responses), ("messages", Wire::Messages)];
        let mut table = String::new();
        for (error_name, error) in errors() {
            writeln!(table, "{error_name}").unwrap();
            for (wire_name, wire) in wires {
                for (program_name, program) in programs {
                    let form = ErrorForm { wire, program, final_errors: FinalErrors::Auto };
                    writeln!(table, "  {wire_name:<9} | {program_name:<11} | {}", seen(form, &error))
                        .unwrap();
                }
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn plain_errors_are_the_same_for_every_program() {
        for wire in [Wire::Chat, Wire::Responses, Wire::Messages] {
            for (name, error) in errors() {
                let seen_by =
                    |program| seen(ErrorForm { wire, program, final_errors: FinalErrors::Plain }, &error);
                for program in [ClientProgram::OpenClaw, ClientProgram::Codex, ClientProgram::ClaudeCode] {
                    assert_eq!(seen_by(program), seen_by(ClientProgram::Other), "{name}");
                }
            }
        }
    }
}
