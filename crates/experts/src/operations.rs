//! The operations that one run may call: which are offered, under which tier, and how one is called. Called
//! by `tools` and `isolated`.
//!
//! The tier of an operation is the package's, or stricter if the owner wants to be asked: if a rule of
//! `[tools.policy]` asks, the package's `auto` becomes `confirm`. The owner's policy can only restrict a
//! package, never extend its rights.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::bound::{BoundTool, BoundTools, OfferedOperation};
use openexperts::{Package, Policy, Tier, Tiers};
use tools::{Approver, Effect, Invocation, ToolError, ToolOutput};

/// The operations of one run.
pub(super) struct Operations {
    bound: BoundTools,
    /// The abstract tools that the run has; `None`: all bound ones.
    only: Option<BTreeSet<String>>,
    /// All operations that the tools had when the run began. The model sees these.
    all: Vec<OfferedOperation>,
    policy: Policy,
    is_dry: bool,
}

impl Operations {
    /// Returns all operations of the package's tools.
    pub(super) fn new(package: &Package, bound: BoundTools, is_dry: bool) -> Self {
        let all = bound.iter().flat_map(BoundTool::operations).collect();
        Self { bound, only: None, all, policy: package.manifest.policy.clone(), is_dry }
    }

    /// Returns the operations of these tools only.
    pub(super) fn only_of(self, tools: impl Iterator<Item = String>) -> Self {
        let mut narrowed = Self { only: Some(tools.collect()), ..self };
        narrowed.all = narrowed.tools().flat_map(BoundTool::operations).collect();
        narrowed
    }

    fn tools(&self) -> impl Iterator<Item = &BoundTool> {
        let is_in = |tool: &&BoundTool| self.only.as_ref().is_none_or(|only| only.contains(tool.name()));
        self.bound.iter().filter(is_in)
    }

    /// Returns all operations, as they were when the run began.
    pub(super) fn all(&self) -> &[OfferedOperation] {
        &self.all
    }

    /// Returns the tier of an operation.
    pub(super) fn tier(&self, operation: &OfferedOperation) -> Tier {
        let (tool, name) = operation.title.split_once('.').unwrap_or_default();
        match self.policy.read_tier(tool, name) {
            Tier::Auto if operation.owner_asks => Tier::Confirm,
            tier => tier,
        }
    }

    /// Returns the tiers by the names that the model calls. If a name stands for several operations, the
    /// strictest tier applies.
    pub(super) fn tiers_by_name(&self) -> BTreeMap<String, Tier> {
        let mut tiers = BTreeMap::new();
        for operation in &self.all {
            let tier = self.tier(operation);
            let known = tiers.entry(operation.spec.name.clone()).or_insert(tier);
            if tier.freedom() < known.freedom() {
                *known = tier;
            }
        }
        tiers
    }

    /// Returns all operations by tier, as listed for the model.
    pub(super) fn tiers(&self) -> Tiers {
        Tiers::from_pairs(self.all.iter().map(|operation| (operation.title.clone(), self.tier(operation))))
    }

    /// Returns the operation of this name; `None` if the name stands for several.
    fn find_named(&self, name: &str) -> Option<Result<(&BoundTool, OfferedOperation), ToolError>> {
        let all = self
            .tools()
            .flat_map(|tool| tool.operations().into_iter().map(move |operation| (tool, operation)));
        let mut named = all.filter(|(_, operation)| operation.spec.name == name);
        let (tool, operation) = named.next()?;
        Some(match named.find(|(_, other)| !other.is_same(&operation)) {
            None => Ok((tool, operation)),
            Some((_, other)) => Err(ToolError::Denied(format!(
                "not run: `{name}` stands for {} and for {}; a person has to change the package or its bindings",
                operation.title, other.title
            ))),
        })
    }

    /// Calls an operation; `None` if no operation has this name.
    pub(super) async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Option<Result<ToolOutput, ToolError>> {
        let (tool, operation) = match self.find_named(&invocation.name)? {
            Ok(found) => found,
            Err(denied) => return Some(Err(denied)),
        };
        Some(match self.dry_answer(&operation, invocation) {
            Some(text) => Ok(ToolOutput { text, ..ToolOutput::default() }),
            None => tool.call(&operation, invocation, approver).await,
        })
    }

