//! Failures of an upstream, in words that a client can act on.
//!
//! Errors of vLLM (nested, flat, string, `detail`), of proxies before it (HTML) and of the network become
//! one shape; texts are cut and made readable. `server::final_error` adapts them to each client. Called by
//! `client` and `relay`.

use std::sync::LazyLock;
use std::time::Duration;

use memchr::memmem::Finder;
use regex::Regex;

use wire::pattern::compile_pattern;
use wire::{ApiError, Cause, ErrorCode, Object, array_elements};

/// The steps that a caller may take after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Nothing reached the model, and a retry may help at once.
    Transient,
    /// The model wrote something that its server could not read. A retry may help.
    Glitch,
    /// The conversation does not fit the model's window.
    ContextOverflow,
    /// The upstream refuses this request; the same one will be refused again.
    Rejected,
    /// The upstream's answer is not a reply of a model server.
    Fatal,
}

/// A failed upstream call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamError {
    /// The step that a caller may take.
    pub tier: Tier,
    /// The error that the client gets.
    pub error: ApiError,
    /// The upstream's own status, when it answered.
    pub status: Option<u16>,
    /// The refused field, as the upstream named it.
    pub param: Option<String>,
    /// The whole text of the upstream. It may echo the conversation, so it is not logged.
    pub said: String,
    /// The part of the message that may be logged: respool's own words, or a known text of a server.
    pub loggable: String,
    /// The true cause for the log, with details that the client does not need.
    pub internal: String,
    /// The upstream's name; empty when none was asked.
    pub upstream: String,
    /// Whether it came after a head with a success status: the upstream is up, and not starting.
    pub is_after_head: bool,
}

/// A failure of the upstream's own: what decides whether asking it again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be reached. It may be starting.
    Unreachable,
    /// It, or a gateway before it, answered 502 or 503. It may be starting.
    Unavailable,
    /// A gateway before it answered 504: each repeat costs a generation.
    GatewayTimeout,
    /// It answered 429.
    Limited,
    /// It closed the connection without an answer.
    Closed,
    /// It answered with another 5xx.
    Failed,
    /// Its reply broke off or is invalid.
    Broken,
    /// It did not answer within its `timeout`.
    Slow,
    /// The server is no model server, or does not speak its protocol.
    Unusable,
}

/// The longest error text that leaves, in bytes.
const LONGEST: usize = 800;

/// Texts that mean: the server's parser could not read what the model wrote, and threw it away. Sources:
/// openai/harmony#114, vllm#23567, captures of 0.10 to 0.25; llama.cpp's `chat.cpp`, Ollama, LM Studio,
/// `SGLang`.
const GLITCHES: [&str; 11] = [
    "unexpected tokens remaining in message header",
    "while expecting start token",
    "channel marker present but no channel value",
    "list index out of range",
    "harmonyerror",
    "harmony parse",
    "model produced output that does not match",
    "failed to parse input at pos",
    "error parsing tool call",
    "failed to parse tool call",
    "failed to parse reasoning content",
];

/// The beginnings of texts that mean: the conversation does not fit. The same words further inside may be an
/// echo of what was sent. A gateway may put the names of its errors in front. Sources: captures of vLLM 0.13
/// to 0.32, public issues of vLLM ("You passed …"), OpenAI, `SGLang`, llama.cpp, `LiteLLM`.
static OVERFLOW: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?ix)^ (?: [a-z_.]* (?:error|exception) (?: :\ | \ -\ ) )* (?:
            this\ model's\ maximum\ context\ length\ is\ \d
          | input\ length\ \(\d+\)\ exceeds\ model's\ maximum\ context\ length
          | 'max_tokens'\ or\ 'max_completion_tokens'\ is\ too\ large:\ \d+\.\ this\ model's\ maximum\ context\ length\ is\ \d
          | max_tokens\ must\ be\ at\ least\ 1,\ got\ -\d
          | you\ passed\ \d+\ input\ tokens\ and\ requested\ \d+\ output\ tokens\.\ however,\ the\ model's\ context\ length\ is\ only\ \d
          | the\ (?:decoder\ |encoder\ )?prompt\ \(length\ \d+\)\ is\ longer\ than\ the\ maximum\ model\ length
          | the\ input\ \(\d+\ tokens\)\ is\ longer\ than\ the\ model's\ context\ length
          | requested\ token\ count\ exceeds\ the\ model's\ maximum\ context\ length
          | (?:the\ )?request\ (?:\(\d+\ tokens\)\ )?exceeds\ the\ available\ context\ size
          | context\ (?:size|window|length)\ (?:has\ been\ |is\ )?exceeded )",
    )
});

