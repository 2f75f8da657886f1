//! `respool setup openclaw`: asks the model server for its models, shows the change to `openclaw.json`, has
//! OpenClaw itself validate it, and only then writes it.
//!
//! The parent module sets up the other clients; its file handling is used here.

use std::fs;
use std::path::{Path, PathBuf};

use http::HeaderMap;

use super::arguments::SetupArgs;
use super::files::{NOTHING_WRITTEN, Writing, diff_text, undo_change};
use super::model_choice::ask_for_model;
use super::respool::{AskError, LIST_WITHIN, Respool, check_address};
use crate::cli::check::suggest_places;
use crate::cli::failure::Failure;
use crate::cli::plain_http::plain_address;
use crate::cli::runtime::new_runtime;
use crate::cli::say::{say, say_sentences, unbroken};
use client_settings::openclaw::{
    Edited, Model, RespoolProvider, edit_config, is_same_server, port_note, primary_url,
};
use client_settings::{EditError, OpenClaw, SettingsFile, Verdict};
use settings::{Flags, Settings, VLLM_KEY};
use tools::programs::{current_project, find_in_path};
use upstream::{ListedModel, NoModelList, Upstream};

/// Where OpenClaw keeps its configuration and its state.
struct Places {
    config: PathBuf,
    state: PathBuf,
}

impl Places {
    fn find() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let home = path("HOME").unwrap_or_default();
        let state = path("OPENCLAW_STATE_DIR").unwrap_or_else(|| home.join(".openclaw"));
        Self { config: path("OPENCLAW_CONFIG_PATH").unwrap_or_else(|| state.join("openclaw.json")), state }
    }

    /// Returns the file with variables that OpenClaw adds to its environment, however it is started.
    fn environment(&self) -> PathBuf {
        self.state.join(".env")
    }

    /// Returns true if that file sets a variable.
    fn has_variable(&self, name: &str) -> bool {
        let text = fs::read_to_string(self.environment()).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim());
        names.map(|found| found.strip_prefix("export ").unwrap_or(found)).any(|found| found == name)
    }

    /// Returns the copies of providers that OpenClaw 2026.2 keeps, whose addresses override the
    /// configuration.
    fn provider_copies(&self) -> Vec<PathBuf> {
        let agents = fs::read_dir(self.state.join("agents")).into_iter().flatten().filter_map(Result::ok);
        let copies = agents.map(|agent| agent.path().join("agent/models.json"));
        copies.filter(|copy| copy.exists()).collect()
    }
}

/// Returns the path of OpenClaw's configuration.
pub(super) fn settings_file() -> PathBuf {
    Places::find().config
}

pub(super) fn run_setup(arguments: &SetupArgs) -> Result<(), Failure> {
    let places = Places::find();
    if arguments.undo {
        let is_undone =
            undo_change(arguments.client, Some(&places.config), Writing::from_arguments(arguments))?;
        return if is_undone { forget_copies(&places) } else { Ok(()) };
    }
    new_runtime()?.block_on(set_up(arguments, arguments.upstream.as_deref(), &places))
}

async fn set_up(arguments: &SetupArgs, upstream: Option<&str>, places: &Places) -> Result<(), Failure> {
    let respool = Respool::from_arguments(arguments)?;
    if let Some(url) = upstream {
        check_upstream(url, &respool).await?;
    }
    let listed = respool.list_models().await;
    let is_running = !matches!(listed, Err(AskError::Unreachable { .. }));
    let models = choose_models(listed, upstream).await?;
    let installed = find_openclaw();
    let file = &places.config;
    let settings = SettingsFile::new(arguments.client, file);
    let earlier = settings.written_text().and_then(|text| primary_url(&text));
    let wanted = RespoolProvider {
        url: respool.url.clone(),
        upstreams: earlier.into_iter().chain(known_upstreams(&respool, upstream).await).collect(),
        models,
        model: arguments.model.clone(),
        key_env: arguments.key_env.clone(),
        is_current: installed.as_ref().is_some_and(OpenClaw::is_current),
        adds_recommended: arguments.recommended,
    };
    let present = settings.read()?.unwrap_or_default();
    port_note(&present, &respool.url).iter().for_each(|note| say_sentences(note));
    let edited = edit_config(&present, &wanted).map_err(|error| {
        let why = match error {
            EditError::NoModel => {
                let names: Vec<&str> = wanted.models.iter().map(|model| model.id.as_str()).collect();
                ask_for_model(wanted.model.as_deref(), &names)
            }
            EditError::Unusable(why) => why.into(),
        };
        format!("{} was not changed: {why}", file.display())
    })?;
    if !is_running {
        say_sentences(&format!(
            "Nothing answers at {} yet; --url names another address of respool.",
            respool.url
        ));
    }
    let is_refused = make_change(arguments, places, &present, &edited, installed.as_ref())?;
    say_what_is_missing(arguments, places, &wanted, &edited);
    if let Some(url) = upstream {
        suggest_concurrency(&base_url(url)).await?;
    }
    if arguments.dry_run {
        say_sentences(NOTHING_WRITTEN);
    } else if is_running {
        try_turn(&respool, &edited).await?;
        if installed.is_some_and(|openclaw| openclaw.is_current()) {
            suggest_turn(is_refused);
        }
    } else {
        suggest_start(&respool, arguments, upstream);
    }
    Ok(())
}

