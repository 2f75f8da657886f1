//! The stage that checks the key of a request's client: the models and agents that it permits, and its
//! limits.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, header, request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::app::App;
use crate::body;
use crate::key_limits::Exceeded;
use crate::meter::Reading;
use crate::metered_request::MeteredRequest;
use crate::paths::{is_for_kept_response, is_own, uses_model};
use telemetry::Account;
use upstream::Priority;
use wire::{ApiError, ErrorCode, FormReader, Object};

/// Whether a request uses tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// It does; where the reply does not give the number, it is estimated from its size.
    Tokens,
    /// It names a model and uses none of its tokens.
    Nothing,
}

/// Returns the account of the request's key, for its record.
pub(crate) fn key_account(extensions: &http::Extensions) -> Option<Arc<dyn Account>> {
    let metered: Arc<dyn Account> = extensions.get::<Arc<MeteredRequest>>()?.clone();
    Some(metered)
}

/// Returns how urgent the request is at most, by its key.
pub(super) fn key_priority(extensions: &http::Extensions) -> Priority {
    let metered = extensions.get::<Arc<MeteredRequest>>();
    metered.and_then(|metered| metered.key.limits.priority).unwrap_or_default()
}

/// Returns true if the client of this request may ask for a model or agent.
pub(crate) fn may_use(extensions: &http::Extensions, name: &str, is_agent: bool) -> bool {
    extensions.get::<Arc<MeteredRequest>>().is_none_or(|metered| metered.key.limits.permits(name, is_agent))
}

/// Counts a body that is read from now on, unless too many bodies of the same key are being read.
pub(super) fn begin_reading(parts: &request::Parts) -> Result<Option<Reading>, ApiError> {
    let metered = parts.extensions.get::<Arc<MeteredRequest>>();
    let reading = metered.map(|metered| metered.key.meter.begin_reading(&metered.key.limits));
    reading.transpose().map_err(|exceeded| limit_error(&exceeded))
}

/// Counts a request that names a model in its body, if its key permits the model and its limits are not
/// reached.
pub(super) fn begin_model(
    app: &App,
    parts: &request::Parts,
    body: &Bytes,
    cost: Cost,
) -> Result<(), ApiError> {
    let Some(metered) = parts.extensions.get::<Arc<MeteredRequest>>() else { return Ok(()) };
    if metered.key.limits.is_restricted() {
        // Another parser may accept what this one cannot read. A body that cannot be checked is refused.
        let text = std::str::from_utf8(body).unwrap_or_default();
        let object = Object::parse(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(|_| {
            ApiError::bad_request(
                ErrorCode::InvalidJson,
                "the request's body is not a JSON object".to_owned(),
            )
        })?;
        refuse_two_models(&object)?;
        refuse_model_of_others(app, metered, &object.string("model").unwrap_or_default())?;
    }
    let bytes = if cost == Cost::Tokens { body.len() as u64 } else { 0 };
    metered.begin_request(bytes, &app.usage).map_err(|exceeded| limit_error(&exceeded))
}

/// Counts a request of another kind, if its key permits it. Its body is read only where the key is restricted
/// to certain models.
///
/// # Errors
/// The head of the request, and why it is refused.
pub(crate) async fn begin_other(
    app: &App,
    request: Request<Incoming>,
    metered: &MeteredRequest,
) -> Result<Request<Body>, (request::Parts, ApiError)> {
    let (mut parts, incoming) = request.into_parts();
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(Request::from_parts(parts, Body::new(incoming)));
    }
    // The token counts of the reply must be readable here.
    parts.headers.remove(header::ACCEPT_ENCODING);
    let path = parts.uri.path();
    let is_for_kept_response = is_for_kept_response(&parts.method, path);
    let mut length = declared_length(&parts.headers);
    let body = if metered.key.limits.is_restricted() && !is_own(path) && !is_for_kept_response {
        let read = match begin_reading(&parts) {
            Ok(_reading) => body::read_body(incoming, &app.limits, &app.bodies).await,
            Err(error) => Err(body::refuse_body(error, incoming.into_data_stream()).await),
        };
        let form = form_reader(&parts.headers);
        let checked = read.and_then(|body| {
            let model = form.map_or_else(|| model_in_json(&body), |form| model_in_form(form, &body))?;
            refuse_model_of_others(app, metered, &model).map(|()| body)
        });
        match checked {
            Ok(body) => {
                length = body.len() as u64;
                Body::from(body)
            }
            Err(error) => return Err((parts, error)),
        }
    } else {
        Body::new(incoming)
    };
    let costs = uses_model(path) && !is_for_kept_response;
    match metered.begin_request(if costs { length } else { 0 }, &app.usage) {
        Ok(()) => Ok(Request::from_parts(parts, body)),
        Err(exceeded) => Err((parts, limit_error(&exceeded))),
    }
}

