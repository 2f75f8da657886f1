//! Unified diffs of two texts, for people. `diffy` compares the lines. Called by `tools` and `cli`.

use diffy::{DiffOptions, PatchFormatter};

/// The most lines that are compared, from the first to the last one that differs. The library's time grows
/// with the square of their number.
const MOST_COMPARED: usize = 4_000;
/// The longest diff that is kept or shown, in bytes.
const LONGEST_DIFF: usize = 64 << 10;

/// Returns the changes between two texts, with three lines around each; empty when there are none. `name` is
/// the name of both texts. A very long different part counts as one change.
pub fn unified_diff(name: &str, before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    one_change(name, before, after).unwrap_or_else(|| {
        let mut options = DiffOptions::new();
        let patch = options.set_original_filename(name.to_owned()).set_modified_filename(name.to_owned());
        let patch = patch.create_patch(before, after);
        PatchFormatter::new().suppress_blank_empty(false).fmt_patch(&patch).to_string()
    })
}

/// Returns the part in which two long texts differ, as one change; `None` if it is short enough to be
/// compared.
fn one_change(name: &str, before: &str, after: &str) -> Option<String> {
    let [before, after] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let start = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
    let (before, after) = (&before[start..], &after[start..]);
    let end = before.iter().rev().zip(after.iter().rev()).take_while(|(one, other)| one == other).count();
    let (removed, added) = (&before[..before.len() - end], &after[..after.len() - end]);
    if removed.len().max(added.len()) <= MOST_COMPARED {
        return None;
    }
    // Lines are counted from one. An empty range is named by the line before it.
    let [old, new] =
        [removed, added].map(|lines| format!("{},{}", start + usize::from(!lines.is_empty()), lines.len()));
    let mut text = format!("--- {name}\n+++ {name}\n@@ -{old} +{new} @@\n");
    for (sign, line) in removed.iter().map(|line| ('-', line)).chain(added.iter().map(|line| ('+', line))) {
        text.push(sign);
        text.push_str(line);
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
    Some(text)
}

/// Shortens a diff that is kept or shown.
pub(super) fn shorten_diff(mut diff: String) -> String {
    if diff.len() > LONGEST_DIFF {
        diff.truncate(diff.floor_char_boundary(LONGEST_DIFF));
        diff.push_str("\n[the rest of this diff is left out]\n");
    }
    diff
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
