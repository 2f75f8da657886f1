//! `MiniMax` M3: a token precedes every tag, each argument is a tag with its name, and lists are `<item>`s.

use serde_json::{Map, Value};

use super::{Dialect, Found, Opens, Step, View, Wait, named_json};
use crate::calls::RawCall;
use crate::event::Dropped;
use crate::schema::{Document, branches, properties, resolve_reference, type_names};
use crate::unquoted;

/// The token before every tag.
const TOKEN: &str = "]<]minimax[>[";
const INVOKE: &str = "<invoke name=";
const END: &[&str] = &["]<]minimax[>[</invoke>"];
/// Tags that only frame the calls.
const FRAMES: [&str; 3] = ["<tool_call>", "</tool_call>", "</invoke>"];
/// The deepest nesting of values that is read.
const MAX_DEPTH: usize = 32;

pub(super) static DIALECT: Dialect = Dialect {
    name: "minimax_m3",
    models: "MiniMax M3.",
    families: &["minimaxm3"],
    grammar: "`<tool_call>`, `<invoke name=\"NAME\">`, `<KEY>VALUE</KEY>` per argument, `</invoke>`, `</tool_call>`, each tag \
              behind the token `]<]minimax[>[`. Objects are tags in tags, lists `<item>` tags.",
    example: "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"read\">]<]minimax[>[<path>a.txt]<]minimax[>[</path>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
    opens: Opens::Anywhere(&[TOKEN]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let start = view.skip_space(view.mark);
    let rest = &view.text[start..];
    if let Some(frame) = FRAMES.iter().find(|frame| rest.starts_with(**frame)) {
        return Step::Read(Found::Skip, start + frame.len());
    }
    let Some(head) = rest.strip_prefix(INVOKE) else {
        let partial = FRAMES.iter().any(|frame| frame.starts_with(rest)) || INVOKE.starts_with(rest);
        return if partial { view.wait_or_reject(Wait::Any) } else { Step::Not(start + 1) };
    };
    let from = start + INVOKE.len();
    let Some(length) = head.find('>') else {
        return named_json::unended_name(view, from, 128, head.trim_matches('"'));
    };
    let name = head[..length].trim().trim_matches(['"', '\'']);
    if length > 128 {
        return Step::Not(from + 128);
    }
    read_invocation(view, name, from + length + 1)
}

fn read_invocation(view: &View<'_>, name: &str, from: usize) -> Step {
    let Some(found) = view.tools.resolve(name) else {
        return view.broken_until(from, END, name, Dropped::Undeclared);
    };
    let Some(length) = view.text[from..].find(END[0]) else {
        return if view.eof {
            named_json::truncated_call(view, name)
        } else {
            Step::More(Wait::Mark(from, END))
        };
    };
    let end = from + length + END[0].len();
    let document = Document { root: found.tool.schema(), steps: view.steps };
    let values = Values { document };
    match values.read_members(&view.text[from..from + length], Some(document.root), 0) {
        Some(fields) => {
            named_json::single_call(view, RawCall::from_fields(name, fields.into_iter().collect()), end)
        }
        None => view.broken_until(from, END, name, Dropped::Unreadable),
    }
}

/// Reads tags by the schemas of their contents.
struct Values<'a> {
    document: Document<'a>,
}

impl Values<'_> {
    /// Reads all tags in `body`; `None` if there is other text between them.
    fn read_members(&self, body: &str, rule: Option<&Value>, depth: usize) -> Option<Vec<(String, Value)>> {
        if depth >= MAX_DEPTH {
            return None;
        }
        let mut members = Vec::new();
        let mut rest = body.trim_start();
        while !rest.is_empty() {
            let after = rest.strip_prefix(TOKEN)?.trim_start().strip_prefix('<')?;
            let (key, after) = after.split_once('>')?;
            let key = key.trim();
            let close = format!("{TOKEN}</{key}>");
            let end = matching_close(after, key, &close)?;
            members.push((
                key.to_owned(),
                self.read_value(&after[..end], self.rule_of(rule, key, 0), depth + 1),
            ));
            rest = after[end + close.len()..].trim_start();
        }
        Some(members)
    }

    /// Returns the schema of a member, or of a list's items.
    fn rule_of<'s>(&'s self, rule: Option<&'s Value>, key: &str, depth: usize) -> Option<&'s Value> {
        let rule = resolve_reference(rule?, self.document.root);
        let own = properties(rule).and_then(|declared| declared.get(key));
        let mut tried = branches(rule).take_while(|_| depth < 8 && self.document.steps.take(1));
        let of_branch = || tried.find_map(|branch| self.rule_of(Some(branch), key, depth + 1));
        let item = || rule.get("items").filter(|_| key == "item");
        own.or_else(item).or_else(of_branch)
    }

    fn read_value(&self, text: &str, rule: Option<&Value>, depth: usize) -> Value {
        let holds_tags =
            text.trim_start().strip_prefix(TOKEN).is_some_and(|after| after.trim_start().starts_with('<'));
        let members = if holds_tags && self.may_hold_members(rule, 0) {
            self.read_members(text, rule, depth)
        } else {
            None
        };
        match members {
            Some(members) if members.iter().all(|(key, _)| key == "item") => {
                Value::Array(members.into_iter().map(|(_, value)| value).collect())
            }
            Some(members) => Value::Object(members.into_iter().collect::<Map<String, Value>>()),
            None => unquoted::read_value(text, Some(rule.unwrap_or(&Value::Null)), self.document),
        }
    }

    fn may_hold_members(&self, rule: Option<&Value>, depth: usize) -> bool {
        let Some(rule) = rule.map(|rule| resolve_reference(rule, self.document.root)) else { return true };
        let kinds = type_names(rule);
        let mut branches = branches(rule).take_while(|_| self.document.steps.take(1)).peekable();
        let untyped = kinds.is_empty() && branches.peek().is_none();
        untyped
            || kinds.contains(&"object")
            || kinds.contains(&"array")
            || depth < 8 && branches.any(|branch| self.may_hold_members(Some(branch), depth + 1))
    }
}

/// Returns the beginning of the matching closing tag. The same tag may be nested.
fn matching_close(text: &str, key: &str, close: &str) -> Option<usize> {
    let open = format!("{TOKEN}<{key}>");
    let mut depth = 0_usize;
    let mut at = 0;
    loop {
        let end = at + text[at..].find(close)?;
        depth += text[at..end].matches(&open).count();
        if depth == 0 {
            return Some(end);
        }
        depth -= 1;
        at = end + close.len();
    }
}
