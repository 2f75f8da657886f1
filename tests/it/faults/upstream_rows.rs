//! The rows in which the upstream misbehaves.

#![expect(clippy::too_many_lines, reason = "these functions are tables")]

use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use super::bombs;
use super::soak;
use super::table::Want::{Answer, AsItCame, Event, Part, Skip, Status};
use super::table::{Row, Want, family, hasty, upstream};
use super::upstream::Ask;
use crate::support::http1::find;
use crate::support::replies;
use crate::support::script::{Fault, Script, Step, frame_chunk};

const CLOSED: Want = Status(502, "upstream_closed");
const BROKE_OFF: Want = Status(502, "upstream_broke_off");
const NOT_HTTP: Want = Status(502, "upstream_not_http");
const INVALID_JSON: Want = Status(502, "upstream_invalid_json");
const EMPTY_STREAM: Want = Status(502, "upstream_empty_stream");
const TOO_LONG: Want = Status(502, "upstream_reply_too_long");
const FRAME_TOO_LONG: Want = Status(502, "upstream_frame_too_long");
const INVALID_EVENT: Want = Status(502, "upstream_invalid_event");
const BAD_ENCODING: Want = Status(502, "upstream_bad_encoding");
const TIMED_OUT: Want = Status(504, "upstream_timeout");

/// As fast as a reader that nobody optimised can follow.
const PACE: Option<Duration> = Some(Duration::from_millis(10));

