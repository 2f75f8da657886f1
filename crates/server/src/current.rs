//! What requests are answered with now. A request keeps what it began with; one that comes after a change gets what holds then.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;

use super::App;

/// The app that holds now, with its routes. Clones share it.
#[derive(Clone, Debug)]
pub struct CurrentApp(Arc<RwLock<Arc<Assembled>>>);

/// An app and the routes over it.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) app: App,
    pub(super) others: Router,
}

impl CurrentApp {
    pub(super) fn new(app: App) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Assembled::new(app)))))
    }

    pub(super) fn current(&self) -> Arc<Assembled> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The app that holds now.
    pub fn app(&self) -> App {
        self.current().app.clone()
    }

    /// From now on requests are answered with this one.
    pub fn change(&self, app: App) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Assembled::new(app));
    }
}

impl Assembled {
    fn new(app: App) -> Self {
        let others = super::others(&app);
        Self { app, others }
    }
}
