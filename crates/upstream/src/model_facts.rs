//! The facts that are known about the models of an upstream. `window` asks for them.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{PoisonError, RwLock};

use super::server::Server;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tool_call_parser::PreferredDialects;

/// A server that accepts any name must not fill the memory.
const MOST_MODELS: usize = 256;
/// Smaller requests are mostly frame, and say little about how long tokens are.
const SIGNIFICANT: usize = 4096;
/// Bytes for a thousand tokens of text. Images have far more, and some servers do not count what they had in
/// their cache.
const PLAUSIBLE: RangeInclusive<u64> = 1_000..=10_000;

/// Facts about one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its window in tokens, prompt and reply together.
    pub window: Option<u64>,
    /// Bytes of a request for each thousand tokens of its prompt, as replies showed.
    pub bytes_per_1000: Option<u64>,
    /// Its prompts are rendered by the harmony library (gpt-oss): `/tokenize` counts them wrongly (8 for 69
    /// tokens, vLLM 0.13 to 0.25).
    pub is_harmony: bool,
    /// The dialects that it is likely to write, by its name, the path of its weights, and the server's
    /// account of its parser or chat template.
    pub prior: PreferredDialects,
    /// It has reasoned although the request switched that off.
    pub ignores_off: bool,
}

/// Facts about the models of one upstream.
#[derive(Debug, Default)]
pub struct KnownModels {
    facts: RwLock<HashMap<String, ModelFacts>>,
    /// The models of its last list.
    pub(super) listed: RwLock<Option<Vec<String>>>,
    /// The program behind its list of models.
    pub(super) server: RwLock<Option<Server>>,
    /// When `/v1/models` was asked last; locked while it is being asked.
    pub(super) asked: Mutex<Option<Instant>>,
    /// When `/tokenize` was found not to be there, or not in time.
    pub(super) uncounted: RwLock<Option<Instant>>,
}

impl KnownModels {
    /// Returns the facts that are known about this model.
    pub fn facts_of(&self, model: &str) -> ModelFacts {
        let models = self.facts.read().unwrap_or_else(PoisonError::into_inner);
        let facts = models.get(model).copied().unwrap_or_default();
        ModelFacts { is_harmony: facts.is_harmony || is_gpt_oss(model), ..facts }
    }

    /// Adds to what is known of a model.
    pub fn learn(&self, model: &str, learn: impl FnOnce(&mut ModelFacts)) {
        let mut models = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = models.get_mut(model) {
            learn(known);
        } else if models.len() < MOST_MODELS {
            learn(models.entry(model.to_owned()).or_default());
        }
    }

    /// Notes that a model has reasoned although the request switched that off. Returns true the first time.
    pub fn note_disobedience(&self, model: &str) -> bool {
        let mut is_new = false;
        self.learn(model, |facts| is_new = !std::mem::replace(&mut facts.ignores_off, true));
        is_new
    }

    /// Returns true when the server has listed this model, or answered a request for it.
    pub fn has_seen(&self, model: &str) -> bool {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).contains_key(model)
    }

    /// Learns that the server answers for this model. Returns false if too many names are known for one more
    /// to label metrics; a client may have invented them.
    pub fn learn_served(&self, model: &str) -> bool {
        self.learn(model, |_| {});
        self.has_seen(model)
    }

    /// Learns from a reply how many tokens a request of this many bytes had.
    pub fn learn_usage(&self, model: &str, bytes: usize, tokens: u64) {
        if bytes < SIGNIFICANT || tokens == 0 {
            return;
        }
        let seen = bytes as u64 * 1000 / tokens;
        if !PLAUSIBLE.contains(&seen) {
            return;
        }
        self.learn(model, |facts| {
            // It answered this prompt, so its window is larger, whatever its list says.
            facts.window = facts.window.filter(|window| *window >= tokens);
            // Later replies count more: the conversation may have turned to another kind of text.
            facts.bytes_per_1000 = Some(facts.bytes_per_1000.map_or(seen, |known| known.midpoint(seen)));
        });
    }
}

pub(super) fn is_gpt_oss(name: &str) -> bool {
    let family = b"gpt-oss";
    name.as_bytes().windows(family.len()).any(|part| part.eq_ignore_ascii_case(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disobedience_is_new_once() {
        let models = KnownModels::default();
        assert!(models.note_disobedience("m") && !models.note_disobedience("m"));
        assert!(models.note_disobedience("other"));
    }

    #[test]
    fn later_replies_weigh_more() {
        let models = KnownModels::default();
        models.learn_usage("m", 100, 60);
        models.learn_usage("m", 1 << 20, 1_000);
        assert_eq!(models.facts_of("m").bytes_per_1000, None);
        for (bytes, expected) in [(40_000, 4000), (60_000, 5000)] {
            models.learn_usage("m", bytes, 10_000);
            assert_eq!(models.facts_of("m").bytes_per_1000, Some(expected));
        }
        for (window, expected) in [(10_000, Some(10_000)), (9_999, None)] {
            models.learn("m", |facts| facts.window = Some(window));
            models.learn_usage("m", 50_000, 10_000);
            assert_eq!(models.facts_of("m").window, expected, "it answered a prompt of 10,000 tokens");
        }
    }

    #[test]
    fn made_up_names_do_not_fill_the_memory() {
        let models = KnownModels::default();
        (0..1000).for_each(|name| models.learn_usage(&name.to_string(), 40_000, 10_000));
        assert_eq!(models.facts.read().unwrap().len(), MOST_MODELS);
    }
}
