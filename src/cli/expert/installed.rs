//! `respool expert install, list, show`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::in_service::{checked_in_service, problem_in_service};
use super::model_check::ListedModels;
use super::output::OutputFormat;
use super::package::fetch_package;
use crate::cli::experts::hook_secrets;
use crate::cli::failure::Failure;
use crate::cli::say::{say, say_on_stderr, say_piece};
use experts::{
    CheckedBindings, ExpertsConfig, Installed, Library, RegistryEntry, RestrictedOperation, SecretPlace,
    Source, describe_off, find_restricted, prepare_state,
};
use openexperts::{
    BINDINGS, Binding, BindingType, LEARNS_ALONE, Package, Scope, Tier, Trigger, TriggerKind, learns_alone,
    path::state_file, resolved, visible,
};
use settings::approval_warning;
use settings::{Loaded, Settings};

/// Characters of a trigger's name that must be escaped in a path.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Checks a package and copies it to the installed experts.
pub(super) fn install_package(settings: &Settings, source: &str) -> Result<(), Failure> {
    let experts = &settings.experts;
    let source = Source::parse(source)?;
    let package = fetch_package(&source)?;
    let library = Library::new(&experts.dir);
    let record = library.install(&package, &source, &library.lock()?)?;
    if learns_alone(&package) {
        say_on_stderr(&format!("warning: {LEARNS_ALONE}"));
    }
    let name = &package.manifest.name.value;
    say(&format!("Installed {name} {} in {}.", visible(&record.version), library.dir().join(name).display()));
    say_piece(&describe_abilities(&package, &[]));
    say_kept_bindings(&library, name);
    state_files(experts, None, &package)?;
    super::registry::refresh_page(experts);
    if let Some(warning) = approval_warning(settings, &package) {
        say_on_stderr(&format!("warning: {warning}"));
    }
    say_piece(&describe_next(experts, &package, &bindings_of(&library, name, &package)));
    Ok(())
}

/// Returns an installed package's bindings; one whose file cannot be read has a problem.
fn bindings_of(library: &Library, folder: &str, package: &Package) -> CheckedBindings {
    match library.bindings_of(folder) {
        Ok((text, _)) => CheckedBindings::from_text(&text, package),
        Err(error) => CheckedBindings::unreadable(&error),
    }
}

/// Says how an installed package is put to work.
fn describe_next(experts: &ExpertsConfig, package: &Package, checked: &CheckedBindings) -> String {
    let name = &package.manifest.name.value;
    let mut next = String::from("Next:\n");
    if experts.model.is_none() {
        next.push_str("  set `model` in [experts] of respool.toml to a model that an upstream serves\n");
    }
    let tools = package.manifest.tools.items.iter().map(|tool| tool.value.as_str());
    let unbound: Vec<&str> = tools.filter(|tool| !checked.bindings.tools.contains_key(*tool)).collect();
    for tool in &unbound {
        let _ = writeln!(
            next,
            "  respool expert bind {name} {tool} SERVER   # [tools.mcp.SERVER]; or --type local, --type gateway"
        );
    }
    if unbound.is_empty() {
        let triggers =
            if package.manifest.triggers.items.is_empty() { "" } else { "runs its triggers, and " };
        let _ = writeln!(
            next,
            "  respool serve   # {triggers}serves it as the model expert/{name}; one that runs needs no restart"
        );
    } else {
        let _ = writeln!(next, "  respool expert validate {name}   # is it ready?");
    }
    next
}

/// Says where the bindings of a removed expert of this name are. Its package may have been by another author.
fn say_kept_bindings(library: &Library, name: &str) {
    if let Some(path) = library.removed_bindings(name) {
        let used = path.with_file_name(BINDINGS);
        let (path, used) = (path.display(), used.display());
        say(&format!(
            "Bindings of a removed expert of this name are in {path}. To use them: mv '{path}' '{used}'"
        ));
    }
}

/// Creates and updates the expert's state files.
pub(super) fn state_files(
    experts: &ExpertsConfig,
    old: Option<&Package>,
    new: &Package,
) -> Result<(), Failure> {
    let root = experts.state_of(&new.manifest.name.value);
    let written = prepare_state(&root, old, new).map_err(|error| {
        format!("the package is in place, but {} cannot be written: {error}", root.display())
    })?;
    let shown = |path: &str| visible(&root.join(path).display().to_string());
    written.iter().for_each(|path| say(&format!("state: wrote {}", shown(path))));
    let has_changed = |old: &Package, path: &String| old.files.get(path) != new.files.get(path);
    for state in old.map(|_| &new.state.items).into_iter().flatten() {
        let path = state_file(&state.path);
        let is_new = old.is_some_and(|old| has_changed(old, &state.path));
        let is_other = fs::read_to_string(root.join(&path)).is_ok_and(|text| text != state.template);
        if state.scope == Scope::Persistent && is_new && is_other {
            say(&format!(
                "state: {} stays as it is, because it has changed since: the new template is not used",
                shown(&path)
            ));
        }
    }
    Ok(())
}

