//! The environment variables that the layers read.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::flags::Flags;

/// Environment variables, by name.
pub type Environment = BTreeMap<String, String>;

/// Returns the variables of this process, and below them those of the service that the flags name. Text that
/// is not UTF-8 is read as well as it can be.
pub(super) fn process_environment(flags: &Flags) -> Environment {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    let own = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value)));
    flags.of_service.clone().into_iter().chain(own).collect()
}
