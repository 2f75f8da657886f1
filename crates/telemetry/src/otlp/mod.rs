//! Sends spans to a collector (OTLP over HTTP, protobuf). Off unless `[otlp] endpoint` names one. No request
//! waits for it: spans wait in memory, a collector that does not answer costs spans, and lost spans are
//! counted and reported once. OpenTelemetry's types stay in this module. Called by the command line; `trace`
//! makes the spans.

mod config;
mod convert;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use config::OtlpConfig;

use crate::{Span, SpanSink, TraceContext};
use http_client::{TlsError, client_for};
use wire::units::Secret;

/// The most spans that wait. Further spans are lost, and counted.
const MOST_WAITING: usize = 8_192;
/// The most spans of one batch.
const MOST_AT_ONCE: usize = 512;
/// The longest time before a batch is sent.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time that a collector may take.
const WITHIN: Duration = Duration::from_secs(10);
/// The number of runs whose traces are remembered.
const MOST_RUNS: usize = 10_000;
/// The path at which collectors accept traces.
const PATH: &str = "/v1/traces";

/// The reason why no client for the collector can be built.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The exporter refuses this address.
    #[error("{0}: {1}")]
    Exporter(String, ExporterBuildError),
}

/// Takes spans and sends them.
#[derive(Debug)]
pub struct Traces {
    state: Mutex<State>,
    /// Notified when a batch is full.
    full: Notify,
    exporter: SpanExporter,
    endpoint: String,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Span>,
    lost: u64,
    /// The collector failed the last time, which was reported.
    is_broken: bool,
    runs: HashMap<String, (TraceContext, Option<u64>)>,
}

impl Traces {
    /// Prepares to send to the configured collector; `None` unless `[otlp] endpoint` is set.
    ///
    /// # Errors
    /// When no client for it can be built.
    pub fn open(config: &OtlpConfig) -> Result<Option<Arc<Self>>, CollectorError> {
        let Some(endpoint) = &config.endpoint else { return Ok(None) };
        let endpoint = traces_endpoint(endpoint);
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(WITHIN);
        let client = client_for(&endpoint, builder)?;
        let exporter = match build_exporter(&endpoint, config, client) {
            Ok(exporter) => exporter,
            Err(error) => return Err(CollectorError::Exporter(endpoint, error)),
        };
        let (state, full) = (Mutex::default(), Notify::new());
        Ok(Some(Arc::new(Self { state, full, exporter, endpoint })))
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends spans until `stop`.
    pub async fn send_until(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.full.notified() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
            self.flush().await;
        }
    }

    /// Sends the waiting spans.
    pub async fn flush(&self) {
        loop {
            let (batch, lost) = {
                let mut state = self.lock_state();
                let count = state.waiting.len().min(MOST_AT_ONCE);
                (state.waiting.drain(..count).collect::<Vec<_>>(), std::mem::take(&mut state.lost))
            };
            self.count_lost(lost);
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            let data: Vec<SpanData> = batch.into_iter().map(convert::to_span_data).collect();
            let sent = tokio::time::timeout(WITHIN, self.exporter.export(data)).await;
            let why = match sent {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("it did not answer within {} s", WITHIN.as_secs())),
            };
            self.log_change(why.as_deref());
            if why.is_some() {
                self.count_lost(count);
                return;
            }
        }
    }

    fn log_change(&self, why: Option<&str>) {
        let was_broken = std::mem::replace(&mut self.lock_state().is_broken, why.is_some());
        let endpoint = &self.endpoint;
        match why {
            Some(why) if !was_broken => {
                tracing::warn!(target: "respool::otlp", endpoint, why, "the collector does not take spans: they are lost until it does");
            }
            None if was_broken => {
                tracing::info!(target: "respool::otlp", endpoint, "the collector takes spans again");
            }
            _ => {}
        }
    }

    fn count_lost(&self, lost: u64) {
        if lost > 0 {
            metrics::counter!("respool_spans_lost_total").increment(lost);
        }
    }
}

impl SpanSink for Traces {
    fn record_span(&self, span: Span) {
        let mut state = self.lock_state();
        if state.waiting.len() >= MOST_WAITING {
            state.lost += 1;
            return;
        }
        state.waiting.push(span);
        if state.waiting.len() == MOST_AT_ONCE {
            self.full.notify_one();
        }
    }

    fn begin_run(&self, run: &str, parent: TraceContext) {
        self.lock_state().remember_run(run, parent.new_child(), Some(parent.span));
    }

    fn run_context(&self, run_context: &str) -> (TraceContext, Option<u64>) {
        let mut state = self.lock_state();
        if let Some(known) = state.runs.get(run_context) {
            return *known;
        }
        // The run_context resumes after a restart, or was not started by a request.
        let new = TraceContext::begin_trace();
        state.remember_run(run_context, new, None);
        (new, None)
    }
}

impl State {
    fn remember_run(&mut self, run: &str, context: TraceContext, parent: Option<u64>) {
        if self.runs.len() >= MOST_RUNS {
            self.runs.clear();
        }
        self.runs.insert(run.to_owned(), (context, parent));
    }
}

/// Completes a collector's address, which may lack the path.
fn traces_endpoint(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

fn build_exporter(
    endpoint: &str,
    config: &OtlpConfig,
    client: reqwest::Client,
) -> Result<SpanExporter, ExporterBuildError> {
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(client)
        .with_endpoint(endpoint)
        .with_headers(parse_headers(config))
        .with_timeout(WITHIN)
        .build()?;
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder_empty().with_service_name("respool").with_attribute(version).build();
    exporter.set_resource(&resource);
    Ok(exporter)
}

/// Reads the headers of requests to the collector, by name.
fn parse_headers(config: &OtlpConfig) -> HashMap<String, String> {
    let text = config.headers.as_ref().map(Secret::expose_secret).unwrap_or_default();
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_named_by_base_or_whole_address() {
        let check = |text: &str, expected: &str| assert_eq!(traces_endpoint(text), expected);
        check("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces");
        check("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces");
        check("https://otel.example.org/x/v1/traces", "https://otel.example.org/x/v1/traces");
    }

    #[test]
    fn a_run_has_one_place_in_its_trace() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = OtlpConfig { endpoint: Some("http://127.0.0.1:9".into()), ..OtlpConfig::default() };
        let traces = Traces::open(&config).unwrap().unwrap();
        let request = TraceContext::begin_trace();
        traces.begin_run("one", request);
        let (context, parent) = traces.run_context("one");
        assert_eq!((context.trace, parent), (request.trace, Some(request.span)));
        assert_eq!(traces.run_context("one"), (context, parent));
        assert_ne!(traces.run_context("two").0.trace, request.trace);
        assert!(Traces::open(&OtlpConfig::default()).unwrap().is_none(), "off unless it is configured");
    }
}
