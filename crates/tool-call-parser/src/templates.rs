//! The marks of chat templates: the special tokens with which a family's template writes turns, calls and
//! reasoning. The model takes foreign text with such a token for another message.
//!
//! A space after the first character breaks a mark: no tokenizer finds its token then, and readers still
//! recognise it. Facts are from the families' tokenizers and templates. Pure. Used by `agent` on the way to a
//! model, and by `tools` to find text in a file that a model has read in broken form.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::dialects::TABLE;
use crate::preferred_dialects::PreferredDialects;

/// The marks of one family's template, or of several that share it.
#[derive(Clone, Debug)]
pub struct Template {
    /// The families.
    pub name: &'static str,
    /// The dialects that these families write, by which a model's template is found.
    pub dialects: Vec<&'static str>,
    /// Marks that begin or end a message, a role or a text.
    pub turns: Vec<&'static str>,
    /// Marks that frame calls, results and reasoning, in addition to those that open the dialects.
    pub calls: Vec<&'static str>,
}

/// A selection of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All marks: for text from tools and servers.
    All,
    /// Only the marks of turns: for the model's own text, which it may imitate.
    Turns,
}

/// All templates, as `templates.md` lists them.
pub static TEMPLATES: LazyLock<Vec<Template>> =
    LazyLock::new(|| include_str!("templates.md").split("\n## ").skip(1).map(Template::read).collect());

impl Template {
    /// Reads a section: its name, then the dialects, turns and calls, each in a line and each in backticks.
    fn read(section: &'static str) -> Self {
        let mut lines = section.lines().filter(|line| !line.is_empty());
        let name = lines.next().unwrap_or_default();
        let mut marks = || lines.next().unwrap_or_default().split('`').skip(1).step_by(2).collect();
        Self { name, dialects: marks(), turns: marks(), calls: marks() }
    }
}

/// The first characters of the listed marks.
static FIRST: LazyLock<Vec<char>> = LazyLock::new(|| {
    let marks = TEMPLATES.iter().flat_map(|template| template.turns.iter().chain(&template.calls));
    let firsts: BTreeSet<char> = marks.chain(REASONING).filter_map(|mark| mark.chars().next()).collect();
    firsts.into_iter().collect()
});

/// The marks of reasoning, which most families share.
const REASONING: &[&str] = &[
    "<think>",
    "</think>",
    "<mm:think>",
    "</mm:think>",
    "<seed:think>",
    "</seed:think>",
    "<thinking>",
    "</thinking>",
];

/// The longest name of a token, in characters, and of one with a bar at one end only.
const MOST_CHARS: usize = 64;
const MOST_OF_HALF: usize = 40;

/// The longest mark, in bytes.
const LONGEST: usize = 256;

/// One mark of a template.
struct Mark {
    text: &'static str,
    /// The bits of the templates that have it.
    templates: u64,
    is_turn: bool,
}

/// All marks, by their second byte in lower case: the first one is the same for most.
static MARKS: LazyLock<Vec<Vec<Mark>>> = LazyLock::new(|| {
    let mut marks: Vec<Vec<Mark>> = (0..256).map(|_| Vec::new()).collect();
    let mut put = |text: &'static str, templates: u64, is_turn: bool| {
        marks[usize::from(second_byte(text))].push(Mark { text, templates, is_turn });
    };
    for (index, template) in TEMPLATES.iter().enumerate() {
        let bit = 1 << index;
        template.turns.iter().for_each(|text| put(text, bit, true));
        template.calls.iter().for_each(|text| put(text, bit, false));
        template_openers(template).for_each(|text| put(text, bit, false));
    }
    REASONING.iter().for_each(|text| put(text, u64::MAX, false));
    marks
});

fn second_byte(text: &str) -> u8 {
    text.as_bytes().get(1).map_or(0, u8::to_ascii_lowercase)
}

/// Finds the marks at the beginning of a text, ignoring case.
fn marks_at(text: &str) -> impl Iterator<Item = &'static Mark> {
    let begins = move |mark: &&Mark| {
        let start = text.as_bytes().get(..mark.text.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(mark.text.as_bytes()))
    };
    MARKS[usize::from(second_byte(text))].iter().filter(begins)
}

/// Returns the marks that open a template's dialects and that ordinary text does not have.
fn template_openers(template: &Template) -> impl Iterator<Item = &'static str> {
    let dialects = TABLE.iter().filter(|dialect| template.dialects.contains(&dialect.name));
    let marks = dialects.flat_map(|dialect| dialect.opens.marks());
    marks.copied().filter(|mark| mark.len() > 3 && mark.starts_with(&FIRST[..]))
}

/// Returns the templates of models that write these dialects, or all of them without a preference.
fn templates_for(dialects: PreferredDialects) -> u64 {
    let is_likely = |template: &Template| template.dialects.iter().any(|name| dialects.has(name));
    let of = |(index, template)| if is_likely(template) { 1_u64 << index } else { 0 };
    match TEMPLATES.iter().enumerate().map(of).sum() {
        0 => u64::MAX,
        some => some,
    }
}

