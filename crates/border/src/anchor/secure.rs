//! The protection of one side of a media line: what was offered and agreed on, its keys, its DTLS association and its ICE agent.
//!
//! A side that offers is judged at once ([`Secure::take_offer`]): what it cannot be given is refused before anybody is called. What
//! was agreed on anew is in force with the answer.

use super::ice::{IceAgent, News, Remote};
use super::protected::{Look, Profile, Said, Setup, Transport};
use crate::config::{Ice, Keying, MediaSecurity, SrtpPolicy};
use engine::{DropReason, Entropy, SocketId, Time};
use media::{Keys, Latching, Protection};
use protect::dtls::{self, Fingerprint, HashFunction, Role};
use protect::ice::{self, host_candidate};
use protect::sdes::{self, Agreed, CryptoAttribute};
use protect::srtp::Suite;
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::stun::{MediaProtocol, media_protocol};

/// What keying needs from outside.
pub(crate) struct Means<'m> {
    pub(crate) entropy: &'m mut Entropy,
    pub(crate) dtls: Option<&'m dtls::Endpoint>,
    pub(crate) now: Time,
    /// Candidates that were beyond what is kept.
    pub(crate) candidates_dropped: &'m mut u64,
}

/// Why media cannot be protected as somebody demands; never with a key in it.
pub(crate) type Why = String;

/// What a side has to say beside its state.
#[derive(Debug)]
pub(crate) enum Tell {
    /// Media has keys now.
    Keyed(Keying, Suite),
    /// There will be none.
    Failed(Why),
    /// ICE has it that media goes there.
    Nominated(SocketAddr),
    /// The peer has stopped agreeing to be sent to.
    ConsentLost,
    /// ICE found no way.
    IceFailed,
}

/// A DTLS association, or what is known about one to come.
#[derive(Debug)]
struct Association {
    /// `None` until the peer's answer says so, or its first datagram.
    role: Option<Role>,
    /// `None` until the peer's description is there.
    fingerprints: Option<Vec<Fingerprint>>,
    tls_id: Option<Vec<u8>>,
    session: Option<Box<dtls::Session>>,
    /// Where the handshake's datagrams go.
    peer: Option<SocketAddr>,
}

/// What the open offer of the other side will come to.
#[derive(Debug)]
struct Pending {
    keying: Option<Keying>,
    agreed: Option<Agreed>,
    role: Role,
    fingerprints: Vec<Fingerprint>,
    tls_id: Option<Vec<u8>>,
    ice: Option<Remote>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Secure {
    policy: Arc<MediaSecurity>,
    /// Of the media line on this side, in the last exchange.
    profile: Profile,
    mid: Option<Vec<u8>>,
    bundled: bool,
    /// How this side is keyed now; `None`: in the clear.
    keying: Option<Keying>,
    pending: Option<Box<Pending>>,
    /// Our keys in the open offer.
    offered: Vec<CryptoAttribute>,
    agreed: Option<Box<Agreed>>,
    association: Option<Box<Association>>,
    ice: Option<IceAgent>,
    keys: Option<Arc<Keys>>,
    associations: u32,
    /// Some exchange of this side has come to its end.
    settled: bool,
}

/// What came of a datagram on a media port.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The forwarder has to be told.
    pub(crate) changed: bool,
    pub(crate) said: SmallVec<[Tell; 1]>,
}

/// Datagrams of ours: socket, destination, bytes.
pub(crate) type Datagrams = std::collections::VecDeque<(SocketId, SocketAddr, Vec<u8>)>;

const PLAIN: Profile = Profile {
    transport: Transport::Plain,
    feedback: false,
};

impl Secure {
    pub(crate) fn new(policy: Arc<MediaSecurity>) -> Secure {
        Secure {
            policy,
            profile: PLAIN,
            mid: None,
            bundled: false,
            keying: None,
            pending: None,
            offered: Vec::new(),
            agreed: None,
            association: None,
            ice: None,
            keys: None,
            associations: 0,
            settled: false,
        }
    }

    pub(crate) fn policy(&self) -> &Arc<MediaSecurity> {
        &self.policy
    }

