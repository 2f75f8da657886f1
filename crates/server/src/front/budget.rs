//! The stage that checks the budgets of the day.

use std::time::Duration;

use crate::app::App;
use telemetry::RequestStart;
use usage::{Exhausted, Owner, Shortage};
use wire::{ApiError, ErrorCode};

/// Refuses a request whose budget of the day is spent, or will likely be by the requests under way: its
/// key's, its agent's, or that of all requests together.
///
/// # Errors
/// 429, with the time until another request may pass.
pub(crate) fn check_budget(app: &App, start: &RequestStart, agent: &str) -> Result<(), ApiError> {
    if !app.usage.has_budgets() {
        return Ok(());
    }
    let owner = Owner { key: start.key_name().unwrap_or_default(), agent };
    app.usage.check_budget(owner, &start.id).map_err(|exhausted| budget_error(&exhausted))
}

fn budget_error(exhausted: &Exhausted) -> ApiError {
    let Exhausted { shortage, scope, budget, wait } = exhausted;
    let left = humantime::format_duration(Duration::from_secs(*wait));
    let whose = scope.describe();
    let what = match shortage {
        Shortage::Spent => format!(
            "Today's budget for {whose} ({budget}) is used up: send the request again in {left}, or ask the operator of respool to raise it"
        ),
        Shortage::UnderWay => format!(
            "Requests under way will likely use up today's budget for {whose} ({budget}): send the request again in {left}, or \
             ask the operator of respool to raise it"
        ),
        Shortage::Unknown => format!(
            "Requests under today's budget for {whose} are refused, because the database that counts it cannot be reached: send the \
             request again in {left}, and tell the operator of respool"
        ),
    };
    let mut error = ApiError::new(429, ErrorCode::BudgetSpent, what);
    error.retry_after = Some(*wait);
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::final_error::ErrorForm;
    use translate::ClientProgram;

    /// A client gets a 429 with the time to wait. OpenClaw gets a 422, which it does not repeat.
    #[test]
    fn a_spent_budget_says_how_long() {
        let scope = usage::Scope::Key("alice".into());
        let exhausted =
            Exhausted { shortage: Shortage::Spent, scope, budget: usage::Money::from_units(2.5), wait: 75 };
        let error = budget_error(&exhausted);
        assert_eq!((error.status, error.retry_after), (429, Some(75)));
        assert!(
            error.message.contains("the key `alice` (2.50)") && error.message.contains("1m 15s"),
            "{}",
            error.message
        );
        let form = ErrorForm { program: ClientProgram::OpenClaw, ..ErrorForm::default() };
        let shown = form.apply_to(error.clone());
        assert_eq!((shown.status, shown.retry_after, shown.message), (422, None, error.message));
    }
}
