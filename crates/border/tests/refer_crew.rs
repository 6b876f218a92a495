//! Transfers that a border with several workers carries out: whichever of them the calls belong to, what comes of it is the same.

mod neighbourhood;

use engine::{TransferStep, Transport};
use neighbourhood::*;
use sip::{Content, Ending, LegId};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";
const IN: &str = "198.51.100.1:5060";

/// Alice outside; Bob, Carol and Dave inside; each a trunk of his own whose transfers the border carries out.
fn config(workers: u8, carol: &str) -> String {
    let mut text = String::from(
        "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
         [[interface]]\nname='in'\nkind='core'\nlisten=['udp:198.51.100.1:5060','tcp:198.51.100.1:5060']\nmedia={address='198.51.100.1'}\n",
    );
    let carol = format!("{carol}:10.2.0.2:5060");
    for (name, interface, target) in [
        ("alice", "out", "udp:10.1.0.1:5060"),
        ("bob", "in", "udp:10.2.0.1:5060"),
        ("carol", "in", &carol),
        ("dave", "in", "udp:10.2.0.3:5060"),
    ] {
        text += &format!(
            "[[trunk]]\nname='{name}'\ninterface='{interface}'\ntarget='{target}'\nrefer='act'\n\
             [[route]]\nto={{user='{name}'}}\ntrunk='{name}'\n"
        );
    }
    text + &format!("[session_timer]\nexpires=120\n[media]\ntimeout=0\n[sip]\nworkers={workers}\n")
}

struct Table {
    net: Neighbourhood,
    /// Alice, Bob, Carol, Dave.
    phones: [usize; 4],
    calls: u32,
}

const ALICE: usize = 0;
const BOB: usize = 1;
const CAROL: usize = 2;
const DAVE: usize = 3;
const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// A call of somebody's: his leg, and the other one's.
type Legs = [LegId; 2];

impl Table {
    fn new(workers: u8) -> Table {
        Table::with(workers, Transport::Udp)
    }

    fn with(workers: u8, carol: Transport) -> Table {
        let over = if carol == Transport::Tcp {
            "tcp"
        } else {
            "udp"
        };
        let mut net = Neighbourhood::crew(&config(workers, over), 3);
        let phones = [
            ("10.1.0.1", Transport::Udp),
            ("10.2.0.1", Transport::Udp),
            ("10.2.0.2", carol),
            ("10.2.0.3", Transport::Udp),
        ];
        let phones = phones.map(|(ip, transport)| {
            let manners = Manners::answering(&SDP_B.replace("10.2.0.1", ip));
            net.phone_over(&format!("{ip}:5060"), transport, manners)
        });
        let calls = 0;
        Table { net, phones, calls }
    }

    fn run(&mut self, span: Duration) {
        self.net.run(span);
    }

    /// One calls another, in a call of this worker.
    fn call(&mut self, from: usize, to: usize, worker: u8) -> Legs {
        let legs = self.calls(from, to, worker);
        let callee = self.phones[to];
        assert!(self.net.has(callee, |told| *told == Told::Acked));
        legs
    }

    fn calls(&mut self, from: usize, to: usize, worker: u8) -> Legs {
        self.calls += 1;
        let (hop, host) = if from == ALICE {
            (OUT, "192.0.2.1")
        } else {
            (IN, "198.51.100.1")
        };
        let uri = format!("sip:{}@{host}", NAMES[to]);
        // A Call-ID that is as long as ours says whose it is.
        let call_id: &'static str = format!("{worker:02x}{:046x}", self.calls).leak();
        let sdp = self.net.phones[self.phones[from]].ears.manners.sdp.clone();
        let content = Content::sdp(sdp.as_bytes());
        let leg = self
            .net
            .call_with(self.phones[from], &uri, hop, &content, |invite| {
                invite.call_id = Some(call_id.as_bytes());
            });
        self.net.run(Duration::from_secs(1));
        let other = self
            .net
            .last(self.phones[to], |told| *told == Told::Offered)
            .leg;
        let legs = [leg, other.unwrap()];
        if let Some((_, tag)) = self.net.phones[self.phones[from]].endpoint.tags_of(leg)
            && !tag.is_empty()
        {
            assert_eq!(&tag[8..10], format!("{worker:02x}").as_bytes(), "its owner");
        }
        legs
    }

