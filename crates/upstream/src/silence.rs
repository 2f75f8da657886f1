//! How long an upstream has sent nothing of a reply while it had requests: a server that hangs accepts
//! requests, lists its models and answers nothing. Pure; `gate` is the caller.

use std::time::Duration;

use tokio::time::Instant;

/// Requests that come within this time after the last one continue its silence: clients give up, and try
/// again.
const CONTINUES: Duration = Duration::from_mins(1);

/// The silence of one upstream.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// When it began; `None` before the first request.
    since: Option<Instant>,
    /// When the last request ended, if none is in progress.
    idle_since: Option<Instant>,
}

impl Silence {
    /// Notes a request where none was in progress. `heard`: a piece of a reply has come since the last look.
    pub(super) fn begin(&mut self, heard: bool, now: Instant) {
        let continues =
            self.idle_since.take().is_some_and(|idle| now.saturating_duration_since(idle) < CONTINUES);
        if heard || !continues || self.since.is_none() {
            self.since = Some(now);
        }
    }

    /// Notes that no request is in progress any more.
    pub(super) fn pause(&mut self, now: Instant) {
        self.idle_since = Some(now);
    }

    /// Returns for how long nothing has come; `None` without requests in progress. `heard` as for
    /// [`Silence::begin`].
    pub(super) fn look(&mut self, heard: bool, now: Instant) -> Option<Duration> {
        if heard {
            self.since = Some(now);
        }
        let since = self.since.filter(|_| self.idle_since.is_none())?;
        Some(now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_lasts_until_something_comes() {
        let (start, mut silence) = (Instant::now(), Silence::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let seconds = |silence: &mut Silence, heard, now| silence.look(heard, at(now)).map(|it| it.as_secs());
        assert_eq!(seconds(&mut silence, false, 0), None);
        silence.begin(false, at(100));
        assert_eq!(seconds(&mut silence, false, 160), Some(60));
        // The client gives up and asks again.
        silence.pause(at(160));
        assert_eq!(seconds(&mut silence, false, 161), None);
        silence.begin(false, at(162));
        assert_eq!(seconds(&mut silence, false, 200), Some(100));
        assert_eq!(seconds(&mut silence, true, 201), Some(0));
        assert_eq!(seconds(&mut silence, false, 210), Some(9));
        // Another night, another request.
        silence.pause(at(210));
        silence.begin(false, at(9_000));
        assert_eq!(seconds(&mut silence, false, 9_001), Some(1));
        silence.pause(at(9_002));
        silence.begin(true, at(9_003));
        assert_eq!(seconds(&mut silence, false, 9_004), Some(1));
    }
}
