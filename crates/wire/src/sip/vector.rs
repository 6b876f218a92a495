//! Byte searches over eight or sixteen bytes at a time. Most searches in a header end within the first few blocks,
//! sooner than a library search has selected its implementation for the processor.

use wide::u8x16;

/// Distance beyond which wider vectors search.
const SHORT: usize = 96;

/// Eight bytes of this value.
pub(super) const fn splat(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Marks the lowest of eight bytes that is zero, by its highest bit; 0 if there is none. Bits above that one are not
/// valid.
#[inline]
pub(super) const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(splat(0x01)) & !word & splat(0x80)
}

/// Marks all of eight bytes that are zero, by their highest bits.
#[inline]
pub(super) const fn all_zeros(word: u64) -> u64 {
    !((word & splat(0x7f)).wrapping_add(splat(0x7f)) | word | splat(0x7f))
}

/// Index of the byte marked by the lowest bit.
#[inline]
pub(super) const fn byte_index(bit: u64) -> usize {
    (bit.trailing_zeros() / 8) as usize
}

/// Calls `found` with each word of eight bytes and its offset, until it returns a value. The last word may overlap the
/// one before. Fewer than eight bytes are padded with `fill`.
#[inline]
pub(super) fn find_in_words<T>(
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
                .fold(splat(fill), |word, byte| word << 8 | u64::from(*byte));
            found(0, word)
        }
    }
}

/// The offset of the first byte that `hits` marks. `hits` gets blocks of sixteen bytes and returns a bit for each byte,
/// the lowest for the first. The last block may overlap the one before; fewer than sixteen bytes are split into two
/// overlapping parts.
#[inline]
fn find_in_blocks(bytes: &[u8], hits: impl Fn(u8x16) -> u32) -> Option<usize> {
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
        // The offset of a hit in the second part is reduced by the overlap.
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

/// The offset of the first of these three bytes.
#[inline]
pub(super) fn first_of(any: [u8; 3], bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = any.map(u8x16::splat);
    let (near, far) = bytes.split_at(bytes.len().min(SHORT));
    find_in_blocks(near, |piece| {
        (piece.simd_eq(a) | piece.simd_eq(b) | piece.simd_eq(c)).to_bitmask()
    })
    .or_else(|| beyond(far, |far| memchr::memchr3(any[0], any[1], any[2], far)))
}

/// The first offset of this byte.
#[inline]
pub(super) fn first(byte: u8, bytes: &[u8]) -> Option<usize> {
    let target = u8x16::splat(byte);
    let (near, far) = bytes.split_at(bytes.len().min(SHORT));
    find_in_blocks(near, |piece| piece.simd_eq(target).to_bitmask())
        .or_else(|| beyond(far, |far| memchr::memchr(byte, far)))
}

/// The offset of the first byte that `class` marks.
#[inline]
pub(super) fn first_where(bytes: &[u8], class: impl Fn(u8x16) -> u8x16) -> Option<usize> {
    find_in_blocks(bytes, |piece| class(piece).to_bitmask())
}

/// Number of bytes at the beginning that `class` marks.
#[inline]
pub(super) fn first_not(bytes: &[u8], class: impl Fn(u8x16) -> u8x16) -> usize {
    find_in_blocks(bytes, |piece| !class(piece).to_bitmask() & 0xffff).unwrap_or(bytes.len())
}

/// Continues a search beyond the first [`SHORT`] bytes.
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
        /// The searches agree with a plain search, for any content and length.
        #[test]
        fn searches_find_the_first_match(
            bytes in proptest::collection::vec(prop_oneof![Just(b';'), Just(b':'), Just(b'<'), any::<u8>()], 0..120),
            some in any::<u8>(),
        ) {
            for target in [b';', some] {
                let plain = bytes.iter().position(|byte| *byte == target);
                prop_assert_eq!(first(target, &bytes), plain);
                let plain = bytes.iter().position(|byte| [target, b'<', 0xff].contains(byte));
                prop_assert_eq!(first_of([target, b'<', 0xff], &bytes), plain);
            }
        }

        #[test]
        fn zero_bytes_are_marked(bytes in any::<[u8; 8]>(), kept in any::<u8>()) {
            let bytes: [u8; 8] = core::array::from_fn(|at| if kept >> at & 1 == 1 { bytes[at] } else { 0 });
            let word = u64::from_le_bytes(bytes);
            let plain = bytes.iter().rev().fold(0u64, |bits, byte| bits << 8 | if *byte == 0 { 0x80 } else { 0 });
            prop_assert_eq!(all_zeros(word), plain);
            prop_assert_eq!(zeros(word).trailing_zeros(), plain.trailing_zeros());
        }
    }
}
