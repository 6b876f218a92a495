//! A resolver whose servers, transports or address families change during lookups.

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
