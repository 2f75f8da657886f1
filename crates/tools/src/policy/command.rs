//! Patterns for shell commands. A pattern without operators allows only a *simple* command: `git *` is not
//! `git status; rm`.
//!
//! An allowed command runs exactly as it was read ([`Plan`]): a simple command without a shell, one with the
//! pattern's own operators in a shell that gets only quoted words and runs programs instead of its builtins.
//! The shell's own `printf`, `test` and `[` evaluate their arguments.

use regex::Regex;

use super::pattern::wildcard_expression;
use super::shell::{Line, OPERATORS, Part, Word, mark_inner_spaces, read_line, read_literal_line, trim};

/// A pattern for command lines; `*` is any text, but never an operator.
#[derive(Debug)]
pub struct CommandPattern {
    text: String,
    /// The pattern between its operators, and those operators; `None` when it cannot be read.
    parts: Option<(Vec<Regex>, Vec<char>)>,
    /// Matches the pattern from the start of any word to the end.
    anywhere: Regex,
}

/// Runs a program and never a builtin, with the variables set before it.
const ENV: &str = "/usr/bin/env";

/// The way to run a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// A program with its arguments, without a shell.
    Program(Vec<String>),
    /// A text for a shell.
    Shell(String),
}

impl CommandPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is too large.
    pub fn new(pattern: &str) -> Result<Self, regex::Error> {
        let text = plain_ending(pattern).to_owned();
        let parts = match read_line(&text).filter(is_runnable) {
            Some(line) => {
                let parts: Result<_, _> = line.parts.iter().map(part_expression).collect();
                Some((parts?, line.operators))
            }
            None => None,
        };
        let words = wildcard_expression(&text).replace(' ', r"\s+");
        let anywhere = Regex::new(&format!(r#"(?s)(?:^|[\s"'`/(=]){words}[\s"')`]*$"#))?;
        Ok(Self { text, parts, anywhere })
    }

    /// Returns true for a pattern that could allow something: one that can be read, or that is a whole
    /// command.
    pub(super) fn can_allow(&self) -> bool {
        self.parts.is_some() || !self.text.contains('*')
    }

    /// Checks an `allow`: the same operators in the same order, with matching words between them; or exactly
    /// the text of the pattern.
    pub fn allows(&self, command: &str) -> bool {
        self.command_plan(command).is_some()
    }

    /// Returns the way to run a command that this pattern allows; `None` if it does not allow it.
    pub(crate) fn command_plan(&self, command: &str) -> Option<Plan> {
        let command = plain_ending(command);
        if !self.text.contains('*') && self.text == command {
            return Some(Plan::Shell(command.to_owned()));
        }
        let (patterns, operators) = self.parts.as_ref()?;
        let line = read_line(command).filter(is_runnable).filter(|line| line.operators == *operators)?;
        let fits = patterns.iter().zip(&line.parts).all(|(pattern, part)| pattern.is_match(&part.text()));
        fits.then(|| plan_line(&line))
    }

    /// Checks a `deny` or `ask`: the pattern may begin at any word of any part, also inside quotes and with
    /// quotes removed.
    pub(super) fn touches(&self, command: &str) -> bool {
        let unquoted: String = command.chars().filter(|c| !matches!(c, '"' | '\'' | '\\')).collect();
        [command, &unquoted].iter().any(|text| {
            let parts = text.split(|c| OPERATORS.contains(&c) || matches!(c, '`' | '$' | '{' | '}'));
            self.anywhere.is_match(text.trim())
                || parts.into_iter().any(|part| self.anywhere.is_match(part.trim()))
        })
    }
}

/// Returns the words of a command that is one program with its arguments: no operators except `2>&1` at the
/// end, nothing that a shell would expand or evaluate, no variables set before it. `None` for any other
/// command.
pub fn plain_words(command: &str) -> Option<Vec<String>> {
    match read_literal_line(plain_ending(command)).filter(is_runnable).map(|line| plan_line(&line))? {
        Plan::Program(words) if words.first().is_some_and(|first| first != ENV) => Some(words),
        _ => None,
    }
}

/// One command of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedCommand {
    /// The command as a text for a shell.
    pub text: String,
    /// Whether it runs even if the one before it has failed: `;` or a new line is between them, not `&&`.
    pub runs_anyway: bool,
}

