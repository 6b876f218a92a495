//! Trials through a Hornwork border, on sockets and in virtual time.

use lab::experiment::{File, built_in};
use lab::record::{AttemptKind, AttemptOutcome};
use lab::trial::{Outcomes, Trial, on_sockets, simulate, simulate_with_log};

fn trial(text: &str, seed: u64) -> Trial {
    let file = File::parse("test", text).unwrap();
    Trial {
        experiment: file.levels().unwrap().remove(0).experiment,
        number: 0,
        seed,
    }
}

const CALLS: &str = r#"
name = "t"
title = "t"
[callers]
rate = 20.0
total = 30
hold_seconds = 2.0
media = "speech"
listen_percent = 50.0
[callees]
media = "speech"
"#;

fn check_calls(outcomes: &Outcomes) {
    let calls: Vec<_> = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call)
        .collect();
    assert_eq!(calls.len(), 30);
    for call in &calls {
        assert_eq!(call.outcome, AttemptOutcome::Completed, "{call:?}");
        assert!(call.ringing.is_some() && call.status == 200);
    }
    let answers = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Answer);
    assert!(
        answers.clone().count() == 30
            && answers
                .clone()
                .all(|a| a.outcome == AttemptOutcome::Completed)
    );
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
}

/// Lower limits of streams of two seconds: packets, MOS, correlation. A machine that stalls sends fewer and later
/// packets, and the received audio has gaps, so the limits on sockets only verify that the right stream arrived.
const IN_VIRTUAL_TIME: (u64, f64, f64) = (90, 4.2, 0.95);
const ON_SOCKETS: (u64, f64, f64) = (50, 0.9, 0.1);

fn check_media(outcomes: &Outcomes, (packets, mos, correlation): (u64, f64, f64)) {
    assert_eq!(outcomes.streams.len(), 60);
    for stream in &outcomes.streams {
        assert!(stream.received >= packets && stream.lost <= 2, "{stream:?}");
        assert!(stream.mos.unwrap() > mos, "{stream:?}");
    }
    let correlations: Vec<f64> = outcomes
        .streams
        .iter()
        .filter_map(|s| s.correlation)
        .collect();
    assert!(
        correlations.len() >= 10
            && correlations
                .iter()
                .all(|correlations| *correlations > correlation),
        "{correlations:?}"
    );
    // Most streams reach the limits of virtual time on any machine.
    let (packets, mos, correlation) = IN_VIRTUAL_TIME;
    let right = outcomes.streams.iter();
    let right = right.filter(|s| s.received >= packets && s.mos.is_some_and(|score| score > mos));
    assert!(right.count() >= 40);
    let good = correlations
        .iter()
        .filter(|correlations| **correlations > correlation)
        .count();
    assert!(good * 3 >= correlations.len() * 2, "{correlations:?}");
}

#[test]
fn anchored_calls_in_virtual_time() {
    let outcomes = simulate(&trial(CALLS, 1)).unwrap();
    check_calls(&outcomes);
    check_media(&outcomes, IN_VIRTUAL_TIME);
    let again = simulate(&trial(CALLS, 1)).unwrap();
    assert_eq!(
        (&outcomes.attempts, &outcomes.digest),
        (&again.attempts, &again.digest)
    );
}

#[test]
fn anchored_calls_on_sockets() {
    let outcomes = on_sockets(&trial(CALLS, 1), |_, _| ()).unwrap();
    check_calls(&outcomes);
    check_media(&outcomes, ON_SOCKETS);
    assert!(outcomes.subject_cpu_seconds.unwrap() > 0.0);
}

#[test]
fn media_bypass() {
    let text = CALLS.replace("[callers]", "[sut]\nmedia = \"bypass\"\n[callers]");
    let outcomes = on_sockets(&trial(&text, 1), |_, _| ()).unwrap();
    check_calls(&outcomes);
    check_media(&outcomes, ON_SOCKETS);
}

#[test]
fn ipv6_and_ipv4_ipv6_interworking() {
    let six = std::net::UdpSocket::bind("[::1]:0").is_ok();
    if !six {
        eprintln!("skipped: this machine has no IPv6 loopback address; in virtual time alone");
    }
    for ip in ["ipv6", "ipv4_to_ipv6", "ipv6_to_ipv4"] {
        let with_sut = format!("[sut]\nip = \"{ip}\"\n[callers]");
        let text = CALLS.replace("[callers]", &with_sut);
        let outcomes = simulate(&trial(&text, 1)).unwrap();
        check_calls(&outcomes);
        check_media(&outcomes, IN_VIRTUAL_TIME);
        if six {
            let outcomes = on_sockets(&trial(&text, 1), |_, _| ()).unwrap();
            check_calls(&outcomes);
            check_media(&outcomes, ON_SOCKETS);
        }
    }
}

#[test]
fn calls_with_digest_over_tcp() {
    let login = "total = 30\ntransport = \"tcp\"\nusers = 5\nfrom = \"10{number:02}\"\nuser = \"10{number:02}\"\npassword = \"secret-{user}\"";
    let text = CALLS.replace("total = 30", login);
    check_calls(&simulate(&trial(&text, 1)).unwrap());
    check_calls(&on_sockets(&trial(&text, 1), |_, _| ()).unwrap());
}

