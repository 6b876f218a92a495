//! The command line: exit codes, messages, files.

use crate::common;
use crate::common::certificates;

use certificates::Authority;
use common::{installed, root, scratch, testdata};
use std::os::unix::fs::PermissionsExt as _;
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
    output.status.code().expect("an exit status")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_example_is_valid() {
    let mut seen = 0;
    // File names in examples are relative to their folder.
    let folder = scratch("examples");
    Authority::new(&folder, "ca").issue("sip", "sip.example.com");
    for entry in std::fs::read_dir(root().join("examples"))
        .expect("examples")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            continue;
        }
        let example = folder.join(path.file_name().expect("a name"));
        std::fs::copy(&path, &example).expect("copy");
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["check", "-c"])
            .arg(&example)
            .output()
            .expect("the program starts");
        assert_eq!(code(&output), 0, "{}: {}", path.display(), error(&output));
        let log = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(log.contains("interface"));
        seen += 1;
        if path.ends_with("media-node.toml") {
            assert!(
                log.contains("media node: commands on udp:127.0.0.1:2223"),
                "{log}"
            );
            continue;
        }
        if path.ends_with("media-nodes.toml") {
            assert!(
                log.contains("media node two: commanded at udp:10.0.0.32:2223, weight 2"),
                "{log}"
            );
        }
        // The capacity of this machine is computed and printed.
        assert!(
            log.contains("capacity: ") && log.contains("of a core; beyond that 503"),
            "{log}"
        );
        let never = "media path: sockets (`[media] kernel_relay` and `af_xdp` are \"never\"; ";
        assert!(log.contains(never), "{log}");
    }
    assert!(seen >= 5, "{seen} examples");
}

