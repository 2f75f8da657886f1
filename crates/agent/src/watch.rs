//! A client's view of a run that is being worked on elsewhere: its progress, and its end. Called by `agents`
//! and `server`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio_util::sync::DropGuard;

use super::budget::Tokens;
use super::driver::{StopSignals, WorkEnd};
use wire::{ApiError, ErrorCode};

/// A run that is being worked on.
pub(super) struct ActiveRun {
    pub(super) agent: Arc<str>,
    /// Stands for its client; `None`: anybody's.
    pub(super) client: Option<String>,
    pub(super) progress: broadcast::Sender<String>,
    pub(super) end: watch::Receiver<Option<Arc<WorkReport>>>,
    pub(super) stops: StopSignals,
    pub(super) watched: Weak<DropGuard>,
}

/// How work on a run ended, for those who wait for it.
#[derive(Clone, Debug)]
pub struct WorkReport {
    /// How.
    pub end: WorkEnd,
    /// Its cost since the client was last answered.
    pub spent: Tokens,
    /// respool's own time: the time of the work without the waiting for models, tools and pauses.
    pub overhead: Duration,
}

/// A client's view of a run. When the last one of a run is dropped, its client is gone.
pub struct Watch {
    /// The run's id.
    pub run: String,
    pub(super) progress: Option<broadcast::Receiver<String>>,
    pub(super) end: watch::Receiver<Option<Arc<WorkReport>>>,
    /// `None`: the run does not notice that this is dropped.
    pub(super) guard: Option<Arc<DropGuard>>,
}

/// The next thing that a [`Watch`] sees next.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A piece of text on what is being done.
    Progress(String),
    /// The end of the work.
    End(Arc<WorkReport>),
}

impl Watch {
    /// Waits for what comes next. Safe to cancel.
    pub async fn next(&mut self) -> WatchEvent {
        if let Some(progress) = &mut self.progress {
            loop {
                match progress.recv().await {
                    Ok(text) => return WatchEvent::Progress(text),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                }
            }
            self.progress = None;
        }
        let ended = self.end.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        ended.map_or_else(WatchEvent::stop_event, WatchEvent::End)
    }

    /// Waits for the end of the work. Safe to cancel.
    pub async fn wait_for_end(&mut self) -> Arc<WorkReport> {
        loop {
            if let WatchEvent::End(ended) = self.next().await {
                return ended;
            }
        }
    }

    pub(super) fn new_finished(run: String, ended: WorkReport) -> Self {
        let (_, end) = watch::channel(Some(Arc::new(ended)));
        Self { run, progress: None, end, guard: None }
    }
}

impl WatchEvent {
    /// Returns the end for a client that does not learn how the work ended: respool is stopped, and the run
    /// is left as it is.
    pub fn stop_event() -> Self {
        let (spent, overhead) = (Tokens::default(), Duration::ZERO);
        Self::End(Arc::new(WorkReport { end: WorkEnd::Left, spent, overhead }))
    }
}

impl WorkReport {
    /// Returns the error of a run that has nothing to show.
    pub fn error(&self) -> Option<ApiError> {
        match &self.end {
            WorkEnd::Finished(outcome) => {
                let failure = outcome.failure.as_ref().filter(|_| outcome.content.trim().is_empty())?;
                let code = ErrorCode::from_name(&failure.code);
                let error = ApiError::new(failure.status, code, failure.text.clone());
                // The run has tried again where that could help.
                Some(ApiError { is_final: failure.status >= 500, ..error })
            }
            WorkEnd::Suspended(_) | WorkEnd::AwaitingApproval(_) => None,
            WorkEnd::Left => Some(ApiError::new(
                503,
                ErrorCode::ShuttingDown,
                "respool was stopped before the run was over; send the request again, and it goes on",
            )),
        }
    }
}
