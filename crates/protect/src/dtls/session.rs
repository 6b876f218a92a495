//! One association: datagrams and time in, datagrams and keys out.

use super::{Endpoint, Failure, Fingerprint, Role, Version, matches};
use crate::srtp::{ContextLimits, Contexts, Inbound, KeyError, MasterKey, Outbound, Suite};
use core::fmt;
use core::time::Duration;
use dimpl::{Dtls, Output, SrtpProfile, UnexpectedMessageError};
use engine::{Deadline, DropReason, Time};
use zeroize::Zeroizing;

/// Room for the largest record that is handed out at first; grows where dimpl asks for more.
const BUFFER: usize = 2_048;
/// How long a handshake may still succeed after an alert that anyone could have sent.
const GRACE: Duration = Duration::from_secs(2);

/// What a session has to say.
#[derive(Debug)]
pub enum Event<'s> {
    /// A datagram to be sent to the peer.
    Send(&'s [u8]),
    /// The keys are agreed on and the peer is the one that signalling told of.
    Established(Established),
    /// It came to nothing. No media may flow.
    Failed(Failure),
    /// The peer ended the association; its keys must not be used any longer (RFC 5764 section 3).
    Closed,
}

/// The outcome of a handshake.
#[derive(Debug)]
pub struct Established {
    /// The protection profile.
    pub suite: Suite,
    /// What we seal with.
    pub local: MasterKey,
    /// What we open with.
    pub remote: MasterKey,
}

impl Established {
    /// Contexts for its media.
    ///
    /// # Errors
    /// None with keys that a session made.
    pub fn contexts(&self, limits: ContextLimits) -> Result<Contexts, KeyError> {
        Ok(Contexts {
            outbound: Outbound::new(&self.local, limits)?,
            inbound: Inbound::new(&self.remote, limits)?,
        })
    }
}

enum State {
    /// The handshake is on its way, or done and waiting for signalling to tell the fingerprint.
    Handshake,
    /// The keys were handed out.
    Established,
    /// Failed or closed.
    Ended,
}

/// A DTLS association for one media stream (or one bundle), as an engine: feed, drain [`Session::next_event`], then ask for the
/// deadline.
///
/// It must live as long as its media: the peer may not have got our last flight and ask for it again.
pub struct Session {
    endpoint: Endpoint,
    dtls: Option<Box<Dtls>>,
    role: Role,
    signalled: Option<Vec<Fingerprint>>,
    peer: Option<Vec<u8>>,
    keying: Option<(Suite, Zeroizing<Vec<u8>>)>,
    connected: bool,
    state: State,
    failure: Option<Failure>,
    closed: bool,
    deadline: Option<Time>,
    /// A fatal alert that nobody vouches for, and until when the handshake may prove it false.
    refused: Option<(u8, Time)>,
    buffer: Vec<u8>,
}

impl Session {
    /// A session in the given role. `signalled` are the peer's fingerprints; `None` where they are not known yet: an answer may come
    /// later than the first datagrams (RFC 5763 section 6.2), and the keys wait for [`Session::signalled`].
    pub fn new(
        endpoint: &Endpoint,
        role: Role,
        signalled: Option<Vec<Fingerprint>>,
        now: Time,
    ) -> Session {
        let make = match endpoint.settings.version {
            Version::Auto => Dtls::new_auto,
            Version::Dtls12 => Dtls::new_12,
            Version::Dtls13 => Dtls::new_13,
        };
        let mut dtls = make(
            endpoint.config.clone(),
            endpoint.certificate.0.clone(),
            endpoint.epoch.instant(now),
        );
        dtls.set_active(role == Role::Client);
        let mut session = Session {
            endpoint: endpoint.clone(),
            dtls: Some(Box::new(dtls)),
            role,
            signalled: None,
            peer: None,
            keying: None,
            connected: false,
            state: State::Handshake,
            failure: None,
            closed: false,
            deadline: None,
            refused: None,
            buffer: vec![0; BUFFER],
        };
        if let Some(fingerprints) = signalled {
            session.signalled(fingerprints);
        }
        session.timeout(now);
        session
    }

    /// Who began.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The peer's fingerprints, as signalling has them. Later ones change nothing: another certificate is another association.
    pub fn signalled(&mut self, fingerprints: Vec<Fingerprint>) {
        if self.signalled.is_some() {
            return;
        }
        if fingerprints.is_empty() {
            self.fail(Failure::NoFingerprint);
        }
        self.signalled = Some(fingerprints);
        self.check_peer();
    }

