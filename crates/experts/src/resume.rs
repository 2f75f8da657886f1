//! Resumes conversations with experts: those that waited for a person, and those whose process ended. Each
//! continues with the package and the files that it began with. Runs of processes belong to queue entries and
//! are resumed by `execution`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::assembly::is_conversation;
use super::bound::FIRST_START;
use super::error::ExpertError;
use super::experts::Experts;
use super::notices::ConversationNotices;
use agent::{AgentRequest, Agents, RunFacts, RunOptions, Watch};
use openexperts::label::MODEL_PREFIX;
use store::{RunRow, Status, Store, StoreError};

/// How long after its last event an interrupted conversation still goes on by itself.
const RESUMABLE_FOR: Duration = Duration::from_hours(1);

/// The interrupted runs that this process has looked at, by id.
#[derive(Debug, Default)]
pub(super) struct Interrupted {
    left_alone: BTreeSet<String>,
    /// Those that could not be resumed. It is tried again, and said once.
    failed: BTreeSet<String>,
}

impl Experts {
    /// Resumes an expert's run for a person who waits for its answer; `None` if the run is not an expert's.
    ///
    /// # Errors
    /// Why it cannot be resumed, for people.
    pub async fn resume(&self, run: &str) -> Option<Result<Watch, ExpertError>> {
        let stored = self.agents.store()?.run(run).await.ok()??;
        let name = stored.row.agent.strip_prefix(MODEL_PREFIX)?;
        self.await_servers(name, FIRST_START).await;
        if let Some(why) = self.not_ready(name) {
            return Some(Err(format!("{name} is not ready: {why}").into()));
        }
        Some(match self.resume_conversation(name, run).await {
            Ok(Some(watch)) => Ok(watch),
            Ok(None) => Err(format!(
                "it is not a conversation with an installed expert, but a task of {name}: `respool serve` continues it"
            )
            .into()),
            Err(why) => Err(why),
        })
    }

    /// Continues a conversation; `None` for any other run, and while its expert is not installed.
    ///
    /// # Errors
    /// Why it cannot continue. A conversation whose package is gone is cancelled.
    pub(super) async fn resume_conversation(
        &self,
        name: &str,
        run: &str,
    ) -> Result<Option<Watch>, ExpertError> {
        let Some(facts) = self.agents.run_facts(run).await else { return Ok(None) };
        let digest = facts.snapshot.digest.clone();
        let agent = match self.resumed_agent(name, facts) {
            Ok(Some(agent)) => agent,
            Ok(None) => return Ok(None),
            Err(why) if self.agents.store().is_some_and(|store| store.is_package_elsewhere(&digest)) => {
                return Err(format!("{why}, but another process has it").into());
            }
            Err(why) => {
                self.give_up(name, run, &why.to_string()).await?;
                return Err(format!("{why}; the run is cancelled").into());
            }
        };
        let options = RunOptions { is_detached: true, ..RunOptions::default() };
        Ok(Some(self.agents.resume_as(&agent, run, options).await.map_err(|error| error.to_string())?))
    }

    async fn give_up(&self, name: &str, run: &str, why: &str) -> Result<(), StoreError> {
        tracing::error!(target: "respool::expert", expert = name, run_id = run, why, "a conversation cannot go on; it is cancelled");
        self.agents.cancel_run(run).await?;
        let notices = ConversationNotices { expert: name.to_owned(), is_function: false };
        if let Some(store) = self.agents.store() {
            store.post(notices.lost_notice(run, why), clock::now()).await?;
        }
        Ok(())
    }

    /// Continues the conversations of processes that have ended, no matter which process began them, so that
    /// calls which a person approved are made. One whose expert is not ready waits, because its calls would
    /// fail.
    pub(super) async fn resume_interrupted(
        &self,
        store: &Store,
        seen: &mut Interrupted,
    ) -> Result<(), StoreError> {
        store.mark_orphans().await?;
        let interrupted = store.runs_of_status(Status::Interrupted).await?;
        for row in interrupted.into_iter().filter(|row| row.parent.is_none()) {
            let Some(name) = row.agent.strip_prefix(MODEL_PREFIX) else { continue };
            if seen.left_alone.contains(&row.id) || self.not_ready(name).is_some() {
                continue;
            }
            if self.is_too_old(&row).await {
                let notices = ConversationNotices { expert: name.to_owned(), is_function: false };
                store.post(notices.interrupted_notice(&row.id), clock::now()).await?;
                seen.left_alone.insert(row.id);
                continue;
            }
            match self.resume_conversation(name, &row.id).await {
                Ok(Some(_)) => {}
                Ok(None) => drop(seen.left_alone.insert(row.id)),
                Err(why) => {
                    if seen.failed.insert(row.id.clone()) {
                        tracing::warn!(target: "respool::expert", run_id = row.id, %why, "the run cannot be resumed");
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns why a request cannot be served yet, for people: a tool of the expert is not bound, or the run
    /// that the request repeats may make a call that a person approved, and the expert is not ready to make
    /// it. That run is resumed when the expert is ready.
    pub async fn must_wait(&self, name: &str, request: &AgentRequest) -> Option<String> {
        if let Some(why) = self.describe_hold(name) {
            return Some(why);
        }
        let why = self.not_ready(name)?;
        let run = self.agents.find_repeated_run(request).await?;
        let facts = self.agents.run_facts(&run).await.filter(|facts| facts.outcome.is_none())?;
        // A decision is an event of the run only once the run has read it.
        let decided = self.agents.store()?.woken_by_approvals(clock::now()).await.unwrap_or_default();
        let may_act = decided.iter().any(|woken| woken.id == run) || has_consent(&self.agents, facts).await;
        may_act.then(|| {
            format!(
                "{name} is not ready: {why}. The run {run}, which this request began, has calls that a person approved; it continues by \
                 itself when {name} is ready"
            )
        })
    }

    /// Returns true if a conversation was interrupted too long ago to act by itself now. Calls that a person
    /// approved are made at any age.
    async fn is_too_old(&self, row: &RunRow) -> bool {
        let allowed = clock::to_millis(RESUMABLE_FOR);
        if clock::now().saturating_sub(row.updated) <= allowed {
            return false;
        }
        let Some(facts) = self.agents.run_facts(&row.id).await.filter(is_conversation) else {
            return false;
        };
        !has_consent(&self.agents, facts).await
    }
}

/// Returns true if a person approved a call of a run or of one of its child runs.
async fn has_consent(agents: &Agents, facts: RunFacts) -> bool {
    let mut has_consent = facts.has_consent;
    for child in facts.children {
        has_consent |= agents.run_facts(&child.id).await.is_some_and(|facts| facts.has_consent);
    }
    has_consent
}
