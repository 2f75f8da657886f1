//! Server-sent events: cuts a byte stream into frames without changing their bytes, and writes frames.
//!
//! A frame is the text between two blank lines. A general SSE parser gives decoded events; here the bytes
//! matter, because a frame that needs no change is forwarded untouched. Lines may end with LF, CRLF or CR
//! (WHATWG HTML, section 9.2). Called by `relay`.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memchr2;
use simdutf8::basic::Utf8Error;

/// An error: a frame is larger than the limit, so its sender is broken or does not send events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTooLong;

/// Collects pieces of a byte stream and returns whole frames.
#[derive(Debug)]
pub struct Frames {
    bytes: Bytes,
    /// The progress through `bytes`: the start of the last line, and the place where the search for its end
    /// continues.
    line_start: usize,
    searched: usize,
    limit: usize,
    first: bool,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The bytes as received, with the blank line.
    pub bytes: Bytes,
}

impl Frames {
    /// Begins a stream. `limit`: the most bytes of a frame.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Bytes::new(), line_start: 0, searched: 0, limit, first: true }
    }

    /// Begins another stream with the same limit.
    #[must_use]
    pub fn with_same_limit(&self) -> Self {
        Self::new(self.limit)
    }

    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: Bytes) {
        if self.bytes.is_empty() {
            self.bytes = piece;
            return;
        }
        // After a first copy the bytes have one owner, so a long frame is not copied again for each piece.
        let begun = std::mem::take(&mut self.bytes);
        let mut joined = begun.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        joined.extend_from_slice(&piece);
        self.bytes = joined.freeze();
    }

    /// Returns the next whole frame; `None` when more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameTooLong> {
        match self.frame_end() {
            // The limit also holds for a frame that arrived at once.
            Some(end) if end > self.limit => Err(FrameTooLong),
            Some(end) => {
                (self.line_start, self.searched) = (0, 0);
                let bytes = self.bytes.split_to(end);
                Ok(Some(self.strip_byte_order_mark(bytes)))
            }
            None if self.bytes.len() > self.limit => Err(FrameTooLong),
            None => Ok(None),
        }
    }

    /// Returns the offset behind the blank line that ends the first frame.
    fn frame_end(&mut self) -> Option<usize> {
        while let Some(found) = memchr2(b'\n', b'\r', &self.bytes[self.searched..]) {
            let line_end = self.searched + found;
            let mut next = line_end + 1;
            if self.bytes[line_end] == b'\r' {
                // A CR at the very end may be half of a CRLF: wait for what follows.
                self.searched = line_end;
                next += usize::from(*self.bytes.get(next)? == b'\n');
            }
            if line_end == self.line_start {
                return Some(next);
            }
            (self.line_start, self.searched) = (next, next);
        }
        self.searched = self.bytes.len();
        None
    }

    /// Returns the rest of a stream that has ended: a last frame without its blank line, if there is one.
    pub fn take_rest(&mut self) -> Option<Frame> {
        let rest = std::mem::take(&mut self.bytes);
        (!rest.iter().all(u8::is_ascii_whitespace)).then(|| self.strip_byte_order_mark(rest))
    }

    /// Removes the byte order mark that may precede the first frame.
    fn strip_byte_order_mark(&mut self, bytes: Bytes) -> Frame {
        let marked = std::mem::take(&mut self.first) && bytes.starts_with(b"\xef\xbb\xbf");
        Frame { bytes: if marked { bytes.slice(3..) } else { bytes } }
    }
}

impl Frame {
    /// Returns the payload, which is the joined `data` lines; `None` for a frame without data (comments, bare
    /// ids).
    ///
    /// # Errors
    /// When the bytes are not UTF-8, which the specification demands.
    pub fn data(&self) -> Result<Option<Cow<'_, str>>, Utf8Error> {
        let text = simdutf8::basic::from_utf8(&self.bytes)?;
        Ok(only_line(text).map(Cow::Borrowed).or_else(|| joined_lines(text)))
    }

    /// Returns true for one line of data and a blank line, which any client can read, even one that splits at
    /// LF and looks for `data: `. `data`: the payload, which is then all that stands between the two.
    pub fn is_plain(&self, data: &str) -> bool {
        let rest = self.bytes.strip_prefix(b"data: ").and_then(|line| line.get(data.len()..));
        matches!(rest, Some(b"\n\n" | b"\r\n\r\n"))
    }
}

