//! `respool service install|uninstall|status|logs`: runs respool as a service of this user, with systemd or
//! (on macOS) launchd.
//!
//! The unit is the one in `deploy/`, with the path of this program. Settings stay where they are; options
//! given here go into an environment file that only its owner can read.

mod logs;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::HeaderMap;
use serde_json::json;
use service_manager::{Manager, OtherUnit, Paths, ServiceError, State, ready};

use super::failure::Failure;
use super::runtime::new_runtime;
use super::say::say;
use super::setup::changed_clients;
use server::Listen;
use settings::{Environment, Flags, Loaded, Problems, Settings, VLLM_KEY, start_problems};
use upstream::{Address, NoModelList, Upstream};

/// How long the model server has to say whether it takes the key.
const KEY_WITHIN: Duration = Duration::from_secs(5);
const NOT_INSTALLED: &str = "the service is not installed. `respool service install` installs it";

#[derive(Debug, Subcommand)]
pub(super) enum ServiceCommand {
    /// Write the unit and its environment file, start the service, and wait until it is ready.
    #[command(after_help = "Example:\n  respool service install --upstream http://gpu-box:8000")]
    Install(InstallArgs),
    /// Stop and remove the service; configuration and state stay.
    #[command(after_help = "Example:\n  respool service uninstall")]
    Uninstall,
    /// Show whether the service is running and ready.
    #[command(after_help = "Example:\n  respool service status --json")]
    Status {
        /// Print JSON, for programs; exits with 1 if the service is not ready
        #[arg(long)]
        json: bool,
    },
    /// Check the configuration under the rules of the unit, which may take away what commands need.
    #[command(after_help = "Example:\n  respool service check")]
    Check,
    /// Show the service's log, as `respool serve` shows it on a terminal.
    #[command(alias = "log", after_help = "Example:\n  respool service logs --follow")]
    Logs {
        /// Keep printing new lines as they arrive
        #[arg(long, short)]
        follow: bool,
        /// How many lines to print
        #[arg(long, short = 'n', alias = "lines", value_name = "COUNT", default_value_t = 50)]
        limit: u32,
        /// Print the lines as respool wrote them, in JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub(super) struct InstallArgs {
    /// The base URL of vLLM, with or without /v1; it is written to the environment file, with the key in
    /// `VLLM_API_KEY`, if that is set
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where to listen; it is written to the environment file
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<Listen>,
    /// Show what would be written, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run_service(command: ServiceCommand) -> Result<(), Failure> {
    let manager = Manager::current();
    let paths = Paths::find_paths(manager)
        .ok_or("HOME is not set, so there is no place for your user's service: set it")?;
    match command {
        ServiceCommand::Install(arguments) => install_service(manager, &paths, &arguments),
        ServiceCommand::Uninstall => uninstall_service(manager, &paths),
        ServiceCommand::Status { json: true } => print_status(manager, &paths),
        ServiceCommand::Status { json: false } => show_status(manager, &paths),
        ServiceCommand::Check => check_service(manager, &paths),
        ServiceCommand::Logs { follow, limit, json } => {
            let other = find_other_unit(manager, &paths);
            if other.is_none() && !paths.unit.exists() {
                return Err(NOT_INSTALLED.into());
            }
            let of_system = matches!(other, Some(OtherUnit::OfSystem(_)));
            let mut shown = logs::ShownLog::new(json);
            Ok(manager.read_logs(&paths.home, follow, limit, of_system, |line| shown.show_line(line))?)
        }
    }
}

fn install_service(manager: Manager, paths: &Paths, arguments: &InstallArgs) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| format!("the path of this program cannot be found: {error}"))?;
    let unit = manager.unit_text(&program, &paths.home);
    let present = read_file(&paths.environment)?;
    let listen = arguments.listen.as_ref().map(ToString::to_string);
    let key = arguments.upstream.as_ref().and_then(|_| std::env::var(VLLM_KEY).ok());
    let key = key.filter(|key| !key.is_empty()).map(|key| quote_key(&key)).transpose()?;
    let with_key = |key: Option<&str>| {
        service_manager::environment_text(
            present.as_deref(),
            arguments.upstream.as_deref(),
            key,
            listen.as_deref(),
        )
    };
    let environment = with_key(key.as_deref());
    check_settings(&environment, paths)?;
    arguments.upstream.as_deref().map_or(Ok(()), |url| refuse_other_upstream(url, &environment))?;
    let before = service_manager::variables(present.as_deref().unwrap_or_default());
    let kept_key = before.get(service_manager::KEY).filter(|key| !key.is_empty());
    if key.is_none() && kept_key.is_some() {
        refuse_kept_key(arguments.upstream.as_deref(), &before, paths)?;
    }
    if arguments.dry_run {
        say(&format!(
            "{}:\n\n{unit}\n{} (mode 0600):\n\n{}",
            paths.unit.display(),
            paths.environment.display(),
            with_key(key.as_ref().or(kept_key).map(|_| "…"))
        ));
        return Ok(());
    }
    let settings = check_start(&environment)?;
    if key.is_some() || kept_key.is_some() {
        refuse_wrong_key(&settings)?;
    }
    match manager.state() {
        State::Unknown(why) => return Err(format!("nothing was written: {why}").into()),
        State::Running => {}
        _ => refuse_taken_address(&listen_address_of(&environment, paths)?)?,
    }
    write_file(&paths.environment, &environment, 0o600)?;
    write_file(&paths.unit, &unit, 0o644)?;
    say(&format!(
        "Wrote {} and {} (readable only by you{}).",
        paths.unit.display(),
        paths.environment.display(),
        if key.is_some() { "; it has the key of VLLM_API_KEY" } else { "" }
    ));
    if program.components().any(|part| part.as_os_str() == "target") {
        say(&format!(
            "The service runs {}. `cargo clean` would remove that file: install respool elsewhere (`cargo install --profile dist --path .`) and \
             run `respool service install` from there.",
            program.display()
        ));
    }
    // If the program ends at once, the start itself fails. Its exit code and its log then say more than the
    // manager.
    let has_ended = || matches!(manager.state(), State::Failed(_));
    let since = clock::now_in_seconds();
    manager.start(&paths.unit).or_else(|why| if has_ended() { Ok(()) } else { Err(why) })?;
    note_overridden_upstream(&environment, paths);
    wait_until_ready(manager, paths, since)?;
    if !manager.outlives_sessions() {
        say(
            "The service stops when your last session ends. To keep it running without a login, run: loginctl enable-linger",
        );
    }
    Ok(())
}

