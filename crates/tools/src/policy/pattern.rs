//! The patterns of rules for names, paths and hosts, as regular expressions. In names and hosts `*` is any
//! text; in paths `*` ends at a `/`, `**` does not, and `x/**` is `x` too.

use std::path::Path;

use regex::Regex;

/// Compiles a pattern in which `*` is any text and everything else is literal.
pub(super) fn compile_wildcard(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!("(?s)^{}$", wildcard_expression(pattern)))
}

/// Returns the inner expression of [`compile_wildcard`].
pub(super) fn wildcard_expression(pattern: &str) -> String {
    regex::escape(pattern).replace(r"\*", ".*")
}

/// A pattern for paths.
#[derive(Debug)]
pub(super) struct PathPattern {
    expression: Regex,
    /// Whether it matches places outside the workspace.
    is_outside: bool,
}

impl PathPattern {
    pub(super) fn new(pattern: &str, workspace: Option<&Path>) -> Result<Self, regex::Error> {
        let below = workspace.and_then(|root| Path::new(pattern).strip_prefix(root).ok()?.to_str());
        let inside = below.unwrap_or(pattern).trim_start_matches("./");
        let inside = if below == Some("") { "**" } else { inside };
        let is_outside = below.is_none() && is_outside(inside);
        Ok(Self { expression: Regex::new(&format!("(?s)^{}$", path_expression(inside)))?, is_outside })
    }

    /// Checks an `allow`: a pattern of the workspace does not match outside it.
    pub(super) fn allows(&self, path: &str) -> bool {
        self.is_outside == is_outside(path) && self.touches(path)
    }

    pub(super) fn touches(&self, path: &str) -> bool {
        self.expression.is_match(path)
    }
}

fn is_outside(path: &str) -> bool {
    path.starts_with(['/', '~']) || path == ".." || path.starts_with("../")
}

fn path_expression(pattern: &str) -> String {
    let escaped = regex::escape(pattern);
    let escaped = escaped.strip_suffix('/').map_or(escaped.clone(), |folder| format!("{folder}/\\*\\*"));
    let (body, tail) = match escaped.strip_suffix(r"/\*\*") {
        Some(folder) => (folder.to_owned(), "(?:/.*)?"),
        None => (escaped, ""),
    };
    // The longest first; the marks keep later replacements away from earlier results.
    let body = body.replace(r"\*\*/", "\u{1}").replace(r"\*\*", "\u{2}").replace(r"\*", "[^/]*");
    format!("{}{tail}", body.replace('\u{1}', "(?:.*/)?").replace('\u{2}', ".*"))
}

/// A pattern for hosts: without case, trailing dot or the difference between an international name and its
/// ASCII form.
#[derive(Debug)]
pub(super) struct HostPattern(Regex);

impl HostPattern {
    pub(super) fn new(pattern: &str) -> Result<Self, regex::Error> {
        let label = |label: &str| match url::Host::parse(label) {
            Ok(url::Host::Domain(ascii)) if !label.is_ascii() => ascii,
            _ => label.to_ascii_lowercase(),
        };
        let labels: Vec<String> = pattern.trim_end_matches('.').split('.').map(label).collect();
        compile_wildcard(&labels.join(".")).map(Self)
    }

    pub(super) fn matches(&self, host: &str) -> bool {
        self.0.is_match(host)
    }
}

/// Returns the host of a URL as [`HostPattern`]s know it; `None` if there is no host, or if another reader
/// could find a different one: WHATWG and RFC 3986 disagree on backslashes, and `user@` usually deceives.
pub(super) fn host_of(text: &str) -> Option<String> {
    if text.contains(['\\', '@']) || text.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return None;
    }
    let url = url::Url::parse(text).ok()?;
    let host = url.host_str().filter(|host| !host.is_empty())?;
    matches!(url.scheme(), "http" | "https" | "ws" | "wss").then(|| host.trim_end_matches('.').to_owned())
}
