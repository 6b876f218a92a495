//! The generator's workloads over WebSocket (ws and wss), through a Hornwork border on sockets, and servers that refuse
//! them.

use lab::experiment::File;
use lab::record::{Attempt, AttemptKind, AttemptOutcome};
use lab::trial::{Outcomes, Trial, on_sockets, simulate};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

fn trial(text: &str) -> Trial {
    let file = File::parse("test", text).unwrap_or_else(|error| panic!("{error}"));
    let experiment = file.levels().unwrap().remove(0).experiment;
    Trial {
        experiment,
        number: 0,
        seed: 1,
    }
}

fn of(outcomes: &Outcomes, kind: AttemptKind) -> Vec<&Attempt> {
    let attempts = outcomes.attempts.iter();
    attempts.filter(|attempt| attempt.kind == kind).collect()
}

fn good(outcomes: &Outcomes, kind: AttemptKind) -> usize {
    let attempts = of(outcomes, kind);
    for attempt in &attempts {
        assert_eq!(
            attempt.outcome,
            AttemptOutcome::Completed,
            "{attempt:?}\n{:?}",
            outcomes.remarks
        );
    }
    attempts.len()
}

/// Calls and registrations with digest authentication, on several connections.
const BOTH: &str = r#"
name = "t"
title = "t"
[sut]
media = "bypass"
[callers]
rate = 40.0
total = 40
hold_seconds = 0.5
hold_percent = 30.0
transport = "TRANSPORT"
connections = 3
user = "{number:4}"
from = "{number:4}"
users = 20
password = "secret-{user}"
hang_up = "SIDE"
[callees]
transport = "BEHIND"
[registrations]
rate = 40.0
users = 20
refresh_seconds = 0.5
refreshes = 1
transport = "TRANSPORT"
connections = 5
"#;

fn both(transport: &str, side: &str, behind: &str) -> String {
    BOTH.replace("TRANSPORT", transport)
        .replace("SIDE", side)
        .replace("BEHIND", behind)
}

#[test]
fn calls_and_registrations_with_digest_over_websocket() {
    for (transport, side, behind) in [
        ("ws", "caller", "udp"),
        ("ws", "callee", "tls"),
        ("wss", "callee", "tcp"),
        ("wss", "caller", "tls"),
    ] {
        let outcomes = on_sockets(&trial(&both(transport, side, behind)), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, AttemptKind::Call), 40, "{transport}");
        assert_eq!(good(&outcomes, AttemptKind::Answer), 40, "{transport}");
        assert_eq!(
            good(&outcomes, AttemptKind::Registration),
            20,
            "{transport}"
        );
        assert_eq!(good(&outcomes, AttemptKind::Refresh), 20, "{transport}");
        assert_eq!(
            good(&outcomes, AttemptKind::Deregistration),
            20,
            "{transport}"
        );
        assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
        assert!(
            outcomes
                .remarks
                .iter()
                .all(|text| !text.contains("refused")),
            "{:?}",
            outcomes.remarks
        );
    }
}

#[test]
fn reregistrations_at_a_rate_and_speech_over_websocket() {
    for transport in ["ws", "wss"] {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[registrations]\nrate = 100.0\nusers = 50\npassword = \"\"\n\
             refresh_rate = 100.0\nrefreshes = 2\nremove = true\nregistrar = \"core\"\ntransport = \"{transport}\"\nconnections = 10\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, AttemptKind::Registration), 50);
        assert_eq!(good(&outcomes, AttemptKind::Reregistration), 100);
        assert_eq!(good(&outcomes, AttemptKind::Deregistration), 50);
        // Two generators on each side share the plan; media is sent over UDP through the border.
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[generator]\nworkers = 2\n[callers]\nrate = 20.0\ntotal = 10\nhold_seconds = 1.0\n\
             media = \"speech\"\ntransport = \"{transport}\"\n[callees]\nmedia = \"speech\"\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, AttemptKind::Call), 10);
        assert_eq!(good(&outcomes, AttemptKind::Answer), 10);
        let received = outcomes.streams.iter().filter(|stream| stream.received > 0);
        assert_eq!(received.count(), 20, "each side receives media");
        assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
    }
}