/// Finds the OpenClaw in `PATH`, which is not a part of the current project.
fn find_openclaw() -> Option<OpenClaw> {
    let project: Vec<PathBuf> = current_project().into_iter().collect();
    OpenClaw::from_program(find_in_path("openclaw", &project).ok()?)
}

/// Shows the change, has OpenClaw validate it, and writes it if the person agrees. Returns true if OpenClaw
/// refuses the file, with the change and without.
fn make_change(
    arguments: &SetupArgs,
    places: &Places,
    present: &str,
    edited: &Edited,
    installed: Option<&OpenClaw>,
) -> Result<bool, Failure> {
    let file = &places.config;
    if edited.text == present {
        say_sentences(&format!("{} already points to respool.", file.display()));
        explain_change(edited, installed);
        return Ok(false);
    }
    say(diff_text(present, &edited.text, file).trim_end());
    let is_accepted = validate_change(installed, present, &edited.text, file)?;
    explain_change(edited, installed);
    if Writing::from_arguments(arguments).is_agreed()? {
        SettingsFile::new(arguments.client, file).write(present, &edited.text)?;
        say_sentences("Written. `respool setup openclaw --undo` restores the file.");
        forget_copies(places)?;
    }
    Ok(!is_accepted)
}

/// Says what the person has to add themselves.
fn say_what_is_missing(arguments: &SetupArgs, places: &Places, wanted: &RespoolProvider, edited: &Edited) {
    if let Some(name) = arguments.key_env.as_ref().filter(|name| !places.has_variable(name)) {
        say_sentences(&format!(
            "OpenClaw sends the value of {name} from its own environment, the gateway too: add a line `{name}=…` to {}.",
            places.environment().display()
        ));
    }
    if wanted.models.iter().any(|model| model.window.is_none()) && !edited.text.contains("contextWindow") {
        say_sentences(&format!(
            "The server does not report its context length. Give the model a `contextWindow` in {}: OpenClaw assumes \
             200,000 tokens otherwise, and compacts too late.",
            places.config.display()
        ));
    }
    if !edited.lacking.is_empty() {
        say_sentences(&format!(
            "Recommended, and not in the entry of this model: {}. --recommended adds them; docs/openclaw-settings.md says \
             what each does.",
            edited.lacking.join(", ")
        ));
    }
}

/// Suggests a turn with OpenClaw itself. `is_refused`: OpenClaw refuses the file.
fn suggest_turn(is_refused: bool) {
    let command = unbroken("openclaw agent exec \"hello\"");
    let next = if is_refused {
        format!(
            "OpenClaw does not start with this file until that is corrected: `openclaw doctor --fix` may do it. Then \
             try: {command}"
        )
    } else {
        format!("Now try: {command}\nA running gateway reads the new file by itself.")
    };
    say_sentences(&next);
}

/// Checks that `--upstream` names a model server.
async fn check_upstream(url: &str, respool: &Respool) -> Result<(), Failure> {
    check_address("--upstream", url)?;
    if is_same_server(url, &respool.url) {
        return Err(format!(
            "--upstream {url} is the address of respool: name the model server, or leave it out to ask respool"
        )
        .into());
    }
    if model_server(&base_url(url))?.is_respool(LIST_WITHIN).await {
        return Err(format!(
            "--upstream {url} is a respool: name the model server, or set OpenClaw up for this respool with --url {url}"
        )
        .into());
    }
    Ok(())
}

