//! Reads a client's request, once: what is wanted, who may serve it, and the first attempt.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

use super::adaptation::{Adaptation, adapt_request, add_media_rules, allowed_rules};
use super::answer::ReadRequest;
use super::attempt::Attempt;
use super::client::{Origin, Wire};
use super::config::{Modes, ReasoningField, ToolParsing, ToolsMode};
use super::conversation_rules::{ConversationRules, PrefixLoss};
use super::history_analysis::HistoryAnalysis;
use super::recent::{RecentRequest, find_rules};
use super::relay::Relay;
use super::request::{
    ClientRequest, OutgoingRequest, ReplyForm, RequestProfile, RequestTraits, Route, ServingPlan,
};
use adapt::{Effort, asked_effort};
use telemetry::{RequestRecord, metrics};
use tool_call_parser::{PreferredDialects, Tools};
use translate::{ClientProgram, Outbound, ReplyRules, STOP_REASON, Situation, needs_version, used_ids};
use upstream::{QueueClient, Serving, Upstream, choose_upstream, conversation};
use wire::{ApiError, ChatRequest, ErrorCode};

/// Bytes of 1,000 tokens before a reply has shown how many they are.
const BYTES_PER_1000: u64 = 4_000;

/// A request that was parsed, and what is known of it before it is adapted.
struct ParsedRequest<'a> {
    request: ChatRequest<'a>,
    body: &'a Bytes,
    /// The body has parameters that the owner declares.
    is_declared: bool,
    /// The recent request that it resembles.
    recent: Option<Arc<RecentRequest>>,
    model: String,
    /// The model as upstreams name it, if the client names it otherwise.
    target: Option<String>,
    tools_mode: Option<ToolsMode>,
    who: QueueClient,
    history: HistoryAnalysis,
}

/// Restrictions on who receives a request. The default has no restriction.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The name of the only upstream that may be asked.
    pub(super) upstream: Option<String>,
    /// How a reply with tools is asked for, whatever the model's settings say.
    pub(super) tools_mode: Option<ToolsMode>,
}

impl Relay {
    /// Reads a chat completion request. What its first attempt depends on and is not known yet is looked up:
    /// the models that upstreams serve, and the version of its upstream.
    ///
    /// # Errors
    /// 400 when the body is not such a request, 404 when no upstream serves its model.
    pub async fn read(self: &Arc<Self>, body: Bytes, origin: Origin) -> Result<ReadRequest, ApiError> {
        let (body, fallbacks) = self.fallbacks(body, &origin);
        let request = self.read_request(body, origin, Receiver::default()).await?;
        Ok(ReadRequest::new(Arc::clone(self), request, fallbacks))
    }

    /// Reads a request for this receiver.
    pub(super) async fn read_request(
        self: &Arc<Self>,
        body: Bytes,
        origin: Origin,
        receiver: Receiver,
    ) -> Result<Arc<ClientRequest>, ApiError> {
        let (body, is_declared) = match self.declared_body(&body) {
            Some(declared) => (declared, true),
            None => (body, false),
        };
        let recent = self.recent.find_similar(&body, std::time::Instant::now());
        let known = recent.as_deref().map(RecentRequest::known_parts).unwrap_or_default();
        let request = ChatRequest::parse_known(&body, known).map_err(|fault| ApiError::from(&fault))?;
        let model = request.model();
        let target_model = self.config.target(&model);
        let who = self.client_of(&origin, &request);
        let upstreams: Arc<[_]> = match self.fleet.find_servers(target_model, who.conversation) {
            Serving::Known(order) => order,
            // Boxed as it is rare: every request pays for the size of its future.
            _ => Box::pin(self.look_up_serving(&model, target_model, who, &origin)).await?,
        };
        let upstreams = match &receiver.upstream {
            Some(name) => upstreams.iter().filter(|upstream| upstream.name == *name).cloned().collect(),
            None => upstreams,
        };
        let upstream = first_of(&upstreams).ok_or_else(no_upstream)?;
        let history = self.analyse_history(&request, &origin.headers);
        if asked_effort(&request.object).is_some() || self.config.recovery.announce_waiting {
            // Ollama reads the effort in another field than the rest, and llama.cpp reports its progress.
            upstream.learn_models_aside(&origin.headers);
        }
        let depends_on_version = needs_version(&request) || !history.added.reasoning.is_empty();
        if depends_on_version && upstream.server_traits().version.is_none() {
            Box::pin(upstream.probe_version()).await;
        }
        let recent = recent.clone();
        let target = (target_model != model).then(|| target_model.to_owned());
        let parsed = ParsedRequest {
            request,
            body: &body,
            is_declared,
            recent,
            model,
            target,
            tools_mode: receiver.tools_mode,
            who,
            history,
        };
        Ok(Arc::new(self.assemble_request(parsed, upstream, upstreams, origin)))
    }

