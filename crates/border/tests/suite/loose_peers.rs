//! Peers that leave out headers, or that need more than the RFCs demand: Allow, Contact of OPTIONS, option tags, To of
//! emergency calls, withheld numbers, refused credentials.

use crate::virtual_network;

use engine::Transport;
use sip::{EndpointConfig, MessageContent, SessionConfig};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// Microsoft's SIP proxy identifies the border by Contact of its OPTIONS (RFC 3261 section 11.1), and sends its own
/// there.
#[test]
fn pings_have_a_contact() {
    let config = format!("{PLAIN}ping_interval_s=10\n").replacen(
        "name='in'\n",
        "name='in'\nadvertise='sbc.example'\n",
        1,
    );
    let (mut net, _, bob) = pair(&config);
    net.run(seconds(20));
    let pinged = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(pinged.method(), "OPTIONS");
    assert_eq!(pinged.header("Contact"), "<sip:sbc.example:5060>");
}

/// The gateway neither writes Allow nor knows UPDATE. The caller sees the methods of the border, refreshes its session
/// by UPDATE, and keeps its call.
#[test]
fn session_of_one_leg_is_refreshed_by_update_without_the_other() {
    let config = format!("{PLAIN}[media]\ntimeout_s=0\n");
    let mut net = VirtualNetwork::new(&config, 1);
    let timer = |config: &mut EndpointConfig| {
        config.session = Some(SessionConfig {
            expires: 120,
            min_se: 90,
        });
    };
    let without_update = |config: &mut EndpointConfig| config.allow = String::new();
    let caller = ("10.1.0.1:5060", Transport::Udp);
    let alice = net.phone_with(caller, PhoneBehaviour::answering(SDP_A), timer);
    let gateway = PhoneBehaviour {
        inside: Some(405),
        ..PhoneBehaviour::answering(SDP_B)
    };
    let bob = net.phone_with(("10.2.0.1:5060", Transport::Udp), gateway, without_update);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1_000));
    assert_eq!(net.border.calls().len(), 1, "{:?}", net.phone_events(alice));
    let sent = net.phones[alice].sent.iter();
    let updates = sent.filter(|bytes| bytes.starts_with(b"UPDATE ")).count();
    assert!(updates > 10, "{updates}");
    let is_in_dialog = |event: &PhoneEvent| matches!(event, PhoneEvent::Request(_));
    assert!(!net.has(bob, is_in_dialog), "{:?}", net.phone_events(bob));
    net.command(alice, |endpoint, now| {
        let content = MessageContent::default();
        endpoint.bye(leg, &content, now).unwrap();
    });
    net.run(seconds(1));
    net.assert_quiet();
}

/// Proxies replace the Request-URI of an emergency call, not To.
#[test]
fn to_of_a_call_to_a_service_has_the_host_of_the_target() {
    for (keys, host) in [
        ("", "10.2.0.1:5060"),
        ("domain='carrier.example'\n", "carrier.example"),
    ] {
        let (mut net, alice, bob) = pair(&format!("{PLAIN}{keys}"));
        net.call_with(alice, "urn:service:sos", OUT, &offer(), |invite| {
            invite.to = Some(b"<sip:112@192.0.2.1>");
        });
        net.run(seconds(1));
        let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
        assert!(invite.text().starts_with("INVITE urn:service:sos SIP/2.0"));
        assert_eq!(invite.header("To"), format!("<sip:112@{host}>"));
        assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    }
}

