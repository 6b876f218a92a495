//! Server location against a name server built with `simple-dns`, an independent implementation of DNS messages.

mod replaced;

use super::dns::{self, Code, DnsAnswer, DnsName, DnsRecord, Question, RecordType, Srv};
use super::*;
use engine::{Entropy, Time};
use proptest::prelude::*;
use simple_dns::rdata::{A, AAAA, CNAME, NAPTR, RData, SOA, SRV};
use simple_dns::{CLASS, CharacterString, Packet, PacketFlag, RCODE, ResourceRecord, TYPE};
use std::collections::BTreeMap;
use std::time::Duration;

const SERVERS: [&str; 2] = ["192.0.2.53:53", "[2001:db8::53]:53"];

/// A zone and the questions it has received.
#[derive(Default)]
struct Zone {
    records: Vec<(String, u32, RData<'static>)>,
    questions: Vec<String>,
}

impl Zone {
    fn add(&mut self, name: &str, data: RData<'static>) -> &mut Self {
        self.records.push((name.to_owned(), 300, data));
        self
    }

    fn a(&mut self, name: &str, address: [u8; 4]) -> &mut Self {
        self.add(
            name,
            RData::A(A {
                address: u32::from_be_bytes(address),
            }),
        )
    }

    fn aaaa(&mut self, name: &str, last: u16) -> &mut Self {
        let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        self.add(
            name,
            RData::AAAA(AAAA {
                address: address.into(),
            }),
        )
    }

    fn srv(
        &mut self,
        name: &str,
        priority: u16,
        weight: u16,
        port: u16,
        target: &'static str,
    ) -> &mut Self {
        let target = simple_dns::Name::new_unchecked(target);
        self.add(
            name,
            RData::SRV(SRV {
                priority,
                weight,
                port,
                target,
            }),
        )
    }

    fn naptr(
        &mut self,
        order: u16,
        preference: u16,
        service: &'static str,
        replacement: &'static str,
    ) -> &mut Self {
        let text = |text: &'static str| CharacterString::new(text.as_bytes()).unwrap();
        self.add(
            "example.com",
            RData::NAPTR(NAPTR {
                order,
                preference,
                flags: text("s"),
                services: text(service),
                regexp: text(""),
                replacement: simple_dns::Name::new_unchecked(replacement),
            }),
        )
    }

    fn cname(&mut self, name: &str, target: &'static str) -> &mut Self {
        self.add(
            name,
            RData::CNAME(CNAME(simple_dns::Name::new_unchecked(target))),
        )
    }

    /// The answer to a query, with aliases followed within the zone and names compressed.
    fn answer(&mut self, query: &[u8]) -> Vec<u8> {
        let query = Packet::parse(query).expect("our query is a DNS packet");
        assert!(query.has_flags(PacketFlag::RECURSION_DESIRED));
        assert_eq!((query.questions.len(), query.opt().is_some()), (1, true));
        let question = query.questions[0].clone();
        let mut name = question.qname.to_string().to_lowercase();
        self.questions.push(format!("{name} {:?}", question.qtype));
        let mut reply = Packet::new_reply(query.id());
        reply.questions.push(question.clone());
        let mut exists = false;
        for _ in 0..6 {
            let here: Vec<_> = self
                .records
                .iter()
                .filter(|(owner, ..)| *owner == name)
                .cloned()
                .collect();
            exists |= !here.is_empty();
            let mut next = None;
            for (owner, ttl, data) in here {
                let alias = matches!(data, RData::CNAME(_));
                let record = ResourceRecord::new(
                    simple_dns::Name::new(Box::leak(owner.into_boxed_str())).unwrap(),
                    CLASS::IN,
                    ttl,
                    data.clone(),
                );
                if alias || record.match_qtype(question.qtype) {
                    reply.answers.push(record);
                }
                if let RData::CNAME(CNAME(target)) = &data {
                    next = Some(target.to_string().to_lowercase());
                }
            }
            match next {
                Some(target) => name = target,
                None => break,
            }
        }
        if !exists {
            *reply.rcode_mut() = RCODE::NameError;
        }
        if reply.answers.is_empty() {
            reply.name_servers.push(soa(40));
        }
        reply.build_bytes_vec_compressed().expect("an answer")
    }
}

fn soa(minimum: u32) -> ResourceRecord<'static> {
    let name = simple_dns::Name::new_unchecked;
    let data = SOA {
        mname: name("ns"),
        rname: name("root"),
        serial: 1,
        refresh: 1,
        retry: 1,
        expire: 1,
        minimum,
    };
    ResourceRecord::new(name("example.com"), CLASS::IN, 3600, RData::SOA(data))
}

fn resolver(change: impl FnOnce(&mut ResolverConfig)) -> Resolver {
    let mut config = ResolverConfig {
        servers: SERVERS
            .iter()
            .map(|server| server.parse().unwrap())
            .collect(),
        transports: vec![Transport::Udp, Transport::Tcp, Transport::Tls],
        ..ResolverConfig::default()
    };
    change(&mut config);
    Resolver::new(config, Entropy::from_number(3))
}

