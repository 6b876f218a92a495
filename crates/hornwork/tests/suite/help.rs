//! Help texts, completions, manual pages and `hornwork` without arguments. Every command has an example in its help, and the example
//! works.

use crate::common::{root, scratch};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Every command that has no subcommands; those of `ctl` are commands to a running border, in the tests of operators.
const COMMANDS: [&str; 30] = [
    "run",
    "ctl",
    "top",
    "check",
    "schema",
    "rules try",
    "trace",
    "console hash-password",
    "console token",
    "isolate",
    "demo",
    "lab list",
    "lab subjects",
    "lab agent",
    "lab show",
    "lab run",
    "lab search",
    "lab plan",
    "lab datasheet",
    "lab link",
    "lab analyse",
    "lab report",
    "lab compare",
    "phone register",
    "phone call",
    "phone answer",
    "phone sound",
    "phone speech",
    "completions",
    "man",
];

/// Examples that other tests run: servers and their clients, the tools that need rights or a store, and phones, which need
/// a peer.
const RUN_ELSEWHERE: [&str; 14] = [
    "run",
    "ctl",
    "top",
    "demo",
    "isolate",
    "lab agent",
    "lab link",
    "trace",
    "console hash-password",
    "lab datasheet",
    "phone register",
    "phone call",
    "phone answer",
    "phone sound",
];

fn hornwork(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("hornwork")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The words behind "Commands:" in a help text.
fn subcommands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn list_of_commands_is_complete() {
    let mut found = Vec::new();
    for name in subcommands(&text(&hornwork(&["--help"]).stdout)) {
        let inner = subcommands(&text(&hornwork(&[&name, "--help"]).stdout));
        if inner.is_empty() || name == "ctl" {
            found.push(name);
        } else {
            found.extend(inner.iter().map(|inner| format!("{name} {inner}")));
        }
    }
    found.sort();
    let mut expected = COMMANDS.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(found, expected);
}

/// A folder in which examples find their files.
fn folder() -> std::path::PathBuf {
    let folder = scratch("help");
    symlink(root().join("examples"), folder.join("examples")).expect("link");
    symlink(env!("CARGO_BIN_EXE_hornwork"), folder.join("hornwork")).expect("link");
    let capture = root().join("fuzz/seeds/capture/call.pcap");
    std::fs::copy(capture, folder.join("call.pcap")).expect("capture");
    let message = "OPTIONS sip:a@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1\r\nFrom: <sip:a@192.0.2.7>;tag=1\r\n\
                   To: <sip:a@192.0.2.1>\r\nCall-ID: 1\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n";
    std::fs::write(folder.join("message"), message).expect("message");
    folder
}

fn shell(folder: &Path, line: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("sh")
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .stdin(Stdio::null())
        .output()
        .expect("a shell")
}

#[test]
fn every_command_has_an_example_that_works() {
    let folder = folder();
    // The runs that `lab report` and `lab compare` read.
    for (seed, out) in [(7, "a"), (8, "b")] {
        let line =
            format!("hornwork lab run small-network --simulate --seed {seed} --out results/{out}");
        let output = shell(&folder, &line);
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{line}: {}",
            text(&output.stderr)
        );
    }
    for command in COMMANDS {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.push("--help");
        let help = text(&hornwork(&arguments).stdout);
        let example = help.lines().find_map(|line| line.strip_prefix("Example: "));
        let example =
            example.unwrap_or_else(|| panic!("{command}: no example in its help:\n{help}"));
        assert!(
            example.starts_with(&format!("hornwork {command}")),
            "{command}: {example}"
        );
        if RUN_ELSEWHERE.contains(&command) {
            continue;
        }
        // The directory of the example has a result already.
        let line = match command {
            "lab run" => format!("{example} --force"),
            _ => example.to_owned(),
        };
        let output = shell(&folder, &line);
        // 1: a threshold was missed, or the compared run is worse.
        let accepted = output.status.success()
            || (command.starts_with("lab") && output.status.code() == Some(1));
        assert!(
            accepted,
            "{line}: {}\n{}",
            output.status,
            text(&output.stderr)
        );
    }
    for page in ["hornwork.1", "hornwork-run.1", "hornwork-lab-run.1"] {
        let page_text = std::fs::read_to_string(folder.join(page)).expect(page);
        assert!(page_text.contains(".SH NAME"), "{page}");
    }
}

#[test]
fn completions_exist_for_three_shells() {
    for (shell, word) in [
        ("bash", "complete "),
        ("zsh", "#compdef hornwork"),
        ("fish", "complete -c hornwork"),
    ] {
        let output = hornwork(&["completions", shell]);
        assert!(
            output.status.success() && text(&output.stdout).contains(word),
            "{shell}"
        );
    }
    assert_eq!(hornwork(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn program_without_arguments_names_the_next_steps() {
    let output = hornwork(&[]);
    let shown = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    for step in [
        "hornwork demo",
        "hornwork check",
        "hornwork run",
        "hornwork lab",
    ] {
        assert!(shown.contains(step), "{step}: {shown}");
    }
}

#[test]
fn version_has_commit_and_features() {
    let shown = text(&hornwork(&["--version"]).stdout);
    let first = format!("hornwork {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(shown.lines().next(), Some(first.as_str()), "{shown}");
    assert!(
        shown.contains("\ncommit ") && shown.contains("g729") && shown.contains("bpf"),
        "{shown}"
    );
}

#[test]
fn manual_pages_need_an_existing_directory() {
    let output = hornwork(&["man", "/nonexistent/folder"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("existing directory"));
}
