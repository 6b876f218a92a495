//! `hornwork lab plan`, studies and the data sheet, with the real program.

use crate::common::{self, scratch};
use crate::page_links;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn hornwork(folder: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(line.split_whitespace())
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("hornwork")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).expect("JSON")
}

const RESULTS: [&str; 4] = ["nodes", "cores", "memory_gib", "bandwidth_mbit"];

/// Value, lower and upper end of a result.
fn result(plan: &Value, name: &str) -> [f64; 3] {
    let figure = &plan[name];
    [
        &figure["value"],
        &figure["interval"]["low"],
        &figure["interval"]["high"],
    ]
    .map(|number| {
        number
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {figure}"))
    })
}

#[test]
fn plan_has_results_with_intervals_and_formulas() {
    let folder = scratch("plan");
    let line = "lab plan --subscribers 10000000 --busy-hour-calls 2 --hold 120 --protection srtp --json plan.json";
    let output = hornwork(&folder, line);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan = read(&folder.join("plan.json"));
    for name in RESULTS {
        let [value, low, high] = result(&plan, name);
        assert!(low > 0.0 && low <= value && value <= high, "{name}");
    }
    let steps = plan["steps"].as_array().expect("steps");
    let shown = text(&output.stdout);
    for step in steps {
        let formula = step["formula"].as_str().expect("a formula");
        assert!(!formula.is_empty() && shown.contains(formula), "{formula}");
    }
    // 5,556 calls/s, 666,667 erlangs.
    assert!(
        shown.contains("666,667 erlangs") && shown.contains("docs/datasheet.json"),
        "{shown}"
    );
    let twice = line
        .replace("10000000", "20000000")
        .replace("plan.json", "twice.json");
    assert!(hornwork(&folder, &twice).status.success());
    let twice = read(&folder.join("twice.json"));
    for name in RESULTS {
        assert!(result(&twice, name)[0] > result(&plan, name)[0], "{name}");
    }
}

