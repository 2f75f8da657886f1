//! A run as people and programs see it: the row of a list, and the breakdown. Called by `server` and `cli`.

use serde_json::{Map, Value, json};

use super::approval::{ApprovalRequest, Decision, Requester};
use super::call::{CallOutcome, RequestedCall};
use super::event::EventKind;
use super::facts::RunFacts;
use super::run::Run;
use super::run_snapshot::RunSnapshot;
use super::setup::Setup;
use super::stored::restore;
use super::transcript::Iteration;
use store::{ApprovalRow, ApprovalState, RunRow, StoredEvent, StoredRun};

/// The most characters of a title.
const TITLE: usize = 60;

/// Returns a run in a list. Times are as RFC 3339 writes them, in UTC.
pub fn summary(row: &RunRow) -> Value {
    json!({
        "id": row.id, "object": "run", "agent": row.agent, "status": row.status.as_str(),
        "created": clock::format_time(row.created), "updated": clock::format_time(row.updated), "bytes": row.bytes, "parent": row.parent,
    })
}

/// Returns the process of an expert that a run executes.
pub fn process(stored: &StoredRun) -> Option<String> {
    let setup: Setup = serde_json::from_str(&stored.setup).ok()?;
    Some(setup.approvals.requester?.process_name()?.to_owned())
}

/// Returns a title on one line: the process that the run executes, or the first words that a person wrote in
/// it. `None` if it has neither, or if the words are private.
pub fn title(stored: &StoredRun) -> Option<String> {
    if let Some(process) = process(stored) {
        return Some(process);
    }
    let setup: Setup = serde_json::from_str(&stored.setup).ok()?;
    let message = message_of_person(&setup, stored)?;
    if setup.is_private { None } else { first_words(&message["content"]) }
}