/// All of them.
pub fn rows() -> Vec<Row> {
    [
        family("No fault", vec![upstream("sound", "everything is in order", Ask::script)]),
        family("The upstream stalls", cuts("stalls", Fault::Stall)),
        family("The upstream resets (RST)", cuts("resets", Fault::Reset)),
        family("The upstream closes (FIN)", cuts("closes", Fault::Close)),
        family("The upstream is slow", slow()),
        family("What comes is not HTTP", not_http()),
        family("Lengths and framing", framing()),
        family("Heads", heads()),
        family("Statuses", statuses()),
        family("Connections", connections()),
        family("Bodies", bodies()),
        family("Events", events()),
        family("Encodings", encodings()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The proper reply, byte by byte as it would be sent.
fn wire(ask: &Ask) -> Vec<u8> {
    bytes_of(&ask.script())
}

fn bytes_of(script: &Script) -> Vec<u8> {
    let sent = |step| if let Step::Send(bytes) = step { bytes } else { vec![] };
    script.steps().into_iter().flat_map(sent).collect()
}

/// The right answer in chunks: one per SSE frame; three for JSON.
fn chunks(ask: &Ask) -> Vec<Vec<u8>> {
    if ask.stream {
        return ask.frames().into_iter().map(String::into_bytes).collect();
    }
    let payload = ask.payload();
    payload.chunks(payload.len() / 3 + 1).map(<[u8]>::to_vec).collect()
}

fn chunked(ask: &Ask, chunks: Vec<Vec<u8>>) -> Script {
    Script::chunked(200, ask.media_type(), chunks)
}

/// The bytes of a head that announces chunks.
fn chunked_head(ask: &Ask) -> Vec<u8> {
    ask.head("transfer-encoding: chunked\r\n")
}

fn send(bytes: impl Into<Vec<u8>>) -> Script {
    Script::wire([Step::Send(bytes.into())])
}

/// Where a reply is cut.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Nothing,
    StatusLine,
    Headers,
    Head,
    Chunk,
    Line,
    Last,
    All,
}

impl Place {
    fn what(self) -> &'static str {
        match self {
            Self::Nothing => "before the first byte of its reply",
            Self::StatusLine => "within the status line",
            Self::Headers => "within the headers",
            Self::Head => "between head and body",
            Self::Chunk => "within a chunk, in the middle of a character",
            Self::Line => "between two chunks, within a line or a string",
            Self::Last => "before the last byte of JSON, or before `[DONE]`",
            Self::All => "after all of JSON, or `[DONE]`, but without the last-chunk",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "before-head",
            Self::StatusLine => "in-status-line",
            Self::Headers => "in-headers",
            Self::Head => "after-head",
            Self::Chunk => "in-chunk",
            Self::Line => "in-line",
            Self::Last => "before-end",
            Self::All => "after-end",
        }
    }

    /// The bytes that come before the cut.
    pub(super) fn kept(self, ask: &Ask) -> Vec<u8> {
        let whole = wire(ask);
        let head = find(&whole, b"\r\n\r\n").unwrap() + 4;
        let first = |count: usize| whole[..count].to_vec();
        match self {
            Self::Nothing => vec![],
            Self::StatusLine => first(11),
            Self::Headers => first(40),
            Self::Head => first(head),
            Self::Chunk => first(find(&whole, "zwölf".as_bytes()).unwrap() + 3),
            Self::Line => {
                let payload = ask.payload();
                let half = find(&payload, "ume".as_bytes()).unwrap();
                [chunked_head(ask), frame_chunk(&payload[..half])].concat()
            }
            Self::Last if ask.stream => first(find(&whole, b"e\r\ndata: [DONE]").unwrap()),
            Self::Last => first(whole.len() - 1),
            Self::All => [chunked_head(ask), frame_chunk(&ask.payload())].concat(),
        }
    }
}

/// One row for each place where a reply can be cut.
fn cuts(verb: &str, fault: Fault) -> Vec<Row> {
    let places = [
        Place::Nothing,
        Place::StatusLine,
        Place::Headers,
        Place::Head,
        Place::Chunk,
        Place::Line,
        Place::Last,
        Place::All,
    ];
    places.map(|place| cut(verb, place, fault)).into()
}

fn cut(verb: &str, place: Place, fault: Fault) -> Row {
    let name = format!("{verb}-{}", place.name());
    let row = upstream(&name, &format!("it {verb} {}", place.what()), move |ask| {
        Script::wire([Step::Send(place.kept(ask)), Step::Fail(fault)])
    });
    let row = match (fault, place) {
        (Fault::Stall, _) => row.json(TIMED_OUT).sse(Event(504)),
        (_, Place::Nothing | Place::StatusLine | Place::Headers) => row.all(CLOSED).asks(2, 8),
        (_, Place::Head) => row.all(BROKE_OFF),
        _ => row.whole(BROKE_OFF).streamed(Event(502)),
    };
    // All was said: how the connection ends does not matter.
    if matches!(place, Place::Last | Place::All) { row.streamed(Answer) } else { row }
}

fn drip(bytes: &[u8], size: usize, pause: u64) -> Vec<Step> {
    let pause = (pause > 0).then_some(Step::Wait(Duration::from_millis(pause)));
    let piece = |piece: &[u8]| std::iter::once(Step::Send(piece.to_vec())).chain(pause.clone());
    bytes.chunks(size).flat_map(piece).collect()
}

fn slow() -> Vec<Row> {
    vec![
        upstream("unhurried", "it takes its time: 0.15 s before each part of its reply", |ask| {
            let pace = Duration::from_millis(soak::setting("SOAK_PACE", 150));
            let waits = |steps: Vec<Step>| steps.into_iter().flat_map(move |step| [Step::Wait(pace), step]);
            let chunks: Vec<Step> = chunks(ask).iter().map(|chunk| Step::Send(frame_chunk(chunk))).collect();
            let head = Step::Send(chunked_head(ask));
            Script::wire(waits([vec![head], chunks, vec![Step::Send(b"0\r\n\r\n".to_vec())]].concat()))
        })
        .slow(),
        upstream("drip-all", "the whole reply comes in pieces of 5 bytes", |ask| {
            Script::wire(drip(&wire(ask), 5, 0))
        }),
        upstream("drip-head", "the head comes in pieces of 5 bytes, 10 ms apart", |ask| {
            let whole = wire(ask);
            let (head, rest) = whole.split_at(find(&whole, b"\r\n\r\n").unwrap() + 4);
            Script::wire(drip(head, 5, 10).into_iter().chain([Step::Send(rest.to_vec())]))
        }),
        upstream("drip-body", "the body comes in pieces of 300 bytes, 30 ms apart", |ask| {
            let payload = ask.payload();
            chunked(ask, payload.chunks(300).map(<[u8]>::to_vec).collect()).every(Duration::from_millis(30))
        }),
        upstream("late", "the reply comes whole, after the head of a stream had to leave", |ask| {
            ask.script().delay(Duration::from_millis(1800))
        })
        .slow(),
        upstream("pause-in-body", "a pause of 2 s in the middle of the body", |ask| {
            chunked(ask, chunks(ask)).pause(2, Duration::from_secs(2))
        })
        .slow(),
        upstream("drip-past-timeout", "a piece of the body each 200 ms, for longer than `timeout`", |ask| {
            let payload = ask.payload();
            chunked(ask, payload.chunks(30).map(<[u8]>::to_vec).collect()).every(Duration::from_millis(200))
        })
        .json(TIMED_OUT)
        .slow()
        .sse(Event(504)),
        upstream(
            "spaces-past-timeout",
            "spaces before JSON, comments before events, for longer than `timeout`",
            |ask| {
                let filler = if ask.stream { ": wait\n\n" } else { "    " };
                chunked(ask, vec![filler.into(); 50]).every(Duration::from_millis(100)).then_stall()
            },
        )
        .json(TIMED_OUT)
        .slow()
        .sse(Event(504)),
    ]
}

fn not_http() -> Vec<Row> {
    let row = |name: &str, what: &str, bytes: &'static [u8]| {
        upstream(name, what, move |_| send(bytes)).all(NOT_HTTP)
    };
    vec![
        row("ssh-banner", "an SSH server answers", b"SSH-2.0-OpenSSH_9.2\r\n"),
        row(
            "binary-garbage",
            "bytes without meaning",
            b"\x16\x03\x01\x02\x00\x01\x00\xff\xfe\x00\x00\r\n\r\n",
        ),
        row("bare-json", "JSON without a head (HTTP/0.9)", b"{\"choices\": []}\r\n\r\n"),
        row(
            "http2-preface",
            "an HTTP/2 settings frame",
            b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00d\x00\x04\x00\xa0\x00\x00",
        ),
        row("status-not-a-number", "the status is `OK!`", b"HTTP/1.1 OK! fine\r\ncontent-length: 0\r\n\r\n"),
        row("status-0", "the status is 000", b"HTTP/1.1 000 Nothing\r\ncontent-length: 0\r\n\r\n"),
        row("http-version-3", "HTTP/3.0 in the status line", b"HTTP/3.0 200 OK\r\ncontent-length: 0\r\n\r\n"),
        row(
            "header-without-colon",
            "a header line without a colon",
            b"HTTP/1.1 200 OK\r\nnonsense\r\ncontent-length: 0\r\n\r\n",
        ),
        row(
            "header-name-with-space",
            "a space in a header's name",
            b"HTTP/1.1 200 OK\r\nx y: 1\r\ncontent-length: 0\r\n\r\n",
        ),
        row(
            "nul-in-header",
            "a NUL in a header's value",
            b"HTTP/1.1 200 OK\r\nx: a\x00b\r\ncontent-length: 0\r\n\r\n",
        ),
    ]
}

fn length(ask: &Ask, length: impl Fn(usize) -> String) -> Script {
    ask.raw(&format!("content-length: {}\r\n", length(ask.payload().len())))
}

