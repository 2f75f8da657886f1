//! `respool setup CLIENT`: points an agent client at respool, shows the change to its settings, tries one real turn, and can undo the
//! change.
//!
//! Copies of the settings before and after the change are kept beside the file until it is undone. Later changes survive the undo unless
//! they touch what respool wrote.

mod clients;
mod openclaw;

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::http_client::{chain, client_for};

use self::clients::{Client, Homes, Target};
use super::plain_http::plain_address;
use super::serve::runtime;
use super::{Failure, say};

/// The first answer of a large model may take a while.
const TURN_WITHIN: Duration = Duration::from_mins(5);
/// How long to wait for a list of models, which needs no computation.
const LIST_WITHIN: Duration = Duration::from_secs(10);

/// Suffix of the copy of the settings before the change.
const BEFORE: &str = "before-respool";
/// Suffix of the copy of the settings after the change.
const AFTER: &str = "after-respool";
/// Suffix of the copy with later changes that could not be kept.
const UNDONE: &str = "before-undo";

#[derive(Args, Debug)]
pub(super) struct SetupArgs {
    /// The client
    #[arg(value_enum)]
    client: Client,
    /// Where respool listens
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8003")]
    url: String,
    /// The model [default: the only one that respool serves]
    #[arg(long)]
    model: Option<String>,
    /// The model server, which is asked for its models (openclaw only) [default: respool is asked]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// The environment variable with one of respool's `client_keys`
    #[arg(long, value_name = "NAME")]
    key_env: Option<String>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Restore the settings as they were
    #[arg(long, conflicts_with = "dry_run")]
    undo: bool,
}

pub(super) fn setup(args: SetupArgs) -> Result<(), Failure> {
    if args.client == Client::Openclaw {
        return openclaw::setup(&args);
    }
    if args.upstream.is_some() {
        let why = format!(
            "{} gets its models from respool: --upstream works with openclaw only",
            name_of(args.client)
        );
        return Err(why.into());
    }
    let file = args.client.file(&homes());
    if args.undo {
        return undo(args.client, file.as_deref());
    }
    runtime()?.block_on(set_up(args, file))
}

fn homes() -> Homes {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    Homes {
        home: folder("HOME").unwrap_or_default(),
        codex: folder("CODEX_HOME"),
        claude: folder("CLAUDE_CONFIG_DIR"),
        xdg_config: folder("XDG_CONFIG_HOME"),
    }
}

/// The respool to use, with a client's key.
fn respool(args: &SetupArgs) -> Result<Respool, Failure> {
    let url = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let key = match &args.key_env {
        Some(name) => {
            let value = std::env::var(name).map_err(|_| {
                format!(
                    "the environment variable `{name}` is not set: set it to one of respool's `client_keys`"
                )
            })?;
            Some(ClientKey { name: name.clone(), value })
        }
        None => None,
    };
    Ok(Respool { url, key })
}

async fn set_up(args: SetupArgs, file: Option<PathBuf>) -> Result<(), Failure> {
    let respool = respool(&args)?;
    let url = respool.url.clone();
    let (model, window) = respool.model(args.model).await?;
    let target = Target { url, model, window, key_env: args.key_env };
    match file {
        Some(file) => edit(args.client, &target, &file, args.dry_run)?,
        None => say::say(&format!("Start it with:\n\n{}\n", args.client.commands(&target))),
    }
    if !args.dry_run {
        say::say(&format!("Trying one turn with {} on {} …", target.model, args.client.api()));
        respool.turn(args.client.api(), &target.model).await?;
        say::say("It works.");
    }
    Ok(())
}

fn edit(client: Client, target: &Target, file: &Path, dry_run: bool) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| format!("{} cannot be {what}: {error}", file.display());
    let present = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.map_err(|error| failed("read", error))?),
    };
    let text = client.edited(present.as_deref().unwrap_or_default(), target, file)?;
    if present.as_deref() == Some(&text) {
        say::say(&format!("{} already points to respool.", file.display()));
        return Ok(());
    }
    say::say_piece(&difference(present.as_deref().unwrap_or_default(), &text, file));
    if dry_run {
        return Ok(());
    }
    write(client, file, present.as_deref().unwrap_or_default(), &text)?;
    say::say(&format!("Written. `respool setup {} --undo` restores it.", name_of(client)));
    Ok(())
}