    /// Returns the effect that a call would have now; `None` if no operation has its name.
    pub(super) async fn effect(&self, invocation: &Invocation) -> Option<Effect> {
        let (tool, operation) = self.find_named(&invocation.name)?.ok()?;
        Some(tool.effect(&operation, invocation).await)
    }

    /// Writes into the audit log who refused a call.
    pub(super) async fn note_refusal(&self, invocation: &Invocation, by: &str) {
        if let Some(Ok((tool, operation))) = self.find_named(&invocation.name) {
            tool.note_refusal(&operation, invocation, by).await;
        }
    }

    /// Writes into the audit log that respool ended while a call ran.
    pub(super) async fn note_unknown(&self, invocation: &Invocation) {
        if let Some(Ok((tool, operation))) = self.find_named(&invocation.name) {
            tool.note_unknown(&operation, invocation).await;
        }
    }

    /// Returns true if calls of this name are not made: a dry run executes only `auto` operations that read.
    pub(super) fn is_left_out(&self, name: &str) -> bool {
        self.find_named(name).and_then(Result::ok).is_some_and(|(_, operation)| !self.executes(&operation))
    }

    fn executes(&self, operation: &OfferedOperation) -> bool {
        !self.is_dry || self.tier(operation) == Tier::Auto && operation.spec.is_repeatable
    }

    /// Describes a call that is not made.
    fn dry_answer(&self, operation: &OfferedOperation, invocation: &Invocation) -> Option<String> {
        if self.executes(operation) {
            return None;
        }
        let tier = self.tier(operation);
        let arguments = Value::Object(invocation.arguments.clone());
        Some(format!(
            "[dry run: {} ({tier}) was not called; its inputs would be {arguments}. Go on as if it had worked]",
            operation.title
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bound;
    use openexperts::load;
    use tools::Caller;

    const FILES: [(&str, &str); 4] = [
        (
            "expert.yaml",
            "spec: '1.0'\nname: desk\nversion: 1.0.0\ndescription: d\nrequires: {tools: [crm]}\n\
             components: {orchestrator: o.md, persona: [o.md], functions: [f.md], tools: [crm.yaml]}\n\
             policy: {approval: {default: auto, overrides: {crm.move_deal: manual}}}\n",
        ),
        ("o.md", "o\n"),
        ("f.md", "---\nname: f\ndescription: d\n---\nBody.\n"),
        ("crm.yaml", "name: crm\ndescription: d\noperations: [{name: move_deal}, {name: look}]\n"),
    ];

    /// Two operations may have the same name for the model. Then neither runs, and the stricter
    /// tier applies.
    #[tokio::test]
    async fn clashing_names_take_the_stricter_tier() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in FILES {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let package = load(dir.path()).unwrap().package.unwrap();
        let mut tool = package.tools.items[0].clone();
        let bound = |tool| Arc::new(vec![bound::unbound(tool)]);
        assert!(bound::find_clashes(&bound(tool.clone())).is_empty());
        let other = openexperts::Operation { name: "move:deal".into(), ..tool.operations.items[0].clone() };
        tool.operations.items.push(other);
        let bound = bound(tool);
        let clashes = bound::find_clashes(&bound);
        assert!(
            clashes.len() == 1 && clashes[0].text.contains("crm.move:deal and crm.move_deal"),
            "{clashes:?}"
        );
        let operations = Operations::new(&package, bound, false);
        let tiers = operations.tiers_by_name();
        assert_eq!((tiers["crm__move_deal"], tiers["crm__look"]), (Tier::Manual, Tier::Auto));
        let call = async |name: &str| {
            let invocation = Invocation {
                name: name.into(),
                arguments: serde_json::Map::new(),
                key: String::new(),
                timeout: std::time::Duration::from_secs(1),
                caller: Caller::default(),
            };
            operations.call(&invocation, None).await.unwrap().unwrap_err()
        };
        assert!(matches!(call("crm__move_deal").await, ToolError::Denied(_)));
        assert!(matches!(call("crm__look").await, ToolError::Unreachable(_)), "it is not bound");
    }
}
