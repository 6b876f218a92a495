//! Eight or sixteen bytes at a time: most of what is looked for in a header stands within the first few of them, sooner than a search
//! that has to ask first what the processor can do has begun.

use wide::u8x16;

/// What lies further behind is searched through wider vectors.
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

/// The place of the first byte for which `hits` has a bit, which is asked about sixteen bytes at a time and gives a bit for each, the lowest for
/// the first. The last sixteen begin where the bytes have them, though some of them were in those before; fewer than sixteen are two overlapping
/// pieces.
#[inline]
fn sixteens(bytes: &[u8], hits: impl Fn(u8x16) -> u32) -> Option<usize> {
    let (pieces, rest) = bytes.as_chunks::<16>();
    for (at, piece) in pieces.iter().enumerate() {
        let bits = hits(u8x16::new(*piece));
        if bits != 0 {
            return Some(at * 16 + bits.trailing_zeros() as usize);
        }
    }
    if rest.is_empty() {
        return None;
    }
    if let Some(last) = bytes.last_chunk::<16>() {
        let bits = hits(u8x16::new(*last));
        return (bits != 0).then(|| bytes.len() - 16 + bits.trailing_zeros() as usize);
    }
    let two = |front: u128, back: u128, size: usize| {
        let both = u8x16::new((front | back << (8 * size)).to_le_bytes());
        let bits = hits(both) & ((1 << (2 * size)) - 1);
        let at = bits.trailing_zeros() as usize;
        // What is in the second piece stands that much further to the front as the two overlap.
        (bits != 0).then(|| match at < size {
            true => at,
            false => bytes.len() + at - 2 * size,
        })
    };
    if let (Some(front), Some(back)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        return two(
            u64::from_le_bytes(*front).into(),
            u64::from_le_bytes(*back).into(),
            8,
        );
    }
    if let (Some(front), Some(back)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return two(
            u32::from_le_bytes(*front).into(),
            u32::from_le_bytes(*back).into(),
            4,
        );
    }
    let word = bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u128::from(*byte));
    let bits = hits(u8x16::new(word.to_le_bytes())) & ((1 << bytes.len()) - 1);
    (bits != 0).then(|| bits.trailing_zeros() as usize)
}

/// Where the first of these three stands.
#[inline]
pub(super) fn first_of(any: [u8; 3], bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = any.map(u8x16::splat);
    let (near, far) = bytes.split_at(bytes.len().min(SHORT));
    sixteens(near, |piece| {
        (piece.simd_eq(a) | piece.simd_eq(b) | piece.simd_eq(c)).to_bitmask()
    })
    .or_else(|| beyond(far, |far| memchr::memchr3(any[0], any[1], any[2], far)))
}

/// Where this byte stands first.
#[inline]
pub(super) fn first(byte: u8, bytes: &[u8]) -> Option<usize> {
    let wanted = u8x16::splat(byte);
    let (near, far) = bytes.split_at(bytes.len().min(SHORT));
    sixteens(near, |piece| piece.simd_eq(wanted).to_bitmask())
        .or_else(|| beyond(far, |far| memchr::memchr(byte, far)))
}

/// The place of the first byte that `class` marks, sixteen at a time to the end.
#[inline]
pub(super) fn first_where(bytes: &[u8], class: impl Fn(u8x16) -> u8x16) -> Option<usize> {
    sixteens(bytes, |piece| class(piece).to_bitmask())
}

/// How many bytes in front `class` marks.
#[inline]
pub(super) fn first_not(bytes: &[u8], class: impl Fn(u8x16) -> u8x16) -> usize {
    sixteens(bytes, |piece| !class(piece).to_bitmask() & 0xffff).unwrap_or(bytes.len())
}

/// The same behind the first [`SHORT`] bytes.
#[inline]
fn beyond(far: &[u8], search: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
    match far {
        [] => None,
        _ => Some(SHORT + search(far)?),
    }
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
