//! Trials without a SUT, which measure the load generator itself, on sockets and in virtual time.

use lab::experiment::File;
use lab::record::{AttemptKind, AttemptOutcome};
use lab::trial::{Outcomes, Trial, on_sockets, simulate};

/// Lower limits of streams of two seconds (100 packets): packets, MOS, correlation. A machine that stalls sends fewer
/// and later packets, and the received audio has gaps, so the limits on sockets only verify that the right stream
/// arrived.
const IN_VIRTUAL_TIME: (u64, f64, f64) = (95, 4.2, 0.98);
const ON_SOCKETS: (u64, f64, f64) = (50, 0.9, 0.1);

fn trial(text: &str, seed: u64) -> Trial {
    let file = File::parse("test", text).unwrap();
    let experiment = file.levels().unwrap().remove(0).experiment;
    Trial {
        experiment,
        number: 0,
        seed,
    }
}

const CALLS: &str = r#"
name = "t"
title = "t"
[sut]
direct = true
[callers]
rate = 20.0
total = 30
hold_seconds = 2.0
media = "speech"
listen_percent = 50.0
[callees]
media = "speech"
"#;

fn check_calls(outcomes: &Outcomes, (packets, mos, correlation): (u64, f64, f64)) {
    let calls: Vec<_> = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call)
        .collect();
    assert_eq!(calls.len(), 30);
    for call in &calls {
        assert_eq!(call.outcome, AttemptOutcome::Completed, "{call:?}");
        assert!(call.talk_seconds().unwrap() > 1.9, "{call:?}");
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
    assert_eq!(outcomes.streams.len(), 60);
    for stream in &outcomes.streams {
        assert!(stream.received >= packets && stream.lost == 0, "{stream:?}");
        assert!(
            stream.mos.unwrap() > mos && stream.one_way_mean_ms.is_some(),
            "{stream:?}"
        );
    }
    let correlations: Vec<f64> = outcomes
        .streams
        .iter()
        .filter_map(|s| s.correlation)
        .collect();
    assert!(correlations.len() >= 10, "{}", correlations.len());
    assert!(
        correlations
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
fn calls_with_speech_in_virtual_time() {
    let outcomes = simulate(&trial(CALLS, 1)).unwrap();
    check_calls(&outcomes, IN_VIRTUAL_TIME);
    assert_eq!(outcomes.leaks, Some(0));
    let again = simulate(&trial(CALLS, 1)).unwrap();
    assert_eq!(outcomes.attempts, again.attempts);
    assert_eq!(outcomes.streams, again.streams);
    assert_eq!(outcomes.digest, again.digest);
    assert_ne!(outcomes.digest, simulate(&trial(CALLS, 2)).unwrap().digest);
}

#[test]
fn calls_with_speech_on_sockets() {
    let outcomes = on_sockets(&trial(CALLS, 1), |_, _| ()).unwrap();
    check_calls(&outcomes, ON_SOCKETS);
    let around = outcomes.surroundings.unwrap();
    assert!(around.generator_cpu_seconds > 0.0 && around.noise.max_us > 0.0);
}

#[test]
fn calls_over_tcp() {
    let text = format!("{CALLS}\n").replace("rate = 20.0", "rate = 20.0\ntransport = \"tcp\"");
    check_calls(&simulate(&trial(&text, 3)).unwrap(), IN_VIRTUAL_TIME);
    check_calls(
        &on_sockets(&trial(&text, 3), |_, _| ()).unwrap(),
        ON_SOCKETS,
    );
}

#[test]
fn echo_gives_round_trip() {
    let text = CALLS.replace(
        "[callees]\nmedia = \"speech\"",
        "[callees]\nmedia = \"echo\"\n[network]\ndelay_ms = 30.0",
    );
    let outcomes = simulate(&trial(&text, 1)).unwrap();
    for stream in outcomes.streams.iter().filter(|s| s.side == "caller") {
        let round = stream.round_trip_ms.unwrap();
        assert!((59.9..61.0).contains(&round), "{round}");
        assert!(stream.correlation.is_none_or(|c| c > 0.98), "{stream:?}");
    }
    for stream in outcomes.streams.iter().filter(|s| s.side == "callee") {
        let way = stream.one_way_mean_ms.unwrap();
        assert!((29.9..31.0).contains(&way), "{way}");
    }
}

/// A line whose rate the packets with their framing exceed loses packets, one with a rate far above them does not;
/// corrupted packets are lost media; links with CoDel repeat with their seed.
#[test]
fn rate_framing_corruption_and_codel_act_in_virtual_time() {
    let with = |network: &str| {
        let text = format!("{CALLS}\n[network]\ndelay_ms = 5.0\n{network}");
        simulate(&trial(&text, 1)).unwrap()
    };
    let lost = |outcomes: &Outcomes| {
        let sum = |of: fn(&lab::record::StreamRecord) -> u64| -> f64 {
            outcomes.streams.iter().map(of).sum::<u64>() as f64
        };
        sum(|s| s.lost) / sum(|s| s.expected)
    };
    let wide = with("rate_kbit = 100000.0\nframing = \"ethernet\"");
    assert_eq!(lost(&wide), 0.0);
    let delays = wide.streams.iter().filter_map(|s| s.one_way_mean_ms);
    assert!(delays.fold(0.0, f64::max) < 6.0);
    // Thirty calls of 82.8 kbit/s.
    let narrow = "rate_kbit = 1500.0\nframing = \"hdlc\"\nqueue_packets = 50";
    let full = with(narrow);
    assert!(lost(&full) > 0.05, "{}", lost(&full));
    let managed = format!("{narrow}\ncodel_target_ms = 5.0");
    let (one, other) = (with(&managed), with(&managed));
    assert_eq!(one.digest, other.digest);
    assert_ne!(one.digest, full.digest);
    let corrupt = with("corrupt_percent = 10.0");
    assert!((0.07..0.13).contains(&lost(&corrupt)), "{}", lost(&corrupt));
}

#[test]
fn every_outcome_of_a_call_occurs() {
    let text = r#"
name = "t"
title = "t"
[sut]
direct = true
[callers]
rate = 10.0
total = 200
limit = 20
hold_seconds = 3.0
media = "tone"
cancel_percent = 20.0
hold_percent = 30.0
ring_seconds = 4.0
[callees]
ring_ms = 20.0
answer_ms = 600.0
busy_percent = 15.0
no_answer_percent = 15.0
media = "tone"
"#;
    let outcomes = simulate(&trial(text, 5)).unwrap();
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
        AttemptOutcome::LimitReached,
    ];
    for outcome in all {
        assert!(count(outcome) > 5, "{outcome}: {}", count(outcome));
    }
    assert_eq!(all.map(count).iter().sum::<usize>(), 200);
    let refused = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call && a.outcome == AttemptOutcome::Refused);
    assert!(refused.clone().all(|a| a.status == 486));
    assert!(
        outcomes
            .attempts
            .iter()
            .all(|a| a.why.is_empty() || a.outcome != AttemptOutcome::Completed),
        "re-INVITEs went well"
    );
    assert_eq!(outcomes.leaks, Some(0));
}

