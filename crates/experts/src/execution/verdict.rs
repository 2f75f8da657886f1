//! Decides what the end of an attempt means (done, escalated or failed) and what follows from it. Pure.

use serde_json::{Map, Value, json};

use crate::message::operation_json;
use crate::tools::{ESCALATE, FAIL, FINISH, LEARN};
use agent::{CallOutcome, EndsRun, Limit, MadeCall, Outcome, RequestedCall, SettledCall};
use openexperts::{Delivery, Execution, Format, OnFailure, Parameter, SlaBreach, outputs};
use store::EntryEnd;

/// The most characters of a text in the reason of a failure.
const LONGEST_TEXT: usize = 500;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The process is done.
    Done(Results),
    /// The model handed the decision to a person.
    Escalated(Value),
    /// A person ended it.
    Cancelled,
    /// It failed.
    Failed {
        /// Why, for people and for the next attempt.
        reason: String,
        /// Whether another attempt makes sense: not after a person said no.
        may_retry: bool,
    },
}

/// The result of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Results {
    pub(super) summary: String,
    pub(super) outputs: Map<String, Value>,
    /// Where the outputs differ from their declaration.
    pub(super) problems: Vec<String>,
}

/// The consequence of the end of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Another attempt after this many milliseconds.
    Retry(u64),
    /// The invocation has ended.
    End {
        end: EntryEnd,
        /// Whether a person is notified of a failure.
        escalates: bool,
    },
}

/// Reads an outcome.
pub(super) fn judge_end(outcome: &Outcome, declared: &[Parameter]) -> Verdict {
    let failed = |reason: String, may_retry| Verdict::Failed { reason, may_retry };
    if outcome.cancelled {
        return Verdict::Cancelled;
    }
    if let Some(failure) = &outcome.failure {
        return failed(failure.text.clone(), !failure.is_refusal());
    }
    let ended_by = outcome.ended_by.as_ref();
    let arguments = ended_by.map(RequestedCall::parsed_arguments).unwrap_or_default();
    let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
    match (ended_by.map(|call| call.name.as_str()), &outcome.limit) {
        (Some(FINISH), _) => {
            let checked = outputs::check_outputs(declared, arguments.get("outputs"));
            Verdict::Done(Results {
                summary: text("summary"),
                outputs: checked.outputs,
                problems: checked.problems,
            })
        }
        (Some(ESCALATE), _) => Verdict::Escalated(arguments),
        (Some(FAIL), _) => failed(text("reason"), true),
        (_, Some(limit)) => failed(format!("it met its limit {}", name_limit(limit)), true),
        (_, None) if declared.is_empty() => {
            Verdict::Done(Results { summary: outcome.content.clone(), ..Results::default() })
        }
        // A refusal must not pass for a result.
        (_, None) => {
            let text: String = outcome.content.chars().take(LONGEST_TEXT).collect();
            let what =
                format!("it ended with a text and without {FINISH}, so its outputs are missing: {text}");
            failed(what, true)
        }
    }
}

/// Names a limit by the key with which it is set.
fn name_limit(limit: &Limit) -> String {
    match limit {
        Limit::Time(millis) => format!("`execution.timeout` ({} s)", millis.div_ceil(1_000)),
        Limit::Iterations(count) => format!("`experts.max_iterations` ({count})"),
        other => other.as_words(),
    }
}

/// Decides what follows from a failed attempt; attempts count from 1.
pub(super) fn judge_failure(execution: &Execution, attempt: u32, may_retry: bool) -> Next {
    if may_retry && attempt < execution.max_attempts {
        return Next::Retry(clock::to_millis(execution.delay_after(attempt)));
    }
    match execution.on_failure {
        OnFailure::Escalate => Next::End { end: EntryEnd::Failed, escalates: true },
        OnFailure::Abandon => Next::End { end: EntryEnd::Failed, escalates: false },
        OnFailure::DeadLetter => Next::End { end: EntryEnd::DeadLetter, escalates: false },
    }
}

/// Returns the calls that later attempts must not repeat: successful operations that are not repeatable,
/// drafts that were handed over, operations whose outcome is unknown, and all proposed learnings.
pub(super) fn settled_calls(calls: &[MadeCall]) -> Vec<SettledCall> {
    let is_once = |made: &&MadeCall| made.call.name == LEARN || is_unrepeatable(made);
    calls.iter().filter(is_once).filter_map(settled_call).collect()
}

/// Returns the operations that took effect, or may have, and are not repeatable.
pub(super) fn lasting_calls(calls: &[MadeCall]) -> Vec<MadeCall> {
    let lasts = |made: &&MadeCall| {
        let is_done = matches!(made.outcome, CallOutcome::Ok | CallOutcome::HandedOver);
        is_unrepeatable(made) && (is_done || made.outcome.is_unknown())
    };
    calls.iter().filter(lasts).cloned().collect()
}

