//! The tools of a request: their names, their schemas, which are parsed only when a call needs them, and the
//! tool that a written name means. Also the tools behind OpenClaw's Tool Search, which leave through its
//! `tool_call`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The tool through which OpenClaw's Tool Search runs hidden tools.
const INDIRECT: &str = "tool_call";
/// The most bytes of a name that every server takes.
const PORTABLE: usize = 64;
/// Namespaces that models put before a name.
const NAMESPACES: [&str; 8] =
    ["functions.", "function.", "tools.", "tool.", "functions:", "functions/", "tools:", "default_api."];
/// Words that leak from harmony headers and are not part of a name.
const HEADER_WORDS: [&str; 8] =
    ["assistant", "commentary", "analysis", "final", "json", "code", "user", "tool"];

/// One declared tool.
#[derive(Debug)]
pub struct Tool {
    /// The name as declared.
    pub name: String,
    schema_text: Option<Box<str>>,
    schema: OnceLock<Value>,
}

impl Tool {
    fn new(name: String, schema_text: Option<Box<str>>) -> Self {
        Self { name, schema_text, schema: OnceLock::new() }
    }

    /// Returns true when the schema declares properties.
    pub(crate) fn takes_arguments(&self) -> bool {
        super::schema::properties(self.schema()).is_some_and(|declared| !declared.is_empty())
    }

    /// Returns the JSON Schema of the arguments (`function.parameters`), `{}` when none was declared.
    pub fn schema(&self) -> &Value {
        self.schema.get_or_init(|| {
            let parsed = self.schema_text.as_deref().and_then(|text| serde_json::from_str(text).ok());
            parsed.unwrap_or_else(|| Value::Object(serde_json::Map::default()))
        })
    }
}

/// The tool that a written name means.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The tool whose arguments these are.
    pub tool: &'a Tool,
    /// Whether the tool is hidden and the call must leave as `tool_call{id, args}`.
    pub hidden: bool,
    /// Whether the name had to be repaired.
    pub repaired: bool,
}

/// The declared tools, in the order of the request, and the hidden ones that the conversation revealed.
#[derive(Debug, Default)]
pub struct Tools {
    declared: Names,
    hidden: Names,
}

#[derive(Debug, Default)]
struct Names {
    list: Vec<Tool>,
    exact: HashMap<String, usize>,
    /// Names without case, `-` and `_`; `None` when two tools share one.
    plain: HashMap<String, Option<usize>>,
    /// The names that servers may know instead ([`portable_name`]), where they differ.
    portable: HashMap<String, usize>,
    /// The length of the shortest name, by which most other words are refused quickly.
    shortest: usize,
    /// The first bytes of names.
    firsts: Bytes,
}

/// A set of bytes.
#[derive(Debug, Default)]
struct Bytes([u64; 4]);

impl Bytes {
    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] & (1 << (byte % 64)) != 0
    }
}

/// The error of [`Tools::from_json`]: the text is not a JSON array, or a function in it has another shape.
#[derive(Debug)]
pub struct ToolsError {
    /// The place of the function in the array.
    index: Option<usize>,
    cause: serde_json::Error,
}

impl fmt::Display for ToolsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, cause } = self;
        match index {
            None => {
                write!(out, "the tools are not a JSON array: {cause}; pass the request's `tools` as they are")
            }
            Some(index) => write!(
                out,
                "tools[{index}] is not {{\"type\":\"function\",\"function\":{{\"name\":…}}}}: {cause}; for the tools \
                 of another API use `Tools::from_parts`"
            ),
        }
    }
}

impl Error for ToolsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: String,
}

#[derive(Deserialize)]
struct Entry {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    parameters: Option<Box<RawValue>>,
}

impl Tools {
    /// Reads the request's `tools` array (OpenAI's shape:
    /// `[{"type":"function","function":{name,parameters}}]`).
    ///
    /// Skips entries of another `type`: a request may have tools that the server runs itself.
    ///
    /// # Errors
    /// When the text is not a JSON array, or a function in it has another shape.
    pub fn from_json(array: &str) -> Result<Self, ToolsError> {
        let entries: Vec<Box<RawValue>> =
            serde_json::from_str(array).map_err(|cause| ToolsError { index: None, cause })?;
        let is_function =
            |raw: &str| serde_json::from_str::<Kind>(raw).map_or(true, |kind| kind.name == "function");
        let functions = entries.iter().enumerate().filter(|(_, raw)| is_function(raw.get()));
        let read = functions.map(|(index, raw)| match serde_json::from_str::<Entry>(raw.get()) {
            Ok(Entry { function }) => Ok((function.name, function.parameters)),
            Err(cause) => Err(ToolsError { index: Some(index), cause }),
        });
        read.collect()
    }

