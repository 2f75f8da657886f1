//! The policy's answer to a call: the first rule that matches decides, then the default. Pure.
//!
//! Both kinds of rules err on the side of safety. An `allow` needs *everything* that the call touches to
//! match, and unreadable parts never match; a `deny` or `ask` needs only *something* to match. The
//! [`Subject`] of a call contains what it touches. The source of the tool builds it; [`foreign`] does so for
//! tools of other servers. Used by the gate in `set.rs`. This is not a sandbox: it reads a command but does
//! not run it.

mod command;
pub(super) mod foreign;
pub(super) mod held;
mod pattern;
pub(super) mod reach;
mod shell;

use std::collections::BTreeSet;
use std::path::Path;

use super::config::{PolicyConfig, Rule, Verdict};
use super::contract::Target;
pub(super) use command::Plan;
pub(super) use command::commands_of;
pub use command::{CommandPattern, ListedCommand, command_list, parse_pipeline, plain_words};
use pattern::{HostPattern, PathPattern, compile_wildcard};
use regex::Regex;
pub(super) use shell::quote_word;
use wire::units::UnusableSetting;

/// The commands, paths and hosts of a call, as rules judge them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The tool's names: the one the model calls, and those in the configuration.
    pub(super) names: Vec<String>,
    /// Command lines.
    pub(super) commands: Vec<String>,
    /// Paths: relative to the workspace and without `..` when inside, else absolute. A path behind a symlink
    /// is here as it was written and as it is.
    pub(super) paths: Vec<String>,
    /// Hosts of URLs; `None` for a URL that different readers might read differently.
    pub(super) hosts: Vec<Option<String>>,
    /// Texts of a foreign tool's arguments whose meaning is unclear, by the argument's name. An `allow` with
    /// a pattern does not cover them.
    pub(super) unclear: Vec<(String, String)>,
    /// Whether respool knows the tool and the requested action: if not, the default `allow` becomes an
    /// `ask`.
    pub(super) is_known: bool,
    /// The reason, for people, why the tool counts as new or changed: an `allow` becomes an `ask`.
    pub(super) changed: Option<String>,
    /// The target, for people.
    pub(super) target: Target,
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
    /// Whether it has no pattern except the tool's: an `allow` permits everything.
    has_no_pattern: bool,
    command: Option<CommandPattern>,
    path: Option<PathPattern>,
    host: Option<HostPattern>,
    free_text: Vec<String>,
    then: Verdict,
}

/// A verdict and a description of its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    pub(super) source: String,
    /// The way to run a command that a pattern allows.
    pub(super) plan: Option<Plan>,
    /// Whether no rule matched, so that the default decided.
    pub(super) is_by_default: bool,
}

impl Policy {
    /// Compiles the rules. Path patterns below `workspace` mean the same as relative ones.
    ///
    /// # Errors
    /// Names the rules whose pattern is too large.
    pub(super) fn new(config: &PolicyConfig, workspace: Option<&Path>) -> Result<Self, Vec<UnusableSetting>> {
        let (mut rules, mut problems) = (Vec::new(), Vec::new());
        for (index, rule) in config.rule.iter().enumerate() {
            match Compiled::new(rule, workspace) {
                Ok(rule) => rules.push(rule),
                Err(why) => problems.push(UnusableSetting::new(
                    &["tools", "policy", "rule", &index.to_string()],
                    format!("a pattern cannot be used: {why}"),
                )),
            }
        }
        if problems.is_empty() { Ok(Self { default: config.default, rules }) } else { Err(problems) }
    }

    pub(super) fn judge(&self, subject: &Subject) -> Judgement {
        let judged = self.judge_by_rules(subject);
        match (&subject.changed, judged.verdict) {
            (Some(why), Verdict::Allow) => {
                let source = format!("{} allows this tool, but {why}, so respool", judged.source);
                Judgement { verdict: Verdict::Ask, source, plan: None, ..judged }
            }
            _ => judged,
        }
    }

    fn judge_by_rules(&self, subject: &Subject) -> Judgement {
        let judgement = |verdict, source: &str| Judgement {
            verdict,
            source: source.to_owned(),
            plan: None,
            is_by_default: true,
        };
        if let Some((index, rule)) = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(subject)) {
            let source = format!("rule {} of tools.policy", index + 1);
            let plan = rule.command_plan(subject);
            return Judgement { plan, is_by_default: false, ..judgement(rule.then, &source) };
        }
        if self.default == Verdict::Allow && !subject.is_known {
            return judgement(Verdict::Ask, "no rule names this operation, and respool does not know it");
        }
        let judged = judgement(self.default, "tools.policy.default");
        match self.incomplete_rule(subject) {
            Some(why) => Judgement { source: format!("{} ({why})", judged.source), ..judged },
            None => judged,
        }
    }

    /// Returns true if a rule for this tool asks, whatever its other patterns. An earlier rule that decides
    /// every call of the tool takes precedence.
    pub(super) fn asks_before(&self, names: &[String]) -> bool {
        let speaks_of = |rule: &&Compiled| match &rule.tool {
            Some(tool) => names.iter().any(|name| tool.is_match(name)),
            None => rule.has_no_pattern,
        };
        let mut rules = self.rules.iter().filter(speaks_of);
        rules
            .find(|rule| rule.then == Verdict::Ask || rule.has_no_pattern)
            .is_some_and(|rule| rule.then == Verdict::Ask)
    }

    /// Returns true if some rule has a pattern for paths, so that a file's other names matter.
    pub(super) fn judges_paths(&self) -> bool {
        self.rules.iter().any(|rule| rule.path.is_some())
    }

    /// Returns the rule that would have allowed the call if it covered every argument.
    fn incomplete_rule(&self, subject: &Subject) -> Option<String> {
        let clear = Subject { unclear: Vec::new(), ..subject.clone() };
        let allows = |rule: &Compiled| rule.then == Verdict::Allow && rule.matches(&clear);
        let index = self.rules.iter().position(allows)?;
        let names: BTreeSet<String> = subject.unclear.iter().map(|(name, _)| format!("`{name}`")).collect();
        let names: Vec<String> = names.into_iter().collect();
        Some(format!(
            "rule {} has patterns, and none of them covers {}: if that is harmless text, list it in the rule's \
             `free_text`",
            index + 1,
            names.join(", ")
        ))
    }
}

