//! The dialects: each way in which models write a call into text has one file.
//!
//! `view` has the types of a dialect, `registry` the table of all dialects, `reference` the page in
//! `docs/dialects.md`.

mod argument_pairs;
mod arrow;
mod bare_json;
mod bare_name;
mod beam;
mod bracket;
mod cwm;
mod deepseek;
mod echo;
mod envelope;
#[cfg(test)]
mod families;
mod fenced;
mod framing;
mod functionary;
pub(crate) mod fuzzy;
mod gemma;
mod gigachat;
pub(crate) mod glm;
mod harmony;
mod harmony_text;
mod headed;
mod hunyuan;
mod hunyuan_suffixed;
mod inkling;
mod invoke;
mod iquest;
mod k2_horizon;
mod kimi;
mod kimi_k3;
mod llama;
mod marker;
mod mcp_tag;
mod minicpm5;
mod minimax_m3;
mod mistral;
mod named_json;
mod named_tag;
mod namespaced;
mod plamo;
mod pythonic;
mod qwen_xml;
mod react;
#[cfg(test)]
mod reference;
mod registry;
mod solar;
mod tagged;
mod think;
mod tool_tag;
mod tool_url;
mod view;
mod wrapped;
pub(crate) mod xml_arguments;

pub use framing::has_reasoning_end;
pub(crate) use framing::lane_of_beginning;
pub use registry::TABLE;
pub(crate) use registry::{holds_mark, is_own};
pub use view::Dialect;
pub(crate) use view::{BEHIND, Found, Lane, MarkAt, Opens, Step, TagForm, View, Wait};
