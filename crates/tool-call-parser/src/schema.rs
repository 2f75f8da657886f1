//! Checks a value against a tool's JSON Schema, limited to the keywords that tool declarations use.
//!
//! Unknown keywords are ignored: a value never fails an unknown rule. Used by `coerce`.
//!
//! Schemas come from clients and MCP servers, and a small one can describe more combinations than any machine
//! can try. So a pair of a value and a referenced schema is checked once, and all checks of a reply share a
//! number of [`Steps`]. Values that were not checked count as right.
//!
//! The `jsonschema` crate does all of JSON Schema, but bounds no work. It compiles a schema before each use,
//! which costs more than one check, and brings some 25 crates. `coerce` also asks for parts of schemas, which
//! such a library does not show.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::formats::{self, Patterns};

/// The deepest nesting of schemas that is followed.
const MAX_DEPTH: usize = 48;
/// The longest chain of `$ref`.
const MAX_REFERENCES: usize = 8;
/// The longest pointer in a `$ref`, in bytes.
const MAX_POINTER: usize = 512;
/// The most problems that are listed.
const MAX_PROBLEMS: usize = 8;
/// The steps of one reply's checks, in addition to those that its calls bring: some 10 ms of work.
const STEPS_OF_REPLY: usize = 100_000;
/// The bytes of text that a step covers.
const BYTES_OF_STEP: usize = 32;

/// The remaining work for checks of one reply's calls. A step is one look at a schema or at a small value.
#[derive(Debug)]
pub(crate) struct Steps(Cell<usize>);

impl Steps {
    /// Returns the steps of a new reply.
    pub(crate) fn reply_budget() -> Self {
        Self(Cell::new(STEPS_OF_REPLY))
    }

    /// Adds steps, so that many calls can be checked as well as few.
    pub(crate) fn add(&self, count: usize) {
        self.0.set(self.0.get().saturating_add(count));
    }

    /// Takes steps. False, with no steps left, when there are too few.
    pub(crate) fn take(&self, count: usize) -> bool {
        let left = self.0.get().checked_sub(count);
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }

    /// Returns true when checks were skipped.
    pub(crate) fn are_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// A tool's schema, and the remaining work for checks against it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Document<'a> {
    /// The whole schema, in which references are looked up.
    pub(crate) root: &'a Value,
    pub(crate) steps: &'a Steps,
}

/// Returns the steps of one look at a whole value.
pub(crate) fn weight(value: &Value) -> usize {
    1 + match value {
        Value::String(text) => text.len() / BYTES_OF_STEP,
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(object) => {
            object.iter().map(|(name, value)| name.len() / BYTES_OF_STEP + weight(value)).sum()
        }
        _ => 0,
    }
}

/// Keywords without schemas in them that are checked, or that say nothing about values.
const LEAVES: [&str; 29] = [
    "type",
    "enum",
    "const",
    "required",
    "dependentRequired",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minContains",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "nullable",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "discriminator",
    "$schema",
    "$comment",
    "$defs",
    "definitions",
];

/// The most fields of an object in which comparing each key costs less than hashing one.
const FEW_FIELDS: usize = 8;

/// Returns the value of a keyword in a schema.
fn keyword<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = schema.as_object()?;
    if fields.len() > FEW_FIELDS {
        return fields.get(name);
    }
    fields.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Follows `$ref` inside the document (`#/$defs/X`). An unresolvable reference has no rules.
pub(crate) fn resolve_reference<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_REFERENCES {
        let Some(reference) = keyword(schema, "$ref").and_then(Value::as_str) else { return schema };
        let pointer = reference.strip_prefix('#').filter(|pointer| pointer.len() <= MAX_POINTER);
        let target = pointer.and_then(|pointer| root.pointer(pointer));
        schema = target.unwrap_or(&Value::Null);
    }
    &Value::Null
}

/// Returns the types that a schema allows; empty when it has no `type`.
pub(crate) fn type_names(schema: &Value) -> Vec<&str> {
    match keyword(schema, "type") {
        Some(Value::String(name)) => vec![standard_type(name)],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(standard_type).collect(),
        _ => Vec::new(),
    }
}

