//! Reads a client's request once, into a value that never changes: what is wanted, who may serve it, and the first attempt.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::time::Instant;

use super::attempt::{Attempt, Form};
use super::client::{Origin, RequestProgress, Wire};
use super::config::{Modes, ReasoningField, RelayConfig, ToolParsing, ToolsMode};
use super::look_back::LookBack;
use super::memory::Recollection;
use super::recent::RecentRequest;
use super::{Relay, client};
use telemetry::{RequestFacts, RequestRecord, metrics};
use tool_call_parser::PreferredDialects;
use translate::{
    Additions, ClientProgram, FreeTextPatterns, LoopFound, Outbound, ReplyRules, STOP_REASON, Situation,
    needs_version, used_ids,
};
use upstream::{Serving, Upstream, Who, choose, conversation};
use wire::turn::Turn;
use wire::{ApiError, ChatRequest, ErrorCode, Pieces};

/// The header that names a request in logs on both sides.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// With tools: asked whole, read by the engine.
    Tools,
    /// With tools: read by the engine as it streams.
    Live,
    /// Without tools: forwarded as it streams.
    Stream,
    /// Without tools: forwarded as it stands.
    Plain,
}

impl Route {
    /// A stable name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Live => "live",
            Self::Stream | Self::Plain => "passthrough",
        }
    }
}

/// What the client asked for, as far as the reply depends on it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The client's protocol.
    pub wire: Wire,
    /// The program that asked.
    pub program: ClientProgram,
    /// The client lets what is oldest be shortened where the conversation does not fit.
    pub may_trim: bool,
    /// What the free text of its custom tools must match.
    pub free_text: Arc<FreeTextPatterns>,
    /// The model's name as the client wrote it; empty when it gave none.
    pub model: String,
    /// True when the configuration names the model, or an upstream is known to serve it.
    pub model_is_known: bool,
    /// A stream was asked for.
    pub stream: bool,
    /// How it is served.
    pub route: Route,
    /// Usage was asked for; in a completion it always comes.
    pub usage: bool,
    /// How many choices.
    pub choices: u64,
    /// The name under which reasoning leaves; `None`: not at all.
    pub reasoning: Option<&'static str>,
    /// Fields to keep although OpenAI's API has no such field.
    pub keep: Vec<String>,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The model's window, when the configuration says it.
    pub context_window: Option<u64>,
}

/// A client's request as it was read. It never changes: each try makes an `Attempt` from it, and when no other can follow, its
/// bytes are let go.
#[derive(Debug)]
pub struct ClientRequest {
    /// What the client asked for.
    pub facts: Arc<Facts>,
    /// Why the loop guard answers in the model's place.
    pub loop_found: Option<LoopFound>,
    /// What is added to the conversation.
    pub added: Additions,
    /// The attempt for the upstream that is likely to be asked first.
    pub(super) first: Attempt,
    /// The upstreams that may serve it, the conversation's own one first.
    pub(super) upstreams: Arc<[Arc<Upstream>]>,
    /// On whose behalf places are taken.
    pub(super) who: Who,
    pub(super) recollection: Option<Recollection>,
    /// What the request says about its reply.
    pub(super) rules: ReplyRules,
    /// The ids of all calls in the conversation.
    pub(super) taken_ids: Arc<HashSet<String>>,
    pub(super) outbound: Outbound,
    /// Unparsed text is wanted, where the model has any.
    pub(super) wants_raw: bool,
    /// The client left the choice of calls to the model, and the form of the answer too.
    pub(super) is_free: bool,
    pub(super) has_tools: bool,
    pub(super) has_stop: bool,
    /// Steps of the client's turn before this request.
    pub(super) steps: u32,
    /// The request as a chat completion.
    pub(super) body: Bytes,
    pub(super) target_model: String,
    pub(super) headers: HeaderMap,
    pub(super) path_and_query: Cow<'static, str>,
    pub(super) received: Instant,
    /// Where everything that happens to it is recorded.
    pub record: RequestRecord,
    pub(super) progress: Arc<RequestProgress>,
    /// The settings of the moment in which it came.
    pub(super) settings: Arc<RelayConfig>,
}

enum Draft {
    Ready(Arc<ClientRequest>),
    /// The request's form depends on this upstream's version.
    NeedsVersion(Arc<Upstream>),
    /// No upstream is known to serve this model.
    NeedsModelLists(String),
}

/// What has been looked up for a draft.
#[derive(Clone, Copy, Default)]
struct LookedUp {
    version: bool,
    model_lists: bool,
}

impl ClientRequest {
    /// Remembers the reasoning of a turn that leaves.
    pub(super) fn remember(&self, turn: &Turn) {
        if let Some(recollection) = &self.recollection {
            recollection.remember(turn, std::time::Instant::now());
        }
    }

