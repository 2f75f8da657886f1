//! Time for tests that use sockets: it stands still while anything happens, and passes while nothing does.
//!
//! tokio's own paused clock jumps to the next timer as soon as all tasks wait, although what they wait for
//! may be in a socket already. Here the clock moves in small steps, each of them only after the runtime has
//! looked at its sockets many times and found nothing. So a test says in seconds what happens in which order,
//! takes milliseconds, and does not depend on the speed of the machine. Only for tests in a runtime of one
//! thread; used by the unit tests and by `tests/it`.

use std::sync::mpsc;
use std::time::Duration;

use tokio::task::JoinHandle;

/// The step in which the clock moves.
const STEP: Duration = Duration::from_millis(100);
/// The runtime looks at its sockets this many times between two steps: a reply passes through many tasks.
const LOOKS: u32 = 64;
/// Real time for other threads to work in, for each step.
const PAUSE: Duration = Duration::from_millis(1);

/// The clock of this runtime is the test's, until this is dropped.
#[derive(Debug)]
pub struct IdleTime {
    passing: JoinHandle<()>,
    /// The clock does not jump while a blocking task is at work, and this one waits for the end.
    _hold: mpsc::Sender<()>,
}

impl IdleTime {
    /// Takes over the clock.
    pub fn begin() -> Self {
        tokio::time::pause();
        let (hold, held) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv());
        let passing = tokio::spawn(async {
            loop {
                for _ in 0..LOOKS {
                    tokio::task::yield_now().await;
                }
                let _ = tokio::task::spawn_blocking(|| std::thread::sleep(PAUSE)).await;
                tokio::time::advance(STEP).await;
            }
        });
        Self { passing, _hold: hold }
    }

    /// Waits until this much of the test's time has passed.
    pub async fn pass(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }
}

impl Drop for IdleTime {
    fn drop(&mut self) {
        self.passing.abort();
        if !std::thread::panicking() {
            tokio::time::resume();
        }
    }
}
