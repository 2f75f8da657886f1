//! The audit log: one line of JSON for each tool call that is about to have an effect, one for how it ended,
//! and one for each that was refused. Written by the gate in `set`; read by `cli`.
//!
//! Lines are only appended, under a lock that all processes of this state directory take. The log proves
//! nothing against a user who may write the file: send its lines to another machine for that. Where processes
//! share a database, `serve` copies the lines there (`cli::audit_copy`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use wire::digest::{hex, sha256};

/// Its name in the state directory.
pub const FILE: &str = "audit.jsonl";
/// Longer arguments are recorded as their digest.
const LONGEST_ARGUMENTS: usize = 64 << 10;

/// Where the log is, and how much of a call it contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file.
    pub file: PathBuf,
    /// Whether arguments are written, not only their digest.
    pub content: bool,
}

/// Who makes a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// The run.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub run: String,
    /// The agent; `chat` for the terminal.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub agent: String,
    /// The name of the client's key, where keys have names.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<String>,
    /// The epoch in which its process works on the run: a later one is that of another process.
    #[serde(skip)]
    pub epoch: u64,
    /// Whether its arguments may contain private knowledge, which no log gets.
    #[serde(skip)]
    pub is_private: bool,
}

/// The step of a call that a line records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The call was permitted, and begins.
    Begun,
    /// It ended.
    Ended,
    /// It was not permitted.
    Refused,
}

/// One line, without the fields that the log itself adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The step of the call.
    pub step: Step,
    /// Who made the call.
    #[serde(flatten)]
    pub caller: Caller,
    /// The call's id, the same in all its lines.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// Its arguments, where content is logged.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arguments: Option<Map<String, Value>>,
    /// The SHA-256 of the arguments as JSON.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arguments_sha256: Option<String>,
    /// The rule that decided, in words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<String>,
    /// The source of the consent: `person` at the terminal, the name of an operator's key, or the package's
    /// tier.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub approved_by: Option<String>,
    /// How it ended: `ok`, `failed`, `denied`, `transient`, `unreachable`, `protocol_error`, `timed_out`,
    /// `cancelled`, or `unknown` if respool ended before it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<String>,
    /// How long it took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub took_ms: Option<u64>,
}

/// A line of the file. Lines of earlier versions also have the hash of the line before, which is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// When, in UTC.
    pub at: String,
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
}

impl AuditLine {
    /// Returns when a line of the file was written, in milliseconds since 1970; `None` for one that cannot be
    /// read.
    pub fn time_of(line: &str) -> Option<u64> {
        let line: Self = serde_json::from_str(line).ok()?;
        let at = humantime::parse_rfc3339(&line.at).ok()?;
        at.duration_since(UNIX_EPOCH).ok().map(clock::to_millis)
    }
}

impl AuditEntry {
    /// Returns the entry of a call, without its arguments.
    pub fn new(step: Step, caller: &Caller, call: &str, tool: &str) -> Self {
        Self {
            step,
            caller: caller.clone(),
            call: call.to_owned(),
            tool: tool.to_owned(),
            arguments: None,
            arguments_sha256: None,
            rule: None,
            approved_by: None,
            outcome: None,
            took_ms: None,
        }
    }

    /// Adds the arguments, or only their digest.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &Map<String, Value>, content: bool) -> Self {
        let text = serde_json::to_string(arguments).unwrap_or_default();
        self.arguments_sha256 = Some(hex(&sha256(text.as_bytes())));
        self.arguments = (content && text.len() <= LONGEST_ARGUMENTS).then(|| arguments.clone());
        self
    }
}

