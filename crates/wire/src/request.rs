//! A chat completion request: the few fields respool acts on, read as spans of the client's own text.
//!
//! It judges only what it must understand (an object with `messages`); every other mistake is the upstream's
//! to report. Called by `translate` and `server`.

use std::borrow::Cow;
use std::sync::Arc;

use super::error::ApiError;
use super::error_code::ErrorCode;
use super::known::{KnownMessage, KnownParts, KnownTools, MessageCache, OptionalRange};
use super::object::{Object, decode_string, first_element, is_empty_array, is_key};
use super::scan::{Malformed, Scanner};
use crate::turn::ToolCall;

/// The reason why a body is not a chat completion request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// Not UTF-8.
    NotText,
    /// Not JSON: line, column, what was expected.
    NotJson(usize, usize, &'static str),
    /// JSON, but not an object.
    NotAnObject,
    /// No `messages`.
    NoMessages,
    /// `messages` is not an array of objects.
    BadMessages,
}

impl From<&BadRequest> for ApiError {
    fn from(fault: &BadRequest) -> Self {
        match fault {
            BadRequest::NotText => {
                Self::bad_request(ErrorCode::InvalidJson, "the request body is not UTF-8 text")
            }
            BadRequest::NotJson(line, column, expected) => Self::bad_request(
                ErrorCode::InvalidJson,
                format!(
                    "the request body is not valid JSON: expected {expected} at line {line}, column {column}"
                ),
            ),
            BadRequest::NotAnObject => Self::bad_request(
                ErrorCode::InvalidType,
                "the request body must be a JSON object with `model` and `messages`",
            ),
            BadRequest::NoMessages => Self::bad_request(
                ErrorCode::MissingRequiredParameter,
                "`messages` is missing: send an array of messages",
            )
            .with_param("messages"),
            BadRequest::BadMessages => {
                Self::bad_request(ErrorCode::InvalidType, "`messages` must be an array of objects")
                    .with_param("messages")
            }
        }
    }
}

/// The client's `tool_choice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// `auto`, or absent.
    Auto,
    /// `none`: no call may leave.
    None,
    /// `required`, or a named tool.
    Forced,
}

/// A request, borrowed from the body's text.
#[derive(Debug)]
pub struct ChatRequest<'a> {
    /// All fields.
    pub object: Object<'a>,
    /// The messages, in order.
    pub messages: Vec<Message<'a>>,
    /// The functions among the declared tools, in order.
    pub functions: Vec<DeclaredTool<'a>>,
    has_known_tools: bool,
}

/// One declared function, as spans of JSON text.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeclaredTool<'a> {
    /// Its `name`.
    pub name: Option<&'a str>,
    /// Its `parameters`.
    pub parameters: Option<&'a str>,
    /// Whether it has a `description`.
    pub is_described: bool,
}

/// One message of the conversation.
#[derive(Debug)]
pub struct Message<'a> {
    /// All fields.
    pub object: Object<'a>,
    text: &'a str,
    edited: bool,
    cache: Arc<MessageCache>,
}

