//! `PLaMo` 3's tags: `<|plamo:begin_tool_name:plamo|>` and the like around a name and a JSON object.

use super::{Dialect, Found, MarkAt, Opens, Step, View, Wait, named_json};

const MARK: &str = "<|plamo:";
const NAME: &str = "<|plamo:begin_tool_name:plamo|>";
const NAME_END: &str = "<|plamo:end_tool_name:plamo|>";
const ARGUMENTS: &str = "<|plamo:begin_tool_arguments:plamo|>";
const ARGUMENTS_END: &str = "<|plamo:end_tool_arguments:plamo|>";
/// Tags that frame calls and the turn.
const FRAMES: [&str; 4] =
    ["begin_tool_requests:plamo|>", "end_tool_requests:plamo|>", "end_tool_request:plamo|>", "tag|>"];
const CALL: &str = "begin_tool_request:plamo|>";
/// The longest name.
const WINDOW: usize = 192;

pub(super) static DIALECT: Dialect = Dialect {
    name: "plamo",
    models: "PLaMo 3.",
    families: &["plamo3"],
    grammar: "`<|plamo:begin_tool_requests:plamo|>`, then per call `<|plamo:begin_tool_request:plamo|>`, the name between \
              `<|plamo:begin_tool_name:plamo|>` and `<|plamo:end_tool_name:plamo|>`, a JSON object between \
              `<|plamo:begin_tool_arguments:plamo|>` and `<|plamo:end_tool_arguments:plamo|>`, \
              `<|plamo:end_tool_request:plamo|>`; `<|plamo:end_tool_requests:plamo|>`.",
    example: "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>read\
              <|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>{\"path\": \"a.txt\"}\
              <|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
    opens: Opens::Anywhere(&[MARK]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    if let MarkAt::Here(length) = view.mark_at(view.mark, &FRAMES) {
        return Step::Read(Found::Skip, view.mark + length);
    }
    match view.mark_at(view.mark, &[CALL]) {
        MarkAt::Here(length) => read_body(view, view.mark + length),
        MarkAt::Perhaps => Step::More(Wait::Any),
        MarkAt::No if FRAMES.iter().any(|frame| frame.starts_with(view.body())) => {
            view.wait_or_reject(Wait::Any)
        }
        MarkAt::No => Step::Not(view.mark),
    }
}

fn read_body(view: &View<'_>, from: usize) -> Step {
    let name_from = match expect_mark(view, from, NAME) {
        Ok(end) => end,
        Err(step) => return step,
    };
    let text = &view.text[name_from..];
    let Some(length) = text[..text.floor_char_boundary(WINDOW)].find(NAME_END) else {
        return if text.len() > WINDOW { Step::Not(name_from + WINDOW) } else { cut_call(view, "") };
    };
    let name = text[..length].trim();
    match expect_mark(view, name_from + length + NAME_END.len(), ARGUMENTS) {
        Ok(end) => {
            let start = view.skip_space(end);
            match view.text.as_bytes().get(start) {
                None => cut_call(view, name),
                Some(b'{') => named_json::read_arguments(view, name, start, &[ARGUMENTS_END]),
                Some(_) => Step::Not(start),
            }
        }
        Err(step) => step,
    }
}

/// Returns the end of the mark that must follow at `from`, perhaps after space.
fn expect_mark(view: &View<'_>, from: usize, mark: &str) -> Result<usize, Step> {
    let start = view.skip_space(from);
    match view.mark_at(start, &[mark]) {
        MarkAt::Here(length) => Ok(start + length),
        MarkAt::Perhaps => Err(Step::More(Wait::Any)),
        MarkAt::No if mark.starts_with(&view.text[start..]) => Err(cut_call(view, "")),
        MarkAt::No => Err(Step::Not(start)),
    }
}

/// Handles the end of the text inside a call.
fn cut_call(view: &View<'_>, name: &str) -> Step {
    if view.cut { named_json::truncated_call(view, name) } else { view.wait_or_reject(Wait::Any) }
}