fn settled_call(made: &MadeCall) -> Option<SettledCall> {
    let (outcome, text) = match made.outcome {
        CallOutcome::Ok => (CallOutcome::Ok, format!("[recorded in an earlier attempt, not made again]\n{}", made.text)),
        CallOutcome::HandedOver => (
            CallOutcome::HandedOver,
            "handed over to a person as a draft in an earlier attempt, and not again; the step is done, not executed".to_owned(),
        ),
        outcome if outcome.is_unknown() => (
            CallOutcome::Failed,
            "an earlier attempt made this call, and it is not known whether it succeeded. It is not made again: look whether it did, or escalate"
                .to_owned(),
        ),
        CallOutcome::Denied if made.call.name == LEARN => (CallOutcome::Denied, made.text.clone()),
        _ => return None,
    };
    let arguments = serde_json::from_str(&made.call.arguments).ok()?;
    Some(SettledCall { name: made.call.name.clone(), arguments, outcome, text })
}

/// Lists the operations that may or may not have taken effect, in the form in which people read them: each
/// once.
pub(super) fn unknown_outcomes(calls: &[MadeCall]) -> Vec<Value> {
    list_unrepeatable(calls, CallOutcome::is_unknown, |made| {
        let mut shown = operation_json(&made.call);
        shown["outcome"] = "unknown".into();
        shown
    })
}

/// Lists the operations that failed, and were not made successfully later with the same inputs: each once,
/// with the error.
pub(super) fn failed_calls(calls: &[MadeCall]) -> Vec<Value> {
    let is_made = |made: &MadeCall| matches!(made.outcome, CallOutcome::Ok | CallOutcome::HandedOver);
    let mut found = Vec::new();
    for (place, made) in calls.iter().enumerate().filter(|(_, made)| is_unrepeatable(made)) {
        let is_failed = matches!(made.outcome, CallOutcome::Failed | CallOutcome::Unreachable);
        let mut shown = operation_json(&made.call);
        let mut later = calls[place..].iter().filter(|later| is_made(later));
        if is_failed && !later.any(|later| operation_json(&later.call) == shown) {
            shown["error"] = made.text.chars().take(LONGEST_TEXT).collect::<String>().into();
            found.retain(|other: &Value| {
                other["operation"] != shown["operation"] || other["inputs"] != shown["inputs"]
            });
            found.push(shown);
        }
    }
    found
}

/// Lists the operations that took effect and are not repeatable, in the form in which people read them: each
/// once.
pub(super) fn done_operations(calls: &[MadeCall]) -> Vec<Value> {
    list_unrepeatable(calls, |outcome| outcome == CallOutcome::Ok, |made| operation_json(&made.call))
}

fn list_unrepeatable(
    calls: &[MadeCall],
    is_listed: impl Fn(CallOutcome) -> bool,
    show: impl Fn(&MadeCall) -> Value,
) -> Vec<Value> {
    let mut found = Vec::new();
    for made in calls.iter().filter(|made| is_listed(made.outcome) && is_unrepeatable(made)) {
        let shown = show(made);
        if !found.contains(&shown) {
            found.push(shown);
        }
    }
    found
}

/// Returns true for an operation of a process that must not simply be made again.
fn is_unrepeatable(made: &MadeCall) -> bool {
    made.ends_run == EndsRun::OnFault && !made.is_repeatable
}

/// Returns the part of a process's results that is delivered.
pub(super) fn delivery_body(results: &Results, declared: &[Parameter], delivery: &Delivery) -> Value {
    let mut body = json!({});
    if delivery.format != Format::Structured || declared.is_empty() {
        body["summary"] = results.summary.as_str().into();
    }
    if delivery.format != Format::Narrative && !declared.is_empty() {
        body["outputs"] = Value::Object(results.outputs.clone());
    }
    if !results.problems.is_empty() && delivery.format != Format::Narrative {
        body["problems"] = results.problems.clone().into();
    }
    body
}

