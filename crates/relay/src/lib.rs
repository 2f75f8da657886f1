//! The one path to a model: a client's request in, a turn or a stream of its chunks out.
//!
//! [`Relay::read`] reads a request once, into a value that never changes. [`ReadRequest::answer`] makes
//! attempts from it as `decide` says, each with an outcome, until a reply can leave or nothing helps.
//! `adaptation` makes the body of each attempt from the request, for one upstream and model. Four routes
//! ([`Route`]) differ only in how a reply is read: whole by the tool-call engine, as it streams by the same
//! engine, forwarded as it streams, or forwarded as it stands. Nothing here knows HTTP's server side:
//! `server` decides when a head leaves. Dropping any of the futures drops the upstream request.

mod adaptation;
mod answer;
mod attempt;
mod candidates;
mod client;
mod completion;
pub mod config;
mod conversation_rules;
mod decide;
mod exchange;
mod fallback;
mod fit;
mod forward;
mod history_analysis;
mod memory;
mod missing_model;
mod outcome;
mod reading;
mod recent;
mod relay;
mod reply_stream;
mod request;

pub use answer::{Opened, ReadRequest};
pub use client::{Awaited, Origin, ReplyWishes, RequestProgress, WaitEnd, Wire, program_of};
pub use config::{
    ContextConfig, FinalErrors, ModelConfig, OnOverflow, ReasoningField, RecoveryConfig, RelayConfig,
    ToolParsing, ToolsMode,
};
pub use forward::{Forward, NamedModel, Passing, is_safe};
pub use relay::{Relay, RelayLimits};
pub use reply_stream::{ReplyStream, StreamPart};
pub use request::{ReplyForm, RequestProfile, Route};
