//! A question to the person: a preview of the effect, complete or with the number of hidden rows, the
//! question with its subject, and the key that answers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::approval::Asking;
use super::super::editor::{Input, read_line};
use super::super::figures::format_count;
use super::super::preview::{self, Kind, Row};
use super::super::terminal::{CTRL_C, CTRL_D, CTRL_Z, Quiet, Typed};
use super::{MOST_ROWS, Screen, terminal_height};
use tools::{QuestionKind, Target};
use wire::visible::{char_width, cut_line, make_visible, one_line, wrap_text};

/// The rows of the terminal that are left for the head and the question.
const AROUND: usize = 6;
/// The columns of the longest answer that stays behind the question.
const LONGEST_ANSWER: usize = "always".len();
/// With more rows, the question itself names the command.
const FEW_ROWS: usize = 5;

/// The person's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    Always,
    /// No, and the model reads these words.
    Instead(String),
    /// Stop the whole turn.
    Stop,
}

/// The least time between two hints at one question.
const HINT_PAUSE: Duration = Duration::from_secs(1);
/// The pause after which a letter is an answer again, and no further letter of a text.
const TEXT_PAUSE: Duration = Duration::from_secs(2);

/// A key that means something to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Answer(Answer),
    /// Read what the model should do instead, which begins so.
    Tell(String),
    /// Show everything page by page, then ask again.
    View,
    /// The process was suspended: show the question again.
    Resumed,
    /// No answer. `is_line`: Enter ended it.
    Other {
        is_line: bool,
    },
}

impl Screen {
    /// Shows a question and waits for the key.
    pub(crate) async fn ask_person(&mut self, asking: &Asking, quiet: &Arc<Quiet>) -> Answer {
        let what = self.status.take().map(|status| status.what);
        self.measure_terminal();
        let rows = self.rows_of(asking);
        let most = MOST_ROWS.min(terminal_height().saturating_sub(AROUND));
        let hidden = rows.len().saturating_sub(most);
        self.previewed = asking.preview.is_some();
        // Of a long replacement, both what goes and what comes is seen.
        let head = if hidden > 0 { most / 2 } else { rows.len() };
        self.write_rows(&rows[..head]);
        let began = Instant::now();
        self.note_hidden(asking, hidden);
        self.write_rows(&rows[head + hidden..]);
        let question = self.question_text(asking, rows.len(), hidden);
        let has_always = asking.always.question_text().is_some();
        // Letters of a text are no answers until Enter or a pause ends it.
        let mut text_since: Option<Instant> = None;
        let mut hinted = began;
        let answer = loop {
            if text_since.is_none() {
                self.write_text(&question);
            }
            match wait_for_answer(quiet, has_always, text_since).await {
                Key::Answer(answer) => {
                    self.write_line(said(&answer));
                    break answer;
                }
                Key::Tell(begun) => {
                    self.write_line("tell");
                    let words = match begun.strip_suffix('\n') {
                        Some(words) => {
                            self.write_line(&format!("  Tell it: {}", make_visible(words)));
                            Some(Answer::Instead(words.trim().to_owned()))
                        }
                        None => read_words(begun).await,
                    };
                    if let Some(answer) = words {
                        break answer;
                    }
                }
                Key::Other { is_line } => {
                    // Again for a further key, which else would have no visible effect.
                    let is_again = text_since.is_some() && !is_line && hinted.elapsed() >= HINT_PAUSE;
                    if text_since.is_none() || is_again {
                        let hint = wrap_text(&answer_hint(has_always, is_line), self.width);
                        let start = if is_again { "" } else { "\n" };
                        self.write_line(&format!("{start}{}", self.paint.magenta(&hint)));
                        hinted = Instant::now();
                    }
                    text_since = (!is_line).then(Instant::now);
                }
                Key::Resumed => text_since = None,
                Key::View => {
                    self.write_line("view");
                    self.show_pages(&rows, quiet).await;
                }
            }
        };
        self.asked += began.elapsed();
        self.asked_in_turn += began.elapsed();
        self.is_outside = asking.kind == QuestionKind::OutsideSandbox && answer == Answer::Yes;
        if let Some(what) = what {
            self.set_status(&what);
        }
        answer
    }

