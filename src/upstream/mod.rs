//! The model server behind respool: its client, what its failures mean, when to try again, and the built-in replay.

mod body;
mod client;
pub mod config;
mod failure;
mod pool;
pub mod replay;
mod retry;
mod window;

pub use body::{Incoming, Outgoing};
pub use client::{Answer, Call, Upstream};
pub use config::{Address, UpstreamConfig};
pub use failure::{Tier, UpstreamError, in_few_words};
pub use retry::RetryPolicy;
pub use window::ModelFacts;
