//! Faults in what HTTP carries: bodies, events, encodings.

#![expect(clippy::too_many_lines, reason = "these functions are tables")]

use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::bombs;
use super::super::table::Want::{AsItCame, Event, Part, Skip, Status};
use super::super::table::{Row, upstream};
use super::super::upstream::Ask;
use super::{
    BAD_ENCODING, EMPTY_STREAM, FRAME_TOO_LONG, INVALID_EVENT, INVALID_JSON, PACE, TOO_LONG, chunked,
    chunked_head,
};
use crate::support::http1::find;
use crate::support::replies;
use crate::support::script::{Script, Step, frame_chunk};

/// The completion with this many levels of nesting in an unknown field.
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

pub(super) fn bodies() -> Vec<Row> {
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
        .memory(96),
        upstream("reply-100-mib", "content-length: 100 MiB, which then comes", |ask| {
            let begun = if ask.stream { "data: {\"x\":\"" } else { "{\"x\":\"" };
            Script::wire([
                Step::Send([&ask.head("content-length: 104857600\r\n")[..], begun.as_bytes()].concat()),
                Step::Repeat(vec![b'x'; 1 << 16]),
            ])
        })
        .whole(TOO_LONG)
        .streamed(FRAME_TOO_LONG)
        .memory(96),
        upstream("no-choices", "a completion, or chunks, without choices", |ask| {
            let mut body = ask.completion();
            body["choices"] = json!([]);
            body["model"] = json!(ask.marker);
            let text = body.to_string();
            ask.with(if ask.stream { format!("data: {text}\n\ndata: [DONE]\n\n") } else { text })
        })
        .whole(Status(502, "no_answer"))
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

/// After half of the answer, this again and again: `pause` after each 32 KiB, or without a pause until the
/// peer hangs up.
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

pub(super) fn events() -> Vec<Row> {
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
        endless("line-endless", "a line that never ends", "a", None).streamed(Event(502)).memory(96),
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

pub(super) fn encodings() -> Vec<Row> {
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
    .memory(96)
}
