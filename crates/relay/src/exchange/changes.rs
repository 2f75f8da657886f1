//! Finds the change for the next attempt of an exchange: a remedy for the model's mistake, a smaller request,
//! or a rule that adapts it to the upstream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::time::timeout;

use super::state::{Current, Exchange};
use crate::attempt::Changed;
use crate::decide::Change;
use crate::fit;
use crate::outcome::Finding;
use crate::request::ClientRequest;
use adapt::{Loss, Rule, find_rule, known_good_request};
use translate::{Fault, Remedy, Situation};
use upstream::{Call, UpstreamError};

/// How long an upstream may take to refuse a picture that is certainly good; else its model can see.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

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
            is_free: request.traits.is_free,
            can_be_unparsed: !request.traits.wants_raw && !attempt.upstream.server_traits().is_sglang,
            is_harmony: attempt.upstream.models.facts_of(request.target_model()).is_harmony,
            limit: request.rules.token_limit,
            room: last.usage.and_then(|usage| request.room(&attempt.upstream, usage.prompt)),
        };
        let remedy = Remedy::plan(fault, self.history.mistake_count().saturating_sub(1), &situation)?;
        let version = attempt.upstream.server_traits().version;
        let apply = |remedy: Remedy| {
            let body = remedy.apply(&request.outgoing.body, rand::random(), version, tools)?;
            Some(Change::Remedy(Arc::new(Changed { remedy, body: body.into() })))
        };
        apply(remedy).or_else(|| apply(Remedy::Repeat))
    }

    /// A smaller form of the request that was refused.
    pub(super) async fn next_smaller(&self) -> Option<Change> {
        let Current { attempt, .. } = self.current.as_ref()?;
        let error = self.history.last()?.error.as_ref()?;
        let sent = attempt.fit.apply(&attempt.body).body;
        let smaller = fit::fit_again(&self.request, attempt, &sent.to_bytes(), error).await?;
        (smaller.apply(&attempt.body).body != sent).then_some(Change::Smaller(smaller))
    }

    /// The rule that avoids the cause of the last refusal, if the owner allows it.
    pub(super) async fn next_adaptation(&mut self) -> Change {
        let found = self.find_rule();
        let consent = &self.request.settings.adapt;
        match found {
            Some(rule) if consent.allows(&rule) => {
                if rule.loss() == Loss::Media && !self.is_confirmed(&rule).await {
                    self.unconfirmed.insert(rule.clone());
                }
                Change::Adapt(Arc::new(rule))
            }
            Some(rule) => {
                self.withheld_rule = Some(rule);
                Change::Nothing
            }
            None => Change::Nothing,
        }
    }

    /// True when the upstream also refuses a picture or a sound that is certainly good: one broken picture
    /// takes the sight from no other conversation.
    async fn is_confirmed(&self, rule: &Rule) -> bool {
        let Some(Current { attempt, .. }) = &self.current else { return false };
        let (request, upstream) = (&self.request, &attempt.upstream);
        let Some(body) = known_good_request(rule, request.target_model()) else { return true };
        let call = Call {
            method: Method::POST,
            path_and_query: request.outgoing.path_and_query.clone(),
            headers: request.outgoing.headers.clone(),
            body: Bytes::from(body.clone()).into(),
            verbatim: false,
        };
        let refusal = async {
            let mut answer = upstream.send(call).await.ok()?;
            let status = answer.status();
            let text = if status.is_success() { return None } else { answer.read_excerpt().await };
            Some(UpstreamError::from_answer(&upstream.name, status.as_u16(), &text))
        };
        let refusal = timeout(CONFIRMED_WITHIN, refusal).await.ok().flatten();
        let found = refusal
            .and_then(|error| find_rule(&error.said, error.param.as_deref(), &body, &request.settings.adapt));
        found.as_ref() == Some(rule)
    }

    fn find_rule(&self) -> Option<Rule> {
        let attempt = &self.current.as_ref()?.attempt;
        let error = self.history.last()?.error.as_ref()?;
        let body = attempt.body.to_bytes();
        let body = std::str::from_utf8(&body).ok()?;
        find_rule(&error.said, error.param.as_deref(), body, &self.request.settings.adapt)
    }
}

/// A stop sequence may end a reply before it begins; and without tools, a limit that the client set is the
/// client's business.
fn may_be_asked_again(fault: &Fault, request: &ClientRequest) -> bool {
    match fault {
        Fault::Empty | Fault::OnlyReasoning => !request.traits.has_stop,
        Fault::CutReasoning => request.traits.has_tools,
        _ => true,
    }
}
