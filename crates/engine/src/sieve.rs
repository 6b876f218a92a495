//! What a socket may drop before anybody reads it, while there is far too much to do.

/// Datagrams shorter than this always come through: their beginning does not tell them apart.
const LEAST: usize = Sieve::SEEN;
/// Multiplier of the mix: odd, with its bits spread.
const FACTOR: u32 = 0x9e37_79b1;

/// The beginning of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bytes: [u8; Prefix::LONGEST],
    length: u8,
}

impl Prefix {
    /// The longest that can be told, bytes.
    pub const LONGEST: usize = 64;

    /// `bytes`, cut where they are too long: a shorter prefix holds for more.
    pub fn new(bytes: &[u8]) -> Prefix {
        let mut prefix = Prefix {
            bytes: [0; Prefix::LONGEST],
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

/// Lets a share of the datagrams of one kind through and drops the others. Which, their own beginning decides: a datagram that
/// is sent again fares as it did before, so that nobody gets in late who was turned away first. Everything of another kind
/// comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sieve {
    /// How the datagrams begin that are sifted.
    pub sifted: Prefix,
    /// How those among them begin that come through all the same; an empty one says nothing.
    pub spared: [Prefix; 2],
    /// How many of them come through, of 65,536.
    pub share: u16,
    /// Makes the choice different from what anyone outside can foresee.
    pub salt: u32,
}

impl Sieve {
    /// So many bytes of a datagram decide.
    pub const SEEN: usize = 192;

    /// Where a datagram stands among all that are sifted, 0 to 65,535: it comes through where that is below
    /// [`Sieve::share`]. `None`: it is not sifted.
    pub fn place(&self, bytes: &[u8]) -> Option<u16> {
        let sifted = bytes.len() >= LEAST
            && bytes.starts_with(self.sifted.as_bytes())
            && !self
                .spared
                .iter()
                .any(|spared| spared.length > 0 && bytes.starts_with(spared.as_bytes()));
        sifted.then(|| {
            let (words, _) = bytes.as_chunks::<4>();
            let mix = words
                .iter()
                .take(Sieve::SEEN / 4)
                .fold(self.salt, |mix, word| {
                    let mixed = (mix ^ u32::from_be_bytes(*word)).wrapping_mul(FACTOR);
                    mixed ^ mixed >> 15
                });
            (mix >> 16) as u16
        })
    }

    /// Whether a datagram comes through.
    pub fn passes(&self, bytes: &[u8]) -> bool {
        self.place(bytes).is_none_or(|place| place < self.share)
    }

    /// The multiplier of the mix, for drivers that let the kernel do it.
    pub const fn factor() -> u32 {
        FACTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sieve(share: u16) -> Sieve {
        Sieve {
            sifted: Prefix::new(b"INVITE "),
            spared: [&b"INVITE sip:192.0.2.1:5060"[..], b"INVITE urn:"].map(Prefix::new),
            share,
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
    fn the_share_comes_through_and_what_is_sent_again_fares_the_same() {
        for share in [0u16, 1_000, 6_553, 32_768, 65_535] {
            let sieve = sieve(share);
            let passed = (0..20_000).filter(|n| sieve.passes(&call(*n))).count() as f64;
            let expected = 20_000.0 * f64::from(share) / 65_536.0;
            assert!((passed - expected).abs() <= 300.0, "{share}: {passed}");
            assert_eq!(sieve.passes(&call(5)), sieve.passes(&call(5)));
        }
        // A smaller share is a part of the larger one: nobody is exchanged for another.
        let (small, large) = (sieve(5_000), sieve(20_000));
        assert!((0..5_000).all(|n| !small.passes(&call(n)) || large.passes(&call(n))));
    }

    #[test]
    fn other_datagrams_come_through() {
        let none = sieve(0);
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
