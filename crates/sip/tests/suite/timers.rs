//! Timers of RFC 3261 section 17 (table 4), RFC 6026 and RFC 4320, with the precision of the timer wheel (about 1 ms).

use crate::common;

use common::*;
use engine::{Time, Transport};
use sip::*;
use std::time::Duration;
use wire::sip::{HeaderId, Method};

const PEER: &str = "192.0.2.9:5060";

fn host() -> Host {
    let mut host = Host::new("192.0.2.1:5060", EndpointConfig::default(), 7);
    host.log.behaviour = Behaviour {
        answer: None,
        ring: false,
        ack: false,
        respond: None,
        body: true,
    };
    host
}

fn flow(host: &Host, transport: Transport) -> Flow {
    Flow {
        local: if transport == Transport::Udp {
            host.udp
        } else {
            host.tcp
        },
        transport,
        remote: PEER.parse().unwrap(),
        connection: None,
    }
}

fn invite(host: &mut Host, transport: Transport) -> LegId {
    let target = Target::new(b"sip:bob@example.com", flow(host, transport));
    let invite = Invite {
        content: MessageContent::sdp(SDP),
        ..Invite::new(target)
    };
    host.endpoint.invite(&invite, Time::ZERO).unwrap()
}

/// Milliseconds, each at most one and a half ticks later than planned.
fn assert_times(seen: &[(Time, Sent)], expected: &[u64]) {
    let times: Vec<u64> = seen.iter().map(|(at, _)| at.as_millis()).collect();
    assert_eq!(times.len(), expected.len(), "{times:?} {expected:?}");
    for (time, expected) in times.iter().zip(expected) {
        assert!(
            (*expected..=expected + 2).contains(time),
            "{times:?} {expected:?}"
        );
    }
}

fn reply(request: &str, status: u16, tag: &str, extra: &str) -> Vec<u8> {
    let get = |id| header(request, id).unwrap();
    format!(
        "SIP/2.0 {status} X\r\nVia: {}\r\nFrom: {}\r\nTo: {}{tag}\r\nCall-ID: {}\r\nCSeq: {}\r\n{extra}Content-Length: 0\r\n\r\n",
        get(HeaderId::Via),
        get(HeaderId::From),
        get(HeaderId::To),
        get(HeaderId::CallId),
        get(HeaderId::CSeq),
    )
    .into_bytes()
}

