//! Rates of registrations and of calls as in searches: users in turn at a rate, several threads that execute one plan.

use lab::experiment::{BUILT_IN, File};
use lab::figures;
use lab::record::{Attempt, AttemptKind, AttemptOutcome};
use lab::run::RunOptions;
use lab::search::{benchmark, search};
use lab::trial::{Outcomes, Trial, on_sockets, simulate, simulate_watched};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

fn trial(text: &str) -> Trial {
    let file = File::parse("test", text).unwrap();
    let experiment = file.levels().unwrap().remove(0).experiment;
    Trial {
        experiment,
        number: 0,
        seed: 1,
    }
}

fn of(outcomes: &Outcomes, kind: AttemptKind) -> Vec<&Attempt> {
    outcomes
        .attempts
        .iter()
        .filter(|a| a.kind == kind)
        .collect()
}

fn all_completed(attempts: &[&Attempt]) -> usize {
    for attempt in attempts {
        assert_eq!(attempt.outcome, AttemptOutcome::Completed, "{attempt:?}");
    }
    attempts.len()
}

const CYCLE: &str = r#"
name = "t"
title = "t"
[registrations]
rate = 100.0
users = 50
password = ""
refresh_rate = 200.0
refreshes = 3
remove = true
registrar = "core"
"#;

#[test]
fn re_registrations_at_a_rate_are_answered_from_the_cache() {
    let towards_core = Rc::new(Cell::new(0));
    let seen = towards_core.clone();
    let outcomes = simulate_watched(&trial(CYCLE), move |record| {
        let core = record.destination.ip().to_string() == "10.0.2.1";
        let delivered = matches!(record.point, sim::TapPoint::Delivered(_));
        if core && delivered && record.bytes.starts_with(b"REGISTER") {
            seen.set(seen.get() + 1);
        }
    })
    .unwrap();
    assert_eq!(all_completed(&of(&outcomes, AttemptKind::Registration)), 50);
    assert_eq!(
        all_completed(&of(&outcomes, AttemptKind::Deregistration)),
        50
    );
    let again = of(&outcomes, AttemptKind::Reregistration);
    assert_eq!(all_completed(&again), 150);
    // On an absolute timeline, two seconds after the last first registration was due.
    let begin = of(&outcomes, AttemptKind::Registration)
        .iter()
        .map(|a| a.due)
        .max()
        .unwrap()
        + 2_000_000_000;
    for (number, attempt) in again.iter().enumerate() {
        assert_eq!(attempt.due, begin + number as u64 * 5_000_000);
        assert_eq!(attempt.number, number as u64 % 50, "users take turns");
    }
    assert_eq!(
        towards_core.get(),
        100,
        "first ones and last ones alone are passed on"
    );
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
    // Preparation does not count in the figures.
    let (figures, details) = figures::compute(&outcomes.attempts, &[], None);
    let rate = details.established_per_second.unwrap();
    assert!((rate - 200.0).abs() < 0.01, "{rate}");
    assert!(
        figures.response_ms.p50.is_some() && details.response_classes.iter().sum::<u64>() == 150
    );
    assert_eq!(details.registrations.attempted, 250);
}

/// Digest passed through to the registrar behind the border: four messages on each side for a first registration.
#[test]
fn registrations_are_challenged_by_the_registrar_behind_the_border() {
    let towards_core = Rc::new(Cell::new(0));
    let seen = towards_core.clone();
    let text = CYCLE.replace("password = \"\"", "password = \"secret-{user}\"");
    let outcomes = simulate_watched(&trial(&text), move |record| {
        let core = record.destination.ip().to_string() == "10.0.2.1";
        let delivered = matches!(record.point, sim::TapPoint::Delivered(_));
        if core && delivered && record.bytes.starts_with(b"REGISTER") {
            seen.set(seen.get() + 1);
        }
    })
    .unwrap();
    assert_eq!(all_completed(&of(&outcomes, AttemptKind::Registration)), 50);
    assert_eq!(
        all_completed(&of(&outcomes, AttemptKind::Reregistration)),
        150
    );
    assert_eq!(
        all_completed(&of(&outcomes, AttemptKind::Deregistration)),
        50
    );
    // First registrations pass twice each, those answered from the cache never, removals once or twice.
    let passed_on = towards_core.get();
    assert!((150..=200).contains(&passed_on), "{passed_on}");
    assert_eq!(outcomes.leaks, Some(0), "{:?}", outcomes.remarks);
}

