//! Remembers the reasoning of tool turns, for clients that do not send it back.
//!
//! gpt-oss was trained to see its own reasoning again until the tool loop ends. An entry is found by the id
//! of a call, and only by a conversation that knows the rest too: the same credentials, the same words of its
//! user, the same call. So an id that is guessed, or that an upstream gave twice, brings nothing of another
//! conversation. Bounded in entries, bytes and age; the least recently used goes first. Nothing is kept on
//! disk. Called by `relay`, which also passes the time.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use telemetry::metrics;
use translate::{SilentTurn, normalise_arguments};
use wire::turn::{ToolCall, Turn};

/// OpenClaw (2026.9.6) strips what is not alphanumeric and cuts at 40 characters, of which the hash that
/// distinguishes duplicates apart takes eight, behind what it leaves of the id.
const ID: usize = 32;
const HASH: usize = 8;
/// The bytes that an entry takes in addition to its texts: key, entry, list node, hash table and allocations,
/// estimated.
const OVERHEAD: usize = 160;

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimits {
    /// Calls.
    pub(super) entries: usize,
    /// Bytes, over all entries.
    pub(super) bytes: usize,
    /// How long an entry stays without being used.
    pub(super) age: Duration,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 64 << 20, age: Duration::from_hours(6) }
    }
}

/// The reasoning of tool turns, by call.
#[derive(Debug)]
pub(super) struct Memory {
    limits: MemoryLimits,
    hasher: RandomState,
    kept: Mutex<MemoryEntries>,
}

/// An id as OpenClaw may alter it, and the keyed hash of all that must fit to it.
type Key = (String, u64);

#[derive(Debug)]
struct MemoryEntries {
    entries: LruCache<Key, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    /// Empty for a turn that had none.
    reasoning: Arc<str>,
    used: Instant,
}

impl Memory {
    /// Returns an empty memory.
    pub(super) fn new(limits: MemoryLimits) -> Self {
        let kept = MemoryEntries { entries: LruCache::unbounded(), bytes: 0 };
        Self { limits, hasher: RandomState::new(), kept: Mutex::new(kept) }
    }

    /// Returns the memory of one conversation. Conversations differ in their credentials and in their user's
    /// texts.
    pub(super) fn open_conversation<'t>(
        self: &Arc<Self>,
        credentials: Option<&[u8]>,
        user_texts: impl Iterator<Item = &'t str>,
    ) -> ConversationMemory {
        let conversation = self.hasher.hash_one((credentials, user_texts.collect::<Vec<_>>()));
        ConversationMemory { memory: Arc::clone(self), conversation }
    }

    fn remember(&self, conversation: u64, turn: &Turn, now: Instant) {
        if turn.reasoning.len() * turn.calls.len() > self.limits.bytes {
            return;
        }
        let is_blank = turn.reasoning.trim().is_empty();
        let reasoning: Arc<str> = if is_blank { "" } else { turn.reasoning.as_str() }.into();
        let keys: Vec<Key> =
            turn.calls.iter().filter_map(|call| self.call_keys(conversation, call).next()).collect();
        let mut kept = self.lock_entries(now);
        for key in keys {
            kept.put(key, Entry { reasoning: Arc::clone(&reasoning), used: now });
        }
        while kept.entries.len() > self.limits.entries || kept.bytes > self.limits.bytes {
            kept.forget();
        }
        metrics::set_reasoning_memory(kept.entries.len(), kept.bytes);
    }

    fn recall(&self, conversation: u64, calls: &[ToolCall], now: Instant) -> Option<Arc<str>> {
        if self.lock_entries(now).entries.is_empty() {
            return None;
        }
        let keys: Vec<Key> = calls.iter().flat_map(|call| self.call_keys(conversation, call)).collect();
        let mut kept = self.lock_entries(now);
        keys.iter().find_map(|key| {
            let entry = kept.entries.get_mut(key)?;
            entry.used = now;
            Some(Arc::clone(&entry.reasoning))
        })
    }

    /// Returns the keys under which a call is remembered: one for its id, and one for an id to which a client
    /// added a hash.
    fn call_keys(&self, conversation: u64, call: &ToolCall) -> impl Iterator<Item = Key> {
        let proof = self.hasher.hash_one((conversation, &call.name, normalise_arguments(&call.arguments)));
        let id: String =
            call.id.iter().flat_map(|id| id.chars()).filter(char::is_ascii_alphanumeric).collect();
        let without_hash = id.len().checked_sub(HASH).map(|length| id[..length].to_owned());
        std::iter::once(id).chain(without_hash).map(move |mut id| {
            id.truncate(ID);
            (id, proof)
        })
    }

    /// Locks the entries, and drops those that are too old.
    fn lock_entries(&self, now: Instant) -> MutexGuard<'_, MemoryEntries> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let too_old = |entry: &Entry| now.saturating_duration_since(entry.used) > self.limits.age;
        while kept.entries.peek_lru().is_some_and(|(_, entry)| too_old(entry)) {
            kept.forget();
        }
        kept
    }
}

