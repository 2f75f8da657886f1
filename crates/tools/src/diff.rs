//! Unified diffs of two texts, for people. `imara-diff` compares the lines. Called by `tools` and `cli`.

use std::fmt;

use imara_diff::{Algorithm, Diff, InternedInput, Interner, Token, UnifiedDiffConfig, UnifiedDiffPrinter};

/// The most lines that are compared, from the first to the last one that differs. The library's time grows
/// with the square of lines that occur often.
const MOST_COMPARED: usize = 10_000;

/// Returns the changes between two texts, with three lines around each; empty when there are none. `name` is
/// the name of both texts. A very long different part counts as one change.
pub fn unified_diff(name: &str, before: &str, after: &str) -> String {
    let input = InternedInput::new(before, after);
    let lines = Lines(&input.interner);
    let hunks = one_change(&lines, &input).unwrap_or_else(|| {
        let mut diff = Diff::compute(Algorithm::Histogram, &input);
        diff.postprocess_lines(&input);
        diff.unified_diff(&lines, UnifiedDiffConfig::default(), &input).to_string()
    });
    if hunks.is_empty() { hunks } else { format!("--- {name}\n+++ {name}\n{hunks}") }
}

/// Returns the part in which two long texts differ, as one change; `None` if it is short enough to be
/// compared.
fn one_change(lines: &Lines<'_>, input: &InternedInput<&str>) -> Option<String> {
    let (before, after) = (&input.before, &input.after);
    let start = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (before, after) = (&before[start..], &after[start..]);
    let end = before.iter().rev().zip(after.iter().rev()).take_while(|(one, other)| one == other).count();
    let (removed, added) = (&before[..before.len() - end], &after[..after.len() - end]);
    if removed.len().max(added.len()) <= MOST_COMPARED {
        return None;
    }
    let [start, old, new] =
        [start, removed.len(), added.len()].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let mut text = String::new();
    let written = lines.display_header(&mut text, start, start, old, new);
    written.and_then(|()| lines.display_hunk(&mut text, removed, added)).ok().map(|()| text)
}

/// Writes lines as `diff -u` does, including a last line without a line break.
struct Lines<'a>(&'a Interner<&'a str>);

impl Lines<'_> {
    fn write_line(&self, out: &mut impl fmt::Write, sign: char, token: Token) -> fmt::Result {
        let line = self.0[token];
        match line.strip_suffix('\n') {
            Some(line) => writeln!(out, "{sign}{line}"),
            None => writeln!(out, "{sign}{line}\n\\ No newline at end of file"),
        }
    }
}

impl UnifiedDiffPrinter for Lines<'_> {
    fn display_header(
        &self,
        mut out: impl fmt::Write,
        start_before: u32,
        start_after: u32,
        len_before: u32,
        len_after: u32,
    ) -> fmt::Result {
        let [before, after] =
            [(start_before, len_before), (start_after, len_after)].map(|(start, length)| {
                // Lines are counted from one. An empty range is named by the line before it, and a single
                // line by its number alone.
                match length {
                    0 => format!("{start},0"),
                    1 => (start + 1).to_string(),
                    _ => format!("{},{length}", start + 1),
                }
            });
        writeln!(out, "@@ -{before} +{after} @@")
    }

    fn display_context_token(&self, mut out: impl fmt::Write, token: Token) -> fmt::Result {
        self.write_line(&mut out, ' ', token)
    }

    fn display_hunk(&self, mut out: impl fmt::Write, before: &[Token], after: &[Token]) -> fmt::Result {
        before.iter().try_for_each(|token| self.write_line(&mut out, '-', *token))?;
        after.iter().try_for_each(|token| self.write_line(&mut out, '+', *token))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn changes_stand_among_their_lines() {
        insta::assert_snapshot!(unified_diff("a.txt", "1\n2\n3\n4\n5\n6\n", "1\n2\n3\nfour\n5\n6"), @r"
        --- a.txt
        +++ a.txt
        @@ -1,6 +1,6 @@
         1
         2
         3
        -4
        +four
         5
        -6
        +6
        \ No newline at end of file
        ");
        insta::assert_snapshot!(unified_diff("new", "", "x\n"), @r"
        --- new
        +++ new
        @@ -0,0 +1 @@
        +x
        ");
        assert_eq!(unified_diff("same", "x\n", "x\n"), "");
    }

    #[test]
    fn unrelated_texts_are_compared_quickly() {
        let text = |sign: char| {
            let lines: Vec<String> = (0..60_000).map(|line| format!("{sign}{}", line % 977)).collect();
            lines.join("\n")
        };
        let began = Instant::now();
        assert!(unified_diff("all", &text('a'), &text('b')).len() > 100_000);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    /// `git apply` turns one text into the other, and texts of a few distinct lines do not take long.
    #[test]
    fn a_long_different_part_is_one_change() {
        let began = Instant::now();
        let (before, after) = ("a\nb\n".repeat(200_000), "b\na\na\n".repeat(150_000));
        let (before, after) = (format!("first\n{before}last\n"), format!("first\n{after}last\n"));
        let diff = unified_diff("file", &before, &after);
        assert!(diff.contains("@@ -2,400000 +2,450000 @@\n-a\n-b\n"), "{}", &diff[..200]);
        assert!(began.elapsed() < Duration::from_secs(20));
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("file", &before);
        write("diff", &diff);
        let mut git = std::process::Command::new("git");
        assert!(
            git.args(["apply", "--unidiff-zero", "-p0", "diff"])
                .current_dir(folder.path())
                .status()
                .unwrap()
                .success()
        );
        assert!(std::fs::read_to_string(folder.path().join("file")).unwrap() == after);
    }
}
