//! More JSON between marks: Cohere, Apertus, Phi and LM Studio. `envelope` reads them all.

use super::{Dialect, Opens, envelope};

pub(super) static COHERE: Dialect = Dialect {
    name: "cohere",
    models: "Command R7B, Command A.",
    families: &["commandr", "commanda", "c4ai", "cohere"],
    grammar: "`<|START_ACTION|>`, JSON calls with `tool_name` and `parameters`, `<|END_ACTION|>`.",
    example: "<|START_ACTION|>[{\"tool_name\": \"read\", \"parameters\": {\"path\": \"a.txt\"}}]<|END_ACTION|>",
    opens: Opens::Anywhere(&["<|START_ACTION|>"]),
    read: |view| envelope::read_json(view, view.mark, &["<|END_ACTION|>"]),
};

pub(super) static APERTUS: Dialect = Dialect {
    name: "apertus",
    models: "Apertus.",
    families: &["apertus"],
    grammar: "`<|tools_prefix|>`, an array of objects whose key is the tool's name, `<|tools_suffix|>`.",
    example: "<|tools_prefix|>[{\"read\": {\"path\": \"a.txt\"}}]<|tools_suffix|>",
    opens: Opens::Anywhere(&["<|tools_prefix|>"]),
    read: |view| envelope::read_json(view, view.mark, &["<|tools_suffix|>"]),
};

pub(super) static PHI: Dialect = Dialect {
    name: "phi",
    models: "Phi-4-mini.",
    families: &["phi4"],
    grammar: "`functools` at the start of a line, then an array of JSON calls.",
    example: "functools[{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}]",
    opens: Opens::Line(&["functools["]),
    read: |view| envelope::read_json(view, view.mark - 1, &["<|/tool_call|>"]),
};

pub(super) static LM_STUDIO: Dialect = Dialect {
    name: "tool_request",
    models: "Models that follow LM Studio's default prompt.",
    families: &[],
    grammar: "`[TOOL_REQUEST]`, one JSON call, `[END_TOOL_REQUEST]`.",
    example: "[TOOL_REQUEST]{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}[END_TOOL_REQUEST]",
    opens: Opens::Anywhere(&["[TOOL_REQUEST]"]),
    read: |view| envelope::read_json(view, view.mark, &["[END_TOOL_REQUEST]"]),
};
