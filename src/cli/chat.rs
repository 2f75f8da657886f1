//! `respool chat`: turns arguments and configuration into what the chat needs.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Args;
use clap::error::ErrorKind;
use tokio_util::sync::CancellationToken;

use super::assembly::relay_limits;
use super::failure::{Failure, log_problem};
use super::options::{unread_notes, with_service};
use super::runtime::new_runtime;
use super::say::say_on_stderr;
use super::upstreams::ServedUpstreams;
use super::usage::load_prices;
use crate::relay_ports::RelayedModels;
use agent::{OPERATOR_KEY, Tokens};
use chat::{ChatOptions, EventOfRun, NoAnswer, Ports, PriceOf, Resume, SYSTEM_PROMPT, Setting, Sources};
use relay::{ReasoningField, Relay, RelayConfig, ToolsMode};
use settings::{Flags, Loaded, Problems, Settings};
use store::Store;
use telemetry::ErrorReport;
use tools::programs::{current_project, find_in_path};
use upstream::UpstreamConfig;
use wire::turn::Usage;
use wire::units::{Secret, UnusableSetting};

/// The time after which it is said that standard input has not ended.
const QUIET_INPUT: Duration = Duration::from_secs(2);
/// The file that replaces the system prompt.
const SYSTEM_FILE: &str = "systematic_exploration_prompt.md";

/// An endpoint with a built-in name.
struct Preset {
    name: &'static str,
    url: &'static str,
    model: &'static str,
    key: &'static str,
}

const DEEPINFRA: Preset = Preset {
    name: "deepinfra",
    url: "https://api.deepinfra.com/v1/openai",
    model: "openai/gpt-oss-120b",
    key: "DEEPINFRA_API_KEY",
};

#[derive(Args, Debug)]
pub(super) struct ChatArgs {
    /// The configuration file [default: as for serve]
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,
    /// An OpenAI-compatible endpoint, or `deepinfra` [default: the configured upstreams]
    #[arg(long, value_name = "URL", help_heading = "Configuration")]
    upstream: Option<String>,
    /// The model [default: the first one that the endpoint lists]
    #[arg(short = 'm', long, value_name = "ID")]
    model: Option<String>,
    /// The system prompt [default: `systematic_exploration_prompt.md` next to the configuration file,
    /// otherwise respool's own]
    #[arg(long, value_name = "FILE", conflicts_with = "continue")]
    system: Option<PathBuf>,
    /// Run commands and change files without asking; whatever the policy denies stays denied
    #[arg(long)]
    yes: bool,
    /// Only look: files are read, and commands that only look run, until `/readonly off`
    #[arg(long)]
    read_only: bool,
    /// Continue the last conversation of this directory
    #[arg(short = 'c', long)]
    r#continue: bool,
    /// Choose an earlier conversation of this directory from a list and continue it
    #[arg(short = 'r', long, conflicts_with_all = ["continue", "system", "prompt"])]
    resume: bool,
    /// Answer this prompt and exit: the model's words go to standard output as they come, everything else to
    /// standard error; `-` reads the prompt from standard input
    #[arg(short = 'p', long = "prompt", value_name = "TEXT")]
    prompt: Option<String>,
    /// With a prompt, write each event as a line of JSON to standard output; the last one has the result
    #[arg(long, requires = "prompt")]
    json: bool,
    /// The first message of the conversation
    #[arg(value_name = "MESSAGE", conflicts_with = "prompt")]
    message: Vec<String>,
}

pub(super) fn run_chat(arguments: &ChatArgs) -> Result<(), Failure> {
    let prompt = read_prompt(arguments.prompt.as_deref());
    let preset = Some(DEEPINFRA).filter(|preset| arguments.upstream.as_deref() == Some(preset.name));
    let upstream = preset.as_ref().map(|preset| preset.url.to_owned()).or_else(|| arguments.upstream.clone());
    let flags = Flags { upstream, config: arguments.config.clone(), ..Flags::default() };
    let flags = with_service(flags);
    let mut loaded = Loaded::from_process(&flags)?;
    begin_chat(arguments, prompt?, preset, &mut loaded)
}

fn end_with_usage(why: &str) -> ! {
    let mut command = ChatArgs::augment_args(clap::Command::new("chat").bin_name("respool chat"));
    command.error(ErrorKind::ValueValidation, why).exit()
}

