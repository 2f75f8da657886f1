//! The rules that refusals have taught about each model of an upstream. `relay` learns a rule once a request
//! that was adapted by it has succeeded, and applies it to the conversations that follow. `rule_file` keeps
//! them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use adapt::RuleSet;
use serde::{Deserialize, Serialize};

/// New conversations begin unchanged this long after the rules were learned, in milliseconds: the server may
/// have been mended.
const TRUSTED: u64 = 24 * 60 * 60 * 1_000;
/// A client that makes up model names cannot fill the memory.
const MAX_MODELS: usize = 256;

/// The rules of all models of one upstream.
#[derive(Debug, Default)]
pub(super) struct LearnedRules {
    known: RwLock<Known>,
    /// Most models have no rules: they share these.
    none: Arc<RuleSet>,
}

#[derive(Debug, Default)]
struct Known {
    /// The server's program and version, as far as it reports them.
    server: Option<String>,
    models: HashMap<String, ModelRules>,
}

#[derive(Clone, Debug)]
struct ModelRules {
    rules: Arc<RuleSet>,
    learned_at: u64,
    /// How many tools each rule changed in the last request.
    changed_tools: Vec<(&'static str, usize)>,
}

/// The rules of one upstream as they are kept and shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRules {
    /// The server's program and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Its models that have rules, by name.
    #[serde(default)]
    pub models: Vec<KeptModelRules>,
}

/// The rules of one model as they are kept and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptModelRules {
    /// The model's name at the server.
    pub model: String,
    /// When they were learned, in milliseconds since 1970.
    pub learned_at: u64,
    /// The rules' names (docs/requests.md).
    pub rules: Vec<String>,
}

impl LearnedRules {
    /// Returns the rules for this model; empty when none were learned, or when it is time to try without
    /// them.
    pub(super) fn get(&self, model: &str, now: u64) -> Arc<RuleSet> {
        let known = self.read();
        let trusted = known.models.get(model).filter(|rules| rules.are_trusted(now));
        Arc::clone(trusted.map_or(&self.none, |known| &known.rules))
    }

    /// Adds rules that made a request of this model succeed. Returns those that are new.
    pub(super) fn learn(&self, model: &str, rules: &RuleSet, now: u64) -> RuleSet {
        let mut known = self.write();
        if !known.models.contains_key(model) && known.models.len() >= MAX_MODELS {
            return RuleSet::new();
        }
        let fresh = ModelRules { rules: Arc::default(), learned_at: now, changed_tools: Vec::new() };
        let known = known.models.entry(model.to_owned()).or_insert_with(|| fresh.clone());
        if !known.are_trusted(now) {
            *known = fresh;
        }
        let new: RuleSet = rules.difference(&known.rules).cloned().collect();
        if !new.is_empty() {
            known.rules = Arc::new(known.rules.union(&new).cloned().collect());
        }
        new
    }

