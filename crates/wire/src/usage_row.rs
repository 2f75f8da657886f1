//! One row of the usage ledger.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::turn::Usage;

/// One request, or one model call of an agent's run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageRow {
    /// When it arrived, in milliseconds since 1970.
    pub at: u64,
    /// Its id, as the log has it.
    pub id: String,
    /// The route's name.
    pub route: Cow<'static, str>,
    /// The name of the client's key; empty where clients have none.
    pub key: String,
    /// The model that was asked last.
    pub model: String,
    /// The upstream of the last attempt.
    pub upstream: String,
    /// The agent or expert that it was for; empty for a plain request.
    pub agent: String,
    /// The run of that agent.
    pub run: String,
    /// The node that it reached; empty where none shares a database with others.
    pub node: String,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// The status of the reply; 0 when none left.
    pub status: u16,
    /// The known tokens of all attempts. A request to an agent has none, because its model calls have their
    /// own rows.
    pub usage: Option<Usage>,
    /// From its arrival to the first byte of the reply.
    pub first_byte: Option<Duration>,
    /// From its arrival to its end.
    pub duration: Duration,
    /// The time that it waited for a place at an upstream, or for an upstream to return.
    pub waited: Duration,
    /// The number of attempts at upstreams.
    pub attempts: u32,
    /// The dialects that calls were read in, between commas.
    pub dialects: String,
    /// The repairs made to calls, between commas.
    pub repairs: String,
    /// The faults of replies that were requested again, each with its remedy, between commas.
    pub recovery: String,
    /// The kind of loop that was ended.
    pub loop_stopped: String,
    /// How it ended.
    pub outcome: Cow<'static, str>,
    /// The error's code.
    pub error_code: String,
    /// The error as it stands in the log.
    pub error: String,
    /// Rare facts, for the page of one request.
    pub details: RequestDetails,
}

impl UsageRow {
    /// The route of a row that has only the tokens of a model in whose place another one answered. Its
    /// request has a row of its own.
    pub const ATTEMPT: &str = "attempt";
}

/// The facts about a request beyond one attempt at one upstream. Most requests have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestDetails {
    /// Method and path of a request that was refused before a route took it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// Method and path of a request that was passed on unread.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub passed: String,
    /// The address of its client.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// The attempts that ended before the last one, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier_attempts: Vec<EarlierAttempt>,
    /// The part of its wait that was for a place at an upstream, in milliseconds, if it waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// The models that were asked for before another one answered, each with the reason, between commas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fallback: String,
    /// Calls that did not leave, by reason, between commas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dropped: String,
    /// The parts of the conversation that were cut to make it fit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trimmed: String,
    /// Where the prompt first differs from that of the conversation's last request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix_lost: String,
    /// Turns with calls that came without reasoning, which the process did not have either.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_unknown: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl RequestDetails {
    /// Returns method and path of a request that was not for a turn of a model; else nothing.
    pub fn request_line(&self) -> &str {
        if self.refused.is_empty() { &self.passed } else { &self.refused }
    }
}

impl EarlierAttempt {
    /// Why an attempt ended that gave its place to a more urgent request. It counts as no repeat.
    pub const PUT_BACK: &str = "put_back";
}

/// An attempt that another one followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EarlierAttempt {
    /// The upstream that was asked.
    pub upstream: String,
    /// When it ended, in milliseconds after the request arrived.
    pub ended: u64,
    /// Why another attempt followed, in one word.
    pub why: String,
    /// The error that it ended in, as it stands in the log; empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The error's code.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The change of the next attempt, in one word; empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}
