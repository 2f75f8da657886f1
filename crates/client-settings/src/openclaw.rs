//! Edits `openclaw.json` so that OpenClaw uses respool. Pure: text in, text out; comments and layout stay.
//!
//! The file is JSON5. A provider that points at the model server is redirected to respool under its present
//! name, because sessions and fallback lists refer to it; otherwise the provider `respool` is added.

use super::EditError;
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::{Value, json};

/// The provider to add if none points at the model server.
const PROVIDER: &str = "respool";

/// The longest answer to request, in tokens; at most a quarter of the window.
const MAX_TOKENS: u64 = 16_384;

/// A model as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// The window in tokens, if the server reports it.
    pub window: Option<u64>,
}

/// The respool that OpenClaw should use.
#[derive(Clone, Debug)]
pub struct RespoolProvider {
    /// respool's URL, without `/v1`.
    pub url: String,
    /// URLs of model servers, and of an earlier respool: providers that point at them are redirected to
    /// respool.
    pub upstreams: Vec<String>,
    /// The models that respool serves.
    pub models: Vec<Model>,
    /// The model that the person named.
    pub model: Option<String>,
    /// The environment variable with a key from `client_keys`.
    pub key_env: Option<String>,
    /// Whether OpenClaw knows the keys that its 2026.2 releases refuse.
    pub is_current: bool,
    /// Whether to add the recommended settings that an entry of the person's own lacks.
    pub adds_recommended: bool,
}

/// The new text, and what a person should know about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Edited {
    /// The text of the file from now on.
    pub text: String,
    /// `PROVIDER/MODEL` of the primary model from now on.
    pub primary: String,
    /// The previous primary model, if it was a different one.
    pub replaced: Option<String>,
    /// The fallback models.
    pub fallbacks: Vec<String>,
    /// The agents whose own models do not go through respool.
    pub own_models: Vec<AgentModel>,
    /// The providers that still point at the model server.
    pub direct_providers: Vec<String>,
    /// The recommended settings that the model's own entry lacks: `reasoning`, `compat.supportsStore`.
    pub lacking: Vec<String>,
}

impl Edited {
    /// Returns the name of the provider that points at respool.
    pub fn provider_name(&self) -> &str {
        self.primary.split_once('/').map_or(self.primary.as_str(), |(provider, _)| provider)
    }
}

/// An agent with a model of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct AgentModel {
    /// The agent's name.
    pub name: String,
    /// `PROVIDER/MODEL`, or an alias, as it is written.
    pub model: String,
    /// The place of the setting: `agents.list[0].model`.
    pub setting: String,
}

/// Returns `present` with respool in it; `present` is empty if there is no file yet.
///
/// # Errors
/// When the file has another form, or it is not clear which model to write.
pub fn edit_config(present: &str, wanted: &RespoolProvider) -> Result<Edited, EditError> {
    // JSON5 allows a byte order mark; it stays where it is.
    let (mark, present) = present.strip_prefix('\u{feff}').map_or(("", present), |rest| ("\u{feff}", rest));
    let text = if present.trim().is_empty() { "{}\n" } else { present };
    let root =
        CstRootNode::parse(text, &json5()).map_err(|error| format!("it is not valid JSON5: {error}"))?;
    let before = root.to_serde_value().unwrap_or_default();
    let object = root.object_value().ok_or("it does not hold an object")?;
    let (provider, id) = (provider_of(&before, wanted), model_of(&before, wanted)?);
    let entry = child_object(&child_object(&child_object(&object, "models")?, "providers")?, &provider)?;
    let lacking = write_provider(&entry, wanted, &id)?;
    let primary = format!("{provider}/{id}");
    let defaults = child_object(&child_object(&object, "agents")?, "defaults")?;
    let replaced = write_primary(&defaults, &before["agents"]["defaults"], &primary)?;
    let after = root.to_serde_value().unwrap_or_default();
    Ok(Edited {
        text: format!("{mark}{root}"),
        primary,
        replaced,
        fallbacks: fallback_models(&before),
        own_models: own_models(&after, wanted),
        direct_providers: direct_providers(&after, wanted),
        lacking,
    })
}

