//! Conferences of a border with several workers: all callers of a number meet, whichever worker's socket receives the
//! call, and however the number results.

use crate::conference_phones;
use crate::virtual_network;

use border::conferences::{ConferenceName, ConferenceReply, ConferenceRequest, worker_of};
use codec::Kind;
use conference_phones::*;
use engine::Transport;
use sip::{Failure, Login, MessageContent};
use std::net::SocketAddr;
use std::time::Duration;
use virtual_network::*;
use wire::sip::Method;

const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[conference]]\nname='meeting'\nregex='8\\d\\d'\nmax_participants=9\nmax_conferences=3\ntones='none'\n";

fn with(workers: u8, more: &str) -> String {
    format!("{BORDER}{more}\n[sip]\nworkers={workers}\n")
}

/// A conference number for each of the workers, in their order.
fn numbers(workers: u8) -> Vec<String> {
    let number = |worker| {
        let mut all = (800..900).map(|number: u16| number.to_string());
        all.find(|number| worker_of(number, workers) == worker)
    };
    (0..workers).map(|worker| number(worker).unwrap()).collect()
}

fn uri(number: &str) -> String {
    format!("sip:{number}@192.0.2.1")
}

/// Participants of each worker.
fn participants(net: &mut VirtualNetwork) -> Vec<usize> {
    net.each_worker(|border, _| border.census().participants)
}

/// Calls; the result is not checked.
fn call_number(net: &mut VirtualNetwork, number: u8, uri: &str) -> usize {
    let phone = net.phone(
        &format!("10.1.1.{number}:5060"),
        PhoneBehaviour::answering(SDP_A),
    );
    net.call(phone, uri, OUT, &MessageContent::sdp(SDP_A.as_bytes()));
    net.run(millis(300));
    phone
}

fn failed(net: &VirtualNetwork, phone: usize, status: u16) -> bool {
    net.has(phone, |event| {
        *event == PhoneEvent::Failed(Failure::Response, status)
    })
}

fn answered(net: &VirtualNetwork, phone: usize) -> bool {
    net.has(phone, |event| *event == PhoneEvent::Answered)
}

/// From now on a phone sends from another port, possibly to another worker.
fn moves(net: &mut VirtualNetwork, talker: &ConferencePhone, port: u16) {
    let own = net.phones[talker.phone].address;
    let other = SocketAddr::new(own.ip(), port);
    net.source_aliases.insert(own, other);
    net.aliases.insert(other, own);
}

#[test]
fn worker_of_a_number_is_stable_across_starts() {
    // Computed with SipHash-1-3 under a key of zeros; capacity planning may rely on it.
    let owners = |of| ["800", "801", "802", "803", "+4930800"].map(|number| worker_of(number, of));
    assert_eq!(owners(1), [0; 5]);
    assert_eq!((owners(2), owners(3)), ([1, 1, 0, 0, 0], [2, 1, 1, 1, 1]));
    let mut counts = [0; 4];
    for number in 0..4_000 {
        counts[usize::from(worker_of(&number.to_string(), 4))] += 1;
    }
    assert!(
        counts.iter().all(|count| (900..1_100).contains(count)),
        "{counts:?}"
    );
}