/// Returns the prompt from the command line, with the text of standard input below it, if that is a file or a
/// pipe; `-` means standard input alone.
fn read_prompt(text: Option<&str>) -> Result<Option<String>, Failure> {
    let unreadable = |error: io::Error| format!("standard input cannot be read: {error}");
    let text = match text {
        None if io::stdin().is_terminal() && io::stdout().is_terminal() => return Ok(None),
        None => end_with_usage(
            "standard input is not a terminal; give a prompt, for example respool chat -p \"…\"",
        ),
        Some("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(unreadable)?;
            text
        }
        Some(text) => match read_piped_text().map_err(unreadable)? {
            Some(piped) => format!("{text}\n\n{piped}"),
            None => text.to_owned(),
        },
    };
    if text.trim().is_empty() {
        end_with_usage("the prompt is empty");
    }
    Ok(Some(text))
}

/// Returns the text of standard input if that is a file or a pipe with some.
fn read_piped_text() -> io::Result<Option<String>> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let kind = input.metadata()?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Ok(None);
    }
    let (sender, read) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        sender.send(input.read_to_string(&mut text).map(|_| text))
    });
    let text = read.recv_timeout(QUIET_INPUT).or_else(|_| {
        say_on_stderr("respool: waiting for the end of standard input (`</dev/null` goes on without it)");
        read.recv()
    });
    let text = text.map_err(io::Error::other)??;
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

impl ChatArgs {
    fn wanted_resume(&self) -> Resume {
        match (self.r#continue, self.resume) {
            (true, _) => Resume::Last,
            (_, true) => Resume::Chosen,
            _ => Resume::Nothing,
        }
    }
}

/// Returns the options of the chat. `model`: that of the preset, if there is one.
fn chat_options(arguments: &ChatArgs, prompt: Option<String>, model: Option<String>) -> ChatOptions {
    ChatOptions {
        model: arguments.model.clone().or(model),
        yes: arguments.yes,
        read_only: arguments.read_only,
        resume: arguments.wanted_resume(),
        operator_key: std::env::var(OPERATOR_KEY).ok(),
        prompt,
        prompt_line: arguments.prompt.clone().filter(|text| text != "-"),
        message: (!arguments.message.is_empty()).then(|| arguments.message.join(" ")),
        json: arguments.json,
    }
}

fn begin_chat(
    arguments: &ChatArgs,
    prompt: Option<String>,
    preset: Option<Preset>,
    loaded: &mut Loaded,
) -> Result<(), Failure> {
    if arguments.upstream.is_some() {
        // Requested by name, so no other one replaces it.
        loaded.settings.upstreams.truncate(1);
    }
    let model = preset.as_ref().map(|preset| preset.model.to_owned());
    let key_of_preset = preset.as_ref().map(|preset| preset.key);
    if let Some(preset) = preset {
        with_key(&mut loaded.settings, &preset, std::env::var(preset.key).ok())?;
    }
    let directory = loaded.directory();
    anchor_paths(&mut loaded.settings, directory);
    let flush = telemetry::init_file(&loaded.settings.log).map_err(|why| log_problem(loaded, why))?;
    let (system, system_file) = read_system_prompt(arguments.system.as_deref(), loaded.directory())?;
    let unread = unread_notes(loaded);
    if prompt.is_some() {
        unread.iter().for_each(|note| say_on_stderr(&format!("respool: {note}")));
    }
    let sources = Sources {
        upstreams: loaded
            .settings
            .upstreams
            .iter()
            .map(|upstream| describe_endpoint(upstream, key_of_preset))
            .collect(),
        config: loaded.file.clone(),
        system: system_file,
        unread: (!unread.is_empty()).then(|| unread.join("; ")),
    };
    let runtime = new_runtime()?;
    let abort = CancellationToken::new();
    let relay =
        runtime.block_on(open_relay(&loaded.settings, &abort)).map_err(|found| loaded.problems(found))?;
    let models = Arc::new(RelayedModels(relay));
    let store = open_store(&loaded.settings);
    let options = chat_options(arguments, prompt, model);
    let setting = Setting {
        system,
        sources,
        ports: Ports {
            chat_model: models.clone(),
            models,
            price_of: price_of(&loaded.settings).map_err(|found| loaded.problems(found))?,
            event_of_run: event_of_run(store.clone()),
        },
        tools: loaded.settings.tools.clone(),
        store,
        report: ErrorReport::new(loaded.settings.log.errors_dir.clone()),
        log_content: loaded.settings.log.content,
        state_dir: loaded.settings.store.state_dir.clone(),
        workspace: std::env::current_dir()
            .map_err(|error| format!("this directory cannot be used: {error}"))?,
        options,
    };
    let done = chat::run_chat(setting, &runtime).map_err(|why| match why {
        NoAnswer::Failed(why) => Failure::Failed(with_first_step(why, loaded)),
        NoAnswer::Stopped => Failure::Interrupted,
    });
    abort.cancel();
    // A thread that waits for a key must not delay the exit.
    runtime.shutdown_background();
    drop(flush);
    done
}