    /// Returns the upstreams that serve a model, once their lists were fetched again.
    async fn look_up_serving(
        &self,
        model: &str,
        target_model: &str,
        who: QueueClient,
        origin: &Origin,
    ) -> Result<Arc<[Arc<Upstream>]>, ApiError> {
        self.fleet.await_fresh_lists(target_model).await;
        match self.fleet.find_servers(target_model, who.conversation) {
            Serving::Known(order) | Serving::Possible(order) => Ok(order),
            Serving::NotServed => {
                // The failure of one that refuses its key lets the fallbacks answer.
                let refusing: Arc<[_]> = self.fleet.refusals().map(|(it, _)| Arc::clone(it)).collect();
                if !refusing.is_empty() && !self.config.fallback(model).0.is_empty() {
                    return Ok(refusing);
                }
                origin.record.set_model(model);
                Err(self.unknown_model(model, &origin.record))
            }
        }
    }

    /// Puts together what follows from the body.
    fn assemble_request(
        &self,
        parsed: ParsedRequest<'_>,
        upstream: Arc<Upstream>,
        upstreams: Arc<[Arc<Upstream>]>,
        origin: Origin,
    ) -> ClientRequest {
        let ParsedRequest { mut request, body, is_declared, recent, model, target, tools_mode, who, history } =
            parsed;
        let declared = Arc::clone(self.declared_parameters(&model));
        metrics::count_recalled_reasoning(history.added.reasoning.len(), history.unknown);
        // A run of respool's own keeps its reasoning itself.
        if history.unknown > 0 && !origin.is_agent {
            origin.record.record_unknown_reasoning(history.unknown);
        }
        let mut modes = self.config.modes_for(&model);
        modes.tools_mode = tools_mode.unwrap_or(modes.tools_mode);
        let profile = self.build_profile(&request, model, modes, &origin);
        let target_model = target.as_deref().unwrap_or(&profile.model);
        let prior = likely_dialects(&profile, modes.dialects, target_model, &upstream);
        let tools = self.recent.declared_tools(&request, recent.as_deref());
        let (conversation_rules, loss) = self.remember(body, &request, recent.as_ref(), &tools, &origin);
        let mut rules = ReplyRules::from_request(&request, tools, prior);
        rules.response_template = self.config.response_template(&profile.model);
        let is_raw = modes.tool_parsing == ToolParsing::Raw;
        let traits = request_traits(&request, profile.route, is_raw, is_declared);
        rules.options.begins_in_reasoning &= !traits.wants_no_reasoning && rules.response_template.is_none();
        let server = upstream.server_traits();
        let is_harmony = upstream.models.facts_of(target_model).is_harmony;
        let drops_media = is_harmony && self.config.adapt.media;
        let known_rules = conversation_rules.rules_for(&upstream, target_model);
        let known_rules = allowed_rules(known_rules, &self.config.adapt);
        let known_rules = if drops_media { add_media_rules(known_rules, &request) } else { known_rules };
        let how = Adaptation {
            outbound: traits.outbound,
            is_declared,
            declared: &declared,
            is_raw: traits.wants_raw && !is_harmony && !server.is_sglang,
            model: &profile.model,
            target_model,
            added: &history.added,
            target: &server,
            rules: &known_rules,
            reports_progress: self.config.recovery.announce_waiting,
        };
        let adapted = adapt_request(&mut request, body, &how);
        let before = recent.as_ref().map_or(&[][..], |recent| recent.messages_of(body));
        let sent = adapted.messages.as_ref();
        let loss_by_rules = conversation_rules.note_sent(&upstream, target_model, sent, before);
        if let Some(loss) = loss.or(loss_by_rules) {
            let bytes_per_1000 = upstream.models.facts_of(target_model).bytes_per_1000;
            origin.record.record_prefix_loss(describe_prefix_loss(&loss, bytes_per_1000));
        }
        let first = Attempt::first(upstream, adapted, rules.token_limit);
        let Origin { headers, request_id, path_and_query, received, record, progress, .. } = origin;
        let headers = upstream_headers(headers, traits.outbound);
        ClientRequest {
            profile: Arc::new(profile),
            history,
            conversation_rules,
            plan: ServingPlan { first, upstreams, who, target, declared },
            traits,
            rules,
            outgoing: OutgoingRequest { body: body.clone(), headers, request_id, path_and_query },
            received,
            record,
            progress,
            settings: Arc::clone(&self.config),
        }
    }

