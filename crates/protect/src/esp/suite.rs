//! Algorithms and their lengths.

use serde::{Deserialize, Serialize};

/// Encryption of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EspEncryption {
    /// None (RFC 2410).
    Null,
    /// AES in CBC mode, keys of 128, 192 or 256 bits (RFC 3602).
    AesCbc,
    /// AES in counter mode, keys of 128, 192 or 256 bits with a nonce of 32 (RFC 3686).
    AesCtr,
    /// AES-GCM with an ICV of 16 bytes (RFC 4106).
    AesGcm16,
    /// AES-GCM with an ICV of 12 bytes.
    AesGcm12,
    /// AES-GCM with an ICV of 8 bytes.
    AesGcm8,
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// 3DES in CBC mode (RFC 2451).
    TripleDes,
    /// DES in CBC mode (RFC 2405).
    Des,
    /// Blowfish in CBC mode, keys of 40 to 448 bits (RFC 2451).
    Blowfish,
}

impl EspEncryption {
    /// All of them.
    pub const ALL: [EspEncryption; 10] = [
        EspEncryption::Null,
        EspEncryption::AesCbc,
        EspEncryption::AesCtr,
        EspEncryption::AesGcm16,
        EspEncryption::AesGcm12,
        EspEncryption::AesGcm8,
        EspEncryption::ChaCha20Poly1305,
        EspEncryption::TripleDes,
        EspEncryption::Des,
        EspEncryption::Blowfish,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            EspEncryption::Null => "NULL",
            EspEncryption::AesCbc => "AES-CBC",
            EspEncryption::AesCtr => "AES-CTR",
            EspEncryption::AesGcm16 => "AES-GCM-16",
            EspEncryption::AesGcm12 => "AES-GCM-12",
            EspEncryption::AesGcm8 => "AES-GCM-8",
            EspEncryption::ChaCha20Poly1305 => "CHACHA20-POLY1305",
            EspEncryption::TripleDes => "3DES",
            EspEncryption::Des => "DES",
            EspEncryption::Blowfish => "BLOWFISH",
        }
    }

    /// Lengths of a key with its salt or nonce, bytes.
    pub fn accepts_key_length(self, length: usize) -> bool {
        match self {
            EspEncryption::Null => length == 0,
            EspEncryption::AesCbc => matches!(length, 16 | 24 | 32),
            EspEncryption::AesCtr
            | EspEncryption::AesGcm16
            | EspEncryption::AesGcm12
            | EspEncryption::AesGcm8 => matches!(length, 20 | 28 | 36),
            EspEncryption::ChaCha20Poly1305 => length == 36,
            EspEncryption::TripleDes => length == 24,
            EspEncryption::Des => length == 8,
            EspEncryption::Blowfish => (5..=56).contains(&length),
        }
    }

    /// Length of the initialisation vector in a packet, bytes.
    pub const fn iv_length(self) -> usize {
        match self {
            EspEncryption::Null => 0,
            EspEncryption::AesCbc => 16,
            _ => 8,
        }
    }

    /// Multiple of which payload, padding and trailer are (RFC 4303 section 2.4).
    pub const fn alignment(self) -> usize {
        match self {
            EspEncryption::AesCbc => 16,
            EspEncryption::TripleDes | EspEncryption::Des | EspEncryption::Blowfish => 8,
            _ => 4,
        }
    }

    /// Length of the ICV where the cipher authenticates, bytes.
    pub const fn icv_length(self) -> Option<usize> {
        match self {
            EspEncryption::AesGcm16 | EspEncryption::ChaCha20Poly1305 => Some(16),
            EspEncryption::AesGcm12 => Some(12),
            EspEncryption::AesGcm8 => Some(8),
            _ => None,
        }
    }

    /// Whether it must not be used any more (RFC 8221 section 5), or hides nothing.
    pub const fn is_weak(self) -> bool {
        matches!(
            self,
            EspEncryption::Null
                | EspEncryption::TripleDes
                | EspEncryption::Des
                | EspEncryption::Blowfish
        )
    }
}

/// Integrity protection of an association whose cipher has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EspIntegrity {
    /// None.
    None,
    /// HMAC-MD5-96 (RFC 2403).
    HmacMd5,
    /// HMAC-SHA1-96 (RFC 2404).
    HmacSha1,
    /// HMAC-SHA2-256-128 (RFC 4868).
    HmacSha256,
    /// HMAC-SHA2-256 with the 96 bits of Linux kernels before 2.6.33.
    HmacSha256Truncated96,
    /// HMAC-SHA2-384-192 (RFC 4868).
    HmacSha384,
    /// HMAC-SHA2-512-256 (RFC 4868).
    HmacSha512,
}