fn request(uri: &str) -> LocateRequest {
    LocateRequest::from_uri(&Uri::parse(uri.as_bytes()).unwrap()).unwrap()
}

/// Runs a lookup to its end; the zone answers every query.
fn run(
    resolver: &mut Resolver,
    zone: &mut Zone,
    uri: &str,
    now: Time,
) -> Result<Vec<String>, LocateError> {
    let result = match resolver.locate(request(uri), now) {
        LookupStart::Done(result) => result,
        LookupStart::Pending(id) => loop {
            if let Some(outcome) = resolver.next_outcome() {
                assert_eq!(outcome.lookup, id);
                break outcome.targets;
            }
            let query = resolver
                .next_query()
                .expect("a query of the pending lookup");
            let answer = zone.answer(&query.bytes);
            assert_eq!(resolver.answer(query.server, &answer, now), Ok(()));
        },
    };
    while let Some(query) = resolver.next_query() {
        let answer = zone.answer(&query.bytes);
        let _ = resolver.answer(query.server, &answer, now);
    }
    Ok(result?
        .map(|target| format!("{} {}", target.transport, target.address))
        .collect())
}

fn once(zone: &mut Zone, uri: &str) -> Result<Vec<String>, LocateError> {
    run(&mut resolver(|_| {}), zone, uri, Time::ZERO)
}

fn list(targets: &[&str]) -> Result<Vec<String>, LocateError> {
    Ok(targets.iter().map(|target| (*target).to_owned()).collect())
}

#[test]
fn addresses_and_ports_need_no_srv_query() {
    let zone = &mut Zone::default();
    assert_eq!(once(zone, "sip:a@192.0.2.1"), list(&["udp 192.0.2.1:5060"]));
    assert_eq!(
        once(zone, "sips:a@[2001:db8::1]"),
        list(&["tls [2001:db8::1]:5061"])
    );
    assert_eq!(
        once(zone, "sip:a@192.0.2.1:5070;transport=tcp"),
        list(&["tcp 192.0.2.1:5070"])
    );
    assert_eq!(
        once(zone, "sip:a@example.com;maddr=192.0.2.7"),
        list(&["udp 192.0.2.7:5060"])
    );
    assert_eq!(
        once(zone, "sips:192.0.2.1;transport=udp"),
        Err(LocateError::Unsupported)
    );
    assert_eq!(
        once(zone, "sip:192.0.2.1;transport=ws"),
        Err(LocateError::Unsupported)
    );
    assert!(zone.questions.is_empty());
    zone.a("host.example.com", [192, 0, 2, 1])
        .aaaa("host.example.com", 1);
    assert_eq!(
        once(zone, "sip:host.example.com:5080"),
        list(&["udp 192.0.2.1:5080", "udp [2001:db8::1]:5080"])
    );
    assert_eq!(
        zone.questions,
        ["host.example.com TYPE(A)", "host.example.com TYPE(AAAA)"]
    );
    let mut six = resolver(|config| config.prefer_ipv6 = true);
    let found = run(&mut six, zone, "sip:host.example.com:5080", Time::ZERO);
    assert_eq!(
        found,
        list(&["udp [2001:db8::1]:5080", "udp 192.0.2.1:5080"])
    );
    let uri = Uri::parse(b"tel:+49").unwrap();
    assert_eq!(LocateRequest::from_uri(&uri), Err(LocateError::Unsupported));
}

/// The example of RFC 3263 section 4.1.
#[test]
fn naptr_then_srv_then_addresses() {
    let zone = &mut Zone::default();
    zone.naptr(50, 50, "SIPS+D2T", "_sips._tcp.example.com")
        .naptr(90, 50, "SIP+D2T", "_sip._tcp.example.com")
        .naptr(100, 50, "SIP+D2U", "_sip._udp.example.com")
        .srv("_sip._tcp.example.com", 0, 1, 5060, "server1.example.com")
        .srv("_sip._tcp.example.com", 1, 2, 5070, "server2.example.com")
        .srv("_sips._tcp.example.com", 0, 1, 5061, "server1.example.com")
        .a("server1.example.com", [192, 0, 2, 1])
        .a("server2.example.com", [192, 0, 2, 2]);
    assert_eq!(
        once(zone, "sip:user@Example.COM"),
        list(&["tls 192.0.2.1:5061"])
    );
    let mut plain = resolver(|config| config.transports = vec![Transport::Udp, Transport::Tcp]);
    let found = run(&mut plain, zone, "sip:user@example.com", Time::ZERO);
    assert_eq!(
        found,
        list(&["tcp 192.0.2.1:5060", "tcp 192.0.2.2:5070"]),
        "only the first usable order"
    );
    // With a transport, NAPTR is not queried; with a port, neither is SRV.
    zone.questions.clear();
    assert_eq!(
        once(zone, "sip:example.com;transport=tcp"),
        list(&["tcp 192.0.2.1:5060", "tcp 192.0.2.2:5070"])
    );
    assert_eq!(zone.questions[0], "_sip._tcp.example.com TYPE(SRV)");
    // A second order, and an equal order with another preference.
    let zone = &mut Zone::default();
    zone.naptr(10, 20, "SIP+D2U", "udp.example.com")
        .naptr(10, 10, "sip+d2t", "tcp.example.com")
        .srv("udp.example.com", 0, 0, 5060, "h.example.com")
        .srv("tcp.example.com", 0, 0, 5060, "h.example.com")
        .a("h.example.com", [192, 0, 2, 9]);
    assert_eq!(
        once(zone, "sip:example.com"),
        list(&["tcp 192.0.2.9:5060", "udp 192.0.2.9:5060"])
    );
}