impl<'a> ChatRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// When the body cannot be a chat completion request.
    pub fn parse(body: &'a [u8]) -> Result<Self, BadRequest> {
        Self::parse_known(body, KnownParts::default())
    }

    /// Reads a request body of which parts may be known.
    ///
    /// # Errors
    /// As [`ChatRequest::parse`].
    pub fn parse_known(body: &'a [u8], known: KnownParts<'_>) -> Result<Self, BadRequest> {
        let text = simdutf8::basic::from_utf8(body).map_err(|_| BadRequest::NotText)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut parts = RequestScan { known, messages: None, functions: Vec::new(), has_known_tools: false };
        let object = Object::parse_with(text, |key, scanner| parts.read_field(key, scanner))
            .map_err(|fault| explain_not_object(text, &fault))?;
        object.get_original("messages").ok_or(BadRequest::NoMessages)?;
        let messages = parts.messages.ok_or(BadRequest::BadMessages)?;
        Ok(Self { object, messages, functions: parts.functions, has_known_tools: parts.has_known_tools })
    }

    /// Returns the messages to remember for the next request. Messages that were known already keep their
    /// findings.
    pub fn known_messages(&self, known: &[Arc<KnownMessage>]) -> Vec<Arc<KnownMessage>> {
        let mut kept = Vec::with_capacity(self.messages.len());
        for (place, message) in self.messages.iter().enumerate() {
            let same = known.get(place).filter(|known| Arc::ptr_eq(&known.cache, &message.cache));
            match same.cloned().or_else(|| KnownMessage::new(message.text, &message.object, &message.cache)) {
                Some(known) => kept.push(known),
                // Later messages could not be used: known messages are compared from the first.
                None => break,
            }
        }
        kept
    }

    /// Returns true when the request has the tools that were known.
    pub fn has_known_tools(&self) -> bool {
        self.has_known_tools
    }

    /// Returns the tools to remember for the next request, if there are any.
    pub fn known_tools(&self) -> Option<KnownTools> {
        let text = self.tools().and(self.object.get_original("tools"))?;
        let base = text.as_ptr() as usize;
        let place = |part: Option<&str>| {
            let start = (part?.as_ptr() as usize).checked_sub(base)?;
            Some((start, start + part?.len()))
        };
        let functions = self.functions.iter();
        let functions =
            functions.map(|tool| (place(tool.name), place(tool.parameters), tool.is_described)).collect();
        Some(KnownTools { text: text.into(), functions })
    }

    /// Returns the model's name, empty when the request names none (vLLM then takes its first).
    pub fn model(&self) -> String {
        self.object.string("model").unwrap_or_default()
    }

    /// Returns true for `stream: true` and for the values that vLLM takes for it, such as `"true"` and `1`.
    pub fn wants_stream(&self) -> bool {
        self.object.means_true("stream")
    }

    /// Returns true for `stream_options.include_usage: true`.
    pub fn wants_usage(&self) -> bool {
        let options = self.object.get("stream_options").and_then(|text| Object::parse(text).ok());
        options.is_some_and(|options| options.means_true("include_usage"))
    }

    /// Returns the text of a non-empty `tools` array.
    pub fn tools(&self) -> Option<&str> {
        // The text has been scanned, so a value that starts with a bracket is an array.
        self.object.get("tools").filter(|text| text.starts_with('[') && !is_empty_array(text))
    }

    /// Returns the client's `tool_choice`.
    pub fn tool_choice(&self) -> ToolChoice {
        match self.object.get("tool_choice") {
            None | Some(r#""auto""#) => ToolChoice::Auto,
            Some(r#""none""#) => ToolChoice::None,
            Some(_) => ToolChoice::Forced,
        }
    }

    /// Returns true when `response_format` asks for JSON.
    pub fn wants_json(&self) -> bool {
        let format = self.object.get("response_format").and_then(|text| Object::parse(text).ok());
        let kind = format.and_then(|format| format.string("type"));
        matches!(kind.as_deref(), Some("json_object" | "json_schema"))
    }

    /// Returns `n`, at least 1.
    pub fn choice_count(&self) -> u64 {
        self.object.number("n").unwrap_or(1).max(1)
    }
}

/// The findings inside the large fields, collected while the text is scanned once.
struct RequestScan<'a, 'k> {
    known: KnownParts<'k>,
    messages: Option<Vec<Message<'a>>>,
    functions: Vec<DeclaredTool<'a>>,
    has_known_tools: bool,
}

impl<'a> RequestScan<'a, '_> {
    fn read_field(&mut self, key: &'a str, scanner: &mut Scanner<'a>) -> Result<&'a str, Malformed> {
        if is_key(key, "messages") {
            return scanner.read_span(|scanner| self.read_messages(scanner));
        }
        if is_key(key, "tools") {
            return scanner.read_span(|scanner| self.read_tools(scanner));
        }
        scanner.read_value()
    }

    /// Reads the messages. Anything but an array of objects leaves `None`.
    fn read_messages(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        self.messages = None;
        if scanner.peek() != b'[' {
            return scanner.read_value().map(drop);
        }
        let mut messages: Vec<Message<'a>> = Vec::with_capacity(self.known.messages.len() + 2);
        let mut only_objects = true;
        let mut known = self.known.messages.iter();
        scanner.walk_array(|scanner| {
            if let Some((text, known)) =
                known.next().and_then(|known| Some((scanner.skip_known(&known.text)?, known)))
            {
                messages.push(Message::from_known(text, known));
                return Ok(());
            }
            // From the first difference on, every message is read.
            known = <&[Arc<KnownMessage>]>::default().iter();
            match Message::read_from(scanner)? {
                Some(message) => messages.push(message),
                None => only_objects = false,
            }
            Ok::<_, Malformed>(())
        })?;
        self.messages = only_objects.then_some(messages);
        Ok(())
    }

    /// Reads the tools. Entries of another shape are skipped: the upstream judges them.
    fn read_tools(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        self.functions.clear();
        self.has_known_tools = false;
        if let Some((text, known)) =
            self.known.tools.and_then(|known| Some((scanner.skip_known(&known.text)?, known)))
        {
            let part = |place: OptionalRange| place.map(|(start, end)| &text[start..end]);
            let functions = known.functions.iter().map(|(name, parameters, is_described)| DeclaredTool {
                name: part(*name),
                parameters: part(*parameters),
                is_described: *is_described,
            });
            self.functions.extend(functions);
            self.has_known_tools = true;
            return Ok(());
        }
        if scanner.peek() != b'[' {
            return scanner.read_value().map(drop);
        }
        scanner.walk_array(|scanner| match scanner.peek() {
            b'{' => scanner.walk_object(|key, scanner| self.read_tool_field(key, scanner)),
            _ => scanner.read_value().map(drop),
        })
    }

    fn read_tool_field(&mut self, key: &str, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        if key != "function" || scanner.peek() != b'{' {
            return scanner.read_value().map(drop);
        }
        self.functions.push(DeclaredTool::read_from(scanner)?);
        Ok(())
    }
}