/// Returns the commands of a line that are joined by `&&`, `;` or new lines. `None` for a line with other
/// operators except pipes, and for one that cannot be read.
pub fn command_list(line: &str) -> Option<Vec<ListedCommand>> {
    let line = read_literal_line(trim(line)).filter(is_runnable)?;
    let mut commands = vec![ListedCommand::default()];
    let mut index = 0;
    while let Some(part) = line.parts.get(index) {
        let words: Vec<&str> = part.words.iter().map(|word| word.source.as_str()).collect();
        let spaces = [part.space_before, part.space_after].map(|is_there| if is_there { " " } else { "" });
        let last = &mut commands.last_mut()?.text;
        last.extend([spaces[0], &words.join(" "), spaces[1]]);
        let is_target = |at: usize| word_position(&line, at) == Position::Target;
        // A shell wants a word behind these.
        let lacks_word =
            part.words.is_empty() && index > 0 && matches!(line.operators[index - 1], '|' | '<' | '>');
        let operator = line.operators.get(index).copied();
        // `>>` and `<>` are one.
        let is_one = lacks_word && !line.operators[index - 1].eq(&'|') && *part == Part::default();
        match operator {
            // As after `&&`, and a pipe goes on.
            Some('\n') if last.trim().is_empty() || last.trim_end().ends_with('|') => last.push(' '),
            Some('&' | '|') if is_target(index + 1) => last.push(line.operators[index]),
            Some('<' | '>') if is_one => last.push(line.operators[index]),
            _ if lacks_word => return None,
            Some('&') if line.operators.get(index + 1) == Some(&'&') && !is_target(index + 1) => {
                (line.parts[index + 1] == Part::default()).then_some(())?;
                commands.push(ListedCommand::default());
                index += 1;
            }
            Some(';' | '\n') => commands.push(ListedCommand { runs_anyway: true, ..Default::default() }),
            Some('|') if line.operators.get(index + 1) != Some(&'|') => last.push('|'),
            Some(operator @ ('<' | '>')) => last.push(operator),
            Some(_) => return None,
            None => {}
        }
        index += 1;
    }
    for command in &mut commands {
        command.text = command.text.trim().to_owned();
    }
    commands.pop_if(|last| last.runs_anyway && last.text.is_empty());
    (!commands.iter().any(|command| command.text.is_empty())).then_some(commands)
}

/// Returns the simple commands of a pipeline, each as its words (see [`plain_words`]) and without `2>&1`.
/// `None` for any other command.
pub fn parse_pipeline(command: &str) -> Option<Vec<Vec<String>>> {
    let line = without_merged_outputs(read_literal_line(trim(command))?);
    let is_pipeline = line.operators.iter().all(|operator| *operator == '|');
    let words = |part: Part| {
        let command = Line { parts: vec![part], operators: Vec::new() };
        match is_runnable(&command).then(|| plan_line(&command))? {
            Plan::Program(words) if words.first().is_some_and(|first| first != ENV) => Some(words),
            _ => None,
        }
    };
    is_pipeline.then(|| line.parts.into_iter().map(words).collect())?
}

/// Returns the words of each command of a line in which commands are only joined (`&&`, `||`, `;`, `|`).
/// Globs stay as they are written. `None` for any other line.
pub(crate) fn commands_of(line: &str) -> Option<Vec<Vec<String>>> {
    let line = without_merged_outputs(read_line(trim(line))?);
    let only_joins = line.operators.iter().all(|operator| matches!(operator, '&' | '|' | ';' | '\n'));
    let parts = line.parts.into_iter().filter(|part| !part.words.is_empty());
    let words = |part: Part| part.words.into_iter().map(|word| word.text).collect();
    only_joins.then(|| parts.map(words).collect())
}

