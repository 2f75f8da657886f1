//! From an agent's settings and a client's request to the setup of a run. Pure. Used by `agents` and
//! `conversation`.

use super::config::{AgentConfig, Parser, ReadFirst};
use super::definition::{Agent, Supervision};
use super::request::AgentRequest;
use super::setup::{CallForm, CallStyle, EndsRun, Executor, Limits, ModelSizes, OfferedTool, Setup};
use tools::ToolSpec;

/// Returns the setup of a run that begins now.
pub(super) fn new_setup(
    agent: &Agent,
    request: AgentRequest,
    sizes: ModelSizes,
    seed: u64,
    at: u64,
) -> Setup {
    let (config, supervision) = (&agent.config, &agent.supervision);
    let own = agent.tools.specs().into_iter().map(|spec| offered_tool(spec, config, supervision));
    let children = supervision.children.iter().flat_map(|children| children.child_tools());
    let mut tools: Vec<OfferedTool> = own.chain(children).collect();
    // respool's own tool wins over a client's of the same name.
    let is_new = |tool: &OfferedTool| tools.iter().all(|own| own.name != tool.name);
    let client: Vec<OfferedTool> = request.tools.into_iter().filter(is_new).collect();
    tools.extend(client);
    Setup {
        agent: agent.name.to_string(),
        key: request.key,
        seed,
        at,
        system: agent.prompt.clone(),
        messages: request.messages,
        tools,
        style: call_style(config),
        limits: run_limits(config, sizes),
        approvals: supervision.rules.clone(),
        settled: supervision.settled.clone(),
        calls_once: supervision.calls_once,
        snapshot: supervision.snapshot.clone(),
        is_private: supervision.is_private,
        ends_at_limits: supervision.ends_at_limits,
        grows_cut_replies: supervision.grows_cut_replies,
        repeats_after_faults: true,
    }
}

impl Agent {
    /// Returns the setup of a child run of this agent, from what is known of its model now.
    pub fn child_setup(&self, request: AgentRequest, seed: u64, at: u64) -> Setup {
        new_setup(self, request, self.known_sizes(), seed, at)
    }
}

impl AgentConfig {
    /// Returns true when calls are found in text that the relay does not read: then a reply that looks
    /// useless to it may hold one.
    pub fn reads_for_itself(&self) -> bool {
        call_form(&self.parsers) != CallForm::Native || self.read_first == ReadFirst::Reasoning
    }
}

fn offered_tool(spec: ToolSpec, config: &AgentConfig, supervision: &Supervision) -> OfferedTool {
    let timeout = spec.timeout.unwrap_or(config.tool_timeout);
    let ends_run = supervision.ends_run.get(&spec.name).copied().unwrap_or_default();
    OfferedTool {
        tier: supervision.tier_of(&spec.name),
        ends_run,
        // A result with one wrong output must not keep a run from ending.
        judges_arguments: ends_run == EndsRun::OnSuccess,
        name: spec.name,
        description: spec.description,
        parameters: spec.parameters,
        executor: Executor::Respool { timeout: clock::to_millis(timeout), repeatable: spec.is_repeatable },
        result_limit: spec.result_limit.unwrap_or(config.result_limit.to_usize()),
    }
}

fn run_limits(config: &AgentConfig, model: ModelSizes) -> Limits {
    let ModelSizes { window, max_tokens, is_harmony, dialects } = model;
    Limits {
        iterations: config.max_iterations,
        time: clock::to_millis(config.run_timeout),
        model_time: clock::to_millis(config.model_timeout),
        tokens: config.token_budget,
        max_tokens,
        window,
        is_harmony,
        dialects,
        pause: clock::to_millis(config.pause),
    }
}

fn call_style(config: &AgentConfig) -> CallStyle {
    CallStyle {
        form: call_form(&config.parsers),
        parsers: config.parsers.iter().map(name).collect(),
        reasoning_first: config.read_first == ReadFirst::Reasoning,
    }
}

/// Returns how the model is asked to write calls: the first parser that says how they are written decides.
fn call_form(parsers: &[Parser]) -> CallForm {
    let form = |parser: &Parser| match parser {
        Parser::GuidedJson => Some(CallForm::GuidedJson),
        Parser::React => Some(CallForm::React),
        Parser::Markers => Some(CallForm::Markers),
        Parser::Dialect(name) if name == "react" => Some(CallForm::React),
        Parser::Dialect(name) if name == "marker" => Some(CallForm::Markers),
        Parser::Native | Parser::Dialect(_) => Some(CallForm::Native),
        Parser::Fuzzy => None,
    };
    let none = if parsers.is_empty() { CallForm::Native } else { CallForm::Plain };
    parsers.iter().find_map(form).unwrap_or(none)
}

fn name(parser: &Parser) -> String {
    match parser {
        Parser::Native => "native",
        Parser::GuidedJson => "guided_json",
        Parser::React => "react",
        Parser::Markers => "markers",
        Parser::Fuzzy => "fuzzy",
        Parser::Dialect(name) => name,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parser_that_says_how_decides_the_form() {
        let check = |parsers: &[&str], expected| {
            let parsers: Vec<Parser> = parsers.iter().map(|name| name.parse().unwrap()).collect();
            assert_eq!(call_form(&parsers), expected, "{parsers:?}");
        };
        check(&["native", "harmony", "fuzzy"], CallForm::Native);
        check(&["fuzzy", "react", "native"], CallForm::React);
        check(&["markers", "fuzzy"], CallForm::Markers);
        check(&["guided_json"], CallForm::GuidedJson);
        check(&["fuzzy"], CallForm::Plain);
        check(&[], CallForm::Native);
    }
}