/// Returns the text of the message that a run answers, for the person who decides about its calls.
pub fn request_text(stored: &StoredRun) -> Option<String> {
    let setup: Setup = serde_json::from_str(&stored.setup).ok()?;
    let text = message_text(&message_of_person(&setup, stored)?["content"]);
    (!text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// Returns the package and session that a run was made from; of an unreadable one, empty ones.
pub fn snapshot_of(stored: &StoredRun) -> RunSnapshot {
    serde_json::from_str(&stored.setup).map(|setup: Setup| setup.snapshot).unwrap_or_default()
}

/// Returns the last message that a person wrote before a run began, or the run's first message.
fn message_of_person(setup: &Setup, stored: &StoredRun) -> Option<Value> {
    let of_person = |message: &&Value| message["role"] == "user";
    let turn = |event: &StoredEvent| match serde_json::from_str(&event.body).ok()? {
        EventKind::TurnStarted(message) => Some(message),
        _ => None,
    };
    match setup.messages.iter().rev().find(of_person) {
        Some(message) => Some(message.clone()),
        None => stored.events.iter().find_map(turn),
    }
}

/// Returns the first words of a message on one line; `None` if it has no text.
fn first_words(content: &Value) -> Option<String> {
    let text = message_text(content);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = words.char_indices().nth(TITLE).map_or(words.len(), |(end, _)| end);
    (end > 0).then(|| words[..end].to_owned() + if end < words.len() { "…" } else { "" })
}

/// Returns the text of a message, whose content is a string or a list of parts.
fn message_text(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    content.as_str().map_or_else(|| parts.collect::<Vec<_>>().join(" "), str::to_owned)
}

/// Returns a run with its iterations, tokens, limit, and the answer once there is one.
pub fn breakdown(stored: &StoredRun) -> Value {
    let mut body = summary(&stored.row);
    let Some((run, _)) = restore(stored) else {
        body["error"] = "this run was written by another version of respool and cannot be read".into();
        return body;
    };
    let spent = run.spent_tokens();
    body["usage"] = json!({
        "prompt_tokens": spent.prompt, "completion_tokens": spent.completion, "total_tokens": spent.total(),
        "reasoning_tokens": spent.reasoning, "cached_tokens": spent.cached,
    });
    body["duration_ms"] = run.working_time().into();
    body["iterations"] = run.iterations().iter().map(iteration).collect();
    body["waits_for"] = run.awaited_calls().iter().map(|call| call.name.as_str()).collect();
    if let Some(request) = run.awaited_approval() {
        body["approval"] =
            if run.setup().is_private { withheld_approval(request) } else { approval(request) };
    }
    body["children"] = children(stored).into();
    outcome(&run, &mut body);
    body
}

/// Returns a request for consent as the store has it, with its end. Times are as RFC 3339 writes them, in
/// UTC.
pub fn approval_row(row: &ApprovalRow) -> Value {
    let request: ApprovalRequest = serde_json::from_str(&row.body).unwrap_or_default();
    let mut body = approval(&request);
    body["id"] = row.id.as_str().into();
    body["object"] = "approval".into();
    body["run"] = row.run.as_str().into();
    body["agent"] = row.agent.as_str().into();
    body["state"] = row.state.as_str().into();
    body["requested"] = clock::format_time(row.requested).into();
    let decision = row.decision.as_deref().and_then(|text| serde_json::from_str::<Decision>(text).ok());
    if let Some(decision) = decision {
        body["decision"] = json!({
            "approved": decision.approved_calls(), "by": decision.by, "comment": decision.comment,
            "at": row.decided.map(clock::format_time),
        });
        if !decision.changed.is_empty() {
            let inputs = |text: &String| serde_json::from_str::<Value>(text).unwrap_or_default();
            let changed = decision.changed.iter().map(|(call, text)| (call.clone(), inputs(text)));
            body["decision"]["inputs"] = changed.collect::<Map<_, _>>().into();
        }
    }
    body
}

/// Says how a request ended that waits no longer: what was decided, by whom and when.
pub fn describe_end(row: &ApprovalRow) -> String {
    let decision = row.decision.as_deref().and_then(|text| serde_json::from_str::<Decision>(text).ok());
    let Some(decision) = decision else {
        return match row.state {
            ApprovalState::Withdrawn => "its run has ended, or goes on without it".to_owned(),
            _ => "its time ran out".to_owned(),
        };
    };
    let request: ApprovalRequest = serde_json::from_str(&row.body).unwrap_or_default();
    let (approved, all) = (decision.approved_calls().len(), request.calls.len());
    let what = match approved {
        0 => "it was rejected".to_owned(),
        _ if approved == all && decision.changed.is_empty() => "it was approved".to_owned(),
        _ if approved == all => "it was approved with changed inputs".to_owned(),
        _ => format!("{approved} of its {all} calls were approved"),
    };
    let at = row.decided.map(|at| format!(" at {}", clock::format_time(at))).unwrap_or_default();
    format!("{what} by {}{at}", decision.by)
}

/// Returns the same with the outcome of each approved call, as far as the run that made them says. `run`:
/// that run.
pub fn approval_with_outcomes(row: &ApprovalRow, run: Option<&StoredRun>) -> Value {
    let mut body = approval_row(row);
    let made = run.and_then(RunFacts::from_stored).map(|facts| facts.calls).unwrap_or_default();
    for call in body["calls"].as_array_mut().into_iter().flatten() {
        let Some(made) = made.iter().find(|made| call["id"] == made.call.id.as_str()) else { continue };
        call["outcome"] = made.outcome.as_str().into();
        if made.outcome.is_unknown() && !made.is_repeatable {
            call["note"] = "It is not known whether the call took effect: look where it would show.".into();
        }
        if matches!(made.outcome, CallOutcome::Failed | CallOutcome::Unreachable) {
            call["error"] = made.text.as_str().into();
        }
    }
    body
}

/// Returns a request for consent, with the inputs that will run.
pub fn approval(request: &ApprovalRequest) -> Value {
    let calls: Vec<Value> = request.calls.iter().map(|call| asked_call(request, call)).collect();
    json!({
        "id": request.id, "calls": calls, "reason": request.reason,
        "requester": request.requester.as_ref().map(Requester::kind_name), "process": request.requester.as_ref().and_then(Requester::process_name),
        "expires": request.expires.map(clock::format_time),
    })
}

/// Returns the same without what may quote private knowledge. The person who decides about the request sees
/// all of it.
fn withheld_approval(request: &ApprovalRequest) -> Value {
    let mut body = approval(request);
    body["reason"] = WITHHELD.into();
    for call in body["calls"].as_array_mut().into_iter().flatten() {
        call["arguments"] = WITHHELD.into();
        if call["change"].is_string() {
            call["change"] = WITHHELD.into();
        }
    }
    body
}

/// Returns a call with what it would do, where the person was shown that.
fn asked_call(request: &ApprovalRequest, call: &RequestedCall) -> Value {
    let mut shown = requested_call(call);
    if let Some(effect) = request.effects.get(&call.id) {
        shown["bound_to"] = effect.tool.as_str().into();
        if let Some(change) = &effect.change {
            shown["change"] = change.as_str().into();
        }
    }
    shown
}

fn requested_call(call: &RequestedCall) -> Value {
    let arguments: Value =
        serde_json::from_str(&call.arguments).unwrap_or_else(|_| call.arguments.as_str().into());
    json!({"id": call.id, "tool": call.name, "arguments": arguments})
}

/// Returns the runs that it began as its children, the oldest first.
fn children(stored: &StoredRun) -> Vec<String> {
    let child = |event: &StoredEvent| match serde_json::from_str(&event.body).ok()? {
        EventKind::ChildStarted { child } => Some(child),
        _ => None,
    };
    stored.events.iter().filter_map(child).collect()
}

/// Stands for a text of a run that may quote private knowledge. The client has it as the run's reply.
const WITHHELD: &str = "[withheld: this run may have read private knowledge]";

fn outcome(run: &Run, body: &mut Value) {
    let Some(outcome) = run.outcome() else { return };
    if run.setup().is_private {
        body["answer"] = WITHHELD.into();
        body["limit"] = outcome.limit.as_ref().map(super::outcome::Limit::name).into();
        if let Some(failure) = &outcome.failure {
            body["failure"] = json!({"code": failure.code, "message": WITHHELD});
        }
        return;
    }
    body["answer"] = outcome.text().into();
    body["limit"] = outcome.limit.as_ref().map(super::outcome::Limit::name).into();
    if let Some(failure) = &outcome.failure {
        body["failure"] = json!({"code": failure.code, "message": failure.text});
    }
}

fn iteration(iteration: &Iteration) -> Value {
    let tokens = iteration.tokens;
    let tools: Vec<Value> =
        iteration.tools.iter().filter_map(|tool| serde_json::to_value(tool).ok()).collect();
    let injected: usize = iteration.tools.iter().map(|tool| tool.injected_bytes).sum();
    json!({
        "why": iteration.purpose, "parser": iteration.parser, "model_ms": iteration.model_ms,
        "prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion, "reasoning_tokens": tokens.reasoning,
        "injected_bytes": injected, "tools": tools,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_requests_name_who_decided() {
        let check = |state: ApprovalState, approved: Option<&[&str]>, expected: &str| {
            let calls: Vec<Value> =
                ["a", "b"].map(|id| json!({"id": id, "name": id, "arguments": "", "problems": []})).into();
            let row = ApprovalRow {
                id: "r".into(),
                run: "run".into(),
                agent: "expert/desk".into(),
                state,
                requested: 0,
                expires: None,
                body: json!({"id": "r", "calls": calls, "reason": "", "expires": null}).to_string(),
                decided: approved.map(|_| 1_795_223_698_000),
                decision: approved
                    .map(|ids| json!({"request": "r", "approved": ids, "by": "anna"}).to_string()),
            };
            assert_eq!(describe_end(&row), expected);
        };
        let at = "by anna at 2026-11-21T01:14:58Z";
        check(ApprovalState::Decided, Some(&["a", "b"]), &format!("it was approved {at}"));
        check(ApprovalState::Applied, Some(&["a"]), &format!("1 of its 2 calls were approved {at}"));
        check(ApprovalState::Applied, Some(&[]), &format!("it was rejected {at}"));
        check(ApprovalState::Applied, None, "its time ran out");
        check(ApprovalState::Withdrawn, None, "its run has ended, or goes on without it");
    }

    #[test]
    fn titles_are_one_short_line() {
        let check = |content: Value, expected: Option<&str>| {
            assert_eq!(first_words(&content).as_deref(), expected, "{content}");
        };
        check(json!("Fix\n  the parser "), Some("Fix the parser"));
        check(
            json!([{"type": "text", "text": "Look at"}, {"type": "image_url"}, {"text": "this"}]),
            Some("Look at this"),
        );
        check(json!("ä".repeat(61)), Some(&format!("{}…", "ä".repeat(60))));
        check(json!([{"type": "image_url"}]), None);
        check(json!(" "), None);
    }
}
