//! Settings that other programs obey without being started by the person: their names, what they name, and
//! where they are links. Called by `protected`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;

use super::super::programs::home_directories;
use super::handles::read_small;

/// Settings that programs obey on their own, at the top of the workspace and of each repository: these names,
/// alone or with an ending (`.envrc.local`).
const OBEYED: &str = "\
    .amazonq .aider .amp .augment .claude .clinerules .codex .config .continue .crush .cursor .cursorrules .devcontainer \
    .dir-locals .dir-locals-2 .direnv .envrc .exrc .factory .fleet .gemini .githooks .goosehints .gvimrc .helix .hg .husky \
    .idea .ideavimrc .jj .junie .kilocode .kiro .lazy .lefthook .lefthook-local .mcp .mise .nvim .nvimrc .opencode \
    .pre-commit-config .qwen respool.toml .roo .roomodes .sl .trae .vim .vimrc .vscode .windsurf .windsurfrules .zed";
/// The same, for files of settings: what may follow these names ends with one of the endings.
const OBEYED_FILES: &str = "mise lefthook opencode crush AGENTS AGENT CLAUDE GEMINI QWEN";
const ENDINGS: &str = "toml yml yaml json jsonc md";
/// The end of the name of settings that a command made.
pub(super) const RENAMED: &str = ".made-by-a-command";
/// Of a word of settings, no more ends are looked up.
pub(super) const MOST_PARTS: usize = 16;
/// A longer word names nothing.
pub(super) const LONGEST_PATH: usize = 4096;

/// How many places may still be looked up.
#[derive(Debug)]
pub(super) struct Left(pub(super) usize);

impl Left {
    /// Returns false, from then on, if fewer are left.
    pub(super) fn take(&mut self, count: usize) -> bool {
        self.0 = self.0.saturating_sub(count);
        !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// Reads a small text, which takes as long as some places.
    pub(super) fn read(&mut self, file: &Path) -> Option<String> {
        let text = self.take(1).then(|| read_small(file)).flatten()?;
        self.take(text.len() / 64).then_some(text)
    }
}

/// Returns true for a name that has a meaning to other programs.
pub fn decides_for_programs(path: &Path) -> bool {
    path.components().any(|part| is_obeyed(part.as_os_str()))
}

/// Returns the settings of the person that are links, as those of dotfiles are: shells and other programs
/// obey what is there.
pub(super) fn linked_settings() -> impl Iterator<Item = PathBuf> {
    let directories = home_directories().into_iter().flat_map(|home| [home.join(".config"), home]);
    let is_setting = |path: &PathBuf| {
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        is_hidden || path.parent().is_some_and(|parent| parent.ends_with(".config"))
    };
    directories.flat_map(|directory| links_in(&directory)).filter(is_setting)
}

/// True for a name of settings.
pub(super) fn is_obeyed(name: &OsStr) -> bool {
    let Some(name) = name.to_str().filter(|name| !name.contains(RENAMED)) else { return false };
    let is_alone = |rest: &str| rest.is_empty() || rest.starts_with('.');
    let has_ending = |rest: &str| {
        let ending = rest.rsplit_once('.').map_or("", |(_, ending)| ending);
        rest.starts_with(['.', '-']) && ENDINGS.split(' ').any(|known| known == ending)
    };
    let follows =
        |names: &'static str| names.split_ascii_whitespace().filter_map(|known| name.strip_prefix(known));
    follows(OBEYED).any(is_alone) || follows(OBEYED_FILES).any(has_ending)
}

/// Returns the names of settings in a directory.
pub(super) fn list_settings(directory: &Dir) -> io::Result<BTreeSet<OsString>> {
    Ok(directory.entries()?.flatten().map(|entry| entry.file_name()).filter(|name| is_obeyed(name)).collect())
}

/// Returns what settings of a work tree name: what those of shells read, and the programs that others start.
pub(super) fn named_by_settings(settings: &Path, top: &Path, left: &mut Left) -> Vec<PathBuf> {
    let name = settings.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let is_shells = [".envrc", ".mise", "mise"].iter().any(|known| name.starts_with(known));
    let files: Vec<PathBuf> =
        if settings.is_dir() { paths_in(settings).collect() } else { vec![settings.to_owned()] };
    // Samples of hooks are not started, and prose starts nothing.
    let is_prose =
        |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "md" || ending == "sample");
    let mut named = Vec::new();
    for file in files.iter().filter(|file| !is_prose(file)) {
        let text = left.read(file).unwrap_or_default();
        for line in text.lines().filter(|line| !line.contains("watch_")) {
            let reads = ["source", "dotenv", ". "].iter().any(|word| line.trim_start().starts_with(word));
            let is_path = line.to_ascii_lowercase().contains("path");
            let words = line.split(|c: char| c.is_whitespace() || "\"'`=,:;()[]{}<>|&".contains(c));
            let is_path_like =
                |word: &&str| !word.is_empty() && word.len() <= LONGEST_PATH && !word.contains("..");
            for word in words.filter(is_path_like) {
                let parts = word.bytes().filter(|byte| *byte == b'/').count().min(MOST_PARTS);
                if !left.take(1 + parts) {
                    return named;
                }
                let path = top.join(word.trim_start_matches('/'));
                // `$(git rev-parse --show-toplevel)/tools/clean`, too.
                let ends = word.match_indices('/').take(MOST_PARTS).map(|(at, _)| top.join(&word[at + 1..]));
                // Package managers write into some directories of `PATH`.
                let is_theirs = |path: &Path| {
                    path.iter().any(|part| part == "node_modules")
                        || path.parent().is_some_and(|parent| parent.join("pyvenv.cfg").exists())
                };
                let is_named = |path: &PathBuf| {
                    let is_in_path = || is_shells && is_path && !top.starts_with(path) && !is_theirs(path);
                    let is_started =
                        |data: &fs::Metadata| is_shells || data.permissions().mode() & 0o111 != 0;
                    path.metadata()
                        .is_ok_and(|data| if data.is_dir() { is_in_path() } else { is_started(&data) })
                };
                let is_read = is_shells && reads && line.trim_end().ends_with(word);
                named.extend(is_read.then(|| path.clone()));
                named.extend(ends.chain([path]).filter(is_named));
            }
        }
    }
    named
}

/// Returns the links below a directory of settings; in one of git's only those at its top.
pub(super) fn links_below(directory: &Path, left: &mut Left) -> Vec<PathBuf> {
    let is_gits = directory.join("HEAD").exists();
    let (mut waiting, mut links) = (vec![directory.to_owned()], Vec::new());
    while let Some(directory) = waiting.pop() {
        for path in paths_in(&directory).take_while(|_| left.take(1)) {
            match path.symlink_metadata() {
                Ok(data) if data.is_symlink() => links.push(path),
                Ok(data) if data.is_dir() && !is_gits => waiting.push(path),
                _ => {}
            }
        }
    }
    links
}

pub(super) fn paths_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

pub(super) fn links_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    paths_in(directory).filter(|path| is_symlink(path))
}

pub(super) fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_symlink())
}
