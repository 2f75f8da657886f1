//! Aids for the tests of several crates. Nothing of the product depends on it.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a failed expectation ends the test that relies on it"
)]

pub mod idle_time;
pub mod postgres_server;
pub mod rows;
pub mod seed;
pub mod stores;
pub mod waiting;
