//! One try: the bytes for one upstream, made from the client's request and a change. A value; sending it changes nothing
//! in the request. `exchange` makes and sends attempts.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::request::ClientRequest;
use adapt::{Rule, RuleSet, adapt};
use translate::{Additions, Outbound, Remedy, lower_limit, outbound, trim};
use upstream::Upstream;
use wire::{ChatRequest, Pieces, encode_string};

/// A request as one upstream is to get it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// The upstream.
    pub(super) upstream: Arc<Upstream>,
    /// The body, before it is made to fit the model's window.
    pub(super) body: Pieces,
    /// The limit on the reply, in tokens.
    pub(super) token_limit: Option<u64>,
    /// Names of the edits made to the client's request.
    pub(super) edits: Vec<&'static str>,
    /// The change of the client's request that it is made from, because an earlier reply was of no use.
    pub(super) changed: Option<Arc<Changed>>,
    /// How it is made to fit the model's window.
    pub(super) fit: Fit,
    /// Rules that it is adapted by, and that are not known to help yet.
    pub(super) on_trial: RuleSet,
}

/// What decides the form in which a request goes up, besides the upstream.
pub(super) struct Form<'a> {
    pub(super) outbound: Outbound,
    pub(super) is_raw: bool,
    /// The model as the client named it.
    pub(super) model: &'a str,
    /// The model as upstreams name it.
    pub(super) target_model: &'a str,
    pub(super) added: &'a Additions,
    /// The rules that adapt it to the upstream and its model.
    pub(super) rules: &'a RuleSet,
}

impl Form<'_> {
    /// The body in this form, and the names of the edits. It takes the fields of the request.
    pub(super) fn edited(
        &self,
        request: &mut ChatRequest<'_>,
        original: &Bytes,
        upstream: &Upstream,
    ) -> (Pieces, Vec<&'static str>) {
        let mut edits = self.added.apply(&mut request.messages);
        edits.extend(outbound(request, self.outbound, self.is_raw, &upstream.target()));
        if self.model != self.target_model {
            request.object.set("model", encode_string(self.target_model));
            edits.push("model_alias");
        }
        let edited = if edits.is_empty() {
            original.clone().into()
        } else {
            std::mem::take(&mut request.object).into_pieces(original)
        };
        if self.rules.is_empty() { (edited, edits) } else { adapted(edited, edits, self.rules) }
    }
}

/// Applies the rules to an edited body.
fn adapted(body: Pieces, mut edits: Vec<&'static str>, rules: &RuleSet) -> (Pieces, Vec<&'static str>) {
    let joined = body.to_bytes();
    let Ok(text) = std::str::from_utf8(&joined) else { return (body, edits) };
    let adapted = adapt(text, rules);
    edits.extend(adapted.applied.iter().map(Rule::label));
    match adapted.body {
        Cow::Borrowed(_) => (body, edits),
        Cow::Owned(text) => (Bytes::from(text).into(), edits),
    }
}

/// The client's request changed by a remedy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Changed {
    pub(super) remedy: Remedy,
    pub(super) body: Bytes,
}

impl Attempt {
    /// The request for this upstream, as the client sent it or as a remedy changed it.
    pub(super) fn new(
        request: &ClientRequest,
        changed: Option<Arc<Changed>>,
        upstream: &Arc<Upstream>,
        on_trial: RuleSet,
    ) -> Self {
        let remedy = changed.as_ref().map(|changed| &changed.remedy);
        let can_be_raw = !upstream.model_facts(&request.target_model).is_harmony;
        let is_raw = match remedy {
            Some(Remedy::Raw) => can_be_raw,
            Some(Remedy::Required) => false,
            _ => request.wants_raw && can_be_raw,
        };
        let original = changed.as_ref().map_or(&request.body, |changed| &changed.body);
        let known = upstream.rules(&request.target_model);
        let rules: RuleSet = known.union(&on_trial).cloned().collect();
        let form = Form {
            rules: &rules,
            outbound: request.outbound,
            is_raw,
            model: &request.facts.model,
            target_model: &request.target_model,
            added: &request.added,
        };
        let (body, edits) = match ChatRequest::parse(original) {
            Ok(mut parsed) => form.edited(&mut parsed, original, upstream),
            Err(_) => (original.clone().into(), vec![]),
        };
        let token_limit = match remedy {
            Some(Remedy::MoreTokens(limit)) => Some(*limit),
            _ => request.rules.token_limit,
        };
        Self {
            upstream: Arc::clone(upstream),
            body,
            token_limit,
            edits,
            changed,
            fit: Fit::default(),
            on_trial,
        }
    }

    /// Returns the client's own request, edited for this upstream.
    pub(super) fn unchanged(
        upstream: Arc<Upstream>,
        body: Pieces,
        edits: Vec<&'static str>,
        token_limit: Option<u64>,
    ) -> Self {
        Self {
            upstream,
            body,
            token_limit,
            edits,
            changed: None,
            fit: Fit::default(),
            on_trial: RuleSet::new(),
        }
    }

    /// True when it asks for something else than the client did.
    pub(super) fn is_changed(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| changed.remedy != Remedy::Repeat)
    }
}

/// What is changed in a request so that it fits. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// The size of the messages' texts together, in bytes.
    pub(super) messages: Option<usize>,
    /// The limit on the reply, in tokens.
    pub(super) limit: Option<u64>,
    /// How often it was made smaller.
    pub(super) rounds: u8,
}

/// A body as it is sent, and what was done to make it fit.
#[derive(Clone, Debug)]
pub(super) struct Fitted {
    pub(super) body: Pieces,
    /// Names of the edits.
    pub(super) edits: Vec<&'static str>,
    /// What was taken out of the conversation.
    pub(super) trimmed: Option<String>,
}

impl Fit {
    /// The limit on the reply as it is sent; `asked` is the client's.
    pub(super) fn lowered_limit(self, asked: Option<u64>) -> Option<u64> {
        asked.map(|asked| self.limit.map_or(asked, |limit| limit.min(asked)))
    }

    /// True when a reply of so many tokens has used the room that was left in the window.
    pub(super) fn is_used_up(self, completion: u64) -> bool {
        self.limit.is_some_and(|room| completion >= room)
    }

    /// True when messages were left out.
    pub(super) fn is_trimmed(self) -> bool {
        self.messages.is_some()
    }

    /// The body with the changes.
    pub(super) fn apply(self, body: &Pieces) -> Fitted {
        let unchanged = || Fitted { body: body.clone(), edits: vec![], trimmed: None };
        if self.messages.is_none() && self.limit.is_none() {
            return unchanged();
        }
        let text = body.to_bytes();
        let Ok(mut request) = ChatRequest::parse(&text) else { return unchanged() };
        let mut edits = Vec::new();
        if self.limit.is_some_and(|room| lower_limit(&mut request.object, room)) {
            edits.push("max_tokens");
        }
        let trimmed = self.messages.and_then(|target| trim(&request.messages, target)).map(|trimmed| {
            edits.push("trim");
            request.object.set("messages", trimmed.messages);
            let (results, messages) = (trimmed.results, trimmed.left_out);
            format!("results={results}, messages={messages}, bytes={}", trimmed.bytes)
        });
        Fitted { body: request.object.into_pieces(&text), edits, trimmed }
    }
}
