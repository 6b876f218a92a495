//! Calls whose media we protect on a side or on both: each side has keys of its own, and RTP in the clear between them.

use super::protected::{self, Look, Said};
use super::sdp::{Carriage, Described, describe};
use super::secure::{Datagrams, Means, Secure, Tell, Turn, Why};
use super::{AnchorError, CallMedia, Line, LineSide, MediaPlane, Offer};
use crate::border::{Alarm, Core};
use crate::call::{CallKey, Side};
use crate::config::{Keying, MediaSecurity, Mux};
use codec::kind::Kind;
use engine::{DropReason, Drops, Entropy, Note, SocketId, Time};
use protect::dtls;
use protect::srtp::Suite;
use sip::Endpoint;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// What happened to the protection of a side.
#[derive(Debug)]
pub(crate) enum MediaWord {
    /// It has keys.
    Keyed(Keying, Suite),
    /// There will be none, for this reason.
    Failed(Why),
    /// ICE has it that media goes there.
    Nominated(SocketAddr),
    /// The peer has stopped agreeing to be sent to.
    ConsentLost,
    /// ICE found no way.
    IceFailed,
    /// Its speech is transcoded: what caller and callee speak.
    Transcoded([Kind; 2]),
}

/// The same, with whose it is.
#[derive(Debug)]
pub(crate) struct MediaNote {
    pub(crate) session: u64,
    number: u64,
    side: Side,
    line: usize,
    word: MediaWord,
    /// The call cannot go on.
    pub(crate) ends: bool,
}

impl MediaNote {
    /// As it is told.
    pub(crate) fn event(&self) -> Note {
        let call = self.number;
        let side = self.side.name().to_owned();
        let line = self.line as u64;
        match &self.word {
            MediaWord::Keyed(keying, suite) => Note::MediaKeyed {
                call,
                side,
                line,
                keying: match keying {
                    Keying::Sdes => "sdes",
                    Keying::Dtls => "dtls",
                }
                .to_owned(),
                suite: suite.name().to_owned(),
            },
            MediaWord::Failed(why) => Note::MediaNotKeyed {
                call,
                side,
                line,
                why: why.clone(),
            },
            MediaWord::Transcoded([caller, callee]) => Note::MediaTranscoded {
                call,
                line,
                caller: caller.name().to_owned(),
                callee: callee.name().to_owned(),
            },
            MediaWord::Nominated(address) => Note::MediaPairNominated {
                call,
                side,
                line,
                address: address.to_string(),
            },
            MediaWord::ConsentLost => Note::MediaConsentLost { call, side, line },
            MediaWord::IceFailed => Note::MediaIceFailed { call, side, line },
        }
    }
}

/// Why something that nobody waits for on a media port is dropped.
pub(crate) fn unexpected(bytes: &[u8]) -> DropReason {
    use wire::stun::{MediaProtocol, media_protocol};
    match media_protocol(bytes) {
        MediaProtocol::Stun => DropReason::StunUnexpected,
        MediaProtocol::Dtls => DropReason::DtlsUnexpected,
        _ => DropReason::MediaNoFlow,
    }
}

impl MediaNote {
    /// The speech of a call's line is transcoded.
    pub(crate) fn transcoded(session: u64, number: u64, line: usize, kinds: [Kind; 2]) -> Self {
        MediaNote {
            session,
            number,
            side: Side::Caller,
            line,
            word: MediaWord::Transcoded(kinds),
            ends: false,
        }
    }
}

/// What the protection of all calls needs, and what it has to say.
#[derive(Debug)]
pub(crate) struct Keyer {
    entropy: Entropy,
    /// Certificate and settings of DTLS, where it is spoken.
    pub(crate) dtls: Option<dtls::Endpoint>,
    pub(crate) now: Time,
    /// STUN and DTLS to be sent.
    pub(crate) datagrams: Datagrams,
    sending: Vec<u8>,
    pub(super) notes: VecDeque<MediaNote>,
    /// Calls that want to be told the time, and when.
    wakes: VecDeque<(u64, Time)>,
    /// Candidates that were beyond what is kept, and that were not counted yet.
    candidates_dropped: u64,
}

