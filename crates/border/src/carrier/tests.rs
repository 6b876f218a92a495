//! Responses of a carrier, and the time of the next REGISTER.

use super::*;
use config::parse;
use core::time::Duration;

const CONFIG: &str = "[[interface]]\nname='out'\nlisten='udp:10.0.0.5:5060'\n\
    [[trunk]]\nname='tel'\ntarget=['192.0.2.1','192.0.2.2']\ndomain='tel.example'\nusername='431'\npassword='x'\nregister={expires_s=600, contact_user='main'}\n\
    [[trunk]]\nname='plain'\ntarget='192.0.2.9'\n";

struct Bench {
    carriers: Carriers,
    now: Time,
}

impl Bench {
    fn new(config: &str) -> Bench {
        let config = parse(config, "t").unwrap();
        Bench {
            carriers: Carriers::new(&config, true, Entropy::from_number(3), Time::ZERO),
            now: Time::ZERO,
        }
    }

    /// Advances to the next REGISTER and returns it with the seconds passed.
    fn next(&mut self) -> (Registration, f64) {
        let before = self.now;
        loop {
            self.now = self
                .carriers
                .next_deadline()
                .expect("something is planned")
                .at;
            let end = |_, _, _| {
                Some(OurEnd {
                    host: "10.0.0.5:5060".into(),
                    transport: Transport::Udp,
                })
            };
            if let Some(registration) = self.carriers.next_registration(self.now, end) {
                return (registration, self.now.since(before).as_secs_f64());
            }
        }
    }

    fn answer(
        &mut self,
        registration: &Registration,
        status: u16,
        via: &str,
        more: &str,
    ) -> Option<EventKind> {
        let text = format!(
            "SIP/2.0 {status} X\r\nVia: SIP/2.0/UDP 10.0.0.5:5060;branch=z9hG4bK1{via}\r\nFrom: <sip:431@x>;tag=1\r\n\
             To: <sip:431@x>;tag=2\r\nCall-ID: {}\r\nCSeq: {} REGISTER\r\n{more}Content-Length: 0\r\n\r\n",
            registration.call_id, registration.cseq
        );
        let message = Message::parse(text.as_bytes()).unwrap();
        let result = CarrierResult::Response(&message);
        self.carriers
            .result(registration.trunk, registration.number, result, self.now)
    }

    fn lose(&mut self, registration: &Registration) -> Option<EventKind> {
        let result = CarrierResult::TimedOut;
        self.carriers
            .result(registration.trunk, registration.number, result, self.now)
    }
}

fn state(note: Option<EventKind>) -> String {
    match note {
        Some(EventKind::CarrierRegistration { state, reason, .. }) => match reason {
            Some(reason) => format!("{state}: {reason}"),
            None => state,
        },
        None => String::new(),
        Some(other) => panic!("{other:?}"),
    }
}

fn contact(registration: &Registration) -> String {
    String::from_utf8_lossy(&registration.contact).into_owned()
}

#[test]
fn registration_is_refreshed_at_half_its_expiry() {
    let mut bench = Bench::new(CONFIG);
    let (first, waited) = bench.next();
    assert!(waited <= 1.0);
    assert_eq!(
        (
            first.uri.as_slice(),
            first.account.as_slice(),
            contact(&first).as_str(),
            first.expires,
            first.target
        ),
        (
            &b"sip:tel.example"[..],
            &b"<sip:431@tel.example>"[..],
            "<sip:main@10.0.0.5:5060>",
            600,
            0
        )
    );
    let note = bench.answer(
        &first,
        200,
        ";rport=5060;received=10.0.0.5",
        &format!("Contact: {};expires=300\r\n", contact(&first)),
    );
    assert_eq!(state(note), "registered");
    assert_eq!(bench.carriers.registered(TrunkId(0)), Some(true));
    assert_eq!(bench.carriers.registered(TrunkId(1)), None);
    assert_eq!(bench.carriers.contact_user(TrunkId(0)), Some("main"));
    let (second, waited) = bench.next();
    assert_eq!(waited, 150.0);
    assert_eq!(
        (&second.call_id, second.cseq),
        (&first.call_id, first.cseq + 1)
    );
    assert_eq!(
        state(bench.answer(&second, 200, ";rport", "Expires: 60\r\n")),
        "",
        "no news"
    );
    assert_eq!(bench.next().1, 30.0);
}

