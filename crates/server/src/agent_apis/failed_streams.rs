//! Claude Code repeats a request whose stream failed, without `stream`. respool has already retried and
//! waited: the repeated request gets the same error at once, and the model server is not asked.
//!
//! Called by `agent_apis`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use wire::{ApiError, Object};

/// The client sends its request again at once; a later one may succeed.
const KEEP: Duration = Duration::from_secs(15);
/// The most errors that are kept.
const MOST: usize = 256;

/// The errors that ended streams a moment ago, by owner and conversation.
#[derive(Debug, Default)]
pub struct FailedStreams(Mutex<HashMap<u64, (Instant, ApiError)>>);

impl FailedStreams {
    /// Notes that the stream of the chat request with this key ended with this error.
    pub(super) fn note_failure(&self, key: u64, error: &ApiError) {
        let mut errors = self.lock_errors();
        errors.retain(|_, (at, _)| at.elapsed() < KEEP);
        if errors.len() < MOST {
            errors.insert(key, (Instant::now(), error.clone()));
        }
    }

    /// Takes the error of the stream that this request repeats; once only.
    pub(super) fn take_failure(&self, owner: &str, chat: &[u8]) -> Option<ApiError> {
        if self.lock_errors().is_empty() {
            return None;
        }
        let (at, error) = self.lock_errors().remove(&conversation_key(owner, chat)?)?;
        (at.elapsed() < KEEP).then_some(error)
    }

    fn lock_errors(&self) -> MutexGuard<'_, HashMap<u64, (Instant, ApiError)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a digest of the owner and of the messages of a conversation.
pub(super) fn conversation_key(owner: &str, chat: &[u8]) -> Option<u64> {
    let chat = Object::parse(std::str::from_utf8(chat).ok()?).ok()?;
    let mut hasher = DefaultHasher::new();
    (owner, chat.get("messages")?).hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ErrorCode;

    #[tokio::test(start_paused = true)]
    async fn an_error_is_given_once_per_conversation() {
        let (failed_streams, error) =
            (FailedStreams::default(), ApiError::new(500, ErrorCode::UpstreamError, "no"));
        let chat =
            |text: &str, stream: bool| format!(r#"{{"messages":["{text}"],"stream":{stream}}}"#).into_bytes();
        failed_streams.note_failure(conversation_key("a", &chat("x", true)).unwrap(), &error);
        assert_eq!(failed_streams.take_failure("b", &chat("x", false)), None);
        assert_eq!(failed_streams.take_failure("a", &chat("y", false)), None);
        assert_eq!(failed_streams.take_failure("a", &chat("x", false)), Some(error.clone()));
        assert_eq!(failed_streams.take_failure("a", &chat("x", false)), None);
        failed_streams.note_failure(conversation_key("a", &chat("x", true)).unwrap(), &error);
        tokio::time::advance(KEEP).await;
        assert_eq!(failed_streams.take_failure("a", &chat("x", false)), None);
    }
}
