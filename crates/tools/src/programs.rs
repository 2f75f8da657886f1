//! The programs that respool starts itself, outside any sandbox: found by absolute path, and only in the system's directories.
//! `PATH` may name a directory that a command can write (an activated `.venv`, `node_modules/.bin`); a program from there would
//! run with all of respool's rights.

use std::path::{Path, PathBuf};

/// Directories of the system: a user's commands do not write below them.
const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/opt", "/nix", "/gnu", "/run/current-system", "/home/linuxbrew"];
/// Searched after `PATH`.
const USUAL: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Returns the absolute path, without symlinks, of a program of the system; `None` when there is none. It is never below a
/// home directory, the current directory or one of the `writable` places.
pub fn find_program(name: &str, writable: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = homes().into_iter().chain(std::env::current_dir()).filter(|own| own.parent().is_some());
    let excluded: Vec<PathBuf> = own.chain(writable.iter().cloned()).collect();
    let candidates = std::env::split_paths(&path).chain(USUAL.map(PathBuf::from));
    let mut found = candidates.filter_map(|directory| directory.join(name).canonicalize().ok());
    found.find(|program| is_trusted(program, &excluded) && program.is_file())
}

fn is_trusted(program: &Path, excluded: &[PathBuf]) -> bool {
    SYSTEM.iter().any(|system| program.starts_with(system))
        && !excluded.iter().any(|place| program.starts_with(place))
}

/// The home directories of this process's user, without symlinks: the one that the environment names, and the account's.
pub(super) fn homes() -> Vec<PathBuf> {
    let account = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir);
    let named = std::env::var_os("HOME").map(PathBuf::from);
    let homes = named.into_iter().chain(account).filter_map(|home| home.canonicalize().ok());
    let mut homes: Vec<PathBuf> = homes.filter(|home| home.is_dir() && home.parent().is_some()).collect();
    homes.dedup();
    homes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_from_the_system_alone() {
        let program = find_program("sh", &[]).unwrap();
        assert!(program.is_absolute() && program == program.canonicalize().unwrap());
        assert_eq!(find_program("sh", &["/".into()]), None);
        let excluded = [PathBuf::from("/opt/service")];
        assert!(is_trusted(Path::new("/opt/tools/bin/git"), &excluded));
        for program in ["/opt/service/bin/git", "/home/me/project/.venv/bin/git", "/tmp/git"] {
            assert!(!is_trusted(Path::new(program), &excluded), "{program}");
        }
    }
}
