//! The page of the configuration, generated from the table of keys.

use std::fmt::Write;

use wire::settings::{Scalar, Shape};

use super::effect;
use super::keys::{KEYS, Key};

const HEAD: &str = include_str!("page.md");

/// Returns the text of `docs/configuration.md`.
pub(crate) fn page() -> String {
    let mut out = HEAD.to_owned();
    let mut section = None;
    for key in KEYS.iter() {
        if section != Some(key.section_path()) {
            section = Some(key.section_path());
            let _ = write!(
                out,
                "\n## {}\n\n| key | type | default | meaning | example | takes effect |\n|-|-|-|-|-|-|\n",
                key_title(key)
            );
        }
        let cells = [
            format!("`{}`", key.name()),
            kind_text(key),
            default_text(key),
            key.meaning.to_owned(),
            code_span(&key.example),
            when_effective(key).to_owned(),
        ];
        let _ = writeln!(out, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    out
}

/// Returns when a change of this key holds, while the server runs.
fn when_effective(key: &Key) -> &'static str {
    let path = key.path.replace("[]", "");
    let is_below =
        |above: &str| path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if !effect::is_at_once(&path) {
        return "after a restart";
    }
    effect::IN_PART.iter().find(|(above, _)| is_below(above)).map_or("at once", |(_, part)| part)
}

fn key_title(key: &Key) -> String {
    match key.section_path() {
        "" => "Top level".into(),
        section => match section.strip_suffix("[]") {
            Some(list) => format!("`[[{list}]]`"),
            None => format!("`[{}]`", section.replace("<ID>", "\"ID\"").replace(['<', '>'], "")),
        },
    }
}

fn code_span(text: &str) -> String {
    format!("`{text}`")
}

fn default_text(key: &Key) -> String {
    match (key.required, key.default.as_str()) {
        (true, _) => "required".into(),
        (false, "") => format!("not set: {}", key.unset),
        (false, default_text) => code_span(default_text),
    }
}

fn kind_text(key: &Key) -> String {
    let one = match key.scalar {
        Scalar::Text => "text".into(),
        Scalar::Path => "path".into(),
        Scalar::Word(words) => words.iter().map(|word| code_span(word)).collect::<Vec<_>>().join(", "),
        Scalar::Switch => "`true`, `false`".into(),
        Scalar::Count(0) => "whole number".into(),
        Scalar::Count(least) => format!("whole number from {least}"),
        Scalar::Number(least, most) => format!("number from {least} to {most}"),
        Scalar::Duration(true) => "duration".into(),
        Scalar::Duration(false) => "duration over `0s`".into(),
        Scalar::Size => "size".into(),
        Scalar::HttpUrl => "http or https URL".into(),
        Scalar::Form(name, _) => name.trim_start_matches("a ").trim_start_matches("an ").to_owned(),
        Scalar::Any => "any".into(),
    };
    match key.shape {
        Shape::One => one,
        Shape::List => format!("list of {one}"),
        Shape::Table => format!("table of {one}"),
    }
}
