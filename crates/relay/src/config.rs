//! How replies are requested and streamed: the top-level modes, `[models."ID"]`, `[recovery]` and
//! `[context]`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use adapt::{Consent, Declared, Fields, UNDECLARABLE};
use tool_call_parser::PreferredDialects;
use translate::ResponseTemplate;
use upstream::OwnWire;
use wire::settings::Scalar;
use wire::units::deserialize_duration;

wire::string_enum! {
    /// How a reply with tools is asked for.
    ToolsMode {
        /// Whole (`stream: false`), then spooled out.
        #[default]
        Buffered = "buffered",
        /// As it comes (`stream: true`).
        Live = "live",
    }
}

wire::string_enum! {
    /// Who reads the tool calls out of the model's text.
    ToolParsing {
        /// The server's parser first, respool's engine for what it left.
        #[default]
        Server = "server",
        /// respool's engine alone, on unparsed text.
        Raw = "raw",
    }
}

wire::string_enum! {
    /// The name under which reasoning leaves.
    ReasoningField {
        /// `reasoning_content`, as OpenClaw reads it.
        #[default]
        ReasoningContent = "reasoning_content",
        /// `reasoning`, as newer vLLM writes it.
        Reasoning = "reasoning",
        /// Not at all.
        Drop = "drop",
    }
}

wire::string_enum! {
    /// The treatment of a request that is larger than the model's window.
    OnOverflow {
        /// The server's error goes to the client, which then compacts.
        #[default]
        Pass = "pass",
        /// The oldest tool results are shortened.
        Trim = "trim",
    }
}

wire::string_enum! {
    /// The form of an error after the last attempt.
    FinalErrors {
        /// For OpenClaw, Codex and Claude Code the form that they do not repeat, for all others the true
        /// status.
        #[default]
        Auto = "auto",
        /// The true status for all.
        Plain = "plain",
    }
}

wire::settings! {
    /// The relay's settings.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    pub struct RelayConfig {
        /// How respool asks for a reply with tools: whole (`buffered`) or as a stream (`live`).
        pub tools_mode: ToolsMode = ToolsMode::default();
        /// Who reads tool calls in the model's text: the server's parser first (`server`), or respool alone
        /// (`raw`).
        pub tool_parsing: ToolParsing = ToolParsing::default();
        /// The field in which clients get reasoning; `drop` removes it.
        pub reasoning: ReasoningField = ReasoningField::default();
        /// Reply fields to keep although OpenAI's API has no such field.
        pub keep_fields: Vec<String> = Vec::new(), with_example(r#"["prompt_logprobs"]"#);
        sections {
            /// `[models."ID"]`, by id.
            pub models: BTreeMap<String, ModelConfig> = BTreeMap::new(), at("models.<ID>");
            /// `[recovery]`.
            pub recovery: RecoveryConfig = RecoveryConfig::default();
            /// `[context]`.
            pub context: ContextConfig = ContextConfig::default();
            /// `[adapt]`: the rules that lose something and are allowed.
            pub adapt: Consent = Consent::default();
        }
    }
}

/// The modes of one model: its own settings, else its target's, else the relay's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// How a reply with tools is asked for.
    pub tools_mode: ToolsMode,
    /// Who reads the calls.
    pub tool_parsing: ToolParsing,
    /// The name under which reasoning leaves.
    pub reasoning: ReasoningField,
    /// The window, when the server is not to be believed.
    pub context_window: Option<u64>,
    /// The dialects that the owner says it writes; empty when that is left to its name.
    pub dialects: PreferredDialects,
}

impl RelayConfig {
    /// The model that an id stands for: the end of the chain of targets, the id itself when it is no alias.
    pub fn target<'a>(&'a self, id: &'a str) -> &'a str {
        self.target_chain(id).last().unwrap_or(id)
    }

    /// The modes that hold for the model of this id.
    pub fn modes_for(&self, id: &str) -> Modes {
        let own: Vec<&ModelConfig> = self.target_chain(id).filter_map(|id| self.models.get(id)).collect();
        Modes {
            tools_mode: own.iter().find_map(|model| model.tools_mode).unwrap_or(self.tools_mode),
            tool_parsing: own.iter().find_map(|model| model.tool_parsing).unwrap_or(self.tool_parsing),
            reasoning: own.iter().find_map(|model| model.reasoning).unwrap_or(self.reasoning),
            context_window: own.iter().find_map(|model| model.context_window),
            dialects: own
                .iter()
                .find_map(|model| model.dialects.as_deref())
                .map(preferred_dialects)
                .unwrap_or_default(),
        }
    }

