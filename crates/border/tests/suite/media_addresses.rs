//! Media of phones whose addresses, ports or address families change, and of calls on hold.

use crate::media::{arrivals, port_of, rtp};
use crate::virtual_network;

use sip::{Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;

/// Sends an offer in a re-INVITE of a phone.
fn reinvite(net: &mut VirtualNetwork, phone: usize, leg: sip::LegId, sdp: &str) {
    net.command(phone, |endpoint, now| {
        let content = MessageContent::sdp(sdp.as_bytes());
        let method = wire::sip::Method::Invite;
        endpoint.request(leg, method, &content, now).unwrap();
    });
    net.run(seconds(1));
}

/// Number of packets that arrived at `to`.
fn count_at(net: &VirtualNetwork, to: &str) -> usize {
    arrivals(net, to).len()
}

/// A phone that holds a call need not send music: RFC 3264 section 8.4.
#[test]
fn call_on_hold_lasts_longer_than_silence() {
    let config = format!("{PLAIN}[media]\ntimeout_s=60\nhold_timeout_s=300\n");
    for zero in [false, true] {
        let (mut net, alice, bob) = pair(&config);
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let hold = SDP_A.replace("1 1 IN", "1 2 IN");
        let hold = match zero {
            true => hold.replace("c=IN IP4 10.1.0.1", "c=IN IP4 0.0.0.0"),
            false => hold + "a=sendonly\r\n",
        };
        reinvite(&mut net, alice, leg, &hold);
        net.run(seconds(290));
        assert_eq!(net.border.calls().len(), 1, "{:?}", net.phone_events(bob));
        net.run(seconds(20));
        assert_eq!(net.border.calls().len(), 0);
    }
}

/// The mapping of a phone at its NAT ends during hold.
#[test]
fn media_after_hold_may_come_from_another_port() {
    let (mut net, alice, bob) = pair(PLAIN);
    let private = SDP_A.replace("c=IN IP4 10.1.0.1", "c=IN IP4 192.168.1.5");
    let content = MessageContent::sdp(private.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let answer = net.find(alice, |event| *event == PhoneEvent::Answered);
    let to_alice = format!("192.0.2.1:{}", port_of(&answer.body()));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    let to_bob = format!("198.51.100.1:{}", port_of(&offered.body()));
    let send = |net: &mut VirtualNetwork, from: &str, sequences: core::ops::Range<u16>| {
        for sequence in sequences {
            net.send_raw(from, &to_alice, &rtp(sequence));
            net.run(Duration::from_millis(20));
        }
        net.run(seconds(1));
    };
    send(&mut net, "10.1.0.1:30000", 0..5);
    assert_eq!(count_at(&net, "10.2.0.1:5000"), 3);
    let hold = private.replace("1 1 IN", "1 2 IN") + "a=inactive\r\n";
    reinvite(&mut net, alice, leg, &hold);
    net.run(seconds(120));
    reinvite(&mut net, alice, leg, &private.replace("1 1 IN", "1 3 IN"));
    send(&mut net, "10.1.0.1:41777", 5..10);
    assert_eq!(count_at(&net, "10.2.0.1:5000"), 6);
    net.send_raw("10.2.0.1:5000", &to_bob, &rtp(1));
    net.run(seconds(1));
    assert_eq!(count_at(&net, "10.1.0.1:41777"), 1);
}

/// A phone moves to another network: its re-INVITE arrives on a new connection, its media from the new address.
#[test]
fn media_follows_a_phone_to_another_address() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let tcp = engine::Transport::Tcp;
    let alice = net.phone_over("10.1.0.1:5060", tcp, PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let flow = net.flow(alice, OUT, tcp);
    let private = SDP_A.replace("c=IN IP4 10.1.0.1", "c=IN IP4 192.168.1.5");
    let leg = net.command(alice, |endpoint, now| {
        let target = sip::Target::new(b"sip:bob@192.0.2.1", flow);
        let mut invite = sip::Invite::new(target);
        invite.content = MessageContent::sdp(private.as_bytes());
        invite.from = Some(b"<sip:alice@192.0.2.1>");
        endpoint.invite(&invite, now).unwrap()
    });
    net.run(seconds(1));
    let answer = net.find(alice, |event| *event == PhoneEvent::Answered);
    let to_alice = format!("192.0.2.1:{}", port_of(&answer.body()));
    let send = |net: &mut VirtualNetwork, from: &str, sequences: core::ops::Range<u16>| {
        for sequence in sequences {
            net.send_raw(from, &to_alice, &rtp(sequence));
            net.run(Duration::from_millis(20));
        }
        net.run(seconds(1));
    };
    send(&mut net, "10.1.0.1:30000", 0..5);
    assert_eq!(count_at(&net, "10.2.0.1:5000"), 3);
    net.break_streams(alice);
    net.run(seconds(1));
    net.phones[alice].address = "10.1.7.7:5060".parse().unwrap();
    reinvite(&mut net, alice, leg, &private.replace("1 1 IN", "1 2 IN"));
    send(&mut net, "10.1.7.7:30000", 5..10);
    assert_eq!(
        count_at(&net, "10.2.0.1:5000"),
        6,
        "{:?}",
        net.phone_events(bob)
    );
}

/// A phone with both address families signals by IPv4 and offers media at an IPv6 address.
#[test]
fn media_has_the_family_of_the_description() {
    let both = PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media=[{address='192.0.2.1'},{address='2001:db8::1'}]",
    );
    assert_ne!(both, PLAIN);
    let sdp = SDP_A.replace("c=IN IP4 10.1.0.1", "c=IN IP6 2001:db8::a");
    let (mut net, alice, bob) = pair(&both);
    let content = MessageContent::sdp(sdp.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let answer = net.find(alice, |event| *event == PhoneEvent::Answered);
    let answered = answer.body();
    assert!(answered.contains("c=IN IP6 2001:db8::1"), "{answered}");
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    let to_bob = format!("198.51.100.1:{}", port_of(&offered));
    net.send_raw("10.2.0.1:5000", &to_bob, &rtp(1));
    net.run(seconds(1));
    assert_eq!(count_at(&net, "[2001:db8::a]:4000"), 1);
    // Without an address of the family there would be no audio.
    let (mut net, alice, bob) = pair(PLAIN);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    assert!(!net.has(bob, |event| *event == PhoneEvent::Offered));
    let refused = PhoneEvent::Failed(Failure::Response, 488);
    assert!(net.has(alice, |event| *event == refused));
    net.assert_quiet();
}
