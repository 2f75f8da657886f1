//! The commands that are at work, of every respool of this user: each shares a lock on the file of its
//! workspace in the state directory, which no command can open. Taken by `protected`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

/// No name may have more than 255 bytes. Where two places have the same beginning, they count as one.
const LONGEST_NAME: usize = 250;
/// The directory of notes on running commands, in that of the locks.
const AT_WORK: &str = "at-work";

/// Locks on some places.
#[derive(Debug, Default)]
pub(super) struct Locks {
    own: Vec<fs::File>,
    /// Held until others may begin.
    near: Vec<fs::File>,
    /// No other command works in, above or below these places.
    pub(super) are_alone: bool,
}

impl Locks {
    /// Takes the locks alone if no other command holds one, else together with the others, unless it has to
    /// be alone. Without a directory, it sees no others.
    ///
    /// # Errors
    /// `ResourceBusy` where another command is at work, and when the directory cannot be written.
    pub(super) fn take(directory: Option<&Path>, places: &[PathBuf], is_alone: bool) -> io::Result<Self> {
        let mut locks = match directory {
            Some(directory) => Self::open(directory, places).map_err(|error| unwritten(directory, &error))?,
            None => Self::default(),
        };
        // A file system may have no locks.
        let is_held = |file: &fs::File| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
        locks.are_alone = !locks.near.iter().any(is_held);
        match locks.are_alone {
            true => Ok(locks),
            false if is_alone => Err(busy()),
            false => locks.share(),
        }
    }

    fn open(directory: &Path, places: &[PathBuf]) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let open =
            |name: &String| fs::OpenOptions::new().create(true).append(true).open(directory.join(name));
        let names: Vec<String> = places.iter().map(|place| name_of(place)).collect();
        let own = names.iter().map(open).collect::<io::Result<_>>()?;
        let all = fs::read_dir(directory)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let is_near = |other: &String| {
            names.iter().any(|own| own.starts_with(other.as_str()) || other.starts_with(own.as_str()))
        };
        let near = all.filter(is_near).map(|name| open(&name)).collect::<io::Result<_>>()?;
        Ok(Self { own, near, are_alone: false })
    }

    /// Lets others begin.
    ///
    /// # Errors
    /// `ResourceBusy` while another command searches, or has to be alone.
    pub(super) fn share(mut self) -> io::Result<Self> {
        let is_held = |file: &fs::File| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock));
        if self.near.iter().chain(&self.own).any(is_held) {
            return Err(busy());
        }
        self.near.clear();
        Ok(self)
    }
}

/// Entries and links of a place before a command that left it unseen, with the targets of links.
pub(super) type Marked = BTreeMap<PathBuf, PathBuf>;

/// Marks a place as one that has not been looked through since a command was at work: in the file of its
/// locks, which is else empty.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn mark(directory: &Path, place: &Path, before: &Marked) -> io::Result<()> {
    fs::write(directory.join(name_of(place)), text_of(place, before))
}

fn text_of(place: &Path, before: &Marked) -> Vec<u8> {
    let below = before.iter().filter(|(path, _)| path.starts_with(place));
    let paths = below.flat_map(|(path, target)| [path.as_path(), target]);
    let all: Vec<&[u8]> = [place].into_iter().chain(paths).map(|path| path.as_os_str().as_bytes()).collect();
    all.join(&0)
}

/// Notes that a command is at work in these places, until the returned files are removed: what a killed
/// process leaves of them counts as marks.
///
/// # Errors
/// When one cannot be written.
pub(super) fn note_at_work(
    directory: &Path,
    places: &[PathBuf],
    before: &Marked,
) -> io::Result<Vec<PathBuf>> {
    let directory = directory.join(AT_WORK);
    fs::create_dir_all(&directory)?;
    let note = |place: &PathBuf| {
        let mut file =
            tempfile::Builder::new().prefix(&name_of(place)).rand_bytes(5).tempfile_in(&directory)?;
        file.write_all(&text_of(place, before))?;
        Ok(file.keep()?.1)
    };
    places.iter().map(note).collect()
}

