//! The environment variables that the layers read.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// Environment variables, by name.
pub type Environment = BTreeMap<String, String>;

/// Returns the variables of this process. Text that is not UTF-8 is read as well as it can be.
pub(super) fn process_environment() -> Environment {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect()
}
