//! The description of a security association, from which both directions' values are made.

use super::{
    AddressPrefix, EspEncryption, EspIntegrity, EspSuite, MAX_ESP_WINDOW, SaLifetime,
    TrafficSelector,
};
use crate::cipher::{HmacSha256, PacketMac};
use core::fmt;
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use wire::esp::LAST_RESERVED_SPI;
use zeroize::Zeroizing;

/// Keys of an association. They are wiped when dropped, not printed, and not part of a written association.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EspKeys {
    encryption: Zeroizing<Vec<u8>>,
    integrity: Zeroizing<Vec<u8>>,
}

impl EspKeys {
    /// Keys as IKE and key files order them: salt or nonce of 4 bytes behind the encryption key (RFC 4106 section 8.1,
    /// RFC 7634 section 2.2).
    pub fn new(encryption: &[u8], integrity: &[u8]) -> EspKeys {
        EspKeys {
            encryption: Zeroizing::new(encryption.to_vec()),
            integrity: Zeroizing::new(integrity.to_vec()),
        }
    }

    /// The encryption key with its salt; secret.
    pub fn expose_encryption(&self) -> &[u8] {
        &self.encryption
    }

    /// A value by which a change of the keys is noticed; it does not reveal them.
    pub fn check_value(&self) -> [u8; 8] {
        let mut both = Zeroizing::new(Vec::with_capacity(128));
        both.push(self.encryption.len() as u8);
        both.extend_from_slice(&self.encryption);
        both.extend_from_slice(&self.integrity);
        let tag = HmacSha256::new(&both).tag(b"ESP key check value", &[]);
        let mut value = [0; 8];
        value.iter_mut().zip(tag).for_each(|(to, from)| *to = from);
        value
    }

    /// The integrity key; secret.
    pub fn expose_integrity(&self) -> &[u8] {
        &self.integrity
    }
}

impl fmt::Debug for EspKeys {
    /// Omits the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspKeys").finish_non_exhaustive()
    }
}

/// Mode of an association (RFC 4301 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaMode {
    /// The payload of an IP packet between its own ends.
    Transport,
    /// Whole IP packets between two gateways.
    Tunnel {
        /// Source address of the outer header.
        source: IpAddr,
        /// Destination address of the outer header.
        destination: IpAddr,
    },
}

/// UDP encapsulation behind a NAT (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpEncapsulation {
    /// Source port of the association's packets.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// The bit Don't Fragment of an outer IPv4 header (RFC 4301 section 8.1). An inner IPv6 packet counts as if it had the
/// bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DfPolicy {
    /// As in the inner header.
    #[default]
    Copy,
    /// Set.
    Set,
    /// Clear.
    Clear,
}

/// The ECN field of an outer header (RFC 6040 section 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EcnPolicy {
    /// Copied from the inner header.
    #[default]
    Normal,
    /// Zero: for peers that ignore the field when they open.
    Compatibility,
}

/// A security association of one direction. It can be written out and read back; keys are not part of it and are
/// added by [`SaSpec::with_keys`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaSpec {
    /// Security parameter index, above 255.
    pub spi: u32,
    /// Algorithms.
    pub suite: EspSuite,
    /// Keys.
    #[serde(skip)]
    pub keys: EspKeys,
    /// Transport or tunnel.
    pub mode: SaMode,
    /// Extended sequence numbers of 64 bits (RFC 4303 section 2.2.1).
    pub extended_sequence: bool,
    /// Replay window in packets, up to [`MAX_ESP_WINDOW`], rounded up to a multiple of 64; 0: no replay protection.
    pub replay_window: usize,
    /// Packets that the association carries; empty: all.
    pub selectors: Vec<TrafficSelector>,
    /// Bounds.
    pub lifetime: SaLifetime,
    /// UDP around ESP.
    pub encapsulation: Option<UdpEncapsulation>,
    /// The DSCP of outer headers; copied from the inner header if absent.
    pub dscp: Option<u8>,
    /// ECN of outer headers.
    pub ecn: EcnPolicy,
    /// Don't Fragment of outer headers.
    pub df: DfPolicy,
    /// Tunnel mode: inner packets are extended to this length by padding for traffic flow confidentiality (RFC 4303
    /// section 2.7); longer ones are not. 0: none.
    pub tfc_length: usize,
    /// Opens packets with next header 254, the shortcuts between two ends of this program, in both modes.
    #[serde(default)]
    pub accepts_direct: bool,
    /// Allows algorithms that must not be used any more, encryption without integrity, and NULL encryption.
    pub allow_weak: bool,
}

impl SaSpec {
    /// An association in transport mode with defaults: a window of 64 packets, all packets, no bounds.
    pub fn new(spi: u32, suite: EspSuite, keys: EspKeys) -> SaSpec {
        SaSpec {
            spi,
            suite,
            keys,
            mode: SaMode::Transport,
            extended_sequence: false,
            replay_window: if suite.authenticates() {
                super::DEFAULT_ESP_WINDOW
            } else {
                0
            },
            selectors: Vec::new(),
            lifetime: SaLifetime::default(),
            encapsulation: None,
            dscp: None,
            ecn: EcnPolicy::Normal,
            df: DfPolicy::Copy,
            tfc_length: 0,
            accepts_direct: false,
            allow_weak: false,
        }
    }

