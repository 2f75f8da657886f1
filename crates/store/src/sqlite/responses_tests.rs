//! Responses on real files, where they share the space with runs.

use super::*;
use crate::runs::FIRST_EPOCH;
use crate::{RunRows as _, Runs as _, StoreConfig};
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

#[tokio::test]
async fn responses_take_no_room_from_runs() {
    let dir = tempfile::tempdir().unwrap();
    let runs = crate::RunsConfig { max_size: Size::mib(1), ..crate::RunsConfig::default() };
    let config = StoreConfig { state_dir: dir.path().to_owned(), runs, ..StoreConfig::default() };
    let store = SqliteStore::open(&config).unwrap();
    let run = crate::NewRun { id: "run".into(), at: 1, setup: "{}".into(), ..crate::NewRun::default() };
    store.begin(run).await.unwrap();
    store.append(crate::Append::status("run", FIRST_EPOCH, 2, crate::Status::Done)).await.unwrap();
    let large = KeptResponse { body: "x".repeat(3 << 20), ..response("large", None) };
    store.keep_response(large, vec![], 1_000).await.unwrap();
    assert_eq!(store.clear(1_000, 1_000).await.unwrap().for_room, 0);
    assert!(store.run("run").await.unwrap().is_some());
}