/// Loads the configuration as the service reads it, but without the model server of the environment file.
fn load_without_server(mut variables: Environment) -> Result<Loaded, Problems> {
    variables.retain(|name, _| name != service_manager::UPSTREAM && name != service_manager::KEY);
    Loaded::from_process(&Flags { of_service: Some(variables), ..Flags::default() })
}

/// Refuses an address that would take the place of another server's in `respool.toml`, and get its key.
fn refuse_other_upstream(url: &str, environment: &str) -> Result<(), Failure> {
    // With a wrong file the service does not start, and says why.
    let Ok(loaded) = load_without_server(service_manager::variables(environment)) else { return Ok(()) };
    let (Some(file), Ok(wanted)) = (&loaded.file, url.parse::<Address>()) else { return Ok(()) };
    let is_default = loaded.settings.upstreams == Settings::default().upstreams;
    match loaded.settings.upstreams.first() {
        Some(first) if !is_default && first.url != wanted => Err(format!(
            "{} has an [[upstream]] with the url {}. In a service, --upstream would replace that url alone, and send \
             the upstream's key to {url}: correct `url` and `api_key` there, and leave out --upstream",
            file.display(),
            first.url
        )
        .into()),
        _ => Ok(()),
    }
}

/// Refuses to send the key of the environment file to another model server: the wanted one, or that of
/// `respool.toml` where the file has no address for its key.
fn refuse_kept_key(wanted: Option<&str>, before: &Environment, paths: &Paths) -> Result<(), Failure> {
    let address = before.get(service_manager::UPSTREAM).filter(|url| !url.is_empty());
    let receiver = match (address, wanted) {
        (Some(address), Some(wanted)) if address != wanted => wanted.to_owned(),
        (Some(_), _) => return Ok(()),
        (None, Some(wanted)) => wanted.to_owned(),
        (None, None) => {
            let Ok(loaded) = load_without_server(before.clone()) else { return Ok(()) };
            let is_default = loaded.settings.upstreams == Settings::default().upstreams;
            match loaded.settings.upstreams.first() {
                Some(first) if !is_default => first.url.to_string(),
                _ => return Ok(()),
            }
        }
    };
    let of = address.map_or("a key without an address".to_owned(), |url| format!("the key of {url}"));
    Err(format!(
        "nothing was written: {} has {of}, which would be sent to {receiver}. Remove the line `{}=…`; for a server with \
         a key, set {VLLM_KEY} to it, and install with --upstream {receiver}",
        paths.environment.display(),
        service_manager::KEY
    )
    .into())
}

