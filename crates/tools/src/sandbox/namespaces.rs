//! Namespaces of the command's own: it sees no other processes, has no network where there is to be none, its `/tmp` is its
//! own, and some places are read-only for it inside writable ones.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno as MountError;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities,
};

use super::spec::Spec;

const NOTHING: Option<&str> = None;

/// Takes this process into namespaces of its own; the next one that it starts is the first in them.
pub(super) fn enter(spec: &Spec) -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let mut kinds = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC;
    if !spec.network {
        kinds |= CloneFlags::CLONE_NEWNET;
    }
    unshare(kinds).map_err(|error| io::Error::other(format!("namespaces are not permitted: {error}")))?;
    // Root keeps all users, as files of others would else be nobody's; everybody else is only themselves.
    let everybody = |file: &str| fs::write(file, "0 0 4294967295");
    if user == 0 && everybody("/proc/self/uid_map").is_ok() {
        return everybody("/proc/self/gid_map");
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    keep_mounting()
}

/// Who is not root loses the right to mount with the next program, unless it is handed on.
fn keep_mounting() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    Ok(configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?)
}

/// What is started from now on gets nothing of it.
fn end_mounting() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let mut sets = capabilities(None)?;
    sets.inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, sets)?)
}

/// Mounts what the sandbox consists of. Called in the first process of the namespaces.
pub(super) fn mount_places(spec: &Spec) -> io::Result<()> {
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)?;
    let hidden = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let proc = mount(Some("proc"), "/proc", Some("proc"), hidden, NOTHING);
    proc.map_err(|error| io::Error::other(format!("a /proc of its own is not permitted: {error}")))?;
    if let Some(temporary) = &spec.temporary {
        cover(temporary, spec)?;
    }
    hold_attributes(spec)?;
    for directory in spec.pinned.iter().filter(|directory| directory.exists()) {
        bind(directory, directory)?;
    }
    for place in spec.frozen.iter().filter(|place| place.exists()) {
        bind(place, place)?;
        make_read_only(place)?;
    }
    end_mounting()
}

/// File systems that hold people's files, and whose mounts can be asked without waiting for another machine.
const WITH_FILES: [&str; 13] = [
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "vfat", "virtiofs",
    "xfs", "zfs",
];

/// Landlock knows nothing of modes, owners, times and attributes of files: outside of what the command writes, they stay as they
/// are because everything is mounted read-only. What lies in `/dev/shm` is for other commands neither to see nor to find later.
fn hold_attributes(spec: &Spec) -> io::Result<()> {
    if !spec.landlock || spec.writable.iter().any(|place| place == Path::new("/")) {
        return Ok(());
    }
    let existing = |place: &PathBuf| place.canonicalize().ok();
    let mut writable: Vec<PathBuf> = spec.writable.iter().filter_map(existing).collect();
    writable.retain(|place| !place.starts_with("/dev"));
    for place in &writable {
        bind(place, place)?;
    }
    // These are the command's own by now.
    if spec.temporary.is_some() {
        writable.extend(["/tmp", "/var/tmp"].iter().map(PathBuf::from).filter_map(|place| existing(&place)));
    }
    for point in mount_points(&fs::read_to_string("/proc/self/mountinfo")?) {
        let is_elsewhere = !writable.iter().any(|place| point.starts_with(place));
        if is_elsewhere && !["/proc", "/dev"].iter().any(|own| point.starts_with(own)) {
            hold_mount(&point)?;
        }
    }
    if Path::new("/dev/shm").is_dir() {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), flags, Some("mode=1777"))
            .map_err(|error| io::Error::other(format!("a /dev/shm of its own is not permitted: {error}")))?;
    }
    Ok(())
}

/// What lies below another mount, or in a directory that this user cannot enter, is not reached by its path, nor by the command's.
fn hold_mount(point: &Path) -> io::Result<()> {
    match remount_read_only(point) {
        Ok(()) | Err(MountError::EINVAL | MountError::ENOENT | MountError::ENOTDIR | MountError::EACCES) => {
            Ok(())
        }
        Err(error) => Err(not_read_only(point, error)),
    }
}

/// The places of mounts that hold files, from the text of `mountinfo` (proc(5)).
fn mount_points(mounts: &str) -> Vec<PathBuf> {
    let point = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let kind = source.split(' ').next()?;
        WITH_FILES.contains(&kind).then(|| unescaped(mount.split(' ').nth(4).unwrap_or_default()))
    };
    mounts.lines().filter_map(point).collect()
}