impl Keyer {
    pub(crate) fn new(entropy: Entropy) -> Keyer {
        Keyer {
            entropy,
            dtls: None,
            now: Time::ZERO,
            datagrams: VecDeque::new(),
            sending: Vec::new(),
            notes: VecDeque::new(),
            wakes: VecDeque::new(),
            candidates_dropped: 0,
        }
    }

    /// Counts what was dropped.
    pub(crate) fn count_drops(&mut self, drops: &mut Drops) {
        let dropped = core::mem::take(&mut self.candidates_dropped);
        drops.add(DropReason::IceCandidate, dropped);
    }

    /// The next datagram to be sent.
    pub(crate) fn next_datagram(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let (socket, destination, bytes) = self.datagrams.pop_front()?;
        self.sending = bytes;
        Some((socket, destination, &self.sending))
    }

    /// The next session that wants to be told the time, and when.
    pub(crate) fn next_wake(&mut self) -> Option<(u64, Time)> {
        self.wakes.pop_front()
    }

    /// The next thing that happened to the protection of a side.
    pub(crate) fn next_told(&mut self) -> Option<MediaNote> {
        self.notes.pop_front()
    }

    /// The next note, for tests.
    #[cfg(test)]
    pub(super) fn next_note(&mut self) -> Option<(Side, MediaWord)> {
        let note = self.notes.pop_front()?;
        Some((note.side, note.word))
    }

    fn means(&mut self) -> Means<'_> {
        Means {
            entropy: &mut self.entropy,
            dtls: self.dtls.as_ref(),
            now: self.now,
            candidates_dropped: &mut self.candidates_dropped,
        }
    }

    /// What keying needs, and where its datagrams go.
    fn parts(&mut self) -> (Means<'_>, &mut Datagrams) {
        let means = Means {
            entropy: &mut self.entropy,
            dtls: self.dtls.as_ref(),
            now: self.now,
            candidates_dropped: &mut self.candidates_dropped,
        };
        (means, &mut self.datagrams)
    }
}

impl Line {
    /// Both sides have a place for their protection, with the policy that holds now.
    fn protect(&mut self, policies: [&Arc<MediaSecurity>; 2]) {
        for (side, policy) in self.sides.iter_mut().zip(policies) {
            if side
                .secure
                .as_ref()
                .is_none_or(|secure| secure.policy() != policy)
            {
                side.secure = Some(Box::new(Secure::new(policy.clone())));
            }
        }
    }

    fn secure(&mut self, side: Side) -> Option<&mut Secure> {
        self.sides.get_mut(side.index())?.secure.as_deref_mut()
    }
}

impl CallMedia {
    /// Whether some side asks us to protect media, to see to it that it is not protected, or to do ICE.
    pub(super) fn protects(&self) -> bool {
        self.sides
            .iter()
            .filter_map(|side| side.security.as_ref())
            .any(|security| !security.is_pass())
    }

    fn note(&self, plane: &mut MediaPlane, side: Side, line: usize, word: MediaWord, ends: bool) {
        plane.keyer.notes.push_back(MediaNote {
            session: self.session,
            number: self.number,
            side,
            line,
            word,
            ends,
        });
    }

    fn protect_lines(&mut self) {
        let default = Arc::default();
        let [caller, callee] = &self.sides;
        let policies = [caller, callee].map(|side| side.security.as_ref().unwrap_or(&default));
        for line in self.lines.iter_mut().flatten() {
            if line.carriage == media::Carriage::Rtp {
                line.protect(policies);
            }
        }
    }

