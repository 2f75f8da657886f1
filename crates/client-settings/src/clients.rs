//! Edits each agent client's configuration so that it uses respool. Pure: text in, text out.
//!
//! Formats: Codex 0.169, Claude Code 2.1.330, opencode 1.18.33, qwen-code 0.24.4, cline 3.0.65, each tested
//! with exactly these settings (docs/clients.md).

use std::path::{Path, PathBuf};

use super::EditError;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use toml_edit::{DocumentMut, Item, Table, value};

/// The clients that can be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// OpenClaw; edits openclaw.json.
    Openclaw,
    /// OpenAI's Codex.
    Codex,
    /// Anthropic's Claude Code.
    ClaudeCode,
    /// opencode.
    Opencode,
    /// Qwen Code.
    QwenCode,
    /// Cline's command line.
    Cline,
}

/// The respool that a client should use.
#[derive(Clone, Debug)]
pub struct Target {
    /// respool's URL, without `/v1`.
    pub url: String,
    /// The model.
    pub model: String,
    /// The model's window in tokens, if known.
    pub window: Option<u64>,
    /// The environment variable with a key from `client_keys`.
    pub key_env: Option<String>,
}

/// Where a client keeps its settings.
#[derive(Clone, Debug, Default)]
pub struct SettingsFolders {
    /// The home directory.
    pub home: PathBuf,
    /// `CODEX_HOME`.
    pub codex: Option<PathBuf>,
    /// `CLAUDE_CONFIG_DIR`.
    pub claude: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`.
    pub xdg_config: Option<PathBuf>,
}

impl Client {
    /// Returns the file to edit; `None` if the settings come from the shell.
    pub fn settings_file(self, folders: &SettingsFolders) -> Option<PathBuf> {
        let or = |configured: &Option<PathBuf>, default: &str| {
            configured.clone().unwrap_or_else(|| folders.home.join(default))
        };
        match self {
            Self::Codex => Some(or(&folders.codex, ".codex").join("config.toml")),
            Self::ClaudeCode => Some(or(&folders.claude, ".claude").join("settings.json")),
            Self::Opencode => Some(or(&folders.xdg_config, ".config").join("opencode/opencode.json")),
            Self::Openclaw | Self::QwenCode | Self::Cline => None,
        }
    }

    /// Returns the path of its API.
    pub fn api_path(self) -> &'static str {
        match self {
            Self::Codex => "/v1/responses",
            Self::ClaudeCode => "/v1/messages",
            Self::Openclaw | Self::Opencode | Self::QwenCode | Self::Cline => "/v1/chat/completions",
        }
    }

    /// Returns the client's settings with respool in them; `present` is empty if there is no file yet.
    ///
    /// # Errors
    /// When the present text has another form.
    pub fn edit_settings(self, present: &str, target: &Target, file: &Path) -> Result<String, EditError> {
        match self {
            Self::Codex => edit_codex(present, target),
            Self::ClaudeCode => edit_json(present, |settings| claude_code(settings, target)),
            Self::Opencode => edit_json(present, |settings| edit_opencode(settings, target)),
            Self::Openclaw | Self::QwenCode | Self::Cline => Ok(present.to_owned()),
        }
        .map_err(|why| format!("{} cannot be edited: {why}", file.display()).into())
    }

    /// Returns the settings from `before`, plus the changes made since `after` was written; `None` if those
    /// touch what respool wrote.
    pub fn restore_settings(self, after: &str, present: &str, before: &str) -> Option<String> {
        if present == after {
            return Some(before.to_owned());
        }
        if matches!(self, Self::ClaudeCode | Self::Opencode) {
            return restored_json(after, present, before);
        }
        let is_whole = |text: &String| match self {
            _ if text.is_empty() => true,
            Self::Openclaw => super::openclaw::can_read(text),
            _ => text.parse::<DocumentMut>().is_ok(),
        };
        diffy::merge(after, present, before).ok().filter(is_whole)
    }

    /// Returns the commands to type, if there is no file to edit.
    pub fn shell_commands(self, target: &Target) -> String {
        let Target { url, model, key_env, .. } = target;
        let key = key_env.as_ref().map_or_else(|| "none".to_owned(), |name| format!("\"${name}\""));
        let (url, model) = (quote_word(&format!("{url}/v1")), quote_word(model));
        match self {
            Self::QwenCode => format!(
                "export OPENAI_BASE_URL={url} OPENAI_API_KEY={key} OPENAI_MODEL={model}\nqwen --auth-type openai"
            ),
            _ => format!("cline auth -p openai -k {key} -m {model} -b {url}\ncline -P openai -m {model}"),
        }
    }
}

/// Quotes a word for a shell: a server names its models as it likes.
fn quote_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

fn edit_codex(present: &str, target: &Target) -> Result<String, EditError> {
    let mut document: DocumentMut =
        present.parse().map_err(|error| format!("it is not valid TOML: {error}"))?;
    document["model"] = value(&target.model);
    document["model_provider"] = value("respool");
    if let Some(window) = target.window.and_then(|window| i64::try_from(window).ok()) {
        document["model_context_window"] = value(window);
    }
    let providers = document.entry("model_providers").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let providers = providers.as_table_like_mut().ok_or("`model_providers` is not a table")?;
    let mut provider = Table::new();
    provider["name"] = value("respool");
    provider["base_url"] = value(format!("{}/v1", target.url));
    provider["wire_api"] = value("responses");
    if let Some(name) = &target.key_env {
        provider["env_key"] = value(name);
    }
    providers.insert("respool", Item::Table(provider));
    Ok(document.to_string())
}

fn edit_json(
    present: &str,
    edit: impl FnOnce(&mut Map<String, Value>) -> Result<(), EditError>,
) -> Result<String, EditError> {
    let text = if present.trim().is_empty() { "{}" } else { present };
    let mut settings: Value =
        serde_json::from_str(text).map_err(|error| format!("it is not plain JSON: {error}"))?;
    edit(settings.as_object_mut().ok_or("it does not hold an object")?)?;
    let text = serde_json::to_string_pretty(&settings).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// Undoes the change of a JSON file. The text of `before` is kept if nothing else was changed.
fn restored_json(after: &str, present: &str, before: &str) -> Option<String> {
    let read = |text: &str| match text.trim() {
        "" => Some(json!({})),
        text => serde_json::from_str::<Value>(text).ok(),
    };
    let (after, present, old) = (read(after)?, read(present)?, read(before)?);
    let restored = restored_value(Some(&after), Some(&present), Some(&old))?;
    if restored == old {
        return Some(before.to_owned());
    }
    serde_json::to_string_pretty(&restored).ok().map(|text| text + "\n")
}

/// Changes made since are kept; the rest is as it was before.
fn restored_value(after: Option<&Value>, present: Option<&Value>, before: Option<&Value>) -> Option<Value> {
    if present == after {
        return before.cloned();
    }
    let (Some(Value::Object(written)), Some(Value::Object(now))) = (after, present) else {
        return present.cloned();
    };
    let no_fields = Map::new();
    let old = before.and_then(Value::as_object).unwrap_or(&no_fields);
    let keys = now.keys().chain(old.keys().filter(|key| !now.contains_key(*key)));
    let restored =
        |key: &String| Some((key.clone(), restored_value(written.get(key), now.get(key), old.get(key))?));
    Some(Value::Object(keys.filter_map(restored).collect()))
}

fn table_at<'s>(
    settings: &'s mut Map<String, Value>,
    key: &str,
) -> Result<&'s mut Map<String, Value>, EditError> {
    let entry = settings.entry(key).or_insert_with(|| json!({}));
    entry.as_object_mut().ok_or_else(|| format!("`{key}` is not an object").into())
}

/// The models that Claude Code asks for, by its own names: of the main turn, of small ones, and of subagents
/// and commands that name one.
const MODELS: [&str; 5] = [
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
];

fn claude_code(settings: &mut Map<String, Value>, target: &Target) -> Result<(), EditError> {
    match &target.key_env {
        Some(name) => settings.insert("apiKeyHelper".into(), json!(format!("printenv {name}"))),
        None => settings.remove("apiKeyHelper"),
    };
    let environment = table_at(settings, "env")?;
    // These would be sent in place of the key, or of `none`.
    environment.shift_remove("ANTHROPIC_API_KEY");
    if target.key_env.is_some() {
        environment.shift_remove("ANTHROPIC_AUTH_TOKEN");
    }
    let mut set = |name: &str, text: String| environment.insert(name.to_owned(), json!(text));
    set("ANTHROPIC_BASE_URL", target.url.clone());
    for name in MODELS {
        set(name, target.model.clone());
    }
    set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned());
    if target.key_env.is_none() {
        set("ANTHROPIC_AUTH_TOKEN", "none".to_owned());
    }
    if let Some(window) = target.window {
        set("CLAUDE_CODE_MAX_CONTEXT_TOKENS", window.to_string());
    }
    Ok(())
}

fn edit_opencode(settings: &mut Map<String, Value>, target: &Target) -> Result<(), EditError> {
    let mut model = json!({"name": target.model, "tool_call": true, "reasoning": true});
    if let Some(window) = target.window {
        model["limit"] = json!({"context": window, "output": window / 4});
    }
    let key = target.key_env.as_ref().map_or_else(|| "none".to_owned(), |name| format!("{{env:{name}}}"));
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "respool",
        "options": {"baseURL": format!("{}/v1", target.url), "apiKey": key},
        "models": {target.model.clone(): model},
    });
    settings.entry("$schema").or_insert_with(|| json!("https://opencode.ai/config.json"));
    settings.insert("model".into(), json!(format!("respool/{}", target.model)));
    table_at(settings, "provider")?.insert("respool".into(), provider);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(key_env: Option<&str>) -> Target {
        Target {
            url: "http://127.0.0.1:8003".into(),
            model: "gpt-oss-120b".into(),
            window: Some(131_072),
            key_env: key_env.map(str::to_owned),
        }
    }

    fn edited(client: Client, present: &str, key_env: Option<&str>) -> String {
        let text = client.edit_settings(present, &target(key_env), Path::new("settings")).unwrap();
        assert_eq!(
            client.edit_settings(&text, &target(key_env), Path::new("settings")).unwrap(),
            text,
            "twice is once"
        );
        text
    }

    #[test]
    fn codex_keeps_what_it_has() {
        let present = "# mine\nmodel = \"gpt-6\"\napproval_policy = \"never\"\n\n[model_providers.other]\nname = \"other\" # theirs\n";
        insta::assert_snapshot!(edited(Client::Codex, present, Some("RESPOOL_KEY")), @r#"
        # mine
        model = "gpt-oss-120b"
        approval_policy = "never"
        model_provider = "respool"
        model_context_window = 131072

        [model_providers.other]
        name = "other" # theirs

        [model_providers.respool]
        name = "respool"
        base_url = "http://127.0.0.1:8003/v1"
        wire_api = "responses"
        env_key = "RESPOOL_KEY"
        "#);
    }

    #[test]
    fn claude_code_keeps_what_it_has() {
        let text = edited(Client::ClaudeCode, r#"{"theme": "dark", "env": {"A": "b"}}"#, None);
        let settings: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&settings["theme"], &settings["env"]["A"]), (&json!("dark"), &json!("b")));
        assert_eq!(settings["env"]["ANTHROPIC_BASE_URL"], "http://127.0.0.1:8003");
        assert_eq!(settings["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], "131072");
        let settings: Value = serde_json::from_str(&edited(Client::ClaudeCode, "", Some("K"))).unwrap();
        assert_eq!(settings["apiKeyHelper"], "printenv K");
        assert_eq!(settings["env"].get("ANTHROPIC_AUTH_TOKEN"), None);
        let settings: Value = serde_json::from_str(&edited(Client::ClaudeCode, &text, Some("K"))).unwrap();
        assert_eq!(settings["env"].get("ANTHROPIC_AUTH_TOKEN"), None, "a key that came later goes first");
        let theirs =
            r#"{"env": {"ANTHROPIC_API_KEY": "sk-ant-theirs", "ANTHROPIC_DEFAULT_OPUS_MODEL": "x"}}"#;
        let settings: Value = serde_json::from_str(&edited(Client::ClaudeCode, theirs, Some("K"))).unwrap();
        assert_eq!(settings["env"].get("ANTHROPIC_API_KEY"), None, "it would go before the helper");
        assert_eq!(settings["env"]["ANTHROPIC_DEFAULT_OPUS_MODEL"], "gpt-oss-120b");
    }

    #[test]
    fn opencode_gets_a_provider() {
        let settings: Value = serde_json::from_str(&edited(Client::Opencode, "", Some("K"))).unwrap();
        assert_eq!(settings["model"], "respool/gpt-oss-120b");
        assert_eq!(settings["provider"]["respool"]["options"]["apiKey"], "{env:K}");
        assert_eq!(settings["provider"]["respool"]["models"]["gpt-oss-120b"]["limit"]["context"], 131_072);
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        for (client, present) in [
            (Client::Codex, "model = "),
            (Client::Codex, "model_providers = 7"),
            (Client::ClaudeCode, "// a comment\n{}"),
            (Client::ClaudeCode, "[]"),
            (Client::Opencode, r#"{"provider": 7}"#),
        ] {
            let error =
                client.edit_settings(present, &target(None), Path::new("settings")).unwrap_err().to_string();
            assert!(error.starts_with("settings cannot be edited: "), "{error}");
        }
    }

    #[test]
    fn files_are_where_the_clients_look() {
        let folders = SettingsFolders {
            home: "/home/u".into(),
            codex: Some("/c".into()),
            ..SettingsFolders::default()
        };
        let files: Vec<String> = [Client::Codex, Client::ClaudeCode, Client::Opencode]
            .iter()
            .filter_map(|client| Some(client.settings_file(&folders)?.display().to_string()))
            .collect();
        assert_eq!(
            files,
            ["/c/config.toml", "/home/u/.claude/settings.json", "/home/u/.config/opencode/opencode.json"]
        );
        assert_eq!(Client::Cline.settings_file(&folders), None);
        let odd = Target { model: "it's; $(reboot)".into(), ..target(None) };
        assert!(Client::Cline.shell_commands(&odd).contains(r" -m 'it'\''s; $(reboot)' -b "));
        assert!(
            Client::QwenCode
                .shell_commands(&target(None))
                .contains("OPENAI_BASE_URL=http://127.0.0.1:8003/v1")
        );
    }
}
