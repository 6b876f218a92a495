//! Subjects: started, measured and stopped by the trial; subjects that end in the middle or answer something else.

use lab::RunVerdict;
use lab::run::{RunOptions, run};
use lab::subject::{Placement, RunningSubject, SubjectFile, find};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Whether the program of a subject is installed; otherwise a message is printed.
fn installed(subject: &str) -> bool {
    let there = find(subject).unwrap().missing().is_empty();
    if !there {
        eprintln!("skipped: not installed: {subject}");
    }
    there
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("subjects-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs `call-rate` at one level with these overrides.
fn call_rate(folder: &Path, sets: &[&str]) -> (RunVerdict, Value) {
    let common = [
        "levels=",
        "study=",
        "thresholds.figure=",
        "thresholds.response_p99_ms=",
        "callers.rate=40",
        "callers.duration_seconds=1",
        "callers.hold_seconds=0.3",
    ];
    let options = RunOptions {
        set: common
            .iter()
            .chain(sets)
            .map(|&set| set.to_owned())
            .collect(),
        json: Some(folder.join("figures.json")),
        out: Some(folder.join("run")),
        ..RunOptions::default()
    };
    let verdict = run("call-rate", &options).unwrap();
    let text = std::fs::read(folder.join("figures.json")).unwrap();
    (verdict, serde_json::from_slice(&text).unwrap())
}

fn record(folder: &Path) -> Value {
    let text = std::fs::read(folder.join("run/run.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn kamailio_is_started_and_measured() {
    if !installed("kamailio") {
        return;
    }
    let folder = scratch("kamailio");
    let (verdict, figures) = call_rate(&folder, &["sut.subject=kamailio"]);
    assert_eq!(verdict, RunVerdict::Passed, "{figures:#}");
    let subject = figures["subject"].as_str().unwrap();
    assert!(
        subject.starts_with("kamailio: ") && subject.contains("5."),
        "{subject}"
    );
    let trial = &figures["trials"][0];
    assert_eq!(trial["calls"]["completed"], 40, "{trial:#}");
    // It works in a child of its main process.
    let cpu = trial["surroundings"]["subject_cpu_seconds"]
        .as_f64()
        .unwrap();
    assert!(cpu > 0.0 && cpu < 5.0, "{cpu}");
    let run = record(&folder);
    let file = SubjectFile::parse("run.json", run["subject_file"].as_str().unwrap()).unwrap();
    assert_eq!(file.name, "kamailio");
}

#[test]
fn subject_that_ends_in_the_middle_fails_the_trial() {
    if !installed("sipp") {
        return;
    }
    let folder = scratch("ends");
    // SIPp ends after five calls.
    let text = find("sipp")
        .unwrap()
        .text
        .replace("\"-nostdin\"", "\"-nostdin\", \"-m\", \"5\"");
    let file = folder.join("short.toml");
    std::fs::write(&file, text).unwrap();
    let set = format!("sut.subject={:?}", file.display().to_string());
    let (verdict, figures) = call_rate(&folder, &[&set, "callers.duration_seconds=60"]);
    assert_eq!(verdict, RunVerdict::Failed, "{figures:#}");
    let trial = &figures["trials"][0];
    let remarks = trial["remarks"].to_string();
    assert!(
        remarks.contains("subject sipp: sipp has ended by itself (exit status: 0)"),
        "{remarks}"
    );
    let run = record(&folder);
    let trial = &run["trials"][0];
    let checks = trial["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "subject_ended"));
    // It is not waited for the planned 60 s.
    assert!(trial["seconds"].as_f64().unwrap() < 40.0, "{trial:#}");
}

#[test]
fn search_keeps_its_trials_if_the_next_one_cannot_run() {
    if !installed("sipp") {
        return;
    }
    let folder = scratch("once");
    // It answers the calls of the first trial, and does not start for the second one.
    let mark = folder.join("started");
    let text = format!(
        "name = \"once\"\ntitle = \"t\"\ntakes = [\"calls\"]\nmedia = \"answered\"\n[[process]]\nname = \"once\"\nprogram = \"sh\"\n\
         arguments = [\"-c\", '''if [ -e \"{mark}\" ]; then exit 3; fi; : > \"{mark}\"; \
         exec sipp -sn uas -i @listen_ip@ -p @listen_port@ -mi @listen_ip@ -mp @media_first@ -nostdin''']\nprobe = \"port\"\n",
        mark = mark.display()
    );
    let file = folder.join("once.toml");
    std::fs::write(&file, text).unwrap();
    let subject = format!("sut.subject={:?}", file.display().to_string());
    let sets = [
        subject.as_str(),
        "study=",
        "thresholds.figure=",
        "thresholds.response_p99_ms=",
        "callers.duration_seconds=1",
        "callers.hold_seconds=0.3",
        "search.start=20",
        "search.step=10",
        "search.highest=100",
    ];
    let options = RunOptions {
        set: sets.iter().map(|&set| set.to_owned()).collect(),
        out: Some(folder.join("run")),
        ..RunOptions::default()
    };
    let error = lab::search::search("call-rate", &options).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("once has ended by itself (exit status: 3)")
            && text.contains("the trial before it is in"),
        "{text}"
    );
    let run = record(&folder);
    assert_eq!(run["trials"].as_array().map(Vec::len), Some(1), "{run:#}");
    assert_eq!(run["cut_short"], true);
    let search = &run["search"];
    assert_eq!(search["converged"], false);
    assert_eq!(search["trials"].as_array().map(Vec::len), Some(1));
    let page = lab::report::write(&folder.join("run")).unwrap();
    assert!(page.is_file());
}

#[test]
fn subject_that_answers_nonsense_is_no_sip_entity() {
    let python = Path::new("/usr/bin/python3");
    if !python.is_file() {
        eprintln!("skipped: not installed: python3");
        return;
    }
    let script = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((\\\"@listen_ip@\\\", @listen_port@))\n\
        while True: s.sendto(b\\\"220 ready\\\", s.recvfrom(4096)[1])";
    let text = format!(
        "name = \"nonsense\"\ntitle = \"t\"\ntakes = [\"calls\"]\nmedia = \"answered\"\n[[process]]\nname = \"p\"\nprogram = \"{}\"\n\
         arguments = [\"-c\", \"\"\"\n{script}\n\"\"\"]\nprobe = \"sip\"\nstart_s = 2\n",
        python.display()
    );
    let file = SubjectFile::parse("nonsense.toml", &text).unwrap();
    let placement = Placement {
        ip: [127, 0, 0, 1].into(),
        called: None,
        calls: 1,
    };
    let error = RunningSubject::start(&file, placement).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("subject nonsense: p: no answer to OPTIONS")
            && text.contains("\"220 ready\""),
        "{text}"
    );
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn impossible_combinations_are_refused() {
    for (sets, expected) in [
        (
            vec!["sut.subject=kamailio", "sut.address=127.0.0.1:5060"],
            "exclude each other",
        ),
        (
            vec!["sut.subject=kamailio", "sut.cpu_percent=50"],
            "sut.cpu_percent does not apply",
        ),
        (
            vec!["sut.subject=kamailio", "callers.transport=tls"],
            "over UDP or TCP",
        ),
        (
            vec!["sut.subject=kamailio@10.0.0.1:7060"],
            "sut.agent_token_file",
        ),
        (vec!["sut.subject=kamailio@host"], "NAME@ADDRESS:PORT"),
        (vec!["sut.subject=absent"], "no subject \"absent\""),
    ] {
        let options = RunOptions {
            set: sets.iter().map(|&set| set.to_owned()).collect(),
            out: Some(scratch("refused").join("run")),
            ..RunOptions::default()
        };
        let error = run("call-rate", &options).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.exit_code(), 2, "{error}");
    }
    let simulated = RunOptions {
        set: vec!["sut.subject=sipp".to_owned()],
        simulate: true,
        ..RunOptions::default()
    };
    let error = run("call-rate", &simulated).unwrap_err().to_string();
    assert!(error.contains("cannot be simulated"), "{error}");
    let registrar = RunOptions {
        set: vec![
            "sut.subject=sipp".to_owned(),
            "registrations.registrar=border".to_owned(),
        ],
        ..RunOptions::default()
    };
    let error = run("registration-rate", &registrar)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("subject sipp takes no registrations"),
        "{error}"
    );
}
