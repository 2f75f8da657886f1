//! White space, asked cheaply. Used by dialects, the scanner and the ledger.

/// Whether a byte surely is, and begins, no white space.
pub(crate) fn is_plainly_no_space(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// Whether nothing but white space is in it.
pub(crate) fn is_space(text: &str) -> bool {
    !text.as_bytes().first().is_some_and(|byte| is_plainly_no_space(*byte)) && text.trim().is_empty()
}
