//! Says in the reasoning what is new about a request whose reply has not begun: that it waits for its server,
//! and how much of its prompt has been read. Called by `chat` and `agent_apis` in place of a heartbeat.

use std::sync::Arc;

use relay::{ReadRequest, RequestProgress};
use wire::turn::TurnEvent;

/// The words for a client whose request waits for its server.
const WAITS: &str = "(The model server is starting or loads the model; this request waits for it.)\n";

/// The part of a request's progress that its client knows.
pub(super) struct AnnouncedProgress {
    progress: Arc<RequestProgress>,
    /// The client knows that its request waits.
    waits: bool,
    /// The part of the prompt that the client knows to have been read, in percent.
    prompt_read: Option<u64>,
}

impl AnnouncedProgress {
    /// Begins with a client that knows nothing; `None` if nothing is announced to it.
    pub(super) fn new(request: &ReadRequest) -> Option<Self> {
        let progress = Arc::clone(request.progress());
        let is_shown = request.announces_waiting() && request.profile().reply.reasoning.is_some();
        is_shown.then_some(Self { progress, waits: false, prompt_read: None })
    }

    /// Returns the words that are due, if there is anything new to say.
    pub(super) fn next_words(&mut self) -> Option<TurnEvent> {
        if self.progress.is_waiting() && !std::mem::replace(&mut self.waits, true) {
            return Some(TurnEvent::Reasoning(WAITS.to_owned()));
        }
        let percent = self.progress.prompt_read().filter(|percent| self.prompt_read != Some(*percent))?;
        self.prompt_read = Some(percent);
        Some(TurnEvent::Reasoning(format!("({percent} % of the prompt has been read.)\n")))
    }
}
