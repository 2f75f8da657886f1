//! A run whose answer no client got, and whose client asks again. Its process has perhaps ended without a
//! word: behind a proxy, the request that a killed node has cut comes back to another one at once, and a new
//! run would do everything twice. Called by `agents`.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::sleep;

use super::active::{ActiveRuns, RunOptions};
use super::config::OnDisconnect;
use super::definition::Agent;
use super::request::AgentRequest;
use super::resume::{finished_report, stored_run};
use super::resume_error::ResumeError;
use super::stored::{REPEATABLE_FOR, check_answer, ok_or_log};
use super::watch::{Watch, WorkReport};
use store::{Status, Store, StoreError};

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A process that lives says so within this time.
const SAID_WITHIN: Duration = Duration::from_millis(2_500);

/// Returns a run that the same request began and whose answer its client has not got: it asks again.
///
/// # Errors
/// When a store that processes share failed: the run may be there.
pub(super) async fn resume_unanswered(
    active: &Arc<ActiveRuns>,
    agent: &Arc<Agent>,
    request: &AgentRequest,
    authorization: Option<HeaderValue>,
) -> Result<Option<Watch>, StoreError> {
    let Some(store) = active.store.as_ref() else { return Ok(None) };
    let since = clock::now().saturating_sub(REPEATABLE_FOR);
    let id = check_answer(store, store.unanswered_run(&request.fingerprint, since).await)?;
    let Some(id) = id else { return Ok(None) };
    if active.is_active(&id) {
        // Another client may have asked the same; only a run that was left behind and goes on is shared.
        let is_detached = agent.config.on_disconnect == OnDisconnect::Detach;
        return Ok(active.watch_run(&id).filter(|watch| is_detached && watch.guard.is_none()));
    }
    let Some(stored) = check_answer(store, store.run(&id).await)? else { return Ok(None) };
    if let Some(report) = finished_report(&stored) {
        return Ok(Some(Watch::new_finished(id, report)));
    }
    Ok(match stored_run(active, agent, &stored, authorization.clone(), RunOptions::default()).await {
        Ok(watch) => Some(watch),
        Err(ResumeError::NotClaimed(Status::Running)) if may_be_left(store, &id).await => {
            Some(watch_left_run(active, agent, id, authorization))
        }
        Err(ResumeError::Store(error)) => return check_answer(store, Err(error)),
        Err(_) => None,
    })
}

/// Waits for the next heartbeat of the other process that works on a run. Returns true if it is so late that
/// the process may be gone.
async fn may_be_left(store: &Store, run: &str) -> bool {
    let mut last = Duration::ZERO;
    loop {
        let silence = ok_or_log(store.silence_of_owner(run).await).flatten();
        match silence {
            Some(silence) if silence > SAID_WITHIN => return true,
            Some(silence) if silence >= last => last = silence,
            _ => return false,
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns a view of the run: it goes on here once its process counts as gone, unless another process goes on
/// with it, whose end is awaited.
fn watch_left_run(
    active: &Arc<ActiveRuns>,
    agent: &Arc<Agent>,
    run: String,
    authorization: Option<HeaderValue>,
) -> Watch {
    let (sender, end) = watch::channel(None);
    let (with_task, agent, id) = (Arc::clone(active), Arc::clone(agent), run.clone());
    active.spawn_task(async move {
        let ended = tokio::select! {
            report = await_end(&with_task, &agent, &id, authorization.as_ref()) => report,
            () = sender.closed() => None,
            () = with_task.shutdown.cancelled() => None,
        };
        ended.into_iter().for_each(|report| drop(sender.send_replace(Some(report))));
    });
    Watch { run, progress: None, end, guard: None }
}

async fn await_end(
    active: &Arc<ActiveRuns>,
    agent: &Arc<Agent>,
    run: &str,
    authorization: Option<&HeaderValue>,
) -> Option<Arc<WorkReport>> {
    let store = active.store.as_ref()?;
    loop {
        ok_or_log(store.mark_orphans().await);
        let stored = ok_or_log(store.run(run).await)??;
        if let Some(report) = finished_report(&stored) {
            return Some(Arc::new(report));
        }
        match stored_run(active, agent, &stored, authorization.cloned(), RunOptions::default()).await {
            Ok(mut watch) => return Some(watch.wait_for_end().await),
            Err(ResumeError::NotClaimed(_)) => sleep(LOOK_EVERY).await,
            Err(_) => return None,
        }
    }
}
