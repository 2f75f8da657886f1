//! Translates the tools of a Responses request to functions of the chat API.
//!
//! A custom tool takes free text: it becomes a function with one string, and its description states the
//! grammar (vLLM 0.32 answers 400 to grammars on tools). Tools that OpenAI's servers execute are left out.
//! Called by `request`.

use super::super::chat_body::{JsonText, function_json};
use super::super::free_text::{FREE_TEXT, FreeTextPatterns};
use super::super::ignored_fields::{
    IgnoredFields, missing_field, nested_object, optional_array, unsupported_field, wrong_type,
};
use super::names::{NamedTool, ToolKind, ToolNames};
use wire::{ApiError, ErrorCode, Object, array_elements, encode_string};

/// The function for a tool search that the client executes.
const TOOL_SEARCH: &str = "tool_search";

/// The declared tools.
#[derive(Debug, Default)]
pub(super) struct DeclaredTools {
    /// The client's tools by their names in the chat request.
    pub(super) names: ToolNames,
    /// Functions of the chat API: name and JSON.
    pub(super) functions: Vec<(String, String)>,
    /// The expressions that the texts of custom calls must match.
    pub(super) patterns: FreeTextPatterns,
    /// Descriptions of namespaces, for the system message.
    pub(super) namespaces: Vec<JsonText>,
    /// Types of the tools that were left out.
    pub(super) left_out: Vec<String>,
}

impl DeclaredTools {
    /// Adds an array of tools; `field` is its place.
    pub(super) fn add_tools(
        &mut self,
        json: &str,
        field: &str,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let tools = array_elements(json).ok_or_else(|| wrong_type(field, "an array of tools"))?;
        for (index, tool) in tools.into_iter().enumerate() {
            self.add_tool(tool, None, &format!("{field}[{index}]"), notes)?;
        }
        Ok(())
    }

    fn add_tool(
        &mut self,
        json: &str,
        namespace: Option<&str>,
        field: &str,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let tool = nested_object(json, field)?;
        let kind =
            tool.string("type").ok_or_else(|| missing_field(format!("{field}.type"), "name its type"))?;
        match kind.as_str() {
            "function" => self.add_function(&tool, namespace, field),
            "custom" => self.add_custom(&tool, namespace, field),
            "namespace" if namespace.is_none() => self.add_namespace(&tool, field, notes),
            "tool_search" if tool.is_string("execution", "client") => {
                self.add_tool_search(&tool);
                Ok(())
            }
            _ => {
                notes.add(format!("tools.{kind}"), "only OpenAI's servers execute tools of this type");
                self.left_out.push(kind);
                Ok(())
            }
        }
    }

