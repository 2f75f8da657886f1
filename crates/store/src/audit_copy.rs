//! Copies the lines of a state directory's audit log to the database of all processes. No call of a tool
//! waits for it, and the file stays the truth. `cli::audit` reads both.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::audit::{AuditLogLine, AuditLogPart, SharedAuditLog};
use super::error::StoreError;
use super::store::Store;
use wire::digest::{hex, sha256};

/// The time between two looks at the file.
const EVERY: Duration = Duration::from_secs(1);
/// The most bytes that are sent at once.
const LARGEST_PART: u64 = 1 << 20;
/// How long the end of the process waits for the last lines to be sent. The next process sends what is left.
const LAST_WITHIN: Duration = Duration::from_secs(5);

/// Reads when a line of the log was written, in milliseconds since 1970.
type TimeOf = fn(&str) -> Option<u64>;

/// The audit log of a state directory, on its way to a database.
#[derive(Debug)]
pub struct AuditCopy {
    store: Option<Arc<Store>>,
    path: PathBuf,
    time_of: TimeOf,
    log: Mutex<Option<OpenLog>>,
}

impl AuditCopy {
    /// Returns the copy of the log at `path` to the database of this store, where it has one.
    pub fn new(store: Option<Arc<Store>>, path: PathBuf, time_of: TimeOf) -> Self {
        Self { store, path, time_of, log: Mutex::default() }
    }

    /// The log of all processes, where they share one.
    fn shared_log(&self) -> Option<&dyn SharedAuditLog> {
        self.store.as_ref()?.shared_audit_log()
    }

    /// Copies lines as they are written, until `stop`.
    pub async fn copy_until(self: Arc<Self>, stop: CancellationToken) {
        let Some(shared) = self.shared_log() else { return };
        let mut is_apart = false;
        while !stop.is_cancelled() {
            let copied = self.copy_to(shared).await;
            let was_apart = std::mem::replace(&mut is_apart, copied.is_err());
            if let Err(error) = copied
                && !was_apart
            {
                tracing::error!(target: "respool::tools", %error, "lines of the audit log wait in the state directory until the database can be used");
            }
            tokio::select! { () = stop.cancelled() => {}, () = tokio::time::sleep(EVERY) => {} }
        }
    }

    /// Copies what was written last.
    pub async fn copy_rest(&self) {
        if let Some(shared) = self.shared_log() {
            let _ = tokio::time::timeout(LAST_WITHIN, self.copy_to(shared)).await;
        }
    }

    async fn copy_to(&self, shared: &dyn SharedAuditLog) -> Result<(), StoreError> {
        let mut place = self.log.lock().await;
        loop {
            let (held, path, time_of) = (place.take(), self.path.clone(), self.time_of);
            let read = tokio::task::spawn_blocking(move || read_next(held, &path, time_of)).await;
            let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
            let cannot = |error| StoreError(format!("{} cannot be read: {error}", self.path.display()));
            let Some((mut log, part)) = read.map_err(cannot)? else { return Ok(()) };
            let Some(part) = part else {
                log.begin_at(shared.added_until(&log.name).await?);
                *place = Some(log);
                continue;
            };
            let (end, is_all) = (part.end, log.end == Some(part.end));
            let added = if is_all { Ok(()) } else { shared.add_lines(part).await };
            // A database that is used again may be one of before, restored from a dump.
            log.end = added.is_ok().then_some(end);
            // A file that was moved meanwhile is still read to its end.
            *place = Some(log);
            added?;
            if is_all {
                return Ok(());
            }
        }
    }
}

/// A log that is read.
#[derive(Debug)]
struct OpenLog {
    file: File,
    /// Stands for the file among all files.
    name: String,
    /// Where the last line ends that was copied; `None` before that is known.
    end: Option<u64>,
    /// The time of that line.
    at: u64,
}

/// Returns the log and its next lines; no lines while it is not known where they begin, and nothing without a
/// log.
fn read_next(
    held: Option<OpenLog>,
    path: &Path,
    time_of: TimeOf,
) -> io::Result<Option<(OpenLog, Option<AuditLogPart>)>> {
    let Some(mut log) = held.map_or_else(|| OpenLog::open(path), |log| Ok(Some(log)))? else {
        return Ok(None);
    };
    let Some(end) = log.end else { return Ok(Some((log, None))) };
    let part = log.read_part(end, time_of)?;
    if part.end == end && !log.is_at(path) {
        return read_next(None, path, time_of);
    }
    Ok(Some((log, Some(part))))
}

impl OpenLog {
    /// Opens a log that has at least a line.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut first = Vec::new();
        BufReader::new(&file).take(LARGEST_PART).read_until(b'\n', &mut first)?;
        let metadata = file.metadata()?;
        // Not every file system knows when a file was made.
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let name =
            format!("{}-{}-{}", metadata.ino(), born.unwrap_or_default().as_nanos(), hex(&sha256(&first)));
        Ok(first.ends_with(b"\n").then_some(Self { file, name, end: None, at: 0 }))
    }

    /// Begins behind what was copied before. A file that is shorter was changed.
    fn begin_at(&mut self, copied: u64) {
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        self.end = Some(if copied <= length { copied } else { 0 });
    }

    /// Returns true if the path leads to this file, which has what was read of it.
    fn is_at(&self, path: &Path) -> bool {
        let (Ok(found), Ok(own)) = (path.metadata(), self.file.metadata()) else { return false };
        (found.dev(), found.ino()) == (own.dev(), own.ino()) && Some(own.len()) >= self.end
    }

    /// Reads the lines behind a place that are complete.
    fn read_part(&mut self, start: u64, time_of: TimeOf) -> io::Result<AuditLogPart> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(start))?;
        (&self.file).take(LARGEST_PART).read_to_end(&mut bytes)?;
        let is_endless = bytes.len() as u64 == LARGEST_PART && !bytes.contains(&b'\n');
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        bytes.truncate(if is_endless { bytes.len() } else { complete });
        let mut part = AuditLogPart { file: self.name.clone(), end: start, lines: Vec::new() };
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = String::from_utf8_lossy(line).trim_end().to_owned();
            self.at = time_of(&text).unwrap_or(self.at);
            part.lines.push(AuditLogLine { at: self.at, offset: part.end, text });
            part.end += line.len() as u64;
        }
        part.lines.retain(|line| !line.text.is_empty());
        Ok(part)
    }
}

