//! A resolver whose servers, transports or address families change, fail, or differ for a request.

use super::*;

/// A pending lookup is evaluated with changed transports and families; answers are kept.
#[test]
fn other_transports_and_families_keep_lookups_and_answers() {
    let plain = vec![Transport::Udp, Transport::Tcp];
    let mut resolver = resolver(|config| {
        config.transports = plain.clone();
        config.ipv6 = false;
    });
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1])
        .aaaa("h.example.com", 1);
    let uri = "sip:h.example.com:5080";
    let pending = resolver.locate(request(uri), Time::ZERO);
    assert!(matches!(pending, LookupStart::Pending(_)));
    resolver.set_supported(vec![Transport::Tls], true, true);
    let mut found = None;
    while let Some(query) = resolver.next_query() {
        let answer = zone.answer(&query.bytes);
        resolver.answer(query.server, &answer, Time::ZERO).unwrap();
        found = resolver.next_outcome().or(found);
    }
    let found = found.unwrap().targets.unwrap();
    let found: Vec<_> = found
        .map(|target| format!("{} {}", target.transport, target.address))
        .collect();
    assert_eq!(found, ["tls 192.0.2.1:5080", "tls [2001:db8::1]:5080"]);
    let asked = zone.questions.len();
    resolver.set_supported(plain, true, false);
    let found = run(&mut resolver, zone, uri, Time::ZERO);
    assert_eq!(found, list(&["udp 192.0.2.1:5080"]));
    assert_eq!(zone.questions.len(), asked);
}

#[test]
fn replacing_a_resolver_closes_its_streams() {
    let mut old = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1]);
    let _ = old.locate(request("sip:h.example.com:5060"), Time::ZERO);
    let query = old.next_query().unwrap();
    let cut = truncated(zone.answer(&query.bytes), false);
    old.answer(query.server, &cut, Time::ZERO).unwrap();
    let (stream, ..) = opened(&mut old);
    let mut new = resolver(|_| {});
    new.take_over(&old);
    assert_eq!(new.next_stream_work(), Some(StreamWork::Close { stream }));
    assert_eq!(
        new.stream_bytes(stream, b"\0", Time::ZERO),
        Err(IgnoredAnswer::Unasked)
    );
}

/// The targets for a request that can be sent over these transports.
fn located(zone: &mut Zone, uri: &str, usable: &[Transport]) -> Result<Vec<String>, LocateError> {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let request = LocateRequest {
        usable: usable.to_vec(),
        ..request(uri)
    };
    let mut result = match resolver.locate(request, Time::ZERO) {
        LookupStart::Done(result) => Some(result),
        LookupStart::Pending(_) => None,
    };
    while let Some(query) = resolver.next_query() {
        let answer = zone.answer(&query.bytes);
        resolver.answer(query.server, &answer, Time::ZERO).unwrap();
        result = resolver.next_outcome().map(|done| done.targets).or(result);
    }
    let targets = result.expect("the lookup has ended")?;
    Ok(targets
        .map(|target| format!("{} {}", target.transport, target.address))
        .collect())
}

/// RFC 3263 section 4.1: services with transports that the client does not support are discarded, whatever their order.
#[test]
fn services_with_unusable_transports_are_ignored() {
    use Transport::{Tcp, Tls, Udp};
    let zone = &mut Zone::default();
    zone.naptr(50, 50, "SIPS+D2T", "_sips._tcp.example.com")
        .naptr(90, 50, "SIP+D2T", "_sip._tcp.example.com")
        .naptr(100, 50, "SIP+D2U", "_sip._udp.example.com")
        .srv("_sips._tcp.example.com", 1, 1, 5061, "h.example.com")
        .srv("_sip._tcp.example.com", 1, 1, 5062, "h.example.com")
        .srv("_sip._udp.example.com", 1, 1, 5063, "h.example.com")
        .a("h.example.com", [192, 0, 2, 1])
        .srv("_sip._udp.two.example.com", 1, 1, 5064, "h.example.com")
        .srv("_sip._tcp.two.example.com", 1, 1, 5065, "h.example.com");
    for (usable, expected) in [
        (&[][..], "tls 192.0.2.1:5061"),
        (&[Udp, Tcp, Tls], "tls 192.0.2.1:5061"),
        (&[Udp, Tcp], "tcp 192.0.2.1:5062"),
        (&[Udp], "udp 192.0.2.1:5063"),
    ] {
        let found = located(zone, "sip:example.com", usable);
        assert_eq!(found, list(&[expected]), "{usable:?}");
    }
    // Without NAPTR records, and without SRV records.
    for (uri, usable, expected) in [
        ("sip:two.example.com", Tcp, Ok("tcp 192.0.2.1:5065")),
        ("sip:two.example.com", Udp, Ok("udp 192.0.2.1:5064")),
        ("sip:h.example.com", Tcp, Ok("tcp 192.0.2.1:5060")),
        ("sip:h.example.com", Tls, Ok("tls 192.0.2.1:5061")),
        ("sip:192.0.2.1", Tcp, Ok("tcp 192.0.2.1:5060")),
        (
            "sip:h.example.com;transport=udp",
            Tcp,
            Err(LocateError::Unsupported),
        ),
    ] {
        let expected = expected.and_then(|target| list(&[target]));
        assert_eq!(located(zone, uri, &[usable]), expected, "{uri} {usable}");
    }
}

