//! SIPp scenarios in SIPp and in our player: each pair runs three times, SIPp against SIPp, ours against SIPp, SIPp
//! against ours, and ours must have the same result as SIPp in its place.

use crate::common;

use common::{
    Process, border, example, free_port, installed, is_open, media_ports, root, scratch, testdata,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program that plays a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Player {
    Sipp,
    Ours,
}

use Player::{Ours, Sipp};

/// Settings of one side.
struct PlayerSettings<'p> {
    file: &'p Path,
    port: u16,
    target: Option<u16>,
    transport: &'p str,
    calls: u32,
}

impl PlayerSettings<'_> {
    fn start(&self, player: Player, folder: &Path, name: &str) -> Process {
        let mut command = match player {
            Sipp => self.sipp(),
            Ours => self.ours(),
        };
        command.current_dir(folder).stdin(Stdio::null());
        Process::start(&mut command, &folder.join(format!("{name}.log")))
    }

    fn sipp(&self) -> Command {
        let mut command = Command::new("sipp");
        if let Some(target) = self.target {
            command.arg(format!("127.0.0.1:{target}"));
        }
        let file = self.file.display().to_string();
        let (port, calls) = (self.port.to_string(), self.calls.to_string());
        let kind = if self.transport == "tcp" { "t1" } else { "u1" };
        command.args(["-sf", &file, "-i", "127.0.0.1", "-p", &port, "-m", &calls]);
        command.args(["-t", kind, "-r", "20", "-l", "100", "-d", "200"]);
        command.args(["-timeout", "60s", "-nostdin", "-inf", "fields.csv"]);
        command
    }

    fn ours(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hornwork"));
        command.args(["lab", "run"]).arg(self.file);
        if let Some(target) = self.target {
            command.arg(format!("127.0.0.1:{target}"));
        }
        let (local, calls) = (format!("127.0.0.1:{}", self.port), self.calls.to_string());
        command.args(["--local", &local, "--calls", &calls, "--rate", "20"]);
        command.args(["--limit", "100", "--hold", "200", "--timeout", "60"]);
        // Not among the media ports of borders of other tests.
        let media = format!("127.0.0.1:{}", free_port());
        command.args(["--transport", self.transport, "--inject", "fields.csv"]);
        command.args(["--media", &media]);
        command
    }
}

/// Results of a pair: caller and callee.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    caller: bool,
    callee: bool,
    log: String,
}

fn play(
    folder: &Path,
    pair: (&Path, &Path),
    players: (Player, Player),
    transport: &str,
    calls: u32,
) -> Ends {
    let port = free_port();
    play_at(
        folder,
        pair,
        players,
        transport,
        calls,
        [port, port + 1, port + 1],
    )
}

/// As [`play`], with the ports of caller and callee, and the caller's target.
fn play_at(
    folder: &Path,
    pair: (&Path, &Path),
    players: (Player, Player),
    transport: &str,
    calls: u32,
    [caller_port, callee_port, target]: [u16; 3],
) -> Ends {
    let callee = PlayerSettings {
        file: pair.1,
        port: callee_port,
        target: None,
        transport,
        calls,
    };
    let mut callee = callee.start(players.1, folder, "callee");
    // Until it listens, or ends.
    let end = Instant::now() + Duration::from_secs(20);
    while !is_open(callee_port) && Instant::now() < end {
        if callee.wait(Duration::from_millis(20)).is_some() {
            break;
        }
    }
    let caller = PlayerSettings {
        file: pair.0,
        port: caller_port,
        target: Some(target),
        transport,
        calls,
    };
    let mut caller = caller.start(players.0, folder, "caller");
    let caller_end = caller.wait(Duration::from_secs(90)) == Some(true);
    // The result of a callee whose caller failed depends on timing, and is not compared.
    let callee_end = caller_end && callee.wait(Duration::from_secs(90)) == Some(true);
    let last = |text: String| {
        let lines: Vec<&str> = text.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    };
    Ends {
        caller: caller_end,
        callee: callee_end,
        log: format!(
            "caller:\n{}\ncallee:\n{}",
            last(caller.log()),
            last(callee.log())
        ),
    }
}

