//! `MiniCPM5`'s `<function name="…"><param name="…">…</param></function>`.
//!
//! Ordinary text may have such XML, so only a complete call that fits its tool counts; everything else is
//! text.

use super::tagged::{self, Tags};
use super::{Dialect, Found, Opens, Step, View};

const SPACED: &str = "<function name=";
/// The form behind a server that strips the space.
const GLUED: &str = "<functionname=";
/// The form behind a server that shows the tokenizer's sign for a space.
const RAW: &str = "<functionĠname=";
const TAGS: Tags<'_> = Tags::new("<param name=", "</param>", false).with_ends(&["</function>"]);

pub(super) static DIALECT: Dialect = Dialect {
    name: "minicpm5",
    models: "MiniCPM5.",
    families: &["minicpm5"],
    grammar: "`<function name=\"NAME\">`, `<param name=\"KEY\">VALUE</param>` tags, `</function>`. A value may stand in \
              `<![CDATA[…]]>`. Without its end, or with a call that its tool does not accept, it is text.",
    example: "<function name=\"read\"><param name=\"path\">a.txt</param></function>",
    opens: Opens::Anywhere(&[SPACED, GLUED, RAW]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let Some(length) = body.find(['>', '\n']) else {
        return view.await_end_within(view.mark, 128);
    };
    let name = body[..length].trim().trim_matches(['"', '\'']);
    if length > 128 || view.tools.resolve(name).is_none() {
        return Step::Not(view.mark + length.min(128));
    }
    let open = match &view.text[..view.mark] {
        GLUED => "<paramname=",
        RAW => "<paramĠname=",
        _ => TAGS.open,
    };
    let tags = Tags { open, ..TAGS };
    match tagged::read_tagged(view, name, view.mark + length + 1, tags, &[]) {
        Step::Read(Found::Calls { calls, firm }, end) => {
            let closed = view.text[..end].ends_with("</function>");
            if closed { Step::ReadIfValid(calls, firm, end) } else { Step::Not(end) }
        }
        step => step,
    }
}
