//! The rows in which the upstream misbehaves: where it stops, how slow it is, and in [`http`] and [`content`]
//! all the rest.

mod content;
mod http;

use std::time::Duration;

use super::soak;
use super::table::Want::{Answer, Event, Status};
use super::table::{Row, Want, family, upstream};
use super::upstream::Ask;
use crate::support::http1::find;
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

/// As fast as a plain reader can follow.
const PACE: Option<Duration> = Some(Duration::from_millis(10));

/// All of them.
pub fn rows() -> Vec<Row> {
    [
        family("No fault", vec![upstream("sound", "everything is in order", Ask::script)]),
        family("The upstream stalls", cuts("stalls", Fault::Stall)),
        family("The upstream resets (RST)", cuts("resets", Fault::Reset)),
        family("The upstream closes (FIN)", cuts("closes", Fault::Close)),
        family("The upstream is slow", slow()),
        family("What comes is not HTTP", http::not_http()),
        family("Lengths and framing", http::framing()),
        family("Heads", http::heads()),
        family("Statuses", http::statuses()),
        family("Connections", http::connections()),
        family("Bodies", content::bodies()),
        family("Events", content::events()),
        family("Encodings", content::encodings()),
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
pub(super) enum CutPoint {
    Nothing,
    StatusLine,
    Headers,
    Head,
    Chunk,
    Line,
    Last,
    All,
}

impl CutPoint {
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
        CutPoint::Nothing,
        CutPoint::StatusLine,
        CutPoint::Headers,
        CutPoint::Head,
        CutPoint::Chunk,
        CutPoint::Line,
        CutPoint::Last,
        CutPoint::All,
    ];
    places.map(|place| cut(verb, place, fault)).into()
}

fn cut(verb: &str, place: CutPoint, fault: Fault) -> Row {
    let name = format!("{verb}-{}", place.name());
    let row = upstream(&name, &format!("it {verb} {}", place.what()), move |ask| {
        Script::wire([Step::Send(place.kept(ask)), Step::Fail(fault)])
    });
    let row = match (fault, place) {
        (Fault::Stall, _) => row.json(TIMED_OUT).sse(Event(504)),
        (_, CutPoint::Nothing | CutPoint::StatusLine | CutPoint::Headers) => row.all(CLOSED).asks(1, 3),
        (_, CutPoint::Head) => row.all(BROKE_OFF),
        _ => row.whole(BROKE_OFF).streamed(Event(502)),
    };
    // All was said: how the connection ends does not matter.
    match place {
        CutPoint::All => row.all(Answer),
        CutPoint::Last => row.streamed(Answer),
        _ => row,
    }
}

fn drip(bytes: &[u8], size: usize, pause: u64) -> Vec<Step> {
    let pause = (pause > 0).then_some(Step::Wait(Duration::from_millis(pause)));
    let piece = |piece: &[u8]| std::iter::once(Step::Send(piece.to_vec())).chain(pause.clone());
    bytes.chunks(size).flat_map(piece).collect()
}

fn slow() -> Vec<Row> {
    vec![
        upstream(
            "unhurried",
            "it takes its time: 0.15 s before each of twelve pieces, which end anywhere",
            |ask| {
                let pace = Duration::from_millis(soak::setting("SOAK_PACE", 150));
                let waits =
                    |steps: Vec<Step>| steps.into_iter().flat_map(move |step| [Step::Wait(pace), step]);
                let payload = ask.payload();
                let pieces = payload.chunks(payload.len() / 12 + 1);
                let chunks: Vec<Step> = pieces.map(|piece| Step::Send(frame_chunk(piece))).collect();
                let head = Step::Send(chunked_head(ask));
                Script::wire(waits([vec![head], chunks, vec![Step::Send(b"0\r\n\r\n".to_vec())]].concat()))
            },
        )
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
            chunked(ask, payload.chunks(10).map(<[u8]>::to_vec).collect()).every(Duration::from_millis(200))
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
