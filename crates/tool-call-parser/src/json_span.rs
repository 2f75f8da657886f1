//! Finds the end of a JSON-like value, byte by byte and resumable, so that a call can arrive in any number of
//! pieces.
//!
//! For valid JSON the result is exact. For the variants of models (single quotes, unescaped quotes, missing
//! closers, comments) it follows the same rules as `lenient_json`, which then reads the span. Used by the
//! dialects and `scanner`.

use memchr::memchr2;

/// The end of a value, as far as the text shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// The value is not finished yet.
    More,
    /// The value ends before this offset.
    Complete(usize),
    /// The byte at this offset cannot be part of a value, so the value stays incomplete.
    Stopped(usize),
}

/// The syntax of strings and brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// JSON as models write it.
    Json,
    /// Python call syntax: a quote always closes, parentheses count as brackets, and any byte may occur
    /// outside strings.
    Python,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Plain,
    Text(u8),
    LineComment,
    BlockComment,
}

/// The resumable state: feed it the same growing text.
#[derive(Clone, Debug)]
pub(crate) struct JsonSpan {
    style: Style,
    stack: Vec<u8>,
    inside: Inside,
    expects_key: bool,
    position: usize,
}

/// Bytes that may follow a quote that closes a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An object's key.
    Key,
    /// A value in an object.
    Member,
    /// A value in an array, or a string on its own.
    Item,
}

/// The bytes after a quote that are examined. Beyond them, the quote counts as closing.
const LOOKAHEAD: usize = 160;

impl JsonSpan {
    /// Begins a scan at `from`, the place of the opening bracket.
    pub(crate) fn new(from: usize, style: Style) -> Self {
        Self { style, stack: Vec::new(), inside: Inside::Plain, expects_key: false, position: from }
    }

    /// Returns true when the text ended inside a string: to close it would invent content.
    pub(crate) fn is_in_text(&self) -> bool {
        matches!(self.inside, Inside::Text(_))
    }

    /// Scans on to the end of `text`; `eof` says that no more will come.
    pub(crate) fn advance(&mut self, text: &str, eof: bool) -> Span {
        let bytes = text.as_bytes();
        while self.position < bytes.len() {
            let step = match self.inside {
                Inside::Plain => self.step_plain(bytes, eof),
                Inside::Text(quote) => self.skip_text(bytes, quote, eof),
                Inside::LineComment => self.skip_past(bytes, b"\n"),
                Inside::BlockComment => self.skip_past(bytes, b"*/"),
            };
            match step {
                Some(Span::More) => return Span::More,
                Some(end) => return end,
                None => {}
            }
        }
        Span::More
    }

    fn step_plain(&mut self, bytes: &[u8], eof: bool) -> Option<Span> {
        let byte = bytes[self.position];
        match byte {
            b'{' | b'[' => self.open_bracket(byte),
            b'(' if self.style == Style::Python => self.open_bracket(byte),
            b'}' | b']' => return self.close_bracket(byte),
            b')' if self.style == Style::Python => return self.close_bracket(byte),
            b'"' => self.inside = Inside::Text(byte),
            b'\'' if self.opens_text(bytes) => self.inside = Inside::Text(byte),
            b',' => self.expects_key = self.stack.last() == Some(&b'{'),
            b':' => self.expects_key = false,
            b'/' if self.style == Style::Json => return self.skip_comment(bytes, eof),
            _ if self.style == Style::Json && !may_stand(byte) => return Some(Span::Stopped(self.position)),
            _ => {}
        }
        self.position += 1;
        None
    }

    fn open_bracket(&mut self, bracket: u8) {
        self.stack.push(bracket);
        self.expects_key = bracket == b'{';
    }

    /// Closes the nearest bracket of this kind and every open one inside it; a closer without opener is
    /// ignored.
    fn close_bracket(&mut self, closer: u8) -> Option<Span> {
        let opener = match closer {
            b'}' => b'{',
            b']' => b'[',
            _ => b'(',
        };
        if let Some(index) = self.stack.iter().rposition(|&open| open == opener) {
            self.stack.truncate(index);
        }
        self.position += 1;
        self.expects_key = false;
        self.stack.is_empty().then_some(Span::Complete(self.position))
    }

    /// Returns true for a quote that opens a string. An apostrophe does so only where a value or key may
    /// begin.
    fn opens_text(&self, bytes: &[u8]) -> bool {
        let before = bytes[..self.position].iter().rev().find(|byte| !byte.is_ascii_whitespace());
        self.style == Style::Python || before.is_none_or(|byte| b"{[,:".contains(byte))
    }

    fn skip_comment(&mut self, bytes: &[u8], eof: bool) -> Option<Span> {
        match bytes.get(self.position + 1) {
            Some(b'/') => self.inside = Inside::LineComment,
            Some(b'*') => self.inside = Inside::BlockComment,
            None if !eof => return Some(Span::More),
            _ => return Some(Span::Stopped(self.position)),
        }
        self.position += 2;
        None
    }

    fn skip_past(&mut self, bytes: &[u8], end: &[u8]) -> Option<Span> {
        if let Some(found) = memchr::memmem::find(&bytes[self.position..], end) {
            self.position += found + end.len();
            self.inside = Inside::Plain;
            return None;
        }
        self.position = self.position.max(bytes.len() + 1 - end.len());
        Some(Span::More)
    }

