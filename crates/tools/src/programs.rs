//! The programs that respool starts itself, outside any sandbox. They are found once, by absolute path, and
//! never where a command could have put them: `PATH` may name a directory of the workspace (an activated
//! `.venv`, `node_modules/.bin`), and a program from there would run with all of respool's rights. What these
//! programs start gets a `PATH` without such directories, too. For MCP servers and alert programs the same
//! holds of the code that they run, their working directory and the caches from which they start others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// Directories of the system, which a user's commands cannot write.
const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/opt", "/nix", "/gnu", "/run/current-system", "/home/linuxbrew"];
/// The directories that are searched after `PATH`.
const USUAL: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
/// Endings of the names of files that interpreters run.
const CODE: &str = "py pyz pyw js mjs cjs jsx ts mts cts tsx rb pl php lua sh bash ps1 jar war wasm";
/// Files that describe the programs of a project.
const MANIFESTS: &str =
    "package.json pyproject.toml Cargo.toml deno.json deno.jsonc go.mod compose.yaml Makefile";
/// Programs that run what their first word names, whatever that is.
const INTERPRETERS: &str = "python pypy node nodejs deno bun bunx ruby perl php npm npx pnpm pnpx yarn uv uvx pipx go java dotnet sh bash dash zsh fish";
/// Words between such a program and that one.
const SUBCOMMANDS: [&str; 5] = ["run", "exec", "x", "dlx", "tool"];
/// Options of interpreters whose value is code; others are one letter among several (`-lc`).
const CODE_OPTIONS: [&str; 3] = ["--eval", "--print", "--command"];
const CODE_LETTERS: [char; 5] = ['c', 'e', 'E', 'p', 'r'];
/// Options that name a project from which a program is started.
const PROJECT_OPTIONS: [&str; 10] = [
    "--directory",
    "--prefix",
    "--project",
    "--cwd",
    "--dir",
    "-C",
    "--manifest-path",
    "--from",
    "--with-editable",
    "--package",
];
/// Variables by which programs find code.
const CODE_VARIABLES: &str = "\
    BASH_ENV CLASSPATH ENV GEM_HOME GEM_PATH JAVA_TOOL_OPTIONS LD_LIBRARY_PATH LD_PRELOAD LUA_PATH NODE_OPTIONS NODE_PATH PATH \
    PERL5LIB PERL5OPT PYTHONHOME PYTHONPATH PYTHONSTARTUP RUBYLIB RUBYOPT";
/// The caches of programs that start others from them, where commands write the usual one.
const CACHES: [&str; 13] = [
    "npm_config_cache",
    "npm_config_devdir",
    "npm_config_store_dir",
    "pnpm_config_store_dir",
    "BUN_INSTALL_CACHE_DIR",
    "DENO_DIR",
    "GOCACHE",
    "GOMODCACHE",
    "NUGET_PACKAGES",
    "PIP_CACHE_DIR",
    "UV_CACHE_DIR",
    "YARN_CACHE_FOLDER",
    "YARN_GLOBAL_FOLDER",
];
/// The most symlinks that a path may lead through; the kernel follows as many.
const MOST_LINKS: usize = 40;

/// Returns the absolute path, without symlinks, of a program of the system; `None` when there is none. It is
/// never below a home directory, the current directory or one of the `writable` places.
pub fn find_program(name: &str, writable: &[PathBuf]) -> Option<PathBuf> {
    let excluded = excluded_from_system(writable);
    let mut found = search_directories().filter_map(|directory| directory.join(name).canonicalize().ok());
    found.find(|program| is_trusted(program, &excluded) && program.is_file())
}

/// Returns a `PATH` that names directories of the system alone, and none of the `writable` places.
pub fn system_path(writable: &[PathBuf]) -> OsString {
    let excluded = excluded_from_system(writable);
    let is_system =
        |directory: &PathBuf| directory.canonicalize().is_ok_and(|real| is_trusted(&real, &excluded));
    std::env::join_paths(search_directories().filter(is_system)).unwrap_or_default()
}

