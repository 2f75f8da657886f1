//! A conversation as a Markdown file, for `/save`. Pure.

use std::fmt::Write as _;

use serde_json::Value;

use super::figures::format_count;
use agent::{Entry, Exchange, Outcome};
use wire::visible::one_line;

/// The most bytes of a tool's result in the file.
const RESULT: usize = 2_000;

/// Returns the whole conversation. `outcome`: of the last turn, whose answer is not an entry yet.
pub(super) fn conversation_markdown(entries: &[Entry], outcome: Option<&Outcome>) -> String {
    let mut out = String::from("# A conversation with respool chat\n");
    for entry in entries {
        let _ = match entry {
            Entry::ClientMessage(message) | Entry::UserTurn(message) => {
                writeln!(out, "\n## You\n\n{}", message_text(message))
            }
            Entry::Exchange(exchange) => write!(out, "{}", exchange_text(exchange)),
            Entry::Note(text) => writeln!(out, "\n_{}_", text.trim()),
            Entry::Summary(text) => writeln!(out, "\n## What was done before, in short\n\n{}", text.trim()),
        };
    }
    if let Some(outcome) = outcome {
        let _ = writeln!(out, "\n## Assistant\n\n{}", outcome.text().trim());
    }
    out
}

/// Says how many messages of the person there are, and whether earlier ones are in a summary.
pub(super) fn turns_text(entries: &[Entry]) -> String {
    let is_turn = |entry: &&Entry| matches!(entry, Entry::ClientMessage(_) | Entry::UserTurn(_));
    let turns = format_count(entries.iter().filter(is_turn).count(), "turn");
    let has_summary = entries.iter().any(|entry| matches!(entry, Entry::Summary(_)));
    if has_summary { format!("{turns}, and a summary of earlier ones") } else { turns }
}

/// Returns the last `count` questions, each with its last answer; an empty string stands for a missing one.
/// `outcome` belongs to the last turn, whose answer is not an entry yet.
pub(super) fn last_exchanges(
    entries: &[Entry],
    outcome: Option<&Outcome>,
    count: usize,
) -> Vec<(String, String)> {
    let mut exchanges: Vec<(String, String)> = Vec::new();
    for entry in entries {
        match (entry, exchanges.last_mut()) {
            (Entry::ClientMessage(message) | Entry::UserTurn(message), _) => {
                exchanges.push((message_text(message), String::new()));
            }
            (Entry::Exchange(exchange), Some((_, answer))) if !exchange.content.trim().is_empty() => {
                exchange.content.trim().clone_into(answer);
            }
            _ => {}
        }
    }
    if let (Some(outcome), Some((_, answer))) = (outcome.filter(|it| it.has_answer()), exchanges.last_mut()) {
        outcome.content.trim().clone_into(answer);
    }
    let skipped = exchanges.len().saturating_sub(count);
    exchanges.split_off(skipped)
}

