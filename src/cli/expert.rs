//! `respool expert`: validates, installs, shows, updates and removes expert packages, and decides about
//! approvals.

mod approvals;
mod bind;
mod fire;
mod in_service;
mod installed;
mod learn;
mod model_check;
mod new;
mod output;
mod package;
mod queue;
mod registry;
mod remove;
mod run;
mod update;
mod validate;

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) use self::in_service::problem_in_service;
pub(super) use self::model_check::warn_of_lost_models;
use self::output::Output;
use super::failure::Failure;
use super::listing::ListArgs;
use super::options::Configured;

/// The expert whose rows are listed.
#[derive(Args, Debug)]
pub(super) struct OfExpert {
    /// List only what belongs to this expert
    #[arg(long, value_name = "NAME")]
    expert: Option<String>,
    /// The form of `--expert` that earlier versions had
    #[arg(hide = true, conflicts_with = "expert")]
    name: Option<String>,
}

impl OfExpert {
    pub(super) fn name(&self) -> Option<&str> {
        self.expert.as_deref().or(self.name.as_deref())
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum ExpertCommand {
    /// Check a package and report all faults, each with its place and a correction; exits with 1 if it does
    /// not load.
    #[command(after_help = "Example:\n  respool expert validate ./support-desk --json")]
    Validate {
        /// The name of an installed expert, or the directory of a package: ./NAME
        package: String,
        #[command(flatten)]
        output: Output,
    },
    /// Write a small package that loads, to begin with.
    #[command(after_help = "Example:\n  respool expert new front-desk --with-tool")]
    New {
        /// The name of the expert
        name: String,
        /// The folder to write to [default: a folder with the expert's name]
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
        /// Write one with a tool, a webhook and a call that asks for approval
        #[arg(long)]
        with_tool: bool,
    },
    /// Check a package and install it.
    #[command(after_help = "Example:\n  respool expert install https://example.org/support-desk.git")]
    Install {
        /// A directory or the URL of a git repository
        source: String,
    },
    /// List the installed experts.
    #[command(after_help = "Example:\n  respool expert list --json")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show what an installed expert is, what it may do, and what starts it.
    #[command(after_help = "Example:\n  respool expert show support-desk --json")]
    Show {
        /// The expert
        name: String,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Bind one of an expert's abstract tools to one of your tools.
    #[command(after_help = "Example:\n  respool expert bind support-desk crm my-crm-server")]
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
        /// `OPERATION=NAME` sets the name that an operation has on the server; `OPERATION=` removes it; other
        /// names are kept
        #[arg(long = "operation", value_name = "OPERATION=NAME")]
        operations: Vec<String>,
        /// Remove the binding instead
        #[arg(long, conflicts_with_all = ["server", "operations"])]
        unbind: bool,
    },
    /// Send an expert a message and print its answer, or execute one of its processes.
    #[command(
        override_usage = "respool expert run <NAME> <MESSAGE>\n       respool expert run <NAME> --process <PROCESS> [--payload <PAYLOAD>] [--dry-run]",
        after_help = "Examples:\n  respool expert run support-desk 'Which tickets are open?'\n  respool expert run support-desk --process triage --payload '{\"ticket\": 7}' --dry-run"
    )]
    Run {
        /// The expert
        name: String,
        /// The message
        #[arg(required_unless_present_any = ["process", "payload", "dry_run"], conflicts_with = "process")]
        message: Option<String>,
        /// Execute this process instead
        #[arg(long)]
        process: Option<String>,
        /// The payload of the process: JSON, @FILE, or - for standard input
        #[arg(long, requires = "process", conflicts_with = "message")]
        payload: Option<String>,
        /// Change nothing: run only `auto` operations that read, and describe all other calls
        #[arg(long, requires = "process", conflicts_with = "message")]
        dry_run: bool,
    },
    /// List invocations that are queued, in progress, waiting for a person, or failed.
    #[command(after_help = "Example:\n  respool expert queue --expert support-desk")]
    Queue {
        #[command(flatten)]
        of: OfExpert,
        #[command(flatten)]
        arguments: ListArgs,
    },
    /// Cancel an invocation that is queued, in progress, or waiting for a person; drop one that failed or was
    /// escalated.
    #[command(after_help = "Example:\n  respool expert cancel inv-0123")]
    Cancel {
        /// The invocations, as `queue` shows them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Try an invocation again that failed or was escalated. What it did before is not done again.
    #[command(
        after_help = "Examples:\n  respool expert retry inv-0123\n  respool expert retry inv-0123 --comment 'The deal is d-7.'"
    )]
    Retry {
        /// The invocation, as `queue` shows it, or a message about it
        id: String,
        /// A comment for the agent, such as the answer to its question
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
    },
    /// List invocations that failed for good; execute them again, or remove them.
    DeadLetters {
        #[command(subcommand)]
        command: queue::DeadLettersCommand,
    },
    /// List what experts deliver: results, drafts, requests for approval, escalations.
    Outbox {
        #[command(subcommand)]
        command: queue::OutboxCommand,
    },
    /// List drafts with what they answer, newest first.
    #[command(after_help = "Example:\n  respool expert drafts --since 24h")]
    Drafts {
        #[command(flatten)]
        of: OfExpert,
        #[command(flatten)]
        arguments: ListArgs,
    },
    /// Update an installed expert; asks you first if the new version may do more than the old one.
    #[command(after_help = "Example:\n  respool expert update support-desk")]
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
        /// Also install a major version, an older one or one that cannot be compared, and overwrite changes
        /// made by hand
        #[arg(long)]
        force: bool,
        /// Consent to everything that the update lets the expert do
        #[arg(long)]
        yes: bool,
    },
    /// Remove an installed expert; shows its open work, and asks you first. Its data, bindings and the
    /// versions that open work needs stay unless you add --purge.
    #[command(alias = "rm", after_help = "Example:\n  respool expert remove support-desk")]
    Remove {
        /// The expert
        name: String,
        /// Also delete its state, working data, learnings, bindings and all versions
        #[arg(long)]
        purge: bool,
        /// Consent to the removal; it is needed without a terminal
        #[arg(long)]
        yes: bool,
    },
    /// Queue an event of a trigger by hand, also one that was queued before.
    #[command(after_help = "Example:\n  respool expert fire support-desk new_mail --payload @mail.json")]
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
    #[command(
        after_help = "Examples:\n  respool expert learn support-desk --json\n  respool expert learn support-desk --title Invoices --correction 'Ask for the number first.'"
    )]
    Learn(learn::LearnArgs),
    /// List calls that wait for a person's approval, and approve or reject them.
    Approvals {
        #[command(subcommand)]
        command: approvals::ApprovalsCommand,
    },
}

