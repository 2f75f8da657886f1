//! `respool nodes`: lists the processes that share a database, and marks those whose configuration differs.

use std::collections::HashMap;

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
}

pub(super) fn run_nodes(loaded: &Loaded, arguments: &NodesArgs) -> Result<(), Failure> {
    let config = &loaded.settings.store;
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
    let usual = usual_configuration(&nodes);
    nodes.iter().for_each(|node| say(&flat_text(&node_line(node, usual.as_deref()))));
    let lost = nodes.iter().filter(|node| node.is_lost).count();
    let gone = if lost == 0 { String::new() } else { format!(", and {lost} that did not end by itself") };
    say_on_stderr(&format!("{}{gone}", Noun("node", "nodes").count_things(nodes.len() - lost)));
    Ok(())
}

fn node_json(node: &NodeRow) -> Value {
    json!({
        "name": node.name,
        "version": node.version,
        "configuration": node.configuration,
        "since": clock::format_time(node.began),
        "last_seen": clock::format_time(node.seen),
        "runs": node.runs,
        "lost": node.is_lost,
    })
}

/// Returns the digest that most nodes have; the first one of several.
fn usual_configuration(nodes: &[NodeRow]) -> Option<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for node in nodes.iter().filter(|node| !node.is_lost) {
        *counts.entry(&node.configuration).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    nodes
        .iter()
        .map(|node| &node.configuration)
        .find(|digest| counts.get(digest.as_str()) == Some(&most))
        .cloned()
}

fn node_line(node: &NodeRow, usual: Option<&str>) -> String {
    let NodeRow { name, version, configuration, began, seen, runs, is_lost } = node;
    if *is_lost {
        return format!(
            "{name}  {version}  gone: last seen {}; it did not end by itself",
            clock::format_time(*seen)
        );
    }
    let differs = if usual == Some(configuration) { "" } else { " (differs)" };
    format!(
        "{name}  {version}  configuration {configuration}{differs}  since {}  seen {}  {}",
        clock::format_time(*began),
        clock::format_time(*seen),
        Noun("run", "runs").count_things(usize::try_from(*runs).unwrap_or(usize::MAX))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_configuration_is_marked() {
        let node = |name: &str, configuration: &str| NodeRow {
            name: name.into(),
            version: "1".into(),
            configuration: configuration.into(),
            began: 0,
            seen: 1_000,
            runs: 1,
            is_lost: false,
        };
        let lost = NodeRow { is_lost: true, ..node("d", "e1") };
        let nodes = [node("a", "f0"), node("b", "e1"), node("c", "f0"), lost.clone(), lost];
        let usual = usual_configuration(&nodes);
        let lines: Vec<_> = nodes.iter().map(|node| node_line(node, usual.as_deref())).collect();
        assert!(lines[1].contains("configuration e1 (differs)") && lines[1].ends_with("1 run"), "{lines:?}");
        assert!(!lines[0].contains("differs") && !lines[2].contains("differs"));
        assert_eq!(lines[3], "d  1  gone: last seen 1970-01-01T00:00:01Z; it did not end by itself");
    }
}
