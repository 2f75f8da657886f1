//! The processes that share a database, on the first page.

use maud::{Markup, html};

use super::{format, layout};
use crate::app::App;
use store::NodeRow;

/// Names the node that serves the page, because a proxy may send the browser to any of them. Empty for a
/// store in files.
pub(super) fn node_notice(app: &App) -> Markup {
    notice_of(app.agents.store().and_then(|store| store.node()).as_deref())
}

fn notice_of(node: Option<&str>) -> Markup {
    html! { @if let Some(node) = node {
        p class="dim" { "This is the node " strong { (node) } ": problems, alerts and what runs now are its own. Requests, usage, runs and approvals are those of all nodes." }
    } }
}

/// Lists the nodes; nothing where no other process shares the store.
pub(super) fn node_section(nodes: &[NodeRow], now: u64) -> Markup {
    if nodes.is_empty() {
        return Markup::default();
    }
    let mut living = nodes.iter().filter(|node| !node.is_lost);
    let first = living.next();
    let odd = living.find(|node| first.is_some_and(|first| first.digest() != node.digest()));
    let keys = odd.zip(first).map(|(odd, first)| odd.differing_keys(first).join(", ")).unwrap_or_default();
    let rows = html! {
        @for node in nodes {
            tr {
                th scope="row" { (node.name) }
                td { (node.version) }
                td { code { (node.digest()) } }
                td class="number" { (node.runs) }
                @let time = if node.is_lost { node.seen } else { node.began };
                td { @if node.is_lost { "gone since " } time datetime=(clock::format_time(time)) { (format::format_age(time, now)) } }
            }
        }
    };
    let heads = [("Node", ""), ("Version", ""), ("Configuration", ""), ("Runs", "number"), ("Since", "")];
    html! {
        section aria-labelledby="nodes" {
            h2 id="nodes" { "Nodes" }
            @if odd.is_some() {
                p class="notice" role="status" {
                    "The nodes have different configurations" @if !keys.is_empty() { ": " code { (keys) } } "."
                }
            }
            (layout::scrolling_table("Nodes", &heads, &rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a page behind a proxy showed the requests of one node, and did not say so.
    #[test]
    fn a_page_names_its_node() {
        assert_eq!(notice_of(None).into_string(), "");
        assert!(notice_of(Some("<b>")).into_string().contains("the node <strong>&lt;b&gt;</strong>"));
    }

    #[test]
    fn different_configurations_are_shown() {
        let node = |name: &str, configuration: &str| NodeRow {
            name: name.into(),
            version: "1".into(),
            configuration: configuration.into(),
            began: 0,
            seen: 0,
            runs: 3,
            is_lost: false,
        };
        let show = |nodes: &[NodeRow]| node_section(nodes, 1_000).into_string();
        assert_eq!(show(&[]), "", "a store in files has no nodes");
        let notice = "different configurations";
        assert!(!show(&[node("a", "f0"), node("<b>", "f0")]).contains(notice));
        let page = show(&[node("a", "f0"), node("<b>", "e1")]);
        assert!(page.contains(notice) && page.contains("&lt;b&gt;") && page.contains("e1"), "{page}");
        let page = show(&[node("a", "f0-1-models=1"), node("b", "e1-1-models=2")]);
        assert!(page.contains("configurations: <code>models</code>.") && !page.contains("f0-1"), "{page}");
        let lost = NodeRow { is_lost: true, ..node("c", "e1") };
        let page = show(&[node("a", "f0"), lost]);
        assert!(page.contains("gone since <time") && !page.contains(notice), "{page}");
    }
}