/// Ends the process as the signal of Ctrl-C does: a shell then ends its loop, too.
pub(super) fn end_by_interrupt() -> ExitCode {
    let project: Vec<PathBuf> = current_project().into_iter().collect();
    if let Ok(shell) = find_in_path("sh", &project) {
        // In the shell nothing handles the signal. It returns only if it cannot be started.
        let _ = Command::new(shell).args(["-c", "kill -INT $$"]).exec();
    }
    ExitCode::from(chat::INTERRUPTED)
}

/// Adds to the reason why a chat could not begin what names a model server, if nothing does.
fn with_first_step(why: String, loaded: &Loaded) -> String {
    let is_default = loaded.settings.upstreams == Settings::default().upstreams;
    if loaded.file.is_some() || !is_default {
        return why;
    }
    format!(
        "{why}. No model server is configured: name one with --upstream URL, or as `[[upstream]]` in \
         ~/.config/respool/respool.toml"
    )
}

/// Prices tokens by `[prices]`.
fn price_of(settings: &Settings) -> Result<PriceOf, Vec<UnusableSetting>> {
    let (prices, currency) = (load_prices(settings)?, settings.usage.currency.clone().unwrap_or_default());
    Ok(Arc::new(move |model: &str, tokens: Tokens| {
        let Tokens { prompt, completion, cached, .. } = tokens;
        let usage = Usage { prompt, completion, cached: Some(cached), ..Usage::default() };
        Some(prices.token_price(model)?.cost_of(usage).with_currency(&currency))
    }))
}

/// Gives the preset's endpoint its key, unless the configuration has one.
fn with_key(settings: &mut Settings, preset: &Preset, key: Option<String>) -> Result<(), Failure> {
    let Some(upstream) = settings.upstreams.first_mut() else { return Ok(()) };
    if upstream.api_key.is_none() {
        let key = key.filter(|key| !key.trim().is_empty()).ok_or_else(|| {
            format!("{} needs a key: set the environment variable {}", preset.name, preset.key)
        })?;
        upstream.api_key = Some(Secret::new(key.trim()));
    }
    Ok(())
}

/// Anchors the chat's own paths. It works in other people's directories, so its files go elsewhere: a
/// relative `state_dir` begins at the configuration's directory, and the log's files begin at `state_dir`.
fn anchor_paths(settings: &mut Settings, directory: Option<PathBuf>) {
    if let Some(directory) = directory {
        settings.store.state_dir = directory.join(&settings.store.state_dir);
    }
    let state_dir = &settings.store.state_dir;
    settings.log.file = settings.log.file.as_ref().map(|file| state_dir.join(file));
    settings.log.errors_dir = state_dir.join(&settings.log.errors_dir);
}

/// Describes an endpoint, and where its key comes from, for the person.
fn describe_endpoint(upstream: &UpstreamConfig, key_of_preset: Option<&str>) -> String {
    let UpstreamConfig { url, api_key, api_key_env, .. } = upstream;
    match (api_key_env.as_deref().or(key_of_preset), api_key) {
        (Some(variable), _) => format!("{url} (key: ${variable})"),
        (None, Some(_)) => format!("{url} (with a key)"),
        (None, None) => url.to_string(),
    }
}

/// Opens the relay as configured, except that everything that can stream does, because a person is watching.
async fn open_relay(
    settings: &Settings,
    abort: &CancellationToken,
) -> Result<Arc<Relay>, Vec<UnusableSetting>> {
    let config = RelayConfig {
        tools_mode: ToolsMode::Live,
        reasoning: ReasoningField::ReasoningContent,
        ..settings.relay.clone()
    };
    let upstreams = ServedUpstreams::open(settings, abort).await?.into_fleet();
    Ok(Arc::new(Relay::new(config, upstreams, relay_limits(settings))))
}

/// Finds the events of experts' runs in the store.
fn event_of_run(store: Option<Arc<Store>>) -> EventOfRun {
    Arc::new(move |run| {
        let store = store.clone();
        Box::pin(async move { experts::event_of_run(&*store?, &run).await.ok().flatten() })
    })
}

