//! Makes a request fit the model's window: lowers the limit on the reply to the room that is left and, where
//! the configuration says so, shortens the conversation.
//!
//! Mostly after the fact: a server refuses what does not fit within milliseconds, and says in numbers why.
//! Before the fact only where the window is known, the request's size suggests that it is near, and its
//! tokens can be counted exactly; an estimate alone changes nothing that a server has not refused. Called by
//! `exchange`.

use bytes::Bytes;

use super::attempt::{Attempt, Fit};
use super::config::OnOverflow;
use super::request::{ClientRequest, Route};
use translate::tokens;
use translate::{Fault, TINY_LIMIT, TooLarge, read_overflow};
use upstream::{Tier, Upstream, UpstreamError};
use wire::ChatRequest;
use wire::turn::Usage;

/// Smaller requests, in bytes, are not looked at before a server refuses them: they fit any window worth its
/// name.
const LARGE: usize = 16 << 10;
/// No text has fewer bytes for a thousand tokens of its prompt, as a request.
const FEWEST_PER_1000: u64 = 2000;
/// The largest request whose tokens are counted here: 3 ms for OpenClaw's 60 KB, 16 ms for 150 KB with 54
/// tools.
const COUNTED_HERE: usize = 1 << 20;

/// From this size on, in bytes, a request with tools is an agent's. OpenClaw's smallest has 38,000.
const AGENTS_REQUEST: usize = 32 << 10;

/// A reply with less room than this is not worth asking for.
const LEAST_ROOM: u64 = 16;
/// The room for a reply that trimming makes when the client set no limit, and below which it begins.
const ROOM_FOR_A_REPLY: u64 = 1024;
/// How many tokens before the window's end a server may stop a reply.
const NEARLY: u64 = 8;

/// A prompt's tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) tokens: u64,
    /// How far off that may be.
    reserve: u64,
    pub(super) by: &'static str,
}

impl Count {
    /// The server's own number, in a refusal, a reply's usage or an answer of `/tokenize`.
    fn from_server(tokens: u64) -> Self {
        Self { tokens, reserve: 8, by: "tokenize" }
    }

    fn room(self, window: u64) -> u64 {
        window.saturating_sub(self.tokens.saturating_add(self.reserve))
    }
}

impl ClientRequest {
    /// Returns the tokens of room that a prompt of this length leaves for a reply of this upstream. `None`
    /// while the window is not known.
    pub(super) fn room(&self, upstream: &Upstream, prompt: u64) -> Option<u64> {
        self.window(upstream).map(|window| Count::from_server(prompt).room(window))
    }

    /// The model's window in tokens, as far as it is known.
    fn window(&self, upstream: &Upstream) -> Option<u64> {
        self.profile.context_window.or_else(|| upstream.models.facts_of(self.target_model()).window)
    }

    /// The error of a useless reply whose usage shows that the prompt has filled the window: asking again
    /// would come to the same, and an overflow is what clients compact after.
    pub(super) fn filled_window(
        &self,
        upstream: &Upstream,
        fault: &Fault,
        usage: Option<Usage>,
    ) -> Option<UpstreamError> {
        if !matches!(fault, Fault::CutCall(_) | Fault::CutReasoning | Fault::Empty | Fault::Lost(_)) {
            return None;
        }
        let (window, Usage { prompt, completion, .. }) = self.window(upstream).zip(usage)?;
        let is_full = prompt.saturating_add(completion).saturating_add(NEARLY) >= window;
        // A short prompt after which a model thinks without end is no overflow.
        if !is_full || window.saturating_sub(prompt) > window / 8 {
            return None;
        }
        let text = format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains {prompt} input tokens, which leave no \
             room for the reply. Please reduce the length of the messages."
        );
        Some(UpstreamError { said: text.clone(), ..UpstreamError::overflow(text) })
    }

    /// True when a cut reply has reached the window's end and not the client's own limit.
    pub(super) fn fills_window(&self, attempt: &Attempt, usage: Usage) -> bool {
        let Usage { prompt, completion, .. } = usage;
        let is_at_limit = self.rules.token_limit.is_some_and(|limit| completion >= limit);
        let is_full = |window| prompt.saturating_add(completion).saturating_add(NEARLY) >= window;
        !is_at_limit
            && (attempt.fit.is_used_up(completion) || self.window(&attempt.upstream).is_some_and(is_full))
    }

    fn may_trim(&self) -> bool {
        self.profile.may_trim || self.settings.context.on_overflow == OnOverflow::Trim
    }
}

