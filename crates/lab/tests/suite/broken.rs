//! Verdicts that can fail: every built-in experiment that reproduces a study's claim, with a deliberate
//! fault in its SUT. In virtual time except for TLS; shortened, and each also runs once without the fault.

use lab::RunVerdict;
use lab::experiment::{BUILT_IN, File, built_in};
use lab::run::{RunOptions, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// An experiment in its short form, the overrides that break it, and the figure that must fail.
struct BrokenCase {
    experiment: &'static str,
    short: &'static [&'static str],
    broken: &'static [&'static str],
    failing: &'static str,
}

const QUICK: [&str; 3] = [
    "callers.duration_seconds=2.0",
    "callers.hold_seconds=0.5",
    "callers.users=100",
];
const ONE_CALL: &[&str] = &["sut.call_limit_per_second=1"];

const CASES: &[BrokenCase] = &[
    BrokenCase {
        experiment: "shielding",
        short: &[],
        broken: &["sut.call_limit_per_second=0"],
        failing: "established per second at 700",
    },
    BrokenCase {
        experiment: "shielding",
        short: &[],
        broken: &["sut.call_limit_per_second=100"],
        failing: "completed at 300, % of attempted",
    },
    BrokenCase {
        experiment: "overload",
        short: &[
            "callers.duration_seconds=5.0",
            "levels.values=[765, 1530]",
            "peak.trial_seconds=2.0",
            "peak.trials=6",
        ],
        broken: &["sut.call_limit_per_second=31"],
        failing: "peak",
    },
    BrokenCase {
        experiment: "overload-volte",
        short: &[
            "callers.duration_seconds=10.0",
            "levels.values=[520]",
            "peak.trials=8",
        ],
        broken: &["sut.call_limit_per_second=31"],
        failing: "peak",
    },
    BrokenCase {
        experiment: "call-capacity",
        short: &[
            "levels.values=[1100]",
            "repeat=1",
            "callers.media=none",
            "callers.listen_percent=0",
            "callees.media=none",
        ],
        broken: ONE_CALL,
        failing: "capacity",
    },
    BrokenCase {
        experiment: "call-capacity-g722",
        short: &[
            "levels.values=[1000]",
            "repeat=1",
            "callers.media=none",
            "callees.media=none",
        ],
        broken: ONE_CALL,
        failing: "capacity",
    },
    BrokenCase {
        experiment: "call-rate",
        short: &["levels.values=[700]", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "capacity",
    },
    BrokenCase {
        experiment: "call-rate-volte",
        short: &["levels.values=[240]", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "capacity",
    },
    BrokenCase {
        experiment: "volte-call-rate",
        short: &["repeat=1", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "completed, % of attempted",
    },
    BrokenCase {
        experiment: "header-rules",
        short: &["repeat=1", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "completed, % of attempted",
    },
    BrokenCase {
        experiment: "conference-instances",
        short: &[
            "levels.values=[1]",
            "conference.count=2",
            "conference.duration_seconds=1.0",
        ],
        broken: &["network.jitter_ms=20"],
        failing: "jitter p99 ms",
    },
    BrokenCase {
        experiment: "conference-jitter",
        short: &[
            "levels.values=[30]",
            "repeat=1",
            "conference.duration_seconds=1.0",
            "conference.warm_up_seconds=1.0",
        ],
        broken: &["network.jitter_ms=20"],
        failing: "jitter trimmed mean ms at 30",
    },
    BrokenCase {
        experiment: "media-capacity",
        short: &["levels.values=[200]", "callers.hold_seconds=2.5"],
        broken: &["sut.call_limit_per_second=10"],
        failing: "peak calls at 200",
    },
    BrokenCase {
        experiment: "media-capacity-srtp",
        short: &["levels.values=[200]", "callers.hold_seconds=2.5"],
        broken: &["sut.call_limit_per_second=10"],
        failing: "peak calls at 200",
    },
    BrokenCase {
        experiment: "media-capacity-silence",
        short: &["levels.values=[200]", "callers.hold_seconds=2.5"],
        broken: &["network.loss_percent=1"],
        failing: "lost percent",
    },
    BrokenCase {
        experiment: "transcoding-capacity",
        short: &["levels.values=[50]", "callers.hold_seconds=2.6"],
        broken: &["sut.call_limit_per_second=5"],
        failing: "peak calls at 50",
    },
    BrokenCase {
        experiment: "re-registration-rate",
        short: &[
            "levels.values=[14000]",
            "registrations.users=2000",
            "registrations.refreshes=1",
        ],
        broken: &["network.loss_percent=70"],
        failing: "capacity",
    },
    BrokenCase {
        experiment: "re-registrations-420k",
        short: &[
            "levels.values=[14000]",
            "registrations.users=2000",
            "registrations.refreshes=1",
        ],
        broken: &["network.loss_percent=70"],
        failing: "capacity",
    },
    BrokenCase {
        experiment: "registration-rate",
        short: &["levels.values=[2600]", "registrations.users=500"],
        broken: &["network.loss_percent=70"],
        failing: "capacity",
    },
    BrokenCase {
        experiment: "registrations-million",
        short: &[
            "levels.values=[500]",
            "thresholds.figure=[{ name = \"registered\", at = 500, least = 500 }]",
        ],
        broken: &["network.loss_percent=70"],
        failing: "registered at 500",
    },
    BrokenCase {
        experiment: "standing-call-capacity",
        short: &[
            "levels.values=[1000]",
            "callers.hold_seconds=2.0",
            "thresholds.figure=[{ name = \"capacity\", least = 1000 }]",
        ],
        broken: &["sut.memory_mib=4"],
        failing: "capacity",
    },
    BrokenCase {
        experiment: "standing-call-capacity-volte",
        short: &[
            "levels.values=[1000]",
            "callers.hold_seconds=3.0",
            "thresholds.figure=[{ name = \"capacity\", least = 1000 }]",
        ],
        broken: &["sut.memory_mib=4"],
        failing: "capacity",
    },
    BrokenCase {
        experiment: "call-capacity-ipsec",
        short: &[
            "levels.values=[2]",
            "conference.duration_seconds=1.0",
            "conference.warm_up_seconds=1.0",
            "thresholds.figure=[{ name = \"capacity\", least = 2 }, { name = \"esp.refused_packets\", most = 0 }]",
        ],
        broken: &["sut.call_limit_per_second=1"],
        failing: "capacity",
    },
    BrokenCase {
        experiment: "cost-of-protection",
        short: &[
            "levels.values=[0, 1, 2, 13, 14]",
            "repeat=1",
            "callers.total=4",
            "callers.hold_seconds=2.0",
            "thresholds.figure=[{ name = \"lost_percent\", most = 0.1 }, { name = \"esp.refused_packets\", most = 0 }]",
        ],
        broken: &["network.loss_percent=5"],
        failing: "lost percent",
    },
    BrokenCase {
        experiment: "cost-of-protection",
        short: &[
            "levels.values=[0, 13]",
            "repeat=1",
            "callers.total=2",
            "callers.hold_seconds=2.0",
        ],
        // Fewer bytes than packets of G.711 have with this protection.
        broken: &["callers.codec=G729"],
        failing: "esp.call kbit at 13",
    },
    BrokenCase {
        experiment: "esp-packet-cost",
        short: &[
            "levels.values=[20]",
            "esp.rounds=3",
            "esp.packets=8",
            "esp.openssl_seconds=0",
            "thresholds.figure=[{ name = \"esp.wrong_packets\", most = 0 }]",
        ],
        broken: &["esp.damaged_percent=50"],
        failing: "esp.wrong packets",
    },
    BrokenCase {
        experiment: "esp-bandwidth",
        short: &["levels.values=[20]", "esp.rounds=2", "esp.packets=8"],
        broken: &["esp.damaged_percent=50"],
        failing: "esp.difference bytes",
    },
    BrokenCase {
        experiment: "esp-without-udp",
        short: &[
            "levels.values=[20]",
            "esp.rounds=3",
            "esp.packets=8",
            "thresholds.figure=[{ name = \"esp.wrong_packets\", most = 0 }]",
        ],
        broken: &["esp.damaged_percent=50"],
        failing: "esp.wrong packets",
    },
    BrokenCase {
        experiment: "esp-direct",
        short: &[
            "levels.values=[20]",
            "esp.rounds=3",
            "esp.packets=8",
            "thresholds.figure=[{ name = \"esp.wrong_packets\", most = 0 }]",
        ],
        broken: &["esp.damaged_percent=50"],
        failing: "esp.wrong packets",
    },
    BrokenCase {
        experiment: "standing-calls",
        short: &[],
        broken: &["callers.hold_seconds=1.0"],
        failing: "peak calls at 8",
    },
];

/// Experiments that need sockets, each with a test of its own.
const ON_SOCKETS: [&str; 8] = [
    "media-capacity-kernel",
    // In the suite of the program, which it calls with: `phone_that_is_stopped_fails_the_experiment`.
    "phone-jitter",
    "standing-call-capacity-tls",
    "call-rate-tls",
    "re-registration-rate-tls",
    "re-registrations-132k-tls",
    "registration-rate-tls",
    // In the suite of the program, which it calls: `shares_below_the_voice_fail_the_experiment`.
    "isolation",
];

fn run_experiment(name: &str, sets: &[&str], simulate: bool) -> (RunVerdict, Value) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("broken")
        .join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let experiment = name.split('#').next().unwrap();
    let options = RunOptions {
        set: sets.iter().map(|&set| set.to_owned()).collect(),
        json: Some(folder.join("run.json")),
        out: Some(folder.join("out")),
        simulate,
        ..RunOptions::default()
    };
    let verdict = run(experiment, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = fs::read(folder.join("run.json")).unwrap();
    let page = fs::read_to_string(folder.join("out/report.html")).unwrap();
    assert!(
        page.contains(&format!("badge {}", verdict.name())),
        "{name}: {}",
        verdict.name()
    );
    let kept = fs::read_to_string(folder.join("out/run.json")).unwrap();
    assert!(
        kept.contains(&format!("\"verdict\": \"{}\"", verdict.name())),
        "{name}"
    );
    fs::remove_dir_all(&folder).unwrap();
    (verdict, serde_json::from_slice(&text).unwrap())
}

/// Names of the bounds that do not hold.
fn failing(result: &Value) -> Vec<String> {
    let bounds = result["bounds"].as_array().unwrap().iter();
    let failed = bounds.filter(|bound| bound["holds"] == false);
    failed
        .map(|bound| bound["figure"].as_str().unwrap().to_owned())
        .collect()
}

fn judge_case(case: &BrokenCase, simulate: bool) {
    let name = case.experiment;
    let (verdict, whole) = run_experiment(
        &format!("{name}#{}-sound", case.failing.len()),
        case.short,
        simulate,
    );
    assert_eq!(
        verdict,
        RunVerdict::Passed,
        "{name}, unbroken: {:#}",
        whole["bounds"]
    );
    assert_eq!(whole["verdict"], "passed");
    let sets: Vec<&str> = case.short.iter().chain(case.broken).copied().collect();
    let (verdict, whole) = run_experiment(
        &format!("{name}#{}-broken", case.failing.len()),
        &sets,
        simulate,
    );
    assert_eq!(verdict, RunVerdict::Failed, "{name} with {:?}", case.broken);
    assert_eq!(
        (verdict.exit_code(), &whole["verdict"]),
        (1, &Value::from("failed"))
    );
    let found = failing(&whole);
    assert!(
        found
            .iter()
            .any(|figure| figure.replace('_', " ") == case.failing),
        "{name} with {:?}: {found:?}",
        case.broken
    );
}

fn judge_part(number: usize) {
    for case in CASES.iter().skip(number).step_by(4) {
        judge_case(case, true);
    }
}

#[test]
fn broken_sut_fails_part_1() {
    judge_part(0);
}

#[test]
fn broken_sut_fails_part_2() {
    judge_part(1);
}

#[test]
fn broken_sut_fails_part_3() {
    judge_part(2);
}

#[test]
fn broken_sut_fails_part_4() {
    judge_part(3);
}

#[test]
fn broken_sut_fails_over_tls() {
    judge_case(
        &BrokenCase {
            experiment: "call-rate-tls",
            short: &[
                "levels.values=[20]",
                "thresholds.response_p99_ms=",
                "thresholds.figure=[{ name = \"capacity\", least = 20 }]",
                QUICK[0],
                QUICK[1],
                QUICK[2],
            ],
            broken: ONE_CALL,
            failing: "capacity",
        },
        false,
    );
    judge_case(
        &BrokenCase {
            experiment: "standing-call-capacity-tls",
            short: &[
                "levels.values=[50]",
                "callers.rate=50.0",
                "callers.hold_seconds=1.5",
                "thresholds.response_p99_ms=",
                "thresholds.figure=[{ name = \"capacity\", least = 50 }]",
            ],
            broken: ONE_CALL,
            failing: "capacity",
        },
        false,
    );
}

/// A registrar whose answers take seconds. Machine noise of a second is not a fault.
#[test]
fn slow_registrar_fails_over_tls() {
    let slow = &["network.delay_ms=400"];
    judge_case(
        &BrokenCase {
            experiment: "registration-rate-tls",
            short: &[
                "levels.values=[100]",
                "registrations.users=50",
                "thresholds.response_p99_ms=3000",
                "thresholds.figure=[{ name = \"capacity\", least = 100 }]",
            ],
            broken: slow,
            failing: "capacity",
        },
        false,
    );
    judge_case(
        &BrokenCase {
            experiment: "re-registration-rate-tls",
            short: &[
                "levels.values=[100]",
                "registrations.rate=100",
                "registrations.users=50",
                "registrations.refreshes=1",
                "thresholds.response_p99_ms=3000",
                "thresholds.figure=[{ name = \"capacity\", least = 100 }]",
            ],
            broken: slow,
            failing: "capacity",
        },
        false,
    );
}

/// Subscribers that share connections although each is to have one.
#[test]
fn shared_connections_fail_over_tls() {
    judge_case(
        &BrokenCase {
            experiment: "re-registrations-132k-tls",
            short: &[
                "levels.values=[100]",
                "registrations.rate=100",
                "registrations.users=40",
                "thresholds.response_p99_ms=3000",
                "thresholds.figure=[{ name = \"connections\", least = 40 }, { name = \"connections_lost\", most = 0 }]",
            ],
            broken: &["registrations.connections=3"],
            failing: "connections",
        },
        false,
    );
}

/// Two of three media nodes get no calls.
#[test]
fn uneven_node_shares_fail() {
    judge_case(
        &BrokenCase {
            experiment: "media-nodes",
            short: &[
                "levels.values=[30]",
                "callers.hold_seconds=2.0",
                "thresholds.lost_percent=5.0",
                "thresholds.figure=[{ name = \"node_spread_percent\", most = 30.0 }]",
            ],
            broken: &["sut.media_nodes_drained=2"],
            failing: "node spread percent",
        },
        false,
    );
}

/// SRTP needs the border's sockets: nothing is left for the kernel relay.
#[test]
fn calls_beside_the_kernel_relay_fail() {
    let able = "ip link add near type veth peer name far && ethtool -K near gro on";
    let able = std::process::Command::new("unshare")
        .args(["-n", "sh", "-c", able])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    if !able.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to a network namespace, or not installed: ethtool");
        return;
    }
    if !codec::Kind::G729.is_available() {
        eprintln!("skipped: this build has no G.729");
        return;
    }
    judge_case(
        &BrokenCase {
            experiment: "media-capacity-kernel",
            short: &[
                "levels.values=[20]",
                "callers.hold_seconds=4.0",
                "callers.rate=20.0",
                "thresholds.lost_percent=5.0",
                "thresholds.relay_p50_ms=",
                "thresholds.figure=[{ name = \"kernel_relay_percent\", least = 80.0 }]",
            ],
            broken: &["callers.srtp=true"],
            failing: "kernel relay percent",
        },
        false,
    );
}

/// A PBX that establishes every call in time and loses speech is not good.
#[test]
fn lost_speech_fails_the_capacity_of_a_pbx() {
    let short = ["levels.values=[20]", "callers.hold_seconds=2.0"];
    let (verdict, whole) = run_experiment("pbx-capacity#sound", &short, true);
    assert_eq!(verdict, RunVerdict::Passed, "{whole:#}");
    let details = &whole["trials"][0]["details"];
    assert_eq!(details["peak_calls"], 20, "{details:#}");
    let lossy = [
        short[0],
        short[1],
        "network.loss_percent=5.0",
        "thresholds.failed_percent=",
        "thresholds.response_p99_ms=",
    ];
    let (verdict, whole) = run_experiment("pbx-capacity#lossy", &lossy, true);
    assert_eq!(verdict, RunVerdict::Failed, "{whole:#}");
    let checks = whole["trials"][0]["checks"].as_array().unwrap();
    let failed = checks.iter().filter(|check| check["holds"] == false);
    let names: Vec<&str> = failed
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["lost_percent", "mos"], "{checks:#?}");
}

#[test]
fn every_claim_experiment_has_a_bound() {
    for (name, text) in BUILT_IN {
        let file = File::parse(name, text).unwrap();
        let experiment = file.experiment();
        let Some(study) = experiment
            .study
            .as_ref()
            .filter(|study| study.figure.is_some())
        else {
            continue;
        };
        let bounds = &experiment.thresholds.figure;
        assert!(
            !bounds.is_empty(),
            "{name}: no threshold bounds {}",
            study.ours
        );
        assert!(
            !study.differs.is_empty(),
            "{name}: the differences from the study are not stated"
        );
        let tried = CASES.iter().any(|case| case.experiment == *name);
        assert!(
            tried || ON_SOCKETS.contains(name),
            "{name}: no case breaks its SUT"
        );
    }
}

/// Without its sweep an experiment has no capacity: its bound would fail every run.
#[test]
fn bound_of_a_sweep_needs_the_sweep() {
    let load = |name: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        File::parse_with(name, built_in(name).unwrap(), &sets)
    };
    let error = load("call-rate", &["levels="]).unwrap_err().to_string();
    assert!(
        error.contains("thresholds.figure \"capacity\" needs [levels]")
            && error.contains("--set thresholds.figure="),
        "{error}"
    );
    load("call-rate", &["levels=", "thresholds.figure="]).unwrap();
    for (bound, is_refused) in [
        ("{ name = \"response_p50_ms\", at = 100, most = 10 }", true),
        (
            "{ name = \"in_time_per_second\", percent_of = 765, least = 90 }",
            true,
        ),
        ("{ name = \"response_p50_ms\", most = 10 }", false),
    ] {
        let bound = format!("thresholds.figure=[{bound}]");
        let file = load("call-rate", &["levels=", &bound]);
        assert_eq!(file.is_err(), is_refused, "{bound}");
        load("call-rate", &[&bound]).unwrap();
    }
}
