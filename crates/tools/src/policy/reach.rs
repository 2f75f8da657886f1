//! Finds the tools of an agent that the policy never allows when no person can be asked: from the rules and
//! the tools' names, before any call. Pure.
//!
//! It names a tool only if no call of it could pass; in doubt it does not. Called by `cli`, which shows it
//! to the owner.

use super::super::config::{PolicyConfig, Rule, Verdict};
use super::super::gateway::known;
use super::super::local::agent_names;
use super::super::offer::MCP_PREFIX;
use super::has_no_pattern;
use wire::pattern::matches_stars;

/// Returns those of an agent's `tools` that are denied with any arguments.
pub fn never_allowed<'a>(policy: &PolicyConfig, tools: &'a [String]) -> Vec<&'a str> {
    tools.iter().map(String::as_str).filter(|tool| !could_run(policy, tool)).collect()
}

/// A rule of the policy that applies to each call of a tool, whatever its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// `deny` or `ask`.
    pub verdict: Verdict,
    /// The rule, for people.
    pub source: String,
}

/// Returns what the policy says to each call of a tool for which its owner has consented to what no rule
/// speaks of; `None` if it lets some pass.
pub fn find_restriction(policy: &PolicyConfig, tool: &str) -> Option<Restriction> {
    let names = rule_names(tool);
    let speaks_of = |rule: &Rule| match &rule.tool {
        Some(pattern) => names.iter().any(|name| matches_stars(pattern, name)),
        None => is_plain(rule),
    };
    let mut rules = policy.rule.iter().enumerate();
    match rules.find(|(_, rule)| speaks_of(rule) && (rule.then == Verdict::Ask || is_plain(rule))) {
        Some((_, rule)) if rule.then == Verdict::Allow => None,
        Some((index, rule)) => {
            Some(Restriction { verdict: rule.then, source: format!("rule {} of tools.policy", index + 1) })
        }
        None if policy.default == Verdict::Deny => {
            Some(Restriction { verdict: Verdict::Deny, source: "tools.policy.default".to_owned() })
        }
        None => None,
    }
}

/// Returns a rule for the configuration that would allow the tool.
pub fn rule_for(tool: &str) -> String {
    let pattern = if tool == "exec" { "command = \"git *\"\n" } else { "" };
    format!("[[tools.policy.rule]]\ntool = {tool:?}\n{pattern}then = \"allow\"")
}

fn could_run(policy: &PolicyConfig, tool: &str) -> bool {
    let names = rule_names(tool);
    for rule in &policy.rule {
        let pattern = rule.tool.as_deref().unwrap_or("*");
        match rule.then {
            Verdict::Allow
                if names.iter().any(|name| patterns_overlap(pattern, name)) && could_cover(rule, tool) =>
            {
                return true;
            }
            Verdict::Ask | Verdict::Deny
                if is_plain(rule) && names.iter().any(|name| matches_stars(pattern, name)) =>
            {
                return false;
            }
            _ => {}
        }
    }
    policy.default == Verdict::Allow && is_known(tool)
}

/// Returns the names under which rules know it, as far as they are known without its server.
fn rule_names(tool: &str) -> Vec<String> {
    let other = match (tool.strip_prefix(known::PREFIX), tool.strip_prefix(MCP_PREFIX)) {
        (Some(own), _) => Some(own.to_owned()),
        (_, Some(rest)) => Some(rest.replacen('/', "__", 1)),
        _ => None,
    };
    other.into_iter().chain([tool.to_owned()]).collect()
}

/// Returns true if an `allow` has patterns for everything that the tool touches, and no others.
fn could_cover(rule: &Rule, tool: &str) -> bool {
    let is_local = agent_names().any(|known| known == tool);
    let is_open = has_no_pattern(rule);
    let covers = |pattern: &Option<String>, is_touched: bool| match pattern {
        Some(_) => is_touched || !is_local,
        None => is_open || !is_touched || !is_local,
    };
    let is_shell = tool == "exec";
    covers(&rule.command, is_shell) && covers(&rule.path, !is_shell) && covers(&rule.host, false)
}

/// Returns true if the rule matches every call of its tools.
fn is_plain(rule: &Rule) -> bool {
    rule.command.is_none() && rule.path.is_none() && rule.host.is_none()
}

/// Returns false for a tool that even the default `allow` does not permit.
fn is_known(tool: &str) -> bool {
    tool.strip_prefix(known::PREFIX).is_none_or(|own| known::known_names().any(|known| known == own))
}

