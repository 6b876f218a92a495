//! A gateway: tunnels between the networks behind this host and those behind its peers (RFC 4301 section 4.4.1).
//!
//! The gateway has no IO: a driver gives it packets of the inside, which it seals for a peer, and packets of the
//! outside, which it opens. Invariants: a packet is sealed only for a tunnel that has its destination as a remote
//! network; an opened packet has a source of that tunnel's remote networks; received packets change no size of any
//! table.

use super::network_table::NetworkTable;
use super::packet::InnerHeader;
use super::{
    AddressPrefix, ArrivedEsp, EspCarrier, EspFailure, InboundSa, InboundState, OutboundSa,
    OutboundState, PacketRoom, RekeyReason, SaError, SaTable, SealedPacket, SecurityAssociation,
};
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use core::time::Duration;
use engine::{DropReason, Drops, HashKey, Time};
use wire::esp::{EspView, NatTraversalDatagram};

/// Most tunnels of a gateway.
pub const MAX_GATEWAY_TUNNELS: usize = 10_000;
/// Most associations of a gateway that open: those in use, and during a change of keys the old ones.
pub const MAX_GATEWAY_INBOUND: usize = 4 * MAX_GATEWAY_TUNNELS;
/// Notices that wait for the driver. Further ones are counted; that new keys are due is noted again with the next
/// packet.
const MAX_NOTICES: usize = 1_024;

/// Most negotiated associations of a tunnel that wait to seal: two ends that rekey at the same time make two.
const MAX_NEGOTIATED: usize = 8;

/// Smallest MTU of a path of IPv6, bytes.
const MINIMUM_V6_MTU: usize = 1_280;

/// A tunnel to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayTunnel {
    /// Name, for the log.
    pub name: String,
    /// Outer address of the peer; the port only counts in UDP. `None`: known from the key exchange only.
    pub peer: Option<SocketAddr>,
    /// The peer's address follows authenticated packets that are newer than all before (RFC 3948, RFC 7296 section
    /// 2.23), of associations with replay protection that were not removed.
    pub peer_behind_nat: bool,
    /// Networks behind the peer.
    pub remote: Vec<AddressPrefix>,
}

/// Settings of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct GatewaySettings {
    /// Carrier of ESP packets.
    pub carrier: EspCarrier,
    /// Outer address of this host.
    pub local: IpAddr,
    /// A keep-alive for the NAT's binding follows after this time without a packet (RFC 3948 section 4); `None`: none.
    pub keep_alive: Option<Duration>,
    /// Longest time until a new association seals, if the peer does not use the new keys before.
    pub rekey_delay: Duration,
    /// Time for which an association opens after its removal.
    pub rekey_grace: Duration,
}

/// Where a sealed packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedForPeer {
    /// Number of the tunnel.
    pub tunnel: usize,
    /// Address of the peer; port 0 in IP protocol 50.
    pub destination: SocketAddr,
    /// Traffic class of the outer header (RFC 6040).
    pub traffic_class: u8,
    /// The inner packet may not be fragmented.
    pub dont_fragment: bool,
}

/// A packet that was not sealed; it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSealed {
    /// Dropped.
    Dropped(EspFailure),
    /// Longer than the path MTU. The packet is unchanged, so that its sender can be told (RFC 4301 section 8.2).
    TooLarge {
        /// The longest inner packet that fits, bytes.
        mtu: usize,
    },
}

/// Why an association began to seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealingReason {
    /// The peer has used its new association.
    PeerReady,
    /// The longest delay has passed.
    Delay,
    /// The lifetime of the association before has ended.
    Lifetime,
}

impl SealingReason {
    /// Its name in the log.
    pub const fn name(self) -> &'static str {
        match self {
            SealingReason::PeerReady => "peer_ready",
            SealingReason::Delay => "delay",
            SealingReason::Lifetime => "lifetime",
        }
    }
}

