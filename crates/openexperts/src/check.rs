//! Checks the references between a package's files. A reference into something that could not be read is not
//! judged. Pure; called by `load`.

use std::collections::{HashMap, HashSet};

use super::component::{FunctionSession, Process, note_repeated};
use super::diagnostic::{At, Code, FileReport, Report, Spanned, suggest_nearest};
use super::effect::check_effects;
use super::fields::Listing;
use super::label::{call_name, function_name};
use super::manifest::{Concurrency, Trigger, TriggerKind};
use super::package::{Package, collect_names};
use super::policy::Tier;
use super::resolve::Lane;
use super::settings::{Execution, ExecutionFields};
use super::{MANIFEST, markdown, path};

/// Checks the references of a package.
pub(crate) fn check_package(package: &Package, report: &mut Report) {
    check_repeated_names(package, report);
    check_function_names(package, report);
    let known = Known::from_package(package);
    check_triggers(package, &known, &mut report.file(MANIFEST));
    check_tools(package, &known, report);
    check_overrides(package, &known, &mut report.file(MANIFEST));
    check_suggested_tiers(package, report);
    check_resume(package, report);
    check_effects(package, report);
    for function in &package.functions.items {
        let mut file = report.file(&function.path);
        known.check_tools(&function.tools, &mut file);
        for path in &function.knowledge.items {
            known.check_knowledge(path, &mut file);
        }
    }
    for process in &package.processes.items {
        check_process(process, package, &known, &mut report.file(&process.path));
    }
}

/// The names that references may use; a list that could not be read completely is `None` and judges nothing.
struct Known<'p> {
    tools: Option<HashSet<&'p str>>,
    functions: Option<HashSet<&'p str>>,
    processes: Option<HashSet<&'p str>>,
    triggers: Option<HashSet<&'p str>>,
    knowledge: Option<HashSet<String>>,
    context: Option<HashSet<String>>,
}

/// Returns the names in a list, if the list is complete and every entry has one.
fn complete_names<'p, T>(
    list: &'p Listing<T>,
    name: impl Fn(&'p T) -> &'p Spanned<String>,
) -> Option<HashSet<&'p str>> {
    let all_named = list.items.iter().all(|item| !name(item).value.is_empty());
    (list.is_complete && all_named).then(|| collect_names(list.items.iter().map(name)))
}

fn complete_paths(list: &Listing<Spanned<String>>) -> Option<HashSet<String>> {
    list.is_complete.then(|| list.items.iter().map(|path| path::normalize(&path.value)).collect())
}

impl<'p> Known<'p> {
    fn from_package(package: &'p Package) -> Self {
        let manifest = &package.manifest;
        let knowledge = complete_paths(&manifest.components.knowledge);
        let state = complete_paths(&manifest.components.state);
        let context = knowledge
            .as_ref()
            .zip(state)
            .map(|(knowledge, state)| knowledge.union(&state).cloned().collect());
        Self {
            tools: complete_names(&manifest.tools, |name| name),
            functions: complete_names(&package.functions, |function| &function.name),
            processes: complete_names(&package.processes, |process| &process.name),
            triggers: complete_names(&manifest.triggers, |trigger| &trigger.name),
            knowledge,
            context,
        }
    }

    fn check_tools(&self, tools: &Listing<Spanned<String>>, report: &mut FileReport<'_>) {
        tools.items.iter().for_each(|tool| self.check_tool(tool, report));
    }

    fn check_tool(&self, tool: &Spanned<String>, report: &mut FileReport<'_>) {
        let Some(tools) = &self.tools else { return };
        if !tools.contains(tool.value.as_str()) {
            let message = format!("the tool \"{}\" is not in requires.tools of expert.yaml", tool.value);
            let near = suggest_nearest(&tool.value, tools.iter().copied());
            report.add(
                Code::UndeclaredTool,
                tool.at,
                message,
                format!("{near}add it to requires.tools, or remove it here"),
            );
        }
    }

