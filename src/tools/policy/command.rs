//! Patterns for shell commands. A pattern without operators allows only a *simple* command: `git *` is not `git status; rm`.
//!
//! The reader here knows just enough of the shell's grammar to tell quoted text from operators. What it is not sure of
//! (substitutions, comments, open quotes) it does not read at all, and then no pattern with a `*` allows the command.

use regex::Regex;

use super::pattern::{starred, wildcard};

/// A pattern for command lines; `*` is any text, but never an operator.
#[derive(Debug)]
pub struct CommandPattern {
    text: String,
    /// The pattern between its operators, and those operators; `None` when it cannot be read.
    parts: Option<(Vec<Regex>, Vec<char>)>,
    /// Finds it at the start of any word, to the end.
    anywhere: Regex,
}

/// These join or redirect commands.
const OPERATORS: [char; 8] = [';', '&', '|', '<', '>', '(', ')', '\n'];

impl CommandPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is too large.
    pub fn new(pattern: &str) -> Result<Self, regex::Error> {
        let text = plain_ending(pattern).to_owned();
        let parts = match split(&text) {
            Some((parts, operators)) => {
                let parts: Result<_, _> = parts.iter().map(|part| wildcard(part.trim())).collect();
                Some((parts?, operators))
            }
            None => None,
        };
        let words = starred(&text).replace(' ', r"\s+");
        let anywhere = Regex::new(&format!(r#"(?s)(?:^|[\s"'`/(=]){words}[\s"')`]*$"#))?;
        Ok(Self { text, parts, anywhere })
    }

    /// For `allow`: the same operators in the same order, with matching text between them; or the very text of the pattern.
    pub fn allows(&self, command: &str) -> bool {
        let command = plain_ending(command);
        if !self.text.contains('*') && self.text == command {
            return true;
        }
        let (Some((patterns, expected)), Some((parts, operators))) = (&self.parts, split(command)) else {
            return false;
        };
        *expected == operators
            && patterns.iter().zip(&parts).all(|(pattern, part)| pattern.is_match(part.trim()))
    }

    /// For `deny` and `ask`: it begins at any word of any part, also inside quotes and with quotes taken away.
    pub(super) fn touches(&self, command: &str) -> bool {
        let unquoted: String = command.chars().filter(|c| !matches!(c, '"' | '\'' | '\\')).collect();
        [command, &unquoted].iter().any(|text| {
            let parts = text.split(|c| OPERATORS.contains(&c) || matches!(c, '`' | '$' | '{' | '}'));
            self.anywhere.is_match(text.trim())
                || parts.into_iter().any(|part| self.anywhere.is_match(part.trim()))
        })
    }
}

/// Without `2>&1` at the end, which changes nothing: both outputs are read as one anyway.
fn plain_ending(command: &str) -> &str {
    let command = command.trim();
    command.strip_suffix(" 2>&1").unwrap_or(command).trim_end()
}

/// The text between operators, and the operators. `None` for whatever this reader does not vouch for.
fn split(text: &str) -> Option<(Vec<&str>, Vec<char>)> {
    let (mut parts, mut operators) = (Vec::new(), Vec::new());
    let (mut start, mut quote, mut at_word_start) = (0, None, true);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (_, '\0' | '\r') | (None | Some('"'), '$' | '`') => return None,
            (None, '#') if at_word_start => return None,
            (None, '\\') => chars.next().filter(|(_, next)| *next != '\n').map(drop)?,
            (Some('"'), '\\') => chars.next().map(drop)?,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, _) if OPERATORS.contains(&c) => {
                parts.push(&text[start..at]);
                operators.push(c);
                start = at + c.len_utf8();
            }
            _ => {}
        }
        at_word_start = quote.is_none() && (c.is_whitespace() || OPERATORS.contains(&c));
    }
    parts.push(&text[start..]);
    quote.is_none().then_some((parts, operators))
}
