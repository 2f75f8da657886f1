//! Simplifies the JSON schema of one tool, so that a server can compile it into a grammar.
//!
//! The result accepts at least what the original accepts; respool checks arguments against the original. The
//! work is bounded: beyond a budget of nodes, a part of the schema accepts everything.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::rule::Rule;

/// Schema nodes that one tool may expand to; a few kilobytes with nested references can reach billions.
const BUDGET: usize = 5_000;
/// Nesting of the result.
const MAX_DEPTH: usize = 32;

/// Keywords that [`Rule::ToolBasicSchema`] keeps.
const BASIC: [&str; 7] = ["type", "description", "properties", "required", "items", "enum", "title"];

/// Simplifies a schema by these rules. Returns false when that changes nothing.
pub(crate) fn simplify(schema: &mut Value, rules: &[&Rule]) -> bool {
    let root = schema.clone();
    let mut pass = Simplifier { root: &root, rules, nodes: BUDGET, open: Vec::new() };
    pass.visit(schema, 0);
    if pass.has(&Rule::ToolReference)
        && let Value::Object(object) = schema
    {
        object.remove("$defs");
        object.remove("definitions");
    }
    *schema != root
}

struct Simplifier<'a> {
    root: &'a Value,
    rules: &'a [&'a Rule],
    nodes: usize,
    /// References that are being expanded.
    open: Vec<String>,
}

