//! `[agents.NAME]`: a model id of respool's own that reasons and runs tools.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{InvalidValue, Size, deserialize_duration};

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
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let advice = r#"write "native", "guided_json", "react", "markers", "fuzzy" or the name of a dialect"#;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
        match text {
            "native" => Ok(Self::Native),
            "guided_json" => Ok(Self::GuidedJson),
            "react" => Ok(Self::React),
            "markers" => Ok(Self::Markers),
            "fuzzy" => Ok(Self::Fuzzy),
            _ if !text.is_empty() && text.chars().all(plain) => Ok(Self::Dialect(text.to_owned())),
            _ => Err(InvalidValue::form(text, "a parser", advice)),
        }
    }
}

impl fmt::Display for Parser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Native => "native",
            Self::GuidedJson => "guided_json",
            Self::React => "react",
            Self::Markers => "markers",
            Self::Fuzzy => "fuzzy",
            Self::Dialect(name) => name,
        })
    }
}

wire::text_setting!(Parser, "a parser");

impl<'de> Deserialize<'de> for Parser {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

wire::settings! {
    /// One `[agents.NAME]`.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct AgentConfig {
        /// The upstream model that the agent uses.
        pub model: String = String::new(), must_be_set(r#""gpt-oss-120b""#);
        /// The upstream to ask, by name.
        pub upstream: Option<String> = None, when_unset("any that serves the model", r#""box""#);
        /// The file that holds the system prompt.
        pub system_prompt_file: Option<PathBuf> = None,
            when_unset("no system prompt", r#""prompts/researcher.md""#);
        /// The tools it may use: names, `gateway:NAME`, `mcp:SERVER/TOOL` or `mcp:SERVER/*` (docs/tools.md).
        pub tools: Vec<String> = Vec::new(), with_example(r#"["read", "exec", "web_search", "mcp:files/*"]"#);
        /// How calls are found, in this order: `native`, the name of a dialect, `guided_json`, `react`,
        /// `markers`, `fuzzy`.
        pub parsers: Vec<Parser> = vec![Parser::Native], with_example(r#"["native", "harmony", "fuzzy"]"#);
        /// The field in which respool looks for calls first.
        pub read_first: ReadFirst = ReadFirst::Content;
        /// The sampling temperature.
        pub temperature: f64 = 0.25, with_range(0.0, 2.0);
        /// The maximum number of tokens in one reply.
        pub max_tokens: u32 = 1000;
        /// The maximum number of iterations in one run, each a model call and its tool calls; after that, one
        /// last call without tools gives the answer.
        pub max_iterations: u32 = 5;
        /// The maximum number of tokens in one run, prompts and replies together.
        pub token_budget: Option<u64> = None, when_unset("no limit", "200000");
        /// How long a run may work, including its last answer; waiting for its client does not count.
        #[serde(deserialize_with = "deserialize_duration")]
        pub run_timeout: Duration = Duration::from_mins(5);
        /// How long one model call may take.
        #[serde(deserialize_with = "deserialize_duration")]
        pub model_timeout: Duration = Duration::from_mins(1);
        /// How long one tool may take, unless `tools.timeouts` says otherwise.
        #[serde(deserialize_with = "deserialize_duration")]
        pub tool_timeout: Duration = Duration::from_secs(30);
        /// How much of a tool's result the model gets, unless `tools.result_limits` says otherwise.
        pub result_limit: Size = Size::kib(32);
        /// The pause between iterations.
        #[serde(deserialize_with = "deserialize_duration")]
        pub pause: Duration = Duration::ZERO, allow_zero();
        /// The part of the work that the client sees before the answer.
        pub progress: Progress = Progress::Reasoning;
        /// The fate of a run whose client has disconnected.
        pub on_disconnect: OnDisconnect = OnDisconnect::Cancel;
    }
}
