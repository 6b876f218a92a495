//! Media security of a call: each side has its own keys, and RTP between both sides is in the clear.

use super::sdp::{LineRewrite, SecurityAttributes, security_attributes, write_description};
use super::side::{
    Datagrams, KeyingContext, MediaEndpoint, SecurityEvent, SecurityFailure, SecurityOutput,
    SideSecurity,
};
use crate::Side;
use crate::sdp::{LineTransport, ParsedLines, parse_media};
use crate::side_change::{former_parties, former_parties_mut, ports_in_force, ports_in_force_mut};
use crate::{AnchorError, AnchoredLine, CallMedia, LineSide, MediaPlane, OpenOffer};
use codec::kind::Kind;
use config::{Keying, MediaSecurity, Mux};
use engine::{DropReason, Drops, Entropy, EventKind, SocketId, Time};
use protect::dtls;
use protect::srtp::Suite;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// An event of one side's media.
#[derive(Debug)]
pub enum MediaStatus {
    /// Keys are agreed.
    Keyed(Keying, Suite),
    /// Keying has failed, for this reason.
    Failed(SecurityFailure),
    /// ICE has nominated a pair with this address.
    Nominated(SocketAddr),
    /// The peer's consent has expired.
    ConsentLost,
    /// ICE has found no working pair.
    IceFailed,
    /// Transcoding has begun between these codecs of caller and callee.
    Transcoded([Kind; 2]),
}

/// An event with its call, side and line.
#[derive(Debug)]
pub struct MediaNotice {
    /// Session of the call in the forwarder.
    pub session: u64,
    number: u64,
    /// The side.
    pub side: Side,
    /// Index of the line.
    pub line: usize,
    /// The event.
    pub status: MediaStatus,
    /// The call has to end.
    pub is_fatal: bool,
}

impl MediaNotice {
    /// The event for the log.
    pub fn event(&self) -> EventKind {
        let call = self.number;
        let side = self.side.name().to_owned();
        let line = self.line as u64;
        match &self.status {
            MediaStatus::Keyed(keying, suite) => EventKind::MediaSecurityAgreed {
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
            MediaStatus::Failed(failure) => EventKind::MediaSecurityFailed {
                call,
                side,
                line,
                reason: failure.clone(),
            },
            MediaStatus::Transcoded([caller, callee]) => EventKind::MediaTranscoded {
                call,
                line,
                caller_codec: caller.name().to_owned(),
                callee_codec: callee.name().to_owned(),
            },
            MediaStatus::Nominated(address) => EventKind::MediaPairNominated {
                call,
                side,
                line,
                address: address.to_string(),
            },
            MediaStatus::ConsentLost => EventKind::MediaConsentLost { call, side, line },
            MediaStatus::IceFailed => EventKind::MediaIceFailed { call, side, line },
        }
    }
}

/// Drop reason of an unexpected packet on a media port.
pub fn unexpected_reason(bytes: &[u8]) -> DropReason {
    use wire::stun::{MediaProtocol, media_protocol};
    match media_protocol(bytes) {
        MediaProtocol::Stun => DropReason::StunUnexpected,
        MediaProtocol::Dtls => DropReason::DtlsUnexpected,
        _ => DropReason::MediaNoFlow,
    }
}

impl MediaNotice {
    /// Transcoding of a call's line has begun.
    pub fn transcoded(session: u64, number: u64, line: usize, kinds: [Kind; 2]) -> Self {
        MediaNotice {
            session,
            number,
            side: Side::Caller,
            line,
            status: MediaStatus::Transcoded(kinds),
            is_fatal: false,
        }
    }
}

/// State of keying that all calls share.
#[derive(Debug)]
pub struct KeyingState {
    entropy: Entropy,
    /// DTLS certificate and settings, if configured.
    pub dtls: Option<dtls::DtlsEndpoint>,
    /// Time of the current input.
    pub now: Time,
    /// STUN and DTLS datagrams to send.
    pub datagrams: Datagrams,
    sending: Vec<u8>,
    pub(crate) notices: VecDeque<MediaNotice>,
    /// Sessions with a requested timeout.
    timeout_requests: VecDeque<(u64, Time)>,
    /// Candidates above the limit that were not counted yet.
    candidates_dropped: u64,
}

impl KeyingState {
    /// No DTLS, and nothing pending.
    pub fn new(entropy: Entropy) -> KeyingState {
        KeyingState {
            entropy,
            dtls: None,
            now: Time::ZERO,
            datagrams: VecDeque::new(),
            sending: Vec::new(),
            notices: VecDeque::new(),
            timeout_requests: VecDeque::new(),
            candidates_dropped: 0,
        }
    }

