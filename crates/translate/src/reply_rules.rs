//! Derives the rules for a reply from its request: the callable tools, the options of the engine, and the
//! limit.
//!
//! Pure. Called by `relay` once for each request.

use std::collections::HashSet;
use std::sync::Arc;

use super::hidden_tools::hidden_tools;
use super::interpret::ReplyRules;
use super::overflow::token_limit;
use tool_call_parser::{Options, PreferredDialects, Tools};
use wire::{ChatRequest, Message, ToolChoice, decode_string};

impl ReplyRules {
    /// Derives the rules from a request. `tools`: its declared tools; `prior`: the dialects that its model is
    /// likely to write.
    pub fn from_request(request: &ChatRequest<'_>, tools: Arc<Tools>, prior: PreferredDialects) -> Self {
        Self {
            tools: with_hidden_tools(request, tools),
            options: Options {
                calls_wanted: request.tool_choice() != ToolChoice::None,
                parallel: !request.object.is_false("parallel_tool_calls"),
                json_wanted: request.wants_json(),
                preferred_dialects: prior,
                begins_in_reasoning: prior.has("bare_think"),
                ..Options::for_whole_reply()
            },
            response_template: None,
            token_limit: token_limit(&request.object),
        }
    }
}

/// Returns the tools that a request declares.
pub fn declared_tools(request: &ChatRequest<'_>) -> Tools {
    let functions = request.functions.iter();
    Tools::from_parts(functions.filter_map(|tool| Some((decode_string(tool.name?)?, tool.parameters))))
}

/// Returns the ids of all calls in the conversation.
pub fn used_ids(request: &ChatRequest<'_>) -> HashSet<String> {
    request.messages.iter().flat_map(Message::call_ids).cloned().collect()
}

/// Adds the tools that are called through OpenClaw's `tool_call` to the declared ones.
fn with_hidden_tools(request: &ChatRequest<'_>, tools: Arc<Tools>) -> Arc<Tools> {
    let hidden = tools.get("tool_call").map(|_| hidden_tools(&request.messages)).unwrap_or_default();
    if hidden.is_empty() {
        return tools;
    }
    let mut tools = declared_tools(request);
    hidden.into_iter().for_each(|(name, schema)| tools.reveal(name, schema));
    Arc::new(tools)
}
