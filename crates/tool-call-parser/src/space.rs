//! Quick tests for white space. Used by dialects, the scanner and the ledger.

/// Returns true for an ASCII byte that is not white space.
pub(crate) fn is_ascii_non_space(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// Returns true if the text is nothing but white space.
pub(crate) fn is_space(text: &str) -> bool {
    !text.as_bytes().first().is_some_and(|byte| is_ascii_non_space(*byte)) && text.trim().is_empty()
}