    /// Adds the dropped candidates to the drop counters.
    pub fn count_drops(&mut self, drops: &mut Drops) {
        let dropped = core::mem::take(&mut self.candidates_dropped);
        drops.add(DropReason::IceTooManyCandidates, dropped);
    }

    /// The next datagram to send.
    pub fn next_datagram(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let (socket, destination, bytes) = self.datagrams.pop_front()?;
        self.sending = bytes;
        Some((socket, destination, &self.sending))
    }

    /// The next session with a requested timeout, and its time.
    pub fn next_timeout_request(&mut self) -> Option<(u64, Time)> {
        self.timeout_requests.pop_front()
    }

    /// The next notice.
    pub fn next_notice(&mut self) -> Option<MediaNotice> {
        self.notices.pop_front()
    }

    /// The next status, for tests.
    #[cfg(test)]
    pub(crate) fn next_status(&mut self) -> Option<(Side, MediaStatus)> {
        let notice = self.notices.pop_front()?;
        Some((notice.side, notice.status))
    }

    fn context(&mut self) -> KeyingContext<'_> {
        KeyingContext {
            entropy: &mut self.entropy,
            dtls: self.dtls.as_ref(),
            now: self.now,
            candidates_dropped: &mut self.candidates_dropped,
            datagrams: &mut self.datagrams,
        }
    }
}

impl AnchoredLine {
    /// Gives both sides security state with the current policy.
    fn set_policies(&mut self, policies: [&Arc<MediaSecurity>; 2]) {
        for (side, policy) in self.sides.iter_mut().zip(policies) {
            match &mut side.security {
                Some(security) if security.policy() == policy => {}
                Some(security) => **security = security.with_policy(policy.clone()),
                none => *none = Some(Box::new(SideSecurity::new(policy.clone()))),
            }
        }
    }

    fn security_of(&mut self, side: Side) -> Option<&mut SideSecurity> {
        self.sides.get_mut(side.index())?.security.as_deref_mut()
    }
}

impl CallMedia {
    /// Whether the policy of either side requires or forbids SRTP, or uses ICE.
    pub(crate) fn policies_secure_media(&self) -> bool {
        self.sides
            .iter()
            .filter_map(|side| side.security.as_ref())
            .any(|security| !security.is_pass())
    }

    /// Whether we terminate media security: by policy, or because a side has agreed on it with us before the other side
    /// changed to a party without a policy.
    pub(crate) fn secures_media(&self) -> bool {
        self.policies_secure_media()
            || (self.lines.iter().flatten())
                .flat_map(|line| &line.sides)
                .filter_map(|side| side.security.as_ref())
                .any(|security| security.is_in_use())
    }

    /// A notice after which the call continues.
    fn notice(&self, side: Side, line: usize, status: MediaStatus) -> MediaNotice {
        MediaNotice {
            session: self.session,
            number: self.number,
            side,
            line,
            status,
            is_fatal: false,
        }
    }

    fn notify(&self, plane: &mut MediaPlane, side: Side, line: usize, status: MediaStatus) {
        let notice = self.notice(side, line, status);
        plane.keying.notices.push_back(notice);
    }

