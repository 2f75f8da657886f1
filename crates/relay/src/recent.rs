//! Remembers what was found in the last requests, because a client sends its conversation and its tools whole
//! with each turn: what stands in the next request again is compared, and not read again. What is remembered
//! is only ever used where the same bytes stand again, so it does not matter whose request it was. Bounded in
//! requests, bytes and age; nothing is kept on disk. Called by `request`.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::conversation_rules::{ConversationRules, PrefixLoss, shared_length};
use tool_call_parser::Tools;
use translate::declared_tools;
use wire::{ChatRequest, KnownMessage, KnownParts, KnownTools, Object, array_elements};

/// To read a shorter request costs less than to remember it, in bytes.
const SHORT: usize = 8 << 10;
/// How many `tools` arrays that are shorter than that are remembered.
const SHORT_TOOLS: usize = 32;
/// The declarations of a request without tools.
static NO_TOOLS: LazyLock<Arc<Tools>> = LazyLock::new(Arc::default);
/// How many bytes two requests of one conversation have in common, at their beginning and before the end of
/// the user's first words.
const SAMPLE: usize = 256;

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentLimits {
    pub(super) requests: usize,
    /// Bytes of their messages and tools.
    pub(super) bytes: usize,
    /// How long without being used.
    pub(super) age: Duration,
}

impl Default for RecentLimits {
    fn default() -> Self {
        Self { requests: 64, bytes: 32 << 20, age: Duration::from_hours(1) }
    }
}

/// The last requests.
#[derive(Debug)]
pub(super) struct Recent {
    limits: RecentLimits,
    /// Most recently used first.
    kept: Mutex<VecDeque<(Instant, Arc<RecentRequest>)>>,
    /// Short `tools` arrays with the tools that they declare, most recently used first.
    short_tools: Mutex<VecDeque<(Box<str>, Arc<Tools>)>>,
}

/// The contents of one request, as they were read.
#[derive(Debug, Default)]
pub(super) struct RecentRequest {
    messages: Vec<Arc<KnownMessage>>,
    tools: Option<Arc<RecentTools>>,
    /// Its first bytes.
    beginning: Box<[u8]>,
    /// Where the first words of the user end, and the bytes before.
    first_words: (usize, Box<[u8]>),
    /// The rules of its conversation.
    rules: ConversationRules,
}

/// Tools of a request, as they were read.
#[derive(Debug)]
pub(super) struct RecentTools {
    known: KnownTools,
    /// Read from them.
    tools: Arc<Tools>,
}

impl Recent {
    pub(super) fn new(limits: RecentLimits) -> Self {
        Self { limits, kept: Mutex::default(), short_tools: Mutex::default() }
    }

    /// The declared tools of a request that was read with what `like` knew of it; those of an earlier
    /// request, where they are the same.
    pub(super) fn declared_tools(
        &self,
        request: &ChatRequest<'_>,
        like: Option<&RecentRequest>,
    ) -> Arc<Tools> {
        if let Some(tools) = like.and_then(RecentRequest::tools).filter(|_| request.has_known_tools()) {
            return Arc::clone(tools);
        }
        match request.tools().filter(|_| !request.functions.is_empty()) {
            None => Arc::clone(&NO_TOOLS),
            Some(text) if text.len() < SHORT => self.short_tools(text, || declared_tools(request)),
            Some(_) => Arc::new(declared_tools(request)),
        }
    }

