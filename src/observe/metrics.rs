//! Prometheus metrics: names, help texts and the page at `/metrics`.

use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Requests, by route, model and outcome.
pub const REQUESTS: &str = "respool_requests_total";
/// Requests being served.
pub const IN_FLIGHT: &str = "respool_requests_in_flight";
/// Seconds from request to the last byte.
pub const DURATION: &str = "respool_request_duration_seconds";
/// Seconds from request to the first byte of the reply.
pub const FIRST_BYTE: &str = "respool_first_byte_seconds";
/// Tokens, by kind (prompt, completion).
pub const TOKENS: &str = "respool_tokens_total";
/// Repairs made to tool calls, by kind.
pub const REPAIRS: &str = "respool_tool_call_repairs_total";
/// Tool calls read, by dialect (`native` for the server's own).
pub const CALLS: &str = "respool_tool_calls_total";
/// Tool calls that did not leave, by reason.
pub const DROPPED: &str = "respool_tool_calls_dropped_total";
/// Upstream attempts beyond the first, by reason.
pub const RETRIES: &str = "respool_upstream_retries_total";
/// Heartbeats sent while an upstream was silent.
pub const HEARTBEATS: &str = "respool_heartbeats_total";

static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

const SECONDS: [f64; 14] =
    [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Starts recording; once in a process, later calls do nothing.
pub fn install() {
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS).ok()?;
        let handle = builder.install_recorder().ok()?;
        describe();
        Some(handle)
    });
}

/// The page in Prometheus's text format; empty before [`install`].
pub fn page() -> String {
    let Some(Some(handle)) = HANDLE.get() else { return String::new() };
    handle.run_upkeep();
    handle.render()
}

/// Records how one request went.
pub(super) fn request(
    route: &'static str,
    model: &str,
    outcome: &'static str,
    total: Duration,
    first: Option<Duration>,
) {
    metrics::counter!(REQUESTS, "route" => route, "model" => model.to_owned(), "outcome" => outcome)
        .increment(1);
    metrics::histogram!(DURATION, "route" => route).record(total.as_secs_f64());
    if let Some(first) = first {
        metrics::histogram!(FIRST_BYTE, "route" => route).record(first.as_secs_f64());
    }
}

fn describe() {
    metrics::describe_counter!(REQUESTS, "Requests, by route, model and outcome");
    metrics::describe_gauge!(IN_FLIGHT, "Requests being served");
    metrics::describe_histogram!(DURATION, "Seconds from request to the last byte");
    metrics::describe_histogram!(FIRST_BYTE, "Seconds from request to the first byte of the reply");
    metrics::describe_counter!(TOKENS, "Tokens, by kind");
    metrics::describe_counter!(REPAIRS, "Repairs made to tool calls, by kind");
    metrics::describe_counter!(CALLS, "Tool calls read, by dialect");
    metrics::describe_counter!(DROPPED, "Tool calls that did not leave, by reason");
    metrics::describe_counter!(RETRIES, "Upstream attempts beyond the first, by reason");
    metrics::describe_counter!(HEARTBEATS, "Heartbeats sent while an upstream was silent");
}
