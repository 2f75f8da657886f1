//! The rules that the requests of one conversation are adapted by.
//!
//! A rule that an upstream teaches while a conversation goes on changes only later conversations. A running
//! one keeps its form, and with it the beginning of its prompt, which the server has cached. It takes
//! a rule when one of its own requests was refused. Called by `reading`, `request` and `exchange`.
//!
//! A rule itself may change the beginning of a prompt, such as one that puts a late system message first: so
//! the messages that rules have changed are kept until the next request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adapt::RuleSet;
use upstream::Upstream;
use wire::{KnownMessage, array_elements};

/// The rules of one conversation, for each upstream and model that it has asked. The default is that of a
/// request whose conversation is not remembered: it keeps no rules.
#[derive(Clone, Debug, Default)]
pub(super) struct ConversationRules(Option<Arc<Mutex<Vec<RulesOfModel>>>>);

#[derive(Debug)]
struct RulesOfModel {
    upstream: Arc<str>,
    model: String,
    rules: Arc<RuleSet>,
    /// The messages of the last request, where rules have changed them.
    sent: Option<Arc<str>>,
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
        known.push(RulesOfModel { upstream, model, rules: Arc::clone(&rules), sent: None });
        rules
    }

    /// Adds rules with which a request of the conversation was accepted.
    pub(super) fn add(&self, upstream: &Upstream, model: &str, new: &RuleSet) {
        let Some(mut known) = self.lock() else { return };
        if let Some(known) = known.iter_mut().find(|known| known.is_for(upstream, model)) {
            known.rules = Arc::new(known.rules.union(new).cloned().collect());
        }
    }

    /// Notes the messages that go up, where rules have changed them. `before`: those of the conversation's
    /// last request, as the client sent them. Returns what the server must read again because of the rules.
    pub(super) fn note_sent(
        &self,
        upstream: &Upstream,
        model: &str,
        messages: Option<&Arc<str>>,
        before: &[Arc<KnownMessage>],
    ) -> Option<PrefixLoss> {
        let mut known = self.lock()?;
        let known = known.iter_mut().find(|known| known.is_for(upstream, model))?;
        let last = std::mem::replace(&mut known.sent, messages.cloned());
        let new = messages?;
        match last {
            Some(last) => lost_prefix(&last, new),
            None if before.is_empty() => None,
            None => {
                let texts: Vec<&str> = before.iter().map(|message| message.text()).collect();
                lost_prefix(&format!("[{}]", texts.join(",")), new)
            }
        }
    }

    /// Bytes of the messages that it keeps.
    pub(super) fn sent_len(&self) -> usize {
        let len = |known: &RulesOfModel| known.sent.as_ref().map_or(0, |sent| sent.len());
        self.lock().map_or(0, |known| known.iter().map(len).sum())
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

/// Compares the messages of two requests. Returns the part of the first ones that the server must read again,
/// if it is more than half.
fn lost_prefix(old: &str, new: &str) -> Option<PrefixLoss> {
    if new.as_bytes().starts_with(&old.as_bytes()[..old.len() / 2]) {
        return None;
    }
    let (mut shared, mut at) = (0, 0);
    let elements = array_elements(old)?.into_iter().zip(array_elements(new)?);
    let different = elements.skip_while(|(old, new)| {
        let is_same = old == new;
        (shared, at) = if is_same { (shared + old.len() + 1, at + 1) } else { (shared, at) };
        is_same
    });
    let byte = different.map(|(old, new)| shared_length(old, new)).next().unwrap_or_default();
    let place = format!("message {at} as rules of docs/requests.md changed it, byte {byte}");
    Some(PrefixLoss { place, bytes: old.len() - shared })
}

/// The prompt of a conversation's request differs early from that of the last one, so the server reads again
/// what it had in its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrefixLoss {
    /// Where the two first differ, for people: a message or a tool, and the byte in it.
    pub(super) place: String,
    /// Bytes of the last request that the two do not share.
    pub(super) bytes: usize,
}

/// The bytes that two texts have in common at their beginning.
pub(super) fn shared_length(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
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

    #[test]
    fn a_prompt_that_rules_change_early_is_noticed() {
        let upstream = Upstream::new(&UpstreamConfig::default()).unwrap();
        let conversation = ConversationRules::begin();
        conversation.rules_for(&upstream, "m");
        let note = |text: Option<&str>| {
            let text = text.map(Arc::from);
            conversation.note_sent(&upstream, "m", text.as_ref(), &[])
        };
        assert_eq!(note(Some(r#"[{"a":1},{"b":2}]"#)), None, "the first request");
        assert_eq!(note(Some(r#"[{"a":1},{"b":2},{"c":3}]"#)), None, "the conversation goes on");
        let found = note(Some(r#"[{"a":12},{"b":2},{"c":3}]"#)).unwrap();
        assert_eq!(found.place, "message 0 as rules of docs/requests.md changed it, byte 6");
        assert_eq!((found.bytes, conversation.sent_len()), (25, 26));
        assert_eq!(note(None), None);
        assert_eq!(conversation.sent_len(), 0);
    }
}
