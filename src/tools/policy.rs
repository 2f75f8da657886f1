//! What the policy says to a call: the first rule that matches decides, then the default. Pure.
//!
//! The two kinds of rules are read in opposite ways, each towards safety. An `allow` needs *everything* the call touches
//! to match and whatever cannot be read never does; a `deny` or `ask` needs only *something* to match. What a call touches
//! is its [`Subject`]; making one is up to the source of the tool, and [`foreign`] does it for tools of other servers.
//! Used by the gate in `set.rs`; this is no sandbox: it reads a command, it does not run it.

mod command;
pub(super) mod foreign;
mod pattern;
pub(super) mod reach;

use std::path::Path;

use super::config::{PolicyConfig, Rule, Verdict};
use crate::units::Unusable;
pub use command::CommandPattern;
use pattern::{HostPattern, PathPattern, wildcard};
use regex::Regex;

/// What a call touches, as far as rules can speak of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The tool's names: the one the model calls, and those in the configuration.
    pub(super) names: Vec<String>,
    /// Command lines.
    pub(super) commands: Vec<String>,
    /// Paths: relative to the workspace and without `..` when inside, else absolute. A path behind a symlink is here as
    /// it was written and as it is.
    pub(super) paths: Vec<String>,
    /// Hosts of URLs; `None` for a URL that different readers might read differently.
    pub(super) hosts: Vec<Option<String>>,
    /// False when respool does not know the tool or what it is asked to do: then the default `allow` is an `ask`.
    pub(super) is_known: bool,
}

/// `[tools.policy]`, ready to judge.
#[derive(Debug)]
pub(super) struct Policy {
    default: Verdict,
    rules: Vec<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    tool: Option<Regex>,
    /// What it has no pattern for, an `allow` lets pass.
    speaks_of_everything: bool,
    command: Option<CommandPattern>,
    path: Option<PathPattern>,
    host: Option<HostPattern>,
    then: Verdict,
}

/// A verdict and where it comes from, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    pub(super) source: String,
}

impl Policy {
    /// Compiles the rules. Path patterns below `workspace` mean the same as relative ones.
    ///
    /// # Errors
    /// Names the rules whose pattern is too large.
    pub(super) fn new(config: &PolicyConfig, workspace: Option<&Path>) -> Result<Self, Vec<Unusable>> {
        let (mut rules, mut problems) = (Vec::new(), Vec::new());
        for (index, rule) in config.rule.iter().enumerate() {
            match Compiled::new(rule, workspace) {
                Ok(rule) => rules.push(rule),
                Err(why) => problems.push(Unusable::new(
                    &["tools", "policy", "rule", &index.to_string()],
                    format!("a pattern cannot be used: {why}"),
                )),
            }
        }
        if problems.is_empty() { Ok(Self { default: config.default, rules }) } else { Err(problems) }
    }

    pub(super) fn judge(&self, subject: &Subject) -> Judgement {
        if let Some((index, rule)) = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(subject)) {
            return Judgement { verdict: rule.then, source: format!("rule {} of tools.policy", index + 1) };
        }
        if self.default == Verdict::Allow && !subject.is_known {
            let source = "no rule names this operation, and respool does not know it".to_owned();
            return Judgement { verdict: Verdict::Ask, source };
        }
        Judgement { verdict: self.default, source: "tools.policy.default".to_owned() }
    }
}

impl Compiled {
    fn new(rule: &Rule, workspace: Option<&Path>) -> Result<Self, regex::Error> {
        Ok(Self {
            tool: rule.tool.as_deref().map(wildcard).transpose()?,
            speaks_of_everything: speaks_of_everything(rule),
            command: rule.command.as_deref().map(CommandPattern::new).transpose()?,
            path: rule.path.as_deref().map(|path| PathPattern::new(path, workspace)).transpose()?,
            host: rule.host.as_deref().map(HostPattern::new).transpose()?,
            then: rule.then,
        })
    }

    fn matches(&self, subject: &Subject) -> bool {
        let named =
            self.tool.as_ref().is_none_or(|tool| subject.names.iter().any(|name| tool.is_match(name)));
        named && if self.then == Verdict::Allow { self.covers(subject) } else { self.touches(subject) }
    }

    /// For `allow`: every pattern has something to match and matches all of it.
    fn covers(&self, subject: &Subject) -> bool {
        let open = self.speaks_of_everything;
        every(self.command.as_ref(), &subject.commands, open, |pattern, command| pattern.allows(command))
            && every(self.path.as_ref(), &subject.paths, open, |pattern, path| pattern.allows(path))
            && every(self.host.as_ref(), &subject.hosts, open, |pattern, host| {
                host.as_deref().is_some_and(|host| pattern.matches(host))
            })
    }

    /// For `deny` and `ask`: every pattern matches something.
    fn touches(&self, subject: &Subject) -> bool {
        let unclear_or_matching = |pattern: &HostPattern, host: &Option<String>| {
            host.as_deref().is_none_or(|host| pattern.matches(host))
        };
        some(self.command.as_ref(), &subject.commands, |pattern, command| pattern.touches(command))
            && some(self.path.as_ref(), &subject.paths, |pattern, path| pattern.touches(path))
            && some(self.host.as_ref(), &subject.hosts, unclear_or_matching)
    }
}

/// True for an `allow` that names a tool or has no pattern at all. Any other must have a pattern for everything the call
/// touches, so that `path = "src/**"` alone does not let a shell run.
fn speaks_of_everything(rule: &Rule) -> bool {
    let names_a_tool = rule.tool.as_deref().is_some_and(|tool| tool.contains(|c| c != '*'));
    names_a_tool || (rule.command.is_none() && rule.path.is_none() && rule.host.is_none())
}

fn every<P, S>(pattern: Option<&P>, subjects: &[S], open: bool, matches: impl Fn(&P, &S) -> bool) -> bool {
    match pattern {
        Some(pattern) => !subjects.is_empty() && subjects.iter().all(|subject| matches(pattern, subject)),
        None => open || subjects.is_empty(),
    }
}

fn some<P, S>(pattern: Option<&P>, subjects: &[S], matches: impl Fn(&P, &S) -> bool) -> bool {
    pattern.is_none_or(|pattern| subjects.iter().any(|subject| matches(pattern, subject)))
}

#[cfg(test)]
mod tests;