/// With a duration, trials last as long at a high rate as at a low one.
#[test]
fn registrations_last_as_long_at_any_rate() {
    let parse = |text: &str| File::parse("t", text).map(|file| file.experiment().clone());
    let first = "name = \"t\"\ntitle = \"t\"\n[registrations]\nrate = 400.0\nusers = 10\nduration_seconds = 3.0\n";
    let plan = parse(first).unwrap().registrations.unwrap();
    assert_eq!((plan.users, plan.refreshes), (1_200, 0));
    // The stated number is the least.
    let more = first.replace("users = 10", "users = 2000");
    assert_eq!(parse(&more).unwrap().registrations.unwrap().users, 2_000);
    let cycle = format!("{CYCLE}duration_seconds = 4.0\n");
    let plan = parse(&cycle).unwrap().registrations.unwrap();
    assert_eq!((plan.users, plan.refreshes), (50, 16));
    let again = simulate(&trial(&cycle)).unwrap();
    assert_eq!(all_completed(&of(&again, AttemptKind::Reregistration)), 800);
    // The rate of a level counts.
    for (name, rate) in [
        ("registration-rate", 11_000.0),
        ("registration-rate-tls", 30_000.0),
    ] {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name).unwrap();
        let level = File::parse(name, text).unwrap().level_at(rate).unwrap();
        let plan = level.experiment.registrations.unwrap();
        assert!(plan.users as f64 >= rate * 10.0, "{name}: {plan:?}");
    }
    let ramp = format!("{first}pace = \"ramp\"\nramp_to = 9.0\nramp_seconds = 1.0\n");
    let error = parse(&ramp).unwrap_err().to_string();
    assert!(error.contains("registrations.duration_seconds"), "{error}");
    assert!(parse(&first.replace("3.0", "-1.0")).is_err());
}

#[test]
fn re_registration_of_unregistered_users_is_counted() {
    let deaf = format!("{CYCLE}[network]\nloss_percent = 100.0\n");
    let outcomes = simulate(&trial(&deaf)).unwrap();
    let again = of(&outcomes, AttemptKind::Reregistration);
    assert_eq!(again.len(), 150);
    for attempt in again {
        assert_eq!(
            attempt.outcome,
            AttemptOutcome::NotRegistered,
            "{attempt:?}"
        );
        assert!(attempt.sent.is_none());
    }
}

const CALLS: &str = r#"
name = "t"
title = "t"
[generator]
workers = 3
[sut]
media = "bypass"
[callers]
rate = 60.0
total = 61
hold_seconds = 0.3
media = "none"
[callees]
[registrations]
rate = 60.0
users = 31
password = ""
registrar = "core"
refresh_rate = 60.0
refreshes = 2
"#;

/// Number and due time of every attempt of this kind.
fn plan(outcomes: &Outcomes, kind: AttemptKind) -> Vec<(u64, u64)> {
    let mut plan: Vec<_> = of(outcomes, kind)
        .iter()
        .map(|a| (a.due, a.number))
        .collect();
    plan.sort_unstable();
    plan
}

