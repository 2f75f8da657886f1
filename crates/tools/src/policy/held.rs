//! The policy in force while a process runs: `[tools.policy]` as it was at the start, and every later
//! version. The strictest of them decides: a change forbids at once but permits only after a restart,
//! because an agent may be able to write the file.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use super::{Judgement, Policy, Subject};
use crate::config::{PolicyConfig, Verdict};
use wire::units::UnusableSetting;

/// The most different policies that are in force together.
const MOST: usize = 16;

/// The policies in force, shared by all agents.
#[derive(Debug)]
pub(crate) struct HeldPolicy(RwLock<Arc<Policies>>);

/// The policies in force, as one call sees them.
#[derive(Debug)]
pub(crate) struct Policies(Vec<(PolicyConfig, Arc<Policy>)>);

impl HeldPolicy {
    /// Returns a holder of this policy alone.
    pub(crate) fn new(config: &PolicyConfig, policy: Policy) -> Self {
        Self(RwLock::new(Arc::new(Policies(vec![(config.clone(), Arc::new(policy))]))))
    }

    /// Returns the policies in force. They judge a call from beginning to end.
    pub(crate) fn current(&self) -> Arc<Policies> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if this policy is in force, and no other.
    pub(crate) fn is_only(&self, config: &PolicyConfig) -> bool {
        let policies = self.current();
        policies.0.len() == 1 && policies.0[0].0 == *config
    }

    /// Returns the policies in force once this one is added; `None` if it is among them already.
    ///
    /// # Errors
    /// When it cannot be used, or too many are in force.
    pub(crate) fn prepare_addition(
        &self,
        config: &PolicyConfig,
        workspace: Option<&Path>,
    ) -> Result<Option<Policies>, Vec<UnusableSetting>> {
        let before = self.current();
        if before.0.iter().any(|(known, _)| known == config) {
            return Ok(None);
        }
        let policy = Policy::new(config, workspace)?;
        if before.0.len() >= MOST {
            let why = format!("the policy has changed {MOST} times since the start: restart respool first");
            return Err(vec![UnusableSetting::new(&["tools", "policy"], why)]);
        }
        let mut all = before.0.clone();
        all.push((config.clone(), Arc::new(policy)));
        Ok(Some(Policies(all)))
    }

    /// Puts these policies in force.
    pub(crate) fn replace_policies(&self, policies: Policies) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
    }
}

impl Policies {
    /// Returns the strictest of their judgements.
    pub(crate) fn judge(&self, subject: &Subject) -> Judgement {
        let mut judged = self.0.iter().map(|(_, policy)| policy.judge(subject));
        let first = judged.next().unwrap_or_else(nothing_holds);
        judged.fold(first, stricter)
    }

    /// Returns true if a rule of any of them asks a person before calls of the tool of these names.
    pub(crate) fn asks_before(&self, names: &[String]) -> bool {
        self.0.iter().any(|(_, policy)| policy.asks_before(names))
    }

    /// Returns true for a call that no rule speaks of, so that the default asks a person. Where rules have
    /// patterns for paths, a command might read a file that one of them denies.
    pub(crate) fn leaves_to_person(&self, subject: &Subject) -> bool {
        let judged = self.judge(subject);
        judged.verdict == Verdict::Ask && judged.is_by_default && !self.judges_paths()
    }

    /// Returns true for a call that needs no question.
    pub(crate) fn allows(&self, subject: &Subject) -> bool {
        self.judge(subject).verdict == Verdict::Allow
    }

    /// Returns true if some rule has a pattern for paths, so that a file's other names matter.
    pub(crate) fn judges_paths(&self) -> bool {
        self.0.iter().any(|(_, policy)| policy.judges_paths())
    }
}

fn nothing_holds() -> Judgement {
    Judgement { verdict: Verdict::Deny, source: "no policy".to_owned(), plan: None, is_by_default: true }
}

