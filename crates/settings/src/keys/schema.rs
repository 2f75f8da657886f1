//! The keys as a tree, along which a configuration is walked.

use super::{KEYS, Key};

/// The permitted content of a table: names and the nodes that they lead to, in the order of the
/// documentation.
#[derive(Debug, Default)]
pub(crate) struct Section {
    entries: Vec<(&'static str, Node)>,
    /// The content of a table under any other name, where one is permitted.
    others: Option<Box<Section>>,
}

/// The node of a name: a value, a table, or several tables.
#[derive(Debug)]
pub(crate) enum Node {
    /// A value.
    Leaf(&'static Key),
    /// A table.
    Section(Section),
    /// A table of tables whose names are the user's.
    Named(Section),
    /// A list of tables.
    List(Section),
}

impl Section {
    /// Returns the node of a name: a value, a table, or several tables.
    pub(crate) fn get(&self, name: &str) -> Option<&Node> {
        self.entries.iter().find(|(known, _)| *known == name).map(|(_, node)| node)
    }

    /// Returns the content of a table under any other name, which the user chooses.
    pub(crate) fn others(&self) -> Option<&Section> {
        self.others.as_deref()
    }

    /// Returns the names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|(name, _)| *name)
    }

    /// Returns the names and their nodes, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &Node)> {
        self.entries.iter().map(|(name, node)| (*name, node))
    }

    fn insert(&mut self, path: &'static str, key: &'static Key) {
        let Some((head, rest)) = path.split_once('.') else {
            self.entries.push((path, Node::Leaf(key)));
            return;
        };
        let below_name = rest.strip_prefix('<').and_then(|rest| rest.split_once('.'));
        let (name, rest, node) = match (head.strip_suffix("[]"), below_name) {
            (Some(name), _) => (name, rest, Node::List(Self::default())),
            (None, Some((_, rest))) => (head, rest, Node::Named(Self::default())),
            (None, None) => (head, rest, Node::Section(Self::default())),
        };
        if self.get(name).is_none() {
            self.entries.push((name, node));
        }
        match self.entries.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Node::Section(inner))) if below_name.is_some() => {
                inner.others.get_or_insert_default().insert(rest, key);
            }
            Some((_, Node::Section(inner) | Node::Named(inner) | Node::List(inner))) => {
                inner.insert(rest, key);
            }
            _ => debug_assert!(false, "{path} is below a value"),
        }
    }
}

/// Returns the tree of all keys.
pub(crate) fn build_schema() -> Section {
    let mut root = Section::default();
    for key in KEYS.iter() {
        root.insert(&key.path, key);
    }
    root
}
