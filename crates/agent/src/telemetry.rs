//! Logs runs: log lines per run, iteration and tool, metrics, and the daily error report. Message text is
//! logged only when `[log] content` allows it. Called by `driver` and `agents`.

use std::sync::Arc;
use std::time::Duration;

use super::approval::ApprovalRequest;
use super::call::{CallOutcome, RequestedCall, ToolEnd};
use super::event::ModelReply;
use super::failure::ModelFailure;
use super::outcome::Outcome;
use super::run::Run;
use super::step::CallPurpose;
use store::StoreError;
use telemetry::{Attributes, ErrorReport, Failure, Span, SpanKind, SpanSink, TraceContext, agent_metrics};

/// Logs what happens to one run.
#[derive(Clone, Debug)]
pub(super) struct Telemetry {
    pub(super) run: String,
    pub(super) agent: Arc<str>,
    pub(super) report: ErrorReport,
    pub(super) content: bool,
    /// Where spans go.
    pub(super) spans: Option<Arc<dyn SpanSink>>,
}

impl Telemetry {
    /// Logs that a run begins or continues.
    pub(super) fn log_start(&self, run: &Run, how: &'static str) {
        agent_metrics::adjust_running(1.0);
        let tools = run.setup().tools.len();
        tracing::info!(target: "respool::agent", run_id = self.run, agent = &*self.agent, how, tools, "run");
        if self.content {
            let text = serde_json::to_string(&run.setup().messages).unwrap_or_default();
            tracing::info!(target: "respool::content", run_id = self.run, what = "agent request", text, "content");
        }
    }