/// Removes each `2>&1`: both outputs are read as one anyway, or go to the same pipe.
fn without_merged_outputs(mut line: Line) -> Line {
    while let Some(at) = (0..line.operators.len()).find(|at| merges_outputs(&line, *at)) {
        line.operators.drain(at..at + 2);
        line.parts.drain(at + 1..at + 3);
        line.parts[at].words.pop();
    }
    line
}

fn merges_outputs(line: &Line, at: usize) -> bool {
    let is = |part: &Part, text: &str| {
        part.words.last().is_some_and(|word| word.source == text) && (text == "2" || part.words.len() == 1)
    };
    line.operators.get(at..at + 2) == Some(&['>', '&'])
        && line.parts[at + 1] == Part::default()
        && is(&line.parts[at], "2")
        && !line.parts[at].space_after
        && is(&line.parts[at + 2], "1")
        && !line.parts[at + 2].space_before
}

/// Removes `2>&1` at the end, which has no effect: both outputs are read as one anyway.
fn plain_ending(command: &str) -> &str {
    let command = trim(command);
    trim(command.strip_suffix(" 2>&1").unwrap_or(command))
}

/// Returns the expression for the words of one part: a bare `*` is any text, a quoted one stays within its
/// word.
fn part_expression(part: &Part) -> Result<Regex, regex::Error> {
    let words: Vec<String> = part.words.iter().map(word_expression).collect();
    Regex::new(&format!("(?s)^{}$", words.join(" ")))
}

fn word_expression(word: &Word) -> String {
    let (mut out, mut from) = (String::new(), 0);
    for (at, is_quoted) in &word.stars {
        out.push_str(&regex::escape(&mark_inner_spaces(&word.text[from..*at])));
        out.push_str(if *is_quoted { "[^ ]*" } else { ".*" });
        from = at + 1;
    }
    out + &regex::escape(&mark_inner_spaces(&word.text[from..]))
}

/// The role of a part, by the operator before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// A program begins here.
    Program,
    /// A file, or the number of an open one.
    Target,
}

fn word_position(line: &Line, index: usize) -> Position {
    let is_redirection = |c: char| matches!(c, '<' | '>');
    let Some(last) = index.checked_sub(1) else { return Position::Program };
    let before = |at: usize| at.checked_sub(1).map(|before| line.operators[before]);
    match line.operators[last] {
        c if is_redirection(c) => Position::Target,
        // `>&` and `>|` are one operator each.
        '&' | '|' if before(last).is_some_and(is_redirection) && line.parts[last] == Part::default() => {
            Position::Target
        }
        _ => Position::Program,
    }
}

/// Returns true if each program is a plain word and nothing needs a shell: no subshells, no here documents.
fn is_runnable(line: &Line) -> bool {
    let adjacent =
        |at: usize| line.operators.get(at) == Some(&'<') && line.operators.get(at + 1) == Some(&'<');
    // In `> log 2>&1`, it belongs to the next operator.
    let is_number = |index: usize, word: &Word| {
        let is_next = matches!(line.operators.get(index), Some('<' | '>')) && !line.parts[index].space_after;
        is_next && word.source.chars().all(|c| c.is_ascii_digit())
    };
    let is_plain = |(index, part): (usize, &Part)| match (word_position(line, index), part.words.first()) {
        (_, None) => true,
        (Position::Target, Some(_)) => {
            part.words.len() == 1 || (part.words.len() == 2 && is_number(index, &part.words[1]))
        }
        (Position::Program, Some(_)) => program_word(part).is_some_and(is_program),
    };
    !line.operators.iter().any(|c| matches!(c, '(' | ')'))
        && !(0..line.operators.len()).any(adjacent)
        && line.parts.iter().enumerate().all(is_plain)
}

/// Returns the word that names the program: the first that sets no variable.
fn program_word(part: &Part) -> Option<&Word> {
    part.words.iter().find(|word| !is_assignment(word))
}

fn is_assignment(word: &Word) -> bool {
    word.source.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
    })
}

/// Returns true for a possible program. In a pattern it may contain a `*`.
fn is_program(word: &Word) -> bool {
    let other_than_star = |c: char| "?[]{}~=!".contains(c);
    !word.is_quoted && !word.text.contains(other_than_star)
}

