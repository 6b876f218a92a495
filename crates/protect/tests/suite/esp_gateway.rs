//! The gateway without IO: tunnels, drop reasons, change of keys under traffic, path MTU, NAT.

use engine::{DropReason, Entropy, HashKey, Time};
use protect::esp::{
    ChangedState, EspCarrier, EspEncryption, EspFailure, EspGateway, EspIntegrity, EspKeys,
    EspSuite, GatewayNotice, GatewayRekey, GatewaySettings, GatewayTunnel, InboundSa, MAX_HEADROOM,
    MAX_TAILROOM, NegotiatedPair, NotSealed, OutboundSa, PacketRoom, SaLifetime, SaSpec,
    SealedForPeer, SealingReason, SelectorLimits, SelectorPorts, TOO_BIG_ROOM, TrafficSelector,
    UdpEncapsulation, write_too_big,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use wire::ip::IpPacket;

const HUB: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn spoke(number: usize) -> SocketAddr {
    let number = number as u32 + 1;
    SocketAddr::new(Ipv4Addr::from(0xc633_0000 + number).into(), 4500)
}

/// The network behind a spoke, and that behind the hub.
pub(crate) fn networks(number: usize) -> [String; 2] {
    [
        format!("10.{}.{}.0/24", 1 + number / 256, number % 256),
        "10.0.0.0/24".to_owned(),
    ]
}

pub(crate) fn host(network: &str, last: u8) -> Ipv4Addr {
    let (address, _) = network.split_once('/').expect("prefix");
    let [a, b, c, _] = address.parse::<Ipv4Addr>().expect("address").octets();
    Ipv4Addr::new(a, b, c, last)
}

/// An IPv4 packet with UDP of `payload` bytes.
pub(crate) fn packet(from: Ipv4Addr, to: Ipv4Addr, payload: usize, dont_fragment: bool) -> Vec<u8> {
    let mut packet = vec![0x45, 0xb8, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend_from_slice(&from.octets());
    packet.extend_from_slice(&to.octets());
    packet.resize(28 + payload, 7);
    let length = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&length);
    packet[6] = if dont_fragment { 0x40 } else { 0 };
    packet
}

/// Keys of generation `age` from the hub to a spoke, or back.
pub(crate) fn spec(number: usize, age: u8, to_spoke: bool, networks: &[String; 2]) -> SaSpec {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let mut key = [age; 20];
    key[..4].copy_from_slice(&(number as u32).to_be_bytes());
    key[4] = u8::from(to_spoke);
    let spi = 0x1000 + number as u32 * 2 + u32::from(to_spoke) + (u32::from(age) << 24);
    let far = spoke(number);
    let ends = match to_spoke {
        true => [HUB, far.ip()],
        false => [far.ip(), HUB],
    };
    let outwards = TrafficSelector {
        source: Some(networks[1].parse().unwrap()),
        destination: Some(networks[0].parse().unwrap()),
        ..TrafficSelector::ANY
    };
    let mut spec = SaSpec::new(spi, suite, EspKeys::new(&key, &[])).tunnel(ends[0], ends[1]);
    spec.selectors = vec![match to_spoke {
        true => outwards,
        false => outwards.reversed(),
    }];
    spec.encapsulation = Some(UdpEncapsulation {
        source_port: 4500,
        destination_port: 4500,
    });
    spec
}

fn settings(local: IpAddr) -> GatewaySettings {
    GatewaySettings {
        carrier: EspCarrier::Udp,
        local,
        keep_alive: Some(Duration::from_secs(20)),
        rekey_delay: Duration::from_secs(10),
        rekey_grace: Duration::from_secs(60),
    }
}

pub(crate) fn outbound(spec: SaSpec) -> OutboundSa {
    OutboundSa::new(spec, &mut Entropy::from_number(3), Time::ZERO).unwrap()
}

pub(crate) fn inbound(spec: SaSpec) -> InboundSa {
    InboundSa::new(spec, Time::ZERO).unwrap()
}

fn tunnel(name: String, peer: SocketAddr, remote: &str) -> GatewayTunnel {
    GatewayTunnel {
        name,
        peer: Some(peer),
        peer_behind_nat: false,
        remote: vec![remote.parse().unwrap()],
    }
}

/// A hub with tunnels to `count` spokes.
pub(crate) fn hub(count: usize, change: impl Fn(SaSpec) -> SaSpec) -> EspGateway {
    let (mut tunnels, mut opening) = (Vec::new(), Vec::new());
    for number in 0..count {
        let networks = networks(number);
        let plan = tunnel(format!("spoke {number}"), spoke(number), &networks[0]);
        let sealing = outbound(change(spec(number, 1, true, &networks)));
        tunnels.push((plan, Some(sealing)));
        opening.push((number, inbound(spec(number, 1, false, &networks))));
    }
    EspGateway::new(
        settings(HUB),
        tunnels,
        opening,
        HashKey::default(),
        Time::ZERO,
    )
    .unwrap()
}

fn spoke_gateway(number: usize) -> EspGateway {
    let networks = networks(number);
    let plan = tunnel("hub".to_owned(), SocketAddr::new(HUB, 4500), &networks[1]);
    let sealing = outbound(spec(number, 1, false, &networks));
    let tunnels = vec![(plan, Some(sealing))];
    let opening = vec![(0, inbound(spec(number, 1, true, &networks)))];
    let settings = settings(spoke(number).ip());
    EspGateway::new(settings, tunnels, opening, HashKey::default(), Time::ZERO).unwrap()
}

pub(crate) fn seal(
    gateway: &mut EspGateway,
    packet: &[u8],
    now: Time,
) -> Result<(SealedForPeer, Vec<u8>), NotSealed> {
    let mut buffer = vec![0; MAX_HEADROOM];
    buffer.extend_from_slice(packet);
    buffer.resize(buffer.len() + MAX_TAILROOM, 0);
    let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
    let sealed = gateway.seal(&mut room, now)?;
    Ok((sealed, room.packet().to_vec()))
}

fn open(gateway: &mut EspGateway, esp: &[u8], now: Time) -> Option<Vec<u8>> {
    let mut bytes = esp.to_vec();
    let place = gateway.open(spoke(0), 0, &mut bytes, now)?;
    Some(bytes[place].to_vec())
}

#[test]
fn a_thousand_tunnels_carry_packets_of_their_networks() {
    let mut hub = hub(1_000, |spec| spec);
    assert_eq!(hub.associations(), 2_000);
    for number in (0..1_000).step_by(37) {
        let mut far = spoke_gateway(number);
        let networks = networks(number);
        let there = packet(host(&networks[1], 9), host(&networks[0], 8), 160, true);
        let (sealed, esp) = seal(&mut hub, &there, Time::ZERO).expect("sealed");
        assert_eq!(sealed.destination, spoke(number));
        assert_eq!(sealed.tunnel, number);
        assert_eq!(sealed.traffic_class, 0xb8, "DSCP is copied");
        assert!(sealed.dont_fragment);
        assert_eq!(open(&mut far, &esp, Time::ZERO), Some(there));
        let back = packet(host(&networks[0], 8), host(&networks[1], 9), 160, false);
        let (sealed, esp) = seal(&mut far, &back, Time::ZERO).expect("sealed");
        assert_eq!(sealed.destination, SocketAddr::new(HUB, 4500));
        assert!(!sealed.dont_fragment);
        assert_eq!(open(&mut hub, &esp, Time::ZERO), Some(back));
    }
    assert_eq!(hub.drops().total(), 0);
}

#[test]
fn every_fault_is_counted_with_its_reason() {
    let (mut hub, mut far) = (hub(2, |spec| spec), spoke_gateway(0));
    let networks = networks(0);
    let (inside, outside) = (host(&networks[1], 1), host(&networks[0], 1));
    let good = packet(outside, inside, 60, true);
    let (_, esp) = seal(&mut far, &good, Time::ZERO).unwrap();
    assert!(open(&mut hub, &esp, Time::ZERO).is_some());
    let mut expect = |esp: &[u8], reason: DropReason| {
        let before = hub.drops().clone();
        assert_eq!(open(&mut hub, esp, Time::ZERO), None, "{reason:?}");
        assert_eq!(
            hub.drops().get(reason),
            before.get(reason) + 1,
            "{reason:?}"
        );
        assert_eq!(hub.drops().total(), before.total() + 1, "{reason:?}");
        assert_eq!(hub.associations(), 4);
    };
    expect(&esp, DropReason::EspReplayed);
    let (_, next) = seal(&mut far, &good, Time::ZERO).unwrap();
    let mut altered = next.clone();
    *altered.last_mut().unwrap() ^= 1;
    expect(&altered, DropReason::EspAuthentication);
    let mut unknown = next.clone();
    unknown[0] ^= 0x55;
    expect(&unknown, DropReason::EspUnknownSpi);
    expect(&next[..12], DropReason::EspMalformed);
    expect(&next[..7], DropReason::EspMalformed);
    expect(&[1], DropReason::EspMalformed);
    let mut huge = next.clone();
    huge.resize(65_504, 0);
    expect(&huge, DropReason::EspAuthentication);
    // The spoke lies about its network: its own selectors would refuse, so they are left out here.
    let mut wide = spec(0, 1, false, &networks);
    wide.selectors.clear();
    let mut liar = outbound(wide);
    liar.limit_sequence(100);
    let foreign = packet(Ipv4Addr::new(10, 1, 1, 1), inside, 60, true);
    for _ in 0..5 {
        let mut buffer = vec![0; MAX_HEADROOM];
        buffer.extend_from_slice(&foreign);
        buffer.resize(buffer.len() + MAX_TAILROOM, 0);
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, foreign.len());
        let sealed = liar.seal_payload(&mut room, 4, Time::ZERO).unwrap();
        if sealed.sequence > 2 {
            expect(room.packet(), DropReason::EspSelector);
        }
    }
    // Keep-alives and IKE are no drops.
    assert_eq!(open(&mut hub, &[0xff], Time::ZERO), None);
    assert_eq!(open(&mut hub, &[0, 0, 0, 0, 1, 2, 3, 4], Time::ZERO), None);
    let counters = hub.counters();
    assert_eq!(
        (counters.keep_alives_received, counters.ike_messages),
        (1, 1)
    );
}

