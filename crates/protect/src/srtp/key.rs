//! Master keys with their negotiated parameters.

use super::Suite;
use core::fmt;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Limit of SRTP packets under one master key (RFC 3711 section 9.2).
pub const MAX_SRTP_PACKETS: u64 = 1 << 48;
/// Limit of SRTCP packets under one master key (RFC 3711 section 9.2).
pub const MAX_SRTCP_PACKETS: u64 = 1 << 31;
/// Length limit of a master key identifier, bytes (RFC 4568 section 6.1).
pub const MAX_MKI: usize = 128;

/// A master key with its negotiated parameters.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterKey {
    pub(super) suite: Suite,
    pub(super) secret: Zeroizing<Vec<u8>>,
    pub(super) mki: Vec<u8>,
    pub(super) lifetime: u64,
    pub(super) range: Option<(u64, u64)>,
    pub(super) options: Options,
}

/// Negotiated deviations from the suite (RFC 4568 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// SRTP is not encrypted; it keeps its tag.
    pub unencrypted_srtp: bool,
    /// SRTCP is not encrypted; it keeps its tag.
    pub unencrypted_srtcp: bool,
    /// SRTP has no tag, and no protection from forgery and replay. SRTCP always has its tag.
    pub unauthenticated_srtp: bool,
    /// Session keys are derived again every 2^n packets, 1 to 24; 0: once (RFC 3711 section 4.3.1, RFC 4568 section
    /// 6.3.1).
    pub key_derivation_rate: u8,
}

/// Reason for which a master key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Key and salt do not have the suite's length.
    Length {
        /// Length required by the suite, bytes.
        required: usize,
        /// Actual length, bytes.
        actual: usize,
    },
    /// The master key identifier is longer than 128 bytes, or empty.
    Mki,
    /// The lifetime is zero or above 2^48 packets.
    Lifetime,
    /// The range of indices is empty or exceeds 48 bits.
    Range,
    /// The key derivation rate is above 2^24.
    KeyDerivationRate,
    /// An AEAD suite requires its tag.
    Unauthenticated,
    /// Identifiers of one context must have equal lengths and different values (RFC 3711 section 3.1, RFC 4568
    /// section 6.1).
    MkiConflict,
    /// The limit of keys is reached; see [`super::MAX_KEYS`].
    TooManyKeys,
    /// There is no key with that identifier.
    NoSuchKey,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length { required, actual } => {
                write!(
                    f,
                    "key and salt have {actual} bytes, the suite requires {required}"
                )
            }
            KeyError::Mki => f.write_str("a master key identifier has 1 to 128 bytes"),
            KeyError::Lifetime => f.write_str("a key's lifetime is 1 to 2^48 packets"),
            KeyError::Range => f.write_str("the range of indices is empty or above 2^48"),
            KeyError::KeyDerivationRate => f.write_str("the key derivation rate is 0 to 24"),
            KeyError::Unauthenticated => {
                f.write_str("an AEAD suite requires authentication (RFC 7714)")
            }
            KeyError::MkiConflict => {
                f.write_str("master key identifiers must have equal lengths and different values")
            }
            KeyError::TooManyKeys => f.write_str("too many master keys"),
            KeyError::NoSuchKey => f.write_str("no master key has that identifier"),
        }
    }
}

impl std::error::Error for KeyError {}

impl MasterKey {
    /// `key_and_salt`: the master key followed by the master salt, as in SDES.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn new(suite: Suite, key_and_salt: &[u8]) -> Result<MasterKey, KeyError> {
        let required = suite.key_and_salt_length();
        if key_and_salt.len() != required {
            return Err(KeyError::Length {
                required,
                actual: key_and_salt.len(),
            });
        }
        Ok(MasterKey {
            suite,
            secret: Zeroizing::new(key_and_salt.to_vec()),
            mki: Vec::new(),
            lifetime: MAX_SRTP_PACKETS,
            range: None,
            options: Options::default(),
        })
    }

    /// Generates a random key.
    pub fn generate(suite: Suite, entropy: &mut engine::Entropy) -> MasterKey {
        let mut secret = Zeroizing::new(vec![0; suite.key_and_salt_length()]);
        entropy.fill(&mut secret);
        MasterKey {
            suite,
            secret,
            mki: Vec::new(),
            lifetime: MAX_SRTP_PACKETS,
            range: None,
            options: Options::default(),
        }
    }

    /// Sets an identifier, which every packet carries (RFC 3711 section 3.1).
    ///
    /// # Errors
    /// [`KeyError::Mki`].
    pub fn with_mki(mut self, mki: &[u8]) -> Result<MasterKey, KeyError> {
        if mki.is_empty() || mki.len() > MAX_MKI {
            return Err(KeyError::Mki);
        }
        self.mki = mki.to_vec();
        Ok(self)
    }

    /// Sets the limit of packets, for SRTP and SRTCP each; SRTCP is also bounded by [`MAX_SRTCP_PACKETS`].
    ///
    /// # Errors
    /// [`KeyError::Lifetime`].
    pub fn with_lifetime(mut self, packets: u64) -> Result<MasterKey, KeyError> {
        if packets == 0 || packets > MAX_SRTP_PACKETS {
            return Err(KeyError::Lifetime);
        }
        self.lifetime = packets;
        Ok(self)
    }

    /// Restricts the key to SRTP indices `from` to `to`, inclusive: `<From, To>` of RFC 3711 section 8.1.1.
    ///
    /// # Errors
    /// [`KeyError::Range`].
    pub fn with_range(mut self, from: u64, to: u64) -> Result<MasterKey, KeyError> {
        if from > to || to >= MAX_SRTP_PACKETS {
            return Err(KeyError::Range);
        }
        self.range = Some((from, to));
        Ok(self)
    }

    /// Sets negotiated deviations from the suite.
    ///
    /// # Errors
    /// [`KeyError::KeyDerivationRate`], [`KeyError::Unauthenticated`].
    pub fn with_options(mut self, options: Options) -> Result<MasterKey, KeyError> {
        if options.key_derivation_rate > 24 {
            return Err(KeyError::KeyDerivationRate);
        }
        if options.unauthenticated_srtp && self.suite.cipher() == super::CipherKind::Gcm {
            return Err(KeyError::Unauthenticated);
        }
        self.options = options;
        Ok(self)
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Master key and master salt; secret.
    pub fn key_and_salt(&self) -> &[u8] {
        &self.secret
    }

    /// The identifier; empty if there is none.
    pub fn mki(&self) -> &[u8] {
        &self.mki
    }

    /// The limit of packets.
    pub fn lifetime(&self) -> u64 {
        self.lifetime
    }

    /// The negotiated deviations.
    pub fn options(&self) -> Options {
        self.options
    }

    pub(super) fn key(&self) -> &[u8] {
        self.secret.split_at(self.suite.key_length()).0
    }

    pub(super) fn salt(&self) -> &[u8] {
        self.secret.split_at(self.suite.key_length()).1
    }
}

impl fmt::Debug for MasterKey {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey")
            .field("suite", &self.suite)
            .field("mki", &self.mki)
            .field("lifetime", &self.lifetime)
            .field("range", &self.range)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
