//! The line editor: several lines by Alt-Enter, a trailing backslash or pasting; history; completion of
//! `/commands`. A long text is shown as a mark (`pastes`): it would be printed again with each key.

use std::borrow::Cow;
use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use rustyline::completion::Completer;
use rustyline::config::Builder;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::{Hint, Hinter};
use rustyline::history::{FileHistory, History as _};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    CharSearch, Cmd, CompletionType, ConditionalEventHandler, Config, Context, DefaultEditor, Editor, Event,
    EventContext, EventHandler, Helper, KeyCode, KeyEvent, Modifiers, Movement, RepeatCount,
};

use super::attachments::complete_mention;
use super::command;
use super::figures::terminal_columns;
use super::paint::Paint;
use super::pastes::Pastes;
use wire::visible::{char_width, cut_line};

pub(super) const PROMPT: &str = "❯ ";
/// The beginning of a line that chooses a model.
const MODEL: &str = "/model ";
const MOST_HISTORY: usize = 1_000;
/// The milliseconds after which Esc is a key of its own.
const ESC_ALONE: u16 = 50;

/// The longest pause between keys that came together, and not from a person's fingers.
const KEY_PAUSE: Duration = Duration::from_millis(5);
/// The milliseconds after which a burst of keys is over.
const BURST_PAUSE: u8 = 30;

/// Names that a task learns while the person writes.
pub(super) type Names = Arc<Mutex<Vec<String>>>;

/// An input of the person.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A text. `line`: as it stands in the prompt, with marks for long texts.
    Text { line: String, text: String },
    /// Ctrl-O: the last output of a tool is wanted. The text stays in the prompt.
    Output(String),
    /// Ctrl-G: the person goes on with the text in an editor of theirs.
    Editor(String),
    /// Ctrl-C on an empty line.
    Interrupt,
    /// Ctrl-D, or the terminal has gone.
    End,
}

/// The editor with its history.
pub(super) struct Lines {
    /// Its own history has marks for long texts.
    editor: Editor<Keys, FileHistory>,
    /// The history as it is kept: with the whole texts.
    kept: FileHistory,
    history: PathBuf,
    state: Arc<Mutex<PromptState>>,
}

/// The state of the prompt that its keys change.
#[derive(Default)]
struct PromptState {
    pastes: Pastes,
    /// The text that is being pasted.
    incoming: Option<String>,
    /// Makes the input, if another key than Enter ended the line.
    ended_by: Option<fn(String) -> Input>,
    pace: Pace,
    /// The keys behind an input that came together with it.
    rest: Option<String>,
}

/// When keys come. What a terminal without marks for pastes pastes comes faster than a person types.
#[derive(Default)]
struct Pace {
    last: Option<Instant>,
    /// Whether Enter came together with the key before it.
    is_burst: bool,
}

impl Pace {
    fn take_key(&mut self, is_enter: bool, now: Instant) {
        let passed = self.last.replace(now).map(|last| now.duration_since(last));
        self.is_burst = is_enter && passed.is_some_and(|passed| passed < KEY_PAUSE);
    }
}

/// Returns settings with which Esc stands for itself, and not for the beginning of what comes later.
fn key_config() -> Builder {
    Config::builder().keyseq_timeout(Some(ESC_ALONE))
}

/// Reads one line after this prompt, `begun` already; Esc is an interrupt. Blocks.
pub(super) fn read_line(prompt: &str, begun: &str) -> Input {
    let editor = DefaultEditor::with_config(key_config().build());
    let read = editor.and_then(|mut editor| {
        let escape = KeyEvent(KeyCode::Esc, Modifiers::NONE);
        editor.bind_sequence(escape, EventHandler::Simple(Cmd::Interrupt));
        editor.readline_with_initial(prompt, (begun, ""))
    });
    match read {
        Ok(text) => Input::Text { line: text.clone(), text },
        Err(ReadlineError::Interrupted) => Input::Interrupt,
        Err(_) => Input::End,
    }
}