#[test]
fn packets_of_other_networks_are_not_sealed() {
    let mut hub = hub(2, |spec| spec);
    let networks = networks(0);
    for (from, to) in [
        (host(&networks[1], 1), Ipv4Addr::new(203, 0, 113, 1)),
        (Ipv4Addr::new(203, 0, 113, 1), host(&networks[0], 1)),
    ] {
        let refused = seal(&mut hub, &packet(from, to, 10, false), Time::ZERO);
        assert!(matches!(refused, Err(NotSealed::Dropped(_))), "{refused:?}");
    }
    assert_eq!(hub.drops().get(DropReason::EspSelector), 2);
    for bytes in [&[][..], &[0x45], &[0x60; 30], &[0x45; 20]] {
        assert!(seal(&mut hub, bytes, Time::ZERO).is_err());
    }
    assert_eq!(hub.drops().get(DropReason::EspMalformed), 4);
}

/// Whether a packet arrives as it was sent.
fn passes(from: &mut EspGateway, to: &mut EspGateway, inner: &[u8], now: Time) -> bool {
    let (_, esp) = seal(from, inner, now).expect("sealed");
    open(to, &esp, now).is_some_and(|arrived| arrived == inner)
}

/// Packets flow both ways every 20 ms while both ends take new keys into use, in either order and `apart` seconds
/// apart.
fn rekey_under_traffic(hub_first: bool, apart: u64) {
    let (mut hub, mut far) = (hub(1, |spec| spec), spoke_gateway(0));
    let networks = networks(0);
    let there = packet(host(&networks[1], 9), host(&networks[0], 8), 160, true);
    let back = packet(host(&networks[0], 8), host(&networks[1], 9), 160, true);
    let of_age = |age: u8, to_spoke: bool| spec(0, age, to_spoke, &networks);
    let change = |at_hub: bool| GatewayRekey {
        outbound: vec![(0, outbound(of_age(2, at_hub)))],
        inbound: vec![(0, inbound(of_age(2, !at_hub)))],
        removed: vec![of_age(1, !at_hub).spi],
    };
    let (mut sealed, mut opened) = (0, 0);
    let mut reasons = Vec::new();
    for step in 0..6_000u64 {
        let now = Time::ZERO + Duration::from_millis(20 * step);
        let rekeyed = if hub_first {
            [100, 100 + 50 * apart]
        } else {
            [100 + 50 * apart, 100]
        };
        for (at, gateway, is_hub) in [(rekeyed[0], &mut hub, true), (rekeyed[1], &mut far, false)] {
            if step == at {
                gateway.rekey(change(is_hub), now).expect("rekeyed");
            }
            if step % 10 == 0 {
                gateway.tick(now, |_| {});
            }
            reasons.extend(notices(gateway).into_iter().map(|notice| match notice {
                GatewayNotice::SealsWith { reason, .. } => reason,
                other => panic!("{other:?}"),
            }));
        }
        opened += u64::from(passes(&mut hub, &mut far, &there, now));
        opened += u64::from(passes(&mut far, &mut hub, &back, now));
        sealed += 2;
    }
    assert_eq!(opened, sealed, "hub first: {hub_first}, {apart} s apart");
    let by_peer = reasons.contains(&SealingReason::PeerReady);
    assert!(by_peer || apart == 0, "{reasons:?}");
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    // The old keys are gone after the grace time.
    assert_eq!((hub.associations(), far.associations()), (2, 2));
    assert_eq!(hub.drops().total() + far.drops().total(), 0);
}

