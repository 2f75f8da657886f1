//! Applies rules to a request body.

use std::borrow::Cow;

use wire::Object;

use crate::conversation::Conversation;
use crate::media::replace_media;
use crate::messages::change_messages;
use crate::parameters::change_parameter;
use crate::rule::{Rule, RuleSet};
use crate::tools::{rename_function, rewrite_tools};

/// A request body after rules were applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapted<'a> {
    /// The body; borrowed when no rule changed it.
    pub body: Cow<'a, str>,
    /// The rules that changed something.
    pub applied: Vec<Rule>,
}

/// Applies the rules to a chat request's body. A body that is not a JSON object stays as it is.
///
/// The order is fixed: tools, then messages in the order of [`Rule`], then media, then parameters.
pub fn adapt<'a>(body: &'a str, rules: &RuleSet) -> Adapted<'a> {
    let unchanged = Adapted { body: Cow::Borrowed(body), applied: Vec::new() };
    if rules.is_empty() {
        return unchanged;
    }
    let Ok(mut object) = Object::parse(body) else { return unchanged };
    let mut applied: Vec<Rule> = adapt_tools(&mut object, rules);
    let of_messages = adapt_messages(&mut object, rules).into_iter();
    let new: Vec<Rule> = of_messages.filter(|rule| !applied.contains(rule)).collect();
    applied.extend(new);
    applied.extend(
        rules
            .iter()
            .filter(|rule| match rule {
                Rule::Parameter(parameter) => change_parameter(&mut object, parameter),
                _ => false,
            })
            .cloned(),
    );
    if applied.is_empty() {
        return unchanged;
    }
    Adapted { body: Cow::Owned(object.to_json()), applied }
}

fn adapt_tools(object: &mut Object<'_>, rules: &RuleSet) -> Vec<Rule> {
    let about_tools: Vec<&Rule> = rules.iter().filter(|rule| rule.is_about_tools()).collect();
    let Some(tools) = object.get_original("tools").filter(|_| !about_tools.is_empty()) else {
        return Vec::new();
    };
    let rewritten = rewrite_tools(tools, &about_tools);
    if !rewritten.applied.is_empty() {
        object.set("tools", rewritten.text.clone());
    }
    let choice =
        rules.contains(&Rule::ToolNames).then(|| rename_function(object.get("tool_choice")?)).flatten();
    if let Some(choice) = choice {
        object.set("tool_choice", choice);
    }
    rewritten.applied.clone()
}

fn adapt_messages(object: &mut Object<'_>, rules: &RuleSet) -> Vec<Rule> {
    if !rules.iter().any(Rule::is_about_messages) {
        return Vec::new();
    }
    let Some(mut conversation) = object.get_original("messages").and_then(Conversation::read) else {
        return Vec::new();
    };
    let applied: Vec<Rule> = rules
        .iter()
        .filter(|rule| change_messages(&mut conversation, rule) || replace_media(&mut conversation, rule))
        .cloned()
        .collect();
    if !applied.is_empty() {
        object.set("messages", conversation.to_json());
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