#[test]
fn plan_simulates_the_calls_that_it_provides_for() {
    let folder = scratch("plan-simulated");
    let line = "lab plan --subscribers 100000 --busy-hour-calls 2 --hold 60 --protection none --blocking 0.02 --simulate 600 --json -";
    let output = hornwork(&folder, line);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    let check = |name: &str| plan["check"][name].as_f64().expect("a number");
    assert!(
        (check("blocking") - check("formula_blocking")).abs() < 0.015,
        "{}",
        plan["check"]
    );
    let nodes = &plan["node_check"];
    assert_eq!(nodes["holds"], true, "{nodes:#}");
    assert!(
        nodes["after"]["peak_percent"]["cores"]["value"].as_f64() > Some(1.0),
        "{nodes:#}"
    );
    // Without headroom, small nodes that are full have no room for the signalling of several calls in one second.
    let tight = "--headroom 0 --redundancy none --node-mbit 10";
    let output = hornwork(&folder, &format!("{line} {tight}"));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

/// A plan that a real run is compared with.
const REAL_PLAN: &str = "lab plan --subscribers 10000 --busy-hour-calls 2 --hold 60 --protection none --path bypass --check-calls 20";
/// Costs that the comparison has beside that of a call.
const OTHER_COSTS: [&str; 3] = [
    "registration.udp",
    "memory.call.bypass",
    "memory.registration",
];

/// Costs with wide intervals, except that of a call: its value, and the upper end of its interval, in us.
fn costs_of_a_call(value: f64, high: f64) -> String {
    let built_in =
        std::fs::read_to_string(common::root().join("crates/lab/src/planner/measured.toml"))
            .expect("costs");
    let with_cost = |costs: &str, id: &str, value: f64, high: f64| {
        let line = format!("id = \"{id}\"");
        let (before, rest) = costs.split_once(&line).expect("a cost");
        let (_, after) = rest.split_once("unit =").expect("its unit");
        format!("{before}{line}\nvalue = {value:.3}\nlow = 0.001\nhigh = {high:.3}\nunit ={after}")
    };
    let wide = OTHER_COSTS
        .iter()
        .fold(built_in, |costs, id| with_cost(&costs, id, 1_000.0, 1e7));
    with_cost(&wide, "call.bypass.udp", value, high)
}

/// A few calls through a border on loopback, with which wide costs agree.
#[test]
fn plan_is_compared_with_a_real_run() {
    let folder = scratch("plan-real");
    std::fs::write(folder.join("wide.toml"), costs_of_a_call(100.0, 1e6)).expect("file");
    let output = hornwork(
        &folder,
        &format!("{REAL_PLAN} --costs wide.toml --check-real wide --json plan.json"),
    );
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(out.contains("within the interval of the plan"), "{out}");
    let check = &read(&folder.join("plan.json"))["real_check"];
    assert_eq!(
        (&check["agrees"], &check["calls_at_a_time"]),
        (&true.into(), &20.into())
    );
    let runs = check["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3);
    for run in runs {
        let (calls, cpu) = (run["calls"].as_u64(), run["cpu_seconds"].as_f64());
        assert!(
            calls.is_some_and(|calls| calls > 50) && cpu.is_some_and(|cpu| cpu > 0.0),
            "{run}"
        );
        // The prediction is that of the costs for these calls: 100 us each.
        let predicted = run["predicted_seconds"]["value"].as_f64().expect("seconds");
        assert!(
            (predicted - calls.unwrap_or(0) as f64 * 1e-4).abs() < 1e-9,
            "{run}"
        );
    }
    assert!(check["measured_seconds"].as_f64().expect("seconds") > 0.0);
    // Registrations and memory were measured, too, each with its records.
    let parts = check["parts"].as_array().expect("parts");
    let costs: Vec<&str> = parts.iter().filter_map(|p| p["cost"].as_str()).collect();
    assert_eq!(costs, OTHER_COSTS);
    for part in parts {
        let records = folder.join(part["records"].as_str().expect("records"));
        assert!(records.join("run.json").is_file(), "{part}");
        assert!(
            part["measured"].as_f64() > Some(0.0) && part["agrees"] == true,
            "{part}"
        );
        assert!(part["count"].as_u64() >= Some(400), "{part}");
        // A call has two legs with dialogs and transactions: without the memory that the border gives back after its
        // start, it takes between 0.7 and 5 kB.
        if part["cost"] == "memory.call.bypass" {
            let bytes = part["measured"].as_f64();
            assert!(bytes > Some(700.0) && bytes < Some(5_000.0), "{part}");
        }
        // Each of three borders, in a process of its own.
        if part["unit"] == "bytes" {
            assert_eq!(part["interval"]["samples"], 3, "{part}");
            assert_eq!(part["interval"]["of"], "borders", "{part}");
        }
    }
    assert!(folder.join("wide/report.html").is_file() && folder.join("wide/run.json").is_file());
}

/// Costs that are far too low do not agree. The comparison takes more than a minute: in a test of its own it runs
/// beside the one above.
#[test]
fn real_run_above_the_interval_of_the_plan_fails() {
    let folder = scratch("plan-real-low");
    std::fs::write(folder.join("low.toml"), costs_of_a_call(0.001, 0.002)).expect("file");
    let output = hornwork(
        &folder,
        &format!("{REAL_PLAN} --costs low.toml --check-real low"),
    );
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(
        out.contains("times the upper end of the plan's interval"),
        "{out}"
    );
}

#[test]
fn options_of_a_real_run_that_do_not_fit_are_refused() {
    let folder = scratch("plan-real-refused");
    // Results of an earlier run.
    std::fs::create_dir(folder.join("earlier")).expect("folder");
    std::fs::write(folder.join("earlier/run.json"), "{}").expect("file");
    let line = "lab plan --subscribers 10000 --busy-hour-calls 2 --hold 60";
    for (more, word) in [
        (
            "--protection none --path bypass --check-real earlier",
            "another directory",
        ),
        (
            "--protection none --check-real new --check-calls 0",
            "--check-calls",
        ),
        ("--protection esp --check-real new", "--check-real"),
        ("--protection none --check-calls 5", "--check-real"),
    ] {
        let output = hornwork(&folder, &format!("{line} {more}"));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more}: {error}");
        assert!(error.contains(word), "{more}: {error}");
        assert!(!folder.join("new").exists(), "{more}");
    }
}

#[test]
fn wrong_plans_are_refused_with_their_option() {
    let folder = scratch("plan-wrong");
    std::fs::write(folder.join("broken.toml"), "format = 1\nversion = 3\n").expect("file");
    let base = "lab plan --subscribers 1000 --busy-hour-calls 2 --hold 120 --protection srtp";
    for (more, code, word) in [
        ("--headroom 100", 2, "--headroom"),
        ("--blocking nan", 2, "--blocking"),
        ("--codec mp3", 2, "--codec"),
        ("--redundancy 3n", 2, "--redundancy"),
        ("--node-cores 0", 2, "--node-cores"),
        ("--costs nothing.toml", 2, "nothing.toml"),
        ("--costs broken.toml", 2, "broken.toml"),
        ("--from nowhere", 2, "nowhere"),
        ("--json /nonexistent/plan.json", 3, "plan.json"),
    ] {
        let output = hornwork(&folder, &format!("{base} {more}"));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more}: {error}");
        assert!(error.contains(word), "{more}: {error}");
    }
    for line in [
        base.replace("srtp", "rot13"),
        base.replace("1000", "0"),
        base.replace("--hold 120", "--hold -3"),
        base.replace("--hold 120", ""),
    ] {
        assert_eq!(hornwork(&folder, &line).status.code(), Some(2), "{line}");
    }
    // CPU times of another machine are not used.
    let few = "format = 1\nversion = \"1\"\nmachine = \"another\"\n[[cost]]\nid = \"packet.srtp\"\nvalue = 9.0\nlow = 8.0\nhigh = 10.0\nunit = \"us\"\nsamples = 3\norigin = \"a run\"\n";
    std::fs::write(folder.join("few.toml"), few).expect("file");
    let missing = hornwork(&folder, &format!("{base} --costs few.toml"));
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("hornwork lab datasheet"));
}

