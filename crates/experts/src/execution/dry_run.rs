//! A dry run: executes a process without the queue and without changing anything outside, and reports what it
//! would have done.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::attempt::{Attempt, invocation_tag};
use super::calls::report_calls;
use super::task::History;
use super::verdict::{self, Verdict};
use crate::assembly::RunPlan;
use crate::error::ExpertError;
use crate::experts::Experts;
use crate::operations::Operations;
use agent::{AgentRequest, RunOptions, WorkEnd};
use store::Claimed;

/// A process to execute without the queue and without changing anything outside.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The expert.
    pub expert: String,
    /// The process.
    pub process: String,
    /// The payload.
    pub payload: Value,
    /// A copy of the expert's state, which the run may change.
    pub state: PathBuf,
}

impl DryRun {
    /// Executes it and returns its report.
    ///
    /// # Errors
    /// Why it cannot run, for people.
    pub async fn run_dry(self, experts: &Experts) -> Result<Value, ExpertError> {
        let expert = experts.get(&self.expert).ok_or_else(|| experts.unknown_expert(&self.expert))?;
        let invocation = experts.new_invocation(&self.expert, &self.process, self.payload)?;
        let package = Arc::clone(&expert.package);
        let process = package.process(&invocation.process).cloned();
        let process = process
            .ok_or_else(|| format!("{} has no process {:?}", invocation.expert, invocation.process))?;
        let claimed = Claimed {
            lease: store::EntryLease { entry: invocation.id.clone(), epoch: 0 },
            queue: invocation.expert.clone(),
            payload: String::new(),
            attempt: 1,
            is_continued: false,
            run: None,
            accepted: clock::now(),
        };
        let attempt = Attempt::new(&claimed, &invocation, expert, package, process);
        let plan = RunPlan { is_dry: true, root: Some(self.state), ..attempt.run_plan(Vec::new()) };
        let (agent, files) = experts.agent_of(&attempt.expert, plan);
        let request = AgentRequest::from_work(
            &attempt.task_text(&files, History::default()),
            &invocation_tag(&invocation),
        );
        let begun = experts
            .agents
            .start_run(&agent, request, RunOptions { is_detached: true, ..RunOptions::default() })
            .await;
        let mut watch = begun?;
        let run = watch.run.clone();
        let ended = watch.wait_for_end().await;
        let WorkEnd::Finished(outcome) = &ended.end else {
            return Err("the run did not end".to_owned().into());
        };
        let facts = experts.agents.read_facts(&run).await.ok().flatten();
        let is_private = attempt.is_private();
        let operations = Operations::new(&attempt.package, Arc::clone(&attempt.expert.bound), true);
        let calls = facts.map(|facts| report_calls(&facts, is_private, |name| operations.is_left_out(name)));
        let calls = calls.unwrap_or_default();
        Ok(match verdict::judge_end(outcome, &attempt.process.outputs.items) {
            Verdict::Done(results) => {
                json!({"end": "done", "results": verdict::delivery_body(&results, &attempt.process.outputs.items, &attempt.delivery), "calls": calls})
            }
            Verdict::Escalated(what) => json!({"end": "escalated", "escalation": what, "calls": calls}),
            Verdict::Cancelled => json!({"end": "cancelled", "calls": calls}),
            Verdict::Failed { reason, .. } => json!({"end": "failed", "reason": reason, "calls": calls}),
        })
    }
}
