//! Adapts a client's request to one upstream and model: the step between what the client asked and what is
//! sent.
//!
//! Pure: a request, the settings and what is known of the upstream and the model go in, the body to send and
//! the names of the edits come out. So two turns of a conversation share their adapted beginning, and the
//! server's prefix cache holds. What certain upstreams and models refuse is the `adapt` crate's: its rules
//! are applied here. Called where an attempt is built: by `reading` for the first one, by `request` for the
//! others.

use std::sync::Arc;

use bytes::Bytes;

use adapt::{Consent, Declared, EffortReader, Loss, Rule, RuleSet, adapt_object, has_media};
use translate::{Additions, Outbound, edit_request};
use wire::{ChatRequest, Pieces, ServerTraits, encode_string};

/// The settings and facts that decide the form in which a request goes up.
pub(super) struct Adaptation<'a> {
    pub(super) outbound: Outbound,
    /// The upstream is asked for unparsed text.
    pub(super) is_raw: bool,
    /// The body has parameters that the owner declares.
    pub(super) is_declared: bool,
    /// The parameters that the owner declares for the model.
    pub(super) declared: &'a Declared,
    /// The model as the client named it.
    pub(super) model: &'a str,
    /// The model as upstreams name it.
    pub(super) target_model: &'a str,
    /// Messages and reasoning that are added to the conversation.
    pub(super) added: &'a Additions,
    /// The known properties of the upstream.
    pub(super) target: &'a ServerTraits,
    /// The rules for this upstream and model.
    pub(super) rules: &'a RuleSet,
    /// Shows the client how much of its prompt has been read.
    pub(super) reports_progress: bool,
}

/// A request as it goes up.
pub(super) struct Adapted {
    pub(super) body: Pieces,
    /// Names of the edits, for the log.
    pub(super) edits: Vec<&'static str>,
    /// Those that are rules of the `adapt` crate, with the number of tools that each changed.
    pub(super) rules: Vec<(&'static str, usize)>,
    /// Something in the tools' schemas is left out: the server does not check it.
    pub(super) drops_checks: bool,
    /// The messages as rules have changed them.
    pub(super) messages: Option<Arc<str>>,
}

impl Adapted {
    /// Returns this body without any edit.
    pub(super) fn from_body(body: Pieces) -> Self {
        Self { body, edits: Vec::new(), rules: Vec::new(), drops_checks: false, messages: None }
    }
}

/// Adapts the request that stands in `original`. It takes the fields of `request`. Without edits the
/// original's bytes go up.
pub(super) fn adapt_request<'a>(
    request: &mut ChatRequest<'a>,
    original: &Bytes,
    how: &Adaptation<'a>,
) -> Adapted {
    let mut edits = how.added.apply(&mut request.messages);
    let (model, declared) = (how.target_model, how.declared);
    let reader = EffortReader { model, is_ollama: how.target.is_ollama, declared };
    if reader.write_effort(&mut request.object) {
        edits.push("reasoning");
    }
    edits.extend(edit_request(request, how.outbound, how.is_raw, how.target));
    if how.model != how.target_model {
        request.object.set("model", encode_string(how.target_model));
        edits.push("model_alias");
    }
    if how.reports_progress && how.outbound == Outbound::Streamed && how.target.is_llama_cpp {
        request.object.set("return_progress", "true");
        edits.push("progress");
    }
    let applied = adapt_object(&mut request.object, how.rules);
    let rules: Vec<_> = applied.iter().map(|applied| (applied.rule.label(), applied.tools)).collect();
    edits.extend(rules.iter().map(|(label, _)| *label));
    let changes_messages = applied.iter().any(|applied| applied.rule.is_about_messages());
    let messages = changes_messages.then(|| request.object.get("messages").map(Arc::from)).flatten();
    let body = if edits.is_empty() {
        original.clone().into()
    } else {
        std::mem::take(&mut request.object).into_pieces(original)
    };
    if how.is_declared {
        edits.push("declared");
    }
    let drops_checks =
        applied.iter().any(|applied| applied.tools > 0 && applied.rule.loss() == Loss::Enforced);
    Adapted { body, edits, rules, drops_checks, messages }
}

/// The rules that the owner allows. Those that were learned before may need a consent that is withdrawn, or
/// that an earlier version did not ask for.
pub(super) fn allowed_rules(rules: Arc<RuleSet>, consent: &Consent) -> Arc<RuleSet> {
    if rules.iter().all(|rule| consent.allows(rule)) {
        return rules;
    }
    Arc::new(rules.iter().filter(|rule| consent.allows(rule)).cloned().collect())
}

/// Adds the rules about pictures and sounds for a model that takes only text, if the request has any. The
/// servers of gpt-oss do not refuse them: vLLM leaves them out without a word, and the model answers as if
/// nothing had been there.
pub(super) fn add_media_rules(rules: Arc<RuleSet>, request: &ChatRequest<'_>) -> Arc<RuleSet> {
    let mut contents = request.messages.iter().filter_map(|message| message.object.get("content"));
    if !contents.any(has_media) {
        return rules;
    }
    let mut all = RuleSet::clone(&rules);
    all.extend([Rule::NoImages, Rule::NoAudio]);
    Arc::new(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &'static str, target_model: &str, expected: (&str, &[&str])) {
        let original = Bytes::from_static(body.as_bytes());
        let mut request = ChatRequest::parse(&original).unwrap();
        let (added, target, rules) = (Additions::default(), ServerTraits::default(), RuleSet::new());
        let declared = Declared::default();
        let how = Adaptation {
            is_declared: false,
            declared: &declared,
            outbound: Outbound::AsAsked,
            is_raw: false,
            model: "m",
            target_model,
            added: &added,
            target: &target,
            rules: &rules,
            reports_progress: true,
        };
        let Adapted { body, edits, .. } = adapt_request(&mut request, &original, &how);
        assert_eq!((&*body.to_bytes(), &*edits), (expected.0.as_bytes(), expected.1));
    }

    #[test]
    fn only_what_must_change_is_rewritten() {
        let body = r#"{"model":"m", "messages":[{"role":"user","content":"hi"}]}"#;
        check(body, "m", (body, &[]));
        let edited = r#"{"model":"served","messages":[{"role":"user","content":"hi"}]}"#;
        check(body, "served", (edited, &["model_alias"]));
    }
}