    /// Makes the tools from names and schema texts (`function.parameters`) that were already parsed.
    pub fn from_parts<'a>(tools: impl IntoIterator<Item = (String, Option<&'a str>)>) -> Self {
        let mut declared = Names::default();
        tools.into_iter().for_each(|(name, parameters)| declared.add(name, parameters.map(Into::into)));
        Self { declared, hidden: Names::default() }
    }

    /// Adds a tool known only from a `tool_search` or `tool_describe` result of this conversation, with its
    /// schema when the result has it. Calls to it leave as `tool_call{id, args}`, if the request declared
    /// `tool_call`.
    pub fn reveal(&mut self, name: String, parameters: Option<Box<RawValue>>) {
        if self.get(&name).is_none() {
            self.hidden.add(name, parameters.map(Into::into));
        }
    }

    /// Finds the tool with exactly this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        if self.declared.is_too_short(name) {
            return None;
        }
        self.declared.exact.get(name).map(|&index| &self.declared.list[index])
    }

    /// Returns all declared tools, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.declared.list.iter()
    }

    /// Returns the names of all declared tools, in the order of the request.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|tool| tool.name.as_str())
    }

    /// Returns true when the request declared no tools.
    pub fn is_empty(&self) -> bool {
        self.declared.list.is_empty()
    }

    /// Finds the tool that a written name means: exactly, or without namespaces, leaked tokens, and
    /// differences of case, `-` and `_`. With two candidates the result is `None`.
    pub fn resolve(&self, written: &str) -> Option<Resolved<'_>> {
        if let Some(tool) = self.get(written) {
            return Some(Resolved { tool, hidden: false, repaired: false });
        }
        if let Some(&index) = self.declared.portable.get(written) {
            return Some(Resolved { tool: &self.declared.list[index], hidden: false, repaired: false });
        }
        if let Some(tool) = find_tool(&self.declared, written) {
            return Some(Resolved { tool, hidden: false, repaired: true });
        }
        if self.hidden.list.is_empty() {
            return None;
        }
        self.get(INDIRECT)?;
        find_tool(&self.hidden, written).map(|tool| Resolved { tool, hidden: true, repaired: true })
    }

    /// Returns true when some callable name begins with this text.
    pub(crate) fn begins_name(&self, text: &str) -> bool {
        let lists = [&self.declared.list, &self.hidden.list];
        lists.into_iter().flatten().any(|tool| tool.name.starts_with(text))
    }

    /// Returns true when a callable name, or `functions.` before one, may begin with this byte.
    pub(crate) fn may_begin_with(&self, byte: u8) -> bool {
        byte == b'f' || self.declared.firsts.has(byte) || self.hidden.firsts.has(byte)
    }

    /// Returns the only tool, if there is just one.
    pub(crate) fn only_tool(&self) -> Option<&Tool> {
        self.declared.list.first().filter(|_| self.declared.list.len() == 1)
    }
}

impl Names {
    fn add(&mut self, name: String, parameters: Option<Box<str>>) {
        let index = self.list.len();
        if let Cow::Owned(portable) = portable_name(&name) {
            self.portable.insert(portable, index);
        }
        let length = normalise_name(&name).len().min(name.len());
        self.shortest = if index == 0 { length } else { self.shortest.min(length) };
        let alike = self.plain.entry(normalise_name(&name)).or_insert(Some(index));
        if *alike != Some(index)
            && self
                .list
                .iter()
                .any(|tool| tool.name != name && normalise_name(&tool.name) == normalise_name(&name))
        {
            *alike = None;
        }
        name.bytes().next().into_iter().for_each(|first| self.firsts.add(first));
        self.exact.insert(name.clone(), index);
        self.list.push(Tool::new(name, parameters));
    }

