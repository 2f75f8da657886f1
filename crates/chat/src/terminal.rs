//! The person's terminal while a turn runs: typed text is not echoed into the output, and single keys can be
//! read. It reads `/dev/tty`, so standard input may be redirected.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw, tcgetattr, tcsetattr,
};
use tokio::sync::mpsc;

use super::typed::{END, TypedText, clean_typed, take_line};

const TTY: &str = "/dev/tty";

/// The settings of the terminal at the start, which are restored however the process ends.
#[derive(Debug)]
pub(super) struct SavedTerminal {
    tty: File,
    settings: nix::libc::termios,
}

impl SavedTerminal {
    /// Reads the settings of the terminal; `None` without one.
    pub(super) fn read() -> Option<Self> {
        let tty = File::options().read(true).write(true).open(TTY).ok()?;
        let settings = tcgetattr(&tty).ok()?.into();
        Some(Self { tty, settings })
    }

    pub(super) fn restore(&self) {
        // A closed terminal needs nothing.
        let _ = tcsetattr(&self.tty, SetArg::TCSANOW, &Termios::from(self.settings));
    }
}

/// The keys of a terminal. Reading them waits no longer than it should, whatever the terminal's mode: after
/// the process was suspended, the shell's mode holds, in which a key without Enter is not there yet.
#[derive(Debug)]
struct Keys(File);

impl Keys {
    fn open(path: &str) -> Option<Self> {
        File::options().read(true).custom_flags(O_NONBLOCK | O_NOCTTY).open(path).ok().map(Self)
    }

    /// Reads what was typed, and waits at most this long for it. Returns 0 if there is nothing.
    fn read(&self, bytes: &mut [u8], limit: Duration) -> io::Result<usize> {
        let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO));
        match (&self.0).read(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            read => read,
        }
    }
}

/// Has the terminal mark pasted text, or no longer.
const MARK_PASTES: &[u8] = b"\x1b[?2004h";
const LEAVE_PASTES: &[u8] = b"\x1b[?2004l";

/// A terminal that does not echo. Dropping it restores the settings.
#[derive(Debug)]
pub(super) struct Quiet {
    terminal: SavedTerminal,
    keys: Keys,
    typed: Mutex<TypedKeys>,
}

/// The keys typed while no question waited for one.
#[derive(Debug, Default)]
struct TypedKeys {
    bytes: Vec<u8>,
    /// Since when the last of them is Esc.
    escape: Option<Instant>,
}

/// Ctrl-C as a key.
pub(super) const CTRL_C: u8 = 3;
/// Ctrl-D as a key.
pub(super) const CTRL_D: u8 = 4;
/// Ctrl-Z as a key: the process was suspended and continues.
pub(super) const CTRL_Z: u8 = 26;
const ESCAPE: u8 = 27;
/// The pause after which Esc is a key, and not the beginning of another key's sequence.
const ESCAPE_PAUSE: Duration = Duration::from_millis(80);
/// The pause after which a paste is complete.
const PASTE_PAUSE: Duration = Duration::from_millis(100);
/// How long a read waits for a key where one is waited for.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// The reads without a key after which a single letter is an answer.
const PAUSES: usize = 3;

impl Quiet {
    /// Begins the mode without echo; `None` without a terminal.
    pub(super) fn begin() -> Option<Self> {
        let quiet =
            Self { terminal: SavedTerminal::read()?, keys: Keys::open(TTY)?, typed: Mutex::default() };
        quiet.write_code(MARK_PASTES);
        quiet.set_mode(true).then_some(quiet)
    }

    fn write_code(&self, code: &[u8]) {
        // A closed terminal needs nothing.
        let _ = (&self.terminal.tty).write_all(code);
    }

    /// Sets the mode again after the process was suspended: the shell has set its own.
    pub(super) fn set_again(&self) {
        self.write_code(MARK_PASTES);
        self.set_mode(true);
    }

    /// Gives the terminal to the shell until the process continues.
    fn suspend(&self) {
        self.terminal.restore();
        // Sent to this thread: it stops before the next statement.
        let _ = raise(Signal::SIGTSTP);
        self.set_mode(false);
    }