    fn add_function(
        &mut self,
        tool: &Object<'_>,
        namespace: Option<&str>,
        field: &str,
    ) -> Result<(), ApiError> {
        let parameters = tool.get("parameters").unwrap_or(r#"{"type":"object","properties":{}}"#);
        let strict = tool.get("strict").filter(|strict| *strict == "true");
        let description = tool.get("description").unwrap_or("\"\"");
        self.declare_tool(ToolKind::Function, tool, namespace, field, |name| {
            function_json(name, description, parameters, strict)
        })
    }

    fn add_custom(
        &mut self,
        tool: &Object<'_>,
        namespace: Option<&str>,
        field: &str,
    ) -> Result<(), ApiError> {
        let place = format!("{field}.format");
        let format =
            tool.get("format").map(|format| nested_object(format, &place)).transpose()?.unwrap_or_default();
        let definition = format.string("definition");
        if definition.is_none() && format.is_string("type", "grammar") {
            return Err(missing_field(format!("{place}.definition"), "send the grammar"));
        }
        let description = free_text_description(tool, &format);
        let expression = definition.filter(|_| format.is_string("syntax", "regex"));
        let pattern = expression.as_deref().map_or_else(String::new, free_text_pattern);
        let mut declared = None;
        let parameters = format!(
            r#"{{"type":"object","properties":{{"{FREE_TEXT}":{{"type":"string"{pattern}}}}},"required":["{FREE_TEXT}"],"additionalProperties":false}}"#
        );
        self.declare_tool(ToolKind::Custom, tool, namespace, field, |name| {
            declared = Some(name.to_owned());
            function_json(name, &description.to_json(), &parameters, None)
        })?;
        if let Some((name, expression)) = declared.zip(expression) {
            self.patterns.add_pattern(&name, &expression);
        }
        Ok(())
    }

    fn add_tool_search(&mut self, tool: &Object<'_>) {
        let parameters = tool.get("parameters").unwrap_or(r#"{"type":"object","properties":{}}"#);
        let description = tool.get("description").unwrap_or("\"\"");
        let named = NamedTool { kind: ToolKind::ToolSearch, namespace: None, name: TOOL_SEARCH.to_owned() };
        if let Some(name) = self.names.declare(named) {
            self.functions.push((name.clone(), function_json(&name, description, parameters, None)));
        }
    }

    fn add_namespace(
        &mut self,
        tool: &Object<'_>,
        field: &str,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let name = required_name(tool, field)?;
        let tools = optional_array(tool, "tools", &format!("{field}.tools"))?;
        for (index, inner) in tools.into_iter().enumerate() {
            self.add_tool(inner, Some(&name), &format!("{field}.tools[{index}]"), notes)?;
        }
        let description = tool.get("description").and_then(JsonText::from_json).unwrap_or_default();
        let about = description.enclose(&format!("Tools named {name}__*: "), "");
        if !description.is_empty() && !self.namespaces.contains(&about) {
            self.namespaces.push(about);
        }
        Ok(())
    }

    /// Declares a tool. A second declaration is ignored: tools that were found earlier come again with each
    /// request.
    fn declare_tool(
        &mut self,
        kind: ToolKind,
        tool: &Object<'_>,
        namespace: Option<&str>,
        field: &str,
        function: impl FnOnce(&str) -> String,
    ) -> Result<(), ApiError> {
        let name = required_name(tool, field)?;
        let named = NamedTool { kind, namespace: namespace.map(str::to_owned), name };
        if let Some(name) = self.names.declare(named) {
            let json = function(&name);
            self.functions.push((name, json));
        }
        Ok(())
    }

    /// Translates `tool_choice` for the chat API. It drops the functions that the client does not allow.
    pub(super) fn translate_choice(&mut self, json: Option<&str>) -> Result<Option<String>, ApiError> {
        let Some(json) = json else { return Ok(None) };
        if json.starts_with('"') {
            return self.check_mode(json).map(Some);
        }
        let choice = nested_object(json, "tool_choice")?;
        match choice.string("type").as_deref() {
            Some("function" | "custom") => self.choose_named_tool(&choice).map(Some),
            Some("tool_search") if self.names.client_tool(TOOL_SEARCH).is_some() => {
                Ok(Some(choice_json(TOOL_SEARCH)))
            }
            Some("allowed_tools") => {
                self.keep_allowed(&choice)?;
                self.check_mode(choice.get("mode").unwrap_or("\"auto\"")).map(Some)
            }
            kind => Err(unsupported_field(
                "tool_choice",
                format!(
                    "`tool_choice` names the tool `{}`, which only OpenAI's servers execute: leave it out or choose a function",
                    kind.unwrap_or_default()
                ),
            )),
        }
    }

    fn check_mode(&self, json: &str) -> Result<String, ApiError> {
        if json == "\"required\"" && self.functions.is_empty() {
            let message = "`tool_choice` is `required`, but no declared tool can be called through respool";
            return Err(unsupported_field("tool_choice", message));
        }
        Ok(json.to_owned())
    }

    fn choose_named_tool(&self, choice: &Object<'_>) -> Result<String, ApiError> {
        let name = required_name(choice, "tool_choice")?;
        let namespace = choice.string("namespace");
        let name = self.names.chat_name(namespace.as_deref(), &name);
        if !self.functions.iter().any(|(declared, _)| *declared == name) {
            let message = format!("`tool_choice` names `{name}`, which `tools` does not declare");
            return Err(ApiError::bad_request(ErrorCode::InvalidValue, message).with_param("tool_choice"));
        }
        Ok(choice_json(&name))
    }

    fn keep_allowed(&mut self, choice: &Object<'_>) -> Result<(), ApiError> {
        let allowed = choice.get("tools").and_then(array_elements);
        let allowed = allowed.ok_or_else(|| wrong_type("tool_choice.tools", "an array of tools"))?;
        let names: Vec<String> = allowed
            .iter()
            .filter_map(|tool| {
                let tool = Object::parse(tool).ok()?;
                Some(self.names.chat_name(tool.string("namespace").as_deref(), &tool.string("name")?))
            })
            .collect();
        self.functions.retain(|(name, _)| names.contains(name));
        Ok(())
    }
}

/// Writes a `tool_choice` of the chat API.
fn choice_json(name: &str) -> String {
    format!(r#"{{"type":"function","function":{{"name":{}}}}}"#, encode_string(name))
}

fn required_name(object: &Object<'_>, field: &str) -> Result<String, ApiError> {
    let name = object.string("name").filter(|name| !name.is_empty());
    name.ok_or_else(|| missing_field(format!("{field}.name"), "give the tool a name"))
}

fn free_text_description(tool: &Object<'_>, format: &Object<'_>) -> JsonText {
    let description = tool.get("description").and_then(JsonText::from_json).unwrap_or_default();
    let how = format!("Write the whole text into the one field `{FREE_TEXT}`, as a JSON string.");
    let mut texts = vec![description, JsonText::from_plain(&how)];
    if let Some(definition) = format.get("definition").and_then(JsonText::from_json) {
        let syntax = format.string("syntax").unwrap_or_default();
        let head = match syntax.as_str() {
            "regex" => "The text must match this regular expression:\n",
            "lark" => "The text must follow this grammar in Lark's notation:\n",
            _ => "The text must follow this grammar:\n",
        };
        texts.push(definition.enclose(head, ""));
    }
    texts.retain(|text| !text.is_empty());
    JsonText::join_texts(&texts)
}

/// Puts a regular expression into the schema, so that servers can enforce it. respool checks the text as
/// well.
fn free_text_pattern(expression: &str) -> String {
    format!(r#","pattern":{}"#, encode_string(&format!("^(?:{expression})$")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(tools: &Value) -> Result<(DeclaredTools, Vec<crate::IgnoredField>), ApiError> {
        let (mut declared, mut notes) = (DeclaredTools::default(), IgnoredFields::default());
        declared.add_tools(&tools.to_string(), "tools", &mut notes)?;
        Ok((declared, notes.into_vec()))
    }

    fn functions(declared: &DeclaredTools) -> Vec<Value> {
        declared.functions.iter().map(|(_, json)| serde_json::from_str(json).unwrap()).collect()
    }

    #[test]
    fn free_text_is_one_string_with_a_grammar() {
        let (tools, _) = declared(&json!([
            {"type": "custom", "name": "apply_patch", "description": "Edits.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\"\n"}},
            {"type": "custom", "name": "when", "format": {"type": "grammar", "syntax": "regex", "definition": "\\d+"}},
        ]))
        .unwrap();
        let functions = functions(&tools);
        let description = functions[0]["function"]["description"].as_str().unwrap();
        assert!(description.starts_with("Edits.\n\nWrite"), "{description}");
        assert!(description.ends_with("Lark's notation:\nstart: \"x\"\n"), "{description}");
        assert_eq!(functions[0]["function"]["parameters"]["required"], json!(["input"]));
        assert_eq!(functions[1]["function"]["parameters"]["properties"]["input"]["pattern"], "^(?:\\d+)$");
        assert_eq!(tools.names.client_tool("when").unwrap().kind, ToolKind::Custom);
    }

    #[test]
    fn tools_of_openai_are_left_out_with_a_note() {
        let (mut tools, notes) = declared(&json!([
            {"type": "web_search"}, {"type": "web_search"}, {"type": "mcp", "server_label": "x"},
            {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
            {"type": "function", "name": "f"},
        ]))
        .unwrap();
        let fields: Vec<&str> = notes.iter().map(|note| note.field.as_str()).collect();
        assert_eq!(fields, ["tools.web_search", "tools.mcp"]);
        assert_eq!(tools.names.client_tool("tool_search").unwrap().kind, ToolKind::ToolSearch);
        let search = r#"{"type":"function","function":{"name":"tool_search"}}"#;
        assert_eq!(tools.translate_choice(Some(r#"{"type":"tool_search"}"#)), Ok(Some(search.to_owned())));
        let error = tools.translate_choice(Some(r#"{"type":"web_search"}"#)).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("tool_choice")));
    }

    #[test]
    fn a_choice_names_the_function_of_the_chat_request() {
        let tools = json!([{"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "f"}]},
            {"type": "function", "name": "g"}]);
        let choice = |choice: Value| {
            let (mut tools, _) = declared(&tools).unwrap();
            let chosen = tools.translate_choice(Some(&choice.to_string()));
            (chosen, tools.functions.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        let (chosen, _) = choice(json!({"type": "function", "namespace": "a", "name": "f"}));
        assert_eq!(chosen.unwrap().unwrap(), r#"{"type":"function","function":{"name":"a__f"}}"#);
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]});
        let (chosen, left) = choice(allowed);
        assert_eq!((chosen.unwrap().unwrap().as_str(), left), ("\"required\"", vec!["g".to_owned()]));
        assert!(choice(json!({"type": "function", "name": "f"})).0.unwrap_err().message.contains("`f`"));
    }

    #[test]
    fn a_nameless_tool_is_refused() {
        let error = declared(&json!([{"type": "function"}])).err().unwrap();
        assert_eq!(error.param.as_deref(), Some("tools[0].name"));
        let error = declared(&json!([{"name": "x"}])).err().unwrap();
        assert_eq!(error.param.as_deref(), Some("tools[0].type"));
        let error = declared(&json!([{"type": "namespace", "name": "n", "tools": {}}])).err().unwrap();
        assert_eq!(error.param.as_deref(), Some("tools[0].tools"));
        let custom =
            |format: Value| declared(&json!([{"type": "custom", "name": "c", "format": format}])).err();
        assert_eq!(custom(json!({"type": "text"})), None);
        let param = |format: Value| custom(format).unwrap().param.unwrap();
        assert_eq!(param(json!("text")), "tools[0].format");
        assert_eq!(param(json!({"type": "grammar", "syntax": "lark"})), "tools[0].format.definition");
    }
}
