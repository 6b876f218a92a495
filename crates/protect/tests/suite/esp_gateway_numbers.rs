//! Reserved sequence numbers of a gateway: each tunnel has its own, also where the peers have chosen the same SPI.

use crate::esp_gateway::{host, hub, inbound, networks, outbound, packet, seal, spec};
use engine::{DropReason, Time};
use protect::esp::{
    ChangedState, EspGateway, GatewayRekey, MAX_GATEWAY_INBOUND, MAX_GATEWAY_TUNNELS, SaError,
};

/// The SPI of sent packets in all tunnels.
const SPI: u32 = 0x7000;

fn hub_with_one_spi(tunnels: usize) -> EspGateway {
    hub(tunnels, |mut spec| {
        spec.spi = SPI;
        spec
    })
}

fn seals(hub: &mut EspGateway, tunnel: usize) -> bool {
    let networks = networks(tunnel);
    let there = packet(host(&networks[1], 9), host(&networks[0], 8), 20, true);
    seal(hub, &there, Time::ZERO).is_ok()
}

/// The tunnel and the next number of each changed state of associations that seal.
fn changed(hub: &mut EspGateway) -> Vec<(usize, u64)> {
    let states = hub.take_changed_states(Time::ZERO).into_iter();
    let sealing = states.filter_map(|state| match state {
        ChangedState::Outbound { tunnel, state } => {
            assert_eq!(state.spi, SPI);
            Some((tunnel, state.next_sequence))
        }
        ChangedState::Inbound(_) => None,
    });
    sealing.collect()
}

#[test]
fn tunnels_that_seal_with_one_spi_have_reserved_numbers_of_their_own() {
    let mut hub = hub_with_one_spi(2);
    for (tunnel, last) in [(0, 5), (1, 2)] {
        hub.reserve(tunnel, SPI, last);
    }
    for number in 1..=7 {
        assert_eq!(seals(&mut hub, 0), number <= 5, "{number}");
        assert_eq!(seals(&mut hub, 1), number <= 2, "{number}");
    }
    assert_eq!(changed(&mut hub), [(0, 6), (1, 3)]);
    assert_eq!(hub.drops().get(DropReason::EspSequenceExhausted), 2 + 5);
    // Another SPI, and a tunnel that does not exist.
    hub.reserve(1, SPI + 1, 100);
    hub.reserve(2, SPI, 100);
    assert!(!seals(&mut hub, 1));
    hub.reserve(1, SPI, 3);
    assert!(seals(&mut hub, 1) && !seals(&mut hub, 1));
    assert!(!seals(&mut hub, 0));
    let states = hub.states(Time::ZERO);
    let last = |number: usize| match &states[number] {
        ChangedState::Outbound { tunnel, state } => (*tunnel, state.next_sequence),
        ChangedState::Inbound(state) => panic!("{state:?}"),
    };
    assert_eq!([last(0), last(1)], [(0, 6), (1, 4)]);
}

/// A round of reports and reservations, as a driver has it every few seconds, takes one step for each tunnel.
#[test]
fn a_round_of_reservations_of_the_largest_gateway() {
    let mut hub = hub_with_one_spi(MAX_GATEWAY_TUNNELS);
    for tunnel in 0..MAX_GATEWAY_TUNNELS {
        hub.reserve(tunnel, SPI, 1);
        assert!(seals(&mut hub, tunnel) && !seals(&mut hub, tunnel));
    }
    let states = changed(&mut hub);
    assert_eq!(states.len(), MAX_GATEWAY_TUNNELS);
    for (number, (tunnel, next)) in states.into_iter().enumerate() {
        assert_eq!((tunnel, next), (number, 2));
        hub.reserve(tunnel, SPI, next + (number % 2) as u64);
    }
    for tunnel in 0..MAX_GATEWAY_TUNNELS {
        assert!(seals(&mut hub, tunnel));
        assert_eq!(seals(&mut hub, tunnel), tunnel % 2 == 1, "{tunnel}");
    }
}

/// New keys that wait to seal keep the numbers that were reserved with them.
#[test]
fn a_reservation_is_that_of_the_association_that_seals() {
    let mut hub = hub_with_one_spi(1);
    let mut next = outbound(spec(0, 2, true, &networks(0)));
    next.limit_sequence(1);
    let spi = next.spec().spi;
    let rekey = GatewayRekey {
        outbound: vec![(0, next)],
        ..GatewayRekey::default()
    };
    hub.rekey(rekey, Time::ZERO).unwrap();
    hub.reserve(0, spi, 50);
    hub.reserve(0, SPI, 1);
    assert!(seals(&mut hub, 0), "the first of the former one");
    assert!(seals(&mut hub, 0), "the first of the next one");
    assert!(!seals(&mut hub, 0));
    hub.reserve(0, spi, 2);
    assert!(seals(&mut hub, 0));
}

#[test]
fn a_full_table_refuses_new_keys_and_changes_nothing() {
    let mut hub = hub_with_one_spi(1);
    let networks = networks(0);
    let opening = |spi: u32| {
        let mut spec = spec(0, 2, false, &networks);
        spec.spi = spi;
        (0, inbound(spec))
    };
    let rekey = |spis: core::ops::Range<u32>| GatewayRekey {
        inbound: spis.map(opening).collect(),
        ..GatewayRekey::default()
    };
    let most = MAX_GATEWAY_INBOUND as u32;
    let first = 0x10_0000;
    let refused = hub.rekey(rekey(first..first + most), Time::ZERO);
    assert_eq!(refused, Err(SaError::TableFull));
    assert_eq!(hub.associations(), 2);
    hub.rekey(rekey(first..first + 2), Time::ZERO).unwrap();
    assert_eq!(hub.associations(), 4);
}
