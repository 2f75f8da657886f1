//! The table of dialects: every way in which a model writes a call into text, in the order in which they are tried.
//!
//! A dialect is one file with one [`Dialect`] value: what opens it, how it reads on from there, and what its page in
//! `docs/dialects.md` says. [`TABLE`] is the only list; the scanner, the docs and the round-trip tests all work from it.

use std::sync::LazyLock;

use super::calls::RawCall;
use super::ledger::Objects;
use super::repairs;
use super::scanner::{Lane, is_plainly_no_space};
use super::schema::Steps;
use super::tools::Tools;
use crate::event::Dropped;

mod argument_pairs;
mod bare_json;
mod bare_name;
mod bracket;
mod cwm;
mod deepseek;
mod echo;
mod envelope;
mod families;
mod fenced;
mod framing;
pub(crate) mod fuzzy;
mod gemma;
mod gigachat;
pub(crate) mod glm;
mod harmony;
mod harmony_text;
mod hunyuan;
mod hunyuan_suffixed;
mod inkling;
mod invoke;
mod iquest;
mod k2_horizon;
mod kimi;
mod kimi_k3;
mod llama;
mod marker;
mod minicpm5;
mod minimax_m3;
mod mistral;
mod named_json;
mod named_tag;
mod plamo;
mod pythonic;
mod qwen_xml;
mod react;
mod solar;
mod tagged;
mod think;
mod wrapped;

/// One way of writing calls.
#[derive(Debug)]
pub struct Dialect {
    /// Its name in notes and metrics.
    pub name: &'static str,
    /// Which models write it.
    pub models: &'static str,
    /// Parts of such models' names, without case and punctuation.
    pub families: &'static [&'static str],
    /// Its grammar, in a few lines.
    pub grammar: &'static str,
    /// An example with the tool `read{path}` where it has calls.
    pub example: &'static str,
    pub(crate) opens: Opens,
    pub(crate) read: fn(&View<'_>) -> Step,
}

/// What may begin a dialect, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opens {
    /// Any of these marks, anywhere in running text.
    Anywhere(&'static [&'static str]),
    /// Any of these marks, as the first thing on a line.
    Line(&'static [&'static str]),
    /// A callable tool's own name as the first thing on a line, followed by a bracket.
    Name,
}

impl Opens {
    /// Its marks.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Anywhere(marks) | Self::Line(marks) => marks,
            Self::Name => &[],
        }
    }
}

/// The text from a mark on, and what a dialect may know of its surroundings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// From the first byte of the mark to the end of what has arrived.
    pub(crate) text: &'a str,
    /// The length of the mark.
    pub(crate) mark: usize,
    /// True when no more text will come.
    pub(crate) eof: bool,
    /// True when the reply was cut there.
    pub(crate) cut: bool,
    /// What may be called.
    pub(crate) tools: &'a Tools,
    /// For checks against their schemas.
    pub(crate) steps: &'a Steps,
    /// At most [`super::scanner::BEHIND`] bytes of text before the mark.
    pub(crate) before: &'a str,
    /// True when only spaces stand before the mark on its line.
    pub(crate) line_start: bool,
    /// True when the answer has no text so far.
    pub(crate) first: bool,
    /// True when only space stands between the mark and a call or token before it.
    pub(crate) after_call: bool,
    /// True when the client asked for JSON.
    pub(crate) json_wanted: bool,
    /// True for text that is being searched for calls after the turn turned out to have no answer.
    pub(crate) reasoning: bool,
    /// The arguments of the upstream's native calls.
    pub(crate) native: &'a Objects,
    /// True when reasoning has come that is known to be that.
    pub(crate) reasoned: bool,
}

/// What a dialect says of the text so far. The answer may depend only on text up to the offset it names.
#[derive(Debug)]
pub(crate) enum Step {
    /// The text is not of this dialect; seen at this offset.
    Not(usize),
    /// It cannot tell yet. Never answered when `eof`.
    More(Wait),
    /// It is, up to `end`.
    Read(Found, usize),
}

/// When to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// With any more text.
    Any,
    /// When the JSON-like value that starts at this offset has ended.
    Json(usize),
    /// When the Python expression that starts at this offset has ended.
    Python(usize),
    /// When one of these marks has appeared at or after this offset.
    Mark(usize, &'static [&'static str]),
}

/// What was read.
#[derive(Debug)]
pub(crate) enum Found {
    /// Calls. A firm one stands whatever follows; another only if nothing but calls follows.
    Calls {
        /// The calls.
        calls: Vec<RawCall>,
        /// Whether they stand whatever follows.
        firm: bool,
    },
    /// Marks that mean nothing by themselves.
    Skip,
    /// The text goes on in another lane.
    Lane(Lane),
    /// A call that certainly is one and cannot leave.
    Drop(String, Dropped),
    /// What stood before was reasoning.
    EndOfReasoning,
    /// A call of this dialect, of that name, that cannot leave: text, unless other calls stand around it.
    Broken(String, Dropped),
}

