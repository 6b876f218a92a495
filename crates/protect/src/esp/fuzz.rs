//! Arbitrary bytes as ESP packets and key files, shared by the fuzz target and the property tests.

use super::packet::InnerHeader;
use super::{
    AddressPrefix, ArrivedEsp, EndpointKeys, EspCarrier, EspEndpoint, EspEndpointPlan, EspFailure,
    EspGateway, EspIntegrity, EspKeys, EspSuite, EspTransform, GatewaySettings, GatewayTunnel,
    InboundSa, InboundState, MAX_HEADROOM, MAX_TAILROOM, OutboundSa, PacketRoom, SaMode, SaSpec,
    SaTable, TOO_BIG_ROOM, TrafficSelector, VoiceReceiver, VoiceShortcut, parse_esp_capture_keys,
    parse_esp_sa_file, write_too_big,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use engine::{
    Datagram, Deadline, Drops, Engine, Entropy, HashKey, Input, Output, SocketId, SocketKind, Time,
};
use wire::esp::EspView;
use wire::ip::{IpPacket, protocol};

/// Next headers of packets from an end with the keys: IPv4, UDP, IPv6, none, and those of the shortcuts.
const NEXT_HEADERS: [u8; 6] = [protocol::IPIP, protocol::UDP, protocol::IPV6, 59, 253, 254];

/// Interprets `data` as a key file, as packets to be opened, and as steps between two ends. Checks the invariants.
///
/// # Panics
/// An invariant is violated: the finding.
pub fn fuzz_esp(data: &[u8]) {
    if let Ok(text) = core::str::from_utf8(data) {
        let _ = parse_esp_sa_file(text);
        let _ = parse_esp_capture_keys(text);
    }
    let Some((&[suite, options, window], rest)) = data.split_first_chunk::<3>() else {
        return;
    };
    let suites: Vec<EspSuite> = EspSuite::all().collect();
    let Some(suite) = suites.get(usize::from(suite) % suites.len()) else {
        return;
    };
    let spec = spec(*suite, options, window);
    raw(&spec, rest);
    authentic(&spec, rest);
    gateway(&spec, rest);
    endpoint(&spec, rest);
    exchange(&spec, rest);
}

/// A description with keys of the right length.
fn spec(suite: EspSuite, options: u8, window: u8) -> SaSpec {
    let length = (0..64)
        .rev()
        .find(|n| suite.encryption.accepts_key_length(*n));
    let keys = EspKeys::new(
        &vec![7; length.unwrap_or(0)],
        &vec![9; suite.integrity.key_length()],
    );
    let mut spec = SaSpec::new(0x1000 + u32::from(window), suite, keys);
    spec.allow_weak = true;
    let address = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    if options & 1 != 0 {
        spec = spec.tunnel(address(1), address(2));
    }
    if suite.authenticates() {
        spec.replay_window = 64 * (1 + usize::from(window) % 64);
        spec.extended_sequence = options & 2 != 0;
    }
    if options & 4 != 0 {
        spec.selectors = vec![TrafficSelector {
            protocol: Some(17),
            ..TrafficSelector::ANY
        }];
    }
    if options & 8 != 0 {
        spec.encapsulation = Some(super::UdpEncapsulation {
            source_port: 4500,
            destination_port: 4500,
        });
    }
    spec
}

/// The bytes as they are: as an IP packet and as an ESP packet. Nothing that is authenticated opens.
fn raw(spec: &SaSpec, data: &[u8]) {
    let Ok(mut inbound) = InboundSa::new(spec.clone(), Time::ZERO) else {
        return;
    };
    let arrived = ArrivedEsp {
        source: Ipv4Addr::new(192, 0, 2, 1).into(),
        destination: Ipv4Addr::new(192, 0, 2, 2).into(),
        traffic_class: 3,
    };
    let mut bytes = spec.spi.to_be_bytes().to_vec();
    bytes.extend_from_slice(data);
    let authenticates = spec.suite.authenticates();
    if let Ok(opened) = inbound.open_payload(&mut bytes, &arrived, Time::ZERO) {
        assert!(!authenticates, "bytes without a key were opened");
        assert!(bytes.get(opened.range).is_some());
    }
    let mut table = SaTable::new(4, HashKey::new(&mut Entropy::from_number(1)));
    table.insert(inbound).expect("an empty table");
    let (mut copy, mut drops) = (data.to_vec(), Drops::new());
    let mut room = PacketRoom::new(&mut copy, 0, data.len());
    let opened = table.open_packet(&mut room, Time::ZERO, &mut drops);
    assert!(opened.is_none() || !authenticates || spec.suite.integrity == EspIntegrity::None);
    assert_eq!(drops.total(), u64::from(opened.is_none()));
}

/// A packet from the SPI on, with this sequence number, whose payload an end with the keys has chosen at will: behind
/// the check of the ICV everything is still arbitrary.
fn encrypted(spec: &SaSpec, sequence: u32, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let encryption = spec.suite.encryption;
    let mut packet = spec.spi.to_be_bytes().to_vec();
    packet.extend(sequence.to_be_bytes());
    packet.resize(EspView::HEADER + encryption.iv_length(), 0x5a);
    packet.extend_from_slice(payload);
    let alignment = encryption.alignment();
    let padding = (alignment - (payload.len() + 2) % alignment) % alignment;
    packet.extend((0..padding).map(|n| n as u8 + 1));
    packet.extend([padding as u8, next_header]);
    packet.resize(packet.len() + spec.suite.icv_length(), 0);
    let transform = EspTransform::new(spec.suite, &spec.keys).expect("keys of the right length");
    let high = spec.extended_sequence.then_some(0);
    transform.seal(&mut packet, high).expect("a whole packet");
    packet
}

/// Arbitrary payloads with valid ICVs: in tunnel mode, only IP packets that the selectors allow are opened.
fn authentic(spec: &SaSpec, data: &[u8]) {
    let mut inbound = InboundSa::new(spec.clone(), Time::ZERO).expect("a valid description");
    let arrived = ArrivedEsp {
        source: Ipv4Addr::new(192, 0, 2, 1).into(),
        destination: Ipv4Addr::new(192, 0, 2, 2).into(),
        traffic_class: 3,
    };
    for (sequence, next_header) in (1..).zip(NEXT_HEADERS) {
        let mut packet = encrypted(spec, sequence, next_header, data);
        let opened = match inbound.open_payload(&mut packet, &arrived, Time::ZERO) {
            Ok(opened) => opened,
            Err(failure) => {
                use EspFailure::{CongestionLost, Dummy, Malformed, Selector};
                let of_content = matches!(failure, CongestionLost | Dummy | Malformed | Selector);
                assert!(of_content, "{failure:?}: the packet is authentic");
                continue;
            }
        };
        let inner = packet.get(opened.range).expect("within the packet");
        if spec.mode == SaMode::Transport {
            assert_eq!(inner, data);
            continue;
        }
        let header = InnerHeader::read(inner).expect("an IP packet");
        assert_eq!(
            (header.next_header(), header.length),
            (next_header, inner.len())
        );
        if !spec.selectors.is_empty() {
            let packet = IpPacket::parse(inner).expect("its selectors were checked");
            assert!(packet.protocol == protocol::UDP || packet.fragment.is_some());
        }
    }
}

/// The bytes as packets from both sides of a gateway, and as content of ESP packets from its peer.
fn gateway(spec: &SaSpec, data: &[u8]) {
    if spec.mode == SaMode::Transport {
        return;
    }
    let address = |last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
    let peer = SocketAddr::new(address(1), 4500);
    let settings = GatewaySettings {
        carrier: EspCarrier::Udp,
        local: address(2),
        keep_alive: Some(Duration::from_secs(20)),
        rekey_delay: Duration::from_secs(1),
        rekey_grace: Duration::from_secs(1),
    };
    let every = |ip: IpAddr| AddressPrefix::new(ip, 0).expect("the whole family");
    let tunnel = GatewayTunnel {
        name: String::new(),
        peer: Some(peer),
        peer_behind_nat: true,
        remote: vec![
            every(Ipv4Addr::UNSPECIFIED.into()),
            every(Ipv6Addr::UNSPECIFIED.into()),
        ],
    };
    let mut entropy = Entropy::from_number(5);
    let outbound = OutboundSa::new(spec.clone(), &mut entropy, Time::ZERO).expect("valid");
    let inbound = InboundSa::new(spec.clone(), Time::ZERO).expect("valid");
    let key = HashKey::new(&mut entropy);
    let tunnels = vec![(tunnel, Some(outbound))];
    let mut gateway = EspGateway::new(settings, tunnels, vec![(0, inbound)], key, Time::ZERO)
        .expect("one tunnel");
    let mut opened = 0;
    let mut outside = vec![data.to_vec()];
    outside.extend(
        (1..)
            .zip(NEXT_HEADERS)
            .map(|(n, next)| encrypted(spec, n, next, data)),
    );
    for mut packet in outside {
        if let Some(range) = gateway.open(peer, 1, &mut packet, Time::ZERO) {
            assert!(packet.get(range).is_some_and(|inner| !inner.is_empty()));
            opened += 1;
        }
    }
    let mut buffer = vec![0; MAX_HEADROOM];
    buffer.extend_from_slice(data);
    buffer.resize(buffer.len() + MAX_TAILROOM, 0);
    let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, data.len());
    let sealed = gateway.seal(&mut room, Time::ZERO).is_ok();
    let counters = gateway.counters();
    assert_eq!(counters.opened, opened);
    assert_eq!(counters.sealed, u64::from(sealed));
    let taken = counters.opened
        + counters.keep_alives_received
        + counters.ike_messages
        + gateway.drops().total();
    let packets = 1 + NEXT_HEADERS.len() as u64 + u64::from(!sealed);
    assert_eq!(taken, packets, "each packet is counted once");
    let mut error = [0; TOO_BIG_ROOM];
    if let Some(length) = write_too_big(data, 1_280, &mut error) {
        let error = error.get(..length).expect("within its room");
        assert!(IpPacket::parse(error).is_some(), "an IP packet");
    }
}

