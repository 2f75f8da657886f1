//! The state of one exchange: its finished attempts, and the current one. The other files of this folder work
//! on it.

use std::sync::Arc;

use crate::attempt::Attempt;
use crate::candidates::Candidates;
use crate::fallback::Fallbacks;
use crate::outcome::{AttemptOutcome, Finding, History, Refusal, Whole};
use crate::relay::Relay;
use crate::request::ClientRequest;
use adapt::{Rule, RuleSet};
use translate::{Fault, ReplyRules, Salvage};
use upstream::{Upstream, UpstreamError, UpstreamPlace, UpstreamResponse};
use wire::Pieces;
use wire::turn::Usage;

/// One request's attempts.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) relay: Arc<Relay>,
    pub(crate) request: Arc<ClientRequest>,
    pub(crate) history: History,
    pub(super) candidates: Candidates,
    /// `None` before the first attempt.
    pub(super) current: Option<Current>,
    /// Something of a reply has reached the client.
    pub(crate) has_spoken: bool,
    /// A stream was begun, so that only another stream can take its place.
    pub(super) expects_stream: bool,
    /// The models that may answer in the place of the current one.
    pub(super) fallbacks: Option<Box<Fallbacks>>,
    /// The rule that would avoid the last refusal, and that the owner has not allowed.
    pub(super) withheld_rule: Option<Rule>,
    /// Rules that only this conversation needs, as far as is known.
    pub(super) unconfirmed: RuleSet,
}

/// The attempt under way. The next one replaces it, and takes over what both have in common.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) attempt: Attempt,
    /// Bytes of its body, which may have been let go.
    pub(super) size: usize,
    /// Its place at the upstream. It keeps it while it is refused in one form and sent in another.
    pub(super) queue_place: Option<UpstreamPlace>,
}

/// A reply, as the loop hands it over.
pub(crate) enum ExchangeReply {
    /// A stream begins.
    Stream(Box<UpstreamResponse>),
    /// A whole reply.
    Whole(Whole),
    /// The current stream's own reply, for want of a better one.
    Current(Salvage),
}

impl Exchange {
    pub(crate) fn new(
        relay: Arc<Relay>,
        request: Arc<ClientRequest>,
        fallbacks: Option<Box<Fallbacks>>,
    ) -> Self {
        let candidates = Candidates::new(Arc::clone(&request.plan.upstreams), Some(request.plan.who));
        Self {
            relay,
            request,
            history: History::default(),
            candidates,
            current: None,
            has_spoken: false,
            expects_stream: false,
            fallbacks,
            withheld_rule: None,
            unconfirmed: RuleSet::new(),
        }
    }

    /// Classifies a reply with this fault.
    pub(crate) fn finding_of_fault(
        &self,
        fault: Fault,
        salvage: Salvage,
        usage: Option<Usage>,
    ) -> (Finding, Option<Box<UpstreamError>>) {
        match self.filled_window(&fault, usage) {
            Some(error) => (Finding::Refused(Refusal::TooLarge), Some(Box::new(error))),
            None => (Finding::Mistake(fault, salvage), None),
        }
    }

    /// The error of a useless reply whose prompt has filled the window.
    pub(crate) fn filled_window(&self, fault: &Fault, usage: Option<Usage>) -> Option<UpstreamError> {
        let upstream = &self.current.as_ref()?.attempt.upstream;
        self.request.filled_window(upstream, fault, usage)
    }

    /// Returns true if a cut reply with this usage has filled the window.
    pub(crate) fn fills_window(&self, usage: Option<Usage>) -> bool {
        let of_current = self.current.as_ref().zip(usage);
        of_current.is_some_and(|(Current { attempt, .. }, usage)| self.request.fills_window(attempt, usage))
    }

