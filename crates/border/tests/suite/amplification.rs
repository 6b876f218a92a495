//! A datagram with a spoofed source causes at most twice its bytes towards that source within 20 s (RFC 3261 section
//! 26.3.2.4), for any request and status, without any ACK.

use crate::virtual_network;

use engine::DropReason;
use std::net::SocketAddr;
use std::time::Duration;
use virtual_network::*;

const VICTIM: &str = "203.0.113.99:5060";

/// A request of about 275 bytes without a body.
fn request(method: &str, target: &str, number: usize, extra: &str) -> String {
    format!(
        "{method} {target} SIP/2.0\r\nVia: SIP/2.0/UDP {VICTIM};branch=z9hG4bK{number:08}\r\nMax-Forwards: 70\r\n\
        From: <sip:1000@192.0.2.1>;tag=t{number:04}\r\nTo: <sip:2000@192.0.2.1>\r\nCall-ID: c{number:06}@victim\r\n\
        CSeq: 1 {method}\r\nContact: <sip:1000@{VICTIM}>\r\n{extra}Content-Length: 0\r\n\r\n"
    )
}

/// Sends the request once. Returns the responses within 20 s.
fn answers(net: &mut VirtualNetwork, text: &str) -> Vec<String> {
    let victim: SocketAddr = VICTIM.parse().unwrap();
    let before = net.wire.len();
    net.send_raw(VICTIM, OUT, text.as_bytes());
    net.run(Duration::from_secs(20));
    net.wire[before..]
        .iter()
        .filter(|(to, _)| *to == victim)
        .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
        .collect()
}

fn status(answer: &str) -> u16 {
    answer[8..11].parse().unwrap()
}

const DIGEST: &str = "authenticate='digest'\nregister='local'\n";
const USER: &str = "[[user]]\nname='1000'\npassword='secret'\n";

fn with(interface: &str, more: &str) -> String {
    let plain = PLAIN.replace("kind='access'\n", &format!("kind='access'\n{interface}"));
    format!("{plain}{more}")
}

/// `(configuration, request, expected statuses)`.
fn cases() -> Vec<(String, String, &'static [u16])> {
    let digest = with(DIGEST, USER);
    let strong = with(
        DIGEST,
        &format!(
            "{USER}[realm]\nname='a-realm-of-many-letters.example.com'\nalgorithms=['SHA-512-256','SHA-256','MD5']\n"
        ),
    );
    let uri = "sip:2000@192.0.2.1";
    let mut cases = Vec::new();
    let mut add = |config: &str, text: String, wanted: &'static [u16]| {
        cases.push((config.to_owned(), text, wanted));
    };
    for config in [&digest, &strong] {
        add(config, request("INVITE", uri, 1, ""), &[407]);
        add(
            config,
            request("REGISTER", "sip:192.0.2.1", 2, "Expires: 60\r\n"),
            &[401],
        );
        for (number, method) in ["MESSAGE", "SUBSCRIBE", "REFER", "PUBLISH", "NOTIFY"]
            .iter()
            .enumerate()
        {
            add(
                config,
                request(method, uri, 10 + number, "Event: dialog\r\n"),
                &[407],
            );
        }
        add(config, request("OPTIONS", uri, 20, ""), &[200]);
        add(config, request("BOGUS", uri, 21, ""), &[405]);
        add(config, request("INFO", uri, 22, ""), &[481]);
        add(config, request("BYE", uri, 23, ""), &[481]);
    }
    let unreadable = "Proxy-Authorization: Digest realm=\"hornwork\", username\r\n";
    add(&digest, request("INVITE", uri, 30, unreadable), &[400]);
    let extension = "Require: unheard-of\r\n";
    add(&with("", ""), request("INVITE", uri, 31, extension), &[420]);
    let spent = request("INVITE", uri, 32, "").replace("Max-Forwards: 70", "Max-Forwards: 0");
    add(&with("", ""), spent, &[483]);
    let tagged = request("INVITE", uri, 33, "")
        .replace("2000@192.0.2.1>\r\nCall", "2000@192.0.2.1>;tag=x\r\nCall");
    add(&with("", ""), tagged, &[481]);
    let short = "Supported: timer\r\nSession-Expires: 10\r\n";
    add(&with("", ""), request("INVITE", uri, 34, short), &[422]);
    for (number, (reject, wanted)) in [
        ("403", &[403][..]),
        ("404", &[404]),
        ("488", &[488]),
        ("503", &[503]),
        (
            "{status=603,reason='A Reason Of Several Words That Are Of No Use'}",
            &[603],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let config = with("", &format!("[[route]]\nreject={reject}\n"));
        add(&config, request("INVITE", uri, 40 + number, ""), wanted);
        add(&config, request("MESSAGE", uri, 50 + number, ""), wanted);
    }
    let no_contact = request("INVITE", uri, 60, "").replace("Contact:", "X-Contact:");
    add(&with("", ""), no_contact, &[400]);
    let refusing = with("register='refuse'\n", "");
    add(
        &refusing,
        request("REGISTER", "sip:192.0.2.1", 61, ""),
        &[403],
    );
    add(
        &with("rate_limits={calls_per_s=1,source_calls_per_s=1}\n", ""),
        request("INVITE", "tel:", 62, ""),
        &[400],
    );
    // The trunk does not answer: 100, then 408 or similar.
    add(&with("", ""), request("INVITE", uri, 63, ""), &[]);
    cases
}

