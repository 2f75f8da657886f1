//! The one place that knows how often a request is tried, what is changed, where it goes and when: a pure
//! function of the attempts of a request. `exchange` executes its decisions, for whole replies, streams and
//! agents alike.
//!
//! The model's mistakes are asked again `recovery.attempts` times, each time changed so that it helps. An
//! upstream's own failures are repeated at most [`REPEATS`] times, within the budget that all requests to
//! that upstream share. A server that is starting is waited for, and then the request is sent again. What has
//! reached the client is never asked again.
//!
//! A few attempts more are worth it where a turn's earlier steps would be lost with this one, or where the
//! upstream has just shown that it works: bad luck ends, an outage does not. They are bounded in number and
//! in time.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Changed, Fit};
use super::config::RecoveryConfig;
use super::outcome::{Finding, History, Refusal};
use adapt::Rule;
use translate::Salvage;
use upstream::{Failure, Health, RepeatPermit};

/// How often a request is sent again because of an upstream's own failures.
pub(super) const REPEATS: u32 = 2;

/// A reply that broke off costs a generation each time.
const REPEATS_OF_BROKEN: u32 = 1;

/// The pauses before repeats. The last one is that of all that follow.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(800),
    Duration::from_millis(1_600),
    Duration::from_millis(3_200),
    Duration::from_secs(5),
];

/// A longer pause counts as waiting for the upstream.
pub(super) const LONGEST_UNCOUNTED_PAUSE: Duration = Duration::from_secs(1);

/// More attempts than usual at an upstream that has just given a useful reply.
const EXTRA_WHERE_IT_WORKS: u32 = 6;
/// More attempts than usual for the earlier steps of a turn, one for each, at most.
const EXTRA_FOR_STEPS: u32 = 10;
/// No extra attempt begins this long after the request came.
const EXTRA_WITHIN: Duration = Duration::from_mins(1);
/// Each earlier step of the turn makes that longer.
const EXTRA_WITHIN_PER_STEP: Duration = Duration::from_secs(30);

/// The pauses after a 429 that names none.
const PAUSES_WHEN_LIMITED: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(6)];

/// How often one request is made smaller.
const REFITS: usize = 4;

/// How many forms of a request are tried when upstreams refuse its size or its form.
const FORMS: usize = 8;

/// How many rules are tried for one request. Each removes one named cause.
const RULES: usize = 4;

/// Facts that the history does not have. `None`: not looked up since the last attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Something of a reply has reached the client.
    pub(super) has_spoken: bool,
    /// Another upstream serves the model and was not asked in this round.
    pub(super) another_upstream: bool,
    /// The upstream gave a useful reply a moment ago.
    pub(super) has_recent_success: bool,
    /// Earlier steps of the client's turn, which are lost if this request fails.
    pub(super) steps: u32,
    /// Whether the upstream's budget permits a repeat. Looking it up draws on the budget.
    pub(super) budget: Option<RepeatPermit>,
    /// The result of a probe of the upstream.
    pub(super) health: Option<Health>,
    /// The change that may keep the model from its mistake, or `Change::Nothing`.
    pub(super) remedy: Option<Change>,
    /// The change that makes the request smaller, or `Change::Nothing`.
    pub(super) smaller: Option<Change>,
    /// `Change::Adapt` with the rule that avoids what the upstream refuses, or `Change::Nothing`.
    pub(super) adaptation: Option<Change>,
}

/// A fact that the next decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Budget,
    Health,
    Remedy,
    Smaller,
    Adaptation,
}

/// The next attempt: what is changed for it, where it goes, and when.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NextAttempt {
    pub(super) change: Change,
    pub(super) place: RetryTarget,
    pub(super) when: RetryTime,
}

/// The change that the next attempt makes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// No change: the same request again.
    Nothing,
    /// The client's request, as the remedy for the model's last mistake changes it.
    Remedy(Arc<Changed>),
    /// It is made to fit the model's window.
    Smaller(Fit),
    /// It is adapted to the upstream by one rule more.
    Adapt(Arc<Rule>),
}

/// Where the next attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryTarget {
    /// To an upstream that was not asked in this round.
    Next,
    /// To the same upstream.
    Same,
    /// To any that serves the model: a new round begins.
    NewRound,
}

