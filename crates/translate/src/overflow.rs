//! Reads a server's refusal of a request that does not fit the model's window, and the limit on the reply
//! that may be at fault.
//!
//! Texts: captures of vLLM 0.13, 0.16, 0.25 and 0.32; sources of 0.9 to 0.33; issues ("You passed …", which
//! stops counting at the room); OpenAI; `SGLang`; llama.cpp. Called by `relay`.

use std::sync::LazyLock;

use regex::Regex;

use wire::Object;
use wire::pattern::compile_pattern;

/// The fields that limit a reply's tokens; the first one wins where both are set, as in vLLM.
const LIMITS: [&str; 2] = ["max_completion_tokens", "max_tokens"];

/// The bytes of an error text that are searched for numbers: the rest may be an echo of the request.
const READ: usize = 600;

/// A request that does not fit, in the server's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// The model's window in tokens.
    pub window: Option<u64>,
    /// The prompt's tokens, if all of them were counted.
    pub prompt: Option<u64>,
    /// The tokens of the prompt beyond the window.
    pub over: Option<u64>,
    /// The part that is too large.
    pub fault: TooLarge,
}

/// The part of a request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// The prompt itself.
    Prompt,
    /// The prompt and the reply's limit together.
    Limit,
}

/// The beginnings of such texts. Other texts may echo the conversation, and so contain any words.
static BEGINNING: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)^(?:this model's maximum|you passed \d+ input tokens|input length|'max_tokens' or|max_tokens|the (?:decoder |encoder )?(?:prompt|input) \(|requested token count|request \()",
    )
});

static WINDOW: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)maximum context length (?:is |of |\()(\d+)|context length is only (\d+)|max_model_len=(?:max_total_tokens=)?(\d+)|maximum model length of (\d+)|context (?:length|size) \((\d+) tokens\)",
    )
});

static PROMPT: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)(?:request has|prompt contains) (\d+) input tokens|input length \((\d+)\)|\((\d+) in the messages|prompt \(length (\d+)\)|(?:input|request) \((\d+) tokens\)|(\d+) tokens from the input messages",
    )
});

static LIMIT: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)max_completion_tokens' is too large|cannot be greater than max_model_len|requested [1-9]\d* output tokens|in the completion\)|tokens for the completion",
    )
});

static NO_ROOM: LazyLock<Regex> =
    LazyLock::new(|| compile_pattern(r"^max_tokens must be at least 1, got (-?\d+)"));

/// Reads the text of a refusal; `None` when it has another subject. `asked`: the request's own limit.
pub fn read_overflow(said: &str, asked: Option<u64>) -> Option<Overflow> {
    let said = &said[..said.floor_char_boundary(READ)];
    if !BEGINNING.is_match(said) {
        return None;
    }
    if let Some(found) = NO_ROOM.captures(said) {
        // vLLM computes the limit from the room, which is negative here. A client may also ask for 0 tokens
        // itself.
        let room: i64 = found[1].parse().ok()?;
        let is_own = asked == Some(0);
        let over = room.checked_neg().and_then(|over| u64::try_from(over).ok()).filter(|_| !is_own)?;
        return Some(Overflow { window: None, prompt: None, over: Some(over), fault: TooLarge::Prompt });
    }
    let window = find_number(&WINDOW, said)?;
    let prompt = find_number(&PROMPT, said);
    let is_limit = LIMIT.is_match(said) && prompt.is_none_or(|prompt| prompt < window);
    let fault = if is_limit { TooLarge::Limit } else { TooLarge::Prompt };
    let over = prompt.and_then(|prompt| prompt.checked_sub(window));
    Some(Overflow { window: Some(window), prompt, over, fault })
}

fn find_number(pattern: &Regex, text: &str) -> Option<u64> {
    let found = pattern.captures(text)?;
    found.iter().skip(1).flatten().next()?.as_str().parse().ok()
}

/// Returns the request's limit on the reply's tokens.
pub fn token_limit(request: &Object<'_>) -> Option<u64> {
    LIMITS.into_iter().find_map(|key| request.number(key))
}