    /// Whether its media port hears STUN or DTLS for us.
    pub(crate) fn listens(&self) -> bool {
        self.ice.is_some() || self.association.is_some()
    }

    /// Whether it has an ICE agent of ours, or will have with our answer: then no address in a description means anything.
    pub(crate) fn has_ice(&self) -> bool {
        self.ice.is_some()
            || self
                .pending
                .as_ref()
                .is_some_and(|pending| pending.ice.is_some())
    }

    /// Whether whoever is there is a browser, or understands what browsers say.
    pub(crate) fn is_browser(&self) -> bool {
        self.profile.feedback && (self.profile.transport == Transport::Dtls || self.ice.is_some())
    }

    /// How the forwarder is to protect it.
    pub(crate) fn protection(&self) -> Protection {
        match (self.keying, &self.keys) {
            (Some(_), Some(keys)) => Protection::Srtp(keys.clone()),
            (Some(_), None) => Protection::Awaited,
            // Nothing is agreed on yet, and SRTP is demanded or on its way: not a packet in the clear.
            (None, _) if self.policy.srtp == SrtpPolicy::Require => Protection::Awaited,
            (None, _)
                if !self.settled
                    && self
                        .pending
                        .as_ref()
                        .is_some_and(|pending| pending.keying.is_some()) =>
            {
                Protection::Awaited
            }
            (None, _) => Protection::None,
        }
    }

    pub(crate) fn speaks_dtls(&self) -> bool {
        self.association.is_some()
    }

    /// Where ICE has it that media goes; `None` outside: there is no ICE.
    pub(crate) fn selected(&self) -> Option<Option<SocketAddr>> {
        self.ice.as_ref().map(|ice| ice.selected())
    }

    fn sdes_policy(&self) -> sdes::Policy {
        sdes::Policy {
            suites: self.policy.suites.clone(),
            ..sdes::Policy::default()
        }
    }

    /// Judges an offer of this side, and decides what it will be answered.
    ///
    /// # Errors
    /// Why it cannot be accepted.
    pub(crate) fn take_offer(&mut self, said: &Said<'_>, means: &mut Means<'_>) -> Result<(), Why> {
        let profile = said
            .profile
            .ok_or_else(|| Why::from("a profile of which we know nothing"))?;
        let plain = profile.transport == Transport::Plain;
        self.profile = profile;
        let mut pending = Pending {
            keying: None,
            agreed: None,
            role: Role::Server,
            fingerprints: Vec::new(),
            tls_id: said.tls_id.map(<[u8]>::to_vec),
            ice: None,
        };
        let mut reasons = Vec::new();
        if self.policy.srtp == SrtpPolicy::Refuse {
            if !plain {
                return Err("SRTP was offered where it is refused".into());
            }
        } else {
            for keying in self.policy.keying.clone() {
                let chosen = match keying {
                    Keying::Sdes if profile.transport != Transport::Dtls => {
                        self.choose_sdes(said, means, &mut pending)
                    }
                    Keying::Dtls => self.choose_dtls(said, means, &mut pending),
                    Keying::Sdes => Err(None),
                };
                match chosen {
                    Ok(()) => {
                        pending.keying = Some(keying);
                        break;
                    }
                    Err(why) => reasons.extend(why),
                }
            }
        }
        if pending.keying.is_none() && (!plain || self.policy.srtp == SrtpPolicy::Require) {
            if reasons.is_empty() {
                reasons.push(match plain {
                    true => "media in the clear was offered where SRTP is demanded".into(),
                    false => "no keys were offered of a kind that is agreed on here".into(),
                });
            }
            return Err(reasons.join("; "));
        }
        pending.ice = Remote::of(said, self.policy.ice);
        self.mid = said.mid.map(<[u8]>::to_vec);
        self.bundled = said.bundled;
        self.offered.clear();
        self.pending = Some(Box::new(pending));
        Ok(())
    }

