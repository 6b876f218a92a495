//! Every number of a report is linked to its record, and the report is made again from the records alone.

use super::page_links::{check, same_again};
use super::report::{Trial, calls, directory, stream, three_trials, write_run};
use lab::record::StreamRecord;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const PAGES: [&str; 3] = ["report.html", "records.html", "computed.json"];

/// Changes `run.json`.
fn change(dir: &Path, change: impl FnOnce(&mut Value)) {
    let path = dir.join("run.json");
    let mut run: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut run);
    fs::write(&path, serde_json::to_vec_pretty(&run).unwrap()).unwrap();
}

/// A run with thresholds, bounds, a study, a refusal, and samples of a figure of its own.
fn full_run(dir: &Path) {
    // The order of the trials is not that of the levels.
    let mut trials = three_trials();
    trials.swap(1, 2);
    for (number, trial) in trials.iter_mut().enumerate() {
        trial
            .2
            .iter_mut()
            .for_each(|attempt| attempt.trial = number as u32);
        for stream in &mut trial.3 {
            stream.trial = number as u32;
            stream.relay_p50_ms = Some(0.1875);
            stream.relay_p99_ms = Some(0.5);
        }
    }
    write_run(dir, "made", trials);
    let samples = |trial: u32, values: [f64; 2]| json!({ "trial": trial, "figure": "esp.in_us.aes-gcm.tunnel", "of": "rounds", "samples": values });
    let lines = [
        samples(0, [1.5, 2.5]),
        samples(1, [3.0, 4.0]),
        samples(2, [5.0, 6.25]),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(dir.join("measures.ndjson"), lines).unwrap();
    change(dir, |run| {
        for (number, trial) in run["trials"].as_array_mut().unwrap().iter_mut().enumerate() {
            trial["checks"] = json!([
                { "name": "mos", "limit": 3.5, "measured": 4.0 - number as f64 / 4.0, "holds": true },
                { "name": "leaks", "limit": 0.0, "measured": null, "holds": null },
            ]);
            trial["details"]["host_cpu_percent"] = json!(31.5 + number as f64);
            trial["details"]["relay_ms"] = json!([0.1875, 0.5, 12.75]);
            trial["surroundings"]["noise"]["p99_us"] = json!(1234.5);
            trial["surroundings"]["subject_grew_bytes"] = json!(40960);
        }
        run["bounds"] = json!([
            { "name": "established", "least": 1.0 },
            { "name": "capacity", "least": 100.0 },
            { "name": "response_p50_ms", "at": 200.0, "percent_of": 100.0, "most": 500.0 },
        ]);
        run["study"]["level"] =
            json!([{ "at": 100.0, "figures": { "<10 ms": 602.0, "10-20 ms": 298.0, "mos": 4.1 } }]);
        run["study"]["figure_most"] = json!(170.0);
    });
}

#[test]
fn every_number_of_a_run_is_linked_to_its_record() {
    let dir = directory("links");
    full_run(&dir);
    lab::report::write(&dir).unwrap();
    let checked = check(&dir, "report.html").unwrap();
    assert!(
        checked.numbers > 150 && checked.computed > 120,
        "{checked:?}"
    );
    let html = fs::read_to_string(dir.join("report.html")).unwrap();
    for table in [
        "Thresholds",
        "Main figures",
        "Comparison with the study",
        "Outcomes of each trial",
        "in us",
        "Media plane",
    ] {
        assert!(html.contains(table), "{table}");
    }
    // Points and bars have the records of their numbers.
    for mark in [
        "<a href=\"records.html#computed.json/levels/0/figures/response_p50_ms/value\" tabindex=\"-1\"><title>median: 100, 7</title><circle ",
        "<a href=\"records.html#computed.json/levels/0/figures/%3C10%20ms/value\" tabindex=\"-1\"><title>100, &lt;10 ms: 2</title><rect ",
        "<a href=\"records.html#attempts.ndjson/",
        "<a href=\"records.html#computed.json/levels/1\" tabindex=\"-1\"><title>",
    ] {
        assert!(html.contains(mark), "{mark}");
    }
    assert!(checked.marks > 30, "{checked:?}");
    same_again(&dir, &PAGES, || drop(lab::report::write(&dir).unwrap())).unwrap();
    // Every record of a quantile is named: the two attempts around the median of level 100.
    let computed: Value =
        serde_json::from_slice(&fs::read(dir.join("computed.json")).unwrap()).unwrap();
    let median = &computed["levels"][0]["figures"]["response_p50_ms"];
    assert_eq!(median["value"], 7.0);
    // Trial 2 of the file has 6, 8, 12, 14 ms, after two and four attempts of the others.
    assert_eq!(
        median["from"],
        json!([
            "attempts.ndjson:7",
            "attempts.ndjson:8",
            "attempts.ndjson:1-2",
            "attempts.ndjson:7-10"
        ])
    );
    assert_eq!(
        computed["levels"][0]["from"],
        json!(["run.json#/trials/0", "run.json#/trials/2"])
    );
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn faults_of_a_page_are_found() {
    let dir = directory("link-faults");
    full_run(&dir);
    lab::report::write(&dir).unwrap();
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    let fault = |file: &str, from: &str, to: &str| {
        let path = dir.join(file);
        let good = fs::read_to_string(&path).unwrap();
        assert!(good.contains(from), "{from}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let found = check(&dir, "report.html");
        fs::write(&path, good).unwrap();
        found.expect_err(to)
    };
    // Another number than the record's, a number without a link, a link without a target, a value that does not follow.
    let p50 = "href=\"records.html#computed.json/levels/0/figures/response_p50_ms/value\">7</a>";
    assert!(page.contains(p50));
    let found = fault("report.html", p50, &p50.replace(">7<", ">8<"));
    assert!(found.contains("is not in 7"), "{found}");
    let found = fault(
        "report.html",
        "<td><a href=\"records.html#computed.json/levels/0/figures/attempted/value\">3</a>",
        "<td>3",
    );
    assert!(found.contains("without a link"), "{found}");
    let found = fault(
        "report.html",
        "<p class=\"lead\">",
        "<p class=\"lead\">about 7 calls ",
    );
    assert!(found.contains("\"7\" is not in a link"), "{found}");
    let found = fault(
        "report.html",
        "<svg ",
        "<svg role=\"img\" aria-label=\"bare\"></svg><svg ",
    );
    assert!(found.contains("plot \"bare\": 0 links"), "{found}");
    let found = fault("records.html", "id=\"run.json/trials/0/seconds\"", "");
    assert!(found.contains("0 targets"), "{found}");
    let found = fault("computed.json", "\"value\": 3.0", "\"value\": 3.4");
    assert!(found.contains("mean of"), "{found}");
    let found = fault("computed.json", "\"value\": 7.0", "\"value\": 9.0");
    assert!(found.contains("is not in 9"), "{found}");
    check(&dir, "report.html").unwrap();
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_protection_table_is_linked_to_its_records() {
    let dir = directory("protection-links");
    let trial = |number: u32, kind: f64| -> Trial {
        let stream = StreamRecord {
            relay_p50_ms: Some(0.25 + f64::from(number) / 16.0),
            relay_p99_ms: Some(0.5),
            ..stream(number, 400, 3, 0.5)
        };
        (Some(kind), number, calls(number, &[3, 5, 9]), vec![stream])
    };
    write_run(
        &dir,
        "protection",
        vec![trial(0, 0.0), trial(1, 0.0), trial(2, 13.0), trial(3, 13.0)],
    );
    change(&dir, |run| {
        run["level_label"] = json!("protection");
        for (number, trial) in run["trials"].as_array_mut().unwrap().iter_mut().enumerate() {
            trial["details"]["relay_ms"] = json!([0.25 + number as f64 / 16.0, 0.5, 0.75]);
        }
    });
    lab::report::write(&dir).unwrap();
    let html = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(html.contains("Cost of media protection per call"));
    assert!(html.contains("records.html#computed.json/protection/1/added_delay_ms"));
    assert!(check(&dir, "report.html").unwrap().numbers > 50);
    same_again(&dir, &PAGES, || drop(lab::report::write(&dir).unwrap())).unwrap();
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_comparison_is_made_again_from_its_record_alone() {
    let (old, new) = (directory("links-old"), directory("links-new"));
    let run = |responses: [&[u64]; 3]| -> Vec<Trial> {
        let trials = responses.into_iter().zip(0..);
        trials
            .map(|(ms, n)| {
                (
                    Some(5.0),
                    n,
                    calls(n, ms),
                    vec![stream(n, 100, u64::from(n), 1.0)],
                )
            })
            .collect()
    };
    write_run(&old, "made", run([&[1, 9], &[2], &[3]]));
    write_run(&new, "made", run([&[11], &[12], &[13, 7]]));
    lab::report::write(&new).unwrap();
    lab::report::compare(&old, &new, 5.0).unwrap();
    let checked = check(&new, "compare.html").unwrap();
    assert!(checked.numbers > 60, "{checked:?}");
    let pages = [
        "compare.html",
        "compare-records.html",
        "report.html",
        "records.html",
    ];
    same_again(&new, &pages, || drop(lab::report::write(&new).unwrap())).unwrap();
    // Without the baseline the page is the same; its records are the values in the comparison's own record.
    fs::remove_dir_all(&old).unwrap();
    same_again(&new, &["compare.html"], || {
        drop(lab::report::write(&new).unwrap())
    })
    .unwrap();
    fs::remove_dir_all(new).unwrap();
}