#[cfg(test)]
#[cfg(feature = "postgres")]
mod tests {
    use std::fs;

    use testing::postgres_server;
    use wire::units::Secret;

    use super::*;
    use crate::{DatabaseConfig, StoreConfig};

    /// The state directory of a node, and its database.
    struct Bed {
        dir: tempfile::TempDir,
        url: String,
    }

    impl Bed {
        fn new() -> Option<Self> {
            Some(Self { dir: tempfile::tempdir().unwrap(), url: postgres_server::new_database()? })
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("audit.jsonl")
        }

        /// The copy of a process of its own.
        fn begin_copy(&self) -> AuditCopy {
            let url = Some(Secret::new(self.url.clone()));
            let database = DatabaseConfig { url, pool: 2, ..DatabaseConfig::default() };
            let state_dir = self.dir.path().to_owned();
            let config = StoreConfig { state_dir, store: database, ..StoreConfig::default() };
            AuditCopy::new(Some(Arc::new(Store::open(&config).unwrap())), self.path(), |_| None)
        }

        fn append(&self, text: &str) {
            use std::io::Write as _;
            let log = File::options().append(true).create(true).open(self.path());
            log.unwrap().write_all(text.as_bytes()).unwrap();
        }

        async fn run_sql(&self, sql: &'static str) {
            let url = self.url.clone();
            let run = move || {
                postgres::Client::connect(&url, postgres::NoTls).unwrap().batch_execute(sql).unwrap();
            };
            tokio::task::spawn_blocking(run).await.unwrap();
        }
    }

    impl AuditCopy {
        async fn copy(&self) -> Result<Vec<String>, StoreError> {
            let shared = self.shared_log().unwrap();
            self.copy_to(shared).await?;
            let lines = shared.newest_lines(0, 100).await?;
            let mut texts: Vec<String> = lines.into_iter().map(|(_, line)| line.text).collect();
            texts.sort();
            Ok(texts)
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_line_is_copied_once() {
        let Some(bed) = Bed::new() else { return };
        let copy = bed.begin_copy();
        assert_eq!(copy.copy().await.unwrap(), [""; 0], "there is no log");
        bed.append("1\n2 be");
        assert_eq!(copy.copy().await.unwrap(), ["1"], "the second line is not complete");
        bed.append("gun\n\n3\n");
        bed.run_sql("ALTER TABLE respool.audit_lines RENAME TO gone").await;
        copy.copy().await.unwrap_err();
        bed.run_sql(
            "ALTER TABLE respool.gone RENAME TO audit_lines;
            DELETE FROM respool.audit_lines; DELETE FROM respool.audit_files",
        )
        .await;
        assert_eq!(copy.copy().await.unwrap(), ["1", "2 begun", "3"], "it was restored from a dump");
        bed.run_sql("DELETE FROM respool.audit_lines").await;
        bed.append("4\n");
        let next = bed.begin_copy();
        assert_eq!(next.copy().await.unwrap(), ["4"], "the next process goes on");
        assert_eq!(next.copy().await.unwrap(), ["4"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_moved_log_is_read_to_its_end() {
        let Some(bed) = Bed::new() else { return };
        let copy = bed.begin_copy();
        bed.append("1\n");
        copy.copy().await.unwrap();
        bed.append("2\n");
        fs::rename(bed.path(), bed.dir.path().join("old")).unwrap();
        bed.append("3\n");
        assert_eq!(copy.copy().await.unwrap(), ["1", "2", "3"]);
        bed.append("4\n");
        copy.copy().await.unwrap();
        fs::write(bed.path(), "5\n").unwrap();
        assert_eq!(copy.copy().await.unwrap(), ["1", "2", "3", "4", "5"], "it was emptied");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_log_goes_in_parts() {
        let Some(bed) = Bed::new() else { return };
        let long = |first: char| first.to_string().repeat(700_000);
        bed.append(&format!("{}\n{}\nc\n", long('a'), long('b')));
        let sizes: Vec<usize> = bed.begin_copy().copy().await.unwrap().iter().map(String::len).collect();
        assert_eq!(sizes, [700_000, 700_000, 1]);
    }

    #[test]
    fn unreadable_lines_have_the_time_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        fs::write(&path, "1500\nnot a time\n").unwrap();
        let mut log = OpenLog::open(&path).unwrap().unwrap();
        let part = log.read_part(0, |line| line.parse().ok()).unwrap();
        let places: Vec<(u64, u64)> = part.lines.iter().map(|line| (line.at, line.offset)).collect();
        assert_eq!(places, [(1_500, 0), (1_500, 5)]);
    }
}
