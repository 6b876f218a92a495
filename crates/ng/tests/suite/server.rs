//! The media node: ng commands, with media through its forwarder, in virtual time.

use crate::rig::*;

use engine::{DropReason, Time};
use protect::dtls::{
    self, Certificate, CertificateFingerprint, DtlsEvent, DtlsSession, Epoch, Role, Settings,
};
use protect::sdes::{self, CryptoAttribute};
use protect::srtp::{ContextLimits, Inbound, Outbound};
use std::time::{Duration, Instant as Moment};
use wire::ng::{NgMessage, Value};

const A: &str = "10.0.0.1:4000";
const B: &str = "10.0.0.2:5000";

fn plain_a() -> String {
    sdp("10.0.0.1", 4000, "RTP/AVP", "")
}

fn plain_b() -> String {
    sdp("10.0.0.2", 5000, "RTP/AVP", "")
}

/// A call without SRTP; the node's ports towards A and towards B.
fn call(rig: &mut Rig) -> (String, String) {
    let offered = rig.offer(&plain_a(), &[("direction", "[outside,inside]")]);
    let answered = rig.answer(&plain_b(), &[]);
    (
        format!("192.0.2.1:{}", port_of(&answered)),
        format!("198.51.100.1:{}", port_of(&offered)),
    )
}

#[test]
fn media_is_relayed_and_third_parties_are_dropped() {
    let mut rig = Rig::new(CONFIG);
    let offered = rig.offer(
        &plain_a(),
        &[
            ("direction", "[outside,inside]"),
            ("replace", "[origin,session-connection]"),
            ("ICE", "remove"),
            ("flags", "[trust-address,symmetric]"),
        ],
    );
    assert!(
        offered.contains("o=- 1 1 IN IP4 198.51.100.1\r\n"),
        "{offered}"
    );
    assert!(offered.contains("c=IN IP4 198.51.100.1\r\n"), "{offered}");
    let answered = rig.answer(&plain_b(), &[]);
    assert!(
        answered.contains("o=bob 1 1 IN IP4 10.0.0.2\r\n"),
        "the origin is kept: {answered}"
    );
    assert!(answered.contains("c=IN IP4 192.0.2.1\r\n"), "{answered}");
    let towards_a = format!("192.0.2.1:{}", port_of(&answered));
    let towards_b = format!("198.51.100.1:{}", port_of(&offered));
    for sequence in 0..10 {
        let packet = rtp(7, sequence);
        assert_eq!(rig.send(A, &towards_a, &packet), Some((addr(B), packet)));
        let packet = rtp(9, sequence);
        assert_eq!(rig.send(B, &towards_b, &packet), Some((addr(A), packet)));
        assert_eq!(
            rig.send("203.0.113.6:66", &towards_a, &rtp(7, sequence)),
            None
        );
    }
    let drops = rig.forwarder.drops();
    assert_eq!(drops.get(DropReason::MediaUnexpectedSource), 10);
    let query = rig.ask(&command(&[("command", "query"), ("call-id", "call")]));
    assert_eq!(number(&query, &["totals", "RTP", "packets"]), 20);
    assert_eq!(number(&query, &["totals", "RTP", "bytes"]), 20 * 172);
    assert_eq!(number(&query, &["totals", "RTP", "errors"]), 10);
    assert_eq!(number(&query, &["totals", "RTCP", "packets"]), 0);
    assert_eq!(number(&query, &["created"]), EPOCH as i64 + 1);
    for (tag, local) in [("a", &towards_a), ("b", &towards_b)] {
        let stream = ["tags", tag, "medias", "0", "streams", "0"];
        let at = |key: &str| number(&query, &[&stream[..], &[key]].concat());
        assert_eq!(at("local port"), i64::from(addr(local).port()));
        let stats = [&stream[..], &["stats", "packets"]].concat();
        assert_eq!(number(&query, &stats), 10);
    }
    assert_eq!(number(&query, &["SSRC", "7", "packets"]), 10);
    assert_eq!(number(&query, &["SSRC", "9", "average MOS", "MOS"]), 44);
    let delete = [
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
    ];
    let reply = rig.ask(&command(&delete));
    assert_eq!(text(&reply, "result"), "ok");
    assert_eq!(number(&reply, &["totals", "RTP", "packets"]), 20);
    let reply = rig.ask(&command(&delete));
    assert!(text(&reply, "warning").contains("not found"));
    let fatal = rig.refusal(&[&delete[..], &[("flags", "[fatal]")]].concat());
    assert!(fatal.contains("not found"), "{fatal}");
    rig.assert_quiet();
    assert!(rig.names().contains(&"ng_call_ended"));
    assert_eq!(rig.node.counters().relayed[0], (20, 20 * 172));
}

