//! The last stage: this process gives up what the command is not to have, and becomes the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetStatus, Scope,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::filter;
use super::handles::open_place;
use super::places::without_all;
use super::spec::{HELD, Spec};

/// The newest interface that is known here; older kernels hold what they can.
const NEWEST: ABI = ABI::V8;
/// More are not for one command.
const MOST_PROCESSES: u64 = 8_192;
const LARGEST_FILE: u64 = 32 << 30;

/// Returns only when the command cannot be started, with the exit code a shell would give, or when there is
/// none.
pub(super) fn become_command(spec: &Spec, words: &[OsString]) -> io::Result<i32> {
    // What started this one waits for signals that it has blocked.
    nix::sys::signal::SigSet::empty().thread_set_mask()?;
    // Another command may have put a link there.
    rustix::process::fchdir(open_place(&spec.directory, OFlags::DIRECTORY | OFlags::CLOEXEC)?)?;
    if spec.landlock || spec.seccomp {
        nix::sys::prctl::set_no_new_privs()?;
        give_up_capabilities();
        limit();
    }
    if spec.landlock {
        hold_files(spec)?;
    }
    if spec.seccomp {
        filter::apply(spec)?;
    }
    let Some((program, arguments)) = words.split_first() else { return Ok(0) };
    let error = Command::new(program).args(arguments).env_clear().envs(held_variables()).exec();
    let (why, code) = match error.kind() {
        ErrorKind::NotFound => ("command not found".to_owned(), 127),
        _ => (error.to_string(), 126),
    };
    let _ = writeln!(io::stderr(), "{}: {why}", Path::new(program).display());
    Ok(code)
}

/// Returns the command's variables, which until now had other names.
fn held_variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(HELD.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

/// Root alone has any: what it may do with files stays, what reaches into the system goes. It takes effect
/// with the command.
fn give_up_capabilities() {
    const KEPT: CapabilitySet = CapabilitySet::CHOWN
        .union(CapabilitySet::DAC_OVERRIDE)
        .union(CapabilitySet::FOWNER)
        .union(CapabilitySet::FSETID)
        .union(CapabilitySet::KILL)
        .union(CapabilitySet::SETGID)
        .union(CapabilitySet::SETUID)
        .union(CapabilitySet::NET_BIND_SERVICE);
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        // Not permitted to others, who have nothing to give up; and older kernels know fewer.
        let _ = remove_capability_from_bounding_set(capability);
    }
}

fn limit() {
    let lower = |resource: Resource, most: u64| {
        let hard = getrlimit(resource).map_or(most, |(_, hard)| hard.min(most));
        let _ = setrlimit(resource, hard, hard);
    };
    lower(Resource::RLIMIT_CORE, 0);
    lower(Resource::RLIMIT_NPROC, MOST_PROCESSES);
    lower(Resource::RLIMIT_FSIZE, LARGEST_FILE);
    // When memory runs out, the command goes before respool.
    let _ = std::fs::write("/proc/self/oom_score_adj", "300");
}

/// Devices that every program may use.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/shm"];
/// Terminals, where they are the command's own. Elsewhere these are the person's.
const TERMINALS: [&str; 2] = ["/dev/ptmx", "/dev/pts"];

/// Returns all places that the command may write.
fn writable(spec: &Spec) -> Vec<PathBuf> {
    if spec.everything && spec.has_namespaces() {
        return vec!["/".into()];
    }
    let mut places = spec.writable.clone();
    places.extend(DEVICES.map(PathBuf::from));
    if spec.has_namespaces() {
        places.extend(TERMINALS.map(PathBuf::from));
        places.extend(spec.scratch.iter().cloned());
        places.extend(spec.covers.keys().cloned());
    }
    places
}

fn hold_files(spec: &Spec) -> io::Result<()> {
    let all = AccessFs::from_all(NEWEST);
    let usual = if spec.executed.is_empty() { all } else { all & !AccessFs::Execute };
    let (read, written) =
        (AccessFs::from_read(NEWEST) & usual, usual & !AccessFs::MakeChar & !AccessFs::MakeBlock);
    let rules = |places: Vec<PathBuf>, access: BitFlags<AccessFs>| {
        places.into_iter().filter_map(move |place| rule(&place, access))
    };
    let (without_links, others): (Vec<_>, Vec<_>) =
        writable(spec).into_iter().partition(|place| spec.without_links.contains(place));
    let ruleset = || {
        Ruleset::default()
            .handle_access(all)?
            .scope(Scope::from_all(NEWEST))?
            .create()?
            .add_rules(rules(without_all(spec.readable.clone(), &spec.hidden), read))?
            .add_rules(rules(spec.listed.clone(), AccessFs::ReadDir.into()))?
            .add_rules(rules(spec.executed.clone(), AccessFs::Execute.into()))?
            .add_rules(rules(without_links, written & !AccessFs::MakeSym))?
            .add_rules(rules(others, written))?
            .restrict_self()
    };
    let status =
        ruleset().map_err(|error: landlock::RulesetError| io::Error::other(format!("Landlock: {error}")))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(io::Error::other("the kernel has no Landlock"));
    }
    Ok(())
}

/// Returns a rule for what is at a place; `None` where nothing is, and where a symlink leads there.
fn rule(
    place: &Path,
    access: BitFlags<AccessFs>,
) -> Option<Result<PathBeneath<std::os::fd::OwnedFd>, landlock::RulesetError>> {
    let handle = open_place(place, OFlags::CLOEXEC).ok()?;
    let is_directory = FileType::from_raw_mode(fstat(&handle).ok()?.st_mode).is_dir();
    let access = if is_directory { access } else { access & AccessFs::from_file(NEWEST) };
    (!access.is_empty()).then(|| Ok(PathBeneath::new(handle, access)))
}
