//! Conferences that are commanded from outside, and such with a PIN: who is heard, who is let in, and what is told.

use crate::neighbourhood;
use crate::talkers;

use border::rooms::{MAX_QUESTIONS, RoomName, RoomReply, RoomView, RoomWish, SeatView};
use codec::Kind;
use engine::Note;
use media::room::Muted;
use neighbourhood::*;
use sip::{Content, Ending, Failure};
use std::time::Duration;
use talkers::*;

const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[room]]\nname='meeting'\nnumber=['800','801']\nseats=4\nrooms=2\ntones='none'\n";

fn name(number: &str) -> RoomName {
    RoomName {
        room: "meeting".to_owned(),
        number: number.to_owned(),
    }
}

/// Asks, and waits for the answer.
fn ask(net: &mut Neighbourhood, number: &str, wish: RoomWish) -> RoomReply {
    net.operate(|border, now| border.ask_rooms(7, &name(number), &wish, now));
    for _ in 0..200 {
        if let Some((number, reply)) = net.border.next_room_reply() {
            assert_eq!(number, 7);
            return reply;
        }
        net.run(millis(1));
    }
    panic!("no answer to {wish:?}");
}

fn room(net: &mut Neighbourhood, number: &str) -> (RoomView, Vec<SeatView>) {
    match ask(net, number, RoomWish::Show) {
        RoomReply::Room(room, seats) => (room, seats),
        other => panic!("{other:?}"),
    }
}

fn seat(reply: RoomReply) -> SeatView {
    match reply {
        RoomReply::Seat(seat) => seat,
        other => panic!("{other:?}"),
    }
}

/// The call that asks for `number` with PCMA; it is not looked at what comes of it.
fn knock(net: &mut Neighbourhood, number: u8, uri: &str) -> usize {
    let phone = net.phone(&format!("10.1.0.{number}:5060"), Manners::answering(SDP_A));
    let own = format!("10.1.0.{number}:4000").parse().unwrap();
    let offer = sdp(own, Kind::Pcma, 20, "");
    net.call(phone, uri, OUT, &Content::sdp(offer.as_bytes()));
    net.run(millis(200));
    phone
}

