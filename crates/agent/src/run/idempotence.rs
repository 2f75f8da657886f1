//! Idempotence: a call that the run's work allows once is not made again. Pure.

use serde_json::Value;

use super::state::Run;
use crate::approval::Tier;
use crate::call::{CallOutcome, RequestedCall, ToolEnd};
use crate::setup::{EndsRun, Executor, OfferedTool, SettledCall};

impl Run {
    /// Returns the calls that this run and its child runs have made and that are not made again.
    pub(crate) fn settled_calls(&self) -> &[SettledCall] {
        &self.made
    }

    /// Returns the known end of a call, from earlier runs of the same work and from this one.
    pub(super) fn find_settled(&self, call: &RequestedCall) -> Option<&SettledCall> {
        let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
        let is_same = |settled: &&SettledCall| settled.name == call.name && settled.arguments == arguments;
        self.setup.settled.iter().chain(&self.made).find(is_same)
    }

    /// Returns true if two calls are the same, and their tool must not run twice: only the first is made.
    pub(super) fn is_made_once(&self, call: &RequestedCall, other: &RequestedCall) -> bool {
        let inputs = |call: &RequestedCall| serde_json::from_str::<Value>(&call.arguments).ok();
        call.name == other.name && self.is_once(&call.name) && inputs(call) == inputs(other)
    }

    pub(super) fn is_once(&self, tool: &str) -> bool {
        let is_proposal = self.setup.approvals.proposals.contains(tool);
        self.setup.calls_once && (is_proposal || self.find_offered(tool).is_some_and(happens_once))
    }

    /// Notes a call that was made, or whose outcome is unknown, if it must not be made again.
    pub(super) fn note_made(&mut self, call: &RequestedCall, ended: &ToolEnd) {
        let Some((outcome, text)) = recorded_answer(ended).filter(|_| self.is_once(&call.name)) else {
            return;
        };
        let Ok(arguments) = serde_json::from_str(&call.arguments) else { return };
        self.made.push(SettledCall { name: call.name.clone(), arguments, outcome, text });
    }
}

/// Returns true for an operation that changes something outside, as far as its server says, and for one that
/// is handed over.
fn happens_once(tool: &OfferedTool) -> bool {
    let is_repeatable = !matches!(tool.executor, Executor::Respool { repeatable: false, .. });
    tool.ends_run == EndsRun::OnFault && (tool.tier == Tier::Manual || !is_repeatable)
}

/// Returns the answer to the same call.
fn recorded_answer(ended: &ToolEnd) -> Option<(CallOutcome, String)> {
    Some(match ended.outcome {
        CallOutcome::Ok => {
            let text =
                format!("[made before with the same inputs, and recorded; not made again]\n{}", ended.text);
            (CallOutcome::Ok, text)
        }
        CallOutcome::HandedOver => {
            let text =
                "handed over to a person as a draft before, and not again; the step is done, not executed";
            (CallOutcome::HandedOver, text.to_owned())
        }
        outcome if outcome.is_unknown() => {
            let text = "this call was made before, and it is not known whether it succeeded. It is not made again: look whether it did, or escalate";
            (CallOutcome::Failed, text.to_owned())
        }
        _ => return None,
    })
}
