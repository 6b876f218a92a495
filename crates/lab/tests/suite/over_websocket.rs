//! The laboratory's own workloads over WebSocket, plain and secure, through our border on sockets; servers that open none.

use lab::experiment::File;
use lab::record::{Attempt, Kind, Outcome};
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

fn of(outcomes: &Outcomes, kind: Kind) -> Vec<&Attempt> {
    let attempts = outcomes.attempts.iter();
    attempts.filter(|attempt| attempt.kind == kind).collect()
}

fn good(outcomes: &Outcomes, kind: Kind) -> usize {
    let attempts = of(outcomes, kind);
    for attempt in &attempts {
        assert_eq!(
            attempt.outcome,
            Outcome::Completed,
            "{attempt:?}\n{:?}",
            outcomes.remarks
        );
    }
    attempts.len()
}

/// Calls and registrations with digest, on several connections.
const BOTH: &str = r#"
name = "t"
title = "t"
[subject]
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
fn calls_and_registrations_with_digest_over_websockets() {
    for (transport, side, behind) in [
        ("ws", "caller", "udp"),
        ("ws", "callee", "tls"),
        ("wss", "callee", "tcp"),
        ("wss", "caller", "tls"),
    ] {
        let outcomes = on_sockets(&trial(&both(transport, side, behind)), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, Kind::Call), 40, "{transport}");
        assert_eq!(good(&outcomes, Kind::Answer), 40, "{transport}");
        assert_eq!(good(&outcomes, Kind::Registration), 20, "{transport}");
        assert_eq!(good(&outcomes, Kind::Refresh), 20, "{transport}");
        assert_eq!(good(&outcomes, Kind::Deregistration), 20, "{transport}");
        assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
        assert!(
            outcomes
                .remarks
                .iter()
                .all(|told| !told.contains("refused")),
            "{:?}",
            outcomes.remarks
        );
    }
}

#[test]
fn re_registrations_at_a_rate_and_speech_over_websockets() {
    for transport in ["ws", "wss"] {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[registrations]\nrate = 100.0\nusers = 50\npassword = \"\"\n\
             refresh_rate = 100.0\nrefreshes = 2\nremove = true\nat = \"core\"\ntransport = \"{transport}\"\nconnections = 10\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, Kind::Registration), 50);
        assert_eq!(good(&outcomes, Kind::Reregistration), 100);
        assert_eq!(good(&outcomes, Kind::Deregistration), 50);
        // Two generators on each side share the plan; media goes by UDP, through the border.
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[generator]\nworkers = 2\n[callers]\nrate = 20.0\ntotal = 10\nhold_seconds = 1.0\n\
             media = \"speech\"\ntransport = \"{transport}\"\n[callees]\nmedia = \"speech\"\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, Kind::Call), 10);
        assert_eq!(good(&outcomes, Kind::Answer), 10);
        let heard = outcomes.streams.iter().filter(|stream| stream.received > 0);
        assert_eq!(heard.count(), 20, "each side hears the other");
        assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
    }
}

/// A server that answers each request to open a WebSocket with these bytes.
fn server(answer: &'static str) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut heard = Vec::new();
            let mut buffer = [0; 1_000];
            while !heard.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(n @ 1..) => heard.extend_from_slice(&buffer[..n]),
                    _ => break,
                }
            }
            assert!(
                heard.starts_with(b"GET /sip HTTP/1.1\r\n"),
                "{}",
                heard.escape_ascii()
            );
            let _ = stream.write_all(answer.as_bytes());
            // Until the client closes.
            while let Ok(1..) = stream.read(&mut buffer) {}
        }
    });
    address
}

#[test]
fn a_websocket_that_is_refused_fails_the_attempt_and_the_reason_is_told() {
    for (answer, why) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "404 Not Found",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sip\r\n\r\n",
            "does not fit our key",
        ),
    ] {
        let address = server(answer);
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[subject]\naddress = \"{address}\"\nwebsocket_path = \"/sip\"\n\
             [registrations]\nrate = 50.0\nusers = 3\npassword = \"\"\ntransport = \"ws\"\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        let attempts = of(&outcomes, Kind::Registration);
        assert_eq!(attempts.len(), 3);
        for attempt in attempts {
            assert_ne!(attempt.outcome, Outcome::Completed, "{attempt:?}");
        }
        let told = outcomes.remarks.join("\n");
        assert!(
            told.contains("WebSocket of the callers") && told.contains(why),
            "{told}"
        );
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    for transport in ["ws", "wss"] {
        let error = simulate(&trial(&both(transport, "caller", "udp"))).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("not opened in virtual time"), "{error}");
    }
    let good = both("ws", "caller", "udp");
    let foreign = "media = \"bypass\"\naddress = \"127.0.0.1:80\"";
    for (old, new, why) in [
        (
            "transport = \"udp\"",
            "transport = \"ws\"",
            "never by us towards a called side",
        ),
        (
            "transport = \"udp\"",
            "transport = \"wss\"",
            "never by us towards a called side",
        ),
        (
            "transport = \"ws\"\nconnections = 5",
            "transport = \"tcp\"",
            "nor WebSocket beside",
        ),
        (
            "transport = \"ws\"\nconnections = 5",
            "transport = \"wss\"",
            "nor WebSocket beside",
        ),
        (
            "connections = 5",
            "connections = 60001",
            "expected 1 to 60000",
        ),
        (
            "media = \"bypass\"",
            "none = true",
            "nobody takes WebSockets",
        ),
        (
            "media = \"bypass\"",
            "websocket_path = \"/x\"",
            "for a foreign subject",
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
        let told = File::parse("test", &text).unwrap_err().to_string();
        assert!(told.contains(why), "{why}: {told}");
    }
    let text = good.replacen("media = \"bypass\"", foreign, 1).replacen(
        "transport = \"ws\"\nconnections = 5",
        "",
        1,
    );
    let told = File::parse("test", &text).unwrap_err().to_string();
    assert!(told.contains("one address"), "{told}");
}
