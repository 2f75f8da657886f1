//! `[agents.NAME]`: a model id of respool's own that reasons and runs tools.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Size, deserialize_duration};

wire::string_enum! {
    /// How a run goes on when its client went away.
    OnDisconnect {
        /// It ends.
        #[default]
        Cancel = "cancel",
        /// It goes on and its answer is kept.
        Detach = "detach",
    }
}

wire::string_enum! {
    /// The field in which calls are looked for first.
    ReadFirst {
        /// `reasoning` or `reasoning_content`.
        Reasoning = "reasoning",
        /// `content`.
        #[default]
        Content = "content",
    }
}

wire::string_enum! {
    /// How much of the work the client sees.
    Progress {
        /// Lines of reasoning.
        #[default]
        Reasoning = "reasoning",
        /// Nothing before the answer.
        Silent = "silent",
    }
}

/// A way to find calls in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parser {
    /// The server's own `tool_calls`.
    Native,
    /// JSON forced by structured output: `{"tool_calls":[…]}`.
    GuidedJson,
    /// `Action:` and `Action Input:`.
    React,
    /// `[TOOL:name|arg=value]`.
    Markers,
    /// Natural language ("I will search for X").
    Fuzzy,
    /// A dialect of the tool-call engine, by its name in the table of dialects.
    Dialect(String),
}

impl FromStr for Parser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
        match text {
            "native" => Ok(Self::Native),
            "guided_json" => Ok(Self::GuidedJson),
            "react" => Ok(Self::React),
            "markers" => Ok(Self::Markers),
            "fuzzy" => Ok(Self::Fuzzy),
            _ if !text.is_empty() && text.chars().all(plain) => Ok(Self::Dialect(text.to_owned())),
            _ => Err(format!(
                "{text:?} is no parser: write \"native\", \"guided_json\", \"react\", \"markers\", \"fuzzy\" or the name of a dialect"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Parser {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One `[agents.NAME]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The upstream model that thinks.
    pub model: String,
    /// The upstream to ask, by name; `None`: any that serves the model.
    pub upstream: Option<String>,
    /// The file that holds the system prompt.
    pub system_prompt_file: Option<PathBuf>,
    /// The tools it may use: names, or `mcp:SERVER/*`.
    pub tools: Vec<String>,
    /// How calls are found, in this order.
    pub parsers: Vec<Parser>,
    /// The field in which calls are looked for first.
    pub read_first: ReadFirst,
    /// The sampling temperature.
    pub temperature: f64,
    /// The most tokens one reply may have.
    pub max_tokens: u32,
    /// The most iterations of one run: model calls that may have tools.
    pub max_iterations: u32,
    /// The most tokens of one run, prompts and replies together; `None`: no such limit.
    pub token_budget: Option<u64>,
    /// How long a run may work, the last answer included.
    #[serde(deserialize_with = "deserialize_duration")]
    pub run_timeout: Duration,
    /// How long one model call may take.
    #[serde(deserialize_with = "deserialize_duration")]
    pub model_timeout: Duration,
    /// How long one tool may take, unless `[tools.timeouts]` says otherwise.
    #[serde(deserialize_with = "deserialize_duration")]
    pub tool_timeout: Duration,
    /// How much of one tool's result the model gets, unless `[tools.result_limits]` says otherwise.
    pub result_limit: Size,
    /// The pause between iterations.
    #[serde(deserialize_with = "deserialize_duration")]
    pub pause: Duration,
    /// How much of the work the client sees.
    pub progress: Progress,
    /// How a run goes on when its client went away.
    pub on_disconnect: OnDisconnect,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            model: String::new(),
            upstream: None,
            system_prompt_file: None,
            tools: Vec::new(),
            parsers: vec![Parser::Native],
            read_first: ReadFirst::Content,
            temperature: 0.25,
            max_tokens: 1000,
            max_iterations: 5,
            token_budget: None,
            run_timeout: Duration::from_mins(5),
            model_timeout: Duration::from_mins(1),
            tool_timeout: Duration::from_secs(30),
            result_limit: Size::kib(32),
            pause: Duration::ZERO,
            progress: Progress::Reasoning,
            on_disconnect: OnDisconnect::Cancel,
        }
    }
}