/// Returns the rules of JSON5.
fn json5() -> ParseOptions {
    ParseOptions { allow_missing_commas: false, ..ParseOptions::default() }
}

/// Returns true for a text that is JSON5 with an object at the top.
pub fn can_read(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    CstRootNode::parse(text, &json5()).is_ok_and(|root| root.object_value().is_some())
}

/// Returns the name of the provider that already points at respool or the model server.
fn provider_of(config: &Value, wanted: &RespoolProvider) -> String {
    let providers = config["models"]["providers"].as_object();
    let asks = |url: &str| {
        let of =
            |provider: &Value| provider["baseUrl"].as_str().is_some_and(|base| is_same_server(base, url));
        // If there are several, the one of the primary model.
        let in_use = primary_of(&config["agents"]["defaults"])
            .and_then(|primary| providers?.get_key_value(primary.split_once('/')?.0));
        let found = in_use.into_iter().chain(providers.into_iter().flatten()).find(|(_, it)| of(it));
        found.map(|(name, _)| name.clone())
    };
    let found = asks(&wanted.url).or_else(|| wanted.upstreams.iter().find_map(|url| asks(url)));
    // Under the name `vllm`, OpenClaw discovers models itself and changes requests.
    found.filter(|name| name != "vllm").unwrap_or_else(|| PROVIDER.to_owned())
}

/// Returns the address of the primary model's provider: that of respool, in a text that setup wrote.
pub fn primary_url(text: &str) -> Option<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let config: Value = CstRootNode::parse(text, &json5()).ok()?.to_serde_value()?;
    let (provider, _) = primary_of(&config["agents"]["defaults"])?.split_once('/')?;
    Some(config["models"]["providers"][provider]["baseUrl"].as_str()?.to_owned())
}

/// How many ports OpenClaw's gateway uses, from its own one on.
const GATEWAY_PORTS: u16 = 13;

/// Warns if respool's URL has one of the ports that OpenClaw's gateway uses on this machine.
pub fn port_note(text: &str, url: &str) -> Option<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let config: Option<Value> =
        CstRootNode::parse(text, &json5()).ok().and_then(|root| root.to_serde_value());
    let configured = config.and_then(|config| config["gateway"]["port"].as_u64()?.try_into().ok());
    let first: u16 = configured.unwrap_or(18_789);
    let last = first.saturating_add(GATEWAY_PORTS - 1);
    let host_and_port = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next()?;
    let (host, port) = host_and_port.rsplit_once(':')?;
    let is_local = ["localhost", "[::1]"].contains(&host) || host.starts_with("127.");
    let is_taken = is_local && (first..=last).contains(&port.parse().ok()?);
    is_taken.then(|| {
        format!(
            "Warning: OpenClaw's gateway uses the ports {first} to {last} of this machine, and respool's is {port}: \
             start respool with another one (`respool serve --listen 127.0.0.1:8003`), and name it with --url."
        )
    })
}

/// Returns the model that was named, else the one in use, else the only one.
fn model_of(config: &Value, wanted: &RespoolProvider) -> Result<String, EditError> {
    let served = |id: &str| wanted.models.iter().any(|model| model.id == id);
    let present =
        primary_of(&config["agents"]["defaults"]).and_then(|primary| Some(primary.split_once('/')?.1));
    let only = match wanted.models.as_slice() {
        [only] => Some(only.id.as_str()),
        _ => None,
    };
    let named = wanted.model.as_deref();
    if let Some(id) = named.or_else(|| present.filter(|id| served(id))).or(only).filter(|id| served(id)) {
        return Ok(id.to_owned());
    }
    Err(EditError::NoModel)
}

