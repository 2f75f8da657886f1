//! The tools a request declared: names, and schemas that are parsed only when a call needs them.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// One declared tool.
#[derive(Debug)]
pub struct Tool {
    /// The name as declared.
    pub name: String,
    schema_text: Option<Box<RawValue>>,
    schema: OnceLock<Value>,
}

impl Tool {
    /// The JSON Schema of the arguments (`function.parameters`), `{}` when none was declared.
    pub fn schema(&self) -> &Value {
        self.schema.get_or_init(|| {
            let parsed = self.schema_text.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok());
            parsed.unwrap_or_else(|| Value::Object(serde_json::Map::default()))
        })
    }
}

/// The declared tools, in the order of the request.
#[derive(Debug, Default)]
pub struct Tools {
    list: Vec<Tool>,
    by_name: HashMap<String, usize>,
}

#[derive(Deserialize)]
struct Entry {
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    parameters: Option<Box<RawValue>>,
}

impl Tools {
    /// Reads the request's `tools` array (OpenAI's shape: `[{"type":"function","function":{name,parameters}}]`). Entries
    /// of another shape are passed over: the upstream judges them.
    pub fn from_json(array: &str) -> Self {
        let entries: Vec<Box<RawValue>> = serde_json::from_str(array).unwrap_or_default();
        let functions =
            entries.iter().filter_map(|raw| serde_json::from_str::<Entry>(raw.get()).ok()?.function);
        functions.map(|function| (function.name, function.parameters)).collect()
    }

    /// The tool of exactly this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.by_name.get(name).map(|&index| &self.list[index])
    }

    /// All tools, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.list.iter()
    }

    /// True when the request declared none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl FromIterator<(String, Option<Box<RawValue>>)> for Tools {
    fn from_iter<I: IntoIterator<Item = (String, Option<Box<RawValue>>)>>(tools: I) -> Self {
        let list: Vec<Tool> = tools
            .into_iter()
            .map(|(name, schema_text)| Tool { name, schema_text, schema: OnceLock::new() })
            .collect();
        let by_name = list.iter().enumerate().map(|(index, tool)| (tool.name.clone(), index)).collect();
        Self { list, by_name }
    }
}
