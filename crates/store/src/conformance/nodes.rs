//! Processes that share a store know each other, and have duties and secrets in common.

use std::time::Duration;

use super::Bed;
use crate::{NodeConfig, Store};

fn open_server(bed: &Bed, name: &str) -> Store {
    bed.open_with(|config| config.node = NodeConfig { name: Some(name.to_owned()), is_server: true })
}

pub(super) async fn a_shared_secret_is_the_first_one(bed: &Bed) {
    let store = bed.open();
    assert_eq!(store.shared_secret("seal", [1; 32]).await.unwrap(), [1; 32]);
    drop(store);
    let shared = bed.open().shared_secret("seal", [2; 32]).await.unwrap();
    // Files hold no secret: the caller's own file does.
    assert_eq!(shared, if bed.config.store.url.is_some() { [1; 32] } else { [2; 32] });
}

pub(super) async fn a_duty_is_kept(bed: &Bed) {
    let store = bed.open();
    let hold =
        async || store.hold_duties(vec!["b".into(), "a".into()], Duration::from_mins(1)).await.unwrap();
    let sorted = |mut duties: Vec<String>| {
        duties.sort();
        duties
    };
    assert_eq!(sorted(hold().await), ["a", "b"]);
    assert_eq!(sorted(hold().await), ["a", "b"], "it keeps them");
    assert!(store.hold_duties(Vec::new(), Duration::ZERO).await.unwrap().is_empty());
}

#[tokio::test]
async fn nodes_are_listed() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (open_server(&bed, "b"), open_server(&bed, "a"));
    second.note_configuration("f00".to_owned());
    let _command = bed.open();
    let is_noted = async || first.nodes().await.unwrap().iter().any(|node| node.configuration == "f00");
    testing::waiting::wait_until("the digest is noted", is_noted).await;
    let nodes = first.nodes().await.unwrap();
    let names: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["a", "b"], "commands are not listed");
    assert_eq!((&*nodes[0].version, nodes[0].runs), (env!("CARGO_PKG_VERSION"), 0));
    testing::waiting::wait_until("both are counted", async || first.live_nodes() == 2).await;
    assert_eq!(first.live_nodes_alike(), 1, "their configurations differ");
    first.note_configuration("f00".to_owned());
    testing::waiting::wait_until("they are alike", async || first.live_nodes_alike() == 2).await;
    drop(second);
    testing::waiting::wait_until("one is counted", async || first.live_nodes() == 1).await;
}

#[tokio::test]
async fn one_node_has_a_duty() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (bed.open(), bed.open());
    let hold = async |store: &Store, length| {
        !store.hold_duties(vec!["alert".into()], Duration::from_millis(length)).await.unwrap().is_empty()
    };
    assert!(hold(&first, 60_000).await);
    assert!(!hold(&second, 60_000).await);
    assert!(hold(&first, 1).await, "it may be kept for less");
    testing::waiting::wait_until("another one takes over", async || hold(&second, 60_000).await).await;
    assert!(!hold(&first, 60_000).await);
    drop(second);
    assert!(hold(&first, 60_000).await, "one that ends leaves it");
}