/// A fact for the log. Tunnels are numbered in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayNotice {
    /// New keys are due.
    RekeyDue {
        /// Tunnel.
        tunnel: usize,
        /// SPI of the association.
        spi: u32,
        /// Reason.
        reason: RekeyReason,
    },
    /// Another association seals.
    SealsWith {
        /// Tunnel.
        tunnel: usize,
        /// SPI of the association.
        spi: u32,
        /// Reason.
        reason: SealingReason,
    },
    /// The address of a peer behind a NAT has changed.
    PeerMoved {
        /// Tunnel.
        tunnel: usize,
        /// New address.
        address: SocketAddr,
    },
}

/// Counters of a gateway; dropped packets are in its drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounters {
    /// Packets sealed.
    pub sealed: u64,
    /// Bytes of their inner packets.
    pub sealed_bytes: u64,
    /// Packets opened.
    pub opened: u64,
    /// Bytes of their inner packets.
    pub opened_bytes: u64,
    /// Keep-alives received.
    pub keep_alives_received: u64,
    /// IKE messages received that the driver has not taken.
    pub ike_messages: u64,
    /// Notices for which there was no room.
    pub notices_lost: u64,
}

/// Packets of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelPackets {
    /// Packets sealed.
    pub sealed: u64,
    /// Packets opened.
    pub opened: u64,
}

/// New state of an association, to be written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedState {
    /// Of one that seals. Its SPI is the peer's choice, so two tunnels may have the same one (RFC 4301 section 4.1).
    Outbound {
        /// Number of its tunnel.
        tunnel: usize,
        /// State.
        state: OutboundState,
    },
    /// Of one that opens.
    Inbound(InboundState),
}

/// A change of keys. Associations are made before, outside of the thread that carries packets.
#[derive(Debug, Default)]
pub struct GatewayRekey {
    /// New associations that seal, with the number of their tunnel.
    pub outbound: Vec<(usize, OutboundSa)>,
    /// New associations that open.
    pub inbound: Vec<(usize, InboundSa)>,
    /// SPIs of associations that open only for the grace time from now on.
    pub removed: Vec<u32>,
}

/// An association of both directions from a key exchange, made outside of the thread that carries packets.
#[derive(Debug)]
pub struct NegotiatedPair {
    /// Number of its tunnel.
    pub tunnel: usize,
    /// It opens.
    pub inbound: InboundSa,
    /// It seals.
    pub outbound: OutboundSa,
}

#[derive(Debug)]
struct Inbound {
    sa: InboundSa,
    tunnel: usize,
    /// Its first packet shows that the peer has the new keys.
    confirms: bool,
    removed_at: Option<Time>,
    written: u64,
}

impl SecurityAssociation for Inbound {
    fn spi(&self) -> u32 {
        self.sa.spec().spi
    }
}

#[derive(Debug)]
struct Tunnel {
    plan: GatewayTunnel,
    peer: Option<SocketAddr>,
    /// An address that the peer must not have.
    refused: Option<IpAddr>,
    /// `None`: there are no keys, or none any more.
    sealing: Option<OutboundSa>,
    /// Packets of `sealing` at the last time its state was written.
    written: u64,
    pending: Option<(OutboundSa, Time)>,
    /// Negotiated ones that do not seal yet, oldest first.
    negotiated: Vec<OutboundSa>,
    path_mtu: Option<usize>,
    last_sent: Time,
    packets: TunnelPackets,
}

/// Tunnels with their associations.
#[derive(Debug)]
pub struct EspGateway {
    settings: GatewaySettings,
    tunnels: Vec<Tunnel>,
    networks: NetworkTable,
    inbound: SaTable<Inbound>,
    notices: Vec<GatewayNotice>,
    counters: GatewayCounters,
    drops: Drops,
}