#[test]
fn unauthenticated_request_causes_at_most_twice_its_bytes() {
    for (number, (config, text, wanted)) in cases().into_iter().enumerate() {
        let mut net = VirtualNetwork::new(&config, 7);
        let answers = answers(&mut net, &text);
        let bytes: usize = answers.iter().map(String::len).sum();
        let line = text.lines().next().unwrap_or_default();
        let statuses: Vec<u16> = answers.iter().map(|answer| status(answer)).collect();
        assert!(
            bytes <= 2 * text.len(),
            "case {number} {line}: {bytes} bytes for {}: {answers:#?}",
            text.len()
        );
        if !wanted.is_empty() {
            assert_eq!(statuses, wanted, "case {number} {line}");
        }
    }
}

/// A request of 275 bytes, for which an earlier version sent 3,696 bytes.
#[test]
fn small_invite_gets_one_challenge_without_state() {
    let text = request("INVITE", "sip:2000@192.0.2.1", 1, "").replace("c000001", "c0001");
    assert_eq!(text.len(), 275, "{text}");
    let mut net = VirtualNetwork::new(&with(DIGEST, USER), 7);
    let first = answers(&mut net, &text);
    assert_eq!(first.len(), 1, "{first:#?}");
    assert!(
        first[0].starts_with("SIP/2.0 407 ") && first[0].len() <= 550,
        "{first:#?}"
    );
    assert!(net.border.census().is_quiet(), "{:#?}", net.border.census());
    // Its retransmission gets the same tag, and its ACK matches.
    let again = answers(&mut net, &text);
    let tag = |answer: &str| {
        let to = answer.lines().find(|line| line.starts_with("To:")).unwrap();
        to.split("tag=").nth(1).unwrap().to_owned()
    };
    assert_eq!(tag(&first[0]), tag(&again[0]));
    let ack = text
        .replace("INVITE ", "ACK ")
        .replace("1 INVITE", "1 ACK")
        .replace(
            "To: <sip:2000@192.0.2.1>",
            &format!("To: <sip:2000@192.0.2.1>;tag={}", tag(&first[0])),
        );
    net.send_raw(VICTIM, OUT, ack.as_bytes());
    net.run(Duration::from_secs(1));
    assert_eq!(net.border.drops().get(DropReason::SipRefusedAck), 1);
}

/// A phone that only supports the last algorithm needs its challenge; without it the omission is counted.
#[test]
fn two_challenges_fit_a_small_register_and_omissions_are_counted() {
    let register = request("REGISTER", "sip:192.0.2.1", 2, "Expires: 60\r\n");
    let challenges = |algorithms: &str| {
        let realm = "registrar.of-the-long-name.voice.example.com..";
        assert_eq!(realm.len(), 46);
        let more = format!("{USER}[realm]\nname='{realm}'\nalgorithms={algorithms}\n");
        let mut net = VirtualNetwork::new(&with(DIGEST, &more), 7);
        let answers = answers(&mut net, &register);
        assert_eq!(answers.len(), 1, "{answers:#?}");
        assert!(answers[0].len() <= 2 * register.len(), "{answers:#?}");
        let count = answers[0].matches("WWW-Authenticate: ").count();
        (
            count,
            net.border.drops().get(DropReason::SipChallengeOmitted),
        )
    };
    assert!(register.len() < 300, "{}", register.len());
    assert_eq!(challenges("['SHA-256','MD5']"), (2, 0));
    let (sent, omitted) = challenges("['SHA-512-256','SHA-256','MD5']");
    assert!((1..3).contains(&sent) && omitted == 1, "{sent} {omitted}");
}

