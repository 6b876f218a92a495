//! Checks the README and docs/examples.md: all of their commands are run, and their files match the shipped ones.
//!
//! Commands are in blocks marked `sh`. Each must be listed in [`COMMANDS`] with the test that runs it; servers are
//! stopped, and long runs are shortened. Documentation addresses are replaced by loopback addresses.

use crate::common;

use common::{Process, installed, root, scratch};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The test that runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Makefile,
    Border,
    Security,
    Rules,
    Shares,
    Phones,
    TestLab,
}

const CERTIFICATE: &str = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=sip.example.com -addext subjectAltName=URI:sip:sip.example.com,DNS:sip.example.com -keyout examples/sip.key -out examples/sip.pem";
const STAY: &str = "hornwork demo --stay";
const RUN: &str = "hornwork run -c examples/pbx.toml";
const FOREIGN: &str = "hornwork lab run pbx-capacity --set sut.address=10.0.0.20:5060 --set callees.address=10.0.0.9:5080 --out results/pbx";

const TRY: &str = "printf 'INVITE sip:030123@192.0.2.1 SIP/2.0\\nVia: SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1\\nFrom: <sip:a@192.0.2.7>;tag=1\\nTo: <sip:030123@192.0.2.1>\\nCall-ID: 1\\nCSeq: 1 INVITE\\nContent-Length: 0\\n\\n' | hornwork rules try examples/header-rules.toml";

const ISOLATE: &str = "hornwork isolate lo --rate 950mbit --voice 50 --signalling 5 --others 45";

const SEARCH: &str = "hornwork lab search call-rate --out results/capacity";

/// All commands of the two pages in order.
const COMMANDS: &[(&str, By)] = &[
    ("make demo", By::Makefile),
    ("make test", By::Makefile),
    ("hornwork check -c examples/pbx.toml", By::Border),
    (RUN, By::Border),
    (FOREIGN, By::TestLab),
    ("hornwork schema", By::Border),
    ("hornwork check -c examples/conference.toml", By::Border),
    (TRY, By::Rules),
    (
        "hornwork check -c examples/registration-load.toml",
        By::Border,
    ),
    (ISOLATE, By::Shares),
    ("hornwork check -c examples/volte.toml", By::Border),
    (CERTIFICATE, By::Security),
    ("hornwork check -c examples/tls.toml", By::Security),
    ("hornwork check -c examples/srtp.toml", By::Security),
    ("hornwork check -c examples/webrtc.toml", By::Security),
    ("hornwork check -c examples/media-node.toml", By::Security),
    ("hornwork check -c examples/media-nodes.toml", By::Security),
    (STAY, By::Phones),
    ("mkdir -p phone", By::Phones),
    (
        "echo '<sip:1000@127.0.0.1:5060>;auth_pass=secret-1000' > phone/accounts",
        By::Phones,
    ),
    (
        "baresip -f phone -n 127.0.0.1 -e '/dial sip:5000@127.0.0.1:5060' -t 10",
        By::Phones,
    ),
    (
        "(echo ports sip 5070; echo register sip:1001@127.0.0.1 sip:127.0.0.1:5060 secret-1001; sleep 3; echo call sip:600@127.0.0.1:5060; sleep 8; echo quit) | linphonec",
        By::Phones,
    ),
    ("hornwork lab list", By::TestLab),
    ("hornwork lab show call-capacity", By::TestLab),
    (
        "hornwork lab run small-network --simulate --repeat 3 --seed 7 --out results/a",
        By::TestLab,
    ),
    (
        "hornwork lab run small-network --simulate --repeat 3 --seed 8 --out results/b",
        By::TestLab,
    ),
    ("hornwork lab compare results/a results/b", By::TestLab),
    ("hornwork lab report results/b", By::TestLab),
    (SEARCH, By::TestLab),
    (
        "hornwork lab analyse call.pcap --json figures.json",
        By::TestLab,
    ),
];

/// Documentation addresses, and their replacements on this machine.
const ADDRESSES: [(&str, &str); 4] = [
    ("192.0.2.10", "127.0.0.2"),
    ("10.0.0.10", "127.0.0.10"),
    ("10.0.0.20", "127.0.0.20"),
    ("10.0.0.9", "127.0.0.9"),
];

