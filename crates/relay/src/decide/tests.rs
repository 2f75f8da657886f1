//! Every fault at every attempt on every kind of route, as one table; and that any history ends within its bounds.

use std::fmt::Write as _;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::config::FinalErrors;
use crate::outcome::AttemptOutcome;
use translate::Fault;
use upstream::{Upstream, UpstreamConfig};

const LIMITS: RecoveryConfig = RecoveryConfig {
    attempts: 2,
    within: Duration::from_mins(10),
    wait_for_upstream: Duration::from_mins(1),
    final_errors: FinalErrors::Auto,
    reasoning_memory: true,
};

fn upstream() -> Arc<Upstream> {
    Arc::new(Upstream::new(&UpstreamConfig::default()).unwrap())
}

fn past(upstream: &Arc<Upstream>, finding: Finding, round: u32, is_changed: bool) -> AttemptOutcome {
    let upstream = Arc::clone(upstream);
    AttemptOutcome { upstream, finding, round, is_changed, error: None, usage: None, reply: None }
}

/// Answers every look-up the same way.
#[derive(Clone, Copy)]
struct World {
    has_spoken: bool,
    another_upstream: bool,
    budget: bool,
    health: Health,
    can_change: bool,
}

const WORLD: World =
    World { has_spoken: false, another_upstream: false, budget: true, health: Health::Up, can_change: true };

/// The decision once everything was looked up that it depends on.
fn settled(history: &History, world: World, now: Duration) -> Decision {
    let mut known =
        Known { has_spoken: world.has_spoken, another_upstream: world.another_upstream, ..Known::default() };
    for _ in 0..8 {
        match decide(history, known, &LIMITS, now) {
            Decision::LookUp(Lookup::Budget) => known.budget = Some(world.budget),
            Decision::LookUp(Lookup::Health) => known.health = Some(world.health),
            Decision::LookUp(Lookup::Remedy) => known.remedy = Some(world.can_change),
            Decision::LookUp(Lookup::Smaller) => known.smaller = Some(world.can_change),
            Decision::LookUp(Lookup::Leaner) => known.leaner = Some(world.can_change),
            decision => return decision,
        }
    }
    panic!("it looks the same thing up again and again")
}

/// Plays a finding that comes back at every attempt; says what was decided, and how often the upstream was asked.
fn play(finding: &Finding, world: World) -> (Vec<Decision>, usize) {
    let upstream = upstream();
    let (mut history, mut decisions, mut round, mut now) = (History::default(), vec![], 0, Duration::ZERO);
    loop {
        assert!(history.attempts.len() < 40, "it goes on and on after {finding:?}");
        let decision = settled(&history, world, now);
        let Decision::Retry(change, place, when) = decision else {
            decisions.push(decision);
            return (decisions, history.attempts.len());
        };
        let is_first = history.attempts.is_empty();
        if !is_first {
            decisions.push(decision);
        }
        match when {
            When::Now => {}
            When::After(pause) => {
                now += pause;
                if matches!(finding, Finding::Failed(Failure::Limited, _)) {
                    history.waited += pause;
                }
            }
            // It comes back after half of the time.
            When::Up(longest) => (now, history.waited) = (now + longest / 2, history.waited + longest / 2),
        }
        round += u32::from(!is_first && place == Place::Anew && change == Change::Nothing);
        now += Duration::from_secs(1);
        history.attempts.push(past(&upstream, finding.clone(), round, change == Change::Remedy));
    }
}

fn findings() -> Vec<(String, Finding)> {
    let mistake =
        |fault: Fault, shows| (format!("{} ({shows:?})", fault.name()), Finding::Mistake(fault, shows));
    let mut findings = vec![
        mistake(Fault::Glitch, Shows::Nothing),
        mistake(Fault::Empty, Shows::Blank),
        mistake(Fault::CutReasoning, Shows::Answer),
        mistake(Fault::UnknownTool("x".into()), Shows::CorrectableCall),
    ];
    for failure in [
        Failure::Absent,
        Failure::Unavailable,
        Failure::GatewayTimeout,
        Failure::Limited,
        Failure::Closed,
        Failure::Failed,
        Failure::Broken,
        Failure::Slow,
        Failure::Unusable,
    ] {
        findings.push((format!("{failure:?}"), Finding::Failed(failure, None)));
    }
    let pause = Some(Duration::from_secs(3));
    findings.push(("Unavailable, 3 s".into(), Finding::Failed(Failure::Unavailable, pause)));
    findings.push(("Limited, 30 s".into(), Finding::Failed(Failure::Limited, Some(Duration::from_secs(30)))));
    findings.push(("Limited, 90 s".into(), Finding::Failed(Failure::Limited, Some(Duration::from_secs(90)))));
    for refusal in [Refusal::TooLarge, Refusal::Form, Refusal::NotHere, Refusal::Final] {
        findings.push((format!("{refusal:?}"), Finding::Refused(refusal)));
    }
    findings
}

