//! Looks a database through.

use async_trait::async_trait;

use super::PostgresStore;
use super::columns::number;
use super::link::Change;
use super::schema;
use crate::check::{Checks, StoreCheck, checks};
use crate::error::StoreError;

checks!("respool.");

#[async_trait]
impl Checks for PostgresStore {
    async fn check(&self) -> Result<StoreCheck, StoreError> {
        self.pool.run(check_all).await
    }
}

fn check_all(change: &mut Change<'_>) -> Result<StoreCheck, postgres::Error> {
    let (schema, oldest) = schema::find_versions(change)?;
    let mut found = StoreCheck { schema, oldest, ..StoreCheck::default() };
    let mut count = |sql: &str| {
        Ok::<_, postgres::Error>(change.find(sql, &[], |row| number(row, 0))?.unwrap_or_default())
    };
    for (table, sql) in COUNTS {
        found.counts.push((table, count(sql)?));
    }
    for (rule, sql) in RULES {
        found.note(rule, count(sql)?);
    }
    Ok(found)
}
