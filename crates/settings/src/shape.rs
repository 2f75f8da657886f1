//! Checks a layer against the declared keys: unknown keys, wrong types, values out of range, sections that
//! lack a required key. It reports wrong values and removes them, so that the rest can be checked further.

mod scalar;

use std::path::PathBuf;

use ::config::{Value, ValueKind};

use wire::settings::Shape;

use super::keys::{KEYS, Key, Node, Section, build_schema};
use super::problem::{Place, Problems};
use super::tree::{Table, place, value};

/// Checks layers against the table of keys.
pub(super) struct Checker {
    schema: Section,
    home: Option<PathBuf>,
}

impl Checker {
    /// Returns a checker that puts `home` for a leading `~/` of paths.
    pub(super) fn new(home: Option<PathBuf>) -> Self {
        Self { schema: build_schema(), home }
    }

    /// Returns the table of keys as a tree.
    pub(super) fn schema(&self) -> &Section {
        &self.schema
    }

    /// Returns the layer without what is wrong in it.
    pub(super) fn clean(&self, layer: Table, problems: &mut Problems) -> Table {
        self.clean_section(&self.schema, layer, "", problems)
    }

    fn clean_section(&self, section: &Section, table: Table, path: &str, problems: &mut Problems) -> Table {
        let mut cleaned = Table::new();
        for (name, entry) in table {
            let path = join_path(path, &name);
            let at = place(&entry);
            match section.get(&name) {
                Some(node) => {
                    if let Some(kind) = self.clean_node(node, entry, &path, problems) {
                        cleaned.insert(name, value(&at, kind));
                    }
                }
                None => match (section.others(), &entry.kind) {
                    (Some(others), ValueKind::Table(_)) => {
                        if let Some(entry) = self.clean_table(others, entry, &path, problems) {
                            cleaned.insert(name, entry);
                        }
                    }
                    _ => problems.add(at, path, describe_unknown(section, &name)),
                },
            }
        }
        cleaned
    }

    fn clean_node(
        &self,
        node: &Node,
        entry: Value,
        path: &str,
        problems: &mut Problems,
    ) -> Option<ValueKind> {
        let at = place(&entry);
        match (node, entry.kind) {
            (Node::Leaf(key), kind) => self.clean_leaf(key, value(&at, kind), path, problems),
            (Node::Section(section), ValueKind::Table(table)) => {
                Some(ValueKind::Table(self.clean_section(section, table, path, problems)))
            }
            (Node::Named(section), ValueKind::Table(table)) => {
                Some(ValueKind::Table(self.clean_named(section, table, path, problems)))
            }
            (Node::List(section), ValueKind::Array(list)) => {
                let entries = list.into_iter().enumerate();
                let cleaned = entries.filter_map(|(index, entry)| {
                    self.clean_table(section, entry, &format!("{path}[{index}]"), problems)
                });
                Some(ValueKind::Array(cleaned.collect()))
            }
            (node, kind) => {
                let message = match (node, at.as_str().strip_prefix("environment ")) {
                    (Node::List(_), Some(variable)) => {
                        format!(
                            "it is a list of tables: set the keys of its entries, as in {variable}__0__URL"
                        )
                    }
                    _ => describe_misplaced(node, path, &kind),
                };
                problems.add(at, path, message);
                None
            }
        }
    }

    fn clean_named(&self, section: &Section, table: Table, path: &str, problems: &mut Problems) -> Table {
        let entries = table.into_iter();
        let cleaned = entries.filter_map(|(name, entry)| {
            let entry = self.clean_table(section, entry, &join_path(path, &name), problems)?;
            Some((name, entry))
        });
        cleaned.collect()
    }

