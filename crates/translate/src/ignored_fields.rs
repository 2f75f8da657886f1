//! Notes the fields of another API that are left out of the chat request, for one log line, and makes the
//! errors for those that must not be left out.
//!
//! Called by `responses` and `messages`.

use wire::{ApiError, ErrorCode, Malformed, Object, array_elements, decode_string};

/// A field of a request that the model does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredField {
    /// The field, for example `tools.web_search` or `input[3]`.
    pub field: String,
    /// The reason why it was left out.
    pub why: &'static str,
}

/// The most fields in a log line. A request may have thousands.
const MOST: usize = 16;

/// Collects ignored fields, each once.
#[derive(Debug, Default)]
pub(super) struct IgnoredFields(Vec<IgnoredField>);

impl IgnoredFields {
    pub(super) fn add(&mut self, field: impl Into<String>, why: &'static str) {
        let mut field: String = field.into().chars().take(80).collect();
        if field.is_empty() {
            field.push_str("\"\"");
        }
        if self.0.len() < MOST && !self.0.iter().any(|note| note.field == field) {
            self.0.push(IgnoredField { field, why });
        }
    }

    pub(super) fn into_vec(self) -> Vec<IgnoredField> {
        self.0
    }
}

/// Refuses a field that respool does not support and that changes the request's meaning.
pub(super) fn unsupported_field(field: impl Into<String>, message: impl Into<String>) -> ApiError {
    ApiError::bad_request(ErrorCode::UnsupportedValue, message).with_param(field)
}

/// Refuses a field of the wrong type.
pub(super) fn wrong_type(field: impl Into<String>, expected: &str) -> ApiError {
    let field = field.into();
    ApiError::bad_request(ErrorCode::InvalidType, format!("`{field}` must be {expected}")).with_param(field)
}

/// Refuses a request that lacks a field.
pub(super) fn missing_field(field: impl Into<String>, advice: &str) -> ApiError {
    let field = field.into();
    let message = format!("`{field}` is missing: {advice}");
    ApiError::bad_request(ErrorCode::MissingRequiredParameter, message).with_param(field)
}

/// Reads an optional flag. Any other value is refused, because its meaning is unknown.
pub(super) fn optional_bool(object: &Object<'_>, key: &str, field: &str) -> Result<Option<bool>, ApiError> {
    match object.get(key) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(_) => Err(wrong_type(field, "true or false")),
    }
}

/// Reads an optional text.
pub(super) fn optional_string(
    object: &Object<'_>,
    key: &str,
    field: &str,
) -> Result<Option<String>, ApiError> {
    let text = |json: &str| decode_string(json).ok_or_else(|| wrong_type(field, "a string"));
    object.get(key).map(text).transpose()
}

/// Reads the entries of an optional array.
pub(super) fn optional_array<'o>(
    object: &'o Object<'_>,
    key: &str,
    field: &str,
) -> Result<Vec<&'o str>, ApiError> {
    let entries = |json| array_elements(json).ok_or_else(|| wrong_type(field, "an array"));
    object.get(key).map_or_else(|| Ok(vec![]), entries)
}

/// Refuses an empty conversation.
pub(super) fn empty_conversation(field: &str) -> ApiError {
    let message = format!("`{field}` holds nothing that a model could answer: send at least one message");
    ApiError::bad_request(ErrorCode::InvalidValue, message).with_param(field)
}

/// Reads the object of a request body.
pub(super) fn request_object(body: &[u8]) -> Result<Object<'_>, ApiError> {
    let invalid = |message: String| ApiError::bad_request(ErrorCode::InvalidJson, message);
    let text = std::str::from_utf8(body).map_err(|_| invalid("the request body is not UTF-8 text".into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Object::parse(text).map_err(|Malformed { at, expected }| {
        let (line, column) = Malformed { at, expected }.line_and_column(text);
        invalid(format!(
            "the request body is not a JSON object: expected {expected} at line {line}, column {column}"
        ))
    })
}

/// Reads a nested object.
pub(super) fn nested_object<'a>(json: &'a str, field: &str) -> Result<Object<'a>, ApiError> {
    Object::parse(json).map_err(|_| wrong_type(field, "an object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_noted_once_and_not_too_many() {
        let mut notes = IgnoredFields::default();
        (0..40).for_each(|index| notes.add(format!("input[{}]", index / 2), "hosted"));
        let notes = notes.into_vec();
        assert_eq!((notes.len(), notes[1].field.as_str()), (MOST, "input[1]"));
    }

    #[test]
    fn errors_of_a_body_name_the_place() {
        for (body, place) in [(&b"[]"[..], "line 1, column 1"), (b"{\n\"a\" 1}", "line 2, column 5")] {
            let error = request_object(body).unwrap_err();
            assert!(error.status == 400 && error.message.ends_with(place), "{}", error.message);
        }
        assert_eq!(request_object(b"\xff").unwrap_err().message, "the request body is not UTF-8 text");
    }
}
