//! `respool expert`: validates, installs, shows, updates and removes expert packages, and decides about approvals.

mod approvals;
mod bind;
mod fire;
mod installed;
mod learn;
mod queue;
mod registry;
mod remove;
mod run;
mod update;
mod validate;

use super::say::say_piece_aside;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use clap::{Subcommand, ValueEnum};

use super::{Configured, Failure};
use crate::expert::Source;
use crate::openexperts::{Loaded, Package};

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Debug, Subcommand)]
pub(super) enum ExpertCommand {
    /// Check a package and report all faults, each with its place and what to write instead; exits with 1 if it does not load.
    Validate {
        /// The directory of a package, or the name of an installed expert
        package: String,
        /// The form of the report
        #[arg(long, value_enum, default_value = "text")]
        format: OutputFormat,
    },
    /// Check a package and install it.
    Install {
        /// A directory, an archive (tar, tar.gz, zip) or the URL of a git repository
        source: String,
    },
    /// List the installed experts.
    List {
        /// The form of the list
        #[arg(long, value_enum, default_value = "text")]
        format: OutputFormat,
    },
    /// Show what an installed expert is, what it may do, and what starts it.
    Show {
        /// The expert
        name: String,
    },
    /// Bind one of an expert's abstract tools to one of your tools.
    Bind {
        /// The expert
        name: String,
        /// The abstract tool, as named in the package's `requires.tools`
        tool: String,
        /// The MCP server: NAME of [tools.mcp.NAME]; leave it out with --type gateway or local
        #[arg(required_if_eq("kind", "mcp"))]
        server: Option<String>,
        /// Where the operations are: mcp, gateway or local
        #[arg(long = "type", id = "kind", value_name = "TYPE", default_value = "mcp", value_parser = ["mcp", "gateway", "local"])]
        kind: String,
        /// `OPERATION=NAME` sets the name that an operation has on the server; `OPERATION=` removes it; other names are kept
        #[arg(long = "operation", value_name = "OPERATION=NAME")]
        operations: Vec<String>,
        /// Remove the binding instead
        #[arg(long, conflicts_with_all = ["server", "operations"])]
        unbind: bool,
    },
    /// Send an expert a message and print its answer, or execute one of its processes.
    Run {
        /// The expert
        name: String,
        /// The message
        #[arg(required_unless_present = "process", conflicts_with = "process")]
        message: Option<String>,
        /// Execute this process instead
        #[arg(long)]
        process: Option<String>,
        /// The payload of the process: JSON, @FILE, or - for standard input
        #[arg(long, requires = "process")]
        payload: Option<String>,
        /// Change nothing: run only `auto` operations that read, and describe all other calls
        #[arg(long, requires = "process")]
        dry_run: bool,
    },
    /// List tasks that are queued, in progress, or waiting for a person.
    Queue {
        /// Only of this expert
        name: Option<String>,
    },
    /// Cancel an invocation that is queued, in progress, or waiting for a person.
    Cancel {
        /// The invocation, as `queue` shows it
        id: String,
    },
    /// List tasks that failed for good; execute them again, or delete them.
    DeadLetters {
        #[command(subcommand)]
        command: queue::DeadLettersCommand,
    },
    /// List what experts deliver: results, drafts, requests for approval, escalations.
    Outbox {
        #[command(subcommand)]
        command: queue::OutboxCommand,
    },
    /// List delivered drafts, newest first.
    Drafts {
        /// Only of this expert
        name: Option<String>,
    },
    /// Update an installed expert; asks you first if the new version may do more than the old one.
    Update {
        /// The expert
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// Where to get it from [default: where it was installed from]
        #[arg(conflicts_with = "all")]
        source: Option<String>,
        /// Update every installed expert
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Go back to the version before the last update
        #[arg(long, conflicts_with_all = ["all", "source"])]
        rollback: bool,
        /// Also install a major version, an older one or one that cannot be compared, and overwrite changes made by hand
        #[arg(long)]
        force: bool,
        /// Consent to everything that the update lets the expert do
        #[arg(long)]
        yes: bool,
    },
    /// Remove an installed expert; says what becomes of its open work, and asks you first. Its data and bindings stay unless you add --purge.
    Remove {
        /// The expert
        name: String,
        /// Also delete its state, working data, learnings and bindings
        #[arg(long)]
        purge: bool,
        /// Consent to the removal; without a terminal it is needed for --purge and if there is open work
        #[arg(long)]
        yes: bool,
    },
    /// Queue an event of a trigger by hand, also one that was queued before.
    Fire {
        /// The expert
        name: String,
        /// The trigger
        trigger: String,
        /// The payload, as JSON or @FILE; a cron trigger needs none
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
    },
    /// Show what an expert has learnt, or add an entry by hand.
    Learn(learn::LearnArgs),
    /// List calls that wait for a person's approval, and approve or reject them.
    Approvals {
        #[command(subcommand)]
        command: approvals::ApprovalsCommand,
    },
}

