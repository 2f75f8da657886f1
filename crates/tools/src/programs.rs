//! The programs that respool starts itself, outside any sandbox. They are found once, by absolute path, and
//! never where a command could have put them: `PATH` may name a directory of the workspace (an activated
//! `.venv`, `node_modules/.bin`), and a program from there would run with all of respool's rights. What these
//! programs start gets a `PATH` without such directories, too.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// Directories of the system: a user's commands do not write below them.
const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/opt", "/nix", "/gnu", "/run/current-system", "/home/linuxbrew"];
/// Searched after `PATH`.
const USUAL: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
/// The most symlinks that a path may lead through; the kernel follows as many.
const MOST_LINKS: usize = 40;

/// Returns the absolute path, without symlinks, of a program of the system; `None` when there is none. It is
/// never below a home directory, the current directory or one of the `writable` places.
pub fn find_program(name: &str, writable: &[PathBuf]) -> Option<PathBuf> {
    let excluded = excluded_from_system(writable);
    let mut found = directories().filter_map(|directory| directory.join(name).canonicalize().ok());
    found.find(|program| is_trusted(program, &excluded) && program.is_file())
}

/// Returns a `PATH` that names directories of the system alone, and none of the `writable` places.
pub fn system_path(writable: &[PathBuf]) -> OsString {
    let excluded = excluded_from_system(writable);
    let is_system =
        |directory: &PathBuf| directory.canonicalize().is_ok_and(|real| is_trusted(&real, &excluded));
    std::env::join_paths(directories().filter(is_system)).unwrap_or_default()
}

/// Returns the path of a program that the owner names. A name with a slash stays as it is; any other is
/// searched for in `PATH`, apart from directories that commands can write.
///
/// # Errors
/// When `PATH` has no such program.
pub fn find_in_path(name: &str, writable: &[PathBuf]) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    find_in(&path_without(writable), name, writable).ok_or_else(|| not_in_path(name))
}

/// Says that a program was not found.
pub fn not_in_path(name: &str) -> String {
    format!(
        "the program {name} is not in PATH, apart from directories that commands can write: install it, or write its whole path"
    )
}

/// Returns `PATH`, or the usual directories without it, less those that commands can write or lead elsewhere.
pub fn path_without(writable: &[PathBuf]) -> OsString {
    let usual = || std::env::join_paths(USUAL).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_else(usual);
    let directories = std::env::split_paths(&path).filter(|directory| is_out_of_reach(directory, writable));
    std::env::join_paths(directories).unwrap_or_default()
}

/// Returns the project that this process was started in, without symlinks: the nearest directory with a
/// repository, otherwise the current one. Programs in it are nobody's to start. `None` for the home directory
/// and what is above it.
pub fn current_project() -> Option<PathBuf> {
    let current = std::env::current_dir().ok()?.canonicalize().ok()?;
    let project = current.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&current);
    let is_above_home = homes().iter().any(|home| home.starts_with(project));
    (!is_above_home && project.parent().is_some()).then(|| project.to_owned())
}

fn directories() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.into_iter().chain(USUAL.map(PathBuf::from))
}

fn excluded_from_system(writable: &[PathBuf]) -> Vec<PathBuf> {
    let own = homes().into_iter().chain(std::env::current_dir()).filter(|own| own.parent().is_some());
    own.chain(writable.iter().cloned()).collect()
}

fn is_trusted(program: &Path, excluded: &[PathBuf]) -> bool {
    SYSTEM.iter().any(|system| program.starts_with(system))
        && !excluded.iter().any(|place| program.starts_with(place))
}

/// The program keeps its name in `PATH`: shims and virtual environments look at it.
fn find_in(path: &OsStr, name: &str, writable: &[PathBuf]) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let data = fs::metadata(path);
        data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
            && is_out_of_reach(path, writable)
    };
    std::env::split_paths(path).map(|directory| directory.join(name)).find(is_program)
}

/// True when neither the place nor a symlink on the way to it is where commands write.
fn is_out_of_reach(path: &Path, writable: &[PathBuf]) -> bool {
    let is_writable = |path: &PathBuf| writable.iter().any(|place| path.starts_with(place));
    resolve(path).is_some_and(|found| !found.links.iter().chain([&found.real]).any(is_writable))
}

/// Where a path leads, and the symlinks on its way.
pub(super) struct Resolved {
    pub(super) real: PathBuf,
    pub(super) links: Vec<PathBuf>,
}

/// Follows a path through every symlink; what does not exist stays as it is written. `None` for a circle of
/// links, and for a path that is not absolute.
pub(super) fn resolve(path: &Path) -> Option<Resolved> {
    let parts = |path: &Path| -> Vec<OsString> {
        let part = |part: Component<'_>| match part {
            Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
            _ => None,
        };
        path.components().rev().filter_map(part).collect()
    };
    let (mut real, mut links, mut rest) = (PathBuf::from("/"), Vec::new(), parts(path));
    while let Some(part) = rest.pop() {
        if part == OsStr::new("..") {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let Ok(target) = fs::read_link(&next) else {
            real = next;
            continue;
        };
        links.push(next);
        if links.len() > MOST_LINKS {
            return None;
        }
        if target.is_absolute() {
            real = "/".into();
        }
        rest.extend(parts(&target));
    }
    path.is_absolute().then_some(Resolved { real, links })
}

/// The home directories of this process's user, without symlinks: the one that the environment names, and the
/// account's.
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

    /// A directory of the workspace, a link in it, and a link to it are passed over; a link elsewhere keeps
    /// its name.
    #[test]
    fn a_named_program_is_out_of_commands_reach() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let work = root.join("work");
        for directory in ["work/bin", "own", "shims"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for program in ["work/bin/tool", "own/shim"] {
            fs::write(root.join(program), "").unwrap();
            fs::set_permissions(root.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(root.join("own/data"), "").unwrap();
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(root.join(to), root.join(at)).unwrap();
        link("own", "work/linked");
        link("work/bin", "lent");
        link("own/shim", "shims/tool");
        let path = |names: &[&str]| std::env::join_paths(names.iter().map(|name| root.join(name))).unwrap();
        let find = |names: &[&str], name| find_in(&path(names), name, std::slice::from_ref(&work));
        assert_eq!(find(&["work/bin", "work/linked", "lent"], "tool"), None);
        assert_eq!(find(&["work/linked"], "shim"), None);
        assert_eq!(find(&["work/bin", "shims"], "tool"), Some(root.join("shims/tool")));
        assert_eq!(find(&["own"], "data"), None, "it is no program");
        assert_eq!(find_in_path("./tool", &[work]), Ok("./tool".into()));
    }
}