    fn short_tools(&self, text: &str, read: impl FnOnce() -> Tools) -> Arc<Tools> {
        let mut kept = self.short_tools.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|(known, _)| **known == *text);
        let found = place.and_then(|place| kept.remove(place));
        let found = found.unwrap_or_else(|| (text.into(), Arc::new(read())));
        let tools = Arc::clone(&found.1);
        kept.push_front(found);
        kept.truncate(SHORT_TOOLS);
        tools
    }

    /// The last request of the same conversation; else one that began like this one.
    pub(super) fn find_similar(&self, body: &[u8], now: Instant) -> Option<Arc<RecentRequest>> {
        if body.len() < SHORT {
            return None;
        }
        let mut kept = self.lock_requests(now);
        let same = kept.iter().position(|(_, request)| request.is_of_same_conversation(body));
        let place =
            same.or_else(|| kept.iter().position(|(_, request)| body.starts_with(&request.beginning)))?;
        let (_, request) = kept.remove(place)?;
        kept.push_front((now, Arc::clone(&request)));
        Some(request)
    }

    /// Remembers a request that was read with what `known` knew of it. `tools`: those that it declares;
    /// `rules`: those of its conversation. Returns what the conversation lost of its prefix.
    pub(super) fn remember_request(
        &self,
        body: &[u8],
        request: &ChatRequest<'_>,
        known: Option<&Arc<RecentRequest>>,
        tools: &Arc<Tools>,
        rules: &ConversationRules,
        now: Instant,
    ) -> Option<PrefixLoss> {
        if body.len() < SHORT {
            return None;
        }
        let before = known.map(|known| known.messages.as_slice()).unwrap_or_default();
        let messages = request.known_messages(before);
        let of_same = known.filter(|known| known.is_of_same_conversation(body));
        let is_unchanged = messages.len() == before.len()
            && messages.iter().zip(before).all(|(new, old)| Arc::ptr_eq(new, old))
            && (request.has_known_tools() || request.tools().is_none());
        if of_same.is_some() && is_unchanged {
            return None;
        }
        let has_same_tools = request.has_known_tools() || of_same.is_some_and(|old| old.tools.is_none());
        let earlier = of_same.cloned().or_else(|| self.find_continued(&messages, now));
        let loss = earlier.and_then(|old| {
            let other_tools = request.tools().filter(|tools| !has_same_tools && !old.has_tools(tools));
            old.prefix_loss(&messages, other_tools)
        });
        let tools = match known.and_then(|known| known.tools.as_ref()).filter(|_| request.has_known_tools()) {
            Some(tools) => Some(Arc::clone(tools)),
            None => {
                request.known_tools().map(|known| Arc::new(RecentTools { known, tools: Arc::clone(tools) }))
            }
        };
        let beginning = body[..SAMPLE.min(body.len())].into();
        let (first_words, rules) = (first_words(body, request), rules.clone());
        let new = Arc::new(RecentRequest { messages, tools, beginning, first_words, rules });
        // One request does not push all others out.
        if new.size() > self.limits.bytes / 2 {
            return None;
        }
        let mut kept = self.lock_requests(now);
        if let Some(old) = of_same {
            kept.retain(|(_, request)| !Arc::ptr_eq(request, old));
        }
        kept.push_front((now, new));
        let mut bytes = 0;
        let fits = |request: &RecentRequest| {
            bytes += request.size();
            bytes <= self.limits.bytes
        };
        let many = kept.iter().map(|(_, request)| &**request).map(fits).take_while(|fits| *fits).count();
        kept.truncate(many.min(self.limits.requests));
        loss
    }

    /// The last request of a conversation that goes on with these messages, after its first message has
    /// changed.
    fn find_continued(&self, messages: &[Arc<KnownMessage>], now: Instant) -> Option<Arc<RecentRequest>> {
        let kept = self.lock_requests(now);
        let found = kept.iter().find(|(_, request)| request.is_continued_by(messages));
        found.map(|(_, request)| Arc::clone(request))
    }

    /// Locks the requests, and drops those that are too old.
    fn lock_requests(&self, now: Instant) -> MutexGuard<'_, VecDeque<(Instant, Arc<RecentRequest>)>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.back().is_some_and(|(used, _)| now.saturating_duration_since(*used) > self.limits.age) {
            kept.pop_back();
        }
        kept
    }
}

