//! The routes: which handler answers which request, and the checks before and after it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{get, post};
use futures::{FutureExt as _, TryFutureExt as _};
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
pub fn build_routes(app: App) -> Routes {
    Routes { current: CurrentApp::new(app, other_routes), peer: None }
}

/// Builds the routes of everything but turns.
fn other_routes(app: &App) -> Router {
    let hooks = Router::new()
        .route("/{expert}/{trigger}", post(hooks::receive_hook).fallback(hooks::answer_not_found))
        .fallback(hooks::answer_not_found);
    Router::new()
        .route("/v1/models", get(models::list_models).fallback(transparent::pass_through))
        .route("/models", get(models::list_models).fallback(transparent::pass_through))
        .route("/v1/models/{*id}", get(models::get_model).fallback(transparent::pass_through))
        .route("/v1/runs", get(runs::list_runs))
        .route("/v1/runs/{id}", get(runs::get_run))
        .route("/v1/runs/{id}/cancel", post(runs::cancel_run))
        .route("/v1/usage", get(usage::answer_usage))
        .route("/v1/approvals", get(approvals::list_approvals))
        .route("/v1/approvals/{id}", get(approvals::get_approval).post(approvals::decide_approval))
        .route("/v1/outbox", get(outbox::list_messages))
        .route("/v1/outbox/{id}", get(outbox::get_message))
        .route("/v1/outbox/{id}/done", post(outbox::mark_done))
        .merge(kept_responses(""))
        .merge(kept_responses("/v1"))
        .nest("/hooks", hooks)
        .route("/health", get(respond::answer_health))
        .route("/ready", get(models::answer_ready))
        .route("/metrics", get(respond::answer_metrics))
        .merge(page::page_routes())
        .fallback(transparent::pass_through)
        .with_state(app.clone())
}

/// Builds the routes for responses that clients keep, with or without the `/v1`.
fn kept_responses(base: &str) -> Router<App> {
    let one = get(stored::get_response).delete(stored::delete_response).fallback(transparent::pass_through);
    Router::new()
        .route(&format!("{base}/responses/{{id}}"), one)
        .route(&format!("{base}/responses/{{id}}/cancel"), post(stored::cancel_response))
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
    pub(super) fn with_peer(&self, peer: IpAddr) -> Self {
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
        let client = app.access.client_address(self.peer, request.headers());
        let metered = match app.access.admit_request(&mut request, client) {
            Ok(metered) => metered,
            Err(error) => {
                if let Some(response) = page::answer_lost_visitor(&current.app, &request, &error) {
                    return Box::pin(std::future::ready(Ok(response)));
                }
                if let Some(client) = client {
                    request.extensions_mut().insert(Peer(client));
                }
                return Box::pin(refuse_request(app.clone(), request, error).map(Ok));
            }
        };
        if request.method() == Method::POST {
            if CHAT.contains(&request.uri().path()) {
                return answer_metered(chat::handle_chat(app.clone(), request, client), metered);
            }
            if let Some(call) = Call::from_path(request.uri().path()) {
                let work = answer_agent_api(call, app.clone(), request, client);
                return answer_metered(work.map(Ok), metered);
            }
        }
        if let Some(client) = client {
            request.extensions_mut().insert(Peer(client));
        }
        Box::pin(answer_other(app.clone(), current.others.clone(), request, metered))
    }
}

/// Answers a request for a turn. Its handler counts the request once it knows the model; the reply's bytes
/// are counted here.
fn answer_metered(
    work: impl Future<Output = Result<Response, Infallible>> + Send + 'static,
    metered: Option<Arc<MeteredRequest>>,
) -> Answered {
    match metered {
        None => Box::pin(work),
        Some(metered) => Box::pin(work.map_ok(move |response| metered.watch_reply(response))),
    }
}

/// Answers a request that is not for a model's turn.
async fn answer_other(
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
        Some(metered) => metered.watch_reply(response),
    })
}
