//! What is told of runs: log lines per run, iteration and tool, metrics, and the daily error report. Message text is told
//! only when `[log] content` allows it. Called by `driver` and `agents`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::outcome::Outcome;
use super::record::{Asked, Ended, How, ModelFailure, Said};
use super::run::Run;
use super::step::Why;
use crate::observe::{ErrorReport, Failure, agent_metrics};
use crate::store::StoreError;

/// Tells of one run.
#[derive(Clone, Debug)]
pub(super) struct Telemetry {
    pub(super) run: String,
    pub(super) agent: Arc<str>,
    pub(super) report: ErrorReport,
    pub(super) content: bool,
}

impl Telemetry {
    /// A run begins or goes on.
    pub(super) fn started(&self, run: &Run, how: &'static str) {
        agent_metrics::running(1.0);
        let tools = run.setup().tools.len();
        tracing::info!(target: "respool::agent", run_id = self.run, agent = &*self.agent, how, tools, "run");
        if self.content {
            let text = serde_json::to_string(&run.setup().messages).unwrap_or_default();
            tracing::info!(target: "respool::content", run_id = self.run, what = "agent request", text, "content");
        }
    }

    /// The model replied.
    pub(super) fn iteration(&self, run: &Run, why: Why, said: &Said) {
        let tokens = said.tokens;
        agent_metrics::iteration(&self.agent, why.as_str(), tokens.prompt, tokens.completion);
        let parser = run.iterations().last().and_then(|iteration| iteration.parser.clone());
        if parser.as_deref() == Some("fuzzy") {
            tracing::warn!(target: "respool::agent", run_id = self.run, "a call was guessed from natural language");
        }
        for (name, why) in &said.refused {
            tracing::warn!(target: "respool::agent", run_id = self.run, tool = name, why, "a call cannot be made");
        }
        tracing::info!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            iteration = run.iterations().len(),
            why = why.as_str(),
            tools_found = said.calls.len(),
            parser,
            prompt_tokens = tokens.prompt,
            completion_tokens = tokens.completion,
            reasoning_tokens = tokens.reasoning,
            tokens_total = run.spent().total(),
            duration_ms = said.took,
            "iteration"
        );
        if self.content {
            let text = format!("{}\n{}", said.reasoning, said.content);
            tracing::info!(target: "respool::content", run_id = self.run, what = "agent reply", text, "content");
        }
    }

    /// A model call failed.
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
        self.reported(iteration, "model", &format!("{} {}", failure.code, failure.text), fix);
    }

    /// A tool call ended.
    pub(super) fn tool(&self, run: &Run, call: &Asked, ended: &Ended, retried: bool) {
        let iteration = run.iterations().len();
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of one call")]
        agent_metrics::tool(&call.name, ended.how.as_str(), ended.took as f64 / 1_000.0);
        let injected =
            run.iterations().last().and_then(|it| it.tools.last()).map_or(0, |tool| tool.injected_bytes);
        tracing::info!(
            target: "respool::agent",
            run_id = self.run,
            agent = &*self.agent,
            iteration,
            tool = call.name,
            status = ended.how.as_str(),
            duration_ms = ended.took,
            result_bytes = ended.text.len(),
            injected_bytes = injected,
            "tool"
        );
        if ended.how != How::Ok {
            let fix = if retried { "retry" } else { "the model is told" };
            tracing::warn!(target: "respool::agent", run_id = self.run, tool = call.name, fix, "a tool call failed");
            self.reported(iteration, &call.name, &ended.text, fix);
        }
    }

    /// A step could not be committed.
    pub(super) fn not_durable(&self, run: &Run, error: &StoreError) {
        tracing::error!(
            target: "respool::agent",
            run_id = self.run,
            %error,
            "a step cannot be kept: the run goes on and would not survive the end of this process"
        );
        self.reported(run.iterations().len(), "store", &error.0, "the run goes on, not durable");
    }

    /// The run ended.
    pub(super) fn finished(&self, run: &Run, outcome: &Outcome) {
        agent_metrics::run(&self.agent, outcome.as_str());
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
            prompt_tokens = run.spent().prompt,
            completion_tokens = run.spent().completion,
            reasoning_tokens = run.spent().reasoning,
            duration_ms = run.worked(),
            "run ended"
        );
    }

    /// The run is no longer worked on here. `overhead`: what respool itself took for so many iterations.
    pub(super) fn left(&self, why: &'static str, overhead: Duration, iterations: usize) {
        agent_metrics::running(-1.0);
        let each = overhead / u32::try_from(iterations).unwrap_or(u32::MAX).max(1);
        agent_metrics::overhead(each.as_secs_f64());
        let overhead_us = u64::try_from(each.as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(target: "respool::agent", run_id = self.run, why, overhead_us, "run left");
    }

    /// Writes to the report away from the runtime's threads.
    fn reported(&self, iteration: usize, tool: &str, error: &str, fix: &'static str) {
        let (report, tool, error) = (self.report.clone(), tool.to_owned(), error.to_owned());
        let write = move || {
            let failure = Failure { iteration, tool: &tool, error: &error, fix };
            if let Err(error) = report.append(SystemTime::now(), failure) {
                tracing::error!(target: "respool::agent", %error, "the daily error report cannot be written");
            }
        };
        tokio::task::spawn_blocking(write);
    }
}
