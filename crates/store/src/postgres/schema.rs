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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::super::address::Address;
    use super::*;

    /// Lists all that statements depend on, by name: `required` columns must be given in each new row, and a
    /// `rule` may refuse rows.
    const PARTS: &str = "
        SELECT 'column ' || table_name || '.' || column_name, udt_name || CASE WHEN is_nullable = 'NO'
                AND column_default IS NULL AND is_identity = 'NO' THEN ' required' ELSE '' END, table_name::text
            FROM information_schema.columns WHERE table_schema = 'respool'
        UNION ALL SELECT 'function ' || oid::regprocedure, prorettype::regtype::text, ''
            FROM pg_proc WHERE pronamespace = 'respool'::regnamespace
        UNION ALL SELECT 'constraint ' || conname, 'rule', relname::text FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
            WHERE relnamespace = 'respool'::regnamespace AND contype <> 'n'
        UNION ALL SELECT 'index ' || indexrelid::regclass, 'rule', relname::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
            WHERE relnamespace = 'respool'::regnamespace AND indisunique
        UNION ALL SELECT 'trigger ' || tgname, 'rule', relname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
            WHERE relnamespace = 'respool'::regnamespace AND NOT tgisinternal";

    /// Parts by name, each with what it is and its table.
    type Parts = BTreeMap<String, (String, String)>;

    fn parts(change: &mut Change<'_>) -> Result<Parts, postgres::Error> {
        let part = |row: &postgres::Row| Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?)));
        Ok(change.list(PARTS, &[], part)?.into_iter().collect())
    }

    /// Returns what a step takes from the versions before, or asks of them.
    fn breaks(before: &Parts, after: &Parts) -> Vec<String> {
        let is_needed = |what: &str| what != "rule";
        let gone = before.iter().filter(|(name, (what, _))| {
            is_needed(what) && after.get(*name).is_none_or(|(now, _)| !what.starts_with(now.as_str()))
        });
        let is_old = |table: &str| !table.is_empty() && before.values().any(|(_, other)| other == table);
        let asked = after.iter().filter(|(name, (what, table))| {
            !before.contains_key(*name) && is_old(table) && (what == "rule" || what.ends_with(" required"))
        });
        gone.chain(asked).map(|(name, (what, _))| format!("{name}: {what}")).collect()
    }

    /// In a rolling upgrade, nodes of the version before go on with a schema that another one has updated.
    #[test]
    fn steps_leave_older_nodes_working() {
        let Some(url) = testing::postgres_server::new_database() else { return };
        let mut link = Link::new(Address::parse(&url).unwrap(), Arc::default());
        link.transact(&|change: &mut Change<'_>| change.run_script(VERSIONS)).unwrap();
        let mut before = link.transact(&parts).unwrap();
        for (index, (step, oldest)) in STEPS.iter().enumerate() {
            link.transact(&|change: &mut Change<'_>| change.run_script(step)).unwrap();
            let after = link.transact(&parts).unwrap();
            let version = u32::try_from(index + 1).unwrap();
            // One that says so ends those of before, with 78.
            if index > 0 && *oldest < version {
                assert_eq!(breaks(&before, &after), [""; 0], "step to {version}");
            }
            before = after;
        }
    }

    #[test]
    fn what_breaks_older_nodes_is_found() {
        let Some(url) = testing::postgres_server::new_database() else { return };
        let mut link = Link::new(Address::parse(&url).unwrap(), Arc::default());
        prepare(&mut link).unwrap();
        let before = link.transact(&parts).unwrap();
        for (sql, found) in [
            (
                "ALTER TABLE respool.queue ADD later text NOT NULL DEFAULT ''; CREATE TABLE respool.new (id text NOT NULL)",
                "",
            ),
            ("ALTER TABLE respool.queue ADD must text NOT NULL", "column queue.must: text required"),
            ("ALTER TABLE respool.queue RENAME payload TO load", "column queue.load: text required"),
            ("ALTER TABLE respool.events ALTER seq TYPE text", "column events.seq: int8"),
            ("CREATE UNIQUE INDEX one ON respool.outbox (kind)", "index respool.one: rule"),
            ("DROP FUNCTION respool.claim", "function respool.claim("),
        ] {
            let change_and_undo = |change: &mut Change<'_>| {
                change.run_script("SAVEPOINT before")?;
                change.run_script(sql)?;
                let after = parts(change)?;
                change.run_script("ROLLBACK TO before")?;
                Ok(after)
            };
            let all = breaks(&before, &link.transact(&change_and_undo).unwrap()).join("; ");
            assert!(all.contains(found) && all.is_empty() == found.is_empty(), "{sql}: {all}");
        }
    }
}
