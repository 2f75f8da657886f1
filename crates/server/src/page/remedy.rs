//! Explains an error to the owner by its code, and says what to do.

use std::borrow::Cow;

use wire::ErrorCode;

use crate::app::App;
use alerts::Rule;

/// Says what to do about the failure of a request of this key for this model.
pub(super) fn advice(app: &App, code: &str, key: &str, model: &str) -> Cow<'static, str> {
    let is_model_missing = ErrorCode::from_name(code) == Some(ErrorCode::ModelNotFound);
    if is_model_missing && app.access.is_refused_to(key, model, app.is_agent(model)) {
        return format!(
            "The key `{key}` may not use this model. If it should, add the model to `models` of the key, or the agent to its `agents`, in \
             `client_keys_file`; otherwise tell the client which models it may use."
        )
        .into();
    }
    let known = if is_model_missing { app.relay.known_models() } else { Vec::new() };
    if known.is_empty() {
        return remedy(code).into();
    }
    let known: Vec<String> = known.iter().map(|model| format!("`{model}`")).collect();
    format!(
        "The server has: {}. Correct the client's `model`, or name an alias in `[models]`.",
        known.join(", ")
    )
    .into()
}

const OTHERWISE: &str = "Run `respool check`, with the options of `respool serve` if it has any: it tests the upstreams and says how to fix each problem.";

const SERVER_FAILED: &str =
    "The model server failed. Its log says why: it may have run out of memory, or lost its GPU.";

const WRONG_KEY: &str = "The client did not send one of respool's keys. Give it one of `client_keys`, or correct its `apiKey`. For a wrong key, the error has the beginning of its SHA-256: `printf %s KEY | sha256sum` shows that of a key.";

const UNUSABLE: &str = "The model did not write a usable reply, even when asked again. Check its tool parser (docs/dialects.md) and its token limit, and whether the model is large enough for these tools.";

const TOO_LONG: &str = "The conversation is longer than the model's window. Raise --max-model-len of the server, set `context.on_overflow = \"trim\"`, or tell the client the true window.";

/// Returns the code's meaning and remedy, in a sentence or two.
pub(super) fn remedy(code: &str) -> &'static str {
    use ErrorCode as Code;
    match ErrorCode::from_name(code) {
        Some(Code::ContextLengthExceeded) => TOO_LONG,
        Some(Code::InvalidApiKey) => WRONG_KEY,
        Some(Code::KeyLimitReached) => {
            "A key has used up what its limits allow. Raise them in `client_keys_file`, or wait."
        }
        Some(Code::BudgetSpent) => Rule::BudgetSpent.todo(),
        Some(Code::QueueFull) => {
            "The queue is full. Raise `max_concurrency` or `max_queue` of the upstream, or add another one."
        }
        Some(Code::TruncatedToolCall | Code::UnusableToolCall | Code::UnknownTool | Code::NoAnswer) => {
            UNUSABLE
        }
        Some(Code::UpstreamTimeout | Code::ModelTimeout) => {
            "The model server was too slow. Check its load and its GPU; if such times are normal, raise `timeout` of the upstream."
        }
        Some(Code::NotFound) => {
            "The client asked for a path that does not exist. Its base URL ends in `/v1` once; if it is right, check the `url` of the upstream."
        }
        Some(Code::NoUpstream | Code::ModelNotFound) => {
            "No upstream serves this model; it may have been renamed. The upstreams on the page Now have the available names: correct the \
             client's model, or set an alias in `[models]`."
        }
        Some(Code::UpstreamCredentialsRefused) => Rule::KeyRefused.todo(),
        Some(
            Code::UpstreamUnreachable | Code::UpstreamDns | Code::UpstreamUnavailable | Code::UpstreamClosed,
        ) => Rule::UpstreamDown.todo(),
        Some(Code::ApprovalRejected) => {
            "A person rejected a call that the run needs. `respool audit list` shows the call, who decided and the comment; ask again with what \
             the comment asks for."
        }
        Some(Code::ApprovalTimeout) => {
            "A call was not approved in time. Ask again, and approve or reject it under Approvals; `policy.approval.timeout` of an expert and \
             `approval_timeout` of an agent say how long it waits."
        }
        Some(Code::UpstreamTls) => Rule::CertificateRefused.todo(),
        Some(Code::UpstreamNotJson) => {
            "Something else than a model server may answer at this address: check the `url` of this upstream."
        }
        Some(Code::TooManyWrongKeys) => {
            "Many wrong keys came from one address, so short keys wait there. Correct the client's key, then wait a minute."
        }
        Some(Code::BrokenReply | Code::UpstreamInvalidJson) => {
            "The model server broke off its reply or sent something else. Look at its log: it may have run out of memory or been restarted."
        }
        Some(Code::ForeignOrigin | Code::UntrustedHost) => {
            "A web page of another site asked. If the name is yours, add it to `trusted_hosts`."
        }
        Some(Code::AdministrativeRoute) => {
            "The client asked for a path that respool does not pass on. Correct its base URL, or add the path to `pass_routes`."
        }
        Some(code) if code.is_request_fault() => {
            "The client sent something that cannot be answered: the message says what. Correct it in the client."
        }
        Some(Code::Killed) => {
            "The client's connection was cut, and most clients ask again by themselves. The system's log says why respool ended: it may have \
             run out of memory. Runs of agents and experts go on."
        }
        Some(Code::UpstreamError | Code::UpstreamBrokeOff | Code::UpstreamEmptyStream) => SERVER_FAILED,
        _ if code.is_empty() => "Look for the request's id in the logs of respool and the model server.",
        _ => OTHERWISE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_something_to_do() {
        for code in ErrorCode::ALL {
            assert!(remedy(code.as_str()).ends_with('.'), "{code}");
        }
        for code in ["missing_required_parameter", "not_found", "administrative_route"] {
            assert!(!remedy(code).contains("respool check"), "{code}");
        }
        assert_ne!(remedy("context_length_exceeded"), remedy("queue_full"));
    }
}
