//! Databases as tests need them: of an older version, or unable to write.

use std::path::Path;

use rusqlite::Connection;

/// Runs and queue.
const RUNS: &str = "respool.db";
/// The usage ledger.
const USAGE: &str = "usage.db";

/// Writes a database of runs from SQL statements, such as those of an older version.
///
/// # Panics
/// When the file cannot be written.
pub fn write_runs(dir: &Path, sql: &str) {
    execute(&dir.join(RUNS), sql);
}

/// Makes every write of an event fail from now on.
///
/// # Panics
/// When the database cannot be opened.
pub fn refuse_events(dir: &Path) {
    let refuse = "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no room'); END";
    execute(&dir.join(RUNS), refuse);
}

/// Makes every write of a usage row fail, or succeed again.
///
/// # Panics
/// When the database cannot be opened.
pub fn refuse_usage(dir: &Path, is_refused: bool) {
    let refuse = "CREATE TRIGGER full BEFORE INSERT ON requests BEGIN SELECT RAISE(ABORT, 'no room'); END";
    execute(&dir.join(USAGE), if is_refused { refuse } else { "DROP TRIGGER full" });
}

fn execute(file: &Path, sql: &str) {
    Connection::open(file).unwrap().execute_batch(sql).unwrap();
}