    /// Sets the mode. `signals`: Ctrl-C interrupts instead of being a key.
    fn set_mode(&self, signals: bool) -> bool {
        let mut quiet = Termios::from(self.terminal.settings);
        quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON);
        quiet.local_flags.set(LocalFlags::ISIG, signals);
        // Ctrl-C discards nothing that was typed.
        quiet.local_flags.insert(LocalFlags::NOFLSH);
        quiet.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        quiet.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        tcsetattr(&self.terminal.tty, SetArg::TCSANOW, &quiet).is_ok()
    }

    /// Keeps what was typed up to now, and returns all of it. The terminal has room for 4 KiB; once that is
    /// full, Ctrl-C would not arrive either. Does not block.
    pub(super) fn keep_typed(&self) -> TypedText {
        let mut typed = self.typed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = self.keys.read(&mut chunk, Duration::ZERO) {
            typed.bytes.extend_from_slice(&chunk[..count]);
        }
        clean_typed(&typed.bytes)
    }

    /// Takes a line that Enter ended out of what was typed, if it is `wanted`. `is_fresh`: nothing was begun
    /// before.
    pub(super) fn take_line(&self, is_fresh: bool, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let mut typed = self.typed.lock().unwrap_or_else(PoisonError::into_inner);
        take_line(&mut typed.bytes, is_fresh, wanted)
    }

    /// Returns true once after Esc was pressed. What was typed before it stays.
    pub(super) fn take_escape(&self) -> bool {
        self.typed.lock().unwrap_or_else(PoisonError::into_inner).take_escape(Instant::now())
    }

    /// Waits for a key, or a text that is typed at once. What was typed before is no answer and waits for the
    /// next prompt. Stops when `gone`. Blocks.
    pub(super) fn wait_for_key(&self, gone: &AtomicBool) -> Option<Typed> {
        self.set_mode(false);
        let mut bytes = [0; 256];
        let typed = loop {
            if gone.load(Ordering::Relaxed) {
                break None;
            }
            match self.keys.read(&mut bytes, KEY_WAIT) {
                // An arrow, another special key, or a marked paste: its bytes are not letters.
                Ok(count @ 1..) if bytes[0] == ESCAPE => {
                    let mut is_alone = count == 1;
                    while matches!(self.keys.read(&mut bytes, KEY_WAIT), Ok(1..)) {
                        is_alone = false;
                    }
                    if is_alone {
                        break Some(Typed::from_key(CTRL_C));
                    }
                }
                Ok(1) if bytes[0] == CTRL_Z => {
                    self.suspend();
                    break Some(Typed::from_key(CTRL_Z));
                }
                Ok(count @ 1..) => break Some(Typed::from_bytes(&self.read_rest(&bytes[..count]))),
                Ok(0) => {}
                Err(_) => break None,
            }
        };
        self.set_mode(true);
        typed
    }

    /// Returns these bytes with those that follow without a pause: a letter may begin a sentence.
    fn read_rest(&self, first: &[u8]) -> Vec<u8> {
        let mut all = first.to_vec();
        let mut chunk = [0; 256];
        let mut pauses = 0;
        while all.last().is_some_and(u8::is_ascii_alphanumeric) && pauses < PAUSES {
            match self.keys.read(&mut chunk, KEY_WAIT) {
                Ok(count @ 1..) => {
                    all.extend_from_slice(&chunk[..count]);
                    pauses = 0;
                }
                _ => pauses += 1,
            }
        }
        all
    }

    /// Takes what was typed or pasted while no question waited for a key. Blocks while a paste goes on.
    pub(super) fn take_typed(&self) -> TypedText {
        let mut typed = self.keep_typed();
        while !typed.text.is_empty() {
            std::thread::sleep(PASTE_PAUSE);
            let more = self.keep_typed();
            if more == typed {
                break;
            }
            typed = more;
        }
        self.typed.lock().unwrap_or_else(PoisonError::into_inner).bytes.clear();
        typed
    }
}

impl TypedKeys {
    fn take_escape(&mut self, now: Instant) -> bool {
        if self.bytes.last() != Some(&ESCAPE) {
            self.escape = None;
            return false;
        }
        if now.duration_since(*self.escape.get_or_insert(now)) < ESCAPE_PAUSE {
            return false;
        }
        self.escape = None;
        while self.bytes.last() == Some(&ESCAPE) {
            self.bytes.pop();
        }
        true
    }
}

/// The terminal while it belongs to a command of the person's: each key goes there. Dropping it restores the
/// settings.
pub(super) struct PassedKeys {
    terminal: SavedTerminal,
    is_over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl PassedKeys {
    /// Passes all keys to this channel; `None` without a terminal.
    pub(super) fn begin(keys: mpsc::UnboundedSender<Vec<u8>>) -> Option<Self> {
        let terminal = SavedTerminal::read()?;
        let mut raw = Termios::from(terminal.settings);
        cfmakeraw(&mut raw);
        let tty = Keys::open(TTY)?;
        tcsetattr(&terminal.tty, SetArg::TCSANOW, &raw).ok()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while !over.load(Ordering::Relaxed) {
                match tty.read(&mut chunk, KEY_WAIT) {
                    Ok(0) => {}
                    Ok(count) => drop(keys.send(chunk[..count].to_vec())),
                    Err(_) => return,
                }
            }
        });
        Some(Self { terminal, is_over, reader: Some(reader) })
    }
}

impl Drop for PassedKeys {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Its last read ends within a tenth of a second.
        let _ = self.reader.take().map(JoinHandle::join);
        self.terminal.restore();
    }
}