/// A server that answers each WebSocket handshake with these bytes.
fn server(answer: &'static str) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = Vec::new();
            let mut buffer = [0; 1_000];
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(n @ 1..) => request.extend_from_slice(&buffer[..n]),
                    _ => break,
                }
            }
            assert!(
                request.starts_with(b"GET /sip HTTP/1.1\r\n"),
                "{}",
                request.escape_ascii()
            );
            let _ = stream.write_all(answer.as_bytes());
            // Until the client closes.
            while let Ok(1..) = stream.read(&mut buffer) {}
        }
    });
    address
}

#[test]
fn refused_websocket_fails_the_attempt_and_reason_is_reported() {
    for (answer, why) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "404 Not Found",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sip\r\n\r\n",
            "does not match the key",
        ),
    ] {
        let address = server(answer);
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[sut]\naddress = \"{address}\"\nwebsocket_path = \"/sip\"\n\
             [registrations]\nrate = 50.0\nusers = 3\npassword = \"\"\ntransport = \"ws\"\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        let attempts = of(&outcomes, AttemptKind::Registration);
        assert_eq!(attempts.len(), 3);
        for attempt in attempts {
            assert_ne!(attempt.outcome, AttemptOutcome::Completed, "{attempt:?}");
        }
        let text = outcomes.remarks.join("\n");
        assert!(
            text.contains("WebSocket of the callers") && text.contains(why),
            "{text}"
        );
    }
}

#[test]
fn inconsistent_settings_are_rejected() {
    for transport in ["ws", "wss"] {
        let error = simulate(&trial(&both(transport, "caller", "udp"))).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("not supported in virtual time"), "{error}");
    }
    let good = both("ws", "caller", "udp");
    let foreign = "media = \"bypass\"\naddress = \"127.0.0.1:80\"";
    for (old, new, why) in [
        (
            "transport = \"udp\"",
            "transport = \"ws\"",
            "does not open WebSockets to the called side",
        ),
        (
            "transport = \"udp\"",
            "transport = \"wss\"",
            "does not open WebSockets to the called side",
        ),
        (
            "transport = \"ws\"\nconnections = 5",
            "transport = \"tcp\"",
            "TCP, TLS and WebSocket exclude each other",
        ),
        (
            "transport = \"ws\"\nconnections = 5",
            "transport = \"wss\"",
            "TCP, TLS and WebSocket exclude each other",
        ),
        (
            "connections = 5",
            "connections = 60001",
            "expected 1 to 60000",
        ),
        (
            "media = \"bypass\"",
            "direct = true",
            "with sut.direct WebSockets are not possible",
        ),
        (
            "media = \"bypass\"",
            "websocket_path = \"/x\"",
            "applies to an external SUT",
        ),
        (
            "media = \"bypass\"",
            &format!("{foreign}\nwebsocket_path = \"x\""),
            "expected a path",
        ),
        (
            "media = \"bypass\"",
            &format!("{foreign}\nwebsocket_path = \"/a b\""),
            "expected a path",
        ),
        (
            "media = \"bypass\"",
            &format!("{foreign}\n[tls]\nverify = false"),
            "called over TLS",
        ),
        (
            "transport = \"ws\"",
            "transport = \"sctp\"",
            "unknown variant",
        ),
    ] {
        let text = good.replacen(old, new, 1);
        assert_ne!(text, good, "{old}");
        let text = File::parse("test", &text).unwrap_err().to_string();
        assert!(text.contains(why), "{why}: {text}");
    }
    let text = good.replacen("media = \"bypass\"", foreign, 1).replacen(
        "transport = \"ws\"\nconnections = 5",
        "",
        1,
    );
    let text = File::parse("test", &text).unwrap_err().to_string();
    assert!(text.contains("one address"), "{text}");
}