/// Learns about the models in the background of the first request for which it matters, and now and then
/// again: a large one, for the window, or one with tools whose model has a name that does not show what it
/// writes.
pub(super) fn learn_models(request: &ClientRequest, attempt: &Attempt) {
    let has_tools = matches!(request.profile.route, Route::Tools | Route::Live);
    if attempt.body.len() >= LARGE || (has_tools && request.rules.options.preferred_dialects.is_empty()) {
        attempt.upstream.learn_models_aside(&request.outgoing.headers);
    }
}

/// Refuses a request of OpenClaw whose limit says that it takes the context to be full: one token of a reply
/// is of no use to it, and the error makes it compact. A short request may mean such a limit, and so may
/// another client.
pub(super) fn refuse_full(request: &ClientRequest) -> Result<(), UpstreamError> {
    let has_tools = matches!(request.profile.route, Route::Tools | Route::Live);
    let hardly_any = request.rules.token_limit.is_some_and(|limit| limit <= TINY_LIMIT);
    let is_meant = request.profile.program.is_openclaw() && hardly_any && has_tools;
    if !(is_meant && request.plan.first.body.len() >= AGENTS_REQUEST) {
        return Ok(());
    }
    let window = request.window(&request.plan.first.upstream);
    let window = window.map_or_else(|| "exceeded".to_owned(), |window| format!("{window} tokens"));
    Err(UpstreamError::overflow(format!(
        "This model's maximum context length is {window}. However, the request's own limit leaves hardly a token \
         for the reply: the client takes the context to be full. Please reduce the length of the messages."
    )))
}

/// Finds the changes that a request needs before it is sent.
///
/// Also says how the tokens were counted, when they were.
pub(super) async fn fit_ahead(request: &ClientRequest, attempt: &Attempt) -> (Fit, Option<&'static str>) {
    let (body, fit) = (&attempt.body, Fit::default());
    let limit = attempt.token_limit.or(request.may_trim().then_some(ROOM_FOR_A_REPLY));
    let (Some(limit), true) = (limit, body.len() >= LARGE) else { return (fit, None) };
    let Some(window) = request.window(&attempt.upstream) else { return (fit, None) };
    let facts = attempt.upstream.models.facts_of(request.target_model());
    // A fifth less than replies showed, because no two conversations are alike.
    let fewest = facts.bytes_per_1000.map_or(FEWEST_PER_1000, |known| known * 4 / 5);
    let at_most = body.len() as u64 * 1000 / fewest;
    if at_most.saturating_add(limit) <= window {
        return (fit, None);
    }
    let body = body.to_bytes();
    let Some(count) = Box::pin(exact_count(request, attempt, &body)).await else { return (fit, None) };
    (next_smaller_fit(request, attempt, &body, count, window).unwrap_or(fit), Some(count.by))
}

/// Finds the change that follows from `error`, the answer to `sent`; `None` when it is about something else,
/// or nothing helps.
pub(super) async fn fit_again(
    request: &ClientRequest,
    attempt: &Attempt,
    sent: &Bytes,
    error: &UpstreamError,
) -> Option<Fit> {
    let fit = attempt.fit;
    let asked = fit.limit.or(attempt.token_limit);
    let overflow = read_overflow(&error.said, asked)?;
    if let Some(window) = overflow.window {
        attempt.upstream.models.learn(request.target_model(), |facts| facts.window = Some(window));
    }
    if overflow.fault == TooLarge::Prompt && !request.may_trim() {
        return None;
    }
    if overflow.window.is_none() && request.window(&attempt.upstream).is_none() {
        attempt.upstream.learn_models(&request.outgoing.headers).await;
    }
    let window = overflow.window.or_else(|| request.window(&attempt.upstream))?;
    let stated =
        overflow.prompt.or(overflow.over.map(|over| window.saturating_add(over))).map(Count::from_server);
    let mut count = match stated {
        Some(count) => count,
        None => count_tokens(request, attempt, sent).await,
    };
    match overflow.fault {
        // Whatever was counted here: the server says that there is no room.
        TooLarge::Prompt => count.tokens = count.tokens.max(window),
        TooLarge::Limit => count.reserve = count.reserve.max(window / 32 * u64::from(fit.rounds)),
    }
    next_smaller_fit(request, attempt, sent, count, window)
}

