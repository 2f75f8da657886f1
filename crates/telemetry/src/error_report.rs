//! The daily error report: one line for each failure, in `YYYY-MM-DD-errors.md`, in UTC.
//!
//! Each line is one write to a file opened for appending, so several processes can write the same file. It is
//! for people; the structured log has the same and more. The caller decides whether a failure's text may
//! contain text of models, tools and files. Called by `agent`.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::SystemTime;

/// Longer error texts are cut, in bytes.
const LONGEST: usize = 500;

/// Writes the report.
#[derive(Clone, Debug)]
pub struct ErrorReport {
    dir: PathBuf,
}

/// One failure.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// The iteration of the run, counted from 1.
    pub iteration: usize,
    /// The tool, or `model`, or `store`.
    pub tool: &'a str,
    /// The failure.
    pub error: &'a str,
    /// The step that was taken.
    pub fix: &'a str,
}

impl ErrorReport {
    /// Writes the report to `dir`, which is created with the first failure.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Appends one line to the report of the day.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&self, at: SystemTime, failure: Failure<'_>) -> io::Result<()> {
        let stamp = humantime::format_rfc3339_seconds(at).to_string();
        let (day, time) = (stamp.get(..10).unwrap_or_default(), stamp.get(11..19).unwrap_or_default());
        let Failure { iteration, tool, error, fix } = failure;
        let line = format!(
            "[{time}] Iteration {iteration} | Tool: {} | Error: {} | Attempted fix: {}\n",
            flatten_text(tool),
            flatten_text(error),
            flatten_text(fix)
        );
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let path = self.dir.join(format!("{day}-errors.md"));
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(line.as_bytes())
    }
}

fn flatten_text(text: &str) -> String {
    let cut = &text[..text.floor_char_boundary(LONGEST)];
    let flat: String = cut.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if cut.len() < text.len() { format!("{flat}…") } else { flat }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    fn failure(error: &str) -> Failure<'_> {
        Failure { iteration: 2, tool: "web_fetch", error, fix: "retry" }
    }

    #[test]
    fn a_failure_is_one_line_of_the_days_file() {
        let dir = tempfile::tempdir().unwrap();
        let report = ErrorReport::new(dir.path().join("logs"));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_223_698);
        report.append(at, failure("404\nnot | found")).unwrap();
        report.append(at + Duration::from_hours(24), failure(&"x".repeat(9_000))).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join("logs").join(name)).unwrap();
        assert_eq!(
            read("2026-11-21-errors.md"),
            "[01:14:58] Iteration 2 | Tool: web_fetch | Error: 404 not | found | Attempted fix: retry\n"
        );
        assert_eq!(read("2026-11-22-errors.md").lines().count(), 1);
        assert!(read("2026-11-22-errors.md").len() < 700);
        let mode = fs::metadata(dir.path().join("logs")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "it is the owner's alone");
    }

    #[test]
    fn several_writers_do_not_mix_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let report = ErrorReport::new(dir.path().to_owned());
        let at = SystemTime::UNIX_EPOCH;
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                let report = report.clone();
                scope.spawn(move || {
                    let text = char::from(b'a' + writer).to_string().repeat(200);
                    (0..50).for_each(|_| report.append(at, failure(&text)).unwrap());
                });
            }
        });
        let text = fs::read_to_string(dir.path().join("1970-01-01-errors.md")).unwrap();
        let whole = |line: &str| {
            line.starts_with("[00:00:00] Iteration 2 |") && line.ends_with("| Attempted fix: retry")
        };
        assert_eq!(text.lines().filter(|line| whole(line)).count(), 400);
    }
}
