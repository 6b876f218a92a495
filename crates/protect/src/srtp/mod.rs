//! SRTP and SRTCP (RFC 3711, RFC 6188, RFC 7714): packets sealed and opened in place, without an allocation per packet.
//!
//! [`Outbound`] holds what one side seals with, [`Inbound`] what it opens with. Either has one or more master keys and makes
//! its own table of synchronisation sources as they appear: nothing has to be known about a source beforehand. Keys come
//! from [`crate::sdes`] or [`crate::dtls`].
//!
//! What never happens: an index is sealed twice under one key (that would give the keystream away); a source enters the
//! table before one of its packets proved that it knows the key (that would let a stranger fill it); an index is taken in
//! twice; tags are compared in a time that depends on where they differ.

mod derive;
mod inbound;
mod key;
mod keyring;
mod outbound;
mod suite;
mod transform;
mod window;

pub use inbound::Inbound;
pub use key::{KeyError, MAX_MKI, MAX_SRTCP_PACKETS, MAX_SRTP_PACKETS, MasterKey, Options};
pub use keyring::{KeyUse, MAX_KEYS};
pub use outbound::Outbound;
pub use suite::{CipherKind, Suite};
pub use window::{DEFAULT_WINDOW, MAX_WINDOW, MIN_WINDOW};

use core::fmt;
use engine::DropReason;

/// The most that sealing adds to a packet, identifier of 128 bytes included: the tail room that is always enough.
pub const MAX_OVERHEAD: usize = 16 + 4 + MAX_MKI;

/// Why a packet was not sealed or opened. Each has its [`DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not RTP or RTCP, or too short for index, MKI and tag.
    Malformed,
    /// The MKI is none of ours.
    UnknownMki,
    /// No key is valid for this index, or there is none at all.
    NoKey,
    /// The key has been used as often as it may be.
    KeyExhausted,
    /// The tag does not match: altered, cut off, or another key.
    Authentication,
    /// The index lies before the replay window.
    TooOld,
    /// The index was taken in before.
    Replayed,
    /// The table of sources is full.
    TooManySources,
    /// The buffer is too short for what sealing adds.
    NoRoom,
    /// Sealing would use a keystream a second time, or might.
    IndexReused,
}

impl Failure {
    /// What it is counted as.
    pub const fn reason(self) -> DropReason {
        match self {
            Failure::Malformed => DropReason::SrtpMalformed,
            Failure::UnknownMki => DropReason::SrtpUnknownMki,
            Failure::NoKey => DropReason::SrtpNoKey,
            Failure::KeyExhausted => DropReason::SrtpKeyExhausted,
            Failure::Authentication => DropReason::SrtpAuthentication,
            Failure::TooOld => DropReason::SrtpTooOld,
            Failure::Replayed => DropReason::SrtpReplayed,
            Failure::TooManySources => DropReason::SrtpTooManySources,
            Failure::NoRoom => DropReason::SrtpNoRoom,
            Failure::IndexReused => DropReason::SrtpIndexReused,
        }
    }
}

impl From<Failure> for DropReason {
    fn from(failure: Failure) -> DropReason {
        failure.reason()
    }
}

impl From<window::Stale> for Failure {
    fn from(stale: window::Stale) -> Failure {
        match stale {
            window::Stale::Replayed => Failure::Replayed,
            window::Stale::TooOld => Failure::TooOld,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason().text())
    }
}

impl std::error::Error for Failure {}

/// Capacities of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Size of the replay window in packets, [`MIN_WINDOW`] to [`MAX_WINDOW`]; rounded up to a multiple of 64. SDES may ask
    /// for more than the default (`WSH`, RFC 4568 section 6.3.7).
    pub window: usize,
    /// Synchronisation sources that are kept.
    pub sources: usize,
}

impl Default for ContextLimits {
    fn default() -> Self {
        ContextLimits {
            window: DEFAULT_WINDOW,
            sources: 64,
        }
    }
}

/// Where a source stands: what a standby needs to go on, and a late joiner to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceState {
    /// Synchronisation source.
    pub ssrc: u32,
    /// The highest SRTP index so far: rollover counter times 2^16 plus sequence number.
    pub rtp: Option<u64>,
    /// The highest SRTCP index so far.
    pub rtcp: Option<u64>,
}

/// Both directions of one party's SRTP.
pub struct Contexts {
    /// Seals what we send.
    pub outbound: Outbound,
    /// Opens what we receive.
    pub inbound: Inbound,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").finish_non_exhaustive()
    }
}

/// The fields of an RTP header that matter here.
#[derive(Clone, Copy)]
struct RtpFields {
    sequence: u16,
    ssrc: u32,
}

/// Sequence number and source of a packet that has at least a fixed RTP header.
#[inline]
fn rtp_fields(packet: &[u8]) -> Result<RtpFields, Failure> {
    let Some(&[first, _, s1, s0, _, _, _, _, a, b, c, d]) = packet.first_chunk::<12>() else {
        return Err(Failure::Malformed);
    };
    if first >> 6 != 2 {
        return Err(Failure::Malformed);
    }
    Ok(RtpFields {
        sequence: u16::from_be_bytes([s1, s0]),
        ssrc: u32::from_be_bytes([a, b, c, d]),
    })
}

/// The sender of an RTCP packet that has at least a header and a source.
#[inline]
fn rtcp_sender(packet: &[u8]) -> Result<u32, Failure> {
    match packet.first_chunk::<8>() {
        Some(&[first, _, _, _, a, b, c, d]) if first >> 6 == 2 => {
            Ok(u32::from_be_bytes([a, b, c, d]))
        }
        _ => Err(Failure::Malformed),
    }
}
