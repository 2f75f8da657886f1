//! Which files commands may reach beside the workspace: the system's, those of compilers and package
//! managers, and caches. What may hold keys is not among them (`.ssh`, `.aws`, `.netrc`, cargo's credentials,
//! respool's own files).
//!
//! Places are found once, without symlinks. A name that leads through what commands may write is no place:
//! they could lead it elsewhere. The home directory is left out of every place that contains it, and
//! directories of `PATH` out of writable ones.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::config::LocalConfig;
use super::super::programs::{Resolved, gits_own_settings, home_directories, resolve_symlinks};
use super::obeyed::named_by_configuration;

/// The system's own, read-only.
const SYSTEM: &str = "\
    /usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc /opt /nix /gnu /snap /proc /sys \
    /run/systemd/resolve /run/current-system /run/wrappers /home/linuxbrew /var/lib/dpkg";
/// Below the home directory, read-only: toolchains and settings.
const TOOLS: &str = "\
    .rustup .nvm .fnm .volta .n .pyenv .rbenv .asdf .jenv .sdkman .deno .bun .dotnet/dotnet \
    .dotnet/host .dotnet/packs .dotnet/sdk .dotnet/sdk-manifests .dotnet/shared .dotnet/tools .ghcup .opam .juliaup \
    .julia/artifacts .julia/compiled .julia/environments .julia/juliaup .julia/packages .julia/registries go \
    .local/bin .local/lib .local/share/mise .local/share/fnm .local/share/uv/python .local/share/uv/tools \
    .local/share/pnpm .config/git/ignore .config/git/attributes .config/go .gitignore";
/// Below the home directory, with the network on: they say where packages come from.
const REGISTRIES: &str = ".npmrc .yarnrc .yarnrc.yml .config/pip .pip .condarc";
/// Below the directory of caches, writable: what a package manager or compiler keeps for itself, and no shell
/// or editor runs.
const CACHES: &str = "\
    pip pdm pypoetry/cache pypoetry/artifacts yarn node-gyp turbo deno zig \
    ccache sccache huggingface/datasets huggingface/hub huggingface/modules torch matplotlib";
/// Below the directory of caches, read-only: programs that people start too.
const CACHED_PROGRAMS: &str = "node/corepack ms-playwright puppeteer Cypress pypoetry/virtualenvs pre-commit";
/// Below the home directory, writable.
const HOME_CACHES: &str = "\
    .npm/_cacache .node-gyp .pnpm-store .local/share/pnpm/store .yarn/berry/cache \
    .bun/install/cache go/pkg/sumdb .gradle/caches .gradle/wrapper .gradle/daemon \
    .gradle/native .m2/repository .nuget/packages";
const PNPM_STORE: &str = ".local/share/pnpm/store";
/// Stores whose files are also those of programs in `PATH`, if the person has such.
const OF_PROGRAMS: [(&str, &str); 3] = [
    (PNPM_STORE, ".local/share/pnpm/global"),
    (".pnpm-store", ".local/share/pnpm/global"),
    (".bun/install/cache", ".bun/install/global"),
];
/// Go's outputs of commands: by a link in the person's, their own Go would write what it leads to.
const GO_CACHE: &str = ".cache/respool-commands/go-build";
/// Caches whose programs make links in them.
const WITH_LINKS: &str = "git .pnpm-store .local/share/pnpm/store .bun/install/cache";
/// Go's modules, and the repositories among them, whose configuration starts programs.
const GO_MODULES: &str = "go/pkg/mod";
const GO_REPOSITORIES: &str = "cache/vcs";
/// Caches that are made if their program is there, so that they outlive a command.
const MADE: [(&str, &str); 4] =
    [("pip3", ".cache/pip"), ("npm", ".npm/_cacache"), ("pnpm", PNPM_STORE), ("go", GO_CACHE)];