/// Returns true if some text matches both patterns; `*` is any text in either.
fn patterns_overlap(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    // From the ends backwards: whether some text matches the remainders of both patterns.
    let mut row = vec![false; other.len() + 1];
    for i in (0..=one.len()).rev() {
        let after = row.clone();
        for j in (0..=other.len()).rev() {
            let skipped = j < other.len() && row[j + 1];
            row[j] = match (one.get(i), other.get(j)) {
                (None, None) => true,
                (Some(b'*'), _) | (_, Some(b'*')) => after[j] || skipped,
                (Some(a), Some(b)) => a == b && after[j + 1],
                _ => false,
            };
        }
    }
    row[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks whether the tool could run under these rules with the default `ask`.
    fn check(rules: &[&str], tool: &str, expected: bool) {
        let rule = rules.iter().map(|text| toml::from_str(text).unwrap()).collect();
        let policy = PolicyConfig { default: Verdict::Ask, rule };
        assert_eq!(never_allowed(&policy, &[tool.to_owned()]).is_empty(), expected, "{tool} with {rules:?}");
    }

    #[test]
    fn a_tool_needs_a_fitting_rule() {
        check(&[], "read", false);
        check(&["tool = 'read'\nthen = 'allow'"], "read", true);
        check(&["tool = 'read'\nthen = 'allow'"], "exec", false);
        check(&["tool = 'read'\nthen = 'ask'"], "read", false);
        check(&["then = 'allow'"], "exec", true);
        check(&["tool = 'exec'\ncommand = 'git *'\nthen = 'allow'"], "exec", true);
        check(&["tool = 'exec'\npath = 'src/**'\nthen = 'allow'"], "exec", false);
        check(&["path = 'src/**'\nthen = 'allow'"], "write", true);
        check(&["path = 'src/**'\nthen = 'allow'"], "exec", false);
        check(&["path = 'src/**'\ncommand = '*'\nthen = 'allow'"], "write", false);
        check(&["tool = 'read'\nhost = '*'\nthen = 'allow'"], "read", false);
        check(&["tool = 'web_*'\nhost = '*.example.org'\nthen = 'allow'"], "web_fetch", true);
    }

    #[test]
    fn an_earlier_rule_can_take_it_all_back() {
        let deny = "tool = 'ex*'\nthen = 'deny'";
        let allow = "tool = '*'\nthen = 'allow'";
        check(&[deny, allow], "exec", false);
        check(&[deny, allow], "read", true);
        check(&[allow, deny], "exec", true);
        check(&["tool = 'exec'\ncommand = 'rm *'\nthen = 'deny'", allow], "exec", true);
        check(&["tool = 'mcp:files/write_*'\nthen = 'ask'", allow], "mcp:files/*", true);
        check(&["tool = 'files__*'\nthen = 'ask'", allow], "mcp:files/*", false);
    }

    #[test]
    fn names_of_servers_tools_overlap_with_patterns() {
        for (pattern, tool, expected) in [
            ("mcp:files/read_*", "mcp:files/*", true),
            ("files__read_file", "mcp:files/*", true),
            ("mcp:*/read_*", "mcp:files/*", true),
            ("mcp:other/*", "mcp:files/*", false),
            ("*_file", "mcp:files/write_*", true),
            ("read_*", "mcp:files/write_*", false),
            ("host_exec", "gateway:host_exec", true),
            ("gateway:host_*", "gateway:host_exec", true),
        ] {
            check(&[&format!("tool = '{pattern}'\nthen = 'allow'")], tool, expected);
        }
    }

    #[test]
    fn rules_restrict_what_an_owner_bound() {
        let check = |rules: &[&str], default, expected: Option<(Verdict, &str)>| {
            let rule = rules.iter().map(|text| toml::from_str(text).unwrap()).collect();
            let found = find_restriction(&PolicyConfig { default, rule }, "mcp:crm/add");
            let found = found.as_ref().map(|found| (found.verdict, found.source.as_str()));
            assert_eq!(found, expected, "{rules:?}");
        };
        let (deny, ask) = ("tool = 'mcp:crm/add'\nthen = 'deny'", "tool = 'crm__*'\nthen = 'ask'");
        let some = "tool = 'mcp:crm/*'\nhost = '*'\nthen = 'deny'";
        check(&[], Verdict::Ask, None);
        check(&[], Verdict::Deny, Some((Verdict::Deny, "tools.policy.default")));
        check(&[some, deny], Verdict::Ask, Some((Verdict::Deny, "rule 2 of tools.policy")));
        check(&[ask, deny], Verdict::Ask, Some((Verdict::Ask, "rule 1 of tools.policy")));
        check(&["then = 'allow'", deny], Verdict::Deny, None);
        check(&["tool = 'mcp:crm/look'\nthen = 'deny'"], Verdict::Ask, None);
    }

    #[test]
    fn the_default_allows_what_is_known() {
        let policy = PolicyConfig { default: Verdict::Allow, rule: vec![] };
        let tools = ["exec", "web_search", "mcp:files/*", "gateway:web_search", "gateway:host_exec"];
        assert_eq!(never_allowed(&policy, &tools.map(str::to_owned)), ["gateway:host_exec"]);
    }

    #[test]
    fn the_rule_to_add_is_one_that_helps() {
        for tool in ["exec", "read", "web_search", "gateway:host_exec", "mcp:files/*"] {
            let policy: PolicyConfig = toml::from_str(&rule_for(tool).replace("tools.policy.", "")).unwrap();
            assert!(never_allowed(&policy, &[tool.to_owned()]).is_empty(), "{tool}");
        }
    }

    proptest::proptest! {
        /// The two readers of `*` agree: a name overlaps with a pattern exactly if it matches it.
        #[test]
        fn a_name_overlaps_with_what_it_matches(pattern in "[ab*]{0,6}", name in "[ab]{0,6}") {
            proptest::prop_assert_eq!(patterns_overlap(&pattern, &name), matches_stars(&pattern, &name));
            proptest::prop_assert_eq!(patterns_overlap(&name, &pattern), matches_stars(&pattern, &name));
        }
    }
}