    fn check_knowledge(&self, path: &Spanned<String>, report: &mut FileReport<'_>) {
        let Some(knowledge) = &self.knowledge else { return };
        if !knowledge.contains(&path::normalize(&path.value)) {
            let message = format!("\"{}\" is not in components.knowledge", path.value);
            let near = suggest_nearest(&path.value, knowledge.iter().map(String::as_str));
            report.add(
                Code::UnlistedKnowledge,
                path.at,
                message,
                format!("{near}list the file in expert.yaml"),
            );
        }
    }
}

fn check_repeated_names(package: &Package, report: &mut Report) {
    let mut seen = HashSet::new();
    for trigger in &package.manifest.triggers.items {
        note_repeated("trigger", &trigger.name, &mut seen, &mut report.file(MANIFEST));
    }
    seen.clear();
    for function in &package.functions.items {
        note_repeated("function", &function.name, &mut seen, &mut report.file(&function.path));
    }
    seen.clear();
    for process in &package.processes.items {
        note_repeated("process", &process.name, &mut seen, &mut report.file(&process.path));
    }
    seen.clear();
    for tool in &package.tools.items {
        note_repeated("tool", &tool.name, &mut seen, &mut report.file(&tool.path));
    }
}

/// Reports operations and isolated functions whose names become equal once some characters are replaced for
/// the model, which could not distinguish them or their tiers.
fn check_function_names(package: &Package, report: &mut Report) {
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut note = |name: String, title: String, file: &str, at: At| {
        let first = seen.entry(name.clone()).or_insert_with(|| title.clone());
        // Exact duplicates have been reported already.
        if *first != title {
            let message = format!("{title} has the name `{name}` for the model, and so has {first}");
            let help =
                "give one of the two another name; `.`, `:` and the like become `_`, and 64 characters count";
            report.file(file).add(Code::DuplicateName, at, message, help);
        }
    };
    for tool in package.offered_tools() {
        for operation in &tool.operations.items {
            let (tool_name, name) = (&tool.name.value, &operation.name);
            note(function_name(tool_name, name), format!("{tool_name}.{name}"), &tool.path, operation.at);
        }
    }
    let functions = package.functions.items.iter();
    for one in functions.filter(|function| function.session == FunctionSession::Isolated) {
        let name = &one.name;
        note(call_name(&name.value), format!("the isolated function {}", name.value), &one.path, name.at);
    }
}

fn check_triggers(package: &Package, known: &Known<'_>, report: &mut FileReport<'_>) {
    for trigger in &package.manifest.triggers.items {
        let process = &trigger.process;
        if let Some(processes) = &known.processes
            && !process.value.is_empty()
            && !processes.contains(process.value.as_str())
        {
            let message = format!("there is no process \"{}\" in components.processes", process.value);
            let near = suggest_nearest(&process.value, processes.iter().copied());
            report.add(
                Code::UnknownProcess,
                process.at,
                message,
                format!("{near}write the name of a process"),
            );
        }
        if let Some(tool) = trigger.requires_tool.as_ref().filter(|_| trigger.kind != Some(TriggerKind::Cron))
        {
            known.check_tool(tool, report);
        }
        check_mapping(trigger, package, report);
        if trigger.kind == Some(TriggerKind::Cron) {
            check_clock_paths(trigger, report);
        }
        check_lane(trigger, package, report);
    }
}

fn check_mapping(trigger: &Trigger, package: &Package, report: &mut FileReport<'_>) {
    let name = &trigger.process.value;
    let is_meant = |process: &&Process| !name.is_empty() && process.name.value == *name;
    // Two processes of one name have been reported already; an input of either is known.
    let processes: Vec<&Process> = package.processes.items.iter().filter(is_meant).collect();
    if processes.is_empty() || !processes.iter().all(|process| process.inputs.is_complete) {
        return;
    }
    for (input, _) in &trigger.mapping {
        if let Some(near) = unknown_input(&processes, &input.value) {
            let message = format!("the process {name} declares no input \"{}\"", input.value);
            report.add(
                Code::UnknownInput,
                input.at,
                message,
                format!("{near}declare it in `inputs` of the process"),
            );
        }
    }
}

