//! The person's terminal while a turn runs: typed text is not echoed into the output, and single keys can be
//! read. It reads `/dev/tty`, so standard input may be redirected.

use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, raise};
use nix::sys::termios::{
    FlushArg, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcflush, tcgetattr, tcsetattr,
};

/// The settings of the terminal at the start, which are restored however the process ends.
#[derive(Debug)]
pub(super) struct SavedTerminal {
    tty: File,
    settings: nix::libc::termios,
}

impl SavedTerminal {
    /// Reads the settings of the terminal; `None` without one.
    pub(super) fn read() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let settings = tcgetattr(&tty).ok()?.into();
        Some(Self { tty, settings })
    }

    pub(super) fn restore(&self) {
        // A closed terminal needs nothing.
        let _ = tcsetattr(&self.tty, SetArg::TCSANOW, &Termios::from(self.settings));
    }
}

/// A terminal that does not echo. Dropping it restores the settings; keys typed in the meantime are kept.
#[derive(Debug)]
pub(super) struct Quiet(SavedTerminal);

/// Ctrl-C as a key.
pub(super) const CTRL_C: u8 = 3;
/// Ctrl-D as a key.
pub(super) const CTRL_D: u8 = 4;
const CTRL_Z: u8 = 26;
const ESCAPE: u8 = 27;

impl Quiet {
    /// Begins the mode without echo; `None` without a terminal.
    pub(super) fn begin() -> Option<Self> {
        let quiet = Self(SavedTerminal::read()?);
        quiet.set_mode(true).then_some(quiet)
    }

    /// Sets the mode again after the process was suspended: the shell has set its own.
    pub(super) fn set_again(&self) {
        self.set_mode(true);
    }

    /// Gives the terminal to the shell until the process continues.
    fn suspend(&self) {
        self.0.restore();
        // Sent to this thread: it stops before the next statement.
        let _ = raise(Signal::SIGTSTP);
        self.set_mode(false);
    }

    /// Sets the mode. `signals`: Ctrl-C interrupts instead of being a key. A read waits for at most a tenth
    /// of a second.
    fn set_mode(&self, signals: bool) -> bool {
        let mut quiet = Termios::from(self.0.settings);
        quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON);
        quiet.local_flags.set(LocalFlags::ISIG, signals);
        quiet.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        quiet.control_chars[SpecialCharacterIndices::VTIME as usize] = 1;
        tcsetattr(&self.0.tty, SetArg::TCSANOW, &quiet).is_ok()
    }

    /// Waits for a key that is typed from now on: keys typed before the question do not answer it. Stops
    /// when `gone`. Blocks.
    pub(super) fn wait_for_key(&self, gone: &AtomicBool) -> Option<u8> {
        self.set_mode(false);
        let _ = tcflush(&self.0.tty, FlushArg::TCIFLUSH);
        let mut byte = [0];
        let key = loop {
            if gone.load(Ordering::Relaxed) {
                break None;
            }
            match (&self.0.tty).read(&mut byte) {
                // An arrow or another special key: its bytes are not letters.
                Ok(1..) if byte[0] == ESCAPE => while matches!((&self.0.tty).read(&mut byte), Ok(1..)) {},
                Ok(1..) if byte[0] == CTRL_Z => self.suspend(),
                Ok(1..) => break Some(byte[0]),
                Ok(0) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break None,
            }
        };
        self.set_mode(true);
        key
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.restore();
    }
}