#[test]
fn check_prints_media_path_and_capacity() {
    let folder = scratch("check-path");
    let file = folder.join("kernel.toml");
    let config = |address: &str| {
        format!(
            "[[interface]]\nname = \"x\"\nlisten = \"udp:{address}:5060\"\nmedia = {{ address = \"{address}\", ports = \"6000-32001\" }}\n\
             [media]\nkernel_relay = \"auto\"\n"
        )
    };
    let log = |address: &str| {
        std::fs::write(&file, config(address)).expect("file");
        let output = hornwork(&["check", &file.display().to_string()]);
        assert_eq!(code(&output), 0, "{}", error(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let loopback = log("127.0.0.1");
    let but = "media path: sockets (`[media] kernel_relay = \"auto\"`, but ";
    assert!(loopback.contains(but), "{loopback}");
    let calls = |log: &str| -> u64 {
        let rest = log.split("capacity: ").nth(1).expect("capacity");
        rest.split(' ').next().unwrap().parse().expect("a number")
    };
    // Depends on the capabilities of the user that runs this test, and on its kernel.
    let other = log("192.0.2.1");
    match other.contains("media path: kernel (assumed: ") {
        true => {
            assert!(
                other.contains(" calls with anchored media in the kernel, "),
                "{other}"
            );
            assert!(calls(&other) > 3 * calls(&loopback), "{other}");
        }
        false => {
            let lacks =
                other.contains("this process lacks CAP_") || other.contains("it needs Linux");
            assert!(lacks, "{other}");
            assert_eq!(calls(&other), calls(&loopback), "{other}");
        }
    }
}

#[test]
fn every_mistake_is_reported_with_line_and_remedy() {
    let folder = scratch("check");
    let file = folder.join("bad.toml");
    std::fs::write(
        &file,
        "[[interface]]\nname = \"x\"\nlisten = \"udp:192.0.2.1:99999\"\nfoo = 1\n[[trnk]]\n",
    )
    .expect("file");
    let output = hornwork(&["check", "-c", &file.display().to_string()]);
    assert_eq!(code(&output), 2);
    let log = error(&output);
    for word in [
        "bad.toml:4:1:",
        "`foo`",
        "bad.toml:5:3:",
        "did you mean `trunk`",
        "remedy:",
    ] {
        assert!(log.contains(word), "{word} is not in:\n{log}");
    }
}

/// An interface in three lines, to which a mistake is added.
const INTERFACE: &str = "[[interface]]\nname = \"out\"\nlisten = \"udp:192.0.2.1:5060\"\n";
const PBX: &str = "[[trunk]]\nname = \"pbx\"\ntarget = \"10.0.0.1\"\n";

/// Typical mistakes of voice engineers: a name, the text after the interface (or the whole file if it begins with
/// `[[interface]]`), the line of the mistake, its message, and its remedy.
const MISTAKES: &[(&str, &str, usize, &str, &str)] = &[
    (
        "a key that is spelt wrongly",
        "alow = \"10.0.0.0/8\"",
        4,
        "unknown key `alow`",
        "did you mean `allow`?",
    ),
    (
        "a table that is spelt wrongly",
        "[[trunks]]\nname = \"pbx\"",
        4,
        "`trunks`",
        "did you mean `trunk`?",
    ),
    (
        "one bracket where two belong",
        "[[interface]\nname = \"out\"",
        1,
        "not TOML",
        "[[name]]",
    ),
    (
        "a number in quotes",
        "[[trunk]]\nname = \"pbx\"\ntarget = \"10.0.0.1\"\nping_interval_s = \"10\"",
        7,
        "`ping_interval_s` must be a whole number",
        "without quotes",
    ),
    (
        "a range of ports turned round",
        "media = { ports = \"39999-20000\" }",
        4,
        "the port range 39999-20000 is empty",
        "FIRST-LAST",
    ),
    (
        "ranges of ports that overlap",
        "media = { ports = \"20000-29999\" }\n[[interface]]\nname = \"in\"\nlisten = \"udp:192.0.2.1:5070\"\nmedia = { ports = \"25000-34999\" }",
        8,
        "overlap with 20000-29999 in line 4",
        "the same range",
    ),
    (
        "a listening port among the media ports",
        "[[interface]]\nname = \"out\"\nlisten = \"udp:192.0.2.1:25000\"\nmedia = { ports = \"20000-29999\" }",
        3,
        "is one of the media ports",
        "change the listening port",
    ),
    (
        "one listening point for two interfaces",
        "[[interface]]\nname = \"in\"\nlisten = \"udp:192.0.2.1:5060\"",
        6,
        "is already used by",
        "another port or address",
    ),
    (
        "no transport",
        "[[interface]]\nname = \"out\"\nlisten = \"192.0.2.1:5060\"",
        3,
        "has no transport",
        "\"udp:192.0.2.1:5060\"",
    ),
    (
        "a transport that there is not",
        "[[interface]]\nname = \"out\"\nlisten = \"sctp:192.0.2.1:5060\"",
        3,
        "sctp is not available",
        "wss:",
    ),
    (
        "every address, and none to tell others",
        "[[interface]]\nname = \"out\"\nlisten = \"udp:0.0.0.0:5060\"",
        3,
        "listens on all addresses",
        "add `advertise`",
    ),
    (
        "a network that is none",
        "allow = \"10.0.0.0/33\"",
        4,
        "\"33\" is no prefix length",
        "192.0.2.0/24",
    ),
    (
        "an interface that there is not",
        "[[trunk]]\nname = \"pbx\"\ninterface = \"outt\"\ntarget = \"10.0.0.1\"",
        6,
        "no interface \"outt\"",
        "\"out\"",
    ),
    (
        "a trunk that there is not",
        "[[route]]\ntrunk = \"pbx\"",
        5,
        "no trunk \"pbx\"",
        "add a [[trunk]]",
    ),
    (
        "registrations passed to a trunk that there is not",
        "register = \"pass:pbxx\"\n[[trunk]]\nname = \"pbx\"\ntarget = \"10.0.0.1\"",
        4,
        "no trunk \"pbxx\"",
        "did you mean \"pbx\"?",
    ),
    (
        "a URI where a host belongs",
        "[[trunk]]\nname = \"pbx\"\ntarget = \"sip:10.0.0.1:5060\"",
        6,
        "neither a host name nor an address",
        "HOST:PORT",
    ),
    (
        "a target of another address family",
        "[[trunk]]\nname = \"pbx\"\ntarget = \"udp:[2001:db8::1]:5060\"",
        6,
        "of different address families",
        "add an address of that family to `listen`",
    ),
    (
        "a regular expression that is broken",
        "PBX[[route]]\nto = { regex = \"(00|+\" }\ntrunk = \"pbx\"",
        8,
        "is not a valid regular expression",
        "'...' preserves backslashes",
    ),
    (
        "a group that the expression has not",
        "PBX[[route]]\nto = { regex = \"00(.*)\" }\nreplace = \"+$2\"\ntrunk = \"pbx\"",
        9,
        "has no group 2",
        "0 to 1",
    ),
    (
        "a route without an action",
        "[[route]]\nto = { prefix = \"0\" }",
        4,
        "the route has no action",
        "exactly one of",
    ),
    (
        "a user without a password",
        "[[user]]\nname = \"1000\"",
        4,
        "no password",
        "add `password` or `ha1`",
    ),
    (
        "digest without users",
        "authenticate = \"digest\"",
        4,
        "no user",
        "add a [[user]]",
    ),
];

#[test]
fn typical_mistakes_are_explained() {
    let folder = scratch("mistakes");
    for (name, text, line, message, remedy) in MISTAKES {
        let text = text.replace("PBX", PBX);
        let whole = text.starts_with("[[interface]") && !text.contains("\"in\"");
        let text = match whole {
            true => text,
            false => format!("{INTERFACE}{text}"),
        };
        let file = folder.join("bad.toml");
        std::fs::write(&file, format!("{text}\n")).expect("file");
        let output = hornwork(&["check", "-c", &file.display().to_string()]);
        let log = error(&output);
        assert_eq!(code(&output), 2, "{name}: {log}");
        assert!(output.stdout.is_empty(), "{name}");
        let place = log
            .lines()
            .position(|l| l.contains(&format!("bad.toml:{line}:")) && l.contains(message))
            .unwrap_or_else(|| panic!("{name}: {message:?} in line {line} is not in\n{log}"));
        let printed = log
            .lines()
            .skip(place)
            .find(|l| l.trim_start().starts_with("remedy:"));
        assert!(
            printed.is_some_and(|printed| printed.contains(remedy)),
            "{name}: {remedy:?} is not in {printed:?}"
        );
    }
}

#[test]
fn foreign_address_is_a_hint_and_prevents_the_start() {
    let folder = scratch("foreign-address");
    let file = folder.join("foreign.toml");
    std::fs::write(&file, INTERFACE).expect("file");
    let path = file.display().to_string();
    let output = hornwork(&["check", "-c", &path]);
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code(&output), 0, "the file may be for another machine");
    assert!(
        log.contains("hint: 192.0.2.1 is not an address of this machine"),
        "{log}"
    );
    let output = hornwork(&["run", "-c", &path]);
    assert_eq!(code(&output), 3);
    let log = error(&output);
    assert!(
        log.contains("192.0.2.1:5060") && log.contains("remedy:"),
        "{log}"
    );
}

/// A warning is a mistake only with `--strict`.
#[test]
fn missing_authentication_is_a_warning_and_rejected_with_strict() {
    let folder = scratch("warnings");
    let file = folder.join("open.toml");
    let trunk = "[[trunk]]\nname = \"pbx\"\ntarget = \"192.0.2.2\"\n";
    let path = file.display().to_string();
    std::fs::write(
        &file,
        format!("{INTERFACE}register = \"pass:pbx\"\n{trunk}"),
    )
    .expect("file");
    for (options, wanted) in [(&[][..], 0), (&["--strict"], 2)] {
        let output = hornwork(&[&["check", "-c", &path], options].concat());
        let log = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(code(&output), wanted, "{options:?}");
        let warnings = log.lines().filter(|line| line.starts_with("WARNING: "));
        let warnings: Vec<&str> = warnings.collect();
        assert!(
            warnings.len() == 1 && warnings[0].contains("reaches trunk pbx without authentication"),
            "{log}"
        );
    }
    let by_trunk = format!("{INTERFACE}register = \"pass:pbx\"\nauthenticate = \"trunk\"\n{trunk}");
    std::fs::write(&file, by_trunk).expect("file");
    let output = hornwork(&["check", "-c", &path, "--strict"]);
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(code(&output) == 0 && !log.contains("WARNING"), "{log}");
}

#[test]
fn missing_file_is_invalid_input() {
    let output = hornwork(&["check", "-c", "no/such/file.toml"]);
    assert_eq!(code(&output), 2);
    assert!(error(&output).contains("no/such/file.toml"));
    // Both commands of a newcomer name the remedy, and so does the JSON.
    let missing = ["-c", "no/such/file.toml"];
    let remedy = "name your file with -c; examples are in /usr/share/doc/hornwork/examples";
    for command in ["check", "run"] {
        let output = hornwork(&[&[command][..], &missing].concat());
        assert_eq!(code(&output), 2);
        let text = error(&output);
        assert!(text.contains(&format!("\n  remedy: {remedy}")), "{text}");
    }
    let output = hornwork(&[&["check", "--json"][..], &missing].concat());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let given = found[0]["remedy"].as_str().unwrap_or_default();
    assert!(given.starts_with(remedy), "{found}");
}

#[test]
fn schema_is_json_and_describes_every_table() {
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
fn file_that_is_no_capture_is_invalid_input() {
    let output = hornwork(&["lab", "analyse", "Cargo.toml"]);
    assert_eq!(code(&output), 2);
    assert!(!error(&output).is_empty());
}

#[test]
fn esp_key_file_opens_a_capture() {
    let Some(data) = testdata() else { return };
    let folder = scratch("esp-keys");
    let keys = folder.join("esp_sa");
    let line = r#""IPv4","*","*","0xd1234567","AES-CBC [RFC3602]","0xaaaabbbbccccdddd4043434545464649494a4a4c4c4f4f515152525454575758","ANY 96 bit authentication [no checking]","""#;
    let capture = data.join("captures/esp/tcpdump-aes256-tunnel.pcap");
    let run = |text: &str| {
        std::fs::write(&keys, text).expect("a scratch folder");
        let (capture, keys) = (capture.display().to_string(), keys.display().to_string());
        hornwork(&["lab", "analyse", &capture, "--keys", &keys, "--json", "-"])
    };
    let output = run(line);
    assert_eq!(code(&output), 0, "{}", error(&output));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(figures["esp"][0]["opened"], 8);
    assert!(
        error(&output).contains("line 1: SPI 0xd1234567 from any address to any address: no usable line for the other direction"),
        "{}",
        error(&output)
    );
    let output = run(&format!(
        "{line}\n{}",
        line.replace("AES-CBC [RFC3602]", "AES")
    ));
    // A line for other associations does not matter.
    assert_eq!(code(&output), 0);
    assert!(
        error(&output).contains("line 2: left out: unknown encryption \"AES\""),
        "{}",
        error(&output)
    );
    std::fs::remove_file(&keys).expect("written above");
    let missing = keys.display().to_string();
    let output = hornwork(&[
        "lab",
        "analyse",
        &capture.display().to_string(),
        "--keys",
        &missing,
    ]);
    assert_eq!(code(&output), 2);
    assert!(error(&output).contains(&missing));
}

#[test]
fn analysis_output_follows_contract() {
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

#[test]
fn demo_output_follows_contract() {
    let folder = scratch("demo");
    let (json, out) = (folder.join("demo.json"), folder.join("results"));
    let output = hornwork(&[
        "demo",
        "--seconds",
        "10",
        "--json",
        &json.display().to_string(),
        "--out",
        &out.display().to_string(),
    ]);
    let log = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        error(&output)
    );
    // 1: a response-time threshold may fail on a machine that is busy with other tests.
    assert!(matches!(code(&output), 0 | 1), "{log}");
    let figures: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("figures")).expect("JSON");
    let number = |path: &str| {
        figures
            .pointer(path)
            .and_then(serde_json::Value::as_f64)
            .unwrap_or_else(|| panic!("{path} is no number in {figures}"))
    };
    let attempted = number("/calls/attempted");
    assert!(attempted >= 40.0, "{log}");
    assert_eq!(number("/calls/established"), attempted, "{log}");
    assert_eq!(number("/calls/completed"), attempted, "{log}");
    assert_eq!(number("/calls/failed"), 0.0, "{log}");
    assert!(number("/response_ms/p50") <= number("/response_ms/p99"));
    assert!(number("/jitter_ms/mean") <= number("/jitter_ms/max"));
    assert!(number("/jitter_ms/p99") <= number("/jitter_ms/max"));
    assert!(number("/lost_percent") < 1.0, "{log}");
    assert!((3.0..=4.5).contains(&number("/mos")), "{log}");
    assert!(number("/audio/correlation") > 0.8, "{log}");
    assert!(number("/audio/level_db").abs() < 1.0, "{log}");
    assert!(number("/cpu_us_per_call") > 100.0, "{log}");
    // CPU time of signalling and media, or on a busy machine the reason why they were not separated.
    let planes = &figures["planes"];
    match planes["undivided"].as_str() {
        Some("") => {
            let (call, packet) = (
                number("/planes/signalling_us_per_call"),
                number("/planes/media_us_per_packet"),
            );
            assert!(call > 10.0 * packet, "{figures}");
            assert!(call < number("/cpu_us_per_call"), "{figures}");
        }
        Some(reason) => assert!(log.contains("could not be separated"), "{reason}: {log}"),
        None => panic!("{figures}"),
    }
    let report = figures["report"].as_str().expect("a path");
    assert!(Path::new(report).is_file() && log.contains(report), "{log}");
}

#[test]
fn demo_that_cannot_run_fails_at_once() {
    for (arguments, ended, word) in [
        (&["demo", "--seconds", "5"][..], 2, "from 10 to 90"),
        (&["demo", "--json", "no/such/folder/x.json"], 3, "--json"),
        (&["demo", "--out", "/proc/x"], 3, "--out"),
    ] {
        let output = hornwork(arguments);
        let log = error(&output);
        assert_eq!(code(&output), ended, "{log}");
        assert!(log.contains(word), "{log}");
    }
    // The port may be in use already, which serves the same purpose.
    let _taken = std::net::UdpSocket::bind("127.0.0.1:5060");
    let output = hornwork(&["demo", "--stay"]);
    let log = error(&output);
    assert_eq!(code(&output), 3, "{log}");
    assert!(
        log.contains("127.0.0.1:5060") && log.contains("remedy:"),
        "{log}"
    );
}

/// An hour of work is not lost for a folder that does not exist.
#[test]
fn place_of_the_results_is_tried_before_the_work() {
    let json = ["--json", "no/such/folder/x.json"];
    for arguments in [
        &["lab", "run", "small-network", "--simulate"][..],
        &["lab", "run", "study-u", "--quick", "--simulate"],
        &["lab", "run", "study-c", "--quick"],
        &["lab", "search", "call-rate", "--simulate"],
        &["lab", "datasheet", "--out", "target/no-datasheet"],
        &[
            "lab",
            "plan",
            "--subscribers=1000",
            "--busy-hour-calls=2",
            "--hold=120",
            "--protection=none",
        ],
        &["lab", "link", "--a", "none0", "--b", "none1"],
        &["lab", "conversation", "--delay-ms", "10"],
    ] {
        let output = hornwork(&[arguments, &json].concat());
        let log = error(&output);
        assert_eq!(code(&output), 3, "{arguments:?}: {log}");
        let words = [
            "--json no/such/folder/x.json",
            "make the directory no/such/folder first",
        ];
        assert!(
            words.iter().all(|words| log.contains(words)),
            "{arguments:?}: {log}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    for arguments in [
        &["lab", "run", "small-network", "--out", "/proc/x"][..],
        &["lab", "datasheet", "--quick", "--out", "Cargo.toml/x"],
    ] {
        let output = hornwork(arguments);
        let log = error(&output);
        assert_eq!(code(&output), 3, "{arguments:?}: {log}");
        assert!(
            log.contains("--out") && log.contains("remedy:"),
            "{arguments:?}: {log}"
        );
    }
    assert!(!root().join("no").exists() && !root().join("target/no-datasheet").exists());
}

/// The destination of calls without routes, one line for each interface.
#[test]
fn check_prints_the_destination_of_calls_without_routes() {
    let folder = scratch("destinations");
    let file = folder.join("border.toml");
    let lines = |path: &Path| {
        let output = hornwork(&["check", &path.display().to_string()]);
        assert_eq!(code(&output), 0, "{}", error(&output));
        let log = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = log.lines().filter(|line| line.starts_with("calls"));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(
        lines(&root().join("packaging/hornwork.toml")),
        [
            "calls from outside: to pbx",
            "calls from inside: from trunk pbx to the registered user, otherwise refused; from other sources refused",
        ]
    );
    let written = |text: &str| {
        std::fs::write(&file, text).expect("file");
        lines(&file)
    };
    let core = "[[interface]]\nname = \"inside\"\nkind = \"core\"\nlisten = \"udp:127.0.0.2:5060\"\n\
        [[trunk]]\nname = \"pbx\"\ninterface = \"inside\"\ntarget = \"192.0.2.2\"\n";
    let access = |keys: &str| {
        format!("[[interface]]\nname = \"outside\"\nlisten = \"udp:127.0.0.1:5060\"\n{keys}")
    };
    let user = "[[user]]\nname = \"1\"\npassword = \"x\"\n";
    let local = access("register = \"local\"\nauthenticate = \"digest\"\n");
    let outside = "calls from outside: to the registered user, otherwise to pbx";
    assert_eq!(
        written(&format!("{local}{core}{user}")),
        [
            outside,
            "calls from inside: from trunk pbx to the registered user, otherwise refused; from other sources refused",
        ]
    );
    // A registrar without authentication is configured explicitly, and warned of.
    let registrar = core.replace("kind = \"core\"", "kind = \"core\"\nregister = \"local\"");
    assert_eq!(
        written(&format!("{local}{registrar}{user}")),
        [
            outside,
            "calls from inside: from trunk pbx to the registered user, otherwise refused; from other sources to the registered user, otherwise to pbx",
        ]
    );
    let carrier =
        "[[trunk]]\nname = \"carrier\"\ninterface = \"outside\"\ntarget = \"192.0.2.3\"\n";
    assert_eq!(
        written(&format!("{}{core}{carrier}", access(""))),
        [
            "calls from outside: from trunk carrier to pbx; from other sources to pbx, carrier",
            "calls from inside: from trunk pbx to carrier; from other sources refused",
        ]
    );
    let route = "[[route]]\ntrunk = \"pbx\"\n";
    let none: [&str; 0] = [];
    assert_eq!(written(&format!("{}{core}{route}", access(""))), none);
}

/// Lines that are not TOML, unknown keys, contradictions and missing files, each in its own part of one file.
#[test]
fn mistakes_of_all_stages_are_reported_at_once() {
    let folder = scratch("all-stages");
    let file = folder.join("bad.toml");
    let path = file.display().to_string();
    let printed = |text: &str, options: &[&str]| {
        std::fs::write(&file, text).expect("file");
        let output = hornwork(&[&["check", &path], options].concat());
        assert_eq!(code(&output), 2, "{}", error(&output));
        output
    };
    // Two lines that are not TOML, and an unknown key.
    let syntax = format!(
        "{INTERFACE}allow = [\"10.0.0.0/8\"\n\n[[trunk]]\nname = pbx\ntarget = \"192.0.2.2\"\nweigth = 2\n"
    );
    let syntax = syntax.replace("allow = [\"10.0.0.0/8\"\n", "max_calls = = 3\n");
    let log = error(&printed(&syntax, &[]));
    assert_eq!(log.matches("this is not TOML").count(), 2, "{log}");
    assert!(log.contains("unknown key `weigth`"), "{log}");
    assert!(log.contains("3 mistakes"), "{log}");

    // An unknown key, a route to a missing trunk, and missing certificates.
    let text = format!(
        "{INTERFACE}\n[[interface]]\nname = \"safe\"\nlisten = \"tls:127.0.0.1:5061\"\n[interface.tls]\n\
         certificate = {{ chain = \"absent.pem\", key = \"absent.key\" }}\n\n\
         [[trunk]]\nname = \"pbx\"\ntarget = \"192.0.2.2\"\nweigth = 2\n\n\
         [[route]]\nname = \"r\"\ntrunk = \"nowhere\"\n"
    );
    let log = error(&printed(&text, &[]));
    for part in ["unknown key `weigth`", "nowhere", "absent.pem"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let output = printed(&text, &["--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = found.as_array().expect("an array");
    assert!(found.len() >= 3, "{found:?}");
    for one in found {
        assert_eq!(one["level"], "mistake");
        assert_eq!(one["file"], path.as_str());
        assert!(one["line"].as_u64() > Some(0));
        for key in ["message", "remedy"] {
            assert!(
                one[key].as_str().is_some_and(|text| !text.is_empty()),
                "{one}"
            );
        }
    }
    let lines: Vec<u64> = found
        .iter()
        .filter_map(|one| one["line"].as_u64())
        .collect();
    assert!(lines.is_sorted(), "{lines:?}");
}

/// The file of the page on upgrades: a former name is found by its line.
#[test]
fn renamed_settings_have_lines_in_json() {
    let page = std::fs::read_to_string(root().join("docs/how-to/upgrade.md")).expect("page");
    let text = page.split("```toml border.toml\n").nth(1).expect("a file");
    let text = text.split("```").next().expect("its end");
    let file = scratch("check-renamed").join("border.toml");
    std::fs::write(&file, text).expect("file");
    let output = hornwork(&["check", "--json", &file.display().to_string()]);
    assert_eq!(code(&output), 0, "{}", error(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = found.as_array().expect("an array");
    let renamed = found.iter().filter(|one| {
        let message = one["message"].as_str().unwrap_or_default();
        one["level"] == "warning" && message.contains(" is now ")
    });
    let lines: Vec<&serde_json::Value> = renamed.map(|one| &one["line"]).collect();
    assert_eq!(lines, [6, 6, 17], "{found:#?}");
    let plain = hornwork(&["check", &file.display().to_string()]);
    let plain = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(
        plain.contains("border.toml:6:1: interface.rates is now interface.rate_limits; "),
        "{plain}"
    );
}

/// Warnings about former names do not wait for the corrections of mistakes, and other warnings name their table.
#[test]
fn warnings_have_places_and_do_not_wait_for_corrections() {
    let folder = scratch("check-warnings");
    let file = folder.join("border.toml");
    let path = file.display().to_string();
    let interface = "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1:5060\"\n";
    let text = format!("{interface}weigth = 1\n[sip]\ncoalesce = 8\n");
    std::fs::write(&file, text).expect("file");
    let output = hornwork(&["check", &path]);
    assert_eq!(code(&output), 2);
    let log = error(&output);
    for part in [
        "unknown key `weigth`",
        "border.toml:6:1: sip.coalesce is now",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let output = hornwork(&["check", "--json", &path]);
    assert_eq!(code(&output), 2);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let levels: Vec<(&str, u64, u64)> = found
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(|one| {
            let number = |key: &str| one[key].as_u64();
            Some((one["level"].as_str()?, number("line")?, number("column")?))
        })
        .collect();
    assert_eq!(levels, [("mistake", 4, 1), ("warning", 6, 1)], "{found:#}");
    // An open registrar, below another table.
    let open = format!(
        "[sip]\n{interface}register = \"local\"\n[[user]]\nname = \"1\"\npassword = \"secret-1\"\n"
    );
    std::fs::write(&file, open).expect("file");
    let output = hornwork(&["check", "--json", &path]);
    assert_eq!(code(&output), 0, "{}", error(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let warning = found
        .as_array()
        .expect("an array")
        .iter()
        .find(|one| one["level"] == "warning")
        .unwrap_or_else(|| panic!("a warning: {found:#}"));
    assert_eq!(warning["line"], 2, "{found:#}");
}

/// A right that the gateway lacks is in the array as well as the reason of exit status 3.
#[test]
fn missing_right_of_the_gateway_is_in_the_json() {
    if !installed(&["setpriv"]) {
        return;
    }
    let folder = scratch("check-rights");
    let file = folder.join("gateway.toml");
    let keys = "\"IPv4\",\"192.0.2.1\",\"192.0.2.2\",\"0x0000c001\",\"AES-GCM with 16 octet ICV [RFC4106]\",\"0x000102030405060708090a0b0c0d0e0f10111213\",\"NULL\",\"\"\n";
    let back = keys
        .replace("192.0.2.1\",\"192.0.2.2", "192.0.2.2\",\"192.0.2.1")
        .replace("c001", "c002")
        .replace("0x0001", "0xff01");
    let key_file = folder.join("esp.keys");
    std::fs::write(&key_file, format!("{keys}{back}")).expect("keys");
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).expect("mode");
    std::fs::write(
        &file,
        "[gateway]\nlocal = \"192.0.2.1\"\nkey_file = \"esp.keys\"\n[[gateway.tunnel]]\nname = \"x\"\npeer = \"192.0.2.2\"\n\
         local_networks = \"10.1.0.0/24\"\nremote_networks = \"10.2.0.0/24\"\n",
    )
    .expect("file");
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"])
        .arg(env!("CARGO_BIN_EXE_hornwork"))
        .args(["check", "--json"])
        .arg(&file)
        .output()
        .expect("setpriv");
    if code(&output) != 3 {
        eprintln!(
            "skipped: rights are not taken away here: {}",
            error(&output)
        );
        return;
    }
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let reason = &found[0];
    assert_eq!(reason["level"], "mistake", "{found:#}");
    let message = reason["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("[gateway]") || message.contains("TUN"),
        "{found:#}"
    );
    assert!(reason["remedy"].is_string(), "{found:#}");
}

#[test]
fn valid_configuration_gives_its_warnings_as_json() {
    let folder = scratch("check-json");
    let file = folder.join("open.toml");
    let trunk = "[[trunk]]\nname = \"pbx\"\ntarget = \"192.0.2.2\"\n";
    let text = format!("{INTERFACE}register = \"pass:pbx\"\n{trunk}");
    std::fs::write(&file, text).expect("file");
    let path = file.display().to_string();
    // No colours without a terminal.
    let output = hornwork(&["check", &path]);
    assert!(!output.stdout.contains(&0x1b));
    for (options, wanted) in [(&["--json"][..], 0), (&["--json", "--strict"], 2)] {
        let output = hornwork(&[&["check", &path], options].concat());
        assert_eq!(code(&output), wanted, "{options:?}");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let found = found.as_array().expect("an array");
        let levels: Vec<&str> = found
            .iter()
            .filter_map(|one| one["level"].as_str())
            .collect();
        assert!(
            levels.contains(&"warning") && levels.contains(&"hint"),
            "{levels:?}"
        );
        let warning = found
            .iter()
            .find(|one| one["level"] == "warning")
            .expect("one");
        assert!(
            warning["message"]
                .as_str()
                .is_some_and(|text| text.contains("trunk pbx"))
        );
    }
}
