//! The words for a server that failed, in two forms. Most clients and the log get what `unanswered` found,
//! with address and cause. OpenClaw acts on some words of causes (`translate::openclaw_words`), such as
//! "Connection refused", so it gets plain words that it shows unchanged.

use super::failure::Failure;
use wire::ErrorCode;

/// Says why no answer came; `why` is the last cause.
pub(super) fn unanswered_words(code: ErrorCode, address: &str, why: &str) -> String {
    match code {
        ErrorCode::UpstreamDns => format!("has a host name that cannot be resolved: {address}"),
        ErrorCode::UpstreamUnreachable => format!("cannot be reached at {address}: {why}"),
        ErrorCode::UpstreamTls => format!("cannot be reached over TLS at {address}: {why}"),
        ErrorCode::IncompleteBody => format!("was not sent the whole request body: {why}"),
        ErrorCode::UpstreamNotHttp => format!("answers with something that is not HTTP/1.1: {why}"),
        _ => "closed the connection without answering".to_owned(),
    }
}

impl Failure {
    /// Describes the failure in words that OpenClaw shows unchanged.
    pub fn plain_words(self) -> &'static str {
        match self {
            Self::Unreachable => "refused the connection",
            Self::Unavailable => "answered that it is unavailable",
            Self::GatewayTimeout => "gave no answer to the gateway before it",
            Self::Limited => "is busy",
            Self::Closed => "closed the connection without an answer",
            Self::Failed => "answered with 5xx",
            Self::Broken => "broke its reply off",
            Self::Slow => "gave no answer in time",
            Self::Unusable => "sent something that is not a chat completion",
        }
    }
}
