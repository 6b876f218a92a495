//! Obstacles of the test lab with the real program: a full disk, killed and interrupted runs, programs that die or
//! answer nonsense. Each test that changes networks has a network of its own and compares it before and after.

use crate::common;

use common::{installed, scratch};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

/// Runs a script in a folder, with mounts and network of its own; `None` without the right to them.
fn in_namespaces(folder: &Path, script: &str) -> Option<String> {
    let unshare = |script: &str| {
        Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-euc",
                script,
            ])
            .current_dir(folder)
            .env("HW", PROGRAM)
            .stdin(Stdio::null())
            .output()
    };
    let able = unshare("mount -t tmpfs tmpfs /run && ip link set lo up");
    if !able.is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: no right to namespaces, or no unshare");
        return None;
    }
    let done = unshare(script).unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{text}");
    Some(text)
}

fn read(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&read(folder, name)).unwrap()
}

#[test]
fn full_disk_is_named_and_earlier_results_stay() {
    let folder = scratch("obstacles-disk");
    std::fs::create_dir(folder.join("disk")).unwrap();
    let script = "
        mount -t tmpfs -o size=2m tmpfs disk
        $HW lab run small-network --simulate --out disk/one >/dev/null 2>&1 || test $? = 1
        cp disk/one/run.json disk/one/report.html .
        dd if=/dev/zero of=disk/filled bs=4k 2>/dev/null || true
        set +e
        $HW lab run small-network --simulate --out disk/two >/dev/null 2>run.text; echo $? >run.code
        $HW lab run study-c --quick --simulate --out disk/three >/dev/null 2>study.text; echo $? >study.code
        $HW lab report disk/one >/dev/null 2>report.text; echo $? >report.code
        set -e
        cmp run.json disk/one/run.json
        cmp report.html disk/one/report.html
        ls disk/one >listed
        # With room for some cells only.
        rm disk/filled
        dd if=/dev/zero of=disk/filled bs=4k count=300 2>/dev/null
        set +e
        $HW lab run study-c --quick --simulate --out disk/four >/dev/null 2>part.text; echo $? >part.code
        cmp run.json disk/one/run.json; echo $? >same.code
    ";
    if in_namespaces(&folder, script).is_none() {
        return;
    }
    for name in ["run", "study", "report", "part"] {
        let text = read(&folder, &format!("{name}.text"));
        let code = read(&folder, &format!("{name}.code"));
        assert!(text.contains("No space left on device"), "{name}: {text}");
        let expected = if name == "part" {
            ["3\n", "4\n"]
        } else {
            ["3\n"; 2]
        };
        assert!(expected.contains(&code.as_str()), "{name}: {code}: {text}");
        assert!(
            name == "part" || text.contains("the disk is full"),
            "{name}: {text}"
        );
    }
    assert_eq!(read(&folder, "same.code"), "0\n");
    let listed = read(&folder, "listed");
    assert!(!listed.contains(".part"), "{listed}");
}