/// Runs a study in its quick setting; its record.
fn study(folder: &Path, name: &str, more: &str) -> Value {
    let line = format!("lab run {name} --quick {more} --out out");
    let output = hornwork(folder, &line);
    let error = text(&output.stderr);
    // 1: a threshold was missed, which depends on the machine.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{line}: {error}"
    );
    let record = read(&folder.join("out/run.json"));
    let rows = record["study"].as_array().expect("rows");
    assert!(!rows.is_empty());
    for row in rows {
        for key in [
            "row", "what", "study", "here", "interval", "samples", "differs",
        ] {
            assert!(row.get(key).is_some(), "{key}: {row}");
        }
        let file = row["record"].as_str().expect("a record");
        match row["here"].is_null() {
            true => assert!(
                !row["remark"].as_str().expect("a remark").is_empty(),
                "{row}"
            ),
            false => assert!(folder.join("out").join(file).is_file(), "{row}"),
        }
    }
    record
}

/// The page is made again from the records alone, and each number of it and of the parts' reports leads to its record.
fn page_again(folder: &Path) -> String {
    let out = folder.join("out");
    let pages = ["report.html", "records.html"];
    let same = page_links::same_again(&out, &pages, || {
        let output = hornwork(folder, "lab report out");
        assert!(output.status.success(), "{}", text(&output.stderr));
    });
    same.expect("the same pages");
    let checked = page_links::check(&out, "report.html");
    let checked = checked.unwrap_or_else(|error| panic!("{}: {error}", out.display()));
    assert!(checked.numbers > 5, "{checked:?}");
    for entry in std::fs::read_dir(&out).expect("parts") {
        let part = entry.expect("part").path();
        if part.join("computed.json").exists() {
            let checked = page_links::check(&part, "report.html");
            let checked = checked.unwrap_or_else(|error| panic!("{}: {error}", part.display()));
            assert!(checked.computed > 10, "{}: {checked:?}", part.display());
        }
    }
    std::fs::read_to_string(out.join("report.html")).expect("page")
}