impl Simplifier<'_> {
    fn has(&self, rule: &Rule) -> bool {
        let is_basic = self.rules.contains(&&Rule::ToolBasicSchema)
            && !matches!(rule, Rule::ToolNoProperties | Rule::ToolGrammarLimits);
        let is_limit = matches!(
            rule,
            Rule::ToolPattern | Rule::ToolStringLength | Rule::ToolItemCount | Rule::ToolFormat
        );
        is_basic || self.rules.contains(&rule) || is_limit && self.rules.contains(&&Rule::ToolGrammarLimits)
    }

    fn visit(&mut self, schema: &mut Value, depth: usize) {
        if self.nodes == 0 || depth > MAX_DEPTH {
            *schema = json!({});
            return;
        }
        self.nodes -= 1;
        let before = self.open.len();
        if self.has(&Rule::ToolReference) {
            self.inline_reference(schema);
        }
        if let Value::Object(object) = schema {
            self.simplify_object(object, depth);
        }
        self.open.truncate(before);
    }

    fn simplify_object(&mut self, object: &mut Map<String, Value>, depth: usize) {
        if self.has(&Rule::ToolCombinator) {
            self.merge_alternatives(object);
        }
        self.drop_keywords(object);
        if self.has(&Rule::ToolConst)
            && let Some(value) = object.remove("const")
        {
            object.insert("enum".to_owned(), json!([value]));
        }
        if self.has(&Rule::ToolTypeList) {
            split_type_list(object, self.has(&Rule::ToolCombinator));
        }
        if self.has(&Rule::ToolNoProperties) {
            let is_object = object.get("type").is_some_and(|kind| kind == "object");
            if is_object && !object.get("properties").is_some_and(Value::is_object) {
                object.insert("properties".to_owned(), json!({}));
            }
        }
        self.visit_children(object, depth);
    }

    fn drop_keywords(&self, object: &mut Map<String, Value>) {
        let mut drop = |rule: Rule, keywords: &[&str]| {
            if self.has(&rule) {
                for keyword in keywords {
                    object.shift_remove(*keyword);
                }
            }
        };
        drop(Rule::ToolPattern, &["pattern"]);
        drop(Rule::ToolStringLength, &["minLength", "maxLength"]);
        drop(Rule::ToolItemCount, &["minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"]);
        drop(Rule::ToolFormat, &["format"]);
        drop(Rule::ToolNegation, &["not", "if", "then", "else", "dependentSchemas", "dependentRequired"]);
        drop(Rule::ToolNullable, &["nullable"]);
        if self.has(&Rule::ToolAdditionalProperties) {
            object.shift_remove("patternProperties");
            object.shift_remove("propertyNames");
            object.shift_remove("unevaluatedProperties");
            if object.get("additionalProperties").is_some_and(Value::is_object) {
                object.shift_remove("additionalProperties");
            }
        }
        if self.rules.contains(&&Rule::ToolBasicSchema) {
            let kept = ["$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "const"];
            object.retain(|keyword, _| BASIC.contains(&keyword.as_str()) || kept.contains(&keyword.as_str()));
        }
    }

    fn visit_children(&mut self, object: &mut Map<String, Value>, depth: usize) {
        for keyword in ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"] {
            if matches!(keyword, "$defs" | "definitions") && self.has(&Rule::ToolReference) {
                continue;
            }
            if let Some(Value::Object(children)) = object.get_mut(keyword) {
                children.values_mut().for_each(|child| self.visit(child, depth + 1));
            }
        }
        for keyword in ["anyOf", "oneOf", "allOf", "prefixItems"] {
            if let Some(Value::Array(children)) = object.get_mut(keyword) {
                children.iter_mut().for_each(|child| self.visit(child, depth + 1));
            }
        }
        for keyword in ["items", "additionalProperties", "not", "if", "then", "else", "contains"] {
            match object.get_mut(keyword) {
                Some(child @ Value::Object(_)) => self.visit(child, depth + 1),
                Some(Value::Array(children)) => {
                    children.iter_mut().for_each(|child| self.visit(child, depth + 1));
                }
                _ => {}
            }
        }
    }

    /// Replaces `$ref` by the schema it names; a schema that contains itself accepts everything at the second
    /// level.
    fn inline_reference(&mut self, schema: &mut Value) {
        while let Some(Value::String(reference)) =
            schema.as_object_mut().and_then(|object| object.remove("$ref"))
        {
            let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            let Some(target) = target.filter(|_| !self.open.contains(&reference)) else { return };
            self.open.push(reference);
            let mut inlined = target.clone();
            if let (Value::Object(inlined), Value::Object(own)) = (&mut inlined, &*schema) {
                inlined.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            *schema = inlined;
        }
    }

    /// Merges `allOf`, and `anyOf` or `oneOf` where the alternatives have something in common.
    fn merge_alternatives(&mut self, object: &mut Map<String, Value>) {
        if let Some(Value::Array(parts)) = object.remove("allOf") {
            for part in self.resolved(parts) {
                merge_part(object, part);
            }
        }
        for keyword in ["anyOf", "oneOf"] {
            let Some(Value::Array(alternatives)) = object.remove(keyword) else { continue };
            let mut alternatives = self.resolved(alternatives);
            alternatives.retain(|alternative| alternative.get("type").is_none_or(|kind| kind != "null"));
            for (key, value) in common(alternatives) {
                object.entry(key).or_insert(value);
            }
        }
    }

    /// Returns the parts as objects, with references at their top replaced.
    fn resolved(&mut self, parts: Vec<Value>) -> Vec<Map<String, Value>> {
        let before = self.open.len();
        let objects = parts.into_iter().filter_map(|mut part| {
            if self.has(&Rule::ToolReference) {
                self.inline_reference(&mut part);
            }
            match part {
                Value::Object(object) => Some(object),
                _ => None,
            }
        });
        let objects = objects.collect();
        self.open.truncate(before);
        objects
    }
}

/// Adds the keywords of one part of `allOf`.
fn merge_part(object: &mut Map<String, Value>, part: Map<String, Value>) {
    for (key, value) in part {
        match (object.get_mut(&key), value) {
            (Some(Value::Object(own)), Value::Object(more)) => own.extend(more),
            (Some(Value::Array(own)), Value::Array(more)) if key == "required" => {
                let missing: Vec<Value> = more.into_iter().filter(|name| !own.contains(name)).collect();
                own.extend(missing);
            }
            (Some(_), _) => {}
            (None, value) => {
                object.insert(key, value);
            }
        }
    }
}

