//! The facts about a request that are known when it arrives. They never change.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName};

use super::Account;
use super::trace::TraceContext;

/// The header of W3C Trace Context.
pub static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The facts about a request when it arrives.
#[derive(Clone, Debug)]
pub struct RequestStart {
    /// The request id, as it goes upstream and back.
    pub id: String,
    /// `METHOD path`, without the query.
    pub request: Cow<'static, str>,
    /// The route's name, one of a few.
    pub route: &'static str,
    /// The client's account, if clients have keys.
    pub account: Option<Arc<dyn Account>>,
    /// The trace that the client's request belongs to.
    pub parent: Option<TraceContext>,
    pub(super) arrived: Instant,
}

impl RequestStart {
    /// Begins with a request that arrives now.
    pub fn new(id: String, request: impl Into<Cow<'static, str>>, route: &'static str) -> Self {
        Self { id, request: request.into(), route, account: None, parent: None, arrived: Instant::now() }
    }

    /// Counts the request for this account.
    #[must_use]
    pub fn with_account(self, account: Option<Arc<dyn Account>>) -> Self {
        Self { account, ..self }
    }

    /// Makes the request part of the trace in its `traceparent` header.
    #[must_use]
    pub fn continuing_trace(self, headers: &HeaderMap) -> Self {
        let header = headers.get(&TRACEPARENT).and_then(|value| value.to_str().ok());
        Self { parent: header.and_then(TraceContext::parse_header), ..self }
    }

    /// Returns the name of the client's key.
    pub fn key_name(&self) -> Option<&str> {
        self.account.as_ref().map(|account| account.key_name())
    }

    /// Returns the time since the request arrived.
    pub fn time_since_arrival(&self) -> Duration {
        self.arrived.elapsed()
    }
}
