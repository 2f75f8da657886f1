//! Names of the log in words: outcomes, reasons for another attempt, and what was changed. Pure.

use std::borrow::Cow;
use std::time::Duration;

use super::format::format_duration;
use wire::UsageRow;

/// Returns an outcome or an error's code in words.
pub(super) fn outcome(name: &str) -> Cow<'_, str> {
    match name {
        "client_gone" => "client left".into(),
        "loop_guard" => "loop stopped".into(),
        "shutdown" => "respool stopped".into(),
        _ => name.replace('_', " ").into(),
    }
}

/// Says why another attempt followed.
pub fn reason(name: &str) -> Cow<'_, str> {
    match name {
        "model_glitch" => "the server reported a glitch of the model".into(),
        "lost_reply" => "the server lost the reply".into(),
        "empty_reply" => "the reply was empty".into(),
        "only_reasoning" => "the reply was reasoning without an answer".into(),
        "cut_reasoning" => "the reply ended within its reasoning".into(),
        "cut_call" => "the reply ended within a call".into(),
        "bad_call" => "a call could not be used".into(),
        "invalid_call" => "a call broke its tool's schema".into(),
        "unknown_tool" => "the model called a tool that does not exist".into(),
        "context" => "the conversation did not fit the model's window".into(),
        "failover" => "the server failed, so another one was asked".into(),
        "fallback" => "another model was asked in its place".into(),
        "transient" => "the server failed, so it was asked again".into(),
        "put_back" => "a more urgent request took its place".into(),
        rule => format!("the server refused a part of the request ({})", rule.replace('_', " ")).into(),
    }
}

/// Returns the model that the client asked for.
pub(super) fn asked_model(row: &UsageRow) -> &str {
    let first = row.details.fallback.split(',').next().unwrap_or_default();
    let asked = first.rsplit_once(':').map_or("", |(asked, _)| asked);
    [asked, &row.model, "no model"].into_iter().find(|model| !model.is_empty()).unwrap_or_default()
}

/// Names the models in whose place another one answered, each with the reason.
pub fn describe_fallback(row: &UsageRow) -> String {
    let one = |entry: &str| match entry.rsplit_once(':') {
        Some((model, why)) => format!("{model} ({why})"),
        None => entry.to_owned(),
    };
    row.details.fallback.split(',').map(one).collect::<Vec<_>>().join(", ")
}

/// Describes in a few words what was repaired in a request.
pub fn describe_repairs(row: &UsageRow) -> String {
    let mut done = Vec::new();
    let listed = |names: &str| names.replace(',', ", ").replace('_', " ");
    if row.dialects.split(',').any(|name| !name.is_empty() && name != "native") {
        done.push(format!("read from text ({})", listed(&row.dialects)));
    }
    if !row.repairs.is_empty() {
        done.push(format!("repaired: {}", listed(&row.repairs)));
    }
    if !row.recovery.is_empty() {
        done.push(format!("asked again: {}", listed(&row.recovery)));
    } else if row.attempts > 1 {
        done.push(format!("tried {} times", row.attempts));
    }
    if !row.loop_stopped.is_empty() {
        done.push(format!("loop stopped ({})", row.loop_stopped));
    }
    done.join("; ")
}

/// Says what a request waited for.
pub fn describe_wait(row: &UsageRow) -> String {
    let (place, upstream) = ("for a free place", "for the upstream to return");
    match row.details.queued.map(Duration::from_millis) {
        None => format!("{place}, or {upstream}"),
        Some(queued) if queued.is_zero() => upstream.to_owned(),
        // Milliseconds are cut off.
        Some(queued) if queued + Duration::from_millis(1) >= row.waited => place.to_owned(),
        Some(queued) => format!("{} of it {place}, then {upstream}", format_duration(queued)),
    }
}