/// Writes the provider, and returns the recommended settings that its model lacks.
fn write_provider(entry: &CstObject, wanted: &RespoolProvider, id: &str) -> Result<Vec<String>, EditError> {
    set_value(entry, "baseUrl", &json!(format!("{}/v1", wanted.url)));
    if let Some(name) = &wanted.key_env {
        set_value(entry, "apiKey", &json!(format!("${{{name}}}")));
    }
    add_value(entry, "apiKey", &json!("local"));
    add_value(entry, "api", &json!("openai-completions"));
    if wanted.is_current {
        add_value(entry, "timeoutSeconds", &json!(1800));
    }
    let list = entry.array_value_or_create("models").ok_or("`models` of the provider is not a list")?;
    let present: Vec<CstObject> =
        list.elements().iter().filter_map(jsonc_parser::cst::CstNode::as_object).collect();
    let id_of = |object: &CstObject| Some(object.get("id")?.to_serde_value()?.as_str()?.to_owned());
    for object in &present {
        let known = id_of(object).and_then(|id| wanted.models.iter().find(|model| model.id == id));
        if let Some(window) = known.and_then(|model| model.window) {
            lower_number(object, "contextWindow", window);
        }
    }
    let window = wanted.models.iter().find(|model| model.id == id).and_then(|model| model.window);
    let recommended = model_entry(id, window, wanted.is_current);
    if let Some(own) = present.iter().find(|object| id_of(object).as_deref() == Some(id)) {
        if wanted.adds_recommended {
            complete_entry(own, &recommended)?;
        }
        return Ok(lacking_settings(own, &recommended));
    }
    list.ensure_multiline();
    list.append(cst_value(&recommended));
    Ok(Vec::new())
}

/// Lists the recommended settings that a model's entry lacks; those about the model itself (its name, its
/// window, its price) are its owner's.
fn lacking_settings(entry: &CstObject, recommended: &Value) -> Vec<String> {
    let present = entry.to_serde_value().unwrap_or_default();
    let reasoning = present.get("reasoning").is_none().then(|| "reasoning".to_owned());
    let compat = recommended["compat"].as_object().into_iter().flatten();
    let compat = compat.filter(|(key, _)| present["compat"].get(key).is_none());
    reasoning.into_iter().chain(compat.map(|(key, _)| format!("compat.{key}"))).collect()
}

/// Adds the recommended settings that a model's entry lacks.
fn complete_entry(entry: &CstObject, recommended: &Value) -> Result<(), EditError> {
    add_value(entry, "reasoning", &recommended["reasoning"]);
    let compat = child_object(entry, "compat")?;
    for (key, value) in recommended["compat"].as_object().into_iter().flatten() {
        add_value(&compat, key, value);
    }
    Ok(())
}

/// Returns the entry that docs/openclaw.md recommends. The current client knows more keys than the old one,
/// which refuses unknown ones.
fn model_entry(id: &str, window: Option<u64>, is_current: bool) -> Value {
    let mut entry = json!({
        "id": id, "name": id, "reasoning": true, "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    });
    if let Some(window) = window {
        entry["contextWindow"] = json!(window);
        entry["maxTokens"] = json!(MAX_TOKENS.min(window / 4));
    }
    let mut compat = json!({
        "supportsReasoningEffort": true, "supportsUsageInStreaming": true, "maxTokensField": "max_completion_tokens",
        "supportsDeveloperRole": false, "supportsStore": false, "supportsStrictMode": false,
    });
    if is_current {
        compat["supportedReasoningEfforts"] = json!(["low", "medium", "high"]);
        compat["reasoningEffortMap"] = json!({"minimal": "low", "xhigh": "high"});
        compat["requiresReasoningContentOnAssistantMessages"] = json!(true);
        compat["sendSessionAffinityHeaders"] = json!(true);
    }
    entry["compat"] = compat;
    entry
}

/// Makes `primary` the primary model; returns the previous one, if it was different.
fn write_primary(defaults: &CstObject, before: &Value, primary: &str) -> Result<Option<String>, EditError> {
    let model = defaults.get("model").and_then(|property| property.value());
    match model.as_ref().and_then(jsonc_parser::cst::CstNode::as_object) {
        Some(object) => set_value(&object, "primary", &json!(primary)),
        None if before["model"].is_string() => set_value(defaults, "model", &json!(primary)),
        None => set_value(&child_object(defaults, "model")?, "primary", &json!(primary)),
    }
    // If models are listed, others are not allowed.
    if before["models"].as_object().is_some_and(|models| !models.is_empty() && !models.contains_key(primary))
    {
        set_value(&child_object(defaults, "models")?, primary, &json!({}));
    }
    Ok(primary_of(before).filter(|&old| old != primary).map(str::to_owned))
}

fn primary_of(defaults: &Value) -> Option<&str> {
    let model = &defaults["model"];
    model["primary"].as_str().or_else(|| model.as_str())
}

/// An agent's own settings.
struct OwnSettings<'a> {
    name: &'a str,
    place: String,
    value: &'a Value,
}

/// Lists the settings of single agents: `agents.list`, or `agents.entries` by name.
fn agents_of(config: &Value) -> Vec<OwnSettings<'_>> {
    let agents = &config["agents"];
    let entries = agents["entries"].as_object().into_iter().flatten();
    let entries =
        entries.map(|(name, value)| OwnSettings { name, place: format!("agents.entries.{name}"), value });
    let list = agents["list"].as_array().into_iter().flatten().enumerate();
    let list = list.map(|(index, value)| OwnSettings {
        name: value["id"].as_str().unwrap_or("?"),
        place: format!("agents.list[{index}]"),
        value,
    });
    entries.chain(list).collect()
}