/// All dialects, most explicit first. The order decides when two begin alike.
pub static TABLE: &[&Dialect] = &[
    &echo::DIALECT,
    &think::DIALECT,
    &think::TOKENS,
    &harmony::DIALECT,
    &harmony::RECIPIENT,
    &harmony_text::CALL,
    &harmony_text::CHANNELS,
    &hunyuan::DIALECT,
    &hunyuan_suffixed::DIALECT,
    &envelope::HERMES,
    &qwen_xml::DIALECT,
    &invoke::DIALECT,
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
    &bracket::DIALECT,
    &react::DIALECT,
    &fenced::DIALECT,
    &pythonic::BARE,
    &bare_json::DIALECT,
    &bare_name::DIALECT,
    &fuzzy::DIALECT,
];

impl View<'_> {
    /// The text after the mark.
    pub(crate) fn body(&self) -> &str {
        &self.text[self.mark..]
    }

    /// The offset of the first byte at or after `from` that is no whitespace.
    pub(crate) fn skip_space(&self, from: usize) -> usize {
        if self.text.as_bytes().get(from).copied().is_some_and(is_plainly_no_space) {
            return from;
        }
        let rest = &self.text[from..];
        from + rest.len() - rest.trim_start().len()
    }

    /// Looks for one of `marks` exactly at `from`: its length, or whether more text may still make one.
    pub(crate) fn mark_at(&self, from: usize, marks: &[&str]) -> MarkAt {
        let rest = &self.text[from..];
        if let Some(mark) = marks.iter().find(|mark| rest.starts_with(**mark)) {
            return MarkAt::Here(mark.len());
        }
        let partial = !self.eof && marks.iter().any(|mark| mark.starts_with(rest));
        if partial { MarkAt::Perhaps } else { MarkAt::No }
    }

    /// The end of one of `closers` after at most a little space from `end`; `end` itself if none is there.
    pub(crate) fn closing(&self, end: usize, closers: &[&str]) -> Result<usize, Step> {
        let next = self.skip_space(end);
        if closers.is_empty() || next - end > 64 {
            return Ok(end);
        }
        match self.mark_at(next, closers) {
            MarkAt::Here(length) => Ok(next + length),
            MarkAt::Perhaps => Err(Step::More(Wait::Any)),
            MarkAt::No => Ok(end),
        }
    }

    /// A call that cannot leave, with its end mark, or up to the first of several that may follow.
    pub(crate) fn broken_until(
        &self,
        from: usize,
        marks: &'static [&'static str],
        name: &str,
        why: Dropped,
    ) -> Step {
        self.until(from, marks, Found::Broken(name.to_owned(), why))
    }

    /// The same for what is certainly a call.
    pub(crate) fn dropped_until(
        &self,
        from: usize,
        marks: &'static [&'static str],
        name: &str,
        why: Dropped,
    ) -> Step {
        self.until(from, marks, Found::Drop(name.to_owned(), why))
    }

    fn until(&self, from: usize, marks: &'static [&'static str], found: Found) -> Step {
        match earliest(&self.text[from..], marks) {
            Some((at, length)) => Step::Read(found, from + at + if marks.len() == 1 { length } else { 0 }),
            None if self.eof => Step::Read(found, self.text.len()),
            None => Step::More(Wait::Mark(from, marks)),
        }
    }

    /// "Not this dialect", or "more" while text may still come: for a text that ended too early.
    pub(crate) fn unfinished(&self, wait: Wait) -> Step {
        if self.eof { Step::Not(self.text.len()) } else { Step::More(wait) }
    }

    /// The text before speaks *about* a call rather than making one.
    pub(crate) fn quoted(&self) -> bool {
        super::quotation::announces_example(self.before)
    }
}

/// The first of `marks` in `text`: where it stands and how long it is. Each search ends where the one before found its
/// mark, so put the likeliest first.
pub(crate) fn earliest(text: &str, marks: &[&str]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for mark in marks {
        let window = best.map_or(text.len(), |(at, _)| text.len().min(at + mark.len() - 1));
        if let Some(at) = memchr::memmem::find(&text.as_bytes()[..window], mark.as_bytes()) {
            best = Some((at, mark.len()));
        }
    }
    best
}

/// Whether some dialect's own mark stands in a text. Brackets, fences and words are no marks of their own.
pub(crate) fn holds_mark(text: &str) -> bool {
    static MARKS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let marks = TABLE.iter().flat_map(|dialect| dialect.opens.marks());
        marks.copied().filter(|mark| is_own(mark)).collect()
    });
    text.contains(['<', '[', ']', '◁']) && MARKS.iter().any(|mark| text.contains(mark))
}

/// Whether a mark is hardly ever written for something else.
pub(crate) fn is_own(mark: &str) -> bool {
    mark.len() > 5 && mark.starts_with(|first: char| !first.is_alphanumeric())
}

/// The answer of [`View::mark_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkAt {
    /// A mark of this length.
    Here(usize),
    /// The text ends within what may become one.
    Perhaps,
    /// None.
    No,
}

