//! What refproxy keeps of each request, in the shapes that respool uses: a line of its log, and a row of its
//! usage file. A thread of its own writes them in batches.

use std::io::Write as _;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One request.
pub(crate) struct Entry {
    number: u64,
    at: u64,
    path: String,
    status: u16,
    duration: Duration,
}

/// Takes the entries of a writing thread.
pub(crate) struct Sink {
    entries: Sender<Entry>,
    next: std::cell::Cell<u64>,
}

impl Sink {
    /// Starts a thread that calls `write` with all entries of each `pause`.
    fn start(pause: Duration, mut write: impl FnMut(Vec<Entry>) + Send + 'static) -> Self {
        let (entries, received): (_, Receiver<Entry>) = channel();
        std::thread::spawn(move || {
            while let Ok(first) = received.recv() {
                std::thread::sleep(pause);
                write(std::iter::once(first).chain(received.try_iter()).collect());
            }
        });
        Self { entries, next: std::cell::Cell::default() }
    }

    /// Takes one request.
    pub(crate) fn record(&self, path: &str, status: u16, duration: Duration) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let number = self.next.replace(self.next.get() + 1);
        // The writer ends only with the process.
        let _ = self.entries.send(Entry { number, at, path: path.to_owned(), status, duration });
    }
}

/// Writes a line for each request to standard error.
pub(crate) fn write_lines() -> Sink {
    Sink::start(Duration::from_millis(20), |entries| {
        let mut lines = Vec::new();
        for Entry { number, at, path, status, duration } in entries {
            let total = duration.as_secs_f64() * 1000.0;
            // As many fields as a line of respool's has for a short reply, and as long.
            let _ = writeln!(
                lines,
                "{{\"timestamp\":\"{at}\",\"level\":\"INFO\",\"message\":\"request\",\"request_id\":\"{number:032x}\",\
                 \"request\":\"POST {path}\",\"route\":\"passthrough\",\"model\":\"bench-model\",\"stream\":false,\
                 \"upstream\":\"default\",\"upstream_status\":{status},\"status\":{status},\"outcome\":\"ok\",\"edits\":\"\",\
                 \"prompt_tokens\":9,\"completion_tokens\":7,\"first_byte_ms\":{total:.1},\"total_ms\":{total:.1},\
                 \"target\":\"refproxy::request\"}}"
            );
        }
        let _ = std::io::stderr().write_all(&lines);
    })
}

/// Writes a row for each request into `usage.db` in this directory, with respool's schema.
#[cfg(feature = "row")]
pub(crate) fn write_rows(directory: &str) -> Sink {
    let path = std::path::Path::new(directory).join("usage.db");
    let _ = std::fs::remove_file(&path);
    let opened = rusqlite::Connection::open(&path).and_then(|connection| {
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.execute_batch(include_str!("../../../../../../crates/store/src/sqlite/usage_schema.sql"))?;
        Ok(connection)
    });
    let mut connection =
        opened.unwrap_or_else(|error| bench_tools::refuse(&format!("{}: {error}", path.display())));
    Sink::start(Duration::from_millis(500), move |entries| {
        if let Err(error) = insert(&mut connection, &entries) {
            bench_tools::refuse(&error);
        }
    })
}

#[cfg(not(feature = "row"))]
pub(crate) fn write_rows(_: &str) -> Sink {
    bench_tools::refuse(&"--row needs `cargo build --features row`")
}

#[cfg(feature = "row")]
fn insert(connection: &mut rusqlite::Connection, entries: &[Entry]) -> rusqlite::Result<()> {
    let change = connection.transaction()?;
    for entry in entries {
        let millis = i64::try_from(entry.duration.as_millis()).unwrap_or(i64::MAX);
        let at = i64::try_from(entry.at).unwrap_or(i64::MAX);
        let values = rusqlite::params![at, format!("{:032x}", entry.number), entry.status, millis];
        change.prepare_cached(INSERT)?.execute(values)?;
    }
    change.commit()
}

#[cfg(feature = "row")]
const INSERT: &str = "INSERT INTO requests (at, request, route, key, model, upstream, agent, run, stream, status, prompt, \
    completion, first_byte, duration, waited, attempts, dialects, repairs, recovery, loop_stopped, outcome, error_code, error) \
    VALUES (?1, ?2, 'passthrough', '', 'bench-model', 'default', '', '', 0, ?3, 9, 7, ?4, ?4, 0, 1, '', '', '', '', 'ok', '', '')";
