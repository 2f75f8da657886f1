//! The one place that knows how often a request is tried, what is changed, where it goes and when: a pure function of what
//! happened so far. `exchange` does what it says, for whole replies, streams and agents alike.
//!
//! The model's mistakes are asked again `recovery.attempts` times, each time changed so that it helps. An upstream's own
//! failures are repeated at most [`REPEATS`] times, within the budget that all requests to that upstream share. A server
//! that is starting is waited for, and then the request is sent again. What has reached the client is never asked again.

use std::time::Duration;

use super::config::RecoveryConfig;
use super::outcome::{Finding, History, Refusal};
use translate::Shows;
use upstream::{Failure, Health};

/// How often a request is sent again because of an upstream's own failures.
pub(super) const REPEATS: u32 = 2;

/// A reply that broke off costs a generation each time.
const REPEATS_OF_BROKEN: u32 = 1;

/// The pauses before repeats.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// The pauses after a 429 that names none.
const PAUSES_WHEN_LIMITED: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(6)];

/// How often one request is made smaller.
const REFITS: usize = 4;

/// How many forms of a request are tried when upstreams refuse its size or its parameters.
const FORMS: usize = 8;

/// What is known beyond the history. `None`: it was not looked up for the last attempt yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Something of a reply has reached the client.
    pub(super) has_spoken: bool,
    /// Another upstream serves the model and was not asked in this round.
    pub(super) another_upstream: bool,
    /// The upstream's budget permits a repeat. Looking it up draws on the budget.
    pub(super) budget: Option<bool>,
    /// What a probe of the upstream found.
    pub(super) health: Option<Health>,
    /// There is a change that may keep the model from its mistake.
    pub(super) remedy: Option<bool>,
    /// There is a smaller form of the request.
    pub(super) smaller: Option<bool>,
    /// A parameter that the upstream refuses can be left out.
    pub(super) leaner: Option<bool>,
}

/// What to look up before the next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Budget,
    Health,
    Remedy,
    Smaller,
    Leaner,
}

/// What is changed for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing: the same request once more.
    Nothing,
    /// What the remedy for the model's last mistake says.
    Remedy,
    /// It is made smaller.
    Smaller,
    /// Refused parameters are left out.
    Leaner,
}

/// Where the next attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// To an upstream that was not asked in this round.
    Next,
    /// To the same upstream.
    Same,
    /// A new round begins: to any that serves the model.
    Anew,
}

/// When the next attempt begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// After a pause.
    After(Duration),
    /// Once the upstream is up, which is waited for at most this long.
    Up(Duration),
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Ask, again or for the first time.
    Retry(Change, Place, When),
    /// The reply of this attempt leaves.
    Deliver(usize),
    /// The error of the last attempt leaves; after a changed request, that of the mistake before it.
    Fail,
    /// It depends on this.
    LookUp(Lookup),
}

/// What to do after `history`. `now`: time since the request came.
pub(super) fn decide(history: &History, known: Known, limits: &RecoveryConfig, now: Duration) -> Decision {
    let Some(last) = history.last() else { return Decision::Retry(Change::Nothing, Place::Anew, When::Now) };
    match last.finding {
        Finding::Useful => Decision::Deliver(history.attempts.len() - 1),
        // A reply that has spoken is the only one there can be.
        Finding::Mistake(..) if known.has_spoken => give_up(history),
        _ if known.has_spoken => Decision::Fail,
        Finding::Mistake(..) => after_mistake(history, known, limits, now),
        // What an upstream says to a changed request says nothing about the client's own.
        Finding::Refused(Refusal::Form | Refusal::Final) if last.is_changed => give_up(history),
        Finding::Refused(refusal) => after_refusal(refusal, history, known),
        Finding::Failed(failure, pause) => after_failure(failure, pause, history, known, limits, now),
        Finding::OutOfTime => give_up(history),
    }
}

fn after_mistake(history: &History, known: Known, limits: &RecoveryConfig, now: Duration) -> Decision {
    if history.mistakes() > limits.attempts || now >= limits.within {
        return give_up(history);
    }
    match known.remedy {
        None => Decision::LookUp(Lookup::Remedy),
        Some(true) => Decision::Retry(Change::Remedy, Place::Anew, When::Now),
        Some(false) => give_up(history),
    }
}

