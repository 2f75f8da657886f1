//! The HTTP server: routes, when a head leaves, errors as HTTP, shutdown. Foreign server types stay in here.

mod body;
mod chat;
pub mod config;
mod models;
mod respond;
mod run;
mod transparent;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;

pub use config::{LimitsConfig, Listen, ServerConfig};
pub use run::{Stop, run};

use crate::relay::Relay;

/// What every handler needs.
#[derive(Clone, Debug)]
pub struct App {
    /// The way to the models.
    pub relay: Arc<Relay>,
    /// Bounds.
    pub limits: LimitsConfig,
    /// Message text may be logged.
    pub log_content: bool,
    /// Ends what is still running, once the time for draining is over.
    pub abort: CancellationToken,
}

/// The routes. What is not respool's own goes to the upstream as it is.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat).fallback(transparent::transparent))
        .route("/v1/models", get(models::list).fallback(transparent::transparent))
        .route("/v1/models/{*id}", get(models::one).fallback(transparent::transparent))
        .route("/health", get(respond::health))
        .route("/ready", get(models::ready))
        .route("/metrics", get(respond::metrics))
        .fallback(transparent::transparent)
        .with_state(app)
}

/// How long the probe of `/ready` waits for an upstream.
const READY_WITHIN: Duration = Duration::from_secs(3);