impl RecentRequest {
    /// Returns the known parts for reading a similar request.
    pub(super) fn known_parts(&self) -> KnownParts<'_> {
        KnownParts { messages: &self.messages, tools: self.tools.as_ref().map(|tools| &tools.known) }
    }

    /// Its tools.
    pub(super) fn tools(&self) -> Option<&Arc<Tools>> {
        self.tools.as_ref().map(|tools| &tools.tools)
    }

    /// Its messages; none when the body is of another conversation.
    pub(super) fn messages_of(&self, body: &[u8]) -> &[Arc<KnownMessage>] {
        if self.is_of_same_conversation(body) { &self.messages } else { &[] }
    }

    /// The rules of its conversation; `None` when the body is of another one.
    fn rules_for(&self, body: &[u8]) -> Option<ConversationRules> {
        self.is_of_same_conversation(body).then(|| self.rules.clone())
    }

    /// The loss of the prefix, where a later request of the conversation shares less than half of this one.
    /// `other_tools`: its tools, if they differ; they stand before all messages.
    fn prefix_loss(&self, messages: &[Arc<KnownMessage>], other_tools: Option<&str>) -> Option<PrefixLoss> {
        let size =
            |messages: &[Arc<KnownMessage>]| messages.iter().map(|message| message.text_len()).sum::<usize>();
        let tools = self.tools.as_ref().map_or("", |tools| tools.known.text());
        let total = size(&self.messages) + tools.len();
        let shared =
            messages.iter().zip(&self.messages).take_while(|(new, old)| Arc::ptr_eq(new, old)).count();
        let kept = if other_tools.is_none() { size(&self.messages[..shared]) + tools.len() } else { 0 };
        let place = || match other_tools {
            Some(other) => different_tool(tools, other),
            None => match (self.messages.get(shared), messages.get(shared)) {
                (Some(old), Some(new)) => {
                    format!("message {shared}, byte {}", shared_length(old.text(), new.text()))
                }
                _ => format!("message {shared}, which is gone"),
            },
        };
        (2 * kept < total).then(|| PrefixLoss { place: place(), bytes: total - kept })
    }

    fn has_tools(&self, tools: &str) -> bool {
        self.tools.as_ref().is_some_and(|own| own.known.text() == tools)
    }

    /// True when these messages are this conversation after its first message has changed.
    fn is_continued_by(&self, messages: &[Arc<KnownMessage>]) -> bool {
        let is_same = |at: usize| match (messages.get(at), self.messages.get(at)) {
            (Some(new), Some(old)) => new.text() == old.text(),
            _ => false,
        };
        messages.len() >= self.messages.len() && is_same(1) && is_same(2)
    }

    fn is_of_same_conversation(&self, body: &[u8]) -> bool {
        let (end, words) = &self.first_words;
        body.get(end.saturating_sub(words.len())..*end).is_some_and(|there| *there == **words)
            && body.starts_with(&self.beginning)
    }

    fn size(&self) -> usize {
        let tools = self.tools.as_ref().map_or(0, |tools| 2 * tools.known.text_len());
        let messages = self.messages.iter().map(|message| message.text_len()).sum::<usize>();
        messages + tools + self.rules.sent_len()
    }
}

/// Returns the rules of the conversation that a body belongs to. `like`: the request that it resembles.
pub(super) fn find_rules(body: &[u8], like: Option<&RecentRequest>) -> ConversationRules {
    if body.len() < SHORT {
        return ConversationRules::default();
    }
    like.and_then(|like| like.rules_for(body)).unwrap_or_else(ConversationRules::begin)
}

/// The first tool that differs between two arrays, for people.
fn different_tool(old: &str, new: &str) -> String {
    let (old, new) = (array_elements(old).unwrap_or_default(), array_elements(new).unwrap_or_default());
    let at = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let name = new
        .get(at)
        .or(old.get(at))
        .and_then(|tool| Object::parse(Object::parse(tool).ok()?.get("function")?).ok()?.string("name"));
    let byte = old.get(at).zip(new.get(at)).map_or(0, |(old, new)| shared_length(old, new));
    format!("tool {at} (`{}`), byte {byte}", name.unwrap_or_default())
}

