//! The names under which models and clients know experts, their operations and their isolated functions.
//! Pure.

/// The longest function name that model servers accept.
const LONGEST_NAME: usize = 64;

/// Prefix of a function's name in the tool that calls it.
const CALL: &str = "run_function";
/// Prefix of an expert's model name.
pub const MODEL_PREFIX: &str = "expert/";

/// Returns true for the agent of an expert, and for those of its isolated functions (`expert/NAME/FUNCTION`).
pub fn is_agent_of(agent: &str, expert: &str) -> bool {
    let rest = agent.strip_prefix(MODEL_PREFIX).and_then(|agent| agent.strip_prefix(expert));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the name under which the model calls an operation.
pub fn function_name(tool: &str, operation: &str) -> String {
    let whole = format!("{tool}__{operation}");
    whole
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' })
        .take(LONGEST_NAME)
        .collect()
}

/// Returns the name of the tool that calls an isolated function.
pub fn call_name(function: &str) -> String {
    function_name(CALL, function)
}

/// Returns true for the name of a tool that calls an isolated function.
pub fn is_call(name: &str) -> bool {
    name.strip_prefix(CALL).is_some_and(|rest| rest.starts_with("__"))
}
