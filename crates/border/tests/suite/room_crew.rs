//! Conferences of a border with several workers: all who call a number meet, whichever worker's socket they come to, and whatever
//! makes it the number that it is.

use crate::neighbourhood;
use crate::talkers;

use border::rooms::{RoomName, RoomReply, RoomWish, worker_of};
use codec::Kind;
use engine::Transport;
use neighbourhood::*;
use sip::{Content, Failure, Login};
use std::net::SocketAddr;
use std::time::Duration;
use talkers::*;
use wire::sip::Method;

const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[room]]\nname='meeting'\nregex='8\\d\\d'\nseats=9\nrooms=3\ntones='none'\n";

fn with(workers: u8, more: &str) -> String {
    format!("{BORDER}{more}\n[sip]\nworkers={workers}\n")
}

/// A number of a conference for each of the workers, in their order.
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

/// Participants at each worker.
fn seats(net: &mut Neighbourhood) -> Vec<usize> {
    net.each_worker(|border, _| border.census().seats)
}

/// Calls, and does not look at what comes of it.
fn knock(net: &mut Neighbourhood, number: u8, uri: &str) -> usize {
    let phone = net.phone(&format!("10.1.1.{number}:5060"), Manners::answering(SDP_A));
    net.call(phone, uri, OUT, &Content::sdp(SDP_A.as_bytes()));
    net.run(millis(300));
    phone
}

fn failed(net: &Neighbourhood, phone: usize, status: u16) -> bool {
    net.has(phone, |told| {
        *told == Told::Failed(Failure::Response, status)
    })
}

fn answered(net: &Neighbourhood, phone: usize) -> bool {
    net.has(phone, |told| *told == Told::Answered)
}

/// From now on a phone sends from another port: what it says comes to another worker, perhaps.
fn moves(net: &mut Neighbourhood, talker: &Talker, port: u16) {
    let own = net.phones[talker.phone].address;
    let other = SocketAddr::new(own.ip(), port);
    net.disguises.insert(own, other);
    net.aliases.insert(other, own);
}

