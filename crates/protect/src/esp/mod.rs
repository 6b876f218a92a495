//! ESP (RFC 4303) with the processing of RFC 4301: packets are sealed and opened in place, without an allocation per
//! packet.
//!
//! An [`SaSpec`] describes a security association; [`OutboundSa`] seals with it, [`InboundSa`] opens. [`SaTable`] holds
//! associations by their SPI and counts every drop. Keys come from IKE or from a configuration.
//!
//! Invariants: no sequence number is sealed twice under one key; none is opened twice; nothing of a packet is
//! decrypted before its ICV is verified (except where the association has no integrity protection); an unknown SPI
//! allocates nothing; keys are wiped when dropped and never printed.

mod address;
mod endpoint;
mod endpoint_keys;
#[cfg(feature = "fuzz")]
mod fuzz;
mod gateway;
mod inbound;
mod lifetime;
mod network_table;
mod outbound;
mod packet;
mod sa_directions;
mod sa_file;
mod sa_pair;
mod selector;
mod shortcut;
mod spec;
mod suite;
mod table;
mod too_big;
mod transform;

pub use address::AddressPrefix;
pub use endpoint::{EspCarrier, EspEndpoint, EspEndpointCounters, EspEndpointPlan};
pub use endpoint_keys::EndpointKeys;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use fuzz::fuzz_esp;
pub use gateway::{
    ChangedState, EspGateway, GatewayCounters, GatewayNotice, GatewayRekey, GatewaySettings,
    GatewayTunnel, MAX_GATEWAY_INBOUND, MAX_GATEWAY_TUNNELS, NegotiatedPair, NotSealed,
    SealedForPeer, SealingReason, TunnelPackets,
};
pub use inbound::{ArrivedEsp, InboundSa, InboundState, OpenedPacket};
pub use lifetime::{LifetimeStatus, RekeyReason, SaLifetime, SaUsage};
pub use outbound::{OutboundSa, OutboundState, SealedPacket};
pub use packet::PacketRoom;
pub use sa_file::{
    EspCaptureKeys, EspSaFileError, EspSaLine, parse_esp_capture_keys, parse_esp_sa_file,
};
pub use sa_pair::{EspEndRole, EspSaPair, esp_sa_pair};
pub use selector::{PacketFacts, SelectorLimits, SelectorPorts, TrafficSelector};
pub use shortcut::{RTP_WITHOUT_UDP, VoiceReceiver, VoiceShortcut};
pub use spec::{DfPolicy, EcnPolicy, EspKeys, SaError, SaMode, SaSpec, UdpEncapsulation};
pub use suite::{EspEncryption, EspIntegrity, EspSuite};
pub use table::{SaTable, SecurityAssociation};
pub use too_big::{TOO_BIG_ROOM, write_too_big};
pub use transform::{EspTransform, OpenedPayload};

use crate::replay::Stale;
use core::fmt;
use engine::DropReason;

/// Largest replay window of an association, packets.
pub const MAX_ESP_WINDOW: usize = 4_096;
/// Default replay window, packets (RFC 4303 section 3.4.3).
pub const DEFAULT_ESP_WINDOW: usize = 64;
/// Room before a packet that suffices for every mode: outer IPv6 and UDP header, ESP header, initialisation vector.
pub const MAX_HEADROOM: usize = 40 + 8 + 8 + 16;
/// Room behind a packet that suffices for every algorithm: padding of a block, trailer, ICV. TFC padding is beyond it.
pub const MAX_TAILROOM: usize = 15 + 2 + 32;

/// Reason for which a packet was not sealed or opened. Each has its [`DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspFailure {
    /// Truncated, not a multiple of the block, or inconsistent lengths.
    Malformed,
    /// No association has this SPI.
    UnknownSpi,
    /// The tunnel has no association that seals.
    NoAssociation,
    /// The ICV does not match.
    Authentication,
    /// The sequence number was received before.
    Replayed,
    /// The sequence number lies before the replay window.
    TooOld,
    /// The decrypted padding is invalid.
    Padding,
    /// The selectors, or the mode, do not allow the packet.
    Selector,
    /// A fragment where a whole packet is required.
    Fragment,
    /// Congestion Experienced around a packet without ECN.
    CongestionLost,
    /// A dummy packet.
    Dummy,
    /// The lifetime has ended.
    Expired,
    /// All sequence numbers are used.
    SequenceExhausted,
    /// Longer than the path MTU, and not to be fragmented.
    TooLarge,
    /// The buffer has no space for the additions.
    NoRoom,
}

impl EspFailure {
    /// The reason under which the packet is counted.
    pub const fn reason(self) -> DropReason {
        match self {
            EspFailure::Malformed => DropReason::EspMalformed,
            EspFailure::UnknownSpi => DropReason::EspUnknownSpi,
            EspFailure::NoAssociation => DropReason::EspNoAssociation,
            EspFailure::Authentication => DropReason::EspAuthentication,
            EspFailure::Replayed => DropReason::EspReplayed,
            EspFailure::TooOld => DropReason::EspTooOld,
            EspFailure::Padding => DropReason::EspPadding,
            EspFailure::Selector => DropReason::EspSelector,
            EspFailure::Fragment => DropReason::EspFragment,
            EspFailure::CongestionLost => DropReason::EspCongestionLost,
            EspFailure::Dummy => DropReason::EspDummy,
            EspFailure::Expired => DropReason::EspExpired,
            EspFailure::SequenceExhausted => DropReason::EspSequenceExhausted,
            EspFailure::TooLarge => DropReason::EspTooLarge,
            EspFailure::NoRoom => DropReason::EspBufferTooSmall,
        }
    }
}

impl From<EspFailure> for DropReason {
    fn from(failure: EspFailure) -> DropReason {
        failure.reason()
    }
}

impl From<Stale> for EspFailure {
    fn from(stale: Stale) -> EspFailure {
        match stale {
            Stale::Replayed => EspFailure::Replayed,
            Stale::TooOld => EspFailure::TooOld,
        }
    }
}

impl fmt::Display for EspFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason().text())
    }
}

impl std::error::Error for EspFailure {}
