//! The end of a turn in words: why it has no whole answer, the person's next step, and the cost. Pure.

use std::time::Duration;

use super::figures::{format_count, format_seconds, format_thousands};
use agent::{FailureKind, Limit, Outcome, Spent};
use wire::ErrorCode;

/// Returns the reason why a turn has no complete answer; `None` when it has one.
pub(super) fn why_not(outcome: &Outcome) -> Option<String> {
    match (&outcome.failure, &outcome.limit) {
        _ if outcome.cancelled => Some("stopped".to_owned()),
        (Some(failure), _) if failure.kind == FailureKind::Overflow => {
            Some("no answer: your message and the conversation do not fit into the model's window".to_owned())
        }
        (Some(failure), _) if failure.code == ErrorCode::UpstreamCredentialsRefused.as_str() => Some(
            "no answer: the model server rejects the key. Give it as `api_key` or `api_key_env` of its [[upstream]] in \
             respool.toml; with --upstream, set the environment variable VLLM_API_KEY"
                .to_owned(),
        ),
        (Some(failure), _) => Some(format!("no answer: {}", failure.text)),
        (None, Some(limit)) => Some(limit_text(limit)),
        (None, None) if outcome.cut => {
            Some("the answer was cut: it reached the most tokens of one reply; ask for the rest, or for smaller parts".to_owned())
        }
        (None, None) if !outcome.has_answer() => Some("the model gave no answer".to_owned()),
        (None, None) => None,
    }
}

/// Describes the limit at which a turn ended.
fn limit_text(limit: &Limit) -> String {
    match limit {
        Limit::Iterations(count) => {
            format!("stopped after {count} replies of the model; say \"go on\" to continue")
        }
        Limit::Time(millis) => format!("stopped after {}", format_seconds(Duration::from_millis(*millis))),
        Limit::Tokens(tokens) => format!("stopped after {} tokens", format_thousands(*tokens)),
        Limit::Loop => {
            "stopped: the model made the same call again and again, with the same result".to_owned()
        }
        Limit::Corrections => {
            "stopped: the model's replies could not be used, also after a correction".to_owned()
        }
    }
}

/// Returns what the person can do after a failure with this code. `has_begun`: the turn has replies.
pub(super) fn next_step(code: &str, has_begun: bool) -> &'static str {
    match code {
        "context_length_exceeded" => {
            "; shorten the message, or make room with /compact, or with /clear if your first message is the long one"
        }
        "truncated_tool_call" => {
            "; ask for smaller parts, or raise the limit: `[models.\"ID\"] set = { max_tokens = 32768 }` in respool.toml"
        }
        "model_not_found" => "; /model NAME chooses another one",
        _ if has_begun => "; what the turn did is kept: say \"go on\", or try another /model",
        _ => "; your message is not lost: press ↑ to send it again, or try another /model",
    }
}

/// Returns the known cost of a turn.
pub(super) fn cost_summary(spent: &Spent) -> String {
    let Spent { tokens, calls, uncounted } = spent;
    let calls_made =
        if *calls > 1 { format!(" · {}", format_count(*calls, "model call")) } else { String::new() };
    if calls == uncounted {
        return calls_made;
    }
    let least = if *uncounted > 0 { "at least " } else { "" };
    let (prompt, completion) = (format_thousands(tokens.prompt), format_thousands(tokens.completion));
    format!("{calls_made} · {least}{prompt} tokens in, {completion} out")
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::ModelFailure;

    #[test]
    fn a_turn_without_a_whole_answer_says_why() {
        let check = |outcome: &Outcome, expected: Option<&str>| {
            let why = why_not(outcome);
            assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
            assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        let answered = Outcome { content: "x".into(), ..Outcome::default() };
        check(&answered, None);
        check(&Outcome::default(), Some("no answer"));
        let too_long = ModelFailure {
            kind: FailureKind::Overflow,
            status: 400,
            code: "context_length_exceeded".into(),
            text: "This model's maximum context length is".into(),
            wait: None,
        };
        let code = ErrorCode::UpstreamCredentialsRefused.as_str().to_owned();
        let refused = ModelFailure { kind: FailureKind::Final, code, ..too_long.clone() };
        check(
            &Outcome { failure: Some(refused), ..Outcome::default() },
            Some("set the environment variable"),
        );
        let failed = Outcome { failure: Some(too_long), ..Outcome::default() };
        check(&failed, Some("do not fit into the model's window"));
        check(&Outcome { cut: true, ..answered.clone() }, Some("cut"));
        check(&Outcome { cancelled: true, ..answered.clone() }, Some("stopped"));
        check(&Outcome { limit: Some(Limit::Iterations(5)), ..answered.clone() }, Some("after 5 replies"));
        check(&Outcome { limit: Some(Limit::Loop), ..answered }, Some("the same call"));
    }

    #[test]
    fn unknown_costs_are_not_shown_as_zero() {
        let tokens = agent::Tokens { prompt: 1_200, completion: 80, ..Default::default() };
        for (calls, uncounted, expected) in [
            (0, 0, ""),
            (1, 0, " · 1,200 tokens in, 80 out"),
            (1, 1, ""),
            (2, 2, " · 2 model calls"),
            (3, 1, " · 3 model calls · at least 1,200 tokens in, 80 out"),
        ] {
            assert_eq!(cost_summary(&Spent { tokens, calls, uncounted }), expected);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(format_thousands(number), expected);
        }
    }
}
