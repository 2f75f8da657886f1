//! `respool.example.toml`, generated from the declared keys. Sections in which keys exclude each other are
//! written by hand.

use std::fmt::Write as _;

use super::keys::{KEYS, Key};

const HEAD: &str = "\
# respool's configuration with its defaults. To set a key on a line that begins with \"#\" and no space, remove the \"#\".
# docs/configuration.md says more about each key; `respool config show` prints every setting in effect and its origin.
# This file is generated: UPDATE_DOCS=1 cargo test -p settings --lib
";

/// How wide a comment is.
const WIDTH: usize = 110;

/// Sections that need several examples, with their text.
const BY_HAND: [(&str, &str); 4] = [
    ("prices.<NAME>", include_str!("example/prices.toml")),
    ("alerts.sink[]", include_str!("example/sinks.toml")),
    ("tools.mcp.<NAME>", include_str!("example/mcp.toml")),
    ("tools.policy.rule[]", include_str!("example/rules.toml")),
];

/// Names for sections whose names are the user's.
const NAMES: [(&str, &str); 3] = [
    ("models.<ID>", "models.\"fast\""),
    ("experts.<NAME>", "experts.support-desk"),
    ("agents.<NAME>", "agents.researcher"),
];

/// Returns the text of `respool.example.toml`.
pub fn example() -> String {
    let mut out = HEAD.to_owned();
    let mut section = None;
    for key in KEYS.iter() {
        let by_hand = BY_HAND.iter().find(|(path, _)| *path == key.section_path());
        if section != Some(key.section_path()) {
            section = Some(key.section_path());
            match by_hand {
                Some((_, text)) => {
                    let _ = write!(out, "\n{text}");
                }
                None => add_header(key.section_path(), &mut out),
            }
        }
        if by_hand.is_none() && !has_variable(key) {
            add_entry(key, &mut out);
        }
    }
    out
}

/// Returns true for a secret that is better kept in an environment variable.
fn has_variable(key: &Key) -> bool {
    let variable = format!("{}_env", key.path);
    KEYS.iter().any(|other| other.path == variable)
}

fn add_header(section: &str, out: &mut String) {
    let name = NAMES.iter().find(|(path, _)| *path == section).map(|(_, name)| format!("#[{name}]"));
    let header = name.unwrap_or_else(|| match section.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{section}]"),
    });
    let _ = if section.is_empty() { writeln!(out) } else { writeln!(out, "\n{header}") };
}

fn add_entry(key: &Key, out: &mut String) {
    let mut line = String::from("#");
    for word in key.meaning.split_whitespace() {
        if line.len() + word.len() >= WIDTH {
            let _ = writeln!(out, "{line}");
            line = String::from("#");
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(out, "{line}");
    let is_named = NAMES.iter().any(|(path, _)| *path == key.section_path());
    let (mark, value) = match (is_named, key.required, key.default.is_empty()) {
        (false, true, _) => ("", &key.example),
        (false, false, false) => ("", &key.default),
        _ => ("#", &key.example),
    };
    let _ = writeln!(out, "{mark}{} = {value}", key.name());
}
