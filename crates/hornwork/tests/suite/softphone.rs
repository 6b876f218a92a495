//! `hornwork phone` against itself and through the border: audio, digits, hold, transfer, security, failures.

use crate::common::certificates::Authority;
use crate::common::phones::{correlation_of, until, voice};
use crate::common::{Process, border, example, free_port, media_ports, scratch};
use codec::wav::Wav;
use serde_json::Value;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Lowest correlation of received with sent speech: unrelated audio has less than 0.3, a perceptual codec about 0.8.
pub const MIN_CORRELATION: f64 = 0.6;

/// Runs a phone to its end.
pub fn phone(folder: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_hornwork"), "phone"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("hornwork")
}

/// Starts a phone that answers one call, and waits until it is ready.
pub fn answering(folder: &Path, arguments: &[&str]) -> Process {
    let process = Process::start(
        Command::new("timeout")
            .args(["60", env!("CARGO_BIN_EXE_hornwork"), "phone", "answer"])
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null()),
        &folder.join("answer.log"),
    );
    let ready = match arguments.contains(&"--register") {
        true => "registered for",
        false => "waiting for a call",
    };
    assert!(
        until(&process, ready, Duration::from_secs(40)),
        "{}",
        process.log()
    );
    process
}

pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub fn json(folder: &Path, name: &str) -> Value {
    let file = std::fs::read_to_string(folder.join(name)).expect(name);
    serde_json::from_str(&file).expect("JSON")
}

/// Samples at 8 kHz, and the length in seconds.
pub fn recorded(folder: &Path, name: &str) -> (Vec<i16>, f64) {
    let file = std::fs::read(folder.join(name)).expect(name);
    let wav = Wav::parse(&file).expect("WAV");
    let seconds = wav.frames() as f64 / f64::from(wav.rate);
    let samples = codec::Resampler::whole(&wav.mono(), wav.rate, 8_000).expect("a usual rate");
    (samples, seconds)
}

/// The recording contains the speech, and has the length of the call.
pub fn assert_heard(folder: &Path, name: &str, said: &[i16], call_s: f64) {
    let (samples, seconds) = recorded(folder, name);
    let found = correlation_of(&samples, said);
    println!("{name}: {seconds:.2} s, correlation {found:.3}");
    // A turn of 20 ms begins after the answer, and the other end hears the hang-up a little later.
    assert!(
        (seconds - call_s).abs() < 1.0,
        "{name}: {seconds} s of {call_s} s"
    );
    assert!(found > MIN_CORRELATION, "{name}: correlation {found}");
}

fn speech() -> [&'static [i16]; 2] {
    [codec::speech::speech(), codec::speech::answer()]
}

/// A call between two phones with speech both ways and further arguments; its texts and JSON.
pub fn call(name: &str, call: &[&str], answer: &[&str]) -> (std::path::PathBuf, Output, String) {
    let folder = scratch(name);
    let [caller, callee] = speech();
    voice(&folder, "caller.wav", caller);
    voice(&folder, "callee.wav", callee);
    let port = free_port();
    let local = format!("127.0.0.1:{port}");
    let mut arguments: Vec<&str> = vec![
        "--local",
        &local,
        "--wav-in",
        "callee.wav",
        "--loop",
        "--wav-out",
        "callee-heard.wav",
        "--json",
        "callee.json",
    ];
    arguments.extend(answer);
    if !answer.contains(&"--wait") {
        arguments.extend(["--wait", "20"]);
    }
    let mut callee = answering(&folder, &arguments);
    let uri = format!("sip:600@{local}");
    let mut arguments: Vec<&str> = vec![
        "call",
        &uri,
        "--wav-in",
        "caller.wav",
        "--loop",
        "--wav-out",
        "caller-heard.wav",
        "--json",
        "caller.json",
    ];
    arguments.extend(call);
    if !call.contains(&"--seconds") {
        arguments.extend(["--seconds", "4"]);
    }
    let output = phone(&folder, &arguments);
    callee.wait(Duration::from_secs(10));
    let log = callee.log();
    (folder, output, log)
}