/// The beginnings of texts that mean: there is no such model. Sources: vLLM, OpenAI, Ollama, llama.cpp.
static MODEL_MISSING: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(r#"(?i)^(?:the )?model [`'"][^`'"]*[`'"] (?:does not exist|(?:is |was )?not found)"#)
});

/// One item of a pydantic dump: where, and what is wrong; the rest of such a text echoes the request.
static PYDANTIC: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(r#"'loc': (\([^)]*\)|'[^']*'), 'msg': ("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"#)
});

static TITLE: LazyLock<Regex> = LazyLock::new(|| compile_pattern(r"(?is)<title>\s*(.*?)\s*</title>"));

/// The parts of an error, whatever the shape it came in.
#[derive(Debug, Default)]
struct ErrorBody {
    message: String,
    param: Option<String>,
    code: Option<u16>,
    /// Named as such in `code` (OpenAI) or `type` (llama.cpp).
    is_overflow: bool,
    /// Named as such in `code`.
    is_model_missing: bool,
    /// It is a page, as of a proxy.
    is_page: bool,
}

impl ErrorBody {
    /// Returns the code of a 404: a wrong model, or a wrong path.
    fn not_found_code(&self) -> ErrorCode {
        let names_model = self.is_model_missing || self.param.as_deref() == Some("model");
        if names_model || MODEL_MISSING.is_match(&self.message) {
            ErrorCode::ModelNotFound
        } else {
            ErrorCode::NotFound
        }
    }
}

impl UpstreamError {
    /// Returns an answer with an error status. `name`: the upstream's name in the configuration.
    pub fn from_answer(name: &str, status: u16, body: &str) -> Self {
        let said = read_error_body(body);
        let text = readable_text(&said.message);
        let message = if said.is_page { format!("HTTP {status} with {text}") } else { text };
        let internal = format!("HTTP {status}");
        let (tier, mut error) = judge_failure(name, status, &message, &said);
        error.param.clone_from(&said.param);
        let loggable = match error.code {
            // respool's own words say more than those of the server.
            Some(ErrorCode::UpstreamCredentialsRefused) => error.message.clone(),
            _ => loggable_text(&message),
        };
        Self {
            tier,
            error,
            status: Some(status),
            param: said.param,
            said: said.message,
            loggable,
            internal,
            upstream: name.to_owned(),
            is_after_head: false,
        }
    }

    /// Returns the error of a conversation that does not fit, found by respool itself. `text` contains
    /// nothing of the conversation.
    pub fn overflow(text: String) -> Self {
        Self {
            tier: Tier::ContextOverflow,
            loggable: text.clone(),
            error: ApiError::new(400, ErrorCode::ContextLengthExceeded, text),
            status: None,
            param: None,
            said: String::new(),
            internal: String::new(),
            upstream: String::new(),
            is_after_head: false,
        }
    }

    /// Returns the upstream's own failure; `None` when the request is at fault, or what the model wrote.
    pub fn failure(&self) -> Option<Failure> {
        use ErrorCode as Code;
        match (self.tier, self.status) {
            (Tier::Glitch | Tier::ContextOverflow, _) => return None,
            (Tier::Rejected, status) => return (status == Some(429)).then_some(Failure::Limited),
            (_, Some(500..)) if self.is_after_head => return Some(Failure::Failed),
            (_, Some(502 | 503)) => return Some(Failure::Unavailable),
            (_, Some(504)) => return Some(Failure::GatewayTimeout),
            (_, Some(500..)) => return Some(Failure::Failed),
            (Tier::Transient | Tier::Fatal, _) => {}
        }
        Some(match self.error.code {
            Some(Code::UpstreamUnreachable | Code::UpstreamDns) => Failure::Unreachable,
            Some(Code::UpstreamClosed) => Failure::Closed,
            Some(Code::UpstreamTimeout) => Failure::Slow,
            Some(
                Code::UpstreamBrokeOff
                | Code::UpstreamBadEncoding
                | Code::UpstreamInvalidJson
                | Code::UpstreamInvalidEvent
                | Code::UpstreamEmptyStream
                | Code::NoAnswer,
            ) => Failure::Broken,
            Some(Code::UpstreamError) if self.status.is_none() => Failure::Failed,
            _ => Failure::Unusable,
        })
    }

