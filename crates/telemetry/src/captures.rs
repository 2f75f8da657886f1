//! Kept exchanges: one JSON file for each, in `captures` of the state directory, which only their owner can
//! read. A thread writes them, replaces what looks like a secret, and removes the oldest ones when they are
//! older or larger than `[capture]` permits.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::capture::Exchange;
use super::config::CaptureConfig;
use super::redaction::redact_secrets;
use wire::pattern::matches_stars;

/// How many exchanges wait to be written; more are not kept.
const WAITING: usize = 64;
/// How often files that have become too old are looked for.
const EVERY: Duration = Duration::from_mins(1);
/// The longest part of a request's id in the name of a file.
const LONGEST_ID: usize = 64;

/// The kept exchanges of a state directory.
#[derive(Debug)]
pub struct Captures {
    dir: PathBuf,
    config: RwLock<CaptureConfig>,
    /// Some key is named; read with every request.
    is_on: AtomicBool,
    /// The way to the thread that writes, once there is one.
    writer: Mutex<Option<SyncSender<Exchange>>>,
}

impl Captures {
    /// Returns the exchanges in this state directory, and keeps new ones of the keys that are named.
    pub fn new(state_dir: &Path, config: CaptureConfig) -> Arc<Self> {
        let is_on = AtomicBool::new(!config.keys.is_empty());
        let dir = state_dir.join("captures");
        Arc::new(Self { dir, config: RwLock::new(config), is_on, writer: Mutex::default() })
    }

    /// Removes what is older or larger than the settings permit.
    pub fn remove_old(&self) {
        Folder::open(&self.dir).remove_beyond(&self.config());
    }

    /// Returns the directory of the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps exchanges by these settings from now on.
    pub fn change_config(&self, config: CaptureConfig) {
        self.is_on.store(!config.keys.is_empty(), Ordering::Relaxed);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn config(&self) -> CaptureConfig {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the requests of this key are kept; `None`: requests without a key.
    pub(super) fn wants(&self, key: Option<&str>) -> bool {
        self.is_on.load(Ordering::Relaxed)
            && self.config().keys.iter().any(|pattern| matches_stars(pattern, key.unwrap_or_default()))
    }

    /// Returns the room for one exchange, in bytes.
    pub(super) fn max_exchange(&self) -> usize {
        self.config().max_exchange.to_usize()
    }

    /// Gives an exchange to the thread that writes them.
    pub(super) fn keep(self: &Arc<Self>, exchange: Exchange) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = writer.get_or_insert_with(|| {
            let (sender, exchanges) = sync_channel(WAITING);
            let captures = Arc::downgrade(self);
            let write = move || write_exchanges(&exchanges, || captures.upgrade());
            if let Err(error) = std::thread::Builder::new().name("captures".into()).spawn(write) {
                tracing::error!(target: "respool::capture", %error, "exchanges cannot be kept");
            }
            sender
        });
        if sender.try_send(exchange).is_err() {
            tracing::warn!(target: "respool::capture", "an exchange was not kept: the disk is too slow for them");
        }
    }

    /// Returns the kept exchange of the request with this id. If several requests have it, returns the
    /// exchange closest to `at`, or the newest.
    pub fn find(&self, id: &str, at: Option<u64>) -> Option<Exchange> {
        let name = safe_name(id);
        let mut files = list_files(&self.dir);
        files.retain(|file| file.id == name);
        files.sort_by_key(|file| at.map_or(u64::MAX - file.at, |at| at.abs_diff(file.at)));
        files.iter().filter_map(|file| read_exchange(&self.dir.join(&file.name)).ok()).find(|it| it.id == id)
    }

    /// Returns the ids of kept exchanges that begin with this text, each once.
    pub fn ids_beginning(&self, text: &str) -> Vec<String> {
        let name = safe_name(text);
        let files = list_files(&self.dir);
        let found = files.iter().filter(|file| file.id.starts_with(&name));
        let read = |file: &CaptureFile| read_exchange(&self.dir.join(&file.name)).ok();
        let ids = found.filter_map(read).map(|exchange| exchange.id).filter(|id| id.starts_with(text));
        ids.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the newest exchanges, at most this many.
    pub fn newest(&self, limit: usize) -> Vec<Exchange> {
        let files = list_files(&self.dir);
        let read = |file: &CaptureFile| read_exchange(&self.dir.join(&file.name)).ok();
        files.iter().rev().filter_map(read).take(limit).collect()
    }

    /// Returns the exchange before this one in the same conversation.
    pub fn previous_of(&self, exchange: &Exchange) -> Option<Exchange> {
        if exchange.conversation.is_empty() {
            return None;
        }
        let mut files = list_files(&self.dir);
        files.retain(|file| file.at < exchange.at && file.conversation == exchange.conversation);
        let last = files.iter().max_by_key(|file| file.at)?;
        read_exchange(&self.dir.join(&last.name)).ok()
    }
}

/// Reads a kept exchange.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn read_exchange(path: &Path) -> io::Result<Exchange> {
    let exchange: Exchange = serde_json::from_slice(&fs::read(path)?)?;
    if exchange.form == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it holds no kept exchange"));
    }
    Ok(exchange)
}

