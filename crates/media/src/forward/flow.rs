//! The packet path of one media line: classification, latching, SRTP, transcoding, RTCP, statistics.

use super::MAX_PACKET;
use super::generated::PacketOutbox;
use super::latch::{Admission, Evidence, Latch};
use super::offload::OffloadStream;
use super::plan::{Carriage, Component, FlowPlan, Latching, SidePlan};
use super::playback::{PlaybackEncoding, PlaybackEnd, PlaybackPlan, PlaybackResult, Player};
use super::pseudonyms::CnamePseudonyms;
use super::srtp::{Protection, SideSrtp};
use super::statistics::{Counters, FlowStats, RtcpObserver, SideDrops, SideStats, Sources};
use super::transcode::{StreamRewriter, rewrite_rtcp, transcode};
use crate::stats::Arrival;
use engine::{DropReason, MediaPacket, OffloadStatistics, OffloadedStream, SocketId, Time};
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};
use wire::rtcp::{self, ReportBlock, SenderInfo};
use wire::rtp::RtpView;
use wire::stun::{MediaProtocol, StunHeader, media_protocol};

/// First byte of an RTP header without padding, extension and contributing sources (version 2).
const FIXED_HEADER: u8 = 0x80;
/// Payload types of comfort noise: RFC 3389, and 19 as used by older equipment.
const COMFORT_NOISE: [u8; 2] = [13, 19];
/// Packets of a side that were not relayed, after which the next one may have a number that SRTP takes for an old one:
/// it does so from 32,768 numbers on, many of which may have been lost. Late packets of before are impossible then.
const LONG_PAUSE: u32 = 1_000;
/// Payload types that are mistaken for RTCP when the marker bit is set (RFC 5761 section 4).
const RTCP_LIKE: core::ops::RangeInclusive<u8> = 64..=95;

/// Class of a packet received on a media port.
pub(crate) enum PacketKind<'a> {
    Rtp(RtpView<'a>),
    Rtcp,
    Stun,
    /// Key agreement of the phones among themselves (RFC 6189).
    Zrtp,
    Datagram,
}

/// Result of a packet that was not dropped before its sender was accepted.
pub(crate) enum FlowVerdict {
    /// The sender was accepted.
    Accepted {
        /// The component that this packet latched, and its address.
        latched: Option<(Component, SocketAddr)>,
        /// Socket and destination. `None`: replaced by packets in the outbox. An error: accepted but not relayed.
        result: Result<Option<(SocketId, SocketAddr)>, DropReason>,
    },
    /// Control handles this packet; the text names its protocol.
    Punt(&'static str),
}

/// State of one side, compiled from a [`SidePlan`].
#[derive(Debug)]
pub(crate) struct FlowSide {
    rtp: SocketId,
    rtcp: Option<SocketId>,
    ipv6: bool,
    mux: bool,
    sends: bool,
    receives: bool,
    dscp: u8,
    latching: Latching,
    latch_epoch: u32,
    latch: Latch,
    rtcp_latch: Latch,
    /// Clock rates of dynamic payload types.
    clock_rates: SmallVec<[(u8, u32); 2]>,
    /// Payload types that are never offloaded.
    special: SmallVec<[u8; 4]>,
    /// Payload types that are not relayed.
    refused: SmallVec<[u8; 4]>,
    /// Present if the side uses SRTP that we terminate.
    srtp: Option<Box<SideSrtp>>,
    /// SRTP state while the side uses none: its keys may return with another early dialog.
    idle_srtp: Option<Box<SideSrtp>>,
    /// Present if packets from this side are transcoded, or renumbered because they were before.
    rewriter: Option<Box<StreamRewriter>>,
    /// Present if RTCP to this side must not name hosts and persons.
    hides: Option<Box<CnamePseudonyms>>,
    /// RTCP of this side is readable here.
    plain_rtcp: bool,
    /// RTP packets since the last one that was relayed.
    unrelayed: u32,
    /// Present once a sound was played to this side.
    player: Option<Box<Player>>,
    sources: Sources,
    stream: OffloadStream,
    received: Counters,
    received_rtcp: Counters,
    sent: Counters,
    sent_rtcp: Counters,
    reports: RtcpObserver,
    drops: SideDrops,
}

impl FlowSide {
    pub(crate) fn new(plan: &SidePlan) -> FlowSide {
        let mut side = FlowSide {
            rtp: plan.rtp,
            rtcp: plan.rtcp,
            ipv6: plan.ipv6,
            mux: plan.mux,
            sends: plan.sends,
            receives: plan.receives,
            dscp: plan.dscp,
            latching: plan.latching,
            latch_epoch: plan.latch_epoch,
            latch: Latch::default(),
            rtcp_latch: Latch::default(),
            clock_rates: SmallVec::new(),
            special: SmallVec::new(),
            refused: SmallVec::new(),
            srtp: None,
            idle_srtp: None,
            rewriter: None,
            hides: None,
            plain_rtcp: plan.plain_rtcp,
            unrelayed: 0,
            player: None,
            sources: Sources::default(),
            stream: OffloadStream::default(),
            received: Counters::default(),
            received_rtcp: Counters::default(),
            sent: Counters::default(),
            sent_rtcp: Counters::default(),
            reports: RtcpObserver::default(),
            drops: SideDrops::default(),
        };
        side.latch.reset(usable(plan.signalled_rtp, plan.ipv6));
        side.rtcp_latch
            .reset(usable(plan.signalled_rtcp, plan.ipv6));
        side
    }

