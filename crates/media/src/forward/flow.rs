//! The record of a media line at packet time.

use super::MAX_PACKET;
use super::latch::{Admission, Evidence, Latch};
use super::made::Outbox;
use super::plan::{Carriage, Component, FlowPlan, Latching, SidePlan};
use super::play::{PlayEnd, PlayPlan, PlayVoice, Played, Player};
use super::recode::{Recoder, recode, translate};
use super::secure::{Protection, Secure};
use super::shortcut::Stream;
use super::statistics::{Counters, FlowStats, Reports, SideDrops, SideStats, Sources};
use engine::{DropReason, Packet, Passed, Shortcut, SocketId, Time};
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};
use wire::rtcp::{self, ReportBlock, SenderInfo};
use wire::rtp::RtpView;
use wire::stun::{MediaProtocol, StunHeader, media_protocol};

/// The first byte of an RTP header that has only the fixed part: version 2.
const PLAIN: u8 = 0x80;
/// Comfort noise (RFC 3389, and its number in older telephones).
const NOISE: [u8; 2] = [13, 19];
/// With the marker bit these look like RTCP (RFC 5761 section 4).
const LIKE_RTCP: core::ops::RangeInclusive<u8> = 64..=95;

/// What a packet on a media port turned out to be.
pub(crate) enum Kind<'a> {
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
        /// Where it goes (`None`: others were made of it, which wait in the outbox), or why it goes nowhere.
        result: Result<Option<(SocketId, SocketAddr)>, DropReason>,
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
    special: SmallVec<[u8; 4]>,
    /// Only where it is protected by us.
    secure: Option<Box<Secure>>,
    /// Only where what it sends is transcoded.
    recoder: Option<Box<Recoder>>,
    /// Only where it was played something.
    player: Option<Box<Player>>,
    sources: Sources,
    stream: Stream,
    received: Counters,
    received_rtcp: Counters,
    sent: Counters,
    sent_rtcp: Counters,
    reports: Reports,
    drops: SideDrops,
}

