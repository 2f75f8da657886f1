//! The client that a request is counted for. `server` has the accounts; the request's line asks them at its
//! end.

use std::fmt::Debug;
use std::sync::Arc;

use wire::turn::Usage;

/// The client of one request.
pub trait Account: Debug + Send + Sync {
    /// The name of the client's key in logs; never the key.
    fn name(&self) -> &str;

    /// The head of the reply leaves.
    fn reply_begins(&self, _head: ReplyHead) {}

    /// Estimates the tokens of a request whose reply did not state them; `None` if it used none.
    fn estimate(&self) -> Option<Usage> {
        None
    }
}

/// The facts about a reply that an estimate of its tokens depends on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyHead {
    /// Its status is an error's.
    pub is_error: bool,
    /// It is a stream of events.
    pub is_stream: bool,
    /// The bytes of its body, where they are known; else zero.
    pub bytes: u64,
}

/// Finds the accounts of clients whose request is long over: a run may go on without it.
pub trait Accounts: Debug + Send + Sync {
    /// Returns the account of the client that this digest stands for.
    fn of_client(&self, client: &str) -> Option<Arc<dyn Account>>;
}
