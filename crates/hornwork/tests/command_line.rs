//! The command line as a user meets it: exit codes, words, files.

mod common;

use common::{root, scratch, testdata};
use std::path::Path;
use std::process::{Command, Output};

fn hornwork(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("the program starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ends by itself")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_example_is_good() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples"))
        .expect("examples")
        .flatten()
    {
        let path = entry.path();
        let output = hornwork(&["check", "-c", &path.display().to_string()]);
        assert_eq!(code(&output), 0, "{}: {}", path.display(), error(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("interface"));
        seen += 1;
    }
    assert!(seen >= 5, "{seen} examples");
}

#[test]
fn every_mistake_is_named_with_line_and_remedy() {
    let folder = scratch("check");
    let file = folder.join("bad.toml");
    std::fs::write(
        &file,
        "[[interface]]\nname = \"x\"\nlisten = \"udp:192.0.2.1:99999\"\nfoo = 1\n[[trnk]]\n",
    )
    .expect("file");
    let output = hornwork(&["check", "-c", &file.display().to_string()]);
    assert_eq!(code(&output), 2);
    let said = error(&output);
    for word in [
        "bad.toml:4:1:",
        "`foo`",
        "bad.toml:5:3:",
        "did you mean `trunk`",
        "remedy:",
    ] {
        assert!(said.contains(word), "{word} is not in:\n{said}");
    }
}

#[test]
fn a_missing_file_is_bad_input() {
    let output = hornwork(&["check", "-c", "no/such/file.toml"]);
    assert_eq!(code(&output), 2);
    assert!(error(&output).contains("no/such/file.toml"));
}

#[test]
fn the_schema_is_json_and_describes_every_table() {
    let output = hornwork(&["schema"]);
    assert_eq!(code(&output), 0);
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for table in [
        "interface",
        "trunk",
        "route",
        "user",
        "registrar",
        "media",
        "drain",
    ] {
        let text = schema["properties"][table]["description"]
            .as_str()
            .unwrap_or_default();
        assert!(!text.is_empty(), "{table} is not described");
    }
}

#[test]
fn a_file_that_is_no_capture_is_bad_input() {
    let output = hornwork(&["lab", "analyse", "Cargo.toml"]);
    assert_eq!(code(&output), 2);
    assert!(!error(&output).is_empty());
}

#[test]
fn an_analysis_keeps_the_contract() {
    let Some(data) = testdata() else { return };
    let capture = data.join("captures/rtp/sipp-g711a.pcap");
    let output = hornwork(&[
        "lab",
        "analyse",
        &capture.display().to_string(),
        "--json",
        "-",
    ]);
    assert_eq!(code(&output), 0, "{}", error(&output));
    let figures: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("JSON only on standard output");
    let stream = &figures["streams"][0];
    let keys = [
        "src",
        "dst",
        "ssrc",
        "payload_types",
        "codec",
        "clock_rate",
        "packets_received",
        "unique",
        "duplicates",
        "out_of_order",
        "expected",
        "lost_unique",
        "lost_percent",
        "jitter_ms",
        "delta_ms",
        "dtmf",
        "r",
        "mos",
    ];
    for key in keys {
        assert!(stream.get(key).is_some(), "{key} is missing in {stream}");
    }
    for (block, keys) in [
        ("jitter_ms", &["last", "mean", "p99", "max"][..]),
        ("delta_ms", &["min", "mean", "max"]),
    ] {
        assert!(
            keys.iter().all(|key| stream[block][key].is_number()),
            "{block}: {}",
            stream[block]
        );
    }
    let oracle = std::fs::read(Path::new(&data).join("captures/rtp/sipp-g711a.expected.json"))
        .expect("oracle");
    let oracle: serde_json::Value = serde_json::from_slice(&oracle).expect("oracle");
    assert_eq!(
        stream["packets_received"],
        oracle["streams"][0]["packets_received"]
    );
}
