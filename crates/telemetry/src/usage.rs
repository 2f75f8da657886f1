//! The row of one request, without content, and the places where rows go. The request's line makes the row
//! when it is dropped, and `usage` keeps it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::request_line::RequestLine;
use super::trace::SpanSink;
use wire::UsageRow;
use wire::turn::Usage;

/// Facts of a row that its request's line lacks, or has otherwise.
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
    /// A request has ended.
    fn record(&self, ended: EndedRequest);
}

/// A request that has ended: its row, and how it counts against limits and budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndedRequest {
    /// Its row.
    pub row: UsageRow,
    /// The model, if an upstream is known to serve it: only then may its name stand where clients must not
    /// add names.
    pub known_model: String,
    /// Its tokens: those of the row, or an estimate where its reply did not state them.
    pub counted: Option<Usage>,
}

/// How the requests of one server are recorded: whether message text may be logged, where their rows go, and
/// which of them are under way.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Message text may be logged.
    pub content: bool,
    /// Where rows go.
    pub sink: Option<Arc<dyn UsageSink>>,
    /// The requests under way.
    pub in_flight: Option<Arc<InFlight>>,
    /// Where spans go.
    pub spans: Option<Arc<dyn SpanSink>>,
}

impl Recording {
    /// The same, with message text in no log where it `is_private`.
    #[must_use]
    pub fn without_content(self, is_private: bool) -> Self {
        Self { content: self.content && !is_private, ..self }
    }

    /// Nothing is kept; message text is logged where `content` says so.
    pub fn only_logged(content: bool) -> Self {
        Self { content, ..Self::default() }
    }
}

/// The requests under way, for those who want to see them.
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
    /// The upstream that is asked.
    pub upstream: String,
    /// The agent that it is for.
    pub agent: String,
    /// The run of that agent.
    pub run: String,
    /// Its phase, in a few words.
    pub phase: &'static str,
    /// Since it arrived.
    pub elapsed: Duration,
    /// How often an upstream was asked.
    pub attempts: u32,
    /// The tokens that are known by now.
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

    /// The requests under way, the oldest first.
    pub fn requests(&self) -> Vec<LiveRequest> {
        let lines: Vec<_> = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.retain(|line| line.strong_count() > 0);
            lines.clone()
        };
        let live = |line: Arc<Mutex<RequestLine>>| line.lock().unwrap_or_else(PoisonError::into_inner).live();
        let mut found: Vec<_> = lines.iter().filter_map(Weak::upgrade).map(live).collect();
        found.sort_by_key(|request| std::cmp::Reverse(request.elapsed));
        found
    }
}
