//! From an agent's settings and a client's request to the setup of a run. Pure. Used by `agents`.

use super::agents::Agent;
use super::config::{AgentConfig, Parser, ReadFirst};
use super::record::{Form, Limits, Offered, Runs, Setup, Sizes, Style};
use super::request::AgentRequest;
use crate::tools::ToolSpec;

/// The setup of a run that begins now.
pub(super) fn setup(agent: &Agent, request: AgentRequest, sizes: Sizes, seed: u64, at: u64) -> Setup {
    let config = &agent.config;
    let mut tools: Vec<Offered> = agent.tools.specs().into_iter().map(|spec| offered(spec, config)).collect();
    // respool's own tool wins over a client's of the same name.
    let new = |tool: &Offered| tools.iter().all(|own| own.name != tool.name);
    let client: Vec<Offered> = request.tools.into_iter().filter(new).collect();
    tools.extend(client);
    Setup {
        agent: agent.name.to_string(),
        seed,
        at,
        system: agent.prompt.clone(),
        messages: request.messages,
        tools,
        style: style(config),
        limits: limits(config, sizes),
    }
}

impl AgentConfig {
    /// True when calls are found in text that the relay does not read: then a reply that looks useless to it may hold one.
    pub fn reads_for_itself(&self) -> bool {
        form(&self.parsers) != Form::Native || self.read_first == ReadFirst::Reasoning
    }
}

fn offered(spec: ToolSpec, config: &AgentConfig) -> Offered {
    let timeout = spec.timeout.unwrap_or(config.tool_timeout);
    Offered {
        name: spec.name,
        description: spec.description,
        parameters: spec.parameters,
        runs: Runs::Here { timeout: millis(timeout), repeatable: spec.is_repeatable },
        result_limit: spec.result_limit.unwrap_or(config.result_limit.bytes()),
    }
}

fn limits(config: &AgentConfig, Sizes { window, max_tokens, is_harmony }: Sizes) -> Limits {
    Limits {
        iterations: config.max_iterations,
        time: millis(config.run_timeout),
        model_time: millis(config.model_timeout),
        tokens: config.token_budget,
        max_tokens,
        window,
        is_harmony,
        pause: millis(config.pause),
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn style(config: &AgentConfig) -> Style {
    Style {
        form: form(&config.parsers),
        parsers: config.parsers.iter().map(name).collect(),
        reasoning_first: config.read_first == ReadFirst::Reasoning,
    }
}

/// The first parser that says how calls are written decides how the model is asked to write them.
fn form(parsers: &[Parser]) -> Form {
    let form = |parser: &Parser| match parser {
        Parser::GuidedJson => Some(Form::GuidedJson),
        Parser::React => Some(Form::React),
        Parser::Markers => Some(Form::Markers),
        Parser::Dialect(name) if name == "react" => Some(Form::React),
        Parser::Dialect(name) if name == "marker" => Some(Form::Markers),
        Parser::Native | Parser::Dialect(_) => Some(Form::Native),
        Parser::Fuzzy => None,
    };
    let none = if parsers.is_empty() { Form::Native } else { Form::Plain };
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
            assert_eq!(form(&parsers), expected, "{parsers:?}");
        };
        check(&["native", "harmony", "fuzzy"], Form::Native);
        check(&["fuzzy", "react", "native"], Form::React);
        check(&["markers", "fuzzy"], Form::Markers);
        check(&["guided_json"], Form::GuidedJson);
        check(&["fuzzy"], Form::Plain);
        check(&[], Form::Native);
    }
}
