//! Random runs: keeping and restoring one at any step changes nothing, and every run ends.

use proptest::prelude::*;

use super::tests::{calls, setup, text, tool};
use super::*;
use crate::approval::{Decision, Tier};
use crate::call::{CallOutcome, ToolEnd};
use crate::event::{ChildEnd, ModelReply};
use crate::failure::{FailureKind, ModelFailure};
use crate::setup::Executor;
use crate::step::ChildStep;
use tool_call_parser::PreferredDialects;

/// A choice of the world at a step.
#[derive(Clone, Debug)]
enum Chance {
    Answer,
    Calls(Vec<u8>),
    Refused,
    Blank,
    ModelFails(u8),
    ToolEnds(u8, usize),
    Crash,
    Cancel,
    GoOn,
}

fn chance() -> impl Strategy<Value = Chance> {
    prop_oneof![
        2 => Just(Chance::Answer),
        12 => proptest::collection::vec(0..4_u8, 1..4).prop_map(Chance::Calls),
        1 => Just(Chance::Refused),
        1 => Just(Chance::Blank),
        2 => (0..5_u8).prop_map(Chance::ModelFails),
        10 => (0..5_u8, 0..20_000_usize).prop_map(|(how, length)| Chance::ToolEnds(how, length)),
        2 => Just(Chance::Crash),
        1 => Just(Chance::Cancel),
        2 => Just(Chance::GoOn),
    ]
}