/// Writes exchanges until the captures are gone.
fn write_exchanges(exchanges: &Receiver<Exchange>, captures: impl Fn() -> Option<Arc<Captures>>) {
    let mut folder = None;
    let mut is_failing = false;
    loop {
        let exchange = exchanges.recv_timeout(EVERY);
        if exchange == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let Some(captures) = captures() else { return };
        let folder = folder.get_or_insert_with(|| Folder::open(&captures.dir));
        if let Ok(exchange) = exchange {
            let written = folder.write(exchange);
            if let Err(error) = &written
                && !is_failing
            {
                let dir = captures.dir.display();
                tracing::error!(target: "respool::capture", %error, %dir, "exchanges cannot be written");
            }
            is_failing = written.is_err();
        }
        folder.remove_beyond(&captures.config());
    }
}

/// A file with a kept exchange, by its name: `TIME-CONVERSATION-ID.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CaptureFile {
    name: String,
    at: u64,
    conversation: String,
    id: String,
    size: u64,
}

impl CaptureFile {
    fn parse(name: String, size: u64) -> Option<Self> {
        let mut parts = name.strip_suffix(".json")?.splitn(3, '-');
        let (at, conversation, id) = (parts.next()?, parts.next()?, parts.next()?);
        let (at, conversation, id) = (at.parse().ok()?, conversation.to_owned(), id.to_owned());
        Some(Self { name, at, conversation, id, size })
    }
}

/// Returns the part of a file's name that stands for a request's id.
fn safe_name(id: &str) -> String {
    let is_safe = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    id.chars().take(LONGEST_ID).map(|char| if is_safe(char) { char } else { '_' }).collect()
}

/// Returns the files in a directory, the oldest first.
fn list_files(dir: &Path) -> Vec<CaptureFile> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| {
        CaptureFile::parse(entry.file_name().into_string().ok()?, entry.metadata().ok()?.len())
    };
    let mut files: Vec<_> = entries.filter_map(file).collect();
    files.sort_by(|one, other| one.name.cmp(&other.name));
    files
}

/// The files as the thread that writes knows them, the oldest first.
struct Folder {
    dir: PathBuf,
    files: VecDeque<CaptureFile>,
    size: u64,
}

impl Folder {
    fn open(dir: &Path) -> Self {
        let files: VecDeque<_> = list_files(dir).into();
        Self { dir: dir.to_owned(), size: files.iter().map(|file| file.size).sum(), files }
    }

    fn write(&mut self, exchange: Exchange) -> io::Result<()> {
        let Exchange { at, conversation, id, .. } = &exchange;
        let conversation = if conversation.is_empty() { "0" } else { conversation };
        let name = format!("{at:013}-{conversation}-{}.json", safe_name(id));
        let text = serde_json::to_vec_pretty(&redact_exchange(exchange))?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        // Under another name until it is whole.
        let unfinished = self.dir.join(format!("{name}.part"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&unfinished)?.write_all(&text)?;
        fs::rename(unfinished, self.dir.join(&name))?;
        let size = text.len() as u64;
        self.size += size;
        self.files.extend(CaptureFile::parse(name, size));
        Ok(())
    }

    /// Removes the oldest files until the rest is neither too old nor too large.
    fn remove_beyond(&mut self, config: &CaptureConfig) {
        let oldest = clock::time_ago(config.keep);
        while let Some(first) = self.files.front()
            && (first.at < oldest || self.size > config.max_size.0)
        {
            if let Err(error) = fs::remove_file(self.dir.join(&first.name))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(target: "respool::capture", %error, file = first.name, "a kept exchange cannot be removed");
            }
            self.size -= first.size;
            self.files.pop_front();
        }
    }
}