#[test]
fn no_packet_is_lost_while_keys_change() {
    for hub_first in [true, false] {
        for apart in [0, 3, 9] {
            rekey_under_traffic(hub_first, apart);
        }
    }
}

/// A gateway without keys, at the hub or at the spoke; the peer is known from the key exchange.
fn unkeyed(at_hub: bool) -> EspGateway {
    let networks = networks(0);
    let (local, remote) = match at_hub {
        true => (HUB, &networks[0]),
        false => (spoke(0).ip(), &networks[1]),
    };
    let mut plan = tunnel("peer".to_owned(), spoke(0), remote);
    plan.peer = None;
    let none = vec![(plan, None)];
    EspGateway::new(
        settings(local),
        none,
        Vec::new(),
        HashKey::default(),
        Time::ZERO,
    )
    .unwrap()
}

/// An association of generation `age` from a key exchange.
fn pair(age: u8, at_hub: bool) -> NegotiatedPair {
    let networks = networks(0);
    NegotiatedPair {
        tunnel: 0,
        inbound: inbound(spec(0, age, !at_hub, &networks)),
        outbound: outbound(spec(0, age, at_hub, &networks)),
    }
}

fn spi(age: u8, to_spoke: bool) -> u32 {
    spec(0, age, to_spoke, &networks(0)).spi
}

