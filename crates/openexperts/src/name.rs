//! Which names components may have. Names become file names, function names for a model and labels, so they
//! are restricted. Pure.

/// The kind of thing that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// The package.
    Package,
    /// A function.
    Function,
    /// A tool or an operation of a tool.
    Tool,
    /// Anything else.
    Other(&'static str),
}

impl NameKind {
    /// Returns the kind with its article, for messages.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Package => "a package",
            Self::Function => "a function",
            Self::Tool => "a tool or an operation",
            Self::Other(what) => what,
        }
    }
}

/// How many characters a name may have.
const LONGEST: usize = 64;

/// Checks a name.
///
/// # Errors
/// Says which rule it breaks.
pub fn check_name(name: &str, kind: NameKind) -> Result<(), &'static str> {
    if name.chars().count() > LONGEST {
        return Err("it has more than 64 characters");
    }
    if name.chars().any(|c| c == '/' || c == '\\' || c.is_control()) {
        return Err("it has a `/`, a `\\` or a control character");
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match kind {
        NameKind::Package if !name.chars().all(is_plain) => Err("it may have only A-Z a-z 0-9 . _ -"),
        NameKind::Package if name.starts_with('.') => {
            Err("it names a directory, so it cannot begin with a dot")
        }
        NameKind::Function if name.starts_with(['_', '.']) => Err("it begins with `_` or `.`"),
        NameKind::Tool if name.contains(|c: char| c == '.' || c.is_whitespace()) => {
            Err("it has a dot or a space")
        }
        _ => Ok(()),
    }
}