#[test]
fn speech_and_digits_arrive_in_every_codec() {
    for (codec, name) in [
        ("opus", "opus"),
        ("g722", "G722"),
        ("pcma", "PCMA"),
        ("pcmu", "PCMU"),
        ("g729", "G729"),
    ] {
        if codec == "g729" && !codec::Kind::G729.is_available() {
            eprintln!("skipped: no G729");
            continue;
        }
        let (folder, output, log) = call(
            &format!("softphone-{codec}"),
            &["--codec", codec, "--dtmf", "19*#"],
            &["--dtmf", "5A"],
        );
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(0), "{shown}");
        let [caller, callee] = speech();
        // A low bit rate keeps the sound, not the shape of the wave.
        if codec != "g729" {
            assert_heard(&folder, "caller-heard.wav", callee, 4.0);
            assert_heard(&folder, "callee-heard.wav", caller, 4.0);
        }
        let figures = json(&folder, "callee.json");
        assert_eq!(figures["codec"], name);
        assert_eq!(figures["digits"], "19*#", "{log}");
        assert_eq!(json(&folder, "caller.json")["digits"], "5A", "{shown}");
        assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    }
}

/// A test of the type of a JSON value.
type IsOfType = fn(&Value) -> bool;

#[test]
fn json_has_the_fields_of_the_contract() {
    let (folder, output, _) = call("softphone-json", &["--min-mos", "3"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for file in ["caller.json", "callee.json"] {
        let figures = json(&folder, file);
        let fields: [(&str, IsOfType); 16] = [
            ("/established", Value::is_boolean),
            ("/codec", Value::is_string),
            ("/protection", Value::is_string),
            ("/suite", Value::is_null),
            ("/transport", Value::is_string),
            ("/seconds", Value::is_f64),
            ("/sent", Value::is_u64),
            ("/received", Value::is_u64),
            ("/lost", Value::is_u64),
            ("/jitter_ms/mean", Value::is_f64),
            ("/jitter_ms/max", Value::is_f64),
            ("/delta_ms/max", Value::is_f64),
            ("/mos", Value::is_f64),
            ("/digits", Value::is_string),
            ("/status", Value::is_u64),
            ("/reason", Value::is_string),
        ];
        for (pointer, is_right) in fields {
            let value = figures.pointer(pointer);
            assert!(value.is_some_and(is_right), "{pointer}: {figures:#}");
        }
        assert_eq!(figures["protection"], "none");
        assert!(figures["sent"].as_u64() > Some(150), "{figures:#}");
        assert!(figures["mos"].as_f64() > Some(3.0), "{figures:#}");
    }
    // A bound that no call reaches.
    let (_, output, _) = call("softphone-mos", &["--min-mos", "5"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("below --min-mos 5"),
        "{}",
        text(&output)
    );
}

/// In 12 s each phone sends two reports at least, the second of which answers one of the other's.
#[test]
fn rtcp_gives_the_round_trip_and_the_reception_of_the_peer() {
    std::thread::scope(|scope| {
        for srtp in ["off", "sdes"] {
            scope.spawn(move || {
                let name = format!("softphone-rtcp-{srtp}");
                let (folder, output, log) = call(&name, &["--seconds", "12", "--srtp", srtp], &[]);
                let shown = text(&output);
                assert_eq!(output.status.code(), Some(0), "{shown}\n{log}");
                assert!(
                    shown.contains("round trip") && shown.contains("peer received"),
                    "{shown}"
                );
                for file in ["caller.json", "callee.json"] {
                    let figures = json(&folder, file);
                    let number = |pointer| figures.pointer(pointer).and_then(Value::as_f64);
                    let round_trip = number("/round_trip_ms").expect("a round trip");
                    assert!((0.0..50.0).contains(&round_trip), "{file}: {figures:#}");
                    assert_eq!(number("/peer/lost"), Some(0.0), "{file}: {figures:#}");
                    assert!(number("/peer/jitter_ms") < Some(20.0), "{figures:#}");
                }
            });
        }
    });
}

#[test]
fn srtp_is_negotiated_and_survives_hold() {
    let (folder, output, log) = call(
        "softphone-srtp",
        &[
            "--srtp",
            "sdes",
            "--codec",
            "pcma",
            "--hold-at",
            "2.2",
            "--resume-at",
            "2.6",
        ],
        &[],
    );
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(
        shown.contains("hold: 200") && shown.contains("resume: 200"),
        "{shown}"
    );
    assert!(
        log.contains("has put the call on hold") && log.contains("has resumed"),
        "{log}"
    );
    let figures = json(&folder, "callee.json");
    assert_eq!(figures["protection"], "srtp-sdes");
    assert_eq!(figures["lost"], 0, "{figures:#}");
    // 4 s less the hold: the stream goes on after it, with the same keys.
    assert!(figures["received"].as_u64() > Some(160), "{figures:#}");
    assert_heard(&folder, "callee-heard.wav", codec::speech::speech(), 4.0);
}

#[test]
fn srtp_that_one_side_refuses_ends_the_call() {
    let (_, output, log) = call(
        "softphone-no-srtp",
        &["--srtp", "sdes"],
        &["--srtp", "off", "--wait", "3"],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("488"), "{}", text(&output));
    assert!(log.contains("offers SRTP, which is switched off"), "{log}");
}

#[test]
fn failures_are_named() {
    let folder = scratch("softphone-failures");
    let free = free_port();
    let closed = format!("sip:1@127.0.0.1:{free}");
    let output = phone(&folder, &["call", &closed, "--json", "figures.json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("unreachable over UDP"),
        "{}",
        text(&output)
    );
    assert_eq!(json(&folder, "figures.json")["established"], false);
    // An address at which nothing answers: the phone is ended before the last retransmission.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let address = silent.local_addr().expect("address");
    let mut waiting = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["phone", "call", &format!("sip:1@{address}")])
            .stdin(Stdio::null()),
        &folder.join("silent.log"),
    );
    silent.recv_from(&mut [0; 2_048]).expect("an INVITE");
    waiting.signal("INT");
    assert_eq!(waiting.wait(Duration::from_secs(30)), Some(false));
    let said = format!("not established: no response from {address}\n");
    assert!(waiting.log().contains(&said), "{}", waiting.log());
    let tcp = format!("{closed};transport=tcp");
    let output = phone(&folder, &["call", &tcp]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("unreachable over TCP"),
        "{}",
        text(&output)
    );
    // A call that rings, and a second one meanwhile.
    let port = free_port();
    let local = format!("127.0.0.1:{port}");
    let uri = format!("sip:600@{local}");
    let callee = answering(
        &folder,
        &["--local", &local, "--wait", "30", "--answer-after", "30"],
    );
    let mut first = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["phone", "call", &uri, "--ring-seconds", "4"])
            .stdin(Stdio::null()),
        &folder.join("first.log"),
    );
    assert!(
        until(&first, "progress: 180", Duration::from_secs(30)),
        "{}",
        first.log()
    );
    let output = phone(&folder, &["call", &uri]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("486 Busy Here"), "{}", text(&output));
    assert_eq!(first.wait(Duration::from_secs(30)), Some(false));
    assert!(
        first
            .log()
            .contains("no answer in the time of --ring-seconds"),
        "{}",
        first.log()
    );
    drop(callee);
    let cases: [(&[&str], i32, &str); 23] = [
        (&["call", "tel:+4930"], 2, "no SIP URI"),
        (
            &["call", "sip:a@127.0.0.1", "--wav-in", "missing.wav"],
            2,
            "missing.wav",
        ),
        (&["call", "sip:a@127.0.0.1", "--codec", "gsm"], 2, "gsm"),
        (
            &["call", "sip:a@127.0.0.1", "--dtmf", "12x"],
            2,
            "0123456789",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--wav-out", "/nonexistent/a.wav"],
            3,
            "--wav-out",
        ),
        (&["call", "sip:a@name.invalid"], 3, "name.invalid"),
        (
            &["call", "sip:a@127.0.0.1", "--local", "192.0.2.77"],
            3,
            "192.0.2.77",
        ),
        (
            &["register", "sip:a@127.0.0.1", "--password-file", "missing"],
            2,
            "missing",
        ),
        (&["register", "sip:127.0.0.1"], 2, "names no user"),
        (&["answer", "--local", "0.0.0.0"], 2, "concrete address"),
        (
            &["call", "sips:a@127.0.0.1", "--transport", "tcp"],
            2,
            "--transport tls",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--json", "/nonexistent/a.json"],
            3,
            "--json /nonexistent/a.json",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--local", "::1"],
            2,
            "two families",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--ca", "missing.pem"],
            2,
            "--ca has no effect over UDP",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--tls-name", "a.example"],
            2,
            "--tls-name has no effect over UDP",
        ),
        (
            &["call", "sips:a@127.0.0.1", "--ca", "missing.pem"],
            2,
            "missing.pem",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--seconds", "-1"],
            2,
            "not from 0 to",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--min-mos", "7"],
            2,
            "not from 0 to 5",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--resume-at", "2"],
            2,
            "--hold-at",
        ),
        (
            &[
                "call",
                "sip:a@127.0.0.1",
                "--hold-at",
                "2",
                "--resume-at",
                "1",
            ],
            2,
            "--resume-at",
        ),
        (
            &["call", "sip:a@127.0.0.1", "--transfer-at", "1", "sip:<b>"],
            2,
            "no SIP URI",
        ),
        (
            &["register", &closed, "--password", "x"],
            1,
            "unreachable over UDP",
        ),
        (
            &[
                "call",
                "sip:a@127.0.0.1",
                "--ike",
                "missing.toml",
                "--esp-mode",
                "transport",
            ],
            2,
            "cannot be used with",
        ),
    ];
    for (arguments, code, wanted) in cases {
        let output = phone(&folder, arguments);
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {shown}");
        assert!(shown.contains(wanted), "{arguments:?}: {shown}");
    }
}

