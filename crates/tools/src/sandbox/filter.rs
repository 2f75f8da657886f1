//! The filter of system calls: what no build, test or package manager needs, and what would lead out of the
//! sandbox. It names what is denied; everything else is permitted.

use std::collections::BTreeMap;
use std::io;

use nix::libc as c;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, apply_filter,
};

use super::spec::Spec;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Other namespaces, the kernel itself, its key rings, and `io_uring`, which does what this filter does not
/// see. Mounts, modules, clocks and their like need capabilities, which no command has, root's neither.
const NEVER: &[i64] = &[
    c::SYS_setns,
    c::SYS_bpf,
    c::SYS_perf_event_open,
    c::SYS_userfaultfd,
    c::SYS_add_key,
    c::SYS_request_key,
    c::SYS_keyctl,
    c::SYS_io_uring_setup,
    c::SYS_io_uring_enter,
    c::SYS_io_uring_register,
];
/// The kinds of namespaces, of which no further ones are made.
const NAMESPACES: [i32; 8] = [
    c::CLONE_NEWUSER,
    c::CLONE_NEWNS,
    c::CLONE_NEWPID,
    c::CLONE_NEWNET,
    c::CLONE_NEWIPC,
    c::CLONE_NEWUTS,
    c::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];
/// They type into a terminal.
const TYPING: [u64; 2] = [0x5412, 0x541C];
/// One process, in place of a group or a user.
const PRIO_PROCESS: u64 = 0;
const IOPRIO_WHO_PROCESS: u64 = 1;
/// The part of a socket's type that is its kind; the rest are flags.
const SOCKET_KIND: u32 = 0xF;
/// On x86-64 every call has a second number, of the x32 interface.
#[cfg(target_arch = "x86_64")]
const SECOND_NUMBER: Option<i64> = Some(0x4000_0000);
#[cfg(not(target_arch = "x86_64"))]
const SECOND_NUMBER: Option<i64> = None;

/// Puts the filter on this process and all that it starts.
pub(super) fn apply(spec: &Spec) -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(format!("seccomp: {error}"));
    // Programs that know `clone3` fall back on `clone`, whose flags can be seen.
    let missing = Rules::from([(c::SYS_clone3, Vec::new())]);
    let denied = rules(spec).map_err(|error| failed(&error))?;
    for (rules, error) in [(missing, c::ENOSYS), (denied, c::EPERM)] {
        let program = program(&rules, error).map_err(|error| failed(&error))?;
        apply_filter(&program).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn program(rules: &Rules, error: i32) -> Result<BpfProgram, seccompiler::BackendError> {
    let also = rules
        .iter()
        .filter_map(|(number, rules)| SECOND_NUMBER.map(|second| (number | second, rules.clone())));
    let rules: Rules = rules.clone().into_iter().chain(also).collect();
    let errno = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

fn rules(spec: &Spec) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = NEVER.iter().map(|number| (*number, Vec::new())).collect();
    let has = |flag: i32| {
        let flag = u64::from(flag.unsigned_abs());
        SeccompRule::new(vec![Condition::new(0, Len::Qword, Op::MaskedEq(flag), flag)?])
    };
    let namespaces = NAMESPACES.map(has).into_iter().collect::<Result<Vec<_>, _>>()?;
    rules.insert(c::SYS_unshare, namespaces.clone());
    // The time namespace has no flag of `clone`: there it is the signal at the child's end.
    rules.insert(c::SYS_clone, namespaces[..7].to_vec());
    rules
        .insert(c::SYS_ioctl, TYPING.map(|request| equal(1, request)).into_iter().collect::<Result<_, _>>()?);
    rules.insert(c::SYS_socket, sockets(spec)?);
    if !spec.everything {
        rules.insert(c::SYS_socketpair, socket_pairs()?);
    }
    limits(&mut rules)?;
    Ok(rules)
}

fn equal(argument: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![Condition::new(argument, Len::Dword, Op::Eq, value)?])
}

/// Returns all families but those that are permitted; of netlink only what describes interfaces.
fn sockets(spec: &Spec) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let mut permitted = vec![c::AF_NETLINK];
    if spec.network {
        permitted.extend([c::AF_INET, c::AF_INET6]);
    }
    if spec.everything {
        permitted.push(c::AF_UNIX);
    }
    let family = |family: &i32| Condition::new(0, Len::Dword, Op::Ne, u64::from(family.unsigned_abs()));
    let others = permitted.iter().map(family).collect::<Result<Vec<_>, _>>()?;
    let netlink = vec![
        Condition::new(0, Len::Dword, Op::Eq, u64::from(c::AF_NETLINK.unsigned_abs()))?,
        Condition::new(2, Len::Dword, Op::Ne, 0)?,
    ];
    Ok(vec![SeccompRule::new(others)?, SeccompRule::new(netlink)?])
}

/// Pairs of Unix stream and packet sockets alone: one of a pair of datagram sockets reaches any other by its
/// path.
fn socket_pairs() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let permitted = [c::SOCK_STREAM, c::SOCK_SEQPACKET].map(i32::unsigned_abs);
    let kinds = (0..=SOCKET_KIND).filter(|kind| !permitted.contains(kind));
    let of_kind = |kind: u32| {
        let kind = Condition::new(1, Len::Dword, Op::MaskedEq(SOCKET_KIND.into()), kind.into())?;
        SeccompRule::new(vec![kind])
    };
    let family = Condition::new(0, Len::Dword, Op::Ne, u64::from(c::AF_UNIX.unsigned_abs()))?;
    kinds.map(of_kind).chain([SeccompRule::new(vec![family])]).collect()
}

/// No limits and priorities for other processes: the kernel permits them for all of the same user, and what
/// ends the command's processes could lose its files or its turn.
fn limits(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    let other = |argument: u8| Condition::new(argument, Len::Dword, Op::Ne, 0);
    // Without new limits it only reads.
    let sets = Condition::new(2, Len::Qword, Op::Ne, 0)?;
    rules.insert(c::SYS_prlimit64, vec![SeccompRule::new(vec![other(0)?, sets])?]);
    for number in [c::SYS_sched_setscheduler, c::SYS_sched_setparam, c::SYS_sched_setattr] {
        rules.insert(number, vec![SeccompRule::new(vec![other(0)?])?]);
    }
    for (number, process) in [(c::SYS_setpriority, PRIO_PROCESS), (c::SYS_ioprio_set, IOPRIO_WHO_PROCESS)] {
        let groups = Condition::new(0, Len::Dword, Op::Ne, process)?;
        rules.insert(number, vec![SeccompRule::new(vec![groups])?, SeccompRule::new(vec![other(1)?])?]);
    }
    Ok(())
}
