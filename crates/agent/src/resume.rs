//! Runs that exist already: those that wait for their client or for consent, were interrupted, or have an
//! answer that no client got. Finds the one that a request belongs to, and goes on with it. Called by
//! `agents`.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::active::{ActiveRuns, ParkedRun, RunOptions, Work};
use super::definition::Agent;
use super::driver::WorkEnd;
use super::event::{Event, EventKind};
use super::request::{AgentRequest, normalize_id};
use super::resume_error::ResumeError;
use super::run::Run;
use super::step::Step;
use super::stored::{REPEATABLE_FOR, check_answer, restore};
use super::watch::{Watch, WorkReport};
use store::{Status, Store, StoreError, StoredRun};

/// Returns the run that waits for the results that the client brings; also one that was interrupted after it
/// got them.
///
/// # Errors
/// When a store that processes share failed: the run may be there.
pub(super) async fn resume_with_results(
    active: &Arc<ActiveRuns>,
    agent: &Arc<Agent>,
    request: &AgentRequest,
    authorization: Option<HeaderValue>,
) -> Result<Option<Watch>, StoreError> {
    let ids: Vec<String> = request.results.iter().map(|(id, _)| id.clone()).collect();
    let parked =
        active.take_parked_run(&agent.name, &request.client, |call| ids.contains(&normalize_id(&call.id)));
    if let Some(parked) = parked {
        return Ok(Some(active.work_on(agent, parked_work(parked, request, authorization))));
    }
    let Some(store) = active.store.clone() else { return Ok(None) };
    let id = check_answer(&store, store.run_of_calls(ids, &agent.name, &request.client).await)?;
    let Some(id) = id else { return Ok(None) };
    if let Some(watch) = active.watch_run(&id) {
        return Ok(Some(watch));
    }
    let Some(stored) = check_answer(&store, store.run(&id).await)? else { return Ok(None) };
    let Some((run, last)) = restore(&stored) else { return Ok(None) };
    let is_awaited = run
        .awaited_calls()
        .iter()
        .any(|call| request.results.iter().any(|(id, _)| *id == normalize_id(&call.id)));
    let (first, origin) = if is_awaited {
        (client_return(&run, request), "client returned")
    } else if !is_repeated(last.as_ref(), request) {
        return Ok(None);
    } else if let Some(end) = work_end(&run) {
        return Ok(is_replayable(&end, stored.row.updated).then(|| finished_watch(id, &run, end)));
    } else {
        (EventKind::Resumed, "resumed")
    };
    let work = stored_work(&stored, run, authorization, first, origin);
    match active.claim_run(agent, Arc::clone(&store), true, work).await {
        Ok(None) => {}
        claimed => return check_answer(&store, claimed),
    }
    // One whose client went away can be claimed, so this one was cancelled: its work does not go on as
    // another run.
    let stored = check_answer(&store, store.run(&id).await)?;
    Ok(stored.and_then(|stored| cancelled_watch(id, &stored)))
}

/// Returns the view of a run that was cancelled.
fn cancelled_watch(id: String, stored: &StoredRun) -> Option<Watch> {
    let (mut run, _) = restore(stored).filter(|_| stored.row.status == Status::Cancelled)?;
    run.apply(Event { at: clock::now(), kind: EventKind::Cancelled }).ok()?;
    Some(finished_watch(id, &run, work_end(&run)?))
}

/// Resumes a stored run that no process works on.
///
/// # Errors
/// The reason why it cannot be resumed.
pub(super) async fn stored_run(
    active: &Arc<ActiveRuns>,
    agent: &Arc<Agent>,
    stored: &StoredRun,
    authorization: Option<HeaderValue>,
    options: RunOptions,
) -> Result<Watch, ResumeError> {
    let store = active.store.clone().ok_or(ResumeError::NoStore)?;
    let (run, _) = restore(stored).ok_or(ResumeError::OtherVersion)?;
    if !run.awaited_calls().is_empty() {
        return Err(ResumeError::AwaitsClient);
    }
    let work = stored_work(stored, run, authorization, EventKind::Resumed, "resumed");
    let work = Work { options, ..work };
    let claimed = active.claim_run(agent, store, false, work).await?;
    claimed.ok_or(ResumeError::NotClaimed(stored.row.status))
}

