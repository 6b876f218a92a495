use super::*;

fn scratch(name: &str) -> PathBuf {
    let unique = format!("hornwork-study-{name}-{}", std::process::id());
    let dir = std::env::temp_dir().join(unique);
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn row(code: &str, here: Option<f64>) -> StudyRow {
    StudyRow {
        row: code.to_owned(),
        what: "loss at 38 kbit/s".to_owned(),
        study: Some(Reading::Number(4.0)),
        here,
        samples: 3,
        unit: "%".to_owned(),
        ..StudyRow::default()
    }
}

fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    assert!(context.quick && context.simulate && context.dir.is_dir());
    Ok(OwnPart {
        rows: vec![row("C11", Some(1.0)), row("C3", Some(5.0))],
        plots: vec![PlotRecord::Bars {
            title: "Loss by cipher".to_owned(),
            x: "cipher".to_owned(),
            y: "loss, %".to_owned(),
            categories: vec!["none".to_owned(), "DES".to_owned()],
            bars: vec![BarRecord {
                name: "here".to_owned(),
                values: vec![Some(1.0), None],
                spread: vec![Some((0.5, 2.0))],
                ..BarRecord::default()
            }],
            stacked: false,
        }],
        tables: vec![TableRecord {
            title: "Ranking <table>".to_owned(),
            note: "a note".to_owned(),
            head: vec!["cipher".to_owned(), "loss".to_owned()],
            rows: vec![vec!["AES".to_owned(), "1".to_owned()]],
            links: vec![vec![String::new(), "own/aes.json".to_owned()]],
        }],
        verdict: RunVerdict::Failed,
        remarks: vec!["one cipher is missing".to_owned()],
        notes: vec!["lines are emulated".to_owned()],
        not_judged: None,
    })
}

fn refuse(_: &PartContext<'_>) -> Result<OwnPart, LabError> {
    Err(LabError::cannot_run(
        "no right for namespaces",
        "run it as root",
    ))
}

fn plan_of(parts: Vec<Part>) -> StudyPlan {
    StudyPlan {
        name: "study-u",
        title: "A study",
        source: "a paper",
        about: "about",
        parts,
        absent: vec![AbsentRow {
            row: "C2",
            what: "long distance",
            study: Reading::Words("six times the limit".to_owned()),
            unit: "ms",
            cause: "not available".to_owned(),
        }],
        plots: Vec::new(),
        compares: true,
        publish_more: None,
    }
}

fn quick(dir: &Path) -> RunOptions {
    RunOptions {
        out: Some(dir.to_owned()),
        simulate: true,
        ..RunOptions::default()
    }
}

