//! Translates the tools of a Messages request to functions of the chat API.
//!
//! The model gets a deferred tool only after a `tool_reference` has named it, as in Anthropic's API. Tools
//! that Anthropic's servers execute, or whose schema only its models know, are left out. Called by `request`.

use std::collections::BTreeSet;

use super::super::chat_body::function_json;
use super::super::ignored_fields::{
    IgnoredFields, missing_field, nested_object, optional_bool, unsupported_field, wrong_type,
};
use wire::{ApiError, Object, array_elements, encode_string};

/// Functions of the chat API: name and JSON.
#[derive(Debug, Default)]
pub(super) struct DeclaredTools {
    pub(super) functions: Vec<(String, String)>,
}

/// A change of the tools in mid-conversation: the block `tool_addition` or `tool_removal`.
#[derive(Debug)]
pub(super) struct PlacedChange {
    change: ToolChange,
    /// The field of its tool.
    field: String,
}

#[derive(Debug)]
enum ToolChange {
    /// The model may call this declared tool.
    Add(String),
    /// The model may call the tool that this JSON declares.
    Define(String),
    /// The model may no longer call this declared tool.
    Remove(String),
}

impl PlacedChange {
    pub(super) fn from_block(block: &Object<'_>, field: &str) -> Result<Self, ApiError> {
        let field = format!("{field}.tool");
        let tool = block.get("tool").ok_or_else(|| missing_field(field.as_str(), "name the tool"))?;
        let tool = nested_object(tool, &field)?;
        let adds = block.is_string("type", "tool_addition");
        let change = match tool.string("type").as_deref() {
            Some("tool_definition") if adds => {
                let definition = tool.get("definition");
                let field = format!("{field}.definition");
                ToolChange::Define(
                    definition.ok_or_else(|| missing_field(field, "declare the tool"))?.to_owned(),
                )
            }
            Some("tool_reference") => {
                let name = tool.string("name");
                let name = name.ok_or_else(|| missing_field(format!("{field}.name"), "name the tool"))?;
                if adds { ToolChange::Add(name) } else { ToolChange::Remove(name) }
            }
            _ => {
                let known = if adds { "tool_reference or tool_definition" } else { "tool_reference" };
                let field = format!("{field}.type");
                return Err(unsupported_field(field.as_str(), format!("`{field}` must be {known}")));
            }
        };
        Ok(Self { change, field })
    }
}

/// A tool of the request.
struct DeclaredTool {
    name: String,
    /// The function; `None` for a tool that only Anthropic's servers or models know.
    function: Option<String>,
    /// True when the model may call it.
    is_available: bool,
}

impl DeclaredTool {
    fn from_json(json: &str, field: &str, notes: &mut IgnoredFields) -> Result<Self, ApiError> {
        let tool = nested_object(json, field)?;
        let name = tool.string("name").filter(|name| !name.is_empty());
        let kind = tool.string("type").unwrap_or_else(|| "custom".to_owned());
        let is_deferred = optional_bool(&tool, "defer_loading", &format!("{field}.defer_loading"))?;
        let is_available = is_deferred != Some(true);
        let Some(schema) = tool.get("input_schema").filter(|_| kind == "custom") else {
            if kind == "custom" {
                return Err(missing_field(format!("{field}.input_schema"), "describe the tool's input"));
            }
            notes.add(format!("tools.{kind}"), "only Anthropic's servers or models know this tool");
            return Ok(Self { name: name.unwrap_or_default(), function: None, is_available });
        };
        let name = name.ok_or_else(|| missing_field(format!("{field}.name"), "give the tool a name"))?;
        let strict = tool.get("strict").filter(|strict| *strict == "true");
        let description = tool.get("description").unwrap_or("\"\"");
        let function = Some(function_json(&name, description, schema, strict));
        Ok(Self { name, function, is_available })
    }
}

impl DeclaredTools {
    /// Reads the declared tools. `referenced`: the deferred tools that the conversation has found. `changes`:
    /// its changes of tools.
    pub(super) fn from_json(
        json: &str,
        referenced: &BTreeSet<String>,
        changes: &[PlacedChange],
        notes: &mut IgnoredFields,
    ) -> Result<Self, ApiError> {
        let tools = array_elements(json).ok_or_else(|| wrong_type("tools", "an array of tools"))?;
        // A search for deferred tools is impossible here, so the model gets them all.
        let search_is_hosted = json.contains("\"tool_search_tool_");
        let mut declared = Vec::with_capacity(tools.len());
        for (index, tool) in tools.into_iter().enumerate() {
            let mut tool = DeclaredTool::from_json(tool, &format!("tools[{index}]"), notes)?;
            tool.is_available |= search_is_hosted || referenced.contains(&tool.name);
            declared.push(tool);
        }
        for change in changes {
            apply_change(change, &mut declared, notes)?;
        }
        let available = declared.into_iter().filter(|tool| tool.is_available);
        Ok(Self { functions: available.filter_map(|tool| Some((tool.name, tool.function?))).collect() })
    }

    /// Translates `tool_choice` for the chat API; the flag asks for only one call at a time.
    pub(super) fn translate_choice(&self, json: Option<&str>) -> Result<(Option<String>, bool), ApiError> {
        let Some(json) = json else { return Ok((None, false)) };
        let choice = nested_object(json, "tool_choice")?;
        let single = "disable_parallel_tool_use";
        let single = optional_bool(&choice, single, &format!("tool_choice.{single}"))?.unwrap_or_default();
        let chosen = match choice.string("type").as_deref() {
            Some("auto") => "\"auto\"".to_owned(),
            Some("none") => "\"none\"".to_owned(),
            Some("any") if !self.functions.is_empty() => "\"required\"".to_owned(),
            Some("any") => {
                let message = "`tool_choice` is `any`, but no declared tool can be called through respool";
                return Err(unsupported_field("tool_choice", message));
            }
            Some("tool") => self.choose_named_tool(&choice)?,
            _ => return Err(wrong_type("tool_choice.type", "auto, any, tool or none")),
        };
        Ok((Some(chosen), single))
    }

