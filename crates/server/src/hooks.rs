//! `POST /hooks/EXPERT/TRIGGER`: the webhooks of experts. Only the trigger's own secret admits a request:
//! client keys do not count here, nor do the checks of hosts and pages. The answer is 202, once everything
//! in the request is committed.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::app::App;
use super::config::LimitsConfig;
use super::front::begin_record;
use super::respond::store_failed;
use super::{body, keys, respond};
use experts::{Accepted, Hook, HookError, Proof, Signature};
use openexperts::MODEL_PREFIX;
use store::StoreError;
use wire::{ApiError, ErrorCode};

/// The most characters of a name that are logged before its sender has proven anything.
const LONGEST_NAME: usize = 64;

pub(super) async fn receive_hook(
    State(app): State<App>,
    Path((expert, trigger)): Path<(String, String)>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let name = "POST /hooks/{expert}/{trigger}";
    let record = begin_record(&app, &parts.headers, &parts.extensions, name, "hooks");
    let received = async {
        let hooks = app.hooks.as_ref().ok_or_else(|| error_of(without_hooks(&app)))?;
        let proof = proof_of(&parts.headers);
        let hook = hooks.find(&expert, &trigger).map_err(error_of)?;
        if let Err(error) = hook.check_head(&proof) {
            note_refused(&expert, &trigger, &hook, &error);
            body::discard_rest(BodyExt::into_data_stream(body)).await;
            return Err(error_of(error));
        }
        // A signature covers the whole body: until it is complete, its sender is unknown.
        let body = match proof {
            Proof::Signed(_) => {
                let limits = body::limits_of_unproven(&app.limits);
                let read = body::read_body(body, &limits, &app.bodies.unproven_part()).await;
                read.map_err(|error| too_large_to_sign(error, &limits))?
            }
            _ => body::read_body(body, &app.limits, &app.bodies).await?,
        };
        let received = hooks.receive(&hook, &proof, &body, clock::now()).await;
        received.inspect_err(|error| note_refused(&expert, &trigger, &hook, error)).map_err(error_of)
    };
    let response = match received.await {
        Ok(accepted) => {
            record.set_agent(&format!("{MODEL_PREFIX}{expert}"));
            respond::json_response(StatusCode::ACCEPTED, accepted_json(&accepted).to_string())
        }
        Err(error) => respond::error_response(&error),
    };
    respond::finish_response(response, &record)
}

/// Logs which hook refused a request, and why, for the owner: the sender must not learn whether it exists.
fn note_refused(expert: &str, trigger: &str, hook: &Hook, error: &HookError) {
    let why = match error {
        HookError::Refused if hook.is_known() => "the secret or the signature is wrong",
        HookError::Refused => "there is no such hook",
        _ => return,
    };
    let shorten = |name: &str| name.chars().take(LONGEST_NAME).collect::<String>();
    let hook = format!("{}/{}", shorten(expert), shorten(trigger));
    tracing::warn!(target: "respool::expert", hook, why, "a request to a hook is refused");
}

/// Answers all other paths below `/hooks`. They never go to an upstream.
pub(super) async fn answer_not_found(State(app): State<App>, request: Request) -> Response {
    let name = format!("{} {}", request.method(), request.uri().path());
    let record = begin_record(&app, request.headers(), request.extensions(), name, "hooks");
    let what = "a hook is `POST /hooks/EXPERT/TRIGGER`; `respool expert show NAME` lists those of an expert";
    let error = ApiError::new(404, ErrorCode::NotFound, what);
    respond::finish_response(respond::error_response(&error), &record)
}

fn accepted_json(accepted: &[Accepted]) -> Value {
    let one = |one: &Accepted| {
        let status = if one.is_duplicate { "duplicate" } else { "accepted" };
        let mut shown = json!({"id": one.id, "status": status});
        if !one.warnings.is_empty() {
            shown["warnings"] = one.warnings.clone().into();
        }
        shown
    };
    json!({"object": "list", "data": accepted.iter().map(one).collect::<Vec<_>>()})
}

/// Returns the error of a signed body, for which the limit is not `limits.max_body`.
fn too_large_to_sign(error: ApiError, limits: &LimitsConfig) -> ApiError {
    if error.code != Some(ErrorCode::RequestTooLarge) {
        return error;
    }
    let what = format!(
        "a signed request may be at most {} large: send less, or send the secret itself as `authorization: Bearer SECRET`",
        limits.max_body
    );
    ApiError { message: what, ..error }
}

/// Returns the proof of a request. If there is a signature it counts: a request with both needs a valid
/// signature.
fn proof_of(headers: &HeaderMap) -> Proof<'_> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(signatures) = text("webhook-signature") {
        let (id, timestamp) =
            (text("webhook-id").unwrap_or_default(), text("webhook-timestamp").unwrap_or_default());
        return Proof::Signed(Signature { id, timestamp, signatures });
    }
    keys::key_in_headers(headers).map_or(Proof::None, Proof::Bearer)
}

/// Returns why there are no hooks: without the store no event can be accepted, and its sender may try again.
fn without_hooks(app: &App) -> HookError {
    match &app.experts {
        Some(_) => {
            HookError::Store(StoreError("the store cannot be used, so no event is accepted".to_owned()))
        }
        None => HookError::Refused,
    }
}

fn error_of(error: HookError) -> ApiError {
    match error {
        HookError::Refused => {
            let what = "this hook is not known, or the request does not bring its secret: send it as `authorization: Bearer SECRET`, or \
                        sign the request with it (docs/experts.md). `respool expert show NAME` says where the secret is";
            ApiError::new(401, ErrorCode::InvalidHookSecret, what)
        }
        HookError::Stale => {
            let what = "the signature is right, but its `webhook-timestamp` is more than 5 minutes from now: set the sender's clock, and sign \
                        each attempt separately";
            ApiError::new(401, ErrorCode::StaleSignature, what)
        }
        HookError::Off(why) => {
            ApiError::new(404, ErrorCode::TriggerOff, format!("the trigger is off, because {why}"))
        }
        HookError::BadPayload(why) => ApiError::bad_request(ErrorCode::InvalidJson, why.to_string()),
        HookError::NoSecret(why) => {
            let what = format!("the secret of this hook cannot be read: {why}");
            ApiError::new(503, ErrorCode::StoreFailed, what)
        }
        HookError::Store(error) => store_failed(error),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_signature_overrides_a_bearer() {
        let check = |pairs: &[(&'static str, &'static str)], expected: Proof<'_>| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            assert_eq!(proof_of(&pairs.collect()), expected);
        };
        check(&[], Proof::None);
        check(&[("authorization", "Bearer s")], Proof::Bearer(b"s"));
        let signature = Signature { id: "m", timestamp: "1", signatures: "v1,x" };
        let signed = [("webhook-id", "m"), ("webhook-timestamp", "1"), ("webhook-signature", "v1,x")];
        check(&signed, Proof::Signed(signature));
        check(&[("authorization", "Bearer s"), signed[0], signed[1], signed[2]], Proof::Signed(signature));
        let bare = Signature { id: "", timestamp: "", signatures: "" };
        check(&[("authorization", "Bearer s"), ("webhook-signature", "")], Proof::Signed(bare));
    }
}
