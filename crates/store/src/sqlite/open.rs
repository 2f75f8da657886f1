//! Opens the database: directory, permissions, journal, schema versions, and what to do with a damaged file.
//!
//! Write-ahead log with `synchronous = NORMAL`: a commit survives the end of the process at any moment, which
//! is what runs need, and costs no wait for the disk. A power failure may take the last commits; those that
//! stand before an effect that must not be repeated are synchronised with the disk (`write`).

use std::cmp::Ordering;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::disk::{try_directory, write_remedy};
use crate::error::StoreError;

const FILE: &str = "respool.db";
/// How long one process waits for another's write.
pub(super) const BUSY: Duration = Duration::from_secs(5);
/// The write-ahead log's file is cut to this once its content is in the database, in bytes.
const LARGEST_LOG: u32 = 4 << 20;
/// After this many pages the log's content is moved to the database, which waits for the disk twice. The same
/// pages are written again and again, and each is moved once.
const LOG_PAGES: u32 = 4_000;
/// A database up to this size is read whole before it is used, in bytes: that takes some ten milliseconds.
const LARGEST_READ: u64 = 16 << 20;
/// The number of statements that are kept prepared: more than there are. With fewer, each would be parsed
/// again when it is needed again.
const STATEMENTS: usize = 256;
/// `auto_vacuum` of a database that can give space back in batches.
const INCREMENTAL: u32 = 2;
/// The schema, as the steps from each version to the next.
pub(super) const STEPS: [&str; 12] = [
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_outbox.sql"),
    include_str!("schema_responses.sql"),
    include_str!("schema_work.sql"),
    include_str!("schema_operators.sql"),
    include_str!("schema_clock.sql"),
    include_str!("schema_alerts.sql"),
];

/// An open database.
pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) path: PathBuf,
}

/// Makes the directory, for its owner alone, if it is missing.
pub(super) fn make_directory(dir: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| unusable(dir, &error.to_string()))
}

/// The database of a directory.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// True when there is a database in a directory.
pub(super) fn is_present(dir: &Path) -> bool {
    path(dir).exists()
}

/// Opens the database in a directory. `alone`: no other process uses it, so the file may be moved or
/// rewritten.
pub(super) fn open(dir: &Path, alone: bool) -> Result<Opened, StoreError> {
    let path = path(dir);
    match connections(&path, &STEPS) {
        Ok((writer, reader)) => {
            if alone {
                enable_auto_vacuum(&writer, &path);
                release_claims(&writer, &path);
            }
            Ok(Opened { writer, reader, path })
        }
        Err(Fault::Damaged) if alone => {
            set_aside(&path).map_err(|error| unusable(dir, &error.to_string()))?;
            let (writer, reader) = connections(&path, &STEPS).map_err(|fault| fault.into_error(&path))?;
            Ok(Opened { writer, reader, path })
        }
        Err(fault) => Err(fault.into_error(&path)),
    }
}

/// Opens another database of the state directory, whose schema has these steps. A damaged one is set aside if
/// no other process uses it.
pub(super) fn open_other(
    path: &Path,
    steps: &[&str],
    alone: bool,
) -> Result<(Connection, Connection), StoreError> {
    match connections(path, steps) {
        Err(Fault::Damaged) if alone => {
            set_aside(path).map_err(|error| unusable(path, &error.to_string()))?;
            connections(path, steps).map_err(|fault| fault.into_error(path))
        }
        other => other.map_err(|fault| fault.into_error(path)),
    }
}

/// Opens another database of the state directory to read it. One that is not there is empty.
pub(super) fn open_to_read(path: &Path, steps: &[&str]) -> Result<Connection, StoreError> {
    let migrated = |mut opened: Connection| -> Result<Connection, Fault> {
        migrate(&mut opened, steps)?;
        Ok(opened)
    };
    let opened = match path.try_exists() {
        Ok(false) => Connection::open_in_memory().map_err(Fault::from).and_then(migrated),
        _ => connection(path).and_then(migrated),
    };
    opened.or_else(|fault| {
        let read_only = match &fault {
            Fault::Sql(error) if is_unwritable(error) => open_read_only(path).ok(),
            _ => None,
        };
        read_only.ok_or_else(|| fault.into_error(path))
    })
}