/// A key exchange has the settings of its file: an option of manual keys beside it is refused, not ignored.
#[test]
fn options_of_manual_keys_are_refused_beside_a_key_exchange() {
    let folder = scratch("softphone-ike-options");
    for option in [
        &["--esp-mode", "transport"][..],
        &["--esp-mode", "tunnel"],
        &["--esp-over", "ip"],
        &["--esp-local", "127.0.0.1"],
        &["--esp-peer", "127.0.0.1"],
        &["--esp-shortcut", "rtp"],
        &["--esp-allow-weak"],
    ] {
        let mut arguments = vec!["call", "sip:a@127.0.0.1", "--ike", "ike.toml"];
        arguments.extend(option);
        let output = phone(&folder, &arguments);
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(2), "{option:?}: {shown}");
        assert!(
            shown.contains("cannot be used with") && shown.contains("--ike"),
            "{option:?}: {shown}"
        );
    }
}

/// Sends an INVITE to a phone, as a caller that only listens; the socket and the request.
pub fn ringing(callee: &str) -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("timeout");
    let own = socket.local_addr().expect("address");
    let offer = format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {} RTP/AVP 8\r\n",
        free_port()
    );
    let invite = format!(
        "INVITE sip:600@{callee} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bKring\r\nMax-Forwards: 70\r\n\
         From: <sip:a@{own}>;tag=1\r\nTo: <sip:600@{callee}>\r\nCall-ID: ring-{own}\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:a@{own}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{offer}",
        offer.len()
    );
    socket.send_to(invite.as_bytes(), callee).expect("sent");
    socket
}