    /// The names of models by which `[models]` leads to others, each with what it is named for.
    pub fn named_models(&self) -> impl Iterator<Item = (&String, String)> {
        self.models.iter().flat_map(|(id, model)| {
            let target = model.target.iter().map(move |name| (name, format!("`{id}` stands for")));
            let fallback = model.fallback.iter().map(move |name| (name, format!("is a fallback of `{id}`")));
            let vision = model.vision.iter().map(move |name| (name, format!("answers pictures for `{id}`")));
            target.chain(fallback).chain(vision)
        })
    }

    /// The models that may answer in the place of this one, and how long a request waits for it before.
    pub fn fallback(&self, id: &str) -> (&[String], Duration) {
        let own = self
            .target_chain(id)
            .filter_map(|id| self.models.get(id))
            .find(|model| !model.fallback.is_empty());
        own.map_or((&[], Duration::ZERO), |model| (&model.fallback, model.fallback_after))
    }

    /// The model that answers requests with pictures in the place of this one.
    pub fn vision(&self, id: &str) -> Option<&str> {
        self.target_chain(id).find_map(|id| self.models.get(id)?.vision.as_deref())
    }

    /// The APIs that the server of this model answers itself, where the model's own settings say so.
    pub fn own_wires(&self, id: &str) -> Option<&[OwnWire]> {
        self.target_chain(id).find_map(|id| self.models.get(id)?.wires.as_deref())
    }

    /// The description of the marks in this model's replies.
    pub fn response_template(&self, id: &str) -> Option<Arc<ResponseTemplate>> {
        self.target_chain(id).find_map(|id| self.models.get(id)?.response_template.clone())
    }

    /// The ids that have a target: the names to list beside those that the upstreams serve.
    pub fn aliases(&self) -> impl Iterator<Item = &str> {
        self.models.iter().filter(|(_, model)| model.target.is_some()).map(|(id, _)| id.as_str())
    }

    /// The names under which requests reach a model: its own, and the ids whose target it is.
    pub fn names_of<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a str> {
        let others = self.aliases().filter(move |alias| *alias != model && self.target(alias) == model);
        std::iter::once(model).chain(others)
    }

    /// The parameters that are declared for each id. Ids without any are left out.
    pub fn declared_parameters(&self) -> HashMap<String, Arc<Declared>> {
        let of = |id: &String| {
            let own: Vec<&ModelConfig> = self.target_chain(id).filter_map(|id| self.models.get(id)).collect();
            let from_target = own.iter().rev();
            from_target.fold(Declared::default(), |below, model| model.own_parameters().lay_over(&below))
        };
        let declared = self.models.keys().map(|id| (id.clone(), Arc::new(of(id))));
        declared.filter(|(_, declared)| !declared.is_empty()).collect()
    }

    /// Returns the id, its target, the target's target and so on. It also ends where an unchecked
    /// configuration goes in a circle.
    fn target_chain<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        let next = |id: &&str| self.models.get(*id)?.target.as_deref();
        std::iter::successors(Some(id), next).take(self.models.len() + 1)
    }
}

impl ModelConfig {
    fn own_parameters(&self) -> Declared {
        Declared {
            set: self.set.clone(),
            default: self.default.clone(),
            strip: self.strip.clone(),
            reasoning_off: self.reasoning_off.clone(),
        }
    }
}

fn preferred_dialects(dialects: &[String]) -> PreferredDialects {
    PreferredDialects::from_dialect_names(dialects.iter().map(String::as_str))
}