    /// Returns true for a text that is too short for any name. A text with letters outside ASCII may be
    /// shorter than the name that it means.
    fn is_too_short(&self, name: &str) -> bool {
        name.len() < self.shortest && name.is_ascii()
    }

    fn find_alike(&self, name: &str) -> Option<usize> {
        if self.is_too_short(name) {
            return None;
        }
        self.exact.get(name).copied().or_else(|| self.plain.get(&normalise_name(name)).copied().flatten())
    }
}

impl FromIterator<(String, Option<Box<RawValue>>)> for Tools {
    fn from_iter<I: IntoIterator<Item = (String, Option<Box<RawValue>>)>>(tools: I) -> Self {
        let mut declared = Names::default();
        tools.into_iter().for_each(|(name, parameters)| declared.add(name, parameters.map(Into::into)));
        Self { declared, hidden: Names::default() }
    }
}

/// Returns the name under which every server takes a tool: at most 64 letters, digits, `-` and `_`. A name
/// of another kind gets an end that depends on it alone, so that two tools never share one.
///
/// [`Tools::resolve`] takes both names.
pub fn portable_name(name: &str) -> Cow<'_, str> {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    const END: usize = 9;
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    if name.is_empty() || name.len() <= PORTABLE && name.chars().all(is_plain) {
        return Cow::Borrowed(name);
    }
    // FNV-1a, 64 bits folded to 32.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let folded = hash ^ (hash >> 32);
    let start = name.chars().map(|char| if is_plain(char) { char } else { '_' }).take(PORTABLE - END);
    let end = (0..END - 1).map(|place| DIGITS[usize::try_from((folded >> (4 * place)) & 15).unwrap_or(0)]);
    Cow::Owned(start.chain(['_']).chain(end).collect())
}

