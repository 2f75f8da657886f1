//! What the next attempt of an exchange may change: a remedy for the model's mistake, a smaller request, parameters left out.

use std::sync::Arc;

use super::{Current, Exchange};
use crate::Relay;
use crate::attempt::{Attempt, Changed};
use crate::decide::Change;
use crate::outcome::Finding;
use crate::request::ClientRequest;
use translate::{Fault, Remedy, Situation, learn_refusals};
use upstream::{Upstream, UpstreamError};
use wire::ChatRequest;

impl Exchange {
    /// The change that may keep the model from its last mistake.
    pub(super) fn remedy(&self) -> Option<Change> {
        let (request, attempt) = (&self.request, &self.current.as_ref()?.attempt);
        let last = self.history.last()?;
        let Finding::Mistake(fault, _) = &last.finding else { return None };
        if !may_be_asked_again(fault, request) {
            return None;
        }
        let tools = &request.rules.tools;
        let situation = Situation {
            tools,
            is_free: request.is_free,
            is_raw: request.wants_raw,
            is_harmony: attempt.upstream.model_facts(&request.target_model).is_harmony,
            limit: request.rules.token_limit,
            room: last.usage.and_then(|usage| request.room(&attempt.upstream, usage.prompt)),
        };
        let remedy = Remedy::plan(fault, self.history.mistakes().saturating_sub(1), &situation)?;
        let version = attempt.upstream.target().version;
        let apply = |remedy: Remedy| {
            let body = remedy.apply(&request.body, rand::random(), version, tools)?;
            Some(Change::Remedy(Arc::new(Changed { remedy, body: body.into() })))
        };
        apply(remedy).or_else(|| apply(Remedy::Repeat))
    }

    /// A smaller form of the request that was refused.
    pub(super) async fn next_smaller(&self) -> Option<Change> {
        let Current { attempt, .. } = self.current.as_ref()?;
        let error = self.history.last()?.error.as_ref()?;
        let sent = attempt.fit.apply(&attempt.body).body;
        let smaller = Relay::fit_again(&self.request, attempt, &sent.joined(), error).await?;
        (smaller.apply(&attempt.body).body != sent).then_some(Change::Smaller(smaller))
    }

    /// Remembers the parameters that the last error names, if they can be left out, and says whether that
    /// changes the request.
    pub(super) fn refused_parameters(&self) -> Change {
        let (Some(Current { attempt, .. }), Some(last)) = (&self.current, self.history.last()) else {
            return Change::Nothing;
        };
        let Some(error) = last.error.as_ref().filter(|error| error.status == Some(400)) else {
            return Change::Nothing;
        };
        learn(&attempt.upstream, &self.request, error);
        // Another request may have learnt it meanwhile; what counts is that the request can be sent otherwise.
        let leaner = Attempt::new(&self.request, attempt.changed.clone(), &attempt.upstream);
        if leaner.body == attempt.body { Change::Nothing } else { Change::DropParameters }
    }
}

/// A stop sequence may end a reply before it begins; and without tools, a limit that the client set is the client's business.
fn may_be_asked_again(fault: &Fault, request: &ClientRequest) -> bool {
    match fault {
        Fault::Empty | Fault::OnlyReasoning => !request.has_stop,
        Fault::CutReasoning => request.has_tools,
        _ => true,
    }
}

fn learn(upstream: &Upstream, request: &ClientRequest, error: &UpstreamError) {
    let Ok(parsed) = ChatRequest::parse(&request.body) else { return };
    let learnt =
        upstream.learn(|target| learn_refusals(&error.said, error.param.as_deref(), &parsed, target));
    if !learnt.is_empty() {
        tracing::warn!(
            target: "respool::upstream",
            upstream = upstream.name,
            parameters = learnt.join(","),
            "this upstream refuses these parameters; they are left out from now on"
        );
    }
}
