//! The accounts that requests are counted for. An account gets the cost of a model call as soon as it is
//! known. `server` has the accounts; request lines and agents report to them.

use std::fmt::Debug;
use std::sync::Arc;

use wire::turn::Usage;

/// Counts the usage of one client.
pub trait Account: Debug + Send + Sync {
    /// The client's name in logs; never its key.
    fn name(&self) -> &str;

    /// Counts used tokens. `model` is known to be served, or empty, so it may stand in a table.
    fn spent(&self, model: &str, usage: Usage);

    /// The cost of this request is reported by its model calls.
    fn counted_elsewhere(&self) {}
}

/// Finds the accounts of clients whose request is long over: a run may go on without it.
pub trait Accounts: Debug + Send + Sync {
    /// The account of the client that this digest stands for.
    fn of_client(&self, client: &str) -> Option<Arc<dyn Account>>;
}