#[test]
fn no_packet_is_lost_while_a_key_exchange_changes_keys() {
    let (mut hub, mut far) = (unkeyed(true), unkeyed(false));
    let networks = networks(0);
    let there = packet(host(&networks[1], 9), host(&networks[0], 8), 160, true);
    let back = packet(host(&networks[0], 8), host(&networks[1], 9), 160, true);
    let refused = seal(&mut hub, &there, Time::ZERO);
    assert_eq!(
        refused,
        Err(NotSealed::Dropped(EspFailure::NoAssociation)),
        "there are no keys"
    );
    assert_eq!((hub.associations(), hub.tunnels_up(Time::ZERO)), (0, 0));
    let hub_address = SocketAddr::new(HUB, 4500);
    // The initiator of each exchange installs last and seals first, the responder seals when the old association is
    // deleted.
    for age in 1..20u8 {
        let now = Time::ZERO + Duration::from_secs(10 * u64::from(age));
        let hub_initiates = age % 2 == 0;
        let check = |hub: &mut EspGateway, far: &mut EspGateway| {
            if age > 1 {
                assert!(
                    passes(hub, far, &there, now) && passes(far, hub, &back, now),
                    "{age}"
                );
            }
        };
        let seal_with = |gateway: &mut EspGateway, at_hub: bool| {
            let peer = if at_hub { spoke(0) } else { hub_address };
            assert!(gateway.seal_with(0, spi(age, at_hub), peer));
        };
        for end in [!hub_initiates, hub_initiates] {
            match end {
                true => hub.install(pair(age, true)).unwrap(),
                false => far.install(pair(age, false)).unwrap(),
            }
            check(&mut hub, &mut far);
        }
        match hub_initiates {
            true => seal_with(&mut hub, true),
            false => seal_with(&mut far, false),
        }
        check(&mut hub, &mut far);
        seal_with(&mut hub, true);
        seal_with(&mut far, false);
        if age > 1 {
            // A packet that was on its way meanwhile is still opened.
            assert!(!hub.remove_pair(spi(age - 1, false), spi(age - 1, true), false, now));
            assert!(!far.remove_pair(spi(age - 1, true), spi(age - 1, false), false, now));
        }
        assert!(passes(&mut hub, &mut far, &there, now));
        assert!(passes(&mut far, &mut hub, &back, now));
        assert_eq!((hub.tunnels_up(now), far.tunnels_up(now)), (1, 1));
    }
    assert_eq!(hub.drops().total() + far.drops().total(), 1);
    let later = Time::ZERO + Duration::from_secs(1_000);
    hub.tick(later, |_| {});
    assert_eq!(hub.associations(), 2, "old ones are gone");
    assert!(
        hub.remove_pair(spi(19, false), spi(19, true), true, later),
        "the last one"
    );
    assert_eq!((hub.associations(), hub.tunnels_up(later)), (0, 0));
    assert!(seal(&mut hub, &there, later).is_err());
    assert_eq!(hub.drops().get(DropReason::EspNoAssociation), 2);
}

#[test]
fn a_key_exchange_cannot_take_an_spi_twice_nor_fill_memory() {
    let mut hub = unkeyed(true);
    hub.install(pair(1, true)).unwrap();
    assert!(hub.install(pair(1, true)).is_err());
    let mut elsewhere = pair(2, true);
    elsewhere.tunnel = 1;
    assert!(hub.install(elsewhere).is_err());
    assert!(!hub.seal_with(0, 77, spoke(0)));
    assert!(!hub.seal_with(9, spi(1, true), spoke(0)));
    for age in 2..100 {
        hub.install(pair(age, true)).unwrap();
    }
    assert!(
        !hub.seal_with(0, spi(1, true), spoke(0)),
        "replaced by later ones"
    );
    assert!(hub.seal_with(0, spi(99, true), spoke(0)));
}

#[test]
fn an_invalid_change_of_keys_changes_nothing() {
    let mut hub = hub(1, |spec| spec);
    let networks = networks(0);
    let twice = GatewayRekey {
        inbound: vec![(0, inbound(spec(0, 1, false, &networks)))],
        ..GatewayRekey::default()
    };
    assert!(hub.rekey(twice, Time::ZERO).is_err());
    let elsewhere = GatewayRekey {
        outbound: vec![(7, outbound(spec(0, 2, true, &networks)))],
        inbound: vec![(0, inbound(spec(0, 2, false, &networks)))],
        ..GatewayRekey::default()
    };
    assert!(hub.rekey(elsewhere, Time::ZERO).is_err());
    assert_eq!(hub.associations(), 2);
}

/// The notices since the last call.
fn notices(gateway: &mut EspGateway) -> Vec<GatewayNotice> {
    let mut notices = Vec::new();
    gateway.deliver_notices(|notice| {
        notices.push(notice);
        true
    });
    notices
}

