//! Reads `expert.yaml` into a [`Manifest`]: each field is read and checked by itself. `check` checks what
//! needs other files. Pure.

use super::cron::schedule::Schedule;
use super::cron::{self, CronError};
use super::diagnostic::{At, Code, Diagnostic, FileReport, Report, Spanned};
use super::fields::{Fields, Listing, checked_name};
use super::name::NameKind;
use super::policy::{Learning, Policy};
use super::settings::ProcessSettings;
use super::yaml::{self, Node, Value};
use super::{MANIFEST, path};

wire::string_enum! {
    /// How invocations of a trigger run relative to each other.
    Concurrency {
        /// They run side by side.
        #[default]
        Parallel = "parallel",
        /// One after another.
        Serial = "serial",
        /// Invocations with the same key one after another.
        SerialPerKey = "serial_per_key",
    }
}

wire::string_enum! {
    /// A kind of trigger.
    TriggerKind {
        /// A request to the trigger's own endpoint.
        #[default]
        Webhook = "webhook",
        /// A clock.
        Cron = "cron",
        /// A message in a channel.
        Channel = "channel",
    }
}

wire::string_enum! {
    /// Where a triggered process runs.
    TriggerSession {
        /// In a separate run.
        #[default]
        Isolated = "isolated",
        /// In the main agent's session.
        Main = "main",
    }
}

/// A concurrency mode, and whether the written value could be read.
#[derive(Clone, Debug, Default)]
pub struct ModeField {
    /// The mode, if one is written.
    pub mode: Option<Spanned<Concurrency>>,
    /// Whether something other than a mode is written.
    pub is_faulty: bool,
}

impl ModeField {
    fn from_field(fields: &mut Fields<'_, '_, '_>, name: &'static str) -> Self {
        let is_written = fields.value(name).is_some();
        let mode = fields.word(name, Concurrency::NAMES);
        Self { is_faulty: (is_written && mode.is_none()) || fields.is_repeated(name), mode }
    }
}

/// A path into a payload, and whether the written value could be read.
#[derive(Clone, Debug, Default)]
pub struct KeyField {
    /// The path, if one is written.
    pub path: Option<Spanned<String>>,
    /// Whether something other than a path is written.
    pub is_faulty: bool,
}

impl KeyField {
    fn from_field(fields: &mut Fields<'_, '_, '_>, name: &'static str) -> Self {
        let is_written = fields.value(name).is_some();
        let path = fields.text(name).filter(|path| is_payload_path(name, path, fields.report));
        Self { is_faulty: (is_written && path.is_none()) || fields.is_repeated(name), path }
    }
}

/// One of `triggers`.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Where it is written.
    pub at: At,
    /// Its name; empty if it has none.
    pub name: Spanned<String>,
    /// The kind; `None` if it could not be read.
    pub kind: Option<TriggerKind>,
    /// The process that it runs; empty if none is named.
    pub process: Spanned<String>,
    /// A ready-made form of webhook.
    pub preset: Option<Spanned<String>>,
    /// The abstract tool whose events it takes.
    pub requires_tool: Option<Spanned<String>>,
    /// When a clock fires it.
    pub clock: ClockFields,
    /// The path of what identifies an event.
    pub dedupe_key: KeyField,
    /// Where it runs.
    pub session: TriggerSession,
    /// How its invocations run relative to each other.
    pub concurrency: ConcurrencyFields,
    /// Inputs of the process, and where they are in the payload.
    pub mapping: Vec<(Spanned<String>, String)>,
}

/// The fields that say when a clock fires.
#[derive(Clone, Debug)]
pub struct ClockFields {
    /// The times.
    pub expr: Option<Spanned<String>>,
    /// Their time zone.
    pub zone: Option<Spanned<String>>,
}

/// The fields that say how invocations run relative to each other.
#[derive(Clone, Debug)]
pub struct ConcurrencyFields {
    /// The mode.
    pub mode: ModeField,
    /// The path by which invocations are grouped.
    pub key: KeyField,
}

/// `components`, with normalised paths.
#[derive(Clone, Debug, Default)]
pub struct Components {
    /// The orchestrator.
    pub orchestrator: Option<Spanned<String>>,
    /// The persona files.
    pub persona: Listing<Spanned<String>>,
    /// The functions.
    pub functions: Listing<Spanned<String>>,
    /// The processes.
    pub processes: Listing<Spanned<String>>,
    /// The tool files.
    pub tools: Listing<Spanned<String>>,
    /// The knowledge files.
    pub knowledge: Listing<Spanned<String>>,
    /// The state templates.
    pub state: Listing<Spanned<String>>,
}

