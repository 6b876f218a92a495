//! The pages of the web console in Chromium: their own tests (`npm test`) against a server with invented data, and the
//! console of a running border with real calls.

use crate::common::{Process, border, example, free_port, installed, media_ports, root, scratch};
use crate::link::Hosts;
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Oldest Node that the build of the pages supports.
const NODE: (u32, u32) = (20, 19);
const PASSWORD: &str = "correct horse battery";
const NUMBER: &str = "4930600";
/// Failures of npm without a network.
const UNREACHABLE: [&str; 5] = [
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ETIMEDOUT",
    "ENETUNREACH",
];

fn node_version() -> Option<(u32, u32)> {
    let output = Command::new("node").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text.trim().trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "node_modules" {
            continue;
        }
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a copy");
        }
    }
}

fn npm(folder: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new("npm")
        .current_dir(folder)
        .args(arguments)
        .env_remove("NODE_ENV")
        .output()
        .expect("npm");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output, text)
}

/// A copy of the sources of the pages with the packages of their lock file; `None`, with a printed reason, if a program
/// or the network is missing.
pub(crate) fn sources() -> Option<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if !installed(&["node", "npm", "chromium"]) {
        return None;
    }
    if node_version().is_none_or(|version| version < NODE) {
        eprintln!(
            "skipped: not installed: node {}.{} or later",
            NODE.0, NODE.1
        );
        return None;
    }
    let folder = FOLDER.get_or_init(|| {
        // A copy, so that the packages beside the sources stay as they are.
        let folder = scratch("pages");
        copy(&root().join("crates/console/web"), &folder);
        let (output, text) = npm(&folder, &["ci", "--no-audit", "--no-fund"]);
        match output.status.success() {
            true => Ok(folder),
            false => Err(text),
        }
    });
    match folder {
        Ok(folder) => Some(folder),
        Err(text) if UNREACHABLE.iter().any(|word| text.contains(word)) => {
            eprintln!("skipped: npm ci reaches no registry, and its cache lacks the packages");
            None
        }
        Err(text) => panic!("npm ci: {text}"),
    }
}

#[test]
fn pages_of_the_console_pass_their_tests() {
    let Some(folder) = sources() else {
        return;
    };
    let (output, text) = npm(folder, &["test"]);
    assert!(output.status.success(), "npm test: {text}");
    // A run without tests would succeed, too.
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| {
            let at = line.find(name)?;
            line[at + name.len()..].trim().parse::<u32>().ok()
        });
        line.unwrap_or_else(|| panic!("no figure {name}: {text}"))
    };
    assert!(figure(" pass ") >= 25 && figure(" skipped ") == 0, "{text}");
}

/// The hash that `hornwork console hash-password` prints.
fn password_hash() -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["console", "hash-password"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("hornwork console");
    let mut input = child.stdin.take().expect("input");
    writeln!(input, "{PASSWORD}").expect("written");
    drop(input);
    let output = child.wait_with_output().expect("output");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    text.trim().to_owned()
}

