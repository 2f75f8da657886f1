//! `respool store`: looks the store through, copies it to another directory, and moves it from files to a
//! database.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::failure::Failure;
use super::runtime::new_runtime;
use super::say::{say, say_on_stderr};
use super::store_copy::copy_state;
use settings::Loaded;
use store::{Copied, Store, StoreCheck, copy_to_database};
use wire::units::Secret;

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Count the rows, and look for those that do not fit together.
    #[command(after_help = "Example:\n  respool store check --json")]
    Check {
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Copy the state directory to a new directory while respool runs.
    ///
    /// The copy can take the place of the state directory. Databases of `store.url` are not in it.
    #[command(after_help = "Example:\n  respool store copy ~/respool-copy")]
    Copy {
        /// The directory, which is made; one that is there must be empty
        dir: PathBuf,
    },
    /// Copy runs, queue, approvals and responses from the files of `state_dir` to an empty database.
    ///
    /// The files stay as they are. A copy that was interrupted goes on when the command is run again. At the
    /// end both sides are compared row by row.
    #[command(after_help = "Example:\n  respool store migrate --to postgres://respool@db.example/respool")]
    Migrate {
        /// The database, as `store.url` has it
        #[arg(long, value_name = "URL", env = "RESPOOL_MIGRATE_TO", hide_env_values = true)]
        to: String,
    },
}

impl StoreCommand {
    /// Returns true for a command that changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        matches!(self, Self::Check { .. } | Self::Copy { .. })
    }
}

pub(super) fn run_store(loaded: &Loaded, command: StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Check { json } => check_store(loaded, json),
        StoreCommand::Copy { dir } => copy_state(&loaded.settings, &dir),
        StoreCommand::Migrate { to } => migrate_store(loaded, &to),
    }
}

fn check_store(loaded: &Loaded, json: bool) -> Result<(), Failure> {
    let config = &loaded.settings.store;
    if !Store::is_present(config) {
        return Err(format!("there is no store in {} yet", config.state_dir.display()).into());
    }
    let store = Store::open_in_place(config)?;
    let StoreCheck { schema, oldest, counts, problems } = new_runtime()?.block_on(store.check())?;
    if json {
        let counts: Value = counts.iter().map(|(table, rows)| ((*table).to_owned(), json!(rows))).collect();
        let found = json!({"store": store.place(), "schema": schema, "oldest": oldest, "rows": counts, "problems": problems});
        say(&format!("{found:#}"));
    } else {
        say(&format!("{}: schema {schema}, for every respool that knows {oldest} or newer", store.place()));
        counts.iter().for_each(|(table, rows)| say(&format!("{rows:>10}  {table}")));
        problems.iter().for_each(|problem| say(&format!("problem: {problem}")));
    }
    if problems.is_empty() {
        say_on_stderr("no problems");
        return Ok(());
    }
    say_on_stderr(
        "see docs/operating.md for how to restore a backup; please report this, with the lines above",
    );
    Err(Failure::Reported)
}

fn migrate_store(loaded: &Loaded, to: &str) -> Result<(), Failure> {
    let config = &loaded.settings.store;
    // The database of runs is made with the first one.
    if !config.state_dir.join("respool.db").exists() && config.state_dir.join("usage.db").exists() {
        say_on_stderr(
            "there are no runs to copy; set `[store] url` to this database, and start respool with this `state_dir`: the usage records \
             follow by themselves",
        );
        return Ok(());
    }
    let show = |copied: &Copied| say(&format!("{:>10}  {}", copied.rows, copied.table));
    copy_to_database(config, &Secret::new(to), show)?;
    say_on_stderr(
        "all of this was copied and compared; set `[store] url` to this database, and start respool with this `state_dir`: \
         it copies the usage records itself, without which the budgets of today begin at zero",
    );
    Ok(())
}