#[test]
fn several_threads_share_one_plan_through_the_border() {
    let together = on_sockets(&trial(CALLS), |_, _| {}).unwrap();
    assert_eq!(all_completed(&of(&together, AttemptKind::Call)), 61);
    assert_eq!(all_completed(&of(&together, AttemptKind::Answer)), 61);
    assert_eq!(all_completed(&of(&together, AttemptKind::Registration)), 31);
    assert_eq!(
        all_completed(&of(&together, AttemptKind::Reregistration)),
        62
    );
    assert_eq!(together.leaks, Some(0), "{:?}", together.remarks);
    let alone = on_sockets(
        &trial(&CALLS.replace("workers = 3", "workers = 1")),
        |_, _| {},
    )
    .unwrap();
    for kind in [AttemptKind::Call, AttemptKind::Registration] {
        assert_eq!(plan(&together, kind), plan(&alone, kind), "{kind:?}");
    }
    let dues = |outcomes: &Outcomes| -> Vec<u64> {
        plan(outcomes, AttemptKind::Reregistration)
            .iter()
            .map(|(due, _)| *due)
            .collect()
    };
    assert_eq!(dues(&together), dues(&alone));
    // Each thread has its own socket.
    let senders = |outcomes: &Outcomes| {
        let mut names: Vec<_> = of(outcomes, AttemptKind::Registration)
            .iter()
            .map(|a| a.from.clone())
            .collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    };
    assert_eq!(senders(&together), 31, "no user came twice");
}

#[test]
fn several_threads_call_several_callees_directly() {
    let text = CALLS
        .replace("media = \"bypass\"", "direct = true")
        .replace("[callers]", "[callers]\npace = \"poisson\"");
    let text = text.split("[registrations]").next().unwrap();
    let outcomes = on_sockets(&trial(text), |_, _| {}).unwrap();
    assert_eq!(all_completed(&of(&outcomes, AttemptKind::Call)), 61);
    let sides: std::collections::BTreeSet<_> = of(&outcomes, AttemptKind::Answer)
        .iter()
        .map(|answer| answer.number)
        .collect();
    assert!(
        (20..=21).contains(&sides.len()),
        "three called sides count their own: {}",
        sides.len()
    );
}

