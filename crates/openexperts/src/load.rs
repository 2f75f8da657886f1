//! Reads a directory as a package, and reports everything that is wrong with it. Called by the command line
//! and by the code that serves experts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::check;
use super::component::{self, Function, Knowledge, Process, State, Tool};
use super::diagnostic::{At, Code, Diagnostic, FileReport, Report, Spanned, suggest_nearest};
use super::fields::Listing;
use super::files::{PackageDir, Unreadable};
use super::manifest::Manifest;
use super::own_files::is_reserved;
use super::package::{Package, Persona};
use super::{MANIFEST, path, skill, yaml};

/// The largest YAML file, in bytes.
const LARGEST_YAML: u64 = 256 << 10;
/// The largest markdown file, in bytes.
const LARGEST_MARKDOWN: u64 = 1 << 20;
/// The most bytes of all files together.
const LARGEST_PACKAGE: u64 = 64 << 20;
/// The most files that a package may name.
const MOST_FILES: usize = 1_000;

/// The folders in which the files of a package are by custom, each named as its list in `components`.
const FOLDERS: [&str; 6] = ["functions", "knowledge", "persona", "processes", "state", "tools"];

/// The readme, for people.
const README: &str = "README.md";

/// The result of loading a package.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The package, if there is no error.
    pub package: Option<Package>,
    /// The findings.
    pub diagnostics: Vec<Diagnostic>,
    /// The text of every file that was read, by its path.
    pub files: Arc<BTreeMap<String, String>>,
}

/// Loads the package in this directory.
///
/// # Errors
/// When the directory does not exist.
pub fn load(directory: &Path) -> std::io::Result<Loaded> {
    let mut reader = Reader {
        dir: PackageDir::open(directory)?,
        report: Report::default(),
        files: BTreeMap::new(),
        bytes: 0,
    };
    let package = reader.read_package();
    let Reader { mut report, files, .. } = reader;
    let files = Arc::new(files);
    let package = package.map(|package| Package { files: Arc::clone(&files), ..package });
    if let Some(package) = &package {
        check::check_package(package, &mut report);
    }
    let package = package.filter(|_| report.loads());
    Ok(Loaded { package, diagnostics: report.into_sorted(), files })
}

struct Reader {
    dir: PackageDir,
    report: Report,
    files: BTreeMap<String, String>,
    bytes: u64,
}

impl Reader {
    fn read_package(&mut self) -> Option<Package> {
        self.read_readme();
        let text = self.read_text(MANIFEST, &Spanned::new(MANIFEST.to_owned(), At::TOP), LARGEST_YAML)?;
        let mut report = self.report.file(MANIFEST);
        let manifest = yaml::read_yaml(&text, 1, &mut report)
            .and_then(|root| Manifest::from_node(&root, &mut report))?;
        self.report_unlisted(&manifest);
        Some(self.read_components(manifest))
    }

    /// Reports files that `components` does not name. The other files of a skill belong to it.
    fn report_unlisted(&mut self, manifest: &Manifest) {
        if !self.report.loads() {
            // What `components` names may not have been read.
            return;
        }
        let all = &manifest.components;
        let lists = [&all.persona, &all.functions, &all.processes, &all.tools, &all.knowledge, &all.state];
        let listed = lists.iter().flat_map(|list| &list.items).chain(&all.orchestrator);
        let listed: BTreeSet<String> = listed.map(|written| path::normalize(&written.value)).collect();
        let files = self.dir.list("", MOST_FILES);
        let skills: Vec<&str> = files.iter().filter_map(|file| file.strip_suffix("SKILL.md")).collect();
        let is_of_skill =
            |file: &str| skills.iter().any(|folder| file.starts_with(folder) && !file.ends_with("SKILL.md"));
        for file in files.iter().filter(|file| !listed.contains(*file) && !is_of_skill(file)) {
            let Some((folder, name)) = file.split_once('/') else { continue };
            let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
            if FOLDERS.contains(&folder) && matches!(ending, Some("md" | "yaml")) {
                let message = format!("{file} is not in components, so it is not a part of the package");
                let help = format!("add it to components.{folder}, or remove it");
                self.report.file(MANIFEST).add_without_line(Code::UnlistedFile, message, help);
            }
        }
    }