/// Returns a hint if the process declares no such input.
fn unknown_input(processes: &[&Process], name: &str) -> Option<String> {
    let inputs = || processes.iter().flat_map(|process| &process.inputs.items);
    let declared = || inputs().map(|input| input.name.as_str());
    (declared().all(|input| input != name)).then(|| suggest_nearest(name, declared()))
}

/// Checks the concurrency of a trigger, including what it inherits.
fn check_lane(trigger: &Trigger, package: &Package, report: &mut FileReport<'_>) {
    let Some(lane) = Lane::from_trigger(trigger, &package.manifest) else { return };
    if lane.mode != Concurrency::SerialPerKey {
        if let Some(path) = &trigger.concurrency.key.path {
            let message = format!("`concurrency_key` has no effect with concurrency: {}", lane.mode);
            report.add(
                Code::IgnoredField,
                path.at,
                message,
                "write concurrency: serial_per_key, or remove the key",
            );
        }
        return;
    }
    let is_faulty = trigger.concurrency.key.is_faulty
        || (lane.key.is_none() && package.manifest.concurrency.key.is_faulty);
    if is_faulty {
        return;
    }
    if lane.key.is_none() {
        let message = "the field `concurrency_key` is missing, and `concurrency.key` of the package too, but the mode is serial_per_key";
        report.add(Code::MissingField, trigger.at, message, "write concurrency_key: a path into the payload");
    } else if trigger.kind == Some(TriggerKind::Cron) && !has_clock_key(trigger, &lane) {
        let at = trigger.concurrency.mode.mode.as_ref().map_or(trigger.at, |mode| mode.at);
        let message = "the payload of a cron trigger has no such key, so every run of serial_per_key falls back to serial";
        let help = "write concurrency: serial for this trigger, or a key that its payload has: scheduled_at, fired_at";
        report.add(Code::UnresolvableKey, at, message, help);
    }
}

/// Reports paths that lead to nothing in the payload of a clock.
fn check_clock_paths(trigger: &Trigger, report: &mut FileReport<'_>) {
    let mapped = trigger.mapping.iter().map(|(input, path)| (input.at, path));
    for (at, path) in mapped.filter(|(_, path)| !CLOCK_FIELDS.contains(&path.as_str())) {
        let message = format!("the payload of a cron trigger has no \"{path}\"");
        report.add(Code::UnresolvableKey, at, message, format!("it has: {}", CLOCK_FIELDS.join(", ")));
    }
}

/// The fields of a clock's payload.
const CLOCK_FIELDS: [&str; 2] = ["scheduled_at", "fired_at"];

/// Returns true if the key of a cron trigger's lane is in its payload or among the inputs mapped from it.
fn has_clock_key(trigger: &Trigger, lane: &Lane) -> bool {
    let is_field = |path: &str| CLOCK_FIELDS.contains(&path);
    let key = lane.key.as_deref().unwrap_or_default();
    is_field(key) || trigger.mapping.iter().any(|(input, path)| input.value == key && is_field(path))
}

