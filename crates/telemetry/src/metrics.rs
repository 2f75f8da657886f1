//! Prometheus metrics: names, help texts and the page at `/metrics`.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use wire::turn::Usage;

/// Requests, by route, model, outcome, upstream of the last attempt, and code of the error.
pub const REQUESTS: &str = "respool_requests_total";
/// Requests in progress.
pub const IN_FLIGHT: &str = "respool_requests_in_flight";
/// Seconds from request to the last byte.
pub const DURATION: &str = "respool_request_duration_seconds";
/// Seconds from request to the first byte of the reply.
pub const FIRST_BYTE: &str = "respool_first_byte_seconds";
/// Tokens, by kind (prompt, completion), model and upstream.
pub const TOKENS: &str = "respool_tokens_total";
/// Repairs made to tool calls, by kind.
pub const REPAIRS: &str = "respool_tool_call_repairs_total";
/// Tool calls read, by dialect (`native` for the server's own).
pub const CALLS: &str = "respool_tool_calls_total";
/// Tool calls that did not leave, by reason.
pub const DROPPED: &str = "respool_tool_calls_dropped_total";
/// Upstream attempts beyond the first, by reason.
pub const RETRIES: &str = "respool_upstream_retries_total";
/// Replies that were requested again, by fault and remedy.
pub const SECOND_ATTEMPTS: &str = "respool_second_attempts_total";
/// Requests whose first reply was useless, by the last fault and whether they got a good reply.
pub const RESCUES: &str = "respool_rescues_total";
/// Requests whose prompt shared less than half with that of their conversation's last request.
pub const PREFIXES_LOST: &str = "respool_prompt_prefixes_lost_total";
/// Requests that were adapted to what their upstream takes, by rule and upstream.
pub const ADAPTATIONS: &str = "respool_adaptations_total";
/// Heartbeats sent while an upstream was silent.
pub const HEARTBEATS: &str = "respool_heartbeats_total";
/// Requests in flight at an upstream.
pub const UPSTREAM_IN_FLIGHT: &str = "respool_upstream_in_flight";
/// Requests that wait for a place at an upstream.
pub const UPSTREAM_QUEUED: &str = "respool_upstream_queued";
/// Seconds that requests waited for a place at an upstream.
pub const UPSTREAM_QUEUE: &str = "respool_upstream_queue_seconds";
/// 1 while an upstream's circuit is open.
pub const UPSTREAM_OPEN: &str = "respool_upstream_circuit_open";
/// 1 while an upstream can be used, as probes find it, 0 while it cannot. A probe is sent every few seconds,
/// also without requests.
pub const UPSTREAM_UP: &str = "respool_upstream_up";
/// How often an upstream's circuit opened.
pub const UPSTREAM_EJECTIONS: &str = "respool_upstream_ejections_total";
/// Requests that went on to another upstream after this one had failed.
pub const UPSTREAM_FAILOVERS: &str = "respool_upstream_failovers_total";

/// Calls whose turn's reasoning is remembered.
pub const MEMORY_ENTRIES: &str = "respool_reasoning_memory_entries";
/// Bytes of that memory.
pub const MEMORY_BYTES: &str = "respool_reasoning_memory_bytes";
/// Turns that came back without reasoning, by result (hit: restored, miss: unknown).
pub const MEMORY_LOOKUPS: &str = "respool_reasoning_memory_lookups_total";
/// Warnings of a loop that models got, by kind.
pub const LOOPS_WARNED: &str = "respool_loops_warned_total";
/// Loops that were ended, by kind.
pub const LOOPS_STOPPED: &str = "respool_loops_stopped_total";

/// Usage rows that could not be stored.
pub const USAGE_LOST: &str = "respool_usage_rows_lost_total";

/// The part of a day's budget that is spent, by scope (all, key, agent) and name.
pub const BUDGET_SPENT: &str = "respool_budget_spent";
/// That budget.
pub const BUDGET_LIMIT: &str = "respool_budget_limit";

