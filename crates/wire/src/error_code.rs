//! The machine-readable codes of errors, as an enum: code decides on these, and only the wire sees their
//! names.
//!
//! A new code is one line in the table below. Names never change once they have been released: clients,
//! stored runs and dashboards read them. Used by everything that makes an [`ApiError`](super::ApiError).

use std::fmt;

macro_rules! codes {
    ($( $(#[$about:meta])* $code:ident = $name:literal, )*) => {
        /// The cause of an error, for programs. [`ErrorCode::as_str`] is its name in an error's `code`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $( $(#[$about])* $code, )*
        }

        impl ErrorCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$( Self::$code, )*];

            /// Returns its name on the wire and in stored runs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$code => $name, )*
                }
            }
        }
    };
}

/// The advice for the owner of an upstream that refuses its key.
pub const KEY_REFUSED_TODO: &str = "Set or correct `api_key` of this upstream (VLLM_API_KEY with --upstream): it is the key of `vllm serve --api-key`. Without it respool passes on the key that clients send, which has to be that one then.";
/// The advice for the owner of an upstream to which no secure connection can be made.
pub const CERTIFICATE_REFUSED_TODO: &str = "Renew the certificate, correct the host name in the `url` of this upstream, or trust its authority with SSL_CERT_FILE (docs/upstreams.md).";

codes! {
    /// The path is an administrative route of the model server.
    AdministrativeRoute = "administrative_route",
    /// There is no such approval.
    ApprovalNotFound = "approval_not_found",
    /// The approval does not wait for a decision any more.
    ApprovalNotWaiting = "approval_not_waiting",
    /// A person rejected a call of an agent's run.
    ApprovalRejected = "approval_rejected",
    /// A call of an agent's run was not approved in time.
    ApprovalTimeout = "approval_timeout",
    /// The path cannot be sent to this upstream.
    BadPath = "bad_path",
    /// All request bodies together fill `limits.max_bodies`.
    BodiesFull = "bodies_full",
    /// A budget of this day is spent.
    BudgetSpent = "budget_spent",
    /// The model's server broke off its reply.
    BrokenReply = "broken_reply",
    /// A child run of an agent cannot proceed.
    ChildRun = "child_run",
    /// The conversation does not fit the model's window.
    ContextLengthExceeded = "context_length_exceeded",
    /// An approved call has to wait, because its expert is not ready.
    ExpertNotReady = "expert_not_ready",
    /// A web page of another origin asked.
    ForeignOrigin = "foreign_origin",
    /// The request's body did not arrive whole.
    IncompleteBody = "incomplete_body",
    /// The client's key is not one of `client_keys`.
    InvalidApiKey = "invalid_api_key",
    /// A request to a hook does not bring the hook's secret.
    InvalidHookSecret = "invalid_hook_secret",
    /// The request's body is not JSON.
    InvalidJson = "invalid_json",
    /// A field of the request has the wrong type.
    InvalidType = "invalid_type",
    /// A field of the request has an undefined value.
    InvalidValue = "invalid_value",
    /// The item that an `item_reference` names is not kept.
    ItemNotFound = "item_not_found",
    /// A client has used what its key may use.
    KeyLimitReached = "key_limit_reached",
    /// respool was killed while it worked on the request.
    Killed = "killed",
    /// The server passed on nothing of the model's output.
    LostReply = "lost_reply",
    /// The method is for proxies or debugging (`CONNECT`, `TRACE`), not for a resource.
    MethodNotAllowed = "method_not_allowed",
    /// A field that the request needs is missing.
    MissingRequiredParameter = "missing_required_parameter",
    /// The model's server could not read the model's output.
    ModelGlitch = "model_glitch",
    /// No upstream serves this model.
    ModelNotFound = "model_not_found",
    /// An agent's model did not answer in time.
    ModelTimeout = "model_timeout",
    /// The model's reply holds no answer.
    NoAnswer = "no_answer",
    /// No store is configured.
    NoStore = "no_store",
    /// The reply was not read as a turn.
    NoTurn = "no_turn",
    /// No upstream is configured.
    NoUpstream = "no_upstream",
    /// The upstream does not know the requested resource.
    NotFound = "not_found",
    /// The request does not ask for a turn that could be sent as a whole.
    NotWhole = "not_whole",
    /// The response that `previous_response_id` names is not kept.
    PreviousResponseNotFound = "previous_response_not_found",
    /// Only a key of `operator_keys_env` may ask for this.
    OperatorsOnly = "operators_only",
    /// The upstream's queue is full.
    QueueFull = "queue_full",
    /// The upstream asks for fewer requests.
    RateLimitExceeded = "rate_limit_exceeded",
    /// The replay upstream was not started.
    ReplayNotStarted = "replay_not_started",
    /// The request has returned to a respool that forwarded it before.
    RequestLoop = "request_loop",
    /// The request's body took too long to arrive.
    RequestTimeout = "request_timeout",
    /// The request's body is larger than `limits.max_body`.
    RequestTooLarge = "request_too_large",
    /// There is no such response, or it belongs to another key.
    ResponseNotFound = "response_not_found",
    /// The pending background responses have reached their limit.
    ResponsesFull = "responses_full",
    /// There is no such run.
    RunNotFound = "run_not_found",
    /// A run came into a wrong state, and respool ended it.
    RunState = "run_state",
    /// respool is being stopped.
    ShuttingDown = "shutting_down",
    /// A signature of a hook is too old, or from the future.
    StaleSignature = "stale_signature",
    /// The store failed.
    StoreFailed = "store_failed",
    /// `respool check`'s turn took too long.
    TooSlow = "too_slow",
    /// The hook's trigger is switched off.
    TriggerOff = "trigger_off",
    /// Too many wrong keys came from one address.
    TooManyWrongKeys = "too_many_wrong_keys",
    /// The server of a tool that a run needs failed.
    ToolUnavailable = "tool_unavailable",
    /// The model's call ends within its arguments.
    TruncatedToolCall = "truncated_tool_call",
    /// The model called a tool that the request does not declare.
    UnknownTool = "unknown_tool",
    /// The request's body is compressed.
    UnsupportedContentEncoding = "unsupported_content_encoding",
    /// A field of the request has a value that cannot be served.
    UnsupportedValue = "unsupported_value",
    /// The `Host` header names no trusted host.
    UntrustedHost = "untrusted_host",
    /// The model's call cannot be used.
    UnusableToolCall = "unusable_tool_call",
    /// The upstream's content-encoding cannot be decoded.
    UpstreamBadEncoding = "upstream_bad_encoding",
    /// The upstream broke off in the middle of its reply.
    UpstreamBrokeOff = "upstream_broke_off",
    /// The upstream closed the connection without an answer.
    UpstreamClosed = "upstream_closed",
    /// The upstream does not accept the key that it is sent.
    UpstreamCredentialsRefused = "upstream_credentials_refused",
    /// The upstream's host name cannot be resolved.
    UpstreamDns = "upstream_dns",
    /// The upstream's stream ended without a chunk.
    UpstreamEmptyStream = "upstream_empty_stream",
    /// The upstream failed.
    UpstreamError = "upstream_error",
    /// The upstream sent an event without end.
    UpstreamFrameTooLong = "upstream_frame_too_long",
    /// The upstream sent an event that is not valid JSON.
    UpstreamInvalidEvent = "upstream_invalid_event",
    /// The upstream's reply is not a chat completion.
    UpstreamInvalidJson = "upstream_invalid_json",
    /// The upstream answered a streaming request with something else.
    UpstreamNotAStream = "upstream_not_a_stream",
    /// The upstream does not speak HTTP/1.1.
    UpstreamNotHttp = "upstream_not_http",
    /// The upstream answered with something that is not JSON.
    UpstreamNotJson = "upstream_not_json",
    /// The upstream's reply is longer than `limits.max_body`.
    UpstreamReplyTooLong = "upstream_reply_too_long",
    /// The upstream did not answer within its `timeout`.
    UpstreamTimeout = "upstream_timeout",
    /// The upstream cannot be reached over TLS.
    UpstreamTls = "upstream_tls",
    /// The upstream, or a gateway before it, says that it is not available.
    UpstreamUnavailable = "upstream_unavailable",
    /// The upstream cannot be reached.
    UpstreamUnreachable = "upstream_unreachable",
    /// The reply does not have the form that was asked for.
    WrongForm = "wrong_form",
}

