//! Makes a request fit the model's window: lowers the limit on the reply to the room that is left and, where the
//! configuration says so, shortens the conversation.
//!
//! Mostly after the fact: a server refuses what does not fit within milliseconds, and says in numbers why. Before the fact
//! only where the window is known, the request's size suggests that it is near, and its tokens can be counted exactly; an
//! estimate alone changes nothing that a server has not refused. Called by `dispatch`.

use std::sync::Arc;

use bytes::Bytes;

use super::{OnOverflow, Prepared, Relay, Route};
use crate::observe::SharedLine;
use crate::tokens;
use crate::translate::{TINY_LIMIT, TooLarge, lower_limit, read_overflow, trim};
use crate::turn::Usage;
use crate::upstream::{Tier, Upstream, UpstreamError};
use crate::wire::ChatRequest;

/// Smaller requests, in bytes, are not looked at before a server refuses them: they fit any window worth its name.
const LARGE: usize = 16 << 10;
/// No text has fewer bytes for a thousand tokens of its prompt, as a request.
const FEWEST_PER_1000: u64 = 2000;
/// The largest request whose tokens are counted here: 3 ms for OpenClaw's 60 KB, 16 ms for 150 KB with 54 tools.
const COUNTED_HERE: usize = 1 << 20;

/// A request with tools of so many bytes is an agent's; OpenClaw's smallest has 38,000.
const AGENTS_REQUEST: usize = 32 << 10;

/// A reply with less room than this is not worth asking for.
const LEAST_ROOM: u64 = 16;
/// The room for a reply that trimming makes when no limit is given, and below which it begins.
const ROOM_FOR_A_REPLY: u64 = 1024;
/// How often one request is made smaller.
const ROUNDS: u8 = 4;

/// What is changed in a request so that it fits. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// The size of the messages' texts together, in bytes.
    messages: Option<usize>,
    /// The limit on the reply, in tokens.
    limit: Option<u64>,
    rounds: u8,
}

/// A prompt's tokens.
#[derive(Clone, Copy, Debug)]
struct Count {
    tokens: u64,
    /// How far off that may be.
    reserve: u64,
    by: &'static str,
}

impl Count {
    /// The server's own number, in a refusal, a reply's usage or an answer of `/tokenize`.
    fn told(tokens: u64) -> Self {
        Self { tokens, reserve: 8, by: "tokenize" }
    }

    fn room(self, window: u64) -> u64 {
        window.saturating_sub(self.tokens.saturating_add(self.reserve))
    }
}

/// A request as it was sent: its reply's usage tells how long its tokens are.
#[derive(Debug)]
pub(super) struct Weighed {
    upstream: Arc<Upstream>,
    model: String,
    bytes: usize,
}

impl Weighed {
    /// `None` when it was not sent as it was prepared.
    pub(super) fn of(prepared: &Prepared, line: &SharedLine) -> Option<Self> {
        let whole = line.with(|line| line.trimmed.is_none());
        let (upstream, model) = (Arc::clone(&prepared.upstream), prepared.target_model.clone());
        whole.then(|| Self { upstream, model, bytes: prepared.body.len() })
    }

    pub(super) fn learn(&self, usage: Option<Usage>) {
        if let Some(usage) = usage {
            self.upstream.learn_usage(&self.model, self.bytes, usage.prompt);
        }
    }
}

impl Fit {
    /// The limit on the reply as it was sent; `asked` is the client's.
    pub(super) fn lowered(self, asked: Option<u64>) -> Option<u64> {
        asked.map(|asked| self.limit.map_or(asked, |limit| limit.min(asked)))
    }

    /// The body with the changes; `line` notes them.
    pub(super) fn apply(self, body: &Bytes, line: &SharedLine) -> Bytes {
        if self.messages.is_none() && self.limit.is_none() {
            return body.clone();
        }
        let Ok(mut request) = ChatRequest::parse(body) else { return body.clone() };
        if self.limit.is_some_and(|room| lower_limit(&mut request.object, room)) {
            line.with(|line| line.edit("max_tokens"));
        }
        if let Some(trimmed) = self.messages.and_then(|target| trim(&request.messages, target)) {
            line.with(|line| {
                line.edit("trim");
                let (results, messages) = (trimmed.results, trimmed.left_out);
                line.trimmed =
                    Some(format!("results={results}, messages={messages}, bytes={}", trimmed.bytes));
            });
            request.object.set("messages", trimmed.messages);
        }
        request.object.to_json().into()
    }
}