    fn skip_text(&mut self, bytes: &[u8], quote: u8, eof: bool) -> Option<Span> {
        let Some(found) = memchr2(quote, b'\\', &bytes[self.position..]) else {
            self.position = bytes.len();
            return Some(Span::More);
        };
        let at = self.position + found;
        if bytes[at] == b'\\' {
            let escaped = bytes.get(at + 1);
            self.position = if escaped.is_some() || eof { at + 2 } else { at };
            return escaped.is_none().then_some(Span::More);
        }
        match self.closes_text(&bytes[at + 1..]) {
            None if !eof => {
                self.position = at;
                return Some(Span::More);
            }
            Some(false) => {}
            _ => self.inside = Inside::Plain,
        }
        self.position = at + 1;
        None
    }

    fn closes_text(&self, after: &[u8]) -> Option<bool> {
        let role = match self.stack.last() {
            Some(b'{') if self.expects_key => Role::Key,
            Some(b'{') => Role::Member,
            _ => Role::Item,
        };
        if self.style == Style::Python { Some(true) } else { quote_closes(after, role) }
    }
}

/// Returns true for bytes that may occur outside strings in a model's JSON.
fn may_stand(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace() || b"+-._*#$'".contains(&byte) || byte >= 0x80
}

/// Decides by the following text whether a quote closes its string; `None` when the text is too short. The
/// decision is right for every quote in valid JSON, and usually right for an unescaped quote inside a string.
pub(crate) fn quote_closes(after: &[u8], role: Role) -> Option<bool> {
    let window = &after[..after.len().min(LOOKAHEAD)];
    let whole = window.len() == LOOKAHEAD;
    let Some(next) = window.iter().position(|byte| !byte.is_ascii_whitespace()) else {
        return whole.then_some(true);
    };
    let rest = &window[next..];
    match (rest[0], role) {
        (b':', _) => Some(role == Role::Key),
        (b'}' | b']', _) => ends_after_closers(rest, whole),
        (b',', Role::Member) => key_follows(&rest[1..], whole),
        (b',', _) => Some(role == Role::Item),
        (b'<', _) => rest.get(1).map(|&byte| b"/|".contains(&byte) || byte >= 0x80),
        (b'/', _) => rest.get(1).map(|byte| b"/*".contains(byte)),
        (b'"' | b'\'', _) => Some(window[..next].contains(&b'\n')),
        _ => Some(false),
    }
}

/// Decides for a quote that closing brackets follow: another quote after them means that all of it is text,
/// as in `"return "x" }"`.
fn ends_after_closers(rest: &[u8], whole: bool) -> Option<bool> {
    let next = rest.iter().find(|byte| !b"}]".contains(byte) && !byte.is_ascii_whitespace());
    match next {
        None => whole.then_some(true),
        Some(byte) => Some(*byte != b'"'),
    }
}

/// Decides for a quote that `,` follows in an object: a key must follow, which is a quoted text with `:`, or
/// a bare word, or the end of the object.
fn key_follows(rest: &[u8], whole: bool) -> Option<bool> {
    let unknown = whole.then_some(true);
    let Some(start) = rest.iter().position(|byte| !byte.is_ascii_whitespace()) else { return unknown };
    let quote = rest[start];
    if quote != b'"' && quote != b'\'' {
        return match quote {
            b'}' | b'/' => Some(true),
            byte if byte.is_ascii_alphabetic() => is_bare_key(&rest[start..]).or(unknown),
            _ => Some(false),
        };
    }
    let mut at = start + 1;
    while let Some(&byte) = rest.get(at) {
        if byte == quote {
            return match rest[at + 1..].iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(byte) => Some(*byte == b':'),
                None => unknown,
            };
        }
        at += if byte == b'\\' { 2 } else { 1 };
    }
    unknown
}

fn is_bare_key(rest: &[u8]) -> Option<bool> {
    let end = rest.iter().position(|&byte| !(byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'));
    end.map(|end| rest[end] == b':')
}

/// Finds the end of the value at the beginning of a complete text.
#[cfg(test)]
pub(crate) fn span_of(text: &str) -> Span {
    JsonSpan::new(0, Style::Json).advance(text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Span) {
        assert_eq!(span_of(text), expected, "{text}");
        let mut split = JsonSpan::new(0, Style::Json);
        let mut seen = Span::More;
        for (end, _) in text.char_indices().skip(1) {
            seen = split.advance(&text[..end], false);
            if seen != Span::More {
                break;
            }
        }
        if seen == Span::More {
            seen = split.advance(text, true);
        }
        assert_eq!(seen, expected, "in pieces: {text}");
    }

    #[test]
    fn valid_json_ends_exactly() {
        for value in [
            r#"{"a":"}"}"#,
            r#"[1,[2],{"b":"\"]"}]"#,
            r#"{"a" : "x" , "b" : ["y" , "z"] }"#,
            r#"{"a":"\\","b":"c"}"#,
            "{\"\\\"\":\"<|x|>\", \"k\\\"\": null}",
        ] {
            check(&format!("{value} tail"), Span::Complete(value.len()));
        }
    }

    #[test]
    fn what_models_write_ends_where_a_reader_would_say() {
        for value in [
            r#"{"a": "<html lang="en"></html>"}"#,
            r"{'a': 'it''s'}",
            r#"{"a": [1, 2}"#,
            "{\"a\": 1 // note }\n}",
        ] {
            check(&format!("{value} tail"), Span::Complete(value.len()));
        }
    }

    /// Found by fuzzing: the closers alone do not tell, the quote after them does.
    #[test]
    fn closers_before_a_quote_are_text_however_they_arrive() {
        check(r#"{"a": "/x"}}"/tmp"#, Span::More);
        check(r#"{"a": "/x", b"#, Span::More);
    }

    #[test]
    fn a_byte_that_cannot_stand_there_stops_the_value() {
        check(r#"{"a": "b"</tool_call>"#, Span::Stopped(9));
        check(r#"{"arguments": <json>}"#, Span::Stopped(14));
    }
}
