//! `hornwork lab run study-c`: refusals, a simulation without any right, a killed run whose left-overs the next run
//! removes, and an interrupted run that keeps its results. The whole quick setting takes almost three minutes and is
//! run by hand.

use crate::{common, page_links};

use common::{installed, scratch};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

#[test]
fn study_refuses_options_that_do_not_apply() {
    let out = scratch("study-c-refused");
    let out = out.to_str().unwrap();
    let cases: [(&[&str], &str); 2] = [
        (
            &["study-c", "--set", "callers.rate=1", "--out", out],
            "--set",
        ),
        (&["small-network", "--quick", "--simulate"], "--quick"),
    ];
    for (arguments, word) in cases {
        let done = Command::new(PROGRAM)
            .args(["lab", "run"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
}

/// All files of a folder with their contents.
fn files(folder: &Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut all = std::collections::BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_owned();
                    all.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    all
}

/// Simulates the quick setting, without a search path for programs; the rows.
fn simulate(out: &Path, seed: &str) -> Vec<Value> {
    let done = Command::new(PROGRAM)
        .args([
            "lab",
            "run",
            "study-c",
            "--quick",
            "--simulate",
            "--seed",
            seed,
            "--out",
        ])
        .arg(out)
        .env("PATH", out)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{text}");
    let run = std::fs::read_to_string(out.join("run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    assert_eq!(
        (&run["driver"], &run["machine"]),
        (&"simulation".into(), &Value::Null)
    );
    run["study"].as_array().unwrap().clone()
}

/// Compares a study with itself in another folder: nothing differs, and the page is made again from its record.
fn compare_and_report_again(baseline: &Path, new: &Path) {
    let json = new.join("comparison.json");
    let lab = |words: &[&std::ffi::OsStr]| {
        let done = Command::new(PROGRAM)
            .arg("lab")
            .args(words)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stdout).into_owned() + &error,
        )
    };
    let words = [
        "compare".as_ref(),
        baseline.as_os_str(),
        new.as_os_str(),
        "--json".as_ref(),
        json.as_os_str(),
    ];
    let (code, text) = lab(&words);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("not worse"), "{text}");
    let compared: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let rows = compared["rows"].as_array().unwrap();
    assert!(rows.len() > 90 && rows.iter().all(|row| row["worse"] == false));
    let loss = rows
        .iter()
        .find(|row| row["what"] == "loss, Perth to Barcelona, no security")
        .unwrap();
    assert_eq!(
        (&loss["difference_percent"], &loss["significant"]),
        (&0.0.into(), &false.into())
    );
    assert!(
        loss["new"]["interval"]["high"].as_f64().unwrap() > 0.0,
        "{loss}"
    );
    let page = std::fs::read_to_string(new.join("compare.html")).unwrap();
    let checked = page_links::check(new, "compare.html").unwrap();
    assert!(checked.numbers > 100, "{checked:?}");
    std::fs::remove_file(new.join("compare.html")).unwrap();
    let (code, text) = lab(&["report".as_ref(), new.as_os_str()]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        std::fs::read_to_string(new.join("compare.html")).unwrap(),
        page
    );
    // A latency that has doubled is worse; an experiment is no study.
    let changed = baseline.with_file_name("study-c-changed");
    let _ = std::fs::remove_dir_all(&changed);
    std::fs::create_dir_all(&changed).unwrap();
    let mut run: Value =
        serde_json::from_str(&std::fs::read_to_string(new.join("run.json")).unwrap()).unwrap();
    for row in run["study"].as_array_mut().unwrap() {
        if row["what"] == "latency, 64 kbit/s, AES-256" {
            for pointer in ["/here", "/interval/low", "/interval/high"] {
                let value = row.pointer_mut(pointer).unwrap();
                *value = (value.as_f64().unwrap() * 2.0).into();
            }
        }
    }
    std::fs::write(changed.join("run.json"), run.to_string()).unwrap();
    let (code, text) = lab(&["compare".as_ref(), new.as_os_str(), changed.as_os_str()]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("worse than the baseline: C3 latency, 64 kbit/s, AES-256"),
        "{text}"
    );
    std::fs::write(changed.join("run.json"), "{\"experiment\": \"call-rate\"}").unwrap();
    let (code, text) = lab(&["compare".as_ref(), new.as_os_str(), changed.as_os_str()]);
    assert!(
        code == Some(2) && text.contains("with an experiment"),
        "{text}"
    );
}

#[test]
fn simulation_needs_no_program_and_repeats_its_bytes() {
    let (out, again, other) = (
        scratch("study-c-simulated"),
        scratch("study-c-simulated-again"),
        scratch("study-c-simulated-other"),
    );
    let rows = simulate(&out, "5");
    assert_eq!(simulate(&again, "5"), rows);
    assert!(
        files(&out) == files(&again),
        "the same seed gives other bytes"
    );
    assert_ne!(simulate(&other, "6"), rows);
    let here = |what: &str| {
        let row = rows.iter().find(|row| row["what"] == what);
        row.and_then(|row| row["here"].as_f64())
            .unwrap_or_else(|| panic!("{what}"))
    };
    // 71 bytes at 64 kbit/s and 1 ms; 151 with AES. The few RTCP reports add to the mean.
    let clear = here("latency, 64 kbit/s, no security");
    assert!((9.87..9.95).contains(&clear), "{clear}");
    let aes = here("latency, 64 kbit/s, AES-256");
    assert!((19.87..20.0).contains(&aes), "{aes}");
    // 74 bytes in SRTP, 120 and 136 in ESP, and 7 of HDLC.
    for (protection, expected) in [
        ("SRTP", 11.125),
        ("ESP AES-128-GCM", 16.875),
        ("ESP AES-128-CBC", 18.875),
    ] {
        let latency = here(&format!("latency, 64 kbit/s, {protection}"));
        assert!(
            (expected - 0.01..expected + 0.15).contains(&latency),
            "{protection}: {latency}"
        );
        for network in ["38 kbit/s", "100 Mbit/s", "Perth to Barcelona"] {
            here(&format!("loss, {network}, {protection}"));
        }
        let row = format!("loss, 64 kbit/s, {protection}");
        let row = rows.iter().find(|of| of["what"] == row).unwrap();
        assert!(row["study"].is_null(), "{row}");
    }
    assert_eq!(here("loss, 100 Mbit/s, RC2"), 0.0);
    let far = here("loss, Perth to Barcelona, no security");
    assert!((0.2..5.0).contains(&far), "{far}");
    assert_eq!(
        here("protections measured: none, firewall, firewall and VPN with each cipher"),
        8.0
    );
    let speed = rows.iter().find(|row| row["row"] == "C5").unwrap();
    assert!(speed["here"].is_null() && speed["remark"] != "", "{speed}");
    // Ranks have the interval of those that the figures allow.
    let ranks: Vec<&Value> = rows.iter().filter(|row| row["row"] == "C4").collect();
    assert_eq!(ranks.len(), 24);
    let ranking = std::fs::read_to_string(out.join("matrix/ranking.json")).unwrap();
    let ranking: Value = serde_json::from_str(&ranking).unwrap();
    let count = |name: &str| ranking[name].as_array().map(Vec::len);
    assert_eq!(
        (count("ranking"), count("among_the_study")),
        (Some(11), Some(6))
    );
    for row in ranks {
        let end = |name: &str| {
            row["interval"][name]
                .as_f64()
                .unwrap_or_else(|| panic!("{row}"))
        };
        let rank = row["here"].as_f64().unwrap();
        assert!(end("low") <= rank && rank <= end("high"), "{row}");
    }
    // Six seconds do not fill the queue of the slow line; without a VPN nothing could.
    let remark = |what: &str| {
        let row = rows.iter().find(|row| row["what"] == what).unwrap();
        assert_eq!(row["here"], 0.0, "{row}");
        row["remark"].as_str().unwrap().to_owned()
    };
    let full = remark("loss, 38 kbit/s, AES-256");
    assert!(
        full.contains("fill the queue") && full.contains("after 26 s"),
        "{full}"
    );
    let below = remark("loss, 38 kbit/s, no security");
    assert!(below.contains("below the rate of the line"), "{below}");
    compare_and_report_again(&out, &again);
    // Each number, point and bar of the page leads to its record: bars to the pooled figures of their cells.
    let checked = page_links::check(&out, "report.html").unwrap();
    assert!(checked.numbers > 300 && checked.marks > 300, "{checked:?}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("no recommendation"));
    let bar = "<a href=\"records.html#matrix/cells/g723-wan-38-srtp.json\" tabindex=\"-1\"><title>SRTP *, 38 kbit/s: 0</title><rect ";
    assert!(page.contains(bar));
    for mark in [
        "SRTP *",
        "ESP AES-128-GCM *",
        "WireGuard *",
        "* not of the study",
    ] {
        assert!(page.contains(mark), "{mark}");
    }
    assert!(!page.contains("AES-256 *") && !page.contains("firewall *"));
    for words in [
        "<strong>Simulation.</strong>",
        "AMD EPYC",
        "no program, kernel or host takes part",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // tshark finds the same in the capture of the second host.
    if installed(&["tshark"]) {
        let name = "g723-long-distance-none-0";
        let cell = std::fs::read_to_string(out.join(format!("matrix/cells/{name}.json"))).unwrap();
        let cell: Value = serde_json::from_str(&cell).unwrap();
        let done = Command::new("tshark")
            .arg("-nr")
            .arg(out.join(format!("matrix/cells/{name}-b.pcap")))
            .args(["-d", "udp.port==5004,rtp", "-q", "-z", "rtp,streams"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let line = text
            .lines()
            .find(|line| line.contains("0x0C0A0001"))
            .expect(&text);
        let lost = format!(" {} (", cell["analyser"][1]["lost"]);
        let jitter = cell["analyser"][1]["jitter_ms"].as_f64().unwrap();
        let figures = line.split_whitespace().filter_map(|word| word.parse().ok());
        let found = figures
            .into_iter()
            .any(|figure: f64| (figure - jitter).abs() < 0.001);
        assert!(line.contains(&lost) && found, "{line}\n{cell}");
    }
}

fn namespaces() -> String {
    let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
    String::from_utf8_lossy(&list.stdout).into_owned()
}

/// Starts the study and waits for the results of its first cells.
fn start(out: &Path) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child = Command::new(PROGRAM)
        .args(["lab", "run", "study-c", "--quick", "--force", "--out"])
        .arg(out)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("[1/") {
        let before = text.len();
        lines.read_line(&mut text).unwrap();
        assert!(text.len() > before, "the study ended: {text}");
    }
    (child, lines)
}

#[test]
fn killed_run_is_cleaned_up_and_interrupted_run_keeps_its_results() {
    if !installed(&["ip", "nft", "openvpn", "openssl"]) {
        return;
    }
    let probe = format!("hwtest-{}", std::process::id());
    let able = Command::new("ip").args(["netns", "add", &probe]).output();
    if !able.is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: no right to network namespaces");
        return;
    }
    let _ = Command::new("ip").args(["netns", "del", &probe]).output();

    let out = scratch("study-c-killed");
    let (mut killed, _lines) = start(&out);
    // The second batch has its hosts.
    let name = format!("hwc-{}-", killed.id());
    for _ in 0..800 {
        if namespaces().contains(&name) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    // As if it had been killed while a program read it: the process has ended.
    let key = Path::new("/run").join(format!("{name}0-a-wg.key"));
    std::fs::write(&key, "").unwrap();
    assert!(namespaces().contains(&name));

    let (mut child, mut lines) = start(&out);
    assert!(!namespaces().contains(&name), "{}", namespaces());
    assert!(!key.exists(), "{}", key.display());
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(!namespaces().contains(&format!("hwc-{id}-")));

    let run = std::fs::read_to_string(out.join("run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    assert_eq!(run["cut_short"], true);
    let own = std::fs::read_to_string(out.join("matrix/own_error.json")).unwrap();
    let own: Value = serde_json::from_str(&own).unwrap();
    let left: Vec<&str> = own["left_overs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(left.iter().any(|left| left.starts_with(&name)), "{left:?}");
    let rows = run["study"].as_array().unwrap();
    for key in [
        "row", "what", "study", "here", "interval", "samples", "differs",
    ] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "{key}");
    }
    // The cells in the clear were measured; the others are listed with the reason.
    let of = |what: &str| rows.iter().find(|row| row["what"] == what).unwrap();
    let clear = of("loss, 100 Mbit/s, no security");
    assert!(clear["samples"].as_u64().unwrap() > 300, "{clear}");
    assert!(clear["here"].as_f64().unwrap() < 5.0, "{clear}");
    let absent = of("loss, 100 Mbit/s, RC2");
    assert!(
        absent["here"].is_null() && absent["remark"] != "",
        "{absent}"
    );
    // Every number links to a file, and the page is made again from the records alone.
    for row in rows.iter().filter(|row| !row["here"].is_null()) {
        let record = row["record"].as_str().unwrap();
        assert!(out.join(record).is_file(), "{row}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    let checked = page_links::check(&out, "report.html").unwrap();
    assert!(checked.numbers > 50, "{checked:?}");
    assert!(page.contains("href=\"records.html#matrix/cells/g723-lan-100-none.json\""));
    std::fs::remove_file(out.join("report.html")).unwrap();
    let made = Command::new(PROGRAM)
        .args(["lab", "report"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    assert_eq!(
        std::fs::read_to_string(out.join("report.html")).unwrap(),
        page
    );
}
