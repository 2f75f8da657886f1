//! Takes log lines immediately and writes them in batches from its own thread.
//!
//! To wake a thread for every line costs more than the line: at ten thousand requests a second it takes a
//! tenth of the processor time. This thread wakes for the first line after a pause, waits a moment for more,
//! and writes them together. Waiting lines are written when [`Batches`] is dropped. Lines are dropped, and
//! counted, only when the writer is stuck (a paused terminal, a dead disk) and megabytes wait: a log must not
//! stop the relay.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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

/// Starts a writer to `to`.
pub(super) fn start_writer(to: impl Write + Send + 'static) -> (LineWriter, Batches) {
    let writer = LineWriter { queue: Arc::default() };
    let queue = Arc::clone(&writer.queue);
    let thread = thread::Builder::new().name("log".into()).spawn(move || write_batches(&queue, to)).ok();
    (writer.clone(), Batches { end: writer, thread })
}

fn write_batches(queue: &Queue, mut to: impl Write) {
    let mut lines = Vec::new();
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
        if dropped > 0 {
            lines.extend_from_slice(
                format!("{{\"level\":\"WARN\",\"message\":\"{dropped} log lines were dropped\"}}\n")
                    .as_bytes(),
            );
        }
        // A log that cannot be written must not stop the relay, and there is nowhere to report it.
        let _ = to.write_all(&lines).and_then(|()| to.flush());
        lines.clear();
        lines.shrink_to(KEPT);
        if ended {
            queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).written = true;
            queue.changed.notify_all();
            return;
        }
    }
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
        let (mut lines, batches) = start_writer(Stuck);
        for _ in 0..30 {
            lines.write_all(&vec![b'x'; 1 << 20]).unwrap();
        }
        assert!(lines.queue.waiting.lock().unwrap().dropped > 0);
        drop(batches);
    }

    #[test]
    fn every_line_is_written_in_few_writes() {
        let written = Written::default();
        let (mut lines, batches) = start_writer(written.clone());
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
