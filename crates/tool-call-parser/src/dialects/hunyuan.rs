//! Hunyuan's `<tool_call>NAME<tool_sep>` with GLM's pairs of keys and values.

use super::{Dialect, Opens, Step, View, Wait, glm};
use crate::event::Dropped;

const OUTER: &str = "<tool_calls>";
const INNER: &str = "<tool_call>";
const SEPARATOR: &str = "<tool_sep>";
/// Marks that follow the name without a separator.
const NEXT: [&str; 2] = ["<arg_key>", "</tool_call>"];
const END: &[&str] = &["</tool_call>"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "hunyuan",
    models: "Hunyuan (Hy3 and later).",
    families: &["hunyuan", "hy3", "hyv3", "hy4", "hyv4"],
    grammar: "`<tool_calls>`, then per call `<tool_call>`, the name, `<tool_sep>` (Hy4: without it), GLM's pairs of `<arg_key>…</arg_key>` and \
              `<arg_value>…</arg_value>`, `</tool_call>`; `</tool_calls>`.",
    example: "<tool_calls><tool_call>read<tool_sep><arg_key>path</arg_key><arg_value>a.txt</arg_value></tool_call></tool_calls>",
    opens: Opens::Anywhere(&[OUTER, INNER]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let outer = view.text[..view.mark] == *OUTER;
    let start = if outer { view.skip_space(view.mark) } else { 0 };
    let Some(body) = view.text[start..].strip_prefix(INNER) else {
        let partial = INNER.starts_with(&view.text[start..]);
        return if partial { view.wait_or_reject(Wait::Any) } else { Step::Not(start + 1) };
    };
    let from = start + INNER.len();
    let Some(length) = body.find('<') else {
        return view.await_end_within(from, 128);
    };
    let name = body[..length].trim();
    if length > 128 || name.is_empty() || name.contains(['{', '(', '"', '\n']) {
        return Step::Not(from + length.min(128));
    }
    let rest = &body[length..];
    let after = match rest.strip_prefix(SEPARATOR) {
        Some(_) => from + length + SEPARATOR.len(),
        None if SEPARATOR.starts_with(rest) => return view.wait_or_reject(Wait::Any),
        // Hy4 writes no separator, which is GLM's form between Hunyuan's outer tags.
        None if outer && NEXT.iter().any(|mark| rest.starts_with(mark)) => from + length,
        None if outer && NEXT.iter().any(|mark| mark.starts_with(rest)) => {
            return view.wait_or_reject(Wait::Any);
        }
        None => return Step::Not(from + length),
    };
    if view.tools.resolve(name).is_some() {
        return glm::read_pairs(view, name, after);
    }
    view.broken_until(after, END, name, Dropped::Undeclared)
}
