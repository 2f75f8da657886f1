//! What an agent's client sees of the work: one line for each tool call. Pure. Used by `agents`.

use serde_json::{Map, Value};

use super::happening::Happening;
use super::record::{Asked, Ended, How};

/// So much of the arguments is shown, in bytes.
const WIDEST: usize = 160;

/// The text for what happens, where there is one.
pub(super) fn text(happening: Happening<'_>) -> Option<String> {
    match happening {
        Happening::Replied(said) => {
            let beside = said.content.trim();
            (!said.calls.is_empty() && !beside.is_empty()).then(|| format!("{beside}\n"))
        }
        // Before anything was done, a failure may still become a true HTTP status.
        Happening::ModelFailed { failure, again, is_first } => {
            (again && !is_first).then(|| format!("[model: {}]\n", failure.code))
        }
        Happening::Begins { call, again } => Some(begins(call, again)),
        Happening::Ended { ended: how, .. } => Some(ended(how)),
        Happening::NotKept => Some("[this run cannot be kept on disk at present; it goes on]\n".to_owned()),
        Happening::Asks(_) | Happening::Reasoning(_) | Happening::Content(_) => None,
    }
}

/// The first half of a line: which tool, on what.
fn begins(call: &Asked, again: bool) -> String {
    let again = if again { ", again" } else { "" };
    let what = on_what(&call.arguments);
    let colon = if what.is_empty() { "" } else { ": " };
    format!("[{}{again}{colon}{what}] ", call.name)
}

/// The second half: outcome and time.
fn ended(ended: &Ended) -> String {
    let seconds = ended.took / 1_000;
    let tenths = ended.took % 1_000 / 100;
    match ended.how {
        How::Ok => format!("ok, {} bytes in {seconds}.{tenths} s\n", ended.text.len()),
        how => format!("{} after {seconds}.{tenths} s\n", how.as_str().replace('_', " ")),
    }
}

/// The values of the arguments, in one short line.
fn on_what(arguments: &str) -> String {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let all = arguments.values().map(value).collect::<Vec<_>>().join(", ");
    let flat: String = all.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if flat.len() <= WIDEST { flat } else { format!("{}…", &flat[..flat.floor_char_boundary(WIDEST)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_which_tool_on_what_how_long_and_what_came_of_it() {
        let call = |arguments: &str| Asked {
            name: "web_search".into(),
            arguments: arguments.into(),
            ..Asked::default()
        };
        assert_eq!(
            begins(&call(r#"{"query":"rust\nproxies","count":3}"#), false),
            "[web_search: rust proxies, 3] "
        );
        assert_eq!(begins(&call("{}"), false), "[web_search] ");
        assert!(begins(&call(&format!(r#"{{"q":"{}"}}"#, "ä".repeat(500))), true).len() < 200);
        let ended = |how| ended(&Ended { how, text: "abc".into(), took: 1_260 });
        assert_eq!(ended(How::Ok), "ok, 3 bytes in 1.2 s\n");
        assert_eq!(ended(How::TimedOut), "timed out after 1.2 s\n");
    }
}