/// Returns the models of the model server, or those that respool listed if no server was given.
async fn choose_models(
    listed: Result<Vec<Model>, AskError>,
    upstream: Option<&str>,
) -> Result<Vec<Model>, Failure> {
    let models = match (listed, upstream) {
        // A file with a wrong key would be useless.
        (Err(error @ (AskError::WrongKey { .. } | AskError::NotRespool { .. })), _) => {
            return Err(error.into());
        }
        (Err(error), None) => {
            return Err(format!("{error}, or name the model server with --upstream URL").into());
        }
        (Ok(list), None) => list,
        (_, Some(url)) => {
            let model = |model: ListedModel| Model { id: model.id, window: model.window };
            ask_server(&base_url(url)).await?.into_iter().map(model).collect()
        }
    };
    if models.is_empty() {
        return Err("the server lists no models: load one and try again".into());
    }
    Ok(models)
}

/// Returns the addresses of model servers: the one that was given, or those of the running respool, as far as
/// their names are addresses.
async fn known_upstreams(respool: &Respool, upstream: Option<&str>) -> Vec<String> {
    if let Some(url) = upstream {
        return vec![base_url(url)];
    }
    let names = respool.upstream_names().await.unwrap_or_default();
    names.iter().filter(|name| name.contains(':')).map(|name| format!("http://{name}")).collect()
}

/// Suggests `max_concurrency` where the server says how many requests it works on at a time.
async fn suggest_concurrency(url: &str) -> Result<(), Failure> {
    let server = model_server(url)?;
    let no_headers = HeaderMap::new();
    let Ok(models) = server.ask_models(no_headers.clone(), LIST_WITHIN).await else { return Ok(()) };
    let Some((program, Some(page))) = server.ask_server(&models, &no_headers).await else { return Ok(()) };
    if let Some(places) = program.count_places(&page) {
        let name = program.name();
        say_sentences(&format!("{name} works on {places} requests at a time: {}.", suggest_places(places)));
    }
    Ok(())
}

/// Returns the model server at this address, with the settings that `respool serve --upstream` gives it.
fn model_server(url: &str) -> Result<Upstream, Failure> {
    let settings = Settings::load(&Flags { upstream: Some(url.to_owned()), ..Flags::default() })?;
    let config = settings.upstreams.first().ok_or("no upstream is configured")?;
    Ok(Upstream::new(config).map_err(|error| error.to_string())?)
}

async fn ask_server(url: &str) -> Result<Vec<ListedModel>, Failure> {
    let problem = match model_server(url)?.ask_models(HeaderMap::new(), LIST_WITHIN).await {
        Ok(models) => return Ok(models),
        Err(problem) => problem,
    };
    let todo = match &problem {
        NoModelList::KeyMissing { .. } => {
            format!("Export its key as {VLLM_KEY}, or write `url` and `api_key` into respool.toml")
        }
        NoModelList::KeyRefused(..) => {
            format!("Correct its key, in {VLLM_KEY} or in its [[upstream]] in respool.toml")
        }
        _ if problem.is_wrong_address() => "Correct --upstream".to_owned(),
        _ => match plain_address(url).await {
            Some(plain) => format!("It answers without TLS: write --upstream {plain}"),
            None => "Check that it is running and that the address is right".to_owned(),
        },
    };
    Err(format!("the model server at {url} cannot be used: {problem}. {todo}").into())
}

/// Returns a base URL without `/v1`.
fn base_url(url: &str) -> String {
    url.trim_end_matches('/').trim_end_matches("/v1").to_owned()
}