#[test]
fn contact_behind_nat_uses_received_and_rport() {
    let mut bench = Bench::new(CONFIG);
    let (first, _) = bench.next();
    bench.answer(&first, 200, ";rport=40001;received=203.0.113.7", "");
    let (second, waited) = bench.next();
    assert_eq!(
        (contact(&second).as_str(), waited),
        ("<sip:main@203.0.113.7:40001>", 0.0)
    );
    bench.answer(
        &second,
        200,
        ";rport=40001;received=203.0.113.7",
        "Expires: 100\r\n",
    );
    let (third, waited) = bench.next();
    assert_eq!(waited, 50.0, "nothing new was learned");
    // A NAT that assigns another port each time must not cause repeated registrations.
    bench.answer(
        &third,
        200,
        ";rport=40002;received=203.0.113.7",
        "Expires: 100\r\n",
    );
    let (fourth, waited) = bench.next();
    assert_eq!(waited, 0.0);
    bench.answer(
        &fourth,
        200,
        ";rport=40003;received=203.0.113.7",
        "Expires: 100\r\n",
    );
    assert_eq!(bench.next().1, 50.0);
}

#[test]
fn advertised_address_overrides_received() {
    let fixed = CONFIG.replace(
        "listen='udp:10.0.0.5:5060'",
        "listen='udp:10.0.0.5:5060'\nadvertise='203.0.113.1'",
    );
    let mut bench = Bench::new(&fixed);
    let (first, _) = bench.next();
    bench.answer(
        &first,
        200,
        ";rport=40001;received=203.0.113.7",
        "Expires: 100\r\n",
    );
    let (second, waited) = bench.next();
    assert_eq!(
        (contact(&second).as_str(), waited),
        ("<sip:main@10.0.0.5:5060>", 50.0),
        "as the owner said"
    );
}

