//! `respool nodes`: lists the processes that share a database, and marks those whose configuration differs.

use clap::Args;
use serde_json::{Value, json};

use super::failure::Failure;
use super::listing::Noun;
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use settings::Loaded;
use store::{NodeRow, Store};

#[derive(Args, Debug)]
pub(super) struct NodesArgs {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// Forget a node that is gone and will not come back: the alert about it ends
    #[arg(long, value_name = "NAME", conflicts_with = "json")]
    forget: Option<String>,
}

pub(super) fn run_nodes(loaded: &Loaded, arguments: &NodesArgs) -> Result<(), Failure> {
    let config = &loaded.settings.store;
    if let Some(name) = arguments.forget.as_ref().filter(|_| config.store.url.is_some()) {
        return forget_node(&Store::open_in_place(config)?, name);
    }
    let nodes = match config.store.url {
        Some(_) => {
            let store = Store::open_in_place(config)?;
            new_runtime()?.block_on(store.nodes())?
        }
        None => Vec::new(),
    };
    if arguments.json {
        say(&format!("{:#}", nodes.iter().map(node_json).collect::<Value>()));
        return Ok(());
    }
    if config.store.url.is_none() {
        say_on_stderr(
            "this respool keeps its data in files, which no other machine shares; see `[store] url` in docs/scaling.md",
        );
        return Ok(());
    }
    nodes.iter().for_each(|node| say(&flat_text(&node_line(node, &nodes))));
    let lost = nodes.iter().filter(|node| node.is_lost).count();
    let gone = if lost == 0 { String::new() } else { format!(", and {lost} that did not end by itself") };
    say_on_stderr(&format!("{}{gone}", Noun("node", "nodes").count_things(nodes.len() - lost)));
    Ok(())
}

fn forget_node(store: &Store, name: &str) -> Result<(), Failure> {
    let runtime = new_runtime()?;
    if runtime.block_on(store.forget_node(name))? {
        say(&flat_text(&format!("The node {name} is forgotten.")));
        return Ok(());
    }
    let lives = runtime.block_on(store.nodes())?.iter().any(|node| node.name == name);
    let why = if lives {
        "it lives, or did 15 s ago; one that ends by itself is forgotten"
    } else {
        "no node of that name is known"
    };
    Err(format!("the node {name} cannot be forgotten: {why} (`respool nodes`)").into())
}

fn node_json(node: &NodeRow) -> Value {
    json!({
        "name": node.name,
        "version": node.version,
        "configuration": node.digest(),
        "since": clock::format_time(node.began),
        "last_seen": clock::format_time(node.seen),
        "runs": node.runs,
        "lost": node.is_lost,
    })
}

/// Returns the node from whose configuration that of another one differs: one of those that have what most
/// have, or, if no configuration is that of most, any other.
fn find_different<'a>(node: &NodeRow, nodes: &'a [NodeRow]) -> Option<&'a NodeRow> {
    let living = || nodes.iter().filter(|other| !other.is_lost);
    let count = |one: &NodeRow| living().filter(|other| other.digest() == one.digest()).count();
    let others = living().filter(|other| other.digest() != node.digest() && count(other) >= count(node));
    // The first one of the largest count.
    others.rev().max_by_key(|other| count(other))
}

fn node_line(node: &NodeRow, nodes: &[NodeRow]) -> String {
    let NodeRow { name, version, began, seen, runs, is_lost, .. } = node;
    if *is_lost {
        return format!(
            "{name}  {version}  gone: last seen {}; it did not end by itself",
            clock::format_time(*seen)
        );
    }
    let differs = find_different(node, nodes).map(|other| {
        let keys = node.differing_keys(other).join(", ");
        let keys = if keys.is_empty() { keys } else { format!(": {keys}") };
        format!(" (differs from {}{keys})", other.name)
    });
    format!(
        "{name}  {version}  configuration {}{}  since {}  seen {}  {}",
        node.digest(),
        differs.unwrap_or_default(),
        clock::format_time(*began),
        clock::format_time(*seen),
        Noun("run", "runs").count_things(usize::try_from(*runs).unwrap_or(usize::MAX))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_configurations_are_explained() {
        let node = |name: &str, configuration: &str| NodeRow {
            name: name.into(),
            version: "1 (abc, 2026-11-27)".into(),
            configuration: configuration.into(),
            began: 0,
            seen: 1_000,
            runs: 1,
            is_lost: false,
        };
        let lines = |nodes: &[NodeRow]| nodes.iter().map(|one| node_line(one, nodes)).collect::<Vec<_>>();
        let lost = NodeRow { is_lost: true, ..node("d", "e1") };
        let (most, odd) = ("f0-1-budgets=1 models=2", "e1-1-budgets=3 models=2 new=1");
        let found = lines(&[node("a", most), node("b", odd), node("c", most), lost.clone(), lost]);
        assert!(found[1].contains("configuration e1 (differs from a: budgets, new)  since"), "{found:?}");
        assert!(found[1].starts_with("b  1 (abc, 2026-11-27)  ") && found[1].ends_with("1 run"), "{found:?}");
        assert!(!found[0].contains("differs") && !found[2].contains("differs"), "{found:?}");
        assert!(found[3].ends_with("gone: last seen 1970-01-01T00:00:01Z; it did not end by itself"));
        let found = lines(&[node("a", most), node("b", odd)]);
        assert!(found[0].contains("(differs from b: budgets, new)"), "{found:?}");
        assert!(found[1].contains("(differs from a: budgets, new)"), "{found:?}");
        let found = lines(&[node("a", "f0-1"), node("older", "e1-1")]);
        assert!(found[0].contains("(differs from older)"), "{found:?}");
    }
}