/// Of cargo's own directory: its credentials are not among them.
const CARGO_READ: &str = "bin env config config.toml .crates.toml .crates2.json";
const CARGO_WRITTEN: &str = "registry git";
const CARGO_LOCKS: &str = ".package-cache .package-cache-mutate .global-cache";
/// Variables that name a toolchain's directory, and those that name a cache.
const TOOL_VARIABLES: &str = "\
    RUSTUP_HOME GOROOT GOPATH NVM_DIR PYENV_ROOT VIRTUAL_ENV CONDA_PREFIX JAVA_HOME ANDROID_HOME \
    DOTNET_ROOT VOLTA_HOME";
const CACHE_VARIABLES: &str = "GOCACHE PIP_CACHE_DIR SCCACHE_DIR CARGO_TARGET_DIR";

/// Places beside the workspace, without symlinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    /// Of these, the ones that the configuration names.
    pub(super) configured: Vec<PathBuf>,
    /// Directories whose other contents are hidden where that is possible.
    pub(super) scratch: Vec<PathBuf>,
    /// respool's own files.
    pub(super) own: Vec<PathBuf>,
    /// Those with keys and conversations, and the directories that hold some.
    pub(super) private: Vec<PathBuf>,
    pub(super) made: Made,
}

/// Returns true for a directory of the system, where no person keeps keys.
pub(super) fn is_of_system(place: &Path) -> bool {
    words(SYSTEM).any(|system| place.starts_with(system))
}

impl Places {
    /// Returns a variable that names pnpm's store, if that is there and the person has named none. Without
    /// it, pnpm makes one on the workspace's mount, and refuses projects that were installed from another.
    pub(super) fn pnpm_store(&self) -> Option<(&'static str, &PathBuf)> {
        const NAME: &str = "pnpm_config_store_dir";
        let store = self.writable.iter().find(|place| place.ends_with(PNPM_STORE) && place.is_dir())?;
        std::env::var_os(NAME).is_none().then_some((NAME, store))
    }

    /// Returns Go's cache for commands as a variable, if that is there and the person has named none.
    pub(super) fn go_cache(&self) -> Option<(&'static str, &PathBuf)> {
        const NAME: &str = "GOCACHE";
        let cache = self.writable.iter().find(|place| place.ends_with(GO_CACHE) && place.is_dir())?;
        std::env::var_os(NAME).is_none().then_some((NAME, cache))
    }

    /// Returns the caches in which commands make no links, by which the person's own programs would write
    /// elsewhere. It has no effect below a directory that is empty for each command.
    pub(super) fn without_links(&self) -> Vec<PathBuf> {
        let has_links = |place: &PathBuf| words(WITH_LINKS).any(|name| place.ends_with(name));
        let has_none = |place: &&PathBuf| !self.configured.contains(place) && !has_links(place);
        self.writable.iter().filter(has_none).cloned().collect()
    }

    /// Finds the places of commands in this workspace.
    pub(super) fn find(config: &LocalConfig, workspace: &Path, network: bool) -> Self {
        let homes = home_directories();
        let named = Named::new(config, workspace, homes.first().map(PathBuf::as_path), network);
        let writable: Vec<Resolved> =
            named.writable.iter().filter_map(|path| resolve_symlinks(path)).collect();
        let changeable: Vec<PathBuf> =
            writable.iter().map(|place| place.real.clone()).chain([workspace.to_owned()]).collect();
        let is_place = |place: &Resolved| {
            let is_changeable = |link: &PathBuf| changeable.iter().any(|place| link.starts_with(place));
            // The launcher gets places as text.
            place.real.to_str().is_some()
                && !place.real.starts_with(workspace)
                && !place.links.iter().any(is_changeable)
        };
        let real = |places: Vec<Resolved>| -> Vec<PathBuf> {
            places.into_iter().filter(is_place).map(|place| place.real).collect()
        };
        let resolved = |paths: &[PathBuf]| paths.iter().filter_map(|path| resolve_symlinks(path)).collect();
        let programs = named.programs.iter().filter_map(|path| path.canonicalize().ok());
        let programs: Vec<PathBuf> = programs.filter(|path| !path.starts_with(workspace)).collect();
        // A home that the configuration names as a place is one.
        let explicit: Vec<PathBuf> = config
            .readable
            .iter()
            .chain(&config.writable)
            .filter_map(|path| path.canonicalize().ok())
            .collect();
        let is_private = |place: &PathBuf| !explicit.contains(place) && !workspace.starts_with(place);
        let homes: Vec<PathBuf> = homes.iter().filter(|home| !explicit.contains(home)).cloned().collect();
        let own = config.own_files.iter().filter_map(|own| resolve_symlinks(own)).map(|own| own.real);
        let hidden = config.hidden.iter().filter_map(|place| resolve_symlinks(place)).map(|place| place.real);
        let private: Vec<PathBuf> = hidden.filter(is_private).collect();
        Self {
            readable: without_all(real(resolved(&named.readable)), &homes),
            writable: without_all(without_all(real(writable), &homes), &programs),
            configured: real(resolved(&config.writable)),
            scratch: real(resolved(&named.scratch)),
            // A state directory around the workspace does not make the workspace respool's own.
            own: own.filter(|own| !workspace.starts_with(own)).collect(),
            private,
            made: named.made,
        }
    }