#[test]
fn invalid_use_of_several_threads_is_rejected() {
    let error = simulate(&trial(CALLS)).unwrap_err().to_string();
    assert!(error.contains("virtual time has one thread"), "{error}");
    for (old, new, why) in [
        ("workers = 3", "workers = 0", "1 to 64"),
        ("workers = 3", "workers = 65", "1 to 64"),
        ("workers = 3", "batch_us = 10001", "at most 10000"),
        ("total = 61", "total = 61\nlimit = 2", "callers.limit"),
        (
            "refreshes = 2",
            "refreshes = 0",
            "needs registrations.refreshes",
        ),
        (
            "refreshes = 2",
            "refreshes = 2\nrefresh_seconds = 1.0",
            "refresh_rate and refresh_seconds exclude each other",
        ),
        (
            "password = \"\"\n",
            "password = \"s-{number}\"\n",
            "identifies users by name",
        ),
    ] {
        let error = File::parse("test", &CALLS.replace(old, new))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn every_built_in_search_of_calls_runs_on_sockets() {
    assert_searches_run(
        "searches-calls",
        &[
            ("call-rate", &[]),
            ("call-rate-anchored", &[]),
            ("call-rate-baseline", &[]),
            ("call-rate-media-bypass", &[]),
            ("call-rate-tls", &[]),
            ("call-rate-volte", &[]),
            ("standing-call-capacity", &["callers.hold_seconds=2.0"]),
        ],
    );
}

#[test]
fn every_built_in_search_of_registrations_runs_on_sockets() {
    let users = ["registrations.users=40", "registrations.duration_seconds=1"];
    let names = [
        "re-registration-rate",
        "re-registration-rate-tls",
        "registration-rate",
        "registration-rate-tls",
        "registrations",
    ];
    assert_searches_run(
        "searches-registrations",
        &names.map(|name| (name, &users[..])),
    );
}

/// Runs searches, each with further settings, at one value for a second; most of their time is waiting.
fn assert_searches_run(folder: &str, searches: &[(&str, &[&str])]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = std::fs::remove_dir_all(&folder);
    for &(name, more) in searches {
        let mut set: Vec<String> = [
            "search.start=40",
            "search.step=40",
            "search.highest=40",
            "search.trials=1",
            "search.coarse_seconds=0",
            // The speed of this machine is not under test.
            "thresholds.response_p99_ms=",
        ]
        .map(str::to_owned)
        .to_vec();
        if name.starts_with("call-rate") {
            set.push("callers.duration_seconds=1.0".to_owned());
            set.push("callers.hold_seconds=1.0".to_owned());
        }
        if name.contains("anchored") || name.contains("bypass") {
            set.push("thresholds.lost_percent=".to_owned());
        }
        set.extend(more.iter().map(|&set| set.to_owned()));
        let json = folder.join(format!("{name}.json"));
        std::fs::create_dir_all(&folder).unwrap();
        let options = RunOptions {
            set,
            json: Some(json.clone()),
            out: Some(folder.join(name)),
            ..RunOptions::default()
        };
        search(name, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let trial = &report["trials"][0];
        let (calls, users) = (&trial["calls"], &trial["details"]["registrations"]);
        let attempted = calls["attempted"].as_u64().unwrap() + users["attempted"].as_u64().unwrap();
        assert!(attempted >= 40, "{name}: {trial:#}");
        // A border on a stalled machine sheds new calls; no other failure is permitted.
        let statuses = trial["details"]["statuses"].as_array().unwrap().iter();
        let shed = statuses.filter(|status| status[0] == 503);
        let shed: u64 = shed.map(|status| status[1].as_u64().unwrap()).sum();
        let failed = calls["failed"].as_u64().unwrap() + users["failed"].as_u64().unwrap();
        assert_eq!(failed, shed, "{name}: {trial:#}");
        assert!(shed < attempted, "{name}: {trial:#}");
        assert_eq!(report["search"]["trials"][0]["value"], 40.0, "{name}");
        assert!(
            name == "call-rate-baseline" || !trial["cpu_us_per_call"].is_null(),
            "{name}"
        );
    }
}

/// The trial that is under way when the time of a search ends is its last one.
#[test]
fn search_ends_with_its_time() {
    let folder = std::env::temp_dir().join(format!("lab-search-time-{}", std::process::id()));
    let sets = [
        "search.limit_seconds=0.5",
        "search.start=40",
        "search.highest=4000",
        "search.coarse_seconds=0",
        "callers.duration_seconds=1",
        "callers.hold_seconds=0.2",
        "thresholds.response_p99_ms=",
        "settle_seconds=5",
    ];
    let json = folder.join("run.json");
    std::fs::create_dir_all(&folder).unwrap();
    let options = RunOptions {
        set: sets.map(str::to_owned).to_vec(),
        json: Some(json.clone()),
        out: Some(folder.join("out")),
        ..RunOptions::default()
    };
    search("call-rate", &options).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["search"]["trials"].as_array().unwrap().len(), 1);
    assert_eq!(report["search"]["converged"], false);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_built_in_search_has_benchmark_and_bounds() {
    for (name, wanted) in [
        ("call-rate", "Session Establishment Rate"),
        ("call-rate-anchored", "Session Establishment Rate"),
        ("call-rate-baseline", "Session Establishment Rate"),
        ("call-rate-media-bypass", "Session Establishment Rate"),
        ("call-rate-tls", "Session Establishment Rate"),
        ("call-rate-volte", "Session Establishment Rate"),
        ("re-registration-rate", "Re-registration Rate"),
        ("re-registration-rate-tls", "Re-registration Rate"),
        ("registration-rate", "Registration Rate"),
        ("registration-rate-tls", "Registration Rate"),
        ("standing-call-capacity", "sessions at a time"),
    ] {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name).unwrap();
        let file = File::parse(name, text).unwrap();
        let experiment = file.experiment();
        let keys = &experiment.levels.as_ref().unwrap().set;
        assert_eq!(benchmark(keys), wanted, "{name}");
        let search = &experiment.search;
        assert!(
            search.start < search.highest && search.step.is_some(),
            "{name}"
        );
        assert!(experiment.thresholds.failed_percent == Some(0.0), "{name}");
        assert_eq!(name.ends_with("tls"), experiment.uses_tls(), "{name}");
        // The lowest and the highest value of a search are valid levels.
        file.level_at(search.start.unwrap()).unwrap();
        file.level_at(search.highest.unwrap()).unwrap();
        let upside_down = ["search.highest=1".to_owned()];
        let error = File::parse_with(name, text, &upside_down).unwrap_err();
        assert!(error.to_string().contains("at most search.highest"));
    }
}
