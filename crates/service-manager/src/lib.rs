//! respool as a service of a user: the files of the service, and the manager that runs it, which is systemd,
//! or launchd on macOS.

mod files;
mod other_units;
mod paths;
pub mod ready;

use std::fmt;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

pub use files::{KEY, LISTEN, UPSTREAM, environment_text, quote_value, value_of, variables};
pub use other_units::{OtherUnit, SystemUnit, find_unit};
pub use paths::{Paths, user_environment};
use tools::programs::{current_project, find_in_path};

const LABEL: &str = "org.respool.respool";

/// Why the service manager did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Its program is not there.
    #[error("`{0}` is not installed. This system may use another service manager")]
    NotInstalled(String),
    /// Its program does not start.
    #[error("`{0}` cannot be run: {1}. This system may use another service manager")]
    NotRun(String, io::Error),
    /// Its program ended with a status other than 0.
    #[error("`{0}` ended with {1}")]
    Ended(String, ExitStatus),
    /// A command failed: with its words, what it said, and what to do.
    #[error("`{command}` failed: {said}{advice}")]
    Failed {
        /// The command.
        command: String,
        /// The end of its errors, on one line.
        said: String,
        /// The remedy, where one is known; it continues the sentence.
        advice: &'static str,
    },
}

/// Which program manages a user's services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// systemd, with a manager for each user.
    Systemd,
    /// launchd, of macOS.
    Launchd,
}

/// The state of the service, as the manager reports it.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// Its process runs.
    Running,
    /// Its process is being started.
    Starting,
    /// It has not been started, or was stopped.
    Stopped,
    /// Its process has ended, with this exit code, if it is known.
    Failed(Option<i32>),
    /// The manager itself does not answer.
    Unknown(String),
}

impl State {
    /// Returns true if its process runs, as far as the manager knows.
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Running | Self::Starting)
    }

    /// Returns true if waiting for it is in vain.
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Unknown(_))
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => out.write_str("The service is running."),
            Self::Starting => out.write_str("The service is starting."),
            Self::Stopped => out.write_str("The service is stopped. `respool service install` starts it."),
            Self::Failed(Some(78)) => out.write_str(
                "The service ended because its configuration is wrong. Correct what its log reports, then run \
                 `respool service install` again.",
            ),
            Self::Failed(Some(code)) => write!(out, "The service ended with exit code {code}."),
            Self::Failed(None) => out.write_str("The service has failed."),
            Self::Unknown(why) => write!(out, "The state of the service is unknown: {why}"),
        }
    }
}

impl Manager {
    /// Returns the manager of this system.
    pub fn current() -> Self {
        if cfg!(target_os = "macos") { Self::Launchd } else { Self::Systemd }
    }

    /// Returns the text of the service file.
    pub fn unit_text(self, program: &Path, home: &Path) -> String {
        match self {
            Self::Systemd => files::unit_text(program),
            Self::Launchd => files::property_list(program, home),
        }
    }

    /// Starts or restarts the service with its new settings, and enables it from now on.
    pub fn start(self, unit: &Path) -> Result<(), ServiceError> {
        match self {
            Self::Systemd => {
                require_success("systemctl", &["--user", "daemon-reload"])?;
                require_success("systemctl", &["--user", "enable", "respool.service"])?;
                require_success("systemctl", &["--user", "restart", "respool.service"]).map(drop)
            }
            Self::Launchd => {
                // A running service is stopped first; if none is running, there is nothing to stop.
                let _ = run_program("launchctl", &["bootout", &launchd_service()]);
                require_success("launchctl", &["bootstrap", &launchd_domain(), &unit.to_string_lossy()])
                    .map(drop)
            }
        }
    }

    /// Stops and disables the service.
    pub fn stop(self, _unit: &Path) -> Result<(), ServiceError> {
        match self {
            Self::Systemd => {
                require_success("systemctl", &["--user", "disable", "--now", "respool.service"]).map(drop)
            }
            Self::Launchd => require_success("launchctl", &["bootout", &launchd_service()]).map(drop),
        }
    }

