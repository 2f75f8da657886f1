//! The usage row of one request, without content, and the sinks of rows. The request's line makes the row
//! when it is dropped, and `usage` stores it.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::captures::Captures;
use super::request_line::RequestLine;
use super::trace::SpanSink;
use wire::UsageRow;
use wire::turn::Usage;

/// Facts of a row that its request's line lacks or that differ there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFacts {
    /// The agent that the request is for.
    pub agent: String,
    /// The run of that agent.
    pub run: String,
    /// The name of the client's key.
    pub key: Option<String>,
    /// The tokens.
    pub usage: Option<Usage>,
}

/// Takes rows. It is called at the end of each request, so it must not wait for anything.
pub trait UsageSink: Debug + Send + Sync {
    /// Takes a request that has ended.
    fn record_request(&self, ended: EndedRequest);
}

/// A request that has ended: its row, and the tokens that count against limits and budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndedRequest {
    /// Its row.
    pub row: UsageRow,
    /// The model, if an upstream is known to serve it; else empty, so that clients cannot add names to the
    /// store.
    pub known_model: String,
    /// Its tokens: those of the row, or an estimate if its reply did not state them.
    pub counted: Option<Usage>,
    /// How long it waited for a place at an upstream that works.
    pub queued: Duration,
    /// Where its prompt first differs from that of its conversation's last request, if most of it is read
    /// again.
    pub prefix_lost: Option<String>,
}

/// Settings for recording the requests of one server: whether message text may be logged, the sinks of rows,
/// spans and exchanges, and the list of requests under way.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Message text may be logged.
    pub content: bool,
    /// The sink of rows.
    pub sink: Option<Arc<dyn UsageSink>>,
    /// The requests under way.
    pub in_flight: Option<Arc<InFlight>>,
    /// The sink of spans.
    pub spans: Option<Arc<dyn SpanSink>>,
    /// Where exchanges are kept.
    pub captures: Option<Arc<Captures>>,
}

impl Recording {
    /// Keeps message text out of logs and kept exchanges if it `is_private`.
    #[must_use]
    pub fn without_content(self, is_private: bool) -> Self {
        let captures = self.captures.filter(|_| !is_private);
        Self { content: self.content && !is_private, captures, ..self }
    }

    /// Records to the log only; `content` allows message text.
    pub fn only_logged(content: bool) -> Self {
        Self { content, ..Self::default() }
    }
}

/// The requests under way, for the page.
#[derive(Debug, Default)]
pub struct InFlight {
    lines: Mutex<Vec<Weak<Mutex<RequestLine>>>>,
}

/// A request under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveRequest {
    /// Its id, as the log has it.
    pub id: String,
    /// The route's name.
    pub route: &'static str,
    /// The name of the client's key.
    pub key: String,
    /// The model that was asked for.
    pub model: String,
    /// The upstream that is being asked.
    pub upstream: String,
    /// The agent that it is for.
    pub agent: String,
    /// The run of that agent.
    pub run: String,
    /// Its phase, in a few words.
    pub phase: Cow<'static, str>,
    /// The time since it arrived.
    pub elapsed: Duration,
    /// The number of attempts at upstreams.
    pub attempts: u32,
    /// The tokens that are known already.
    pub tokens: Option<u64>,
}

impl InFlight {
    /// Adds a request. Ended ones are removed when the list is full, so the mean cost is constant.
    pub(super) fn add(&self, line: &Arc<Mutex<RequestLine>>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == lines.capacity() {
            lines.retain(|line| line.strong_count() > 0);
            lines.reserve(64);
        }
        lines.push(Arc::downgrade(line));
    }

    /// Returns how long the oldest request that an upstream is being asked has been under way.
    pub fn oldest_at(&self, upstream: &str) -> Option<Duration> {
        let requests = self.requests().into_iter().filter(|request| request.upstream == upstream);
        requests.map(|request| request.elapsed).max()
    }

    /// Returns the requests under way, the oldest first.
    pub fn requests(&self) -> Vec<LiveRequest> {
        let lines: Vec<_> = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.retain(|line| line.strong_count() > 0);
            lines.clone()
        };
        let live =
            |line: Arc<Mutex<RequestLine>>| line.lock().unwrap_or_else(PoisonError::into_inner).live_state();
        let mut found: Vec<_> = lines.iter().filter_map(Weak::upgrade).map(live).collect();
        found.sort_by_key(|request| std::cmp::Reverse(request.elapsed));
        found
    }
}
