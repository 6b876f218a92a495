//! Media of anchored calls: ports, sockets, the forwarder's session, and the rewriting of session descriptions.
//!
//! By offer and answer (RFC 3264): an offer allocates ports on both sides for each new line, an answer puts the
//! forwarder's session into force, a refused offer leaves the previous state in force. Lines that cannot be anchored
//! (MSRP and BFCP over TCP) are forwarded as rejected (port 0); an offer without other lines is refused with 488.
#![forbid(unsafe_code)]

mod branches;
pub mod codecs;
mod descriptions;
mod early_media;
pub mod encodings;
pub mod hiding;
mod pairs;
pub mod participant;
mod saved;
pub mod sdp;
pub mod security;
mod side;
mod side_change;
pub mod sockets;
#[cfg(test)]
mod tests;
mod write;

pub use early_media::EarlyMedia;
pub use encodings::{Encodings, PayloadEncoding};
use pairs::PortAnnouncement;
pub use pairs::PortReplacement;
pub use side::Side;

use codecs::CallCodecs;
use config::{MediaSecurity, Mux, Transcoding};
use core::time::Duration;
use descriptions::ExchangedDescriptions;
use engine::{Deadline, Entropy, HashKey, Reason, SocketId, Time};
use media::ports::{PortPair, PortPool};
use media::{FlowPlan, Latching, MediaCommand, Protection, SessionPlan, SidePlan};
use pairs::{drop_side, new_side};
use sdp::{BadSdp, LineTransport, MediaDirection, MediaFacts, ParsedLines, parse_media};
use security::call::{KeyingState, MediaNotice};
use security::side::SideSecurity;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use sockets::{MediaSocketPool, SocketWork};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Ports of one range of one address.
#[derive(Debug)]
pub struct MediaPool {
    /// First port of the range.
    pub first: u16,
    /// Last port of the range.
    pub last: u16,
    /// The ports.
    pub ports: PortPool,
}

/// Resources shared by the media of all calls.
#[derive(Debug)]
pub struct MediaPlane {
    /// One pool per port range; never removed while its ports are in use.
    pub pools: Vec<MediaPool>,
    /// Media sockets.
    pub sockets: MediaSocketPool,
    /// Commands for the forwarder.
    pub commands: VecDeque<MediaCommand>,
    /// Socket work for the driver.
    pub work: VecDeque<SocketWork>,
    /// Time without media after which a call ends.
    pub inactivity: Option<Duration>,
    /// The same during hold.
    pub hold_inactivity: Option<Duration>,
    /// Sessions in the forwarder.
    pub sessions: usize,
    /// Keying of all calls.
    pub keying: KeyingState,
}

impl MediaPlane {
    /// No pools, sockets or sessions yet; at most `socket_limit` open sockets.
    pub fn new(socket_limit: usize, key: HashKey, entropy: Entropy) -> MediaPlane {
        MediaPlane {
            pools: Vec::new(),
            sockets: MediaSocketPool::new(socket_limit, key),
            commands: VecDeque::new(),
            work: VecDeque::new(),
            inactivity: None,
            hold_inactivity: None,
            sessions: 0,
            keying: KeyingState::new(entropy),
        }
    }

    /// Closes idle sockets after their time.
    pub fn close_idle(&mut self, now: Time) {
        self.sockets.close_idle(now, &mut self.work);
    }

    /// Time of the next close.
    pub fn next_deadline(&self) -> Option<Deadline> {
        let due = self.sockets.next_close()?;
        Some(Deadline::new(due, "idle media ports"))
    }

    /// Ports held by calls.
    pub fn ports_in_use(&self) -> usize {
        self.pools.iter().map(|pool| pool.ports.in_use()).sum()
    }
}

/// Reason why a description was not anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnchorError {
    /// It cannot be parsed.
    Bad(BadSdp),
    /// No port (or socket) is left in this pool.
    Exhausted(u16),
    /// None of its lines can be anchored.
    Unanchorable,
    /// The interface has no address of the address family of its media.
    Family,
    /// It is an encoded part of a multipart body.
    Encoded,
    /// SRTP or its absence, as required by policy, cannot be agreed.
    Protection,
    /// None of its codecs is configured for the conference.
    NoCodec,
    /// No media node is available, or the call's node does not answer.
    NoNode,
}