/// The first final response that arrives.
fn final_status(socket: &std::net::UdpSocket) -> String {
    let mut packet = [0; 2_048];
    loop {
        let length = socket.recv(&mut packet).expect("a final response");
        let text = String::from_utf8_lossy(&packet[..length]).into_owned();
        let status = text.split(' ').nth(1).unwrap_or_default().to_owned();
        if !status.starts_with('1') {
            return status;
        }
    }
}

/// A call that rings is refused on the wire, whether the phone is interrupted or its time is over.
#[test]
fn ringing_call_is_refused_at_the_end() {
    for interrupts in [true, false] {
        let folder = scratch(&format!("softphone-refuses-{interrupts}"));
        let local = format!("127.0.0.1:{}", free_port());
        let wait = if interrupts { "40" } else { "4" };
        let mut callee = Process::start(
            Command::new(env!("CARGO_BIN_EXE_hornwork"))
                .args(["phone", "answer", "--local", &local, "--wait", wait])
                .args(["--answer-after", "30"])
                .stdin(Stdio::null()),
            &folder.join("answer.log"),
        );
        assert!(until(
            &callee,
            "waiting for a call",
            Duration::from_secs(20)
        ));
        let socket = ringing(&local);
        assert!(until(&callee, "call from", Duration::from_secs(30)));
        if interrupts {
            let id = callee.id().to_string();
            let sent = Command::new("kill").args(["-INT", &id]).status();
            assert!(sent.is_ok_and(|status| status.success()));
        }
        assert_eq!(final_status(&socket), "480", "{}", callee.log());
        assert_eq!(callee.wait(Duration::from_secs(30)), Some(false));
    }
}

