//! One try: the bytes for one upstream, made from the client's request and a change. A value; sending it changes nothing
//! in the request. `exchange` makes and sends attempts.

use std::sync::Arc;

use bytes::Bytes;

use super::request::ClientRequest;
use translate::{Additions, Outbound, Remedy, outbound};
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
    /// It asks for something else than the client did, because an earlier reply was of no use.
    pub(super) is_changed: bool,
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
        if edits.is_empty() {
            return (original.clone().into(), edits);
        }
        (std::mem::take(&mut request.object).into_pieces(original), edits)
    }
}

/// The client's request changed by a remedy.
#[derive(Clone, Debug)]
pub(super) struct Changed {
    pub(super) remedy: Remedy,
    pub(super) body: Bytes,
}

impl Attempt {
    /// The request for this upstream, as the client sent it or as a remedy changed it.
    pub(super) fn new(request: &ClientRequest, changed: Option<&Changed>, upstream: &Arc<Upstream>) -> Self {
        let remedy = changed.map(|changed| &changed.remedy);
        let can_be_raw = !upstream.model_facts(&request.target_model).is_harmony;
        let is_raw = match remedy {
            Some(Remedy::Raw) => can_be_raw,
            Some(Remedy::Required) => false,
            _ => request.wants_raw && can_be_raw,
        };
        let original = changed.map_or(&request.body, |changed| &changed.body);
        let form = Form {
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
        let is_changed = remedy.is_some_and(|remedy| *remedy != Remedy::Repeat);
        Self { upstream: Arc::clone(upstream), body, token_limit, edits, is_changed }
    }
}
