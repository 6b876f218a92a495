//! Calls with media security: descriptions, keys and packets, with the forwarder. The peers use `protect`, which has
//! tests of its own; interoperability with telephones is tested in `crates/hornwork/tests/suite/peer_phones.rs`.

use super::call::MediaStatus;
use crate::*;
use config::{Ice, Keying, SrtpPolicy};
use engine::{DropReason, Forward, MediaPacket, PacketVerdict, Time};
use media::Forwarder;
use media::forward::ForwarderLimits;
use protect::dtls::{
    Certificate, CertificateFingerprint, DtlsEndpoint, DtlsEvent, DtlsSession, Epoch, HashFunction,
    Role, Settings,
};
use protect::sdes::{self, CryptoAttribute, SdesAgreement};
use protect::srtp::{ContextLimits, Contexts, Suite};
use protect::stun::{Builder, attribute, message_type};
use std::time::Instant as Moment;
mod changes;

pub(super) const NOW: Time = Time::from_secs(1);

fn security(srtp: SrtpPolicy, keying: Keying, ice: bool) -> Option<Arc<MediaSecurity>> {
    Some(Arc::new(MediaSecurity {
        srtp,
        keying: vec![keying],
        ice: if ice { Ice::Lite } else { Ice::Off },
        ..MediaSecurity::default()
    }))
}

fn sdes_side(srtp: SrtpPolicy) -> Option<Arc<MediaSecurity>> {
    security(srtp, Keying::Sdes, false)
}

fn endpoint() -> DtlsEndpoint {
    // The epoch is arbitrary.
    let epoch = Epoch::new(Moment::now());
    DtlsEndpoint::new(Settings::default(), Certificate::generate().unwrap(), epoch).unwrap()
}

/// A call between 10.0.0.1 and 10.0.0.2 with its forwarder.
pub(super) struct MediaRig {
    pub(super) plane: MediaPlane,
    pub(super) call: CallMedia,
    forwarder: Forwarder,
    pub(super) wire: Vec<(SocketAddr, Vec<u8>)>,
}

impl MediaRig {
    pub(super) fn new(
        caller: Option<Arc<MediaSecurity>>,
        callee: Option<Arc<MediaSecurity>>,
    ) -> MediaRig {
        let mut entropy = Entropy::from_number(7);
        let mut plane = MediaPlane::new(100, HashKey::new(&mut entropy), entropy.fork());
        for octet in [1u8, 2] {
            let address = IpAddr::from([192, 0, 2, octet]);
            let first = 10_000 * u16::from(octet) + 10_000;
            plane.pools.push(MediaPool {
                first,
                last: first + 19,
                ports: PortPool::new(address, first, first + 19, entropy.fork()).unwrap(),
            });
        }
        plane.keying.now = NOW;
        let side = |pool: u16, security| MediaSide {
            hides: false,
            transcoding: None,
            pool,
            advertised: IpAddr::from([192, 0, 2, pool as u8 + 1]),
            latching: Latching::SameAddress(IpAddr::from([10, 0, 0, pool as u8 + 1])),
            dscp: 0,
            security,
        };
        MediaRig {
            plane,
            call: CallMedia::new(1, [side(0, caller), side(1, callee)]).with_number(5),
            forwarder: Forwarder::new(ForwarderLimits::default(), HashKey::default()),
            wire: Vec::new(),
        }
    }

    pub(super) fn drain(&mut self) {
        while let Some(command) = self.plane.commands.pop_front() {
            self.forwarder.command(command, NOW);
        }
        while let Some((_, to, bytes)) = self.plane.keying.next_datagram() {
            self.wire.push((to, bytes.to_vec()));
        }
        while let Some(report) = self.forwarder.next_report() {
            assert!(
                !matches!(report, media::MediaEvent::Refused { .. }),
                "{report:?}"
            );
        }
    }

    pub(super) fn offer(&mut self, from: Side, sdp: &str) -> Result<String, AnchorError> {
        let mut out = Vec::new();
        let done = self
            .call
            .offer(&mut self.plane, from, sdp.as_bytes(), &mut out);
        self.drain();
        done.map(|()| String::from_utf8(out).unwrap())
    }

    pub(super) fn answer(
        &mut self,
        from: Side,
        sdp: &str,
        early: bool,
    ) -> Result<String, AnchorError> {
        let mut out = Vec::new();
        let sdp = sdp.as_bytes();
        let done = self
            .call
            .answer(&mut self.plane, from, sdp, early, &mut out);
        self.drain();
        done.map(|()| String::from_utf8(out).unwrap())
    }

    fn socket(&self, side: Side) -> SocketId {
        self.call.side_in_force(0, side.index()).unwrap().rtp
    }

