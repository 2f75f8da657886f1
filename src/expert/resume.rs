//! Resumes conversations with experts: those that waited for a person, and those whose process ended. Each continues with the package and
//! the files that it began with. Runs of processes belong to queue entries and are resumed by `execution`.

use std::sync::Arc;

use super::experts::{Experts, MODEL_PREFIX};
use super::notices::ConversationNotices;
use crate::agent::{RunOptions, Watch};
use crate::store::{RunRow, Status, Store, StoreError};

impl Experts {
    /// Resumes an expert's run for a person who waits for its answer; `None` if the run is not an expert's.
    ///
    /// # Errors
    /// Why it cannot be resumed, for people.
    pub async fn resume(&self, run: &str) -> Option<Result<Watch, String>> {
        let stored = self.agents.store()?.run(run).await.ok()??;
        let name = stored.row.agent.strip_prefix(MODEL_PREFIX)?;
        Some(match self.resume_conversation(name, run).await {
            Ok(Some(watch)) => Ok(watch),
            Ok(None) => Err(format!(
                "it is not a conversation with an installed expert, but a task of {name}: `respool serve` continues it"
            )),
            Err(why) => Err(why),
        })
    }

    /// Continues a conversation; `None` for any other run, and while its expert is not installed.
    ///
    /// # Errors
    /// Why it cannot continue. A conversation whose package is gone is cancelled.
    pub(super) async fn resume_conversation(&self, name: &str, run: &str) -> Result<Option<Watch>, String> {
        let Some(facts) = self.agents.facts(run).await else { return Ok(None) };
        let agent = match self.returning(name, facts) {
            Ok(Some(agent)) => agent,
            Ok(None) => return Ok(None),
            Err(why) => {
                self.give_up(name, run, &why).await.map_err(|error| error.0)?;
                return Err(format!("{why}; the run is cancelled"));
            }
        };
        let options = RunOptions { is_detached: true, ..RunOptions::default() };
        self.agents.resume_as(&agent, run, options).await.map(Some)
    }

    async fn give_up(&self, name: &str, run: &str, why: &str) -> Result<(), StoreError> {
        tracing::error!(target: "respool::expert", expert = name, run_id = run, why, "a conversation cannot go on; it is cancelled");
        self.agents.cancel(run).await?;
        let notices = ConversationNotices { expert: name.to_owned(), is_function: false };
        if let Some(store) = self.agents.store() {
            store.post(notices.lost(run, why), self.now()).await?;
        }
        Ok(())
    }

    /// Continues the conversations that an earlier process left, whoever began them, so that calls which a person approved are made.
    pub(super) async fn resume_interrupted(&self, store: &Arc<Store>) -> Result<(), StoreError> {
        let left = store.runs_of_status(Status::Interrupted).await?;
        for RunRow { id, agent, .. } in left.into_iter().filter(|row| row.parent.is_none()) {
            let Some(name) = agent.strip_prefix(MODEL_PREFIX) else { continue };
            if let Err(why) = self.resume_conversation(name, &id).await {
                tracing::warn!(target: "respool::expert", run_id = id, why, "the run cannot be resumed");
            }
        }
        Ok(())
    }
}
