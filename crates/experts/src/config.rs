//! `[experts]` and `[experts."NAME"]`: where experts are, and which models they use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Secret, some_duration};

/// The settings of experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// The directory of their packages; `~/.openclaw/experts` unless configured.
    pub dir: PathBuf,
    /// The directory of their own data, in `expert-state/NAME`; `~/.openclaw/workspace` unless configured.
    pub workspace: PathBuf,
    /// The model that they use; `None`: experts are not served.
    pub model: Option<String>,
    /// The upstream to ask, by name; `None`: any that serves the model.
    pub upstream: Option<String>,
    /// The most model calls of one run.
    pub max_iterations: u32,
    /// The most tokens of one reply.
    pub max_tokens: u32,
    /// How many processes are executed at a time.
    pub runs_at_once: u32,
    /// How long a claim to a queue entry lasts; the worker that holds it renews it.
    pub lease: Duration,
    /// How long an event with the same dedupe key counts as a repeat.
    pub dedupe_window: Duration,
    /// `[experts."NAME"]`, by the expert's name.
    pub by_name: BTreeMap<String, ExpertConfig>,
}

/// The default of [`ExpertsConfig::max_iterations`].
pub const MAX_ITERATIONS: u32 = 60;
/// The default of [`ExpertsConfig::max_tokens`].
pub const MAX_TOKENS: u32 = 4096;
/// The default of [`ExpertsConfig::runs_at_once`].
pub const RUNS_AT_ONCE: u32 = 50;
/// The default of [`ExpertsConfig::lease`].
pub const LEASE: Duration = Duration::from_secs(30);
/// The default of [`ExpertsConfig::dedupe_window`].
pub const DEDUPE_WINDOW: Duration = Duration::from_hours(24);

/// One `[experts."NAME"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpertConfig {
    /// The upstream model to use.
    pub model: Option<String>,
    /// The upstream to ask, by name.
    pub upstream: Option<String>,
    /// The most model calls of one run.
    pub max_iterations: Option<u32>,
    /// The most tokens of one reply.
    pub max_tokens: Option<u32>,
    /// Environment variables with the secrets of webhooks, by the trigger's name.
    pub hook_secret_env: BTreeMap<String, String>,
    /// The values of those variables, by the trigger's name.
    #[serde(skip)]
    pub hook_secrets: BTreeMap<String, Secret>,
    /// How long an event with the same dedupe key counts as a repeat.
    #[serde(deserialize_with = "some_duration")]
    pub dedupe_window: Option<Duration>,
}

impl ExpertConfig {
    /// The minimum length of a hook's secret in bytes: shorter ones can be guessed over the network.
    pub const SHORTEST_SECRET: usize = 16;
}

impl ExpertsConfig {
    /// Where an expert keeps its state, its working data and its learnings.
    pub fn state_of(&self, name: &str) -> PathBuf {
        self.workspace.join("expert-state").join(name)
    }

    /// The settings of one expert, completed with those for all experts.
    pub fn of(&self, name: &str) -> ExpertConfig {
        let own = self.by_name.get(name).cloned().unwrap_or_default();
        ExpertConfig {
            model: own.model.or_else(|| self.model.clone()),
            upstream: own.upstream.or_else(|| self.upstream.clone()),
            max_iterations: own.max_iterations.or(Some(self.max_iterations)),
            max_tokens: own.max_tokens.or(Some(self.max_tokens)),
            dedupe_window: own.dedupe_window.or(Some(self.dedupe_window)),
            ..own
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_inherit_the_common_settings() {
        let own = ExpertConfig { model: Some("big".into()), ..ExpertConfig::default() };
        let config = ExpertsConfig {
            model: Some("small".into()),
            upstream: Some("box".into()),
            dedupe_window: DEDUPE_WINDOW,
            by_name: BTreeMap::from([("sales".to_owned(), own)]),
            ..ExpertsConfig::default()
        };
        let of = |name: &str| {
            let found = config.of(name);
            (found.model, found.upstream, found.dedupe_window)
        };
        let expected = |model: &str| (Some(model.to_owned()), Some("box".to_owned()), Some(DEDUPE_WINDOW));
        assert_eq!((of("sales"), of("other")), (expected("big"), expected("small")));
    }
}
