//! Speech compared with its original (`lab speech`, `phone --speech-reference`), and conversations over a delay.

use crate::common::phones::voice;
use crate::common::scratch;
use crate::softphone::{call, json, phone, text};
use codec::resample::Resampler;
use codec::speech;
use codec::wav::{Encoding, write};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .arg("lab")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("hornwork")
}

fn compared(folder: &Path, reference: &str, degraded: &str) -> Value {
    let output = lab(
        folder,
        &[
            "speech",
            "--reference",
            reference,
            "--degraded",
            degraded,
            "--json",
            "-",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
}

#[test]
fn files_of_any_rate_are_compared() {
    let folder = scratch("lab-speech");
    voice(&folder, "hello.wav", speech::speech());
    voice(&folder, "other.wav", speech::answer());
    let wide = Resampler::whole(speech::speech(), 8000, 44_100).expect("a usual rate");
    let wide = write(Encoding::Pcm16, 44_100, 1, &wide).expect("a WAV file");
    std::fs::write(folder.join("wide.wav"), wide).expect("file");
    let same = compared(&folder, "hello.wav", "hello.wav");
    assert!(same["speech_mos"].as_f64() > Some(4.99), "{same:#}");
    assert_eq!(same["lost_patches"], 0);
    assert!(
        same["method"]
            .as_str()
            .is_some_and(|method| method.contains("ViSQOL"))
    );
    let wide = compared(&folder, "hello.wav", "wide.wav");
    assert!(wide["speech_mos"].as_f64() > Some(4.8), "{wide:#}");
    assert_eq!(
        (&wide["reference_hz"], &wide["degraded_hz"]),
        (&8000.into(), &44_100.into())
    );
    let other = compared(&folder, "hello.wav", "other.wav");
    assert!(other["speech_mos"].as_f64() < Some(2.0), "{other:#}");
    let output = lab(
        &folder,
        &[
            "speech",
            "--reference",
            "hello.wav",
            "--degraded",
            "hello.wav",
        ],
    );
    let shown = text(&output);
    assert!(shown.contains("speech MOS       5.00"), "{shown}");
}

#[test]
fn files_that_cannot_be_compared_are_named() {
    let folder = scratch("lab-speech-errors");
    voice(&folder, "hello.wav", speech::speech());
    voice(&folder, "short.wav", &speech::speech()[..2000]);
    voice(&folder, "silent.wav", &[0; 16_000]);
    voice(&folder, "long.wav", &vec![1; 8000 * 61]);
    std::fs::write(folder.join("text.wav"), "no samples").expect("file");
    for (reference, degraded, part) in [
        ("missing.wav", "hello.wav", "missing.wav"),
        ("text.wav", "hello.wav", "text.wav"),
        (
            "hello.wav",
            "short.wav",
            "the degraded signal is shorter than",
        ),
        ("short.wav", "hello.wav", "the reference is shorter than"),
        ("silent.wav", "hello.wav", "the reference has no speech"),
        ("long.wav", "hello.wav", "longer than 60 s"),
    ] {
        let output = lab(
            &folder,
            &["speech", "--reference", reference, "--degraded", degraded],
        );
        let shown = text(&output);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{reference} {degraded}: {shown}"
        );
        assert!(shown.contains(part), "{reference} {degraded}: {shown}");
    }
}

#[test]
fn recording_of_a_call_is_compared_with_the_file_of_the_peer() {
    let (folder, output, _) = call(
        "phone-speech",
        &["--codec", "pcma", "--speech-reference", "callee.wav"],
        &[],
    );
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.contains("speech MOS"), "{shown}");
    let mos = json(&folder, "caller.json")["speech_mos"].as_f64();
    // A machine that stalls loses packets; speech with gaps is still closer to its original than other speech.
    let wrong = compared(&folder, "caller.wav", "caller-heard.wav");
    let wrong = wrong["speech_mos"].as_f64();
    println!("speech MOS {mos:?}, with the wrong file {wrong:?}");
    assert!(
        mos > Some(2.0) && mos > wrong.map(|wrong| wrong + 0.5),
        "{mos:?} {wrong:?}"
    );
    assert_eq!(json(&folder, "callee.json")["speech_mos"], Value::Null);
    for (arguments, status, part) in [
        (&["--speech-reference", "callee.wav"][..], 2, "--wav-out"),
        (
            &["--wav-out", "a.wav", "--speech-reference", "missing.wav"][..],
            2,
            "missing.wav",
        ),
    ] {
        let all = [&["call", "sip:a@127.0.0.1:9"], arguments].concat();
        let output = phone(&folder, &all);
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(status), "{shown}");
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn conversation_over_a_delay_follows_its_contract() {
    let folder = scratch("lab-conversation");
    let run = |more: &[&str]| {
        let all = [&["conversation", "--delay-ms", "300", "--json", "-"], more].concat();
        let output = lab(&folder, &all);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        figures
    };
    let talk = run(&[]);
    assert_eq!(talk, run(&["--seed", "1", "--back-ms", "300"]));
    assert_ne!(talk, run(&["--seed", "2"]));
    for (case, least, most) in [("delayed", 8.0, 30.0), ("undelayed", 6.5, 8.5)] {
        let shares = &talk[case];
        let share = shares["double_talk_percent"].as_f64();
        assert!((Some(least)..Some(most)).contains(&share), "{talk:#}");
        let ends = [
            &shares["double_talk"]["low"],
            &shares["double_talk"]["high"],
        ];
        let [low, high] = ends.map(Value::as_f64);
        assert!(low < share && share < high, "{talk:#}");
    }
    assert_eq!(talk["undelayed"]["talk_overs_per_minute"], 0.0);
    let output = lab(&folder, &["conversation", "--delay-ms", "150"]);
    let shown = text(&output);
    assert!(
        shown.contains("mutual silence, %") && shown.lines().all(|line| line.len() <= 80),
        "{shown}"
    );
    let output = lab(&folder, &["conversation", "--delay-ms", "20000"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}
