//! Reports and comparisons of synthetic records, checked against manual calculation.

use engine::Time;
use lab::LabError;
use lab::error::RunVerdict;
use lab::experiment::Study;
use lab::figures;
use lab::raw::{FORMAT, MachineRecord, RawWriter, RunRecord, Surroundings, TrialRecord};
use lab::record::{Attempt, AttemptKind, AttemptOutcome, StreamRecord};
use std::fs;
use std::path::{Path, PathBuf};

/// A separate directory for each test.
pub(super) fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("lab-report-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

pub(super) fn call(trial: u32, number: u64, response_ms: Option<u64>) -> Attempt {
    let mut attempt = Attempt::new(
        "callers",
        AttemptKind::Call,
        number,
        Time::from_millis(number * 100),
    );
    attempt.trial = trial;
    attempt.from = format!("caller-{number}");
    attempt.to = "5555".to_owned();
    attempt.sent = Some(attempt.due + 1_000_000);
    attempt.established = response_ms.map(|ms| attempt.due + (1 + ms) * 1_000_000);
    attempt.ended = attempt.established.map(|at| at + 2_000_000_000);
    attempt.outcome = match response_ms {
        Some(_) => AttemptOutcome::Completed,
        None => AttemptOutcome::TimedOut,
    };
    attempt
}

pub(super) fn stream(trial: u32, received: u64, lost: u64, jitter: f64) -> StreamRecord {
    StreamRecord {
        trial,
        workload: "callers".to_owned(),
        side: "caller".to_owned(),
        codec: "PCMA".to_owned(),
        received,
        expected: received + lost,
        lost,
        jitter_mean_ms: Some(jitter),
        jitter_p99_ms: Some(jitter * 2.0),
        jitter_max_ms: Some(jitter * 4.0),
        mos: Some(4.0),
        ..StreamRecord::default()
    }
}

pub(super) type Trial = (Option<f64>, u32, Vec<Attempt>, Vec<StreamRecord>);

/// Writes a run as `lab run` does.
pub(super) fn write_run(dir: &Path, experiment: &str, trials: Vec<Trial>) {
    let mut writer = RawWriter::create(dir).unwrap();
    let mut records = Vec::new();
    for (number, (level, repetition, attempts, streams)) in trials.into_iter().enumerate() {
        writer.trial(&attempts, &streams).unwrap();
        let (figures, details) = figures::compute(&attempts, &streams, Some(0.001));
        records.push(TrialRecord {
            trial: number as u32,
            level,
            repetition,
            seed: 7,
            plan: String::new(),
            seconds: 3.0,
            figures,
            details,
            checks: Vec::new(),
            leaks: Some(0),
            digest: None,
            links: Vec::new(),
            verdict: RunVerdict::Passed,
            remarks: vec!["remark <i>one</i>".to_owned()],
            short: false,
            surroundings: Some(Surroundings {
                receive_buffer_errors_before: 10,
                receive_buffer_errors_after: 1_244,
                subject_cpu_seconds: Some(0.001),
                ..Surroundings::default()
            }),
        });
    }
    let run = RunRecord {
        format: FORMAT,
        experiment: experiment.to_owned(),
        title: "A <script>alert(1)</script> & \"title\"".to_owned(),
        about: String::new(),
        study: Some(Study {
            row: "U4".to_owned(),
            ran_on: "somewhere <else>".to_owned(),
            figure: Some(150.0),
            unit: "concurrent calls".to_owned(),
            ours: "capacity".to_owned(),
            ..Study::default()
        }),
        search: None,
        peak: None,
        bounds: Vec::new(),
        overrides: vec!["callers.rate=<5>".to_owned()],
        what: "5 calls & more.".to_owned(),
        level_label: "calls".to_owned(),
        seed: 1,
        driver: "sockets".to_owned(),
        subject: "made".to_owned(),
        subject_file: String::new(),
        version: "0.0".to_owned(),
        started: 0,
        subject_machine: None,
        machine: Some(MachineRecord {
            cpu: "Processor <1>".to_owned(),
            ..MachineRecord::default()
        }),
        plan: "name = \"</pre><b>\"".to_owned(),
        cut_short: false,
        trials: records,
        verdict: RunVerdict::Passed,
    };
    writer.finish(&run).unwrap();
}

pub(super) fn calls(trial: u32, responses: &[u64]) -> Vec<Attempt> {
    let numbered = responses.iter().enumerate();
    numbered
        .map(|(number, ms)| call(trial, number as u64, Some(*ms)))
        .collect()
}

/// Two repetitions of level 100, one of level 200; the content of each level is checked below.
pub(super) fn three_trials() -> Vec<Trial> {
    let mut last = calls(2, &[10, 20, 200]);
    last.push(call(2, 3, None));
    vec![
        (
            Some(100.0),
            0,
            calls(0, &[2, 4]),
            vec![stream(0, 300, 0, 1.0)],
        ),
        (
            Some(100.0),
            1,
            calls(1, &[6, 8, 12, 14]),
            vec![stream(1, 100, 100, 2.0)],
        ),
        (Some(200.0), 0, last, vec![]),
    ]
}

/// The rows of a CSV file, as name and value.
fn rows(dir: &Path, file: &str) -> Vec<Vec<(String, String)>> {
    let text = fs::read_to_string(dir.join(file)).unwrap();
    let mut lines = text.split_terminator("\r\n");
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            assert_eq!(cells.len(), names.len(), "{line}");
            let owned = |(name, cell): (&&str, &str)| ((*name).to_owned(), cell.to_owned());
            names.iter().zip(cells).map(owned).collect()
        })
        .collect()
}

