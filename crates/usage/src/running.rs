//! The requests in progress, as a small file in the state directory: `respool requests --running` lists them
//! there while a server works on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use telemetry::{InFlight, LiveRequest};
use wire::{ErrorCode, UsageRow};

const FILE: &str = "requests-running.json";
/// The time between two writes.
const EVERY: Duration = Duration::from_secs(2);
/// An older list is that of a server that has ended, in milliseconds.
const CURRENT: u64 = 15_000;
/// How many requests are listed, the oldest.
const MOST: usize = 200;
/// The error of a request that was in progress when its process was killed.
const CUT: &str = "respool was killed, or its machine stopped, while it worked on this request";

/// A request in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningRequest {
    /// Its id, as the log has it.
    pub id: String,
    /// When it arrived, in milliseconds since 1970.
    pub since: u64,
    /// The route's name.
    pub route: String,
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
    pub phase: String,
    /// The number of attempts at upstreams.
    pub attempts: u32,
}

/// The requests in progress at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningList {
    /// The time, in milliseconds since 1970.
    pub at: u64,
    /// The oldest of them, the oldest first.
    pub requests: Vec<RunningRequest>,
    /// How many there are.
    pub count: usize,
}

impl RunningRequest {
    fn new(request: LiveRequest, now: u64) -> Self {
        Self {
            since: now.saturating_sub(clock::to_millis(request.elapsed)),
            id: request.id,
            route: request.route.to_owned(),
            key: request.key,
            model: request.model,
            upstream: request.upstream,
            agent: request.agent,
            run: request.run,
            phase: request.phase.into_owned(),
            attempts: request.attempts,
        }
    }

    /// Returns the row of a request that was in progress until this time, when its process was killed.
    pub(super) fn cut_row(self, until: u64) -> UsageRow {
        UsageRow {
            at: self.since,
            duration: Duration::from_millis(until.saturating_sub(self.since)),
            id: self.id,
            route: self.route.into(),
            key: self.key,
            model: self.model,
            upstream: self.upstream,
            agent: self.agent,
            run: self.run,
            attempts: self.attempts,
            outcome: "error".into(),
            error_code: ErrorCode::Killed.as_str().to_owned(),
            error: CUT.to_owned(),
            ..UsageRow::default()
        }
    }
}

impl RunningList {
    fn new(requests: Vec<LiveRequest>, now: u64) -> Self {
        let count = requests.len();
        let oldest = requests.into_iter().take(MOST);
        Self { at: now, requests: oldest.map(|request| RunningRequest::new(request, now)).collect(), count }
    }

    /// Reads the list that a server has written to this directory a moment ago. Without one, nothing is in
    /// progress.
    pub fn read(state_dir: &Path, now: u64) -> Self {
        let list = Self::read_any(state_dir);
        if now.saturating_sub(list.at) > CURRENT { Self::default() } else { list }
    }

    /// Reads the list in this directory, however old. Before a server writes one, it is that of a server that
    /// was killed: one that ends by itself removes it.
    pub fn read_any(state_dir: &Path) -> Self {
        let text = fs::read_to_string(state_dir.join(FILE)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes the list, whole or not at all.
    fn write(&self, state_dir: &Path) -> io::Result<()> {
        atomic_file::replace_unsynced(&state_dir.join(FILE), &serde_json::to_vec(self)?)
    }
}

/// Writes the requests in progress to this directory every few seconds, until `stop`. An idle server writes
/// nothing.
pub async fn keep_running_list(in_flight: Arc<InFlight>, state_dir: PathBuf, stop: CancellationToken) {
    let mut was_empty = false;
    while !stop.is_cancelled() {
        let list = RunningList::new(in_flight.requests(), clock::now());
        let is_empty = list.requests.is_empty();
        if !(is_empty && was_empty) {
            let dir = state_dir.clone();
            // A disk that hangs keeps no request waiting.
            let written = tokio::task::spawn_blocking(move || list.write(&dir)).await;
            was_empty = is_empty && matches!(written, Ok(Ok(())));
        }
        tokio::select! { () = stop.cancelled() => {}, () = tokio::time::sleep(EVERY) => {} }
    }
    let _ = fs::remove_file(state_dir.join(FILE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_an_ended_server_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(RunningList::read(dir.path(), 1_000), RunningList::default());
        let elapsed = Duration::from_secs(450);
        let request =
            LiveRequest { id: "r1".into(), upstream: "box".into(), elapsed, ..LiveRequest::default() };
        let list = RunningList::new(vec![request; MOST + 1], 1_000_000);
        list.write(dir.path()).unwrap();
        let read = RunningList::read(dir.path(), 1_010_000);
        assert_eq!(read, list);
        assert_eq!((read.count, read.requests.len(), read.requests[0].since), (MOST + 1, MOST, 550_000));
        assert_eq!(RunningList::read(dir.path(), 1_016_000), RunningList::default());
    }
}
