//! The rules that one upstream has learned, and the file that keeps them. `relay` reads and teaches them.

use std::sync::{Arc, OnceLock};

use super::learned_rules::{KeptRules, LearnedRules};
use super::rule_file::RuleFile;
use adapt::RuleSet;

/// The rules that one upstream's refusals have taught.
#[derive(Debug)]
pub struct ServerRules {
    /// The upstream's name.
    upstream: Arc<str>,
    learned: LearnedRules,
    /// Where the rules are kept; nowhere before it is set.
    file: OnceLock<Arc<RuleFile>>,
}

impl ServerRules {
    pub(super) fn new(upstream: Arc<str>) -> Self {
        Self { upstream, learned: LearnedRules::default(), file: OnceLock::new() }
    }

    /// Returns the rules for this model; empty when none were learned, or when it is time to try without
    /// them.
    pub fn get(&self, model: &str) -> Arc<RuleSet> {
        self.learned.get(model, clock::now())
    }

    /// Adds rules that made a request of this model succeed. Returns those that are new.
    pub fn learn(&self, model: &str, rules: &RuleSet) -> RuleSet {
        let new = self.learned.learn(model, rules, clock::now());
        if !new.is_empty() {
            self.save();
        }
        new
    }

    /// Notes how many tools each rule, by its name, changed in a request for this model.
    pub fn note_changed_tools(&self, model: &str, counts: &[(&'static str, usize)]) {
        self.learned.note_changed_tools(model, counts);
    }

    /// Returns how many tools this rule changed in the last request for this model.
    pub fn changed_tools(&self, model: &str, rule: &str) -> usize {
        self.learned.changed_tools(model, rule)
    }

    /// Returns the rules for people.
    pub fn to_kept(&self) -> KeptRules {
        self.learned.to_kept()
    }

    /// Keeps the rules in this file, and takes over those that it holds.
    pub fn keep_in(&self, file: &Arc<RuleFile>) {
        if self.file.set(Arc::clone(file)).is_ok() {
            self.reload();
        }
    }

    /// Takes over the rules that the file holds now.
    pub(super) fn reload(&self) {
        if let Some(file) = self.file.get() {
            self.learned.restore(&file.rules_of(&self.upstream));
        }
    }

    /// Forgets the rules if the server is another program or version than before.
    pub(super) fn note_server(&self, server: &str) {
        if self.learned.note_server(server) {
            self.save();
        }
    }

    fn save(&self) {
        let Some(file) = self.file.get() else { return };
        if let Err(error) = file.keep(&self.upstream, self.learned.to_kept()) {
            let (upstream, error) = (&*self.upstream, error.to_string());
            tracing::warn!(target: "respool::upstream", upstream, error, "learned rules cannot be kept");
        }
    }
}