fn with_local_addresses(text: &str) -> String {
    ADDRESSES
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The blocks of a language in both pages, without the fences.
fn blocks(language: &str) -> Vec<String> {
    let read = |page| std::fs::read_to_string(root().join(page)).expect(page);
    let text = read("README.md") + &read("docs/examples.md");
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(mark)) => open = Some((mark == language, String::new())),
            (Some((wanted, block)), Some(_)) => {
                if *wanted {
                    blocks.push(std::mem::take(block));
                }
                open = None;
            }
            (Some((_, block)), None) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// A folder with everything that the README's commands need: `hornwork` on the PATH, the examples, a capture.
struct ReadmeFolder {
    folder: PathBuf,
    path: String,
}

impl ReadmeFolder {
    fn new(name: &str) -> ReadmeFolder {
        let folder = scratch(name);
        let (bin, examples) = (folder.join("bin"), folder.join("examples"));
        std::fs::create_dir_all(&bin).expect("folder");
        std::fs::create_dir_all(&examples).expect("folder");
        symlink(env!("CARGO_BIN_EXE_hornwork"), bin.join("hornwork")).expect("link");
        for entry in std::fs::read_dir(root().join("examples"))
            .expect("examples")
            .flatten()
        {
            if entry.path().is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("example");
            std::fs::write(
                examples.join(entry.file_name()),
                with_local_addresses(&text),
            )
            .expect("example");
        }
        std::fs::copy(
            root().join("fuzz/seeds/capture/call.pcap"),
            folder.join("call.pcap"),
        )
        .expect("capture");
        let path = format!(
            "{}:{}",
            bin.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        ReadmeFolder { folder, path }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.folder)
            .env("PATH", &self.path)
            .env("HOME", &self.folder)
            .stdin(Stdio::null());
        command
    }

    fn shell(&self, line: &str) -> Output {
        self.command("sh")
            .args(["-c", &with_local_addresses(line)])
            .output()
            .expect("a shell")
    }

    /// Runs a line that must succeed; returns its output.
    fn run_ok(&self, line: &str) -> String {
        let output = self.shell(line);
        assert!(
            output.status.success(),
            "{line}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Commands of the README that this test runs.
fn commands(by: By) -> impl Iterator<Item = &'static str> {
    COMMANDS
        .iter()
        .filter(move |(_, who)| *who == by)
        .map(|(command, _)| *command)
}

fn wait_for(process: &Process, word: &str, limit: Duration) {
    let end = Instant::now() + limit;
    while !process.log().contains(word) {
        assert!(Instant::now() < end, "no {word:?} in {}", process.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn every_command_has_a_test() {
    let written: Vec<String> = blocks("sh")
        .iter()
        .flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| !line.trim().is_empty())
        .collect();
    let known: Vec<&str> = COMMANDS.iter().map(|(command, _)| *command).collect();
    assert_eq!(written, known);
}

#[test]
fn configuration_matches_the_example() {
    let shipped = std::fs::read_to_string(root().join("examples/pbx.toml")).expect("example");
    assert_eq!(blocks("toml"), std::slice::from_ref(&shipped));
    assert!(shipped.lines().count() <= 16, "{shipped}");
}

#[test]
fn make_targets_run_the_documented_commands() {
    for (command, does) in
        commands(By::Makefile).zip(["target/release/hornwork demo", "cargo xtask test"])
    {
        let target = command.strip_prefix("make ").expect("make");
        let output = Command::new("make")
            .current_dir(root())
            .args(["--no-print-directory", "--dry-run", target])
            .output()
            .expect("make");
        let log = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && log.contains(does), "{log}");
    }
}

#[test]
fn documented_certificate_is_accepted() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = ReadmeFolder::new("readme-security");
    let log: Vec<String> = commands(By::Security)
        .map(|command| folder.run_ok(command))
        .collect();
    let last = log.get(1).expect("commands");
    assert!(
        last.contains("tls:127.0.0.2:5061, wss:127.0.0.2:8443"),
        "{last}"
    );
    // A certificate of 90 days causes no warning.
    assert!(!last.contains("renewed"), "{last}");
}

#[test]
fn documented_border_runs() {
    let folder = ReadmeFolder::new("readme-border");
    for command in commands(By::Border).filter(|command| *command != RUN) {
        let log = folder.run_ok(command);
        assert!(log.contains("interface"), "{log}");
        if command.contains("check") {
            let odd = |line: &&str| line.starts_with("hint:") || line.starts_with("WARNING:");
            assert_eq!(log.lines().filter(odd).count(), 0, "{log}");
        }
    }
    // The program replaces the shell, so that it receives the signal.
    let mut border = Process::start(
        folder.command("sh").args(["-c", &format!("exec {RUN}")]),
        &folder.folder.join("border.log"),
    );
    for address in ["127.0.0.2:5060", "127.0.0.10:5060"] {
        let opened = format!("socket_opened purpose=\"sip udp\" address={address}");
        wait_for(&border, &opened, Duration::from_secs(30));
    }
    border.signal("HUP");
    wait_for(&border, "configuration_reloaded", Duration::from_secs(30));
    border.signal("TERM");
    assert_eq!(border.wait(Duration::from_secs(30)), Some(true));
}

#[test]
fn documented_rules_are_tried() {
    let folder = ReadmeFolder::new("readme-rules");
    for command in commands(By::Rules) {
        let shown = folder.run_ok(command);
        assert!(
            shown.starts_with("INVITE sip:+4930123@192.0.2.1 SIP/2.0\r\n"),
            "{shown}"
        );
    }
}

#[test]
fn documented_interface_shares_are_shown() {
    if !installed(&["ip"]) {
        return;
    }
    let folder = ReadmeFolder::new("readme-shares");
    for command in commands(By::Shares) {
        let shown = folder.run_ok(command);
        assert!(
            shown.contains("classid 4857:10 htb rate 475000000bit"),
            "{shown}"
        );
        assert!(shown.contains("nothing was changed"), "{shown}");
    }
}

/// Configuration for the README's phones on a machine without sound card and network.
fn without_sound_card(folder: &ReadmeFolder) {
    let voice = codec::wav::write(
        codec::wav::Encoding::Pcm16,
        8_000,
        1,
        codec::speech::speech(),
    );
    let voice_file = folder.folder.join("voice.wav");
    std::fs::write(&voice_file, voice.expect("speech fits a file")).expect("voice");
    let modules = [
        "/usr/lib/baresip/modules",
        "/usr/lib/x86_64-linux-gnu/baresip/modules",
    ]
    .into_iter()
    .find(|path| Path::new(path).is_dir())
    .unwrap_or("/usr/lib/baresip/modules");
    let config = format!(
        "audio_source aufile,{}\naudio_player aufile,{}\naudio_alert aufile,/dev/null\nausrc_srate 8000\nauplay_srate 8000\n\
         module_path {modules}\nmodule g711.so\nmodule aufile.so\nmodule_app account.so\nmodule_app menu.so\n",
        voice_file.display(),
        folder.folder.join("player.wav").display()
    );
    for name in ["phone", ".local/share/linphone", ".config/linphone"] {
        std::fs::create_dir_all(folder.folder.join(name)).expect("folder");
    }
    std::fs::write(folder.folder.join("phone/config"), config).expect("configuration");
    let offline = "[sip]\nregister_only_when_network_is_up=0\nguess_hostname=0\n";
    for file in [".linphonerc", ".config/linphone/linphonerc"] {
        std::fs::write(folder.folder.join(file), offline).expect("configuration");
    }
}

/// A shell in a network namespace, in which port 5060 is free; else on the machine's network if the port is free there.
fn own_network(folder: &ReadmeFolder) -> Option<Command> {
    let id = std::fs::metadata(&folder.folder).ok().map(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid()
    });
    let options: &[&str] = if id == Some(0) {
        &["-n"]
    } else {
        &["-r", "-n"]
    };
    let mut probe = folder.command("unshare");
    let isolated = probe
        .args(options)
        .args(["ip", "link", "set", "lo", "up"])
        .output()
        .is_ok_and(|output| output.status.success());
    if isolated {
        let mut command = folder.command("unshare");
        command.args(options).arg("sh");
        return Some(command);
    }
    if std::net::UdpSocket::bind("127.0.0.1:5060").is_ok() {
        return Some(folder.command("sh"));
    }
    eprintln!(
        "skipped: port 5060 is in use, and no network namespace can be created (unshare, ip)"
    );
    None
}

#[test]
fn phones_register_and_call_at_the_demo() {
    let folder = ReadmeFolder::new("readme-phones");
    let Some(mut shell) = own_network(&folder) else {
        return;
    };
    without_sound_card(&folder);
    let phones = [installed(&["baresip"]), installed(&["linphonec"])];
    let mut script = format!(
        "ip link set lo up 2>/dev/null\n{STAY} --seconds 10 > demo.log 2>&1 &\ndemo=$!\ntrap 'kill $demo 2>/dev/null' EXIT\n\
         for n in $(seq 300); do grep -q 'stays at' demo.log && break; sleep 0.1; done\n"
    );
    for command in commands(By::Phones).filter(|command| *command != STAY) {
        let there = match command {
            _ if command.starts_with("baresip") => phones[0],
            _ if command.contains("linphonec") => phones[1],
            _ => true,
        };
        if there {
            script.push_str(command);
            script.push('\n');
        }
    }
    script.push_str("kill -INT $demo\nwait $demo\necho \"the demo ended with $?\"\n");
    std::fs::write(folder.folder.join("script"), script).expect("script");
    let mut process = Process::start(shell.arg("script"), &folder.folder.join("script.log"));
    let ended = process.wait(Duration::from_secs(120));
    let demo = std::fs::read(folder.folder.join("demo.log")).unwrap_or_default();
    let demo = String::from_utf8_lossy(&demo).into_owned();
    let all = format!("{}\n{demo}", process.log());
    assert_eq!(ended, Some(true), "{all}");
    // 1: a threshold may fail on a machine that is busy with other tests.
    let log = process.log();
    assert!(
        log.contains("ended with 0") || log.contains("ended with 1"),
        "{all}"
    );
    assert!(demo.contains("calls failed"), "{all}");
    for (there, user, number) in [(phones[0], 1000, 5000), (phones[1], 1001, 600)] {
        if there {
            let called = demo.lines().any(|line| {
                line.contains("call_offered")
                    && line.contains(&format!("from=sip:{user}@"))
                    && line.contains(&format!("to=sip:{number}@"))
            });
            assert!(
                demo.contains(&format!("registration_stored aor={user} ")) && called,
                "{all}"
            );
        }
    }
    let calls = phones.iter().filter(|there| **there).count();
    assert_eq!(demo.matches("call_answered").count(), calls, "{all}");
    assert_eq!(
        demo.matches("reason=bye status=200").count(),
        calls,
        "{all}"
    );
}

/// A system under test that routes calls back to the test lab, as a PBX with a dial plan does.
fn stand_in(folder: &ReadmeFolder) -> Process {
    let text = with_local_addresses(
        "[[interface]]\nname = \"pbx\"\nlisten = \"udp:10.0.0.20:5060\"\nmedia = { ports = \"30000-31999\" }\n\
         [[trunk]]\nname = \"lab\"\ntarget = \"udp:10.0.0.9:5080\"\n[[route]]\ntrunk = \"lab\"\n",
    );
    std::fs::write(folder.folder.join("pbx.toml"), text).expect("configuration");
    let process = Process::start(
        folder.command("hornwork").args(["run", "-c", "pbx.toml"]),
        &folder.folder.join("pbx.log"),
    );
    wait_for(&process, "socket_opened", Duration::from_secs(30));
    process
}

#[test]
fn documented_lab_commands_run() {
    let folder = ReadmeFolder::new("readme-lab");
    let _pbx = stand_in(&folder);
    for command in commands(By::TestLab) {
        // Minutes of levels are reduced to a few seconds.
        let line = match command {
            FOREIGN => format!(
                "{command} --set levels.values=[100] --set callers.rate=50 --set callers.hold_seconds=1"
            ),
            SEARCH => {
                format!(
                    "{command} --simulate --set callers.duration_seconds=1 --set search.highest=800"
                )
            }
            _ => command.to_owned(),
        };
        let output = folder.shell(&line);
        let log = format!(
            "{line}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        // A failed threshold is a valid result.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{log}");
        assert!(!output.stdout.is_empty(), "{log}");
        if command == FOREIGN {
            assert!(log.contains("1 trial, about 3 s"), "{log}");
            let heading = "calls  attempted  established  failed  peak  p50 ms";
            assert!(log.contains(heading), "{log}");
        }
    }
    for made in [
        "results/pbx/report.html",
        "results/pbx/attempts.ndjson",
        "results/pbx/streams.ndjson",
        "results/a/run.json",
        "results/b/report.html",
        "results/capacity/report.html",
        "figures.json",
    ] {
        assert!(folder.folder.join(made).is_file(), "{made}");
    }
    let run = std::fs::read(folder.folder.join("results/pbx/run.json")).expect("results");
    let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
    let calls = &run["trials"][0]["figures"]["calls"];
    assert_eq!(
        (calls["attempted"].as_u64(), calls["completed"].as_u64()),
        (Some(100), Some(100)),
        "{calls}"
    );
}
