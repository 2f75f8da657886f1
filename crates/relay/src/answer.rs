//! A request that was read, and how it is answered: whole, or as a stream. Called by `server` and `agent`.

use std::sync::Arc;

use bytes::Bytes;

use super::candidates::no_upstream;
use super::client::{Origin, RequestProgress};
use super::exchange::{Exchange, ExchangeReply};
use super::fallback::Fallbacks;
use super::fit::{count_tokens, refuse_full};
use super::outcome::Whole;
use super::relay::Relay;
use super::reply_stream::ReplyStream;
use super::request::{ClientRequest, RequestProfile};
use telemetry::{RequestFacts, RequestRecord};
use translate::Reply;
use wire::ApiError;

/// A reply that begins.
#[derive(Debug)]
pub enum Opened {
    /// A stream.
    Stream(Box<ReplyStream>),
    /// A whole completion that was read: with tools, or although a stream was asked for.
    Reply(Box<Reply>),
    /// A whole completion, in the bytes that leave.
    Body(Bytes),
}

/// A client's request, ready to be answered. It is a value of its own so that its caller learns what was
/// asked before the first upstream is asked: when the head of a stream leaves does not depend on the
/// upstream.
#[derive(Debug)]
pub struct ReadRequest {
    relay: Arc<Relay>,
    request: Arc<ClientRequest>,
    fallbacks: Option<Box<Fallbacks>>,
}

impl ReadRequest {
    pub(super) fn new(
        relay: Arc<Relay>,
        request: Arc<ClientRequest>,
        fallbacks: Option<Box<Fallbacks>>,
    ) -> Self {
        Self { relay, request, fallbacks }
    }

    /// Returns the profile of the request.
    pub fn profile(&self) -> &Arc<RequestProfile> {
        &self.request.profile
    }

    /// Returns the record of the request.
    pub fn record(&self) -> &RequestRecord {
        &self.request.record
    }

    /// Returns the progress of the request.
    pub fn progress(&self) -> &Arc<RequestProgress> {
        &self.request.progress
    }

    /// Returns true if waiting is announced to the client.
    pub fn announces_waiting(&self) -> bool {
        self.request.settings.recovery.announce_waiting
    }

    /// Returns the name of the upstream that is likely to be asked first.
    pub fn likely_upstream(&self) -> &str {
        &self.request.plan.first.upstream.name
    }

    /// Returns the facts for the request's record.
    pub fn recorded_facts(&self) -> RequestFacts<'_> {
        let RequestProfile { model, model_is_known, stream, .. } = &*self.request.profile;
        RequestFacts {
            model,
            model_is_known: *model_is_known,
            stream: *stream,
            upstream: self.likely_upstream(),
            edits: &self.request.plan.first.edits,
            loop_warned: self.request.history.added.warning.as_ref().map(|found| found.kind.as_str()),
        }
    }

    /// Returns true if the conversation repeats itself and the loop guard answers in the model's place.
    pub fn is_stopped_by_loop_guard(&self) -> bool {
        self.request.history.loop_found.is_some()
    }

    /// Answers the request in the client's name. The loop guard answers a conversation that repeats itself.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn answer(self) -> Result<Opened, ApiError> {
        if let Some(found) = &self.request.history.loop_found {
            self.request.record.record_loop_stop(found.kind.as_str());
            let reply = Reply::from_text(self.request.profile.own_head(), &found.final_answer());
            return Ok(Opened::Reply(Box::new(reply)));
        }
        self.ask_model().await
    }

    /// Asks the model, whatever the loop guard says.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn ask_model(self) -> Result<Opened, ApiError> {
        let mut exchange = Box::new(Exchange::new(self.relay, self.request, self.fallbacks));
        if let Err(full) = refuse_full(&exchange.request) {
            return Err(exchange.fail_with(&full));
        }
        match exchange.run().await? {
            ExchangeReply::Stream(answer) => Ok(Opened::Stream(Box::new(ReplyStream::new(answer, exchange)))),
            ExchangeReply::Whole(Whole::Reply(reply)) => Ok(Opened::Reply(reply)),
            ExchangeReply::Whole(Whole::Body(body)) => Ok(Opened::Body(body)),
            ExchangeReply::Current(_) => Err(exchange.fail_with(&no_upstream())),
        }
    }
}

impl Relay {
    /// Counts the tokens of a chat request's prompt, and says how: `tokenize` (by the server, exactly),
    /// `o200k_harmony` (here, for gpt-oss) or `estimate`.
    ///
    /// # Errors
    /// 400 when the body is not a chat request, 404 when no upstream serves its model.
    pub async fn count_prompt(
        self: &Arc<Self>,
        body: Bytes,
        origin: Origin,
    ) -> Result<(u64, &'static str), ApiError> {
        let ReadRequest { request, .. } = self.read(body, origin).await?;
        let first = &request.plan.first;
        let count = count_tokens(&request, first, &first.body.to_bytes()).await;
        Ok((count.tokens, count.by))
    }
}