#[test]
fn timers_a_and_b_over_udp() {
    let mut host = host();
    let leg = invite(&mut host, Transport::Udp);
    assert_eq!(host.drain().len(), 1);
    let sent = host.run(Time::from_secs(40));
    assert_times(&sent, &[500, 1_500, 3_500, 7_500, 15_500, 31_500]);
    assert_eq!(
        host.log.indications,
        [RecordedIndication::Failed(leg, Failure::TimedOut, 0)]
    );
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn timer_b_alone_over_tcp() {
    let mut host = host();
    let leg = invite(&mut host, Transport::Tcp);
    assert_eq!(host.drain().len(), 2, "connect, then the request");
    assert!(host.run(Time::from_millis(31_990)).is_empty());
    assert!(host.log.indications.is_empty());
    host.run(Time::from_millis(32_003));
    assert_eq!(
        host.log.indications,
        [RecordedIndication::Failed(leg, Failure::TimedOut, 0)]
    );
}

#[test]
fn timers_e_and_f_over_udp() {
    let mut host = host();
    let target = Target::new(b"sip:bob@example.com", flow(&host, Transport::Udp));
    let outside = OutOfDialogRequest {
        user: 5,
        ..OutOfDialogRequest::new(Method::Options, target)
    };
    host.endpoint.send(&outside, Time::ZERO).unwrap();
    let first = host.drain().remove(0);
    let sent = host.run(Time::from_secs(40));
    assert!(
        sent.iter().all(|(_, again)| *again == first),
        "the same bytes to the same place"
    );
    assert_times(
        &sent,
        &[
            500, 1_500, 3_500, 7_500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
        ],
    );
    assert_eq!(
        host.log.indications,
        [RecordedIndication::OutOfDialogTimedOut(5)]
    );
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn timer_e_runs_at_t2_after_a_provisional_response() {
    let mut host = host();
    let target = Target::new(b"sip:bob@example.com", flow(&host, Transport::Udp));
    host.endpoint
        .send(
            &OutOfDialogRequest::new(Method::Options, target),
            Time::ZERO,
        )
        .unwrap();
    let request = host.datagrams().remove(0);
    host.datagram(&reply(&request, 100, "", ""), PEER, Time::from_millis(100));
    let sent = host.run(Time::from_secs(10));
    assert_times(&sent, &[500, 4_500, 8_500]);
}

#[test]
fn timer_k_absorbs_for_t4() {
    let mut host = host();
    let target = Target::new(b"sip:bob@example.com", flow(&host, Transport::Udp));
    host.endpoint
        .send(
            &OutOfDialogRequest::new(Method::Options, target),
            Time::ZERO,
        )
        .unwrap();
    let request = host.datagrams().remove(0);
    let ok = reply(&request, 200, ";tag=b", "");
    for ms in [100, 200, 5_090] {
        host.datagram(&ok, PEER, Time::from_millis(ms));
    }
    assert_eq!(
        host.log.indications,
        [RecordedIndication::OutOfDialogResponse(0, 200)]
    );
    assert_eq!(host.endpoint.census().clients, 1);
    assert_eq!(
        host.endpoint.census().kept_bytes,
        0,
        "nothing kept for an ended one"
    );
    host.run(Time::from_millis(5_103));
    assert!(host.endpoint.census().is_quiet());
    host.datagram(&ok, PEER, Time::from_millis(5_200));
    assert_eq!(
        host.endpoint
            .drops()
            .get(engine::DropReason::SipStrayResponse),
        1
    );
}

#[test]
fn refused_invite_is_acknowledged_for_timer_d() {
    let mut host = host();
    let leg = invite(&mut host, Transport::Udp);
    let request = host.datagrams().remove(0);
    let busy = reply(&request, 486, ";tag=b", "");
    let mut acks = Vec::new();
    for ms in [100, 600, 32_000] {
        host.datagram(&busy, PEER, Time::from_millis(ms));
        acks.extend(host.datagrams());
    }
    assert_eq!(acks.len(), 3);
    assert!(acks.iter().all(|ack| *ack == acks[0]));
    assert!(acks[0].starts_with("ACK sip:bob@example.com SIP/2.0\r\n"));
    assert_eq!(
        header(&acks[0], HeaderId::Via),
        header(&request, HeaderId::Via)
    );
    assert_eq!(
        header(&acks[0], HeaderId::To).unwrap(),
        "<sip:bob@example.com>;tag=b"
    );
    assert_eq!(header(&acks[0], HeaderId::CSeq).unwrap(), "1 ACK");
    assert_eq!(
        host.log.indications,
        [RecordedIndication::Failed(leg, Failure::Response, 486)]
    );
    host.run(Time::from_millis(32_170));
    assert!(host.endpoint.census().is_quiet());
}

fn request(method: &str, branch: &str, cseq: u32, to_tag: &str, extra: &str) -> Vec<u8> {
    format!(
        "{method} sip:alice@192.0.2.1 SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK{branch}\r\n\
         Max-Forwards: 70\r\n\
         From: Bob <sip:bob@example.com>;tag=bobs\r\n\
         To: <sip:alice@example.com>{to_tag}\r\n\
         Call-ID: c1\r\nCSeq: {cseq} {method}\r\n\
         Contact: <sip:bob@192.0.2.9:5060>\r\n{extra}Content-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

#[test]
fn timers_g_h_and_i() {
    // Without ACK: G doubles up to T2, H ends it.
    let mut host = host();
    host.log.behaviour.answer = Some(486);
    host.datagram(&request("INVITE", "1", 1, "", ""), PEER, Time::ZERO);
    let busy = host.datagrams();
    assert_eq!(busy.len(), 1);
    let sent = host.run(Time::from_secs(40));
    assert_times(
        &sent,
        &[
            500, 1_500, 3_500, 7_500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
        ],
    );
    assert!(host.endpoint.census().is_quiet());
    // With ACK: no retransmission, and removed after T4.
    let start = Time::from_secs(100);
    host.datagram(&request("INVITE", "2", 2, "", ""), PEER, start);
    let busy = host.datagrams().remove(0);
    let to = header(&busy, HeaderId::To).unwrap();
    let tag = to.split_once('>').unwrap().1;
    host.datagram(
        &request("ACK", "2", 2, tag, ""),
        PEER,
        start + std::time::Duration::from_millis(50),
    );
    assert_eq!(host.endpoint.census().servers, 1);
    assert!(
        host.run(start + std::time::Duration::from_millis(5_040))
            .is_empty()
    );
    assert_eq!(host.endpoint.census().servers, 1);
    host.run(start + std::time::Duration::from_millis(5_120));
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn timer_j_answers_retransmissions_for_64_t1() {
    let mut host = host();
    host.log.behaviour.respond = Some(200);
    let options = request("OPTIONS", "3", 1, "", "");
    host.datagram(&options, PEER, Time::ZERO);
    let first = host.datagrams();
    host.datagram(&options, PEER, Time::from_secs(31));
    assert_eq!(host.datagrams(), first);
    assert_eq!(host.log.indications.len(), 1);
    assert_eq!(
        host.endpoint.census().kept_bytes,
        0,
        "composed again, not kept"
    );
    host.run(Time::from_millis(32_070));
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn trying_is_sent_after_200_ms_and_for_retransmissions() {
    let mut host = host();
    let invite = request("INVITE", "4", 1, "", "Timestamp: 54.1\r\n");
    host.datagram(&invite, PEER, Time::ZERO);
    let sent = host.run(Time::from_secs(3));
    assert_times(&sent, &[200]);
    host.datagram(&invite, PEER, Time::from_secs(3));
    let again = host.datagrams();
    assert!(again[0].starts_with("SIP/2.0 100 Trying\r\n"), "{again:?}");
    assert!(!header(&again[0], HeaderId::To).unwrap().contains("tag="));
    // RFC 3261 section 8.2.6.1: in the 100, and in no other response.
    assert_eq!(header(&again[0], HeaderId::Timestamp).unwrap(), "54.1");
    let RecordedIndication::Offered(leg) = host.log.indications[0] else {
        panic!("{:?}", host.log.indications)
    };
    host.endpoint
        .reject(leg, 486, &MessageContent::default(), Time::from_secs(4))
        .unwrap();
    assert_eq!(header(&host.datagrams()[0], HeaderId::Timestamp), None);
}

/// An endpoint that sends 100 at once for new calls waits for 200 ms with a re-INVITE, which is mostly answered at once
/// by machines.
#[test]
fn trying_for_a_reinvite_waits_for_200_ms() {
    let mut host = Host::new(
        "192.0.2.1:5060",
        EndpointConfig {
            timers: TimerConfig {
                trying: Duration::ZERO,
                ..TimerConfig::default()
            },
            ..EndpointConfig::default()
        },
        7,
    );
    host.log.behaviour.answer = None;
    host.log.behaviour.ring = false;
    host.log.behaviour.respond = None;
    host.datagram(&request("INVITE", "4", 1, "", ""), PEER, Time::ZERO);
    assert!(host.datagrams()[0].starts_with("SIP/2.0 100 "));
    let RecordedIndication::Offered(leg) = host.log.indications[0] else {
        panic!()
    };
    host.endpoint
        .answer(leg, 200, &MessageContent::sdp(SDP), Time::from_millis(10))
        .unwrap();
    let accepted = host.datagrams().remove(0);
    let to = header(&accepted, HeaderId::To).unwrap();
    let tag = format!(";tag={}", to.split("tag=").nth(1).unwrap());
    host.datagram(
        &request("ACK", "5", 1, &tag, ""),
        PEER,
        Time::from_millis(20),
    );
    let at = |ms| Time::from_secs(10) + Duration::from_millis(ms);
    host.datagram(&request("INVITE", "6", 2, &tag, ""), PEER, at(0));
    let sent = host.run(at(1_000));
    assert_times(&sent, &[10_200]);
    let RecordedIndication::Request(_, transaction, _) = host.log.last().clone() else {
        panic!("{:?}", host.log.indications)
    };
    host.endpoint
        .respond(transaction, 200, &MessageContent::sdp(SDP), at(1_000))
        .unwrap();
    assert!(host.datagrams()[0].starts_with("SIP/2.0 200 "));
    host.datagram(&request("ACK", "7", 2, &tag, ""), PEER, at(1_010));
    // A re-INVITE that is answered within 200 ms gets no 100.
    host.log.behaviour.respond = Some(200);
    host.datagram(&request("INVITE", "8", 3, &tag, ""), PEER, at(1_100));
    let sent = host.datagrams();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(sent[0].starts_with("SIP/2.0 200 "));
}

#[test]
fn unacknowledged_2xx_is_retransmitted_for_64_t1_then_ended_by_bye() {
    let mut host = host();
    host.log.behaviour.answer = Some(200);
    host.datagram(&request("INVITE", "5", 1, "", ""), PEER, Time::ZERO);
    host.drain();
    let mut sent = host.run(Time::from_millis(32_003));
    let bye = sent.pop().unwrap();
    assert_times(
        &sent,
        &[
            500, 1_500, 3_500, 7_500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
        ],
    );
    let Sent::Datagram(_, bytes) = bye.1 else {
        panic!()
    };
    assert!(bytes.starts_with(b"BYE sip:bob@192.0.2.9:5060 SIP/2.0\r\n"));
    assert!(matches!(
        host.log.last(),
        RecordedIndication::Ended(_, Ending::NoAck)
    ));
    host.run(Time::from_secs(80));
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn non_invite_gets_100_when_timer_e_reaches_t2_and_never_408() {
    let mut host = host();
    let info = request("MESSAGE", "6", 1, "", "");
    host.datagram(&info, PEER, Time::ZERO);
    let RecordedIndication::OutOfDialog(transaction, _) = host.log.indications[0].clone() else {
        panic!()
    };
    for status in [100, 180, 408] {
        assert_eq!(
            host.endpoint
                .respond(transaction, status, &MessageContent::default(), Time::ZERO),
            Err(Refused::Value)
        );
    }
    let sent = host.run(Time::from_secs(31));
    assert_times(&sent, &[3_500]);
    host.run(Time::from_secs(33));
    assert!(host.endpoint.census().is_quiet());
    assert_eq!(
        host.endpoint.respond(
            transaction,
            200,
            &MessageContent::default(),
            Time::from_secs(33)
        ),
        Err(Refused::Gone)
    );
}

/// RFC 6026 section 7.2: a 2xx of another fork is answered until 64*T1 after the first one.
#[test]
fn timer_m_ends_processing_of_late_2xx() {
    let mut host = host();
    host.log.behaviour.ack = true;
    invite(&mut host, Transport::Udp);
    let sent = host.datagrams().remove(0);
    let contact = "Contact: <sip:b@192.0.2.9>\r\n";
    host.datagram(&reply(&sent, 200, ";tag=one", contact), PEER, Time::ZERO);
    assert_eq!(host.datagrams().len(), 1, "ACK");
    for (at, tag, answers) in [(31_900, ";tag=two", 2), (32_100, ";tag=three", 0)] {
        let at = Time::from_millis(at);
        host.run(at);
        host.datagram(&reply(&sent, 200, tag, contact), PEER, at);
        assert_eq!(host.datagrams().len(), answers, "{tag}: ACK and BYE");
    }
}

/// RFC 3261 section 17.2.3: without the magic cookie the whole request is compared; with it sent-by counts too.
#[test]
fn requests_are_matched_with_and_without_a_branch() {
    for (via, same) in [
        // A client of RFC 2543 retransmits the request unchanged.
        ("SIP/2.0/UDP 192.0.2.9:5060", true),
        ("SIP/2.0/UDP 192.0.2.9:5060;branch=1", false),
        ("SIP/2.0/UDP 192.0.2.9:5061", false),
    ] {
        let mut host = host();
        host.log.behaviour.answer = None;
        host.log.behaviour.ring = false;
        let with = |method: &str, via: &str| {
            String::from_utf8(request(method, "x", 1, "", ""))
                .unwrap()
                .replace("SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bKx", via)
        };
        let first = with("INVITE", "SIP/2.0/UDP 192.0.2.9:5060");
        host.datagram(first.as_bytes(), PEER, Time::ZERO);
        assert_eq!(host.log.indications.len(), 1);
        host.run(Time::from_millis(300));
        host.datagram(with("INVITE", via).as_bytes(), PEER, Time::from_millis(300));
        let sent = host.datagrams();
        // The same request: the 100 again. Another: merged.
        let status = if same { "SIP/2.0 100 " } else { "SIP/2.0 482 " };
        assert!(sent[0].starts_with(status), "{via}: {sent:?}");
        assert_eq!(host.log.indications.len(), 1, "{via}");
        host.datagram(
            with("CANCEL", "SIP/2.0/UDP 192.0.2.9:5060").as_bytes(),
            PEER,
            Time::from_millis(400),
        );
        let sent = host.datagrams();
        assert!(sent[0].starts_with("SIP/2.0 200 ") && sent[1].starts_with("SIP/2.0 487 "));
        // Its ACK ends the retransmissions.
        let to = header(&sent[1], HeaderId::To).unwrap();
        let ack = with("ACK", "SIP/2.0/UDP 192.0.2.9:5060")
            .replace("To: <sip:alice@example.com>", &format!("To: {to}"));
        host.datagram(ack.as_bytes(), PEER, Time::from_millis(450));
        let later = host.run(Time::from_secs(5));
        let repeated = later
            .iter()
            .filter(|(_, sent)| matches!(sent, Sent::Datagram(_, bytes) if bytes.starts_with(b"SIP/2.0 487")));
        assert_eq!(repeated.count(), 0);
    }
    // The same branch from another client is another request.
    let mut host = host();
    for port in [5060, 5070] {
        let text = String::from_utf8(request("OPTIONS", "same", 1, "", "")).unwrap();
        let text = text.replace("192.0.2.9:5060;branch", &format!("192.0.2.9:{port};branch"));
        host.datagram(text.as_bytes(), PEER, Time::ZERO);
    }
    assert_eq!(host.log.indications.len(), 2);
}

#[test]
fn accepted_invite_absorbs_retransmissions_for_timer_l() {
    let mut host = host();
    host.log.behaviour.answer = Some(200);
    let invite = request("INVITE", "7", 1, "", "");
    host.datagram(&invite, PEER, Time::ZERO);
    let ok = host.datagrams().remove(0);
    let tag = header(&ok, HeaderId::To).unwrap();
    let tag = tag.split_once('>').unwrap().1;
    host.datagram(
        &request("ACK", "8", 1, tag, ""),
        PEER,
        Time::from_millis(10),
    );
    host.datagram(&invite, PEER, Time::from_secs(31));
    assert_eq!(
        host.log
            .count(|s| matches!(s, RecordedIndication::Offered(_))),
        1
    );
    assert!(host.datagrams().is_empty());
    assert_eq!(host.endpoint.census().servers, 1);
    host.run(Time::from_millis(32_070));
    let census = host.endpoint.census();
    assert_eq!((census.servers, census.legs, census.timers), (0, 1, 0));
}

/// A re-INVITE after its 100 has no Timer B. If BYE ends the dialog meanwhile and the final response is lost, only the
/// endpoint can end the wait.
#[test]
fn pending_reinvite_is_limited_after_its_dialog_ends() {
    for trying_ms in [1_100, 1_300] {
        let mut host = host();
        host.log.behaviour.ack = true;
        let leg = invite(&mut host, Transport::Udp);
        let opening = host.datagrams().remove(0);
        let contact = "Contact: <sip:bob@192.0.2.9:5060>\r\n";
        let ok = reply(&opening, 200, ";tag=b", contact);
        host.datagram(&ok, PEER, Time::from_millis(100));
        host.drain();
        host.endpoint
            .request(
                leg,
                Method::Invite,
                &MessageContent::sdp(SDP),
                Time::from_millis(1_000),
            )
            .unwrap();
        let again = host.datagrams().remove(0);
        host.endpoint
            .bye(leg, &MessageContent::default(), Time::from_millis(1_050))
            .unwrap();
        let bye = host.datagrams().remove(0);
        let trying = reply(&again, 100, "", "");
        let mut arrivals = [(trying_ms, trying), (1_200, reply(&bye, 200, "", ""))];
        arrivals.sort();
        for (ms, message) in arrivals {
            host.datagram(&message, PEER, Time::from_millis(ms));
        }
        assert!(matches!(
            host.log.last(),
            RecordedIndication::Ended(_, Ending::Local)
        ));
        host.run(Time::from_secs(70));
        let census = host.endpoint.census();
        assert!(
            census.is_quiet(),
            "100 at {trying_ms} ms: {} clients",
            census.clients
        );
    }
}

/// RFC 3261 section 13.2.2.4: a 2xx needs its ACK also after the end of the dialog. That of a phone behind NAT is sent
/// to its flow.
#[test]
fn late_2xx_of_a_reinvite_is_acknowledged() {
    for (pinned, contact) in [(false, PEER), (true, "10.0.0.9:5060")] {
        let mut host = host();
        host.log.behaviour.ack = true;
        let leg = invite(&mut host, Transport::Udp);
        let opening = host.datagrams().remove(0);
        let contact = format!("Contact: <sip:bob@{contact}>\r\n");
        if pinned {
            let flow = flow(&host, Transport::Udp);
            host.endpoint.pin(leg, flow).unwrap();
        }
        let ok = reply(&opening, 200, ";tag=b", &contact);
        host.datagram(&ok, PEER, Time::from_millis(100));
        host.drain();
        let content = MessageContent::sdp(SDP);
        let at = Time::from_millis(1_000);
        host.endpoint
            .request(leg, Method::Invite, &content, at)
            .unwrap();
        let again = host.datagrams().remove(0);
        host.endpoint
            .bye(leg, &MessageContent::default(), Time::from_millis(1_050))
            .unwrap();
        let bye = host.datagrams().remove(0);
        let ended = reply(&bye, 200, "", "");
        host.datagram(&ended, PEER, Time::from_millis(1_100));
        // The second one means that the first ACK was lost.
        for ms in [1_200, 1_700] {
            let late = reply(&again, 200, "", &contact);
            host.datagram(&late, PEER, Time::from_millis(ms));
            let sent = host.drain();
            let [Sent::Datagram(to, ack)] = &sent[..] else {
                panic!("{sent:?}");
            };
            assert_eq!(*to, PEER.parse().unwrap());
            let ack = String::from_utf8_lossy(ack);
            assert!(ack.starts_with("ACK sip:bob@"), "{ack}");
            assert_eq!(header(&ack, HeaderId::CSeq).unwrap(), "2 ACK");
        }
        host.run(Time::from_secs(70));
        assert!(host.endpoint.census().is_quiet());
    }
}

/// RFC 4028 section 7.4: the refusal of an UPDATE is none of a re-INVITE.
#[test]
fn refused_refresh_by_update_is_followed_by_a_reinvite() {
    for status in [403, 405, 488, 501] {
        let mut host = host();
        host.log.behaviour.ack = true;
        let leg = invite(&mut host, Transport::Udp);
        let opening = host.datagrams().remove(0);
        let extra = "Contact: <sip:bob@192.0.2.9:5060>\r\nAllow: INVITE, UPDATE\r\n\
            Supported: timer\r\nSession-Expires: 90;refresher=uac\r\n";
        let ok = reply(&opening, 200, ";tag=b", extra);
        host.datagram(&ok, PEER, Time::from_millis(100));
        host.drain();
        let sent = host.run(Time::from_millis(45_200)).remove(0).1;
        let Sent::Datagram(_, update) = sent else {
            panic!("{sent:?}");
        };
        let update = String::from_utf8(update).unwrap();
        assert!(update.starts_with("UPDATE "), "{update}");
        let refusal = reply(&update, status, "", "");
        host.datagram(&refusal, PEER, Time::from_millis(45_300));
        host.run(Time::from_millis(45_400));
        let due = RecordedIndication::RefreshDue(leg);
        assert_eq!(*host.log.last(), due, "{status}");
    }
}