/// The network, and the begin of a script that compares it later.
const STATE: &str = "
    mount -t tmpfs tmpfs /run; mkdir -p /run/netns; ip link set lo up
    state() { ip -o link; ip -o addr; ip route; ip rule; ip netns list; nft list ruleset; cat /proc/sys/net/ipv4/ip_forward; }
    state >before
    # Waits until a file contains a text; fails if the process ends before.
    await() { until grep -q -e \"$2\" \"$1\"; do kill -0 $3; sleep 0.1; done; }
";

#[test]
fn study_leaves_the_network_as_it_was_and_names_a_tunnel_that_dies() {
    if !installed(&["ip", "nft", "openvpn", "unshare"]) {
        return;
    }
    let folder = scratch("obstacles-study");
    std::fs::create_dir(folder.join("programs")).unwrap();
    let script = format!(
        "{STATE}
        REAL=$(command -v openvpn)
        printf '#!/bin/sh\\ncase \"$1\" in --genkey) exec %s \"$@\";; esac\\n%s \"$@\" &\\nP=$!\\necho $P >>%s/pids\\nsleep 4\\nkill -9 $P\\necho lost my mind\\nexit 7\\n' \
            $REAL $REAL $PWD >programs/openvpn
        chmod +x programs/openvpn
        $HW lab run study-c --quick --out killed >/dev/null 2>killed.log & P=$!
        await killed.log '^\\[1/' $P
        # A tunnel is up.
        await killed.log '^\\[3/' $P
        sleep 2; kill -9 $P; wait $P || true
        ip netns list >left
        # Tunnels end with the run.
        sleep 1
        for n in $(ip netns list | cut -d' ' -f1); do ip netns pids $n; done >running
        PATH=$PWD/programs:$PATH $HW lab run study-c --quick --out out >/dev/null 2>out.log & P=$!
        await out.log '^\\[3/' $P
        kill -INT $P; wait $P || echo $? >code
        # Programs of the last cells end with them.
        sleep 0.5
        state >after
        # The tunnels that the scripts started outlive them.
        for p in $(cat pids); do grep -qx openvpn /proc/$p/comm 2>/dev/null && kill -9 $p || true; done
        "
    );
    if in_namespaces(&folder, &script).is_none() {
        return;
    }
    assert!(read(&folder, "left").contains("hwc-"));
    assert_eq!(read(&folder, "running"), "");
    assert_eq!(read(&folder, "before"), read(&folder, "after"));
    assert_eq!(read(&folder, "code"), "130\n");
    for network in ["lan-100", "wan-64"] {
        let cell = json(
            &folder,
            &format!("out/matrix/cells/g723-{network}-des-0.json"),
        );
        let cause = cell["cause"].as_str().unwrap_or_default();
        // On a slow machine it dies before the call.
        assert!(
            cause.contains("the tunnel ended during the call") && cause.contains("lost my mind")
                || cause.contains("did not start"),
            "{cell}"
        );
        assert!(cell["loss_percent"].is_null(), "{cell}");
        let clear = json(
            &folder,
            &format!("out/matrix/cells/g723-{network}-none-0.json"),
        );
        assert!(clear["cause"].is_null() && clear["loss_percent"].is_number());
    }
    // The killed run had measured a cell, which stays.
    assert!(
        folder
            .join("killed/matrix/cells/g723-lan-100-none-0.json")
            .is_file()
    );
}

/// Ctrl-C on a terminal signals the whole foreground group. The programs of a tunnel are in groups of their own: the
/// calls have their tunnel until the trial ends, and its results are those until the interruption.
#[test]
fn interrupt_from_a_terminal_is_no_end_of_the_tunnel() {
    if !installed(&["ip", "nft", "openvpn", "unshare", "setsid"]) {
        return;
    }
    let folder = scratch("obstacles-interrupt");
    let script = format!(
        "{STATE}
        setsid $HW lab run voice-over-profile --set network.profile=lan --set protection.kind=openvpn-aes-256 \
            --set callers.total=3 --set callers.hold_seconds=60 --out out >/dev/null 2>run.log & P=$!
        await run.log ', 3 up' $P
        kill -INT -$P; wait $P || echo $? >code
        state >after
        "
    );
    if in_namespaces(&folder, &script).is_none() {
        return;
    }
    let log = read(&folder, "run.log");
    assert_eq!(read(&folder, "code"), "130\n", "{log}");
    assert!(!log.contains("ended during the call"), "{log}");
    assert_eq!(read(&folder, "before"), read(&folder, "after"));
    let run = json(&folder, "out/run.json");
    assert_eq!(run["cut_short"], true);
    assert_eq!(run["trials"][0]["figures"]["calls"]["established"], 3);
}

#[test]
fn run_leaves_the_network_as_it_was_and_no_program() {
    if !installed(&["ip", "nft", "unshare"]) {
        return;
    }
    let folder = scratch("obstacles-run");
    let sets = "--set levels= --set study= --set thresholds.figure= --set callers.rate=20 --set callers.duration_seconds=30 --set callers.hold_seconds=0.3";
    let script = format!(
        "{STATE}
        for SIGNAL in KILL INT; do
            $HW lab run call-rate --subject hornwork {sets} --out $SIGNAL >/dev/null 2>$SIGNAL.log & P=$!
            # The subject runs.
            for N in $(seq 300); do pgrep -P $P >children && break; sleep 0.1; done
            for N in $(seq 300); do grep -q 'trial 1 of' $SIGNAL.log && break; sleep 0.1; done
            sleep 1.5; kill -$SIGNAL $P; wait $P || echo $? >$SIGNAL.code
            for N in $(seq 150); do
                LEFT=; for C in $(cat children); do test -e /proc/$C && LEFT=1; done
                test -z \"$LEFT\" && break; sleep 0.1
            done
            test -z \"$LEFT\"
        done
        state >after
        "
    );
    if in_namespaces(&folder, &script).is_none() {
        return;
    }
    assert!(!read(&folder, "children").trim().is_empty());
    assert_eq!(read(&folder, "before"), read(&folder, "after"));
    assert_eq!(read(&folder, "KILL.code"), "137\n");
    assert_eq!(read(&folder, "INT.code"), "130\n");
    let run = json(&folder, "INT/run.json");
    assert_eq!(run["cut_short"], true);
    assert!(folder.join("INT/report.html").is_file());
}

/// A generator that was stopped for a while offers its calls late: it is named, and the subject is not judged.
#[test]
fn generator_that_was_stopped_is_named_and_its_subject_is_not_judged() {
    let folder = scratch("obstacles-stopped");
    let script = "
        $HW lab run call-rate --subject hornwork --set levels= --set study= --set thresholds.figure= --set callers.rate=10 \
            --set callers.duration_seconds=10 --set callers.hold_seconds=0.3 --out out >out.text 2>out.log & P=$!
        # The subject runs.
        for N in $(seq 300); do pgrep -P $P >children && break; sleep 0.1; done
        for N in $(seq 300); do grep -q 'trial 1 of' out.log && break; sleep 0.1; done
        sleep 4; kill -STOP $P; sleep 1.5; kill -CONT $P
        wait $P || echo $? >code
    ";
    let done = Command::new("sh")
        .args(["-euc", script])
        .current_dir(&folder)
        .env("HW", PROGRAM)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success(), "{}", read(&folder, "out.log"));
    assert_eq!(
        read(&folder, "code"),
        "4\n",
        "{}",
        read(&folder, "out.text")
    );
    let run = json(&folder, "out/run.json");
    assert_eq!(run["verdict"], "not measured", "{}", run["verdict"]);
    let remarks = run["trials"][0]["remarks"].to_string();
    assert!(
        remarks.contains("not judged: the generator could not keep up"),
        "{remarks}"
    );
    let checks = run["trials"][0]["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["holds"].is_null()));
}

#[test]
fn subject_that_answers_nonsense_is_named() {
    if !installed(&["python3"]) {
        return;
    }
    let folder = scratch("obstacles-nonsense");
    let subject = r#"
name = "nonsense"
title = "Answers every datagram with nonsense"
takes = ["calls"]
media = "bypass"

[[process]]
name = "python"
program = "python3"
arguments = ["-c", '''
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("@listen_ip@", @listen_port@))
while True:
    data, peer = s.recvfrom(65535)
    s.sendto(b"SIP/2.0 banana\r\n\xff\xfe\r\n\r\n" + data[::-1], peer)
''']
probe = "sip"
start_s = 3
stop_s = 1
"#;
    std::fs::write(folder.join("nonsense.toml"), subject).unwrap();
    let done = Command::new(PROGRAM)
        .args([
            "lab",
            "run",
            "call-rate",
            "--subject",
            "./nonsense.toml",
            "--out",
            "out",
        ])
        .current_dir(&folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(3), "{text}");
    assert!(
        text.contains("subject nonsense") && text.contains("no answer to OPTIONS"),
        "{text}"
    );
    // One that starts, and answers calls with nonsense: the reason of the unfinished calls is on the terminal.
    let answering = subject.replace(
        "    s.sendto(b",
        r#"    if data.startswith(b"OPTIONS"):
        names = (b"via", b"from", b"to", b"call-id", b"cseq")
        kept = [line for line in data.split(b"\r\n") if line.split(b":")[0].strip().lower() in names]
        s.sendto(b"\r\n".join([b"SIP/2.0 200 OK"] + kept + [b"Content-Length: 0", b"", b""]), peer)
        continue
    s.sendto(b"#,
    );
    let run = |text: &str, out: &str| -> String {
        std::fs::write(folder.join("nonsense.toml"), text).unwrap();
        let mut line = vec!["lab", "run", "call-rate", "--subject", "./nonsense.toml"];
        line.extend(["--out", out]);
        for set in [
            "levels=",
            "study=",
            "thresholds.figure=",
            "callers.rate=20",
            "callers.duration_seconds=1",
            "callers.hold_seconds=0.3",
            "settle_seconds=3",
        ] {
            line.extend(["--set", set]);
        }
        let done = Command::new(PROGRAM)
            .args(line)
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.status.code(), Some(1), "{text}");
        text
    };
    let text = run(&answering, "calls");
    assert!(
        text.contains("answers with bytes that are no SIP: sip_unparsable"),
        "{text}"
    );
    // One that answers each call in the name of another one.
    let method = "data.startswith(b\"OPTIONS\")";
    assert!(answering.contains(method));
    let mixed = answering
        .replace(method, "not data.startswith(b\"ACK\")")
        .replace("[b\"SIP/2.0 200 OK\"] + kept", "[b\"SIP/2.0 200 OK\"] + [other(line) for line in kept]")
        .replace("while True:", "def other(line): return b\"Call-ID: x\" if line[:1] in b\"Cc\" and line[1:2] in b\"Aa\" and not data.startswith(b\"OPTIONS\") else line\nwhile True:");
    assert!(mixed.contains("def other"), "{mixed}");
    let text = run(&mixed, "mixed");
    assert!(
        text.contains("response with another Call-ID, CSeq or From tag"),
        "{text}"
    );
    let record = json(&folder, "mixed/run.json");
    let remarks = record["trials"][0]["remarks"].to_string();
    assert!(
        remarks.contains("with another Call-ID, CSeq or From tag than the request"),
        "{remarks}"
    );
}