fn framing() -> Vec<Row> {
    vec![
        upstream("length-too-long", "content-length says 50 bytes more than come", |ask| {
            length(ask, |n| (n + 50).to_string())
        })
        .whole(BROKE_OFF),
        upstream("length-too-short", "content-length says 50 bytes less than come", |ask| {
            length(ask, |n| (n - 50).to_string())
        })
        .whole(INVALID_JSON)
        .streamed(Event(502)),
        upstream("length-twice", "the same content-length twice", |ask| {
            length(ask, |n| format!("{n}\r\ncontent-length: {n}"))
        }),
        upstream("lengths-conflict", "two different content-lengths", |ask| {
            length(ask, |n| format!("{n}\r\ncontent-length: {}", n + 9))
        })
        .all(NOT_HTTP),
        upstream("length-negative", "content-length: -1", |ask| length(ask, |_| "-1".into())).all(NOT_HTTP),
        upstream("length-no-number", "content-length: many", |ask| length(ask, |_| "many".into()))
            .all(NOT_HTTP),
        upstream("length-overflow", "content-length: 2^64 and more", |ask| {
            length(ask, |_| "99999999999999999999".into())
        })
        .all(NOT_HTTP),
        upstream("length-huge", "content-length: 2^62, then the reply, then FIN", |ask| {
            length(ask, |_| (1u64 << 62).to_string())
        })
        .whole(BROKE_OFF),
        upstream("length-and-chunked", "both content-length and chunks", |ask| {
            Script::wire([Step::Send(
                [
                    ask.head("content-length: 5\r\ntransfer-encoding: chunked\r\n"),
                    frame_chunk(&ask.payload()),
                    b"0\r\n\r\n".to_vec(),
                ]
                .concat(),
            )])
        }),
        upstream("no-length", "neither length nor chunks; FIN ends the body", |ask| ask.raw("")),
        upstream("no-length-reset", "neither length nor chunks; RST ends the body in the middle", |ask| {
            let payload = ask.payload();
            let half = find(&payload, b"ume").unwrap();
            Script::wire([
                Step::Send([&ask.head("")[..], &payload[..half]].concat()),
                Step::Fail(Fault::Reset),
            ])
        })
        .whole(BROKE_OFF)
        .streamed(Event(502)),
        upstream("http10", "an HTTP/1.0 reply", |ask| {
            let bytes = bytes_of(&ask.raw(""));
            send([b"HTTP/1.0".to_vec(), bytes[8..].to_vec()].concat())
        }),
        upstream("chunk-size-no-number", "a chunk size of `zz`", |ask| in_chunks(ask, b"zz\r\n"))
            .whole(BROKE_OFF)
            .streamed(Event(502)),
        upstream("chunk-size-overflow", "a chunk size of 20 digits", |ask| {
            in_chunks(ask, b"fffffffffffffffffff1\r\n")
        })
        .whole(BROKE_OFF)
        .streamed(Event(502)),
        upstream("chunk-size-huge", "a chunk of 2^60 bytes is announced, then FIN", |ask| {
            in_chunks(ask, b"1000000000000000\r\nx")
        })
        .whole(BROKE_OFF)
        .streamed(Event(502)),
        upstream("chunk-without-crlf", "a chunk that CRLF does not end", |ask| {
            in_chunks(ask, b"3\r\nabcdef\r\n")
        })
        .whole(BROKE_OFF)
        .streamed(Event(502)),
        upstream("chunk-extensions", "extensions after each chunk's size", |ask| {
            let chunk = |chunk: &Vec<u8>| {
                [format!("{:x};a=\"b\"\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()
            };
            let body: Vec<u8> = chunks(ask).iter().flat_map(chunk).collect();
            send([chunked_head(ask), body, b"0\r\n\r\n".to_vec()].concat())
        }),
        upstream("chunk-extension-endless", "an extension of 1 MiB", |ask| {
            in_chunks(ask, &[b"3;".to_vec(), vec![b'a'; 1 << 20], b"\r\n".to_vec()].concat())
        })
        .whole(BROKE_OFF)
        .streamed(Event(502)),
        upstream("chunks-of-one-byte", "each byte is a chunk of its own", |ask| {
            let body: Vec<u8> = ask.payload().iter().flat_map(|byte| frame_chunk(&[*byte])).collect();
            send([&chunked_head(ask)[..], &body, b"0\r\n\r\n"].concat())
        }),
        upstream("trailers", "trailers after the last chunk", |ask| {
            let body: Vec<u8> = chunks(ask).iter().flat_map(|chunk| frame_chunk(chunk)).collect();
            send([chunked_head(ask), body, b"0\r\nx-sum: 1\r\nset-cookie: a=b\r\n\r\n".to_vec()].concat())
        }),
        upstream("trailers-endless", "trailers of 1 MiB after the last chunk", |ask| {
            let body: Vec<u8> = chunks(ask).iter().flat_map(|chunk| frame_chunk(chunk)).collect();
            let trailers = format!("0\r\nx-sum: {}\r\n\r\n", "1".repeat(1 << 20));
            send([chunked_head(ask), body, trailers.into_bytes()].concat())
        })
        .whole(BROKE_OFF),
        upstream("transfer-encoding-unknown", "transfer-encoding: fancy", |ask| {
            ask.raw("transfer-encoding: fancy\r\n")
        }),
        upstream("length-0", "content-length: 0 with status 200", |ask| ask.with(""))
            .whole(INVALID_JSON)
            .streamed(EMPTY_STREAM),
    ]
}

/// Half of the right answer in a good chunk, then these bytes, then FIN.
fn in_chunks(ask: &Ask, then: &[u8]) -> Script {
    let payload = ask.payload();
    let half = find(&payload, b"ume").unwrap();
    send([&chunked_head(ask)[..], &frame_chunk(&payload[..half]), then].concat())
}

fn with_head(ask: &Ask, lines: &str) -> Script {
    ask.raw(&format!("{lines}content-length: {}\r\n", ask.payload().len()))
}

fn heads() -> Vec<Row> {
    vec![
        upstream("header-1-mib", "a header of 1 MiB", |ask| with_head(ask, &format!("x-big: {}\r\n", "a".repeat(1 << 20)))).all(NOT_HTTP),
        upstream("header-endless", "a header that never ends", |ask| {
            let begun = ask.head("x-big: ");
            Script::wire([Step::Send(begun[..begun.len() - 4].to_vec()), Step::Repeat(vec![b'a'; 1 << 14])])
        })
        .all(NOT_HTTP),
        upstream("headers-64", "64 headers", |ask| with_head(ask, &"x-many: 1\r\n".repeat(64))),
        upstream("headers-1000", "1,000 headers", |ask| with_head(ask, &"x-many: 1\r\n".repeat(1000))).all(NOT_HTTP),
        upstream("header-latin1", "a header's value in Latin-1", |ask| {
            let mut bytes = bytes_of(&with_head(ask, "x-name: M?ller\r\n"));
            let at = find(&bytes, b"M?ller").unwrap() + 1;
            bytes[at] = 0xfc;
            send(bytes)
        }),
        upstream("header-folded", "a header folded over two lines", |ask| with_head(ask, "x-long: a\r\n  b\r\n")).all(NOT_HTTP),
        upstream("header-injection", "CR, LF and a whole reply within a header's value", |ask| {
            with_head(ask, "x-a: b\rset-cookie: evil=1\nx-c: d\r\n")
        })
        .all(NOT_HTTP),
        upstream("lines-end-with-lf", "the lines of the head end with LF alone", |ask| {
            let bytes = bytes_of(&with_head(ask, ""));
            let end = find(&bytes, b"\r\n\r\n").unwrap() + 4;
            let head: Vec<u8> = bytes[..end].iter().copied().filter(|byte| *byte != b'\r').collect();
            send([&head[..], &bytes[end..]].concat())
        }),
        upstream("set-cookie", "cookies and other headers that are not the client's business", |ask| {
            with_head(ask, "set-cookie: id=1\r\nserver: secret/1.0\r\nx-powered-by: x\r\n")
        }),
        upstream("upgrade", "101 and another protocol", |_| {
            send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x01\x02")
        })
        .all(Status(502, "upstream_error")),
    ]
}

fn interim(name: &str, what: &str, lines: &'static str) -> Row {
    upstream(name, what, move |ask| {
        Script::wire([
            Step::Send(lines.as_bytes().to_vec()),
            Step::Wait(Duration::from_millis(50)),
            Step::Send(bytes_of(&with_head(ask, ""))),
        ])
    })
}

fn failing(status: u16, want: Want) -> Row {
    upstream(&format!("status-{status}"), &format!("HTTP {status} with an error object"), move |_| {
        Script::json(status, &replies::error(status, "no", "Error")).header("connection", "close")
    })
    .all(want)
}

fn redirect(status: u16) -> Row {
    upstream(&format!("redirect-{status}"), &format!("HTTP {status} to another host"), move |_| {
        Script::whole(status, "text/plain", "moved")
            .header("location", "http://127.0.0.1:1/v1/chat/completions")
    })
    .all(Status(502, "upstream_error"))
    .asks(1, 1)
}

fn statuses() -> Vec<Row> {
    let bodiless = |status: u16| {
        upstream(&format!("status-{status}"), &format!("HTTP {status}, which has no body"), move |ask| {
            send(format!("HTTP/1.1 {status} X\r\ncontent-type: {}\r\n\r\n", ask.media_type()))
        })
    };
    vec![
        interim("status-100", "100 Continue before the reply", "HTTP/1.1 100 Continue\r\n\r\n"),
        interim(
            "status-103",
            "103 Early Hints before the reply",
            "HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n",
        ),
        upstream("status-100-endless", "100 Continue, again and again", |_| {
            let more = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(20);
            Script::wire(
                [Step::Send(more), Step::Wait(Duration::from_millis(20))].into_iter().cycle().take(1000),
            )
        })
        .json(TIMED_OUT)
        .slow()
        .sse(Event(504)),
        bodiless(204).whole(INVALID_JSON).streamed(EMPTY_STREAM),
        bodiless(304).all(Status(502, "upstream_error")),
        upstream("status-206", "HTTP 206 with half of the reply", |ask| {
            let payload = ask.payload();
            ask.with(&payload[..find(&payload, b"ume").unwrap()]).status_line("206 Partial Content")
        })
        .whole(INVALID_JSON)
        .streamed(Event(502)),
        redirect(301),
        redirect(302),
        redirect(307),
        redirect(308),
        upstream("redirect-loop", "HTTP 307 to itself", |_| {
            Script::whole(307, "text/plain", "").header("location", "/v1/chat/completions")
        })
        .all(Status(502, "upstream_error"))
        .asks(1, 1),
        failing(400, Status(400, "")).asks(1, 1),
        failing(401, Status(422, "upstream_credentials_refused")).asks(1, 1),
        failing(403, Status(422, "upstream_credentials_refused")).asks(1, 1),
        failing(404, Status(404, "not_found")).asks(1, 1),
        failing(408, Status(408, "")).asks(1, 1),
        failing(429, Status(429, "rate_limit_exceeded")).asks(1, 1),
        failing(500, Status(500, "upstream_error")).asks(1, 1),
        failing(502, Status(502, "upstream_unavailable")).asks(2, 4),
        failing(503, Status(503, "upstream_unavailable")).asks(2, 4),
        failing(504, Status(504, "upstream_unavailable")).asks(2, 4),
        failing(599, Status(599, "upstream_error")).asks(1, 1),
        upstream("status-999", "HTTP 999", |_| send("HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n"))
            .all(Status(502, "upstream_error")),
        upstream("error-body-endless", "HTTP 500 with a body without end", |_| {
            Script::endless(500, "text/plain", vec![b'x'; 1 << 16])
        })
        .all(Status(500, "upstream_error")),
        upstream("error-body-stalls", "HTTP 400 whose body never comes", |_| {
            Script::wire([
                Step::Send(b"HTTP/1.1 400 Bad\r\ncontent-length: 10\r\n\r\n".to_vec()),
                Step::Fail(Fault::Stall),
            ])
        })
        .json(Status(400, ""))
        .sse(Event(400)),
        upstream("error-body-resets", "HTTP 500 whose body breaks off", |_| {
            Script::json(500, &replies::error(500, "no", "Error")).reset_after(20)
        })
        .all(Status(500, "upstream_error")),
        upstream("error-page", "HTTP 500 with an HTML page", |_| {
            Script::whole(500, "text/html", "<html><head><title>Oops</title></head></html>")
        })
        .all(Status(500, "upstream_error")),
        upstream("503-once", "HTTP 503 once, then the reply", |ask| match ask.attempt {
            1 => Script::json(503, &json!({"error": {"message": "loading"}})),
            _ => ask.script(),
        })
        .asks(2, 2),
    ]
}

fn connections() -> Vec<Row> {
    vec![
        upstream(
            "restart",
            "it closes without an answer, as when a server restarts; then it answers",
            |ask| match ask.attempt {
                1 => Script::no_reply(Fault::Close),
                _ => ask.script(),
            },
        )
        .asks(2, 2),
        upstream("restart-reset", "it resets without an answer, then it answers", |ask| match ask.attempt {
            1 => Script::no_reply(Fault::Reset),
            _ => ask.script(),
        })
        .asks(2, 2),
        upstream("close-announced", "`connection: close`", |ask| ask.script().header("connection", "close")),
        upstream("keeps-open", "`connection: close`, but it leaves the connection open", |ask| {
            let bytes = bytes_of(&with_head(ask, "connection: close\r\n"));
            Script::wire([Step::Send(bytes), Step::Fail(Fault::Stall)])
        }),
        upstream(
            "closes-after-reply",
            "it announces a connection that lives, and closes it after the reply",
            |ask| Script::wire([Step::Send(wire(ask))]),
        ),
        upstream("resets-after-reply", "it resets the connection after the whole reply", |ask| {
            Script::wire([Step::Send(wire(ask)), Step::Fail(Fault::Reset)])
        }),
        upstream(
            "second-reply",
            "a second reply, of another conversation, follows at once on the same connection",
            |ask| {
                let other = Ask { marker: "mk9999999z".into(), ..ask.clone() };
                Script::wire([Step::Send([wire(ask), wire(&other)].concat()), Step::Fail(Fault::Stall)])
            },
        ),
        hasty("answers-before-body", "it answers before it has read the request (1.5 MiB)", Ask::script)
            .padding(3 << 19)
            .memory(160),
        hasty("413-before-body", "413 before it has read the request (1.5 MiB), then it closes", |_| {
            Script::json(413, &replies::error(413, "too large", "Error")).header("connection", "close")
        })
        .all(Status(413, ""))
        .padding(3 << 19)
        .memory(160),
        hasty("resets-before-body", "it resets before it has read the request (1.5 MiB)", |_| {
            Script::no_reply(Fault::Reset)
        })
        .all(CLOSED)
        .asks(1, 8)
        .padding(3 << 19)
        .memory(160),
        hasty("never-reads", "it never reads the request (1.5 MiB)", |_| {
            Script::wire([Step::Wait(Duration::from_secs(4))])
        })
        .json(TIMED_OUT)
        .slow()
        .sse(Event(504))
        .padding(3 << 19)
        .memory(160),
    ]
}

/// The completion with one more level of nesting, so many times, in a field that nobody knows.
fn nested(ask: &Ask, levels: usize) -> Vec<u8> {
    let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    with_field(ask, "\"x\"", &deep)
}

/// The right answer with this field in front: of the completion, or of the first content chunk.
fn with_field(ask: &Ask, name: &str, value: &str) -> Vec<u8> {
    let text = String::from_utf8(ask.payload()).unwrap();
    let place = if ask.stream { text.find("data: {").unwrap() + 7 } else { 1 };
    format!("{}{name}:{value},{}", &text[..place], &text[place..]).into_bytes()
}

fn replaced(ask: &Ask, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(ask.payload()).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    text.replacen(from, to, 1).into_bytes()
}

fn bodies() -> Vec<Row> {
    vec![
        upstream("empty", "an empty chunked body", |ask| chunked(ask, vec![]))
            .whole(INVALID_JSON)
            .streamed(EMPTY_STREAM),
        upstream("null", "`null`", |ask| ask.with("null")).whole(INVALID_JSON).streamed(EMPTY_STREAM),
        upstream("spaces", "nothing but blanks", |ask| ask.with(" \r\n\r\n \n"))
            .whole(INVALID_JSON)
            .streamed(EMPTY_STREAM),
        upstream("html", "HTTP 200 with an HTML page", |_| {
            Script::whole(200, "text/html", "<html><title>Login</title></html>")
        })
        .whole(Status(502, "upstream_not_json"))
        .streamed(Status(502, "upstream_not_a_stream")),
        upstream("type-missing", "no content-type", |ask| ask.script().without_header("content-type"))
            .streamed(Status(502, "upstream_not_a_stream")),
        upstream("type-wrong", "content-type: text/plain", |ask| {
            ask.script().header("content-type", "text/plain")
        })
        .streamed(Status(502, "upstream_not_a_stream")),
        upstream(
            "type-crossed",
            "JSON that is called an event stream, and events that are called JSON",
            |ask| {
                let other = if ask.stream { "application/json" } else { "text/event-stream" };
                ask.script().header("content-type", other)
            },
        )
        .streamed(INVALID_JSON),
        upstream("whole-for-stream", "a whole completion where a stream was asked for", |ask| {
            Script::json(200, &ask.completion())
        }),
        upstream("stream-for-whole", "a stream where a whole completion was asked for", |ask| {
            Script::sse(ask.frames())
        })
        .whole(Status(502, "upstream_not_json")),
        upstream("error-in-200", "HTTP 200 with an error object", |_| {
            Script::json(200, &replies::error(500, "EngineCore encountered an issue.", "Error"))
        })
        .all(Status(500, "upstream_error")),
        upstream("error-flat-in-200", "HTTP 200 with vLLM's older flat error", |_| {
            Script::json(200, &json!({"object": "error", "message": "broken", "code": 500}))
        })
        .all(Status(500, "upstream_error")),
        upstream("two-documents", "two completions, one after the other", |ask| {
            let payload = ask.completion().to_string();
            Script::whole(200, "application/json", payload.repeat(2))
        })
        .all(INVALID_JSON),
        upstream("text-after-json", "text after the JSON", |ask| {
            Script::whole(200, "application/json", format!("{} bye", ask.completion()))
        })
        .all(INVALID_JSON),
        upstream("json-cut", "JSON that ends in the middle, with a right length", |ask| {
            let payload = ask.payload();
            ask.with(&payload[..find(&payload, b"ume").unwrap()])
        })
        .whole(INVALID_JSON)
        .streamed(Event(502)),
        upstream("bom", "a byte order mark before the body", |ask| {
            ask.with([b"\xef\xbb\xbf", &ask.payload()[..]].concat())
        }),
        upstream("invalid-utf8", "a byte in the content that is not UTF-8", |ask| {
            let mut payload = ask.payload();
            let at = find(&payload, b"ume").unwrap();
            payload[at] = 0xff;
            ask.with(payload)
        })
        .whole(INVALID_JSON)
        .streamed(Event(502)),
        upstream("overlong-utf8", "an overlong encoding of `/`", |ask| {
            let payload = ask.payload();
            let at = find(&payload, b"ume").unwrap();
            ask.with([&payload[..at], b"\xc0\xaf", &payload[at..]].concat())
        })
        .whole(INVALID_JSON)
        .streamed(Event(502)),
        upstream("utf8-split", "the body is cut into chunks within its characters", |ask| {
            let payload = ask.payload();
            let cuts: Vec<usize> = (1..payload.len()).filter(|at| payload[*at] & 0xc0 == 0x80).collect();
            let mut from = 0;
            let mut pieces = Vec::new();
            for cut in cuts.into_iter().chain([payload.len()]) {
                pieces.push(payload[from..cut].to_vec());
                from = cut;
            }
            chunked(ask, pieces).every(Duration::from_millis(3))
        }),
        upstream("tab-in-string", "a tab within a string, not escaped", |ask| {
            ask.with(replaced(ask, "(mk", "\t(mk"))
        }),
        upstream("nul-between", "a NUL after the first `{`", |ask| ask.with(replaced(ask, "{", "{\0")))
            .whole(INVALID_JSON)
            .streamed(INVALID_EVENT),
        upstream("deep-10000", "10,000 levels of arrays in an unknown field", |ask| {
            ask.with(nested(ask, 10_000))
        })
        .whole(INVALID_JSON)
        .streamed(INVALID_EVENT),
        upstream("deep-open", "1,000,000 opening brackets", |ask| {
            let open = "[".repeat(1_000_000);
            ask.with(if ask.stream { format!("data: {open}\n\n") } else { open })
        })
        .whole(INVALID_JSON)
        .streamed(INVALID_EVENT),
        upstream("number-huge", "numbers such as 1e999999 and of 5,000 digits in unknown fields", |ask| {
            ask.with(with_field(ask, "\"x\":1e999999,\"y\"", &"9".repeat(5000)))
        }),
        upstream("created-huge", "`created` is 1e300", |ask| {
            ask.with(replaced_all(ask, "\"created\":17952", "\"created\":1e300,\"x\":17952"))
        })
        .plain(AsItCame)
        .passed(AsItCame),
        upstream("usage-negative", "a count of -5 tokens", |ask| {
            ask.with(replaced(ask, "\"completion_tokens\":31", "\"completion_tokens\":-5"))
        })
        .plain(AsItCame)
        .passed(AsItCame),
        upstream("key-twice", "the key `id` twice", |ask| ask.with(with_field(ask, "\"id\"", "\"other\""))),
        upstream("reply-endless", "a reply without end, in chunks", |ask| {
            let begun = if ask.stream { "data: {\"x\":\"" } else { "{\"x\":\"" };
            Script::wire([
                Step::Send([chunked_head(ask), frame_chunk(begun.as_bytes())].concat()),
                Step::Repeat(frame_chunk(&[b'x'; 1 << 16])),
            ])
        })
        .whole(TOO_LONG)
        .streamed(FRAME_TOO_LONG)
        .memory(120),
        upstream("reply-100-mib", "content-length: 100 MiB, which then comes", |ask| {
            let begun = if ask.stream { "data: {\"x\":\"" } else { "{\"x\":\"" };
            Script::wire([
                Step::Send([&ask.head("content-length: 104857600\r\n")[..], begun.as_bytes()].concat()),
                Step::Repeat(vec![b'x'; 1 << 16]),
            ])
        })
        .whole(TOO_LONG)
        .streamed(FRAME_TOO_LONG)
        .memory(120),
        upstream("no-choices", "a completion, or chunks, without choices", |ask| {
            let mut body = ask.completion();
            body["choices"] = json!([]);
            body["model"] = json!(ask.marker);
            let text = body.to_string();
            ask.with(if ask.stream { format!("data: {text}\n\ndata: [DONE]\n\n") } else { text })
        })
        .whole(INVALID_JSON)
        .live(EMPTY_STREAM)
        .passed(AsItCame),
        upstream("choices-no-list", "`choices` is a number", |ask| {
            let text = json!({"id": ask.marker, "choices": 7}).to_string();
            ask.with(if ask.stream { format!("data: {text}\n\ndata: [DONE]\n\n") } else { text })
        })
        .whole(INVALID_JSON)
        .live(EMPTY_STREAM)
        .passed(AsItCame),
        upstream(
            "escapes-lone-surrogate",
            "half of a surrogate pair as an escape in an unknown field",
            |ask| ask.with(with_field(ask, "\"x\"", "\"\\ud83d\"")),
        ),
    ]
}

fn replaced_all(ask: &Ask, from: &str, to: &str) -> Vec<u8> {
    String::from_utf8(ask.payload()).unwrap().replace(from, to).into_bytes()
}

/// The frames of the right answer, changed; there is no such fault where no stream is asked for.
fn of_events(
    name: &str,
    what: &str,
    change: impl Fn(&Ask, Vec<String>) -> Vec<String> + Send + Sync + 'static,
) -> Row {
    upstream(name, what, move |ask| Script::sse(change(ask, ask.frames()))).whole(Skip)
}

fn error_frame(code: u16) -> String {
    replies::frame(&replies::error(code, "EngineCore encountered an issue.", "Error"))
}

/// After half of the answer, this again and again: `pause` after each 32 KiB, or without a pause until the peer hangs up.
fn endless(name: &str, what: &str, filler: &'static str, pause: Option<Duration>) -> Row {
    upstream(name, what, move |ask| {
        let begun: Vec<u8> = ask.frames()[..4].concat().into_bytes();
        let begun = Step::Send([chunked_head(ask), frame_chunk(&begun)].concat());
        let piece = frame_chunk(filler.repeat((32 << 10) / filler.len()).as_bytes());
        let more = match pause {
            None => vec![Step::Repeat(piece)],
            Some(pause) => [Step::Send(piece), Step::Wait(pause)].into_iter().cycle().take(4000).collect(),
        };
        Script::wire(std::iter::once(begun).chain(more))
    })
    .whole(Skip)
    .memory(32)
}

fn events() -> Vec<Row> {
    let put = |place: usize, extra: &'static str| {
        move |_: &Ask, mut frames: Vec<String>| {
            frames.insert(place, extra.to_owned());
            frames
        }
    };
    vec![
        of_events("lines-crlf", "lines end with CRLF", |_, frames| {
            frames.iter().map(|f| f.replace('\n', "\r\n")).collect()
        }),
        of_events("lines-cr", "lines end with CR", |_, frames| {
            frames.iter().map(|f| f.replace('\n', "\r")).collect()
        }),
        of_events("lines-mixed", "every ending of lines in turn", |_, frames| {
            let ends = ["\n", "\r\n", "\r"];
            frames.iter().enumerate().map(|(i, frame)| frame.replace('\n', ends[i % 3])).collect()
        }),
        of_events("crlf-split", "lines end with CRLF, each CR and LF in a chunk of its own", |_, frames| {
            let text = frames.concat().replace('\n', "\r\n");
            text.split_inclusive(['\r', '\n']).map(str::to_owned).collect()
        }),
        of_events("no-space", "`data:` without the space after it", |_, frames| {
            frames.iter().map(|f| f.replace("data: ", "data:")).collect()
        }),
        of_events("many-data-lines", "one event over two `data` lines", |_, frames| {
            frames.iter().map(|f| f.replacen(",\"object\"", ",\ndata: \"object\"", 1)).collect()
        }),
        of_events("other-fields", "`event`, `id` and `retry` lines", |_, frames| {
            frames.iter().map(|frame| format!("event: message\nid: 7\nretry: 1\n{frame}")).collect()
        }),
        of_events("comments", "comments between the events", |_, frames| {
            frames.iter().map(|frame| format!(": ping\n\n{frame}: pong\n\n")).collect()
        }),
        of_events("empty-events", "empty events between the events", |_, frames| {
            frames.iter().map(|frame| format!("\n\ndata\n\n{frame}")).collect()
        }),
        of_events("many-in-one-chunk", "all events in one chunk", |_, frames| vec![frames.concat()]),
        endless("line-endless", "a line that never ends", "a", None).streamed(Event(502)).memory(120),
        endless("comments-endless", "comments without end", ": ping\n\n", PACE).streamed(Event(504)).slow(),
        endless("empty-events-endless", "blank lines without end", "\n\n", PACE).streamed(Event(504)).slow(),
        of_events("error-first", "an error event before any chunk", |_, _| {
            vec![error_frame(500), replies::DONE.into()]
        })
        .streamed(Status(500, "upstream_error")),
        of_events("error-after-role", "an error event after the role chunk", |_, frames| {
            vec![frames[0].clone(), error_frame(500), replies::DONE.into()]
        })
        .passed(Event(500))
        .live(Status(500, "upstream_error")),
        of_events("error-in-the-middle", "an error event after half of the answer", |_, frames| {
            [&frames[..4], &[error_frame(500), replies::DONE.into()]].concat()
        })
        .streamed(Event(500)),
        of_events("error-then-more", "an error event, and chunks after it", |_, mut frames| {
            frames.insert(4, error_frame(500));
            frames
        })
        .streamed(Event(500)),
        of_events("error-after-finish", "an error event after the finish reason", |_, mut frames| {
            frames.insert(frames.len() - 2, error_frame(500));
            frames
        })
        .streamed(Event(500)),
        of_events("not-json", "an event that is not JSON", put(4, "data: {\"id\": oops\n\n"))
            .streamed(Event(502)),
        of_events("not-an-object", "an event that is a JSON string", put(4, "data: \"hello\"\n\n"))
            .live(Event(502))
            .passed(AsItCame),
        of_events("done-only", "nothing but `[DONE]`", |_, _| vec![replies::DONE.into()])
            .streamed(EMPTY_STREAM),
        of_events("done-early", "`[DONE]` before the finish reason", |_, frames| {
            [&frames[..4], &[replies::DONE.into()]].concat()
        })
        .streamed(Part),
        of_events("done-missing", "no `[DONE]`", |_, mut frames| {
            frames.pop();
            frames
        }),
        of_events("done-twice", "`[DONE]` twice", |_, mut frames| {
            frames.push(replies::DONE.into());
            frames
        }),
        of_events("text-after-done", "a chunk of another conversation after `[DONE]`", |_, mut frames| {
            frames.push(replies::frame(&replies::chunk(&json!({"content": "mk9999999z"}), None)));
            frames
        }),
        of_events("last-line-open", "no blank line after the last event", |_, mut frames| {
            let last = frames.pop().unwrap();
            frames.push(last.trim_end().to_owned());
            frames
        }),
        of_events("role-missing", "no role chunk", |_, mut frames| {
            frames.remove(0);
            frames
        })
        .passed(AsItCame),
        of_events("role-always", "the role in every chunk", |_, frames| {
            frames
                .iter()
                .map(|f| f.replace("\"delta\":{\"content\"", "\"delta\":{\"role\":\"assistant\",\"content\""))
                .collect()
        })
        .passed(AsItCame),
        of_events("finish-missing", "no finish reason", |_, mut frames| {
            let finish = frames.len() - 3;
            frames.remove(finish);
            frames
        }),
        of_events("ids-change", "another id and model in every chunk", |_, frames| {
            let changed = |(i, frame): (usize, &String)| {
                frame
                    .replace("chatcmpl-9ba5d444ec39329c", &format!("chatcmpl-{i}"))
                    .replace("gpt-oss-20b", &format!("m{i}"))
            };
            frames.iter().enumerate().map(changed).collect()
        })
        .passed(AsItCame),
        of_events("content-null", "`content` is null in every other chunk", |_, mut frames| {
            let null = replies::frame(&replies::chunk(&json!({"content": Value::Null}), None));
            (1..5).rev().for_each(|place| frames.insert(place, null.clone()));
            frames
        }),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn encodings() -> Vec<Row> {
    vec![
        upstream("gzip", "gzip, although it was not offered", |ask| ask.script().gzip()),
        upstream("deflate", "deflate (zlib, as RFC 9110 has it), although it was not offered", |ask| {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&ask.payload()).unwrap();
            ask.with(encoder.finish().unwrap()).header("content-encoding", "deflate")
        }),
        upstream("brotli", "brotli, although it was not offered", |ask| ask.script().brotli()),
        upstream("gzip-cut", "gzip that breaks off", |ask| {
            let packed = gzip(&ask.payload());
            ask.with(&packed[..packed.len() / 2]).header("content-encoding", "gzip")
        })
        .all(BAD_ENCODING),
        upstream("gzip-checksum", "gzip with a wrong checksum", |ask| {
            let mut packed = gzip(&ask.payload());
            let end = packed.len();
            packed[end - 8] ^= 0x55;
            ask.with(packed).header("content-encoding", "gzip")
        })
        .whole(BAD_ENCODING),
        upstream("gzip-false", "content-encoding: gzip, but plain text", |ask| {
            ask.script().header("content-encoding", "gzip")
        })
        .all(BAD_ENCODING),
        upstream("brotli-false", "content-encoding: br, but plain text", |ask| {
            ask.script().header("content-encoding", "br")
        })
        .all(BAD_ENCODING),
        upstream("deflate-false", "content-encoding: deflate, but plain text", |ask| {
            ask.script().header("content-encoding", "deflate")
        })
        .all(BAD_ENCODING),
        upstream("zstd-false", "content-encoding: zstd, but plain text", |ask| {
            ask.script().header("content-encoding", "zstd")
        })
        .all(BAD_ENCODING),
        bomb("gzip", "650 KB of gzip", GZIP_BOMB.as_slice()),
        bomb("br", "104 bytes of brotli", bombs::BROTLI),
        bomb("zstd", "3 KB of zstd", ZSTD_BOMB.as_slice()),
        upstream("bomb-in-error", "HTTP 500 with 3 KB of zstd that unpack to 100 MiB", |_| {
            Script::whole(500, "text/plain", ZSTD_BOMB.as_slice()).header("content-encoding", "zstd")
        })
        .all(Status(500, "upstream_error")),
        upstream("encoding-unknown", "content-encoding: rot13", |ask| {
            ask.script().header("content-encoding", "rot13")
        }),
        upstream("encoding-identity", "content-encoding: identity", |ask| {
            ask.script().header("content-encoding", "identity")
        }),
        upstream("encoding-twice", "gzip of gzip", |ask| {
            ask.with(gzip(&gzip(&ask.payload()))).header("content-encoding", "gzip, gzip")
        })
        .whole(INVALID_JSON)
        .streamed(INVALID_EVENT),
    ]
}

static GZIP_BOMB: LazyLock<Vec<u8>> = LazyLock::new(bombs::gzip);
static ZSTD_BOMB: LazyLock<Vec<u8>> = LazyLock::new(bombs::zstd);

fn bomb(encoding: &'static str, what: &str, packed: &'static [u8]) -> Row {
    upstream(&format!("bomb-{encoding}"), &format!("{what} that unpack to 100 MiB"), move |ask| {
        ask.with(packed).header("content-encoding", encoding)
    })
    .whole(TOO_LONG)
    .streamed(FRAME_TOO_LONG)
    .memory(120)
}
