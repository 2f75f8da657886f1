//! The metrics of agents' runs: names, help texts, recording.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// Runs that ended, by agent and outcome.
pub const RUNS: &str = "respool_agent_runs_total";
/// Runs being worked on.
pub const RUNNING: &str = "respool_agent_runs_in_progress";
/// Model calls of agents, by agent and reason.
pub const ITERATIONS: &str = "respool_agent_iterations_total";
/// Tool calls of agents, by tool and outcome.
pub const TOOLS: &str = "respool_agent_tool_calls_total";
/// Seconds of a tool call.
pub const TOOL_DURATION: &str = "respool_agent_tool_seconds";
/// Seconds of an iteration outside model, tools and pauses.
pub const OVERHEAD: &str = "respool_agent_overhead_seconds";
/// Tokens of agents, by agent and kind.
pub const TOKENS: &str = "respool_agent_tokens_total";

/// Counts a run that begins or resumes (1), or that pauses or ends (-1).
pub fn adjust_running(change: f64) {
    gauge!(RUNNING).increment(change);
}

/// Counts a run that ended.
pub fn record_run(agent: &str, outcome: &'static str) {
    counter!(RUNS, "agent" => agent.to_owned(), "outcome" => outcome).increment(1);
}

/// Counts a model call and its tokens.
pub fn record_iteration(agent: &str, why: &str, prompt: u64, completion: u64) {
    counter!(ITERATIONS, "agent" => agent.to_owned(), "why" => why.to_owned()).increment(1);
    counter!(TOKENS, "agent" => agent.to_owned(), "kind" => "prompt").increment(prompt);
    counter!(TOKENS, "agent" => agent.to_owned(), "kind" => "completion").increment(completion);
}

/// Counts a tool call. `tool` is the name of an offered tool, so a model cannot invent labels.
pub fn record_tool_call(tool: &str, outcome: &'static str, seconds: f64) {
    counter!(TOOLS, "tool" => tool.to_owned(), "outcome" => outcome).increment(1);
    histogram!(TOOL_DURATION, "tool" => tool.to_owned()).record(seconds);
}

/// Records the mean time that respool itself took for an iteration of a run.
pub fn record_overhead(seconds: f64) {
    histogram!(OVERHEAD).record(seconds);
}

pub(super) fn describe_metrics() {
    describe_counter!(RUNS, "Agents' runs that ended, by agent and outcome");
    describe_gauge!(RUNNING, "Agents' runs being worked on");
    describe_counter!(ITERATIONS, "Agents' model calls, by agent and reason");
    describe_counter!(TOOLS, "Agents' tool calls, by tool and outcome");
    describe_histogram!(TOOL_DURATION, "Seconds of an agent's tool call, by tool");
    describe_histogram!(OVERHEAD, "Seconds of an agent's iteration outside model, tools and pauses");
    describe_counter!(TOKENS, "Agents' tokens, by agent and kind");
}
