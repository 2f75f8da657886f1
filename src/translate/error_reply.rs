//! What the two agent clients make of an error, and which errors repeating cannot help.
//!
//! Measured on Codex 0.169 and Claude Code 2.1.330: both repeat a 500 or a 422 up to 30 times. What respool has tried already
//! must reach them in the form that they do not repeat. Called by `responses` and `messages`.

use crate::wire::{ApiError, ErrorCode};

/// An error as it leaves by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// The status.
    pub status: u16,
    /// Headers beside the usual ones.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: String,
}

/// True when repeating the same request is of no use: the request is at fault, or respool has repeated it, and waited for the
/// server, in vain. Not when respool itself is busy, or about to be started again.
pub(super) fn is_final(error: &ApiError) -> bool {
    let is_respools =
        matches!(error.code, Some(ErrorCode::ShuttingDown | ErrorCode::QueueFull | ErrorCode::BodiesFull));
    !is_respools && !matches!(error.status, 408 | 409 | 425 | 429)
}

pub(super) fn is_overflow(error: &ApiError) -> bool {
    error.code == Some(ErrorCode::ContextLengthExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_help_later_is_not_final() {
        let finals: Vec<u16> = [400, 401, 404, 408, 413, 422, 429, 500, 502, 503, 504, 529]
            .into_iter()
            .filter(|status| is_final(&ApiError::new(*status, None, "")))
            .collect();
        assert_eq!(finals, [400, 401, 404, 413, 422, 500, 502, 503, 504, 529]);
        for code in [ErrorCode::ShuttingDown, ErrorCode::QueueFull, ErrorCode::BodiesFull] {
            assert!(!is_final(&ApiError::new(503, code, "")), "{code}");
        }
    }
}