fn check_tools(package: &Package, known: &Known<'_>, report: &mut Report) {
    let described = complete_names(&package.tools, |tool| &tool.name);
    for tool in &package.manifest.tools.items {
        if described.as_ref().is_some_and(|described| !described.contains(tool.value.as_str())) {
            let message = format!(
                "no tool file describes \"{}\", so its operations are unknown before it is bound",
                tool.value
            );
            let help = "add a file to components.tools with its operations";
            report.file(MANIFEST).add(Code::ToolWithoutFile, tool.at, message, help);
        }
    }
    for tool in package.offered_tools().filter(|tool| tool.operations.is_complete) {
        if tool.operations.items.is_empty() {
            let message =
                format!("the tool \"{}\" has no operations, so nothing of it is offered", tool.name.value);
            let help = "list under `operations` what the expert may call";
            report.file(&tool.path).add(Code::NoOperations, tool.name.at, message, help);
        }
    }
    let Some(required) = &known.tools else { return };
    for tool in &package.tools.items {
        let name = &tool.name;
        if !name.value.is_empty() && !required.contains(name.value.as_str()) {
            let message =
                format!("the tool \"{}\" is not in requires.tools, so it is never offered", name.value);
            let near = suggest_nearest(&name.value, required.iter().copied());
            report.file(&tool.path).add(
                Code::ToolNotRequired,
                name.at,
                message,
                format!("{near}add it to requires.tools of expert.yaml"),
            );
        }
    }
}

fn check_overrides(package: &Package, known: &Known<'_>, report: &mut FileReport<'_>) {
    for one in &package.manifest.policy.overrides.items {
        let key = &one.key;
        let why = match key.value.split_once('.') {
            Some((tool, operation))
                if !tool.is_empty() && !operation.is_empty() && !operation.contains('.') =>
            {
                unknown_operation(package, known, tool, operation)
            }
            _ => Some(("it is not written as tool.operation".to_owned(), String::new())),
        };
        if let Some((why, near)) = why {
            let policy = &package.manifest.policy;
            let message = format!("the override \"{}\" has no effect: {why}", key.value);
            let help = format!("{near}write tool.operation as the tool files name them");
            // The operation that is meant would run with more freedom than its author gives it.
            if one.tier.freedom() < policy.default.freedom() {
                report.fail(Code::UnknownOverride, key.at, message, help);
            } else {
                report.add(Code::UnknownOverride, key.at, message, help);
            }
        }
    }
}

/// Reports a tier in a tool's file that differs from the policy's, because it has no effect.
fn check_suggested_tiers(package: &Package, report: &mut Report) {
    let policy = &package.manifest.policy;
    for tool in package.tools.items.iter().filter(|_| policy.overrides.is_complete) {
        for operation in &tool.operations.items {
            let tier = policy.read_tier(&tool.name.value, &operation.name).as_str();
            let name = format!("{}.{}", tool.name.value, operation.name);
            let Some(written) = operation.approval.as_ref().filter(|written| written.value != tier) else {
                continue;
            };
            // Any other text has been reported already.
            if Tier::NAMES.contains(&written.value.as_str()) {
                let message =
                    format!("`approval: {}` has no effect here: the tier of {name} is {tier}", written.value);
                let help = format!(
                    "write `{name}: {}` under policy.approval.overrides in expert.yaml, or remove this line",
                    written.value
                );
                report.file(&tool.path).warn(Code::IgnoredField, written.at, message, help);
            }
        }
    }
}

fn unknown_operation(
    package: &Package,
    known: &Known<'_>,
    tool: &str,
    operation: &str,
) -> Option<(String, String)> {
    if let Some(tools) = &known.tools
        && !tools.contains(tool)
    {
        return Some((
            format!("the tool \"{tool}\" is not in requires.tools"),
            suggest_nearest(tool, tools.iter().copied()),
        ));
    }
    // Two files of one tool have been reported already; an operation of either is known.
    let files = || package.tools.items.iter().filter(|file| file.name.value == tool);
    let file = files().next()?;
    let operations =
        || files().flat_map(|file| &file.operations.items).map(|operation| operation.name.as_str());
    let is_unknown =
        files().all(|file| file.operations.is_complete) && operations().all(|name| name != operation);
    is_unknown.then(|| {
        (format!("{} has no operation \"{operation}\"", file.path), suggest_nearest(operation, operations()))
    })
}

