//! `IQuest`'s `<iquest_tool_call>` with GLM's pairs of keys and values.

use super::argument_pairs::{self, Tags};
use super::{Dialect, Opens, Step, View};

const CALL: &str = "<iquest_tool_call>";
const ENDS: &[&str] = &["</iquest_tool_call>", CALL];

pub(super) static DIALECT: Dialect = Dialect {
    name: "iquest",
    models: "IQuest Q1. (IQuest Coder: `qwen_xml`.)",
    families: &["iquestq1"],
    grammar: "`<iquest_tool_call>`, the name, pairs of `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>`, \
              `</iquest_tool_call>`.",
    example: "<iquest_tool_call>read<arg_key>path</arg_key><arg_value>a.txt</arg_value></iquest_tool_call>",
    opens: Opens::Anywhere(&[CALL]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let tags = Tags {
        call: CALL.to_owned(),
        end: ENDS[0].to_owned(),
        kind: (String::new(), String::new()),
        ..Tags::with_affixes("", "")
    };
    argument_pairs::read_call(view, view.mark, &tags, ENDS)
}
