//! A dry run: executes a process without the queue and without changing anything outside, and reports what it
//! would have done.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::attempt::{Attempt, invocation_tag};
use super::task::History;
use super::verdict::{self, Verdict};
use crate::assembly::RunPlan;
use crate::error::ExpertError;
use crate::experts::Experts;
use crate::operations::Operations;
use agent::{AgentRequest, CallOutcome, EndsRun, MadeCall, RunFacts, RunOptions, WorkEnd};
use openexperts::label::is_call;
use store::Claimed;

/// The tool that reads the expert's files.
const READ: &str = "read";
/// Replaces a result that may contain private knowledge.
const WITHHELD: &str = "[withheld: it may hold private knowledge]";

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
        let calls = calls_with_functions(experts, &run).await;
        let is_private = attempt.is_private();
        let operations = Operations::new(&attempt.package, Arc::clone(&attempt.expert.bound), true);
        let calls: Vec<Value> = calls
            .iter()
            .map(|made| report_call(made, is_private, operations.is_left_out(&made.call.name)))
            .collect();
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

/// Returns the calls of a run in order, with those of isolated functions: each behind what it called itself.
async fn calls_with_functions(experts: &Experts, run: &str) -> Vec<MadeCall> {
    let Ok(Some(RunFacts { mut calls, children, .. })) = experts.agents.read_facts(run).await else {
        return Vec::new();
    };
    for child in children.into_iter().rev() {
        // The result of the function says how it ended.
        let own = child.calls.into_iter().filter(|made| made.ends_run != EndsRun::OnSuccess);
        let before = child.before.min(calls.len());
        calls.splice(before..before, own.chain(child.made));
    }
    calls
}

/// Returns a call in the report; `is_left_out`: it was not made. For a run that may quote private knowledge,
/// what it read and what its functions returned is withheld.
fn report_call(made: &MadeCall, is_private: bool, is_left_out: bool) -> Value {
    let is_own = made.call.name == READ || is_call(&made.call.name);
    let result = if is_private && is_own { WITHHELD } else { &made.text };
    let outcome = match made.outcome {
        CallOutcome::Ok if is_left_out => "not_called",
        outcome => outcome.as_str(),
    };
    json!({"call": made.call.name, "inputs": made.call.parsed_arguments(), "outcome": outcome, "result": result})
}
