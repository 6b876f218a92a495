//! The socket filter: the rule by which a socket sheds datagrams before they are read, under overload.

/// Shorter datagrams always pass: their beginnings do not differ enough.
const MIN_BYTES: usize = SocketFilter::HASHED_BYTES;
/// Multiplier of the hash: odd, with evenly spread bits.
const FACTOR: u32 = 0x9e37_79b1;

/// Bytes with which datagrams begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bytes: [u8; Prefix::MAX_BYTES],
    length: u8,
}

impl Prefix {
    /// Maximum length, bytes.
    pub const MAX_BYTES: usize = 32;

    /// The prefix `bytes`, truncated to the maximum length; the shorter prefix then matches more datagrams.
    pub fn new(bytes: &[u8]) -> Prefix {
        let mut prefix = Prefix {
            bytes: [0; Prefix::MAX_BYTES],
            length: 0,
        };
        for (to, from) in prefix.bytes.iter_mut().zip(bytes) {
            *to = *from;
            prefix.length += 1;
        }
        prefix
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }
}

/// Passes a share of the matching datagrams and drops the others. The decision depends on a hash of the beginning of
/// the datagram, so that a retransmission is treated like the first transmission and no call is admitted late. All
/// other datagrams pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFilter {
    /// Prefix of the datagrams that the filter applies to.
    pub matched: Prefix,
    /// Prefixes of matching datagrams that always pass; an empty prefix has no effect.
    pub exempt: [Prefix; SocketFilter::MAX_EXEMPT],
    /// Share of the matching datagrams that passes, of 65,536.
    pub pass_share: u16,
    /// Start value of the hash; makes the decision unpredictable for senders.
    pub salt: u32,
}

impl SocketFilter {
    /// Maximum number of prefixes that always pass.
    pub const MAX_EXEMPT: usize = 6;

    /// These prefixes always pass; those beyond [`SocketFilter::MAX_EXEMPT`] are ignored.
    pub fn exempting<'p>(
        prefixes: impl IntoIterator<Item = &'p [u8]>,
    ) -> [Prefix; SocketFilter::MAX_EXEMPT] {
        let mut exempt = [Prefix::new(b""); SocketFilter::MAX_EXEMPT];
        for (to, from) in exempt.iter_mut().zip(prefixes) {
            *to = Prefix::new(from);
        }
        exempt
    }

    /// Number of bytes that the hash covers.
    pub const HASHED_BYTES: usize = 192;

    /// The rank of a matching datagram, 0 to 65,535: it passes if the rank is below [`SocketFilter::pass_share`].
    /// `None` for datagrams that the filter does not apply to.
    pub fn rank(&self, bytes: &[u8]) -> Option<u16> {
        let matched = bytes.len() >= MIN_BYTES
            && bytes.starts_with(self.matched.as_bytes())
            && !self
                .exempt
                .iter()
                .any(|exempt| exempt.length > 0 && bytes.starts_with(exempt.as_bytes()));
        matched.then(|| {
            let (words, _) = bytes.as_chunks::<4>();
            let hash =
                words
                    .iter()
                    .take(SocketFilter::HASHED_BYTES / 4)
                    .fold(self.salt, |hash, word| {
                        let mixed = (hash ^ u32::from_be_bytes(*word)).wrapping_mul(FACTOR);
                        mixed ^ mixed >> 15
                    });
            (hash >> 16) as u16
        })
    }

    /// Whether a datagram passes.
    pub fn passes(&self, bytes: &[u8]) -> bool {
        self.rank(bytes).is_none_or(|rank| rank < self.pass_share)
    }

    /// The multiplier of the hash, for drivers that compute it in the kernel.
    pub const fn factor() -> u32 {
        FACTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(share: u16) -> SocketFilter {
        SocketFilter {
            matched: Prefix::new(b"INVITE "),
            exempt: SocketFilter::exempting([&b"INVITE sip:192.0.2.1:5060"[..], b"INVITE urn:"]),
            pass_share: share,
            salt: 7,
        }
    }

    fn call(number: u32) -> Vec<u8> {
        let mut text = format!(
            "INVITE sip:service@192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1:5060;branch=z9hG4bK-7-{number}-0\r\n"
        );
        text.push_str(&"X-Filler: x\r\n".repeat(20));
        text.into_bytes()
    }

    #[test]
    fn the_share_passes_and_retransmissions_are_treated_alike() {
        for share in [0u16, 1_000, 6_553, 32_768, 65_535] {
            let filter = filter(share);
            let passed = (0..20_000).filter(|n| filter.passes(&call(*n))).count() as f64;
            let expected = 20_000.0 * f64::from(share) / 65_536.0;
            assert!((passed - expected).abs() <= 300.0, "{share}: {passed}");
            assert_eq!(filter.passes(&call(5)), filter.passes(&call(5)));
        }
        // The datagrams that pass with a smaller share also pass with a larger one.
        let (small, large) = (filter(5_000), filter(20_000));
        assert!((0..5_000).all(|n| !small.passes(&call(n)) || large.passes(&call(n))));
    }

    #[test]
    fn other_datagrams_pass() {
        let none = filter(0);
        assert!(!none.passes(&call(1)));
        let of = |from: &str| {
            let text = String::from_utf8(call(1)).unwrap();
            none.passes(
                text.replacen("INVITE sip:service@192.0.2.1:5060", from, 1)
                    .as_bytes(),
            )
        };
        assert!(of("INVITE sip:192.0.2.1:5060"));
        assert!(of("INVITE urn:service:sos"));
        assert!(of("BYE sip:service@192.0.2.1:5060"));
        assert!(of("SIP/2.0 200 OK"));
        assert!(!of("INVITE sips:service@192.0.2.1:5060"));
        assert!(none.passes(&call(1)[..100]));
        assert!(none.passes(b""));
    }
}
