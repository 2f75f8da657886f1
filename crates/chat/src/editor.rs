//! The line editor: several lines by Alt-Enter, a trailing backslash or pasting; history; completion of
//! `/commands`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::completion::Completer;
use rustyline::config::Builder;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Context, DefaultEditor, Editor, Event, EventContext, EventHandler,
    Helper, KeyCode, KeyEvent, Modifiers, Movement, RepeatCount,
};

use super::command;
use super::paint::Paint;

pub(super) const PROMPT: &str = "❯ ";
/// The beginning of a line that chooses a model.
const MODEL: &str = "/model ";
const MOST_HISTORY: usize = 1_000;
/// The milliseconds after which Esc is a key of its own.
const ESC_ALONE: u16 = 50;

/// Names that a task learns while the person writes.
pub(super) type Names = Arc<Mutex<Vec<String>>>;

/// An input of the person.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A text.
    Text(String),
    /// Ctrl-C on an empty line.
    Interrupt,
    /// Ctrl-D, or the terminal has gone.
    End,
}

/// The editor with its history.
pub(super) struct Lines {
    editor: Editor<Keys, FileHistory>,
    history: PathBuf,
}

/// Returns settings with which Esc stands for itself, and not for the beginning of what comes later.
fn key_config() -> Builder {
    Config::builder().keyseq_timeout(Some(ESC_ALONE))
}

/// Reads one line after this prompt. Blocks.
pub(super) fn read_line(prompt: &str) -> Input {
    let editor = DefaultEditor::with_config(key_config().build());
    match editor.and_then(|mut editor| editor.readline(prompt)) {
        Ok(text) => Input::Text(text),
        Err(ReadlineError::Interrupted) => Input::Interrupt,
        Err(_) => Input::End,
    }
}

impl Lines {
    /// Opens the editor with the history in `state_dir`. The chat works without a history too. `models` are
    /// completed after `/model`.
    pub(super) fn open(state_dir: &Path, paint: Paint, models: Names) -> Result<Self, ReadlineError> {
        let config = key_config().max_history_size(MOST_HISTORY)?;
        let config = config.history_ignore_dups(true)?.auto_add_history(false).build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Keys { paint, models }));
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        editor.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        editor.bind_sequence(KeyEvent::ctrl('c'), EventHandler::Conditional(Box::new(Clear)));
        let history = state_dir.join("chat_history");
        let _ = editor.load_history(&history);
        Ok(Self { editor, history })
    }

    /// Waits for a complete input. `typed` stands in the prompt already. Blocks.
    pub(super) fn read_input(&mut self, typed: &str) -> Input {
        match self.editor.readline_with_initial(PROMPT, (typed.trim_end_matches('\n'), "")) {
            Ok(text) => {
                let text = without_continuations(&text);
                self.remember(&text);
                Input::Text(text)
            }
            Err(ReadlineError::Interrupted) => Input::Interrupt,
            Err(_) => Input::End,
        }
    }

    fn remember(&mut self, text: &str) {
        if !text.trim().is_empty() && self.editor.add_history_entry(text).unwrap_or(false) {
            let _ = self
                .editor
                .append_history(&self.history)
                .or_else(|_| self.editor.save_history(&self.history));
            let _ = fs::set_permissions(&self.history, fs::Permissions::from_mode(0o600));
        }
    }
}

/// Removes the backslashes that only continue a line.
fn without_continuations(text: &str) -> String {
    text.replace("\\\n", "\n")
}

/// Ctrl-C discards a line; on an empty line it means that the person wants to leave.
struct Clear;

impl ConditionalEventHandler for Clear {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        (!context.line().is_empty()).then_some(Cmd::Kill(Movement::WholeBuffer))
    }
}

struct Keys {
    paint: Paint,
    models: Names,
}

impl Helper for Keys {}

impl Hinter for Keys {
    type Hint = String;
}

impl Highlighter for Keys {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> std::borrow::Cow<'b, str> {
        self.paint.cyan(prompt).into()
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
    fn commands_are_completed_and_words_are_not() {
        let models = Arc::new(Mutex::new(vec!["glm-air".to_owned(), "gpt-oss-20b".to_owned()]));
        let keys = Keys { paint: Paint(false), models };
        let history = FileHistory::new();
        let complete = |line: &str| keys.complete(line, line.len(), &Context::new(&history)).unwrap().1;
        assert_eq!(complete("/mo"), ["/model "]);
        assert_eq!(complete("/model gl"), ["glm-air"]);
        assert_eq!(complete("mo"), Vec::<String>::new());
    }
}
