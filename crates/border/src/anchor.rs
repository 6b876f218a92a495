//! Media of a call through us: ports, sockets, the forwarder's session, and descriptions that say so.
//!
//! Offer and answer (RFC 3264) decide everything: an offer takes ports on both sides for each new line, an answer puts
//! the forwarder's session in force, a refused offer leaves what was in force. Lines that cannot be anchored (MSRP and
//! BFCP over TCP) are offered on as rejected (port 0); where an offer has no other lines it is refused with 488.

pub(crate) mod codecs;
mod home;
mod ice;
#[cfg(test)]
mod ice_tests;
mod pairs;
pub(crate) mod protected;
pub(crate) mod sdp;
pub(crate) mod seat;
mod secure;
#[cfg(test)]
mod secure_tests;
pub(crate) mod secured;
#[cfg(test)]
mod tests;

use crate::border::sockets::{MediaSockets, SocketWork};
use crate::call::Side;
use crate::call::figures::{Encoding, Encodings};
use crate::config::{MediaSecurity, Mux, Transcoding};
use crate::hiding;
use crate::private_headers::EarlyMedia;
use codecs::Codecs;
use core::time::Duration;
use engine::{Deadline, Entropy, HashKey, SocketId, Time};
use media::ports::{PortPair, PortPool};
use media::{FlowPlan, Latching, MediaCommand, Protection, SessionPlan, SidePlan};
use pairs::{drop_side, new_side};
use sdp::{BadSdp, Carriage, Described, Direction, MediaFacts, describe, rewrite};
use secure::Secure;
use secured::{Keyer, MediaNote};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The ports of one range of one address.
#[derive(Debug)]
pub(crate) struct MediaPool {
    /// First port of the range.
    pub(crate) first: u16,
    /// Last port of the range.
    pub(crate) last: u16,
    /// The ports.
    pub(crate) ports: PortPool,
}

/// Everything of which calls take media from.
#[derive(Debug)]
pub(crate) struct MediaPlane {
    /// One per media address; never removed while ports of it are in use.
    pub(crate) pools: Vec<MediaPool>,
    /// The sockets.
    pub(crate) sockets: MediaSockets,
    /// For the forwarder.
    pub(crate) commands: VecDeque<MediaCommand>,
    /// For the driver.
    pub(crate) work: VecDeque<SocketWork>,
    /// Silence after which a call ends.
    pub(crate) inactivity: Option<Duration>,
    /// The same during hold.
    pub(crate) hold_inactivity: Option<Duration>,
    /// Sessions in the forwarder.
    pub(crate) sessions: usize,
    /// What protection needs and has to say.
    pub(crate) keyer: Keyer,
}

impl MediaPlane {
    pub(crate) fn new(socket_limit: usize, key: HashKey, entropy: Entropy) -> MediaPlane {
        MediaPlane {
            pools: Vec::new(),
            sockets: MediaSockets::new(socket_limit, key),
            commands: VecDeque::new(),
            work: VecDeque::new(),
            inactivity: None,
            hold_inactivity: None,
            sessions: 0,
            keyer: Keyer::new(entropy),
        }
    }

    /// Closes sockets that no call has taken again.
    pub(crate) fn close_idle(&mut self, now: Time) {
        self.sockets.close_idle(now, &mut self.work);
    }

    /// When that is due next.
    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let due = self.sockets.next_close()?;
        Some(Deadline::new(due, "idle media ports"))
    }

    /// Ports that calls hold.
    pub(crate) fn ports_in_use(&self) -> usize {
        self.pools.iter().map(|pool| pool.ports.in_use()).sum()
    }
}

/// Why a description was not anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnchorError {
    /// It cannot be read.
    Bad(BadSdp),
    /// No port (or socket) left in this pool.
    Exhausted(u16),
    /// None of its lines can be anchored.
    Unanchorable,
    /// It is an encoded part of a multipart body.
    Encoded,
    /// Its media cannot be protected, or left in the clear, as policy demands.
    Protection,
    /// None of its codecs is one of the conference's.
    NoCodec,
    /// No media node takes it, or the call's does not answer.
    NoNode,
}