#[test]
fn called_side_can_hang_up() {
    let text = CALLS.replace("rate = 20.0", "rate = 20.0\nhang_up = \"callee\"");
    check_calls(&simulate(&trial(&text, 1)).unwrap(), IN_VIRTUAL_TIME);
}

#[test]
fn streams_without_calls() {
    let text = r#"
name = "t"
title = "t"
[sut]
direct = true
[streams]
count = 20
duration_seconds = 2.0
media = "tone"
"#;
    for outcomes in [
        simulate(&trial(text, 1)).unwrap(),
        on_sockets(&trial(text, 1), |_, _| ()).unwrap(),
    ] {
        let received: Vec<_> = outcomes.streams.iter().filter(|s| s.received > 0).collect();
        assert_eq!(received.len(), 20);
        assert!(
            received
                .iter()
                .all(|s| s.received >= ON_SOCKETS.0 && s.lost == 0),
            "{received:?}"
        );
        assert!(
            outcomes
                .attempts
                .iter()
                .all(|a| a.outcome == AttemptOutcome::Completed)
        );
    }
}

/// So many streams have one socket for all ports at each end, where the rights permit it; each packet still belongs to
/// its stream.
#[test]
fn streams_on_one_socket_for_all_ports() {
    let text = r#"
name = "t"
title = "t"
[sut]
direct = true
[streams]
count = 80
rate = 1000.0
duration_seconds = 2.0
media = "speech"
listen_percent = 20.0
"#;
    let outcomes = on_sockets(&trial(text, 1), |_, _| ()).unwrap();
    let received: Vec<_> = outcomes.streams.iter().filter(|s| s.received > 0).collect();
    assert_eq!(received.len(), 80);
    let sources: std::collections::HashSet<u32> = received.iter().map(|s| s.ssrc).collect();
    assert_eq!(sources.len(), 80, "a stream has the packets of another one");
    assert!(
        received
            .iter()
            .all(|s| s.received >= ON_SOCKETS.0 && s.lost == 0 && s.one_way_mean_ms.is_some()),
        "{received:?}"
    );
    let heard: Vec<f64> = received.iter().filter_map(|s| s.correlation).collect();
    assert!(!heard.is_empty() && heard.iter().all(|c| *c > ON_SOCKETS.2));
    let sent = outcomes.surroundings.unwrap().send_lateness.unwrap();
    let packets: u64 = received.iter().map(|s| s.received).sum();
    assert!(sent.packets >= packets, "{sent:?}");
}