    /// Applies a new plan. A latch is kept unless the signalled address, the socket or the latching mode changed; after
    /// a change of its epoch it may learn another address.
    pub(crate) fn apply(&mut self, plan: &SidePlan) {
        let rtp = usable(plan.signalled_rtp, plan.ipv6);
        let rtcp = usable(plan.signalled_rtcp, plan.ipv6);
        let changed = self.rtp != plan.rtp
            || self.ipv6 != plan.ipv6
            || self.latching != plan.latching
            || self.latch.signalled() != rtp;
        let relearns = self.latch_epoch != plan.latch_epoch;
        if changed {
            self.latch.reset(rtp);
        } else if relearns {
            self.latch.relearn();
        }
        if changed || self.rtcp != plan.rtcp || self.rtcp_latch.signalled() != rtcp {
            self.rtcp_latch.reset(rtcp);
        } else if relearns {
            self.rtcp_latch.relearn();
        }
        self.rtp = plan.rtp;
        self.rtcp = plan.rtcp;
        self.ipv6 = plan.ipv6;
        self.mux = plan.mux;
        self.sends = plan.sends;
        self.receives = plan.receives;
        self.dscp = plan.dscp;
        self.latching = plan.latching;
        self.latch_epoch = plan.latch_epoch;
        self.clock_rates.clone_from(&plan.clock_rates);
        self.special.clone_from(&plan.special);
        self.refused.clone_from(&plan.refused);
        self.plain_rtcp = plan.plain_rtcp;
        // SRTP that passes through unread would not be authentic with other numbers.
        let renumbers = plan.plain_rtcp || plan.protection != Protection::None;
        StreamRewriter::apply(
            &mut self.rewriter,
            plan.transcode.as_ref(),
            &self.sources,
            renumbers,
        );
        let keys = match &plan.protection {
            Protection::None => {
                if let Some(mut idle) = self.srtp.take() {
                    idle.apply(None);
                    self.idle_srtp = Some(idle);
                }
                return;
            }
            Protection::Pending => None,
            Protection::Srtp(keys) => Some(keys),
        };
        let srtp = self
            .srtp
            .get_or_insert_with(|| match self.idle_srtp.take() {
                Some(idle) => idle,
                None => Box::new(SideSrtp::new(plan.dtls)),
            });
        srtp.dtls = plan.dtls;
        srtp.apply(keys);
    }

    /// Whether a playback replaces the other side's media.
    fn has_playback(&self) -> bool {
        self.player
            .as_ref()
            .is_some_and(|player| player.is_active())
    }

    /// Whether packets to this side can be sent: it has SRTP keys, or needs none.
    pub(crate) fn can_protect(&self) -> bool {
        self.srtp.as_ref().is_none_or(|srtp| srtp.is_keyed())
    }

    /// Reads one word of each part that a packet accesses.
    fn prefetch(&self) -> u64 {
        u64::from(self.rtp.0)
            ^ u64::from(self.latch_epoch)
            ^ u64::from(self.latch.locked().is_some())
            ^ self.clock_rates.len() as u64
            ^ u64::from(self.srtp.is_some())
            ^ self.received.packets
            ^ self.sent.packets
    }