/// Plays a pair three times and reports differences. Over TCP SIPp's callee fails its lingering calls if the caller
/// closes first: there ours must succeed if SIPp does, and may succeed if SIPp does not.
fn compare(
    folder: &Path,
    name: &str,
    pair: (&Path, &Path),
    transport: &str,
    failures: &mut Vec<String>,
) {
    let wanted = play(folder, pair, (Sipp, Sipp), transport, 3);
    for players in [(Ours, Sipp), (Sipp, Ours)] {
        let got = play(folder, pair, players, transport, 3);
        let same = |got: bool, wanted: bool| got == wanted || (got && transport == "tcp");
        if !same(got.caller, wanted.caller) || !same(got.callee, wanted.callee) {
            failures.push(format!(
                "{name} over {transport}, {players:?}: {} {}, in SIPp {} {}\n{}\nin SIPp:\n{}",
                got.caller, got.callee, wanted.caller, wanted.callee, got.log, wanted.log
            ));
        }
    }
}

fn scratch_folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    std::fs::write(folder.join("fields.csv"), "SEQUENTIAL\nfoo;127.0.0.1;x\n").expect("a file");
    folder
}

/// A built-in scenario of SIPp, as printed by SIPp.
fn built_in(folder: &Path, name: &str) -> PathBuf {
    let output = Command::new("sipp")
        .args(["-sd", name])
        .stdin(Stdio::null())
        .output()
        .expect("sipp");
    let path = folder.join(format!("{name}.xml"));
    std::fs::write(&path, output.stdout).expect("a file");
    path
}

#[test]
fn built_in_scenarios_of_sipp() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch_folder("scenarios-built-in");
    let mut failures = Vec::new();
    for (caller, callee, transport) in [
        ("uac", "uas", "udp"),
        ("uac", "uas", "tcp"),
        ("regexp", "uas", "udp"),
        ("regexp", "uas", "tcp"),
        // Over TCP the caller's last pause outlives the callee, whose end fails the call in SIPp: a race.
        ("branchc", "branchs", "udp"),
    ] {
        let pair = (built_in(&folder, caller), built_in(&folder, callee));
        compare(
            &folder,
            caller,
            (&pair.0, &pair.1),
            transport,
            &mut failures,
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn our_scenarios_run_in_sipp() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch_folder("scenarios-own");
    let own = root().join("scenarios/sipp");
    for players in [(Sipp, Ours), (Ours, Sipp), (Sipp, Sipp), (Ours, Ours)] {
        let ends = play(
            &folder,
            (&own.join("uac.xml"), &own.join("uas.xml")),
            players,
            "udp",
            20,
        );
        assert!(ends.caller && ends.callee, "{players:?}\n{}", ends.log);
    }
}

/// Twenty VoLTE calls, through a border with the example `file` if given.
fn volte_calls(
    folder: &Path,
    pair: (&Path, &Path),
    players: (Player, Player),
    file: Option<&str>,
) -> Result<(), String> {
    let port = free_port();
    let sip = port + 2;
    let running = file.map(|file| {
        let text = example(file, sip, port + 1, media_ports(1_000), "");
        border(folder, &text, sip)
    });
    let target = if running.is_some() { sip } else { port + 1 };
    let ends = play_at(folder, pair, players, "udp", 20, [port, port + 1, target]);
    let log = running.map(|border| border.log()).unwrap_or_default();
    match ends.caller && ends.callee {
        true => Ok(()),
        false => Err(format!("{}\nborder:\n{log}", ends.log)),
    }
}

/// VoLTE calls, directly and through the border with media bypass and anchored media: SIPp and our player check each
/// other, and SIPp checks the border.
#[test]
fn volte_calls_succeed_with_either_player() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch_folder("scenarios-volte");
    let own = root().join("scenarios/sipp");
    let (caller, callee) = (own.join("volte-uac.xml"), own.join("volte-uas.xml"));
    for file in [None, Some("loopback-bypass.toml"), Some("loopback.toml")] {
        for players in [(Sipp, Sipp), (Sipp, Ours), (Ours, Sipp), (Ours, Ours)] {
            // SIPp takes a retransmission for an error, so after a stall of half a second the test is run
            // once more.
            let pair = (caller.as_path(), callee.as_path());
            let mut log = String::new();
            let good = (0..3).any(|_| match volte_calls(&folder, pair, players, file) {
                Ok(()) => true,
                Err(why) => {
                    log = why;
                    false
                }
            });
            assert!(good, "{file:?} {players:?}\n{log}");
        }
    }
}