impl Prepared {
    /// How many tokens of room a reply has beside a prompt of so many. `None` while the window is not known.
    pub(super) fn room(&self, prompt: u64) -> Option<u64> {
        self.window().map(|window| Count::told(prompt).room(window))
    }

    /// The model's window in tokens, as far as it is known.
    fn window(&self) -> Option<u64> {
        self.facts.context_window.or_else(|| self.upstream.model_facts(&self.target_model).window)
    }
}

impl Relay {
    /// Learns the window beside the first large request and now and then again. Small requests do without.
    pub(super) async fn learn_windows(&self, prepared: &Prepared) {
        if prepared.body.len() >= LARGE {
            prepared.upstream.learn_windows(&prepared.headers).await;
        }
    }

    /// Refuses a request whose limit says that the client takes the context to be full: one token of a reply is no use to
    /// an agent, and the error makes OpenClaw compact. A short request with such a limit is somebody's wish.
    pub(super) fn refuse_full(&self, prepared: &Prepared) -> Result<(), UpstreamError> {
        let has_tools = matches!(prepared.facts.route, Route::Tools | Route::Live);
        let hardly_any = prepared.rules.token_limit.is_some_and(|limit| limit <= TINY_LIMIT);
        if !(hardly_any && has_tools && prepared.body.len() >= AGENTS_REQUEST) {
            return Ok(());
        }
        let window =
            prepared.window().map_or_else(|| "exceeded".to_owned(), |window| format!("{window} tokens"));
        Err(UpstreamError::overflow(format!(
            "This model's maximum context length is {window}. However, the request's own limit leaves hardly a token \
             for the reply: the client takes the context to be full. Please reduce the length of the messages."
        )))
    }

    /// What can be known to be needed before a request is sent.
    pub(super) async fn fit_ahead(&self, prepared: &Prepared, line: &SharedLine) -> Fit {
        let (body, fit) = (&prepared.body, Fit::default());
        let limit = prepared.rules.token_limit.or(self.trims().then_some(ROOM_FOR_A_REPLY));
        let (Some(limit), true) = (limit, body.len() >= LARGE) else { return fit };
        let Some(window) = prepared.window() else { return fit };
        let facts = prepared.upstream.model_facts(&prepared.target_model);
        // A fifth less than replies told, because no two conversations are alike.
        let fewest = facts.bytes_per_1000.map_or(FEWEST_PER_1000, |known| known * 4 / 5);
        let at_most = body.len() as u64 * 1000 / fewest;
        if at_most.saturating_add(limit) <= window {
            return fit;
        }
        let Some(count) = self.exact_count(prepared, body).await else { return fit };
        line.with(|line| line.counted = Some(count.by));
        self.smaller(fit, prepared, body, count, window).unwrap_or(fit)
    }

    /// What to change after `error`, the answer to `sent`; `None` when it is about something else, or nothing helps.
    pub(super) async fn fit_again(
        &self,
        fit: Fit,
        prepared: &Prepared,
        sent: &Bytes,
        error: &UpstreamError,
    ) -> Option<Fit> {
        let asked = fit.limit.or(prepared.rules.token_limit);
        let overflow = read_overflow(&error.said, asked).filter(|_| fit.rounds < ROUNDS)?;
        if let Some(window) = overflow.window {
            prepared.upstream.learn_model(&prepared.target_model, |facts| facts.window = Some(window));
        }
        if overflow.fault == TooLarge::Prompt && !self.trims() {
            return None;
        }
        if overflow.window.is_none() && prepared.window().is_none() {
            prepared.upstream.learn_windows(&prepared.headers).await;
        }
        let window = overflow.window.or_else(|| prepared.window())?;
        let told = overflow.prompt.or(overflow.over.map(|over| window.saturating_add(over))).map(Count::told);
        let mut count = match told {
            Some(count) => count,
            None => self.count(prepared, sent).await,
        };
        match overflow.fault {
            // Whatever was counted here: the server says that there is no room.
            TooLarge::Prompt => count.tokens = count.tokens.max(window),
            TooLarge::Limit => count.reserve = count.reserve.max(window / 32 * u64::from(fit.rounds)),
        }
        self.smaller(fit, prepared, sent, count, window)
    }