impl Lines {
    /// Opens the editor with the history in `state_dir`. The chat works without a history too. `models` are
    /// completed after `/model`, files from `root` after `@`.
    pub(super) fn open(
        state_dir: &Path,
        root: &Path,
        paint: Paint,
        models: Names,
    ) -> Result<Self, ReadlineError> {
        let config = key_config().max_history_size(MOST_HISTORY)?.completion_type(CompletionType::List);
        let config = config.completion_show_all_if_ambiguous(true).history_ignore_dups(true)?;
        let config = config.auto_add_history(false).build();
        let mut kept = FileHistory::with_config(&config);
        let mut editor = Editor::with_config(config)?;
        let state: Arc<Mutex<PromptState>> = Arc::default();
        editor.set_helper(Some(Keys { paint, models, root: root.to_owned(), state: Arc::clone(&state) }));
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        editor.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        editor.bind_sequence(Event::Any, EventHandler::Conditional(Box::new(PromptKeys(Arc::clone(&state)))));
        let history = state_dir.join("chat_history");
        let _ = kept.load(&history);
        for earlier in &kept {
            editor.add_history_entry(lock(&state).pastes.shorten_earlier(earlier.clone()))?;
        }
        Ok(Self { editor, kept, history, state })
    }

    /// Waits for a complete input. `typed` stands in the prompt already. Blocks.
    pub(super) fn read_input(&mut self, typed: &str) -> Input {
        let typed = lock(&self.state).pastes.shorten(typed.trim_end_matches('\n').to_owned());
        let read = self.editor.readline_with_initial(PROMPT, (&typed, ""));
        let mut state = lock(&self.state);
        let ended_by = std::mem::take(&mut state.ended_by);
        let is_burst = std::mem::take(&mut state.pace).is_burst;
        state.incoming = None;
        match (read, ended_by) {
            (Ok(line), Some(make_input)) => {
                let text = state.pastes.expand(&line);
                erase_line(&line);
                make_input(text)
            }
            (Ok(line), None) => {
                let line = without_continuations(&line);
                let text = state.pastes.expand(&line);
                drop(state);
                let rest = if is_burst { self.take_rest() } else { String::new() };
                if !rest.is_empty() {
                    erase_line(&line);
                    return self.read_input(&format!("{text}\n{rest}"));
                }
                self.remember(&line, &text);
                Input::Text { line, text }
            }
            (Err(ReadlineError::Interrupted), _) => Input::Interrupt,
            (Err(_), _) => Input::End,
        }
    }

    /// Takes the keys that came together with the last line: those that the editor has read already, and
    /// those that the terminal still has.
    fn take_rest(&mut self) -> String {
        let stdin = std::io::stdin();
        let Ok(flags) = fcntl(&stdin, FcntlArg::F_GETFL).map(OFlag::from_bits_retain) else {
            return String::new();
        };
        let mut rest = String::new();
        loop {
            lock(&self.state).rest = Some(String::new());
            // Without waiting, the end of the keys is an error.
            let _ = fcntl(&stdin, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK));
            let _ = self.editor.readline("");
            let _ = fcntl(&stdin, FcntlArg::F_SETFL(flags));
            // The editor goes to the next line when it ends.
            print_codes("\u{1b}[1A");
            let taken = lock(&self.state).rest.take().unwrap_or_default();
            let mut more = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            let is_over = taken.is_empty() || !matches!(poll(&mut more, BURST_PAUSE), Ok(1..));
            rest.push_str(&taken);
            if is_over {
                return with_line_feeds(&rest);
            }
        }
    }

    /// Takes what was typed and entered during a turn as the next input.
    pub(super) fn take_typed(&mut self, typed: &str) -> Input {
        let text = without_continuations(typed.trim_end());
        let line = lock(&self.state).pastes.shorten(text.clone());
        self.remember(&line, &text);
        Input::Text { line, text }
    }

    /// Adds an input to the history: the `line` with its marks for this session, the whole `text` for others.
    fn remember(&mut self, line: &str, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        let _ = self.editor.add_history_entry(line);
        if self.kept.add(text).unwrap_or(false) {
            let _ = self.kept.append(&self.history).or_else(|_| self.kept.save(&self.history));
            let _ = fs::set_permissions(&self.history, fs::Permissions::from_mode(0o600));
        }
    }
}

