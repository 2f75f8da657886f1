//! Two texts as a unified diff, for people who are to see what changes. The lines are compared by `imara-diff`, whose heuristics keep the
//! time bounded however different the texts are. Called by `tools` and `cli`.

use std::fmt;

use imara_diff::{Algorithm, Diff, InternedInput, Interner, Token, UnifiedDiffConfig, UnifiedDiffPrinter};

/// What changes between two texts, with three lines around each change; empty when nothing does. `name`: what the texts are called.
pub fn unified(name: &str, before: &str, after: &str) -> String {
    let input = InternedInput::new(before, after);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let hunks = diff.unified_diff(&Lines(&input.interner), UnifiedDiffConfig::default(), &input).to_string();
    if hunks.is_empty() { hunks } else { format!("--- {name}\n+++ {name}\n{hunks}") }
}

/// Writes lines as `diff -u` does, also one without a line break at its end.
struct Lines<'a>(&'a Interner<&'a str>);

impl Lines<'_> {
    fn line(&self, out: &mut impl fmt::Write, sign: char, token: Token) -> fmt::Result {
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
                // Lines are counted from one; of none of them the place before is named, and of one its number alone.
                match length {
                    0 => format!("{start},0"),
                    1 => (start + 1).to_string(),
                    _ => format!("{},{length}", start + 1),
                }
            });
        writeln!(out, "@@ -{before} +{after} @@")
    }

    fn display_context_token(&self, mut out: impl fmt::Write, token: Token) -> fmt::Result {
        self.line(&mut out, ' ', token)
    }

    fn display_hunk(&self, mut out: impl fmt::Write, before: &[Token], after: &[Token]) -> fmt::Result {
        before.iter().try_for_each(|token| self.line(&mut out, '-', *token))?;
        after.iter().try_for_each(|token| self.line(&mut out, '+', *token))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn changes_stand_among_their_lines() {
        insta::assert_snapshot!(unified("a.txt", "1\n2\n3\n4\n5\n6\n", "1\n2\n3\nfour\n5\n6"), @r"
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
        insta::assert_snapshot!(unified("new", "", "x\n"), @r"
        --- new
        +++ new
        @@ -0,0 +1 @@
        +x
        ");
        assert_eq!(unified("same", "x\n", "x\n"), "");
    }

    #[test]
    fn texts_that_have_nothing_in_common_take_no_long_time() {
        let text = |sign: char| {
            let lines: Vec<String> = (0..60_000).map(|line| format!("{sign}{}", line % 977)).collect();
            lines.join("\n")
        };
        let began = Instant::now();
        assert!(unified("all", &text('a'), &text('b')).len() > 100_000);
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
