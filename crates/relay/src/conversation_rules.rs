//! The rules that the requests of one conversation are adapted by.
//!
//! A rule that an upstream teaches while a conversation goes on changes only later conversations. A running
//! one keeps its form, and with it the beginning of its prompt, which the server has cached. It takes
//! a rule when one of its own requests was refused. Called by `reading`, `request` and `exchange`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adapt::RuleSet;
use upstream::Upstream;

/// The rules of one conversation, for each upstream and model that it has asked. The default is that of a
/// request whose conversation is not remembered: it keeps no rules.
#[derive(Clone, Debug, Default)]
pub(super) struct ConversationRules(Option<Arc<Mutex<Vec<RulesOfModel>>>>);

#[derive(Debug)]
struct RulesOfModel {
    upstream: Arc<str>,
    model: String,
    rules: Arc<RuleSet>,
}

impl ConversationRules {
    /// Begins a conversation that is remembered.
    pub(super) fn begin() -> Self {
        Self(Some(Arc::default()))
    }

    /// Returns the rules for this upstream and model: those of the conversation's first request to it.
    pub(super) fn rules_for(&self, upstream: &Upstream, model: &str) -> Arc<RuleSet> {
        let Some(mut known) = self.lock() else { return upstream.rules.get(model) };
        if let Some(found) = known.iter().find(|known| known.is_for(upstream, model)) {
            return Arc::clone(&found.rules);
        }
        let rules = upstream.rules.get(model);
        let (upstream, model) = (Arc::clone(upstream.shared_name()), model.to_owned());
        // Most conversations have one upstream and model.
        known.reserve_exact(1);
        known.push(RulesOfModel { upstream, model, rules: Arc::clone(&rules) });
        rules
    }

    /// Adds rules with which a request of the conversation was accepted.
    pub(super) fn add(&self, upstream: &Upstream, model: &str, new: &RuleSet) {
        let Some(mut known) = self.lock() else { return };
        if let Some(known) = known.iter_mut().find(|known| known.is_for(upstream, model)) {
            known.rules = Arc::new(known.rules.union(new).cloned().collect());
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Vec<RulesOfModel>>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RulesOfModel {
    fn is_for(&self, upstream: &Upstream, model: &str) -> bool {
        *self.upstream == *upstream.name && self.model == model
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapt::Rule;
    use upstream::UpstreamConfig;

    #[test]
    fn a_running_conversation_keeps_its_rules() {
        let upstream = Upstream::new(&UpstreamConfig::default()).unwrap();
        let (running, pattern) = (ConversationRules::begin(), RuleSet::from([Rule::ToolPattern]));
        assert!(running.rules_for(&upstream, "m").is_empty());
        upstream.rules.learn("m", &pattern);
        assert!(running.rules_for(&upstream, "m").is_empty(), "its prefix stays");
        assert_eq!(*ConversationRules::begin().rules_for(&upstream, "m"), pattern);
        running.add(&upstream, "m", &pattern);
        assert_eq!(*running.rules_for(&upstream, "m"), pattern);
    }
}
