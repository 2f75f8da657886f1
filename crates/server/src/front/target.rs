//! The stage that finds out who answers a request: an agent, a server that speaks the client's API itself, or
//! a model.

use std::sync::Arc;

use bytes::Bytes;

use crate::app::App;
use agent::Agent;
use openexperts::MODEL_PREFIX;
use translate::ClientProgram;
use upstream::OwnWire;
use wire::{ChatRequest, Object};

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
