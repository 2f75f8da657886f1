//! Consent, drafts and child runs in the pure run.

use super::*;
use crate::approval::Tier;
use crate::budget::Tokens;
use crate::event::{Event, EventKind, ModelReply};
use crate::run::tests::{calls, here, setup, text, tool};
use crate::setup::{EndsRun, Executor, SettledCall, Setup};
use crate::step::Step;

const SEND: (&str, &str) = ("send", r#"{"to":"a"}"#);
const BOOK: (&str, &str) = ("book", r#"{"room":"1"}"#);
const READ: (&str, &str) = ("read", r#"{"path":"a.txt"}"#);
const DRAFT: (&str, &str) = ("publish", r#"{"text":"t"}"#);
const CHILD: (&str, &str) = ("ask_expert", r#"{"task":"count"}"#);

struct Sim {
    run: Run,
    at: u64,
    kept: Vec<Event>,
}

fn sim(change: impl FnOnce(&mut Setup)) -> Sim {
    let mut setup = setup();
    for (name, argument, tier) in
        [("send", "to", Tier::Confirm), ("book", "room", Tier::Confirm), ("publish", "text", Tier::Manual)]
    {
        setup.tools.push(crate::setup::OfferedTool { tier, ..tool(name, argument, here(false)) });
    }
    setup.tools.push(tool("ask_expert", "task", Executor::Child));
    change(&mut setup);
    Sim { at: setup.at, run: Run::new(setup), kept: Vec::new() }
}

impl Sim {
    fn after(&mut self, millis: u64, kind: EventKind) -> &mut Self {
        self.at += millis;
        let event = Event { at: self.at, kind };
        self.run.apply(event.clone()).unwrap();
        self.kept.push(event);
        self
    }

    fn refuses(&mut self, kind: &EventKind) {
        let before = self.run.clone();
        assert!(self.run.apply(Event { at: self.at, kind: kind.clone() }).is_err(), "{kind:?}");
        assert_eq!(self.run, before);
    }

    fn runs(&mut self, name: &str) -> &mut Self {
        let Step::Act(Action::CallTool(step)) = self.run.next() else { panic!("{:?}", self.run.next()) };
        assert_eq!(step.call.name, name);
        let ended = ToolEnd::new(CallOutcome::Ok, format!("{name} done"), 1);
        self.after(0, EventKind::ToolStarted).after(1, EventKind::ToolFinished(ended))
    }

    fn request(&self) -> ApprovalRequest {
        match self.run.next() {
            Step::Act(Action::RequestApproval(request)) | Step::AwaitApproval(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn requests(&mut self) -> ApprovalRequest {
        let request = self.request();
        self.after(0, EventKind::ApprovalRequested(request.clone()));
        request
    }

    fn results(&self) -> Vec<String> {
        let Step::Act(Action::CallModel(call)) = self.run.next() else { panic!("{:?}", self.run.next()) };
        let results = call.messages.iter().filter(|message| message["role"] == "tool");
        results.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_request_always_has_a_reason() {
    let reason = |content: &str, reasoning: &str| {
        let mut sim = sim(|_| {});
        let reply = ModelReply { content: content.into(), reasoning: reasoning.into(), ..calls(&[SEND]) };
        sim.after(0, EventKind::ModelReplied(reply));
        let request = sim.requests();
        assert_eq!(request.content, content.trim());
        request.reason
    };
    assert_eq!(reason("I write.", "Hm."), "I write.");
    assert_eq!(reason(" ", "She asked for it."), "none written; its reasoning: She asked for it.");
    assert!(reason("", &"ä".repeat(9_000)).ends_with(&format!(": …{}", "ä".repeat(500))));
    assert_eq!(reason("", ""), "none written");
}

fn outcome(text: &str) -> Outcome {
    Outcome { content: text.into(), ..Outcome::default() }
}

#[test]
fn one_request_covers_all_calls() {
    let mut sim = sim(|_| {});
    let mut reply = calls(&[READ, SEND, BOOK]);
    reply.content = "I write to them and book.".into();
    sim.after(0, EventKind::ModelReplied(reply)).runs("read");
    let request = sim.requests();
    let names: Vec<&str> = request.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!((names, request.reason.as_str()), (vec!["send", "book"], "I write to them and book."));
    assert_eq!(sim.run.next(), Step::AwaitApproval(request.clone()));
    let approved = vec![request.calls[1].id.clone()];
    let comment = Some("not to them".to_owned());
    let decision =
        Decision { request: request.id.clone(), approved, by: "anna".into(), comment, ..Decision::default() };
    sim.after(90_000_000, EventKind::ApprovalDecided(decision)).runs("book");
    assert_eq!(
        sim.results(),
        [
            "read done",
            "Error: not run: the person who was asked rejected the call: not to them",
            "book done\n\n[The person who approved this call says: not to them]"
        ]
    );
    assert!(sim.run.working_time() < 1_000, "the clock stood still while a person was awaited");
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    assert_ne!(sim.request().id, request.id, "consent holds once");
}

#[test]
fn a_decision_fits_its_own_request_only() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    sim.refuses(&EventKind::ToolStarted);
    sim.refuses(&EventKind::HandedOver(RequestedCall::default()));
    let request = sim.requests();
    sim.refuses(&EventKind::ToolStarted);
    sim.refuses(&EventKind::ApprovalDecided(Decision { request: "another".into(), ..Decision::default() }));
    sim.after(1, EventKind::Resumed);
    assert_eq!(sim.run.next(), Step::AwaitApproval(request));
}

/// The reply may be read otherwise by a later version; what the person saw is what runs.
#[test]
fn exactly_the_recorded_inputs_run() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    let mut request = sim.request();
    request.calls[0].arguments = r#"{"to":"as it was shown"}"#.into();
    sim.after(0, EventKind::ApprovalRequested(request.clone()));
    sim.after(1, EventKind::ApprovalDecided(Decision::approve_all(&request, "anna")));
    let Step::Act(Action::CallTool(step)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
    assert_eq!(
        (step.call.arguments.as_str(), step.approved_by.as_deref()),
        (r#"{"to":"as it was shown"}"#, Some("anna"))
    );
    let restored = Run::restore(sim.run.setup().clone(), sim.kept).unwrap();
    assert_eq!(restored, sim.run);
}

/// A person could not correct a call, only reject it and hope for a better one.
#[test]
fn a_person_can_change_the_inputs() {
    let mut sim = sim(|setup| setup.approvals.on_rejection = OnRejection::EndRun);
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    let request = sim.requests();
    let mut decision = Decision::approve_all(&request, "anna");
    let id = request.calls[0].id.clone();
    decision.change_inputs(BTreeMap::from([(id, r#"{"to":"b"}"#.to_owned())]));
    assert_eq!(decision.approved, Vec::<String>::new(), "an older version rejects it");
    sim.after(1, EventKind::ApprovalDecided(decision));
    let Step::Act(Action::CallTool(step)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
    assert_eq!((step.call.arguments.as_str(), step.approved_by.as_deref()), (r#"{"to":"b"}"#, Some("anna")));
    sim.runs("send");
    let told = "send done\n\n[The person who approved this call changed its inputs to: {\"to\":\"b\"}]";
    assert_eq!(sim.results(), [told]);
    let restored = Run::restore(sim.run.setup().clone(), sim.kept).unwrap();
    assert_eq!(restored, sim.run);
}

#[test]
fn a_rejection_or_timeout_can_end_the_run() {
    for (by, code) in [("anna", "approval_rejected"), (Decision::TIMEOUT, "approval_timeout")] {
        let mut sim = sim(|setup| {
            setup.approvals.on_rejection = OnRejection::EndRun;
            setup.approvals.timeout = Some(60_000);
        });
        sim.after(0, EventKind::ModelReplied(calls(&[SEND, BOOK])));
        let request = sim.requests();
        assert_eq!(request.expires, Some(sim.at + 60_000));
        let decision = Decision { request: request.id, by: by.into(), ..Decision::default() };
        sim.after(60_000, EventKind::ApprovalDecided(decision));
        let failure = sim.run.outcome().unwrap().failure.clone().unwrap();
        assert_eq!((failure.code.as_str(), failure.status), (code, 403));
        let named = r#"send {"to":"a"}, book {"room":"1"}: not run"#;
        assert!(failure.text.starts_with(named), "{}", failure.text);
    }
}

/// A person who approved one of two calls got neither.
#[test]
fn approved_calls_run_before_a_rejection_ends_it() {
    for outcome in [CallOutcome::Ok, CallOutcome::Unreachable] {
        let mut sim = sim(|setup| {
            setup.approvals.on_rejection = OnRejection::EndRun;
            setup.tools.iter_mut().for_each(|tool| tool.ends_run = EndsRun::OnFault);
        });
        sim.after(0, EventKind::ModelReplied(calls(&[SEND, READ, BOOK])));
        let request = sim.requests();
        let approved = vec![request.calls[1].id.clone()];
        let comment = Some("not to them".to_owned());
        let decision =
            Decision { request: request.id, approved, by: "anna".into(), comment, ..Decision::default() };
        sim.after(1, EventKind::ApprovalDecided(decision));
        let Step::Act(Action::CallTool(step)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
        assert_eq!((step.call.name.as_str(), step.approved_by.as_deref()), ("book", Some("anna")));
        let ended = ToolEnd::new(outcome, "booked or not", 1);
        sim.after(0, EventKind::ToolStarted).after(1, EventKind::ToolFinished(ended));
        let failure = sim.run.outcome().unwrap().failure.clone().unwrap();
        assert_eq!(failure.code, "approval_rejected", "it is not tried again");
        let end = match outcome {
            CallOutcome::Ok => "made, because it was approved",
            _ => "approved, but it did not succeed: booked or not",
        };
        let rejected = r#"send {"to":"a"}: not run: the person who was asked rejected the call: not to them"#;
        assert_eq!(failure.text, format!("{rejected}; book {{\"room\":\"1\"}}: {end}"));
        let restored = Run::restore(sim.run.setup().clone(), sim.kept).unwrap();
        assert_eq!(restored, sim.run);
    }
}

#[test]
fn a_rejected_proposal_does_not_end_the_run() {
    for (proposal, ends) in [("send", false), ("book", true)] {
        let mut sim = sim(|setup| {
            setup.approvals.on_rejection = OnRejection::EndRun;
            setup.approvals.proposals.insert(proposal.into());
        });
        sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
        let request = sim.requests();
        assert_eq!(request.on_rejection == OnRejection::EndRun, ends, "the request says so to the person");
        let decision = Decision { request: request.id, by: "anna".into(), ..Decision::default() };
        sim.after(1, EventKind::ApprovalDecided(decision));
        assert_eq!(sim.run.outcome().is_some(), ends, "{proposal}");
    }
}

#[test]
fn late_consent_counts_after_an_escalation() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    let request = sim.requests();
    sim.after(5, EventKind::ApprovalEscalated);
    assert!(sim.run.is_escalated() && sim.run.outcome().is_none());
    sim.after(5, EventKind::ApprovalDecided(Decision::approve_all(&request, "anna"))).runs("send");
    assert_eq!(sim.results(), ["send done"]);
}

#[test]
fn a_draft_is_handed_over_and_never_runs() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[DRAFT, READ])));
    let Step::Act(Action::HandOver(call)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
    sim.refuses(&EventKind::ToolStarted);
    sim.after(0, EventKind::HandedOver(call)).runs("read");
    assert!(
        sim.results()[0].starts_with("handed over to a person as a draft, not executed"),
        "{:?}",
        sim.results()
    );
    assert_eq!(sim.run.iterations()[0].tools[0].outcome, "handed_over");
}

#[test]
fn a_cancel_and_a_next_turn_end_the_waiting() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    sim.requests();
    sim.after(1, EventKind::TurnStarted(serde_json::json!({"role": "user", "content": "Leave it."})));
    assert_eq!(sim.run.awaited_approval(), None);
    assert!(sim.results()[0].contains("not run"), "{:?}", sim.results());
    sim.after(0, EventKind::ModelReplied(calls(&[SEND])));
    sim.requests();
    sim.after(1, EventKind::Cancelled);
    assert!(sim.run.outcome().unwrap().cancelled);
}

#[test]
fn a_child_run_has_the_place_of_a_call() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[CHILD, READ])));
    let spent = sim.run.spent_tokens().total();
    let Step::Act(Action::RunChild(step)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
    assert_eq!((step.child, step.call.arguments.as_str()), (None, r#"{"task":"count"}"#));
    sim.after(0, EventKind::ChildStarted { child: "run-1".into() }).after(9_000, EventKind::Resumed);
    let Step::Act(Action::RunChild(step)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
    assert_eq!(step.child.as_deref(), Some("run-1"), "it is resumed, not begun again");
    let tokens = Tokens { prompt: 1_000, completion: 1, ..Tokens::default() };
    let end = ChildEnd {
        child: "run-1".into(),
        outcome: outcome("There are 3."),
        tokens,
        worked: 40,
        made: Vec::new(),
    };
    sim.refuses(&EventKind::ChildFinished(ChildEnd { child: "run-2".into(), ..end.clone() }));
    sim.after(999_999, EventKind::ChildFinished(end)).runs("read");
    assert_eq!(sim.results(), ["There are 3.", "read done"]);
    assert_eq!((sim.run.spent_tokens().total() - spent, sim.run.working_time()), (1_001, 41));
    sim.after(0, EventKind::ModelReplied(text("Three.")));
    assert_eq!(sim.run.outcome().unwrap().content, "Three.");
}

#[test]
fn a_failed_child_is_an_error_for_the_model() {
    let mut sim = sim(|_| {});
    sim.after(0, EventKind::ModelReplied(calls(&[CHILD, CHILD])));
    let text = "no such expert".to_owned();
    sim.after(0, EventKind::ToolFinished(ToolEnd::new(CallOutcome::Failed, text, 0)));
    sim.after(0, EventKind::ChildStarted { child: "run-1".into() });
    let outcome = Outcome { cancelled: true, ..outcome("") };
    let end =
        ChildEnd { child: "run-1".into(), outcome, tokens: Tokens::default(), worked: 0, made: Vec::new() };
    sim.after(0, EventKind::ChildFinished(end));
    assert_eq!(sim.results(), ["Error: no such expert", "Error: [respool: the run was cancelled]"]);
}

/// The same draft is handed over once, one call is asked about once, and what a child run made its parent
/// does not make.
#[test]
fn drafts_approved_calls_and_calls_of_children_happen_once() {
    let mut sim = sim(|setup| {
        setup.calls_once = true;
        setup.tools.iter_mut().for_each(|tool| tool.ends_run = EndsRun::OnFault);
    });
    sim.after(0, EventKind::ModelReplied(calls(&[DRAFT, DRAFT, SEND, SEND])));
    let Step::Act(Action::HandOver(call)) = sim.run.next() else { panic!("{:?}", sim.run.next()) };
    sim.after(0, EventKind::HandedOver(call));
    let request = sim.requests();
    assert_eq!(request.calls.len(), 1, "{request:?}");
    sim.after(1, EventKind::ApprovalDecided(Decision::approve_all(&request, "anna"))).runs("send");
    let results = sim.results();
    assert!(results[1].starts_with("handed over to a person as a draft before"), "{results:?}");
    assert!(results[3].ends_with("not made again]\nsend done"), "{results:?}");

    sim.after(0, EventKind::ModelReplied(calls(&[CHILD, BOOK])));
    sim.after(0, EventKind::ChildStarted { child: "run-1".into() });
    let made = vec![SettledCall {
        name: "book".into(),
        arguments: serde_json::json!({"room": "1"}),
        outcome: CallOutcome::Ok,
        text: "booked by the child".into(),
    }];
    let end = ChildEnd {
        child: "run-1".into(),
        outcome: outcome("Done."),
        tokens: Tokens::default(),
        worked: 1,
        made,
    };
    sim.after(1, EventKind::ChildFinished(end));
    assert_eq!(sim.results()[5], "booked by the child");
    let restored = Run::restore(sim.run.setup().clone(), sim.kept).unwrap();
    assert_eq!(restored, sim.run);
}
