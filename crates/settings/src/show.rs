//! `config show`: the effective values as TOML, each line with where its value came from, secrets covered.

use std::fmt::Write;
use std::path::Path;

use ::config::{Value, ValueKind};

use super::cover;
use super::keys::{Key, Node, Section, build_schema};
use super::misspelt::Misspelt;
use super::tree::{Table, place};

/// Returns the text. It is valid TOML; what is not set and has no default is a comment.
pub(super) fn show_settings(
    tree: &Table,
    file: Option<&Path>,
    unread: Option<&Path>,
    misspelt: &[Misspelt],
) -> String {
    let mut out = match file {
        Some(path) => format!("# file: {}\n", path.display()),
        None => "# no file\n".to_owned(),
    };
    if let Some(path) = unread {
        let _ = writeln!(out, "# not read, because no option names it: {}", path.display());
    }
    for Misspelt { name, meant } in misspelt {
        let _ = writeln!(out, "# not read, because the name is wrong: {name} (did you mean {meant}?)");
    }
    show_section(&build_schema(), tree, "", &mut out);
    out
}

fn show_section(keys: &Section, table: &Table, path: &str, out: &mut String) {
    for (name, node) in keys.iter() {
        if let Node::Leaf(key) = node {
            show_leaf(key, table.get(name), out);
        }
    }
    for (name, node) in keys.iter() {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match (node, table.get(name).map(|entry| &entry.kind)) {
            (Node::Section(inner), entry) => {
                let nothing = Table::new();
                let entries = match entry {
                    Some(ValueKind::Table(entries)) => entries,
                    _ => &nothing,
                };
                show_table(inner, entries, &format!("[{path}]"), &path, out);
            }
            (Node::Named(inner), Some(ValueKind::Table(entries))) => {
                for (name, entry) in entries {
                    let path = format!("{path}.{}", bare_or_quoted(name));
                    show_entry(inner, entry, &format!("[{path}]"), &path, out);
                }
            }
            (Node::List(inner), Some(ValueKind::Array(list))) => {
                for entry in list {
                    show_entry(inner, entry, &format!("[[{path}]]"), &path, out);
                }
            }
            _ => {}
        }
    }
    let Some(others) = keys.others() else { return };
    for (name, entry) in table.iter().filter(|(name, _)| keys.get(name).is_none()) {
        let path = format!("{path}.{}", bare_or_quoted(name));
        show_entry(others, entry, &format!("[{path}]"), &path, out);
    }
}

fn show_table(inner: &Section, table: &Table, header: &str, path: &str, out: &mut String) {
    if inner.iter().any(|(_, node)| matches!(node, Node::Leaf(_))) {
        let _ = writeln!(out, "\n{header}");
    }
    show_section(inner, table, path, out);
}

fn show_entry(inner: &Section, entry: &Value, header: &str, path: &str, out: &mut String) {
    if let ValueKind::Table(table) = &entry.kind {
        show_table(inner, table, header, path, out);
    }
}

fn show_leaf(key: &Key, entry: Option<&Value>, out: &mut String) {
    let name = key.name();
    let _ = match entry {
        Some(entry) => {
            let shown = toml_value(&cover_value(key, &entry.kind), key.secret);
            writeln!(out, "{name} = {shown}  # {}", origin_of(entry))
        }
        None if key.default.is_empty() => writeln!(out, "# {name} is not set: {}", key.unset),
        None => writeln!(out, "{name} = {}  # default", key.default),
    };
}

/// Covers the parts of a value that may be secret.
fn cover_value(key: &Key, kind: &ValueKind) -> ValueKind {
    match (key.name(), kind) {
        ("url", ValueKind::String(text)) if key.path.starts_with("alerts.") => {
            ValueKind::String(cover::cover_secret_path(text))
        }
        ("url" | "endpoint", ValueKind::String(text)) => ValueKind::String(cover::cover_url(text)),
        ("args" | "program", ValueKind::Array(list)) => {
            let texts: Vec<String> = list.iter().map(|entry| entry.kind.to_string()).collect();
            let before = std::iter::once(None).chain(texts.iter().map(|text| Some(text.as_str())));
            let covered = before.zip(&texts).map(|(before, text)| cover::cover_argument(before, text));
            ValueKind::Array(covered.map(|text| Value::new(None, text)).collect())
        }
        _ => kind.clone(),
    }
}

/// Returns a value's place; for a table that several layers fill, the places of its entries.
fn origin_of(entry: &Value) -> String {
    let places = match &entry.kind {
        ValueKind::Table(entries) if !entries.is_empty() => {
            let mut places: Vec<_> = entries.values().map(|entry| place(entry).to_string()).collect();
            places.dedup();
            places.join(", ")
        }
        _ => place(entry).to_string(),
    };
    places.replace(['\n', '\r'], " ")
}

fn toml_value(kind: &ValueKind, secret: bool) -> String {
    match kind {
        ValueKind::Table(entries) if entries.is_empty() => "{}".into(),
        ValueKind::Table(entries) => {
            let one = |(name, entry): (&String, &Value)| {
                format!("{} = {}", bare_or_quoted(name), toml_value(&entry.kind, secret))
            };
            format!("{{ {} }}", entries.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        ValueKind::Array(list) => {
            let entries: Vec<_> = list.iter().map(|entry| toml_value(&entry.kind, secret)).collect();
            format!("[{}]", entries.join(", "))
        }
        _ if secret => "\"***\"".into(),
        ValueKind::String(text) => quote_text(text),
        ValueKind::Float(number) => toml::Value::Float(*number).to_string(),
        other => other.to_string(),
    }
}

/// Returns a name as TOML writes a key.
pub(super) fn bare_or_quoted(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { quote_text(name) }
}

/// Quotes text as a TOML string on one line.
fn quote_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