    /// Adds the readme to the files. Without it the package still loads.
    fn read_readme(&mut self) {
        let (message, help) = match self.dir.read(README, LARGEST_MARKDOWN).map(String::from_utf8) {
            Ok(Ok(text)) => {
                self.bytes += text.len() as u64;
                self.files.insert(README.to_owned(), normalize_text(&text));
                return;
            }
            Ok(Err(_)) => ("README.md is not UTF-8, so it is left out", "save it as UTF-8"),
            Err(Unreadable::Missing) => {
                ("the package has no README.md", "say in README.md what the expert is for and what it needs")
            }
            Err(_) => (
                "README.md cannot be read, so it is left out",
                "make it a regular file of the package, of 1 MiB at most",
            ),
        };
        self.report.file(MANIFEST).add_without_line(Code::MissingReadme, message, help);
    }

    fn read_components(&mut self, manifest: Manifest) -> Package {
        let components = &manifest.components;
        self.check_count(&manifest);
        let orchestrator = components.orchestrator.as_ref().and_then(|path| self.read_markdown(path));
        let (orchestrator, _) = orchestrator
            .map(|(path, text)| (component::plain_body(&text, &mut self.report.file(&path)), path))
            .unwrap_or_default();
        let persona = self.read_each(&components.persona, |path, text, report| {
            Some(Persona {
                stem: component::file_stem(path).to_owned(),
                body: component::plain_body(text, report),
            })
        });
        let functions = self.read_each(&components.functions, Function::from_text);
        self.skill_files(&functions.items);
        Package {
            orchestrator,
            persona: persona.items,
            functions,
            processes: self.read_each(&components.processes, Process::from_text),
            tools: self.read_tools(&components.tools),
            knowledge: self.read_each(&components.knowledge, Knowledge::from_text),
            state: self.read_each(&components.state, State::from_text),
            files: Arc::default(),
            manifest,
        }
    }

    /// Adds the other texts of skills to the files, because a skill's text may name them. Files that are not
    /// text are left out.
    fn skill_files(&mut self, functions: &[Function]) {
        for skill in functions.iter().filter(|function| skill::is_skill(&function.path)) {
            for path in skill::other_files(&skill.path, &self.dir, &mut self.report.file(&skill.path)) {
                let left = LARGEST_PACKAGE.saturating_sub(self.bytes);
                let Ok(bytes) = self.dir.read(&path, LARGEST_MARKDOWN.min(left)) else { continue };
                let Ok(text) = String::from_utf8(bytes) else { continue };
                self.bytes += text.len() as u64;
                self.files.entry(path).or_insert_with(|| normalize_text(&text));
            }
        }
    }

    /// Reports the first file beyond the limit.
    fn check_count(&mut self, manifest: &Manifest) {
        let all = &manifest.components;
        let lists = [&all.persona, &all.functions, &all.processes, &all.tools, &all.knowledge, &all.state];
        let mut entries: Vec<&Spanned<String>> = lists.iter().flat_map(|list| &list.items).collect();
        entries.sort_by_key(|entry| entry.at);
        if let Some(entry) = entries.get(MOST_FILES) {
            let message = format!("the package names more than {MOST_FILES} files");
            self.report.file(MANIFEST).add(
                Code::TooLarge,
                entry.at,
                message,
                "split it into several experts",
            );
        }
    }

