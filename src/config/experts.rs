//! `[experts]` as it is written: settings of all experts beside a table for each of them by name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::{Environment, search};
use crate::expert::{ExpertConfig, ExpertsConfig, config};
use crate::units::parse_duration;

/// The keys that are not an expert's name.
const KEYS: &[&str] = &[
    "dedupe_window",
    "dir",
    "lease",
    "max_iterations",
    "max_tokens",
    "model",
    "runs_at_once",
    "upstream",
    "workspace",
];

/// `[experts]`, before its defaults below the home directory are known.
#[derive(Default)]
pub(super) struct ExpertsDocument {
    dir: Option<PathBuf>,
    workspace: Option<PathBuf>,
    model: Option<String>,
    upstream: Option<String>,
    max_iterations: Option<u32>,
    max_tokens: Option<u32>,
    runs_at_once: Option<u32>,
    lease: Option<Duration>,
    dedupe_window: Option<Duration>,
    by_name: BTreeMap<String, ExpertConfig>,
}

impl ExpertsDocument {
    pub(super) fn settings(self, environment: &Environment) -> ExpertsConfig {
        let openclaw = search::openclaw_dir(environment);
        ExpertsConfig {
            dir: self.dir.unwrap_or_else(|| openclaw.join("experts")),
            workspace: self.workspace.unwrap_or_else(|| openclaw.join("workspace")),
            model: self.model,
            upstream: self.upstream,
            max_iterations: self.max_iterations.unwrap_or(config::MAX_ITERATIONS),
            max_tokens: self.max_tokens.unwrap_or(config::MAX_TOKENS),
            runs_at_once: self.runs_at_once.unwrap_or(config::RUNS_AT_ONCE),
            lease: self.lease.unwrap_or(config::LEASE),
            dedupe_window: self.dedupe_window.unwrap_or(config::DEDUPE_WINDOW),
            by_name: self.by_name,
        }
    }
}

impl<'de> Deserialize<'de> for ExpertsDocument {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = ExpertsDocument;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ExpertsDocument, A::Error> {
        let mut read = ExpertsDocument::default();
        while let Some(key) = entries.next_key::<String>()? {
            match key.as_str() {
                "dir" => read.dir = Some(entries.next_value()?),
                "workspace" => read.workspace = Some(entries.next_value()?),
                "model" => read.model = Some(entries.next_value()?),
                "upstream" => read.upstream = Some(entries.next_value()?),
                "max_iterations" => read.max_iterations = Some(entries.next_value()?),
                "max_tokens" => read.max_tokens = Some(entries.next_value()?),
                "runs_at_once" => read.runs_at_once = Some(entries.next_value()?),
                "lease" => read.lease = Some(length(&entries.next_value::<String>()?)?),
                "dedupe_window" => read.dedupe_window = Some(length(&entries.next_value::<String>()?)?),
                _ => {
                    let value: serde_json::Value = entries.next_value()?;
                    if !value.is_object() {
                        return Err(de::Error::unknown_field(&key, KEYS));
                    }
                    let config = ExpertConfig::deserialize(value).map_err(de::Error::custom)?;
                    read.by_name.insert(key, config);
                }
            }
        }
        Ok(read)
    }
}

fn length<E: de::Error>(text: &str) -> Result<Duration, E> {
    parse_duration(text).map_err(E::custom)
}
