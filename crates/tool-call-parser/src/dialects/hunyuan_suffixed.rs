//! Hunyuan's tags with the suffix that a checkpoint gives each of them: `<tool_call:opensource>NAME…`.

use super::argument_pairs::{self, Tags};
use super::{Dialect, Found, MarkAt, Opens, Step, View, Wait};

const OUTER: &str = "<tool_calls:";
const INNER: &str = "<tool_call:";
/// The beginnings of the tags that may end a call.
const ENDS: &[&str] = &["</tool_call:", INNER];
/// The longest suffix that is recognised, in bytes.
const SUFFIX: usize = 32;

pub(super) static DIALECT: Dialect = Dialect {
    name: "hunyuan_suffixed",
    models: "Hunyuan checkpoints whose tags have a suffix (Hy3, Hy4).",
    families: &["hunyuan", "hy3", "hyv3", "hy4", "hyv4"],
    grammar: "As `hunyuan` and `glm`, with one suffix in every tag: `<tool_calls:SUFFIX>`, then per call \
              `<tool_call:SUFFIX>`, the name, perhaps `<tool_sep:SUFFIX>`, pairs of `<arg_key:SUFFIX>…</arg_key:SUFFIX>` and \
              `<arg_value:SUFFIX>…</arg_value:SUFFIX>`, `</tool_call:SUFFIX>`; `</tool_calls:SUFFIX>`.",
    example: "<tool_calls:opensource><tool_call:opensource>read<tool_sep:opensource><arg_key:opensource>path</arg_key:opensource>\
              <arg_value:opensource>a.txt</arg_value:opensource></tool_call:opensource></tool_calls:opensource>",
    opens: Opens::Anywhere(&[OUTER, INNER]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let (suffix, after) = match read_suffix(view) {
        Ok(found) => found,
        Err(step) => return step,
    };
    let tags = Tags { kind: (String::new(), String::new()), ..Tags::with_affixes("", &format!(":{suffix}")) };
    let mut from = after;
    if view.text[..view.mark] == *OUTER {
        let start = view.skip_space(after);
        from = match view.mark_at(start, &[&tags.call]) {
            MarkAt::Here(length) => start + length,
            MarkAt::Perhaps => return Step::More(Wait::Any),
            MarkAt::No => return Step::Not(view.text.len().min(start + 1)),
        };
    }
    match argument_pairs::read_call(view, from, &tags, ENDS) {
        Step::Read(found @ Found::Calls { .. }, end) => {
            match view.find_closer(end, &[&format!("</tool_calls:{suffix}>")]) {
                Ok(end) => Step::Read(found, end),
                Err(step) => step,
            }
        }
        step => step,
    }
}

/// Returns the suffix after the mark, and the end of its tag.
fn read_suffix<'a>(view: &'a View<'_>) -> Result<(&'a str, usize), Step> {
    let body = view.body();
    let is_suffix = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let length = body.bytes().take(SUFFIX + 1).take_while(is_suffix).count();
    match body.as_bytes().get(length) {
        None if length <= SUFFIX => Err(view.wait_or_reject(Wait::Any)),
        Some(b'>') if (1..=SUFFIX).contains(&length) => Ok((&body[..length], view.mark + length + 1)),
        _ => Err(Step::Not(view.mark + length)),
    }
}
