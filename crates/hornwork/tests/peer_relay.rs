//! The relay in the kernel as an operator has it: two SIPp with a border between them, each in a network of its own, and their
//! speech passes the border by. Skipped without the rights.

mod common;

use common::{installed, root, scratch};
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");
/// Speech that the caller plays, where SIPp's package has put it.
const SPEECH: &str = "/usr/share/sip-tester/g711a.pcap";

/// A caller's network, the border's and a server's; in `$1` the folder, in `$2` the program, in `$3` the caller's scenario. Interfaces
/// take frames that are led to them only where they gather (GRO) themselves, and sums are written by who sends.
const SCRIPT: &str = r#"
set -e
cd "$1"
unshare -n sleep 60 & caller=$!
unshare -n sleep 60 & server=$!
trap 'kill $caller $server $border 2>/dev/null || true' EXIT
for far in $caller $server; do
  while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
done
ip link set lo up
ip link add b1 type veth peer name va netns $caller
ip link add b2 type veth peer name vc netns $server
ip addr add 10.9.1.2/24 dev b1; ip link set b1 up
ip addr add 10.9.2.2/24 dev b2; ip link set b2 up
set_up() { # network, interface, address
  nsenter --net=/proc/$1/ns/net sh -c "ip link set lo up; ip addr add $3/24 dev $2; ip link set $2 up;
    ethtool -K $2 gro on; ethtool -K $2 tx off" >/dev/null
}
set_up $caller va 10.9.1.1
set_up $server vc 10.9.2.1
"$2" run -c border.toml >border.log 2>&1 & border=$!
nsenter --net=/proc/$server/ns/net sipp -sn uas -i 10.9.2.1 -mi 10.9.2.1 -p 5060 -rtp_echo -nostdin -m 2 -timeout 40s >uas.log 2>&1 &
for wait in $(seq 500); do
  grep -q "what=\"sip udp\" address=10.9.2.2" border.log && nsenter --net=/proc/$server/ns/net grep -q :13C4 /proc/net/udp && break
  sleep 0.02
done
nsenter --net=/proc/$caller/ns/net sipp -sf "$3" -i 10.9.1.1 -mi 10.9.1.1 -p 5060 10.9.1.2:5060 -m 2 -r 1 -nostdin -timeout 40s >uac.log 2>&1
sleep 0.5
kill -INT $border
wait $border
"#;

fn configuration(kernel: &str) -> String {
    format!(
        "[[interface]]\nname = \"access\"\nkind = \"access\"\nlisten = \"udp:10.9.1.2:5060\"\nallow = \"10.9.1.0/24\"\n\
         media = {{ address = \"10.9.1.2\", ports = \"20000-20999\" }}\n\
         [[interface]]\nname = \"core\"\nkind = \"core\"\nlisten = \"udp:10.9.2.2:5060\"\n\
         media = {{ address = \"10.9.2.2\", ports = \"21000-21999\" }}\n\
         [[trunk]]\nname = \"server\"\ninterface = \"core\"\ntarget = \"udp:10.9.2.1:5060\"\n\
         [[route]]\ntrunk = \"server\"\n[media]\nkernel = \"{kernel}\"\n"
    )
}

/// The border's log of two calls; `None` where there are no rights for networks or for programs at interfaces.
fn log_of(folder: &Path, kernel: &str) -> Option<String> {
    if !installed(&["sipp", "ethtool", "nsenter", "ip"]) {
        return None;
    }
    let able = "ip link add near type veth peer name far && ethtool -K near gro on";
    let able = Command::new("unshare")
        .args(["-n", "sh", "-c", able])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !able.is_ok_and(|status| status.success()) || !Path::new(SPEECH).exists() {
        eprintln!(
            "skipped: no rights for networks of our own (unshare, ip, ethtool, root), or no {SPEECH}"
        );
        return None;
    }
    std::fs::write(folder.join("border.toml"), configuration(kernel)).unwrap();
    let scenario = root().join("crates/hornwork/tests/sipp/uac-speech.xml");
    let scenario = scenario.canonicalize().unwrap();
    let ended = Command::new("unshare")
        .args(["-n", "sh", "-c", SCRIPT, "sh"])
        .arg(folder.canonicalize().unwrap())
        .arg(PROGRAM)
        .arg(scenario)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = std::fs::read_to_string(folder.join("border.log")).unwrap_or_default();
    assert!(
        ended.status.success(),
        "{}\n{log}",
        String::from_utf8_lossy(&ended.stderr)
    );
    Some(log)
}

/// Values of a field of an event, one for each time it was told.
fn values(log: &str, event: &str, field: &str) -> Vec<u64> {
    log.lines()
        .filter(|line| line.contains(event))
        .filter_map(|line| {
            let value = line.split(&format!(" {field}=")).nth(1)?;
            value.split_whitespace().next()?.parse().ok()
        })
        .collect()
}

#[test]
fn speech_passes_through_the_kernel_where_it_is_asked_for() {
    let Some(log) = log_of(&scratch("relay-auto"), "auto") else {
        return;
    };
    if !log.contains("media_path path=kernel") {
        let why = log.lines().find(|line| line.contains("media_path"));
        eprintln!("skipped: this kernel relays nothing: {why:?}");
        return;
    }
    for side in ["caller", "callee"] {
        let came = values(&log, "media_passed", side);
        let passed = values(&log, "media_passed", &format!("{side}_passed"));
        assert_eq!((came.len(), passed.len()), (2, 2), "{log}");
        for (came, passed) in came.iter().zip(&passed) {
            // Nearly 5 s of 20 ms, less the first packets and those around a loss.
            assert!(*came > 100 && *passed <= *came, "{log}");
            assert!(*passed > came / 2, "{log}");
        }
    }
}

#[test]
fn nothing_passes_through_the_kernel_unless_it_is_asked_for() {
    let Some(log) = log_of(&scratch("relay-never"), "never") else {
        return;
    };
    assert!(!log.contains("path=kernel"), "{log}");
    assert!(!log.contains("media_passed"), "{log}");
    assert_eq!(log.matches("call_ended").count(), 2, "{log}");
}
