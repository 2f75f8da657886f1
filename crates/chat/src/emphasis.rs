//! Makes the emphasis of a line of Markdown clear for the renderer, which takes each `*` for a mark and no
//! `_`: other signs are escaped, and `_so_` becomes `*so*`. Pure.

/// A run of `*` or `_`, by its place in the line.
struct Run {
    start: usize,
    length: usize,
    mark: char,
    can_open: bool,
    can_close: bool,
    is_paired: bool,
}

/// Returns the line with marks that the renderer understands as they are meant.
pub(super) fn with_clear_emphasis(line: &str) -> String {
    let mut runs = find_runs(line);
    pair_runs(&mut runs, line);
    let (mut out, mut written) = (String::with_capacity(line.len()), 0);
    for run in runs {
        out.push_str(&line[written..run.start]);
        written = run.start + run.length;
        match (run.is_paired, run.mark) {
            (true, _) => out.push_str(&"*".repeat(run.length)),
            (false, '*') => out.push_str(&r"\*".repeat(run.length)),
            (false, _) => out.push_str(&line[run.start..written]),
        }
    }
    out + &line[written..]
}

/// Finds the runs outside of code, without the mark of a list and escaped signs.
fn find_runs(line: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let text = line.trim_start();
    let mut at = if text.starts_with("* ") { line.len() - text.len() + 1 } else { 0 };
    while let Some(found) = line[at..].find(['*', '_', '`', '\\']) {
        let start = at + found;
        let mark = line[start..].chars().next().unwrap_or_default();
        let length = line[start..].chars().take_while(|c| *c == mark).count();
        at = start + length;
        match mark {
            '\\' => at = start + 1 + line[start + 1..].chars().next().map_or(0, char::len_utf8),
            '`' => at = line[at..].find(&"`".repeat(length)).map_or(at, |end| at + end + length),
            _ => {
                let (before, after) = (line[..start].chars().next_back(), line[at..].chars().next());
                let is_space = |c: Option<char>| c.is_none_or(char::is_whitespace);
                let is_inside = |c: Option<char>| mark == '_' && c.is_some_and(char::is_alphanumeric);
                let can_open = !is_space(after) && !is_inside(before);
                // A dot or the like within a name: `__init__.py`.
                let behind =
                    after.filter(char::is_ascii_punctuation).and_then(|_| line[at + 1..].chars().next());
                let can_close = !is_space(before) && !is_inside(after) && !is_inside(behind);
                // A product: `2*3*4`.
                let is_sign = mark == '*'
                    && length == 1
                    && [before, after].iter().all(|c| c.is_some_and(|c| c.is_ascii_alphanumeric()));
                let can_open = can_open && !is_sign;
                runs.push(Run { start, length, mark, can_open, can_close, is_paired: false });
            }
        }
    }
    runs
}

/// Pairs runs of one length that open and close emphasis, within a cell if the line is of a table.
fn pair_runs(runs: &mut [Run], line: &str) {
    let is_row = line.trim_start().starts_with('|');
    let mut open: Vec<usize> = Vec::new();
    for index in 0..runs.len() {
        let run = &runs[index];
        let fits = |opener: &usize| {
            let other = &runs[*opener];
            let between = &line[other.start..run.start];
            other.mark == run.mark && other.length == run.length && !(is_row && between.contains('|'))
        };
        let opener = if run.can_close { open.iter().rposition(fits) } else { None };
        match opener {
            Some(place) => {
                runs[open[place]].is_paired = true;
                runs[index].is_paired = true;
                open.truncate(place);
            }
            None if run.can_open && run.length <= 3 => open.push(index),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the product lost its signs.
    #[test]
    fn only_emphasis_is_marked() {
        for (line, expected) in [
            ("2 * 3 * 4", r"2 \* 3 \* 4"),
            ("2*3*4 = 24, *un*heard, 合計*違い*です", r"2\*3\*4 = 24, *un*heard, 合計*違い*です"),
            ("**bold** and *it*, ***both***", "**bold** and *it*, ***both***"),
            (
                "_it_ and __bold__, snake_case_name __init__.py",
                "*it* and **bold**, snake_case_name __init__.py",
            ),
            ("5 *6, a** and *", r"5 \*6, a\*\* and \*"),
            ("* an *item* of a list", "* an *item* of a list"),
            ("`a * b` and ``c * `d` ``", "`a * b` and ``c * `d` ``"),
            (r"\* stays, \_ too", r"\* stays, \_ too"),
            ("| a * b | **c** | *d | e* |", r"| a \* b | **c** | \*d | e\* |"),
            ("**not *closed**", r"**not \*closed**"),
            ("plain", "plain"),
        ] {
            assert_eq!(with_clear_emphasis(line), expected, "{line}");
        }
    }
}
