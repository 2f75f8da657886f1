//! `!command`: a command that the person runs themselves, in their shell, with all their rights and outside
//! the sandbox. It has a terminal of its own, so that editors, pagers and questions work. What it writes is
//! shown as it comes, and the model learns its text with the next message.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
use pty_process::Size;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use tools::plain_text;
use tools::programs::{current_project, find_in_path};

/// The most bytes of an output that the model gets.
const LEARNED: usize = 16 << 10;
/// The most bytes that are kept of each end of an output, with all codes for the terminal.
const KEPT: usize = 256 << 10;
/// The pause after which an output is over, once the command has ended, and the longest wait for that: a
/// process in the background may go on writing.
const PAUSE: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(300);
/// Starts the person's shell so that what it leaves in the background outlives its terminal.
const START: &str = "trap '' HUP; exec \"$0\" -c \"$1\"";

/// Returns the command of a line that begins with `!`; it may be empty.
pub(super) fn own_command(line: &str) -> Option<&str> {
    line.trim().strip_prefix('!').map(str::trim)
}

/// Returns what to tell the person instead of running a command, which would have no effect.
pub(super) fn futile_command(command: &str) -> Option<&'static str> {
    let mut words = command.split_whitespace();
    match (words.next(), command.contains([';', '&', '|', '\n'])) {
        (None, _) => Some("write a command behind the `!`, such as !ls"),
        (Some("cd"), false) => Some("a cd ends with its command: write !cd DIRECTORY && COMMAND"),
        _ => None,
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) output: OwnOutput,
    /// The keys that it did not read.
    pub(super) unread: Vec<u8>,
}

/// The output of a command, with codes for the terminal.
#[derive(Debug, Default)]
pub(super) struct OwnOutput {
    /// Its beginning and its end.
    bytes: Vec<u8>,
    /// How many bytes are missing between them.
    missing: usize,
}

/// Runs a command in the person's shell, on a terminal that gets their `keys`, and shows its output as it
/// comes.
///
/// # Errors
/// When there is no terminal for it, or the shell cannot be started.
pub(super) async fn run_own_command(
    line: &str,
    directory: &Path,
    ending: &CancellationToken,
    keys: &mut mpsc::UnboundedReceiver<Vec<u8>>,
    mut show: impl FnMut(&[u8]),
) -> io::Result<Ended> {
    let (pty, pts) = pty_process::open().map_err(io::Error::other)?;
    pty.resize(terminal_size()).map_err(io::Error::other)?;
    // While it is open, keys that were not read can be taken back.
    let mut terminal = File::from(pts.as_fd().try_clone_to_owned()?);
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let project: Vec<_> = current_project().into_iter().collect();
    let command = pty_process::Command::new(find_in_path("sh", &project).map_err(io::Error::other)?);
    let command = command.args(["-c", START]);
    let command = command.arg(shell.unwrap_or_else(|| "sh".into())).arg(line).current_dir(directory);
    let mut running = command.kill_on_drop(true).spawn(pts).map_err(io::Error::other)?;
    let (mut reader, mut writer) = pty.into_split();
    let mut resized = signal(SignalKind::window_change())?;
    let (mut output, mut typed, mut chunk) = (OwnOutput::default(), Vec::new(), [0; 4096]);
    let status = loop {
        tokio::select! {
            () = ending.cancelled() => {
                running.kill().await?;
                break running.wait().await?;
            }
            Some(more) = keys.recv() => typed.extend(more),
            Ok(count) = writer.write(&typed), if !typed.is_empty() => drop(typed.drain(..count)),
            _ = resized.recv() => drop(writer.resize(terminal_size())),
            Ok(count @ 1..) = reader.read(&mut chunk) => {
                show(&chunk[..count]);
                output.push(&chunk[..count]);
            }
            status = running.wait() => break status?,
        }
    };
    let rest = async {
        while let Ok(Ok(count @ 1..)) = timeout(PAUSE, reader.read(&mut chunk)).await {
            show(&chunk[..count]);
            output.push(&chunk[..count]);
        }
    };
    let _ = timeout(REST, rest).await;
    let mut unread = take_unread(&mut terminal).unwrap_or_default();
    unread.append(&mut typed);
    Ok(Ended { code: status.code(), output, unread })
}