impl EspGateway {
    /// A gateway with the association that seals for each tunnel, where it has one, and those that open.
    ///
    /// # Errors
    /// An SPI is used twice, two tunnels have the same remote network, or there are too many of them.
    pub fn new(
        settings: GatewaySettings,
        tunnels: Vec<(GatewayTunnel, Option<OutboundSa>)>,
        inbound: Vec<(usize, InboundSa)>,
        key: HashKey,
        now: Time,
    ) -> Result<EspGateway, SaError> {
        let mut gateway = EspGateway {
            settings,
            networks: NetworkTable::new(key),
            tunnels: Vec::with_capacity(tunnels.len()),
            inbound: SaTable::new(MAX_GATEWAY_INBOUND, key),
            notices: Vec::with_capacity(MAX_NOTICES),
            counters: GatewayCounters::default(),
            drops: Drops::new(),
        };
        if tunnels.len() > MAX_GATEWAY_TUNNELS {
            return Err(SaError::TableFull);
        }
        for (number, (plan, sealing)) in tunnels.into_iter().enumerate() {
            for network in &plan.remote {
                gateway.networks.insert(*network, number)?;
            }
            gateway.tunnels.push(Tunnel {
                peer: plan.peer.map(|peer| settings.carrier_address(peer)),
                plan,
                refused: None,
                sealing,
                written: 0,
                pending: None,
                negotiated: Vec::new(),
                path_mtu: None,
                last_sent: now,
                packets: TunnelPackets::default(),
            });
        }
        for (tunnel, sa) in inbound {
            gateway.insert(tunnel, sa, false)?;
        }
        Ok(gateway)
    }

    fn insert(&mut self, tunnel: usize, sa: InboundSa, confirms: bool) -> Result<(), SaError> {
        self.inbound.insert(Inbound {
            sa,
            tunnel,
            confirms,
            removed_at: None,
            written: 0,
        })
    }

    /// Counters since the start.
    pub fn counters(&self) -> GatewayCounters {
        self.counters
    }

    /// Packets that were dropped.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Counts packets that the driver could not send, or has truncated.
    pub fn count_drops(&mut self, reason: DropReason, packets: u64) {
        self.drops.add(reason, packets);
    }

    /// Number of associations: of each tunnel the one that seals and those that may seal later, and all that open.
    pub fn associations(&self) -> usize {
        let outbound = |tunnel: &Tunnel| {
            usize::from(tunnel.sealing.is_some())
                + usize::from(tunnel.pending.is_some())
                + tunnel.negotiated.len()
        };
        self.tunnels.iter().map(outbound).sum::<usize>() + self.inbound.len()
    }

    /// Number of tunnels with keys that seal.
    pub fn tunnels_up(&self, now: Time) -> usize {
        self.sealing_tunnels(now).filter(|seals| *seals).count()
    }