pub(super) fn run_expert(options: Configured, command: ExpertCommand) -> Result<(), Failure> {
    match command {
        ExpertCommand::Validate { package, output } => {
            validate::validate_package(options, &package, output.format())
        }
        ExpertCommand::Bind { name, tool, server, kind, operations, unbind } => {
            let wanted = bind::BindingRequest { tool, server, kind, operations, unbind };
            bind::bind_tool(&options.load_files()?, &name, &wanted)
        }
        ExpertCommand::Run { name, message, process: None, .. } => {
            run::send_message(&options.load()?, &name, &message.unwrap_or_default())
        }
        ExpertCommand::Run { name, process: Some(process), payload, dry_run, .. } => {
            let wanted = run::ProcessRequest { expert: name, process, payload, is_dry: dry_run };
            run::run_process(&options.load()?, wanted)
        }
        ExpertCommand::Queue { of, arguments } => {
            queue::list_queue(&options.load_for_reading()?, of.name(), &arguments)
        }
        ExpertCommand::Cancel { ids } => queue::cancel_invocations(&options.load_for_reading()?, &ids),
        ExpertCommand::Retry { id, comment } => {
            queue::retry_invocation(&options.load_for_reading()?, &id, comment.as_deref())
        }
        ExpertCommand::DeadLetters { command } => queue::dead_letters(&options.load_for_reading()?, command),
        ExpertCommand::Outbox { command } => queue::run_outbox(&options.load_for_reading()?, command),
        ExpertCommand::Drafts { of, arguments } => {
            queue::list_drafts(&options.load_for_reading()?, of.name(), &arguments)
        }
        ExpertCommand::New { name, folder, with_tool } => new::write_package(&name, folder, with_tool),
        ExpertCommand::Install { source } => {
            installed::install_package(&options.load_files()?.settings, &source)
        }
        ExpertCommand::List { output } => installed::list_experts(&options.load_files()?, output.format()),
        ExpertCommand::Show { name, json } => installed::show_expert(&options.load_files()?, &name, json),
        ExpertCommand::Update { name, source, all: _, rollback, force, yes } => {
            let consent = update::Consent { force, yes };
            update::run_update(
                &options.load_files()?.settings,
                name.as_deref(),
                source.as_deref(),
                rollback,
                consent,
            )
        }
        ExpertCommand::Remove { name, purge, yes } => remove::remove_expert(
            &options.load_files()?.settings,
            &name,
            remove::RemovalOptions { purge, yes },
        ),
        ExpertCommand::Fire { name, trigger, payload } => {
            fire::fire_by_hand(&options.load_files()?, &name, &trigger, payload.as_deref())
        }
        ExpertCommand::Learn(arguments) => {
            learn::add_learning(&options.load_files()?.settings.experts, arguments)
        }
        ExpertCommand::Approvals { command } => {
            approvals::run_approvals(&options.load_for_reading()?, command)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: ExpertCommand,
    }

    /// Regression: `--dry-run` was ignored where a message was given, and wrote files.
    #[test]
    fn only_processes_have_dry_runs() {
        let read = |words: &[&str]| Line::try_parse_from([&["expert", "run", "desk"], words].concat());
        assert!(
            read(&["hello"]).is_ok() && read(&["--process", "p", "--payload", "{}", "--dry-run"]).is_ok()
        );
        for wrong in [&["hello", "--dry-run"][..], &["--dry-run", "hello"], &["hello", "--payload", "{}"]] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains("cannot be used with") && said.contains("[MESSAGE]"), "{said}");
        }
        let needed = |words: &[&str]| {
            let said = read(words).unwrap_err().to_string();
            said.split("Usage").next().unwrap_or_default().to_owned()
        };
        let said = needed(&["--dry-run"]);
        assert!(said.contains("--process <PROCESS>") && !said.contains("<MESSAGE>"), "{said}");
        assert!(needed(&[]).contains("<MESSAGE>"));
    }
}