/// Appends a line.
///
/// # Errors
/// When the file cannot be written.
pub fn append_entry(config: &AuditConfig, entry: AuditEntry) -> io::Result<()> {
    if let Some(directory) = config.file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&config.file)?;
    file.lock()?;
    // The clock of the database, where processes share one.
    let now = UNIX_EPOCH + Duration::from_millis(clock::now());
    let line = AuditLine { at: humantime::format_rfc3339_millis(now).to_string(), entry };
    let start = if is_cut(&mut file)? { "\n" } else { "" };
    let line = format!("{start}{}\n", serde_json::to_string(&line).map_err(io::Error::other)?);
    // One write: a reader sees the whole line or nothing of it.
    file.write_all(line.as_bytes())
}

/// Returns true if the last line is incomplete, because its writer was killed or the disk was full.
fn is_cut(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Reads the lines of a log; unreadable ones are skipped.
///
/// # Errors
/// When the file cannot be read.
pub fn read_log(file: &Path) -> io::Result<Vec<AuditLine>> {
    let text = fs::read_to_string(file)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(call: &str) -> AuditEntry {
        let arguments = json!({"command": "make secret"}).as_object().cloned().unwrap();
        let caller = Caller {
            run: "run-1".into(),
            agent: "coder".into(),
            key: Some("team-a".into()),
            is_private: false,
            epoch: 1,
        };
        AuditEntry::new(Step::Begun, &caller, call, "exec").with_arguments(&arguments, false)
    }

    fn log() -> (tempfile::TempDir, AuditConfig) {
        let folder = tempfile::tempdir().unwrap();
        let config = AuditConfig { file: folder.path().join("state/audit.jsonl"), content: false };
        for call in ["a", "b", "c"] {
            append_entry(&config, entry(call)).unwrap();
        }
        (folder, config)
    }

    #[test]
    fn the_log_is_readable_by_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_folder, config) = log();
        assert_eq!(fs::metadata(&config.file).unwrap().permissions().mode() & 0o777, 0o600);
        let calls: Vec<String> =
            read_log(&config.file).unwrap().into_iter().map(|line| line.entry.call).collect();
        assert_eq!(calls, ["a", "b", "c"]);
    }

    #[test]
    fn without_content_there_are_digests_alone() {
        let (_folder, config) = log();
        let text = fs::read_to_string(&config.file).unwrap();
        assert!(!text.contains("make secret"));
        let line = &read_log(&config.file).unwrap()[0];
        let expected = hex(&sha256(br#"{"command":"make secret"}"#));
        assert_eq!(line.entry.arguments_sha256.as_deref(), Some(expected.as_str()));
        assert_eq!(line.entry.caller.key.as_deref(), Some("team-a"));
        let arguments = json!({"command": "make"}).as_object().cloned().unwrap();
        let with = entry("d").with_arguments(&arguments, true);
        assert_eq!(with.arguments, Some(arguments));
    }

    #[test]
    fn a_cut_line_does_not_swallow_the_next() {
        let (_folder, config) = log();
        let text = fs::read_to_string(&config.file).unwrap();
        fs::write(&config.file, &text[..text.len() - 10]).unwrap();
        append_entry(&config, entry("d")).unwrap();
        let text = fs::read_to_string(&config.file).unwrap();
        assert_eq!(text.lines().count(), 4);
        let calls: Vec<String> =
            read_log(&config.file).unwrap().into_iter().map(|line| line.entry.call).collect();
        assert_eq!(calls, ["a", "b", "d"]);
    }

    #[test]
    fn many_writers_lose_no_line() {
        let (_folder, config) = log();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| append_entry(&config, entry("x")).unwrap()));
            }
        });
        assert_eq!(read_log(&config.file).unwrap().len(), 163);
    }

    #[test]
    fn lines_of_earlier_versions_are_read() {
        let text = r#"{"at":"2026-11-21T23:00:00.000Z","step":"ended","run":"r","agent":"a","call":"c","tool":"exec","outcome":"ok","took_ms":5,"previous":"0000000000000000000000000000000000000000000000000000000000000000"}"#;
        let line: AuditLine = serde_json::from_str(text).unwrap();
        assert_eq!((line.entry.step, line.entry.took_ms), (Step::Ended, Some(5)));
    }
}