/// When the next attempt begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryTime {
    Now,
    /// After a pause.
    After(Duration),
    /// Once the upstream is up, which is waited for at most this long.
    Up(Duration),
}

/// The next step of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// Ask, again or for the first time.
    Attempt(NextAttempt),
    /// The reply of this attempt leaves.
    Deliver(usize),
    /// The error of the last attempt leaves; after a changed request, that of the mistake before it.
    Fail,
    /// It depends on this.
    LookUp(Lookup),
}

impl Decision {
    fn attempt(change: Change, place: RetryTarget, when: RetryTime) -> Self {
        Self::Attempt(NextAttempt { change, place, when })
    }
}

/// Decides the step that follows `history`. `now`: the time since the request came.
pub(super) fn decide(history: &History, known: &Known, limits: &RecoveryConfig, now: Duration) -> Decision {
    let Some(last) = history.last() else {
        return Decision::attempt(Change::Nothing, RetryTarget::NewRound, RetryTime::Now);
    };
    match last.finding {
        Finding::Useful => Decision::Deliver(history.attempts.len() - 1),
        // A reply that has spoken is the only one there can be.
        Finding::Mistake(..) if known.has_spoken => give_up(history),
        _ if known.has_spoken => Decision::Fail,
        Finding::Mistake(..) => decide_after_mistake(history, known, limits, now),
        // What an upstream says to a changed request says nothing about the client's own.
        Finding::Refused(Refusal::Form | Refusal::Final) if last.is_changed => give_up(history),
        Finding::Refused(refusal) => decide_after_refusal(refusal, history, known),
        Finding::Failed(failure, pause) => decide_after_failure(failure, pause, history, known, limits, now),
        Finding::OutOfTime => give_up(history),
    }
}

fn decide_after_mistake(
    history: &History,
    known: &Known,
    limits: &RecoveryConfig,
    now: Duration,
) -> Decision {
    let is_usual = history.mistake_count() <= limits.attempts;
    let may_ask = is_usual || is_worth_more(limits.attempts, history, known, limits, now);
    if !may_ask || now >= limits.within {
        return give_up(history);
    }
    match &known.remedy {
        None => Decision::LookUp(Lookup::Remedy),
        Some(Change::Nothing) => give_up(history),
        Some(remedy) => Decision::attempt(remedy.clone(), RetryTarget::NewRound, RetryTime::Now),
    }
}

/// Returns true when one attempt more than the usual ones is worth it. What comes again and again is not bad
/// luck; and where the client can correct the model's call itself, its turn goes on.
fn is_worth_more(
    usual: u32,
    history: &History,
    known: &Known,
    limits: &RecoveryConfig,
    now: Duration,
) -> bool {
    let steps = known.steps.min(EXTRA_FOR_STEPS);
    let extra = steps + if known.has_recent_success { EXTRA_WHERE_IT_WORKS } else { 0 };
    let is_corrected_by_client = matches!(
        give_up(history),
        Decision::Deliver(place) if matches!(history.attempts[place].finding, Finding::Mistake(_, Salvage::CorrectableCall))
    );
    limits.attempts > 0
        && history.ask_count() <= usual + extra
        && history.alike_in_a_row() <= usual.max(REPEATS) + steps
        && now < EXTRA_WITHIN + EXTRA_WITHIN_PER_STEP * steps
        && !is_corrected_by_client
}

/// Ends the attempts: of the useless replies the first that shows something leaves.
fn give_up(history: &History) -> Decision {
    let asked_once = history.ask_count() < 2;
    let first = |wanted: Salvage| {
        history
            .attempts
            .iter()
            .position(|past| matches!(past.finding, Finding::Mistake(_, salvage) if salvage == wanted))
    };
    let blank = || first(Salvage::Blank).filter(|_| asked_once);
    let shown = first(Salvage::Answer).or_else(|| first(Salvage::CorrectableCall)).or_else(blank);
    shown.map_or(Decision::Fail, Decision::Deliver)
}