    /// Returns its text for the log.
    pub fn log_text(&self) -> String {
        let details = if self.internal.is_empty() { String::new() } else { format!(" ({})", self.internal) };
        format!("{}{details}", self.loggable)
    }

    /// Returns the upstream's part in it, once respool has used up its attempts.
    pub fn cause(&self, efforts: String) -> Option<Box<Cause>> {
        let failure = self.failure();
        let what = match (failure, self.tier) {
            (Some(failure), _) => failure.plain_words(),
            (None, Tier::Glitch) => "could not read what its model wrote",
            (None, Tier::ContextOverflow) => return None,
            (None, _) => {
                "refuses this request; its own words are in respool's log if `[log] content = true` is set"
            }
        };
        let (upstream, is_failure) = (self.upstream.clone(), failure.is_some());
        (!upstream.is_empty()).then(|| Box::new(Cause { upstream, what, is_failure, efforts }))
    }

    /// Returns the error as it leaves, with the number of requests sent and the time waited.
    pub fn with_efforts(&self, asked: u32, waited: Duration) -> ApiError {
        let mut efforts = Vec::new();
        if asked > 1 {
            efforts.push(format!("asked {asked} times"));
        }
        if waited >= Duration::from_secs(1) {
            efforts.push(format!("respool waited {} s for it", waited.as_secs()));
        }
        let efforts = efforts.join("; ");
        let mut error = self.error.clone();
        if !efforts.is_empty() && self.failure().is_some() {
            error.message = format!("{} ({efforts})", error.message);
        }
        // All of these a client's library would repeat.
        let is_final = matches!(error.status, 408 | 409 | 425 | 429 | 500..);
        ApiError { is_final, cause: self.cause(efforts), ..error }
    }

    /// Returns the error in the body or the event of a 200; `None` for a reply.
    pub fn from_success(name: &str, body: &str) -> Option<Self> {
        if !may_hold_error(body) {
            return None;
        }
        let object = Object::parse(body).ok()?;
        let flat = object.string("object").as_deref() == Some("error");
        if object.get("error").is_none() && !flat {
            return None;
        }
        let code = read_error_body(body).code.filter(|code| (400..600).contains(code)).unwrap_or(502);
        Some(Self { is_after_head: true, ..Self::from_answer(name, code, body) })
    }

    /// Returns the error of a missing or broken answer. `code` names the fault, `what` describes it for
    /// people.
    pub fn new_broken(
        name: &str,
        status: u16,
        code: ErrorCode,
        what: &str,
        internal: impl Into<String>,
    ) -> Self {
        let message = format!("upstream `{name}` {what}");
        let tier = if status == 503 { Tier::Transient } else { Tier::Fatal };
        let loggable = message.clone();
        let error = ApiError::new(status, code, message);
        Self {
            tier,
            error,
            status: None,
            param: None,
            said: String::new(),
            loggable,
            internal: internal.into(),
            upstream: name.to_owned(),
            is_after_head: false,
        }
    }
}

