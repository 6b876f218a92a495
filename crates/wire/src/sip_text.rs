//! Parsers of numbers and words, shared by SIP and SDP.

/// A decimal number of digits only; `None` for other text and for numbers beyond 64 bits.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The first word, and the text after the blanks that follow it.
pub(crate) fn next_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, rest.trim_ascii_start())
}

/// White space inside a header value, folds included.
pub(crate) fn is_lws(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}
