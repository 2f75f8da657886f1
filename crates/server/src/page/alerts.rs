//! The open alerts, and the button that silences one.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use maud::{Markup, html};

use super::guard::authorize_post;
use super::response::redirect_response;
use super::session::Viewer;
use super::{format, layout};
use crate::app::App;
use alerts::{OpenAlert, Rule};

/// The time for which the button silences an alert.
const SILENCE: Duration = Duration::from_hours(8);

/// Lists the open alerts, if there are any.
pub(super) fn alert_list(viewer: &Viewer, open: &[OpenAlert], now: u64) -> Markup {
    html! {
        @if !open.is_empty() {
            section aria-labelledby="alerts" {
                h2 id="alerts" { "Alerts" }
                ul class="problems" { @for alert in open { (alert_item(viewer, alert, now)) } }
            }
        }
    }
}

fn alert_item(viewer: &Viewer, alert: &OpenAlert, now: u64) -> Markup {
    let rule = Rule::from_name(&alert.rule);
    let fields = [("rule", alert.rule.as_str()), ("subject", alert.subject.as_str())];
    html! {
        li {
            p { (layout::colour_badge("bad", &alert.rule.replace('_', " "))) " " strong { (format::with_code(&alert.what)) } " since " (format::format_time(alert.since)) ", " (format::format_age(alert.since, now)) }
            @if let Some(rule) = rule { p class="cause" { (rule.meaning()) } p class="todo" { (format::with_code(rule.todo())) @if rule == Rule::RunFailed { " " a href={ "/ui/runs/" (alert.subject) } { "Show the run" } } } }
            @if alert.is_silenced { p class="dim" { "Silenced." } }
            @else { (layout::button_form(viewer, "/ui/alerts", "Silence for 8 h", &alert.what, &fields)) }
        }
    }
}

pub(super) async fn silence_alert(State(app): State<App>, request: Request) -> Response {
    let (viewer, form) = match authorize_post(&app, request).await {
        Ok(pressed) => pressed,
        Err(response) => return *response,
    };
    if let Some(rule) = Rule::from_name(form.get("rule")) {
        if let Err(error) = app.alerts.silence_alert(rule, form.get("subject"), SILENCE) {
            tracing::error!(target: "respool::server", %error, "a silence cannot be saved");
        } else {
            let rule = rule.as_str();
            tracing::info!(target: "respool::server", rule, by = viewer.name, "an alert was silenced on the page");
        }
    }
    redirect_response("/")
}
