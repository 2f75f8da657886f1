//! Triggers: when a clock is due, what an event's payload means, and which invocation is queued for it. Pure; the server's hook route and
//! the scheduler act on it.

mod event;
mod fence;
mod gmail;
mod lookup;
mod schedule;
mod secret;

pub(super) use event::event_facts;
pub use event::{Event, events_of, invocation, why_off};
pub(crate) use fence::fenced_whole;
pub use fence::{fenced, fenced_json};
pub use schedule::{Schedule, Watch};
pub use secret::{Proof, Signature};
pub(super) use secret::{Refusal, is_proven};

#[cfg(test)]
mod tests {
    use crate::diagnostic::Report;
    use crate::manifest::Manifest;
    use crate::yaml;

    /// A manifest with these triggers, as written in `expert.yaml`.
    pub(super) fn manifest(triggers: &str) -> Manifest {
        let text = format!(
            "spec: '1.0'\nname: sales\nversion: 1.0.0\ndescription: d\ncomponents: {{orchestrator: o.md, persona: [p.md], functions: [f.md]}}\n\
             triggers:{triggers}\n"
        );
        let mut report = Report::default();
        let mut file = report.file("expert.yaml");
        let root = yaml::read(&text, 1, &mut file).unwrap();
        let manifest = Manifest::read(&root, &mut file).unwrap();
        let found = report.into_sorted();
        assert!(found.is_empty(), "{found:?}");
        manifest
    }
}