    /// Finds a file of respool's own, or a link to one, where commands write, and says so.
    pub(super) fn find_exposed(&self, config: &LocalConfig, workspace: &Path) -> Option<String> {
        let places = || self.writable.iter().map(PathBuf::as_path).chain([workspace]);
        let found = |own: PathBuf| places().find(|place| own.starts_with(place)).map(|place| (own, place));
        let links = config.hidden.iter().filter_map(|own| resolve_symlinks(own)).flat_map(|own| own.links);
        let (own, place) = self.private.iter().cloned().chain(links).find_map(found)?;
        let (own, place) = (own.display(), place.display());
        Some(format!(
            "{own} belongs to respool, and is in {place}, which commands write: move one of them elsewhere"
        ))
    }
}

/// Places by the names that lists, variables and the configuration give them.
#[derive(Default)]
struct Named {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    scratch: Vec<PathBuf>,
    /// The directories of `PATH`.
    programs: Vec<PathBuf>,
    made: Made,
}

/// Caches and their locks, which commands need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Made {
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    /// Makes what is missing, before a command that may write there. Where that fails, each command begins
    /// with an empty cache.
    pub(super) fn make_missing(&self) {
        for directory in &self.directories {
            let _ = fs::create_dir_all(directory);
        }
        for file in &self.files {
            let _ = fs::OpenOptions::new().create(true).append(true).open(file);
        }
    }
}

impl Named {
    fn new(config: &LocalConfig, workspace: &Path, home: Option<&Path>, network: bool) -> Self {
        let variable = |name: &str| std::env::var_os(name);
        let mut named = Self::default();
        named.readable.extend(words(SYSTEM).map(PathBuf::from));
        named.readable.extend(["/etc/resolv.conf", "/etc/localtime"].map(PathBuf::from));
        let path = variable("PATH").unwrap_or_default();
        named.programs = std::env::split_paths(&path).filter(|path| path.is_absolute()).collect();
        if let Some(home) = home {
            named.below_home(home, network);
        }
        named.by_variables(home, &|name| {
            variable(name).filter(|value| !Path::new(value).starts_with(workspace))
        });
        // Builds look at what is above them in the same repository.
        let above = workspace.ancestors().skip(1).find(|above| above.join(".git").exists());
        named.readable.extend(above.filter(|above| is_narrow(above, home)).map(Path::to_owned));
        named.readable.extend(config.readable.iter().cloned());
        named.writable.extend(config.writable.iter().cloned());
        named
    }