    /// Notes how many tools each rule, by its name, changed in a request for this model.
    pub(super) fn note_changed_tools(&self, model: &str, counts: &[(&'static str, usize)]) {
        if self.read().models.get(model).is_none_or(|known| known.changed_tools == counts) {
            return;
        }
        if let Some(known) = self.write().models.get_mut(model) {
            counts.clone_into(&mut known.changed_tools);
        }
    }

    /// Returns how many tools this rule changed in the last request for this model.
    pub(super) fn changed_tools(&self, model: &str, rule: &str) -> usize {
        let known = self.read();
        let counts = known.models.get(model).into_iter().flat_map(|known| &known.changed_tools);
        counts.into_iter().find(|(name, _)| *name == rule).map_or(0, |(_, tools)| *tools)
    }

    /// Notes the server's version. Returns true when that forgets rules: another version may take what the
    /// last one refused.
    pub(super) fn note_server(&self, server: &str) -> bool {
        if self.read().server.as_deref() == Some(server) {
            return false;
        }
        let mut known = self.write();
        let is_other = known.server.replace(server.to_owned()).is_some();
        let forgets = is_other && !known.models.is_empty();
        if forgets {
            known.models.clear();
        }
        forgets
    }

    /// Returns the rules as they are kept. Names are in order, so that the same rules are the same file.
    pub(super) fn to_kept(&self) -> KeptRules {
        let known = self.read();
        let kept = |(model, known): (&String, &ModelRules)| KeptModelRules {
            model: model.clone(),
            learned_at: known.learned_at,
            rules: known.rules.iter().map(ToString::to_string).collect(),
        };
        let mut models: Vec<KeptModelRules> = known.models.iter().map(kept).collect();
        models.sort_by(|one, other| one.model.cmp(&other.model));
        KeptRules { server: known.server.clone(), models }
    }

    /// Takes over what was kept, in place of all that is known. Rules that this version does not know are
    /// left out.
    pub(super) fn restore(&self, kept: &KeptRules) {
        let rules = |model: &KeptModelRules| {
            let rules: RuleSet = model.rules.iter().filter_map(|name| name.parse().ok()).collect();
            let (rules, learned_at) = (Arc::new(rules), model.learned_at);
            let known = ModelRules { rules, learned_at, changed_tools: Vec::new() };
            (!known.rules.is_empty()).then(|| (model.model.clone(), known))
        };
        let models = kept.models.iter().take(MAX_MODELS).filter_map(rules).collect();
        let mut known = self.write();
        known.models = models;
        if known.server.is_none() {
            known.server.clone_from(&kept.server);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelRules {
    fn are_trusted(&self, now: u64) -> bool {
        now.saturating_sub(self.learned_at) < TRUSTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapt::Rule;

    const NOON: u64 = 1_800_000_000_000;

    #[test]
    fn rules_are_kept_for_a_day() {
        let known = LearnedRules::default();
        let pattern = RuleSet::from([Rule::ToolPattern]);
        assert_eq!(known.learn("m", &pattern, NOON), pattern);
        assert!(known.learn("m", &pattern, NOON).is_empty());
        known.note_changed_tools("m", &[("tools.pattern", 12)]);
        assert_eq!(
            (known.changed_tools("m", "tools.pattern"), known.changed_tools("m", "tools.format")),
            (12, 0)
        );
        assert_eq!((*known.get("m", NOON)).clone(), pattern);
        assert!(known.get("other", NOON).is_empty());
        let tomorrow = NOON + TRUSTED;
        assert!(known.get("m", tomorrow).is_empty());
        assert_eq!(known.learn("m", &RuleSet::from([Rule::NoImages]), tomorrow).len(), 1);
        assert!(!known.get("m", tomorrow).contains(&Rule::ToolPattern));
    }

    #[test]
    fn another_version_forgets_the_rules() {
        let known = LearnedRules::default();
        known.learn("m", &RuleSet::from([Rule::ToolPattern]), NOON);
        assert!(!known.note_server("vllm 0.32"), "the first version says nothing about a change");
        assert!(!known.note_server("vllm 0.32"));
        assert_eq!(known.get("m", NOON).len(), 1);
        assert!(known.note_server("vllm 0.33"));
        assert!(known.get("m", NOON).is_empty());
    }

    #[test]
    fn kept_rules_are_restored() {
        let known = LearnedRules::default();
        known.note_server("vllm 0.32");
        let rules = RuleSet::from([Rule::ToolPattern, "parameter.drop:store".parse().unwrap()]);
        known.learn("m", &rules, NOON);
        let mut kept = known.to_kept();
        kept.models[0].rules.push("tools.of_a_later_version".to_owned());
        let restored = LearnedRules::default();
        restored.restore(&kept);
        assert_eq!((*restored.get("m", NOON)).clone(), rules);
        assert!(restored.note_server("vllm 0.33"), "the version is kept with the rules");
    }
}