/// Shared callers and callees that fit each other; a callee without a folder is one of ours.
const PAIRS: [(&str, &str); 15] = [
    (
        "drachtio_drachtio-srf/uac.xml",
        "saghul_sipp-scenarios/sipp_uas_basic.xml",
    ),
    (
        "drachtio_drachtio-srf/uac-nosdp.xml",
        "saghul_sipp-scenarios/sipp_uas_basic.xml",
    ),
    (
        "drachtio_drachtio-srf/uac-cancel.xml",
        "drachtio_drachtio-srf/uas-cancel.xml",
    ),
    ("drachtio_drachtio-srf/uac-expect-480.xml", "uas-480.xml"),
    (
        "drachtio_drachtio-srf/uac-expect-480.xml",
        "drachtio_drachtio-srf/uas-404.xml",
    ),
    ("drachtio_drachtio-srf/uac-prack.xml", "uas-prack.xml"),
    (
        "saghul_sipp-scenarios/sipp_uac_basic.xml",
        "saghul_sipp-scenarios/sipp_uas_basic.xml",
    ),
    (
        "saghul_sipp-scenarios/sipp_uac_late_offer.xml",
        "saghul_sipp-scenarios/sipp_uas_basic.xml",
    ),
    (
        "saghul_sipp-scenarios/sipp_uac_options.xml",
        "drachtio_drachtio-srf/uas-options-expect-200.xml",
    ),
    (
        "thevoiceguy_siphon-rs/options.xml",
        "drachtio_drachtio-srf/uas-options-expect-200.xml",
    ),
    (
        "thevoiceguy_siphon-rs/invite_bye.xml",
        "thevoiceguy_siphon-rs/uas_invite.xml",
    ),
    (
        "thevoiceguy_siphon-rs/cancel.xml",
        "drachtio_drachtio-srf/uas-cancel.xml",
    ),
    ("thevoiceguy_siphon-rs/message.xml", "uas-message.xml"),
    ("thevoiceguy_siphon-rs/prack.xml", "uas-prack.xml"),
    (
        "thevoiceguy_siphon-rs/proxy_invite_bye.xml",
        "thevoiceguy_siphon-rs/uas_invite.xml",
    ),
];

#[test]
fn shared_scenarios_end_as_in_sipp() {
    let Some(data) = testdata() else { return };
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch_folder("scenarios-shared");
    let path = |name: &str| match name.contains('/') {
        true => data.join("sipp").join(name),
        false => root().join("crates/hornwork/tests/sipp").join(name),
    };
    let mut failures = Vec::new();
    for (caller, callee) in PAIRS {
        compare(
            &folder,
            caller,
            (&path(caller), &path(callee)),
            "udp",
            &mut failures,
        );
    }
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}

/// Not possible with Debian's SIPp: registrations with digest, here at our registrar, over UDP and TCP.
#[test]
fn registrations_with_digest_at_our_registrar() {
    let Some(data) = testdata() else { return };
    let folder = scratch("scenarios-registrar");
    let sip = free_port();
    let configuration = example("loopback-uc.toml", sip, sip + 1, media_ports(100), "");
    let border = border(&folder, &configuration, sip);
    let credentials = |password: &str| {
        format!("SEQUENTIAL\n1000;127.0.0.1;[authentication username=1000 password={password}]\n")
    };
    std::fs::write(folder.join("right.csv"), credentials("secret-1000")).expect("a file");
    std::fs::write(folder.join("wrong.csv"), credentials("other")).expect("a file");
    for (scenario, file, good) in [
        (
            "saghul_sipp-scenarios/sipp_uac_register.xml",
            "right.csv",
            true,
        ),
        (
            "saghul_sipp-scenarios/sipp_uac_register.xml",
            "wrong.csv",
            false,
        ),
        (
            "jambonz_sbc-sip-sidecar/uac-register-auth-success.xml",
            "right.csv",
            true,
        ),
        (
            "jambonz_sbc-sip-sidecar/uac-unregister-auth-success.xml",
            "right.csv",
            true,
        ),
        ("thevoiceguy_siphon-rs/auth_register.xml", "right.csv", true),
    ] {
        for transport in ["udp", "tcp"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_hornwork"));
            command
                .args(["lab", "run"])
                .arg(data.join("sipp").join(scenario));
            command.arg(format!("127.0.0.1:{sip}")).current_dir(&folder);
            command.args(["--local", "127.0.0.1", "--calls", "3", "--rate", "20"]);
            command.args([
                "--timeout",
                "20",
                "--transport",
                transport,
                "--inject",
                file,
            ]);
            command.args(["--service", "1000", "--password", "secret-1000"]);
            command.stdin(Stdio::null());
            let mut caller = Process::start(&mut command, &folder.join("caller.log"));
            let ended = caller.wait(Duration::from_secs(30));
            assert_eq!(
                ended,
                Some(good),
                "{scenario} with {file} over {transport}\n{}\n{}",
                caller.log(),
                border.log()
            );
        }
    }
}