/// Says what the next attempt changed.
pub fn remedy(name: &str) -> Cow<'_, str> {
    match name {
        "repeat" => "it was asked again".into(),
        "raw" => "it was asked for the unparsed text".into(),
        "correction" | "correction_brief" => "it got a note about the fault".into(),
        "required" => "it had to call a tool".into(),
        "structured" => "it was bound to the tool's schema".into(),
        "more_tokens" => "it was given more tokens".into(),
        other => other.replace('_', " ").into(),
    }
}

/// Returns an example of a repair: what a model may write, and what leaves. Without one the description says
/// enough.
pub(super) fn repair_example(name: &str) -> Option<[&'static str; 2]> {
    Some(match name {
        "alias" => [r#"{"file_path": "a.md"}"#, r#"{"path": "a.md"}"#],
        "coerced" => [r#"{"limit": "10"}"#, r#"{"limit": 10}"#],
        "comma" => [r#"{"a": 1 "b": 2,}"#, r#"{"a": 1, "b": 2}"#],
        "comment" => [r#"{"a": 1 /* one */}"#, r#"{"a": 1}"#],
        "double_encoded" => [r#""{\"a\": 1}""#, r#"{"a": 1}"#],
        "empty_arguments" => ["null", "{}"],
        "enum" => [r#"{"unit": "Celsius"}"#, r#"{"unit": "celsius"}"#],
        "escape" => [r#"{"path": "C:\Users"}"#, r#"{"path": "C:\\Users"}"#],
        "inner_quotes" => [r#"{"text": "say "yes" now"}"#, r#"{"text": "say \"yes\" now"}"#],
        "junk" => [r#"{"a": 1}} done"#, r#"{"a": 1}"#],
        "key" => [r#"{"Max-Lines": 3}"#, r#"{"max_lines": 3}"#],
        "keyed_text" => ["path=a.md", r#"{"path": "a.md"}"#],
        "literal" => [r#"{"all": True}"#, r#"{"all": true}"#],
        "name" => ["functions.Read_File", "read_file"],
        "null_dropped" => [r#"{"path": "a.md", "limit": null}"#, r#"{"path": "a.md"}"#],
        "quotes" => ["{path: 'a.md'}", r#"{"path": "a.md"}"#],
        "unclosed" => [r#"{"path": "a.md""#, r#"{"path": "a.md"}"#],
        "unwrapped" => [r#"{"parameters": {"path": "a.md"}}"#, r#"{"path": "a.md"}"#],
        "wrapped" => ["a.md", r#"{"path": "a.md"}"#],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_described() {
        let check = |row: UsageRow, expected: &str| assert_eq!(describe_repairs(&row), expected);
        check(UsageRow { attempts: 1, ..UsageRow::default() }, "");
        check(
            UsageRow { dialects: "hermes".into(), repairs: "renamed,closed".into(), ..UsageRow::default() },
            "read from text (hermes); repaired: renamed, closed",
        );
        check(
            UsageRow { recovery: "cut_call,more_tokens".into(), attempts: 2, ..UsageRow::default() },
            "asked again: cut call, more tokens",
        );
        check(
            UsageRow { attempts: 3, loop_stopped: "calls".into(), ..UsageRow::default() },
            "tried 3 times; loop stopped (calls)",
        );
    }

    #[test]
    fn waits_have_a_reason() {
        let mut row = UsageRow { waited: Duration::from_secs(5), ..UsageRow::default() };
        let mut check = |queued, expected: &str| {
            row.details.queued = queued;
            assert_eq!(describe_wait(&row), expected);
        };
        check(None, "for a free place, or for the upstream to return");
        check(Some(0), "for the upstream to return");
        check(Some(5_000), "for a free place");
        check(Some(2_000), "2.0 s of it for a free place, then for the upstream to return");
    }

    #[test]
    fn names_become_words() {
        assert_eq!(
            (outcome("client_gone"), outcome("queue_full")),
            ("client left".into(), "queue full".into())
        );
        assert_eq!(reason("stop_tokens"), "the server refused a part of the request (stop tokens)");
        assert_eq!(remedy("more_tokens"), "it was given more tokens");
        assert!(repair_example("unclosed").is_some() && repair_example("unchecked").is_none());
    }
}
