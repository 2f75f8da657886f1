//! Keeps `EXPERTS.md` current after each change of the installed experts.

use crate::cli::say::{say, say_on_stderr};
use experts::{CheckedBindings, ExpertsConfig, Installed, Library, REGISTRY, RegistryEntry, write_registry};

/// Writes the page of the installed experts. The change itself stays in effect if this fails.
pub(super) fn refresh_page(experts: &ExpertsConfig) {
    let path = experts.workspace.join(REGISTRY);
    let library = Library::new(&experts.dir);
    let written = library.list().and_then(|installed| {
        let entry = |one: &'_ Installed| Some((one.folder(), one.loaded.package.clone()?));
        let packages: Vec<_> = installed.iter().filter_map(entry).collect();
        let entries = packages.iter().map(|(folder, package)| {
            let (bindings, _) = library.bindings_of(folder).unwrap_or_default();
            RegistryEntry::from_bindings(package, &CheckedBindings::from_text(&bindings, package))
        });
        write_registry(experts, &entries.collect::<Vec<_>>())
    });
    match written {
        Ok(true) => say(&format!("Wrote {}, the main agent's list of experts.", path.display())),
        Ok(false) => {}
        Err(error) => say_on_stderr(&format!("warning: {} cannot be written: {error}", path.display())),
    }
}
