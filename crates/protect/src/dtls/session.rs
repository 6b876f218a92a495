//! One DTLS association: input are datagrams and time, output are datagrams and keys.

use super::{CertificateFingerprint, DtlsEndpoint, DtlsFailure, Role, Version, matches};
use crate::srtp::{ContextLimits, Contexts, Inbound, KeyError, MasterKey, Outbound, Suite};
use core::fmt;
use core::time::Duration;
use dimpl::{Dtls, Output, SrtpProfile, UnexpectedMessageError};
use engine::{Deadline, DropReason, Time};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// Initial size of the record buffer, bytes; grows on demand of dimpl.
const INITIAL_BUFFER: usize = 2_048;
/// Time in which a handshake may still succeed after an unauthenticated alert.
const ALERT_GRACE: Duration = Duration::from_secs(2);

/// Output of a session.
#[derive(Debug)]
pub enum DtlsEvent<'s> {
    /// A datagram to be sent to the peer.
    Send(&'s [u8]),
    /// The keys are negotiated and the peer's certificate matches the signalled fingerprint.
    Established(Established),
    /// The handshake failed. No media may flow.
    Failed(DtlsFailure),
    /// The peer ended the association; its keys must not be used any longer (RFC 5764 section 3).
    Closed,
}

/// Result of a handshake.
#[derive(Debug)]
pub struct Established {
    /// The protection profile.
    pub suite: Suite,
    /// Key for protecting sent packets.
    pub local: MasterKey,
    /// Key for unprotecting received packets.
    pub remote: MasterKey,
}

impl Established {
    /// Creates the SRTP contexts.
    ///
    /// # Errors
    /// None with keys of a session.
    pub fn contexts(&self, limits: ContextLimits) -> Result<Contexts, KeyError> {
        Ok(Contexts {
            outbound: Outbound::new(&self.local, limits)?,
            inbound: Inbound::new(&self.remote, limits)?,
        })
    }
}

enum HandshakeState {
    /// The handshake is in progress, or complete and waiting for the signalled fingerprint.
    Handshake,
    /// The keys were returned.
    Established,
    /// Failed or closed.
    Ended,
}

/// A DTLS association for one media stream (or one bundle), as an engine: feed it, drain [`DtlsSession::next_event`],
/// then read the deadline.
///
/// It must exist as long as its media: the peer may have lost our last flight and request it again.
pub struct DtlsSession {
    /// `None` in a session that was read back.
    endpoint: Option<DtlsEndpoint>,
    dtls: Option<Box<Dtls>>,
    role: Role,
    signalled: Option<Vec<CertificateFingerprint>>,
    peer_certificate: Option<Vec<u8>>,
    keying: Option<(Suite, Zeroizing<Vec<u8>>)>,
    /// Whether we have sent a datagram, or will without one of the peer.
    begun: bool,
    connected: bool,
    state: HandshakeState,
    failure: Option<DtlsFailure>,
    closed: bool,
    deadline: Option<Time>,
    /// An unauthenticated fatal alert, and the time until which the handshake may continue despite it.
    unverified_alert: Option<(u8, Time)>,
    buffer: Vec<u8>,
}

impl DtlsSession {
    /// A session in the given role. `signalled`: the peer's fingerprints; `None` if they are not known yet: an answer
    /// may arrive after the first datagrams (RFC 5763 section 6.2), and the keys are withheld until
    /// [`DtlsSession::set_fingerprints`].
    pub fn new(
        endpoint: &DtlsEndpoint,
        role: Role,
        signalled: Option<Vec<CertificateFingerprint>>,
        now: Time,
    ) -> DtlsSession {
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
        let mut session = DtlsSession {
            endpoint: Some(endpoint.clone()),
            dtls: Some(Box::new(dtls)),
            role,
            signalled: None,
            peer_certificate: None,
            keying: None,
            begun: role == Role::Client,
            connected: false,
            state: HandshakeState::Handshake,
            failure: None,
            closed: false,
            deadline: None,
            unverified_alert: None,
            buffer: vec![0; INITIAL_BUFFER],
        };
        if let Some(fingerprints) = signalled {
            session.set_fingerprints(fingerprints);
        }
        session.timeout(now);
        session
    }

