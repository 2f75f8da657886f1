//! Applies rules to a request body.

use std::borrow::Cow;
use std::sync::Arc;

use wire::Object;

use crate::conversation::Conversation;
use crate::media::replace_media;
use crate::messages::change_messages;
use crate::parameters::{change_parameter, leave_calls_unparsed};
use crate::rule::{Rule, RuleSet};
use crate::tools::{rename_function, rewrite_tools};

/// A request body after rules were applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapted<'a> {
    /// The body; borrowed when no rule changed it.
    pub body: Cow<'a, str>,
    /// The rules that changed something.
    pub applied: Vec<AppliedRule>,
}

/// A rule that changed a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// The rule.
    pub rule: Rule,
    /// The number of tools that it changed; 0 for a rule about something else.
    pub tools: usize,
}

impl AppliedRule {
    fn elsewhere(rule: &Rule) -> Self {
        Self { rule: rule.clone(), tools: 0 }
    }
}

/// Applies the rules to a chat request's body. A body that is not a JSON object stays as it is.
pub fn adapt<'a>(body: &'a str, rules: &RuleSet) -> Adapted<'a> {
    let unchanged = Adapted { body: Cow::Borrowed(body), applied: Vec::new() };
    if rules.is_empty() {
        return unchanged;
    }
    let Ok(mut object) = Object::parse(body) else { return unchanged };
    let applied = adapt_object(&mut object, rules);
    if applied.is_empty() {
        return unchanged;
    }
    Adapted { body: Cow::Owned(object.to_json()), applied }
}

/// Applies the rules to a chat request that was read, and returns those that changed something.
///
/// The order is fixed: tools, then messages in the order of [`Rule`], then media, then parameters.
pub fn adapt_object(object: &mut Object<'_>, rules: &RuleSet) -> Vec<AppliedRule> {
    let mut applied = adapt_tools(object, rules);
    let mut of_messages = adapt_messages(object, rules);
    of_messages.retain(|new| applied.iter().all(|known| known.rule != new.rule));
    applied.extend(of_messages);
    let of_parameters = rules.iter().filter(|rule| match rule {
        Rule::Parameter(parameter) => change_parameter(object, parameter),
        Rule::Unparsed => leave_calls_unparsed(object),
        _ => false,
    });
    applied.extend(of_parameters.map(AppliedRule::elsewhere));
    applied
}

fn adapt_tools(object: &mut Object<'_>, rules: &RuleSet) -> Vec<AppliedRule> {
    let about_tools: Vec<&Rule> = rules.iter().filter(|rule| rule.is_about_tools()).collect();
    if about_tools.is_empty() {
        return Vec::new();
    }
    let Some(rewritten) = object.get("tools").map(|tools| rewrite_tools(tools, &about_tools)) else {
        return Vec::new();
    };
    if !rewritten.applied.is_empty() {
        object.set("tools", Arc::clone(&rewritten.text));
    }
    let choice =
        rules.contains(&Rule::ToolNames).then(|| rename_function(object.get("tool_choice")?)).flatten();
    if let Some(choice) = choice {
        object.set("tool_choice", choice);
    }
    rewritten.applied.clone()
}

fn adapt_messages(object: &mut Object<'_>, rules: &RuleSet) -> Vec<AppliedRule> {
    if !rules.iter().any(Rule::is_about_messages) {
        return Vec::new();
    }
    let Some(mut conversation) = object.get("messages").and_then(Conversation::read) else {
        return Vec::new();
    };
    let applied: Vec<AppliedRule> = rules
        .iter()
        .filter(|rule| change_messages(&mut conversation, rule) || replace_media(&mut conversation, rule))
        .map(AppliedRule::elsewhere)
        .collect();
    if !applied.is_empty() {
        let messages = conversation.to_json();
        object.set("messages", messages);
    }
    applied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rules_the_bytes_stay() {
        let body = r#"{ "model": "m", "messages": [ {"role":"user","content":"hi"} ] }"#;
        let adapted = adapt(body, &RuleSet::new());
        assert!(matches!(adapted.body, Cow::Borrowed(same) if same == body));
        let rules = RuleSet::from([Rule::ToolPattern, Rule::SystemFirst, Rule::NoImages]);
        assert!(matches!(adapt(body, &rules).body, Cow::Borrowed(_)));
    }

    #[test]
    fn only_what_a_rule_changes_is_written_again() {
        let body = r#"{"model":"m","x": 1.50,"messages":[{"role":"user","content": "a"},{"role":"system","content":"s"}],"store":false}"#;
        let rules = RuleSet::from([Rule::SystemFirst, "parameter.drop:store".parse().unwrap()]);
        let adapted = adapt(body, &rules);
        assert_eq!(
            adapted.body,
            r#"{"model":"m","x":1.50,"messages":[{"role":"system","content":"s"},{"role":"user","content": "a"}]}"#
        );
        assert_eq!(adapted.applied.len(), 2);
    }
}