/// A trial does not depend on the network of this host and its open ports: here the host network has no working
/// loopback interface. Without the rights for a network namespace, a remark reports it.
#[test]
fn trial_runs_in_its_own_network_namespace() {
    let run = || on_sockets(&trial(CALLS, 1), |_, _| ()).unwrap();
    match net::Network::new() {
        Ok(host) => {
            let outcomes = std::thread::spawn(move || {
                host.enter().unwrap();
                assert!(
                    std::net::UdpSocket::bind(("127.0.0.1", 0)).is_ok_and(|socket| {
                        socket.send_to(b"unreachable", ("127.0.0.1", 9)).is_err()
                    })
                );
                run()
            });
            check_calls(&outcomes.join().unwrap(), ON_SOCKETS);
        }
        Err(_) => {
            let remarks = run().remarks;
            let reported = remarks
                .iter()
                .any(|r| r.contains("used the network of this host"));
            assert!(reported, "{remarks:?}");
        }
    }
}

#[test]
fn delays_of_wide_band_calls_are_those_of_the_link() {
    let text = r#"
name = "t"
title = "t"
[sut]
direct = true
[network]
delay_ms = 30.0
[callers]
rate = 20.0
total = 2
hold_seconds = 3.0
media = "speech"
codec = "opus"
time_packets = true
[callees]
media = "speech"
"#;
    let outcomes = simulate(&trial(text, 1)).unwrap();
    assert_eq!(outcomes.streams.len(), 4);
    for stream in &outcomes.streams {
        let mean = stream.one_way_mean_ms.unwrap();
        let times = [
            stream.one_way_p50_ms,
            stream.one_way_p99_ms,
            stream.relay_p50_ms,
            stream.relay_max_ms,
        ];
        assert!((29.0..70.0).contains(&mean), "{stream:?}");
        for time in times {
            assert!((time.unwrap() - mean).abs() < 1.0, "{stream:?}");
        }
    }
}