#[test]
fn without_naptr_srv_of_every_transport_then_addresses() {
    let zone = &mut Zone::default();
    zone.srv("_sip._udp.example.com", 0, 0, 5066, "h.example.com")
        .a("h.example.com", [192, 0, 2, 3]);
    assert_eq!(once(zone, "sip:example.com"), list(&["udp 192.0.2.3:5066"]));
    let zone = &mut Zone::default();
    zone.a("example.com", [192, 0, 2, 4]);
    assert_eq!(once(zone, "sip:example.com"), list(&["udp 192.0.2.4:5060"]));
    assert_eq!(
        once(zone, "sips:example.com"),
        list(&["tls 192.0.2.4:5061"])
    );
    assert_eq!(
        once(zone, "sip:example.com;transport=tcp"),
        list(&["tcp 192.0.2.4:5060"])
    );
    assert_eq!(
        once(zone, "sip:nowhere.example.com"),
        Err(LocateError::NotFound)
    );
    let zone = &mut Zone::default();
    zone.srv("_sip._udp.example.com", 0, 0, 5060, "")
        .a("example.com", [192, 0, 2, 4]);
    assert_eq!(
        once(zone, "sip:example.com;transport=udp"),
        Err(LocateError::Refused)
    );
}

/// A name server that fails for NAPTR does not prevent the SRV query.
#[test]
fn unanswered_naptr_query_is_followed_by_srv() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.srv("_sip._udp.example.com", 1, 0, 5070, "one.example.com");
    zone.a("one.example.com", [192, 0, 2, 1]);
    assert!(matches!(
        resolver.locate(request("sip:example.com"), Time::ZERO),
        LookupStart::Pending(_)
    ));
    let mut failures = 0;
    while let Some(query) = resolver.next_query() {
        let packet = Packet::parse(&query.bytes).unwrap();
        let naptr = format!("{:?}", packet.questions[0].qtype).contains("NAPTR");
        let mut answer = zone.answer(&query.bytes);
        if naptr {
            failures += 1;
            answer = query.bytes[..12 + "xexample.comx".len() + 4].to_vec();
            answer[2..4].copy_from_slice(&[0x81, 0x82]);
            answer[6..12].fill(0);
        }
        assert_eq!(resolver.answer(query.server, &answer, Time::ZERO), Ok(()));
    }
    assert_eq!(failures, 4, "every try");
    let targets = resolver.next_outcome().unwrap().targets.unwrap();
    let targets: Vec<String> = targets
        .map(|target| format!("{} {}", target.transport, target.address))
        .collect();
    assert_eq!(Ok(targets), list(&["udp 192.0.2.1:5070"]));
}

/// The question of a query, as `name TYPE`.
fn asked(query: &Query) -> String {
    let packet = Packet::parse(&query.bytes).unwrap();
    let question = &packet.questions[0];
    let name = question.qname.to_string().to_lowercase();
    format!("{name} {:?}", question.qtype)
}

/// The answer of a name server that has failed.
fn server_failure(query: &Query) -> Vec<u8> {
    let id = [query.bytes[0], query.bytes[1]];
    let mut reply = Packet::new_reply(u16::from_be_bytes(id));
    let packet = Packet::parse(&query.bytes).unwrap();
    reply.questions.push(packet.questions[0].clone());
    *reply.rcode_mut() = RCODE::ServerFailure;
    reply.build_bytes_vec_compressed().unwrap()
}

