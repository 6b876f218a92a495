//! Fast parsers of the usual forms of addresses.

use super::vector::{first_not, first_where};
use wide::u8x16;

/// Mask of those of sixteen bytes that lie between `low` and `high`.
#[inline]
fn within(piece: u8x16, low: u8, high: u8) -> u8x16 {
    piece
        .max(u8x16::splat(low))
        .min(u8x16::splat(high))
        .simd_eq(piece)
}

/// Mask of the characters of host names: letters, digits, `-`, `.` and `_`.
#[inline]
fn is_name(piece: u8x16) -> u8x16 {
    // Setting bit 0x20 maps upper-case letters to lower-case ones, and no other byte to a letter.
    within(piece | u8x16::splat(0x20), b'a', b'z')
        | within(piece, b'0', b'9')
        | within(piece, b'-', b'.')
        | piece.simd_eq(u8x16::splat(b'_'))
}

/// Mask of the usual characters of users: those of host names, and `+`.
#[inline]
fn is_user(piece: u8x16) -> u8x16 {
    is_name(piece) | piece.simd_eq(u8x16::splat(b'+'))
}

/// The user of a SIP URI in the usual form: letters, digits and marks, then a host in the same characters with or
/// without a port. `None` decides nothing: use [`Uri::parse`](super::Uri::parse).
pub fn plain_user(uri: &[u8]) -> Option<&[u8]> {
    let (user, rest) = split_user(uri)?;
    rest.is_empty().then_some(user)
}

/// The user in the value of From or To, with the URI in brackets and without quotes before it. The parameters after the
/// brackets are not checked. `None` decides nothing.
pub fn plain_user_of(value: &[u8]) -> Option<&[u8]> {
    let open = first_where(value, |piece| {
        piece.simd_eq(u8x16::splat(b'<'))
            | piece.simd_eq(u8x16::splat(b'"'))
            | piece.simd_eq(u8x16::splat(b'\r'))
            | piece.simd_eq(u8x16::splat(b'\n'))
    })?;
    let uri = value.get(open..)?.strip_prefix(b"<")?;
    let (user, rest) = split_user(uri)?;
    matches!(rest, [b'>', ..]).then_some(user)
}

/// The user, and the text after the host and port.
#[inline]
fn split_user(uri: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = uri.strip_prefix(b"sip:")?;
    let (user, rest) = rest.split_at_checked(first_not(rest, is_user))?;
    let rest = rest.strip_prefix(b"@")?;
    let after = after_host(rest)?;
    (!user.is_empty()).then_some((user, after))
}

/// The text after a host without brackets and its port, if any. `None` decides nothing.
#[inline]
pub(super) fn after_host(text: &[u8]) -> Option<&[u8]> {
    let (host, rest) = text.split_at_checked(first_not(text, is_name))?;
    // A malformed IPv4 address is a valid name.
    if !(1..=255).contains(&host.len()) || matches!(host, [b'-' | b'.', ..]) {
        return None;
    }
    let Some(port) = rest.strip_prefix(b":") else {
        return Some(rest);
    };
    let (mut number, mut digits) = (0u32, 0);
    for byte in port {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        digits += 1;
        if digits > 5 {
            return None;
        }
        number = number * 10 + u32::from(digit);
    }
    if !(1..=0xffff).contains(&number) {
        return None;
    }
    port.get(digits..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sip::Uri;
    use proptest::prelude::*;

    #[test]
    fn character_classes_are_complete() {
        for byte in 0..=u8::MAX {
            let name = byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            let piece = u8x16::splat(byte);
            assert_eq!(is_name(piece).to_bitmask() & 1 == 1, name, "{byte}");
            assert_eq!(
                is_user(piece).to_bitmask() & 1 == 1,
                name || byte == b'+',
                "{byte}"
            );
        }
    }

    fn piece() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "sip:",
            "a",
            "alice.b-c_d",
            "+49",
            "@",
            "h",
            "192.0.2.1",
            "example.org",
            ":",
            "5060",
            "70000",
            "0",
            "-",
            ".",
            ";x=y",
            ">",
            "<",
            " ",
            "\"",
            "%41",
            "?",
            ",",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// A user found by the fast parser equals that of the full parser.
        #[test]
        fn fast_parser_agrees_with_full_parser(pieces in prop::collection::vec(piece(), 0..9), sound in any::<bool>()) {
            let text = match sound {
                true => format!("sip:{}@{}", pieces.concat(), "h.example:5060"),
                false => pieces.concat(),
            };
            if let Some(user) = plain_user(text.as_bytes()) {
                let uri = Uri::parse(text.as_bytes()).expect("a URI");
                prop_assert_eq!(uri.user, Some(user));
            }
            let value = format!("N <{text}>;tag=1");
            let address = crate::sip::NameAddr::parse(value.as_bytes());
            if let (Some(user), Some(address)) = (plain_user_of(value.as_bytes()), address) {
                prop_assert_eq!(Uri::parse(address.uri).expect("a URI").user, Some(user));
            }
            let usual = text.strip_prefix("sip:").and_then(|rest| rest.strip_suffix("@h.example:5060"));
            if let Some(user) = usual
                && !user.is_empty()
                && user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte))
            {
                prop_assert_eq!(plain_user(text.as_bytes()), Some(user.as_bytes()));
            }
        }
    }
}
