//! `[usage]`, `[prices]` and `[budgets]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Size, deserialize_duration};

/// `[usage]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsageConfig {
    /// How long a row is kept; zero: no rows are kept at all.
    #[serde(deserialize_with = "deserialize_duration")]
    pub keep: Duration,
    /// The size of all rows from which on the oldest are deleted.
    pub max_size: Size,
    /// The models whose prices the same tokens are compared with.
    pub compare: Vec<String>,
    /// A list of public prices instead of the one that comes with respool.
    pub price_list: Option<PathBuf>,
}

impl UsageConfig {
    /// Less than this leaves no room for a day of use.
    pub const LEAST_SIZE: Size = Size::mib(1);
}

impl Default for UsageConfig {
    fn default() -> Self {
        Self {
            keep: Duration::from_hours(90 * 24),
            max_size: Size::mib(1024),
            compare: ["gpt-5.6", "gpt-5-mini", "claude-sonnet-5-5", "groq/gpt-oss-120b"]
                .map(str::to_owned)
                .into(),
            price_list: None,
        }
    }
}

/// `[prices."MODEL"]`, and `[prices.own]` for one's own hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriceConfig {
    /// A million tokens of prompts.
    pub input: Option<f64>,
    /// A million tokens of prompts that were cached.
    pub cached_input: Option<f64>,
    /// A million tokens of replies.
    pub output: Option<f64>,
    /// What the hardware costs a month.
    pub monthly: Option<f64>,
    /// What it draws while it works, in watts.
    pub watts: Option<f64>,
    /// What a kilowatt-hour costs.
    pub kwh: Option<f64>,
}

/// The name in `[prices]` that stands for one's own hardware.
pub const OWN: &str = "own";

/// `[budgets]`: what may be spent in one UTC day.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetsConfig {
    /// By all requests together.
    pub day: Option<f64>,
    /// By each key, unless `keys` says otherwise.
    pub key: Option<f64>,
    /// By each agent, unless `agents` says otherwise.
    pub agent: Option<f64>,
    /// By certain keys.
    pub keys: BTreeMap<String, f64>,
    /// By certain agents.
    pub agents: BTreeMap<String, f64>,
    /// The share of a budget from which on a warning is given.
    pub warn_at: f64,
}

impl Default for BudgetsConfig {
    fn default() -> Self {
        Self {
            day: None,
            key: None,
            agent: None,
            keys: BTreeMap::new(),
            agents: BTreeMap::new(),
            warn_at: 0.8,
        }
    }
}

impl BudgetsConfig {
    /// True when nothing is bounded.
    pub fn is_empty(&self) -> bool {
        self.day.is_none()
            && self.key.is_none()
            && self.agent.is_none()
            && self.keys.is_empty()
            && self.agents.is_empty()
    }
}