    /// Gives security state to the lines that carry RTP, now or by the description with these `facts`.
    fn update_line_security(&mut self, facts: &ParsedLines) {
        let default = Arc::default();
        let [caller, callee] = &self.sides;
        let policies = [caller, callee].map(|side| side.security.as_ref().unwrap_or(&default));
        for (index, line) in self.lines.iter_mut().enumerate() {
            let Some(line) = line else { continue };
            let becomes_rtp = facts
                .get(index)
                .is_some_and(|fact| fact.port != 0 && fact.carriage == LineTransport::Rtp);
            if line.carriage == media::Carriage::Rtp || becomes_rtp {
                line.set_policies(policies);
            }
        }
    }

    /// Evaluates the lines of an offer: an unacceptable new line is removed; if an existing line or all lines are
    /// unacceptable, the offer is refused.
    pub(crate) fn evaluate_offer_security(
        &mut self,
        plane: &mut MediaPlane,
        from: Side,
        offer: &[u8],
        facts: &ParsedLines,
        added: u16,
    ) -> Result<(), AnchorError> {
        self.update_line_security(facts);
        let attributes = security_attributes(offer);
        let mut refused = 0u16;
        let mut is_existing = false;
        for (index, (attributes, fact)) in attributes.iter().zip(facts).enumerate() {
            if fact.port == 0 || fact.carriage != LineTransport::Rtp {
                continue;
            }
            let Some(Some(line)) = self.lines.get_mut(index) else {
                continue;
            };
            let Some(security) = line.security_of(from) else {
                continue;
            };
            if let Err(failure) = security.evaluate_offer(attributes, &mut plane.keying.context()) {
                self.notify(plane, from, index, MediaStatus::Failed(failure));
                refused |= 1 << index;
                is_existing |= added & (1 << index) == 0;
            }
        }
        if refused == 0 {
            return Ok(());
        }
        let left = facts.iter().enumerate().any(|(index, fact)| {
            let open = self.lines.get(index).is_some_and(Option::is_some);
            fact.port != 0 && open && refused & (1 << index) == 0
        });
        if is_existing || !left {
            self.drop_lines(plane, added);
            self.abandon_security();
            return Err(AnchorError::Protection);
        }
        self.drop_lines(plane, refused);
        Ok(())
    }

    /// Discards the changes of a refused offer.
    pub(crate) fn abandon_security(&mut self) {
        let lines = self.lines.iter_mut().flatten();
        for side in lines.flat_map(|line| &mut line.sides) {
            if let Some(security) = &mut side.security {
                security.abandon();
            }
        }
    }

    /// Evaluates the security of an open offer that was first written for a contact without media security. A line that
    /// cannot be encrypted is offered as if it were in the clear.
    pub(crate) fn evaluate_offer_again(&mut self, plane: &mut MediaPlane, offer: &[u8]) {
        let Some(from) = self.open_offer().filter(|_| self.secures_media()) else {
            return;
        };
        let is_unknown = |line: &AnchoredLine| {
            line.carriage == media::Carriage::Rtp
                && (line.sides.get(from.index())).is_some_and(|side| side.security.is_none())
        };
        if !self.lines.iter().flatten().any(is_unknown) {
            return;
        }
        self.update_line_security(&ParsedLines::new());
        for (index, attributes) in security_attributes(offer).iter().enumerate() {
            let line = self.lines.get_mut(index).and_then(Option::as_mut);
            let Some(security) = line.and_then(|line| line.security_of(from)) else {
                continue;
            };
            if let Err(failure) = security.evaluate_offer(attributes, &mut plane.keying.context()) {
                self.notify(plane, from, index, MediaStatus::Failed(failure));
            }
        }
    }

