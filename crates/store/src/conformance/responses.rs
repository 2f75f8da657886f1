//! Kept responses are for their client only, bounded, and there after a restart.

use std::time::Duration;

use super::Bed;
use crate::{KeptResponse, ResponsesConfig, Store};
use wire::units::Size;

fn response(id: &str, previous: Option<&str>) -> KeptResponse {
    KeptResponse {
        id: id.to_owned(),
        client: "me".to_owned(),
        previous: previous.map(str::to_owned),
        status: "completed".to_owned(),
        input: format!("[\"{id}\"]"),
        body: "{}".to_owned(),
        request: None,
    }
}

/// The items of a conversation: here the ids of its responses.
fn input(input: &str, _body: &str) -> Vec<String> {
    vec![input.replace(['[', ']', '"'], "")]
}

fn body_for_each(body: &str, ids: &[String]) -> Vec<(String, String)> {
    ids.iter().map(|id| (id.clone(), body.to_owned())).collect()
}

async fn chain(store: &Store, id: &str, client: &str) -> Vec<String> {
    store.continued_responses(id, client, 5, 1 << 10, input).await.unwrap().unwrap()
}

async fn items(store: &Store, ids: &[&str], client: &str) -> Vec<(String, String)> {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    store.response_items(ids, client, 1 << 10, body_for_each).await.unwrap().unwrap()
}

pub(super) async fn a_conversation_survives_a_restart(bed: &Bed) {
    let store = bed.open();
    store.keep_response(response("a", None), vec!["item".into()], 1).await.unwrap();
    store.keep_response(response("b", Some("a")), vec![], 2).await.unwrap();
    store.keep_response(response("c", Some("b")), vec![], 3).await.unwrap();
    drop(store);
    let store = bed.open();
    assert_eq!(chain(&store, "c", "me").await, ["a", "b", "c"]);
    assert!(chain(&store, "c", "somebody else").await.is_empty());
    assert_eq!(store.response("a", "me").await.unwrap(), Some(response("a", None)));
    assert_eq!(store.response("a", "somebody else").await.unwrap(), None);
    let named = ["item", "none", "item"];
    assert_eq!(items(&store, &named, "me").await, [("item".to_owned(), "{}".to_owned())]);
    assert!(items(&store, &named, "somebody else").await.is_empty());
    assert!(!store.remove_response("b", "somebody else").await.unwrap());
    assert!(store.remove_response("b", "me").await.unwrap());
    assert!(chain(&store, "c", "me").await.is_empty(), "a part of it is gone");
    assert!(store.remove_response("a", "me").await.unwrap());
    assert!(items(&store, &named, "me").await.is_empty(), "items go with their response");
}

/// A small request named 60 MB of kept items, and all of them were read.
pub(super) async fn reads_stop_at_the_limit(bed: &Bed) {
    let store = bed.open();
    let named = |id: &str| vec![format!("{id}1"), format!("{id}2")];
    store.keep_response(response("a", None), named("a"), 1).await.unwrap();
    store.keep_response(response("b", Some("a")), named("b"), 1).await.unwrap();
    let conversation = async |most| store.continued_responses("b", "me", 5, most, input).await.unwrap();
    assert_eq!(conversation(1).await, None);
    assert_eq!(conversation(2).await.map(|items| items.len()), Some(2));
    let ids = [named("a"), named("b")].concat();
    let named = async |most| store.response_items(ids.clone(), "me", most, body_for_each).await.unwrap();
    assert_eq!(named(7).await, None);
    assert_eq!(named(8).await.map(|items| items.len()), Some(4));
}

pub(super) async fn old_responses_are_deleted_first(bed: &Bed) {
    let keep = ResponsesConfig { keep: Duration::from_millis(100), max_size: Size(30), store: true };
    let store = bed.open_with(|config| config.responses = keep);
    for (id, at) in [("old", 1), ("used", 2), ("one", 190), ("two", 191), ("three", 192)] {
        store.keep_response(response(id, None), vec![], at).await.unwrap();
    }
    let waiting = KeptResponse { request: Some("{}".to_owned()), ..response("waiting", None) };
    store.keep_response(waiting, vec![], 1).await.unwrap();
    store.continued_responses("used", "me", 195, 1 << 10, input).await.unwrap();
    let left = async || {
        let mut left = Vec::new();
        for id in ["old", "used", "one", "two", "three", "waiting"] {
            left.extend(store.response(id, "me").await.unwrap().map(|response| response.id));
        }
        left
    };
    assert_eq!(store.clear_responses(200).await.unwrap(), 4);
    assert_eq!(left().await, ["used", "waiting"], "what is being made stays");
}

pub(super) async fn unfinished_responses_take_half_at_most(bed: &Bed) {
    let responses = ResponsesConfig { max_size: Size(60), ..ResponsesConfig::default() };
    let store = bed.open_with(|config| config.responses = responses);
    let begun = |id: &str| KeptResponse { request: Some("{}".to_owned()), ..response(id, None) };
    let mut kept = Vec::new();
    for id in ["a", "b", "c", "d"] {
        kept.push(store.keep_response(begun(id), vec![], 1).await.unwrap());
    }
    assert_eq!(kept, [true, true, true, false], "nine bytes each");
    assert!(store.keep_response(response("whole", None), vec![], 2).await.unwrap());
    store.clear_responses(3).await.unwrap();
    for id in ["a", "b", "c", "whole"] {
        assert!(store.response(id, "me").await.unwrap().is_some(), "{id}");
    }
    assert!(store.finish_response("a", "completed", "{}".into(), vec![], 4).await.unwrap());
    assert!(store.keep_response(begun("d"), vec![], 5).await.unwrap());
}

pub(super) async fn unfinished_responses_are_claimed_once(bed: &Bed) {
    let store = bed.open();
    let begun = KeptResponse { request: Some("{\"input\":1}".to_owned()), ..response("a", None) };
    store.keep_response(begun, vec![], 1).await.unwrap();
    assert!(store.claim_responses().await.unwrap().is_empty(), "this process works on it");
    drop(store);
    let (second, third) = (bed.open(), bed.open());
    let claimed = second.claim_responses().await.unwrap();
    assert_eq!(
        claimed.iter().map(|response| response.request.as_str()).collect::<Vec<_>>(),
        ["{\"input\":1}"]
    );
    assert!(third.claim_responses().await.unwrap().is_empty());
    let unfinished = async |store: &Store| {
        store.still_unfinished(vec!["a".to_owned(), "unknown".to_owned()]).await.unwrap()
    };
    assert_eq!((unfinished(&second).await, unfinished(&third).await), (vec!["a".to_owned()], vec![]));
    let finish = async |store: &Store, body: &str| {
        store.finish_response("a", "completed", body.to_owned(), vec!["item".into()], 2).await.unwrap()
    };
    assert!(finish(&second, "first").await);
    assert!(!finish(&third, "second").await, "it has ended");
    assert!(unfinished(&second).await.is_empty());
    let kept = second.response("a", "me").await.unwrap().unwrap();
    assert_eq!((kept.body.as_str(), kept.request), ("first", None));
    assert_eq!(items(&second, &["item"], "me").await.len(), 1);
}
