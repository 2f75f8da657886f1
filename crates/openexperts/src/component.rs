//! Reads the files that `components` names: functions, processes, tools, knowledge and state, each checked by
//! itself. Pure.

use std::collections::HashSet;

use super::diagnostic::{At, Code, FileReport, Spanned};
use super::fields::{Fields, Listing, checked_name};
use super::markdown::{self, Head};
use super::name::NameKind;
use super::policy::Tier;
use super::settings::ProcessSettings;
use super::skill;
use super::yaml::{Entry, Node, Value};

/// The types of values.
pub(crate) const TYPES: [&str; 6] = ["string", "number", "integer", "boolean", "object", "array"];

wire::string_enum! {
    /// Where a function runs.
    FunctionSession {
        /// In the run that uses it, which reads its text.
        #[default]
        Inline = "inline",
        /// In a separate child run.
        Isolated = "isolated",
    }
}

wire::string_enum! {
    /// A kind of knowledge.
    KnowledgeKind {
        /// It does not change.
        #[default]
        Static = "static",
        /// It changes.
        Dynamic = "dynamic",
        /// Only the expert may see it.
        Private = "private",
    }
}

wire::string_enum! {
    /// How long state lasts.
    Scope {
        /// Permanently.
        #[default]
        Persistent = "persistent",
        /// For one session.
        Session = "session",
    }
}

/// A declared input or output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type, normally one of `TYPES`.
    pub kind: String,
    /// A description.
    pub description: Option<String>,
    /// The permitted values, each as written; empty if unrestricted.
    pub options: Vec<String>,
}

/// A function.
#[derive(Clone, Debug)]
pub struct Function {
    /// The file.
    pub path: String,
    /// Its name; empty where it has none.
    pub name: Spanned<String>,
    /// A description.
    pub description: String,
    /// The declared inputs.
    pub inputs: Listing<Parameter>,
    /// The declared outputs.
    pub outputs: Listing<Parameter>,
    /// The abstract tools it uses.
    pub tools: Listing<Spanned<String>>,
    /// The knowledge it may read.
    pub knowledge: Listing<Spanned<String>>,
    /// Where it runs.
    pub session: FunctionSession,
    /// The text after the frontmatter.
    pub body: String,
}

/// A process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The file.
    pub path: String,
    /// Its name; empty where it has none.
    pub name: Spanned<String>,
    /// A description.
    pub description: String,
    /// The trigger that it is written for.
    pub trigger: Option<Spanned<String>>,
    /// The declared inputs.
    pub inputs: Listing<Parameter>,
    /// The declared outputs.
    pub outputs: Listing<Parameter>,
    /// The functions it uses.
    pub functions: Listing<Spanned<String>>,
    /// The abstract tools it uses.
    pub tools: Listing<Spanned<String>>,
    /// Where it keeps working data.
    pub scratchpad: Option<Spanned<String>>,
    /// The files that are read before its first step.
    pub context: Listing<Spanned<String>>,
    /// Its own part of `execution` and `delivery`.
    pub settings: ProcessSettings,
    /// The text after the frontmatter.
    pub body: String,
}

/// An operation of an abstract tool.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// The tier that its author suggests; what counts is the policy of the package.
    pub approval: Option<Spanned<String>>,
    /// Where the name is written.
    pub at: At,
    /// A description.
    pub description: Option<String>,
    /// The names of its inputs.
    pub inputs: Vec<String>,
}

/// An abstract tool.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The file.
    pub path: String,
    /// Its name; empty where it has none.
    pub name: Spanned<String>,
    /// A description.
    pub description: Option<String>,
    /// Its operations.
    pub operations: Listing<Operation>,
}

/// A piece of knowledge.
#[derive(Clone, Debug)]
pub struct Knowledge {
    /// The file.
    pub path: String,
    /// Its name, or its file's.
    pub name: String,
    /// A description.
    pub description: Option<String>,
    /// How it may be used.
    pub kind: KnowledgeKind,
}

/// A template of a state file.
#[derive(Clone, Debug)]
pub struct State {
    /// The file.
    pub path: String,
    /// How long it lasts.
    pub scope: Scope,
    /// Its initial content.
    pub template: String,
}