    /// Lists the files that make it a service: the unit, and the link by which it starts at login.
    pub fn service_files(self, unit: &Path) -> Vec<PathBuf> {
        let folder = unit.parent().unwrap_or(Path::new("."));
        let link = (self == Self::Systemd).then(|| folder.join("default.target.wants/respool.service"));
        std::iter::once(unit.to_owned()).chain(link).collect()
    }

    /// Says how a person stops a service that respool cannot reach.
    pub fn describe_manual_stop(self) -> &'static str {
        match self {
            Self::Systemd => "stop it with `systemctl --user stop respool.service` in a login session",
            Self::Launchd => "log out and in again",
        }
    }

    /// Makes the manager forget the unit, once its files are gone.
    pub fn forget(self) {
        if self == Self::Systemd {
            let _ = run_program("systemctl", &["--user", "daemon-reload"]);
        }
    }

    /// Returns the state of the service.
    pub fn state(self) -> State {
        match self {
            Self::Systemd => {
                let properties =
                    ["--user", "show", "respool.service", "--property=ActiveState,ExecMainStatus"];
                match require_success("systemctl", &properties) {
                    Ok(text) => systemd_state(&text),
                    Err(why) => State::Unknown(why.to_string()),
                }
            }
            Self::Launchd => match run_program("launchctl", &["print", &launchd_service()]) {
                Ok(output) if output.status.success() => State::Running,
                Ok(_) => State::Stopped,
                Err(why) => State::Unknown(why.to_string()),
            },
        }
    }

    /// Reads the log, line by line, until it ends or a line cannot be shown. A line of the journal begins
    /// with its time, host and process. `of_system`: the log of the system's service.
    pub fn read_logs(
        self,
        home: &Path,
        follow: bool,
        lines: u32,
        of_system: bool,
        mut show_line: impl FnMut(&str) -> io::Result<()>,
    ) -> Result<(), ServiceError> {
        let lines = lines.to_string();
        let (program, mut arguments) = match self {
            Self::Systemd => {
                ("journalctl", vec!["--unit", "respool.service", "--lines", &lines, "--output", "short-iso"])
            }
            Self::Launchd => ("tail", vec!["-n", &lines]),
        };
        if self == Self::Systemd && !of_system {
            arguments.insert(0, "--user");
        }
        if follow {
            arguments.push("-f");
        }
        let log = home.join("Library/Logs/respool.log");
        let mut command = Command::new(path_of(program)?);
        command.args(arguments);
        if self == Self::Launchd {
            command.arg(log);
        }
        let not_run = |error| ServiceError::NotRun(program.to_owned(), error);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(not_run)?;
        let output = child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
        for line in output {
            if show_line(&String::from_utf8_lossy(&line.map_err(not_run)?)).is_err() {
                // The reader has gone, as after `| head`.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(());
            }
        }
        match child.wait().map_err(not_run)? {
            status if status.success() => Ok(()),
            status => Err(ServiceError::Ended(program.to_owned(), status)),
        }
    }

    /// Runs a command on this terminal, under the rules of a unit.
    pub fn run_under(self, unit: &str, home: &Path, words: &[&str]) -> Result<(), ServiceError> {
        let program = match self {
            Self::Systemd => "systemd-run",
            // launchd adds no rules.
            Self::Launchd => "env",
        };
        let mut command = Command::new(path_of(program)?);
        if self == Self::Systemd {
            command.args(["--user", "--quiet", "--wait", "--pipe", "--collect"]);
            command.args(files::rules_of(unit, home).iter().flat_map(|rule| ["--property", rule.as_str()]));
        }
        command.args(words);
        require_end(program, command)
    }

    /// Returns the last lines of the log since a time, in seconds since 1970, or nothing.
    pub fn last_lines(self, home: &Path, since: u64) -> String {
        let output = match self {
            Self::Systemd => {
                let (unit, since) = (["--user", "--unit", "respool.service"], format!("@{since}"));
                let form = ["--lines", "10", "--no-pager", "--output", "cat", "--since", &since];
                run_program("journalctl", &[&unit[..], &form[..]].concat())
            }
            Self::Launchd => {
                run_program("tail", &["-n", "10", &home.join("Library/Logs/respool.log").to_string_lossy()])
            }
        };
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    }

    /// Returns true if the service goes on when the user's last session ends, or if that is not known.
    pub fn outlives_sessions(self) -> bool {
        self != Self::Systemd
            || require_success("loginctl", &["show-user", "--property=Linger"])
                .is_ok_and(|text| text.trim() == "Linger=yes")
    }
}

