//! A set of JSON objects: the arguments of the upstream's native calls, by which copies in the text are
//! recognised. Filled by the ledger, read by dialects.

use std::collections::HashSet;

use serde_json::Value;

/// A set of JSON objects. The order of their keys does not matter.
#[derive(Debug, Default)]
pub(crate) struct Objects(HashSet<Value>);

impl Objects {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, value: &Value) -> bool {
        self.0.contains(value)
    }

    pub(crate) fn add(&mut self, value: Value) {
        self.0.insert(value);
    }
}
