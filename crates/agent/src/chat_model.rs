//! The port through which a run asks its model. The product serves it with the relay; nothing here knows how.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderValue;
use serde_json::Value;

use super::activity::Observer;
use telemetry::RequestRecord;
use tool_call_parser::PreferredDialects;
use wire::ApiError;
use wire::turn::Turn;

/// One request of a run to its model.
pub struct ModelRequest {
    /// The body of the chat completion.
    pub body: Value,
    /// The client's own key, for upstreams that have none.
    pub authorization: Option<HeaderValue>,
    /// The record of the call in the log and the usage rows.
    pub record: RequestRecord,
    /// How long the model may take. The time for which the request waits for a server to come back does not
    /// count.
    pub within: Duration,
    /// Answer [`ModelAnswer::LoopFound`] instead of asking when the conversation repeats itself.
    pub stop_at_loops: bool,
}

/// How a request to a model ended.
#[derive(Debug)]
pub enum ModelAnswer {
    /// The model replied.
    Reply {
        /// The turn.
        turn: Turn,
        /// Prompt tokens of earlier attempts, which the turn's usage leaves out.
        earlier_prompts: u64,
    },
    /// The loop guard found that the conversation repeats itself.
    LoopFound,
    /// The model did not reply in time.
    TimedOut,
}

/// Facts about a model, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The smallest window that a server of it announces, in tokens.
    pub window: Option<u64>,
    /// A server renders its prompts by the harmony library.
    pub is_harmony: bool,
    /// The dialects that the configuration gives to it.
    pub configured_dialects: PreferredDialects,
    /// The dialects that its servers announce, all together.
    pub announced_dialects: PreferredDialects,
}

/// The way to models.
pub trait ChatModel: Send + Sync {
    /// Asks for one reply. The pieces of a reply that streams are reported to the observer. Dropping the
    /// future drops the request.
    ///
    /// # Errors
    /// When no server gave a useful reply.
    fn ask(
        self: Arc<Self>,
        request: ModelRequest,
        observer: &Observer,
    ) -> BoxFuture<'_, Result<ModelAnswer, ApiError>>;

    /// Asks the servers for their models, where that is not known yet, so that [`ChatModel::facts`] knows
    /// them.
    fn learn_models<'a>(&'a self, authorization: Option<&'a HeaderValue>) -> BoxFuture<'a, ()>;

    /// Returns what is known of a model without asking. `id` is its name in the configuration, `target` the
    /// one that the servers know.
    fn facts(&self, id: &str, target: &str) -> ModelFacts;
}