    fn choose_sdes(
        &self,
        said: &Said<'_>,
        means: &mut Means<'_>,
        pending: &mut Pending,
    ) -> Result<(), Option<Why>> {
        if said.cryptos.is_empty() {
            return Err(None);
        }
        let policy = self.sdes_policy();
        let mut agreed = sdes::answer(&policy, said.cryptos.iter().copied(), means.entropy)
            .map_err(|refusals| {
                let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                Some(texts.join("; "))
            })?;
        if let Some(before) = &self.agreed
            && before.local.suite == agreed.local.suite
            && before.local.parameters.options == agreed.local.parameters.options
        {
            // Our key stays as long as it can (RFC 4568 section 7.1.4); only its tag is the offer's.
            agreed.local.keys.clone_from(&before.local.keys);
        }
        pending.agreed = Some(agreed);
        Ok(())
    }

    fn choose_dtls(
        &self,
        said: &Said<'_>,
        means: &Means<'_>,
        pending: &mut Pending,
    ) -> Result<(), Option<Why>> {
        if said.fingerprints.is_empty() {
            return Err(said
                .bad_fingerprint
                .then(|| "a fingerprint that cannot be read".into()));
        }
        if means.dtls.is_none() {
            return Err(Some("this border has no certificate for DTLS".into()));
        }
        let same = self
            .association
            .as_ref()
            .filter(|known| known.is_of(&said.fingerprints, said.tls_id));
        pending.role = match (said.setup, same.and_then(|known| known.role)) {
            (Some(Setup::Holdconn), _) => {
                return Err(Some("a=setup:holdconn, so that no keys come about".into()));
            }
            // RFC 8842 section 5.3: an association that stands keeps its roles.
            (Some(Setup::Actpass) | None, Some(role)) => role,
            (Some(Setup::Passive), _) => Role::Client,
            _ => Role::Server,
        };
        pending.fingerprints = said.fingerprints.to_vec();
        Ok(())
    }

    /// Puts in force what the open offer of this side was judged to come to. `address` is the one that we advertise.
    pub(crate) fn answer_given(
        &mut self,
        address: SocketAddr,
        means: &mut Means<'_>,
    ) -> Option<Tell> {
        let pending = *self.pending.take()?;
        self.settled = true;
        if pending.ice.is_some() && self.ice.is_none() {
            let role = ice::Role::Controlled;
            self.ice = IceAgent::new(self.policy.ice, role, address, means);
        }
        self.settle_ice(pending.ice, true, means);
        let mut told = None;
        match pending.keying {
            Some(Keying::Sdes) => {
                if let Some(agreed) = pending.agreed {
                    told = self.settle_sdes(agreed);
                }
            }
            Some(Keying::Dtls) => {
                self.settle_dtls(pending.role, pending.fingerprints, pending.tls_id);
            }
            None => self.settle_plain(),
        }
        told
    }

    /// Whoever is there gets no ICE with the answer, although it was offered.
    pub(crate) fn without_ice(&mut self) {
        self.ice = None;
        if let Some(pending) = &mut self.pending {
            pending.ice = None;
        }
    }

    /// Forgets an offer that was refused.
    pub(crate) fn abandon(&mut self) {
        self.pending = None;
        self.offered.clear();
    }

