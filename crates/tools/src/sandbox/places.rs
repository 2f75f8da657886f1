//! Which files commands may reach beside the workspace: the system's, those of compilers and package managers, and the usual
//! caches. What may hold keys is not among them (`.ssh`, `.aws`, `.netrc`, cargo's credentials, respool's own files).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::config::LocalConfig;

/// The system's own, read-only.
const SYSTEM: [&str; 19] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
    "/snap",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
    "/run/current-system",
    "/run/wrappers",
    "/home/linuxbrew",
    "/var/lib/dpkg",
];
/// Devices that every program may use.
const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];
/// Below the home directory, read-only: toolchains and settings without keys.
const TOOLS: [&str; 30] = [
    ".rustup",
    ".nvm",
    ".fnm",
    ".volta",
    ".n",
    ".pyenv",
    ".rbenv",
    ".asdf",
    ".jenv",
    ".sdkman",
    ".deno",
    ".bun",
    ".dotnet",
    ".ghcup",
    ".opam",
    ".juliaup",
    ".julia",
    "go",
    ".local/bin",
    ".local/lib",
    ".local/share/mise",
    ".local/share/fnm",
    ".local/share/uv",
    ".local/share/pnpm",
    ".config/git/config",
    ".config/git/ignore",
    ".config/git/attributes",
    ".config/go",
    ".gitconfig",
    ".gitignore",
];
/// Below the home directory, with the network on: they say where packages come from.
const REGISTRIES: [&str; 6] = [".npmrc", ".yarnrc", ".yarnrc.yml", ".config/pip", ".pip", ".condarc"];
/// Below the home directory, writable.
const CACHES: [&str; 14] = [
    ".cache",
    ".npm",
    ".node-gyp",
    ".pnpm-store",
    ".local/share/pnpm/store",
    ".yarn",
    ".bun/install/cache",
    "go/pkg",
    ".gradle/caches",
    ".gradle/wrapper",
    ".gradle/daemon",
    ".gradle/native",
    ".m2/repository",
    ".nuget",
];
/// Of cargo's own directory: its credentials are not among them.
const CARGO_READ: [&str; 6] = ["bin", "config", "config.toml", "env", ".crates.toml", ".crates2.json"];
const CARGO_WRITTEN: [&str; 5] =
    ["registry", "git", ".package-cache", ".package-cache-mutate", ".global-cache"];
/// Variables that name a toolchain's directory, and those that name a cache.
const TOOL_VARIABLES: [&str; 11] = [
    "RUSTUP_HOME",
    "GOROOT",
    "GOPATH",
    "NVM_DIR",
    "PYENV_ROOT",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "JAVA_HOME",
    "ANDROID_HOME",
    "DOTNET_ROOT",
    "VOLTA_HOME",
];
const CACHE_VARIABLES: [&str; 9] = [
    "XDG_CACHE_HOME",
    "GOCACHE",
    "GOMODCACHE",
    "PIP_CACHE_DIR",
    "UV_CACHE_DIR",
    "NPM_CONFIG_CACHE",
    "npm_config_cache",
    "SCCACHE_DIR",
    "CARGO_TARGET_DIR",
];

/// Places beside the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    /// respool's own files.
    pub(super) own: Vec<PathBuf>,
}