#[test]
fn own_parts_are_reported_and_failures_have_their_cause() {
    let dir = scratch("own");
    let plan = plan_of(vec![
        Part::own("matrix", "C1", measure, 1.0),
        Part::own("namespaces", "C4", refuse, 1.0),
        Part::of("esp-nothing", "C5", Action::Run),
    ]);
    let mut record = new_record(&plan, &quick(&dir), &Setting::quick()).unwrap();
    for part in &plan.parts {
        std::fs::create_dir_all(&dir).unwrap();
        record.parts.push(run_part(part, &dir, &quick(&dir), true));
    }
    record.write(&dir).unwrap();
    let published = publish(&dir, &plan, &mut record).unwrap();
    let codes: Vec<&str> = published
        .record
        .study
        .iter()
        .map(|row| row.row.as_str())
        .collect();
    assert_eq!(codes, ["C2", "C3", "C4", "C5", "C11"]);
    assert_eq!(published.record.verdict, RunVerdict::Failed);
    let of = |code: &str| {
        published
            .record
            .study
            .iter()
            .find(|row| row.row == code)
            .unwrap()
    };
    assert!(
        of("C4")
            .remark
            .contains("namespaces; remedy: run it as root"),
        "{:?}",
        of("C4")
    );
    assert!(
        of("C5")
            .remark
            .contains("esp-nothing is not available in this build")
    );
    assert_eq!(of("C3").record, "matrix/part.json");
    let html = std::fs::read_to_string(&published.page).unwrap();
    for text in [
        "Ranking &lt;table&gt;",
        "Loss by cipher",
        "matrix/part.json",
        "a note",
        "one cipher is missing",
        "<li>lines are emulated</li>",
        "<td><a href=\"own/aes.json\">1</a></td>",
        "<td data-name=\"here\"><a href=\"records.html#run.json/study/1/here\">5</a></td>",
    ] {
        assert!(html.contains(text), "{text}");
    }
    // The same page again from the records.
    let mut again = SuiteRecord::read(&dir).unwrap();
    publish(&dir, &plan, &mut again).unwrap();
    assert_eq!(std::fs::read_to_string(&published.page).unwrap(), html);
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn nothing_that_runs_is_an_error_with_every_cause() {
    let dir = scratch("nothing");
    let plan = plan_of(vec![Part::own("namespaces", "C4", refuse, 1.0)]);
    let error = run_plan(&plan, &quick(&dir), &Setting::quick()).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(
        error.to_string().contains("no right for namespaces"),
        "{error}"
    );
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn options_of_experiments_are_refused() {
    let options = RunOptions {
        set: vec!["seed=2".to_owned()],
        ..RunOptions::default()
    };
    assert_eq!(run("study-u", &options, true).unwrap_err().exit_code(), 2);
    // Each part would refuse it, and nothing would be measured.
    let seed = RunOptions {
        seed: Some(u64::MAX),
        simulate: true,
        ..RunOptions::default()
    };
    let error = run("study-u", &seed, true).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error
            .to_string()
            .contains("--seed 18446744073709551615: expected at most"),
        "{error}"
    );
    assert!(is_study("study-s") && !is_study("call-rate"));
    assert!(
        list()
            .iter()
            .all(|(_, title, seconds)| !title.is_empty() && *seconds > 60.0)
    );
}

#[test]
fn parts_without_time_are_announced_and_named_by_the_verdict() {
    let setting = |minutes: f64| Setting {
        name: String::new(),
        quick: false,
        limit_s: Some(minutes * 60.0),
    };
    let plan = crate::datasheet::plan(1.0);
    let text = announced(&plan, &setting(1.0), false).unwrap();
    let (_, late) = text.split_once("probably not started: ").unwrap();
    assert!(
        late.contains("standing") && !late.contains("calls,"),
        "{text}"
    );
    assert_eq!(announced(&plan, &setting(600.0), false), None);
    let quick = announced(&plan, &Setting::quick(), true).unwrap();
    for part in ["media-kernel", "standing", "calls-cost"] {
        assert!(quick.contains(part), "{quick}");
    }
    assert!(!quick.contains("registrations,"), "{quick}");

    let part = |name: &str, measured: bool, cause: Option<&str>| PartRecord {
        name: name.to_owned(),
        measured,
        cause: cause.map(str::to_owned),
        ..PartRecord::default()
    };
    let mut record = SuiteRecord {
        parts: vec![
            part("a", true, None),
            part("b", false, Some(LATE)),
            part("c", false, Some(LATE)),
        ],
        verdict: RunVerdict::Passed,
        ..SuiteRecord::default()
    };
    let own = |name: &str| Part::own(name, "C1", measure, 1.0);
    let plan = plan_of(["a", "b", "c", "d"].map(own).to_vec());
    record.not_run = not_run(&plan, &record);
    let text = table(&record);
    let words = "verdict: passed; 3 of 4 parts not run: b, c (not started: the time of this setting was used up); d (interrupted before)";
    assert!(text.contains(words), "{text}");
    record.not_run.clear();
    assert!(table(&record).ends_with("verdict: passed\n"));
    // A part that ran, and whose threshold could not be judged, is none that passed.
    record.parts[0].verdict = RunVerdict::NotMeasured;
    let cause = "the generator could not keep up";
    let trials = NotJudged::of("trial", 6, vec![cause.to_owned(); 2]).unwrap();
    let own = Measured::Own(OwnPart {
        not_judged: Some(trials),
        ..OwnPart::default()
    });
    record.not_judged = not_judged(&record.parts[0], &own).into_iter().collect();
    let words = "verdict: passed; 1 of 1 part not judged: a\nnot judged: 2 of 6 trials of a: the generator could not keep up\n\
         not judged in all: 2 points; the verdict and the exit code 0 are without them\n";
    assert!(table(&record).ends_with(words), "{}", table(&record));
    // Figures without a value, the most frequent reason first.
    let missing = |remark: &str| StudyRow {
        remark: remark.to_owned(),
        ..row("C1", None)
    };
    let rows = ["", "interrupted", "interrupted"].map(missing);
    record.study = rows.into_iter().chain([row("C2", Some(1.0))]).collect();
    let words = "without a figure here: 3 of 4 figures: interrupted (2); not measured (1)\nnot judged in all: 2 points; ";
    assert!(table(&record).contains(words), "{}", table(&record));
    // A part that names no point is one itself.
    let whole = not_judged(&record.parts[0], &Measured::Own(OwnPart::default())).unwrap();
    assert_eq!(whole.text(), "a: no figure with a threshold was measured");
    assert_eq!(
        not_judged(&record.parts[1], &Measured::Own(OwnPart::default())),
        None
    );
}

#[test]
fn one_sample_has_no_interval() {
    let of = |interval: Option<crate::statistics::Interval>, samples| StudyRow {
        here: Some(5.0),
        interval,
        samples,
        ..StudyRow::default()
    };
    let none = |samples| Some(crate::statistics::Interval::none(samples, "runs"));
    assert_eq!(of(none(1), 1).interval_text(), "one sample");
    assert_eq!(of(None, 1).interval_text(), "one sample");
    assert_eq!(of(none(2), 2).interval_text(), "none");
    let ends = crate::statistics::Interval::of_mean(&[1.0, 2.0, 3.0], "runs");
    assert_eq!(of(Some(ends.clone()), 3).interval_text(), ends.ends());
}

#[test]
fn searches_get_the_time_that_earlier_parts_left() {
    let mut part = Part::of("call-rate", "X1", Action::Search);
    part.full = vec![
        "search.start=400".to_owned(),
        "search.limit_seconds=40".to_owned(),
    ];
    let limit = |part: &Part| part.full[1].clone();
    let of = |spare: Option<f64>, quick: bool| limit(&extended(&part, spare, quick));
    // The reserve of 10 s stays, and half of the limit is the most.
    assert_eq!(of(Some(22.4), false), "search.limit_seconds=52");
    assert_eq!(of(Some(500.0), false), "search.limit_seconds=60");
    for unchanged in [of(None, false), of(Some(8.0), false), of(Some(500.0), true)] {
        assert_eq!(unchanged, "search.limit_seconds=40");
    }
    part.action = Action::Run;
    assert_eq!(
        limit(&extended(&part, Some(500.0), false)),
        "search.limit_seconds=40"
    );
}

#[test]
fn verdict_of_the_result_of_a_search_is_that_of_most_trials() {
    let step = |value, good| crate::search::SearchTrial {
        value,
        good,
        ..crate::search::SearchTrial::default()
    };
    let level = |value: f64, verdict| crate::report::LevelSummary {
        level: Some(value),
        verdict,
        ..crate::report::LevelSummary::default()
    };
    let run = RunRecord {
        search: Some(crate::search::SearchRecord {
            trials: [true, false, true].map(|good| step(900.0, good)).to_vec(),
            result: Some(900.0),
            ..crate::search::SearchRecord::default()
        }),
        ..RunRecord::default()
    };
    let words = |value, verdict| page::level_verdict(&run, &level(value, verdict));
    let at_result = words(900.0, RunVerdict::Failed);
    assert_eq!(at_result, "passed: 1 of 3 trials there failed");
    assert_eq!(words(950.0, RunVerdict::Failed), "failed");
    let of_levels = RunRecord::default();
    let one = level(900.0, RunVerdict::NotMeasured);
    assert_eq!(page::level_verdict(&of_levels, &one), "not measured");
}

#[test]
fn search_without_result_misses_no_threshold_of_a_data_sheet() {
    let mut run = RunRecord {
        search: Some(crate::search::SearchRecord::default()),
        trials: vec![crate::raw::TrialRecord::default()],
        verdict: RunVerdict::Failed,
        ..RunRecord::default()
    };
    let sheet = crate::datasheet::plan(20.0);
    let study = plans::find("study-s").unwrap();
    assert_eq!(verdict_of(&sheet, &run), RunVerdict::NotMeasured);
    assert_eq!(verdict_of(&study, &run), RunVerdict::Failed);
    // The end of the system under test is a failure everywhere.
    run.trials[0].checks = vec![ThresholdCheck::subject_ended()];
    assert_eq!(verdict_of(&sheet, &run), RunVerdict::Failed);
}
