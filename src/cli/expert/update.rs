//! `respool expert update`: shows the changes of an update, asks for consent to what it loosens, and applies
//! it.

use super::installed::state_files;
use super::package::fetch_package;
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::say::{say, say_on_stderr};
use experts::{ExpertsConfig, Library, Lock, Plan, Source};
use openexperts::visible;

/// The consent that the command line gives.
#[derive(Clone, Copy)]
pub(super) struct Consent {
    /// Versions that may break something, and the loss of changes made by hand.
    pub(super) force: bool,
    /// Everything that the update lets the expert do.
    pub(super) yes: bool,
}

pub(super) fn run_update(
    experts: &ExpertsConfig,
    name: Option<&str>,
    source: Option<&str>,
    rollback: bool,
    consent: Consent,
) -> Result<(), Failure> {
    let library = Library::new(&experts.dir);
    let lock = library.lock()?;
    let updater = Updater { experts, library: &library, consent, lock: &lock };
    match name {
        Some(name) if rollback => updater.apply_plan(&library.plan_rollback(name)?),
        Some(name) => updater.update_one(name, source),
        None => updater.update_all(),
    }
}

struct Updater<'a> {
    experts: &'a ExpertsConfig,
    library: &'a Library,
    consent: Consent,
    lock: &'a Lock,
}

impl Updater<'_> {
    fn update_one(&self, name: &str, source: Option<&str>) -> Result<(), Failure> {
        let library = self.library;
        let recorded = library.get(name)?.record.map(|record| record.source);
        let Some(source) = source.map(str::to_owned).or(recorded) else {
            return Err(Failure::Failed(format!(
                "the source of {name} is unknown; name it: respool expert update {name} SOURCE"
            )));
        };
        let source = Source::parse(&source)?;
        let package = fetch_package(&source)?;
        self.apply_plan(&library.plan(name, package, &source)?)
    }

    /// Updates every expert whose source is known. If one cannot be updated, the others still are.
    fn update_all(&self) -> Result<(), Failure> {
        let library = self.library;
        let installed =
            library.list().map_err(|error| format!("{} cannot be read: {error}", library.dir().display()))?;
        let mut failed = Vec::new();
        for one in installed.iter().filter(|one| one.record.is_some()) {
            let named = one.loaded.package.as_ref().map(|package| package.manifest.name.value.clone());
            let name = named.unwrap_or_else(|| one.folder());
            if let Err(Failure::Failed(why)) = self.update_one(&name, None) {
                say_on_stderr(&format!("respool: {name}: {why}"));
                failed.push(name);
            }
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("not updated: {}", failed.join(", "))))
        }
    }

    fn apply_plan(&self, plan: &Plan) -> Result<(), Failure> {
        let name = &plan.name;
        let (old, new) = (visible(&plan.versions.0), visible(&plan.versions.1));
        if plan.changed.is_empty() && !plan.is_broken {
            say(&format!("{name} {old} is up to date."));
            return Ok(());
        }
        say(&format!("{name} {old} → {new}"));
        plan.changed.iter().for_each(|line| say(&format!("  {}", visible(line))));
        let by_hand: Vec<String> = plan.local_changes.iter().flatten().map(|line| visible(line)).collect();
        if !by_hand.is_empty() {
            say("Changed by hand, and lost with this update:");
            by_hand.iter().for_each(|line| say(&format!("  {line}")));
        }
        let cautions = plan.cautions();
        if !cautions.is_empty() && !self.consent.force {
            let why = cautions.join("; ");
            return Err(Failure::Failed(format!(
                "{name} was not updated: {why}. To update it anyway, add --force"
            )));
        }
        if !plan.loosened.is_empty() {
            say("With this update:");
            plan.loosened.iter().for_each(|line| say(&format!("  {}", visible(line))));
            if !self.consent.yes && !confirm("Allow the expert to do this?") {
                return Err(Failure::Failed(format!(
                    "{name} was not updated: the update lets it do more, and you have not consented. To consent, add --yes"
                )));
            }
        }
        self.library.apply(plan, self.lock)?;
        say(&format!("Updated {name} to {new}. Work in progress keeps {old}."));
        state_files(self.experts, Some(&plan.old), &plan.package)?;
        super::registry::refresh_page(self.experts);
        Ok(())
    }
}
