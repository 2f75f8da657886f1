//! OpenAI's error object: `{"error":{"message","type","param","code"}}`.
//!
//! Every error that leaves respool is one of these, whatever shape it had before. Called by `upstream`,
//! `relay`, `server`.

use serde::Serialize;

use super::error_code::ErrorCode;

/// An error as a client of OpenAI's API knows it, with the HTTP status that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The message for people: what happened, where, and what to do.
    pub message: String,
    /// OpenAI's `type`, for example `invalid_request_error`.
    pub kind: &'static str,
    /// The request field at fault, if there is one.
    pub param: Option<String>,
    /// A stable machine-readable code, for example `context_length_exceeded`.
    pub code: Option<ErrorCode>,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u64>,
    /// True when respool has used up its attempts: the reply asks the client not to try again
    /// (`x-should-retry: false`).
    pub is_final: bool,
    /// The upstream's part in the error, for clients that misread a server's own words.
    pub cause: Option<Box<Cause>>,
}

/// An upstream's part in an error, in words of respool's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The upstream's name.
    pub upstream: String,
    /// The action of the upstream, for example `refused the connection`.
    pub what: &'static str,
    /// True when the upstream failed, false when it refused.
    pub is_failure: bool,
    /// The attempts that respool made, for example `asked 3 times`; may be empty.
    pub efforts: String,
}

#[derive(Serialize)]
struct Envelope<'a, C> {
    error: ErrorFields<'a, C>,
}

#[derive(Serialize)]
struct ErrorFields<'a, C> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: C,
}

impl ApiError {
    /// Makes an error with this status, from which its `type` follows.
    pub fn new(status: u16, code: impl Into<Option<ErrorCode>>, message: impl Into<String>) -> Self {
        // In a stream, OpenClaw repeats every error but `invalid_request_error` (measured on 2026.9.6).
        let kind = match status {
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        Self {
            status,
            message: message.into(),
            kind,
            param: None,
            code: code.into(),
            retry_after: None,
            is_final: false,
            cause: None,
        }
    }

    /// Makes the error for a request that is wrong itself.
    pub fn bad_request(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(400, code, message)
    }

    /// Names the request field at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Returns the body of an HTTP reply; `code` is a string or null, as OpenAI has it.
    pub fn to_json(&self) -> String {
        self.to_envelope_json(self.code.map(ErrorCode::as_str))
    }

    /// Returns the payload of an event in a stream whose head has already left. Its `code` is the HTTP
    /// status, because OpenClaw reads it there to decide whether to repeat the request.
    pub fn to_stream_json(&self) -> String {
        self.to_envelope_json(self.status)
    }

    fn to_envelope_json<C: Serialize>(&self, code: C) -> String {
        let error =
            ErrorFields { message: &self.message, kind: self.kind, param: self.param.as_deref(), code };
        serde_json::to_string(&Envelope { error }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let error = ApiError::new(503, ErrorCode::UpstreamUnreachable, "gone").with_param("model");
        assert_eq!(
            error.to_json(),
            r#"{"error":{"message":"gone","type":"server_error","param":"model","code":"upstream_unreachable"}}"#
        );
        assert_eq!(
            error.to_stream_json(),
            r#"{"error":{"message":"gone","type":"server_error","param":"model","code":503}}"#
        );
    }
}
