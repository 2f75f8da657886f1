//! Words in a final error on which OpenClaw acts: some make it repeat the whole request for a minute, some
//! disable the provider, and some make it show its owner another text.
//!
//! Measured phrase by phrase on 2026.9.6 and 2026.2.26, and read in their shipped classifiers
//! (docs/openclaw-measured.md has the tables). Texts must suit both versions. Pure. Called by `relay`.

use std::sync::LazyLock;

use regex::Regex;

use wire::pattern::compile_pattern;

/// Words for which 2026.9.6 repeats the request or disables the provider.
static NEW: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?ix)
          \brate[\ _]limit | too\ many\ requests | \b(?:http|status)\ 429 | ^429\b | \b429\ quota | throttl | concurrency\ limit
        | model_cooldown | resource[\ _]exhausted | \btpm\b | tokens\ per\ minute | overloaded | at\ capacity
        | service[\ _]unavailable | high\ (?:demand|load) | an\ error\ occurred\ while\ processing | internal[\ _](?:server[\ _])?error
        | server_error | bad\ gateway | gateway\ timeout | upstream\ (?:connect\ )?error | \bhttp\ 5\d\d
        | timeout | timed\ out | deadline\ exceeded | connection\ (?:error|reset) | network\ (?:error|request\ failed)
        | fetch\ failed | socket\ hang\ up | econn\w+ | e(?:socket)?timedout | epipe | enotfound | eai_again | e(?:host|net)unreach | \bund_err
        | without\ sending\ any\ chunks | (?:finish_)?reason:\ (?:abort|error|malformed_response|network_error)
        | operation\ was\ aborted | stream\ (?:was\ )?(?:closed|aborted) | stream\ disconnected | repeated\ internal\ retries | modelnotreadyexception
        | ^(?:llm\ )?request\ failed\.?$ | ^terminated$ | unknown\ error\ occurred | requires\ reasoning | reasoning\ .*(?:required|mandatory|disabled)
        | \b40[123]\b | payment\ required | insufficient | spend(?:ing)?\ limit | available\ balance | out\ of\ budget | credit\ balance
        | plans\ &\ billing | requires\ more\ credits | ^billing | (?:incorrect|invalid)[\ _]api[\ _]key | api\ key\ (?:is\ )?(?:invalid|not\ valid|revoked|deactivated|deleted)
        | invalid[\ _]token | authenticat | unauthori[sz]ed | forbidden | access\ denied | permission_error | missing\ scope | expired
        | no\ (?:credentials|api\ key)\ found | failed\ to\b.*\btoken | could\ not\ (?:authenticate|validate) | (?:key|account)\ has\ been | not\ allowed\ for\ this\ organi
        ",
    )
});

/// Words that 2026.9.6 takes for a full context.
static OVERFLOW: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?ix)
          context\ length | context\ (?:window\ )?(?:overflow|exceed) | context\ .*overflow | context_length_exceeded | prompt\ (?:is\ )?too\ long | request_too_large
        | too\ many\ tokens | token\ limit\ exceeded | exceeds\ the\ limit\ of | model\ token\ limit | reduce\ the\ length\ of
        ",
    )
});

/// Words for which 2026.2.26 repeats the request or shows its own text. It finds numbers as substrings.
static OLD: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?ix)
          overloaded | rate.?limit | too\ many\ requests | 429 | 50[0234] | service.?unavailable | server\ error | internal\ error
        | connection.?error | connection.?refused | other\ side\ closed | fetch\ failed | upstream.?connect | reset\ before\ headers
        | terminated | retry\ delay | timeout | timed\ out | deadline\ exceeded | without\ sending\ any\ chunks | reason:\ abort
        | \btpm\b | usage\ limit | quota\ exceeded | exceeded\ your\ current\ quota | cooling\ down | model_cooldown | resource\ has\ been\ exhausted | high\ demand
        | (?:http|error|got\ a)\ 402 | payment\ required | insufficient | credit\ balance | plans\ &\ billing
        | requires\ reasoning | roles\ must\ alternate | incorrect\ role\ information | tool_call\.arguments
        | context.*overflow | context\ window.*(?:too\ (?:large|long)|exceed|over|limit|max|requested|sent|tokens)
        | prompt.*(?:too\ (?:large|long)|exceed|over|limit|max)
        | (?:request|input).*(?:context|window|length|token).*(?:too\ (?:large|long)|exceed|over|limit|max)
        ",
    )
});

