//! The rows in which the client misbehaves.

#![expect(clippy::too_many_lines, reason = "these functions are tables")]

use std::time::Duration;

use serde_json::{Value, json};

use super::table::Want::{Answer, Bare, Closed, Nothing, Skip, Status};
use super::table::{Row, Want, client, family};
use super::upstream::Ask;
use super::upstream_rows::CutPoint;
use super::visit::{Act, Visit};
use crate::support::replies;
use crate::support::script::{Fault, Script, Step, frame_chunk};

/// All of them.
pub fn rows() -> Vec<Row> {
    [
        family("The client leaves (FIN)", leaves("leaves", &Act::Leave)),
        family("The client leaves (RST)", leaves("vanishes", &Act::Reset)),
        family("The client is slow", slow()),
        family("The client sends more, or otherwise, than it should", more()),
        family("The client's framing", framing()),
        family("The client's heads", heads()),
        family("The client's bodies", bodies()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const A_WHILE: Duration = Duration::from_millis(50);

/// Answers with the beginning of the right answer, and no more.
fn half(ask: &Ask) -> Script {
    Script::wire([Step::Send(CutPoint::Line.kept(ask)), Step::Fail(Fault::Stall)])
}

/// Content without end.
fn endless(_: &Ask) -> Script {
    let chunk = replies::frame(&replies::chunk(&json!({"content": "x".repeat(4000)}), None));
    Script::endless(200, "text/event-stream", chunk.repeat(16))
}

fn leaves(verb: &str, end: &Act) -> Vec<Row> {
    let row = |when: &str, what: &str, acts: fn(&Visit) -> Vec<Act>| {
        let end = end.clone();
        client(&format!("{verb}-{when}"), what, move |visit| {
            let mut acts = acts(visit);
            acts.push(end.clone());
            acts
        })
        .all(Nothing)
    };
    vec![
        row("at-once", "without sending anything", |_| vec![]).asks(0, 0),
        row("in-head", "in the middle of its request's head", |visit| {
            vec![Act::Send(visit.bytes()[..40].to_vec()), Act::Wait(A_WHILE)]
        })
        .asks(0, 0),
        row("in-body", "in the middle of its request's body", |visit| {
            let bytes = visit.bytes();
            vec![Act::Send(bytes[..bytes.len() - 20].to_vec()), Act::Wait(A_WHILE)]
        })
        .asks(0, 0),
        row("after-request", "right after its request", |visit| vec![Act::Send(visit.bytes())])
            .asks(0, 1)
            .upstream(|_| Script::silence()),
        row("before-head", "while the upstream is silent", |visit| {
            vec![Act::Send(visit.bytes()), Act::Asked, Act::Wait(A_WHILE)]
        })
        .upstream(|_| Script::silence()),
        row("in-upstream-body", "while the upstream is in the middle of its body", |visit| {
            vec![Act::Send(visit.bytes()), Act::Asked, Act::Wait(Duration::from_millis(300))]
        })
        .upstream(half),
        row("after-head", "once it has the head of its reply", |visit| {
            vec![Act::Send(visit.bytes()), Act::Head]
        })
        .upstream(half)
        .whole(Skip)
        .reads_stream(),
        row("in-stream", "once it has a piece of its reply", |visit| {
            vec![Act::Send(visit.bytes()), Act::Head, Act::Piece]
        })
        .upstream(endless)
        .whole(Skip)
        .reads_stream()
        .memory(24),
        row("while-retrying", "while respool tries again (503)", |visit| {
            vec![Act::Send(visit.bytes()), Act::Asked, Act::Wait(A_WHILE)]
        })
        .upstream(|_| Script::json(503, &json!({"error": {"message": "loading"}})))
        .asks(1, 3),
    ]
}

fn slow() -> Vec<Row> {
    vec![
        client("drips-head", "its head comes in pieces of 20 bytes, 10 ms apart", |visit| {
            let (head, body) = visit.parts();
            vec![Act::Drip(head, 20, Duration::from_millis(10)), Act::Send(body), Act::Reply]
        }),
        client("drips-body", "its body comes in pieces of 50 bytes, 10 ms apart", |visit| {
            let (head, body) = visit.parts();
            vec![Act::Send(head), Act::Drip(body, 50, Duration::from_millis(10)), Act::Reply]
        }),
        client("says-nothing", "it connects and sends nothing", |_| vec![Act::UntilClosed])
            .all(Closed)
            .asks(0, 0)
            .slow(),
        client("loris-head", "a byte of its head each 300 ms, for longer than `client_timeout`", |visit| {
            let head = visit.bytes()[..12].to_vec();
            vec![Act::Drip(head, 1, Duration::from_millis(300)), Act::UntilClosed]
        })
        .all(Closed)
        .asks(0, 0)
        .slow(),
        client(
            "stops-in-body",
            "half of its body, and then nothing for longer than `client_timeout`",
            |visit| {
                let bytes = visit.bytes();
                vec![Act::Send(bytes[..bytes.len() - 20].to_vec()), Act::Reply, Act::UntilClosed]
            },
        )
        .all(Status(408, "request_timeout"))
        .asks(0, 0),
        client(
            "stops-in-chunks",
            "a chunk of its body, and then nothing for longer than `client_timeout`",
            |visit| {
                let (_, body) = visit.parts();
                let begun = frame_chunk(&body[..20]);
                vec![
                    Act::Send(visit.framed("transfer-encoding: chunked\r\n", &begun)),
                    Act::Reply,
                    Act::UntilClosed,
                ]
            },
        )
        .all(Status(408, "request_timeout"))
        .asks(0, 0),
        client(
            "idle-after-reply",
            "it keeps its connection after the reply, and sends nothing more",
            |visit| vec![Act::Send(visit.bytes()), Act::Reply, Act::UntilClosed],
        )
        .slow(),
        client("reads-late", "it reads nothing for a second, then all", |visit| {
            vec![Act::Send(visit.bytes()), Act::Wait(Duration::from_secs(1)), Act::Reply]
        })
        .slow(),
        client(
            "stops-reading",
            "it reads nothing of a reply without end, for longer than `client_timeout`",
            |visit| {
                vec![
                    Act::Send(visit.bytes()),
                    Act::Asked,
                    Act::Wait(Duration::from_millis(4500)),
                    Act::UntilClosed,
                ]
            },
        )
        .all(Nothing)
        .upstream(endless)
        .whole(Skip)
        .memory(24)
        .slow(),
        client("stops-reading-and-leaves", "it reads nothing of a reply without end, and leaves", |visit| {
            vec![Act::Send(visit.bytes()), Act::Asked, Act::Wait(Duration::from_millis(600)), Act::Leave]
        })
        .all(Nothing)
        .upstream(endless)
        .whole(Skip)
        .memory(24)
        .slow(),
    ]
}

fn more() -> Vec<Row> {
    vec![
        client(
            "half-closes",
            "it closes its half after the request: taken as leaving, which TCP cannot tell from it",
            |visit| vec![Act::Send(visit.bytes()), Act::Asked, Act::HalfClose, Act::UntilClosed],
        )
        .all(Closed)
        .upstream(|ask| ask.script().delay(Duration::from_millis(700))),
        client("pipelines-2", "two requests at once", |visit| {
            vec![Act::Send(visit.bytes().repeat(2)), Act::Reply, Act::Reply]
        })
        .asks(2, 2),
        client("pipelines-16", "sixteen requests at once", |visit| {
            [vec![Act::Send(visit.bytes().repeat(16))], vec![Act::Reply; 16]].concat()
        })
        .asks(16, 16),
        client("one-after-another", "four requests, one after another, on one connection", |visit| {
            vec![vec![Act::Send(visit.bytes()), Act::Reply]; 4].concat()
        })
        .asks(4, 4),
        client("garbage-after-body", "bytes without meaning after its request", |visit| {
            let bytes = [visit.bytes(), b"\x00\xffgarbage\r\n\r\n".to_vec()].concat();
            vec![Act::Send(bytes), Act::Reply, Act::UntilClosed]
        }),
        client("crlf-after-body", "an empty line after its request, as some old clients send", |visit| {
            vec![
                Act::Send([&visit.bytes()[..], b"\r\n"].concat()),
                Act::Reply,
                Act::Send(visit.bytes()),
                Act::Reply,
            ]
        })
        .asks(2, 2),
        client(
            "expects-continue",
            "`expect: 100-continue`: it sends its body when respool says so",
            |visit| {
                let (head, body) = visit.parts();
                let head = [&head[..head.len() - 2], b"expect: 100-continue\r\n\r\n"].concat();
                vec![Act::Send(head), Act::Continue, Act::Send(body), Act::Reply]
            },
        ),
        client("expects-and-sends", "`expect: 100-continue`, but it does not wait", |visit| {
            vec![Act::Send(visit.with_line("expect: 100-continue")), Act::Reply]
        }),
        client("absolute-form", "the whole URL as the target", |visit| {
            let text = String::from_utf8(visit.bytes()).unwrap();
            vec![Act::Send(text.replacen("POST /v1", "POST http://respool/v1", 1).into()), Act::Reply]
        }),
        client("no-v1", "the path without its `/v1`", |visit| {
            let text = String::from_utf8(visit.bytes()).unwrap();
            vec![Act::Send(text.replacen("POST /v1/", "POST /", 1).into()), Act::Reply]
        }),
    ]
}

/// A request whose body is framed by these lines, with this body, gets this status of the HTTP layer and
/// nothing goes up.
fn refused(name: &str, what: &str, lines: &'static str) -> Row {
    client(name, what, move |visit| {
        let (_, body) = visit.parts();
        vec![Act::Send(visit.framed(lines, &body)), Act::Reply, Act::UntilClosed]
    })
    .all(Bare(400))
    .asks(0, 0)
}

fn in_chunks(visit: &Visit, end: &[u8]) -> Vec<u8> {
    let (_, body) = visit.parts();
    let body: Vec<u8> = body.chunks(50).flat_map(frame_chunk).collect();
    visit.framed("transfer-encoding: chunked\r\n", &[&body[..], end].concat())
}

fn framing() -> Vec<Row> {
    let broken = Status(400, "incomplete_body");
    let bad_chunk = |name: &str, what: &str, bytes: &'static [u8]| {
        client(name, what, move |visit| {
            let (_, body) = visit.parts();
            let begun = [&frame_chunk(&body[..20])[..], bytes].concat();
            vec![
                Act::Send(visit.framed("transfer-encoding: chunked\r\n", &begun)),
                Act::Reply,
                Act::UntilClosed,
            ]
        })
        .all(broken)
        .asks(0, 0)
    };
    vec![
        client("chunked", "its body comes in chunks", |visit| {
            vec![Act::Send(in_chunks(visit, b"0\r\n\r\n")), Act::Reply]
        }),
        client("chunked-trailers", "trailers after its chunks", |visit| {
            vec![Act::Send(in_chunks(visit, b"0\r\nx-sum: 1\r\nhost: evil\r\n\r\n")), Act::Reply]
        }),
        bad_chunk("chunk-size-bad", "a chunk size of `zz`", b"zz\r\n"),
        bad_chunk("chunk-size-too-large", "a chunk size of 20 digits", b"fffffffffffffffffff1\r\n"),
        bad_chunk("chunk-size-negative", "a chunk size of -1", b"-1\r\n"),
        bad_chunk("chunk-end-missing", "a chunk that CRLF does not end", b"3\r\nabcdef\r\n"),
        client(
            "length-and-chunked-request",
            "content-length and chunks (smuggling): the chunks count, and only they go up",
            |visit| {
                let (_, body) = visit.parts();
                let lines = "content-length: 4\r\ntransfer-encoding: chunked\r\n";
                vec![
                    Act::Send(visit.framed(lines, &[&frame_chunk(&body)[..], b"0\r\n\r\n"].concat())),
                    Act::Reply,
                ]
            },
        ),
        refused(
            "lengths-differ",
            "two different content-lengths (smuggling)",
            "content-length: 4\r\ncontent-length: 5\r\n",
        ),
        refused("length-list", "content-length: 4, 5", "content-length: 4, 5\r\n"),
        refused("length-signed", "content-length: +5", "content-length: +5\r\n"),
        refused("length-minus", "content-length: -5", "content-length: -5\r\n"),
        refused("length-hex", "content-length: 0x20", "content-length: 0x20\r\n"),
        refused(
            "length-too-large",
            "content-length of 30 digits",
            "content-length: 999999999999999999999999999999\r\n",
        ),
        refused("space-before-colon", "`content-length :` (smuggling)", "content-length : 5\r\n"),
        refused(
            "encoding-unknown-request",
            "transfer-encoding: xchunked (smuggling)",
            "transfer-encoding: xchunked\r\n",
        ),
        refused(
            "encoding-not-last",
            "transfer-encoding: chunked, identity (smuggling)",
            "transfer-encoding: chunked, identity\r\n",
        ),
        refused(
            "encoding-control",
            "a control character in transfer-encoding (smuggling)",
            "transfer-encoding: \x0bchunked\r\n",
        ),
        client("chunked-http10", "chunks in an HTTP/1.0 request (smuggling)", |visit| {
            let text = String::from_utf8(in_chunks(visit, b"0\r\n\r\n")).unwrap();
            vec![Act::Send(text.replacen("HTTP/1.1", "HTTP/1.0", 1).into()), Act::Reply, Act::UntilClosed]
        })
        .all(Bare(400))
        .asks(0, 0),
    ]
}

/// Not the proper request but these bytes, which the HTTP layer answers with this.
fn bytes(name: &str, what: &str, bytes: &'static [u8], want: Want) -> Row {
    client(name, what, move |_| vec![Act::Send(bytes.to_vec()), Act::Reply, Act::UntilClosed])
        .all(want)
        .asks(0, 0)
}

fn line(name: &str, what: &str, line: impl Fn() -> String + Send + Sync + 'static) -> Row {
    client(name, what, move |visit| vec![Act::Send(visit.with_line(&line())), Act::Reply])
}

fn heads() -> Vec<Row> {
    vec![
        bytes("garbage", "bytes without meaning", b"\x00\x01\x02\xff\xfe\r\n\r\n", Bare(400)),
        bytes(
            "tls",
            "a TLS handshake",
            b"\x16\x03\x01\x00\x2e\x01\x00\x00\x2a\x03\x03\x0d\x0a\x0d\x0a",
            Bare(400),
        ),
        bytes("http09", "HTTP/0.9", b"GET /\r\n\r\n", Bare(400)),
        bytes("http2", "an HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Closed),
        bytes("no-target", "a request line without a target", b"POST HTTP/1.1\r\nhost: x\r\n\r\n", Bare(400)),
        line("head-1-mib", "a header of 1 MiB", || format!("x-big: {}", "a".repeat(1 << 20)))
            .all(Bare(431))
            .asks(0, 0),
        client("head-endless", "a head without end", |visit| {
            let begun = visit.bytes()[..40].to_vec();
            let more =
                vec![Act::Send(b"x-more: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(2000)); 10];
            [vec![Act::Send(begun)], more, vec![Act::UntilClosed]].concat()
        })
        .all(Nothing)
        .asks(0, 0),
        line("headers-99", "90 headers", || vec!["x-many: 1"; 90].join("\r\n")),
        line("headers-10000", "10,000 headers", || vec!["x-many: 1"; 10_000].join("\r\n"))
            .all(Bare(431))
            .asks(0, 0),
        line("no-colon", "a header line without a colon", || "nonsense".into()).all(Bare(400)).asks(0, 0),
        line("nul", "a NUL in a header", || "x-a: a\0b".into()).all(Bare(400)).asks(0, 0),
        line("bare-cr", "a CR in a header (injection)", || "x-a: b\rx-evil: 1".into())
            .all(Bare(400))
            .asks(0, 0),
        line("folded", "a header folded over two lines", || "x-a: b\r\n c".into()).all(Bare(400)).asks(0, 0),
        line("hop-by-hop", "headers of its own connection, which must not go up", || {
            "connection: x-secret, keep-alive\r\nx-secret: 1\r\nte: trailers\r\nupgrade: h2c\r\nkeep-alive: 5"
                .into()
        }),
        line("two-hosts", "a second host", || "host: evil.test".into()),
        client("http10-request", "HTTP/1.0", |visit| {
            let text = String::from_utf8(visit.bytes()).unwrap();
            vec![Act::Send(text.replacen("HTTP/1.1", "HTTP/1.0", 1).into()), Act::Reply, Act::UntilClosed]
        })
        .json(Answer),
        client("lf-only", "the lines of its head end with LF alone", |visit| {
            let (head, body) = visit.parts();
            let head: Vec<u8> = head.into_iter().filter(|byte| *byte != b'\r').collect();
            vec![Act::Send([head, body].concat()), Act::Reply]
        }),
    ]
}

/// The proper request with another body, which respool refuses.
fn body(
    name: &str,
    what: &str,
    want: Want,
    change: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
) -> Row {
    client(name, what, move |visit| {
        let body = change(visit.parts().1);
        vec![Act::Send(visit.framed(&format!("content-length: {}\r\n", body.len()), &body)), Act::Reply]
    })
    .all(want)
    .asks(0, 0)
}

fn bodies() -> Vec<Row> {
    let json = Status(400, "invalid_json");
    let put = |text: &'static [u8]| move |body: Vec<u8>| [b"{\"x\":", text, b",", &body[1..]].concat();
    let too_large = Status(413, "request_too_large");
    vec![
        body("body-empty", "an empty body", json, |_| vec![]),
        body("body-null", "`null`", Status(400, "invalid_type"), |_| b"null".to_vec()),
        body("body-cut", "JSON that ends in the middle", json, |body| body[..body.len() - 9].to_vec()),
        body("body-twice", "two documents", json, |body| body.repeat(2)),
        body("body-invalid-utf8", "a byte that is not UTF-8", json, put(b"\"\xff\"")),
        body("body-deep", "10,000 levels of nesting", json, |body| {
            [b"{\"x\":", "[".repeat(10_000).as_bytes(), "]".repeat(10_000).as_bytes(), b",", &body[1..]]
                .concat()
        }),
        body("body-open", "1,000,000 opening brackets", json, |_| vec![b'['; 1_000_000]),
        body("body-nul", "a NUL between its tokens", json, |body| [b"{\0", &body[1..]].concat()),
        body("body-huge-number", "a number of 5,000 digits in an unknown field", Answer, |body| {
            [b"{\"x\":", "9".repeat(5000).as_bytes(), b",", &body[1..]].concat()
        })
        .asks(1, 1),
        body(
            "body-lone-surrogate",
            "half of a surrogate pair in an unknown field",
            Answer,
            put(b"\"\\ud83d\""),
        )
        .asks(1, 1),
        body("body-too-large", "content-length over `max_body`", too_large, |_| vec![b' '; (2 << 20) + 1]),
        client("body-too-large-chunked", "chunks over `max_body`", |visit| {
            let body: Vec<u8> = [frame_chunk(&vec![b' '; 1 << 18]).repeat(9), b"0\r\n\r\n".to_vec()].concat();
            vec![Act::Send(visit.framed("transfer-encoding: chunked\r\n", &body)), Act::Reply]
        })
        .all(too_large)
        .asks(0, 0),
        client("body-compressed", "content-encoding: gzip", |visit| {
            vec![Act::Send(visit.with_line("content-encoding: gzip")), Act::Reply]
        })
        .all(Status(415, "unsupported_content_encoding"))
        .asks(0, 0),
        client("body-type-wrong", "content-type: text/plain", |visit| {
            vec![Act::Send(visit.request.clone().header("content-type", "text/plain").to_bytes()), Act::Reply]
        }),
        client("many-choices", "`n` is 1,000,000,000", |visit| {
            let mut body = visit.body.clone();
            body["n"] = Value::from(1_000_000_000);
            let body = body.to_string();
            vec![
                Act::Send(visit.framed(&format!("content-length: {}\r\n", body.len()), body.as_bytes())),
                Act::Reply,
            ]
        })
        .upstream(|_| Script::json(400, &replies::error(400, "n is too large", "BadRequestError")))
        .all(Status(400, "")),
    ]
}