/// Returns true if a file or its directory cannot be written, as on a full disk.
fn is_unwritable(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DiskFull, PermissionDenied, ReadOnly, SystemIoFailure};
    let code = error.sqlite_error_code();
    matches!(code, Some(ReadOnly | PermissionDenied | CannotOpen | DiskFull | SystemIoFailure))
}

/// Opens a database on a disk that cannot be written: with its log, or without where that cannot be read.
pub(super) fn open_read_only(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let name = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let open = |mode: &str| {
        let connection = Connection::open_with_flags(format!("file:{name}?{mode}"), flags)?;
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        Ok(connection)
    };
    open("mode=ro").or_else(|_: rusqlite::Error| open("immutable=1"))
}

/// Ends the claims on entries of the queue. The processes that made them have ended, so no one has to wait
/// until the claims do.
fn release_claims(writer: &Connection, path: &Path) {
    let released = writer.execute("UPDATE queue SET lease_until = 0 WHERE lease_until IS NOT NULL", []);
    if let Err(error) = released {
        tracing::warn!(target: "respool::store", path = %path.display(), %error, "the work of an ended process continues only after its claims expire");
    }
}

pub(super) enum Fault {
    Damaged,
    /// The file has steps that this version does not know.
    Newer {
        version: u32,
        known: u32,
    },
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged,
            _ => Self::Sql(error),
        }
    }
}

impl Fault {
    fn into_error(self, path: &Path) -> StoreError {
        match self {
            Self::Newer { version, known } => StoreError(format!(
                "{} was written by a newer respool (schema {version}, this one knows {known}); start that version, or \
                 set another `state_dir`",
                path.display()
            )),
            Self::Sql(error) => failed("open", path, &error),
            Self::Damaged => StoreError(format!(
                "{} is damaged; end all processes of respool that use it, and start `respool serve` again, which sets the file aside",
                path.display()
            )),
        }
    }
}

fn connections(path: &Path, steps: &[&str]) -> Result<(Connection, Connection), Fault> {
    let mut writer = connection(path)?;
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o600));
    writer.pragma_update(None, "journal_mode", "wal")?;
    if (is_suspect(path) || is_small(path)) && !is_sound(&writer)? {
        return Err(Fault::Damaged);
    }
    let _ = fs::remove_file(suspicion(path));
    migrate(&mut writer, steps)?;
    Ok((writer, connection(path)?))
}

/// Whether a file is read whole at the start. A larger one is looked at meanwhile.
pub(super) fn is_small(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() <= LARGEST_READ)
}

pub(super) fn is_sound(connection: &Connection) -> rusqlite::Result<bool> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(found == "ok")
}

/// The mark of a database that was found to be damaged while it was used.
fn suspicion(path: &Path) -> PathBuf {
    path.with_extension("db-damaged")
}

fn is_suspect(path: &Path) -> bool {
    suspicion(path).exists()
}

/// Reads a large database whole, away from the start. When it is damaged the next start sets it aside.
pub(super) fn check_later(path: &Path) {
    if is_small(path) {
        return;
    }
    let path = path.to_owned();
    let check = move || {
        let found = connection(&path)
            .map_err(|fault| matches!(fault, Fault::Damaged))
            .and_then(|it| is_sound(&it).map_err(|error| matches!(Fault::from(error), Fault::Damaged)));
        if matches!(found, Ok(false) | Err(true)) {
            let _ = fs::write(suspicion(&path), "");
            tracing::error!(
                target: "respool::store",
                path = %path.display(),
                "the database is damaged: restart respool, which sets it aside and begins a new one"
            );
        }
    };
    let _ = std::thread::Builder::new().name("store-check".into()).spawn(check);
}

