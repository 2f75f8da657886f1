//! A long text in the person's own pager: `PAGER`, or else `less`.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Shows a text in the pager and waits until the person leaves it. Blocks.
///
/// # Errors
/// When no pager can be started, or it ends with an error at once.
pub(super) fn show_paged(text: &str) -> std::io::Result<()> {
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
    let mut command = Command::new("sh");
    command.arg("-c").arg(pager.as_deref().unwrap_or("less")).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Colours, and the text stays on the screen.
        command.env("LESS", "RX");
    }
    let mut running = command.spawn()?;
    if let Some(mut input) = running.stdin.take() {
        // A person who leaves early does not read the rest.
        let _ = input.write_all(text.as_bytes());
    }
    match running.wait()?.code() {
        // The shell did not find the program.
        Some(126 | 127) => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
        _ => Ok(()),
    }
}
