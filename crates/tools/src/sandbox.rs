//! The sandbox of commands: which of the kernel's means are there, what a command may reach, and how it is
//! started.
//!
//! respool starts itself as a small launcher (`respool sandbox-exec`), which confines itself and then becomes
//! the command: mounts and namespaces are bubblewrap's (`bubblewrap`); the processes that end with the call
//! (`supervise`), Landlock, the filter of system calls and limits (`confine`) are the launcher's. Used by
//! `local`; what each level stops is in docs/tools.md.

#[cfg(target_os = "linux")]
mod bubblewrap;
#[cfg(target_os = "linux")]
mod confine;
#[cfg(target_os = "linux")]
mod filter;
mod git;
mod handles;
mod harmless;
mod kept;
#[cfg(target_os = "linux")]
mod launch;
mod level;
mod locks;
#[cfg(target_os = "linux")]
mod network;
mod obeyed;
mod places;
mod probe;
mod protected;
mod repository;
mod search;
mod spec;
#[cfg(target_os = "linux")]
mod supervise;
mod temporary;
mod watched;

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;
use tokio::process::Command;

use super::config::{LocalConfig, SandboxMode};
use super::environment::Passing;
use super::process;
use super::programs::{find_program, home_directories, resolve_symlinks};
use git::Git;
pub(super) use git::{FILTERS, HOOKS, hooks_for, question, words_without_filters};
pub(super) use handles::read_text;
use kept::Kept;
pub use level::Level;
use places::Places;
pub use probe::sandbox_level;
use probe::{CommandNetwork, find_bubblewrap};
use protected::Protected;
use repository::Repository;
use spec::{HELD, Spec};
use temporary::private_directory;
pub use temporary::remove_temporary_directories;
pub(super) use watched::Watched;

#[cfg(target_os = "linux")]
pub use launch::launch;

/// Elsewhere than on Linux there is no launcher.
#[cfg(not(target_os = "linux"))]
pub fn launch(_: &str, _: &str, _: &[std::ffi::OsString]) -> u8 {
    125
}

/// The sandbox of one workspace.
#[derive(Debug)]
pub(super) struct Sandbox {
    programs: Programs,
    pub(super) level: Level,
    network: CommandNetwork,
    /// Without bubblewrap commands write also where repositories are.
    accepts_unprotected: bool,
    workspace: PathBuf,
    /// The places that the configuration names and that MCP servers are given, and respool's own files.
    named: Vec<PathBuf>,
    /// The places that MCP servers are given, and the links to them.
    of_servers: Vec<PathBuf>,
    /// For the owner, before a command runs: the services that it reaches, and files of respool in the
    /// workspace.
    pub(super) warning: Option<String>,
    places: Places,
    /// What commands see as `/tmp`.
    temporary: Option<TempDir>,
    /// The directory of locks of commands at work.
    locks: Option<PathBuf>,
    /// Found before the first command.
    protected: OnceLock<Arc<Protected>>,
}

/// The programs that the sandbox starts, found once.
#[derive(Debug)]
struct Programs {
    launcher: Option<PathBuf>,
    bubblewrap: Option<PathBuf>,
    git: Option<Git>,
}

/// How much a command may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The same files as for the workspace, but none is written, and there is no network.
    Look,
    /// The workspace, the usual caches, and what the configuration adds.
    Workspace,
    /// The same, and for git itself its directory.
    Repository,
    /// git's directory alone, for a command of git's that leaves the work tree as it is.
    Index,
    /// All files of the user, and Unix sockets: a person said so.
    User,
}

impl Reach {
    /// Returns true for git's own commands, which run alone and execute nothing but git.
    pub(super) fn is_gits(self) -> bool {
        matches!(self, Self::Repository | Self::Index)
    }
}

/// A command that is ready to start.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) command: Command,
    /// Everything that it started ends when this is closed; `None` without a launcher.
    pub(super) control: Option<PipeWriter>,
}

