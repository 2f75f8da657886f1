//! A client's request as a value that never changes, and the attempts that are made from it. `reading` makes
//! it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::adaptation::{Adaptation, Adapted, adapt_request, add_media_rules, allowed_rules};
use super::attempt::{Attempt, Changed, Fit};
use super::client::{RequestProgress, Wire};
use super::config::RelayConfig;
use super::conversation_rules::ConversationRules;
use super::history_analysis::HistoryAnalysis;
use adapt::{Declared, RuleSet};
use telemetry::RequestRecord;
use translate::{ClientProgram, FreeTextPatterns, Head, Ids, Outbound, Remedy, ReplyRules};
use upstream::{QueueClient, Upstream};
use wire::turn::Turn;
use wire::{ChatRequest, Pieces};

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

/// The parts of the request that the reply depends on.
#[derive(Clone, Debug)]
pub struct RequestProfile {
    /// The client's protocol.
    pub wire: Wire,
    /// The program that asked.
    pub program: ClientProgram,
    /// The client lets respool shorten the oldest part of a conversation that does not fit.
    pub may_trim: bool,
    /// The patterns that the free text of its custom tools must match.
    pub free_text: Arc<FreeTextPatterns>,
    /// The model's name as the client wrote it; empty when it gave none.
    pub model: String,
    /// True when the configuration names the model, or an upstream is known to serve it.
    pub model_is_known: bool,
    /// A stream was asked for.
    pub stream: bool,
    /// The client can be shown nothing before the whole reply.
    pub is_unseen: bool,
    /// How it is served.
    pub route: Route,
    /// The form of its reply.
    pub reply: ReplyForm,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The model's window in tokens, when the configuration says it.
    pub context_window: Option<u64>,
}

impl RequestProfile {
    /// The head of a reply that respool itself begins.
    pub fn own_head(&self) -> Head {
        let id = Ids::new(rand::random(), HashSet::new()).reply_id();
        Head { id, created: self.created, model: self.model.clone(), tags: vec![] }
    }
}

/// The form of a reply.
#[derive(Clone, Debug)]
pub struct ReplyForm {
    /// Usage was asked for; in a completion it always comes.
    pub usage: bool,
    /// How many choices.
    pub choices: u64,
    /// The name under which reasoning leaves; `None`: not at all.
    pub reasoning: Option<&'static str>,
    /// Fields to keep although OpenAI's API has no such field.
    pub keep: Vec<String>,
}

/// A client's request as it was read. It never changes: each try makes an `Attempt` from it, and when no
/// other can follow, its bytes are let go.
#[derive(Debug)]
pub(super) struct ClientRequest {
    /// The parts of the request that the reply depends on.
    pub(super) profile: Arc<RequestProfile>,
    /// The consequences of the conversation's past.
    pub(super) history: HistoryAnalysis,
    /// The rules that requests of its conversation are adapted by.
    pub(super) conversation_rules: ConversationRules,
    /// Who may serve it.
    pub(super) plan: ServingPlan,
    /// Facts that decide which attempts are possible.
    pub(super) traits: RequestTraits,
    /// The rules for reading its reply.
    pub(super) rules: ReplyRules,
    /// The request as a chat completion.
    pub(super) outgoing: OutgoingRequest,
    pub(super) received: Instant,
    /// Where everything that happens to it is recorded.
    pub(super) record: RequestRecord,
    pub(super) progress: Arc<RequestProgress>,
    /// The settings of the moment in which it came.
    pub(super) settings: Arc<RelayConfig>,
}

/// The upstreams that may serve a request, and the attempt that comes first.
#[derive(Debug)]
pub(super) struct ServingPlan {
    /// The attempt for the upstream that is likely to be asked first.
    pub(super) first: Attempt,
    /// The upstreams that may serve it, the conversation's own one first.
    pub(super) upstreams: Arc<[Arc<Upstream>]>,
    /// On whose behalf places are taken.
    pub(super) who: QueueClient,
    /// The model as upstreams name it, if the client names it otherwise.
    pub(super) target: Option<String>,
    /// The parameters that the owner declares for the model.
    pub(super) declared: Arc<Declared>,
}

