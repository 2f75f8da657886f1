//! The app that answers requests now. A request keeps the app that it began with, also when a new one
//! replaces it.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;

use super::app::App;

/// The current app with its routes. Clones share it.
#[derive(Clone, Debug)]
pub struct CurrentApp {
    assembled: Arc<RwLock<Arc<Assembled>>>,
    build_routes: fn(&App) -> Router,
}

/// An app and the routes over it.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) app: App,
    pub(super) others: Router,
}

impl CurrentApp {
    /// Makes the holder of the app. `build_routes`: builds the routes of everything but turns.
    pub(super) fn new(app: App, build_routes: fn(&App) -> Router) -> Self {
        let others = build_routes(&app);
        Self { assembled: Arc::new(RwLock::new(Arc::new(Assembled { app, others }))), build_routes }
    }

    pub(super) fn current(&self) -> Arc<Assembled> {
        Arc::clone(&self.assembled.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the current app.
    pub fn app(&self) -> App {
        self.current().app.clone()
    }

    /// Answers requests with this app from now on.
    pub fn replace_app(&self, app: App) {
        let others = (self.build_routes)(&app);
        *self.assembled.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Assembled { app, others });
    }
}
