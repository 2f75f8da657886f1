//! Why a server of tools cannot be called.

/// The reason why a server cannot be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProblem {
    /// A description for people.
    pub text: String,
    /// Whether it may become available.
    pub prospect: Availability,
}

/// Whether a server that cannot be called will be available later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It is starting for the first time.
    Starting,
    /// It is down and is being restarted.
    Down,
    /// A person has to change something first.
    Unusable,
}
