//! Requests that respool does not read: sent on as they came, to an upstream that serves their model where
//! that is cheap to know, else to the first one that works. Called by `server`.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::candidates::{Candidates, more_informative, no_upstream};
use super::relay::Relay;
use telemetry::RequestRecord;
use upstream::{
    Call, Outgoing, OwnWire, QueueClient, Serving, Upstream, UpstreamError, UpstreamResponse, UpstreamResult,
    conversation,
};
use wire::{ApiError, Object, Pieces, encode_string};

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
    /// The model that it is for, as the body that goes up names it; empty when it names none.
    pub model: String,
    /// Where it came from.
    pub peer: Option<IpAddr>,
    /// Where everything that happens to it is recorded.
    pub record: RequestRecord,
}

/// The body of a request that is passed on.
#[derive(Debug)]
pub enum Passing {
    /// All of it is here: the request can be sent more than once.
    Whole(Pieces),
    /// It comes piece by piece.
    Streamed {
        /// `None` once it was sent.
        body: Option<Outgoing>,
        /// The part that has arrived; it may be empty.
        beginning: Bytes,
    },
}

/// The model that a request of another kind names.
#[derive(Debug, Default)]
pub struct NamedModel {
    /// The model's name as the client wrote it; empty when it gave none.
    pub model: String,
    /// A stream was asked for.
    pub stream: bool,
    /// The model that the name stands for.
    pub target: String,
    /// The body as it goes up: with that model.
    pub body: Bytes,
}

impl Forward {
    fn next_call(&mut self) -> Call {
        let body = match &mut self.body {
            Passing::Whole(bytes) => bytes.clone().into(),
            Passing::Streamed { body, .. } => body.take().unwrap_or_else(Outgoing::empty),
        };
        let (method, headers) = (self.method.clone(), self.headers.clone());
        Call { method, path_and_query: self.path_and_query.clone().into(), headers, body, verbatim: true }
    }

    /// Returns true if another upstream can be asked: the whole body is at hand, and only an upstream that
    /// could not be reached has surely done nothing.
    fn may_go_elsewhere(&self, error: &UpstreamError) -> bool {
        matches!(self.body, Passing::Whole(_)) && error.error.status == 503
    }
}

/// Returns true for methods that change nothing (RFC 9110, 9.2.1): such a request takes no place at an
/// upstream.
pub fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

impl Relay {
    /// Returns true when some API is left to some server at all.
    pub fn leaves_wires(&self) -> bool {
        self.fleet.iter().any(|upstream| !upstream.wires.is_empty())
            || self.config.models.values().any(|model| model.wires.is_some())
    }

    /// Returns true when the servers of this model answer this API themselves.
    pub fn leaves_to_server(&self, model: &str, wire: OwnWire) -> bool {
        if let Some(wires) = self.config.own_wires(model) {
            return wires.contains(&wire);
        }
        let (Serving::Known(order) | Serving::Possible(order)) =
            self.fleet.find_servers(self.config.target(model), 0)
        else {
            return false;
        };
        !order.is_empty() && order.iter().all(|upstream| upstream.wires.contains(&wire))
    }

    /// Reads the model from the JSON body of a request of another kind.
    pub fn named_model(&self, body: &Bytes) -> NamedModel {
        let text = std::str::from_utf8(body).unwrap_or_default();
        let Ok(mut object) = Object::parse(text) else {
            return NamedModel { body: body.clone(), ..NamedModel::default() };
        };
        let model = object.string("model").unwrap_or_default();
        let target = self.config.target(&model).to_owned();
        let stream = object.means_true("stream");
        let body = if target == model {
            body.clone()
        } else {
            object.set("model", encode_string(&target));
            object.to_json().into()
        };
        NamedModel { model, stream, target, body }
    }

