//! `<NAMESPACE:invoke name="…">` with `<NAMESPACE:parameter name="…">` tags, in `<NAMESPACE:function_calls>`
//! or alone.

use super::tagged::Tags;
use super::{Dialect, MarkAt, Opens, Step, TagForm, View, Wait, invoke};

/// Muse Glimmer's tags count only in a harmony message.
const MUSE: &str = "atem";

pub(super) static DIALECT: Dialect = Dialect {
    name: "namespaced",
    models: "Models trained on Claude's transcripts.",
    families: &[],
    grammar: "As `invoke`, with one namespace in every tag: perhaps `<NAMESPACE:function_calls>`, then \
              `<NAMESPACE:invoke name=\"NAME\">` of a declared tool, `<NAMESPACE:parameter name=\"KEY\">` tags, \
              `</NAMESPACE:invoke>`.",
    example: "<ns:function_calls>\n<ns:invoke name=\"read\">\n<ns:parameter name=\"path\">a.txt</ns:parameter>\n</ns:invoke>\n</ns:function_calls>",
    opens: Opens::Tag(TagForm::Namespaced),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let [invoke, wrapper] = TagForm::LOCAL;
    let Some((space, local)) = view.body().split_once(':') else { return view.wait_or_reject(Wait::Any) };
    if space == MUSE {
        return Step::Not(view.mark);
    }
    let start = if local.starts_with(wrapper) {
        view.skip_space(view.mark + space.len() + 1 + wrapper.len())
    } else {
        0
    };
    match view.mark_at(start, &[&format!("<{space}:{invoke}")]) {
        MarkAt::Here(length) => {
            let parameter = format!("<{space}:parameter name=");
            let close = format!("</{space}:parameter>");
            let end = format!("</{space}:invoke>");
            let tags = Tags { ends: &[&end], wakes: &["invoke>"], ..Tags::new(&parameter, &close, false) };
            let closer = format!("</{space}:function_calls>");
            invoke::read_invocation(view, &view.text[start + length..], tags, &[&closer])
        }
        MarkAt::Perhaps => Step::More(Wait::Any),
        MarkAt::No if !view.eof && start == 0 && wrapper.starts_with(local) => Step::More(Wait::Any),
        MarkAt::No => Step::Not(start + 1),
    }
}