/// Checks that the service would start with these variables: what runs goes on otherwise.
fn check_start(environment: &str) -> Result<Settings, Failure> {
    let variables = service_manager::variables(environment);
    let flags = Flags { of_service: Some(variables), ..Flags::default() };
    let loaded = Loaded::from_process(&flags).and_then(|loaded| {
        let found = start_problems(&loaded.settings);
        if found.is_empty() { Ok(loaded) } else { Err(loaded.problems(found)) }
    });
    match loaded {
        Ok(loaded) => Ok(loaded.settings),
        Err(problems) => {
            say("Nothing was written, and the service stays as it is.");
            Err(problems.into())
        }
    }
}

/// Refuses a key that the first model server rejects: no request of the service would be answered.
fn refuse_wrong_key(settings: &Settings) -> Result<(), Failure> {
    let Some(upstream) = settings.upstreams.first().and_then(|first| Upstream::new(first).ok()) else {
        return Ok(());
    };
    match new_runtime()?.block_on(upstream.ask_models(HeaderMap::new(), KEY_WITHIN)) {
        // One that may only not list models works all the same.
        Err(problem @ NoModelList::KeyRefused(http::StatusCode::UNAUTHORIZED, ..)) => Err(format!(
            "nothing was written: {}: {problem}. Set {VLLM_KEY} to the key of `vllm serve --api-key`, and install again",
            upstream.name
        )
        .into()),
        _ => Ok(()),
    }
}

/// Says that the environment file has another model server than `respool.toml`.
fn note_overridden_upstream(environment: &str, paths: &Paths) {
    let Some(url) = service_manager::value_of(environment, service_manager::UPSTREAM) else { return };
    let variables = service_manager::variables(environment);
    let key = if variables.contains_key(service_manager::KEY) {
        format!(" and `{}=…`, which is the key of {url}", service_manager::KEY)
    } else {
        String::new()
    };
    let Ok(loaded) = load_without_server(variables) else { return };
    let is_default = loaded.settings.upstreams == Settings::default().upstreams;
    let other =
        loaded.settings.upstreams.first().filter(|first| url.parse().ok().as_ref() != Some(&first.url));
    if let (Some(file), Some(other), false) = (&loaded.file, other, is_default) {
        say(&format!(
            "The service asks {url}, because {} says so. To use the [[upstream]] of {} ({}), remove `{}=…`{key}, and run \
             `respool service install`.",
            paths.environment.display(),
            file.display(),
            other.url,
            service_manager::UPSTREAM
        ));
    }
}

/// Refuses an address at which something answers that is not the service.
fn refuse_taken_address(address: &str) -> Result<(), Failure> {
    match new_runtime()?.block_on(ready::query_readiness(address)) {
        ready::Readiness::Silent => Ok(()),
        _ => Err(format!(
            "nothing was written: something answers at {address} already, perhaps a `respool serve` in a terminal. Stop \
             it, or choose another address with --listen"
        )
        .into()),
    }
}

