//! What the long runs measured: text of docs/faults.md, written by hand after each.

/// The end of the page.
pub const TEXT: &str = "\
## Run it

`cargo test faults` plays every case; `just faults` also measures the memory of each row, one after another.
";
