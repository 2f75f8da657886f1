//! Covers secrets within values that `config show` prints: in the arguments of programs and in URLs.
//! Everything that is not known to be harmless is covered. Pure.

use url::Url;

/// Stands for what is not shown.
pub(super) const COVERED: &str = "***";

/// Returns an argument of a program as it may be shown; `before` is the one before it.
pub(super) fn cover_argument(before: Option<&str>, text: &str) -> String {
    if let Some((name, _)) = text.split_once('=').filter(|(name, _)| is_option(name)) {
        return format!("{name}={COVERED}");
    }
    let follows_option =
        before.is_some_and(|before| before.starts_with('-') && before != "-y" && before != "--");
    let is_shown = is_option(text) || is_path(text) || (!follows_option && is_word(text));
    match Url::parse(text) {
        Ok(parsed) if parsed.has_host() => cover_url(text),
        _ if is_shown => text.to_owned(),
        _ => COVERED.to_owned(),
    }
}

/// Returns true for `--name`, `-x` and `--`, which are nothing but the name of an option.
fn is_option(text: &str) -> bool {
    let name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    text.strip_prefix("--").is_some_and(name)
        || text
            .strip_prefix('-')
            .is_some_and(|rest| rest.len() <= 1 && rest.chars().all(char::is_alphanumeric))
}

/// Returns a file or a package; a token is long, without a dot or a second part.
fn is_path(text: &str) -> bool {
    ["/", "./", "../", "~/", "@"].iter().any(|start| text.starts_with(start))
        && !text.split('/').any(is_token)
}

/// Returns a subcommand or a file's name.
fn is_word(text: &str) -> bool {
    let known = |c: char| c.is_ascii_lowercase() || matches!(c, '-' | '_' | '.' | '/' | '@');
    !text.starts_with('-') && text.chars().all(known) && text.len() <= 60
}

/// Returns a part of a path that may be a key: long, of letters and digits.
fn is_token(part: &str) -> bool {
    part.len() >= 16 && part.contains(|c: char| c.is_ascii_digit()) && !part.contains('.')
}

/// Returns a URL without user, password, query and fragment, and without what in its path may be a key.
pub(super) fn cover_url(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return COVERED.to_owned() };
    if !url.has_host() {
        // `replay:DIR`: a directory.
        return text.to_owned();
    }
    let covered = !url.username().is_empty() || url.password().is_some();
    let parts: Vec<String> = url.path_segments().into_iter().flatten().map(covered_part).collect();
    let query = if url.query().is_some() { "?***" } else { "" };
    let fragment = if url.fragment().is_some() { "#***" } else { "" };
    // These fail only for URLs that have no host.
    let _ = (url.set_username(""), url.set_password(None));
    let user = if covered { "***@" } else { "" };
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path = if parts.iter().all(String::is_empty) && !text.ends_with('/') {
        String::new()
    } else {
        format!("/{}", parts.join("/"))
    };
    format!("{}://{user}{}{port}{path}{query}{fragment}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Returns a URL whose path is a secret, as webhooks have it, and topics that anybody who knows them can
/// read.
pub(super) fn cover_secret_path(text: &str) -> String {
    let shown = cover_url(text);
    let has_path = Url::parse(text).is_ok_and(|url| url.has_host() && url.path().len() > 1);
    let host = shown.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    if has_path { format!("{host}/{COVERED}") } else { shown }
}

/// Covers a part of a path unless it is a word or a version.
fn covered_part(part: &str) -> String {
    let is_word = part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c));
    let digits = part.chars().filter(char::is_ascii_digit).count();
    if is_word && part.len() <= 32 && digits <= 4 { part.to_owned() } else { COVERED.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `config show` printed keys in arguments and URLs.
    #[test]
    fn arguments_show_no_values() {
        let check = |arguments: &[&str], expected: &[&str]| {
            let before = std::iter::once(None).chain(arguments.iter().copied().map(Some));
            let found: Vec<String> =
                before.zip(arguments).map(|(before, text)| cover_argument(before, text)).collect();
            assert_eq!(found, expected);
        };
        check(
            &["-y", "@modelcontextprotocol/server-filesystem", "."],
            &["-y", "@modelcontextprotocol/server-filesystem", "."],
        );
        check(&["run", "server.py", "--port", "8000"], &["run", "server.py", "--port", "***"]);
        check(
            &["--token=abc", "--api-key", "hunter", "-phunter"],
            &["--token=***", "--api-key", "***", "***"],
        );
        check(&["Authorization: Bearer x", "API_KEY=x", "ghp_0123456789abcdef"], &["***", "***", "***"]);
        check(&["/data/0123456789abcdef0123", "~/notes", "-c", "/x"], &["***", "~/notes", "-c", "/x"]);
        check(
            &["postgres://me:pw@db/x", "https://h/mcp?key=s"],
            &["postgres://***@db/x", "https://h/mcp?***"],
        );
    }

    #[test]
    fn webhooks_show_their_host_alone() {
        for (text, expected) in [
            ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/***"),
            ("https://ntfy.sh/my-topic", "https://ntfy.sh/***"),
            ("https://me:pw@ntfy.example.org/topic?auth=x", "https://***@ntfy.example.org/***"),
            ("smtps://mail.example.org", "smtps://mail.example.org"),
            ("http://127.0.0.1:18789", "http://127.0.0.1:18789"),
        ] {
            assert_eq!(cover_secret_path(text), expected);
        }
    }

    #[test]
    fn urls_show_no_keys() {
        for (text, expected) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("https://host/v1/openai", "https://host/v1/openai"),
            ("https://host/", "https://host/"),
            ("https://me:pw@host:1/x", "https://***@host:1/x"),
            ("https://token@host", "https://***@host"),
            (
                "https://mcp.example/api/s/0a1b2c3d4e5f6a7b8c9d/mcp?t=1#f",
                "https://mcp.example/api/s/***/mcp?***#***",
            ),
            (
                "https://mcp.example/api/mcp/s/QWxhZGRpbjpvcGVuc2VzYW1l/mcp",
                "https://mcp.example/api/mcp/s/***/mcp",
            ),
            ("https://host/0a1b2c3d4e5f", "https://host/***"),
            ("replay:fixtures/x", "replay:fixtures/x"),
            ("no url", "***"),
        ] {
            assert_eq!(cover_url(text), expected);
        }
    }
}
