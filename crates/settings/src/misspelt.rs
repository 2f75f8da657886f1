//! Finds environment variables that look like settings but are not read, such as `RESPOOL_LISTEN` for
//! `RESPOOL__LISTEN`.
//!
//! Only names that are close to a setting are reported. Variables of the user's own are not, nor those that a
//! cluster sets for a service called `respool`. Pure.

use ::config::{Value, ValueKind};

use super::flags::Environment;
use super::keys::KEYS;
use super::tree::Table;

/// Variables that are read although they are no settings.
const READ: [&str; 2] = ["RESPOOL_CONFIG", "RESPOOL_OPERATOR_KEY"];
/// Short names that people write for a setting with a longer one.
const SHORT: [(&str, &str); 2] = [("config", "RESPOOL_CONFIG"), ("upstream", "RESPOOL__UPSTREAM__0__URL")];

/// A variable that is not read, and the one that was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misspelt {
    /// The variable's name.
    pub name: String,
    /// The name that respool reads.
    pub meant: String,
}

/// Returns the misspelt variables. One that a setting names (`api_key_env = "RESPOOL_KEY"`) is read.
pub(super) fn find_misspelt(environment: &Environment, tree: &Table) -> Vec<Misspelt> {
    let names = environment.keys().filter(|name| !READ.contains(&name.as_str()));
    let unread = names.filter(|name| !tree.values().any(|value| has_text(value, name)));
    unread.filter_map(|name| Some(Misspelt { name: name.clone(), meant: nearest_setting(name)? })).collect()
}

fn has_text(value: &Value, text: &str) -> bool {
    match &value.kind {
        ValueKind::String(found) => found == text,
        ValueKind::Array(list) => list.iter().any(|entry| has_text(entry, text)),
        ValueKind::Table(table) => table.values().any(|entry| has_text(entry, text)),
        _ => false,
    }
}

/// Returns the setting whose name is closest to that of a variable.
fn nearest_setting(name: &str) -> Option<String> {
    let (first, rest) = name.split_once('_')?;
    let is_of_respool = strsim::damerau_levenshtein(&first.to_ascii_uppercase(), "RESPOOL") <= 1;
    if !is_of_respool || name.starts_with("RESPOOL__") {
        return None;
    }
    let rest = rest.to_ascii_lowercase();
    let is_word = |part: &&str| !part.is_empty() && part.parse::<usize>().is_err();
    let rest = rest.split('_').filter(is_word).collect::<Vec<_>>().join("_");
    let settings = KEYS.iter().map(|key| (fold_path(&key.path), variable_of(&key.path)));
    let short = SHORT.iter().map(|&(short, variable)| (short.to_owned(), variable.to_owned()));
    let distance = |folded: &str| strsim::damerau_levenshtein(folded, &rest);
    let near = settings.chain(short).filter(|(folded, _)| distance(folded) <= folded.len() / 5);
    near.min_by_key(|(folded, _)| (distance(folded), folded.len())).map(|(_, variable)| variable)
}

/// Removes from a path the parts that differ from user to user: `upstream_url` for `upstream[].url`.
fn fold_path(path: &str) -> String {
    path.split('.').filter(|part| !part.starts_with('<')).collect::<Vec<_>>().join("_").replace("[]", "")
}

/// Returns the variable of a path: `RESPOOL__UPSTREAM__0__URL` for `upstream[].url`.
fn variable_of(path: &str) -> String {
    let words = path.replace("[]", ".0").replace(['<', '>'], "").replace('.', "__");
    format!("RESPOOL__{}", words.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::super::problem::Place;
    use super::super::tree::value;
    use super::*;

    #[test]
    fn the_setting_that_was_meant_is_found() {
        for (name, expected) in [
            ("RESPOOL_LISTEN", Some("RESPOOL__LISTEN")),
            ("respool__listen", Some("RESPOOL__LISTEN")),
            ("RESPOL__LISTEN", Some("RESPOOL__LISTEN")),
            ("RESPOOL_LIMITS_MAXBODY", Some("RESPOOL__LIMITS__MAX_BODY")),
            ("RESPOOL_UPSTREAM", Some("RESPOOL__UPSTREAM__0__URL")),
            ("RESPOOL_UPSTREAM_0_URL", Some("RESPOOL__UPSTREAM__0__URL")),
            ("RESPOOL_CLIENT_KEYS", Some("RESPOOL__CLIENT_KEYS")),
            ("RESPOOL_CONFG", Some("RESPOOL_CONFIG")),
            ("RESPOOL_PORT_8003_TCP", None),
            ("RESPOOL_SERVICE_HOST", None),
            ("RESPOOL__LISTN", None),
            ("OTHER_LISTEN", None),
        ] {
            assert_eq!(nearest_setting(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_variable_that_a_setting_names_is_read() {
        let environment = Environment::from([
            ("RESPOOL_CLIENT_KEYS".to_owned(), "k".to_owned()),
            ("RESPOOL_CONFIG".to_owned(), "f".to_owned()),
        ]);
        let found = find_misspelt(&environment, &Table::new());
        assert_eq!(found.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["RESPOOL_CLIENT_KEYS"]);
        let name = value(&Place::from_text("respool.toml:1"), "RESPOOL_CLIENT_KEYS");
        let tree = Table::from([("client_keys_env".to_owned(), name)]);
        assert_eq!(find_misspelt(&environment, &tree), []);
    }
}
