//! The layers' common form: the `config` crate's values, each with its place as origin; merging and reading
//! them.

use ::config::{Map, Value, ValueKind};

use super::problem::Place;

/// A table of values by key, in the order they were written.
pub(super) type Table = Map<String, Value>;

/// Returns a value and its place.
pub(super) fn value(place: &Place, kind: impl Into<ValueKind>) -> Value {
    Value::new(Some(&place.as_str().to_owned()), kind)
}

/// Returns where a value was written.
pub(super) fn place(value: &Value) -> Place {
    Place::from_text(value.origin().unwrap_or("default"))
}

/// A step into the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A table's key.
    Key(String),
    /// A list's entry.
    Index(usize),
}

/// Returns the value at the end of a path such as `upstream`, `1`, `url`: a number is an entry's index where
/// there is a list.
pub(super) fn find_value<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, step| match &value.kind {
        ValueKind::Table(table) => table.get(*step),
        ValueKind::Array(list) => list.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns the place of the longest part of a path that was written anywhere.
pub(super) fn place_of(table: &Table, path: &[&str]) -> Place {
    let written = (1..=path.len()).rev().find_map(|length| find_value(table, &path[..length]));
    written.map_or_else(|| Place::from_text("default"), place)
}

/// Lays a value over what a table has: tables are joined, everything else is replaced. (The crate's own
/// builder does the same, but forgets where a table was written and reads a key such as `"a.b"` as a path.)
fn overlay_value(table: &mut Table, key: String, mut new: Value) {
    match (table.get_mut(&key).map(|old| &mut old.kind), &mut new.kind) {
        (Some(ValueKind::Table(old)), ValueKind::Table(entries)) => {
            std::mem::take(entries).into_iter().for_each(|(key, value)| overlay_value(old, key, value));
        }
        _ => {
            table.insert(key, new);
        }
    }
}

/// Returns one layer over what is below it.
pub(super) fn merge_layers(mut below: Table, layer: Table) -> Table {
    layer.into_iter().for_each(|(key, value)| overlay_value(&mut below, key, value));
    below
}