    fn below_home(&mut self, home: &Path, network: bool) {
        for (program, cache) in MADE {
            if self.programs.iter().any(|directory| directory.join(program).exists()) {
                self.made.directories.push(home.join(cache));
            }
        }
        let cargo = home.join(".cargo");
        if cargo.is_dir() || self.programs.iter().any(|directory| directory.join("cargo").exists()) {
            self.cargo(&cargo);
        }
        self.readable.extend(below(home, TOOLS));
        // With what these include.
        let of_git = named_by_configuration(gits_own_settings(), Path::new(""), Some(home));
        let of_git = of_git.into_iter().filter(|place| place.is_absolute());
        self.readable.extend(of_git);
        if network {
            self.readable.extend(below(home, REGISTRIES));
        }
        self.scratch.push(home.join(".npm"));
        self.go_modules(home.join(GO_MODULES));
        self.writable.push(home.join(GO_CACHE));
        let of_programs = |cache: &&str| {
            OF_PROGRAMS.iter().any(|(store, programs)| cache == store && home.join(programs).exists())
        };
        self.writable.extend(words(HOME_CACHES).filter(|cache| !of_programs(cache)).map(|it| home.join(it)));
    }

    /// Each command has its own repositories of modules: they would be configured by one and used by others.
    fn go_modules(&mut self, directory: PathBuf) {
        let repositories = directory.join(GO_REPOSITORIES);
        self.made.directories.extend(directory.is_dir().then(|| repositories.clone()));
        self.scratch.push(repositories);
        self.writable.push(directory);
    }

    /// cargo locks files in its own directory, so these have to be there.
    fn cargo(&mut self, directory: &Path) {
        self.made.files.extend(below(directory, CARGO_LOCKS));
        self.made.directories.extend(below(directory, CARGO_WRITTEN));
        self.readable.extend(below(directory, CARGO_READ));
        self.writable.extend(below(directory, CARGO_WRITTEN).chain(below(directory, CARGO_LOCKS)));
    }

    fn by_variables(&mut self, home: Option<&Path>, variable: &impl Fn(&str) -> Option<OsString>) {
        let fitting = |names: &'static str| -> Vec<PathBuf> {
            let paths = words(names).filter_map(variable).map(PathBuf::from);
            paths.filter(|path| is_narrow(path, home)).collect()
        };
        self.readable.extend(fitting(TOOL_VARIABLES));
        self.writable.extend(fitting(CACHE_VARIABLES));
        for cargo in fitting("CARGO_HOME") {
            self.cargo(&cargo);
        }
        for modules in fitting("GOMODCACHE") {
            self.go_modules(modules);
        }
        let npm = fitting("NPM_CONFIG_CACHE npm_config_cache");
        self.writable.extend(npm.iter().map(|npm| npm.join("_cacache")));
        let caches = fitting("XDG_CACHE_HOME").into_iter().chain(home.map(|home| home.join(".cache")));
        for caches in caches {
            self.writable.extend(below(&caches, CACHES));
            self.readable.extend(below(&caches, CACHED_PROGRAMS));
            self.scratch.push(caches);
        }
        let programs = self.programs.iter().filter(|directory| is_narrow(directory, home));
        let toolchains: Vec<PathBuf> = programs.map(|directory| toolchain_of(directory, home)).collect();
        self.readable.extend(toolchains);
    }
}

fn words(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.split_ascii_whitespace()
}

fn below(directory: &Path, names: &'static str) -> impl Iterator<Item = PathBuf> {
    words(names).map(|name| directory.join(name))
}

/// Places without what lies in them and is not to be reached.
pub(super) fn without_all(places: Vec<PathBuf>, left_out: &[PathBuf]) -> Vec<PathBuf> {
    let places: BTreeSet<PathBuf> = places.into_iter().collect();
    left_out.iter().fold(places.into_iter().collect(), |places: Vec<PathBuf>, left_out| {
        places.into_iter().flat_map(|place| without(place, left_out)).collect()
    })
}

/// A place, or where it holds the directory that is left out, what lies beside the way to that.
fn without(place: PathBuf, left_out: &Path) -> Vec<PathBuf> {
    let Ok(below) = left_out.strip_prefix(&place) else { return vec![place] };
    let Some(first) = below.components().next() else { return Vec::new() };
    let on_the_way = place.join(first);
    let entries = fs::read_dir(&place).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_beside = |entry: &PathBuf| *entry != on_the_way && entry.to_str().is_some();
    let mut beside: Vec<PathBuf> = entries.filter(is_beside).collect();
    if on_the_way != left_out {
        beside.extend(without(on_the_way, left_out));
    }
    beside
}