/// Makes marks of the notes that killed processes have left, while no command is at work. Returns true if
/// there were any.
pub(super) fn mark_left(directory: &Path, places: &[PathBuf]) -> bool {
    let notes = read_marks(&directory.join(AT_WORK), places);
    let mut all = BTreeMap::<&Path, Marked>::new();
    for note in &notes {
        all.entry(&note.place).or_default().extend(note.before.clone());
    }
    // What cannot be written now is, before a later command.
    let is_marked = all.iter().all(|(place, before)| mark(directory, place, before).is_ok());
    notes.iter().filter(|_| is_marked).for_each(|note| _ = fs::remove_file(&note.file));
    !notes.is_empty()
}

/// A place that is marked, with what was there before.
pub(super) struct Mark {
    pub(super) place: PathBuf,
    pub(super) before: Marked,
    file: PathBuf,
}

/// Returns the marks of these places and those below them.
pub(super) fn read_marks(directory: &Path, places: &[PathBuf]) -> Vec<Mark> {
    let names: Vec<String> = places.iter().map(|place| name_of(place)).collect();
    let is_below =
        |file: &fs::DirEntry| names.iter().any(|own| file.file_name().as_bytes().starts_with(own.as_bytes()));
    let files = fs::read_dir(directory).into_iter().flatten().flatten().filter(is_below);
    let marks = files.filter_map(|file| {
        let bytes = fs::read(file.path()).ok()?;
        let mut paths = bytes.split(|byte| *byte == 0).map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let place = paths.next().filter(|marked| places.iter().any(|place| marked.starts_with(place)))?;
        let before = std::iter::from_fn(|| paths.next().zip(paths.next())).collect();
        Some(Mark { place, before, file: file.path() })
    });
    marks.collect()
}

/// Removes the marks of these places and those below them.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn remove_marks(directory: &Path, places: &[PathBuf]) -> io::Result<()> {
    let marks = read_marks(directory, places);
    marks.iter().try_for_each(|mark| fs::File::create(&mark.file).map(drop))
}

fn busy() -> io::Error {
    let why = "another command may be at work in this workspace; wait for its end";
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

fn unwritten(directory: &Path, error: &io::Error) -> io::Error {
    let directory = directory.display();
    io::Error::other(format!("{directory}, where commands at work are noted, cannot be written: {error}"))
}

/// A place is below another one if its name begins with that one's.
fn name_of(place: &Path) -> String {
    let name = percent_encode(place.join("").as_os_str().as_bytes(), NON_ALPHANUMERIC).to_string();
    name.get(..LONGEST_NAME).unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that another test starts has the files open, too, until it is loaded.
    fn until<T>(attempt: impl FnMut() -> Option<T>) -> T {
        let attempts = std::iter::repeat_with(attempt).take(100_000);
        attempts.inspect(|_| std::thread::yield_now()).flatten().next().unwrap()
    }

    #[test]
    fn commands_in_nested_places_see_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let take =
            |place: &str| until(|| Locks::take(Some(folder.path()), &[PathBuf::from(place)], false).ok());
        let take_alone = |place: &str| until(|| Some(take(place)).filter(|locks| locks.are_alone));
        let share_alone = |place: &str| until(|| take_alone(place).share().ok());
        let first = share_alone("/p");
        for place in ["/p", "/p/sub", "/"] {
            assert!(!take(place).are_alone, "{place}");
        }
        ["/pq", "/q/p"].into_iter().for_each(|place| drop(take_alone(place)));
        drop(first);
        let _below = share_alone("/p/sub");
        assert!(!take("/p").are_alone);
        std::fs::write(folder.path().join("file"), "").unwrap();
        let error = Locks::take(Some(&folder.path().join("file")), &[], false).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
        assert!(Locks::take(None, &[], true).unwrap().are_alone);
        let long = format!("/{}", "a/".repeat(500));
        take_alone(&long);
    }
}
