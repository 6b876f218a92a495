//! Overload control between neighbours (RFC 7339): feedback of trunks is obeyed, and neighbours that ask for it get
//! feedback.

use crate::virtual_network;

use engine::Transport;
use sip::{Failure, MessageContent, OutOfDialogRequest, Target};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Message, Method, Throttle};

#[test]
fn feedback_of_a_trunk_is_obeyed() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='udp:10.2.0.1:5060'\noverload_control=true",
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let call = |net: &mut VirtualNetwork| {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let reported = net.phone_events(caller);
        let count = |wanted: PhoneEvent| reported.iter().filter(|event| **event == wanted).count();
        (
            count(PhoneEvent::Answered),
            count(PhoneEvent::Failed(Failure::Response, 503)),
        )
    };
    net.command(callee, |endpoint, now| {
        endpoint.set_loss_feedback(Some(0), seconds(5), now)
    });
    assert_eq!(call(&mut net), (1, 0));
    let asked = net.last(callee, |event| *event == PhoneEvent::Offered);
    assert!(
        asked.header("Via").ends_with(";oc;oc-algo=\"loss,rate\""),
        "{}",
        asked.text()
    );
    net.command(callee, |endpoint, now| {
        endpoint.set_loss_feedback(Some(100), seconds(5), now)
    });
    assert_eq!(call(&mut net), (2, 0), "this one is reported");
    assert_eq!(call(&mut net), (2, 1));
    let refused = net.last(caller, |event| matches!(event, PhoneEvent::Failed(..)));
    assert_eq!(
        refused.header("Retry-After"),
        "",
        "others may accept it at once"
    );
    // The caller's response has only the border's own feedback.
    assert!(!refused.header("Via").contains("oc="));
    let throttled = net
        .names()
        .into_iter()
        .filter(|name| *name == "trunk_throttled");
    assert_eq!(throttled.count(), 1);
    net.run(seconds(5));
    assert_eq!(call(&mut net), (3, 1), "its feedback has expired");
    // Feedback of a trunk without overload control is ignored.
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.command(callee, |endpoint, now| {
        endpoint.set_loss_feedback(Some(100), seconds(5), now)
    });
    for _ in 0..3 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
    }
    let asked = net.last(callee, |event| *event == PhoneEvent::Offered);
    assert!(!asked.header("Via").contains("oc"));
    assert!(net.has(caller, |event| *event == PhoneEvent::Answered));
    assert!(!net.has(caller, |event| matches!(event, PhoneEvent::Failed(..))));
}

#[test]
fn feedback_of_a_target_leaves_the_other_targets_of_the_trunk() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=['udp:10.2.0.1:5060',{address='udp:10.2.0.2:5060',priority=1}]\noverload_control=true",
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let overloaded = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let spare = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    for (phone, loss) in [(overloaded, 100), (spare, 0)] {
        net.command(phone, |endpoint, now| {
            endpoint.set_loss_feedback(Some(loss), seconds(20), now)
        });
    }
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    for _ in 0..4 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
    }
    let offered = |event: &&PhoneEvent| **event == PhoneEvent::Offered;
    let calls =
        [overloaded, spare].map(|phone| net.phone_events(phone).iter().filter(offered).count());
    assert_eq!(calls, [1, 3]);
    assert!(!net.has(caller, |event| matches!(event, PhoneEvent::Failed(..))));
}

/// RFC 7415 section 3.4: the rate is that of all requests, not only of calls.
#[test]
fn rate_of_a_trunk_holds_for_requests_outside_of_calls() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='udp:10.2.0.1:5060'\noverload_control=true",
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let sender = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mute = PhoneBehaviour {
        outside: None,
        ..PhoneBehaviour::answering(SDP_B)
    };
    net.phone("10.2.0.1:5060", mute);
    let message = |net: &mut VirtualNetwork| {
        let flow = net.flow(sender, OUT, Transport::Udp);
        net.command(sender, |endpoint, now| {
            let message = OutOfDialogRequest {
                from: Some(b"<sip:1001@192.0.2.1>"),
                ..OutOfDialogRequest::new(Method::Message, Target::new(b"sip:2000@192.0.2.1", flow))
            };
            endpoint.send(&message, now).unwrap();
        });
        net.run(Duration::from_millis(20));
    };
    message(&mut net);
    let trunk = "10.2.0.1:5060".parse().unwrap();
    let is_sent = |(to, bytes): &&(std::net::SocketAddr, Vec<u8>)| {
        *to == trunk && bytes.starts_with(b"MESSAGE ")
    };
    let request = net.wire.iter().find(is_sent).unwrap();
    let request = String::from_utf8(request.1.clone()).unwrap();
    let mut response = String::from("SIP/2.0 200 OK\r\n");
    for line in request.lines() {
        match line.split_once(": ") {
            Some(("Via", via)) => {
                let asked = ";oc;oc-algo=\"loss,rate\"";
                assert!(via.contains(asked), "{via}");
                let answer = ";oc=1;oc-algo=\"rate\";oc-validity=60000";
                response += &format!("Via: {}\r\n", via.replace(asked, answer));
            }
            Some(("To", to)) => response += &format!("To: {to};tag=t\r\n"),
            Some(("From" | "Call-ID" | "CSeq", _)) => response += &format!("{line}\r\n"),
            _ => {}
        }
    }
    response += "Content-Length: 0\r\n\r\n";
    net.send_raw("10.2.0.1:5060", "198.51.100.1:5060", response.as_bytes());
    net.run(Duration::from_millis(20));
    for _ in 0..6 {
        message(&mut net);
    }
    let reported = net.phone_events(sender).into_iter();
    let refused = reported.filter(|event| *event == PhoneEvent::OutOfDialogResponse(503));
    assert!((4..=5).contains(&refused.count()));
}