/// Counts the bytes that an endpoint hands over.
#[derive(Debug, Default)]
struct Receiver {
    requested: usize,
    bytes: usize,
}

impl Engine for Receiver {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        if let Input::Datagram(datagram) = input {
            self.bytes += datagram.bytes.len();
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        let address = |port| SocketAddr::from((Ipv4Addr::new(192, 0, 2, 2), port));
        let (socket, kind, local) = [
            (SocketId(0), SocketKind::UdpSignalling, address(5060)),
            (SocketId(1), SocketKind::UdpMedia, address(0)),
        ]
        .into_iter()
        .nth(self.requested)?;
        self.requested += 1;
        Some(Output::OpenSocket {
            socket,
            kind,
            local,
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl VoiceReceiver for Receiver {
    fn receive_voice(&mut self, packet: Datagram<'_>, _now: Time) {
        self.bytes += packet.bytes.len();
    }
}

/// The bytes as a datagram for an endpoint with a shortcut, and as content of ESP packets from its peer.
fn endpoint(spec: &SaSpec, data: &[u8]) {
    let address = |last| SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), 4500));
    let (local, peer) = (address(2), address(1));
    let mut outbound = spec.clone();
    if let SaMode::Tunnel { .. } = spec.mode {
        outbound = outbound.tunnel(local.ip(), peer.ip());
    }
    let mut entropy = Entropy::from_number(7);
    let outbound = OutboundSa::new(outbound, &mut entropy, Time::ZERO).expect("valid");
    let mut inbound = spec.clone();
    inbound.accepts_direct = true;
    let inbound = InboundSa::new(inbound, Time::ZERO).expect("valid");
    let shortcut = match data.len() % 2 {
        0 => VoiceShortcut::WithoutUdp,
        _ => VoiceShortcut::Direct,
    };
    let plan = EspEndpointPlan {
        carrier: EspCarrier::Udp,
        local,
        peer,
        keys: EndpointKeys::manual(outbound, inbound),
        shortcut: Some(shortcut),
        offers: false,
    };
    let mut endpoint = EspEndpoint::new(Receiver::default(), plan);
    let mut outer = None;
    while let Some(output) = endpoint.next_output() {
        if let Output::OpenSocket { socket, .. } = output {
            outer = Some(socket);
        }
    }
    let socket = outer.expect("an outer socket");
    endpoint.handle(Input::Opened { socket, local }, Time::ZERO);
    while endpoint.next_output().is_some() {}
    let offer = b"HWvs\x01\x01\0\0";
    let mut packets = vec![
        data.to_vec(),
        encrypted(spec, 1, 254, offer),
        encrypted(spec, 2, 254, b"HWvs\x01\x02\0\0"),
    ];
    packets.extend(
        (3..)
            .zip(NEXT_HEADERS)
            .map(|(n, next)| encrypted(spec, n, next, data)),
    );
    let received: usize = packets.iter().map(Vec::len).sum();
    let count = packets.len() as u64;
    for mut packet in packets {
        let datagram = Datagram {
            socket,
            source: peer,
            bytes: &mut packet,
            arrived: Time::ZERO,
        };
        endpoint.handle(Input::Datagram(datagram), Time::ZERO);
        while endpoint.next_output().is_some() {}
    }
    assert!(endpoint.engine().bytes <= received);
    assert!(endpoint.counters().opened <= count);
}

/// Packets between two ends: identity, and no second opening.
fn exchange(spec: &SaSpec, mut data: &[u8]) {
    let mut entropy = Entropy::from_number(3);
    let ends = OutboundSa::new(spec.clone(), &mut entropy, Time::ZERO)
        .and_then(|outbound| Ok((outbound, InboundSa::new(spec.clone(), Time::ZERO)?)));
    let Ok((mut outbound, mut inbound)) = ends else {
        panic!("a valid description was refused");
    };
    for _ in 0..50 {
        let Some((&[step, length], rest)) = data.split_first_chunk::<2>() else {
            return;
        };
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(length)));
        data = rest;
        let packet = udp_packet(payload);
        let mut buffer = vec![0; MAX_HEADROOM];
        buffer.extend_from_slice(&packet);
        buffer.resize(buffer.len() + MAX_TAILROOM, 0);
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
        let sealed = outbound.seal_packet(&mut room, Time::ZERO);
        sealed.expect("room, selectors and a number");
        let wire = room.packet().to_vec();
        let mut altered = wire.clone();
        let at = usize::from(step) % altered.len();
        altered[at] ^= 1 << (length % 8);
        if step & 1 != 0
            && let Ok(opened) = open(&mut inbound, &mut altered)
        {
            // Only outer fields that nothing authenticates may differ.
            assert!(!spec.suite.authenticates() || opened.ends_with(payload));
            continue;
        }
        if step & 2 != 0 {
            let state: InboundState = inbound.state(Time::ZERO);
            let resumed = InboundSa::resume(spec.clone(), &state, 0, Time::ZERO);
            inbound = resumed.expect("its own state");
        }
        let opened = open(&mut inbound, &mut wire.clone()).expect("its own packet");
        assert!(opened.ends_with(payload));
        if spec.replay_window > 0 {
            assert_eq!(
                open(&mut inbound, &mut wire.clone()),
                Err(EspFailure::Replayed)
            );
        }
    }
}

fn open(inbound: &mut InboundSa, packet: &mut [u8]) -> Result<Vec<u8>, EspFailure> {
    let length = packet.len();
    let mut room = PacketRoom::new(packet, 0, length);
    inbound.open_packet(&mut room, Time::ZERO)?;
    Ok(room.packet().to_vec())
}

/// An IPv4 packet with UDP.
fn udp_packet(payload: &[u8]) -> Vec<u8> {
    let length = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    packet.extend([0x13, 0xc4, 0x13, 0xc4]);
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
    packet
}
