//! The one path to a model: a client's request in, a turn or a stream of its chunks out.
//!
//! A request is read once, into a value that never changes ([`ClientRequest`]). [`Relay::answer`] makes attempts from it as
//! `decide` says, each with an outcome, until a reply can leave or nothing helps. Four routes ([`Route`]) differ only in how
//! a reply is read: whole by the tool-call engine, as it streams by the same engine, forwarded as it streams, or forwarded
//! as it stands. Nothing here knows HTTP's server side: `server` decides when a head leaves. Dropping any of the futures
//! drops the upstream request.

mod attempt;
mod candidates;
mod client;
mod completion;
pub mod config;
mod decide;
mod exchange;
mod fit;
mod forward;
mod look_back;
mod memory;
mod outcome;
mod recent;
mod reply_stream;
mod request;

use std::sync::Arc;

use bytes::Bytes;

pub use client::{Origin, RequestProgress, Wire, program_of};
pub use config::{
    ContextConfig, FinalErrors, ModelConfig, OnOverflow, ReasoningField, RecoveryConfig, RelayConfig,
    ToolParsing, ToolsMode,
};
pub use forward::{Forward, NamedModel, Passing, is_safe};
use memory::{Memory, MemoryLimits};
use recent::{Recent, RecentLimits};
pub use reply_stream::{ReplyStream, StreamPart};
pub use request::{ClientRequest, Facts, Route};

use tool_call_parser::PreferredDialects;
use translate::{GuardLimits, Reply};
use upstream::{Fleet, OutcomeReport, Tier, Upstream, UpstreamError};

/// Relays requests to the configured upstreams.
#[derive(Debug)]
pub struct Relay {
    config: Arc<RelayConfig>,
    fleet: Arc<Fleet>,
    max_body: usize,
    guard: GuardLimits,
    memory: Option<Arc<Memory>>,
    recent: Recent,
}

/// Bounds that the relay keeps.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// The largest reply, in bytes.
    pub max_body: usize,
    /// When the loop guard answers.
    pub guard: GuardLimits,
}

/// What a request was answered with.
#[derive(Debug)]
pub enum Opened {
    /// A stream.
    Stream(Box<ReplyStream>),
    /// A whole completion that was read: with tools, or although a stream was asked for.
    Reply(Box<Reply>),
    /// A whole completion, as its bytes are to leave.
    Body(Bytes),
}

impl Relay {
    /// Relays to these upstreams.
    pub fn new(config: RelayConfig, fleet: Arc<Fleet>, limits: RelayLimits) -> Self {
        let memory = config.recovery.reasoning_memory.then(|| Arc::new(Memory::new(MemoryLimits::default())));
        let recent = Recent::new(RecentLimits::default());
        let (max_body, guard) = (limits.max_body, limits.guard);
        Self { config: Arc::new(config), fleet, max_body, guard, memory, recent }
    }

    /// What follows a relay when the configuration changes. It remembers the same conversations.
    #[must_use]
    pub fn succeeding(&self, config: RelayConfig, fleet: Arc<Fleet>, limits: RelayLimits) -> Self {
        let new = Self::new(config, fleet, limits);
        let memory = new.memory.map(|memory| self.memory.clone().unwrap_or(memory));
        Self { memory, ..new }
    }

    /// The form of errors that leave after all that could be tried.
    pub fn final_errors(&self) -> FinalErrors {
        self.config.recovery.final_errors
    }

    /// The upstreams, the default one first.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.fleet.iter()
    }

    /// Names that stand for other models.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.config.aliases().map(|alias| (alias, self.config.target(alias)))
    }

    /// The model that an id stands for.
    pub fn target<'a>(&'a self, id: &'a str) -> &'a str {
        self.config.target(id)
    }

    /// The window that the configuration gives to the model of this id.
    pub fn configured_window(&self, id: &str) -> Option<u64> {
        self.config.modes(id).context_window
    }

    /// The dialects that the configuration gives to the model of this id.
    pub fn configured_dialects(&self, id: &str) -> PreferredDialects {
        self.config.modes(id).dialects
    }

    /// Reports to the upstream's circuit how a request went.
    fn note(&self, error: Option<&UpstreamError>, report: OutcomeReport) {
        match error {
            Some(error) if counts_against_upstream(error) => report.failed(&error.loggable),
            error => {
                let was_down = report.succeeded();
                // Perhaps it came back with another model.
                if was_down || error.is_some_and(|error| error.status == Some(404)) {
                    self.fleet.want_lists();
                }
            }
        }
    }
}

/// Connections that fail, 5xx, answers that are none: not what is wrong with the request, nor with what the model wrote.
fn counts_against_upstream(error: &UpstreamError) -> bool {
    match error.tier {
        Tier::Transient => true,
        Tier::Fatal => error.error.status >= 500,
        Tier::Glitch | Tier::ContextOverflow | Tier::Rejected => false,
    }
}
