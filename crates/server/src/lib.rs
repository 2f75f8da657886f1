//! The HTTP server: routes, when a head leaves, errors as HTTP, shutdown. Foreign server types stay in here.

mod access;
mod admin_routes;
mod agent;
mod agent_apis;
mod approvals;
mod body;
mod chat;
pub mod config;
mod current;
mod final_error;
mod form;
mod heartbeat;
mod hooks;
mod key_file;
mod key_limits;
mod key_reading;
mod keys;
mod meter;
mod models;
mod outbox;
mod own_route;
mod page;
mod pages;
mod patient;
mod permission;
mod respond;
mod run;
mod runs;
mod stream_head;
mod transparent;
mod usage;
mod visit;
mod wrong_keys;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{get, post};
use futures::FutureExt as _;
use http::{Method, Request};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

pub use access::{Access, is_for_everybody};
pub use agent_apis::{FailedStreams, KeptResponses};
pub use body::BodyRoom;
pub use config::{LimitsConfig, Listen, ServerConfig};
pub use current::CurrentApp;
pub use run::{Stop, run};

use agent_apis::stored;

use ::agent::{Agent, Agents};
use ::alerts::Alerts;
use ::usage::Ledger;
use experts::{Experts, Hooks};
use final_error::ErrorForm;
use openexperts::MODEL_PREFIX;
use relay::{Relay, Wire};
use telemetry::Recording;
use translate::{ClientProgram, Sealer};
use visit::Visit;

/// What every handler needs.
#[derive(Clone, Debug)]
pub struct App {
    /// The way to the models.
    pub relay: Arc<Relay>,
    /// The agents, and the runs in progress.
    pub agents: Arc<Agents>,
    /// The experts; `None` where none are served.
    pub experts: Option<Arc<Experts>>,
    /// Who may ask.
    pub access: Arc<Access>,
    /// The responses that clients keep.
    pub responses: Arc<KeptResponses>,
    /// Errors that a client is about to ask for again.
    pub failed_streams: Arc<FailedStreams>,
    /// Seals the reasoning that clients keep.
    pub sealer: Arc<Sealer>,
    /// The webhooks of experts, where there are experts.
    pub hooks: Option<Arc<Hooks>>,
    /// Bounds.
    pub limits: LimitsConfig,
    /// What becomes of requests in the log and in the rows of what was used.
    pub recording: Recording,
    /// What was used, and what may be spent.
    pub usage: Arc<Ledger>,
    /// What the owner must know.
    pub alerts: Arc<Alerts>,
    /// The room for request bodies.
    pub bodies: BodyRoom,
    /// Ends what is still running, once the time for draining is over.
    pub abort: CancellationToken,
}

impl App {
    /// True when a model's name is that of an agent or of an expert.
    fn is_agent(&self, name: &str) -> bool {
        self.agents.get(name).is_some() || self.experts.as_ref().is_some_and(|experts| experts.is_model(name))
    }

    /// The form that errors take for a client.
    fn error_form(&self, wire: Wire, program: ClientProgram) -> ErrorForm {
        ErrorForm { wire, program, final_errors: self.relay.final_errors() }
    }

    /// The agent of this name; of an expert one that is made for this run.
    fn agent(&self, name: &str) -> Option<Arc<Agent>> {
        let expert = || self.experts.as_ref()?.agent(name.strip_prefix(MODEL_PREFIX)?);
        self.agents.get(name).or_else(expert)
    }
}

/// The routes. What is not respool's own goes to the upstream as it is.
pub fn router(app: App) -> Routes {
    Routes { current: CurrentApp::new(app), peer: None }
}