    /// Remembers the request before it is edited. Returns the rules of its conversation, and what that lost
    /// of its prefix.
    fn remember(
        &self,
        body: &Bytes,
        request: &ChatRequest<'_>,
        recent: Option<&Arc<RecentRequest>>,
        tools: &Arc<Tools>,
        origin: &Origin,
    ) -> (ConversationRules, Option<PrefixLoss>) {
        let content = origin.record.content();
        content.note_conversation(|| conversation::identify_by_words(&origin.headers, request));
        let rules = find_rules(body, recent.map(|recent| &**recent));
        let now = std::time::Instant::now();
        let loss = self.recent.remember_request(body, request, recent, tools, &rules, now);
        (rules, loss)
    }

    /// On whose behalf places at upstreams are taken.
    fn client_of(&self, origin: &Origin, request: &ChatRequest<'_>) -> QueueClient {
        if !self.fleet.distinguishes_clients() {
            return QueueClient::default();
        }
        let who = conversation::from(conversation::identify_chat(&origin.headers, request), origin.peer);
        QueueClient { priority: who.priority.max(origin.priority), ..who }
    }

    /// Several upstreams are configured, and none serves the model. A single one is asked, and says so
    /// itself.
    fn unknown_model(&self, model: &str, record: &RequestRecord) -> ApiError {
        let what = match self.target(model) {
            target if target == model => format!("The model `{model}` does not exist"),
            target => format!("The model `{model}` stands for `{target}`, which no upstream serves"),
        };
        let message = format!("{what}{}", self.describe_models(model, record));
        ApiError::new(404, ErrorCode::ModelNotFound, message).with_param("model")
    }

    fn build_profile(
        &self,
        request: &ChatRequest<'_>,
        model: String,
        modes: Modes,
        origin: &Origin,
    ) -> RequestProfile {
        let stream = request.wants_stream();
        RequestProfile {
            wire: origin.wire,
            program: client_program(request, origin),
            may_trim: origin.wishes.may_trim,
            free_text: Arc::clone(&origin.wishes.free_text),
            model_is_known: self.knows_model(&model),
            model,
            stream,
            is_unseen: origin.wishes.is_unseen || !(stream || origin.is_agent),
            route: if origin.is_agent {
                agent_route(stream)
            } else {
                choose_route(request, modes.tools_mode)
            },
            reply: ReplyForm {
                usage: request.wants_usage(),
                choices: request.choice_count().min(128),
                reasoning: match modes.reasoning {
                    ReasoningField::ReasoningContent => Some("reasoning_content"),
                    ReasoningField::Reasoning => Some("reasoning"),
                    ReasoningField::Drop => None,
                },
                keep: kept_fields(&self.config.keep_fields, origin.wire),
            },
            created: clock::now_in_seconds(),
            context_window: modes.context_window,
        }
    }
}

