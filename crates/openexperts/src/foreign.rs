//! Recognises skills and plugins of other programs where a package is expected. A skill (`SKILL.md`,
//! agentskills.io) becomes a package of its own; for plugins, a message says what to do. Nothing is executed.
//! Called by `source`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use super::MANIFEST;
use super::diagnostic::{At, Report};
use super::fields::Fields;
use super::load::{Loaded, load};
use super::markdown::{self, Head};
use super::name::{self, NameKind};
use super::own_files::is_clutter;
use super::skill::SKILL;
use super::yaml::Value;

/// The version of a skill that says none in `metadata.version`.
const FIRST_VERSION: &str = "0.1.0";
/// The largest file of a skill that is taken over, in bytes.
const LARGEST_FILE: u64 = 1 << 20;
/// The most files of a skill that are looked at.
const MOST_FILES: usize = 1_000;

/// The files by which plugins are recognised, and what they are.
const PLUGINS: [(&str, &str); 6] = [
    (".claude-plugin/marketplace.json", "a marketplace of Claude Code plugins"),
    (".claude-plugin/plugin.json", "a Claude Code plugin"),
    (".codex-plugin/plugin.json", "a Codex plugin"),
    (".cursor-plugin/plugin.json", "a Cursor plugin"),
    ("openclaw.plugin.json", "an OpenClaw plugin"),
    ("gemini-extension.json", "a Gemini CLI extension"),
];
/// The files in which plugins configure MCP servers.
const SERVERS: [&str; 3] = [".mcp.json", "mcp.json", ".cursor/mcp.json"];

/// Why a folder cannot be used as a package, in words for people.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder cannot be opened.
    #[error("{path} cannot be opened as a package: {1}", path = .0.display())]
    Package(PathBuf, io::Error),
    /// It belongs to another program.
    #[error("{0}")]
    Plugin(String),
    /// The skill's file is larger than the limit.
    #[error("{0} is larger than 1 MiB: split it")]
    SkillTooLarge(String),
    /// The skill's file cannot be read.
    #[error("{0} cannot be read: {1}")]
    SkillUnreadable(String, io::Error),
    /// The skill's file says too little about itself.
    #[error("{0} is not a skill that respool can install: {1}")]
    NotASkill(String, HeadError),
    /// The package of a skill cannot be written.
    #[error("the package of the skill cannot be written: {0}")]
    Temporary(io::Error),
}

/// A fault in the head of a skill's file.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// There is no head, or it is not YAML.
    #[error("{0}. Begin it with `---`, `name: …`, `description: …` and `---`")]
    Unreadable(String),
    /// It lacks a required field.
    #[error("it has no `name` or no `description`: write both between the lines of `---`")]
    Incomplete,
    /// Its name cannot be the name of a package.
    #[error("its `name` {0:?} cannot be a package's: {1}")]
    BadName(String, &'static str),
}

/// Loads the package in a folder. A skill becomes a package first.
///
/// # Errors
/// When the folder cannot be opened, is the plugin of another program, or holds a skill that cannot be used.
/// A package that does not load is not an error here.
pub fn load_folder(path: &Path) -> Result<Loaded, FolderError> {
    match identify_folder(path) {
        Some(Foreign::Skill) => load_package(ImportedSkill::new(path)?.directory.path()),
        Some(Foreign::Plugin(plugin)) => Err(FolderError::Plugin(plugin.describe(path))),
        None => load_package(path),
    }
}

fn load_package(path: &Path) -> Result<Loaded, FolderError> {
    load(path).map_err(|error| FolderError::Package(path.to_owned(), error))
}

/// A skill as a package, in a temporary directory.
struct ImportedSkill {
    directory: TempDir,
}

/// A folder that another program knows and that is not a package.
enum Foreign {
    /// A skill.
    Skill,
    /// A plugin, or a folder of skills.
    Plugin(Plugin),
}

/// A plugin of another program.
struct Plugin {
    what: &'static str,
    /// The folders of its skills, relative to it.
    skills: Vec<PathBuf>,
    has_servers: bool,
}

/// Recognises a folder without a manifest that another program knows.
fn identify_folder(folder: &Path) -> Option<Foreign> {
    if folder.join(MANIFEST).exists() {
        return None;
    }
    let plugin = PLUGINS.iter().find(|(file, _)| folder.join(file).is_file()).map(|(_, what)| *what);
    if plugin.is_none() && folder.join(SKILL).is_file() {
        return Some(Foreign::Skill);
    }
    let skills = skills_in(folder);
    let what = plugin.or_else(|| folder.join(".cursor/rules").is_dir().then_some("a folder of Cursor rules"));
    let what = what.or_else(|| (!skills.is_empty()).then_some("a folder of skills"))?;
    let has_servers = SERVERS.iter().any(|file| folder.join(file).is_file());
    Some(Foreign::Plugin(Plugin { what, skills, has_servers }))
}