impl ErrorCode {
    /// Finds a code by its name in stored runs; `None` for a name that this version does not know.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

impl ErrorCode {
    /// Returns true when the request or its sender is at fault, so that the owner of the server has nothing
    /// to repair.
    pub fn is_request_fault(self) -> bool {
        use ErrorCode as Code;
        matches!(
            self,
            Code::AdministrativeRoute
                | Code::BadPath
                | Code::BudgetSpent
                | Code::ContextLengthExceeded
                | Code::ForeignOrigin
                | Code::IncompleteBody
                | Code::InvalidApiKey
                | Code::InvalidJson
                | Code::InvalidType
                | Code::InvalidValue
                | Code::ItemNotFound
                | Code::KeyLimitReached
                | Code::MethodNotAllowed
                | Code::MissingRequiredParameter
                | Code::ModelNotFound
                | Code::PreviousResponseNotFound
                | Code::RequestTimeout
                | Code::RequestTooLarge
                | Code::ResponseNotFound
                | Code::RunNotFound
                | Code::TooManyWrongKeys
                | Code::UnsupportedContentEncoding
                | Code::UnsupportedValue
                | Code::UntrustedHost
        )
    }
}

/// Returns true when a failed request or its sender is at fault, by the name of the error's code and by the
/// status. An error that was passed on has no code.
pub fn is_request_fault(code: &str, status: u16) -> bool {
    match code {
        "" => (400..500).contains(&status),
        name => ErrorCode::from_name(name).is_some_and(ErrorCode::is_request_fault),
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_lead_back_to_their_code() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.as_str()), Some(*code));
        }
        assert_eq!(ErrorCode::from_name("of_a_later_version"), None);
    }
}
