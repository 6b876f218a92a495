//! Calls with preconditions: the twenty messages with their order and content, without a SUT and through a Hornwork
//! border, and over networks with faults, where no call may be left half open.

use lab::experiment::{CallFlow, File};
use lab::record::{AttemptKind, AttemptOutcome};
use lab::trial::{Outcomes, Trial, on_sockets, simulate, simulate_watched};
use sim::TapPoint;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

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
[sut]
media = "bypass"
[callers]
rate = 20.0
total = 30
hold_seconds = 2.0
flow = "volte"
reserve_ms = 30
[callees]
flow = "volte"
reserve_ms = 50
ring_ms = 20
answer_ms = 300
"#;

fn completed(outcomes: &Outcomes, calls: usize) {
    for kind in [AttemptKind::Call, AttemptKind::Answer] {
        let attempts: Vec<_> = outcomes
            .attempts
            .iter()
            .filter(|a| a.kind == kind)
            .collect();
        assert_eq!(attempts.len(), calls);
        for attempt in attempts {
            assert_eq!(attempt.outcome, AttemptOutcome::Completed, "{attempt:?}");
            assert!(
                attempt.ringing.is_some() && attempt.why.is_empty(),
                "{attempt:?}"
            );
        }
    }
}

/// The messages of one side of the only call, in order of arrival, the caller's with `>` in front.
fn messages(text: &str, far: bool) -> Vec<String> {
    let seen: Rc<RefCell<Vec<(IpAddr, IpAddr, String)>>> = Rc::default();
    let keep = Rc::clone(&seen);
    let outcomes = simulate_watched(&trial(text, 1), move |packet| {
        let text = String::from_utf8_lossy(packet.bytes).into_owned();
        if matches!(packet.point, TapPoint::Delivered(_)) && text.contains("SIP/2.0") {
            let ends = (packet.source.ip(), packet.destination.ip());
            keep.borrow_mut().push((ends.0, ends.1, text));
        }
    })
    .unwrap();
    completed(&outcomes, 1);
    let seen = seen.borrow();
    // The first INVITE is that of the caller's side; the last one that of the called side.
    let mut invites = seen
        .iter()
        .filter(|(_, _, text)| text.starts_with("INVITE"));
    let (caller, called, _) = match far {
        true => invites.next_back(),
        false => invites.next(),
    }
    .unwrap();
    let mut messages = Vec::new();
    for (from, to, text) in seen.iter() {
        if (from, to) == (caller, called) {
            messages.push(format!("> {text}"));
        } else if (to, from) == (caller, called) {
            messages.push(format!("< {text}"));
        }
    }
    messages
}

fn short(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let cseq = message.lines().find_map(|line| line.strip_prefix("CSeq: "));
    let method = cseq.and_then(|cseq| cseq.split(' ').nth(1)).unwrap_or("?");
    match line.contains("SIP/2.0 ") {
        true => format!("{} {method}", &line[..13].replace("SIP/2.0 ", "")),
        false => format!("{} {method}", &line[..1]),
    }
}

const TWENTY: [&str; 20] = [
    "> INVITE",
    "< 100 INVITE",
    "< 183 INVITE",
    "> PRACK",
    "< 200 PRACK",
    "> UPDATE",
    "< 200 UPDATE",
    "< UPDATE",
    "> 200 UPDATE",
    "< 180 INVITE",
    "> PRACK",
    "< 200 PRACK",
    "< UPDATE",
    "> 200 UPDATE",
    "< 200 INVITE",
    "> ACK",
    "> UPDATE",
    "< 200 UPDATE",
    "> BYE",
    "< 200 BYE",
];

/// The precondition lines of a message.
fn about(message: &str) -> Vec<&str> {
    let lines = message.lines().map(|line| line.trim_end());
    lines
        .filter(|line| {
            ["a=curr:", "a=des:", "a=conf:"]
                .iter()
                .any(|name| line.starts_with(name))
        })
        .collect()
}