fn own_models(config: &Value, wanted: &RespoolProvider) -> Vec<AgentModel> {
    let providers = &config["models"]["providers"];
    let aliases = &config["agents"]["defaults"]["models"];
    let is_relayed = |model: &str| {
        let of_alias = aliases.as_object().into_iter().flatten();
        let mut of_alias = of_alias.filter(|(_, entry)| entry["alias"] == model);
        let model = of_alias.next().map_or(model, |(model, _)| model.as_str());
        let provider = model.split_once('/').map(|(provider, _)| &providers[provider]["baseUrl"]);
        provider.and_then(Value::as_str).is_some_and(|base| is_same_server(base, &wanted.url))
    };
    let own = agents_of(config).into_iter().filter_map(|agent| {
        let model = primary_of(agent.value)?;
        (!is_relayed(model)).then(|| AgentModel {
            name: agent.name.to_owned(),
            model: model.to_owned(),
            setting: format!("{}.model", agent.place),
        })
    });
    own.collect()
}

fn direct_providers(config: &Value, wanted: &RespoolProvider) -> Vec<String> {
    let providers = config["models"]["providers"].as_object().into_iter().flatten();
    let points_there = |provider: &Value| {
        let base = provider["baseUrl"].as_str();
        base.is_some_and(|base| {
            wanted.upstreams.iter().any(|url| is_same_server(base, url)) && !is_same_server(base, &wanted.url)
        })
    };
    providers.filter(|(_, provider)| points_there(provider)).map(|(name, _)| name.clone()).collect()
}

