//! Fingerprints of certificates in session descriptions (RFC 8122).

use core::fmt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;

/// A hash function for certificate fingerprints, weakest first. MD2 and MD5 must not be used (RFC 8122 section 5) and
/// are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HashFunction {
    /// `sha-1`, sent only by old phones.
    Sha1,
    /// `sha-224`
    Sha224,
    /// `sha-256`
    Sha256,
    /// `sha-384`
    Sha384,
    /// `sha-512`
    Sha512,
}

impl HashFunction {
    /// All, weakest first.
    pub const ALL: [HashFunction; 5] = [
        HashFunction::Sha1,
        HashFunction::Sha224,
        HashFunction::Sha256,
        HashFunction::Sha384,
        HashFunction::Sha512,
    ];

    /// The name in `a=fingerprint`.
    pub const fn name(self) -> &'static str {
        match self {
            HashFunction::Sha1 => "sha-1",
            HashFunction::Sha224 => "sha-224",
            HashFunction::Sha256 => "sha-256",
            HashFunction::Sha384 => "sha-384",
            HashFunction::Sha512 => "sha-512",
        }
    }

    /// The function of that name; names are case-insensitive.
    pub fn from_name(name: &[u8]) -> Option<HashFunction> {
        HashFunction::ALL
            .into_iter()
            .find(|hash| hash.name().as_bytes().eq_ignore_ascii_case(name))
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            HashFunction::Sha1 => {
                let mut hash = sha1::Sha1::default();
                sha1::Digest::update(&mut hash, bytes);
                sha1::Digest::finalize(hash).to_vec()
            }
            HashFunction::Sha224 => Sha224::digest(bytes).to_vec(),
            HashFunction::Sha256 => Sha256::digest(bytes).to_vec(),
            HashFunction::Sha384 => Sha384::digest(bytes).to_vec(),
            HashFunction::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    const fn length(self) -> usize {
        match self {
            HashFunction::Sha1 => 20,
            HashFunction::Sha224 => 28,
            HashFunction::Sha256 => 32,
            HashFunction::Sha384 => 48,
            HashFunction::Sha512 => 64,
        }
    }
}

/// A certificate's fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CertificateFingerprint {
    hash: HashFunction,
    value: Vec<u8>,
}

impl CertificateFingerprint {
    /// The fingerprint of a certificate in DER form.
    pub fn of(hash: HashFunction, certificate: &[u8]) -> CertificateFingerprint {
        CertificateFingerprint {
            hash,
            value: hash.digest(certificate),
        }
    }

    /// Parses hash function and value of `a=fingerprint`; `None` if the function is not supported, or the value is
    /// not a sequence of colon-separated pairs of hexadecimal digits of the function's length.
    pub fn parse(hash: &[u8], value: &[u8]) -> Option<CertificateFingerprint> {
        let hash = HashFunction::from_name(hash)?;
        let bytes = value.split(|byte| *byte == b':').map(|pair| {
            let [high, low] = pair else { return None };
            let digit = |digit: &u8| char::from(*digit).to_digit(16);
            Some((digit(high)? << 4 | digit(low)?) as u8)
        });
        let value: Vec<u8> = bytes.collect::<Option<_>>()?;
        (value.len() == hash.length()).then_some(CertificateFingerprint { hash, value })
    }

    /// The hash function.
    pub fn hash(&self) -> HashFunction {
        self.hash
    }
}

impl fmt::Display for CertificateFingerprint {
    /// The attribute's value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hash.name())?;
        for (nth, byte) in self.value.iter().enumerate() {
            write!(f, "{}{byte:02X}", if nth == 0 { ' ' } else { ':' })?;
        }
        Ok(())
    }
}

/// Whether a certificate matches one of the signalled fingerprints; of several functions only the strongest counts
/// (RFC 8122 section 5).
pub fn matches(signalled: &[CertificateFingerprint], certificate: &[u8]) -> bool {
    let Some(strongest) = signalled.iter().map(|one| one.hash).max() else {
        return false;
    };
    let own = strongest.digest(certificate);
    signalled
        .iter()
        .filter(|one| one.hash == strongest)
        .any(|one| bool::from(one.value.ct_eq(&own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_round_trip() {
        for hash in HashFunction::ALL {
            let one = CertificateFingerprint::of(hash, b"certificate");
            let text = one.to_string();
            let (name, value) = text.split_once(' ').unwrap();
            assert_eq!(
                CertificateFingerprint::parse(name.as_bytes(), value.as_bytes()),
                Some(one.clone())
            );
            let lower = value.to_ascii_lowercase();
            assert_eq!(
                CertificateFingerprint::parse(
                    &name.to_ascii_uppercase().into_bytes(),
                    lower.as_bytes()
                ),
                Some(one)
            );
            assert_eq!(
                CertificateFingerprint::parse(name.as_bytes(), &value.as_bytes()[3..]),
                None
            );
        }
        for value in ["", "A", "AB:", "AB:C", "AB:XY", ":AB"] {
            assert_eq!(
                CertificateFingerprint::parse(b"sha-1", value.as_bytes()),
                None
            );
        }
        assert_eq!(
            CertificateFingerprint::parse(b"md5", &b"AA:".repeat(16)[..47]),
            None
        );
        // The hash of the empty string, from FIPS 180-4.
        assert!(
            CertificateFingerprint::of(HashFunction::Sha256, b"")
                .to_string()
                .starts_with("sha-256 E3:B0:C4:42:98:FC:1C:14")
        );
        assert!(
            CertificateFingerprint::of(HashFunction::Sha1, b"")
                .to_string()
                .starts_with("sha-1 DA:39:A3:EE:5E:6B:4B:0D")
        );
    }

    #[test]
    fn strongest_hash_function_decides() {
        let right = CertificateFingerprint::of(HashFunction::Sha256, b"right");
        let other = CertificateFingerprint::of(HashFunction::Sha256, b"other");
        let weak = CertificateFingerprint::of(HashFunction::Sha1, b"right");
        assert!(matches(std::slice::from_ref(&right), b"right"));
        assert!(
            matches(&[other.clone(), right.clone()], b"right"),
            "a set of certificates"
        );
        assert!(
            !matches(&[weak.clone(), other.clone()], b"right"),
            "sha-256 decides"
        );
        assert!(matches(&[weak], b"right"));
        assert!(!matches(&[], b"right"));
    }
}
