//! The outcome of one attempt, as a value. `decide` reads outcomes; `record` fills the log line, metrics and
//! usage from them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::client::{Awaited, WaitEnd};
use telemetry::AttemptError;
use translate::{Fault, Reply, Salvage};
use upstream::{Failure, Upstream, UpstreamError};
use wire::ErrorCode;
use wire::turn::Usage;

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Finding {
    /// The reply is what was asked for; or it is a stream, which is judged as it flows.
    Useful,
    /// The model's mistake: its reply is of no use.
    Mistake(Fault, Salvage),
    /// The upstream's own failure, and how long it asks to be left alone.
    Failed(Failure, Option<Duration>),
    /// The upstream refuses the request.
    Refused(Refusal),
    /// `recovery.within` was over before the attempt was.
    OutOfTime,
}

impl Finding {
    /// Returns true when both are the same kind of mistake, or of failure.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mistake(fault, _), Self::Mistake(other, _)) => fault.name() == other.name(),
            (Self::Failed(failure, _), Self::Failed(other, _)) => failure == other,
            _ => false,
        }
    }
}

/// Why an upstream refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It does not fit the model's window.
    TooLarge,
    /// Its form: a parameter perhaps that can be left out.
    Form,
    /// The upstream lacks the model, or has no room: another one may have it.
    ModelNotServed,
    /// It does not take the key of the configuration: another one may take its own.
    OwnKey,
    /// For good.
    Final,
}

/// One attempt, once it is over.
#[derive(Clone, Debug)]
pub(super) struct AttemptOutcome {
    pub(super) upstream: Arc<Upstream>,
    pub(super) finding: Finding,
    /// How often all upstreams had been gone through before.
    pub(super) round: u32,
    /// It asked for something else than the client did.
    pub(super) is_changed: bool,
    /// The error, when there is one.
    pub(super) error: Option<Box<UpstreamError>>,
    pub(super) usage: Option<Usage>,
    /// The reply, where it was whole; `deliver` takes it.
    pub(super) reply: Option<Whole>,
}

/// A whole reply.
#[derive(Clone, Debug)]
pub(super) enum Whole {
    /// It was read.
    Reply(Box<Reply>),
    /// It was not read; these bytes leave.
    Body(Bytes),
}

/// The finished attempts of one request.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) attempts: Vec<AttemptOutcome>,
    /// How often all upstreams have been gone through.
    pub(super) round: u32,
    /// Time spent waiting for an upstream to come back, or to have room.
    pub(super) waited: Duration,
}

impl History {
    pub(super) fn last(&self) -> Option<&AttemptOutcome> {
        self.attempts.last()
    }

    /// Returns the kind of failure that the last attempt ended in, if it did.
    pub(super) fn last_failure(&self) -> Option<Failure> {
        match self.last()?.finding {
            Finding::Failed(failure, _) => Some(failure),
            _ => None,
        }
    }

    /// Returns the error of the last attempt for its record.
    pub(super) fn last_error(&self) -> AttemptError {
        let error = self.last().and_then(|last| last.error.as_deref());
        let of_error = |error: &UpstreamError| AttemptError {
            code: error.error.code.map(ErrorCode::as_str),
            text: error.log_text(),
        };
        error.map(of_error).unwrap_or_default()
    }

    /// Returns the upstream of the last attempt if it does not have the model.
    pub(super) fn upstream_without_model(&self) -> Option<&Arc<Upstream>> {
        let last = self.last()?;
        let code = last.error.as_ref()?.error.code;
        (code == Some(ErrorCode::ModelNotFound)).then_some(&last.upstream)
    }

    /// Returns the reason for a wait: the last failure.
    pub(super) fn reason_to_wait(&self, end: WaitEnd) -> Awaited {
        let error = self.last().and_then(|last| last.error.as_ref());
        let cause = error.map(|error| error.error.message.clone()).unwrap_or_default();
        Awaited { cause, end }
    }

    /// Returns how often a reply of the model was of no use.
    pub(super) fn mistake_count(&self) -> u32 {
        let mistakes = self.attempts.iter().filter(|past| matches!(past.finding, Finding::Mistake(..)));
        u32::try_from(mistakes.count()).unwrap_or(u32::MAX)
    }

    /// Returns how many attempts at the end came to the same kind of failure or mistake.
    pub(super) fn alike_in_a_row(&self) -> u32 {
        let Some(last) = self.last() else { return 0 };
        let alike = self.attempts.iter().rev().take_while(|past| past.finding.is_like(&last.finding));
        u32::try_from(alike.count()).unwrap_or(u32::MAX)
    }

    /// Returns how many attempts at the end the upstreams failed.
    pub(super) fn failures_in_a_row(&self) -> u32 {
        let failed =
            self.attempts.iter().rev().take_while(|past| matches!(past.finding, Finding::Failed(..)));
        u32::try_from(failed.count()).unwrap_or(u32::MAX)
    }

    /// Returns the last mistake.
    pub(super) fn last_fault(&self) -> Option<&Fault> {
        self.attempts.iter().rev().find_map(|past| match &past.finding {
            Finding::Mistake(fault, _) => Some(fault),
            _ => None,
        })
    }

    /// Returns true when an upstream has refused the size or a parameter of the request: it may be sent in
    /// another form now.
    pub(super) fn has_refused_form(&self) -> bool {
        let is_of_form = |past: &AttemptOutcome| {
            matches!(past.finding, Finding::Refused(Refusal::TooLarge | Refusal::Form))
        };
        self.attempts.iter().any(is_of_form)
    }

    /// Returns how often the model has been asked, refusals of a form apart.
    pub(super) fn ask_count(&self) -> u32 {
        let asked = self
            .attempts
            .iter()
            .filter(|past| !matches!(past.finding, Finding::Refused(Refusal::TooLarge | Refusal::Form)));
        u32::try_from(asked.count()).unwrap_or(u32::MAX)
    }

    /// Returns the tokens of all attempts.
    pub(super) fn all_usage(&self) -> Usage {
        self.attempts.iter().filter_map(|past| past.usage).fold(Usage::default(), Usage::plus)
    }

    /// Returns the tokens of all attempts but the last.
    pub(super) fn spent_before_last(&self) -> Usage {
        let earlier = self.attempts.len().saturating_sub(1);
        self.attempts[..earlier].iter().filter_map(|past| past.usage).fold(Usage::default(), Usage::plus)
    }

    /// Returns the prompt of the last reply that said how long it was, in tokens.
    pub(super) fn last_prompt(&self) -> u64 {
        let prompts = self.attempts.iter().rev().filter_map(|past| past.usage).map(|usage| usage.prompt);
        prompts.into_iter().find(|prompt| *prompt > 0).unwrap_or_default()
    }
}
