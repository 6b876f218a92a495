//! First use of the test lab.

use crate::common::{border, example, free_port, media_ports, root, scratch, until_written};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn hornwork(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn example_in_the_help_runs() {
    let help = text(&hornwork(&["lab", "run", "--help"]).stdout);
    let (_, rest) = help
        .split_once("--set callers.")
        .expect("an example of --set");
    let set = format!(
        "callers.{}",
        rest.split_whitespace().next().expect("a value")
    );
    let output = hornwork(&[
        "lab",
        "run",
        "small-network",
        "--simulate",
        "--set",
        &set,
        "--repeat",
        "1",
    ]);
    let error = text(&output.stderr);
    // The thresholds are those of the experiment; the test checks that the value is applied.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{set}: {error}"
    );
}

#[test]
fn closed_pipe_ends_a_printing_command_silently() {
    for arguments in [
        &["schema"][..],
        &["schema", "--markdown"],
        &["lab", "list"],
        &["lab", "show", "small-network"],
        &["check", "examples/pbx.toml"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(arguments)
            .current_dir(root())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let mut error = String::new();
        let mut stderr = child.stderr.take().expect("standard error");
        stderr.read_to_string(&mut error).expect("text");
        let status = child.wait().expect("it ends");
        assert!(!error.contains("panicked"), "{arguments:?}: {error}");
        assert_ne!(status.code(), Some(101), "{arguments:?}");
    }
}

/// It took 31 s, and the reason was that of a peer that does not answer.
#[test]
fn scenario_against_a_closed_port_ends_with_the_icmp_error() {
    let port = free_port();
    let target = format!("127.0.0.1:{port}");
    let ours = [
        "lab",
        "run",
        "scenarios/sipp/uac.xml",
        &target,
        "--calls",
        "100",
    ];
    let theirs = [
        "lab",
        "run",
        "-m",
        "100",
        "-sf",
        "scenarios/sipp/uac.xml",
        &target,
    ];
    for words in [&ours[..], &theirs] {
        let begun = std::time::Instant::now();
        let output = hornwork(words);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{words:?}: {error}");
        let wanted = format!("no answer from {target}: ICMP port unreachable");
        assert!(error.contains(&wanted), "{words:?}: {error}");
        assert!(
            error.contains("remedy: start the system under test"),
            "{error}"
        );
        // Half a second on an idle machine.
        assert!(begun.elapsed().as_secs() < 15, "{:?}", begun.elapsed());
    }
}

#[test]
fn earlier_results_are_kept_unless_forced() {
    let folder = scratch("first-contact-out");
    let out = folder.join("run");
    let out = out.to_str().expect("UTF-8");
    let run = "run small-network --simulate --repeat 1 --out";
    let search = "search call-rate --simulate --set callers.duration_seconds=1 --set search.highest=800 --out";
    // The search replaces the results of the run.
    for (command, forced) in [(run, false), (run, true), (search, true)] {
        let with = |more: &[&str]| {
            let mut arguments = vec!["lab"];
            arguments.extend(command.split(' '));
            arguments.push(out);
            arguments.extend(more);
            hornwork(&arguments)
        };
        if forced {
            let refused = with(&[]);
            assert_eq!(refused.status.code(), Some(2), "{command}");
            let error = text(&refused.stderr);
            assert!(
                error.contains("--force") && error.contains("run-2"),
                "{error}"
            );
        }
        let more: &[&str] = if forced { &["--force"] } else { &[] };
        let output = with(more);
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{command}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn list_shows_durations() {
    let list = text(&hornwork(&["lab", "list"]).stdout);
    let is_heading = |line: &&str| line.is_empty() || line.starts_with("Studies ");
    for line in list.lines().filter(|line| !is_heading(line)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(
            words.get(1).is_some_and(|word| word.parse::<u64>().is_ok())
                && matches!(words.get(2), Some(&("s" | "min" | "h"))),
            "{line}"
        );
    }
}

/// Runs a command of the test lab with Ctrl-C in its first trial; returns its results and standard error.
fn interrupted(command: &[&str], name: &str) -> (PathBuf, String) {
    let folder = scratch(&format!("first-contact-{name}"));
    let (out, errors) = (folder.join("run"), folder.join("errors"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .arg("lab")
        .args(command)
        .arg("--out")
        .arg(&out)
        .current_dir(root())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&errors).expect("a file"))
        .spawn()
        .expect("the program starts");
    // Beside other tests, the test lab takes long to begin.
    until_written(&errors, "trial 1 of");
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    let id = child.id().to_string();
    Command::new("kill")
        .args(["-INT", &id])
        .status()
        .expect("kill");
    let status = child.wait().expect("it ends");
    let error = text(&std::fs::read(&errors).expect("its messages"));
    assert_eq!(status.code(), Some(130), "{error}");
    (out, error)
}

/// The record and the report say that the user ended the command.
fn assert_reported_as_interrupted(out: &Path) {
    let record = std::fs::read_to_string(out.join("run.json")).expect("the run's record");
    assert!(record.contains("interrupted by the user"), "{record}");
    let page = std::fs::read_to_string(out.join("report.html")).expect("the report");
    assert!(page.contains("interrupted"));
}

#[test]
fn interrupted_run_keeps_its_measurements() {
    let (out, error) = interrupted(&["run", "small-network"], "interrupt");
    // The line of the trial says the same as the report.
    assert!(error.contains(": not judged (cut short)"), "{error}");
    assert_reported_as_interrupted(&out);
}

#[test]
fn interrupted_search_keeps_its_measurements() {
    let (out, error) = interrupted(&["search", "call-capacity"], "search");
    assert!(error.contains("interrupted after 1 of at most"), "{error}");
    // The estimated duration is printed before the start.
    let first = error.lines().next().unwrap_or_default();
    assert!(first.contains("trials, about"), "{first}");
    assert_reported_as_interrupted(&out);
}

#[test]
fn interrupted_peak_is_no_reference() {
    let (out, error) = interrupted(&["run", "overload"], "peak");
    assert!(error.contains("while the peak was measured"), "{error}");
    assert!(!out.join("run.json").exists());
}

#[test]
fn unreachable_sut_is_detected_before_the_run() {
    let folder = scratch("first-contact-probe");
    // A port that was free a moment ago.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("an address");
    drop(socket);
    let subject = format!("sut.address={address}");
    let out = folder.join("run");
    let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["lab", "run", "small-network", "--set", &subject, "--out"])
        .arg(&out)
        .current_dir(root())
        .output()
        .expect("the program starts");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains(&format!("no answer from {address}: ICMP port unreachable"))
            && error.contains("remedy:"),
        "{error}"
    );
    assert!(!out.join("run.json").exists(), "nothing was run");
}

/// A border that goes on between the runs, with a route to the called side of the test lab; and that side.
fn pbx(folder: &Path, interface: &str, tables: &str) -> (crate::common::Process, [String; 2]) {
    let (sip, callees) = (free_port(), free_port());
    let text = example("loopback.toml", sip, callees, media_ports(400), tables);
    let text = text.replace(
        "kind = \"access\"",
        &format!("kind = \"access\"\n{interface}"),
    );
    let sets = [
        format!("sut.address=127.0.0.1:{sip}"),
        format!("callees.address=127.0.0.1:{callees}"),
    ];
    (border(folder, &text, sip), sets)
}

/// Runs `call-capacity` at 20 and 40 calls; returns exit status and output.
fn measure(folder: &Path, sets: &[String], out: &str) -> (Option<i32>, String) {
    measure_by(
        &["run", "call-capacity", "--repeat", "2"],
        folder,
        sets,
        out,
    )
}

/// The same with other words of the command.
fn measure_by(words: &[&str], folder: &Path, sets: &[String], out: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hornwork"));
    command
        .arg("lab")
        .args(words)
        .args(["--out", out])
        .current_dir(folder);
    // A search has no list of levels.
    let levels: &[&str] = match words.contains(&"search") {
        true => &["levels.from=20", "levels.to=40", "levels.step=20"],
        false => &["levels.values=[20, 40]"],
    };
    let short = [
        "callers.rate=40",
        "callers.hold_seconds=0.5",
        // The speed of this machine is not under test.
        "thresholds.response_p99_ms=",
        "thresholds.one_way_ms=",
        "thresholds.round_trip_ms=",
        "thresholds.figure=",
    ];
    for set in sets
        .iter()
        .map(String::as_str)
        .chain(levels.iter().copied())
        .chain(short)
    {
        command.args(["--set", set]);
    }
    let output = command.output().expect("the program starts");
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.code(), said)
}

