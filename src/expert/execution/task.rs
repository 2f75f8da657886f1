//! What the model is told to begin an attempt of a process: the process's text, its inputs as data, its context files, its scratchpad, and what
//! earlier attempts did. Pure.

use std::fmt::Write as _;

use serde_json::Value;

use crate::agent::{CallOutcome, MadeCall};
use crate::expert::component::Process;
use crate::expert::prompt::one_line;
use crate::expert::tools::{ESCALATE, FAIL, FINISH};
use crate::expert::trigger::{fenced, fenced_json};
use crate::expert::workspace::file_name;

/// The longest piece of a result that the log shows, in characters.
const LONGEST_RESULT: usize = 400;

/// An attempt of a process.
pub(super) struct Task<'a> {
    pub(super) process: &'a Process,
    pub(super) inputs: &'a Value,
    /// Preloaded files, by path.
    pub(super) context: Vec<(String, String)>,
    /// Where working data goes, and whether there is some already.
    pub(super) scratchpad: Option<(String, bool)>,
    pub(super) attempt: u32,
    /// How the attempt before failed, where it is told.
    pub(super) failure: Option<&'a str>,
    /// What earlier attempts did, where it is told.
    pub(super) log: &'a [MadeCall],
}

impl Task<'_> {
    /// The message to the model.
    pub(super) fn text(&self) -> String {
        let name = one_line(&self.process.name.value);
        let mut text = format!(
            "Execute the process `{name}` now. This is attempt {}.\n\n## Process {name}\n\n{}\n",
            self.attempt,
            self.process.body.trim()
        );
        let _ = write!(text, "\n## Inputs\n\n{}\n", fenced_json("the process's inputs", self.inputs));
        for (path, body) in &self.context {
            let _ = write!(text, "\n## File {}\n\n{}\n", one_line(path), body.trim());
        }
        if let Some((path, is_there)) = &self.scratchpad {
            let state = if *is_there {
                "It holds what an earlier attempt has done: read it first, and go on from there."
            } else {
                "It is not there yet."
            };
            let _ = write!(text, "\n## Scratchpad\n\nWorking data goes into `{path}`. {state}\n");
        }
        self.earlier(&mut text);
        let _ = write!(
            text,
            "\n## Ending\n\nWhen all steps are done, call `{FINISH}` with a summary and the declared outputs. If a person has to decide, call `{ESCALATE}`. \
             If the process cannot go on, call `{FAIL}`.\n"
        );
        text
    }

    fn earlier(&self, text: &mut String) {
        if let Some(failure) = self.failure {
            let _ = write!(text, "\n## The attempt before\n\nIt failed. {}\n", fenced("the reason", failure));
        }
        if self.log.is_empty() {
            return;
        }
        text.push_str("\n## Execution log\n\nWhat earlier attempts did, as it was recorded:\n");
        let mut results = String::new();
        for made in self.log {
            let (name, arguments) = (&made.call.name, &made.call.arguments);
            let result: String = one_line(&made.text).chars().take(LONGEST_RESULT).collect();
            let _ = writeln!(results, "- {name} {arguments}: {} {result}", told(made.outcome));
        }
        let _ = writeln!(text, "\n{}", fenced("the log of calls and their results", &results));
        text.push_str("\nDo not repeat steps that succeeded. A call that must not be made twice is answered with its recorded result.\n");
    }
}

fn told(outcome: CallOutcome) -> &'static str {
    match outcome {
        CallOutcome::Ok => "succeeded:",
        CallOutcome::HandedOver => "was handed to a person as a draft, not executed.",
        CallOutcome::Unknown | CallOutcome::TimedOut | CallOutcome::Transient => "has an unknown outcome:",
        _ => "failed:",
    }
}

/// The path of a process's scratchpad with the inputs in place; a payload chooses only letters of a file's name.
///
/// # Errors
/// When it would not be below `scratch/`.
pub(super) fn scratchpad(pattern: &str, inputs: &Value) -> Result<String, String> {
    let (mut path, mut rest) = (String::new(), pattern);
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        let value = match &inputs[name] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        path.push_str(before);
        path.push_str(&file_name(&value));
        rest = after;
    }
    path.push_str(rest);
    let path = crate::expert::path::normalized(&path).to_owned();
    if path.starts_with("scratch/") && crate::expert::path::escape(&path).is_none() {
        Ok(path)
    } else {
        Err(format!("the scratchpad {path:?} is not below scratch/"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_payload_cannot_choose_the_place_of_a_scratchpad() {
        let path = |id: &str| scratchpad("./scratch/triage-{message_id}.md", &json!({"message_id": id}));
        assert_eq!(path("m1").unwrap(), "scratch/triage-m1.md");
        for id in ["../../state/pipeline", "a/b", ""] {
            let path = path(id).unwrap();
            assert!(
                path.starts_with("scratch/triage-") && path.matches('/').count() == 1 && !path.contains(".."),
                "{path}"
            );
        }
        assert!(scratchpad("state/{x}.md", &json!({"x": "a"})).is_err());
        assert!(scratchpad("scratch/../state/x.md", &json!({})).is_err());
    }
}