fn fallback_models(config: &Value) -> Vec<String> {
    let own = agents_of(config).into_iter().map(|agent| agent.value);
    let all = std::iter::once(&config["agents"]["defaults"]).chain(own);
    let names = all.filter_map(|agent| agent["model"]["fallbacks"].as_array()).flatten();
    let mut names: Vec<String> = names.filter_map(|name| Some(name.as_str()?.to_owned())).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns true if two URLs refer to the same server: same host and port. `localhost` and `0.0.0.0` are
/// 127.0.0.1.
pub fn is_same_server(one: &str, other: &str) -> bool {
    let place = |text: &str| {
        let url = url::Url::parse(text).ok()?;
        let host = match url.host_str()? {
            "localhost" | "0.0.0.0" | "[::1]" | "[::]" => "127.0.0.1",
            host => host,
        };
        Some((host.to_owned(), url.port_or_known_default()?))
    };
    place(one).is_some() && place(one) == place(other)
}

fn child_object(object: &CstObject, key: &str) -> Result<CstObject, EditError> {
    if object.get(key).is_none() {
        object.append(key, CstInputValue::Object(Vec::new()));
    }
    object.object_value(key).ok_or_else(|| format!("`{key}` is not an object").into())
}

/// Writes a value unless it is there already.
fn set_value(object: &CstObject, key: &str, value: &Value) {
    match object.get(key) {
        None => drop(object.append(key, cst_value(value))),
        Some(property) if property.to_serde_value().as_ref() == Some(value) => {}
        Some(property) => property.set_value(cst_value(value)),
    }
}

/// Writes a value unless there is one.
fn add_value(object: &CstObject, key: &str, value: &Value) {
    if object.get(key).is_none() {
        object.append(key, cst_value(value));
    }
}

/// Writes a number unless a number of at most that size is there.
fn lower_number(object: &CstObject, key: &str, number: u64) {
    let present = object.get(key).and_then(|property| property.to_serde_value()?.as_u64());
    if present.is_none_or(|present| present > number) {
        set_value(object, key, &json!(number));
    }
}

fn cst_value(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(cst_value).collect()),
        Value::Object(fields) => {
            CstInputValue::Object(fields.iter().map(|(key, value)| (key.clone(), cst_value(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(models: &[(&str, Option<u64>)]) -> RespoolProvider {
        RespoolProvider {
            url: "http://127.0.0.1:8003".into(),
            upstreams: vec!["http://gpu:8000".into()],
            models: models.iter().map(|&(id, window)| Model { id: id.into(), window }).collect(),
            model: None,
            key_env: None,
            is_current: true,
            adds_recommended: false,
        }
    }

    #[test]
    fn the_gateways_ports_are_not_respools() {
        let is_warned = |text, url| port_note(text, url).is_some();
        assert!(is_warned("", "http://127.0.0.1:18790"), "the gateway's usual port is 18789");
        assert!(!is_warned("", "http://127.0.0.1:18802") && !is_warned("", "http://gpu:18790"));
        assert!(is_warned("{ gateway: { port: 8000 } }", "http://localhost:8003"));
        assert!(!is_warned("{ gateway: { port: 8000 } }", "http://127.0.0.1:18790"));
    }

    const GROWN: &str = r#"// my assistant
{
  models: {
    mode: 'merge',
    providers: {
      // the box under the desk
      gptoss: {
        baseUrl: 'http://gpu:8000/v1', // straight to vLLM
        apiKey: "${VLLM_KEY}",
        models: [
          { id: 'gpt-oss-120b', name: "big", contextWindow: 200000, },
        ],
      },
    },
  },
  agents: {
    defaults: {
      model: { primary: 'gptoss/gpt-oss-120b', fallbacks: ["anthropic/claude"] },
      models: { 'gptoss/gpt-oss-120b': { alias: 'oss' } },
      timeoutSeconds: 0x258, /* hexadecimal */ ratio: .5,
    },
  },
}
"#;

    #[test]
    fn a_fresh_file_gets_a_whole_entry() {
        let edited = edit_config("", &wanted(&[("gpt-oss-120b", Some(131_072))])).unwrap();
        assert_eq!((edited.primary.as_str(), edited.replaced.as_deref()), ("respool/gpt-oss-120b", None));
        let text = edited.text;
        let config: Value = serde_json::from_str(&text).unwrap();
        let provider = &config["models"]["providers"]["respool"];
        assert_eq!(provider["baseUrl"], "http://127.0.0.1:8003/v1");
        let model = &provider["models"][0];
        assert_eq!((&model["contextWindow"], &model["maxTokens"]), (&json!(131_072), &json!(16_384)));
        assert_eq!(model["compat"]["sendSessionAffinityHeaders"], true);
        assert_eq!(config["agents"]["defaults"]["model"]["primary"], "respool/gpt-oss-120b");
        let old = RespoolProvider { is_current: false, ..wanted(&[("m", None)]) };
        let text = super::edit_config("{}", &old).unwrap().text;
        for key in ["timeoutSeconds", "sendSessionAffinityHeaders", "reasoningEffortMap", "contextWindow"] {
            assert!(!text.contains(key), "the old client refuses {key}, or it is not known: {text}");
        }
    }

    /// Regression: for a respool at another address a second provider was added.
    #[test]
    fn respool_that_moved_keeps_its_provider() {
        let first = edit_config(GROWN, &wanted(&[("gpt-oss-120b", None)])).unwrap();
        let earlier = primary_url(&first.text).unwrap();
        assert_eq!(earlier, "http://127.0.0.1:8003/v1");
        let moved = RespoolProvider {
            url: "http://127.0.0.1:9000".into(),
            upstreams: vec![earlier],
            ..wanted(&[("gpt-oss-120b", None)])
        };
        let second = edit_config(&first.text, &moved).unwrap();
        assert_eq!((second.primary.as_str(), second.replaced), ("gptoss/gpt-oss-120b", None));
        assert_eq!(second.text, first.text.replace("127.0.0.1:8003", "127.0.0.1:9000"));
    }

    #[test]
    fn the_provider_in_use_is_changed() {
        let two = r#"{"models": {"providers": {"gpu1": {"baseUrl": "http://gpu:8000/v1", "models": []},
            "gpu2": {"baseUrl": "http://gpu:8000/v1", "models": []}}},
            "agents": {"defaults": {"model": {"primary": "gpu2/m"}}}}"#;
        let found = edit_config(&format!("\u{feff}{two}"), &wanted(&[("m", None)])).unwrap();
        assert_eq!((found.primary.as_str(), found.replaced.as_deref()), ("gpu2/m", None));
        assert_eq!(found.direct_providers, ["gpu1"], "the other one is named");
        let text = found.text.strip_prefix('\u{feff}').unwrap();
        let config: Value = serde_json::from_str(text).unwrap();
        let url = |name: &str| config["models"]["providers"][name]["baseUrl"].clone();
        assert_eq!(
            (url("gpu1"), url("gpu2")),
            (json!("http://gpu:8000/v1"), json!("http://127.0.0.1:8003/v1"))
        );
    }

    #[test]
    fn a_grown_file_keeps_its_comments_and_its_provider() {
        let edited = edit_config(GROWN, &wanted(&[("gpt-oss-120b", Some(131_072))])).unwrap();
        assert_eq!((edited.primary.as_str(), edited.replaced.as_deref()), ("gptoss/gpt-oss-120b", None));
        assert_eq!(edited.fallbacks, ["anthropic/claude"]);
        let diff = diffy::create_patch(GROWN, &edited.text).to_string();
        let is_change = |line: &&str| {
            line.starts_with(['-', '+']) && !line.starts_with("--- ") && !line.starts_with("+++ ")
        };
        let changed: Vec<String> = diff
            .lines()
            .filter(is_change)
            .map(|line| format!("{}{}", &line[..1], line[1..].trim()))
            .collect();
        assert_eq!(
            changed,
            [
                "-baseUrl: 'http://gpu:8000/v1', // straight to vLLM",
                "+baseUrl: \"http://127.0.0.1:8003/v1\", // straight to vLLM",
                "-{ id: 'gpt-oss-120b', name: \"big\", contextWindow: 200000, },",
                "+{ id: 'gpt-oss-120b', name: \"big\", contextWindow: 131072, },",
                "+\"api\": \"openai-completions\",",
                "+\"timeoutSeconds\": 1800,",
            ]
        );
        let again = super::edit_config(&edited.text, &wanted(&[("gpt-oss-120b", Some(131_072))])).unwrap();
        assert_eq!(again.text, edited.text, "twice is once");
    }

    #[test]
    fn recommended_settings_are_named_or_added() {
        let present = r#"{"models": {"providers": {"gpu": {"baseUrl": "http://gpu:8000/v1", "models": [
            {"id": "m", "compat": {"supportsStore": true}}]}}}}"#;
        let named = edit_config(present, &wanted(&[("m", None)])).unwrap();
        assert!(named.lacking.contains(&"reasoning".to_owned()), "{:?}", named.lacking);
        assert!(
            named.lacking.contains(&"compat.requiresReasoningContentOnAssistantMessages".to_owned())
                && !named.lacking.contains(&"compat.supportsStore".to_owned())
                && !named.text.contains("requiresReasoning"),
            "{:?}",
            named.lacking
        );
        let adding = RespoolProvider { adds_recommended: true, ..wanted(&[("m", None)]) };
        let added = edit_config(present, &adding).unwrap();
        assert_eq!(added.lacking, [""; 0]);
        let config: Value = serde_json::from_str(&added.text).unwrap();
        let model = &config["models"]["providers"]["gpu"]["models"][0];
        assert_eq!((&model["reasoning"], &model["compat"]["supportsStore"]), (&json!(true), &json!(true)));
        assert_eq!(model["compat"]["requiresReasoningContentOnAssistantMessages"], true);
    }

    #[test]
    fn another_primary_is_replaced_and_named() {
        let present =
            r#"{"agents": {"defaults": {"model": "anthropic/claude", "models": {"anthropic/claude": {}}}}}"#;
        let edited = edit_config(present, &wanted(&[("m", None)])).unwrap();
        assert_eq!(edited.replaced.as_deref(), Some("anthropic/claude"));
        let config: Value = serde_json::from_str(&edited.text).unwrap();
        assert_eq!(config["agents"]["defaults"]["model"], "respool/m");
        assert_eq!(config["agents"]["defaults"]["models"], json!({"anthropic/claude": {}, "respool/m": {}}));
    }

    #[test]
    fn agents_with_models_of_their_own_are_named() {
        let check = |agents: &str, expected: &[(&str, &str, &str)]| {
            let present = format!(
                r#"{{"models": {{"providers": {{"gpu": {{"baseUrl": "http://gpu:8000/v1", "models": []}}}}}},
                    "agents": {{"defaults": {{"models": {{"gpu/m": {{"alias": "oss"}}}}}}, {agents}}}}}"#
            );
            let found = edit_config(&present, &wanted(&[("m", None)])).unwrap().own_models;
            let found: Vec<_> = found
                .iter()
                .map(|agent| (agent.name.as_str(), agent.model.as_str(), agent.setting.as_str()))
                .collect();
            assert_eq!(found, expected, "{agents}");
        };
        let other = ("main", "openai/gpt-4.1", "agents.list[1].model");
        check(r#""list": [{"id": "a"}, {"id": "main", "model": "openai/gpt-4.1"}]"#, &[other]);
        let entry = ("coder", "claude", "agents.entries.coder.model");
        check(r#""entries": {"coder": {"model": {"primary": "claude"}}}"#, &[entry]);
        check(r#""list": [{"id": "main", "model": {"primary": "gpu/m"}}, {"id": "b", "model": "oss"}]"#, &[]);
    }

    #[test]
    fn a_provider_called_vllm_is_not_taken_over() {
        let present =
            r#"{"models": {"providers": {"vllm": {"baseUrl": "http://gpu:8000/v1", "models": []}}}}"#;
        let edited = edit_config(present, &wanted(&[("m", None)])).unwrap();
        assert_eq!(edited.primary, "respool/m");
        assert!(edited.text.contains(r#""baseUrl": "http://gpu:8000/v1""#), "{}", edited.text);
    }

    #[test]
    fn which_model_is_said_or_asked() {
        let several = wanted(&[("a", None), ("b", None)]);
        let check = |present: &str, wanted: &RespoolProvider, expected: &str| {
            let outcome =
                edit_config(present, wanted).map_or_else(|why| why.to_string(), |edited| edited.primary);
            assert_eq!(outcome, expected);
        };
        check("", &RespoolProvider { model: Some("b".into()), ..several.clone() }, "respool/b");
        check(r#"{"agents": {"defaults": {"model": {"primary": "x/b"}}}}"#, &several, "respool/b");
        let unknown = RespoolProvider { model: Some("claude".into()), ..several.clone() };
        for wanted in [several, unknown] {
            assert!(matches!(edit_config("", &wanted), Err(EditError::NoModel)));
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        for present in
            ["{", "[]", "{models: {} agents: {}}", r#"{"models": 7}"#, r#"{"agents": {"defaults": []}}"#]
        {
            let error = edit_config(present, &wanted(&[("m", None)])).unwrap_err().to_string();
            assert!(error.contains("not"), "{present}: {error}");
        }
    }

    #[test]
    fn servers_are_compared_by_host_and_port() {
        for (one, other, expected) in [
            ("http://localhost:8000/v1", "http://127.0.0.1:8000", true),
            ("http://0.0.0.0:8000", "http://[::1]:8000", true),
            ("http://gpu/v1", "http://gpu:80", true),
            ("http://gpu:8000", "http://gpu:8001", false),
            ("nonsense", "nonsense", false),
        ] {
            assert_eq!(is_same_server(one, other), expected, "{one} {other}");
        }
    }
}