/// A program that respool starts outside the sandbox, as the owner's configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The program's path and its arguments.
    pub line: Vec<String>,
    /// Where it starts.
    pub directory: PathBuf,
    /// Variables that name what it starts others from, for those that its configuration does not set itself.
    pub variables: Vec<(&'static str, OsString)>,
}

impl Started {
    /// Finds the program of a command line. Its working directory is respool's, unless commands write there;
    /// relative paths are then made absolute.
    ///
    /// # Errors
    /// When commands could have written the program or code that it runs.
    pub fn find(line: &[String], writable: &[PathBuf]) -> Result<Self, String> {
        let Some((name, arguments)) = line.split_first() else { return Err("it has no program".to_owned()) };
        let current = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let program = if name.contains('/') { current.join(name) } else { find_in_path(name, writable)? };
        let code = code_of(&program, arguments, &current);
        if let Some(code) = code.iter().find(|code| !is_out_of_reach(code, writable)) {
            return Err(format!(
                "{} is where commands write, and respool starts no code from there outside the sandbox: move it out of the workspace, \
                 of tools.local.writable and of the caches of compilers and package managers",
                code.display()
            ));
        }
        let is_safe = is_out_of_reach(&current, writable);
        let arguments =
            arguments.iter().map(|word| if is_safe { word.clone() } else { absolute(word, &current) });
        Ok(Self {
            line: std::iter::once(program.display().to_string()).chain(arguments).collect(),
            directory: if is_safe { current.clone() } else { "/".into() },
            variables: variables(writable),
        })
    }
}

/// Returns `PATH` without what commands write, and caches of their own for programs that start others from
/// caches: the usual ones hold what commands put there, those of another respool's too.
fn variables(writable: &[PathBuf]) -> Vec<(&'static str, OsString)> {
    let path = ("PATH", path_without(writable));
    let home = home_directories().into_iter().next();
    // This respool has no commands, so the person's cache may be one that none writes.
    let is_chosen = |name: &&str| writable.is_empty() && std::env::var_os(name).is_some();
    let cache = |name: &'static str| {
        let below = name.to_ascii_lowercase();
        home.as_ref().map(|home| (name, home.join(".cache/respool").join(below).into_os_string()))
    };
    std::iter::once(path)
        .chain(CACHES.into_iter().filter(|name| !is_chosen(name)).filter_map(cache))
        .collect()
}

/// Returns the files and directories whose code a command line runs, as far as its words say that.
fn code_of(program: &Path, arguments: &[String], current: &Path) -> Vec<PathBuf> {
    // Also those of a line for a shell.
    let words: Vec<&str> = arguments.iter().flat_map(|argument| argument.split_whitespace()).collect();
    // A path may have blanks.
    let whole = || arguments.iter().map(String::as_str);
    let values = || words.iter().copied().chain(whole()).map(|word| value_of(word).1);
    let directories = values().map(|value| current.join(value)).filter(|path| path.is_dir());
    let bases: Vec<PathBuf> = directories.chain([current.to_owned()]).collect();
    let files = values().flat_map(|value| bases.iter().map(move |base| base.join(value)));
    let all: Vec<&str> = program.to_str().into_iter().chain(words.iter().copied()).collect();
    let projects = (1..all.len()).filter(|place| is_project(&all, *place));
    let projects = projects.map(|place| Path::new(value_of(all[place]).1));
    let projects = projects.filter(|path| path.is_absolute() || current.join(path).exists());
    let projects = projects
        .map(|path| current.join(path))
        .chain(words.iter().filter_map(|word| path_behind_letter(word)));
    let named = named_in_code(program, arguments);
    files.filter(|path| is_code(path)).chain(projects).chain(named).chain([program.to_owned()]).collect()
}

/// Returns the path in `-I/path`, by which programs find code.
fn path_behind_letter(word: &str) -> Option<PathBuf> {
    let (letter, path) = word.strip_prefix('-')?.split_at_checked(1)?;
    (letter != "-" && path.starts_with('/')).then(|| path.into())
}