    /// Checks the source address of a packet against the latch.
    fn admit(
        &mut self,
        component: Component,
        source: SocketAddr,
        kind: &PacketKind<'_>,
    ) -> Admission {
        if source.is_ipv6() != self.ipv6 {
            return Err(DropReason::MediaAddressFamily);
        }
        if component == Component::Rtcp && matches!(kind, PacketKind::Rtcp) {
            let rtp = self.latch.locked().map(|address| address.ip());
            return self.rtcp_latch.admit_rtcp(source, self.latching, rtp);
        }
        let evidence = match kind {
            PacketKind::Rtp(view) => Evidence::Rtp {
                ssrc: view.ssrc(),
                sequence: view.sequence(),
            },
            PacketKind::Datagram => Evidence::Datagram,
            PacketKind::Rtcp | PacketKind::Stun | PacketKind::Zrtp => Evidence::Nothing,
        };
        self.latch.admit(source, self.latching, evidence)
    }

    /// Removes SRTP. If the packet is authentic and latching allows its source, the latch is locked to it.
    fn unprotect(
        &mut self,
        component: Component,
        packet: &mut MediaPacket<'_>,
        rtcp: bool,
    ) -> Admission {
        if packet.source.is_ipv6() != self.ipv6 {
            return Err(DropReason::MediaAddressFamily);
        }
        let latch = match component {
            Component::Rtp => &mut self.latch,
            Component::Rtcp => &mut self.rtcp_latch,
        };
        let locks = latch.may_authenticate(packet.source, self.latching)?;
        let srtp = self.srtp.as_mut().ok_or(DropReason::SrtpNoKey)?;
        srtp.unprotect(packet, rtcp)?;
        Ok(locks
            .then(|| latch.lock_authenticated(packet.source))
            .flatten())
    }

    /// The sockets of this side with their component.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (SocketId, Component)> + use<> {
        let rtcp = self.rtcp.map(|socket| (socket, Component::Rtcp));
        core::iter::once((self.rtp, Component::Rtp)).chain(rtcp)
    }

    /// Whether this side may send media, by offer and answer.
    pub(crate) fn sends(&self) -> bool {
        self.sends
    }

    /// Socket and destination of media to this side; `None` if it does not receive media or its address is unknown.
    pub(crate) fn destination(&self) -> Option<(SocketId, SocketAddr)> {
        let destination = self.latch.destination().filter(|_| self.receives)?;
        Some((self.rtp, destination))
    }

    /// Counts an RTP packet from this side that is consumed here (conferences).
    pub(crate) fn receive_rtp(&mut self, wire: usize, view: &RtpView<'_>, arrived: Time) {
        self.received.add(wire);
        self.sources.receive(view, arrived, &self.clock_rates);
    }

    /// Evaluates RTCP from this side that is consumed here (conferences).
    pub(crate) fn receive_rtcp(&mut self, wire: usize, bytes: &[u8], arrived: Time) {
        self.received_rtcp.add(wire);
        if !rtcp::is_compound(bytes) {
            return;
        }
        for part in rtcp::Compound::new(bytes) {
            for block in part.reports() {
                self.reports.received(block, arrived);
            }
        }
    }

    /// Notes a sender report that we send to this side, for the round-trip time.
    pub(crate) fn record_sender_report(&mut self, info: &SenderInfo, now: Time) {
        self.reports.sent(info, now);
    }

    /// A reception report block about this side's stream.
    pub(crate) fn report_block(&mut self) -> Option<ReportBlock> {
        self.sources.report_block()
    }

    /// Counts a drop at this side.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Applies SRTP to a packet to this side, if the side uses it.
    pub(crate) fn protect(
        &mut self,
        packet: &mut MediaPacket<'_>,
        rtcp: bool,
    ) -> Result<(), DropReason> {
        match &mut self.srtp {
            Some(srtp) => srtp.protect(packet, rtcp),
            None => Ok(()),
        }
    }

    /// Counts a packet sent to this side.
    pub(crate) fn count_sent(&mut self, bytes: usize, rtcp: bool) {
        match rtcp {
            true => self.sent_rtcp.add(bytes),
            false => self.sent.add(bytes),
        }
    }

    /// Socket and destination of RTCP to this side.
    pub(crate) fn rtcp_destination(&self) -> Option<(SocketId, SocketAddr)> {
        if self.mux {
            Some((self.rtp, self.latch.destination()?))
        } else {
            Some((self.rtcp?, self.rtcp_latch.destination()?))
        }
    }

