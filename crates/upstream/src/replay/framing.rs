//! Chunked framing and SSE frames of a recorded body. Pure; works on slices of the capture, copies nothing.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;
use serde_json::Value;

/// Takes chunked framing apart, one piece per chunk. `Err` is the offset where it breaks.
pub(super) fn dechunk(body: &Bytes) -> Result<Vec<Bytes>, usize> {
    let mut pieces = Vec::new();
    let mut at = 0;
    loop {
        let line = memmem::find(&body[at..], b"\r\n").ok_or(at)?;
        let size = chunk_size(&body[at..at + line]).ok_or(at)?;
        let start = at + line + 2;
        let end = start.checked_add(size).ok_or(at)?;
        if body.get(end..end + 2) != Some(b"\r\n".as_slice()) {
            return Err(start);
        }
        if size == 0 {
            return if body.len() == end + 2 { Ok(pieces) } else { Err(end + 2) };
        }
        pieces.push(body.slice(start..end));
        at = end + 2;
    }
}

fn chunk_size(line: &[u8]) -> Option<usize> {
    let digits = line.split(|&byte| byte == b';').next()?;
    usize::from_str_radix(std::str::from_utf8(digits).ok()?.trim(), 16).ok()
}

/// Returns one piece per SSE frame; what follows the last blank line is the last piece.
pub(super) fn split_frames(body: &Bytes) -> Vec<Bytes> {
    event_ranges(body).into_iter().map(|frame| body.slice(frame)).collect()
}

/// Returns the pieces without the frames that carry nothing but usage.
pub(super) fn without_usage(pieces: &[Bytes]) -> Vec<Bytes> {
    let whole = pieces.concat();
    let dropped: Vec<Range<usize>> =
        event_ranges(&whole).into_iter().filter(|frame| is_usage_only(&whole[frame.clone()])).collect();
    let mut kept = Vec::with_capacity(pieces.len());
    let mut offset = 0;
    for piece in pieces {
        keep_outside(piece, offset, &dropped, &mut kept);
        offset += piece.len();
    }
    kept
}

/// Appends what of `piece`, which starts at `offset` of the whole, lies outside the `dropped` ranges.
fn keep_outside(piece: &Bytes, offset: usize, dropped: &[Range<usize>], kept: &mut Vec<Bytes>) {
    let within = |position: usize| position.saturating_sub(offset).min(piece.len());
    let mut at = 0;
    for range in dropped {
        if at < within(range.start) {
            kept.push(piece.slice(at..within(range.start)));
        }
        at = at.max(within(range.end));
    }
    if at < piece.len() {
        kept.push(piece.slice(at..));
    }
}

fn event_ranges(body: &[u8]) -> Vec<Range<usize>> {
    let mut frames = Vec::new();
    let mut start = 0;
    for blank in memmem::find_iter(body, b"\n\n") {
        frames.push(start..blank + 2);
        start = blank + 2;
    }
    if start < body.len() {
        frames.push(start..body.len());
    }
    frames
}

fn is_usage_only(frame: &[u8]) -> bool {
    let Some(data) = frame.strip_prefix(b"data:") else { return false };
    let Ok(chunk) = serde_json::from_slice::<Value>(data) else { return false };
    chunk["usage"].is_object() && chunk["choices"].as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"total_tokens\":1}}\n\n";
    const TEXT: &str = "data: {\"choices\":[{\"index\":0}],\"usage\":{\"total_tokens\":1}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn check_usage(pieces: &[&str], expected: &[&str]) {
        let pieces: Vec<Bytes> =
            pieces.iter().map(|piece| Bytes::copy_from_slice(piece.as_bytes())).collect();
        assert_eq!(without_usage(&pieces), expected);
    }

    #[test]
    fn chunks_come_apart_where_they_were() {
        let body = Bytes::from_static(b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n");
        assert_eq!(dechunk(&body), Ok(vec![Bytes::from_static(b"abc"), Bytes::from_static(b"0123456789")]));
    }

    #[test]
    fn broken_framing_names_its_place() {
        for (body, offset) in [
            ("", 0),
            ("3\r\nabc", 3),
            ("3\r\nabcd\r\n0\r\n\r\n", 3),
            ("zz\r\n", 0),
            ("1\r\na\r\n0\r\n\r\nmore", 11),
            ("FFFFFFFFFFFFFFFF\r\n", 0),
        ] {
            assert_eq!(dechunk(&Bytes::from_static(body.as_bytes())), Err(offset), "{body:?}");
        }
    }

    #[test]
    fn usage_frames_go_wherever_the_chunks_end() {
        check_usage(&[TEXT, USAGE, DONE], &[TEXT, DONE]);
        check_usage(&[&format!("{TEXT}{USAGE}{DONE}")], &[TEXT, DONE]);
        let (head, tail) = USAGE.split_at(9);
        check_usage(&[TEXT, head, tail, DONE], &[TEXT, DONE]);
        check_usage(&[&format!("{TEXT}{head}"), &format!("{tail}{DONE}")], &[TEXT, DONE]);
    }

    #[test]
    fn frames_that_carry_more_than_usage_stay() {
        check_usage(
            &[TEXT, ": keep-alive\n\n", "data: not json\n\n", DONE],
            &[TEXT, ": keep-alive\n\n", "data: not json\n\n", DONE],
        );
    }
}