/// Returns the paths in code that an interpreter gets as an argument. Such code could do anything with them.
fn named_in_code(program: &Path, arguments: &[String]) -> Vec<PathBuf> {
    let is_option = |word: &str| {
        CODE_OPTIONS.contains(&word)
            || (word.starts_with('-') && !word.starts_with("--") && word.ends_with(CODE_LETTERS))
    };
    let programs = arguments.iter().map(Path::new);
    let start = std::iter::once(program).chain(programs).position(is_interpreter);
    // What comes behind a script is the script's.
    let behind = arguments.get(start.unwrap_or(usize::MAX)..).unwrap_or_default();
    let word = behind.iter().position(|word| !word.starts_with('-')).unwrap_or_default();
    let code = word.checked_sub(1).filter(|option| is_option(&behind[*option])).map_or("", |_| &behind[word]);
    let code = with_home(code);
    let fragments = code.split(|c: char| c.is_whitespace() || "\"'`()[]{},;=<>|&:+".contains(c));
    let home = home_directories().into_iter().next();
    let path = |text: &str| {
        let below = text.strip_prefix("~/");
        below.zip(home.as_ref()).map_or_else(|| text.into(), |(below, home)| home.join(below))
    };
    fragments.map(path).filter(|path: &PathBuf| path.is_absolute() && path.parent().is_some()).collect()
}

/// Writes `~` for the variable of the home directory.
fn with_home(text: &str) -> String {
    text.replace("${HOME}", "~").replace("$HOME", "~")
}

/// True for the value of an option that names a project, and for the first word after an interpreter.
fn is_project(words: &[&str], place: usize) -> bool {
    let is_named = |option: &str| PROJECT_OPTIONS.contains(&option);
    if value_of(words[place]).0.is_some_and(is_named) || is_named(words[place - 1]) {
        return true;
    }
    let is_own = |word: &&&str| !word.starts_with('-') && !SUBCOMMANDS.contains(*word);
    words[..place].iter().rfind(is_own).is_some_and(|before| is_interpreter(Path::new(before)))
}

fn is_interpreter(program: &Path) -> bool {
    let name = program.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.split(' ').any(|known| known == name)
}

/// The option and the value of `--option=value`; any other word is a value.
fn value_of(word: &str) -> (Option<&str>, &str) {
    let (option, value) = word.split_once('=').map_or((None, word), |(option, value)| (Some(option), value));
    (option, value.strip_prefix("file://").unwrap_or(value))
}

/// True for a file that an interpreter or the system runs, and for what describes a project's programs.
/// A file that is not there yet is judged by its name.
fn is_code(path: &Path) -> bool {
    let has = |names: &str, part: Option<&OsStr>| {
        names.split_ascii_whitespace().any(|name| part.is_some_and(|part| part.eq_ignore_ascii_case(name)))
    };
    let is_named = || has(CODE, path.extension()) || has(MANIFESTS, path.file_name());
    match fs::metadata(path) {
        Ok(data) => data.is_file() && (data.permissions().mode() & 0o111 != 0 || is_named()),
        Err(_) => is_named(),
    }
}

/// Makes the path in a word absolute, where it looks like one and leads somewhere.
fn absolute(word: &str, current: &Path) -> String {
    let (option, value) = value_of(word);
    let path = current.join(value);
    let is_path = value.contains('/') || [".", ".."].contains(&value) || path.is_file();
    if !is_path || !path.exists() {
        return word.to_owned();
    }
    option.map_or_else(|| path.display().to_string(), |option| format!("{option}={}", path.display()))
}

/// Returns the path of a program that the owner names, searched for in `PATH` apart from directories that
/// commands can write. A name with a slash stays as it is.
///
/// # Errors
/// When `PATH` has no such program.
pub fn find_in_path(name: &str, writable: &[PathBuf]) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    find_in(&path_without(writable), name, writable).ok_or_else(|| {
        format!(
            "the program {name} is not in PATH, apart from directories that commands can write: install it, or write its whole path"
        )
    })
}

/// Returns `PATH`, or the usual directories without it, less those that commands can write or lead elsewhere.
pub fn path_without(writable: &[PathBuf]) -> OsString {
    let usual = || std::env::join_paths(USUAL).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_else(usual);
    let directories = std::env::split_paths(&path).filter(|directory| is_out_of_reach(directory, writable));
    std::env::join_paths(directories).unwrap_or_default()
}