    /// The same in tunnel mode between these addresses.
    pub fn tunnel(mut self, source: IpAddr, destination: IpAddr) -> SaSpec {
        self.mode = SaMode::Tunnel {
            source,
            destination,
        };
        self
    }

    /// The same with keys, after it was read.
    pub fn with_keys(mut self, keys: EspKeys) -> SaSpec {
        self.keys = keys;
        self
    }

    /// Checks the description, except for the length of the keys.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), SaError> {
        if self.spi <= LAST_RESERVED_SPI {
            return Err(SaError::ReservedSpi(self.spi));
        }
        if !self.suite.is_combination() {
            return Err(SaError::Combination(self.suite));
        }
        if self.suite.is_weak() && !self.allow_weak {
            return Err(SaError::Weak(self.suite));
        }
        let integrity = self.suite.integrity;
        let actual = self.keys.expose_integrity().len();
        if actual != integrity.key_length() {
            return Err(SaError::IntegrityKey { integrity, actual });
        }
        if self.replay_window > MAX_ESP_WINDOW {
            return Err(SaError::ReplayWindow(self.replay_window));
        }
        if self.replay_window > 0 && !self.suite.authenticates() {
            return Err(SaError::ReplayWithoutIntegrity);
        }
        if self.extended_sequence && self.replay_window == 0 {
            return Err(SaError::ExtendedWithoutReplay);
        }
        if self.dscp.is_some_and(|dscp| dscp > 63) {
            return Err(SaError::Dscp);
        }
        match self.mode {
            SaMode::Tunnel {
                source,
                destination,
            } if source.is_ipv4() != destination.is_ipv4() => Err(SaError::AddressFamilies),
            SaMode::Transport if self.tfc_length > 0 => Err(SaError::TfcInTransport),
            _ => Ok(()),
        }
    }
}

/// Mistake in the description of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaError {
    /// The SPI is reserved.
    ReservedSpi(u32),
    /// An SPI that is in use already.
    DuplicateSpi(u32),
    /// The table is full.
    TableFull,
    /// A remote network of two tunnels.
    DuplicateNetwork(AddressPrefix),
    /// The algorithms cannot be used together.
    Combination(EspSuite),
    /// Allowed with `allow_weak` only.
    Weak(EspSuite),
    /// The encryption key has a wrong length.
    EncryptionKey {
        /// The algorithm.
        encryption: EspEncryption,
        /// Length of key and salt, bytes.
        actual: usize,
    },
    /// The integrity key has a wrong length.
    IntegrityKey {
        /// The algorithm.
        integrity: EspIntegrity,
        /// Length, bytes.
        actual: usize,
    },
    /// The window is too large.
    ReplayWindow(usize),
    /// Replay protection requires integrity protection.
    ReplayWithoutIntegrity,
    /// Extended sequence numbers require replay protection.
    ExtendedWithoutReplay,
    /// A DSCP above 63.
    Dscp,
    /// Source and destination of a tunnel are of different families.
    AddressFamilies,
    /// TFC padding in transport mode.
    TfcInTransport,
    /// A state that does not belong to the description.
    State,
}

impl fmt::Display for SaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaError::ReservedSpi(spi) => write!(f, "SPI {spi} is reserved; use 256 or more"),
            SaError::DuplicateSpi(spi) => write!(f, "SPI {spi:#010x} is in use already"),
            SaError::DuplicateNetwork(network) => {
                write!(f, "two tunnels have the remote network {network}")
            }
            SaError::TableFull => f.write_str("the table of security associations is full"),
            SaError::Combination(suite) => write!(
                f,
                "{suite}: a cipher that authenticates takes no integrity algorithm; NULL and AES-CTR require one"
            ),
            SaError::Weak(suite) => write!(
                f,
                "{suite} is weak (RFC 8221); choose AES-GCM-16 or AES-CBC with HMAC-SHA2-256-128, or set allow_weak = true"
            ),
            SaError::EncryptionKey { encryption, actual } => write!(
                f,
                "an encryption key of {actual} bytes does not fit {} (a salt of 4 bytes is part of keys for AES-CTR, AES-GCM and ChaCha20)",
                encryption.name()
            ),
            SaError::IntegrityKey { integrity, actual } => write!(
                f,
                "an integrity key of {actual} bytes does not fit {}, which requires {}",
                integrity.name(),
                integrity.key_length()
            ),
            SaError::ReplayWindow(window) => write!(
                f,
                "a replay window of {window} packets is larger than {MAX_ESP_WINDOW}"
            ),
            SaError::ReplayWithoutIntegrity => f.write_str(
                "replay protection requires integrity protection; set the replay window to 0 or choose an integrity algorithm",
            ),
            SaError::ExtendedWithoutReplay => {
                f.write_str("extended sequence numbers require a replay window")
            }
            SaError::Dscp => f.write_str("a DSCP is 0 to 63"),
            SaError::AddressFamilies => {
                f.write_str("source and destination of a tunnel are of different address families")
            }
            SaError::TfcInTransport => {
                f.write_str("padding for traffic flow confidentiality requires tunnel mode")
            }
            SaError::State => {
                f.write_str("the state does not belong to this security association")
            }
        }
    }
}

impl std::error::Error for SaError {}