#[test]
fn notices_wait_for_a_slow_reader() {
    // More tunnels than there is room for notices.
    const TUNNELS: usize = 1_100;
    let mut hub = hub(TUNNELS, |mut spec| {
        spec.lifetime.soft_bytes = Some(50);
        spec
    });
    let seal_in_each = |hub: &mut EspGateway| {
        for number in 0..TUNNELS {
            let networks = networks(number);
            let there = packet(host(&networks[1], 9), host(&networks[0], 8), 72, true);
            seal(hub, &there, Time::ZERO).expect("no hard bound");
        }
    };
    let mut due = BTreeSet::new();
    for _ in 0..2 {
        seal_in_each(&mut hub);
        loop {
            let mut room = 3;
            hub.deliver_notices(|notice| {
                let GatewayNotice::RekeyDue { tunnel, .. } = notice else {
                    panic!("{notice:?}");
                };
                room -= 1;
                assert!(room < 0 || due.insert(tunnel), "{tunnel} is noted twice");
                room >= 0
            });
            if room == 3 {
                break;
            }
        }
    }
    assert_eq!(due.len(), TUNNELS);
    assert_eq!(hub.counters().notices_lost, TUNNELS as u64 - 1_024);
}

#[test]
fn lifetimes_are_reported_and_end() {
    let mut hub = hub(1, |mut spec| {
        spec.lifetime = SaLifetime {
            soft_bytes: Some(500),
            hard_bytes: Some(1_000),
            ..SaLifetime::default()
        };
        spec
    });
    let networks = networks(0);
    let there = packet(host(&networks[1], 9), host(&networks[0], 8), 72, true);
    for _ in 0..10 {
        seal(&mut hub, &there, Time::ZERO).expect("within the lifetime");
    }
    let due = notices(&mut hub);
    assert!(
        matches!(due[..], [GatewayNotice::RekeyDue { .. }]),
        "{due:?}"
    );
    assert!(seal(&mut hub, &there, Time::ZERO).is_err());
    assert_eq!(hub.drops().get(DropReason::EspExpired), 1);
    assert_eq!(hub.tunnels_up(Time::ZERO), 0);
    // New keys seal at once, because the old ones have ended.
    let change = GatewayRekey {
        outbound: vec![(0, outbound(spec(0, 2, true, &networks)))],
        ..GatewayRekey::default()
    };
    hub.rekey(change, Time::ZERO).unwrap();
    assert_eq!(hub.tunnels_up(Time::ZERO), 1);
    seal(&mut hub, &there, Time::ZERO).expect("new keys");
    let notices = notices(&mut hub);
    assert!(
        matches!(
            notices[..],
            [GatewayNotice::SealsWith {
                reason: SealingReason::Lifetime,
                ..
            }]
        ),
        "{notices:?}"
    );
}

/// Media that another way carries if it is too long: that is no drop, any other refusal is one.
#[test]
fn packets_with_another_way_are_unchanged_if_they_are_too_long() {
    let mut hub = hub(1, |spec| spec);
    let networks = networks(0);
    hub.set_path_mtu(0, Some(1_400));
    let (from, to) = (host(&networks[1], 9), host(&networks[0], 8));
    let mut seal_at = |packet: &[u8]| {
        let mut buffer = vec![0; MAX_HEADROOM + packet.len() + MAX_TAILROOM];
        buffer[MAX_HEADROOM..][..packet.len()].copy_from_slice(packet);
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
        let sealed = hub.seal_if_fits(&mut room, Time::ZERO);
        let drops = hub.drops().total();
        (sealed, room.packet().to_vec(), drops)
    };
    let long = packet(from, to, 1_372, true);
    let (refused, left, drops) = seal_at(&long);
    assert!(matches!(refused, Err(NotSealed::TooLarge { .. })));
    assert_eq!((left, drops), (long, 0));
    let (sealed, _, drops) = seal_at(&packet(from, to, 160, true));
    assert!(sealed.is_ok() && drops == 0);
    let (refused, _, drops) = seal_at(&packet(from, from, 160, true));
    assert!(matches!(refused, Err(NotSealed::Dropped(_))));
    assert_eq!(drops, 1);
    assert!(hub.is_remote(to.into()) && !hub.is_remote(from.into()));
}

#[test]
fn long_packets_are_answered_by_icmp() {
    let mut hub = hub(1, |spec| spec);
    let networks = networks(0);
    hub.set_path_mtu(0, Some(1_400));
    let (from, to) = (host(&networks[1], 9), host(&networks[0], 8));
    let long = packet(from, to, 1_372, true);
    let Err(NotSealed::TooLarge { mtu }) = seal(&mut hub, &long, Time::ZERO) else {
        panic!("not refused");
    };
    let fits = packet(from, to, mtu - 28, true);
    let (_, esp) = seal(&mut hub, &fits, Time::ZERO).expect("the reported MTU fits");
    assert!(
        esp.len() + 28 <= 1_400 && esp.len() + 28 > 1_396,
        "{}",
        esp.len()
    );
    assert!(seal(&mut hub, &packet(from, to, 1_372, false), Time::ZERO).is_ok());
    let mut error = [0; TOO_BIG_ROOM];
    let length = write_too_big(&long, mtu, &mut error).expect("an error");
    let report = IpPacket::parse(&error[..length]).expect("packet");
    assert_eq!(
        (report.source, report.destination),
        (to.into(), from.into())
    );
    assert_eq!(report.payload[..2], [3, 4]);
    assert_eq!(
        u16::from_be_bytes([report.payload[6], report.payload[7]]),
        mtu as u16
    );
    assert_eq!(report.payload[8..36], long[..28]);
    assert_eq!(wire::ip::internet_checksum(&[report.payload]), 0);
    // No error about an error.
    assert_eq!(
        write_too_big(&error[..length], mtu, &mut [0; TOO_BIG_ROOM]),
        None
    );
}

