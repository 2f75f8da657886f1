//! The file's layer: TOML text as a tree whose values know their lines. Used by `resolve`, and for values in
//! the environment that are lists or tables.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use ::config::{Value, ValueKind};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::problem::{Place, Problems};
use super::tree::{Table, value};

/// A configuration file's text and its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct FileText<'a> {
    /// The path as it is shown.
    pub path: &'a Path,
    /// The whole text.
    pub text: &'a str,
}

/// Reads a file. Where its TOML is broken, all that the parser can say is reported and the rest is still
/// read.
pub(super) fn read_file(file: FileText<'_>, problems: &mut Problems) -> Table {
    let name = file.path.display().to_string();
    let text = file.text.strip_prefix('\u{feff}').unwrap_or(file.text);
    let text = &*close_headers(text, |line, header| {
        problems.add(Place::line(&name, line), "", format!("not valid TOML: write `{header}`"));
    });
    let place = |span: Range<usize>| Place::line(&name, line_of(text, span.start));
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut broken = Vec::new();
    for error in errors {
        let span = error.span().unwrap_or_default();
        let at = place(span.clone());
        let line = text.lines().nth(line_of(text, span.start) - 1).unwrap_or_default();
        let is_curly = line.contains(CURLY_QUOTES);
        let unquoted = find_unquoted(line);
        if is_curly || unquoted.is_some() {
            // The first error of the line says it all. The value may be a secret.
            if !broken.iter().any(|(known, _)| *known == at) {
                let what = if is_curly { "curly quotes are not TOML's" } else { "text needs quotes" };
                let key = unquoted.map_or("KEY", |(key, _)| key);
                problems.add(at.clone(), "", format!("{what}: write `{key} = \"…\"`"));
            }
        } else {
            let column = column_of(text, span.start);
            problems.add(at.clone(), "", format!("not valid TOML at column {column}: {}", error.message()));
        }
        broken.push((at, unquoted.map(|(_, value)| value.to_owned())));
    }
    let mut table = read_table(document.into_inner(), &place);
    drop_values_at(&mut table, &broken);
    table
}

/// Completes the brackets of tables' headers in lines that are not TOML, so that the keys below them are read
/// where they belong. Reports the number of each such line, and the header.
fn close_headers(text: &str, mut report: impl FnMut(usize, &str)) -> Cow<'_, str> {
    let (_, errors) = DeTable::parse_recoverable(text);
    let broken: Vec<usize> =
        errors.iter().map(|error| line_of(text, error.span().unwrap_or_default().start)).collect();
    if broken.is_empty() {
        return text.into();
    }
    let mut lines: Vec<Cow<'_, str>> = text.split('\n').map(Cow::from).collect();
    for (number, line) in (1..).zip(&mut lines).filter(|(number, _)| broken.contains(number)) {
        if let Some(header) = complete_header(line) {
            report(number, &header);
            *line = header.into();
        }
    }
    lines.join("\n").into()
}

/// Returns the header that a line was meant to be, if only its brackets are wrong.
fn complete_header(line: &str) -> Option<String> {
    let line = line.split('#').next()?.trim();
    let name = line.trim_matches(['[', ']']).trim();
    let count = |bracket: char| line.matches(bracket).count();
    let brackets = count('[').max(count(']'));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-\"'/: ".contains(c);
    let is_header = line.starts_with('[') && brackets <= 2 && count('[') != count(']');
    (is_header && !name.is_empty() && name.chars().all(is_name))
        .then(|| format!("{}{name}{}", "[".repeat(brackets), "]".repeat(brackets)))
}

/// The quotes that word processors and web pages write.
const CURLY_QUOTES: [char; 6] = ['“', '”', '„', '‘', '’', '‚'];

/// Returns the key of a line and its value, if that is text without quotes, or in curly ones.
fn find_unquoted(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split(" #").next()?.trim());
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let value = if value.contains(CURLY_QUOTES) {
        value.trim_matches(|quote| CURLY_QUOTES.contains(&quote) || "\"'".contains(quote))
    } else {
        value
    };
    let is_text = value.starts_with(|c: char| c.is_ascii_alphanumeric() || "/.~".contains(c));
    (is_text && !key.is_empty() && key.chars().all(is_name) && !value.contains(['"', '\'']))
        .then_some((key, value))
}

/// Takes out the values of lines whose TOML is broken: what the parser made of them is a guess. Text without
/// quotes is known.
fn drop_values_at(table: &mut Table, broken: &[(Place, Option<String>)]) {
    table.retain(|_, entry| {
        let at = super::tree::place(entry);
        match &mut entry.kind {
            ValueKind::Table(inner) => drop_values_at(inner, broken),
            ValueKind::Array(list) => {
                let tables = list.iter_mut().filter_map(|entry| match &mut entry.kind {
                    ValueKind::Table(inner) => Some(inner),
                    _ => None,
                });
                tables.for_each(|inner| drop_values_at(inner, broken));
            }
            kind => match broken.iter().find(|(place, _)| *place == at) {
                Some((_, Some(text))) => *kind = ValueKind::String(text.clone()),
                Some((_, None)) => return false,
                None => {}
            },
        }
        true
    });
}

/// Reads one TOML value; everything in it is at the same place.
pub(super) fn read_value(text: &str, at: &Place) -> Option<Value> {
    let parsed = DeValue::parse(text).ok()?;
    Some(value(at, read_kind(parsed.into_inner(), &|_| at.clone())))
}

/// Returns the place of a character in its line, counted from 1.
fn column_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or_default();
    before.chars().rev().take_while(|&c| c != '\n').count() + 1
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1
}

fn read_table(entries: DeTable<'_>, place: &dyn Fn(Range<usize>) -> Place) -> Table {
    let entry = |(key, entry): (Spanned<_>, Spanned<DeValue<'_>>)| {
        let at = place(key.span());
        let key: std::borrow::Cow<'_, str> = key.into_inner();
        (key.into_owned(), value(&at, read_kind(entry.into_inner(), place)))
    };
    entries.into_iter().map(entry).collect()
}

fn read_kind(parsed: DeValue<'_>, place: &dyn Fn(Range<usize>) -> Place) -> ValueKind {
    match parsed {
        DeValue::String(text) => ValueKind::String(text.into_owned()),
        DeValue::Integer(number) => read_integer(&number),
        DeValue::Float(number) => number.as_str().parse().map_or(ValueKind::Nil, ValueKind::Float),
        DeValue::Boolean(switch) => ValueKind::Boolean(switch),
        DeValue::Datetime(time) => ValueKind::String(time.to_string()),
        DeValue::Array(list) => ValueKind::Array(
            list.into_iter()
                .map(|entry| value(&place(entry.span()), read_kind(entry.into_inner(), place)))
                .collect(),
        ),
        DeValue::Table(entries) => ValueKind::Table(read_table(entries, place)),
    }
}

/// Returns a whole number; one that 64 bits cannot hold becomes a float, which no key for whole numbers
/// accepts.
fn read_integer(number: &DeInteger<'_>) -> ValueKind {
    match i64::from_str_radix(number.as_str(), number.radix()) {
        Ok(whole) => ValueKind::I64(whole),
        Err(_) => ValueKind::Float(number.as_str().parse().unwrap_or(f64::INFINITY)),
    }
}