/// Returns the length that a request declares for its body, at least one.
fn declared_length(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(1).max(1)
}

fn model_in_json(body: &[u8]) -> Result<String, ApiError> {
    let object = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok());
    object.as_ref().map_or(Ok(()), refuse_two_models)?;
    object.and_then(|object| object.string("model")).ok_or_else(no_model_error)
}

/// Reads the model from a form that has arrived whole.
fn model_in_form(mut form: FormReader, body: &[u8]) -> Result<String, ApiError> {
    let mut models = form.push(body).into_iter().filter(|field| field.name == "model");
    let model = models.next().ok_or_else(no_model_error)?;
    models.next().map_or(Ok(model.value), |_| Err(form_names_two_models()))
}

/// Returns a reader of the form that these headers announce, unless its content is encoded.
pub(crate) fn form_reader(headers: &HeaderMap) -> Option<FormReader> {
    let is_plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    let content_type = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    FormReader::from_content_type(content_type).filter(|_| is_plain)
}

/// Returns the error of a form with two models: respool would check one, and the server might take the other.
pub(crate) fn form_names_two_models() -> ApiError {
    let what = "the form has more than one field `model`: send it once";
    ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param("model")
}

fn no_model_error() -> ApiError {
    let what = "this key may use certain models only, and the request names none that respool can read: send JSON, or a form, with `model`";
    ApiError::bad_request(ErrorCode::MissingRequiredParameter, what).with_param("model")
}

/// Refuses a body with two models: respool would check one, and the server might take the other.
fn refuse_two_models(body: &Object<'_>) -> Result<(), ApiError> {
    if body.is_repeated("model") {
        let what = "the request names `model` more than once, and this key may use certain models only: send it once";
        return Err(ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param("model"));
    }
    Ok(())
}

fn refuse_model_of_others(app: &App, metered: &MeteredRequest, name: &str) -> Result<(), ApiError> {
    let (is_agent, limits) = (app.is_agent(name), &metered.key.limits);
    if limits.permits(name, is_agent) {
        return Ok(());
    }
    // As OpenAI has it: a model that is not the client's might as well not exist. A 403 would make OpenClaw
    // switch its provider off.
    let what = format!(
        "The model `{}` does not exist for this key. GET /v1/models lists those that do",
        name.escape_default()
    );
    Err(ApiError::new(404, ErrorCode::ModelNotFound, what).with_param("model"))
}

fn limit_error(exceeded: &Exceeded) -> ApiError {
    let wait = humantime::format_duration(std::time::Duration::from_secs(exceeded.wait));
    let what = format!(
        "this key permits {}, and they are used up: send the request again in {wait}",
        exceeded.limit
    );
    let mut error = ApiError::new(429, ErrorCode::KeyLimitReached, what);
    error.retry_after = Some(exceeded.wait);
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::final_error::ErrorForm;
    use translate::ClientProgram;

    /// A client gets a 429 with the time to wait. OpenClaw gets a 422, which it does not repeat.
    #[test]
    fn a_reached_limit_says_how_long() {
        let exceeded = Exceeded { limit: "60 requests a minute".into(), wait: 75 };
        let error = limit_error(&exceeded);
        assert_eq!((error.status, error.retry_after), (429, Some(75)));
        assert!(error.message.ends_with("send the request again in 1m 15s"), "{}", error.message);
        for limit in ["60 requests a minute", "100 tokens a day", "2 requests at a time"] {
            let error = limit_error(&Exceeded { limit: limit.into(), wait: 401 });
            let form = ErrorForm { program: ClientProgram::OpenClaw, ..ErrorForm::default() };
            let shown = form.apply_to(error.clone());
            assert_eq!((shown.status, shown.retry_after, shown.message), (422, None, error.message));
        }
    }
}