#[test]
fn long_packets_of_ipv6_are_answered_by_icmp() {
    let mut long = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
    let [from, to]: [std::net::Ipv6Addr; 2] = ["fd00::1", "fd00::2"].map(|ip| ip.parse().unwrap());
    long.extend_from_slice(&from.octets());
    long.extend_from_slice(&to.octets());
    long.resize(1_500, 1);
    long[4..6].copy_from_slice(&1_460u16.to_be_bytes());
    let mut error = [0; TOO_BIG_ROOM];
    let length = write_too_big(&long, 1_390, &mut error).expect("an error");
    let report = IpPacket::parse(&error[..length]).expect("packet");
    assert_eq!(
        (report.source, report.destination),
        (to.into(), from.into())
    );
    assert_eq!((report.protocol, report.payload[0]), (58, 2));
    assert_eq!(report.payload[4..8], 1_390u32.to_be_bytes());
    let length = (report.payload.len() as u32).to_be_bytes();
    let sum = wire::ip::internet_checksum(&[
        &to.octets(),
        &from.octets(),
        &length,
        &[0, 0, 0, 58],
        report.payload,
    ]);
    assert_eq!(sum, 0);
}

#[test]
fn only_a_peer_behind_a_nat_moves() {
    for behind_nat in [true, false] {
        let networks = networks(0);
        let mut plan = tunnel("spoke".to_owned(), spoke(0), &networks[0]);
        plan.peer_behind_nat = behind_nat;
        let mut hub = EspGateway::new(
            settings(HUB),
            vec![(plan, Some(outbound(spec(0, 1, true, &networks))))],
            vec![(0, inbound(spec(0, 1, false, &networks)))],
            HashKey::default(),
            Time::ZERO,
        )
        .unwrap();
        let mut far = spoke_gateway(0);
        let back = packet(host(&networks[0], 8), host(&networks[1], 9), 20, true);
        let (_, esp) = seal(&mut far, &back, Time::ZERO).unwrap();
        let moved: SocketAddr = "203.0.113.9:61000".parse().unwrap();
        // A replayed or altered packet moves nothing.
        let mut altered = esp.clone();
        altered[20] ^= 1;
        for (bytes, opens) in [(altered, false), (esp.clone(), true), (esp, false)] {
            let mut bytes = bytes;
            let from = if opens {
                moved
            } else {
                "203.0.113.66:1".parse().unwrap()
            };
            assert_eq!(hub.open(from, 0, &mut bytes, Time::ZERO).is_some(), opens);
        }
        let there = packet(host(&networks[1], 9), host(&networks[0], 8), 20, true);
        let (sealed, _) = seal(&mut hub, &there, Time::ZERO).unwrap();
        assert_eq!(
            sealed.destination,
            if behind_nat { moved } else { spoke(0) }
        );
        assert_eq!(notices(&mut hub).len(), usize::from(behind_nat));
        // An address that is routed into a tunnel: the peer gets nothing there, whatever comes from it.
        hub.refuse_peer(0, moved.ip());
        let (_, mut esp) = seal(&mut far, &back, Time::ZERO).unwrap();
        assert!(hub.open(moved, 0, &mut esp, Time::ZERO).is_some());
        let (sealed, _) = seal(&mut hub, &there, Time::ZERO).unwrap();
        assert_eq!(sealed.destination, spoke(0));
        assert_eq!(notices(&mut hub).len(), 0);
    }
}

