//! The texts that the model gets about its own calls: what a tool wants, that a call could not be read, that
//! the work is over. Also what is shown when it gives no answer. Pure. Used by `run`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::outcome::Limit;
use super::setup::{CallForm, OfferedTool, Setup};
use super::transcript::Entry;
use wire::ErrorCode;
use wire::turn::Dropped;

/// The transcript's text for a reply without any usable part.
pub(super) const NOTHING: &str = "(nothing that could be read)";

/// The result of a call that was running when respool ended.
pub(super) const OUTCOME_UNKNOWN: &str = "the outcome is unknown: respool was interrupted while this call ran. It may have \
     taken effect, in whole or in part. Find out before you repeat it.";

/// The result of a call that was running when a person stopped the turn.
pub(super) const STOPPED_CALL: &str =
    "stopped before it ended; it may have taken effect, in whole or in part";

/// The result of a call that had not begun then.
pub(super) const NOT_BEGUN: &str = "not run: the turn was stopped before it began";

/// The result of a call that is a draft for a person.
pub(super) const HANDED_OVER: &str = "handed over to a person as a draft, not executed; the result is unknown. The step is done: \
     go on without it, and do not call this again for the same thing.";

/// The message between a turn that ended without an answer and the next one.
pub(super) const STOPPED: &str = "The turn before this ended without an answer.";

/// The reply and the message after a turn that was stopped.
pub(super) const STOPPED_REPLY: &str = "(stopped before the answer was complete)";
pub(super) const STOPPED_TURN: &str =
    "The turn before this was stopped on purpose. Do not continue it unless the person asks for that.";

/// Returns the message before the last call.
pub(super) fn last_words(limit: &Limit) -> Value {
    let text = format!(
        "[respool] The run has met its limit {}. No more tools can be used. Answer now, from what you have; say what is \
         missing.",
        limit.as_words()
    );
    json!({"role": "user", "content": text})
}

/// Describes the tool's parameters and the mistake in the call.
pub(super) fn describe_mistake(tool: &OfferedTool, problems: &[String]) -> String {
    let problems = if problems.is_empty() { String::new() } else { format!(": {}", problems.join("; ")) };
    format!(
        "the arguments do not fit{problems}. `{}` takes a JSON object of this schema: {}",
        tool.name, tool.parameters
    )
}

/// Tells the model that there is no such tool.
pub(super) fn describe_unknown_tool(name: &str, setup: &Setup) -> String {
    let names: Vec<&str> = setup.tools.iter().map(|tool| tool.name.as_str()).collect();
    format!("there is no tool `{name}`; there are: {}", names.join(", "))
}

/// Returns the correction of a reply: its calls that cannot be made, or what it lacks.
pub(super) fn correct_reply(refused: &[(String, String)], cut: bool, blank: bool, setup: &Setup) -> String {
    let mut text = String::new();
    for (name, why) in refused {
        let tool = setup.tools.iter().find(|tool| tool.name == *name);
        let _ = match tool {
            None => writeln!(text, "Your call was not made: {}.", describe_unknown_tool(name, setup)),
            Some(_) if why == Dropped::Truncated.as_str() => {
                writeln!(text, "Your call of `{name}` was not made: it was cut off.")
            }
            Some(tool) => {
                writeln!(text, "Your call of `{name}` was not made ({why}): {}.", describe_mistake(tool, &[]))
            }
        };
    }
    if refused.is_empty() && !blank {
        text.push_str("Your last reply looks like a tool call that could not be read. ");
        text.push_str(how_to_call(setup.style.form));
        text.push_str(" If you meant it as the answer, give the answer again without the marks of a call.");
    }
    if blank && refused.is_empty() {
        text.push_str("Your last reply was empty. Use a tool, or give the final answer.");
    }
    if cut {
        let gap = if text.ends_with('\n') { "" } else { " " };
        let _ = write!(
            text,
            "{gap}The reply was cut at the token limit: be brief, and write a long text in parts."
        );
    }
    text.trim().to_owned()
}

fn how_to_call(form: CallForm) -> &'static str {
    match form {
        CallForm::Native => {
            "Call the tool through the function-calling interface, with a JSON object as its arguments."
        }
        CallForm::GuidedJson => {
            r#"Write {"tool_calls": [{"name": "NAME", "arguments": {…}}]} and nothing else."#
        }
        CallForm::React => {
            "Write a line `Action: NAME` and then a line `Action Input: {…}` with one JSON object."
        }
        CallForm::Markers => "Write [TOOL:NAME|argument=value] on a line of its own.",
        CallForm::Plain => "Say in one sentence which tool you use, with its argument in quotes.",
    }
}

/// Returns the tool that the error text of a reply names, as a refused call.
pub(super) fn refused_call_in(text: &str, code: Option<ErrorCode>, setup: &Setup) -> Vec<(String, String)> {
    let named = if code == Some(ErrorCode::UnknownTool) {
        text.split('`').nth(1)
    } else {
        let mut offered = setup.tools.iter().map(|tool| tool.name.as_str());
        offered.find(|name| text.contains(&format!("`{name}`")))
    };
    named.map(|name| (name.to_owned(), "it could not be read".to_owned())).into_iter().collect()
}

/// A tally quotes at most this many bytes of a text.
const TALLIED: usize = 1_000;

/// Returns a list of the calls and their ends, in place of a summary that the model did not give.
pub(super) fn tally_calls(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        match entry {
            Entry::Summary(summary) => {
                let _ = writeln!(text, "{summary}");
            }
            Entry::Exchange(exchange) => {
                if exchange.calls.is_empty() && exchange.content != NOTHING {
                    let reply = super::context::head_and_tail(exchange.content.trim(), TALLIED).0;
                    let _ = writeln!(text, "- The answer: {reply}");
                }
                for call in &exchange.calls {
                    let result = exchange.results.iter().find(|result| result.id == call.id);
                    let how = match result {
                        Some(result) if result.ok => "a result",
                        Some(_) => "an error",
                        None => "no result",
                    };
                    let arguments = super::context::head_and_tail(&call.arguments, 200).0;
                    let _ = writeln!(text, "- {} {arguments}: {how}", call.name);
                }
            }
            Entry::UserTurn(message) => {
                let words = super::prompt::plain_content(&message["content"]);
                let _ = writeln!(text, "- The person: {}", super::context::head_and_tail(&words, TALLIED).0);
            }
            Entry::ClientMessage(_) | Entry::Note(_) => {}
        }
    }
    text.trim_end().to_owned()
}

/// Returns the calls that a run, or the last turn of a conversation, made without giving an answer; empty
/// when there were no calls.
pub(super) fn describe_achievements(entries: &[Entry]) -> String {
    let turn = entries.iter().rposition(|entry| matches!(entry, Entry::UserTurn(_)));
    let entries = &entries[turn.map_or(0, |turn| turn + 1)..];
    let reply = entries.iter().rev().find_map(|entry| match entry {
        Entry::Exchange(exchange) if exchange.content != NOTHING && !exchange.content.trim().is_empty() => {
            Some(exchange.content.trim().to_owned())
        }
        _ => None,
    });
    let tally = tally_calls(entries);
    match (reply, tally.is_empty()) {
        (None, true) => String::new(),
        (Some(reply), true) => reply,
        (reply, false) => {
            let reply = reply.map(|reply| format!("{reply}\n\n")).unwrap_or_default();
            format!("{reply}There is no final answer. What was done:\n{tally}")
        }
    }
}