impl AnchorError {
    /// The status for the request that carried the description.
    pub(crate) fn status(self) -> u16 {
        match self {
            AnchorError::Bad(_)
            | AnchorError::Unanchorable
            | AnchorError::Protection
            | AnchorError::NoCodec => 488,
            AnchorError::Exhausted(_) | AnchorError::NoNode => 503,
            AnchorError::Encoded => 415,
        }
    }

    /// For events and the Warning header.
    pub(crate) fn text(self) -> &'static str {
        match self {
            AnchorError::Bad(bad) => bad.text(),
            AnchorError::Exhausted(_) => "no media port left",
            AnchorError::Unanchorable => "no media line that can be anchored",
            AnchorError::Protection => "media cannot be protected as policy demands",
            AnchorError::NoNode => "no media node takes it",
            AnchorError::NoCodec => "no codec that the conference takes",
            AnchorError::Encoded => "encoded session description in a multipart body",
        }
    }
}

/// What became of a port that could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// It was none of this call's.
    Foreign,
    /// Another pair stands in its place; this one's RTP address.
    By(SocketAddr),
    /// There is no other pair, or too many have failed already.
    Exhausted,
    /// The peer was told of it already.
    Told,
    /// The call goes on without RTCP of its own on this side.
    Without,
}

/// Pairs of one call that may turn out to be taken by others.
const MAX_REPLACED: u8 = 8;

#[derive(Debug)]
struct LineSide {
    pair: PortPair,
    rtp: SocketId,
    rtcp: Option<SocketId>,
    /// A description with this pair's port has gone out.
    told: bool,
    signalled_rtp: Option<SocketAddr>,
    signalled_rtcp: Option<SocketAddr>,
    direction: Direction,
    clock_rates: SmallVec<[(u8, u32); 2]>,
    encodings: SmallVec<[(u8, &'static str); 1]>,
    special: SmallVec<[u8; 4]>,
    /// RTCP shares the port with RTP.
    mux: bool,
    /// We have offered that it does.
    mux_offered: bool,
    /// Only where we protect the media of the call.
    secure: Option<Box<Secure>>,
}

#[derive(Debug)]
struct Line {
    carriage: media::Carriage,
    /// The caller's and the callee's; of a seat in a conference there is the caller's alone.
    sides: SmallVec<[LineSide; 2]>,
}

/// One side of a line, as others may see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceView {
    /// Our port for RTP.
    pub(crate) rtp: SocketAddr,
    /// Our port for RTCP, where it has one of its own.
    pub(crate) rtcp: Option<SocketAddr>,
    /// Where the side receives RTP, as it said.
    pub(crate) signalled_rtp: Option<SocketAddr>,
    /// Where the side receives RTCP, as it said.
    pub(crate) signalled_rtcp: Option<SocketAddr>,
    /// RTCP shares the port with RTP.
    pub(crate) mux: bool,
    /// Which way media flows, from the side's point of view.
    pub(crate) direction: Direction,
}

/// An offer without its answer.
#[derive(Debug)]
struct Offer {
    from: Side,
    facts: Described,
    /// Lines that this offer added.
    added: u16,
    /// An early dialog has answered it.
    answered: bool,
}

/// One side of a call's media as the plan has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediaSide {
    /// The pool of its ports.
    pub(crate) pool: u16,
    /// The address written into descriptions (another than the sockets' behind a static NAT).
    pub(crate) advertised: IpAddr,
    /// From where it may be learned.
    pub(crate) latching: Latching,
    /// Code point towards it.
    pub(crate) dscp: u8,
    /// How its media is protected, where the configuration says anything about that.
    pub(crate) security: Option<Arc<MediaSecurity>>,
    /// Other networks are hidden from it.
    pub(crate) hides: bool,
    /// Codecs of our own towards it, where the configuration names any.
    pub(crate) transcoding: Option<Arc<Transcoding>>,
}

