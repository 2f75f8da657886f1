//! The kept exchange of a request, on its page: what was sent and received, and the first difference to the
//! last prompt of its conversation.

use std::sync::Arc;

use maud::{Markup, html};

use super::format;
use crate::app::App;
use telemetry::Exchange;
use telemetry::capture::Reply;
use wire::UsageRow;
use wire::{Object, array_elements};

/// How much of a body is shown, in bytes.
const SHOWN: usize = 64 << 10;
/// How much of a difference is shown before and after its place, in bytes.
const BEFORE: usize = 60;
const AFTER: usize = 160;

/// The exchange of a request, and the one before it in the same conversation.
#[derive(Debug)]
pub(super) struct KeptExchange {
    exchange: Exchange,
    previous: Option<Exchange>,
}

/// Reads the kept exchange of a request.
pub(super) async fn read_kept_exchange(app: &App, row: &UsageRow) -> Option<KeptExchange> {
    let captures = Arc::clone(app.recording.captures.as_ref()?);
    let (id, at) = (row.id.clone(), row.at);
    let read = move || {
        let exchange = captures.find(&id, Some(at))?;
        let previous = captures.previous_of(&exchange);
        Some(KeptExchange { exchange, previous })
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

/// Says how to see the exchange of a request.
pub(super) fn login_note() -> Markup {
    html! { p class="notice" { "To see what was sent and received, " a href="/ui/login" { "log in with an operator key" } "." } }
}

/// Shows the exchange of a request, or how to have the next one kept.
pub(super) fn exchange_section(kept: Option<&KeptExchange>) -> Markup {
    let Some(KeptExchange { exchange, previous }) = kept else {
        return html! { p class="dim" { "What was sent and received was not kept: " code { "[capture]" } " keeps it, for the keys that it names (docs/replay.md)." } };
    };
    html! {
        section {
            h2 { "Exchange" }
            p class="dim" {
                @if !exchange.client_request.is_empty() { "Run the kept replies through this version: " code { "respool replay " (exchange.id) } "." }
                @if exchange.is_cut { " It was larger than " code { "capture.max_exchange" } ", so parts are missing." }
            }
            @if let Some(comparison) = previous.as_ref().and_then(|previous| compare(previous, exchange)) {
                (comparison_note(&comparison))
            }
            @if !exchange.client_request.is_empty() { (body_details("The client sent", &exchange.client_request)) }
            @for (index, attempt) in exchange.attempts.iter().enumerate() {
                (body_details(&format!("{}. Sent to {}", index + 1, attempt.upstream), &attempt.sent))
                (reply_details(&format!("{}. {} replied", index + 1, attempt.upstream), &attempt.reply))
            }
            @if exchange.client_reply.status != 0 { (reply_details("The client got", &exchange.client_reply)) }
        }
    }
}

fn reply_details(label: &str, reply: &Reply) -> Markup {
    match reply.status {
        0 => html! { p { (label) ": nothing." } },
        status => body_details(&format!("{label}: HTTP {status}, {}", reply.content_type), &reply.body),
    }
}

fn body_details(label: &str, body: &str) -> Markup {
    let size = format::format_count(body.len() as u64);
    let pretty = serde_json::from_str(body).ok().map(|json: serde_json::Value| format!("{json:#}"));
    let text = pretty.as_deref().unwrap_or(body);
    let shown = &text[..text.floor_char_boundary(SHOWN)];
    html! {
        details {
            summary { (label) " (" (size) " bytes)" }
            pre { (shown) }
            @if shown.len() < text.len() { p class="dim" { "Only the beginning is shown." } }
        }
    }
}

/// A prompt compared with the last one of its conversation.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    /// It repeats the last one and adds to it.
    Continues { same: usize, new: usize },
    /// They differ here.
    Differs { place: String, before: String, after: String },
}

fn compare(previous: &Exchange, exchange: &Exchange) -> Option<Comparison> {
    compare_prompts(&previous.attempts.first()?.sent, &exchange.attempts.first()?.sent)
}

fn compare_prompts(before: &str, after: &str) -> Option<Comparison> {
    let (old, new) = (Object::parse(before).ok()?, Object::parse(after).ok()?);
    let differs =
        |place: &str, (before, after)| Some(Comparison::Differs { place: place.to_owned(), before, after });
    let tools = |request: &Object<'_>| request.get("tools").unwrap_or_default().to_owned();
    // The tools stand before all messages in a prompt.
    if tools(&old) != tools(&new) {
        return differs("the tools", excerpts(&tools(&old), &tools(&new)));
    }
    let (old, new) = (array_elements(old.get("messages")?)?, array_elements(new.get("messages")?)?);
    let different = old.iter().zip(&new).position(|(old, new)| old != new);
    match different {
        Some(index) => differs(&format!("message {}", index + 1), excerpts(old[index], new[index])),
        None if old.len() > new.len() => {
            differs(&format!("message {}, which is gone", new.len() + 1), excerpts(old[new.len()], ""))
        }
        None => Some(Comparison::Continues { same: old.len(), new: new.len() - old.len() }),
    }
}

/// Returns the texts around the first byte in which they differ.
fn excerpts(before: &str, after: &str) -> (String, String) {
    let same = before.bytes().zip(after.bytes()).take_while(|(one, other)| one == other).count();
    let excerpt = |text: &str| {
        let start = text.floor_char_boundary(same.saturating_sub(BEFORE));
        let end = text.floor_char_boundary(same.saturating_add(AFTER));
        let (cut, rest) = (if start > 0 { "…" } else { "" }, if end < text.len() { "…" } else { "" });
        format!("{cut}{}{rest}", &text[start..end])
    };
    (excerpt(before), excerpt(after))
}

fn comparison_note(comparison: &Comparison) -> Markup {
    match comparison {
        Comparison::Continues { same, new } => html! {
            p { "The prompt repeats all " (same) " messages of this conversation's last prompt and adds " (new) ", so the server can use its cache." }
        },
        Comparison::Differs { place, before, after } => html! {
            p { "The prompt first differs from this conversation's last one in " (place) "; from there on, the server reads it again." }
            dl class="facts" {
                dt { "Last" } dd { code { (before) } }
                dt { "This" } dd { code { (after) } }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(system: &str, words: &[&str], tools: &str) -> String {
        let messages: Vec<String> =
            words.iter().map(|word| format!(r#"{{"role":"user","content":"{word}"}}"#)).collect();
        format!(
            r#"{{"tools":{tools},"messages":[{{"role":"system","content":"{system}"}},{}]}}"#,
            messages.join(",")
        )
    }

    fn place(before: &str, after: &str) -> String {
        match compare_prompts(before, after).unwrap() {
            Comparison::Continues { same, new } => format!("{same} + {new}"),
            Comparison::Differs { place, .. } => place,
        }
    }

    #[test]
    fn the_first_difference_is_found() {
        let first = request("Be kind.", &["a"], "[]");
        assert_eq!(place(&first, &request("Be kind.", &["a", "b"], "[]")), "2 + 1");
        assert_eq!(place(&first, &request("It is 9.", &["a", "b"], "[]")), "message 1");
        assert_eq!(place(&first, &request("Be kind.", &["x"], "[]")), "message 2");
        assert_eq!(place(&first, &request("Be kind.", &["a"], "[1]")), "the tools");
        let longer = request("Be kind.", &["a", "b"], "[]");
        assert_eq!(place(&longer, &first), "message 3, which is gone");
        assert_eq!(compare_prompts("no", &first), None);
    }

    #[test]
    fn an_excerpt_shows_both_sides_of_the_place() {
        let long = "é".repeat(200);
        let (before, after) = excerpts(&format!("{long}old{long}"), &format!("{long}new"));
        assert!(before.starts_with("…é") && before.contains("éoldé") && before.ends_with('…'), "{before}");
        assert!(after.ends_with("énew"), "{after}");
    }

    #[test]
    fn bodies_are_escaped_and_bounded() {
        let attempt = telemetry::capture::Attempt { upstream: "box".into(), ..Default::default() };
        let exchange = Exchange {
            client_request: format!("<b>{}", "x".repeat(100_000)),
            attempts: vec![attempt],
            ..Exchange::default()
        };
        let shown = exchange_section(Some(&KeptExchange { exchange, previous: None })).into_string();
        assert!(shown.contains("&lt;b&gt;") && shown.contains("Only the beginning is shown."), "{shown}");
        assert!(shown.len() < 2 * SHOWN && shown.contains("1. box replied: nothing."));
        assert!(exchange_section(None).into_string().contains("[capture]"));
    }
}
