//! Triggers: what comes from outside.

mod fence;

pub use fence::{MOST_SHOWN, fenced, fenced_json};
