//! The whole configuration: the sections that the crates declare, composed.

use std::collections::BTreeMap;

use ::config::{ConfigError, Value, ValueKind};
use serde::Deserialize;

use super::flags::Environment;
use super::problem::{Place, Problems};
use super::search;
use super::tree::{Table, find_value, value};
use agent::AgentConfig;
use alerts::AlertsConfig;
use experts::ExpertsConfig;
use relay::RelayConfig;
use server::ServerConfig;
use store::StoreConfig;
use telemetry::otlp::OtlpConfig;
use telemetry::{CaptureConfig, LogConfig};
use tools::ToolsConfig;
use upstream::UpstreamConfig;
use usage::{BudgetsConfig, PriceConfig, UsageConfig};

wire::settings! {
    /// The whole configuration, checked. Its default is what holds when nothing is configured.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default)]
    pub struct Settings {
        sections {
            /// `[[upstream]]`: at least one, each with a name; the first is the default one.
            #[serde(rename = "upstream")]
            pub upstreams: Vec<UpstreamConfig> = vec![UpstreamConfig::default().with_default_name()], at("upstream[]");
            /// `listen`, `trusted_hosts`, `client_keys` and `[limits]`.
            #[serde(flatten)]
            pub server: ServerConfig = ServerConfig::default(), at("");
            /// The modes, `[models]`, `[recovery]` and `[context]`.
            #[serde(flatten)]
            pub relay: RelayConfig = RelayConfig::default(), at("");
            /// `[log]`.
            pub log: LogConfig = LogConfig::default();
            /// `[capture]`.
            pub capture: CaptureConfig = CaptureConfig::default();
            /// `state_dir`, `[runs]` and `[responses]`.
            #[serde(flatten)]
            pub store: StoreConfig = StoreConfig::default(), at("");
            /// `[usage]`.
            pub usage: UsageConfig = UsageConfig::default();
            /// `[prices]`, by model.
            pub prices: BTreeMap<String, PriceConfig> = BTreeMap::new(), at("prices.<NAME>");
            /// `[budgets]`.
            pub budgets: BudgetsConfig = BudgetsConfig::default();
            /// `[alerts]`.
            pub alerts: AlertsConfig = AlertsConfig::default();
            /// `[otlp]`.
            pub otlp: OtlpConfig = OtlpConfig::default();
            /// `[experts]`.
            pub experts: ExpertsConfig = ExpertsConfig::default();
            /// `[agents.NAME]`, by name.
            pub agents: BTreeMap<String, AgentConfig> = BTreeMap::new(), at("agents.<NAME>");
            /// `[tools]`.
            pub tools: ToolsConfig = ToolsConfig::default();
        }
    }
}

impl Settings {
    /// Fills in what depends on other settings or on the environment: names of upstreams, and directories
    /// below the home directory.
    pub(super) fn complete(mut self, tree: &Table, environment: &Environment) -> Self {
        self.upstreams = self.upstreams.into_iter().map(UpstreamConfig::with_default_name).collect();
        if self.upstreams.is_empty() {
            self.upstreams.push(UpstreamConfig::default().with_default_name());
        }
        let is_set = |path: &[&str]| find_value(tree, path).is_some();
        if !is_set(&["state_dir"]) {
            self.store.state_dir = search::state_dir(environment);
        }
        let shared = self.store.store.shared_dir.clone();
        let openclaw = shared.unwrap_or_else(|| search::openclaw_dir(environment));
        if !is_set(&["experts", "dir"]) {
            self.experts.dir = openclaw.join("experts");
        }
        if !is_set(&["experts", "workspace"]) {
            self.experts.workspace = openclaw.join("workspace");
        }
        self
    }

    /// Reads the settings from a tree that was checked against the declared keys. Should the two disagree, it
    /// is a problem like any other.
    pub(super) fn from_tree(tree: &Table, problems: &mut Problems) -> Self {
        Value::from(tree.clone()).try_deserialize().unwrap_or_else(|why: ConfigError| {
            problems.add(Place::from_text("configuration"), "", why.to_string());
            Self::default()
        })
    }

    /// Adds the values that no layer wrote and that are not constant, for `config show`.
    pub(super) fn add_defaults(&self, tree: &mut Table) {
        let default = Place::from_text("default");
        let text = |text: String| value(&default, text);
        tree.entry("state_dir".into()).or_insert_with(|| text(self.store.state_dir.display().to_string()));
        let experts = tree.entry("experts".into()).or_insert_with(|| value(&default, Table::new()));
        if let ValueKind::Table(entry) = &mut experts.kind {
            let (dir, workspace) = (&self.experts.dir, &self.experts.workspace);
            entry.entry("dir".into()).or_insert_with(|| text(dir.display().to_string()));
            entry.entry("workspace".into()).or_insert_with(|| text(workspace.display().to_string()));
        }
        let list = tree.entry("upstream".into()).or_insert_with(|| value(&default, Vec::<Value>::new()));
        let ValueKind::Array(list) = &mut list.kind else { return };
        for (index, upstream) in self.upstreams.iter().enumerate() {
            if index == list.len() {
                list.push(value(&default, Table::new()));
            }
            if let ValueKind::Table(entry) = &mut list[index].kind {
                entry.entry("name".into()).or_insert_with(|| text(upstream.name.clone()));
                entry.entry("url".into()).or_insert_with(|| text(upstream.url.to_string()));
            }
        }
    }
}
