//! A JSON scanner that yields spans instead of values: one pass, no allocation, strict about structure.
//!
//! respool changes a few fields of texts that may be 150 KB long, and forwards hundreds of thousands of small
//! chunks a second; building values for them would cost more than all its other work. The scanner does not
//! decode strings, and checks only the characters of numbers. Called by the rest of `wire`.

/// Deeper nesting is refused, as in `serde_json`.
const MAX_DEPTH: u8 = 128;

/// An error: the text is not JSON at this place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} at byte {at}")]
pub struct Malformed {
    /// Byte offset in the text.
    pub at: usize,
    /// The syntax that was expected there.
    pub expected: &'static str,
}

impl Malformed {
    /// Returns the line and column of the place in `text`, both counted from 1.
    pub fn line_and_column(&self, text: &str) -> (usize, usize) {
        let before = &text.as_bytes()[..self.at.min(text.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |index| index + 1);
        (memchr::memchr_iter(b'\n', before).count() + 1, before.len() - line_start + 1)
    }
}

/// A position in a JSON text.
#[derive(Debug)]
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// The offset of the last key, at its quote.
    key_at: usize,
    /// Whether the last string has an escape.
    has_escape: bool,
    depth: u8,
}

impl<'a> Scanner<'a> {
    /// Begins a scan of `text`.
    pub fn new(text: &'a str) -> Self {
        Self::new_at(text, 0)
    }

    /// Begins a scan at this offset of `text`.
    pub(super) fn new_at(text: &'a str, at: usize) -> Self {
        Self { text, at, key_at: at, has_escape: false, depth: 0 }
    }

    /// Returns the offset of the next byte.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the offset of the key whose value comes next, at its quote.
    pub(super) fn key_at(&self) -> usize {
        self.key_at
    }

    /// Returns true if the string that was read last has an escape: a key, where its value comes next.
    pub(super) fn has_escape(&self) -> bool {
        self.has_escape
    }

    /// Returns the next byte that is not white space, without consuming it; 0 at the end.
    #[inline]
    pub fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return *byte;
            }
            self.at += 1;
        }
        0
    }

    /// Fails unless only white space is left.
    pub fn expect_end(&mut self) -> Result<(), Malformed> {
        self.peek();
        if self.at == self.text.len() { Ok(()) } else { Err(self.error_here("the end")) }
    }

    /// Walks an object: calls `field` with each key (its text between the quotes, escapes kept); `field` must
    /// consume the value.
    pub fn walk_object<E: From<Malformed>>(
        &mut self,
        mut field: impl FnMut(&'a str, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open_bracket(b'{', "an object")?;
        if self.close_if(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != b'"' {
                return Err(self.error_here("a key in double quotes").into());
            }
            self.key_at = self.at;
            let key = self.read_string()?;
            self.expect_byte(b':', "a colon")?;
            field(&key[1..key.len() - 1], self)?;
            if self.close_if(b'}') {
                return Ok(());
            }
            self.expect_byte(b',', "a comma or a closing brace")?;
        }
    }

    /// Walks an array: calls `element` at each element, which it must consume.
    pub fn walk_array<E: From<Malformed>>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open_bracket(b'[', "an array")?;
        if self.close_if(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if self.close_if(b']') {
                return Ok(());
            }
            self.expect_byte(b',', "a comma or a closing bracket")?;
        }
    }

    /// Consumes one value of any kind and returns its text.
    pub fn read_value(&mut self) -> Result<&'a str, Malformed> {
        match self.peek() {
            b'"' => self.read_string(),
            b'{' => {
                self.read_span(|scanner| scanner.walk_object(|_, scanner| scanner.read_value().map(drop)))
            }
            b'[' => self.read_span(|scanner| scanner.walk_array(|scanner| scanner.read_value().map(drop))),
            _ => self.read_span(Self::skip_scalar),
        }
    }

    /// Consumes a value with a known text, if it comes next. It was scanned before, so its contents are not
    /// read again.
    pub fn skip_known(&mut self, value: &str) -> Option<&'a str> {
        self.peek();
        let start = self.at;
        begins_with(&self.text.as_bytes()[start..], value.as_bytes()).then(|| {
            self.at += value.len();
            &self.text[start..self.at]
        })
    }

    /// Returns the text that `walk` consumes, so that one pass can both read a value and keep it.
    pub fn read_span<E>(&mut self, walk: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<&'a str, E> {
        self.peek();
        let start = self.at;
        walk(self)?;
        Ok(&self.text[start..self.at])
    }

    /// Consumes a value and returns its text. For an array, calls `element` at each element, which it must
    /// consume.
    pub(super) fn read_array_span(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<&'a str, Malformed> {
        if self.peek() == b'[' {
            self.read_span(|scanner| scanner.walk_array(element))
        } else {
            self.read_value()
        }
    }

    fn read_string(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut next = start + 1;
        self.has_escape = false;
        while let Some(found) = quote_or_backslash(bytes, next) {
            next = found + 1;
            if bytes[found] == b'"' {
                self.at = next;
                return Ok(&self.text[start..next]);
            }
            self.has_escape = true;
            next += 1;
        }
        self.at = bytes.len();
        Err(self.error_here("the end of a string"))
    }

    fn skip_scalar(&mut self) -> Result<(), Malformed> {
        let rest = &self.text.as_bytes()[self.at..];
        let is_word =
            |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'+' | b'.');
        // By far the most common scalar.
        if rest.starts_with(b"null") && !rest.get(4).is_some_and(is_word) {
            self.at += 4;
            return Ok(());
        }
        let length = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        let word = &rest[..length];
        let starts = word.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-');
        let numeric =
            || word.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
        let known = matches!(word, b"null" | b"true" | b"false") || (starts && numeric());
        if !known {
            return Err(self.error_here("a value"));
        }
        self.at += length;
        Ok(())
    }

    fn open_bracket(&mut self, bracket: u8, expected: &'static str) -> Result<(), Malformed> {
        if self.depth == MAX_DEPTH {
            return Err(self.error_here("fewer than 128 levels of nesting"));
        }
        self.expect_byte(bracket, expected)?;
        self.depth += 1;
        Ok(())
    }

    #[inline]
    fn close_if(&mut self, bracket: u8) -> bool {
        let closes = self.peek() == bracket;
        if closes {
            self.at += 1;
            self.depth -= 1;
        }
        closes
    }

    #[inline]
    fn expect_byte(&mut self, byte: u8, expected: &'static str) -> Result<(), Malformed> {
        if self.peek() != byte {
            return Err(self.error_here(expected));
        }
        self.at += 1;
        Ok(())
    }

    /// Returns an error that ends a walk early.
    pub(super) fn stop_walk(&self) -> Malformed {
        self.error_here("nothing more")
    }

    fn error_here(&self, expected: &'static str) -> Malformed {
        Malformed { at: self.at, expected }
    }
}