#[test]
fn participants_are_shown_silenced_and_removed() {
    let mut net = Neighbourhood::new(BORDER, 1);
    assert_eq!(
        ask(&mut net, "", RoomWish::List),
        RoomReply::Rooms(Vec::new())
    );
    assert_eq!(ask(&mut net, "800", RoomWish::Show), RoomReply::NoRoom);
    assert_eq!(ask(&mut net, "800", RoomWish::End), RoomReply::NoRoom);
    let mut talkers = company(&mut net);
    talk(&mut net, &mut talkers, 1_500);
    let RoomReply::Rooms(rooms) = ask(&mut net, "", RoomWish::List) else {
        panic!("no list");
    };
    let shown = (rooms.len(), &rooms[0].name, rooms[0].seats, rooms[0].locked);
    assert_eq!(shown, (1, &name("800"), 4, false));
    let (_, seats) = room(&mut net, "800");
    assert_eq!(seats.len(), 4);
    for (seat, talker) in seats.iter().zip(&talkers) {
        assert_eq!(seat.codec, talker.kind.name());
        let packet_ms = if talker.kind == Kind::G722 { 30 } else { 20 };
        assert_eq!(seat.packet_ms, packet_ms);
        assert!(
            seat.from.contains(&format!("p{}@", talker.phone)),
            "{}",
            seat.from
        );
        assert!(!seat.call_id.is_empty());
        // Of 1.5 s the first packets and those on their way may be missing.
        let least = 1_400 / u64::from(packet_ms);
        assert!(seat.received >= least && seat.sent >= least - 5, "{seat:?}");
        assert_eq!((seat.lost, seat.muted, seat.waits), (0, Muted::No, false));
        assert!(
            seat.speaks && seat.jitter_ms.is_some_and(|jitter| jitter < 1.0),
            "{seat:?}"
        );
    }
    // Silenced: the others hear him no more, and digits do not help him.
    let first = seats[0].call;
    let muted = seat(ask(&mut net, "800", RoomWish::Mute(first, true)));
    assert_eq!((muted.call, muted.muted), (first, Muted::ByOrder));
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[0]);
    talkers[0].press(&mut net, '*', 90_000);
    talkers[0].press(&mut net, '6', 91_000);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[0]);
    let heard = seat(ask(&mut net, "800", RoomWish::Mute(first, false)));
    assert_eq!(heard.muted, Muted::No);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    // A number that is none, and one of another conference.
    assert_eq!(
        ask(&mut net, "800", RoomWish::ShowSeat(99)),
        RoomReply::NoSeat
    );
    assert_eq!(
        ask(&mut net, "800", RoomWish::EndSeat(99)),
        RoomReply::NoSeat
    );
    assert_eq!(
        ask(&mut net, "801", RoomWish::EndSeat(first)),
        RoomReply::NoRoom
    );
    // Removed: he gets BYE, the others go on without him.
    assert_eq!(
        ask(&mut net, "800", RoomWish::EndSeat(first)),
        RoomReply::Ended(1)
    );
    let gone = talkers.remove(0);
    talk(&mut net, &mut talkers, 1_500);
    assert!(net.has(gone.phone, |told| *told == Told::Ended(Ending::Peer)));
    let bye = net
        .find(gone.phone, |told| *told == Told::Ended(Ending::Peer))
        .text();
    assert!(bye.contains("Reason: SIP;cause=480"), "{bye}");
    assert_hears(&talkers, &[]);
    assert_eq!(room(&mut net, "800").1.len(), 3);
    // All are removed.
    assert_eq!(ask(&mut net, "800", RoomWish::End), RoomReply::Ended(3));
    net.run(millis(200));
    for talker in &talkers {
        assert!(net.has(talker.phone, |told| *told == Told::Ended(Ending::Peer)));
    }
    assert_eq!(ask(&mut net, "800", RoomWish::Show), RoomReply::NoRoom);
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    let by: Vec<String> = net
        .events
        .iter()
        .filter_map(|event| match &event.note {
            Note::RoomMuted { by, .. } => Some(by.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(by, ["control", "control"]);
}

#[test]
fn a_locked_conference_takes_nobody_until_it_is_opened_or_ends() {
    let mut net = Neighbourhood::new(BORDER, 2);
    let inside = Talker::dial(&mut net, 1, "sip:800@192.0.2.1", Kind::Pcma, 20, 440.0);
    let locked = |reply: RoomReply| match reply {
        RoomReply::Room(room, _) => room.locked,
        other => panic!("{other:?}"),
    };
    assert!(locked(ask(&mut net, "800", RoomWish::Lock(true))));
    assert!(locked(ask(&mut net, "800", RoomWish::Lock(true))));
    let phone = knock(&mut net, 2, "sip:800@192.0.2.1");
    assert!(net.has(phone, |told| *told == Told::Failed(Failure::Response, 403)));
    // Another one is another one.
    let phone = knock(&mut net, 3, "sip:801@192.0.2.1");
    assert!(net.has(phone, |told| *told == Told::Answered));
    assert!(!locked(ask(&mut net, "800", RoomWish::Lock(false))));
    let phone = knock(&mut net, 4, "sip:800@192.0.2.1");
    assert!(net.has(phone, |told| *told == Told::Answered));
    assert_eq!(ask(&mut net, "800", RoomWish::End), RoomReply::Ended(2));
    assert_eq!(ask(&mut net, "801", RoomWish::End), RoomReply::Ended(1));
    net.run(millis(200));
    // Locked and ended: who calls then begins anew.
    let again = Talker::dial(&mut net, 5, "sip:800@192.0.2.1", Kind::Pcma, 20, 440.0);
    assert!(locked(ask(&mut net, "800", RoomWish::Lock(true))));
    hang_up(&mut net, &again);
    let phone = knock(&mut net, 6, "sip:800@192.0.2.1");
    assert!(net.has(phone, |told| *told == Told::Answered));
    assert!(net.has(inside.phone, |told| *told == Told::Ended(Ending::Peer)));
    let told: Vec<bool> = net
        .events
        .iter()
        .filter_map(|event| match &event.note {
            Note::RoomLocked { locked, .. } => Some(*locked),
            _ => None,
        })
        .collect();
    // What changed nothing is not told.
    assert_eq!(told, [true, false, true]);
}

#[test]
fn a_large_conference_is_shown_bit_by_bit_and_questions_are_bounded() {
    let config = BORDER.replace("seats=4", "seats=60");
    let mut net = Neighbourhood::new(&config, 3);
    let mut talkers: Vec<Talker> = (1..=40)
        .map(|number| Talker::dial(&mut net, number, "sip:800@192.0.2.1", Kind::Pcma, 20, 440.0))
        .collect();
    let asked = net.now;
    let (view, seats) = room(&mut net, "800");
    assert_eq!((view.seats, seats.len()), (40, 40));
    // 16 at a time: twice it waited for its turn.
    let took = net.now.since(asked);
    assert!(took >= millis(4) && took < millis(20), "{took:?}");
    // Who leaves while it is asked is left out, and the question is answered.
    net.operate(|border, now| border.ask_rooms(8, &name("800"), &RoomWish::Show, now));
    let leaving = talkers.pop().unwrap();
    let leg = leaving.leg;
    net.tell(leaving.phone, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap();
    });
    net.run(millis(50));
    let (number, reply) = net.border.next_room_reply().unwrap();
    let RoomReply::Room(_, seats) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!((number, seats.len()), (8, 39));
    // More questions than there may be: the last are refused at once, the others answered.
    let all = MAX_QUESTIONS as u64 + 10;
    net.operate(|border, now| {
        for number in 0..all {
            border.ask_rooms(number, &name("800"), &RoomWish::Show, now);
        }
    });
    net.run(millis(500));
    let mut replies: Vec<(u64, RoomReply)> =
        std::iter::from_fn(|| net.border.next_room_reply()).collect();
    replies.sort_by_key(|(number, _)| *number);
    assert_eq!(replies.len() as u64, all);
    for (number, reply) in replies {
        match reply {
            RoomReply::Busy => assert!(number >= MAX_QUESTIONS as u64, "{number}"),
            RoomReply::Room(_, seats) => assert_eq!(seats.len(), 39),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ask(&mut net, "800", RoomWish::End), RoomReply::Ended(39));
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

const PIN: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[room]]\nname='meeting'\nnumber=['800','801','802']\nseats=3\nrooms=1\ntones='none'\npin='2468'\n";

/// Dials digits, half a second from one to the next.
fn press(net: &mut Neighbourhood, talkers: &mut [Talker], who: usize, digits: &str) {
    for digit in digits.chars() {
        let timestamp = net.now.as_millis() as u32 * 8;
        talkers[who].press(net, digit, timestamp);
        talk(net, talkers, 500);
    }
}

fn outcomes(net: &Neighbourhood) -> Vec<String> {
    let notes = net.events.iter().filter_map(|event| match &event.note {
        Note::RoomPin { outcome, .. } => Some(outcome.clone()),
        _ => None,
    });
    notes.collect()
}

fn three(net: &mut Neighbourhood) -> Vec<Talker> {
    [440.0, 1050.0, 1600.0]
        .into_iter()
        .zip(1..)
        .map(|(hz, number)| Talker::dial(net, number, "sip:800@192.0.2.1", Kind::Pcma, 20, hz))
        .collect()
}

#[test]
fn who_gives_the_pin_takes_part() {
    let mut net = Neighbourhood::new(PIN, 4);
    let mut talkers = three(&mut net);
    // The first two are let in, one by the length of what he dials, the other by a hash after a wrong one.
    press(&mut net, &mut talkers, 0, "2468");
    press(&mut net, &mut talkers, 1, "13#2468#");
    talk(&mut net, &mut talkers, 1_500);
    assert_eq!(
        outcomes(&net),
        ["asked", "asked", "asked", "right", "wrong", "right"]
    );
    let (view, seats) = room(&mut net, "800");
    assert_eq!((view.seats, view.waiting), (2, 1));
    let waiting: Vec<bool> = seats.iter().map(|seat| seat.waits).collect();
    assert_eq!(waiting, [false, false, true]);
    // The third hears nobody and is heard by nobody.
    for (by, listener) in talkers.iter().enumerate() {
        for (of, speaker) in talkers.iter().enumerate() {
            let level = listener.level(speaker.hz);
            match (by, of) {
                (0, 1) | (1, 0) => assert!(level > -7.0, "{by} hears {of} at {level:.1} dB"),
                _ => assert!(level < -30.0, "{by} hears {of} at {level:.1} dB"),
            }
        }
    }
    press(&mut net, &mut talkers, 2, "2468");
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    // Digits are what they were: they silence.
    press(&mut net, &mut talkers, 2, "*6");
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[2]);
    for talker in &talkers {
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    let count = |name: &str| net.names().iter().filter(|other| **other == name).count();
    assert_eq!((count("room_joined"), count("room_left")), (3, 3));
    let counters = net.border.counters();
    assert_eq!((counters.pins_wrong, counters.pins_refused), (1, 0));
}

#[test]
fn wrong_pins_and_none_end_the_call() {
    let mut net = Neighbourhood::new(PIN, 5);
    let mut talkers = three(&mut net);
    hang_up(&mut net, &talkers.pop().unwrap());
    // Each takes its time: 3 times 4 digits in 6 s, the other says nothing for half a minute.
    press(&mut net, &mut talkers, 0, "111122223333");
    let ended = |net: &Neighbourhood, talker: &Talker| {
        net.has(talker.phone, |told| *told == Told::Ended(Ending::Peer))
    };
    assert!(ended(&net, &talkers[0]), "three wrong ones");
    let bye = net.find(talkers[0].phone, |told| *told == Told::Ended(Ending::Peer));
    assert!(
        bye.text().contains("Reason: SIP;cause=403"),
        "{}",
        bye.text()
    );
    assert!(!ended(&net, &talkers[1]));
    talk(&mut net, &mut talkers[1..], 20_000);
    assert!(!ended(&net, &talkers[1]));
    talk(&mut net, &mut talkers[1..], 6_000);
    assert!(ended(&net, &talkers[1]), "no PIN in half a minute");
    assert_eq!(
        outcomes(&net)[3..],
        ["wrong", "wrong", "wrong", "late"].map(String::from)
    );
    let counters = net.border.counters();
    assert_eq!((counters.pins_wrong, counters.pins_refused), (3, 2));
    // Nobody took part, so nobody came or left.
    assert!(!net.names().contains(&"room_joined") && !net.names().contains(&"room_left"));
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

fn ended(net: &Neighbourhood, phone: usize) -> bool {
    net.has(phone, |told| *told == Told::Ended(Ending::Peer))
}

fn refused(net: &Neighbourhood, phone: usize, status: u16) -> bool {
    net.has(phone, |told| {
        *told == Told::Failed(Failure::Response, status)
    })
}

fn fulls(net: &Neighbourhood) -> Vec<String> {
    let notes = net.events.iter().filter_map(|event| match &event.note {
        Note::RoomFull { what, .. } => Some(what.clone()),
        _ => None,
    });
    notes.collect()
}

#[test]
fn those_who_wait_take_no_seat_and_find_what_is_full_when_they_come_in() {
    let mut net = Neighbourhood::new(&PIN.replace("rooms=1", "rooms=2"), 6);
    let dial = |net: &mut Neighbourhood, number: u8, uri: &str| {
        [Talker::dial(net, number, uri, Kind::Pcma, 20, 700.0)]
    };
    // More wait than could take part, and in more conferences than may take place.
    let mut waiting = three(&mut net);
    let mut fourth = dial(&mut net, 4, "sip:800@192.0.2.1");
    let mut second = dial(&mut net, 5, "sip:801@192.0.2.1");
    let mut third = dial(&mut net, 7, "sip:802@192.0.2.1");
    // Two take place: who gives the PIN of a third finds none left.
    press(&mut net, &mut waiting, 0, "2468");
    press(&mut net, &mut second, 0, "2468");
    press(&mut net, &mut third, 0, "2468");
    assert!(ended(&net, third[0].phone) && !ended(&net, second[0].phone));
    // A conference is full, and whoever comes then is told so at once.
    press(&mut net, &mut waiting, 1, "2468");
    press(&mut net, &mut waiting, 2, "2468");
    press(&mut net, &mut fourth, 0, "2468");
    assert!(ended(&net, fourth[0].phone));
    let phone = knock(&mut net, 8, "sip:800@192.0.2.1");
    assert!(refused(&net, phone, 486));
    // A lock counts for those who wait, too.
    let mut fifth = dial(&mut net, 9, "sip:801@192.0.2.1");
    let lock = ask(&mut net, "801", RoomWish::Lock(true));
    assert!(matches!(lock, RoomReply::Room(..)));
    press(&mut net, &mut fifth, 0, "2468");
    assert!(ended(&net, fifth[0].phone));
    assert_eq!(fulls(&net), ["rooms", "seats", "seats", "lock"]);
    assert_eq!(ask(&mut net, "800", RoomWish::End), RoomReply::Ended(3));
    assert_eq!(ask(&mut net, "801", RoomWish::End), RoomReply::Ended(1));
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    // Both have ended: others may take place.
    let mut again = dial(&mut net, 10, "sip:802@192.0.2.1");
    press(&mut net, &mut again, 0, "2468");
    assert!(!ended(&net, again[0].phone));
    assert_eq!(room(&mut net, "802").0.seats, 1);
}

/// Everybody has time to dial; then who is still gives way, and who dials does not.
#[test]
fn who_is_still_for_long_gives_way_to_another() {
    let config = PIN.replace("pin='2468'", "pin='2468'\nwaiting=3");
    let mut net = Neighbourhood::new(&config, 7);
    let mut waiting = three(&mut net);
    let phone = knock(&mut net, 4, "sip:801@192.0.2.1");
    assert!(refused(&net, phone, 486), "all places are taken");
    talk(&mut net, &mut waiting, 7_000);
    press(&mut net, &mut waiting, 0, "2");
    let phone = knock(&mut net, 5, "sip:800@192.0.2.1");
    assert!(refused(&net, phone, 486), "nobody was still for long");
    talk(&mut net, &mut waiting, 3_000);
    let phone = knock(&mut net, 6, "sip:800@192.0.2.1");
    assert!(net.has(phone, |told| *told == Told::Answered));
    let gone: Vec<bool> = waiting
        .iter()
        .map(|talker| ended(&net, talker.phone))
        .collect();
    assert_eq!(
        gone,
        [false, true, false],
        "the second was still for longest"
    );
    let bye = net.find(waiting[1].phone, |told| *told == Told::Ended(Ending::Peer));
    assert!(
        bye.text().contains("Reason: SIP;cause=486"),
        "{}",
        bye.text()
    );
    // The first goes on where he was.
    press(&mut net, &mut waiting, 0, "468");
    let (view, _) = room(&mut net, "800");
    assert_eq!((view.seats, view.waiting), (1, 2));
    let told = ["asked", "asked", "asked", "gave_way", "asked", "right"];
    assert_eq!(outcomes(&net), told);
    assert_eq!(fulls(&net), ["waiting", "waiting"]);
    assert_eq!(net.border.counters().pins_refused, 1);
    // Half a minute is over for the others.
    net.run(Duration::from_secs(30));
    hang_up(&mut net, &waiting[0]);
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

/// Somebody who does not know the PIN takes all places again and again: whoever comes from elsewhere gets in.
#[test]
fn one_source_keeps_nobody_out() {
    let config = PIN.replace("pin='2468'", "pin='2468'\nwaiting=4");
    let mut net = Neighbourhood::new(&config, 8);
    let strange = |net: &mut Neighbourhood, port: u16| {
        let phone = net.phone(&format!("10.9.0.1:{port}"), Manners::answering(SDP_A));
        let offer = sdp("10.9.0.1:4000".parse().unwrap(), Kind::Pcma, 20, "");
        let content = Content::sdp(offer.as_bytes());
        net.call(phone, "sip:800@192.0.2.1", OUT, &content);
        net.run(millis(50));
        phone
    };
    let mut strangers: Vec<usize> = (0..4).map(|at| strange(&mut net, 6_000 + at)).collect();
    let mut friends = Vec::new();
    for host in 1..=3 {
        // The strangers come faster than anybody could dial.
        let again: Vec<usize> = (0..20)
            .map(|at| strange(&mut net, 7_000 + 100 * u16::from(host) + at))
            .collect();
        for phone in again {
            assert!(refused(&net, phone, 486), "{:?}", net.told(phone));
        }
        let uri = "sip:800@192.0.2.1";
        friends.push(Talker::dial(&mut net, host, uri, Kind::Pcma, 20, 440.0));
        let gone = strangers.remove(0);
        assert!(ended(&net, gone), "the oldest of them");
        assert!(strangers.iter().all(|phone| !ended(&net, *phone)));
    }
    // Now each source has a place: nobody comes before another.
    let phone = knock(&mut net, 4, "sip:800@192.0.2.1");
    assert!(refused(&net, phone, 486));
    for who in 0..3 {
        press(&mut net, &mut friends, who, "2468");
    }
    let (view, _) = room(&mut net, "800");
    assert_eq!((view.seats, view.waiting), (3, 1));
}
