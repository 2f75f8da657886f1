//! `<invoke name="…">` with `<parameter name="…">` tags: Anthropic's form, `MiniMax`'s, `DeepSeek`'s DSML,
//! and Step-3's.

use super::tagged::{self, Tags};
use super::{Dialect, Opens, Step, View, Wait, named_json};
use crate::calls::RawCall;

/// One family's tags.
struct Form {
    open: &'static str,
    tags: Tags<'static>,
}

const PLAIN: Form = Form {
    open: "<invoke name=",
    tags: Tags::new("<parameter name=", "</parameter>", false).with_ends(&["</invoke>"]),
};
const DSML: Form = Form {
    open: "<｜DSML｜invoke name=",
    tags: Tags::new("<｜DSML｜parameter name=", "</｜DSML｜parameter>", false)
        .with_ends(&["</｜DSML｜invoke>"]),
};
const STEP: Form = Form {
    open: "<steptml:invoke name=",
    tags: Tags::new("<steptml:parameter name=", "</steptml:parameter>", false)
        .with_ends(&["</steptml:invoke>"]),
};
/// `DeepSeek` V4.1: the space in each tag is part of it.
const SPACED: Form = Form {
    open: "<｜DSML｜ invoke name=",
    tags: Tags::new("<｜DSML｜ parameter name=", "</｜DSML｜ parameter>", false)
        .with_ends(&["</｜DSML｜ invoke>"]),
};
const GCML: Form = Form {
    open: "<｜GCML｜invoke name=",
    tags: Tags::new("<｜GCML｜parameter name=", "</｜GCML｜parameter>", false)
        .with_ends(&["</｜GCML｜invoke>"]),
};
/// The name as an attribute of the outer tag.
const TOOL_CALL: Form = Form {
    open: "<tool_call name=",
    tags: Tags::new("<parameter name=", "</parameter>", false).with_ends(&["</tool_call>"]),
};
const FUNCTION_CALL: Form = Form {
    open: "<function_call name=",
    tags: Tags::new("<parameter name=", "</parameter>", false).with_ends(&["</function_call>"]),
};
const ATEM_FORM: Form = Form {
    open: ATEM,
    tags: Tags::new("<atem:parameter name=", "</atem:parameter>", false).with_ends(&["</atem:invoke>"]),
};
const WRAPPERS: &[&str] = &[
    "<function_calls>",
    "<minimax:tool_call>",
    "<tool_call>",
    "<tool_calls>",
    "<tool_use>",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜function_calls>",
    "<｜DSML｜ calls>",
    "<｜GCML｜tool_calls>",
    "<dots_function_call>",
    "<｜tool_call_begin｜>",
];
/// The beginning of one call of Muse Glimmer.
pub(super) const ATEM: &str = "<atem:invoke name=";
/// The text that Step-3 writes between its token and the tag.
const STEP_TYPE: &str = "function<｜tool_sep｜>";
const CLOSERS: &[&str] = &[
    "</function_calls>",
    "</minimax:tool_call>",
    "</tool_call>",
    "</tool_calls>",
    "</tool_use>",
    "</｜DSML｜tool_calls>",
    "</｜DSML｜function_calls>",
    "</｜DSML｜ calls>",
    "</｜GCML｜tool_calls>",
    "</dots_function_call>",
    "<｜tool_call_end｜>",
];

pub(super) static DIALECT: Dialect = Dialect {
    name: "invoke",
    models: "MiniMax M2, DeepSeek V3.2 and V4 (DSML; V4.1 with a space in each tag), GigaChat 3.5 (GCML), dots, Step-3 (`<steptml:invoke …>` between `<｜tool_call_begin｜>` and \
             `<｜tool_call_end｜>`), models trained on Claude's transcripts.",
    families: &["minimaxm2", "deepseekv32", "deepseekv4", "step3", "gigachat35", "dots"],
    grammar: "An optional wrapper (`<minimax:tool_call>`, `<function_calls>`, `<｜DSML｜tool_calls>`, …), then \
              `<invoke name=\"NAME\">` with `<parameter name=\"KEY\">VALUE</parameter>` tags, `</invoke>`, and the \
              wrapper's end; or `<invoke name=\"NAME\"/>`; or `<tool_call name=\"NAME\">` with the same tags or a JSON object in it. DSML's `string=\"false\"` marks a JSON value. White space in a \
              value is the value's.",
    example: "<minimax:tool_call>\n<invoke name=\"read\">\n<parameter name=\"path\">a.txt</parameter>\n</invoke>\n</minimax:tool_call>",
    opens: Opens::Anywhere(&[
        "<invoke name=",
        "<tool_call name=",
        "<function_call name=",
        "<｜DSML｜invoke name=",
        "<steptml:invoke name=",
        "<function_calls>",
        "<minimax:tool_call>",
        "<tool_call>",
        "<tool_calls>",
        "<tool_use>",
        "<｜DSML｜tool_calls>",
        "<｜DSML｜function_calls>",
        "<｜DSML｜ invoke name=",
        "<｜DSML｜ calls>",
        "<｜GCML｜invoke name=",
        "<｜GCML｜tool_calls>",
        "<dots_function_call>",
        "<｜tool_call_begin｜>",
    ]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let wrapped = WRAPPERS.contains(&&view.text[..view.mark]);
    let mut start = if wrapped { view.skip_space(view.mark) } else { 0 };
    if wrapped && view.text[start..].starts_with(STEP_TYPE) {
        start = view.skip_space(start + STEP_TYPE.len());
    }
    let rest = &view.text[start..];
    for form in [PLAIN, DSML, SPACED, GCML, STEP, TOOL_CALL, FUNCTION_CALL] {
        if let Some(head) = rest.strip_prefix(form.open) {
            return read_invocation(view, head, form.tags, CLOSERS);
        }
        if wrapped && !view.eof && (form.open.starts_with(rest) || STEP_TYPE.starts_with(rest)) {
            return Step::More(Wait::Any);
        }
    }
    Step::Not(start + 1)
}

/// Reads a call from its name on, with which `head` begins. `closers`: the marks that may end the wrapper
/// after it.
pub(super) fn read_invocation(view: &View<'_>, head: &str, tags: Tags<'_>, closers: &[&str]) -> Step {
    let from = view.text.len() - head.len();
    let Some(length) = head.find(['>', '\n']) else {
        return named_json::unended_name(view, from, 128, head.trim_matches(['"', '\'']));
    };
    let name = head[..length].trim();
    let closes = name.ends_with('/') && head[length..].starts_with('>');
    let name = name.trim_end_matches('/').trim_end().trim_matches(['"', '\'']);
    if length > 128 || view.tools.resolve(name).is_none() {
        return Step::Not(from + length.min(128));
    }
    let body = from + length + 1;
    if closes {
        return match view.find_closer(body, closers) {
            Ok(end) => named_json::single_call(view, RawCall::from_fields(name, serde_json::Map::new()), end),
            Err(step) => step,
        };
    }
    let start = view.skip_space(body);
    if view.text[start..].starts_with('{') {
        return named_json::read_arguments(view, name, start, tags.ends);
    }
    tagged::read_tagged(view, name, body, tags, closers)
}

/// Reads `<atem:invoke name="NAME.NAME">` at `start`, the body that Muse Glimmer addresses to a tool.
pub(super) fn read_atem(view: &View<'_>, start: usize) -> Option<Step> {
    let rest = &view.text[start..];
    let head = rest.strip_prefix(ATEM_FORM.open)?;
    Some(read_invocation(view, head, ATEM_FORM.tags, CLOSERS))
}
