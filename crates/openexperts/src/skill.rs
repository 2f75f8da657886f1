//! Skills: folders with a `SKILL.md` (agentskills.io), as coding agents have them. One is a function of a
//! package that names its file, with the other texts of its folder. Its scripts are never executed. Pure,
//! except for `other_files`, which lists a folder. Called by `component`, `load` and `foreign`, and by the
//! workspace of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::diagnostic::{At, Code, FileReport};
use super::fields::Fields;
use super::files::PackageDir;

/// The file that makes a folder a skill.
pub const SKILL: &str = "SKILL.md";
/// The folder of a skill's programs.
const SCRIPTS: &str = "scripts";
/// The folders of the texts that a skill at the top of a package may bring. In a folder of its own, it may
/// bring any.
const TEXTS: [&str; 2] = ["references", "assets"];
/// The most files of a skill.
const MOST_FILES: usize = 200;

/// Returns true if the path of a component is that of a skill.
pub fn is_skill(path: &str) -> bool {
    path == SKILL || path.ends_with("/SKILL.md")
}

/// Returns the folder of a skill's file, with `/` at its end; empty at the top of the package.
fn folder_of(path: &str) -> &str {
    &path[..path.len() - SKILL.len()]
}

/// Takes note of the fields that skills have and functions do not.
pub(crate) fn read_fields(fields: &mut Fields<'_, '_, '_>) {
    for known in ["license", "compatibility", "metadata"] {
        let _ = fields.value(known);
    }
    if fields.value("allowed-tools").is_some() {
        let at = fields.key("allowed-tools").unwrap_or(At::TOP);
        let message = "`allowed-tools` has no effect: an expert has the operations of its bound tools, under the tiers of the package";
        let help =
            "name the abstract tools that the skill needs in `tools`, and in requires.tools of the package";
        fields.report.add(Code::IgnoredField, at, message, help);
    }
}

/// Returns the paths of the other files of a skill that it may name in its text, in order. Its scripts are
/// reported.
pub(crate) fn other_files(path: &str, dir: &PackageDir, report: &mut FileReport<'_>) -> Vec<String> {
    let folder = folder_of(path);
    let own = |name: &str| name.strip_prefix(folder).map(str::to_owned);
    let is_in = |name: &str, part: &str| own(name).is_some_and(|own| own.starts_with(&format!("{part}/")));
    let (scripts, others): (Vec<String>, Vec<String>) =
        dir.list(folder.trim_end_matches('/'), MOST_FILES).into_iter().partition(|name| is_in(name, SCRIPTS));
    if let Some(first) = scripts.first() {
        let message = format!("the skill has scripts, such as {first}, which respool never executes");
        let help = "bind a tool that does their work, and say in the text which operation to call instead";
        report.add(Code::SkillScripts, At::TOP, message, help);
    }
    let may_be_named =
        |name: &String| name != path && (!folder.is_empty() || TEXTS.iter().any(|part| is_in(name, part)));
    others.into_iter().filter(may_be_named).collect()
}

/// Returns where the files of a package are that the text of a skill names relative to its folder; `None` if
/// it brings none.
pub fn note(files: &BTreeMap<String, String>, path: &str) -> Option<String> {
    let folder = folder_of(path);
    let files = files.keys().filter(|name| {
        *name != path && name.starts_with(folder) && (!folder.is_empty() || is_text_of_top(name))
    });
    let mut text = String::new();
    for file in files {
        let _ = writeln!(text, "- `{}`: `{file}`", &file[folder.len()..]);
    }
    let intro = "The files that this skill names, and the paths under which `read` gives them:";
    (!text.is_empty()).then(|| format!("{intro}\n\n{text}\n"))
}

fn is_text_of_top(name: &str) -> bool {
    name.split_once('/').is_some_and(|(first, _)| TEXTS.contains(&first))
}