/// Translates another language's name of a type, such as Python's, to that of JSON Schema.
fn standard_type(name: &str) -> &str {
    match name {
        "float" | "double" => "number",
        "int" | "long" => "integer",
        "bool" => "boolean",
        "str" => "string",
        "list" | "tuple" => "array",
        "dict" | "map" => "object",
        "none" => "null",
        other => other,
    }
}

/// Returns the declared properties of an object schema.
pub(crate) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    keyword(schema, "properties").and_then(Value::as_object)
}

/// Returns the names in `required`.
pub(crate) fn required_names(schema: &Value) -> impl Iterator<Item = &str> {
    keyword(schema, "required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the schema of the item at this place. `items` as a list is how older drafts write `prefixItems`.
pub(crate) fn item_rule(schema: &Value, index: usize) -> Option<&Value> {
    let items = keyword(schema, "items");
    let (first, rest) = match items {
        Some(Value::Array(first)) => (Some(first), keyword(schema, "additionalItems")),
        _ => (keyword(schema, "prefixItems").and_then(Value::as_array), items),
    };
    first.and_then(|first| first.get(index)).or(rest)
}

/// Returns the schemas of `anyOf` and `oneOf`.
pub(crate) fn branches(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().filter_map(|key| keyword(schema, key)?.as_array()).flatten()
}

/// Returns true when `value` has that JSON Schema type.
pub(crate) fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

/// Returns true when `value` breaks no known rule.
pub(crate) fn accepts(value: &Value, schema: &Value, document: Document<'_>) -> bool {
    find_problems(value, schema, document).is_empty()
}

/// Returns the violations of `value`, each with its place.
pub(crate) fn find_problems(value: &Value, schema: &Value, document: Document<'_>) -> Vec<String> {
    let mut check = Check {
        document,
        problems: Vec::new(),
        references: HashMap::new(),
        checked: HashMap::new(),
        patterns: Patterns::default(),
    };
    check.check_value(value, schema, &Path::Arguments, 0);
    check.problems
}

/// The place of a value in the arguments.
#[derive(Clone, Copy, Debug)]
enum Path<'a> {
    /// The arguments themselves.
    Arguments,
    Member(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments => out.write_str("arguments"),
            Self::Member(Self::Arguments, name) => out.write_str(name),
            Self::Member(outer, name) => write!(out, "{outer}.{name}"),
            Self::Item(outer, index) => write!(out, "{outer}[{index}]"),
        }
    }
}

/// The rules for the members of an object.
#[derive(Clone, Copy)]
struct MemberRules<'a> {
    declared: Option<&'a Map<String, Value>>,
    patterns: Option<&'a Map<String, Value>>,
    /// The rule of those that are neither.
    others: Option<&'a Value>,
}

struct Check<'a> {
    document: Document<'a>,
    problems: Vec<String>,
    /// Whether a value fits a referenced schema, by their addresses. Also true while the check is running.
    references: HashMap<(*const Value, *const Value), bool>,
    /// Whether all of a schema is checked, by its address. Also true while that is being found out.
    checked: HashMap<*const Value, bool>,
    patterns: Patterns,
}

