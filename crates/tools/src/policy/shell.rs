//! Reads a plain shell command: words, quotes and operators. It rejects anything that could make the shell
//! evaluate something (`$`, backticks, comments, open quotes). Pure. Used by `command`.

/// The operators that join or redirect commands.
pub(super) const OPERATORS: [char; 8] = [';', '&', '|', '<', '>', '(', ')', '\n'];

/// Longer commands are not read: the time for it may grow with the square.
const LONGEST: usize = 32 << 10;

/// Stands for a space inside a word, so that a space in a text is always the end of a word.
const INNER_SPACE: char = '\u{1}';

/// One word of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// The word without its quotes: what the program gets.
    pub(super) text: String,
    /// The word for a shell: quoted parts in single quotes, the rest as it was written.
    pub(super) source: String,
    /// Whether a part of it was quoted or escaped.
    pub(super) is_quoted: bool,
    /// Whether the shell would expand it: an unquoted glob, brace or tilde.
    pub(super) expands: bool,
    /// For patterns: the positions of `*` in `text`, and whether each was quoted.
    pub(super) stars: Vec<(usize, bool)>,
}

/// The words between two operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) words: Vec<Word>,
    /// Whether there is white space before the first word, or only white space.
    pub(super) space_before: bool,
    /// Whether there is white space after the last word.
    pub(super) space_after: bool,
}

/// A command: parts, and the operators between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) parts: Vec<Part>,
    pub(super) operators: Vec<char>,
}

impl Part {
    /// Returns the words as one text, in which a space always ends a word.
    pub(super) fn text(&self) -> String {
        let words: Vec<String> = self.words.iter().map(|word| mark_inner_spaces(&word.text)).collect();
        words.join(" ")
    }
}

/// Replaces the spaces inside a word, as in [`Part::text`].
pub(super) fn mark_inner_spaces(word: &str) -> String {
    word.replace(' ', &INNER_SPACE.to_string())
}

/// Quotes a word for a shell.
pub(crate) fn quote_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[derive(Default)]
struct Reader {
    line: Line,
    part: Part,
    word: Option<Word>,
}

impl Reader {
    fn push_plain(&mut self, c: char) {
        let word = self.word.get_or_insert_default();
        if c == '*' {
            word.stars.push((word.text.len(), false));
        }
        word.expands |= "*?[]{}".contains(c) || (c == '~' && word.text.is_empty());
        word.text.push(c);
        // In some encodings a shell takes it for one character with the operator behind it.
        if c.is_ascii() { word.source.push(c) } else { word.source.push_str(&quote_word(&c.to_string())) }
    }

    fn push_quoted(&mut self, text: &str) {
        let word = self.word.get_or_insert_default();
        let stars = text.match_indices('*').map(|(at, _)| (word.text.len() + at, true));
        word.stars.extend(stars);
        word.text.push_str(text);
        word.source.push_str(&quote_word(text));
        word.is_quoted = true;
    }

    fn push_space(&mut self) {
        self.end_word();
        if self.part.words.is_empty() {
            self.part.space_before = true;
        }
        self.part.space_after = true;
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            self.part.words.push(word);
            self.part.space_after = false;
        }
    }

    fn push_operator(&mut self, c: char) {
        self.end_part();
        self.line.operators.push(c);
    }

    fn end_part(&mut self) {
        self.end_word();
        self.line.parts.push(std::mem::take(&mut self.part));
    }
}

/// Returns a command without what separates words around it.
pub(super) fn trim(command: &str) -> &str {
    command.trim_matches([' ', '\t', '\n'])
}

/// Reads a command; `None` if a shell might read it differently. Rules read commands so: `$` and backticks
/// are refused even where a shell takes them as they are, because programs may evaluate them.
pub(super) fn read_line(text: &str) -> Option<Line> {
    if text.contains(['$', '`']) { None } else { read_literal_line(text) }
}

/// Reads a command in which `$` and backticks are allowed where a shell takes them as they are: in single
/// quotes, after a backslash, and in a quoted here document (see [`read_here_document`]).
pub(super) fn read_literal_line(text: &str) -> Option<Line> {
    if text.contains(['\0', '\r', INNER_SPACE]) || text.len() > LONGEST {
        return None;
    }
    let mut reader = Reader::default();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => reader.push_quoted(&read_single_quoted(&mut chars)?),
            '"' => reader.push_quoted(&read_double_quoted(&mut chars)?),
            '\\' => match chars.next()? {
                // Shells join the lines.
                '\n' => {}
                c => reader.push_quoted(&c.to_string()),
            },
            '#' if reader.word.is_none() => return None,
            '$' | '`' => return None,
            ' ' | '\t' => reader.push_space(),
            c if OPERATORS.contains(&c) => reader.push_operator(c),
            // Other white space is a part of words for some shells, and separates them for others.
            c if c.is_whitespace() || c.is_control() => return None,
            c => reader.push_plain(c),
        }
    }
    reader.end_part();
    Some(reader.line)
}