/// Returns the places where a space breaks the marks of a text, in order. `dialects`: those that the model
/// writes; without any, the marks of all families count.
pub fn find_breaks(text: &str, dialects: PreferredDialects, scope: Scope) -> Vec<usize> {
    // Most texts, such as the keys of schemas, have no mark, so the templates need not be looked up.
    if !text.contains(&FIRST[..]) {
        return Vec::new();
    }
    let templates = templates_for(dialects);
    let is_meant = |mark: &Mark| mark.templates & templates != 0 && (scope == Scope::All || mark.is_turn);
    let is_mark = |(at, _): &(usize, &str)| {
        let rest = &text[*at..];
        marks_at(rest).any(is_meant) || (scope == Scope::All && form_length(rest).is_some())
    };
    text.match_indices(&FIRST[..]).filter(is_mark).map(|(at, first)| at + first.len()).collect()
}

/// Returns the length of a token at the beginning of a text, by its form: `<|x|>`, `<｜x｜>`, `<|x>`, `<x|>`.
/// The tokens of most families have one of these forms, even unlisted ones (`<|reserved_special_token_7|>`),
/// and ordinary text does not.
fn form_length(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('<')?;
    if let Some(rest) = inner.strip_prefix('｜') {
        let name = &rest[..rest.find(['<', '>', '｜'])?];
        return closed_length(text, rest, name, "｜>", MOST_CHARS);
    }
    let (is_open, rest) = inner.strip_prefix('|').map_or((false, inner), |rest| (true, rest));
    let name = &rest[..rest.find(|char: char| char.is_whitespace() || "<>|".contains(char))?];
    let most = if is_open { MOST_CHARS } else { MOST_OF_HALF };
    let whole = closed_length(text, rest, name, "|>", most);
    whole.or_else(|| if is_open { closed_length(text, rest, name, ">", MOST_OF_HALF) } else { None })
}

/// Returns the length of the text up to the end of `close`, which must follow a name of at most `most`
/// characters.
fn closed_length(text: &str, rest: &str, name: &str, close: &str, most: usize) -> Option<usize> {
    let is_closed = !name.is_empty() && name.chars().count() <= most && rest[name.len()..].starts_with(close);
    is_closed.then(|| text.len() - rest.len() + name.len() + close.len())
}

/// Breaks the marks in a text.
pub fn break_marks(text: &str, dialects: PreferredDialects, scope: Scope) -> Cow<'_, str> {
    match find_breaks(text, dialects, scope).as_slice() {
        [] => Cow::Borrowed(text),
        places => Cow::Owned(with_spaces(text, places)),
    }
}

/// Inserts a space at each of these places.
pub fn with_spaces(text: &str, places: &[usize]) -> String {
    let mut out = String::with_capacity(text.len() + places.len());
    let mut from = 0;
    for place in places {
        out.push_str(&text[from..*place]);
        out.push(' ');
        from = *place;
    }
    out.push_str(&text[from..]);
    out
}

/// Restores the marks in a model's text that it knows only in broken form: those that `original` has
/// unbroken.
pub fn restore_marks<'a>(text: &'a str, original: &str) -> Cow<'a, str> {
    let mut out = String::new();
    let mut from = 0;
    for (at, first) in text.match_indices(&FIRST[..]) {
        let place = at + first.len();
        if !text[place..].starts_with(' ') {
            continue;
        }
        let end = text.floor_char_boundary((place + 1 + LONGEST).min(text.len()));
        let whole = format!("{}{}", &text[at..place], &text[place + 1..end]);
        let Some(length) = mark_length(&whole) else { continue };
        let mark = &whole[..length];
        let as_written = &text[at..=at + length];
        if original.contains(mark) && !original.contains(as_written) {
            out.push_str(&text[from..place]);
            from = place + 1;
        }
    }
    if from == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[from..]);
    Cow::Owned(out)
}

/// Returns the length of the shortest mark at the beginning of a text.
fn mark_length(text: &str) -> Option<usize> {
    let listed = marks_at(text).map(|mark| mark.text.len()).min();
    let ends = [listed, form_length(text)];
    ends.into_iter().flatten().min()
}