    /// Applies the security of an answer, and puts the offerer's into force.
    pub(crate) fn apply_answer_security(
        &mut self,
        plane: &mut MediaPlane,
        offer: &OpenOffer,
        answer: &[u8],
        facts: &ParsedLines,
    ) -> Result<(), AnchorError> {
        let attributes = security_attributes(answer);
        let offerer = self.sides.get(offer.from.index());
        let Some(advertised) = offerer.map(|side| side.advertised) else {
            return Ok(());
        };
        let answerer = offer.from.other();
        for (index, (attributes, fact)) in attributes.iter().zip(facts).enumerate() {
            let offered = offer.facts.get(index).is_some_and(|fact| fact.port != 0);
            if fact.port == 0 || !offered {
                continue;
            }
            let Some(Some(line)) = self.lines.get_mut(index) else {
                continue;
            };
            if fact.carriage != LineTransport::Rtp {
                for side in &mut line.sides {
                    if let Some(security) = &mut side.security {
                        security.answered_without_rtp();
                    }
                }
                continue;
            }
            let mut context = plane.keying.context();
            let result = match line.security_of(answerer) {
                Some(security) => security.apply_answer(attributes, &mut context),
                // A conference has answered.
                None => Ok(None),
            };
            let answerer_event = match result {
                Ok(event) => event,
                Err(failure) => {
                    self.notify(plane, answerer, index, MediaStatus::Failed(failure));
                    return Err(AnchorError::Protection);
                }
            };
            // The line has no such side if a conference has offered.
            let own = line.sides.get_mut(offer.from.index());
            let offerer_event = own.and_then(|own| {
                let address = SocketAddr::new(advertised, own.pair.rtp().port());
                let security = own.security.as_deref_mut()?;
                security.apply_pending(address, &mut context)
            });
            for (side, event) in [(answerer, answerer_event), (offer.from, offerer_event)] {
                if let Some(SecurityEvent::Keyed(keying, suite)) = event {
                    self.notify(plane, side, index, MediaStatus::Keyed(keying, suite));
                }
            }
        }
        Ok(())
    }

    /// Discards offered keying and ICE that the final answer has not agreed on.
    pub(crate) fn discard_unanswered_security(&mut self) {
        let lines = self.lines.iter_mut().flatten();
        for side in lines.flat_map(|line| &mut line.sides) {
            if let Some(security) = &mut side.security {
                security.discard_unanswered();
            }
        }
    }

    /// Continues keying after an answer.
    pub(crate) fn resume_keying(&mut self, plane: &mut MediaPlane) {
        if !self.secures_media() {
            return;
        }
        self.for_each_security(plane, |security, side, output, context| {
            security.set_signalled(side.signalled, context);
            security.resume_keying(context);
            security.drain_dtls(side.socket, output, context.datagrams);
            // The first check is sent at once.
            security.timeout(side.socket, output, context);
        });
    }

