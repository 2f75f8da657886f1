//! The progress that an agent's client sees: one line for each tool call. Pure. Used by `agents`.

use serde_json::{Map, Value};

use super::activity::Activity;
use super::approval::ApprovalRequest;
use super::call::{CallOutcome, RequestedCall, ToolEnd};

/// The most bytes of the arguments that are shown.
const WIDEST: usize = 160;

/// Returns the client's text for an activity; `None` if the client does not see it.
pub(super) fn activity_text(activity: Activity<'_>) -> Option<String> {
    match activity {
        Activity::ModelReplied(reply) => {
            let text = reply.content.trim();
            (!reply.calls.is_empty() && !text.is_empty()).then(|| format!("{text}\n"))
        }
        // Before anything was done, a failure may still become a true HTTP status.
        Activity::ModelFailed { failure, is_retried, is_first } => {
            (is_retried && !is_first).then(|| format!("[model: {}]\n", failure.code))
        }
        Activity::ToolStarted { call, is_retry } => Some(call_start_line(call, is_retry)),
        Activity::ToolFinished { ended, .. } => Some(call_end_line(ended)),
        Activity::ApprovalRequested(request) => Some(approval_line(request)),
        Activity::HandedOver(call) => Some(format!("[{}] handed over as a draft\n", call.name)),
        Activity::NotStored => Some("[this run cannot be kept on disk at present; it goes on]\n".to_owned()),
        Activity::ModelAsked(_)
        | Activity::ServerAwaited(_)
        | Activity::Reasoning(_)
        | Activity::Content(_) => None,
    }
}

/// Returns the first half of a line: which tool, on what.
fn call_start_line(call: &RequestedCall, is_retry: bool) -> String {
    let again = if is_retry { ", again" } else { "" };
    let inputs = short_inputs(&call.arguments);
    let colon = if inputs.is_empty() { "" } else { ": " };
    format!("[{}{again}{colon}{inputs}] ", call.name)
}

/// Returns the line that names the calls that wait for consent.
fn approval_line(request: &ApprovalRequest) -> String {
    let names: Vec<&str> = request.calls.iter().map(|call| call.name.as_str()).collect();
    format!("[{}] waits for approval {}\n", names.join(", "), request.id)
}

/// Returns the second half: outcome and time.
fn call_end_line(ended: &ToolEnd) -> String {
    let seconds = ended.took / 1_000;
    let tenths = ended.took % 1_000 / 100;
    match ended.outcome {
        CallOutcome::Ok => format!("ok, {} bytes in {seconds}.{tenths} s\n", ended.text.len()),
        CallOutcome::Transient => format!("the server failed after {seconds}.{tenths} s\n"),
        outcome => format!("{} after {seconds}.{tenths} s\n", outcome.as_str().replace('_', " ")),
    }
}

/// Returns the values of the arguments, in one short line.
fn short_inputs(arguments: &str) -> String {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let all = arguments.values().map(value).collect::<Vec<_>>().join(", ");
    let flat: String = all.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if flat.len() <= WIDEST { flat } else { format!("{}…", &flat[..flat.floor_char_boundary(WIDEST)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_name_tool_and_outcome() {
        let call = |arguments: &str| RequestedCall {
            name: "web_search".into(),
            arguments: arguments.into(),
            ..RequestedCall::default()
        };
        assert_eq!(
            call_start_line(&call(r#"{"query":"rust\nproxies","count":3}"#), false),
            "[web_search: rust proxies, 3] "
        );
        assert_eq!(call_start_line(&call("{}"), false), "[web_search] ");
        assert!(call_start_line(&call(&format!(r#"{{"q":"{}"}}"#, "ä".repeat(500))), true).len() < 200);
        let ended = |outcome| call_end_line(&ToolEnd::new(outcome, "abc", 1_260));
        assert_eq!(ended(CallOutcome::Ok), "ok, 3 bytes in 1.2 s\n");
        assert_eq!(ended(CallOutcome::TimedOut), "timed out after 1.2 s\n");
        assert_eq!(ended(CallOutcome::Transient), "the server failed after 1.2 s\n");
    }
}
