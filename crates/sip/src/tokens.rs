//! Branches and tags: slot and secret cookie in one token. Responses and requests are matched without a search, and the
//! tokens cannot be guessed.

use serde::{Deserialize, Serialize};

/// Length of an [`IdToken`] in bytes.
pub(crate) const TOKEN_LEN: usize = 24;
/// Prefix of every branch (RFC 3261 section 8.1.1.7).
pub(crate) const MAGIC: &[u8] = b"z9hG4bK";

/// Eight hexadecimal digits of the slot, sixteen of the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdToken([u8; TOKEN_LEN]);

impl IdToken {
    pub(crate) fn new(slot: u32, cookie: u64) -> IdToken {
        let mut text = [0; TOKEN_LEN];
        let (front, back) = text.split_at_mut(8);
        front.copy_from_slice(&hex(slot));
        back.copy_from_slice(&hex_digits(cookie));
        IdToken(text)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Slot and cookie of a token; `None` if it is not of this form.
    pub(crate) fn decode(token: &[u8]) -> Option<(u32, u64)> {
        let ([slot, high, low], []) = token.as_chunks::<8>() else {
            return None;
        };
        let cookie = u64::from(unhex(*high)?) << 32 | u64::from(unhex(*low)?);
        Some((unhex(*slot)?, cookie))
    }

    /// Slot and cookie of one of our branches.
    pub(crate) fn decode_branch(branch: &[u8]) -> Option<(u32, u64)> {
        let (magic, token) = branch.split_at_checked(MAGIC.len())?;
        if !magic.eq_ignore_ascii_case(MAGIC) {
            return None;
        }
        IdToken::decode(token)
    }
}

/// A word of eight equal bytes.
const fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The hexadecimal digits of the nibbles in eight bytes.
const fn digits(nibbles: u64) -> u64 {
    let letters = ((nibbles + eight(6)) >> 4) & eight(1);
    nibbles + eight(b'0') + letters * (b'a' - b'0' - 10) as u64
}

/// Eight hexadecimal digits at a time.
const fn hex(value: u32) -> [u8; 8] {
    let pairs = value as u64;
    let pairs = (pairs & 0xffff_0000) << 16 | pairs & 0xffff;
    let pairs = (pairs & 0xff00_0000_ff00) << 8 | pairs & 0xff_0000_00ff;
    let nibbles = (pairs & 0xf0_00f0_00f0_00f0) << 4 | pairs & 0xf_000f_000f_000f;
    digits(nibbles).to_be_bytes()
}

/// A number in sixteen hexadecimal digits.
pub fn hex_digits(value: u64) -> [u8; 16] {
    let mut text = [0; 16];
    let (front, back) = text.split_at_mut(8);
    front.copy_from_slice(&hex((value >> 32) as u32));
    back.copy_from_slice(&hex(value as u32));
    text
}

/// The value of eight hexadecimal digits of either case.
const fn unhex(text: [u8; 8]) -> Option<u32> {
    let text = u64::from_be_bytes(text);
    let nibbles = ((text & eight(0xf)) + ((text >> 6) & eight(1)) * 9) & eight(0xf);
    // Valid input gives the same digits when it is written again, except for the case of letters.
    let again = digits(nibbles);
    if (text ^ again) & !((again & eight(0x40)) >> 1) != 0 {
        return None;
    }
    let bytes = (nibbles | nibbles >> 4) & 0xff_00ff_00ff_00ff;
    let pairs = (bytes | bytes >> 8) & 0xffff_0000_ffff;
    Some((pairs | pairs >> 16) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte at every position, and values of all sizes, compared with the standard library.
    #[test]
    fn hex_digits_match_the_standard_library() {
        let mut value = 1u64;
        for _ in 0..2_000 {
            value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) ^ 0xa5;
            assert_eq!(hex_digits(value), *format!("{value:016x}").as_bytes());
            let text = hex(value as u32);
            assert_eq!(unhex(text), Some(value as u32));
            assert_eq!(
                unhex(text.map(|byte| byte.to_ascii_uppercase())),
                Some(value as u32)
            );
            for place in 0..8 {
                for byte in 0..=u8::MAX {
                    let mut text = text;
                    text[place] = byte;
                    let wanted = core::str::from_utf8(&text)
                        .ok()
                        .filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
                        .and_then(|text| u32::from_str_radix(text, 16).ok());
                    assert_eq!(unhex(text), wanted, "{text:?}");
                }
            }
        }
    }

    #[test]
    fn tokens_round_trip() {
        for (slot, cookie) in [
            (0, 0),
            (7, u64::MAX),
            (u32::MAX, 1),
            (123_456, 0x0123_4567_89ab_cdef),
        ] {
            let name = IdToken::new(slot, cookie);
            assert_eq!(IdToken::decode(name.as_bytes()), Some((slot, cookie)));
            let upper = name.as_bytes().to_ascii_uppercase();
            assert_eq!(IdToken::decode(&upper), Some((slot, cookie)));
            let branch = [MAGIC, name.as_bytes()].concat();
            assert_eq!(IdToken::decode_branch(&branch), Some((slot, cookie)));
        }
        assert_eq!(IdToken::decode(b"00000000000000000000000g"), None);
        assert_eq!(IdToken::decode(b"0"), None);
        assert_eq!(IdToken::decode_branch(b"z9hG4b"), None);
    }
}