fn check_twenty(messages: &[String]) {
    let order: Vec<String> = messages.iter().map(|message| short(message)).collect();
    assert_eq!(order, TWENTY);
    let (local, remote) = ("a=curr:qos local", "a=curr:qos remote");
    let status = |at: usize| -> Vec<&str> {
        let lines = about(&messages[at]).into_iter();
        lines.filter(|line| line.starts_with("a=curr:")).collect()
    };
    assert_eq!(
        about(&messages[0]),
        [
            "a=curr:qos local none",
            "a=curr:qos remote none",
            "a=des:qos mandatory local sendrecv",
            "a=des:qos none remote sendrecv",
        ]
    );
    assert_eq!(
        about(&messages[2]),
        [
            "a=curr:qos local none",
            "a=curr:qos remote none",
            "a=des:qos mandatory local sendrecv",
            "a=des:qos mandatory remote sendrecv",
            "a=conf:qos remote sendrecv",
        ]
    );
    let (there, none) = ("sendrecv", "none");
    for (at, ours, theirs) in [
        (5, there, none),
        (6, none, there),
        (7, there, there),
        (8, there, there),
    ] {
        let expected = [format!("{local} {ours}"), format!("{remote} {theirs}")];
        assert_eq!(status(at), expected, "{}", messages[at]);
    }
    assert!(about(&messages[5]).contains(&"a=conf:qos remote sendrecv"));
    let headers = |at: usize| messages[at].split("\r\n\r\n").next().unwrap();
    let says = |at: usize, header: &str, value: &str| {
        let mut lines = headers(at).lines().filter(|line| line.starts_with(header));
        assert!(
            lines.any(|line| line.contains(value)),
            "{header} {value}: {}",
            messages[at]
        );
    };
    says(0, "Supported:", "100rel");
    says(0, "Supported:", "precondition");
    for at in [2, 9] {
        says(at, "Require:", "100rel");
        assert!(headers(at).contains("\nRSeq: "), "{}", messages[at]);
    }
    for at in [2, 5, 6, 7, 8] {
        says(at, "Require:", "precondition");
    }
    says(12, "P-Early-Media:", "sendrecv");
    for at in [12, 14, 16] {
        assert!(about(&messages[at]).is_empty() && !messages[at].contains("\nv=0"));
    }
}

#[test]
fn twenty_messages_without_sut() {
    let text = CALLS.replace("total = 30", "total = 1");
    let text = text.replace("media = \"bypass\"", "direct = true");
    check_twenty(&messages(&text, false));
}

#[test]
fn twenty_messages_on_both_sides_of_border() {
    for media in ["bypass", "anchored"] {
        let text = CALLS.replace("total = 30", "total = 1");
        let text = text.replace("media = \"bypass\"", &format!("media = \"{media}\""));
        check_twenty(&messages(&text, false));
        check_twenty(&messages(&text, true));
    }
}

#[test]
fn callee_rings_only_after_resources_are_reserved() {
    let outcomes = simulate(&trial(CALLS, 1)).unwrap();
    completed(&outcomes, 30);
    for call in outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call)
    {
        let rang = call.ringing.unwrap() - call.sent.unwrap();
        assert!(rang >= 80_000_000, "30 ms there and 50 ms here: {rang} ns");
    }
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
}

#[test]
fn calls_with_early_speech() {
    let text = CALLS.replace(
        "[callees]",
        "media = \"speech\"\nlisten_percent = 50.0\n[callees]\nmedia = \"speech\"",
    );
    let text = text.replace("media = \"bypass\"", "media = \"anchored\"");
    for outcomes in [
        simulate(&trial(&text, 1)).unwrap(),
        on_sockets(&trial(&text, 1), |_, _| ()).unwrap(),
    ] {
        completed(&outcomes, 30);
        let correlations: Vec<f64> = outcomes
            .streams
            .iter()
            .filter_map(|s| s.correlation)
            .collect();
        assert!(
            correlations.len() >= 10 && correlations.iter().all(|c| *c > 0.95),
            "{correlations:?}"
        );
    }
}