fn plan_line(line: &Line) -> Plan {
    let words = || line.parts.iter().flat_map(|part| &part.words);
    if line.operators.is_empty() && !words().any(|word| word.expands) {
        let sets_variables = words().next().is_some_and(is_assignment);
        let env = if sets_variables { &[ENV, "--"][..] } else { &[] };
        let words = words().map(|word| word.text.clone());
        return Plan::Program(env.iter().map(|word| (*word).to_owned()).chain(words).collect());
    }
    let mut script = String::new();
    for (index, part) in line.parts.iter().enumerate() {
        if index > 0 {
            script.push(line.operators[index - 1]);
        }
        script.push_str(&part_source(part, word_position(line, index)));
    }
    Plan::Shell(script)
}

fn part_source(part: &Part, position: Position) -> String {
    let words: Vec<&str> = part.words.iter().map(|word| word.source.as_str()).collect();
    let space = |is_there: bool| if is_there { " " } else { "" };
    if words.is_empty() {
        return space(part.space_before || part.space_after).to_owned();
    }
    // Only the shell itself can change its directory; all others run as programs, even if the shell has a
    // builtin.
    let is_bare = position == Position::Target || words[0] == "cd";
    let env = if is_bare { String::new() } else { format!("{ENV} -- ") };
    format!("{}{env}{}{}", space(part.space_before), words.join(" "), space(part.space_after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_where_a_shell_would() {
        for (line, expected) in [
            ("git add -A && git commit -m 'a && b'", Some(vec!["git add -A", "git commit -m 'a && b'"])),
            ("echo x > a && git add a", Some(vec!["echo x > a", "git add a"])),
            ("make 2>&1 | tail -3 && ls", Some(vec!["make 2>&1 | tail -3", "ls"])),
            ("ls", Some(vec!["ls"])),
            ("a > 'b' 2>&1 && c", Some(vec!["a > 'b' 2>&1", "c"])),
            ("a > b 2 >&1", None),
            ("a > b c", None),
            ("a && b || c", None),
            ("a; b\nc &&\n d;", Some(vec!["a", "; b", "; c", "d"])),
            (
                "git add -A; git commit -m \"$(cat <<'EOF'\na; `b`\nEOF\n)\"",
                Some(vec!["git add -A", "; git commit -m 'a; `b`'"]),
            ),
            ("a |\nb && c", Some(vec!["a | b", "c"])),
            ("a |\n\n b", Some(vec!["a |   b"])),
            ("a | ; b", None),
            ("a | && b", None),
            ("a < > b; c", None),
            ("a | > b", None),
            ("a >> b; c", Some(vec!["a >> b", "; c"])),
            ("a > ; b", None),
            ("a >\nb", None),
            ("a |", None),
            ("a;; b", None),
            ("; a", None),
            ("a && ; b", None),
            ("a & b", None),
            ("a && $(b)", None),
            ("a && (b)", None),
            ("a & & b", None),
            ("a &&", None),
            ("&& a", None),
        ] {
            let expected: Option<Vec<String>> =
                expected.map(|all| all.into_iter().map(str::to_owned).collect());
            let shown = |it: ListedCommand| format!("{}{}", if it.runs_anyway { "; " } else { "" }, it.text);
            let found = command_list(line).map(|all| all.into_iter().map(shown).collect::<Vec<_>>());
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn pipelines_are_read_without_merged_outputs() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (command, expected) in [
            ("cargo test 2>&1 | tail -3", Some(vec![words("cargo test"), words("tail -3")])),
            ("cargo test 2>&1", Some(vec![words("cargo test")])),
            ("ls|wc", Some(vec![words("ls"), words("wc")])),
            ("echo 2 >&1", None),
            ("ls > a", None),
            ("ls 2>&1 x", None),
            ("ls 2> &1", None),
            ("ls || wc", None),
            ("X=1 ls", None),
        ] {
            assert_eq!(parse_pipeline(command), expected, "{command}");
        }
    }
}