/// Open alerts, by severity, rule and, for rules about upstreams, upstream; silenced ones count too.
pub const ALERTS_OPEN: &str = "respool_alerts_open";
/// 1 while a changed configuration, or file of client keys, is wrong and not used.
pub const RELOAD_FAILED: &str = "respool_configuration_reload_failed";
/// Log lines that were lost.
pub const LOG_LINES_LOST: &str = "respool_log_lines_lost_total";
/// Alerts that could not be delivered, by sink.
pub const ALERTS_LOST: &str = "respool_alerts_lost_total";

/// 1, with the version and the commit of this program.
pub const BUILD_INFO: &str = "respool_build_info";

/// How many log lines this process has lost.
static LOST_LINES: AtomicU64 = AtomicU64::new(0);
static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
static COMMON: OnceLock<CommonSeries> = OnceLock::new();

const SECONDS: [f64; 14] =
    [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Starts recording; once in a process, later calls do nothing.
pub fn install_recorder() {
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS).ok()?;
        let handle = builder.install_recorder().ok()?;
        describe_metrics();
        begin_at_zero();
        super::agent_metrics::describe_metrics();
        COMMON.get_or_init(CommonSeries::register);
        Some(handle)
    });
}

/// Writes the page in Prometheus's text format; empty before [`install_recorder`].
pub fn render_page() -> String {
    let Some(Some(handle)) = HANDLE.get() else { return String::new() };
    handle.run_upkeep();
    handle.render()
}

/// The series that every request adds to. To look one up by name and labels costs more than all its
/// recording.
struct CommonSeries {
    in_flight: Gauge,
    requests: RwLock<Vec<Arc<RequestSeries>>>,
    tokens: RwLock<Vec<Arc<TokenSeries>>>,
}

/// The tokens of one model at one upstream.
struct TokenSeries {
    model: String,
    upstream: String,
    prompt: Counter,
    completion: Counter,
}

/// The labels of a request's series.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RequestLabels<'a> {
    pub(super) route: &'static str,
    pub(super) outcome: &'static str,
    pub(super) model: Cow<'a, str>,
    /// Empty if no upstream was asked.
    pub(super) upstream: Cow<'a, str>,
    /// Empty without an error.
    pub(super) error_code: &'static str,
}

/// The series of all requests that share these labels.
struct RequestSeries {
    labels: RequestLabels<'static>,
    requests: Counter,
    duration: Histogram,
    first_byte: Histogram,
}

impl CommonSeries {
    fn register() -> Self {
        Self { in_flight: gauge!(IN_FLIGHT), requests: RwLock::default(), tokens: RwLock::default() }
    }

    fn find_tokens(&self, model: &str, upstream: &str) -> Arc<TokenSeries> {
        let is_it = |series: &&Arc<TokenSeries>| series.model == model && series.upstream == upstream;
        let known = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.iter().find(is_it) {
            return Arc::clone(series);
        }
        drop(known);
        let counter = |kind: &'static str| counter!(TOKENS, "kind" => kind, "model" => model.to_owned(), "upstream" => upstream.to_owned());
        let series = Arc::new(TokenSeries {
            model: model.to_owned(),
            upstream: upstream.to_owned(),
            prompt: counter("prompt"),
            completion: counter("completion"),
        });
        self.tokens.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&series));
        series
    }

    fn find_requests(&self, labels: &RequestLabels<'_>) -> Arc<RequestSeries> {
        let is_it = |series: &&Arc<RequestSeries>| series.labels == *labels;
        let known = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.iter().find(is_it) {
            return Arc::clone(series);
        }
        drop(known);
        let RequestLabels { route, outcome, error_code, .. } = *labels;
        let model = labels.model.clone().into_owned();
        let upstream = labels.upstream.clone().into_owned();
        let series = Arc::new(RequestSeries {
            requests: counter!(
                REQUESTS,
                "route" => route,
                "model" => model.clone(),
                "outcome" => outcome,
                "upstream" => upstream.clone(),
                "error_code" => error_code
            ),
            duration: histogram!(DURATION, "route" => route),
            first_byte: histogram!(FIRST_BYTE, "route" => route),
            labels: RequestLabels {
                route,
                outcome,
                model: model.into(),
                upstream: upstream.into(),
                error_code,
            },
        });
        self.requests.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&series));
        series
    }
}

