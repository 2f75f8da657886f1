//! The command line: turns arguments into a checked configuration, runs the subcommand, and returns its exit code.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 78 bad configuration (`EX_CONFIG` of sysexits.h, which a systemd unit can
//! be configured not to restart on).

mod advice;
mod agents;
mod alerts;
mod audit;
mod banner;
mod chat;
mod check;
mod demo;
mod expert;
mod experts;
mod plain_http;
mod reachability;
mod reference;
mod reload;
mod runs;
mod say;
mod sealing;
mod serve;
mod service;
mod setup;
mod upstream_list;
mod upstreams;
mod usage;
mod version;

pub use agents::OpenTools;
pub use serve::{app, app_with};

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Flags, Loaded, Misspelt, Problems};
use crate::units::UnusableSetting;

/// `EX_CONFIG`.
const BAD_CONFIG: u8 = 78;

/// A relay between OpenClaw (or any OpenAI client) and vLLM that makes tool calls work.
#[derive(Debug, Parser)]
#[command(version, long_version = version::long(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the relay.
    Serve {
        #[command(flatten)]
        flags: Configured,
        /// Where to listen, HOST:PORT [default: 127.0.0.1:8003]
        #[arg(long, value_name = "HOST:PORT")]
        listen: Option<String>,
    },
    /// Show what respool does, with recorded replies; needs no model, network or configuration.
    Demo(demo::DemoArgs),
    /// Check the configuration, test the upstreams, and say how to fix each problem.
    Check {
        #[command(flatten)]
        flags: Configured,
    },
    /// List the upstreams, whether each answers, and its models.
    Upstreams {
        #[command(flatten)]
        flags: Configured,
        #[command(flatten)]
        arguments: upstream_list::UpstreamsArgs,
    },
    /// Chat with a coding assistant that works in this directory.
    Chat(chat::ChatArgs),
    /// List, show, resume, cancel and delete agent runs.
    Runs {
        #[command(flatten)]
        flags: Configured,
        #[command(subcommand)]
        command: runs::RunsCommand,
    },
    /// Show requests, tokens and costs by model, key, agent and day.
    Usage {
        #[command(flatten)]
        flags: Configured,
        #[command(flatten)]
        arguments: usage::UsageArgs,
    },
    /// List open alerts, test the sinks that alerts are sent to, and silence alerts.
    Alerts {
        #[command(flatten)]
        flags: Configured,
        #[command(subcommand)]
        command: alerts::AlertsCommand,
    },
    /// Show the tool calls that may have changed something and the refused ones, and verify the log.
    Audit {
        #[command(flatten)]
        flags: Configured,
        #[command(subcommand)]
        command: audit::AuditCommand,
    },
    /// Manage expert packages, and approve or reject calls that wait for a decision.
    Expert {
        #[command(flatten)]
        flags: Configured,
        #[command(subcommand)]
        command: expert::ExpertCommand,
    },
    /// Point an agent client at respool: show the change to its settings, write it and try one turn, or undo it.
    Setup(setup::SetupArgs),
    /// Run respool as a service of your user: install or remove it, show its status and log.
    Service {
        #[command(subcommand)]
        command: service::ServiceCommand,
    },
    /// Show the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print shell completions: source them, or save them where your shell looks for completions.
    Completions { shell: clap_complete::Shell },
    /// Print respool's man page, or write the man pages of all commands to a directory.
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
    Show {
        #[command(flatten)]
        flags: Configured,
    },
}

#[derive(Args, Debug, Default)]
struct Configured {
    /// The model server: the base URL of vLLM, with or without /v1, or replay:DIR for recorded replies; the
    /// configured upstreams stay and come after it
    #[arg(long, value_name = "URL", global = true)]
    upstream: Option<String>,
    /// The configuration file [default: respool.toml in the user's or the system's configuration directory]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

impl Configured {
    fn load(self, listen: Option<String>) -> Result<Loaded, Problems> {
        Loaded::from_process(&self.named(listen))
    }

    fn named(self, listen: Option<String>) -> Flags {
        Flags { listen, upstream: self.upstream, config: self.config }
    }
}

/// A log that cannot be written is an unusable setting.
fn log_problem(loaded: &Loaded, why: String) -> Failure {
    match loaded.settings.log.file {
        Some(_) => loaded.problems(vec![UnusableSetting::new(&["log", "file"], why)]).into(),
        None => why.into(),
    }
}

/// Names settings that are not used although the user may believe they are: a `respool.toml` in the working
/// directory, and misspelt variables.
fn unread_notes(loaded: &Loaded) -> Vec<String> {
    let file = loaded.unread.as_ref().map(|file| {
        format!(
            "{} is not read, because no option names it. To use it, add --config respool.toml",
            file.display()
        )
    });
    file.into_iter().chain(loaded.misspelt.iter().map(misspelt_note)).collect()
}

fn misspelt_note(Misspelt { name, meant }: &Misspelt) -> String {
    format!("the environment variable {name} is not read; did you mean {meant}?")
}

/// Why a command failed.
#[derive(Debug)]
enum Failure {
    /// A message for people.
    Failed(String),
    /// The message has been printed already.
    Reported,
    /// The configuration is unusable: restarting does not help before it is corrected.
    Misconfigured(Problems),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Misconfigured(problems)
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|name| name == SANDBOX_EXEC) {
        let InternalCli::SandboxExec { stage, spec, words } = InternalCli::parse();
        // The exit code is that of the command that it starts.
        std::process::exit(crate::tools::launch(&stage, &spec, &words).into());
    }
    let ended = run(Cli::parse().command);
    crate::tools::remove_temporary_directories();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::FAILURE,
        Err(Failure::Failed(message)) => {
            say::say_aside(&format!("respool: {message}"));
            ExitCode::FAILURE
        }
        Err(Failure::Misconfigured(problems)) => {
            let count = match problems.len() {
                1 => "a problem".to_owned(),
                count => format!("{count} problems"),
            };
            say::say_aside(&format!("respool: the configuration has {count}:\n{problems}"));
            ExitCode::from(BAD_CONFIG)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve { flags, listen } => {
            let flags = flags.named(listen);
            serve::serve(&Loaded::from_process(&flags)?.without_unread()?, flags)
        }
        Command::Demo(arguments) => Ok(demo::demo(arguments)?),
        Command::Check { flags } => check::check(&flags.load(None)?),
        Command::Upstreams { flags, arguments } => {
            upstream_list::list_upstreams(&flags.load(None)?, &arguments)
        }
        Command::Chat(arguments) => chat::chat(&arguments),
        Command::Runs { flags, command } => {
            let loaded = flags.load(None)?;
            unread_notes(&loaded).iter().for_each(|note| say::say_aside(&format!("respool: {note}")));
            runs::runs(&loaded, command)
        }
        Command::Alerts { flags, command } => alerts::alerts(&flags.load(None)?, command),
        Command::Usage { flags, arguments } => usage::usage(&flags.load(None)?, &arguments),
        Command::Audit { flags, command } => audit::audit(&flags.load(None)?, command),
        Command::Expert { flags, command } => expert::expert(flags, command),
        Command::Setup(args) => setup::setup(args),
        Command::Config { command: ConfigCommand::Show { flags } } => {
            say::say_piece(&flags.load(None)?.show());
            Ok(())
        }
        Command::Service { command } => service::service(command),
        Command::Completions { shell } => {
            reference::completions(shell);
            Ok(())
        }
        Command::Man { dir } => Ok(reference::man(dir.as_deref())?),
    }
}