/// RFC 7866 section 6.1.1: a recording session requires `siprec`, which the recorder supports.
#[test]
fn recording_session_passes() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let recorder = ("10.2.0.1:5060", Transport::Udp);
    let recorder = net.phone_with(recorder, PhoneBehaviour::answering(SDP_B), |config| {
        config.supported.push("siprec".to_owned());
    });
    let edits = [Edit::Add {
        id: HeaderId::Require,
        value: b"siprec",
    }];
    net.call(alice, "sip:recorder@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let invite = net.find(recorder, |event| *event == PhoneEvent::Offered);
    assert_eq!(invite.header("Require"), "siprec");
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

/// RFC 6228: a 199 would end the only early dialog that the caller has, while other forks ring. RFC 4916: a changed
/// From is not forwarded.
#[test]
fn end_of_early_dialogs_and_changes_of_from_are_not_offered() {
    let (mut net, alice, bob) = pair(PLAIN);
    let edits = [Edit::Replace {
        id: HeaderId::Supported,
        value: b"199, from-change, histinfo",
    }];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert_eq!(
        invite.header("Supported"),
        "100rel, timer, replaces, histinfo"
    );
}

/// RFC 3840: feature tags describe the user agents, which are still those behind the border (`+sip.src` of RFC 7866,
/// `isfocus` of RFC 4579, services of 3GPP). The name of a device and other parameters stay at its side.
#[test]
fn feature_tags_of_contact_reach_the_other_side() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.answer = None;
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:alice@10.1.0.1:5060;ob>;+sip.src;audio;+sip.instance=\"<urn:uuid:1>\";\
            +g.3gpp.icsi-ref=\"urn%3Aurn-7%3A3gpp-service.ims.icsi.mmtel\";expires=60;x=y",
    }];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert_eq!(
        invite.header("Contact"),
        "<sip:198.51.100.1:5060>;+sip.src;audio;\
         +g.3gpp.icsi-ref=\"urn%3Aurn-7%3A3gpp-service.ims.icsi.mmtel\""
    );
    let leg = invite.leg.unwrap();
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:bob@10.2.0.1:5060>;isfocus",
    }];
    net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(SDP_B.as_bytes()).with(&edits);
        endpoint.answer(leg, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answer = net.find(alice, |event| *event == PhoneEvent::Answered);
    assert_eq!(answer.header("Contact"), "<sip:192.0.2.1:5060>;isfocus");
}

/// RFC 3261 section 7.3.1: a list may be in several fields.
#[test]
fn methods_in_several_fields_are_relayed() {
    let (mut net, alice, bob) = pair(PLAIN);
    let edits = [
        Edit::Replace {
            id: HeaderId::Allow,
            value: b"INVITE",
        },
        Edit::Add {
            id: HeaderId::Allow,
            value: b"ACK, BYE",
        },
        Edit::Add {
            id: HeaderId::Allow,
            value: b"UPDATE",
        },
    ];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert_eq!(invite.header("Allow"), "INVITE, ACK, BYE, UPDATE");
}

/// Some systems keep their host where the number is withheld (RFC 3323 section 4.1.1.3 recommends `anonymous.invalid`).
/// The number of the trunk would name the caller.
#[test]
fn withheld_number_is_not_replaced_by_that_of_the_trunk() {
    for (from, user) in [
        ("\"Anonymous\" <sip:Anonymous@10.1.0.1>", "sip:Anonymous@"),
        ("<sip:100@10.1.0.1>", "sip:4910@"),
    ] {
        let (mut net, alice, bob) = pair(&format!("{PLAIN}from_user='4910'\n"));
        net.call_with(alice, "sip:bob@192.0.2.1", OUT, &offer(), |invite| {
            invite.from = Some(from.as_bytes());
        });
        net.run(seconds(1));
        let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
        let caller = invite.header("From");
        assert!(caller.contains(user), "{caller}");
        assert!(!caller.contains("10.1.0.1"), "{caller}");
    }
}

/// RFC 3261 section 19.1.1: a contact may have headers, a Request-URI may not.
#[test]
fn headers_of_a_redirect_contact_are_not_in_the_request_uri() {
    let (mut net, alice, bob) = pair(&format!("{PLAIN}redirect='follow'\n"));
    net.phones[bob].log.behaviour.silent = true;
    let other = net.phone("10.2.0.7:5060", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let called = net.find(bob, |event| *event == PhoneEvent::Offered);
    let leg = called.leg.unwrap();
    let edits = [Edit::Add {
        id: HeaderId::Contact,
        value: b"<sip:carol@10.2.0.7:5060;user=phone?Diversion=%3Csip%3Abob%40x%3E>",
    }];
    net.command(bob, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.reject(leg, 302, &content, now).unwrap();
    });
    net.run(seconds(1));
    let invite = net.find(other, |event| *event == PhoneEvent::Offered);
    let line = "INVITE sip:carol@10.2.0.7:5060;user=phone SIP/2.0\r\n";
    assert!(invite.text().starts_with(line), "{}", invite.text());
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

/// A trunk that refuses our credentials in a call is not asked for those of the phone.
#[test]
fn challenge_for_our_credentials_is_not_relayed_in_calls() {
    let (mut net, alice, bob) = pair(&format!("{PLAIN}username='us'\npassword='pw'\n"));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.phones[bob].log.behaviour.inside = Some(407);
    for (method, content) in [
        (Method::Info, MessageContent::default()),
        (Method::Update, offer()),
    ] {
        net.command(alice, |endpoint, now| {
            endpoint.request(leg, method, &content, now).unwrap();
        });
        net.run(seconds(1));
        let answer = &net.last(alice, |_| true).event;
        assert!(matches!(answer, PhoneEvent::Response(403, _)), "{answer:?}");
    }
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::Request(_))));
}
