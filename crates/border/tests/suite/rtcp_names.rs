//! Names in RTCP towards interfaces with topology hiding.

use crate::media::{arrivals, port_of};
use crate::virtual_network::*;
use sip::MessageContent;

/// The border's access interface has `headers = "known"`, its core interface `"all"`.
#[test]
fn cname_of_the_core_is_hidden_from_phones() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.sdp = format!("{SDP_B}a=rtcp-mux\r\n");
    let offered = format!("{SDP_A}a=rtcp-mux\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let answer = net.find(alice, |event| *event == PhoneEvent::Answered);
    let outside = port_of(&answer.body());
    let offer = net.find(bob, |event| *event == PhoneEvent::Offered);
    let inside = port_of(&offer.body());
    let described = wire::rtcp::CompoundBuilder::new()
        .receiver_report(7, &[])
        .cname(7, "asterisk@10.2.0.1")
        .finish();
    net.send_raw(
        "10.2.0.1:5000",
        &format!("198.51.100.1:{inside}"),
        &described,
    );
    net.send_raw("10.1.0.1:4000", &format!("192.0.2.1:{outside}"), &described);
    net.run(seconds(1));
    assert_eq!(
        arrivals(&net, "10.2.0.1:5000"),
        std::slice::from_ref(&described)
    );
    let [hidden] = &arrivals(&net, "10.1.0.1:4000")[..] else {
        panic!("no RTCP at the phone");
    };
    assert!(wire::rtcp::is_compound(hidden) && *hidden != described);
    assert!(!hidden.windows(4).any(|word| word == b"10.2"));
}