impl Function {
    /// Reads a function's file; `None` if its frontmatter could not be read.
    pub fn from_text(path: &str, text: &str, report: &mut FileReport<'_>) -> Option<Self> {
        let file = markdown::read_markdown(text, Head::Required, report);
        check_body(file.body, report);
        let mut fields = Fields::new(map_entries(file.head.as_ref()?), At::TOP, report);
        let function = Self {
            path: path.to_owned(),
            name: fields.required_name(NameKind::Function, "classify-mail"),
            description: fields.required_text("description", "what it does, in one line").value,
            inputs: read_values(&mut fields, "inputs", false),
            outputs: read_values(&mut fields, "outputs", true),
            tools: fields.distinct_texts("tools", "tool"),
            knowledge: read_paths(&mut fields, "knowledge"),
            session: fields
                .word("session", FunctionSession::NAMES)
                .map_or_else(Default::default, |word| word.value),
            body: file.body.to_owned(),
        };
        fields.texts("tags");
        if skill::is_skill(path) {
            skill::read_fields(&mut fields);
        }
        fields.finish();
        Some(function)
    }
}

impl Process {
    /// Reads a process's file; `None` if its frontmatter could not be read.
    pub fn from_text(path: &str, text: &str, report: &mut FileReport<'_>) -> Option<Self> {
        let file = markdown::read_markdown(text, Head::Required, report);
        check_body(file.body, report);
        let mut fields = Fields::new(map_entries(file.head.as_ref()?), At::TOP, report);
        let process = Self {
            path: path.to_owned(),
            name: fields.required_name(NameKind::Other("a process"), "triage-mail"),
            description: fields.required_text("description", "what it does, in one line").value,
            trigger: fields.reference("trigger"),
            inputs: read_values(&mut fields, "inputs", false),
            outputs: read_values(&mut fields, "outputs", true),
            functions: fields.texts("functions"),
            tools: fields.distinct_texts("tools", "tool"),
            scratchpad: read_scratchpad(&mut fields),
            context: read_paths(&mut fields, "context"),
            settings: ProcessSettings::from_fields(&mut fields, true),
            body: file.body.to_owned(),
        };
        fields.texts("tags");
        fields.finish();
        Some(process)
    }
}

impl Tool {
    /// Reads a tool's file; `None` if it is not a map.
    pub fn from_node(path: &str, root: &Node, report: &mut FileReport<'_>) -> Option<Self> {
        let empty = Vec::new();
        let entries = match &root.value {
            Value::Map(entries) => entries,
            Value::Null => &empty,
            other => {
                let message = format!("a tool's file is {} here, but it must be a map", other.kind());
                report.add(Code::WrongType, root.at, message, "begin with name: …");
                return None;
            }
        };
        let mut fields = Fields::new(entries, At::TOP, report);
        let name = fields.required_name(NameKind::Tool, "crm");
        let description = fields.text("description").map(|text| text.value);
        let mut seen = HashSet::new();
        let mut operations = fields.maps("operations", |fields| Operation::from_fields(fields, &mut seen));
        let count = operations.items.len();
        operations.items.retain(|operation| !operation.name.is_empty());
        operations.is_complete &= operations.items.len() == count;
        fields.finish();
        Some(Self { path: path.to_owned(), name, description, operations })
    }
}

impl Operation {
    fn from_fields(mut fields: Fields<'_, '_, '_>, seen: &mut HashSet<String>) -> Self {
        let name = fields.required_name(NameKind::Tool, "get_contact");
        note_repeated("operation", &name, seen, fields.report);
        let description = fields.text("description").map(|text| text.value);
        let approval = fields.text("approval");
        if let Some(tier) = approval.as_ref().filter(|tier| !Tier::NAMES.contains(&tier.value.as_str())) {
            let message =
                format!("`approval` is \"{}\", which is not a tier; nothing reads it here", tier.value);
            let help = format!(
                "tiers are {}; what counts is policy.approval in expert.yaml",
                Tier::NAMES.join(", ")
            );
            fields.report.warn(Code::WrongEnum, tier.at, message, help);
        }
        let inputs = read_shape(&mut fields, "input");
        read_shape(&mut fields, "output");
        fields.finish();
        Self { name: name.value, at: name.at, approval, description, inputs }
    }
}

/// Checks a schema in a tool file and returns the names of its properties.
fn read_shape(owner: &mut Fields<'_, '_, '_>, name: &'static str) -> Vec<String> {
    let mut properties = Vec::new();
    let Some(mut shape) = owner.map(name) else { return properties };
    check_type(&mut shape);
    for entry in shape.entries_of("properties").unwrap_or_default() {
        properties.push(entry.key.value.clone());
        nested_shape(&mut shape, entry);
    }
    if let Some(items) = shape.value("items") {
        nested_node(&mut shape, "items", items);
    }
    shape.ignore_others();
    properties
}