/// A single name server that ignores NAPTR queries leaves time for the SRV query.
#[test]
fn ignored_naptr_query_leaves_time_for_srv() {
    let mut resolver = resolver(|config| {
        config.ipv6 = false;
        config.servers.truncate(1);
    });
    let zone = &mut Zone::default();
    zone.srv("_sip._udp.example.com", 1, 0, 5070, "one.example.com");
    zone.a("one.example.com", [192, 0, 2, 1]);
    let mut now = Time::ZERO;
    assert!(matches!(
        resolver.locate(request("sip:example.com"), now),
        LookupStart::Pending(_)
    ));
    let outcome = loop {
        while let Some(query) = resolver.next_query() {
            if !asked(&query).contains("NAPTR") {
                let answer = zone.answer(&query.bytes);
                assert_eq!(resolver.answer(query.server, &answer, now), Ok(()));
            }
        }
        if let Some(outcome) = resolver.next_outcome() {
            break outcome;
        }
        now = resolver.next_deadline().unwrap().at;
        resolver.timeout(now);
    };
    let targets: Vec<SocketAddr> = outcome
        .targets
        .unwrap()
        .map(|target| target.address)
        .collect();
    assert_eq!(targets, ["192.0.2.1:5070".parse().unwrap()]);
    assert_eq!(now, Time::from_secs(4), "half of the time of the lookup");
}

/// RFC 3263 section 4.2.
#[test]
fn naptr_to_absent_srv_records_leads_to_the_address_of_the_name() {
    let zone = &mut Zone::default();
    zone.naptr(10, 10, "SIP+D2T", "_sip._tcp.example.com")
        .naptr(10, 20, "SIP+D2U", "_sip._udp.example.com")
        .a("example.com", [192, 0, 2, 8]);
    assert_eq!(once(zone, "sip:example.com"), list(&["tcp 192.0.2.8:5060"]));
    zone.srv("_sip._udp.example.com", 0, 0, 5066, "h.example.com")
        .a("h.example.com", [192, 0, 2, 3]);
    assert_eq!(once(zone, "sip:example.com"), list(&["udp 192.0.2.3:5066"]));
}

#[test]
fn failed_srv_query_does_not_prevent_the_use_of_others() {
    for (name, naptr) in [
        ("_sip._udp", false),
        ("_sip._tcp", false),
        ("_sip._udp", true),
    ] {
        let mut resolver = resolver(|config| config.ipv6 = false);
        let zone = &mut Zone::default();
        if naptr {
            zone.naptr(10, 10, "SIP+D2U", "_sip._udp.example.com")
                .naptr(10, 20, "SIP+D2T", "_sip._tcp.example.com");
        }
        zone.srv("_sip._udp.example.com", 1, 0, 5070, "one.example.com")
            .srv("_sip._tcp.example.com", 1, 0, 5070, "one.example.com")
            .a("one.example.com", [192, 0, 2, 1]);
        assert!(matches!(
            resolver.locate(request("sip:example.com"), Time::ZERO),
            LookupStart::Pending(_)
        ));
        while let Some(query) = resolver.next_query() {
            let answer = match asked(&query).starts_with(name) {
                true => server_failure(&query),
                false => zone.answer(&query.bytes),
            };
            assert_eq!(resolver.answer(query.server, &answer, Time::ZERO), Ok(()));
        }
        let targets = resolver.next_outcome().unwrap().targets.unwrap();
        assert_eq!(targets.count(), 1, "{name} {naptr}");
    }
}

#[test]
fn targets_fail_over_in_order() {
    let zone = &mut Zone::default();
    zone.srv("_sip._udp.example.com", 2, 0, 5062, "b.example.com")
        .srv("_sip._udp.example.com", 1, 0, 5061, "a.example.com")
        .a("a.example.com", [192, 0, 2, 1])
        .a("a.example.com", [192, 0, 2, 11])
        .a("b.example.com", [192, 0, 2, 2]);
    let mut resolver = resolver(|_| {});
    let uri = "sip:example.com;transport=udp";
    let expected = [
        "udp 192.0.2.1:5061",
        "udp 192.0.2.11:5061",
        "udp 192.0.2.2:5062",
    ];
    assert_eq!(run(&mut resolver, zone, uri, Time::ZERO), list(&expected));
    let LookupStart::Done(Ok(mut targets)) = resolver.locate(request(uri), Time::ZERO) else {
        panic!("the result is not known at once");
    };
    assert_eq!(targets.next().unwrap().address.port(), 5061);
    assert_eq!(targets.remaining().len(), 2);
    assert_eq!((targets.by_ref().count(), targets.next()), (2, None));
}

#[test]
fn srv_weights_hold_over_many_lookups() {
    let srv = |priority, weight, port| Srv {
        priority,
        weight,
        port,
        target: DnsName::parse(b"h").unwrap(),
    };
    let records = vec![
        srv(1, 10, 1),
        srv(0, 60, 2),
        srv(0, 30, 3),
        srv(0, 10, 4),
        srv(0, 0, 5),
    ];
    let mut entropy = Entropy::from_number(11);
    let mut first: BTreeMap<u16, u32> = BTreeMap::new();
    const ROUNDS: u32 = 20_000;
    for _ in 0..ROUNDS {
        let order = super::evaluate::ordered(records.clone(), &mut entropy);
        assert_eq!(
            (order.len(), order[4].port),
            (5, 1),
            "priority 1 comes last"
        );
        *first.entry(order[0].port).or_default() += 1;
    }
    // Five standard deviations of a binomial distribution at 20,000 draws: 0.0173 at most.
    for (port, share) in [(2, 0.60), (3, 0.30), (4, 0.10), (5, 0.01)] {
        let found = f64::from(first[&port]) / f64::from(ROUNDS);
        assert!((found - share).abs() < 0.0175, "port {port}: {found}");
    }
    let again: Vec<_> = (0..2)
        .map(|_| super::evaluate::ordered(records.clone(), &mut Entropy::from_number(5)))
        .collect();
    assert_eq!(again[0], again[1], "the same seed gives the same order");
}