#[test]
fn retransmitted_command_is_executed_once() {
    let mut rig = Rig::new(CONFIG);
    let body = command(&[
        ("command", "offer"),
        ("call-id", "x"),
        ("from-tag", "a"),
        ("via-branch", "1"),
        ("sdp", &plain_a()),
    ]);
    let mut bytes = Vec::new();
    NgMessage::write(b"same", &body, &mut bytes);
    for _ in 0..3 {
        rig.send_command(PROXY, &bytes);
    }
    assert_eq!(rig.said.len(), 3);
    assert!(rig.said.iter().all(|said| *said == rig.said[0]));
    assert_eq!(rig.node.counters().repeated, 2);
    assert_eq!(
        (rig.node.census().branches, rig.node.census().ports),
        (1, 2)
    );
    // A cookie of another commander is a different one.
    rig.send_command("192.0.2.78:5000", &bytes);
    assert_eq!(rig.node.counters().repeated, 2);
    // An old cookie is forgotten.
    rig.pass(Duration::from_secs(31));
    rig.send_command(PROXY, &bytes);
    assert_eq!(rig.node.counters().repeated, 2);
}

#[test]
fn unsupported_commands_are_refused_by_name() {
    let mut rig = Rig::new(CONFIG);
    let offer = plain_a();
    let base = [
        ("command", "offer"),
        ("call-id", "x"),
        ("from-tag", "a"),
        ("sdp", offer.as_str()),
    ];
    for (key, value, named) in [
        (
            "flags",
            "[trust-address,always transcode]",
            "flag \"always transcode\"",
        ),
        ("flags", "[codec-mask-opus]", "codec \"mask\""),
        (
            "flags",
            "[SDES-unencrypted_srtp]",
            "SDES \"unencrypted_srtp\"",
        ),
        ("ICE", "force-relay", "ICE \"force-relay\""),
        ("ICE-lite", "sometimes", "ICE-lite \"sometimes\""),
        ("DTLS", "active", "DTLS \"active\""),
        ("DTLS-reverse", "active", "DTLS-reverse \"active\""),
        (
            "transport-protocol",
            "RTP/SAVPX",
            "transport-protocol \"RTP/SAVPX\"",
        ),
        ("replace", "[username]", "replace \"username\""),
        ("rtcp-mux", "[reject]", "rtcp-mux \"reject\""),
        ("T.38", "[decode]", "key \"T.38\""),
        ("ptime", "40", "key \"ptime\""),
        ("metadata", "x", "key \"metadata\""),
        ("TOS", "3", "TOS \"3\""),
        ("TOS", "40", "[media] dscp = 46 of this node, TOS 184"),
        ("OSRTP", "[offer-legacy]", "OSRTP \"offer-legacy\""),
        ("address-family", "IPX", "address-family \"IPX\""),
        ("record-call", "perhaps", "record-call \"perhaps\""),
        ("record-call", "", "record-call \"\""),
        ("all", "yes", "all \"yes\""),
        ("delete-delay", "-1", "\"delete-delay\""),
        ("limit", "-1", "\"limit\""),
        ("direction", "[outside,nowhere]", "interface \"nowhere\""),
        ("SDES", "[off]", ""),
    ] {
        let mut all = base.to_vec();
        all.push((key, value));
        if named.is_empty() {
            all.push(("transport-protocol", "RTP/SAVP"));
            all.push(("DTLS", "off"));
        }
        let why = rig.refusal(&all);
        assert!(why.contains(named), "{key}={value}: {why}");
        assert_eq!(rig.node.census().branches, 0, "{key}={value}");
    }
    for name in [
        "play DTMF",
        "block DTMF",
        "subscribe request",
        "start forwarding",
    ] {
        let why = rig.refusal(&[("command", name), ("call-id", "x")]);
        assert_eq!(why, format!("command \"{name}\" is not supported"));
    }
    assert_eq!(rig.refusal(&[("command", "dance")]), "Unrecognized command");
    assert!(rig.refusal(&[("sdp", "x")]).contains("command"));
    let missing = [
        (&base[..3], "No SDP body in message"),
        (&[base[0], base[1], base[3]][..], "No from-tag in message"),
        (&[base[0], base[2], base[3]][..], "No call-id in message"),
    ];
    for (pairs, why) in missing {
        assert_eq!(rig.refusal(pairs), why);
    }
    let why = rig.refusal(&[base[0], base[1], base[2], ("sdp", "hello")]);
    assert_eq!(why, "body is no session description");
    let why = rig.refusal(&[("command", "query"), ("call-id", "x")]);
    assert_eq!(why, "Unknown call-id");
    rig.assert_quiet();
}

#[test]
fn ping_list_and_statistics() {
    let mut rig = Rig::new(CONFIG);
    let pong = rig.ask(&command(&[("command", "ping")]));
    assert_eq!(text(&pong, "result"), "pong");
    for number in 0..5 {
        let id = format!("call{number}");
        rig.offer(&plain_a(), &[("call-id", &id)]);
    }
    let list = rig.ask(&command(&[("command", "list")]));
    let Some(Value::List(calls)) = get(&list, &["calls"]) else {
        panic!("{list:?}")
    };
    assert_eq!(calls.len(), 5);
    let few = rig.ask(&command(&[("command", "list"), ("limit", "2")]));
    assert!(matches!(get(&few, &["calls"]), Some(Value::List(calls)) if calls.len() == 2));
    let reply = rig.ask(&command(&[("command", "statistics")]));
    let at = |path: &[&str]| number(&reply, &[&["statistics"], path].concat());
    assert_eq!(at(&["currentstatistics", "sessionstotal"]), 5);
    assert_eq!(at(&["controlstatistics", "totaloffercount"]), 5);
    assert_eq!(at(&["interfaces", "0", "ports", "used"]), 20);
    assert_eq!(at(&["interfaces", "0", "ports", "totals"]), 40);
}

