//! The stage that finds out who answers a request: an agent, a server that speaks the client's API itself, or
//! a model.

use std::sync::Arc;

use bytes::Bytes;

use crate::app::App;
use agent::Agent;
use openexperts::{MODEL_PREFIX, suggest_nearest};
use telemetry::RequestRecord;
use translate::ClientProgram;
use upstream::OwnWire;
use wire::{ApiError, ChatRequest, ErrorCode, Object};

/// An agent that a request asks for, and the program that asks.
pub(crate) struct NamedAgent {
    pub(crate) agent: Arc<Agent>,
    pub(crate) program: ClientProgram,
}

/// Returns the agent that the body of a request names, if it names one. Nearly free where no agent's name
/// occurs in the body.
pub(crate) fn named_agent(app: &App, body: &Bytes) -> Option<NamedAgent> {
    let names = |name: &str| memchr::memmem::find(body, name.as_bytes()).is_some();
    let is_expert = app.experts.is_some() && names(MODEL_PREFIX);
    if !is_expert && !app.agents.all_agents().iter().any(|agent| names(&agent.name)) {
        return None;
    }
    let request = ChatRequest::parse(body).ok()?;
    Some(NamedAgent { agent: app.find_agent(&request.model())?, program: ClientProgram::from_chat(&request) })
}

/// Returns the error of a request for an expert that is not installed; `None` for other models. Nearly free
/// where no expert's name occurs in the body.
pub(crate) fn unknown_expert(app: &App, body: &Bytes, record: &RequestRecord) -> Option<ApiError> {
    let experts = app.experts.as_ref()?;
    memchr::memmem::find(body, MODEL_PREFIX.as_bytes())?;
    let model = ChatRequest::parse(body).ok()?.model();
    let is_expert = model.starts_with(MODEL_PREFIX) && !app.is_agent(&model);
    // A server may have a model of such a name.
    if !is_expert || app.relay.known_models().contains(&model) {
        return None;
    }
    let names: Vec<String> = experts.model_names().into_iter().map(|(name, _)| name).collect();
    let is_restricted = record.start().account.as_ref().is_some_and(|account| account.is_restricted());
    let near =
        if is_restricted { String::new() } else { suggest_nearest(&model, names.iter().map(String::as_str)) };
    let what = format!("The model `{model}` does not exist: {near}`/v1/models` lists the available ones");
    Some(ApiError::new(404, ErrorCode::ModelNotFound, what).with_param("model"))
}

/// Returns true if the servers of the request's model answer this API themselves. Only respool answers for an
/// agent.
pub(crate) fn is_left_to_server(app: &App, api: OwnWire, body: &Bytes) -> bool {
    if !app.relay.leaves_wires() {
        return false;
    }
    let model = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok()?.string("model"));
    let model = model.unwrap_or_default();
    !app.is_agent(&model) && app.relay.leaves_to_server(&model, api)
}
