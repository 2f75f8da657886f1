//! Puts the installed experts into service: what is installed, their hooks and their clocks.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::expert::{
    Catalog, Experts, ExpertsConfig, HookSecrets, Hooks, RegistryEntry, Scheduler, Snapshot, write_registry,
};
use crate::store::Store;

/// What is installed; `None` where there is no directory of experts, and no model that could think for one.
pub(super) async fn catalog(settings: &Settings) -> Option<Arc<Catalog>> {
    let config = &settings.experts;
    if !config.dir.is_dir() && config.model.is_none() {
        return None;
    }
    let dir = config.dir.clone();
    tokio::task::spawn_blocking(move || Arc::new(Catalog::open(&dir))).await.ok()
}

/// The hooks of the experts. The catalog is kept current, and their clocks run, until `abort`. `None` where there is no store to keep their
/// work in.
pub(super) fn serve(
    settings: &Settings,
    catalog: Arc<Catalog>,
    store: Option<&Arc<Store>>,
    served: Option<&Arc<Experts>>,
    abort: &CancellationToken,
) -> Option<Arc<Hooks>> {
    let config = &settings.experts;
    let Some(store) = store else {
        tracing::error!(target: "respool::expert", "experts are not in service: their work needs the store, which cannot be used");
        return None;
    };
    let (config_of_page, first) = (config.clone(), Arc::clone(&catalog));
    let told = tokio::task::spawn_blocking(move || tell_main_agent(&config_of_page, &first));
    let (config_of_page, watched, stop) = (config.clone(), Arc::clone(&catalog), abort.clone());
    tokio::spawn(async move {
        let _ = told.await;
        let changed = move |catalog: &Catalog| tell_main_agent(&config_of_page, catalog);
        watched.watch(changed, stop).await;
    });
    // Without a model nothing is executed here, so no clock fires here either.
    if let Some(experts) = served.cloned() {
        let scheduler = Scheduler::new(Arc::clone(&catalog), store.clone());
        let is_held = Box::new(move |name: &str| experts.is_held(name));
        tokio::spawn(scheduler.held_by(is_held).run(abort.clone()));
    }
    let secrets = HookSecrets::new(&settings.store.state_dir, config);
    Some(Arc::new(Hooks::new(catalog, store.clone(), secrets, config.clone())))
}

fn entry_of(snapshot: &Arc<Snapshot>) -> RegistryEntry<'_> {
    RegistryEntry::of(&snapshot.package, &snapshot.bindings)
}

/// Keeps `EXPERTS.md` current, also for packages that were put into place by hand.
fn tell_main_agent(config: &ExpertsConfig, catalog: &Catalog) {
    let current = catalog.current();
    if current.experts.is_empty() && !config.dir.is_dir() {
        return;
    }
    let entries: Vec<RegistryEntry<'_>> = current.experts.values().map(entry_of).collect();
    if let Err(error) = write_registry(config, &entries) {
        tracing::warn!(target: "respool::expert", %error, workspace = %config.workspace.display(), "EXPERTS.md cannot be written: the main agent does not know of what has changed");
    }
}