    fn choose_named_tool(&self, choice: &Object<'_>) -> Result<String, ApiError> {
        let name = choice.string("name").ok_or_else(|| missing_field("tool_choice.name", "name the tool"))?;
        if !self.functions.iter().any(|(declared, _)| *declared == name) {
            let message = format!(
                "`tool_choice` names `{name}`, which is not a declared tool that can be called through respool"
            );
            return Err(unsupported_field("tool_choice", message));
        }
        Ok(format!(r#"{{"type":"function","function":{{"name":{}}}}}"#, encode_string(&name)))
    }
}

fn apply_change(
    placed: &PlacedChange,
    tools: &mut Vec<DeclaredTool>,
    notes: &mut IgnoredFields,
) -> Result<(), ApiError> {
    let field = &placed.field;
    let (name, is_available) = match &placed.change {
        ToolChange::Add(name) => (name, true),
        ToolChange::Remove(name) => (name, false),
        ToolChange::Define(json) => {
            let tool = DeclaredTool::from_json(json, &format!("{field}.definition"), notes)?;
            tools.retain(|declared| declared.name != tool.name);
            tools.push(DeclaredTool { is_available: true, ..tool });
            return Ok(());
        }
    };
    let Some(tool) = tools.iter_mut().find(|tool| tool.name == *name) else {
        let message = format!("`{field}.name` is `{name}`, which `tools` does not declare");
        return Err(unsupported_field(format!("{field}.name"), message));
    };
    tool.is_available = is_available;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(tools: &Value, referenced: &[&str]) -> Result<(DeclaredTools, Vec<String>), ApiError> {
        let mut notes = IgnoredFields::default();
        let referenced = referenced.iter().map(|name| (*name).to_owned()).collect();
        let tools = DeclaredTools::from_json(&tools.to_string(), &referenced, &[], &mut notes)?;
        Ok((tools, notes.into_vec().into_iter().map(|note| note.field).collect()))
    }

    fn names(tools: &DeclaredTools) -> Vec<&str> {
        tools.functions.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn deferred_tools_wait_for_their_reference() {
        let tool = |name: &str, deferred: bool| json!({"name": name, "input_schema": {"type": "object"}, "defer_loading": deferred});
        let mut tools =
            json!([tool("Read", false), tool("WebFetch", true), tool("DeferredToolPlaceholder", true)]);
        assert_eq!(names(&read(&tools, &[]).unwrap().0), ["Read"]);
        assert_eq!(names(&read(&tools, &["WebFetch"]).unwrap().0), ["Read", "WebFetch"]);
        tools
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "tool_search_tool_regex_20251119", "name": "tool_search"}));
        let (all, notes) = read(&tools, &[]).unwrap();
        assert_eq!((names(&all).len(), notes), (3, vec!["tools.tool_search_tool_regex_20251119".to_owned()]));
    }

    #[test]
    fn choices() {
        let (tools, _) = read(&json!([{"name": "f", "description": "d", "input_schema": {}, "cache_control": {"type": "ephemeral"}}]), &[]).unwrap();
        assert_eq!(
            tools.functions[0].1,
            r#"{"type":"function","function":{"name":"f","description":"d","parameters":{}}}"#
        );
        for (choice, expected) in [
            (r#"{"type":"auto","disable_parallel_tool_use":true}"#, (Some("\"auto\"".to_owned()), true)),
            (r#"{"type":"any"}"#, (Some("\"required\"".to_owned()), false)),
            (r#"{"type":"none"}"#, (Some("\"none\"".to_owned()), false)),
            (
                r#"{"type":"tool","name":"f"}"#,
                (Some(r#"{"type":"function","function":{"name":"f"}}"#.to_owned()), false),
            ),
        ] {
            assert_eq!(tools.translate_choice(Some(choice)), Ok(expected));
        }
        for (choice, param) in [
            (r#"{"type":"tool","name":"g"}"#, "tool_choice"),
            (r#"{"type":"tool"}"#, "tool_choice.name"),
            (r#"{"type":"maybe"}"#, "tool_choice.type"),
            (r#""auto""#, "tool_choice"),
        ] {
            assert_eq!(tools.translate_choice(Some(choice)).unwrap_err().param.as_deref(), Some(param));
        }
        assert_eq!(
            DeclaredTools::default().translate_choice(Some(r#"{"type":"any"}"#)).unwrap_err().status,
            400
        );
    }

    #[test]
    fn tools_that_cannot_be_declared() {
        assert_eq!(
            read(&json!([{"name": "f"}]), &[]).unwrap_err().param.as_deref(),
            Some("tools[0].input_schema")
        );
        assert_eq!(
            read(&json!([{"input_schema": {}}]), &[]).unwrap_err().param.as_deref(),
            Some("tools[0].name")
        );
        let (tools, notes) =
            read(&json!([{"type": "web_search_20250305", "name": "web_search"}]), &[]).unwrap();
        assert_eq!((tools.functions.len(), notes), (0, vec!["tools.web_search_20250305".to_owned()]));
    }
}