impl Sandbox {
    /// Finds out what the kernel offers and what commands of this workspace need.
    ///
    /// # Errors
    /// When the configuration requires a sandbox and the kernel has none.
    pub(super) fn open(config: &LocalConfig, workspace: &Path, is_persons: bool) -> Result<Self, String> {
        let level = sandbox_level(config);
        if config.sandbox == SandboxMode::Require && !level.holds_files() {
            return Err(format!(
                "a sandbox is required and cannot be had: {level}. Use a kernel with Landlock (5.13 or later, \
                 `landlock` in /sys/kernel/security/lsm), or set tools.local.sandbox = \"auto\""
            ));
        }
        let has_network = config.network.unwrap_or(is_persons);
        let network = if has_network { CommandNetwork::find(config, &level) } else { CommandNetwork::Off };
        let mut warning = network.reached_services().map(str::to_owned);
        if let Some(why) = &warning {
            if config.sandbox == SandboxMode::Require {
                return Err(format!(
                    "a sandbox is required, and {why}, or set tools.local.network = false, or tools.local.sandbox = \"auto\""
                ));
            }
            tracing::warn!(target: "respool::tools", "{why}");
        }
        let places = Places::find(config, workspace, has_network);
        let writable: Vec<PathBuf> = places.writable.iter().cloned().chain([workspace.to_owned()]).collect();
        if let Some(why) = places.find_exposed(config, workspace).filter(|_| level.holds_files()) {
            // In the home directory, a chat is of use without commands that write.
            if !is_persons {
                return Err(why);
            }
            let why = format!("{why}. Until then commands only read, and not everything");
            tracing::warn!(target: "respool::tools", "{why}");
            warning = Some(warning.map_or_else(|| why.clone(), |services| format!("{why}; {services}")));
        }
        // The temporary directory of a workspace that holds it is the workspace's own.
        let is_outside = !std::env::temp_dir().starts_with(workspace);
        let temporary = (level.holds_files() && is_outside).then(private_directory).transpose();
        let temporary = temporary
            .map_err(|error| format!("the directory for temporary files cannot be made: {error}"))?;
        // A state directory around the workspace does not make the workspace respool's own.
        let is_around = |own: &Path| own.canonicalize().is_ok_and(|own| workspace.starts_with(own));
        let of_servers = config.named_by_servers.iter();
        let of_servers = of_servers.filter_map(|path| resolve_symlinks(&workspace.join(path)));
        Ok(Self {
            programs: Programs {
                git: find_program("git", &writable).filter(|_| level.has_namespaces()).and_then(Git::find),
                launcher: config.launcher.clone(),
                bubblewrap: find_bubblewrap(config).filter(|_| level.has_namespaces()),
            },
            level,
            network,
            accepts_unprotected: config.unprotected_repositories,
            workspace: workspace.to_owned(),
            named: config
                .read_only
                .iter()
                .chain(&config.named_by_servers)
                .chain(config.own_files.iter().filter(|own| !is_around(own)))
                .map(|path| workspace.join(path))
                .collect(),
            of_servers: of_servers.flat_map(|place| place.links.into_iter().chain([place.real])).collect(),
            warning,
            places,
            temporary,
            locks: config.state_dir.as_ref().map(|directory| directory.join("commands")),
            protected: OnceLock::new(),
        })
    }

    /// Returns true for a path that an MCP server is given, which may be code of it.
    pub(super) fn is_of_server(&self, path: &Path) -> bool {
        self.of_servers.iter().any(|place| path.starts_with(place))
    }

