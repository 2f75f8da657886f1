//! The stage that checks the budgets of the day.

use std::time::Duration;

use crate::app::App;
use usage::{Exhausted, Owner};
use wire::{ApiError, ErrorCode};

/// Refuses a request whose budget of the day is spent: its key's, its agent's, or that of all requests
/// together.
///
/// # Errors
/// 429, with the time until the next day.
pub(crate) fn check_budget(app: &App, key: Option<&str>, agent: &str) -> Result<(), ApiError> {
    if !app.usage.has_budgets() {
        return Ok(());
    }
    let owner = Owner { key: key.unwrap_or_default(), agent };
    app.usage.check_budget(owner).map_err(|exhausted| budget_error(&exhausted))
}

fn budget_error(exhausted: &Exhausted) -> ApiError {
    let Exhausted { scope, budget, wait } = exhausted;
    let left = humantime::format_duration(Duration::from_secs(*wait));
    let what = format!(
        "Today's budget for {} ({budget}) is used up: send the request again in {left}, or raise it in `[budgets]`",
        scope.describe()
    );
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
        let exhausted = Exhausted { scope, budget: usage::Money::from_units(2.5), wait: 75 };
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