/// The reference page of all dialects, in Markdown. `docs/dialects.md` is this text; a test compares them.
pub fn reference() -> String {
    use std::fmt::Write as _;
    let mut page = String::from(
        "# Dialects\n\nEvery way of writing a tool call that respool reads, in the order in which they are tried. \
         Generated from\n`crates/tool-call-parser/src/dialects/`; run `UPDATE_DOCS=1 cargo test -p tool-call-parser --lib` after a change.\n\n\
         Each dialect with calls has a writer in the tests: random tools and arguments written in it come back equal, 100 \
         times\nin an ordinary test run, 2,000 times in `just nightly`. `just fuzz TARGET` fuzzes the parser; what fuzzing \
         found is\nreplayed by `cargo test` (`crates/tool-call-parser/fuzz/corpus/`).\n",
    );
    for dialect in TABLE {
        let Dialect { name, models, grammar, example, .. } = dialect;
        let _ = write!(page, "\n## {name}\n\n{models}\n\n{grammar}\n");
        if !example.is_empty() {
            let _ = write!(page, "\n````text\n{example}\n````\n");
        }
    }
    page.push_str(
        "\n# Repairs\n\nWhat reading a call may change, by the name in logs and metrics. A repair changes the form of a call, never what \
         the\ntool would do: what would need more is refused, and the model is asked again.\n\n\
         | repair | what it does | when it is safe |\n|---|---|---|\n",
    );
    for row in repairs::TABLE {
        let _ = writeln!(page, "| `{}` | {} | {} |", row.name, row.change, row.safe);
    }
    page.push_str(
        "\n# Families\n\nWhich model families others parse, the rows above that read them here, and cases in `crates/tool-call-parser/cases/` that show it. \
         Other\nparsers are told the family; respool finds it by itself, and `[models.\"X\"] dialects` or the model's name only \
         says what is\ntried first.\n\n| family | parsed by | read here by | cases |\n|---|---|---|---|\n",
    );
    for family in families::FAMILIES {
        let list =
            |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let (dialects, cases) = (list(family.dialects), list(family.cases));
        let _ = writeln!(page, "| {} | {} | {dialects} | {cases} |", family.name, family.parsers);
    }
    page.push_str(
        "\n# Marks of templates\n\nWhat an agent or a chat breaks in the words of tools and servers before the model reads them \
         ([security.md](security.md)):\nbeside these the marks that open the dialects above, those of reasoning, and all \
         tokens of the forms `<|x|>`, `<｜x｜>`, `<|x>`\nand `<x|>`.\n\n| families | marks |\n|---|---|\n",
    );
    page.push_str(&super::templates::reference());
    page.push_str(ARGUED);
    page
}

/// The dialects with the models that write them, as a table in Markdown. The crate's README holds it; a test compares them.
#[cfg(test)]
fn summary() -> String {
    let rows = TABLE.iter().map(|dialect| {
        let models = dialect.models.replace('|', "\\|");
        format!("| `{}` | {models} |\n", dialect.name)
    });
    format!("| dialect | written by |\n|---|---|\n{}", rows.collect::<String>())
}

/// Where respool decides otherwise than other parsers, and why.
const ARGUED: &str = "\n# Decided otherwise\n\n\
- **A name that is not declared is not guessed.** vLLM's `minicpm5` turns `get_details_by_phone` into a declared\n  \
`get_customer_by_phone`, and `get_line_details{customer_id, line_id}` into `get_details_by_id{id}`. That is another call than the\n  \
model wrote; here it stays text, and the model is asked again.\n\
- **MiniMax M3's tags in a value that may be text or an object** (`oneOf: [string, object]`) are the object that the family writes\n  \
with them, as SGLang reads it. llama.cpp takes the markup itself for the text, tokens and all.\n\
- **A call without its closing tag** in a form of key and value tags (GLM) counts only when every declared argument is there: an\n  \
optional one may be missing with the tag. SGLang refuses it always, vLLM takes it in streams.\n\
- **An unclosed call that the model insists on is shown as text**, so that nothing it wrote is lost; before, it is asked again.\n\
- **Calls in reasoning** that the model ended itself are none. When a turn holds nothing but reasoning that it did not end, or\n  \
that the server split off (vllm#39056), a call at its very end is one. SGLang's `trinity` takes the tags away and reads calls in\n  \
reasoning like others; here an agent's `read_first = \"reasoning\"` does.\n\
- **K2 Horizon's group of calls** gives its valid calls when one of them is broken; vLLM shows the whole group as text.\n\
- **ERNIE's `<response>`** around an answer stays in the text: any other model may answer in XML.\n";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares a generated page with its file, or writes it.
    fn check_page(path: &str, page: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, page).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page,
            "{} is stale: UPDATE_DOCS=1 cargo test -p tool-call-parser --lib",
            path.display()
        );
    }

    #[test]
    fn the_reference_page_is_up_to_date() {
        check_page("../../docs/dialects.md", &reference());
    }

    #[test]
    fn the_readme_lists_every_dialect() {
        let page = include_str!("../../README.md");
        let (head, rest) = page.split_once("--lib` -->\n").unwrap();
        let (_, tail) = rest.split_once("<!-- end of dialects -->").unwrap();
        check_page("README.md", &format!("{head}--lib` -->\n{}<!-- end of dialects -->{tail}", summary()));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = TABLE.iter().map(|dialect| dialect.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