/// The anchored media of one call.
#[derive(Debug)]
pub(crate) struct CallMedia {
    session: u64,
    added: bool,
    sides: [MediaSide; 2],
    lines: SmallVec<[Option<Line>; 1]>,
    offer: Option<Box<Offer>>,
    /// Some offer was answered.
    negotiated: bool,
    /// Pairs that somebody else had.
    replaced: u8,
    /// The first line was made before any offer came: see [`CallMedia::reserve`].
    reserved: bool,
    /// What passes before the answer; `None`: everything.
    gate: Option<EarlyMedia>,
    /// The call's number in events.
    number: u64,
    /// When it wants to be told the time, as far as that was asked for.
    wake: Option<engine::Time>,
    /// Codecs of our own, where a side may get any.
    codecs: Option<Box<Codecs>>,
    /// The timer for it: it may be far away, and must not outlive the call.
    pub(crate) wake_timer: Option<engine::timers::TimerKey>,
    /// The callee is a conference of ours.
    seat: Option<Box<seat::SeatFacts>>,
    /// How a side was reached before somebody else was to take it.
    home: Option<Box<home::Home>>,
}

impl CallMedia {
    /// Nothing negotiated; `session` names it towards the forwarder.
    pub(crate) fn new(session: u64, sides: [MediaSide; 2]) -> CallMedia {
        CallMedia {
            session,
            added: false,
            sides,
            lines: SmallVec::new(),
            offer: None,
            negotiated: false,
            replaced: 0,
            reserved: false,
            gate: None,
            number: 0,
            wake: None,
            wake_timer: None,
            codecs: None,
            seat: None,
            home: None,
        }
    }

    /// With the call's number in events.
    pub(crate) fn numbered(mut self, number: u64) -> CallMedia {
        self.number = number;
        self
    }

    /// Before the answer only this passes; nobody has been told of media yet.
    pub(crate) fn gated(mut self, gate: EarlyMedia) -> CallMedia {
        self.gate = Some(gate);
        self
    }

    /// Whether there is a gate.
    pub(crate) fn is_gated(&self) -> bool {
        self.gate.is_some()
    }

    /// Moves the gate, or takes it away; tells the forwarder where that makes a difference.
    pub(crate) fn set_gate(&mut self, plane: &mut MediaPlane, gate: Option<EarlyMedia>) {
        if self.gate != gate {
            self.gate = gate;
            if self.added {
                self.command(plane);
            }
        }
    }