    /// The error that leaves when nothing helped: an overflow that only the request's own limit tells from a bad limit.
    pub(super) fn told(prepared: &Prepared, error: UpstreamError) -> UpstreamError {
        let overflow = read_overflow(&error.said, prepared.rules.token_limit);
        let is_prompt = overflow.is_some_and(|overflow| overflow.fault == TooLarge::Prompt);
        if !is_prompt || error.tier == Tier::ContextOverflow {
            return error;
        }
        let text =
            "This model's maximum context length is exceeded; please reduce the length of the messages.";
        UpstreamError { status: error.status, ..UpstreamError::overflow(text.to_owned()) }
    }

    fn trims(&self) -> bool {
        self.config.context.on_overflow == OnOverflow::Trim
    }

    /// The next smaller form of a request that was sent as `sent`, with a prompt of so many tokens.
    fn smaller(&self, fit: Fit, prepared: &Prepared, sent: &Bytes, count: Count, window: u64) -> Option<Fit> {
        let room = count.room(window);
        let limit = fit.limit.or(prepared.rules.token_limit);
        let rounds = fit.rounds + 1;
        let wish = limit.unwrap_or(ROOM_FOR_A_REPLY).min(window / 4);
        if self.trims() && room < wish.min(ROOM_FOR_A_REPLY) {
            let messages = messages_of(sent)?;
            let excess =
                wish - room.min(wish) + count.tokens.saturating_add(count.reserve).saturating_sub(window);
            // A twentieth more: what goes may have more bytes for a token than the rest. In steps, so that the next turns
            // of the conversation are cut in the same places, and the server's prefix cache holds.
            let bytes = u128::from(excess) * sent.len() as u128 * 21 / 20 / u128::from(count.tokens.max(1));
            let bytes = bytes.next_multiple_of(u128::from(window / 4).max(1));
            let target = messages.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
            return Some(Fit { messages: Some(target), limit: limit.map(|_| wish), rounds });
        }
        let may_be_lowered = limit.is_some_and(|limit| limit > room) && room >= LEAST_ROOM;
        may_be_lowered.then_some(Fit { limit: Some(room), rounds, ..fit })
    }

    /// The tokens of a prompt, counted in the best way there is.
    async fn count(&self, prepared: &Prepared, body: &Bytes) -> Count {
        if let Some(count) = self.exact_count(prepared, body).await {
            return count;
        }
        let facts = prepared.upstream.model_facts(&prepared.target_model);
        let tokens = body.len() as u64 * 1000 / facts.bytes_per_1000.unwrap_or(tokens::BYTES_PER_1000);
        Count { tokens, reserve: 16 + tokens / 8, by: "estimate" }
    }

    async fn exact_count(&self, prepared: &Prepared, body: &Bytes) -> Option<Count> {
        let request = ChatRequest::parse(body).ok()?;
        if prepared.upstream.model_facts(&prepared.target_model).is_harmony {
            let tokens = (body.len() <= COUNTED_HERE).then(|| tokens::harmony(&request))?;
            // The measured error is below 0.2 %; versions differ by some tokens in the frame.
            return Some(Count { tokens, reserve: 16 + tokens / 200, by: "o200k_harmony" });
        }
        prepared.upstream.tokenize(&request.object, &prepared.headers).await.map(Count::told)
    }
}

fn messages_of(body: &Bytes) -> Option<usize> {
    let request = ChatRequest::parse(body).ok()?;
    Some(request.messages.iter().map(|message| message.json().len()).sum())
}
