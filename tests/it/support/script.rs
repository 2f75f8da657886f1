//! The fake vLLM's answer to one request: a reply, its timing, and the fault to play.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::http1::find;

/// One answer. Built from a reply, then bent:
/// `Script::sse(chunks).pause(3, minute).reset()`.
#[derive(Clone, Debug)]
pub struct Script {
    pub(super) route: Option<(String, String)>,
    pub(super) authorization: Authorization,
    pub(super) checked: bool,
    pub(super) delay: Duration,
    pauses: Vec<(usize, Duration)>,
    between: Duration,
    status_line: String,
    headers: Vec<(String, String)>,
    body: Body,
    length_error: isize,
    fault: Option<(Fault, FaultPlace)>,
}

/// The script's expectation of the request's `authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// It may be anything.
    Any,
    /// It must not be there.
    Absent,
    /// It must be exactly this.
    Is(String),
}

#[derive(Clone, Debug)]
enum Body {
    Whole(Vec<u8>),
    Chunked(Vec<Vec<u8>>),
    UntilClose(Vec<u8>),
    Endless(Vec<u8>),
    Raw(Vec<u8>),
    Wire(Vec<Step>),
    Nothing,
}

/// How a reply goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No more bytes, the connection stays open.
    Stall,
    /// The connection is closed in order (FIN).
    Close,
    /// The connection is reset (RST).
    Reset,
}

#[derive(Clone, Copy, Debug)]
enum FaultPlace {
    /// Where the reply would end: its last byte or its last-chunk is missing.
    BeforeTheEnd,
    /// After this many bytes of the body, its framing counted.
    After(usize),
}

/// One thing to do on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A pause.
    Wait(Duration),
    /// These bytes.
    Send(Vec<u8>),
    /// Again and again, until the peer hangs up.
    Repeat(Vec<u8>),
    /// The end.
    Fail(Fault),
}

impl Script {
    fn new(status: u16, content_type: &str, body: Body) -> Self {
        let mut headers =
            vec![("server".to_owned(), "uvicorn".to_owned()), ("vary".to_owned(), "Origin".to_owned())];
        if !content_type.is_empty() {
            headers.insert(1, ("content-type".to_owned(), content_type.to_owned()));
        }
        Self {
            route: None,
            authorization: Authorization::Any,
            checked: true,
            delay: Duration::ZERO,
            pauses: Vec::new(),
            between: Duration::ZERO,
            status_line: format!("{status} {}", reason(status)),
            headers,
            body,
            length_error: 0,
            fault: None,
        }
    }

