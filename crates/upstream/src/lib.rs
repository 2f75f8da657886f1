//! The model servers behind respool: their client, what their failures mean, how often they may be asked again, which of several gets a
//! request and how many it gets at a time, and the built-in replay.

mod balance;
mod body;
mod circuit;
mod client;
pub mod config;
pub mod conversation;
mod failure;
mod fleet;
mod gate;
mod health;
mod learned_rules;
mod pool;
mod queue;
pub mod replay;
mod retry_budget;
mod state;
mod window;

pub use balance::{Load, choose, digest};
pub use body::{Incoming, Outgoing};
pub use client::{Call, Upstream, UpstreamResponse, hops, question_headers};
pub use config::{Address, OwnWire, UpstreamConfig};
pub use failure::{Failure, Tier, UpstreamError, in_few_words};
pub use fleet::{Fleet, LISTS_EVERY, Serving};
pub use gate::Place;
pub use health::Health;
pub use queue::Who;
pub use retry_budget::RepeatPermit;
pub use state::OutcomeReport;
pub use window::ModelFacts;