/// The whole of a toolchain whose programs are here; the directory alone where its parent holds more than
/// that.
fn toolchain_of(programs: &Path, home: Option<&Path>) -> PathBuf {
    let is_bin = programs
        .file_name()
        .is_some_and(|name| ["bin", "sbin", "shims", "condabin"].iter().any(|known| name == *known));
    let parent = programs.parent().filter(|parent| is_bin && is_narrow(parent, home));
    // `~/.docker`, for one, holds keys and programs.
    let is_mixed = |parent: &Path| {
        let name = home.and_then(|home| parent.strip_prefix(home).ok()).and_then(Path::to_str);
        name.is_some_and(|name| {
            name.starts_with('.') && !name.contains('/') && !words(TOOLS).any(|tool| tool == name)
        })
    };
    // A project has its own `bin`.
    let is_toolchain = |parent: &Path| {
        let has = |name: &str| parent.join(name).exists();
        (has("lib") || has("pyvenv.cfg")) && !has(".git")
    };
    parent.filter(|parent| !is_mixed(parent) && is_toolchain(parent)).unwrap_or(programs).to_owned()
}

/// False for the home directory, what is above it, and what is not absolute.
fn is_narrow(path: &Path, home: Option<&Path>) -> bool {
    let is_above = |home: &Path| home.starts_with(path);
    path.is_absolute() && path.parent().is_some() && !home.is_some_and(is_above)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a chat made the caches of programs in a home that had none, before any command.
    #[test]
    fn caches_are_made_for_commands_alone() {
        let home = tempfile::tempdir().unwrap();
        let cargo = home.path().join(".cargo");
        fs::create_dir(&cargo).unwrap();
        let mut named = Named::default();
        named.below_home(home.path(), false);
        assert_eq!(fs::read_dir(&cargo).unwrap().count(), 0);
        named.made.make_missing();
        assert!(cargo.join("registry").is_dir() && cargo.join(".package-cache").is_file());
    }

    /// A command replaced a link to the clients' keys.
    #[test]
    fn links_to_own_files_are_exposed() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let (keys, work) = (top.join("keys.toml"), top.join("work"));
        fs::create_dir(&work).unwrap();
        fs::write(&keys, "").unwrap();
        std::os::unix::fs::symlink(&keys, work.join("keys.toml")).unwrap();
        let found = |hidden| {
            let config = LocalConfig { hidden: vec![hidden], ..LocalConfig::default() };
            Places::default().find_exposed(&config, &work)
        };
        assert!(found(work.join("keys.toml")).is_some_and(|why| why.contains("work/keys.toml")));
        assert_eq!(found(keys), None);
    }

    #[test]
    fn a_toolchain_includes_its_files_but_not_the_home() {
        let folder = tempfile::tempdir().unwrap();
        let home = Some(folder.path());
        for directory in
            ["miniconda3/lib", ".docker/lib", ".deno/lib", "lib", "project/lib/x", "project/.git"]
        {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        for (programs, expected) in [
            ("miniconda3/bin", "miniconda3"),
            (".cargo/bin", ".cargo/bin"),
            (".local/bin", ".local/bin"),
            (".docker/bin", ".docker/bin"),
            (".deno/bin", ".deno"),
            ("bin", "bin"),
            ("tools", "tools"),
            ("project/bin", "project/bin"),
        ] {
            let programs = folder.path().join(programs);
            assert_eq!(toolchain_of(&programs, home), folder.path().join(expected), "{}", programs.display());
        }
        for path in ["/", "/home", "/home/me", "relative"] {
            assert!(!is_narrow(Path::new(path), Some(Path::new("/home/me"))), "{path}");
        }
    }
}