fn check_process(process: &Process, package: &Package, known: &Known<'_>, report: &mut FileReport<'_>) {
    known.check_tools(&process.tools, report);
    for function in &process.functions.items {
        if known.functions.as_ref().is_some_and(|known| !known.contains(function.value.as_str())) {
            let message = format!("there is no function \"{}\" in components.functions", function.value);
            let near = suggest_nearest(&function.value, known.functions.iter().flatten().copied());
            report.add(
                Code::UnknownFunction,
                function.at,
                message,
                format!("{near}write the name of a function"),
            );
        }
    }
    for path in &process.context.items {
        if known.context.as_ref().is_some_and(|known| !known.contains(&path::normalize(&path.value))) {
            let message =
                format!("\"{}\" is neither in components.knowledge nor in components.state", path.value);
            report.add(Code::UnlistedContext, path.at, message, "list the file in expert.yaml");
        }
    }
    if let Some(trigger) = &process.trigger {
        check_trigger_of(process, trigger, package, known, report);
    }
    check_scratchpad(process, report);
    check_named_operations(process, package, known, report);
}

/// Checks the operations that a process's text names as `tool.operation`, by which its steps are ticked.
fn check_named_operations(
    process: &Process,
    package: &Package,
    known: &Known<'_>,
    report: &mut FileReport<'_>,
) {
    let text = package.files.get(&process.path).map(String::as_str).unwrap_or_default();
    let head = text.strip_suffix(process.body.as_str()).unwrap_or_default();
    let first_line = head.matches('\n').count() + 1;
    let is_name = |operation: &&str| operation.chars().all(|c| c.is_alphanumeric() || "_-:/".contains(c));
    for (number, line) in process.body.lines().enumerate() {
        let mut column = 1;
        for (index, part) in line.split('`').enumerate() {
            let named = part.split_once('.').filter(|(_, operation)| index % 2 == 1 && is_name(operation));
            let of_tool =
                named.filter(|(tool, _)| package.offered_tools().any(|file| file.name.value == *tool));
            let unknown =
                of_tool.and_then(|(tool, operation)| unknown_operation(package, known, tool, operation));
            if let Some((why, near)) = unknown {
                let at = At { line: first_line + number, column, width: part.chars().count() };
                let message = format!("the process names \"{part}\", but {why}");
                let help = format!("{near}write it as the tool's file does");
                report.add(Code::UnknownOperation, at, message, help);
            }
            if let Some(near) =
                Some(part).filter(|_| index % 2 == 1).and_then(|part| misspelt_function(package, known, part))
            {
                let at = At { line: first_line + number, column, width: part.chars().count() };
                let message = format!("the process names \"{part}\", which is not a function of the package");
                report.add(Code::UnknownFunction, at, message, format!("{near}write the name of a function"));
            }
            column += part.chars().count() + 1;
        }
    }
}

/// Returns the function that was probably meant, for a name with a `-` that the package does not have.
fn misspelt_function(package: &Package, known: &Known<'_>, name: &str) -> Option<String> {
    let is_name = name.contains('-') && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let functions = known.functions.as_ref().filter(|_| is_name)?;
    let is_trigger = package.manifest.triggers.items.iter().any(|trigger| trigger.name.value == name);
    let near = suggest_nearest(name, functions.iter().copied());
    let is_other = functions.contains(name) || is_trigger || package.process(name).is_some();
    (!is_other && !near.is_empty()).then_some(near)
}

fn check_trigger_of(
    process: &Process,
    trigger: &Spanned<String>,
    package: &Package,
    known: &Known<'_>,
    report: &mut FileReport<'_>,
) {
    // Two triggers of one name have been reported already; either may run this process.
    let named = || package.manifest.triggers.items.iter().filter(|one| one.name.value == trigger.value);
    let Some(first) = named().next() else {
        if let Some(triggers) = &known.triggers {
            let message = format!("there is no trigger \"{}\" in expert.yaml", trigger.value);
            let near = suggest_nearest(&trigger.value, triggers.iter().copied());
            report.add(
                Code::UnknownTrigger,
                trigger.at,
                message,
                format!("{near}write the name of a trigger, or none"),
            );
        }
        return;
    };
    let runs = first.process.value.as_str();
    let is_known = known.processes.as_ref().is_some_and(|known| known.contains(runs));
    let is_other = named().all(|one| one.process.value != process.name.value);
    if is_known && !process.name.value.is_empty() && is_other {
        let message = format!("the trigger \"{}\" runs the process \"{runs}\", not this one", trigger.value);
        report.add(
            Code::TriggerMismatch,
            trigger.at,
            message,
            "correct `trigger` here, or `process` of the trigger",
        );
    }
}