fn read_single_quoted(chars: &mut std::str::Chars<'_>) -> Option<String> {
    let (inside, rest) = chars.as_str().split_once('\'')?;
    *chars = rest.chars();
    Some(inside.to_owned())
}

fn read_double_quoted(chars: &mut std::str::Chars<'_>) -> Option<String> {
    if chars.as_str().starts_with('$') {
        return read_here_document(chars);
    }
    let mut text = String::new();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '$' | '`' => return None,
            '\\' => match chars.next()? {
                '\n' => {}
                c @ ('"' | '\\' | '$' | '`') => text.push(c),
                c => text.extend(['\\', c]),
            },
            c => text.push(c),
        }
    }
}

/// Reads the rest of `"$(cat <<'WORD'`, as models write messages of several lines: the lines up to `WORD`,
/// taken as they are and without empty ones at their end, and the closing `)"`.
fn read_here_document(chars: &mut std::str::Chars<'_>) -> Option<String> {
    let rest = chars.as_str().strip_prefix("$(cat <<'")?;
    let (end, rest) = rest.split_once("'\n")?;
    (!end.is_empty() && end.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())).then_some(())?;
    let text: String =
        rest.split_inclusive('\n').take_while(|line| line.strip_suffix('\n') != Some(end)).collect();
    let after = rest[text.len()..].strip_prefix(end)?.trim_start().strip_prefix(")\"")?;
    *chars = after.chars();
    Some(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Option<Vec<String>> {
        let line = read_line(text)?;
        line.operators.is_empty().then(|| line.parts[0].words.iter().map(|word| word.text.clone()).collect())
    }

    #[test]
    fn words_are_what_a_shell_makes_of_them() {
        for text in [
            "git status",
            "  a\tb  ",
            r#"a 'b c' "d e" f\ g"#,
            r#"'a'"b"c ''"#,
            r#""a\"b\\c\n" 'x\y'"#,
            "a#b 'c#d' e\\#f",
            "x 'new\nline' y",
            r"a\*b '*' x=1 !",
            "a \\\n  b\\\nc 'd\\\ne'",
        ] {
            let script = format!("printf '%s\\0' {text}");
            let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            let by_shell = String::from_utf8(output.stdout).unwrap();
            let by_shell: Vec<&str> = by_shell.split_terminator('\0').collect();
            assert_eq!(words(text).unwrap(), by_shell, "{text}");
        }
    }

    #[test]
    fn what_a_shell_would_evaluate_is_not_read() {
        for text in ["a $b", "a `b`", "'$'", "'`'", "a 'b", "a \"b", "a \\", "a #b", "#", "a\rb", "a\u{a0}b"]
        {
            assert_eq!(read_line(text), None, "{text:?}");
        }
    }

    #[test]
    fn quoted_texts_are_read_as_a_shell_does() {
        for text in [
            "-m \"$(cat <<'EOF'\nOne `word`, $HOME, \"quoted\" \\n\n\nIt's (the) 2nd.\n\nEOF\n)\" x",
            "\"$(cat <<'E_1'\nE_1\n)\"",
            r#"'$a' '`b`' "\$c \`d\`" \$e"#,
        ] {
            let script = format!("printf '%s\\0' {text}");
            let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            let by_shell = String::from_utf8(output.stdout).unwrap();
            let line = read_literal_line(text).unwrap();
            let words: Vec<&str> = line.parts[0].words.iter().map(|word| word.text.as_str()).collect();
            assert_eq!(words, by_shell.split_terminator('\0').collect::<Vec<_>>(), "{text}");
            assert_eq!(read_line(text), None, "rules do not read it");
        }
        for text in [
            "$a",
            "`a`",
            "\"$a\"",
            "\"a `b`\"",
            "\"a$(cat <<'E'\nE\n)\"",
            "\"$(cat <<E\n$a\nE\n)\"",
            "\"$(cat <<'E'\na\n E\n)\"",
            "\"$(cat <<'E'\na\nE\n; x)\"",
            "\"$(cat <<'E'\na\nE\n) b\"",
            "\"$(cat <<''\na\n\n)\"",
            "\"$(cat <<'E'\na\nE)\"",
        ] {
            assert_eq!(read_literal_line(text), None, "{text:?}");
        }
    }

    #[test]
    fn operators_part_a_line() {
        let line = read_line("a 2>&1 | b && c").unwrap();
        assert_eq!(line.operators, ['>', '&', '|', '&', '&']);
        let texts: Vec<String> = line.parts.iter().map(Part::text).collect();
        assert_eq!(texts, ["a 2", "", "1", "b", "", "c"]);
        assert_eq!(read_line("'a b' c").unwrap().parts[0].text(), "a\u{1}b c");
    }
}
