//! The operators that `respool serve` knows, by the digests of their keys. The command line checks a person's
//! key against these and not against its own environment, which the user who starts it chooses. Written by
//! `cli::serve`, read by the faces of approvals.

use async_trait::async_trait;

use super::error::StoreError;

/// An operator's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorKey {
    /// The SHA-256 of the key, in hexadecimal.
    pub digest: String,
    /// The key's name; never the key.
    pub name: String,
}

/// The keys of operators.
#[async_trait]
pub trait Operators: Send + Sync {
    /// Replaces the operators' keys that the command line accepts.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn set_operators(&self, keys: Vec<OperatorKey>) -> Result<(), StoreError>;

    /// Returns the name of the operator's key with this SHA-256 in hexadecimal.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn operator(&self, digest: &str) -> Result<Option<String>, StoreError>;

    /// Returns true if any operator is known.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn has_operators(&self) -> Result<bool, StoreError>;
}
