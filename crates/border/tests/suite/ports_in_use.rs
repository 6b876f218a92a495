//! Media ports, nearly all of which another program uses.

use crate::media::port_of;
use crate::virtual_network::*;
use engine::EventKind;
use sip::Failure;
use std::net::SocketAddr;

/// Twenty pairs for the caller's side.
fn twenty_pairs() -> String {
    PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20039'}",
    )
}

/// The first port of all pairs but these.
fn occupied_except(free: &[u16]) -> Vec<SocketAddr> {
    (20_000..20_040)
        .step_by(2)
        .filter(|port| !free.contains(port))
        .map(|port| SocketAddr::new("192.0.2.1".parse().unwrap(), port))
        .collect()
}

#[test]
fn the_only_free_pair_of_many_is_found() {
    for free in [20_000, 20_018, 20_038] {
        let (mut net, alice, _) = pair(&twenty_pairs());
        net.occupied = occupied_except(&[free]);
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let answer = net.last(alice, |event| *event == PhoneEvent::Answered);
        assert_eq!(port_of(&answer.body()), free);
        let reported = net.names();
        let count = |event| reported.iter().filter(|name| **name == event).count();
        assert!(count("media_port_in_use") <= 1, "{reported:?}");
        assert_eq!(count("media_ports_exhausted"), 0, "{reported:?}");
    }
}

#[test]
fn call_without_a_free_pair_names_the_interface() {
    let (mut net, alice, _) = pair(&twenty_pairs());
    net.occupied = occupied_except(&[]);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
    let reported = net.names();
    assert!(reported.contains(&"media_ports_exhausted"), "{reported:?}");
    let exhausted = net.events.iter().find_map(|event| match &event.kind {
        EventKind::MediaPortsExhausted {
            interface,
            address,
            ports,
        } => Some([interface.as_str(), address, ports]),
        _ => None,
    });
    assert_eq!(exhausted, Some(["out", "192.0.2.1", "20000-20039"]));
    assert_eq!(net.border.counters().ports_exhausted, 1);
    assert_eq!(net.border.census().ports, 0);
}
