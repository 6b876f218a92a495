//! Output of `lab run` for scripts: raw results, JSON, terminal table, overrides; in virtual time.

use lab::RunVerdict;
use lab::experiment::built_in;
use lab::figures::Figures;
use lab::record::{Attempt, AttemptKind, AttemptOutcome};
use lab::run::{RunOptions, load, run};
use lab::search::search;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn options(folder: &Path, out: &str, sets: &[&str]) -> RunOptions {
    RunOptions {
        set: sets.iter().map(|&set| set.to_owned()).collect(),
        json: Some(folder.join(format!("{out}.json"))),
        out: Some(folder.join(out)),
        simulate: true,
        ..RunOptions::default()
    }
}

fn json(folder: &Path, out: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(format!("{out}.json"))).unwrap()).unwrap()
}

/// A short form of the study's experiment: two levels, three runs, seconds instead of minutes.
const SHORT: [&str; 4] = [
    "levels.values=[10, 20]",
    "callers.hold_seconds=2.0",
    "callers.listen_percent=20.0",
    "callees.answer_ms=12.0",
];

#[test]
fn same_experiment_and_seed_give_identical_files() {
    let folder = scratch("bytes");
    for out in ["a", "b"] {
        run("call-capacity", &options(&folder, out, &SHORT)).unwrap();
    }
    let other = RunOptions {
        seed: Some(2),
        ..options(&folder, "c", &SHORT)
    };
    run("call-capacity", &other).unwrap();
    let files = [
        "run.json",
        "attempts.ndjson",
        "streams.ndjson",
        "report.html",
        "levels.csv",
        "attempts.csv",
        "streams.csv",
    ];
    for file in files {
        let read = |out: &str| fs::read(folder.join(out).join(file)).unwrap();
        assert!(!read("a").is_empty() && read("a") == read("b"), "{file}");
    }
    let attempts = |out: &str| fs::read(folder.join(out).join("attempts.ndjson")).unwrap();
    assert_ne!(attempts("a"), attempts("c"), "a seed decides something");
    // One record per attempt and per received stream: callers and callees of 3 * (10 + 20) calls.
    let lines = |file: &str| {
        let text = fs::read_to_string(folder.join("a").join(file)).unwrap();
        text.lines().count()
    };
    assert_eq!(
        (lines("attempts.ndjson"), lines("streams.ndjson")),
        (180, 180)
    );
}

/// Asserts that `pointer` leads to a number in `value`, or to null if that is permitted.
fn assert_number(value: &Value, pointer: &str, may_be_null: bool) -> Option<f64> {
    let found = value
        .pointer(pointer)
        .unwrap_or_else(|| panic!("{pointer} is missing in {value:#}"));
    match found {
        Value::Null if may_be_null => None,
        found => Some(
            found
                .as_f64()
                .unwrap_or_else(|| panic!("{pointer}: {found}")),
        ),
    }
}