    /// Our role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether the association has failed or was closed.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, HandshakeState::Ended)
    }

    /// Sets the peer's signalled fingerprints. Later calls have no effect: another certificate requires another
    /// association.
    pub fn set_fingerprints(&mut self, fingerprints: Vec<CertificateFingerprint>) {
        if self.signalled.is_some() {
            return;
        }
        if fingerprints.is_empty() {
            self.fail(DtlsFailure::NoFingerprint);
        }
        self.signalled = Some(fingerprints);
        self.check_fingerprint();
    }

    /// Processes a datagram of the peer.
    ///
    /// An alert before the keys are negotiated is unauthenticated: any host can send it. It takes effect only if the
    /// handshake does not complete within two seconds, and not at all before the handshake.
    ///
    /// # Errors
    /// [`DropReason::DtlsUnexpected`] if the association has ended, or the datagram does not belong to it.
    pub fn feed(&mut self, datagram: &[u8], now: Time) -> Result<(), DropReason> {
        self.timeout(now);
        let dtls = self.dtls.as_mut().ok_or(DropReason::DtlsUnexpected)?;
        let (trusted, alert) = if self.connected {
            (datagram, None)
        } else {
            split_at_alert(datagram)
        };
        if let Some([2, alert]) = alert
            && self.begun
            && self.unverified_alert.is_none()
        {
            self.unverified_alert = Some((alert, now + ALERT_GRACE));
        }
        if trusted.is_empty() {
            return Err(DropReason::DtlsUnexpected);
        }
        match dtls.handle_packet(trusted) {
            Ok(()) => Ok(()),
            // A datagram that is no response to a ClientHello can come from any host; it must not end the handshake.
            Err(dimpl::Error::UnexpectedMessage(
                UnexpectedMessageError::UnrecognizedAutoServerResponse,
            )) => Err(DropReason::DtlsUnexpected),
            Err(error) => {
                self.fail(failure(&error));
                Ok(())
            }
        }
    }

    /// Advances the time: to be called at the deadline, allowed before.
    pub fn timeout(&mut self, now: Time) {
        if let (Some(endpoint), Some(dtls)) = (&self.endpoint, &mut self.dtls)
            && let Err(error) = dtls.handle_timeout(endpoint.epoch.instant(now))
        {
            self.fail(failure(&error));
        }
        match self.unverified_alert {
            _ if self.connected => self.unverified_alert = None,
            Some((alert, until)) if now >= until => self.fail(DtlsFailure::Refused(alert)),
            _ => {}
        }
    }

    /// Ends the association; [`DtlsSession::next_event`] returns the alert.
    pub fn close(&mut self) {
        let closed = self.dtls.as_mut().map(|dtls| dtls.close());
        if matches!(closed, Some(Err(_))) {
            self.dtls = None;
        }
        self.state = HandshakeState::Ended;
    }

    /// Time of the next call of [`DtlsSession::timeout`].
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.dtls.as_ref()?;
        if matches!(self.state, HandshakeState::Ended) {
            return None;
        }
        let unverified_alert = self.unverified_alert.filter(|_| !self.connected);
        Deadline::earlier(
            self.deadline
                .map(|at| Deadline::new(at, "dtls retransmission")),
            unverified_alert.map(|(_, at)| Deadline::new(at, "dtls refusal")),
        )
    }

    /// Returns the next output; to be called until `None`.
    pub fn next_event(&mut self) -> Option<DtlsEvent<'_>> {
        let step = loop {
            match self.poll() {
                PollResult::Again => {}
                step => break step,
            }
        };
        match step {
            PollResult::Send(length) => Some(DtlsEvent::Send(self.buffer.get(..length)?)),
            _ => self.outcome(),
        }
    }

    fn poll(&mut self) -> PollResult {
        let (Some(endpoint), Some(dtls)) = (&self.endpoint, &mut self.dtls) else {
            return PollResult::Done;
        };
        match dtls.poll_output(&mut self.buffer) {
            Output::Packet(packet) => {
                self.begun = true;
                return PollResult::Send(packet.len());
            }
            Output::BufferTooSmall { needed } => self.buffer.resize(needed, 0),
            Output::Timeout(instant) => {
                self.deadline = Some(endpoint.epoch.time(instant));
                if matches!(self.state, HandshakeState::Established) {
                    // Established associations are idle for the duration of their calls.
                    self.buffer = Vec::new();
                }
                return PollResult::Done;
            }
            Output::Connected => self.connected = true,
            Output::PeerCert(certificate) => {
                self.peer_certificate = Some(certificate.to_vec());
                self.check_fingerprint();
            }
            Output::KeyingMaterial(material, profile) => match suite(profile) {
                Some(suite) => self.keying = Some((suite, Zeroizing::new(material.to_vec()))),
                None => self.fail(DtlsFailure::NoProfile),
            },
            Output::CloseNotify => self.closed = true,
            // Application data is not used.
            _ => {}
        }
        PollResult::Again
    }

    /// Determines the outcome when all output is drained.
    fn outcome(&mut self) -> Option<DtlsEvent<'_>> {
        if let Some(failure) = self.failure.take() {
            self.dtls = None;
            self.state = HandshakeState::Ended;
            return Some(DtlsEvent::Failed(failure));
        }
        if self.closed && !matches!(self.state, HandshakeState::Ended) {
            self.dtls = None;
            self.state = HandshakeState::Ended;
            return Some(DtlsEvent::Closed);
        }
        if !self.connected || !matches!(self.state, HandshakeState::Handshake) {
            return None;
        }
        // Without a verified certificate the peer is unauthenticated.
        self.signalled.as_ref()?;
        let allowed = &self.endpoint.as_ref()?.settings.profiles;
        let outcome = match self.keying.take() {
            None => Err(DtlsFailure::NoProfile),
            Some((suite, _)) if !allowed.contains(&suite) => {
                Err(DtlsFailure::ProfileNotAllowed(suite))
            }
            Some(_) if self.peer_certificate.is_none() => Err(DtlsFailure::Fingerprint),
            Some((suite, material)) => split(suite, &material, self.role),
        };
        Some(match outcome {
            Ok(established) => {
                self.state = HandshakeState::Established;
                DtlsEvent::Established(established)
            }
            Err(failure) => {
                self.dtls = None;
                self.state = HandshakeState::Ended;
                DtlsEvent::Failed(failure)
            }
        })
    }

    /// Compares the peer's certificate with the signalled fingerprints when both are known.
    fn check_fingerprint(&mut self) {
        if let (Some(signalled), Some(peer_certificate)) = (&self.signalled, &self.peer_certificate)
            && !matches(signalled, peer_certificate)
        {
            self.fail(DtlsFailure::Fingerprint);
        }
    }

    /// Ends the association without sending anything, so that an unauthenticated peer gets no information.
    fn fail(&mut self, failure: DtlsFailure) {
        self.dtls = None;
        self.keying = None;
        if self.failure.is_none() && !matches!(self.state, HandshakeState::Ended) {
            self.failure = Some(failure);
        }
    }
}