/// Chooses the status and code that leave.
fn judge_failure(name: &str, status: u16, message: &str, said: &ErrorBody) -> (Tier, ApiError) {
    let lower = message.to_lowercase();
    if said.is_overflow || OVERFLOW.is_match(message) {
        return (
            Tier::ContextOverflow,
            ApiError::new(400, ErrorCode::ContextLengthExceeded, overflow_text(message)),
        );
    }
    let stray_role = lower.contains("unknown role:") && lower.contains("<|");
    if status != 404 && (stray_role || GLITCHES.iter().any(|glitch| lower.contains(glitch))) {
        let text = format!(
            "the model behind upstream `{name}` wrote a reply that its server could not read: {message}"
        );
        return (Tier::Glitch, ApiError::new(502, ErrorCode::ModelGlitch, text));
    }
    match status {
        401..=403 => (Tier::Rejected, refused_credentials(name)),
        404 => (Tier::Rejected, ApiError::new(404, said.not_found_code(), message)),
        429 => (Tier::Rejected, ApiError::new(429, ErrorCode::RateLimitExceeded, message)),
        400..500 => (Tier::Rejected, ApiError::new(status, None, with_hint(message))),
        502..=504 => {
            (Tier::Transient, ApiError::new(status, ErrorCode::UpstreamUnavailable, from(name, message)))
        }
        500..600 => (Tier::Fatal, ApiError::new(status, ErrorCode::UpstreamError, from(name, message))),
        _ => (
            Tier::Fatal,
            ApiError::new(
                502,
                ErrorCode::UpstreamError,
                format!("upstream `{name}` answered HTTP {status}: {message}"),
            ),
        ),
    }
}

/// Returns the error of refused credentials. OpenClaw disables the whole provider for a minute over a 401,
/// 402 or 403; 422 ends this one run and nothing else.
fn refused_credentials(name: &str) -> ApiError {
    ApiError::new(
        422,
        ErrorCode::UpstreamCredentialsRefused,
        format!(
            "the model server `{name}` does not accept the API key that it was sent: the operator of respool has to correct the key \
             of `{name}` (`api_key` in respool.toml). Where respool has none for it, the client's own was sent"
        ),
    )
}

/// Keeps vLLM's wording, because clients depend on it; the one form without information gets a text.
fn overflow_text(message: &str) -> String {
    if message.to_lowercase().contains("context") {
        return message.to_owned();
    }
    format!(
        "This model's maximum context length is exceeded; please reduce the length of the messages. ({message})"
    )
}

/// Texts of servers that contain nothing of the conversation and that readers of the log need.
static HARMLESS: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)--enable-auto-tool-choice|--tool-call-parser|^tool parsing is not available|^This model's maximum context length is \d+|^Input length|^max_tokens|The model `[^`]*` does not exist|^EngineCore encountered|^Unauthorized|^(HTTP \d+ with )?an HTML page|^an empty body|^overloaded$|QueueOverflow|MaxQueuedTokens|^Not Found$|^Method Not Allowed$|^`tools` must not|^Internal server error|^CUDA (error|out of memory)|^CUDA driver error|^NCCL error|^(torch\.)?OutOfMemoryError|must not be an empty array|Stream options can only",
    )
});

/// Returns the part of a server's text that may be logged: most texts echo the request.
fn loggable_text(message: &str) -> String {
    if HARMLESS.is_match(message) {
        return cut_text(message, 300);
    }
    format!("its text ({} bytes) is kept only with `[log] content = true` or `[capture]`", message.len())
}

fn with_hint(message: &str) -> String {
    let names_no_parser =
        ["--enable-auto-tool-choice", "--tool-call-parser", "tool parsing is not available"];
    let hint = if names_no_parser.iter().any(|words| message.contains(words)) {
        " Start vLLM with --enable-auto-tool-choice and --tool-call-parser, or set `tool_parsing = \"raw\"` in respool.toml so that respool reads the calls itself."
    } else {
        ""
    };
    let stop = if hint.is_empty() || message.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{message}{stop}{hint}")
}

fn from(name: &str, message: &str) -> String {
    format!("upstream `{name}` failed: {message}")
}