/// Opens the store; `None` if it cannot be opened, because the conversation works without it.
fn open_store(settings: &Settings) -> Option<Arc<Store>> {
    let opened = Store::open(&settings.store);
    let report = |error: &_| say_on_stderr(&format!("respool: conversations are not kept: {error}"));
    opened.map(Arc::new).inspect_err(report).ok()
}

/// Returns the system prompt, and the file it comes from.
fn read_system_prompt(
    file: Option<&Path>,
    directory: Option<PathBuf>,
) -> Result<(String, Option<PathBuf>), Problems> {
    let own = directory.map(|directory| directory.join(SYSTEM_FILE)).filter(|own| own.exists());
    let asked_by = if file.is_some() { "--system" } else { "the system prompt" };
    let Some(path) = file.map(Path::to_owned).or(own) else { return Ok((SYSTEM_PROMPT.to_owned(), None)) };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((text, Some(path))),
        Err(error) => {
            let why = format!("{} cannot be read: {error}; correct the path or its rights", path.display());
            Err(Problems::with_source(asked_by, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deepinfra_needs_its_key_and_has_its_own_base() {
        let url: upstream::Address = DEEPINFRA.url.parse().unwrap();
        assert_eq!(
            url.endpoint_url("/v1/chat/completions").as_deref(),
            Some("https://api.deepinfra.com/v1/openai/chat/completions")
        );
        let mut settings = Settings::default();
        let why = with_key(&mut settings, &DEEPINFRA, Some(" ".into())).unwrap_err();
        assert!(why.to_string().contains("DEEPINFRA_API_KEY"), "{why}");
        with_key(&mut settings, &DEEPINFRA, Some("k\n".into())).unwrap();
        assert_eq!(settings.upstreams[0].api_key, Some(Secret::new("k")));
    }

    #[test]
    fn tokens_have_the_price_of_their_model() {
        let mut settings = Settings::default();
        settings.usage.currency = Some("EUR".into());
        settings.prices = toml::from_str("[m]\ninput = 2.0\ncached_input = 1.0\noutput = 4.0").unwrap();
        let price_of = price_of(&settings).unwrap();
        let tokens = Tokens { prompt: 1_000_000, cached: 500_000, completion: 250_000, ..Tokens::default() };
        assert_eq!(price_of("m", tokens).as_deref(), Some("2.50 EUR"));
        assert_eq!(price_of("other", tokens), None);
    }

    #[test]
    fn a_file_of_the_name_replaces_the_prompt() {
        let dir = tempfile::tempdir().unwrap();
        let directory = || Some(dir.path().to_owned());
        assert_eq!(read_system_prompt(None, directory()).unwrap(), (SYSTEM_PROMPT.to_owned(), None));
        let own = dir.path().join(SYSTEM_FILE);
        std::fs::write(&own, "mine").unwrap();
        assert_eq!(read_system_prompt(None, directory()).unwrap(), ("mine".to_owned(), Some(own)));
        let why = read_system_prompt(Some(Path::new("nowhere")), directory()).unwrap_err().to_string();
        assert!(why.starts_with("--system: nowhere cannot be read"), "{why}");
    }

    #[test]
    fn the_chats_own_files_are_elsewhere() {
        let mut settings = Settings::default();
        settings.store.state_dir = "state".into();
        settings.log.file = Some("respool.log".into());
        anchor_paths(&mut settings, Some("/home/me/.config/respool".into()));
        let state = Path::new("/home/me/.config/respool/state");
        assert_eq!(settings.store.state_dir, state);
        assert_eq!(
            (settings.log.file, settings.log.errors_dir),
            (Some(state.join("respool.log")), state.join("logs"))
        );
    }

    #[test]
    fn the_endpoint_is_shown_with_its_keys_origin() {
        let mut upstream = UpstreamConfig::with_address("http://h:1".parse().unwrap());
        assert_eq!(describe_endpoint(&upstream, None), "http://h:1");
        assert_eq!(
            describe_endpoint(&upstream, Some("DEEPINFRA_API_KEY")),
            "http://h:1 (key: $DEEPINFRA_API_KEY)"
        );
        upstream.api_key = Some(Secret::new("k"));
        assert_eq!(describe_endpoint(&upstream, None), "http://h:1 (with a key)");
        upstream.api_key_env = Some("AWS_SECRET_ACCESS_KEY".into());
        assert_eq!(describe_endpoint(&upstream, None), "http://h:1 (key: $AWS_SECRET_ACCESS_KEY)");
    }
}