/// A peer that sends nothing: the call ends with the time of --ring-seconds, not with the transaction after 32 s.
#[test]
fn silent_peer_ends_the_call_in_time() {
    let folder = scratch("softphone-silent");
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    let uri = format!("sip:600@{}", silent.local_addr().expect("address"));
    let begun = std::time::Instant::now();
    let output = phone(&folder, &["call", &uri, "--ring-seconds", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("no response from"),
        "{}",
        text(&output)
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn phone_waits_at_the_port_of_its_transport() {
    let folder = scratch("softphone-ports");
    Authority::new(&folder, "ca").issue("own", "localhost");
    let wait = ["answer", "--local", "127.0.0.77", "--wait", "0"];
    let mut tls = wait.to_vec();
    tls.extend(["--transport", "tls", "--certificate", "own.pem", "--key"]);
    let output = phone(&folder, &[&tls[..], &["own.key"][..]].concat());
    let shown = text(&output);
    assert!(shown.contains("127.0.0.77:5061 over TLS"), "{shown}");
    let output = phone(&folder, &wait);
    let shown = text(&output);
    assert!(shown.contains("127.0.0.77:5060 over UDP"), "{shown}");
    // A key of another certificate, and a file without one.
    Authority::new(&folder, "ca").issue("other", "localhost");
    let output = phone(&folder, &[&tls[..], &["other.key"][..]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let call = ["call", "sips:a@127.0.0.1", "--ca", "own.key"];
    let output = phone(&folder, &call);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

/// The call lasts until the digits are sent.
#[test]
fn digits_are_sent_before_the_call_ends() {
    let (folder, output, log) = call(
        "softphone-digits",
        &["--dtmf", "12345", "--seconds", "1.1"],
        &[],
    );
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}\n{log}");
    assert_eq!(json(&folder, "caller.json")["digits_sent"], "12345");
    assert!(json(&folder, "caller.json")["transfer"].is_null());
    assert_eq!(json(&folder, "callee.json")["digits"], "12345", "{log}");
}

#[test]
fn interrupted_call_is_ended_and_reported() {
    let folder = scratch("softphone-interrupt");
    let local = format!("127.0.0.1:{}", free_port());
    let mut callee = answering(&folder, &["--local", &local, "--wait", "20"]);
    let uri = format!("sip:600@{local}");
    let mut caller = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["phone", "call", &uri, "--json", "figures.json"])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("hornwork");
    assert!(
        until(&callee, "established", Duration::from_secs(30)),
        "{}",
        callee.log()
    );
    std::thread::sleep(Duration::from_millis(500));
    let sent = Command::new("kill")
        .args(["-INT", &caller.id().to_string()])
        .status();
    assert!(sent.is_ok_and(|status| status.success()));
    assert_eq!(caller.wait().expect("status").code(), Some(130));
    assert_eq!(callee.wait(Duration::from_secs(30)), Some(true));
    assert!(
        callee.log().contains("ended by the peer"),
        "{}",
        callee.log()
    );
    let figures = json(&folder, "figures.json");
    assert!(
        figures["established"] == true && figures["sent"].as_u64() > Some(10),
        "{figures:#}"
    );
}

/// A border for users 1000 to 1009, and its port.
fn uc_server(folder: &Path, interface: &str, more: &str) -> (Process, u16) {
    let sip = free_port();
    let text = example("loopback-uc.toml", sip, sip + 1, media_ports(100), more).replace(
        "kind = \"access\"",
        &format!("kind = \"access\"\n{interface}"),
    );
    (border(folder, &text, sip), sip)
}

#[test]
fn registered_phones_call_through_the_border() {
    let folder = scratch("softphone-border");
    let (border, sip) = uc_server(&folder, "srtp = \"prefer\"", "");
    let [said_by_caller, said_by_callee] = speech();
    voice(&folder, "caller.wav", said_by_caller);
    voice(&folder, "callee.wav", said_by_callee);
    std::fs::write(folder.join("1001.password"), "secret-1001\n").expect("file");
    let uri = |user: u16| format!("sip:{user}@127.0.0.1:{sip}");
    let mut callee = answering(
        &folder,
        &[
            "--register",
            &uri(1001),
            "--password-file",
            "1001.password",
            "--wav-in",
            "callee.wav",
            "--loop",
            "--wav-out",
            "callee-heard.wav",
            "--json",
            "callee.json",
            "--wait",
            "30",
            "--codec",
            "pcma",
        ],
    );
    let called = uri(1001);
    let caller = uri(1000);
    let call = |more: &[&str]| {
        let mut arguments: Vec<&str> = vec![
            "call",
            called.as_str(),
            "--user",
            caller.as_str(),
            "--seconds",
            "4",
            "--codec",
            "pcma",
        ];
        arguments.extend(more);
        phone(&folder, &arguments)
    };
    let wrong = call(&["--password", "wrong"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        text(&wrong).contains("the password is wrong"),
        "{}",
        text(&wrong)
    );
    let output = call(&[
        "--password",
        "secret-1000",
        "--srtp",
        "sdes",
        "--wav-in",
        "caller.wav",
        "--loop",
        "--wav-out",
        "caller-heard.wav",
        "--json",
        "caller.json",
        "--dtmf",
        "42",
    ]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}\n{}",
        text(&output),
        border.log()
    );
    assert_eq!(
        callee.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        callee.log()
    );
    assert!(
        callee.log().contains("registration removed"),
        "{}",
        callee.log()
    );
    assert_heard(&folder, "caller-heard.wav", said_by_callee, 4.0);
    assert_heard(&folder, "callee-heard.wav", said_by_caller, 4.0);
    // SRTP on the side of the caller only.
    assert_eq!(json(&folder, "caller.json")["protection"], "srtp-sdes");
    assert_eq!(json(&folder, "callee.json")["protection"], "none");
    assert_eq!(json(&folder, "callee.json")["digits"], "42");
    // The examples of the help texts, at this border.
    for command in ["register", "call", "answer"] {
        let help = text(&phone(&folder, &[command, "--help"]));
        let example = help.lines().find_map(|line| line.strip_prefix("Example: "));
        let example = example
            .expect("an example")
            .replace("5060", &sip.to_string());
        let example = example.replace("601", "1002").replace("600", "1003");
        std::fs::write(folder.join("1002.password"), "secret-1002").expect("file");
        let words: Vec<&str> = example.split(' ').skip(2).collect();
        let output = phone(&folder, &words);
        let shown = text(&output);
        let (code, wanted) = match command {
            "register" => (0, "registration removed"),
            // Nothing is registered as 1003, and the caller is unknown.
            "call" => (1, "the password is wrong"),
            _ => (1, "no call within the time of --wait"),
        };
        assert_eq!(output.status.code(), Some(code), "{example}: {shown}");
        assert!(shown.contains(wanted), "{example}: {shown}");
    }
}

#[test]
fn registration_is_refreshed_and_removed() {
    let folder = scratch("softphone-register");
    let (border, sip) = uc_server(&folder, "", "[registrar]\nmin_expires_s = 2\n");
    let uri = format!("sip:1004@127.0.0.1:{sip}");
    let register = |password: &str, more: &[&str]| {
        let mut arguments: Vec<&str> = vec!["register", uri.as_str(), "--password-env", "SECRET"];
        arguments.extend(more);
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .arg("phone")
            .args(&arguments)
            .current_dir(&folder)
            .env("SECRET", password)
            .stdin(Stdio::null())
            .output()
            .expect("hornwork")
    };
    let output = register(
        "secret-1004",
        &["--expires", "4", "--seconds", "5", "--json", "r.json"],
    );
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}\n{}", border.log());
    for wanted in [
        "registered for",
        "registration refreshed",
        "registration removed",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert_eq!(json(&folder, "r.json")["established"], true);
    let output = register("wrong", &["--seconds", "5"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("the password is wrong"),
        "{}",
        text(&output)
    );
}

/// A phone declines transfers, and the call goes on.
#[test]
fn refused_transfer_leaves_the_call() {
    let (folder, output, log) = call(
        "softphone-transfer",
        &["--transfer-at", "1", "sip:7@127.0.0.1"],
        &[],
    );
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}\n{log}");
    assert!(shown.contains("transfer: refused with 603"), "{shown}");
    let figures = json(&folder, "caller.json");
    assert!(figures["received"].as_u64() > Some(150), "{figures:#}");
    let transfer = serde_json::json!({ "to": "sip:7@127.0.0.1", "status": 603 });
    assert_eq!(figures["transfer"], transfer);
}

#[test]
fn tls_verifies_the_certificate() {
    let folder = scratch("softphone-tls");
    Authority::new(&folder, "ca").issue("first", "localhost");
    Authority::new(&folder, "other");
    let (port, tls) = (free_port(), free_port());
    let (first, last) = media_ports(100);
    let users: String = [1002, 1003]
        .map(|user| format!("[[user]]\nname = \"{user}\"\npassword = \"secret-{user}\"\n\n"))
        .concat();
    let [chain, key] = ["first.pem", "first.key"].map(|name| folder.join(name));
    let configuration = format!(
        "[[interface]]\nname = \"phones\"\nlisten = [\"udp:127.0.0.1:{port}\", \"tls:127.0.0.1:{tls}\"]\n\
         authenticate = \"digest\"\nsrtp = \"prefer\"\nmedia = {{ ports = \"{first}-{last}\" }}\n\
         tls = {{ certificate = {{ chain = \"{}\", key = \"{}\" }} }}\n\n{users}",
        chain.display(),
        key.display(),
    );
    let border = border(&folder, &configuration, port);
    let uri = |user: u16| format!("sip:{user}@localhost:{tls};transport=tls");
    let local = ["--local", "127.0.0.1"];
    let mut callee = answering(
        &folder,
        &[
            &[
                "--register",
                &uri(1003),
                "--password",
                "secret-1003",
                "--ca",
                "ca.pem",
                "--wait",
                "30",
                "--json",
                "callee.json",
            ][..],
            &local[..],
        ]
        .concat(),
    );
    let call = |more: &[&str]| {
        let (called, caller) = (uri(1003), uri(1002));
        let mut arguments: Vec<&str> = vec![
            "call",
            &called,
            "--user",
            &caller,
            "--password",
            "secret-1002",
            "--seconds",
            "3",
            "--srtp",
            "sdes",
        ];
        arguments.extend(local);
        arguments.extend(more);
        phone(&folder, &arguments)
    };
    let stranger = call(&["--ca", "other.pem"]);
    assert_eq!(stranger.status.code(), Some(1), "{}", text(&stranger));
    assert!(text(&stranger).contains("TLS: "), "{}", text(&stranger));
    let name = call(&["--ca", "ca.pem", "--tls-name", "example.com"]);
    assert_eq!(name.status.code(), Some(1), "{}", text(&name));
    let output = call(&["--ca", "ca.pem", "--json", "caller.json"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}\n{}\n{}",
        text(&output),
        callee.log(),
        border.log()
    );
    assert_eq!(
        callee.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        callee.log()
    );
    let figures = json(&folder, "caller.json");
    assert_eq!(figures["transport"], "TLS");
    assert_eq!(figures["protection"], "srtp-sdes");
    assert!(figures["received"].as_u64() > Some(100), "{figures:#}");
    assert_eq!(json(&folder, "callee.json")["transport"], "TLS");
    // Without verification the same stranger's authority does not matter; the call is refused, as no user is
    // registered.
    let insecure = call(&["--insecure"]);
    assert!(!text(&insecure).contains("TLS: "), "{}", text(&insecure));
}

#[test]
fn commands_are_read_from_standard_input() {
    let folder = scratch("softphone-commands");
    let local = format!("127.0.0.1:{}", free_port());
    let mut callee = answering(&folder, &["--local", &local, "--wait", "20"]);
    let line = format!(
        "(sleep 1; echo 77; sleep 1; echo h; sleep 0.5; echo h; sleep 0.5; echo nonsense; echo q) | {} phone call sip:600@{local} --commands",
        env!("CARGO_BIN_EXE_hornwork")
    );
    let output = Command::new("sh")
        .args(["-c", &line])
        .output()
        .expect("a shell");
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(
        shown.contains("hold: 200") && shown.contains("resume: 200"),
        "{shown}"
    );
    assert!(shown.contains("\"nonsense\" is no command"), "{shown}");
    callee.wait(Duration::from_secs(10));
    assert!(
        callee.log().contains("digits received  77"),
        "{}",
        callee.log()
    );
}

#[test]
fn real_time_mode_names_missing_rights() {
    let folder = scratch("softphone-real-time");
    let dropped = Command::new("setpriv")
        .args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--reuid",
            "65534",
            "--clear-groups",
            "true",
        ])
        .status();
    if !dropped.is_ok_and(|status| status.success()) {
        eprintln!("skipped: cannot drop rights (setpriv)");
        return;
    }
    let output = Command::new("setpriv")
        .args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--reuid",
            "65534",
            "--clear-groups",
        ])
        .args([
            env!("CARGO_BIN_EXE_hornwork"),
            "phone",
            "call",
            "sip:a@127.0.0.1",
            "--real-time",
        ])
        .current_dir(&folder)
        .output()
        .expect("setpriv");
    let shown = text(&output);
    if !shown.contains("--real-time") && output.status.code() != Some(3) {
        eprintln!("skipped: the program is not readable for other users: {shown}");
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{shown}");
    assert!(
        shown.contains("SCHED_FIFO") && shown.contains("CAP_SYS_NICE"),
        "{shown}"
    );
}