    /// Returns the preview. A command that the head of its call shows completely is not repeated.
    fn rows_of(&self, asking: &Asking) -> Vec<Row> {
        match (&asking.preview, &asking.target) {
            (Some(output), target) if asking.kind == QuestionKind::OutsideSandbox => {
                let left = match target {
                    Target::Command { line, .. } => preview::command_rows(line, self.width),
                    _ => Vec::new(),
                };
                let output = make_visible(output);
                let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
                let skipped = lines.len().saturating_sub(FEW_ROWS);
                let row = |line: &&str| Row {
                    kind: Kind::Context,
                    text: cut_line(line, self.width.saturating_sub(4)),
                };
                left.into_iter().chain(lines[skipped..].iter().map(row)).collect()
            }
            // Words of the tool's own, and all that it was called with: it is not known what it acts on.
            (text, Target::Other | Target::Server { .. }) => {
                let arguments = serde_json::to_string_pretty(&asking.arguments).unwrap_or_default();
                let text = text.iter().map(String::as_str).chain([arguments.as_str()]);
                text.flat_map(|text| preview::command_rows(text, self.width)).collect()
            }
            (note, Target::Command { line, .. }) => {
                // A row of a preview loses five columns, the head four and those of the tool.
                let beside_head = (self.width + 1).saturating_sub(asking.tool.len());
                let is_shown = preview::fits_a_row(line, beside_head);
                let rows = if is_shown { Vec::new() } else { preview::command_rows(line, self.width) };
                let note = note.iter().flat_map(|note| preview::command_rows(note, self.width));
                note.chain(rows).collect()
            }
            (Some(diff), _) => preview::diff_rows(diff, self.width),
            (None, Target::File { .. }) => Vec::new(),
        }
    }

    /// Writes how many rows are not shown.
    fn note_hidden(&mut self, asking: &Asking, hidden: usize) {
        let is_change = matches!((&asking.preview, &asking.target), (None, Target::File { .. }));
        if is_change && asking.tool != "read_file" {
            self.write_line(
                &self.paint.magenta("    The change cannot be shown: the file is large, or not text."),
            );
        } else if hidden > 0 {
            self.write_line(
                &self
                    .paint
                    .magenta(&format!("    … {}, not shown: [v]iew", format_count(hidden, "more row"))),
            );
        }
    }

    /// Returns the question with its subject: the head may be off the screen.
    fn question_text(&self, asking: &Asking, rows: usize, hidden: usize) -> String {
        let verb = match asking.tool.as_str() {
            _ if asking.kind == QuestionKind::OutsideSandbox
                && matches!(asking.target, Target::Command { .. }) =>
            {
                "The sandbox may have stopped this line. Run the rest of it with all your files and local services in reach"
            }
            _ if asking.kind == QuestionKind::OutsideSandbox => {
                "The sandbox may have stopped this command. Run it again with all your files and local services in reach"
            }
            "shell_command" => "Run it",
            "edit_file" | "write_file" => "Change",
            _ => "Allow",
        };
        let count = match (&asking.preview, &asking.target) {
            (Some(diff), Target::File { .. }) => format!(" ({})", preview::change_counts(diff)),
            (_, Target::Command { line, .. }) if rows > FEW_ROWS => {
                format!(" ({rows} rows, from `{}`)", one_line(line, 40))
            }
            (_, Target::Other | Target::Server { .. }) if asking.kind == QuestionKind::Call => {
                format!(" {}", one_line(&asking.tool, 70))
            }
            _ => String::new(),
        };
        let always = asking.always.question_text().map(|words| format!("[a]lways {}", one_line(&words, 60)));
        let view = (hidden > 0).then(|| "[v]iew all".to_owned());
        let (yes, tell) = ("[y]es  [n]o".to_owned(), "[t]ell it instead".to_owned());
        let choices: Vec<String> = [Some(yes), always, Some(tell), view].into_iter().flatten().collect();
        let keys = choice_rows(&choices, self.width.saturating_sub(3 + LONGEST_ANSWER));
        let asked = format!("{verb}{}{count}?", preview::target_label(&asking.target));
        let columns = |text: &str| text.chars().map(char_width).sum::<usize>();
        let on_one_line = columns(&asked) + columns(&keys) + 4 + LONGEST_ANSWER <= self.width;
        let (asked, gap) = if on_one_line {
            (asked, " ")
        } else {
            (wrap_text(&asked, self.width.saturating_sub(2)).replace('\n', "\n  "), "\n  ")
        };
        format!("  {}{gap}{} ", self.paint.magenta(&asked), self.paint.dim(&keys))
    }

