//! The model servers behind respool: their client, what their failures mean, how often they may be asked
//! again, which of several gets a request and how many it gets at a time, and the built-in replay.

mod admission;
mod balance;
mod body;
mod circuit;
mod client;
#[cfg_attr(not(feature = "compression"), path = "without_compression.rs")]
mod compression;
pub mod config;
mod connector;
pub mod conversation;
mod failure;
mod fleet;
mod gate;
mod headers;
mod health;
mod learned_rules;
mod load_state;
mod model_facts;
mod outgoing;
mod pool;
mod priority;
mod probes;
mod queue;
pub mod replay;
mod response;
mod retry_budget;
mod rule_file;
mod server;
mod server_rules;
mod setup_error;
mod state;
mod unanswered;
mod window;

pub use admission::OutcomeReport;
pub use balance::{Load, choose_upstream, digest};
pub use body::Incoming;
pub use client::{CHAT_PATH, Call, Upstream};
pub use config::{Address, OwnWire, UpstreamConfig};
pub use failure::{Failure, Tier, UpstreamError, shorten_body};
pub use fleet::{Fleet, LISTS_EVERY, Serving};
pub use gate::UpstreamPlace;
pub use headers::{hop_count, question_headers};
pub use learned_rules::{KeptModelRules, KeptRules};
pub use model_facts::ModelFacts;
pub use outgoing::Outgoing;
pub use priority::Priority;
pub use probes::Health;
pub use queue::QueueClient;
pub use response::{UpstreamResponse, UpstreamResult};
pub use retry_budget::RepeatPermit;
pub use rule_file::RuleFile;
pub use server::Server;
pub use server_rules::ServerRules;
pub use setup_error::{SetupError, SetupProblem};