/// `expert.yaml`.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The version of the format.
    pub spec: Spanned<String>,
    /// The expert's name.
    pub name: Spanned<String>,
    /// The package's version.
    pub version: Spanned<String>,
    /// The purpose.
    pub description: Spanned<String>,
    /// The abstract tools it needs.
    pub tools: Listing<Spanned<String>>,
    /// The concurrency of triggers without their own.
    pub concurrency: ConcurrencyFields,
    /// The default for processes.
    pub settings: ProcessSettings,
    /// Whether it learns.
    pub learning: Learning,
    /// Who decides.
    pub policy: Policy,
    /// The triggers of its processes.
    pub triggers: Listing<Trigger>,
    /// Its files.
    pub components: Components,
}

impl Manifest {
    /// Reads the text of `expert.yaml` alone, with the findings about it. `None` if it is not a YAML map.
    pub fn from_yaml(text: &str) -> (Option<Self>, Vec<Diagnostic>) {
        let mut report = Report::default();
        let mut file = report.file(MANIFEST);
        let manifest = yaml::read_yaml(text, 1, &mut file).and_then(|root| Self::from_node(&root, &mut file));
        (manifest, report.into_sorted())
    }

    /// Reads the tree of `expert.yaml`. `None` if it is not a map.
    pub fn from_node(root: &Node, report: &mut FileReport<'_>) -> Option<Self> {
        let empty = Vec::new();
        let entries = match &root.value {
            Value::Map(entries) => entries,
            Value::Null => &empty,
            other => {
                let message = format!("expert.yaml is {}, but it must be a map", other.kind());
                report.add(Code::WrongType, root.at, message, "begin with spec: \"1.0\"");
                return None;
            }
        };
        let mut fields = Fields::new(entries, At::TOP, report);
        let manifest = Self::read_fields(&mut fields);
        fields.finish();
        Some(manifest)
    }

    fn read_fields(fields: &mut Fields<'_, '_, '_>) -> Self {
        let spec = required_digits(fields, "spec", "\"1.0\"");
        check_spec(&spec, fields.report);
        let name = fields.required_name(NameKind::Package, "my-expert");
        let version = required_digits(fields, "version", "\"0.1.0\"");
        check_version(&version, fields.report);
        let description = fields.required_text("description", "what the expert is for, in one line");
        // These are for people, and respool does nothing with them.
        let _ = (fields.text("author"), fields.text("license"), fields.texts("outputs"));
        Self {
            spec,
            name,
            version,
            description,
            tools: required_tools(fields),
            concurrency: read_concurrency(fields),
            settings: ProcessSettings::from_fields(fields, false),
            learning: Learning::from_fields(fields),
            policy: Policy::from_fields(fields),
            triggers: fields.maps("triggers", Trigger::from_fields),
            components: Components::from_fields(fields),
        }
    }
}

/// Returns a required text; if it was written as a number, its digits are kept.
fn required_digits(fields: &mut Fields<'_, '_, '_>, name: &'static str, example: &str) -> Spanned<String> {
    if matches!(fields.value(name).map(|node| &node.value), Some(Value::Number(_))) {
        return fields.text_or_number(name).unwrap_or(Spanned::new(String::new(), At::TOP));
    }
    fields.required_text(name, example)
}

fn check_spec(spec: &Spanned<String>, report: &mut FileReport<'_>) {
    if spec.value.is_empty() {
        return;
    }
    let mut parts = spec.value.split('.').map(str::parse::<u32>);
    let (major, minor) = (parts.next(), parts.next().unwrap_or(Ok(0)));
    let help = "write spec: \"1.0\"";
    match (major, minor) {
        (Some(Ok(1)), Ok(0)) => {}
        (Some(Ok(1)), Ok(_)) => {
            let message = format!("spec \"{}\" is newer than 1.0; what it added is ignored", spec.value);
            report.warn(Code::UnsupportedSpec, spec.at, message, help);
        }
        _ => {
            let message =
                format!("spec \"{}\" is not supported: respool reads version 1.0 of the format", spec.value);
            report.add(Code::UnsupportedSpec, spec.at, message, help);
        }
    }
}