    /// Runs `action` for each side with STUN or DTLS, and queues notices of its events.
    fn for_each_security(
        &mut self,
        plane: &mut MediaPlane,
        mut action: impl FnMut(
            &mut SideSecurity,
            &MediaEndpoint,
            &mut SecurityOutput,
            &mut KeyingContext<'_>,
        ),
    ) -> bool {
        let latching = self.sides.each_ref().map(|side| side.latching);
        let mut events: SmallVec<[(Side, usize, SecurityEvent); 2]> = SmallVec::new();
        let mut changed = false;
        let mut step = |security: &mut SideSecurity, local: &MediaEndpoint, side, index| {
            if !security.receives_stun_or_dtls() {
                return;
            }
            let mut context = plane.keying.context();
            let mut output = SecurityOutput::default();
            action(security, local, &mut output, &mut context);
            changed |= output.changed;
            events.extend(output.events.into_iter().map(|event| (side, index, event)));
        };
        // The party that another one is about to replace has media on this port until the answer, and sends its checks
        // of consent there.
        let former = former_parties_mut(self.previous_sides.as_deref_mut());
        for (side, index, latching, security) in former {
            let line = self.lines.get(index).and_then(Option::as_ref);
            if let Some(own) = line.and_then(|line| line.sides.get(side.index())) {
                let local = MediaEndpoint {
                    socket: own.rtp,
                    signalled: own.signalled_rtp,
                    latching,
                    is_former: true,
                };
                step(security, &local, side, index);
            }
        }
        let lines = self.lines.iter_mut().enumerate();
        let lines = lines.filter_map(|(index, line)| Some((index, line.as_mut()?)));
        let sides = lines.flat_map(|(index, line)| {
            let sides = Side::BOTH.into_iter().zip(&mut line.sides);
            sides.map(move |(side, own)| (side, index, own))
        });
        // Ports that a further offer replaces have media until its answer, and the peer's checks of consent (RFC 7675).
        let previous = ports_in_force_mut(self.previous_sides.as_deref_mut());
        for (side, index, own) in sides.chain(previous) {
            let [caller, callee] = latching;
            let local = MediaEndpoint {
                socket: own.rtp,
                signalled: own.signalled_rtp,
                latching: match side {
                    Side::Caller => caller,
                    Side::Callee => callee,
                },
                is_former: false,
            };
            if let Some(security) = own.security.as_deref_mut() {
                step(security, &local, side, index);
            }
        }
        for (side, line, event) in events {
            // Without keys the media of an established line cannot continue.
            let is_fatal = matches!(event, SecurityEvent::Failed(_));
            let status = match event {
                SecurityEvent::Keyed(keying, suite) => MediaStatus::Keyed(keying, suite),
                SecurityEvent::Failed(failure) => MediaStatus::Failed(failure),
                SecurityEvent::Nominated(address) => MediaStatus::Nominated(address),
                SecurityEvent::ConsentLost => MediaStatus::ConsentLost,
                SecurityEvent::IceFailed => MediaStatus::IceFailed,
            };
            plane.keying.notices.push_back(MediaNotice {
                is_fatal,
                ..self.notice(side, line, status)
            });
        }
        self.request_timeout(plane);
        changed
    }

    /// Requests a timeout for the earliest deadline.
    fn request_timeout(&mut self, plane: &mut MediaPlane) {
        let mut due: Option<Time> = None;
        let sides = self.lines.iter().flatten().flat_map(|line| &line.sides);
        let sides = sides.chain(ports_in_force(self.previous_sides.as_deref()));
        let own = sides.filter_map(|side| side.security.as_deref());
        for security in own.chain(former_parties(self.previous_sides.as_deref())) {
            if let Some(at) = security.next_deadline(plane.keying.now) {
                due = Some(due.map_or(at, |due| due.min(at)));
            }
        }
        let Some(due) = due else { return };
        if self.timeout_at.is_none_or(|at| due < at) {
            self.timeout_at = Some(due);
            plane.keying.timeout_requests.push_back((self.session, due));
        }
    }

    /// Registers for STUN and DTLS on the call's ports.
    pub(crate) fn claim_sockets(&self, plane: &mut MediaPlane) {
        let sides = self.lines.iter().flatten().flat_map(|line| &line.sides);
        for side in sides.chain(ports_in_force(self.previous_sides.as_deref())) {
            if side
                .security
                .as_ref()
                .is_some_and(|security| security.receives_stun_or_dtls())
            {
                plane.sockets.own(side.rtp, self.session);
            }
        }
    }

    /// Processes a datagram that the forwarder passed up.
    pub fn handle_datagram(
        &mut self,
        plane: &mut MediaPlane,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let mut result = Err(DropReason::MediaNoFlow);
        let mut is_claimed = false;
        let changed = self.for_each_security(plane, |security, local, output, context| {
            // The former party comes first; the other one would refuse its checks.
            let is_other = local.is_former && !security.claims(source, bytes);
            if local.socket != socket || is_claimed || is_other {
                return;
            }
            is_claimed = local.is_former;
            match security.handle_datagram(local, source, bytes, context) {
                Ok(now) => {
                    *output = now;
                    result = Ok(());
                }
                Err(reason) => result = Err(reason),
            }
        });
        if changed {
            self.send_plan(plane);
        }
        result
    }

