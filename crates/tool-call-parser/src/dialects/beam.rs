//! Beam (Reflection): harmony's messages with a body of `<rfl:parameter …>` tags.

use super::{Dialect, Opens, Step, View, harmony};

pub(super) static DIALECT: Dialect = Dialect {
    name: "beam",
    models: "Beam (Reflection).",
    families: &["beam", "reflection"],
    grammar: "`<|start|>assistant to=NAME<|channel|>analysis <|constrain|>xml<|message|>`, then \
              `<rfl:parameter name=\"KEY\">` tags with the value on lines of its own, `</rfl:parameter>`, and `<|end|>` or \
              `<|call|>`. The first message lacks what the chat template wrote (`harmony_recipient`); the other channels are \
              harmony's.",
    example: "<|start|>assistant to=read<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"path\">\na.txt\n</rfl:parameter><|call|>",
    opens: Opens::Anywhere(&["<|start|>assistant to="]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    match harmony::read_header(view) {
        Ok((end, _)) if view.text[..end].contains("<|constrain|>xml") => harmony::read_message(view),
        Ok((end, _)) => Step::Not(end),
        Err(step @ (Step::More(_) | Step::Not(_))) => step,
        Err(Step::Read(..) | Step::ReadIfValid(..)) => Step::Not(view.text.len()),
    }
}
