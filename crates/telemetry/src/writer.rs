//! Takes log lines immediately and writes them in batches from its own thread.
//!
//! To wake a thread for every line costs more than the line: at ten thousand requests a second it takes a
//! tenth of the processor time. This thread wakes for the first line after a pause, waits a moment for more,
//! and writes them together. Waiting lines are written when [`Batches`] is dropped. Lines are dropped, and
//! counted, only when the writer is stuck (a paused terminal, a dead disk) and megabytes wait: a log must not
//! stop the relay. Lines that a file does not take are counted, too.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::metrics;

/// The longest time that a line waits for others.
const GATHER: Duration = Duration::from_millis(20);

/// The most bytes of waiting lines. Further lines are dropped and counted.
const LARGEST: usize = 8 << 20;

/// The longest time that the program's end waits for a stuck writer.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// The largest buffer that is kept for reuse.
const KEPT: usize = 1 << 20;

#[derive(Default)]
struct PendingLines {
    lines: Vec<u8>,
    dropped: u64,
    ended: bool,
    written: bool,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<PendingLines>,
    changed: Condvar,
}

/// Accepts lines; cheap to clone.
#[derive(Clone)]
pub(super) struct LineWriter {
    queue: Arc<Queue>,
}

/// Owns the writing thread; dropping it writes the waiting lines and ends the thread.
#[derive(Debug)]
pub(super) struct Batches {
    end: LineWriter,
    thread: Option<JoinHandle<()>>,
}

/// The place that a writer writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A stream that its reader may close.
    Stream,
    /// A file: a line that it does not take is lost.
    File,
}

/// Starts a writer to `to`.
pub(super) fn start_writer(to: impl Write + Send + 'static, place: Place) -> (LineWriter, Batches) {
    let writer = LineWriter { queue: Arc::default() };
    let queue = Arc::clone(&writer.queue);
    let write = move || write_batches(&queue, to, place);
    let thread = thread::Builder::new().name("log".into()).spawn(write).ok();
    (writer.clone(), Batches { end: writer, thread })
}

fn write_batches(queue: &Queue, mut to: impl Write, place: Place) {
    let (mut lines, mut lost, mut is_torn) = (Vec::new(), 0, false);
    loop {
        let waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = queue.changed.wait_while(waiting, |waiting| waiting.lines.is_empty() && !waiting.ended);
        let ended = waiting.unwrap_or_else(PoisonError::into_inner).ended;
        if !ended {
            thread::sleep(GATHER);
        }
        let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The two buffers are swapped: to grow a new one for each batch costs more than to fill it.
        std::mem::swap(&mut waiting.lines, &mut lines);
        let dropped = std::mem::take(&mut waiting.dropped);
        drop(waiting);
        let count = lines.split(|byte| *byte == b'\n').count().saturating_sub(1) as u64;
        lost += dropped;
        if lost > 0 {
            lines.extend_from_slice(loss_note(lost, clock::now()).as_bytes());
        }
        // A log that cannot be written must not stop the relay.
        if is_torn {
            // The line that was cut ends here.
            lines.insert(0, b'\n');
        }
        let is_written = to.write_all(&lines).and_then(|()| to.flush()).is_ok();
        let lost_now = if is_written || place == Place::Stream { 0 } else { count };
        lost = if is_written { 0 } else { lost + lost_now };
        is_torn = !is_written && place == Place::File;
        metrics::count_lost_log_lines(dropped + lost_now);
        lines.clear();
        lines.shrink_to(KEPT);
        if ended {
            queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).written = true;
            queue.changed.notify_all();
            return;
        }
    }
}

/// Returns the line that says how many lines were lost.
fn loss_note(lost: u64, now: u64) -> String {
    let time = clock::format_time(now);
    format!(
        "{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"target\":\"respool::log\",\"message\":\"{lost} log lines were lost\"}}\n"
    )
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.lines.len() > LARGEST {
            waiting.dropped += 1;
            return Ok(line.len());
        }
        let first = waiting.lines.is_empty();
        waiting.lines.extend_from_slice(line);
        drop(waiting);
        if first {
            self.queue.changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LineWriter")
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.end.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.end.queue.changed.notify_all();
        if self.thread.take().is_some() {
            let waiting = self.end.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let _ =
                self.end.queue.changed.wait_timeout_while(waiting, LAST_WRITE, |waiting| !waiting.written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_writer_stops_nobody() {
        struct Stuck;
        impl Write for Stuck {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                loop {
                    thread::park();
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut lines, batches) = start_writer(Stuck, Place::Stream);
        for _ in 0..30 {
            lines.write_all(&vec![b'x'; 1 << 20]).unwrap();
        }
        assert!(lines.queue.waiting.lock().unwrap().dropped > 0);
        drop(batches);
    }

    /// Regression: it was not said that a full disk took no more lines.
    #[test]
    fn lines_that_a_file_does_not_take_are_counted() {
        struct Full(Written, bool);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if std::mem::take(&mut self.1) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.0.write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (written, before) = (Written::default(), metrics::lost_log_lines());
        let (mut lines, batches) = start_writer(Full(written.clone(), true), Place::File);
        lines.write_all(b"one\ntwo\n").unwrap();
        while metrics::lost_log_lines() < before + 2 {
            thread::yield_now();
        }
        lines.write_all(b"three\n").unwrap();
        drop(batches);
        let text = String::from_utf8(written.0.lock().unwrap().concat()).unwrap();
        let mut found = text.lines();
        assert_eq!((found.next(), found.next()), (Some(""), Some("three")), "a line that was cut is ended");
        let note: serde_json::Value = serde_json::from_str(found.next().unwrap()).unwrap();
        assert_eq!(
            (&note["message"], &note["target"]),
            (&"2 log lines were lost".into(), &"respool::log".into())
        );
        assert!(note["timestamp"].is_string() && found.next().is_none(), "{note}");
    }

    #[test]
    fn every_line_is_written_in_few_writes() {
        let written = Written::default();
        let (mut lines, batches) = start_writer(written.clone(), Place::Stream);
        for number in 0..1000 {
            writeln!(lines, "{number}").unwrap();
        }
        drop(batches);
        let pieces = written.0.lock().unwrap();
        let expected: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        assert_eq!(String::from_utf8(pieces.concat()).unwrap().lines().collect::<Vec<_>>(), expected);
        assert!(pieces.len() < 100, "{} writes", pieces.len());
    }
}
