//! More than usual: registrations at the rate of a carrier (what changes nothing is answered here, a core that goes away
//! costs no phone its registration, after a power cut each phone gets its turn), calls beyond the rates, overload.

use crate::neighbourhood;

use border::admission::{Cost, MediaCarrier, MediaWay, Part};
use border::config::Keying;
use engine::{DropReason, Note, Transport};
use neighbourhood::*;
use protect::srtp::Suite;
use sip::{Content, Failure, Flow, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";
/// Behind NAT: not where it comes from.
const CONTACT: &str = "<sip:1000@192.168.3.3:5060>";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn passing() -> String {
    PLAIN
        .replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n")
        .replace(
            "target='udp:10.2.0.1:5060'",
            "target='udp:10.2.0.1:5060'\nping=10\nping_failures=1",
        )
}

fn register(net: &mut Neighbourhood, phone: usize, user: &str, cseq: u32, contact: &str) {
    ask_to_register(net, phone, user, cseq, contact);
    net.run(seconds(1));
}

/// REGISTERs that the core has seen.
fn registers(net: &Neighbourhood, core: usize) -> Vec<Seen> {
    let mine = |seen: &&Seen| seen.text().starts_with("REGISTER ");
    net.seen(core).iter().filter(mine).cloned().collect()
}

/// The core takes the last REGISTER that it saw.
fn take(net: &mut Neighbourhood, core: usize) {
    let seen = registers(net, core).pop().unwrap();
    let contact = seen.header("Contact").to_owned();
    let Told::Outside(transaction) = seen.told else {
        panic!()
    };
    net.tell(core, |endpoint, now| {
        let edits = [
            Edit::Replace {
                id: HeaderId::Contact,
                value: contact.as_bytes(),
            },
            Edit::Add {
                id: HeaderId::ServiceRoute,
                value: b"<sip:core;lr>",
            },
        ];
        endpoint
            .respond(transaction, 200, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
}

/// OPTIONS pings are answered, REGISTERs by [`take`].
fn answer_pings(net: &mut Neighbourhood, core: usize, done: &mut usize) {
    let pings: Vec<Seen> = net.seen(core)[*done..].to_vec();
    *done += pings.len();
    for seen in pings {
        if let (true, Told::Outside(transaction)) =
            (seen.text().starts_with("OPTIONS "), seen.told.clone())
        {
            net.tell(core, |endpoint, now| {
                let _ = endpoint.respond(transaction, 200, &Content::default(), now);
            });
        }
    }
}

fn answers(net: &Neighbourhood, phone: usize, status: u16) -> usize {
    let told = net.told(phone);
    let same = |told: &&Told| **told == Told::OutsideResponse(status);
    told.iter().filter(same).count()
}

#[test]
fn the_core_hears_of_a_phone_when_something_changes_or_is_due() {
    let mut net = Neighbourhood::new(&passing(), 1);
    let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.phones[core].ears.manners.outside = None;
    let mut done = 0;
    let contact = format!("{CONTACT};expires=600");
    register(&mut net, phone, "1000", 1, &contact);
    let seen = registers(&net, core);
    assert_eq!(seen.len(), 1);
    assert!(
        seen[0].header("Contact").ends_with(">;expires=3600"),
        "{}",
        seen[0].header("Contact")
    );
    take(&mut net, core);
    let answer = net.last(phone, |told| *told == Told::OutsideResponse(200));
    assert_eq!(answer.header("Contact"), format!("{CONTACT};expires=30"));
    let mut cseq = 1;
    let mut now = 2;
    while registers(&net, core).len() == 1 {
        for _ in 0..3 {
            net.run(seconds(8));
            answer_pings(&mut net, core, &mut done);
        }
        cseq += 1;
        now += 25;
        register(&mut net, phone, "1000", cseq, &contact);
        assert!(now < 4_000, "never passed on");
        if registers(&net, core).len() == 1 {
            let answer = net.last(phone, |told| *told == Told::OutsideResponse(200));
            assert_eq!(answer.header("Contact"), format!("{CONTACT};expires=30"));
            assert_eq!(answer.header("Service-Route"), "<sip:core;lr>");
        }
    }
    assert!(now >= 1_800, "{now}");
    take(&mut net, core);
    assert_eq!(answers(&net, phone, 200), cseq as usize);
    register(
        &mut net,
        phone,
        "1000",
        cseq + 1,
        &format!("{CONTACT};expires=0"),
    );
    assert_eq!(registers(&net, core).len(), 3, "it leaves");
}

#[test]
fn a_core_that_is_away_costs_no_phone_its_registration() {
    let mut net = Neighbourhood::new(&passing(), 1);
    let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.phones[core].ears.manners.outside = None;
    register(&mut net, phone, "1000", 1, CONTACT);
    take(&mut net, core);
    let mut cseq = 1;
    // No ping is answered: the trunk is down soon, and stays so beyond what the core had granted.
    for _ in 0..180 {
        net.run(seconds(24));
        cseq += 1;
        register(&mut net, phone, "1000", cseq, CONTACT);
    }
    assert_eq!(answers(&net, phone, 200), cseq as usize);
    assert_eq!(registers(&net, core).len(), 1);
    // A phone that the core never took gets no promise from us.
    let other = net.phone("10.1.0.2:5060", Manners::answering(SDP_A));
    register(&mut net, other, "1001", 1, CONTACT);
    net.run(seconds(40));
    assert_eq!(answers(&net, other, 200), 0);
}

/// Hundreds of phones behind one address come back at once, each obeys Retry-After.
#[test]
fn after_a_power_cut_each_phone_gets_its_turn() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + "[[route]]\nregistered=true\n[registrar]\nrate=40\n";
    let mut net = Neighbourhood::new(&config, 1);
    let phones: Vec<usize> = (0..300)
        .map(|phone| {
            let address = format!("10.1.0.1:{}", 10_000 + phone);
            net.phone(&address, Manners::answering(SDP_A))
        })
        .collect();
    let wait_of = |net: &Neighbourhood, phone: usize| -> Option<u64> {
        let last = net.told(phone).pop()?;
        match last {
            Told::OutsideResponse(503) => {
                let seen = net.last(phone, |told| *told == Told::OutsideResponse(503));
                Some(seen.header("Retry-After").parse().unwrap())
            }
            Told::OutsideResponse(200) => None,
            other => panic!("{other:?}"),
        }
    };
    let mut due: Vec<(u64, usize)> = phones.iter().map(|&phone| (0, phone)).collect();
    let mut asked = vec![0; phones.len()];
    let mut now = 0;
    while let Some(&(at, _)) = due.iter().min() {
        net.run(seconds(at.saturating_sub(now)));
        now = now.max(at);
        let (turn, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|(due, _)| *due <= now);
        due = later;
        for &(_, phone) in &turn {
            asked[phone - phones[0]] += 1;
            let user = (1000 + phone).to_string();
            let contact = format!("<sip:{user}@192.168.3.3:5060>");
            ask_to_register(&mut net, phone, &user, asked[phone - phones[0]], &contact);
        }
        net.run(Duration::from_millis(200));
        for &(_, phone) in &turn {
            if let Some(wait) = wait_of(&net, phone) {
                due.push((now + wait, phone));
            }
        }
    }
    assert!(now <= 8, "{now} seconds");
    assert!(asked.iter().all(|asked| *asked <= 2), "{asked:?}");
}

fn ask_to_register(net: &mut Neighbourhood, phone: usize, user: &str, cseq: u32, contact: &str) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport: Transport::Udp,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    let address = format!("<sip:{user}@192.0.2.1>");
    net.tell(phone, |endpoint, now| {
        let edits = [Edit::Replace {
            id: HeaderId::Contact,
            value: contact.as_bytes(),
        }];
        let outside = Outside {
            from: Some(address.as_bytes()),
            to: Some(address.as_bytes()),
            call_id: Some(user.as_bytes()),
            cseq: Some(cseq),
            content: Content::default().with(&edits),
            ..Outside::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
}

/// More calls than are wanted: the limit comes through, every other call gets the status that was chosen, nothing is kept
/// of it, and whoever talks already notices nothing.
#[test]
fn calls_beyond_the_rate_get_the_chosen_status() {
    let config = PLAIN.replace(
        "kind='access'\n",
        "kind='access'\nrates={calls=40,status=486}\n",
    );
    let mut net = Neighbourhood::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offered = 700;
    for _ in 0..offered {
        net.call(
            caller,
            "sip:2000@192.0.2.1",
            OUT,
            &Content::sdp(SDP_A.as_bytes()),
        );
        net.run(Duration::from_nanos(1_000_000_000 / 70));
    }
    net.run(seconds(5));
    let told = net.told(caller);
    let answered = told.iter().filter(|t| **t == Told::Answered).count();
    let shielded = told
        .iter()
        .filter(|t| matches!(t, Told::Failed(Failure::Response, 486)))
        .count();
    assert_eq!(answered + shielded, offered, "{told:?}");
    assert!((400..=405).contains(&answered), "{answered}");
    let counters = net.operate(|border, _| border.counters().clone());
    assert_eq!(counters.offered as usize, answered);
    assert_eq!(counters.shielded as usize, shielded);
    assert_eq!(
        net.names()
            .iter()
            .filter(|name| **name == "rate_exceeded")
            .count(),
        1
    );
}

/// The queue is too long: what is new is refused, what stands goes on, and it ends by itself.
#[test]
fn what_waited_too_long_begins_nothing_new() {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    // As long as is ordinary where the border gathers.
    // (The other side's socket never has a queue: that must not hide this one's.)
    let at = OUT.parse().ok();
    net.lag = (at, Duration::from_millis(20));
    let standing = net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    net.run(seconds(2));
    assert!(net.has(caller, |told| *told == Told::Answered));
    // A moment of standing still is made up for.
    net.lag = (at, Duration::from_millis(80));
    for _ in 0..2 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(Duration::from_millis(60));
    }
    assert_eq!(
        net.told(caller)
            .iter()
            .filter(|t| **t == Told::Answered)
            .count(),
        3
    );
    for _ in 0..20 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    }
    register(&mut net, caller, "1000", 1, CONTACT);
    net.run(seconds(1));
    let refused = |net: &Neighbourhood| {
        let told = net.told(caller);
        let same = |t: &&Told| matches!(t, Told::Failed(Failure::Response, 503));
        told.iter().filter(same).count()
    };
    assert_eq!(refused(&net), 20);
    let last = net.last(caller, |t| {
        matches!(t, Told::Failed(Failure::Response, 503))
    });
    let wait: u32 = last.header("Retry-After").parse().unwrap();
    assert!((1..=10).contains(&wait));
    assert_eq!(answers(&net, caller, 503), 1, "the registration too");
    // What belongs to the call that stands is dealt with.
    net.tell(caller, |endpoint, now| {
        endpoint.bye(standing, &Content::default(), now).unwrap();
    });
    net.run(seconds(1));
    assert!(
        net.has(callee, |told| matches!(told, Told::Ended(..))),
        "{:?}",
        net.told(callee)
    );
    let state = |net: &Neighbourhood| net.names().iter().filter(|n| **n == "overload").count();
    assert_eq!(state(&net), 1, "it has begun");
    net.lag = (at, Duration::ZERO);
    net.run(seconds(6));
    assert_eq!(state(&net), 2, "it is over");
    net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    net.run(seconds(2));
    assert_eq!(refused(&net), 20);
    let (counters, drops) = net.operate(|border, _| (border.counters().clone(), border.drops()));
    assert_eq!((counters.shed, counters.offered), (21, 4));
    // Their ACKs are known by the tag, though nothing was kept.
    assert_eq!(drops.get(DropReason::SipRefusedAck), 20);
    assert_eq!(drops.get(DropReason::SipStrayAck), 0);
}

/// A thread that stands still now and then, and finds a message each time: nothing is too much.
#[test]
fn two_standstills_are_no_overload() {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    net.lag = (OUT.parse().ok(), Duration::from_millis(80));
    for _ in 0..5 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(3));
    }
    let answered = net.told(caller);
    let answered = answered.iter().filter(|told| **told == Told::Answered);
    assert_eq!(answered.count(), 5);
    assert_eq!(net.operate(|border, _| border.counters().shed), 0);
}

/// Far more than can be dealt with: the refusals themselves are held back, and what is dropped is dropped again.
#[test]
fn of_a_flood_not_even_the_refusals_are_all_said() {
    let bypass = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let mut net = Neighbourhood::new(&bypass, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    let at = OUT.parse().ok();
    let uri = "sip:2000@192.0.2.1";
    // A call takes a millisecond and a refusal a tenth; each waits until those before it are done. Five thousand come in a second.
    let (mut offered, mut done, mut queue) = (0, 0, 0u64);
    let mut standing = None;
    let mut settled = (0, 0);
    for millisecond in 0..8_000 {
        for _ in 0..5 {
            net.lag = (at, Duration::from_micros(100 * queue));
            let leg = net.call(caller, uri, OUT, &offer);
            standing = standing.or(Some(leg).filter(|_| millisecond == 20));
            offered += 1;
            net.run(Duration::from_micros(200));
            let (taken, shed) =
                net.operate(|border, _| (border.counters().offered, border.counters().shed));
            queue = (queue + 10 * taken + shed - done).saturating_sub(2);
            done = 10 * taken + shed;
            if millisecond == 4_000 {
                settled = (taken, shed);
            }
        }
    }
    let counters = net.operate(|border, _| border.counters().clone());
    let (taken, shed) = (counters.offered - settled.0, counters.shed - settled.1);
    assert!(taken >= 3_700, "{taken} {shed} {counters:?}");
    assert!(
        (taken / 40..taken).contains(&shed),
        "{taken} {shed} {counters:?}"
    );
    // What began when there was still room ends in order.
    let first = standing.expect("a first call");
    net.tell(caller, |endpoint, now| {
        endpoint.bye(first, &Content::default(), now).unwrap();
    });
    net.lag = (at, Duration::ZERO);
    net.run(seconds(60));
    assert!(net.has(caller, |told| matches!(told, Told::Ended(..))));
    let (counters, drops) = net.operate(|border, _| (border.counters().clone(), border.drops()));
    assert!(counters.unread > 1_000, "{counters:?}");
    assert_eq!(drops.get(DropReason::SipUnread), counters.unread);
    let states: Vec<_> = net
        .names()
        .into_iter()
        .filter(|n| *n == "overload")
        .collect();
    assert_eq!(states.len(), 2, "it began and it ended");
    // Each call has an end: taken, refused, or given up by its caller.
    let told = net.told(caller);
    let ended = told
        .iter()
        .filter(|t| matches!(t, Told::Answered | Told::Failed(..)));
    assert_eq!(ended.count(), offered);
    // It is as if nothing had been.
    let before = counters.offered;
    net.call(caller, uri, OUT, &offer);
    net.run(seconds(1));
    let counters = net.operate(|border, _| border.counters().clone());
    assert_eq!(counters.offered, before + 1);
}

/// Neither rates nor overload refuse a call for help.
#[test]
fn calls_for_help_come_in_whatever_is_refused() {
    let config = PLAIN.replace(
        "kind='access'\n",
        "kind='access'\nrates={calls=1,source_calls=1,status=486}\n",
    ) + "[sip]\nrefusals=0\n";
    let mut net = Neighbourhood::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    let at = OUT.parse().ok();
    let mut helped = 0;
    for round in 0..40 {
        net.lag = (at, Duration::from_millis(80));
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        if round % 4 == 0 {
            net.call(caller, "urn:service:sos.fire", OUT, &offer);
            helped += 1;
        }
        net.run(Duration::from_millis(50));
    }
    net.run(seconds(2));
    let counters = net.operate(|border, _| border.counters().clone());
    assert!(counters.shed > 0 && counters.shielded > 0, "{counters:?}");
    assert_eq!(
        counters.shed + counters.shielded + counters.offered,
        40 + helped
    );
    assert!(counters.offered >= helped, "{counters:?}");
    // And they lead somewhere, under the same name.
    let line = "INVITE urn:service:sos.fire SIP/2.0";
    let led = net
        .seen(callee)
        .iter()
        .filter(|seen| seen.text().starts_with(line));
    assert_eq!(led.count() as u64, helped);
}

/// Calls take room in the machine; where there is none left they get the chosen status, and it comes back with their ends.
#[test]
fn calls_that_do_not_fit_into_the_machine_are_refused() {
    let config = format!("{PLAIN}\n[limits]\nmemory=1\nstatus=486\n");
    let mut net = Neighbourhood::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(SDP_A.as_bytes());
    let fit = (1_024 / Cost::of_call(true, [None, None]).memory) as usize;
    let legs: Vec<_> = (0..fit + 5)
        .map(|_| net.call(caller, "sip:2000@192.0.2.1", OUT, &offer))
        .collect();
    net.run(seconds(2));
    let count = |net: &Neighbourhood, wanted: fn(&Told) -> bool| {
        net.told(caller).iter().filter(|told| wanted(told)).count()
    };
    let answered = |told: &Told| *told == Told::Answered;
    let refused = |told: &Told| *told == Told::Failed(Failure::Response, 486);
    assert_eq!((count(&net, answered), count(&net, refused)), (fit, 5));
    let (counters, census) = net.operate(|border, _| (border.counters().clone(), border.census()));
    assert_eq!(counters.not_admitted, 5);
    assert_eq!(census.admitted, fit as u64 * 48);
    let told = net
        .names()
        .into_iter()
        .filter(|name| *name == "admission_refused");
    assert_eq!(told.count(), 1);
    // One ends, one comes.
    net.tell(caller, |endpoint, now| {
        endpoint.bye(legs[0], &Content::default(), now).unwrap();
    });
    net.run(seconds(2));
    for _ in 0..2 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    }
    net.run(seconds(2));
    assert_eq!((count(&net, answered), count(&net, refused)), (fit + 1, 6));
}

/// Where the kernel relays media more calls fit; those that it cannot relay take what sockets cost, and all do when it ceases to.
#[test]
fn the_path_of_media_says_how_many_calls_fit() {
    let config = format!(
        "{PLAIN}
[limits]
processor=1
status=486
"
    );
    let config = config.replace(
        "kind='access'",
        "kind='access'
srtp='prefer'",
    );
    let mut net = Neighbourhood::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let kernel = |addresses: &[&str]| MediaCarrier {
        way: MediaWay::Kernel,
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let sockets = Cost::of_call(true, [None, None]).processor;
    let fit = 10_000 / Cost::of_call_by(MediaWay::Kernel, [None, None]).processor;
    assert!(fit > 5 * (10_000 / sockets), "{fit}");
    // Half a path is none: what comes in at one interface leaves by the other.
    net.operate(|border, _| border.set_media_carrier(kernel(&["192.0.2.1"])));
    let (answered, legs) = answered_of(&mut net, caller, 25, SDP_A, true);
    assert_eq!(answered as u64, 10_000 / sockets);
    for leg in legs {
        net.tell(caller, |endpoint, now| {
            let _ = endpoint.bye(leg, &Content::default(), now);
        });
    }
    net.run(seconds(2));
    let both = kernel(&["192.0.2.1", "198.51.100.1"]);
    net.operate(|border, _| border.set_media_carrier(both.clone()));
    let (answered, _) = answered_of(&mut net, caller, 50, SDP_A, true);
    assert_eq!(answered, 50);
    assert_eq!(taken(&mut net, Part::Media), 50 * 90);
    // One with keys goes through sockets.
    let secret = SDP_A.replace("RTP/AVP", "RTP/SAVP") + KEYS[0];
    let (answered, _) = answered_of(&mut net, caller, 1, &secret, true);
    assert_eq!(answered, 1);
    assert_eq!(taken(&mut net, Part::Media), 50 * 90 + 500);
    // The path is lost: what stands takes more than there is, and nothing else comes in.
    net.run(seconds(10));
    net.events.clear();
    net.operate(|border, _| border.set_media_carrier(MediaCarrier::default()));
    assert_eq!(taken(&mut net, Part::Media), 51 * 500);
    let (answered, _) = answered_of(&mut net, caller, 1, SDP_A, true);
    assert_eq!(answered, 0);
    let refused = net.events.iter().find_map(|event| match &event.note {
        Note::AdmissionRefused {
            calls,
            calls_max,
            path,
            ..
        } => Some((*calls, *calls_max, path.clone())),
        _ => None,
    });
    let (calls, calls_max, path) = refused.unwrap();
    assert_eq!((calls, calls_max), (51, 10_000 / sockets));
    assert_eq!(path.as_deref(), Some("sockets"));
    net.operate(|border, _| border.set_media_carrier(both));
    assert_eq!(taken(&mut net, Part::Media), 50 * 90 + 500);
}

/// A key of 30 bytes, of a suite in counter mode; and one of 28 for GCM.
const KEYS: [&str; 2] = [
    "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n",
    "a=crypto:1 AEAD_AES_128_GCM inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\r\n",
];

/// Microseconds of processor time that are taken for this.
fn taken(net: &mut Neighbourhood, part: Part) -> u64 {
    let all = net.operate(|border, now| border.taken(now));
    let of = all.iter().find(|(known, _)| *known == part).unwrap();
    of.1.processor
}

/// How many calls of as many are answered, each offered when the one before stands, or all at once; their legs.
fn answered_of(
    net: &mut Neighbourhood,
    caller: usize,
    count: usize,
    offer: &str,
    at_once: bool,
) -> (usize, Vec<sip::LegId>) {
    let offer = Content::sdp(offer.as_bytes());
    let before = net.operate(|border, _| border.counters().answered);
    let legs = (0..count)
        .map(|_| {
            let leg = net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
            if !at_once {
                net.run(seconds(1));
            }
            leg
        })
        .collect();
    net.run(seconds(2));
    let after = net.operate(|border, _| border.counters().answered);
    ((after - before) as usize, legs)
}

/// Protection takes of the machine: fewer calls fit, by the suite that they use; and their room comes back.
#[test]
fn calls_whose_media_is_protected_take_more_of_the_machine() {
    // One percent of a processor: 10,000 microseconds in each second.
    let config = |srtp: &str| {
        let limits = format!("{PLAIN}\n[limits]\nprocessor=1\nstatus=486\n");
        limits.replace("kind='access'", &format!("kind='access'\nsrtp='{srtp}'"))
    };
    let plain = Cost::of_call(true, [None, None]).processor;
    let [counter, gcm] = [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm]
        .map(|suite| Cost::of_srtp(Keying::Sdes, suite).processor);
    let secret = |keys: &str| SDP_A.replace("RTP/AVP", "RTP/SAVP") + keys;
    // Who must be protected is counted at once; who may be, when he has keys.
    for (srtp, offer, price, at_once) in [
        ("pass", SDP_A.to_owned(), 0, true),
        ("prefer", SDP_A.to_owned(), 0, true),
        ("prefer", secret(KEYS[0]), counter, false),
        ("prefer", secret(KEYS[1]), gcm, false),
        ("require", secret(KEYS[0]), counter, true),
        // One of a cheaper kind than expected makes room for the next.
        ("require", secret(KEYS[1]), gcm, false),
    ] {
        let mut net = Neighbourhood::new(&config(srtp), 1);
        let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
        net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
        let fit = (10_000 / (plain + price)) as usize;
        let (answered, legs) = answered_of(&mut net, caller, 25, &offer, at_once);
        let expected = match (srtp, price == gcm) {
            // Each is let in as one of the dearer kind.
            ("require", true) => (1 + (10_000 - plain - counter) / (plain + gcm)) as usize,
            _ => fit,
        };
        assert_eq!(answered, expected, "{srtp} {price}");
        assert_eq!(taken(&mut net, Part::Srtp), answered as u64 * price);
        let refused = net.events.iter().find_map(|event| match &event.note {
            Note::AdmissionRefused {
                what, processor, ..
            } => Some((what.clone(), processor.clone())),
            _ => None,
        });
        let (what, processor) = refused.unwrap();
        assert_eq!(what, "processor");
        assert!(processor.starts_with("call "), "{processor}");
        assert!(processor.ends_with(" of 10000"), "{processor}");
        assert_eq!(processor.contains(" srtp "), price > 0, "{processor}");
        // All of it comes back.
        for leg in legs {
            net.tell(caller, |endpoint, now| {
                let _ = endpoint.bye(leg, &Content::default(), now);
            });
        }
        net.run(seconds(2));
        let left = net.operate(|border, now| border.taken(now));
        assert!(
            left.iter().all(|(_, cost)| *cost == Cost::default()),
            "{left:?}"
        );
    }
}

/// New keys of a call that stands take the place of its old ones.
#[test]
fn new_keys_are_no_second_price() {
    let config = PLAIN.replace("kind='access'", "kind='access'\nsrtp='prefer'");
    let mut net = Neighbourhood::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let secret = |keys: &str| SDP_A.replace("RTP/AVP", "RTP/SAVP") + keys;
    let (answered, legs) = answered_of(&mut net, caller, 1, &secret(KEYS[0]), true);
    assert_eq!(answered, 1);
    let price = |suite| Cost::of_srtp(Keying::Sdes, suite).processor;
    assert_eq!(
        taken(&mut net, Part::Srtp),
        price(Suite::AesCm128HmacSha1_80)
    );
    let again = secret(KEYS[1]).replace("1 1 IN", "1 2 IN");
    net.tell(caller, |endpoint, now| {
        let content = Content::sdp(again.as_bytes());
        endpoint
            .request(legs[0], Method::Invite, &content, now)
            .unwrap();
    });
    net.run(seconds(2));
    assert_eq!(taken(&mut net, Part::Srtp), price(Suite::AeadAes128Gcm));
}
