//! One recorded reply, read from a capture file. Pure: bytes in, value out.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use memchr::memmem;
use serde_json::json;

use super::error::RecordingError;
use super::framing;

/// The mark of recordings that answer a conversation which ends in a tool's result.
const AFTER_TOOL: &str = ".after-tool";
/// How a capture of serving code without its HTTP layer notes an exception that the layer makes a 500 of.
const EXCEPTION: &[u8] = b"(exception -> 500) ";

/// Which `stream` a recording answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// `stream: false`.
    Whole,
    /// `stream: true`.
    Stream,
}

/// One reply as it was recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The model id that it answers for: the NAME of its file.
    pub model: String,
    /// True when it answers a conversation that ends in a tool's result.
    pub after_tool: bool,
    /// Which `stream` it answers.
    pub form: Form,
    /// Its status.
    pub status: StatusCode,
    /// Its headers, without those that frame the body or belong to the connection.
    pub headers: HeaderMap,
    /// Its body, chunk by chunk; a body that was not chunked is one piece.
    pub pieces: Vec<Bytes>,
    /// How long the server says nothing before its head leaves.
    pub silence: Duration,
}

impl Recording {
    /// Returns true when a file of this name is a capture.
    pub fn is_named(file: &str) -> bool {
        FileName::parse(file).is_some()
    }

    /// Reads a capture: a whole HTTP/1.1 response, or (`.body`) its body alone.
    ///
    /// # Errors
    /// The name or the bytes are not those of a capture.
    pub fn parse(file: &str, capture: Bytes) -> Result<Self, RecordingError> {
        let name = FileName::parse(file).ok_or_else(|| RecordingError::Name(file.to_owned()))?;
        let reply =
            if name.bare { Reply::from_bare_body(capture, name.form) } else { Reply::parse(&capture)? };
        let form = name.form.unwrap_or(if reply.is_stream() { Form::Stream } else { Form::Whole });
        let Reply { status, headers, pieces } = reply;
        let (model, silence) = (name.model.to_owned(), Duration::ZERO);
        Ok(Self { model, after_tool: name.after_tool, form, status, headers, pieces, silence })
    }

    /// Returns a reply whose parts are known.
    ///
    /// # Errors
    /// The status or the content type cannot be sent.
    pub fn from_parts(
        model: &str,
        status: u16,
        content_type: &str,
        body: Bytes,
    ) -> Result<Self, http::Error> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type)?);
        let is_stream = content_type.starts_with("text/event-stream");
        Ok(Self {
            model: model.to_owned(),
            after_tool: false,
            form: if is_stream { Form::Stream } else { Form::Whole },
            status: StatusCode::from_u16(status)?,
            headers,
            pieces: if is_stream { framing::split_frames(&body) } else { vec![body] },
            silence: Duration::ZERO,
        })
    }

    /// Returns the same reply of another model.
    #[must_use]
    pub fn with_model(self, model: &str) -> Self {
        Self { model: model.to_owned(), ..self }
    }

    /// Returns the same reply, later.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// Returns true when `other` answers the same request.
    pub fn stands_for_same(&self, other: &Self) -> bool {
        (&self.model, self.after_tool, self.form) == (&other.model, other.after_tool, other.form)
    }
}

/// The parts of a capture's file name.
struct FileName<'n> {
    model: &'n str,
    after_tool: bool,
    form: Option<Form>,
    bare: bool,
}

impl<'n> FileName<'n> {
    fn parse(file: &'n str) -> Option<Self> {
        const ENDINGS: [(&str, Option<Form>, bool); 5] = [
            (".nonstream.resp.http", Some(Form::Whole), false),
            (".stream.resp.http", Some(Form::Stream), false),
            (".resp.http", None, false),
            (".nonstream.body", Some(Form::Whole), true),
            (".stream.body", Some(Form::Stream), true),
        ];
        let (name, form, bare) = ENDINGS
            .iter()
            .find_map(|&(ending, form, bare)| Some((file.strip_suffix(ending)?, form, bare)))?;
        let model = name.strip_suffix(AFTER_TOOL).unwrap_or(name);
        (!model.is_empty()).then_some(Self { model, after_tool: model != name, form, bare })
    }
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    pieces: Vec<Bytes>,
}

impl Reply {
    fn parse(capture: &Bytes) -> Result<Self, RecordingError> {
        let blank = memmem::find(capture, b"\r\n\r\n").ok_or(RecordingError::NoHead)?;
        let head = String::from_utf8_lossy(&capture[..blank]);
        let mut lines = head.split("\r\n");
        let status = parse_status(lines.next().unwrap_or_default())?;
        let mut headers = lines.map(parse_header).collect::<Result<HeaderMap, _>>()?;
        let pieces = parse_body(&headers, &capture.slice(blank + 4..), blank + 4)?;
        for framing in [header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::CONNECTION, header::DATE] {
            headers.remove(framing);
        }
        Ok(Self { status, headers, pieces })
    }