fn difference(present: &str, text: &str, file: &Path) -> String {
    let name = file.display().to_string();
    crate::diff::unified(&name, present, text)
}

/// Writes new settings, after the copies that undoing needs. An empty copy means that there was no file.
fn write(client: Client, file: &Path, present: &str, text: &str) -> Result<(), String> {
    let failed = |what: &str, error: io::Error| format!("{} cannot be {what}: {error}", file.display());
    let as_it_was = match without_respool(client, file, present) {
        Some(Restored::Merged(text)) => text,
        // Later changes touch what respool wrote, which still is in it.
        Some(Restored::Conflict(before)) if present.contains("respool") => before,
        // It was undone by hand.
        Some(Restored::Conflict(_)) | None => present.to_owned(),
    };
    replace(&beside(file, BEFORE), &as_it_was).map_err(|error| failed("saved first", error))?;
    replace(&beside(file, AFTER), text).map_err(|error| failed("saved first", error))?;
    replace(file, text).map_err(|error| failed("written", error))
}

/// Settings without what respool wrote.
enum Restored {
    /// They include later changes.
    Merged(String),
    /// As they were before the change; later changes touch what respool wrote.
    Conflict(String),
}

/// Removes what respool wrote from the present settings; `None` if it wrote nothing.
fn without_respool(client: Client, file: &Path, present: &str) -> Option<Restored> {
    let before = fs::read_to_string(beside(file, BEFORE)).ok()?;
    let after = fs::read_to_string(beside(file, AFTER)).ok();
    let restored = after.and_then(|after| client.restored(&after, present, &before));
    Some(restored.map_or(Restored::Conflict(before), Restored::Merged))
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{end}"));
    file.with_file_name(name)
}

/// Writes beside the file first, so that a crash leaves the old or the new file. The file keeps its permissions.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A link to settings elsewhere stays a link.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let beside = file.with_extension(format!("respool-{}", std::process::id()));
    let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    written.write_all(text.as_bytes())?;
    if let Ok(present) = fs::metadata(&file) {
        fs::set_permissions(&beside, present.permissions())?;
    }
    fs::rename(&beside, &file)
}

fn undo(client: Client, file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file else {
        say::say(&format!(
            "{} gets its settings from the shell, so there is no file to restore.",
            name_of(client)
        ));
        return Ok(());
    };
    let present = match fs::read_to_string(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("{} cannot be read: {error}", file.display()).into());
        }
        read => read.unwrap_or_default(),
    };
    let nothing = || format!("there is nothing to undo: {} does not exist", beside(file, BEFORE).display());
    let restored = without_respool(client, file, &present).ok_or_else(nothing)?;
    let failed = |error: io::Error| format!("{} cannot be restored: {error}", file.display());
    let text = match restored {
        Restored::Merged(text) => text,
        Restored::Conflict(text) => {
            let kept = beside(file, UNDONE);
            replace(&kept, &present).map_err(failed)?;
            say::say(&format!(
                "{} was changed in lines that respool had written, or is no longer valid. It is restored to what it was before; the changed file is kept as {}.",
                file.display(),
                kept.display()
            ));
            text
        }
    };
    say::say_piece(&difference(&present, &text, file));
    if text.is_empty() {
        remove(file)?;
    } else {
        replace(file, &text).map_err(failed)?;
    }
    for end in [BEFORE, AFTER] {
        remove(&beside(file, end))?;
    }
    say::say(&format!("{} has been restored.", file.display()));
    Ok(())
}

/// Removes a file that may be gone already.
fn remove(file: &Path) -> Result<(), String> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", file.display()))
        }
        _ => Ok(()),
    }
}

