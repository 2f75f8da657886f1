//! `[experts]` and `[experts."NAME"]`: where experts are, and which models they use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Secret, deserialize_duration, deserialize_optional_duration};

wire::settings! {
    /// The settings of experts.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    pub struct ExpertsConfig {
        /// The directory of expert packages (docs/experts.md).
        pub dir: PathBuf = "/var/lib/.openclaw/experts".into(), when_unset("`~/.openclaw/experts`", r#""~/.openclaw/experts""#);
        /// The directory in whose `expert-state/NAME` an expert keeps its state.
        pub workspace: PathBuf = "/var/lib/.openclaw/workspace".into(),
            when_unset("`~/.openclaw/workspace`", r#""~/.openclaw/workspace""#);
        /// The upstream model that experts use. If it is set, they are served as `expert/NAME` and their
        /// processes are executed.
        pub model: Option<String> = None, when_unset("experts are not served", r#""gpt-oss-120b""#);
        /// The upstream to ask, by name.
        pub upstream: Option<String> = None, when_unset("any that serves the model", r#""box""#);
        /// The maximum number of model calls in one run of an expert.
        pub max_iterations: u32 = 60;
        /// The maximum number of tokens in one reply to an expert.
        pub max_tokens: u32 = 4096;
        /// How many processes are executed at a time.
        pub runs_at_once: u32 = 50;
        /// How long an invocation stays claimed; the process that executes it renews the claim. If that
        /// process ends, another one takes over its invocations once their claims have expired.
        #[serde(deserialize_with = "deserialize_duration")]
        pub lease: Duration = Duration::from_secs(30);
        /// How long an event with the same dedupe key counts as the same event.
        #[serde(deserialize_with = "deserialize_duration")]
        pub dedupe_window: Duration = DEDUPE_WINDOW;
        sections {
            /// `[experts."NAME"]`, by the expert's name.
            #[serde(flatten)]
            pub by_name: BTreeMap<String, ExpertConfig> = BTreeMap::new(), at("<NAME>");
        }
    }
}

/// The default of [`ExpertsConfig::dedupe_window`].
pub const DEDUPE_WINDOW: Duration = Duration::from_hours(24);

wire::settings! {
    /// One `[experts."NAME"]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ExpertConfig {
        /// The upstream model that this expert uses.
        pub model: Option<String> = None, when_unset("as for all experts", r#""gpt-oss-120b""#);
        /// The upstream to ask, by name, for this expert.
        pub upstream: Option<String> = None, when_unset("as for all experts", r#""box""#);
        /// The maximum number of model calls in one run of this expert.
        pub max_iterations: Option<u32> = None, when_unset("as for all experts", "60");
        /// The maximum number of tokens in one reply to this expert.
        pub max_tokens: Option<u32> = None, when_unset("as for all experts", "4096");
        /// The environment variables with the secrets of webhooks, by the trigger's name; at least 16
        /// characters each. A trigger that is not in it has a generated secret (docs/experts.md).
        pub hook_secret_env: BTreeMap<String, String> = BTreeMap::new(),
            with_example(r#"{ new_mail = "MAIL_HOOK_SECRET" }"#);
        /// How long an event with the same dedupe key counts as the same event, for this expert.
        #[serde(deserialize_with = "deserialize_optional_duration")]
        pub dedupe_window: Option<Duration> = None, when_unset("as for all experts", r#""1d""#);
        derived {
            /// The values of those variables, by the trigger's name.
            pub hook_secrets: BTreeMap<String, Secret> = BTreeMap::new();
        }
    }
}

impl ExpertConfig {
    /// The minimum length of a hook's secret in bytes: shorter ones can be guessed over the network.
    pub const SHORTEST_SECRET: usize = 16;
}

impl ExpertsConfig {
    /// Returns where an expert keeps its state, its working data and its learnings.
    pub fn state_of(&self, name: &str) -> PathBuf {
        self.workspace.join("expert-state").join(name)
    }

    /// Returns the settings of one expert, completed with those for all experts.
    pub fn settings_of(&self, name: &str) -> ExpertConfig {
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
            let found = config.settings_of(name);
            (found.model, found.upstream, found.dedupe_window)
        };
        let expected = |model: &str| (Some(model.to_owned()), Some("box".to_owned()), Some(DEDUPE_WINDOW));
        assert_eq!((of("sales"), of("other")), (expected("big"), expected("small")));
    }
}