    /// Replaces for a dialog of somebody's, as a URI has it.
    fn replaces(&mut self, whose: usize, leg: LegId) -> String {
        self.net.tell(self.phones[whose], |endpoint, _| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let id = text(endpoint.call_id_of(leg).unwrap());
            let (own, theirs) = endpoint.tags_of(leg).unwrap();
            format!(
                "{id}%3Bto-tag%3D{}%3Bfrom-tag%3D{}",
                text(theirs),
                text(&own)
            )
        })
    }

    /// Somebody refers in a dialog of his.
    fn refer(&mut self, who: usize, leg: LegId, to: &str) {
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: to.as_bytes(),
        }];
        let content = Content::default().with(&edits);
        self.net.tell(self.phones[who], |endpoint, now| {
            endpoint.request(leg, Method::Refer, &content, now).unwrap();
        });
    }

    /// Attended transfer: in one call he refers to the other end of another one of his.
    fn attended(&mut self, who: usize, leg: LegId, consulted: LegId) {
        let replaces = self.replaces(who, consulted);
        self.refer(
            who,
            leg,
            &format!("<sip:x@198.51.100.1?Replaces={replaces}>"),
        );
    }

    /// What was answered to REFER.
    fn answered(&self, who: usize, status: u16) -> bool {
        self.net.has(
            self.phones[who],
            |told| matches!(told, Told::Response(answer, _) if *answer == status),
        )
    }

    /// First lines of what NOTIFY told.
    fn told(&self, who: usize) -> Vec<String> {
        let seen = self.net.seen(self.phones[who]).iter();
        seen.filter(|seen| seen.method() == "NOTIFY")
            .map(|seen| seen.body().lines().next().unwrap_or_default().to_owned())
            .collect()
    }

    fn legs(&self, who: usize) -> usize {
        self.net.phones[self.phones[who]].endpoint.census().legs
    }

    fn all_legs(&self) -> [usize; 4] {
        [ALICE, BOB, CAROL, DAVE].map(|who| self.legs(who))
    }

    /// Calls of each worker.
    fn calls_of_workers(&mut self) -> Vec<usize> {
        self.net.each_worker(|border, _| border.census().calls)
    }

    /// What one says in his dialog the other hears, and answers; INFO passes, and a re-INVITE.
    fn speaks_to(&mut self, (one, leg): (usize, LegId), (other, far): (usize, LegId)) {
        let (one, other) = (self.phones[one], self.phones[other]);
        for method in [Method::Info, Method::Invite] {
            let before = self.net.seen(other).len();
            let answers = self.net.seen(one).len();
            let sdp = self.net.phones[one].ears.manners.sdp.clone();
            let content = match method {
                Method::Invite => Content::sdp(sdp.as_bytes()),
                _ => Content::default(),
            };
            self.net.tell(one, |endpoint, now| {
                endpoint.request(leg, method, &content, now).unwrap();
            });
            self.net.run(Duration::from_secs(1));
            let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
            let heard = &self.net.seen(other)[before..];
            assert!(
                heard
                    .iter()
                    .any(|seen| seen.method() == name && seen.leg == Some(far)),
                "{name}: {heard:?}"
            );
            let answered = &self.net.seen(one)[answers..];
            assert!(
                answered
                    .iter()
                    .any(|seen| matches!(seen.told, Told::Response(200, _))),
                "{name}: {answered:?}"
            );
        }
    }

    fn talk(&mut self, one: (usize, LegId), other: (usize, LegId)) {
        self.speaks_to(one, other);
        self.speaks_to(other, one);
    }

    fn hang_up(&mut self, who: usize, leg: LegId) {
        self.net.tell(self.phones[who], |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
        self.net.run(Duration::from_secs(1));
    }

    /// Nobody has a leg, and no worker anything.
    fn ends(&mut self) {
        assert_eq!(self.all_legs(), [0; 4]);
        self.net.assert_quiet();
    }
}

const DONE: [&str; 1] = ["SIP/2.0 200 OK"];

