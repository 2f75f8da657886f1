//! Settings that other programs obey without being started by the person: their names, and where links and
//! git's configuration lead. What settings merely name is the project's code. Called by `search` and
//! `protected`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::programs::{config_directories, home_directories};
use super::handles::{RENAMED, read_text};

/// Settings that programs obey on their own, at the top of the workspace and of each repository: these names,
/// alone or with an ending (`.envrc.local`), in any case. Renamed ones too: a person may be looking at them.
const OBEYED: &str = "\
    .agent .agents .aiassistant .aider .amazonq .amp .augment .autoenv .bsp .bzr .claude .cline .clinerules \
    .codebuddy .codex .config .continue .crush .cursor .cursorrules .devcontainer .dir-locals .dir-locals-2 \
    .direnv .envrc .exrc .externaltoolbuilders .factory .fleet .gemini .ghci .git .githooks .goose \
    .goosehints .grok .gvimrc .helix .hg .husky .idea .ideavimrc .iex .iflow .irbrc .jj .junie .kilocode \
    .kilocodemodes .kimi .kiro .lazy .lefthook .lefthook-local .lsp .lvimrc .mcp .mise .miserc .nvim .nvimrc \
    .ocamlinit .octaverc .opencode .openhands .pdbrc .perldb .pi .pijul .pre-commit-config .prototools \
    .pryrc .psysh .qoder .qwen .rdata .rdbgrc .renviron .repo .roo .roomodes .ropeproject .rovodev .rprofile \
    .rules .run .rusty-hook .rvmrc .shadowenv .sl .tool-versions .trae .vibe .vim .vimrc .vscode .windsurf \
    .windsurfrules .ycm_extra_conf .zed _darcs global.json respool.toml rust-toolchain rust-analyzer";
/// The same, for files: what follows these names ends with `.md`, or with another of the endings.
const OBEYED_TEXTS: &str = "agent agents claude codebuddy crush gemini grok iflow opencode qwen warp";
const OBEYED_FILES: &str = "buildserver captainhook crush grumphp hie hk lefthook mise opencode prek";
const ENDINGS: &str = "toml yml yaml json jsonc pkl";

/// The most bytes of a file of git's configuration; one of a repository with many branches is long.
const MOST_CONFIGURATION: usize = 64 << 20;

/// True for a name of settings, which has a meaning to other programs.
pub(super) fn is_obeyed(name: &OsStr) -> bool {
    let Some(name) = name.to_str().map(str::to_ascii_lowercase) else { return false };
    let is_ended = [".code-workspace", ".sublime-project"].iter().any(|ending| name.contains(ending));
    let name = name.split(RENAMED).next().unwrap_or_default();
    let is_alone = |rest: &str| rest.is_empty() || rest.starts_with('.');
    let has_ending = |rest: &str, endings: &str| {
        let ending = rest.rsplit_once('.').map_or("", |(_, ending)| ending);
        rest.starts_with(['.', '-']) && endings.split(' ').any(|known| known == ending)
    };
    let follows =
        |names: &'static str| names.split_ascii_whitespace().filter_map(|known| name.strip_prefix(known));
    follows(OBEYED).any(is_alone)
        || follows(OBEYED_TEXTS).any(|rest| has_ending(rest, "md"))
        || follows(OBEYED_FILES).any(|rest| has_ending(rest, ENDINGS))
        || is_ended
}

/// True for the repositories of other programs, which obey settings in them at any depth.
pub(super) fn is_other_repository(name: &OsStr) -> bool {
    [".bzr", ".hg", ".jj", ".pijul", ".sl", "_darcs"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// True for what a command made and respool renamed.
pub(super) fn is_renamed(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(RENAMED))
}

/// Returns the settings of the person that are links, as those of dotfiles are: shells and other programs
/// obey what is there.
pub(super) fn linked_settings() -> impl Iterator<Item = PathBuf> {
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let in_homes = home_directories().into_iter().flat_map(|home| links_in(&home)).filter(is_hidden);
    in_homes.chain(config_directories().into_iter().flat_map(|directory| links_in(&directory)))
}

/// Returns where these files of git's configuration lead, from the top of a work tree. Names of hooks and of
/// what they include count also where nothing is yet.
pub(super) fn named_by_configuration(
    mut waiting: Vec<PathBuf>,
    top: &Path,
    home: Option<&Path>,
) -> Vec<PathBuf> {
    let (mut read, mut named) = (BTreeSet::new(), Vec::new());
    while let Some(file) = waiting.pop() {
        if !read.insert(file.clone()) {
            continue;
        }
        let text = read_text(&file, MOST_CONFIGURATION).unwrap_or_default().replace("\\\n", "");
        // A comment may be at the end, or a part of a name that only looks so.
        let lines = text.lines().flat_map(|line| [Some(line), line.split(['#', ';']).next()]).flatten();
        for (key, value) in lines.filter_map(|line| line.split_once('=')) {
            let key = key.trim().rsplit([' ', '\t', ']']).next().unwrap_or_default().to_ascii_lowercase();
            let value = value.replace(['"', '\\'], "");
            // Since git 2.52 it may stand before a path.
            let value = value.trim().trim_start_matches(":(optional)");
            let expanded = expand_tilde(value, home);
            let from = |base: &Path| expanded.clone().unwrap_or_else(|| base.join(value));
            match key.as_str() {
                "path" => waiting.extend(file.parent().map(from)),
                "hookspath" | "templatedir" | "excludesfile" | "attributesfile" => named.push(from(top)),
                "fsmonitor" if value.contains('/') => named.push(from(top)),
                _ => {}
            }
        }
        named.push(file);
    }
    named
}

/// Returns the path that `~/…` or `~USER/…` stands for.
fn expand_tilde(value: &str, home: Option<&Path>) -> Option<PathBuf> {
    let (user, below) = value.strip_prefix('~')?.split_once('/')?;
    if user.is_empty() {
        return Some(home?.join(below));
    }
    Some(nix::unistd::User::from_name(user).ok()??.dir.join(below))
}

/// Returns the links in a directory.
pub(super) fn links_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.is_symlink())
}