    pub(crate) fn stats(&self) -> SideStats {
        let mut stats = SideStats {
            address: self.latch.locked(),
            rtcp_address: self.rtcp_latch.locked(),
            dscp: self.dscp,
            srtp: self.srtp.as_ref().and_then(|srtp| srtp.suite()),
            received: self.received,
            received_rtcp: self.received_rtcp,
            sent: self.sent,
            sent_rtcp: self.sent_rtcp,
            drops: self.drops.list(),
            ..SideStats::default()
        };
        (stats.offloaded, stats.offloads) = self.stream.figures();
        self.reports.fill(&mut stats);
        self.sources.fill(&mut stats);
        stats
    }
}

/// The signalled address, if media can be sent to it from a socket of this address family. Multicast, broadcast and
/// unspecified addresses and port 0 are unusable.
fn usable(address: Option<SocketAddr>, ipv6: bool) -> Option<SocketAddr> {
    address.filter(|address| {
        let bad = match address.ip() {
            IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
        };
        !bad && address.port() != 0 && address.is_ipv6() == ipv6
    })
}

/// State of one media line.
#[derive(Debug)]
pub(crate) struct MediaFlow {
    session: u32,
    line: u8,
    carriage: Carriage,
    sides: [FlowSide; 2],
    /// Whether accepted packets are copied for recording.
    recorded: bool,
    names: CnamePseudonyms,
}

impl MediaFlow {
    pub(crate) fn new(session: u32, plan: &FlowPlan, names: CnamePseudonyms) -> MediaFlow {
        let [a, b] = &plan.sides;
        MediaFlow {
            session,
            line: plan.line,
            carriage: plan.carriage,
            sides: [FlowSide::new(a), FlowSide::new(b)],
            recorded: false,
            names,
        }
    }

    pub(crate) fn set_recorded(&mut self, recorded: bool) {
        self.recorded = recorded;
    }

    pub(crate) fn apply(&mut self, plan: &FlowPlan) {
        self.carriage = plan.carriage;
        for (side, plan) in self.sides.iter_mut().zip(&plan.sides) {
            side.apply(plan);
            side.hides = plan.hides.then(|| Box::new(self.names));
        }
    }

    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    pub(crate) fn line(&self) -> u8 {
        self.line
    }

    pub(crate) fn side(&self, side: usize) -> &FlowSide {
        let [a, b] = &self.sides;
        if side == 0 { a } else { b }
    }

    /// Reads the data that the next packet from a side will access: at step 0 this record, at later steps the data
    /// behind its pointers. See [`engine::Forward::prefetch`]. The returned value is meaningless.
    pub(crate) fn prefetch(&self, from: usize, step: u8) -> u64 {
        let [a, b] = &self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        match step {
            0 => u64::from(self.session) ^ from.prefetch() ^ to.prefetch() ^ from.stream.opened(),
            _ => {
                let open = from.srtp.as_ref().map_or(0, |srtp| srtp.prefetch(true));
                let seal = to.srtp.as_ref().map_or(0, |srtp| srtp.prefetch(false));
                from.sources.prefetch(step - 1) ^ open ^ seal
            }
        }
    }

    /// All sockets of this line with side and component.
    pub(crate) fn socket_roles(&self) -> SmallVec<[(SocketId, usize, Component); 4]> {
        let mut roles = SmallVec::new();
        for (number, side) in self.sides.iter().enumerate() {
            roles.push((side.rtp, number, Component::Rtp));
            if let Some(rtcp) = side.rtcp {
                roles.push((rtcp, number, Component::Rtcp));
            }
        }
        roles
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = SocketId> + use<> {
        self.socket_roles().into_iter().map(|(socket, _, _)| socket)
    }

    pub(crate) fn stats(&self) -> FlowStats {
        let [a, b] = &self.sides;
        FlowStats {
            line: self.line,
            sides: [a.stats(), b.stats()],
        }
    }

    /// Processes a packet that was received for `component` of side `from`. Drops are counted at that side. If the line
    /// is recorded, an accepted packet is appended to `copy` after SRTP was removed.
    pub(crate) fn forward(
        &mut self,
        from: usize,
        component: Component,
        packet: &mut MediaPacket<'_>,
        outbox: &mut PacketOutbox,
        copy: &mut Vec<u8>,
    ) -> Result<FlowVerdict, DropReason> {
        let carriage = self.carriage;
        let copy = self.recorded.then_some(copy);
        let [a, b] = &mut self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        if component == Component::Rtp {
            from.stream.packet_received();
        }
        let outcome = relay_packet(from, to, carriage, component, packet, outbox, copy);
        if let Err(reason)
        | Ok(FlowVerdict::Accepted {
            result: Err(reason),
            ..
        }) = &outcome
        {
            from.drops.count(*reason);
        }
        outcome
    }
}

/// Playback.
impl MediaFlow {
    fn side_mut(&mut self, side: usize) -> &mut FlowSide {
        let [a, b] = &mut self.sides;
        if side == 0 { a } else { b }
    }