/// Returns a schema that accepts what any of the alternatives accepts.
fn common(alternatives: Vec<Map<String, Value>>) -> Map<String, Value> {
    let mut alternatives = alternatives.into_iter();
    let Some(mut first) = alternatives.next() else { return Map::new() };
    let rest: Vec<_> = alternatives.collect();
    if rest.is_empty() {
        return first;
    }
    let Some(kind) =
        first.get("type").cloned().filter(|kind| rest.iter().all(|each| each.get("type") == Some(kind)))
    else {
        return Map::new();
    };
    let mut merged = Map::new();
    if kind == "object" {
        merged.insert("properties".to_owned(), merged_properties(&first, &rest));
        let required = common_required(&first, &rest);
        if !required.is_empty() {
            merged.insert("required".to_owned(), Value::Array(required));
        }
    } else if let Some(Value::Array(mut values)) = first.remove("enum")
        && let Some(more) = rest.iter().map(|each| each.get("enum")?.as_array()).collect::<Option<Vec<_>>>()
    {
        values.extend(more.into_iter().flatten().cloned());
        let mut seen = BTreeSet::new();
        values.retain(|value| seen.insert(value.to_string()));
        merged.insert("enum".to_owned(), Value::Array(values));
    }
    merged.insert("type".to_owned(), kind);
    merged
}

/// Returns the properties of all alternatives. A property that differs between two of them accepts every
/// value.
fn merged_properties(first: &Map<String, Value>, rest: &[Map<String, Value>]) -> Value {
    let properties = |each: &Map<String, Value>| each.get("properties").and_then(Value::as_object).cloned();
    let mut merged = properties(first).unwrap_or_default();
    for each in rest {
        for (name, schema) in properties(each).unwrap_or_default() {
            match merged.get_mut(&name) {
                Some(known) if *known != schema => *known = json!({}),
                Some(_) => {}
                None => {
                    merged.insert(name, schema);
                }
            }
        }
    }
    Value::Object(merged)
}

/// Returns the names that every alternative requires.
fn common_required(first: &Map<String, Value>, rest: &[Map<String, Value>]) -> Vec<Value> {
    let required = |each: &Map<String, Value>| each.get("required").and_then(Value::as_array).cloned();
    let mut names = required(first).unwrap_or_default();
    names.retain(|name| rest.iter().all(|each| required(each).is_some_and(|other| other.contains(name))));
    names
}

