//! `state_dir`: where durable state lives.

use std::path::PathBuf;

/// The store's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    /// The directory of durable state; the platform's state directory unless configured. It may not exist yet.
    pub state_dir: PathBuf,
}
