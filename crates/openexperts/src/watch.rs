//! The state of a clock between two looks at it.

/// The known times of a clock, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The last time for which the trigger fired, or when it was first seen.
    pub mark: u64,
    /// Since when the clock has been watched without a gap.
    pub since: u64,
    /// Now.
    pub now: u64,
}
