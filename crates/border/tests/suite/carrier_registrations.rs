//! Our registrations at carriers, and the keep-alives of their flows.

use crate::virtual_network;

use engine::Transport;
use sip::MessageContent;
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Message};

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// The carrier at the address of the trunk.
fn at_carrier(config: &str) -> (VirtualNetwork, usize) {
    let mut net = VirtualNetwork::new(config, 1);
    let carrier = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    (net, carrier)
}

/// A trunk that registers, with more keys of `register`.
fn account(keys: &str, target: &str) -> String {
    PLAIN.replace("udp:10.2.0.1:5060", target)
        + &format!(
            "username='us'\npassword='pw'\nregister={{user='4711',domain='carrier.example'{keys}}}\n"
        )
}

/// REGISTERs that the carrier has received.
fn registers(net: &VirtualNetwork, carrier: usize) -> usize {
    let of = |entry: &&LogEntry| entry.method() == "REGISTER";
    net.log(carrier).iter().filter(of).count()
}

/// Keep-alives that the carrier has received.
fn pings(net: &VirtualNetwork, carrier: usize) -> usize {
    let is = |bytes: &&Vec<u8>| bytes.starts_with(&[0, 1]) || bytes.as_slice() == b"\r\n\r\n";
    net.phones[carrier].received.iter().filter(is).count()
}

/// The carrier answers the last REGISTER.
fn answer(net: &mut VirtualNetwork, carrier: usize, status: u16, id: HeaderId, value: &str) {
    let mut entries = net.log(carrier).iter().rev();
    let last = entries.find(|entry| entry.method() == "REGISTER");
    let Some(PhoneEvent::OutOfDialog(transaction)) = last.map(|entry| entry.event.clone()) else {
        panic!("no REGISTER: {:?}", net.phone_events(carrier));
    };
    let edits = [Edit::Add {
        id,
        value: value.as_bytes(),
    }];
    net.command(carrier, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint
            .respond(transaction, status, &content, now)
            .unwrap();
    });
}

