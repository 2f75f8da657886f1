//! The environment's layer: `RESPOOL__SECTION__KEY=value`.
//!
//! Two underscores stand for a dot. Text is taken as it is; numbers, switches, lists and tables are written
//! as in TOML. A list's entry is reached by its number (`RESPOOL__UPSTREAM__0__URL`).

use ::config::{Value, ValueKind};

use super::file::read_value;
use super::flags::Environment;
use super::keys::{Key, Node, Section};
use super::problem::{Place, Problems};
use super::shape;
use super::tree::{Step, Table, value};

const PREFIX: &str = "RESPOOL__";

/// Returns the layer that the environment makes over the file's.
pub(super) fn environment_layer(
    schema: &Section,
    file: &Table,
    environment: &Environment,
    problems: &mut Problems,
) -> Table {
    let mut layer = Table::new();
    for (name, text) in environment {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let place = Place::environment(name);
        let words: Vec<&str> = rest.split("__").collect();
        match resolve_words(schema, Some(file), &words) {
            Ok((steps, node)) => {
                if let Err(why) = put_value(&mut layer, Some(file), &steps, read_text(&node, text, &place)) {
                    problems.add(place, "", why.to_string());
                }
            }
            Err(why) => problems.add(place, "", why.to_string()),
        }
    }
    layer
}

/// The place that a variable's name leads to.
enum Target {
    Section,
    Leaf(&'static Key),
}

fn read_text(target: &Target, text: &str, place: &Place) -> Value {
    let plain = matches!(target, Target::Leaf(key) if key.is_text());
    let parsed = if plain { None } else { read_value(text, place) };
    parsed.unwrap_or_else(|| value(place, text))
}

type Resolved = Result<(Vec<Step>, Target), VariableError>;

/// Why a variable sets nothing.
#[derive(Debug, thiserror::Error)]
enum VariableError {
    /// Its name leads to no key, in words.
    #[error("{0}")]
    Unknown(String),
    /// Its name goes on after a key, whose path and example follow.
    #[error("{path} has nothing below it; set the whole value, such as {example}", path = .0.path, example = .0.example)]
    NothingBelow(&'static Key),
    /// Its name has two pairs of underscores with nothing between them.
    #[error("a name is missing between the underscores")]
    NoName,
    /// Its name has this word in place of an entry's number.
    #[error(
        "{0:?} is not an entry of the list: write its number, counted from 0, or set the whole list as in TOML"
    )]
    NotANumber(String),
    /// It sets an entry of what is not a list.
    #[error("it is not a list")]
    NotAList,
    /// It sets an entry of a list, of this length, that is further on than the next one.
    #[error("the list has {0} entries: the next one's number is {0}")]
    BeyondEnd(usize),
    /// It sets a key of what another variable sets to something else than a table.
    #[error("another variable sets the whole section to something that is not a table")]
    NotATable,
}

/// Follows a variable's words through the table of keys.
fn resolve_words(section: &Section, file: Option<&Table>, words: &[&str]) -> Resolved {
    let Some((word, rest)) = words.split_first() else { return Ok((Vec::new(), Target::Section)) };
    let name = word.to_ascii_lowercase();
    let Some(node) = section.get(&name) else {
        return match section.others() {
            Some(others) => resolve_named(others, file, words),
            None => Err(VariableError::Unknown(shape::describe_unknown(section, &name))),
        };
    };
    let inner = file.and_then(|table| table.get(&name));
    let mut steps = vec![Step::Key(name)];
    let (more, target) = match node {
        Node::Leaf(key) => resolve_leaf(key, rest)?,
        Node::Section(section) => resolve_words(section, table_of(inner), rest)?,
        Node::Named(section) => resolve_named(section, table_of(inner), rest)?,
        Node::List(section) => resolve_entry(section, rest)?,
    };
    steps.extend(more);
    Ok((steps, target))
}

fn table_of(value: Option<&Value>) -> Option<&Table> {
    match value.map(|value| &value.kind) {
        Some(ValueKind::Table(table)) => Some(table),
        _ => None,
    }
}

fn resolve_leaf(key: &'static Key, rest: &[&str]) -> Resolved {
    match rest {
        [] => Ok((Vec::new(), Target::Leaf(key))),
        _ => Err(VariableError::NothingBelow(key)),
    }
}

/// Resolves `AGENTS__NAME__…`: a name that the file has is found without regard to case and signs, since a
/// variable's name cannot hold them; any other is taken in lower case.
fn resolve_named(section: &Section, file: Option<&Table>, words: &[&str]) -> Resolved {
    let Some((word, rest)) = words.split_first() else { return Ok((Vec::new(), Target::Section)) };
    if word.is_empty() {
        return Err(VariableError::NoName);
    }
    let fold = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase();
    let known = file.and_then(|table| table.keys().find(|name| fold(name) == fold(word)));
    let name = known.cloned().unwrap_or_else(|| word.to_ascii_lowercase());
    let inner = table_of(file.and_then(|table| table.get(&name)));
    let (more, target) = resolve_words(section, inner, rest)?;
    Ok((std::iter::once(Step::Key(name)).chain(more).collect(), target))
}

fn resolve_entry(section: &Section, words: &[&str]) -> Resolved {
    let Some((word, rest)) = words.split_first() else { return Ok((Vec::new(), Target::Section)) };
    let index = word.parse().map_err(|_| VariableError::NotANumber((*word).to_owned()))?;
    let (more, target) = resolve_words(section, None, rest)?;
    Ok((std::iter::once(Step::Index(index)).chain(more).collect(), target))
}

/// Puts a value into the layer. A list of which one entry is set starts as the file's, since lists are
/// replaced whole.
fn put_value(
    layer: &mut Table,
    file: Option<&Table>,
    steps: &[Step],
    new: Value,
) -> Result<(), VariableError> {
    let Some((Step::Key(key), rest)) = steps.split_first() else { return Ok(()) };
    let below = file.and_then(|table| table.get(key));
    let place = super::tree::place(&new);
    match rest.split_first() {
        None => {
            layer.insert(key.clone(), new);
        }
        Some((Step::Index(index), rest)) => {
            let start = || below.cloned().unwrap_or_else(|| value(&place, Vec::<Value>::new()));
            let list = layer.entry(key.clone()).or_insert_with(start);
            put_entry(list, *index, rest, new)?;
        }
        Some((Step::Key(_), _)) => {
            let inner = layer.entry(key.clone()).or_insert_with(|| value(&place, Table::new()));
            put_value(as_table(inner)?, table_of(below), rest, new)?;
        }
    }
    Ok(())
}

fn put_entry(list: &mut Value, index: usize, rest: &[Step], new: Value) -> Result<(), VariableError> {
    let ValueKind::Array(list) = &mut list.kind else { return Err(VariableError::NotAList) };
    if index > list.len() {
        return Err(VariableError::BeyondEnd(list.len()));
    }
    if index == list.len() {
        list.push(value(&super::tree::place(&new), Table::new()));
    }
    if rest.is_empty() {
        list[index] = new;
        return Ok(());
    }
    put_value(as_table(&mut list[index])?, None, rest, new)
}

/// Returns the table in a value.
fn as_table(value: &mut Value) -> Result<&mut Table, VariableError> {
    match &mut value.kind {
        ValueKind::Table(table) => Ok(table),
        _ => Err(VariableError::NotATable),
    }
}
