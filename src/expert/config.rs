//! `[experts]`: where experts are.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// The directory of their packages; `~/.openclaw/experts` unless configured.
    pub dir: PathBuf,
    /// The directory that holds what they keep, in `expert-state/NAME`; `~/.openclaw/workspace` unless configured.
    pub workspace: PathBuf,
    /// The model that thinks for them; `None`: experts are not served.
    pub model: Option<String>,
    /// The upstream to ask, by name; `None`: any that serves the model.
    pub upstream: Option<String>,
    /// The most model calls of one run.
    pub max_iterations: u32,
    /// The most tokens of one reply.
    pub max_tokens: u32,
    /// How many processes are executed at a time.
    pub runs_at_once: u32,
    /// For how long an entry of the queue is claimed; whoever works on it renews that.
    pub lease: Duration,
}

/// The default of [`ExpertsConfig::max_iterations`].
pub const MAX_ITERATIONS: u32 = 60;
/// The default of [`ExpertsConfig::max_tokens`].
pub const MAX_TOKENS: u32 = 4096;
/// The default of [`ExpertsConfig::runs_at_once`].
pub const RUNS_AT_ONCE: u32 = 50;
/// The default of [`ExpertsConfig::lease`].
pub const LEASE: Duration = Duration::from_secs(30);

impl ExpertsConfig {
    /// Where an expert keeps its state, its working data and its learnings.
    pub fn state_of(&self, name: &str) -> PathBuf {
        self.workspace.join("expert-state").join(name)
    }
}