impl Places {
    pub(super) fn find(config: &LocalConfig, workspace: &Path, network: bool) -> Self {
        let variable = |name: &str| std::env::var_os(name);
        let home = variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute() && home.is_dir());
        let mut places = Self::default();
        places.readable.extend(SYSTEM.map(PathBuf::from));
        places.readable.extend(
            ["/etc/resolv.conf", "/etc/localtime"].iter().filter_map(|file| fs::canonicalize(file).ok()),
        );
        places.writable.extend(DEVICES.map(PathBuf::from));
        if let Some(home) = &home {
            places.below_home(home, network);
        }
        places.by_variables(home.as_deref(), &variable);
        // Builds look at what is above them in the same repository.
        let above = workspace.ancestors().skip(1).find(|above| above.join(".git").exists());
        places.readable.extend(above.filter(|above| is_narrow(above, home.as_deref())).map(Path::to_owned));
        places.readable.extend(config.readable.iter().cloned());
        places.writable.extend(config.writable.iter().cloned());
        // A state directory around the workspace does not make the workspace respool's own.
        places.own.extend(config.own_files.iter().filter(|own| !workspace.starts_with(own)).cloned());
        places
    }

    fn below_home(&mut self, home: &Path, network: bool) {
        let _ = fs::create_dir(home.join(".cache"));
        if home.join(".cargo").is_dir() {
            self.cargo(&home.join(".cargo"));
        }
        self.readable.extend(TOOLS.iter().map(|name| home.join(name)));
        if network {
            self.readable.extend(REGISTRIES.iter().map(|name| home.join(name)));
        }
        let has_npm = ["/usr/bin/npm", "/usr/local/bin/npm"].iter().any(|npm| Path::new(npm).exists());
        if has_npm || home.join(".nvm").is_dir() {
            let _ = fs::create_dir(home.join(".npm"));
        }
        self.writable.extend(CACHES.iter().map(|name| home.join(name)));
    }

    /// cargo locks files in its own directory, so these have to be there.
    fn cargo(&mut self, directory: &Path) {
        for name in [".package-cache", ".package-cache-mutate", ".global-cache"] {
            let _ = fs::OpenOptions::new().create(true).append(true).open(directory.join(name));
        }
        for name in ["registry", "git"] {
            let _ = fs::create_dir(directory.join(name));
        }
        self.readable.extend(CARGO_READ.iter().map(|name| directory.join(name)));
        self.writable.extend(CARGO_WRITTEN.iter().map(|name| directory.join(name)));
    }

    fn by_variables(&mut self, home: Option<&Path>, variable: &impl Fn(&str) -> Option<OsString>) {
        let fitting = |names: &[&str]| -> Vec<PathBuf> {
            let paths = names.iter().filter_map(|name| variable(name)).map(PathBuf::from);
            paths.filter(|path| is_narrow(path, home)).collect()
        };
        self.readable.extend(fitting(&TOOL_VARIABLES));
        self.writable.extend(fitting(&CACHE_VARIABLES));
        for cargo in fitting(&["CARGO_HOME"]) {
            self.cargo(&cargo);
        }
        let path = variable("PATH").unwrap_or_default();
        let programs = std::env::split_paths(&path).filter(|directory| is_narrow(directory, home));
        self.readable.extend(programs.map(|directory| toolchain_of(&directory, home)));
    }
}

/// The whole of a toolchain whose programs are here; the directory alone where its parent holds more than that.
fn toolchain_of(programs: &Path, home: Option<&Path>) -> PathBuf {
    let is_bin = programs
        .file_name()
        .is_some_and(|name| ["bin", "sbin", "shims", "condabin"].iter().any(|known| name == *known));
    let parent = programs.parent().filter(|parent| is_bin && is_narrow(parent, home));
    let is_mixed = |parent: &Path| {
        home.is_some_and(|home| [".local", ".cargo", ".config"].iter().any(|name| parent == home.join(name)))
    };
    parent.filter(|parent| !is_mixed(parent)).unwrap_or(programs).to_owned()
}

/// False for the home directory, what is above it, and what is not absolute.
fn is_narrow(path: &Path, home: Option<&Path>) -> bool {
    let is_above = |home: &Path| home.starts_with(path);
    path.is_absolute() && path.parent().is_some() && !home.is_some_and(is_above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_is_more_than_its_programs_and_less_than_the_home() {
        let home = Some(Path::new("/home/me"));
        for (programs, expected) in [
            ("/home/me/miniconda3/bin", "/home/me/miniconda3"),
            ("/home/me/.cargo/bin", "/home/me/.cargo/bin"),
            ("/home/me/.local/bin", "/home/me/.local/bin"),
            ("/home/me/bin", "/home/me/bin"),
            ("/home/me/tools", "/home/me/tools"),
            ("/opt/x/bin", "/opt/x"),
        ] {
            assert_eq!(toolchain_of(Path::new(programs), home), Path::new(expected), "{programs}");
        }
        for path in ["/", "/home", "/home/me", "relative"] {
            assert!(!is_narrow(Path::new(path), home), "{path}");
        }
    }
}
