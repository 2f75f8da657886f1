//! `respool setup CLIENT`: points an agent client at respool. It shows the change to the client's settings,
//! asks, tries one real turn, and can undo the change.

mod arguments;
mod files;
mod model_choice;
mod openclaw;
mod respool;

use std::path::PathBuf;

use clap::ValueEnum as _;

pub(super) use self::arguments::SetupArgs;
use self::arguments::name_of;
use self::files::{Writing, edit_file, undo_change};
use self::respool::Respool;
use super::failure::Failure;
use super::runtime::new_runtime;
use super::say;
use client_settings::{Client, SettingsFile, SettingsFolders, Target};

pub(super) fn run_setup(args: SetupArgs) -> Result<(), Failure> {
    if args.client == Client::Openclaw {
        return openclaw::run_setup(&args);
    }
    let only_openclaw = [(args.upstream.is_some(), "--upstream"), (args.recommended, "--recommended")];
    if let Some((_, option)) = only_openclaw.iter().find(|(is_given, _)| *is_given) {
        let name = name_of(args.client);
        return Err(format!("{name} gets its models from respool: {option} works with openclaw only").into());
    }
    let file = args.client.settings_file(&find_settings_folders());
    if args.undo {
        return undo_change(args.client, file.as_deref(), Writing::from_arguments(&args)).map(drop);
    }
    new_runtime()?.block_on(set_up(args, file))
}

/// Returns the names of the clients whose settings were changed and not restored.
pub(super) fn changed_clients() -> Vec<String> {
    let folders = find_settings_folders();
    let file = |client: Client| match client {
        Client::Openclaw => Some(openclaw::settings_file()),
        client => client.settings_file(&folders),
    };
    let clients = Client::value_variants().iter().copied();
    clients
        .filter(|client| file(*client).is_some_and(|file| SettingsFile::new(*client, &file).is_changed()))
        .map(name_of)
        .collect()
}

fn find_settings_folders() -> SettingsFolders {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    SettingsFolders {
        home: folder("HOME").unwrap_or_default(),
        codex: folder("CODEX_HOME"),
        claude: folder("CLAUDE_CONFIG_DIR"),
        xdg_config: folder("XDG_CONFIG_HOME"),
    }
}

async fn set_up(args: SetupArgs, file: Option<PathBuf>) -> Result<(), Failure> {
    let respool = Respool::from_arguments(&args)?;
    let writing = Writing::from_arguments(&args);
    let url = respool.url.clone();
    let (model, window) = respool.choose_model(args.model).await?;
    let target = Target { url, model, window, key_env: args.key_env };
    match file {
        Some(file) => edit_file(args.client, &target, &file, writing)?,
        None => say::say(&format!("Start it with:\n\n{}\n", args.client.shell_commands(&target))),
    }
    if !args.dry_run {
        say::say(&format!("Trying one turn with {} on {} …", target.model, args.client.api_path()));
        respool.try_turn(args.client.api_path(), &target.model).await?;
        say::say(&format!("respool answers with {}.", target.model));
    }
    Ok(())
}