fn program(program: &str, folder: &Path, name: &str, arguments: &[&str]) -> Process {
    Process::start(
        Command::new(program)
            .current_dir(folder)
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

/// An INVITE with markup in its display name and its number.
fn hostile_call(sip: u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let local = socket.local_addr().expect("address");
    let request = format!(
        "INVITE sip:4930601@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKhostile;rport\r\n\
         Max-Forwards: 70\r\nFrom: \"<script>window.hacked=1</script>\" <sip:%3Cimg%20src=x%3E@{local}>;tag=x\r\n\
         To: <sip:4930601@127.0.0.1:{sip}>\r\nCall-ID: <script>hostile@{local}\r\nCSeq: 1 INVITE\r\n\
         Subject: hacked <img src=x onerror=window.hacked=1>\r\nContact: <sip:x@{local}>\r\nContent-Length: 0\r\n\r\n"
    );
    socket
        .send_to(request.as_bytes(), ("127.0.0.1", sip))
        .expect("sent");
}

/// Waits until the store has this many calls of the number.
fn await_stored(store: &Path, number: &str, count: usize) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["trace", "--number", number, "--json", "--store"])
            .arg(store)
            .output()
            .expect("hornwork trace");
        let calls: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if calls.as_array().is_some_and(|calls| calls.len() >= count) {
            return;
        }
        assert!(Instant::now() < end, "{number}: {calls}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn console_shows_real_calls_in_chromium() {
    let Some(sources) = sources() else {
        return;
    };
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("pages-real");
    let (sip, trunk, phone, http) = (free_port(), free_port(), free_port(), free_port());
    let (shown, hash) = (folder.display(), password_hash());
    let users: String = ["viewer", "operator"]
        .map(|role| {
            format!("[[console.user]]\nname = \"{role}\"\nrole = \"{role}\"\npassword_hash = \"{hash}\"\n")
        })
        .concat();
    // The phone answers with media; nothing listens at the trunk `gone`, which raises an alarm. SIPp sends no media,
    // and its standing call must last until the console ends it.
    let more = format!(
        "to = {{ prefix = \"49306\" }}\n\n[[trunk]]\nname = \"phone\"\ntarget = \"udp:127.0.0.1:{phone}\"\n\n[[route]]\nto = {{ prefix = \"49307\" }}\ntrunk = \"phone\"\n\n\
         [[trunk]]\nname = \"gone\"\ntarget = \"udp:127.0.0.1:9\"\nping_interval_s = 1\n\n[media]\ntimeout_s = 600\n\n[store]\nfolder = \"{shown}/store\"\nquality_interval_s = 5\n\n\
         [console]\nlisten = \"127.0.0.1:{http}\"\naudit = \"{shown}/audit.ndjson\"\n{users}"
    );
    let text = example("loopback.toml", sip, trunk, media_ports(400), &more);
    let _border = border(&folder, &text, sip);
    let uas_port = trunk.to_string();
    let _uas = program(
        "sipp",
        &folder,
        "uas",
        &["-i", "127.0.0.1", "-p", &uas_port, "-nostdin", "-sn", "uas"],
    )
    .at_port(trunk);
    let target = format!("127.0.0.1:{sip}");
    let calls = |name: &str, port: u16, number: &str, count: &str, ms: &str| {
        let port = port.to_string();
        let arguments = [
            "-i",
            "127.0.0.1",
            "-p",
            &port,
            "-nostdin",
            "-sn",
            "uac",
            &target,
            "-s",
            number,
            "-r",
            "10",
            "-m",
            count,
            "-d",
            ms,
        ];
        program("sipp", &folder, name, &arguments)
    };
    let mut ended = calls("uac", sip + 1, NUMBER, "5", "200");
    assert_eq!(
        ended.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        ended.log()
    );
    hostile_call(sip);
    // A call with media that is longer than an interval.
    let local = format!("127.0.0.1:{phone}");
    let mut answering = program(
        env!("CARGO_BIN_EXE_hornwork"),
        &folder,
        "answer",
        &["phone", "answer", "--local", &local, "--wait", "20"],
    );
    let end = Instant::now() + Duration::from_secs(20);
    while !answering.log().contains("waiting for a call") {
        assert!(Instant::now() < end, "{}", answering.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let uri = format!("sip:4930700@127.0.0.1:{sip}");
    let mut calling = program(
        env!("CARGO_BIN_EXE_hornwork"),
        &folder,
        "call",
        &["phone", "call", &uri, "--seconds", "8"],
    );
    assert_eq!(
        calling.wait(Duration::from_secs(40)),
        Some(true),
        "{}",
        calling.log()
    );
    answering.wait(Duration::from_secs(20));
    // One call stays until the console ends it.
    let mut standing = calls("standing", sip + 2, "4930602", "1", "300000");
    for (number, count) in [(NUMBER, 5), ("4930601", 1), ("4930700", 1), ("4930602", 1)] {
        await_stored(&folder.join("store"), number, count);
    }
    let output = Command::new("node")
        .arg(sources.join("tests/real.mjs"))
        .env("CONSOLE_URL", format!("http://127.0.0.1:{http}"))
        .env("CONSOLE_PASSWORD", PASSWORD)
        .env("CONSOLE_NUMBER", NUMBER)
        .env("CONSOLE_FOLDER", &folder)
        .output()
        .expect("node");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("viewer: sees calls without bodies"), "{text}");
    // The call that the console ended is over for its caller.
    assert!(
        standing.wait(Duration::from_secs(20)).is_some(),
        "{}",
        standing.log()
    );
    if installed(&["tshark"]) {
        let output = Command::new("tshark")
            .arg("-r")
            .arg(folder.join("call.pcapng"))
            .args(["-Y", "sip", "-T", "fields", "-e", "sip.Method"])
            .output()
            .expect("tshark");
        let methods = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            methods.contains("INVITE") && methods.contains("BYE"),
            "{methods}"
        );
    }
}

/// Waits until the output of a program has this text.
fn await_output(process: &Process, text: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while !process.log().contains(text) {
        assert!(Instant::now() < end, "no {text} in {}", process.log());
    }
}

/// The caller is behind a link that loses 5 % of its packets; border, console, called phone and Chromium are on the
/// other side.
#[test]
fn console_shows_the_loss_of_an_emulated_link() {
    const CALLED: &str = "4930701";
    let Some(sources) = sources() else {
        return;
    };
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let folder = scratch("pages-loss");
    let (sip, trunk, http) = (5_060, 5_070, 8_080);
    let more = format!(
        "[store]\nfolder = \"{}/store\"\nquality_interval_s = 5\n[console]\nlisten = \"127.0.0.1:{http}\"\naudit = \"{0}/audit.ndjson\"\n",
        folder.display()
    );
    let text = example("loopback.toml", sip, trunk, (20_000, 20_099), "")
        .replace("127.0.0.1", "10.9.1.2")
        .replace("127.0.0.0/8", "10.9.1.0/24");
    let file = folder.join("hornwork.toml");
    std::fs::write(&file, format!("{text}\n{more}")).expect("configuration");
    let program = |host: usize, name: &str, arguments: &[&str]| {
        let mut command = hosts.command(host, env!("CARGO_BIN_EXE_hornwork"));
        command
            .current_dir(&folder)
            .args(arguments)
            .stdin(Stdio::null());
        Process::start(&mut command, &folder.join(format!("{name}.log")))
    };
    let border = program(1, "border", &["run", "-c", "hornwork.toml"]);
    await_output(&border, "purpose=console");
    let local = format!("10.9.1.2:{trunk}");
    let mut answering = program(
        1,
        "answer",
        &["phone", "answer", "--local", &local, "--wait", "60"],
    );
    await_output(&answering, "waiting for a call");
    // The loss of a call of 25 s is 3 to 7 % with four standard deviations on either side, and the same with this seed.
    let link = hosts.link(&["--a-to-b", "loss=5%", "--seed", "7", "--seconds", "200"]);
    let uri = format!("sip:{CALLED}@10.9.1.2:{sip}");
    let mut calling = program(0, "call", &["phone", "call", &uri, "--seconds", "25"]);
    assert_eq!(
        calling.wait(Duration::from_secs(90)),
        Some(true),
        "{}",
        calling.log()
    );
    answering.wait(Duration::from_secs(60));
    let _ = link.end();
    await_stored(&folder.join("store"), CALLED, 1);
    let output = hosts
        .command(1, "node")
        .arg(sources.join("tests/loss.mjs"))
        .env("CONSOLE_URL", format!("http://127.0.0.1:{http}"))
        .env("CONSOLE_NUMBER", CALLED)
        .env("CONSOLE_FOLDER", &folder)
        .output()
        .expect("node");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("the loss of the link is on the page"),
        "{text}"
    );
}
