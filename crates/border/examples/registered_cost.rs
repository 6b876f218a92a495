//! Cost of registrations: many of them kept in memory, found again, repeated from the cache in front of a core, and
//! made in full with digest. Prints bytes per registration and the border's own time for each kind.
//! `registered_cost [COUNT [stored]]`, by default 1,000,000; with `stored` the border tracks changes for a file, and
//! they are drained after each message.

mod seven;

use engine::{Engine as _, Entropy};
use protect::digest::{Challenge, ClientSession, Secret};
use seven::{Bench, CALLEE, find, reply};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;
use wire::sip::{HeaderId, Message};

/// Users who register with digest.
const PROVEN: usize = 10_000;
/// Phones in front of a core.
const PASSED: usize = 100_000;

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * 4096
}

fn address(phone: usize) -> String {
    // Some thousand ports behind each address, as phones behind provider NAT are.
    let ip = Ipv4Addr::from(0x0a00_0000 + (phone / 1_000) as u32);
    format!("{ip}:{}", 20_000 + phone % 1_000)
}

fn register(phone: usize, number: u32, more: &str) -> Vec<u8> {
    let at = address(phone);
    format!(
        "REGISTER sip:192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP {at};branch=z9hG4bK-{phone}-{number};rport\r\n\
         From: <sip:{phone}@192.0.2.1>;tag=f{phone}\r\nTo: <sip:{phone}@192.0.2.1>\r\nCall-ID: {phone}-7d1fa9b0c4@{at}\r\n\
         CSeq: {number} REGISTER\r\nMax-Forwards: 70\r\nContact: <sip:{phone}@{at}>\r\nExpires: 7200\r\n\
         User-Agent: Phone\r\n{more}Content-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// A turn of a millisecond.
fn pass(bench: &mut Bench) {
    bench.now += Duration::from_millis(1);
    bench.tick();
}

/// A border that tracks changes of its registrations if `stored`.
fn bench(config: &str, stored: bool) -> Bench {
    let mut bench = Bench::new(config);
    if stored {
        bench.border.track_registration_changes();
    }
    bench
}

fn nanos(bench: &mut Bench, count: usize) -> u128 {
    let spent = std::mem::take(&mut bench.spent);
    spent.as_nanos() / count.max(1) as u128
}

/// Loads them, and repeats some of them.
fn kept(count: usize, stored: bool) {
    let config = format!(
        "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\nregister='local'\n\
         [registrar]\nmax_expires_s=86400\nnat_expires_s=0\n[limits]\nregistrations={count}\n"
    );
    let mut bench = bench(&config, stored);
    let before = resident();
    for phone in 0..count {
        pass(&mut bench);
        bench.give(&address(phone), register(phone, 1, ""));
        find(&bench.out, "SIP/2.0 200");
    }
    println!("ns_per_new_registration {}", nanos(&mut bench, count));
    // Ended transactions are gone after 32 s.
    for _ in 0..40_000 {
        pass(&mut bench);
    }
    let grown = resident().saturating_sub(before);
    println!("registered {count}");
    println!("bytes_per_registration {}", grown / count.max(1) as u64);
    bench.spent = Duration::ZERO;
    let again = count.min(100_000);
    for turn in 0..again {
        // All over the table, as phones come.
        let phone = turn * 7_919 % count;
        pass(&mut bench);
        bench.give(&address(phone), register(phone, 2 + turn as u32, ""));
        find(&bench.out, "SIP/2.0 200");
    }
    println!("ns_per_repeated_registration {}", nanos(&mut bench, again));
    println!("registration_changes {}", bench.drained);
}

/// Phones whose registrations a core has taken repeat them: answered from the cache.
fn passed(count: usize, stored: bool) {
    let config = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\nregister='pass:core'\n\
        [[trunk]]\nname='core'\ninterface='a'\ntarget='udp:198.51.100.1:5060'\n[registrar]\nrefresh_interval_s=1800\nnat_expires_s=0\n";
    let mut bench = bench(config, stored);
    for phone in 0..count {
        pass(&mut bench);
        bench.give(&address(phone), register(phone, 1, ""));
        let asked = find(&bench.out, "REGISTER");
        let contact = Message::parse(&asked).unwrap();
        let contact = contact.header(HeaderId::Contact).unwrap_or_default();
        let contact = String::from_utf8_lossy(contact).into_owned();
        let answer = String::from_utf8(reply(&asked, "200 OK", "core", "")).unwrap();
        let answer = answer.replace(
            "Contact: <sip:198.51.100.1:5060>",
            &format!("Contact: {contact}"),
        );
        bench.give(CALLEE, answer.into_bytes());
        find(&bench.out, "SIP/2.0 200");
    }
    println!("ns_per_passed_registration {}", nanos(&mut bench, count));
    for phone in 0..count {
        pass(&mut bench);
        bench.give(&address(phone), register(phone, 2, ""));
        find(&bench.out, "SIP/2.0 200");
    }
    println!(
        "ns_per_registration_from_the_cache {}",
        nanos(&mut bench, count)
    );
    println!("passed_registration_changes {}", bench.drained);
    assert_eq!(bench.border.counters().refreshed, count as u64);
}

/// Full registrations: challenged, then authenticated.
fn proven(count: usize) {
    let mut config = String::from(
        "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\nregister='local'\nauthenticate='digest'\n\
         [registrar]\nnat_expires_s=0\n",
    );
    for phone in 0..count {
        let _ = write!(
            config,
            "[[user]]\nname='{phone}'\npassword='secret-{phone}'\n"
        );
    }
    let mut bench = Bench::new(&config);
    let mut entropy = Entropy::from_number(2);
    for round in 0..2 {
        bench.spent = Duration::ZERO;
        for phone in 0..count {
            pass(&mut bench);
            let number = round * 2 + 1;
            bench.give(&address(phone), register(phone, number, ""));
            let asked = find(&bench.out, "SIP/2.0 401");
            let user = phone.to_string();
            let secret = Secret::Password(format!("secret-{phone}").into_bytes());
            let asked = Message::parse(&asked).unwrap();
            let challenge = Challenge::choose(&asked, HeaderId::WwwAuthenticate, &secret).remove(0);
            let session = ClientSession::new(challenge, user.as_bytes(), &secret, &mut entropy);
            let mut credentials = b"Authorization: ".to_vec();
            session.unwrap().write_credentials(
                b"REGISTER",
                b"sip:192.0.2.1",
                b"",
                &mut credentials,
            );
            credentials.extend_from_slice(b"\r\n");
            let credentials = String::from_utf8(credentials).unwrap();
            bench.give(&address(phone), register(phone, number + 1, &credentials));
            find(&bench.out, "SIP/2.0 200");
        }
    }
    println!(
        "ns_per_full_registration_with_digest {}",
        nanos(&mut bench, count)
    );
    assert!(bench.border.next_deadline().is_some());
}

fn main() {
    let count: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000_000);
    let stored = std::env::args().nth(2).is_some_and(|word| word == "stored");
    kept(count, stored);
    passed(PASSED.min(count), stored);
    proven(PROVEN.min(count));
}