    fn read_each<T>(
        &mut self,
        paths: &Listing<Spanned<String>>,
        read: impl Fn(&str, &str, &mut FileReport<'_>) -> Option<T>,
    ) -> Listing<T> {
        let mut list = Listing { items: Vec::new(), is_complete: paths.is_complete };
        for path in paths.items.iter().take(MOST_FILES) {
            let found = self.read_markdown(path);
            let item = found.and_then(|(path, text)| read(&path, &text, &mut self.report.file(&path)));
            list.is_complete &= item.is_some();
            list.items.extend(item);
        }
        list
    }

    fn read_tools(&mut self, paths: &Listing<Spanned<String>>) -> Listing<Tool> {
        let mut list = Listing { items: Vec::new(), is_complete: paths.is_complete };
        for written in paths.items.iter().take(MOST_FILES) {
            let path = path::normalize(&written.value);
            let text = self.read_text(&path, written, LARGEST_YAML);
            let mut report = self.report.file(&path);
            let root = text.and_then(|text| yaml::read_yaml(&text, 1, &mut report));
            let tool = root.and_then(|root| Tool::from_node(&path, &root, &mut report));
            list.is_complete &= tool.is_some();
            list.items.extend(tool);
        }
        list
    }

    fn read_markdown(&mut self, written: &Spanned<String>) -> Option<(String, String)> {
        let path = path::normalize(&written.value);
        let text = self.read_text(&path, written, LARGEST_MARKDOWN)?;
        Some((path, text))
    }

    /// Returns the text of a file, without a byte order mark and with `\n` line ends. `written` is the entry
    /// that names it.
    fn read_text(&mut self, path: &str, written: &Spanned<String>, most: u64) -> Option<String> {
        if component::note_escape(written, &mut self.report.file(MANIFEST)) {
            return None;
        }
        if is_reserved(path) {
            let message = format!("{path} is not part of a package: the file of this name is the user's");
            let help = "remove it from components; `respool expert bind` writes the user's bindings";
            self.report.file(MANIFEST).add(Code::PathEscape, written.at, message, help);
            return None;
        }
        let left = LARGEST_PACKAGE.saturating_sub(self.bytes);
        let bytes = match self.dir.read(path, most.min(left)) {
            Ok(bytes) => bytes,
            Err(why) => {
                self.report_unreadable(path, written, &why);
                return None;
            }
        };
        self.bytes += bytes.len() as u64;
        let text = self.decode_text(path, bytes)?;
        self.files.insert(path.to_owned(), text.clone());
        Some(text)
    }

    fn report_unreadable(&mut self, path: &str, written: &Spanned<String>, why: &Unreadable) {
        let near;
        let (code, message, help) = match why {
            Unreadable::Missing if written.value.trim().is_empty() => (
                Code::MissingFile,
                "a path is empty here".to_owned(),
                "write the path of a file, or remove the entry",
            ),
            Unreadable::Missing if path.is_empty() => (
                Code::NotAFile,
                format!("{} is the folder of the package itself", written.value),
                "name a file, not a folder",
            ),
            Unreadable::Missing if path == MANIFEST => (
                Code::MissingFile,
                format!("this is no package: it has no {MANIFEST}"),
                "name the folder that has it, or write a package to begin with: `respool expert new NAME`",
            ),
            Unreadable::Missing => {
                let files = self.dir.list("", MOST_FILES);
                let guess = suggest_nearest(path, files.iter().map(String::as_str));
                near = format!("{guess}make it, or correct the path");
                (Code::MissingFile, format!("there is no file {path}"), &*near)
            }
            Unreadable::NotAFile => (
                Code::NotAFile,
                format!("{path} is not a regular file"),
                "name a file, not a folder or a device",
            ),
            Unreadable::Escapes => (
                Code::PathEscape,
                format!("{path} is a link that leaves the package"),
                "copy the file into the package",
            ),
            Unreadable::Detour => (
                Code::PathEscape,
                format!("{path} goes through a link that breaks when the package is moved"),
                "make it a relative link that stays inside the package",
            ),
            Unreadable::TooLarge(most) => {
                let message =
                    format!("{path} is larger than {} KiB, or the package is larger than 64 MiB", most >> 10);
                (Code::TooLarge, message, "split it into several files")
            }
            Unreadable::Failed(error) => (
                Code::NotAFile,
                format!("{path} cannot be read: {error}"),
                "make it a file that respool may read",
            ),
        };
        self.report.file(MANIFEST).add(code, written.at, message, help);
    }

    fn decode_text(&mut self, path: &str, bytes: Vec<u8>) -> Option<String> {
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            let message = "the file is UTF-16, but it must be UTF-8";
            self.report.file(path).add(Code::NotUtf8, At::TOP, message, "save it as UTF-8");
            return None;
        }
        match String::from_utf8(bytes) {
            Ok(text) => Some(normalize_text(&text)),
            Err(error) => {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = 1 + memchr::memchr_iter(b'\n', good).count();
                let message = "the file has bytes that are not UTF-8";
                self.report.file(path).add(Code::NotUtf8, At::line(line), message, "save it as UTF-8");
                None
            }
        }
    }
}

/// Returns a text without a byte order mark and with `\n` line ends.
fn normalize_text(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.replace("\r\n", "\n").replace('\r', "\n")
}
