//! Crypto suites: names and lengths.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A set of transforms (RFC 4568 section 6.2, RFC 5764 section 4.1.2, RFC 6188 section 4, RFC 7714 section 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Suite {
    /// AES-128 in counter mode, HMAC-SHA1 with 80 bits.
    AesCm128HmacSha1_80,
    /// AES-128 in counter mode, HMAC-SHA1 with 32 bits (80 for SRTCP).
    AesCm128HmacSha1_32,
    /// AES-192 in counter mode, HMAC-SHA1 with 80 bits.
    AesCm192HmacSha1_80,
    /// AES-192 in counter mode, HMAC-SHA1 with 32 bits (80 for SRTCP).
    AesCm192HmacSha1_32,
    /// AES-256 in counter mode, HMAC-SHA1 with 80 bits.
    AesCm256HmacSha1_80,
    /// AES-256 in counter mode, HMAC-SHA1 with 32 bits (80 for SRTCP).
    AesCm256HmacSha1_32,
    /// AES-128 in Galois/counter mode, tag of 128 bits.
    AeadAes128Gcm,
    /// AES-256 in Galois/counter mode, tag of 128 bits.
    AeadAes256Gcm,
    /// No encryption, HMAC-SHA1 with 80 bits.
    NullHmacSha1_80,
    /// No encryption, HMAC-SHA1 with 32 bits (80 for SRTCP).
    NullHmacSha1_32,
}

/// The encryption transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CipherKind {
    /// AES in counter mode.
    Counter,
    /// AES in Galois/counter mode, which also authenticates.
    Gcm,
    /// None.
    Null,
}

impl Suite {
    /// All suites, strongest first.
    pub const ALL: [Suite; 10] = [
        Suite::AeadAes256Gcm,
        Suite::AeadAes128Gcm,
        Suite::AesCm256HmacSha1_80,
        Suite::AesCm192HmacSha1_80,
        Suite::AesCm128HmacSha1_80,
        Suite::AesCm256HmacSha1_32,
        Suite::AesCm192HmacSha1_32,
        Suite::AesCm128HmacSha1_32,
        Suite::NullHmacSha1_80,
        Suite::NullHmacSha1_32,
    ];

    /// The name in SDP. The two without encryption have no registered name (SDES uses `UNENCRYPTED_SRTP`, RFC 4568
    /// section 6.3.3); theirs is the one of RFC 5764 without its first word.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::AesCm128HmacSha1_80 => "AES_CM_128_HMAC_SHA1_80",
            Suite::AesCm128HmacSha1_32 => "AES_CM_128_HMAC_SHA1_32",
            Suite::AesCm192HmacSha1_80 => "AES_192_CM_HMAC_SHA1_80",
            Suite::AesCm192HmacSha1_32 => "AES_192_CM_HMAC_SHA1_32",
            Suite::AesCm256HmacSha1_80 => "AES_256_CM_HMAC_SHA1_80",
            Suite::AesCm256HmacSha1_32 => "AES_256_CM_HMAC_SHA1_32",
            Suite::AeadAes128Gcm => "AEAD_AES_128_GCM",
            Suite::AeadAes256Gcm => "AEAD_AES_256_GCM",
            Suite::NullHmacSha1_80 => "NULL_HMAC_SHA1_80",
            Suite::NullHmacSha1_32 => "NULL_HMAC_SHA1_32",
        }
    }

    /// The suite of a name. Names are case-insensitive in their ABNF (RFC 4568 section 9.2, RFC 5234 section 2.3).
    pub fn from_name(name: &[u8]) -> Option<Suite> {
        Suite::ALL
            .into_iter()
            .find(|suite| suite.name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether the suite has an SDES name (IANA registry "SRTP Crypto Suite Registrations").
    pub const fn is_registered_for_sdes(self) -> bool {
        !matches!(self.cipher(), CipherKind::Null)
    }

    /// The DTLS-SRTP protection profile (RFC 5764 section 4.1.2, RFC 7714 section 14.2), if there is one.
    pub const fn dtls_profile(self) -> Option<u16> {
        match self {
            Suite::AesCm128HmacSha1_80 => Some(1),
            Suite::AesCm128HmacSha1_32 => Some(2),
            Suite::NullHmacSha1_80 => Some(5),
            Suite::NullHmacSha1_32 => Some(6),
            Suite::AeadAes128Gcm => Some(7),
            Suite::AeadAes256Gcm => Some(8),
            _ => None,
        }
    }

    /// The encryption transform.
    pub const fn cipher(self) -> CipherKind {
        match self {
            Suite::AeadAes128Gcm | Suite::AeadAes256Gcm => CipherKind::Gcm,
            Suite::NullHmacSha1_80 | Suite::NullHmacSha1_32 => CipherKind::Null,
            _ => CipherKind::Counter,
        }
    }

    /// Length of the master key and of the session key, bytes.
    pub const fn key_length(self) -> usize {
        match self {
            Suite::AesCm192HmacSha1_80 | Suite::AesCm192HmacSha1_32 => 24,
            Suite::AesCm256HmacSha1_80 | Suite::AesCm256HmacSha1_32 | Suite::AeadAes256Gcm => 32,
            _ => 16,
        }
    }

    /// Length of the master salt and of the session salt, bytes.
    pub const fn salt_length(self) -> usize {
        match self.cipher() {
            CipherKind::Gcm => 12,
            _ => 14,
        }
    }

    /// Length of master key and master salt together, bytes.
    pub const fn key_and_salt_length(self) -> usize {
        self.key_length() + self.salt_length()
    }

    /// Length of the tag of an SRTP packet, bytes.
    pub const fn rtp_tag_length(self) -> usize {
        match self {
            Suite::AesCm128HmacSha1_32
            | Suite::AesCm192HmacSha1_32
            | Suite::AesCm256HmacSha1_32
            | Suite::NullHmacSha1_32 => 4,
            Suite::AeadAes128Gcm | Suite::AeadAes256Gcm => 16,
            _ => 10,
        }
    }

    /// Length of the tag of an SRTCP packet, bytes: at least 80 bits (RFC 3711 section 5.2, RFC 4568 section 6.2.2).
    pub const fn rtcp_tag_length(self) -> usize {
        match self.cipher() {
            CipherKind::Gcm => 16,
            _ => 10,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for suite in Suite::ALL {
            assert_eq!(Suite::from_name(suite.name().as_bytes()), Some(suite));
            assert!(suite.rtcp_tag_length() >= 10);
        }
        assert_eq!(
            Suite::from_name(b"aes_cm_128_hmac_sha1_80"),
            Some(Suite::AesCm128HmacSha1_80)
        );
        assert_eq!(Suite::from_name(b"F8_128_HMAC_SHA1_80"), None);
    }
}
