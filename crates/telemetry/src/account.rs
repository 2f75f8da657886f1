//! The account of the client that sends a request. `server` implements it; the request's line asks it when
//! the request ends.

use std::fmt::Debug;
use std::sync::Arc;

use wire::turn::Usage;

/// The client of one request.
pub trait Account: Debug + Send + Sync {
    /// Returns the name of the client's key for logs; never the key.
    fn key_name(&self) -> &str;

    /// Returns true if the client may use certain models only.
    fn is_restricted(&self) -> bool;

    /// Learns that the head of the reply leaves.
    fn reply_begins(&self, _head: ReplyHead) {}

    /// Estimates the tokens of a request whose reply did not state them; `None` if it used none.
    fn estimate_usage(&self) -> Option<Usage> {
        None
    }
}

/// The facts about a reply that an estimate of its tokens depends on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyHead {
    /// Its status is that of an error.
    pub is_error: bool,
    /// It is a stream of events.
    pub is_stream: bool,
    /// The bytes of its body; zero when unknown.
    pub bytes: u64,
}

/// Finds the accounts of clients whose request has ended: a run may continue without it.
pub trait Accounts: Debug + Send + Sync {
    /// Returns the account of the client that this digest stands for.
    fn find_account(&self, client: &str) -> Option<Arc<dyn Account>>;
}