fn check_version(version: &Spanned<String>, report: &mut FileReport<'_>) {
    if !version.value.is_empty() && semver::Version::parse(&version.value).is_err() {
        let message =
            format!("version \"{}\" is not a semantic version, so updates cannot be compared", version.value);
        report.add(Code::BadVersion, version.at, message, "write three numbers, such as \"1.4.0\"");
    }
}

fn required_tools(fields: &mut Fields<'_, '_, '_>) -> Listing<Spanned<String>> {
    let Some(mut requires) = fields.map("requires") else {
        let is_faulty = fields.value("requires").is_some() || fields.is_repeated("requires");
        return Listing { items: Vec::new(), is_complete: !is_faulty };
    };
    let mut tools = requires.distinct_texts("tools", "tool");
    let count = tools.items.len();
    let report = &mut *requires.report;
    let checked = tools.items.into_iter().map(|tool| checked_name(tool, NameKind::Tool, report));
    tools.items = checked.filter(|tool| !tool.value.is_empty()).collect();
    tools.is_complete &= tools.items.len() == count;
    requires.finish();
    tools
}

fn read_concurrency(fields: &mut Fields<'_, '_, '_>) -> ConcurrencyFields {
    let Some(mut map) = fields.map("concurrency") else {
        let is_faulty = fields.value("concurrency").is_some() || fields.is_repeated("concurrency");
        return ConcurrencyFields {
            mode: ModeField { mode: None, is_faulty },
            key: KeyField { path: None, is_faulty },
        };
    };
    let read = ConcurrencyFields {
        mode: ModeField::from_field(&mut map, "default"),
        key: KeyField::from_field(&mut map, "key"),
    };
    map.finish();
    read
}

/// Returns true if it is a path into a payload; if not, that is reported.
fn is_payload_path(field: &str, written: &Spanned<String>, report: &mut FileReport<'_>) -> bool {
    let Err(why) = path::payload_path(&written.value) else { return true };
    let message = format!("`{field}` is \"{}\", which is not a path into a payload: {why}", written.value);
    report.add(Code::BadPayloadPath, written.at, message, "write names and indexes, such as messages[0].id");
    false
}

impl ClockFields {
    /// Returns the times; `None` where none are written.
    ///
    /// # Errors
    /// The fault of the times, for people.
    pub fn schedule(&self) -> Option<Result<Schedule, CronError>> {
        let expr = self.expr.as_ref()?.value.trim();
        Some(Schedule::new(expr, self.zone.as_ref().map(|zone| zone.value.as_str())))
    }
}

impl Trigger {
    fn from_fields(mut fields: Fields<'_, '_, '_>) -> Self {
        let name = fields.required_name(NameKind::Other("a trigger"), "new_mail");
        let kind = trigger_kind(&mut fields);
        let mut process = fields.required_text("process", "the name of a process");
        if fields.is_repeated("process") {
            process.value.clear();
        }
        let mut trigger = Self {
            at: name.at,
            name,
            kind,
            process,
            preset: fields.text("preset"),
            requires_tool: fields.reference("requires_tool"),
            clock: ClockFields { expr: fields.text("expr"), zone: fields.text("tz") },
            dedupe_key: KeyField::from_field(&mut fields, "dedupe_key"),
            session: fields
                .word("session", TriggerSession::NAMES)
                .map_or(TriggerSession::Isolated, |word| word.value),
            concurrency: ConcurrencyFields {
                mode: ModeField::from_field(&mut fields, "concurrency"),
                key: KeyField::from_field(&mut fields, "concurrency_key"),
            },
            mapping: read_mapping(&mut fields),
        };
        // It is for people.
        let _ = fields.text("description");
        trigger.at = fields.owner();
        trigger.check_kind(&mut fields);
        fields.finish();
        trigger
    }

    /// Checks the fields that only some kinds of triggers have.
    fn check_kind(&self, fields: &mut Fields<'_, '_, '_>) {
        let Some(kind) = self.kind else { return };
        let is_cron = kind == TriggerKind::Cron;
        let idle: &[&str] = if is_cron { &["preset", "requires_tool"] } else { &["expr", "tz"] };
        for name in idle {
            let why = format!("the type of the trigger is {kind}");
            fields.note_idle(name, &why, &format!("remove {name}, or change the type"));
        }
        if is_cron {
            fields.note_idle("dedupe_key", "a cron trigger fires once for each time", "remove dedupe_key");
        }
        if is_cron {
            self.check_clock(fields);
        } else if let Some(preset) = self.preset.as_ref().filter(|preset| preset.value != "gmail") {
            let message = format!("there is no preset \"{}\"; the trigger stays off", preset.value);
            fields.report.add(Code::UnknownPreset, preset.at, message, "the one preset is gmail");
        }
    }

