//! The audit log of all processes.

use async_trait::async_trait;
use postgres::Row;

use super::PostgresStore;
use super::columns::number;
use super::link::{Change, as_bigint, limit};
use super::usage::without_zero_bytes;
use crate::audit::{AuditLogLine, AuditLogPart, SharedAuditLog};
use crate::error::StoreError;

#[async_trait]
impl SharedAuditLog for PostgresStore {
    async fn add_lines(&self, part: AuditLogPart) -> Result<(), StoreError> {
        let (node, AuditLogPart { file, end, lines }) = (self.node.clone(), part);
        let times: Vec<i64> = lines.iter().map(|line| as_bigint(line.at)).collect();
        let offsets: Vec<i64> = lines.iter().map(|line| as_bigint(line.offset)).collect();
        let texts: Vec<String> =
            lines.into_iter().map(|line| without_zero_bytes(line.text.into()).into_owned()).collect();
        let add = move |change: &mut Change<'_>| {
            let sql = "INSERT INTO respool.audit_lines (digest, node, at, place, line)
                SELECT sha256(convert_to(line, 'UTF8')), $1, at, place, line
                FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS sent (at, place, line)
                ON CONFLICT (digest) DO NOTHING";
            change.execute(sql, &[&node, &times, &offsets, &texts])?;
            let sql = "INSERT INTO respool.audit_files (file, added_until) VALUES ($1, $2)
                ON CONFLICT (file) DO UPDATE SET added_until = excluded.added_until";
            change.execute(sql, &[&file, &as_bigint(end)]).map(drop)
        };
        self.pool.run(add).await
    }

    async fn added_until(&self, file: &str) -> Result<u64, StoreError> {
        let (file, sql) = (file.to_owned(), "SELECT added_until FROM respool.audit_files WHERE file = $1");
        let found = self.pool.read(move |change| change.find(sql, &[&file], |row| number(row, 0))).await?;
        Ok(found.unwrap_or_default())
    }

    async fn newest_lines(&self, since: u64, most: usize) -> Result<Vec<(String, AuditLogLine)>, StoreError> {
        let sql = "SELECT node, at, place, line FROM respool.audit_lines WHERE at >= $1
            ORDER BY at DESC, node, place DESC LIMIT $2";
        let line = |row: &Row| {
            let (at, offset) = (number(row, 1)?, number(row, 2)?);
            Ok((row.try_get(0)?, AuditLogLine { at, offset, text: row.try_get(3)? }))
        };
        let find = move |change: &mut Change<'_>| change.list(sql, &[&as_bigint(since), &limit(most)], line);
        let mut lines = self.pool.read(find).await?;
        lines.reverse();
        Ok(lines)
    }
}