#[test]
fn feedback_of_a_trunk_with_a_name_is_obeyed() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='pbx.example'\noverload_control=true",
    ) + "[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![("pbx.example", 1, vec![10, 2, 0, 1])];
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.command(callee, |endpoint, now| {
        endpoint.set_loss_feedback(Some(100), seconds(5), now)
    });
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    for _ in 0..2 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
    }
    let offered = |event: &&PhoneEvent| **event == PhoneEvent::Offered;
    assert_eq!(net.phone_events(callee).iter().filter(offered).count(), 1);
    assert!(net.has(caller, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
}

#[test]
fn feedback_of_a_trunk_is_obeyed_by_all_workers() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='udp:10.2.0.1:5060'\noverload_control=true",
    ) + "[sip]\nworkers=2\n";
    let mut net = VirtualNetwork::with_workers(&config, 1);
    let callee = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let callers: Vec<usize> = (0..12)
        .map(|number| {
            let address = format!("10.1.0.{}:5060", number + 1);
            net.phone(&address, PhoneBehaviour::answering(SDP_A))
        })
        .collect();
    net.command(callee, |endpoint, now| {
        endpoint.set_loss_feedback(Some(100), seconds(20), now)
    });
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    for &caller in &callers {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
    }
    let offered = net.each_worker(|border, _| border.counters().offered);
    assert!(offered.iter().all(|calls| *calls > 0), "{offered:?}");
    let offered = |event: &&PhoneEvent| **event == PhoneEvent::Offered;
    assert_eq!(net.phone_events(callee).iter().filter(offered).count(), 1);
}

/// Feedback of a restarted border must not look older than that before.
#[test]
fn sequence_of_feedback_is_the_wall_clock_time() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    net.control(|border, _| border.set_wall_clock(seconds(1_700_000_000)));
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.call_with(caller, "sip:2000@192.0.2.1", OUT, &offer, |invite| {
        invite.target.feedback = true;
    });
    net.run(seconds(1));
    let answer = net.last(caller, |event| *event == PhoneEvent::Answered);
    let answer = Message::parse(&answer.bytes).unwrap();
    let feedback = answer.via().unwrap().feedback().unwrap();
    assert!(
        feedback.sequence >= Some((1_700_000_000, 0)),
        "{feedback:?}"
    );
}