#[test]
fn second_run_at_the_same_pbx_passes_like_the_first() {
    let folder = scratch("first-contact-again");
    let (border, sets) = pbx(&folder, "", "");
    let mut plans = Vec::new();
    for out in ["first", "second"] {
        let (code, said) = measure(&folder, &sets, out);
        // 4: on a busy machine the load is not that of the plan, and is not judged.
        assert!(matches!(code, Some(0 | 4)), "{said}\n{}", border.log());
        // Differences from the study are those of the built-in border.
        assert!(
            !said.contains("here a border passes them") && said.contains("is another one"),
            "{said}"
        );
        let attempts = std::fs::read_to_string(folder.join(out).join("attempts.ndjson"));
        let due: Vec<u64> = attempts
            .expect("records")
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
            .filter(|attempt| attempt["kind"] == "call")
            .map(|attempt| {
                assert_eq!(attempt["outcome"], "completed", "{said}");
                attempt["due"].as_u64().expect("a time")
            })
            .collect();
        plans.push(due);
    }
    // The seed still decides the plan.
    assert_eq!(plans[0].len(), 120);
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn run_ends_when_every_call_of_a_level_is_refused_alike() {
    let folder = scratch("first-contact-refused");
    let user = "[[user]]\nname = \"1000\"\npassword = \"secret-1000\"\n";
    let (_border, sets) = pbx(&folder, "authenticate = \"digest\"", user);
    let (code, said) = measure(&folder, &sets, "results");
    assert_eq!(code, Some(1), "{said}");
    for words in [
        "stopped after trial 1 of 4: every attempt (20) was refused with 407",
        "remedy: the system requires credentials: --set callers.user=NAME",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let record = std::fs::read_to_string(folder.join("results/run.json")).expect("record");
    assert!(record.contains("was refused with 407"), "{record}");
    assert!(folder.join("results/report.html").exists());
    // A search ends after its first trial, too.
    let words = ["search", "call-capacity"];
    let (code, said) = measure_by(&words, &folder, &sets, "search");
    assert_eq!(code, Some(1), "{said}");
    for words in [
        "stopped after trial 1 of ",
        "was refused with 407\n  remedy: the system requires credentials",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn runs_of_two_seeds_are_compared() {
    let folder = scratch("first-contact-compare");
    let run = |name: &str, seed: &str, more: &[&str]| {
        let out = folder.join(name);
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["lab", "run", "small-network", "--simulate", "--repeat", "3"])
            .args(["--seed", seed, "--out"])
            .arg(&out)
            .args(more)
            .current_dir(root())
            .output()
            .expect("the program starts");
        assert!(out.join("run.json").exists(), "{}", text(&output.stderr));
        let table = text(&output.stdout);
        assert!(
            table.contains("failed by reason") && table.contains("refused with 486"),
            "{table}"
        );
        out.display().to_string()
    };
    let (one, two) = (run("one", "1", &[]), run("two", "2", &[]));
    let compare = ["lab", "compare", &one, &two, "--json", "-", "--tolerance"];
    let output = hornwork(&[&compare[..], &["60"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["worse"], false);
    assert!(!json["rows"].as_array().expect("rows").is_empty());
    let notes = json["notes"].to_string();
    assert!(notes.contains("seed: 1 before, 2 now"), "{notes}");
    // A network with loss is worse.
    let lossy = run("lossy", "2", &["--set", "network.loss_percent=20"]);
    let output = hornwork(&["lab", "compare", &one, &lossy]);
    let log = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("worse: "), "{log}");
    assert!(Path::new(&lossy).join("compare.html").exists());
}

/// A scenario that sends an OPTIONS and receives its 200, with these further attributes of the step.
fn options_scenario(name: &str, attributes: &str) -> String {
    format!(
        "<scenario name=\"{name}\"><send><![CDATA[
OPTIONS sip:a@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:b@[local_ip]>;tag=[call_number]
To: <sip:a@[remote_ip]>
Call-ID: [call_id]
CSeq: 1 OPTIONS
Max-Forwards: 70
Content-Length: 0

]]></send><recv response=\"200\"{attributes}/></scenario>"
    )
}

#[test]
fn optional_message_as_last_step_ends_the_call() {
    let folder = scratch("first-contact-optional");
    let caller = folder.join("caller.xml");
    let called = folder.join("called.xml");
    std::fs::write(
        &caller,
        options_scenario("caller", " optional=\"true\" id=\"2\""),
    )
    .expect("a scenario");
    std::fs::write(
        &called,
        "<scenario name=\"called\"><User variables=\"a\"/><recv request=\"OPTIONS\"/><send><![CDATA[
SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:];tag=x
[last_Call-ID:]
[last_CSeq:]
Content-Length: 0

]]></send></scenario>",
    )
    .expect("a scenario");
    let caller = caller.to_str().expect("UTF-8");
    let called = called.to_str().expect("UTF-8");
    let output = hornwork(&[
        "lab",
        "run",
        "-sf",
        caller,
        "-m",
        "3",
        "-timeout",
        "20s",
        "--simulate",
        "--against",
        called,
    ]);
    let error = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{error}{}",
        text(&output.stdout)
    );
    assert!(
        error.contains("warning") && error.contains("id="),
        "{error}"
    );
}