/// The facts that decide which attempts a request permits.
#[derive(Debug)]
pub(super) struct RequestTraits {
    pub(super) outbound: Outbound,
    /// Unparsed text is wanted, where the model has any.
    pub(super) wants_raw: bool,
    /// The client left the choice of calls to the model, and the form of the answer too.
    pub(super) is_free: bool,
    pub(super) has_tools: bool,
    pub(super) has_stop: bool,
    /// The client asks for a reply without reasoning.
    pub(super) wants_no_reasoning: bool,
    /// The body has parameters that the owner declares.
    pub(super) is_declared: bool,
    /// The ids of all calls in the conversation.
    pub(super) taken_ids: Arc<HashSet<String>>,
}

/// The client's bytes and headers, as they go up.
#[derive(Debug)]
pub(super) struct OutgoingRequest {
    pub(super) body: Bytes,
    pub(super) headers: HeaderMap,
    /// The id that goes up, if it is not the one in the record.
    pub(super) request_id: Option<String>,
    pub(super) path_and_query: Cow<'static, str>,
}

impl ClientRequest {
    /// Returns the model as upstreams name it.
    pub(super) fn target_model(&self) -> &str {
        self.plan.target.as_deref().unwrap_or(&self.profile.model)
    }

    /// Builds the attempt for this upstream: the request as the client sent it, or as a remedy changed it.
    /// `on_trial`: rules that are not known to help yet.
    pub(super) fn build_attempt(
        &self,
        changed: Option<Arc<Changed>>,
        upstream: &Arc<Upstream>,
        on_trial: RuleSet,
    ) -> Attempt {
        let remedy = changed.as_ref().map(|changed| &changed.remedy);
        let is_harmony = upstream.models.facts_of(self.target_model()).is_harmony;
        let target = upstream.server_traits();
        let can_be_raw = !is_harmony && !target.is_sglang;
        let is_raw = match remedy {
            Some(Remedy::Raw) => can_be_raw,
            Some(Remedy::Required) => false,
            _ => self.traits.wants_raw && can_be_raw,
        };
        let original = changed.as_ref().map_or(&self.outgoing.body, |changed| &changed.body);
        let mut parsed = ChatRequest::parse(original).ok();
        let known = self.conversation_rules.rules_for(upstream, self.target_model());
        let mut known = allowed_rules(known, &self.settings.adapt);
        if let Some(request) = parsed.as_ref().filter(|_| is_harmony && self.settings.adapt.media) {
            known = add_media_rules(known, request);
        }
        let all: RuleSet = known.union(&on_trial).cloned().collect();
        let how = Adaptation {
            outbound: self.traits.outbound,
            is_declared: self.traits.is_declared,
            declared: &self.plan.declared,
            is_raw,
            model: &self.profile.model,
            target_model: self.target_model(),
            added: &self.history.added,
            target: &target,
            rules: &all,
            reports_progress: self.settings.recovery.announce_waiting,
        };
        let Adapted { body, edits, rules, drops_checks, .. } = match &mut parsed {
            Some(parsed) => adapt_request(parsed, original, &how),
            None => Adapted::from_body(original.clone().into()),
        };
        let token_limit = match remedy {
            Some(Remedy::MoreTokens(limit)) => Some(*limit),
            _ => self.rules.token_limit,
        };
        Attempt {
            upstream: Arc::clone(upstream),
            body,
            token_limit,
            edits,
            rules,
            drops_checks,
            changed,
            fit: Fit::default(),
            on_trial,
        }
    }

    /// Records a turn that leaves, and remembers its reasoning.
    pub(super) fn complete_turn(&self, turn: &Turn) {
        self.record.record_turn(turn);
        if let Some(memory) = &self.history.memory {
            memory.remember(turn, std::time::Instant::now());
        }
    }

    /// Releases the bytes that only another attempt would need.
    pub(super) fn release_bytes(&mut self) {
        (self.outgoing.body, self.plan.first.body) = (Bytes::new(), Pieces::default());
        self.outgoing.headers = HeaderMap::new();
    }
}
