//! ESP associations: both modes, every algorithm, every fault.

use engine::{DropReason, Drops, Entropy, HashKey, Time};
use proptest::prelude::*;
use protect::esp::{
    ArrivedEsp, DfPolicy, EcnPolicy, EspEncryption, EspFailure, EspIntegrity, EspKeys, EspSuite,
    InboundSa, InboundState, LifetimeStatus, MAX_ESP_WINDOW, MAX_HEADROOM, MAX_TAILROOM,
    OpenedPacket, OutboundSa, OutboundState, PacketRoom, RekeyReason, SaError, SaLifetime, SaSpec,
    SaTable, SaUsage, SealedPacket, SelectorPorts, TrafficSelector, UdpEncapsulation,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use wire::ip::{IpPacket, Ipv4View, protocol};

const NOW: Time = Time(1_000_000_000);

/// Longest key that the algorithms accept, filled with distinct bytes.
fn keys(suite: EspSuite) -> EspKeys {
    let length = (0..64)
        .rev()
        .find(|n| suite.encryption.accepts_key_length(*n));
    let fill = |length: usize, salt: u8| (0..length).map(|at| at as u8 ^ salt).collect::<Vec<_>>();
    EspKeys::new(
        &fill(length.unwrap(), 0x55),
        &fill(suite.integrity.key_length(), 0xaa),
    )
}

fn spec(suite: EspSuite) -> SaSpec {
    let mut spec = SaSpec::new(0x1234_5678, suite, keys(suite));
    spec.allow_weak = true;
    spec
}

fn gcm() -> EspSuite {
    EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None)
}