impl<'a> DeclaredTool<'a> {
    fn read_from(scanner: &mut Scanner<'a>) -> Result<Self, Malformed> {
        let mut tool = Self::default();
        scanner.walk_object(|key, scanner| {
            let value = Some(scanner.read_value()?).filter(|value| *value != "null");
            match key {
                "name" => tool.name = value,
                "parameters" => tool.parameters = value,
                "description" => tool.is_described = value.is_some(),
                _ => {}
            }
            Ok::<_, Malformed>(())
        })?;
        Ok(tool)
    }
}

impl<'a> Message<'a> {
    /// Reads the message at the scanner's position; `None` unless it is an object.
    fn read_from(scanner: &mut Scanner<'a>) -> Result<Option<Self>, Malformed> {
        if scanner.peek() != b'{' {
            return scanner.read_value().map(|_| None);
        }
        let mut object = Object::default();
        let text = scanner.read_span(|scanner| {
            object = Object::read_from(scanner, |_, scanner| scanner.read_value())?;
            Ok::<_, Malformed>(())
        })?;
        Ok(Some(Self { object, text, edited: false, cache: Arc::default() }))
    }

    /// Makes a known message from its place in this request.
    fn from_known(text: &'a str, known: &KnownMessage) -> Self {
        let cache = Arc::clone(&known.cache);
        Self { object: Object::from_places(text, &known.fields), text, edited: false, cache }
    }

    /// Edits the fields of the message for sending.
    pub fn edit_fields(&mut self, change: impl FnOnce(&mut Object<'a>)) {
        change(&mut self.object);
        self.edited = true;
    }

    /// Returns the message's JSON text: the borrowed original unless it was edited.
    pub fn to_json(&self) -> Cow<'a, str> {
        if self.edited { Cow::Owned(self.object.to_json()) } else { Cow::Borrowed(self.text) }
    }
}

