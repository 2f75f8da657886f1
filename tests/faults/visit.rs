//! One client's visit: what it sends, and what it saw. A client without a fault sends its request and reads
//! the reply.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::table::{Case, Want, Way};
use super::upstream::{Upstream, strange_markers};
use crate::support::accumulate::Rules;
use crate::support::api::Api;
use crate::support::client::{Arrived, Client, Reply, Request};
use crate::support::requests;
use crate::support::turn::Turn;

/// A client's request, from which faults are made.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The proper request.
    pub request: Request,
    /// Its JSON body.
    pub body: Value,
    /// The conversation's own word.
    pub marker: String,
    /// Tools are declared.
    pub tools: bool,
    /// A stream is asked for.
    pub stream: bool,
    /// The client's API.
    pub api: Api,
}

/// A step of a client.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends bytes; that the server hangs up meanwhile is no failure.
    Send(Vec<u8>),
    /// Sends the bytes in pieces of this size, with a pause after each.
    Drip(Vec<u8>, usize, Duration),
    /// Does nothing.
    Wait(Duration),
    /// Waits until the upstream got the request.
    Asked,
    /// Sends FIN and goes on.
    HalfClose,
    /// Waits for `100 Continue`.
    Continue,
    /// Reads a head.
    Head,
    /// Reads one piece of the body.
    Piece,
    /// Reads a whole reply, which must be what the row wants.
    Reply,
    /// Waits until the server closes the connection, whatever it still sends.
    UntilClosed,
    /// Hangs up with FIN.
    Leave,
    /// Hangs up with RST.
    Reset,
}

/// The reply as the client saw it.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A turn.
    Answer(Turn),
    /// An error as an HTTP status.
    Status(u16, String),
    /// An error event after a part of a turn.
    Event(u64, Turn),
    /// The failed end of another API's stream after a part of a turn.
    Failed(Turn),
    /// A status without a body.
    Bare(u16),
    /// Something that is not judged.
    Something(String),
    /// The connection was closed instead.
    Closed,
    /// Nothing was waited for.
    Nothing,
}

impl Visit {
    /// The request of a conversation for this row.
    pub fn new(case: Case, marker: &str, padding: usize) -> Self {
        let Case { row, api, way, stream, .. } = case;
        let tools = way != Way::Passed;
        let question = format!("What about {marker}?{}", " ".repeat(padding));
        let mut body = json!({
            "model": if way == Way::Live { "live-model" } else { "gpt-oss-20b" },
            "messages": [{"role": "user", "content": question}], "stream": stream,
        });
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if tools {
            body["tools"] = requests::with_tools()["tools"].clone();
        }
        let id = format!("{row}~{marker}~{}", if tools { "t" } else { "p" });
        let body = api.request(body);
        let request = Request::post(api.path(), body.to_string())
            .header("authorization", "Bearer client-key")
            .header("x-request-id", &id);
        Self { request, body, marker: marker.to_owned(), tools, stream, api }
    }

