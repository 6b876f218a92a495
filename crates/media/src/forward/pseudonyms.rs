//! CNAMEs of a call in RTCP to a side with topology hiding.

use core::hash::BuildHasher as _;
use engine::HashKey;

/// Length of a pseudonym: 96 bits in Base64 (RFC 7022 section 4.2).
const LENGTH: usize = 16;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Random names in place of the CNAMEs of one call. Each is a keyed hash of session and CNAME, so that streams of one
/// sender keep a common name for the whole call (RFC 3550 section 6.5.1), while other calls have other names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CnamePseudonyms {
    key: HashKey,
    session: u64,
}

impl CnamePseudonyms {
    pub(crate) fn new(key: HashKey, session: u64) -> CnamePseudonyms {
        CnamePseudonyms { key, session }
    }

    /// Writes the pseudonym of a CNAME over it. Returns its length: shorter CNAMEs keep theirs.
    pub(crate) fn write(&self, cname: &mut [u8]) -> usize {
        let half = |number: u8| {
            let hash = self.key.hash_one((number, self.session, &*cname));
            u128::from(hash)
        };
        let mut bits = half(0) << 64 | half(1);
        let length = cname.len().min(LENGTH);
        for byte in cname.iter_mut().take(length) {
            *byte = BASE64.get(bits as usize % 64).copied().unwrap_or(b'A');
            bits >>= 6;
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;

    fn name(key: HashKey, session: u64, cname: &str) -> String {
        let mut bytes = cname.as_bytes().to_vec();
        let length = CnamePseudonyms::new(key, session).write(&mut bytes);
        bytes.truncate(length);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_cname_has_one_pseudonym_for_each_call() {
        let key = HashKey::new(&mut Entropy::from_number(1));
        let other = HashKey::new(&mut Entropy::from_number(2));
        let alice = name(key, 1, "alice@pbx.example.com");
        assert_eq!(alice.len(), LENGTH);
        assert_eq!(alice, name(key, 1, "alice@pbx.example.com"));
        let others = [
            name(key, 1, "bobby@pbx.example.com"),
            name(key, 2, "alice@pbx.example.com"),
            name(other, 1, "alice@pbx.example.com"),
        ];
        assert!(!others.contains(&alice), "{alice} {others:?}");
        assert_eq!(name(key, 1, "a@b").len(), 3);
        assert_eq!(name(key, 1, ""), "");
    }
}
