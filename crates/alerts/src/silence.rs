//! Silences and open alerts: two small files in the state directory, so that the command line and a server
//! share them.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::open_alert::OpenAlert;
use super::rule::Rule;

const SILENCES: &str = "alerts-silenced.json";
const OPEN: &str = "alerts-open.json";
/// The size of the file of open alerts is a multiple of this, in bytes.
const ROOM: usize = 16 << 10;

/// One silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// The rule's name.
    pub rule: String,
    /// Its subject; empty: any subject.
    pub subject: String,
    /// Its end, in milliseconds since 1970.
    pub until: u64,
}

/// The silences of a state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silences(Vec<Silence>);

impl Silences {
    /// Reads the silences of this directory.
    pub fn read(state_dir: &Path) -> Self {
        Self(serde_json::from_str(&Self::read_text(state_dir)).unwrap_or_default())
    }

    /// Reads them as text, for other nodes.
    pub fn read_text(state_dir: &Path) -> String {
        fs::read_to_string(state_dir.join(SILENCES)).unwrap_or_default()
    }

    /// Takes the text of another node in the place of these.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn replace(state_dir: &Path, text: &str) -> io::Result<()> {
        atomic_file::replace(&state_dir.join(SILENCES), text.as_bytes())
    }

    /// Returns true if an alert is silenced now.
    pub fn covers(&self, rule: Rule, subject: &str, now: u64) -> bool {
        self.end_of(rule.as_str(), subject, now).is_some()
    }

    /// Returns the end of the silence that covers an alert now.
    fn end_of(&self, rule: &str, subject: &str, now: u64) -> Option<u64> {
        let covers = |it: &&Silence| {
            it.rule == rule && (it.subject.is_empty() || it.subject == subject) && it.until > now
        };
        self.0.iter().filter(covers).map(|it| it.until).max()
    }

    /// Notes in an alert whether it is silenced now.
    pub(super) fn mark_alert(&self, alert: &mut OpenAlert, now: u64) {
        alert.silenced_until = self.end_of(&alert.rule, &alert.subject, now);
        alert.is_silenced = alert.silenced_until.is_some();
    }

    /// Adds a silence in this directory, and deletes those that are over.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(state_dir: &Path, silence: Silence, now: u64) -> io::Result<()> {
        let mut all = Self::read(state_dir).0;
        all.retain(|it| it.until > now && (it.rule != silence.rule || it.subject != silence.subject));
        all.push(silence);
        atomic_file::replace(&state_dir.join(SILENCES), &serde_json::to_vec(&all).unwrap_or_default())
    }

    /// Ends the silences that cover alerts of a rule about this subject; `None`: about any subject. Returns
    /// their number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn end(state_dir: &Path, rule: Rule, subject: Option<&str>, now: u64) -> io::Result<usize> {
        let mut all = Self::read(state_dir).0;
        all.retain(|it| it.until > now);
        let in_effect = all.len();
        all.retain(|it| {
            let covers = it.subject.is_empty() || subject.is_none_or(|subject| it.subject == subject);
            it.rule != rule.as_str() || !covers
        });
        let ended = in_effect - all.len();
        if ended > 0 {
            let text = serde_json::to_string(&all).unwrap_or_default();
            atomic_file::replace(&state_dir.join(SILENCES), text.as_bytes())?;
        }
        Ok(ended)
    }
}

/// Writes the open alerts, for the command line. On a full disk, which is an alert itself, they are written
/// over the last list: its file has room for more.
pub(super) fn write_open(state_dir: &Path, open: &[OpenAlert]) -> io::Result<()> {
    let path = state_dir.join(OPEN);
    let text = serde_json::to_string(open).unwrap_or_default();
    let padded = pad_text(&text, text.len().next_multiple_of(ROOM));
    atomic_file::replace_unsynced(&path, padded.as_bytes())
        .or_else(|full| write_over(&path, &text).map_err(|_| full))
}

fn pad_text(text: &str, len: usize) -> String {
    format!("{text}{}", " ".repeat(len.saturating_sub(text.len())))
}

/// Writes a text into the room that a file has, and blanks behind it.
fn write_over(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if text.len() > room {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(pad_text(text, room).as_bytes())
}

/// Reads the open alerts that a server wrote last, with their present silences; `None` if no server wrote
/// any.
pub fn read_open(state_dir: &Path, now: u64) -> Option<Vec<OpenAlert>> {
    let text = fs::read_to_string(state_dir.join(OPEN)).ok()?;
    let mut open: Vec<OpenAlert> = serde_json::from_str(&text).ok()?;
    let silences = Silences::read(state_dir);
    open.iter_mut().for_each(|alert| silences.mark_alert(alert, now));
    Some(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: on a full disk no alert was listed, not even that the disk is full.
    #[test]
    fn open_alerts_are_written_over_the_last_list() {
        let dir = tempfile::tempdir().unwrap();
        write_open(dir.path(), &[]).unwrap();
        let path = dir.path().join(OPEN);
        let alerts =
            r#"[{"rule":"state_not_writable","subject":"","what":"x","since":1,"is_silenced":false}]"#;
        write_over(&path, alerts).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let read: Vec<OpenAlert> = serde_json::from_str(&text).unwrap();
        assert_eq!((&*read[0].rule, text.len()), ("state_not_writable", ROOM));
        write_over(&path, &"x".repeat(ROOM + 1)).unwrap_err();
    }

    #[test]
    fn open_alerts_show_the_end_of_their_silence() {
        let dir = tempfile::tempdir().unwrap();
        let written =
            r#"[{"rule":"upstream_down","subject":"box","what":"x","since":1,"is_silenced":false}]"#;
        fs::write(dir.path().join(OPEN), written).unwrap();
        let silence = |until| Silence { rule: "upstream_down".into(), subject: String::new(), until };
        Silences::add(dir.path(), silence(50), 1).unwrap();
        let shown = |now| {
            let open = read_open(dir.path(), now).unwrap();
            (open[0].is_silenced, open[0].silenced_until)
        };
        assert_eq!((shown(49), shown(50)), ((true, Some(50)), (false, None)));
    }

    #[test]
    fn a_silence_covers_its_rule() {
        let dir = tempfile::tempdir().unwrap();
        let silence =
            |subject: &str, until| Silence { rule: "upstream_down".into(), subject: subject.into(), until };
        Silences::add(dir.path(), silence("box", 100), 1).unwrap();
        let covers = |rule, subject: &str, now| Silences::read(dir.path()).covers(rule, subject, now);
        assert!(covers(Rule::UpstreamDown, "box", 99) && !covers(Rule::UpstreamDown, "box", 100));
        assert!(!covers(Rule::UpstreamDown, "other", 1) && !covers(Rule::ErrorRate, "box", 1));
        Silences::add(dir.path(), silence("", 50), 2).unwrap();
        assert!(covers(Rule::UpstreamDown, "other", 49));
        Silences::add(dir.path(), silence("box", 3), 2).unwrap();
        assert!(!covers(Rule::UpstreamDown, "box", 60), "the newer one holds");
        let end = |subject, now| Silences::end(dir.path(), Rule::UpstreamDown, subject, now).unwrap();
        assert_eq!(end(Some("other"), 4), 1);
        assert!(!covers(Rule::UpstreamDown, "other", 49), "the one for all subjects has ended");
        Silences::add(dir.path(), silence("box", 100), 5).unwrap();
        Silences::add(dir.path(), silence("two", 100), 5).unwrap();
        assert_eq!([end(Some("other"), 6), end(None, 6), end(None, 6)], [0, 2, 0]);
    }
}