    /// A whole JSON reply.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::whole(status, "application/json", body.to_string())
    }

    /// A whole reply of any type.
    pub fn whole(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, content_type, Body::Whole(body.into()))
    }

    /// An SSE stream, status 200; each member leaves as one HTTP chunk in its own write and holds whole
    /// frames, parts of frames or several: it is sent as it stands (see [`super::replies::frame`]).
    pub fn sse<C: Into<Vec<u8>>>(chunks: impl IntoIterator<Item = C>) -> Self {
        let chunks = chunks.into_iter().map(Into::into).collect();
        Self::new(200, "text/event-stream; charset=utf-8", Body::Chunked(chunks))
    }

    /// A chunked reply of any type.
    pub fn chunked<C: Into<Vec<u8>>>(
        status: u16,
        content_type: &str,
        chunks: impl IntoIterator<Item = C>,
    ) -> Self {
        Self::new(status, content_type, Body::Chunked(chunks.into_iter().map(Into::into).collect()))
    }

    /// A reply without content-length or chunks, which the end of the connection ends.
    pub fn until_close(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, content_type, Body::UntilClose(body.into())).header("connection", "close")
    }

    /// A chunked reply that sends this chunk again and again until the peer hangs up.
    pub fn endless(status: u16, content_type: &str, chunk: impl Into<Vec<u8>>) -> Self {
        Self::new(status, content_type, Body::Endless(chunk.into()))
    }

    /// These bytes, head included, then FIN.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(200, "", Body::Raw(bytes.into()))
    }

    /// Exactly these steps, head included, then FIN unless they end otherwise.
    pub fn wire(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::new(200, "", Body::Wire(steps.into_iter().collect()))
    }

    /// A capture of `fixtures/vllm/`, byte for byte, then FIN. NAME is without its ending, as in
    /// `v0.32.0-gptoss-harmony/ok-tool.nonstream`.
    pub fn capture(name: &str) -> Self {
        let file = format!("{name}.resp.http");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vllm").join(file);
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(find(&bytes, b"\r\n\r\n").is_some(), "{} is no HTTP reply", path.display());
        Self::raw(bytes)
    }

    /// No byte ever, the connection stays open.
    pub fn silence() -> Self {
        Self { fault: Some((Fault::Stall, FaultPlace::BeforeTheEnd)), ..Self::new(200, "", Body::Nothing) }
    }

    /// RST or FIN instead of a reply.
    pub fn no_reply(fault: Fault) -> Self {
        Self { fault: Some((fault, FaultPlace::BeforeTheEnd)), ..Self::new(200, "", Body::Nothing) }
    }

    /// Answers only this method and path (without query); other requests pass it by. Without this a script
    /// answers everything but the probes that the fake answers by itself.
    pub fn on(mut self, method: &str, path: &str) -> Self {
        self.route = Some((method.to_owned(), path.to_owned()));
        self
    }

    /// The request must carry exactly this `authorization`.
    pub fn expect_authorization(mut self, value: &str) -> Self {
        self.authorization = Authorization::Is(value.to_owned());
        self
    }

    /// The request must carry no `authorization`.
    pub fn expect_no_authorization(mut self) -> Self {
        self.authorization = Authorization::Absent;
        self
    }

    /// The request's JSON is not judged, its HTTP still is.
    pub fn unchecked(mut self) -> Self {
        self.checked = false;
        self
    }

    /// Replaces `200 OK` and the like; anything goes.
    pub fn status_line(mut self, code_and_reason: &str) -> Self {
        code_and_reason.clone_into(&mut self.status_line);
        self
    }

    /// Adds a header, in place of one of the same name.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends no header of this name.
    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Waits before the first byte.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Waits before the chunk of this index; 0 is the silence between the head and the first chunk.
    pub fn pause(mut self, before_chunk: usize, pause: Duration) -> Self {
        self.pauses.push((before_chunk, pause));
        self
    }

    /// Waits before each chunk but the first.
    pub fn every(mut self, between: Duration) -> Self {
        self.between = between;
        self
    }

    /// Stalls where the reply would end: a whole body lacks its last byte, a chunked one its last-chunk.
    pub fn then_stall(mut self) -> Self {
        self.fault = Some((Fault::Stall, FaultPlace::BeforeTheEnd));
        self
    }

    /// Resets the connection where the reply would end.
    pub fn reset(mut self) -> Self {
        self.fault = Some((Fault::Reset, FaultPlace::BeforeTheEnd));
        self
    }

    /// Resets the connection after this many bytes of the body (framing counted).
    pub fn reset_after(mut self, bytes: usize) -> Self {
        self.fault = Some((Fault::Reset, FaultPlace::After(bytes)));
        self
    }

    /// Closes the connection after this many bytes of the body (framing counted).
    pub fn close_early_after(mut self, bytes: usize) -> Self {
        self.fault = Some((Fault::Close, FaultPlace::After(bytes)));
        self
    }

    /// `content-length` of a whole body says this many bytes more (or less) than come; then FIN.
    pub fn wrong_length(mut self, difference: isize) -> Self {
        self.length_error = difference;
        self.header("connection", "close")
    }

    /// The body gzip-compressed, and so declared.
    pub fn gzip(self) -> Self {
        self.encoded("gzip", |body| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        })
    }

    /// The body brotli-compressed, and so declared.
    pub fn brotli(self) -> Self {
        self.encoded("br", |body| {
            let mut compressed = Vec::new();
            brotli::BrotliCompress(
                &mut &*body,
                &mut compressed,
                &brotli::enc::BrotliEncoderParams::default(),
            )
            .unwrap();
            compressed
        })
    }

    fn encoded(mut self, name: &str, encode: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        self.body = match self.body {
            Body::Whole(body) => Body::Whole(encode(&body)),
            Body::UntilClose(body) => Body::UntilClose(encode(&body)),
            Body::Chunked(chunks) => Body::Chunked(vec![encode(&chunks.concat())]),
            other => panic!("{other:?} cannot be compressed"),
        };
        self.header("content-encoding", name)
    }

    /// True when the connection can take another request after the reply.
    pub(super) fn keeps_alive(&self) -> bool {
        let closes = self.headers.iter().any(|(name, value)| name == "connection" && value == "close");
        !closes && !matches!(self.body, Body::Raw(_) | Body::Wire(_) | Body::UntilClose(_) | Body::Nothing)
    }

    /// The steps on the wire, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Wait(self.delay)];
        let (pieces, end): (Vec<Vec<u8>>, Vec<u8>) = match &self.body {
            Body::Nothing => (vec![], vec![]),
            Body::Wire(wire) => return wire.clone(),
            Body::Raw(bytes) => halves(bytes),
            Body::Whole(body) => {
                let length = body.len().checked_add_signed(self.length_error).unwrap_or_default();
                steps.push(Step::Send(self.head(&format!("content-length: {length}\r\n"))));
                halves(body)
            }
            Body::UntilClose(body) => {
                steps.push(Step::Send(self.head("")));
                halves(body)
            }
            Body::Chunked(chunks) => {
                steps.push(Step::Send(self.head("transfer-encoding: chunked\r\n")));
                (chunks.iter().map(|chunk| frame_chunk(chunk)).collect(), b"0\r\n\r\n".to_vec())
            }
            Body::Endless(chunk) => {
                steps.push(Step::Send(self.head("transfer-encoding: chunked\r\n")));
                steps.push(Step::Repeat(frame_chunk(chunk)));
                (vec![], vec![])
            }
        };
        self.add_body(pieces, end, &mut steps);
        steps
    }

    fn head(&self, framing: &str) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {}\r\n", self.status_line);
        for (name, value) in &self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.extend([framing, "\r\n"]);
        head.into_bytes()
    }

    fn add_body(&self, pieces: Vec<Vec<u8>>, end: Vec<u8>, steps: &mut Vec<Step>) {
        let mut left = match self.fault {
            Some((_, FaultPlace::After(bytes))) => bytes,
            _ => usize::MAX,
        };
        let last = pieces.len();
        for (index, mut piece) in pieces.into_iter().chain([end]).enumerate() {
            let pause: Duration =
                self.pauses.iter().filter(|(before, _)| *before == index).map(|(_, pause)| *pause).sum();
            let between = if index == 0 || index == last { Duration::ZERO } else { self.between };
            let ends_early = matches!(self.fault, Some((_, FaultPlace::BeforeTheEnd))) && index == last;
            if left == 0 || ends_early {
                break;
            }
            piece.truncate(left);
            left -= piece.len();
            steps.extend([Step::Wait(pause + between), Step::Send(piece)]);
        }
        steps.extend(self.fault.map(|(fault, _)| Step::Fail(fault)));
        steps.retain(|step| !matches!(step, Step::Wait(Duration::ZERO)) && *step != Step::Send(Vec::new()));
    }
}

/// All but the last byte, and that.
fn halves(body: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (first, last) = body.split_at(body.len().saturating_sub(1));
    (vec![first.to_vec()], last.to_vec())
}

pub(crate) fn frame_chunk(chunk: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unnamed",
    }
}