/// Returns the key of the model server as it is written into the environment file.
fn quote_key(key: &str) -> Result<String, Failure> {
    service_manager::quote_value(key).ok_or_else(|| {
        format!(
            "the key in {VLLM_KEY} has a quotation mark or a control character, so it cannot be written into the \
             environment file: write it as `api_key` of an [[upstream]] into respool.toml"
        )
        .into()
    })
}

/// Runs `respool check` as the service manager would run `respool serve`.
fn check_service(manager: Manager, paths: &Paths) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let unit = match read_file(&paths.unit)? {
        Some(text) => text,
        None => manager.unit_text(&program, &paths.home),
    };
    match manager.run_under(&unit, &paths.home, &[&program.to_string_lossy(), "check"]) {
        // `respool check` has said why.
        Err(ServiceError::Ended(..)) => Err(Failure::Reported),
        done => Ok(done?),
    }
}

/// Checks the new settings: a running service must not be given settings with which it could not start.
fn check_settings(environment: &str, paths: &Paths) -> Result<(), Failure> {
    let place = |name: &str| format!("{name} in {}", paths.environment.display());
    if let Some(text) = service_manager::value_of(environment, service_manager::LISTEN) {
        text.parse::<Listen>().map_err(|why| format!("{}: {why}", place(service_manager::LISTEN)))?;
    }
    if let Some(text) = service_manager::value_of(environment, service_manager::UPSTREAM) {
        text.parse::<Address>().map_err(|why| format!("{}: {why}", place(service_manager::UPSTREAM)))?;
    }
    Ok(())
}

fn uninstall_service(manager: Manager, paths: &Paths) -> Result<(), Failure> {
    if !paths.unit.exists() {
        say(&format!("There is no service to remove: {} does not exist.", paths.unit.display()));
        match find_other_unit(manager, paths) {
            Some(OtherUnit::OfSystem(unit)) => say(&format!("{}.", unit.describe())),
            Some(OtherUnit::ForUsers(unit)) => say(&format!(
                "A package brought {}: `systemctl --user disable --now respool` stops it, and removing the package removes it.",
                unit.display()
            )),
            None => {}
        }
        return Ok(());
    }
    let stopped = manager.stop(&paths.unit);
    for file in manager.service_files(&paths.unit) {
        remove_file(&file)?;
    }
    let stay = format!(
        "Configuration, state and {} stay; delete them if you no longer need them.",
        paths.environment.display()
    );
    match stopped {
        Ok(()) => {
            manager.forget();
            say(&format!("The service is removed. {stay}"));
            for client in changed_clients() {
                say(&format!(
                    "{client} still sends its requests to respool: `respool setup {client} --undo` restores its settings."
                ));
            }
            Ok(())
        }
        // It does not start again, but what runs may go on until the session ends.
        Err(why) => Err(format!(
            "{} is removed, so the service does not start again, but it could not be stopped: {why}. If it is running, {}. {stay}",
            paths.unit.display(),
            manager.describe_manual_stop()
        )
        .into()),
    }
}

/// Removes a file that may be gone already.
fn remove_file(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", file.display()).into())
        }
        _ => Ok(()),
    }
}

/// Returns a unit installed by other means, if `install` has not written one.
fn find_other_unit(manager: Manager, paths: &Paths) -> Option<OtherUnit> {
    if paths.unit.exists() { None } else { service_manager::find_unit(manager) }
}

