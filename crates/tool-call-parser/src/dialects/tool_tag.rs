//! Cline's form: a declared tool's name as a tag, with a tag for each argument.
//!
//! Any text may have XML, so only a complete element with nothing but declared arguments counts.

use super::xml_arguments::read_elements;
use super::{Dialect, Found, Opens, Step, TagForm, View, Wait, named_json};
use crate::calls::{Delimited, RawCall};
use crate::schema;

pub(super) static DIALECT: Dialect = Dialect {
    name: "tool_tag",
    models: "Models prompted by Cline, Roo Code and their like.",
    families: &[],
    grammar: "At the start of a line `<NAME>` with a declared name, exactly, then `<KEY>VALUE</KEY>` elements of declared \
              arguments and nothing else, `</NAME>`. A value on lines of its own loses one line break at each end. \
              Nothing but calls may follow.",
    example: "<read>\n<path>a.txt</path>\n</read>",
    opens: Opens::Tag(TagForm::Name),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let Some((name, body)) = view.body().split_once('>') else { return view.wait_or_reject(Wait::Any) };
    let Some(tool) = view.tools.get(name).filter(|_| !view.is_quoted()) else { return Step::Not(view.mark) };
    let from = view.mark + name.len() + 1;
    let close = format!("</{name}>");
    let declared = schema::properties(tool.schema()).filter(|declared| !declared.is_empty());
    for (at, _) in body.match_indices(&close) {
        let fields = match declared {
            Some(declared) => read_elements(&body[..at], declared),
            None => body[..at].trim().is_empty().then(serde_json::Map::new),
        };
        if let Some(fields) = fields {
            let calls = vec![RawCall::from_unquoted(name, fields, Delimited::Tags)];
            return Step::Read(Found::Calls { calls, firm: false }, from + at + close.len());
        }
    }
    let element = body.trim_start();
    match element.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((key, _)) if declared.is_some_and(|declared| declared.contains_key(key)) => {
            if view.cut {
                named_json::truncated_call(view, name)
            } else {
                view.wait_or_reject(Wait::Any)
            }
        }
        None if element.is_empty() || element.starts_with('<') && element.len() <= 128 => {
            view.wait_or_reject(Wait::Any)
        }
        _ => Step::Not(from),
    }
}
