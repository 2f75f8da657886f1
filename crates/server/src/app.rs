//! The parts of the server that every handler gets, and the address that a request came from.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::agent_apis::{FailedStreams, KeptResponses};
use super::body::BodyBudget;
use super::config::LimitsConfig;
use super::final_error::ErrorForm;
use ::agent::{Agent, Agents};
use ::alerts::Alerts;
use ::usage::Ledger;
use experts::{Experts, Hooks};
use openexperts::MODEL_PREFIX;
use relay::{Relay, Wire};
use telemetry::Recording;
use translate::{ClientProgram, Sealer};

/// The parts of the server, shared by all requests.
pub type App = Arc<AppParts>;

/// The parts of the server that every handler gets.
#[derive(Clone, Debug)]
pub struct AppParts {
    /// The way to the models.
    pub relay: Arc<Relay>,
    /// The agents, and the runs in progress.
    pub agents: Arc<Agents>,
    /// The experts, where there are any.
    pub experts: Option<Arc<Experts>>,
    /// The checks before the routes.
    pub access: Arc<Access>,
    /// The memory of the routes for agent clients.
    pub agent_apis: Arc<AgentApiState>,
    /// The webhooks of experts, where there are experts.
    pub hooks: Option<Arc<Hooks>>,
    /// The limits of the server.
    pub limits: LimitsConfig,
    /// How requests are recorded in the log and in the usage rows.
    pub recording: Recording,
    /// Usage, limits and budgets.
    pub usage: Arc<Ledger>,
    /// The alerts of the owner.
    pub alerts: Arc<Alerts>,
    /// The memory budget for request bodies.
    pub bodies: BodyBudget,
    /// Ends the remaining requests once the time for draining has passed.
    pub abort: CancellationToken,
}

/// The memory of the routes for agent clients.
#[derive(Debug)]
pub struct AgentApiState {
    /// The responses that clients keep.
    pub responses: Arc<KeptResponses>,
    /// Errors of streams that a client is about to request again.
    pub failed_streams: Arc<FailedStreams>,
    /// Seals the reasoning that clients keep.
    pub sealer: Arc<Sealer>,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

impl AppParts {
    /// Returns true if a model's name is that of an agent or of an expert.
    pub(super) fn is_agent(&self, name: &str) -> bool {
        self.agents.get(name).is_some() || self.experts.as_ref().is_some_and(|experts| experts.is_model(name))
    }

    /// Returns the form that errors take for a client.
    pub(super) fn error_form(&self, wire: Wire, program: ClientProgram) -> ErrorForm {
        ErrorForm { wire, program, final_errors: self.relay.final_errors() }
    }

    /// Returns the agent of this name. The agent of an expert is made for this run.
    pub(super) fn find_agent(&self, name: &str) -> Option<Arc<Agent>> {
        let expert = || self.experts.as_ref()?.agent(name.strip_prefix(MODEL_PREFIX)?);
        self.agents.get(name).or_else(expert)
    }
}