#[test]
fn aliases_are_followed_up_to_a_limit() {
    let zone = &mut Zone::default();
    zone.cname("w.example.com", "x.example.com")
        .cname("x.example.com", "y.example.com")
        .a("y.example.com", [192, 0, 2, 5]);
    assert_eq!(
        once(zone, "sip:w.example.com:5060"),
        list(&["udp 192.0.2.5:5060"])
    );
    let zone = &mut Zone::default();
    zone.cname("a.example.com", "b.example.com")
        .cname("b.example.com", "a.example.com");
    assert_eq!(
        once(zone, "sip:a.example.com:5060"),
        Err(LocateError::Aliases)
    );
    let zone = &mut Zone::default();
    zone.cname("self.example.com", "self.example.com");
    assert_eq!(
        once(zone, "sip:self.example.com:5060"),
        Err(LocateError::Aliases)
    );
    // A chain longer than the name server follows in one answer continues with the next question.
    let zone = &mut Zone::default();
    let names: Vec<&'static str> = (0..12)
        .map(|i| &*Box::leak(format!("n{i}.example.com").into_boxed_str()))
        .collect();
    for pair in names.windows(2) {
        zone.cname(pair[0], pair[1]);
    }
    zone.a(names[11], [192, 0, 2, 6]);
    assert_eq!(
        once(zone, "sip:n0.example.com:5060"),
        list(&["udp 192.0.2.6:5060"])
    );
}

#[test]
fn answers_are_cached_for_their_ttl() {
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1]);
    let mut resolver = resolver(|config| config.ipv6 = false);
    let uri = "sip:h.example.com:5060";
    for (second, count) in [(0, 1), (1, 1), (299, 1), (301, 2)] {
        assert_eq!(
            run(&mut resolver, zone, uri, Time::from_secs(second)),
            list(&["udp 192.0.2.1:5060"])
        );
        assert_eq!(zone.questions.len(), count, "at {second} s");
    }
    // Absence: for the SOA's minimum of 40 seconds.
    zone.questions.clear();
    for (second, count) in [(400, 1), (439, 1), (441, 2)] {
        let found = run(
            &mut resolver,
            zone,
            "sip:none.example.com:5060",
            Time::from_secs(second),
        );
        assert_eq!(found, Err(LocateError::NotFound));
        assert_eq!(zone.questions.len(), count, "at {second} s");
    }
    assert_eq!(resolver.census().0, 0);
}

#[test]
fn the_cache_is_bounded() {
    let zone = &mut Zone::default();
    let mut resolver = resolver(|config| {
        config.cache = 10;
        config.ipv6 = false;
    });
    for i in 0..50 {
        zone.a(&format!("h{i}.example.com"), [192, 0, 2, i]);
        let uri = format!("sip:h{i}.example.com:5060");
        assert!(run(&mut resolver, zone, &uri, Time::from_millis(u64::from(i))).is_ok());
        assert!(resolver.census().2 <= 10);
    }
}

#[test]
fn silent_servers_are_tried_in_turn_until_timeout() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let LookupStart::Pending(id) = resolver.locate(request("sip:h.example.com:5060"), Time::ZERO)
    else {
        panic!("the lookup is not pending");
    };
    let mut sent = Vec::new();
    let mut ended = None;
    while ended.is_none() {
        while let Some(query) = resolver.next_query() {
            sent.push(query);
        }
        let now = resolver.next_deadline().expect("a lookup is under way").at;
        resolver.timeout(now);
        ended = resolver.next_outcome().map(|outcome| (outcome, now));
    }
    let (outcome, now) = ended.unwrap();
    assert_eq!(
        (outcome.lookup, outcome.targets),
        (id, Err(LocateError::NoAnswer))
    );
    assert_eq!(
        now,
        Time::from_secs(6),
        "two servers, 1 + 1 + 2 + 2 seconds"
    );
    let servers: Vec<_> = sent.iter().map(|query| query.server.to_string()).collect();
    assert_eq!(servers, [SERVERS[0], SERVERS[1], SERVERS[0], SERVERS[1]]);
    let lower = |query: &Query| {
        query.bytes[12..]
            .iter()
            .all(|byte| !byte.is_ascii_uppercase())
    };
    assert!(sent[..2].iter().any(|query| !lower(query)) && sent[2..].iter().all(lower));
    assert_eq!(
        resolver.census(),
        (0, 0, 1),
        "the failure is remembered for a while"
    );
    let again = resolver.locate(request("sip:h.example.com:5060"), now);
    assert_eq!(again, LookupStart::Done(Err(LocateError::NoAnswer)));
    assert!(matches!(
        resolver.locate(
            request("sip:h.example.com:5060"),
            now + Duration::from_secs(6)
        ),
        LookupStart::Pending(_)
    ));
}