    /// Whether each tunnel has keys that seal, in their order: an association whose lifetime has not ended, with
    /// sequence numbers left, or one that follows it.
    pub fn sealing_tunnels(&self, now: Time) -> impl Iterator<Item = bool> + '_ {
        self.tunnels.iter().map(move |tunnel| {
            let sealing = tunnel.sealing.as_ref();
            tunnel.pending.is_some() || sealing.is_some_and(|sa| sa.can_seal(now))
        })
    }

    /// Packets of each tunnel, in their order.
    pub fn tunnel_packets(&self) -> impl Iterator<Item = TunnelPackets> + '_ {
        self.tunnels.iter().map(|tunnel| tunnel.packets)
    }

    /// Passes notices on, in their order, until `take` refuses one: that one and those behind it wait for the next
    /// call.
    pub fn deliver_notices(&mut self, mut take: impl FnMut(GatewayNotice) -> bool) {
        let refused = self.notices.iter().position(|notice| !take(*notice));
        self.notices.drain(..refused.unwrap_or(self.notices.len()));
    }

    /// Seals a complete IP packet of the inside for the peer that has its destination. On success the room holds the
    /// ESP packet from the SPI on.
    ///
    /// # Errors
    /// The packet was not sealed, and is counted.
    #[inline]
    pub fn seal(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
    ) -> Result<SealedForPeer, NotSealed> {
        let sealed = self.try_seal(room, now);
        if let Err(refused) = &sealed {
            self.drops.count(match refused {
                NotSealed::Dropped(failure) => failure.reason(),
                NotSealed::TooLarge { .. } => DropReason::EspTooLarge,
            });
        }
        sealed
    }

    /// As [`EspGateway::seal`], for a packet that has another way if it is too large, which is not counted.
    ///
    /// # Errors
    /// The packet was not sealed; a dropped one is counted.
    #[inline]
    pub fn seal_if_fits(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
    ) -> Result<SealedForPeer, NotSealed> {
        let sealed = self.try_seal(room, now);
        if let Err(NotSealed::Dropped(failure)) = &sealed {
            self.drops.count(failure.reason());
        }
        sealed
    }

    /// Whether an address is in a remote network of a tunnel.
    #[inline]
    pub fn is_remote(&self, address: IpAddr) -> bool {
        self.networks.find(address).is_some()
    }

    fn try_seal(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
    ) -> Result<SealedForPeer, NotSealed> {
        let dropped = NotSealed::Dropped;
        let inner = InnerHeader::read(room.packet()).ok_or(dropped(EspFailure::Malformed))?;
        let destination = inner
            .destination(room.packet())
            .ok_or(dropped(EspFailure::Malformed))?;
        let number = self
            .networks
            .find(destination)
            .ok_or(dropped(EspFailure::Selector))?;
        let tunnel = self
            .tunnels
            .get_mut(number)
            .ok_or(dropped(EspFailure::Selector))?;
        let next_header = inner.next_header();
        let mut sealed = tunnel.seal(room, next_header, now);
        let ended = matches!(
            sealed,
            Err(EspFailure::Expired | EspFailure::SequenceExhausted)
        );
        if ended && tunnel.pending.is_some() {
            let notice = tunnel.switch(number, SealingReason::Lifetime);
            note(&mut self.notices, &mut self.counters, notice);
            sealed = tunnel.seal(room, next_header, now);
        }
        let mut dont_fragment = inner.dont_fragment;
        if sealed == Err(EspFailure::TooLarge) && !inner.is_v4 && inner.length <= MINIMUM_V6_MTU {
            // It must pass every path (RFC 8200 section 5): its outer packet is fragmented.
            dont_fragment = false;
            tunnel.limit_sealing(None);
            sealed = tunnel.seal(room, next_header, now);
            tunnel.limit_sealing(tunnel.path_mtu);
        }
        let inner_mtu = tunnel.sealing.as_ref().and_then(OutboundSa::inner_mtu);
        let sealed = match (sealed, inner_mtu) {
            (Ok(sealed), _) => sealed,
            (Err(EspFailure::TooLarge), Some(mtu)) => return Err(NotSealed::TooLarge { mtu }),
            (Err(failure), _) => return Err(dropped(failure)),
        };
        let (Some(peer), Some(sealing)) = (tunnel.peer, &mut tunnel.sealing) else {
            return Err(dropped(EspFailure::NoAssociation));
        };
        tunnel.last_sent = now;
        self.counters.sealed += 1;
        tunnel.packets.sealed += 1;
        self.counters.sealed_bytes += inner.length as u64;
        if let Some(reason) = sealed.rekey {
            let spi = sealing.spec().spi;
            let notice = GatewayNotice::RekeyDue {
                tunnel: number,
                spi,
                reason,
            };
            if !note(&mut self.notices, &mut self.counters, notice) {
                sealing.report_again();
            }
        }
        Ok(SealedForPeer {
            tunnel: number,
            destination: peer,
            traffic_class: sealed.traffic_class,
            dont_fragment,
        })
    }

    /// Opens a packet of the outside, as a socket has read it: from the SPI on, or the payload of a UDP datagram.
    /// Returns the place of the inner IP packet; a packet that is not opened is counted.
    #[inline]
    pub fn open(
        &mut self,
        source: SocketAddr,
        traffic_class: u8,
        bytes: &mut [u8],
        now: Time,
    ) -> Option<Range<usize>> {
        if self.settings.carrier == EspCarrier::Udp {
            match NatTraversalDatagram::parse(bytes) {
                NatTraversalDatagram::Esp(_) => {}
                NatTraversalDatagram::KeepAlive => {
                    self.counters.keep_alives_received += 1;
                    return None;
                }
                NatTraversalDatagram::Ike(_) => {
                    self.counters.ike_messages += 1;
                    return None;
                }
                NatTraversalDatagram::Malformed => {
                    self.drops.count(DropReason::EspMalformed);
                    return None;
                }
            }
        }
        self.try_open(source, traffic_class, bytes, now)
            .inspect_err(|failure| self.drops.count(failure.reason()))
            .ok()
    }

    fn try_open(
        &mut self,
        source: SocketAddr,
        traffic_class: u8,
        bytes: &mut [u8],
        now: Time,
    ) -> Result<Range<usize>, EspFailure> {
        let spi = EspView::parse(bytes).ok_or(EspFailure::Malformed)?.spi();
        let entry = self.inbound.get_mut(spi).ok_or(EspFailure::UnknownSpi)?;
        let arrived = ArrivedEsp {
            source: source.ip(),
            destination: self.settings.local,
            traffic_class,
        };
        let opened = entry.sa.open_payload(bytes, &arrived, now)?;
        let number = entry.tunnel;
        let confirms = core::mem::take(&mut entry.confirms);
        let is_newest = opened.is_newest && entry.removed_at.is_none();
        self.counters.opened += 1;
        self.counters.opened_bytes += opened.range.len() as u64;
        let tunnel = self.tunnels.get_mut(number).ok_or(EspFailure::Selector)?;
        tunnel.packets.opened += 1;
        let (notices, counters) = (&mut self.notices, &mut self.counters);
        if let Some(reason) = opened.rekey {
            let notice = GatewayNotice::RekeyDue {
                tunnel: number,
                spi,
                reason,
            };
            if !note(notices, counters, notice) {
                entry.sa.report_again();
            }
        }
        if confirms && tunnel.pending.is_some() {
            note(
                notices,
                counters,
                tunnel.switch(number, SealingReason::PeerReady),
            );
        }
        let address = self.settings.carrier_address(source);
        let is_refused = Some(address.ip()) == tunnel.refused;
        // A delayed packet would lead back to an address that the peer has left.
        let may_move = is_newest || tunnel.peer.is_none();
        if tunnel.plan.peer_behind_nat && may_move && Some(address) != tunnel.peer && !is_refused {
            tunnel.peer = Some(address);
            let notice = GatewayNotice::PeerMoved {
                tunnel: number,
                address,
            };
            note(notices, counters, notice);
        }
        Ok(opened.range)
    }

    /// Work that depends on time alone, to be called several times a second: associations that are due to seal or to be
    /// removed, and keep-alives, whose destinations `keep_alive` receives.
    pub fn tick(&mut self, now: Time, mut keep_alive: impl FnMut(SocketAddr)) {
        for (number, tunnel) in self.tunnels.iter_mut().enumerate() {
            if tunnel.pending.as_ref().is_some_and(|(_, at)| *at <= now) {
                let notice = tunnel.switch(number, SealingReason::Delay);
                note(&mut self.notices, &mut self.counters, notice);
            }
            let idle = self.settings.keep_alive;
            if self.settings.carrier == EspCarrier::Udp
                && idle.is_some_and(|idle| now.since(tunnel.last_sent) >= idle)
                && let (Some(peer), Some(_)) = (tunnel.peer, &tunnel.sealing)
            {
                tunnel.last_sent = now;
                keep_alive(peer);
            }
        }
        self.inbound
            .retain(|entry| entry.removed_at.is_none_or(|at| at > now));
    }

    /// Takes new keys into use. New associations open at once, and seal as soon as the peer uses its new one, or after
    /// the delay; removed ones open for the grace time. Packets in flight are not lost in this way, in any order in
    /// which the two ends receive their keys.
    ///
    /// # Errors
    /// An SPI that is in use, or a tunnel that does not exist; nothing is changed.
    pub fn rekey(&mut self, rekey: GatewayRekey, now: Time) -> Result<(), SaError> {
        for (tunnel, sa) in &rekey.inbound {
            let spi = sa.spec().spi;
            if *tunnel >= self.tunnels.len() {
                return Err(SaError::State);
            }
            if self.inbound.get(spi).is_some() {
                return Err(SaError::DuplicateSpi(spi));
            }
        }
        if self.inbound.len() + rekey.inbound.len() > MAX_GATEWAY_INBOUND
            || rekey
                .outbound
                .iter()
                .any(|(at, _)| *at >= self.tunnels.len())
        {
            return Err(SaError::TableFull);
        }
        for (tunnel, sa) in rekey.inbound {
            self.insert(tunnel, sa, true)?;
        }
        for (number, mut sa) in rekey.outbound {
            let Some(tunnel) = self.tunnels.get_mut(number) else {
                continue;
            };
            sa.set_path_mtu(tunnel.path_mtu);
            tunnel.pending = Some((sa, now + self.settings.rekey_delay));
        }
        for spi in rekey.removed {
            if let Some(entry) = self.inbound.get_mut(spi) {
                entry.removed_at = Some(now + self.settings.rekey_grace);
            }
        }
        Ok(())
    }

    /// Takes an association from a key exchange. It opens at once, and seals from [`EspGateway::seal_with`] on.
    ///
    /// # Errors
    /// An SPI that is in use, a tunnel that does not exist, or a full table; nothing is changed.
    pub fn install(&mut self, pair: NegotiatedPair) -> Result<(), SaError> {
        if pair.tunnel >= self.tunnels.len() {
            return Err(SaError::State);
        }
        self.insert(pair.tunnel, pair.inbound, false)?;
        if let Some(tunnel) = self.tunnels.get_mut(pair.tunnel) {
            let mut outbound = pair.outbound;
            outbound.set_path_mtu(tunnel.path_mtu);
            if tunnel.negotiated.len() >= MAX_NEGOTIATED {
                tunnel.negotiated.remove(0);
            }
            tunnel.negotiated.push(outbound);
        }
        Ok(())
    }

    /// Seals the packets of a tunnel with the negotiated association of this SPI from now on, and sends them to `peer`.
    /// The one before stays until it is removed. Returns whether there is one, or it seals already.
    pub fn seal_with(&mut self, tunnel: usize, spi: u32, peer: SocketAddr) -> bool {
        let peer = self.settings.carrier_address(peer);
        let Some(tunnel) = self.tunnels.get_mut(tunnel) else {
            return false;
        };
        if tunnel.seals_with(spi) {
            return true;
        }
        let found = tunnel.negotiated.iter().position(|sa| sa.spec().spi == spi);
        let Some(place) = found else {
            return false;
        };
        let sealing = tunnel.negotiated.remove(place);
        let before = tunnel.sealing.replace(sealing);
        tunnel.negotiated.extend(before);
        tunnel.written = 0;
        tunnel.peer = Some(peer);
        true
    }

    /// The peer of a tunnel must not have this address, although its authenticated packets come from there: packets to
    /// it would be routed into a tunnel. Its packets are opened, and it gets none until it has another address.
    pub fn refuse_peer(&mut self, tunnel: usize, address: IpAddr) {
        let carrier = self.settings;
        let Some(tunnel) = self.tunnels.get_mut(tunnel) else {
            return;
        };
        tunnel.refused = Some(address);
        if tunnel.peer.is_some_and(|peer| peer.ip() == address) {
            let planned = tunnel.plan.peer.filter(|peer| peer.ip() != address);
            tunnel.peer = planned.map(|peer| carrier.carrier_address(peer));
        }
    }

    /// Removes an association of both directions, which the key exchange has deleted. It opens for the grace time, for
    /// packets in flight; with `at_once`, no more. Returns whether its tunnel has no association that seals any more.
    pub fn remove_pair(&mut self, spi_in: u32, spi_out: u32, at_once: bool, now: Time) -> bool {
        let Some(entry) = self.inbound.get_mut(spi_in) else {
            return false;
        };
        entry.removed_at = Some(now + self.settings.rekey_grace);
        let number = entry.tunnel;
        if at_once {
            self.inbound.remove(spi_in);
        }
        let Some(tunnel) = self.tunnels.get_mut(number) else {
            return false;
        };
        tunnel.negotiated.retain(|sa| sa.spec().spi != spi_out);
        if !tunnel.seals_with(spi_out) {
            return false;
        }
        tunnel.sealing = None;
        true
    }

    /// Limits the packets of a tunnel to the MTU of the path to its peer; `None`: no limit.
    pub fn set_path_mtu(&mut self, tunnel: usize, mtu: Option<usize>) {
        if let Some(tunnel) = self.tunnels.get_mut(tunnel) {
            tunnel.path_mtu = mtu;
            tunnel.limit_sealing(mtu);
            if let Some((pending, _)) = &mut tunnel.pending {
                pending.set_path_mtu(mtu);
            }
            for negotiated in &mut tunnel.negotiated {
                negotiated.set_path_mtu(mtu);
            }
        }
    }

    /// Allows the association with which a tunnel seals, if it has this SPI, to use sequence numbers up to `last`,
    /// which are reserved in a file. One that does not seal yet keeps the limit that it has.
    pub fn reserve(&mut self, tunnel: usize, spi: u32, last: u64) {
        if let Some(tunnel) = self.tunnels.get_mut(tunnel)
            && let Some(sealing) = &mut tunnel.sealing
            && sealing.spec().spi == spi
        {
            sealing.limit_sequence(last);
        }
    }

    /// States that have changed since the last call; it allocates.
    pub fn take_changed_states(&mut self, now: Time) -> Vec<ChangedState> {
        let mut changed = Vec::new();
        for (number, tunnel) in self.tunnels.iter_mut().enumerate() {
            let Some(sealing) = &tunnel.sealing else {
                continue;
            };
            let state = sealing.state(now);
            if state.usage.packets != tunnel.written {
                tunnel.written = state.usage.packets;
                changed.push(ChangedState::Outbound {
                    tunnel: number,
                    state,
                });
            }
        }
        self.inbound.for_each_mut(|entry| {
            let packets = entry.sa.packets();
            if packets != entry.written {
                entry.written = packets;
                changed.push(ChangedState::Inbound(entry.sa.state(now)));
            }
        });
        changed
    }

    /// The states of all associations, for the end; it allocates.
    pub fn states(&mut self, now: Time) -> Vec<ChangedState> {
        let tunnels = self.tunnels.iter().enumerate();
        let state = |(number, tunnel): (usize, &Tunnel)| {
            let sealing = tunnel.sealing.as_ref()?;
            Some(ChangedState::Outbound {
                tunnel: number,
                state: sealing.state(now),
            })
        };
        let mut states: Vec<_> = tunnels.filter_map(state).collect();
        self.inbound
            .for_each_mut(|entry| states.push(ChangedState::Inbound(entry.sa.state(now))));
        states
    }
}

