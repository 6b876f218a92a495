//! Numbers that viewers of the console must not see, users that are locked out, and the values of commands in the audit
//! log.

use crate::common;
use crate::common::{border, example, media_ports, scratch};
use crate::history::await_log;
use crate::operators::ctl_json;
use crate::web::{Rig, entries, until, users};

use serde_json::{Value, json};
use std::net::UdpSocket;
use std::time::Duration;

/// An INVITE between short numbers, whose texts name them once more.
pub(crate) fn short_call(rig: &Rig) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let local = socket.local_addr().expect("address");
    let id = format!("short-{}", local.port());
    let invite = format!(
        "INVITE sip:6001@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKshort\r\nMax-Forwards: 70\r\n\
         From: <sip:5034@127.0.0.1>;tag=1\r\nTo: <sip:6001@127.0.0.1>\r\nCall-ID: {id}\r\nCSeq: 1 INVITE\r\n\
         Subject: 5034 wants 6001\r\nX-Note: caller=5034\r\nContact: <sip:5034@{local}>\r\nContent-Length: 0\r\n\r\n",
        sip = rig.sip,
    );
    socket
        .send_to(invite.as_bytes(), ("127.0.0.1", rig.sip))
        .expect("sent");
    id
}

/// Whether a text has this number, not as a part of other digits: times, ports, tags and Call-IDs may contain any.
fn has_number(text: &str, number: &str) -> bool {
    text.match_indices(number).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + number.len()..].chars().next();
        let is_part =
            |other: Option<char>| other.is_some_and(|other| other.is_ascii_alphanumeric());
        !is_part(before) && !is_part(behind)
    })
}

#[test]
fn numbers_are_found_as_a_whole() {
    for (text, found) in [
        ("<sip:5034@127.0.0.1>", true),
        ("5034", true),
        ("caller=5034\r\n", true),
        ("11:22:33.465034Z", false),
        ("127.0.0.1:50341", false),
        ("short-45034", false),
        ("branch=z9hG4bKa5034f", false),
    ] {
        assert_eq!(has_number(text, "5034"), found, "{text}");
    }
}

#[test]
fn masked_numbers_are_neither_shown_nor_found_by_parts() {
    let rig = Rig::new("web-privacy", &users());
    let id = short_call(&rig);
    let of = |role: &str, path: &str| rig.of(role, "GET", path, "");
    until("the call is in the store", || {
        (of("operator", &format!("/calls/{id}")).status == 200).then_some(())
    });
    let page = of("operator", &format!("/calls/{id}")).json();
    assert_eq!(page["call"]["from"], "5034");
    let mut paths = vec![format!("/calls/{id}"), format!("/calls?call_id={id}")];
    for index in 0..entries(&page, "messages").len() {
        paths.push(format!("/calls/{id}/messages/{index}"));
    }
    for path in &paths {
        let answer = of("viewer", path);
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 200, "{path}");
        for hidden in ["5034", "6001"] {
            assert!(!has_number(&text, hidden), "{hidden} in {path}: {text}");
        }
        assert!(text.contains("**34"), "{path}: {text}");
    }
    // No condition tells a hidden digit.
    for path in [
        format!("/calls?call_id={id}&number=5*"),
        "/calls?number=5*".to_owned(),
        "/calls?words=50".to_owned(),
        "/registrations?cursor=5".to_owned(),
    ] {
        let answer = of("viewer", &path);
        let problem = answer.json();
        assert_eq!(answer.status, 403, "{path}: {problem}");
        let why = problem["error"].as_str().expect("a reason");
        assert!(why.contains("numbers are masked"), "{why}");
        assert_eq!(of("operator", &path).status, 200, "{path}");
    }
    // A short number could be confirmed by trying all.
    for path in [
        format!("/calls?call_id={id}&number=5034"),
        "/calls?number=503412".to_owned(),
        "/registrations?aor=5034".to_owned(),
    ] {
        assert_eq!(of("viewer", &path).status, 403, "{path}");
        assert_eq!(of("operator", &path).status, 200, "{path}");
    }
    // Long ones are found, few in a minute, and are in the audit log.
    let mut found = Vec::new();
    for number in 0..25 {
        found.push(of("viewer", &format!("/calls?number=49305034{number:02}")).status);
    }
    assert_eq!(found[..20], [200; 20]);
    assert_eq!(found[20..], [429; 5]);
    assert_eq!(of("operator", "/calls?number=4930503400").status, 200);
    let log = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    let searches: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|entry: &Value| entry["action"] == "GET /calls" && entry["outcome"] == "200")
        .collect();
    assert_eq!(searches.len(), 20, "{log}");
    assert_eq!(searches[0]["value"], "number=4930503400");
    assert_eq!(searches[0]["role"], "viewer");
}

