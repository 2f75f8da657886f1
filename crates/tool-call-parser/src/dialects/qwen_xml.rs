//! Qwen3-Coder's `<function=name>` with `<parameter=key>` tags, and Llama's
//! `<function=name>{json}</function>`.

use super::tagged::{self, Tags};
use super::{Dialect, Opens, Step, View, Wait, named_json};

const TAGS: Tags<'_> = Tags::new("<parameter=", "</parameter>", true).with_ends(&[
    "</function>",
    "</tool_call>",
    "</seed:tool_call>",
]);
/// Seed-OSS writes values on the line of their tags.
const SEED: &str = "<seed:tool_call>";
const WRAPPERS: [&str; 2] = ["<tool_call>", SEED];
const CLOSERS: &[&str] = &["</tool_call>", "</seed:tool_call>"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "qwen_xml",
    models: "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5 and 5, Nanbeige, IQuest Coder, BerryLM, Seed-OSS (`<seed:tool_call>`); with JSON inside: Llama 3.1's custom functions, Functionary.",
    families: &[
        "qwen3coder",
        "qwen35",
        "qwen36",
        "nemotron3",
        "step35",
        "stepfun",
        "seedoss",
        "mimo",
        "step5",
        "nanbeige",
    ],
    grammar: "`<tool_call>` (may be missing), `<function=NAME>`, then `<parameter=KEY>VALUE</parameter>` tags or one JSON \
              object, `</function>`, `</tool_call>`. A value on lines of its own loses one line break at each end, but for Seed-OSS.",
    example: "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>",
    opens: Opens::Anywhere(&["<tool_call>", "<seed:tool_call>", "<function="]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let wrapped = WRAPPERS.contains(&&view.text[..view.mark]);
    let start = if wrapped { view.skip_space(view.mark) } else { 0 };
    let rest = &view.text[start..];
    if !rest.starts_with("<function=") {
        let partial = "<function=".starts_with(rest);
        return if partial { view.wait_or_reject(Wait::Any) } else { Step::Not(start + 1) };
    }
    let head = &rest["<function=".len()..];
    let Some(length) = head.find(['>', '\n', '<']) else {
        return match head.len() {
            length if length > 128 => Step::Not(start + 10 + 128),
            _ if view.cut && wrapped => named_json::truncated_call(view, head),
            _ => view.wait_or_reject(Wait::Any),
        };
    };
    let name = head[..length].trim().trim_matches(['"', '\'']);
    if length > 128 || view.tools.resolve(name).is_none() {
        return Step::Not(start + 10 + length.min(128));
    }
    let closed = usize::from(head[length..].starts_with('>'));
    read_body(view, name, start + "<function=".len() + length + closed)
}

fn read_body(view: &View<'_>, name: &str, from: usize) -> Step {
    let start = view.skip_space(from);
    match view.text.as_bytes().get(start) {
        None if view.cut => named_json::truncated_call(view, name),
        None if !view.eof => Step::More(Wait::Any),
        Some(b'{') => named_json::read_arguments(
            view,
            name,
            start,
            &["</function>\n</tool_call>", "</function></tool_call>", "</function>"],
        ),
        Some(b'<') | None => {
            let own_lines = !view.text.starts_with(SEED);
            tagged::read_tagged(view, name, start, Tags { own_lines, ..TAGS }, CLOSERS)
        }
        Some(_) => Step::Not(start),
    }
}
