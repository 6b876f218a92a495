//! Experiments that measure ESP itself: figures, intervals, the study beside them, the page from the records.

use lab::RunVerdict;
use lab::run::{RunOptions, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("esp")
        .join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn run_experiment(name: &str, simulate: bool, sets: &[&str]) -> (RunVerdict, Value, PathBuf) {
    let folder = folder(&format!("{name}-{simulate}"));
    let options = RunOptions {
        set: sets.iter().map(|&set| set.to_owned()).collect(),
        json: Some(folder.join("result.json")),
        out: Some(folder.join("out")),
        simulate,
        ..RunOptions::default()
    };
    let verdict = run(name, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let result = fs::read(folder.join("result.json")).unwrap();
    (
        verdict,
        serde_json::from_slice(&result).unwrap(),
        folder.join("out"),
    )
}

/// A figure of a trial: value, and number of samples of its interval.
fn figure(result: &Value, trial: usize, name: &str) -> Option<(f64, u64)> {
    let measures = result["trials"][trial]["details"]["measures"].as_array()?;
    let found = measures.iter().find(|case| case["figure"] == name)?;
    Some((
        found["value"].as_f64()?,
        found["interval"]["samples"].as_u64()?,
    ))
}

#[test]
fn packet_cost_has_every_case_and_the_study_beside_it() {
    let sets = [
        "levels.values=[10, 20]",
        "esp.rounds=12",
        "esp.packets=16",
        "esp.openssl_seconds=0",
        // The speed of this build is not under test.
        "thresholds.figure=[{ name = \"esp.wrong_packets\", most = 0.0 }]",
    ];
    let (verdict, result, out) = run_experiment("esp-packet-cost", false, &sets);
    assert_eq!(verdict, RunVerdict::Passed, "{:#}", result["bounds"]);
    assert_eq!(result["driver"], "memory");
    for trial in [0, 1] {
        for suite in [
            "aes-cbc",
            "aes-cbc-sha1",
            "aes-cbc-md5",
            "aes-gcm",
            "3des-sha1",
        ] {
            for mode in ["transport", "tunnel"] {
                for direction in ["in_us", "out_us"] {
                    let name = format!("esp.{direction}.{suite}.{mode}");
                    let (value, samples) = figure(&result, trial, &name).unwrap();
                    assert!(value > 0.0 && samples == 12, "{name}");
                }
            }
        }
    }
    let figures = result["study"]["figures"].as_array().unwrap();
    let main = figures.last().unwrap();
    assert_eq!(
        (&main["study"], &main["level"]),
        (&20.0.into(), &20.0.into())
    );
    assert!(main["ours"].is_number() && main["interval"]["low"].is_number());
    // The page is made again from the records alone.
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let pages = ["report.html", "records.html", "computed.json"];
    let again = || drop(lab::report::write(&out).unwrap());
    super::page_links::same_again(&out, &pages, again).unwrap();
    let checked = super::page_links::check(&out, "report.html").unwrap();
    assert!(checked.numbers > 100, "{checked:?}");
    for part in [
        "aes-cbc-sha1, tunnel",
        "Comparison with the study",
        "AWS-LC: not measured",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let table = fs::read_to_string(out.join("measures.csv")).unwrap();
    assert!(
        table.contains("10,esp.in_us.aes-cbc-sha1.tunnel,"),
        "{table}"
    );
    let compared = lab::report::compare(&out, &out, 5.0).unwrap();
    assert!(compared.text.contains("esp.out_us.aes-gcm.tunnel"));
    assert_eq!(compared.verdict, RunVerdict::Passed);
}

/// Slow associations fail their threshold.
#[test]
fn packet_cost_above_its_bound_fails() {
    let bound = "thresholds.figure=[{ name = \"esp.in_us.3des-sha1.tunnel\", most = 0.001 }]";
    let sets = [
        "levels.values=[20]",
        "esp.rounds=2",
        "esp.packets=4",
        "esp.openssl_seconds=0",
        bound,
    ];
    let (verdict, _, _) = run_experiment("esp-packet-cost", true, &sets);
    assert_eq!(verdict, RunVerdict::Failed);
}

#[test]
fn bandwidth_is_computed_and_counted() {
    for simulate in [true, false] {
        let sets = ["levels.values=[20, 60]", "esp.rounds=2", "esp.packets=5"];
        let (verdict, result, out) = run_experiment("esp-bandwidth", simulate, &sets);
        assert_eq!(verdict, RunVerdict::Passed, "{:#}", result["bounds"]);
        let value = |trial, name| figure(&result, trial, name).map(|(value, _)| value);
        // By hand: 272 bytes, 50 times a second; RFC 3602, 2404, 3948.
        let name = "esp.measured_kbit.aes-cbc-sha1.tunnel-udp";
        assert_eq!(value(0, name), Some(108.8), "simulate {simulate}");
        assert_eq!(value(0, "esp.measured_kbit.clear"), Some(80.0));
        assert_eq!(value(0, "esp.packets_per_second"), Some(50.0));
        // 60 ms: 592 bytes, 16.7 times a second.
        let sixty = value(1, name).unwrap();
        assert!((sixty - 592.0 * 8.0 / 60.0).abs() < 1e-9, "{sixty}");
        if let Some(native) = value(0, "esp.measured_kbit.aes-cbc-sha1.tunnel") {
            assert_eq!(native, 105.6);
        }
        let main = &result["study"]["figures"][0];
        assert_eq!(
            (&main["study"], &main["ours"]),
            (&50.0.into(), &50.0.into())
        );
        let said = result["trials"][0]["remarks"].to_string();
        assert_eq!(said.contains("in memory"), simulate, "{said}");
        assert_eq!(
            result["driver"],
            if simulate { "memory" } else { "sockets" }
        );
        assert!(out.join("measures.ndjson").is_file());
    }
}

#[test]
fn reception_with_fewer_layers_gains() {
    for (name, faster, slower) in [
        ("esp-without-udp", "without_udp_us", "with_udp_us"),
        ("esp-direct", "direct_us", "layered_us"),
    ] {
        // The bound of the gain is left out: this machine is busy with other tests.
        let sets = [
            "levels.values=[20]",
            "esp.rounds=40",
            "esp.packets=32",
            "thresholds.figure=[{ name = \"esp.wrong_packets\", most = 0 }]",
        ];
        let (verdict, result, _) = run_experiment(name, false, &sets);
        assert_eq!(verdict, RunVerdict::Passed, "{:#}", result["bounds"]);
        let us = |figure_name| {
            let name = format!("esp.{figure_name}.aes-cbc-sha1.transport");
            figure(&result, 0, &name).unwrap().0
        };
        assert!(us(faster) > 0.0 && us(slower) > 0.0);
        let main = &result["study"]["figures"][0];
        assert!(main["study_most"].as_f64() > main["study"].as_f64());
        assert!(main["ours"].is_number() && main["interval"]["low"].is_number());
    }
}

/// Calls with each kind of protection: in virtual time, and on sockets where this machine permits the link.
#[test]
fn every_protection_has_its_cost() {
    for simulate in [true, false] {
        let sets = [
            "levels.values=[0, 1, 2, 3, 12, 13, 15]",
            // The program's own gateway is in its suite.
            "protection.gateway=lab",
            "repeat=1",
            "callers.total=4",
            "callers.rate=20.0",
            "callers.hold_seconds=3.0",
            "thresholds.mos=",
            "thresholds.lost_percent=5.0",
            "thresholds.figure=[{ name = \"esp.refused_packets\", most = 0 }]",
        ];
        let (verdict, result, out) = run_experiment("cost-of-protection", simulate, &sets);
        assert_eq!(verdict, RunVerdict::Passed, "{simulate} {result:#}");
        let kbit = |trial| figure(&result, trial, "esp.call_kbit").map(|(value, _)| value);
        let trials = result["trials"].as_array().unwrap();
        let virtual_time = trials[0]["remarks"].to_string().contains("virtual time");
        assert!(virtual_time || !simulate);
        // None 80 kbit/s of RTP, SRTP 84 and more, AES-GCM in tunnel mode 102.4, AES-CBC with SHA2-256 107.2; and SIP.
        for (trial, least) in [
            (0, 80.0),
            (1, 84.0),
            (2, 84.0),
            (4, 94.4),
            (5, 102.4),
            (6, 107.2),
        ] {
            let value = kbit(trial).unwrap();
            assert!(
                (least..least * 1.3).contains(&value),
                "{simulate} {trial}: {value}"
            );
        }
        assert!(kbit(2) > kbit(1), "a DTLS handshake has bytes");
        assert_eq!(kbit(3).is_none(), virtual_time, "TLS");
        for trial in [4, 5, 6] {
            // A simulation measures no cipher: the same seed gives the same record.
            let cost = figure(&result, trial, "esp.gateway_us").map(|(value, _)| value);
            assert_eq!(cost.is_some_and(|us| us > 0.0), !virtual_time, "{cost:?}");
            assert_eq!(cost.is_none(), virtual_time, "{cost:?}");
            assert_eq!(
                figure(&result, trial, "esp.refused_packets").unwrap().0,
                0.0
            );
        }
        assert_eq!(figure(&result, 0, "esp.gateway_us"), None);
        let said = trials[5]["remarks"].to_string();
        assert!(said.contains("ESP aes-gcm, tunnel mode"), "{said}");
        let page = fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains("call kbit") && page.contains("Cost of media protection per call"));
        let table = result["protection"].as_array().unwrap();
        assert_eq!(table.len(), 7);
        assert_eq!(table[5]["protection"], "ESP aes-gcm, tunnel mode");
        let value = |row: usize, name: &str| table[row][name]["value"].as_f64();
        assert!(value(5, "esp.call_kbit") > value(0, "esp.call_kbit"));
        assert_eq!(value(0, "added_delay_ms"), Some(0.0));
        assert!(value(5, "added_delay_ms").is_some() && value(5, "mos").is_some());
        assert_eq!(value(5, "cpu_us_each").is_some(), !virtual_time);
    }
}

/// Conferences behind the tunnel decode the received packets.
#[test]
fn conferences_are_called_over_ipsec() {
    for simulate in [true, false] {
        let sets = [
            "levels.values=[2]",
            "protection.gateway=lab",
            "conference.duration_seconds=2.0",
            "conference.warm_up_seconds=1.0",
            "thresholds.lost_percent=5.0",
            "thresholds.figure=[{ name = \"esp.refused_packets\", most = 0 }]",
        ];
        let (verdict, result, _) = run_experiment("call-capacity-ipsec", simulate, &sets);
        assert_eq!(verdict, RunVerdict::Passed, "{simulate} {result:#}");
        let trial = &result["trials"][0];
        // Two rooms of four, and the room of the probe.
        assert_eq!(trial["calls"]["established"], 12, "{trial:#}");
        let said = trial["remarks"].to_string();
        let virtual_time = said.contains("virtual time");
        assert!(virtual_time || !simulate, "{said}");
        let cost = figure(&result, 0, "esp.gateway_us").map(|(value, _)| value);
        assert_eq!(cost.is_none(), virtual_time, "{cost:?}");
        assert!(said.contains("ESP aes-cbc-sha256, tunnel mode"), "{said}");
    }
}