    /// Starts a playback to a side. Returns the result of the playback that it replaces.
    ///
    /// # Errors
    /// [`PlaybackEnd::Failed`] if the line carries no RTP or the codec cannot be used.
    pub(crate) fn play(
        &mut self,
        plan: Box<PlaybackPlan>,
        now: Time,
    ) -> Result<Option<PlaybackResult>, PlaybackEnd> {
        if self.carriage != Carriage::Rtp {
            return Err(PlaybackEnd::Failed);
        }
        let side = self.side_mut(plan.side.into());
        let seed = plan.seed;
        side.player
            .get_or_insert_with(|| Box::new(Player::new(seed, now)))
            .start(plan, now)
            .map_err(|_| PlaybackEnd::Failed)
    }

    /// Changes the encoding of a running playback. Returns its result if it ends because the encoding cannot be used.
    pub(crate) fn change_playback(
        &mut self,
        side: usize,
        encoding: PlaybackEncoding,
    ) -> Option<PlaybackResult> {
        let player = self.side_mut(side).player.as_mut()?;
        player.change_encoding(encoding).err().flatten()
    }

    /// Stops the playback to a side and returns its result.
    pub(crate) fn end_playback(&mut self, side: usize, end: PlaybackEnd) -> Option<PlaybackResult> {
        self.side_mut(side).player.as_mut()?.stop(end)
    }

    /// Number of the running playback to a side.
    pub(crate) fn playback_number(&self, side: usize) -> Option<u64> {
        self.side(side).player.as_ref()?.number()
    }

    /// Sends the due packets of a playback. Returns the time of the next one.
    ///
    /// # Errors
    /// The playback has ended; the error is its result.
    pub(crate) fn send_due_playback(
        &mut self,
        side: usize,
        now: Time,
        outbox: &mut PacketOutbox,
    ) -> Result<Option<Time>, PlaybackResult> {
        let side = self.side_mut(side);
        let Some(mut player) = side.player.take() else {
            return Ok(None);
        };
        let can_protect = side.can_protect();
        let due = player.run(now, can_protect, side, outbox);
        side.player = Some(player);
        due
    }
}

/// Offload to the kernel relay.
impl MediaFlow {
    /// RTP packets received from both sides.
    pub(crate) fn packets(&self) -> u64 {
        self.sides.iter().map(|side| side.received.packets).sum()
    }

    /// The offload state of the stream from a side, and the socket on which the stream is received.
    pub(crate) fn stream(&mut self, from: usize) -> (SocketId, &mut OffloadStream) {
        let [a, b] = &mut self.sides;
        let side = if from == 0 { a } else { b };
        (side.rtp, &mut side.stream)
    }

    /// The offload entry for the stream from a side, if its next packet would only be counted and relayed unchanged.
    pub(crate) fn offload(&self, from: usize) -> Option<OffloadedStream> {
        let [a, b] = &self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let last = from.stream.offload_candidate()?;
        let processed = self.carriage != Carriage::Rtp
            || self.recorded
            || from.srtp.is_some()
            || to.srtp.is_some()
            || from.rewriter.is_some()
            || to.rewriter.is_some();
        let payload_type = last.payload_type;
        let special = from.special.contains(&payload_type)
            || COMFORT_NOISE.contains(&payload_type)
            || RTCP_LIKE.contains(&payload_type)
            || from.refused.contains(&payload_type);
        if processed || special {
            return None;
        }
        // Packets that the kernel relays would not end the learning of another address.
        let source = from.latch.settled()?;
        let (out, destination) = relay_destination(from, to).ok()?;
        let (jitter, clock_rate) = from.sources.jitter(payload_type)?;
        Some(OffloadedStream {
            socket: from.rtp,
            source,
            out_socket: out,
            destination,
            ssrc: last.ssrc,
            payload_type,
            sequence: last.sequence,
            timestamp: last.timestamp,
            arrived: last.arrived,
            clock_rate,
            jitter,
        })
    }