fn check_scratchpad(process: &Process, report: &mut FileReport<'_>) {
    let Some(scratchpad) = &process.scratchpad else { return };
    if path::has_open_brace(&scratchpad.value) {
        let message = format!(
            "the scratchpad \"{}\" has a `{{` without its `}}`, so no input is filled in there",
            scratchpad.value
        );
        let help = "close the braces around the input's name, such as scratch/triage-{message_id}.md";
        report.add(Code::UnknownInput, scratchpad.at, message, help);
    }
    if !process.inputs.is_complete {
        return;
    }
    let mut seen = HashSet::new();
    for name in path::placeholders(&scratchpad.value).into_iter().filter(|name| seen.insert(*name)) {
        if let Some(near) = unknown_input(&[process], name) {
            let message = format!("the scratchpad names {{{name}}}, but the process declares no such input");
            report.add(Code::UnknownInput, scratchpad.at, message, format!("{near}declare it in `inputs`"));
        }
    }
}

/// Checks what resuming needs: attempts that may not start over, and steps at which to continue.
fn check_resume(package: &Package, report: &mut Report) {
    let package_fields = &package.manifest.settings.execution;
    let is_set = |field: Option<&Spanned<bool>>| field.is_some_and(|field| field.value);
    if let Some(resume) = &package_fields.resume
        && resume.value
        && is_set(package_fields.idempotent.as_ref())
        && !package_fields.is_resume_faulty
        && !package_fields.is_idempotent_faulty
    {
        note_idle_resume(resume.at, &mut report.file(MANIFEST));
    }
    for process in &package.processes.items {
        let mut file = report.file(&process.path);
        let own = &process.settings.execution;
        let resume = own.resume.as_ref().or(package_fields.resume.as_ref());
        let idempotent = own.idempotent.as_ref().or(package_fields.idempotent.as_ref());
        let own_at = own.resume.as_ref().or(own.idempotent.as_ref()).map(|field| field.at);
        if is_resume_doubtful(own, package_fields) {
            continue;
        }
        if let Some(at) = own_at.filter(|_| is_set(resume) && is_set(idempotent)) {
            note_idle_resume(at, &mut file);
        }
        check_steps(process, package_fields, &mut file);
    }
}

/// Returns true if a faulty field of the process, or one that it would inherit, decides if it is resumed.
fn is_resume_doubtful(own: &ExecutionFields, package: &ExecutionFields) -> bool {
    let resume = own.is_resume_faulty || (own.resume.is_none() && package.is_resume_faulty);
    let idempotent = own.is_idempotent_faulty || (own.idempotent.is_none() && package.is_idempotent_faulty);
    resume || idempotent
}

fn note_idle_resume(at: At, report: &mut FileReport<'_>) {
    let message =
        "`resume_from_execution_log` has no effect with idempotent: true, for attempts start over then";
    report.add(Code::IgnoredField, at, message, "write one of the two as false");
}

fn check_steps(process: &Process, package: &ExecutionFields, report: &mut FileReport<'_>) {
    let is_resumed = Execution::resolve(package, &process.settings.execution).resume;
    if is_resumed && !process.body.trim().is_empty() && markdown::steps(&process.body).is_empty() {
        let message = "the process resumes after a failure, but it has no steps to resume from";
        report.add(Code::NoChecklist, At::TOP, message, "write its steps as lines that begin with - [ ]");
    }
}