fn nested_shape(owner: &mut Fields<'_, '_, '_>, entry: &Entry) {
    nested_node(owner, &entry.key.value, &entry.value);
}

/// Checks a nested schema. The parser bounds the depth of the tree.
fn nested_node(owner: &mut Fields<'_, '_, '_>, name: &str, node: &Node) {
    let Value::Map(entries) = &node.value else {
        owner.wrong_type(name, node, "a map with a `type`");
        return;
    };
    let mut shape = Fields::new(entries, node.at, owner.report);
    check_type(&mut shape);
    for entry in shape.entries_of("properties").unwrap_or_default() {
        nested_shape(&mut shape, entry);
    }
    if let Some(items) = shape.value("items") {
        nested_node(&mut shape, "items", items);
    }
}

fn check_type(fields: &mut Fields<'_, '_, '_>) {
    if let Some(kind) = fields.text("type") {
        note_unknown_type(&kind, fields.report);
    }
}

fn note_unknown_type(kind: &Spanned<String>, report: &mut FileReport<'_>) {
    if !kind.value.is_empty() && !TYPES.contains(&kind.value.as_str()) {
        let message = format!("there is no type \"{}\"", kind.value);
        let near = super::diagnostic::suggest_nearest(&kind.value, TYPES);
        report.add(Code::UnknownType, kind.at, message, format!("{near}types: {}", TYPES.join(", ")));
    }
}

impl Knowledge {
    /// Reads a knowledge file.
    pub fn from_text(path: &str, text: &str, report: &mut FileReport<'_>) -> Option<Self> {
        let file = markdown::read_markdown(text, Head::Optional, report);
        let is_unread = file.head.is_none() && file.body.len() < text.len();
        let mut fields = Fields::new(file.head.as_ref().map_or(&[], map_entries), At::TOP, report);
        let name = fields.text("name").filter(|name| !name.value.trim().is_empty());
        let name = name.map(|name| checked_name(name, NameKind::Other("knowledge"), fields.report).value);
        let description = fields.text("description").map(|text| text.value);
        let written_kind = fields.value_of("type").is_some();
        let kind = fields.word("type", KnowledgeKind::NAMES);
        fields.texts("tags");
        fields.finish();
        if is_unread || (written_kind && kind.is_none()) {
            return None;
        }
        Some(Self {
            path: path.to_owned(),
            name: name.unwrap_or_else(|| file_stem(path).to_owned()),
            description: description.or_else(|| markdown::first_heading(file.body).map(str::to_owned)),
            kind: kind.map_or(KnowledgeKind::Static, |word| word.value),
        })
    }
}

impl State {
    /// Reads a template of state.
    pub fn from_text(path: &str, text: &str, report: &mut FileReport<'_>) -> Option<Self> {
        let file = markdown::read_markdown(text, Head::Optional, report);
        let mut fields = Fields::new(file.head.as_ref().map_or(&[], map_entries), At::TOP, report);
        if let Some(name) = fields.text("name") {
            checked_name(name, NameKind::Other("state"), fields.report);
        }
        fields.text("description");
        let scope = fields.word("scope", Scope::NAMES).map_or(Scope::Persistent, |word| word.value);
        fields.finish();
        Some(Self { path: path.to_owned(), scope, template: text.to_owned() })
    }
}

/// Returns the text of a persona file or the orchestrator, without its frontmatter.
pub(crate) fn plain_body(text: &str, report: &mut FileReport<'_>) -> String {
    let file = markdown::read_markdown(text, Head::Skipped, report);
    check_body(file.body, report);
    file.body.trim().to_owned()
}

/// Returns the name of a file without its folders and extension.
pub(crate) fn file_stem(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.rsplit_once('.').map_or(file, |(stem, _)| stem)
}

fn map_entries(head: &Node) -> &[Entry] {
    match &head.value {
        Value::Map(entries) => entries,
        _ => &[],
    }
}

fn check_body(body: &str, report: &mut FileReport<'_>) {
    if body.trim().is_empty() {
        report.add(Code::EmptyBody, At::TOP, "the file has no text", "write what the model should do");
    }
}

