//! The token counts that a reply states about itself, read from its last bytes. For replies that respool
//! passes on unread; called by `transparent`.

use wire::turn::Usage;

/// Returns the token counts at the end of a reply of any kind, where it has them.
///
/// They are the last `usage` object that begins in the text. A model cannot write one: within JSON's strings
/// a backslash stands before a quote.
pub(super) fn usage_at_end(tail: &[u8]) -> Option<Usage> {
    let text = String::from_utf8_lossy(tail);
    let mut objects = text.rmatch_indices("\"usage\"").filter_map(|(at, name)| {
        let rest = text[at + name.len()..].trim_start().strip_prefix(':')?.trim_start();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde_json::Value>();
        values.next()?.ok().filter(serde_json::Value::is_object)
    });
    let usage = objects.next()?;
    let number = |names: [&str; 2]| names.into_iter().find_map(|name| usage[name].as_u64());
    let cached_of = |details: &str| usage[details]["cached_tokens"].as_u64();
    let (read, written) =
        (usage["cache_read_input_tokens"].as_u64(), usage["cache_creation_input_tokens"].as_u64());
    // Anthropic's input does not include what the cache had and what it got.
    let cache = read.unwrap_or_default().saturating_add(written.unwrap_or_default());
    Some(Usage {
        prompt: number(["prompt_tokens", "input_tokens"])?.saturating_add(cache),
        completion: number(["completion_tokens", "output_tokens"]).unwrap_or_default(),
        cached: cached_of("prompt_tokens_details").or_else(|| cached_of("input_tokens_details")).or(read),
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: &str, expected: Option<(u64, u64, Option<u64>)>) {
        let found =
            usage_at_end(reply.as_bytes()).map(|usage| (usage.prompt, usage.completion, usage.cached));
        assert_eq!(found, expected, "{reply}");
    }

    #[test]
    fn every_apis_counts_are_read() {
        check(r#"{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}"#, Some((7, 0, None)));
        check(r#"{"usage" : {"prompt_tokens":7,"completion_tokens":9}}"#, Some((7, 9, None)));
        let anthropic = "data: {\"usage\":{\"input_tokens\":5}}\n\ndata: {\"usage\":{\"output_tokens\":3,\"input_tokens\":5}}\n\n";
        check(anthropic, Some((5, 3, None)));
        let cached = r#"{"usage":{"input_tokens":100,"cache_read_input_tokens":850,"cache_creation_input_tokens":50,"output_tokens":10}}"#;
        check(cached, Some((1_000, 10, Some(850))));
        let responses = r#"{"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":850},"output_tokens":10}}"#;
        check(responses, Some((1_000, 10, Some(850))));
    }

    #[test]
    fn a_model_cannot_write_counts() {
        check(r#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}"}]}"#, None);
        check("data: {\"usage\":null}", None);
    }
}
