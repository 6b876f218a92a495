//! Peers of the fuzzed border with media security: descriptions with SDES, DTLS and ICE, and their packets.

use super::keep;
use core::time::Duration;
use engine::{MediaPacket, Time};
use protect::cipher::HmacSha1;
use protect::dtls::{self, DtlsEvent, DtlsSession, HashFunction, Role};
use protect::srtp::{ContextLimits, Contexts, Inbound, MasterKey, Outbound, Suite};
use protect::stun::{Builder, StunMessage, attribute, message_type};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Placeholder for a SHA-256 fingerprint in a description.
const FINGERPRINT: &str = "AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA";

/// The peers' key is all zeros, which is `inline:AAAA...`.
const SDES: &str = "v=0\r\no=- 1 6 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/SAVP 0 101\r\na=rtpmap:101 telephone-event/8000\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n";
const SEVERAL: &str = "v=0\r\no=- 1 7 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/SAVP 0\r\na=crypto:1 AEAD_AES_256_GCM inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\na=crypto:2 AES_CM_128_HMAC_SHA1_32 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA|2^31|1:4\r\na=crypto:3 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\nm=video 4002 RTP/AVP 97\r\na=crypto:1 NULL_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n";
const BROWSER: &str = "v=0\r\no=- 1 8 IN IP4 10.1.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\na=ice-options:trickle\r\nm=audio 4000 UDP/TLS/RTP/SAVPF 0 101\r\nc=IN IP4 10.1.0.1\r\na=rtcp-mux\r\na=mid:0\r\na=ice-ufrag:peer\r\na=ice-pwd:peers-password-of-24-chars\r\na=candidate:1 1 udp 2130706431 10.1.0.1 4000 typ host\r\na=fingerprint:sha-256 AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA\r\na=setup:actpass\r\na=rtpmap:101 telephone-event/8000\r\n";
const ACTIVE: &str = "v=0\r\no=- 1 9 IN IP4 10.1.0.1\r\ns=-\r\nt=0 0\r\nm=audio 4000 UDP/TLS/RTP/SAVP 0\r\nc=IN IP4 10.1.0.1\r\na=rtcp-mux\r\na=fingerprint:sha-256 AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA\r\na=setup:active\r\n";
const EITHER: &str = "v=0\r\no=- 1 10 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\na=fingerprint:sha-256 AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA\r\na=setup:passive\r\na=rtcp-mux\r\na=ice-ufrag:peer\r\na=ice-pwd:peers-password-of-24-chars\r\n";

/// Descriptions with media security, by number.
pub(super) const DESCRIPTIONS: [&str; 5] = [SDES, SEVERAL, BROWSER, ACTIVE, EITHER];

/// Datagrams per DTLS flight at most.
const FLIGHTS: usize = 12;

/// A peer with SRTP, ICE checks and DTLS.
pub(super) struct SecurePeer {
    endpoint: Option<dtls::DtlsEndpoint>,
    session: Option<DtlsSession>,
    contexts: Contexts,
    /// `ice-ufrag` and `ice-pwd` of the border's last description with both.
    credentials: Option<(Vec<u8>, Vec<u8>)>,
    /// STUN and DTLS received from the border.
    received: VecDeque<Vec<u8>>,
    /// Transaction of the border's last check.
    last_check: Option<[u8; 12]>,
    transaction: u8,
}

fn contexts(master: &MasterKey) -> Contexts {
    let made = (
        Inbound::new(master, ContextLimits::default()),
        Outbound::new(master, ContextLimits::default()),
    );
    let (Ok(inbound), Ok(outbound)) = made else {
        unreachable!("a key of the right length");
    };
    Contexts { inbound, outbound }
}

impl SecurePeer {
    pub(super) fn new(endpoint: Option<dtls::DtlsEndpoint>) -> SecurePeer {
        let Ok(master) = MasterKey::new(Suite::AesCm128HmacSha1_80, &[0; 30]) else {
            unreachable!("30 octets are a key and a salt");
        };
        SecurePeer {
            endpoint,
            session: None,
            contexts: contexts(&master),
            credentials: None,
            received: VecDeque::new(),
            last_check: None,
            transaction: 0,
        }
    }

    /// Replaces placeholders by the certificate's fingerprint.
    pub(super) fn insert_fingerprint(&self, message: &mut [u8]) {
        let Some(endpoint) = &self.endpoint else {
            return;
        };
        let print = endpoint.certificate().fingerprint(HashFunction::Sha256);
        let text = print.to_string();
        // `sha-256 `, then the octets.
        let Some(value) = text.split_whitespace().last().map(str::as_bytes) else {
            return;
        };
        let mut from = 0;
        while let Some(at) = find(
            message.get(from..).unwrap_or_default(),
            FINGERPRINT.as_bytes(),
        ) {
            if let Some(place) = message.get_mut(from + at..from + at + value.len()) {
                place.copy_from_slice(value);
            }
            from += at + value.len();
        }
    }

