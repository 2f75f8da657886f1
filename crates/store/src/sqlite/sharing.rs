//! A store in files is that of one process.

use async_trait::async_trait;
use rusqlite::params;

use super::statements::{execute, has_changed, list};
use super::store::SqliteStore;
use crate::error::StoreError;
use crate::nodes::{Nodes, SentAlert};

#[async_trait]
impl Nodes for SqliteStore {
    async fn note_sent_alerts(&self, alerts: Vec<SentAlert>) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO sent_alerts (name, body) VALUES (?1, ?2)";
        self.write(move |change| {
            alerts
                .iter()
                .try_for_each(|alert| execute(change, sql, params![alert.name, alert.body]).map(drop))
        })
        .await
    }

    async fn take_sent_alerts(&self, names: Vec<String>) -> Result<Vec<String>, StoreError> {
        self.write(move |change| {
            let mut taken = Vec::new();
            for name in &names {
                if has_changed(change, "DELETE FROM sent_alerts WHERE name = ?1", params![name])? {
                    taken.push(name.clone());
                }
            }
            Ok(taken)
        })
        .await
    }

    async fn left_alerts(&self) -> Result<Vec<SentAlert>, StoreError> {
        let sql = "SELECT name, body FROM sent_alerts ORDER BY name";
        let alert = |row: &rusqlite::Row<'_>| Ok(SentAlert { name: row.get(0)?, body: row.get(1)? });
        self.read(move |connection| list(connection, sql, params![], alert)).await
    }
}
