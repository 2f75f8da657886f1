//! The schema of the database, and which versions of respool may use it.

use super::link::{Change, Link};
use crate::error::StoreError;

/// The oldest server that has all that is used here.
const OLDEST_SERVER: i32 = 150_000;
/// The schema, as the steps from each version to the next. Each says the oldest schema version that a respool
/// must know to use the result.
const STEPS: [(&str, u32); 9] = [
    (include_str!("schema.sql"), 1),
    (include_str!("schema_2.sql"), 1),
    (include_str!("schema_3.sql"), 1),
    (include_str!("schema_4.sql"), 1),
    (include_str!("schema_5.sql"), 1),
    (include_str!("schema_6.sql"), 1),
    (include_str!("schema_7.sql"), 1),
    (include_str!("schema_8.sql"), 1),
    (include_str!("schema_9.sql"), 1),
];
/// The version that this respool knows.
const KNOWN: u32 = 9;
const _: () = assert!(KNOWN as usize == STEPS.len(), "a step is a version");

const VERSIONS: &str = "CREATE SCHEMA IF NOT EXISTS respool;
    CREATE TABLE IF NOT EXISTS respool.schema_version (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        version integer NOT NULL,
        oldest_that_may_use_it integer NOT NULL)";

/// The state of a database.
pub(super) enum Found {
    /// A schema that this respool can use.
    Usable,
    /// No table of respool.
    Nothing,
    /// The schema of an older respool.
    Older(u32),
    OldServer(String),
    Newer {
        version: u32,
        oldest: u32,
    },
}

impl Found {
    /// Fails unless this respool can use what there is.
    fn require_usable(self) -> Result<(), StoreError> {
        Err(StoreError(match self {
            Self::Usable => return Ok(()),
            Self::Nothing => "the database has no tables of respool: look at `store.url`, or, if it is a new database, start `respool \
                              serve`, which makes them"
                .to_owned(),
            Self::Older(version) => format!(
                "the database has schema {version}, and this respool needs {KNOWN}: the first `respool serve` of this version brings it \
                 up to date"
            ),
            Self::OldServer(version) => format!(
                "the server is PostgreSQL {version}, and respool needs 15 or newer: update it, or name another one in `store.url`"
            ),
            Self::Newer { version, oldest } => format!(
                "the database has schema {version} of a newer respool. Versions that know schema {oldest} may use it, and this one knows \
                 {KNOWN}: start a newer version"
            ),
        }))
    }
}

/// Brings the schema up to date. Several processes that start together do it one after another.
pub(super) fn prepare(link: &mut Link) -> Result<(), StoreError> {
    link.transact(&update)?.require_usable()
}

/// Fails unless the schema can be used as it is.
pub(super) fn require(link: &mut Link) -> Result<(), StoreError> {
    link.transact(&look)?.require_usable()
}

/// Returns the version of the schema, and the oldest that a respool must know to use it.
pub(super) fn find_versions(change: &mut Change<'_>) -> Result<(u32, u32), postgres::Error> {
    let sql = "SELECT version, oldest_that_may_use_it FROM respool.schema_version";
    let version = |row: &postgres::Row, index: usize| Ok(row.try_get::<_, i32>(index)?.unsigned_abs());
    let found = change.find(sql, &[], |row| Ok((version(row, 0)?, version(row, 1)?)))?;
    Ok(found.unwrap_or_default())
}

/// Looks what the database has.
pub(super) fn look(change: &mut Change<'_>) -> Result<Found, postgres::Error> {
    let text = |row: &postgres::Row| row.try_get::<_, String>(0);
    let number = change.find("SELECT current_setting('server_version_num')", &[], text)?.unwrap_or_default();
    if number.parse().unwrap_or(0) < OLDEST_SERVER {
        let version = change.find("SELECT current_setting('server_version')", &[], text)?;
        return Ok(Found::OldServer(version.unwrap_or_default()));
    }
    if !change.exists(
        "SELECT 1 FROM pg_tables WHERE schemaname = 'respool' AND tablename = 'schema_version'",
        &[],
    )? {
        return Ok(Found::Nothing);
    }
    Ok(match find_versions(change)? {
        (version, oldest) if oldest > KNOWN => Found::Newer { version, oldest },
        (version, _) if version < KNOWN => Found::Older(version),
        _ => Found::Usable,
    })
}

fn update(change: &mut Change<'_>) -> Result<Found, postgres::Error> {
    change.lock(vec!["schema".to_owned()])?;
    let version = match look(change)? {
        // A user who may not make a schema can use one that is there.
        Found::Nothing => {
            change.run_script(VERSIONS)?;
            0
        }
        Found::Older(version) => version,
        found => return Ok(found),
    };
    let done = usize::try_from(version).unwrap_or_default();
    for (index, (step, oldest)) in STEPS.iter().enumerate().skip(done) {
        change.run_script(step)?;
        let (version, oldest) = (i32::try_from(index + 1).unwrap_or(i32::MAX), oldest.cast_signed());
        let sql = "INSERT INTO respool.schema_version (version, oldest_that_may_use_it) VALUES ($1, $2)
             ON CONFLICT (only_row) DO UPDATE SET version = $1, oldest_that_may_use_it = $2";
        change.execute(sql, &[&version, &oldest])?;
    }
    Ok(Found::Usable)
}
