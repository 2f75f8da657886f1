//! The settings of triggers and processes with defaults and inheritance applied. Pure; called by `check`, the
//! command line and the code that executes processes.

use serde_json::{Map, Value as Json, json};

use super::manifest::{Concurrency, Manifest, Trigger};
use super::package::Package;
use super::policy::Tier;
use super::settings::{Delivery, Execution};

/// How invocations of a trigger run relative to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The mode.
    pub mode: Concurrency,
    /// The path of the key, if the mode needs one and one is written.
    pub key: Option<String>,
}

impl Lane {
    /// Returns the trigger's own mode and key, else the package's. `None` if the mode could not be read.
    pub fn from_trigger(trigger: &Trigger, manifest: &Manifest) -> Option<Self> {
        let inherited = &manifest.concurrency.mode;
        if trigger.concurrency.mode.is_faulty
            || (trigger.concurrency.mode.mode.is_none() && inherited.is_faulty)
        {
            return None;
        }
        let mode = trigger.concurrency.mode.mode.as_ref().or(inherited.mode.as_ref());
        let mode = mode.map_or(Concurrency::Parallel, |mode| mode.value);
        let key = trigger.concurrency.key.path.as_ref().or(manifest.concurrency.key.path.as_ref());
        let key = key.filter(|_| mode == Concurrency::SerialPerKey).map(|path| path.value.clone());
        Some(Self { mode, key })
    }
}

/// Returns the resolved settings of the whole package, as `validate --format json` prints them.
pub fn to_json(package: &Package) -> Json {
    let tiers = package.tiers();
    let mut triggers = Map::new();
    for trigger in &package.manifest.triggers.items {
        if let Some(lane) = Lane::from_trigger(trigger, &package.manifest) {
            triggers.insert(
                trigger.name.value.clone(),
                json!({"concurrency": lane.mode.as_str(), "key": lane.key}),
            );
        }
    }
    let mut processes = Map::new();
    for process in &package.processes.items {
        let execution =
            Execution::resolve(&package.manifest.settings.execution, &process.settings.execution).to_json();
        let delivery =
            Delivery::resolve(&package.manifest.settings.delivery, &process.settings.delivery).to_json();
        processes.insert(process.name.value.clone(), json!({"execution": execution, "delivery": delivery}));
    }
    json!({
        "tiers": {
            "auto": tiers.operations(Tier::Auto),
            "confirm": tiers.operations(Tier::Confirm),
            "manual": tiers.operations(Tier::Manual),
            "default": package.manifest.policy.default.as_str(),
        },
        "triggers": triggers,
        "processes": processes,
    })
}