fn connection(path: &Path) -> Result<Connection, Fault> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Holds for a file that is new, and for an older one once `enable_auto_vacuum` has rewritten it. To set
    // it writes to the file.
    if auto_vacuum(&connection)? != INCREMENTAL {
        connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    }
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "journal_size_limit", LARGEST_LOG)?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    // What is deleted is overwritten where that costs nothing; the pages that are free go back to the disk.
    connection.pragma_update(None, "secure_delete", "fast")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}

fn migrate(connection: &mut Connection, steps: &[&str]) -> Result<(), Fault> {
    // Takes the write lock first, so that two processes cannot both begin the same step.
    let change = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version: u32 = change.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    match version.cmp(&known) {
        Ordering::Less => {}
        // Nothing is written: also on a full disk runs can be looked at.
        Ordering::Equal => return Ok(()),
        Ordering::Greater => return Err(Fault::Newer { version, known }),
    }
    for step in steps.iter().skip(version as usize) {
        change.execute_batch(step)?;
    }
    change.pragma_update(None, "user_version", known)?;
    change.commit()?;
    Ok(())
}

fn auto_vacuum(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("PRAGMA auto_vacuum", [], |row| row.get(0))
}

/// A database that was begun without the means to give space back gets them, which rewrites it. When that
/// cannot be done now (a full disk) it works as before, and the next start tries again.
fn enable_auto_vacuum(connection: &Connection, path: &Path) {
    let mode = auto_vacuum(connection);
    if mode == Ok(INCREMENTAL) {
        return;
    }
    let bytes = fs::metadata(path).map(|file| file.len()).unwrap_or_default();
    tracing::info!(target: "respool::store", bytes, "the database is rewritten once; a large one takes a while");
    if let Err(error) = mode.and_then(|_| connection.execute_batch("VACUUM")) {
        let error = failed("rewrite", path, &error);
        tracing::warn!(target: "respool::store", %error, "the space of deleted runs is not freed until this is done");
    }
}

/// Moves a damaged database, its log included, to a name under which it can still be looked at.
fn set_aside(path: &Path) -> std::io::Result<()> {
    let name = |number| path.with_extension(format!("damaged-{number}"));
    let aside = (1..100).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(100));
    fs::rename(path, &aside)?;
    for ending in ["-wal", "-shm"] {
        let with = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
        let _ = fs::rename(with(path), with(&aside));
    }
    tracing::error!(target: "respool::store", set_aside = %aside.display(), "the database was damaged: it was set aside, and a new one begun");
    Ok(())
}

/// The state directory cannot be used.
pub(super) fn unusable(dir: &Path, why: &str) -> StoreError {
    StoreError(format!(
        "the state directory {} cannot be used: {why}; set `state_dir` to one that can be written",
        dir.display()
    ))
}

/// A database error, with what to do about it. A damaged file gets the mark with which the next start reads
/// it whole.
pub(super) fn failed(what: &str, path: &Path, error: &rusqlite::Error) -> StoreError {
    // Where nothing can be written, the system's reason says more than SQLite's.
    if is_unwritable(error)
        && let Some(Err(why)) = path.parent().map(try_directory)
    {
        return StoreError(format!("cannot {what} {}: {why}; {}", path.display(), write_remedy(&why)));
    }
    let todo = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "make room on its disk",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            "give this user the right to write the file and its directory, or set another `state_dir`"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            let _ = fs::write(suspicion(path), "");
            "the file is damaged: restart respool, which sets it aside and begins a new one"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process holds it locked: end that one"
        }
        Some(ErrorCode::SystemIoFailure) => "look at the system's log for errors of the disk",
        _ => "try again, and report this if it persists",
    };
    StoreError(format!("cannot {what} {}: {error}; {todo}", path.display()))
}