    /// True for what tools on files never write: git's own files, and respool's. It may search the workspace.
    pub(super) fn guards(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.workspace).unwrap_or(path);
        let is_git = |part: std::path::Component<'_>| part.as_os_str().eq_ignore_ascii_case(".git");
        below.components().any(is_git)
            || below.ancestors().skip(1).any(|above| self.is_repository_with(above, below))
            || below == Path::new("respool.toml")
            || self.protected().is_of_git(path)
            || self.places.own.iter().any(|own| path.starts_with(own))
    }

    /// Returns true for a file that commands never write because other programs act on it.
    pub(super) fn keeps(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.workspace).unwrap_or(path);
        below.iter().any(obeyed::is_obeyed) || self.protected().keeps(path)
    }

    /// True for a repository without a work tree, and a directory that becomes one by a file in it.
    fn is_repository_with(&self, directory: &Path, file: &Path) -> bool {
        let first = file.strip_prefix(directory).ok().and_then(|below| below.iter().next());
        let is_first = |name: &str| first.is_some_and(|first| first.eq_ignore_ascii_case(name));
        let is_there = |name: &str| self.workspace.join(directory).join(name).symlink_metadata().is_ok();
        search::is_repository(|name| is_first(name) || is_there(name))
    }

    /// What commands never write, searched for now if it is not known yet.
    fn protected(&self) -> &Arc<Protected> {
        self.protected.get_or_init(|| {
            let (configured, locks) = (&self.places.configured, self.locks.clone());
            let mut found = Protected::find(&self.workspace, configured, &self.named, locks);
            (found.readable, found.caches) = (self.places.readable.clone(), self.places.writable.clone());
            Arc::new(found)
        })
    }

    /// Searches for what commands never write, if that is not known yet.
    pub(super) fn find_protected(&self) {
        self.protected();
    }

    /// The words that start git for a command that writes into a protected repository, and what it reaches;
    /// `None` where any command may.
    pub(super) fn git_words(&self, words: &[String], directory: &Path) -> Option<(Vec<String>, Reach)> {
        let (git, reach) = (self.programs.git.as_ref()?, git::reach_of(words)?);
        let Repository { top, .. } = self.protected().repository_of(directory)?;
        // git would leave half of its work undone above a workspace.
        let is_whole = self.protected().roots.iter().any(|root| top.starts_with(root));
        (is_whole || reach == Reach::Index).then(|| (git::own_words(&git.program, words), reach))
    }

    /// Returns the words of a command that lists changes which one of git's own would make, and cannot.
    pub(super) fn words_before(
        &self,
        words: &[String],
        directory: &Path,
        watched: &Watched,
    ) -> Option<Vec<String>> {
        let top = self.protected().repository_of(directory)?.top;
        let is_setting = |place: &&PathBuf| place.starts_with(&top) && !search::is_of_git(place);
        git::words_before(words, watched.kept.frozen.iter().filter(is_setting))
    }

    /// Looks at the workspace before commands with this reach; `None` where they are not watched.
    ///
    /// # Errors
    /// When git's own commands have to be alone, and another one is at work.
    pub(super) fn watch(&self, directory: &Path, reach: Reach) -> io::Result<Option<Watched>> {
        // The owner may have accepted that commands make settings.
        let is_watched = self.level.holds_files()
            && (reach == Reach::Workspace || reach.is_gits())
            && (self.level.has_namespaces() || !self.accepts_unprotected);
        if !is_watched {
            return Ok(None);
        }
        let mut watched = match reach {
            Reach::Index => self.protected().begin_index()?,
            _ => self.protected().begin(directory, reach == Reach::Repository)?,
        };
        // Where the command can write nothing, all is the person's.
        let writable = self.spec(directory, reach, &watched.kept).writable;
        watched.can_change = watched.protected.roots.iter().any(|root| writable.contains(root));
        Ok(Some(watched))
    }

    /// Prepares a command: the one that starts the launcher, or without a launcher the command itself. `also`
    /// are variables besides those of `passing`.
    ///
    /// # Errors
    /// When pipes cannot be made, or something cannot be protected.
    pub(super) fn prepare(
        &self,
        words: &[&str],
        directory: &Path,
        passing: &Passing,
        also: &[(&str, &str)],
        reach: Reach,
        watched: Option<&Watched>,
    ) -> io::Result<Launch> {
        let Some(launcher) = &self.programs.launcher else {
            let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
            let mut command = process::new_command(program, passing)?;
            command.args(arguments).current_dir(directory).env("PWD", directory).envs(also.iter().copied());
            return Ok(Launch { command, control: None });
        };
        if reach != Reach::Look {
            self.places.made.make_missing();
        }
        watched.filter(|_| reach != Reach::Index).inspect(|watched| watched.note_start());
        let nothing = Kept::default();
        let mut spec = self.spec(directory, reach, watched.map_or(&nothing, |watched| &watched.kept));
        if reach.is_gits() {
            let (Some(Repository { own, common, .. }), Some(git), Some(true)) = (
                self.protected().repository_of(directory),
                &self.programs.git,
                watched.map(|watched| watched.can_change),
            ) else {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            };
            spec.executed.clone_from(&git.executed);
            spec.frozen.retain(|place| *place != own && *place != common);
            // No command of git's that runs so needs to change these.
            let kept = ["config", "config.worktree", "hooks"].map(|name| [own.join(name), common.join(name)]);
            let is_real = |path: &PathBuf| path.symlink_metadata().is_ok_and(|data| !data.is_symlink());
            spec.frozen.extend(kept.into_iter().flatten().filter(is_real));
            if reach == Reach::Index {
                spec.readable.append(&mut spec.writable);
            }
            spec.writable.extend([own, common]);
        }
        let spec = serde_json::to_string(&spec)?;
        let (control, writer) = io::pipe()?;
        let mut command = process::plain_command(launcher, passing);
        command.args(["sandbox-exec", &spec, "--"]).args(words);
        command.current_dir("/").env("PWD", directory).envs(also.iter().copied());
        command.stdin(Stdio::from(control));
        if let Some(temporary) = self.seen_temporary(reach) {
            // The person's cache holds programs that start outside.
            command.env("UV_CACHE_DIR", temporary.join("uv-cache")).env("TMPDIR", temporary);
        }
        command.envs(self.places.pnpm_store()).envs(self.places.go_cache());
        if reach == Reach::Look {
            // The person's settings are out of reach.
            command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        }
        if let (Reach::User, Some(git), Some(path)) = (reach, &self.programs.git, std::env::var_os("PATH")) {
            // The person was shown `git`, and a command could have written one in the workspace.
            command.env("PATH", [git.others.as_os_str(), &path].join(OsStr::new(":")));
        }
        if reach.is_gits() {
            // Of what git says, some words count.
            command.env("LANGUAGE", "C").env(git::YES, "true");
            // Nothing of a place that commands write is loaded or found by name, and no editor starts.
            let names = command.as_std().get_envs().map(|(name, _)| name.to_owned());
            let names: Vec<OsString> = names.filter(|name| git::is_of_loader(name)).collect();
            names.iter().for_each(|name| _ = command.env_remove(name));
            let path = self.programs.git.as_ref().map(|git| ("PATH", &git.others));
            command.envs(path).envs([git::PROTOCOLS]);
            command.env("GIT_EDITOR", ":").env("GIT_SEQUENCE_EDITOR", ":");
        }
        hold_variables(&mut command);
        Ok(Launch { command, control: Some(writer) })
    }

    fn spec(&self, directory: &Path, reach: Reach, kept: &Kept) -> Spec {
        let git = self.protected().git_directories();
        let mut spec = Spec {
            directory: directory.to_owned(),
            bubblewrap: self.programs.bubblewrap.clone(),
            landlock: self.level.holds_files(),
            seccomp: self.level.has_filter(),
            readable: git.into_iter().cloned().collect(),
            ..Spec::default()
        };
        let places = || self.places.writable.iter().chain([&self.workspace]).cloned();
        let is_private = |place: &PathBuf| self.places.private.iter().any(|own| own.starts_with(place));
        spec.hidden.clone_from(&self.places.private);
        spec.listed = places().filter(is_private).collect();
        if reach == Reach::Look {
            // No tools, settings and caches of the home directory: there are keys among them.
            let homes = home_directories();
            let is_system = |place: &&PathBuf| {
                places::is_of_system(place) && !homes.iter().any(|home| place.starts_with(home))
            };
            let system = self.places.readable.iter().filter(is_system);
            spec.readable.extend(system.chain([&self.workspace]).cloned());
            spec.scratch = ["/tmp", "/var/tmp"]
                .iter()
                .filter_map(|place| Path::new(place).canonicalize().ok())
                .collect();
            spec.leave_out_hidden();
            return spec;
        }
        spec.network = !matches!(self.network, CommandNetwork::Off);
        spec.readable.extend(self.places.readable.iter().cloned());
        if reach == Reach::User {
            spec.everything = true;
            // Where this user cannot get, a command cannot either.
            spec.frozen = self.places.own.iter().filter(|own| own.exists()).cloned().collect();
            if !self.level.has_namespaces() {
                spec.writable = places::without_all(vec!["/".into()], &self.places.own);
            }
            return spec;
        }
        if let CommandNetwork::Own { pasta, forwarded } = &self.network {
            (spec.pasta, spec.forwarded) = (Some(pasta.clone()), forwarded.clone());
        }
        spec.scratch.clone_from(&self.places.scratch);
        // Without mounts, nothing else keeps commands from what is protected in a place.
        let is_read_only =
            |place: &PathBuf| is_private(place) || (!self.level.has_namespaces() && kept.has_any_in(place));
        let (read_only, writable): (Vec<_>, Vec<_>) = places().partition(is_read_only);
        spec.readable.extend(read_only);
        let is_in_writable = |own: &&PathBuf| writable.iter().any(|place| own.starts_with(place));
        let spared = kept.spared.iter().filter(is_in_writable).cloned();
        spec.writable = writable.iter().cloned().chain(spared).collect();
        spec.without_links = self.places.without_links();
        if self.level.has_namespaces() {
            spec.frozen.extend(kept.frozen.iter().cloned());
            spec.pinned = kept.pinned.iter().cloned().collect();
        }
        self.add_temporary(&mut spec);
        spec.leave_out_hidden();
        spec
    }

    /// Gives the command a `/tmp` of its own, which it shares with the other commands of this workspace.
    /// Where something in reach is below `/tmp`, each command gets an empty one: others could else change the
    /// way to what is mounted in it.
    fn add_temporary(&self, spec: &mut Spec) {
        let Some(own) = self.temporary.as_ref().map(|dir| dir.path().to_owned()) else { return };
        if !self.level.has_namespaces() {
            spec.writable.push(own);
            return;
        }
        for shared in ["/tmp", "/var/tmp"].iter().filter_map(|place| Path::new(place).canonicalize().ok()) {
            let holds = |place: &PathBuf| place.starts_with(&shared) && own != *place;
            if spec.writable.iter().chain(&spec.readable).chain(&spec.scratch).any(holds) {
                spec.scratch.push(shared);
            } else {
                spec.covers.insert(shared, own.clone());
            }
        }
    }

    /// The note for the model on a command whose files in `/tmp` are gone now; `None` where they stay.
    pub(super) fn lost_files_note(&self, line: &str, reach: Reach) -> Option<String> {
        let has_own = self.level.has_namespaces() && self.temporary.is_some() && reach != Reach::User;
        if !has_own || !(line.contains("/tmp") || line.contains("../")) {
            return None;
        }
        let places = [&self.places.writable, &self.places.readable, &self.places.scratch];
        let mut places = [&self.workspace].into_iter().chain(places.into_iter().flatten());
        let cause = places.find(|place| place.starts_with("/tmp"))?;
        Some(format!(
            "/tmp is empty for each command here, and what one writes there goes with it, as {} is below it: keep files in {}",
            cause.display(),
            self.workspace.display()
        ))
    }

    fn seen_temporary(&self, reach: Reach) -> Option<PathBuf> {
        let own = self.temporary.as_ref().filter(|_| reach != Reach::User)?;
        Some(if self.level.has_namespaces() { "/tmp".into() } else { own.path().to_owned() })
    }

    /// The note for the model on a command that failed as if the sandbox had stopped it, with the keys that
    /// would permit it; `None` when it looks otherwise.
    pub(super) fn refusal(&self, output: &str, reach: Reach) -> Option<String> {
        let has_own_network = matches!(self.network, CommandNetwork::Own { .. });
        let is_refused = has_own_network && REFUSED.iter().any(|sign| output.contains(sign));
        let of_git: &[&str] = if reach.is_gits() { &SIGNS_OF_GIT } else { &[] };
        let is_stopped = SIGNS.iter().chain(of_git).any(|sign| output.contains(sign));
        if !self.level.holds_files() || !(is_refused || is_stopped) {
            return None;
        }
        let repositories = if self.level.has_namespaces() {
            "`.git` and the settings of editors and agents are read-only, except for a plain `git add`, `git commit` and the like, \
             which may be joined by `&&`, `;` or new lines"
        } else if self.accepts_unprotected {
            "it never writes respool's own files"
        } else {
            "without bubblewrap a workspace with a repository or settings is read-only as a whole: install bubblewrap, or set \
             `tools.local.unprotected_repositories`"
        };
        let network = match self.network {
            CommandNetwork::Off => " and has no network (`tools.local.network`)",
            CommandNetwork::Own { .. } => {
                " and reaches no services on this machine (`tools.local.loopback_ports` adds some)"
            }
            CommandNetwork::Shared(_) => "",
        };
        Some(format!(
            "the command ran in respool's sandbox: it may write below {}, in the usual caches and in /tmp \
             (`tools.local.writable` adds places), read there, in the system's directories and those of tools \
             (`tools.local.readable`){network}; {repositories}",
            self.workspace.display()
        ))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.temporary.iter().for_each(|directory| temporary::open_to_owner(directory.path()));
    }
}

