//! Which keys of a configuration have other values than before. Pure.

use ::config::{Value, ValueKind};

use super::show::bare_or_quoted;
use super::tree::Table;

/// Returns the keys that differ, as they are written, in order.
pub(super) fn changed_keys(before: &Table, now: &Table) -> Vec<String> {
    let mut found = Vec::new();
    compare_tables("", before, now, &mut found);
    found.sort();
    found.dedup();
    found
}

fn compare_tables(path: &str, before: &Table, now: &Table, found: &mut Vec<String>) {
    for name in before.keys().chain(now.keys()) {
        let path =
            if path.is_empty() { bare_or_quoted(name) } else { format!("{path}.{}", bare_or_quoted(name)) };
        compare_values(&path, before.get(name), now.get(name), found);
    }
}

fn compare_values(path: &str, before: Option<&Value>, now: Option<&Value>, found: &mut Vec<String>) {
    let nothing = Table::new();
    match (before.map(|value| &value.kind), now.map(|value| &value.kind)) {
        (Some(ValueKind::Table(before)), Some(ValueKind::Table(now))) => {
            compare_tables(path, before, now, found);
        }
        (Some(ValueKind::Table(before)), None) => compare_tables(path, before, &nothing, found),
        (None, Some(ValueKind::Table(now))) => compare_tables(path, &nothing, now, found),
        (Some(ValueKind::Array(before)), Some(ValueKind::Array(now))) if before.len() == now.len() => {
            for (index, (before, now)) in before.iter().zip(now).enumerate() {
                compare_values(&format!("{path}[{index}]"), Some(before), Some(now), found);
            }
        }
        (before, now) if before == now => {}
        _ => found.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Environment, FileText, Flags, Loaded, resolve};

    fn load(text: &str) -> Loaded {
        let file = FileText { path: "respool.toml".as_ref(), text };
        resolve(Some(file), &Environment::new(), &Flags::default())
            .unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn changed_keys_are_named_and_moved_ones_are_not() {
        let check = |before: &str, now: &str, expected: &[&str]| {
            assert_eq!(load(now).changed_keys(&load(before)), expected, "{before} -> {now}");
        };
        check("", "", &[]);
        check("[budgets]\nday = 1.0", "# words\n\n[budgets]\nday = 1.0", &[]);
        check("[budgets]\nday = 1.0", "[budgets]\nday = 2.0\nkey = 1.0", &["budgets.day", "budgets.key"]);
        check("[prices.\"a.b\"]\ninput = 1.0", "", &["prices.\"a.b\".input"]);
        let upstream = |url: &str| format!("[[upstream]]\nname = \"box\"\nurl = \"{url}\"");
        check(&upstream("http://a"), &upstream("http://b"), &["upstream[0].url"]);
        check(
            &upstream("http://a"),
            &format!("{}\n[[upstream]]\nurl = \"http://c\"", upstream("http://a")),
            &["upstream"],
        );
    }

    /// Nodes shared no places while anything else in their configurations differed.
    #[test]
    fn servers_have_a_digest_of_their_own() {
        let digest = |text: &str| {
            let digest = load(text).digest();
            let parts: Vec<&str> = digest.split('-').collect();
            let of_keys = parts[2].split(' ').map(str::to_owned).collect::<Vec<_>>();
            (parts[0].to_owned(), parts[1].to_owned(), of_keys)
        };
        let upstream = "[[upstream]]\nname = \"box\"\nurl = \"http://a\"\nmax_concurrency = 4\n";
        let (one, other) = (digest(upstream), digest(&format!("{upstream}[budgets]\nday = 1.0")));
        assert!(one.0 != other.0 && one.1 == other.1, "{one:?} {other:?}");
        let differ: Vec<_> = one.2.iter().filter(|key| !other.2.contains(key)).collect();
        assert!(differ.len() == 1 && differ[0].starts_with("budgets="), "{differ:?}");
        assert_ne!(one.1, digest(&upstream.replace('4', "5")).1);
        let own = format!("listen = \"127.0.0.1:1\"\n{upstream}[alerts]\nlink = \"http://a\"");
        assert_eq!(one, digest(&own), "its own address and the link to its page");
    }
}