    /// Records a reply of the model.
    pub(super) fn record_iteration(&self, run: &Run, purpose: CallPurpose, reply: &ModelReply) {
        let tokens = reply.tokens;
        agent_metrics::record_iteration(&self.agent, purpose.as_str(), tokens.prompt, tokens.completion);
        let parser = run.iterations().last().and_then(|iteration| iteration.parser.clone());
        if parser.as_deref() == Some("fuzzy") {
            tracing::warn!(target: "respool::agent", run_id = self.run, "a call was guessed from natural language");
        }
        for (name, why) in &reply.refused {
            let tool = self.content.then_some(name.as_str());
            tracing::warn!(target: "respool::agent", run_id = self.run, tool, why, "a call cannot be made");
        }
        tracing::info!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            iteration = run.iterations().len(),
            why = purpose.as_str(),
            tools_found = reply.calls.len(),
            parser,
            prompt_tokens = tokens.prompt,
            completion_tokens = tokens.completion,
            reasoning_tokens = tokens.reasoning,
            tokens_total = run.spent_tokens().total(),
            duration_ms = reply.took,
            "iteration"
        );
        if self.content {
            let text = format!("{}\n{}", reply.reasoning, reply.content);
            tracing::info!(target: "respool::content", run_id = self.run, what = "agent reply", text, "content");
        }
    }

    /// Records that a model call failed.
    pub(super) fn model_failed(&self, run: &Run, failure: &ModelFailure, retried: bool) {
        let iteration = run.iterations().len() + 1;
        let fix = if retried {
            "retry, or a smaller or corrected prompt"
        } else {
            "none: the run ends with what was achieved"
        };
        tracing::error!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            iteration,
            code = failure.code,
            status = failure.status,
            fix,
            "the model call failed"
        );
        let ModelFailure { status, code, text, .. } = failure;
        let error = match (self.content, code.as_str()) {
            (true, code) => format!("{code} {text}").trim_start().to_owned(),
            (false, "") => format!("{status} failed"),
            (false, code) => format!("{status} {code}"),
        };
        self.report_error(iteration, "model", error, fix);
    }

    /// Records the end of a tool call.
    pub(super) fn record_tool_call(&self, run: &Run, call: &RequestedCall, ended: &ToolEnd, retried: bool) {
        let iteration = run.iterations().len();
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of one call")]
        agent_metrics::record_tool_call(&call.name, ended.outcome.as_str(), ended.took as f64 / 1_000.0);
        self.tool_span(call, ended);
        let injected =
            run.iterations().last().and_then(|it| it.tools.last()).map_or(0, |tool| tool.injected_bytes);
        tracing::info!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            iteration,
            tool = call.name,
            status = ended.outcome.as_str(),
            duration_ms = ended.took,
            result_bytes = ended.text.len(),
            injected_bytes = injected,
            "tool"
        );
        if ended.outcome != CallOutcome::Ok {
            let fix = if retried { "retry" } else { "the model is told" };
            tracing::warn!(target: "respool::agent", run_id = self.run, tool = call.name, fix, "a tool call failed");
            let error = if self.content { ended.text.clone() } else { failure_summary(ended) };
            self.report_error(iteration, &call.name, error, fix);
        }
    }

    /// Records that a person is asked for consent.
    pub(super) fn approval_requested(&self, request: &ApprovalRequest) {
        let tools: Vec<&str> = request.calls.iter().map(|call| call.name.as_str()).collect();
        let tools = tools.join(", ");
        tracing::info!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            approval = request.id,
            tools,
            "the run waits for approval"
        );
    }

    /// Records that a step could not be committed.
    pub(super) fn not_durable(&self, run: &Run, error: &StoreError) {
        tracing::error!(
            target: "respool::agent",
            run_id = self.run,
            %error,
            "a step cannot be kept: the run goes on and would not survive the end of this process"
        );
        self.report_error(run.iterations().len(), "store", error.0.clone(), "the run goes on, not durable");
    }

    /// Records that the run waits until a step can be committed.
    pub(super) fn waits_for_store(&self, run: &Run, error: &StoreError) {
        tracing::warn!(target: "respool::agent", run_id = self.run, %error, "a step cannot be kept: the run waits until it can");
        self.report_error(run.iterations().len(), "store", error.0.clone(), "the run waits for the store");
    }

    /// Records the end of the run.
    pub(super) fn record_end(&self, run: &Run, outcome: &Outcome) {
        agent_metrics::record_run(&self.agent, outcome.as_str());
        self.run_span(run, outcome);
        let tools = || run.iterations().iter().flat_map(|iteration| &iteration.tools);
        tracing::info!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            outcome = outcome.as_str(),
            limit = outcome.limit.as_ref().map(super::outcome::Limit::name),
            iterations = run.iterations().len(),
            tools_executed = tools().count(),
            tools_failed = tools().filter(|tool| tool.outcome != "ok").count(),
            prompt_tokens = run.spent_tokens().prompt,
            completion_tokens = run.spent_tokens().completion,
            reasoning_tokens = run.spent_tokens().reasoning,
            duration_ms = run.working_time(),
            "run ended"
        );
    }

    fn tool_span(&self, call: &RequestedCall, ended: &ToolEnd) {
        let Some(spans) = &self.spans else { return };
        let (run, _) = spans.run_context(&self.run);
        let attributes: Attributes = vec![
            ("gen_ai.operation.name", "execute_tool".into()),
            ("gen_ai.tool.name", (&*call.name).into()),
            ("gen_ai.tool.call.id", (&*call.id).into()),
            ("respool.run", (&*self.run).into()),
        ];
        let error = (ended.outcome != CallOutcome::Ok).then(|| ended.outcome.as_str().to_owned());
        let name = format!("execute_tool {}", call.name);
        let took = Duration::from_millis(ended.took);
        spans.record_span(new_span(run.new_child(), Some(run.span), name, took, attributes, error));
    }

    fn run_span(&self, run: &Run, outcome: &Outcome) {
        let Some(spans) = &self.spans else { return };
        let attributes: Attributes = vec![
            ("gen_ai.operation.name", "invoke_agent".into()),
            ("gen_ai.agent.name", (&*self.agent).into()),
            ("respool.run", (&*self.run).into()),
            ("respool.outcome", outcome.as_str().into()),
            ("gen_ai.usage.input_tokens", run.spent_tokens().prompt.into()),
            ("gen_ai.usage.output_tokens", run.spent_tokens().completion.into()),
        ];
        let name = format!("invoke_agent {}", self.agent);
        let took = Duration::from_millis(run.working_time());
        let (context, parent) = spans.run_context(&self.run);
        spans.record_span(new_span(context, parent, name, took, attributes, None));
    }

    /// Logs that the work on a run ends here. `overhead`: respool's own time for these iterations.
    pub(super) fn log_stop(&self, why: &'static str, overhead: Duration, iterations: usize) {
        agent_metrics::adjust_running(-1.0);
        let each = overhead / u32::try_from(iterations).unwrap_or(u32::MAX).max(1);
        agent_metrics::record_overhead(each.as_secs_f64());
        let overhead_us = u64::try_from(each.as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(target: "respool::agent", run_id = self.run, why, overhead_us, "run left");
    }

    /// Writes to the report away from the runtime's threads.
    fn report_error(&self, iteration: usize, tool: &str, error: String, fix: &'static str) {
        let (report, tool) = (self.report.clone(), tool.to_owned());
        let write = move || {
            let failure = Failure { iteration, tool: &tool, error: &error, fix };
            if let Err(error) = report.append(clock::system_time(), failure) {
                tracing::error!(target: "respool::agent", %error, "the daily error report cannot be written");
            }
        };
        tokio::task::spawn_blocking(write);
    }
}