/// Alice has called Bob, who has called Carol; he brings them together.
fn attended(workers: u8, first: u8, second: u8, carol: Transport) {
    let mut table = Table::with(workers, carol);
    let [alice, bob] = table.call(ALICE, BOB, first);
    let [consulting, far] = table.call(BOB, CAROL, second);
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert!(
        table.answered(BOB, 202),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    assert_eq!(table.told(BOB), DONE);
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    let mut calls = vec![0; usize::from(workers)];
    calls[usize::from(first)] = 1;
    assert_eq!(table.calls_of_workers(), calls);
    table.talk((ALICE, alice), (CAROL, far));
    // Sessions are refreshed, by whoever has promised it.
    table.run(Duration::from_secs(400));
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    table.talk((ALICE, alice), (CAROL, far));
    table.hang_up(CAROL, far);
    table.ends();
}

#[test]
fn calls_of_one_worker_are_brought_together() {
    attended(2, 1, 1, Transport::Udp);
}

#[test]
fn calls_of_different_workers_are_brought_together() {
    for (first, second) in [(0, 1), (1, 0)] {
        attended(2, first, second, Transport::Udp);
    }
    for (first, second) in [(0, 1), (1, 2), (2, 0)] {
        attended(3, first, second, Transport::Udp);
    }
}

#[test]
fn a_connection_stays_with_who_holds_it() {
    for (first, second) in [(0, 1), (1, 0), (2, 1)] {
        attended(3, first, second, Transport::Tcp);
    }
}

#[test]
fn who_was_called_by_both_brings_them_together() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut table = Table::new(2);
        let [alice, bob] = table.call(ALICE, BOB, first);
        let [carol, consulted] = table.call(CAROL, BOB, second);
        table.attended(BOB, bob, consulted);
        table.run(Duration::from_secs(2));
        assert_eq!(table.told(BOB), DONE);
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        table.talk((ALICE, alice), (CAROL, carol));
        table.hang_up(ALICE, alice);
        table.ends();
    }
}

/// A dialog moves twice, and home again.
#[test]
fn a_dialog_moves_on() {
    for third in [2, 1] {
        let mut table = Table::new(3);
        let [alice, bob] = table.call(ALICE, BOB, 0);
        let [consulting, carol] = table.call(BOB, CAROL, 1);
        table.attended(BOB, bob, consulting);
        table.run(Duration::from_secs(2));
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        // Alice brings Carol together with Dave.
        let [asking, dave] = table.call(ALICE, DAVE, third);
        table.attended(ALICE, asking, alice);
        table.run(Duration::from_secs(2));
        assert_eq!(table.told(ALICE), DONE);
        assert_eq!(table.all_legs(), [0, 0, 1, 1]);
        table.talk((CAROL, carol), (DAVE, dave));
        // And Carol refers in the dialog that has moved.
        let [calling, bob] = table.call(CAROL, BOB, 0);
        table.attended(CAROL, carol, calling);
        table.run(Duration::from_secs(2));
        assert_eq!(table.told(CAROL), DONE);
        assert_eq!(table.all_legs(), [0, 1, 0, 1]);
        table.talk((BOB, bob), (DAVE, dave));
        table.hang_up(BOB, bob);
        table.ends();
    }
}

#[test]
fn what_is_repeated_for_a_dialog_that_moved_is_answered_as_before() {
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    // Something that was answered before it moved.
    table.speaks_to((CAROL, carol), (BOB, consulting));
    let phone = table.phones[CAROL];
    let sent = |table: &Table, begins: &str| {
        let mut sent = table.net.phones[phone].sent.iter().rev();
        let found = sent.find(|bytes| bytes.starts_with(begins.as_bytes()));
        found.unwrap().clone()
    };
    let info = sent(&table, "INFO ");
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    let again = |table: &mut Table, bytes: &[u8]| {
        let before = table.net.phones[phone].received.len();
        table.net.throw("10.2.0.2:5060", IN, bytes);
        table.run(Duration::from_secs(1));
        let received = &table.net.phones[phone].received[before..];
        let lines = received.iter().map(|bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        });
        lines.collect::<Vec<String>>()
    };
    assert_eq!(again(&mut table, &info), ["SIP/2.0 200 OK"]);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(CAROL, carol);
    let bye = sent(&table, "BYE ");
    assert_eq!(again(&mut table, &bye), ["SIP/2.0 200 OK"]);
    table.ends();
    // Who comes back after everybody has forgotten it is told so.
    let answer = again(&mut table, &bye);
    assert!(answer[0].starts_with("SIP/2.0 481"), "{answer:?}");
}

