//! The command line's part of the configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use ::config::ValueKind;

use super::problem::Place;
use super::tree::{Table, value};
use upstream::Address;

/// Environment variables, by name.
pub type Environment = BTreeMap<String, String>;

/// The flags that set configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--listen HOST:PORT`.
    pub listen: Option<String>,
    /// `--upstream URL`: becomes the first upstream, which is the default one.
    pub upstream: Option<String>,
    /// `--config FILE`.
    pub config: Option<PathBuf>,
    /// The variables of a service, which hold instead of this process's that set something of respool's.
    pub of_service: Option<Environment>,
    /// The command uses no secrets: variables that hold them need not be set where it runs.
    pub uses_no_secrets: bool,
}

impl Flags {
    /// Returns the variables of this process; or those of the service, and below them those of this process
    /// that set nothing of respool's. Text that is not UTF-8 is read as well as it can be.
    pub(super) fn process_environment(&self) -> Environment {
        let lossy = |text: OsString| text.to_string_lossy().into_owned();
        let own = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value)));
        let Some(of_service) = &self.of_service else { return own.collect() };
        let own = own.filter(|(name, _)| name != "RESPOOL_CONFIG" && !name.starts_with("RESPOOL__"));
        own.chain(of_service.clone()).collect()
    }

    /// Returns the layer that the flags make over what is configured below.
    pub(super) fn layer(&self, below: &Table, environment: &Environment) -> Table {
        let mut layer = Table::new();
        if let Some(listen) = &self.listen {
            layer.insert("listen".into(), value(&Place::from_text("--listen"), listen.as_str()));
        }
        if let Some(url) = &self.upstream {
            let place = Place::from_text("--upstream");
            layer.insert("upstream".into(), value(&place, first_upstream(url, &place, below, environment)));
        }
        layer
    }
}

/// The variable from which `vllm serve` reads its own key. A server that a flag names gets it, too.
pub const VLLM_KEY: &str = "VLLM_API_KEY";

/// Returns the list of upstreams with this one first. One that is configured with the same URL moves, and
/// keeps its settings.
fn first_upstream(url: &str, place: &Place, below: &Table, environment: &Environment) -> ValueKind {
    let mut list = match below.get("upstream").map(|list| &list.kind) {
        Some(ValueKind::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    let wanted = url.parse::<Address>().ok();
    let same = |entry: &::config::Value| match &entry.kind {
        ValueKind::Table(table) => match table.get("url").map(|url| &url.kind) {
            Some(ValueKind::String(text)) => wanted.is_some() && text.parse().ok() == wanted,
            _ => false,
        },
        _ => false,
    };
    let first = if let Some(index) = list.iter().position(same) {
        list.remove(index)
    } else {
        let mut new = Table::from([("url".to_owned(), value(place, url))]);
        if environment.get(VLLM_KEY).is_some_and(|key| !key.is_empty()) {
            new.insert("api_key_env".to_owned(), value(place, VLLM_KEY));
        }
        value(place, ValueKind::Table(new))
    };
    list.insert(0, first);
    ValueKind::Array(list)
}