/// Returns a span of this length that ends now.
fn new_span(
    context: TraceContext,
    parent: Option<u64>,
    name: String,
    took: Duration,
    mut attributes: Attributes,
    error: Option<String>,
) -> Span {
    let end = clock::system_time();
    attributes.extend(error.as_deref().map(|error| ("error.type", error.into())));
    let kind = SpanKind::Internal;
    Span { context, parent, parent_is_remote: false, kind, name, start: end - took, end, attributes, error }
}

/// Describes a tool's failure without the tool's own words: its HTTP status and how it ended.
fn failure_summary(ended: &ToolEnd) -> String {
    let how = match ended.outcome {
        CallOutcome::Denied => "not allowed",
        CallOutcome::Transient => "its server stumbled",
        CallOutcome::Unreachable => "its server was not there",
        CallOutcome::ProtocolError => "its server answered with a protocol error",
        CallOutcome::TimedOut => return format!("stopped after {} ms", ended.took),
        _ => "failed",
    };
    status_in(&ended.text).map_or_else(|| how.to_owned(), |status| format!("{status} {how}"))
}

/// Returns an HTTP status that an error text begins with, has in brackets (OpenClaw 2026.9.6: `Web fetch
/// failed (404): …`), or calls one.
fn status_in(text: &str) -> Option<u16> {
    let mut before = String::new();
    for word in text.split_whitespace().take(40) {
        let bare = word.trim_matches(|char: char| !char.is_ascii_alphanumeric());
        let called = ["status", "code", "error"].contains(&before.as_str()) || before.starts_with("http");
        if (before.is_empty() || word.starts_with('(') || called)
            && let Some(status) = bare.parse().ok().filter(|status| (400..600).contains(status))
        {
            return Some(status);
        }
        before = bare.to_ascii_lowercase();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_failures_quote_no_tool() {
        let check = |how, text: &str, expected: &str| {
            let ended = ToolEnd::new(how, text, 30_002);
            assert_eq!(failure_summary(&ended), expected, "{text}");
        };
        check(CallOutcome::Failed, "Web fetch failed (404): no page of that name", "404 failed");
        check(CallOutcome::Failed, "404 Not Found", "404 failed");
        check(CallOutcome::Transient, "HTTP/1.1 503 Service Unavailable", "503 its server stumbled");
        check(CallOutcome::Failed, "it ended with the status code 410", "410 failed");
        check(CallOutcome::Failed, "secrets.txt has 500 lines", "failed");
        check(CallOutcome::Failed, "there is no file 404.txt", "failed");
        check(CallOutcome::Denied, "rm -rf / is not allowed", "not allowed");
        check(CallOutcome::TimedOut, "half of the output", "stopped after 30002 ms");
    }
}