    /// Sends a packet from a side; returns the forwarded packet or the drop reason.
    fn send(&mut self, from: Side, bytes: &[u8]) -> Result<(SocketAddr, Vec<u8>), DropReason> {
        let source = match from {
            Side::Caller => addr("10.0.0.1:4000"),
            Side::Callee => addr("10.0.0.2:5000"),
        };
        self.send_from(from, source, bytes)
    }

    pub(super) fn send_from(
        &mut self,
        from: Side,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(SocketAddr, Vec<u8>), DropReason> {
        let socket = self.socket(from);
        let mut buffer = bytes.to_vec();
        buffer.resize(bytes.len() + MediaPacket::TAILROOM, 0);
        let mut packet = MediaPacket {
            length: bytes.len(),
            ..MediaPacket::new(socket, source, NOW, &mut buffer)
        };
        match self.forwarder.forward(&mut packet, NOW) {
            PacketVerdict::Forward { destination, .. } => {
                let bytes = packet.bytes().to_vec();
                self.drain();
                Ok((destination, bytes))
            }
            PacketVerdict::Drop(reason) => Err(reason),
            PacketVerdict::Punt(_) => {
                let done = self
                    .call
                    .handle_datagram(&mut self.plane, socket, source, bytes);
                self.drain();
                done.map(|()| (source, Vec::new()))
            }
            PacketVerdict::Consumed => panic!("nothing is consumed"),
        }
    }

    pub(super) fn statuses(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        while let Some((side, word)) = self.plane.keying.next_status() {
            words.push(match word {
                MediaStatus::Keyed(keying, suite) => format!("{} {keying:?} {suite}", side.name()),
                MediaStatus::Failed(failure) => format!("{} {failure}", side.name()),
                MediaStatus::Transcoded(kinds) => format!("{} {kinds:?}", side.name()),
                MediaStatus::ConsentLost => format!("{} consent", side.name()),
                MediaStatus::Nominated(address) => format!("{} nominated {address}", side.name()),
                MediaStatus::IceFailed => format!("{} no pair", side.name()),
            });
        }
        words
    }
}

pub(super) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn sdp(host: u8, port: u16, profile: &str, attributes: &[&str]) -> String {
    let mut text = format!(
        "v=0\r\no=x 1 1 IN IP4 10.0.0.{host}\r\ns=-\r\nc=IN IP4 10.0.0.{host}\r\nt=0 0\r\nm=audio {port} {profile} 0 101\r\na=rtpmap:0 PCMU/8000\r\n"
    );
    for attribute in attributes {
        text.push_str(&format!("a={attribute}\r\n"));
    }
    text
}

pub(super) fn lines<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let prefix = format!("a={name}");
    text.lines()
        .filter_map(|line| line.strip_prefix(prefix.as_str()))
        .map(|rest| rest.strip_prefix(':').unwrap_or(rest))
        .collect()
}

fn media_line(text: &str) -> &str {
    text.lines().find(|line| line.starts_with("m=")).unwrap()
}

/// A peer with SDES.
struct SdesPhone {
    policy: sdes::Policy,
    offered: Vec<CryptoAttribute>,
    entropy: Entropy,
}

impl SdesPhone {
    fn new(number: u64, suite: Suite) -> SdesPhone {
        SdesPhone {
            policy: sdes::Policy {
                suites: vec![suite],
                ..sdes::Policy::default()
            },
            offered: Vec::new(),
            entropy: Entropy::from_number(number),
        }
    }

    fn offer(&mut self) -> String {
        self.offered = sdes::offer(&self.policy, &mut self.entropy).unwrap();
        format!("crypto:{}", self.offered[0].value().as_str())
    }

    fn accept(&self, answer: &str) -> SdesAgreement {
        let values = lines(answer, "crypto");
        sdes::accept(
            &self.policy,
            &self.offered,
            values.iter().map(|v| v.as_bytes()),
        )
        .unwrap()
    }

    fn answer(&mut self, offer: &str) -> (String, SdesAgreement) {
        let values = lines(offer, "crypto");
        let values = values.iter().map(|value| value.as_bytes());
        let agreed = sdes::answer(&self.policy, values, &mut self.entropy).unwrap();
        (format!("crypto:{}", agreed.local.value().as_str()), agreed)
    }
}

fn contexts(agreed: &SdesAgreement) -> Contexts {
    agreed.contexts(ContextLimits::default()).unwrap()
}

pub(super) fn rtp(ssrc: u32, sequence: u16) -> Vec<u8> {
    wire::rtp::RtpHeader {
        ssrc,
        sequence,
        ..wire::rtp::RtpHeader::default()
    }
    .packet(&[sequence as u8; 160])
}

fn protect_packet(contexts: &mut Contexts, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + MediaPacket::TAILROOM, 0);
    let length = contexts.outbound.protect_rtp(&mut buffer, packet.len());
    buffer.truncate(length.unwrap());
    buffer
}