/// Somebody takes the place of a leg that has moved, by an INVITE with Replaces.
#[test]
fn a_dialog_that_moved_can_be_replaced() {
    let mut table = Table::new(3);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    let replaces = table
        .replaces(CAROL, carol)
        .replace("%3B", ";")
        .replace("%3D", "=");
    let edits = [Edit::Add {
        id: HeaderId::Replaces,
        value: replaces.as_bytes(),
    }];
    let sdp = SDP_B.replace("10.2.0.1", "10.2.0.3");
    let content = Content::sdp(sdp.as_bytes()).with(&edits);
    let call_id: &'static str = format!("02{:046x}", 99).leak();
    let dave = table.net.call_with(
        table.phones[DAVE],
        "sip:x@198.51.100.1",
        IN,
        &content,
        |invite| {
            invite.call_id = Some(call_id.as_bytes());
        },
    );
    table.run(Duration::from_secs(2));
    assert!(table.net.has(table.phones[CAROL], |told| *told
        == Told::Ended(Ending::Peer)));
    assert_eq!(table.all_legs(), [1, 0, 0, 1]);
    table.talk((ALICE, alice), (DAVE, dave));
    table.hang_up(DAVE, dave);
    table.ends();
}

/// One who does not like the new description: everybody is told, and the first call stays.
#[test]
fn a_transfer_that_fails_leaves_the_first_call() {
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.net.phones[table.phones[CAROL]].ears.manners.inside = Some(488);
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert!(table.answered(BOB, 202));
    let told = table.told(BOB);
    assert!(
        told.len() == 1 && told[0].starts_with("SIP/2.0 488"),
        "{told:?}"
    );
    assert_eq!(table.all_legs(), [1, 1, 0, 0]);
    assert_eq!(table.calls_of_workers(), [1, 0]);
    let _ = carol;
    table.talk((ALICE, alice), (BOB, bob));
    table.hang_up(ALICE, alice);
    table.ends();
}

