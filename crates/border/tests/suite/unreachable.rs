//! Peers that cannot be reached for a moment: their calls and subscriptions continue, and requests to them are refused
//! at once.

use crate::virtual_network;

use engine::Transport;
use sip::{LegId, MessageContent, OutOfDialogRequest, Target};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// An established call: network, both phones, the leg of the caller.
fn established(config: &str, transport: Transport) -> (VirtualNetwork, [usize; 2], LegId) {
    let mut net = VirtualNetwork::new(config, 1);
    net.reports_unreachable = true;
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let behaviour = PhoneBehaviour::answering(SDP_B);
    let bob = net.phone_over("10.2.0.1:5060", transport, behaviour);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    (net, [alice, bob], leg)
}

/// Sends a request within the call of a phone, and returns the status of the last response to it.
fn request(net: &mut VirtualNetwork, phone: usize, leg: LegId, method: Method<'static>) -> u16 {
    let content = match method {
        Method::Invite => offer(),
        _ => MessageContent::default(),
    };
    let sent = net.command(phone, |endpoint, now| {
        endpoint.request(leg, method, &content, now).unwrap()
    });
    net.run(seconds(1));
    status_of(net, phone, sent)
}

fn status_of(net: &VirtualNetwork, phone: usize, sent: sip::TransactionId) -> u16 {
    let mut statuses = net
        .phone_events(phone)
        .into_iter()
        .filter_map(|event| match event {
            PhoneEvent::Response(status, of) if of == sent => Some(status),
            _ => None,
        });
    statuses.next_back().unwrap_or(0)
}

fn assert_connected(net: &VirtualNetwork, phones: [usize; 2]) {
    let ended = |event: &PhoneEvent| matches!(event, PhoneEvent::Ended(_));
    for phone in phones {
        assert!(!net.has(phone, ended), "{:?}", net.phone_events(phone));
    }
    assert_eq!(net.border.calls().len(), 1);
}

fn hang_up(net: &mut VirtualNetwork, phone: usize, leg: LegId) {
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(seconds(1));
    net.assert_quiet();
}

/// RFC 3261 section 8.1.3.1: this counts as 503, which ends no dialog (section 12.2.1.2).
#[test]
fn call_continues_if_its_peer_is_unreachable_for_a_moment() {
    let (mut net, [alice, bob], leg) = established(PLAIN, Transport::Udp);
    net.set_running(bob, false);
    for method in [
        Method::Invite,
        Method::Update,
        Method::Info,
        Method::Message,
    ] {
        assert_eq!(request(&mut net, alice, leg, method), 500, "{method}");
        assert_connected(&net, [alice, bob]);
    }
    net.set_running(bob, true);
    for method in [Method::Info, Method::Invite] {
        assert_eq!(request(&mut net, alice, leg, method), 200, "{method}");
    }
    hang_up(&mut net, alice, leg);
}

#[test]
fn call_continues_if_its_connection_is_lost_during_a_request() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "tcp:10.2.0.1:5060");
    let (mut net, [alice, bob], leg) = established(&config, Transport::Tcp);
    net.phones[bob].log.behaviour.inside = None;
    let sent = net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &offer(), now)
            .unwrap()
    });
    net.run(Duration::from_millis(100));
    net.break_streams(bob);
    net.run(seconds(1));
    assert_eq!(status_of(&net, alice, sent), 500);
    assert_connected(&net, [alice, bob]);
    net.phones[bob].log.behaviour.inside = Some(200);
    assert_eq!(request(&mut net, alice, leg, Method::Info), 200);
    assert_connected(&net, [alice, bob]);
}

/// Refreshes by UPDATE, and by re-INVITE at phones without it, are repeated until the session expires.
#[test]
fn session_is_refreshed_when_its_peer_is_reachable_again() {
    let config = format!("{PLAIN}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    for allow in [
        "INVITE, ACK, BYE, CANCEL, UPDATE",
        "INVITE, ACK, BYE, CANCEL",
    ] {
        let mut net = VirtualNetwork::new(&config, 1);
        net.reports_unreachable = true;
        let [alice, bob] = [("10.1.0.1:5060", SDP_A), ("10.2.0.1:5060", SDP_B)].map(|(at, sdp)| {
            let behaviour = PhoneBehaviour::answering(sdp);
            net.phone_with((at, Transport::Udp), behaviour, |config| {
                config.allow = allow.to_owned();
                config.supported.retain(|tag| tag != "timer");
            })
        });
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        // The first refreshes are due after a minute.
        net.run(seconds(55));
        net.set_running(alice, false);
        net.set_running(bob, false);
        net.run(seconds(15));
        assert_connected(&net, [alice, bob]);
        net.set_running(alice, true);
        net.set_running(bob, true);
        net.run(seconds(1_000));
        assert_connected(&net, [alice, bob]);
        hang_up(&mut net, alice, leg);
    }
}

/// The sender learns it at once: as for a call, and not by a timeout of its own.
#[test]
fn request_to_an_unreachable_target_is_refused_at_once() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    net.reports_unreachable = true;
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    for method in [Method::Message, Method::Publish, Method::Subscribe] {
        let flow = net.flow(alice, OUT, Transport::Udp);
        let target = Target::new(b"sip:bob@192.0.2.1", flow);
        let edits = [Edit::Add {
            id: HeaderId::Event,
            value: b"presence",
        }];
        net.command(alice, |endpoint, now| {
            let outside = OutOfDialogRequest {
                from: Some(b"<sip:1000@192.0.2.1>"),
                content: MessageContent::default().with(&edits),
                ..OutOfDialogRequest::new(method, target)
            };
            endpoint.send(&outside, now).unwrap();
        });
        net.run(seconds(1));
        let last = net.last(alice, |_| true);
        assert_eq!(last.event, PhoneEvent::OutOfDialogResponse(503), "{method}");
        assert_eq!(net.border.census().subscriptions, 0);
    }
    net.assert_quiet();
}

#[test]
fn subscription_continues_if_its_subscriber_is_unreachable_for_a_moment() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.reports_unreachable = true;
    let edits = [
        Edit::Add {
            id: HeaderId::Event,
            value: b"presence",
        },
        Edit::Add {
            id: HeaderId::Expires,
            value: b"300",
        },
    ];
    let target = Target::new(b"sip:bob@192.0.2.1", net.flow(alice, OUT, Transport::Udp));
    net.command(alice, |endpoint, now| {
        let outside = OutOfDialogRequest {
            from: Some(b"<sip:1000@192.0.2.1>"),
            content: MessageContent::default().with(&edits),
            ..OutOfDialogRequest::new(Method::Subscribe, target)
        };
        endpoint.subscribe(&outside, 1, now).unwrap();
    });
    net.run(seconds(1));
    let theirs = net.phones[bob].log.dialogs[0];
    let state = [
        Edit::Add {
            id: HeaderId::Event,
            value: b"presence",
        },
        Edit::Add {
            id: HeaderId::SubscriptionState,
            value: b"active",
        },
    ];
    for (runs, status) in [(false, 500), (true, 200)] {
        net.set_running(alice, runs);
        net.command(bob, |endpoint, now| {
            let content = MessageContent::default().with(&state);
            endpoint
                .dialog_request(theirs, Method::Notify, &content, 2, None, now)
                .unwrap();
        });
        net.run(seconds(1));
        let last = net.last(bob, |_| true);
        assert_eq!(last.event, PhoneEvent::OutOfDialogResponse(status));
        assert_eq!(net.border.census().subscriptions, 1);
    }
}