wire::settings! {
    /// One `[models."ID"]`; what is `None` is as for all models.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ModelConfig {
        /// The model that this id is another name for.
        pub target: Option<String> = None, when_unset("the id names a model", r#""gpt-oss-120b""#);
        /// Fields of the chat request that this model always gets, whatever the client says. Tables are
        /// joined field by field.
        pub set: Fields = Fields::new(),
            with_example("{ chat_template_kwargs = { enable_thinking = false } }");
        /// Fields that it gets where the client leaves them out.
        pub default: Fields = Fields::new(), with_example("{ temperature = 1.0 }");
        /// Fields that it does not get, with dots between the names of nested ones.
        pub strip: Vec<String> = Vec::new(), with_form(DECLARABLE), with_example(r#"["metadata", "extra.user"]"#);
        /// Fields that switch this model's reasoning off, for clients that ask for that in any of the usual
        /// ways. Known families need none (docs/requests.md).
        pub reasoning_off: Fields = Fields::new(),
            with_example("{ chat_template_kwargs = { thinking = false } }");
        /// Models that answer in its place, one after the other, when it fails, when the prompt does not fit
        /// it, or when it is busy for longer than `fallback_after`; when a budget is spent, the first without
        /// a price. `UPSTREAM/MODEL` asks only this upstream. Each request begins with the model that the
        /// client named.
        pub fallback: Vec<String> = Vec::new(), with_example(r#"["gpt-oss-20b", "cloud/gpt-5"]"#);
        /// How long a request waits for a place at this model's upstream, or for one that is starting, before
        /// a fallback is asked.
        #[serde(deserialize_with = "deserialize_duration")]
        pub fallback_after: Duration = Duration::from_secs(10);
        /// The model that answers requests with pictures in this model's place.
        pub vision: Option<String> = None, when_unset("pictures go to the model itself", r#""qwen3-vl""#);
        /// As `tools_mode`, for this model.
        pub tools_mode: Option<ToolsMode> = None, when_unset("as for all models", r#""live""#);
        /// As `tool_parsing`, for this model.
        pub tool_parsing: Option<ToolParsing> = None, when_unset("as for all models", r#""raw""#);
        /// As `reasoning`, for this model.
        pub reasoning: Option<ReasoningField> = None, when_unset("as for all models", r#""drop""#);
        /// How many tokens prompt and reply may have together.
        pub context_window: Option<u64> = None,
            when_unset("`max_model_len` in the upstream's `/v1/models`", "32768");
        /// The ways of writing tool calls that it uses (docs/dialects.md). They are tried first; others are
        /// still read. `bare_think` says that its replies begin inside reasoning (docs/recovery.md).
        pub dialects: Option<Vec<String>> = None,
            when_unset("found from its name and the server's list", r#"["harmony"]"#);
        /// As `wires` of an upstream, for this model.
        pub wires: Option<Vec<OwnWire>> = None, when_unset("as for its upstreams", r#"["messages"]"#);
        /// Hugging Face's `response_template` of this model, which describes the marks of its reasoning,
        /// answer and calls: the path of a JSON file (the template or a `tokenizer_config.json` with one), or
        /// the JSON itself. Calls in other forms are still read. The server must not strip the marks
        /// (`tool_parsing = "raw"`). A live reply is read when it is whole. No server reports its template.
        #[serde(deserialize_with = "read_template")]
        pub response_template: Option<Arc<ResponseTemplate>> = None,
            when_unset("the parser finds its dialect", r#"'{"fields": {"content": {}, "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"}}}'"#);
    }
}

/// A field that may be left out.
const DECLARABLE: Scalar = Scalar::Form("a field of the chat request", |field| {
    if UNDECLARABLE.contains(&field) {
        Err(format!("`{field}` makes the request what it is; it cannot be left out").into())
    } else if field.split('.').any(str::is_empty) {
        Err(format!("{field:?} is not the path of a field, such as \"extra.user\"").into())
    } else {
        Ok(())
    }
});

/// Reads a template, or loads the file that holds it.
fn read_template<'de, D: Deserializer<'de>>(template: D) -> Result<Option<Arc<ResponseTemplate>>, D::Error> {
    let given = String::deserialize(template)?;
    if given.trim_start().starts_with('{') {
        return ResponseTemplate::parse(&given).map(|read| Some(Arc::new(read))).map_err(D::Error::custom);
    }
    let failed = |why: &dyn fmt::Display| D::Error::custom(format!("{given}: {why}"));
    let text = std::fs::read_to_string(&given).map_err(|error| failed(&error))?;
    ResponseTemplate::parse(&text).map(|read| Some(Arc::new(read))).map_err(|error| failed(&error))
}

wire::settings! {
    /// `[recovery]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RecoveryConfig {
        /// How many more times respool asks the model after an unusable reply. In a long turn it asks a few
        /// times more, unless this is 0.
        pub attempts: u32 = 2, with_minimum(0);
        /// After this time from the arrival of the request, respool neither starts another attempt nor waits
        /// for one.
        #[serde(deserialize_with = "deserialize_duration")]
        pub within: Duration = Duration::from_mins(10);
        /// How long a request waits for an upstream that is starting, or that asks with `Retry-After` to be
        /// left alone; at most 15 s if its reply does not stream. Set `"0s"` if OpenClaw has fallback models,
        /// which it tries afterwards.
        #[serde(deserialize_with = "deserialize_duration")]
        pub wait_for_upstream: Duration = Duration::from_mins(1), allow_zero();
        /// Say in the reasoning of a stream, before its reply begins, that the request waits for its server,
        /// which is starting or loads the model, and how much of the prompt llama.cpp has read. Clients may
        /// keep reasoning in their history.
        pub announce_waiting: bool = false;
        /// The form of an error after the last attempt. `auto`: OpenClaw, Codex and Claude Code get it in a
        /// form that stops them from sending the request again. `plain`: every client gets the true status.
        pub final_errors: FinalErrors = FinalErrors::Auto;
        /// Put back the reasoning of a tool turn if the client dropped it, as long as its tool loop lasts.
        pub reasoning_memory: bool = true;
    }
}

wire::settings! {
    /// `[context]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ContextConfig {
        /// The treatment of a request that is larger than the model's window: pass on the server's error
        /// (`pass`), so that the client shortens it, or shorten it here (`trim`): the oldest tool results
        /// first, then the oldest messages.
        pub on_overflow: OnOverflow = OnOverflow::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(target: Option<&str>, tools_mode: Option<ToolsMode>) -> ModelConfig {
        ModelConfig { target: target.map(Into::into), tools_mode, ..ModelConfig::default() }
    }

    #[test]
    fn an_alias_inherits_from_its_target() {
        let models = [
            ("fast".to_owned(), model(Some("alias"), None)),
            ("alias".to_owned(), model(Some("gpt-oss-120b"), None)),
            ("gpt-oss-120b".to_owned(), model(None, Some(ToolsMode::Live))),
        ];
        let relay = RelayConfig { models: models.into(), ..RelayConfig::default() };
        assert_eq!(relay.target("fast"), "gpt-oss-120b");
        assert_eq!(relay.target("other"), "other");
        assert_eq!(relay.modes_for("fast").tools_mode, ToolsMode::Live);
        assert_eq!(relay.modes_for("other").tools_mode, ToolsMode::Buffered);
        assert_eq!(relay.aliases().collect::<Vec<_>>(), ["alias", "fast"]);
    }

    #[test]
    fn an_alias_has_its_targets_dialects() {
        let named = ModelConfig { dialects: Some(vec!["mistral".into()]), ..ModelConfig::default() };
        let models =
            [("fast".to_owned(), model(Some("house-model"), None)), ("house-model".to_owned(), named)];
        let relay = RelayConfig { models: models.into(), ..RelayConfig::default() };
        assert_eq!(relay.modes_for("fast").dialects, PreferredDialects::from_dialect_names(["mistral"]));
        assert!(relay.modes_for("other").dialects.is_empty());
    }

    #[test]
    fn a_response_template_is_loaded_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("template.json");
        let load = || {
            let model = serde_json::json!({ "response_template": &path });
            serde_json::from_value::<ModelConfig>(model)
        };
        let error = load().unwrap_err().to_string();
        assert!(error.contains("template.json: ") && error.contains("No such file"), "{error}");
        std::fs::write(&path, r#"{"fields": {}}"#).unwrap();
        let error = load().unwrap_err().to_string();
        assert!(error.contains("template.json: the response template cannot be used"), "{error}");
        std::fs::write(&path, r#"{"fields": {"content": {}}}"#).unwrap();
        let models = [("house".to_owned(), load().unwrap()), ("fast".to_owned(), model(Some("house"), None))];
        let relay = RelayConfig { models: models.into(), ..RelayConfig::default() };
        assert!(relay.response_template("fast").is_some() && relay.response_template("other").is_none());
    }
}
