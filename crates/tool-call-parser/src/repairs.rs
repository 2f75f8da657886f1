//! The possible repairs of a call: their names in notes and metrics, their effects, and when each is safe.
//!
//! A repair changes the form of a call, never its effect. A call that would need more is refused, and the
//! model is asked again. `docs/dialects.md` prints this table. Used by `lenient_json`, `coerce`, `settle` and
//! the scanner.

use std::collections::BTreeSet;

/// The repairs made to one call.
pub(crate) type Repairs = BTreeSet<Repair>;

/// One kind of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Repair {
    Alias,
    BrokenPair,
    Coerced,
    Comma,
    Comment,
    DoubleEncoded,
    EmptyArguments,
    Enum,
    Escape,
    Fence,
    Framing,
    InnerQuotes,
    Junk,
    Key,
    KeyedText,
    Literal,
    Name,
    NullDropped,
    Quotes,
    RawNewline,
    Unchecked,
    Unclosed,
    Unwrapped,
    Wrapped,
}

/// A row of the reference page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The repair of this row. A test compares the order.
    #[cfg_attr(not(test), expect(dead_code, reason = "the test of the order reads it"))]
    pub(crate) repair: Repair,
    pub(crate) name: &'static str,
    pub(crate) change: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the reference page has it"))]
    pub(crate) safe: &'static str,
}

const fn row(repair: Repair, name: &'static str, change: &'static str, safe: &'static str) -> Row {
    Row { repair, name, change, safe }
}

/// Every repair, in the order of the enum.
pub(crate) const TABLE: [Row; 24] = [
    row(
        Repair::Alias,
        "alias",
        "An undeclared argument takes the name of a required one that is missing (`file_path` for `path`).",
        "Exactly one undeclared argument can mean exactly one missing one, by a list of known synonyms or a shared word, and its value fits that argument's schema.",
    ),
    row(
        Repair::BrokenPair,
        "broken_pair",
        "A key and value whose tags are broken are left out.",
        "The tool declares no argument of that name, so it would not have read the value.",
    ),
    row(
        Repair::Coerced,
        "coerced",
        "A value becomes the type that the schema asks for: `\"10\"` is 10, a JSON text is the list or object in it, one item is a list of one, the words of a command are one line of a shell.",
        "The value has exactly one reading in that type and the result fits the schema. What is null, looks like broken JSON or holds a separator is not made a list.",
    ),
    row(Repair::Comma, "comma", "A missing or surplus comma in JSON.", "The values on both sides are whole."),
    row(Repair::Comment, "comment", "A comment in JSON is left out.", "It stands outside strings."),
    row(
        Repair::DoubleEncoded,
        "double_encoded",
        "Arguments that are a JSON string with JSON in it are decoded once more.",
        "The string holds an object.",
    ),
    row(
        Repair::EmptyArguments,
        "empty_arguments",
        "No arguments, or `null`, become `{}`.",
        "The tool requires none; otherwise the call is refused.",
    ),
    row(
        Repair::Enum,
        "enum",
        "A listed value in other letters' case, with space around it, or as text.",
        "Exactly one listed value is equal apart from that.",
    ),
    row(
        Repair::Escape,
        "escape",
        "A backslash that JSON does not know stays in the text (`\\d`, `C:\\Users`).",
        "The string is closed.",
    ),
    row(
        Repair::Fence,
        "fence",
        "A Markdown fence around the arguments is left out.",
        "It is all that stands around them.",
    ),
    row(
        Repair::Framing,
        "framing",
        "Marks that frame a call or an answer (`<|START_RESPONSE|>`, a bare `</think>`) leave the text.",
        "They stand where the family's template writes them, outside code.",
    ),
    row(
        Repair::InnerQuotes,
        "inner_quotes",
        "Unescaped quotes inside a JSON string belong to the text.",
        "What follows each quote shows that the string goes on.",
    ),
    row(
        Repair::Junk,
        "junk",
        "What stands behind the whole JSON object of the arguments is left out.",
        "The object is whole; closing brackets and words behind it change nothing in it.",
    ),
    row(
        Repair::Key,
        "key",
        "An argument's name in other letters' case or with `-` for `_`.",
        "Exactly one declared name is equal apart from that, and it is not there itself.",
    ),
    row(
        Repair::KeyedText,
        "keyed_text",
        "Arguments written as `key=value` or `key: value` become an object.",
        "Every key is declared.",
    ),
    row(
        Repair::Literal,
        "literal",
        "`True`, `None`, `1_000`, `.5` and unquoted words in JSON.",
        "A literal has one meaning; a word counts only as a whole value inside an object.",
    ),
    row(
        Repair::Name,
        "name",
        "Namespaces, leaked tokens, letters' case, `-` and `_` in the tool's name; in a call that the server read, the name that another assistant gives the same tool (`Bash` for `exec`).",
        "Exactly one declared tool is left. Other assistants' names are those of a list, and the arguments fit the declared tool.",
    ),
    row(
        Repair::NullDropped,
        "null_dropped",
        "An argument that is `null` is left out.",
        "It is optional and the schema does not allow `null`.",
    ),
    row(
        Repair::Quotes,
        "quotes",
        "Single quotes, or none around keys, in JSON.",
        "Key and value can be told apart.",
    ),
    row(
        Repair::RawNewline,
        "raw_newline",
        "Line breaks and tabs in a JSON string are read as if they were escaped.",
        "The string is closed.",
    ),
    row(
        Repair::Unchecked,
        "unchecked",
        "None: the arguments, or some of them, are not compared with the tool's schema.",
        "The schema describes so many combinations that the comparison would take too long. The call leaves as it was written.",
    ),
    row(
        Repair::Unclosed,
        "unclosed",
        "Closing brackets that are missing at the end are added.",
        "A mark of the family shows that a call is meant, the reply was not cut, and the last value is whole: a closed string, a literal, or a closed object or list. An open string, a number, a comma or an empty object at the end is never closed.",
    ),
    row(
        Repair::Unwrapped,
        "unwrapped",
        "`{\"parameters\": {…}}` and alike give way to what is in it.",
        "The tool has no argument of that name, and what is inside has declared ones.",
    ),
    row(
        Repair::Wrapped,
        "wrapped",
        "A bare text becomes the only required argument.",
        "That argument is a string and the only required one, the text does not look like JSON or `key=value`, and holds no marks of a dialect.",
    ),
];

impl Repair {
    /// Returns the stable name in notes and metrics.
    pub(crate) fn name(self) -> &'static str {
        TABLE[self as usize].name
    }
}

/// Says in a sentence what the repair of this name does.
pub fn describe_repair(name: &str) -> Option<&'static str> {
    TABLE.iter().find(|row| row.name == name).map(|row| row.change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_enum() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.repair as usize, index, "{}", row.name);
        }
        let mut names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
        assert!(names.is_sorted());
    }
}
