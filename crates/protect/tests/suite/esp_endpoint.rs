//! Two engines behind ESP, with a wire between them that the test controls.

use engine::{
    Datagram, Deadline, DropReason, Engine, Entropy, Input, Output, SocketId, SocketKind, Time,
};
use protect::esp::{
    EndpointKeys, EspCarrier, EspEncryption, EspEndpoint, EspEndpointPlan, EspIntegrity, EspKeys,
    EspSuite, InboundSa, NegotiatedPair, OutboundSa, SaSpec, VoiceReceiver, VoiceShortcut,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// Opens a socket for signalling and one for media, sends the test's packets, and keeps received ones.
#[derive(Default)]
struct Phone {
    requests: VecDeque<(SocketId, SocketKind, SocketAddr)>,
    opened: Vec<(SocketId, SocketAddr)>,
    failed: Vec<String>,
    send: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    current: Vec<u8>,
    received: Vec<(SocketId, SocketAddr, Vec<u8>)>,
    voice: Vec<(SocketId, Vec<u8>)>,
}

impl Phone {
    fn at(address: &str) -> Phone {
        let address: SocketAddr = address.parse().unwrap();
        let media = SocketAddr::new(address.ip(), 0);
        Phone {
            requests: VecDeque::from([
                (SocketId(0), SocketKind::UdpSignalling, address),
                (SocketId(1), SocketKind::UdpMedia, media),
                (SocketId(2), SocketKind::UdpMedia, media),
                (SocketId(3), SocketKind::TcpListener, address),
            ]),
            ..Phone::default()
        }
    }
}

impl Engine for Phone {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { socket, local } => self.opened.push((socket, local)),
            Input::OpenFailed { error, .. } => self.failed.push(error.to_owned()),
            Input::Datagram(Datagram {
                socket,
                source,
                bytes,
                ..
            }) => self.received.push((socket, source, bytes.to_vec())),
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some((socket, kind, local)) = self.requests.pop_front() {
            return Some(Output::OpenSocket {
                socket,
                kind,
                local,
            });
        }
        let (socket, destination, bytes) = self.send.pop_front()?;
        self.current = bytes;
        Some(Output::Datagram {
            socket,
            destination,
            bytes: &self.current,
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl VoiceReceiver for Phone {
    fn receive_voice(&mut self, packet: Datagram<'_>, _now: Time) {
        self.voice.push((packet.socket, packet.bytes.to_vec()));
    }
}

/// The inputs of one end from the outputs of the other.
struct End {
    endpoint: EspEndpoint<Phone>,
    outer: Option<(SocketId, SocketKind, SocketAddr)>,
    now: Time,
}

impl End {
    /// Packets for the wire.
    fn sent(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut sent = Vec::new();
        while let Some(output) = self.endpoint.next_output() {
            match output {
                Output::OpenSocket {
                    socket,
                    kind,
                    local,
                } => {
                    assert!(self.outer.is_none(), "one socket carries everything");
                    self.outer = Some((socket, kind, local));
                }
                Output::Datagram {
                    socket,
                    destination,
                    bytes,
                } => {
                    assert_eq!(Some(socket), self.outer.map(|outer| outer.0));
                    sent.push((destination, bytes.to_vec()));
                }
                other => panic!("{other:?}"),
            }
        }
        sent
    }

    fn open(&mut self) {
        assert_eq!(self.sent(), []);
        let (socket, _, local) = self.outer.expect("a socket");
        assert!(
            self.endpoint.engine().opened.is_empty(),
            "before the outer socket"
        );
        self.endpoint
            .handle(Input::Opened { socket, local }, self.now);
        assert_eq!(self.endpoint.engine().opened.len(), 3);
    }

    fn receive(&mut self, source: SocketAddr, bytes: &[u8]) {
        let (socket, ..) = self.outer.expect("a socket");
        let mut bytes = bytes.to_vec();
        let datagram = Datagram {
            socket,
            source,
            arrived: self.now,
            bytes: &mut bytes,
        };
        self.endpoint.handle(Input::Datagram(datagram), self.now);
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.endpoint.drops().get(reason)
    }
}

fn spec(spi: u32, suite: EspSuite, key: u8) -> SaSpec {
    let length = (0..64)
        .rev()
        .find(|n| suite.encryption.accepts_key_length(*n));
    let keys = EspKeys::new(
        &vec![key; length.unwrap_or(0)],
        &vec![key; suite.integrity.key_length()],
    );
    let mut spec = SaSpec::new(spi, suite, keys);
    spec.allow_weak = true;
    spec
}

const OUTER: [&str; 2] = ["192.0.2.1:4500", "192.0.2.2:4500"];

/// Two ends; `inner` are the addresses of the phones, which in tunnel mode are others.
fn ends(suite: EspSuite, carrier: EspCarrier, inner: [&str; 2], tunnel: bool) -> [End; 2] {
    let outer: [SocketAddr; 2] = OUTER.map(|text| text.parse().unwrap());
    [0, 1].map(|own| {
        let (local, peer) = (outer[own], outer[1 - own]);
        let made = |spec: SaSpec, from: SocketAddr, to: SocketAddr| match tunnel {
            true => spec.tunnel(from.ip(), to.ip()),
            false => spec,
        };
        let outbound = made(spec(0x1000 + own as u32, suite, own as u8), local, peer);
        let inbound = made(spec(0x1001 - own as u32, suite, 1 - own as u8), peer, local);
        let mut entropy = Entropy::from_number(own as u64);
        let plan = EspEndpointPlan {
            carrier,
            local,
            peer,
            keys: EndpointKeys::manual(
                OutboundSa::new(outbound, &mut entropy, Time::ZERO).unwrap(),
                InboundSa::new(inbound, Time::ZERO).unwrap(),
            ),
            shortcut: None,
            offers: false,
        };
        let mut end = End {
            endpoint: EspEndpoint::new(Phone::at(inner[own]), plan),
            outer: None,
            now: Time::ZERO,
        };
        end.open();
        end
    })
}

fn every_suite() -> Vec<EspSuite> {
    EspSuite::all().collect()
}

#[test]
fn datagrams_arrive_in_every_mode_and_suite() {
    let v4 = ["192.0.2.1:5060", "192.0.2.2:5060"];
    let inside = ["[fd00::1]:5060", "[fd00::2]:5060"];
    for suite in every_suite() {
        for carrier in [EspCarrier::Ip, EspCarrier::Udp] {
            for (tunnel, inner) in [
                (false, v4),
                (true, inside),
                (true, ["10.0.0.1:5060", "10.0.0.2:5060"]),
            ] {
                let [mut near, mut far] = ends(suite, carrier, inner, tunnel);
                let outer: [SocketAddr; 2] = OUTER.map(|text| text.parse().unwrap());
                let to = inner[1].parse().unwrap();
                for length in [0, 1, 172, 1_400, 9_000] {
                    let bytes = vec![0x5a; length];
                    near.endpoint
                        .engine()
                        .send
                        .push_back((SocketId(0), to, bytes.clone()));
                    let sent = near.sent();
                    let [(destination, packet)] = &sent[..] else {
                        panic!("{sent:?}");
                    };
                    let port = if carrier == EspCarrier::Udp { 4500 } else { 0 };
                    assert_eq!(*destination, SocketAddr::new(outer[1].ip(), port));
                    if suite.encryption != EspEncryption::Null && length >= 172 {
                        let clear = packet.windows(16).any(|bytes| bytes == [0x5a; 16]);
                        assert!(!clear, "{suite}");
                    }
                    far.receive(SocketAddr::new(outer[0].ip(), port), packet);
                    let from = inner[0].parse().unwrap();
                    let received = far.endpoint.engine().received.pop();
                    assert_eq!(received, Some((SocketId(0), from, bytes)), "{suite}");
                    assert_eq!(far.endpoint.drops().total(), 0);
                }
            }
        }
    }
}

#[test]
fn foreign_datagrams_are_counted() {
    let suite = EspSuite::new(EspEncryption::AesCbc, EspIntegrity::HmacSha256);
    let inner = ["192.0.2.1:5060", "192.0.2.2:5060"];
    let [mut near, mut far] = ends(suite, EspCarrier::Udp, inner, false);
    let from: SocketAddr = OUTER[0].parse().unwrap();
    let to: SocketAddr = inner[1].parse().unwrap();
    let packet = |near: &mut End, to: SocketAddr| {
        near.endpoint
            .engine()
            .send
            .push_back((SocketId(0), to, b"OPTIONS".to_vec()));
        near.sent().pop().map(|(_, packet)| packet)
    };
    let good = packet(&mut near, to).unwrap();
    far.receive(from, &good);
    far.receive(from, &good);
    assert_eq!(far.drops(DropReason::EspReplayed), 1);
    let mut altered = packet(&mut near, to).unwrap();
    *altered.last_mut().unwrap() ^= 1;
    far.receive(from, &altered);
    assert_eq!(far.drops(DropReason::EspAuthentication), 1);
    let mut unknown = good.clone();
    unknown[3] = 0x77;
    far.receive(from, &unknown);
    assert_eq!(far.drops(DropReason::EspUnknownSpi), 1);
    let fresh = packet(&mut near, to).unwrap();
    for short in [&b""[..], &[1], &[1; 7], &fresh[..20]] {
        far.receive(from, short);
    }
    assert_eq!(far.drops(DropReason::EspMalformed), 4);
    // A keep-alive and an IKE message.
    far.receive(from, &[0xff]);
    far.receive(from, &[0, 0, 0, 0, 1, 2, 3]);
    let counters = far.endpoint.counters();
    assert_eq!(
        (counters.keep_alives_received, counters.ike_messages),
        (1, 1)
    );
    // A port without a socket, and destinations that the association does not protect: nothing leaves in the clear.
    let other = packet(&mut near, SocketAddr::new(to.ip(), 5099)).unwrap();
    far.receive(from, &other);
    assert_eq!(far.drops(DropReason::EspSelector), 1);
    for elsewhere in ["198.51.100.1:5060", "[fd00::9]:5060"] {
        assert_eq!(packet(&mut near, elsewhere.parse().unwrap()), None);
    }
    assert_eq!(near.drops(DropReason::EspSelector), 2);
    assert_eq!(far.endpoint.engine().received.len(), 1);
}

#[test]
fn peer_behind_a_nat_is_followed_and_kept_alive() {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let inner = ["10.0.0.1:5060", "10.0.0.2:5060"];
    let [mut near, mut far] = ends(suite, EspCarrier::Udp, inner, true);
    let nat: SocketAddr = "203.0.113.9:31000".parse().unwrap();
    let to = inner[1].parse().unwrap();
    // Without the keys the peer is not moved.
    far.receive(nat, &[9; 64]);
    assert_eq!(far.endpoint.peer(), OUTER[0].parse().unwrap());
    for _ in 0..2 {
        near.endpoint
            .engine()
            .send
            .push_back((SocketId(1), to, b"rtp".to_vec()));
    }
    let sent = near.sent();
    far.receive(nat, &sent[1].1);
    assert_eq!(far.endpoint.peer(), nat);
    // A late packet from the former address does not lead back to it.
    far.receive(OUTER[0].parse().unwrap(), &sent[0].1);
    assert_eq!(far.endpoint.peer(), nat);
    let counters = far.endpoint.counters();
    assert_eq!((counters.opened, counters.peer_changes), (2, 1));
    let back = inner[0].parse().unwrap();
    far.endpoint
        .engine()
        .send
        .push_back((SocketId(0), back, b"answer".to_vec()));
    assert_eq!(far.sent().pop().map(|(to, _)| to), Some(nat));
    // 20 s after the last packet.
    let deadline = near.endpoint.next_deadline().unwrap().at;
    assert_eq!(deadline, Time::ZERO + Duration::from_secs(20));
    near.endpoint.handle(Input::Timeout, deadline);
    near.now = deadline;
    assert_eq!(near.sent(), [(OUTER[1].parse().unwrap(), vec![0xff])]);
    assert_eq!(near.endpoint.counters().keep_alives_sent, 1);
    assert!(near.endpoint.next_deadline().unwrap().at > deadline);
}

#[test]
fn failures_of_the_outer_socket_are_those_of_all_sockets() {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let [_, far] = ends(
        suite,
        EspCarrier::Ip,
        ["192.0.2.1:5060", "192.0.2.2:5060"],
        false,
    );
    assert_eq!(far.outer.map(|outer| outer.1), Some(SocketKind::Esp));
    let mut engine = Phone::at("192.0.2.1:5060");
    engine.requests.truncate(2);
    let mut entropy = Entropy::from_number(9);
    let plan = EspEndpointPlan {
        carrier: EspCarrier::Udp,
        local: OUTER[0].parse().unwrap(),
        peer: OUTER[1].parse().unwrap(),
        keys: EndpointKeys::manual(
            OutboundSa::new(spec(0x1000, suite, 1), &mut entropy, Time::ZERO).unwrap(),
            InboundSa::new(spec(0x1001, suite, 2), Time::ZERO).unwrap(),
        ),
        shortcut: None,
        offers: false,
    };
    let mut endpoint = EspEndpoint::new(engine, plan);
    let Some(Output::OpenSocket { socket, .. }) = endpoint.next_output() else {
        panic!("no socket");
    };
    let error = "Address in use";
    endpoint.handle(Input::OpenFailed { socket, error }, Time::ZERO);
    let failed = &endpoint.engine().failed;
    assert_eq!(failed.len(), 2);
    assert!(
        failed
            .iter()
            .all(|error| error.contains("192.0.2.1:4500: Address in use"))
    );
    assert!(endpoint.engine().opened.is_empty());
}

#[test]
fn reserved_sequence_numbers_end() {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let [mut near, _] = ends(
        suite,
        EspCarrier::Udp,
        ["10.0.0.1:5060", "10.0.0.2:5060"],
        true,
    );
    let mut entropy = Entropy::from_number(9);
    let mut outbound = OutboundSa::new(spec(0x1000, suite, 1), &mut entropy, Time::ZERO).unwrap();
    outbound.limit_sequence(2);
    let plan = EspEndpointPlan {
        carrier: EspCarrier::Udp,
        local: OUTER[0].parse().unwrap(),
        peer: OUTER[1].parse().unwrap(),
        keys: EndpointKeys::manual(
            outbound,
            InboundSa::new(spec(0x1001, suite, 2), Time::ZERO).unwrap(),
        ),
        shortcut: None,
        offers: false,
    };
    near.endpoint = EspEndpoint::new(Phone::at("192.0.2.1:5060"), plan);
    near.outer = None;
    near.open();
    let to = "192.0.2.2:5060".parse().unwrap();
    for _ in 0..3 {
        near.endpoint
            .engine()
            .send
            .push_back((SocketId(0), to, vec![1]));
    }
    assert_eq!(near.sent().len(), 2);
    assert_eq!(near.drops(DropReason::EspSequenceExhausted), 1);
    let (state, _) = near.endpoint.states(Time::ZERO).unwrap();
    assert_eq!(state.next_sequence, 3);
}

/// Two ends that may use a shortcut; the first one offers.
fn with_shortcut(tunnel: bool, shortcuts: [Option<VoiceShortcut>; 2]) -> [End; 2] {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let outer: [SocketAddr; 2] = OUTER.map(|text| text.parse().unwrap());
    let inner = match tunnel {
        true => ["[fd00::1]:5060", "[fd00::2]:5060"],
        false => ["192.0.2.1:5060", "192.0.2.2:5060"],
    };
    [0, 1].map(|own| {
        let (local, peer) = (outer[own], outer[1 - own]);
        let made = |mut spec: SaSpec, from: SocketAddr, to: SocketAddr| {
            spec.accepts_direct = true;
            match tunnel {
                true => spec.tunnel(from.ip(), to.ip()),
                false => spec,
            }
        };
        let outbound = made(spec(0x1000 + own as u32, suite, own as u8), local, peer);
        let inbound = made(spec(0x1001 - own as u32, suite, 1 - own as u8), peer, local);
        let mut entropy = Entropy::from_number(own as u64);
        let plan = EspEndpointPlan {
            carrier: EspCarrier::Udp,
            local,
            peer,
            keys: EndpointKeys::manual(
                OutboundSa::new(outbound, &mut entropy, Time::ZERO).unwrap(),
                InboundSa::new(inbound, Time::ZERO).unwrap(),
            ),
            shortcut: shortcuts[own],
            offers: own == 0,
        };
        let mut end = End {
            endpoint: EspEndpoint::new(Phone::at(inner[own]), plan),
            outer: None,
            now: Time::ZERO,
        };
        assert_eq!(end.sent(), []);
        let (socket, _, local) = end.outer.unwrap();
        end.endpoint
            .handle(Input::Opened { socket, local }, Time::ZERO);
        end
    })
}

/// Carries all packets of one end to the other; their lengths.
fn carry(from: &mut End, to: &mut End, source: usize) -> Vec<usize> {
    let sent = from.sent();
    for (_, packet) in &sent {
        to.receive(OUTER[source].parse().unwrap(), packet);
    }
    sent.iter().map(|(_, packet)| packet.len()).collect()
}

#[test]
fn voice_takes_the_agreed_shortcut() {
    let mut lengths = Vec::new();
    for tunnel in [false, true] {
        for shortcut in [
            None,
            Some(VoiceShortcut::WithoutUdp),
            Some(VoiceShortcut::Direct),
        ] {
            let [mut near, mut far] = with_shortcut(tunnel, [shortcut; 2]);
            assert_eq!(near.endpoint.engine().opened.is_empty(), shortcut.is_some());
            carry(&mut near, &mut far, 0);
            carry(&mut far, &mut near, 1);
            assert_eq!(near.endpoint.engine().opened.len(), 3, "after the answer");
            assert_eq!(
                [near.endpoint.shortcut(), far.endpoint.shortcut()],
                [shortcut; 2]
            );
            let mut rtp = vec![0x80, 8];
            rtp.resize(172, 7);
            let mut rtcp = vec![0x80, 200];
            rtcp.resize(28, 0);
            let to = far.endpoint.engine().opened[1].1;
            for bytes in [&rtp, &rtcp] {
                near.endpoint
                    .engine()
                    .send
                    .push_back((SocketId(1), to, bytes.clone()));
            }
            // The first one is voice.
            lengths.push(carry(&mut near, &mut far, 0)[0]);
            let engine = far.endpoint.engine();
            let voice = std::mem::take(&mut engine.voice);
            let received: Vec<_> = engine
                .received
                .iter()
                .map(|(socket, _, bytes)| (*socket, bytes.clone()))
                .collect();
            let (rtp, rtcp) = ((SocketId(1), rtp), (SocketId(1), rtcp));
            match shortcut {
                Some(VoiceShortcut::Direct) => {
                    assert_eq!((voice, received), (vec![rtp], vec![rtcp]))
                }
                _ => assert_eq!((voice, received), (vec![], vec![rtp, rtcp])),
            }
            let count = u64::from(shortcut.is_some());
            assert_eq!(near.endpoint.counters().shortcut_sent, count);
            assert_eq!(far.endpoint.counters().shortcut_received, count);
            assert_eq!(far.endpoint.drops().total(), 0);
        }
    }
    // AES-GCM aligns to 4: a packet without UDP is 8 bytes shorter, and without IPv6 another 40.
    assert_eq!(lengths, [216, 208, 208, 256, 248, 208]);
}

#[test]
fn shortcut_without_agreement_is_refused() {
    let requested = Some(VoiceShortcut::Direct);
    for (other, why) in [
        (None, "refused"),
        (Some(VoiceShortcut::WithoutUdp), "refused"),
    ] {
        let [mut near, mut far] = with_shortcut(true, [requested, other]);
        carry(&mut near, &mut far, 0);
        carry(&mut far, &mut near, 1);
        assert!(near.endpoint.engine().opened.is_empty());
        let failed = &near.endpoint.engine().failed;
        assert!(failed.iter().any(|error| error.contains(why)), "{failed:?}");
        // The other end works on without it.
        assert_eq!(far.endpoint.engine().opened.len(), 3);
        assert_eq!(far.endpoint.shortcut(), None);
    }
    // A peer that is silent.
    let [mut near, _] = with_shortcut(false, [requested, None]);
    let mut offers = near.sent().len();
    while near.endpoint.engine().failed.is_empty() {
        let deadline = near.endpoint.next_deadline().unwrap().at;
        near.endpoint.handle(Input::Timeout, deadline);
        offers += near.sent().len();
    }
    assert_eq!(offers, 12);
    assert!(near.endpoint.engine().failed[0].contains("did not answer"));
    // Voice of a shortcut that was not agreed.
    let [mut near, mut far] = with_shortcut(false, [requested, requested]);
    carry(&mut near, &mut far, 0);
    carry(&mut far, &mut near, 1);
    let [_, mut other] = with_shortcut(false, [None, None]);
    let to = far.endpoint.engine().opened[1].1;
    let mut rtp = vec![0x80, 8];
    rtp.resize(172, 7);
    near.endpoint
        .engine()
        .send
        .push_back((SocketId(1), to, rtp));
    carry(&mut near, &mut other, 0);
    assert_eq!(other.drops(DropReason::EspSelector), 1);
}

/// The halves of a negotiated association for both ends; `number` makes its SPIs and keys.
fn negotiated(number: u8) -> [NegotiatedPair; 2] {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let outer: [SocketAddr; 2] = OUTER.map(|text| text.parse().unwrap());
    let of = |end: usize| {
        let spi = 0x2000 + u32::from(number) * 2 + end as u32;
        let spec = spec(spi, suite, number * 2 + end as u8);
        spec.tunnel(outer[1 - end].ip(), outer[end].ip())
    };
    [0, 1].map(|own| NegotiatedPair {
        tunnel: 0,
        inbound: InboundSa::new(of(own), Time::ZERO).unwrap(),
        outbound: OutboundSa::new(of(1 - own), &mut Entropy::from_number(9), Time::ZERO).unwrap(),
    })
}

fn spi_in(number: u8, end: usize) -> u32 {
    0x2000 + u32::from(number) * 2 + end as u32
}

fn spi_out(number: u8, end: usize) -> u32 {
    spi_in(number, 1 - end)
}

/// Two ends with a key exchange that has not ended.
fn without_keys() -> [End; 2] {
    let outer: [SocketAddr; 2] = OUTER.map(|text| text.parse().unwrap());
    let inner = ["10.0.0.1:5060", "10.0.0.2:5060"];
    [0, 1].map(|own| {
        let plan = EspEndpointPlan {
            carrier: EspCarrier::Udp,
            local: outer[own],
            peer: outer[1 - own],
            keys: EndpointKeys::Negotiated,
            shortcut: None,
            offers: false,
        };
        let mut end = End {
            endpoint: EspEndpoint::new(Phone::at(inner[own]), plan),
            outer: None,
            now: Time::ZERO,
        };
        assert_eq!(end.sent(), []);
        let (socket, _, local) = end.outer.unwrap();
        end.endpoint
            .handle(Input::Opened { socket, local }, Time::ZERO);
        end
    })
}

fn install(ends: &mut [End; 2], number: u8) {
    for (end, pair) in ends.iter_mut().zip(negotiated(number)) {
        end.endpoint.install(pair, end.now).unwrap();
    }
}

fn seal_with(ends: &mut [End; 2], number: u8, end: usize) -> bool {
    let peer = OUTER[1 - end].parse().unwrap();
    ends[end].endpoint.seal_with(spi_out(number, end), peer)
}

/// A datagram of one end; it arrives at the other one, sealed with the association `number`.
fn passes(ends: &mut [End; 2], from: usize, number: u8) {
    let to = ["10.0.0.1:5060", "10.0.0.2:5060"][1 - from]
        .parse()
        .unwrap();
    let message = vec![number; 20];
    let engine = ends[from].endpoint.engine();
    engine.send.push_back((SocketId(0), to, message.clone()));
    let sent = ends[from].sent();
    let [(_, packet)] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(packet[..4], spi_out(number, from).to_be_bytes());
    ends[1 - from].receive(OUTER[from].parse().unwrap(), packet);
    let last = ends[1 - from].endpoint.engine().received.pop();
    assert_eq!(last.map(|received| received.2), Some(message));
}

#[test]
fn sockets_open_with_the_first_negotiated_association() {
    let mut ends = without_keys();
    assert!(ends[0].endpoint.engine().opened.is_empty());
    assert!(ends[0].endpoint.next_deadline().is_none(), "no keep-alive");
    // IKE messages pass in both directions meanwhile, with their marker.
    let peer: SocketAddr = OUTER[1].parse().unwrap();
    let message = vec![0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    ends[0].receive(peer, &message);
    assert_eq!(
        ends[0].endpoint.next_message(),
        Some((peer, message.clone()))
    );
    assert_eq!(ends[0].endpoint.next_message(), None);
    let elsewhere: SocketAddr = "192.0.2.9:4501".parse().unwrap();
    ends[0].endpoint.send_message(message.clone(), elsewhere);
    assert_eq!(ends[0].sent(), [(elsewhere, message.clone())]);
    for _ in 0..100 {
        ends[0].receive(peer, &message);
    }
    assert_eq!(ends[0].drops(DropReason::IkeOverrun), 36);
    assert_eq!(ends[0].endpoint.counters().ike_messages, 101);
    install(&mut ends, 1);
    assert_eq!(ends[0].sent(), []);
    assert!(ends[0].endpoint.engine().opened.is_empty(), "it opens only");
    assert!(!ends[0].endpoint.seal_with(7, peer), "of another SPI");
    for end in 0..2 {
        assert!(seal_with(&mut ends, 1, end));
        assert_eq!(ends[end].sent(), []);
        assert_eq!(ends[end].endpoint.engine().opened.len(), 3);
    }
    passes(&mut ends, 0, 1);
    passes(&mut ends, 1, 1);
    assert!(ends[0].endpoint.states(Time::ZERO).is_none());
}

#[test]
fn new_keys_lose_no_packet_at_either_end() {
    let mut ends = without_keys();
    install(&mut ends, 1);
    assert!(seal_with(&mut ends, 1, 0) && seal_with(&mut ends, 1, 1));
    for number in 2..20 {
        install(&mut ends, number);
        // Each end seals with the new association at a time of its own.
        passes(&mut ends, 0, number - 1);
        assert!(seal_with(&mut ends, number, 0));
        passes(&mut ends, 0, number);
        passes(&mut ends, 1, number - 1);
        assert!(seal_with(&mut ends, number, 1));
        // A packet with the old keys is on its way when they are deleted.
        let to = "10.0.0.2:5060".parse().unwrap();
        let old = number - 1;
        assert!(seal_with(&mut ends, old, 0));
        ends[0]
            .endpoint
            .engine()
            .send
            .push_back((SocketId(0), to, vec![0; 8]));
        let late = ends[0].sent();
        assert!(seal_with(&mut ends, number, 0));
        for (end, own) in ends.iter_mut().enumerate() {
            let spis = [spi_in(old, end), spi_out(old, end)];
            own.endpoint.remove(spis, false, own.now);
            assert!(own.endpoint.next_deadline().is_some());
        }
        ends[1].receive(OUTER[0].parse().unwrap(), &late[0].1);
        assert_eq!(ends[1].endpoint.engine().received.pop().unwrap().2.len(), 8);
        passes(&mut ends, 1, number);
        // After the grace time it opens no more.
        for end in &mut ends {
            end.now += Duration::from_secs(10);
            end.endpoint.handle(Input::Timeout, end.now);
            assert_eq!(end.endpoint.opening(), 1);
            end.sent();
        }
        ends[1].receive(OUTER[0].parse().unwrap(), &late[0].1);
        assert_eq!(
            ends[1].drops(DropReason::EspUnknownSpi),
            u64::from(number) - 1
        );
    }
    let counters = ends[1].endpoint.counters();
    assert_eq!((counters.installed, counters.rekeyed), (19, 18));
}

/// Keys that change twice a second: deleted ones open for ten seconds, if there is room for them.
#[test]
fn deleted_associations_make_room_for_new_ones() {
    let mut ends = without_keys();
    for number in 1..=20 {
        install(&mut ends, number);
        for end in 0..2 {
            assert!(seal_with(&mut ends, number, end));
        }
        passes(&mut ends, 0, number);
        passes(&mut ends, 1, number);
        for (end, own) in ends.iter_mut().enumerate() {
            if number > 2 {
                let old = number - 2;
                let spis = [spi_in(old, end), spi_out(old, end)];
                own.endpoint.remove(spis, false, own.now);
            }
            own.now += Duration::from_millis(500);
        }
    }
    assert_eq!(ends[0].endpoint.opening(), 8);
}

#[test]
fn packets_without_an_association_are_counted() {
    let mut ends = without_keys();
    install(&mut ends, 1);
    assert!(seal_with(&mut ends, 1, 0) && seal_with(&mut ends, 1, 1));
    let duplicate = negotiated(1).into_iter().next().unwrap();
    assert!(ends[0].endpoint.install(duplicate, Time::ZERO).is_err());
    for number in 2..9 {
        let pair = negotiated(number).into_iter().next().unwrap();
        assert!(ends[0].endpoint.install(pair, Time::ZERO).is_ok());
    }
    let ninth = negotiated(9).into_iter().next().unwrap();
    let full = ends[0].endpoint.install(ninth, Time::ZERO);
    assert!(full.is_err(), "none was deleted");
    let spis = [spi_in(1, 0), spi_out(1, 0)];
    ends[0].endpoint.remove(spis, true, Time::ZERO);
    assert!(!ends[0].endpoint.seals());
    let to = "10.0.0.2:5060".parse().unwrap();
    let engine = ends[0].endpoint.engine();
    engine.send.push_back((SocketId(0), to, vec![1]));
    assert_eq!(ends[0].sent(), []);
    assert_eq!(ends[0].drops(DropReason::EspNoAssociation), 1);
    // Manual keys take no negotiated association.
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let inner = ["10.0.0.1:5060", "10.0.0.2:5060"];
    let [mut manual, _] = self::ends(suite, EspCarrier::Udp, inner, true);
    let pair = negotiated(1).into_iter().next().unwrap();
    assert!(manual.endpoint.install(pair, Time::ZERO).is_err());
    manual.endpoint.remove([0x1001, 0x1000], true, Time::ZERO);
    assert!(manual.endpoint.seals());
}
