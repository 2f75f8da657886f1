//! A request that has arrived: the facts known before its body is read, and its record.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, HeaderMap, header};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use tokio::time::Instant;

use super::permit::{self, Cost};
use super::{reading, target};
use crate::app::App;
use crate::body::BodyReservation;
use crate::respond;
use relay::{Origin, ReplyWishes, RequestProgress, Wire, program_of};
use telemetry::capture::Collector;
use telemetry::{RequestRecord, RequestStart};
use translate::ClientProgram;
use wire::{ApiError, Object};

/// Begins the record of a request.
///
/// `name`: method and path, as the log shows them. `route`: one of a few names, as metrics count it.
pub(crate) fn begin_record(
    app: &App,
    headers: &HeaderMap,
    extensions: &Extensions,
    name: impl Into<Cow<'static, str>>,
    route: &'static str,
) -> RequestRecord {
    let start = RequestStart::new(respond::request_id(headers), name, route);
    let start = start.with_account(permit::key_account(extensions)).continuing_trace(headers);
    RequestRecord::begin(start, &app.recording)
}

/// A request on its way through the stages.
pub(crate) struct Arrival {
    pub(crate) app: App,
    pub(crate) parts: Parts,
    pub(crate) peer: Option<IpAddr>,
    /// The program that the client's headers name.
    pub(crate) program: ClientProgram,
    pub(crate) received: Instant,
    pub(crate) record: RequestRecord,
    pub(crate) progress: Arc<RequestProgress>,
}

impl Arrival {
    /// Records a request that arrives now. `name` and `route` as for [`begin_record`].
    pub(crate) fn new(
        app: App,
        parts: Parts,
        peer: Option<IpAddr>,
        name: impl Into<Cow<'static, str>>,
        route: &'static str,
    ) -> Self {
        let received = Instant::now();
        let record = begin_record(&app, &parts.headers, &parts.extensions, name, route);
        let program = program_of(&parts.headers);
        Self { app, parts, peer, program, received, record, progress: Arc::default() }
    }

    /// Reads the body, and takes a part of the budget for request bodies.
    ///
    /// # Errors
    /// Those of [`reading::read_request_body`].
    pub(crate) async fn read_body(&self, body: Incoming) -> Result<(Bytes, BodyReservation), ApiError> {
        let (body, reservation) = reading::read_request_body(&self.app, &self.parts, body).await?;
        self.record.content().take_client_request(&body);
        Ok((body, reservation))
    }

    /// Checks that the client's key may use the model that the body names, and that its limits are not
    /// reached.
    ///
    /// # Errors
    /// 404 for a model that the key may not use, 429 when a limit is reached.
    pub(crate) fn check_permission(&self, body: &Bytes, cost: Cost) -> Result<(), ApiError> {
        permit::begin_model(&self.app, &self.parts, body, cost)
            .inspect_err(|_| record_refused(&self.app, &self.record, body))
    }

    /// Returns the origin of the request for the relay. The headers move into it.
    pub(crate) fn take_origin(&mut self, wire: Wire, path_and_query: Cow<'static, str>) -> Origin {
        Origin {
            wire,
            program: self.program,
            path_and_query,
            request_id: respond::upstream_id(&self.parts.headers, &self.record.start().id),
            headers: std::mem::take(&mut self.parts.headers),
            peer: self.peer,
            priority: permit::key_priority(&self.parts.extensions),
            received: self.received,
            is_agent: false,
            wishes: ReplyWishes::default(),
            record: self.record.clone(),
            progress: Arc::clone(&self.progress),
        }
    }

    /// Records how the reply leaves, and adds the headers that all replies have.
    pub(crate) fn finish_response(&self, response: Response) -> Response {
        let response =
            respond::with_trimmed(respond::finish_response(response, &self.record), &self.progress);
        match self.record.content().collector() {
            Some(collector) => collect_reply(response, Arc::clone(collector)),
            None => response,
        }
    }

    /// Returns the program that sent a request with this body, for the form of an error.
    pub(crate) fn client_program(&self, body: &[u8]) -> ClientProgram {
        self.program.or(ClientProgram::from_chat_body(body))
    }
}

/// Records the model and the agent that a refused request asked for: its route has not read it yet.
pub(super) fn record_refused(app: &App, record: &RequestRecord, body: &Bytes) {
    let object = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok());
    if let Some(model) = object.and_then(|object| object.string("model")) {
        record.set_model(&model);
    }
    if let Some(named) = target::named_agent(app, body) {
        record.set_agent(&named.agent.name);
    }
}

/// Collects the head of a reply, and its bytes as they leave.
fn collect_reply(response: Response, collector: Arc<Collector>) -> Response {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    collector.take_client_head(response.status().as_u16(), content_type.unwrap_or_default());
    let collect = move |frame: &Frame<Bytes>| {
        frame.data_ref().into_iter().for_each(|piece| collector.take_client_piece(piece));
    };
    response.map(|body| Body::new(body.inspect_frame(collect)))
}