#[test]
fn audit_log_has_the_values_of_commands() {
    let rig = Rig::new("web-audit", &users());
    let commands = [
        (
            "PUT",
            "/log-level",
            "{\"level\":\"debug\"}",
            200,
            "level=debug",
        ),
        ("PUT", "/log-level", "{\"level\":\"loud\"}", 400, ""),
        (
            "PUT",
            "/trunks/server",
            "{\"enabled\":false}",
            200,
            "enabled=false",
        ),
        (
            "PUT",
            "/trunks/server",
            "{\"enabled\":true}",
            200,
            "enabled=true",
        ),
        ("PUT", "/trunks/server", "{\"enabled\":7}", 400, ""),
        ("PUT", "/limits", "{\"calls\":7}", 200, "calls=7"),
    ];
    for (method, path, body, status, _) in commands {
        let answer = rig.of("admin", method, path, body);
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
    }
    let log = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    let lines = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let found: Vec<(&str, &str, &str)> = lines
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().expect("text");
            (text("action"), text("value"), text("outcome"))
        })
        .collect();
    let expected: Vec<(String, &str, String)> = commands
        .iter()
        .map(|(method, path, _, status, value)| {
            (format!("{method} {path}"), *value, status.to_string())
        })
        .collect();
    let expected: Vec<(&str, &str, &str)> = expected
        .iter()
        .map(|(action, value, outcome)| (&**action, *value, &**outcome))
        .collect();
    assert_eq!(found, expected);
    let page = rig.of("admin", "GET", "/audit", "").json();
    assert_eq!(page["entries"][0]["value"], "calls=7");
    let log = await_log(&rig.border, "level=debug");
    assert!(log.contains("control_command"), "{log}");
}

#[test]
fn refused_tokens_are_in_the_audit_log() {
    let rig = Rig::new("web-wrong-tokens", &users());
    for number in 0..12 {
        let header = format!("Authorization: Bearer guess-{number}\r\n");
        let answer = rig.with("DELETE", "/api/v1/live/calls/1", &header, "");
        let status = answer.status;
        assert_eq!(status, if number < 5 { 401 } else { 429 }, "{number}");
    }
    let log = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    let entries = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let entries: Vec<Value> = entries.collect();
    // Clients without login must not fill the log.
    assert_eq!(entries.len(), 10, "{log}");
    for (number, entry) in entries.iter().enumerate() {
        assert_eq!(entry["action"], "DELETE /live/calls/1");
        assert_eq!((&entry["user"], &entry["role"]), (&json!("-"), &json!("-")));
        assert_eq!(entry["outcome"], if number < 5 { "401" } else { "429" });
    }
    assert!(!log.contains("guess"), "{log}");
}

/// The nonce of a challenge.
fn nonce(response: &str) -> Option<&str> {
    let (_, rest) = response.split_once("nonce=\"")?;
    rest.split_once('"').map(|(nonce, _)| nonce)
}