#[test]
fn every_fault_at_every_attempt() {
    let worlds = [
        ("whole or silent, healthy", WORLD),
        ("whole or silent, down", World { health: Health::Down, ..WORLD }),
        ("the budget is spent", World { budget: false, ..WORLD }),
        ("nothing can be changed", World { can_change: false, ..WORLD }),
        ("a stream that has spoken", World { has_spoken: true, ..WORLD }),
    ];
    let mut table = String::new();
    for (name, world) in worlds {
        let _ = writeln!(table, "== {name}");
        for (fault, finding) in findings() {
            let (decisions, asked) = play(&finding, world);
            let _ = writeln!(table, "{fault}: asked {asked} ×, {decisions:?}");
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn another_upstream_is_asked_before_anything_is_repeated() {
    let world = World { another_upstream: true, ..WORLD };
    for (_, finding) in findings() {
        let mut history = History::default();
        history.attempts.push(past(&upstream(), finding.clone(), 0, false));
        let next = settled(&history, world, Duration::ZERO);
        let goes_on = next == Decision::Retry(Change::Nothing, Place::Next, When::Now);
        let expected = matches!(finding, Finding::Refused(Refusal::NotHere))
            || matches!(&finding, Finding::Failed(failure, _) if *failure != Failure::Slow);
        assert_eq!(goes_on, expected, "{finding:?}: {next:?}");
    }
}

#[test]
fn what_an_upstream_says_to_a_changed_request_is_not_the_answer() {
    let upstream = upstream();
    let mut history = History::default();
    history.attempts.push(past(&upstream, Finding::Mistake(Fault::Empty, Shows::Answer), 0, false));
    history.attempts.push(past(&upstream, Finding::Refused(Refusal::Final), 0, true));
    assert_eq!(settled(&history, WORLD, Duration::ZERO), Decision::Deliver(0));
}

fn any_finding() -> impl Strategy<Value = Finding> {
    prop::sample::select(findings().into_iter().map(|(_, finding)| finding).collect::<Vec<_>>())
}

proptest! {
    /// Whatever happens, in whatever order: a request ends, with few requests to its upstreams.
    #[test]
    fn any_history_ends_within_its_bounds(
        sequence in prop::collection::vec((any_finding(), any::<[bool; 4]>()), 40),
        upstreams in 1..4_u32,
    ) {
        let upstream = upstream();
        let (mut history, mut round, mut asked_in_round, mut learnt) = (History::default(), 0, 0, 0);
        let mut ended = false;
        for (finding, [budget, down, change, spoken]) in sequence {
            let world = World {
                has_spoken: spoken && history.attempts.len() > 4,
                another_upstream: asked_in_round > 0 && asked_in_round < upstreams,
                budget,
                health: if down { Health::Down } else { Health::Up },
                can_change: change && learnt < upstreams,
            };
            let Decision::Retry(change, place, when) = settled(&history, world, Duration::from_secs(1)) else {
                ended = true;
                break;
            };
            if let When::Up(longest) = when {
                prop_assert!(history.waited + longest <= LIMITS.wait_for_upstream);
                history.waited += longest;
            }
            learnt += u32::from(change == Change::Leaner);
            match place {
                Place::Anew => {
                    round += u32::from(!history.attempts.is_empty() && change == Change::Nothing);
                    asked_in_round = 1;
                }
                Place::Next => asked_in_round += 1,
                Place::Same => {}
            }
            history.attempts.push(past(&upstream, finding, round, change == Change::Remedy));
        }
        prop_assert!(ended, "it goes on and on: {:?}", history.attempts.len());
        prop_assert!(round <= REPEATS);
        let bound = (1 + REPEATS + LIMITS.attempts) * upstreams + upstreams + 8;
        prop_assert!(history.attempts.len() <= bound as usize, "{} attempts", history.attempts.len());
    }
}