fn terminal_size() -> Size {
    let (columns, rows) = termimad::terminal_size();
    Size::new(rows, columns)
}

/// Takes the keys that no program has read from a terminal.
fn take_unread(terminal: &mut File) -> io::Result<Vec<u8>> {
    let mut settings = tcgetattr(&*terminal)?;
    settings.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
    settings.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
    settings.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    tcsetattr(&*terminal, SetArg::TCSANOW, &settings)?;
    let mut keys = vec![0; 4096];
    let count = terminal.read(&mut keys)?;
    keys.truncate(count);
    Ok(keys)
}

impl OwnOutput {
    fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
        if self.bytes.len() > 3 * KEPT {
            let end = self.bytes.len() - KEPT;
            self.bytes.drain(KEPT..end);
            self.missing += end - KEPT;
        }
    }

    /// Returns the text that is left of it on the screen.
    pub(super) fn text(&self) -> String {
        let text = without_screens(&String::from_utf8_lossy(&self.bytes));
        // A progress bar writes over its own line.
        let last =
            |line: &str| line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().to_owned();
        plain_text(&text.split('\n').map(last).collect::<Vec<_>>().join("\n"))
    }
}

/// Removes terminal codes and full-screen drawings: the alternate screen that editors switch to, and whatever
/// was on the screen before a program moved to its top left corner.
fn without_screens(text: &str) -> String {
    let (mut out, mut is_other, mut rest) = (String::new(), false, text);
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        if !is_other {
            out.push_str(before);
        }
        let Some(end) = after.find(|c: char| ('\u{40}'..='\u{7e}').contains(&c)) else { return out };
        match (after.as_bytes()[end], &after[..end]) {
            (b'h', "?1049" | "?1047" | "?47") => is_other = true,
            (b'l', "?1049" | "?1047" | "?47") => is_other = false,
            (b'H' | b'f', "" | "1" | "1;1") if !is_other => out.clear(),
            (b'H' | b'f', _) if !is_other => out.push('\n'),
            _ => {}
        }
        rest = &after[end + 1..];
    }
    if !is_other {
        out.push_str(rest);
    }
    out
}

