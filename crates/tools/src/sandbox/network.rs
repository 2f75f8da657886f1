//! A network of the command's own, which pasta connects to what lies beyond this machine. The machine's
//! loopback, its addresses and link-local ones (where clouds keep credentials) are not in it: daemons there
//! run what they are asked to outside of the sandbox.

use std::ffi::OsString;
use std::fs;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};

use super::spec::Spec;
use super::supervise;

/// Connected as the machine is, apart from its loopback. Listeners of the command are its own.
const OPTIONS: &str = "--quiet --foreground --config-net --no-map-gw -t none -u none -U none";
/// The first words in pasta's namespaces, those of a shell.
const STARTED: &str = "respool-started";
/// The addresses at which the command finds this machine's resolver, which may be on loopback. They are of
/// those that the Internet keeps for documentation.
const RESOLVERS: [&str; 2] = ["203.0.113.53", "2001:db8::53"];
/// Loopback, to which any interface leads, link-local addresses, and those at which clouds (Alibaba, Azure,
/// Oracle, Amazon, Google, Scaleway) answer instead.
const NEVER: [(&str, u8); 10] = [
    ("127.0.0.0", 8),
    ("::1", 128),
    ("169.254.0.0", 16),
    ("fe80::", 10),
    ("100.100.100.200", 32),
    ("168.63.129.16", 32),
    ("192.0.0.192", 32),
    ("fd00:ec2::", 32),
    ("fd20:ce::254", 128),
    ("fd00:42::42", 128),
];

/// Runs pasta, which starts this program again, as root of a user namespace unless it is root already.
pub(super) fn run_in_pasta(spec: &Spec, pasta: &Path, words: &[OsString]) -> io::Result<i32> {
    let user = nix::unistd::geteuid();
    let own = (user.as_raw(), nix::unistd::getegid().as_raw());
    let user_outside = (!user.is_root()).then_some(own);
    let apart = Spec { pasta: None, avoided: own_addresses()?, user: user_outside, ..spec.clone() };
    let mut command = Command::new(pasta);
    command.arg0("pasta").args(OPTIONS.split(' '));
    command.args(RESOLVERS.iter().flat_map(|address| ["--dns-forward", address]));
    let mut ports: Vec<String> = spec.forwarded.iter().map(u16::to_string).collect();
    if ports.is_empty() {
        ports.push("none".to_owned());
    }
    command.args(["-T", &ports.join(",")]);
    if user.is_root() {
        command.args(["--netns-only", "--runas", "0:0"]);
    }
    // Profiles of AppArmor let it start a shell, whose programs they do not confine. Apart from that shell's
    // word, all of this output is pasta's own.
    let script = format!("echo {STARTED} >&2; exec \"$@\" 2>&1");
    command.args(["--", "/bin/sh", "-c", &script, "sh"]).arg(std::env::current_exe()?);
    command.args(apart.stage_arguments("apart")?).args(words);
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let (errors, code) = (child.stderr.take(), child.wait()?.code());
    // A pasta that fails may leave others behind, which hold the pipe.
    supervise::end_all();
    let mut said = Vec::new();
    if let Some(mut errors) = errors {
        errors.read_to_end(&mut said)?;
    }
    let said = String::from_utf8_lossy(&said);
    match code.filter(|_| said.contains(STARTED)) {
        Some(code) => Ok(code),
        None => Err(io::Error::other(format!("pasta: {}", said.trim()))),
    }
}

/// Returns the addresses of this machine but those of its loopback.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let (mut addresses, mut last) = (Vec::new(), "");
    let table = fs::read_to_string("/proc/net/fib_trie")?;
    for line in table.lines() {
        match line.split_once("|-- ") {
            Some((_, address)) => last = address,
            None if line.trim_end().ends_with("host LOCAL") => addresses.extend(last.parse::<IpAddr>()),
            None => {}
        }
    }
    // There may be no IPv6.
    let table = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let address = |line: &str| u128::from_str_radix(line.split_whitespace().next()?, 16).ok();
    addresses.extend(table.lines().filter_map(address).map(|address| IpAddr::from(address.to_be_bytes())));
    addresses.retain(|address| !address.is_loopback());
    Ok(addresses)
}

