//! The operations that one run may call: which are offered, under which tier, and calling one. Called by `tools` and `isolated`.
//!
//! The tier of an operation is the package's, and stricter where the owner wants to be asked: what a rule of `[tools.policy]` asks about
//! is `confirm` where the package says `auto`. A package can only be held back by its owner's policy, never freed.

use std::collections::BTreeSet;

use serde_json::Value;

use super::bound::{BoundTool, BoundTools, OfferedOperation};
use super::package::Package;
use super::policy::{Policy, Tier, Tiers};
use crate::tools::{Approver, Invocation, ToolError, ToolOutput};

/// The operations of one run.
pub(super) struct Operations {
    bound: BoundTools,
    /// The abstract tools that it has; `None`: all that are bound.
    only: Option<BTreeSet<String>>,
    policy: Policy,
    is_dry: bool,
}

impl Operations {
    /// All operations of the package's tools.
    pub(super) fn new(package: &Package, bound: BoundTools, is_dry: bool) -> Self {
        Self { bound, only: None, policy: package.manifest.policy.clone(), is_dry }
    }

    /// Those of these tools alone.
    pub(super) fn only_of(self, tools: impl Iterator<Item = String>) -> Self {
        Self { only: Some(tools.collect()), ..self }
    }

    fn tools(&self) -> impl Iterator<Item = &BoundTool> {
        let is_in = |tool: &&BoundTool| self.only.as_ref().is_none_or(|only| only.contains(tool.name()));
        self.bound.iter().filter(is_in)
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<OfferedOperation> {
        self.tools().flat_map(BoundTool::operations).collect()
    }

    /// Who decides about an operation.
    pub(super) fn tier(&self, operation: &OfferedOperation) -> Tier {
        let (tool, name) = operation.title.split_once('.').unwrap_or_default();
        match self.policy.tier(tool, name) {
            Tier::Auto if operation.owner_asks => Tier::Confirm,
            tier => tier,
        }
    }

    /// All of them by their tiers, as the model is told.
    pub(super) fn tiers(&self) -> Tiers {
        let all = self.all();
        Tiers::from_pairs(all.iter().map(|operation| (operation.title.clone(), self.tier(operation))))
    }

    /// Calls one; `None` where there is none of this name.
    pub(super) async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Option<Result<ToolOutput, ToolError>> {
        let (tool, operation) = self.tools().find_map(|tool| {
            let mut operations = tool.operations().into_iter();
            Some((tool, operations.find(|operation| operation.spec.name == invocation.name)?))
        })?;
        Some(match self.dry_answer(&operation, invocation) {
            Some(text) => Ok(ToolOutput { text, display: None }),
            None => tool.call(&operation, invocation, approver).await,
        })
    }

    /// In a dry run only what an `auto` operation reads is done; everything else is described.
    fn dry_answer(&self, operation: &OfferedOperation, invocation: &Invocation) -> Option<String> {
        if !self.is_dry {
            return None;
        }
        let tier = self.tier(operation);
        if tier == Tier::Auto && operation.spec.is_repeatable {
            return None;
        }
        let arguments = Value::Object(invocation.arguments.clone());
        Some(format!(
            "[dry run: {} ({tier}) was not called; its inputs would be {arguments}. Go on as if it had worked]",
            operation.title
        ))
    }
}