/// A session can be saved when its handshake is over.
#[derive(Serialize, Deserialize)]
struct SavedSession {
    role: Role,
    ended: bool,
    signalled: Option<Vec<CertificateFingerprint>>,
}

impl Serialize for DtlsSession {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ended = match self.state {
            HandshakeState::Handshake => {
                return Err(S::Error::custom("a DTLS handshake is in progress"));
            }
            HandshakeState::Established => false,
            HandshakeState::Ended => true,
        };
        let saved = SavedSession {
            role: self.role,
            ended,
            signalled: self.signalled.clone(),
        };
        saved.serialize(serializer)
    }
}

/// A session that is read back has its keys elsewhere. It does not send its last flight again, and drops the datagrams
/// of the peer.
impl<'de> Deserialize<'de> for DtlsSession {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DtlsSession, D::Error> {
        let saved = SavedSession::deserialize(deserializer)?;
        Ok(DtlsSession {
            endpoint: None,
            dtls: None,
            role: saved.role,
            signalled: saved.signalled,
            peer_certificate: None,
            keying: None,
            begun: true,
            connected: !saved.ended,
            state: match saved.ended {
                false => HandshakeState::Established,
                true => HandshakeState::Ended,
            },
            failure: None,
            closed: false,
            deadline: None,
            unverified_alert: None,
            buffer: Vec::new(),
        })
    }
}