/// Sends a REGISTER of user 1001 with a wrong response to a challenge; returns the status line.
fn wrong_password(sip: u16, number: u32) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let wait = Some(Duration::from_secs(10));
    socket.set_read_timeout(wait).expect("timeout");
    let local = socket.local_addr().expect("address");
    let exchange = |cseq: u32, more: &str| {
        let request = format!(
            "REGISTER sip:127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKban{number}x{cseq}\r\nMax-Forwards: 70\r\n\
             From: <sip:1001@127.0.0.1>;tag=1\r\nTo: <sip:1001@127.0.0.1>\r\nCall-ID: ban-{number}\r\nCSeq: {cseq} REGISTER\r\n\
             Contact: <sip:1001@{local}>\r\n{more}Content-Length: 0\r\n\r\n"
        );
        socket
            .send_to(request.as_bytes(), ("127.0.0.1", sip))
            .expect("sent");
        let mut buffer = [0; 4_096];
        let length = socket.recv(&mut buffer).expect("a response");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let challenge = exchange(1, "");
    let nonce = nonce(&challenge).expect("a nonce");
    let response = "0".repeat(32);
    let answer = exchange(
        2,
        &format!(
            "Authorization: Digest username=\"1001\", realm=\"{}\", nonce=\"{nonce}\", uri=\"sip:127.0.0.1\", response=\"{response}\", \
             algorithm=MD5, cnonce=\"1\", qop=auth, nc=00000001\r\n",
            challenge
                .split_once("realm=\"")
                .and_then(|(_, rest)| rest.split_once('"'))
                .map_or("", |(realm, _)| realm)
        ),
    );
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn locked_users_are_listed_and_unlocked() {
    let folder = scratch("web-bans");
    let (sip, trunk, http) = (
        common::free_port(),
        common::free_port(),
        common::free_port(),
    );
    let shown = folder.display();
    let more = format!(
        "[realm]\nsource_failures = 0\nuser_failures = 3\n[control]\nsocket = \"{shown}/control.sock\"\n[console]\nlisten = \"127.0.0.1:{http}\"\n{}\n",
        users()
    );
    let text = example("loopback-uc.toml", sip, trunk, media_ports(100), &more);
    let process = border(&folder, &text, sip);
    let rig = Rig {
        folder: folder.clone(),
        sip,
        trunk,
        http,
        border: process,
    };
    let lock = |first: u32, failures: u32| {
        for number in first..first + failures {
            let status = wrong_password(sip, number);
            assert!(status.starts_with("SIP/2.0 401"), "{status}");
        }
        let status = wrong_password(sip, first + failures);
        assert!(status.starts_with("SIP/2.0 503"), "{status}");
    };
    lock(0, 3);
    let listed = ctl_json(&folder, &["bans", "list"]);
    assert_eq!(listed[0]["source"], "user:1001", "{listed}");
    assert_eq!(listed[0]["reason"], "authentication failures");
    assert!(listed[0]["remaining_s"].as_u64() > Some(0));
    let shown_to = |role: &str| {
        let bans = rig.of(role, "GET", "/bans", "").json();
        bans["bans"][0]["source"].clone()
    };
    assert_eq!(shown_to("operator"), "user:1001");
    assert_eq!(shown_to("viewer"), "user:**01");
    assert_eq!(
        ctl_json(&folder, &["bans", "remove", "user:1001"])["removed"],
        1
    );
    assert_eq!(ctl_json(&folder, &["bans", "list"]), json!([]));
    let status = wrong_password(sip, 4);
    assert!(status.starts_with("SIP/2.0 401"), "checked again: {status}");
    // The console removes it too, after two more failures.
    lock(10, 2);
    let remove = || rig.of("operator", "DELETE", "/bans/user%3A1001", "").status;
    assert_eq!((remove(), remove()), (200, 404));
    let bad = rig.of("operator", "DELETE", "/bans/nobody", "");
    assert_eq!(bad.status, 400, "{bad:?}");
}