/// A NAT has given the peer another address: late packets from the former one, of old keys or without replay protection
/// do not move it.
#[test]
fn only_the_newest_packet_moves_a_peer() {
    let networks = networks(0);
    let there = packet(host(&networks[1], 9), host(&networks[0], 8), 20, true);
    let back = packet(host(&networks[0], 8), host(&networks[1], 9), 20, true);
    let moved: SocketAddr = "203.0.113.9:61000".parse().unwrap();
    let attacker: SocketAddr = "203.0.113.66:1".parse().unwrap();
    for replay_window in [64, 0] {
        let mut plan = tunnel("spoke".to_owned(), spoke(0), &networks[0]);
        plan.peer_behind_nat = true;
        let mut opening = spec(0, 1, false, &networks);
        opening.replay_window = replay_window;
        let spi = opening.spi;
        let mut hub = EspGateway::new(
            settings(HUB),
            vec![(plan, Some(outbound(spec(0, 1, true, &networks))))],
            vec![(0, inbound(opening))],
            HashKey::default(),
            Time::ZERO,
        )
        .unwrap();
        let mut far = spoke_gateway(0);
        let mut packets: Vec<Vec<u8>> = (0..4)
            .map(|_| seal(&mut far, &back, Time::ZERO).unwrap().1)
            .collect();
        let follows = replay_window > 0;
        let expected = if follows { moved } else { spoke(0) };
        let mut arrive = |hub: &mut EspGateway, number: usize, from: SocketAddr| {
            let opened = hub.open(from, 0, &mut packets[number], Time::ZERO);
            assert!(opened.is_some(), "{replay_window}: {number}");
            let (sealed, _) = seal(hub, &there, Time::ZERO).unwrap();
            assert_eq!(sealed.destination, expected, "{replay_window}: {number}");
        };
        arrive(&mut hub, 1, moved);
        // The packet before it was delayed on the former path, or held back.
        arrive(&mut hub, 0, attacker);
        let removed = GatewayRekey {
            removed: vec![spi],
            ..GatewayRekey::default()
        };
        hub.rekey(removed, Time::ZERO).unwrap();
        arrive(&mut hub, 3, attacker);
        assert_eq!(notices(&mut hub).len(), usize::from(follows));
    }
}

/// The hub has SIP over UDP only in its tunnel; the spoke sends everything.
#[test]
fn protocol_and_ports_are_checked_before_sealing_and_after_opening() {
    let networks = networks(0);
    let limits = SelectorLimits {
        protocol: Some(17),
        local_ports: vec![SelectorPorts::one(5_060)],
        remote_ports: vec![SelectorPorts {
            first: 5_060,
            last: 5_069,
        }],
    };
    let prefix = |text: &String| vec![text.parse().unwrap()];
    let selectors = limits.between(&prefix(&networks[1]), &prefix(&networks[0]));
    let mut sealing = spec(0, 1, true, &networks);
    sealing.selectors.clone_from(&selectors);
    let mut opening = spec(0, 1, false, &networks);
    opening.selectors = selectors.iter().map(TrafficSelector::reversed).collect();
    let mut hub = EspGateway::new(
        settings(HUB),
        vec![(
            tunnel("spoke".to_owned(), spoke(0), &networks[0]),
            Some(outbound(sealing)),
        )],
        vec![(0, inbound(opening))],
        HashKey::default(),
        Time::ZERO,
    )
    .unwrap();
    let mut far = spoke_gateway(0);
    let of = |from: Ipv4Addr, to: Ipv4Addr, protocol: u8, ports: [u16; 2]| {
        let mut packet = packet(from, to, 20, true);
        packet[9] = protocol;
        packet[20..22].copy_from_slice(&ports[0].to_be_bytes());
        packet[22..24].copy_from_slice(&ports[1].to_be_bytes());
        packet
    };
    let (here, there) = (host(&networks[1], 9), host(&networks[0], 8));
    let mut drops = 0;
    for (protocol, near, remote, passes) in [
        (17, 5_060, 5_060, true),
        (17, 5_060, 5_069, true),
        (17, 5_060, 5_070, false),
        (17, 5_061, 5_060, false),
        (6, 5_060, 5_060, false),
        (1, 5_060, 5_060, false),
    ] {
        let what = format!("{protocol} {near} {remote}");
        let sent = of(here, there, protocol, [near, remote]);
        assert_eq!(
            seal(&mut hub, &sent, Time::ZERO).is_ok(),
            passes,
            "sealed {what}"
        );
        let back = of(there, here, protocol, [remote, near]);
        let (_, esp) = seal(&mut far, &back, Time::ZERO).unwrap();
        let opened = open(&mut hub, &esp, Time::ZERO);
        assert_eq!(opened.is_some(), passes, "opened {what}");
        drops += 2 * u64::from(!passes);
        assert_eq!(hub.drops().get(DropReason::EspSelector), drops, "{what}");
    }
    // A later fragment has no ports.
    let mut fragment = of(here, there, 17, [5_060, 5_060]);
    fragment[6..8].copy_from_slice(&[0, 9]);
    assert!(seal(&mut hub, &fragment, Time::ZERO).is_err());
}

#[test]
fn keep_alives_follow_silence() {
    let mut hub = hub(2, |spec| spec);
    let networks = networks(0);
    let there = packet(host(&networks[1], 9), host(&networks[0], 8), 20, true);
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    seal(&mut hub, &there, at(10)).unwrap();
    let mut sent = Vec::new();
    for second in 0..31 {
        hub.tick(at(second), |peer| sent.push((second, peer)));
    }
    assert_eq!(sent, [(20, spoke(1)), (30, spoke(0))]);
}