#[test]
fn neighbours_get_feedback_on_request() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let call = |net: &mut VirtualNetwork, asks: bool| {
        net.call_with(caller, "sip:2000@192.0.2.1", OUT, &offer, |invite| {
            invite.target.feedback = asks;
        });
    };
    let reported = |net: &VirtualNetwork, which: fn(&PhoneEvent) -> bool| {
        let entry = net.last(caller, which);
        let feedback = Message::parse(&entry.bytes)
            .unwrap()
            .via()
            .unwrap()
            .feedback();
        (feedback, entry.header("Via"))
    };
    let answered = |event: &PhoneEvent| *event == PhoneEvent::Answered;
    let failed = |event: &PhoneEvent| *event == PhoneEvent::Failed(Failure::Response, 503);
    call(&mut net, true);
    net.run(seconds(1));
    let (feedback, via) = reported(&net, answered);
    let first = feedback.unwrap();
    assert_eq!(
        (first.throttle, first.validity),
        (Throttle::Loss(0), 1_000),
        "{via}"
    );
    assert_eq!(
        via.matches(";oc").count(),
        4,
        "the parameters are replaced: {via}"
    );
    call(&mut net, false);
    net.run(seconds(1));
    assert_eq!(
        reported(&net, answered).0,
        None,
        "no feedback without a request"
    );
    // Four of five requests have too long a queueing delay.
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
    let (feedback, via) = reported(&net, failed);
    let last = feedback.expect("feedback in a refusal of the fast path");
    let Throttle::Loss(loss) = last.throttle else {
        panic!("{via}");
    };
    assert!((40..=95).contains(&loss), "{via}");
    assert!(last.sequence > first.sequence);
    // A reload in the overload does not ask for full load.
    let same = config::parse(PLAIN, "t").unwrap();
    net.control(|border, now| border.reload(same, now));
    call(&mut net, true);
    net.run(Duration::from_millis(100));
    let (feedback, via) = reported(&net, failed);
    assert!(
        matches!(feedback.unwrap().throttle, Throttle::Loss(40..=95)),
        "{via}"
    );
    // The overload has ended, and the feedback says so.
    net.lag = (at, Duration::ZERO);
    net.run(seconds(20));
    call(&mut net, true);
    net.run(seconds(1));
    assert_eq!(
        reported(&net, answered).0.unwrap().throttle,
        Throttle::Loss(0)
    );
    let quiet = PLAIN.to_owned() + "[sip]\noverload_feedback=false\n";
    let mut net = VirtualNetwork::new(&quiet, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.call_with(caller, "sip:2000@192.0.2.1", OUT, &offer, |invite| {
        invite.target.feedback = true;
    });
    net.run(seconds(1));
    let via = net
        .last(caller, |event| *event == PhoneEvent::Answered)
        .header("Via");
    assert!(via.contains(";oc;") && !via.contains("oc="), "{via}");
}

/// Calls every 20 ms for four seconds while messages at the address `lagging` were queued for 300 ms, and `flood`
/// arrives there from a stranger thirty times with each call. Returns answered and refused calls.
fn calls_with_a_queue_at(lagging: &str, flood: Option<&[u8]>) -> (usize, usize) {
    let other = "[[interface]]\nname='other'\nkind='core'\nlisten=['udp:203.0.113.1:5060']\nmedia={address='203.0.113.1'}\n";
    let mut net = VirtualNetwork::new(&(other.to_owned() + PLAIN), 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.lag = (lagging.parse().ok(), Duration::from_millis(300));
    for _ in 0..200 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        for message in [flood; 30].into_iter().flatten() {
            net.send_raw("10.3.0.1:5060", lagging, message);
        }
        net.run(Duration::from_millis(20));
    }
    net.run(seconds(2));
    let reported = net.phone_events(caller);
    let count = |wanted: PhoneEvent| reported.iter().filter(|event| **event == wanted).count();
    (
        count(PhoneEvent::Answered),
        count(PhoneEvent::Failed(Failure::Response, 503)),
    )
}

#[test]
fn the_queue_of_responses_counts_for_new_calls() {
    // The queue where new calls arrive is empty.
    let (answered, refused) = calls_with_a_queue_at("198.51.100.1:5060", None);
    assert!(answered >= 5 && refused >= 100, "{answered}, {refused}");
    // Messages of no call, at whatever address, are no reason to refuse one.
    let response = b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 203.0.113.1:5060;branch=z9hG4bKnone\r\n\
        From: <sip:a@b>;tag=1\r\nTo: <sip:c@d>;tag=2\r\nCall-ID: none\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n";
    let options = b"OPTIONS sip:203.0.113.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.3.0.1:5060;branch=z9hG4bK1\r\n\
        From: <sip:a@b>;tag=1\r\nTo: <sip:c@d>\r\nCall-ID: other\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n";
    for flood in [&response[..], options] {
        // The second is the address of the responses: there the flood delays them, and fewer calls would not help.
        for lagging in ["203.0.113.1:5060", "198.51.100.1:5060"] {
            let outcome = calls_with_a_queue_at(lagging, Some(flood));
            assert_eq!(outcome, (200, 0), "{lagging}");
        }
    }
}

/// After a quiet second a thousand calls a second begin, and the thread is kept from running for a moment: no call is
/// refused.
#[test]
fn a_stall_while_the_load_begins_refuses_no_call() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let border = "192.0.2.1:5060".parse().ok();
    let mut calls = 0;
    let mut call = |net: &mut VirtualNetwork, wait: Duration| {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(wait);
        calls += 1;
    };
    for _ in 0..4 {
        call(&mut net, Duration::from_millis(270));
    }
    for millisecond in 0..200 {
        net.lag = match millisecond {
            60..90 => (border, Duration::from_millis(29)),
            _ => (border, Duration::ZERO),
        };
        call(&mut net, Duration::from_millis(1));
    }
    net.run(seconds(2));
    let reported = net.phone_events(caller);
    let answered = reported
        .iter()
        .filter(|event| **event == PhoneEvent::Answered);
    assert_eq!(answered.count(), calls);
}