/// Turns a list of types without its `null` into one type, or into `anyOf` if several remain. With
/// `without_alternatives`, or next to another `anyOf`, several types become none, which accepts every value.
fn split_type_list(object: &mut Map<String, Value>, without_alternatives: bool) {
    let Some(Value::Array(types)) = object.get("type") else { return };
    let kinds: Vec<Value> = types.iter().filter(|kind| **kind != "null").cloned().collect();
    match kinds.as_slice() {
        [kind] => {
            object.insert("type".to_owned(), kind.clone());
        }
        _ if without_alternatives || object.contains_key("anyOf") => {
            object.shift_remove("type");
        }
        _ => {
            object.shift_remove("type");
            let alternatives = kinds.iter().map(|kind| json!({ "type": kind })).collect();
            object.insert("anyOf".to_owned(), Value::Array(alternatives));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "literals read better without a reference")]
    fn check(rules: &[Rule], schema: Value, expected: Value) {
        let mut simplified = schema.clone();
        let rules: Vec<&Rule> = rules.iter().collect();
        let changed = simplify(&mut simplified, &rules);
        assert_eq!(simplified, expected, "{schema}");
        assert_eq!(changed, schema != expected);
        assert!(!simplify(&mut simplified, &rules), "simplifying twice changes nothing more");
    }

    #[test]
    fn keywords_are_dropped_at_every_level() {
        check(
            &[Rule::ToolPattern],
            json!({"type":"object","properties":{"a":{"type":"string","pattern":"x+"},"pattern":{"type":"array","items":{"pattern":"y"}}}}),
            json!({"type":"object","properties":{"a":{"type":"string"},"pattern":{"type":"array","items":{}}}}),
        );
        check(
            &[Rule::ToolGrammarLimits],
            json!({"properties":{"a":{"type":"string","maxLength":9000,"format":"uri","minLength":1}},"additionalProperties":false}),
            json!({"properties":{"a":{"type":"string"}},"additionalProperties":false}),
        );
    }

    #[test]
    fn references_are_replaced_by_their_schemas() {
        check(
            &[Rule::ToolReference],
            json!({"$defs":{"name":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/name","description":"d"}}}),
            json!({"properties":{"a":{"type":"string","description":"d"}}}),
        );
    }

    #[test]
    fn a_recursive_schema_ends() {
        check(
            &[Rule::ToolReference],
            json!({"$defs":{"tree":{"type":"object","properties":{"left":{"$ref":"#/$defs/tree"}}}},"$ref":"#/$defs/tree"}),
            json!({"type":"object","properties":{"left":{}}}),
        );
    }

    #[test]
    fn nested_references_stay_within_the_budget() {
        let mut definitions = Map::new();
        for level in 0..12 {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            definitions.insert(format!("l{level}"), json!({"anyOf": vec![next; 10]}));
        }
        definitions.insert("l12".to_owned(), json!({"type":"object"}));
        let mut schema = json!({"$ref":"#/$defs/l0","$defs":definitions});
        assert!(simplify(&mut schema, &[&Rule::ToolReference]));
        assert!(schema.to_string().len() < 1 << 20);
    }

    #[test]
    fn alternatives_keep_what_they_share() {
        check(
            &[Rule::ToolCombinator],
            json!({"anyOf":[{"type":"string"},{"type":"null"}],"description":"d"}),
            json!({"description":"d","type":"string"}),
        );
        check(&[Rule::ToolCombinator], json!({"oneOf":[{"type":"string"},{"type":"number"}]}), json!({}));
        check(
            &[Rule::ToolCombinator],
            json!({"anyOf":[{"type":"string","enum":["a"]},{"type":"string","enum":["b","a"]}]}),
            json!({"enum":["a","b"],"type":"string"}),
        );
        check(
            &[Rule::ToolCombinator],
            json!({"anyOf":[{"type":"object","properties":{"a":{}},"required":["a"]},
                {"type":"object","properties":{"a":{},"b":{"type":"string"}},"required":["a","b"]}]}),
            json!({"properties":{"a":{},"b":{"type":"string"}},"required":["a"],"type":"object"}),
        );
        check(
            &[Rule::ToolCombinator],
            json!({"allOf":[{"type":"object","required":["a"]},{"required":["b"],"properties":{"b":{}}}]}),
            json!({"type":"object","required":["a","b"],"properties":{"b":{}}}),
        );
    }

    #[test]
    fn one_type_remains_of_a_list() {
        check(&[Rule::ToolTypeList], json!({"type":["string","null"]}), json!({"type":"string"}));
        check(
            &[Rule::ToolTypeList],
            json!({"type":["string","number"]}),
            json!({"anyOf":[{"type":"string"},{"type":"number"}]}),
        );
    }

    #[test]
    fn a_basic_schema_has_basic_keywords() {
        check(
            &[Rule::ToolBasicSchema],
            json!({"type":"object","$schema":"x","properties":{"a":{"const":1},"b":{"anyOf":[{"type":"integer","minimum":1}]},
                "c":{"type":["array","null"],"items":{"format":"uri"}}},"additionalProperties":false,"required":["a"]}),
            json!({"type":"object","properties":{"a":{"enum":[1]},"b":{"type":"integer"},
                "c":{"type":"array","items":{}}},"required":["a"]}),
        );
    }
}
