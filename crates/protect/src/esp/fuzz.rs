//! Arbitrary bytes as ESP packets and key files, shared by the fuzz target and the property tests.

use super::{
    ArrivedEsp, EspFailure, EspIntegrity, EspKeys, EspSuite, InboundSa, InboundState, MAX_HEADROOM,
    MAX_TAILROOM, OutboundSa, PacketRoom, SaSpec, SaTable, TrafficSelector, parse_esp_capture_keys,
    parse_esp_sa_file,
};
use core::net::{IpAddr, Ipv4Addr};
use engine::{Drops, Entropy, HashKey, Time};

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
