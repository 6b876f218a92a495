//! Calls through the border, in memory.

mod neighbourhood;

use neighbourhood::*;
use sip::Content;
use std::time::Duration;

#[test]
fn a_call_from_end_to_end() {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let leg = net.call(alice, "sip:bob@192.0.2.1", "192.0.2.1:5060", &Content::sdp(SDP_A.as_bytes()));
    net.run(Duration::from_secs(1));
    eprintln!("{:#?}", net.told(alice));
    eprintln!("{:#?}", net.told(bob));
    for (to, bytes) in &net.wire {
        eprintln!("--> {to}\n{}", String::from_utf8_lossy(bytes));
    }
    assert!(net.has(alice, |told| *told == Told::Answered));
    assert!(net.has(bob, |told| *told == Told::Acked));
    net.tell(alice, |endpoint, now| endpoint.bye(leg, &Content::default(), now).unwrap());
    net.run(Duration::from_secs(1));
    assert!(net.has(bob, |told| matches!(told, Told::Ended(_))));
    net.assert_quiet();
}