#[test]
fn server_failure_moves_to_the_next_server_at_once() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1]);
    assert!(matches!(
        resolver.locate(request("sip:h.example.com:5060"), Time::ZERO),
        LookupStart::Pending(_)
    ));
    let first = resolver.next_query().unwrap();
    let mut failed = zone.answer(&first.bytes);
    failed.truncate(12 + "xh.example.comx".len() + 1 + 4);
    failed[3] = 2;
    failed[6..12].fill(0);
    assert_eq!(resolver.answer(first.server, &failed, Time::ZERO), Ok(()));
    let second = resolver.next_query().expect("a query to the next server");
    assert_eq!(second.server.to_string(), SERVERS[1]);
    // FORMERR: the next query has no EDNS.
    let mut format = second.bytes[..12].to_vec();
    format[2] |= 0x80;
    format[3] = 1;
    format[4..12].fill(0);
    assert_eq!(resolver.answer(second.server, &format, Time::ZERO), Ok(()));
    let third = resolver.next_query().unwrap();
    assert!(
        Packet::parse(&third.bytes).unwrap().opt().is_none()
            && Packet::parse(&second.bytes).unwrap().opt().is_some()
    );
}

/// An answer with only the question, marked as truncated.
fn truncated(mut answer: Vec<u8>, keep_records: bool) -> Vec<u8> {
    answer[2] |= 0x02;
    if !keep_records {
        answer[6..12].fill(0);
        answer.truncate(12 + "xh.example.comx".len() + 1 + 4);
    }
    answer
}

/// The stream that the resolver opens: its number, the server, the query without its length.
fn opened(resolver: &mut Resolver) -> (u32, SocketAddr, Vec<u8>) {
    match resolver.next_stream_work() {
        Some(StreamWork::Open {
            stream,
            server,
            bytes,
        }) => {
            let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
            assert_eq!(length, bytes.len() - 2);
            (stream, server, bytes[2..].to_vec())
        }
        other => panic!("{other:?}"),
    }
}

fn with_length(message: &[u8]) -> Vec<u8> {
    let mut bytes = (message.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}

#[test]
fn truncated_answers_are_queried_again_over_tcp() {
    for (keep, piece) in [(false, 1), (true, 7), (true, 10_000)] {
        let mut resolver = resolver(|config| config.ipv6 = false);
        let zone = &mut Zone::default();
        zone.a("h.example.com", [192, 0, 2, 1]);
        zone.a("h.example.com", [192, 0, 2, 2]);
        assert!(matches!(
            resolver.locate(request("sip:h.example.com:5060"), Time::ZERO),
            LookupStart::Pending(_)
        ));
        let query = resolver.next_query().unwrap();
        let whole = zone.answer(&query.bytes);
        let cut = truncated(whole, keep);
        assert_eq!(resolver.answer(query.server, &cut, Time::ZERO), Ok(()));
        assert!(resolver.next_outcome().is_none() && resolver.next_query().is_none());
        let (stream, server, tcp_query) = opened(&mut resolver);
        assert_eq!(server, query.server);
        let whole = zone.answer(&tcp_query);
        // A datagram is ignored now.
        assert_eq!(
            resolver.answer(query.server, &whole, Time::ZERO),
            Err(IgnoredAnswer::Unasked)
        );
        for bytes in with_length(&whole).chunks(piece) {
            assert!(resolver.next_outcome().is_none());
            assert_eq!(resolver.stream_bytes(stream, bytes, Time::ZERO), Ok(()));
        }
        assert_eq!(
            resolver.next_outcome().unwrap().targets.unwrap().count(),
            2,
            "both addresses"
        );
        assert_eq!(
            resolver.next_stream_work(),
            Some(StreamWork::Close { stream })
        );
        assert_eq!(
            resolver.stream_bytes(stream, b"more", Time::ZERO),
            Err(IgnoredAnswer::Unasked)
        );
        resolver.stream_ended(stream, Time::ZERO);
        assert_eq!(resolver.census().1, 0);
    }
}

#[test]
fn failed_stream_moves_to_the_next_server() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1]);
    assert!(matches!(
        resolver.locate(request("sip:h.example.com:5060"), Time::ZERO),
        LookupStart::Pending(_)
    ));
    let mut streams = Vec::new();
    let mut now = Time::ZERO;
    // Closed, malformed, another identifier, timeout: each costs a try. The truncated records are used at the end.
    for round in 0..4 {
        let query = resolver.next_query().expect("a try is left");
        assert_eq!(query.server.to_string(), SERVERS[round % 2]);
        let cut = truncated(zone.answer(&query.bytes), true);
        assert_eq!(resolver.answer(query.server, &cut, now), Ok(()));
        let (stream, _, tcp_query) = opened(&mut resolver);
        streams.push(stream);
        match round {
            0 => resolver.stream_ended(stream, now),
            1 => assert_eq!(
                resolver.stream_bytes(stream, &with_length(b"no DNS at all"), now),
                Err(IgnoredAnswer::Malformed)
            ),
            2 => {
                let mut other = zone.answer(&tcp_query);
                other[0] ^= 1;
                assert_eq!(
                    resolver.stream_bytes(stream, &with_length(&other), now),
                    Err(IgnoredAnswer::Malformed)
                );
            }
            _ => {
                now = resolver.next_deadline().unwrap().at;
                assert_eq!(now, Time::from_secs(2), "twice the wait");
                resolver.timeout(now);
            }
        }
        if round > 0 {
            assert_eq!(
                resolver.next_stream_work(),
                Some(StreamWork::Close { stream })
            );
        }
        assert_eq!(resolver.next_stream_work(), None);
    }
    streams.dedup();
    assert_eq!(streams.len(), 4, "numbers are not used twice");
    assert_eq!(resolver.next_outcome().unwrap().targets.unwrap().count(), 1);
    assert_eq!(resolver.census(), (0, 0, 1));
}