impl fmt::Debug for DtlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("role", &self.role)
            .field("dtls", &self.dtls)
            .finish_non_exhaustive()
    }
}

enum PollResult {
    Send(usize),
    Again,
    Done,
}

/// The records of a datagram before the first unencrypted one that is an alert or invalid, and the alert. An invalid
/// record must not reach dimpl: it would be buffered there and abort the handshake at its end.
fn split_at_alert(datagram: &[u8]) -> (&[u8], Option<[u8; 2]>) {
    let mut at = 0;
    while let Some(rest) = datagram.get(at..).filter(|rest| !rest.is_empty()) {
        let trusted = datagram.get(..at).unwrap_or_default();
        let Some(&[kind, _, _, e1, e0, .., l1, l0]) = rest.first_chunk::<13>() else {
            // An encrypted record of DTLS 1.3 has a shorter header (RFC 9147 section 4).
            let encrypted = rest.first().is_some_and(|first| first >> 5 == 1);
            return (if encrypted { datagram } else { trusted }, None);
        };
        // Records behind an encrypted one cannot be parsed.
        if !(20..=26).contains(&kind) || (e1, e0) != (0, 0) {
            return (datagram, None);
        }
        let length = usize::from(u16::from_be_bytes([l1, l0]));
        let Some(body) = rest.get(13..13 + length) else {
            return (trusted, None);
        };
        let good = match kind {
            20 => body == [1],
            21 => return (trusted, body.try_into().ok()),
            22 => is_handshake(body),
            23 => false,
            _ => !body.is_empty(),
        };
        if !good {
            return (trusted, None);
        }
        at += 13 + length;
    }
    (datagram, None)
}

/// Whether a record's body consists of handshake fragments with valid lengths (RFC 6347 section 4.2.2).
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

fn failure(error: &dimpl::Error) -> DtlsFailure {
    match error {
        dimpl::Error::Timeout(_) => DtlsFailure::Timeout,
        dimpl::Error::SecurityError(dimpl::SecurityError::FatalAlert { description }) => {
            DtlsFailure::Refused(*description)
        }
        other => DtlsFailure::Protocol(other.to_string()),
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

/// Splits the exported keying material: client key, server key, client salt, server salt (RFC 5764 section 4.2).
fn split(suite: Suite, material: &[u8], role: Role) -> Result<Established, DtlsFailure> {
    let (keys, salts) = (2 * suite.key_length(), 2 * suite.salt_length());
    if material.len() != keys + salts {
        return Err(DtlsFailure::Protocol(
            "the exported keys have another length".into(),
        ));
    }
    let (keys, salts) = material.split_at(keys);
    let (client_key, server_key) = keys.split_at(suite.key_length());
    let (client_salt, server_salt) = salts.split_at(suite.salt_length());
    let master = |key: &[u8], salt: &[u8]| {
        let secret = Zeroizing::new([key, salt].concat());
        MasterKey::new(suite, &secret).map_err(|error| DtlsFailure::Protocol(error.to_string()))
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
