//! `/v1/models`, `/v1/models/{id}` (which vLLM lacks) and `/ready`.

use std::collections::HashSet;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use futures::future::join_all;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value, json};

use super::agent_apis::{error_form, with_request_id};
use super::app::App;
use super::final_error::ErrorForm;
use super::front::may_use;
use super::own_route::begin_own_record;
use super::respond;
use adapt::Rule;
use telemetry::RequestRecord;
use translate::messages as anthropic;
use upstream::{NoModelList, Upstream, UpstreamError, question_headers, takes_no_media};
use wire::{ApiError, ErrorCode};

/// The period of errors that `/ready` lists.
const RECENT: Duration = Duration::from_mins(5);
/// How long the probe of `/ready` waits for an upstream.
const READY_WITHIN: Duration = Duration::from_secs(3);
/// The longest time for a list of models.
const LIST_WITHIN: Duration = Duration::from_secs(10);
/// The longest time for each of several upstreams: a silent one must not delay the others.
const ONE_OF_SEVERAL_WITHIN: Duration = Duration::from_secs(3);

pub(super) async fn list_models(State(app): State<App>, request: Request) -> Response {
    let record = begin_own_record(&app, &request, "GET /v1/models", "models");
    let of_anthropic = speaks_anthropics(&request);
    let response = match collect_models(&app, &question_headers(request.headers()))
        .await
        .retain_permitted(&app, request.extensions())
    {
        // A server that is down does not hide agents and the models of other servers.
        Models { found, failed: Some(error) } if found.is_empty() => {
            record.record_failed_attempts(error.status, error.log_text());
            respond::error_as(form_of(&app, &request), error.error, &record.start().id)
        }
        Models { found, .. } if of_anthropic => {
            let models: Vec<(String, u64)> = found.iter().map(name_and_time).collect();
            respond::json_response(StatusCode::OK, anthropic::models_json(&models))
        }
        Models { found, .. } => ok_response(&json!({"object": "list", "data": found})),
    };
    finish_response(response, of_anthropic, &record)
}

/// Returns true for Anthropic's clients, which name the version of its API.
fn speaks_anthropics(request: &Request) -> bool {
    request.headers().contains_key("anthropic-version")
}

fn name_and_time(model: &Value) -> (String, u64) {
    (model["id"].as_str().unwrap_or_default().to_owned(), model["created"].as_u64().unwrap_or_default())
}

pub(super) async fn get_model(State(app): State<App>, Path(id): Path<String>, request: Request) -> Response {
    let record = begin_own_record(&app, &request, "GET /v1/models/{id}", "models");
    let of_anthropic = speaks_anthropics(&request);
    let listed = collect_models(&app, &question_headers(request.headers())).await;
    let Models { found, failed } = listed.retain_permitted(&app, request.extensions());
    if let Some(model) = found.iter().find(|model| model["id"] == id.as_str()) {
        let (id, created) = name_and_time(model);
        let response = if of_anthropic {
            respond::json_response(StatusCode::OK, anthropic::model_json(&id, created))
        } else {
            ok_response(model)
        };
        return finish_response(response, of_anthropic, &record);
    }
    // It may be a model of the server that did not answer.
    if let Some(error) = &failed {
        record.record_failed_attempts(error.status, error.log_text());
    }
    let error = failed.map_or_else(|| unknown_model(&id, &found), |failed| failed.error);
    let response = respond::error_as(form_of(&app, &request), error, &record.start().id);
    respond::finish_response(response, &record)
}

fn form_of(app: &App, request: &Request) -> ErrorForm {
    error_form(app, request.uri().path(), request.headers())
}

fn unknown_model(id: &str, models: &[Value]) -> ApiError {
    let known: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
    let message = format!("The model `{id}` does not exist. There are: {}", known.join(", "));
    ApiError::new(404, ErrorCode::ModelNotFound, message).with_param("model")
}