#[test]
fn timeouts_try_the_next_target_with_backoff() {
    let mut bench = Bench::new(CONFIG);
    let mut waits = Vec::new();
    let mut targets = Vec::new();
    for _ in 0..12 {
        let (registration, waited) = bench.next();
        waits.push(waited);
        targets.push(registration.target);
        bench.lose(&registration);
    }
    assert_eq!(targets, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    assert!(waits[1] <= 1.0 && waits[3] <= 1.0, "{waits:?}");
    for (round, wait) in waits.iter().skip(2).step_by(2).enumerate() {
        let base = 30.0 * f64::from(1 << round);
        assert!((base * 0.5..=base.min(1800.0)).contains(wait), "{waits:?}");
    }
    let (last, _) = bench.next();
    assert_eq!(
        state(bench.answer(&last, 200, "", "Expires: 100\r\n")),
        "registered"
    );
}

#[test]
fn rejected_registration_backs_off_and_423_raises_expires() {
    let one = CONFIG.replace("['192.0.2.1','192.0.2.2']", "'192.0.2.1'");
    let mut bench = Bench::new(&one);
    let (first, _) = bench.next();
    assert_eq!(
        state(bench.answer(&first, 423, "", "Min-Expires: 1800\r\n")),
        ""
    );
    let (second, waited) = bench.next();
    assert_eq!((second.expires, waited), (1800, 1.0));
    assert_eq!(
        state(bench.answer(&second, 403, "", "")),
        "failed: refused with 403"
    );
    let (third, waited) = bench.next();
    assert!((150.0..=300.0).contains(&waited), "{waited}");
    assert_eq!(
        state(bench.answer(&third, 503, "", "Retry-After: 100\r\n")),
        "",
        "said once"
    );
    let waited = bench.next().1;
    assert!((100.0..=110.0).contains(&waited), "{waited}");
}

/// RFC 3261 section 20.33. The test of delays that grow is `timeouts_try_the_next_target_with_backoff`.
#[test]
fn retry_after_of_the_carrier_is_obeyed() {
    let one = CONFIG.replace("['192.0.2.1','192.0.2.2']", "'192.0.2.1'");
    let mut bench = Bench::new(&one);
    for seconds in [600, 7_200, 7_200] {
        let (registration, _) = bench.next();
        let later = format!("Retry-After: {seconds}\r\n");
        bench.answer(&registration, 503, "", &later);
        let due = bench.carriers.next_deadline().unwrap().at;
        let waited = due.since(bench.now).as_secs_f64();
        let seconds = f64::from(seconds);
        assert!((seconds..=1.1 * seconds).contains(&waited), "{waited}");
    }
}

/// An account that has failed is reported as registered when that is over, also if its registration did not expire.
#[test]
fn recovery_of_a_registration_is_reported() {
    let mut bench = Bench::new(CONFIG);
    let (first, _) = bench.next();
    assert_eq!(
        state(bench.answer(&first, 200, "", "Expires: 600\r\n")),
        "registered"
    );
    let (second, _) = bench.next();
    assert_eq!(
        state(bench.answer(&second, 503, "", "")),
        "failed: answered 503"
    );
    let (third, _) = bench.next();
    assert_eq!(state(bench.answer(&third, 503, "", "")), "", "said once");
    let (fourth, _) = bench.next();
    let note = bench.answer(&fourth, 200, "", "Expires: 600\r\n");
    assert_eq!(state(note), "registered");
    let note = bench.carriers.flow_failed(TrunkId(0), bench.now);
    assert_eq!(state(note), "failed: flow failed");
    let (fifth, waited) = bench.next();
    assert!(waited <= 5.0);
    let note = bench.answer(&fifth, 200, "", "Expires: 600\r\n");
    assert_eq!(state(note), "registered");
}

#[test]
fn lost_registration_is_reported_and_stale_responses_ignored() {
    let one = CONFIG.replace("['192.0.2.1','192.0.2.2']", "'192.0.2.1'");
    let mut bench = Bench::new(&one);
    let (first, _) = bench.next();
    bench.answer(&first, 200, "", "Expires: 40\r\n");
    let (second, _) = bench.next();
    assert_eq!(
        state(bench.answer(&first, 200, "", "")),
        "",
        "an answer to an older request"
    );
    assert_eq!(
        state(bench.lose(&second)),
        "expired: no answer",
        "the next try comes after the end"
    );
    assert_eq!(bench.carriers.registered(TrunkId(0)), Some(false));
}

#[test]
fn drain_removes_registrations_and_reload_keeps_them() {
    let mut bench = Bench::new(CONFIG);
    let (first, _) = bench.next();
    bench.answer(&first, 200, "", "Expires: 100\r\n");
    bench
        .carriers
        .reload(&parse(CONFIG, "t").unwrap(), bench.now);
    assert_eq!(bench.carriers.registered(TrunkId(0)), Some(true));
    let (second, waited) = bench.next();
    assert_eq!((waited, &second.call_id), (50.0, &first.call_id));
    bench.answer(&second, 200, "", "Expires: 100\r\n");
    assert!(!bench.carriers.none_registered());
    bench.carriers.remove_all(bench.now);
    let (last, waited) = bench.next();
    assert_eq!((last.expires, waited), (0, 0.0));
    assert_eq!(state(bench.answer(&last, 200, "", "")), "removed");
    assert!(bench.carriers.none_registered());
    assert!(bench.carriers.next_deadline().is_none_or(|deadline| {
        bench
            .carriers
            .next_registration(deadline.at, |_, _, _| None)
            .is_none()
    }));
    let other = parse(&CONFIG.replace("expires_s=600", "expires_s=700"), "t").unwrap();
    bench.carriers.reload(&other, bench.now);
    assert!(bench.carriers.next_deadline().is_none(), "it is draining");
    // Without a drain, a changed account is registered anew.
    let mut bench = Bench::new(CONFIG);
    let (first, _) = bench.next();
    bench.answer(&first, 200, "", "Expires: 100\r\n");
    bench
        .carriers
        .reload(&other, bench.now + Duration::from_secs(1));
    let (new, _) = bench.next();
    assert_ne!(new.call_id, first.call_id);
    assert_eq!(new.expires, 700);
}

/// After a reload with another registrar or another address of ours, no carrier knows the present one.
#[test]
fn account_registers_at_once_by_a_changed_path() {
    let base = "[[interface]]\nname='other'\nlisten='udp:10.0.0.6:5060'\n".to_owned()
        + &CONFIG
            .replace("name='tel'", "name='tel'\ninterface='out'")
            .replace("name='plain'", "name='plain'\ninterface='out'");
    let changes = [
        ("['192.0.2.1','192.0.2.2']", "['192.0.2.7','192.0.2.8']"),
        ("['192.0.2.1','192.0.2.2']", "['192.0.2.2','192.0.2.1']"),
        ("['192.0.2.1','192.0.2.2']", "'192.0.2.1'"),
        ("interface='out'", "interface='other'"),
        ("name='out'\n", "name='out'\nadvertise='203.0.113.1'\n"),
        ("10.0.0.5:5060", "10.0.0.5:5070"),
    ];
    for (old, new) in changes {
        let mut bench = Bench::new(&base);
        // The second target has accepted it, and sees us behind NAT.
        let (lost, _) = bench.next();
        bench.lose(&lost);
        let (first, _) = bench.next();
        assert_eq!(first.target, 1);
        let place: SocketAddr = "192.0.2.2:5060".parse().unwrap();
        bench.carriers.accepted_at(first.trunk, first.number, place);
        let nat = ";rport=40001;received=203.0.113.7";
        bench.answer(&first, 200, nat, "Expires: 100\r\n");
        let (corrected, _) = bench.next();
        bench
            .carriers
            .accepted_at(corrected.trunk, corrected.number, place);
        bench.answer(&corrected, 200, nat, "Expires: 100\r\n");
        let changed = parse(&base.replacen(old, new, 1), "t").unwrap();
        bench.carriers.reload(&changed, bench.now);
        assert_eq!(bench.carriers.registered(TrunkId(0)), Some(false), "{new}");
        let (again, waited) = bench.next();
        assert!(waited <= 1.0, "{new}: {waited}");
        assert_eq!((again.target, again.address), (0, None), "{new}");
        assert_eq!(contact(&again), "<sip:main@10.0.0.5:5060>", "{new}");
        assert!(again.cseq > corrected.cseq, "{new}");
        let note = bench.answer(&again, 200, "", "Expires: 100\r\n");
        assert_eq!(state(note), "registered", "{new}");
        // An account whose path did not change keeps its registration.
        bench.carriers.reload(&changed, bench.now);
        assert_eq!(bench.carriers.registered(TrunkId(0)), Some(true));
        assert_eq!(bench.next().1, 50.0, "{new}");
    }
}

/// RFC 3608 section 6.1.
#[test]
fn service_route_is_that_of_the_last_2xx() {
    const ROUTE: &str = "Service-Route: <sip:p1.tel.example;lr>\r\nService-Route: <sip:p2.tel.example;lr>, <sip:p3.tel.example:5070;lr>\r\n";
    let route = |bench: &Bench| {
        let route = bench.carriers.service_route(TrunkId(0))?;
        let values = route
            .values
            .iter()
            .map(|value| String::from_utf8_lossy(value));
        Some((route.target, values.collect::<Vec<_>>().join(" ")))
    };
    let given = Some((
        0,
        "<sip:p1.tel.example;lr> <sip:p2.tel.example;lr> <sip:p3.tel.example:5070;lr>".to_owned(),
    ));
    let mut bench = Bench::new(CONFIG);
    assert_eq!(route(&bench), None);
    let mut answer = |status: u16, more: &str| {
        let (registration, _) = bench.next();
        let note = bench.answer(&registration, status, "", more);
        (state(note), route(&bench))
    };
    assert_eq!(answer(200, ROUTE), ("registered".into(), given.clone()));
    // The registration lasts.
    assert_eq!(answer(503, "").1, given.clone());
    let by_second = given.map(|(_, values)| (1, values));
    assert_eq!(answer(200, ROUTE).1, by_second);
    let other = "Service-Route: <sip:q.tel.example;lr>\r\n";
    assert_eq!(
        answer(200, other).1,
        Some((0, "<sip:q.tel.example;lr>".into()))
    );
    assert_eq!(answer(200, "").1, None);
    assert_eq!(
        answer(200, other).1,
        Some((0, "<sip:q.tel.example;lr>".into()))
    );
    assert_eq!(answer(403, other).1, None, "a refusal");
    // Routes that are not used are told once.
    let many = "Service-Route: <sip:p;lr>\r\n".repeat(9);
    let long = format!("Service-Route: <sip:{};lr>\r\n", "p".repeat(1_100));
    for (bad, why) in [
        (many.as_str(), "more than 8 values or 1024 octets"),
        (long.as_str(), "more than 8 values or 1024 octets"),
        (
            "Service-Route: <sip:p>\r\n",
            "a value is no URI of a loose router",
        ),
        (
            "Service-Route: <sip:p;lr>, <tel:1;lr>\r\n",
            "a value is no URI of a loose router",
        ),
        (
            "Service-Route: nonsense\r\n",
            "a value is no URI of a loose router",
        ),
    ] {
        assert!(answer(200, other).1.is_some());
        let told = format!("registered: Service-Route not used: {why}");
        assert_eq!(answer(200, bad), (told, None), "{bad}");
        assert_eq!(answer(200, bad), (String::new(), None), "{bad}");
    }
}

#[test]
fn account_does_not_register_during_a_drain() {
    // Its first REGISTER is not sent yet.
    let mut bench = Bench::new(CONFIG);
    bench.carriers.remove_all(bench.now);
    assert!(bench.carriers.none_registered());
    let later = Time::from_secs(10);
    let end = |_, _, _| {
        Some(OurEnd {
            host: "10.0.0.5:5060".into(),
            transport: Transport::Udp,
        })
    };
    assert_eq!(bench.carriers.next_registration(later, end), None);
    // Its REGISTER is in progress, and accepted.
    let mut bench = Bench::new(CONFIG);
    let (first, _) = bench.next();
    bench.carriers.remove_all(bench.now);
    assert!(!bench.carriers.none_registered());
    let note = bench.answer(&first, 200, "", "Expires: 100\r\n");
    assert_eq!(state(note), "registered");
    let (last, waited) = bench.next();
    assert_eq!((last.expires, waited), (0, 0.0));
    assert_eq!(state(bench.answer(&last, 200, "", "")), "removed");
    assert!(bench.carriers.none_registered());
    // It is in progress, and refused or lost.
    for lost in [false, true] {
        let mut bench = Bench::new(CONFIG);
        let (first, _) = bench.next();
        bench.carriers.remove_all(bench.now);
        let note = match lost {
            true => bench.lose(&first),
            false => bench.answer(&first, 503, "", ""),
        };
        assert_eq!(state(note), "");
        assert!(bench.carriers.none_registered());
        assert_eq!(bench.carriers.next_registration(later, end), None);
    }
}

#[test]
fn cseq_exceeds_that_of_the_challenged_request() {
    let mut bench = Bench::new(CONFIG);
    let (mut first, _) = bench.next();
    // The endpoint sent CSeq + 1 with credentials, and the response refers to that.
    first.cseq += 1;
    bench.answer(&first, 200, "", "Expires: 100\r\n");
    let (second, _) = bench.next();
    assert_eq!(second.cseq, first.cseq + 1);
    bench.lose(&second);
    let (third, _) = bench.next();
    assert!(
        third.cseq > second.cseq + 1,
        "the lost one may have been a second one"
    );
}

#[test]
fn refresh_returns_to_the_preferred_target_and_address() {
    let config = CONFIG.replace(
        "['192.0.2.1','192.0.2.2']",
        "[{address='192.0.2.1',priority=2},{address='192.0.2.2',priority=1}]",
    );
    let mut bench = Bench::new(&config);
    let (first, _) = bench.next();
    assert_eq!((first.target, first.address), (1, None));
    bench.lose(&first);
    let (second, _) = bench.next();
    assert_eq!(second.target, 0);
    let place: SocketAddr = "192.0.2.77:5060".parse().unwrap();
    let accept = |bench: &mut Bench, registration: &Registration, seconds: u32| {
        let (trunk, number) = (registration.trunk, registration.number);
        bench.carriers.accepted_at(trunk, number, place);
        bench.answer(registration, 200, "", &format!("Expires: {seconds}\r\n"));
        bench.next().0
    };
    let third = accept(&mut bench, &second, 600);
    assert_eq!((third.target, third.address), (1, None));
    bench.lose(&third);
    let (fourth, _) = bench.next();
    // It would expire while the preferred target is tried.
    let fifth = accept(&mut bench, &fourth, 60);
    assert_eq!((fifth.target, fifth.address), (0, Some(place)));
    bench.lose(&fifth);
    let (sixth, _) = bench.next();
    assert_eq!((sixth.target, sixth.address), (1, None));
}

#[test]
fn register_at_another_address_has_a_higher_cseq() {
    let mut bench = Bench::new(CONFIG);
    let (first, _) = bench.next();
    let again = bench.carriers.next_cseq(first.trunk, first.number);
    assert_eq!(again, Some(first.cseq + 2), "above that with credentials");
    assert_eq!(
        bench.carriers.next_cseq(first.trunk, first.number + 1),
        None
    );
    bench.lose(&first);
    assert_eq!(bench.carriers.next_cseq(first.trunk, first.number), None);
    let (second, _) = bench.next();
    assert!(Some(second.cseq) > again);
}