/// Two gateways and a wire that loses, repeats and reorders packets.
struct Simulation {
    ends: [EspGateway; 2],
    /// Specifications in use: of each end the one that seals and those that open.
    specs: [Vec<SaSpec>; 2],
    wire: Vec<(u64, usize, Vec<u8>)>,
    random: Entropy,
    /// Packets sent, lost by the wire, and received, by number.
    sent: u32,
    lost: u32,
    received: std::collections::BTreeSet<u32>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let networks = networks(0);
        let of = |at_hub: bool| {
            vec![
                spec(0, 1, at_hub, &networks),
                spec(0, 1, !at_hub, &networks),
            ]
        };
        Simulation {
            ends: [hub(1, |spec| spec), spoke_gateway(0)],
            specs: [of(true), of(false)],
            wire: Vec::new(),
            random: Entropy::from_number(seed),
            sent: 0,
            lost: 0,
            received: std::collections::BTreeSet::new(),
        }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.u32().is_multiple_of(one_in)
    }

    fn rekey(&mut self, end: usize, age: u8, now: Time) {
        let networks = networks(0);
        let at_hub = end == 0;
        let change = GatewayRekey {
            outbound: vec![(0, outbound(spec(0, age, at_hub, &networks)))],
            inbound: vec![(0, inbound(spec(0, age, !at_hub, &networks)))],
            removed: vec![spec(0, age - 1, !at_hub, &networks).spi],
        };
        self.ends[end].rekey(change, now).expect("rekeyed");
        self.specs[end].push(spec(0, age, !at_hub, &networks));
    }

    /// An end stops, stores its states, and starts again with them.
    fn restart(&mut self, end: usize, now: Time) {
        let states = self.ends[end].take_changed_states(now);
        let networks = networks(0);
        let at_hub = end == 0;
        let (mut sealing, mut opening) = (None, Vec::new());
        let known = |spi: u32| self.specs[end].iter().find(|spec| spec.spi == spi);
        for state in &states {
            match state {
                ChangedState::Outbound { state, .. } => {
                    let spec = spec(0, (state.spi >> 24) as u8, at_hub, &networks);
                    let mut entropy = Entropy::from_number(5);
                    let resumed = OutboundSa::resume(spec, state, 0, &mut entropy, now);
                    sealing = Some(resumed.expect("resumed"));
                }
                ChangedState::Inbound(state) => {
                    let spec = known(state.spi).expect("spec").clone();
                    let resumed = InboundSa::resume(spec, state, 0, now).expect("resumed");
                    opening.push((0, resumed));
                }
            }
        }
        let (Some(sealing), false) = (sealing, opening.is_empty()) else {
            return;
        };
        let (plan, settings) = match at_hub {
            true => (
                tunnel("spoke".to_owned(), spoke(0), &networks[0]),
                settings(HUB),
            ),
            false => {
                let peer = SocketAddr::new(HUB, 4500);
                (
                    tunnel("hub".to_owned(), peer, &networks[1]),
                    settings(spoke(0).ip()),
                )
            }
        };
        let tunnels = vec![(plan, Some(sealing))];
        self.ends[end] =
            EspGateway::new(settings, tunnels, opening, HashKey::default(), now).expect("gateway");
    }

    fn send(&mut self, end: usize, step: u64, now: Time) {
        let networks = networks(0);
        let (hub, far) = (host(&networks[1], 9), host(&networks[0], 8));
        let (from, to) = if end == 0 { (hub, far) } else { (far, hub) };
        let mut inner = packet(from, to, 20, true);
        inner[28..32].copy_from_slice(&self.sent.to_be_bytes());
        let (_, esp) = seal(&mut self.ends[end], &inner, now).expect("sealed");
        self.sent += 1;
        if self.chance(50) {
            self.lost += 1;
            return;
        }
        let copies = if self.chance(20) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = u64::from(self.random.u32() % 6);
            self.wire.push((step + delay, 1 - end, esp.clone()));
        }
    }

    fn deliver(&mut self, step: u64, now: Time) {
        let (due, later) = std::mem::take(&mut self.wire)
            .into_iter()
            .partition(|(at, ..)| *at <= step);
        self.wire = later;
        let due: Vec<(u64, usize, Vec<u8>)> = due;
        for (_, end, esp) in due {
            if let Some(inner) = open(&mut self.ends[end], &esp, now) {
                let number = u32::from_be_bytes(inner[28..32].try_into().expect("number"));
                assert!(
                    self.received.insert(number),
                    "packet {number} was accepted twice"
                );
            }
        }
    }
}

#[test]
fn nothing_is_accepted_twice_and_only_the_wire_loses_packets() {
    for seed in 0..1_000 {
        let mut simulation = Simulation::new(seed);
        // Both ends get new keys within the delay of ten seconds, in any order; one of them restarts long after.
        let apart = [0, 1].map(|_| u64::from(simulation.random.u32() % 90));
        let restarted = (seed % 2) as usize;
        for step in 0..400u64 {
            let now = Time::ZERO + Duration::from_millis(100 * step);
            for end in [0, 1] {
                if step == 20 + apart[end] {
                    simulation.rekey(end, 2, now);
                }
                simulation.ends[end].tick(now, |_| {});
                simulation.send(end, step, now);
            }
            if step == 300 {
                simulation.restart(restarted, now);
            }
            simulation.deliver(step, now);
        }
        simulation.deliver(u64::MAX, Time::ZERO + Duration::from_secs(40));
        let received = simulation.received.len() as u32;
        assert_eq!(received + simulation.lost, simulation.sent, "seed {seed}");
    }
}