    /// Takes the answer of this side to our offer.
    ///
    /// # Errors
    /// Why it cannot be accepted.
    pub(crate) fn take_answer(
        &mut self,
        said: &Said<'_>,
        means: &mut Means<'_>,
    ) -> Result<Option<Tell>, Why> {
        let offers_dtls = self.association.is_some();
        let dtls = offers_dtls && !said.fingerprints.is_empty();
        let sdes = !self.offered.is_empty() && !said.cryptos.is_empty();
        let prefers_dtls = self.policy.keying.first() == Some(&Keying::Dtls);
        let kind = self.ice.as_ref().map_or(Ice::Off, IceAgent::kind);
        let ice = Remote::of(said, kind);
        let told = if dtls && (prefers_dtls || !sdes) {
            let role = match said.setup {
                Some(Setup::Active) => Role::Server,
                Some(Setup::Passive) => Role::Client,
                Some(Setup::Holdconn) => return Err("a=setup:holdconn was answered".into()),
                // RFC 5763 section 5: an answer must not say actpass; what does all the same begins, as most would.
                Some(Setup::Actpass) | None => Role::Server,
            };
            let tls_id = said.tls_id.map(<[u8]>::to_vec);
            self.settle_ice(ice, false, means);
            self.settle_dtls(role, said.fingerprints.to_vec(), tls_id);
            None
        } else if sdes {
            let policy = self.sdes_policy();
            let agreed = sdes::accept(&policy, &self.offered, said.cryptos.iter().copied())
                .map_err(|refusal| refusal.to_string())?;
            self.settle_ice(ice, false, means);
            self.settle_sdes(agreed)
        } else {
            let demanded = self.policy.srtp == SrtpPolicy::Require;
            let secure = said
                .profile
                .is_none_or(|profile| profile.transport != Transport::Plain);
            if demanded || secure {
                return Err(match secure {
                    true => "the answer says SRTP and has no key to what was offered".into(),
                    false => "the answer is media in the clear, where SRTP is demanded".into(),
                });
            }
            self.settle_ice(ice, false, means);
            self.settle_plain();
            None
        };
        self.settled = true;
        Ok(told)
    }

    fn settle_plain(&mut self) {
        self.keying = None;
        self.keys = None;
        // A key that was given up is never used again: its indices are forgotten with it.
        self.agreed = None;
        self.association = None;
    }

    fn settle_sdes(&mut self, agreed: Agreed) -> Option<Tell> {
        let local = agreed.local.keys.first()?.clone();
        let keys = Keys {
            association: self.associations,
            local,
            remote: agreed.remote.keys.clone(),
            window: usize::from(agreed.remote.parameters.window.unwrap_or(0)),
        };
        let suite = agreed.local.suite;
        let changed = self.keys.as_deref() != Some(&keys);
        if changed {
            self.keys = Some(Arc::new(keys));
        }
        self.keying = Some(Keying::Sdes);
        self.association = None;
        self.agreed = Some(Box::new(agreed));
        changed.then_some(Tell::Keyed(Keying::Sdes, suite))
    }

    fn settle_ice(&mut self, remote: Option<Remote>, answers: bool, means: &mut Means<'_>) {
        match (remote, &mut self.ice) {
            (Some(remote), Some(ice)) => ice.settle(remote, answers, means),
            _ => self.ice = None,
        }
    }

    fn settle_dtls(&mut self, role: Role, fingerprints: Vec<Fingerprint>, tls_id: Option<Vec<u8>>) {
        self.keying = Some(Keying::Dtls);
        self.agreed = None;
        let stands = self
            .association
            .as_ref()
            .is_some_and(|known| known.is_of(&fingerprints, tls_id.as_deref()));
        if stands {
            return;
        }
        let open = self
            .association
            .take()
            .filter(|open| open.fingerprints.is_none());
        let mut association = match open {
            // Our offer's: its handshake may have begun already.
            Some(open) if open.role.is_none_or(|known| known == role) => open,
            _ => Box::new(Association::new()),
        };
        association.role = Some(role);
        association.tls_id = tls_id;
        if let Some(session) = &mut association.session {
            session.signalled(fingerprints.clone());
        }
        association.fingerprints = Some(fingerprints);
        self.association = Some(association);
    }