#[test]
fn study_runs_in_virtual_time_without_any_right() {
    let folder = scratch("study-simulated");
    let record = study(&folder, "study-u", "--simulate --seed 7");
    let rows = record["study"].as_array().expect("rows");
    let u4: Vec<&Value> = rows.iter().filter(|row| row["row"] == "U4").collect();
    assert!(
        u4.iter()
            .any(|row| row["study"] == 602.0 && row["here"].is_number()),
        "{u4:?}"
    );
    assert!(
        rows.iter()
            .any(|row| row["row"] == "U5"
                && row["remark"].as_str().is_some_and(|why| !why.is_empty()))
    );
    let page = page_again(&folder);
    for words in [
        "Distribution of response times",
        "<svg",
        "Differences of the set-up",
        "call-capacity/attempts.ndjson",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // Results of an earlier study are kept.
    let again = hornwork(&folder, "lab run study-u --quick --simulate --out out");
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--force"));
    assert_same_again(&folder, "study-u", "study-simulated-again");
    // Studies are compared by their rows.
    let compared = hornwork(&folder, "lab compare out out");
    assert_eq!(
        compared.status.code(),
        Some(0),
        "{}",
        text(&compared.stderr)
    );
    assert!(text(&compared.stdout).contains("not worse"));
}

/// Each page of the other studies, and of their parts, has a link at each number, point and bar. Study C has a test of
/// its own.
#[test]
fn pages_of_simulated_studies_lead_to_their_records() {
    for name in ["study-v", "study-s", "study-b"] {
        let folder = scratch(&format!("{name}-pages"));
        study(&folder, name, "--simulate --seed 7");
        let page = page_again(&folder);
        assert!(page.contains("<svg"), "{name}");
        // Study B takes longer, and three of its parts have processing times: `esp_experiments.rs` has the others.
        if name != "study-b" {
            assert_same_again(&folder, name, &format!("{name}-pages-again"));
        }
    }
}

/// The same seed gives the same bytes.
fn assert_same_again(folder: &Path, name: &str, again: &str) {
    let other = scratch(again);
    study(&other, name, "--simulate --seed 7");
    let different = common::different_files(&folder.join("out"), &other.join("out"));
    assert!(different.is_empty(), "{name}: {different:?}");
}

#[test]
fn study_on_sockets_names_missing_measurements() {
    let folder = scratch("study-sockets");
    // Without a search path for programs, other telephones cannot be started; this one can.
    let line = "lab run study-b --quick --out out";
    let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(line.split_whitespace())
        .current_dir(&folder)
        .env("PATH", &folder)
        .output()
        .expect("hornwork");
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        text(&output.stderr)
    );
    let record = read(&folder.join("out/run.json"));
    let part = |name: &str| {
        let parts = record["parts"].as_array().expect("parts");
        parts
            .iter()
            .find(|part| part["name"] == name)
            .expect("part")
            .clone()
    };
    assert_eq!(
        part("phone-jitter")["measured"],
        true,
        "{}",
        part("phone-jitter")
    );
    let baresip = part("phone-jitter-baresip");
    assert_eq!(baresip["measured"], false);
    assert!(
        baresip["cause"]
            .as_str()
            .expect("cause")
            .contains("baresip"),
        "{baresip}"
    );
    let page = page_again(&folder);
    assert!(page.contains("not measured") && page.contains("linphone"));
}