fn unprotected(contexts: &mut Contexts, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    let length = contexts.inbound.unprotect_rtp(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// Media passes in both directions between a caller with SRTP and a callee without.
fn talk(rig: &mut MediaRig, caller: &mut Contexts, sequence: u16) {
    let plain = rtp(7, sequence);
    let secret = protect_packet(caller, &plain);
    let (to, out) = rig.send(Side::Caller, &secret).unwrap();
    assert_eq!((to, out), (addr("10.0.0.2:5000"), plain));
    let plain = rtp(3, sequence);
    let (to, out) = rig.send(Side::Callee, &plain).unwrap();
    assert_eq!(to, addr("10.0.0.1:4000"));
    assert_eq!(unprotected(caller, &out), plain);
}

#[test]
fn srtp_towards_the_caller_and_rtp_towards_the_callee() {
    for suite in [
        Suite::AesCm128HmacSha1_80,
        Suite::AesCm128HmacSha1_32,
        Suite::AeadAes256Gcm,
    ] {
        let mut rig = MediaRig::new(sdes_side(SrtpPolicy::Require), None);
        let mut phone = SdesPhone::new(1, suite);
        let offer = sdp(
            1,
            4000,
            "RTP/SAVP",
            &[&phone.offer(), "rtcp-mux", "fingerprint:x"],
        );
        let forward = rig.offer(Side::Caller, &offer).unwrap();
        assert_eq!(
            media_line(&forward),
            "m=audio 30000 RTP/AVP 0 101".replace("30000", &port_of(&forward))
        );
        assert!(
            !forward.contains("crypto") && !forward.contains("fingerprint"),
            "{forward}"
        );
        // An address that is not signalled is learned from three packets.
        let early: Vec<_> = (1..=3)
            .map(|n| rig.send(Side::Callee, &rtp(3, n)).unwrap_err())
            .collect();
        assert_eq!(early.last(), Some(&DropReason::SrtpNoKey), "{early:?}");
        let answer = rig
            .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
            .unwrap();
        assert!(media_line(&answer).contains(" RTP/SAVP 0 101"), "{answer}");
        assert_eq!(
            lines(&answer, "rtcp-mux").len(),
            1,
            "each side has its own: {answer}"
        );
        let mut caller = contexts(&phone.accept(&answer));
        talk(&mut rig, &mut caller, 2);
        assert_eq!(rig.statuses(), [format!("caller Sdes {suite}")]);
        assert_eq!(
            rig.send(Side::Caller, &rtp(7, 9)),
            Err(DropReason::SrtpAuthentication)
        );
        rig.call.release(&mut rig.plane);
        assert_eq!((rig.plane.ports_in_use(), rig.plane.sockets.busy()), (0, 0));
    }
}

fn port_of(text: &str) -> String {
    media_line(text).split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn srtp_required_towards_the_callee() {
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
    let offer = sdp(1, 4000, "RTP/AVP", &[]);
    let forward = rig.offer(Side::Caller, &offer).unwrap();
    assert!(
        media_line(&forward).contains(" RTP/SAVP 0 101"),
        "{forward}"
    );
    assert_eq!(lines(&forward, "crypto").len(), 5, "{forward}");
    let mut again = Vec::new();
    rig.call
        .offer_again(&mut rig.plane, offer.as_bytes(), &mut again);
    assert_eq!(
        String::from_utf8(again).unwrap(),
        forward,
        "to another target"
    );
    let (crypto, agreed) = SdesPhone::new(2, Suite::AesCm128HmacSha1_80).answer(&forward);
    let answer = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/SAVP", &[&crypto]), false)
        .unwrap();
    assert!(
        media_line(&answer).contains(" RTP/AVP 0") && !answer.contains("crypto"),
        "{answer}"
    );
    let mut callee = contexts(&agreed);
    let plain = rtp(7, 1);
    let (_, out) = rig.send(Side::Caller, &plain).unwrap();
    assert_eq!(unprotected(&mut callee, &out), plain);
    let secret = protect_packet(&mut callee, &plain);
    assert_eq!(rig.send(Side::Callee, &secret).unwrap().1, plain);
}

#[test]
fn an_offer_refused_by_policy_is_reported_with_its_reason() {
    let mut phone = SdesPhone::new(1, Suite::AesCm128HmacSha1_80);
    let crypto = phone.offer();
    for (policy, profile, attribute, expected) in [
        (
            SrtpPolicy::Require,
            "RTP/AVP",
            "x",
            "SRTP is required, but RTP was offered",
        ),
        (
            SrtpPolicy::Require,
            "RTP/SAVP",
            "crypto:1 F8_128_HMAC_SHA1_80 inline:x",
            "unknown crypto suite F8_128_HMAC_SHA1_80",
        ),
        (
            SrtpPolicy::Require,
            "RTP/SAVP",
            "crypto:1 AES_192_CM_HMAC_SHA1_80 inline:AAAA",
            "crypto 1: ",
        ),
        (
            SrtpPolicy::Require,
            "UDP/TLS/RTP/SAVPF",
            "setup:actpass",
            "no acceptable SRTP keying was offered",
        ),
        (
            SrtpPolicy::Prefer,
            "RTP/SAVP",
            "x",
            "no acceptable SRTP keying was offered",
        ),
        (
            SrtpPolicy::Refuse,
            "RTP/SAVP",
            crypto.as_str(),
            "SRTP was offered, but is not allowed",
        ),
    ] {
        let mut rig = MediaRig::new(sdes_side(policy), None);
        let refused = rig.offer(Side::Caller, &sdp(1, 4000, profile, &[attribute]));
        assert_eq!(refused, Err(AnchorError::Protection));
        assert_eq!(
            (AnchorError::Protection.status(), rig.plane.ports_in_use()),
            (488, 0)
        );
        let words = rig.statuses();
        assert!(words[0].contains(expected), "{words:?}");
    }
    let mut rig = MediaRig::new(sdes_side(SrtpPolicy::Refuse), None);
    let osrtp = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[&crypto]))
        .unwrap();
    assert!(!osrtp.contains("crypto"));
    let answer = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    assert!(!answer.contains("crypto"), "in the clear then: {answer}");
    assert!(rig.send(Side::Caller, &rtp(7, 1)).is_ok());
}

#[test]
fn unacceptable_answers_are_refused() {
    for (profile, attribute, expected) in [
        ("RTP/AVP", "x", "SRTP is required, but the answer is RTP"),
        ("RTP/SAVP", "x", "the answer uses SRTP without a key"),
        (
            "RTP/SAVP",
            "crypto:9 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "the answer's tag was not offered",
        ),
    ] {
        let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
        rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
            .unwrap();
        let refused = rig.answer(Side::Callee, &sdp(2, 5000, profile, &[attribute]), false);
        assert_eq!(refused, Err(AnchorError::Protection));
        let words = rig.statuses();
        assert!(
            words[0].starts_with("callee") && words[0].contains(expected),
            "{words:?}"
        );
        assert_eq!(
            rig.send(Side::Caller, &rtp(7, 1)),
            Err(DropReason::MediaNoDestination)
        );
    }
}

/// RFC 8643: keys with the RTP profile.
#[test]
fn preferred_srtp_is_offered_with_the_rtp_profile() {
    for has_key in [true, false] {
        let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Prefer));
        let forward = rig
            .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
            .unwrap();
        assert!(media_line(&forward).contains(" RTP/AVP 0") && forward.contains("a=crypto:1 "));
        let (crypto, agreed) = SdesPhone::new(2, Suite::AeadAes128Gcm).answer(&forward);
        let attributes: &[&str] = if has_key { &[&crypto] } else { &[] };
        rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", attributes), false)
            .unwrap();
        let (_, out) = rig.send(Side::Caller, &rtp(7, 1)).unwrap();
        match has_key {
            true => assert_eq!(unprotected(&mut contexts(&agreed), &out), rtp(7, 1)),
            false => assert_eq!(out, rtp(7, 1)),
        }
    }
}