    fn check_clock(&self, fields: &mut Fields<'_, '_, '_>) {
        if fields.value_of("expr").is_none()
            || self.clock.expr.as_ref().is_some_and(|expr| expr.value.trim().is_empty())
        {
            fields.missing("expr", "\"0 8 * * 1-5\"");
        } else if let Some(expr) = &self.clock.expr
            && let Err(why) = cron::check_expression(&expr.value)
        {
            let message = format!("`expr` is \"{}\", which is not a time to fire at: {why}", expr.value);
            fields.report.add(Code::BadCron, expr.at, message, why.help());
        }
        if let Some(zone) = self.clock.zone.as_ref().filter(|zone| !cron::is_zone(&zone.value)) {
            let message =
                format!("`tz` is \"{}\", which is not a time zone of the IANA database", zone.value);
            let near = cron::nearest_zone(&zone.value).map(|near| format!("did you mean {near}? "));
            let help = format!("{}write a zone such as Europe/Vienna, or UTC", near.unwrap_or_default());
            fields.report.add(Code::BadTimezone, zone.at, message, help);
        }
    }
}

/// Returns the type; a missing one is reported.
fn trigger_kind(fields: &mut Fields<'_, '_, '_>) -> Option<TriggerKind> {
    let is_blank = |node: &Node| matches!(&node.value, Value::Text(text) if text.trim().is_empty());
    if fields.value("type").is_none_or(is_blank) {
        fields.missing("type", &TriggerKind::NAMES.join(", "));
        return None;
    }
    let kind = fields.word("type", TriggerKind::NAMES);
    kind.filter(|_| !fields.is_repeated("type")).map(|kind| kind.value)
}

fn read_mapping(fields: &mut Fields<'_, '_, '_>) -> Vec<(Spanned<String>, String)> {
    let mut mapping = Vec::new();
    for entry in fields.entries_of("payload_mapping").unwrap_or_default() {
        let mut path = String::new();
        match &entry.value.value {
            Value::Text(text) => {
                path.clone_from(text);
                is_payload_path(&entry.key.value, &Spanned::new(text.clone(), entry.value.at), fields.report);
            }
            _ => fields.wrong_type(&entry.key.value, &entry.value, "a path into the payload"),
        }
        // Its key is checked whatever its value is; if there is an error above, the package is not used.
        mapping.push((entry.key.clone(), path));
    }
    mapping
}

impl Components {
    fn from_fields(owner: &mut Fields<'_, '_, '_>) -> Self {
        if owner.value("components").is_none() {
            owner.missing("components", "a map with orchestrator, persona and functions");
            return Self::mark_unread();
        }
        let Some(mut fields) = owner.map("components") else { return Self::mark_unread() };
        let orchestrator = fields.required_text("orchestrator", "orchestrator.md");
        let read = Self {
            orchestrator: (!orchestrator.value.is_empty()).then_some(orchestrator),
            persona: required_list(&mut fields, "persona", "[persona/identity.md]"),
            functions: required_list(&mut fields, "functions", "[functions/my-function.md]"),
            processes: fields.distinct_texts("processes", "path"),
            tools: fields.distinct_texts("tools", "path"),
            knowledge: fields.distinct_texts("knowledge", "path"),
            state: fields.distinct_texts("state", "path"),
        };
        fields.finish();
        read
    }

    /// Marks the components as unread: no reference to a file is judged.
    const fn mark_unread() -> Self {
        Self {
            orchestrator: None,
            persona: Listing::unreadable(),
            functions: Listing::unreadable(),
            processes: Listing::unreadable(),
            tools: Listing::unreadable(),
            knowledge: Listing::unreadable(),
            state: Listing::unreadable(),
        }
    }
}

/// Returns a list that must not be empty; an empty one is reported, and references into it are not judged.
fn required_list(
    fields: &mut Fields<'_, '_, '_>,
    name: &'static str,
    example: &str,
) -> Listing<Spanned<String>> {
    let mut list = fields.distinct_texts(name, "path");
    if list.items.is_empty() && list.is_complete {
        let at = fields.key(name);
        fields.missing_at(name, example, at);
        list.is_complete = false;
    }
    list
}