fn lock(state: &Mutex<PromptState>) -> MutexGuard<'_, PromptState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the backslashes that only continue a line.
fn without_continuations(text: &str) -> String {
    text.replace("\\\n", "\n")
}

/// The keys with a meaning of their own: a paste is received as a whole, a mark is deleted as a whole, Ctrl-C
/// discards a line (on an empty one it means that the person wants to leave), Ctrl-O asks for the last
/// output, and Ctrl-G for an editor.
struct PromptKeys(Arc<Mutex<PromptState>>);

impl ConditionalEventHandler for PromptKeys {
    fn handle(&self, event: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let KeyEvent(code, modifiers) = *event.get(0)?;
        let mut state = lock(&self.0);
        if let Some(rest) = &mut state.rest {
            rest.extend(key_text(code, modifiers));
            return Some(Cmd::Noop);
        }
        if let Some(received) = state.receive_key(code, modifiers) {
            return Some(received);
        }
        let is_enter =
            matches!((code, modifiers), (KeyCode::Enter, _) | (KeyCode::Char('J'), Modifiers::CTRL));
        state.pace.take_key(is_enter, Instant::now());
        let (before, after) = context.line().split_at(context.pos());
        // A movement that ends at a bracket of the mark: rustyline replaces the counts of others.
        let to = |bracket| Some(Cmd::Kill(Movement::ViCharSearch(1, bracket)));
        match (code, modifiers) {
            (KeyCode::Backspace, _) | (KeyCode::Char('W'), Modifiers::CTRL)
                if state.pastes.has_mark_at_end(before) =>
            {
                to(CharSearch::Backward('['))
            }
            (KeyCode::Delete, _) if state.pastes.has_mark_at_start(after) => to(CharSearch::Forward(']')),
            (KeyCode::Char('C'), Modifiers::CTRL) if !context.line().is_empty() => {
                Some(Cmd::Kill(Movement::WholeBuffer))
            }
            (KeyCode::Char(key @ ('O' | 'G')), Modifiers::CTRL) => {
                let make_input: fn(String) -> Input = if key == 'O' { Input::Output } else { Input::Editor };
                state.ended_by = Some(make_input);
                Some(Cmd::AcceptLine)
            }
            _ => None,
        }
    }
}

impl PromptState {
    /// Takes a key that belongs to a paste; `None` for another key. The text enters the line at the end.
    fn receive_key(&mut self, code: KeyCode, modifiers: Modifiers) -> Option<Cmd> {
        if code == KeyCode::BracketedPasteStart {
            self.incoming = Some(String::new());
            return Some(Cmd::Noop);
        }
        let incoming = self.incoming.as_mut()?;
        if code == KeyCode::BracketedPasteEnd {
            let text = with_line_feeds(&self.incoming.take()?);
            return Some(Cmd::Insert(1, self.pastes.shorten(text)));
        }
        incoming.extend(key_text(code, modifiers));
        Some(Cmd::Noop)
    }
}

/// Returns the character of a pasted key; `None` for keys that are not text.
fn key_text(code: KeyCode, modifiers: Modifiers) -> Option<char> {
    match (code, modifiers) {
        (KeyCode::Enter, _) => Some('\r'),
        (KeyCode::Char('J'), Modifiers::CTRL) => Some('\n'),
        (KeyCode::Tab, _) => Some('\t'),
        (KeyCode::Char(c), modifiers) if !modifiers.contains(Modifiers::CTRL) => Some(c),
        _ => None,
    }
}

