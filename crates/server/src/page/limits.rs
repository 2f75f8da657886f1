//! The limits of keys and the budgets, with what is used of them today.

use maud::{Markup, html};

use super::{format, layout};
use crate::app::App;
use crate::keys::KeyQuota;
use usage::{DayBudget, Scope};

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;

/// Shows the keys that have a limit, and the budgets; nothing without both.
pub(super) fn limits_section(app: &App) -> Markup {
    let quotas = app.access.quotas();
    let names: Vec<String> = quotas.iter().map(|quota| quota.name.clone()).collect();
    let budgets = app.usage.budgets(&names);
    let budget_of = |name: &str| budgets.iter().find(|it| it.scope == Scope::Key(name.to_owned()));
    let has_limit = |quota: &&KeyQuota| {
        let amounts = quota.tokens_per_day.is_some() || quota.requests_per_minute.is_some();
        amounts || quota.max_concurrency.is_some() || budget_of(&quota.name).is_some()
    };
    let limited: Vec<&KeyQuota> = quotas.iter().filter(has_limit).collect();
    let others = budgets.iter().filter(|budget| match &budget.scope {
        Scope::Key(name) => !names.contains(name),
        _ => true,
    });
    let others: Vec<&DayBudget> = others.collect();
    if limited.is_empty() && others.is_empty() {
        return html! {};
    }
    let currency = app.usage.currency();
    let resets = (clock::now() / DAY + 1) * DAY;
    let rows = html! {
        @for quota in limited {
            tr {
                th scope="row" { (quota.name) }
                td class="number" { (used_tokens(app, quota)) }
                td class="number" { (budget_of(&quota.name).map_or_else(dash, |budget| format_spending(budget, &currency))) }
                td class="number wide" { (quota.requests_per_minute.map_or_else(dash, |limit| limit.to_string())) }
                td class="number wide" { (quota.max_concurrency.map_or_else(dash, |limit| limit.to_string())) }
            }
        }
        @for budget in others {
            tr {
                th scope="row" { (format::with_code(&budget.scope.describe())) }
                td class="number" { (dash()) }
                td class="number" { (format_spending(budget, &currency)) }
                td class="number wide" { (dash()) }
                td class="number wide" { (dash()) }
            }
        }
    };
    let heads = [
        ("Key or budget", ""),
        ("Tokens", "number"),
        ("Spent", "number"),
        ("Requests a minute", "number wide"),
        ("At a time", "number wide"),
    ];
    html! {
        section {
            h2 { "Limits today" }
            p class="dim" { "Tokens and amounts begin again at " (format::format_time(resets)) "." }
            (layout::scrolling_table("Limits today", &heads, &rows))
        }
    }
}

fn used_tokens(app: &App, quota: &KeyQuota) -> String {
    let used = format::format_short_count(app.usage.tokens_today(&quota.name));
    match quota.tokens_per_day {
        Some(limit) => format!("{used} of {}", format::format_short_count(limit)),
        None => used,
    }
}

fn format_spending(budget: &DayBudget, currency: &str) -> String {
    format!("{} of {}", budget.spent, budget.budget.with_currency(currency))
}

fn dash() -> String {
    "–".to_owned()
}
