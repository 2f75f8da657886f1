//! `search`: lines that match a regular expression, in the files below a path. It respects `.gitignore`,
//! leaves out `.git`, does not follow symlinks, and skips files for which the policy would not allow the
//! call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ignore::WalkBuilder;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::OverrideBuilder;
use regex::{Regex, RegexBuilder};

use super::super::contract::{ToolError, ToolOutput};
use super::super::sandbox::read_text;
use super::super::source::Permit;
use super::arguments::wrong_argument;
use super::read::{open_file, read_whole};
use super::text::decode_text;
use super::workspace::{Place, Workspace};

const LARGEST_FILE: u64 = 8 << 20;
const LONGEST_LINE: usize = 300;
const MOST_MATCHES: usize = 200;
/// Files with rules on what is ignored; a later one overrides an earlier one. Longer ones are not read.
const IGNORE_FILES: [&str; 3] = [".git/info/exclude", ".gitignore", ".ignore"];
const LONGEST_RULES: usize = 32 << 10;

/// A search.
pub(super) struct Query {
    pub(super) pattern: String,
    pub(super) glob: Option<String>,
    pub(super) ignore_case: bool,
    pub(super) limit: Option<usize>,
}

/// The matches, and the files that were skipped.
#[derive(Default)]
struct SearchResult {
    lines: Vec<String>,
    large: usize,
    withheld: usize,
}

pub(super) fn search_files(
    workspace: &Workspace,
    place: &Place,
    query: &Query,
    permit: &Permit,
    stopped: &AtomicBool,
) -> Result<ToolOutput, ToolError> {
    let expression = RegexBuilder::new(&query.pattern)
        .case_insensitive(query.ignore_case)
        .build()
        .map_err(|error| wrong_argument(&["pattern"], &format!("is not a regular expression: {error}")))?;
    workspace
        .dir
        .metadata(&place.real)
        .map_err(|error| super::workspace::io_failure(place.written.display(), &error))?;
    let limit = query.limit.unwrap_or(MOST_MATCHES).min(MOST_MATCHES);
    let mut found = SearchResult::default();
    for entry in walk_files(&workspace.root, &place.real, query.glob.as_deref())?.flatten() {
        if stopped.load(Ordering::Relaxed) || found.lines.len() > limit {
            break;
        }
        let path = entry.path().strip_prefix(&workspace.root).ok();
        if let Some(path) = path.filter(|_| is_file(&entry)) {
            search_file(workspace, path, &expression, limit, permit, &mut found);
        }
    }
    Ok(ToolOutput { text: found.into_report(limit), ..ToolOutput::default() })
}

fn is_file(entry: &ignore::DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_file())
}

fn walk_files(root: &Path, below: &Path, glob: Option<&str>) -> Result<ignore::Walk, ToolError> {
    let mut overrides = OverrideBuilder::new(root);
    let added = glob.map_or(Ok(()), |glob| overrides.add(glob).map(drop));
    let wanted = added
        .and_then(|()| overrides.build())
        .map_err(|error| wrong_argument(&["glob"], &format!("is not a glob: {error}")))?;
    // Without `.` in it.
    let start: PathBuf = root.join(below).components().collect();
    let mut walk = WalkBuilder::new(start);
    walk.standard_filters(false).overrides(wanted.clone()).sort_by_file_name(Ord::cmp);
    let rules = IgnoreRules::default();
    walk.filter_entry(move |entry| {
        let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
        let is_wanted = || wanted.matched(entry.path(), is_directory).is_whitelist();
        entry.file_name() != ".git" && (is_wanted() || !rules.hide(entry.path(), is_directory))
    });
    Ok(walk.build())
}

/// The rules of each directory. The library itself would read such files through links, and pipes and
/// devices without an end.
#[derive(Default)]
struct IgnoreRules(Mutex<HashMap<PathBuf, Arc<Gitignore>>>);

impl IgnoreRules {
    /// True for what the nearest rule about it hides.
    fn hide(&self, path: &Path, is_directory: bool) -> bool {
        let mut rules = path.ancestors().skip(1).map(|directory| self.rules_in(directory));
        rules.find_map(|rules| {
            let found = rules.matched(path, is_directory);
            (!found.is_none()).then(|| found.is_ignore())
        }) == Some(true)
    }

    fn rules_in(&self, directory: &Path) -> Arc<Gitignore> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rules) = known.get(directory) {
            return Arc::clone(rules);
        }
        let mut rules = GitignoreBuilder::new(directory);
        for text in IGNORE_FILES.iter().filter_map(|name| read_rules(&directory.join(name))) {
            for line in text.lines() {
                // git passes over what is not a rule, too.
                let _ = rules.add_line(None, line);
            }
        }
        let rules = Arc::new(rules.build().unwrap_or_else(|_| Gitignore::empty()));
        known.insert(directory.to_owned(), Arc::clone(&rules));
        rules
    }
}

/// Reads no links, as git does not either.
fn read_rules(file: &Path) -> Option<String> {
    if file.is_symlink() { None } else { read_text(file, LONGEST_RULES) }
}

fn search_file(
    workspace: &Workspace,
    path: &Path,
    expression: &Regex,
    limit: usize,
    permit: &Permit,
    found: &mut SearchResult,
) {
    let name = path.display().to_string();
    if !permit.covers(&name) {
        found.withheld += 1;
        return;
    }
    let place = Place { written: path.to_owned(), real: path.to_owned() };
    // One unreadable file must not hide the matches in the others.
    let Ok((bytes, is_whole)) =
        open_file(workspace, &place).and_then(|mut file| read_whole(&mut file, &place, LARGEST_FILE))
    else {
        return;
    };
    if !is_whole {
        found.large += 1;
        return;
    }
    let Some((text, _)) = decode_text(&bytes) else { return };
    let hits = text.lines().enumerate().filter(|(_, line)| expression.is_match(line));
    for (index, line) in hits.take((limit + 1).saturating_sub(found.lines.len())) {
        let line = &line[..line.floor_char_boundary(LONGEST_LINE)];
        found.lines.push(format!("{name}:{}: {line}", index + 1));
    }
}

impl SearchResult {
    fn into_report(mut self, limit: usize) -> String {
        let more = self.lines.len() > limit;
        self.lines.truncate(limit);
        if self.lines.is_empty() {
            self.lines.push("[nothing found]".into());
        }
        if more {
            self.lines.push(format!(
                "[the first {limit} matches; there are more: narrow the pattern, path or glob]"
            ));
        }
        if self.large > 0 {
            self.lines.push(format!("[{} files of more than 8 MiB were not searched]", self.large));
        }
        if self.withheld > 0 {
            self.lines
                .push(format!("[{} files were not searched: the policy does not allow it]", self.withheld));
        }
        self.lines.join("\n")
    }
}