/// Spaces and their like stand as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Puts a directory of the command's own over those that all share; what the command may reach below them is still there.
fn cover(own: &Path, spec: &Spec) -> io::Result<()> {
    let reached = || spec.writable.iter().chain(&spec.readable);
    let mut places: Vec<PathBuf> =
        ["/tmp", "/var/tmp"].iter().filter_map(|place| Path::new(place).canonicalize().ok()).collect();
    places.retain(|place| !reached().any(|path| place.starts_with(path)));
    for place in &places {
        keep(place, own, spec, reached().filter_map(|path| path.canonicalize().ok()).collect())?;
    }
    // By its handle: it may itself be below one of them.
    let handle = fs::File::open(own)?;
    let own = by_handle(&handle);
    places.iter().try_for_each(|place| bind(&own, place))
}

/// Mounts what the command may reach below a place at the same path in its own directory.
fn keep(place: &Path, own: &Path, spec: &Spec, mut kept: Vec<PathBuf>) -> io::Result<()> {
    kept.retain(|path| path.starts_with(place) && !own.starts_with(path));
    kept.sort();
    kept.dedup();
    for path in &kept {
        let point = Point::make(own, path.strip_prefix(place).map_err(io::Error::other)?, path.is_dir())?;
        bind(path, &by_handle(&point.target))?;
        if !spec.writable.iter().any(|writable| path.starts_with(writable)) {
            // What is mounted there now is another directory than the handle's.
            make_read_only(&by_handle(&open(&point.parent, &point.name, OFlags::empty())?))?;
        }
    }
    Ok(())
}

/// Where something is mounted in the command's own directory. Other commands write there: no symlink of theirs is followed.
struct Point {
    parent: OwnedFd,
    name: OsString,
    target: OwnedFd,
}

impl Point {
    fn make(own: &Path, below: &Path, is_directory: bool) -> io::Result<Self> {
        let mut parent = OwnedFd::from(fs::File::open(own)?);
        let name = below.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        for part in below.parent().into_iter().flat_map(Path::components) {
            parent = directory(&parent, part.as_os_str())?;
        }
        let target =
            if is_directory { directory(&parent, &name)? } else { open(&parent, &name, OFlags::CREATE)? };
        Ok(Self { parent, name, target })
    }
}

fn directory(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open(parent, name, OFlags::DIRECTORY),
        Err(error) => Err(error.into()),
    }
}

fn open(parent: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?)
}

fn by_handle(handle: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, NOTHING, MsFlags::MS_BIND | MsFlags::MS_REC, NOTHING)
        .map_err(|error| io::Error::other(format!("{} cannot be mounted: {error}", from.display())))
}

fn make_read_only(place: &Path) -> io::Result<()> {
    remount_read_only(place).map_err(|error| not_read_only(place, error))
}

fn not_read_only(place: &Path, error: MountError) -> io::Error {
    io::Error::other(format!("{} cannot be made read-only: {error}", place.display()))
}

/// The flags of the file system stay: the kernel does not let them be taken away here.
fn remount_read_only(place: &Path) -> nix::Result<()> {
    let found = statvfs(place).map_err(|error| MountError::from_raw(error.raw_os_error()))?.f_flag;
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (known, flag) in [
        (StatVfsMountFlags::NOSUID, MsFlags::MS_NOSUID),
        (StatVfsMountFlags::NODEV, MsFlags::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, MsFlags::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, MsFlags::MS_NOATIME),
        (StatVfsMountFlags::NODIRATIME, MsFlags::MS_NODIRATIME),
        (StatVfsMountFlags::RELATIME, MsFlags::MS_RELATIME),
    ] {
        if found.contains(known) {
            flags |= flag;
        }
    }
    mount(NOTHING, place, NOTHING, flags, NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_hold_files_are_found() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      23 22 0:5 / /proc rw,nosuid - proc proc rw\n\
                      24 22 0:40 / /mnt/my\\040disk rw - xfs /dev/sdb1 rw\n\
                      25 22 0:41 / /net/home rw - nfs4 far:/home rw\nnonsense\n";
        assert_eq!(mount_points(mounts), [Path::new("/"), Path::new("/mnt/my disk")]);
        assert_eq!(unescaped("a\\134b\\"), Path::new("a\\b\\"));
    }
}