/// Returns the project that this process was started in, without symlinks: the nearest directory with a
/// repository, otherwise the current one. respool starts no programs from it. `None` for the home directory
/// and its parents.
pub fn current_project() -> Option<PathBuf> {
    let current = std::env::current_dir().ok()?.canonicalize().ok()?;
    let project = current.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&current);
    let is_above_home = home_directories().iter().any(|home| home.starts_with(project));
    (!is_above_home && project.parent().is_some()).then(|| project.to_owned())
}

fn search_directories() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.into_iter().chain(USUAL.map(PathBuf::from))
}

fn excluded_from_system(writable: &[PathBuf]) -> Vec<PathBuf> {
    let own =
        home_directories().into_iter().chain(std::env::current_dir()).filter(|own| own.parent().is_some());
    own.chain(writable.iter().cloned()).collect()
}

fn is_trusted(program: &Path, excluded: &[PathBuf]) -> bool {
    SYSTEM.iter().any(|system| program.starts_with(system))
        && !excluded.iter().any(|place| program.starts_with(place))
}

/// Finds a program. It keeps its path as named in `PATH`, because shims and virtual environments depend on
/// it.
fn find_in(path: &OsStr, name: &str, writable: &[PathBuf]) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| is_executable(path) && is_out_of_reach(path, writable);
    std::env::split_paths(path).map(|directory| directory.join(name)).find(is_program)
}

pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Returns true for the value of a variable that is a path, or paths, at which commands can write.
pub fn leads_to_writable(value: &OsStr, writable: &[PathBuf]) -> bool {
    std::env::split_paths(value).any(|path| path.is_absolute() && !is_out_of_reach(&path, writable))
}

/// Returns the paths in a text, `-I/srv/lib` and `a:~/b` as well.
pub(crate) fn paths_in(text: &str) -> Vec<PathBuf> {
    let text = &*with_home(text);
    let current = std::env::current_dir().unwrap_or_default();
    let home = std::env::home_dir().unwrap_or_default();
    let words = text.split(|c: char| c.is_whitespace() || "\"'`:;,=|&<>()".contains(c));
    // A path may have any of these.
    let longer =
        text.split(':').flat_map(|part| [part, part.split_once('=').map_or(part, |(_, value)| value)]);
    let path = |word: &str| {
        let path = word.find(['/', '~']).filter(|_| word.starts_with('-')).map_or(word, |at| &word[at..]);
        let path = match path.strip_prefix("~/") {
            Some(below) => home.join(below),
            None => current.join(path),
        };
        (word.contains('/') || path.is_file()).then_some(path)
    };
    words.chain(longer).chain([text]).filter_map(path).collect()
}

/// Checks that no variable of a server's own names code where commands write, or a directory above that.
///
/// # Errors
/// The first that does.
pub(crate) fn check_variables<'a>(
    variables: impl Iterator<Item = (&'a str, &'a str)>,
    writable: &[PathBuf],
) -> Result<(), String> {
    let current = std::env::current_dir().unwrap_or_default();
    let is_around = |path: &Path| {
        path.canonicalize().is_ok_and(|real| writable.iter().any(|place| place.starts_with(&real)))
    };
    for (name, value) in
        variables.filter(|(name, _)| CODE_VARIABLES.split_ascii_whitespace().any(|known| known == *name))
    {
        let there = std::env::split_paths(value).map(|path| current.join(path)).filter(|path| path.exists());
        if paths_in(value)
            .into_iter()
            .chain(there)
            .any(|path| is_around(&path) || !is_out_of_reach(&path, writable))
        {
            return Err(format!(
                "its variable {name} names code where commands write, or above that, and respool starts no code from there outside \
                 the sandbox: move it elsewhere"
            ));
        }
    }
    Ok(())
}

/// Returns true if commands can write neither the place nor a symlink on the way to it.
fn is_out_of_reach(path: &Path, writable: &[PathBuf]) -> bool {
    let is_writable = |path: &Path| writable.iter().any(|place| path.starts_with(place));
    let is_in_writable = |left: &PathBuf| left.parent().is_some_and(is_writable);
    resolve_symlinks(path).is_some_and(|found| {
        !found.links.iter().chain([&found.real]).any(|way| is_writable(way))
            && !found.left.iter().any(is_in_writable)
    })
}