    /// Handles the requested timeout.
    pub fn handle_keying_timeout(&mut self, plane: &mut MediaPlane) {
        self.timeout_at = None;
        self.keying_timer = None;
        let changed = self.for_each_security(plane, |security, local, output, context| {
            security.timeout(local.socket, output, context);
        });
        if changed {
            self.send_plan(plane);
        }
    }

    /// Appends `sdp` as written for `towards`, with its media security.
    pub(crate) fn write_with_security(
        &mut self,
        plane: &mut MediaPlane,
        towards: Side,
        sdp: &[u8],
        offers: bool,
        out: &mut Vec<u8>,
    ) {
        let Ok(facts) = parse_media(sdp) else { return };
        self.update_line_security(&facts);
        let attributes = security_attributes(sdp);
        let Some(advertised) = self.sides.get(towards.index()).map(|side| side.advertised) else {
            return;
        };
        let mut rewrites: SmallVec<[LineRewrite; 2]> = SmallVec::new();
        for (index, fact) in facts.iter().enumerate() {
            let is_rtp = fact.carriage == LineTransport::Rtp;
            let mut rewrite = LineRewrite {
                foreign: !is_rtp,
                ..LineRewrite::default()
            };
            let usable = fact.port != 0 && fact.carriage != LineTransport::Stream;
            if let Some(Some(line)) = self.lines.get_mut(index).filter(|_| usable) {
                let attributes = attributes.get(index);
                let browser = line
                    .security_of(towards.other())
                    .is_some_and(|security| security.is_browser());
                if let Some(side) = line.sides.get_mut(towards.index()) {
                    side.announced.current = true;
                    rewrite.port = side.pair.rtp().port();
                    let address = SocketAddr::new(advertised, rewrite.port);
                    let context = &mut plane.keying.context();
                    if offers && is_rtp {
                        side.prepare_offer(index, attributes, browser, address, context);
                    }
                    let written = side.rewrite(offers, address, context);
                    if let Some(written) = written.filter(|_| is_rtp) {
                        rewrite = written;
                    }
                }
            }
            rewrites.push(rewrite);
        }
        // With ICE a zero address means that there is no address yet, not hold (RFC 8839 section 4.3.1).
        let zero_holds = !self.lines.iter_mut().zip(&facts).any(|(line, fact)| {
            let line = line
                .as_mut()
                .filter(|_| fact.carriage == LineTransport::Rtp);
            line.and_then(|line| line.security_of(towards.other()))
                .is_some_and(|security| security.has_ice())
        });
        write_description(sdp, advertised, &rewrites, zero_holds, out);
        self.claim_sockets(plane);
    }
}

impl LineSide {
    /// Prepares our offer of the line to this side; `attributes` are those of the offerer on the other side.
    fn prepare_offer(
        &mut self,
        index: usize,
        attributes: Option<&SecurityAttributes<'_>>,
        browser: bool,
        address: SocketAddr,
        context: &mut KeyingContext<'_>,
    ) {
        let Some(security) = &mut self.security else {
            return;
        };
        // Packets between browsers have the MID of the offerer (RFC 8843 section 15).
        let mid = attributes.and_then(|attributes| attributes.mid);
        security.prepare_offer(
            mid.map_or_else(|| (index + 1).to_string().into_bytes(), <[u8]>::to_vec),
            attributes.and_then(|attributes| attributes.profile),
            browser,
            address,
            context,
        );
        let offered = || attributes.is_some_and(|attributes| attributes.mux);
        self.mux_offered = security.receives_stun_or_dtls()
            || match security.policy().mux {
                None => self.mux || offered(),
                Some(Mux::Offer | Mux::Require) => true,
                Some(Mux::Separate) => false,
            };
    }

    /// The line in our description for this side; `None` without security state.
    fn rewrite(
        &self,
        offers: bool,
        address: SocketAddr,
        context: &KeyingContext<'_>,
    ) -> Option<LineRewrite> {
        let security = self.security.as_ref()?;
        let mux = if offers { self.mux_offered } else { self.mux };
        Some(security.rewrite(offers, mux, address, context))
    }
}
