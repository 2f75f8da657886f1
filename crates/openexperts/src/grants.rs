//! Compares two versions of a package: how big the version step is, and what the expert could do after an
//! update that it could not do before. Pure; called when an update is planned.

use std::collections::BTreeSet;

use semver::Version;

use super::component::Tool;
use super::manifest::{Trigger, TriggerSession};
use super::package::Package;
use super::policy::Tier;

/// The step from one version to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionStep {
    /// The same version.
    Same,
    /// A newer patch or minor version.
    Compatible,
    /// A newer major version.
    Major,
    /// An older version.
    Downgrade,
    /// One of the two is not a semantic version.
    Unknown,
}

impl VersionStep {
    /// Returns the step from one version to another.
    pub fn from_versions(old: &str, new: &str) -> Self {
        let (Ok(old), Ok(new)) = (Version::parse(old), Version::parse(new)) else { return Self::Unknown };
        match new.cmp_precedence(&old) {
            std::cmp::Ordering::Less => Self::Downgrade,
            std::cmp::Ordering::Equal => Self::Same,
            std::cmp::Ordering::Greater if new.major == old.major => Self::Compatible,
            std::cmp::Ordering::Greater => Self::Major,
        }
    }

    /// Returns why it needs to be forced, if it does.
    pub const fn caution(self) -> Option<&'static str> {
        match self {
            Self::Same | Self::Compatible => None,
            Self::Major => Some("it is a new major version, which may break what relies on the expert"),
            Self::Downgrade => Some("it is older than the installed version"),
            Self::Unknown => Some("the versions are not semantic versions, so they cannot be compared"),
        }
    }
}

/// Lists what the new package may do and the old one could not, one line each, for people.
pub fn list_loosened(old: &Package, new: &Package) -> Vec<String> {
    let mut lines = Vec::new();
    compare_tiers(old, new, &mut lines);
    for tool in &new.manifest.tools.items {
        if old.manifest.tools.items.iter().all(|known| known.value != tool.value) {
            lines.push(format!("it requires the tool {}", tool.value));
        }
    }
    for trigger in &new.manifest.triggers.items {
        let same = |known: &Trigger| start_of(known) == start_of(trigger);
        if !old.manifest.triggers.items.iter().any(same) {
            lines.push(format!("a trigger starts it: {}", start_of(trigger)));
        }
    }
    let learns = |package: &Package| {
        package.manifest.learning.enabled && package.manifest.learning.approval == Tier::Auto
    };
    if learns(new) && !learns(old) {
        lines.push(LEARNS_ALONE.to_owned());
    }
    lines
}

/// Lists the triggers and the processes that the new package lacks, by name.
pub fn list_ended<'a>(old: &'a Package, new: &Package) -> (Vec<&'a str>, Vec<&'a str>) {
    let stays = |name: &str| new.manifest.triggers.items.iter().any(|trigger| trigger.name.value == name);
    let triggers = old.manifest.triggers.items.iter().map(|trigger| trigger.name.value.as_str());
    let processes = old.processes.items.iter().map(|process| process.name.value.as_str());
    (
        triggers.filter(|name| !stays(name)).collect(),
        processes.filter(|name| new.process(name).is_none()).collect(),
    )
}

/// The warning that an install gives, too.
pub const LEARNS_ALONE: &str =
    "it learns without asking (learning.approval: auto): what it reads, such as a mail, can teach it";

/// Returns true when the expert may write learnings without approval.
pub fn learns_alone(package: &Package) -> bool {
    package.manifest.learning.enabled && package.manifest.learning.approval == Tier::Auto
}

/// Describes how a process starts; two triggers with the same text are the same.
fn start_of(trigger: &Trigger) -> String {
    let kind = trigger.kind.map_or("?", super::manifest::TriggerKind::as_str);
    let text = |field: &Option<super::Spanned<String>>| {
        field.as_ref().map(|one| format!(" {}", one.value)).unwrap_or_default()
    };
    let details =
        format!("{}{}{}", text(&trigger.preset), text(&trigger.clock.expr), text(&trigger.clock.zone));
    // A main session may know and do more than the process alone, and all its triggers share the state files.
    let session = match trigger.session {
        TriggerSession::Isolated => "",
        TriggerSession::Main => " in the main session",
    };
    format!("{} ({kind}{details}) runs {}{session}", trigger.name.value, trigger.process.value)
}

fn compare_tiers(old: &Package, new: &Package, lines: &mut Vec<String>) {
    // A dropped override can loosen, too, so what either package names is judged under both policies.
    let named: BTreeSet<(&str, &str)> = operations_of(old).chain(operations_of(new)).collect();
    for (tool, operation) in named {
        let Some(is) = tier_of(new, tool, operation) else { continue };
        match tier_of(old, tool, operation) {
            None if is == Tier::Auto => {
                lines.push(format!("{tool}.{operation} is new and runs without asking (auto)"));
            }
            Some(was) if is.freedom() > was.freedom() => {
                lines.push(format!("{tool}.{operation} becomes {is}; it was {was}"));
            }
            _ => {}
        }
    }
    let (was, is) = (old.manifest.policy.default, new.manifest.policy.default);
    for tool in
        required_tools(new).filter(|tool| file_of(old, tool).is_some() && file_of(new, tool).is_none())
    {
        lines.push(format!(
            "all operations that the server of {tool} has are offered, since the tool's file is gone; those without a tier of their own are {is}"
        ));
    }
    if is.freedom() > was.freedom() {
        lines.push(format!("operations without a tier of their own become {is}; they were {was}"));
    }
}

