//! Distinguishes text *about* calls from calls, by words before a call that announce an example rather than
//! an action.
//!
//! An executed quotation is as bad as a missed call, so the words decide only if the form does not: in
//! running text, and before fences. Used by the dialects.

/// The bytes before a call that are read.
const REACH: usize = 160;

/// Words that announce an example, a syntax or a refusal.
const ANNOUNCERS: [&str; 22] = [
    "example",
    "e.g.",
    "for instance",
    "syntax",
    "format",
    "looks like",
    "look like",
    "looked like",
    "such as",
    "template",
    "schema",
    "documentation",
    "the docs",
    "would be",
    "not run",
    "not call",
    "not execute",
    "don't",
    "do not",
    "won't",
    "never",
    "instead of",
];

/// Returns true when the last sentence or two of `before` announce an example.
pub(crate) fn announces_example(before: &str) -> bool {
    let before = before.trim_end();
    let start = before.ceil_char_boundary(before.len().saturating_sub(REACH));
    let near = &before[start..];
    let paragraph = near.rsplit("\n\n").next().unwrap_or(near);
    let sentence = last_sentence(paragraph).to_lowercase();
    ANNOUNCERS.iter().any(|word| sentence.contains(word))
}

/// Returns the last sentence. Its own end mark does not count.
fn last_sentence(text: &str) -> &str {
    let inner = text.trim_end_matches(['.', ':', '!', '?', ' ', '\n']);
    let start = [". ", "! ", "? ", ".\n", "!\n", "?\n"]
        .iter()
        .filter_map(|end| Some(inner.rfind(end)? + end.len()))
        .max();
    &text[start.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_announced_and_actions_are_not() {
        for text in [
            "Here is an example:",
            "The format is",
            "It looks like this:\n",
            "I will not run",
            "Use it, e.g.",
        ] {
            assert!(announces_example(text), "{text}");
        }
        for text in [
            "",
            "Let me look.",
            "I'll read it:",
            "That was an example. Now I read the file:",
            "Example:\n\nReading.",
        ] {
            assert!(!announces_example(text), "{text}");
        }
    }
}