#[test]
fn security_attributes_pass_if_both_sides_pass_them() {
    let mut rig = MediaRig::new(None, None);
    let offer = sdp(
        1,
        4000,
        "RTP/SAVP",
        &["crypto:1 any thing", "fingerprint:any"],
    );
    let forward = rig.offer(Side::Caller, &offer).unwrap();
    assert!(forward.contains("a=crypto:1 any thing\r\na=fingerprint:any"));
    let answer = sdp(2, 5000, "RTP/SAVP", &["crypto:1 other"]);
    let back = rig.answer(Side::Callee, &answer, false).unwrap();
    assert!(back.contains("a=crypto:1 other"));
    assert_eq!(rig.send(Side::Caller, &rtp(7, 1)).unwrap().1, rtp(7, 1));
}

#[test]
fn a_side_with_pass_uses_srtp_if_it_offers_keys() {
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
    let mut phone = SdesPhone::new(1, Suite::AesCm128HmacSha1_80);
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&phone.offer()]))
        .unwrap();
    let (crypto, agreed) = SdesPhone::new(2, Suite::AeadAes128Gcm).answer(&forward);
    let answer = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/SAVP", &[&crypto]), false)
        .unwrap();
    let (mut one, mut two) = (contexts(&phone.accept(&answer)), contexts(&agreed));
    let secret = protect_packet(&mut one, &rtp(7, 1));
    let (_, out) = rig.send(Side::Caller, &secret).unwrap();
    assert_eq!(unprotected(&mut two, &out), rtp(7, 1), "from key to key");
}