#[test]
fn every_outcome_of_a_call_occurs() {
    let text = CALLS.replace(
        "total = 30",
        "total = 150\ncancel_percent = 20\nring_seconds = 4.0",
    );
    let text = format!("{text}busy_percent = 15\nno_answer_percent = 15\n");
    let outcomes = simulate(&trial(&text, 5)).unwrap();
    let count = |outcome| {
        let calls = outcomes
            .attempts
            .iter()
            .filter(|a| a.kind == AttemptKind::Call);
        calls.filter(|a| a.outcome == outcome).count()
    };
    let all = [
        AttemptOutcome::Completed,
        AttemptOutcome::Refused,
        AttemptOutcome::Cancelled,
        AttemptOutcome::TimedOut,
    ];
    for outcome in all {
        assert!(count(outcome) > 5, "{outcome}: {}", count(outcome));
    }
    assert_eq!(all.map(count).iter().sum::<usize>(), 150);
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
}

/// Number of seeds of the lossy network test, from `SEEDS` (a thousand takes minutes).
fn seeds() -> u64 {
    let text = std::env::var("SEEDS").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(40)
}

fn lossy_network(seed: u64) -> String {
    let none = if seed.is_multiple_of(3) {
        "direct = true"
    } else {
        ""
    };
    format!(
        r#"
name = "t"
title = "t"
settle_seconds = 300.0
[sut]
media = "{}"
{none}
[callers]
rate = 4.0
pace = "poisson"
duration_seconds = 8.0
hold_seconds = 3.0
hold = "exponential"
flow = "volte"
reserve_ms = 20
cancel_percent = 10
ring_seconds = 40.0
[callees]
flow = "volte"
reserve_ms = 40
ring_ms = 50
answer_ms = 500
answer_random = true
busy_percent = 5
no_answer_percent = 5
[network]
delay_ms = 15.0
jitter_ms = {}
loss_percent = {}
duplicate_percent = 3.0
reorder_percent = 4.0
heal_seconds = 60.0
"#,
        if seed.is_multiple_of(2) {
            "bypass"
        } else {
            "anchored"
        },
        seed % 40,
        seed % 11
    )
}

#[test]
fn no_call_is_left_half_open_over_a_lossy_network() {
    let mut completed = 0;
    for seed in 1..=seeds() {
        let text = lossy_network(seed);
        let outcomes = simulate(&trial(&text, seed)).unwrap();
        assert_eq!(
            outcomes.leaks,
            Some(0),
            "seed {seed}: {:?}",
            outcomes.remarks
        );
        for attempt in &outcomes.attempts {
            assert_ne!(
                attempt.outcome,
                AttemptOutcome::Unfinished,
                "seed {seed}: {attempt:?}"
            );
        }
        completed += outcomes
            .attempts
            .iter()
            .filter(|a| a.kind == AttemptKind::Call && a.outcome == AttemptOutcome::Completed)
            .count();
    }
    assert!(
        completed as u64 > 12 * seeds(),
        "{completed} calls came through"
    );
}

#[test]
fn both_sides_have_one_flow() {
    let text = CALLS.replacen("flow = \"volte\"", "flow = \"plain\"", 1);
    let error = File::parse("test", &text).unwrap_err().to_string();
    assert!(error.contains("callees.flow"), "{error}");
}

#[test]
fn flow_can_be_swept() {
    let file = File::parse("t", lab::experiment::built_in("volte-call-rate").unwrap()).unwrap();
    let flows: Vec<_> = file
        .levels()
        .unwrap()
        .iter()
        .map(|level| level.experiment.callers.as_ref().unwrap().flow)
        .collect();
    assert_eq!(flows, [CallFlow::Plain, CallFlow::Volte]);
    let error = File::parse("test", &CALLS.replace("\"volte\"", "2")).unwrap_err();
    assert!(
        error.to_string().contains("plain (0) or volte (1)"),
        "{error}"
    );
}