fn name_of(client: Client) -> String {
    use clap::ValueEnum as _;
    client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The respool that the client should use.
struct Respool {
    url: String,
    key: Option<ClientKey>,
}

/// A client's key, and the environment variable that holds it.
struct ClientKey {
    name: String,
    value: String,
}

/// An error in a conversation with respool; its text says what to do.
#[derive(Debug)]
enum AskError {
    Unreachable { url: String, cause: String, todo: String },
    WrongKey { url: String, refusal: String },
    Refused { status: reqwest::StatusCode, text: String },
}

impl fmt::Display for AskError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { url, cause, todo } => {
                write!(out, "respool does not answer at {url}: {cause}. {todo}")
            }
            Self::WrongKey { url, refusal } => write!(out, "respool at {url} {refusal}"),
            Self::Refused { status, text } => write!(out, "respool answered {status}: {text}"),
        }
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Respool {
    /// The list of models.
    async fn models(&self) -> Result<Vec<Value>, AskError> {
        let request = self.client()?.get(format!("{}/v1/models", self.url)).timeout(LIST_WITHIN);
        let list = self.ask(request).await?;
        Ok(list["data"].as_array().cloned().unwrap_or_default())
    }

    /// The model's name and window.
    async fn model(&self, wanted: Option<String>) -> Result<(String, Option<u64>), Failure> {
        let models = self.models().await?;
        let name = |model: &Value| model["id"].as_str().unwrap_or_default().to_owned();
        let names: Vec<String> = models.iter().map(name).collect();
        let found = match &wanted {
            Some(wanted) => models.iter().find(|model| model["id"] == wanted.as_str()),
            None => models.first().filter(|_| models.len() == 1),
        };
        let model = found.ok_or_else(|| {
            let what = wanted
                .map_or_else(|| "Which model?".to_owned(), |name| format!("There is no model `{name}`."));
            format!("{what} Name one with --model. Available models: {}", names.join(", "))
        })?;
        Ok((name(model), model["max_model_len"].as_u64()))
    }

    async fn turn(&self, api: &str, model: &str) -> Result<(), Failure> {
        let words = "Answer with the word: ready";
        let messages = json!([{"role": "user", "content": words}]);
        let body = match api {
            "/v1/responses" => json!({"model": model, "input": words, "store": false}),
            "/v1/messages" => json!({"model": model, "messages": messages, "max_tokens": 2000}),
            _ => json!({"model": model, "messages": messages}),
        };
        let request = self.client()?.post(format!("{}{api}", self.url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        Ok(self.ask(request).await.map(drop)?)
    }

    fn client(&self) -> Result<reqwest::Client, AskError> {
        client_for(&self.url, reqwest::Client::builder().no_proxy().timeout(TURN_WITHIN)).map_err(|cause| {
            let todo = "Give its address with --url".to_owned();
            AskError::Unreachable { url: self.url.clone(), cause, todo }
        })
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> Result<Value, AskError> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(&key.value),
            None => request,
        };
        let answer = async {
            let answer = request.send().await?;
            Ok((answer.status(), answer.text().await?))
        };
        let (status, text) = match answer.await {
            Ok(answer) => answer,
            Err(error) => return Err(self.unreachable(&error).await),
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        if status == reqwest::StatusCode::UNAUTHORIZED {
            return Err(self.wrong_key());
        }
        let text = value["error"]["message"].as_str().map(str::to_owned).unwrap_or(text);
        Err(AskError::Refused { status, text })
    }

    async fn unreachable(&self, error: &reqwest::Error) -> AskError {
        let todo = match plain_address(&self.url).await {
            Some(plain) => format!("It answers without TLS: write --url {plain}"),
            None => "Start it with `respool serve`, or give its address with --url".to_owned(),
        };
        AskError::Unreachable { url: self.url.clone(), cause: chain(error), todo }
    }

    fn wrong_key(&self) -> AskError {
        let refusal = match &self.key {
            Some(key) => format!(
                "does not accept the key in `{}`: set the variable to one of respool's `client_keys`",
                key.name
            ),
            None => "asks for a key: put one of its `client_keys` into an environment variable, and name the variable with --key-env"
                .to_owned(),
        };
        AskError::WrongKey { url: self.url.clone(), refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target { url: "http://127.0.0.1:1".into(), model: "m".into(), window: None, key_env: None }
    }

    #[test]
    fn settings_are_changed_and_restored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/config.toml");
        let target = target();
        edit(Client::Codex, &target, &file, true).unwrap();
        assert!(!file.exists(), "a dry run writes nothing");
        edit(Client::Codex, &target, &file, false).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("[model_providers.respool]"));
        undo(Client::Codex, Some(&file)).unwrap();
        assert!(!file.exists() && !beside(&file, BEFORE).exists() && !beside(&file, AFTER).exists());
        fs::write(&file, "# mine\n").unwrap();
        edit(Client::Codex, &target, &file, false).unwrap();
        edit(Client::Codex, &Target { model: "n".into(), ..target }, &file, false).unwrap();
        undo(Client::Codex, Some(&file)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
        assert!(undo(Client::Codex, Some(&file)).is_err());
    }

    #[test]
    fn the_first_settings_survive_a_second_setup() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, "model = \"gpt-5\"\n").unwrap();
        edit(Client::Codex, &target(), &file, false).unwrap();
        let by_hand = fs::read_to_string(&file).unwrap().replace("model = \"m\"", "model = \"other\"");
        fs::write(&file, by_hand).unwrap();
        edit(Client::Codex, &target(), &file, false).unwrap();
        undo(Client::Codex, Some(&file)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "model = \"gpt-5\"\n");
    }

    #[test]
    fn a_file_that_is_gone_or_unreadable_is_undone_or_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        edit(Client::Codex, &target(), &file, false).unwrap();
        fs::remove_file(&file).unwrap();
        undo(Client::Codex, Some(&file)).unwrap();
        assert!(!file.exists() && !beside(&file, BEFORE).exists());
        edit(Client::Codex, &target(), &file, false).unwrap();
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(undo(Client::Codex, Some(&file)).is_err());
        assert_eq!(fs::read(&file).unwrap(), [0xff, 0xfe]);
        assert!(beside(&file, BEFORE).exists() && !beside(&file, UNDONE).exists());
    }

    /// Claude Code rewrites its settings itself, and setting them up changes their layout.
    #[test]
    fn json_is_restored_by_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let mine = r#"{"theme": "dark", "env": {"A": "b", "ANTHROPIC_MODEL": "opus"}, "allow": ["ls"]}"#;
        let read = || serde_json::from_str::<Value>(&fs::read_to_string(&file).unwrap()).unwrap();
        fs::write(&file, mine).unwrap();
        edit(Client::ClaudeCode, &target(), &file, false).unwrap();
        let mut changed = read();
        changed["allow"] = json!(["ls", "cat"]);
        changed["env"]["C"] = json!("d");
        changed["env"].as_object_mut().unwrap().remove("A");
        changed["env"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] = json!("haiku");
        fs::write(&file, changed.to_string()).unwrap();
        undo(Client::ClaudeCode, Some(&file)).unwrap();
        let env = json!({"ANTHROPIC_MODEL": "opus", "C": "d", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "haiku"});
        assert_eq!(read(), json!({"theme": "dark", "env": env, "allow": ["ls", "cat"]}));
        assert!(!beside(&file, UNDONE).exists());
    }

    #[test]
    fn later_changes_survive_undoing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let target = target();
        let (mine, later) = ("# mine\nmodel = \"gpt\"\n\n[a]\nx = 1\ny = 3\n", "\n[trusted]\npath = true\n");
        let text = || fs::read_to_string(&file).unwrap();
        fs::write(&file, mine).unwrap();
        edit(Client::Codex, &target, &file, false).unwrap();
        let changed = text().replace("x = 1", "x = 2");
        fs::write(&file, &changed).unwrap();
        undo(Client::Codex, Some(&file)).unwrap();
        assert_eq!(text(), mine.replace("x = 1", "x = 2"));
        // If it was undone by hand and then changed, the changed version is what the next undo restores.
        edit(Client::Codex, &target, &file, false).unwrap();
        let by_hand = format!("{mine}{later}");
        fs::write(&file, &by_hand).unwrap();
        edit(Client::Codex, &target, &file, false).unwrap();
        undo(Client::Codex, Some(&file)).unwrap();
        assert_eq!(text(), by_hand);
        // Changes to respool's own lines are kept beside the file.
        edit(Client::Codex, &target, &file, false).unwrap();
        let other = text().replace("model = \"m\"", "model = \"n\"");
        fs::write(&file, &other).unwrap();
        undo(Client::Codex, Some(&file)).unwrap();
        assert_eq!(text(), by_hand);
        assert_eq!(fs::read_to_string(beside(&file, UNDONE)).unwrap(), other);
    }
}