#[test]
fn a_second_offer_holds_and_changes_keys() {
    let mut rig = MediaRig::new(sdes_side(SrtpPolicy::Require), None);
    let suite = Suite::AesCm128HmacSha1_80;
    let mut phone = SdesPhone::new(1, suite);
    let crypto = phone.offer();
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&crypto]))
        .unwrap();
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let first = rig.answer(Side::Callee, &plain, false).unwrap();
    let mut caller = contexts(&phone.accept(&first));
    talk(&mut rig, &mut caller, 1);
    // Hold with the same key: the packet indices continue.
    rig.offer(
        Side::Caller,
        &sdp(1, 4000, "RTP/SAVP", &[&crypto, "sendonly"]),
    )
    .unwrap();
    let second = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &["recvonly"]), false)
        .unwrap();
    assert_eq!(
        lines(&first, "crypto"),
        lines(&second, "crypto"),
        "our key stays"
    );
    assert_eq!(
        rig.send(Side::Callee, &rtp(3, 2)),
        Err(DropReason::MediaDirectionClosed)
    );
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&crypto]))
        .unwrap();
    rig.answer(Side::Callee, &plain, false).unwrap();
    talk(&mut rig, &mut caller, 3);
    assert_eq!(rig.statuses().len(), 1, "nothing was keyed anew");
    // New keys of the peer; a refused offer changes nothing.
    let new = phone.offer();
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&new]))
        .unwrap();
    rig.call.abandon(&mut rig.plane);
    rig.drain();
    talk(&mut rig, &mut caller, 4);
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&new]))
        .unwrap();
    let third = rig.answer(Side::Callee, &plain, false).unwrap();
    let mut renewed = contexts(&phone.accept(&third));
    talk(&mut rig, &mut renewed, 5);
    // An offer of the other side: the current key comes first.
    let forward = rig.offer(Side::Callee, &plain).unwrap();
    assert!(media_line(&forward).contains(" RTP/SAVP "), "{forward}");
    let ours = lines(&third, "crypto")[0].split(' ').nth(2).unwrap();
    assert!(lines(&forward, "crypto")[0].contains(ours), "{forward}");
}

#[test]
fn each_fork_has_its_own_keys() {
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    for (number, last) in [(11, false), (12, false), (13, true)] {
        let (crypto, agreed) = SdesPhone::new(number, Suite::AesCm128HmacSha1_80).answer(&forward);
        let answer = sdp(2, 5000, "RTP/SAVP", &[&crypto]);
        rig.answer(Side::Callee, &answer, !last).unwrap();
        let mut fork = contexts(&agreed);
        let secret = protect_packet(&mut fork, &rtp(number as u32, 1));
        assert!(
            rig.send(Side::Callee, &secret).is_ok(),
            "early media of fork {number}"
        );
        let (_, out) = rig.send(Side::Caller, &rtp(7, number as u16)).unwrap();
        assert_eq!(unprotected(&mut fork, &out), rtp(7, number as u16));
    }
}

#[test]
fn debug_output_contains_no_key() {
    let mut rig = MediaRig::new(
        sdes_side(SrtpPolicy::Require),
        sdes_side(SrtpPolicy::Require),
    );
    let mut phone = SdesPhone::new(1, Suite::AesCm128HmacSha1_80);
    let crypto = phone.offer();
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&crypto]))
        .unwrap();
    let (theirs, _) = SdesPhone::new(2, Suite::AesCm128HmacSha1_80).answer(&forward);
    rig.answer(Side::Callee, &sdp(2, 5000, "RTP/SAVP", &[&theirs]), true)
        .unwrap();
    let shown = format!("{:?} {:?}", rig.call, rig.plane);
    for line in [crypto, theirs, forward] {
        for word in line.split([' ', '\r', '\n']) {
            if let Some(key) = word.strip_prefix("inline:") {
                assert!(!shown.contains(key.get(..16).unwrap()));
            }
        }
    }
}

/// A browser with ICE checks, DTLS and SRTP.
struct WebRtcPeer {
    endpoint: DtlsEndpoint,
    session: Option<DtlsSession>,
    contexts: Option<Contexts>,
    address: SocketAddr,
}

impl WebRtcPeer {
    fn new() -> WebRtcPeer {
        WebRtcPeer {
            endpoint: endpoint(),
            session: None,
            contexts: None,
            address: addr("10.9.9.9:6000"),
        }
    }

    fn attributes(&self, setup: &str, ufrag: &str) -> Vec<String> {
        let fingerprint = self
            .endpoint
            .certificate()
            .fingerprint(HashFunction::Sha256);
        [
            format!("ice-ufrag:{ufrag}"),
            "ice-pwd:browserbrowserbrowser24".into(),
            format!("fingerprint:{fingerprint}"),
            format!("setup:{setup}"),
            "mid:0".into(),
            "rtcp-mux".into(),
            "rtcp-fb:0 nack".into(),
            "extmap:1 urn:x".into(),
            "ssrc:7 cname:x".into(),
        ]
        .into()
    }

