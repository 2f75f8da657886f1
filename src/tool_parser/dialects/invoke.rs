//! `<invoke name="…">` with `<parameter name="…">` tags: Anthropic's form, `MiniMax`'s, and `DeepSeek`'s DSML.

use super::tagged::{self, Tags};
use super::{Dialect, Opens, Step, View, Wait, named_json};

const PLAIN: Tags = Tags { open: "<parameter name=", close: "</parameter>", ends: &["</invoke>"] };
const DSML: Tags =
    Tags {
        open: "<｜DSML｜parameter name=", close: "</｜DSML｜parameter>", ends: &["</｜DSML｜invoke>"]
    };
const WRAPPERS: &[&str] = &[
    "<function_calls>",
    "<minimax:tool_call>",
    "<tool_call>",
    "<tool_calls>",
    "<tool_use>",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜function_calls>",
];
const CLOSERS: &[&str] = &[
    "</function_calls>",
    "</minimax:tool_call>",
    "</tool_call>",
    "</tool_calls>",
    "</tool_use>",
    "</｜DSML｜tool_calls>",
    "</｜DSML｜function_calls>",
];

pub(super) static DIALECT: Dialect = Dialect {
    name: "invoke",
    models: "MiniMax M2, DeepSeek V3.2 and V4 (DSML), models trained on Claude's transcripts.",
    grammar: "An optional wrapper (`<minimax:tool_call>`, `<function_calls>`, `<｜DSML｜tool_calls>`, …), then \
              `<invoke name=\"NAME\">` with `<parameter name=\"KEY\">VALUE</parameter>` tags, `</invoke>`, and the \
              wrapper's end. DSML's `string=\"false\"` marks a JSON value.",
    example: "<minimax:tool_call>\n<invoke name=\"read\">\n<parameter name=\"path\">a.txt</parameter>\n</invoke>\n</minimax:tool_call>",
    opens: Opens::Anywhere(&[
        "<invoke name=",
        "<｜DSML｜invoke name=",
        "<function_calls>",
        "<minimax:tool_call>",
        "<tool_call>",
        "<tool_calls>",
        "<tool_use>",
        "<｜DSML｜tool_calls>",
        "<｜DSML｜function_calls>",
    ]),
    read,
};

fn read(view: &View<'_>) -> Step {
    let wrapped = WRAPPERS.contains(&&view.text[..view.mark]);
    let start = if wrapped { view.skip_space(view.mark) } else { 0 };
    let rest = &view.text[start..];
    for (open, tags) in [("<invoke name=", PLAIN), ("<｜DSML｜invoke name=", DSML)] {
        if let Some(head) = rest.strip_prefix(open) {
            return invocation(view, head, tags);
        }
        if wrapped && !view.eof && open.starts_with(rest) {
            return Step::More(Wait::Any);
        }
    }
    Step::Not(start + 1)
}

fn invocation(view: &View<'_>, head: &str, tags: Tags) -> Step {
    let from = view.text.len() - head.len();
    let Some(length) = head.find(['>', '\n']) else {
        return match head.len() {
            length if length > 128 => Step::Not(from + 128),
            _ if view.cut => named_json::truncated(view, head.trim_matches(['"', '\''])),
            _ => view.unfinished(Wait::Any),
        };
    };
    let name = head[..length].trim().trim_matches(['"', '\'']);
    if length > 128 || view.tools.resolve(name).is_none() {
        return Step::Not(from + length.min(128));
    }
    let body = from + length + 1;
    let start = view.skip_space(body);
    if view.text[start..].starts_with('{') {
        return named_json::read(view, name, start, tags.ends);
    }
    tagged::read(view, name, body, tags, CLOSERS)
}
