//! The place of traces in a build without the feature `otlp`.

#[path = "otlp/config.rs"]
mod config;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use config::OtlpConfig;

use crate::{Span, SpanSink, TraceContext};

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
#[error("this build of respool sends no traces: build it with the feature `otlp`")]
pub struct CollectorError;

/// Takes spans, which this build cannot.
#[derive(Debug)]
pub enum Traces {}

impl Traces {
    /// Refuses an endpoint.
    ///
    /// # Errors
    /// When one is configured.
    pub fn open(config: &OtlpConfig) -> Result<Option<Arc<Self>>, CollectorError> {
        if config.endpoint.is_some() { Err(CollectorError) } else { Ok(None) }
    }

    /// Sends nothing.
    #[expect(clippy::unused_async, reason = "it has the form of the one with traces")]
    pub async fn send_until(self: Arc<Self>, _: CancellationToken) {
        match *self {}
    }

    /// Sends nothing.
    #[expect(clippy::unused_async, reason = "it has the form of the one with traces")]
    pub async fn flush(&self) {
        match *self {}
    }
}

impl SpanSink for Traces {
    fn record_span(&self, _: Span) {
        match *self {}
    }

    fn begin_run(&self, _: &str, _: TraceContext) {
        match *self {}
    }

    fn run_context(&self, _: &str) -> (TraceContext, Option<u64>) {
        match *self {}
    }
}
