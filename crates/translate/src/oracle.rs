//! Checks a byte stream on its way to a client, for the fuzz target and the replay of its corpus. Compiled
//! only for them.
//!
//! A violation panics, as both expect.
#![allow(clippy::missing_panics_doc, reason = "to panic is what an oracle is for")]

use bytes::Bytes;
use serde_json::Value;

use super::{ChunkRules, ChunkVerdict, StreamState};
use wire::sse::{Frame, FrameTooLong, Frames};

/// Checks one input: a byte of options, one for the limit, two of cuts, and the stream.
pub fn check_stream(input: &[u8]) {
    let [flags, limit, one, two, stream @ ..] = input else { return };
    let limit = 16 + 8 * usize::from(*limit);
    let (frames, end) = cut(&[stream], limit);
    let bytes: Vec<&[u8]> = stream.iter().map(std::slice::from_ref).collect();
    assert_eq!(cut(&bytes, limit), (frames.clone(), end), "byte by byte: {stream:?}");
    let at = |cut: &u8| stream.len() * usize::from(*cut) / 256;
    let (low, high) = (at(one).min(at(two)), at(one).max(at(two)));
    let pieces = [&stream[..low], &stream[low..high], &stream[high..]];
    assert_eq!(cut(&pieces, limit), (frames.clone(), end), "as {pieces:?}");
    frames_are_the_stream(stream, &frames, end, limit);
    chunks_stay_whole(*flags, &frames);
}

/// Returns all frames up to the end of the stream, or to one that is too long.
fn cut(pieces: &[&[u8]], limit: usize) -> (Vec<Frame>, Result<(), FrameTooLong>) {
    let mut frames = Frames::new(limit);
    let mut found = Vec::new();
    for piece in pieces {
        frames.push(Bytes::copy_from_slice(piece));
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
    }
    found.extend(frames.take_rest());
    (found, Ok(()))
}

/// Checks that the frames have the stream's bytes, that each ends with its only blank line, and that none is
/// too long.
fn frames_are_the_stream(stream: &[u8], frames: &[Frame], end: Result<(), FrameTooLong>, limit: usize) {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let joined: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes.iter().copied()).collect();
    let rest = stream.strip_prefix(joined.as_slice());
    assert!(rest.is_some(), "{frames:?} of {stream:?}");
    let rest = rest.unwrap_or_default();
    assert!(end.is_err() || rest.iter().all(u8::is_ascii_whitespace), "{rest:?} is left of {stream:?}");
    let closed = &frames[..frames.len().saturating_sub(1)];
    for frame in closed {
        assert!(frame.bytes.len() <= limit, "{frame:?}");
        assert!(blank_lines(&frame.bytes) == vec![frame.bytes.len()], "{frame:?}");
    }
}

/// Returns the ends of the blank lines, by the specification: lines end with LF, CRLF or CR.
fn blank_lines(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut at, mut start) = (0, 0);
    while at < bytes.len() {
        let length = match (bytes[at], bytes.get(at + 1)) {
            (b'\r', Some(b'\n')) => 2,
            (b'\r' | b'\n', _) => 1,
            _ => 0,
        };
        if length > 0 && at == start {
            ends.push(at + length);
        }
        at += length.max(1);
        if length > 0 {
            start = at;
        }
    }
    ends
}

/// Checks that every JSON chunk is accepted and leaves as JSON. Other chunks have no requirement.
fn chunks_stay_whole(flags: u8, frames: &[Frame]) {
    let flag = |bit: u8| flags & (1 << bit) != 0;
    let reasoning = flag(0).then_some("reasoning_content");
    let keep = if flag(2) { vec!["stop_reason".to_owned()] } else { vec![] };
    let mut state =
        StreamState::new(ChunkRules { reasoning, usage: flag(1), keep, spent: wire::turn::Usage::default() });
    if flag(3) {
        state.set_sent_head("mine", 5, "m");
    }
    let mut sane = true;
    for frame in frames {
        let Ok(Some(payload)) = frame.data() else { continue };
        let object = serde_json::from_str::<Value>(&payload).is_ok_and(|value| value.is_object());
        let passed = state.judge_chunk(&payload);
        assert!(passed.is_ok() || !object, "{payload}");
        let changed = object && passed == Ok(ChunkVerdict::Changed);
        assert!(
            !changed || serde_json::from_str::<Value>(state.text()).is_ok(),
            "{payload} became {}",
            state.text()
        );
        sane &= object;
        let beat = state.heartbeat().filter(|_| sane);
        assert!(beat.is_none_or(|beat| serde_json::from_str::<Value>(&beat).is_ok()));
        state.take_missing_end();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// What fuzzing has found stays found.
    #[test]
    fn streams_hold_on_their_corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sse");
        let inputs: Vec<Vec<u8>> =
            fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        assert!(inputs.len() >= 20, "only {} inputs", inputs.len());
        inputs.iter().for_each(|input| check_stream(input));
    }
}