/// Neither rate limits nor authentication apply to requests that match no dialog and no INVITE, so that they must leave
/// nothing behind.
#[test]
fn requests_without_a_match_leave_no_state() {
    let config = with("rate_limits={calls_per_s=1}\n", "");
    let mut net = VirtualNetwork::new(&config, 7);
    let uri = "sip:2000@192.0.2.1";
    let cases = [
        ("INVITE", true, 481),
        ("BYE", true, 481),
        ("BYE", false, 481),
        ("INFO", true, 481),
        ("INFO", false, 481),
        ("CANCEL", false, 481),
        ("BOGUS", true, 481),
        ("BOGUS", false, 405),
    ];
    let victim: SocketAddr = VICTIM.parse().unwrap();
    for (number, (method, tag, wanted)) in (0..10).flat_map(|_| cases).enumerate() {
        let mut text = request(method, uri, number, "");
        if tag {
            text = text.replace("2000@192.0.2.1>\r\nCall", "2000@192.0.2.1>;tag=x\r\nCall");
        }
        let before = net.wire.len();
        net.send_raw(VICTIM, OUT, text.as_bytes());
        net.run(Duration::from_millis(10));
        let sent = net.wire[before..].iter().filter(|(to, _)| *to == victim);
        let statuses: Vec<u16> = sent
            .map(|(_, bytes)| status(&String::from_utf8_lossy(bytes)))
            .collect();
        assert_eq!(statuses, [wanted], "{method} {tag}");
    }
    assert!(net.border.census().is_quiet(), "{:#?}", net.border.census());
}

/// Without a remote target there is no dialog (RFC 3261 section 12.1.1).
#[test]
fn invite_without_contact_is_refused() {
    let mut net = VirtualNetwork::new(PLAIN, 7);
    let text = request("INVITE", "sip:2000@192.0.2.1", 1, "").replace("Contact:", "X-Contact:");
    let answers = answers(&mut net, &text);
    assert!(
        answers.len() == 1 && answers[0].starts_with("SIP/2.0 400 Missing Contact\r\n"),
        "{answers:#?}"
    );
    net.assert_quiet();
}

/// A trunk that authenticates challenges through the border: its response is limited, too.
#[test]
fn challenge_of_a_trunk_is_not_retransmitted_to_unknown_sources() {
    let config = with("register='pass:pbx'\nauthenticate='trunk'\n", "");
    for method in ["INVITE", "MESSAGE", "SUBSCRIBE"] {
        let mut net = VirtualNetwork::new(&config, 7);
        let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        net.phones[pbx].log.behaviour.progress.clear();
        net.phones[pbx].log.behaviour.answer = Some(407);
        net.phones[pbx].log.behaviour.outside = Some(407);
        let text = request(method, "sip:2000@192.0.2.1", 1, "Event: dialog\r\n");
        let answers = answers(&mut net, &text);
        let bytes: usize = answers.iter().map(String::len).sum();
        assert!(
            answers.iter().any(|answer| status(answer) == 407),
            "{method}: {answers:#?}"
        );
        assert!(
            bytes <= 2 * text.len(),
            "{method}: {bytes} for {}: {answers:#?}",
            text.len()
        );
    }
}

/// Refusals to a known source are retransmitted until the ACK (section 17.2.1).
#[test]
fn refusals_to_a_trunk_are_retransmitted_until_the_ack() {
    let config = with("", "[[route]]\nreject=603\n");
    let mut net = VirtualNetwork::new(&config, 7);
    let pbx: SocketAddr = "10.2.0.1:5060".parse().unwrap();
    let text = request("INVITE", "sip:2000@198.51.100.1", 1, "");
    net.send_raw("10.2.0.1:5060", "198.51.100.1:5060", text.as_bytes());
    net.run(Duration::from_secs(20));
    let reported = net
        .wire
        .iter()
        .filter(|(_, bytes)| bytes.starts_with(b"SIP/2.0 603"));
    assert!(reported.clone().count() >= 7, "{}", reported.count());
    let _ = pbx;
}
