//! How many tokens the next prompt has. gpt-oss's prompts are counted as its server counts them; those of
//! other models are estimated to the high side. What a server said of a prompt corrects what stands for it,
//! so that only what is new since then is a guess. Each message is counted once, and what many runs have in
//! common once for all of them. Pure but for that. Used by `run`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::num::NonZeroUsize;
use std::sync::{LazyLock, Mutex, PoisonError};

use lru::LruCache;
use serde_json::Value;

use super::budget::estimate_tokens;
use translate::tokens;

/// Fractions are in millionths.
const ONE: u64 = 1_000_000;
/// The margin on the estimate of parts that no server has counted yet, in millionths: vocabularies smaller
/// than those that the estimate was measured with have more tokens.
const MARGIN: u64 = 1_250_000;
/// A server's counts are believed within these bounds, in millionths of ours: some do not count what was in
/// their cache.
const PLAUSIBLE: (u64, u64) = (400_000, 4_000_000);
/// The tokens that a chat template puts around a message.
const FRAME: u64 = 5;
/// An image; servers make 250 to 3,000 tokens of one.
const IMAGE: u64 = 1_500;

/// The largest message that is counted, in bytes: a word without end takes 20 ms for this many.
const LARGEST: usize = 64 << 10;
/// A part with fewer tokens is counted again in each run.
const SHARED: u64 = 400;
/// The parts of prompts that runs have in common, such as their tools: what gpt-oss makes of them, by their
/// hash.
static COUNTED: LazyLock<Mutex<LruCache<u64, u64>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(NonZeroUsize::new(512).unwrap_or(NonZeroUsize::MIN))));

/// The prompt that was weighed last, part by part, and what the server's counts taught.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weights {
    /// By the hash of a part.
    parts: HashMap<u64, Part>,
    is_harmony: bool,
    /// The server's counts by ours, in millionths.
    scale: u64,
    /// Ours of the whole prompt.
    raw: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    tokens: u64,
    /// A server has counted a prompt with it.
    is_known: bool,
}

impl Default for Weights {
    fn default() -> Self {
        Self { parts: HashMap::new(), is_harmony: false, scale: ONE, raw: 0 }
    }
}

impl Weights {
    /// Returns the tokens of a prompt. What it consists of is remembered until the next one.
    pub(super) fn weigh(&mut self, messages: &[Value], tools: &[Value], is_harmony: bool) -> u64 {
        if is_harmony != self.is_harmony {
            *self = Self { is_harmony, ..Self::default() };
        }
        let before = std::mem::take(&mut self.parts);
        let (mut known, mut fresh) = (0, 0);
        let mut add = |hash: u64, count: &dyn Fn() -> u64| {
            let tokens = || if is_harmony { counted_once(hash, count) } else { count() };
            let new = || Part { tokens: tokens(), is_known: false };
            let part = before.get(&hash).copied().unwrap_or_else(new);
            *(if part.is_known { &mut known } else { &mut fresh }) += part.tokens;
            self.parts.insert(hash, part);
        };
        add(hash(tools), &|| {
            if is_harmony { tokens::count_harmony_frame(tools) } else { estimate_tools(tools) }
        });
        for message in messages {
            add(hash(message), &|| {
                if is_harmony { harmony_tokens(message) } else { message_tokens(message) }
            });
        }
        self.raw = known + fresh;
        let margin = if is_harmony { ONE } else { MARGIN };
        (known * self.scale + fresh * self.scale.max(margin)).div_ceil(ONE)
    }

    /// Returns the same without the margin: what the prompt has at least, in all likelihood.
    pub(super) fn lower_bound(&self) -> u64 {
        (self.raw * self.scale).div_ceil(ONE)
    }

    /// Learns what the server counted for the prompt that was weighed last. One that says nothing teaches
    /// nothing.
    pub(super) fn learn(&mut self, counted: u64) {
        if self.raw == 0 || counted == 0 {
            return;
        }
        self.scale = (counted.saturating_mul(ONE) / self.raw).clamp(PLAUSIBLE.0, PLAUSIBLE.1);
        self.parts.values_mut().for_each(|part| part.is_known = true);
    }
}

fn hash(part: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    part.hash(&mut hasher);
    hasher.finish()
}

fn counted_once(hash: u64, count: &dyn Fn() -> u64) -> u64 {
    let counted = || COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tokens) = counted().get(&hash) {
        return *tokens;
    }
    let tokens = count();
    if tokens >= SHARED {
        counted().put(hash, tokens);
    }
    tokens
}

