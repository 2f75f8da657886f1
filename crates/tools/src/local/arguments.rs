//! Reads a call's arguments. It accepts the names that models have learnt elsewhere, and numbers written as
//! text.

use serde_json::{Map, Value};

use super::super::contract::ToolError;

/// The names of a file's path.
pub(super) const PATH: &[&str] = &["path", "file_path", "filePath", "file"];
/// The names of a shell command.
pub(super) const COMMAND: &[&str] = &["command", "cmd"];
/// The names of the directory that it runs in.
pub(super) const WORKDIR: &[&str] = &["workdir", "cwd"];

/// The arguments of one call. Each method takes several `names`; the first is the right one.
pub(super) struct Arguments<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Arguments<'a> {
    /// Finds the argument under any of its names. Two of them in one call are an error: the policy might
    /// read one and the tool the other.
    fn find_argument(&self, names: &[&str]) -> Result<Option<&'a Value>, ToolError> {
        let mut present =
            names.iter().filter(|name| self.0.get(**name).is_some_and(|value| !value.is_null()));
        match (present.next(), present.next()) {
            (Some(one), Some(other)) => Err(ToolError::Failed(format!(
                "the arguments {one:?} and {other:?} are the same one: give only one of them"
            ))),
            (name, _) => Ok(name.and_then(|name| self.0.get(*name))),
        }
    }

    /// Returns a required text.
    pub(super) fn required_text(&self, names: &[&str]) -> Result<&'a str, ToolError> {
        self.optional_text(names)?.ok_or_else(|| wrong_argument(names, "is missing: a string"))
    }

    pub(super) fn optional_text(&self, names: &[&str]) -> Result<Option<&'a str>, ToolError> {
        match self.find_argument(names)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong_argument(names, "has to be a string")),
        }
    }

    /// Returns a whole number from 1, if it is there.
    pub(super) fn optional_count(&self, names: &[&str]) -> Result<Option<usize>, ToolError> {
        let read = |value: &Value| match value {
            Value::String(text) => text.trim().parse::<f64>().ok(),
            other => other.as_f64(),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be within the range"
        )]
        let whole = |number: f64| {
            (number >= 1.0 && number <= 2_f64.powi(52) && number.fract() == 0.0).then_some(number as usize)
        };
        let number = |value| {
            read(value)
                .and_then(whole)
                .ok_or_else(|| wrong_argument(names, "has to be a whole number, at least 1"))
        };
        self.find_argument(names)?.map(number).transpose()
    }

    pub(super) fn optional_switch(&self, name: &str) -> Result<bool, ToolError> {
        match self.find_argument(&[name])? {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
            Some(_) => Err(wrong_argument(&[name], "has to be true or false")),
        }
    }

    pub(super) fn optional_value(&self, names: &[&str]) -> Result<Option<&'a Value>, ToolError> {
        self.find_argument(names)
    }
}

/// Returns an error about an argument, for the model.
pub(super) fn wrong_argument(names: &[&str], problem: &str) -> ToolError {
    ToolError::Failed(format!("the argument {:?} {problem}", names.first().unwrap_or(&"")))
}
