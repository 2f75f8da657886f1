//! Documents in a request: the model gets the text of text documents.
//!
//! Called by `responses` and `messages`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::chat_body::JsonText;
use wire::encode_string;

/// Decodes a document in base64; `None` when it is not text.
pub(super) fn base64_text(media_type: &str, data: &str) -> Option<String> {
    let kind = media_type.split(';').next().unwrap_or_default().trim();
    let is_text = kind.starts_with("text/")
        || kind.ends_with("+json")
        || kind.ends_with("+xml")
        || matches!(kind, "application/json" | "application/xml" | "application/yaml" | "application/toml");
    String::from_utf8(is_text.then(|| STANDARD.decode(data).ok()).flatten()?).ok()
}

/// Decodes the text of a `data:` URL.
pub(super) fn data_url_text(url: &str) -> Option<String> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    base64_text(head.strip_suffix(";base64")?, data)
}

/// Marks a document among the user's texts, with its title.
pub(super) fn mark_document(title: Option<&str>, text: &JsonText) -> JsonText {
    let title = title.map_or_else(String::new, |title| format!(" title={}", encode_string(title)));
    text.enclose(&format!("<document{title}>\n"), "\n</document>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_read() {
        assert_eq!(data_url_text("data:text/plain;base64,aGVsbG8=").as_deref(), Some("hello"));
        assert_eq!(base64_text("application/json; charset=utf-8", "e30=").as_deref(), Some("{}"));
        for (media_type, data) in
            [("application/pdf", "aGVsbG8="), ("text/plain", "no base64!"), ("text/plain", "/w==")]
        {
            assert_eq!(base64_text(media_type, data), None, "{media_type}");
        }
        assert_eq!(data_url_text("https://example.org/a.txt"), None);
    }
}
