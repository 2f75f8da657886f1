//! Packages that a person names: fetched and checked.

use super::validate;
use crate::cli::failure::Failure;
use crate::cli::say::say_piece_on_stderr;
use experts::Source;
use openexperts::{Loaded, Package};

/// Fetches and checks a package; its findings go to standard error.
pub(super) fn fetch_package(source: &Source) -> Result<Package, Failure> {
    let loaded = source.load()?;
    say_piece_on_stderr(&validate::findings_text(&loaded));
    let Loaded { package, .. } = loaded;
    package.ok_or_else(|| Failure::Failed("the package does not load; correct the errors above".to_owned()))
}
