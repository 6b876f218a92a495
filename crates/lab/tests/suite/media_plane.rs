//! The media experiments, shortened: each in virtual time and on sockets.

use lab::experiment::{File, built_in};
use lab::figures::{self, Details, Figures};
use lab::record::{AttemptKind, AttemptOutcome, StreamRecord};
use lab::trial::{Outcomes, Trial, on_sockets, simulate};
use std::collections::BTreeSet;

fn trial(name: &str, sets: &[&str]) -> Trial {
    let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
    let file = File::parse_with(name, built_in(name).unwrap(), &sets).unwrap();
    Trial {
        experiment: file.levels().unwrap().remove(0).experiment,
        number: 0,
        seed: 1,
    }
}

/// Whether this build has G.729; otherwise a message is printed.
fn has_g729() -> bool {
    let has = codec::Kind::G729.is_available();
    if !has {
        eprintln!("skipped: this build has no G.729");
    }
    has
}

fn figures_of(outcomes: &Outcomes) -> (Figures, Details) {
    figures::compute(&outcomes.attempts, &outcomes.streams, None)
}

fn all_completed(outcomes: &Outcomes, calls: usize) {
    let made = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call);
    let made: Vec<_> = made.collect();
    assert_eq!(made.len(), calls);
    for call in made {
        assert_eq!(call.outcome, AttemptOutcome::Completed, "{call:?}");
    }
    assert_eq!(outcomes.streams.len(), calls * 2);
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
}

fn side<'a>(outcomes: &'a Outcomes, side: &'a str) -> impl Iterator<Item = &'a StreamRecord> {
    outcomes.streams.iter().filter(move |s| s.side == side)
}

const SHORT: [&str; 3] = [
    "levels.values=[6]",
    "callers.hold_seconds=3",
    "callers.rate=20",
];

/// Runs the experiment in virtual time and on sockets; `check` verifies both results.
fn both(name: &str, sets: &[&str], check: impl Fn(&Outcomes)) {
    let sets = [&SHORT[..], sets].concat();
    let trial = trial(name, &sets);
    let simulated = simulate(&trial).unwrap();
    all_completed(&simulated, 6);
    check(&simulated);
    let (figures, details) = figures_of(&simulated);
    assert_eq!(figures.lost_percent, Some(0.0));
    if trial.experiment.callers.as_ref().unwrap().time_packets {
        // Two links without jitter: all packets have the same delay.
        let [p50, p99, max] = details.relay_ms.map(Option::unwrap);
        assert!(p50 > 0.0 && (max - p50).abs() < 0.01, "{p50} {p99} {max}");
    }
    assert_eq!(simulate(&trial).unwrap().digest, simulated.digest);

    let real = on_sockets(&trial, |_, _| ()).unwrap();
    all_completed(&real, 6);
    check(&real);
    if trial.experiment.callers.as_ref().unwrap().time_packets {
        for stream in &real.streams {
            let (p50, p99) = (stream.relay_p50_ms.unwrap(), stream.relay_p99_ms.unwrap());
            assert!(p50 > 0.0 && p50 <= p99 && Some(p99) <= stream.relay_max_ms);
        }
    }
    assert!(real.subject_cpu_seconds.unwrap() > 0.0);
}

fn speaks(outcomes: &Outcomes, caller: &str, callee: &str) {
    for (name, codec) in [("caller", caller), ("callee", callee)] {
        for stream in side(outcomes, name) {
            assert_eq!(stream.codec, codec, "{stream:?}");
            assert!(stream.received > 0 && stream.mos.is_some(), "{stream:?}");
        }
    }
}

#[test]
fn plain_media() {
    if has_g729() {
        both("media-capacity", &[], |outcomes| {
            speaks(outcomes, "G729", "G729");
            assert!(outcomes.streams.iter().all(|s| s.received > 100));
        });
    }
}

#[test]
fn srtp_media() {
    if has_g729() {
        // Packets that fail authentication are not counted as received.
        both("media-capacity-srtp", &[], |outcomes| {
            speaks(outcomes, "G729", "G729");
            assert!(outcomes.streams.iter().all(|s| s.received > 100));
        });
    }
}