/// Normalises a name: removes the differences that models introduce.
pub(crate) fn normalise_name(name: &str) -> String {
    name.chars().filter(|char| !matches!(char, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Returns true for a name that consists of header words and tokens, or that is a builtin of the model's
/// training (`python`, `browser.search`, `container.exec`), which no client can run.
pub(crate) fn is_noise(written: &str) -> bool {
    let builtin = ["python", "browser.", "container."].iter().any(|name| written.starts_with(name));
    builtin || name_segments(written).all(|segment| segment.is_empty() || HEADER_WORDS.contains(&segment))
}

/// Finds the one tool that the name, or a part of it between leaked tokens, means.
fn find_tool<'a>(names: &'a Names, written: &str) -> Option<&'a Tool> {
    if written.len() > 512 || names.is_too_short(written) {
        return None;
    }
    let mut found = name_segments(written).filter_map(|segment| find_segment(names, segment));
    let first = found.next()?;
    found.all(|other| other == first).then(|| &names.list[first])
}

/// Splits a polluted name into its parts: `assistant<|channel|>bash<|channel|>commentary`, `read"
/// parameter=…`, `x</arg_value>`.
fn name_segments(written: &str) -> impl Iterator<Item = &str> {
    let tokens = written.split("<|").enumerate().map(|(index, part)| match (index, part.split_once("|>")) {
        (0, _) | (_, None) => part,
        (_, Some((_, rest))) => rest,
    });
    tokens.map(|part| {
        let part = part.trim().trim_matches(['"', '\'', '`', '*']);
        let end = part
            .find(|char: char| char.is_whitespace() || "\"'<>({[=,;".contains(char))
            .unwrap_or(part.len());
        &part[..end]
    })
}

fn find_segment(names: &Names, segment: &str) -> Option<usize> {
    if segment.is_empty() {
        return None;
    }
    let bare = without_namespace(without_index(segment));
    let bare = bare.split_once('.').filter(|(space, name)| space == name).map_or(bare, |(_, name)| name);
    names.find_alike(segment).or_else(|| names.find_alike(bare)).or_else(|| {
        let glued = ["<|constrain|>json", "commentary", "analysis", "json", "code"];
        glued
            .iter()
            .find_map(|word| names.find_alike(bare.strip_suffix(word)?.trim_end_matches(['.', '_', '-'])))
    })
}

/// Removes the index from Kimi's `functions.NAME:IDX`.
fn without_index(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((name, index)) if !name.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

fn without_namespace(name: &str) -> &str {
    NAMESPACES.iter().find_map(|space| name.strip_prefix(space)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(names: &[&str]) -> Tools {
        names.iter().map(|name| ((*name).to_owned(), None)).collect()
    }

    fn check(names: &[&str], written: &str, expected: Option<&str>) {
        let tools = tools(names);
        assert_eq!(tools.resolve(written).map(|found| found.tool.name.as_str()), expected, "{written}");
    }

    #[test]
    fn polluted_names_resolve_to_the_tool_they_mean() {
        for written in [
            "web_search",
            "functions.web_search",
            "function.web_search",
            "tools.web_search",
            "functions:web_search",
            "functions.web_search:0",
            "web_search.web_search",
            "web_search:12",
            "Web_Search",
            "web-search",
            "webSearch",
            " web_search ",
            "web_search<|channel|>commentary",
            "web_search<|channel|>json",
            "web_search<|constrain|>json",
            "assistant<|channel|>web_search<|channel|>commentary",
            "web_searchjson",
            "functions.web_searchcommentary",
            "web_search</arg_value>",
            "web_search\" parameter=\"q",
            "`web_search`",
            "web_search(",
            "web_search\n",
        ] {
            check(&["web_search", "read"], written, Some("web_search"));
        }
    }

    #[test]
    fn what_is_ambiguous_or_unknown_resolves_to_nothing() {
        check(&["read_file", "read-file"], "readFile", None);
        check(&["read_file", "read-file"], "read-file", Some("read-file"));
        for written in
            ["", "exec", "container.exec", "assistant<|channel|>commentary", "readx", "re", "read<|x|>write"]
        {
            check(&["read", "write"], written, None);
        }
        // Another server's tool of the same name is another tool.
        for written in ["github/read", "github.read", "github__read", "mcp__github__read"] {
            check(&["read", "write"], written, None);
        }
        assert!(is_noise("assistant<|channel|>commentary") && is_noise("") && is_noise("browser.search"));
        assert!(!is_noise("send_mail"));
    }

    #[test]
    fn tools_are_found_by_their_portable_names() {
        let long = "mcp__a_server_with_a_long_name__a_tool_whose_name_is_longer_than_any_server_takes";
        let names = ["mcp.github.read", "mcp_github_read", long, "größe", "read"];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let portable = portable_name(name);
            assert!(portable.len() <= PORTABLE && portable.is_ascii() && seen.insert(portable.to_string()));
            assert_eq!(portable_name(&portable), portable, "twice changes nothing more");
            check(&names, &portable, Some(name));
            assert!(tools(&names).resolve(&portable).is_some_and(|found| !found.repaired));
        }
        assert_eq!(portable_name("read"), "read");
        assert_eq!(portable_name("mcp.github.read"), "mcp_github_read_2c9be892");
    }

    #[test]
    fn hidden_tools_need_the_indirect_one() {
        let mut without = tools(&["read"]);
        without.reveal("web_fetch".into(), None);
        assert!(without.resolve("web_fetch").is_none());
        let mut with = tools(&["read", "tool_call"]);
        with.reveal("web_fetch".into(), None);
        assert!(with.resolve("functions.web_fetch").is_some_and(|found| found.hidden));
        assert!(with.resolve("read").is_some_and(|found| !found.hidden));
    }

    #[test]
    fn what_is_no_array_of_functions_is_an_error() {
        for text in ["not json", "", "{}", "null", "[{}"] {
            let error = Tools::from_json(text).unwrap_err().to_string();
            assert!(error.starts_with("the tools are not a JSON array: "), "{error}");
        }
        for text in [
            r#"[{"type": "function", "function": {"name": "now"}}, {"type": "function", "name": "read"}]"#,
            r#"[{"type": "web_search"}, {"name": "read", "input_schema": {"type": "object"}}]"#,
            r#"[{"type": "web_search"}, {"type": "function", "function": {"description": "reads"}}]"#,
            r#"[{"type": "web_search"}, 1]"#,
        ] {
            let error = Tools::from_json(text).unwrap_err().to_string();
            assert!(error.starts_with("tools[1] is not {\"type\":\"function\","), "{error}");
        }
        let mixed = r#"[{"type": "web_search"}, {"type": "function", "function": {"name": "now"}}]"#;
        assert_eq!(Tools::from_json(mixed).unwrap().names().collect::<Vec<_>>(), ["now"]);
    }
}