/// Runs OpenClaw's own validation before anything is written. Returns false if it refuses the file, but did
/// so before the change.
fn validate_change(
    installed: Option<&OpenClaw>,
    present: &str,
    text: &str,
    file: &Path,
) -> Result<bool, Failure> {
    let Some(openclaw) = installed else {
        say_sentences(
            "`openclaw` is not on the PATH, so the new file is not validated, and has only settings that every version knows.",
        );
        return Ok(true);
    };
    let folder = file.parent().unwrap_or(Path::new("."));
    let verdict = |text: &str| openclaw.validate(text, folder);
    let version = &openclaw.version;
    say_sentences(&format!("OpenClaw {version} validates the new file …"));
    match verdict(text)? {
        Verdict::Valid => {
            say_sentences(&format!("OpenClaw {version} accepts the new file."));
            Ok(true)
        }
        Verdict::Refused(_) if !openclaw.is_current() => {
            say_sentences(&format!(
                "OpenClaw {version} could not validate the file: it has no `config validate`, or it refuses the old file too."
            ));
            Ok(true)
        }
        Verdict::Refused(why) if verdict(present)? != Verdict::Valid => {
            say_sentences(&format!("OpenClaw {version} refuses this file, also without the change:\n{why}"));
            Ok(false)
        }
        Verdict::Refused(why) => {
            Err(format!("OpenClaw {version} refuses the new file, so nothing was written:\n{why}").into())
        }
    }
}

fn forget_copies(places: &Places) -> Result<(), Failure> {
    for copy in places.provider_copies() {
        fs::remove_file(&copy).map_err(|error| format!("{} cannot be removed: {error}", copy.display()))?;
        say_sentences(&format!(
            "Removed {}: OpenClaw 2026.2 keeps a copy of the providers there, which overrides its configuration.",
            copy.display()
        ));
    }
    Ok(())
}

fn explain_change(edited: &Edited, installed: Option<&OpenClaw>) {
    if let Some(replaced) = &edited.replaced {
        say_sentences(&format!(
            "The primary model changes from {replaced} to {}. You can still choose another with `/model` in a chat.",
            edited.primary
        ));
    }
    explain_rest(edited);
    if !edited.fallbacks.is_empty() {
        say_sentences(&format!(
            "Fallback models: {}. OpenClaw asks them when respool gives up. If the server is down, that is after \
             `recovery.wait_for_upstream` (60 s). To have them asked sooner, add this to respool.toml:\n\n    \
             [recovery]\n    wait_for_upstream = \"5s\"\n",
            edited.fallbacks.join(", ")
        ));
    }
    if installed.is_some_and(|openclaw| !openclaw.is_current()) {
        say_sentences(
            "This version of OpenClaw reads its configuration only when it starts: run `openclaw gateway restart`.",
        );
    }
}

/// Says what still goes past respool.
fn explain_rest(edited: &Edited) {
    for agent in &edited.own_models {
        say_sentences(&format!(
            "The agent `{}` has a model of its own, {}, and does not use respool. To change this, set `{}` to {} or remove it.",
            agent.name, agent.model, agent.setting, edited.primary
        ));
    }
    for name in &edited.direct_providers {
        if name == "vllm" {
            say_sentences(&format!(
                "The provider `vllm` points at the same server and was left as it is, because OpenClaw finds the models of \
                 a provider of this name itself and changes their requests: they do not go through respool. Use {} in \
                 their place.",
                edited.primary
            ));
            continue;
        }
        say_sentences(&format!(
            "The provider `{name}` points at the same server and was left as it is: its models do not go through respool. To \
             change this, give `models.providers.{name}.baseUrl` the address that `{}` has.",
            edited.provider_name()
        ));
    }
}

fn suggest_start(respool: &Respool, arguments: &SetupArgs, upstream: Option<&str>) {
    let upstream = upstream.map(|url| format!(" --upstream {}", base_url(url))).unwrap_or_default();
    let address = respool.url.split_once("://").map_or(&*respool.url, |(_, address)| address);
    // Without an option it is where the configuration says.
    let listen = arguments.url.as_ref().map(|_| format!(" --listen {address}")).unwrap_or_default();
    let command = unbroken(&format!("respool serve{listen}{upstream}"));
    say_sentences(&format!("respool is not running at {} yet. Start it with: {command}", respool.url));
}

async fn try_turn(respool: &Respool, edited: &Edited) -> Result<(), Failure> {
    let model = edited.primary.split_once('/').map_or(edited.primary.as_str(), |(_, model)| model);
    say_sentences(&format!("Trying one turn with {model} …"));
    respool.try_turn("/v1/chat/completions", model).await?;
    say_sentences(&format!("respool answers with {model}."));
    Ok(())
}