    /// Shows all rows, page by page.
    async fn show_pages(&mut self, rows: &[Row], quiet: &Arc<Quiet>) {
        let page = terminal_height().saturating_sub(2).max(1);
        let mut shown = 0;
        loop {
            let end = (shown + page).min(rows.len());
            self.write_rows(&rows[shown..end]);
            shown = end;
            if shown == rows.len() {
                return;
            }
            let more = format!(
                "  rows to {shown} of {}: [space] goes on, [q] goes back to the question ",
                rows.len()
            );
            self.write_text(&self.paint.dim(&more));
            let goes_on = goes_on(quiet).await;
            self.write_text("\r\u{1b}[K");
            if !goes_on {
                return;
            }
        }
    }
}

/// Lays out choices in rows of `width` columns.
fn choice_rows(choices: &[String], width: usize) -> String {
    let columns = |text: &str| text.chars().map(char_width).sum::<usize>();
    let (mut rows, mut used) = (String::new(), 0);
    for choice in choices {
        let gap = match used {
            0 => "",
            used if used + 2 + columns(choice) > width => "\n  ",
            _ => "  ",
        };
        used = if gap.starts_with('\n') { 0 } else { used + gap.len() } + columns(choice);
        rows.extend([gap, choice]);
    }
    rows
}

/// Returns the word that stays on the screen for an answer.
fn said(answer: &Answer) -> &'static str {
    match answer {
        Answer::Yes => "yes",
        Answer::No | Answer::Instead(_) => "no",
        Answer::Always => "always",
        Answer::Stop => "stop",
    }
}

/// Reads what the model should do instead, `begun` already; `None` for an empty line.
async fn read_words(begun: String) -> Option<Answer> {
    let read = tokio::task::spawn_blocking(move || read_line("  Tell it: ", &begun)).await;
    match read.unwrap_or(Input::End) {
        Input::Text { text, .. } if text.trim().is_empty() => None,
        Input::Text { text, .. } => Some(Answer::Instead(text.trim().to_owned())),
        Input::Output(_) | Input::Editor(_) | Input::Interrupt | Input::End => Some(Answer::Stop),
    }
}

/// Says how to answer after another key or a text.
fn answer_hint(has_always: bool, is_line: bool) -> String {
    let keys = if has_always { "y, n, a or t" } else { "y, n or t" };
    let first = if is_line { "answer" } else { "after a moment, press" };
    format!("  That is not an answer: {first} {keys}; Esc stops the turn.")
}

/// Waits for an answer. Until `TEXT_PAUSE` after the last key of a text, letters are no answers.
async fn wait_for_answer(quiet: &Arc<Quiet>, has_always: bool, mut text_since: Option<Instant>) -> Key {
    let meaning = move |typed: Option<Typed>| {
        let is_text = text_since.is_some_and(|since| since.elapsed() < TEXT_PAUSE);
        text_since = is_text.then(Instant::now);
        key_meaning(typed, has_always, is_text)
    };
    read_key(quiet, meaning).await.unwrap_or(Key::Answer(Answer::Stop))
}

fn key_meaning(typed: Option<Typed>, has_always: bool, is_text: bool) -> Option<Key> {
    let Some(Typed { key, instead, is_line }) = typed else { return Some(Key::Answer(Answer::Stop)) };
    match key {
        Some(CTRL_C | CTRL_D) => Some(Key::Answer(Answer::Stop)),
        Some(CTRL_Z) => Some(Key::Resumed),
        _ if is_text => (is_line || key.is_some()).then_some(Key::Other { is_line }),
        Some(b'y' | b'Y') => Some(Key::Answer(Answer::Yes)),
        Some(b'n' | b'N') => Some(Key::Answer(Answer::No)),
        Some(b'a') if has_always => Some(Key::Answer(Answer::Always)),
        Some(b't' | b'T') => Some(Key::Tell(instead)),
        Some(b'v') => Some(Key::View),
        Some(b'\n' | b'\r') => None,
        _ => Some(Key::Other { is_line }),
    }
}

