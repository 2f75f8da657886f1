//! Triggers: what comes from outside.

mod fence;

pub use fence::{fenced, fenced_json};