    fn check(&self, rig: &mut MediaRig, side: Side, text: &str, ufrag: &str) {
        self.check_with(100, rig, side, (text, ufrag));
    }

    /// A check of this priority that nominates.
    fn check_with(
        &self,
        priority: u32,
        rig: &mut MediaRig,
        side: Side,
        (text, ufrag): (&str, &str),
    ) {
        let (local, ice_pwd) = (lines(text, "ice-ufrag")[0], lines(text, "ice-pwd")[0]);
        let key = protect::cipher::HmacSha1::new(ice_pwd.as_bytes());
        let request = Builder::new(message_type::BINDING_REQUEST, [9; 12])
            .attribute(attribute::USERNAME, format!("{local}:{ufrag}").as_bytes())
            .attribute(attribute::PRIORITY, &priority.to_be_bytes())
            .attribute(attribute::ICE_CONTROLLING, &[1; 8])
            .attribute(attribute::USE_CANDIDATE, &[])
            .finish(Some(&key));
        rig.send_from(side, self.address, &request).unwrap();
        let (to, answer) = rig.wire.pop().unwrap();
        assert_eq!(to, self.address);
        let answer = protect::stun::StunMessage::parse(&answer).unwrap();
        assert_eq!(answer.message_type(), message_type::BINDING_SUCCESS);
        assert!(answer.is_authentic(&key));
    }

    /// Runs the handshake until both sides have keys.
    fn handshake(&mut self, rig: &mut MediaRig, side: Side, text: &str) {
        let setup = lines(text, "setup")[0];
        let mut words = lines(text, "fingerprint")[0].split(' ');
        let (hash, value) = (words.next().unwrap(), words.next().unwrap());
        let theirs = CertificateFingerprint::parse(hash.as_bytes(), value.as_bytes()).unwrap();
        let role = match setup {
            "active" => Role::Server,
            _ => Role::Client,
        };
        self.session = Some(DtlsSession::new(
            &self.endpoint,
            role,
            Some(vec![theirs]),
            NOW,
        ));
        for _ in 0..20 {
            for (_, bytes) in std::mem::take(&mut rig.wire) {
                self.session.as_mut().unwrap().feed(&bytes, NOW).unwrap();
            }
            let mut sends = Vec::new();
            while let Some(event) = self.session.as_mut().unwrap().next_event() {
                match event {
                    DtlsEvent::Send(bytes) => sends.push(bytes.to_vec()),
                    DtlsEvent::Established(keys) => {
                        self.contexts = Some(keys.contexts(ContextLimits::default()).unwrap());
                    }
                    other => panic!("{other:?}"),
                }
            }
            if sends.is_empty() && rig.wire.is_empty() {
                break;
            }
            for bytes in sends {
                let _ = rig.send_from(side, self.address, &bytes);
            }
        }
        assert!(self.contexts.is_some(), "the handshake came to its end");
    }

    fn talk(&mut self, rig: &mut MediaRig, side: Side, sequence: u16) {
        let contexts = self.contexts.as_mut().unwrap();
        let secret = protect_packet(contexts, &rtp(7, sequence));
        let (_, out) = rig.send_from(side, self.address, &secret).unwrap();
        assert_eq!(out, rtp(7, sequence));
        let (to, out) = rig.send(side.other(), &rtp(3, sequence)).unwrap();
        assert_eq!(to, self.address);
        assert_eq!(unprotected(contexts, &out), rtp(3, sequence));
    }
}

fn with_dtls(caller: Option<Arc<MediaSecurity>>, callee: Option<Arc<MediaSecurity>>) -> MediaRig {
    let mut rig = MediaRig::new(caller, callee);
    rig.plane.keying.dtls = Some(endpoint());
    rig
}

