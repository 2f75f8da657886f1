//! The open alerts, one line for each rule, and the buttons that silence one or end a silence.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::guard::Pressed;
use super::response::redirect_response;
use super::session::Viewer;
use super::{format, layout};
use crate::app::{App, Peer};
use alerts::{OpenAlert, Rule, Severity};

/// The time for which the button silences an alert.
const SILENCE: Duration = Duration::from_hours(8);

/// Lists the open alerts, one line for each rule, the urgent ones first.
pub(super) fn alert_list(viewer: &Viewer, open: &[OpenAlert], now: u64) -> Markup {
    let mut groups: BTreeMap<_, Vec<&OpenAlert>> = BTreeMap::new();
    for alert in open {
        let severity = Rule::from_name(&alert.rule).map(Rule::severity);
        groups.entry((std::cmp::Reverse(severity), &*alert.rule)).or_default().push(alert);
    }
    html! {
        @if groups.is_empty() { (layout::empty_note("No alert is open.")) }
        @else { div class="lines" { @for group in groups.values() { (alert_group(viewer, group, now)) } } }
    }
}

/// Writes the line of a rule, and below it what it means, what to do, and each alert.
fn alert_group(viewer: &Viewer, group: &[&OpenAlert], now: u64) -> Markup {
    let [first, ..] = group else { return html! {} };
    let rule = Rule::from_name(&first.rule);
    let is_urgent = rule.is_some_and(|rule| rule.severity() == Severity::Critical);
    let since = group.iter().map(|alert| alert.since).min().unwrap_or(now);
    html! {
        details {
            summary {
                (layout::colour_badge(if is_urgent { "bad" } else { "middling" }, &first.rule.replace('_', " ")))
                span class="what" { (format::with_code(&headline(group))) }
                span class="dim" {
                    @if let Some(until) = silence_end(group) { "silenced until " (format::format_short_time(until, now)) " UTC, " }
                    (format::format_age(since, now))
                }
            }
            @if let Some(rule) = rule { p { (rule.meaning()) " " (format::with_code(rule.todo())) } }
            ul class="items" { @for alert in group { (alert_item(viewer, alert, group.len() > 1, now)) } }
        }
    }
}

/// Returns when the first silence of a group ends, if all its alerts are silenced.
fn silence_end(group: &[&OpenAlert]) -> Option<u64> {
    group.iter().map(|alert| alert.silenced_until).min().flatten()
}

fn headline(group: &[&OpenAlert]) -> String {
    match (group, Rule::from_name(group.first().map_or("", |alert| &alert.rule))) {
        ([alert], _) => alert.what.clone(),
        (_, Some(Rule::RunFailed)) => format!("{} runs have failed.", group.len()),
        (_, Some(Rule::TaskFailed)) => format!("{} tasks of experts have failed.", group.len()),
        (_, Some(Rule::DeadLetter)) => format!("{} tasks of experts failed for good.", group.len()),
        (_, Some(Rule::UpstreamDown)) => format!("{} upstreams cannot be used.", group.len()),
        (_, Some(Rule::CircuitOpen)) => format!("Replies from {} upstreams are failing.", group.len()),
        (_, Some(Rule::TaskEscalated)) => format!("{} tasks of experts need your decision.", group.len()),
        (_, Some(Rule::ExpertNotReady)) => format!("{} experts are not ready.", group.len()),
        (_, Some(Rule::ApprovalWaiting)) => format!("{} requests wait for your approval.", group.len()),
        (_, Some(Rule::BudgetReached)) => format!("{} budgets are nearly spent.", group.len()),
        (_, Some(Rule::BudgetSpent)) => format!("{} budgets are spent.", group.len()),
        ([first, ..], _) => format!("{} (and {} more)", first.what, group.len() - 1),
        ([], _) => String::new(),
    }
}

fn alert_item(viewer: &Viewer, alert: &OpenAlert, with_text: bool, now: u64) -> Markup {
    let fields = [("rule", alert.rule.as_str()), ("subject", alert.subject.as_str())];
    let link = Rule::from_name(&alert.rule).and_then(|rule| alert_link(rule, &alert.subject));
    html! {
        li {
            @if with_text { (format::with_code(&alert.what)) " " }
            span class="dim" { "Since " (format::format_short_time(alert.since, now)) " UTC. " }
            @if let Some((address, name)) = link { a href=(address) { (name) } " " }
            @if alert.is_silenced { (layout::button_form(viewer, "/ui/alerts", "End the silence", &alert.what, &[fields[0], fields[1], ("until", "now")])) }
            @else { (layout::button_form(viewer, "/ui/alerts", "Silence for 8 h", &alert.what, &fields)) }
        }
    }
}

