//! Pictures in a message: known by their first bytes, sent as data URLs. Pure. Called by `attachments`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::figures::format_count;

/// The most bytes of one picture, and the most pictures of one message. Every later request has them, too.
pub(super) const MOST_BYTES: u64 = 5 << 20;
pub(super) const MOST_PICTURES: usize = 10;

/// Returns the media type of a picture that model servers read.
pub(super) fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Returns true for a name as files of pictures have it.
pub(super) fn is_picture_name(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    ending.is_some_and(|ending| ["png", "jpg", "jpeg", "gif", "webp"].contains(&ending.as_str()))
}

/// Returns a picture as a part of a message.
pub(super) fn picture_part(bytes: &[u8], media_type: &str) -> Value {
    let url = format!("data:{media_type};base64,{}", STANDARD.encode(bytes));
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// Returns the size of a file in words.
pub(super) fn size_text(bytes: u64) -> String {
    match bytes {
        0..1_000 => format_count(usize::try_from(bytes).unwrap_or_default(), "byte"),
        1_000..1_000_000 => format!("{} KB", bytes.div_ceil(1_000)),
        _ => format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10),
    }
}

/// Returns the paths that stand in a line without an `@`, as a terminal writes a file that is dropped on it:
/// in quotes, with backslashes before spaces, or as they are.
pub(super) fn dropped_paths(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut chars) = (Vec::new(), String::new(), None, line.chars());
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None) => word.extend(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) if word.is_empty() => quote = Some(c),
            (c, None) if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            (c, _) => word.push(c),
        }
    }
    words.push(word);
    let path = |word: &String| {
        let path = word
            .strip_prefix("file://")
            .unwrap_or(word)
            .trim_end_matches([',', ';', ':', '?', '!', ')', '.']);
        (path.starts_with('/') || path.starts_with("~/")).then(|| path.to_owned())
    };
    words.iter().filter_map(path).filter(|path| is_picture_name(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_known_by_content() {
        for (bytes, expected) in [
            (&b"\x89PNG\r\n\x1a\nx"[..], Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF89a", Some("image/gif")),
            (b"RIFF\0\0\0\0WEBPVP8", Some("image/webp")),
            (b"RIFF\0\0\0\0WAVE", None),
            (b"PNG", None),
            (b"", None),
        ] {
            assert_eq!(media_type(bytes), expected, "{bytes:?}");
        }
        let part = picture_part(b"GIF89a", "image/gif");
        assert_eq!(part["image_url"]["url"], "data:image/gif;base64,R0lGODlh");
    }

    #[test]
    fn dropped_files_are_found() {
        let check = |line: &str, expected: &[&str]| assert_eq!(dropped_paths(line), expected, "{line}");
        check("what is /tmp/a.png?", &["/tmp/a.png"]);
        check(r"'/tmp/my pic.PNG' and /tmp/my\ other.jpg", &["/tmp/my pic.PNG", "/tmp/my other.jpg"]);
        check("~/x.webp file:///tmp/y.gif", &["~/x.webp", "/tmp/y.gif"]);
        check("it's a.png, @/tmp/b.png, /etc/hosts, don't", &[]);
    }
}
