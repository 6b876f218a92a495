//! SRTP and SRTCP (RFC 3711, RFC 6188, RFC 7714): packets are protected and unprotected in place, without an
//! allocation per packet.
//!
//! [`Outbound`] protects, [`Inbound`] unprotects. Each has one or more master keys and a table of synchronisation
//! sources, which are added as they appear. Keys come from [`crate::sdes`] or [`crate::dtls`].
//!
//! Invariants: no index is protected twice under one key (it would reveal the keystream); a source enters the table
//! only with an authenticated packet (others could fill it); no index is accepted twice; tags are compared in
//! constant time.

mod derive;
mod inbound;
mod key;
mod keyring;
mod outbound;
mod suite;
mod transform;
mod window;

pub use crate::replay::{MAX_WINDOW, MIN_WINDOW};
pub use inbound::Inbound;
pub use key::{KeyError, MAX_MKI, MAX_SRTCP_PACKETS, MAX_SRTP_PACKETS, MasterKey, Options};
pub use keyring::{KeyUse, MAX_KEYS};
pub use outbound::Outbound;
pub use suite::{CipherKind, Suite};
pub use window::DEFAULT_WINDOW;

use core::fmt;
use engine::DropReason;

/// Upper bound of the bytes that protection adds to a packet, with an identifier of 128 bytes: tail room that always
/// suffices.
pub const MAX_OVERHEAD: usize = 16 + 4 + MAX_MKI;

/// Reason for which a packet was not protected or unprotected. Each has its [`DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrtpFailure {
    /// Not RTP or RTCP, or too short for index, MKI and tag.
    Malformed,
    /// No key has this MKI.
    UnknownMki,
    /// No key is valid for this index, or there is none at all.
    NoKey,
    /// The key's lifetime is used up.
    KeyExhausted,
    /// The tag does not match: altered, truncated, or another key.
    Authentication,
    /// The index is below the replay window.
    TooOld,
    /// The index was received before.
    Replayed,
    /// The table of sources is full.
    TooManySources,
    /// The buffer is too short for the protected packet.
    NoRoom,
    /// Protection would reuse a keystream, or might.
    IndexReused,
}

impl SrtpFailure {
    /// The reason under which the packet is counted.
    pub const fn reason(self) -> DropReason {
        match self {
            SrtpFailure::Malformed => DropReason::SrtpMalformed,
            SrtpFailure::UnknownMki => DropReason::SrtpUnknownMki,
            SrtpFailure::NoKey => DropReason::SrtpNoKey,
            SrtpFailure::KeyExhausted => DropReason::SrtpKeyExhausted,
            SrtpFailure::Authentication => DropReason::SrtpAuthentication,
            SrtpFailure::TooOld => DropReason::SrtpTooOld,
            SrtpFailure::Replayed => DropReason::SrtpReplayed,
            SrtpFailure::TooManySources => DropReason::SrtpTooManySources,
            SrtpFailure::NoRoom => DropReason::SrtpBufferTooSmall,
            SrtpFailure::IndexReused => DropReason::SrtpIndexReused,
        }
    }
}

impl From<SrtpFailure> for DropReason {
    fn from(failure: SrtpFailure) -> DropReason {
        failure.reason()
    }
}

impl From<crate::replay::Stale> for SrtpFailure {
    fn from(stale: crate::replay::Stale) -> SrtpFailure {
        match stale {
            crate::replay::Stale::Replayed => SrtpFailure::Replayed,
            crate::replay::Stale::TooOld => SrtpFailure::TooOld,
        }
    }
}

impl fmt::Display for SrtpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason().text())
    }
}

impl std::error::Error for SrtpFailure {}

/// Capacities of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Size of the replay window in packets, [`MIN_WINDOW`] to [`MAX_WINDOW`]; rounded up to a multiple of 64. SDES
    /// may request more than the default (`WSH`, RFC 4568 section 6.3.7).
    pub window: usize,
    /// Largest number of synchronisation sources.
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

/// State of a source: lets a standby continue, and a late joiner begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceState {
    /// Synchronisation source.
    pub ssrc: u32,
    /// The highest SRTP index so far: rollover counter times 2^16 plus sequence number.
    pub rtp: Option<u64>,
    /// The highest SRTCP index so far.
    pub rtcp: Option<u64>,
}

/// Both directions of one side's SRTP.
pub struct Contexts {
    /// Protects sent packets.
    pub outbound: Outbound,
    /// Unprotects received packets.
    pub inbound: Inbound,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").finish_non_exhaustive()
    }
}

/// The fields of an RTP header that SRTP uses.
#[derive(Clone, Copy)]
struct RtpFields {
    sequence: u16,
    ssrc: u32,
}

/// Sequence number and source of a packet; it needs a fixed RTP header.
#[inline]
fn rtp_fields(packet: &[u8]) -> Result<RtpFields, SrtpFailure> {
    let Some(&[first, _, s1, s0, _, _, _, _, a, b, c, d]) = packet.first_chunk::<12>() else {
        return Err(SrtpFailure::Malformed);
    };
    if first >> 6 != 2 {
        return Err(SrtpFailure::Malformed);
    }
    Ok(RtpFields {
        sequence: u16::from_be_bytes([s1, s0]),
        ssrc: u32::from_be_bytes([a, b, c, d]),
    })
}

/// The sender of an RTCP packet; it needs a header and a source.
#[inline]
fn rtcp_sender(packet: &[u8]) -> Result<u32, SrtpFailure> {
    match packet.first_chunk::<8>() {
        Some(&[first, _, _, _, a, b, c, d]) if first >> 6 == 2 => {
            Ok(u32::from_be_bytes([a, b, c, d]))
        }
        _ => Err(SrtpFailure::Malformed),
    }
}
