//! Searches for marks in a text, and for the beginning of one at its end. Used by dialects, the scanner and
//! the filter of the reasoning.

/// The first of `marks` in `text`: where it stands and how long it is. Each search ends where the one before
/// found its mark, so put the likeliest first.
pub(crate) fn earliest(text: &str, marks: &[&str]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for mark in marks {
        let window = best.map_or(text.len(), |(at, _)| text.len().min(at + mark.len() - 1));
        if let Some(at) = memchr::memmem::find(&text.as_bytes()[..window], mark.as_bytes()) {
            best = Some((at, mark.len()));
        }
    }
    best
}

/// The length of the longest suffix that is a proper prefix of a mark.
pub(crate) fn partial_suffix(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let bytes = text.as_bytes();
    let partial = |length: &usize| {
        let suffix = &bytes[bytes.len() - length..];
        marks.iter().any(|mark| mark.len() > *length && mark.as_bytes().starts_with(suffix))
    };
    (1..longest.min(bytes.len() + 1)).rev().find(partial).unwrap_or(0)
}