fn cell<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    let found = row.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no column {name}")).1
}

#[test]
fn quantiles_are_over_records_of_all_trials_and_counts_are_means() {
    let dir = directory("levels");
    write_run(&dir, "made", three_trials());
    let page = lab::report::write(&dir).unwrap();
    assert_eq!(page, dir.join("report.html"));
    let levels = rows(&dir, "levels.csv");
    assert_eq!(levels.len(), 2);
    // 2, 4, 6, 8, 12, 14: the median is 7; the mean of the two medians 3 and 10 would be 6.5.
    let expected = [
        ("calls", "100"),
        ("repetitions", "2"),
        ("attempted", "3"),
        ("failed", "0"),
        ("response_p50_ms", "7"),
        ("response_max_ms", "14"),
        ("<10 ms", "2"),
        ("10-20 ms", "1"),
        // (300 * 1 + 100 * 2) / 400; 100 of 500.
        ("jitter_mean_ms", "1.25"),
        ("lost_percent", "20"),
    ];
    for (name, value) in expected {
        assert_eq!(cell(&levels[0], name), value, "{name}");
    }
    // 12 + 0.95 * (14 - 12), because 0.99 * 5 = 4.95; up to rounding of the product.
    let p99: f64 = cell(&levels[0], "response_p99_ms").parse().unwrap();
    assert!((p99 - 13.9).abs() < 1e-9, "{p99}");
    // Two milliseconds of CPU time over six calls.
    let cpu: f64 = cell(&levels[0], "cpu_us_each").parse().unwrap();
    assert!((cpu - 2000.0 / 6.0).abs() < 1e-9, "{cpu}");
    for (name, value) in [
        ("attempted", "4"),
        ("established", "3"),
        ("failed", "1"),
        ("dropped", "1"),
        ("response_p50_ms", "20"),
        ("<10 ms", "0"),
        ("10-20 ms", "1"),
        ("20-30 ms", "1"),
        (">=200 ms", "1"),
    ] {
        assert_eq!(cell(&levels[1], name), value, "{name}");
    }
    assert_eq!(rows(&dir, "attempts.csv").len(), 10);
    assert_eq!(rows(&dir, "streams.csv").len(), 2);
    let html = fs::read_to_string(page).unwrap();
    for part in [
        "Response-time distribution",
        "Caveats.",
        ">1234</a> datagrams",
        "RcvbufErrors",
        ">1234</a></td>",
        "prefers-color-scheme:dark",
        "Distribution of the response time",
        "Attempts sent per second",
        "Jitter per stream",
        "Outcomes of all attempts",
        "timed out",
    ] {
        assert!(html.contains(part), "{part}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn network_data_is_escaped_in_html() {
    let dir = directory("escape");
    let mut evil = call(0, 0, Some(5));
    evil.from = "a,b\"<script>\r\nx".to_owned();
    evil.why = "</svg><script>".to_owned();
    write_run(&dir, "<b>made</b>", vec![(None, 0, vec![evil], vec![])]);
    lab::report::write(&dir).unwrap();
    let html = fs::read_to_string(dir.join("report.html")).unwrap();
    for bad in ["<script", "<b>", "<i>one", "Processor <1>", "src=", "url("] {
        assert!(!html.contains(bad), "{bad}");
    }
    // Links lead to the records only.
    let links: Vec<&str> = html.split("href=\"").skip(1).collect();
    assert!(links.len() > 10);
    for link in links {
        assert!(link.starts_with("records.html"), "{}", &link[..40]);
    }
    let records = fs::read_to_string(dir.join("records.html")).unwrap();
    assert!(records.contains("&lt;/svg&gt;&lt;script&gt;"));
    for bad in ["<script", "<b>", "Processor <1>"] {
        assert!(!records.contains(bad), "{bad}");
    }
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; "));
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    assert!(html.matches("<svg").count() > 2);
    let csv = fs::read_to_string(dir.join("attempts.csv")).unwrap();
    assert!(csv.contains(",\"a,b\"\"<script>\r\nx\",5555,"), "{csv}");
    let text = lab::report::compare(&dir, &dir, lab::report::TOLERANCE_PERCENT)
        .unwrap()
        .text;
    assert!(text.contains("<b>made</b>"));
    let html = fs::read_to_string(dir.join("compare.html")).unwrap();
    assert!(!html.contains("<b>"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn same_records_give_identical_files() {
    let files = [
        "report.html",
        "records.html",
        "computed.json",
        "levels.csv",
        "attempts.csv",
        "streams.csv",
    ];
    let written = |name: &str| -> Vec<Vec<u8>> {
        let dir = directory(name);
        write_run(&dir, "made", three_trials());
        lab::report::write(&dir).unwrap();
        let bytes = files.map(|file| fs::read(dir.join(file)).unwrap()).to_vec();
        fs::remove_dir_all(dir).unwrap();
        bytes
    };
    assert!(written("same-a") == written("same-b"));
}

#[test]
fn empty_run_has_a_report() {
    let dir = directory("empty");
    write_run(&dir, "made", vec![]);
    lab::report::write(&dir).unwrap();
    assert!(rows(&dir, "levels.csv").is_empty() && rows(&dir, "attempts.csv").is_empty());
    let html = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(html.ends_with("</html>\n") && !html.contains("<svg"));
    assert!(lab::report::compare(&dir, &dir, 5.0).is_err());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn broken_records_are_reported_with_file_and_line() {
    let fails = |dir: &Path, words: &[&str]| {
        let error = lab::report::write(dir).unwrap_err();
        assert!(matches!(error, LabError::BadInput(_)));
        for word in words {
            assert!(error.to_string().contains(word), "{error}: {word}");
        }
        assert!(!dir.join("report.html").exists());
    };
    let dir = directory("broken");
    fails(&dir, &["run.json"]);
    write_run(&dir, "made", three_trials());
    let path = dir.join("attempts.ndjson");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen("\"trial\":1", "\"trial\":x", 1)).unwrap();
    fails(&dir, &["attempts.ndjson:3:"]);
    fs::write(&path, good.replacen("\"trial\":1", "\"trial\":9", 1)).unwrap();
    fails(&dir, &["attempts.ndjson:3:", "trial 9 is not in run.json"]);
    fs::write(&path, good).unwrap();
    fs::remove_file(dir.join("streams.ndjson")).unwrap();
    fails(&dir, &["streams.ndjson"]);
    fs::write(dir.join("run.json"), "{\n").unwrap();
    fails(&dir, &["run.json", "line 2"]);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn runs_are_compared_with_their_intervals() {
    let (old, new) = (directory("old"), directory("new"));
    let run = |responses: [&[u64]; 3]| -> Vec<Trial> {
        let trials = responses.into_iter().enumerate();
        trials
            .map(|(n, ms)| (Some(5.0), n as u32, calls(n as u32, ms), vec![]))
            .collect()
    };
    write_run(&old, "made", run([&[1], &[2], &[3]]));
    write_run(&new, "made", run([&[11], &[12], &[13]]));
    let compared = lab::report::compare(&old, &new, lab::report::TOLERANCE_PERCENT).unwrap();
    assert_eq!(compared.verdict, RunVerdict::Failed);
    assert_eq!(compared.json["worse"], true);
    let worse = compared.json["worse_in"].as_array().unwrap();
    let figures = ["mean", "p50", "p99", "max"];
    let figures = figures.map(|figure| format!("calls response {figure}, ms at 5"));
    assert_eq!(worse, &figures);
    let back = lab::report::compare(&new, &old, lab::report::TOLERANCE_PERCENT).unwrap();
    assert!(back.verdict == RunVerdict::Passed && back.text.contains("not worse"));
    let text = compared.text;
    let line = |name: &str| {
        let found = text.lines().find(|line| line.contains(name));
        let found = found.unwrap_or_else(|| panic!("no {name} in {text}"));
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // Standard deviation 1 over three trials: 4.303 / sqrt(3) = 2.484. Means 2 and 12: 500 % more.
    assert_eq!(
        line("calls response mean"),
        "5 calls response mean, ms 2 ± 2.484 (n=3) 12 ± 2.484 (n=3) +500.0 % yes worse"
    );
    assert_eq!(
        line("calls response p50"),
        "5 calls response p50, ms 2 [1..3] (n=3) 12 [11..13] (n=3) +500.0 % yes worse"
    );
    assert_eq!(
        line("calls established"),
        "5 calls established 1 ± 0 (n=3) 1 ± 0 (n=3) 0 % no"
    );
    assert!(new.join("compare.html").exists());

    let other = directory("other");
    write_run(&other, "another", run([&[1], &[2], &[3]]));
    let error = lab::report::compare(&old, &other, 5.0).unwrap_err();
    assert!(matches!(error, LabError::BadInput(_)));
    assert!(
        error.to_string().contains("different experiments"),
        "{error}"
    );
    for dir in [old, new, other] {
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn single_trials_are_never_taken_for_equal() {
    let trial = |ms: &[u64], failed: usize| -> Vec<Trial> {
        let mut attempts = calls(0, ms);
        let first = attempts.len() as u64;
        attempts.extend((first..).take(failed).map(|number| call(0, number, None)));
        vec![(Some(5.0), 0, attempts, vec![])]
    };
    let compared = |name: &str, old: Vec<Trial>, new: Vec<Trial>| {
        let dirs = [("old", old), ("new", new)];
        let [old, new] = dirs.map(|(side, trials)| {
            let dir = directory(&format!("single-{name}-{side}"));
            write_run(&dir, "made", trials);
            dir
        });
        let found = lab::report::compare(&old, &new, lab::report::TOLERANCE_PERCENT).unwrap();
        let page = fs::read_to_string(&found.page).unwrap();
        for dir in [old, new] {
            fs::remove_dir_all(dir).unwrap();
        }
        (found, page)
    };
    // Times of one trial have no known spread.
    let (slow, page) = compared("slow", trial(&[1; 40], 0), trial(&[100; 40], 0));
    assert_eq!(slow.verdict, RunVerdict::NotMeasured, "{}", slow.text);
    assert!(
        slow.text.contains("repeat both runs with --repeat 3"),
        "{}",
        slow.text
    );
    assert!(slow.json["worse"].is_null(), "{}", slow.json);
    assert_eq!(slow.json["not_judged"][0], "calls response mean, ms at 5");
    assert!(page.contains("not judged"), "{page}");
    // Calls are counted: half of them failed.
    let (failed, _) = compared("failed", trial(&[1; 40], 0), trial(&[1; 20], 20));
    assert_eq!(failed.verdict, RunVerdict::Failed, "{}", failed.text);
    let worse = failed.json["worse_in"].as_array().unwrap();
    assert_eq!(
        worse,
        &["calls established at 5", "calls failed at 5"],
        "{}",
        failed.text
    );
    // Equal runs have nothing to judge.
    let (equal, _) = compared("equal", trial(&[1; 40], 1), trial(&[1; 40], 1));
    assert_eq!(equal.verdict, RunVerdict::Passed, "{}", equal.text);
    assert_eq!(equal.json["worse"], false);
}
