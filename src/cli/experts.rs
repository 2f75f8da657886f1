//! Puts the installed experts into service: the catalog and their hooks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use experts::{Catalog, Experts, ExpertsConfig, HookSecrets, Hooks, RegistryEntry, Snapshot, write_registry};
use settings::Settings;
use store::Store;

/// Opens the catalog of installed experts; `None` without a directory of experts and a model for them.
pub(super) async fn open_catalog(settings: &Settings) -> Option<Arc<Catalog>> {
    let config = &settings.experts;
    if !config.dir.is_dir() && config.model.is_none() {
        return None;
    }
    let dir = config.dir.clone();
    tokio::task::spawn_blocking(move || Arc::new(Catalog::open(&dir))).await.ok()
}

/// Returns the hooks of the experts. Until `abort`, the catalog is kept current. `None` if there is no store
/// for their work.
pub(super) fn serve_experts(
    settings: &Settings,
    catalog: Arc<Catalog>,
    store: Option<&Arc<Store>>,
    served: Option<&Arc<Experts>>,
    abort: &CancellationToken,
) -> Option<Arc<Hooks>> {
    let config = &settings.experts;
    let Some(store) = store else {
        tracing::error!(target: "respool::expert", "experts are off: they need the store, which cannot be used");
        return None;
    };
    let page = ExpertsPage {
        config: config.clone(),
        state_dir: settings.store.state_dir.clone(),
        served: served.cloned(),
    };
    tokio::spawn(keep_page(page, Arc::clone(&catalog), abort.clone()));
    Some(Arc::new(Hooks::new(catalog, store.clone(), hook_secrets(settings), config.clone())))
}

/// Returns where the secrets of hooks are.
pub(super) fn hook_secrets(settings: &Settings) -> HookSecrets {
    let config = &settings.store;
    HookSecrets::new(&config.state_dir, &settings.experts).with_folder(config.store.shared_dir.as_deref())
}

/// The sources of `EXPERTS.md` and of the file of readiness.
struct ExpertsPage {
    config: ExpertsConfig,
    state_dir: PathBuf,
    served: Option<Arc<Experts>>,
}

impl ExpertsPage {
    fn write(&self, catalog: &Catalog) {
        let served = self.served.as_deref();
        write_agents_page(&self.config, catalog, served);
        let checked = served.map(|experts| experts.readiness.last_check()).unwrap_or_default();
        if let Err(error) = checked.write(&self.state_dir) {
            tracing::warn!(target: "respool::expert", %error, "it cannot be written which experts are ready, so `respool expert list` may be wrong");
        }
    }
}

/// Keeps the catalog, `EXPERTS.md` and the file of readiness current until `stop`.
async fn keep_page(page: ExpertsPage, catalog: Arc<Catalog>, stop: CancellationToken) {
    let served = page.served.clone();
    // Only one task writes at a time, and the last one knows everything.
    let page = Arc::new(Mutex::new(page));
    let rewrite = move |catalog: &Catalog| page.lock().unwrap_or_else(PoisonError::into_inner).write(catalog);
    let (again, shown, until) = (rewrite.clone(), Arc::clone(&catalog), stop.clone());
    let following = async move {
        let Some(experts) = served else { return };
        loop {
            experts.readiness.wait_for_change().await;
            let (again, shown) = (again.clone(), Arc::clone(&shown));
            let _ = tokio::task::spawn_blocking(move || again(&shown)).await;
        }
    };
    tokio::join!(catalog.watch_folders(rewrite, stop), until.run_until_cancelled(following));
}

/// Returns the expert's entry in the list. It is not ready if a tool is not bound, or if experts are served
/// and a tool's server cannot be reached.
fn entry_of<'a>(snapshot: &'a Arc<Snapshot>, served: Option<&Experts>) -> RegistryEntry<'a> {
    let entry = RegistryEntry::from_bindings(&snapshot.package, &snapshot.bindings);
    let not_ready = entry
        .not_ready
        .or_else(|| served.and_then(|experts| experts.readiness.why_not_ready(snapshot.name())));
    RegistryEntry { not_ready, ..entry }
}

/// Keeps `EXPERTS.md` current, also for packages that were installed by hand.
fn write_agents_page(config: &ExpertsConfig, catalog: &Catalog, served: Option<&Experts>) {
    let current = catalog.current();
    if current.experts.is_empty() && !config.dir.is_dir() {
        return;
    }
    let entries: Vec<RegistryEntry<'_>> =
        current.experts.values().map(|snapshot| entry_of(snapshot, served)).collect();
    if let Err(error) = write_registry(config, &entries) {
        tracing::warn!(target: "respool::expert", %error, workspace = %config.workspace.display(), "EXPERTS.md cannot be written, so the main agent has an old list of experts");
    }
}