/// Where the first words of the user end, and the bytes before.
fn first_words(body: &[u8], request: &ChatRequest<'_>) -> (usize, Box<[u8]>) {
    let first = request.messages.iter().find(|message| message.has_role("user")).or(request.messages.first());
    let end = first.and_then(|message| message.end_offset_in(body)).unwrap_or_default();
    (end, body[end.saturating_sub(SAMPLE)..end].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(messages: &[&str]) -> String {
        let system = format!(r#"{{"role":"system","content":"{}"}}"#, "s".repeat(9_000));
        let messages: Vec<String> = std::iter::once(system)
            .chain(messages.iter().map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#)))
            .collect();
        format!(
            r#"{{"model":"m","messages":[{}],"tools":[{{"function":{{"name":"f"}}}}]}}"#,
            messages.join(",")
        )
    }

    /// Reads a body as `request` does. Returns how many of its messages were known, and whether its tools
    /// were.
    fn read(recent: &Recent, body: &str, now: Instant) -> (usize, bool) {
        let (same, is_known, _) = read_with_loss(recent, body, now);
        (same, is_known)
    }

    fn read_with_loss(recent: &Recent, body: &str, now: Instant) -> (usize, bool, Option<PrefixLoss>) {
        let known = recent.find_similar(body.as_bytes(), now);
        let parts = known.as_ref().map(|known| known.known_parts()).unwrap_or_default();
        let request = ChatRequest::parse_known(body.as_bytes(), parts).unwrap();
        let before = parts.messages;
        let same = request.known_messages(before);
        let same = same.iter().zip(before).filter(|(new, old)| Arc::ptr_eq(new, old)).count();
        let (tools, rules) = (Arc::default(), find_rules(body.as_bytes(), known.as_deref()));
        let loss = recent.remember_request(body.as_bytes(), &request, known.as_ref(), &tools, &rules, now);
        (same, request.has_known_tools(), loss)
    }

    #[test]
    fn each_conversation_finds_its_last_request() {
        let (recent, now) = (Recent::new(RecentLimits::default()), Instant::now());
        assert_eq!(read(&recent, &body(&["a"]), now), (0, false));
        assert_eq!(
            read(&recent, &body(&["b"]), now),
            (1, true),
            "another conversation with the same prompt and tools"
        );
        assert_eq!(read(&recent, &body(&["a", "c"]), now), (2, true));
        assert_eq!(read(&recent, &body(&["b", "c"]), now), (2, true));
        assert_eq!(read(&recent, &body(&["a", "c", "d"]), now), (3, true));
        assert_eq!(recent.lock_requests(now).len(), 2, "one for each conversation");
        assert_eq!(recent.lock_requests(now + Duration::from_hours(2)).len(), 0);
    }

    #[test]
    fn the_loss_of_a_prefix_is_found() {
        let (recent, now) = (Recent::new(RecentLimits::default()), Instant::now());
        let loss = |body: &str| read_with_loss(&recent, body, now).2;
        assert_eq!(loss(&body(&["a"])), None);
        assert_eq!(loss(&body(&["a", "b"])), None, "the conversation goes on");
        assert_eq!(loss(&body(&["a", "c"])), None, "most of the prompt is the same");
        let mut changed = body(&["a", "c"]);
        changed.replace_range(4_000..4_001, "t");
        let found = loss(&changed).unwrap();
        assert!(found.place == "message 0, byte 3975" && found.bytes > 9_000, "{found:?}");
        let found = loss(&changed.replace(r#""name":"f""#, r#""name":"g""#)).unwrap();
        assert_eq!(found.place, "tool 0 (`g`), byte 21");
    }

    #[test]
    fn a_system_prompt_of_another_length_is_a_loss() {
        let (recent, now) = (Recent::new(RecentLimits::default()), Instant::now());
        let loss = |body: &str| read_with_loss(&recent, body, now).2;
        assert_eq!(loss(&body(&["a", "b"])), None);
        let longer = |texts: &[&str]| body(texts).replacen("sss", "sss 12:30", 1);
        assert_eq!(loss(&body(&["x", "y", "z"])), None, "another conversation");
        let found = loss(&longer(&["x", "y", "z", "w"])).unwrap();
        assert_eq!(found.place, "message 0, byte 31");
    }

    #[test]
    fn short_tools_are_read_once() {
        let recent = Recent::new(RecentLimits::default());
        let tools = |name: &str| {
            let body = format!(r#"{{"messages":[],"tools":[{{"function":{{"name":"{name}"}}}}]}}"#);
            recent.declared_tools(&ChatRequest::parse(body.as_bytes()).unwrap(), None)
        };
        let first = tools("f");
        assert_eq!(tools("g").names().collect::<Vec<_>>(), ["g"]);
        assert!(Arc::ptr_eq(&first, &tools("f")), "the same text again");
        (0..2 * SHORT_TOOLS).for_each(|at| drop(tools(&format!("f{at}"))));
        assert_eq!(recent.short_tools.lock().unwrap().len(), SHORT_TOOLS);
        assert!(!Arc::ptr_eq(&first, &tools("f")), "it was forgotten");
    }

    #[test]
    fn it_is_bounded() {
        let now = Instant::now();
        let many = |requests, bytes| {
            let recent = Recent::new(RecentLimits { requests, bytes, ..RecentLimits::default() });
            for at in 0..8 {
                read(&recent, &body(&[&format!("{at}")]), now);
            }
            recent.lock_requests(now).len()
        };
        assert_eq!((many(3, 1 << 20), many(64, 20_000), many(64, 1 << 20)), (3, 2, 8));
        assert_eq!(many(64, 10_000), 0, "each of them is too large");
        let recent = Recent::new(RecentLimits::default());
        let short = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
        read(&recent, short, now);
        assert_eq!(recent.lock_requests(now).len(), 0, "short requests are read faster than remembered");
    }
}
