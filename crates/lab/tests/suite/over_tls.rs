//! The laboratory's own workloads over TLS: through our border, and with nothing in between.

use lab::experiment::File;
use lab::record::{Kind, Outcome};
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

fn good(outcomes: &Outcomes, kind: Kind) -> usize {
    let attempts = outcomes.attempts.iter().filter(|a| a.kind == kind);
    for attempt in attempts.clone() {
        assert_eq!(
            attempt.outcome,
            Outcome::Completed,
            "{attempt:?}\n{:?}",
            outcomes.remarks
        );
    }
    attempts.count()
}

const BOTH_SIDES: &str = r#"
name = "t"
title = "t"
[subject]
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
fn calls_and_registrations_over_tls_on_both_sides_of_our_border() {
    let outcomes = on_sockets(&trial(BOTH_SIDES), |_, _| {}).unwrap();
    assert_eq!(good(&outcomes, Kind::Call), 40);
    assert_eq!(good(&outcomes, Kind::Answer), 40);
    assert_eq!(good(&outcomes, Kind::Registration), 20);
    assert_eq!(good(&outcomes, Kind::Refresh), 20);
    assert_eq!(good(&outcomes, Kind::Deregistration), 20);
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
    // A call that is authenticated was challenged over the same TLS.
    let calls = outcomes.attempts.iter().filter(|a| a.kind == Kind::Call);
    assert!(calls.clone().all(|call| call.status == 200));
}

#[test]
fn tls_on_the_access_side_alone() {
    let access = BOTH_SIDES.replace("[callees]\ntransport = \"tls\"", "[callees]");
    let outcomes = on_sockets(&trial(&access), |_, _| {}).unwrap();
    assert_eq!(good(&outcomes, Kind::Call), 40);
    assert_eq!(good(&outcomes, Kind::Answer), 40);
}

#[test]
fn tls_with_nothing_in_between_and_whoever_hangs_up() {
    for side in ["caller", "callee"] {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[subject]\nnone = true\n[callers]\nrate = 40.0\ntotal = 20\nhold_seconds = 0.2\n\
             transport = \"tls\"\nhang_up = \"{side}\"\n[callees]\ntransport = \"tls\"\n"
        );
        let outcomes = on_sockets(&trial(&text), |_, _| {}).unwrap();
        assert_eq!(good(&outcomes, Kind::Call), 20, "{side}");
        assert_eq!(good(&outcomes, Kind::Answer), 20, "{side}");
    }
}

#[test]
fn tls_in_virtual_time_is_refused_and_so_is_what_does_not_fit_together() {
    let error = simulate(&trial(BOTH_SIDES)).unwrap_err().to_string();
    assert!(
        error.contains("TLS is not spoken in virtual time"),
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
            "made for the trial",
        ),
        (
            "transport = \"tls\"\nconnections = 5",
            "transport = \"tcp\"",
            "TCP and TLS not both",
        ),
        (
            "transport = \"tls\"\nconnections = 5",
            "connections = 5",
            "UDP has none",
        ),
        ("media = \"bypass\"", "none = true", "nothing in between"),
    ] {
        let text = BOTH_SIDES.replace(old, new);
        let text = match new {
            "connections = 3\n#[tls]" => format!("{text}[tls]\nverify = false\n"),
            "none = true" => text.replace("[callees]\ntransport = \"tls\"", "[callees]"),
            _ => text,
        };
        let told = refusal(&text);
        assert!(told.contains(why), "{why}: {told}");
    }
}
