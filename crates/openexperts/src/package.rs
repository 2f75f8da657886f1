//! A package as it was read. Pure; `load` makes one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::component::{Function, Knowledge, Process, State, Tool};
use super::diagnostic::Spanned;
use super::fields::Listing;
use super::manifest::Manifest;
use super::policy::{Tier, Tiers};

/// A persona file.
#[derive(Clone, Debug)]
pub struct Persona {
    /// The file's name without its extension.
    pub stem: String,
    /// Its text.
    pub body: String,
}

/// A package. If it loaded without errors, it is complete.
#[derive(Clone, Debug)]
pub struct Package {
    /// `expert.yaml`.
    pub manifest: Manifest,
    /// The orchestrator.
    pub orchestrator: String,
    /// The persona files.
    pub persona: Vec<Persona>,
    /// The functions.
    pub functions: Listing<Function>,
    /// The processes.
    pub processes: Listing<Process>,
    /// The tool files.
    pub tools: Listing<Tool>,
    /// The knowledge.
    pub knowledge: Listing<Knowledge>,
    /// The state templates.
    pub state: Listing<State>,
    /// The text of every file that was read, by its path.
    pub files: Arc<BTreeMap<String, String>>,
}

impl Package {
    /// Returns the effective tiers of the offered operations: those of the required tools.
    pub fn tiers(&self) -> Tiers {
        let operations = self.offered_tools().flat_map(|tool| {
            tool.operations.items.iter().map(|operation| (tool.name.value.as_str(), operation.name.as_str()))
        });
        Tiers::from_policy(&self.manifest.policy, operations)
    }

    /// Returns true if some call of the expert waits for a person's consent.
    pub fn asks_people(&self) -> bool {
        let (policy, learning) = (&self.manifest.policy, &self.manifest.learning);
        let has_file = |name: &str| self.offered_tools().any(|tool| tool.name.value == name);
        let has_undescribed = self.manifest.tools.items.iter().any(|name| !has_file(&name.value));
        !self.tiers().operations(Tier::Confirm).is_empty()
            || (has_undescribed && policy.default == Tier::Confirm)
            || (learning.enabled && learning.approval == Tier::Confirm)
    }

    /// Returns the process of this name.
    pub fn process(&self, name: &str) -> Option<&Process> {
        self.processes.items.iter().find(|process| !name.is_empty() && process.name.value == name)
    }

    /// Returns the tool files whose tools the package requires.
    pub fn offered_tools(&self) -> impl Iterator<Item = &Tool> {
        let is_required =
            |tool: &&Tool| self.manifest.tools.items.iter().any(|name| name.value == tool.name.value);
        self.tools.items.iter().filter(is_required)
    }
}

/// Returns the names in this list, without those that could not be read.
pub(crate) fn collect_names<'a>(names: impl Iterator<Item = &'a Spanned<String>>) -> HashSet<&'a str> {
    names.map(|name| name.value.as_str()).filter(|name| !name.is_empty()).collect()
}