/// The series of one upstream, by its name in the configuration.
#[derive(Debug)]
pub struct UpstreamSeries {
    /// [`UPSTREAM_IN_FLIGHT`].
    pub in_flight: Gauge,
    /// [`UPSTREAM_QUEUED`].
    pub queued: Gauge,
    /// [`UPSTREAM_QUEUE`].
    pub queue: Histogram,
    /// [`UPSTREAM_OPEN`].
    pub open: Gauge,
    /// [`UPSTREAM_EJECTIONS`].
    pub ejections: Counter,
    /// [`UPSTREAM_FAILOVERS`].
    pub failovers: Counter,
}

impl UpstreamSeries {
    /// Registers the series of an upstream.
    pub fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self {
            in_flight: gauge!(UPSTREAM_IN_FLIGHT, "upstream" => name.clone()),
            queued: gauge!(UPSTREAM_QUEUED, "upstream" => name.clone()),
            queue: histogram!(UPSTREAM_QUEUE, "upstream" => name.clone()),
            open: gauge!(UPSTREAM_OPEN, "upstream" => name.clone()),
            ejections: counter!(UPSTREAM_EJECTIONS, "upstream" => name.clone()),
            failovers: counter!(UPSTREAM_FAILOVERS, "upstream" => name),
        }
    }
}

/// Counts a request that has arrived.
pub(super) fn count_arrival() {
    if let Some(common) = COMMON.get() {
        common.in_flight.increment(1.0);
    }
}

/// Records the outcome and the times of a request that has ended.
pub(super) fn record_request(labels: &RequestLabels<'_>, total: Duration, first: Option<Duration>) {
    let Some(common) = COMMON.get() else { return };
    common.in_flight.decrement(1.0);
    let series = common.find_requests(labels);
    series.requests.increment(1);
    series.duration.record(total.as_secs_f64());
    if let Some(first) = first {
        series.first_byte.record(first.as_secs_f64());
    }
    run_upkeep_sometimes();
}

/// Counts the tokens of a reply.
pub(super) fn count_tokens(usage: Usage, model: &str, upstream: &str) {
    let Some(common) = COMMON.get() else { return };
    let series = common.find_tokens(model, upstream);
    for (counter, count) in [(&series.prompt, usage.prompt), (&series.completion, usage.completion)] {
        if count > 0 {
            counter.increment(count);
        }
    }
}

/// Counts a request with second attempts, by its end.
pub fn count_rescue(fault: &'static str, rescued: bool) {
    let rescued = if rescued { "yes" } else { "no" };
    counter!(RESCUES, "fault" => fault, "rescued" => rescued).increment(1);
}

/// Counts a request whose prompt begins differently than its conversation's last one.
pub fn count_lost_prefix() {
    counter!(PREFIXES_LOST).increment(1);
}

/// Counts a request that is adapted to its upstream by a rule of docs/requests.md.
pub fn count_adaptation(rule: &'static str, upstream: &str) {
    counter!(ADAPTATIONS, "rule" => rule, "upstream" => upstream.to_owned()).increment(1);
}

/// Counts usage rows that could not be stored.
pub fn count_lost_usage_rows(count: u64) {
    counter!(USAGE_LOST).increment(count);
}

/// Counts log lines that were lost.
pub(super) fn count_lost_log_lines(lines: u64) {
    if lines > 0 {
        LOST_LINES.fetch_add(lines, Ordering::Relaxed);
        counter!(LOG_LINES_LOST).increment(lines);
    }
}

