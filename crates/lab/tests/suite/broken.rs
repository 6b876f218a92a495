//! Verdicts that can fail: every built-in experiment that reproduces a study's claim, with its subject broken on purpose. In virtual
//! time, but for TLS; short, and each once as it is meant to be.

use lab::Verdict;
use lab::experiment::{BUILT_IN, File};
use lab::run::{RunOptions, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// An experiment in its short form, what breaks it, and the figure that has to tell.
struct Case {
    experiment: &'static str,
    short: &'static [&'static str],
    broken: &'static [&'static str],
    failing: &'static str,
}

const QUICK: [&str; 3] = [
    "callers.seconds=2.0",
    "callers.hold_seconds=0.5",
    "callers.users=100",
];
const ONE_CALL: &[&str] = &["subject.call_limit=1"];

const CASES: &[Case] = &[
    Case {
        experiment: "shielding",
        short: &[],
        broken: &["subject.call_limit=0"],
        failing: "established per second at 700",
    },
    Case {
        experiment: "shielding",
        short: &[],
        broken: &["subject.call_limit=100"],
        failing: "completed at 300, % of attempted",
    },
    Case {
        experiment: "overload",
        short: &[
            "callers.seconds=5.0",
            "levels.values=[765, 1530]",
            "peak.seconds=2.0",
            "peak.trials=6",
        ],
        broken: &["subject.call_limit=31"],
        failing: "peak",
    },
    Case {
        experiment: "overload-volte",
        short: &[
            "callers.seconds=10.0",
            "levels.values=[520]",
            "peak.trials=8",
        ],
        broken: &["subject.call_limit=31"],
        failing: "peak",
    },
    Case {
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
    Case {
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
    Case {
        experiment: "call-rate",
        short: &["levels.values=[700]", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "capacity",
    },
    Case {
        experiment: "call-rate-volte",
        short: &["levels.values=[240]", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "capacity",
    },
    Case {
        experiment: "volte-call-rate",
        short: &["repeat=1", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "completed, % of attempted",
    },
    Case {
        experiment: "header-rules",
        short: &["repeat=1", QUICK[0], QUICK[1], QUICK[2]],
        broken: ONE_CALL,
        failing: "completed, % of attempted",
    },
    Case {
        experiment: "conference-instances",
        short: &[
            "levels.values=[1]",
            "conference.rooms=2",
            "conference.seconds=1.0",
        ],
        broken: &["network.jitter_ms=20"],
        failing: "jitter p99 ms",
    },
    Case {
        experiment: "conference-jitter",
        short: &[
            "levels.values=[30]",
            "repeat=1",
            "conference.seconds=1.0",
            "conference.warm_up_seconds=1.0",
        ],
        broken: &["network.jitter_ms=20"],
        failing: "jitter trimmed mean ms at 30",
    },
    Case {
        experiment: "media-capacity",
        short: &["levels.values=[200]", "callers.hold_seconds=2.5"],
        broken: &["subject.call_limit=10"],
        failing: "peak calls at 200",
    },
    Case {
        experiment: "media-capacity-srtp",
        short: &["levels.values=[200]", "callers.hold_seconds=2.5"],
        broken: &["subject.call_limit=10"],
        failing: "peak calls at 200",
    },
    Case {
        experiment: "media-capacity-silence",
        short: &["levels.values=[200]", "callers.hold_seconds=2.5"],
        broken: &["network.loss_percent=1"],
        failing: "lost percent",
    },
    Case {
        experiment: "transcoding-capacity",
        short: &["levels.values=[50]", "callers.hold_seconds=2.6"],
        broken: &["subject.call_limit=5"],
        failing: "peak calls at 50",
    },
    Case {
        experiment: "re-registration-rate",
        short: &[
            "levels.values=[14000]",
            "registrations.users=2000",
            "registrations.refreshes=1",
        ],
        broken: &["network.loss_percent=70"],
        failing: "capacity",
    },
    Case {
        experiment: "re-registrations-420k",
        short: &[
            "levels.values=[14000]",
            "registrations.users=2000",
            "registrations.refreshes=1",
        ],
        broken: &["network.loss_percent=70"],
        failing: "capacity",
    },
    Case {
        experiment: "registration-rate",
        short: &["levels.values=[2600]", "registrations.users=500"],
        broken: &["network.loss_percent=70"],
        failing: "capacity",
    },
    Case {
        experiment: "registrations-million",
        short: &[
            "levels.values=[500]",
            "thresholds.figure=[{ name = \"registered\", at = 500, least = 500 }]",
        ],
        broken: &["network.loss_percent=70"],
        failing: "registered at 500",
    },
    Case {
        experiment: "standing-call-capacity",
        short: &[
            "levels.values=[1000]",
            "callers.hold_seconds=2.0",
            "thresholds.figure=[{ name = \"capacity\", least = 1000 }]",
        ],
        broken: &["subject.memory_mib=4"],
        failing: "capacity",
    },
    Case {
        experiment: "standing-call-capacity-volte",
        short: &[
            "levels.values=[1000]",
            "callers.hold_seconds=3.0",
            "thresholds.figure=[{ name = \"capacity\", least = 1000 }]",
        ],
        broken: &["subject.memory_mib=4"],
        failing: "capacity",
    },
    Case {
        experiment: "standing-calls",
        short: &[],
        broken: &["callers.hold_seconds=1.0"],
        failing: "peak calls at 8",
    },
];

/// TLS is spoken on sockets alone, and the link of `isolation` is one of the kernel's, which takes root and the program.
const ELSEWHERE: [&str; 5] = [
    "standing-call-capacity-tls",
    "call-rate-tls",
    "re-registration-rate-tls",
    "registration-rate-tls",
    "isolation",
];

fn told(name: &str, sets: &[&str], simulate: bool) -> (Verdict, Value) {
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
fn failing(told: &Value) -> Vec<String> {
    let bounds = told["bounds"].as_array().unwrap().iter();
    let failed = bounds.filter(|bound| bound["holds"] == false);
    failed
        .map(|bound| bound["figure"].as_str().unwrap().to_owned())
        .collect()
}

fn judge(case: &Case, simulate: bool) {
    let name = case.experiment;
    let (verdict, whole) = told(
        &format!("{name}#{}-sound", case.failing.len()),
        case.short,
        simulate,
    );
    assert_eq!(
        verdict,
        Verdict::Passed,
        "{name}, as it is meant to be: {:#}",
        whole["bounds"]
    );
    assert_eq!(whole["verdict"], "passed");
    let sets: Vec<&str> = case.short.iter().chain(case.broken).copied().collect();
    let (verdict, whole) = told(
        &format!("{name}#{}-broken", case.failing.len()),
        &sets,
        simulate,
    );
    assert_eq!(verdict, Verdict::Failed, "{name} with {:?}", case.broken);
    assert_eq!(
        (verdict.exit_code(), &whole["verdict"]),
        (1, &Value::from("failed"))
    );
    let found = failing(&whole);
    assert!(
        found.iter().any(|figure| figure == case.failing),
        "{name} with {:?}: {found:?}",
        case.broken
    );
}

fn part(number: usize) {
    for case in CASES.iter().skip(number).step_by(4) {
        judge(case, true);
    }
}

#[test]
fn a_broken_subject_fails_first_part() {
    part(0);
}

#[test]
fn a_broken_subject_fails_second_part() {
    part(1);
}

#[test]
fn a_broken_subject_fails_third_part() {
    part(2);
}

#[test]
fn a_broken_subject_fails_fourth_part() {
    part(3);
}

#[test]
fn a_broken_subject_fails_over_tls() {
    judge(
        &Case {
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
    judge(
        &Case {
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

/// Two of three media nodes get no calls.
#[test]
fn shares_that_are_not_even_fail() {
    judge(
        &Case {
            experiment: "media-nodes",
            short: &[
                "levels.values=[30]",
                "callers.hold_seconds=2.0",
                "thresholds.lost_percent=5.0",
                "thresholds.figure=[{ name = \"node_spread_percent\", most = 30.0 }]",
            ],
            broken: &["subject.nodes_drained=2"],
            failing: "node spread percent",
        },
        false,
    );
}

#[test]
fn every_experiment_that_reproduces_a_claim_bounds_a_figure_of_it() {
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
            "{name}: what differs from the study is not said"
        );
        let tried = CASES.iter().any(|case| case.experiment == *name);
        assert!(
            tried || ELSEWHERE.contains(name),
            "{name}: its subject is never broken"
        );
    }
}
