//! Runs as the store has them: restoring one, and what is logged when the store fails. Called by everything
//! here that reads runs.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::event::{Event, EventKind};
use super::run::Run;
use super::setup::Setup;
use super::transcript::Entry;
use store::{Store, StoreError, StoredEvent, StoredRun};

/// A repeated request gets the run of the first one within this time, in milliseconds.
pub(super) const REPEATABLE_FOR: u64 = 15 * 60_000;

/// Returns the id of a run that begins.
pub(super) fn new_run_id() -> String {
    format!("run-{:032x}", rand::random::<u128>())
}

/// Returns a run from the store, and the last time that its client brought something; `None` for one of
/// another version.
pub(super) fn restore(stored: &StoredRun) -> Option<(Run, Option<EventKind>)> {
    let (setup, events) = parse_stored(stored)?;
    let is_return = |event: &&Event| matches!(event.kind, EventKind::ClientReturned { .. });
    let last = events.iter().rfind(is_return).map(|event| event.kind.clone());
    Some((Run::restore(setup, events).ok()?, last))
}

fn parse_stored(stored: &StoredRun) -> Option<(Setup, Vec<Event>)> {
    let setup: Setup = serde_json::from_str(&stored.setup).ok()?;
    let event =
        |event: &StoredEvent| Some(Event { at: event.at, kind: serde_json::from_str(&event.body).ok()? });
    Some((setup, stored.events.iter().map(event).collect::<Option<_>>()?))
}

/// Returns the transcript of a run from the store, with the entries that summaries stand for in their place;
/// `None` for one of another version.
pub(super) fn whole_transcript(stored: &StoredRun) -> Option<Vec<Entry>> {
    let (setup, events) = parse_stored(stored)?;
    whole_entries(setup, events)
}

pub(super) fn whole_entries(setup: Setup, events: Vec<Event>) -> Option<Vec<Entry>> {
    let (mut run, mut summarised) = (Run::new(setup), Vec::new());
    for event in events {
        use EventKind::{LoopDetected, ModelFailed, Summarised};
        let before = matches!(event.kind, Summarised(_) | ModelFailed(_) | LoopDetected)
            .then(|| run.entries().to_vec());
        run.apply(event).ok()?;
        summarised
            .extend(before.iter().flat_map(|before| entries_before_summary(before, run.entries())).cloned());
    }
    let mut whole = Vec::new();
    for entry in run.entries() {
        match entry {
            Entry::Summary(_) => whole.append(&mut summarised),
            entry => whole.push(entry.clone()),
        }
    }
    Some(whole)
}

/// Returns the entries in whose place a summary has come.
fn entries_before_summary<'a>(before: &'a [Entry], after: &[Entry]) -> impl Iterator<Item = &'a Entry> {
    let is_summary = |entry: &Entry| matches!(entry, Entry::Summary(_));
    let new = after.iter().position(is_summary).filter(|at| before.get(*at) != after.get(*at));
    let replaced = new.and_then(|at| before.get(at..=at + before.len().checked_sub(after.len())?));
    replaced.unwrap_or_default().iter().filter(move |entry| !is_summary(entry))
}

/// An error that stays the same is logged this often.
const SAME_ERROR_EVERY: Duration = Duration::from_mins(1);

/// Returns a store's answer. Its error is logged, and the caller goes on without an answer.
pub(super) fn ok_or_log<T>(answer: Result<T, StoreError>) -> Option<T> {
    static LAST: Mutex<Option<(StoreError, Instant)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(value) => {
            *last = None;
            Some(value)
        }
        Err(error) => {
            let is_known =
                |(before, at): &(StoreError, Instant)| *before == error && at.elapsed() < SAME_ERROR_EVERY;
            if !last.as_ref().is_some_and(is_known) {
                tracing::error!(target: "respool::store", %error, "the store of runs failed");
                *last = Some((error, Instant::now()));
            }
            None
        }
    }
}

/// Returns the answer of a store. The error of one in files is logged, as if there was nothing; that of one
/// which processes share counts: another one may work on what is there.
///
/// # Errors
/// When a store that processes share failed.
pub(super) fn check_answer<T>(
    store: &Store,
    answer: Result<Option<T>, StoreError>,
) -> Result<Option<T>, StoreError> {
    match answer {
        Err(error) if store.is_shared() => Err(error),
        answer => Ok(ok_or_log(answer).flatten()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::report;
    use crate::step::{Action, Step};
    use store::{RunFilter, Store, StoreConfig};

    /// The next step of a run, as the fixture has it.
    fn next(run: &Run) -> Value {
        match run.next() {
            Step::Act(Action::CallModel(call)) => json!({
                "step": "model", "why": call.purpose.as_str(), "messages": call.messages, "tools": call.tools.len(),
                "format": call.format, "max_tokens": call.max_tokens, "within": call.within,
            }),
            Step::Act(Action::CallTool(step)) => json!({
                "step": "tool", "name": step.call.name, "id": step.call.id, "arguments": step.call.arguments,
                "within": step.within, "repeatable": step.repeatable, "again": step.is_retry,
            }),
            Step::Act(Action::Pause(millis)) => json!({"step": "pause", "millis": millis}),
            Step::AwaitClient(it) => {
                let calls: Vec<Value> =
                    it.calls.iter().map(|call| json!([call.id, call.name, call.arguments])).collect();
                json!({"step": "client", "calls": calls})
            }
            Step::Finish(_) => json!({"step": "over"}),
            other => panic!("older versions did not know {other:?}"),
        }
    }

    /// The file was written by the code before the events were renamed: every kind of event, every form,
    /// every failure.
    #[tokio::test]
    async fn a_store_of_an_older_version_is_read() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/store");
        let sql = std::fs::read_to_string(fixtures.join("schema-2.sql")).unwrap();
        let expected: Value =
            serde_json::from_str(&std::fs::read_to_string(fixtures.join("schema-2.json")).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        testing::stores::write_runs(dir.path(), &sql);
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = Store::open(&config).unwrap();
        assert_eq!(
            store.newest(RunFilter::All, 100).await.unwrap().len(),
            expected.as_object().unwrap().len()
        );
        for (id, expected) in expected.as_object().unwrap() {
            let stored = store.run(id).await.unwrap().unwrap();
            let (run, _) = restore(&stored).unwrap_or_else(|| panic!("{id} cannot be read"));
            assert_eq!(next(&run), expected["next"], "{id}");
            let breakdown = report::breakdown(&stored);
            for (field, value) in expected["breakdown"].as_object().unwrap() {
                assert_eq!(breakdown[field], *value, "{id}: {field}");
            }
        }
        // Both runs have the same seed, so the later one holds the id of the call.
        let id = expected["run-waits"]["next"]["calls"][0][0].as_str().unwrap().to_owned();
        let found = store.run_of_calls(vec![id], "helper", "me").await.unwrap();
        assert_eq!(found.as_deref(), Some("run-returned"));
    }
}