/// Tells the model what the person ran.
pub(super) fn describe_own_command(line: &str, ended: &Ended) -> String {
    let end = match ended.code {
        Some(0) => String::new(),
        Some(code) => format!(" (exit code {code})"),
        None => " (ended by a signal)".to_owned(),
    };
    let output = ended.output.text();
    let head = output.floor_char_boundary(LEARNED / 2);
    let tail = output.ceil_char_boundary(output.len().saturating_sub(LEARNED / 2));
    let output = match tail.checked_sub(head) {
        Some(missing @ 1..) => {
            let missing = missing + ended.output.missing;
            format!("{}\n[… {missing} bytes left out here …]\n{}", &output[..head], &output[tail..])
        }
        _ => output,
    };
    let output = match output.trim_end() {
        "" if ended.output.bytes.is_empty() => "[no output]",
        "" => "[nothing is left of it on the screen]",
        output => output,
    };
    format!("The person ran `{line}` themselves{end}. Its output:\n{output}")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run_with_keys(line: &str, keys: &[u8]) -> Ended {
        let (ending, (sender, mut receiver)) = (CancellationToken::new(), mpsc::unbounded_channel());
        sender.send(keys.to_vec()).unwrap();
        let mut shown = Vec::new();
        let show = |piece: &[u8]| shown.extend_from_slice(piece);
        let ended = run_own_command(line, Path::new("/"), &ending, &mut receiver, show);
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("it waits").unwrap();
        assert_eq!(shown, ended.output.bytes);
        ended
    }

    #[tokio::test]
    async fn output_and_errors_come_in_order() {
        let ended = run_with_keys("echo one; echo two >&2; pwd; exit 3", b"").await;
        assert_eq!((ended.code, ended.output.text().as_str()), (Some(3), "one\ntwo\n/\n"));
        assert_eq!(run_with_keys("kill -KILL $$", b"").await.code, None);
    }

    /// Regression: an editor or pager had the keys, but not the screen.
    #[tokio::test]
    async fn it_has_a_terminal() {
        let line = "test -t 0 && test -t 1 && test -t 2 && read name </dev/tty && echo \"Hello $name\"";
        let ended = run_with_keys(line, b"Anna\r").await;
        assert_eq!((ended.code, ended.output.text().as_str()), (Some(0), "Anna\nHello Anna\n"));
        let unread = run_with_keys("stty -echo; sleep 0.2", b"for later").await.unread;
        assert_eq!(String::from_utf8_lossy(&unread), "for later");
    }

    #[tokio::test]
    async fn ctrl_c_ends_it() {
        let (ending, (sender, mut keys)) = (CancellationToken::new(), mpsc::unbounded_channel());
        // A key that comes before the command has its terminal ends nothing.
        let presses = tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_millis(50));
            while sender.send(b"\x03".to_vec()).is_ok() {
                every.tick().await;
            }
        });
        let ended = run_own_command("sleep 60", Path::new("/"), &ending, &mut keys, |_| {}).await.unwrap();
        presses.abort();
        assert_eq!(ended.code, None);
    }

    #[tokio::test]
    async fn a_process_in_the_background_goes_on() {
        use nix::sys::signal::{Signal, kill};
        let ended = run_with_keys("sleep 60 & echo $!", b"").await;
        let process = nix::unistd::Pid::from_raw(ended.output.text().trim().parse().unwrap());
        assert_eq!(kill(process, Signal::SIGTERM), Ok(()), "it ended with its terminal");
    }

    #[tokio::test]
    async fn the_end_of_the_chat_ends_it() {
        let (ending, (_sender, mut keys)) = (CancellationToken::new(), mpsc::unbounded_channel());
        ending.cancel();
        let ended = run_own_command("sleep 60", Path::new("/"), &ending, &mut keys, |_| {}).await.unwrap();
        assert_eq!(ended.code, None);
    }

    #[test]
    fn the_text_is_what_stays_on_the_screen() {
        let text = |written: &str| {
            let mut output = OwnOutput::default();
            output.push(written.as_bytes());
            output.text()
        };
        for (written, expected) in [
            ("\u{1b}[31mred\u{1b}[0m\r\n", "red\n"),
            ("10 %\r20 %\r\ndone", "20 %\ndone"),
            ("a\r\n\u{1b}[?1049h\u{1b}[Hediting\u{1b}[?1049l[main 1] b\r\n", "a\n[main 1] b\n"),
            ("\u{1b}[Hfirst\u{1b}[H\u{1b}[Jtop\u{1b}[3;1Hlast", "top\nlast"),
            ("open\u{1b}[?1049hediting", "open"),
            ("cut\u{1b}[", "cut"),
        ] {
            assert_eq!(text(written), expected, "{written:?}");
        }
    }

    #[test]
    fn the_model_learns_both_ends() {
        assert_eq!(own_command(" ! ls -l "), Some("ls -l"));
        assert_eq!((own_command(" ! "), own_command("ls !")), (Some(""), None));
        assert!(futile_command("").is_some() && futile_command("cd src").is_some());
        assert_eq!((futile_command("cd src && ls"), futile_command("cdrecord")), (None, None));
        let describe = |line: &str, code: Option<i32>, pieces: &[&str]| {
            let mut output = OwnOutput::default();
            pieces.iter().for_each(|piece| output.push(piece.as_bytes()));
            describe_own_command(line, &Ended { code, output, unread: Vec::new() })
        };
        assert_eq!(
            describe("ls", Some(2), &["a\n"]),
            "The person ran `ls` themselves (exit code 2). Its output:\na"
        );
        assert!(describe("x", Some(0), &[]).ends_with("Its output:\n[no output]"));
        assert!(describe("x", Some(0), &["\u{1b}[?1049hx\u{1b}[?1049l"]).ends_with("on the screen]"));
        let long = describe("x", None, &["BEGIN", &"ä".repeat(20_000), "END"]);
        assert!(long.contains("BEGIN") && long.ends_with("END") && long.contains("by a signal"), "{long}");
        let piece = "x".repeat(100 << 10);
        let endless = describe("x", None, &[&["BEGIN"], &[piece.as_str(); 40][..], &["END"]].concat());
        assert!(endless.contains("BEGIN") && endless.ends_with("END") && endless.len() < LEARNED + 200);
        let left_out = 8 + 40 * (100 << 10) - LEARNED;
        assert!(endless.contains(&format!("{left_out} bytes left out here")), "{}", endless.len());
    }
}