    fn clean_table(
        &self,
        section: &Section,
        entry: Value,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Value> {
        let at = place(&entry);
        match entry.kind {
            ValueKind::Table(table) => {
                Some(value(&at, ValueKind::Table(self.clean_section(section, table, path, problems))))
            }
            kind => {
                problems.add(
                    at,
                    path,
                    format!("expected a table, found {}", scalar::describe_value(&kind, false)),
                );
                None
            }
        }
    }

    fn clean_leaf(
        &self,
        key: &'static Key,
        entry: Value,
        path: &str,
        problems: &mut Problems,
    ) -> Option<ValueKind> {
        let at = place(&entry);
        let mut one = |entry: Value, path: &str| {
            let at = place(&entry);
            let read = scalar::read_scalar(key, entry.kind, self.home.as_deref());
            read.map_err(|why| problems.add(at.clone(), path, why.to_string()))
                .ok()
                .map(|kind| value(&at, kind))
        };
        match (key.shape, entry.kind) {
            (Shape::One, kind) => one(value(&at, kind), path).map(|value| value.kind),
            (Shape::List, ValueKind::Array(list)) => {
                let entries = list.into_iter().enumerate();
                let read = entries.filter_map(|(index, entry)| one(entry, &format!("{path}[{index}]")));
                Some(ValueKind::Array(read.collect()))
            }
            (Shape::Table, ValueKind::Table(table)) => {
                let entries = table.into_iter();
                let read = entries
                    .filter_map(|(name, entry)| Some((name.clone(), one(entry, &join_path(path, &name))?)));
                Some(ValueKind::Table(read.collect()))
            }
            (shape, kind) => {
                let wanted = if shape == Shape::List { "a list" } else { "a table" };
                let found = scalar::describe_value(&kind, key.secret);
                problems.add(at, path, format!("expected {wanted}, such as {}, found {found}", key.example));
                None
            }
        }
    }

    /// Reports the sections of the merged layers that lack what they need.
    pub(super) fn check_required(&self, tree: &Table, problems: &mut Problems) {
        report_missing(&self.schema, tree, "", None, problems);
    }
}

fn report_missing(section: &Section, table: &Table, path: &str, at: Option<&Place>, problems: &mut Problems) {
    for (name, node) in section.iter() {
        let entry = table.get(name);
        let path = join_path(path, name);
        match (node, entry.map(|entry| &entry.kind)) {
            (Node::Leaf(key), None) if key.required => {
                let already = problems.iter().any(|problem| problem.key == path);
                if let (Some(at), false) = (at, already) {
                    problems.add(
                        at.clone(),
                        path,
                        format!("is missing; add it, for example {name} = {}", key.example),
                    );
                }
            }
            (Node::Section(inner), Some(ValueKind::Table(table))) => {
                report_missing(inner, table, &path, at, problems);
            }
            (Node::Named(inner), Some(ValueKind::Table(entries))) => {
                entries.iter().for_each(|(name, entry)| {
                    report_missing_in(inner, entry, &join_path(&path, name), problems);
                });
            }
            (Node::List(inner), Some(ValueKind::Array(list))) => {
                let entries = list.iter().enumerate();
                entries.for_each(|(index, entry)| {
                    report_missing_in(inner, entry, &format!("{path}[{index}]"), problems);
                });
            }
            _ => {}
        }
    }
}

fn report_missing_in(section: &Section, entry: &Value, path: &str, problems: &mut Problems) {
    if let ValueKind::Table(table) = &entry.kind {
        report_missing(section, table, path, Some(&place(entry)), problems);
    }
}

/// Returns a path and one more name, quoted where TOML needs it.
fn join_path(path: &str, name: &str) -> String {
    let name = super::show::bare_or_quoted(name);
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

fn describe_misplaced(node: &Node, path: &str, kind: &ValueKind) -> String {
    let found = scalar::describe_value(kind, false);
    match node {
        Node::List(_) => format!("expected a list of tables: write [[{path}]], found {found}"),
        Node::Named(_) => format!("expected tables by name: write [{path}.NAME], found {found}"),
        _ => format!("expected a section: write [{path}], found {found}"),
    }
}

/// Names that other programs have for a setting, each with its name here.
const SYNONYMS: [(&str, &str); 8] = [
    ("address", "listen"),
    ("bind", "listen"),
    ("host", "listen"),
    ("port", "listen"),
    ("address", "url"),
    ("endpoint", "url"),
    ("host", "url"),
    ("token", "api_key"),
];

/// Returns the name in the section that was meant by another word for it, or by the same word with a
/// different beginning (`key` for `api_key`, `base_url` for `url`).
fn find_synonym(section: &Section, name: &str) -> Option<&'static str> {
    let has_beginning =
        |long: &str, short: &str| long.strip_suffix(short).is_some_and(|beginning| beginning.ends_with('_'));
    let is_meant = |known: &&'static str| {
        SYNONYMS.contains(&(name, *known)) || has_beginning(known, name) || has_beginning(name, known)
    };
    section.names().filter(is_meant).min_by_key(|known| known.len())
}

/// Explains that the section has no such name.
pub(super) fn describe_unknown(section: &Section, name: &str) -> String {
    let elsewhere: Vec<_> = KEYS
        .iter()
        .filter(|key| key.name() == name || key.path == name)
        .map(|key| key.path.as_str())
        .collect();
    if let [path] = elsewhere.as_slice()
        && !path.contains('.')
    {
        return format!("unknown key here; write `{path}` above the first [table]");
    }
    let near = section.names().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
    let near = near.filter(|(distance, known)| *distance <= known.len().max(name.len()).div_ceil(3));
    if let Some(known) = find_synonym(section, name).or(near.map(|(_, known)| known)) {
        return format!("unknown key; did you mean {known}?");
    }
    match elsewhere.as_slice() {
        [] => format!("unknown key; here may be: {}", section.names().collect::<Vec<_>>().join(", ")),
        paths => format!("unknown key here; did you mean {}?", paths.join(" or ")),
    }
}