    /// Learns from a reply's usage how many bytes of a request make a token.
    pub(crate) fn learn_usage(&self, usage: Option<Usage>) {
        let Some((Current { attempt, size, .. }, usage)) = self.current.as_ref().zip(usage) else { return };
        if !attempt.fit.is_trimmed() {
            attempt.upstream.models.learn_usage(self.request.target_model(), *size, usage.prompt);
        }
    }

    /// A reply has reached the client, so nothing is sent again: the request's bytes are let go. A stream may
    /// last for an hour, and holds the buffers that they came in.
    pub(crate) fn release_bytes(&mut self) {
        if let Some(current) = &mut self.current {
            current.attempt.upstream.state.count_useful_reply();
            (current.attempt.body, current.attempt.changed) = (Pieces::default(), None);
        }
        self.fallbacks = None;
        // The exchange is its only owner, except for a moment.
        if let Some(request) = Arc::get_mut(&mut self.request) {
            request.release_bytes();
        }
    }

    /// Keeps the rules on trial, because the upstream has given a whole reply to the adapted request. Those
    /// that are unconfirmed are kept for its conversation only.
    pub(crate) fn keep_rules(&mut self) {
        let Some(Current { attempt, .. }) = &mut self.current else { return };
        if attempt.rules.is_empty() {
            return;
        }
        let (upstream, model) = (&attempt.upstream, self.request.target_model());
        let on_trial = std::mem::take(&mut attempt.on_trial);
        if !on_trial.is_empty() {
            self.request.conversation_rules.add(upstream, model, &on_trial);
            upstream.rules.learn(model, &(&on_trial - &self.unconfirmed)).iter().for_each(|rule| {
                tracing::warn!(
                    target: "respool::upstream",
                    upstream = upstream.name,
                    model,
                    rule = rule.to_string(),
                    "this upstream refuses a part of the requests for this model; they are adapted from now on"
                );
            });
        }
        upstream.rules.note_changed_tools(model, &attempt.rules);
    }

    /// Notes what the current attempt came to; the caller adds what else is known of it to the returned
    /// outcome.
    pub(super) fn conclude(&mut self, upstream: Arc<Upstream>, finding: Finding) -> &mut AttemptOutcome {
        let is_changed = self.current.as_ref().is_some_and(|current| current.attempt.is_changed());
        let History { attempts, round, .. } = &mut self.history;
        let (round, place) = (*round, attempts.len());
        let (error, usage, reply) = (None, None, None);
        // Most requests have one attempt.
        attempts.reserve_exact(1);
        attempts.push(AttemptOutcome { upstream, finding, round, is_changed, error, usage, reply });
        &mut attempts[place]
    }

    /// Returns the rules for reading the reply of the current attempt.
    pub(crate) fn reply_rules(&self) -> ReplyRules {
        ReplyRules { token_limit: self.token_limit(), ..self.request.rules.clone() }
    }

    /// Reports once that a model has reasoned although the client has switched that off.
    pub(crate) fn report_reasoning(&self) {
        if !self.request.traits.wants_no_reasoning {
            return;
        }
        let (Some(Current { attempt, .. }), model) = (&self.current, self.request.target_model()) else {
            return;
        };
        if !adapt::is_gpt_oss(model) && attempt.upstream.models.note_disobedience(model) {
            tracing::warn!(
                target: "respool::upstream",
                upstream = attempt.upstream.name,
                model,
                "the model reasons although clients switch that off: name the fields that it obeys in \
                 `[models.\"{model}\"] reasoning_off` (docs/requests.md)"
            );
        }
    }

    /// The limit on the reply of the current attempt, in tokens.
    pub(crate) fn token_limit(&self) -> Option<u64> {
        self.current.as_ref().and_then(|current| current.attempt.token_limit)
    }

    /// The tokens of earlier attempts that a live reply's own are added to.
    pub(crate) fn earlier_usage(&self) -> Usage {
        let spent = self.history.spent_before_last();
        let reads_context = self.request.profile.program.reads_prompt_as_context();
        if reads_context { Usage { prompt: 0, ..spent } } else { spent }
    }
}