/// The routes beside the hot ones.
fn others(app: &App) -> Router {
    let hooks = Router::new()
        .route("/{expert}/{trigger}", post(hooks::receive).fallback(hooks::nothing))
        .fallback(hooks::nothing);
    Router::new()
        .route("/v1/models", get(models::list).fallback(transparent::transparent))
        .route("/models", get(models::list).fallback(transparent::transparent))
        .route("/v1/models/{*id}", get(models::one).fallback(transparent::transparent))
        .route("/v1/runs", get(runs::list))
        .route("/v1/runs/{id}", get(runs::one))
        .route("/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/v1/usage", get(usage::usage))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}", get(approvals::one).post(approvals::decide))
        .route("/v1/outbox", get(outbox::list))
        .route("/v1/outbox/{id}", get(outbox::one))
        .route("/v1/outbox/{id}/done", post(outbox::done))
        .merge(kept_responses(""))
        .merge(kept_responses("/v1"))
        .nest("/hooks", hooks)
        .route("/health", get(respond::health))
        .route("/ready", get(models::ready))
        .route("/metrics", get(respond::metrics))
        .merge(page::routes())
        .fallback(transparent::transparent)
        .with_state(app.clone())
}

/// What clients do with responses that they keep, with or without the `/v1`.
fn kept_responses(base: &str) -> Router<App> {
    let one = get(stored::one).delete(stored::delete).fallback(transparent::transparent);
    Router::new()
        .route(&format!("{base}/responses/{{id}}"), one)
        .route(&format!("{base}/responses/{{id}}/cancel"), post(stored::cancel))
        .route(&format!("{base}/responses/{{id}}/input_items"), get(stored::input_items))
}

/// Sends each request to its handler. The hot route is not the router's: its bookkeeping would be a tenth of a short
/// request.
#[derive(Clone, Debug)]
pub struct Routes {
    current: CurrentApp,
    peer: Option<IpAddr>,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
struct Peer(IpAddr);

impl Routes {
    /// What requests are answered with, to be changed while the server runs.
    pub fn current(&self) -> CurrentApp {
        self.current.clone()
    }

    /// For a connection from this address.
    fn to(&self, peer: IpAddr) -> Self {
        Self { peer: Some(peer), ..self.clone() }
    }
}

type Answered = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = Answered;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let current = self.current.current();
        let app = &current.app;
        let visit = match app.access.admit(&mut request, self.peer) {
            Ok(visit) => visit,
            Err(error) => {
                return Box::pin(permission::refused(app.clone(), request, error).map(Ok));
            }
        };
        if request.method() == Method::POST {
            if CHAT.contains(&request.uri().path()) {
                return watched(chat::chat(app.clone(), request, self.peer), visit);
            }
            if let Some(call) = agent_apis::Call::of(request.uri().path()) {
                return watched(agent_apis::answer(call, app.clone(), request, self.peer), visit);
            }
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(Peer(peer));
        }
        Box::pin(other(app.clone(), current.others.clone(), request, visit))
    }
}

/// A route of a model's own: its handler counts the request once it knows the model; what leaves is watched here.
fn watched(work: impl Future<Output = Response> + Send + 'static, visit: Option<Arc<Visit>>) -> Answered {
    match visit {
        None => Box::pin(work.map(Ok)),
        Some(visit) => Box::pin(work.map(|response| Ok(visit.watch(response)))),
    }
}

/// A request that is not for a model's turn.
async fn other(
    app: App,
    others: Router,
    request: Request<Incoming>,
    visit: Option<Arc<Visit>>,
) -> Result<Response, Infallible> {
    let request = match &visit {
        None => request.map(Body::new),
        Some(visit) => match permission::begin_other(&app, request, visit).await {
            Ok(request) => request,
            Err((parts, error)) => return Ok(permission::refused_head(&app, &parts, error)),
        },
    };
    let mut response = others.oneshot(request).await?;
    app.access.guard_answer(response.headers_mut());
    Ok(match visit {
        None => response,
        Some(visit) => visit.watch(response),
    })
}

/// Chat completions. A base URL that was written without its `/v1` is the commonest slip, and costs nothing to forgive.
const CHAT: [&str; 2] = ["/v1/chat/completions", "/chat/completions"];

/// How long the probe of `/ready` waits for an upstream.
const READY_WITHIN: Duration = Duration::from_secs(3);