/// A scenario whose call waits for ever: SIGTERM, which `timeout` sends once, and a second Ctrl-C end it.
#[test]
fn signals_end_a_scenario_with_a_waiting_call() {
    let folder = scratch("first-contact-waiting");
    let scenario = folder.join("waits.xml");
    std::fs::write(&scenario, options_scenario("waits", "")).expect("a scenario");
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let limit = std::time::Duration::from_secs(20);
    silent.set_read_timeout(Some(limit)).expect("a timeout");
    let target = silent.local_addr().expect("an address").to_string();
    for (name, signals) in [("term", &["-TERM"][..]), ("int", &["-INT", "-INT"][..])] {
        let figures = folder.join(format!("{name}.json"));
        let child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["lab", "run"])
            .arg(&scenario)
            .args([&target, "--calls", "1", "--json"])
            .arg(&figures)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        silent.recv(&mut [0; 2_000]).expect("the request");
        for signal in signals {
            // The threads report their open calls twice a second.
            std::thread::sleep(std::time::Duration::from_millis(1_500));
            Command::new("kill")
                .arg(signal)
                .arg(child.id().to_string())
                .status()
                .expect("kill");
        }
        let sent = std::time::Instant::now();
        let output = child.wait_with_output().expect("it ends");
        let error = text(&output.stderr);
        assert!(sent.elapsed().as_secs() < 25, "{name}: {error}");
        assert_eq!(output.status.code(), Some(1), "{name}: {error}");
        let told = error.contains("no further calls; 1 open, Ctrl-C again ends them");
        assert_eq!(told, name == "int", "{error}");
        let record = std::fs::read_to_string(&figures).expect("the statistics");
        assert!(record.contains("stopped"), "{record}");
    }
}