    /// Adds the packets that the kernel relayed from a side to the other to the statistics.
    pub(crate) fn add_offloaded(&mut self, from: usize, offloaded: &OffloadStatistics) {
        let [a, b] = &mut self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        if offloaded.packets > 0 {
            from.received.add_offloaded(offloaded);
            from.sources.add_offloaded(offloaded);
            to.sent.add_offloaded(offloaded);
        }
    }
}

/// A packet after the removal of SRTP.
pub(crate) enum Unprotected {
    /// Control handles this packet; the text names its protocol.
    Punt(&'static str),
    /// The side does not use SRTP.
    Clear,
    /// The authentication tag was valid; the address that was latched by this packet.
    Authenticated(Option<SocketAddr>),
}

/// Removes SRTP, if the side uses it.
#[inline]
pub(crate) fn unprotect(
    from: &mut FlowSide,
    carriage: Carriage,
    component: Component,
    packet: &mut MediaPacket<'_>,
) -> Result<Unprotected, DropReason> {
    if packet.length > MAX_PACKET {
        return Err(DropReason::MediaTooLarge);
    }
    if from.srtp.is_none() || carriage != Carriage::Rtp {
        return Ok(Unprotected::Clear);
    }
    let rtcp = match classify_protected(from, component, packet)? {
        ProtectedKind::Punt(reason) => return Ok(Unprotected::Punt(reason)),
        ProtectedKind::Rtp => false,
        ProtectedKind::Rtcp => true,
    };
    Ok(Unprotected::Authenticated(
        from.unprotect(component, packet, rtcp)?,
    ))
}

/// Classifies a packet and checks its sender. Returns the class and the address that was latched; `None` for STUN,
/// which control handles.
#[inline]
pub(crate) fn admit<'p>(
    from: &mut FlowSide,
    carriage: Carriage,
    component: Component,
    packet: &'p MediaPacket<'_>,
    authenticated: Option<Option<SocketAddr>>,
) -> Result<Option<(PacketKind<'p>, Option<SocketAddr>)>, DropReason> {
    let kind = classify(packet.bytes(), carriage, component, from.mux)?;
    if matches!(kind, PacketKind::Stun) {
        if packet.source.is_ipv6() != from.ipv6 {
            return Err(DropReason::MediaAddressFamily);
        }
        return Ok(None);
    }
    let latched = match authenticated {
        Some(latched) => latched,
        None => from.admit(component, packet.source, &kind)?,
    };
    Ok(Some((kind, latched)))
}

/// Unprotects, checks, counts and relays a packet. Statistics of the receiving side are updated only if the packet is
/// sent.
fn relay_packet(
    from: &mut FlowSide,
    to: &mut FlowSide,
    carriage: Carriage,
    component: Component,
    packet: &mut MediaPacket<'_>,
    outbox: &mut PacketOutbox,
    copy: Option<&mut Vec<u8>>,
) -> Result<FlowVerdict, DropReason> {
    let wire = packet.length;
    let authenticated = match unprotect(from, carriage, component, packet)? {
        Unprotected::Punt(reason) => return Ok(FlowVerdict::Punt(reason)),
        Unprotected::Clear => None,
        Unprotected::Authenticated(latched) => Some(latched),
    };
    let Some((kind, latched)) = admit(from, carriage, component, packet, authenticated)? else {
        return Ok(FlowVerdict::Punt("stun"));
    };
    // Recordings contain the packet without SRTP, as received from this side.
    if let Some(copy) = copy {
        copy.extend_from_slice(packet.bytes());
    }
    let locked = latched_component(component, &kind);
    let rtcp = matches!(kind, PacketKind::Rtcp);
    let route = match &kind {
        PacketKind::Rtcp => {
            from.received_rtcp.add(wire);
            // RTCP is relayed while a line is on hold, too (RFC 3264 section 5.1).
            let mut route = to.rtcp_destination().ok_or(DropReason::MediaNoDestination);
            observe_rtcp(from, to, packet, route.is_ok());
            if from.rewriter.is_some() || to.rewriter.is_some() {
                let other = (to.rewriter.as_deref(), &mut to.sources);
                // Encrypted reports (SRTCP that we do not terminate) do not parse as a compound and are relayed
                // unchanged.
                if rtcp::is_compound(packet.bytes()) {
                    rewrite_rtcp(from.rewriter.as_deref(), other, packet.bytes_mut());
                }
            }
            if let Some(names) = &to.hides {
                if from.plain_rtcp && !rtcp::is_compound(packet.bytes()) {
                    // Its names would not be found.
                    route = route.and(Err(DropReason::MediaMalformed));
                }
                packet.length =
                    rtcp::hide_names(packet.bytes_mut(), &mut |cname| names.write(cname));
            }
            route
        }
        PacketKind::Rtp(view) => {
            from.received.add(wire);
            let arrival = from
                .sources
                .receive(view, packet.arrived, &from.clock_rates);
            let fixed_header = packet.bytes().first() == Some(&FIXED_HEADER);
            from.stream
                .observe(view, fixed_header, arrival, packet.arrived);
            let mut route = relay_destination(from, to);
            if from.refused.contains(&view.payload_type()) {
                route = route.and(Err(DropReason::MediaNotTranscoded));
            }
            let resumes = route.is_ok() && from.unrelayed >= LONG_PAUSE;
            from.unrelayed = match route {
                Ok(_) => 0,
                Err(_) => from.unrelayed.saturating_add(1),
            };
            if (resumes || arrival == Some(Arrival::Restart))
                && let Some(srtp) = &to.srtp
                && let Some(sent) = srtp.last_sent(view.ssrc())
            {
                StreamRewriter::restart(&mut from.rewriter, view.ssrc(), view.sequence(), sent);
            }
            match (from.rewriter.as_deref_mut(), route) {
                (Some(StreamRewriter::Transcode(transcoder)), Ok(route)) => {
                    let srtp = carriage == Carriage::Rtp;
                    let transcoded =
                        transcode(transcoder, view, packet.arrived, outbox, &mut |outbox| {
                            let protected = outbox.finish(route, |packet| match &mut to.srtp {
                                Some(keys) if srtp => keys.protect(packet, false),
                                _ => Ok(()),
                            });
                            match protected {
                                Ok(length) => to.sent.add(length),
                                Err(reason) => to.drops.count(reason),
                            }
                        });
                    return Ok(FlowVerdict::Accepted {
                        latched: latched.map(|address| (locked, address)),
                        result: transcoded.map(|()| None),
                    });
                }
                (Some(StreamRewriter::Renumber(numbers)), Ok(_)) => {
                    let relayed = numbers.relay(view.ssrc(), view.sequence(), view.timestamp());
                    if let (Some((number, timestamp)), Some(place)) =
                        (relayed, packet.bytes_mut().get_mut(2..8))
                    {
                        let (first, last) = place.split_at_mut(2);
                        first.copy_from_slice(&number.to_be_bytes());
                        last.copy_from_slice(&timestamp.to_be_bytes());
                    }
                }
                _ => {}
            }
            route
        }
        PacketKind::Zrtp => {
            from.received.add(wire);
            // The keys would not fit packets that are changed here, and those of a side with SRTP are ours.
            let changes = |side: &FlowSide| {
                matches!(side.rewriter.as_deref(), Some(StreamRewriter::Transcode(_)))
            };
            match to.srtp.is_some() || changes(from) || changes(to) {
                true => Err(DropReason::MediaMalformed),
                false => relay_destination(from, to),
            }
        }
        PacketKind::Datagram | PacketKind::Stun => {
            from.received.add(wire);
            relay_destination(from, to)
        }
    };
    // Only RTP lines have SRTP; UDPTL datagrams are relayed unprotected.
    let result = match (route, &mut to.srtp) {
        (Ok(route), Some(srtp)) if carriage == Carriage::Rtp => {
            srtp.protect(packet, rtcp).map(|()| route)
        }
        (route, _) => route,
    };
    if result.is_ok() {
        let sent = if rtcp {
            &mut to.sent_rtcp
        } else {
            &mut to.sent
        };
        sent.add(packet.length);
    }
    Ok(FlowVerdict::Accepted {
        latched: latched.map(|address| (locked, address)),
        result: result.map(Some),
    })
}

/// Class of a packet of an SRTP side before decryption.
enum ProtectedKind {
    Rtp,
    Rtcp,
    Punt(&'static str),
}

/// Classifies an SRTP packet by its unencrypted part (RFC 7983, RFC 5761 section 4).
fn classify_protected(
    side: &FlowSide,
    component: Component,
    packet: &MediaPacket<'_>,
) -> Result<ProtectedKind, DropReason> {
    let bytes = packet.bytes();
    let punt = match media_protocol(bytes) {
        MediaProtocol::RtpOrRtcp => None,
        MediaProtocol::Stun if StunHeader::parse(bytes).is_some() => Some("stun"),
        MediaProtocol::Dtls if side.srtp.as_ref().is_some_and(|srtp| srtp.dtls) => Some("dtls"),
        _ => return Err(DropReason::MediaMalformed),
    };
    if let Some(reason) = punt {
        if packet.source.is_ipv6() != side.ipv6 {
            return Err(DropReason::MediaAddressFamily);
        }
        return Ok(ProtectedKind::Punt(reason));
    }
    match (component, rtcp::is_rtcp(bytes)) {
        (Component::Rtcp, true) => Ok(ProtectedKind::Rtcp),
        (Component::Rtcp, false) => Err(DropReason::MediaUnexpectedRtcp),
        (Component::Rtp, true) if side.mux => Ok(ProtectedKind::Rtcp),
        (Component::Rtp, _) => Ok(ProtectedKind::Rtp),
    }
}

pub(crate) fn latched_component(component: Component, kind: &PacketKind<'_>) -> Component {
    match (component, kind) {
        (Component::Rtcp, PacketKind::Rtcp) => Component::Rtcp,
        _ => Component::Rtp,
    }
}

/// Socket and destination for media from a side to the other, or the reason why it is not relayed.
fn relay_destination(from: &FlowSide, to: &FlowSide) -> Result<(SocketId, SocketAddr), DropReason> {
    if !from.sends || !to.receives {
        return Err(DropReason::MediaDirectionClosed);
    }
    if to.has_playback() {
        return Err(DropReason::MediaMutedForPlayback);
    }
    let destination = to
        .latch
        .destination()
        .ok_or(DropReason::MediaNoDestination)?;
    Ok((to.rtp, destination))
}

/// Evaluates relayed RTCP. SRTCP that we do not terminate does not parse as a compound and is ignored.
fn observe_rtcp(from: &mut FlowSide, to: &mut FlowSide, packet: &MediaPacket<'_>, relayed: bool) {
    if !rtcp::is_compound(packet.bytes()) {
        return;
    }
    for part in rtcp::Compound::new(packet.bytes()) {
        if let Some(info) = part.sender_info()
            && relayed
        {
            to.reports.sent(&info, packet.arrived);
        }
        for block in part.reports() {
            from.reports.received(block, packet.arrived);
            if let Some(StreamRewriter::Transcode(transcoder)) = to.rewriter.as_deref_mut() {
                transcoder.receive_report(&block);
            }
        }
    }
}

/// Whether a packet with the first byte of ZRTP has its magic cookie (RFC 6189 section 5).
fn is_zrtp(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(b"ZRTP")
}

/// Classifies a packet without SRTP.
fn classify<'a>(
    bytes: &'a [u8],
    carriage: Carriage,
    component: Component,
    mux: bool,
) -> Result<PacketKind<'a>, DropReason> {
    if carriage == Carriage::Datagrams {
        return match (bytes.is_empty(), component) {
            (true, _) => Err(DropReason::MediaMalformed),
            (false, Component::Rtcp) => Err(DropReason::MediaUnexpectedRtcp),
            (false, Component::Rtp) => Ok(PacketKind::Datagram),
        };
    }
    match media_protocol(bytes) {
        MediaProtocol::Stun if StunHeader::parse(bytes).is_some() => return Ok(PacketKind::Stun),
        MediaProtocol::Zrtp if component == Component::Rtp && is_zrtp(bytes) => {
            return Ok(PacketKind::Zrtp);
        }
        MediaProtocol::RtpOrRtcp => {}
        _ => return Err(DropReason::MediaMalformed),
    }
    match component {
        Component::Rtcp if rtcp::is_rtcp(bytes) => Ok(PacketKind::Rtcp),
        Component::Rtcp => Err(match RtpView::parse(bytes) {
            Some(_) => DropReason::MediaUnexpectedRtcp,
            None => DropReason::MediaMalformed,
        }),
        Component::Rtp if mux && rtcp::is_rtcp(bytes) => Ok(PacketKind::Rtcp),
        // Without rtcp-mux, payload types 64 to 95 with the marker bit look like RTCP (RFC 5761 section 4).
        Component::Rtp if !mux && rtcp::is_rtcp(bytes) && rtcp::is_compound(bytes) => {
            Err(DropReason::MediaUnexpectedRtcp)
        }
        Component::Rtp => RtpView::parse(bytes)
            .map(PacketKind::Rtp)
            .ok_or(DropReason::MediaMalformed),
    }
}