/// Loads a run from the store by its id.
///
/// # Errors
/// When there is no such run, or the store cannot be read.
pub(super) async fn load_run(store: Option<&Arc<Store>>, id: &str) -> Result<StoredRun, ResumeError> {
    let stored = store.ok_or(ResumeError::NoStore)?.run(id).await?;
    stored.ok_or_else(|| ResumeError::NoRun(id.to_owned()))
}

/// Returns the work on a run that waited in memory.
fn parked_work(parked: ParkedRun, request: &AgentRequest, authorization: Option<HeaderValue>) -> Work {
    let ParkedRun { id, client, run } = parked;
    Work {
        id,
        client,
        first: Some(client_return(&run, request)),
        run,
        store: None,
        epoch: 0,
        seq: 0,
        authorization,
        origin: "client returned",
        options: RunOptions::default(),
    }
}

/// Returns the work on a run that is in the store, once it is claimed.
fn stored_work(
    stored: &StoredRun,
    run: Run,
    authorization: Option<HeaderValue>,
    first: EventKind,
    origin: &'static str,
) -> Work {
    Work {
        id: stored.row.id.clone(),
        client: stored.client.clone(),
        run,
        store: None,
        epoch: stored.epoch,
        seq: stored.events.len() as u64,
        authorization,
        first: Some(first),
        origin,
        options: RunOptions::default(),
    }
}

/// Returns true for the same results as the last time: the client did not get the answer to them.
fn is_repeated(last: Option<&EventKind>, request: &AgentRequest) -> bool {
    let is_brought = |id: &String| request.results.iter().any(|(other, _)| *other == normalize_id(id));
    matches!(last, Some(EventKind::ClientReturned { results, tail })
        if *tail == request.tail && results.iter().all(|(id, _)| is_brought(id)))
}

/// Returns true if an end may be repeated to a client. A failure is not repeated, because a client that asks
/// again wants another attempt; nor is an old answer.
fn is_replayable(end: &WorkEnd, since: u64) -> bool {
    match end {
        WorkEnd::Finished(outcome) => {
            let has_ended_well = outcome.failure.is_none() && !outcome.cancelled;
            has_ended_well && since >= clock::now().saturating_sub(REPEATABLE_FOR)
        }
        WorkEnd::Suspended(_) | WorkEnd::AwaitingApproval(_) | WorkEnd::Left => true,
    }
}

/// Returns the event of the client's return: ids as the run has them.
fn client_return(run: &Run, request: &AgentRequest) -> EventKind {
    let own_id = |id: &str| {
        let call = run.awaited_calls().iter().find(|call| normalize_id(&call.id) == id);
        call.map_or_else(|| id.to_owned(), |call| call.id.clone())
    };
    let results = request.results.iter().map(|(id, text)| (own_id(id), text.clone())).collect();
    EventKind::ClientReturned { results, tail: request.tail.clone() }
}

/// Returns how work on a run would end at once.
fn work_end(run: &Run) -> Option<WorkEnd> {
    match run.next() {
        Step::Finish(outcome) => Some(WorkEnd::Finished(*outcome)),
        Step::AwaitClient(suspension) => Some(WorkEnd::Suspended(suspension)),
        // A decision may have come meanwhile: the process that works on it looks.
        Step::AwaitApproval(_) | Step::Act(_) => None,
    }
}

fn finished_watch(id: String, run: &Run, end: WorkEnd) -> Watch {
    Watch::new_finished(id, report_of(run, end))
}

fn report_of(run: &Run, end: WorkEnd) -> WorkReport {
    WorkReport { end, spent: run.spent_since_answer(), overhead: Duration::ZERO }
}

/// Returns how a stored run has ended, if it has.
pub(super) fn finished_report(stored: &StoredRun) -> Option<WorkReport> {
    let (run, _) = restore(stored)?;
    Some(report_of(&run, work_end(&run)?))
}