/// Returns the page that shows more about an alert, and the name of the link.
fn alert_link(rule: Rule, subject: &str) -> Option<(String, &'static str)> {
    let encode = |text: &str| {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    };
    let requests = |query: &str| Some((format!("/ui/requests?{query}"), "Show the requests"));
    match rule {
        Rule::RunFailed => Some((format!("/ui/runs/{}", encode(subject)), "Show the run")),
        Rule::ApprovalWaiting | Rule::DeadLetter | Rule::TaskFailed | Rule::TaskEscalated => {
            Some(("/ui/approvals".to_owned(), "Show it"))
        }
        Rule::ExpertNotReady => Some((format!("/ui/experts/{}", encode(subject)), "Show the expert")),
        Rule::UpstreamDown | Rule::CircuitOpen | Rule::KeyRefused | Rule::CertificateRefused => {
            // Another upstream may have answered them in the end.
            requests(&format!("upstream={}&period=1h", encode(subject)))
        }
        Rule::ErrorRate => requests("outcome=error&period=1h"),
        Rule::LoopsStopped => requests("outcome=loop_guard&period=1h"),
        Rule::Overflows => requests("text=context_length_exceeded&period=1h"),
        Rule::SecondAttempts | Rule::PrefixLost | Rule::RepairsRepeated => requests("period=1h"),
        Rule::QueueWaits | Rule::FirstByteSlow => requests("period=1h&order=first_byte"),
        Rule::BudgetReached | Rule::BudgetSpent => {
            Some(("/ui/usage?period=24h".to_owned(), "Show the usage"))
        }
        // The page lists the requests in progress.
        Rule::UpstreamSilent
        | Rule::StateNotWritable
        | Rule::StateRemoved
        | Rule::DatabaseAway
        | Rule::NodeLost
        | Rule::DatabaseSetAside
        | Rule::ReloadFailed
        | Rule::ModelMissing
        | Rule::LogLinesLost => None,
    }
}

/// Silences an alert, or ends its silence.
pub(super) async fn silence_alert(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    Pressed { viewer, form }: Pressed,
) -> Response {
    let client = peer.map(|Extension(peer)| peer.0.to_string());
    if let Some(rule) = Rule::from_name(form.get("rule")) {
        let (subject, ends) = (form.get("subject"), form.get("until") == "now");
        let changed = if ends {
            app.alerts.end_silence(rule, subject)
        } else {
            app.alerts.silence_alert(rule, subject, SILENCE)
        };
        let rule = rule.as_str();
        if let Some(store) = app.agents.store()
            && let Err(error) = store.set_silences(app.alerts.silences_text()).await
        {
            tracing::error!(target: "respool::server", %error, "other nodes do not know of a silence");
        }
        match changed {
            Ok(()) => {
                let done = if ends { "ended" } else { "begun" };
                tracing::info!(target: "respool::server", rule, subject, by = viewer.name, client, "a silence was {done} on the page");
            }
            Err(error) => tracing::error!(target: "respool::server", %error, "a silence cannot be saved"),
        }
    }
    redirect_response("/#alerts")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(rule: Rule, subject: &str) -> OpenAlert {
        let what = format!("About `{subject}`.");
        OpenAlert {
            rule: rule.as_str().into(),
            subject: subject.into(),
            what,
            since: 1,
            is_silenced: false,
            silenced_until: None,
        }
    }

    #[test]
    fn alerts_are_one_line_for_each_rule() {
        let viewer = Viewer::default();
        let tasks = ["a", "b"].map(|task| alert(Rule::TaskFailed, task));
        assert_eq!(headline(&tasks.iter().collect::<Vec<_>>()), "2 tasks of experts have failed.");
        let failed = ["a", "b", "c"].map(|run| alert(Rule::RunFailed, run));
        let open = [&failed[..], &[alert(Rule::UpstreamDown, "x&y")]].concat();
        let shown = alert_list(&viewer, &open, 9).into_string();
        assert_eq!(shown.matches("<summary>").count(), 2, "{shown}");
        assert!(shown.find("down</span>").unwrap() < shown.find("3 runs have failed.").unwrap());
        assert!(shown.contains("About <code>x&amp;y</code>.") && shown.contains("upstream=x%26y"), "{shown}");
        assert!(shown.contains("/ui/runs/b") && shown.matches("Silence for 8 h</button>").count() == 4);
    }

    #[test]
    fn a_silence_can_be_ended() {
        let viewer = Viewer::default();
        let silenced =
            OpenAlert { is_silenced: true, silenced_until: Some(60_000), ..alert(Rule::ErrorRate, "") };
        let shown = alert_list(&viewer, &[silenced], 9).into_string();
        assert!(shown.contains("silenced until ") && shown.contains("End the silence</button>"), "{shown}");
    }
}