    /// Prepares an offer of ours to this side: `source` is the profile of whoever offers on the other one, `browser` whether that is a
    /// browser; `address` is the one that we advertise. Done again it changes nothing, so that one offer can go to several.
    pub(crate) fn make_offer(
        &mut self,
        source: Option<Profile>,
        browser: bool,
        address: SocketAddr,
        means: &mut Means<'_>,
    ) {
        self.pending = None;
        let keyed = self.keying.is_some();
        let offers = keyed || matches!(self.policy.srtp, SrtpPolicy::Prefer | SrtpPolicy::Require);
        // What is keyed in one way goes on in it.
        let may = |keying: Keying| {
            offers
                && self.policy.keying.contains(&keying)
                && self.keying.is_none_or(|known| known == keying)
        };
        let dtls = may(Keying::Dtls) && means.dtls.is_some();
        let sdes = may(Keying::Sdes);
        let feedback = source.is_some_and(|source| source.feedback);
        let wanted = self.policy.feedback;
        if !keyed {
            let transport = match (self.policy.srtp, dtls, sdes) {
                (SrtpPolicy::Require, true, false) => Transport::Dtls,
                (SrtpPolicy::Require, ..) => Transport::Srtp,
                _ => Transport::Plain,
            };
            self.profile = Profile {
                transport,
                // Browsers demand feedback (RFC 8834 section 4.2); telephones often refuse it.
                feedback: wanted.unwrap_or(match transport {
                    Transport::Dtls => true,
                    _ => feedback && !browser,
                }),
            };
        }
        if sdes && self.offered.is_empty() {
            // The policy has neither a lifetime nor identifiers, which alone could be wrong.
            self.offered = sdes::offer(&self.sdes_policy(), means.entropy).unwrap_or_default();
            if let Some(agreed) = &self.agreed {
                // The key in force goes on, and stands first.
                let mut local = agreed.local.clone();
                self.offered.retain(|other| other.suite != local.suite);
                local.tag = 0;
                self.offered.insert(0, local);
                for (tag, attribute) in (1..).zip(&mut self.offered) {
                    attribute.tag = tag;
                }
            }
        }
        if dtls && self.association.is_none() {
            self.association = Some(Box::new(Association::new()));
        }
        if self.ice.is_none() {
            let role = ice::Role::Controlling;
            self.ice = IceAgent::new(self.policy.ice, role, address, means);
        }
    }

    /// How the line looks to this side, in our offer or in our answer. `address` is the one that we advertise.
    pub(crate) fn look(
        &self,
        offers: bool,
        mux: bool,
        address: SocketAddr,
        means: &Means<'_>,
    ) -> Look {
        use std::io::Write;
        let mut text = Vec::new();
        // Writing to a Vec cannot fail.
        if mux {
            text.extend_from_slice(b"a=rtcp-mux\r\n");
        }
        if let Some(mid) = &self.mid
            && !offers
        {
            text.extend_from_slice(b"a=mid:");
            text.extend_from_slice(mid);
            text.extend_from_slice(b"\r\n");
        }
        let keying = match (&self.pending, offers) {
            (Some(pending), false) => pending.keying,
            _ => self.keying,
        };
        if offers {
            for attribute in &self.offered {
                let _ = write!(text, "a=crypto:{}\r\n", attribute.value().as_str());
            }
        } else if keying == Some(Keying::Sdes) {
            let agreed = match &self.pending {
                Some(pending) => pending.agreed.as_ref(),
                None => self.agreed.as_deref(),
            };
            if let Some(agreed) = agreed {
                let _ = write!(text, "a=crypto:{}\r\n", agreed.local.value().as_str());
            }
        }
        let dtls = match offers {
            true => self.association.is_some(),
            false => keying == Some(Keying::Dtls),
        };
        if dtls && let Some(endpoint) = means.dtls {
            let role = match (&self.pending, offers) {
                (Some(pending), false) => Some(pending.role),
                (None, false) => self.association.as_ref().and_then(|known| known.role),
                _ => None,
            };
            let setup = match role {
                None => "actpass",
                Some(Role::Client) => "active",
                Some(Role::Server) => "passive",
            };
            let fingerprint = endpoint.certificate().fingerprint(HashFunction::Sha256);
            let _ = write!(text, "a=setup:{setup}\r\na=fingerprint:{fingerprint}\r\n");
        }
        let ice = match (&self.pending, offers) {
            (Some(pending), false) => pending.ice.is_some(),
            _ => self.ice.is_some(),
        };
        let agent = self.ice.as_ref().filter(|_| ice);
        let kind = agent.map_or(Ice::Off, IceAgent::kind);
        if let Some(agent) = agent {
            let local = agent.local();
            if kind == Ice::Full {
                // We know no older ICE than that of RFC 8445 (section 10).
                text.extend_from_slice(b"a=ice-options:ice2\r\n");
            }
            let _ = write!(
                text,
                "a=ice-ufrag:{}\r\na=ice-pwd:{}\r\na=candidate:{}\r\n",
                local.fragment(),
                local.password(),
                host_candidate(1, 1, 65_535, address)
            );
            text.extend_from_slice(b"a=end-of-candidates\r\n");
        }
        Look {
            port: address.port(),
            profile: Some(self.profile),
            attributes: text,
            browser: self.profile.feedback,
            bundled: self.mid.clone().filter(|_| self.bundled && !offers),
            lite: kind == Ice::Lite,
            foreign: false,
        }
    }

