//! Looks back on the conversation in a request: whether it goes in circles.
//!
//! It decides what is added to the request; `translate` adds it. Called by `prepare`.

use super::Relay;
use crate::translate::{Additions, LoopFound, check_loops};
use crate::wire::ChatRequest;

/// What a conversation's past means for its next reply.
pub(super) struct LookBack {
    /// What to add to the request.
    pub(super) added: Additions,
    /// The loop that is to be ended.
    pub(super) loop_found: Option<LoopFound>,
}

impl Relay {
    pub(super) fn look_back(&self, request: &ChatRequest<'_>) -> LookBack {
        let has_tools = request.tools().is_some();
        let (loop_found, warning) = match check_loops(&request.messages, self.guard) {
            Some(found) if found.stops() => (Some(found), None),
            found => (None, found.filter(|_| has_tools)),
        };
        LookBack { added: Additions { warning }, loop_found }
    }
}