/// The facts that decide which attempts a request permits. `wants_raw`: the model's calls are read here.
fn request_traits(
    request: &ChatRequest<'_>,
    route: Route,
    wants_raw: bool,
    is_declared: bool,
) -> RequestTraits {
    RequestTraits {
        outbound: outbound_form(route),
        wants_raw: wants_raw && Situation::is_free_to_call(request),
        is_free: Situation::is_free(request),
        has_tools: request.tools().is_some(),
        wants_no_reasoning: asked_effort(&request.object) == Some(Effort::Off),
        is_declared,
        has_stop: request.object.get("stop").is_some(),
        taken_ids: shared_ids(used_ids(request)),
    }
}

fn describe_prefix_loss(loss: &PrefixLoss, bytes_per_1000: Option<u64>) -> String {
    let tokens = loss.bytes as u64 * 1_000 / bytes_per_1000.unwrap_or(BYTES_PER_1000).max(1);
    format!("{}: {tokens} tokens are read again", loss.place)
}

/// Shares one empty set among all requests without calls.
fn shared_ids(ids: HashSet<String>) -> Arc<HashSet<String>> {
    static NONE: LazyLock<Arc<HashSet<String>>> = LazyLock::new(Arc::default);
    if ids.is_empty() { Arc::clone(&NONE) } else { Arc::new(ids) }
}

fn no_upstream() -> ApiError {
    ApiError::new(500, ErrorCode::NoUpstream, "no upstream is configured")
}

/// The dialects that the model is likely to write. `configured`: those that the owner names.
fn likely_dialects(
    profile: &RequestProfile,
    configured: PreferredDialects,
    target_model: &str,
    upstream: &Upstream,
) -> PreferredDialects {
    match profile.route {
        Route::Tools | Route::Live if configured.is_empty() => {
            let by_name = PreferredDialects::from_model_names([profile.model.as_str(), target_model]);
            by_name.or(upstream.models.facts_of(target_model).prior)
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
    choose_upstream(&loads).map(|at| Arc::clone(&order[at]))
}

fn outbound_form(route: Route) -> Outbound {
    match route {
        Route::Tools => Outbound::Whole,
        Route::Live | Route::Stream => Outbound::Streamed,
        Route::Plain => Outbound::AsAsked,
    }
}

/// A reply to Anthropic's clients names the stop sequence that the model wrote; vLLM has a field of its own
/// for it.
fn kept_fields(configured: &[String], wire: Wire) -> Vec<String> {
    let named = (wire == Wire::Messages).then(|| STOP_REASON.to_owned());
    configured.iter().cloned().chain(named).collect()
}

/// The program that asked: most name themselves in a header, OpenClaw in its prompt.
fn client_program(request: &ChatRequest<'_>, origin: &Origin) -> ClientProgram {
    if origin.is_agent {
        return ClientProgram::Agent;
    }
    origin.program.or(ClientProgram::from_chat(request))
}

/// The engine reads the replies to respool's own loop, also where no tools are declared.
fn agent_route(stream: bool) -> Route {
    if stream { Route::Live } else { Route::Tools }
}

fn choose_route(request: &ChatRequest<'_>, mode: ToolsMode) -> Route {
    match (request.tools().is_some(), request.wants_stream()) {
        (true, true) if mode == ToolsMode::Live => Route::Live,
        (true, _) => Route::Tools,
        (false, true) => Route::Stream,
        (false, false) => Route::Plain,
    }
}

/// The client's headers as they go upstream.
fn upstream_headers(mut headers: HeaderMap, outbound: Outbound) -> HeaderMap {
    let accept = if outbound == Outbound::Streamed { "text/event-stream" } else { "application/json" };
    // It does not go upstream, and leaves its room for what is added.
    headers.remove(header::HOST);
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // A compressed stream would wait in the compressor's buffer.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}
