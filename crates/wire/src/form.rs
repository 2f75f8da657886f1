//! Finds the small fields of a form (`multipart/form-data`, RFC 7578) while the form arrives, each with its
//! place in the body. The model's name is such a field; the form's file must neither wait for it nor be
//! copied.
//!
//! Crates for forms give the values without their places, so the whole form would have to be written again.
//! Called by `server`.

use std::ops::Range;

use memchr::memmem;

/// The most bytes of a part's head. Reading stops at a longer one.
const LONGEST_HEAD: usize = 16 << 10;
/// The most bytes of a value. A longer one is skipped like a file.
const LONGEST_VALUE: usize = 4 << 10;
/// The end of a line, which belongs to the delimiter that follows.
const LINE_END: &[u8] = b"\r\n";

/// A field whose value is not a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormField {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The bytes of the value in the body.
    pub place: Range<usize>,
}

/// Reads one form.
#[derive(Debug)]
pub struct FormReader {
    /// The delimiter before each part, with its line end.
    delimiter: Vec<u8>,
    /// The bytes that were not skipped yet. The body is read as if a line end preceded it.
    window: Vec<u8>,
    /// The number of skipped bytes, that line end included.
    passed: usize,
    state: ParseState,
}

/// The part of the form at which the window begins.
#[derive(Debug)]
enum ParseState {
    /// The head of a part, or the end of the form.
    Head,
    /// The value of this field.
    Value(String),
    /// A file, a long value, or the text before the first part.
    Other,
    /// The form's end, or a part that cannot be read.
    Done,
}

impl FormReader {
    /// Makes a reader for a body of this content type; `None` unless it is a form.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        let (kind, _) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = header_parameter(content_type, "boundary").filter(|boundary| !boundary.is_empty())?;
        let delimiter = [LINE_END, b"--", boundary.as_bytes()].concat();
        Some(Self { delimiter, window: LINE_END.to_vec(), passed: 0, state: ParseState::Other })
    }

    /// Takes the next piece of the body and returns the fields that end in it.
    pub fn push(&mut self, piece: &[u8]) -> Vec<FormField> {
        let mut found = Vec::new();
        if !matches!(self.state, ParseState::Done) {
            self.window.extend_from_slice(piece);
            while self.read_next(&mut found) {}
        }
        found
    }

    /// Takes one step; false when it needs more bytes, or when the form has ended.
    fn read_next(&mut self, found: &mut Vec<FormField>) -> bool {
        match &mut self.state {
            ParseState::Done => false,
            ParseState::Head => self.read_head(),
            ParseState::Value(name) => match memmem::find(&self.window, &self.delimiter) {
                Some(end) if end <= LONGEST_VALUE => {
                    let begin = self.passed.saturating_sub(LINE_END.len());
                    found.push(FormField {
                        name: std::mem::take(name),
                        value: String::from_utf8_lossy(&self.window[..end]).into_owned(),
                        place: begin..begin + end,
                    });
                    self.pass_over(end + self.delimiter.len(), ParseState::Head)
                }
                None if self.window.len() <= LONGEST_VALUE + self.delimiter.len() => false,
                _ => self.pass_over(0, ParseState::Other),
            },
            ParseState::Other => {
                let end = memmem::find(&self.window, &self.delimiter);
                // The last bytes stay: they may begin a delimiter.
                let kept = self.window.len().min(self.delimiter.len() - 1);
                match end {
                    Some(end) => self.pass_over(end + self.delimiter.len(), ParseState::Head),
                    None => self.pass_over(self.window.len() - kept, ParseState::Other) && end.is_some(),
                }
            }
        }
    }

    fn read_head(&mut self) -> bool {
        let end = memmem::find(&self.window, b"\r\n\r\n").filter(|end| *end <= LONGEST_HEAD);
        match end {
            _ if self.window.starts_with(b"--") => self.stop_reading(),
            Some(end) => {
                let name = field_name(&self.window[..end]);
                self.pass_over(end + 4, name.map_or(ParseState::Other, ParseState::Value))
            }
            None if self.window.len() > LONGEST_HEAD + 4 => self.stop_reading(),
            None => false,
        }
    }

    fn stop_reading(&mut self) -> bool {
        self.window = Vec::new();
        self.state = ParseState::Done;
        false
    }

    fn pass_over(&mut self, bytes: usize, within: ParseState) -> bool {
        self.window.drain(..bytes);
        self.passed += bytes;
        self.state = within;
        true
    }
}

