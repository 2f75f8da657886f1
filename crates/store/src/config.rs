//! `state_dir`, `[runs]` and `[responses]`: where durable state lives, how long and how much of it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Size, deserialize_duration};

/// The store's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    /// The directory of durable state; the platform's state directory unless configured. It may not exist
    /// yet.
    pub state_dir: PathBuf,
    /// Which runs are kept there.
    pub runs: RunsConfig,
    /// Which responses are kept there.
    pub responses: ResponsesConfig,
}

/// `[runs]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunsConfig {
    /// How long after its last event a run is deleted; one that is worked on stays.
    #[serde(deserialize_with = "deserialize_duration")]
    pub keep: Duration,
    /// The size of all runs from which on those that ended are deleted, the oldest first.
    pub max_size: Size,
}

impl RunsConfig {
    /// Less than this leaves no room for one run with a few large results.
    pub const LEAST_SIZE: Size = Size::mib(1);
}

impl Default for RunsConfig {
    fn default() -> Self {
        Self { keep: Duration::from_hours(30 * 24), max_size: Size::mib(1024) }
    }
}

/// `[responses]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResponsesConfig {
    /// Whether responses of `/v1/responses` are kept for clients that do not say `store: false`.
    pub store: bool,
    /// How long after it was made or last continued a response is deleted.
    #[serde(deserialize_with = "deserialize_duration")]
    pub keep: Duration,
    /// The size of all responses from which on those are deleted that were used longest ago.
    pub max_size: Size,
}

impl Default for ResponsesConfig {
    fn default() -> Self {
        Self { store: true, keep: Duration::from_hours(30 * 24), max_size: Size::mib(1024) }
    }
}
