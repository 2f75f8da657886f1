//! The rules that refusals have taught about each model of an upstream. `relay` learns a rule once a request
//! that was adapted by it has succeeded, and applies it to the requests that follow.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use adapt::RuleSet;

/// A request goes out unchanged this long after the rules were learned: the server may have been mended.
const TRUSTED: Duration = Duration::from_hours(24);
/// A client that makes up model names cannot fill the memory.
const MAX_MODELS: usize = 256;

/// The rules of all models of one upstream.
#[derive(Debug, Default)]
pub(super) struct LearnedRules {
    models: RwLock<HashMap<String, ModelRules>>,
    /// Most models have no rules: they share these.
    none: Arc<RuleSet>,
}

#[derive(Clone, Debug)]
struct ModelRules {
    rules: Arc<RuleSet>,
    learned: Instant,
}

impl LearnedRules {
    /// The rules for this model; empty when none were learned, or when it is time to try without them.
    pub(super) fn get(&self, model: &str) -> Arc<RuleSet> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let trusted = models.get(model).filter(|known| known.learned.elapsed() < TRUSTED);
        Arc::clone(trusted.map_or(&self.none, |known| &known.rules))
    }

    /// Adds rules that made a request of this model succeed. Returns those that are new.
    pub(super) fn learn(&self, model: &str, rules: &RuleSet) -> RuleSet {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if !models.contains_key(model) && models.len() >= MAX_MODELS {
            return RuleSet::new();
        }
        let now = Instant::now();
        let known = models
            .entry(model.to_owned())
            .or_insert_with(|| ModelRules { rules: Arc::default(), learned: now });
        if known.learned.elapsed() >= TRUSTED {
            *known = ModelRules { rules: Arc::default(), learned: now };
        }
        let new: RuleSet = rules.difference(&known.rules).cloned().collect();
        if !new.is_empty() {
            known.rules = Arc::new(known.rules.union(&new).cloned().collect());
        }
        new
    }

    /// Forgets all rules: another version of the server may take what the last one refused.
    pub(super) fn clear(&self) {
        self.models.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapt::Rule;

    #[tokio::test(start_paused = true)]
    async fn rules_are_kept_for_a_day() {
        let known = LearnedRules::default();
        let pattern = RuleSet::from([Rule::ToolPattern]);
        assert_eq!(known.learn("m", &pattern), pattern);
        assert!(known.learn("m", &pattern).is_empty());
        assert_eq!((*known.get("m")).clone(), pattern);
        assert!(known.get("other").is_empty());
        tokio::time::advance(TRUSTED).await;
        assert!(known.get("m").is_empty());
        assert_eq!(known.learn("m", &RuleSet::from([Rule::NoImages])).len(), 1);
        assert!(!known.get("m").contains(&Rule::ToolPattern));
        known.clear();
        assert!(known.get("m").is_empty());
    }
}