#[test]
fn registrations_are_refreshed_and_removed() {
    let text = r#"
name = "t"
title = "t"
[registrations]
users = 40
rate = 100.0
refresh_seconds = 0.5
refreshes = 2
"#;
    for outcomes in [
        simulate(&trial(text, 1)).unwrap(),
        on_sockets(&trial(text, 1), |_, _| ()).unwrap(),
    ] {
        for (kind, count) in [
            (AttemptKind::Registration, 40),
            (AttemptKind::Refresh, 80),
            (AttemptKind::Deregistration, 40),
        ] {
            let of: Vec<_> = outcomes
                .attempts
                .iter()
                .filter(|a| a.kind == kind)
                .collect();
            assert_eq!(of.len(), count);
            assert!(
                of.iter().all(|a| a.outcome == AttemptOutcome::Completed),
                "{of:?}"
            );
        }
        assert_eq!(outcomes.leaks, Some(0));
    }
}

#[test]
fn wrong_password_is_refused() {
    let text = r#"
name = "t"
title = "t"
[callers]
total = 3
users = 1
from = "1000"
user = "1000"
password = "right"
[callees]
"#;
    let mut trial = trial(text, 1);
    // The border's users follow from the experiment, so the caller with another password is configured as a foreign
    // one.
    let file = File::parse("test", text).unwrap();
    assert_eq!(
        file.experiment().callers.as_ref().unwrap().password,
        "right"
    );
    let good = simulate(&trial).unwrap();
    assert!(
        good.attempts
            .iter()
            .all(|a| a.outcome == AttemptOutcome::Completed),
        "{:?}",
        good.attempts
    );
    trial.experiment.callers.as_mut().unwrap().user = "1000".to_owned();
    trial.experiment.registrations = None;
    trial.experiment.callers.as_mut().unwrap().from = "1001".to_owned();
    let spoofed = simulate(&trial).unwrap();
    let calls = spoofed
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call);
    assert!(
        calls
            .clone()
            .all(|a| a.outcome == AttemptOutcome::Completed || a.status == 403),
        "{:?}",
        spoofed.attempts
    );
}

fn small_network(seed: u64) -> Trial {
    let file = File::parse("small-network", built_in("small-network").unwrap()).unwrap();
    Trial {
        experiment: file.experiment().clone(),
        number: 0,
        seed,
    }
}

/// The small network with faults, for `HORNWORK_SEEDS` seeds, 30 by default.
fn seeds() -> u64 {
    let wanted = std::env::var("HORNWORK_SEEDS").ok();
    wanted.and_then(|n| n.parse().ok()).unwrap_or(30)
}

type OutcomeCounts = std::collections::BTreeMap<(AttemptKind, AttemptOutcome), u64>;

/// No object may be left, and every attempt must have a definite outcome.
fn judge_seed(seed: u64, counts: &mut OutcomeCounts) {
    let outcomes = simulate(&small_network(seed)).unwrap();
    assert_eq!(
        outcomes.leaks,
        Some(0),
        "seed {seed}: {:?}",
        outcomes.remarks
    );
    let calls = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call);
    assert!(calls.count() > 50, "seed {seed}: hardly a call");
    for attempt in &outcomes.attempts {
        assert_ne!(
            attempt.outcome,
            AttemptOutcome::Unfinished,
            "seed {seed}: {attempt:?}"
        );
        assert!(attempt.ended.is_some(), "seed {seed}: {attempt:?}");
        *counts.entry((attempt.kind, attempt.outcome)).or_insert(0) += 1;
    }
}

#[test]
fn no_seed_leaves_objects_behind() {
    let mut counts = OutcomeCounts::new();
    for seed in 1..=seeds() {
        judge_seed(seed, &mut counts);
    }
    eprintln!("{} seeds: {counts:?}", seeds());
    for outcome in [
        AttemptOutcome::Completed,
        AttemptOutcome::Refused,
        AttemptOutcome::Cancelled,
        AttemptOutcome::TimedOut,
    ] {
        assert!(
            counts.contains_key(&(AttemptKind::Call, outcome)),
            "{outcome} did not occur"
        );
    }
}

/// Compares whole event logs, not digests, so that the first differing line can be printed.
#[test]
fn same_seed_gives_identical_event_log() {
    for seed in (1..=seeds()).step_by(25) {
        let (first, log) = simulate_with_log(&small_network(seed)).unwrap();
        let (second, again) = simulate_with_log(&small_network(seed)).unwrap();
        assert!(log.len() > 1_000_000, "{} bytes", log.len());
        if log != again {
            let lines = log.split(|byte| *byte == b'\n');
            let differing = lines
                .zip(again.split(|byte| *byte == b'\n'))
                .enumerate()
                .find(|(_, (a, b))| a != b);
            let line = differing.map(|(n, (a, b))| (n + 1, a.escape_ascii(), b.escape_ascii()));
            panic!("seed {seed}: logs differ at {line:?}");
        }
        assert_eq!(
            (first.attempts, first.streams, first.digest),
            (second.attempts, second.streams, second.digest)
        );
    }
    let (_, one) = simulate_with_log(&small_network(1)).unwrap();
    let (_, other) = simulate_with_log(&small_network(2)).unwrap();
    assert_ne!(one, other, "a seed decides something");
}
