//! Lets another model answer when the current one does not.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::state::Exchange;
use crate::candidates::Candidates;
use crate::config::RecoveryConfig;
use crate::decide::Decision;
use crate::fallback::{FallbackReason, Fallbacks, PastAttempts};
use crate::outcome::{Finding, History, Refusal};

/// The longest wait for an upstream while the client sees no sign of life: its reply does not stream. Clients
/// and proxies give up a silent request and repeat it.
const LONGEST_UNSEEN_WAIT: Duration = Duration::from_secs(15);

impl Exchange {
    /// Returns the reason to ask the next model instead of doing what was decided. `None` if no model is
    /// left, if something of a reply has reached the client, or if the client's request is at fault.
    pub(super) fn fallback_reason(&self, decision: &Decision) -> Option<FallbackReason> {
        if self.has_spoken || self.fallbacks.as_deref().is_none_or(Fallbacks::is_empty) {
            return None;
        }
        let last = self.history.last()?;
        match decision {
            Decision::Deliver(place) => {
                let is_useful = self.history.attempts[*place].finding == Finding::Useful;
                (!is_useful).then_some(FallbackReason::Failed)
            }
            Decision::Fail => {
                let status =
                    last.error.as_ref().map_or(0, |error| error.status.unwrap_or(error.error.status));
                match last.finding {
                    Finding::Refused(Refusal::TooLarge) => Some(FallbackReason::Overflow),
                    Finding::Refused(Refusal::ModelNotServed) if status == 429 => Some(FallbackReason::Busy),
                    // A key that the upstream does not take is not the client's.
                    Finding::Refused(Refusal::Form | Refusal::Final) if !matches!(status, 401..=403) => None,
                    _ => Some(FallbackReason::Failed),
                }
            }
            Decision::Attempt(_) | Decision::LookUp(_) => None,
        }
    }

    /// Starts over with the next model. Returns false if there is no model left to ask.
    pub(super) async fn fall_back(&mut self, reason: FallbackReason) -> bool {
        let Some(mut fallbacks) = self.fallbacks.take() else { return false };
        let profile = Arc::clone(&self.request.profile);
        let attempts = PastAttempts { error: self.history.last_error(), spent: self.history.all_usage() };
        let next =
            fallbacks.next_request(&self.relay, &profile.model, profile.route, reason, &attempts).await;
        self.fallbacks = Some(fallbacks);
        let Some(request) = next else { return false };
        self.candidates = Candidates::new(Arc::clone(&request.plan.upstreams), Some(request.plan.who));
        self.request = request;
        self.history = History::default();
        (self.current, self.withheld_rule) = (None, None);
        true
    }

    /// Returns how long the request waits for a place while another model is left.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.fallbacks.as_deref().and_then(Fallbacks::patience)
    }

    /// Returns the limits of recovery: while another model is left, the request waits no longer for this one,
    /// and where its client sees no sign of life it fails sooner.
    pub(super) fn recovery_limits(&self) -> Cow<'_, RecoveryConfig> {
        let configured = &self.request.settings.recovery;
        let unseen = self.request.profile.is_unseen.then_some(LONGEST_UNSEEN_WAIT);
        match self.patience().into_iter().chain(unseen).min() {
            Some(patience) if patience < configured.wait_for_upstream => {
                Cow::Owned(RecoveryConfig { wait_for_upstream: patience, ..configured.clone() })
            }
            _ => Cow::Borrowed(configured),
        }
    }
}