/// Waits between two pages; true to continue.
async fn goes_on(quiet: &Arc<Quiet>) -> bool {
    let answer = |typed: Option<Typed>| match typed.map(|typed| typed.key) {
        Some(Some(b' ' | b'\n' | b'\r')) => Some(true),
        Some(Some(b'q' | b'n' | CTRL_C | CTRL_D)) | None => Some(false),
        Some(_) => None,
    };
    read_key(quiet, answer).await.unwrap_or(false)
}

/// Reads keys until one has a meaning. `None` if the reading thread has gone.
async fn read_key<T: Send + 'static>(
    quiet: &Arc<Quiet>,
    mut meaning: impl FnMut(Option<Typed>) -> Option<T> + Send + 'static,
) -> Option<T> {
    /// Stops the reading thread when nothing waits for it any more.
    struct Gone(Arc<AtomicBool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let gone = Gone(Arc::default());
    let (quiet, flag) = (Arc::clone(quiet), Arc::clone(&gone.0));
    let reader = tokio::task::spawn_blocking(move || {
        quiet.keep_typed();
        loop {
            if let Some(found) = meaning(quiet.wait_for_key(&flag)) {
                return found;
            }
        }
    });
    reader.await.ok()
}

#[cfg(test)]
mod tests {
    use super::super::super::answers::Answers;
    use super::super::super::approval::SessionGrant;
    use super::super::super::paint::Paint;
    use super::*;
    use std::path::Path;
    use tokio::sync::oneshot;
    use tokio_util::sync::CancellationToken;

    fn asking(tool: &str, target: Target, preview: Option<&str>) -> Asking {
        let always = SessionGrant::from_target(tool, &target, Path::new("/w"));
        Asking {
            kind: QuestionKind::Call,
            arguments: serde_json::Map::new(),
            tool: tool.into(),
            target,
            preview: preview.map(str::to_owned),
            always,
            stop: CancellationToken::new(),
            answer: oneshot::channel().0,
        }
    }

    fn question(asking: &Asking, rows: usize, hidden: usize) -> String {
        Screen::new(Box::new(std::io::sink()), Paint(false), false, Answers::Screen)
            .question_text(asking, rows, hidden)
    }

    fn file(real: &str, written: &str) -> Target {
        Target::File { root: "/w".into(), real: real.into(), written: written.into(), is_kept: false }
    }

    fn command(line: &str, directory: &str) -> Target {
        Target::Command { line: line.into(), directory: directory.into() }
    }

    /// Regression: the question did not name its subject, and hid a part of it.
    #[test]
    fn the_question_names_its_subject_and_hidden_rows() {
        let diff = "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n";
        let check = |asking: &Asking, rows: usize, hidden: usize, expected: &str| {
            assert_eq!(question(asking, rows, hidden), expected);
        };
        check(
            &asking("edit_file", file("a", "a"), Some(diff)),
            3,
            0,
            "  Change a (+1 −1)? [y]es  [n]o  [a]lways edit_file  [t]ell it instead ",
        );
        let mut narrow = Screen::new(Box::new(std::io::sink()), Paint(false), false, Answers::Screen);
        narrow.width = 78;
        let asked = narrow.question_text(&asking("edit_file", file("calc.py", "calc.py"), Some(diff)), 3, 0);
        assert!(asked.contains("?\n  [y]es"), "the answer has no room: {asked}");
        narrow.width = 44;
        let asked = narrow.question_text(&asking("edit_file", file("calc.py", "calc.py"), Some(diff)), 3, 0);
        assert!(asked.contains("[a]lways edit_file\n  [t]ell it instead "), "a choice is broken: {asked}");
        check(
            &asking("write_file", file(".git/hooks/pre-commit", "README.md"), Some(diff)),
            60,
            21,
            "  Change .git/hooks/pre-commit (written as README.md) (+1 −1)?\n  [y]es  [n]o  [t]ell it instead  [v]iew all ",
        );
        check(
            &asking("shell_command", command("make", "evil"), None),
            0,
            0,
            "  Run it in evil? [y]es  [n]o  [a]lways this very command  [t]ell it instead ",
        );
        check(
            &asking("shell_command", command("echo 1\necho 2", "."), None),
            301,
            277,
            "  Run it (301 rows, from `echo 1 echo 2`)?\n  [y]es  [n]o  [a]lways this very command  [t]ell it instead  [v]iew all ",
        );
    }

    #[test]
    fn the_way_out_of_the_sandbox_is_one_sentence() {
        let output = (0..40).fold(String::new(), |all, line| all + "line " + &line.to_string() + "\n");
        let kind = QuestionKind::OutsideSandbox;
        let asking = Asking {
            kind,
            always: SessionGrant::Never,
            ..asking("shell_command outside the sandbox", Target::Other, Some(&output))
        };
        let screen = Screen::new(Box::new(std::io::sink()), Paint(false), false, Answers::Screen);
        let rows = screen.rows_of(&asking);
        assert_eq!((rows.len(), rows[0].text.as_str()), (5, "line 35"));
        assert_eq!(
            screen.question_text(&asking, rows.len(), 0),
            "  The sandbox may have stopped this command. Run it again with all your files and local services in\n  \
             reach?\n  [y]es  [n]o  [t]ell it instead "
        );
    }

    /// Regression: output could push out the beginning of the rest of a line.
    #[test]
    fn the_rest_of_a_line_comes_first() {
        let target =
            Target::Command { line: "git push && \\\ngit tag x".into(), directory: Path::new(".").into() };
        let asking = Asking {
            kind: QuestionKind::OutsideSandbox,
            always: SessionGrant::Never,
            ..asking("shell_command outside the sandbox", target, Some("[still to run: ls]"))
        };
        let screen = Screen::new(Box::new(std::io::sink()), Paint(false), false, Answers::Screen);
        let rows = screen.rows_of(&asking);
        assert_eq!((rows.len(), rows[2].text.as_str()), (3, "[still to run: ls]"));
        assert!(rows[0].text.contains("git push"), "{}", rows[0].text);
        let text = screen.question_text(&asking, rows.len(), 0);
        assert!(text.contains("Run the rest of it with all your files"), "{text}");
    }

    /// Regression: the `a` in "please" was consent for always.
    #[test]
    fn a_sentence_is_no_answer() {
        let key = |key: u8| Some(Typed { key: Some(key), instead: String::new(), is_line: false });
        assert_eq!(key_meaning(key(b'a'), true, false), Some(Key::Answer(Answer::Always)));
        assert_eq!(key_meaning(key(b'a'), false, false), Some(Key::Other { is_line: false }));
        assert_eq!(key_meaning(key(b't'), false, false), Some(Key::Tell(String::new())));
        assert_eq!(key_meaning(key(b'p'), true, false), Some(Key::Other { is_line: false }));
        for letter in b"lease ynt" {
            assert_eq!(key_meaning(key(*letter), true, true), Some(Key::Other { is_line: false }));
        }
        assert_eq!(
            key_meaning(Some(Typed { key: None, instead: String::new(), is_line: false }), true, true),
            None
        );
        assert!(answer_hint(true, false).len() <= 80, "{}", answer_hint(true, false));
        let enter = Some(Typed { key: Some(b'\n'), instead: String::new(), is_line: true });
        assert_eq!(key_meaning(enter, true, true), Some(Key::Other { is_line: true }));
        assert_eq!(key_meaning(key(CTRL_Z), true, true), Some(Key::Resumed));
        assert_eq!(key_meaning(key(CTRL_C), true, true), Some(Key::Answer(Answer::Stop)));
        let text = Some(Typed { key: None, instead: String::new(), is_line: true });
        assert_eq!(key_meaning(text, true, false), Some(Key::Other { is_line: true }));
    }

    #[test]
    fn a_long_command_is_shown_whole() {
        let rows = |line: &str| {
            let screen = Screen::new(Box::new(std::io::sink()), Paint(false), false, Answers::Screen);
            screen.rows_of(&asking("shell_command", command(line, "."), None)).len()
        };
        assert_eq!(rows("ls -la"), 0);
        assert_eq!(rows("ls\nrm -rf x"), 2);
        assert_eq!(rows(&"x".repeat(100 - "● shell_command  ".chars().count())), 0, "the head has all of it");
        assert_eq!(rows(&"x".repeat(101 - "● shell_command  ".chars().count())), 1);
        assert_eq!(rows(&format!("ls {}", "x".repeat(100))), 2);
        assert_eq!(rows(&format!("ls {}; rm x", " ".repeat(60))), 1);
    }
}