/// The target of a path, and the symlinks on the way to it.
pub(super) struct Resolved {
    pub(super) real: PathBuf,
    pub(super) links: Vec<PathBuf>,
    /// The directories that a `..` leaves: with another one in its place, the path leads elsewhere.
    pub(super) left: Vec<PathBuf>,
}

/// Follows every symlink of a path; parts that do not exist stay. `None` for a circle of links, a way on
/// which a path is too long, and a relative path.
pub(super) fn resolve_symlinks(path: &Path) -> Option<Resolved> {
    let parts = |path: &Path| -> Vec<OsString> {
        let part = |part: Component<'_>| match part {
            Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
            _ => None,
        };
        path.components().rev().filter_map(part).collect()
    };
    let (mut real, mut rest) = (PathBuf::from("/"), parts(path));
    let (mut links, mut left) = (Vec::new(), Vec::new());
    while let Some(part) = rest.pop() {
        if part == OsStr::new("..") {
            left.push(real.clone());
            real.pop();
            continue;
        }
        let next = real.join(part);
        let target = match fs::read_link(&next) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return None,
            Err(_) => {
                real = next;
                continue;
            }
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
    path.is_absolute().then_some(Resolved { real, links, left })
}

/// Returns the home directories of this process's user, without symlinks: the one in the environment, and
/// the account's.
pub(super) fn home_directories() -> Vec<PathBuf> {
    let account = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir);
    let named = std::env::var_os("HOME").map(PathBuf::from);
    let homes = named.into_iter().chain(account).filter_map(|home| home.canonicalize().ok());
    let mut homes: Vec<PathBuf> = homes.filter(|home| home.is_dir() && home.parent().is_some()).collect();
    homes.dedup();
    homes
}

/// Returns true for a directory that is a home directory of the user or holds one: it has keys in it.
pub fn holds_home(directory: &Path) -> bool {
    home_directories().iter().any(|home| home.starts_with(directory))
}

/// Returns the directories of the user's settings.
pub(super) fn config_directories() -> Vec<PathBuf> {
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.into_iter().chain(home_directories().into_iter().map(|home| home.join(".config"))).collect()
}