fn strictness(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allow => 0,
        Verdict::Ask => 1,
        Verdict::Deny => 2,
    }
}

/// Returns the stricter of two judgements; of two equally strict ones the later, which is the file's current
/// one.
fn stricter(earlier: Judgement, later: Judgement) -> Judgement {
    if strictness(earlier.verdict) > strictness(later.verdict) {
        let source =
            format!("{} of before the configuration was changed (until the next restart)", earlier.source);
        return Judgement { source, ..earlier };
    }
    // A rule that asks is not weakened by a default that asks too.
    let is_by_default = later.is_by_default && (earlier.is_by_default || earlier.verdict != later.verdict);
    if later.verdict != Verdict::Allow || earlier.verdict != Verdict::Allow {
        return Judgement { is_by_default, ..later };
    }
    match (earlier.plan, later.plan) {
        (Some(one), Some(other)) if one != other => Judgement {
            verdict: Verdict::Ask,
            source: "two policies that hold until the next restart allow it in different ways".to_owned(),
            plan: None,
            is_by_default: false,
        },
        // A plan runs the command as a pattern read it, which is stricter than the command as it was
        // written.
        (one, other) => {
            Judgement { plan: other.or(one), is_by_default, source: later.source, verdict: Verdict::Allow }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> PolicyConfig {
        toml::from_str(text).unwrap()
    }

    fn change(held: &HeldPolicy, text: &str) {
        if let Some(policies) = held.prepare_addition(&config(text), None).unwrap() {
            held.replace_policies(policies);
        }
    }

    fn command(text: &str) -> Subject {
        let names = vec!["exec".to_owned()];
        Subject { names, commands: vec![text.to_owned()], is_known: true, ..Subject::default() }
    }

    const GIT: &str = "default = \"ask\"\n[[rule]]\ntool = \"exec\"\ncommand = \"git *\"\nthen = \"allow\"\n";
    const NO_PUSH: &str = "default = \"ask\"\n[[rule]]\ncommand = \"git push*\"\nthen = \"deny\"\n\
                           [[rule]]\ntool = \"exec\"\ncommand = \"git *\"\nthen = \"allow\"\n";

    #[test]
    fn a_change_forbids_at_once_and_permits_nothing() {
        let at_start = config(GIT);
        let held = HeldPolicy::new(&at_start, Policy::new(&at_start, None).unwrap());
        let check = |text: &str, expected: Verdict| {
            let judged = held.current().judge(&command(text));
            assert_eq!(judged.verdict, expected, "{text}: {judged:?}");
            assert_eq!(judged.plan.is_some(), expected == Verdict::Allow, "{text}");
        };
        check("git push", Verdict::Allow);
        change(&held, NO_PUSH);
        check("git push", Verdict::Deny);
        check("git status", Verdict::Allow);
        for loose in ["default = \"allow\"", "[[rule]]\ntool = \"*\"\nthen = \"allow\"", GIT] {
            change(&held, loose);
            check("git push", Verdict::Deny);
            check("rm -r .", Verdict::Ask);
        }
        check("git status", Verdict::Allow);
        change(&held, "default = \"deny\"");
        check("git status", Verdict::Deny);
    }

    #[test]
    fn an_equal_policy_adds_nothing() {
        let at_start = config(GIT);
        let held = HeldPolicy::new(&at_start, Policy::new(&at_start, None).unwrap());
        assert!(held.prepare_addition(&at_start, None).unwrap().is_none() && held.is_only(&at_start));
        for number in 1..MOST {
            change(&held, &format!("[[rule]]\ntool = \"{number}\"\nthen = \"deny\""));
        }
        let one_more = config("[[rule]]\ntool = \"more\"\nthen = \"deny\"");
        assert!(held.prepare_addition(&one_more, None).unwrap_err()[0].why.contains("restart"));
        assert!(held.prepare_addition(&at_start, None).unwrap().is_none() && !held.is_only(&at_start));
    }
}
