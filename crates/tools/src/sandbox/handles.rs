//! Files and directories where a command may have put anything, or may put it meanwhile: each is opened
//! through no link, and judged by its handle.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, MetadataExt as _, OpenOptions};
use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, fchmod, fstat, openat};
use rustix::io::Errno;

/// Larger files of configuration are not read.
const MOST_TEXT: usize = 1 << 20;
/// The end of the name of what a command made and may not stay.
pub(super) const RENAMED: &str = ".made-by-a-command";
/// A handle that only names a place.
#[cfg(target_os = "linux")]
const PLACE: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const PLACE: OFlags = OFlags::RDONLY;

/// The file, directory or link at a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A file or directory by its device and number. Where layers of a container are copied, only these stay.
    Made(u64, u64),
    /// A link by its target.
    Link(PathBuf),
}

impl Entry {
    /// Returns the one at a name in a directory; `None` where nothing is.
    pub(super) fn find(directory: &Dir, name: &OsStr) -> Option<Self> {
        let data = directory.symlink_metadata(name).ok()?;
        if data.is_symlink() {
            return directory.read_link_contents(name).ok().map(Self::Link);
        }
        Some(Self::Made(data.dev(), data.ino()))
    }

    /// Returns the one at a path, to which no link leads.
    pub(super) fn find_at(path: &Path) -> Option<Self> {
        Self::find(&open_directory(path.parent()?).ok()?, path.file_name()?)
    }

    /// Returns where a link leads; an empty path for anything else.
    pub(super) fn target(&self) -> PathBuf {
        match self {
            Self::Made(..) => PathBuf::new(),
            Self::Link(target) => target.clone(),
        }
    }

    pub(super) fn is_link(&self) -> bool {
        matches!(self, Self::Link(_))
    }
}

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

/// Opens a directory in another one as a place.
pub(super) fn open_place_in(directory: &Dir, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(directory, name, PLACE | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory in another one, if its owner may list it and reach what is in it.
pub(super) fn open_in(directory: &Dir, name: &OsStr) -> Result<Dir, Errno> {
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(directory, name, flags, Mode::empty())?;
    let is_open = Mode::from_raw_mode(fstat(&opened)?.st_mode).contains(Mode::RUSR | Mode::XUSR);
    if is_open || !is_own(&opened) { Ok(Dir::from_std_file(opened.into())) } else { Err(Errno::ACCESS) }
}

/// Opens a directory, through no link.
pub(super) fn open_directory(path: &Path) -> io::Result<Dir> {
    let place = open_place(path, OFlags::CLOEXEC)?;
    let directory = openat(&place, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Dir::from_std_file(directory.into()))
}

/// Returns true for what belongs to this process's user.
pub(super) fn is_own(place: impl AsFd) -> bool {
    fstat(place).is_ok_and(|data| data.st_uid == nix::unistd::geteuid().as_raw())
}

/// Gives this user all permissions for what a place is.
pub(super) fn open_to_owner(place: impl AsFd) -> Result<(), Errno> {
    // A handle that only names a place has no other way to it.
    chmod(format!("/proc/self/fd/{}", place.as_fd().as_raw_fd()), Mode::RWXU)
}

/// Gives an entry a name that has no meaning to any program, and returns it. A link becomes a file with its
/// target.
pub(super) fn set_aside(directory: &Dir, name: &OsStr) -> io::Result<String> {
    let text = name.to_string_lossy();
    // No name has more than 255 bytes.
    let mut new = format!("{}{RENAMED}", &text[..text.floor_char_boundary(200)]);
    if directory.symlink_metadata(&new).is_ok() {
        new = format!("{new}-{:08x}", rand::random::<u32>());
    }
    // The command may have taken the directory's permissions away.
    let _ =
        directory.dir_metadata().map(|data| fchmod(directory, Mode::from_raw_mode(data.mode()) | Mode::RWXU));
    match directory.read_link_contents(name) {
        Ok(target) => {
            // By any name it would lead there.
            let mut file = directory.open_with(&new, OpenOptions::new().write(true).create_new(true))?;
            file.write_all(target.as_os_str().as_bytes())?;
            directory.remove_file(name)?;
        }
        Err(_) => directory.rename(name, directory, &new)?,
    }
    Ok(new)
}

/// Reads a small text, also through links, where a command may have put anything: a pipe would never end, and
/// a device neither. `None` for a longer one: its beginning does not say what is in the rest.
pub(super) fn read_small(path: &Path) -> Option<String> {
    read_text(path, MOST_TEXT)
}

/// Reads a text with a limit in bytes in the same way.
pub(crate) fn read_text(path: &Path, most: usize) -> Option<String> {
    // Some authors' names are in other encodings.
    Some(String::from_utf8_lossy(&read_bytes(path, most)?).into_owned())
}

/// Reads a regular file; `None` for anything else, and for one that has more bytes.
pub(super) fn read_bytes(path: &Path, most: usize) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(openat(CWD, path, flags, Mode::empty()).ok()?);
    let data = file.metadata().ok()?;
    let mut bytes = Vec::new();
    let fits = data.is_file() && usize::try_from(data.len()).is_ok_and(|length| length <= most);
    let is_read = fits && file.take(most as u64 + 1).read_to_end(&mut bytes).is_ok();
    (is_read && bytes.len() <= most).then_some(bytes)
}

/// Returns where a file `.git` leads.
pub(super) fn target_of(git: &Path) -> Option<PathBuf> {
    Some(git.parent()?.join(path_in(read_small(git)?.strip_prefix("gitdir: ")?)?))
}

/// Returns the path in a small file of git's.
pub(super) fn read_path(file: &Path) -> Option<PathBuf> {
    path_in(&read_small(file)?)
}

/// git takes the whole text but the ends of lines after it. No git writes other ones, or blanks at its ends.
fn path_in(text: &str) -> Option<PathBuf> {
    let path = text.trim_end_matches(['\r', '\n']);
    let is_plain = !path.is_empty() && path.trim() == path && !path.contains(char::is_control);
    is_plain.then(|| path.into())
}