/// Lowers the limit to `room`. Returns true when it was higher.
pub fn lower_limit(request: &mut Object<'_>, room: u64) -> bool {
    let higher = LIMITS.map(|key| request.number(key).is_some_and(|limit| limit > room).then_some(key));
    higher.into_iter().flatten().for_each(|key| request.set(key, room.to_string()));
    higher.iter().any(Option::is_some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(said: &str, window: Option<u64>, prompt: Option<u64>, over: Option<u64>, fault: TooLarge) {
        assert_eq!(read_overflow(said, Some(500)), Some(Overflow { window, prompt, over, fault }), "{said}");
    }

    #[test]
    fn a_prompt_that_is_too_long() {
        let is = |said, window, prompt, over| check(said, window, prompt, over, TooLarge::Prompt);
        is("max_tokens must be at least 1, got -1022.", None, None, Some(1022));
        is(
            "max_tokens must be at least 1, got -1018. (parameter=max_tokens, value=-1018)",
            None,
            None,
            Some(1018),
        );
        is("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", None, None, Some(0));
        is(
            "Input length (3068) exceeds model's maximum context length (2048).",
            Some(2048),
            Some(3068),
            Some(1020),
        );
        is(
            "This model's maximum context length is 2048 tokens. However, your request has 3012 input tokens. Please reduce the length of the input messages.",
            Some(2048),
            Some(3012),
            Some(964),
        );
        is(
            "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which exceeds this limit even without any output tokens.",
            Some(2048),
            None,
            None,
        );
        is(
            "You passed 2049 input tokens and requested 0 output tokens. However, the model's context length is only 2048 tokens, resulting in a maximum input length of 2048 tokens.",
            Some(2048),
            None,
            None,
        );
        is(
            "The decoder prompt (length 3000) is longer than the maximum model length of 2048. Make sure that `max_model_len` is no smaller",
            Some(2048),
            Some(3000),
            Some(952),
        );
        is(
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            Some(4096),
            Some(5000),
            Some(904),
        );
        is(
            "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            Some(4096),
            Some(5000),
            Some(904),
        );
        is(
            "This model's maximum context length is 4097 tokens. However, you requested 5100 tokens (5000 in the messages, 100 in the completion).",
            Some(4097),
            Some(5000),
            Some(903),
        );
    }

    #[test]
    fn a_limit_that_is_too_high() {
        let is = |said, window, prompt| check(said, Some(window), prompt, None, TooLarge::Limit);
        is(
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 2048 tokens and your request has 330 input tokens (4096 > 2048 - 330).",
            2048,
            Some(330),
        );
        is(
            "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only 131072 tokens, resulting in a maximum input length of 98304 tokens.",
            131_072,
            None,
        );
        is(
            "max_tokens=2500cannot be greater than max_model_len=max_total_tokens=2048. Please request fewer output tokens. (parameter=max_tokens, value=2500)",
            2048,
            None,
        );
        is(
            "max_tokens=100000 cannot be greater than max_model_len=2048. Please request fewer output tokens.",
            2048,
            None,
        );
        is(
            "This model's maximum context length is 2048 tokens. However, you requested 1500 output tokens and your prompt contains at least 549 input tokens, for a total of at least 2049 tokens.",
            2048,
            None,
        );
        is(
            "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens (4000 in the messages, 1000 in the completion).",
            4097,
            Some(4000),
        );
        is(
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: 3000 tokens from the input messages and 2000 tokens for the completion.",
            4096,
            Some(3000),
        );
    }

    #[test]
    fn other_refusals_are_none() {
        for said in [
            "temperature must be non-negative, got -1.0.",
            "The model `x` does not exist.",
            "Unexpected message: 'This model's maximum context length is 5 tokens.'",
            "",
        ] {
            assert_eq!(read_overflow(said, None), None, "{said}");
        }
        assert_eq!(read_overflow("max_tokens must be at least 1, got 0.", Some(0)), None, "the client's own");
    }

    #[test]
    fn the_limit_is_lowered_under_either_name() {
        let mut object = Object::parse(r#"{"max_tokens":900,"x":1,"max_completion_tokens":50}"#).unwrap();
        assert_eq!(token_limit(&object), Some(50));
        assert!(lower_limit(&mut object, 100) && !lower_limit(&mut object, 100));
        assert_eq!(object.to_json(), r#"{"max_tokens":100,"x":1,"max_completion_tokens":50}"#);
        assert!(!lower_limit(&mut Object::parse("{}").unwrap(), 1), "no limit stays no limit");
    }
}
