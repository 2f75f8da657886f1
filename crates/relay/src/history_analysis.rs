//! Analyses the conversation in a request: finds the reasoning that its client dropped, and whether it
//! repeats itself.
//!
//! It decides what is added to the request; `adaptation` adds it. Called by `reading`.

use std::time::Instant;

use http::{HeaderMap, HeaderValue, header};

use super::memory::{ConversationMemory, Recalled};
use super::relay::Relay;
use translate::{Additions, LoopFound, check_loops, count_steps, silent_turns, user_texts};
use wire::ChatRequest;

/// The consequences of a conversation's past for its next reply.
#[derive(Debug)]
pub(super) struct HistoryAnalysis {
    /// The memory, as this conversation sees it; `None` when no call can leave, or it is switched off.
    pub(super) memory: Option<ConversationMemory>,
    /// Messages and reasoning to add to the request.
    pub(super) added: Additions,
    /// How many turns with calls came without reasoning, and are not remembered either: another node or
    /// process made them.
    pub(super) unknown: usize,
    /// Steps of the client's turn before this request.
    pub(super) steps: u32,
    /// Why the loop guard answers in the model's place.
    pub(super) loop_found: Option<LoopFound>,
}

impl Relay {
    /// Analyses the conversation in a request that came with these headers.
    pub(super) fn analyse_history(&self, request: &ChatRequest<'_>, headers: &HeaderMap) -> HistoryAnalysis {
        let has_tools = request.tools().is_some();
        let (loop_found, warning) = match check_loops(&request.messages, self.guard) {
            Some(found) if found.ends_run() => (Some(found), None),
            found => (None, found.filter(|_| has_tools)),
        };
        let conversation = self.memory.as_ref().filter(|_| has_tools).map(|memory| {
            let credentials = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
            memory.open_conversation(credentials, user_texts(&request.messages))
        });
        let Recalled { reasoning, unknown } =
            conversation.as_ref().map_or_else(Recalled::default, |conversation| {
                conversation.recall(&silent_turns(&request.messages), Instant::now())
            });
        HistoryAnalysis {
            memory: conversation,
            added: Additions { reasoning, warning },
            unknown,
            steps: count_steps(&request.messages),
            loop_found,
        }
    }
}
