//! Applies the rules about tools to the `tools` array of a request.

use std::borrow::Cow;

use serde_json::Value;
use wire::{Object, array_elements};

use crate::rule::Rule;
use crate::schema::simplify;

/// Rewrites `tools`, an array's text. Returns the rules that changed something, and the new text.
pub(crate) fn rewrite_tools<'r>(tools: &str, rules: &[&'r Rule]) -> Option<(String, Vec<&'r Rule>)> {
    let mut applied: Vec<&Rule> = Vec::new();
    let rewritten: Vec<Cow<'_, str>> = array_elements(tools)?
        .into_iter()
        .map(|tool| rewrite_tool(tool, rules, &mut applied).map_or(Cow::Borrowed(tool), Cow::Owned))
        .collect();
    (!applied.is_empty()).then(|| (format!("[{}]", rewritten.join(",")), applied))
}

fn rewrite_tool<'r>(tool: &str, rules: &[&'r Rule], applied: &mut Vec<&'r Rule>) -> Option<String> {
    let mut object = Object::parse(tool).ok()?;
    let function = object.get("function").map(str::to_owned)?;
    let mut function = Object::parse(&function).ok()?;
    let mut is_changed = false;
    for rule in rules {
        let changes = match rule {
            Rule::ToolStrict => function.remove("strict"),
            _ => rewrite_parameters(&mut function, rule),
        };
        if changes && !applied.contains(rule) {
            applied.push(rule);
        }
        is_changed |= changes;
    }
    is_changed.then(|| {
        object.set("function", function.to_json());
        object.to_json()
    })
}

fn rewrite_parameters(function: &mut Object<'_>, rule: &Rule) -> bool {
    let mut schema: Value = match function.get("parameters") {
        Some(text) => match serde_json::from_str(text) {
            Ok(schema) => schema,
            Err(_) => return false,
        },
        None if *rule == Rule::ToolNoProperties => serde_json::json!({"type": "object"}),
        None => return false,
    };
    let changed = simplify(&mut schema, &[rule]);
    if changed {
        function.set("parameters", schema.to_string());
    }
    changed
}
