//! Triggers: when a clock is due, what an event's payload means, and which invocation is queued for it. Pure;
//! the server's hook route and the scheduler act on it.

mod event;
mod fence;
mod gmail;
mod payload_error;
mod secret;

pub use event::{Event, events_of, invocation, why_off};
pub(super) use event::{event_facts, lane_of_person};
pub(crate) use fence::fenced_whole;
pub use fence::{fence_text, fenced_json};
pub use payload_error::PayloadError;
pub use secret::{Proof, Signature};
pub(super) use secret::{Refusal, is_proven};

#[cfg(test)]
mod tests {
    use openexperts::Manifest;

    /// A manifest with these triggers, as written in `expert.yaml`.
    pub(super) fn manifest(triggers: &str) -> Manifest {
        let text = format!(
            "spec: '1.0'\nname: sales\nversion: 1.0.0\ndescription: d\ncomponents: {{orchestrator: o.md, persona: [p.md], functions: [f.md]}}\n\
             triggers:{triggers}\n"
        );
        let (manifest, found) = Manifest::from_yaml(&text);
        assert!(found.is_empty(), "{found:?}");
        manifest.unwrap()
    }
}
