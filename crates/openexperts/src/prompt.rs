//! The system prompt of an expert: the persona in full, everything else as an index, each operation under its
//! effective tier. Bodies are read on demand. Private knowledge is in no index. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::component::{Function, FunctionSession, KnowledgeKind, Process};
use super::diagnostic::visible;
use super::label::call_name;
use super::package::{Package, Persona};
use super::path::state_file;
use super::policy::{Tier, Tiers};

/// The length in characters above which `validate` warns about the prompt.
pub const LONG_PROMPT: usize = 20_000;

const HANDING_OVER: &str = "If you are not sure enough of a decision, do not act on it: escalate it to the main agent with your \
reasoning and the action you recommend.";

/// Returns the system prompt of a package.
pub fn system_prompt(package: &Package) -> String {
    system_prompt_with(package, &package.tiers())
}

/// Returns the same, for tiers that are not only the package's.
pub fn system_prompt_with(package: &Package, tiers: &Tiers) -> String {
    let mut prompt = String::new();
    let (identity, others) = persona_sections(package);
    add_section(&mut prompt, "Identity", identity);
    for (heading, body) in others {
        add_section(&mut prompt, &heading, body);
    }
    add_section(&mut prompt, "How to Operate", &package.orchestrator);
    add_section(&mut prompt, "Available Functions", &list_functions(package));
    add_section(&mut prompt, "Available Processes", &list_processes(package));
    add_section(&mut prompt, "Knowledge Available", &list_knowledge(package));
    add_section(&mut prompt, "State Files", &state_files(package));
    add_section(&mut prompt, "Tool Approval Policy", &policy_text(package, tiers));
    add_section(&mut prompt, "Instructions", &instructions_text(package));
    prompt
}

fn add_section(prompt: &mut String, heading: &str, body: &str) {
    if !body.trim().is_empty() {
        let gap = if prompt.is_empty() { "" } else { "\n" };
        let _ = writeln!(prompt, "{gap}## {heading}\n\n{}", body.trim());
    }
}

/// Returns the identity file, and the others with their headings: the rules first, then each under its own
/// name.
fn persona_sections(package: &Package) -> (&str, Vec<(String, &str)>) {
    let by_stem = |stem: &str| package.persona.iter().position(|file| file.stem.eq_ignore_ascii_case(stem));
    let identity = by_stem("identity").unwrap_or(0);
    let rules = by_stem("rules").filter(|rules| *rules != identity);
    let heading = |file: &Persona| one_line(&file.stem);
    let rest =
        package.persona.iter().enumerate().filter(|(index, _)| *index != identity && Some(*index) != rules);
    let first = rules.map(|index| ("Rules".to_owned(), package.persona[index].body.as_str()));
    let others = first.into_iter().chain(rest.map(|(_, file)| (heading(file), file.body.as_str()))).collect();
    (package.persona.get(identity).map_or("", |file| file.body.as_str()), others)
}

fn list_functions(package: &Package) -> String {
    let line = |one: &Function| {
        let line = list_entry(&one.name.value, Some(&one.description));
        if one.session == FunctionSession::Isolated {
            format!("{} (runs by itself: call `{}`)\n", line.trim_end(), call_name(&one.name.value))
        } else {
            line
        }
    };
    package.functions.items.iter().map(line).collect()
}

fn list_processes(package: &Package) -> String {
    let line = |process: &Process| {
        let is_run = |name: &str| name == process.name.value;
        let triggers =
            package.manifest.triggers.items.iter().filter(|trigger| is_run(&trigger.process.value));
        let triggers: Vec<String> = triggers.map(|trigger| one_line(&trigger.name.value)).collect();
        let suffix =
            if triggers.is_empty() { String::new() } else { format!(" (trigger: {})", triggers.join(", ")) };
        format!("{}{suffix}\n", list_entry(&process.name.value, Some(&process.description)).trim_end())
    };
    package.processes.items.iter().map(line).collect()
}

fn list_knowledge(package: &Package) -> String {
    let shown = package.knowledge.items.iter().filter(|one| one.kind != KnowledgeKind::Private);
    shown.map(|one| list_entry(&one.name, one.description.as_deref())).collect()
}

