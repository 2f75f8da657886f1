//! What respool remembers of responses for `previous_response_id` and `item_reference`: in memory, bounded, for the same key only.
//!
//! Some clients (the AI SDK) name what the model said instead of sending it, unless they are told otherwise. Nothing is kept of
//! a request with `store: false`, and nothing outlives the process. Called by `agent_apis`.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, header};
use lru::LruCache;

use crate::translate::responses::{Recalled, Wanted};
use crate::wire::array;

/// As many bytes of JSON are kept; the ones that were not asked for longest go first.
const MOST_BYTES: usize = 64 << 20;

/// Whose something is: a key's digest, which differs in each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner(u64);

/// Responses and items by id.
#[derive(Debug)]
pub struct ResponseMemory {
    hasher: RandomState,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    entries: LruCache<(Owner, String), String>,
    bytes: usize,
}

impl Default for ResponseMemory {
    fn default() -> Self {
        let kept = Kept { entries: LruCache::unbounded(), bytes: 0 };
        Self { hasher: RandomState::new(), kept: Mutex::new(kept) }
    }
}

impl ResponseMemory {
    /// The owner of what a request with these headers makes.
    pub(super) fn owner(&self, headers: &HeaderMap) -> Owner {
        Owner(self.hasher.hash_one(headers.get(header::AUTHORIZATION)))
    }

    /// What is remembered of it.
    pub(super) fn recall(&self, owner: Owner, wanted: &Wanted) -> Recalled {
        if *wanted == Wanted::default() {
            return Recalled::default();
        }
        let mut kept = self.kept();
        let mut find = |id: &String| kept.entries.get(&(owner, id.clone())).cloned();
        let previous = wanted.previous.as_ref().and_then(&mut find);
        let items = wanted.items.iter().filter_map(|id| Some((id.clone(), find(id)?))).collect();
        let previous =
            previous.and_then(|items| Some(array(&items)?.into_iter().map(str::to_owned).collect()));
        Recalled { previous, items }
    }

    /// Remembers JSON texts by id.
    pub(super) fn keep(&self, owner: Owner, texts: Vec<(String, String)>) {
        let mut kept = self.kept();
        for (id, text) in texts.into_iter().filter(|(_, text)| text.len() <= MOST_BYTES / 4) {
            kept.bytes += text.len();
            if let Some((_, old)) = kept.entries.push((owner, id), text) {
                kept.bytes -= old.len();
            }
        }
        while kept.bytes > MOST_BYTES {
            let Some((_, old)) = kept.entries.pop_lru() else { break };
            kept.bytes -= old.len();
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(id: &str) -> Wanted {
        Wanted { previous: Some(id.into()), items: vec![id.into()] }
    }

    #[test]
    fn only_the_owner_recalls() {
        let memory = ResponseMemory::default();
        let mut headers = HeaderMap::new();
        let nobody = memory.owner(&headers);
        headers.insert(header::AUTHORIZATION, "Bearer a".parse().unwrap());
        let owner = memory.owner(&headers);
        memory.keep(owner, vec![("resp_1".into(), r#"[{"a":1},2]"#.into())]);
        let recalled = memory.recall(owner, &wanted("resp_1"));
        assert_eq!(recalled.previous.unwrap(), [r#"{"a":1}"#, "2"]);
        assert!(memory.recall(nobody, &wanted("resp_1")).previous.is_none());
        assert!(memory.recall(owner, &wanted("resp_2")).items.is_empty());
    }

    #[test]
    fn the_oldest_goes_first() {
        let memory = ResponseMemory::default();
        let owner = memory.owner(&HeaderMap::new());
        let text = "x".repeat(MOST_BYTES / 5);
        for id in ["a", "b", "c", "d", "e", "e", "f"] {
            memory.keep(owner, vec![(id.into(), text.clone())]);
        }
        assert!(memory.recall(owner, &wanted("a")).items.is_empty());
        assert_eq!(memory.recall(owner, &wanted("f")).items.len(), 1);
        assert!(memory.kept().bytes <= MOST_BYTES);
        memory.keep(owner, vec![("huge".into(), "x".repeat(MOST_BYTES / 2))]);
        assert!(memory.recall(owner, &wanted("huge")).items.is_empty());
    }
}
