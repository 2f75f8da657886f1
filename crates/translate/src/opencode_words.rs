//! The texts of an error that opencode takes for a temporary one, so that it repeats the request for more
//! than a minute, regardless of its status (read in 1.18.33, and measured). Pure. Called by `server` for
//! errors that are final.

use std::sync::LazyLock;

use regex::Regex;

use wire::pattern::compile_pattern;

static REPEATED: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?xi)429 | 500 | 502 | 503 | 504 | 524
        | rate\ increased\ too\ quickly | rate[\ _-]limit | too\ many\ requests
        | overloaded | service[\ _-]unavailable | internal[\ _]error | server[\ _-]error | provider[\ _-]returned[\ _-]error
        | terminated | fetch\ failed | failed\ to\ fetch | network[\s_-]error | upstream\ connect
        | connection\ (?:error|refused|lost) | socket\ connection\ was\ closed | socket\ hang\ up | reset\ before\ headers
        | getaddrinfo | enotfound | eai_again | econnrefused | econnreset | etimedout
        | ^timeout$ | \b(?:request|response|connection|network|stream|read)\ (?:timeout|timed\ out|time\ out)\b
        | try\ your\ request\ again | retry\ your\ request | resource[\ _]exhausted
        | \btry\ again\ (?:later|in\b) | \b(?:currently|temporarily)\ at\ capacity\b",
    )
});

/// Returns true when opencode shows this text after one request.
pub fn is_harmless_for_opencode(text: &str) -> bool {
    !REPEATED.is_match(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases() {
        for repeated in
            ["it answered 503", "Rate_Limit", "internal server error", "Try again later", "timeout"]
        {
            assert!(!is_harmless_for_opencode(repeated), "{repeated}");
        }
        for harmless in
            ["EngineCore encountered an issue.", "closed the connection", "a timeout of 5 s", "422"]
        {
            assert!(is_harmless_for_opencode(harmless), "{harmless}");
        }
    }
}
