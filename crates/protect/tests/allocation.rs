//! The gateway allocates nothing per packet, and a flood of unknown SPIs costs no memory.

use engine::{DropReason, Entropy, HashKey, Time};
use protect::esp::{
    EspCarrier, EspEncryption, EspGateway, EspIntegrity, EspKeys, EspSuite, GatewaySettings,
    GatewayTunnel, InboundSa, MAX_HEADROOM, OutboundSa, PacketRoom, SaSpec,
};
use std::net::{IpAddr, SocketAddr};

#[path = "../../media/tests/allocation/counting/mod.rs"]
mod counting;

const SUITES: [(EspEncryption, usize, EspIntegrity, usize); 2] = [
    (EspEncryption::AesGcm16, 20, EspIntegrity::None, 0),
    (EspEncryption::AesCbc, 16, EspIntegrity::HmacSha256, 32),
];

/// A gateway that opens its own packets: both directions of each tunnel have the same keys, which only a test may have.
fn gateway(tunnels: u32, suite: usize) -> EspGateway {
    let (encryption, key, integrity, integrity_key) = SUITES[suite];
    let local: IpAddr = "192.0.2.1".parse().unwrap();
    let spec = |number: u32| {
        let (key, integrity_key) = (vec![1; key], vec![2; integrity_key]);
        let keys = EspKeys::new(&key, &integrity_key);
        SaSpec::new(0x1000 + number, EspSuite::new(encryption, integrity), keys)
            .tunnel(local, local)
    };
    let mut entropy = Entropy::from_number(1);
    let (mut plans, mut opening) = (Vec::new(), Vec::new());
    for number in 0..tunnels {
        let plan = GatewayTunnel {
            name: number.to_string(),
            peer: Some(SocketAddr::new(local, 4500)),
            peer_behind_nat: false,
            remote: vec![
                format!("10.{}.{}.0/24", number / 256, number % 256)
                    .parse()
                    .unwrap(),
            ],
        };
        plans.push((
            plan,
            Some(OutboundSa::new(spec(number), &mut entropy, Time::ZERO).unwrap()),
        ));
        opening.push((
            number as usize,
            InboundSa::new(spec(number), Time::ZERO).unwrap(),
        ));
    }
    let settings = GatewaySettings {
        carrier: EspCarrier::Udp,
        local,
        keep_alive: None,
        rekey_delay: core::time::Duration::ZERO,
        rekey_grace: core::time::Duration::ZERO,
    };
    EspGateway::new(
        settings,
        plans,
        opening,
        HashKey::new(&mut entropy),
        Time::ZERO,
    )
    .unwrap()
}

#[test]
fn packets_through_the_gateway_allocate_nothing() {
    for suite in 0..SUITES.len() {
        let mut gateway = gateway(1_000, suite);
        let mut inner = [0u8; 60];
        inner[..4].copy_from_slice(&[0x45, 0, 0, 60]);
        inner[16..20].copy_from_slice(&[10, 3, 100, 1]);
        let mut buffer = [0u8; 512];
        let before = counting::calls();
        for _ in 0..1_000 {
            buffer[MAX_HEADROOM..MAX_HEADROOM + 60].copy_from_slice(&inner);
            let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, 60);
            let sealed = gateway.seal(&mut room, Time::ZERO).expect("sealed");
            let place = room.start..room.end;
            let opened = gateway.open(
                sealed.destination,
                0,
                &mut buffer[place.clone()],
                Time::ZERO,
            );
            let opened = opened.expect("opened");
            assert_eq!(buffer[place][opened], inner);
        }
        assert_eq!(counting::calls() - before, 0, "allocations");
    }
}

#[test]
fn a_flood_of_unknown_spis_costs_no_memory() {
    let mut gateway = gateway(1_000, 0);
    let source: SocketAddr = "203.0.113.5:4500".parse().unwrap();
    let mut packet = [0u8; 120];
    let mut entropy = Entropy::from_number(9);
    let before = counting::calls();
    for _ in 0..1_000_000 {
        packet[..4].copy_from_slice(&(entropy.u32() | 0x8000_0000).to_be_bytes());
        assert!(gateway.open(source, 0, &mut packet, Time::ZERO).is_none());
    }
    assert_eq!(counting::calls() - before, 0, "allocations");
    assert_eq!(gateway.drops().get(DropReason::EspUnknownSpi), 1_000_000);
    assert_eq!(gateway.associations(), 2_000);
}