    /// Judges the lines of an offer: a new line that cannot be accepted is left out; where that is so of one that stands, or of all,
    /// the offer is refused.
    pub(super) fn judge_offer(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        offer: &[u8],
        facts: &Described,
        added: u16,
    ) -> Result<(), AnchorError> {
        self.protect_lines();
        let said = protected::said(offer);
        let mut refused = 0u16;
        let mut stands = false;
        for (index, (said, fact)) in said.iter().zip(facts).enumerate() {
            if fact.port == 0 || fact.carriage != Carriage::Rtp {
                continue;
            }
            let Some(Some(line)) = self.lines.get_mut(index) else {
                continue;
            };
            let Some(secure) = line.secure(from) else {
                continue;
            };
            if let Err(why) = secure.take_offer(said, &mut plane.keyer.means()) {
                self.note(plane, from, index, MediaWord::Failed(why), false);
                refused |= 1 << index;
                stands |= added & (1 << index) == 0;
            }
        }
        if refused == 0 {
            return Ok(());
        }
        let left = facts.iter().enumerate().any(|(index, fact)| {
            let open = self.lines.get(index).is_some_and(Option::is_some);
            fact.port != 0 && open && refused & (1 << index) == 0
        });
        if stands || !left {
            self.drop_lines(plane, added);
            return Err(AnchorError::Protection);
        }
        self.drop_lines(plane, refused);
        Ok(())
    }

    /// Takes what an answer says of protection, and puts the offer's in force.
    pub(super) fn judge_answer(
        &mut self,
        plane: &mut MediaPlane,
        offer: &Offer,
        answer: &[u8],
        facts: &Described,
    ) -> Result<(), AnchorError> {
        let said = protected::said(answer);
        let offerer = self.sides.get(offer.from.index());
        let Some(advertised) = offerer.map(|side| side.advertised) else {
            return Ok(());
        };
        for (index, (said, fact)) in said.iter().zip(facts).enumerate() {
            let offered = offer.facts.get(index).is_some_and(|fact| fact.port != 0);
            if fact.port == 0 || !offered {
                continue;
            }
            let answerer = offer.from.other();
            let Some(Some(line)) = self.lines.get_mut(index) else {
                continue;
            };
            let mut means = plane.keyer.means();
            let own = line.sides.get(offer.from.index());
            let address = own.map(|side| SocketAddr::new(advertised, side.pair.rtp().port()));
            let Some(address) = address else { continue };
            let Some(secure) = line.secure(answerer) else {
                // A conference of ours has answered.
                let given = line
                    .secure(offer.from)
                    .and_then(|secure| secure.answer_given(address, &mut means));
                if let Some(Tell::Keyed(keying, suite)) = given {
                    self.note(
                        plane,
                        offer.from,
                        index,
                        MediaWord::Keyed(keying, suite),
                        false,
                    );
                }
                continue;
            };
            let taken = secure.take_answer(said, &mut means);
            let given = match (&taken, line.secure(offer.from)) {
                (Ok(_), Some(secure)) => secure.answer_given(address, &mut means),
                _ => None,
            };
            match taken {
                Ok(told) => {
                    for (side, told) in [(answerer, told), (offer.from, given)] {
                        if let Some(Tell::Keyed(keying, suite)) = told {
                            self.note(plane, side, index, MediaWord::Keyed(keying, suite), false);
                        }
                    }
                }
                Err(why) => {
                    self.note(plane, answerer, index, MediaWord::Failed(why), false);
                    return Err(AnchorError::Protection);
                }
            }
        }
        Ok(())
    }

    /// Goes on with handshakes after an answer.
    pub(super) fn resume_keying(&mut self, plane: &mut MediaPlane) {
        if !self.protects() {
            return;
        }
        self.each_keyed(plane, |secure, side, turn, means, out| {
            secure.signalled(side.signalled, means);
            secure.resume(means);
            secure.pump(side.socket, turn, out);
            // The first check leaves at once.
            secure.timeout(side.socket, turn, means, out);
        });
    }