/// Reports a name that was used before.
pub(crate) fn note_repeated(
    what: &str,
    name: &Spanned<String>,
    seen: &mut HashSet<String>,
    report: &mut FileReport<'_>,
) {
    if !name.value.is_empty() && !seen.insert(name.value.clone()) {
        let message = format!("there is another {what} named \"{}\"", name.value);
        report.add(Code::DuplicateName, name.at, message, "give one of the two another name");
    }
}

fn read_values(fields: &mut Fields<'_, '_, '_>, name: &'static str, has_options: bool) -> Listing<Parameter> {
    let mut seen = HashSet::new();
    let what = name.trim_end_matches('s');
    let mut values = fields.maps(name, |fields| read_value(fields, has_options, what, &mut seen));
    let count = values.items.len();
    values.items.retain(|value| !value.name.is_empty());
    values.is_complete &= values.items.len() == count;
    values
}

fn read_value(
    mut fields: Fields<'_, '_, '_>,
    has_options: bool,
    what: &str,
    seen: &mut HashSet<String>,
) -> Parameter {
    let name = fields.required_name(NameKind::Other("an input or an output"), "message_id");
    note_repeated(what, &name, seen, fields.report);
    let kind = fields.required_text("type", "string");
    note_unknown_type(&kind, fields.report);
    let description = fields.text("description").map(|text| text.value);
    let options = if has_options { read_options(&mut fields, &kind.value) } else { Vec::new() };
    fields.finish();
    Parameter { name: name.value, kind: kind.value, description, options }
}

fn read_options(fields: &mut Fields<'_, '_, '_>, kind: &str) -> Vec<String> {
    let Some(node) = fields.value("enum") else { return Vec::new() };
    let Value::List(items) = &node.value else {
        fields.wrong_list("enum", node, "a list");
        return Vec::new();
    };
    let mut options = Vec::new();
    for item in items {
        match &item.value {
            Value::Text(text) | Value::Number(text) => options.push(text.clone()),
            Value::Bool(value) => options.push(value.to_string()),
            _ => {
                fields.wrong_type("an entry of enum", item, "a text or a number");
                continue;
            }
        }
        note_foreign_option(item, kind, fields.report);
    }
    options
}

/// Reports a permitted value that is not of the declared type: no output can have it.
fn note_foreign_option(item: &Node, kind: &str, report: &mut FileReport<'_>) {
    let (is_number, is_bool) = (matches!(item.value, Value::Number(_)), matches!(item.value, Value::Bool(_)));
    let fits = match kind {
        "string" => !is_bool,
        "number" | "integer" => is_number,
        "boolean" => is_bool,
        "object" | "array" => false,
        _ => true,
    };
    if !fits {
        let message = format!("an entry of `enum` is {}, but the type is {kind}", item.value.kind());
        let help =
            if kind == "string" { "write it in quotes" } else { "correct the type, or remove the entry" };
        report.warn(Code::WrongEnum, item.at, message, help);
    }
}

/// Returns a list of paths; one that leaves the package is reported and left out.
fn read_paths(fields: &mut Fields<'_, '_, '_>, name: &'static str) -> Listing<Spanned<String>> {
    let mut list = fields.distinct_texts(name, "path");
    list.items.retain(|path| !note_escape(path, fields.report));
    list
}

/// Reports a path whose text alone leaves the package.
pub(crate) fn note_escape(path: &Spanned<String>, report: &mut FileReport<'_>) -> bool {
    let Some(why) = super::path::escape_reason(&path.value) else { return false };
    let message = format!("the path \"{}\" leaves the package: {why}", path.value);
    report.add(
        Code::PathEscape,
        path.at,
        message,
        "write a path inside of the package, such as knowledge/prices.md",
    );
    true
}

fn read_scratchpad(fields: &mut Fields<'_, '_, '_>) -> Option<Spanned<String>> {
    let path = fields.reference("scratchpad")?;
    if note_escape(&path, fields.report) {
        return None;
    }
    let wanted = super::path::normalize(&path.value);
    if !wanted.starts_with("scratch/") || wanted.ends_with('/') {
        let message = format!("the scratchpad \"{}\" is not a file in scratch/", path.value);
        let help = "write a path such as scratch/triage-{message_id}.md; files there are removed when the process is done";
        fields.report.add(Code::PathEscape, path.at, message, help);
        return None;
    }
    Some(path)
}