/// The facts by which the readiness of experts is judged.
struct Seen<'a> {
    loaded: &'a Loaded,
    models: ListedModels<'a>,
}

impl Seen<'_> {
    /// Says why an expert is not ready, also because of its model.
    fn why_not_ready(&self, checked: &CheckedBindings, entry: &RegistryEntry) -> Option<String> {
        let name = &entry.package.manifest.name.value;
        why_not_ready(self.loaded, checked, entry).or_else(|| self.models.find_problem(name))
    }
}

pub(super) fn list_experts(loaded: &Loaded, format: OutputFormat) -> Result<(), Failure> {
    let experts = &loaded.settings.experts;
    let library = Library::new(&experts.dir);
    let installed =
        library.list().map_err(|error| format!("{} cannot be read: {error}", library.dir().display()))?;
    let seen = Seen { loaded, models: ListedModels::ask(loaded) };
    match format {
        OutputFormat::Json => {
            let all = installed.iter().map(|one| as_json(&seen, one, &library));
            say(&format!("{:#}", Value::Array(all.collect())));
        }
        OutputFormat::Text => installed.iter().for_each(|one| say(&expert_line(&seen, one, &library))),
    }
    if format == OutputFormat::Text {
        say_on_stderr(&format!("Experts in {}: {}", library.dir().display(), installed.len()));
    }
    Ok(())
}

fn folder_note(installed: &Installed) -> String {
    visible(&installed.folder())
}

fn expert_line(seen: &Seen<'_>, installed: &Installed, library: &Library) -> String {
    let conflict = installed.name_conflict.as_deref().map(visible);
    match &installed.loaded.package {
        Some(package) => {
            let manifest = &package.manifest;
            let (name, version) = (&manifest.name.value, visible(&manifest.version.value));
            let conflict = conflict.map(|conflict| format!("\n    {conflict}")).unwrap_or_default();
            let checked = bindings_of(library, &installed.folder(), package);
            let ready = describe_readiness(seen, &checked, package);
            format!("{name}  {version}  {}{conflict}\n    {ready}", one_line(&manifest.description.value))
        }
        None => match conflict {
            Some(conflict) => format!("{}  is not used: {conflict}", folder_note(installed)),
            // It stays in service as it was installed.
            None if installed.record.is_some() => format!(
                "{}  does not load, so the version before it stays in service: respool expert validate {0}",
                folder_note(installed)
            ),
            None => format!("{}  does not load: respool expert validate {0}", folder_note(installed)),
        },
    }
}

/// Says whether an expert is ready, as the running respool sees it, and to what its tools are bound. Without
/// one, the servers are not asked.
fn describe_readiness(seen: &Seen<'_>, checked: &CheckedBindings, package: &Package) -> String {
    let entry = RegistryEntry::from_bindings(package, checked);
    if let Some(why) = seen.why_not_ready(checked, &entry) {
        return format!("not ready: {}", one_line(&why));
    }
    let bound: Vec<String> = entry.bound.iter().map(|(tool, target)| format!("{tool} → {target}")).collect();
    let name = &package.manifest.name.value;
    let is_ready =
        bound.is_empty() || checked_in_service(seen.loaded).is_some_and(|it| it.ready.contains(name));
    match (is_ready, bound.join(", ")) {
        (true, bound) if bound.is_empty() => "ready".to_owned(),
        (true, bound) => one_line(&format!("ready: {bound}")),
        (false, bound) => one_line(&format!("bound, servers not asked: {bound}")),
    }
}

/// Says why an installed expert is not ready, as far as its bindings and the configuration show it.
pub(super) fn find_problem(loaded: &Loaded, name: &str) -> Option<String> {
    let library = Library::new(&loaded.settings.experts.dir);
    let Ok(installed) = library.get(name) else { return Some("it is not installed".to_owned()) };
    let Some(package) = &installed.loaded.package else { return Some("it does not load".to_owned()) };
    let checked = bindings_of(&library, &installed.folder(), package);
    let entry = RegistryEntry::from_bindings(package, &checked);
    why_not_ready(loaded, &checked, &entry).map(|why| one_line(&why))
}

/// Says that no expert has this name, where a list of its work is empty.
pub(super) fn note_unknown_expert(loaded: &Loaded, name: Option<&str>) {
    let library = Library::new(&loaded.settings.experts.dir);
    if let Some(Err(error)) = name.map(|name| library.get(name)) {
        say_on_stderr(&format!("note: {error}"));
    }
}