impl Message<'_> {
    /// Returns the message's calls that have an id and a name; they are read once.
    pub fn tool_calls(&self) -> &[ToolCall] {
        self.cache.tool_calls(self.object.get("tool_calls"))
    }

    /// Returns the ids of all the message's calls; they are read once.
    pub fn call_ids(&self) -> &[String] {
        self.cache.call_ids(self.object.get("tool_calls"))
    }

    /// Returns true when the arguments of the message's calls can be sent unchanged. `is_sound` is asked
    /// once.
    pub fn has_sound_arguments(&self, is_sound: impl FnOnce(&str) -> bool) -> bool {
        self.object.get("tool_calls").is_none_or(|calls| self.cache.has_sound_arguments(|| is_sound(calls)))
    }

    /// Returns the message's end in the body that it was read from, in bytes.
    pub fn end_offset_in(&self, body: &[u8]) -> Option<usize> {
        let end = (self.text.as_ptr() as usize).checked_sub(body.as_ptr() as usize)? + self.text.len();
        (end <= body.len()).then_some(end)
    }

    /// Returns true when the message has this role.
    pub fn has_role(&self, role: &str) -> bool {
        self.object.is_string("role", role)
    }

    /// Returns true when the content, a string or its first text part, starts with `mark`.
    pub fn content_starts_with(&self, mark: &str) -> bool {
        let Some(content) = self.object.get("content") else { return false };
        let first = first_element(content)
            .and_then(|part| Some(begins_with(Object::parse(part).ok()?.get("text")?, mark)));
        first.unwrap_or_else(|| begins_with(content, mark))
    }
}

/// Returns true when a JSON string begins with `mark`, apart from white space. Decodes a long text only if it
/// must.
fn begins_with(json: &str, mark: &str) -> bool {
    let Some(text) = json.strip_prefix('"').map(str::trim_start) else { return false };
    // A shorter text ends with its quote, and so is another.
    let beginning = text.get(..mark.len()).unwrap_or(text);
    if beginning.contains('\\') {
        decode_string(json).is_some_and(|text| text.trim_start().starts_with(mark))
    } else {
        beginning == mark
    }
}

fn explain_not_object(text: &str, fault: &Malformed) -> BadRequest {
    let mut scanner = Scanner::new(text);
    if scanner.read_value().and_then(|_| scanner.expect_end()).is_ok() {
        return BadRequest::NotAnObject;
    }
    let (line, column) = fault.line_and_column(text);
    BadRequest::NotJson(line, column, fault.expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(body: &str) -> BadRequest {
        ChatRequest::parse(body.as_bytes()).err().unwrap()
    }

    #[test]
    fn what_is_no_request_is_refused_as_such() {
        assert_eq!(fault("[]"), BadRequest::NotAnObject);
        assert_eq!(fault("{\n\"a\" 1}"), BadRequest::NotJson(2, 5, "a colon"));
        assert_eq!(fault(""), BadRequest::NotJson(1, 1, "an object"));
        assert_eq!(fault("{}"), BadRequest::NoMessages);
        assert_eq!(fault(r#"{"messages":"hi"}"#), BadRequest::BadMessages);
        assert_eq!(fault(r#"{"messages":["hi"]}"#), BadRequest::BadMessages);
        assert_eq!(ChatRequest::parse(b"\xff{}").err(), Some(BadRequest::NotText));
    }

    #[test]
    fn the_fields_respool_acts_on() {
        let body = br#"{"messages":[{"role":"user","content":[{"type":"text","text":" <<<X"}]}],"stream":true,"tools":[],
            "stream_options":{"include_usage":true},"tool_choice":"none","n":2,"response_format":{"type":"json_object"}}"#;
        let request = ChatRequest::parse(body).unwrap();
        assert!(request.wants_stream() && request.wants_usage() && request.wants_json());
        assert_eq!(
            (request.tools(), request.tool_choice(), request.choice_count()),
            (None, ToolChoice::None, 2)
        );
        assert!(request.messages[0].content_starts_with("<<<X"));
        assert_eq!(request.model(), "");
    }
}
