//! Every fault at every attempt on every kind of route, as one table; and that any history ends within its
//! bounds.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::config::FinalErrors;
use crate::outcome::AttemptOutcome;
use translate::{Fault, Remedy};
use upstream::{Upstream, UpstreamConfig};

const LIMITS: RecoveryConfig = RecoveryConfig {
    attempts: 2,
    within: Duration::from_mins(10),
    wait_for_upstream: Duration::from_mins(1),
    announce_waiting: false,
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
    has_recent_success: bool,
    steps: u32,
    budget: RepeatPermit,
    health: Health,
    can_change: bool,
}

const WORLD: World = World {
    has_spoken: false,
    another_upstream: false,
    has_recent_success: false,
    steps: 0,
    budget: RepeatPermit::GrantedAfter(Duration::ZERO),
    health: Health::Up,
    can_change: true,
};

impl World {
    /// Returns the result of looking this change up.
    fn found(self, change: Change) -> Change {
        if self.can_change { change } else { Change::Nothing }
    }
}

fn remedy() -> Change {
    Change::Remedy(Arc::new(Changed { remedy: Remedy::Repeat, body: Bytes::new() }))
}

/// A decision in a few words.
fn in_words(decision: &Decision) -> String {
    match decision {
        Decision::Attempt(NextAttempt { change, place, when }) => {
            let change = match change {
                Change::Remedy(_) => "Remedy".to_owned(),
                Change::Smaller(_) => "Smaller".to_owned(),
                Change::Adapt(_) => "Adapt".to_owned(),
                Change::Nothing => "Nothing".to_owned(),
            };
            format!("Attempt({change}, {place:?}, {when:?})")
        }
        decision => format!("{decision:?}"),
    }
}

/// An upstream whose circuit is open for five seconds after each attempt, although it worked a moment ago.
const OPEN: World =
    World { has_recent_success: true, budget: RepeatPermit::GrantedAfter(Duration::from_secs(5)), ..WORLD };

/// The decision once everything was looked up that it depends on.
fn settled(history: &History, world: World, now: Duration) -> Decision {
    let mut known = Known {
        has_spoken: world.has_spoken,
        another_upstream: world.another_upstream,
        has_recent_success: world.has_recent_success,
        steps: world.steps,
        ..Known::default()
    };
    for _ in 0..8 {
        match decide(history, &known, &LIMITS, now) {
            Decision::LookUp(Lookup::Budget) => known.budget = Some(world.budget),
            Decision::LookUp(Lookup::Health) => known.health = Some(world.health),
            Decision::LookUp(Lookup::Remedy) => known.remedy = Some(world.found(remedy())),
            Decision::LookUp(Lookup::Smaller) => {
                known.smaller = Some(world.found(Change::Smaller(Fit::default())));
            }
            Decision::LookUp(Lookup::Adaptation) => {
                known.adaptation = Some(world.found(Change::Adapt(Arc::new(adapt::Rule::ToolPattern))));
            }
            decision => return decision,
        }
    }
    panic!("it looks the same thing up again and again")
}

/// Plays a finding that comes back at every attempt; says what was decided, and how often the upstream was
/// asked.
fn play(finding: &Finding, world: World) -> (Vec<String>, usize) {
    let upstream = upstream();
    let (mut history, mut decisions, mut round, mut now) = (History::default(), vec![], 0, Duration::ZERO);
    loop {
        assert!(history.attempts.len() < 40, "it goes on and on after {finding:?}");
        let decision = settled(&history, world, now);
        let is_first = history.attempts.is_empty();
        if !is_first {
            decisions.push(in_words(&decision));
        }
        let Decision::Attempt(NextAttempt { change, place, when }) = decision else {
            return (decisions, history.attempts.len());
        };
        match when {
            RetryTime::Now => {}
            RetryTime::After(pause) => {
                now += pause;
                if pause > LONGEST_UNCOUNTED_PAUSE || matches!(finding, Finding::Failed(Failure::Limited, _))
                {
                    history.waited += pause;
                }
            }
            // It comes back after half of the time.
            RetryTime::Up(longest) => {
                (now, history.waited) = (now + longest / 2, history.waited + longest / 2);
            }
        }
        round += u32::from(!is_first && place == RetryTarget::NewRound && change == Change::Nothing);
        now += Duration::from_secs(1);
        history.attempts.push(past(&upstream, finding.clone(), round, matches!(change, Change::Remedy(_))));
    }
}