#[test]
fn unsolicited_answers_are_ignored() {
    let mut resolver = resolver(|config| config.ipv6 = false);
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1]);
    assert!(matches!(
        resolver.locate(request("sip:h.example.com:5060"), Time::ZERO),
        LookupStart::Pending(_)
    ));
    let query = resolver.next_query().unwrap();
    let good = zone.answer(&query.bytes);
    let other: SocketAddr = "198.51.100.66:53".parse().unwrap();
    assert_eq!(
        resolver.answer(other, &good, Time::ZERO),
        Err(IgnoredAnswer::Unasked)
    );
    let mut wrong_id = good.clone();
    wrong_id[0] ^= 1;
    assert_eq!(
        resolver.answer(query.server, &wrong_id, Time::ZERO),
        Err(IgnoredAnswer::Unasked)
    );
    let mut wrong_case = good.clone();
    wrong_case[13] ^= 0x20;
    assert_eq!(
        resolver.answer(query.server, &wrong_case, Time::ZERO),
        Err(IgnoredAnswer::Question)
    );
    let mut a_query = good.clone();
    a_query[2] &= 0x7f;
    assert_eq!(
        resolver.answer(query.server, &a_query, Time::ZERO),
        Err(IgnoredAnswer::Malformed)
    );
    assert_eq!(
        resolver.answer(query.server, &good[..good.len() - 1], Time::ZERO),
        Err(IgnoredAnswer::Malformed)
    );
    assert!(resolver.next_outcome().is_none());
    assert_eq!(resolver.answer(query.server, &good, Time::ZERO), Ok(()));
    assert!(resolver.next_outcome().unwrap().targets.is_ok());
    assert_eq!(
        resolver.answer(query.server, &good, Time::ZERO),
        Err(IgnoredAnswer::Unasked),
        "a second answer"
    );
}

#[test]
fn configured_hosts_override_dns_and_need_no_server() {
    let mut resolver = resolver(|config| {
        config.servers.clear();
        config.hosts = vec![
            ("PBX.lan".to_owned(), "10.0.0.5".parse().unwrap()),
            ("pbx.lan".to_owned(), "2001:db8::5".parse().unwrap()),
        ];
    });
    let zone = &mut Zone::default();
    let found = run(&mut resolver, zone, "sip:pbx.LAN.", Time::ZERO);
    assert_eq!(
        found,
        list(&["udp 10.0.0.5:5060", "udp [2001:db8::5]:5060"])
    );
    let found = run(&mut resolver, zone, "sip:other.lan", Time::ZERO);
    assert_eq!(found, Err(LocateError::NotFound));
    assert!(resolver.next_deadline().is_none());
}

#[test]
fn lookups_are_limited_share_questions_and_can_be_cancelled() {
    let mut resolver = resolver(|config| {
        config.lookups = 3;
        config.ipv6 = false;
    });
    let uri = "sip:h.example.com:5060";
    let ids: Vec<_> = (0..3)
        .map(|_| match resolver.locate(request(uri), Time::ZERO) {
            LookupStart::Pending(id) => id,
            done => panic!("{done:?}"),
        })
        .collect();
    assert_eq!(
        resolver.locate(request(uri), Time::ZERO),
        LookupStart::Done(Err(LocateError::Busy))
    );
    assert_eq!(resolver.census(), (3, 1, 0), "one question for all");
    resolver.cancel(ids[1]);
    let zone = &mut Zone::default();
    zone.a("h.example.com", [192, 0, 2, 1]);
    let query = resolver.next_query().unwrap();
    let answer = zone.answer(&query.bytes);
    assert_eq!(resolver.answer(query.server, &answer, Time::ZERO), Ok(()));
    let ended: Vec<_> = std::iter::from_fn(|| resolver.next_outcome())
        .map(|outcome| outcome.lookup)
        .collect();
    assert_eq!(ended, [ids[0], ids[2]]);
}

