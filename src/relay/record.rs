//! The one adapter between what happened to a request and its log line, metrics and token counts. Nothing is decided here,
//! and nothing that decides reads the line.

use http::HeaderValue;

use super::outcome::{AttemptOutcome, Finding};
use crate::observe::{RequestLine, SharedLine};
use crate::turn::{Turn, Usage};
use crate::upstream::UpstreamError;
use crate::wire::{ApiError, Pieces};

/// Notes in the line of a request that makes no attempts that its upstream failed, and gives the error that leaves.
pub fn upstream_failed(error: UpstreamError, line: &SharedLine) -> ApiError {
    Record::new(line.clone()).fails(&error.error, Some(&error));
    error.error
}

/// How one attempt was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent<'a> {
    /// Names of the edits that its form asked for, and of those that make it fit.
    pub(super) edits: [&'a [&'static str]; 2],
    pub(super) counted: Option<&'static str>,
    pub(super) trimmed: Option<&'a str>,
}

/// Writes down what happens to one request.
#[derive(Clone, Debug)]
pub(super) struct Record(SharedLine);

impl Record {
    pub(super) fn new(line: SharedLine) -> Self {
        Self(line)
    }

    /// An upstream is asked, the `tried`th one, after a wait in its queue.
    pub(super) fn asks(&self, upstream: &str, tried: u32, queued: std::time::Duration) {
        self.0.with(|line| {
            upstream.clone_into(&mut line.upstream);
            line.upstreams_tried = tried;
            line.got_place(queued);
        });
    }

    /// A request leaves.
    pub(super) fn sends(&self, sent: &Sent<'_>, body: &Pieces) {
        self.0.with(RequestLine::begin_attempt);
        self.0.content_of("upstream request", || body.joined());
        self.0.with(|line| {
            sent.edits.into_iter().flatten().for_each(|name| line.edit(name));
            line.counted = sent.counted.or(line.counted);
            line.trimmed = sent.trimmed.map(str::to_owned);
        });
    }

    /// What the upstream is told that the request is part of; `None`: what the client said.
    pub(super) fn traceparent(&self) -> Option<HeaderValue> {
        self.0.with(|line| line.traceparent())
    }

    /// The upstream answered.
    pub(super) fn status(&self, status: u16) {
        self.0.with(|line| line.upstream_status = Some(status));
    }

    /// Text of the upstream's, which is logged only where content may be.
    pub(super) fn content(&self, what: &'static str, text: &[u8]) {
        self.0.content(what, text);
    }

    /// The request is sent again: why, in one word.
    pub(super) fn repeats(&self, why: &'static str) {
        self.0.with(|line| line.retry(why));
    }

    /// The model is asked again because of its mistake.
    pub(super) fn asks_again(&self, past: &AttemptOutcome, remedy: &'static str) {
        let Finding::Mistake(fault, _) = &past.finding else { return };
        let cost = past.usage.unwrap_or_default();
        self.0.with(|line| line.second_attempt(fault.name(), remedy, cost));
    }

    /// The time that the request waited for an upstream to come back.
    pub(super) fn waited(&self, waited: std::time::Duration) {
        self.0.with(|line| line.waited += waited);
    }

    /// The upstream has answered for this model: its name may stand in metrics.
    pub(super) fn serves(&self, model: &str) {
        self.0.with(|line| {
            if line.known_model.is_empty() {
                model.clone_into(&mut line.known_model);
            }
        });
    }

    /// What a reply cost.
    pub(super) fn usage(&self, usage: Option<Usage>) {
        self.0.with(|line| line.usage = usage);
    }

    /// A turn that leaves.
    pub(super) fn turn(&self, turn: &Turn) {
        self.0.with(|line| line.turn(turn));
    }

    /// The request failed: what the client is told, and what the log may say of it.
    pub(super) fn fails(&self, told: &ApiError, cause: Option<&UpstreamError>) {
        self.0.with(|line| {
            line.upstream_status = line.upstream_status.or(cause.and_then(|cause| cause.status));
            line.error = Some(cause.map_or_else(|| told.message.clone(), UpstreamError::for_log));
        });
    }

    /// The reply was whole, but its end was not clean.
    pub(super) fn ended_rudely(&self, error: &UpstreamError) {
        self.0.with(|line| line.error = Some(error.internal.clone()));
    }

    /// How the second attempts ended, if there were any.
    pub(super) fn rescue(fault: Option<&crate::translate::Fault>, rescued: bool) {
        if let Some(fault) = fault {
            crate::observe::metrics::rescue(fault.name(), rescued);
        }
    }
}