fn decide_after_refusal(refusal: Refusal, history: &History, known: &Known) -> Decision {
    let times = |refusal: Refusal| {
        history.attempts.iter().filter(|past| past.finding == Finding::Refused(refusal)).count()
    };
    let may_shrink = refusal == Refusal::TooLarge && times(refusal) <= REFITS;
    let of_form = matches!(refusal, Refusal::TooLarge | Refusal::Form);
    if of_form && times(Refusal::TooLarge) + times(Refusal::Form) > FORMS {
        return give_up(history);
    }
    let may_adapt = times(Refusal::Form) <= RULES;
    let same_again = |change: &Change| Decision::attempt(change.clone(), RetryTarget::Same, RetryTime::Now);
    match (refusal, &known.smaller, &known.adaptation) {
        (Refusal::TooLarge, None, _) if may_shrink => Decision::LookUp(Lookup::Smaller),
        (Refusal::TooLarge, Some(change @ Change::Smaller(_)), _) if may_shrink => same_again(change),
        (Refusal::TooLarge | Refusal::Form, _, None) if may_adapt => Decision::LookUp(Lookup::Adaptation),
        (Refusal::TooLarge | Refusal::Form, _, Some(change @ Change::Adapt(_))) => same_again(change),
        (Refusal::ModelNotServed | Refusal::OwnKey, ..) if known.another_upstream => {
            Decision::attempt(Change::Nothing, RetryTarget::Next, RetryTime::Now)
        }
        _ => give_up(history),
    }
}

fn decide_after_failure(
    failure: Failure,
    pause: Option<Duration>,
    history: &History,
    known: &Known,
    limits: &RecoveryConfig,
    now: Duration,
) -> Decision {
    let elsewhere = !matches!(failure, Failure::Slow);
    if elsewhere && known.another_upstream && now < limits.within {
        return Decision::attempt(Change::Nothing, RetryTarget::Next, RetryTime::Now);
    }
    let repeats = history.last().map_or(0, |last| last.round);
    let usual = match failure {
        Failure::Unreachable
        | Failure::Unavailable
        | Failure::GatewayTimeout
        | Failure::Limited
        | Failure::Closed => REPEATS,
        Failure::Broken => REPEATS_OF_BROKEN.min(limits.attempts),
        _ => REPEATS.min(limits.attempts),
    };
    let may_repeat = repeats < usual || is_worth_more(usual, history, known, limits, now);
    if !may_repeat || now >= limits.within || matches!(failure, Failure::Slow | Failure::Unusable) {
        return give_up(history);
    }
    let left = limits.wait_for_upstream.saturating_sub(history.waited);
    let in_a_row = history.failures_in_a_row().saturating_sub(1).min(repeats) as usize;
    let short_pause = PAUSES[in_a_row.min(PAUSES.len() - 1)];
    let within_budget = |pause: Duration| repeat_within_budget(pause, left, history, known);
    match failure {
        Failure::Unreachable | Failure::Unavailable | Failure::GatewayTimeout => match known.health {
            _ if limits.wait_for_upstream.is_zero() && failure == Failure::Unreachable => give_up(history),
            None => Decision::LookUp(Lookup::Health),
            Some(Health::Down) if left.is_zero() => give_up(history),
            Some(Health::Down) => {
                Decision::attempt(Change::Nothing, RetryTarget::NewRound, RetryTime::Up(left))
            }
            // Each repeat costs a generation.
            Some(Health::Up) if failure == Failure::GatewayTimeout && repeats > 0 => give_up(history),
            Some(Health::Up) => match pause {
                Some(pause) if pause > left => give_up(history),
                pause => within_budget(pause.unwrap_or_default().max(short_pause)),
            },
        },
        Failure::Limited => match pause.unwrap_or(PAUSES_WHEN_LIMITED[repeats.min(1) as usize]) {
            pause if pause > left => give_up(history),
            pause => within_budget(pause),
        },
        _ => within_budget(short_pause),
    }
}

/// Repeats the request after this pause, or when the circuit lets it through. `left`: what remains of the
/// time for waiting.
fn repeat_within_budget(pause: Duration, left: Duration, history: &History, known: &Known) -> Decision {
    match known.budget {
        None => Decision::LookUp(Lookup::Budget),
        Some(RepeatPermit::Denied) => give_up(history),
        Some(RepeatPermit::GrantedAfter(trial)) => match pause.max(trial) {
            pause if pause > LONGEST_UNCOUNTED_PAUSE && pause > left => give_up(history),
            pause => Decision::attempt(Change::Nothing, RetryTarget::NewRound, RetryTime::After(pause)),
        },
    }
}

#[cfg(test)]
mod tests;
