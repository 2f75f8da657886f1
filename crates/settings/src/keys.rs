//! Every key of the configuration, as the crates declare them: its type, default, meaning and an example.

mod schema;

use std::sync::LazyLock;

use wire::settings::Section as _;

use super::settings::Settings;

pub(super) use schema::{Node, Section, build_schema};
pub use wire::settings::Key;

/// Every key, in the order of the documentation: those of the top first.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    Settings::add_keys("", &mut keys);
    let (mut top, below): (Vec<Key>, Vec<Key>) =
        keys.into_iter().partition(|key| key.section_path().is_empty());
    top.extend(below);
    top
});
