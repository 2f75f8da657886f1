//! Tables of Markdown before the renderer draws them: line breaks in cells, columns that fit the window, and
//! lists in place of a table that has too many of them. Pure.

use wire::visible::char_width;

/// The least width at which a column of a table can be read.
const READABLE: usize = 12;
/// The least width that the renderer gives to a column.
const LEAST: usize = 3;

/// Returns the cells of a row. A bar in code, or behind a backslash, separates none.
fn table_cells(line: &str) -> Vec<&str> {
    let line = line.trim().strip_prefix('|').unwrap_or(line.trim());
    let (mut cells, mut start, mut is_code, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if !is_code => is_escaped = true,
            '`' => is_code = !is_code,
            '|' if !is_code => {
                cells.push(line[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !line[start..].trim().is_empty() || cells.is_empty() {
        cells.push(line[start..].trim());
    }
    cells
}

fn is_rule(cells: &[&str]) -> bool {
    cells.iter().all(|cell| cell.contains('-') && cell.chars().all(|c| matches!(c, '-' | ':')))
}

/// Returns the rows that stand for one whose cells have several lines each.
fn write_rows(cells: &[Vec<String>]) -> Vec<String> {
    let line = |index: usize| {
        let parts = cells.iter().map(|parts| parts.get(index).map_or("", String::as_str));
        format!("| {} |", parts.collect::<Vec<_>>().join(" | "))
    };
    (0..cells.iter().map(Vec::len).max().unwrap_or(1)).map(line).collect()
}

/// Returns the rows of a table that a row with line breaks in its cells stands for.
pub(super) fn split_breaks(row: &str) -> Vec<String> {
    let row = row.replace("<br/>", "<br>").replace("<br />", "<br>");
    if !row.contains("<br>") {
        return vec![row];
    }
    let lines = |cell: &&str| cell.split("<br>").map(|line| line.trim().to_owned()).collect();
    write_rows(&table_cells(&row).iter().map(lines).collect::<Vec<_>>())
}

/// Returns the lines of a table that is too wide to be shown as one: each row as a list of its cells with
/// the names of the columns.
pub(super) fn table_records(table: &str, width: usize) -> Option<Vec<String>> {
    let mut rows = table.lines().map(table_cells);
    let (names, rule) = (rows.next()?, rows.next()?);
    let is_wide = table.lines().any(|line| line.chars().map(char_width).sum::<usize>() > width);
    if !is_wide || names.len() * READABLE <= width || !is_rule(&rule) {
        return None;
    }
    // A cell may contain a bar that is not a separator.
    let rows: Vec<Vec<&str>> = rows.collect();
    if rows.iter().flat_map(|row| row.iter().skip(names.len())).any(|cell| !cell.is_empty()) {
        return None;
    }
    let row = |row: Vec<&str>| {
        let cells = names.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        let lines: Vec<String> = cells.map(|(name, cell)| format!("* **{name}:** {cell}")).collect();
        std::iter::once("---".to_owned()).chain(lines)
    };
    Some(rows.into_iter().flat_map(row).collect())
}

/// Wraps the cells of a table that is wider than `width` columns. The renderer would cut short words in two
/// to make room for a column of sentences.
pub(super) fn fit_columns(rows: Vec<String>, width: usize) -> Vec<String> {
    let cells: Vec<Vec<&str>> = rows.iter().map(|row| table_cells(row)).collect();
    let Some(widths) = column_widths(&cells, width) else { return rows };
    let row = |(row, cells): (&String, &Vec<&str>)| {
        if is_rule(cells) {
            return vec![row.clone()];
        }
        let wrapped = cells.iter().zip(&widths).map(|(cell, width)| wrap_cell(cell, *width));
        write_rows(&wrapped.collect::<Vec<_>>())
    };
    rows.iter().zip(&cells).flat_map(row).collect()
}

/// Returns the widths at which the columns fit; `None` if they fit unwrapped, or not at all. No column is
/// narrower than its longest word while another is wider than its own.
fn column_widths(rows: &[Vec<&str>], width: usize) -> Option<Vec<usize>> {
    let count = rows.iter().map(Vec::len).max()?;
    let room = width.checked_sub(count + 1).filter(|room| *room >= count * LEAST)?;
    let (mut whole, mut widths) = (vec![LEAST; count], vec![LEAST; count]);
    for cells in rows.iter().filter(|cells| !is_rule(cells)) {
        for (column, cell) in cells.iter().enumerate() {
            let words = words_of(cell);
            let longest = words.iter().map(|word| columns(word)).max().unwrap_or(0);
            let all = words.iter().map(|word| columns(word) + 1).sum::<usize>().saturating_sub(1);
            whole[column] = whole[column].max(all);
            widths[column] = widths[column].max(longest);
        }
    }
    let sum = |widths: &[usize]| widths.iter().sum::<usize>();
    if sum(&whole) <= room {
        return None;
    }
    while sum(&widths) > room {
        let widest = widths.iter_mut().max()?;
        *widest -= 1;
    }
    // What is left goes to the columns that lack most.
    while sum(&widths) < room {
        let lacking = (0..count).filter(|column| whole[*column] > widths[*column]);
        let Some(column) = lacking.max_by_key(|column| whole[*column] * 100 / widths[*column]) else { break };
        widths[column] += 1;
    }
    Some(widths)
}

/// A piece of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// Begins or ends a style.
    Mark(&'a str),
    /// A sign, escaped or not, and its columns.
    Sign(&'a str, usize),
}

fn columns(word: &[Piece<'_>]) -> usize {
    word.iter().map(|piece| if let Piece::Sign(_, columns) = piece { *columns } else { 0 }).sum()
}

/// Returns the words of a cell.
fn words_of(cell: &str) -> Vec<Vec<Piece<'_>>> {
    let (mut words, mut word, mut is_code, mut at) = (Vec::new(), Vec::new(), false, 0);
    while let Some(c) = cell[at..].chars().next() {
        let run = cell[at..].chars().take_while(|other| *other == c).count();
        let escaped = cell[at + c.len_utf8()..].chars().next().filter(|sign| r"*~|`\".contains(*sign));
        let (piece, length) = match (c, escaped) {
            ('`', _) => {
                is_code = !is_code;
                (Piece::Mark(&cell[at..=at]), 1)
            }
            ('\\', Some(_)) if !is_code => (Piece::Sign(&cell[at..at + 2], 1), 2),
            ('*', _) if !is_code => (Piece::Mark(&cell[at..at + run.min(3)]), run.min(3)),
            ('~', _) if !is_code && run >= 2 => (Piece::Mark(&cell[at..at + 2]), 2),
            _ => (Piece::Sign(&cell[at..at + c.len_utf8()], char_width(c)), c.len_utf8()),
        };
        at += length;
        match piece {
            Piece::Sign(" ", _) => words.push(std::mem::take(&mut word)),
            piece => word.push(piece),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Wraps a cell between words, and a word that is too long within. Styles go on in the next line.
fn wrap_cell(cell: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<Vec<Piece<'_>>> = vec![Vec::new()];
    for word in words_of(cell) {
        let line = lines.last().map_or(0, |line| columns(line));
        if line > 0 && line + 1 + columns(&word) > width {
            lines.push(Vec::new());
        } else if line > 0 {
            lines.last_mut().into_iter().for_each(|line| line.push(Piece::Sign(" ", 1)));
        }
        for piece in word {
            let line = lines.last().map_or(0, |line| columns(line));
            if line > 0 && line + columns(&[piece]) > width {
                lines.push(Vec::new());
            }
            lines.last_mut().into_iter().for_each(|line| line.push(piece));
        }
    }
    let mut open: Vec<&str> = Vec::new();
    lines.iter().map(|line| write_line(line, &mut open)).collect()
}

/// Writes a line in which the styles that are `open` begin again, and end.
fn write_line<'a>(line: &[Piece<'a>], open: &mut Vec<&'a str>) -> String {
    let mut out = open.concat();
    for piece in line {
        match piece {
            Piece::Mark(mark) if open.last() == Some(mark) => drop(open.pop()),
            Piece::Mark(mark) => open.push(mark),
            Piece::Sign(..) => {}
        }
        let (Piece::Mark(text) | Piece::Sign(text, _)) = piece;
        out.push_str(text);
    }
    out.extend(open.iter().rev().copied());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(rows: &[&str], width: usize) -> Vec<String> {
        fit_columns(rows.iter().map(ToString::to_string).collect(), width)
    }

    /// Regression: next to a column of sentences, `1,234` was shown as `1,23` and `4`.
    #[test]
    fn words_and_numbers_stay_whole() {
        let rows =
            ["| Size | Notes |", "|---:|---|", "| 1,234 | a sentence of several words, all of them short |"];
        assert_eq!(
            fit(&rows, 28),
            [
                "| Size | Notes |",
                "|---:|---|",
                "| 1,234 | a sentence of |",
                "|  | several words, all |",
                "|  | of them short |"
            ]
        );
        assert_eq!(fit(&rows, 80), rows);
        let rows = ["| a | https://a.very.long.address/that/has/no/spaces |", "|---|---|", "| Größe | x |"];
        assert!(fit(&rows, 20).contains(&"| Größe | x |".to_owned()));
    }

    #[test]
    fn styles_go_on_in_the_next_line() {
        for (cell, expected) in [
            ("one **two three** four", &["one **two**", "**three**", "four"][..]),
            ("`a b` c", &["`a b` c"]),
            ("`abcdef ghi`", &["`abcdef`", "`ghi`"]),
            (r"a\|b \*c\* ~~dd ee~~", &[r"a\|b \*c\*", "~~dd ee~~"]),
            ("abcdefghijk", &["abcdefg", "hijk"]),
            ("漢字仮名文", &["漢字仮", "名文"]),
            ("", &[""]),
        ] {
            assert_eq!(wrap_cell(cell, 7), expected, "{cell}");
        }
    }

    #[test]
    fn bars_in_code_separate_no_cells() {
        assert_eq!(table_cells(r"| a\|b | `c|d` |"), [r"a\|b", "`c|d`"]);
        assert_eq!(table_cells("| a | |"), ["a", ""]);
        assert_eq!(table_cells("a"), ["a"]);
    }
}