/// The error that leaves when nothing helped: an overflow that only the request's own limit distinguishes
/// from a bad limit.
pub(super) fn as_overflow(attempt: &Attempt, error: Box<UpstreamError>) -> Box<UpstreamError> {
    let overflow = read_overflow(&error.said, attempt.token_limit);
    let is_prompt = overflow.is_some_and(|overflow| overflow.fault == TooLarge::Prompt);
    if !is_prompt || error.tier == Tier::ContextOverflow {
        return error;
    }
    let text = "This model's maximum context length is exceeded; please reduce the length of the messages.";
    Box::new(UpstreamError { status: error.status, ..UpstreamError::overflow(text.to_owned()) })
}

/// Returns the next smaller form of a request that was sent as `sent`, with a prompt of this length.
fn next_smaller_fit(
    request: &ClientRequest,
    attempt: &Attempt,
    sent: &Bytes,
    count: Count,
    window: u64,
) -> Option<Fit> {
    let fit = attempt.fit;
    let room = count.room(window);
    let limit = fit.limit.or(attempt.token_limit);
    let rounds = fit.rounds + 1;
    let wish = limit.unwrap_or(ROOM_FOR_A_REPLY).min(window / 4);
    if request.may_trim() && room < wish.min(ROOM_FOR_A_REPLY) {
        let messages = messages_of(sent)?;
        let excess =
            wish - room.min(wish) + count.tokens.saturating_add(count.reserve).saturating_sub(window);
        // A twentieth more: what goes may have more bytes for a token than the rest. In steps, so that the
        // next turns of the conversation are cut in the same places, and the server's prefix cache holds.
        let bytes = u128::from(excess) * sent.len() as u128 * 21 / 20 / u128::from(count.tokens.max(1));
        let bytes = bytes.next_multiple_of(u128::from(window / 4).max(1));
        let target = messages.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
        return Some(Fit { messages: Some(target), limit: limit.map(|_| wish), rounds });
    }
    let may_be_lowered = limit.is_some_and(|limit| limit > room) && room >= LEAST_ROOM;
    may_be_lowered.then_some(Fit { limit: Some(room), rounds, ..fit })
}

/// The tokens of a prompt, counted in the best way there is.
pub(super) async fn count_tokens(request: &ClientRequest, attempt: &Attempt, body: &Bytes) -> Count {
    if let Some(count) = exact_count(request, attempt, body).await {
        return count;
    }
    let facts = attempt.upstream.models.facts_of(request.target_model());
    let tokens = body.len() as u64 * 1000 / facts.bytes_per_1000.unwrap_or(tokens::BYTES_PER_1000);
    Count { tokens, reserve: 16 + tokens / 8, by: "estimate" }
}

async fn exact_count(request: &ClientRequest, attempt: &Attempt, body: &Bytes) -> Option<Count> {
    if attempt.upstream.models.facts_of(request.target_model()).is_harmony {
        let body = Some(body.clone()).filter(|body| body.len() <= COUNTED_HERE)?;
        let count = move || ChatRequest::parse(&body).ok().map(|parsed| tokens::count_harmony(&parsed));
        // A word without end takes 0.3 s, so it gets a thread of its own.
        let tokens = tokio::task::spawn_blocking(count).await.ok()??;
        // The measured error is below 0.2 %; versions differ by some tokens in the frame.
        return Some(Count { tokens, reserve: 16 + tokens / 200, by: "o200k_harmony" });
    }
    let parsed = ChatRequest::parse(body).ok()?;
    attempt.upstream.count_tokens(&parsed.object, &request.outgoing.headers).await.map(Count::from_server)
}

fn messages_of(body: &Bytes) -> Option<usize> {
    let request = ChatRequest::parse(body).ok()?;
    Some(request.messages.iter().map(|message| message.to_json().len()).sum())
}