    /// Lets go of what only another attempt would need.
    pub(super) fn release_bytes(&mut self) {
        (self.body, self.first.body) = (Bytes::new(), Pieces::default());
        self.headers = HeaderMap::new();
    }

    /// The name of the upstream that is likely to be asked first.
    pub fn likely_upstream(&self) -> &str {
        &self.first.upstream.name
    }

    /// What the request's record says of it.
    pub fn recorded_facts(&self) -> RequestFacts<'_> {
        RequestFacts {
            model: &self.facts.model,
            model_is_known: self.facts.model_is_known,
            stream: self.facts.stream,
            upstream: self.likely_upstream(),
            edits: &self.first.edits,
            loop_warned: self.added.warning.as_ref().map(|found| found.kind.as_str()),
        }
    }
}

fn no_upstream() -> ApiError {
    ApiError::new(500, ErrorCode::NoUpstream, "no upstream is configured")
}

impl Relay {
    /// Reads a chat completion request.
    ///
    /// # Errors
    /// 400 when the body is no such request, 404 when no upstream serves its model.
    pub async fn read(&self, body: Bytes, mut origin: Origin) -> Result<Arc<ClientRequest>, ApiError> {
        let mut looked_up = LookedUp::default();
        loop {
            match self.draft(&body, &mut origin, looked_up)? {
                Draft::Ready(request) => return Ok(request),
                // Boxed as they are rare: every request pays for the size of its future.
                Draft::NeedsVersion(upstream) => {
                    Box::pin(upstream.probe_version()).await;
                    looked_up.version = true;
                }
                Draft::NeedsModelLists(model) => {
                    Box::pin(self.fleet.refreshed(&model)).await;
                    looked_up.model_lists = true;
                }
            }
        }
    }

    /// Everything that follows from the body. The form of the first attempt may depend on the upstream's version, and the
    /// upstream on lists of models: the draft says so when they are not known and were not looked up.
    fn draft(&self, body: &Bytes, origin: &mut Origin, looked_up: LookedUp) -> Result<Draft, ApiError> {
        let now = std::time::Instant::now();
        let recent = self.recent.like(body, now);
        let known = recent.as_deref().map(RecentRequest::known).unwrap_or_default();
        let mut request = ChatRequest::parse_known(body, known).map_err(|fault| ApiError::from(&fault))?;
        let model = request.model();
        let target_model = self.config.target(&model).to_owned();
        let who = self.who(origin, &request);
        let upstreams: Arc<[_]> = match self.fleet.serving(&target_model, who.conversation) {
            Serving::Known(order) => order,
            Serving::Perhaps(order) if looked_up.model_lists => order,
            Serving::Nobody if looked_up.model_lists => {
                origin.record.model(&model);
                return Err(self.unknown_model(&model));
            }
            Serving::Perhaps(_) | Serving::Nobody => return Ok(Draft::NeedsModelLists(target_model)),
        };
        let upstream = first_of(&upstreams).ok_or_else(no_upstream)?;
        let LookBack { recollection, added, missed, steps, loop_found } =
            self.look_back(&request, &origin.headers);
        let depends_on_version = needs_version(&request) || !added.reasoning.is_empty();
        if !looked_up.version && upstream.target().version.is_none() && depends_on_version {
            return Ok(Draft::NeedsVersion(upstream));
        }
        metrics::reasoning_recalled(added.reasoning.len(), missed);
        let modes = self.config.modes(&model);
        let facts = self.facts(&request, model, modes, origin);
        let outbound = outbound_form(facts.route);
        let wants_raw = modes.tool_parsing == ToolParsing::Raw && Situation::is_free_to_call(&request);
        let prior = likely_dialects(&facts, modes.dialects, &target_model, &upstream);
        let tools = self.recent.declared_tools(&request, recent.as_deref());
        // Before anything is edited.
        self.recent.keep(body, &request, recent.as_ref(), &tools, now);
        let response_template = self.config.response_template(&facts.model);
        let rules = ReplyRules { response_template, ..ReplyRules::of(&request, tools, prior) };
        let taken_ids = Arc::new(used_ids(&request));
        let (is_free, has_tools, has_stop) =
            (Situation::is_free(&request), request.tools().is_some(), request.object.get("stop").is_some());
        let form = Form {
            outbound,
            is_raw: wants_raw && !upstream.model_facts(&target_model).is_harmony,
            model: &facts.model,
            target_model: &target_model,
            added: &added,
            rules: &upstream.rules(&target_model),
        };
        let (sent, edits) = form.edited(&mut request, body, &upstream);
        Ok(Draft::Ready(Arc::new(ClientRequest {
            first: Attempt::unchanged(upstream, sent, edits, rules.token_limit),
            upstreams,
            who,
            loop_found,
            added,
            recollection,
            rules,
            taken_ids,
            outbound,
            wants_raw,
            is_free,
            has_tools,
            has_stop,
            steps,
            body: body.clone(),
            target_model,
            headers: outgoing(std::mem::take(&mut origin.headers), &origin.request_id, outbound),
            path_and_query: std::mem::take(&mut origin.path_and_query),
            received: origin.received,
            record: origin.record.clone(),
            progress: Arc::clone(&origin.progress),
            settings: Arc::clone(&self.config),
            facts: Arc::new(facts),
        })))
    }

