//! The record of a media line at packet time.

use super::MAX_PACKET;
use super::latch::{Admission, Evidence, Latch};
use super::plan::{Carriage, Component, FlowPlan, Latching, SidePlan};
use super::statistics::{Counters, FlowStats, Reports, SideDrops, SideStats, Sources};
use engine::{DropReason, Packet, SocketId};
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};
use wire::rtcp;
use wire::rtp::RtpView;
use wire::stun::{MediaProtocol, StunHeader, media_protocol};

/// What a packet on a media port turned out to be.
enum Kind<'a> {
    Rtp(RtpView<'a>),
    Rtcp,
    Stun,
    Datagram,
}

/// What became of a packet that was not dropped for itself.
pub(crate) enum Outcome {
    /// Its sender is the right one.
    Accepted {
        /// The component that this packet locked, and the address.
        latched: Option<(Component, SocketAddr)>,
        /// Where it goes, or why it goes nowhere.
        result: Result<(SocketId, SocketAddr), DropReason>,
    },
    /// Control looks at it.
    Punt(&'static str),
}

/// One side: the compiled form of a [`SidePlan`].
#[derive(Debug)]
pub(crate) struct Side {
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
    clock_rates: SmallVec<[(u8, u32); 2]>,
    sources: Sources,
    received: Counters,
    received_rtcp: Counters,
    sent: Counters,
    sent_rtcp: Counters,
    reports: Reports,
    drops: SideDrops,
}

impl Side {
    fn new(plan: &SidePlan) -> Side {
        let mut side = Side {
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
            sources: Sources::default(),
            received: Counters::default(),
            received_rtcp: Counters::default(),
            sent: Counters::default(),
            sent_rtcp: Counters::default(),
            reports: Reports::default(),
            drops: SideDrops::default(),
        };
        side.latch.reset(usable(plan.signalled_rtp, plan.ipv6));
        side.rtcp_latch
            .reset(usable(plan.signalled_rtcp, plan.ipv6));
        side
    }

    /// Takes a new plan. A latch holds unless what was signalled about its address changed.
    fn apply(&mut self, plan: &SidePlan) {
        let rtp = usable(plan.signalled_rtp, plan.ipv6);
        let rtcp = usable(plan.signalled_rtcp, plan.ipv6);
        let moved = self.rtp != plan.rtp
            || self.ipv6 != plan.ipv6
            || self.latch_epoch != plan.latch_epoch
            || self.latching != plan.latching
            || self.latch.signalled() != rtp;
        if moved {
            self.latch.reset(rtp);
        }
        if moved || self.rtcp != plan.rtcp || self.rtcp_latch.signalled() != rtcp {
            self.rtcp_latch.reset(rtcp);
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
    }

    pub(crate) fn dscp(&self) -> u8 {
        self.dscp
    }

    /// Whether the sender of a packet is the right one.
    fn admit(&mut self, component: Component, source: SocketAddr, kind: &Kind<'_>) -> Admission {
        if source.is_ipv6() != self.ipv6 {
            return Err(DropReason::MediaFamily);
        }
        if component == Component::Rtcp && matches!(kind, Kind::Rtcp) {
            let rtp = self.latch.locked().map(|address| address.ip());
            return self.rtcp_latch.admit_rtcp(source, self.latching, rtp);
        }
        let evidence = match kind {
            Kind::Rtp(view) => Evidence::Rtp {
                ssrc: view.ssrc(),
                sequence: view.sequence(),
            },
            Kind::Datagram => Evidence::Datagram,
            Kind::Rtcp | Kind::Stun => Evidence::Nothing,
        };
        self.latch.admit(source, self.latching, evidence)
    }

    /// Socket and address for RTCP towards this side.
    fn rtcp_way(&self) -> Option<(SocketId, SocketAddr)> {
        if self.mux {
            Some((self.rtp, self.latch.destination()?))
        } else {
            Some((self.rtcp?, self.rtcp_latch.destination()?))
        }
    }

    fn stats(&self) -> SideStats {
        let mut stats = SideStats {
            address: self.latch.locked(),
            rtcp_address: self.rtcp_latch.locked(),
            dscp: self.dscp,
            received: self.received,
            received_rtcp: self.received_rtcp,
            sent: self.sent,
            sent_rtcp: self.sent_rtcp,
            drops: self.drops.list(),
            ..SideStats::default()
        };
        self.reports.fill(&mut stats);
        self.sources.fill(&mut stats);
        stats
    }
}

/// A signalled address to which media can be sent from a socket of the family; multicast, broadcast, "any" and port 0 are
/// none.
fn usable(address: Option<SocketAddr>, ipv6: bool) -> Option<SocketAddr> {
    address.filter(|address| {
        let bad = match address.ip() {
            IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
        };
        !bad && address.port() != 0 && address.is_ipv6() == ipv6
    })
}

/// A media line.
#[derive(Debug)]
pub(crate) struct Flow {
    session: u32,
    line: u8,
    carriage: Carriage,
    sides: [Side; 2],
}

impl Flow {
    pub(crate) fn new(session: u32, plan: &FlowPlan) -> Flow {
        let [a, b] = &plan.sides;
        Flow {
            session,
            line: plan.line,
            carriage: plan.carriage,
            sides: [Side::new(a), Side::new(b)],
        }
    }

