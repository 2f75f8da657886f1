//! Takes the texts of a request and its replies, for the log and the kept exchange, where the owner wants
//! either. Everything else about a request is in its record.

use std::sync::Arc;

use super::capture::{Collector, log_content};
use super::record::RequestRecord;

/// The part of a record that takes texts.
#[derive(Clone, Copy, Debug)]
pub struct RecordedContent<'a>(pub(super) &'a RequestRecord);

impl<'a> RecordedContent<'a> {
    /// Returns the collector of an exchange that is kept.
    pub fn collector(self) -> Option<&'a Arc<Collector>> {
        self.0.collector.as_ref().filter(|collector| collector.is_kept())
    }

    /// Notes the conversation of the request, if its exchange is kept.
    pub fn note_conversation(self, conversation: impl FnOnce() -> u64) {
        if let Some(collector) = self.collector() {
            collector.set_conversation(conversation());
        }
    }

    /// Takes the body of the client's request, for the log and the kept exchange.
    pub fn take_client_request(self, body: &[u8]) {
        self.log("client request", || body);
        self.0.collector.iter().for_each(|collector| collector.take_client_request(body));
    }

    /// Takes the body that is sent to an upstream.
    pub fn take_upstream_request<T: AsRef<[u8]>>(self, upstream: &str, body: impl Fn() -> T) {
        self.log("upstream request", &body);
        if let Some(collector) = &self.0.collector {
            collector.begin_attempt(upstream, || body().as_ref().to_vec());
        }
    }

    /// Notes the head of an upstream's reply.
    pub fn take_reply_head(self, status: u16, content_type: &str) {
        self.0.collector.iter().for_each(|collector| collector.take_reply_head(status, content_type));
    }

    /// Takes an upstream's whole reply.
    pub fn take_reply(self, body: &[u8]) {
        self.log("upstream reply", || body);
        self.0.collector.iter().for_each(|collector| collector.take_reply(body));
    }

    /// Takes a piece of an upstream's streamed reply. It is logged as a whole when the request ends.
    pub fn take_reply_piece(self, piece: &[u8]) {
        self.0.collector.iter().for_each(|collector| collector.take_reply_piece(piece));
    }

    /// Takes an upstream's error.
    pub fn take_upstream_error(self, text: &str) {
        self.log("upstream error", || text);
        self.0.collector.iter().for_each(|collector| collector.take_reply(text.as_bytes()));
    }

    /// Logs message text, which is only composed if that is allowed.
    fn log<T: AsRef<[u8]>>(self, what: &'static str, text: impl FnOnce() -> T) {
        if self.0.logs_content {
            let text = text();
            self.0.change_line(|line| {
                if let Some(trace) = &mut line.trace {
                    trace.add_content(what, text.as_ref());
                }
            });
            log_content(&self.0.start().id, what, text.as_ref());
        }
    }
}
