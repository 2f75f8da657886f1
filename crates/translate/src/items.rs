//! Divides the steps of a turn into items: their beginnings, ids and ends, and the proof that reasoning comes
//! back unchanged. The sinks of the Responses and Messages APIs write these events; chat completions have no
//! items.
//!
//! A source that has its own items is left unchanged. Pure. Called by `responses` and `messages`.

use std::sync::Arc;

use super::ids::Ids;
use super::sealed::Sealer;
use wire::turn::{FinishReason, ItemEnd, ItemKind, TurnEvent};

/// How reasoning leaves, so that the client can send it back: bare, signed, or sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing.
    Nothing,
    /// A signature: the client sees the reasoning.
    Signature,
    /// The sealed reasoning itself.
    Seal,
}

/// The items of one turn.
#[derive(Debug)]
pub(super) struct Items {
    /// Chooses the ids of the items and of other parts of the reply.
    pub(super) ids: Ids,
    sealer: Arc<Sealer>,
    proof: Proof,
    open: Option<OpenItem>,
    /// True when the source has its own items.
    are_given: bool,
}

#[derive(Debug)]
struct OpenItem {
    kind: ItemKind,
    /// The reasoning up to now, if it needs a proof.
    reasoning: String,
}

/// The item events around one step.
#[derive(Debug, Default)]
pub(super) struct ItemEvents {
    pub(super) before: Vec<TurnEvent>,
    pub(super) after: Option<TurnEvent>,
}

impl Items {
    pub(super) fn new(ids: Ids, sealer: Arc<Sealer>, proof: Proof) -> Self {
        Self { ids, sealer, proof, open: None, are_given: false }
    }

    /// Returns the beginnings and ends of items that surround this step.
    pub(super) fn item_events(&mut self, event: &TurnEvent) -> ItemEvents {
        self.are_given |= matches!(event, TurnEvent::ItemBegun(..));
        if self.are_given {
            return ItemEvents::default();
        }
        let mut around = ItemEvents::default();
        match event {
            TurnEvent::Finish(end) => {
                let is_whole = matches!(end.reason, FinishReason::Stop | FinishReason::ToolCalls);
                around.before.extend(self.end_item(is_whole));
            }
            event => {
                let Some(kind) = kind_of(event) else { return around };
                self.enter_item(kind, &mut around.before);
                if let (TurnEvent::Reasoning(text), Some(open)) = (event, &mut self.open)
                    && self.proof != Proof::Nothing
                {
                    open.reasoning.push_str(text);
                }
                around.after = (kind == ItemKind::Call).then(|| self.end_item(true)).flatten();
            }
        }
        around
    }

    /// Ends the open item; `is_whole`: nothing cut it.
    pub(super) fn end_item(&mut self, is_whole: bool) -> Option<TurnEvent> {
        let OpenItem { kind, reasoning } = self.open.take()?;
        let signature = match self.proof {
            Proof::Signature if kind == ItemKind::Reasoning => Some(self.sealer.sign(&reasoning)),
            Proof::Seal if kind == ItemKind::Reasoning => Some(self.sealer.seal(&reasoning)),
            _ => None,
        };
        Some(TurnEvent::ItemEnded(ItemEnd { signature, is_whole }))
    }

    /// Begins an item unless one of this kind is open. Each call is a separate item.
    fn enter_item(&mut self, kind: ItemKind, before: &mut Vec<TurnEvent>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        before.extend(self.end_item(true));
        before.push(TurnEvent::ItemBegun(kind, self.ids.id_with_prefix("")));
        self.open = Some(OpenItem { kind, reasoning: String::new() });
    }
}

fn kind_of(event: &TurnEvent) -> Option<ItemKind> {
    let kind = match event {
        TurnEvent::Reasoning(_) => ItemKind::Reasoning,
        TurnEvent::Content(_) => ItemKind::Text,
        TurnEvent::Refusal(_) => ItemKind::Refusal,
        TurnEvent::ToolCall(_) => return Some(ItemKind::Call),
        _ => return None,
    };
    (event.text_len() > 0).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::turn::{ToolCall, TurnEnd};

    /// The steps with their items; an id is `#`, a proof what it begins with.
    fn check(proof: Proof, events: &[TurnEvent], expected: &[&str]) {
        let ids = Ids::new(1, std::collections::HashSet::new());
        let mut items = Items::new(ids, Arc::new(Sealer::new(b"a secret")), proof);
        let mut seen = Vec::new();
        for event in events {
            let ItemEvents { before, after } = items.item_events(event);
            seen.extend(before.into_iter().chain([event.clone()]).chain(after));
        }
        let seen: Vec<String> = seen
            .iter()
            .map(|event| match event {
                TurnEvent::ItemBegun(kind, id) => {
                    format!("{kind:?} {}", if id.len() == 32 { "#" } else { id })
                }
                TurnEvent::ItemEnded(ItemEnd { signature, is_whole }) => {
                    let proof = signature.as_deref().unwrap_or("-").split('.').nth(1).unwrap_or("-");
                    format!("end {proof} {is_whole}")
                }
                TurnEvent::Reasoning(text) | TurnEvent::Content(text) => text.clone(),
                TurnEvent::ToolCall(call) => call.name.clone(),
                TurnEvent::Finish(end) => end.reason.as_str().to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn steps_get_their_items() {
        let reasoning = |text: &str| TurnEvent::Reasoning(text.into());
        let content = |text: &str| TurnEvent::Content(text.into());
        let call = |name: &str| TurnEvent::ToolCall(ToolCall { name: name.into(), ..ToolCall::default() });
        let finish = |reason| TurnEvent::Finish(TurnEnd::new(reason, None));
        check(
            Proof::Signature,
            &[
                TurnEvent::Begun,
                reasoning("a"),
                content(""),
                reasoning("b"),
                content("c"),
                finish(FinishReason::Length),
            ],
            &[
                "Begun",
                "Reasoning #",
                "a",
                "",
                "b",
                "end signed true",
                "Text #",
                "c",
                "end - false",
                "length",
            ],
        );
        check(
            Proof::Seal,
            &[reasoning("a"), call("f"), call("g"), finish(FinishReason::ToolCalls)],
            &[
                "Reasoning #",
                "a",
                "end sealed true",
                "Call #",
                "f",
                "end - true",
                "Call #",
                "g",
                "end - true",
                "tool_calls",
            ],
        );
        check(
            Proof::Nothing,
            &[reasoning("a"), finish(FinishReason::Stop)],
            &["Reasoning #", "a", "end - true", "stop"],
        );
        let steps = [
            TurnEvent::ItemBegun(ItemKind::Text, "mine".into()),
            content("a"),
            TurnEvent::ItemEnded(ItemEnd { signature: None, is_whole: true }),
            finish(FinishReason::Stop),
        ];
        check(Proof::Seal, &steps, &["Text mine", "a", "end - true", "stop"]);
    }
}