/// Returns the field's name in the head of a part; `None` for a file.
fn field_name(head: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let disposition = head.split("\r\n").find(|line| {
        line.split_once(':').is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))
    })?;
    let is_file = ["filename", "filename*"].iter().any(|name| header_parameter(disposition, name).is_some());
    header_parameter(disposition, "name").filter(|_| !is_file)
}

/// Finds the value of a header's parameter. Text in quotes is skipped.
fn header_parameter(header: &str, wanted: &str) -> Option<String> {
    let (_, mut rest) = header.split_once(';')?;
    loop {
        let (name, behind) = rest.split_once('=')?;
        let (value, behind) = behind.strip_prefix('"').map_or_else(|| bare_value(behind), quoted_value);
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = behind.split_once(';')?.1;
    }
}

/// Splits off a value without quotes; the second part is the rest.
fn bare_value(value: &str) -> (String, &str) {
    let (value, behind) = value.split_at(value.find(';').unwrap_or(value.len()));
    (value.trim().to_owned(), behind)
}

/// Splits off a value up to its closing quote; the second part is the rest.
fn quoted_value(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &quoted[at + 1..]),
            // Browsers escape only the quote.
            '\\' if quoted[at + 1..].starts_with('"') => value.extend(chars.next().map(|(_, quote)| quote)),
            char => value.push(char),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; charset=utf-8; boundary=\"b 1\"";

    fn form(parts: &[(&str, &str)]) -> String {
        let parts = parts.iter().map(|(head, value)| {
            format!("--b 1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
        });
        format!("{}--b 1--\r\n", parts.collect::<String>())
    }

    /// The fields are the same however the form is cut, and stand where they say.
    fn check(body: &str, expected: &[(&str, &str)]) {
        for size in [1, 2, 3, 7, 64, body.len().max(1)] {
            let mut reader = FormReader::from_content_type(TYPE).unwrap();
            let fields: Vec<FormField> =
                body.as_bytes().chunks(size).flat_map(|piece| reader.push(piece)).collect();
            let found: Vec<(&str, &str)> =
                fields.iter().map(|field| (field.name.as_str(), field.value.as_str())).collect();
            assert_eq!(found, expected, "in pieces of {size}: {body}");
            for field in &fields {
                assert_eq!(body[field.place.clone()], field.value);
            }
            assert!(reader.window.len() <= LONGEST_HEAD + 4);
        }
    }

    #[test]
    fn the_fields_of_a_form() {
        check(
            &form(&[("name=\"model\"", "fast"), ("name=language", "de")]),
            &[("model", "fast"), ("language", "de")],
        );
        let file = format!("\r\n--b\r\n{}\r\n--b 2", "x".repeat(30_000));
        check(
            &form(&[
                ("name=\"file\"; filename=\"a; name=\\\"model\\\".wav\"", &file),
                ("name=\"model\"", "m"),
            ]),
            &[("model", "m")],
        );
        check(&form(&[("filename=x; name=\"model\"", "m"), ("name=\"model\"", "")]), &[("model", "")]);
        check(&form(&[("name=\"prompt\"", &"x".repeat(9_000)), ("name=\"model\"", "m")]), &[("model", "m")]);
        check(
            &format!("a preamble\r\n{}--b 1\r\n", form(&[("name=\"model\"", "m\r\nn")])),
            &[("model", "m\r\nn")],
        );
        check(&format!("--b 1\r\n{}", "x".repeat(20_000)), &[]);
        check("", &[]);
        check("{\"model\": \"m\"}", &[]);
        check(
            "--b 1\r\n\r\nx\r\n--b 1\r\nX: y\r\nCONTENT-disposition:form-data;name=model\r\n\r\nm\r\n--b 1--",
            &[("model", "m")],
        );
    }

    #[test]
    fn only_a_form_is_read_as_one() {
        for (content_type, is_form) in [
            ("multipart/form-data; boundary=x", true),
            ("Multipart/Form-Data;boundary=x", true),
            ("multipart/form-data", false),
            ("multipart/form-data; boundary=", false),
            ("multipart/mixed; boundary=x", false),
            ("application/json", false),
        ] {
            assert_eq!(FormReader::from_content_type(content_type).is_some(), is_form, "{content_type}");
        }
    }
}