#[test]
fn dtls_and_ice_with_a_browser_as_caller() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, true), None);
    let mut browser = WebRtcPeer::new();
    let attributes = browser.attributes("actpass", "brow");
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    let offer = sdp(1, 9, "UDP/TLS/RTP/SAVPF", &attributes).replace(
        "c=IN IP4 10.0.0.1\r\nt=0 0\r\n",
        "c=IN IP4 0.0.0.0\r\nt=0 0\r\na=group:BUNDLE 0\r\na=msid-semantic: WMS x\r\n",
    );
    let forward = rig.offer(Side::Caller, &offer).unwrap();
    assert!(media_line(&forward).contains(" RTP/AVP 0 101"), "{forward}");
    for gone in [
        "ice", "finger", "setup", "mid", "rtcp-fb", "extmap", "ssrc", "BUNDLE", "msid",
    ] {
        assert!(!forward.contains(gone), "{gone}: {forward}");
    }
    let answer = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    assert!(
        media_line(&answer).contains(" UDP/TLS/RTP/SAVPF 0 101"),
        "{answer}"
    );
    assert!(
        answer.contains("a=ice-lite\r\na=group:BUNDLE 0\r\nm="),
        "{answer}"
    );
    for (name, value) in [("setup", "passive"), ("mid", "0"), ("rtcp-mux", "")] {
        assert_eq!(lines(&answer, name), [value], "{answer}");
    }
    let port = port_of(&answer);
    assert!(lines(&answer, "candidate")[0].ends_with(&format!("192.0.2.1 {port} typ host")));
    // Check and handshake from an unknown source have no effect.
    let stray = rig.send_from(
        Side::Caller,
        addr("203.0.113.1:1"),
        &[22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    assert_eq!(stray, Err(DropReason::MediaUnexpectedSource));
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.handshake(&mut rig, Side::Caller, &answer);
    let nominated = "caller nominated 10.9.9.9:6000";
    assert_eq!(rig.statuses(), [nominated, "caller Dtls AEAD_AES_256_GCM"]);
    browser.talk(&mut rig, Side::Caller, 1);
    assert_eq!(
        rig.send_from(Side::Caller, addr("203.0.113.1:1"), &rtp(7, 2)),
        Err(DropReason::MediaUnexpectedSource)
    );
    // Hold: association and agent are kept.
    let held = offer.clone() + "a=sendonly\r\n";
    rig.offer(Side::Caller, &held).unwrap();
    let same = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &["recvonly"]), false)
        .unwrap();
    for name in ["ice-ufrag", "ice-pwd", "fingerprint", "setup"] {
        assert_eq!(lines(&answer, name), lines(&same, name));
    }
    // An ICE restart: new credentials of ours, the same association; media continues on the previous pair until the
    // next nomination.
    let restart = offer.replace("ice-ufrag:brow", "ice-ufrag:anew");
    rig.offer(Side::Caller, &restart).unwrap();
    let renewed = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    assert_ne!(lines(&answer, "ice-ufrag"), lines(&renewed, "ice-ufrag"));
    browser.talk(&mut rig, Side::Caller, 5);
    browser.address = addr("10.9.9.10:6001");
    browser.check(&mut rig, Side::Caller, &renewed, "anew");
    browser.talk(&mut rig, Side::Caller, 6);
    // Its network is gone: it nominates a pair of lower priority, without a restart.
    let before = std::mem::replace(&mut browser.address, addr("10.9.9.11:6002"));
    rig.plane.keying.now = NOW + Duration::from_secs(10);
    browser.check_with(50, &mut rig, Side::Caller, (&renewed, "anew"));
    browser.talk(&mut rig, Side::Caller, 7);
    assert_eq!(
        rig.send_from(Side::Caller, before, &rtp(7, 8)),
        Err(DropReason::MediaUnexpectedSource)
    );
    // Without checks the peer's consent expires.
    rig.plane.keying.now = NOW + Duration::from_secs(41);
    rig.call.handle_keying_timeout(&mut rig.plane);
    rig.drain();
    let nominated =
        [6001, 6002].map(|port| format!("caller nominated 10.9.9.{}:{port}", port - 5991));
    assert_eq!(
        rig.statuses(),
        [
            nominated[0].as_str(),
            nominated[1].as_str(),
            "caller consent"
        ]
    );
    assert_eq!(
        rig.send(Side::Callee, &rtp(3, 9)),
        Err(DropReason::MediaNoDestination)
    );
    rig.call.release(&mut rig.plane);
    rig.wire.clear();
    while let Some((_, to, _)) = rig.plane.keying.next_datagram() {
        assert_eq!(to.ip(), browser.address.ip(), "an alert says goodbye");
        rig.wire.push((to, Vec::new()));
    }
    assert_eq!(rig.wire.len(), 1);
}

#[test]
fn dtls_and_ice_with_a_browser_as_callee() {
    let mut rig = with_dtls(None, security(SrtpPolicy::Require, Keying::Dtls, true));
    let mut browser = WebRtcPeer::new();
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    assert!(
        media_line(&forward).contains(" UDP/TLS/RTP/SAVPF 0 101"),
        "{forward}"
    );
    assert_eq!(lines(&forward, "setup"), ["actpass"]);
    assert!(forward.contains("a=ice-lite\r\n") && lines(&forward, "rtcp-mux").len() == 1);
    // Its check arrives before its answer.
    browser.check(&mut rig, Side::Callee, &forward, "brow");
    let attributes = browser.attributes("active", "brow");
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    let answer = sdp(2, 9, "UDP/TLS/RTP/SAVPF", &attributes);
    let back = rig.answer(Side::Callee, &answer, false).unwrap();
    assert!(
        media_line(&back).contains(" RTP/AVP 0") && lines(&back, "rtcp-mux").is_empty(),
        "{back}"
    );
    browser.handshake(&mut rig, Side::Callee, &forward);
    browser.talk(&mut rig, Side::Callee, 1);
}