/// Returns the payload of a frame with a single `data` line, as nearly all have.
fn only_line(frame: &str) -> Option<&str> {
    let line = frame.strip_prefix("data:")?;
    let (line, rest) = line.split_at(memchr2(b'\n', b'\r', line.as_bytes())?);
    matches!(rest, "\n\n" | "\r\n\r\n").then(|| line.strip_prefix(' ').unwrap_or(line))
}

fn joined_lines(frame: &str) -> Option<Cow<'_, str>> {
    let mut found: Option<Cow<'_, str>> = None;
    for line in frame.split(['\n', '\r']) {
        let Some(value) = line.strip_prefix("data:").or((line == "data").then_some("")) else { continue };
        let value = value.strip_prefix(' ').unwrap_or(value);
        found = Some(match found {
            None => Cow::Borrowed(value),
            Some(before) => Cow::Owned(format!("{before}\n{value}")),
        });
    }
    found
}

/// Writes one `data` frame.
pub fn write_data(out: &mut impl BufMut, payload: &str) {
    out.put_slice(b"data: ");
    out.put_slice(payload.as_bytes());
    out.put_slice(b"\n\n");
}

/// Writes one frame of a named event.
pub fn write_event(out: &mut impl BufMut, name: &str, payload: &str) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\n");
    write_data(out, payload);
}

/// The payload of the last frame of a chat completion stream.
pub const DONE: &str = "[DONE]";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(pieces: &[&[u8]]) -> Vec<String> {
        let mut frames = Frames::new(1000);
        let mut found = Vec::new();
        for piece in pieces {
            frames.push(Bytes::copy_from_slice(piece));
            while let Some(frame) = frames.next_frame().unwrap() {
                found.push(frame);
            }
        }
        found.extend(frames.take_rest());
        found.iter().map(|frame| frame.data().unwrap().unwrap_or("-".into()).into_owned()).collect()
    }

    #[test]
    fn every_line_ending_and_form() {
        assert_eq!(
            frames(&[b"data: a\n\ndata:b\r\n\r\n: note\n\ndata\rdata: c\r\rdata: d"]),
            ["a", "b", "-", "\nc", "d"]
        );
        assert_eq!(frames(&[b"\xef\xbb\xbfdata: a\n\n"]), ["a"]);
        assert_eq!(frames(&[b"\n\n  \n"]), ["-", "-"]);
    }

    #[test]
    fn a_plain_frame_is_one_line_of_data() {
        for (bytes, plain) in [
            ("data: a\n\n", true),
            ("data: a\r\n\r\n", true),
            ("data:a\n\n", false),
            ("data: a\r\r", false),
            ("data: a\ndata: b\n\n", false),
            ("data: a\ndata:\n\n", false),
            ("data: a\n: note\n\n", false),
            ("id: 1\ndata: a\n\n", false),
            ("data: a", false),
        ] {
            let frame = Frame { bytes: bytes.into() };
            let data = frame.data().unwrap().unwrap();
            assert_eq!(frame.is_plain(&data), plain, "{bytes:?}");
        }
    }

    #[test]
    fn a_frame_without_end_is_refused() {
        let mut frames = Frames::new(10);
        frames.push(Bytes::from_static(b"data: 0123456789"));
        assert_eq!(frames.next_frame(), Err(FrameTooLong));
        frames.push(Bytes::from_static(b"\n\n"));
        assert_eq!(frames.next_frame(), Err(FrameTooLong), "with its end too");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_frames(cuts in prop::collection::vec(0usize..60, 0..8)) {
            let stream = "data: äö\r\n\r\n: hi\n\ndata: 1\ndata: 2\n\nevent: x\ndata: 3\r\rdata: [DONE]\n\n".as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut start = 0;
            for cut in cuts.into_iter().chain([stream.len()]) {
                pieces.push(&stream[start..cut]);
                start = cut;
            }
            prop_assert_eq!(frames(&pieces), frames(&[stream]));
        }
    }
}