    /// Gives a body that was captured alone the head that vLLM sends with it.
    fn from_bare_body(body: Bytes, form: Option<Form>) -> Self {
        if let Some(exception) = body.strip_prefix(EXCEPTION) {
            let message = String::from_utf8_lossy(exception);
            let error = json!({"message": message.trim_end(), "type": "Internal Server Error", "param": null, "code": 500});
            let body = json!({"error": error}).to_string();
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, "application/json", vec![body.into()]);
        }
        match form {
            Some(Form::Stream) => {
                let pieces = framing::split_frames(&body);
                Self::new(StatusCode::OK, "text/event-stream; charset=utf-8", pieces)
            }
            _ => Self::new(StatusCode::OK, "application/json", vec![body]),
        }
    }

    fn new(status: StatusCode, content_type: &'static str, pieces: Vec<Bytes>) -> Self {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        Self { status, headers, pieces }
    }

    fn is_stream(&self) -> bool {
        let kind = self.headers.get(header::CONTENT_TYPE).map_or(b"".as_slice(), HeaderValue::as_bytes);
        kind.starts_with(b"text/event-stream")
    }
}

fn parse_status(line: &str) -> Result<StatusCode, RecordingError> {
    let code = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
    code.and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| RecordingError::StatusLine(line.to_owned()))
}

fn parse_header(line: &str) -> Result<(HeaderName, HeaderValue), RecordingError> {
    let malformed = || RecordingError::Header(line.to_owned());
    let (name, value) = line.split_once(':').ok_or_else(malformed)?;
    let name = name.parse().map_err(|_| malformed())?;
    Ok((name, value.trim().parse().map_err(|_| malformed())?))
}

fn parse_body(headers: &HeaderMap, body: &Bytes, offset: usize) -> Result<Vec<Bytes>, RecordingError> {
    if headers
        .get(header::TRANSFER_ENCODING)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return framing::dechunk(body).map_err(|at| RecordingError::Chunk { offset: offset + at });
    }
    if let Some(declared) = headers.get(header::CONTENT_LENGTH) {
        let declared = String::from_utf8_lossy(declared.as_bytes()).into_owned();
        if declared.parse() != Ok(body.len()) {
            return Err(RecordingError::Length { declared, found: body.len() });
        }
    }
    Ok(vec![body.clone()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_name(file: &str, expected: Option<(&str, bool, Option<Form>)>) {
        let read = FileName::parse(file).map(|name| (name.model, name.after_tool, name.form));
        assert_eq!(read, expected, "{file}");
    }

    fn parse(file: &str, capture: &'static str) -> Result<Recording, RecordingError> {
        Recording::parse(file, Bytes::from_static(capture.as_bytes()))
    }

    #[test]
    fn names_say_model_turn_and_form() {
        check_name("m.nonstream.resp.http", Some(("m", false, Some(Form::Whole))));
        check_name("m-1.5.stream.resp.http", Some(("m-1.5", false, Some(Form::Stream))));
        check_name("m.after-tool.stream.body", Some(("m", true, Some(Form::Stream))));
        check_name("m.resp.http", Some(("m", false, None)));
        for other in
            ["m.req.http", "m.nonstream.req.http", "summary.json", ".resp.http", "after-tool", "m.body"]
        {
            check_name(other, None);
        }
    }

    #[test]
    fn the_head_is_kept_without_what_frames_the_body() {
        let capture = "HTTP/1.1 503 Service Unavailable\r\nserver: uvicorn\r\ncontent-length: 2\r\nretry-after: 3\r\n\
                       content-type: text/html\r\nconnection: close\r\n\r\nno";
        let recording = parse("m.resp.http", capture).unwrap();
        assert_eq!((recording.status.as_u16(), recording.form), (503, Form::Whole));
        let mut names: Vec<_> = recording.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "retry-after", "server"]);
        assert_eq!(recording.pieces, ["no"]);
    }

    #[test]
    fn the_content_type_decides_an_unclear_form() {
        let capture = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                       1\r\na\r\n0\r\n\r\n";
        assert_eq!(parse("m.resp.http", capture).unwrap().form, Form::Stream);
    }

    #[test]
    fn what_is_no_capture_is_told_apart() {
        for (capture, expected) in [
            ("HTTP/1.1 200 OK\r\n", RecordingError::NoHead),
            ("SSH-2.0\r\n\r\n", RecordingError::StatusLine("SSH-2.0".to_owned())),
            ("HTTP/1.1 99\u{e9} OK\r\n\r\n", RecordingError::StatusLine("HTTP/1.1 99\u{e9} OK".to_owned())),
            ("HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", RecordingError::Header("nonsense".to_owned())),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
                RecordingError::Length { declared: "9".to_owned(), found: 5 },
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
                RecordingError::Chunk { offset: 50 },
            ),
        ] {
            assert_eq!(parse("m.resp.http", capture).unwrap_err(), expected, "{capture:?}");
        }
    }

    #[test]
    fn a_bare_body_gets_its_head() {
        let whole = parse("m.nonstream.body", "{}").unwrap();
        assert_eq!(
            (whole.status.as_u16(), &whole.headers["content-type"]),
            (200, &"application/json".parse().unwrap())
        );
        let stream = parse("m.stream.body", "data: 1\n\ndata: [DONE]\n\n").unwrap();
        assert_eq!(stream.pieces, ["data: 1\n\n", "data: [DONE]\n\n"]);
        let failed = parse("m.nonstream.body", "(exception -> 500) HarmonyError: Unknown role\n").unwrap();
        assert_eq!(failed.status, 500);
        assert!(failed.pieces[0].starts_with(br#"{"error":{"message":"HarmonyError: Unknown role","type""#));
    }
}