/// Returns the folders with a skill, as plugins and repositories have them: at the top, in `skills`, or in a
/// plugin of a marketplace.
fn skills_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let plugins = list_folders(&folder.join("plugins")).into_iter().map(|plugin| plugin.join("skills"));
    let places = [folder.to_owned(), folder.join("skills"), folder.join(".claude/skills")];
    for place in places.into_iter().chain(plugins) {
        let skills = list_folders(&place).into_iter().filter(|skill| skill.join(SKILL).is_file());
        found.extend(skills.filter_map(|skill| Some(skill.strip_prefix(folder).ok()?.to_owned())));
    }
    found
}

fn list_folders(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten().take(MOST_FILES);
    let mut all: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    all.sort();
    all
}

impl Plugin {
    /// Names the plugin and the ways to use its parts, for people.
    fn describe(&self, folder: &Path) -> String {
        let shown = |path: &Path| super::visible(&path.display().to_string());
        let mut text = format!("{} is {}, not an expert package", shown(folder), self.what);
        if self.skills.is_empty() {
            text.push_str("; it has no skills that respool could install");
        } else {
            text.push_str(". Its skills can be installed one by one:");
            for skill in &self.skills {
                let _ = write!(text, "\n  respool expert install '{}'", shown(&folder.join(skill)));
            }
        }
        if self.has_servers {
            text.push_str("\nIts MCP servers belong into [tools.mcp.NAME] of respool.toml; `respool expert bind` then binds them.");
        }
        text.push_str(
            "\nCommands, agents, hooks and rules of plugins are not supported: write what they say into functions of a package \
             (docs/experts.md, \"Skills and plugins\").",
        );
        text
    }
}

/// The fields of a skill that its package needs.
struct SkillHead {
    name: String,
    description: String,
    license: Option<String>,
    version: String,
}

impl ImportedSkill {
    /// Writes the package of a skill.
    ///
    /// # Errors
    /// Why the skill cannot be used, for people.
    fn new(skill: &Path) -> Result<Self, FolderError> {
        let file = skill.join(SKILL);
        let shown = super::visible(&file.display().to_string());
        let is_large = fs::metadata(&file).is_ok_and(|about| about.len() > LARGEST_FILE);
        if is_large {
            return Err(FolderError::SkillTooLarge(shown));
        }
        let text =
            fs::read_to_string(&file).map_err(|error| FolderError::SkillUnreadable(shown.clone(), error))?;
        let head = read_head(&text).map_err(|why| FolderError::NotASkill(shown, why))?;
        let directory = tempfile::tempdir().map_err(FolderError::Temporary)?;
        write_package(directory.path(), skill, &head).map_err(FolderError::Temporary)?;
        Ok(Self { directory })
    }
}