/// Lets the servers be silent until the next lookup ends; its targets and the time.
fn silence(resolver: &mut Resolver) -> (Result<Vec<String>, LocateError>, Time) {
    loop {
        while resolver.next_query().is_some() {}
        let now = resolver.next_deadline().expect("a lookup is under way").at;
        resolver.timeout(now);
        if let Some(outcome) = resolver.next_outcome() {
            let shown = |target: ResolvedTarget| format!("{} {}", target.transport, target.address);
            return (outcome.targets.map(|found| found.map(shown).collect()), now);
        }
    }
}

/// RFC 8767: the addresses of before are used, for a day.
#[test]
fn addresses_outlast_an_outage_of_all_name_servers() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.a("example.com", [192, 0, 2, 1]);
    let uri = "sip:example.com";
    let before = run(&mut resolver, zone, uri, Time::ZERO);
    assert!(before.is_ok(), "{before:?}");
    // Records were to be kept for 300 s, absences for 40 s.
    let start = Time::from_secs(1_000);
    let pending = resolver.locate(request(uri), start);
    assert!(matches!(pending, LookupStart::Pending(_)));
    let (found, now) = silence(&mut resolver);
    assert_eq!(found, before);
    assert_eq!(now, start + Duration::from_millis(1_800));
    // The calls that follow do not wait, for half a minute.
    let again = resolver.locate(request(uri), now + Duration::from_secs(29));
    assert!(matches!(again, LookupStart::Done(Ok(_))), "{again:?}");
    let again = resolver.locate(request(uri), now + Duration::from_secs(31));
    assert!(matches!(again, LookupStart::Pending(_)), "{again:?}");
    assert_eq!(silence(&mut resolver).0, before);
    let late = Time::from_secs(2 * 86_400);
    let pending = resolver.locate(request(uri), late);
    assert!(matches!(pending, LookupStart::Pending(_)));
    assert_eq!(silence(&mut resolver).0, Err(LocateError::NoAnswer));
}

/// The first name server is down: not each question waits for it.
#[test]
fn questions_go_to_the_server_that_answers() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    for host in ["a", "b", "c"] {
        zone.a(&format!("{host}.example.com"), [192, 0, 2, 1]);
    }
    let mut asked = |host: &str, start: u64| {
        let mut now = Time::from_secs(start);
        let uri = format!("sip:{host}.example.com:5060");
        let pending = resolver.locate(request(&uri), now);
        assert!(matches!(pending, LookupStart::Pending(_)));
        let mut servers = Vec::new();
        loop {
            while let Some(query) = resolver.next_query() {
                servers.push(query.server.to_string());
                if query.server.to_string() == SERVERS[1] {
                    let answer = zone.answer(&query.bytes);
                    resolver.answer(query.server, &answer, now).unwrap();
                }
            }
            if let Some(outcome) = resolver.next_outcome() {
                assert!(outcome.targets.is_ok());
                return servers;
            }
            now = resolver.next_deadline().expect("a lookup is under way").at;
            resolver.timeout(now);
        }
    };
    assert_eq!(asked("a", 0), [SERVERS[0], SERVERS[1]]);
    assert_eq!(asked("b", 10), [SERVERS[1]]);
    // From time to time the first one is tried again.
    assert_eq!(asked("c", 400), [SERVERS[0], SERVERS[1]]);
}

/// A refusal of one name, or a failure for it, moves the questions for other names to no other server, which may not
/// have them: an internal server that is authoritative only, before a public one.
#[test]
fn refused_question_moves_no_other_one() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.a("carrier.example.com", [192, 0, 2, 1])
        .a("pbx.example.com", [192, 0, 2, 2]);
    let mut asked = |host: &str| {
        let uri = format!("sip:{host}.example.com:5060");
        let pending = resolver.locate(request(&uri), Time::ZERO);
        assert!(matches!(pending, LookupStart::Pending(_)));
        let mut servers = Vec::new();
        while let Some(query) = resolver.next_query() {
            servers.push(query.server.to_string());
            let refuses = host == "carrier" && servers.len() == 1;
            let answer = match refuses {
                true => server_failure(&query),
                false => zone.answer(&query.bytes),
            };
            resolver.answer(query.server, &answer, Time::ZERO).unwrap();
        }
        let outcome = resolver.next_outcome().expect("an outcome");
        assert!(outcome.targets.is_ok());
        servers
    };
    assert_eq!(asked("carrier"), [SERVERS[0], SERVERS[1]]);
    assert_eq!(asked("pbx"), [SERVERS[0]]);
}