/// Returns true if a body or an event of a success may be an error. The text is only searched, because
/// replies are long and streams have many events.
pub fn may_hold_error(text: &str) -> bool {
    static FINDER: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(r#""error""#));
    FINDER.find(text.as_bytes()).is_some()
}

/// Returns a short text for a body that is not an answer.
pub fn shorten_body(body: &str) -> String {
    let message = readable_text(&read_error_body(body).message);
    if HARMLESS.is_match(&message) { message } else { format!("{} bytes", body.len()) }
}

fn read_error_body(body: &str) -> ErrorBody {
    let trimmed = body.trim();
    let Ok(object) = Object::parse(trimmed) else {
        let is_page = trimmed.starts_with('<');
        return ErrorBody { message: plain_text(trimmed), is_page, ..ErrorBody::default() };
    };
    let inner = object.get("error").and_then(|text| Object::parse(text).ok());
    let fields = inner.as_ref().unwrap_or(&object);
    let message = fields
        .string("message")
        .or_else(|| object.string("error"))
        .or_else(|| object.string("detail"))
        .or_else(|| object.get("detail").and_then(detail_list))
        .unwrap_or_else(|| trimmed.to_owned());
    let code = fields.number("code").and_then(|code| u16::try_from(code).ok());
    let named = fields.string("code");
    let is_model_missing = named.as_deref() == Some(ErrorCode::ModelNotFound.as_str());
    let is_overflow = named.as_deref() == Some(ErrorCode::ContextLengthExceeded.as_str())
        || fields.string("type").as_deref() == Some("exceed_context_size_error");
    let param = fields.string("param");
    ErrorBody { message, param, code, is_overflow, is_model_missing, is_page: false }
}

/// Reads `FastAPI`'s `detail` list: `[{"loc":[…],"msg":…}]`.
fn detail_list(text: &str) -> Option<String> {
    let items = array_elements(text)?;
    let items = items.iter().filter_map(|item| {
        let item = Object::parse(item).ok()?;
        Some(format!("{}: {}", item.get("loc").unwrap_or("request"), item.string("msg")?))
    });
    Some(items.collect::<Vec<_>>().join("; "))
}

/// Returns a text that is not JSON; a page of a proxy is reduced to its title.
fn plain_text(text: &str) -> String {
    if text.is_empty() {
        return "an empty body".to_owned();
    }
    if !text.starts_with('<') {
        return text.to_owned();
    }
    let title = TITLE.captures(text).map(|found| found[1].to_owned());
    format!("an HTML page{}", title.map_or_else(String::new, |title| format!(" titled {title:?}")))
}

/// Reduces a dump that echoes the request and names files of the server to a few lines.
fn readable_text(message: &str) -> String {
    if !message.contains("validation error") {
        return cut_text(message, LONGEST);
    }
    let mut items: Vec<String> = Vec::new();
    for found in PYDANTIC.captures_iter(message) {
        let item = pydantic_item(&found[1], &found[2]);
        if !items.contains(&item) {
            items.push(item);
        }
    }
    if items.is_empty() { cut_text(message, LONGEST) } else { cut_text(&items.join("; "), LONGEST) }
}

fn pydantic_item(place: &str, text: &str) -> String {
    let place: Vec<&str> = place.split(['(', ')', '\'', ',', ' ']).filter(|part| !part.is_empty()).collect();
    format!("{}: {}", place.join("."), &text[1..text.len() - 1])
}

fn cut_text(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    format!("{}… ({} bytes in all)", &text[..text.floor_char_boundary(longest)], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, left: u16, tier: Tier, text: &str) {
        let error = UpstreamError::from_answer("box", status, body);
        assert_eq!((error.error.status, error.tier), (left, tier), "{body}");
        assert!(error.error.message.contains(text), "{}", error.error.message);
        assert!(error.error.message.len() < LONGEST + 200);
    }

    #[test]
    fn every_shape_of_error() {
        check(400, r#"{"error":{"message":"bad","type":"x","code":400}}"#, 400, Tier::Rejected, "bad");
        check(400, r#"{"object":"error","message":"flat","code":400}"#, 400, Tier::Rejected, "flat");
        check(404, r#"{"detail":"Not Found"}"#, 404, Tier::Rejected, "Not Found");
        check(
            422,
            r#"{"detail":[{"loc":["body","x"],"msg":"field required"}]}"#,
            422,
            Tier::Rejected,
            "field required",
        );
        check(
            502,
            "<html><head><title>502 Bad Gateway</title></head>",
            502,
            Tier::Transient,
            "HTTP 502 with an HTML page titled \"502 Bad Gateway\"",
        );
        check(500, "", 500, Tier::Fatal, "empty body");
        check(503, "overloaded", 503, Tier::Transient, "overloaded");
        check(302, "", 502, Tier::Fatal, "302");
        check(
            400,
            &format!(r#"{{"error":{{"message":"{}"}}}}"#, "x".repeat(100_000)),
            400,
            Tier::Rejected,
            "100000 bytes in all",
        );
    }

    #[test]
    fn a_refused_key_never_leaves_as_one() {
        for status in [401, 402, 403] {
            let error = UpstreamError::from_answer("box", status, r#"{"error":"Unauthorized"}"#).error;
            assert_eq!(error.status, 422);
            let todo = "the operator of respool has to correct the key of `box`";
            assert!(error.message.contains(todo), "{}", error.message);
            assert!(translate::is_harmless_for_openclaw(&error.message), "{}", error.message);
        }
    }

    #[test]
    fn a_missing_model_is_told_from_a_missing_path() {
        let check = |body: &str, expected: ErrorCode| {
            assert_eq!(UpstreamError::from_answer("box", 404, body).error.code, Some(expected), "{body}");
        };
        for body in [
            r#"{"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","param":null,"code":404}}"#,
            r#"{"error":{"message":"model 'nope' not found, try pulling it first"}}"#,
            r#"{"error":{"message":"No.","code":"model_not_found"}}"#,
            r#"{"error":{"message":"No.","param":"model"}}"#,
        ] {
            check(body, ErrorCode::ModelNotFound);
        }
        for body in [
            r#"{"detail":"Not Found"}"#,
            r#"{"error":{"message":"The response of the model `a` does not exist."}}"#,
            "",
        ] {
            check(body, ErrorCode::NotFound);
        }
    }

    #[test]
    fn a_hint_is_a_sentence_of_its_own() {
        check(
            400,
            r#"{"error":{"message":"\"auto\" tool choice requires --tool-call-parser to be set"}}"#,
            400,
            Tier::Rejected,
            "to be set. Start vLLM",
        );
    }

    /// Every client but OpenClaw gets a server's own words about a request; the log does not.
    #[test]
    fn the_log_lacks_the_words_of_refusals() {
        let body = r#"{"error":{"message":"Unexpected message: 'the meeting is forbidden'"}}"#;
        let error = UpstreamError::from_answer("box", 400, body);
        assert_eq!(error.error.message, "Unexpected message: 'the meeting is forbidden'");
        assert!(
            !format!("{}{}", error.loggable, error.internal).contains("forbidden"),
            "it may be the user's text"
        );
        check(500, body, 500, Tier::Fatal, "forbidden");
    }

    /// Regression: the log hid why a GPU failed.
    #[test]
    fn the_log_has_the_failures_of_gpus() {
        for text in ["CUDA error: device-side assert triggered", "NCCL error: unhandled system error"] {
            let body = format!(r#"{{"error":{{"message":"{text}"}}}}"#);
            assert!(UpstreamError::from_answer("box", 500, &body).log_text().contains(text), "{text}");
        }
    }

    #[test]
    fn an_error_after_the_head_is_no_starting_server() {
        let body = r#"{"error":{"message":"busy","code":503}}"#;
        let failure = |error: UpstreamError| error.failure();
        assert_eq!(failure(UpstreamError::from_answer("box", 503, body)), Some(Failure::Unavailable));
        assert_eq!(UpstreamError::from_success("box", body).and_then(failure), Some(Failure::Failed));
    }

    #[test]
    fn overflows_keep_their_wording() {
        let vllm = "This model's maximum context length is 2048 tokens. However, your prompt contains 2049 input tokens.";
        check(400, &format!(r#"{{"error":{{"message":"{vllm}"}}}}"#), 400, Tier::ContextOverflow, vllm);
        check(
            400,
            r#"{"error":{"message":"max_tokens must be at least 1, got -1022."}}"#,
            400,
            Tier::ContextOverflow,
            "maximum context length",
        );
    }

    fn tier(status: u16, message: &str) -> Tier {
        let body = serde_json::json!({"error": {"message": message, "code": status}}).to_string();
        UpstreamError::from_answer("box", status, &body).tier
    }

    #[test]
    fn overflows_of_other_servers_and_of_gateways() {
        for message in [
            "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only 131072 tokens, resulting in a maximum input length of 98304 tokens.",
            "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - This model's maximum context length is 8192 tokens.",
            "The decoder prompt (length 3000) is longer than the maximum model length of 2048.",
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "Requested token count exceeds the model's maximum context length of 4096 tokens.",
            "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "the request exceeds the available context size, try increasing it",
            "Context size has been exceeded.",
        ] {
            assert_eq!(tier(400, message), Tier::ContextOverflow, "{message}");
        }
        let named = |field: &str| {
            UpstreamError::from_answer(
                "box",
                400,
                &format!(r#"{{"error":{{"message":"Too long.",{field}}}}}"#),
            )
            .tier
        };
        assert_eq!(named(r#""code":"context_length_exceeded""#), Tier::ContextOverflow);
        assert_eq!(named(r#""type":"exceed_context_size_error""#), Tier::ContextOverflow);
        assert_eq!(named(r#""code":"other""#), Tier::Rejected);
    }

    #[test]
    fn words_of_the_conversation_are_no_overflow() {
        for message in [
            "Unexpected message: 'This model's maximum context length is 5 tokens.'",
            "what is the maximum context length?",
            "Invalid value: 'context_length_exceeded'",
            "1 validation error:\n  {'input': 'Input length (3068) exceeds model's maximum context length (2048).'}",
            "Unexpected token in 'max_tokens must be at least 1, got -5'",
            "error in template: the request exceeds the available context size",
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ] {
            assert_eq!(tier(400, message), Tier::Rejected, "{message}");
        }
    }

    /// Every recorded refusal: those of a full window, and no other, are recognised as such.
    #[test]
    fn captured_refusals() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vllm");
        let sets = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = sets.filter(|path| path.is_dir()).flat_map(|set| std::fs::read_dir(set).unwrap());
        let (mut overflows, mut others) = (0, 0);
        for path in files.map(|entry| entry.unwrap().path()) {
            let Some(name) = path.to_str().filter(|name| name.ends_with(".resp.http")) else { continue };
            let reply = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            let (head, body) = reply.split_once("\r\n\r\n").or(reply.split_once("\n\n")).unwrap();
            let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
            if status < 400 {
                continue;
            }
            let is_overflow = UpstreamError::from_answer("box", status, body).tier == Tier::ContextOverflow;
            assert_eq!(is_overflow, name.contains("context-overflow"), "{name}: {body}");
            *if is_overflow { &mut overflows } else { &mut others } += 1;
        }
        assert!(overflows >= 8 && others >= 60, "{overflows} and {others}: were they found?");
    }

    #[test]
    fn a_dump_becomes_a_line() {
        let dump = r#"{"error":{"message":"1 validation error:\n  {'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Input should be a valid number', 'input': 'hot', 'secret': 'WHOLE PROMPT'}\n\n  File \"/opt/x.py\", line 3\n    POST [{'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Input should be a valid number', 'input': 'hot'}]"}}"#;
        let message = UpstreamError::from_answer("box", 400, dump).error.message;
        assert_eq!(message, "body.temperature: Input should be a valid number");
    }

    #[test]
    fn errors_that_hide_in_a_success() {
        let glitch = r#"{"error":{"message":"unexpected tokens remaining in message header: Some(\"x\")","type":"BadRequestError","param":null,"code":400}}"#;
        let error = UpstreamError::from_success("box", glitch).unwrap();
        assert_eq!((error.tier, error.error.status), (Tier::Glitch, 502));
        assert_eq!(
            UpstreamError::from_success("box", r#"{"error":{"message":"x"}}"#).unwrap().error.status,
            502
        );
        assert_eq!(UpstreamError::from_success("box", r#"{"choices":[],"error":null}"#), None);
        assert!(UpstreamError::from_success("box", r#"{"choices":[{}],"error":{"message":"x"}}"#).is_some());
        assert_eq!(UpstreamError::from_success("box", r#"{"id":"x"}"#), None);
    }
}
