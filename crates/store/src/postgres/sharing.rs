//! The processes of a database as rows, with their duties and common secrets.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use postgres::{Error, Row};

use super::PostgresStore;
use super::columns::number;
use super::link::{Change, as_bigint, span};
use super::shared::{GONE_AFTER, LOST_FOR};
use crate::error::StoreError;
use crate::nodes::{EndedSession, NodeRow, Nodes, SentAlert};

#[async_trait]
impl Nodes for PostgresStore {
    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let sql = "SELECT name, version, configuration, began, seen,
                (SELECT count(*) FROM respool.runs WHERE runs.owner = nodes.owner AND status = 'running'),
                seen <= respool.now_ms() - $1
            FROM respool.nodes WHERE serves AND seen > respool.now_ms() - $2 ORDER BY name, began";
        self.pool.read(move |change| change.list(sql, &[&span(GONE_AFTER), &span(LOST_FOR)], node)).await
    }

    fn waits_for_name(&self) -> bool {
        let shared = &self.presence.shared;
        shared.waits_for_name.load(Ordering::Relaxed) && !shared.has_joined.load(Ordering::Relaxed)
    }

    fn lost_nodes(&self) -> Vec<(String, u64)> {
        if self.presence.shared.may_miss_others() { self.polls().lost_nodes() } else { Vec::new() }
    }

    async fn forget_node(&self, name: &str) -> Result<bool, StoreError> {
        let (name, sql) =
            (name.to_owned(), "DELETE FROM respool.nodes WHERE name = $1 AND seen <= respool.now_ms() - $2");
        self.pool.run(move |change| change.has_changed(sql, &[&name, &span(GONE_AFTER)])).await
    }

    fn live_nodes(&self) -> u32 {
        self.presence.shared.live.load(Ordering::Relaxed).max(1)
    }

    fn live_nodes_alike(&self) -> u32 {
        self.presence.shared.alike.load(Ordering::Relaxed).max(1)
    }

    fn note_configuration(&self, digest: String) {
        self.presence.shared.set_configuration(digest);
    }

    fn note_packages(&self, digests: Vec<String>) {
        self.presence.shared.set_packages(digests);
    }

    fn is_package_elsewhere(&self, digest: &str) -> bool {
        self.polls().is_package_elsewhere(digest)
    }

    async fn hold_duties(&self, duties: Vec<String>, length: Duration) -> Result<Vec<String>, StoreError> {
        if duties.is_empty() {
            return Ok(duties);
        }
        let (owner, mut duties) = (self.owner.clone(), duties);
        // In one order, so that two processes do not wait for each other.
        duties.sort_unstable();
        duties.dedup();
        // Those that were not kept are forgotten.
        let sql =
            "WITH gone AS (DELETE FROM respool.duties WHERE until <= respool.now_ms() AND name <> ALL ($1))
            INSERT INTO respool.duties (name, owner, until)
            SELECT name, $2, respool.now_ms() + $3 FROM unnest($1::text[]) AS name
            ON CONFLICT (name) DO UPDATE SET owner = $2, until = excluded.until
                WHERE duties.owner = $2 OR duties.until <= respool.now_ms()
            RETURNING name";
        let length = span(length);
        self.pool
            .run_statement(move |change| change.list(sql, &[&duties, &owner, &length], |row| row.try_get(0)))
            .await
    }

    async fn note_sent_alerts(&self, alerts: Vec<SentAlert>) -> Result<(), StoreError> {
        let owner = self.owner.clone();
        let (names, bodies): (Vec<String>, Vec<String>) =
            alerts.into_iter().map(|alert| (alert.name, alert.body)).unzip();
        let sql = "INSERT INTO respool.sent_alerts (name, owner, body)
            SELECT name, $3, body FROM unnest($1::text[], $2::text[]) AS sent (name, body) ORDER BY name
            ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, body = excluded.body";
        self.pool.run(move |change| change.execute(sql, &[&names, &bodies, &owner]).map(drop)).await
    }

    async fn take_sent_alerts(&self, names: Vec<String>) -> Result<Vec<String>, StoreError> {
        let sql = "DELETE FROM respool.sent_alerts WHERE name = ANY ($1) RETURNING name";
        self.pool.run(move |change| change.list(sql, &[&names], |row| row.try_get(0))).await
    }

    async fn left_alerts(&self) -> Result<Vec<SentAlert>, StoreError> {
        let owner = self.owner.clone();
        let sql = "SELECT name, body FROM respool.sent_alerts AS sent WHERE owner = $1 OR NOT EXISTS (
                SELECT 1 FROM respool.nodes
                WHERE nodes.owner = sent.owner AND serves AND seen > respool.now_ms() - $2)
            ORDER BY name";
        let alert = |row: &Row| Ok(SentAlert { name: row.try_get(0)?, body: row.try_get(1)? });
        self.pool.run(move |change| change.list(sql, &[&owner, &span(GONE_AFTER)], alert)).await
    }

    async fn end_sessions(&self, sessions: Vec<EndedSession>) -> Result<(), StoreError> {
        let (signatures, ends): (Vec<String>, Vec<i64>) =
            sessions.into_iter().map(|session| (session.signature, as_bigint(session.until))).unzip();
        // Those whose time is over are forgotten.
        let sql = "WITH gone AS (DELETE FROM respool.ended_sessions WHERE until <= respool.now_ms())
            INSERT INTO respool.ended_sessions (signature, until)
            SELECT * FROM unnest($1::text[], $2::bigint[]) ON CONFLICT DO NOTHING";
        self.pool.run_statement(move |change| change.execute(sql, &[&signatures, &ends]).map(drop)).await
    }

    fn ended_sessions(&self) -> Vec<EndedSession> {
        self.polls().ended_sessions()
    }

    async fn set_silences(&self, list: String) -> Result<(), StoreError> {
        let sql =
            "INSERT INTO respool.silences (list) VALUES ($1) ON CONFLICT (only_row) DO UPDATE SET list = $1";
        self.pool.run(move |change| change.execute(sql, &[&list]).map(drop)).await?;
        self.polls().note_change();
        Ok(())
    }

    async fn silences(&self) -> Result<Option<String>, StoreError> {
        if let Some(found) = self.polls().current() {
            return Ok(found.silences.clone());
        }
        let sql = "SELECT list FROM respool.silences";
        self.pool.read(move |change| change.find(sql, &[], |row| row.try_get(0))).await
    }

    async fn shared_secret(&self, name: &str, proposed: [u8; 32]) -> Result<[u8; 32], StoreError> {
        let name = name.to_owned();
        let share = move |change: &mut Change<'_>| {
            let sql =
                "INSERT INTO respool.secrets (name, secret) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
            change.execute(sql, &[&name, &proposed.as_slice()])?;
            let sql = "SELECT secret FROM respool.secrets WHERE name = $1";
            change.find(sql, &[&name], |row| row.try_get::<_, Vec<u8>>(0))
        };
        let found = self.pool.run(share).await?.unwrap_or_default();
        found.try_into().map_err(|_| StoreError("a secret of the database does not have 32 bytes".to_owned()))
    }
}

fn node(row: &Row) -> Result<NodeRow, Error> {
    Ok(NodeRow {
        name: row.try_get(0)?,
        version: row.try_get(1)?,
        configuration: row.try_get(2)?,
        began: number(row, 3)?,
        seen: number(row, 4)?,
        runs: number(row, 5)?,
        is_lost: row.try_get(6)?,
    })
}
