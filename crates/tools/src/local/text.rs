//! Files as text: their encoding and line ends, or binary files. Decoded text encodes to the same bytes.

/// The encoding of a file's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    Utf8WithBom,
    Utf16Le,
    Utf16Be,
    /// Text that is not UTF-8 and has no control characters; every byte is a character.
    Windows1252,
}

const UTF8_BOM: &[u8] = b"\xEF\xBB\xBF";

/// The characters of the bytes 0x80 to 0x9F (WHATWG encoding standard, index windows-1252).
const HIGH_CONTROLS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// Returns the text of a file; `None` for a binary file.
pub(super) fn decode_text(bytes: &[u8]) -> Option<(String, Encoding)> {
    if let Some(rest) = bytes.strip_prefix(UTF8_BOM) {
        return Some((String::from_utf8(rest.to_vec()).ok()?, Encoding::Utf8WithBom));
    }
    match bytes {
        [0xFF, 0xFE, rest @ ..] => return Some((decode_utf16(rest, u16::from_le_bytes)?, Encoding::Utf16Le)),
        [0xFE, 0xFF, rest @ ..] => return Some((decode_utf16(rest, u16::from_be_bytes)?, Encoding::Utf16Be)),
        _ => {}
    }
    if bytes.contains(&0) {
        return None;
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Some((text.to_owned(), Encoding::Utf8));
    }
    let is_control = |byte: &u8| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0C | 0x1B);
    let character = |byte: &u8| match byte {
        0x80..=0x9F => HIGH_CONTROLS[usize::from(byte - 0x80)],
        _ => char::from(*byte),
    };
    (!bytes.iter().any(is_control)).then(|| (bytes.iter().map(character).collect(), Encoding::Windows1252))
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Option<String> {
    let pairs = bytes.chunks_exact(2);
    let whole = pairs.remainder().is_empty();
    let units: Vec<u16> = pairs.map(|pair| unit([pair[0], pair[1]])).collect();
    String::from_utf16(&units).ok().filter(|_| whole)
}

/// Returns the bytes of a text.
///
/// # Errors
/// The first character that the encoding does not have.
pub(super) fn encode_text(text: &str, encoding: Encoding) -> Result<Vec<u8>, char> {
    let units = |bom: [u8; 2], bytes: fn(u16) -> [u8; 2]| {
        bom.into_iter().chain(text.encode_utf16().flat_map(bytes)).collect()
    };
    Ok(match encoding {
        Encoding::Utf8 => text.as_bytes().to_vec(),
        Encoding::Utf8WithBom => [UTF8_BOM, text.as_bytes()].concat(),
        Encoding::Utf16Le => units([0xFF, 0xFE], u16::to_le_bytes),
        Encoding::Utf16Be => units([0xFE, 0xFF], u16::to_be_bytes),
        Encoding::Windows1252 => text.chars().map(byte_of).collect::<Result<_, _>>()?,
    })
}

fn byte_of(c: char) -> Result<u8, char> {
    let high = HIGH_CONTROLS.iter().zip(0x80_u8..).find(|(known, _)| **known == c).map(|(_, byte)| byte);
    let same = u8::try_from(c).ok().filter(|byte| !(0x80..=0x9F).contains(byte));
    high.or(same).ok_or(c)
}

/// Returns true if there are line ends and all are CRLF.
pub(super) fn is_crlf(text: &str) -> bool {
    let ends = text.matches('\n').count();
    ends > 0 && text.matches("\r\n").count() == ends
}

/// Replaces each line end with CRLF.
pub(super) fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encodings_are_told_apart() {
        let check = |bytes: &[u8], expected: Option<(&str, Encoding)>| {
            assert_eq!(
                decode_text(bytes),
                expected.map(|(text, encoding)| (text.to_owned(), encoding)),
                "{bytes:x?}"
            );
        };
        check(b"", Some(("", Encoding::Utf8)));
        check("grün".as_bytes(), Some(("grün", Encoding::Utf8)));
        check(b"\xEF\xBB\xBFa", Some(("a", Encoding::Utf8WithBom)));
        check(b"gr\xFCn \x80", Some(("grün €", Encoding::Windows1252)));
        check(b"\xFF\xFEa\0\xFC\0", Some(("aü", Encoding::Utf16Le)));
        check(b"\xFE\xFF\0a\0\xFC", Some(("aü", Encoding::Utf16Be)));
        check(b"\x7fELF\x02\x01\0\0", None);
        check(b"\x89PNG\r\n\x1a\n", None);
        check(b"\xFF\xFEa", None);
        check(b"\xFF\xFE\0\xD8", None);
    }

    #[test]
    fn a_character_that_does_not_fit_is_named() {
        assert_eq!(encode_text("aβ", Encoding::Windows1252), Err('β'));
        assert_eq!(encode_text("ü\u{85}", Encoding::Windows1252), Err('\u{85}'));
    }

    proptest! {
        #[test]
        fn what_is_decoded_encodes_to_the_same_bytes(bytes: Vec<u8>, bom in 0..4_usize) {
            let bom: &[u8] = [&b""[..], UTF8_BOM, b"\xFF\xFE", b"\xFE\xFF"][bom];
            let bytes = [bom, &bytes].concat();
            if let Some((text, encoding)) = decode_text(&bytes) {
                prop_assert_eq!(encode_text(&text, encoding), Ok(bytes));
            }
        }
    }
}
