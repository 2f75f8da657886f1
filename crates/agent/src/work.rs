//! The entry of the queue that a run works on, its own or that of the run that began it.

use store::{EntryRow, Store, StoreError};

/// How many runs may have begun one another.
const DEEPEST: usize = 16;

/// Returns the entry that a run works on; a child run works on that of its parent. `None` for other runs.
///
/// # Errors
/// When the store cannot be read.
pub async fn entry_of_work(store: &Store, run: &str) -> Result<Option<EntryRow>, StoreError> {
    let mut run = run.to_owned();
    for _ in 0..DEEPEST {
        if let Some(entry) = store.entry_of_run(&run).await? {
            return Ok(Some(entry));
        }
        match store.run(&run).await?.and_then(|stored| stored.row.parent) {
            Some(parent) => run = parent,
            None => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use store::{Append, ClaimRequest, NewEntry, NewRun, Status, StoreConfig};

    /// Regression: the approval of an isolated function did not say what it was for.
    #[tokio::test]
    async fn a_child_run_works_on_its_parents_entry() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = Store::open(&config).unwrap();
        let entry =
            NewEntry { id: "work".into(), queue: "desk".into(), payload: "{}".into(), ..NewEntry::default() };
        store.enqueue(entry).await.unwrap();
        let (queues, lease) = (vec!["desk".to_owned()], Duration::from_mins(1));
        let request = ClaimRequest { queues, most: 1, lease, ..ClaimRequest::default() };
        let lease = store.claim_entries(request).await.unwrap().remove(0).lease;
        let new = |id: &str| NewRun { id: id.into(), ..NewRun::default() };
        assert!(store.begin_leased(new("run"), &lease).await.unwrap());
        let status = Append::status("run", Store::FIRST_EPOCH, 1, Status::Running);
        assert!(!store.append(Append { child: Some(new("child")), ..status }).await.unwrap().lost);
        store.begin(new("other")).await.unwrap();
        let found = async |run: &str| entry_of_work(&store, run).await.unwrap().map(|entry| entry.id);
        assert_eq!(found("run").await.as_deref(), Some("work"));
        assert_eq!(found("child").await.as_deref(), Some("work"));
        assert_eq!(found("other").await, None);
    }
}