    /// Makes one line of audio for a call whose offer comes with the callee's answer: a description that leaves in a response
    /// cannot wait for its sockets as one in a request can, so they are opened before the call goes on.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub(crate) fn reserve(&mut self, plane: &mut MediaPlane) -> Result<(), AnchorError> {
        if self.lines.is_empty() {
            let line = self.new_line(plane, media::Carriage::Rtp)?;
            self.lines.push(Some(line));
            self.reserved = true;
        }
        Ok(())
    }

    /// Whether an offer waits for its answer, and whose it is.
    pub(crate) fn open_offer(&self) -> Option<Side> {
        self.offer.as_ref().map(|offer| offer.from)
    }

    /// Takes an offer of `from`; appends to `out` what the other side gets to see.
    ///
    /// # Errors
    /// [`AnchorError`]; nothing has changed then.
    pub(crate) fn offer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        offer: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let facts = describe(offer).map_err(AnchorError::Bad)?;
        self.abandon(plane);
        let wanted = |facts: &MediaFacts| facts.port != 0;
        let usable = |facts: &MediaFacts| wanted(facts) && facts.carriage != Carriage::Stream;
        if facts.iter().any(wanted) && !facts.iter().any(usable) {
            return Err(AnchorError::Unanchorable);
        }
        let mut added = 0u16;
        if core::mem::take(&mut self.reserved) {
            let wanted = facts.first().filter(|fact| usable(fact));
            match (
                wanted.and_then(|fact| fact.carriage.forwarded()),
                self.lines.first_mut(),
            ) {
                (Some(carriage), Some(Some(line))) => {
                    line.carriage = carriage;
                    added |= 1;
                }
                _ => self.drop_line(plane, 0),
            }
        }
        for (index, fact) in facts.iter().enumerate() {
            if self.lines.len() <= index {
                self.lines.push(None);
            }
            let Some(carriage) = fact.carriage.forwarded().filter(|_| usable(fact)) else {
                continue;
            };
            if self.lines.get(index).is_some_and(Option::is_some) {
                continue;
            }
            match self.new_line(plane, carriage) {
                Ok(line) => {
                    added |= 1 << index;
                    self.set_line(index, Some(line));
                }
                Err(error) => {
                    self.drop_lines(plane, added);
                    return Err(error);
                }
            }
        }
        if self.protects() {
            self.judge_offer(plane, from, offer, &facts, added)?;
        }
        self.offer = Some(Box::new(Offer {
            from,
            facts,
            added,
            answered: false,
        }));
        if !self.negotiated {
            // Early media may come before any answer does: the session stands from the first offer on.
            self.signal_offer();
            self.command(plane);
        }
        self.tell_offer(plane, from, offer, out);
        Ok(())
    }

    /// Writes an offer of `from` as the other side gets to see it, with codecs of ours where that is our policy.
    fn tell_offer(&mut self, plane: &mut MediaPlane, from: Side, offer: &[u8], out: &mut Vec<u8>) {
        let policy = self
            .sides
            .get(from.other().index())
            .and_then(|side| side.transcoding.clone());
        let readable = self.protects();
        // A call that is transcoded stays one that may be, whatever a reload has made of the policy.
        let extended = match (policy, &mut self.codecs) {
            (None, None) => None,
            (policy, codecs) => codecs.get_or_insert_default().offer(
                from,
                &policy.unwrap_or_default(),
                offer,
                readable,
            ),
        };
        let offer = extended.as_deref().unwrap_or(offer);
        self.write(plane, from.other(), offer, true, out);
    }

    /// Writes an answer of `from` as the offerer gets to see it; what is transcoded from now on is known then.
    fn tell_answer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        answer: &[u8],
        out: &mut Vec<u8>,
    ) {
        let readable = self.protects();
        let settled = self
            .codecs
            .as_mut()
            .and_then(|codecs| codecs.answer(from, answer, readable));
        let news = self.codecs.as_mut().map(|codecs| codecs.news());
        for (line, kinds) in news.into_iter().flatten() {
            let note = MediaNote::transcoded(self.session, self.number, line, kinds);
            plane.keyer.notes.push_back(note);
        }
        let answer = settled.as_deref().unwrap_or(answer);
        self.write(plane, from.other(), answer, false, out);
    }

    /// Takes an answer of `from` to the open offer; appends to `out` what the offerer gets to see. A provisional answer
    /// (one of several early dialogs) leaves the offer open for the others.
    ///
    /// # Errors
    /// [`AnchorError`]; nothing has changed then.
    pub(crate) fn answer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        answer: &[u8],
        provisional: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let facts = describe(answer).map_err(AnchorError::Bad)?;
        let Some(mut offer) = self.offer.take() else {
            // A repeated answer (200 after a reliable 183): the addresses of the first one stand.
            self.tell_answer(plane, from, answer, out);
            return Ok(());
        };
        if self.protects()
            && let Err(error) = self.judge_answer(plane, &offer, answer, &facts)
        {
            self.offer = Some(offer);
            return Err(error);
        }
        for index in 0..self.lines.len() {
            let ours = facts.get(index).filter(|fact| fact.port != 0);
            let theirs = offer.facts.get(index).filter(|fact| fact.port != 0);
            match (ours, theirs) {
                (Some(answered), Some(offered)) => {
                    self.agree(plane, index, offer.from, offered, answered);
                }
                _ if provisional => {}
                _ => self.drop_line(plane, index),
            }
        }
        self.resume_keying(plane);
        self.tell_answer(plane, from, answer, out);
        self.negotiated = true;
        self.command(plane);
        if provisional {
            offer.answered = true;
            self.offer = Some(offer);
        }
        Ok(())
    }

    /// The open offer was refused or came to nothing: what was in force stays. One that an early dialog has answered is
    /// settled by that answer.
    pub(crate) fn abandon(&mut self, plane: &mut MediaPlane) {
        if let Some(offer) = self.offer.take()
            && !offer.answered
        {
            self.drop_lines(plane, offer.added);
            for side in self
                .lines
                .iter_mut()
                .flatten()
                .flat_map(|line| &mut line.sides)
            {
                if let Some(secure) = &mut side.secure {
                    secure.abandon();
                }
            }
        }
    }

    /// The same offer to another target: appends to `out` what it gets to see.
    pub(crate) fn offer_again(&mut self, plane: &mut MediaPlane, offer: &[u8], out: &mut Vec<u8>) {
        if let Some(from) = self.open_offer() {
            self.tell_offer(plane, from, offer, out);
        }
    }

    /// Whether a socket of this call is still being opened; its last description must not leave then, for the port may be
    /// somebody else's. The call is told by its session's number when each is open.
    pub(crate) fn hold_back(&mut self, plane: &mut MediaPlane) -> bool {
        let mut any = false;
        for side in self
            .lines
            .iter_mut()
            .flatten()
            .flat_map(|line| &mut line.sides)
        {
            let mut opening = false;
            for socket in core::iter::once(side.rtp).chain(side.rtcp) {
                if plane.sockets.is_opening(socket) {
                    plane.sockets.await_open(socket, self.session);
                    opening = true;
                }
            }
            side.told &= !opening;
            any |= opening;
        }
        any
    }

    /// A socket could not be opened: its pair is set aside as a whole and another one takes its place.
    pub(crate) fn replace(&mut self, plane: &mut MediaPlane, socket: SocketId) -> Replaced {
        let place = self.lines.iter().enumerate().find_map(|(index, line)| {
            let side = line.as_ref()?.sides.iter().position(|s| s.has(socket))?;
            Some((index, side))
        });
        let Some((index, number)) = place else {
            return Replaced::Foreign;
        };
        let (Some(media), Some(Some(line))) = (self.sides.get(number), self.lines.get_mut(index))
        else {
            return Replaced::Foreign;
        };
        let Some(slot) = line.sides.get_mut(number) else {
            return Replaced::Foreign;
        };
        if slot.told && slot.rtcp == Some(socket) {
            slot.rtcp = None;
            self.command(plane);
            return Replaced::Without;
        }
        if slot.told {
            return Replaced::Told;
        }
        if self.replaced >= MAX_REPLACED {
            return Replaced::Exhausted;
        }
        self.replaced += 1;
        let Ok(new) = new_side(plane, media.pool, line.carriage) else {
            return Replaced::Exhausted;
        };
        let new = LineSide {
            signalled_rtp: slot.signalled_rtp,
            signalled_rtcp: slot.signalled_rtcp,
            direction: slot.direction,
            clock_rates: core::mem::take(&mut slot.clock_rates),
            encodings: core::mem::take(&mut slot.encodings),
            special: core::mem::take(&mut slot.special),
            mux: slot.mux,
            secure: slot.secure.take(),
            ..new
        };
        let address = new.pair.rtp();
        let old = core::mem::replace(slot, new);
        // The one that could not be opened is gone, and its number may be one of the new pair's.
        for half in core::iter::once(old.rtp).chain(old.rtcp) {
            if half != socket {
                plane
                    .sockets
                    .discard(half, plane.keyer.now, &mut plane.work);
            }
        }
        if let Some(pool) = plane.pools.get_mut(usize::from(media.pool)) {
            let returned = pool.ports.set_aside(old.pair);
            debug_assert!(returned.is_ok(), "a pair went back to another pool");
        }
        if self.added {
            self.command(plane);
        }
        Replaced::By(address)
    }

    /// How a side is reached.
    pub(crate) fn side(&self, side: Side) -> &MediaSide {
        let [caller, callee] = &self.sides;
        match side {
            Side::Caller => caller,
            Side::Callee => callee,
        }
    }

    /// The answer to `side` will not speak of ICE, although its offer did.
    pub(crate) fn answer_without_ice(&mut self, side: Side) {
        for line in self.lines.iter_mut().flatten() {
            if let Some(secure) = line
                .sides
                .get_mut(side.index())
                .and_then(|side| side.secure.as_deref_mut())
            {
                secure.without_ice();
            }
        }
    }

    /// What stands, for those who ask: the number of each line, and both its sides.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, [PlaceView; 2])> {
        let view = |side: &LineSide| PlaceView {
            rtp: side.pair.rtp(),
            rtcp: side.rtcp.map(|_| side.pair.rtcp()),
            signalled_rtp: side.signalled_rtp,
            signalled_rtcp: side.signalled_rtcp,
            mux: side.mux,
            direction: side.direction,
        };
        let lines = self.lines.iter().enumerate();
        lines.filter_map(move |(index, line)| {
            let [caller, callee] = line.as_ref()?.sides.as_slice() else {
                return None;
            };
            Some((index, [view(caller), view(callee)]))
        })
    }

    /// Whether the forwarder has its session, and reports its figures at its end.
    pub(crate) fn is_added(&self) -> bool {
        self.added
    }

    /// The encodings of payload types, by side that sends them.
    pub(crate) fn encodings(&self) -> Encodings {
        let mut found = Encodings::new();
        for (index, line) in self.lines.iter().enumerate() {
            for side in Side::BOTH {
                let of = |side: Side| {
                    let own = line.as_ref().and_then(|line| line.sides.get(side.index()));
                    own.map_or(&[][..], |own| &own.encodings)
                };
                // A side sends by the other's description, where it is not ours that it got instead.
                let (first, second) = match self.codecs {
                    Some(_) => (of(side), of(side.other())),
                    None => (of(side.other()), of(side)),
                };
                found.extend(
                    first
                        .iter()
                        .chain(second)
                        .map(|&(payload_type, name)| Encoding {
                            line: index as u8,
                            side,
                            payload_type,
                            name,
                        }),
                );
            }
        }
        found
    }

    /// Whether a socket belongs to this call.
    pub(crate) fn uses(&self, socket: SocketId) -> bool {
        self.lines
            .iter()
            .flatten()
            .flat_map(|line| &line.sides)
            .any(|side| side.has(socket))
    }

    /// Gives everything back; the forwarder reports the session's figures.
    pub(crate) fn release(mut self, plane: &mut MediaPlane) {
        self.stay(plane);
        for index in 0..self.lines.len() {
            self.drop_line(plane, index);
        }
        if self.added {
            plane.sessions = plane.sessions.saturating_sub(1);
            plane.commands.push_back(MediaCommand::Remove(self.session));
        }
    }

    fn set_line(&mut self, index: usize, line: Option<Line>) {
        if let Some(slot) = self.lines.get_mut(index) {
            *slot = line;
        }
    }

    fn new_line(
        &self,
        plane: &mut MediaPlane,
        carriage: media::Carriage,
    ) -> Result<Line, AnchorError> {
        let [caller, callee] = &self.sides;
        let caller_side = new_side(plane, caller.pool, carriage)?;
        if self.seat.is_some() {
            return Ok(Line {
                carriage,
                sides: SmallVec::from_iter([caller_side]),
            });
        }
        match new_side(plane, callee.pool, carriage) {
            Ok(callee_side) => Ok(Line {
                carriage,
                sides: SmallVec::from_iter([caller_side, callee_side]),
            }),
            Err(error) => {
                drop_side(plane, caller.pool, caller_side);
                Err(error)
            }
        }
    }

    fn drop_lines(&mut self, plane: &mut MediaPlane, lines: u16) {
        for index in 0..self.lines.len() {
            if lines & (1 << index) != 0 {
                self.drop_line(plane, index);
            }
        }
    }

    fn drop_line(&mut self, plane: &mut MediaPlane, index: usize) {
        if let Some(line) = self.lines.get_mut(index).and_then(Option::take) {
            for (side, media) in line.sides.into_iter().zip(&self.sides) {
                drop_side(plane, media.pool, side);
            }
        }
    }

    /// Puts the offerer's addresses of the first offer in force.
    fn signal_offer(&mut self) {
        let Some(offer) = &self.offer else { return };
        for (line, fact) in self.lines.iter_mut().zip(&offer.facts) {
            if let Some(line) = line
                && let Some(side) = line.sides.get_mut(offer.from.index())
            {
                side.signal(fact, fact.mux);
            }
        }
    }

    fn agree(
        &mut self,
        plane: &mut MediaPlane,
        index: usize,
        offerer: Side,
        offered: &MediaFacts,
        answered: &MediaFacts,
    ) {
        let Some(Some(line)) = self.lines.get_mut(index) else {
            return;
        };
        let mux = offered.mux && answered.mux;
        if let Some(carriage) = answered.carriage.forwarded() {
            line.carriage = carriage;
        }
        for (side, fact) in [(offerer, offered), (offerer.other(), answered)] {
            let offers = side == offerer;
            if let Some(side) = line.sides.get_mut(side.index()) {
                side.mux = match (&side.secure, offers) {
                    (None, _) => mux,
                    // Each side has its own where we protect media.
                    (Some(_), true) => fact.mux,
                    (Some(secure), false) => {
                        let demanded = secure.policy().mux == Some(Mux::Require);
                        (fact.mux || demanded) && side.mux_offered
                    }
                };
                let alone = side.secure.as_ref().is_some_and(|secure| secure.listens());
                let with_rtcp = line.carriage == media::Carriage::Rtp && !side.mux && !alone;
                side.signal(fact, side.mux);
                if with_rtcp && side.rtcp.is_none() {
                    // Without a socket for RTCP the call goes on without RTCP.
                    side.rtcp = plane.sockets.acquire(side.pair.rtcp(), &mut plane.work);
                } else if !with_rtcp && let Some(socket) = side.rtcp.take() {
                    plane.sockets.release(socket, plane.keyer.now);
                }
            }
        }
    }

    /// Tells the forwarder what is in force.
    fn command(&mut self, plane: &mut MediaPlane) {
        self.listen(plane);
        if self.seat.is_some() {
            return self.command_seat(plane);
        }
        let flows = self
            .lines
            .iter()
            .enumerate()
            .filter_map(|(index, line)| line.as_ref().map(|line| (index, line)))
            .filter_map(|(index, line)| self.flow_plan(index, line))
            .collect();
        let plan = Box::new(SessionPlan {
            session: self.session,
            flows,
            inactivity: plane.inactivity,
            hold_inactivity: plane.hold_inactivity,
        });
        if self.added {
            plane.commands.push_back(MediaCommand::Update(plan));
        } else {
            self.added = true;
            plane.sessions += 1;
            plane.commands.push_back(MediaCommand::Add(plan));
        }
    }

    fn flow_plan(&self, index: usize, line: &Line) -> Option<FlowPlan> {
        Some(FlowPlan {
            line: index as u8,
            carriage: line.carriage,
            sides: [
                self.side_plan(index, line, 0)?,
                self.side_plan(index, line, 1)?,
            ],
        })
    }

    fn side_plan(&self, index: usize, line: &Line, number: usize) -> Option<SidePlan> {
        let own = line.sides.get(number)?;
        let media = self.sides.get(number)?;
        let may_send = self.gate.is_none_or(|gate| match number {
            0 => gate.forward,
            _ => gate.backward,
        });
        // A side sends the payload types that the other side described; before that is known, its own.
        let mut clock_rates = match line.sides.get(1 - number) {
            Some(other) => other.clock_rates.clone(),
            None => SmallVec::new(),
        };
        for rate in &own.clock_rates {
            if !clock_rates.iter().any(|known| known.0 == rate.0) {
                clock_rates.push(*rate);
            }
        }
        let mut special = own.special.clone();
        if let Some(other) = line.sides.get(1 - number) {
            special.extend_from_slice(&other.special);
        }
        let secure = own.secure.as_deref();
        // With ICE, media comes from and goes to the pair that was nominated.
        let (signalled_rtp, latching) = match secure.and_then(Secure::selected) {
            Some(selected) => (selected, Latching::Signalled),
            None => (own.signalled_rtp, media.latching),
        };
        Some(SidePlan {
            rtp: own.rtp,
            rtcp: own.rtcp,
            ipv6: own.pair.rtp().is_ipv6(),
            signalled_rtp,
            signalled_rtcp: own.signalled_rtcp,
            mux: own.mux,
            latching,
            latch_epoch: 0,
            sends: own.direction.sends && may_send,
            receives: own.direction.receives,
            dscp: media.dscp,
            clock_rates,
            special,
            protection: secure.map_or(Protection::None, Secure::protection),
            dtls: secure.is_some_and(Secure::speaks_dtls),
            recode: self
                .codecs
                .as_ref()
                .and_then(|codecs| codecs.plan(index, number)),
        })
    }

    /// Appends `sdp` as `towards` gets to see it.
    fn write(
        &mut self,
        plane: &mut MediaPlane,
        towards: Side,
        sdp: &[u8],
        offers: bool,
        out: &mut Vec<u8>,
    ) {
        let from = out.len();
        match self.protects() {
            true => self.write_protected(plane, towards, sdp, offers, out),
            false => self.write_plain(towards, sdp, out),
        }
        if self.side(towards).hides {
            hiding::description(out, from);
        }
    }

    fn write_plain(&mut self, towards: Side, sdp: &[u8], out: &mut Vec<u8>) {
        let ports: SmallVec<[u16; 4]> = match describe(sdp) {
            Ok(facts) => facts
                .iter()
                .enumerate()
                .map(|(index, fact)| match self.lines.get_mut(index) {
                    Some(Some(line)) if fact.port != 0 && fact.carriage != Carriage::Stream => {
                        line.sides.get_mut(towards.index()).map_or(0, |side| {
                            side.told = true;
                            side.pair.rtp().port()
                        })
                    }
                    _ => 0,
                })
                .collect(),
            Err(_) => return,
        };
        if let Some(side) = self.sides.get(towards.index()) {
            rewrite(sdp, side.advertised, &ports, out);
        }
    }
}

impl LineSide {
    fn has(&self, socket: SocketId) -> bool {
        self.rtp == socket || self.rtcp == Some(socket)
    }

    /// Takes over what a description says; `mux`: whether RTCP shares the port with RTP, as far as is known.
    fn signal(&mut self, fact: &MediaFacts, mux: bool) {
        self.signalled_rtp = fact.rtp();
        self.signalled_rtcp = fact.rtcp(mux);
        let ice = self.secure.as_ref().is_some_and(|secure| secure.has_ice());
        // Hold by a zero address closes the way to that side.
        self.direction = Direction {
            sends: fact.direction.sends,
            receives: fact.direction.receives && (ice || !fact.is_zero_held()),
        };
        self.clock_rates.clone_from(&fact.clock_rates);
        self.encodings.clone_from(&fact.encodings);
        self.special.clone_from(&fact.special);
    }
}