    /// Returns true when the configuration names the model, or an upstream is known to serve it.
    pub fn knows_model(&self, model: &str) -> bool {
        let target = self.config.target(model);
        let serves = |upstream: &Upstream| {
            upstream.state.serves_model(target) == Some(true) || upstream.models.has_seen(target)
        };
        self.config.models.contains_key(model) || self.fleet.iter().any(|upstream| serves(upstream))
    }

    /// Returns true when the model that a request names decides where it goes, or what it says there.
    pub fn depends_on_model(&self) -> bool {
        self.fleet.is_several() || self.config.aliases().next().is_some()
    }

    /// Returns the answer, whatever its status; it holds a place at its upstream unless the request's method
    /// is safe.
    ///
    /// # Errors
    /// When no upstream answers: the error that the client gets.
    pub async fn forward(&self, request: Forward) -> Result<Box<UpstreamResponse>, ApiError> {
        let record = request.record.clone();
        match self.ask_in_turn(request).await {
            Ok(answer) => {
                record.set_upstream_status(answer.status().as_u16());
                Ok(answer)
            }
            Err(error) => {
                record.record_failed_attempts(error.status, error.log_text());
                Err(error.error)
            }
        }
    }

    async fn ask_in_turn(&self, mut request: Forward) -> UpstreamResult<Box<UpstreamResponse>> {
        let (order, who) = self.order_for_any(&request);
        let mut candidates = Candidates::new(order, (!is_safe(&request.method)).then_some(who));
        let mut failed: Option<Box<UpstreamError>> = None;
        while let Some(next) = candidates.next().await {
            let error = match next {
                Err((_, full)) => full,
                Ok(admitted) => {
                    let (tried, queued) = (candidates.tried_count(), admitted.queued);
                    request.record.record_upstream(&admitted.upstream.name, tried, queued);
                    let answer = admitted.upstream.send(request.next_call()).await;
                    self.report_outcome(upstream_fault(&answer).as_ref(), admitted.report);
                    match answer {
                        Ok(answer) => return Ok(answer.with_place(admitted.place)),
                        Err(error) if !request.may_go_elsewhere(&error) => return Err(error),
                        Err(error) => {
                            if candidates.has_another() {
                                admitted.upstream.state.count_failover();
                            }
                            error
                        }
                    }
                }
            };
            failed = Some(match failed {
                Some(earlier) => more_informative(earlier, error),
                None => error,
            });
        }
        Err(failed.unwrap_or_else(no_upstream))
    }

    /// Returns those that serve the model, or may, else all as configured; and whose request it is.
    fn order_for_any(&self, request: &Forward) -> (Arc<[Arc<Upstream>]>, QueueClient) {
        let beginning = match &request.body {
            Passing::Whole(pieces) => pieces.first_piece(),
            Passing::Streamed { beginning, .. } => beginning,
        };
        let object = std::str::from_utf8(beginning).ok().and_then(|text| Object::parse(text).ok());
        let who = conversation::identify_other(&request.headers, object.as_ref(), beginning);
        let order = match self.fleet.find_servers(&request.model, who.conversation) {
            Serving::Known(order) | Serving::Possible(order) => order,
            Serving::NotServed => {
                let usable: Arc<[_]> = self
                    .fleet
                    .iter()
                    .filter(|upstream| upstream.state.refusal().is_none())
                    .cloned()
                    .collect();
                if usable.is_empty() { self.fleet.iter().cloned().collect() } else { usable }
            }
        };
        (order, conversation::from(who, request.peer))
    }
}

/// Returns the failure of the upstream that an answer shows.
fn upstream_fault(answer: &UpstreamResult<Box<UpstreamResponse>>) -> Option<UpstreamError> {
    match answer {
        Ok(answer) if answer.status().is_server_error() => {
            Some(UpstreamError::from_answer(answer.upstream(), answer.status().as_u16(), ""))
        }
        Ok(_) => None,
        Err(error) => Some(UpstreamError::clone(error)),
    }
}