impl Side {
    pub(crate) fn new(plan: &SidePlan) -> Side {
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
            special: SmallVec::new(),
            secure: None,
            recoder: None,
            player: None,
            sources: Sources::default(),
            stream: Stream::default(),
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
    pub(crate) fn apply(&mut self, plan: &SidePlan) {
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
        self.special.clone_from(&plan.special);
        match (&plan.recode, &mut self.recoder) {
            (None, recoder) => *recoder = None,
            (Some(plan), Some(recoder)) => recoder.apply(plan),
            (Some(plan), recoder) => *recoder = Some(Box::new(Recoder::new(plan.clone()))),
        }
        let keys = match &plan.protection {
            Protection::None => {
                self.secure = None;
                return;
            }
            Protection::Awaited => None,
            Protection::Srtp(keys) => Some(keys),
        };
        let secure = self
            .secure
            .get_or_insert_with(|| Box::new(Secure::new(plan.dtls)));
        secure.dtls = plan.dtls;
        secure.apply(keys);
    }

    pub(crate) fn dscp(&self) -> u8 {
        self.dscp
    }

    /// Whether it hears a sound of ours, and nothing else.
    fn is_played_to(&self) -> bool {
        self.player
            .as_ref()
            .is_some_and(|player| player.is_playing())
    }

    /// Whether packets for it can be sealed, or need not be.
    fn is_keyed(&self) -> bool {
        self.secure.as_ref().is_none_or(|secure| secure.is_keyed())
    }

    /// A word of each part that a packet needs.
    fn read_ahead(&self) -> u64 {
        u64::from(self.rtp.0)
            ^ u64::from(self.latch_epoch)
            ^ u64::from(self.latch.locked().is_some())
            ^ self.clock_rates.len() as u64
            ^ u64::from(self.secure.is_some())
            ^ self.received.packets
            ^ self.sent.packets
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

    /// Opens a packet of a protected side, and locks the latch where that proved its sender.
    fn unseal(&mut self, component: Component, packet: &mut Packet<'_>, rtcp: bool) -> Admission {
        if packet.source.is_ipv6() != self.ipv6 {
            return Err(DropReason::MediaFamily);
        }
        let latch = match component {
            Component::Rtp => &mut self.latch,
            Component::Rtcp => &mut self.rtcp_latch,
        };
        let locks = latch.may_prove(packet.source, self.latching)?;
        let secure = self.secure.as_mut().ok_or(DropReason::SrtpNoKey)?;
        secure.open(packet, rtcp)?;
        Ok(locks.then(|| latch.proved(packet.source)).flatten())
    }

    /// Its sockets, with what each is for.
    pub(crate) fn places(&self) -> impl Iterator<Item = (SocketId, Component)> + use<> {
        let rtcp = self.rtcp.map(|socket| (socket, Component::Rtcp));
        core::iter::once((self.rtp, Component::Rtp)).chain(rtcp)
    }

    /// Whether this side may send media.
    pub(crate) fn sends(&self) -> bool {
        self.sends
    }

    /// Socket and address for media towards this side, where it receives any.
    pub(crate) fn way(&self) -> Option<(SocketId, SocketAddr)> {
        let destination = self.latch.destination().filter(|_| self.receives)?;
        Some((self.rtp, destination))
    }

    /// Media that ends with us came from this side.
    pub(crate) fn heard(&mut self, wire: usize, view: &RtpView<'_>, arrived: Time) {
        self.received.add(wire);
        self.sources.receive(view, arrived, &self.clock_rates);
    }

    /// RTCP that ends with us came from this side.
    pub(crate) fn heard_rtcp(&mut self, wire: usize, bytes: &[u8], arrived: Time) {
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

    /// A sender report of ours goes to this side.
    pub(crate) fn reported(&mut self, info: &SenderInfo, now: Time) {
        self.reports.sent(info, now);
    }

    /// What is to be reported about this side's stream.
    pub(crate) fn report_block(&mut self) -> Option<ReportBlock> {
        self.sources.report_block()
    }

    /// Something of this side's was dropped.
    pub(crate) fn dropped(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Protects a packet of ours for this side, where it is protected.
    pub(crate) fn seal(&mut self, packet: &mut Packet<'_>, rtcp: bool) -> Result<(), DropReason> {
        match &mut self.secure {
            Some(secure) => secure.seal(packet, rtcp),
            None => Ok(()),
        }
    }

    /// A packet of ours went to this side.
    pub(crate) fn count_sent(&mut self, bytes: usize, rtcp: bool) {
        match rtcp {
            true => self.sent_rtcp.add(bytes),
            false => self.sent.add(bytes),
        }
    }

    /// Socket and address for RTCP towards this side.
    pub(crate) fn rtcp_way(&self) -> Option<(SocketId, SocketAddr)> {
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
            srtp: self.secure.as_ref().and_then(|secure| secure.suite()),
            received: self.received,
            received_rtcp: self.received_rtcp,
            sent: self.sent,
            sent_rtcp: self.sent_rtcp,
            drops: self.drops.list(),
            ..SideStats::default()
        };
        (stats.passed, stats.shortcuts) = self.stream.figures();
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
    /// What it accepts is copied.
    recorded: bool,
}

impl Flow {
    pub(crate) fn new(session: u32, plan: &FlowPlan) -> Flow {
        let [a, b] = &plan.sides;
        Flow {
            session,
            line: plan.line,
            carriage: plan.carriage,
            sides: [Side::new(a), Side::new(b)],
            recorded: false,
        }
    }

    pub(crate) fn set_recorded(&mut self, recorded: bool) {
        self.recorded = recorded;
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

    /// Reads what the next packet from a side will need: this record, or at the later steps what is found through it. See
    /// [`engine::Forward::expect`]; the value means nothing.
    pub(crate) fn read_ahead(&self, from: usize, step: u8) -> u64 {
        let [a, b] = &self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        match step {
            0 => {
                u64::from(self.session) ^ from.read_ahead() ^ to.read_ahead() ^ from.stream.opened()
            }
            _ => {
                let open = from
                    .secure
                    .as_ref()
                    .map_or(0, |secure| secure.read_ahead(true));
                let seal = to
                    .secure
                    .as_ref()
                    .map_or(0, |secure| secure.read_ahead(false));
                from.sources.read_ahead(step - 1) ^ open ^ seal
            }
        }
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

    /// Decides about a packet that came to `component` of side `from`. Drops are counted at that side. What a recorded line
    /// accepts is appended to `copy`, in the clear.
    pub(crate) fn forward(
        &mut self,
        from: usize,
        component: Component,
        packet: &mut Packet<'_>,
        outbox: &mut Outbox,
        copy: &mut Vec<u8>,
    ) -> Result<Outcome, DropReason> {
        let carriage = self.carriage;
        let copy = self.recorded.then_some(copy);
        let [a, b] = &mut self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        if component == Component::Rtp {
            from.stream.came();
        }
        let outcome = move_packet(from, to, carriage, component, packet, outbox, copy);
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

/// Playing.
impl Flow {
    fn side_mut(&mut self, side: usize) -> &mut Side {
        let [a, b] = &mut self.sides;
        if side == 0 { a } else { b }
    }

    /// Plays something to a side from now on; gives what it was played until now.
    ///
    /// # Errors
    /// The line carries no RTP, or the codec cannot be used: [`PlayEnd::Failed`].
    pub(crate) fn play(
        &mut self,
        plan: Box<PlayPlan>,
        now: Time,
    ) -> Result<Option<Played>, PlayEnd> {
        if self.carriage != Carriage::Rtp {
            return Err(PlayEnd::Failed);
        }
        let side = self.side_mut(plan.side.into());
        let seed = plan.seed;
        side.player
            .get_or_insert_with(|| Box::new(Player::new(seed, now)))
            .begin(plan, now)
            .map_err(|_| PlayEnd::Failed)
    }

    /// What is played to a side goes on with another codec; gives it where it cannot.
    pub(crate) fn tune(&mut self, side: usize, voice: PlayVoice) -> Option<Played> {
        let player = self.side_mut(side).player.as_mut()?;
        player.tune(voice).err().flatten()
    }

    /// Ends what is played to a side.
    pub(crate) fn end_play(&mut self, side: usize, end: PlayEnd) -> Option<Played> {
        self.side_mut(side).player.as_mut()?.end(end)
    }

    /// The number of what is played to a side.
    pub(crate) fn playing(&self, side: usize) -> Option<u64> {
        self.side(side).player.as_ref()?.number()
    }

    /// Sends what is due of what is played to a side; gives when more is.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn play_due(
        &mut self,
        side: usize,
        now: Time,
        outbox: &mut Outbox,
    ) -> Result<Option<Time>, Played> {
        let side = self.side_mut(side);
        let Some(mut player) = side.player.take() else {
            return Ok(None);
        };
        let keyed = side.is_keyed();
        let due = player.run(now, keyed, side, outbox);
        side.player = Some(player);
        due
    }
}

/// Shortcuts.
impl Flow {
    /// The stream from a side, with the socket that it comes to.
    pub(crate) fn stream(&mut self, from: usize) -> (SocketId, &mut Stream) {
        let [a, b] = &mut self.sides;
        let side = if from == 0 { a } else { b };
        (side.rtp, &mut side.stream)
    }

    /// The shortcut for the stream from a side, where nothing but sending on would become of its next packet.
    pub(crate) fn shortcut(&self, from: usize) -> Option<Shortcut> {
        let [a, b] = &self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let last = from.stream.steady()?;
        let touched = self.carriage != Carriage::Rtp
            || self.recorded
            || from.secure.is_some()
            || to.secure.is_some()
            || from.recoder.is_some()
            || to.recoder.is_some();
        let payload_type = last.payload_type;
        let special = from.special.contains(&payload_type)
            || NOISE.contains(&payload_type)
            || LIKE_RTCP.contains(&payload_type);
        if touched || special {
            return None;
        }
        let source = from.latch.locked()?;
        let (out, destination) = media_way(from, to).ok()?;
        let (jitter, clock_rate) = from.sources.jitter(payload_type)?;
        Some(Shortcut {
            socket: from.rtp,
            source,
            out,
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

    /// Counts what took a shortcut from a side to the other.
    pub(crate) fn passed(&mut self, from: usize, passed: &Passed) {
        let [a, b] = &mut self.sides;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        if passed.packets > 0 {
            from.received.pass(passed);
            from.sources.pass(passed);
            to.sent.pass(passed);
        }
    }
}

/// A packet after its protection was taken off.
pub(crate) enum Opened {
    /// Control looks at it.
    Punt(&'static str),
    /// There was none.
    Clear,
    /// Its tag was right; the address that this locked.
    Proved(Option<SocketAddr>),
}

/// Takes the protection of a side off, where there is any.
#[inline]
pub(crate) fn open(
    from: &mut Side,
    carriage: Carriage,
    component: Component,
    packet: &mut Packet<'_>,
) -> Result<Opened, DropReason> {
    if packet.length > MAX_PACKET {
        return Err(DropReason::MediaTooLarge);
    }
    if from.secure.is_none() || carriage != Carriage::Rtp {
        return Ok(Opened::Clear);
    }
    let rtcp = match classify_sealed(from, component, packet)? {
        Sealed::Punt(why) => return Ok(Opened::Punt(why)),
        Sealed::Rtp => false,
        Sealed::Rtcp => true,
    };
    Ok(Opened::Proved(from.unseal(component, packet, rtcp)?))
}

/// What an opened packet is, and the address that it locked, where its sender may send it; `None` for STUN, which is control's.
#[inline]
pub(crate) fn admit<'p>(
    from: &mut Side,
    carriage: Carriage,
    component: Component,
    packet: &'p Packet<'_>,
    proved: Option<Option<SocketAddr>>,
) -> Result<Option<(Kind<'p>, Option<SocketAddr>)>, DropReason> {
    let kind = classify(packet.bytes(), carriage, component, from.mux)?;
    if matches!(kind, Kind::Stun) {
        if packet.source.is_ipv6() != from.ipv6 {
            return Err(DropReason::MediaFamily);
        }
        return Ok(None);
    }
    let latched = match proved {
        Some(latched) => latched,
        None => from.admit(component, packet.source, &kind)?,
    };
    Ok(Some((kind, latched)))
}

fn move_packet(
    from: &mut Side,
    to: &mut Side,
    carriage: Carriage,
    component: Component,
    packet: &mut Packet<'_>,
    outbox: &mut Outbox,
    copy: Option<&mut Vec<u8>>,
) -> Result<Outcome, DropReason> {
    let wire = packet.length;
    let proved = match open(from, carriage, component, packet)? {
        Opened::Punt(why) => return Ok(Outcome::Punt(why)),
        Opened::Clear => None,
        Opened::Proved(latched) => Some(latched),
    };
    let Some((kind, latched)) = admit(from, carriage, component, packet, proved)? else {
        return Ok(Outcome::Punt("stun"));
    };
    if let Some(copy) = copy {
        copy.extend_from_slice(packet.bytes());
    }
    let locked = locked_component(component, &kind);
    let rtcp = matches!(kind, Kind::Rtcp);
    let way = match &kind {
        Kind::Rtcp => {
            from.received_rtcp.add(wire);
            // RTCP flows while a line is held, too (RFC 3264 section 5.1).
            let way = to.rtcp_way().ok_or(DropReason::MediaNotLatched);
            observe_rtcp(from, to, packet, way.is_ok());
            if from.recoder.is_some() || to.recoder.is_some() {
                let (recoder, other) = (from.recoder.as_deref(), to.recoder.as_deref());
                // Encrypted reports do not look like one, and pass as they are.
                if rtcp::is_compound(packet.bytes()) {
                    translate(recoder, other, packet.bytes_mut());
                }
            }
            way
        }
        Kind::Rtp(view) => {
            from.received.add(wire);
            let arrival = from
                .sources
                .receive(view, packet.arrived, &from.clock_rates);
            let plain = packet.bytes().first() == Some(&PLAIN);
            from.stream.note(view, plain, arrival, packet.arrived);
            let way = media_way(from, to);
            if let (Some(recoder), Ok(way)) = (&mut from.recoder, way) {
                let secure = carriage == Carriage::Rtp;
                let made = recode(recoder, view, packet.arrived, outbox, &mut |outbox| {
                    let sealed = outbox.finish(way, |packet| match &mut to.secure {
                        Some(keys) if secure => keys.seal(packet, false),
                        _ => Ok(()),
                    });
                    match sealed {
                        Ok(length) => to.sent.add(length),
                        Err(reason) => to.drops.count(reason),
                    }
                });
                return Ok(Outcome::Accepted {
                    latched: latched.map(|address| (locked, address)),
                    result: made.map(|()| None),
                });
            }
            way
        }
        Kind::Datagram | Kind::Stun => {
            from.received.add(wire);
            media_way(from, to)
        }
    };
    let result = match (way, &mut to.secure) {
        (Ok(way), Some(secure)) if carriage == Carriage::Rtp => {
            secure.seal(packet, rtcp).map(|()| way)
        }
        (way, _) => way,
    };
    if result.is_ok() {
        let sent = if rtcp {
            &mut to.sent_rtcp
        } else {
            &mut to.sent
        };
        sent.add(packet.length);
    }
    Ok(Outcome::Accepted {
        latched: latched.map(|address| (locked, address)),
        result: result.map(Some),
    })
}

/// What a packet of a protected side is, before it is opened.
enum Sealed {
    Rtp,
    Rtcp,
    Punt(&'static str),
}

/// By what stays in the clear (RFC 7983, RFC 5761 section 4).
fn classify_sealed(
    side: &Side,
    component: Component,
    packet: &Packet<'_>,
) -> Result<Sealed, DropReason> {
    let bytes = packet.bytes();
    let punts = match media_protocol(bytes) {
        MediaProtocol::RtpOrRtcp => None,
        MediaProtocol::Stun if StunHeader::parse(bytes).is_some() => Some("stun"),
        MediaProtocol::Dtls if side.secure.as_ref().is_some_and(|secure| secure.dtls) => {
            Some("dtls")
        }
        _ => return Err(DropReason::MediaMalformed),
    };
    if let Some(why) = punts {
        if packet.source.is_ipv6() != side.ipv6 {
            return Err(DropReason::MediaFamily);
        }
        return Ok(Sealed::Punt(why));
    }
    match (component, rtcp::is_rtcp(bytes)) {
        (Component::Rtcp, true) => Ok(Sealed::Rtcp),
        (Component::Rtcp, false) => Err(DropReason::MediaUnexpectedRtcp),
        (Component::Rtp, true) if side.mux => Ok(Sealed::Rtcp),
        (Component::Rtp, _) => Ok(Sealed::Rtp),
    }
}

pub(crate) fn locked_component(component: Component, kind: &Kind<'_>) -> Component {
    match (component, kind) {
        (Component::Rtcp, Kind::Rtcp) => Component::Rtcp,
        _ => Component::Rtp,
    }
}

fn media_way(from: &Side, to: &Side) -> Result<(SocketId, SocketAddr), DropReason> {
    if !from.sends || !to.receives {
        return Err(DropReason::MediaHeld);
    }
    if to.is_played_to() {
        return Err(DropReason::MediaReplaced);
    }
    let destination = to.latch.destination().ok_or(DropReason::MediaNotLatched)?;
    Ok((to.rtp, destination))
}

/// Reads passing reports. Encrypted ones (SRTCP) do not look like a compound and are left alone.
fn observe_rtcp(from: &mut Side, to: &mut Side, packet: &Packet<'_>, relayed: bool) {
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
