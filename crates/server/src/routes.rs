//! The routes: which handler answers which request, and the checks before and after it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{get, post};
use futures::FutureExt as _;
use http::{Method, Request};
use hyper::body::Incoming;
use tower::ServiceExt as _;

use super::agent_apis::{Call, answer_agent_api, stored};
use super::app::{App, Peer};
use super::current::CurrentApp;
use super::front::{begin_other, refuse_request, refuse_with_head};
use super::metered_request::MeteredRequest;
use super::paths::CHAT;
use super::{approvals, chat, hooks, models, outbox, page, respond, runs, transparent, usage};

/// Returns the routes. A route that is not respool's own goes to the upstream unchanged.
pub fn router(app: App) -> Routes {
    Routes { current: CurrentApp::new(app, other_routes), peer: None }
}

/// Builds the routes of everything but turns.
fn other_routes(app: &App) -> Router {
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

/// Builds the routes for responses that clients keep, with or without the `/v1`.
fn kept_responses(base: &str) -> Router<App> {
    let one = get(stored::one).delete(stored::delete).fallback(transparent::transparent);
    Router::new()
        .route(&format!("{base}/responses/{{id}}"), one)
        .route(&format!("{base}/responses/{{id}}/cancel"), post(stored::cancel))
        .route(&format!("{base}/responses/{{id}}/input_items"), get(stored::input_items))
}

/// Sends each request to its handler. The hot route is not the router's: its bookkeeping would be a tenth of
/// a short request.
#[derive(Clone, Debug)]
pub struct Routes {
    current: CurrentApp,
    peer: Option<IpAddr>,
}

impl Routes {
    /// Returns the app that answers requests. It can be replaced while the server runs.
    pub fn current(&self) -> CurrentApp {
        self.current.clone()
    }

    /// Returns the routes for a connection from this address.
    pub(super) fn for_peer(&self, peer: IpAddr) -> Self {
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
        let metered = match app.access.admit(&mut request, self.peer) {
            Ok(metered) => metered,
            Err(error) => {
                return Box::pin(refuse_request(app.clone(), request, error).map(Ok));
            }
        };
        if request.method() == Method::POST {
            if CHAT.contains(&request.uri().path()) {
                return answer_metered(chat::handle_chat(app.clone(), request, self.peer), metered);
            }
            if let Some(call) = Call::at_path(request.uri().path()) {
                return answer_metered(answer_agent_api(call, app.clone(), request, self.peer), metered);
            }
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(Peer(peer));
        }
        Box::pin(other(app.clone(), current.others.clone(), request, metered))
    }
}

/// Answers a request for a turn. Its handler counts the request once it knows the model; the reply's bytes
/// are counted here.
fn answer_metered(
    work: impl Future<Output = Response> + Send + 'static,
    metered: Option<Arc<MeteredRequest>>,
) -> Answered {
    match metered {
        None => Box::pin(work.map(Ok)),
        Some(metered) => Box::pin(work.map(|response| Ok(metered.watch(response)))),
    }
}

/// Answers a request that is not for a model's turn.
async fn other(
    app: App,
    others: Router,
    request: Request<Incoming>,
    metered: Option<Arc<MeteredRequest>>,
) -> Result<Response, Infallible> {
    let request = match &metered {
        None => request.map(Body::new),
        Some(metered) => match begin_other(&app, request, metered).await {
            Ok(request) => request,
            Err((parts, error)) => return Ok(refuse_with_head(&app, &parts, error)),
        },
    };
    let mut response = others.oneshot(request).await?;
    app.access.guard_answer(response.headers_mut());
    Ok(match metered {
        None => response,
        Some(metered) => metered.watch(response),
    })
}