fn findings() -> Vec<(String, Finding)> {
    let mistake =
        |fault: Fault, salvage| (format!("{} ({salvage:?})", fault.name()), Finding::Mistake(fault, salvage));
    let mut findings = vec![
        mistake(Fault::Glitch, Salvage::Nothing),
        mistake(Fault::Empty, Salvage::Blank),
        mistake(Fault::CutReasoning, Salvage::Answer),
        mistake(Fault::UnknownTool("x".into()), Salvage::CorrectableCall),
    ];
    for failure in [
        Failure::Unreachable,
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
    for refusal in
        [Refusal::TooLarge, Refusal::Form, Refusal::ModelNotServed, Refusal::OwnKey, Refusal::Final]
    {
        findings.push((format!("{refusal:?}"), Finding::Refused(refusal)));
    }
    findings
}

#[test]
fn every_fault_at_every_attempt() {
    let worlds = [
        ("whole or silent, healthy", WORLD),
        ("whole or silent, down", World { health: Health::Down, ..WORLD }),
        ("the budget is spent", World { budget: RepeatPermit::Denied, ..WORLD }),
        ("nothing can be changed", World { can_change: false, ..WORLD }),
        ("a stream that has spoken", World { has_spoken: true, ..WORLD }),
        ("the upstream worked a moment ago", World { has_recent_success: true, ..WORLD }),
        ("the fourth step of a turn", World { steps: 3, ..WORLD }),
        ("the twelfth step, the circuit opens", World { steps: 11, ..OPEN }),
    ];
    let mut table = String::new();
    for (name, world) in worlds {
        let _ = writeln!(table, "== {name}");
        for (fault, finding) in findings() {
            let (decisions, asked) = play(&finding, world);
            let _ = writeln!(table, "{fault}: asked {asked} ×, {}", decisions.join(", "));
        }
    }
    insta::assert_snapshot!(table);
}

/// Plays bad luck: mistakes and failures that differ from one attempt to the next, each attempt as long as
/// `attempt`.
fn play_bad_luck(world: World, attempt: Duration) -> usize {
    let mistake = |fault| Finding::Mistake(fault, Salvage::Nothing);
    let luck = [
        mistake(Fault::Glitch),
        Finding::Failed(Failure::Broken, None),
        mistake(Fault::Empty),
        Finding::Failed(Failure::Closed, None),
        mistake(Fault::OnlyReasoning),
    ];
    let (upstream, mut history, mut now, mut round) = (upstream(), History::default(), Duration::ZERO, 0);
    for finding in luck.iter().cycle() {
        let Decision::Attempt(NextAttempt { change, .. }) = settled(&history, world, now) else { break };
        round += u32::from(!history.attempts.is_empty() && change == Change::Nothing);
        history.attempts.push(past(&upstream, finding.clone(), round, matches!(change, Change::Remedy(_))));
        now += attempt;
    }
    history.attempts.len()
}

#[test]
fn earlier_steps_buy_attempts() {
    let (fast, slow) = (Duration::from_secs(1), Duration::from_secs(50));
    let works = World { has_recent_success: true, ..WORLD };
    for (world, attempt, asked) in [
        (WORLD, fast, 5),
        (World { steps: 3, ..WORLD }, fast, 6),
        (works, fast, 9),
        (World { steps: 3, ..works }, fast, 12),
        (World { steps: 50, ..works }, fast, 19),
        // Time is a bound of its own.
        (works, slow, 5),
        (World { steps: 3, ..works }, slow, 5),
        (World { steps: 10, ..works }, slow, 8),
        // A mistake without a remedy is not asked again.
        (World { can_change: false, steps: 9, ..works }, fast, 1),
    ] {
        assert_eq!(play_bad_luck(world, attempt), asked, "{} steps, {attempt:?} each", world.steps);
    }
}

#[test]
fn a_correctable_call_leaves_soon() {
    let world = World { has_recent_success: true, steps: 9, ..WORLD };
    let correctable = Finding::Mistake(Fault::UnknownTool("x".into()), Salvage::CorrectableCall);
    assert_eq!(play(&correctable, world).1, 3, "as at the first step");
}

#[test]
fn other_upstreams_come_before_repeats() {
    let world = World { another_upstream: true, ..WORLD };
    for (_, finding) in findings() {
        let mut history = History::default();
        history.attempts.push(past(&upstream(), finding.clone(), 0, false));
        let next = settled(&history, world, Duration::ZERO);
        let goes_on = next == Decision::attempt(Change::Nothing, RetryTarget::Next, RetryTime::Now);
        let expected = matches!(finding, Finding::Refused(Refusal::ModelNotServed | Refusal::OwnKey))
            || matches!(&finding, Finding::Failed(failure, _) if *failure != Failure::Slow);
        assert_eq!(goes_on, expected, "{finding:?}: {next:?}");
    }
}

#[test]
fn a_refused_change_is_not_the_answer() {
    let upstream = upstream();
    let mut history = History::default();
    history.attempts.push(past(&upstream, Finding::Mistake(Fault::Empty, Salvage::Answer), 0, false));
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
        sequence in prop::collection::vec((any_finding(), any::<[bool; 4]>()), 60),
        upstreams in 1..4_u32,
        (works, steps) in (any::<bool>(), 0..20_u32),
    ) {
        let upstream = upstream();
        let (mut history, mut round, mut asked_in_round) = (History::default(), 0, 0);
        let mut ended = false;
        for (finding, [budget, down, change, spoken]) in sequence {
            let world = World {
                has_spoken: spoken && history.attempts.len() > 4,
                another_upstream: asked_in_round > 0 && asked_in_round < upstreams,
                budget: if budget { WORLD.budget } else { RepeatPermit::Denied },
                has_recent_success: works,
                steps,
                health: if down { Health::Down } else { Health::Up },
                can_change: change,
            };
            let next = settled(&history, world, Duration::from_secs(1));
            let Decision::Attempt(NextAttempt { change, place, when }) = next else {
                ended = true;
                break;
            };
            if let RetryTime::Up(longest) = when {
                prop_assert!(history.waited + longest <= LIMITS.wait_for_upstream);
                history.waited += longest;
            }
            match place {
                RetryTarget::NewRound => {
                    round += u32::from(!history.attempts.is_empty() && change == Change::Nothing);
                    asked_in_round = 1;
                }
                RetryTarget::Next => asked_in_round += 1,
                RetryTarget::Same => {}
            }
            history.attempts.push(past(&upstream, finding, round, matches!(change, Change::Remedy(_))));
        }
        prop_assert!(ended, "it goes on and on: {:?}", history.attempts.len());
        let extra = steps.min(EXTRA_FOR_STEPS) + if works { EXTRA_WHERE_IT_WORKS } else { 0 };
        prop_assert!(round <= REPEATS + extra);
        let bound = (1 + REPEATS + LIMITS.attempts + extra) * upstreams + upstreams + 8;
        prop_assert!(history.attempts.len() <= bound as usize, "{} attempts", history.attempts.len());
    }
}
