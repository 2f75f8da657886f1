//! Describes how calls ended. Pure.

use super::super::figures::format_count;
use super::super::preview;
use agent::{CallOutcome, ToolEnd};
use wire::visible::one_line;

/// The beginning of the line that the shell tool adds when a signal ended the command.
const SIGNAL: &str = "[ended by signal ";

/// Describes in a few words how a call ended.
pub(super) fn outcome_text(tool: &str, ended: &ToolEnd, display: Option<&str>) -> String {
    let first = || one_line(ended.text.lines().next().unwrap_or_default(), 120);
    match (ended.outcome, tool) {
        (CallOutcome::Ok, "shell_command") => match ended.exit_code {
            Some(0) => "ok".to_owned(),
            Some(code) => format!("exit code {code}"),
            // A signal ended it, and a remark of respool's may follow.
            None => ended
                .text
                .lines()
                .rfind(|line| line.starts_with(SIGNAL))
                .map_or_else(|| "ok".to_owned(), |note| one_line(note.trim_matches(['[', ']']), 60)),
        },
        (CallOutcome::Ok, "read_file") => lines_read(&ended.text),
        (CallOutcome::Ok, _) => display.map_or_else(first, preview::change_counts),
        (CallOutcome::TimedOut, _) => "took too long and was stopped".to_owned(),
        _ => first(),
    }
}

/// Returns true if only the first of several lines of a result is shown.
pub(super) fn is_first_line_shown(tool: &str, ended: &ToolEnd, display: Option<&str>) -> bool {
    let has_own_form = ["shell_command", "read_file"].contains(&tool) || display.is_some();
    !has_own_form && ended.text.trim_end().lines().nth(1).is_some()
}

/// Describes how much of a file was read. The tool says behind the text which lines it has, if not all.
fn lines_read(text: &str) -> String {
    let part = text.lines().next_back().and_then(|line| line.strip_prefix("[lines "));
    match part.and_then(|part| part.split_once(';')) {
        Some((lines, _)) => format!("lines {lines} of a longer file"),
        None => format_count(text.lines().count(), "line"),
    }
}

/// Returns the reason why the policy refused a call, without the part that only the model needs.
pub(super) fn refusal_text(text: &str) -> String {
    let why = text.split_once("did not run: ").map_or(text, |(_, why)| why);
    format!("not done: {}", one_line(why.split(". ").next().unwrap_or_default(), 120))
}

/// Returns true if only the beginning and the end of an output were kept.
pub(super) fn is_in_part(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("[… ") && line.ends_with(" bytes left out here …]"))
}

/// Returns true for a line that the shell tool adds itself.
pub(super) fn is_note(line: &str) -> bool {
    line == "[no output]" || line.starts_with("[exit code ") || line.starts_with(SIGNAL)
}
