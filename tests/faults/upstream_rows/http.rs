//! Faults of HTTP: no HTTP at all, framing, heads, statuses, connections.

#![expect(clippy::too_many_lines, reason = "these functions are tables")]

use std::time::Duration;

use serde_json::json;

use super::super::table::Want::{Event, Status};
use super::super::table::{Row, Want, hasty, upstream};
use super::super::upstream::Ask;
use super::{
    BROKE_OFF, CLOSED, EMPTY_STREAM, INVALID_JSON, NOT_HTTP, TIMED_OUT, bytes_of, chunked_head, chunks, send,
    wire,
};
use crate::support::http1::find;
use crate::support::replies;
use crate::support::script::{Fault, Script, Step, frame_chunk};

pub(super) fn not_http() -> Vec<Row> {
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

pub(super) fn framing() -> Vec<Row> {
    vec![
        upstream("length-too-long", "content-length says 50 bytes more than come", |ask| {
            length(ask, |n| (n + 50).to_string())
        }),
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
        }),
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
        }),
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

pub(super) fn heads() -> Vec<Row> {
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

pub(super) fn statuses() -> Vec<Row> {
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
        failing(502, Status(502, "upstream_unavailable")).asks(1, 3),
        failing(503, Status(503, "upstream_unavailable")).asks(1, 3),
        failing(504, Status(504, "upstream_unavailable")).asks(1, 2),
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

pub(super) fn connections() -> Vec<Row> {
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
            .memory(96),
        hasty("413-before-body", "413 before it has read the request (1.5 MiB), then it closes", |_| {
            Script::json(413, &replies::error(413, "too large", "Error")).header("connection", "close")
        })
        .all(Status(413, ""))
        .padding(3 << 19)
        .memory(96),
        hasty("resets-before-body", "it resets before it has read the request (1.5 MiB)", |_| {
            Script::no_reply(Fault::Reset)
        })
        .all(CLOSED)
        .asks(1, 8)
        .padding(3 << 19)
        .memory(96),
        hasty("never-reads", "it never reads the request (1.5 MiB)", |_| {
            Script::wire([Step::Wait(Duration::from_millis(11_500))])
        })
        .json(TIMED_OUT)
        .slow()
        .sse(Event(504))
        .padding(3 << 19)
        .memory(96),
    ]
}
