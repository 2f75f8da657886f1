//! Puts the installed experts into service: what is installed, their hooks and their clocks.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::expert::{
    Catalog, ExpertsConfig, HookSecrets, Hooks, RegistryEntry, Scheduler, Snapshot, write_registry,
};
use crate::store::Store;

/// The hooks of the experts; their clocks run until `abort`. `None` where there is no directory of experts, or no store to keep their work in.
pub(super) async fn serve(
    settings: &Settings,
    store: Option<&Arc<Store>>,
    abort: &CancellationToken,
) -> Option<Arc<Hooks>> {
    let config = &settings.experts;
    if !config.dir.is_dir() {
        return None;
    }
    let Some(store) = store else {
        tracing::error!(target: "respool::expert", "experts are not in service: their work needs the store, which cannot be used");
        return None;
    };
    let config_of_page = config.clone();
    let open = move || {
        let catalog = Catalog::open(&config_of_page.dir);
        tell_main_agent(&config_of_page, &catalog);
        catalog
    };
    let catalog = Arc::new(tokio::task::spawn_blocking(open).await.ok()?);
    let config_of_page = config.clone();
    let changed = move |catalog: &Catalog| tell_main_agent(&config_of_page, catalog);
    tokio::spawn(Arc::clone(&catalog).watch(changed, abort.clone()));
    tokio::spawn(Scheduler::new(Arc::clone(&catalog), store.clone()).run(abort.clone()));
    let secrets = HookSecrets::new(&settings.store.state_dir, config);
    Some(Arc::new(Hooks::new(catalog, store.clone(), secrets, config.clone())))
}

/// Keeps `EXPERTS.md` current, also for packages that were put into place by hand.
fn tell_main_agent(config: &ExpertsConfig, catalog: &Catalog) {
    let current = catalog.current();
    let entry = |snapshot: &'_ Arc<Snapshot>| (Arc::clone(snapshot), catalog.bindings(snapshot));
    let all: Vec<(Arc<Snapshot>, String)> = current.experts.values().map(entry).collect();
    let entries: Vec<RegistryEntry<'_>> =
        all.iter().map(|(snapshot, bindings)| RegistryEntry::of(&snapshot.package, bindings)).collect();
    if let Err(error) = write_registry(config, &entries) {
        tracing::warn!(target: "respool::expert", %error, workspace = %config.workspace.display(), "EXPERTS.md cannot be written: the main agent does not know of what has changed");
    }
}