impl Tunnel {
    #[inline]
    fn seal(
        &mut self,
        room: &mut PacketRoom<'_>,
        next_header: u8,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        match &mut self.sealing {
            Some(sa) => sa.seal_payload(room, next_header, now),
            None => Err(EspFailure::NoAssociation),
        }
    }

    fn seals_with(&self, spi: u32) -> bool {
        self.sealing.as_ref().is_some_and(|sa| sa.spec().spi == spi)
    }

    fn limit_sealing(&mut self, path_mtu: Option<usize>) {
        if let Some(sealing) = &mut self.sealing {
            sealing.set_path_mtu(path_mtu);
        }
    }

    /// Seals with the pending association from now on.
    fn switch(&mut self, number: usize, reason: SealingReason) -> Option<GatewayNotice> {
        let (sa, _) = self.pending.take()?;
        let spi = sa.spec().spi;
        self.sealing = Some(sa);
        self.written = 0;
        Some(GatewayNotice::SealsWith {
            tunnel: number,
            spi,
            reason,
        })
    }
}

impl GatewaySettings {
    /// An address of a peer as this carrier has it: without a port in IP protocol 50.
    fn carrier_address(&self, address: SocketAddr) -> SocketAddr {
        match self.carrier {
            EspCarrier::Udp => address,
            EspCarrier::Ip => SocketAddr::new(address.ip(), 0),
        }
    }
}

/// Adds a notice; false if there is no room, which is counted.
fn note(
    notices: &mut Vec<GatewayNotice>,
    counters: &mut GatewayCounters,
    notice: impl Into<Option<GatewayNotice>>,
) -> bool {
    let Some(notice) = notice.into() else {
        return true;
    };
    let has_room = notices.len() < MAX_NOTICES;
    if has_room {
        notices.push(notice);
    } else {
        counters.notices_lost += 1;
    }
    has_room
}