/// Returns how many log lines this process has lost.
pub fn lost_log_lines() -> u64 {
    LOST_LINES.load(Ordering::Relaxed)
}

/// Counts an alert that could not be delivered.
pub fn count_lost_alert(sink: &str) {
    counter!(ALERTS_LOST, "sink" => sink.to_owned()).increment(1);
}

/// Sets the number of open alerts of a rule. `upstream` is empty for rules about something else.
pub fn set_open_alerts(severity: &'static str, rule: &'static str, upstream: &str, count: usize) {
    let open = gauge!(ALERTS_OPEN, "severity" => severity, "rule" => rule, "upstream" => upstream.to_owned());
    open.set(u32::try_from(count).unwrap_or(u32::MAX));
}

/// Sets a day's budget, and the part of it that is spent; NaN, which matches no rule, where it is gone.
pub fn set_budget(scope: &'static str, name: &str, spent: f64, limit: f64) {
    gauge!(BUDGET_SPENT, "scope" => scope, "name" => name.to_owned()).set(spent);
    gauge!(BUDGET_LIMIT, "scope" => scope, "name" => name.to_owned()).set(limit);
}

/// Sets whether a changed configuration, or file of client keys, is wrong and not used.
pub fn set_reload_failed(failed: bool) {
    gauge!(RELOAD_FAILED).set(u8::from(failed));
}

/// Sets the size of the remembered reasoning.
pub fn set_reasoning_memory(entries: usize, bytes: usize) {
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats, and these numbers are small")]
    let (entries, bytes) = (entries as f64, bytes as f64);
    gauge!(MEMORY_ENTRIES).set(entries);
    gauge!(MEMORY_BYTES).set(bytes);
}

/// Counts the turns of a request that got their reasoning back, and those that could not.
pub fn count_recalled_reasoning(hits: usize, misses: usize) {
    for (result, count) in [("hit", hits), ("miss", misses)] {
        if count > 0 {
            counter!(MEMORY_LOOKUPS, "result" => result).increment(count as u64);
        }
    }
}

/// Sums up recorded values once in a while. Otherwise each value is kept until the page is requested, which
/// may never happen.
fn run_upkeep_sometimes() {
    static RECORDED: AtomicU32 = AtomicU32::new(0);
    if RECORDED.fetch_add(1, Ordering::Relaxed) % 4096 == 4095
        && let Some(Some(handle)) = HANDLE.get()
    {
        handle.run_upkeep();
    }
}

/// The kinds of loops, as the metrics name them.
pub const LOOP_KINDS: [&str; 5] = ["too_many_results", "repeated", "alternating", "drifting", "unknown_tool"];

/// Creates the counters that alert rules use: a rule sees no increase in a counter that begins with 1.
fn begin_at_zero() {
    counter!(USAGE_LOST).increment(0);
    counter!(LOG_LINES_LOST).increment(0);
    for kind in LOOP_KINDS {
        counter!(LOOPS_STOPPED, "kind" => kind).increment(0);
    }
}

/// Says which program this is. `commit` is empty where the build did not know it.
pub fn set_build_info(version: &'static str, commit: &'static str) {
    gauge!(BUILD_INFO, "version" => version, "commit" => commit).set(1.0);
}

/// Sets the result of an upstream's last probe.
pub fn set_upstream_up(name: &str, is_up: bool) {
    gauge!(UPSTREAM_UP, "upstream" => name.to_owned()).set(f64::from(u8::from(is_up)));
}

/// Ends the state of an upstream that is no longer configured: NaN matches no rule.
pub fn forget_upstream(name: &str) {
    for state in [UPSTREAM_UP, UPSTREAM_OPEN] {
        gauge!(state, "upstream" => name.to_owned()).set(f64::NAN);
    }
}