fn cbc_sha1() -> EspSuite {
    EspSuite::new(EspEncryption::AesCbc, EspIntegrity::HmacSha1)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn tunnel(spec: SaSpec) -> SaSpec {
    spec.tunnel(ip("203.0.113.1"), ip("203.0.113.2"))
}

fn tunnel_v6(spec: SaSpec) -> SaSpec {
    spec.tunnel(ip("2001:db8::1"), ip("2001:db8::2"))
}

fn ends(spec: &SaSpec) -> (OutboundSa, InboundSa) {
    let mut entropy = Entropy::from_number(7);
    (
        OutboundSa::new(spec.clone(), &mut entropy, NOW).unwrap(),
        InboundSa::new(spec.clone(), NOW).unwrap(),
    )
}

/// An IPv4 packet with UDP from port 4000 to 5060; `flags` is the byte with Don't Fragment.
fn v4(payload: &[u8], tos: u8, flags: u8) -> Vec<u8> {
    let length = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, tos];
    packet.extend(length.to_be_bytes());
    packet.extend([0x12, 0x34, flags, 0, 64, protocol::UDP, 0, 0]);
    packet.extend([192, 0, 2, 1, 198, 51, 100, 2]);
    let checksum = wire::ip::internet_checksum(&[&packet]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(4000u16.to_be_bytes());
    packet.extend(5060u16.to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
    packet
}

/// An IPv6 packet with UDP behind hop-by-hop options where `options` says so.
fn v6(payload: &[u8], traffic_class: u8, options: bool) -> Vec<u8> {
    let udp = (8 + payload.len()) as u16;
    let length = udp + if options { 8 } else { 0 };
    let mut packet = vec![0x60 | traffic_class >> 4, traffic_class << 4, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([if options { 0 } else { protocol::UDP }, 64]);
    packet.extend(
        "2001:db8:1::1"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets(),
    );
    packet.extend(
        "2001:db8:2::2"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets(),
    );
    if options {
        packet.extend([protocol::UDP, 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend(4000u16.to_be_bytes());
    packet.extend(5060u16.to_be_bytes());
    packet.extend(udp.to_be_bytes());
    packet.extend([0xab, 0xcd]);
    packet.extend_from_slice(payload);
    packet
}

fn with_room<R>(packet: &[u8], act: impl FnOnce(&mut PacketRoom<'_>) -> R) -> (R, Vec<u8>) {
    let mut buffer = vec![0xee; MAX_HEADROOM + packet.len() + MAX_TAILROOM + 512];
    buffer[MAX_HEADROOM..][..packet.len()].copy_from_slice(packet);
    let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
    let result = act(&mut room);
    let bytes = room.packet().to_vec();
    (result, bytes)
}

fn seal(sa: &mut OutboundSa, packet: &[u8]) -> Result<(SealedPacket, Vec<u8>), EspFailure> {
    let (sealed, wire) = with_room(packet, |room| sa.seal_packet(room, NOW));
    if sealed.is_err() {
        assert_eq!(wire, packet, "a packet that is not sealed stays as it was");
    }
    sealed.map(|sealed| (sealed, wire))
}

fn open(sa: &mut InboundSa, packet: &[u8]) -> Result<(OpenedPacket, Vec<u8>), EspFailure> {
    let mut bytes = packet.to_vec();
    let length = bytes.len();
    let mut room = PacketRoom::new(&mut bytes, 0, length);
    let opened = sa.open_packet(&mut room, NOW)?;
    Ok((opened, room.packet().to_vec()))
}

/// All suites, modes, address families, encapsulations; lengths from 0 to 1,500 in steps that meet every alignment.
#[test]
fn sealed_packets_open_to_themselves() {
    let lengths = (0..70).chain((70..1_500).step_by(97)).chain([1_472, 1_500]);
    let lengths: Vec<usize> = lengths.collect();
    let mut suites = 0;
    for suite in EspSuite::all() {
        suites += 1;
        for mode in 0..6 {
            let mut spec = spec(suite);
            if mode % 3 > 0 {
                spec = [tunnel, tunnel_v6][mode % 3 - 1](spec);
            }
            if mode >= 3 {
                spec.encapsulation = Some(UdpEncapsulation {
                    source_port: 4500,
                    destination_port: 4501,
                });
            }
            let (mut outbound, mut inbound) = ends(&spec);
            for length in &lengths {
                let payload: Vec<u8> = (0..*length).map(|at| at as u8).collect();
                let transport = mode % 3 == 0;
                let expected = v4(&payload, 0xb8, 0x40);
                let (sealed, wire) = seal(&mut outbound, &expected).unwrap();
                assert_eq!(sealed.traffic_class, 0xb8);
                let (opened, inner) = open(&mut inbound, &wire).unwrap();
                assert_eq!(inner, expected, "{suite} mode {mode} length {length}");
                assert_eq!(opened.sequence, sealed.sequence);
                let outer = IpPacket::parse(&wire).unwrap();
                let encapsulated = spec.encapsulation.is_some();
                let protocol = if encapsulated {
                    protocol::UDP
                } else {
                    protocol::ESP
                };
                assert_eq!((outer.protocol, outer.is_truncated()), (protocol, false));
                let head = outer.payload.len()
                    - suite.packet_length(if transport {
                        expected.len() - 20
                    } else {
                        expected.len()
                    });
                assert_eq!(head, if encapsulated { 8 } else { 0 });
                let expected = v6(&payload, 0xb9, length % 2 == 0);
                let (_, wire) = seal(&mut outbound, &expected).unwrap();
                assert_eq!(
                    open(&mut inbound, &wire).unwrap().1,
                    expected,
                    "{suite} {mode}"
                );
                if !payload.is_empty() {
                    let hidden = payload.len() > 8 && suite.encryption != EspEncryption::Null;
                    let shows = wire.windows(payload.len()).any(|window| window == payload);
                    assert!(!(hidden && shows), "the payload is readable");
                }
            }
        }
    }
    assert_eq!(suites, 44);
}

proptest! {
    /// Random packets, altered anywhere: nothing that is authenticated opens to other bytes.
    #[test]
    fn altered_packets_do_not_open(
        payload in proptest::collection::vec(any::<u8>(), 0..1_500),
        which in any::<u8>(), at in any::<u16>(), bit in 0u8..8, in_tunnel in any::<bool>(),
    ) {
        let suites: Vec<EspSuite> = EspSuite::all().filter(|suite| suite.authenticates()).collect();
        let suite = suites[usize::from(which) % suites.len()];
        let spec = if in_tunnel { tunnel(spec(suite)) } else { spec(suite) };
        let (mut outbound, mut inbound) = ends(&spec);
        let packet = v4(&payload, 0, 0);
        let (_, wire) = seal(&mut outbound, &packet).unwrap();
        let mut altered = wire.clone();
        let at = 20 + usize::from(at) % (wire.len() - 20);
        altered[at] ^= 1 << bit;
        let expected = match at - 20 {
            0..4 => EspFailure::UnknownSpi,
            7 if bit == 0 => EspFailure::Replayed, // number 0 is never sent (RFC 4303 section 3.3.3)
            _ => EspFailure::Authentication,
        };
        prop_assert_eq!(open(&mut inbound, &altered).err(), Some(expected));
        prop_assert_eq!(open(&mut inbound, &wire).unwrap().1, packet);
    }

    /// Arbitrary bytes as packets, keys, descriptions and steps.
    #[test]
    fn arbitrary_bytes(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        protect::fuzz_esp(&data);
    }
}

/// Every fault is counted with its own reason, and an unknown SPI costs no memory.
#[test]
fn faults_are_counted_drops() {
    let suite = cbc_sha1();
    let mut selected = tunnel(spec(suite));
    selected.selectors = vec![TrafficSelector {
        destination_ports: SelectorPorts::one(5060),
        protocol: Some(protocol::UDP),
        ..TrafficSelector::ANY
    }];
    let mut open_spec = selected.clone();
    open_spec.selectors.clear();
    let mut outbound = OutboundSa::new(open_spec, &mut Entropy::from_number(1), NOW).unwrap();
    let key = HashKey::new(&mut Entropy::from_number(2));
    let mut table = SaTable::new(1, key);
    table
        .insert(InboundSa::new(selected.clone(), NOW).unwrap())
        .unwrap();
    let mut drops = Drops::new();
    let mut expect = |packet: &[u8], reason: Option<DropReason>| {
        let before = drops.clone();
        let mut bytes = packet.to_vec();
        let mut room = PacketRoom::new(&mut bytes, 0, packet.len());
        let opened = table.open_packet(&mut room, NOW, &mut drops);
        assert_eq!(opened.is_none(), reason.is_some());
        let counted = reason.map_or(0, |reason| drops.get(reason) - before.get(reason));
        assert_eq!(counted, u64::from(reason.is_some()), "{reason:?}");
        assert_eq!(drops.total() - before.total(), counted);
        assert_eq!(table.len(), 1);
    };
    let good = v4(b"OPTIONS", 0, 0);
    let (_, wire) = seal(&mut outbound, &good).unwrap();
    let mut bad = wire.clone();
    *bad.last_mut().unwrap() ^= 1;
    expect(&bad, Some(DropReason::EspAuthentication));
    let mut unknown = wire.clone();
    unknown[20] ^= 1;
    expect(&unknown, Some(DropReason::EspUnknownSpi));
    expect(&wire, None);
    expect(&wire, Some(DropReason::EspReplayed));
    // Another port than the selector's.
    let mut other = good.clone();
    other[22..24].copy_from_slice(&5061u16.to_be_bytes());
    let (_, wire) = seal(&mut outbound, &other).unwrap();
    expect(&wire, Some(DropReason::EspSelector));
    // A later fragment has no port, so that it matches no selector with ports.
    let mut fragment = good.clone();
    fragment[6..8].copy_from_slice(&[0, 9]);
    let (_, wire) = seal(&mut outbound, &fragment).unwrap();
    expect(&wire, Some(DropReason::EspSelector));
    // Beyond the window of 64.
    let (_, old) = seal(&mut outbound, &good).unwrap();
    for _ in 0..64 {
        let (_, wire) = seal(&mut outbound, &good).unwrap();
        expect(&wire, None);
    }
    expect(&old, Some(DropReason::EspTooOld));
    // An outer fragment.
    let (_, wire) = seal(&mut outbound, &good).unwrap();
    let mut fragment = wire.clone();
    fragment[6] = 0x20;
    expect(&fragment, Some(DropReason::EspFragment));
    // Truncated anywhere: the IP length is repaired, so that ESP sees the cut.
    for length in 20..wire.len() {
        let mut cut = wire[..length].to_vec();
        cut[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let body = length as i64 - 20 - 8 - 16 - 12;
        let reason = if length < 28 || body < 2 || body % 16 != 0 {
            DropReason::EspMalformed
        } else {
            DropReason::EspAuthentication
        };
        expect(&cut, Some(reason));
    }
    expect(&wire[..30], Some(DropReason::EspMalformed));
    expect(&[], Some(DropReason::EspMalformed));
    expect(&[0x45], Some(DropReason::EspMalformed));
    let (_, largest) = with_room(&[], |_| ());
    assert!(largest.is_empty());
    let mut huge = vec![0xa5; 65_535];
    huge[..20].copy_from_slice(&wire[..20]);
    huge[2..4].copy_from_slice(&65_535u16.to_be_bytes());
    expect(&huge, Some(DropReason::EspUnknownSpi));
    huge[20..24].copy_from_slice(&0x1234_5678u32.to_be_bytes());
    huge[24..28].copy_from_slice(&900u32.to_be_bytes());
    // 65,535 - 20 - 8 - 16 - 12 is no multiple of 16.
    expect(&huge, Some(DropReason::EspMalformed));
    huge.truncate(65_528);
    huge[2..4].copy_from_slice(&65_528u16.to_be_bytes());
    expect(&huge, Some(DropReason::EspAuthentication));
    // A dummy packet is discarded, and counted under its own reason.
    let (_, esp) = with_room(&[], |room| outbound.seal_dummy(room, 100, NOW).unwrap());
    let mut dummy = wire[..20].to_vec();
    dummy.extend(&esp);
    let length = dummy.len() as u16;
    dummy[2..4].copy_from_slice(&length.to_be_bytes());
    expect(&dummy, Some(DropReason::EspDummy));
}

/// Bad padding under a valid ICV: sealed by hand with the keys.
#[test]
fn bad_padding_and_wrong_mode_are_found() {
    let suite = EspSuite::new(EspEncryption::Null, EspIntegrity::HmacSha256);
    let spec = tunnel(spec(suite));
    let transform = protect::esp::EspTransform::new(suite, &spec.keys).unwrap();
    let by_hand = |sequence: u8, plain: &[u8]| {
        let mut esp = [
            &0x1234_5678u32.to_be_bytes()[..],
            &[0, 0, 0, sequence],
            plain,
        ]
        .concat();
        esp.resize(esp.len() + 16, 0);
        transform.seal(&mut esp, None).unwrap();
        let mut wire = v4(&[], 0, 0)[..20].to_vec();
        wire[9] = protocol::ESP;
        wire.extend(&esp);
        let length = wire.len() as u16;
        wire[2..4].copy_from_slice(&length.to_be_bytes());
        wire
    };
    let mut inbound = InboundSa::new(spec.clone(), NOW).unwrap();
    let mut check = |sequence, plain: &[u8], failure| {
        let opened = open(&mut inbound, &by_hand(sequence, plain));
        assert_eq!(opened.err(), Some(failure), "{sequence}");
    };
    check(1, &[1, 1, 2, 4], EspFailure::Padding);
    check(1, &[1, 1, 2, 4], EspFailure::Replayed);
    check(2, &[1, 2, 3, 4, 200, 4, 200, 4], EspFailure::Padding);
    // UDP where a tunnel carries IP; an IPv6 packet said to be IPv4; an empty one; one longer than the payload.
    check(
        3,
        &[0, 1, 0, 2, 0, 8, 0, 0, 1, 2, 2, 17],
        EspFailure::Selector,
    );
    let mut inner = v6(&[], 0, false);
    inner.extend([1, 2, 2, 4]);
    check(4, &inner, EspFailure::Malformed);
    check(5, &[1, 2, 2, 4], EspFailure::Malformed);
    let mut inner = v4(&[], 0, 0);
    inner[3] = 200;
    inner.extend([1, 2, 2, 4]);
    check(6, &inner, EspFailure::Malformed);
    check(7, &[0, 0, 0, 59], EspFailure::Dummy);
    check(8, &[0, 0, 0, 59, 1, 2, 2, 59], EspFailure::Dummy);
}

#[test]
fn weak_algorithms_require_permission() {
    let mut allowed = BTreeSet::new();
    for suite in EspSuite::all() {
        let mut spec = spec(suite);
        spec.allow_weak = false;
        match InboundSa::new(spec.clone(), NOW) {
            Ok(_) => {
                allowed.insert(suite.to_string());
            }
            Err(error) => assert_eq!(error, SaError::Weak(suite)),
        }
        let outbound = OutboundSa::new(spec, &mut Entropy::from_number(1), NOW);
        assert_eq!(outbound.is_ok(), !suite.is_weak());
    }
    let strong = |name: &str| {
        [
            "HMAC-SHA1-96",
            "HMAC-SHA2-256-128",
            "HMAC-SHA2-256-96",
            "HMAC-SHA2-384-192",
            "HMAC-SHA2-512-256",
        ]
        .map(|integrity| format!("{name}+{integrity}"))
    };
    let mut expected: BTreeSet<String> =
        ["AES-GCM-16", "AES-GCM-12", "AES-GCM-8", "CHACHA20-POLY1305"]
            .map(str::to_owned)
            .into();
    expected.extend(strong("AES-CBC"));
    expected.extend(strong("AES-CTR"));
    assert_eq!(allowed, expected);
    let refused = SaError::Weak(cbc_sha1()).to_string();
    assert!(refused.contains("allow_weak = true"));
}

#[test]
fn invalid_descriptions_are_refused() {
    let check = |change: fn(&mut SaSpec), error: SaError| {
        let mut spec = spec(cbc_sha1());
        change(&mut spec);
        assert_eq!(InboundSa::new(spec.clone(), NOW).unwrap_err(), error);
        let outbound = OutboundSa::new(spec, &mut Entropy::from_number(1), NOW);
        assert_eq!(outbound.unwrap_err(), error);
        assert!(!error.to_string().is_empty());
    };
    check(|spec| spec.spi = 255, SaError::ReservedSpi(255));
    check(|spec| spec.spi = 0, SaError::ReservedSpi(0));
    check(
        |spec| spec.replay_window = MAX_ESP_WINDOW + 1,
        SaError::ReplayWindow(4_097),
    );
    check(|spec| spec.dscp = Some(64), SaError::Dscp);
    check(|spec| spec.tfc_length = 1_400, SaError::TfcInTransport);
    check(
        |spec| *spec = spec.clone().tunnel(ip("192.0.2.1"), ip("2001:db8::1")),
        SaError::AddressFamilies,
    );
    check(
        |spec| {
            spec.replay_window = 0;
            spec.extended_sequence = true;
        },
        SaError::ExtendedWithoutReplay,
    );
    check(
        |spec| spec.keys = EspKeys::new(&[1; 17], &[2; 20]),
        SaError::EncryptionKey {
            encryption: EspEncryption::AesCbc,
            actual: 17,
        },
    );
    check(
        |spec| spec.keys = EspKeys::new(&[1; 16], &[2; 19]),
        SaError::IntegrityKey {
            integrity: EspIntegrity::HmacSha1,
            actual: 19,
        },
    );
    let combination = |encryption, integrity| {
        let suite = EspSuite::new(encryption, integrity);
        let spec = SaSpec {
            allow_weak: true,
            ..SaSpec::new(300, suite, keys(suite))
        };
        assert_eq!(
            InboundSa::new(spec, NOW).unwrap_err(),
            SaError::Combination(suite)
        );
    };
    combination(EspEncryption::Null, EspIntegrity::None);
    combination(EspEncryption::AesCtr, EspIntegrity::None);
    combination(EspEncryption::AesGcm16, EspIntegrity::HmacSha1);
    let unauthenticated = EspSuite::new(EspEncryption::AesCbc, EspIntegrity::None);
    let spec = SaSpec {
        replay_window: 64,
        ..spec(unauthenticated)
    };
    assert_eq!(
        InboundSa::new(spec, NOW).unwrap_err(),
        SaError::ReplayWithoutIntegrity
    );
}

#[test]
fn keys_are_not_printed_and_not_written() {
    let mut spec = spec(cbc_sha1());
    spec.keys = EspKeys::new(&[0xab; 16], &[0xcd; 20]);
    let (outbound, inbound) = ends(&spec);
    let printed = format!("{spec:?} {outbound:?} {inbound:?} {:?}", spec.keys);
    for secret in ["171", "205", "ab, ab", "abab", "cdcd"] {
        assert!(!printed.contains(secret), "{printed}");
    }
    let written = serde_json::to_string(&spec).unwrap();
    assert!(
        !written.contains("171") && !written.contains("keys"),
        "{written}"
    );
    let read: SaSpec = serde_json::from_str(&written).unwrap();
    assert!(
        InboundSa::new(read.clone(), NOW).is_err(),
        "keys are added on purpose"
    );
    assert_eq!(read.with_keys(spec.keys.clone()), spec);
}

/// An association is written out and read back in the middle of its packets.
#[test]
fn state_is_written_and_read_back() {
    let mut spec = tunnel(spec(gcm()));
    spec.replay_window = 128;
    spec.extended_sequence = true;
    let (mut outbound, mut inbound) = ends(&spec);
    let packet = v4(b"x", 0, 0);
    let wires: Vec<Vec<u8>> = (0..10)
        .map(|_| seal(&mut outbound, &packet).unwrap().1)
        .collect();
    for at in [0, 2, 4, 9] {
        open(&mut inbound, &wires[at]).unwrap();
    }
    let later = NOW + Duration::from_secs(5);
    let written = serde_json::to_string(&(inbound.state(later), outbound.state(later))).unwrap();
    let (state, sealing): (InboundState, OutboundState) = serde_json::from_str(&written).unwrap();
    assert_eq!(state.usage.age_ns, 5_000_000_000);
    let mut resumed = InboundSa::resume(spec.clone(), &state, 0, Time::ZERO).unwrap();
    for (at, wire) in wires.iter().enumerate() {
        let opened = open(&mut resumed, wire).map(|_| ());
        let expected = if [0, 2, 4, 9].contains(&at) {
            Err(EspFailure::Replayed)
        } else {
            Ok(())
        };
        assert_eq!(opened, expected, "{at}");
    }
    // A stale state with a skip opens nothing that may have been opened since.
    let mut stale = InboundSa::resume(spec.clone(), &state, 5, Time::ZERO).unwrap();
    for wire in &wires {
        assert!(open(&mut stale, wire).is_err());
    }
    let mut entropy = Entropy::from_number(9);
    let mut again = OutboundSa::resume(spec.clone(), &sealing, 5, &mut entropy, NOW).unwrap();
    let (sealed, wire) = seal(&mut again, &packet).unwrap();
    assert_eq!(sealed.sequence, 16);
    open(&mut stale, &wire).unwrap();
    let other = InboundState {
        spi: 999,
        ..state.clone()
    };
    let refused = InboundSa::resume(spec.clone(), &other, 0, NOW);
    assert_eq!(refused.unwrap_err(), SaError::State);
    let short = InboundState {
        received: vec![],
        ..state
    };
    assert_eq!(
        InboundSa::resume(spec, &short, 0, NOW).unwrap_err(),
        SaError::State
    );
}

fn at_sequence(spec: &SaSpec, next_sequence: u64) -> OutboundSa {
    let state = OutboundState {
        spi: spec.spi,
        next_sequence,
        usage: SaUsage::default(),
    };
    OutboundSa::resume(spec.clone(), &state, 0, &mut Entropy::from_number(1), NOW).unwrap()
}

#[test]
fn sequence_numbers_end() {
    let spec = spec(gcm());
    let packet = v4(b"x", 0, 0);
    let mut sa = at_sequence(&spec, 0xffff_fffe);
    assert_eq!(
        seal(&mut sa, &packet).unwrap().0.rekey,
        Some(RekeyReason::Sequence)
    );
    assert_eq!(seal(&mut sa, &packet).unwrap().0.sequence, 0xffff_ffff);
    for _ in 0..3 {
        assert_eq!(
            seal(&mut sa, &packet).err(),
            Some(EspFailure::SequenceExhausted)
        );
    }
    let mut spec = spec.clone();
    spec.extended_sequence = true;
    let mut sa = at_sequence(&spec, 0xffff_ffff);
    assert_eq!(seal(&mut sa, &packet).unwrap().0.rekey, None);
    assert_eq!(seal(&mut sa, &packet).unwrap().0.sequence, 0x1_0000_0000);
    let mut sa = at_sequence(&spec, u64::MAX);
    assert_eq!(seal(&mut sa, &packet).unwrap().0.sequence, u64::MAX);
    for _ in 0..3 {
        assert_eq!(
            seal(&mut sa, &packet).err(),
            Some(EspFailure::SequenceExhausted)
        );
    }
}

/// RFC 4303 appendix A: the upper half is inferred around the wrap of the lower one, for windows of all sizes.
#[test]
fn extended_sequence_numbers_wrap() {
    for window in [64, 128, MAX_ESP_WINDOW] {
        let mut spec = spec(gcm());
        spec.extended_sequence = true;
        spec.replay_window = window;
        let start = 0x1_ffff_ff00u64;
        let mut outbound = at_sequence(&spec, start);
        let state = InboundState {
            spi: spec.spi,
            highest_sequence: start - 1,
            received: vec![u64::MAX; window / 64],
            usage: SaUsage::default(),
        };
        let mut inbound = InboundSa::resume(spec.clone(), &state, 0, NOW).unwrap();
        let wires: Vec<Vec<u8>> = (0..512)
            .map(|_| seal(&mut outbound, &v4(b"x", 0, 0)).unwrap().1)
            .collect();
        // Reordered by up to 60 packets across the wrap.
        for chunk in wires.chunks(60) {
            for wire in chunk.iter().rev() {
                open(&mut inbound, wire).unwrap();
            }
        }
        for wire in &wires {
            assert!(open(&mut inbound, wire).is_err(), "opened twice");
        }
        assert_eq!(inbound.state(NOW).highest_sequence, start + 511);
    }
}

#[test]
fn lifetimes_end_softly_and_hard() {
    let mut spec = spec(gcm());
    let packet = v4(&[0; 92], 0, 0);
    spec.lifetime = SaLifetime {
        soft_bytes: Some(150),
        hard_bytes: Some(300),
        ..SaLifetime::default()
    };
    let (mut outbound, mut inbound) = ends(&spec);
    let rekeys: Vec<_> = (0..3)
        .map(|_| {
            let (sealed, wire) = seal(&mut outbound, &packet).unwrap();
            assert_eq!(open(&mut inbound, &wire).unwrap().0.rekey, sealed.rekey);
            sealed.rekey
        })
        .collect();
    assert_eq!(rekeys, [None, Some(RekeyReason::Bytes), None], "said once");
    assert_eq!(outbound.lifetime(NOW), LifetimeStatus::Expired);
    assert_eq!(
        seal(&mut outbound, &packet).err(),
        Some(EspFailure::Expired)
    );

    spec.lifetime = SaLifetime {
        soft_time: Some(Duration::from_secs(10)),
        hard_time: Some(Duration::from_secs(20)),
        ..SaLifetime::default()
    };
    let (mut outbound, mut inbound) = ends(&spec);
    assert_eq!(
        outbound.next_bound(NOW),
        Some(NOW + Duration::from_secs(10))
    );
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let mut send = |seconds| {
        with_room(&packet, |room| {
            outbound
                .seal_packet(room, at(seconds))
                .map(|sealed| sealed.rekey)
        })
    };
    assert_eq!(send(9).0, Ok(None));
    assert_eq!(send(10).0, Ok(Some(RekeyReason::Time)));
    let (last, wire) = send(19);
    assert_eq!(last, Ok(None));
    assert_eq!(send(20).0, Err(EspFailure::Expired));
    assert_eq!(
        outbound.lifetime(at(12)),
        LifetimeStatus::RekeyDue(RekeyReason::Time)
    );
    assert_eq!(outbound.next_bound(at(12)), Some(at(20)));
    assert_eq!(outbound.next_bound(at(20)), None);
    let mut late = wire.clone();
    let length = late.len();
    let mut room = PacketRoom::new(&mut late, 0, length);
    assert_eq!(
        inbound.open_packet(&mut room, at(20)),
        Err(EspFailure::Expired)
    );
    open(&mut inbound, &wire).unwrap();
}

/// RFC 6040: the congestion marks of both headers, for every pair.
#[test]
fn congestion_marks_are_carried() {
    for make in [tunnel as fn(SaSpec) -> SaSpec, tunnel_v6] {
        for family in [4, 6] {
            for inner in 0..4u8 {
                let traffic_class = 46 << 2 | inner;
                let packet = if family == 4 {
                    v4(b"x", traffic_class, 0)
                } else {
                    v6(b"x", traffic_class, false)
                };
                let spec = make(spec(gcm()));
                let (mut outbound, _) = ends(&spec);
                let (sealed, wire) = seal(&mut outbound, &packet).unwrap();
                assert_eq!(sealed.traffic_class, traffic_class);
                for outer in 0..4u8 {
                    let mut inbound = InboundSa::new(spec.clone(), NOW).unwrap();
                    let mut marked = wire.clone();
                    if marked[0] >> 4 == 4 {
                        marked[1] = marked[1] & 0xfc | outer;
                    } else {
                        marked[1] = marked[1] & 0xcf | outer << 4;
                    }
                    let expected = match (inner, outer) {
                        (0, 3) => None,
                        (1 | 2, 3) => Some(3),
                        (2, 1) => Some(1),
                        (inner, _) => Some(inner),
                    };
                    let opened = open(&mut inbound, &marked);
                    let Some(expected) = expected else {
                        assert_eq!(opened.err(), Some(EspFailure::CongestionLost));
                        continue;
                    };
                    let arrived = opened.unwrap().1;
                    let class = if family == 4 {
                        assert!(Ipv4View::parse(&arrived).unwrap().has_valid_checksum());
                        arrived[1]
                    } else {
                        arrived[0] << 4 | arrived[1] >> 4
                    };
                    assert_eq!(class, 46 << 2 | expected, "inner {inner} outer {outer}");
                }
            }
        }
    }
    let mut spec = tunnel(spec(gcm()));
    spec.ecn = EcnPolicy::Compatibility;
    spec.dscp = Some(10);
    let (mut outbound, _) = ends(&spec);
    let (sealed, wire) = seal(&mut outbound, &v4(b"x", 0xbb, 0)).unwrap();
    assert_eq!((sealed.traffic_class, wire[1]), (40, 40));
}

#[test]
fn dont_fragment_and_path_mtu() {
    for (policy, inner, expected) in [
        (DfPolicy::Copy, 0, 0),
        (DfPolicy::Copy, 0x40, 0x40),
        (DfPolicy::Set, 0, 0x40),
        (DfPolicy::Clear, 0x40, 0),
    ] {
        let mut spec = tunnel(spec(gcm()));
        spec.df = policy;
        let (mut outbound, _) = ends(&spec);
        let (_, wire) = seal(&mut outbound, &v4(b"x", 0, inner)).unwrap();
        assert_eq!(wire[6], expected);
        let identified = wire[4..6] != [0, 0];
        assert_eq!(identified, expected == 0, "RFC 6864");
    }
    for suite in [gcm(), cbc_sha1()] {
        let (mut outbound, _) = ends(&tunnel(spec(suite)));
        assert_eq!(outbound.inner_mtu(), None);
        outbound.set_path_mtu(Some(1_400));
        let longest = outbound.inner_mtu().unwrap();
        let (_, wire) = seal(&mut outbound, &v4(&vec![0; longest - 28], 0, 0x40)).unwrap();
        assert!(wire.len() <= 1_400 && wire.len() > 1_400 - suite.encryption.alignment());
        let longer = v4(&vec![0; longest - 27], 0, 0x40);
        assert_eq!(
            seal(&mut outbound, &longer).err(),
            Some(EspFailure::TooLarge)
        );
        let fragmentable = v4(&vec![0; longest - 27], 0, 0);
        assert!(seal(&mut outbound, &fragmentable).is_ok());
        outbound.set_path_mtu(Some(10));
        assert!(
            outbound.inner_mtu().unwrap() < 68,
            "a report below 68 is not believed"
        );
        outbound.set_path_mtu(None);
        assert!(seal(&mut outbound, &longer).is_ok());
    }
}

#[test]
fn lengths_at_the_limits() {
    let (mut outbound, mut inbound) = ends(&tunnel(spec(gcm())));
    // Outer header, ESP header, initialisation vector, packet with trailer, ICV: 20 + 8 + 8 + 65,480 + 16.
    let longest = v4(&vec![1; 65_450], 0, 0);
    let (_, wire) = seal(&mut outbound, &longest).unwrap();
    assert!(wire.len() > 65_530);
    assert_eq!(open(&mut inbound, &wire).unwrap().1, longest);
    let longer = v4(&vec![1; 65_535 - 28], 0, 0);
    assert_eq!(
        seal(&mut outbound, &longer).err(),
        Some(EspFailure::TooLarge)
    );
    for bad in [&[][..], &[0x45], &[0x45; 19], &[0x60; 39], &[0x15; 60]] {
        assert_eq!(seal(&mut outbound, bad).err(), Some(EspFailure::Malformed));
    }
    // No room before or behind.
    let packet = v4(b"x", 0, 0);
    for (before, behind) in [(0, 100), (35, 100), (36, 17), (36, 0)] {
        let mut buffer = vec![0; before + packet.len() + behind];
        buffer[before..][..packet.len()].copy_from_slice(&packet);
        let mut room = PacketRoom::new(&mut buffer, before, packet.len());
        assert_eq!(
            outbound.seal_packet(&mut room, NOW),
            Err(EspFailure::NoRoom)
        );
        assert_eq!(room.packet(), packet);
    }
    let mut buffer = vec![0; 36 + packet.len() + 21];
    buffer[36..][..packet.len()].copy_from_slice(&packet);
    let mut room = PacketRoom::new(&mut buffer, 36, packet.len());
    outbound.seal_packet(&mut room, NOW).unwrap();
}

#[test]
fn fragments_are_not_sealed_in_transport_mode() {
    let (mut outbound, _) = ends(&spec(gcm()));
    for field in [[0x20, 0], [0, 5]] {
        let mut packet = v4(b"x", 0, 0);
        packet[6..8].copy_from_slice(&field);
        assert_eq!(
            seal(&mut outbound, &packet).err(),
            Some(EspFailure::Fragment)
        );
    }
    let (mut outbound, mut inbound) = ends(&tunnel(spec(gcm())));
    let mut packet = v4(b"x", 0, 0);
    packet[6] = 0x20;
    let (_, wire) = seal(&mut outbound, &packet).unwrap();
    assert_eq!(
        open(&mut inbound, &wire).unwrap().1,
        packet,
        "a tunnel carries fragments"
    );
}

/// TFC padding hides the length and is cut off.
#[test]
fn traffic_flow_confidentiality() {
    let mut spec = tunnel(spec(cbc_sha1()));
    spec.tfc_length = 300;
    let (mut outbound, mut inbound) = ends(&spec);
    let mut lengths = BTreeSet::new();
    for length in [0, 1, 100, 272] {
        let packet = v4(&vec![7; length], 0, 0);
        let (_, wire) = seal(&mut outbound, &packet).unwrap();
        lengths.insert(wire.len());
        assert_eq!(open(&mut inbound, &wire).unwrap().1, packet);
    }
    assert_eq!(lengths.len(), 1);
}

/// Payloads without IP headers, as sockets read and write them.
#[test]
fn payloads_for_sockets() {
    let mut transport = spec(gcm());
    transport.selectors = vec![TrafficSelector {
        source: Some("192.0.2.0/24".parse().unwrap()),
        protocol: Some(protocol::UDP),
        destination_ports: SelectorPorts {
            first: 5060,
            last: 5061,
        },
        ..TrafficSelector::ANY
    }];
    let (mut outbound, mut inbound) = ends(&transport);
    let arrived = |source| ArrivedEsp {
        source: ip(source),
        destination: ip("198.51.100.2"),
        traffic_class: 0,
    };
    let payload = &v4(b"INVITE", 0, 0)[20..];
    let mut esp = || {
        let sealed =
            |room: &mut PacketRoom<'_>| outbound.seal_payload(room, protocol::UDP, NOW).map(|_| ());
        let (sealed, esp) = with_room(payload, sealed);
        sealed.unwrap();
        esp
    };
    let mut bytes = esp();
    let opened = inbound
        .open_payload(&mut bytes, &arrived("192.0.2.9"), NOW)
        .unwrap();
    assert_eq!(
        (&bytes[opened.range], opened.next_header),
        (payload, protocol::UDP)
    );
    let mut bytes = esp();
    let refused = inbound.open_payload(&mut bytes, &arrived("192.0.3.9"), NOW);
    assert_eq!(refused, Err(EspFailure::Selector));
    // In a tunnel the next header is that of the packet.
    let (mut outbound, mut inbound) = ends(&tunnel(spec(gcm())));
    let packet = v4(b"x", 0xb8, 0);
    let wrong = with_room(&packet, |room| {
        outbound.seal_payload(room, protocol::IPV6, NOW)
    });
    assert_eq!(wrong.0, Err(EspFailure::Malformed));
    let (sealed, mut esp) = with_room(&packet, |room| {
        outbound.seal_payload(room, protocol::IPIP, NOW).unwrap()
    });
    assert_eq!(sealed.traffic_class, 0xb8);
    let opened = inbound
        .open_payload(&mut esp, &arrived("192.0.2.9"), NOW)
        .unwrap();
    assert_eq!(esp[opened.range], packet);
}

#[test]
fn selectors_match_and_reverse() {
    let selector = TrafficSelector {
        source: Some("192.0.2.0/24".parse().unwrap()),
        destination: Some("198.51.100.2".parse().unwrap()),
        protocol: Some(protocol::UDP),
        source_ports: SelectorPorts {
            first: 4000,
            last: 4001,
        },
        destination_ports: SelectorPorts::one(5060),
    };
    let facts = |packet: &[u8]| protect::esp::PacketFacts::of(&IpPacket::parse(packet).unwrap());
    let packet = v4(b"x", 0, 0);
    assert!(selector.matches(&facts(&packet)));
    assert!(!selector.reversed().matches(&facts(&packet)));
    assert_eq!(selector.reversed().reversed(), selector);
    for (at, value) in [(14, 3), (19, 3), (9, 6), (21, 0x9f), (23, 0xc5)] {
        let mut other = packet.clone();
        other[at] = value;
        assert!(!selector.matches(&facts(&other)), "byte {at}");
    }
    assert!(!selector.matches(&facts(&v6(b"x", 0, false))));
    assert!(TrafficSelector::ANY.matches(&facts(&v6(b"x", 0, true))));
    // An echo request: type 8, code 0.
    let mut ping = packet.clone();
    ping[9] = protocol::ICMP;
    ping[20..22].copy_from_slice(&[8, 0]);
    let echo = TrafficSelector {
        protocol: Some(protocol::ICMP),
        source_ports: SelectorPorts::one(8 << 8),
        ..TrafficSelector::ANY
    };
    assert!(echo.matches(&facts(&ping)));
    ping[20] = 0;
    assert!(!echo.matches(&facts(&ping)));
}

#[test]
fn table_is_bounded() {
    let key = HashKey::new(&mut Entropy::from_number(2));
    let mut table = SaTable::new(2, key);
    let with_spi = |spi| InboundSa::new(SaSpec { spi, ..spec(gcm()) }, NOW).unwrap();
    table.insert(with_spi(300)).unwrap();
    assert_eq!(table.insert(with_spi(300)), Err(SaError::DuplicateSpi(300)));
    table.insert(with_spi(301)).unwrap();
    assert_eq!(table.insert(with_spi(302)), Err(SaError::TableFull));
    let mut entropy = Entropy::from_number(3);
    for _ in 0..100 {
        let spi = table.unused_spi(&mut entropy);
        assert!(spi > 255 && table.get(spi).is_none());
    }
    assert!(table.remove(300).is_some());
    table.insert(with_spi(302)).unwrap();
    assert_eq!(table.iter_unordered().count(), 2);
}

/// Batches give the results of single packets.
#[test]
fn batches() {
    let spec = tunnel(spec(gcm()));
    let (mut outbound, inbound) = ends(&spec);
    let packets: Vec<Vec<u8>> = (0..32)
        .map(|at| v4(&vec![at; usize::from(at)], 0, 0))
        .collect();
    let mut buffers = vec![vec![0u8; 256]; 32];
    let mut rooms: Vec<PacketRoom<'_>> = buffers
        .iter_mut()
        .zip(&packets)
        .map(|(buffer, packet)| {
            buffer[MAX_HEADROOM..][..packet.len()].copy_from_slice(packet);
            PacketRoom::new(buffer, MAX_HEADROOM, packet.len())
        })
        .collect();
    let mut sealed = 0;
    outbound.seal_batch(&mut rooms, NOW, |index, outcome| {
        assert_eq!(outcome.unwrap().sequence, index as u64 + 1);
        sealed += 1;
    });
    let mut table = SaTable::new(2, HashKey::new(&mut Entropy::from_number(2)));
    table.insert(inbound).unwrap();
    let (mut drops, mut opened) = (Drops::new(), 0);
    table.open_batch(&mut rooms, NOW, &mut drops, |_, _| opened += 1);
    assert_eq!((sealed, opened, drops.total()), (32, 32, 0));
    for (room, packet) in rooms.iter().zip(&packets) {
        assert_eq!(room.packet(), packet);
    }
}