/// Says why an expert is not ready, as far as its bindings and the configuration show it.
fn why_not_ready(loaded: &Loaded, checked: &CheckedBindings, entry: &RegistryEntry) -> Option<String> {
    let settings = &loaded.settings;
    let is_unknown = |binding: &Binding| {
        binding.kind == BindingType::Mcp && !settings.tools.mcp.contains_key(&binding.server)
    };
    let unknown = || checked.bindings.tools.iter().find(|(_, binding)| is_unknown(binding));
    let missing = |(tool, binding): (&String, &Binding)| {
        format!("{tool} is bound to {0}, but the configuration has no [tools.mcp.{0}]", binding.server)
    };
    let no_program = |(tool, binding): (&String, &Binding)| {
        let server = settings.tools.mcp.get(&binding.server).filter(|_| binding.kind == BindingType::Mcp)?;
        let why = server.find_program_problem()?;
        Some(format!("{tool}: its MCP server {} cannot be started: {why}", binding.server))
    };
    let name = &entry.package.manifest.name.value;
    entry
        .not_ready
        .clone()
        .or_else(|| unknown().map(missing))
        .or_else(|| checked.bindings.tools.iter().find_map(no_program))
        .or_else(|| problem_in_service(loaded, name))
}

fn one_line(text: &str) -> String {
    visible(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn as_json(seen: &Seen<'_>, installed: &Installed, library: &Library) -> Value {
    let package = installed.loaded.package.as_ref();
    let checked = package.map(|package| bindings_of(library, &installed.folder(), package));
    let entry = package
        .zip(checked.as_ref())
        .map(|(package, checked)| RegistryEntry::from_bindings(package, checked));
    let manifest = installed.loaded.package.as_ref().map(|package| &package.manifest);
    json!({
        "name": manifest.map_or_else(|| folder_note(installed), |manifest| manifest.name.value.clone()),
        "directory": installed.directory.display().to_string(),
        "loads": manifest.is_some(),
        "name_conflict": installed.name_conflict,
        "version": manifest.map(|manifest| &manifest.version.value),
        "description": manifest.map(|manifest| &manifest.description.value),
        "source": installed.record.as_ref().map(|record| &record.source),
        "digest": installed.record.as_ref().map(|record| &record.digest),
        "not_ready": checked.as_ref().zip(entry.as_ref()).and_then(|(checked, entry)| seen.why_not_ready(checked, entry)),
        "bound": entry.map(|entry| entry.bound.into_iter().collect::<BTreeMap<_, _>>()),
    })
}

pub(super) fn show_expert(loaded: &Loaded, name: &str, json: bool) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let experts = &settings.experts;
    let library = Library::new(&experts.dir);
    let installed = library.get(name)?;
    let Some(package) = &installed.loaded.package else {
        return Err(Failure::Failed(format!(
            "{name} does not load; `respool expert validate {name}` says why"
        )));
    };
    let seen = Seen { loaded, models: ListedModels::ask(loaded) };
    if json {
        let mut shown = as_json(&seen, &installed, &library);
        shown["state"] = experts.state_of(name).display().to_string().into();
        shown["package"] = resolved(package);
        let checked = bindings_of(&library, &installed.folder(), package);
        shown["restricted"] = find_restricted(package, &checked.bindings, &settings.tools.policy)
            .iter()
            .map(|one| json!({"operation": one.title, "then": if one.is_denied() { "deny" } else { "ask" }, "by": one.restriction.source}))
            .collect();
        shown["hooks"] = list_hooks(settings, package, &checked).iter().map(Hook::as_json).collect();
        say(&format!("{shown:#}"));
        return Ok(());
    }
    let manifest = &package.manifest;
    say(&format!("{name} {}: {}", visible(&manifest.version.value), one_line(&manifest.description.value)));
    say(&format!("directory: {}", installed.directory.display()));
    say(&format!("state: {}", experts.state_of(name).display()));
    if let Some(record) = &installed.record {
        say(&format!("from: {}\ndigest: {}", visible(&record.source), record.digest));
    }
    let checked = bindings_of(&library, &installed.folder(), package);
    let readiness = describe_readiness(&seen, &checked, package);
    say(&format!("{readiness} (`respool expert validate {name}` also asks the servers of its tools)"));
    let restricted = find_restricted(package, &checked.bindings, &settings.tools.policy);
    say_piece(&describe_abilities(package, &restricted));
    list_hooks(settings, package, &checked).iter().for_each(|hook| say(&hook.describe()));
    Ok(())
}

/// The hook of a webhook or channel trigger.
struct Hook {
    path: String,
    /// Where its secret is, never the secret itself.
    secret: SecretPlace,
    /// Why the file of the secret cannot be written.
    problem: Option<String>,
    /// Why it accepts nothing.
    off: Option<String>,
}

impl Hook {
    fn describe(&self) -> String {
        let place = match (&self.problem, &self.secret) {
            (Some(problem), _) => format!("no secret: {problem}"),
            (None, SecretPlace::Variable(variable)) => format!("secret in the variable {variable}"),
            (None, SecretPlace::File(path)) => format!("secret in {}", path.display()),
        };
        let off = self.off.as_ref().map(|why| format!(", off: {}", visible(why))).unwrap_or_default();
        format!("hook: POST {}, {}{off}", self.path, visible(&place))
    }

    fn as_json(&self) -> Value {
        let (variable, file) = match &self.secret {
            SecretPlace::Variable(variable) => (Some(variable), None),
            SecretPlace::File(path) => (None, Some(path.display().to_string())),
        };
        json!({"path": self.path, "secret_variable": variable, "secret_file": file, "problem": self.problem, "off": self.off})
    }
}

/// Lists the hooks of a package's triggers. A secret in a file is created now, so that it can be given to the
/// sender.
fn list_hooks(settings: &Settings, package: &Package, checked: &CheckedBindings) -> Vec<Hook> {
    let secrets = hook_secrets(settings);
    let expert = &package.manifest.name.value;
    let hook = |trigger: &Trigger| {
        let name = &trigger.name.value;
        let secret = secrets.place(expert, name);
        let problem = match &secret {
            SecretPlace::Variable(_) => None,
            SecretPlace::File(_) => secrets.read_or_make(expert, name).err().map(|error| error.to_string()),
        };
        let path = format!("/hooks/{expert}/{}", utf8_percent_encode(name, PATH_SEGMENT));
        let off = describe_off(trigger, &checked.bindings);
        Hook { path, secret, problem, off }
    };
    let has_hook = |kind| matches!(kind, Some(TriggerKind::Webhook | TriggerKind::Channel));
    let triggers = package.manifest.triggers.items.iter();
    triggers.filter(|trigger| has_hook(trigger.kind)).map(hook).collect()
}

/// Says when a clock fires a trigger, in its time zone; empty for other triggers.
fn describe_clock(trigger: &Trigger, now: u64) -> String {
    let Some(expr) = &trigger.clock.expr else { return String::new() };
    let zone = trigger.clock.zone.as_ref().map(|zone| zone.value.as_str());
    let schedule = trigger.clock.schedule().and_then(Result::ok);
    let next = schedule.and_then(|schedule| Some(schedule.format_time(schedule.next_after(now)?)));
    let next = next.map(|next| format!(", next {next}")).unwrap_or_default();
    format!(" at {} in {}{next}", expr.value, zone.unwrap_or("UTC"))
}

/// Describes what a package needs, what it may do, and what starts it.
fn describe_abilities(package: &Package, restricted: &[RestrictedOperation]) -> String {
    let (tiers, manifest) = (package.tiers(), &package.manifest);
    let tools: Vec<&str> = manifest.tools.items.iter().map(|tool| tool.value.as_str()).collect();
    let mut lines = vec![("tools", tools.join(", "))];
    for (label, tier) in
        [("runs alone", Tier::Auto), ("asks first", Tier::Confirm), ("only drafts", Tier::Manual)]
    {
        let is_free = |title: &&String| restricted.iter().all(|one| one.title != **title);
        let free: Vec<&str> = tiers.operations(tier).iter().filter(is_free).map(String::as_str).collect();
        lines.push((label, free.join(", ")));
    }
    for (label, is_denied) in [("asks first too", false), ("denied", true)] {
        let are = restricted.iter().filter(|one| one.is_denied() == is_denied);
        let named = are.map(|one| format!("{} ({})", one.title, one.restriction.source));
        lines.push((label, named.collect::<Vec<_>>().join(", ")));
    }
    lines.push((
        "other operations",
        if tools.is_empty() { "" } else { manifest.policy.default.as_str() }.to_owned(),
    ));
    let functions: Vec<&str> = package.functions.items.iter().map(|one| one.name.value.as_str()).collect();
    lines.push(("functions", functions.join(", ")));
    let lanes = resolved(package);
    for trigger in &manifest.triggers.items {
        let kind = trigger.kind.map_or("?", TriggerKind::as_str);
        let lane = &lanes["triggers"][&trigger.name.value];
        let key = lane["key"].as_str().map(|key| format!(": {key}")).unwrap_or_default();
        let mode = lane["concurrency"].as_str().unwrap_or_default();
        lines.push((
            "trigger",
            format!(
                "{} ({kind}) runs {} [{mode}{key}]{}",
                trigger.name.value,
                trigger.process.value,
                describe_clock(trigger, clock::now())
            ),
        ));
    }
    let shown = lines.into_iter().filter(|(_, text)| !text.is_empty());
    shown.map(|(label, text)| format!("{label}: {}\n", one_line(&text))).collect::<Vec<_>>().concat()
}
