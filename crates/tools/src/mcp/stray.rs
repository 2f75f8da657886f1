//! Output of a program that answers nothing: lines that are not messages, and replies with an unknown id. The
//! SDK ignores both, so that calls wait for a reply until their time is over. Here they are logged, and the
//! failed calls name them.

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use rmcp::model::{JsonRpcMessage, RequestId};
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::de::IgnoredAny;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

/// The most bytes of a line that are looked at. A longer one is only checked for how it begins.
const LONGEST_LINE: usize = 64 << 10;
/// The most characters that are quoted of a line.
const QUOTED: usize = 200;

/// The last stray output of a server.
#[derive(Debug, Default)]
pub(super) struct StrayOutput {
    server: String,
    last: Mutex<Option<(Instant, String)>>,
}

impl StrayOutput {
    pub(super) fn new(server: &str) -> Arc<Self> {
        Arc::new(Self { server: server.to_owned(), last: Mutex::default() })
    }

    fn note(&self, what: String) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A server that writes a log there would fill this one.
        if last.is_none() {
            let todo = "it must write one JSON-RPC message per line to its standard output, and nothing else";
            tracing::warn!(
                server = self.server,
                problem = what,
                todo,
                "an MCP server writes what cannot be read"
            );
        } else {
            tracing::debug!(server = self.server, problem = what, "an MCP server writes what cannot be read");
        }
        *last = Some((Instant::now(), what));
    }

    /// Returns what the server wrote last that answers nothing, if that was after `since`.
    pub(super) fn noted_after(&self, since: Instant) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| *at >= since).map(|(_, what)| what.clone())
    }
}

/// The standard output of a program, whose lines are looked at as they are read.
pub(super) struct WatchedLines<R> {
    pub(super) output: R,
    pub(super) stray: Arc<StrayOutput>,
    /// The beginning of the line that is being read.
    pub(super) line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> AsyncRead for WatchedLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.output).poll_read(context, buffer);
        for part in buffer.filled()[before..].split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST_LINE.saturating_sub(self.line.len()).min(part.len());
            self.line.extend_from_slice(&part[..room]);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if !may_be_message(&line) {
                    let line = String::from_utf8_lossy(&line);
                    let quoted: String = line.trim().chars().take(QUOTED).collect();
                    self.stray.note(format!("it wrote a line that is not a JSON-RPC message: {quoted}"));
                }
            }
        }
        read
    }
}

/// Returns true for a JSON object or array, for an empty line, and for the beginning of a long object.
fn may_be_message(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let begins = line.starts_with(b"{") || line.starts_with(b"[");
    let is_long = line.len() + 2 >= LONGEST_LINE;
    line.is_empty() || (begins && (is_long || serde_json::from_slice::<IgnoredAny>(line).is_ok()))
}

/// A connection whose replies are compared with its requests.
pub(super) struct WatchedReplies<T> {
    pub(super) inner: T,
    pub(super) stray: Arc<StrayOutput>,
    /// The requests without a reply.
    pub(super) open: HashSet<RequestId>,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for WatchedReplies<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &item {
            self.open.insert(request.id.clone());
        }
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = self.inner.receive().await;
        let id = match &message {
            Some(JsonRpcMessage::Response(response)) => Some(&response.id),
            Some(JsonRpcMessage::Error(error)) => error.id.as_ref(),
            _ => None,
        };
        if let Some(id) = id.filter(|id| !self.open.remove(id)) {
            self.stray.note(format!("it replied to the id {id}, which no open request has"));
        }
        message
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unreadable_lines_are_noted() {
        let check = async |output: &str, expected: Option<&str>| {
            let (stray, began) = (StrayOutput::new("raw"), Instant::now());
            let mut read = String::new();
            let lines =
                WatchedLines { output: output.as_bytes(), stray: Arc::clone(&stray), line: Vec::new() };
            // In small pieces.
            tokio::io::BufReader::with_capacity(3, lines).read_to_string(&mut read).await.unwrap();
            assert_eq!((read.as_str(), stray.noted_after(began).as_deref()), (output, expected));
        };
        check("{\"id\": 1}\n\n[]\r\n", None).await;
        check(&format!("{{\"a\": \"{}\"}}\n", "x".repeat(LONGEST_LINE)), None).await;
        check("{}\nbanana\r\n{}\nno end", Some("it wrote a line that is not a JSON-RPC message: banana"))
            .await;
    }
}