    /// Takes in a datagram from the peer.
    ///
    /// An alert before there are keys proves nothing: anyone can send one. It is not believed at once; where the handshake does not
    /// get on within two seconds, it was true.
    ///
    /// # Errors
    /// [`DropReason::DtlsUnexpected`] where the association has ended, or the datagram answers nothing.
    pub fn feed(&mut self, datagram: &[u8], now: Time) -> Result<(), DropReason> {
        self.timeout(now);
        let dtls = self.dtls.as_mut().ok_or(DropReason::DtlsUnexpected)?;
        let (believed, alert) = if self.connected {
            (datagram, None)
        } else {
            before_alert(datagram)
        };
        if let Some([2, alert]) = alert
            && self.refused.is_none()
        {
            self.refused = Some((alert, now + GRACE));
        }
        if believed.is_empty() {
            return Err(DropReason::DtlsUnexpected);
        }
        match dtls.handle_packet(believed) {
            Ok(()) => Ok(()),
            // Anyone can send a datagram that is no answer to a ClientHello; it must not end the handshake.
            Err(dimpl::Error::UnexpectedMessage(
                UnexpectedMessageError::UnrecognizedAutoServerResponse,
            )) => Err(DropReason::DtlsUnexpected),
            Err(error) => {
                self.fail(failure(&error));
                Ok(())
            }
        }
    }

    /// Tells the time: due at the deadline, harmless before.
    pub fn timeout(&mut self, now: Time) {
        let instant = self.endpoint.epoch.instant(now);
        if let Some(dtls) = &mut self.dtls
            && let Err(error) = dtls.handle_timeout(instant)
        {
            self.fail(failure(&error));
        }
        match self.refused {
            _ if self.connected => self.refused = None,
            Some((alert, until)) if now >= until => self.fail(Failure::Refused(alert)),
            _ => {}
        }
    }

    /// Ends the association; the alert comes out of [`Session::next_event`].
    pub fn close(&mut self) {
        let closed = self.dtls.as_mut().map(|dtls| dtls.close());
        if matches!(closed, Some(Err(_))) {
            self.dtls = None;
        }
        self.state = State::Ended;
    }

    /// When [`Session::timeout`] is due next.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.dtls.as_ref()?;
        if matches!(self.state, State::Ended) {
            return None;
        }
        let refused = self.refused.filter(|_| !self.connected);
        Deadline::earlier(
            self.deadline
                .map(|at| Deadline::new(at, "dtls retransmission")),
            refused.map(|(_, at)| Deadline::new(at, "dtls refusal")),
        )
    }

    /// What there is to do, until `None`.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let step = loop {
            match self.poll() {
                Step::Again => {}
                step => break step,
            }
        };
        match step {
            Step::Send(length) => Some(Event::Send(self.buffer.get(..length)?)),
            _ => self.conclude(),
        }
    }

    fn poll(&mut self) -> Step {
        let Some(dtls) = &mut self.dtls else {
            return Step::Done;
        };
        match dtls.poll_output(&mut self.buffer) {
            Output::Packet(packet) => return Step::Send(packet.len()),
            Output::BufferTooSmall { needed } => self.buffer.resize(needed, 0),
            Output::Timeout(instant) => {
                self.deadline = Some(self.endpoint.epoch.time(instant));
                if matches!(self.state, State::Established) {
                    // Many associations stand for as long as their calls and have nothing to say.
                    self.buffer = Vec::new();
                }
                return Step::Done;
            }
            Output::Connected => self.connected = true,
            Output::PeerCert(certificate) => {
                self.peer = Some(certificate.to_vec());
                self.check_peer();
            }
            Output::KeyingMaterial(material, profile) => match suite(profile) {
                Some(suite) => self.keying = Some((suite, Zeroizing::new(material.to_vec()))),
                None => self.fail(Failure::NoProfile),
            },
            Output::CloseNotify => self.closed = true,
            // Nothing but the handshake is carried; data that comes all the same is of no use to anyone.
            _ => {}
        }
        Step::Again
    }

    /// Once everything is drained: what it comes to.
    fn conclude(&mut self) -> Option<Event<'_>> {
        if let Some(failure) = self.failure.take() {
            self.dtls = None;
            self.state = State::Ended;
            return Some(Event::Failed(failure));
        }
        if self.closed && !matches!(self.state, State::Ended) {
            self.dtls = None;
            self.state = State::Ended;
            return Some(Event::Closed);
        }
        if !self.connected || !matches!(self.state, State::Handshake) {
            return None;
        }
        // Without its certificate checked the peer is anyone.
        self.signalled.as_ref()?;
        let outcome = match self.keying.take() {
            None => Err(Failure::NoProfile),
            Some((suite, _)) if !self.endpoint.settings.profiles.contains(&suite) => {
                Err(Failure::ProfileNotAllowed(suite))
            }
            Some(_) if self.peer.is_none() => Err(Failure::Fingerprint),
            Some((suite, material)) => split(suite, &material, self.role),
        };
        Some(match outcome {
            Ok(established) => {
                self.state = State::Established;
                Event::Established(established)
            }
            Err(failure) => {
                self.dtls = None;
                self.state = State::Ended;
                Event::Failed(failure)
            }
        })
    }

    /// Compares the peer's certificate with what signalling told, as soon as both are known.
    fn check_peer(&mut self) {
        if let (Some(signalled), Some(peer)) = (&self.signalled, &self.peer)
            && !matches(signalled, peer)
        {
            self.fail(Failure::Fingerprint);
        }
    }

    /// Ends the association at once: nothing more is sent, so a peer that is not the right one learns nothing.
    fn fail(&mut self, failure: Failure) {
        self.dtls = None;
        self.keying = None;
        if self.failure.is_none() && !matches!(self.state, State::Ended) {
            self.failure = Some(failure);
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("role", &self.role)
            .field("dtls", &self.dtls)
            .finish_non_exhaustive()
    }
}