fn with_line_feeds(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Erases the line that the editor has just accepted: it stands in the next prompt.
fn erase_line(line: &str) {
    let columns = |line: &str| line.chars().map(char_width).sum::<usize>();
    let width = terminal_columns();
    let rows: usize = format!("{PROMPT}{line}").lines().map(|row| columns(row).div_ceil(width).max(1)).sum();
    print_codes(&format!("\r\u{1b}[{rows}A\u{1b}[J"));
}

fn print_codes(codes: &str) {
    let mut out = std::io::stdout();
    // A closed terminal needs nothing.
    let _ = out.write_all(codes.as_bytes()).and_then(|()| out.flush());
}

struct Keys {
    paint: Paint,
    models: Names,
    root: PathBuf,
    state: Arc<Mutex<PromptState>>,
}

impl Helper for Keys {}

/// The effect of the command that is being typed.
struct CommandHint(String);

impl Hint for CommandHint {
    fn display(&self) -> &str {
        &self.0
    }

    /// Tab completes.
    fn completion(&self) -> Option<&str> {
        None
    }
}

impl Hinter for Keys {
    type Hint = CommandHint;

    fn hint(&self, line: &str, at: usize, _: &Context<'_>) -> Option<CommandHint> {
        let room = terminal_columns().saturating_sub(PROMPT.len() + line.len());
        let hint = command::command_hint(line).filter(|_| at == line.len())?;
        Some(CommandHint(cut_line(&hint, room)))
    }
}

impl Highlighter for Keys {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        self.paint.cyan(prompt).into()
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        self.paint.dim(hint).into()
    }

    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        lock(&self.state).pastes.paint_marks(line, |mark| self.paint.dim(mark)).into()
    }
}

impl Completer for Keys {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = &line[..at];
        if let Some(begun) = begun.strip_prefix(MODEL) {
            let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok((
                MODEL.len(),
                models.iter().filter(|name| name.starts_with(begun)).cloned().collect(),
            ));
        }
        if let Some(found) = complete_mention(begun, &self.root) {
            return Ok(found);
        }
        let names = if begun.starts_with('/') { command::matching_commands(begun) } else { Vec::new() };
        Ok((0, names.into_iter().map(|name| format!("{name} ")).collect()))
    }
}

impl Validator for Keys {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = context.input().ends_with('\\');
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_backslash_joins_lines() {
        assert_eq!(without_continuations("a\\\nb\nc \\d"), "a\nb\nc \\d");
    }

    #[test]
    fn only_a_burst_may_have_a_rest() {
        let begun = Instant::now();
        let check = |keys: &[(bool, u64)], expected: bool| {
            let mut pace = Pace::default();
            keys.iter().for_each(|&(enter, at)| pace.take_key(enter, begun + Duration::from_millis(at)));
            assert_eq!(pace.is_burst, expected, "{keys:?}");
        };
        check(&[(false, 0), (false, 1), (true, 2)], true);
        check(&[(false, 0), (true, 90)], false);
        check(&[(true, 0)], false);
        check(&[(false, 0), (false, 1)], false);
    }

    #[test]
    fn commands_are_completed_and_words_are_not() {
        let models = Arc::new(Mutex::new(vec!["glm-air".to_owned(), "gpt-oss-20b".to_owned()]));
        let keys = Keys { paint: Paint(false), models, root: "/".into(), state: Arc::default() };
        let history = FileHistory::new();
        let complete = |line: &str| keys.complete(line, line.len(), &Context::new(&history)).unwrap().1;
        assert_eq!(complete("/mo"), ["/model "]);
        assert_eq!(complete("/model gl"), ["glm-air"]);
        assert_eq!(complete("mo"), Vec::<String>::new());
        assert_eq!(complete("is @et"), ["@etc/"]);
    }
}