#[test]
fn the_worker_of_a_number_is_the_same_after_each_start() {
    // Worked out apart from SipHash-1-3 under a key of zeros; whoever plans by them relies on it.
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
    let mut net = Neighbourhood::crew(&with(workers, ""), u64::from(workers));
    // What is sent comes twice, too.
    net.weather.repeat = 0.5;
    let numbers = numbers(workers);
    let mut talkers = Vec::new();
    for (at, number) in numbers.iter().enumerate() {
        for own in 0..3 {
            let host = 1 + talkers.len() as u8;
            let hz = 350.0 + 250.0 * (own * numbers.len() + at) as f64;
            talkers.push(Talker::dial(
                &mut net,
                host,
                &uri(number),
                Kind::Pcma,
                20,
                hz,
            ));
        }
    }
    assert_eq!(seats(&mut net), vec![3; usize::from(workers)]);
    let rooms = net.each_worker(|_, forwarder| forwarder.rooms().rooms());
    assert_eq!(rooms, vec![1; usize::from(workers)]);
    talk(&mut net, &mut talkers, 1_500);
    let hears = |talkers: &[Talker]| {
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
    // Inside of the dialog they come from other ports: held, resumed, refused, ended.
    for (at, talker) in talkers.iter().enumerate() {
        moves(&mut net, talker, 7_000 + 13 * at as u16);
    }
    let change = |net: &mut Neighbourhood, talker: &Talker, direction: &str, method| {
        let leg = talker.leg;
        let offer = sdp(talker.own, Kind::Pcma, 20, &format!("a={direction}\r\n"));
        net.tell(talker.phone, |endpoint, now| {
            endpoint
                .request(leg, method, &Content::sdp(offer.as_bytes()), now)
                .unwrap();
        });
        net.run(millis(300));
        net.last(talker.phone, |told| matches!(told, Told::Response(200, _)))
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
    assert!(net.carried() > 0);
    for (at, talker) in talkers.iter().enumerate() {
        moves(&mut net, talker, 8_000 + 11 * at as u16);
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    assert_eq!(seats(&mut net), vec![0; usize::from(workers)]);
    net.assert_quiet();
    let count = |name: &str| net.names().iter().filter(|other| **other == name).count();
    let all = talkers.len();
    assert_eq!((count("room_joined"), count("room_left")), (all, all));
    assert_eq!((count("call_offered"), count("call_ended")), (all, all));
    let counted = net.each_worker(|border, _| border.counters().offered);
    assert_eq!(counted, vec![3; usize::from(workers)], "each once");
}

#[test]
fn all_who_call_a_number_meet_at_one_of_two_workers() {
    all_who_call_a_number_meet(2);
}

#[test]
fn all_who_call_a_number_meet_at_one_of_three_workers() {
    all_who_call_a_number_meet(3);
}

/// The worker that holds a caller's connection is seldom the one whose conference he calls.
#[test]
fn conferences_are_called_over_connections() {
    let config = with(3, "").replace(
        "'udp:192.0.2.1:5060'",
        "'udp:192.0.2.1:5060','tcp:192.0.2.1:5060'",
    );
    let mut net = Neighbourhood::crew(&config, 9);
    let mut calls = Vec::new();
    for (at, number) in numbers(3).iter().enumerate() {
        for own in 0..4 {
            let address = format!("10.1.2.{}:5060", 1 + 4 * at + own);
            let phone = net.phone_over(&address, Transport::Tcp, Manners::answering(SDP_A));
            let content = Content::sdp(SDP_A.as_bytes());
            let leg = net.call_with(phone, &uri(number), OUT, &content, |invite| {
                invite.target.flow.transport = Transport::Tcp;
            });
            net.run(millis(300));
            assert!(answered(&net, phone), "{:?}", net.told(phone));
            calls.push((phone, leg));
        }
    }
    assert_eq!(seats(&mut net), [4, 4, 4]);
    assert!(net.carried() > 0);
    // Half of the connections break: who speaks inside of his call opens another.
    for (phone, _) in calls.iter().step_by(2) {
        net.break_streams(*phone);
    }
    net.run(millis(100));
    for (phone, leg) in calls {
        net.tell(phone, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
    }
    net.run(Duration::from_secs(40));
    assert_eq!(seats(&mut net), [0, 0, 0]);
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

/// By whichever way a message of a call comes, and with line ends in front of it: it finds the call. Nothing stands between an INVITE
/// and its CANCEL or its repetition but the Request-URI.
#[test]
fn repetitions_and_cancels_find_the_call_by_any_way() {
    for rules in [
        "",
        "\n[[rules]]\ndirection='in'\nmethod='INVITE'\nwhen='uri.user.startsWith(\"*\")'\ndo=[{ replace='Request-URI', part='user', regex='^[*]', with='8' }]",
    ] {
        let mut net = Neighbourhood::crew(&with(3, rules), 4);
        let dialled = |number: &str| match rules {
            "" => number.to_owned(),
            _ => number.replacen('8', "*", 1),
        };
        for (at, number) in numbers(3).into_iter().enumerate() {
            let number = dialled(&number);
            let invite = format!("\r\n{}", raw("INVITE", &number, at, 6_000, "", SDP_A));
            for port in [6_000, 6_001, 6_009] {
                net.throw(&format!("10.1.0.50:{port}"), OUT, invite.as_bytes());
                net.run(millis(100));
            }
            let mut all = vec![0; 3];
            all[..=at].fill(1);
            assert_eq!(seats(&mut net), all, "{rules}");
            let ways: Vec<u16> = (6_020..6_030).collect();
            for port in &ways {
                // Each is a transaction of the same branch: of repetitions only the first is one.
                let cancel = raw("CANCEL", &number, at, 6_000, "", "");
                net.throw(&format!("10.1.0.50:{port}"), OUT, cancel.as_bytes());
                net.run(millis(100));
            }
            let said: Vec<String> = net
                .media
                .drain(..)
                .map(|(_, _, bytes)| String::from_utf8_lossy(&bytes).into_owned())
                .filter(|text| text.contains("CSeq: 1 CANCEL"))
                .collect();
            assert!(!said.is_empty());
            // The call is answered: a CANCEL does nothing any more, but is taken (RFC 3261 section 9.2).
            assert!(
                said.iter().all(|text| text.starts_with("SIP/2.0 200")),
                "{said:#?}"
            );
        }
        // Nobody has confirmed them: they end by themselves.
        net.run(Duration::from_secs(80));
        net.assert_quiet();
    }
}

/// Whoever has to prove who he is comes twice; rules that look at who he is are told beforehand, and count and refuse once.
#[test]
fn proof_and_rules_come_before_the_conference() {
    let more = "[[user]]\nname='1000'\npassword='hush'\n[[user]]\nname='1001'\npassword='hush'\n\
        [[rules]]\ndirection='in'\nmethod='INVITE'\nwhen='uri.user == \"conference\" && user == \"1000\"'\n\
        do=[{ rewrite='Request-URI', part='user', value='NUMBER' }, { log='to NUMBER' }]\n\
        [[rules]]\ndirection='in'\nmethod='INVITE'\nwhen='uri.user == \"conference\"'\ndo=[{ reject=403 }]\n";
    for number in numbers(2) {
        let config = with(2, &more.replace("NUMBER", &number)).replace(
            "kind='access'\n",
            "kind='access'\nauthenticate='digest'\nrates={ calls=1000 }\n",
        );
        let mut net = Neighbourhood::crew(&config, 5);
        let dial =
            |net: &mut Neighbourhood, host: u8, user: &'static str, password: &'static str| {
                let phone = net.phone(&format!("10.1.1.{host}:5060"), Manners::answering(SDP_A));
                let content = Content::sdp(SDP_A.as_bytes());
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
            assert!(answered(&net, phone), "{:?}", net.told(phone));
        }
        let phone = dial(&mut net, 5, "1001", "hush");
        assert!(failed(&net, phone, 403));
        let phone = dial(&mut net, 6, "1000", "wrong");
        assert!(failed(&net, phone, 407));
        let owner = usize::from(worker_of(&number, 2));
        let mut expected = [0, 0];
        expected[owner] = 4;
        assert_eq!(seats(&mut net), expected);
        let offered = net.each_worker(|border, _| border.counters().offered);
        // The four, and one that was refused by a rule; proof that is missing or wrong makes no call.
        assert_eq!(offered.iter().sum::<u64>(), 5, "{offered:?}");
        let logged = net
            .names()
            .iter()
            .filter(|name| **name == "rule_logged")
            .count();
        assert_eq!(logged, 4, "what is judged beforehand is not told");
    }
}

/// `rooms` are those of all workers, `seats` those of one conference.
#[test]
fn limits_hold_across_workers() {
    let mut net = Neighbourhood::crew(&with(3, "").replace("rooms=3", "rooms=2"), 6);
    let numbers = numbers(3);
    let talkers: Vec<Talker> = numbers[..2]
        .iter()
        .zip(1..)
        .map(|(number, host)| Talker::dial(&mut net, host, &uri(number), Kind::Pcma, 20, 440.0))
        .collect();
    let phone = knock(&mut net, 1, &uri(&numbers[2]));
    assert!(failed(&net, phone, 503));
    // Who comes to one that takes place comes in.
    let phone = knock(&mut net, 2, &uri(&numbers[1]));
    assert!(answered(&net, phone));
    hang_up(&mut net, &talkers[0]);
    let phone = knock(&mut net, 3, &uri(&numbers[2]));
    assert!(answered(&net, phone));
    let phone = knock(&mut net, 4, &uri(&numbers[0]));
    assert!(failed(&net, phone, 503));
    assert_eq!(seats(&mut net), [0, 2, 1]);
}

fn name(number: &str) -> RoomName {
    RoomName {
        room: "meeting".to_owned(),
        number: number.to_owned(),
    }
}

/// What a worker says to a wish.
fn ask(net: &mut Neighbourhood, worker: usize, number: &str, wish: RoomWish) -> RoomReply {
    net.operate_worker(worker, |border, now| {
        border.ask_rooms(7, &name(number), &wish, now);
    });
    for _ in 0..200 {
        let replied = net.operate_worker(worker, |border, _| border.next_room_reply());
        if let Some((number, reply)) = replied {
            assert_eq!(number, 7);
            return reply;
        }
        net.run(millis(1));
    }
    panic!("no answer to {wish:?}");
}

/// The one who has a conference is asked; PIN, lock and end are his.
#[test]
fn the_worker_of_a_conference_commands_it() {
    let mut net = Neighbourhood::crew(&with(2, "pin='2468'"), 7);
    let numbers = numbers(2);
    for (worker, number) in numbers.iter().enumerate() {
        let host = 1 + 10 * worker as u8;
        let mut talkers = [440.0, 1_000.0]
            .into_iter()
            .zip(host..)
            .map(|(hz, host)| Talker::dial(&mut net, host, &uri(number), Kind::Pcma, 20, hz))
            .collect::<Vec<Talker>>();
        for who in 0..2 {
            for digit in "2468".chars() {
                let timestamp = net.now.as_millis() as u32 * 8;
                talkers[who].press(&mut net, digit, timestamp);
                talk(&mut net, &mut talkers, 200);
            }
        }
        talk(&mut net, &mut talkers, 1_500);
        assert_hears(&talkers, &[]);
        assert_eq!(
            ask(&mut net, 1 - worker, number, RoomWish::Show),
            RoomReply::NoRoom
        );
        let RoomReply::Room(view, seats) = ask(&mut net, worker, number, RoomWish::Show) else {
            panic!("no conference");
        };
        assert_eq!((view.seats, seats.len()), (2, 2));
        // Numbers of calls are apart, too.
        assert!(
            seats
                .iter()
                .all(|seat| (seat.call + 1) % 2 == worker as u64)
        );
        let locked = ask(&mut net, worker, number, RoomWish::Lock(true));
        assert!(matches!(locked, RoomReply::Room(view, _) if view.locked));
        let phone = knock(&mut net, host, &uri(number));
        assert!(failed(&net, phone, 403));
    }
    for (worker, number) in numbers.iter().enumerate() {
        let RoomReply::Rooms(rooms) = ask(&mut net, worker, "", RoomWish::List) else {
            panic!("no list");
        };
        let names: Vec<&str> = rooms.iter().map(|room| room.name.number.as_str()).collect();
        assert_eq!(names, [number]);
        assert_eq!(
            ask(&mut net, worker, number, RoomWish::End),
            RoomReply::Ended(2)
        );
    }
    net.run(Duration::from_secs(40));
    assert_eq!(seats(&mut net), [0, 0]);
    net.assert_quiet();
}

/// A new configuration comes to the workers one after the other: no conference has two places meanwhile.
#[test]
fn while_a_configuration_is_taken_over_nobody_gets_into_the_wrong_place() {
    let plain = with(2, "").replace("seats=9", "seats=50");
    let mut net = Neighbourhood::crew(&plain.replace("regex='8", "regex='7"), 8);
    let config = || border::config::parse(&plain, "t").unwrap();
    let inside = net.phone("10.1.0.9:5060", Manners::answering(SDP_A));
    net.operate_worker(0, |border, now| border.reload(config(), now));
    // Some come to a worker that knows the conferences, some to one that does not; where they would part, they come again.
    let mut heard = [0, 0, 0];
    for (number, hosts) in numbers(2).into_iter().zip([1..=20, 21..=40]) {
        for host in hosts {
            let phone = knock(&mut net, host, &uri(&number));
            let ways = [
                answered(&net, phone),
                failed(&net, phone, 503),
                failed(&net, phone, 404),
            ];
            let way = ways.iter().position(|way| *way).unwrap();
            heard[way] += 1;
            if way == 1 {
                let refusal = net.last(phone, |told| matches!(told, Told::Failed(..)));
                assert_eq!(refusal.header("Retry-After"), "1");
            }
        }
    }
    assert!(heard.iter().all(|count| *count > 0), "{heard:?}");
    let first = seats(&mut net);
    assert_eq!(first[1], 0, "the second knows none yet");
    net.operate_worker(1, |border, now| border.reload(config(), now));
    let number = &numbers(2)[1];
    net.call(inside, &uri(number), OUT, &Content::sdp(SDP_A.as_bytes()));
    net.run(millis(300));
    assert!(answered(&net, inside));
    assert_eq!(seats(&mut net), [first[0], 1]);
}