    pub(crate) fn apply(&mut self, plan: &FlowPlan) {
        self.carriage = plan.carriage;
        for (side, plan) in self.sides.iter_mut().zip(&plan.sides) {
            side.apply(plan);
        }
    }

    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    pub(crate) fn line(&self) -> u8 {
        self.line
    }

    pub(crate) fn side(&self, side: usize) -> &Side {
        let [a, b] = &self.sides;
        if side == 0 { a } else { b }
    }

    /// Sockets with side and component.
    pub(crate) fn places(&self) -> SmallVec<[(SocketId, usize, Component); 4]> {
        let mut places = SmallVec::new();
        for (number, side) in self.sides.iter().enumerate() {
            places.push((side.rtp, number, Component::Rtp));
            if let Some(rtcp) = side.rtcp {
                places.push((rtcp, number, Component::Rtcp));
            }
        }
        places
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = SocketId> + use<> {
        self.places().into_iter().map(|(socket, _, _)| socket)
    }

    pub(crate) fn stats(&self) -> FlowStats {
        let [a, b] = &self.sides;
        FlowStats {
            line: self.line,
            sides: [a.stats(), b.stats()],
        }
    }

    /// Decides about a packet that came to `component` of side `from`. Drops are counted at that side.
    pub(crate) fn forward(
        &mut self,
        from: usize,
        component: Component,
        packet: &Packet<'_>,
    ) -> Result<Outcome, DropReason> {
        let carriage = self.carriage;
        let [a, b] = &mut self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let outcome = move_packet(from, to, carriage, component, packet);
        if let Err(reason)
        | Ok(Outcome::Accepted {
            result: Err(reason),
            ..
        }) = &outcome
        {
            from.drops.count(*reason);
        }
        outcome
    }
}

fn move_packet(
    from: &mut Side,
    to: &mut Side,
    carriage: Carriage,
    component: Component,
    packet: &Packet<'_>,
) -> Result<Outcome, DropReason> {
    if packet.bytes.len() > MAX_PACKET {
        return Err(DropReason::MediaTooLarge);
    }
    let kind = classify(packet.bytes, carriage, component, from.mux)?;
    if matches!(kind, Kind::Stun) {
        if packet.source.is_ipv6() != from.ipv6 {
            return Err(DropReason::MediaFamily);
        }
        return Ok(Outcome::Punt("stun"));
    }
    let latched = from.admit(component, packet.source, &kind)?;
    let result = match &kind {
        Kind::Rtcp => {
            from.received_rtcp.add(packet.bytes.len());
            let result = relay_rtcp(to, packet.bytes.len());
            observe_rtcp(from, to, packet, result.is_ok());
            result
        }
        Kind::Rtp(view) => {
            from.received.add(packet.bytes.len());
            from.sources
                .receive(view, packet.arrived, &from.clock_rates);
            relay_media(from, to, packet.bytes.len())
        }
        Kind::Datagram | Kind::Stun => {
            from.received.add(packet.bytes.len());
            relay_media(from, to, packet.bytes.len())
        }
    };
    Ok(Outcome::Accepted {
        latched: latched.map(|address| (locked_component(component, &kind), address)),
        result,
    })
}

fn locked_component(component: Component, kind: &Kind<'_>) -> Component {
    match (component, kind) {
        (Component::Rtcp, Kind::Rtcp) => Component::Rtcp,
        _ => Component::Rtp,
    }
}

fn relay_media(
    from: &Side,
    to: &mut Side,
    bytes: usize,
) -> Result<(SocketId, SocketAddr), DropReason> {
    if !from.sends || !to.receives {
        return Err(DropReason::MediaHeld);
    }
    let destination = to.latch.destination().ok_or(DropReason::MediaNotLatched)?;
    to.sent.add(bytes);
    Ok((to.rtp, destination))
}

/// RTCP flows while a line is held, too (RFC 3264 section 5.1).
fn relay_rtcp(to: &mut Side, bytes: usize) -> Result<(SocketId, SocketAddr), DropReason> {
    let way = to.rtcp_way().ok_or(DropReason::MediaNotLatched)?;
    to.sent_rtcp.add(bytes);
    Ok(way)
}

/// Reads passing reports. Encrypted ones (SRTCP) do not look like a compound and are left alone.
fn observe_rtcp(from: &mut Side, to: &mut Side, packet: &Packet<'_>, relayed: bool) {
    if !rtcp::is_compound(packet.bytes) {
        return;
    }
    for part in rtcp::Compound::new(packet.bytes) {
        if let Some(info) = part.sender_info()
            && relayed
        {
            to.reports.sent(&info, packet.arrived);
        }
        for block in part.reports() {
            from.reports.received(block, packet.arrived);
        }
    }
}

fn classify<'a>(
    bytes: &'a [u8],
    carriage: Carriage,
    component: Component,
    mux: bool,
) -> Result<Kind<'a>, DropReason> {
    if carriage == Carriage::Datagrams {
        return match (bytes.is_empty(), component) {
            (true, _) => Err(DropReason::MediaMalformed),
            (false, Component::Rtcp) => Err(DropReason::MediaUnexpectedRtcp),
            (false, Component::Rtp) => Ok(Kind::Datagram),
        };
    }
    match media_protocol(bytes) {
        MediaProtocol::Stun if StunHeader::parse(bytes).is_some() => return Ok(Kind::Stun),
        MediaProtocol::RtpOrRtcp => {}
        _ => return Err(DropReason::MediaMalformed),
    }
    match component {
        Component::Rtcp if rtcp::is_rtcp(bytes) => Ok(Kind::Rtcp),
        Component::Rtcp => Err(match RtpView::parse(bytes) {
            Some(_) => DropReason::MediaUnexpectedRtcp,
            None => DropReason::MediaMalformed,
        }),
        Component::Rtp if mux && rtcp::is_rtcp(bytes) => Ok(Kind::Rtcp),
        // Without rtcp-mux, payload types 64 to 95 with the marker bit look like RTCP (RFC 5761 section 4).
        Component::Rtp if !mux && rtcp::is_rtcp(bytes) && rtcp::is_compound(bytes) => {
            Err(DropReason::MediaUnexpectedRtcp)
        }
        Component::Rtp => RtpView::parse(bytes)
            .map(Kind::Rtp)
            .ok_or(DropReason::MediaMalformed),
    }
}
