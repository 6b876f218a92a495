//! Forked INVITEs, CANCEL races and credentials, against a handwritten peer.

use crate::common;

use common::*;
use engine::{DropReason, Input, Time};
use sip::*;
use wire::sip::{Edit, HeaderId, Message, Method};

const PEER: &str = "192.0.2.9:5060";

struct Scene {
    host: Host,
    leg: LegId,
    invite: String,
}

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn scene_with(change: impl FnOnce(&mut Invite<'_>), config: EndpointConfig) -> Scene {
    let mut host = Host::new("192.0.2.1:5060", config, 11);
    let target = Target::new(b"sip:bob@example.com", host.flow(PEER));
    let mut invite = Invite {
        content: MessageContent::sdp(SDP),
        ..Invite::new(target)
    };
    change(&mut invite);
    let leg = host.endpoint.invite(&invite, Time::ZERO).unwrap();
    let invite = host.datagrams().remove(0);
    Scene { host, leg, invite }
}

fn scene() -> Scene {
    scene_with(|_| {}, EndpointConfig::default())
}

impl Scene {
    fn reply_to(request: &str, status: u16, tag: &str, extra: &str) -> String {
        let get = |id| header(request, id).unwrap();
        let tag = match tag {
            "" => String::new(),
            tag => format!(";tag={tag}"),
        };
        format!(
            "SIP/2.0 {status} X\r\nVia: {}\r\nFrom: {}\r\nTo: {}{tag}\r\nCall-ID: {}\r\nCSeq: {}\r\n{extra}Content-Length: 0\r\n\r\n",
            get(HeaderId::Via),
            get(HeaderId::From),
            get(HeaderId::To),
            get(HeaderId::CallId),
            get(HeaderId::CSeq),
        )
    }

    fn reply(&mut self, status: u16, tag: &str, extra: &str, at: u64) -> Vec<String> {
        let text = Scene::reply_to(&self.invite, status, tag, extra);
        self.receive(&text, at)
    }

    fn receive(&mut self, text: &str, at: u64) -> Vec<String> {
        self.host.datagram(text.as_bytes(), PEER, ms(at));
        self.host.datagrams()
    }

    fn end(mut self) {
        self.host.run(Time::from_secs(300));
        let census = self.host.endpoint.census();
        assert!(census.is_quiet(), "{census:?}");
    }
}

fn contact(host: u8) -> String {
    format!("Contact: <sip:bob@192.0.2.{host}:5060>\r\n")
}

fn method(text: &str) -> String {
    Message::parse(text.as_bytes())
        .unwrap()
        .method()
        .to_string()
}

#[test]
fn first_2xx_wins_and_a_later_one_gets_ack_and_bye() {
    let mut scene = scene();
    let leg = scene.leg;
    assert!(scene.reply(100, "", "", 10).is_empty());
    scene.reply(180, "one", &contact(21), 20);
    scene.reply(183, "two", &contact(22), 30);
    scene.reply(180, "one", &contact(21), 35);
    let acks = scene.reply(200, "two", &contact(22), 40);
    assert_eq!(acks.len(), 1);
    assert!(acks[0].starts_with("ACK sip:bob@192.0.2.22:5060 SIP/2.0"));
    assert_eq!(
        scene.host.log.indications,
        [
            RecordedIndication::Progressed(leg, Some(Fork(0)), 180, false),
            RecordedIndication::Progressed(leg, Some(Fork(1)), 183, false),
            RecordedIndication::Progressed(leg, Some(Fork(0)), 180, false),
            RecordedIndication::Answered(leg, 200),
        ]
    );
    // The losing fork answers late, twice.
    let late = scene.reply(200, "one", &contact(21), 50);
    assert_eq!(late.len(), 2, "{late:?}");
    assert!(late[0].starts_with("ACK sip:bob@192.0.2.21:5060 SIP/2.0"));
    assert!(late[1].starts_with("BYE sip:bob@192.0.2.21:5060 SIP/2.0"));
    assert_eq!(
        header(&late[1], HeaderId::To).unwrap(),
        "<sip:bob@example.com>;tag=one"
    );
    assert_eq!(header(&late[1], HeaderId::CSeq).unwrap(), "2 BYE");
    let again = scene.reply(200, "one", &contact(21), 550);
    assert_eq!(again, [late[0].clone()], "ACK again, BYE once");
    scene.receive(&Scene::reply_to(&late[1], 200, "", ""), 600);
    // A provisional response after the 2xx is not indicated any more.
    scene.reply(180, "three", &contact(23), 610);
    assert_eq!(scene.host.log.indications.len(), 4);
    assert_eq!(scene.host.endpoint.state_of(leg), Some(LegState::Confirmed));
    scene
        .host
        .endpoint
        .bye(leg, &MessageContent::default(), ms(700))
        .unwrap();
    let bye = scene.host.datagrams().remove(0);
    scene.receive(&Scene::reply_to(&bye, 200, "", ""), 710);
    scene.end();
}

#[test]
fn fork_is_acknowledged_over_its_own_route_set() {
    let mut scene = scene();
    let routes = "Record-Route: <sip:192.0.2.50;lr>, <sip:192.0.2.51:5070;lr>\r\n";
    let acks = scene.reply(200, "x", &format!("{routes}{}", contact(21)), 40);
    assert!(acks[0].starts_with("ACK sip:bob@192.0.2.21:5060"));
    assert_eq!(
        header(&acks[0], HeaderId::Route).unwrap(),
        "<sip:192.0.2.51:5070;lr>, <sip:192.0.2.50;lr>"
    );
    let flow = scene.host.endpoint.flow_of(scene.leg).unwrap();
    assert_eq!(flow.remote, "192.0.2.51:5070".parse().unwrap());
}

#[test]
fn strict_router_uri_becomes_request_uri() {
    let mut scene = scene();
    let routes = "Record-Route: <sip:192.0.2.50;lr>, <sip:192.0.2.51:5070>\r\n";
    let acks = scene.reply(200, "x", &format!("{routes}{}", contact(21)), 40);
    let message = Message::parse(acks[0].as_bytes()).unwrap();
    assert_eq!(message.request_uri(), b"sip:192.0.2.51:5070");
    let routes: Vec<&[u8]> = message.values(HeaderId::Route).collect();
    assert_eq!(
        routes,
        [&b"<sip:192.0.2.50;lr>"[..], b"<sip:bob@192.0.2.21:5060>"]
    );
}

#[test]
fn cancel_after_a_provisional_response() {
    let mut scene = scene();
    let leg = scene.leg;
    scene.reply(180, "one", &contact(21), 20);
    let edits = [Edit::AddNamed {
        name: b"Reason",
        value: b"SIP;cause=200",
    }];
    scene
        .host
        .endpoint
        .cancel(leg, &MessageContent::default().with(&edits), ms(30))
        .unwrap();
    let cancel = scene.host.datagrams().remove(0);
    assert!(cancel.starts_with("CANCEL sip:bob@example.com SIP/2.0\r\n"));
    for id in [
        HeaderId::Via,
        HeaderId::From,
        HeaderId::To,
        HeaderId::CallId,
    ] {
        assert_eq!(
            header(&cancel, id),
            header(&scene.invite, id),
            "section 9.1"
        );
    }
    assert_eq!(header(&cancel, HeaderId::CSeq).unwrap(), "1 CANCEL");
    assert_eq!(header(&cancel, HeaderId::Reason).unwrap(), "SIP;cause=200");
    scene.receive(&Scene::reply_to(&cancel, 200, "one", ""), 40);
    let acks = scene.reply(487, "one", "", 50);
    assert!(acks[0].starts_with("ACK sip:bob@example.com SIP/2.0\r\n"));
    assert_eq!(
        scene.host.log.last(),
        &RecordedIndication::Failed(leg, Failure::Response, 487)
    );
    scene.end();
}

#[test]
fn cancel_waits_for_a_provisional_response() {
    let mut scene = scene();
    scene
        .host
        .endpoint
        .cancel(scene.leg, &MessageContent::default(), ms(10))
        .unwrap();
    assert!(scene.host.datagrams().is_empty());
    let sent = scene.reply(100, "", "", 20);
    assert_eq!(sent.len(), 1);
    assert_eq!(method(&sent[0]), "CANCEL");
    // No other message arrives: the leg ends 64*T1 later.
    scene.host.run(ms(32_019));
    assert!(scene.host.log.indications.is_empty());
    scene.host.run(ms(32_024));
    assert_eq!(
        scene.host.log.indications,
        [RecordedIndication::Failed(scene.leg, Failure::TimedOut, 0)]
    );
    scene.end();
}

#[test]
fn cancel_without_any_response_ends_with_timer_b() {
    let mut scene = scene();
    scene
        .host
        .endpoint
        .cancel(scene.leg, &MessageContent::default(), ms(10))
        .unwrap();
    scene.host.run(ms(33_000));
    assert_eq!(
        scene.host.log.indications,
        [RecordedIndication::Failed(
            scene.leg,
            Failure::CancelledWithoutResponse,
            0
        )]
    );
    scene.end();
}

#[test]
fn crossing_2xx_after_cancel_is_acknowledged_and_ended() {
    for after_provisional in [true, false] {
        let mut scene = scene();
        if after_provisional {
            scene.reply(180, "one", &contact(21), 20);
        }
        scene
            .host
            .endpoint
            .cancel(scene.leg, &MessageContent::default(), ms(30))
            .unwrap();
        scene.host.drain();
        let sent = scene.reply(200, "one", &contact(21), 40);
        let methods: Vec<String> = sent.iter().map(|text| method(text)).collect();
        assert_eq!(methods, ["ACK", "BYE"]);
        assert_eq!(
            scene.host.log.last(),
            &RecordedIndication::Failed(scene.leg, Failure::CancelCrossed, 200)
        );
        assert_eq!(scene.host.endpoint.census().legs, 0);
        let again = scene.reply(200, "one", &contact(21), 500);
        assert_eq!(again.len(), 1, "{again:?}");
        assert_eq!(method(&again[0]), "ACK");
        scene.end();
    }
}

/// An INVITE with credentials is sent to the same pinned destination: the ACK and BYE of a crossing 2xx too, whose
/// Contact has a private address.
#[test]
fn retried_invite_remains_pinned() {
    let mut scene = scene_with(
        |invite| {
            invite.target.pinned = true;
            invite.login = Some(Login {
                user: b"alice",
                password: b"secret",
            });
        },
        EndpointConfig::default(),
    );
    let challenge = "Proxy-Authenticate: Digest realm=\"x\", nonce=\"n1\", algorithm=MD5\r\n";
    let sent = scene.reply(407, "a", challenge, 10);
    scene.invite = sent
        .into_iter()
        .find(|text| method(text) == "INVITE")
        .unwrap();
    scene.reply(180, "b", "", 20);
    scene
        .host
        .endpoint
        .cancel(scene.leg, &MessageContent::default(), ms(30))
        .unwrap();
    scene.host.drain();
    let private = "Contact: <sip:bob@192.168.1.5:5060>\r\n";
    let answer = Scene::reply_to(&scene.invite, 200, "b", private);
    scene.host.datagram(answer.as_bytes(), PEER, ms(40));
    let sent = scene.host.drain();
    assert_eq!(sent.len(), 2, "ACK and BYE: {sent:?}");
    for sent in &sent {
        let Sent::Datagram(to, _) = sent else {
            panic!("{sent:?}");
        };
        assert_eq!(*to, PEER.parse().unwrap());
    }
    assert_eq!(
        scene.host.log.last(),
        &RecordedIndication::Failed(scene.leg, Failure::CancelCrossed, 200)
    );
    // A repeated 2xx, after the end of the leg and before the next repetition of CANCEL.
    scene.host.datagram(answer.as_bytes(), PEER, ms(500));
    let again = scene.host.drain();
    assert!(
        matches!(&again[..], [Sent::Datagram(to, _)] if *to == PEER.parse().unwrap()),
        "{again:?}"
    );
    scene.end();
}

#[test]
fn challenge_is_answered_once() {
    let mut scene = scene_with(
        |invite| {
            invite.login = Some(Login {
                user: b"alice",
                password: b"secret",
            });
        },
        EndpointConfig::default(),
    );
    let challenge =
        "WWW-Authenticate: Digest realm=\"x\", nonce=\"n1\", qop=\"auth\", algorithm=MD5\r\n";
    let sent = scene.reply(401, "a", challenge, 10);
    assert_eq!(sent.len(), 2, "{sent:?}");
    let (ack, second) = match method(&sent[0]).as_str() {
        "ACK" => (&sent[0], &sent[1]),
        _ => (&sent[1], &sent[0]),
    };
    assert_eq!(method(ack), "ACK");
    assert_eq!(header(second, HeaderId::CSeq).unwrap(), "2 INVITE");
    assert_ne!(
        header(second, HeaderId::Via),
        header(&scene.invite, HeaderId::Via)
    );
    assert_eq!(
        header(second, HeaderId::From),
        header(&scene.invite, HeaderId::From)
    );
    let answer = header(second, HeaderId::Authorization).unwrap();
    assert!(
        answer.starts_with(
            "Digest username=\"alice\", realm=\"x\", nonce=\"n1\", uri=\"sip:bob@example.com\""
        ),
        "{answer}"
    );
    assert!(second.ends_with(std::str::from_utf8(SDP).unwrap()));
    assert!(scene.host.log.indications.is_empty());
    // The same challenge again: the password is wrong.
    scene.invite = second.clone();
    scene.reply(401, "b", challenge, 20);
    assert_eq!(
        scene.host.log.indications,
        [RecordedIndication::Failed(
            scene.leg,
            Failure::Response,
            401
        )]
    );
    scene.end();
}

/// A stale nonce is replaced; auth-int covers the body (RFC 7616 sections 3.3 and 3.4.3).
#[test]
fn stale_nonce_is_replaced_and_auth_int_used_if_required() {
    let mut scene = scene_with(
        |invite| {
            invite.login = Some(Login {
                user: b"alice",
                password: b"secret",
            });
        },
        EndpointConfig::default(),
    );
    let mut answers = Vec::new();
    for (tag, nonce, stale) in [
        ("a", "n1", ""),
        ("b", "n2", ", stale=true"),
        ("c", "n3", ", stale=TRUE"),
    ] {
        let challenge = format!(
            "WWW-Authenticate: Digest realm=\"x\", nonce=\"{nonce}\", qop=\"auth-int\", algorithm=SHA-256{stale}\r\n"
        );
        let sent = scene.reply(401, tag, &challenge, 10);
        let again = sent.into_iter().find(|text| text.starts_with("INVITE "));
        scene.invite = again.expect("a retry");
        answers.push(header(&scene.invite, HeaderId::Authorization).unwrap());
    }
    for (answer, nonce) in answers.iter().zip(["n1", "n2", "n3"]) {
        for part in [
            &format!("nonce=\"{nonce}\"")[..],
            "qop=auth-int",
            "nc=00000001",
            "algorithm=SHA-256",
        ] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
    }
    let response = |answer: &str| answer.split("response=\"").nth(1).unwrap()[..64].to_owned();
    let value = |name: &str| {
        let rest = answers[2].split(&format!("{name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let hash = protect::digest::Hash::Sha256;
    let digest = |body: &[u8]| {
        let cnonce = value("cnonce");
        let digest = protect::digest::ResponseInput {
            algorithm: protect::digest::Algorithm::SHA256,
            ha1: protect::digest::ha1(hash, b"alice", b"x", b"secret"),
            nonce: b"n3",
            cnonce: cnonce.as_bytes(),
            nc: b"00000001",
            qop: protect::digest::Qop::AuthInt,
            method: b"INVITE",
            uri: b"sip:bob@example.com",
            body,
        };
        String::from_utf8(digest.response().as_bytes().to_vec()).unwrap()
    };
    assert_eq!(response(&answers[2]), digest(SDP));
    assert_ne!(response(&answers[2]), digest(b"another body"));
    scene.reply(486, "d", "", 20);
    scene.end();
}

/// Every ACK of a 2xx has the credentials of its INVITE (RFC 3261 section 13.2.2.4).
#[test]
fn ack_of_a_challenged_invite_carries_credentials() {
    let mut scene = scene_with(
        |invite| {
            invite.login = Some(Login {
                user: b"alice",
                password: b"secret",
            });
        },
        EndpointConfig::default(),
    );
    let challenge =
        "Proxy-Authenticate: Digest realm=\"x\", nonce=\"n1\", qop=\"auth\", algorithm=MD5\r\n";
    let sent = scene.reply(407, "a", challenge, 10);
    scene.invite = sent
        .into_iter()
        .find(|text| text.starts_with("INVITE "))
        .unwrap();
    let credentials = header(&scene.invite, HeaderId::ProxyAuthorization);
    assert!(credentials.is_some());
    let ack = scene.reply(200, "one", &contact(21), 20);
    assert_eq!(header(&ack[0], HeaderId::ProxyAuthorization), credentials);
    let again = scene.reply(200, "one", &contact(21), 520);
    for id in [HeaderId::Via, HeaderId::CSeq, HeaderId::ProxyAuthorization] {
        assert_eq!(header(&again[0], id), header(&ack[0], id));
    }
    let late = scene.reply(200, "two", &contact(22), 600);
    assert!(late[0].starts_with("ACK sip:bob@192.0.2.22:5060 SIP/2.0"));
    assert_eq!(header(&late[0], HeaderId::ProxyAuthorization), credentials);
    scene.receive(&Scene::reply_to(&late[1], 200, "", ""), 610);
}

/// Some servers accept each nonce once, and do not write `stale`. BYE with such a nonce is repeated, or the peer stays
/// in the call.
#[test]
fn reused_nonce_is_replaced_without_stale() {
    let change = |invite: &mut Invite<'_>| {
        invite.login = Some(Login {
            user: b"alice",
            password: b"secret",
        });
    };
    let mut scene = scene_with(change, EndpointConfig::default());
    let challenge = |nonce: &str| {
        format!("Proxy-Authenticate: Digest realm=\"x\", nonce=\"{nonce}\", qop=\"auth\"\r\n")
    };
    let sent = scene.reply(407, "a", &challenge("n1"), 10);
    let again = sent.into_iter().find(|text| text.starts_with("INVITE "));
    scene.invite = again.unwrap();
    scene.reply(200, "one", &contact(21), 20);
    let content = MessageContent::default();
    let (leg, endpoint) = (scene.leg, &mut scene.host.endpoint);
    endpoint.bye(leg, &content, ms(1_000)).unwrap();
    let mut bye = scene.host.datagrams().remove(0);
    for (nonce, next) in [("n1", "n2"), ("n2", "n3")] {
        let credentials = header(&bye, HeaderId::ProxyAuthorization).unwrap();
        let used = format!("nonce=\"{nonce}\"");
        assert!(credentials.contains(&used), "{credentials}");
        let refusal = Scene::reply_to(&bye, 407, "", &challenge(next));
        let mut sent = scene.receive(&refusal, 1_100);
        match nonce {
            "n1" => bye = sent.remove(0),
            // The first use of a nonce: the password is wrong.
            _ => assert!(sent.is_empty(), "{sent:?}"),
        }
    }
    let ended = RecordedIndication::Ended(leg, Ending::Local);
    assert_eq!(*scene.host.log.last(), ended);
    scene.end();
}

#[test]
fn challenge_without_credentials_is_indicated() {
    let mut scene = scene();
    scene.reply(
        407,
        "a",
        "Proxy-Authenticate: Digest realm=\"x\", nonce=\"n\"\r\n",
        10,
    );
    assert_eq!(
        scene.host.log.indications,
        [RecordedIndication::Failed(
            scene.leg,
            Failure::Response,
            407
        )]
    );
    scene.end();
}

#[test]
fn challenged_register_and_bye_carry_credentials() {
    let mut host = Host::new("192.0.2.1:5060", EndpointConfig::default(), 2);
    let target = Target::new(b"sip:example.com", host.flow(PEER));
    let outside = OutOfDialogRequest {
        user: 9,
        login: Some(Login {
            user: b"u",
            password: b"p",
        }),
        cseq: Some(41),
        ..OutOfDialogRequest::new(Method::Register, target)
    };
    host.endpoint.send(&outside, Time::ZERO).unwrap();
    let first = host.datagrams().remove(0);
    assert_eq!(header(&first, HeaderId::CSeq).unwrap(), "41 REGISTER");
    assert_eq!(
        header(&first, HeaderId::Contact),
        None,
        "set by the handler"
    );
    let challenge = "WWW-Authenticate: Digest realm=\"x\", nonce=\"n1\", qop=\"auth\"\r\n";
    let refuse = |text: &str| Scene::reply_to(text, 401, "t", challenge);
    host.datagram(refuse(&first).as_bytes(), PEER, ms(5));
    let second = host.datagrams().remove(0);
    assert_eq!(header(&second, HeaderId::CSeq).unwrap(), "42 REGISTER");
    assert_eq!(
        header(&second, HeaderId::CallId),
        header(&first, HeaderId::CallId)
    );
    assert!(header(&second, HeaderId::Authorization).is_some());
    // A new nonce with stale=true allows another attempt.
    let stale = Scene::reply_to(
        &second,
        401,
        "t",
        "WWW-Authenticate: Digest realm=\"x\", nonce=\"n2\", qop=\"auth\", stale=true\r\n",
    );
    host.datagram(stale.as_bytes(), PEER, ms(6));
    let third = host.datagrams().remove(0);
    assert!(
        header(&third, HeaderId::Authorization)
            .unwrap()
            .contains("nonce=\"n2\"")
    );
    assert!(host.log.indications.is_empty());
    host.datagram(
        Scene::reply_to(&third, 200, "t", "").as_bytes(),
        PEER,
        ms(7),
    );
    assert_eq!(
        host.log.indications,
        [RecordedIndication::OutOfDialogResponse(9, 200)]
    );
    host.run(Time::from_secs(60));
    assert!(host.endpoint.census().is_quiet());
}

/// RFC 3261 section 18.1.1: the size of each request decides, and credentials make it larger.
#[test]
fn request_with_credentials_moves_to_tcp_when_large() {
    let realm = "r".repeat(300);
    let challenge = |nonce: &str| {
        format!(
            "Proxy-Authenticate: Digest realm=\"{realm}\", nonce=\"{nonce}\", qop=\"auth\", stale=true\r\n"
        )
    };
    let body = [b'x'; 600];
    for (invites, takes_tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut host = Host::new("192.0.2.1:5060", EndpointConfig::default(), 2);
        let target = Target {
            tcp_when_large: takes_tcp,
            ..Target::new(b"sip:bob@example.com", host.flow(PEER))
        };
        let content = MessageContent::body(b"text/plain", &body);
        let login = Some(Login {
            user: b"u",
            password: b"p",
        });
        match invites {
            true => {
                let invite = Invite {
                    content,
                    login,
                    ..Invite::new(target)
                };
                host.endpoint.invite(&invite, Time::ZERO).unwrap();
            }
            false => {
                let outside = OutOfDialogRequest {
                    content,
                    login,
                    ..OutOfDialogRequest::new(Method::Message, target)
                };
                host.endpoint.send(&outside, Time::ZERO).unwrap();
            }
        }
        let first = host.datagrams().remove(0);
        let refused = Scene::reply_to(&first, 407, "t", &challenge("n1"));
        host.datagram(refused.as_bytes(), PEER, ms(5));
        let mut sent = host.drain();
        sent.retain(|sent| !matches!(sent, Sent::Datagram(_, text) if text.starts_with(b"ACK ")));
        if !takes_tcp {
            assert!(matches!(&sent[..], [Sent::Datagram(..)]), "{sent:?}");
            continue;
        }
        let [Sent::Connect(connection, _), Sent::Stream(_, bytes)] = &sent[..] else {
            panic!("{sent:?}");
        };
        let second = String::from_utf8_lossy(bytes).into_owned();
        let via = header(&second, HeaderId::Via).unwrap();
        assert!(via.starts_with("SIP/2.0/TCP 192.0.2.1:5060;"), "{via}");
        assert!(header(&second, HeaderId::ProxyAuthorization).is_some());
        // The peer refuses TCP: UDP, also for another repetition.
        let closed = Input::Closed {
            connection: *connection,
            reason: engine::CloseReason::ConnectFailed,
        };
        host.feed(closed, ms(10));
        let again = host.datagrams().remove(0);
        assert_eq!(again, second.replacen("SIP/2.0/TCP", "SIP/2.0/UDP", 1));
        let refused = Scene::reply_to(&again, 407, "t", &challenge("n2"));
        host.datagram(refused.as_bytes(), PEER, ms(15));
        let third = host.datagrams();
        let last = third.iter().find(|text| method(text) != "ACK").unwrap();
        assert!(
            header(last, HeaderId::ProxyAuthorization)
                .unwrap()
                .contains("nonce=\"n2\"")
        );
    }
}

#[test]
fn retry_after_422_uses_the_larger_interval() {
    let config = EndpointConfig {
        session: Some(SessionConfig {
            expires: 120,
            min_se: 90,
        }),
        ..EndpointConfig::default()
    };
    let mut scene = scene_with(|_| {}, config);
    assert_eq!(
        header(&scene.invite, HeaderId::SessionExpires).unwrap(),
        "120"
    );
    let sent = scene.reply(422, "a", "Min-SE: 500\r\n", 10);
    let second = sent.iter().find(|text| method(text) == "INVITE").unwrap();
    assert_eq!(header(second, HeaderId::SessionExpires).unwrap(), "500");
    assert_eq!(header(second, HeaderId::MinSe).unwrap(), "500");
    scene.invite = second.clone();
    // A second 422 with the same Min-SE is not retried.
    scene.reply(422, "a", "Min-SE: 500\r\n", 20);
    assert_eq!(
        scene.host.log.indications,
        [RecordedIndication::Failed(
            scene.leg,
            Failure::Response,
            422
        )]
    );
    scene.end();
}

#[test]
fn reliable_provisional_responses_are_acknowledged_in_order_and_once() {
    let mut scene = scene();
    let leg = scene.leg;
    let reliable = |rseq: u32| format!("Require: 100rel\r\nRSeq: {rseq}\r\n{}", contact(21));
    let sent = scene.reply(183, "one", &reliable(77), 10);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].starts_with("PRACK sip:bob@192.0.2.21:5060 SIP/2.0"));
    assert_eq!(header(&sent[0], HeaderId::RAck).unwrap(), "77 1 INVITE");
    assert_eq!(header(&sent[0], HeaderId::CSeq).unwrap(), "2 PRACK");
    assert!(
        scene.reply(183, "one", &reliable(77), 20).is_empty(),
        "repeated"
    );
    assert!(
        scene.reply(180, "one", &reliable(79), 30).is_empty(),
        "out of order"
    );
    let next = scene.reply(180, "one", &reliable(78), 40);
    assert_eq!(header(&next[0], HeaderId::RAck).unwrap(), "78 1 INVITE");
    for prack in [&sent[0], &next[0]] {
        scene.receive(&Scene::reply_to(prack, 200, "", ""), 50);
    }
    assert_eq!(
        scene.host.log.count(
            |s| matches!(s, RecordedIndication::Progressed(l, Some(Fork(0)), _, true) if *l == leg)
        ),
        2
    );
    scene.reply(486, "one", "", 60);
    scene.end();
}

/// RFC 3262 section 3: another one may follow before the PRACK.
#[test]
fn each_reliable_response_gets_a_prack_of_its_own() {
    let change = |invite: &mut Invite<'_>| invite.prack = Prack::Handler;
    let mut scene = scene_with(change, EndpointConfig::default());
    let leg = scene.leg;
    for (status, rseq) in [(183, 77), (180, 78)] {
        let reliable = format!("Require: 100rel\r\nRSeq: {rseq}\r\n{}", contact(21));
        assert!(scene.reply(status, "one", &reliable, 10).is_empty());
    }
    let content = MessageContent::default();
    for (rseq, at) in [(77, 20), (78, 30)] {
        let sent = scene.host.endpoint.prack(leg, Fork(0), &content, ms(at));
        sent.unwrap();
        let prack = scene.host.datagrams().remove(0);
        let acknowledged = header(&prack, HeaderId::RAck).unwrap();
        assert_eq!(acknowledged, format!("{rseq} 1 INVITE"));
        scene.receive(&Scene::reply_to(&prack, 200, "", ""), at + 5);
    }
    let more = scene.host.endpoint.prack(leg, Fork(0), &content, ms(40));
    assert!(matches!(more, Err(Refused::State)));
    scene.reply(486, "one", "", 60);
    scene.end();
}

#[test]
fn responses_with_a_foreign_via_or_a_guessed_branch_are_dropped() {
    let mut scene = scene();
    let via = header(&scene.invite, HeaderId::Via).unwrap();
    let ok = Scene::reply_to(&scene.invite, 200, "x", &contact(21));
    let foreign = ok.replace("192.0.2.1:5060;branch", "192.0.2.77:5060;branch");
    assert!(scene.receive(&foreign, 1).is_empty());
    assert_eq!(
        scene.host.endpoint.drops().get(DropReason::SipViaMismatch),
        1
    );
    // Two Vias, in one line or two: misrouted (RFC 3261 section 8.1.3.3).
    let other = "SIP/2.0/UDP 192.0.2.77;branch=z9hG4bKother";
    for two in [format!("{via}, {other}"), format!("{via}\r\nVia: {other}")] {
        assert!(scene.receive(&ok.replace(&via, &two), 1).is_empty());
    }
    assert_eq!(
        scene.host.endpoint.drops().get(DropReason::SipViaMismatch),
        3
    );
    let branch = via.split_once("z9hG4bK").unwrap().1;
    let (branch, _) = branch.split_once(';').unwrap_or((branch, ""));
    let mut guessed = branch.to_string();
    let last = if guessed.ends_with('0') { "1" } else { "0" };
    guessed.replace_range(23..24, last);
    assert!(scene.receive(&ok.replace(branch, &guessed), 2).is_empty());
    assert_eq!(
        scene
            .host
            .endpoint
            .drops()
            .get(DropReason::SipStrayResponse),
        1
    );
    assert!(scene.host.log.indications.is_empty());
    assert_eq!(scene.receive(&ok, 3).len(), 1);
}

/// RFC 3311 section 4: Allow of a provisional response holds if the 2xx has none.
#[test]
fn allow_of_an_early_dialog_holds_after_the_answer() {
    for (early, answer, allows) in [
        ("UPDATE", "", true),
        ("UPDATE", "INVITE", false),
        ("", "UPDATE", true),
        ("", "", false),
    ] {
        let mut scene = scene();
        let allow = |methods: &str| match methods {
            "" => String::new(),
            methods => format!("Allow: {methods}\r\n"),
        };
        scene.reply(180, "one", &(contact(21) + &allow(early)), 20);
        scene.reply(200, "one", &(contact(21) + &allow(answer)), 40);
        let known = scene.host.endpoint.peer_allows_update(scene.leg);
        assert_eq!(known, Some(allows), "{early}, {answer}");
    }
}
