//! Applies the rules about tools to the `tools` array of a request. The last results are remembered; they
//! depend on nothing but the array and the rules.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tool_call_parser::portable_name;
use wire::{Object, array_elements, encode_string};

use crate::apply::AppliedRule;
use crate::rule::Rule;
use crate::schema::simplify;

/// How many rewritten arrays are remembered: a client sends the same tools with each turn, and to read their
/// schemas takes longer than all the rest.
const REMEMBERED: usize = 16;
/// A longer array is not remembered, in bytes.
const LONGEST: usize = 256 << 10;

/// The arrays that were rewritten last, most recently used first.
static RECENT: Mutex<VecDeque<Arc<RewrittenTools>>> = Mutex::new(VecDeque::new());

/// A `tools` array and what certain rules make of it.
#[derive(Debug)]
pub(crate) struct RewrittenTools {
    tools: Box<str>,
    rules: Vec<Rule>,
    /// The array's new text.
    pub(crate) text: Arc<str>,
    /// The rules that changed something. Without any the text is empty.
    pub(crate) applied: Vec<AppliedRule>,
}

/// Rewrites `tools`, an array's text, by these rules.
pub(crate) fn rewrite_tools(tools: &str, rules: &[&Rule]) -> Arc<RewrittenTools> {
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    let known = recent
        .iter()
        .position(|known| *known.tools == *tools && known.rules.iter().eq(rules.iter().copied()));
    if let Some(known) = known.and_then(|place| recent.remove(place)) {
        recent.push_front(Arc::clone(&known));
        return known;
    }
    drop(recent);
    let (text, applied) = rewrite(tools, rules).unwrap_or_default();
    let rules = rules.iter().copied().cloned().collect();
    let rewritten = Arc::new(RewrittenTools { tools: tools.into(), rules, text: text.into(), applied });
    if tools.len() <= LONGEST {
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_front(Arc::clone(&rewritten));
        recent.truncate(REMEMBERED);
    }
    rewritten
}

fn rewrite(tools: &str, rules: &[&Rule]) -> Option<(String, Vec<AppliedRule>)> {
    let mut counts = vec![0; rules.len()];
    let rewritten: Vec<Cow<'_, str>> = array_elements(tools)?
        .into_iter()
        .map(|tool| rewrite_tool(tool, rules, &mut counts).map_or(Cow::Borrowed(tool), Cow::Owned))
        .collect();
    let applied = |(rule, tools): (&&Rule, usize)| AppliedRule { rule: Rule::clone(rule), tools };
    let applied: Vec<AppliedRule> =
        rules.iter().zip(counts).filter(|(_, tools)| *tools > 0).map(applied).collect();
    (!applied.is_empty()).then(|| (format!("[{}]", rewritten.join(",")), applied))
}

/// Rewrites one tool, and counts it at each rule that changes it. `None` when none does.
fn rewrite_tool(tool: &str, rules: &[&Rule], counts: &mut [usize]) -> Option<String> {
    let mut object = Object::parse(tool).ok()?;
    let function = object.get("function").map(str::to_owned)?;
    let mut function = Object::parse(&function).ok()?;
    let mut schema: Option<Value> =
        function.get("parameters").map_or_else(|| Some(Value::Null), |text| serde_json::from_str(text).ok());
    let (mut is_changed, mut is_schema_changed) = (false, false);
    for (rule, count) in rules.iter().zip(counts) {
        let changes = match rule {
            Rule::ToolStrict => function.remove("strict"),
            Rule::ToolNames => rename(&mut function),
            _ => {
                let changes = schema.as_mut().is_some_and(|schema| change_schema(schema, rule));
                is_schema_changed |= changes;
                changes
            }
        };
        *count += usize::from(changes);
        is_changed |= changes;
    }
    if let Some(schema) = schema.filter(|_| is_schema_changed) {
        function.set("parameters", schema.to_string());
    }
    is_changed.then(|| {
        object.set("function", function.to_json());
        object.to_json()
    })
}

/// Changes a tool's schema by one rule; `null` stands for none.
fn change_schema(schema: &mut Value, rule: &Rule) -> bool {
    if schema.is_null() && *rule == Rule::ToolNoProperties {
        *schema = serde_json::json!({"type": "object"});
    }
    simplify(schema, &[rule])
}

/// Gives a function, or a call, the name that every server takes. Returns false when it has that name.
pub(crate) fn rename(function: &mut Object<'_>) -> bool {
    let Some(name) = function.string("name") else { return false };
    let portable = portable_name(&name);
    let changes = portable != name;
    if changes {
        function.set("name", encode_string(&portable));
    }
    changes
}

/// Renames the function of a call or of a tool choice, `{"function": {"name": …}}`.
pub(crate) fn rename_function(holder: &str) -> Option<String> {
    let mut object = Object::parse(holder).ok()?;
    let function = object.get("function").map(str::to_owned)?;
    let mut function = Object::parse(&function).ok()?;
    rename(&mut function).then(|| {
        object.set("function", function.to_json());
        object.to_json()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_the_rules_make() {
        let tools =
            r#"[{"function":{"name":"f","parameters":{"properties":{"a":{"pattern":"x","format":"uri"}}}}}]"#;
        let check = |rules: &[&Rule], expected: &str| {
            for _ in 0..2 {
                assert_eq!(&*rewrite_tools(tools, rules).text, expected, "{rules:?}");
            }
        };
        check(&[&Rule::ToolPattern], &tools.replace(r#""pattern":"x","#, ""));
        check(&[&Rule::ToolFormat], &tools.replace(r#","format":"uri""#, ""));
        check(&[&Rule::ToolConst], "");
        let counts = |rules: &[&Rule]| -> Vec<usize> {
            rewrite_tools(
                &format!("{},{}", &tools[..tools.len() - 1], r#"{"function":{"name":"a.b"}}]"#),
                rules,
            )
            .applied
            .iter()
            .map(|applied| applied.tools)
            .collect()
        };
        assert_eq!(
            counts(&[&Rule::ToolPattern, &Rule::ToolConst, &Rule::ToolNoProperties, &Rule::ToolNames]),
            [1, 1, 1]
        );
    }
}