    /// Lets each side with something to negotiate in its media path do something; tells what came of it.
    fn each_keyed(
        &mut self,
        plane: &mut MediaPlane,
        mut act: impl FnMut(&mut Secure, &Place, &mut Turn, &mut Means<'_>, &mut Datagrams),
    ) -> bool {
        let mut words: SmallVec<[(Side, usize, Tell); 2]> = SmallVec::new();
        let mut changed = false;
        for (index, line) in self.lines.iter_mut().enumerate() {
            let Some(line) = line else { continue };
            for (side, own) in [Side::Caller, Side::Callee]
                .into_iter()
                .zip(&mut line.sides)
            {
                let place = Place {
                    socket: own.rtp,
                    signalled: own.signalled_rtp,
                };
                let Some(secure) = own.secure.as_deref_mut().filter(|secure| secure.listens())
                else {
                    continue;
                };
                let (mut means, out) = plane.keyer.parts();
                let mut turn = Turn::default();
                act(secure, &place, &mut turn, &mut means, out);
                changed |= turn.changed;
                words.extend(turn.said.into_iter().map(|said| (side, index, said)));
            }
        }
        for (side, line, said) in words {
            let (word, ends) = match said {
                Tell::Keyed(keying, suite) => (MediaWord::Keyed(keying, suite), false),
                Tell::Failed(why) => (MediaWord::Failed(why), true),
                Tell::Nominated(address) => (MediaWord::Nominated(address), false),
                Tell::ConsentLost => (MediaWord::ConsentLost, false),
                Tell::IceFailed => (MediaWord::IceFailed, false),
            };
            self.note(plane, side, line, word, ends);
        }
        self.schedule(plane);
        changed
    }

    /// Asks to be told the time when something is due.
    fn schedule(&mut self, plane: &mut MediaPlane) {
        let mut due: Option<Time> = None;
        let sides = self.lines.iter().flatten().flat_map(|line| &line.sides);
        for secure in sides.filter_map(|side| side.secure.as_deref()) {
            if let Some(at) = secure.next_deadline(plane.keyer.now) {
                due = Some(due.map_or(at, |due| due.min(at)));
            }
        }
        let Some(due) = due else { return };
        if self.wake.is_none_or(|wake| due < wake) {
            self.wake = Some(due);
            plane.keyer.wakes.push_back((self.session, due));
        }
    }

    /// STUN and DTLS that come to a port of ours are passed up to us.
    pub(super) fn listen(&self, plane: &mut MediaPlane) {
        for side in self.lines.iter().flatten().flat_map(|line| &line.sides) {
            if side.secure.as_ref().is_some_and(|secure| secure.listens()) {
                plane.sockets.own(side.rtp, self.session);
            }
        }
    }

    /// Something that the forwarder passed up.
    pub(crate) fn datagram(
        &mut self,
        plane: &mut MediaPlane,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let [caller, callee] = &self.sides;
        let latchings = [caller.latching, callee.latching];
        let mut result = Err(DropReason::MediaNoFlow);
        let changed = self.each_keyed(plane, |secure, place, turn, means, out| {
            if place.socket != socket {
                return;
            }
            let [first, second] = latchings;
            let latching = match first == second {
                true => first,
                // Which of the two it is matters only without ICE; the wider one leaves the proof to the handshake.
                false => media::Latching::Anywhere,
            };
            let way = (latching, place.signalled);
            match secure.datagram(socket, source, bytes, way, means, out) {
                Ok(now) => {
                    *turn = now;
                    result = Ok(());
                }
                Err(reason) => result = Err(reason),
            }
        });
        if changed {
            self.command(plane);
        }
        result
    }

    /// The time has come that was asked for.
    pub(crate) fn keying_due(&mut self, plane: &mut MediaPlane) {
        self.wake = None;
        self.wake_timer = None;
        let changed = self.each_keyed(plane, |secure, place, turn, means, out| {
            secure.timeout(place.socket, turn, means, out);
        });
        if changed {
            self.command(plane);
        }
    }

    /// Appends `sdp` as `towards` gets to see it.
    pub(super) fn write_protected(
        &mut self,
        plane: &mut MediaPlane,
        towards: Side,
        sdp: &[u8],
        offers: bool,
        out: &mut Vec<u8>,
    ) {
        let Ok(facts) = describe(sdp) else { return };
        self.protect_lines();
        let said = protected::said(sdp);
        let Some(advertised) = self.sides.get(towards.index()).map(|side| side.advertised) else {
            return;
        };
        let mut looks: SmallVec<[Look; 2]> = SmallVec::new();
        for (index, fact) in facts.iter().enumerate() {
            let mut look = Look {
                foreign: fact.carriage != Carriage::Rtp,
                ..Look::default()
            };
            let usable = fact.port != 0 && fact.carriage != Carriage::Stream;
            if let Some(Some(line)) = self.lines.get_mut(index).filter(|_| usable) {
                let said = said.get(index);
                let browser = line
                    .secure(towards.other())
                    .is_some_and(|secure| secure.is_browser());
                if let Some(side) = line.sides.get_mut(towards.index()) {
                    side.told = true;
                    look.port = side.pair.rtp().port();
                    let address = SocketAddr::new(advertised, look.port);
                    let means = &mut plane.keyer.means();
                    side.look(said, offers, browser, address, means, &mut look);
                }
            }
            looks.push(look);
        }
        // With ICE a zero address says that there is no address yet, not that the line is held (RFC 8839 section 4.3.1).
        let zero_holds = !self.lines.iter_mut().flatten().any(|line| {
            line.secure(towards.other())
                .is_some_and(|secure| secure.has_ice())
        });
        protected::write(sdp, advertised, &looks, zero_holds, out);
        self.listen(plane);
    }
}

/// Where a side's media comes in.
struct Place {
    socket: SocketId,
    signalled: Option<SocketAddr>,
}

impl LineSide {
    /// How our description of the line looks to this side.
    fn look(
        &mut self,
        said: Option<&Said<'_>>,
        offers: bool,
        browser: bool,
        address: SocketAddr,
        means: &mut Means<'_>,
        look: &mut Look,
    ) {
        let Some(secure) = &mut self.secure else {
            return;
        };
        if offers {
            secure.make_offer(said.and_then(|said| said.profile), browser, address, means);
            let offered = || said.is_some_and(|said| said.mux);
            self.mux_offered = secure.listens()
                || match secure.policy().mux {
                    None => self.mux || offered(),
                    Some(Mux::Offer | Mux::Require) => true,
                    Some(Mux::Separate) => false,
                };
        }
        let mux = if offers { self.mux_offered } else { self.mux };
        *look = secure.look(offers, mux, address, means);
    }
}

impl Core {
    /// STUN or DTLS on a media port.
    pub(crate) fn media_datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let unexpected = unexpected(bytes);
        let owner = self.plane.sockets.owner(socket).ok_or(unexpected)?;
        let slot = self.slot_of(CallKey(owner)).ok_or(unexpected)?;
        let media = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.as_deref_mut())
            .ok_or(unexpected)?;
        media.datagram(&mut self.plane, socket, source, bytes)
    }

    /// The time that a call's keying asked for has come.
    pub(crate) fn keying_due(&mut self, key: CallKey) {
        if let Some(slot) = self.slot_of(key)
            && let Some(media) = self
                .calls
                .get_mut(slot)
                .and_then(|call| call.media.as_deref_mut())
        {
            media.keying_due(&mut self.plane);
        }
    }

    /// Tells what came of protecting media, and ends the calls that cannot have it.
    pub(crate) fn settle_media(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some((session, at)) = self.plane.keyer.next_wake() {
            // A call that has ended in the meantime needs no waking.
            let media = self
                .slot_of(CallKey(session))
                .and_then(|slot| self.calls.get_mut(slot)?.media.as_deref_mut());
            let Some(media) = media else { continue };
            let timer = self.timers.schedule(at, Alarm::Keying(CallKey(session)));
            if let Some(later) = media.wake_timer.replace(timer) {
                self.timers.cancel(later);
            }
        }
        self.plane.keyer.count_drops(&mut self.drops);
        while let Some(note) = self.plane.keyer.next_told() {
            self.tell_protection(endpoint, note, now);
        }
    }

    fn tell_protection(&mut self, endpoint: &mut Endpoint, note: MediaNote, now: Time) {
        if let MediaWord::Transcoded(kinds) = note.word {
            self.take_cost_of_transcoding(CallKey(note.session), kinds);
        }
        if let MediaWord::Keyed(keying, suite) = note.word {
            let whose = (note.line, note.side);
            self.take_cost_of_keys(CallKey(note.session), whose, (keying, suite), now);
        }
        self.events.tell(now, || note.event());
        if note.ends
            && let Some(slot) = self.slot_of(CallKey(note.session))
        {
            let reason = b"SIP;cause=488;text=\"Media keys\"";
            self.give_up(endpoint, slot, "media keys", reason, now);
        }
    }
}