/// Gives the variables of a command the names that the launcher changes back at the end.
fn hold_variables(command: &mut Command) {
    let set = command.as_std().get_envs();
    let held: Vec<(OsString, OsString)> = set
        .filter_map(|(name, value)| Some(([OsStr::new(HELD), name].join(OsStr::new("")), value?.to_owned())))
        .collect();
    command.env_clear().envs(held);
}

/// What a program says when the sandbox may have stopped it.
const SIGNS: [&str; 13] = [
    "ermission denied",
    "peration not permitted",
    "ead-only file system",
    "EACCES",
    "EPERM",
    "EROFS",
    "ould not resolve host",
    "ame resolution",
    "etwork is unreachable",
    "EAI_AGAIN",
    "evice or resource busy",
    // git's, on its index.
    "ould not write index",
    // git's, where it does not see the person's configuration.
    "dubious ownership",
];

/// The words of git when it finds no program, no key, or no remote, which is then a path outside. Other
/// programs say the like for other reasons.
const SIGNS_OF_GIT: [&str; 6] = [
    "xternal filter",
    "error: cannot run ",
    "nable to sign",
    "ailed to write commit object",
    "does not appear to be a git repository",
    NO_HOOKS,
];

/// Why a commit is not made where a hook might forbid it.
pub(super) const NO_HOOKS: &str = "the sandbox runs no hooks";

/// The words of a program that finds nothing on the loopback of a network of its own.
const REFUSED: [&str; 4] =
    ["onnection refused", "ECONNREFUSED", "ouldn't connect to server", "ould not connect to server"];

/// Returns the directories from which respool starts no code outside the sandbox: those that commands write,
/// caches among them, unless the owner has given up the sandbox.
pub fn held_from_programs(config: &LocalConfig) -> Vec<PathBuf> {
    if config.sandbox == SandboxMode::Off {
        return Vec::new();
    }
    let mut held = config.writable_by_commands();
    if let Some(workspace) = config.workspace.as_ref().and_then(|path| path.canonicalize().ok()) {
        held.extend(Places::find(config, &workspace, true).writable);
    }
    held
}

/// Returns the services on this machine that a command with the network reaches, in a sentence for the owner;
/// `None` where it reaches none.
pub fn reached_services(config: &LocalConfig) -> Option<String> {
    CommandNetwork::find(config, &sandbox_level(config)).reached_services().map(str::to_owned)
}