pub(super) fn expert(flags: Configured, command: ExpertCommand) -> Result<(), Failure> {
    match command {
        ExpertCommand::Validate { package, format } if Path::new(&package).is_dir() => {
            validate::directory(Path::new(&package), format)
        }
        ExpertCommand::Validate { package, format } => validate::named(&flags.load(None)?, &package, format),
        ExpertCommand::Bind { name, tool, server, kind, operations, unbind } => {
            let wanted = bind::Wanted { tool, server, kind, operations, unbind };
            bind::bind(&flags.load(None)?, &name, &wanted)
        }
        ExpertCommand::Run { name, message, process: None, .. } => {
            run::message(&flags.load(None)?, &name, &message.unwrap_or_default())
        }
        ExpertCommand::Run { name, process: Some(process), payload, dry_run, .. } => {
            let wanted = run::Wanted { expert: name, process, payload, is_dry: dry_run };
            run::process(&flags.load(None)?, wanted)
        }
        ExpertCommand::Queue { name } => queue::queue(&flags.load(None)?, name.as_deref()),
        ExpertCommand::Cancel { id } => queue::cancel(&flags.load(None)?, &id),
        ExpertCommand::DeadLetters { command } => queue::dead_letters(&flags.load(None)?, command),
        ExpertCommand::Outbox { command } => queue::outbox(&flags.load(None)?, command),
        ExpertCommand::Drafts { name } => queue::drafts(&flags.load(None)?, name),
        ExpertCommand::Install { source } => installed::install(&flags.load(None)?.settings, &source),
        ExpertCommand::List { format } => installed::list(&flags.load(None)?.settings.experts, format),
        ExpertCommand::Show { name } => installed::show(&flags.load(None)?.settings, &name),
        ExpertCommand::Update { name, source, all: _, rollback, force, yes } => {
            let consent = update::Consent { force, yes };
            update::update(
                &flags.load(None)?.settings.experts,
                name.as_deref(),
                source.as_deref(),
                rollback,
                consent,
            )
        }
        ExpertCommand::Remove { name, purge, yes } => {
            remove::remove(&flags.load(None)?.settings, &name, remove::Wanted { purge, yes })
        }
        ExpertCommand::Fire { name, trigger, payload } => {
            fire::fire(&flags.load(None)?, &name, &trigger, payload.as_deref())
        }
        ExpertCommand::Learn(arguments) => learn::learn(&flags.load(None)?.settings.experts, arguments),
        ExpertCommand::Approvals { command } => approvals::approvals(&flags.load(None)?, command),
    }
}

/// Fetches and checks a package; its findings go to standard error.
fn fetched(source: &Source) -> Result<Package, Failure> {
    let loaded = source.load()?;
    say_piece_aside(&validate::findings(&loaded));
    let Loaded { package, .. } = loaded;
    package.ok_or_else(|| Failure::Failed("the package does not load; correct the errors above".to_owned()))
}

/// Asks the person at the terminal. Without a terminal nobody consents.
fn asks_yes(question: &str) -> bool {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return false;
    }
    say_piece_aside(&format!("{question} [yes/no] "));
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    input.lock().read_line(&mut answer).is_ok() && answer.trim() == "yes"
}
