//! Looks back on the conversation in a request: the reasoning that its client dropped, and whether it goes in circles.
//!
//! It decides what is added to the request; `translate` adds it. Called by `request`.

use std::time::Instant;

use http::{HeaderMap, HeaderValue, header};

use super::Relay;
use super::memory::Recollection;
use translate::{Additions, LoopFound, check_loops, silent_turns, user_texts};
use wire::ChatRequest;

/// What a conversation's past means for its next reply.
pub(super) struct LookBack {
    /// The memory, as this conversation sees it; `None` when no call can leave, or it is switched off.
    pub(super) recollection: Option<Recollection>,
    /// What to add to the request.
    pub(super) added: Additions,
    /// How many turns came without reasoning and get none.
    pub(super) missed: usize,
    /// The loop that is to be ended.
    pub(super) loop_found: Option<LoopFound>,
}

impl Relay {
    pub(super) fn look_back(&self, request: &ChatRequest<'_>, headers: &HeaderMap) -> LookBack {
        let has_tools = request.tools().is_some();
        let (loop_found, warning) = match check_loops(&request.messages, self.guard) {
            Some(found) if found.stops() => (Some(found), None),
            found => (None, found.filter(|_| has_tools)),
        };
        let recollection = self.memory.as_ref().filter(|_| has_tools).map(|memory| {
            let credentials = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
            memory.conversation(credentials, user_texts(&request.messages))
        });
        let (reasoning, missed) = recollection.as_ref().map_or_else(Default::default, |recollection| {
            let silent = silent_turns(&request.messages);
            let known = recollection.recall(&silent, Instant::now());
            let missed = silent.len() - known.len();
            (known, missed)
        });
        LookBack { recollection, added: Additions { reasoning, warning }, missed, loop_found }
    }
}