    /// Reads a description of the border.
    pub(super) fn read_description(&mut self, message: &[u8]) {
        let value = |name: &[u8]| {
            let at = find(message, name)? + name.len();
            let rest = message.get(at..)?;
            let end = find(rest, b"\r\n")?;
            rest.get(..end).map(<[u8]>::to_vec)
        };
        if let (Some(fragment), Some(password)) = (value(b"a=ice-ufrag:"), value(b"a=ice-pwd:")) {
            self.credentials = Some((fragment, password));
        }
    }

    /// Receives STUN or DTLS of the border on a media path.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        let first = bytes.first().copied().unwrap_or(255);
        assert!(
            first < 4 || (20..64).contains(&first),
            "neither STUN nor DTLS: {}",
            bytes.escape_ascii()
        );
        let asked = StunMessage::parse(bytes)
            .filter(|message| message.message_type() == message_type::BINDING_REQUEST);
        self.last_check = asked
            .map(|message| message.transaction())
            .or(self.last_check);
        keep(&mut self.received, bytes.to_vec());
    }

    /// The response to a check of the border, with the password of our descriptions.
    fn answer(&self, transaction: [u8; 12], choice: u8) -> Vec<u8> {
        let key = HmacSha1::new(b"peers-password-of-24-chars");
        match choice & 7 {
            0 => Builder::new(message_type::BINDING_ERROR, transaction).error(487, ""),
            1 => Builder::new(message_type::BINDING_ERROR, transaction).error(400, ""),
            _ => Builder::new(message_type::BINDING_SUCCESS, transaction)
                .mapped_address(SocketAddr::from(([192, 0, 2, choice & 7], 20_000))),
        }
        .finish(Some(&key))
    }

    /// Protects an RTP or RTCP packet.
    pub(super) fn protect_packet(&mut self, packet: &[u8], rtcp: bool) -> Vec<u8> {
        let mut buffer = packet.to_vec();
        buffer.resize(packet.len() + MediaPacket::TAILROOM, 0);
        let outbound = &mut self.contexts.outbound;
        let length = match rtcp {
            true => outbound.protect_rtcp(&mut buffer, packet.len()),
            false => outbound.protect_rtp(&mut buffer, packet.len()),
        };
        buffer.truncate(length.unwrap_or(packet.len()));
        buffer
    }

    /// A check with the border's credentials (RFC 8445 section 7.2.5), or without; or the response to one of the
    /// border.
    pub(super) fn check(&mut self, choice: u8) -> Vec<u8> {
        if let Some(asked) = self.last_check.filter(|_| choice >> 5 == 6) {
            return self.answer(asked, choice);
        }
        self.transaction = self.transaction.wrapping_add(1);
        let kind = match choice >> 5 {
            7 => message_type::BINDING_INDICATION,
            _ => message_type::BINDING_REQUEST,
        };
        let (fragment, password) = self.credentials.clone().unwrap_or_default();
        let user = [&fragment[..], b":peer"].concat();
        let mut builder = Builder::new(kind, [self.transaction; 12])
            .attribute(attribute::USERNAME, &user)
            .attribute(attribute::PRIORITY, &[0, 0, 1, choice]);
        builder = match choice & 3 {
            0 | 1 => builder
                .attribute(attribute::ICE_CONTROLLING, &[1; 8])
                .attribute(attribute::USE_CANDIDATE, &[]),
            2 => builder.attribute(attribute::ICE_CONTROLLED, &[1; 8]),
            _ => builder,
        };
        let key = (choice & 4 == 0).then(|| HmacSha1::new(&password));
        builder.finish(key.as_ref())
    }

    /// The next datagrams of a handshake: a new one by choice, otherwise the response to the border's.
    pub(super) fn handshake(&mut self, choice: u8, now: Time) -> Vec<Vec<u8>> {
        let Some(endpoint) = &self.endpoint else {
            return Vec::new();
        };
        if self.session.is_none() || choice & 0x80 != 0 {
            let role = [Role::Client, Role::Server][usize::from(choice & 1)];
            // The border's certificate is the peer's own.
            let print = endpoint.certificate().fingerprint(HashFunction::Sha256);
            self.session = Some(DtlsSession::new(endpoint, role, Some(vec![print]), now));
            self.received.clear();
        }
        let Some(session) = &mut self.session else {
            return Vec::new();
        };
        while let Some(datagram) = self.received.pop_front() {
            // STUN and datagrams of earlier sessions are among them.
            let _ = session.feed(&datagram, now);
        }
        if choice & 0x40 != 0 {
            session.timeout(now + Duration::from_secs(1));
        }
        let mut flight = Vec::new();
        while let Some(event) = session.next_event() {
            match event {
                DtlsEvent::Send(datagram) if flight.len() < FLIGHTS => {
                    flight.push(datagram.to_vec())
                }
                DtlsEvent::Established(established) => {
                    if let Ok(contexts) = established.contexts(ContextLimits::default()) {
                        self.contexts = contexts;
                    }
                }
                _ => {}
            }
        }
        flight
    }
}

/// Position of `what`.
fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
