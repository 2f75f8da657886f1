//! K2 Horizon's `<ifm|tool_call>`: a name with pairs of keys and values, typed or not, or a JSON call.

use super::argument_pairs::{self, Tags};
use super::{Dialect, MarkAt, Opens, Step, View, Wait, envelope};

const OUTER: &str = "<ifm|tool_calls>";
const INNER: &str = "<ifm|tool_call>";
const END: &[&str] = &["</ifm|tool_call>"];
/// Marks that may end a call.
const ENDS: &[&str] = &["</ifm|tool_call>", INNER];

pub(super) static DIALECT: Dialect = Dialect {
    name: "k2_horizon",
    models: "K2 Horizon.",
    families: &["k2horizon", "k2v3"],
    grammar: "`<ifm|tool_calls>`, then per call `<ifm|tool_call>`, the name, per argument `<ifm|arg_key>KEY</ifm|arg_key>`, \
              perhaps `<ifm|arg_type>TYPE</ifm|arg_type>`, `<ifm|arg_value>VALUE</ifm|arg_value>`; or one JSON call; \
              `</ifm|tool_call>`; `</ifm|tool_calls>`.",
    example: "<ifm|tool_calls><ifm|tool_call>read<ifm|arg_key>path</ifm|arg_key><ifm|arg_value>a.txt</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    opens: Opens::Anywhere(&[OUTER, INNER]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let mut from = view.mark;
    if view.text[..view.mark] == *OUTER {
        let start = view.skip_space(from);
        from = match view.mark_at(start, &[INNER]) {
            MarkAt::Here(length) => start + length,
            MarkAt::Perhaps => return Step::More(Wait::Any),
            MarkAt::No => return Step::Not(view.text.len().min(start + 1)),
        };
    }
    let start = view.skip_space(from);
    match view.text.as_bytes().get(start) {
        None => view.wait_or_reject(Wait::Any),
        Some(b'{') => envelope::read_json(view, start, END),
        Some(_) => argument_pairs::read_call(view, start, &Tags::with_affixes("ifm|", ""), ENDS),
    }
}