    /// A datagram that the forwarder passed up.
    pub(crate) fn datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
        latching: (Latching, Option<SocketAddr>),
        means: &mut Means<'_>,
        out: &mut Datagrams,
    ) -> Result<Turn, DropReason> {
        let mut turn = Turn::default();
        match media_protocol(bytes) {
            MediaProtocol::Stun => {
                let ice = self.ice.as_mut().ok_or(DropReason::StunUnexpected)?;
                let before = ice.selected();
                let fed = ice.feed(bytes, source, means.now);
                self.hear_ice(before, socket, &mut turn, means, out);
                // What came of it is told even where the datagram itself counts as bad.
                if turn.said.is_empty() {
                    fed?;
                }
            }
            MediaProtocol::Dtls => {
                let admitted = match &self.ice {
                    Some(ice) => ice.admits(source),
                    None => match latching {
                        (_, Some(signalled)) if signalled == source => true,
                        (Latching::SameAddress(address), _) => address == source.ip(),
                        (Latching::Anywhere, _) => true,
                        (Latching::Signalled, _) => false,
                    },
                };
                if !admitted {
                    return Err(DropReason::MediaStranger);
                }
                let association = self
                    .association
                    .as_mut()
                    .ok_or(DropReason::DtlsUnexpected)?;
                association.peer = Some(source);
                association.open(means, true);
                let session = association
                    .session
                    .as_mut()
                    .ok_or(DropReason::DtlsUnexpected)?;
                session.feed(bytes, means.now)?;
            }
            _ => return Err(DropReason::MediaMalformed),
        }
        self.pump(socket, &mut turn, out);
        Ok(turn)
    }

    /// Begins a handshake that is ours to begin, once it is known where to.
    pub(crate) fn start(&mut self, means: &mut Means<'_>) {
        if let Some(association) = &mut self.association
            && association.role == Some(Role::Client)
            && association.peer.is_some()
            && association.fingerprints.is_some()
        {
            association.open(means, false);
        }
    }

    /// Goes on with keying after a description was taken in or given.
    pub(crate) fn resume(&mut self, means: &mut Means<'_>) {
        if let (Some(ice), Some(association)) = (&self.ice, &mut self.association)
            && association.peer.is_none()
        {
            association.peer = ice.selected();
        }
        self.start(means);
    }

    /// Where the peer said that it receives media: a handshake of ours goes there where there is no ICE.
    pub(crate) fn signalled(&mut self, address: Option<SocketAddr>, means: &mut Means<'_>) {
        if self.ice.is_none()
            && let Some(association) = &mut self.association
            && association.session.is_none()
        {
            association.peer = address;
            self.start(means);
        }
    }

    /// Takes what the association has to say.
    pub(crate) fn pump(&mut self, socket: SocketId, turn: &mut Turn, out: &mut Datagrams) {
        let Some(association) = &mut self.association else {
            return;
        };
        let (Some(session), Some(peer)) = (&mut association.session, association.peer) else {
            return;
        };
        while let Some(event) = session.next_event() {
            match event {
                dtls::Event::Send(bytes) => out.push_back((socket, peer, bytes.to_vec())),
                dtls::Event::Established(established) => {
                    turn.changed = true;
                    if !self.policy.suites.contains(&established.suite) {
                        let why = dtls::Failure::ProfileNotAllowed(established.suite);
                        self.keys = None;
                        turn.said.push(Tell::Failed(why.to_string()));
                        continue;
                    }
                    self.associations += 1;
                    turn.said.push(Tell::Keyed(Keying::Dtls, established.suite));
                    self.keys = Some(Arc::new(Keys {
                        association: self.associations,
                        local: established.local,
                        remote: vec![established.remote],
                        window: 0,
                    }));
                }
                dtls::Event::Failed(why) => {
                    turn.said.push(Tell::Failed(why.to_string()));
                }
                dtls::Event::Closed => {
                    turn.changed = true;
                    self.keys = None;
                }
            }
        }
    }

    /// Tells the time; when it wants to be told again.
    pub(crate) fn timeout(
        &mut self,
        socket: SocketId,
        turn: &mut Turn,
        means: &mut Means<'_>,
        out: &mut Datagrams,
    ) {
        let now = means.now;
        if let Some(ice) = &mut self.ice {
            let before = ice.selected();
            ice.timeout(now);
            self.hear_ice(before, socket, turn, means, out);
        }
        if let Some(session) = self
            .association
            .as_mut()
            .and_then(|known| known.session.as_mut())
            && session.next_deadline().is_some_and(|due| due.at <= now)
        {
            session.timeout(now);
            self.pump(socket, turn, out);
        }
    }

    /// When it wants to be told the time, as things stand `now`.
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        let session = self.association.as_ref().and_then(|known| {
            let session = known.session.as_ref()?;
            session.next_deadline().map(|due| due.at)
        });
        let ice = self.ice.as_ref().and_then(|ice| ice.next_deadline(now));
        session.into_iter().chain(ice).min()
    }

    /// Sends what the ICE agent has to send, and takes what it has to say; `before`: where it had it that media goes.
    fn hear_ice(
        &mut self,
        mut before: Option<SocketAddr>,
        socket: SocketId,
        turn: &mut Turn,
        means: &mut Means<'_>,
        out: &mut Datagrams,
    ) {
        let Some(ice) = &mut self.ice else { return };
        ice.drain(socket, out);
        let mut nominated = false;
        while let Some(news) = ice.news(before, means.now) {
            before = ice.selected();
            turn.said.push(match news {
                News::Nominated(address) => {
                    nominated = true;
                    if let Some(association) = &mut self.association {
                        association.peer = Some(address);
                    }
                    Tell::Nominated(address)
                }
                News::ConsentLost => Tell::ConsentLost,
                News::Failed => Tell::IceFailed,
            });
            turn.changed = true;
        }
        if nominated {
            self.start(means);
            self.pump(socket, turn, out);
        }
    }

    /// Tells the peer that the association is over.
    pub(crate) fn close(&mut self, socket: SocketId, out: &mut Datagrams) {
        if let Some(session) = self
            .association
            .as_mut()
            .and_then(|known| known.session.as_mut())
        {
            session.close();
            self.pump(socket, &mut Turn::default(), out);
        }
    }
}

impl Association {
    fn new() -> Association {
        Association {
            role: None,
            fingerprints: None,
            tls_id: None,
            session: None,
            peer: None,
        }
    }

    /// Whether a description speaks of this association (RFC 8842 section 4).
    fn is_of(&self, fingerprints: &[Fingerprint], tls_id: Option<&[u8]>) -> bool {
        self.fingerprints
            .as_ref()
            .is_some_and(|known| known.iter().any(|known| fingerprints.contains(known)))
            && (self.tls_id.is_none() || tls_id.is_none() || self.tls_id.as_deref() == tls_id)
    }

    /// Makes the session where there is none; `called`: the peer has begun, so that without an answer it is the client.
    fn open(&mut self, means: &Means<'_>, called: bool) {
        let Some(endpoint) = means.dtls.filter(|_| self.session.is_none()) else {
            return;
        };
        let role = match (self.role, called) {
            (Some(role), _) => role,
            (None, true) => Role::Server,
            (None, false) => return,
        };
        self.role = Some(role);
        let session = dtls::Session::new(endpoint, role, self.fingerprints.clone(), means.now);
        self.session = Some(Box::new(session));
    }
}