/// Returns the reasoning of the replies of the last turn, with an empty line between. `outcome`: as for
/// [`last_exchanges`].
pub(super) fn last_reasoning(entries: &[Entry], outcome: Option<&Outcome>) -> String {
    let is_question = |entry: &Entry| matches!(entry, Entry::ClientMessage(_) | Entry::UserTurn(_));
    let start = entries.iter().rposition(is_question).unwrap_or(0);
    let replies = entries[start..].iter().filter_map(|entry| match entry {
        Entry::Exchange(exchange) => Some(&exchange.reasoning),
        _ => None,
    });
    let parts = replies.chain(outcome.map(|outcome| &outcome.reasoning)).map(|part| part.trim());
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// Returns the words of a message: its content, or the text before its pictures.
fn message_text(message: &Value) -> String {
    let content = &message["content"];
    content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default().trim().to_owned()
}

fn exchange_text(exchange: &Exchange) -> String {
    let mut out = String::new();
    if !exchange.content.trim().is_empty() {
        let _ = writeln!(out, "\n## Assistant\n\n{}", exchange.content.trim());
    }
    for call in &exchange.calls {
        let _ = writeln!(out, "\n**{}** `{}`", call.name, one_line(&call.arguments, 300).replace('`', "'"));
        if let Some(result) = exchange.results.iter().find(|result| result.id == call.id) {
            let text = &result.text[..result.text.floor_char_boundary(RESULT)];
            let cut = if text.len() < result.text.len() { "\n…" } else { "" };
            let _ = writeln!(out, "\n{}", code_block(&format!("{}{cut}", text.trim_end())));
        }
    }
    out
}

/// Returns a text as a block of code.
pub(super) fn code_block(text: &str) -> String {
    let fence = "`".repeat(longest_fence(text).max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end())
}

/// Returns the length of the longest run of backticks.
fn longest_fence(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::{RequestedCall, ToolResult};
    use serde_json::json;

    #[test]
    fn turns_in_a_summary_are_named() {
        let asked = || Entry::UserTurn(json!({"role": "user", "content": "x"}));
        assert_eq!(turns_text(&[asked(), asked()]), "2 turns");
        assert_eq!(
            turns_text(&[Entry::Summary("y".into()), asked()]),
            "1 turn, and a summary of earlier ones"
        );
    }

    #[test]
    fn the_last_exchanges_have_their_last_answers() {
        let question = |text: &str| Entry::UserTurn(json!({"role": "user", "content": text}));
        let answer = |text: &str| Entry::Exchange(Exchange { content: text.into(), ..Exchange::default() });
        let entries =
            [question("a"), answer("1"), question("b"), answer("I look."), answer("2"), question("c")];
        let outcome = Outcome { content: "3".into(), ..Outcome::default() };
        let pairs = |outcome| last_exchanges(&entries, outcome, 2);
        let expected = |last: &str| vec![("b".to_owned(), "2".to_owned()), ("c".to_owned(), last.to_owned())];
        assert_eq!(pairs(Some(&outcome)), expected("3"));
        assert_eq!(pairs(None), expected(""));
        assert_eq!(pairs(Some(&Outcome { cancelled: true, ..Outcome::default() })), expected(""));
        assert!(last_exchanges(&[], None, 2).is_empty());
    }

    #[test]
    fn the_last_turn_has_its_reasoning() {
        let question = Entry::UserTurn(json!({"role": "user", "content": "a"}));
        let reply = |text: &str| Entry::Exchange(Exchange { reasoning: text.into(), ..Exchange::default() });
        let entries = [question.clone(), reply("old"), question, reply("One.\n"), reply("")];
        let outcome = Outcome { reasoning: "Two.".into(), ..Outcome::default() };
        assert_eq!(last_reasoning(&entries, Some(&outcome)), "One.\n\nTwo.");
        assert_eq!(last_reasoning(&[], None), "");
    }

    #[test]
    fn a_conversation_is_readable_markdown() {
        let call = RequestedCall {
            id: "1".into(),
            name: "shell_command".into(),
            arguments: r#"{"command":"ls"}"#.into(),
            ..RequestedCall::default()
        };
        let result = ToolResult { id: "1".into(), ok: true, text: "a\n```\nb".into() };
        let entries = [
            Entry::ClientMessage(json!({"role": "user", "content": "Look."})),
            Entry::Exchange(Exchange { calls: vec![call], results: vec![result], ..Exchange::default() }),
        ];
        let outcome = Outcome { content: "Two files.".into(), ..Outcome::default() };
        let text = conversation_markdown(&entries, Some(&outcome));
        assert_eq!(
            text,
            "# A conversation with respool chat\n\n## You\n\nLook.\n\n**shell_command** `{\"command\":\"ls\"}`\n\n````\na\n```\nb\n````\n\n## Assistant\n\nTwo files.\n"
        );
    }
}
