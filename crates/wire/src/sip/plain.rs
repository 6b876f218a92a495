//! Addresses as most are, seen through without being taken apart.

use super::words::{first_not, first_where};
use wide::u8x16;

/// Those of sixteen bytes from `low` to `high`.
#[inline]
fn within(piece: u8x16, low: u8, high: u8) -> u8x16 {
    piece
        .max(u8x16::splat(low))
        .min(u8x16::splat(high))
        .simd_eq(piece)
}

/// Letters, digits, `-`, `.` and `_`: those of host names.
#[inline]
fn is_name(piece: u8x16) -> u8x16 {
    // A bit more or less makes letters small, and nothing else one of them.
    within(piece | u8x16::splat(0x20), b'a', b'z')
        | within(piece, b'0', b'9')
        | within(piece, b'-', b'.')
        | piece.simd_eq(u8x16::splat(b'_'))
}

/// The same and `+`: those of users as most are.
#[inline]
fn is_user(piece: u8x16) -> u8x16 {
    is_name(piece) | piece.simd_eq(u8x16::splat(b'+'))
}

/// The user of a SIP URI as most are: letters, digits and marks in front of a host that is as plain, with or without a port.
/// `None` is no judgement: [`Uri::parse`](super::Uri::parse) is to be asked.
pub fn plain_user(uri: &[u8]) -> Option<&[u8]> {
    let (user, rest) = user_and_rest(uri)?;
    rest.is_empty().then_some(user)
}

/// The same of a From's or To's value, with the URI in brackets and no quotes in front. What stands behind the brackets
/// changes nothing of the user, and is for whoever took the message in to judge. `None` is no judgement.
pub fn plain_user_of(value: &[u8]) -> Option<&[u8]> {
    let open = first_where(value, |piece| {
        piece.simd_eq(u8x16::splat(b'<'))
            | piece.simd_eq(u8x16::splat(b'"'))
            | piece.simd_eq(u8x16::splat(b'\r'))
            | piece.simd_eq(u8x16::splat(b'\n'))
    })?;
    let uri = value.get(open..)?.strip_prefix(b"<")?;
    let (user, rest) = user_and_rest(uri)?;
    matches!(rest, [b'>', ..]).then_some(user)
}

/// The user, and what stands behind the port or host.
#[inline]
fn user_and_rest(uri: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = uri.strip_prefix(b"sip:")?;
    let (user, rest) = rest.split_at_checked(first_not(rest, is_user))?;
    let rest = rest.strip_prefix(b"@")?;
    let behind = behind_host(rest)?;
    (!user.is_empty()).then_some((user, behind))
}

/// What stands behind a host without brackets and, where there is one, its port. `None` is no judgement.
#[inline]
pub(super) fn behind_host(text: &[u8]) -> Option<&[u8]> {
    let (host, rest) = text.split_at_checked(first_not(text, is_name))?;
    // What looks like an address and is none is a name all the same.
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
    fn letters_of_names_and_users() {
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

        /// Who is seen through is who is found by parsing.
        #[test]
        fn users_are_those_that_parsing_finds(pieces in prop::collection::vec(piece(), 0..9), sound in any::<bool>()) {
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