/// Returns the string, with its quotes, between `before` and `after`, when `text` consists of just these
/// three.
pub fn string_between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    let bytes = text.as_bytes();
    if !begins_with(bytes, before.as_bytes()) || bytes.get(before.len()) != Some(&b'"') {
        return None;
    }
    let mut scanner = Scanner::new_at(text, before.len());
    let string = scanner.read_string().ok()?;
    let rest = &bytes[scanner.at..];
    (rest.len() == after.len() && begins_with(rest, after.as_bytes())).then_some(string)
}

/// The number of bytes that are searched without a call of the vectorised search, which is quicker: most
/// strings are this short, or full of escapes.
const NEAR: usize = 32;

/// Returns the place of the first quote or backslash from a place on, comparing eight bytes at a time.
#[inline]
fn quote_or_backslash(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while at < from + NEAR
        && let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk())
    {
        let word = u64::from_le_bytes(*chunk);
        let found =
            zero_bytes(word ^ (EACH * u64::from(b'"'))) | zero_bytes(word ^ (EACH * u64::from(b'\\')));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', bytes.get(at..)?).map(|place| at + place)
}

/// A one in each byte.
const EACH: u64 = 0x0101_0101_0101_0101;

/// Marks zero bytes: the lowest set bit is the high bit of the lowest zero byte.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & (EACH << 7)
}

/// Compares in place, 64 bytes at a time: the `memcmp` of a static binary goes byte by byte, and tools may
/// have a hundred thousand bytes.
fn begins_with(text: &[u8], beginning: &[u8]) -> bool {
    let Some(text) = text.get(..beginning.len()) else { return false };
    let ((text, rest), (beginning, rest_of_beginning)) =
        (text.as_chunks::<64>(), beginning.as_chunks::<64>());
    text.iter().zip(beginning).all(|(text, beginning)| text == beginning) && rest == rest_of_beginning
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &str) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.read_value().and_then(|_| scanner.expect_end()).is_ok()
    }

    #[test]
    fn a_known_value_is_compared_to_its_end() {
        let text = "x".repeat(200);
        for length in [0, 1, 63, 64, 65, 128, 200] {
            assert!(begins_with(text.as_bytes(), &text.as_bytes()[..length]));
            assert!(!begins_with(&text.as_bytes()[..length], format!("{text}x").as_bytes()), "it is longer");
            for other in 0..length {
                let mut other_text = text.clone().into_bytes();
                other_text[other] = b'y';
                assert!(!begins_with(text.as_bytes(), &other_text[..length]), "{other} of {length}");
            }
        }
    }

    #[test]
    fn agrees_with_serde_json_on_what_is_json() {
        for text in [
            "{}",
            "[]",
            " [1, 2.5e-3, -0] ",
            r#"{"a":{"b":[null,true,false,"x\"\\y"]}}"#,
            r#""lone""#,
            "12",
            "",
            "{",
            "}",
            "[1,]",
            r#"{"a" 1}"#,
            r#"{"a":}"#,
            r#"{a:1}"#,
            r#"{"a":1,}"#,
            "nul",
            "tru e",
            r#""open"#,
            r#""open\""#,
            "[1 2]",
            "{}x",
            "undefined",
            "'a'",
            r#"{"a":1 "b":2}"#,
            "[",
            r#"{"#,
            r#"{"a""#,
        ] {
            assert_eq!(accepts(text), serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn strings_end_at_the_first_free_quote() {
        for length in 0..40 {
            for filler in ["a", "\u{e4}", "\u{80}", "!", "#", "]", r"\\", r#"\""#] {
                let text = format!("\"{}\"", filler.repeat(length));
                assert_eq!(Scanner::new(&format!("{text}, \"x\"")).read_value(), Ok(text.as_str()));
            }
        }
    }

    #[test]
    fn deep_nesting_is_refused_not_overflowed() {
        assert!(!accepts(&"[".repeat(100_000)));
        assert!(accepts(&format!("{}{}", "[".repeat(100), "]".repeat(100))));
    }

    #[test]
    fn positions_count_from_one() {
        let text = "{\n  \"a\": oops\n}";
        let error = Scanner::new(text).read_value().unwrap_err();
        assert_eq!(error.line_and_column(text), (2, 8));
    }
}