#[test]
fn srtp_media_with_silence_suppression() {
    if has_g729() {
        both("media-capacity-silence", &[], |outcomes| {
            speaks(outcomes, "G729", "G729");
            // The caller speaks first; the callee is nearly silent meanwhile.
            for stream in side(outcomes, "callee") {
                assert!(stream.received > 100, "{stream:?}");
            }
            for stream in side(outcomes, "caller") {
                assert!(stream.received < 40, "{stream:?}");
            }
        });
    }
}

#[test]
fn calls_in_g722() {
    let sets = ["levels.values=[6]"];
    both("call-capacity-g722", &sets, |outcomes| {
        speaks(outcomes, "G722", "G722");
        for stream in side(outcomes, "caller") {
            assert!(stream.round_trip_ms.is_some(), "{stream:?}");
        }
    });
}

#[test]
fn transcoded_calls() {
    if has_g729() {
        both("transcoding-capacity", &[], |outcomes| {
            speaks(outcomes, "PCMA", "G729");
            assert!(outcomes.streams.iter().all(|s| s.received > 100));
        });
    }
}

#[test]
fn inconsistent_settings_are_rejected() {
    let refused = |name: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        let error = File::parse_with(name, built_in(name).unwrap(), &sets).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    for (name, sets, why) in [
        (
            "media-capacity",
            &["callers.listen_percent=10"][..],
            "G.711 only",
        ),
        ("media-capacity", &["callees.media=echo"], "time_packets"),
        ("media-capacity-srtp", &["sut.media=bypass"], "callers.srtp"),
        ("media-capacity-srtp", &["sut.direct=true"], "callers.srtp"),
        (
            "media-capacity-srtp",
            &["callers.hold_percent=10"],
            "callers.srtp",
        ),
        (
            "media-capacity-silence",
            &["callers.codec=PCMA"],
            "silence_suppression",
        ),
        (
            "media-capacity-silence",
            &["callers.media=tone"],
            "silence_suppression",
        ),
        (
            "transcoding-capacity",
            &["sut.media=bypass"],
            "callees.codec",
        ),
        (
            "transcoding-capacity",
            &["sut.direct=true"],
            "callees.codec",
        ),
        ("transcoding-capacity", &["callees.codec=AMR"], "AMR"),
        (
            "transcoding-capacity",
            &["callees.codec=opus"],
            "RTP clocks",
        ),
        ("conference-jitter", &["sut.direct=true"], "[conference]"),
        ("conference-jitter", &["sut.workers=2"], "[conference]"),
        (
            "conference-jitter",
            &["conference.participants=1"],
            "conference.participants",
        ),
        (
            "conference-jitter",
            &["conference.duration_seconds=0"],
            "conference",
        ),
        (
            "conference-instances",
            &["sut.address=127.0.0.1:5060", "sut.realtime_priority=0"],
            "[conference]",
        ),
        (
            "conference-jitter",
            &["sut.address=127.0.0.1:5060", "sut.realtime_priority=1"],
            "sut.realtime_priority",
        ),
        (
            "conference-jitter",
            &["generator.realtime_priority=100"],
            "generator.realtime_priority",
        ),
    ] {
        let error = refused(name, sets);
        assert!(error.contains(why), "{name} {sets:?}: {error}");
    }
}

/// A short conference experiment: two conferences with three participants at each of two instances, and the probe.
const CONFERENCE: [&str; 7] = [
    "levels.values=[2]",
    "conference.instances=2",
    "conference.count=2",
    "conference.participants=3",
    "conference.duration_seconds=2",
    "conference.warm_up_seconds=1",
    "conference.rate=20",
];

fn conferred(outcomes: &Outcomes, instances: usize) {
    let participants = instances * 2 * 3 + 3;
    let calls = outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call);
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.len(), participants);
    for call in &calls {
        assert_eq!(call.outcome, AttemptOutcome::Completed, "{call:?}");
    }
    assert!(
        calls
            .iter()
            .any(|call| call.workload == "probe" && call.to == "8002")
    );
    assert!(
        calls
            .iter()
            .any(|call| call.workload == "participants" && call.to == "8001")
    );
    let received = |workload: &str| {
        let streams = outcomes
            .streams
            .iter()
            .filter(|s| s.workload == workload && s.is_incoming());
        streams.count()
    };
    assert_eq!(
        (
            received("participants"),
            received("probe"),
            received("noise")
        ),
        (participants - 3, 3, 4)
    );
    for stream in outcomes.streams.iter().filter(|s| s.is_incoming()) {
        assert!(stream.received > 50 && stream.expected >= 99, "{stream:?}");
        assert!(stream.jitter_mean_ms.is_some(), "{stream:?}");
    }
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
}

