//! Decides when the head of a stream leaves: with the first output that the client sees, or `commit_after`
//! from the request's arrival. Until then a failure has its own status. The same for replies of the relay on
//! every API, and for agents' runs.

use std::pin::Pin;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::app::App;
use telemetry::RequestRecord;
use wire::{ApiError, ErrorCode};

/// A reply that is awaited.
pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send>>;

/// The head of one stream, before it has left.
pub(super) struct StreamHead {
    deadline: Instant,
    abort: CancellationToken,
}

impl StreamHead {
    /// Returns the head of the reply to this request.
    pub(super) fn new(app: &App, record: &RequestRecord) -> Self {
        let left = app.limits.commit_after.saturating_sub(record.start().time_since_arrival());
        Self { deadline: Instant::now() + left, abort: app.abort.clone() }
    }

    /// Returns what `work` gives, or the error when respool is stopped; `None` when the head must leave now
    /// and the work goes on.
    pub(super) async fn wait_for<T>(&self, work: impl Future<Output = T>) -> Option<Result<T, ApiError>> {
        tokio::select! {
            biased;
            result = run_until_stopped(&self.abort, work) => Some(result),
            () = sleep_until(self.deadline) => None,
        }
    }
}

/// Returns what `work` gives; the error when respool is stopped before that.
pub(super) async fn run_until_stopped<T>(
    abort: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, ApiError> {
    tokio::select! {
        biased;
        result = work => Ok(result),
        () = abort.cancelled() => Err(stopped_error()),
    }
}

fn stopped_error() -> ApiError {
    ApiError::new(
        503,
        ErrorCode::ShuttingDown,
        "respool was stopped before the reply was complete; send the request again",
    )
}