fn question(kind: RecordType) -> Question {
    Question {
        name: DnsName::parse(b"example.com").unwrap(),
        kind,
    }
}

/// Handwritten bytes: an answer with a compressed name, and invalid names.
#[test]
fn name_encoding() {
    let mut answer = vec![0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    answer.extend_from_slice(b"\x07example\x03com\x00\x00\x01\x00\x01");
    answer.extend_from_slice(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x01");
    let read = |bytes: &[u8]| dns::read_answer(bytes, &question(RecordType::A), 0);
    let good = DnsAnswer {
        code: Code::Good,
        truncated: false,
        records: vec![DnsRecord::A([192, 0, 2, 1].into())],
        alias: None,
        ttl: Some(60),
    };
    assert_eq!(read(&answer), Ok(good.clone()));
    let at = answer.len() - 16;
    for (pointer, label) in [
        ([0xc0, at as u8], "itself"),
        ([0xc0, 0xff], "beyond"),
        ([0x80, 0x0c], "reserved bits"),
    ] {
        let mut bad = answer.clone();
        bad[at..at + 2].copy_from_slice(&pointer);
        assert_eq!(
            read(&bad),
            Err(dns::AnswerMismatch::Malformed),
            "a pointer to {label}"
        );
    }
    let mut truncated = answer.clone();
    truncated[2] |= 2;
    truncated[7] = 2;
    assert_eq!(
        read(&truncated),
        Ok(DnsAnswer {
            truncated: true,
            ..good
        })
    );
    for bad in [
        "",
        ".",
        "a..b",
        "-.-.",
        "a b",
        "\u{fc}",
        &"a".repeat(64),
        &"a.".repeat(128),
    ] {
        assert_eq!(
            DnsName::parse(bad.as_bytes()).is_some(),
            bad == "-.-.",
            "{bad}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_answer_bytes(tail in prop::collection::vec(any::<u8>(), 0..200), counts in any::<[u8; 3]>(), kind in 0..4usize) {
        let kind = [RecordType::A, RecordType::Aaaa, RecordType::Srv, RecordType::Naptr][kind];
        let mut query = Vec::new();
        dns::write_query(9, &question(kind), false, 0, &mut query);
        let mut answer = query.clone();
        answer[2] |= 0x80;
        answer[7] = counts[0];
        answer[9] = counts[1];
        answer[3] = counts[2];
        answer.extend_from_slice(&tail);
        let _ = dns::read_answer(&answer, &question(kind), 0);
        let _ = dns::read_answer(&tail, &question(kind), 0);
    }

    #[test]
    fn damaged_answers(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), seed in any::<u64>()) {
        let mut resolver = Resolver::new(
            ResolverConfig { servers: vec![SERVERS[0].parse().unwrap()], ..ResolverConfig::default() },
            Entropy::from_number(seed),
        );
        let mut zone = Zone::default();
        zone.naptr(1, 1, "SIP+D2U", "_sip._udp.example.com")
            .srv("_sip._udp.example.com", 0, 5, 5060, "h.example.com")
            .cname("h.example.com", "i.example.com")
            .a("i.example.com", [192, 0, 2, 1]);
        resolver.locate(request("sip:example.com"), Time::ZERO);
        for _ in 0..20 {
            let Some(query) = resolver.next_query() else { break };
            let mut answer = match Packet::parse(&query.bytes).unwrap().opt().is_some() {
                true => zone.answer(&query.bytes),
                false => break,
            };
            for (at, byte) in &changes {
                let at = at.index(answer.len());
                answer[at] = *byte;
            }
            let _ = resolver.answer(query.server, &answer, Time::ZERO);
        }
        for second in 1..20 {
            resolver.timeout(Time::from_secs(second));
        }
        prop_assert_eq!(resolver.census().0, 0, "every lookup ends");
    }
}

#[test]
fn queries_are_parsed_by_simple_dns() {
    for (kind, number) in [
        (RecordType::A, TYPE::A),
        (RecordType::Aaaa, TYPE::AAAA),
        (RecordType::Srv, TYPE::SRV),
        (RecordType::Naptr, TYPE::NAPTR),
    ] {
        let mut query = Vec::new();
        dns::write_query(513, &question(kind), true, 0b101, &mut query);
        let packet = Packet::parse(&query).unwrap();
        assert_eq!(
            (packet.id(), packet.opt().unwrap().udp_packet_size),
            (513, 1232)
        );
        assert_eq!(packet.questions[0].qname.to_string(), "ExAmple.com");
        assert_eq!(packet.questions[0].qtype, simple_dns::QTYPE::TYPE(number));
    }
}