#[test]
fn conferences_in_virtual_time() {
    if !has_g729() {
        return;
    }
    let trial = trial("conference-instances", &CONFERENCE);
    let outcomes = simulate(&trial).unwrap();
    conferred(&outcomes, 2);
    let (figures, details) = figures_of(&outcomes);
    assert_eq!(figures.lost_percent, Some(0.0));
    // Without a host there is no jitter.
    assert!(figures.jitter_ms.p99.unwrap() < 0.01, "{figures:?}");
    assert!(details.noise_jitter_ms.p99.unwrap() < 0.01, "{details:?}");
    assert_eq!(simulate(&trial).unwrap().digest, outcomes.digest);
}

/// Names of this process's threads with their priorities under SCHED_FIFO (fields 2, 40 and 41 of proc_pid_stat(5)); 0:
/// none.
fn priorities() -> Vec<(String, u32)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let one = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (before, behind) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = behind.split_whitespace().collect();
        let priority = fields.get(37)?.parse().ok()?;
        let fifo = *fields.get(38)? == "1";
        let name = before.split_once('(')?.1.to_owned();
        Some((name, if fifo { priority } else { 0 }))
    };
    tasks.filter_map(one).collect()
}

#[test]
fn conferences_on_sockets() {
    if !has_g729() {
        return;
    }
    let mut seen = BTreeSet::new();
    let outcomes = on_sockets(&trial("conference-instances", &CONFERENCE), |_, _| {
        seen.extend(priorities());
    })
    .unwrap();
    conferred(&outcomes, 2);
    let remarked = |text: &str| outcomes.remarks.iter().any(|remark| remark.contains(text));
    match net::may_be_realtime(20) {
        Ok(()) => {
            for (name, priority) in [("border", 20), ("noise", 20), ("participants", 10)] {
                assert!(
                    seen.contains(&(name.to_owned(), priority)),
                    "{name}: {seen:?}"
                );
            }
            assert!(!remarked("realtime"), "{:?}", outcomes.remarks);
        }
        Err(error) => {
            eprintln!("in part: no rights here for SCHED_FIFO: {error}");
            assert!(
                remarked("realtime_priority = 20 was denied"),
                "{:?}",
                outcomes.remarks
            );
        }
    }
    assert!(outcomes.subject_cores.unwrap() > 0.0);
    let busy = outcomes.host_cpu_percent.unwrap();
    assert!((0.0..=100.0).contains(&busy) && busy > 0.0, "{busy}");
}

/// Loss and jitter of the probe are separated from those of the load, and from those of the bypassing streams.
#[test]
fn jitter_is_measured_at_probe_and_loss_everywhere() {
    let stream = |workload: &str, lost: u64, jitter: f64| StreamRecord {
        workload: workload.to_owned(),
        received: 100 - lost,
        expected: 100,
        lost,
        jitter_mean_ms: Some(jitter),
        jitter_p99_ms: Some(jitter),
        ..StreamRecord::default()
    };
    let streams = [
        stream("participants", 10, 9.0),
        stream("probe", 0, 0.5),
        stream("noise", 50, 0.2),
    ];
    let (figures, details) = figures::compute(&[], &streams, None);
    assert_eq!(figures.lost_percent, Some(5.0));
    assert_eq!(figures.jitter_ms.mean, Some(0.5));
    assert_eq!(details.noise_jitter_ms.p99, Some(0.2));
    assert_eq!(details.streams, 2);
    let thresholds = lab::experiment::Thresholds {
        jitter_mean_above_noise_ms: Some(0.31),
        jitter_p99_above_noise_ms: Some(0.29),
        host_cpu_percent: Some(90.0),
        ..Default::default()
    };
    let checks = figures::judge(&thresholds, &figures, &details, None);
    let held: Vec<_> = checks.iter().map(|c| (c.name.as_str(), c.holds)).collect();
    let expected = [
        ("jitter_mean_above_noise_ms", Some(true)),
        ("jitter_p99_above_noise_ms", Some(false)),
        ("host_cpu_percent", None),
    ];
    assert_eq!(
        held, expected,
        "a figure without measurement neither passes nor fails"
    );
}