    fn who(&self, origin: &Origin, request: &ChatRequest<'_>) -> Who {
        if !self.fleet.distinguishes_clients() {
            return Who::default();
        }
        conversation::from(conversation::of_chat(&origin.headers, request), origin.peer)
    }

    /// Several upstreams are configured, and none serves the model. A single one is asked, and says so itself.
    fn unknown_model(&self, model: &str) -> ApiError {
        let mut served = self.fleet.models();
        served.extend(self.config.aliases().map(str::to_owned));
        let message = format!("The model `{model}` does not exist. Available models: {}", served.join(", "));
        ApiError::new(404, ErrorCode::ModelNotFound, message).with_param("model")
    }

    fn facts(&self, request: &ChatRequest<'_>, model: String, modes: Modes, origin: &Origin) -> Facts {
        let stream = request.wants_stream();
        Facts {
            wire: origin.wire,
            program: program(request, origin),
            may_trim: origin.may_trim,
            free_text: Arc::clone(&origin.free_text),
            model_is_known: self.knows_model(&model),
            model,
            stream,
            route: if origin.is_agent { agent_route(stream) } else { route(request, modes.tools_mode) },
            usage: request.wants_usage(),
            choices: request.choice_count().min(128),
            reasoning: match modes.reasoning {
                ReasoningField::ReasoningContent => Some("reasoning_content"),
                ReasoningField::Reasoning => Some("reasoning"),
                ReasoningField::Drop => None,
            },
            keep: kept_fields(&self.config.keep_fields, origin.wire),
            created: clock::now_in_seconds(),
            context_window: modes.context_window,
        }
    }
}

/// The dialects that the model is likely to write. `configured`: those that the owner names.
fn likely_dialects(
    facts: &Facts,
    configured: PreferredDialects,
    target_model: &str,
    upstream: &Upstream,
) -> PreferredDialects {
    match facts.route {
        Route::Tools | Route::Live if configured.is_empty() => {
            let by_name = PreferredDialects::from_model_names([facts.model.as_str(), target_model]);
            by_name.or(upstream.model_facts(target_model).prior)
        }
        Route::Tools | Route::Live => configured,
        // Nothing is read out of these replies.
        Route::Stream | Route::Plain => PreferredDialects::NONE,
    }
}

/// The upstream that is likely to get the request: it is edited for that one.
fn first_of(order: &[Arc<Upstream>]) -> Option<Arc<Upstream>> {
    if let [only] = order {
        return Some(Arc::clone(only));
    }
    let loads: Vec<_> = order.iter().map(|upstream| upstream.state.load(false)).collect();
    choose(&loads).map(|at| Arc::clone(&order[at]))
}

fn outbound_form(route: Route) -> Outbound {
    match route {
        Route::Tools => Outbound::Whole,
        Route::Live | Route::Stream => Outbound::Streamed,
        Route::Plain => Outbound::AsAsked,
    }
}

/// A reply to Anthropic's clients names the stop sequence that the model wrote; vLLM has a field of its own for it.
fn kept_fields(configured: &[String], wire: Wire) -> Vec<String> {
    let named = (wire == Wire::Messages).then(|| STOP_REASON.to_owned());
    configured.iter().cloned().chain(named).collect()
}

/// The program that asked: most name themselves in a header, OpenClaw in its prompt.
fn program(request: &ChatRequest<'_>, origin: &Origin) -> ClientProgram {
    if origin.is_agent {
        return ClientProgram::Agent;
    }
    client::program_of(&origin.headers).or(ClientProgram::of_chat(request))
}

/// The engine reads the replies to respool's own loop, also where no tools are declared.
fn agent_route(stream: bool) -> Route {
    if stream { Route::Live } else { Route::Tools }
}

fn route(request: &ChatRequest<'_>, mode: ToolsMode) -> Route {
    match (request.tools().is_some(), request.wants_stream()) {
        (true, true) if mode == ToolsMode::Live => Route::Live,
        (true, _) => Route::Tools,
        (false, true) => Route::Stream,
        (false, false) => Route::Plain,
    }
}

/// The client's headers as they go upstream.
fn outgoing(mut headers: HeaderMap, request_id: &str, outbound: Outbound) -> HeaderMap {
    let accept = if outbound == Outbound::Streamed { "text/event-stream" } else { "application/json" };
    // They do not go upstream, and leave their room for what is added.
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // A compressed stream would wait in the compressor's buffer.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(&REQUEST_ID, id);
    }
    headers
}
