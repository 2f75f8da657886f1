//! How much of a sandbox there can be.

use std::fmt;

/// What confines commands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The configuration says so.
    Off,
    /// Nothing, and why.
    Missing(String),
    /// A filter of system calls alone.
    Filter,
    /// Landlock for files, and the filter.
    Landlock,
    /// bubblewrap with namespaces, Landlock and the filter.
    Full,
}

impl Level {
    /// Returns true when it keeps commands from files.
    pub fn holds_files(&self) -> bool {
        matches!(self, Self::Landlock | Self::Full)
    }

    /// Returns true if commands see only what the sandbox shows them.
    pub fn has_namespaces(&self) -> bool {
        *self == Self::Full
    }

    pub(super) fn has_filter(&self) -> bool {
        matches!(self, Self::Filter | Self::Landlock | Self::Full)
    }

    /// Returns the attacks that it does not stop, for the owner; `None` when nothing is missing.
    pub fn gap(&self) -> Option<&'static str> {
        match self {
            Self::Off | Self::Missing(_) => Some("a command may do whatever respool's user may"),
            Self::Filter => Some("a command may read and write all files of respool's user"),
            Self::Landlock => Some(
                "a command may see the arguments of other processes, and a workspace with a repository is read-only for it; \
                 install bubblewrap",
            ),
            Self::Full => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off (tools.local.sandbox)"),
            Self::Missing(why) => write!(f, "none: {why}"),
            Self::Filter => f.write_str("seccomp alone: the kernel has no Landlock"),
            Self::Landlock => f.write_str("Landlock and seccomp; bubblewrap is missing or not permitted"),
            Self::Full => f.write_str("bubblewrap, Landlock and seccomp"),
        }
    }
}