impl AnchorError {
    /// The declared reason.
    pub fn reason(self) -> Reason {
        match self {
            AnchorError::Bad(bad) => bad.reason(),
            AnchorError::Exhausted(_) => Reason::NoMediaPort,
            AnchorError::Unanchorable => Reason::NothingToAnchor,
            AnchorError::Family => Reason::NoMediaFamily,
            AnchorError::Protection => Reason::NoMediaSecurity,
            AnchorError::NoNode => Reason::NoNode,
            AnchorError::NoCodec => Reason::NoCodec,
            AnchorError::Encoded => Reason::EncodedSdp,
        }
    }

    /// Status of the response to the request with the description.
    pub fn status(self) -> u16 {
        self.reason().status()
    }

    /// Text for events and the Warning header.
    pub fn text(self) -> &'static str {
        self.reason().text()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct LineSide {
    pair: PortPair,
    rtp: SocketId,
    rtcp: Option<SocketId>,
    /// Whether the port has been sent to the peer in a description.
    announced: PortAnnouncement,
    signalled_rtp: Option<SocketAddr>,
    signalled_rtcp: Option<SocketAddr>,
    direction: MediaDirection,
    /// Counts the ends of hold: the port of the side at its NAT may be another then.
    latch_epoch: u32,
    clock_rates: SmallVec<[(u8, u32); 2]>,
    #[serde(with = "encodings::saved")]
    encodings: SmallVec<[(u8, &'static str); 1]>,
    special: SmallVec<[u8; 4]>,
    /// RTCP is multiplexed on the RTP port.
    mux: bool,
    /// Its description states SRTP or ZRTP.
    encrypted: bool,
    /// We have offered multiplexing.
    mux_offered: bool,
    /// Present only in calls with media security.
    security: Option<Box<SideSecurity>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AnchoredLine {
    carriage: media::Carriage,
    /// The last early answer has rejected it. Nothing is relayed; its ports are kept for the answers of other early
    /// dialogs.
    rejected: bool,
    /// Caller's and callee's side; a conference participant has the caller's only.
    sides: SmallVec<[LineSide; 2]>,
}

/// State of one side of a line, for statistics.
#[derive(Clone, Copy, Debug)]
pub struct LineSideView {
    /// Our RTP port.
    pub rtp: SocketAddr,
    /// Our RTCP port, if separate.
    pub rtcp: Option<SocketAddr>,
    /// RTP address that the side signalled.
    pub signalled_rtp: Option<SocketAddr>,
    /// RTCP address that the side signalled.
    pub signalled_rtcp: Option<SocketAddr>,
    /// RTCP is multiplexed on the RTP port.
    pub mux: bool,
    /// Direction, from the side's point of view.
    pub direction: MediaDirection,
}

/// An offer without its final answer.
#[derive(Debug, Serialize, Deserialize)]
struct OpenOffer {
    from: Side,
    facts: ParsedLines,
    /// Lines that this offer added, as bits.
    added: u16,
    /// An early dialog has answered it.
    answered: bool,
}

/// Media parameters of one side of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaSide {
    /// Pool of its ports.
    pub pool: u16,
    /// Address in descriptions (differs from the socket's behind a static NAT).
    pub advertised: IpAddr,
    /// Constraint on learning its address from packets.
    pub latching: Latching,
    /// DSCP towards it.
    pub dscp: u8,
    /// Media security, where configured.
    pub security: Option<Arc<MediaSecurity>>,
    /// Whether topology hiding applies towards it.
    pub hides: bool,
    /// Transcoding policy towards it, where configured.
    pub transcoding: Option<Arc<Transcoding>>,
}

/// The anchored media of one call.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallMedia {
    session: u64,
    added: bool,
    sides: [MediaSide; 2],
    lines: SmallVec<[Option<AnchoredLine>; 1]>,
    offer: Option<Box<OpenOffer>>,
    /// Whether an offer has been answered.
    negotiated: bool,
    /// Pairs replaced because a port was in use by another program.
    replaced_pairs: u8,
    /// By how much the version in `o=` towards each side exceeds that of its author: one for each port that was
    /// replaced after a description had named it (RFC 3264 section 8).
    version_steps: [u64; 2],
    /// The first line was created before an offer: see [`CallMedia::reserve`].
    reserved: bool,
    /// Directions that pass before the answer; `None`: both.
    early_media: Option<EarlyMedia>,
    /// Number of the call in events.
    number: u64,
    /// Earliest requested timeout.
    timeout_at: Option<engine::Time>,
    /// Codec state, where a side has a transcoding policy.
    codecs: Option<Box<CallCodecs>>,
    /// Timer for `timeout_at`, which may be far away and must not outlive the call.
    pub keying_timer: Option<engine::timers::TimerKey>,
    /// Present in a call to a conference.
    participant: Option<Box<participant::ParticipantSettings>>,
    /// The previous parameters of sides during a change.
    previous_sides: Option<Box<side_change::PreviousSides>>,
    /// Callee's sides of contacts that are called at the same time.
    branches: Option<Box<branches::Branches>>,
    /// The last descriptions, while a refresh may need them.
    exchanged: Option<Box<ExchangedDescriptions>>,
}

impl CallMedia {
    /// Media without any negotiation; `session` is the number in the forwarder.
    pub fn new(session: u64, sides: [MediaSide; 2]) -> CallMedia {
        CallMedia {
            session,
            added: false,
            sides,
            lines: SmallVec::new(),
            offer: None,
            negotiated: false,
            replaced_pairs: 0,
            version_steps: [0; 2],
            reserved: false,
            early_media: None,
            number: 0,
            timeout_at: None,
            keying_timer: None,
            codecs: None,
            participant: None,
            previous_sides: None,
            branches: None,
            exchanged: Some(Box::new(ExchangedDescriptions::new())),
        }
    }

    /// Sets the number of the call in events.
    pub fn with_number(mut self, number: u64) -> CallMedia {
        self.number = number;
        self
    }

    /// Limits early media; only before the first offer.
    pub fn with_early_media(mut self, limits: EarlyMedia) -> CallMedia {
        self.early_media = Some(limits);
        self
    }

    /// Whether the forwarder has a session of this media.
    pub fn is_in_forwarder(&self) -> bool {
        self.added
    }

    /// Whether early media is limited.
    pub fn limits_early_media(&self) -> bool {
        self.early_media.is_some()
    }

    /// Changes or removes the limit of early media.
    pub fn set_early_media(&mut self, plane: &mut MediaPlane, limits: Option<EarlyMedia>) {
        if self.early_media != limits {
            self.early_media = limits;
            if self.added {
                self.send_plan(plane);
            }
        }
    }

    /// Creates one audio line for a call with a late offer: a description in a response cannot wait for its sockets
    /// as one in a request can, so they are opened before the call continues.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub fn reserve(&mut self, plane: &mut MediaPlane) -> Result<(), AnchorError> {
        if self.lines.is_empty() {
            let line = self.new_line(plane, media::Carriage::Rtp)?;
            self.lines.push(Some(line));
            self.reserved = true;
        }
        Ok(())
    }

    /// The side whose offer is open, if any.
    pub fn open_offer(&self) -> Option<Side> {
        self.offer.as_ref().map(|offer| offer.from)
    }

    /// Applies an offer of `from`; appends the offer for the other side to `out`.
    ///
    /// # Errors
    /// [`AnchorError`]; nothing has changed then.
    pub fn offer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        offer: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let facts = parse_media(offer).map_err(AnchorError::Bad)?;
        self.abandon(plane);
        let is_active = |facts: &MediaFacts| facts.port != 0;
        let usable =
            |facts: &MediaFacts| is_active(facts) && facts.carriage != LineTransport::Stream;
        if facts.iter().any(is_active) && !facts.iter().any(usable) {
            return Err(AnchorError::Unanchorable);
        }
        let mut added = 0u16;
        if core::mem::take(&mut self.reserved) {
            let first = facts.first().filter(|fact| usable(fact));
            match (
                first.and_then(|fact| fact.carriage.forwarded()),
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
        if self.secures_media() {
            self.evaluate_offer_security(plane, from, offer, &facts, added)?;
        }
        self.offer = Some(Box::new(OpenOffer {
            from,
            facts,
            added,
            answered: false,
        }));
        if !self.negotiated {
            // Early media may arrive before any answer: the session exists from the first offer on.
            self.apply_first_offer();
            self.send_plan(plane);
        }
        let start = out.len();
        self.write_offer(plane, from, offer, out);
        if let Some(exchanged) = &mut self.exchanged {
            exchanged.offered(offer, out.get(start..).unwrap_or_default());
        }
        Ok(())
    }

    /// Writes an offer of `from` for the other side, with codecs added by policy.
    fn write_offer(&mut self, plane: &mut MediaPlane, from: Side, offer: &[u8], out: &mut Vec<u8>) {
        let policy = self
            .sides
            .get(from.other().index())
            .and_then(|side| side.transcoding.clone());
        let readable = self.secures_media();
        // A transcoded call keeps this ability, even if a reload has changed the policy.
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

    /// Writes an answer of `from` for the offerer, and reports transcoding that begins with it.
    fn write_answer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        answer: &[u8],
        out: &mut Vec<u8>,
    ) {
        let readable = self.secures_media();
        let rewritten = self
            .codecs
            .as_mut()
            .and_then(|codecs| codecs.answer(from, answer, readable));
        let changes = self.codecs.as_mut().map(|codecs| codecs.take_changes());
        for (line, kinds) in changes.into_iter().flatten() {
            let notice = MediaNotice::transcoded(self.session, self.number, line, kinds);
            plane.keying.notices.push_back(notice);
        }
        let answer = rewritten.as_deref().unwrap_or(answer);
        self.write(plane, from.other(), answer, false, out);
    }

    /// Applies an answer of `from` to the open offer; appends the answer for the offerer to `out`. A provisional
    /// answer (of one of several early dialogs) leaves the offer open for the others.
    ///
    /// # Errors
    /// [`AnchorError`]; nothing has changed then.
    pub fn answer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        answer: &[u8],
        provisional: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let facts = parse_media(answer).map_err(AnchorError::Bad)?;
        let start = out.len();
        let Some(mut offer) = self.offer.take() else {
            // A repeated answer (200 after a reliable 183): the addresses of the first one remain.
            self.write_answer(plane, from, answer, out);
            self.record_answer(from, answer, out.get(start..).unwrap_or_default());
            return Ok(());
        };
        if self.secures_media()
            && let Err(error) = self.apply_answer_security(plane, &offer, answer, &facts)
        {
            self.offer = Some(offer);
            return Err(error);
        }
        if !provisional {
            self.discard_unanswered_security();
        }
        for index in 0..self.lines.len() {
            let answered_line = facts.get(index).filter(|fact| fact.port != 0);
            let offered_line = offer.facts.get(index).filter(|fact| fact.port != 0);
            match (answered_line, offered_line) {
                (Some(answered), Some(offered)) => {
                    self.apply_line_answer(plane, index, offer.from, offered, answered);
                }
                _ if provisional => {
                    if let Some(Some(line)) = self.lines.get_mut(index) {
                        line.rejected = true;
                    }
                }
                _ => self.drop_line(plane, index),
            }
        }
        self.resume_keying(plane);
        self.write_answer(plane, from, answer, out);
        self.negotiated = true;
        self.side_answered();
        self.send_plan(plane);
        self.record_answer(from, answer, out.get(start..).unwrap_or_default());
        if provisional {
            offer.answered = true;
            self.offer = Some(offer);
        } else if let Some(exchanged) = &mut self.exchanged {
            exchanged.close_offer();
        }
        Ok(())
    }

    fn record_answer(&mut self, from: Side, answer: &[u8], sent: &[u8]) {
        let Some(exchanged) = &mut self.exchanged else {
            return;
        };
        exchanged.answered(from, answer, sent);
        if self.branches.is_some() {
            // The last offer may be that of another contact.
            exchanged.forget(from);
        }
    }

    /// Discards the open offer after a refusal; the previous state remains. An offer that an early dialog has
    /// answered stays as answered.
    pub fn abandon(&mut self, plane: &mut MediaPlane) {
        if let Some(exchanged) = &mut self.exchanged {
            exchanged.close_offer();
        }
        if let Some(offer) = self.offer.take()
            && !offer.answered
        {
            self.drop_lines(plane, offer.added);
            self.abandon_security();
        }
    }

    /// Whether lines are kept that an early answer has rejected.
    pub fn has_rejected_lines(&self) -> bool {
        self.lines.iter().flatten().any(|line| line.rejected)
    }

    /// Releases the lines that the last early answer has rejected: no other early dialog will accept them.
    pub fn release_rejected_lines(&mut self, plane: &mut MediaPlane) {
        for index in 0..self.lines.len() {
            let line = self.lines.get(index).and_then(Option::as_ref);
            if line.is_some_and(|line| line.rejected) {
                self.drop_line(plane, index);
            }
        }
    }

    /// Writes the same offer for another target to `out`.
    pub fn offer_again(&mut self, plane: &mut MediaPlane, offer: &[u8], out: &mut Vec<u8>) {
        if let Some(from) = self.open_offer() {
            self.evaluate_offer_again(plane, offer);
            let start = out.len();
            self.write_offer(plane, from, offer, out);
            if let Some(exchanged) = &mut self.exchanged {
                exchanged.offered_again(out.get(start..).unwrap_or_default());
            }
        }
    }

    /// Whether a socket of this call is still being opened. The last description must not be sent then, because the
    /// port may be in use by another program; the session is notified when each socket is open.
    pub fn defer_until_open(&mut self, plane: &mut MediaPlane) -> bool {
        let mut any = false;
        let sides = self.lines.iter_mut().flatten();
        let sides = sides.flat_map(|line| &mut line.sides);
        let others = self.branches.iter_mut();
        for side in sides.chain(others.flat_map(|branches| branches.sides_mut())) {
            let mut opening = false;
            for socket in core::iter::once(side.rtp).chain(side.rtcp) {
                if plane.sockets.is_opening(socket) {
                    plane.sockets.await_open(socket, self.session);
                    opening = true;
                }
            }
            side.announced.current &= !opening;
            any |= opening;
        }
        any
    }

    /// Lets the media of a side come from the address from which it signals now, if it was bound to such an address. In
    /// force with the next plan.
    pub fn follow_address(&mut self, side: Side, address: IpAddr) {
        if let Some(side) = self.sides.get_mut(side.index())
            && matches!(side.latching, Latching::SameAddress(_))
        {
            side.latching = Latching::SameAddress(address);
        }
    }

    /// Parameters of a side.
    pub fn side(&self, side: Side) -> &MediaSide {
        let [caller, callee] = &self.sides;
        match side {
            Side::Caller => caller,
            Side::Callee => callee,
        }
    }

    /// Removes ICE from the answer to `side`, although its offer had it.
    pub fn answer_without_ice(&mut self, side: Side) {
        for line in self.lines.iter_mut().flatten() {
            if let Some(security) = line
                .sides
                .get_mut(side.index())
                .and_then(|side| side.security.as_deref_mut())
            {
                security.remove_ice();
            }
        }
    }

    /// Number and both sides of each line, with the ports that are in force.
    pub fn line_views(&self) -> impl Iterator<Item = (usize, [LineSideView; 2])> {
        let view = |side: &LineSide| LineSideView {
            rtp: side.pair.rtp(),
            rtcp: side.rtcp.map(|_| side.pair.rtcp()),
            signalled_rtp: side.signalled_rtp,
            signalled_rtcp: side.signalled_rtcp,
            mux: side.mux,
            direction: side.direction,
        };
        let lines = self.lines.iter().enumerate();
        lines.filter_map(move |(index, line)| {
            line.as_ref().filter(|line| !line.rejected)?;
            let view = |number| self.side_in_force(index, number).map(view);
            Some((index, [view(0)?, view(1)?]))
        })
    }

    /// Whether the forwarder has the session, and reports its figures at the end.
    pub fn is_added(&self) -> bool {
        self.added
    }

    /// Encodings of dynamic payload types, by the side that sends them.
    pub fn encodings(&self) -> Encodings {
        let mut found = Encodings::new();
        for index in 0..self.lines.len() {
            for side in Side::BOTH {
                let of = |side: Side| {
                    let own = self.side_in_force(index, side.index());
                    own.map_or(&[][..], |own| &own.encodings)
                };
                // A side sends by the description that it received: the other side's, or ours with transcoding.
                let (first, second) = match self.codecs {
                    Some(_) => (of(side), of(side.other())),
                    None => (of(side.other()), of(side)),
                };
                found.extend(first.iter().chain(second).map(|&(payload_type, name)| {
                    PayloadEncoding {
                        line: index as u8,
                        side,
                        payload_type,
                        name,
                    }
                }));
            }
        }
        found
    }

    /// Whether a socket belongs to this call.
    pub fn uses(&self, socket: SocketId) -> bool {
        self.lines
            .iter()
            .flatten()
            .flat_map(|line| &line.sides)
            .any(|side| side.has(socket))
            || self.is_of_other_branch(socket)
    }

    /// Releases all resources; the forwarder reports the figures of the session.
    pub fn release(mut self, plane: &mut MediaPlane) {
        self.keep_side(plane);
        self.keep_branch(plane);
        for index in 0..self.lines.len() {
            self.drop_line(plane, index);
        }
        if self.added {
            plane.sessions = plane.sessions.saturating_sub(1);
            plane.commands.push_back(MediaCommand::Remove(self.session));
        }
    }

    fn set_line(&mut self, index: usize, line: Option<AnchoredLine>) {
        if let Some(slot) = self.lines.get_mut(index) {
            *slot = line;
        }
    }

    fn new_line(
        &self,
        plane: &mut MediaPlane,
        carriage: media::Carriage,
    ) -> Result<AnchoredLine, AnchorError> {
        let [caller, callee] = &self.sides;
        let caller_side = new_side(plane, caller.pool, carriage)?;
        if self.participant.is_some() {
            return Ok(AnchoredLine {
                carriage,
                rejected: false,
                sides: SmallVec::from_iter([caller_side]),
            });
        }
        match new_side(plane, callee.pool, carriage) {
            Ok(callee_side) => Ok(AnchoredLine {
                carriage,
                rejected: false,
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

    /// Applies the addresses of the offerer from the first offer.
    fn apply_first_offer(&mut self) {
        let Some(offer) = &self.offer else { return };
        for (line, fact) in self.lines.iter_mut().zip(&offer.facts) {
            if let Some(line) = line
                && let Some(side) = line.sides.get_mut(offer.from.index())
            {
                side.signal(fact, fact.mux);
            }
        }
    }

    fn apply_line_answer(
        &mut self,
        plane: &mut MediaPlane,
        index: usize,
        offerer: Side,
        offered: &MediaFacts,
        answered: &MediaFacts,
    ) {
        self.forget_previous_party(index);
        let Some(Some(line)) = self.lines.get_mut(index) else {
            return;
        };
        line.rejected = false;
        if let Some(carriage) = answered.carriage.forwarded() {
            line.carriage = carriage;
        }
        let is_rtp = line.carriage == media::Carriage::Rtp;
        let mux = offered.mux && answered.mux;
        for (side, fact) in [(offerer, offered), (offerer.other(), answered)] {
            let offers = side == offerer;
            if let Some(side) = line.sides.get_mut(side.index()) {
                // Keys and ICE of RTP are kept while the line carries something else, such as a fax, and do not apply
                // to it.
                let security = side.security.as_ref().filter(|_| is_rtp);
                side.mux = match (security, offers) {
                    (None, _) => mux,
                    // With media security each side has its own multiplexing.
                    (Some(_), true) => fact.mux,
                    (Some(security), false) => {
                        let demanded = security.policy().mux == Some(Mux::Require);
                        (fact.mux || demanded) && side.mux_offered
                    }
                };
                let alone = security.is_some_and(|security| security.shares_port());
                let with_rtcp = is_rtp && !side.mux && !alone;
                side.signal(fact, side.mux);
                if with_rtcp && side.rtcp.is_none() {
                    // Without a socket for RTCP the call continues without RTCP.
                    side.rtcp = plane.sockets.acquire(side.pair.rtcp(), &mut plane.work);
                } else if !with_rtcp && let Some(socket) = side.rtcp.take() {
                    plane.sockets.release(socket, plane.keying.now);
                }
            }
        }
    }

    /// Sends the current plan to the forwarder.
    fn send_plan(&mut self, plane: &mut MediaPlane) {
        self.claim_sockets(plane);
        if self.participant.is_some() {
            return self.command_participant(plane);
        }
        let flows = self
            .lines
            .iter()
            .enumerate()
            .filter_map(|(index, line)| Some((index, line.as_ref()?)))
            .filter(|(_, line)| !line.rejected)
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

    fn flow_plan(&self, index: usize, line: &AnchoredLine) -> Option<FlowPlan> {
        Some(FlowPlan {
            line: index as u8,
            carriage: line.carriage,
            sides: [
                self.side_plan(index, line, 0)?,
                self.side_plan(index, line, 1)?,
            ],
        })
    }

    fn side_plan(&self, index: usize, line: &AnchoredLine, number: usize) -> Option<SidePlan> {
        let (own, security) = self.in_force(index, number, line.sides.get(number)?);
        let other =
            (line.sides.get(1 - number)).map(|side| self.in_force(index, 1 - number, side).0);
        let media = self.sides.get(number)?;
        let may_send = self.early_media.is_none_or(|limits| match number {
            0 => limits.forward,
            _ => limits.backward,
        });
        // A side sends the payload types of the other side's description; before that is known, its own.
        let mut clock_rates = match other {
            Some(other) => other.clock_rates.clone(),
            None => SmallVec::new(),
        };
        for rate in &own.clock_rates {
            if !clock_rates.iter().any(|existing| existing.0 == rate.0) {
                clock_rates.push(*rate);
            }
        }
        let mut special = own.special.clone();
        if let Some(other) = other {
            special.extend_from_slice(&other.special);
        }
        // With ICE, RTP uses the nominated pair.
        let ice = security.filter(|_| line.carriage == media::Carriage::Rtp);
        let (signalled_rtp, latching) = match ice.and_then(SideSecurity::selected) {
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
            latch_epoch: own.latch_epoch,
            sends: own.direction.sends && may_send,
            receives: own.direction.receives,
            dscp: media.dscp,
            clock_rates,
            special,
            // Also while the line carries something else than RTP: a later context with the same key would repeat its
            // keystream.
            protection: security.map_or(Protection::None, SideSecurity::protection),
            dtls: security.is_some_and(SideSecurity::has_dtls),
            hides: media.hides,
            plain_rtcp: !line.sides.iter().any(LineSide::may_pass_srtp),
            transcode: self
                .codecs
                .as_ref()
                .and_then(|codecs| codecs.plan(index, number)),
            refused: self
                .codecs
                .as_ref()
                .map(|codecs| codecs.refused(index, number))
                .unwrap_or_default(),
        })
    }
}

impl LineSide {
    fn has(&self, socket: SocketId) -> bool {
        self.rtp == socket || self.rtcp == Some(socket)
    }

    /// Whether SRTP of this side may be relayed without keys.
    fn may_pass_srtp(&self) -> bool {
        let security = self.security.as_deref();
        let protection = security.map_or(Protection::None, SideSecurity::protection);
        self.encrypted && protection == Protection::None
    }

    /// Applies the description of the side; `mux`: whether RTCP is multiplexed, as far as is known.
    fn signal(&mut self, fact: &MediaFacts, mux: bool) {
        // Hold by a zero address (RFC 2543) names no other source of music on hold, and RTCP is sent as before.
        if !fact.is_zero_held() {
            self.signalled_rtp = fact.rtp();
            self.signalled_rtcp = fact.rtcp(mux);
        }
        let ice = fact.carriage == LineTransport::Rtp
            && (self.security.as_ref()).is_some_and(|security| security.has_ice());
        // Hold by a zero address stops media to that side.
        let direction = MediaDirection {
            sends: fact.direction.sends,
            receives: fact.direction.receives && (ice || !fact.is_zero_held()),
        };
        let resumes = |before: bool, now: bool| !before && now;
        if resumes(self.direction.sends, direction.sends)
            || resumes(self.direction.receives, direction.receives)
        {
            self.latch_epoch = self.latch_epoch.wrapping_add(1);
        }
        self.direction = direction;
        self.clock_rates.clone_from(&fact.clock_rates);
        self.encodings.clone_from(&fact.encodings);
        self.special.clone_from(&fact.special);
        self.encrypted = fact.encrypted;
    }
}
