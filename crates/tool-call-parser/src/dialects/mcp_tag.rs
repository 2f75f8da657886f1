//! `<use_mcp_tool>` with a server, a tool and JSON arguments: MiroThinker, and models prompted by Cline.

use super::{Dialect, Found, MarkAt, Opens, Step, View, Wait, named_json};
use crate::event::Dropped;

const END: &[&str] = &["</use_mcp_tool>"];
/// The longest name.
const NAME: usize = 256;

pub(super) static DIALECT: Dialect = Dialect {
    name: "mcp_tag",
    models: "MiroThinker, and models prompted by Cline.",
    families: &["mirothinker"],
    grammar: "`<use_mcp_tool>`, `<server_name>SERVER</server_name>`, `<tool_name>NAME</tool_name>`, `<arguments>`, a JSON \
              object, `</arguments>`, `</use_mcp_tool>`. The tool is the declared one that has both names, with `_`, `-`, \
              `.` or `/` between them and perhaps `mcp__` before them, else the one that has the tool's.",
    example: "<use_mcp_tool>\n<server_name>files</server_name>\n<tool_name>read</tool_name>\n<arguments>\n{\"path\": \"a.txt\"}\n</arguments>\n</use_mcp_tool>",
    opens: Opens::Anywhere(&["<use_mcp_tool>"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let named = read_element(view, view.mark, "<server_name>", "</server_name>").and_then(|server| {
        let tool = read_element(view, server.end, "<tool_name>", "</tool_name>")?;
        Ok((server.text, tool))
    });
    let (server, tool) = match named {
        Ok(named) => named,
        Err(step) => return step,
    };
    let start = view.skip_space(tool.end);
    let body = match view.mark_at(start, &["<arguments>"]) {
        MarkAt::Here(length) => view.skip_space(start + length),
        MarkAt::Perhaps => return Step::More(Wait::Any),
        MarkAt::No if view.cut && start == view.text.len() => {
            return named_json::truncated_call(view, tool.text);
        }
        MarkAt::No => return Step::Not(start),
    };
    let Some(name) = declared_name(view, server, tool.text) else {
        return view.broken_until(body, END, tool.text, Dropped::Undeclared);
    };
    match view.text.as_bytes().get(body) {
        None if view.cut => named_json::truncated_call(view, tool.text),
        None => view.wait_or_reject(Wait::Any),
        Some(b'{') => named_json::read_arguments(view, &name, body, &["</arguments>"]),
        Some(_) => Step::Read(Found::Broken(name, Dropped::Unreadable), body),
    }
}

/// One element's text, and the end of its closing tag.
struct Element<'a> {
    text: &'a str,
    end: usize,
}

fn read_element<'a>(
    view: &'a View<'_>,
    from: usize,
    open: &str,
    close: &'static str,
) -> Result<Element<'a>, Step> {
    let start = view.skip_space(from);
    let text = match view.mark_at(start, &[open]) {
        MarkAt::Here(length) => start + length,
        MarkAt::Perhaps => return Err(Step::More(Wait::Any)),
        MarkAt::No => return Err(Step::Not(start)),
    };
    let window = view.text.floor_char_boundary(text + NAME);
    match view.text[text..window].find(close) {
        Some(length) => {
            Ok(Element { text: view.text[text..text + length].trim(), end: text + length + close.len() })
        }
        None if view.text.len() > text + NAME => Err(Step::Not(window)),
        None => Err(view.wait_or_reject(Wait::Any)),
    }
}

/// Returns the name under which the request declares a server's tool.
fn declared_name(view: &View<'_>, server: &str, tool: &str) -> Option<String> {
    let joined = ["_", ".", "/"].map(|between| format!("{server}{between}{tool}"));
    let prefixed = format!("mcp__{server}__{tool}");
    let names = joined.into_iter().chain([prefixed, tool.to_owned()]);
    names.into_iter().find(|name| view.tools.resolve(name).is_some())
}
