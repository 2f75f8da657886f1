//! The processes that share a database, on the first page.

use maud::{Markup, html};

use super::{format, layout};
use store::NodeRow;

/// Lists the nodes; nothing where no other process shares the store.
pub(super) fn node_section(nodes: &[NodeRow], now: u64) -> Markup {
    let Some(first) = nodes.first() else { return Markup::default() };
    let differ = nodes.iter().any(|node| node.configuration != first.configuration);
    let rows = html! {
        @for node in nodes {
            tr {
                th scope="row" { (node.name) }
                td { (node.version) }
                td { code { (node.configuration) } }
                td class="number" { (node.runs) }
                td { time datetime=(clock::format_time(node.began)) { (format::format_age(node.began, now)) } }
            }
        }
    };
    let heads = [("Node", ""), ("Version", ""), ("Configuration", ""), ("Runs", "number"), ("Since", "")];
    html! {
        section aria-labelledby="nodes" {
            h2 id="nodes" { "Nodes" }
            @if differ { p class="notice" role="status" { "The nodes have different configurations." } }
            (layout::scrolling_table("Nodes", &heads, &rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_configurations_are_shown() {
        let node = |name: &str, configuration: &str| NodeRow {
            name: name.into(),
            version: "1".into(),
            configuration: configuration.into(),
            began: 0,
            seen: 0,
            runs: 3,
        };
        let show = |nodes: &[NodeRow]| node_section(nodes, 1_000).into_string();
        assert_eq!(show(&[]), "", "a store in files has no nodes");
        let notice = "different configurations";
        assert!(!show(&[node("a", "f0"), node("<b>", "f0")]).contains(notice));
        let page = show(&[node("a", "f0"), node("<b>", "e1")]);
        assert!(page.contains(notice) && page.contains("&lt;b&gt;") && page.contains("e1"), "{page}");
    }
}