impl MemoryEntries {
    fn put(&mut self, key: Key, entry: Entry) {
        let size = entry_size(&key, &entry);
        self.bytes += size;
        if let Some((key, old)) = self.entries.push(key, entry) {
            self.bytes -= self::entry_size(&key, &old);
        }
    }

    fn forget(&mut self) {
        if let Some((key, entry)) = self.entries.pop_lru() {
            self.bytes -= entry_size(&key, &entry);
        }
    }
}

fn entry_size((id, _): &Key, entry: &Entry) -> usize {
    entry.reasoning.len() + id.len() + OVERHEAD
}

/// The memory as one conversation sees it.
#[derive(Clone, Debug)]
pub(super) struct ConversationMemory {
    memory: Arc<Memory>,
    conversation: u64,
}

impl ConversationMemory {
    /// Remembers a turn that leaves, when it has calls.
    pub(super) fn remember(&self, turn: &Turn, now: Instant) {
        if !turn.calls.is_empty() {
            self.memory.remember(self.conversation, turn, now);
        }
    }

    /// Returns what is known of these turns.
    pub(super) fn recall(&self, turns: &[SilentTurn], now: Instant) -> Recalled {
        let mut recalled = Recalled::default();
        for turn in turns {
            match self.memory.recall(self.conversation, &turn.calls, now) {
                None => recalled.unknown += 1,
                Some(reasoning) if reasoning.is_empty() => {}
                Some(reasoning) => recalled.reasoning.push((turn.place, reasoning)),
            }
        }
        recalled
    }
}

