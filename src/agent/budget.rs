//! Tokens: what calls cost, and an estimate of what a text will cost before it is sent.
//!
//! The estimate leans to the high side and is corrected by what the server says of the prompts it got; it needs no
//! vocabulary of any one model. Pure. Used by `run` and `context`.

use serde::{Deserialize, Serialize};

/// Token counts of one call or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Of the prompt.
    pub prompt: u64,
    /// Written by the model, reasoning included.
    pub completion: u64,
    /// Of these, reasoning, as far as the server says.
    pub reasoning: u64,
    /// Prompt tokens from the prefix cache, as far as the server says.
    pub cached: u64,
}

impl Tokens {
    /// Prompt and completion.
    pub fn total(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }

    /// What is left of these without others.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            prompt: self.prompt.saturating_sub(other.prompt),
            completion: self.completion.saturating_sub(other.completion),
            reasoning: self.reasoning.saturating_sub(other.reasoning),
            cached: self.cached.saturating_sub(other.cached),
        }
    }
}

impl std::ops::AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.completion = self.completion.saturating_add(other.completion);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
        self.cached = self.cached.saturating_add(other.cached);
    }
}

/// Tokens that are kept free in every window.
pub(super) const RESERVE: u64 = 2_000;

/// What is known of a model's arithmetic: the server's counts by ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Scale {
    permille: u64,
}

impl Default for Scale {
    fn default() -> Self {
        Self { permille: 1_000 }
    }
}

impl Scale {
    /// Learns from one call: what was estimated for its prompt, and what the server counted.
    pub(super) fn learn(&mut self, estimated: u64, counted: u64) {
        if estimated > 0 && counted > 0 {
            self.permille = (counted.saturating_mul(1_000) / estimated).clamp(400, 4_000);
        }
    }

    /// The corrected estimate.
    pub(super) fn apply(self, estimated: u64) -> u64 {
        estimated.saturating_mul(self.permille).div_ceil(1_000)
    }
}

/// About how many tokens a text has: one for a word or a part of it that begins with a capital, two for a long one; one for
/// two digits, for two signs in a row, for a letter of a script that is not Latin.
pub(super) fn estimate(text: &str) -> u64 {
    let (mut tokens, mut length, mut last) = (0, 0_u64, Kind::Space);
    for byte in text.bytes() {
        let kind = Kind::of(byte);
        let goes_on = kind == last || (last, kind) == (Kind::Upper, Kind::Lower);
        if !goes_on {
            tokens += last.tokens(length);
            length = 0;
        }
        length += 1;
        last = kind;
    }
    tokens + last.tokens(length)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Lower,
    Upper,
    Digit,
    Sign,
    Space,
    Foreign,
}

impl Kind {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' => Self::Lower,
            b'A'..=b'Z' => Self::Upper,
            b'0'..=b'9' => Self::Digit,
            b' ' => Self::Space,
            0x80.. => Self::Foreign,
            _ => Self::Sign,
        }
    }

    fn tokens(self, length: u64) -> u64 {
        match self {
            Self::Lower | Self::Upper => length.div_ceil(8),
            Self::Digit | Self::Sign => length.div_ceil(2),
            // A space is a part of the next word; many of them are one token.
            Self::Space => u64::from(length > 1),
            Self::Foreign => length.div_ceil(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Estimate by count, in hundredths.
    fn ratio(text: &str) -> u64 {
        estimate(text) * 100 / crate::tokens::count(text) as u64
    }

    #[test]
    fn estimates_are_near_what_the_vocabulary_of_gpt_oss_counts() {
        for file in [
            "fixtures/openclaw/request-2026.9.6-fulltools.json",
            "README.md",
            "docs/operating.md",
            "src/agent/run.rs",
        ] {
            let text = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            assert!((95..140).contains(&ratio(&text)), "{file}: {}", ratio(&text));
        }
        for (text, least) in [
            ("aGVsbG8gd29ybGQhIDEyMzQ1Njc4OTAxMjM0NTY3ODkw", 65),
            ("0x7f3a9c 8812 4411 9a8b7c6d5e4f 550e8400-e29b-41d4-a716-446655440000 ", 90),
            ("Die Größe der Straße überrascht die Bürger. ", 80),
            ("私は学生です。東京に住んでいます。", 100),
        ] {
            let ratio = ratio(&text.repeat(40));
            assert!((least..220).contains(&ratio), "{text}: {ratio}");
        }
    }

    #[test]
    fn the_servers_counts_correct_it() {
        let mut scale = Scale::default();
        scale.learn(1_000, 1_500);
        assert_eq!(scale.apply(100), 150);
        scale.learn(1_000, 0);
        assert_eq!(scale.apply(100), 150, "a server that says nothing teaches nothing");
        scale.learn(1, 1_000_000);
        assert_eq!(scale.apply(100), 400);
    }
}