/// Returns how late a result is, including queue and approvals.
pub(super) fn measure_lateness(delivery: &Delivery, took: u64) -> Option<(Value, SlaBreach)> {
    let sla = delivery.sla.as_ref()?;
    let allowed = clock::to_millis(sla.length());
    (took > allowed).then(|| (json!({"sla": sla.to_string(), "took_ms": took}), delivery.sla_breach))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::{FailureKind, ModelFailure};
    use openexperts::{Backoff, DeliveryFields, ExecutionFields};
    use wire::ErrorCode;

    fn ended_by(name: &str, arguments: &Value) -> Outcome {
        let call =
            RequestedCall { name: name.into(), arguments: arguments.to_string(), ..RequestedCall::default() };
        Outcome { content: "c".into(), ended_by: Some(call), ..Outcome::default() }
    }

    fn failed(code: ErrorCode) -> Outcome {
        let failure = ModelFailure {
            kind: FailureKind::Final,
            status: 500,
            code: code.to_string(),
            text: "why".into(),
            wait: None,
        };
        Outcome { failure: Some(failure), ..Outcome::default() }
    }

    fn made_call(name: &str, outcome: CallOutcome, is_repeatable: bool) -> MadeCall {
        MadeCall {
            call: RequestedCall {
                name: name.into(),
                arguments: "{\"a\":1}".into(),
                ..RequestedCall::default()
            },
            outcome,
            text: String::new(),
            is_repeatable,
            ends_run: EndsRun::OnFault,
        }
    }

    fn declared() -> Vec<Parameter> {
        vec![Parameter {
            name: "urgency".into(),
            kind: "string".into(),
            options: vec!["high".into()],
            ..Parameter::default()
        }]
    }

    #[test]
    fn operations_that_took_effect_are_listed_once() {
        let calls = [
            made_call("crm__add", CallOutcome::Ok, false),
            made_call("crm__add", CallOutcome::Ok, false),
            made_call("crm__read", CallOutcome::Ok, true),
            made_call("crm__pay", CallOutcome::Failed, false),
        ];
        assert_eq!(done_operations(&calls), [json!({"operation": "crm.add", "inputs": {"a": 1}})]);
    }

    #[test]
    fn an_outcome_is_read() {
        let done = judge_end(
            &ended_by(FINISH, &json!({"summary": "s", "outputs": {"urgency": "high"}})),
            &declared(),
        );
        assert_eq!(
            done,
            Verdict::Done(Results {
                summary: "s".into(),
                outputs: json!({"urgency": "high"}).as_object().unwrap().clone(),
                problems: vec![],
            })
        );
        let Verdict::Done(wrong) =
            judge_end(&ended_by(FINISH, &json!({"summary": "s", "outputs": {"urgency": "no"}})), &declared())
        else {
            panic!("done")
        };
        assert_eq!((wrong.outputs.len(), wrong.problems.len()), (0, 1));
        // Regression: "I cannot do this." was delivered as the result.
        let refusal = Outcome { content: "I cannot.".into(), ..Outcome::default() };
        let Verdict::Failed { reason, may_retry: true } = judge_end(&refusal, &declared()) else {
            panic!("it has no outputs")
        };
        assert!(
            reason.ends_with("without finish_process, so its outputs are missing: I cannot."),
            "{reason}"
        );
        let narrative = Results { summary: "I cannot.".into(), ..Results::default() };
        assert_eq!(judge_end(&refusal, &[]), Verdict::Done(narrative));
        let check = |outcome: &Outcome, expected: bool| {
            let Verdict::Failed { may_retry, .. } = judge_end(outcome, &declared()) else {
                panic!("{outcome:?}")
            };
            assert_eq!(may_retry, expected, "{outcome:?}");
        };
        check(&ended_by(FAIL, &json!({"reason": "r"})), true);
        check(&failed(ErrorCode::ToolUnavailable), true);
        check(&failed(ErrorCode::ApprovalRejected), false);
        check(&failed(ErrorCode::ApprovalTimeout), false);
        check(
            &Outcome { limit: Some(Limit::Time(1_000)), content: "half".into(), ..Outcome::default() },
            true,
        );
        assert_eq!(judge_end(&Outcome { cancelled: true, ..Outcome::default() }, &[]), Verdict::Cancelled);
        assert!(matches!(
            judge_end(&ended_by(ESCALATE, &json!({"reason": "r"})), &[]),
            Verdict::Escalated(_)
        ));
    }

    #[test]
    fn attempts_follow_the_package() {
        let mut execution = Execution::resolve(&ExecutionFields::default(), &ExecutionFields::default());
        let escalated = Next::End { end: EntryEnd::Failed, escalates: true };
        assert_eq!(judge_failure(&execution, 1, true), escalated, "one attempt is no retry");
        execution.max_attempts = 3;
        assert_eq!(judge_failure(&execution, 1, true), Next::Retry(30_000));
        assert_eq!(judge_failure(&execution, 2, true), Next::Retry(60_000));
        assert_eq!(judge_failure(&execution, 3, true), escalated);
        assert_eq!(judge_failure(&execution, 1, false), escalated, "a rejection is not asked again");
        execution.backoff = Backoff::Fixed;
        assert_eq!(judge_failure(&execution, 2, true), Next::Retry(30_000));
        execution.on_failure = OnFailure::Abandon;
        assert_eq!(judge_failure(&execution, 3, true), Next::End { end: EntryEnd::Failed, escalates: false });
        execution.on_failure = OnFailure::DeadLetter;
        assert_eq!(
            judge_failure(&execution, 3, true),
            Next::End { end: EntryEnd::DeadLetter, escalates: false }
        );
    }

    #[test]
    fn unrepeatable_calls_are_settled() {
        let made = |outcome, is_repeatable, ends_run| MadeCall {
            call: RequestedCall {
                name: "crm__create_note".into(),
                arguments: "{\"a\":1}".into(),
                ..RequestedCall::default()
            },
            outcome,
            text: "result".into(),
            is_repeatable,
            ends_run,
        };
        let check = |made: MadeCall, expected: Option<CallOutcome>| {
            assert_eq!(settled_calls(&[made]).first().map(|call| call.outcome), expected);
        };
        check(made(CallOutcome::Ok, false, EndsRun::OnFault), Some(CallOutcome::Ok));
        check(made(CallOutcome::Ok, true, EndsRun::OnFault), None);
        check(made(CallOutcome::Ok, false, EndsRun::Never), None);
        check(made(CallOutcome::HandedOver, false, EndsRun::OnFault), Some(CallOutcome::HandedOver));
        check(made(CallOutcome::Unknown, false, EndsRun::OnFault), Some(CallOutcome::Failed));
        check(made(CallOutcome::TimedOut, false, EndsRun::OnFault), Some(CallOutcome::Failed));
        check(made(CallOutcome::ProtocolError, false, EndsRun::OnFault), Some(CallOutcome::Failed));
        check(made(CallOutcome::Unreachable, false, EndsRun::OnFault), None);
        check(made(CallOutcome::Failed, false, EndsRun::OnFault), None);
        let proposal = |outcome| {
            let proposal = made(outcome, false, EndsRun::Never);
            MadeCall { call: RequestedCall { name: LEARN.into(), ..proposal.call.clone() }, ..proposal }
        };
        check(proposal(CallOutcome::Ok), Some(CallOutcome::Ok));
        check(proposal(CallOutcome::Failed), None);
    }

    #[test]
    fn unknown_outcomes_need_unrepeatable_calls() {
        let calls = [
            made_call("crm__create_note", CallOutcome::Unknown, false),
            made_call("crm__create_note", CallOutcome::Unknown, false),
            made_call("crm__get_deal", CallOutcome::TimedOut, true),
            made_call("crm__move", CallOutcome::Unreachable, false),
            made_call("crm__tag", CallOutcome::Ok, false),
        ];
        let expected = json!({"operation": "crm.create_note", "inputs": {"a": 1}, "outcome": "unknown"});
        assert_eq!(unknown_outcomes(&calls), [expected]);
    }

    #[test]
    fn failed_calls_were_never_made() {
        let calls = [
            made_call("crm__create_note", CallOutcome::Failed, false),
            made_call("crm__create_note", CallOutcome::Failed, false),
            made_call("crm__move", CallOutcome::Failed, false),
            made_call("crm__move", CallOutcome::Ok, false),
            made_call("crm__get_deal", CallOutcome::Failed, true),
            made_call("crm__tag", CallOutcome::Unknown, false),
        ];
        let expected = json!({"operation": "crm.create_note", "inputs": {"a": 1}, "error": ""});
        assert_eq!(failed_calls(&calls), std::slice::from_ref(&expected));
        // Regression: a note that was created with other inputs hid the call that had failed.
        let mut other = made_call("crm__create_note", CallOutcome::Ok, false);
        other.call.arguments = "{\"a\":2}".into();
        assert_eq!(failed_calls(&[calls[0].clone(), other]), [expected]);
    }

    #[test]
    fn forms_of_delivery() {
        let results = Results {
            summary: "s".into(),
            outputs: json!({"urgency": "high"}).as_object().unwrap().clone(),
            problems: vec![],
        };
        let mut delivery = Delivery::resolve(&DeliveryFields::default(), &DeliveryFields::default());
        let check = |delivery: &Delivery, expected: Value| {
            assert_eq!(delivery_body(&results, &declared(), delivery), expected);
        };
        check(&delivery, json!({"summary": "s", "outputs": {"urgency": "high"}}));
        delivery.format = Format::Narrative;
        check(&delivery, json!({"summary": "s"}));
        delivery.format = Format::Structured;
        check(&delivery, json!({"outputs": {"urgency": "high"}}));
        assert_eq!(delivery_body(&results, &[], &delivery), json!({"summary": "s"}), "nothing is declared");
        delivery.sla = Some(openexperts::Length::seconds(60));
        assert_eq!(measure_lateness(&delivery, 60_000), None);
        assert_eq!(measure_lateness(&delivery, 60_001).unwrap().0["sla"], "60s");
    }
}
