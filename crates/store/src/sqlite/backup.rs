//! Copies the databases of a state directory while other processes write to them, by `SQLite`'s backup API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use super::open::{self, failed};
use super::usage;
use crate::error::StoreError;

/// The time until a copy that met a write goes on.
const PAUSE: Duration = Duration::from_millis(50);

/// Copies the databases of a state directory to another one, as they are at one moment each. Returns their
/// names.
///
/// # Errors
/// When one cannot be read, is damaged, or cannot be written there.
pub fn copy_databases(state_dir: &Path, to: &Path) -> Result<Vec<String>, StoreError> {
    let present = [open::path(state_dir), usage::path(state_dir)];
    let present: Vec<PathBuf> = present.into_iter().filter(|path| path.exists()).collect();
    let names = present.iter().map(|path| path.file_name().unwrap_or_default());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    for (from, name) in present.iter().zip(&names) {
        let copy = to.join(name);
        let copied = copy_database(from, &copy).map_err(|error| failed("copy", from, &error))?;
        if !copied {
            return Err(StoreError(format!("{} is damaged: its copy is not sound", from.display())));
        }
    }
    Ok(names)
}

/// Copies a database as one snapshot. Returns whether the copy is sound.
fn copy_database(from: &Path, to: &Path) -> rusqlite::Result<bool> {
    // Without the log, it would lack the last commits.
    let source = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut copy = Connection::open(to)?;
    Backup::new(&source, &mut copy)?.run_to_completion(i32::MAX, PAUSE, None)?;
    open::is_sound(&copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_is_in_the_log() {
        let (state, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let writer = Connection::open(open::path(state.path())).unwrap();
        writer.pragma_update(None, "journal_mode", "wal").unwrap();
        writer.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1), (2)").unwrap();
        assert_eq!(copy_databases(state.path(), to.path()).unwrap(), ["respool.db"]);
        let copy = Connection::open(open::path(to.path())).unwrap();
        let rows: u32 = copy.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 2);
    }
}
