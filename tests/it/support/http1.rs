//! HTTP/1.1 on a socket, read strictly: what a lenient parser would forgive is an error here. Used by the
//! fake vLLM for requests and by the client for replies.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The largest head, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Header fields in the order of arrival, names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// The value of the first field of this (lower-case) name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of all fields of this (lower-case) name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The comma-separated members of all fields of this name, in lower case.
    pub fn tokens(&self, name: &str) -> Vec<String> {
        self.all(name)
            .flat_map(|value| value.split(','))
            .map(|token| token.trim().to_ascii_lowercase())
            .collect()
    }
}

/// A start line and its headers.
#[derive(Clone, Debug)]
pub struct Head {
    /// The request line or the status line.
    pub start: String,
    /// The fields.
    pub headers: Headers,
}

impl Head {
    /// Reads the bytes up to and without the blank line.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the head is not UTF-8".to_owned())?;
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let headers = lines.map(parse_field).collect::<Result<_, _>>()?;
        Ok(Self { start, headers: Headers(headers) })
    }

    /// How long the body is; `without` is what holds when no header says so.
    pub fn framing(&self, without: Framing) -> Result<Framing, String> {
        let lengths: Vec<&str> = self.headers.all("content-length").collect();
        let codings = self.headers.tokens("transfer-encoding");
        match (lengths.as_slice(), codings.as_slice()) {
            ([], []) => Ok(without),
            ([], [coding]) if coding == "chunked" => Ok(Framing::Chunked),
            ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().map(Framing::Length).map_err(|_| format!("content-length {length:?}"))
            }
            _ => Err(format!(
                "contradictory framing: content-length {lengths:?}, transfer-encoding {codings:?}"
            )),
        }
    }
}

fn parse_field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("no header field: {line:?}"))?;
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(format!("no header name: {name:?}"));
    }
    let value = value.trim_matches([' ', '\t']);
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(format!("control characters in {name}: {value:?}"));
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After this many more bytes.
    Length(usize),
    /// With the chunk of length 0.
    Chunked,
    /// When the connection closes.
    UntilClose,
    /// It has ended.
    Done,
}

/// The reading half of a connection, with what was read ahead.
#[derive(Debug)]
pub struct Incoming<R> {
    source: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    /// Nothing has been read yet.
    pub fn new(source: R) -> Self {
        Self { source, buffer: Vec::new() }
    }

    /// The bytes that were read ahead.
    pub fn ahead(&self) -> &[u8] {
        &self.buffer
    }

    /// Reads once. 0 means that the peer has closed. May be cancelled without loss.
    pub async fn fill(&mut self) -> io::Result<usize> {
        self.source.read_buf(&mut self.buffer).await
    }

    /// A whole head, or none when the peer closed (or reset) the connection before its first byte.
    pub async fn head(&mut self) -> Result<Option<Head>, String> {
        loop {
            if let Some(blank) = find(&self.buffer, b"\r\n\r\n") {
                let head = Head::parse(&self.buffer[..blank]);
                self.buffer.drain(..blank + 4);
                return head.map(Some);
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(format!("no head within {MAX_HEAD} bytes"));
            }
            match self.fill().await {
                Ok(0) | Err(_) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err("closed within the head".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(format!("cut within the head: {error}")),
            }
        }
    }

    /// The next piece of a body, as it comes: of a chunked one the next chunk, else whatever has arrived.
    /// None ends it.
    pub async fn piece(&mut self, framing: &mut Framing) -> Result<Option<Vec<u8>>, String> {
        match *framing {
            Framing::Done | Framing::Length(0) => Ok(None),
            Framing::Chunked => self.chunk(framing).await,
            Framing::Length(left) => {
                self.at_least(1).await.map_err(|error| format!("{error}, {left} bytes before its end"))?;
                let piece: Vec<u8> = self.buffer.drain(..left.min(self.buffer.len())).collect();
                *framing = Framing::Length(left - piece.len());
                Ok(Some(piece))
            }
            Framing::UntilClose => {
                if self.buffer.is_empty() && self.fill().await.map_err(|error| error.to_string())? == 0 {
                    *framing = Framing::Done;
                    return Ok(None);
                }
                Ok(Some(std::mem::take(&mut self.buffer)))
            }
        }
    }

    async fn chunk(&mut self, framing: &mut Framing) -> Result<Option<Vec<u8>>, String> {
        let mut line = find(&self.buffer, b"\r\n");
        while line.is_none() {
            self.at_least(self.buffer.len() + 1).await?;
            line = find(&self.buffer, b"\r\n");
        }
        let line = line.unwrap_or_default();
        let size = chunk_size(&self.buffer[..line])?;
        self.at_least(line + 2 + size + 2).await?;
        let chunk: Vec<u8> = self.buffer.drain(..line + 2 + size + 2).skip(line + 2).collect();
        let data =
            chunk.strip_suffix(b"\r\n").ok_or_else(|| format!("no CRLF ends a chunk of {size} bytes"))?;
        if size == 0 {
            *framing = Framing::Done;
            return Ok(None);
        }
        Ok(Some(data.to_vec()))
    }

    async fn at_least(&mut self, count: usize) -> Result<(), String> {
        while self.buffer.len() < count {
            match self.fill().await {
                Ok(0) => return Err("closed within the body".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(format!("cut within the body: {error}")),
            }
        }
        Ok(())
    }
}

/// Bare hex digits: no extension, no space, no sign.
fn chunk_size(line: &[u8]) -> Result<usize, String> {
    let text = String::from_utf8_lossy(line);
    if line.is_empty() || line.len() > 8 || !line.iter().all(u8::is_ascii_hexdigit) {
        return Err(format!("no chunk size: {text:?}"));
    }
    usize::from_str_radix(&text, 16).map_err(|error| error.to_string())
}

/// Where `needle` begins.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