#[test]
fn what_cannot_be_taken_is_refused_and_nothing_changes() {
    let mut table = Table::new(2);
    table.net.phones[table.phones[CAROL]].ears.manners.answer = None;
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [dialling, _] = table.calls(BOB, CAROL, 1);
    // It is not answered yet.
    table.attended(BOB, bob, dialling);
    table.run(Duration::from_secs(1));
    assert!(
        table.answered(BOB, 481),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    // A dialog that this worker never had.
    let strange = format!("x%3Bto-tag%3D{:08x}01{:014x}%3Bfrom-tag%3Dx", 7, 5);
    let before = table.net.seen(table.phones[BOB]).len();
    table.refer(
        BOB,
        bob,
        &format!("<sip:x@198.51.100.1?Replaces={strange}>"),
    );
    table.run(Duration::from_secs(1));
    let after = &table.net.seen(table.phones[BOB])[before..];
    assert!(
        after
            .iter()
            .any(|seen| matches!(seen.told, Told::Response(481, _))),
        "{after:?}"
    );
    assert!(table.told(BOB).is_empty());
    table.talk((ALICE, alice), (BOB, bob));
    table.net.tell(table.phones[BOB], |endpoint, now| {
        endpoint
            .hang_up(dialling, &Content::default(), now)
            .unwrap();
    });
    table.hang_up(ALICE, alice);
    table.ends();
}

/// While something is under way in the other call it stays as it is; afterwards it can be had.
#[test]
fn a_call_that_changes_is_had_later() {
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    // Carol takes her time to answer what Bob says.
    let phone = table.phones[CAROL];
    table.net.phones[phone].ears.manners.inside = None;
    let sdp = SDP_B;
    table.net.tell(table.phones[BOB], |endpoint, now| {
        let hold = Content::sdp(sdp.as_bytes());
        endpoint
            .request(consulting, Method::Invite, &hold, now)
            .unwrap();
    });
    table.run(Duration::from_secs(1));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(1));
    assert!(
        table.answered(BOB, 491),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    let asked = table
        .net
        .last(phone, |told| matches!(told, Told::Request(_)))
        .told
        .clone();
    let Told::Request(transaction) = asked else {
        panic!("{asked:?}")
    };
    let answer = table.net.phones[phone].ears.manners.sdp.clone();
    table.net.tell(phone, |endpoint, now| {
        let content = Content::sdp(answer.as_bytes());
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    table.net.phones[phone].ears.manners.inside = Some(200);
    table.run(Duration::from_secs(1));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert_eq!(table.told(BOB), DONE);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.ends();
}

#[test]
fn a_word_that_is_lost_between_workers_loses_nothing() {
    // Nobody heard the question: the caller is told to come again, and can.
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.net.lose_words(Some(TransferStep::Asked));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(6));
    assert!(
        table.answered(BOB, 503),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    assert_eq!(table.all_legs(), [1, 2, 1, 0]);
    // Nobody heard the answer: it is looked for.
    table.net.lose_words(Some(TransferStep::Answered));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(6));
    assert!(table.answered(BOB, 202));
    assert_eq!(table.told(BOB), DONE);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.ends();
    // Nobody heard that it is over: what is left ends by itself.
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.net.lose_words(Some(TransferStep::Over));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(5));
    assert_eq!(table.all_legs(), [1, 1, 1, 0]);
    table.run(Duration::from_secs(90));
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(CAROL, carol);
    table.ends();
}

/// The first call ends before the answer of the other worker is seen: whoever was given is not left alone.
#[test]
fn who_was_given_to_a_call_that_ends_is_told() {
    for step in [TransferStep::Asked, TransferStep::Answered] {
        let mut table = Table::new(2);
        let [alice, bob] = table.call(ALICE, BOB, 0);
        let [consulting, carol] = table.call(BOB, CAROL, 1);
        table.net.lose_words(Some(step));
        table.attended(BOB, bob, consulting);
        table.run(Duration::from_secs(1));
        table.net.lose_words(None);
        table.hang_up(ALICE, alice);
        table.run(Duration::from_secs(1));
        match step {
            // Nothing was taken from their call.
            TransferStep::Asked => {
                assert_eq!(table.all_legs(), [0, 1, 1, 0]);
                table.talk((BOB, consulting), (CAROL, carol));
                table.hang_up(BOB, consulting);
            }
            _ => assert_eq!(table.all_legs(), [0; 4]),
        }
        table.ends();
    }
}

/// Bob ends the call that he gave away before he is told how it went.
#[test]
fn the_referrer_may_go_at_once() {
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 1);
    let [consulting, carol] = table.call(BOB, CAROL, 0);
    table.net.phones[table.phones[CAROL]].ears.manners.inside = None;
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(1));
    table.hang_up(BOB, consulting);
    assert_eq!(table.all_legs(), [1, 1, 1, 0]);
    let phone = table.phones[CAROL];
    let asked = table
        .net
        .last(phone, |told| matches!(told, Told::Request(_)))
        .told
        .clone();
    let Told::Request(transaction) = asked else {
        panic!("{asked:?}")
    };
    let offer = table.net.phones[phone].ears.manners.sdp.clone();
    table.net.phones[phone].ears.manners.inside = Some(200);
    table.net.tell(phone, |endpoint, now| {
        let content = Content::sdp(offer.as_bytes());
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    table.run(Duration::from_secs(2));
    assert_eq!(table.told(BOB), DONE);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.ends();
}

#[test]
fn blind_transfer_by_any_worker() {
    for worker in 0..3 {
        let mut table = Table::new(3);
        let [alice, bob] = table.call(ALICE, BOB, worker);
        table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
        table.run(Duration::from_secs(2));
        let told = [
            "SIP/2.0 100 Trying",
            "SIP/2.0 180 Ringing",
            "SIP/2.0 200 OK",
        ];
        assert_eq!(table.told(BOB), told);
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        let carol = table
            .net
            .last(table.phones[CAROL], |told| *told == Told::Offered);
        let carol = carol.leg.unwrap();
        table.talk((ALICE, alice), (CAROL, carol));
        table.hang_up(CAROL, carol);
        table.ends();
    }
}

#[test]
fn a_blind_transfer_that_fails_leaves_the_call() {
    for worker in 0..2 {
        let mut table = Table::new(2);
        table.net.phones[table.phones[CAROL]].ears.manners.answer = Some(486);
        let [alice, bob] = table.call(ALICE, BOB, worker);
        table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
        table.run(Duration::from_secs(2));
        let told = table.told(BOB);
        assert!(told.last().unwrap().starts_with("SIP/2.0 486"), "{told:?}");
        table.talk((ALICE, alice), (BOB, bob));
        table.hang_up(ALICE, alice);
        table.ends();
    }
}