impl EspIntegrity {
    /// All of them.
    pub const ALL: [EspIntegrity; 7] = [
        EspIntegrity::None,
        EspIntegrity::HmacMd5,
        EspIntegrity::HmacSha1,
        EspIntegrity::HmacSha256,
        EspIntegrity::HmacSha256Truncated96,
        EspIntegrity::HmacSha384,
        EspIntegrity::HmacSha512,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            EspIntegrity::None => "none",
            EspIntegrity::HmacMd5 => "HMAC-MD5-96",
            EspIntegrity::HmacSha1 => "HMAC-SHA1-96",
            EspIntegrity::HmacSha256 => "HMAC-SHA2-256-128",
            EspIntegrity::HmacSha256Truncated96 => "HMAC-SHA2-256-96",
            EspIntegrity::HmacSha384 => "HMAC-SHA2-384-192",
            EspIntegrity::HmacSha512 => "HMAC-SHA2-512-256",
        }
    }

    /// Length of the key, bytes.
    pub const fn key_length(self) -> usize {
        match self {
            EspIntegrity::None => 0,
            EspIntegrity::HmacMd5 => 16,
            EspIntegrity::HmacSha1 => 20,
            EspIntegrity::HmacSha256 | EspIntegrity::HmacSha256Truncated96 => 32,
            EspIntegrity::HmacSha384 => 48,
            EspIntegrity::HmacSha512 => 64,
        }
    }

    /// Length of the ICV, bytes.
    pub const fn icv_length(self) -> usize {
        match self {
            EspIntegrity::None => 0,
            EspIntegrity::HmacMd5
            | EspIntegrity::HmacSha1
            | EspIntegrity::HmacSha256Truncated96 => 12,
            EspIntegrity::HmacSha256 => 16,
            EspIntegrity::HmacSha384 => 24,
            EspIntegrity::HmacSha512 => 32,
        }
    }

    /// Whether it must not be used any more (RFC 8221 section 6).
    pub const fn is_weak(self) -> bool {
        matches!(self, EspIntegrity::HmacMd5)
    }
}

/// Encryption with integrity protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EspSuite {
    /// Encryption.
    pub encryption: EspEncryption,
    /// Integrity; [`EspIntegrity::None`] with a cipher that authenticates.
    pub integrity: EspIntegrity,
}

impl EspSuite {
    /// A suite of both.
    pub const fn new(encryption: EspEncryption, integrity: EspIntegrity) -> EspSuite {
        EspSuite {
            encryption,
            integrity,
        }
    }

    /// Length of the ICV, bytes.
    pub const fn icv_length(&self) -> usize {
        match self.encryption.icv_length() {
            Some(length) => length,
            None => self.integrity.icv_length(),
        }
    }

    /// Whether packets are authenticated.
    pub const fn authenticates(&self) -> bool {
        self.icv_length() != 0
    }

    /// Whether it may be used with `allow_weak` only: a weak algorithm, or encryption without integrity protection,
    /// which an active attacker defeats (RFC 8221 section 4).
    pub const fn is_weak(&self) -> bool {
        self.encryption.is_weak() || self.integrity.is_weak() || !self.authenticates()
    }

    /// Length of a packet from the SPI on for a payload, without TFC padding.
    pub const fn packet_length(&self, payload: usize) -> usize {
        let plain = (payload + 2).next_multiple_of(self.encryption.alignment());
        8 + self.encryption.iv_length() + plain + self.icv_length()
    }

    /// All suites that RFC 4303 allows: every combination but NULL without integrity, and ciphers that authenticate
    /// without a second algorithm.
    pub fn all() -> impl Iterator<Item = EspSuite> {
        EspEncryption::ALL.into_iter().flat_map(|encryption| {
            EspIntegrity::ALL
                .into_iter()
                .map(move |integrity| EspSuite::new(encryption, integrity))
                .filter(|suite| suite.is_combination())
        })
    }

    /// Whether encryption and integrity can be used together.
    pub const fn is_combination(&self) -> bool {
        let none = matches!(self.integrity, EspIntegrity::None);
        if self.encryption.icv_length().is_some() {
            return none;
        }
        // Counter mode without integrity lets an attacker flip any bit (RFC 3686 section 4).
        !(none && matches!(self.encryption, EspEncryption::Null | EspEncryption::AesCtr))
    }
}

impl core::fmt::Display for EspSuite {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.encryption.name())?;
        match self.encryption.icv_length() {
            Some(_) => Ok(()),
            None => write!(f, "+{}", self.integrity.name()),
        }
    }
}