/// Answers `/ready`: this process is up, and at least one upstream answers and is not left out. Requests are
/// relayed without a database too, so one that cannot be used is named and does not change the status.
pub(super) async fn answer_ready(State(app): State<App>, headers: HeaderMap) -> Response {
    let mut headers = question_headers(&headers);
    headers.remove(header::AUTHORIZATION);
    let (headers, usage) = (&headers, &app.usage);
    let counts = &usage.minutes().counts_since(clock::time_ago(RECENT));
    let several = app.relay.upstreams().nth(1).is_some();
    let checks = app.relay.upstreams().map(|upstream| async move {
        let asked = upstream.ask_models(headers.clone(), READY_WITHIN).await;
        // Its circuit admits a trial after each pause, which a balancer must let through.
        let is_left_out = !upstream.state.admits();
        let answers = asked.as_ref().map_or_else(NoModelList::waits_for_client_key, |_| true);
        let up = answers && !is_left_out;
        let failing = || upstream.state.circuit_problem().map(str::to_owned);
        let problem = asked.err().map(|problem| problem.to_string()).or_else(failing);
        let (circuit, in_flight, queued) = upstream.load_report();
        let silence = upstream.state.silence().map(|silence| silence.as_secs());
        let oldest = usage.in_flight.oldest_at(&upstream.name).map(|elapsed| elapsed.as_secs());
        let errors: Vec<&str> = counts.codes_at(&upstream.name).collect();
        // Of several upstreams, those by which requests are sent.
        let models = if several { upstream.state.models() } else { upstream.known_models() };
        json!({"name": upstream.name, "ready": up, "problem": problem, "circuit": circuit, "in_flight": in_flight,
            "oldest_s": oldest, "silent_s": silence, "queued": queued, "recent_errors": errors, "models": models})
    });
    let upstreams: Vec<Value> = join_all(checks).await;
    let any = upstreams.iter().any(|upstream| upstream["ready"] == true);
    let runs = app.agent_apis.responses.open_store().and_then(|store| store.check_file().err());
    let rows = || app.usage.store().and_then(|store| store.check_file().err());
    let problem =
        runs.or_else(rows).map(|error| error.0).or_else(|| app.usage.fault().or(app.usage.sharing_fault()));
    let state = json!({"ready": problem.is_none(), "problem": problem});
    let body = json!({"ready": any, "upstreams": upstreams, "state": state});
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = if any { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let kind = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

fn ok_response(body: &Value) -> Response {
    respond::json_response(StatusCode::OK, body.to_string())
}

fn finish_response(response: Response, of_anthropic: bool, record: &RequestRecord) -> Response {
    let response = respond::finish_response(response, record);
    if of_anthropic { with_request_id(response) } else { response }
}

/// The models that are known to be available.
struct Models {
    /// The models of all upstreams that answer, the names that stand for them, and the agents.
    found: Vec<Value>,
    /// The reason why one of the upstreams did not answer.
    failed: Option<UpstreamError>,
}

impl Models {
    /// Keeps the models that the client may ask for.
    fn retain_permitted(mut self, app: &App, extensions: &http::Extensions) -> Self {
        let permitted = |model: &Value| {
            let id = model["id"].as_str().unwrap_or_default();
            may_use(extensions, id, app.is_agent(id))
        };
        self.found.retain(permitted);
        self
    }
}

async fn collect_models(app: &App, headers: &HeaderMap) -> Models {
    let several = app.relay.upstreams().nth(1).is_some();
    let asked =
        join_all(app.relay.upstreams().map(|upstream| upstream_models(upstream, headers, several))).await;
    let (mut found, mut seen) = (Vec::<Value>::new(), HashSet::new());
    let mut failed = None;
    for answer in asked {
        match answer {
            Ok(models) => found.extend(models.into_iter().filter(|model| seen.insert(model["id"].clone()))),
            Err(error) => failed = Some(error),
        }
    }
    let config = app.relay.config();
    let entry = |alias| alias_entry(&found, alias, config.target(alias));
    let aliases: Vec<Value> = config.aliases().filter_map(entry).collect();
    // A request for a model of that name gets the alias.
    found.retain(|model| aliases.iter().all(|alias| alias["id"] != model["id"]));
    found.extend(aliases);
    for model in &mut found {
        // Pictures for it go to a model that sees.
        if model["id"].as_str().is_some_and(|id| config.vision(id).is_some()) {
            model["capabilities"]["vision"] = true.into();
        }
    }
    found.extend(app.agents.all_agents().iter().map(|agent| agent_entry(&agent.name, &agent.config.model)));
    if let Some(experts) = &app.experts {
        found.extend(experts.model_names().iter().map(|(name, model)| agent_entry(name, model)));
    }
    Models { found, failed }
}

/// Returns the models of one upstream; with `several`, only those for which it is asked.
async fn upstream_models(
    upstream: &Upstream,
    headers: &HeaderMap,
    several: bool,
) -> Result<Vec<Value>, UpstreamError> {
    let within = if several { ONE_OF_SEVERAL_WITHIN } else { LIST_WITHIN };
    let asked = upstream.ask_models(headers.clone(), within).await;
    let models = asked.map_err(|problem| problem.into_upstream_error(&upstream.name))?;
    let mut models: Vec<Value> = models.into_iter().map(|model| model.entry).collect();
    models.iter_mut().for_each(|model| add_capabilities(model, upstream));
    let id = |model: &Value| model["id"].as_str().map(str::to_owned);
    if several && upstream.state.names_its_models() {
        models.retain(|model| id(model).is_some_and(|id| upstream.state.serves_model(&id) == Some(true)));
    }
    Ok(models)
}

/// Adds whether a model sees and hears, as far as its family, refusals or its server's list say so.
fn add_capabilities(model: &mut Value, upstream: &Upstream) {
    if model.get("capabilities").is_some() {
        return;
    }
    let id = model["id"].as_str().unwrap_or_default();
    let modalities = model["architecture"]["input_modalities"].as_array();
    let takes = |refused: &Rule, modality: &str| {
        if takes_no_media(upstream, id, refused) {
            return Some(false);
        }
        Some(modalities?.iter().any(|known| known == modality))
    };
    let known = [("vision", takes(&Rule::NoImages, "image")), ("audio", takes(&Rule::NoAudio, "audio"))];
    let known: Map<String, Value> =
        known.into_iter().filter_map(|(name, takes)| Some((name.to_owned(), takes?.into()))).collect();
    if !known.is_empty() {
        model["capabilities"] = known.into();
    }
}

fn agent_entry(name: &str, model: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "respool", "root": model})
}

fn alias_entry(models: &[Value], alias: &str, target: &str) -> Option<Value> {
    let mut model = models.iter().find(|model| model["id"] == target)?.clone();
    model["id"] = alias.into();
    model["root"] = target.into();
    Some(model)
}
