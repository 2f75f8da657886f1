//! Operations of an expert that the owner's policy restricts further than the package does, as far as the
//! configuration alone shows it. For commands; a run asks the policy itself. Pure.

use std::fmt;

use openexperts::{Bindings, Package, Tier};
use tools::{PolicyConfig, Restriction, Verdict, find_restriction};

/// An operation with less freedom than its tier gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestrictedOperation {
    /// `tool.operation`.
    pub title: String,
    /// The rule of the policy.
    pub restriction: Restriction,
}

impl RestrictedOperation {
    /// Returns true if no call of it is made.
    pub fn is_denied(&self) -> bool {
        self.restriction.verdict == Verdict::Deny
    }
}

impl fmt::Display for RestrictedOperation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (title, source) = (&self.title, &self.restriction.source);
        if self.is_denied() {
            write!(out, "{title}: {source} denies it, so its calls fail")
        } else {
            write!(out, "{title}: {source} asks first, although its tier is `auto`")
        }
    }
}

/// Returns the operations of a package that the policy denies, or asks about although they run alone.
pub fn find_restricted(
    package: &Package,
    bindings: &Bindings,
    policy: &PolicyConfig,
) -> Vec<RestrictedOperation> {
    let mut found = Vec::new();
    for tool in package.offered_tools() {
        let name = &tool.name.value;
        let Some(binding) = bindings.tools.get(name) else { continue };
        for operation in &tool.operations.items {
            let operation = &operation.name;
            let tier = package.manifest.policy.read_tier(name, operation);
            let restriction = find_restriction(policy, &binding.configured_name(operation));
            let is_stricter = |it: &Restriction| match tier {
                Tier::Auto => true,
                Tier::Confirm => it.verdict == Verdict::Deny,
                Tier::Manual => false,
            };
            let title = || format!("{name}.{operation}");
            found.extend(
                restriction
                    .filter(is_stricter)
                    .map(|restriction| RestrictedOperation { title: title(), restriction }),
            );
        }
    }
    found
}