fn required_tools(package: &Package) -> impl Iterator<Item = &str> {
    package.manifest.tools.items.iter().map(|name| name.value.as_str())
}

/// Returns the file that says which operations of a tool are offered; without one, all operations of its
/// server are.
fn file_of<'a>(package: &'a Package, tool: &str) -> Option<&'a Tool> {
    package.offered_tools().find(|one| one.name.value == tool)
}

/// Returns the operations that a package names, in tool files and in overrides.
fn operations_of(package: &Package) -> impl Iterator<Item = (&str, &str)> {
    let declared = package.offered_tools().flat_map(|tool| {
        let name = tool.name.value.as_str();
        tool.operations.items.iter().map(move |operation| (name, operation.name.as_str()))
    });
    let overrides = package.manifest.policy.overrides.items.iter();
    declared.chain(overrides.filter_map(|one| one.key.value.split_once('.')))
}

/// Returns the tier of an operation; `None` if the package does not offer it.
fn tier_of(package: &Package, tool: &str, operation: &str) -> Option<Tier> {
    let declares = |file: &Tool| file.operations.items.iter().any(|one| one.name == operation);
    let is_offered =
        required_tools(package).any(|name| name == tool) && file_of(package, tool).is_none_or(declares);
    is_offered.then(|| package.manifest.policy.read_tier(tool, operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_meaning() {
        for (old, new, expected) in [
            ("1.2.3", "1.2.4", VersionStep::Compatible),
            ("1.2.3", "1.10.0", VersionStep::Compatible),
            ("1.2.3", "2.0.0", VersionStep::Major),
            ("0.1.0", "0.2.0", VersionStep::Compatible),
            ("1.2.3", "1.2.2", VersionStep::Downgrade),
            ("1.2.3-beta.1", "1.2.3", VersionStep::Compatible),
            ("1.2.3+a", "1.2.3+b", VersionStep::Same),
            ("1.2", "1.3", VersionStep::Unknown),
        ] {
            assert_eq!(VersionStep::from_versions(old, new), expected, "{old} {new}");
        }
    }

    /// A package that requires the tool `crm`; `operations`: those of its file, where it has one.
    fn package(approval: &str, operations: Option<&str>) -> Package {
        let dir = tempfile::tempdir().unwrap();
        let tools = operations.map_or("", |_| ", tools: [crm.yaml]");
        let manifest = format!(
            "spec: '1.0'\nname: desk\nversion: 1.0.0\ndescription: d\nrequires: {{tools: [crm]}}\n\
             components: {{orchestrator: o.md, persona: [o.md], functions: [f.md]{tools}}}\npolicy: {{approval: {approval}}}\n"
        );
        let file = format!("name: crm\ndescription: d\noperations: [{}]\n", operations.unwrap_or_default());
        let function = "---\nname: f\ndescription: d\n---\nBody.\n";
        for (name, text) in
            [("expert.yaml", manifest.as_str()), ("o.md", "o\n"), ("f.md", function), ("crm.yaml", &file)]
        {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        super::super::load(dir.path()).unwrap().package.unwrap()
    }

    /// Something that a package no longer names may be looser for that very reason.
    #[test]
    fn removed_overrides_can_loosen() {
        let (look, both) = (Some("{name: look}"), Some("{name: look}, {name: send}"));
        let (auto, held) = ("{default: auto}", "{default: auto, overrides: {crm.send: manual}}");
        let check = |old: (&str, Option<&str>), new: (&str, Option<&str>), expected: &[&str]| {
            let lines = list_loosened(&package(old.0, old.1), &package(new.0, new.1));
            let is_said = lines.iter().zip(expected).all(|(line, part)| line.contains(part));
            assert!(lines.len() == expected.len() && is_said, "{old:?} to {new:?}: {lines:?}");
        };
        check((auto, look), (auto, None), &["all operations that the server of crm has"]);
        check(
            ("{default: confirm}", look),
            ("{default: confirm}", None),
            &["all operations that the server"],
        );
        check((held, None), (auto, None), &["crm.send becomes auto; it was manual"]);
        check((held, both), (auto, both), &["crm.send becomes auto; it was manual"]);
        check((held, both), (auto, look), &[]);
        check((auto, None), (auto, look), &[]);
        check((auto, look), (auto, both), &["crm.send is new and runs without asking"]);
        check((auto, None), (held, None), &[]);
    }

    /// A trigger that moves into the main session starts something else than before.
    #[test]
    fn changing_a_triggers_session_needs_consent() {
        let with = |session: &str| {
            let dir = tempfile::tempdir().unwrap();
            let manifest = format!(
                "spec: '1.0'\nname: desk\nversion: 1.0.0\ndescription: d\n\
                 components: {{orchestrator: o.md, persona: [o.md], functions: [f.md], processes: [f.md]}}\n\
                 triggers: [{{name: t, type: webhook, process: f, session: {session}}}]\n"
            );
            std::fs::write(dir.path().join("expert.yaml"), manifest).unwrap();
            std::fs::write(dir.path().join("o.md"), "o\n").unwrap();
            std::fs::write(dir.path().join("f.md"), "---\nname: f\ndescription: d\n---\nBody.\n").unwrap();
            super::super::load(dir.path()).unwrap().package.unwrap()
        };
        let (isolated, main) = (with("isolated"), with("main"));
        assert_eq!(
            list_loosened(&isolated, &main),
            ["a trigger starts it: t (webhook) runs f in the main session"]
        );
        assert_eq!(list_loosened(&main, &main), Vec::<String>::new());
    }
}