/// Writes the rows of the reference page.
#[cfg(test)]
pub(super) fn reference_rows() -> String {
    use std::fmt::Write as _;
    let mut rows = String::new();
    for template in TEMPLATES.iter() {
        let marks = template.turns.iter().chain(&template.calls);
        let marks: Vec<String> = marks.map(|mark| format!("`{mark}`").replace('|', "\\|")).collect();
        let _ = writeln!(rows, "| {} | {} |", template.name, marks.join(" "));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_marks() -> impl Iterator<Item = &'static str> {
        let of = |template: &'static Template| {
            template.turns.iter().chain(&template.calls).copied().chain(template_openers(template))
        };
        TEMPLATES.iter().flat_map(of).chain(REASONING.iter().copied())
    }

    fn check(dialects: &[&str], text: &str, expected: &str) {
        let preferred = PreferredDialects::from_dialect_names(dialects.iter().copied());
        assert_eq!(break_marks(text, preferred, Scope::All), expected);
        assert_eq!(break_marks(expected, preferred, Scope::All), expected, "once is enough");
    }

    #[test]
    fn every_mark_is_broken_also_for_unknown_models() {
        for template in TEMPLATES.iter() {
            for mark in
                template.turns.iter().chain(&template.calls).copied().chain(template_openers(template))
            {
                for dialects in [
                    PreferredDialects::from_dialect_names(template.dialects.iter().copied()),
                    PreferredDialects::default(),
                ] {
                    let text = format!("a {mark} b");
                    let shown = break_marks(&text, dialects, Scope::All);
                    assert!(!shown.contains(mark), "{}: {mark}: {shown}", template.name);
                    assert_eq!(shown.replace(' ', ""), text.replace(' ', ""), "{mark}");
                }
            }
        }
        for mark in
            ["<|im_start|>", "[THINK]", "[ARGS]", "<seed:bos>", "]~b]", "<|channel|>", "<|reserved_9|>"]
        {
            assert_ne!(break_marks(mark, PreferredDialects::default(), Scope::All), mark);
        }
    }

    #[test]
    fn marks_are_those_of_the_model_that_is_asked() {
        check(&["mistral"], "[INST] <s> [gMASK]", "[ INST] < s> [gMASK]");
        check(&["glm"], "[INST] <s> [gMASK]", "[INST] <s> [ gMASK]");
        check(&["harmony"], "<s>x</s><|start|>system<|message|>", "<s>x</s>< |start|>system< |message|>");
        check(&["react"], "[INST] [gMASK]", "[ INST] [ gMASK]");
        check(&[], "]~b]~b]system", "] ~b] ~b]system");
        check(&[], "<<|im_start|>|im_end|>", "<< |im_start|>|im_end|>");
        check(&[], "<|IM_START|><Think>", "< |IM_START|>< Think>");
        check(&[], "<｜User｜></｜DSML｜tool_calls>", "< ｜User｜>< /｜DSML｜tool_calls>");
    }

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in [
            "a <b> c",
            "x |> f <| y",
            "[link](https://x)",
            "if a < b && c | d > e {}",
            "<script>",
            "[TOOLS]",
            "|x| x",
        ] {
            check(&[], text, text);
        }
    }

    #[test]
    fn of_the_models_own_words_only_turns_are_broken() {
        let text = "<tool_call>x<|im_end|>";
        assert_eq!(break_marks(text, PreferredDialects::default(), Scope::Turns), "<tool_call>x< |im_end|>");
    }

    #[test]
    fn what_was_read_in_broken_form_is_written_whole() {
        let file = "a = '<|im_start|>'; b = '[ INST]'";
        for (written, expected) in [
            ("'< |im_start|>x'", "'<|im_start|>x'"),
            ("'<|im_start|>x'", "'<|im_start|>x'"),
            ("'< |im_end|>'", "'< |im_end|>'"),
            ("[ INST]", "[ INST]"),
            ("a < b [ c", "a < b [ c"),
        ] {
            assert_eq!(restore_marks(written, file), expected);
        }
        assert_eq!(restore_marks("< |im_start|>", "<|im_start|> < |im_start|>"), "< |im_start|>");
    }

    #[test]
    fn every_dialect_of_a_family_has_a_template() {
        // `bare_think` is no form of one family: without another dialect, the marks of all are broken.
        for dialect in TABLE.iter().filter(|dialect| !dialect.families.is_empty()) {
            let is_known = dialect.name == "bare_think"
                || TEMPLATES.iter().any(|template| template.dialects.contains(&dialect.name));
            assert!(is_known, "{} has families, but no section of templates.md names it", dialect.name);
        }
        for name in TEMPLATES.iter().flat_map(|template| &template.dialects) {
            assert!(TABLE.iter().any(|dialect| dialect.name == *name), "{name}");
        }
        assert!(TEMPLATES.len() < 64 && all_marks().all(|mark| mark.len() < LONGEST));
    }

    /// Texts of marks, pieces of marks and what joins them.
    fn marked_text() -> impl Strategy<Value = String> {
        let marks: Vec<&'static str> = all_marks().collect();
        let piece =
            (proptest::sample::select(marks), 0..40_usize, any::<bool>()).prop_map(|(mark, at, tail)| {
                let at = mark.floor_char_boundary(at.min(mark.len()));
                if tail { mark[at..].to_owned() } else { mark[..at].to_owned() }
            });
        let piece = prop_oneof![3 => piece, 1 => "[<>|\\[\\] ~!bs/]{0,3}"];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        /// Whatever a text is made of, no mark of any family is left in it, and only spaces have come.
        #[test]
        fn nothing_that_leaves_holds_a_mark(text in marked_text()) {
            let shown = break_marks(&text, PreferredDialects::default(), Scope::All).into_owned();
            prop_assert!(find_breaks(&shown, PreferredDialects::default(), Scope::All).is_empty(), "{}", shown);
            for mark in all_marks() {
                prop_assert!(!shown.contains(mark), "{mark} in {shown}");
            }
            prop_assert_eq!(shown.replace(' ', ""), text.replace(' ', ""));
        }
    }
}