fn read_head(text: &str) -> Result<SkillHead, HeadError> {
    let mut report = Report::default();
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let head = markdown::read_markdown(&text, Head::Required, &mut report.file(SKILL)).head;
    let Some(head) = head else {
        let found = report.into_sorted();
        let why = found.first().map(|one| one.message.clone()).unwrap_or_default();
        return Err(HeadError::Unreadable(why));
    };
    let entries = match &head.value {
        Value::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    let mut file = report.file(SKILL);
    let mut fields = Fields::new(entries, At::TOP, &mut file);
    let mut text_of = |name| fields.text(name).map(|text| text.value.trim().to_owned()).unwrap_or_default();
    let (name, description, license) = (text_of("name"), text_of("description"), text_of("license"));
    if name.is_empty() || description.is_empty() {
        return Err(HeadError::Incomplete);
    }
    if let Err(why) = name::check_name(&name, NameKind::Package) {
        return Err(HeadError::BadName(name, why));
    }
    Ok(SkillHead {
        name,
        description,
        license: Some(license).filter(|text| !text.is_empty()),
        version: skill_version(entries),
    })
}

/// Returns the version in a skill's metadata, if it is a semantic one; a missing number counts as 0.
fn skill_version(entries: &[super::yaml::Entry]) -> String {
    let value = |entries: &[super::yaml::Entry], key: &str| {
        entries.iter().find(|entry| entry.key.value == key).map(|entry| entry.value.value.clone())
    };
    let Some(Value::Map(metadata)) = value(entries, "metadata") else { return FIRST_VERSION.to_owned() };
    let Some(Value::Text(written) | Value::Number(written)) = value(&metadata, "version") else {
        return FIRST_VERSION.to_owned();
    };
    let filled = [written.clone(), format!("{written}.0"), format!("{written}.0.0")];
    let semantic = filled.into_iter().find(|version| semver::Version::parse(version).is_ok());
    semantic.unwrap_or_else(|| FIRST_VERSION.to_owned())
}

fn write_package(into: &Path, skill: &Path, head: &SkillHead) -> std::io::Result<()> {
    let SkillHead { name, description, license, version } = head;
    let folder = format!("skills/{name}");
    copy_texts(skill, &into.join(&folder))?;
    let license =
        license.as_ref().map(|license| format!("license: {}\n", json!(license))).unwrap_or_default();
    let manifest = format!(
        "spec: \"1.0\"\nname: {}\nversion: {}\ndescription: {}\n{license}components:\n  orchestrator: orchestrator.md\n  \
         persona: [persona/identity.md]\n  functions: [{}]\n",
        json!(name),
        json!(version),
        json!(description),
        json!(format!("{folder}/{SKILL}")),
    );
    let orchestrator = format!(
        "Every request is for the function `{name}`: read it, then do what it says. If it needs a program, a script or a tool that you do not \
         have, say so instead of describing its result.\n"
    );
    let identity = format!("You are an expert with one skill, {name}: {description}\n");
    let readme =
        format!("# {name}\n\n{description}\n\nMade by respool from the skill `{name}` (SKILL.md).\n");
    fs::create_dir_all(into.join("persona"))?;
    for (file, text) in [
        (MANIFEST, manifest),
        ("orchestrator.md", orchestrator),
        ("persona/identity.md", identity),
        ("README.md", readme),
    ] {
        fs::write(into.join(file), text)?;
    }
    Ok(())
}

/// Copies the files of a skill that may be texts: regular ones, not hidden, and not too large. Links are not
/// followed.
fn copy_texts(from: &Path, into: &Path) -> std::io::Result<()> {
    let (mut open, mut left) = (vec![PathBuf::new()], MOST_FILES);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(from.join(&folder))? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let is_hidden = name.to_str().is_none_or(|name| name.starts_with('.') || is_clutter(name));
            let path = folder.join(&name);
            if is_hidden || left == 0 {
                continue;
            }
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() && entry.metadata()?.len() <= LARGEST_FILE {
                left -= 1;
                fs::create_dir_all(into.join(&folder))?;
                fs::copy(from.join(&path), into.join(&path))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PDF: &str = "---\nname: pdf-forms\ndescription: \"Fills forms: reads a PDF and says what to enter\"\nlicense: MIT\n\
        metadata: {version: '2.1'}\nallowed-tools: Bash(pdftk:*) Read\n---\n\n# Forms\n\nSee references/fields.md. Run scripts/fill.py.\n";

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn skill(root: &Path) {
        write(root, "SKILL.md", PDF);
        write(root, "references/fields.md", "# Fields\n");
        write(root, "scripts/fill.py", "print('filled')\n");
        write(root, ".git/config", "secret");
        fs::write(root.join("logo.bin"), [0xff, 0xfe, 0x00]).unwrap();
    }

    #[test]
    fn skills_become_packages() {
        let dir = tempfile::tempdir().unwrap();
        skill(dir.path());
        let loaded = load_folder(dir.path()).unwrap();
        let codes: Vec<&str> = loaded.diagnostics.iter().map(|one| one.code.as_str()).collect();
        assert_eq!(codes, ["skill-scripts", "ignored-field"], "{:?}", loaded.diagnostics);
        let package = loaded.package.unwrap();
        assert_eq!(package.manifest.name.value, "pdf-forms");
        assert_eq!(package.manifest.version.value, "2.1.0");
        assert_eq!(package.functions.items[0].name.value, "pdf-forms");
        let paths: Vec<&str> =
            package.files.keys().map(String::as_str).filter(|path| path.starts_with("skills/")).collect();
        assert_eq!(paths, ["skills/pdf-forms/SKILL.md", "skills/pdf-forms/references/fields.md"]);
        let again = load_folder(dir.path()).unwrap().package.unwrap();
        assert_eq!(again.files, package.files, "an update finds the same package");
    }

    #[test]
    fn plugins_are_refused_with_advice() {
        for (file, what) in PLUGINS {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), file, "{}");
            skill(&dir.path().join("skills/pdf-forms"));
            write(dir.path(), ".mcp.json", "{}");
            let why = load_folder(dir.path()).unwrap_err().to_string();
            assert!(
                why.contains(what) && why.contains("/skills/pdf-forms'") && why.contains("[tools.mcp.NAME]"),
                "{why}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ".cursor/rules/style.mdc", "x");
        let why = load_folder(dir.path()).unwrap_err().to_string();
        assert!(why.contains("a folder of Cursor rules") && why.contains("no skills"), "{why}");
        fs::remove_dir_all(dir.path().join(".cursor")).unwrap();
        let loaded = load_folder(dir.path()).unwrap();
        assert!(loaded.package.is_none(), "an empty folder is a package without a manifest");
    }

    #[test]
    fn unusable_skills_say_why() {
        let check = |text: &str, expected: &str| {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "SKILL.md", text);
            let why = load_folder(dir.path()).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        };
        check("# Forms\n", "the file has no frontmatter");
        check("---\nname: a\n---\nx\n", "no `description`");
        check("---\nname: ../a\ndescription: d\n---\nx\n", "cannot be a package's");
    }
}
