//! Whom a request is counted for. An account gets the cost of a model call as soon as it is known; what it does with that is its own
//! business. `server` has the accounts; request lines and agents report to them.

use std::fmt::Debug;
use std::sync::Arc;

use wire::turn::Usage;

/// What one client uses is counted here.
pub trait Account: Debug + Send + Sync {
    /// What the client is called in logs; never its key.
    fn name(&self) -> &str;

    /// So many tokens were used. `model` may stand in a table: it is known to be served, or empty.
    fn spent(&self, model: &str, usage: Usage);

    /// Somebody else reports the cost of this request to the account.
    fn counted_elsewhere(&self) {}
}

/// Finds the accounts of clients whose request is long over: a run may go on without it.
pub trait Accounts: Debug + Send + Sync {
    /// The account of the client that this digest stands for.
    fn of_client(&self, client: &str) -> Option<Arc<dyn Account>>;
}
