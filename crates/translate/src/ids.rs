//! Chooses tool-call ids that every client returns unchanged and every chat template accepts.
//!
//! OpenClaw strips characters that are not alphanumeric and cuts at 40, so ids match `[A-Za-z0-9]{9,40}`;
//! Mistral's template needs exactly 9. Kimi's template needs its own `functions.NAME:IDX` in the history, so
//! such an id leaves as `kimiIDXzRANDOM` and is mapped back, without any memory, when the conversation
//! returns.

use std::collections::HashSet;
use std::sync::Arc;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const LENGTH: usize = 9;
const KIMI: &str = "kimi";

/// Chooses ids for one reply; no id is used twice in the conversation.
#[derive(Clone, Debug)]
pub struct Ids {
    taken: Arc<HashSet<String>>,
    chosen: HashSet<String>,
    state: u64,
}

impl Ids {
    /// Begins a reply's ids. `seed`: a random number from the caller. `taken`: the ids that the conversation
    /// already uses.
    pub fn new(seed: u64, taken: impl Into<Arc<HashSet<String>>>) -> Self {
        Self { taken: taken.into(), chosen: HashSet::new(), state: seed }
    }

    fn is_taken(&self, id: &str) -> bool {
        self.chosen.contains(id) || self.taken.contains(id)
    }

    /// Chooses the id of a call: the upstream's own if it is well formed and new, else a new one.
    pub fn choose_id(&mut self, upstream: Option<&str>) -> String {
        let id = match upstream {
            Some(id) if is_well_formed(id) && !self.is_taken(id) => id.to_owned(),
            Some(id) => match kimi_index(id) {
                Some(index) => self.fresh_id(&format!("{KIMI}{index}z")),
                None => self.fresh_id(""),
            },
            None => self.fresh_id(""),
        };
        self.chosen.insert(id.clone());
        id
    }

    /// Makes a new reply id in OpenAI's form.
    pub fn reply_id(&mut self) -> String {
        self.id_with_prefix("chatcmpl-")
    }

    /// Makes a new id in OpenAI's form: a prefix and hexadecimal digits.
    pub fn id_with_prefix(&mut self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:016x}", self.next_random(), self.next_random())
    }

    fn fresh_id(&mut self, prefix: &str) -> String {
        loop {
            let id: String = prefix.chars().chain((0..LENGTH).map(|_| self.random_letter())).collect();
            if !self.is_taken(&id) {
                return id;
            }
        }
    }

    fn random_letter(&mut self) -> char {
        let index = usize::try_from(self.next_random() % ALPHABET.len() as u64).unwrap_or_default();
        char::from(ALPHABET[index])
    }

    /// Returns the next number of `SplitMix64`: ids must differ, not be secret.
    fn next_random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Returns the model's own id for a call that left as `id`: `functions.NAME:IDX` for Kimi's models, `None`
/// for others.
pub(super) fn original_id(id: &str, name: &str) -> Option<String> {
    let (index, random) = id.strip_prefix(KIMI)?.split_once('z')?;
    let is_ours =
        random.len() == LENGTH && !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    is_ours.then(|| format!("functions.{name}:{index}"))
}

/// Returns false when a text of calls certainly has no id for [`original_id`], so that it need not be parsed.
pub(super) fn may_hold_kimis(calls: &str) -> bool {
    memchr::memmem::find(calls.as_bytes(), KIMI.as_bytes()).is_some()
}

fn kimi_index(id: &str) -> Option<&str> {
    let (_, index) = id.strip_prefix("functions.")?.rsplit_once(':')?;
    let plain = !index.is_empty() && index.len() <= 9 && index.bytes().all(|byte| byte.is_ascii_digit());
    plain.then_some(index)
}

fn is_well_formed(id: &str) -> bool {
    (LENGTH..=40).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_well_formed_id_is_kept_once() {
        let mut ids = Ids::new(1, HashSet::from(["used12345".to_owned()]));
        assert_eq!(ids.choose_id(Some("abcDEF123")), "abcDEF123");
        for id in [Some("abcDEF123"), Some("used12345"), Some("call_abc"), Some("short"), Some(""), None] {
            let chosen = ids.choose_id(id);
            assert!(chosen.len() == 9 && is_well_formed(&chosen), "{id:?} {chosen}");
            assert_ne!(Some(chosen.as_str()), id);
        }
    }

    #[test]
    fn kimis_ids_come_back() {
        let mut ids = Ids::new(2, HashSet::new());
        let left = ids.choose_id(Some("functions.web_search:13"));
        assert!(is_well_formed(&left));
        assert_eq!(original_id(&left, "web_search").as_deref(), Some("functions.web_search:13"));
        assert_eq!(original_id("kimonoz12", "x"), None);
        assert_eq!(original_id("callv1abc", "x"), None);
    }
}