/// Returns a property in the output of `systemctl show`; empty if it is missing.
pub fn property_of<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

fn systemd_state(text: &str) -> State {
    let code = property_of(text, "ExecMainStatus").parse().ok().filter(|&code| code != 0);
    match (property_of(text, "ActiveState"), code) {
        ("active", _) => State::Running,
        // Between two attempts, the exit code of the last one is already known.
        ("activating" | "reloading", None) => State::Starting,
        ("failed" | "activating", code) => State::Failed(code),
        _ => State::Stopped,
    }
}

fn launchd_domain() -> String {
    format!("gui/{}", nix::unistd::getuid())
}

fn launchd_service() -> String {
    format!("{}/{LABEL}", launchd_domain())
}

/// Finds a program of the service manager, which is not a part of the current project.
fn path_of(program: &str) -> Result<PathBuf, ServiceError> {
    let project: Vec<PathBuf> = current_project().into_iter().collect();
    find_in_path(program, &project).map_err(|_| ServiceError::NotInstalled(program.to_owned()))
}

/// Runs a command on this terminal until it has ended well.
fn require_end(program: &str, mut command: Command) -> Result<(), ServiceError> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(ServiceError::Ended(program.to_owned(), status)),
        Err(error) => Err(ServiceError::NotRun(program.to_owned(), error)),
    }
}

fn run_program(program: &str, arguments: &[&str]) -> Result<Output, ServiceError> {
    let output = Command::new(path_of(program)?).args(arguments).stdin(Stdio::null()).output();
    output.map_err(|error| ServiceError::NotRun(program.to_owned(), error))
}

/// Returns its output, if it succeeded.
pub fn require_success(program: &str, arguments: &[&str]) -> Result<String, ServiceError> {
    let output = run_program(program, arguments)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let advice = match program {
        "systemctl" => {
            ". If you are not in a login session (for example after `su`, or in a container), log in as this user or set \
             XDG_RUNTIME_DIR=/run/user/$(id -u). Without a service, `respool serve` runs it"
        }
        _ => "",
    };
    let said = said.trim().trim_end_matches('.').lines().collect::<Vec<_>>().join(" ");
    Err(ServiceError::Failed { command: format!("{program} {}", arguments.join(" ")), said, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_says_is_read() {
        for (text, expected) in [
            ("ActiveState=active\nExecMainStatus=0\n", State::Running),
            ("ExecMainStatus=0\nActiveState=activating\n", State::Starting),
            ("ExecMainStatus=1\nActiveState=activating\n", State::Failed(Some(1))),
            ("ExecMainStatus=78\nActiveState=failed\n", State::Failed(Some(78))),
            ("ExecMainStatus=0\nActiveState=failed\n", State::Failed(None)),
            ("ExecMainStatus=0\nActiveState=inactive\n", State::Stopped),
            ("", State::Stopped),
        ] {
            assert_eq!(systemd_state(text), expected, "{text}");
        }
        assert!(State::Failed(Some(78)).to_string().contains("configuration is wrong"));
    }
}
