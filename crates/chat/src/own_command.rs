//! `!command`: a command that the person runs themselves, in their shell, with all their rights and outside
//! the sandbox. Its output is shown as it comes, and the model learns it with the next message.

use std::io::{self, PipeReader, Read as _};
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The most bytes of an output that the model gets.
const LEARNED: usize = 16 << 10;
/// How long output is awaited after the end of the command: a process in the background may hold it open.
const REST: Duration = Duration::from_millis(200);

/// Returns the command of a line that begins with `!`.
pub(super) fn own_command(line: &str) -> Option<&str> {
    line.trim().strip_prefix('!').map(str::trim).filter(|command| !command.is_empty())
}

/// Runs a command in the person's shell and shows its output as it comes. Returns the exit code (`None` for a
/// command that a signal ended) and the whole output.
///
/// # Errors
/// When the shell cannot be started.
pub(super) async fn run_own_command(
    line: &str,
    directory: &Path,
    ending: &CancellationToken,
    mut show: impl FnMut(&str),
) -> io::Result<(Option<i32>, String)> {
    let (reader, writer) = io::pipe()?;
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let mut command = Command::new(shell.unwrap_or_else(|| "sh".into()));
    command.arg("-c").arg(line).current_dir(directory).stdout(writer.try_clone()?).stderr(writer);
    let mut running = command.kill_on_drop(true).spawn()?;
    // It holds the other end of the pipe.
    drop(command);
    let (sender, mut pieces) = mpsc::unbounded_channel();
    std::thread::spawn(move || read_pieces(reader, &sender));
    let mut output = String::new();
    let mut take = |piece: String| {
        show(&piece);
        output.push_str(&piece);
    };
    let status = loop {
        tokio::select! {
            biased;
            () = ending.cancelled() => {
                running.kill().await?;
                break running.wait().await?;
            }
            Some(piece) = pieces.recv() => take(piece),
            status = running.wait() => break status?,
        }
    };
    while let Ok(Some(piece)) = tokio::time::timeout(REST, pieces.recv()).await {
        take(piece);
    }
    Ok((status.code(), output))
}

/// Sends the output as text until the pipe ends or its reader has gone.
fn read_pieces(mut pipe: PipeReader, sender: &mpsc::UnboundedSender<String>) {
    let mut pending = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = pipe.read(&mut chunk).unwrap_or(0);
        pending.extend_from_slice(&chunk[..count]);
        // The beginning of a character waits for its rest.
        let whole = match std::str::from_utf8(&pending) {
            Err(error) if error.error_len().is_none() && count > 0 => error.valid_up_to(),
            _ => pending.len(),
        };
        let text = String::from_utf8_lossy(&pending[..whole]).replace("\r\n", "\n").replace('\r', "\n");
        pending.drain(..whole);
        if (!text.is_empty() && sender.send(text).is_err()) || count == 0 {
            return;
        }
    }
}

/// Tells the model what the person ran.
pub(super) fn describe_own_command(line: &str, code: Option<i32>, output: &str) -> String {
    let end = match code {
        Some(0) => String::new(),
        Some(code) => format!(" (exit code {code})"),
        None => " (ended by a signal)".to_owned(),
    };
    let head = output.floor_char_boundary(LEARNED / 2);
    let tail = output.ceil_char_boundary(output.len().saturating_sub(LEARNED / 2));
    let output = match tail.checked_sub(head) {
        Some(missing @ 1..) => {
            format!("{}\n[… {missing} bytes left out here …]\n{}", &output[..head], &output[tail..])
        }
        _ => output.to_owned(),
    };
    let output = if output.trim().is_empty() { "[no output]" } else { output.trim_end() };
    format!("The person ran `{line}` themselves{end}. Its output:\n{output}")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(line: &str) -> (Option<i32>, String, String) {
        let mut shown = String::new();
        let show = |piece: &str| shown.push_str(piece);
        let ended = run_own_command(line, Path::new("/"), &CancellationToken::new(), show).await.unwrap();
        (ended.0, ended.1, shown)
    }

    #[tokio::test]
    async fn output_and_errors_come_in_order() {
        let (code, output, shown) = run("echo one; echo two >&2; pwd; exit 3").await;
        assert_eq!((code, output.as_str()), (Some(3), "one\ntwo\n/\n"));
        assert_eq!(shown, output);
        assert_eq!(run("kill -KILL $$").await.0, None);
    }

    #[tokio::test]
    async fn a_process_in_the_background_is_not_awaited() {
        let done = tokio::time::timeout(Duration::from_secs(20), run("sleep 60 & echo begun; kill -0 $!"));
        assert_eq!(done.await.expect("it waits").1, "begun\n");
    }

    #[tokio::test]
    async fn the_end_of_the_chat_ends_it() {
        let ending = CancellationToken::new();
        ending.cancel();
        let (code, _) = run_own_command("sleep 60", Path::new("/"), &ending, |_| {}).await.unwrap();
        assert_eq!(code, None);
    }

    #[test]
    fn the_model_learns_both_ends() {
        assert_eq!(own_command(" ! ls -l "), Some("ls -l"));
        assert_eq!((own_command("!"), own_command("ls !")), (None, None));
        assert_eq!(
            describe_own_command("ls", Some(2), "a\n"),
            "The person ran `ls` themselves (exit code 2). Its output:\na"
        );
        assert!(describe_own_command("x", Some(0), " \n").ends_with("Its output:\n[no output]"));
        let long = describe_own_command("x", None, &format!("BEGIN{}END", "ä".repeat(20_000)));
        assert!(
            long.contains("BEGIN") && long.ends_with("END") && long.len() < LEARNED + 200,
            "{}",
            long.len()
        );
        assert!(long.contains("bytes left out here") && long.contains("by a signal"));
    }
}
