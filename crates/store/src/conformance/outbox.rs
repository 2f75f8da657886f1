//! A message is posted once and delivered at least once; operators are replaced together.

use std::time::Duration;

use super::Bed;
use crate::{MessageFilter, NewMessage, OperatorKey};

fn message(id: &str) -> NewMessage {
    NewMessage {
        id: id.into(),
        expert: "sales".into(),
        entry: Some("e1".into()),
        kind: "result".into(),
        body: format!("body of {id}").into(),
    }
}

pub(super) async fn a_message_is_delivered_once(bed: &Bed) {
    let (one, two) = (bed.open(), bed.open());
    let now = clock::now();
    for id in ["c", "a", "b"] {
        assert!(one.post(message(id), now).await.unwrap());
    }
    assert!(!two.post(message("a"), now + 5).await.unwrap(), "it was posted before");
    assert!(two.keep_message(message("kept"), now).await.unwrap());
    let long = Duration::from_hours(1);
    let claimed = one.claim_messages(Duration::ZERO, 2).await.unwrap();
    let ids: Vec<&str> = claimed.iter().map(|row| row.message.id.as_str()).collect();
    assert_eq!(ids.len(), 2);
    let again = two.claim_messages(long, 10).await.unwrap();
    assert_eq!(again.len(), 3, "its claim is over, and what is only kept is not delivered");
    assert_eq!(again.iter().map(|row| row.attempts).sum::<u32>(), 5);
    assert_eq!(one.claim_messages(long, 10).await.unwrap(), [], "somebody delivers them");
    assert!(two.end_message("a", now + 9, Some("decided")).await.unwrap());
    assert_eq!(one.message("a").await.unwrap().unwrap().note.as_deref(), Some("decided"));
    assert!(!one.message_delivered("a", now + 10).await.unwrap());
    assert!(!two.end_message("a", now + 11, Some("again")).await.unwrap());
    assert!(two.deliver_after("b", Duration::ZERO, "the gateway is gone".into()).await.unwrap());
    let due = one.claim_messages(long, 10).await.unwrap();
    assert_eq!(due.iter().map(|row| row.message.id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(due[0].note.as_deref(), Some("the gateway is gone"));
    assert_eq!(one.message("a").await.unwrap().unwrap().delivered, Some(now + 9));
    assert!(!one.deliver_now("a").await.unwrap() && two.deliver_now("b").await.unwrap());
    assert_eq!(one.claim_messages(long, 10).await.unwrap()[0].message.id, "b", "it is due");
    let found = one.messages_by_id(vec!["c".into(), "none".into(), "a".into()]).await.unwrap();
    assert_eq!(found.len(), 2);
    assert!(one.message_delivered("c", now + 12).await.unwrap());
    assert!(
        two.end_message("c", now + 13, Some("dropped")).await.unwrap(),
        "it was read, and is settled now"
    );
    let read = one.message("c").await.unwrap().unwrap();
    assert_eq!((read.delivered, read.note.as_deref()), (Some(now + 12), Some("dropped")));
    let filter = MessageFilter { kind: Some("result".into()), ..MessageFilter::default() };
    let all: Vec<String> =
        one.messages(filter, 10).await.unwrap().into_iter().map(|row| row.message.id).collect();
    assert_eq!(all, ["kept", "b", "a", "c"], "the newest first");
    let open = MessageFilter { is_open: true, ..MessageFilter::default() };
    let open: Vec<String> =
        one.messages(open, 1).await.unwrap().into_iter().map(|row| row.message.id).collect();
    assert_eq!(open, ["b"], "`kept` and `a` need nothing more, and do not count towards the limit");
    assert_eq!(one.forget_messages(now + 1).await.unwrap(), 1);
    let old = NewMessage { entry: None, ..message("old") };
    assert!(one.post(old, now - 8 * 24 * 3_600_000).await.unwrap());
    assert_eq!(two.claim_messages(long, 10).await.unwrap(), [], "it is too old for a first attempt");
    assert!(one.deliver_now("old").await.unwrap());
    assert_eq!(two.claim_messages(long, 10).await.unwrap().len(), 1);
}

pub(super) async fn operators_are_replaced_together(bed: &Bed) {
    let (one, two) = (bed.open(), bed.open());
    let key = |digest: &str| OperatorKey { digest: digest.into(), name: format!("name of {digest}") };
    assert!(!one.has_operators().await.unwrap());
    one.set_operators(vec![key("1"), key("2")]).await.unwrap();
    assert_eq!(two.operator("2").await.unwrap().as_deref(), Some("name of 2"));
    two.set_operators(vec![key("3")]).await.unwrap();
    assert_eq!(one.operator("2").await.unwrap(), None);
    assert!(one.has_operators().await.unwrap());
}
