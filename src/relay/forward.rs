//! Requests that respool does not read: sent on as they came, to an upstream that serves their model where that is cheap to
//! know, else to the first one that works. Called by `server`.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::candidates::{Candidates, more_telling, no_upstream};
use super::record::{Record, upstream_failed};
use super::{Relay, conversation};
use crate::observe::SharedLine;
use crate::upstream::{Answer, Call, Outgoing, Serving, Upstream, UpstreamError, Who};
use crate::wire::{ApiError, Object};

/// A request to be passed on.
#[derive(Debug)]
pub struct Forward {
    /// Its method.
    pub method: Method,
    /// Path and query as the client wrote them.
    pub path_and_query: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Passing,
    /// Where it came from.
    pub peer: Option<IpAddr>,
}

/// The body of a request that is passed on.
#[derive(Debug)]
pub enum Passing {
    /// All of it is here: the model is known, and the request can be sent more than once.
    Whole(Bytes),
    /// It comes piece by piece; `None` once it was sent.
    Streamed(Option<Outgoing>),
}

impl Forward {
    fn call(&mut self) -> Call {
        let body = match &mut self.body {
            Passing::Whole(bytes) => bytes.clone().into(),
            Passing::Streamed(body) => body.take().unwrap_or_else(Outgoing::empty),
        };
        let (method, headers) = (self.method.clone(), self.headers.clone());
        Call { method, path_and_query: self.path_and_query.clone(), headers, body, verbatim: true }
    }

    /// Another upstream can be asked, and only one that could not be reached has surely done nothing.
    fn may_go_elsewhere(&self, error: &UpstreamError) -> bool {
        matches!(self.body, Passing::Whole(_)) && error.error.status == 503
    }
}

impl Relay {
    /// True when it matters which model a request of another kind is for.
    pub fn wants_models_of_others(&self) -> bool {
        self.fleet.is_several()
    }

    /// The answer, whatever its status; it holds a place at its upstream when the request was a `POST`.
    ///
    /// # Errors
    /// When no upstream answers: what the client is to be told.
    pub async fn forward(&self, request: Forward, line: &SharedLine) -> Result<Answer, ApiError> {
        let record = Record::new(line.clone());
        match self.ask_in_turn(request, &record).await {
            Ok(answer) => {
                record.status(answer.status().as_u16());
                Ok(answer)
            }
            Err(error) => Err(upstream_failed(error, line)),
        }
    }

    async fn ask_in_turn(&self, mut request: Forward, record: &Record) -> Result<Answer, UpstreamError> {
        let (order, who) = self.order_for_any(&request);
        let mut candidates = Candidates::new(order.into(), (request.method == Method::POST).then_some(who));
        let mut failed: Option<UpstreamError> = None;
        while let Some(next) = candidates.next().await {
            let error = match next {
                Err((_, full)) => full,
                Ok(seat) => {
                    let (tried, queued) = (candidates.tried(), seat.queued);
                    record.asks(&seat.upstream.name, tried, queued);
                    let answer = seat.upstream.send(request.call()).await;
                    self.note(fault(&answer).as_ref(), seat.trial);
                    match answer {
                        Ok(answer) => return Ok(answer.holding(seat.place)),
                        Err(error) if !request.may_go_elsewhere(&error) => return Err(error),
                        Err(error) => {
                            if candidates.has_another() {
                                seat.upstream.standing.count_failover();
                            }
                            error
                        }
                    }
                }
            };
            failed = Some(match failed {
                Some(earlier) => more_telling(earlier, error),
                None => error,
            });
        }
        Err(failed.unwrap_or_else(no_upstream))
    }

    /// Those that serve the model, or may, else all as configured; and whose request it is.
    fn order_for_any(&self, request: &Forward) -> (Vec<Arc<Upstream>>, Who) {
        let text = match &request.body {
            Passing::Whole(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Passing::Streamed(_) => "",
        };
        let object = Object::parse(text).ok();
        let who = conversation::of_other(&request.headers, object.as_ref(), text.as_bytes());
        let model = object.and_then(|object| object.string("model")).unwrap_or_default();
        let order = match self.fleet.serving(self.config.target(&model), who.conversation) {
            Serving::Known(order) | Serving::Perhaps(order) => order,
            Serving::Nobody => self.fleet.iter().cloned().collect(),
        };
        (order, conversation::from(who, request.peer))
    }
}

/// What the answer says about its upstream.
fn fault(answer: &Result<Answer, UpstreamError>) -> Option<UpstreamError> {
    match answer {
        Ok(answer) if answer.status().is_server_error() => {
            Some(UpstreamError::from_answer(answer.upstream(), answer.status().as_u16(), ""))
        }
        Ok(_) => None,
        Err(error) => Some(error.clone()),
    }
}