#[test]
fn each_trial_has_demo_blocks_plan_seed_and_verdict() {
    let folder = scratch("json");
    run("call-capacity", &options(&folder, "a", &SHORT)).unwrap();
    let whole = json(&folder, "a");
    for key in [
        "plan",
        "seed",
        "verdict",
        "report",
        "experiment",
        "subject",
        "driver",
    ] {
        assert!(!whole[key].is_null(), "{key}");
    }
    let trials = whole["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 6);
    for trial in trials {
        let attempted = trial["level"].as_f64().unwrap();
        for (pointer, wanted) in [
            ("/calls/attempted", attempted),
            ("/calls/established", attempted),
            ("/calls/completed", attempted),
            ("/calls/failed", 0.0),
            ("/lost_percent", 0.0),
            ("/audio/correlation", 1.0),
            ("/audio/level_db", 0.0),
        ] {
            let found = assert_number(trial, pointer, false).unwrap();
            assert!((found - wanted).abs() < 0.05, "{pointer} {found}");
        }
        let p50 = assert_number(trial, "/response_ms/p50", false).unwrap();
        let p99 = assert_number(trial, "/response_ms/p99", false).unwrap();
        assert!(p50 >= 12.0 && p99 >= p50 && p99 < 20.0, "{p50} {p99}");
        let jitter: Vec<f64> = ["mean", "p99", "max"]
            .iter()
            .map(|what| assert_number(trial, &format!("/jitter_ms/{what}"), false).unwrap())
            .collect();
        assert!(jitter.is_sorted() && jitter[2] < 1.0, "{jitter:?}");
        assert!(assert_number(trial, "/mos", false).unwrap() > 4.2);
        // There is no CPU time in a simulation.
        assert_eq!(assert_number(trial, "/cpu_us_per_call", true), None);
        // RFC 6076: held for two seconds, every request established and completed.
        let sip = "/details/sip";
        for (name, wanted) in [
            ("session_duration_s/mean", 2.0),
            ("session_establishment_percent", 100.0),
            ("session_completion_percent", 100.0),
            ("ineffective_sessions_percent", 0.0),
            ("session_disconnect_delay_ms/count", attempted),
        ] {
            let found = assert_number(trial, &format!("{sip}/{name}"), false).unwrap();
            assert!((found - wanted).abs() < 0.01, "{name} {found}");
        }
        let delay = assert_number(
            trial,
            &format!("{sip}/session_disconnect_delay_ms/mean"),
            false,
        );
        assert!(delay.is_some_and(|ms| ms > 0.0 && ms < 5.0), "{delay:?}");
        assert_eq!(trial["verdict"], "passed");
        assert!(trial["seed"].as_u64().is_some());
        assert_eq!(trial["report"], whole["report"]);
        assert!(Path::new(trial["report"].as_str().unwrap()).is_file());
    }
    // `demo --json` writes this type, so a block without a check above would fail here.
    let blocks: Value = serde_json::to_value(Figures::default()).unwrap();
    for key in blocks.as_object().unwrap().keys() {
        assert!(trials[0].get(key).is_some(), "{key}");
    }
    let seeds: std::collections::BTreeSet<u64> =
        trials.iter().map(|t| t["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds.len(), 6, "each trial has a seed of its own");
}

#[test]
fn plan_of_a_trial_reproduces_the_trial() {
    let folder = scratch("plan");
    run("call-capacity", &options(&folder, "all", &SHORT)).unwrap();
    let whole = json(&folder, "all");
    let fifth = &whole["trials"][4];
    let plan = folder.join("plan.toml");
    fs::write(&plan, fifth["plan"].as_str().unwrap()).unwrap();
    run(plan.to_str().unwrap(), &options(&folder, "one", &[])).unwrap();
    let again = &json(&folder, "one")["trials"][0];
    assert_eq!(again["seed"], fifth["seed"]);
    assert_eq!(again["digest"], fifth["digest"]);
    assert_eq!(again["response_ms"], fifth["response_ms"]);
    assert_eq!(again["calls"]["attempted"], 20);
}

#[test]
fn study_figures_are_shown_beside_run_figures() {
    let folder = scratch("study");
    // Rate, hold time and thresholds of the study, without media packets for speed: delay is not measured, which
    // neither passes nor fails.
    let sets = [
        "levels.values=[100, 900]",
        "callers.media=none",
        "callers.listen_percent=0",
        "callees.media=none",
        "callees.answer_ms=12.0",
    ];
    let verdict = run("call-capacity", &options(&folder, "a", &sets)).unwrap();
    assert_eq!(verdict, RunVerdict::Passed);
    let whole = json(&folder, "a");
    let figures = whole["study"]["figures"].as_array().unwrap();
    let shown: Vec<(Option<f64>, &str, f64, Option<f64>)> = figures
        .iter()
        .map(|row| {
            (
                row["level"].as_f64(),
                row["figure"].as_str().unwrap(),
                row["study"].as_f64().unwrap(),
                row["ours"].as_f64(),
            )
        })
        .collect();
    let checks = whole["trials"][0]["checks"].as_array().unwrap();
    let open: Vec<&str> = checks
        .iter()
        .filter(|check| check["holds"].is_null() && check["measured"].is_null())
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(open, ["one_way_ms", "round_trip_ms"]);
    // Answered after 12 ms, in the second class; 1,200 was not run, and no limit was reached.
    let expected = [
        (Some(100.0), "<10 ms", 100.0, Some(0.0)),
        (Some(900.0), "<10 ms", 602.0, Some(0.0)),
        (Some(900.0), "10-20 ms", 298.0, Some(900.0)),
        (Some(1200.0), "dropped", 18.0, None),
        (None, "capacity", 1100.0, Some(900.0)),
    ];
    assert_eq!(shown, expected);
    let page = fs::read_to_string(folder.join("a/report.html")).unwrap();
    for part in [
        "<span class=\"mark open\">not measured</span>",
        "Comparison with the study",
        "Study U",
        ">602</a></td>",
        ">298</a></td>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // 30 per second held for 30 seconds: the study's peak, and three runs of each level.
    for trial in whole["trials"].as_array().unwrap() {
        let peak = trial["details"]["peak_calls"].as_f64().unwrap();
        assert!(peak == trial["level"].as_f64().unwrap(), "{peak}");
    }
    assert_eq!(whole["trials"].as_array().unwrap().len(), 6);
}

#[test]
fn arrivals_are_constant_ramped_or_poisson() {
    let folder = scratch("arrivals");
    let base = [
        "levels.values=[200]",
        "repeat=1",
        "callers.media=none",
        "callers.listen_percent=0",
        "callees.media=none",
        "callers.hold_seconds=0.5",
        "thresholds.one_way_ms=",
        "thresholds.round_trip_ms=",
    ];
    let due = |out: &str, sets: &[&str]| -> Vec<f64> {
        let sets: Vec<&str> = base.iter().chain(sets).copied().collect();
        run("call-capacity", &options(&folder, out, &sets)).unwrap();
        let text = fs::read_to_string(folder.join(out).join("attempts.ndjson")).unwrap();
        let attempts = text.lines().map(|line| serde_json::from_str(line).unwrap());
        attempts
            .filter(|attempt: &Attempt| attempt.kind == AttemptKind::Call)
            .map(|attempt| attempt.due as f64 / 1e9)
            .collect()
    };
    let gaps = |due: &[f64]| -> Vec<f64> { due.windows(2).map(|two| two[1] - two[0]).collect() };
    let constant = gaps(&due("constant", &["callers.rate=50.0"]));
    assert_eq!(constant.len(), 199);
    assert!(constant.iter().all(|gap| (gap - 0.02).abs() < 1e-6));
    let poisson = gaps(&due(
        "poisson",
        &["callers.rate=50.0", "callers.pace=poisson"],
    ));
    let mean = poisson.iter().sum::<f64>() / 199.0;
    let spread = poisson.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 198.0;
    assert!((0.017..0.023).contains(&mean), "{mean}");
    assert!((0.8..1.2).contains(&(spread.sqrt() / mean)), "{spread}");
    let ramp = due(
        "ramp",
        &[
            "callers.rate=10.0",
            "callers.pace=ramp",
            "callers.ramp_to=50.0",
            "callers.ramp_seconds=5.0",
        ],
    );
    // 10 to 50 per second within 5 s: 150 attempts, then 50 per second.
    let from = ramp[0];
    let within = |from: f64, to: f64| ramp.iter().filter(|at| (from..to).contains(*at)).count();
    let first = within(from, from + 1.0);
    assert!((12..=16).contains(&first), "{first}");
    let fifth = within(from + 4.0, from + 5.0);
    assert!((44..=48).contains(&fifth), "{fifth}");
}

#[test]
fn every_built_in_experiment_runs_in_virtual_time() {
    let folder = scratch("built-in");
    for (name, sets) in [
        ("call-capacity", &SHORT[..]),
        (
            "call-rate",
            &[
                "levels.values=[50]",
                "callers.duration_seconds=2.0",
                "callers.hold_seconds=1.0",
            ],
        ),
        (
            "header-rules",
            &[
                "repeat=1",
                "callers.rate=50.0",
                "callers.duration_seconds=2.0",
            ],
        ),
        (
            "registrations",
            &["levels.values=[50]", "registrations.users=50"],
        ),
        (
            "registrations-million",
            &["levels.values=[500]", "registrations.rate=1000.0"],
        ),
        (
            "re-registrations-420k",
            &[
                "levels.values=[500]",
                "registrations.rate=1000.0",
                "registrations.users=400",
            ],
        ),
        (
            "rtp-streams",
            &[
                "levels.values=[10]",
                "streams.duration_seconds=2.0",
                "streams.listen_percent=100",
            ],
        ),
        ("small-network", &[]),
        ("shielding", &[]),
        ("standing-calls", &[]),
        (
            "overload",
            &["levels.values=[200,1000]", "callers.duration_seconds=5.0"],
        ),
    ] {
        assert!(built_in(name).is_some());
        let verdict = run(name, &options(&folder, name, sets)).unwrap();
        assert_eq!(
            verdict,
            RunVerdict::Passed,
            "{name}: {:#}",
            json(&folder, name)
        );
    }
    // 400 of 700 per second are admitted, and every other call is refused.
    let shielded = &json(&folder, "shielding")["trials"][1];
    let established = shielded["calls"]["established"].as_f64().unwrap();
    assert!((established - 4_000.0).abs() <= 40.0, "{shielded:#}");
    assert_eq!(shielded["details"]["statuses"][0][0], 486);
    // As many calls as the memory permits.
    let standing = &json(&folder, "standing-calls")["trials"];
    assert_eq!(standing[0]["details"]["peak_calls"], 512);
    assert_eq!(standing[1]["details"]["peak_calls"], 1_024);
    let streams = &json(&folder, "rtp-streams")["trials"][0];
    assert_eq!(streams["details"]["streams"], 10);
    assert!(streams["audio"]["correlation"].as_f64().unwrap() > 0.98);
    let registrations = &json(&folder, "registrations")["trials"][0];
    // Registration, one refresh, removal: three attempts per user.
    assert_eq!(
        registrations["details"]["registrations"]["established"],
        150
    );
    // The same experiment from a file.
    let file = folder.join("mine.toml");
    fs::write(&file, built_in("rtp-streams").unwrap()).unwrap();
    let sets = [
        "levels.values=[10]",
        "streams.duration_seconds=2.0",
        "streams.listen_percent=100",
    ];
    run(file.to_str().unwrap(), &options(&folder, "mine", &sets)).unwrap();
    assert_eq!(
        json(&folder, "mine")["trials"][0]["digest"],
        streams["digest"]
    );
    // Reports are recreated from the records, and two runs are compared.
    let page = lab::report::write(&folder.join("mine")).unwrap();
    assert!(page.is_file());
    let text = lab::report::compare(
        &folder.join("rtp-streams"),
        &folder.join("mine"),
        lab::report::TOLERANCE_PERCENT,
    )
    .unwrap()
    .text;
    assert!(text.contains("jitter mean, ms"), "{text}");
}

#[test]
fn settings_without_effect_on_a_search_are_refused() {
    let folder = scratch("search-ignored");
    for (set, instead) in [
        ("levels.from=100", "search.start"),
        ("levels.to=400", "search.highest"),
        ("levels.step=50", "search.step"),
        ("levels.values=[100]", "search.start"),
    ] {
        let error = search("call-rate", &options(&folder, "a", &[set])).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(instead), "{set}: {error}");
    }
}

#[test]
fn search_in_virtual_time_finds_the_limit() {
    let folder = scratch("search");
    // At most 8 concurrent calls are admitted; the search has to find this limit.
    let sets = [
        "levels.set=[\"callers.total\"]",
        "callers.limit=8",
        "levels.from=2",
        "levels.to=32",
        "levels.step=2",
        "callers.rate=100.0",
        "callers.hold_seconds=1.0",
    ];
    // Found, and below the figure of the study's system.
    let verdict = search("call-capacity", &options(&folder, "a", &sets)).unwrap();
    let out = folder.join("a");
    let again = || drop(lab::report::write(&out).unwrap());
    super::page_links::same_again(
        &out,
        &["report.html", "records.html", "computed.json"],
        again,
    )
    .unwrap();
    super::page_links::check(&out, "report.html").unwrap();
    let text = json(&folder, "a");
    assert_eq!(
        (verdict, &text["verdict"]),
        (RunVerdict::Failed, &Value::from("failed"))
    );
    assert_eq!(text["capacity"], 8.0);
    let interval = &text["study"]["figures"].as_array().unwrap().last().unwrap()["interval"];
    assert_eq!(
        (&interval["low"], &interval["high"]),
        (&Value::from(8.0), &Value::from(10.0))
    );
    let unbound: Vec<&str> = sets
        .iter()
        .chain(&["thresholds.figure="])
        .copied()
        .collect();
    let verdict = search("call-capacity", &options(&folder, "b", &unbound)).unwrap();
    assert_eq!(verdict, RunVerdict::Passed);
}

#[test]
fn unrefreshed_users_are_deregistered_at_the_end() {
    let folder = scratch("remove");
    let sets = [
        "levels.values=[50]",
        "registrations.users=20",
        "registrations.refresh_seconds=0",
    ];
    run("registrations", &options(&folder, "a", &sets)).unwrap();
    let text = fs::read_to_string(folder.join("a/attempts.ndjson")).unwrap();
    let attempts: Vec<Attempt> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind| attempts.iter().filter(move |a| a.kind == kind);
    assert_eq!(of(AttemptKind::Registration).count(), 20);
    assert_eq!(of(AttemptKind::Refresh).count(), 0);
    assert_eq!(of(AttemptKind::Deregistration).count(), 20);
    assert!(
        attempts
            .iter()
            .all(|a| a.outcome == AttemptOutcome::Completed)
    );
    let last_first = of(AttemptKind::Registration).filter_map(|a| a.ended).max();
    let first_last = of(AttemptKind::Deregistration).map(|a| a.due).min();
    assert!(last_first <= first_last);
}

#[test]
fn levels_take_turns_and_their_runs_follow_each_other_in_the_record() {
    let folder = scratch("turns");
    run("call-capacity", &options(&folder, "a", &SHORT)).unwrap();
    let raw = lab::raw::RawResults::read(&folder.join("a")).unwrap();
    let levels: Vec<f64> = raw.run.trials.iter().filter_map(|t| t.level).collect();
    let repeat = levels.iter().filter(|level| **level == levels[0]).count();
    assert!(repeat > 1 && levels.is_sorted(), "{levels:?}");
    assert!(
        raw.run
            .trials
            .iter()
            .map(|t| t.trial)
            .eq(0..levels.len() as u32)
    );
    // The attempts are written as they happen.
    let text = fs::read_to_string(folder.join("a/attempts.ndjson")).unwrap();
    let mut trials: Vec<usize> = text
        .lines()
        .map(|line| serde_json::from_str::<Attempt>(line).unwrap().trial as usize)
        .collect();
    trials.dedup();
    let turns = (0..repeat).flat_map(|run| (run..levels.len()).step_by(repeat));
    assert_eq!(trials, turns.collect::<Vec<_>>());
}

#[test]
fn terminal_table_shows_pooled_quantiles() {
    let folder = scratch("table");
    run("call-capacity", &options(&folder, "a", &SHORT)).unwrap();
    let published = lab::report::publish(&folder.join("a")).unwrap();
    let raw = lab::raw::RawResults::read(&folder.join("a")).unwrap();
    let table = lab::terminal::table(&raw.run, &published);
    // All response times of the level, pooled; the mean of three 99th percentiles would differ.
    let mut pooled: Vec<f64> = raw
        .attempts
        .iter()
        .filter(|a| {
            a.kind == AttemptKind::Call && raw.run.trials[a.trial as usize].level == Some(20.0)
        })
        .filter_map(Attempt::response_ms)
        .collect();
    pooled.sort_by(f64::total_cmp);
    assert_eq!(pooled.len(), 60);
    let p99 = lab::figures::quantile(&pooled, 0.99);
    assert_eq!(published.levels[1].p99, p99);
    let row = table.lines().find(|line| line.starts_with("20 ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    // With 60 answers it is marked.
    let marked = format!("{}*", lab::report::plain(p99.unwrap()));
    assert_eq!(cells[6], marked, "{table}");
    assert!(table.contains("fewer than 300 answers"), "{table}");
    assert!(
        table.contains("Study U") && table.contains("capacity"),
        "{table}"
    );
}

#[test]
fn invalid_overrides_are_rejected_with_explanation() {
    for (set, word) in [
        ("callers.rat=3", "rat"),
        ("sut.ip=ipv5", "ipv5"),
        (
            "study.level=[{ at = 1, figures = { nothing = 1 } }]",
            "nothing",
        ),
        ("study.ours=nothing", "nothing"),
        ("study.at=900", "study.ours"),
        ("study.unit=", "need each other"),
    ] {
        let options = RunOptions {
            set: vec![set.to_owned()],
            ..RunOptions::default()
        };
        let error = load("call-capacity", &options).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(word), "{error}");
    }
}
