//! What a request of a client with a key needs before it begins: that its key permits the model or agent, and that its limits are not
//! reached. Called by `chat` once the body is read, and before every other route.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::key_limits::Exceeded;
use super::meter::Reading;
use super::visit::Visit;
use super::{App, agent_apis, body, respond};
use telemetry::{Account, RequestRecord, RequestStart};
use usage::{Exhausted, Owner};
use wire::{ApiError, ErrorCode, FormReader, Object};

/// Routes that are no model server's, and those below them: they use no model, or find it in their own way.
const OWN: [&str; 6] = ["/v1/runs", "/v1/approvals", "/v1/outbox", "/hooks", "/v1/usage", "/ui"];
/// Routes that cost nothing.
const COST_NOTHING: [&str; 6] =
    ["/v1/runs", "/v1/approvals", "/v1/outbox", "/tokenize", "/detokenize", "/v1/usage"];

/// True for a path of respool's own, whether it has such a route or not: none of these goes upstream.
pub(super) fn is_own(path: &str) -> bool {
    OWN.iter().any(|own| is_below(path, own))
}

fn is_below(path: &str, route: &str) -> bool {
    path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whose request it is, for its line.
pub(super) fn account(extensions: &http::Extensions) -> Option<Arc<dyn Account>> {
    let visit: Arc<dyn Account> = extensions.get::<Arc<Visit>>()?.clone();
    Some(visit)
}

/// True when the client of this request may ask for a model or agent.
pub(super) fn permits(extensions: &http::Extensions, name: &str, is_agent: bool) -> bool {
    extensions.get::<Arc<Visit>>().is_none_or(|visit| visit.key.limits.permits(name, is_agent))
}

/// Lets a request for a turn begin: a chat completion, a response, a message.
pub(super) fn begin_chat(app: &App, parts: &request::Parts, body: &Bytes) -> Result<(), ApiError> {
    begin_model(app, parts, body, body.len() as u64)
}

/// Lets a request begin that names a model in its body and costs nothing.
pub(super) fn begin_free(app: &App, parts: &request::Parts, body: &Bytes) -> Result<(), ApiError> {
    begin_model(app, parts, body, 0)
}

/// Lets a body be read, unless too many of the same key's are being read.
pub(super) fn begin_reading(parts: &request::Parts) -> Result<Option<Reading>, ApiError> {
    let visit = parts.extensions.get::<Arc<Visit>>();
    let reading = visit.map(|visit| visit.key.meter.begin_reading(&visit.key.limits));
    reading.transpose().map_err(|exceeded| refusal(&exceeded))
}

/// `cost`: the bytes that an estimate of the cost counts.
fn begin_model(app: &App, parts: &request::Parts, body: &Bytes, cost: u64) -> Result<(), ApiError> {
    let Some(visit) = parts.extensions.get::<Arc<Visit>>() else { return Ok(()) };
    if visit.key.limits.is_restricted() {
        // Another parser may read what this one does not: what cannot be checked is not let through.
        let text = std::str::from_utf8(body).unwrap_or_default();
        let body = Object::parse(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(|_| {
            ApiError::bad_request(
                ErrorCode::InvalidJson,
                "the request's body is not a JSON object".to_owned(),
            )
        })?;
        only_one_model(&body)?;
        may_use(app, visit, &body.string("model").unwrap_or_default())?;
    }
    visit.begin(cost).map_err(|exceeded| refusal(&exceeded))
}

/// Refuses a request whose budget of the day is spent: its key's, its agent's, or everybody's.
pub(super) fn within_budget(app: &App, key: Option<&str>, agent: &str) -> Result<(), ApiError> {
    if !app.usage.has_budgets() {
        return Ok(());
    }
    let owner = Owner { key: key.unwrap_or_default(), agent };
    app.usage.check_budget(owner).map_err(|exhausted| spent(&exhausted))
}

/// Records which model or agent a request asked for that is refused before its route has read it.
pub(super) fn record_refused(record: &RequestRecord, agent: &str, body: &[u8]) {
    let object = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok());
    if let Some(model) = object.and_then(|object| object.string("model")) {
        record.model(&model);
    }
    record.agent(agent);
}

/// The error of a request whose budget is spent.
fn spent(exhausted: &Exhausted) -> ApiError {
    let Exhausted { scope, budget, wait } = exhausted;
    let left = humantime::format_duration(std::time::Duration::from_secs(*wait));
    let what = format!(
        "Today's budget for {} ({budget}) is used up: send the request again in {left}, or raise it in `[budgets]`",
        scope.describe()
    );
    let mut error = ApiError::new(429, ErrorCode::BudgetSpent, what);
    error.retry_after = Some(*wait);
    error
}

/// Lets a request of another kind begin. Its body is read only where the key permits certain models alone.
pub(super) async fn begin_other(
    app: &App,
    request: Request<Incoming>,
    visit: &Visit,
) -> Result<Request<Body>, (request::Parts, ApiError)> {
    let (mut parts, incoming) = request.into_parts();
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(Request::from_parts(parts, Body::new(incoming)));
    }
    // What a reply says of its cost must be readable here.
    parts.headers.remove(header::ACCEPT_ENCODING);
    let path = parts.uri.path();
    let is_for_kept_response = is_for_kept_response(&parts.method, path);
    let mut length = declared(&parts.headers);
    let body = if visit.key.limits.is_restricted() && !is_own(path) && !is_for_kept_response {
        let read = match begin_reading(&parts) {
            Ok(_reading) => body::read(incoming, &app.limits, &app.bodies).await,
            Err(error) => Err(body::refused(error, incoming.into_data_stream()).await),
        };
        let form = form_reader(&parts.headers);
        let checked = read.and_then(|body| {
            let model = form.map_or_else(|| named(&body), |form| named_in_form(form, &body))?;
            may_use(app, visit, &model).map(|()| body)
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
    let costs = costs(path) && !is_for_kept_response;
    match visit.begin(if costs { length } else { 0 }) {
        Ok(()) => Ok(Request::from_parts(parts, body)),
        Err(exceeded) => Err((parts, refusal(&exceeded))),
    }
}

/// `DELETE /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`: of a response that the client made itself.
fn is_for_kept_response(method: &Method, path: &str) -> bool {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let Some(rest) = path.strip_prefix("/responses/") else { return false };
    let id = if method == Method::DELETE { Some(rest) } else { rest.strip_suffix("/cancel") };
    id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

/// True for a route that uses a model.
pub(super) fn costs(path: &str) -> bool {
    !COST_NOTHING.iter().any(|free| is_below(path, free))
}

/// The length that a request says its body has; at least one, since it has one.
fn declared(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(1).max(1)
}

fn named(body: &[u8]) -> Result<String, ApiError> {
    let object = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok());
    object.as_ref().map_or(Ok(()), only_one_model)?;
    object.and_then(|object| object.string("model")).ok_or_else(names_no_model)
}

/// The model of a form that is all here.
fn named_in_form(mut form: FormReader, body: &[u8]) -> Result<String, ApiError> {
    let mut models = form.push(body).into_iter().filter(|field| field.name == "model");
    let model = models.next().ok_or_else(names_no_model)?;
    models.next().map_or(Ok(model.value), |_| Err(form_names_two_models()))
}

/// The reader of a form that these headers announce, unless its content is encoded.
pub(super) fn form_reader(headers: &HeaderMap) -> Option<FormReader> {
    let is_plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    let content_type = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    FormReader::from_content_type(content_type).filter(|_| is_plain)
}

/// A form is sent on with one model, whose alias, server, budget and permission hold; the server may take the other one.
pub(super) fn form_names_two_models() -> ApiError {
    let what = "the form has more than one field `model`: send it once";
    ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param("model")
}

fn names_no_model() -> ApiError {
    let what = "this key may use certain models only, and the request names none that respool can read: send JSON, or a form, with `model`";
    ApiError::bad_request(ErrorCode::MissingRequiredParameter, what).with_param("model")
}

/// The server may take the other one.
fn only_one_model(body: &Object<'_>) -> Result<(), ApiError> {
    if body.is_repeated("model") {
        let what = "the request names `model` more than once, and this key may use certain models only: send it once";
        return Err(ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param("model"));
    }
    Ok(())
}

fn may_use(app: &App, visit: &Visit, name: &str) -> Result<(), ApiError> {
    let (is_agent, limits) = (app.is_agent(name), &visit.key.limits);
    if limits.permits(name, is_agent) {
        return Ok(());
    }
    // As OpenAI has it: a model that is not the client's might as well not exist. A 403 would make OpenClaw switch its provider off.
    let what = format!(
        "The model `{}` does not exist for this key. GET /v1/models lists those that do",
        name.escape_default()
    );
    Err(ApiError::new(404, ErrorCode::ModelNotFound, what).with_param("model"))
}

fn refusal(exceeded: &Exceeded) -> ApiError {
    let wait = humantime::format_duration(std::time::Duration::from_secs(exceeded.wait));
    let what = format!(
        "this key permits {}, and they are used up: send the request again in {wait}",
        exceeded.limit
    );
    let mut error = ApiError::new(429, ErrorCode::KeyLimitReached, what);
    error.retry_after = Some(exceeded.wait);
    error
}

/// Answers a request that was refused before any route.
pub(super) async fn refused(app: App, request: Request<Incoming>, error: ApiError) -> Response {
    let (parts, body) = request.into_parts();
    body::discard(body.into_data_stream()).await;
    refused_head(&app, &parts, error)
}

/// The same, where the body was taken in.
pub(super) fn refused_head(app: &App, parts: &request::Parts, error: ApiError) -> Response {
    let name = format!("{} {}", parts.method, parts.uri.path());
    let start = RequestStart::new(respond::request_id(&parts.headers), name, "refused");
    let record = RequestRecord::begin(start.of_account(account(&parts.extensions)), &app.recording);
    let is_unknown = error.status == 401;
    let response = agent_apis::refused_at_the_door(app, parts, error, &record.start().id);
    let mut response = respond::leaves(response, &record);
    if is_unknown && response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::final_error::ErrorForm;
    use translate::ClientProgram;

    #[test]
    fn respools_own_paths_are_whole_segments() {
        for (path, expected) in [
            ("/v1/runs", true),
            ("/v1/runs/a/cancel", true),
            ("/hooks/a/b", true),
            ("/v1/runs_of_others", false),
            ("/v1/usages", false),
            ("/v1/completions", false),
        ] {
            assert_eq!(is_own(path), expected, "{path}");
        }
    }

    #[test]
    fn a_limit_is_a_429_and_for_openclaw_a_422_in_words_that_it_takes_as_final() {
        let exceeded = Exceeded { limit: "60 requests a minute".into(), wait: 75 };
        let error = refusal(&exceeded);
        assert_eq!((error.status, error.retry_after), (429, Some(75)));
        assert!(error.message.ends_with("send the request again in 1m 15s"), "{}", error.message);
        for limit in ["60 requests a minute", "100 tokens a day", "2 requests at a time"] {
            let error = refusal(&Exceeded { limit: limit.into(), wait: 401 });
            let form = ErrorForm { program: ClientProgram::OpenClaw, ..ErrorForm::default() };
            let shown = form.apply(error.clone());
            assert_eq!((shown.status, shown.retry_after, shown.message), (422, None, error.message));
        }
    }

    #[test]
    fn a_spent_budget_is_a_429_with_the_time_and_for_openclaw_a_422() {
        let scope = usage::Scope::Key("alice".into());
        let exhausted = Exhausted { scope, budget: usage::Money::from_units(2.5), wait: 75 };
        let error = spent(&exhausted);
        assert_eq!((error.status, error.retry_after), (429, Some(75)));
        assert!(
            error.message.contains("the key `alice` (2.50)") && error.message.contains("1m 15s"),
            "{}",
            error.message
        );
        let form = ErrorForm { program: ClientProgram::OpenClaw, ..ErrorForm::default() };
        let shown = form.apply(error.clone());
        assert_eq!((shown.status, shown.retry_after, shown.message), (422, None, error.message));
    }
}
