//! Branches and tags of our making: slot and secret in one token, so that whatever comes back is found without a search
//! and cannot be guessed.

/// Length of a [`Name`].
pub(crate) const NAME_LEN: usize = 24;
/// What every branch begins with (RFC 3261 section 8.1.1.7).
pub(crate) const MAGIC: &[u8] = b"z9hG4bK";

/// Eight hexadecimal digits of the slot, sixteen of the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name([u8; NAME_LEN]);

impl Name {
    pub(crate) fn new(slot: u32, cookie: u64) -> Name {
        let mut text = [0; NAME_LEN];
        let (front, back) = text.split_at_mut(8);
        hex(u64::from(slot), front);
        hex(cookie, back);
        Name(text)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Slot and cookie of a token, where it has our shape.
    pub(crate) fn decode(token: &[u8]) -> Option<(u32, u64)> {
        if token.len() != NAME_LEN {
            return None;
        }
        let (front, back) = token.split_at(8);
        Some((unhex(front)? as u32, unhex(back)?))
    }

    /// Slot and cookie of a branch of ours; `true` where it is the branch of an ACK to a 2xx.
    pub(crate) fn decode_branch(branch: &[u8]) -> Option<(u32, u64)> {
        let (magic, token) = branch.split_at_checked(MAGIC.len())?;
        if !magic.eq_ignore_ascii_case(MAGIC) {
            return None;
        }
        Name::decode(token)
    }
}

fn hex(mut value: u64, out: &mut [u8]) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

fn unhex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(nibble))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_went() {
        for (slot, cookie) in [
            (0, 0),
            (7, u64::MAX),
            (u32::MAX, 1),
            (123_456, 0x0123_4567_89ab_cdef),
        ] {
            let name = Name::new(slot, cookie);
            assert_eq!(Name::decode(name.as_bytes()), Some((slot, cookie)));
            let upper = name.as_bytes().to_ascii_uppercase();
            assert_eq!(Name::decode(&upper), Some((slot, cookie)));
            let branch = [MAGIC, name.as_bytes()].concat();
            assert_eq!(Name::decode_branch(&branch), Some((slot, cookie)));
        }
        assert_eq!(Name::decode(b"00000000000000000000000g"), None);
        assert_eq!(Name::decode(b"0"), None);
        assert_eq!(Name::decode_branch(b"z9hG4b"), None);
    }
}
