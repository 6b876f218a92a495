//! The generator's workloads over TLS: through a Hornwork border, and without a SUT.

use lab::experiment::File;
use lab::record::{AttemptKind, AttemptOutcome};
use lab::trial::{Outcomes, Trial, on_sockets, simulate};

fn trial(text: &str) -> Trial {
    let file = File::parse("test", text).unwrap();
    let experiment = file.levels().unwrap().remove(0).experiment;
    Trial {
        experiment,
        number: 0,
        seed: 1,
    }
}

fn refusal(text: &str) -> String {
    File::parse("test", text).unwrap_err().to_string()
}

fn good(outcomes: &Outcomes, kind: AttemptKind) -> usize {
    let attempts = outcomes.attempts.iter().filter(|a| a.kind == kind);
    for attempt in attempts.clone() {
        assert_eq!(
            attempt.outcome,
            AttemptOutcome::Completed,
            "{attempt:?}\n{:?}",
            outcomes.remarks
        );
    }
    attempts.count()
}

const BOTH_SIDES: &str = r#"
name = "t"
title = "t"
[sut]
media = "bypass"
[callers]
rate = 40.0
total = 40
hold_seconds = 0.5
transport = "tls"
connections = 3
user = "{number:4}"
from = "{number:4}"
users = 20
password = "secret-{user}"
[callees]
transport = "tls"
[registrations]
rate = 40.0
users = 20
refresh_seconds = 0.5
refreshes = 1
transport = "tls"
connections = 5
"#;

#[test]
fn calls_and_registrations_over_tls_on_both_sides_of_border() {
    let outcomes = on_sockets(&trial(BOTH_SIDES), |_, _| {}).unwrap();
    assert_eq!(good(&outcomes, AttemptKind::Call), 40);
    assert_eq!(good(&outcomes, AttemptKind::Answer), 40);
    assert_eq!(good(&outcomes, AttemptKind::Registration), 20);
    assert_eq!(good(&outcomes, AttemptKind::Refresh), 20);
    assert_eq!(good(&outcomes, AttemptKind::Deregistration), 20);
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
    // An authenticated call was challenged over the same TLS connection.
    let calls = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call);
    assert!(calls.clone().all(|call| call.status == 200));
}

#[test]
fn tls_on_access_side_only() {
    let access = BOTH_SIDES.replace("[callees]\ntransport = \"tls\"", "[callees]");
    let outcomes = on_sockets(&trial(&access), |_, _| {}).unwrap();
    assert_eq!(good(&outcomes, AttemptKind::Call), 40);
    assert_eq!(good(&outcomes, AttemptKind::Answer), 40);
}

#[test]
fn tls_without_sut_and_hang_up_by_either_side() {
    for side in ["caller", "callee"] {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 40.0\ntotal = 20\nhold_seconds = 0.2\n\
             transport = \"tls\"\nhang_up = \"{side}\"\n[callees]\ntransport = \"tls\"\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, AttemptKind::Call), 20, "{side}");
        assert_eq!(good(&outcomes, AttemptKind::Answer), 20, "{side}");
    }
}

/// Study S, row S7, at a small scale: each subscriber has a connection, which stays open; refreshes are answered by the
/// border, and passed on to the registrar behind it, which demands digest, once an interval is over.
#[test]
fn subscribers_keep_a_connection_each_and_refreshes_are_cached() {
    let text = r#"
name = "t"
title = "t"
[sut]
media = "bypass"
refresh_interval_seconds = 3
[registrations]
rate = 100.0
users = 40
refresh_rate = 100.0
refreshes = 4
remove = false
registrar = "core"
transport = "tls"
connections = 0
"#;
    let outcomes = on_sockets(&trial(text), |_, _| {}).unwrap();
    assert_eq!(good(&outcomes, AttemptKind::Registration), 40);
    assert_eq!(good(&outcomes, AttemptKind::Reregistration), 160);
    let connections = outcomes.connections.expect("connections");
    assert_eq!((connections.open, connections.lost), (40, 0));
    assert!(
        !outcomes
            .remarks
            .iter()
            .any(|remark| remark.contains("share"))
    );
    // The third refresh of each comes more than 3 s after its first registration, the first less than that; more on a
    // slow machine.
    let passed_on = outcomes.passed_on.expect("a registrar behind");
    assert!((80..=160).contains(&passed_on), "{passed_on}");
    let shared = text.replace("connections = 0", "connections = 3");
    let outcomes = on_sockets(&trial(&shared), |_, _| {}).unwrap();
    assert_eq!(outcomes.connections.map(|users| users.open), Some(3));
    let remark = "40 users on 3 connections: 13.3 of them share one";
    assert!(
        outcomes.remarks.iter().any(|found| found == remark),
        "{:?}",
        outcomes.remarks
    );
}

#[test]
fn tls_in_virtual_time_and_inconsistent_settings_are_rejected() {
    let error = simulate(&trial(BOTH_SIDES)).unwrap_err().to_string();
    assert!(
        error.contains("TLS is not supported in virtual time"),
        "{error}"
    );
    for (old, new, why) in [
        (
            "connections = 5",
            "connections = 60001",
            "expected 1 to 60000",
        ),
        ("connections = 3", "connections = 0", "expected 1 to 60000"),
        (
            "connections = 3",
            "connections = 3\n#[tls]",
            "certificates are generated",
        ),
        (
            "transport = \"tls\"\nconnections = 5",
            "transport = \"tcp\"",
            "TCP, TLS and WebSocket exclude each other",
        ),
        (
            "transport = \"tls\"\nconnections = 5",
            "connections = 5",
            "UDP has no connections",
        ),
        ("media = \"bypass\"", "direct = true", "with sut.direct"),
    ] {
        let text = BOTH_SIDES.replace(old, new);
        let text = match new {
            "connections = 3\n#[tls]" => format!("{text}[tls]\nverify = false\n"),
            "direct = true" => text.replace("[callees]\ntransport = \"tls\"", "[callees]"),
            _ => text,
        };
        let text = refusal(&text);
        assert!(text.contains(why), "{why}: {text}");
    }
}