enum Step {
    Send(usize),
    Again,
    Done,
}

/// The records of a datagram before the first in the clear that is an alert or that no peer would send, and the alert. A malformed
/// record must not reach dimpl: it would wait there, and break the handshake off at its end.
fn before_alert(datagram: &[u8]) -> (&[u8], Option<[u8; 2]>) {
    let mut at = 0;
    while let Some(rest) = datagram.get(at..).filter(|rest| !rest.is_empty()) {
        let believed = datagram.get(..at).unwrap_or_default();
        let Some(&[kind, _, _, e1, e0, .., l1, l0]) = rest.first_chunk::<13>() else {
            // A record of DTLS 1.3 under its keys has a shorter header (RFC 9147 section 4).
            let encrypted = rest.first().is_some_and(|first| first >> 5 == 1);
            return (if encrypted { datagram } else { believed }, None);
        };
        // Behind a record under keys nothing can be read.
        if !(20..=26).contains(&kind) || (e1, e0) != (0, 0) {
            return (datagram, None);
        }
        let length = usize::from(u16::from_be_bytes([l1, l0]));
        let Some(body) = rest.get(13..13 + length) else {
            return (believed, None);
        };
        let good = match kind {
            20 => body == [1],
            21 => return (believed, body.try_into().ok()),
            22 => is_handshake(body),
            23 => false,
            _ => !body.is_empty(),
        };
        if !good {
            return (believed, None);
        }
        at += 13 + length;
    }
    (datagram, None)
}

/// Whether a record's body is one handshake fragment or several, each with a length that fits (RFC 6347 section 4.2.2).
fn is_handshake(mut body: &[u8]) -> bool {
    if body.is_empty() {
        return false;
    }
    while !body.is_empty() {
        let Some((&[_, l2, l1, l0, _, _, o2, o1, o0, f2, f1, f0], rest)) =
            body.split_first_chunk::<12>()
        else {
            return false;
        };
        let number = |a, b, c| u32::from_be_bytes([0, a, b, c]);
        let (length, offset, part) = (number(l2, l1, l0), number(o2, o1, o0), number(f2, f1, f0));
        let Some(behind) = rest.get(part as usize..) else {
            return false;
        };
        if offset + part > length {
            return false;
        }
        body = behind;
    }
    true
}

fn failure(error: &dimpl::Error) -> Failure {
    match error {
        dimpl::Error::Timeout(_) => Failure::Timeout,
        dimpl::Error::SecurityError(dimpl::SecurityError::FatalAlert { description }) => {
            Failure::Refused(*description)
        }
        other => Failure::Protocol(other.to_string()),
    }
}

fn suite(profile: SrtpProfile) -> Option<Suite> {
    match profile {
        SrtpProfile::AES128_CM_SHA1_80 => Some(Suite::AesCm128HmacSha1_80),
        SrtpProfile::AEAD_AES_128_GCM => Some(Suite::AeadAes128Gcm),
        SrtpProfile::AEAD_AES_256_GCM => Some(Suite::AeadAes256Gcm),
        _ => None,
    }
}

/// The exported material is the client's key, the server's key, the client's salt, the server's salt (RFC 5764 section 4.2).
fn split(suite: Suite, material: &[u8], role: Role) -> Result<Established, Failure> {
    let (keys, salts) = (2 * suite.key_length(), 2 * suite.salt_length());
    if material.len() != keys + salts {
        return Err(Failure::Protocol(
            "the exported keys have another length".into(),
        ));
    }
    let (keys, salts) = material.split_at(keys);
    let (client_key, server_key) = keys.split_at(suite.key_length());
    let (client_salt, server_salt) = salts.split_at(suite.salt_length());
    let master = |key: &[u8], salt: &[u8]| {
        let secret = Zeroizing::new([key, salt].concat());
        MasterKey::new(suite, &secret).map_err(|error| Failure::Protocol(error.to_string()))
    };
    let client = master(client_key, client_salt)?;
    let server = master(server_key, server_salt)?;
    let (local, remote) = match role {
        Role::Client => (client, server),
        Role::Server => (server, client),
    };
    Ok(Established {
        suite,
        local,
        remote,
    })
}
