//! Searches for marks in a text, and for the beginning of one at its end. Used by dialects, the scanner and
//! the filter of the reasoning.

/// The part of a text that is searched first for all marks; each further part is this many times as long.
const FIRST_PART: usize = 4 << 10;
const LONGER: usize = 4;

/// Finds the first of `marks` in `text`: its place and its length. A missing mark costs at most a few times
/// the way to the one that is found, as a text may have thousands of marks.
pub(crate) fn find_earliest(text: &str, marks: &[&str]) -> Option<(usize, usize)> {
    let (mut from, mut to) = (0, FIRST_PART);
    loop {
        if let Some((at, length)) = find_earliest_before(&text.as_bytes()[from..], to - from, marks) {
            return Some((from + at, length));
        }
        if to >= text.len() {
            return None;
        }
        (from, to) = (to, to * LONGER);
    }
}

/// Finds the first of the marks that begin before a place. Each search ends where the one before found its
/// mark.
fn find_earliest_before(text: &[u8], place: usize, marks: &[&str]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for mark in marks {
        let before = best.map_or(place, |(at, _)| at);
        let window = text.len().min((before + mark.len()).saturating_sub(1));
        if let Some(at) = memchr::memmem::find(&text[..window], mark.as_bytes()) {
            best = Some((at, mark.len()));
        }
    }
    best
}

/// Returns the length of the longest suffix that is a proper prefix of a mark.
pub(crate) fn partial_suffix(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let bytes = text.as_bytes();
    let partial = |length: &usize| {
        let suffix = &bytes[bytes.len() - length..];
        marks.iter().any(|mark| mark.len() > *length && mark.as_bytes().starts_with(suffix))
    };
    (1..longest.min(bytes.len() + 1)).rev().find(partial).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mark_is_found_wherever_it_stands() {
        for before in [0, 1, FIRST_PART - 3, FIRST_PART - 1, FIRST_PART, FIRST_PART * LONGER - 2, 100_000] {
            let text = format!("{}<long><b><a>", " ".repeat(before));
            for marks in [&["<a>", "<b>", "<long>"][..], &["<long>", "<a>"], &["<c>", "<long>"]] {
                assert_eq!(find_earliest(&text, marks), Some((before, 6)), "{before} {marks:?}");
            }
            assert_eq!(find_earliest(&text, &["<a>"]), Some((before + 9, 3)));
            assert_eq!(find_earliest(&text, &["<c>"]), None);
        }
    }

    /// Each message was once searched to the end of the text for marks that it does not have.
    #[test]
    fn missing_marks_cost_little() {
        let text = "<a>".repeat(400_000);
        let mut place = 0;
        while let Some((at, length)) = find_earliest(&text[place..], &["<b>", "<a>", "<c>"]) {
            place += at + length;
        }
        assert_eq!(place, text.len());
    }
}
