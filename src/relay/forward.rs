//! Requests that respool does not read: sent on as they came, to an upstream that serves their model where that is cheap to
//! know, else to the first one that works. Called by `server`.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::round::Round;
use super::{Relay, conversation};
use crate::observe::SharedLine;
use crate::upstream::{Answer, Call, Outgoing, Serving, Upstream, UpstreamError};
use crate::wire::Object;

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
    /// It comes piece by piece.
    Streamed(Option<Outgoing>),
}

impl Passing {
    fn take(&mut self) -> Option<Outgoing> {
        match self {
            Self::Whole(bytes) => Some(bytes.clone().into()),
            Self::Streamed(body) => body.take(),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Whole(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Streamed(_) => "",
        }
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
    /// When no upstream answers. Another one is asked only when this one could not be reached: nobody knows what else a
    /// request may have done.
    pub async fn forward(&self, mut request: Forward, line: &SharedLine) -> Result<Answer, UpstreamError> {
        let (order, who) = {
            let text = request.body.text();
            let object = Object::parse(text).ok();
            let who = conversation::of_other(&request.headers, object.as_ref(), text.as_bytes());
            let model = object.and_then(|object| object.string("model")).unwrap_or_default();
            (self.order_for_any(&model, who.conversation), conversation::from(who, request.peer))
        };
        let mut round = Round::new(&order, (request.method == Method::POST).then_some(who));
        while let Some(seat) = round.next(line).await {
            let Some(body) = request.body.take() else { break };
            let (method, headers) = (request.method.clone(), request.headers.clone());
            let path_and_query = request.path_and_query.clone();
            let call = Call { method, path_and_query, headers, body, verbatim: true };
            match seat.upstream.send(call).await {
                Ok(answer) => {
                    let failed = answer.status().is_server_error();
                    let failed = failed.then(|| {
                        UpstreamError::from_answer(&seat.upstream.name, answer.status().as_u16(), "")
                    });
                    self.note(failed.as_ref(), seat.trial);
                    return Ok(answer.holding(seat.place));
                }
                Err(error) => {
                    self.note(Some(&error), seat.trial);
                    if error.error.status != 503 {
                        return Err(error);
                    }
                    round.failed(error, line);
                }
            }
        }
        Err(round.verdict())
    }

    /// Those that serve the model, or may; else all, as configured.
    fn order_for_any(&self, model: &str, conversation: u64) -> Vec<Arc<Upstream>> {
        match self.fleet.serving(self.config.target(model), conversation) {
            Serving::Known(order) | Serving::Perhaps(order) => order,
            Serving::Nobody => self.fleet.iter().cloned().collect(),
        }
    }
}
