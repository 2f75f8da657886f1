//! Reports fields that are well-formed but have no effect in this package, because of what other files or
//! fields say. Fields that depend on their own map alone are reported by its reader. Pure; called by `check`.

use super::MANIFEST;
use super::component::Process;
use super::diagnostic::{At, Code, FileReport, Report};
use super::manifest::Concurrency;
use super::package::Package;
use super::resolve::Lane;
use super::settings::{Execution, ExecutionFields, Format};

/// Reports the fields of a package without effect. A list that could not be read completely judges nothing.
pub(crate) fn check_effects(package: &Package, report: &mut Report) {
    let manifest = &package.manifest;
    for process in &package.processes.items {
        check_process(process, package, &mut report.file(&process.path));
    }
    if !package.processes.is_complete || !manifest.triggers.is_complete {
        return;
    }
    let mut file = report.file(MANIFEST);
    let processes = &package.processes.items;
    let execution = &manifest.settings.execution;
    if !execution.is_attempts_faulty && processes.iter().all(|process| !is_retried(process, package)) {
        note_pauses(execution, &mut file);
    }
    let sla_breach = manifest.settings.delivery.sla_breach.as_ref();
    if let Some(written) =
        sla_breach.filter(|_| processes.iter().all(|process| process.settings.delivery.sla.is_none()))
    {
        let help = "write `sla` under `delivery` of a process, or remove sla_breach";
        note_idle("sla_breach", "no process has an `sla`", help, written.at, &mut file);
    }
    check_lane_key(package, &mut file);
}

fn check_process(process: &Process, package: &Package, file: &mut FileReport<'_>) {
    if !is_retried(process, package) {
        note_pauses(&process.settings.execution, file);
    }
    let format = process.settings.delivery.format.as_ref();
    let has_outputs = !process.outputs.items.is_empty() || !process.outputs.is_complete;
    if let Some(written) = format.filter(|format| format.value == Format::Structured && !has_outputs) {
        let help = "declare `outputs`, or remove the format";
        note_idle("format: structured", "the process declares no outputs", help, written.at, file);
    }
}

/// Returns true if a failed attempt of the process is followed by another one.
fn is_retried(process: &Process, package: &Package) -> bool {
    let (inherited, own) = (&package.manifest.settings.execution, &process.settings.execution);
    let is_faulty = inherited.is_attempts_faulty || own.is_attempts_faulty;
    is_faulty || Execution::resolve(inherited, own).max_attempts > 1
}

/// Reports the fields about pauses between attempts where there is one attempt.
fn note_pauses(fields: &ExecutionFields, file: &mut FileReport<'_>) {
    let backoff = fields.backoff.as_ref().map(|field| ("retry.backoff", field.at));
    let delay = fields.delay.as_ref().map(|field| ("retry.delay", field.at));
    for (name, at) in backoff.into_iter().chain(delay) {
        note_idle(name, "there is one attempt", "write max_attempts: 2 or more, or remove it", at, file);
    }
}

/// Reports the key of lanes that no trigger uses.
fn check_lane_key(package: &Package, file: &mut FileReport<'_>) {
    let manifest = &package.manifest;
    let Some(key) = &manifest.concurrency.key.path else { return };
    let uses_key = |lane: Option<Lane>| lane.is_none_or(|lane| lane.mode == Concurrency::SerialPerKey);
    let is_default =
        manifest.concurrency.mode.mode.as_ref().is_some_and(|mode| mode.value == Concurrency::SerialPerKey);
    let mut lanes = manifest.triggers.items.iter().map(|trigger| Lane::from_trigger(trigger, manifest));
    if !is_default && !manifest.concurrency.mode.is_faulty && !lanes.any(uses_key) {
        let help =
            "write serial_per_key as the concurrency of the package or of a trigger, or remove the key";
        note_idle("concurrency.key", "no trigger has concurrency: serial_per_key", help, key.at, file);
    }
}

fn note_idle(field: &str, why: &str, help: &str, at: At, file: &mut FileReport<'_>) {
    file.add(Code::IgnoredField, at, format!("`{field}` has no effect: {why}"), help);
}
