//! Every command that prints, with a standard output that takes nothing: a full disk, and a pipe whose reader has gone.

use crate::help::{COMMANDS, CONTROL, folder, operated, shell, text};
use crate::operators::ctl_json;
use std::path::Path;
use std::process::{Command, Stdio};

/// Commands with their output. `isolate` shows its commands, `rules try` a message.
const PRINTING: &[&str] = &[
    "check -c examples/pbx.toml",
    "check --json -c examples/pbx.toml",
    "check --json missing.toml",
    "schema",
    "schema --markdown",
    "schema --metrics",
    "rules try examples/header-rules.toml < message",
    "trace --store empty --number 600",
    "trace --store empty --json",
    "console hash-password < message",
    "console token",
    "isolate lo --rate 950mbit",
    "lab list",
    "lab subjects",
    "lab subjects kamailio",
    "lab show small-network",
    "lab run small-network --simulate --repeat 1 --out results/c --force",
    "lab run small-network --simulate --repeat 1 --json -",
    "lab search call-rate --simulate --set callers.duration_seconds=1 --set search.highest=250 --out results/s --force",
    "lab speech --reference hello.wav --degraded heard.wav",
    "lab conversation --delay-ms 300",
    "lab conversation --delay-ms 300 --json -",
    "lab plan --subscribers 1000 --busy-hour-calls 2 --hold 120",
    "lab plan --subscribers 1000 --busy-hour-calls 2 --hold 120 --json -",
    "lab analyse call.pcap",
    "lab analyse call.pcap --json -",
    "lab report results/b",
    "lab compare results/a results/b",
    "lab compare results/a results/b --json -",
    "phone call sip:600@127.0.0.1:9 --json - --ring-seconds 1",
    "phone register sip:600@127.0.0.1:9 --seconds 1",
    "phone answer --local 127.0.0.1:0 --wait 1",
    "completions bash",
];

/// Commands that are long, print nothing, or print while they serve: a lost text does not end them.
const NOT_TRIED: &[&str] = &[
    "run",
    "demo",
    "lab agent",
    "lab datasheet",
    "lab link",
    "man",
    "phone sound",
    "phone speech",
    // Tried with a border.
    "top",
];

/// Standard output is a full disk: the error is named. The exit status is that of the command, 3 if it was 0.
fn on_full_disk(folder: &Path, line: &str) {
    let expected = shell(folder, &format!("hornwork {line} > usual"));
    let printed = std::fs::read(folder.join("usual")).expect("file");
    let output = shell(folder, &format!("{{ hornwork {line}; }} > /dev/full"));
    let error = text(&output.stderr);
    assert!(!error.contains("panicked"), "{line}: {error}");
    let usual = expected.status.code();
    let wanted = match (printed.is_empty(), usual) {
        (false, Some(0)) => Some(3),
        _ => usual,
    };
    assert_eq!(output.status.code(), wanted, "{line}: {error}");
    if !printed.is_empty() {
        assert!(
            error.contains("standard output: No space left on device"),
            "{line}: {error}"
        );
    }
}

/// The reader of the pipe has gone before the first byte: a quiet end.
fn on_closed_pipe(folder: &Path, line: &str) {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new("sh")
        .args(["-c", &format!("exec hornwork {line}")])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let error = text(&output.stderr);
    assert_ne!(output.status.code(), Some(101), "{line}: {error}");
    assert!(
        !error.contains("panicked") && !error.contains("Broken pipe"),
        "{line}: {error}"
    );
}

#[test]
fn no_command_panics_for_its_standard_output() {
    for command in COMMANDS {
        let is_of = |line: &&str| *line == command || line.starts_with(&format!("{command} "));
        let tried = PRINTING.iter().any(is_of);
        assert!(tried != NOT_TRIED.contains(&command), "{command}");
    }
    let folder = folder("full-output");
    std::fs::create_dir(folder.join("empty")).expect("folder");
    for (seed, out) in [(7, "a"), (8, "b")] {
        let line =
            format!("hornwork lab run small-network --simulate --seed {seed} --out results/{out}");
        shell(&folder, &line);
    }
    for line in PRINTING {
        on_full_disk(&folder, line);
        on_closed_pipe(&folder, line);
    }
    // Help texts and the version are printed, too.
    let mut helps: Vec<String> = COMMANDS
        .iter()
        .map(|name| format!("{name} --help"))
        .collect();
    helps.extend(CONTROL.iter().map(|name| format!("ctl {name} --help")));
    helps.extend(["--help", "-h", "--version", "help lab"].map(str::to_owned));
    for line in helps {
        on_full_disk(&folder, &line);
        on_closed_pipe(&folder, &line);
    }
}

/// Standard error is a full disk: progress and warnings are lost with it, the results are not.
#[test]
fn lab_keeps_its_results_without_standard_error() {
    let folder = folder("full-error");
    for (name, line) in [
        ("run", "lab run small-network --simulate --repeat 1"),
        (
            "search",
            "lab search call-rate --simulate --set callers.duration_seconds=1 --set search.highest=800",
        ),
    ] {
        let command = |out: &str, error: &str| {
            let out = format!("results/{name}-{out}");
            let line = format!("hornwork {line} --out {out} > printed 2> {error}");
            let ended = shell(&folder, &line);
            (ended.status.code(), folder.join(out).join("run.json"))
        };
        let (usual, _) = command("usual", "said");
        let said = std::fs::read_to_string(folder.join("said")).expect("file");
        assert!(!said.is_empty(), "{line} says nothing");
        let (code, record) = command("full", "/dev/full");
        assert_eq!(code, usual, "{line}");
        assert!(record.is_file(), "{line}");
    }
}

#[test]
fn no_command_to_a_border_panics_for_its_standard_output() {
    let folder = folder("full-output-ctl");
    let _running = operated(&folder);
    let call = ctl_json(&folder, &["calls", "list"])[0]["id"].to_string();
    for command in CONTROL {
        // Changes were made by another test; their output is printed by the same functions.
        let words = match command {
            "calls show" => format!("{command} {call}"),
            "registrations show" => format!("{command} 1001"),
            "calls hangup" | "drain" | "reload" | "bans remove" | "alarms acknowledge" => continue,
            "registrations delete" | "trunks enable" | "trunks disable" | "limits set" => continue,
            command => command.to_owned(),
        };
        for json in ["", " --json"] {
            let line = format!("ctl {words}{json} --socket control.sock");
            on_full_disk(&folder, &line);
            on_closed_pipe(&folder, &line);
        }
    }
    let line = "top --socket control.sock --count 1";
    on_full_disk(&folder, line);
    on_closed_pipe(&folder, line);
}

#[test]
fn missing_configuration_is_a_mistake_in_json() {
    for (words, code) in [
        (&["check", "--json", "/nonexistent/a.toml"][..], 2),
        (&["check", "--json", "-c", "/"], 2),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(words)
            .output()
            .expect("hornwork");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
        let mistake = &found[0];
        assert_eq!(mistake["level"], "mistake");
        assert_eq!(mistake["file"], *words.last().expect("a file"));
        assert!(mistake["line"].is_null(), "{found}");
        let message = mistake["message"].as_str().expect("message");
        assert!(message.contains("(os error"), "{found}");
        let remedy = mistake["remedy"].as_str().expect("remedy");
        assert!(
            remedy.starts_with("name ") && remedy.contains(" with -c"),
            "{found}"
        );
    }
}