impl Check<'_> {
    fn add_problem(&mut self, path: &Path<'_>, what: impl fmt::Display) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("{path}: {what}"));
        }
    }

    fn check_value(&mut self, value: &Value, schema: &Value, path: &Path<'_>, depth: usize) {
        let is_over = depth > MAX_DEPTH || self.problems.len() >= MAX_PROBLEMS;
        if is_over || !self.document.steps.take(1) {
            return;
        }
        let target = resolve_reference(schema, self.document.root);
        if std::ptr::eq(target, schema) {
            return self.check_rules(value, schema, path, depth);
        }
        let pair = (std::ptr::from_ref(target), std::ptr::from_ref(value));
        match self.references.get(&pair) {
            Some(true) => {}
            Some(false) => self.add_problem(path, "does not fit its definition"),
            None => {
                self.references.insert(pair, true);
                let fits = self.passes_check(|check| check.check_rules(value, target, path, depth));
                self.references.insert(pair, fits);
            }
        }
    }

    /// Returns true when a check finds no problem.
    fn passes_check(&mut self, check: impl FnOnce(&mut Self)) -> bool {
        let before = self.problems.len();
        check(self);
        self.problems.len() == before
    }

    fn check_rules(&mut self, value: &Value, schema: &Value, path: &Path<'_>, depth: usize) {
        if schema == &Value::Bool(false) {
            self.add_problem(path, "not allowed");
        }
        self.check_type(value, schema, path);
        self.check_choices(value, schema, path, depth);
        self.check_conditions(value, schema, path, depth);
        match value {
            Value::Object(object) => self.check_object(object, schema, path, depth),
            Value::Array(items) => self.check_array(items, schema, path, depth),
            Value::String(text) => self.check_text(text, schema, path),
            Value::Number(number) => self.check_number(number.as_f64().unwrap_or_default(), schema, path),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn check_type(&mut self, value: &Value, schema: &Value, path: &Path<'_>) {
        let types = type_names(schema);
        let nullable = value.is_null() && keyword(schema, "nullable") == Some(&Value::Bool(true));
        let has_type = || types.iter().any(|name| is_type(value, name));
        if !types.is_empty() && !nullable && self.document.steps.take(types.len()) && !has_type() {
            self.add_problem(path, format_args!("must be {}", types.join(" or ")));
        }
        if let Some(Value::Array(choices)) = keyword(schema, "enum")
            && !nullable
            && self.may_compare(value, choices.len())
            && !choices.iter().any(|choice| is_same(choice, value))
        {
            self.add_problem(path, "must be one of the listed values");
        }
        if let Some(constant) = keyword(schema, "const")
            && self.may_compare(value, 1)
            && !is_same(constant, value)
        {
            self.add_problem(path, "must be the constant");
        }
    }

    /// Takes the steps for comparing a value with `count` others.
    fn may_compare(&self, value: &Value, count: usize) -> bool {
        self.document.steps.take(weight(value).saturating_mul(count))
    }

    fn check_choices(&mut self, value: &Value, schema: &Value, path: &Path<'_>, depth: usize) {
        for part in keyword(schema, "allOf").and_then(Value::as_array).into_iter().flatten() {
            self.check_value(value, part, path, depth + 1);
        }
        let forms = |key| keyword(schema, key).and_then(Value::as_array).filter(|forms| !forms.is_empty());
        for forms in ["anyOf", "oneOf"].into_iter().filter_map(forms) {
            if !forms.iter().any(|form| self.fits_known(value, form, path, depth)) {
                self.add_problem(path, "fits none of the allowed forms");
            }
        }
        let exclusive = forms("oneOf").into_iter().flatten();
        let fitting = exclusive.filter(|form| self.fits_all(value, form, path, depth) == Some(true));
        if fitting.take(2).count() == 2 {
            self.add_problem(path, "fits several forms, of which only one is allowed");
        }
    }

    /// Returns whether a value breaks no rule that is known.
    fn fits_known(&mut self, value: &Value, schema: &Value, path: &Path<'_>, depth: usize) -> bool {
        let before = self.problems.len();
        let fits = self.passes_check(|check| check.check_value(value, schema, path, depth + 1));
        self.problems.truncate(before);
        fits
    }

    /// Checks `not`, `if`, `then` and `else`, where every keyword of the schema below them is checked.
    fn check_conditions(&mut self, value: &Value, schema: &Value, path: &Path<'_>, depth: usize) {
        if let Some(excluded) = keyword(schema, "not")
            && self.fits_all(value, excluded, path, depth) == Some(true)
        {
            self.add_problem(path, "has the form that `not` excludes");
        }
        if let Some(condition) = keyword(schema, "if")
            && let Some(holds) = self.fits_all(value, condition, path, depth)
            && let Some(then) = keyword(schema, if holds { "then" } else { "else" })
        {
            self.check_value(value, then, path, depth + 1);
        }
    }

    /// Returns whether a value fits a schema; `None` where a part of the schema is not checked.
    fn fits_all(&mut self, value: &Value, schema: &Value, path: &Path<'_>, depth: usize) -> Option<bool> {
        if depth >= MAX_DEPTH || !self.is_checked(schema, 0) {
            return None;
        }
        let fits = self.fits_known(value, schema, path, depth);
        (!self.document.steps.are_spent()).then_some(fits)
    }

    fn check_object(&mut self, object: &Map<String, Value>, schema: &Value, path: &Path<'_>, depth: usize) {
        if !self.document.steps.take(required_names(schema).count()) {
            return;
        }
        for name in required_names(schema).filter(|name| !object.contains_key(*name)) {
            self.add_problem(path, format_args!("`{name}` is missing"));
        }
        self.check_range(to_float(object.len()), schema, ["minProperties", "maxProperties"], path);
        let (names, others) = (keyword(schema, "propertyNames"), keyword(schema, "dependentRequired"));
        let rules = MemberRules {
            declared: properties(schema),
            patterns: keyword(schema, "patternProperties").and_then(Value::as_object),
            others: keyword(schema, "additionalProperties"),
        };
        for (name, value) in object {
            let path = &Path::Member(path, name);
            // With a check of its own: what is known of references holds for values that stay.
            if names.is_some_and(|names| !accepts(&Value::from(name.as_str()), names, self.document)) {
                self.add_problem(path, "its name is not allowed");
            }
            self.check_member(name, value, rules, path, depth);
            let also = others.and_then(|others| others.get(name)?.as_array()).into_iter().flatten();
            for missing in also.filter_map(Value::as_str).filter(|other| !object.contains_key(*other)) {
                self.add_problem(path, format_args!("it also needs `{missing}`"));
            }
        }
    }

    fn check_member(
        &mut self,
        name: &str,
        value: &Value,
        rules: MemberRules<'_>,
        path: &Path<'_>,
        depth: usize,
    ) {
        let declared = rules.declared.and_then(|declared| declared.get(name));
        let mut is_known = declared.is_some();
        if let Some(rule) = declared {
            self.check_value(value, rule, path, depth + 1);
        }
        for (pattern, rule) in rules.patterns.into_iter().flatten() {
            if !self.document.steps.take(self.patterns.steps(pattern, name)) {
                return;
            }
            match self.patterns.matches(pattern, name) {
                Some(true) => self.check_value(value, rule, path, depth + 1),
                Some(false) => continue,
                None => {}
            }
            is_known = true;
        }
        match rules.others.filter(|_| !is_known) {
            Some(Value::Bool(false)) => self.add_problem(path, "unknown property"),
            Some(rule @ Value::Object(_)) => self.check_value(value, rule, path, depth + 1),
            _ => {}
        }
    }

    fn check_array(&mut self, items: &[Value], schema: &Value, path: &Path<'_>, depth: usize) {
        self.check_range(to_float(items.len()), schema, ["minItems", "maxItems"], path);
        let wants_unique = keyword(schema, "uniqueItems") == Some(&Value::Bool(true));
        let pairs = items.len().saturating_mul(items.len());
        if wants_unique
            && self.document.steps.take(pairs)
            && (1..items.len()).any(|place| items[..place].iter().any(|item| is_same(item, &items[place])))
        {
            self.add_problem(path, "must not hold the same item twice");
        }
        for (index, item) in items.iter().enumerate() {
            if let Some(rule) = item_rule(schema, index) {
                self.check_value(item, rule, &Path::Item(path, index), depth + 1);
            }
        }
        if let Some(wanted) = keyword(schema, "contains") {
            let least = keyword(schema, "minContains").and_then(Value::as_u64).unwrap_or(1);
            let least = usize::try_from(least).unwrap_or(usize::MAX);
            let fitting = items.iter().filter(|item| self.fits_known(item, wanted, path, depth));
            if fitting.take(least).count() < least {
                self.add_problem(path, "lacks an item that it must contain");
            }
        }
    }

    fn check_number(&mut self, number: f64, schema: &Value, path: &Path<'_>) {
        self.check_range(number, schema, ["minimum", "maximum"], path);
        let bound = |key| keyword(schema, key).and_then(Value::as_f64);
        if bound("exclusiveMinimum").is_some_and(|low| number <= low)
            || bound("exclusiveMaximum").is_some_and(|high| number >= high)
        {
            self.add_problem(path, "out of range");
        }
        if let Some(step) = bound("multipleOf").filter(|step| *step > 0.0 && !is_multiple(number, *step)) {
            self.add_problem(path, format_args!("must be a multiple of {step}"));
        }
    }

    /// Checks the form and the bounds of a text. It counts characters only if there are bounds.
    fn check_text(&mut self, text: &str, schema: &Value, path: &Path<'_>) {
        if let Some(pattern) = keyword(schema, "pattern").and_then(Value::as_str)
            && self.document.steps.take(self.patterns.steps(pattern, text))
            && self.patterns.matches(pattern, text) == Some(false)
        {
            self.add_problem(path, format_args!("must match the pattern {pattern}"));
        }
        if let Some(format) = keyword(schema, "format").and_then(Value::as_str)
            && !formats::is_possible(format, text)
        {
            self.add_problem(path, format_args!("must be a {format}"));
        }
        let bounds = ["minLength", "maxLength"];
        let has_bounds = bounds.iter().any(|bound| keyword(schema, bound).is_some());
        if has_bounds && self.document.steps.take(text.len() / BYTES_OF_STEP) {
            self.check_range(text_length(text), schema, bounds, path);
        }
    }

    /// Returns true when every keyword of a schema is one that is checked, or says nothing about values.
    /// Deeper than `MAX_DEPTH` none is: each level takes room on the stack.
    fn is_checked(&mut self, schema: &Value, depth: usize) -> bool {
        let schema = resolve_reference(schema, self.document.root);
        let Value::Object(fields) = schema else { return schema.is_boolean() };
        let address = std::ptr::from_ref(schema);
        if let Some(known) = self.checked.get(&address) {
            return *known;
        }
        self.checked.insert(address, true);
        let is_checked = depth < MAX_DEPTH
            && self.document.steps.take(1)
            && fields.iter().all(|(key, value)| match (key.as_str(), value) {
                ("properties", Value::Object(members)) => {
                    members.values().all(|part| self.is_checked(part, depth + 1))
                }
                ("patternProperties", Value::Object(members)) => members
                    .iter()
                    .all(|(pattern, part)| self.is_readable(pattern) && self.is_checked(part, depth + 1)),
                ("pattern", Value::String(pattern)) => self.is_readable(pattern),
                ("items" | "prefixItems" | "anyOf" | "allOf" | "oneOf", Value::Array(parts)) => {
                    parts.iter().all(|part| self.is_checked(part, depth + 1))
                }
                (
                    "items" | "additionalItems" | "additionalProperties" | "propertyNames" | "contains",
                    part,
                ) => self.is_checked(part, depth + 1),
                (key, _) => LEAVES.contains(&key),
            });
        if !is_checked {
            // Others were found to be checked because this one seemed to be.
            self.checked.clear();
        }
        self.checked.insert(address, is_checked);
        is_checked
    }

    fn is_readable(&mut self, pattern: &str) -> bool {
        self.document.steps.take(self.patterns.steps(pattern, ""))
            && self.patterns.matches(pattern, "").is_some()
    }

    fn check_range(&mut self, measured: f64, schema: &Value, [low, high]: [&str; 2], path: &Path<'_>) {
        let bound = |key| keyword(schema, key).and_then(Value::as_f64);
        if let Some(low) = bound(low).filter(|low| measured < *low) {
            self.add_problem(path, format_args!("{measured} is below {low}"));
        }
        if let Some(high) = bound(high).filter(|high| measured > *high) {
            self.add_problem(path, format_args!("{measured} is above {high}"));
        }
    }
}

/// Returns true for a multiple, as far as floating-point numbers can tell.
fn is_multiple(number: f64, step: f64) -> bool {
    if number.fract() == 0.0 && step.fract() == 0.0 {
        return number % step == 0.0;
    }
    let times = number / step;
    (times - times.round()).abs() <= (4.0 * f64::EPSILON * times.abs()).max(1e-9)
}

fn text_length(text: &str) -> f64 {
    to_float(text.chars().count())
}

fn to_float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Compares values by JSON Schema's rules: `1` and `1.0` are the same number.
pub(crate) fn is_same(one: &Value, other: &Value) -> bool {
    one == other || (one.is_number() && one.as_f64() == other.as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, good: &[Value], bad: &[Value]) {
        let steps = Steps::reply_budget();
        let document = Document { root: schema, steps: &steps };
        for value in good {
            assert_eq!(find_problems(value, schema, document), Vec::<String>::new(), "{schema} {value}");
        }
        for value in bad {
            assert!(!accepts(value, schema, document), "{schema} {value}");
        }
        assert!(!steps.are_spent(), "{schema}");
    }

    #[test]
    fn keywords_that_tools_use_are_checked() {
        check(
            &json!({"type": "integer", "minimum": 1}),
            &[json!(1), json!(2.0)],
            &[json!(0), json!(1.5), json!("1")],
        );
        check(
            &json!({"type": ["string", "null"], "maxLength": 2}),
            &[json!("ab"), json!(null)],
            &[json!("abc"), json!(1)],
        );
        check(&json!({"enum": ["a", 1]}), &[json!("a"), json!(1.0)], &[json!("A")]);
        check(
            &json!({"anyOf": [{"type": "string"}, {"const": null}]}),
            &[json!("x"), json!(null)],
            &[json!(1)],
        );
        check(
            &json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            &[json!(["a"])],
            &[json!([]), json!([1])],
        );
        check(
            &json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/A"}},
                    "additionalProperties": false, "$defs": {"A": {"type": "boolean"}}}),
            &[json!({"a": true})],
            &[json!({}), json!({"a": 1}), json!({"a": true, "b": 1})],
        );
    }

    #[test]
    fn what_servers_no_longer_check_is_checked() {
        check(
            &json!({"type": "string", "pattern": "^[a-z]+\\.md$"}),
            &[json!("a.md")],
            &[json!("a.txt"), json!("A.md")],
        );
        check(&json!({"type": "string", "pattern": "\\d"}), &[json!("a1")], &[json!("a")]);
        // Constructs that this engine lacks, or reads in another way, are not checked.
        for pattern in ["^(?=a)", "(a)\\1", "[a&&b]", "(", "a{1000}{1000}{1000}"] {
            check(&json!({ "pattern": pattern }), &[json!("x")], &[]);
        }
        check(&json!({"format": "date"}), &[json!("2026-11-25")], &[json!("tomorrow")]);
        check(&json!({"uniqueItems": true}), &[json!([1, 2])], &[json!([1, 2, 1.0])]);
        check(&json!({"maxProperties": 1}), &[json!({"a": 1})], &[json!({"a": 1, "b": 1})]);
        check(
            &json!({"type": "object", "not": {"required": ["a", "b"]}}),
            &[json!({"a": 1}), json!({})],
            &[json!({"a": 1, "b": 1})],
        );
        check(&json!({"not": {"unheard": 1}}), &[json!([1]), json!("x")], &[]);
        check(&json!({"not": {"pattern": "^(?=a)"}}), &[json!("a"), json!("b")], &[]);
        check(&json!({"multipleOf": 0.1}), &[json!(0.3), json!(7)], &[json!(0.35)]);
        check(&json!({"multipleOf": 5}), &[json!(0), json!(-10)], &[json!(9_999_999_999_u64)]);
        check(
            &json!({"if": {"properties": {"kind": {"const": "url"}}}, "then": {"required": ["url"]},
                    "else": {"required": ["path"]}}),
            &[json!({"kind": "url", "url": "x"}), json!({"kind": "file", "path": "x"})],
            &[json!({"kind": "url"}), json!({"kind": "file"})],
        );
    }

    #[test]
    fn objects_and_lists_are_checked_whole() {
        check(
            &json!({"patternProperties": {"^x-": {"type": "string"}}, "properties": {"a": {}},
                    "additionalProperties": false}),
            &[json!({"a": 1, "x-b": "c"})],
            &[json!({"x-b": 1}), json!({"b": 1})],
        );
        let unreadable =
            json!({"patternProperties": {"^(?=x)": {"type": "string"}}, "additionalProperties": false});
        check(&unreadable, &[json!({"x": 1})], &[]);
        let named = json!({"propertyNames": {"$ref": "#/$defs/short"}, "$defs": {"short": {"maxLength": 2}}});
        check(&named, &[json!({"ab": 1})], &[json!({"ab": 1, "abc": 1})]);
        check(
            &json!({"dependentRequired": {"a": ["b"]}}),
            &[json!({"b": 1}), json!({"a": 1, "b": 1})],
            &[json!({"a": 1})],
        );
        for pair in [
            json!({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}),
            json!({"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": false}),
        ] {
            check(&pair, &[json!(["a", 1]), json!(["a"])], &[json!([1, "a"]), json!(["a", 1, 2])]);
        }
        check(&json!({"contains": {"const": 1}}), &[json!([2, 1])], &[json!([2]), json!([])]);
        check(&json!({"contains": {"const": 1}, "minContains": 2}), &[json!([1, 1])], &[json!([1, 2])]);
    }

    #[test]
    fn exactly_one_form_of_one_of_fits() {
        check(
            &json!({"oneOf": [{"type": "integer"}, {"minimum": 2}]}),
            &[json!(1), json!(2.5)],
            &[json!(3), json!(1.5)],
        );
        let forms = json!({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {
            "A": {"type": "object", "required": ["a"], "properties": {"next": {"$ref": "#"}}},
            "B": {"type": "object", "required": ["b"]}}});
        check(
            &forms,
            &[json!({"a": 1}), json!({"b": 1}), json!({"a": 1, "next": {"b": 1}})],
            &[json!({"a": 1, "b": 1}), json!({})],
        );
        // A form with a keyword that is not checked excludes nothing, also behind a reference to the whole.
        let cycle = json!({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {
            "A": {"properties": {"b": {"$ref": "#/$defs/B"}}, "unheard": 1},
            "B": {"properties": {"a": {"$ref": "#/$defs/A"}}}}});
        check(&cycle, &[json!({})], &[]);
        check(&json!({"oneOf": [{"unheard": 1}, {"type": "integer"}]}), &[json!(1)], &[]);
        check(&json!({"anyOf": [{"type": "integer"}], "oneOf": [{"minimum": 2}]}), &[json!(3)], &[json!(1)]);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        check(&json!({"$ref": "#"}), &[json!(1)], &[]);
        check(
            &json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "string"}),
            &[json!("a")],
            &[json!(1)],
        );
        let tree = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        check(&tree, &[json!({"next": {"next": {}}})], &[json!({"next": {"next": 1}})]);
    }

    /// Levels of ten references each to the next one: 10^12 ways to the innermost schema.
    fn multiplied(keyword: &str, innermost: &Value) -> Value {
        let mut definitions = Map::new();
        for level in 0..12 {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            definitions.insert(format!("l{level}"), json!({ keyword: vec![next; 10] }));
        }
        definitions.insert("l12".into(), innermost.clone());
        json!({"$ref": "#/$defs/l0", "$defs": definitions})
    }

    #[test]
    fn referenced_schemas_are_checked_once_for_each_value() {
        for keyword in ["allOf", "anyOf"] {
            check(&multiplied(keyword, &json!({"type": "object"})), &[json!({})], &[json!(1)]);
        }
    }

    #[test]
    fn a_long_chain_of_references_ends() {
        // Regression: one level of the stack for each reference ended the whole process.
        let mut chain = Map::new();
        for level in 0..50_000 {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            chain.insert(format!("l{level}"), json!({ "items": next }));
        }
        let first = json!({"$ref": "#/$defs/l0"});
        for rule in [json!({"oneOf": [first]}), json!({"not": first}), json!({"if": first, "then": false})] {
            let mut schema = rule;
            schema["$defs"] = Value::Object(chain.clone());
            check(&schema, &[json!([])], &[]);
        }
    }

    #[test]
    fn checks_end_when_their_steps_are_spent() {
        let many = |schema: Value| Value::Array(vec![schema; 3_000]);
        let but_last = |schema: Value, last: Value| {
            let mut list = vec![schema; 3_000];
            list.push(last);
            list
        };
        let forms = but_last(json!({"type": "object"}), json!({"type": "integer"}));
        let wide = json!({"items": {"anyOf": forms}});
        let listed = json!({"items": {"enum": but_last(json!("b"), json!("a"))}});
        let long = json!({"allOf": many(json!({"maxLength": 9_999_999}))});
        for (schema, value) in
            [(wide, many(json!(1))), (listed, many(json!("a"))), (long, json!("a".repeat(1 << 20)))]
        {
            let steps = Steps::reply_budget();
            let found = find_problems(&value, &schema, Document { root: &schema, steps: &steps });
            assert!(steps.are_spent() && found.is_empty(), "{found:?}");
        }
    }
}