/// Of the useless replies the first that shows something leaves.
fn give_up(history: &History) -> Decision {
    let asked_once = history.asked() < 2;
    let first = |wanted: Shows| {
        history
            .attempts
            .iter()
            .position(|past| matches!(past.finding, Finding::Mistake(_, shows) if shows == wanted))
    };
    let blank = || first(Shows::Blank).filter(|_| asked_once);
    let shown = first(Shows::Answer).or_else(|| first(Shows::CorrectableCall)).or_else(blank);
    shown.map_or(Decision::Fail, Decision::Deliver)
}

fn after_refusal(refusal: Refusal, history: &History, known: Known) -> Decision {
    let times = |refusal: Refusal| {
        history.attempts.iter().filter(|past| past.finding == Finding::Refused(refusal)).count()
    };
    let may_shrink = refusal == Refusal::TooLarge && times(refusal) <= REFITS;
    let of_form = matches!(refusal, Refusal::TooLarge | Refusal::Form);
    if of_form && times(Refusal::TooLarge) + times(Refusal::Form) > FORMS {
        return give_up(history);
    }
    match (refusal, known.smaller, known.leaner) {
        (Refusal::TooLarge, None, _) if may_shrink => Decision::LookUp(Lookup::Smaller),
        (Refusal::TooLarge, Some(true), _) if may_shrink => {
            Decision::Retry(Change::Smaller, Place::Same, When::Now)
        }
        (Refusal::TooLarge | Refusal::Form, _, None) => Decision::LookUp(Lookup::Leaner),
        (Refusal::TooLarge | Refusal::Form, _, Some(true)) => {
            Decision::Retry(Change::Leaner, Place::Same, When::Now)
        }
        (Refusal::NotHere, ..) if known.another_upstream => {
            Decision::Retry(Change::Nothing, Place::Next, When::Now)
        }
        _ => give_up(history),
    }
}

fn after_failure(
    failure: Failure,
    pause: Option<Duration>,
    history: &History,
    known: Known,
    limits: &RecoveryConfig,
    now: Duration,
) -> Decision {
    let elsewhere = !matches!(failure, Failure::Slow);
    if elsewhere && known.another_upstream && now < limits.within {
        return Decision::Retry(Change::Nothing, Place::Next, When::Now);
    }
    let repeats = history.last().map_or(0, |last| last.round);
    let allowed = match failure {
        Failure::Absent
        | Failure::Unavailable
        | Failure::GatewayTimeout
        | Failure::Limited
        | Failure::Closed => REPEATS,
        Failure::Broken => REPEATS_OF_BROKEN.min(limits.attempts),
        _ => REPEATS.min(limits.attempts),
    };
    if repeats >= allowed || now >= limits.within || matches!(failure, Failure::Slow | Failure::Unusable) {
        return give_up(history);
    }
    let place = repeats.min(1) as usize;
    let left = limits.wait_for_upstream.saturating_sub(history.waited);
    match failure {
        Failure::Absent | Failure::Unavailable | Failure::GatewayTimeout => match known.health {
            _ if limits.wait_for_upstream.is_zero() && failure == Failure::Absent => give_up(history),
            None => Decision::LookUp(Lookup::Health),
            Some(Health::Down) if left.is_zero() => give_up(history),
            Some(Health::Down) => Decision::Retry(Change::Nothing, Place::Anew, When::Up(left)),
            // Each repeat costs a generation.
            Some(Health::Up) if failure == Failure::GatewayTimeout && repeats > 0 => give_up(history),
            Some(Health::Up) => match pause {
                Some(pause) if pause > left => give_up(history),
                pause => {
                    let pause = pause.unwrap_or_default().max(PAUSES[place]);
                    within_budget(When::After(pause), history, known)
                }
            },
        },
        Failure::Limited => {
            let pause = pause.unwrap_or(PAUSES_WHEN_LIMITED[place]);
            if pause > left { give_up(history) } else { within_budget(When::After(pause), history, known) }
        }
        _ => within_budget(When::After(PAUSES[place]), history, known),
    }
}

fn within_budget(when: When, history: &History, known: Known) -> Decision {
    match known.budget {
        None => Decision::LookUp(Lookup::Budget),
        Some(true) => Decision::Retry(Change::Nothing, Place::Anew, when),
        Some(false) => give_up(history),
    }
}

#[cfg(test)]
mod tests;