/// Returns the files that may hold git's settings for the user and the system.
pub(super) fn gits_own_settings() -> Vec<PathBuf> {
    let named = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].into_iter().filter_map(std::env::var_os);
    let of_user = home_directories().into_iter().map(|home| home.join(".gitconfig"));
    let usual = config_directories().into_iter().map(|directory| directory.join("git/config"));
    let of_system = ["/etc", "/usr/local/etc", "/opt/homebrew/etc", "/home/linuxbrew/.linuxbrew/etc"];
    let of_system = of_system.map(|directory| Path::new(directory).join("gitconfig"));
    named.map(PathBuf::from).chain(of_user).chain(usual).chain(of_system).collect()
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

    /// The search skips a directory of the workspace, a link in it and a link to it; a link elsewhere keeps
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

    fn started(line: &[&str], writable: &Path) -> Result<Started, String> {
        let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        Started::find(&line, &[writable.to_owned()])
    }

    /// Code is not started where commands write; data there is no matter.
    #[test]
    fn code_where_commands_write_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().canonicalize().unwrap();
        for directory in ["srv", "project", "notes", ".venv/bin"] {
            fs::create_dir_all(work.join(directory)).unwrap();
        }
        for file in ["top.py", "srv/server.js", "data.db", "project/package.json", ".venv/bin/python"] {
            fs::write(work.join(file), "").unwrap();
        }
        fs::set_permissions(work.join(".venv/bin/python"), fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| work.join(name).display().to_string();
        for line in [
            &["sh", &at("top.py")][..],
            &["env", "node", &at("srv/server.js")],
            &["sh", &format!("-I{}", at("srv")), "-MServer"],
            &["env", &format!("-C{}", work.display()), "sh"],
            &["sh", "--directory", &at("srv"), "run", "server.js"],
            &["env", &format!("--prefix={}", at("project")), "start"],
            &["env", "--directory", &at("notes"), "-m", "x"],
            &["env", "node", &at("srv")],
            &["bash", &at("data.db")],
            &["env", "deno", "run", &format!("file://{}", at("top.py"))],
            &["sh", "-c", &format!("cd {} && exec node server.js", at("srv"))],
            &["env", "go", "run", &at("project")],
            &["env", "uvx", "--from", &at("notes"), "x"],
            &["env", "--manifest-path", &at("project/package.json")],
            &[&at(".venv/bin/python"), "-m", "x"],
            &["env", "node", &at("later")],
            &["env", "x", &at("later.py")],
            &["python3", "-c", &format!("exec(open('{}').read())", at("data.db"))],
            &["env", "perl", "-ne", &format!("do'{}'", at("data.db"))],
            &["env", "node", "--eval", &format!("require(`{}`)", at("later"))],
        ] {
            let why = started(line, &work).unwrap_err();
            assert!(why.contains("is where commands write"), "{line:?}: {why}");
            assert!(started(line, &work.join("elsewhere")).is_ok(), "{line:?}");
        }
        let home = home_directories().remove(0);
        for code in ["~/server.py", "$HOME/server.py", "${HOME}/server.py"] {
            let why = started(&["bash", "-c", &format!("exec python3 {code}")], &home);
            assert!(why.is_err(), "{code}");
        }
        let left = format!("{}/srv/../../server.py", work.display());
        assert!(started(&["python3", &left], &work).is_err(), "another directory may be in its place");
        for line in [
            &["env", "server", &at("notes")][..],
            &["env", "--db", &at("data.db")],
            &["env", "-e", &at("data.db"), "python3", "-c", "import server", &at("data.db")],
            &["env", "uvx", "mcp-server-git", "-r", &at("notes")],
            &["env", &at("")],
            &["env", "npx", "-y", "server", &at("project")],
        ] {
            assert_eq!(started(line, &work).unwrap().line[1..], line[1..], "{line:?}");
        }
    }

    #[test]
    fn no_variable_of_a_server_names_code_of_commands() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().canonicalize().unwrap().join("my work");
        fs::create_dir_all(work.join("lib")).unwrap();
        let at = work.display().to_string();
        let check = |name: &str, value: &str| {
            check_variables([(name, value)].into_iter(), std::slice::from_ref(&work))
        };
        for value in
            [&at, &format!("/x:{at}/lib"), &format!("--require {at}/lib/x.js"), &format!("{at}/.."), "/"]
        {
            assert!(check("NODE_OPTIONS", value).is_err() || check("PYTHONPATH", value).is_err(), "{value}");
        }
        assert!(check("PYTHONPATH", "/usr/lib:lib").is_ok() && check("DATA_PATH", &at).is_ok());
        // A path may have blanks.
        fs::write(work.join("server.py"), "").unwrap();
        assert!(started(&["python3", &format!("{at}/server.py")], &work).is_err());
    }

    /// Modules are found in the working directory, and packages in caches that commands write.
    #[test]
    fn a_program_starts_out_of_commands_reach() {
        let current = std::env::current_dir().unwrap();
        let inside = started(&["env", "-y", ".", "--x=./src", "src", "x/y"], &current).unwrap();
        let source = current.join("./src").display().to_string();
        assert_eq!(
            inside.line[1..],
            ["-y", &current.join(".").display().to_string(), &format!("--x={source}"), "src", "x/y"]
        );
        assert_eq!(inside.directory, Path::new("/"));
        assert!(inside.variables.iter().any(|(name, _)| *name == "npm_config_cache"));
        let outside = started(&["env", "."], Path::new("/nowhere")).unwrap();
        assert_eq!((&outside.line[1..], outside.directory), (&[".".to_owned()][..], current));
        // Those of another respool write the usual caches.
        let without_commands = Started::find(&["env".to_owned()], &[]).unwrap();
        assert!(without_commands.variables.iter().any(|(name, _)| *name == "UV_CACHE_DIR"));
    }
}
