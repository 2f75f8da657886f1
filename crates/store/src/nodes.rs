//! Processes that share a store: how they know each other, and the duties and secrets that they have in
//! common.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;

use super::error::StoreError;

/// A process that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Its name for people.
    pub name: String,
    /// The version of respool.
    pub version: String,
    /// The digests of its configuration, of all and, behind each `-`, of parts; empty until they are known.
    pub configuration: String,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// When it was last seen.
    pub seen: u64,
    /// How many runs it works on.
    pub runs: u64,
    /// It is gone and did not end by itself.
    pub is_lost: bool,
}

impl NodeRow {
    /// Returns the digest of its whole configuration, for people.
    pub fn digest(&self) -> &str {
        self.configuration.split('-').next().unwrap_or_default()
    }

    /// Returns the keys and sections in which its configuration differs from another one's; none if a process
    /// of an older version does not name them.
    pub fn differing_keys(&self, other: &Self) -> Vec<String> {
        let (own, others) = (self.digests_of_keys(), other.digests_of_keys());
        if own.is_empty() || others.is_empty() {
            return Vec::new();
        }
        let differ = own.symmetric_difference(&others).map(|(name, _)| (*name).to_owned());
        differ.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn digests_of_keys(&self) -> BTreeSet<(&str, &str)> {
        let parts = self.configuration.splitn(3, '-').nth(2).unwrap_or_default();
        parts.split_whitespace().filter_map(|part| part.split_once('=')).collect()
    }
}

/// An alert that was sent and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentAlert {
    /// Its name, which no other alert has.
    pub name: String,
    /// The text that its owner wrote about it.
    pub body: String,
}

/// A session of the page that was ended before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSession {
    /// The signature of its cookie.
    pub signature: String,
    /// When it would be over, in milliseconds since 1970.
    pub until: u64,
}

/// The processes that share a store. A store in files is that of one process: what it asks for, it gets.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// Returns the processes that serve, by name; none for a store in files. One that was killed stays among
    /// them for some hours, until another one of its name starts.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        Ok(Vec::new())
    }

    /// How many processes served and lived the last time that this one looked; at least one.
    fn live_nodes(&self) -> u32 {
        1
    }

    /// How many of them had the configuration of this one, this one among them; at least one.
    fn live_nodes_alike(&self) -> u32 {
        1
    }

    /// Whether this process joins the others within seconds, once one of its name that was killed counts as
    /// gone.
    fn waits_for_name(&self) -> bool {
        false
    }

    /// Returns the names of the processes that were killed, with the times when they were last seen. The
    /// answer is that of the last look.
    fn lost_nodes(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Forgets the processes of a name that are gone. Returns whether there was one.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn forget_node(&self, _name: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Notes the digest of this process's configuration, for [`Nodes::nodes`].
    fn note_configuration(&self, _digest: String) {}

    /// Notes the digests of the packages that this process works with, for
    /// [`Nodes::is_package_elsewhere`] of the others.
    fn note_packages(&self, _digests: Vec<String>) {}

    /// Whether another process that serves had this package the last time that this one looked.
    fn is_package_elsewhere(&self, _digest: &str) -> bool {
        false
    }

    /// Takes duties that one process at a time has, or keeps those that this one has, for a while. Returns
    /// those that it has now.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn hold_duties(&self, duties: Vec<String>, _length: Duration) -> Result<Vec<String>, StoreError> {
        Ok(duties)
    }

    /// Notes alerts that this process has sent, each a name with what its end needs.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn note_sent_alerts(&self, alerts: Vec<SentAlert>) -> Result<(), StoreError>;

    /// Forgets alerts that have ended. Returns those that were noted: of several processes, one gets each and
    /// sends its end.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn take_sent_alerts(&self, names: Vec<String>) -> Result<Vec<String>, StoreError>;

    /// Returns the noted alerts that no living process but this one has sent.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn left_alerts(&self) -> Result<Vec<SentAlert>, StoreError>;

    /// Ends sessions of the page at all processes.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn end_sessions(&self, _sessions: Vec<EndedSession>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the sessions whose time is not over that any process had ended the last time that this one
    /// looked; none for a store in files, where sessions end with the process.
    fn ended_sessions(&self) -> Vec<EndedSession> {
        Vec::new()
    }

    /// Sets the silences of alerts for all processes.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn set_silences(&self, _list: String) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the silences that any process has set last; none for a store in files, whose process has its
    /// own.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn silences(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Returns the secret of this name that all processes have: the one that was proposed first.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn shared_secret(&self, _name: &str, proposed: [u8; 32]) -> Result<[u8; 32], StoreError> {
        Ok(proposed)
    }
}
