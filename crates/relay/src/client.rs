//! Where a request came from: its protocol, headers and clock. Which program asked is `translate`'s
//! `ClientProgram`, which gets its texts from here.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, header};
use tokio::time::Instant;

use telemetry::RequestRecord;
use translate::{ClientProgram, FreeTextPatterns};
use upstream::{CHAT_PATH, Priority};

/// The protocol in which a client speaks to respool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// `POST /v1/chat/completions`.
    #[default]
    Chat,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
}

/// Returns the program that these headers name.
pub fn program_of(headers: &HeaderMap) -> ClientProgram {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    ClientProgram::from_user_agent(agent.unwrap_or_default())
}

/// Where a request came from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The client's protocol.
    pub wire: Wire,
    /// The program that the client's headers name.
    pub program: ClientProgram,
    /// The client's headers.
    pub headers: HeaderMap,
    /// Path and query as the upstream has them, for example `/v1/chat/completions`.
    pub path_and_query: Cow<'static, str>,
    /// The id that goes upstream, if it is not the one in the record.
    pub request_id: Option<String>,
    /// The client's network address, for fairness among clients that share a key.
    pub peer: Option<IpAddr>,
    /// How urgent the request is at most.
    pub priority: Priority,
    /// When the request came.
    pub received: Instant,
    /// A run of respool's own asks.
    pub is_agent: bool,
    /// The client's wishes beyond its request's body.
    pub wishes: ReplyWishes,
    /// Where everything that happens to the request is recorded.
    pub record: RequestRecord,
    /// The facts about the request while it is under way.
    pub progress: Arc<RequestProgress>,
}

/// The wishes about a reply that are not in the chat request which the relay reads.
#[derive(Clone, Debug)]
pub struct ReplyWishes {
    /// The client gets nothing before the whole reply, although the request asks for a stream.
    pub is_unseen: bool,
    /// The client lets respool shorten the oldest part of a conversation that does not fit.
    pub may_trim: bool,
    /// The patterns that the free text of its custom tools must match.
    pub free_text: Arc<FreeTextPatterns>,
}

impl Default for ReplyWishes {
    fn default() -> Self {
        Self { is_unseen: false, may_trim: false, free_text: FreeTextPatterns::none() }
    }
}

/// The facts that a caller may know about a request while it is under way.
#[derive(Debug, Default)]
pub struct RequestProgress(Mutex<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    waited_before: Duration,
    wait: Option<(Instant, Awaited)>,
    trimmed: Option<String>,
    /// The part of the prompt that the server has read, in percent.
    prompt_read: Option<u64>,
    /// The fallback that answers instead of the requested model.
    answering_model: Option<String>,
}

/// The reason for which a request waits for an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The upstream's problem, for people.
    pub cause: String,
    /// When the wait ends.
    pub end: WaitEnd,
}

/// The end of a wait for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The request is sent again at this moment.
    At(Instant),
    /// It is sent again when the upstream is back, and fails at this moment.
    Before(Instant),
    /// It is not known.
    Unknown,
}

/// Counts the time until its drop as waiting for an upstream.
#[derive(Debug)]
pub struct WaitGuard<'a>(&'a RequestProgress);

impl RequestProgress {
    /// Returns the time for which the request has waited for an upstream to come back. An agent does not
    /// count it as the model's.
    pub fn waiting_time(&self) -> Duration {
        let known = self.lock_state();
        known.waited_before + known.wait.as_ref().map(|(since, _)| since.elapsed()).unwrap_or_default()
    }

    /// Returns true while the request waits for an upstream.
    pub fn is_waiting(&self) -> bool {
        self.lock_state().wait.is_some()
    }

    /// Returns the reason for which the request waits now.
    pub fn current_wait(&self) -> Option<Awaited> {
        self.lock_state().wait.as_ref().map(|(_, awaited)| awaited.clone())
    }

    /// Returns the part of the prompt that the server has read, in percent, if it reports that.
    pub fn prompt_read(&self) -> Option<u64> {
        self.lock_state().prompt_read
    }

    /// Returns the parts that were taken out of the conversation of the last attempt so that it fits.
    pub fn trimmed_parts(&self) -> Option<String> {
        self.lock_state().trimmed.clone()
    }

    /// Returns the fallback that answers instead of the requested model, if there is one.
    pub fn answering_model(&self) -> Option<String> {
        self.lock_state().answering_model.clone()
    }

    /// Begins to wait for an upstream. The wait ends when the guard is dropped.
    pub fn begin_waiting(&self, awaited: Awaited) -> WaitGuard<'_> {
        self.lock_state().wait.get_or_insert((Instant::now(), awaited));
        WaitGuard(self)
    }

    pub(super) fn note_prompt_read(&self, percent: u64) {
        self.lock_state().prompt_read = Some(percent);
    }

    pub(super) fn note_trimming(&self, what: Option<&str>) {
        self.lock_state().trimmed = what.map(str::to_owned);
    }

    pub(super) fn note_answering_model(&self, model: &str) {
        self.lock_state().answering_model = Some(model.to_owned());
    }

    fn lock_state(&self) -> MutexGuard<'_, ProgressState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut known = self.0.lock_state();
        let wait = known.wait.take();
        known.waited_before += wait.map(|(since, _)| since.elapsed()).unwrap_or_default();
    }
}

impl Origin {
    /// Returns the origin of a chat completion of respool's own, received now.
    pub fn internal(headers: HeaderMap, record: RequestRecord) -> Self {
        Self {
            wire: Wire::Chat,
            program: program_of(&headers),
            headers,
            path_and_query: CHAT_PATH.into(),
            request_id: None,
            peer: None,
            priority: Priority::default(),
            received: Instant::now(),
            is_agent: false,
            wishes: ReplyWishes::default(),
            record,
            progress: Arc::default(),
        }
    }
}