/// Returns true when both versions show this text of a 422 unchanged, after one request.
pub fn is_harmless_for_openclaw(text: &str) -> bool {
    !NEW.is_match(text) && !OVERFLOW.is_match(text) && !OLD.is_match(text)
}

/// Returns true when a text that reports a full context has no other effect on OpenClaw.
pub fn is_harmless_overflow(text: &str) -> bool {
    !NEW.is_match(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Phrases that were measured.
    #[test]
    fn measured_phrases() {
        for harmless in [
            "closed the connection",
            "refused the connection",
            "gave no answer within 60 s",
            "answered with 5xx",
            "is busy",
            "temporarily unavailable",
            "does not accept the API key",
            "try again in 5 s",
            "stream ended before a terminal event",
        ] {
            let text = format!("the model server `box` {harmless}.");
            assert!(is_harmless_for_openclaw(&text), "{text}");
        }
        for harmful in [
            "Connection refused",
            "timed out",
            "HTTP 503",
            "is overloaded",
            "rate limit",
            "unauthorized",
            "the token has expired",
            "port 15002",
            "internal server error",
            "failed to parse the token",
            "the request ran into the token limit",
        ] {
            let text = format!("the model server `box` said: {harmful}.");
            assert!(!is_harmless_for_openclaw(&text), "{text}");
        }
    }

    /// An earlier list of the same words was applied to every client's errors. All of it that was measured to
    /// harm is in this one.
    #[test]
    fn words_that_switch_the_provider_off() {
        for words in [
            "401",
            "402",
            "403",
            "unauthorised",
            "forbidden",
            "authentication",
            "access denied",
            "expired",
            "invalid_token",
            "incorrect api key",
            "invalid_api_key",
            "api key is not valid",
            "api key revoked",
            "no api key found",
            "no credentials found",
            "insufficient_quota",
            "permission_error",
            "missing scope",
            "key has been disabled",
            "payment required",
            "credit balance",
            "plans & billing",
            "exceeded your current quota",
            "timeout",
            "timed out",
            "deadline exceeded",
            "connection error",
            "connection reset",
            "network error",
            "fetch failed",
            "ECONNREFUSED",
            "rate_limit",
            "too many requests",
            "overloaded",
            "service unavailable",
            "internal server error",
            "bad gateway",
            "upstream error",
        ] {
            let text = format!("the model server `box` said: {words}");
            assert!(!is_harmless_for_openclaw(&text), "{text}");
        }
    }

    #[test]
    fn an_overflow_may_say_so_and_nothing_else() {
        assert!(is_harmless_overflow("This model's maximum context length is 10 tokens."));
        assert!(!is_harmless_overflow(
            "This model's maximum context length is 10 tokens. Rate limit reached."
        ));
    }

    /// Every text whose effect was measured on the real clients (`tests/openclaw/run.sh DIR words`): what
    /// harms in one of them, as a status or in a stream, does not leave; nearly all that harms in none may.
    #[test]
    fn measured_texts() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/openclaw/measured-words.jsonl");
        let (mut harmful, mut harmless, mut kept_back) = (0, 0, vec![]);
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let measured: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = measured["text"].as_str().unwrap();
            let effects = ["2026.9.6", "2026.2.26"].map(|client| {
                ["status", "event"].map(|form| measured[client][form].as_str().unwrap() == "harmless")
            });
            if effects.as_flattened().contains(&false) {
                assert!(!is_harmless_for_openclaw(text), "measured as harmful: {line}");
                harmful += 1;
            } else {
                harmless += 1;
                kept_back.extend((!is_harmless_for_openclaw(text)).then(|| text.to_owned()));
            }
        }
        assert!(harmful > 130 && harmless > 80, "{harmful} and {harmless}: was the file found whole?");
        assert!(kept_back.len() < 4, "harmless texts that would be replaced: {kept_back:?}");
    }
}