fn all_who_call_a_number_meet(workers: u8) {
    let mut net = VirtualNetwork::with_workers(&with(workers, ""), u64::from(workers));
    // Datagrams are duplicated, too.
    net.link_conditions.repeat = 0.5;
    let numbers = numbers(workers);
    let mut talkers = Vec::new();
    for (at, number) in numbers.iter().enumerate() {
        for own in 0..3 {
            let host = 1 + talkers.len() as u8;
            let hz = 350.0 + 250.0 * (own * numbers.len() + at) as f64;
            talkers.push(ConferencePhone::dial(
                &mut net,
                host,
                &uri(number),
                Kind::Pcma,
                20,
                hz,
            ));
        }
    }
    assert_eq!(participants(&mut net), vec![3; usize::from(workers)]);
    let conferences = net.each_worker(|_, forwarder| forwarder.bridge().conferences());
    assert_eq!(conferences, vec![1; usize::from(workers)]);
    talk(&mut net, &mut talkers, 1_500);
    let hears = |talkers: &[ConferencePhone]| {
        for (at, listener) in talkers.iter().enumerate() {
            for (of, speaker) in talkers.iter().enumerate() {
                let level = listener.level(speaker.hz);
                let meets = at / 3 == of / 3 && at != of;
                assert!(
                    (meets && level > -7.0) || (!meets && level < -30.0),
                    "{at} hears {of} at {level:.1} dB"
                );
            }
        }
    };
    hears(&talkers);
    // In-dialog requests come from other ports: hold, resume, refuse, end.
    for (at, talker) in talkers.iter().enumerate() {
        moves(&mut net, talker, 7_000 + 13 * at as u16);
    }
    let change = |net: &mut VirtualNetwork, talker: &ConferencePhone, direction: &str, method| {
        let leg = talker.leg;
        let offer = sdp(talker.own, Kind::Pcma, 20, &format!("a={direction}\r\n"));
        net.command(talker.phone, |endpoint, now| {
            endpoint
                .request(leg, method, &MessageContent::sdp(offer.as_bytes()), now)
                .unwrap();
        });
        net.run(millis(300));
        net.last(talker.phone, |event| {
            matches!(event, PhoneEvent::Response(200, _))
        })
        .body()
    };
    for talker in &talkers {
        let body = change(&mut net, talker, "sendonly", Method::Invite);
        assert!(body.contains("a=recvonly"), "{body}");
        assert_eq!(port_of(&body), talker.to.port());
        let body = change(&mut net, talker, "sendrecv", Method::Update);
        assert!(body.contains("a=sendrecv"), "{body}");
    }
    talk(&mut net, &mut talkers, 1_500);
    hears(&talkers);
    assert!(net.handed_off() > 0);
    for (at, talker) in talkers.iter().enumerate() {
        moves(&mut net, talker, 8_000 + 11 * at as u16);
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    assert_eq!(participants(&mut net), vec![0; usize::from(workers)]);
    net.assert_quiet();
    let count = |name: &str| net.names().iter().filter(|other| **other == name).count();
    let all = talkers.len();
    assert_eq!(
        (count("conference_joined"), count("conference_left")),
        (all, all)
    );
    assert_eq!((count("call_offered"), count("call_ended")), (all, all));
    let counted = net.each_worker(|border, _| border.counters().offered);
    assert_eq!(counted, vec![3; usize::from(workers)], "each call once");
}

#[test]
fn callers_of_a_number_meet_at_one_of_two_workers() {
    all_who_call_a_number_meet(2);
}

#[test]
fn callers_of_a_number_meet_at_one_of_three_workers() {
    all_who_call_a_number_meet(3);
}

/// The worker that owns a caller's connection is rarely the one of the conference.
#[test]
fn conferences_are_reached_over_connections() {
    let config = with(3, "").replace(
        "'udp:192.0.2.1:5060'",
        "'udp:192.0.2.1:5060','tcp:192.0.2.1:5060'",
    );
    let mut net = VirtualNetwork::with_workers(&config, 9);
    let mut calls = Vec::new();
    for (at, number) in numbers(3).iter().enumerate() {
        for own in 0..4 {
            let address = format!("10.1.2.{}:5060", 1 + 4 * at + own);
            let phone = net.phone_over(&address, Transport::Tcp, PhoneBehaviour::answering(SDP_A));
            let content = MessageContent::sdp(SDP_A.as_bytes());
            let leg = net.call_with(phone, &uri(number), OUT, &content, |invite| {
                invite.target.flow.transport = Transport::Tcp;
            });
            net.run(millis(300));
            assert!(answered(&net, phone), "{:?}", net.phone_events(phone));
            calls.push((phone, leg));
        }
    }
    assert_eq!(participants(&mut net), [4, 4, 4]);
    assert!(net.handed_off() > 0);
    // Half of the connections close: in-dialog requests open new ones.
    for (phone, _) in calls.iter().step_by(2) {
        net.break_streams(*phone);
    }
    net.run(millis(100));
    for (phone, leg) in calls {
        net.command(phone, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
    }
    net.run(Duration::from_secs(40));
    assert_eq!(participants(&mut net), [0, 0, 0]);
    net.assert_quiet();
}

fn raw(method: &str, number: &str, mark: usize, port: u16, to: &str, body: &str) -> String {
    let kind = match body {
        "" => "",
        _ => "Content-Type: application/sdp\r\n",
    };
    format!(
        "{method} sip:{number}@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.50:{port};branch=z9hG4bKx{mark};rport\r\nMax-Forwards: 70\r\n\
         From: <sip:a@10.1.0.50>;tag=t{mark}\r\nTo: <sip:{number}@192.0.2.1>{to}\r\nCall-ID: call-{mark}@10.1.0.50\r\nCSeq: 1 {method}\r\n\
         Contact: <sip:a@10.1.0.50:{port}>\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A message finds its call at any socket, also with line ends in front. Only the Request-URI connects an INVITE with
/// its CANCEL and its retransmissions.
#[test]
fn retransmissions_and_cancels_find_the_call_at_any_worker() {
    for rules in [
        "",
        "\n[[rules]]\ndirection='in'\nmethod='INVITE'\nwhen='uri.user.startsWith(\"*\")'\ndo=[{ replace='Request-URI', part='user', regex='^[*]', with='8' }]",
    ] {
        let mut net = VirtualNetwork::with_workers(&with(3, rules), 4);
        let dialled = |number: &str| match rules {
            "" => number.to_owned(),
            _ => number.replacen('8', "*", 1),
        };
        for (at, number) in numbers(3).into_iter().enumerate() {
            let number = dialled(&number);
            let invite = format!("\r\n{}", raw("INVITE", &number, at, 6_000, "", SDP_A));
            for port in [6_000, 6_001, 6_009] {
                net.send_raw(&format!("10.1.0.50:{port}"), OUT, invite.as_bytes());
                net.run(millis(100));
            }
            let mut all = vec![0; 3];
            all[..=at].fill(1);
            assert_eq!(participants(&mut net), all, "{rules}");
            let ways: Vec<u16> = (6_020..6_030).collect();
            for port in &ways {
                // Each is a transaction with the same branch; of retransmissions only the first counts.
                let cancel = raw("CANCEL", &number, at, 6_000, "", "");
                net.send_raw(&format!("10.1.0.50:{port}"), OUT, cancel.as_bytes());
                net.run(millis(100));
            }
            let said: Vec<String> = net
                .media
                .drain(..)
                .map(|(_, _, bytes)| String::from_utf8_lossy(&bytes).into_owned())
                .filter(|text| text.contains("CSeq: 1 CANCEL"))
                .collect();
            assert!(!said.is_empty());
            // The call is answered: a CANCEL has no effect, but gets a 200 (RFC 3261 section 9.2).
            assert!(
                said.iter().all(|text| text.starts_with("SIP/2.0 200")),
                "{said:#?}"
            );
        }
        // Without an ACK they end by themselves.
        net.run(Duration::from_secs(80));
        net.assert_quiet();
    }
}

/// An authenticated caller sends two INVITEs; rules that depend on the user are evaluated beforehand, and count and
/// refuse once.
#[test]
fn authentication_and_rules_precede_the_conference() {
    let more = "[[user]]\nname='1000'\npassword='hush'\n[[user]]\nname='1001'\npassword='hush'\n\
        [[rules]]\ndirection='in'\nmethod='INVITE'\nwhen='uri.user == \"conference\" && user == \"1000\"'\n\
        do=[{ rewrite='Request-URI', part='user', value='NUMBER' }, { log='to NUMBER' }]\n\
        [[rules]]\ndirection='in'\nmethod='INVITE'\nwhen='uri.user == \"conference\"'\ndo=[{ reject=403 }]\n";
    for number in numbers(2) {
        let config = with(2, &more.replace("NUMBER", &number)).replace(
            "kind='access'\n",
            "kind='access'\nauthenticate='digest'\nrates={ calls=1000 }\n",
        );
        let mut net = VirtualNetwork::with_workers(&config, 5);
        let dial =
            |net: &mut VirtualNetwork, host: u8, user: &'static str, password: &'static str| {
                let phone = net.phone(
                    &format!("10.1.1.{host}:5060"),
                    PhoneBehaviour::answering(SDP_A),
                );
                let content = MessageContent::sdp(SDP_A.as_bytes());
                let called = "sip:conference@192.0.2.1";
                net.call_with(phone, called, OUT, &content, |invite| {
                    invite.from = Some(match user {
                        "1000" => b"<sip:1000@192.0.2.1>",
                        _ => b"<sip:1001@192.0.2.1>",
                    });
                    invite.login = Some(Login {
                        user: user.as_bytes(),
                        password: password.as_bytes(),
                    });
                });
                net.run(millis(300));
                phone
            };
        for host in 1..=4 {
            let phone = dial(&mut net, host, "1000", "hush");
            assert!(answered(&net, phone), "{:?}", net.phone_events(phone));
        }
        let phone = dial(&mut net, 5, "1001", "hush");
        assert!(failed(&net, phone, 403));
        let phone = dial(&mut net, 6, "1000", "wrong");
        assert!(failed(&net, phone, 407));
        let owner = usize::from(worker_of(&number, 2));
        let mut expected = [0, 0];
        expected[owner] = 4;
        assert_eq!(participants(&mut net), expected);
        let offered = net.each_worker(|border, _| border.counters().offered);
        // The four, and one that a rule refused; a missing or wrong authentication makes no call.
        assert_eq!(offered.iter().sum::<u64>(), 5, "{offered:?}");
        let logged = net
            .names()
            .iter()
            .filter(|name| **name == "rule_logged")
            .count();
        assert_eq!(logged, 4, "preliminary evaluation is not logged");
    }
}

/// `max_conferences` is the limit of all workers together, `max_participants` that of one conference.
#[test]
fn limits_hold_across_workers() {
    let mut net = VirtualNetwork::with_workers(
        &with(3, "").replace("max_conferences=3", "max_conferences=2"),
        6,
    );
    let numbers = numbers(3);
    let talkers: Vec<ConferencePhone> = numbers[..2]
        .iter()
        .zip(1..)
        .map(|(number, host)| {
            ConferencePhone::dial(&mut net, host, &uri(number), Kind::Pcma, 20, 440.0)
        })
        .collect();
    let phone = call_number(&mut net, 1, &uri(&numbers[2]));
    assert!(failed(&net, phone, 503));
    // A call to an existing conference is accepted.
    let phone = call_number(&mut net, 2, &uri(&numbers[1]));
    assert!(answered(&net, phone));
    hang_up(&mut net, &talkers[0]);
    let phone = call_number(&mut net, 3, &uri(&numbers[2]));
    assert!(answered(&net, phone));
    let phone = call_number(&mut net, 4, &uri(&numbers[0]));
    assert!(failed(&net, phone, 503));
    assert_eq!(participants(&mut net), [0, 2, 1]);
}

/// A source has nine wrong PINs in a row, not nine at each of the workers to which the numbers of a conference belong.
#[test]
fn wrong_pins_at_several_workers_are_one_count() {
    let mut net = VirtualNetwork::with_workers(&with(2, "pin='2468'"), 11);
    let numbers = numbers(2);
    let mut talker = ConferencePhone::dial(&mut net, 1, &uri(&numbers[0]), Kind::Pcma, 20, 440.0);
    let phone = talker.phone;
    let again = |net: &mut VirtualNetwork, talker: &mut ConferencePhone, number: &str| {
        let offer = sdp(talker.own, Kind::Pcma, 20, "");
        let content = MessageContent::sdp(offer.as_bytes());
        talker.leg = net.call(phone, &uri(number), OUT, &content);
        net.run(millis(300));
    };
    for call in [0, 1, 0] {
        if net.each_worker(|border, _| border.counters().pins_wrong) != [0, 0] {
            again(&mut net, &mut talker, &numbers[call]);
            let answer = net.last(phone, |event| *event == PhoneEvent::Answered);
            talker.to.set_port(port_of(&answer.body()));
        }
        for digit in "111122223333".chars() {
            let timestamp = net.now.as_millis() as u32 * 8;
            talker.press(&mut net, digit, timestamp);
            talk(&mut net, std::slice::from_mut(&mut talker), 500);
        }
    }
    let wrong = net.each_worker(|border, _| border.counters().pins_wrong);
    assert_eq!(wrong, [6, 3]);
    assert_eq!(participants(&mut net), [0, 0]);
    // Nine of this source: neither worker accepts its calls.
    for number in &numbers {
        again(&mut net, &mut talker, number);
        assert_eq!(participants(&mut net), [0, 0], "{number}");
    }
    assert!(failed(&net, phone, 403), "{:?}", net.phone_events(phone));
    let other = call_number(&mut net, 2, &uri(&numbers[1]));
    assert!(answered(&net, other), "another source is not concerned");
}

fn name(number: &str) -> ConferenceName {
    ConferenceName {
        conference: "meeting".to_owned(),
        number: number.to_owned(),
    }
}

/// Reply of a worker to a request.
fn ask(
    net: &mut VirtualNetwork,
    worker: usize,
    number: &str,
    request: ConferenceRequest,
) -> ConferenceReply {
    net.control_worker(worker, |border, now| {
        border.request_conference(7, &name(number), &request, now);
    });
    for _ in 0..200 {
        let replied = net.control_worker(worker, |border, _| border.next_conference_reply());
        if let Some((number, reply)) = replied {
            assert_eq!(number, 7);
            return reply;
        }
        net.run(millis(1));
    }
    panic!("no answer to {request:?}");
}

/// The owner of a conference handles queries, PIN, lock and end.
#[test]
fn owner_of_a_conference_handles_its_commands() {
    let mut net = VirtualNetwork::with_workers(&with(2, "pin='2468'"), 7);
    let numbers = numbers(2);
    for (worker, number) in numbers.iter().enumerate() {
        let host = 1 + 10 * worker as u8;
        let mut talkers = [440.0, 1_000.0]
            .into_iter()
            .zip(host..)
            .map(|(hz, host)| {
                ConferencePhone::dial(&mut net, host, &uri(number), Kind::Pcma, 20, hz)
            })
            .collect::<Vec<ConferencePhone>>();
        for index in 0..2 {
            for digit in "2468".chars() {
                let timestamp = net.now.as_millis() as u32 * 8;
                talkers[index].press(&mut net, digit, timestamp);
                talk(&mut net, &mut talkers, 200);
            }
        }
        talk(&mut net, &mut talkers, 1_500);
        assert_hears(&talkers, &[]);
        assert_eq!(
            ask(&mut net, 1 - worker, number, ConferenceRequest::Show),
            ConferenceReply::NoConference
        );
        let ConferenceReply::Conference(view, participants) =
            ask(&mut net, worker, number, ConferenceRequest::Show)
        else {
            panic!("no conference");
        };
        assert_eq!((view.participants, participants.len()), (2, 2));
        // Call numbers of workers differ, too.
        assert!(
            participants
                .iter()
                .all(|participant| (participant.call + 1) % 2 == worker as u64)
        );
        let locked = ask(&mut net, worker, number, ConferenceRequest::Lock(true));
        assert!(matches!(locked, ConferenceReply::Conference(view, _) if view.locked));
        let phone = call_number(&mut net, host, &uri(number));
        assert!(failed(&net, phone, 403));
    }
    for (worker, number) in numbers.iter().enumerate() {
        let ConferenceReply::Conferences(conferences) =
            ask(&mut net, worker, "", ConferenceRequest::List)
        else {
            panic!("no list");
        };
        let names: Vec<&str> = conferences
            .iter()
            .map(|conference| conference.name.number.as_str())
            .collect();
        assert_eq!(names, [number]);
        assert_eq!(
            ask(&mut net, worker, number, ConferenceRequest::End),
            ConferenceReply::Ended(2)
        );
    }
    net.run(Duration::from_secs(40));
    assert_eq!(participants(&mut net), [0, 0]);
    net.assert_quiet();
}

/// A new configuration reaches the workers one after the other: no conference exists twice meanwhile.
#[test]
fn reload_never_splits_a_conference() {
    let plain = with(2, "").replace("max_participants=9", "max_participants=50");
    let mut net = VirtualNetwork::with_workers(&plain.replace("regex='8", "regex='7"), 8);
    let config = || config::parse(&plain, "t").unwrap();
    let inside = net.phone("10.1.0.9:5060", PhoneBehaviour::answering(SDP_A));
    net.control_worker(0, |border, now| border.reload(config(), now));
    // Some calls reach a worker that knows the conferences, some one that does not; in case of conflict they are
    // retried.
    let mut received = [0, 0, 0];
    for (number, hosts) in numbers(2).into_iter().zip([1..=20, 21..=40]) {
        for host in hosts {
            let phone = call_number(&mut net, host, &uri(&number));
            let ways = [
                answered(&net, phone),
                failed(&net, phone, 503),
                failed(&net, phone, 404),
            ];
            let way = ways.iter().position(|way| *way).unwrap();
            received[way] += 1;
            if way == 1 {
                let refusal = net.last(phone, |event| matches!(event, PhoneEvent::Failed(..)));
                assert_eq!(refusal.header("Retry-After"), "1");
            }
        }
    }
    assert!(received.iter().all(|count| *count > 0), "{received:?}");
    let first = participants(&mut net);
    assert_eq!(first[1], 0, "the second worker has none yet");
    net.control_worker(1, |border, now| border.reload(config(), now));
    let number = &numbers(2)[1];
    net.call(
        inside,
        &uri(number),
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    net.run(millis(300));
    assert!(answered(&net, inside));
    assert_eq!(participants(&mut net), [first[0], 1]);
}
