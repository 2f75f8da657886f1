//! `[usage]`, `[prices]` and `[budgets]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::settings::Scalar;
use wire::units::{Size, deserialize_duration};

/// An amount, in the currency of all prices.
const MONEY: Scalar = Scalar::Number(0.0, 1_000_000_000.0);

wire::settings! {
    /// `[usage]`.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct UsageConfig {
        /// How long usage records are kept, one row without content for each request and model call; `0s`
        /// keeps none.
        #[serde(deserialize_with = "deserialize_duration")]
        pub keep: Duration = Duration::from_hours(90 * 24), allow_zero();
        /// How much space usage records may take; beyond it, the oldest are deleted. At least `1MiB`.
        pub max_size: Size = Size::mib(1024);
        /// The models whose prices the same tokens are compared with: those of `[prices]` and of the list of
        /// public prices.
        pub compare: Vec<String> =
            ["gpt-5.6", "gpt-5-mini", "claude-sonnet-5-5", "groq/gpt-oss-120b"].map(str::to_owned).into();
        /// The currency of all prices and budgets, as it is shown. It changes no number.
        pub currency: Option<String> = None, when_unset("amounts are shown without one", r#""EUR""#);
        /// A list of public prices (docs/operating.md).
        pub price_list: Option<PathBuf> = None,
            when_unset("the list that comes with respool", r#""/etc/respool/prices.toml""#);
    }
}

impl UsageConfig {
    /// The least size: a smaller one has no room for a day of use.
    pub const LEAST_SIZE: Size = Size::mib(1);
}

wire::settings! {
    /// `[prices."MODEL"]`.
    #[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct PriceConfig {
        /// The price of a million prompt tokens of this model. A model without a price costs nothing.
        pub input: Option<f64> = None, with_form(MONEY), when_unset("no price", "0.15");
        /// The price of a million cached prompt tokens.
        pub cached_input: Option<f64> = None, with_form(MONEY), when_unset("as `input`", "0.075");
        /// The price of a million reply tokens, reasoning included.
        pub output: Option<f64> = None, with_form(MONEY), when_unset("no price", "0.6");
    }
}

wire::settings! {
    /// `[budgets]`: the amounts that may be spent in one UTC day.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct BudgetsConfig {
        /// The most that all requests together may cost in a UTC day, at the prices of `[prices]`.
        pub day: Option<f64> = None, with_form(MONEY), when_unset("no limit", "5.0");
        /// The most that the requests of each key may cost in a UTC day.
        pub key: Option<f64> = None, with_form(MONEY), when_unset("no limit", "2.0");
        /// The most that the runs of each agent may cost in a UTC day.
        pub agent: Option<f64> = None, with_form(MONEY), when_unset("no limit", "1.0");
        /// The same for certain keys, by their names.
        pub keys: BTreeMap<String, f64> = BTreeMap::new(), with_form(MONEY), with_example("{ alice = 3.0 }");
        /// The same for certain agents, by their names; an expert is the agent `expert/NAME`.
        pub agents: BTreeMap<String, f64> = BTreeMap::new(), with_form(MONEY), with_example("{ helper = 0.5 }");
        /// Whether requests are refused while the database of `[store] url` cannot be reached. Otherwise each
        /// process meanwhile counts what it spends itself.
        pub refuse_without_database: bool = false;
        /// The share of a budget at which respool warns.
        pub warn_at: f64 = 0.8, with_range(0.0, 1.0);
    }
}

impl BudgetsConfig {
    /// Returns true when nothing has a budget.
    pub fn is_empty(&self) -> bool {
        self.day.is_none()
            && self.key.is_none()
            && self.agent.is_none()
            && self.keys.is_empty()
            && self.agents.is_empty()
    }
}
