//! Eight bytes at a time: most of what is looked for in a header stands within the first few of them, sooner than a search through
//! vectors has begun.

/// Longer texts are searched through vectors.
const SHORT: usize = 96;

/// Eight bytes with this value.
pub(super) const fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The lowest of eight bytes that is zero, by its highest bit; 0: none is. Bits above that one may be wrong.
#[inline]
pub(super) const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(eight(0x01)) & !word & eight(0x80)
}

/// All of eight bytes that are zero, by their highest bits.
#[inline]
pub(super) const fn all_zeros(word: u64) -> u64 {
    !((word & eight(0x7f)).wrapping_add(eight(0x7f)) | word | eight(0x7f))
}

/// Which of eight bytes such a bit stands for.
#[inline]
pub(super) const fn place(bit: u64) -> usize {
    (bit.trailing_zeros() / 8) as usize
}

/// Goes through all bytes in words, each with the place of its first byte, until `found` says something. The last word begins where it has
/// eight bytes, though some of them were in the one before. Fewer than eight bytes are filled up with `fill`.
#[inline]
pub(super) fn through<T>(
    bytes: &[u8],
    fill: u8,
    mut found: impl FnMut(usize, u64) -> Option<T>,
) -> Option<T> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let seen = found(at * 8, u64::from_le_bytes(*word));
        if seen.is_some() {
            return seen;
        }
    }
    if rest.is_empty() {
        return None;
    }
    match bytes.last_chunk::<8>() {
        Some(last) => found(bytes.len() - 8, u64::from_le_bytes(*last)),
        None => {
            let word = rest
                .iter()
                .rev()
                .fold(eight(fill), |word, byte| word << 8 | u64::from(*byte));
            found(0, word)
        }
    }
}

/// Where the first of these three stands.
#[inline]
pub(super) fn first_of(any: [u8; 3], bytes: &[u8]) -> Option<usize> {
    if bytes.len() > SHORT {
        return memchr::memchr3(any[0], any[1], any[2], bytes);
    }
    // What is filled up is none of them, or stands behind all.
    let fill = 0xff;
    let at = through(bytes, fill, |at, word| {
        let [a, b, c] = any.map(|byte| zeros(word ^ eight(byte)));
        let hit = a | b | c;
        (hit != 0).then(|| at + place(hit))
    })?;
    (at < bytes.len()).then_some(at)
}

/// Where this byte stands first.
#[inline]
pub(super) fn first(byte: u8, bytes: &[u8]) -> Option<usize> {
    if bytes.len() > SHORT {
        return memchr::memchr(byte, bytes);
    }
    let at = through(bytes, !byte, |at, word| {
        let hit = zeros(word ^ eight(byte));
        (hit != 0).then(|| at + place(hit))
    })?;
    (at < bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As the plainest search has it, whatever the bytes and however many.
        #[test]
        fn searches_find_what_is_first(
            bytes in proptest::collection::vec(prop_oneof![Just(b';'), Just(b':'), Just(b'<'), any::<u8>()], 0..120),
            some in any::<u8>(),
        ) {
            for wanted in [b';', some] {
                let plain = bytes.iter().position(|byte| *byte == wanted);
                prop_assert_eq!(first(wanted, &bytes), plain);
                let plain = bytes.iter().position(|byte| [wanted, b'<', 0xff].contains(byte));
                prop_assert_eq!(first_of([wanted, b'<', 0xff], &bytes), plain);
            }
        }

        #[test]
        fn bytes_that_are_zero_are_known(bytes in any::<[u8; 8]>(), kept in any::<u8>()) {
            let bytes: [u8; 8] = core::array::from_fn(|at| if kept >> at & 1 == 1 { bytes[at] } else { 0 });
            let word = u64::from_le_bytes(bytes);
            let plain = bytes.iter().rev().fold(0u64, |bits, byte| bits << 8 | if *byte == 0 { 0x80 } else { 0 });
            prop_assert_eq!(all_zeros(word), plain);
            prop_assert_eq!(zeros(word).trailing_zeros(), plain.trailing_zeros());
        }
    }
}