/// Closes the roads to this machine: each address that is not to be reached is the namespace's own. A route
/// that prohibits would not do, as a socket that is bound to an interface passes over it.
pub(super) fn close_roads(spec: &Spec) -> io::Result<()> {
    let never = NEVER.iter().filter_map(|(address, bits)| Some((address.parse().ok()?, *bits)));
    let own = spec.avoided.iter().map(|address| (*address, if address.is_ipv4() { 32 } else { 128 }));
    let addresses: Vec<(IpAddr, u8)> = never.chain(own).collect();
    for interface in interfaces()? {
        for (address, bits) in &addresses {
            match keep(*address, *bits, interface) {
                // It is the namespace's own already, or the interface is off.
                Err(Errno::EXIST | Errno::NETDOWN) => {}
                // There is no IPv6, here or at the interface.
                Err(Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::ACCESS | Errno::NODEV)
                    if address.is_ipv6() => {}
                done => done?,
            }
        }
    }
    // Newer versions of pasta do that themselves, and where it is not permitted, bubblewrap may do without.
    let _ = show_own_processes();
    Ok(())
}

/// Mounts a `/proc` of pasta's namespaces: bubblewrap looks for its processes there, by their numbers.
fn show_own_processes() -> nix::Result<()> {
    let nothing = None::<&str>;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, nothing)
}

/// Returns the numbers of the interfaces but that of loopback.
fn interfaces() -> io::Result<Vec<u32>> {
    let table = fs::read_to_string("/proc/self/net/dev")?;
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    names.filter(|name| *name != "lo").map(|name| Ok(name_to_index(&socket, name)?)).collect()
}

/// Makes a route by which what leaves by an interface stays in the namespace, with a message of netlink(7)
/// and rtnetlink(7).
fn keep(address: IpAddr, bits: u8, interface: u32) -> Result<(), Errno> {
    /// `RTM_NEWROUTE`; `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE` and `NLM_F_APPEND`; a number.
    const NEW_ROUTE: [u16; 6] = [24, 0xC05, 1, 0, 0, 0];
    /// `RT_TABLE_LOCAL`, `RTPROT_STATIC`, `RT_SCOPE_HOST`, `RTN_LOCAL` and no flags.
    const ROUTE: [u8; 8] = [255, 4, 254, 2, 0, 0, 0, 0];
    const DESTINATION: u16 = 1;
    const INTERFACE: u16 = 4;
    let (family, octets) = match address {
        IpAddr::V4(address) => (AddressFamily::INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AddressFamily::INET6, address.octets().to_vec()),
    };
    let length = u16::try_from(octets.len()).unwrap_or_default();
    let mut message = (u32::from(length) + 40).to_ne_bytes().to_vec();
    message.extend(NEW_ROUTE.iter().flat_map(|word| word.to_ne_bytes()));
    message.extend([u8::try_from(family.as_raw()).unwrap_or_default(), bits, 0, 0]);
    message.extend(ROUTE);
    message.extend([8, INTERFACE].iter().flat_map(|word| word.to_ne_bytes()));
    message.extend(interface.to_ne_bytes());
    message.extend([4 + length, DESTINATION].iter().flat_map(|word| word.to_ne_bytes()));
    message.extend(octets);
    let (raw, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, raw, flags, None)?;
    send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    recv(&socket, &mut answer, RecvFlags::empty())?;
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(-error)),
    }
}

/// Returns the settings of the resolver for a network of the command's own, and the file in whose place they
/// are; `None` where this machine has none.
pub(super) fn resolver() -> io::Result<Option<(PipeReader, PathBuf)>> {
    let Ok(place) = Path::new("/etc/resolv.conf").canonicalize() else { return Ok(None) };
    let text = fs::read_to_string(&place)?;
    let others = text.lines().filter(|line| !line.trim_start().starts_with("nameserver"));
    let own = RESOLVERS.map(|address| format!("nameserver {address}"));
    let lines = own.iter().map(String::as_str).chain(others);
    let (reader, mut writer) = io::pipe()?;
    for line in lines.take(64) {
        writeln!(writer, "{line:.256}")?;
    }
    Ok(Some((reader, place)))
}
