//! Overload control between neighbours (RFC 7339): trunks that tell us are obeyed, those who ask us are told.

use crate::neighbourhood;

use neighbourhood::*;
use sip::{Content, Failure};
use std::time::Duration;
use wire::sip::{Message, Throttle};

const OUT: &str = "192.0.2.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[test]
fn a_trunk_that_tells_us_is_obeyed() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='udp:10.2.0.1:5060'\nfeedback=true",
    );
    let mut net = Neighbourhood::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    let call = |net: &mut Neighbourhood| {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let told = net.told(caller);
        let count = |wanted: Told| told.iter().filter(|told| **told == wanted).count();
        (
            count(Told::Answered),
            count(Told::Failed(Failure::Response, 503)),
        )
    };
    net.tell(callee, |endpoint, now| {
        endpoint.tell_loss(Some(0), seconds(5), now)
    });
    assert_eq!(call(&mut net), (1, 0));
    let asked = net.last(callee, |told| *told == Told::Offered);
    assert!(
        asked.header("Via").ends_with(";oc;oc-algo=\"loss,rate\""),
        "{}",
        asked.text()
    );
    net.tell(callee, |endpoint, now| {
        endpoint.tell_loss(Some(100), seconds(5), now)
    });
    assert_eq!(call(&mut net), (2, 0), "this one is told");
    assert_eq!(call(&mut net), (2, 1));
    let refused = net.last(caller, |told| matches!(told, Told::Failed(..)));
    assert_eq!(
        refused.header("Retry-After"),
        "",
        "others may take it at once"
    );
    // What the caller hears is ours alone.
    assert!(!refused.header("Via").contains("oc="));
    let throttled = net
        .names()
        .into_iter()
        .filter(|name| *name == "trunk_throttled");
    assert_eq!(throttled.count(), 1);
    net.run(seconds(5));
    assert_eq!(call(&mut net), (3, 1), "what it told counts no longer");
    // Feedback of a trunk that is not asked is nobody's.
    let mut net = Neighbourhood::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.tell(callee, |endpoint, now| {
        endpoint.tell_loss(Some(100), seconds(5), now)
    });
    for _ in 0..3 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
    }
    let asked = net.last(callee, |told| *told == Told::Offered);
    assert!(!asked.header("Via").contains("oc"));
    assert!(net.has(caller, |told| *told == Told::Answered));
    assert!(!net.has(caller, |told| matches!(told, Told::Failed(..))));
}

#[test]
fn neighbours_who_ask_are_told_how_much_to_hold_back() {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    let call = |net: &mut Neighbourhood, asks: bool| {
        net.call_with(caller, "sip:2000@192.0.2.1", OUT, &offer, |invite| {
            invite.target.feedback = asks;
        });
    };
    let told = |net: &Neighbourhood, which: fn(&Told) -> bool| {
        let seen = net.last(caller, which);
        let feedback = Message::parse(&seen.bytes)
            .unwrap()
            .via()
            .unwrap()
            .feedback();
        (feedback, seen.header("Via"))
    };
    let answered = |told: &Told| *told == Told::Answered;
    let failed = |told: &Told| *told == Told::Failed(Failure::Response, 503);
    call(&mut net, true);
    net.run(seconds(1));
    let (feedback, via) = told(&net, answered);
    let first = feedback.unwrap();
    assert_eq!(
        (first.throttle, first.validity),
        (Throttle::Loss(0), 1_000),
        "{via}"
    );
    assert_eq!(
        via.matches(";oc").count(),
        4,
        "what was asked is replaced: {via}"
    );
    call(&mut net, false);
    net.run(seconds(1));
    assert_eq!(
        told(&net, answered).0,
        None,
        "who does not ask is told nothing"
    );
    // Four of five wait too long.
    let at = OUT.parse().ok();
    for number in 0..200 {
        let lag = if number % 5 == 0 && number > 60 {
            0
        } else {
            80
        };
        net.lag = (at, Duration::from_millis(lag));
        call(&mut net, true);
        net.run(Duration::from_millis(20));
    }
    let (feedback, via) = told(&net, failed);
    let last = feedback.expect("feedback in a refusal at a glance");
    let Throttle::Loss(loss) = last.throttle else {
        panic!("{via}");
    };
    assert!((40..=95).contains(&loss), "{via}");
    assert!(last.sequence > first.sequence);
    // It is over, and that is told, too.
    net.lag = (at, Duration::ZERO);
    net.run(seconds(20));
    call(&mut net, true);
    net.run(seconds(1));
    assert_eq!(told(&net, answered).0.unwrap().throttle, Throttle::Loss(0));
    let quiet = PLAIN.to_owned() + "[sip]\nfeedback=false\n";
    let mut net = Neighbourhood::new(&quiet, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.call_with(caller, "sip:2000@192.0.2.1", OUT, &offer, |invite| {
        invite.target.feedback = true;
    });
    net.run(seconds(1));
    let via = net
        .last(caller, |told| *told == Told::Answered)
        .header("Via");
    assert!(via.contains(";oc;") && !via.contains("oc="), "{via}");
}
