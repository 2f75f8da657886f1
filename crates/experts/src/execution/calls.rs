//! The calls of a run as people see them: those of a dry run, and those before a request for consent.

use serde_json::{Value, json};

use agent::{CallOutcome, EndsRun, MadeCall, RunFacts};
use openexperts::label::is_call;

/// The tool that reads the expert's files.
const READ: &str = "read";
/// Replaces a result that may contain private knowledge.
const WITHHELD: &str = "[withheld: it may hold private knowledge]";

/// Returns the calls of a run in order, with those of its isolated functions: each behind what it called
/// itself. For a run that may quote private knowledge, what it read and what its functions returned is
/// withheld. `is_left_out`: whether calls of a tool are not made.
pub(crate) fn report_calls(
    facts: &RunFacts,
    is_private: bool,
    is_left_out: impl Fn(&str) -> bool,
) -> Vec<Value> {
    let report = |made: &MadeCall| {
        let name = &made.call.name;
        let is_own = name == READ || is_call(name);
        let result = if is_private && is_own { WITHHELD } else { &made.text };
        let outcome = match made.outcome {
            CallOutcome::Ok if is_left_out(name) => "not_called",
            outcome => outcome.as_str(),
        };
        json!({"call": name, "inputs": made.call.parsed_arguments(), "outcome": outcome, "result": result})
    };
    let mut calls: Vec<Value> = facts.calls.iter().map(report).collect();
    // The last first: what is put in moves what follows.
    for child in facts.children.iter().rev() {
        let before = child.before.min(calls.len());
        let function = child.made.as_ref().map(|made| made.call.name.as_str());
        // The result of the function says how it ended.
        let own = child.calls.iter().filter(|made| made.ends_run != EndsRun::OnSuccess).map(|made| {
            let mut call = report(made);
            call["by"] = function.into();
            call
        });
        calls.splice(before..before, own.chain(child.made.iter().map(report)));
    }
    calls
}