fn harmony_tokens(message: &Value) -> u64 {
    let text = message.to_string();
    if text.len() > LARGEST {
        return message_tokens(message);
    }
    tokens::count_harmony_message(&text) + image_count(message) * IMAGE
}

/// Templates write declarations as JSON.
fn estimate_tools(tools: &[Value]) -> u64 {
    tools.iter().map(|tool| estimate_tokens(&tool.to_string())).sum()
}

fn message_tokens(message: &Value) -> u64 {
    let fields = message.as_object().into_iter().flatten();
    let text = |(name, value): (&String, &Value)| match value {
        Value::String(_) if name == "role" => 0,
        Value::String(text) => estimate_tokens(text),
        Value::Array(parts) if name == "content" => {
            parts.iter().filter_map(|part| part["text"].as_str()).map(estimate_tokens).sum()
        }
        Value::Null => 0,
        other => estimate_tokens(&other.to_string()),
    };
    FRAME + fields.map(text).sum::<u64>() + image_count(message) * IMAGE
}

/// Returns the number of parts of a message that are not text.
fn image_count(message: &Value) -> u64 {
    let parts = message["content"].as_array().into_iter().flatten();
    parts.filter(|part| !part["text"].is_string()).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    /// The vocabulary takes a tenth of a second for a word of this size, in which others get no answer.
    #[test]
    fn large_messages_are_estimated() {
        let message = |size: usize| json!({"role": "tool", "content": "a".repeat(size)});
        let (small, large) = (message(1_000), message(200_000));
        assert_eq!(harmony_tokens(&small), tokens::count_harmony_message(&small.to_string()));
        assert_eq!(harmony_tokens(&large), message_tokens(&large));
    }

    #[test]
    fn gpt_oss_is_counted_like_its_server_counts() {
        for name in ["request-2026.9.6-fulltools", "turn-parallel-2-after-tools"] {
            let body = std::fs::read(format!("../../fixtures/openclaw/{name}.json")).unwrap();
            let request: Value = serde_json::from_slice(&body).unwrap();
            let list = |key: &str| request[key].as_array().unwrap().clone();
            let weighed = Weights::default().weigh(&list("messages"), &list("tools"), true);
            let whole = tokens::count_harmony(&wire::ChatRequest::parse(&body).unwrap());
            assert_eq!(weighed, whole, "{name}");
        }
    }

    #[test]
    fn only_uncounted_parts_have_a_margin() {
        let mut weights = Weights::default();
        let mut prompt = vec![user(&"some words of a conversation ".repeat(100))];
        let first = weights.weigh(&prompt, &[], false);
        weights.learn(400);
        assert_eq!(weights.weigh(&prompt, &[], false), 400);
        prompt.push(user(&"a few more words ".repeat(100)));
        let (guess, bare) = (weights.weigh(&prompt, &[], false) - 400, Weights::default());
        let raw = { bare }.weigh(&prompt[1..], &[], false);
        assert!(first > 400 && guess.abs_diff(raw) <= 2, "{first} {guess} {raw}");
        weights.learn(0);
        assert_eq!(
            weights.weigh(&prompt, &[], false) - 400,
            guess,
            "a server that says nothing teaches nothing"
        );
    }

    #[test]
    fn a_message_is_counted_once() {
        let mut weights = Weights::default();
        let prompt = [user("a"), user("b")];
        weights.weigh(&prompt, &[], true);
        weights.parts.values_mut().for_each(|part| part.tokens = 1_000);
        let more = [user("b"), user("c")];
        assert_eq!(
            weights.weigh(&more, &[], true),
            2_000 + tokens::count_harmony_message(&user("c").to_string())
        );
        assert_eq!(weights.parts.len(), 3, "what is no longer in the prompt is forgotten");
    }

    #[test]
    fn another_model_is_counted_from_scratch() {
        let mut weights = Weights::default();
        let image = json!({"type": "image_url", "image_url": {"url": "x".repeat(100_000)}});
        let prompt = [json!({"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]})];
        assert!((1_500..3_000).contains(&weights.weigh(&prompt, &[], false)));
        weights.learn(4_000);
        assert_eq!(weights.weigh(&prompt, &[], false), 4_000);
        assert!((1_500..2_000).contains(&weights.weigh(&prompt, &[], true)));
    }
}
