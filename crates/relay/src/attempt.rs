//! One try: the bytes for one upstream, made from the client's request and a change. A value; sending it
//! changes nothing in the request. `exchange` makes and sends attempts.

use std::sync::Arc;

use bytes::Bytes;

use super::adaptation::Adapted;
use adapt::RuleSet;
use translate::{Remedy, lower_limit, trim_conversation};
use upstream::Upstream;
use wire::{ChatRequest, Pieces};

/// A request in the form for one upstream.
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
    /// Those that adapt it to the upstream, with the number of tools that each changed.
    pub(super) rules: Vec<(&'static str, usize)>,
    /// The server does not check all of the tools' schemas, so respool does.
    pub(super) drops_checks: bool,
    /// The change of the client's request that it is made from, because an earlier reply was of no use.
    pub(super) changed: Option<Arc<Changed>>,
    /// How it is made to fit the model's window.
    pub(super) fit: Fit,
    /// Rules that it is adapted by, and that are not known to help yet.
    pub(super) on_trial: RuleSet,
}

/// The client's request changed by a remedy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Changed {
    pub(super) remedy: Remedy,
    pub(super) body: Bytes,
}

impl Attempt {
    /// Returns the client's own request, edited for this upstream.
    pub(super) fn first(upstream: Arc<Upstream>, adapted: Adapted, token_limit: Option<u64>) -> Self {
        let Adapted { body, edits, rules, drops_checks, .. } = adapted;
        Self {
            upstream,
            body,
            token_limit,
            edits,
            rules,
            drops_checks,
            changed: None,
            fit: Fit::default(),
            on_trial: RuleSet::new(),
        }
    }

    /// Returns true if it differs from what the client asked for.
    pub(super) fn is_changed(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| changed.remedy != Remedy::Repeat)
    }
}

/// The changes that make a request fit. The default changes nothing.
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
    /// The parts that were taken out of the conversation.
    pub(super) trimmed: Option<String>,
}

impl Fit {
    /// The limit on the reply as it is sent; `asked` is the client's.
    pub(super) fn lowered_limit(self, asked: Option<u64>) -> Option<u64> {
        asked.map(|asked| self.limit.map_or(asked, |limit| limit.min(asked)))
    }

    /// Returns true if a reply with this number of tokens has used the room that was left in the window.
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
        let trimmed =
            self.messages.and_then(|target| trim_conversation(&request.messages, target)).map(|trimmed| {
                edits.push("trim");
                request.object.set("messages", trimmed.messages);
                let (results, messages) = (trimmed.results, trimmed.left_out);
                format!("results={results}, messages={messages}, bytes={}", trimmed.bytes)
            });
        Fitted { body: request.object.into_pieces(&text), edits, trimmed }
    }
}
