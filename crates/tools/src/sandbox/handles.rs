//! Files and directories where a command may have put anything, or may put it meanwhile: each is opened
//! through no link, and judged by its handle.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cap_std::fs::Dir;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

/// Larger indexes are not read.
const MOST_BYTES: u64 = 512 << 20;
/// Larger files of configuration are not read.
const MOST_TEXT: usize = 1 << 20;
/// A handle that only names a place.
#[cfg(target_os = "linux")]
const PLACE: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const PLACE: OFlags = OFlags::RDONLY;

/// Opens a place, directory by directory, without following a symlink anywhere on its path. `openat2` would
/// do it in one call, and systemd's `RestrictSUIDSGID` takes that away. Without `CLOEXEC` among the flags,
/// the handle stays open in the programs that this process starts.
pub(super) fn open_place(path: &Path, more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = PLACE | OFlags::NOFOLLOW | more;
    let below = path.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    let mut place = openat(CWD, "/", flags, Mode::empty())?;
    for name in below {
        place = openat(&place, name, flags, Mode::empty())?;
    }
    let is_link = FileType::from_raw_mode(fstat(&place)?.st_mode).is_symlink();
    if is_link { Err(Errno::LOOP) } else { Ok(place) }
}

/// Opens a directory, through no link.
pub(super) fn open_directory(path: &Path) -> io::Result<Dir> {
    let place = open_place(path, OFlags::CLOEXEC)?;
    let directory = openat(&place, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Dir::from_std_file(directory.into()))
}

/// Gives this user all permissions for a directory, through no link.
pub(super) fn open_to_owner(directory: &Path) -> io::Result<()> {
    let place = open_place(directory, OFlags::CLOEXEC)?;
    if !FileType::from_raw_mode(fstat(&place)?.st_mode).is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    // A handle that only names a place has no other way to it.
    fs::set_permissions(format!("/proc/self/fd/{}", place.as_raw_fd()), fs::Permissions::from_mode(0o700))
}

/// Opens a regular file below a directory, out of which no link leads; `None` for anything else.
pub(super) fn open_file(directory: &Dir, name: &Path) -> io::Result<Option<fs::File>> {
    use cap_std::fs::OpenOptionsExt as _;
    let mut options = cap_std::fs::OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = directory.open_with(name, &options)?.into_std();
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Reads a regular file, through no link: a command may have put anything there.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(openat(CWD, path, flags, Mode::empty())?);
    let data = file.metadata()?;
    if !data.is_file() || data.len() > MOST_BYTES {
        return Err(io::Error::other(format!("{} is not a file, or is too large", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a small text, also through links, where a command may have put anything: a pipe would never end, and
/// a device neither. `None` for a longer one: its beginning does not say what is in the rest.
pub(crate) fn read_small(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(openat(CWD, path, flags, Mode::empty()).ok()?);
    let mut text = String::new();
    let is_file = file.metadata().ok()?.is_file();
    let is_read = is_file && file.take(MOST_TEXT as u64 + 1).read_to_string(&mut text).is_ok();
    (is_read && text.len() <= MOST_TEXT).then_some(text)
}
