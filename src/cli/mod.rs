//! The command line: turns arguments into a checked configuration, runs the subcommand, and returns its exit
//! code.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 78 bad configuration (`EX_CONFIG` of sysexits.h, which a
//! systemd unit can be configured not to restart on).

mod agents;
mod alerts;
mod assembly;
mod audit;
mod banner;
#[cfg(feature = "chat")]
mod chat;
mod check;
mod confirm;
mod demo;
mod expert;
mod experts;
mod failure;
mod findings;
mod help;
mod keys;
mod listing;
mod nodes;
mod options;
mod plain_http;
mod reachability;
mod reference;
mod reload;
mod replay;
mod requests;
mod running;
mod running_requests;
mod runs;
mod runtime;
mod say;
mod sealing;
mod serve;
mod service;
mod setup;
mod shared_folder;
mod store;
mod store_copy;
mod template_check;
mod tool_check;
mod upstream_list;
mod upstreams;
mod usage;
mod version;

pub use agents::OpenTools;
pub use assembly::{app, app_with};

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::failure::Failure;
use self::options::{Configured, WithUpstream, note_service, unread_notes, with_service};
use settings::Loaded;

/// `EX_CONFIG`.
const BAD_CONFIG: u8 = 78;

/// A relay between OpenClaw (or any OpenAI client) and vLLM that makes tool calls work.
// The commands of the first hour come first, those for what ran next.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = version::long_version(),
    arg_required_else_help = true,
    after_help = "To begin:\n  respool check --upstream http://gpu-box:8000\n  respool serve --upstream http://gpu-box:8000\n  respool setup openclaw"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what respool does, with recorded replies; needs no model, network or configuration.
    #[command(after_help = "Example:\n  respool demo")]
    Demo(demo::DemoArgs),
    /// Check the configuration, test the upstreams, and say how to fix each problem.
    #[command(
        after_help = "Examples:\n  respool check --upstream http://gpu-box:8000\n  respool check --timeout 30s"
    )]
    Check {
        #[command(flatten)]
        options: WithUpstream,
        #[command(flatten)]
        arguments: check::CheckArgs,
    },
    /// Run the relay.
    #[command(alias = "start", after_help = "Example:\n  respool serve --upstream http://gpu-box:8000")]
    Serve {
        /// Where to listen, HOST:PORT [default: 127.0.0.1:8003]
        #[arg(long, alias = "port", value_name = "HOST:PORT")]
        listen: Option<String>,
        #[command(flatten)]
        options: WithUpstream,
    },
    /// Point an agent client at respool: show the change to its settings, ask, write it and try one turn; or
    /// undo it.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  respool setup openclaw --upstream http://gpu-box:8000"
    )]
    Setup(setup::SetupArgs),
    /// Run respool as a service of your user: install or remove it, show its status and log.
    #[command(after_help = "Example:\n  respool service install --upstream http://gpu-box:8000")]
    Service {
        #[command(subcommand)]
        command: service::ServiceCommand,
    },
    /// Chat with a coding assistant that works in this directory.
    #[cfg(feature = "chat")]
    #[command(
        after_help = "Examples:\n  respool chat --upstream http://gpu-box:8000\n  respool chat -p 'What does main.rs do?'"
    )]
    Chat(chat::ChatArgs),
    /// List the upstreams: whether each answers, its models, and how requests for them are adapted.
    #[command(after_help = "Examples:\n  respool upstreams --json\n  respool upstreams forget gpu-box")]
    Upstreams {
        #[command(flatten)]
        arguments: upstream_list::UpstreamsArgs,
        #[command(flatten)]
        options: WithUpstream,
    },
    /// List recorded requests, newest first: outcome, error, repairs, key, model, upstream, tokens and time.
    #[command(
        after_help = "Examples:\n  respool requests --failed --since 1h\n  respool requests --running\n  respool requests --repaired\n  respool requests --key alice --json"
    )]
    Requests {
        #[command(flatten)]
        arguments: requests::RequestsArgs,
        /// The configuration file [default: respool.toml in the user's or the system's configuration
        /// directory]
        #[arg(long, value_name = "FILE", help_heading = "Configuration")]
        config: Option<PathBuf>,
    },
    /// Show requests, tokens and costs by model, key, agent and day.
    #[command(after_help = "Example:\n  respool usage --by model,day --since 30d --costs")]
    Usage {
        #[command(flatten)]
        arguments: usage::UsageArgs,
        #[command(flatten)]
        options: Configured,
    },
    /// Show the limits of each key and the budgets, and what is used of them today.
    #[command(alias = "budgets", after_help = "Example:\n  respool keys --json")]
    Keys {
        #[command(flatten)]
        options: Configured,
        #[command(flatten)]
        arguments: keys::KeysArgs,
    },
    /// List open alerts, test the sinks that alerts are sent to, and silence alerts.
    #[command(after_help = "Example:\n  respool alerts silence upstream_down --for 8h")]
    Alerts {
        #[command(flatten)]
        options: Configured,
        #[command(subcommand)]
        command: Option<alerts::AlertsCommand>,
    },
    /// List, show, resume, cancel and remove agent runs.
    #[command(after_help = "Example:\n  respool runs list --since 24h")]
    Runs {
        #[command(flatten)]
        options: Configured,
        #[command(subcommand)]
        command: Option<runs::RunsCommand>,
    },
    /// Manage expert packages, and approve or reject calls that wait for a decision.
    #[command(after_help = "Example:\n  respool expert validate ./support-desk")]
    Expert {
        #[command(flatten)]
        options: Configured,
        #[command(subcommand)]
        command: expert::ExpertCommand,
    },
    /// Show the tool calls that may have changed something and the refused ones.
    #[command(after_help = "Example:\n  respool audit list --since 24h")]
    Audit {
        #[command(flatten)]
        options: Configured,
        #[command(subcommand)]
        command: Option<audit::AuditCommand>,
    },
    /// Run the kept replies of a request through this version and compare what the client gets, or list the
    /// kept exchanges.
    #[command(
        after_help = "Examples:\n  respool replay --since 24h\n  respool replay 4bf92f3577b34da6a3ce929d0e0e4736\n  respool replay ./report.json\n\nExits with 1 if the client gets something else than it got then."
    )]
    Replay {
        #[command(flatten)]
        arguments: replay::ReplayArgs,
        #[command(flatten)]
        options: Configured,
    },
    /// List the processes that share the database of `[store] url`.
    #[command(after_help = "Example:\n  respool nodes --json")]
    Nodes {
        #[command(flatten)]
        arguments: nodes::NodesArgs,
        #[command(flatten)]
        options: Configured,
    },
    /// Check the store of runs, events and approvals, copy it, or move it to a database.
    #[command(after_help = "Examples:\n  respool store check\n  respool store copy ~/respool-copy")]
    Store {
        #[command(flatten)]
        options: Configured,
        #[command(subcommand)]
        command: store::StoreCommand,
    },
    /// Show the configuration.
    #[command(after_help = "Example:\n  respool config show")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print shell completions: source them, or save them where your shell looks for completions.
    #[command(
        after_help = "Example:\n  respool completions bash > ~/.local/share/bash-completion/completions/respool"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print respool's man page, or write the man pages of all commands to a directory.
    #[command(after_help = "Example:\n  respool man --dir ~/.local/share/man/man1")]
    Man {
        /// Write all man pages to this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Commands that respool starts itself. They are in no help text, man page or completion.
#[derive(Debug, Parser)]
#[command(name = "respool")]
enum InternalCli {
    /// Start a command in its sandbox.
    SandboxExec {
        #[arg(long, default_value = "begin")]
        stage: String,
        spec: String,
        #[arg(last = true)]
        words: Vec<OsString>,
    },
}

/// The name of [`InternalCli::SandboxExec`].
const SANDBOX_EXEC: &str = "sandbox-exec";

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting in effect and where it comes from; secrets are hidden.
    #[command(after_help = "Example:\n  respool config show --json")]
    Show {
        /// Print JSON, for programs: the values alone
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: WithUpstream,
    },
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|name| name == SANDBOX_EXEC) {
        let InternalCli::SandboxExec { stage, spec, words } = InternalCli::parse();
        // The exit code is that of the command that it starts.
        std::process::exit(tools::launch(&stage, &spec, &words).into());
    }
    let ended = match Cli::try_parse() {
        Ok(arguments) => run(arguments.command),
        Err(mut answer) => {
            let command = std::env::args().nth(1).unwrap_or_default();
            help::correct_tip(&mut answer, &command);
            return help::print_answer(&answer);
        }
    };
    tools::remove_temporary_directories();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::FAILURE,
        #[cfg(feature = "chat")]
        Err(Failure::Interrupted) => {
            say::say_sentences_on_stderr("respool: stopped");
            chat::end_by_interrupt()
        }
        Err(Failure::Failed(message)) => {
            say::say_sentences_on_stderr(&format!("respool: {message}"));
            ExitCode::FAILURE
        }
        Err(Failure::Misconfigured(problems)) => {
            let count = match problems.len() {
                1 => "a problem".to_owned(),
                count => format!("{count} problems"),
            };
            say::say_sentences_on_stderr(&format!("respool: the configuration has {count}:\n{problems}"));
            ExitCode::from(BAD_CONFIG)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve { options, listen } => {
            let flags = Configured::from(options).into_flags(listen);
            serve::serve(&Loaded::from_process(&flags)?.without_unread()?, flags)
        }
        Command::Demo(arguments) => demo::run_demo(arguments),
        Command::Check { options, arguments } => {
            let flags = with_service(Configured::from(options).into_flags(None));
            note_service(&flags);
            check::run_check(&Loaded::from_process(&flags)?, &arguments)
        }
        Command::Upstreams { options, arguments } => {
            let own = arguments.config().map(Path::to_owned);
            let options = WithUpstream { config: own.or(options.config), ..options };
            let flags = with_service(Configured::from(options).into_flags(None));
            upstream_list::upstreams(&flags, &arguments)
        }
        #[cfg(feature = "chat")]
        Command::Chat(arguments) => chat::run_chat(&arguments),
        Command::Runs { options, command } => {
            let command = command.unwrap_or_default();
            let loaded = if command.only_reads() { options.load_for_reading() } else { options.load() }?;
            unread_notes(&loaded).iter().for_each(|note| say::say_on_stderr(&format!("respool: {note}")));
            runs::run_runs(&loaded, command)
        }
        Command::Alerts { options, command } => {
            let command = command.unwrap_or_default();
            let loaded = if command.only_reads() { options.load_for_reading() } else { options.load() }?;
            alerts::run_alerts(&loaded, command)
        }
        Command::Nodes { options, arguments } => nodes::run_nodes(&options.load_for_reading()?, &arguments),
        Command::Store { options, command } => {
            let loaded = if command.only_reads() { options.load_for_reading() } else { options.load() }?;
            store::run_store(&loaded, command)
        }
        Command::Replay { options, arguments } => replay::run_replay(&options.load()?, &arguments),
        Command::Requests { config, arguments } => {
            let loaded = Configured { config, ..Configured::default() }.load_for_reading()?;
            requests::list_requests(&loaded, &arguments)
        }
        Command::Usage { options, arguments } => usage::run_usage(&options.load_for_reading()?, &arguments),
        Command::Keys { options, arguments } => keys::show_keys(&options.load()?, &arguments),
        Command::Audit { options, command } => {
            audit::run_audit(&options.load_files()?, command.unwrap_or_default())
        }
        Command::Expert { options, command } => expert::run_expert(options, command),
        Command::Setup(args) => setup::run_setup(args),
        Command::Config { command: ConfigCommand::Show { json, options } } => {
            let flags = with_service(Configured::from(options).into_flags(None));
            note_service(&flags);
            let loaded = Loaded::from_process(&flags)?;
            say::say_piece(&if json { loaded.show_json() } else { loaded.show() });
            Ok(())
        }
        Command::Service { command } => service::run_service(command),
        Command::Completions { shell } => {
            reference::print_completions(Cli::command(), shell);
            Ok(())
        }
        Command::Man { dir } => reference::print_manual(Cli::command(), dir.as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the commands below this one that do something themselves and have no example.
    fn add_without_example(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            let path = format!("{path} {}", below.get_name());
            let example = below.get_after_help().map(ToString::to_string).unwrap_or_default();
            let acts = below.get_subcommands().next().is_none() || !below.is_subcommand_required_set();
            if acts && !example.contains(&format!("  {path}")) {
                found.push(path.clone());
            }
            add_without_example(below, &path, found);
        }
    }

    /// Regression: two options of one name ended a command before it began.
    #[test]
    fn options_have_different_names() {
        Cli::command().debug_assert();
    }

    #[test]
    fn unknown_commands_get_a_useful_tip() {
        let tip = |command: &str| {
            let mut answer = Cli::try_parse_from(["respool", command]).unwrap_err();
            help::correct_tip(&mut answer, command);
            answer.to_string()
        };
        assert!(tip("status").contains("'service status'") && !tip("status").contains("'setup'"));
        assert!(tip("logs").contains("'service logs'"));
        // An old name of `serve` begins a server.
        assert!(!tip("starts").contains("'start'"), "{}", tip("starts"));
        assert!(!tip("restart").contains("tip:"), "{}", tip("restart"));
    }

    #[test]
    fn every_command_has_an_example_of_itself() {
        let mut found = Vec::new();
        add_without_example(&Cli::command(), "respool", &mut found);
        assert_eq!(found, [""; 0]);
    }
}
