//! The models that answer in the place of another one: after it has failed, when the prompt does not fit it,
//! when it is busy for too long, when the budget is spent, and when it cannot see.
//!
//! A fallback is a request of its own, read again from the client's bytes with the other model's name and
//! settings. Each request begins with the model that the client named. Called by `answer` and `exchange`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::client::Origin;
use super::config::ToolsMode;
use super::reading::Receiver;
use super::relay::Relay;
use super::request::{ClientRequest, Route};
use adapt::has_pictures;
use telemetry::AttemptError;
use wire::turn::Usage;
use wire::{ApiError, Object, encode_string};

/// The models that may still answer a request in the place of the one that was asked.
#[derive(Debug)]
pub(super) struct Fallbacks {
    /// The client's body.
    body: Bytes,
    origin: Origin,
    models: VecDeque<String>,
    /// How long the request waits for a model that is busy or starting while another one is left.
    patience: Duration,
}

/// The attempts at a model before another one is asked.
#[derive(Debug, Default)]
pub(super) struct PastAttempts {
    /// The error of the last one.
    pub(super) error: AttemptError,
    /// The tokens of all of them.
    pub(super) spent: Usage,
}

/// Why another model answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FallbackReason {
    Failed,
    /// The prompt does not fit the model's window.
    Overflow,
    /// There was no place at its upstream in time.
    Busy,
    /// A budget is spent, and the other model costs nothing.
    Budget,
    /// There are pictures, and the model cannot see.
    Pictures,
}

impl FallbackReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Overflow => "overflow",
            Self::Busy => "busy",
            Self::Budget => "budget",
            Self::Pictures => "pictures",
        }
    }
}

impl Fallbacks {
    pub(super) fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Returns how long the request waits for the current model.
    pub(super) fn patience(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.patience)
    }

    /// Reads the request for the next model that can be asked. `route`: how the request is served, which a
    /// model that answers in the middle of it cannot change.
    pub(super) async fn next_request(
        &mut self,
        relay: &Arc<Relay>,
        asked: &str,
        route: Route,
        reason: FallbackReason,
        attempts: &PastAttempts,
    ) -> Option<Arc<ClientRequest>> {
        while let Some(name) = self.models.pop_front() {
            match relay.read_for(&name, self, route).await {
                Ok(request) => {
                    let profile = &request.profile;
                    note_fallback(&self.origin, asked, reason, &profile.model, attempts);
                    if profile.model_is_known {
                        self.origin.record.set_known_model(&profile.model);
                    }
                    return Some(request);
                }
                Err(error) => {
                    let why = error.message;
                    tracing::warn!(target: "respool::upstream", model = name, why, "the fallback cannot be asked");
                }
            }
        }
        None
    }
}

impl Relay {
    /// Returns the body for the model that answers, and the models that may answer in its place.
    pub(super) fn fallbacks(&self, body: Bytes, origin: &Origin) -> (Bytes, Option<Box<Fallbacks>>) {
        if !self.has_fallbacks {
            return (body, None);
        }
        let Some(model) = model_of(&body) else { return (body, None) };
        let asked = self.body_for_sighted_model(&body, &model, origin);
        let (models, patience) = self.config.fallback(&model);
        let fallbacks = (!models.is_empty()).then(|| {
            let models = models.iter().cloned().collect();
            Box::new(Fallbacks { body: body.clone(), origin: origin.clone(), models, patience })
        });
        (asked.unwrap_or(body), fallbacks)
    }

    /// Returns the body for a model with sight, where the one that was asked has none and there are pictures.
    fn body_for_sighted_model(&self, body: &Bytes, model: &str, origin: &Origin) -> Option<Bytes> {
        let sighted = self.config.vision(model)?;
        let text = std::str::from_utf8(body).ok()?;
        if !has_pictures(text) {
            return None;
        }
        note_fallback(origin, model, FallbackReason::Pictures, sighted, &PastAttempts::default());
        with_model(body, sighted)
    }

    /// Returns the body for a free model when the budget of a request is spent: the model that was asked for,
    /// or the first of its fallbacks that is free.
    pub fn free_model(&self, body: &Bytes, origin: &Origin, is_free: impl Fn(&str) -> bool) -> Option<Bytes> {
        let model = model_of(body)?;
        let (models, _) = self.config.fallback(&model);
        if self.costs_nothing(&model, &is_free) {
            return Some(body.clone());
        }
        let free = models.iter().find(|name| self.has_no_price(name, &is_free))?;
        note_fallback(origin, &model, FallbackReason::Budget, free, &PastAttempts::default());
        with_model(body, free)
    }

    /// Returns true if neither a model nor any of its fallbacks has a price.
    pub fn costs_nothing(&self, model: &str, is_free: impl Fn(&str) -> bool) -> bool {
        let (fallbacks, _) = self.config.fallback(model);
        let mut names = std::iter::once(model).chain(fallbacks.iter().map(String::as_str));
        names.all(|name| self.has_no_price(name, &is_free))
    }

    fn has_no_price(&self, name: &str, is_free: impl Fn(&str) -> bool) -> bool {
        self.split_upstream(name).0.is_none() && is_free(self.target(name))
    }

    async fn read_for(
        self: &Arc<Self>,
        name: &str,
        fallbacks: &Fallbacks,
        route: Route,
    ) -> Result<Arc<ClientRequest>, ApiError> {
        let (upstream, model) = self.split_upstream(name);
        let body = with_model(&fallbacks.body, model).unwrap_or_else(|| fallbacks.body.clone());
        let tools_mode = if route == Route::Live { ToolsMode::Live } else { ToolsMode::Buffered };
        let receiver = Receiver { upstream: upstream.map(str::to_owned), tools_mode: Some(tools_mode) };
        // Boxed as it is rare: every request pays for the size of its future.
        Box::pin(self.read_request(body, fallbacks.origin.clone(), receiver)).await
    }

    /// Splits `UPSTREAM/MODEL` into the upstream's name and the model's; a model's name may have slashes,
    /// too.
    pub(super) fn split_upstream<'a>(&self, name: &'a str) -> (Option<&'a str>, &'a str) {
        let is_upstream = |prefix: &str| self.fleet.iter().any(|upstream| upstream.name == prefix);
        match name.split_once('/') {
            Some((prefix, model)) if is_upstream(prefix) && !self.config.models.contains_key(name) => {
                (Some(prefix), model)
            }
            _ => (None, name),
        }
    }
}

/// Records that the fallback `model` answers instead of `asked`.
fn note_fallback(origin: &Origin, asked: &str, reason: FallbackReason, model: &str, attempts: &PastAttempts) {
    let PastAttempts { error, spent } = attempts;
    origin.record.falls_back(asked, reason.as_str(), model, error.clone(), *spent);
    origin.progress.note_answering_model(model);
}

fn model_of(body: &Bytes) -> Option<String> {
    Object::parse(std::str::from_utf8(body).ok()?).ok()?.string("model")
}

fn with_model(body: &Bytes, model: &str) -> Option<Bytes> {
    let mut object = Object::parse(std::str::from_utf8(body).ok()?).ok()?;
    object.set("model", encode_string(model));
    Some(Bytes::from(object.to_json()))
}