#[test]
fn dtls_without_ice_in_both_roles() {
    for (setup, ours) in [
        ("actpass", "passive"),
        ("active", "passive"),
        ("passive", "active"),
    ] {
        let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, false), None);
        let mut phone = WebRtcPeer::new();
        phone.address = addr("10.0.0.1:4000");
        let fingerprint = phone
            .endpoint
            .certificate()
            .fingerprint(HashFunction::Sha256);
        let attributes = [
            format!("fingerprint:{fingerprint}"),
            format!("setup:{setup}"),
        ];
        let attributes: Vec<&str> = attributes
            .iter()
            .map(String::as_str)
            .chain(["rtcp-mux"])
            .collect();
        rig.offer(Side::Caller, &sdp(1, 4000, "UDP/TLS/RTP/SAVP", &attributes))
            .unwrap();
        let answer = rig
            .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
            .unwrap();
        assert_eq!(lines(&answer, "setup"), [ours], "{answer}");
        phone.handshake(&mut rig, Side::Caller, &answer);
        phone.talk(&mut rig, Side::Caller, 1);
    }
}

/// Both roles: a host other than the peer's neither takes the handshake over nor ends the call.
#[test]
fn handshake_of_a_stranger_has_no_effect_without_ice() {
    for setup in ["active", "passive"] {
        let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, false), None);
        let mut phone = WebRtcPeer::new();
        phone.address = addr("10.0.0.1:4000");
        let fingerprint = phone
            .endpoint
            .certificate()
            .fingerprint(HashFunction::Sha256);
        let attributes = [
            format!("fingerprint:{fingerprint}"),
            format!("setup:{setup}"),
        ];
        let attributes: Vec<&str> = attributes
            .iter()
            .map(String::as_str)
            .chain(["rtcp-mux"])
            .collect();
        rig.offer(Side::Caller, &sdp(1, 4000, "UDP/TLS/RTP/SAVP", &attributes))
            .unwrap();
        let answer = rig
            .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
            .unwrap();
        let mut stranger = DtlsSession::new(&endpoint(), Role::Client, None, NOW);
        let mut hellos = 0;
        while let Some(event) = stranger.next_event() {
            let DtlsEvent::Send(bytes) = event else {
                continue;
            };
            hellos += 1;
            let sent = rig.send_from(Side::Caller, addr("203.0.113.66:9"), bytes);
            assert_eq!(sent, Err(DropReason::MediaUnexpectedSource), "{setup}");
        }
        assert!(hellos > 0);
        assert_eq!(rig.statuses(), [""; 0]);
        assert!(rig.wire.iter().all(|(to, _)| *to == phone.address));
        phone.handshake(&mut rig, Side::Caller, &answer);
        phone.talk(&mut rig, Side::Caller, 1);
    }
}

#[test]
fn a_certificate_without_signalled_fingerprint_ends_the_call() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, false), None);
    let mut phone = WebRtcPeer::new();
    phone.address = addr("10.0.0.1:4000");
    let other = endpoint().certificate().fingerprint(HashFunction::Sha256);
    let attributes = [format!("fingerprint:{other}"), "setup:active".into()];
    let attributes: Vec<&str> = attributes
        .iter()
        .map(String::as_str)
        .chain(["rtcp-mux"])
        .collect();
    rig.offer(Side::Caller, &sdp(1, 4000, "UDP/TLS/RTP/SAVP", &attributes))
        .unwrap();
    let answer = rig
        .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    let mut words = lines(&answer, "fingerprint")[0].split(' ');
    let (hash, value) = (words.next().unwrap(), words.next().unwrap());
    let ours = CertificateFingerprint::parse(hash.as_bytes(), value.as_bytes()).unwrap();
    let mut session = DtlsSession::new(&phone.endpoint, Role::Client, Some(vec![ours]), NOW);
    for _ in 0..20 {
        for (_, bytes) in std::mem::take(&mut rig.wire) {
            let _ = session.feed(&bytes, NOW);
        }
        let mut sends = Vec::new();
        while let Some(event) = session.next_event() {
            if let DtlsEvent::Send(bytes) = event {
                sends.push(bytes.to_vec());
            }
        }
        for bytes in sends {
            let _ = rig.send_from(Side::Caller, phone.address, &bytes);
        }
    }
    let words = rig.statuses();
    assert!(
        words[0].contains("does not have the signalled fingerprint"),
        "{words:?}"
    );
    assert_eq!(
        rig.send(Side::Callee, &rtp(3, 1)),
        Err(DropReason::SrtpNoKey)
    );
}
