//! The usage of clients' keys, by day and model: one counter, added to in batches and read back at the start.
//! The code that limits or bills by it keeps its own sum in memory. Called by `server`.

use async_trait::async_trait;

use super::error::StoreError;

/// The usage of one model by one key on one day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyUsage {
    /// The UTC day, counted from 1970-01-01.
    pub day: u64,
    /// The key's name; never the key.
    pub key: String,
    /// The model, as far as an upstream is known to serve it; else empty.
    pub model: String,
    /// Requests.
    pub requests: u64,
    /// Tokens of prompts.
    pub prompt: u64,
    /// Those of them that were cached.
    pub cached: u64,
    /// Tokens of replies.
    pub completion: u64,
}

/// The usage of clients' keys.
#[async_trait]
pub trait KeyUsages: Send + Sync {
    /// Adds to what keys have used.
    ///
    /// # Errors
    /// When the store cannot be written; nothing of it then is in the store.
    async fn add_key_usage(&self, rows: Vec<KeyUsage>) -> Result<(), StoreError>;

    /// Returns what keys have used on one UTC day, counted from 1970-01-01.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn key_usage_on(&self, day: u64) -> Result<Vec<KeyUsage>, StoreError>;

    /// Forgets what keys used before a day.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn forget_key_usage(&self, before: u64) -> Result<(), StoreError>;
}