impl Compiled {
    fn new(rule: &Rule, workspace: Option<&Path>) -> Result<Self, regex::Error> {
        Ok(Self {
            tool: rule.tool.as_deref().map(compile_wildcard).transpose()?,
            has_no_pattern: has_no_pattern(rule),
            command: rule.command.as_deref().map(CommandPattern::new).transpose()?,
            path: rule.path.as_deref().map(|path| PathPattern::new(path, workspace)).transpose()?,
            host: rule.host.as_deref().map(HostPattern::new).transpose()?,
            free_text: rule.free_text.clone(),
            then: rule.then,
        })
    }

    fn matches(&self, subject: &Subject) -> bool {
        let named =
            self.tool.as_ref().is_none_or(|tool| subject.names.iter().any(|name| tool.is_match(name)));
        named && if self.then == Verdict::Allow { self.covers(subject) } else { self.touches(subject) }
    }

    /// Checks an `allow`: every pattern has something to match and matches all of it, and nothing is left
    /// over.
    fn covers(&self, subject: &Subject) -> bool {
        let open = self.has_no_pattern;
        let is_free = |(name, _): &(String, String)| self.free_text.contains(name);
        matches_every(self.command.as_ref(), &subject.commands, open, |pattern, command| {
            pattern.allows(command)
        }) && matches_every(self.path.as_ref(), &subject.paths, open, |pattern, path| pattern.allows(path))
            && matches_every(self.host.as_ref(), &subject.hosts, open, |pattern, host| {
                host.as_deref().is_some_and(|host| pattern.matches(host))
            })
            && (open || subject.unclear.iter().all(is_free))
    }

    /// Checks a `deny` or `ask`: every pattern matches something, including anything that might be a
    /// command, a path or a host.
    fn touches(&self, subject: &Subject) -> bool {
        let texts: Vec<String> = subject.unclear.iter().map(|(_, text)| text.clone()).collect();
        let commands = [&subject.commands[..], &texts].concat();
        let paths = [&subject.paths[..], &texts].concat();
        let hosts = texts.iter().filter_map(|text| pattern::host_of(&format!("http://{text}"))).map(Some);
        let hosts: Vec<Option<String>> = subject.hosts.iter().cloned().chain(hosts).collect();
        let unclear_or_matching = |pattern: &HostPattern, host: &Option<String>| {
            host.as_deref().is_none_or(|host| pattern.matches(host))
        };
        matches_some(self.command.as_ref(), &commands, |pattern, command| pattern.touches(command))
            && matches_some(self.path.as_ref(), &paths, |pattern, path| pattern.touches(path))
            && matches_some(self.host.as_ref(), &hosts, unclear_or_matching)
    }

    /// Returns the way to run the command that this rule's pattern allows.
    fn command_plan(&self, subject: &Subject) -> Option<Plan> {
        let pattern = self.command.as_ref().filter(|_| self.then == Verdict::Allow)?;
        pattern.command_plan(subject.commands.first()?)
    }
}

/// Returns true for a rule without a pattern. An `allow` with a pattern needs one for everything that the
/// call touches, so that `path = "src/**"` permits neither a shell nor a `uri` next to the path.
fn has_no_pattern(rule: &Rule) -> bool {
    rule.command.is_none() && rule.path.is_none() && rule.host.is_none()
}

/// Returns the rules (counted from 1) that should allow commands but cannot, because respool cannot read
/// their pattern.
pub fn idle_rules(policy: &PolicyConfig) -> Vec<usize> {
    let is_idle = |rule: &Rule| {
        let pattern =
            rule.command.as_deref().filter(|_| rule.then == Verdict::Allow).map(CommandPattern::new);
        pattern.is_some_and(|pattern| pattern.is_ok_and(|pattern| !pattern.can_allow()))
    };
    let rules = policy.rule.iter().enumerate().filter(|(_, rule)| is_idle(rule));
    rules.map(|(index, _)| index + 1).collect()
}

fn matches_every<P, S>(
    pattern: Option<&P>,
    subjects: &[S],
    open: bool,
    matches: impl Fn(&P, &S) -> bool,
) -> bool {
    match pattern {
        Some(pattern) => !subjects.is_empty() && subjects.iter().all(|subject| matches(pattern, subject)),
        None => open || subjects.is_empty(),
    }
}

fn matches_some<P, S>(pattern: Option<&P>, subjects: &[S], matches: impl Fn(&P, &S) -> bool) -> bool {
    pattern.is_none_or(|pattern| subjects.iter().any(|subject| matches(pattern, subject)))
}

#[cfg(test)]
mod tests;
