//! The queue in `SQLite`.

pub(super) mod changes;
mod clock_rollback;
mod clocks;
mod rows;
mod service;

#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod tests;