#[test]
fn interrupted_study_keeps_its_measurements() {
    let folder = scratch("study-interrupted");
    let errors = folder.join("errors");
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["lab", "run", "study-s", "--quick", "--out", "out"])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&errors).expect("a file"))
        .spawn()
        .expect("hornwork");
    // The first trial runs for some seconds.
    common::until_written(&errors, "trial 1 of");
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    let _ = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    let status = child.wait().expect("it ends");
    let error = text(&std::fs::read(&errors).expect("its messages"));
    assert_eq!(status.code(), Some(130), "{error}");
    let record = read(&folder.join("out/run.json"));
    assert_eq!(record["cut_short"], true);
    let rows = record["study"].as_array().expect("rows");
    assert!(rows.iter().any(|row| {
        row["row"] == "S9"
            && row["remark"]
                .as_str()
                .is_some_and(|why| why.contains("interrupted"))
    }));
    let page = page_again(&folder);
    assert!(page.contains("Interrupted"));
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let folder = scratch("study-options");
    for (line, word) in [
        ("lab run study-u --set seed=2 --out out", "--set"),
        ("lab run study-u --repeat 2 --out out", "--repeat"),
        ("lab run small-network --quick --simulate", "--quick"),
        ("lab datasheet --out out --minutes 0", "--minutes"),
        ("lab datasheet --out out --minutes nan", "--minutes"),
        // A mistyped study is answered with the studies, not with the experiments.
        ("lab run study-x --out out", "did you mean \"study-"),
        (
            "lab run study-x --quick --out out",
            "studies: study-u, study-v, study-s, study-b, study-c",
        ),
        ("lab run call-rat --out out", "did you mean \"call-rate\"?"),
    ] {
        let output = hornwork(&folder, line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(
            text(&output.stderr).contains(word),
            "{line}: {}",
            text(&output.stderr)
        );
        assert!(!folder.join("out").exists(), "{line}");
    }
    let listed = text(&hornwork(&folder, "lab list").stdout);
    for name in ["study-u", "study-v", "study-s", "study-b"] {
        assert!(listed.contains(name), "{name}");
    }
}

/// The whole data sheet takes two minutes: this one is interrupted when it has costs of calls and registrations.
#[test]
fn datasheet_has_costs_that_a_plan_takes() {
    let folder = scratch("datasheet");
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["lab", "datasheet", "--quick", "--out", "out"])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hornwork");
    // The part after them has begun when its folder exists.
    let next = folder.join("out/registrations-tls");
    // Beside other tests the parts before take minutes.
    for _ in 0..6_000 {
        if next.exists() || !matches!(child.try_wait(), Ok(None)) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let _ = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    let output = child.wait_with_output().expect("it ends");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{error}");
    let record = read(&folder.join("out/run.json"));
    assert_eq!(record["cut_short"], true);
    // Parts that are left out are named before, and by the verdict.
    let named = error
        .lines()
        .find(|line| line.contains("not in this setting: "));
    let named = named.expect("parts that are left out");
    assert!(
        named.contains("standing") && named.contains("media-kernel"),
        "{error}"
    );
    let not_run = record["not_run"].as_array().expect("parts");
    assert!(
        not_run.iter().any(|part| part["part"] == "standing"),
        "{not_run:?}"
    );
    let rows = record["study"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["study"].is_null()));
    let measured = rows
        .iter()
        .find(|row| row["figure"] == "cpu_us_each")
        .and_then(|row| row["here"].as_f64());
    assert!(measured.is_some_and(|us| us > 1.0), "{error}\n{rows:?}");
    let costs = std::fs::read_to_string(folder.join("out/costs.toml")).expect("costs");
    assert!(costs.contains("call.bypass.udp"), "{costs}");
    let page = page_again(&folder);
    assert!(page.contains("Data sheet of this machine") && page.contains("Interrupted"));
    assert!(page.contains("Not complete.") && page.contains("one sample"));
    // The page names machine and kernel.
    let kernel = record["machine"]["kernel"].as_str().expect("kernel");
    assert!(page.contains(kernel));
    let line = "lab plan --subscribers 100000 --busy-hour-calls 2 --hold 120 --protection none --path bypass --from out --json plan.json";
    let output = hornwork(&folder, line);
    let (plan, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{error}\n{costs}");
    assert!(plan.contains("calls/run.json"), "{plan}");
}