/// The memory of some turns that came back without reasoning.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// The reasoning that they had, by the index of the message.
    pub(super) reasoning: Vec<(usize, Arc<str>)>,
    /// How many of them this process has not made, or has forgotten.
    pub(super) unknown: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_mins(1);

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall { id: Some(id.into()), name: "read".into(), arguments: arguments.into(), problems: vec![] }
    }

    fn turn(calls: Vec<ToolCall>, reasoning: &str) -> Turn {
        Turn { calls, reasoning: reasoning.into(), ..Turn::default() }
    }

    fn memory(entries: usize, bytes: usize) -> Arc<Memory> {
        Arc::new(Memory::new(MemoryLimits { entries, bytes, age: AGE }))
    }

    fn own(memory: &Arc<Memory>) -> ConversationMemory {
        memory.open_conversation(Some(b"Bearer a"), ["\"q\""].into_iter())
    }

    fn recalled(of: &ConversationMemory, calls: Vec<ToolCall>, now: Instant) -> Option<String> {
        let found = of.recall(&[SilentTurn { place: 7, calls }], now);
        found.reasoning.first().map(|(place, reasoning)| {
            assert_eq!(*place, 7);
            reasoning.to_string()
        })
    }

    #[test]
    fn a_call_is_found_by_altered_ids() {
        let (now, long) = (Instant::now(), format!("chatcmpl-tool-{}", "b".repeat(32)));
        for (left, back, found) in [
            ("abcdefghi", "abcdefghi", true),
            ("call_abc-1", "callabc1", true),
            (long.as_str(), &format!("chatcmpltool{}", "b".repeat(28)), true),
            (long.as_str(), &format!("chatcmpltool{}0a1b2c3d", "b".repeat(20)), true),
            ("abcdefghi", "abcdefghi0a1b2c3d", true),
            ("abcdefghi", "abcdefghj", false),
            ("abcdefghi", "abc", false),
        ] {
            let own = own(&memory(10, 10_000));
            own.remember(&turn(vec![call(left, "{}")], "why"), now);
            assert_eq!(recalled(&own, vec![call(back, "{}")], now).is_some(), found, "{left} {back}");
        }
    }

    #[test]
    fn a_guessed_id_brings_nothing() {
        let (memory, now) = (memory(10, 10_000), Instant::now());
        own(&memory).remember(&turn(vec![call("abcdefghi", r#"{"path":"a","n":5.0}"#)], "why"), now);
        let same = r#"{"n": 5, "path": "a"}"#;
        assert_eq!(recalled(&own(&memory), vec![call("abcdefghi", same)], now).as_deref(), Some("why"));
        for (credentials, text, arguments) in [
            (Some(&b"Bearer b"[..]), "\"q\"", same),
            (None, "\"q\"", same),
            (Some(b"Bearer a"), "\"p\"", same),
            (Some(b"Bearer a"), "\"q\"", "{}"),
        ] {
            let other = memory.open_conversation(credentials, [text].into_iter());
            assert_eq!(
                recalled(&other, vec![call("abcdefghi", arguments)], now),
                None,
                "{credentials:?} {text}"
            );
        }
        let other_tool = ToolCall { name: "exec".into(), ..call("abcdefghi", same) };
        assert_eq!(recalled(&own(&memory), vec![other_tool], now), None);
    }

    #[test]
    fn any_call_of_a_turn_brings_its_reasoning() {
        let (own, now) = (own(&memory(10, 10_000)), Instant::now());
        own.remember(&turn(vec![call("first0001", "{}"), call("second001", "{}")], "why"), now);
        for calls in [vec![call("second001", "{}")], vec![call("unknown01", "{}"), call("first0001", "{}")]] {
            assert_eq!(recalled(&own, calls, now).as_deref(), Some("why"));
        }
    }

    #[test]
    fn turns_of_others_are_unknown() {
        let (own, now) = (own(&memory(10, 10_000)), Instant::now());
        own.remember(&turn(vec![call("blank0001", "{}")], " \n"), now);
        own.remember(&turn(vec![], "no calls"), now);
        for (id, unknown) in [("blank0001", 0), ("others001", 1)] {
            let found = own.recall(&[SilentTurn { place: 7, calls: vec![call(id, "{}")] }], now);
            assert_eq!((found.reasoning.len(), found.unknown), (0, unknown), "{id}");
        }
    }

    /// Which of the calls 0.. are still known after `count` turns of `length` bytes.
    fn left(memory: &Arc<Memory>, count: usize, length: usize) -> Vec<usize> {
        let (own, now) = (own(memory), Instant::now());
        let id = |at: usize| format!("call{at:05}");
        for at in 0..count {
            own.remember(&turn(vec![call(&id(at), "{}")], &"r".repeat(length)), now);
            // The first one is in use all the time.
            recalled(&own, vec![call(&id(0), "{}")], now);
        }
        let left =
            (0..count).filter(|at| recalled(&own, vec![call(&id(*at), "{}")], now).is_some()).collect();
        let kept = memory.lock_entries(now);
        let bytes: usize = kept.entries.iter().map(|(key, entry)| entry_size(key, entry)).sum();
        assert_eq!(kept.bytes, bytes, "the count of bytes is right");
        left
    }

    #[test]
    fn the_least_recently_used_is_forgotten() {
        assert_eq!(left(&memory(3, 1 << 20), 6, 10), [0, 4, 5]);
        assert_eq!(left(&memory(100, 4 * (1000 + 9 + OVERHEAD)), 6, 1000), [0, 3, 4, 5]);
        assert_eq!(left(&memory(100, 500), 3, 1000), [] as [usize; 0], "larger than all room");
    }

    #[test]
    fn unused_entries_are_forgotten() {
        let (memory, began) = (memory(10, 10_000), Instant::now());
        let own = own(&memory);
        own.remember(&turn(vec![call("first0001", "{}")], "why"), began);
        own.remember(&turn(vec![call("second001", "{}")], "why"), began);
        let find = |id: &str, after: Duration| recalled(&own, vec![call(id, "{}")], began + after);
        assert!(find("first0001", AGE).is_some());
        assert!(find("first0001", AGE + AGE / 2).is_some(), "use keeps it");
        assert_eq!(find("second001", AGE + AGE / 2), None);
        assert_eq!(find("first0001", AGE * 3), None);
        assert_eq!(memory.lock_entries(began).bytes, 0);
    }

    #[test]
    fn the_same_call_replaces_its_entry() {
        let (memory, now) = (memory(10, 10_000), Instant::now());
        let own = own(&memory);
        for text in ["old", "newer"] {
            own.remember(&turn(vec![call("abcdefghi", "{}")], text), now);
        }
        assert_eq!(recalled(&own, vec![call("abcdefghi", "{}")], now).as_deref(), Some("newer"));
        assert_eq!(memory.lock_entries(now).bytes, "newer".len() + 9 + OVERHEAD);
    }
}