const TOOLS: [(&str, &str); 4] = [
    ("read", r#"{"path":"a"}"#),
    ("exec", r#"{"command":"ls"}"#),
    ("ask_user", r#"{"question":"?"}"#),
    ("ask_expert", r#"{"task":"?"}"#),
];

const SMALLER: ModelSizes =
    ModelSizes { window: 6_000, max_tokens: 500, is_harmony: true, dialects: PreferredDialects::NONE };

/// Returns the events that a chance amounts to at this step.
fn events(run: &Run, chance: &Chance) -> Vec<EventKind> {
    match (run.next(), chance) {
        (_, Chance::GoOn) => {
            vec![EventKind::TurnStarted(serde_json::json!({"role": "user", "content": "more"}))]
        }
        (Step::Finish(_), Chance::Refused) => vec![EventKind::NoteAdded("Undone.".into())],
        (Step::Finish(_), Chance::Blank) => vec![EventKind::ModelChanged(SMALLER)],
        (Step::Finish(_), Chance::Crash) => vec![EventKind::CompactionStarted],
        (Step::Finish(_), _) => vec![],
        (_, Chance::Cancel) => vec![EventKind::Cancelled],
        (Step::Act(Action::CallTool(_)), Chance::Crash) => vec![EventKind::ToolStarted, EventKind::Resumed],
        (_, Chance::Crash) => vec![EventKind::Resumed],
        (Step::Act(Action::Pause(_)), _) => vec![EventKind::PauseEnded],
        (Step::AwaitClient(suspension), _) => {
            let results =
                suspension.calls.iter().skip(1).map(|call| (call.id.clone(), "r".to_owned())).collect();
            vec![EventKind::ClientReturned {
                results,
                tail: vec![serde_json::json!({"role": "user", "content": "t"})],
            }]
        }
        (Step::Act(Action::CallTool(_)), Chance::ToolEnds(how, length)) => {
            let how = [
                CallOutcome::Ok,
                CallOutcome::Failed,
                CallOutcome::Denied,
                CallOutcome::Transient,
                CallOutcome::TimedOut,
            ][usize::from(*how)];
            vec![
                EventKind::ToolStarted,
                EventKind::ToolFinished(ToolEnd::new(how, "word ".repeat(length / 5), 5)),
            ]
        }
        (Step::Act(Action::CallTool(_)), _) => {
            vec![EventKind::ToolStarted, EventKind::ToolFinished(ToolEnd::new(CallOutcome::Ok, "x", 5))]
        }
        (Step::Act(Action::RequestApproval(request)), _) => vec![EventKind::ApprovalRequested(request)],
        (Step::Act(Action::HandOver(call)), _) => vec![EventKind::HandedOver(call)],
        (Step::AwaitApproval(_), Chance::Blank) => vec![EventKind::ApprovalEscalated],
        (Step::AwaitApproval(request), chance) => {
            let mut decision = Decision::approve_all(&request, "somebody");
            if matches!(chance, Chance::Refused | Chance::ModelFails(_)) {
                decision.approved.truncate(request.calls.len() / 2);
            }
            vec![EventKind::ApprovalDecided(decision)]
        }
        (Step::Act(Action::RunChild(step)), chance) => vec![child(step, chance)],
        (Step::Act(Action::CallModel(call)), chance) => match model(chance) {
            EventKind::ModelReplied(reply) if call.purpose == CallPurpose::Summary => {
                vec![EventKind::Summarised(reply)]
            }
            what => vec![what],
        },
    }
}

fn child(step: ChildStep, chance: &Chance) -> EventKind {
    match (step.child, chance) {
        (None, Chance::ModelFails(_)) => {
            EventKind::ToolFinished(ToolEnd::new(CallOutcome::Failed, "there is none", 0))
        }
        (None, _) => EventKind::ChildStarted { child: "run-child".into() },
        (Some(child), _) => {
            let outcome = Outcome { content: "done".into(), ..Outcome::default() };
            EventKind::ChildFinished(ChildEnd {
                child,
                outcome,
                tokens: Tokens::default(),
                worked: 7,
                made: Vec::new(),
            })
        }
    }
}

/// Returns the usual tools and a child run; `exec` has a tier.
fn supervised(tier: Tier) -> Setup {
    let mut setup = setup();
    setup.tools[1].tier = tier;
    setup.tools.push(tool("ask_expert", "task", Executor::Child));
    setup
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Auto), Just(Tier::Confirm), Just(Tier::Manual)]
}

fn model(chance: &Chance) -> EventKind {
    let kinds = [
        FailureKind::TimedOut,
        FailureKind::Transient,
        FailureKind::Overflow,
        FailureKind::Unreadable,
        FailureKind::Final,
    ];
    match chance {
        Chance::Calls(tools) => EventKind::ModelReplied(calls(
            &tools.iter().map(|tool| TOOLS[usize::from(*tool)]).collect::<Vec<_>>(),
        )),
        Chance::Refused => EventKind::ModelReplied(ModelReply {
            refused: vec![("nope".into(), "undeclared".into())],
            ..text("")
        }),
        Chance::Blank => EventKind::ModelReplied(text("")),
        Chance::ModelFails(kind) => EventKind::ModelFailed(ModelFailure {
            kind: kinds[usize::from(*kind)],
            status: 503,
            code: "c".into(),
            text: "This model's maximum context length is 7000 tokens.".into(),
            wait: None,
        }),
        _ => EventKind::ModelReplied(text("The answer.")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn restoring_at_any_step_changes_nothing(
        chances in proptest::collection::vec((chance(), 0..20_000_u64), 1..60),
        window in 5_000..40_000_u64,
        tier in tier(),
    ) {
        let mut setup = supervised(tier);
        (setup.limits.window, setup.limits.iterations) = (window, 12);
        let mut run = Run::new(setup);
        let (mut kept, mut at) = (Vec::new(), 1_000);
        for (chance, millis) in &chances {
            for what in events(&run, chance) {
                at += millis;
                let event = Event { at, kind: what };
                kept.push((at, serde_json::to_string(&event.kind).unwrap()));
                run.apply(event).unwrap();
                let setup = serde_json::from_str(&serde_json::to_string(run.setup()).unwrap()).unwrap();
                let events = kept.iter().map(|(at, what)| Event { at: *at, kind: serde_json::from_str(what).unwrap() });
                let restored = Run::restore(setup, events).unwrap();
                prop_assert_eq!(&restored, &run);
                prop_assert_eq!(restored.next(), run.next());
            }
        }
    }

    #[test]
    fn every_run_ends(chances in proptest::collection::vec(chance(), 300), millis in 1..500_u64, tier in tier()) {
        let mut setup = supervised(tier);
        (setup.limits.window, setup.limits.iterations) = (6_000, 12);
        let mut run = Run::new(setup);
        let mut at = 1_000;
        let endless = |chance: &&Chance| matches!(chance, Chance::Crash | Chance::GoOn);
        for chance in chances.iter().filter(|chance| !endless(chance)) {
            for what in events(&run, chance) {
                at += millis;
                run.apply(Event { at, kind: what }).unwrap();
            }
        }
        prop_assert!(run.outcome().is_some());
    }
}
