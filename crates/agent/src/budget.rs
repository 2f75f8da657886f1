//! Tokens: what calls cost, and an estimate of what a text will cost before it is sent.
//!
//! The estimate leans to the high side and needs no vocabulary of any one model. Pure. Used by `run` and
//! `weights`.

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
    /// Returns the sum of prompt and completion.
    pub fn total(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }

    /// Returns the difference to an earlier sum.
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

/// About how many tokens a text has: one for a word or a part of it that begins with a capital, two for a
/// long one; one for a digit, for two signs in a row, for a letter of a script that is not Latin. Text that
/// does not look like words (base64, keys, hashes) has three tokens for four letters.
pub(super) fn estimate_tokens(text: &str) -> u64 {
    let mut runs = Runs::default();
    text.bytes().for_each(|byte| runs.push_byte(byte));
    runs.finish_runs()
}

/// A text as runs of letters of one kind, and these as strings without a space or sign between them.
#[derive(Default)]
struct Runs {
    tokens: u64,
    kind: Kind,
    length: u64,
    /// Of the string: its letters and digits, its runs, their tokens.
    string: (u64, u64, u64),
}

/// A string of this many letters may not be a word.
const LONG: u64 = 16;

impl Runs {
    fn push_byte(&mut self, byte: u8) {
        let kind = Kind::from_byte(byte);
        if kind != self.kind && (self.kind, kind) != (Kind::Upper, Kind::Lower) {
            self.end_run();
            if !kind.is_of_string() {
                self.end_string();
            }
        }
        // Emoji and rare letters have four bytes, and two or three tokens.
        self.tokens += u64::from(byte >= 0xF0);
        self.length += 1;
        self.kind = kind;
    }

    fn end_run(&mut self) {
        let tokens = self.kind.count_tokens(self.length);
        if self.kind.is_of_string() {
            let (letters, runs, before) = self.string;
            self.string = (letters + self.length, runs + 1, before + tokens);
        } else {
            self.tokens += tokens;
        }
        self.length = 0;
    }

    fn end_string(&mut self) {
        let (letters, runs, tokens) = std::mem::take(&mut self.string);
        let is_noise = letters >= LONG && runs * 4 >= letters;
        self.tokens += if is_noise { tokens.max((letters * 3).div_ceil(4)) } else { tokens };
    }

    fn finish_runs(mut self) -> u64 {
        self.end_run();
        self.end_string();
        self.tokens
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Kind {
    Lower,
    Upper,
    Digit,
    Sign,
    #[default]
    Space,
    Foreign,
}

impl Kind {
    fn from_byte(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' => Self::Lower,
            b'A'..=b'Z' => Self::Upper,
            b'0'..=b'9' => Self::Digit,
            b' ' => Self::Space,
            0x80.. => Self::Foreign,
            _ => Self::Sign,
        }
    }

    fn is_of_string(self) -> bool {
        matches!(self, Self::Lower | Self::Upper | Self::Digit)
    }

    fn count_tokens(self, length: u64) -> u64 {
        match self {
            Self::Lower | Self::Upper => length.div_ceil(8),
            // Many vocabularies have no numbers of several digits.
            Self::Digit => length,
            Self::Sign => length.div_ceil(2),
            // A space is a part of the next word; many of them are one token.
            Self::Space => u64::from(length > 1),
            Self::Foreign => length.div_ceil(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Estimate by count, in hundredths: by the vocabulary of gpt-oss, and by an older one, with half as many
    /// words.
    fn ratios(text: &str) -> [u64; 2] {
        ["o200k_base", "cl100k_base"].map(|name| {
            estimate_tokens(text) * 100 / tiktoken::get_encoding(name).unwrap().count(text) as u64
        })
    }

    /// Bytes as if by chance, always the same.
    fn noise(count: usize) -> Vec<u8> {
        let next = |seed: &u64| Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        std::iter::successors(Some(7), next).map(|seed| seed.to_be_bytes()[0]).take(count).collect()
    }

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 64)])).collect()
    }

    /// `least` and `most`: hundredths. With the margin of `weights` the least is still enough.
    fn check(name: &str, text: &str, least: u64, most: u64) {
        let [gpt_oss, older] = ratios(text);
        assert!(gpt_oss >= 100 && gpt_oss < most && older >= least, "{name}: {gpt_oss} {older}");
    }

    #[test]
    fn estimates_are_not_below_what_vocabularies_count() {
        for file in [
            "fixtures/openclaw/request-2026.9.6-fulltools.json",
            "README.md",
            "docs/operating.md",
            "crates/agent/src/run.rs",
            "Cargo.lock",
            "tests/chat/upstream.py",
            "tests/chat/run.sh",
        ] {
            let text =
                std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            check(file, &text, 100, 140);
        }
        let hex = noise(4_000).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        let numbers =
            noise(3_000).iter().map(|byte| format!("{byte}.{:02},\n", byte / 3)).collect::<Vec<_>>();
        for (name, text) in [
            ("base64", base64(&noise(8_000))),
            ("hex", hex),
            ("numbers", numbers.concat()),
            ("uuid", "0x7f3a9c 8812 4411 9a8b7c6d5e4f 550e8400-e29b-41d4-a716-446655440000 ".repeat(40)),
            ("german", "Die Größe der Straße überrascht die Bürger. ".repeat(40)),
            ("japanese", "私は学生です。東京に住んでいます。循環は一から始まる。".repeat(40)),
            ("chinese", "这个函数有一个错误：循环从索引一开始，所以第一个价格被跳过了。".repeat(40)),
            ("korean", "이 함수에는 오류가 있습니다. 루프가 인덱스 1에서 시작합니다.".repeat(40)),
            ("russian", "Цикл начинается с индекса один, поэтому первая цена пропущена. ".repeat(40)),
            ("arabic", "تبدأ الحلقة من الفهرس واحد لذلك يتم تخطي السعر الأول. ".repeat(40)),
            ("hindi", "लूप इंडेक्स एक से शुरू होता है इसलिए पहली कीमत छोड़ दी जाती है। ".repeat(40)),
            ("emoji", "🎉 👩‍💻 ✅ 🇩🇪 done 👍🏽 ".repeat(40)),
            ("minified", "function(a,b){return a.b[c]!==d&&(e=f(g),h.i=!0),j?k:l}".repeat(40)),
            ("box", "│ 列 │──────┼───────┤ ├── src/\n".repeat(40)),
        ] {
            check(name, &text, 70, 280);
        }
    }
}