fn show_status(manager: Manager, paths: &Paths) -> Result<(), Failure> {
    let other = find_other_unit(manager, paths);
    match &other {
        Some(OtherUnit::OfSystem(unit)) if unit.is_active() => {
            say(&format!("{}.", unit.describe()));
            return Ok(());
        }
        Some(OtherUnit::OfSystem(unit)) => return Err(unit.describe().into()),
        Some(OtherUnit::ForUsers(unit)) => say(&format!("A package brought the unit {}.", unit.display())),
        None if !paths.unit.exists() => {
            return Err(NOT_INSTALLED.into());
        }
        None => {}
    }
    let state = manager.state();
    if other.is_some() && state == State::Stopped {
        let what = "the service is stopped. `systemctl --user enable --now respool` starts it, now and at each login";
        return Err(what.into());
    }
    say(&state.to_string());
    note_overridden_upstream(&read_file(&paths.environment)?.unwrap_or_default(), paths);
    let address = listen_address(paths)?;
    match new_runtime()?.block_on(ready::query_readiness(&address)) {
        answer if answer.is_ready() && !state.is_up() => Err(answered_by_another(&address).into()),
        answer if answer.is_ready() => {
            say(&format!("{}.", answer.explain(&address)));
            Ok(())
        }
        answer => Err(answer.explain(&address).into()),
    }
}

/// Prints the state of the service as JSON.
fn print_status(manager: Manager, paths: &Paths) -> Result<(), Failure> {
    let other = find_other_unit(manager, paths);
    let own = || paths.unit.exists().then_some(&*paths.unit);
    let unit = other.as_ref().map_or_else(own, |other| Some(other.path()));
    let address = listen_address(paths)?;
    let is_ready = new_runtime()?.block_on(ready::query_readiness(&address)).is_ready();
    let is_ready = is_ready && (other.is_some() || manager.state().is_up());
    let status = json!({
        "unit": unit.map(|unit| unit.display().to_string()),
        "state": manager.state().to_string(),
        "address": address,
        "ready": is_ready,
    });
    say(&format!("{status:#}"));
    if is_ready { Ok(()) } else { Err(Failure::Reported) }
}

/// Waits until the service, which was started at `since`, answers, or says why it does not.
fn wait_until_ready(manager: Manager, paths: &Paths, since: u64) -> Result<(), Failure> {
    let address = listen_address(paths)?;
    say(&format!("Waiting for {address}/ready …"));
    let answer = new_runtime()?.block_on(ready::wait_until_ready(&address, || manager.state().has_failed()));
    let state = manager.state();
    if answer.is_ready() && !state.has_failed() {
        let is = match &answer {
            ready::Readiness::Ready => "respool is ready".to_owned(),
            impaired => impaired.explain(&address),
        };
        say(&format!("{is}. Point clients at {address}/v1."));
        return Ok(());
    }
    let log = manager.last_lines(&paths.home, since);
    let log = if log.is_empty() {
        String::new()
    } else {
        format!("\nThe end of its log:\n{}", logs::readable_lines(&log))
    };
    let what = if answer.is_ready() { answered_by_another(&address) } else { answer.explain(&address) };
    Err(format!("{what}\n{state}{log}").into())
}

/// Says that it is not the service that answers.
fn answered_by_another(address: &str) -> String {
    format!(
        "another respool answers at {address}, perhaps one in a terminal: stop it, and the service can start there"
    )
}

/// Returns where the service listens: according to its environment file, else the configuration file, else
/// the default.
fn listen_address(paths: &Paths) -> Result<String, Failure> {
    listen_address_of(&read_file(&paths.environment)?.unwrap_or_default(), paths)
}

fn listen_address_of(environment: &str, paths: &Paths) -> Result<String, Failure> {
    let listen = match service_manager::value_of(environment, service_manager::LISTEN) {
        Some(text) => {
            let why = |why| format!("RESPOOL__LISTEN in {}: {why}", paths.environment.display());
            text.parse::<Listen>().map_err(why)?
        }
        None => load_without_server(service_manager::variables(environment))?.settings.server.listen,
    };
    Ok(format!("http://{}", listen.local_address()))
}

fn read_file(file: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(|error| format!("{} cannot be read: {error}", file.display()).into()),
    }
}

/// Writes a file and its folder.
fn write_file(file: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let written = fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))
        .and_then(|()| atomic_file::replace_with(file, text.as_bytes(), fs::Permissions::from_mode(mode)));
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()).into())
}
