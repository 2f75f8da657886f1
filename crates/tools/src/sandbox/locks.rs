//! The commands that are at work, of every respool of this user: each shares a lock on the file of its
//! workspace in the state directory, which no command can open. Taken by `protected`.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

/// No name may have more than 255 bytes. Where two places have the same beginning, they count as one.
const LONGEST_NAME: usize = 250;

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
    /// Takes the locks alone if no other command holds one, else together with the others. Without a
    /// directory, it sees no others.
    pub(super) fn take(directory: Option<&Path>, places: &[PathBuf]) -> Self {
        let opened = directory.map(|directory| Self::open(directory, places)).transpose();
        // Others may be at work where that fails, as on a full disk.
        let Ok(opened) = opened else { return Self::default() };
        let mut locks = opened.unwrap_or_default();
        // A file system may have no locks.
        let is_held = |file: &fs::File| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
        locks.are_alone = !locks.near.iter().any(is_held);
        if locks.are_alone {
            return locks;
        }
        // Two that wait would else hold each other up.
        for file in &locks.near {
            let _ = file.unlock();
        }
        locks.share()
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
    pub(super) fn share(mut self) -> Self {
        for file in self.near.iter().chain(&self.own) {
            // Another one holds it no longer than its search takes, or a command of git's.
            let _ = file.lock_shared();
        }
        self.near.clear();
        self
    }
}

/// A place is below another one if its name begins with that one's.
fn name_of(place: &Path) -> String {
    let name = percent_encode(place.join("").as_os_str().as_bytes(), NON_ALPHANUMERIC).to_string();
    name.get(..LONGEST_NAME).unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_nested_places_see_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let take = |place: &str| Locks::take(Some(folder.path()), &[PathBuf::from(place)]);
        let first = take("/p").share();
        assert!(first.are_alone);
        for (place, is_alone) in
            [("/p", false), ("/p/sub", false), ("/", false), ("/pq", true), ("/q/p", true)]
        {
            assert_eq!(take(place).are_alone, is_alone, "{place}");
        }
        drop(first);
        // A program that another test starts has the file open, too, until it is loaded.
        let take_alone = |place: &str| {
            let tries = std::iter::repeat_with(|| take(place)).take(100_000);
            tries.inspect(|_| std::thread::yield_now()).find(|locks| locks.are_alone).unwrap()
        };
        let _below = take_alone("/p/sub").share();
        assert!(!take("/p").are_alone);
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(
            !Locks::take(Some(&folder.path().join("file")), &[]).are_alone
                && Locks::take(None, &[]).are_alone
        );
        let long = format!("/{}", "a/".repeat(500));
        take_alone(&long);
    }
}
