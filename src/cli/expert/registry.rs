//! Keeps `EXPERTS.md` current after each change of the installed experts.

use crate::cli::say::{say, tell};
use crate::expert::{ExpertsConfig, Library, REGISTRY, RegistryEntry, write_registry};

/// Writes the page of the experts that are installed. The change itself stands, should this fail.
pub(super) fn refresh(experts: &ExpertsConfig) {
    let path = experts.workspace.join(REGISTRY);
    let written = Library::new(&experts.dir).list().and_then(|installed| {
        let packages = installed.iter().filter_map(|one| one.loaded.package.as_ref());
        let entry = |package| RegistryEntry { package, bound: Vec::new(), not_ready: None };
        write_registry(experts, &packages.map(entry).collect::<Vec<_>>())
    });
    match written {
        Ok(true) => say(&format!("Wrote {}, which tells the main agent of its experts.", path.display())),
        Ok(false) => {}
        Err(error) => tell(&format!("warning: {} cannot be written: {error}", path.display())),
    }
}