fn line<'t>(text: &'t str, prefix: &str) -> &'t str {
    text.lines()
        .find_map(|line| line.strip_prefix(prefix))
        .unwrap_or_else(|| panic!("no {prefix} in {text}"))
}

fn sealed(context: &mut Outbound, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + 64, 0);
    let length = context.protect_rtp(&mut buffer, packet.len()).unwrap();
    buffer.truncate(length);
    buffer
}

fn opened(context: &mut Inbound, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    let length = context.unprotect_rtp(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

#[test]
fn srtp_towards_the_callee() {
    let mut rig = Rig::new(CONFIG);
    let offered = rig.offer(
        &plain_a(),
        &[
            ("transport-protocol", "RTP/SAVP"),
            ("SDES", "[no-AEAD_AES_256_GCM]"),
        ],
    );
    assert!(offered.contains(" RTP/SAVP 0 8 101"), "{offered}");
    assert!(!offered.contains("AEAD_AES_256_GCM"), "{offered}");
    let values = offered
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    let agreed = sdes::answer(
        &sdes::Policy::default(),
        values.map(str::as_bytes),
        &mut engine::Entropy::from_number(3),
    )
    .unwrap();
    let crypto = format!("a=crypto:{}\r\n", agreed.local.value().as_str());
    let answered = rig.answer(&sdp("10.0.0.2", 5000, "RTP/SAVP", &crypto), &[]);
    assert!(answered.contains(" RTP/AVP 0 8 101"), "{answered}");
    assert!(!answered.contains("crypto"), "{answered}");
    let limits = ContextLimits::default();
    let mut outbound = Outbound::new(&agreed.local.keys[0], limits).unwrap();
    let mut inbound = Inbound::new(&agreed.remote.keys[0], limits).unwrap();
    let towards_a = format!("192.0.2.1:{}", port_of(&answered));
    let towards_b = format!("192.0.2.1:{}", port_of(&offered));
    for sequence in 1..5 {
        let plain = rtp(7, sequence);
        let (to, secret) = rig.send(A, &towards_a, &plain).unwrap();
        assert_eq!(to, addr(B));
        assert_eq!(opened(&mut inbound, &secret), plain);
        let secret = sealed(&mut outbound, &rtp(9, sequence));
        assert_eq!(
            rig.send(B, &towards_b, &secret),
            Some((addr(A), rtp(9, sequence)))
        );
    }
    assert_eq!(
        rig.send(B, &towards_b, &rtp(9, 9)),
        None,
        "no unprotected RTP"
    );
    assert!(rig.names().contains(&"media_security_agreed"));
    let query = rig.ask(&command(&[("command", "query"), ("call-id", "call")]));
    let flags = get(&query, &["tags", "b", "medias", "0", "flags"]);
    assert!(format!("{flags:?}").contains(&format!("{:?}", Value::from("SRTP"))));
}

#[test]
fn srtp_from_the_caller_and_end_to_end() {
    const CRYPTO: &str =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n";
    let mut rig = Rig::new(CONFIG);
    let secret = sdp("10.0.0.1", 4000, "RTP/SAVP", CRYPTO);
    // The command requests no SRTP, so that of A and B is end to end.
    let through = rig.offer(&secret, &[("call-id", "through")]);
    assert!(
        through.contains(CRYPTO) && through.contains(" RTP/SAVP "),
        "{through}"
    );
    let offered = rig.offer(&secret, &[("transport-protocol", "RTP/AVP")]);
    assert!(
        offered.contains(" RTP/AVP ") && !offered.contains("crypto"),
        "{offered}"
    );
    let answered = rig.answer(&plain_b(), &[]);
    let ours = CryptoAttribute::parse(line(&answered, "a=crypto:").as_bytes()).unwrap();
    let theirs = line(CRYPTO, "a=crypto:");
    let theirs = CryptoAttribute::parse(theirs.as_bytes()).unwrap();
    let limits = ContextLimits::default();
    let mut outbound = Outbound::new(&theirs.keys[0], limits).unwrap();
    let mut inbound = Inbound::new(&ours.keys[0], limits).unwrap();
    let towards_a = format!("192.0.2.1:{}", port_of(&answered));
    let towards_b = format!("192.0.2.1:{}", port_of(&offered));
    let packet = sealed(&mut outbound, &rtp(7, 1));
    assert_eq!(rig.send(A, &towards_a, &packet), Some((addr(B), rtp(7, 1))));
    let (_, packet) = rig.send(B, &towards_b, &rtp(9, 1)).unwrap();
    assert_eq!(opened(&mut inbound, &packet), rtp(9, 1));
    // Another offer of B keeps the keys of A.
    let again = rig.offer(
        &plain_b(),
        &[
            ("from-tag", "b"),
            ("to-tag", "a"),
            ("transport-protocol", "RTP/SAVP"),
        ],
    );
    assert_eq!(
        line(&again, "a=crypto:").split(' ').nth(2),
        line(&answered, "a=crypto:").split(' ').nth(2)
    );
    rig.answer(&secret, &[("from-tag", "b"), ("to-tag", "a")]);
    let packet = sealed(&mut outbound, &rtp(7, 2));
    assert_eq!(rig.send(A, &towards_a, &packet), Some((addr(B), rtp(7, 2))));
}

#[test]
fn dtls_and_ice_from_a_browser_are_removed_towards_a_phone() {
    let mut rig = Rig::new(CONFIG);
    let endpoint = || {
        let epoch = Epoch::new(Moment::now());
        dtls::DtlsEndpoint::new(Settings::default(), Certificate::generate().unwrap(), epoch)
            .unwrap()
    };
    rig.node.set_dtls(endpoint());
    let browser = endpoint();
    let fingerprint = browser
        .certificate()
        .fingerprint(protect::dtls::HashFunction::Sha256);
    let more = format!("a=setup:actpass\r\na=fingerprint:{fingerprint}\r\na=rtcp-mux\r\n");
    let offered = rig.offer(
        &sdp("10.0.0.1", 4000, "UDP/TLS/RTP/SAVPF", &more),
        &[
            ("transport-protocol", "RTP/AVP"),
            ("ICE", "remove"),
            ("rtcp-mux", "[demux]"),
            ("DTLS", "off"),
        ],
    );
    for gone in ["fingerprint", "setup", "rtcp-mux"] {
        assert!(!offered.contains(gone), "{offered}");
    }
    let answered = rig.answer(&plain_b(), &[]);
    assert!(
        answered.contains("UDP/TLS/RTP/SAVPF") && answered.contains("a=rtcp-mux"),
        "{answered}"
    );
    assert_eq!(line(&answered, "a=setup:"), "passive");
    let mut words = line(&answered, "a=fingerprint:").split(' ');
    let (hash, value) = (words.next().unwrap(), words.next().unwrap());
    let ours = CertificateFingerprint::parse(hash.as_bytes(), value.as_bytes()).unwrap();
    let now = Time::from_secs(1);
    let mut session = DtlsSession::new(&browser, Role::Client, Some(vec![ours]), now);
    let towards_a = format!("192.0.2.1:{}", port_of(&answered));
    let towards_b = format!("192.0.2.1:{}", port_of(&offered));
    let mut contexts = None;
    for _ in 0..20 {
        for (_, to, bytes) in std::mem::take(&mut rig.media) {
            assert_eq!(to, addr(A));
            session.feed(&bytes, now).unwrap();
        }
        let mut sends = Vec::new();
        while let Some(event) = session.next_event() {
            match event {
                DtlsEvent::Send(bytes) => sends.push(bytes.to_vec()),
                DtlsEvent::Established(keys) => {
                    contexts = Some(keys.contexts(ContextLimits::default()).unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
        for bytes in sends {
            rig.send(A, &towards_a, &bytes);
        }
    }
    let mut contexts = contexts.expect("the handshake comes to its end");
    let packet = sealed(&mut contexts.outbound, &rtp(7, 1));
    assert_eq!(rig.send(A, &towards_a, &packet), Some((addr(B), rtp(7, 1))));
    let (to, packet) = rig.send(B, &towards_b, &rtp(9, 1)).unwrap();
    assert_eq!(to, addr(A));
    assert_eq!(opened(&mut contexts.inbound, &packet), rtp(9, 1));
    rig.ask(&command(&[("command", "delete"), ("call-id", "call")]));
    rig.assert_quiet();
}

#[test]
fn dtls_and_ice_towards_a_browser() {
    let mut rig = Rig::new(CONFIG);
    let wanted = [
        ("transport-protocol", "UDP/TLS/RTP/SAVPF"),
        ("ICE", "force"),
        ("DTLS", "passive"),
        ("SDES", "[off]"),
        ("rtcp-mux", "[offer]"),
        ("flags", "[generate-mid,trust-address]"),
    ];
    let mut all = vec![("command", "offer"), ("call-id", "call"), ("from-tag", "a")];
    let offer = plain_a();
    all.push(("sdp", &offer));
    all.extend_from_slice(&wanted);
    let without = rig.refusal(&all);
    assert!(
        without.contains("no way to agree on keys"),
        "no certificate: {without}"
    );
    let epoch = Epoch::new(Moment::now());
    let certificate = Certificate::generate().unwrap();
    rig.node
        .set_dtls(dtls::DtlsEndpoint::new(Settings::default(), certificate, epoch).unwrap());
    let offered = rig.offer(&offer, &wanted);
    for there in [
        "a=ice-lite",
        "a=ice-ufrag:",
        "a=candidate:",
        "a=fingerprint:sha-256",
        "a=setup:actpass",
        "a=rtcp-mux",
        "a=mid:1",
        "UDP/TLS/RTP/SAVPF",
    ] {
        assert!(offered.contains(there), "{there}: {offered}");
    }
    assert!(!offered.contains("a=crypto"), "{offered}");
}

/// A lite agent announces itself (RFC 8839 section 5.3); a full agent does not.
#[test]
fn lite_agent_is_announced_as_configured() {
    let candidate = "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=candidate:1 1 UDP 2130706431 10.0.0.2 4000 typ host\r\n";
    for (key, lite) in [
        (None, [true, true]),
        (Some("off"), [false, false]),
        (Some("forward"), [false, true]),
        (Some("backward"), [true, false]),
        (Some("both"), [true, true]),
    ] {
        let mut rig = Rig::new(CONFIG);
        let mut wanted = vec![("ICE", "force")];
        wanted.extend(key.map(|value| ("ICE-lite", value)));
        let offered = rig.offer(&sdp("10.0.0.1", 4000, "RTP/AVP", candidate), &wanted);
        let answered = rig.answer(&sdp("10.0.0.2", 4000, "RTP/AVP", candidate), &[]);
        for (text, lite) in [answered, offered].iter().zip(lite) {
            assert!(text.contains("a=ice-ufrag:"), "{key:?}: {text}");
            assert_eq!(text.contains("a=ice-lite"), lite, "{key:?}: {text}");
        }
    }
}

#[test]
fn branches_of_a_forked_call_have_separate_media() {
    let mut rig = Rig::new(CONFIG);
    let one = rig.offer(&plain_a(), &[("via-branch", "1")]);
    let two = rig.offer(&plain_a(), &[("via-branch", "2")]);
    assert_ne!(port_of(&one), port_of(&two));
    let census = rig.node.census();
    assert_eq!((census.calls, census.branches, census.ports), (1, 2, 4));
    let first = rig.answer(&plain_b(), &[("via-branch", "1"), ("to-tag", "b1")]);
    let c = sdp("10.0.0.3", 6000, "RTP/AVP", "");
    let second = rig.answer(&c, &[("via-branch", "2"), ("to-tag", "b2")]);
    assert_ne!(port_of(&first), port_of(&second));
    let at = |port: u16| format!("192.0.2.1:{port}");
    let sent = rig.send(A, &at(port_of(&second)), &rtp(7, 1)).unwrap();
    assert_eq!(sent.0, addr("10.0.0.3:6000"));
    // The first branch is deleted; the second remains.
    let reply = rig.ask(&command(&[
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("via-branch", "1"),
    ]));
    assert_eq!(text(&reply, "result"), "ok");
    assert_eq!(rig.node.census().branches, 1);
    assert!(rig.send(A, &at(port_of(&second)), &rtp(7, 2)).is_some());
    // Deleting an unknown branch has no effect.
    rig.ask(&command(&[
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("to-tag", "b1"),
    ]));
    assert_eq!(rig.node.census().branches, 1);
    rig.ask(&command(&[
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "b2"),
        ("to-tag", "a"),
    ]));
    rig.assert_quiet();
}

#[test]
fn several_answers_to_one_offer() {
    let mut rig = Rig::new(CONFIG);
    let offered = rig.offer(&plain_a(), &[]);
    let early = rig.answer(&plain_b(), &[("to-tag", "b1")]);
    let c = sdp("10.0.0.3", 6000, "RTP/AVP", "");
    let late = rig.answer(&c, &[("to-tag", "b2")]);
    assert_eq!(port_of(&early), port_of(&late), "A has been given one port");
    let towards_a = format!("192.0.2.1:{}", port_of(&late));
    let towards_b = format!("192.0.2.1:{}", port_of(&offered));
    assert_eq!(
        rig.send(A, &towards_a, &rtp(7, 1)).unwrap().0,
        addr("10.0.0.3:6000")
    );
    assert_eq!(
        rig.send("10.0.0.3:6000", &towards_b, &rtp(9, 1)).unwrap().0,
        addr(A)
    );
    assert_eq!(rig.node.census().branches, 1);
}

/// Another early dialog may accept a line that the first one has rejected, but only for a time.
#[test]
fn rejected_line_is_not_relayed_and_its_ports_are_released() {
    let mut rig = Rig::new(CONFIG);
    let video = |port: u16| format!("m=video {port} RTP/AVP 31\r\n");
    rig.offer(&sdp("10.0.0.1", 4000, "RTP/AVP", &video(4002)), &[]);
    let answer = sdp("10.0.0.2", 5000, "RTP/AVP", &video(0));
    let answered = rig.answer(&answer, &[("to-tag", "b1")]);
    assert!(answered.contains("m=video 0 "), "{answered}");
    let medias = |rig: &mut Rig, tag: &str| {
        let query = rig.ask(&command(&[("command", "query"), ("call-id", "call")]));
        match get(&query, &["tags", tag, "medias"]) {
            Some(Value::List(medias)) => medias.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(medias(&mut rig, "a"), 1);
    assert_eq!(rig.node.census().ports, 4);
    let accepted = sdp("10.0.0.3", 6000, "RTP/AVP", &video(6002));
    let answered = rig.answer(&accepted, &[("to-tag", "b2")]);
    assert!(!answered.contains("m=video 0 "), "{answered}");
    assert_eq!(medias(&mut rig, "a"), 2);
    rig.pass(Duration::from_secs(40));
    assert_eq!(rig.node.census().ports, 4);
    rig.answer(&answer, &[("to-tag", "b1")]);
    rig.pass(Duration::from_secs(33));
    assert_eq!(rig.node.census().ports, 2);
}

#[test]
fn re_offers_of_either_side() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, towards_b) = call(&mut rig);
    let hold = format!("{}a=sendonly\r\n", plain_b());
    let out = rig.offer(&hold, &[("from-tag", "b"), ("to-tag", "a")]);
    assert!(
        out.contains("a=sendonly") && out.contains("c=IN IP4 192.0.2.1"),
        "{out}"
    );
    assert_eq!(port_of(&out), addr(&towards_a).port(), "the port is kept");
    let back = rig.answer(
        &format!("{}a=recvonly\r\n", plain_a()),
        &[("from-tag", "b"), ("to-tag", "a")],
    );
    assert_eq!(port_of(&back), addr(&towards_b).port());
    assert!(rig.send(B, &towards_b, &rtp(9, 1)).is_some());
    assert_eq!(rig.send(A, &towards_a, &rtp(7, 1)), None, "held");
    // A adds a line and changes its address.
    let moved = sdp("10.0.0.9", 4100, "RTP/AVP", "m=video 4102 RTP/AVP 31\r\n");
    let out = rig.offer(&moved, &[("to-tag", "b")]);
    assert_eq!(port_of(&out), addr(&towards_b).port());
    assert!(!out.contains("m=video 0 "), "{out}");
    assert_eq!(rig.node.census().ports, 4);
    let answer = format!("{}m=video 0 RTP/AVP 31\r\n", plain_b());
    let back = rig.answer(&answer, &[]);
    assert!(back.contains("m=video 0 "), "{back}");
    assert_eq!(
        rig.node.census().ports,
        2,
        "ports of the rejected line are released"
    );
    let sent = rig.send(B, &towards_b, &rtp(9, 2)).unwrap();
    assert_eq!(sent.0, addr("10.0.0.9:4100"));
    assert_eq!(rig.node.census().branches, 1);
}

#[test]
fn offer_is_deleted_before_its_answer() {
    let mut rig = Rig::new(CONFIG);
    rig.offer(&plain_a(), &[]);
    // The delete command may contain a tag that the node never received.
    let reply = rig.ask(&command(&[
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("to-tag", "unheard"),
    ]));
    assert_eq!(text(&reply, "result"), "ok");
    assert_eq!(number(&reply, &["totals", "RTP", "packets"]), 0);
    rig.assert_quiet();
    let why = rig.refusal(&[
        ("command", "answer"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("to-tag", "b"),
        ("sdp", &plain_b()),
    ]);
    assert_eq!(why, "Unknown call-id");
}

#[test]
fn delayed_deletion_can_be_revoked() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, _) = call(&mut rig);
    let delete = command(&[
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "b"),
        ("delete-delay", "20"),
    ]);
    for _ in 0..2 {
        assert_eq!(text(&rig.ask(&delete), "result"), "ok");
    }
    rig.pass(Duration::from_secs(10));
    assert!(
        rig.send(A, &towards_a, &rtp(7, 1)).is_some(),
        "media passes until the deletion"
    );
    rig.offer(&plain_a(), &[("to-tag", "b")]);
    rig.answer(&plain_b(), &[]);
    rig.pass(Duration::from_secs(30));
    assert_eq!(rig.node.census().branches, 1, "revoked");
    rig.ask(&delete);
    rig.pass(Duration::from_secs(21));
    rig.assert_quiet();
}

/// A script deletes the first branch of a parallel call; then another phone answers the same offer.
#[test]
fn answer_revokes_a_delayed_deletion() {
    let mut rig = Rig::new(CONFIG);
    rig.offer(&plain_a(), &[("direction", "[outside,inside]")]);
    let delete = command(&[
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("delete-delay", "20"),
    ]);
    assert_eq!(text(&rig.ask(&delete), "result"), "ok");
    rig.pass(Duration::from_secs(5));
    rig.answer(&plain_b(), &[]);
    rig.pass(Duration::from_secs(30));
    assert_eq!(rig.node.census().branches, 1);
    rig.ask(&delete);
    rig.pass(Duration::from_secs(21));
    rig.assert_quiet();
}

#[test]
fn media_timeout_ends_a_call_and_is_counted() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, _) = call(&mut rig);
    rig.offer(&plain_a(), &[("call-id", "never answered")]);
    rig.pass(Duration::from_secs(50));
    assert!(rig.send(A, &towards_a, &rtp(7, 1)).is_some());
    rig.pass(Duration::from_secs(50));
    let figures = |rig: &Rig| {
        let branches = rig.node.census().branches;
        (branches, rig.node.counters().media_timeouts)
    };
    assert_eq!(figures(&rig), (2, 0));
    rig.pass(Duration::from_secs(11));
    assert_eq!(figures(&rig), (1, 1));
    // An offer is kept for `offer_timeout_s`.
    rig.pass(Duration::from_secs(187));
    assert_eq!(figures(&rig), (1, 1));
    rig.pass(Duration::from_secs(3));
    assert_eq!(rig.node.counters().media_timeouts, 2);
    assert!(rig.names().contains(&"media_timeout"));
    rig.assert_quiet();
}

#[test]
fn no_free_port_is_an_error_and_a_full_node_reports_it() {
    let narrow = CONFIG.replace(
        "192.0.2.1',ports='20000-20039'",
        "192.0.2.1',ports='20000-20007'",
    ) + "[limits]\ncalls=3\n";
    let mut rig = Rig::new(&narrow);
    rig.offer(&plain_a(), &[("call-id", "1")]);
    rig.offer(&plain_a(), &[("call-id", "2")]);
    let mut pairs = vec![("command", "offer"), ("call-id", "3"), ("from-tag", "a")];
    let offer = plain_a();
    pairs.push(("sdp", &offer));
    assert_eq!(rig.refusal(&pairs), "no media port left");
    assert_eq!(rig.node.counters().ports_exhausted, 1);
    assert!(rig.names().contains(&"media_ports_exhausted"));
    assert_eq!(rig.node.census().branches, 2);
    pairs.push(("direction", "[inside,inside]"));
    assert_eq!(text(&rig.ask(&command(&pairs)), "result"), "ok");
    pairs[1] = ("call-id", "4");
    assert!(rig.refusal(&pairs).contains("limit reached"));
    pairs.push(("supports", "[load limit]"));
    let reply = rig.ask(&command(&pairs));
    assert_eq!(text(&reply, "result"), "load limit");
    rig.ask(&command(&[("command", "delete"), ("call-id", "1")]));
    assert_eq!(text(&rig.ask(&command(&pairs)), "result"), "ok");
}

/// A provisional answer, the final one, and that of a re-INVITE.
#[test]
fn answer_of_a_call_is_logged_once() {
    let mut rig = Rig::new(CONFIG);
    let direction = [("direction", "[inside,outside]")];
    rig.offer(&plain_a(), &direction);
    rig.answer(&plain_b(), &[]);
    rig.answer(&plain_b(), &[]);
    rig.offer(&plain_a(), &[("to-tag", "b"), direction[0]]);
    rig.answer(&plain_b(), &[]);
    let answered = |rig: &Rig| {
        let names = rig.names();
        names
            .iter()
            .filter(|name| **name == "call_answered")
            .count()
    };
    assert_eq!(answered(&rig), 1);
    // Another call.
    rig.offer(&plain_a(), &[("call-id", "other"), direction[0]]);
    rig.answer(&plain_b(), &[("call-id", "other")]);
    assert_eq!(answered(&rig), 2);
}

#[test]
fn ports_in_use_are_skipped_before_the_reply() {
    let mut rig = Rig::new(&CONFIG.replace("20000-20039", "20000-20007"));
    rig.occupied = [20_000, 20_003, 20_004]
        .map(|port| addr(&format!("192.0.2.1:{port}")))
        .to_vec();
    let offered = rig.offer(&plain_a(), &[("direction", "[inside,outside]")]);
    assert_eq!(port_of(&offered), 20_006);
    assert!(rig.node.counters().ports_taken <= 3);
    let failed = ["socket_failed", "media_port_in_use"];
    let names = rig.names();
    assert!(names.iter().filter(|name| failed.contains(name)).count() <= 1);
    rig.answer(&plain_b(), &[]);
    let towards_b = "192.0.2.1:20006";
    assert!(rig.send(B, towards_b, &rtp(9, 1)).is_some());
    // If no other port is left, the offer is refused.
    let why = rig.refusal(&[
        ("command", "offer"),
        ("call-id", "other"),
        ("from-tag", "x"),
        ("direction", "[inside,outside]"),
        ("sdp", &plain_a()),
    ]);
    assert_eq!(why, "no media port left");
    let exhausted = rig.events.iter().find_map(|event| match &event.kind {
        engine::EventKind::MediaPortsExhausted {
            interface,
            address,
            ports,
        } => Some([interface.as_str(), address, ports]),
        _ => None,
    });
    assert_eq!(exhausted, Some(["outside", "192.0.2.1", "20000-20007"]));
    assert_eq!(rig.node.census().branches, 1);
    assert_eq!(rig.node.census().waiting, 0);
}

#[test]
fn addresses_families_and_codecs_as_requested() {
    let mut rig = Rig::new(CONFIG);
    let offered = rig.offer(
        &plain_a(),
        &[
            ("direction", "[outside,inside]"),
            ("address-family", "IP6"),
            ("flags", "[codec-strip-PCMA,loop protect]"),
        ],
    );
    assert!(offered.contains("c=IN IP6 2001:db8::1\r\n"), "{offered}");
    assert!(offered.contains(" RTP/AVP 0 101\r\n"), "{offered}");
    // A description that the node wrote itself is returned unchanged.
    let back = rig.offer(
        &offered,
        &[("flags", "[loop-protect]"), ("call-id", "other")],
    );
    assert_eq!(back, offered);
    assert_eq!(rig.node.census().calls, 1);
    let answered = rig.answer(&sdp("2001:db8::77", 5000, "RTP/AVP", ""), &[]);
    let towards_a = format!("192.0.2.1:{}", port_of(&answered));
    let sent = rig.send(A, &towards_a, &rtp(7, 1)).unwrap();
    assert_eq!(sent.0, addr("[2001:db8::77]:5000"));
    let named = rig.offer(
        &plain_a(),
        &[
            ("call-id", "named"),
            ("media-address", "203.0.113.9"),
            ("TOS", "184"),
        ],
    );
    assert!(named.contains("c=IN IP4 203.0.113.9\r\n"), "{named}");
    // 256 and above mean unchanged.
    let unchanged = rig.offer(&plain_a(), &[("call-id", "unchanged"), ("TOS", "256")]);
    assert!(unchanged.contains("m=audio "), "{unchanged}");
    // An offer whose addresses are not to be trusted.
    rig.offer(
        &sdp("172.16.0.1", 4000, "RTP/AVP", ""),
        &[
            ("call-id", "nat"),
            ("flags", "[SIP source address,asymmetric]"),
            ("received-from", "[IP4,203.0.113.50]"),
        ],
    );
    let query = rig.ask(&command(&[("command", "query"), ("call-id", "nat")]));
    let place = [
        "tags",
        "a",
        "medias",
        "0",
        "streams",
        "0",
        "advertised endpoint",
        "address",
    ];
    assert_eq!(get(&query, &place), Some(&Value::from("203.0.113.50")));
    let why = rig.refusal(&[
        ("command", "offer"),
        ("call-id", "v6"),
        ("from-tag", "a"),
        ("direction", "[outside,outside]"),
        ("address-family", "IP6"),
        ("sdp", &plain_a()),
    ]);
    assert!(why.contains("no address of that family"), "{why}");
}

#[test]
fn other_source_is_latched_unless_the_command_forbids_it() {
    let mut rig = Rig::new(CONFIG);
    let learn = |rig: &mut Rig, to: &str, from: &str| {
        (1..=4)
            .filter(|n| rig.send(from, to, &rtp(7, *n)).is_some())
            .count()
    };
    let (towards_a, _) = call(&mut rig);
    assert!(learn(&mut rig, &towards_a, "203.0.113.1:999") > 0);
    for (flag, from, passes) in [
        ("[asymmetric]", "10.0.0.1:4444", false),
        ("[strict-source]", "10.0.0.1:4444", true),
        ("[strict-source]", "203.0.113.1:999", false),
    ] {
        let id = format!("{flag}{from}");
        rig.offer(&plain_a(), &[("flags", flag), ("call-id", &id)]);
        let answered = rig.answer(&plain_b(), &[("call-id", &id)]);
        let towards_a = format!("192.0.2.1:{}", port_of(&answered));
        assert_eq!(
            learn(&mut rig, &towards_a, from) > 0,
            passes,
            "{flag} {from}"
        );
    }
}

#[test]
fn blocked_media_is_dropped_until_unblocked() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, towards_b) = call(&mut rig);
    let execute = |rig: &mut Rig, what: &str, more: &[(&str, &str)]| {
        let mut pairs = vec![("command", what), ("call-id", "call")];
        pairs.extend_from_slice(more);
        assert_eq!(text(&rig.ask(&command(&pairs)), "result"), "ok");
    };
    execute(&mut rig, "block media", &[("from-tag", "a")]);
    assert_eq!(rig.send(A, &towards_a, &rtp(7, 1)), None);
    assert!(rig.send(B, &towards_b, &rtp(9, 1)).is_some());
    execute(&mut rig, "block media", &[("flags", "[all]")]);
    assert_eq!(rig.send(B, &towards_b, &rtp(9, 2)), None);
    execute(&mut rig, "unblock media", &[("from-tag", "a")]);
    assert!(rig.send(A, &towards_a, &rtp(7, 2)).is_some());
    assert_eq!(rig.send(B, &towards_b, &rtp(9, 3)), None);
    execute(&mut rig, "unblock media", &[]);
    assert!(rig.send(B, &towards_b, &rtp(9, 4)).is_some());
    assert_eq!(
        rig.refusal(&[("command", "block media"), ("call-id", "other")]),
        "Unknown call-id"
    );
}