/// Returns the text of keys that a command did not read.
pub(super) fn unread_text(keys: &[u8]) -> TypedText {
    let typed = clean_typed(keys);
    if typed.text == END { TypedText::default() } else { typed }
}

/// The input of a person at a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// The key; `None` for a text of several.
    pub(super) key: Option<u8>,
    /// The text behind a `t`, which begins what the model should do instead.
    pub(super) instead: String,
    /// Whether Enter ended it.
    pub(super) is_line: bool,
}

impl Typed {
    fn from_bytes(bytes: &[u8]) -> Self {
        if let Some(stop) = bytes.iter().find(|byte| [CTRL_C, CTRL_D].contains(byte)) {
            return Self::from_key(*stop);
        }
        let is_line = matches!(bytes, [.., b'\n' | b'\r']);
        let (key, instead) = match (bytes, bytes.trim_ascii_end()) {
            // The word, or a key that was pressed twice.
            (_, b"yes" | b"yy") => (Some(b'y'), &[][..]),
            (_, b"no" | b"nn") => (Some(b'n'), &[][..]),
            ([key] | [key, b'\n' | b'\r'], _) => (Some(*key), &[][..]),
            ([key @ (b't' | b'T'), instead @ ..], _) => (Some(*key), instead),
            _ => (None, &[][..]),
        };
        let instead = clean_typed(instead).text;
        Self { key, instead, is_line }
    }

    fn from_key(key: u8) -> Self {
        Self { key: Some(key), instead: String::new(), is_line: false }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.write_code(LEAVE_PASTES);
        self.terminal.restore();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::sync::mpsc;

    use super::*;

    /// Regression: after Ctrl-Z and `fg`, a read in the shell's mode blocked the thread that sets the chat's.
    #[tokio::test]
    async fn no_mode_of_the_terminal_blocks() {
        use tokio::io::AsyncWriteExt as _;
        let (mut person, terminal) = pty_process::open().unwrap();
        let keys = Keys::open(&format!("/proc/self/fd/{}", terminal.as_fd().as_raw_fd())).unwrap();
        let read = |keys: Keys, limit: u64| {
            let (sender, done) = mpsc::channel();
            std::thread::spawn(move || {
                let count = keys.read(&mut [0; 64], Duration::from_secs(limit)).unwrap();
                drop(sender.send((count, keys)));
            });
            done.recv_timeout(Duration::from_secs(20)).expect("it blocks")
        };
        person.write_all(b"no line").await.unwrap();
        let (count, keys) = read(keys, 0);
        assert_eq!(count, 0, "the line is not complete");
        person.write_all(b"\n").await.unwrap();
        assert_eq!(read(keys, 10).0, "no line\n".len());
    }

    #[test]
    fn only_a_single_key_is_one() {
        let check = |bytes: &[u8], key: Option<u8>, is_line: bool| {
            let typed = Typed::from_bytes(bytes);
            assert_eq!((typed.key, typed.is_line), (key, is_line), "{bytes:?}");
        };
        check(b"yes\r", Some(b'y'), true);
        check(b"nn", Some(b'n'), false);
        check(b"yesterday", None, false);
        // Regression: a sentence that did not wait for its prompt was lost.
        assert_eq!(Typed::from_bytes(b"tuse ").instead, "use ");
        assert_eq!(Typed::from_bytes(b"t").instead, "");
        check(b"a", Some(b'a'), false);
        check(b"y\r", Some(b'y'), true);
        check(b"\n", Some(b'\n'), true);
        check(b"please", None, false);
        check(b"also this\n", None, true);
        check(b"no\x03", Some(CTRL_C), false);
    }

    #[test]
    fn only_esc_itself_is_esc() {
        let (now, mut keys) = (Instant::now(), TypedKeys::default());
        let after = |keys: &mut TypedKeys, bytes: &[u8], millis: u64| {
            keys.bytes.extend_from_slice(bytes);
            keys.take_escape(now + Duration::from_millis(millis))
        };
        assert!(!after(&mut keys, b"and", 0) && !after(&mut keys, b"\x1b[A\x1bOP\x1b[200~x\x1b[201~", 100));
        assert!(!after(&mut keys, b"\x1b", 200), "more may follow");
        assert!(!after(&mut keys, b"[B", 400), "an arrow that came in two parts");
        assert!(!after(&mut keys, b"\x1b", 500) && after(&mut keys, b"", 600));
        assert!(!after(&mut keys, b"", 900), "once");
        assert_eq!(clean_typed(&keys.bytes).text, "andx");
    }

    #[test]
    fn unread_keys_stay_for_the_prompt() {
        assert_eq!(unread_text(b"!ls\r"), TypedText::message("!ls\n".into()));
        assert_eq!(unread_text(b"\x04").text, "", "it was for the command");
    }
}
