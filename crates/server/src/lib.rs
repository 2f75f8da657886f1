//! The HTTP server: routes, when a head leaves, errors as HTTP, shutdown. Foreign server types stay in here.
//!
//! A request passes `access` (who asks), then the stages of `front`, and leaves through `respond`; a stream
//! leaves through `heartbeat`. `routes` says which handler answers what.

mod access;
mod admin_routes;
mod agent;
mod agent_apis;
mod announced_progress;
mod app;
mod approvals;
mod body;
mod chat;
pub mod config;
mod current;
mod final_error;
mod form;
mod front;
mod heartbeat;
mod hooks;
mod key_digest;
mod key_file;
mod key_limits;
mod key_reading;
mod keys;
mod meter;
mod metered_request;
mod models;
mod origin_check;
mod outbox;
mod own_route;
mod page;
mod paths;
mod proxies;
mod reported_usage;
mod respond;
mod routes;
mod run;
mod runs;
mod stream_head;
mod transparent;
mod upload;
mod usage;
mod write_timeout;
mod wrong_keys;

pub use access::{Access, is_for_everybody};
pub use agent_apis::{FailedStreams, KeptResponses};
pub use app::{AgentApiState, App, AppParts};
pub use body::BodyBudget;
pub use config::{LimitsConfig, Listen, ServerConfig};
pub use current::CurrentApp;
pub use key_reading::is_open_to_others;
pub use keys::KeyQuota;
pub use page::{describe_fallback, describe_reason, describe_remedy, describe_repairs, describe_wait};
pub use routes::{Routes, build_routes};
pub use run::{Stop, run_server};