/// Returns the exchange without what looks like a secret in its texts.
fn redact_exchange(mut exchange: Exchange) -> Exchange {
    let redact = |text: &mut String| *text = redact_secrets(text).into_owned();
    redact(&mut exchange.client_request);
    redact(&mut exchange.client_reply.body);
    for attempt in &mut exchange.attempts {
        redact(&mut attempt.sent);
        redact(&mut attempt.reply.body);
    }
    exchange
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::capture::Collector;
    use crate::request_start::RequestStart;
    use testing::waiting::look_blocking;
    use wire::units::Size;

    fn config() -> CaptureConfig {
        CaptureConfig { keys: vec!["*".into()], ..CaptureConfig::default() }
    }

    fn exchange(id: &str, at: u64, conversation: &str) -> Exchange {
        Exchange {
            form: 1,
            id: id.to_owned(),
            at,
            conversation: conversation.to_owned(),
            client_request: "x".repeat(1_000),
            ..Exchange::default()
        }
    }

    #[test]
    fn only_named_keys_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let check = |keys: &[&str], key: Option<&str>, expected: bool| {
            let keys = keys.iter().map(|&key| key.to_owned()).collect();
            let captures = Captures::new(dir.path(), CaptureConfig { keys, ..CaptureConfig::default() });
            assert_eq!(captures.wants(key), expected, "{key:?}");
        };
        check(&[], Some("alice"), false);
        check(&[], None, false);
        check(&["alice", "ci-*"], Some("alice"), true);
        check(&["alice", "ci-*"], Some("ci-7"), true);
        check(&["alice", "ci-*"], Some("bob"), false);
        check(&["alice"], None, false);
        check(&["*"], None, true);
    }

    #[test]
    fn an_exchange_is_found_by_id_time_and_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let captures = Captures::new(dir.path(), config());
        let mut folder = Folder::open(&captures.dir);
        let kept = [("a/b", 1_000, "c1"), ("a/b", 9_000, "c2"), ("a_b", 2_000, "c1"), ("d", 3_000, "")];
        for (id, at, conversation) in kept {
            folder.write(exchange(id, at, conversation)).unwrap();
        }
        let found = |id, at| captures.find(id, at).map(|exchange| exchange.at);
        assert_eq!(captures.ids_beginning("a"), ["a/b", "a_b"]);
        assert_eq!(
            (captures.ids_beginning("a/"), captures.ids_beginning("x")),
            (vec!["a/b".to_owned()], vec![])
        );
        assert_eq!(
            [found("a/b", None), found("a/b", Some(1_200)), found("x", None)],
            [Some(9_000), Some(1_000), None]
        );
        assert_eq!(found("a_b", None), Some(2_000), "two ids that give the same file name stay apart");
        let before = |id| captures.previous_of(&captures.find(id, None)?).map(|exchange| exchange.at);
        assert_eq!([before("a_b"), before("a/b"), before("d")], [Some(1_000), None, None]);
    }

    #[test]
    fn the_oldest_go_first_and_files_are_the_owners() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("captures");
        let mut folder = Folder::open(&dir);
        let now = clock::now();
        for age in [90_000_000, 3_000, 2_000, 1_000] {
            folder.write(exchange("r", now - age, "")).unwrap();
        }
        let size = folder.files[0].size;
        folder.remove_beyond(&CaptureConfig { keep: Duration::from_hours(24), ..config() });
        assert_eq!(folder.files.len(), 3, "one is more than a day old");
        folder.remove_beyond(&CaptureConfig { max_size: Size(2 * size), ..config() });
        assert_eq!((folder.files.len(), list_files(&dir).len()), (2, 2));
        assert_eq!(folder.files[0].at, now - 2_000);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(&folder.files[0].name))), (0o700, 0o600));
    }

    #[test]
    fn an_exchange_is_bounded_and_has_no_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let captures = Captures::new(dir.path(), CaptureConfig { max_exchange: Size(60), ..config() });
        let start = Arc::new(RequestStart::new("r1".into(), "POST /v1/chat/completions", "chat"));
        let listing =
            Arc::new(RequestStart::new("r0".into(), "POST /v1/messages/count_tokens", "count_tokens"));
        Collector::new(&listing, Some(Arc::clone(&captures)), false).take_client_request(b"{}");
        let collector = Collector::new(&start, Some(Arc::clone(&captures)), false);
        collector.take_client_request(b"my key is sk-abcdefghijklmnopqrstuvwx");
        collector.begin_attempt("box", || b"sent".to_vec());
        collector.take_reply_head(200, "text/event-stream");
        collector.take_reply_piece(b"data: 1\n\n");
        collector.take_reply_piece(&[b'x'; 100]);
        drop(collector);
        let kept = look_blocking(Duration::from_mins(1), || captures.find("r1", None)).unwrap();
        assert_eq!(captures.find("r0", None), None, "it is no turn");
        assert_eq!((&*kept.client_request, kept.is_cut), ("my key is [redacted]", true));
        let attempt = &kept.attempts[0];
        assert_eq!((&*attempt.upstream, &*attempt.sent, attempt.reply.status), ("box", "sent", 200));
        assert_eq!(attempt.reply.body, format!("data: 1\n\n{}", "x".repeat(10)));
    }
}