/// Creates the counter of a sink that has lost no alert yet.
pub fn register_alert_sink(name: &str) {
    counter!(ALERTS_LOST, "sink" => name.to_owned()).increment(0);
}

fn describe_metrics() {
    metrics::describe_counter!(ALERTS_LOST, "Alerts that could not be delivered, by sink");
    metrics::describe_counter!(LOG_LINES_LOST, "Log lines that were lost");
    metrics::describe_counter!(USAGE_LOST, "Usage rows that could not be stored");
    metrics::describe_counter!(
        ADAPTATIONS,
        "Requests that were adapted to what their upstream takes, by rule (docs/requests.md) and upstream"
    );
    metrics::describe_counter!(
        REQUESTS,
        "Requests, by route, model, outcome, upstream of the last attempt, and code of the error"
    );
    metrics::describe_gauge!(BUDGET_SPENT, "The part of a day's budget that is spent, by scope and name");
    metrics::describe_gauge!(BUDGET_LIMIT, "The budget of a day, by scope and name");
    metrics::describe_gauge!(ALERTS_OPEN, "Open alerts, by severity, rule and upstream");
    metrics::describe_gauge!(
        RELOAD_FAILED,
        "1 while a changed configuration, or file of client keys, is wrong and not used"
    );
    metrics::describe_gauge!(BUILD_INFO, "1, with the version and the commit of this program");
    metrics::describe_gauge!(IN_FLIGHT, "Requests in progress");
    metrics::describe_histogram!(DURATION, "Seconds from request to the last byte");
    metrics::describe_histogram!(FIRST_BYTE, "Seconds from request to the first byte of the reply");
    metrics::describe_counter!(TOKENS, "Tokens, by kind, model and upstream");
    metrics::describe_counter!(REPAIRS, "Repairs made to tool calls, by kind");
    metrics::describe_counter!(CALLS, "Tool calls read, by dialect");
    metrics::describe_counter!(DROPPED, "Tool calls that did not leave, by reason");
    metrics::describe_counter!(RETRIES, "Upstream attempts beyond the first, by reason");
    metrics::describe_counter!(SECOND_ATTEMPTS, "Replies asked for again, by fault and remedy");
    metrics::describe_counter!(
        RESCUES,
        "Requests with second attempts, by the last fault and whether they got an answer"
    );
    metrics::describe_counter!(
        PREFIXES_LOST,
        "Requests whose prompt shared less than half with that of their conversation's last request"
    );
    metrics::describe_counter!(HEARTBEATS, "Heartbeats sent while an upstream was silent");
    metrics::describe_gauge!(UPSTREAM_IN_FLIGHT, "Requests in flight at an upstream");
    metrics::describe_gauge!(UPSTREAM_QUEUED, "Requests that wait for a place at an upstream");
    metrics::describe_histogram!(
        UPSTREAM_QUEUE,
        "Seconds for which requests waited for a place at an upstream"
    );
    metrics::describe_gauge!(UPSTREAM_OPEN, "1 while an upstream's circuit is open");
    metrics::describe_gauge!(
        UPSTREAM_UP,
        "1 while an upstream can be used, 0 while it does not answer or refuses the key or a secure connection"
    );
    metrics::describe_counter!(UPSTREAM_EJECTIONS, "How often an upstream's circuit opened");
    metrics::describe_counter!(
        UPSTREAM_FAILOVERS,
        "Requests that went on to another upstream after this one failed"
    );
    metrics::describe_gauge!(MEMORY_ENTRIES, "Calls whose turn's reasoning is remembered");
    metrics::describe_gauge!(MEMORY_BYTES, "Bytes of the remembered reasoning");
    metrics::describe_counter!(MEMORY_LOOKUPS, "Turns that came back without reasoning, by result");
    metrics::describe_counter!(LOOPS_WARNED, "Warnings of a loop that models got, by kind");
    metrics::describe_counter!(LOOPS_STOPPED, "Loops that were ended, by kind");
}