fn state_files(package: &Package) -> String {
    let mut lines = String::new();
    for one in &package.state.items {
        let _ = writeln!(lines, "- {} ({})", one_line(&state_file(&one.path)), one.scope);
    }
    lines
}

fn policy_text(package: &Package, tiers: &Tiers) -> String {
    let mut text = String::new();
    if !package.manifest.tools.items.is_empty() {
        text.push_str("Before you call an operation of a tool, look up its tier here.\n");
        for (tier, heading) in [
            (Tier::Auto, "AUTO (runs at once)"),
            (Tier::Confirm, "CONFIRM (a person is asked before it runs)"),
            (
                Tier::Manual,
                "MANUAL (never runs: its inputs are handed to a person as a draft, and the step is done with that)",
            ),
        ] {
            tier_block(&mut text, heading, tiers.operations(tier), package.manifest.policy.default == tier);
        }
    }
    if package.manifest.policy.on_low_confidence {
        let _ = write!(text, "\n{HANDING_OVER}\n");
    }
    text
}

fn tier_block(text: &mut String, heading: &str, operations: &[String], is_default: bool) {
    if operations.is_empty() && !is_default {
        return;
    }
    let _ = writeln!(text, "\n{heading}:");
    for operation in operations {
        let _ = writeln!(text, "- {operation}: call `{}`", operation.replacen('.', "__", 1));
    }
    if is_default {
        text.push_str("This is also the tier of every operation that is not listed here.\n");
    }
}

fn instructions_text(package: &Package) -> String {
    let mut text = String::from(
        "Read files when you need them, with these paths:\n\n- a function: `functions/{name}.md`\n",
    );
    if !package.processes.items.is_empty() {
        text.push_str("- a process: `processes/{name}.md`\n");
    }
    if !package.knowledge.items.is_empty() {
        text.push_str("- knowledge: `knowledge/{name}.md`\n");
    }
    if !package.state.items.is_empty() {
        text.push_str("- state: `state/{name}.md`\n");
    }
    text.push_str("- working data of a process: `scratch/`\n\n");
    text.push_str("Files in `state/` and `scratch/` may be written, as functions and processes say. All others can only be read.\n");
    text
}

/// The prompt of an isolated function's run: its text, the tiers of its tools, and where its knowledge is.
pub struct FunctionPrompt<'a> {
    /// The package that has the function.
    pub package: &'a Package,
    /// The function.
    pub function: &'a Function,
    /// The learnings for it.
    pub learnt: &'a str,
    /// The effective tiers of its operations.
    pub tiers: &'a Tiers,
    /// Its knowledge: the names under which it can be read, by path.
    pub knowledge: BTreeMap<String, String>,
    /// The tool that ends it.
    pub finish: &'a str,
}

impl FunctionPrompt<'_> {
    /// Writes the prompt.
    pub fn text(&self) -> String {
        let (name, expert) =
            (one_line(&self.function.name.value), one_line(&self.package.manifest.name.value));
        let mut prompt = String::new();
        let about = format!(
            "You perform the function `{name}` of the expert {expert}, by itself.\n\n{}",
            self.learnt
        );
        add_section(&mut prompt, "Function", &format!("{}\n\n{}", about.trim(), self.function.body.trim()));
        if !self.function.tools.items.is_empty() {
            add_section(&mut prompt, "Tool Approval Policy", &policy_text(self.package, self.tiers));
        }
        let mut instructions = String::new();
        for name in self.knowledge.values() {
            let _ = writeln!(instructions, "- `read` gives `{}`", one_line(name));
        }
        let _ = write!(instructions, "\nWhen the function is done, call `{}` with its outputs.", self.finish);
        add_section(&mut prompt, "Instructions", &instructions);
        prompt
    }
}

fn list_entry(name: &str, description: Option<&str>) -> String {
    match description.map(one_line).filter(|text| !text.is_empty()) {
        Some(description) => format!("- {}: {description}\n", one_line(name)),
        None => format!("- {}\n", one_line(name)),
    }
}

/// Returns a text on one line, so that nothing in it can look like a heading.
pub fn one_line(text: &str) -> String {
    visible(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}