    /// The proper request's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.request.to_bytes()
    }

    /// The proper request's head, blank line included, and its body.
    pub fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let bytes = self.bytes();
        let end = crate::support::http1::find(&bytes, b"\r\n\r\n").unwrap() + 4;
        (bytes[..end].to_vec(), bytes[end..].to_vec())
    }

    /// The request with the lines that frame its body replaced by these (each ended by CRLF), and with this
    /// body.
    pub fn framed(&self, lines: &str, body: &[u8]) -> Vec<u8> {
        let (head, _) = self.parts();
        let head = String::from_utf8(head).unwrap();
        let kept: Vec<&str> = head.lines().filter(|line| !line.starts_with("content-length")).collect();
        let head = format!("{}\r\n{lines}\r\n", kept[..kept.len() - 1].join("\r\n"));
        [head.as_bytes(), body].concat()
    }

    /// The request with this line added to its head.
    pub fn with_line(&self, line: &str) -> Vec<u8> {
        let (head, body) = self.parts();
        [&head[..head.len() - 2], line.as_bytes(), b"\r\n\r\n", &body].concat()
    }

    /// The acts of a client without a fault.
    pub fn proper(&self) -> Vec<Act> {
        vec![Act::Send(self.bytes()), Act::Reply]
    }

    /// Goes through the acts, and judges every reply. `commit_after`: as configured.
    pub async fn run(
        &self,
        address: SocketAddr,
        upstream: &Upstream,
        acts: Vec<Act>,
        want: Want,
        commit_after: Duration,
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut client = Client::connect(address).await;
        let mut seen = Seen::Nothing;
        for act in acts {
            match act {
                Act::Send(bytes) => client.offer(&bytes).await,
                Act::Drip(bytes, size, pause) => {
                    for piece in bytes.chunks(size) {
                        client.offer(piece).await;
                        testing::waiting::delay(pause).await;
                    }
                }
                Act::Wait(pause) => testing::waiting::delay(pause).await,
                Act::Asked => upstream.asked(&self.marker).await,
                Act::HalfClose => client.half_close().await,
                Act::Continue => client.interim().await,
                Act::Head => drop(client.head().await),
                Act::Piece => drop(client.chunk().await),
                Act::Reply => {
                    seen = self.reply(&mut client, began, want, commit_after).await?;
                }
                Act::UntilClosed => {
                    let rest = client.rest().await;
                    self.look_for_strangers(&String::from_utf8_lossy(&rest))?;
                    if rest.is_empty() && seen == Seen::Nothing {
                        seen = Seen::Closed;
                    }
                }
                Act::Leave => break,
                Act::Reset => {
                    client.reset();
                    break;
                }
            }
        }
        self.judge(&seen, want, Duration::MAX, commit_after)
    }

    async fn reply(
        &self,
        client: &mut Client,
        began: Instant,
        want: Want,
        commit_after: Duration,
    ) -> Result<Seen, String> {
        let (seen, at) = match client.try_reply().await {
            Some(reply) => (self.read(&reply, want)?, reply.at),
            None => (Seen::Closed, Instant::now()),
        };
        self.judge(&seen, want, at - began, commit_after)?;
        Ok(seen)
    }

    fn read(&self, reply: &Reply, want: Want) -> Result<Seen, String> {
        let body = reply.body();
        let text = String::from_utf8_lossy(&body);
        self.look_for_strangers(&text)?;
        if let Some(broken) = &reply.broken {
            return Err(format!("the reply broke off ({broken}): {} {text}", reply.status));
        }
        if reply.status != 200 && body.is_empty() {
            return Ok(Seen::Bare(reply.status));
        }
        if reply.status != 200 && self.api != Api::Chat {
            self.api.check_error(reply);
            return Ok(Seen::Status(reply.status, String::new()));
        }
        if reply.status != 200 {
            let code = reply.error()["code"].as_str().unwrap_or_default().to_owned();
            return Ok(Seen::Status(reply.status, code));
        }
        if want == Want::AsItCame {
            return Ok(Seen::Something(text.into_owned()));
        }
        if self.api != Api::Chat {
            let (turn, failed) = self.api.read(reply, self.stream);
            return Ok(if failed { Seen::Failed(turn) } else { Seen::Answer(turn) });
        }
        let rules = Rules { as_it_came: true, ..Rules::default() };
        let turn = if self.stream { with_lf(reply).stream(&rules) } else { reply.completion(&rules) };
        Ok(match &turn.error {
            Some(error) => {
                let code = error["code"]
                    .as_u64()
                    .ok_or_else(|| format!("an error event without status: {error}"))?;
                Seen::Event(code, Turn::read(&turn))
            }
            None => Seen::Answer(Turn::read(&turn)),
        })
    }

    fn look_for_strangers(&self, text: &str) -> Result<(), String> {
        let strangers = strange_markers(text, &self.marker);
        if strangers.is_empty() {
            Ok(())
        } else {
            Err(format!("text of another conversation: {strangers:?}"))
        }
    }

    /// `after`: when the head came. What would have been a status is an event when the head of the stream had
    /// to leave before (`commit_after`).
    fn judge(&self, seen: &Seen, want: Want, after: Duration, commit_after: Duration) -> Result<(), String> {
        let whole = Turn::of(&self.marker, self.tools);
        let holds = match (seen, want) {
            (Seen::Answer(turn), Want::Answer) => *turn == whole,
            (Seen::Status(status, code), Want::Status(wanted, wanted_code)) => {
                *status == wanted && code == wanted_code
            }
            (Seen::Event(status, turn), Want::Event(wanted)) => {
                *status == u64::from(wanted) && turn.begins(&whole)
            }
            (Seen::Event(status, turn), Want::Status(wanted, _)) => {
                after >= commit_after && *status == u64::from(wanted) && turn.begins(&whole)
            }
            (Seen::Answer(turn), Want::Part) | (Seen::Failed(turn), Want::Failed(_)) => turn.begins(&whole),
            (Seen::Something(text), Want::AsItCame) => text.contains(&self.marker),
            (Seen::Bare(status), Want::Bare(wanted)) | (Seen::Status(status, _), Want::Failed(wanted)) => {
                *status == wanted
            }
            (Seen::Closed, Want::Closed)
            | (Seen::Nothing, Want::Nothing)
            | (Seen::Status(502, _) | Seen::Failed(_) | Seen::Answer(_), Want::Ended) => true,
            _ => false,
        };
        if holds { Ok(()) } else { Err(format!("wanted {want:?}, saw {seen:?}")) }
    }
}

/// CRLF is as good as LF (WHATWG HTML, section 9.2), and passes as it comes.
fn with_lf(reply: &Reply) -> Reply {
    let text = String::from_utf8_lossy(&reply.body()).replace("\r\n", "\n");
    let chunks = vec![Arrived { at: reply.at, bytes: text.into_bytes() }];
    Reply { chunks, ..reply.clone() }
}
