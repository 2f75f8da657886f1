//! The only list of dialects, in the order in which they are tried. The scanner, the docs and the round-trip
//! tests all work from it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::Dialect;
use super::{
    arrow, bare_json, bare_name, beam, bracket, cwm, deepseek, echo, envelope, fenced, framing, functionary,
    fuzzy, gemma, gigachat, glm, harmony, harmony_text, headed, hunyuan, hunyuan_suffixed, inkling, invoke,
    iquest, k2_horizon, kimi, kimi_k3, llama, marker, mcp_tag, minicpm5, minimax_m3, mistral, named_tag,
    namespaced, plamo, pythonic, qwen_xml, react, solar, think, tool_tag, tool_url, wrapped,
};

/// All dialects, the most explicit first. The order decides between two with the same mark.
pub static TABLE: &[&Dialect] = &[
    &echo::DIALECT,
    &think::DIALECT,
    &think::TOKENS,
    &beam::DIALECT,
    &harmony::DIALECT,
    &harmony::RECIPIENT,
    &harmony_text::CALL,
    &harmony_text::CHANNELS,
    &hunyuan::DIALECT,
    &hunyuan_suffixed::DIALECT,
    &envelope::HERMES,
    &qwen_xml::DIALECT,
    &invoke::DIALECT,
    &namespaced::DIALECT,
    &glm::DIALECT,
    &named_tag::DIALECT,
    &pythonic::MARKED,
    &mistral::DIALECT,
    &llama::DIALECT,
    &deepseek::DIALECT,
    &kimi::DIALECT,
    &kimi_k3::DIALECT,
    &k2_horizon::DIALECT,
    &iquest::DIALECT,
    &solar::SECOND,
    &solar::FIRST,
    &plamo::DIALECT,
    &cwm::DIALECT,
    &mcp_tag::DIALECT,
    &functionary::DIALECT,
    &inkling::DIALECT,
    &minimax_m3::DIALECT,
    &minicpm5::DIALECT,
    &gigachat::DIALECT,
    &gigachat::ROLE_ONLY,
    &gemma::DIALECT,
    &gemma::STRIPPED,
    &wrapped::COHERE,
    &wrapped::APERTUS,
    &wrapped::PHI,
    &wrapped::LM_STUDIO,
    &framing::END_OF_REASONING,
    &framing::ANSWERS,
    &framing::ENDINGS,
    &marker::DIALECT,
    &arrow::DIALECT,
    &bracket::DIALECT,
    &react::DIALECT,
    &headed::DIALECT,
    &fenced::DIALECT,
    &pythonic::BARE,
    &bare_json::DIALECT,
    &bare_name::DIALECT,
    &tool_url::DIALECT,
    &tool_tag::DIALECT,
    &fuzzy::DIALECT,
];

/// Returns true if a text has some dialect's own mark. Brackets, fences and words do not count.
pub(crate) fn holds_mark(text: &str) -> bool {
    /// The own marks, and their first characters, which most texts have not.
    static MARKS: LazyLock<(BTreeSet<&'static str>, Vec<char>)> = LazyLock::new(|| {
        let marks = TABLE.iter().flat_map(|dialect| dialect.opens.marks());
        let marks: BTreeSet<&str> = marks.copied().filter(|mark| is_own(mark)).collect();
        let firsts: BTreeSet<char> = marks.iter().filter_map(|mark| mark.chars().next()).collect();
        (marks, firsts.into_iter().collect())
    });
    let (marks, firsts) = &*MARKS;
    text.contains(&firsts[..]) && marks.iter().any(|mark| text.contains(mark))
}

/// Returns true if a mark is hardly ever written for another purpose.
pub(crate) fn is_own(mark: &str) -> bool {
    mark.len() > 5 && mark.starts_with(|first: char| !first.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_marks_of_every_dialect_are_found() {
        let marks = TABLE.iter().flat_map(|dialect| dialect.opens.marks());
        for mark in marks.filter(|mark| is_own(mark)) {
            assert!(holds_mark(&format!("a {mark} b")), "{mark}");
        }
        assert!(holds_mark("**Tool Call:** ls") && holds_mark("**Action:** ls"));
        for text in ["```json", "[1]", "a < b", "**bold**", "Action: ls"] {
            assert!(!holds_mark(text), "{text}");
        }
    }
}