#[test]
fn border_registers_at_a_carrier() {
    let config = format!(
        "{PLAIN}username='us'\npassword='pw'\nregister={{user='4711',domain='carrier.example',contact_user='line1',expires_s=600}}\n"
    );
    let (mut net, carrier) = at_carrier(&config);
    net.run(seconds(5));
    let entry = net.find(carrier, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(entry.method(), "REGISTER");
    assert_eq!(entry.header("To"), "<sip:4711@carrier.example>");
    assert_eq!(entry.header("Contact"), "<sip:line1@198.51.100.1:5060>");
    assert_eq!(entry.header("Expires"), "600");
    assert!(net.names().contains(&"carrier_registration"));
}

#[test]
fn flow_of_our_registration_is_kept_alive_and_replaced_on_failure() {
    // The carrier does not announce keep-alives, so it gets none.
    let (mut net, carrier) = at_carrier(&account(",expires_s=3600", "udp:10.2.0.1:5060"));
    net.run(seconds(600));
    assert_eq!((registers(&net, carrier), pings(&net, carrier)), (1, 0));

    // Over UDP every 24 to 29 seconds.
    let always = ",expires_s=3600,keep_alive='always'";
    let (mut net, carrier) = at_carrier(&account(always, "udp:10.2.0.1:5060"));
    net.run(seconds(300));
    assert_eq!(registers(&net, carrier), 1);
    assert!(
        (9..=12).contains(&pings(&net, carrier)),
        "{}",
        pings(&net, carrier)
    );
    // No response for the duration of seven attempts.
    net.link_conditions.loss = 1.0;
    net.run(seconds(75));
    net.link_conditions.loss = 0.0;
    let reported = |net: &VirtualNetwork| {
        let failed = |event: &&engine::Event| event.to_string().contains("flow failed");
        net.events.iter().filter(failed).count()
    };
    assert_eq!(reported(&net), 1);
    net.run(seconds(60));
    assert!(registers(&net, carrier) >= 2);
    let before = pings(&net, carrier);
    net.run(seconds(100));
    assert!(
        pings(&net, carrier) > before,
        "the new flow gets keep-alives"
    );

    // The stream is closed.
    let config = account(always, "tcp:10.2.0.1:5060");
    let mut net = VirtualNetwork::new(&config, 1);
    let carrier = net.phone_over(
        "10.2.0.1:5060",
        Transport::Tcp,
        PhoneBehaviour::answering(SDP_B),
    );
    net.run(seconds(500));
    assert_eq!(registers(&net, carrier), 1);
    assert!(
        (4..=5).contains(&pings(&net, carrier)),
        "{}",
        pings(&net, carrier)
    );
    net.break_streams(carrier);
    net.run(seconds(10));
    assert_eq!((registers(&net, carrier), reported(&net)), (2, 1));
}

/// A refused refresh ends neither the registration nor the keep-alives of its flow: the carrier still calls by it.
#[test]
fn keep_alives_last_as_long_as_the_registration() {
    let (mut net, carrier) = at_carrier(&account(",expires_s=600", "udp:10.2.0.1:5060"));
    net.phones[carrier].log.behaviour.outside = None;
    net.run(seconds(5));
    answer(&mut net, carrier, 200, HeaderId::FlowTimer, "30");
    net.run(seconds(305));
    assert!(pings(&net, carrier) >= 9, "{}", pings(&net, carrier));
    answer(&mut net, carrier, 503, HeaderId::RetryAfter, "120");
    net.run(seconds(1));
    let before = pings(&net, carrier);
    net.run(seconds(100));
    let more = pings(&net, carrier) - before;
    assert!((3..=5).contains(&more), "{more}");
    assert!(!net.control(|border, _| border.is_unregistered()));
    // No further REGISTER before the expiry.
    net.run(seconds(40));
    answer(&mut net, carrier, 503, HeaderId::RetryAfter, "600");
    net.run(seconds(1));
    assert!(net.control(|border, _| border.is_unregistered()));
    let before = pings(&net, carrier);
    net.run(seconds(100));
    assert_eq!(pings(&net, carrier), before);
}

/// The carrier's BYE takes the way of the flow through a NAT, until the last call of a drain has ended.
#[test]
fn keep_alives_go_on_during_a_drain() {
    let always = ",expires_s=3600,keep_alive='always'";
    let config = account(always, "udp:10.2.0.1:5060") + "[media]\ntimeout_s=0\n";
    let (mut net, carrier) = at_carrier(&config);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.run(seconds(5));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.call(caller, "sip:1@192.0.2.1", OUT, &offer);
    net.run(seconds(5));
    assert!(net.has(caller, |event| *event == PhoneEvent::Answered));
    net.control(|border, now| border.drain(seconds(300), now));
    net.run(seconds(5));
    assert!(net.control(|border, _| border.is_unregistered()));
    let before = pings(&net, carrier);
    net.run(seconds(100));
    let more = pings(&net, carrier) - before;
    assert!((3..=5).contains(&more), "{more}");
    assert!(!net.control(|border, _| border.is_drained()));
}

/// The transport of a name without one follows from the interface and the lookup. The carrier has UDP in no case.
#[test]
fn contact_has_the_transport_of_the_located_carrier() {
    let service = [
        &[0, 1, 0, 1, 0x13, 0xc4][..],
        &dns_name("a.carrier.example"),
    ]
    .concat();
    let address = ("a.carrier.example", 1, vec![10, 2, 0, 1]);
    let plain = account("", "a.carrier.example").replace("'udp:198.51.100.1:5060',", "");
    let both = account("", "carrier.example");
    for (config, zone) in [
        (plain, vec![address.clone()]),
        (
            both,
            vec![("_sip._tcp.carrier.example", 33, service), address],
        ),
    ] {
        let config = config + "[dns]\nservers=['10.8.0.53:53']\n";
        let mut net = VirtualNetwork::new(&config, 1);
        net.zone = zone;
        let behaviour = PhoneBehaviour::answering(SDP_B);
        let carrier = net.phone_over("10.2.0.1:5060", Transport::Tcp, behaviour);
        net.run(seconds(5));
        assert!(registers(&net, carrier) > 0, "{config}");
        let register = net.find(carrier, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
        let contact = register.header("Contact");
        assert!(
            contact.ends_with("@198.51.100.1:5060;transport=tcp>"),
            "{contact}"
        );
    }
}

/// The Route values of the newest INVITE that a phone has received.
fn route_of_last_call(net: &VirtualNetwork, phone: usize) -> Vec<String> {
    let offered = net.last(phone, |event| *event == PhoneEvent::Offered);
    let message = Message::parse(&offered.bytes).unwrap();
    let values = message.values(HeaderId::Route);
    let values = values.map(|value| String::from_utf8_lossy(value).into_owned());
    values.collect()
}

/// RFC 3608 section 6.1: the route of requests to the carrier is that of the last 2xx to REGISTER, at any worker.
#[test]
fn calls_follow_the_service_route_of_the_carrier() {
    const ROUTE: &str = "<sip:edge.carrier.example;lr>, <sip:core.carrier.example:5070;lr>";
    for workers in [1, 3] {
        let config = account(",expires_s=600", "udp:10.2.0.1:5060");
        let config = format!("{config}[sip]\nworkers={workers}\n");
        let mut net = match workers {
            1 => VirtualNetwork::new(&config, 1),
            _ => VirtualNetwork::with_workers(&config, 1),
        };
        let carrier = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        net.phones[carrier].log.behaviour.outside = None;
        net.run(seconds(5));
        let register = net.find(carrier, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
        assert_eq!(register.header("Supported"), "path");
        assert_eq!(register.header("Route"), "");
        // Calls from several ports reach all workers.
        let mut port = 5_060;
        let mut routes = |net: &mut VirtualNetwork| {
            let calls = (0..6).map(|_| {
                port += 1;
                let phone = format!("10.1.0.9:{port}");
                let phone = net.phone(&phone, PhoneBehaviour::answering(SDP_A));
                let content = MessageContent::sdp(SDP_A.as_bytes());
                net.call(phone, "sip:600@192.0.2.1", OUT, &content);
                net.run(seconds(1));
                route_of_last_call(net, carrier)
            });
            let mut calls: Vec<Vec<String>> = calls.collect();
            calls.dedup();
            assert_eq!(calls.len(), 1, "each worker sends the same: {calls:?}");
            calls.remove(0)
        };
        assert!(routes(&mut net).is_empty());
        answer(&mut net, carrier, 200, HeaderId::ServiceRoute, ROUTE);
        net.run(seconds(1));
        let values: Vec<&str> = ROUTE.split(", ").collect();
        assert_eq!(routes(&mut net), values);
        // A reload keeps the registration and its route.
        for worker in 0..workers {
            let config = config::parse(&config, "t").unwrap();
            net.control_worker(worker, |border, now| border.reload(config, now));
        }
        net.run(seconds(1));
        assert_eq!(routes(&mut net), values);
        // The refresh, whose response has none.
        net.run(seconds(300));
        answer(&mut net, carrier, 200, HeaderId::Expires, "600");
        net.run(seconds(1));
        assert!(routes(&mut net).is_empty());
    }
}
