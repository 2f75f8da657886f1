//! Mistral's `[TOOL_CALLS]`: an array of calls or, from tokenizer v11 on, a name with its arguments after
//! each mark.

use super::{Dialect, Found, Opens, Step, View, Wait, envelope, named_json};

/// The most junk between the mark and the array, and after it on the same line, in bytes.
const JUNK: usize = 64;
const CLOSERS: &[&str] = &["[/TOOL_CALLS]"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "mistral",
    models: "Mistral, Mixtral, Ministral, Devstral, Magistral.",
    families: &["mistral", "mixtral", "ministral", "devstral", "magistral", "codestral"],
    grammar: "`[TOOL_CALLS]`, then an array of JSON calls; or a name, optional `[CALL_ID]…` and `[ARGS]`, and a JSON \
              object, per mark. The mark alone at the start of the answer is dropped.",
    example: "[TOOL_CALLS]read{\"path\": \"a.txt\"}",
    opens: Opens::Anywhere(&["[TOOL_CALLS]"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let start = view.skip_space(view.mark);
    let rest = &view.text[start..];
    let Some(length) = rest.find(['[', '{', '\n']) else {
        return if view.eof || rest.len() > 2 * JUNK { skip_mark(view) } else { Step::More(Wait::Any) };
    };
    let name = rest[..length].trim();
    let at = start + length;
    if rest[length..].starts_with('\n') || length > 2 * JUNK {
        return skip_mark(view);
    }
    if view.tools.resolve(name).is_some() {
        return read_arguments(view, name, at);
    }
    match envelope::read_json(view, at, CLOSERS) {
        Step::Read(Found::Calls { calls, firm }, end) => match skip_trail(view, end) {
            Some(end) => Step::Read(Found::Calls { calls, firm }, end),
            None => Step::More(Wait::Any),
        },
        Step::Not(_) => skip_mark(view),
        step => step,
    }
}

fn read_arguments(view: &View<'_>, name: &str, at: usize) -> Step {
    let rest = &view.text[at..];
    let start = match rest.find('{') {
        Some(brace) if brace <= 2 * JUNK => at + brace,
        None if !view.eof && rest.len() <= 2 * JUNK => return Step::More(Wait::Any),
        _ => return skip_mark(view),
    };
    let between = rest[..start - at].trim();
    let marks = between.is_empty() || between.ends_with("[ARGS]") || between.starts_with("[CALL_ID]");
    if marks { named_json::read_arguments(view, name, start, &[]) } else { skip_mark(view) }
}

/// Handles the mark without a call: at the start of the answer it is a leaked token, elsewhere it is text.
fn skip_mark(view: &View<'_>) -> Step {
    if view.first { Step::Read(Found::Skip, view.mark) } else { Step::Not(view.mark) }
}

/// Skips a few words on the same line after the array, which are junk like those before it.
fn skip_trail(view: &View<'_>, end: usize) -> Option<usize> {
    let rest = &view.text[end..];
    match rest.find('\n') {
        _ if rest.starts_with('[') => Some(end),
        Some(length) if length <= JUNK => Some(end + length),
        Some(_) => Some(end),
        None if rest.len() > JUNK => Some(end),
        None => view.eof.then_some(view.text.len()),
    }
}
