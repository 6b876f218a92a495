//! The kernel relay and AF_XDP in operation: two SIPp with a border between them, each in a network namespace, with
//! media that bypasses the sockets. Skipped without the rights.

use crate::common;

use common::{installed, root, scratch};
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");
/// Speech that the caller plays, from SIPp's package.
const SPEECH: &str = "/usr/share/sip-tester/g711a.pcap";

const KERNEL_AUTO: &str = "kernel_relay = \"auto\"";
const KERNEL_REQUIRE: &str = "kernel_relay = \"require\"";

/// Namespaces of a caller, the border and a server. Arguments: `$1` the folder, `$2` the program, `$3` the caller's
/// scenario, `$4` and `$5` whether the caller's and the server's interface use GRO, without which they do not receive
/// redirected frames, `$6` and `$7` beginning and end of addresses. Senders compute checksums. Both far ends are
/// captured if tshark is installed.
const SCRIPT: &str = r#"
set -e
cd "$1"
unshare -n sleep 300 & caller=$!
unshare -n sleep 300 & server=$!
trap 'kill $caller $server $border $captures 2>/dev/null || true' EXIT
for far in $caller $server; do
  while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
done
case $6 in *:) dot=:: rest="$7 nodad" open=[ close=] ;; *) dot=. rest=$7 open= close= ;; esac
va="${6}1${dot}1" b1="${6}1${dot}2" vc="${6}2${dot}1" b2="${6}2${dot}2"
ip link set lo up
ip link add b1 type veth peer name va netns $caller
ip link add b2 type veth peer name vc netns $server
ip addr add $b1$rest dev b1; ip link set b1 up
ip addr add $b2$rest dev b2; ip link set b2 up
set_up() { # network, interface, address, gathers
  nsenter --net=/proc/$1/ns/net sh -c "ip link set lo up; ip addr add $3$rest dev $2; ip link set $2 up;
    ethtool -K $2 gro $4; ethtool -K $2 tx off" >/dev/null
}
set_up $caller va $va $4
set_up $server vc $vc $5
captures=
if command -v tshark >/dev/null; then
  capture() { # network, interface
    nsenter --net=/proc/$1/ns/net tshark -q -i $2 -w $2.pcapng -f udp >$2.log 2>&1 & captures="$captures $!"
    for wait in $(seq 1000); do grep -q "Capturing on" $2.log && [ -s $2.pcapng ] && break; sleep 0.02; done
  }
  capture $caller va
  capture $server vc
fi
"$2" run -c border.toml >border.log 2>&1 & border=$!
nsenter --net=/proc/$server/ns/net sipp -sn uas -i $vc -mi $vc -p 5060 -rtp_echo -nostdin -m 2 -timeout 150s >uas.log 2>&1 &
for wait in $(seq 1500); do
  grep -qF "purpose=\"sip udp\" address=$open$b2$close:5060" border.log && nsenter --net=/proc/$server/ns/net grep -q :13C4 /proc/net/udp /proc/net/udp6 && break
  sleep 0.02
done
nsenter --net=/proc/$caller/ns/net sipp -sf "$3" -i $va -mi $va -p 5060 $open$b1$close:5060 -m 2 -r 1 -nostdin -timeout 150s >uac.log 2>&1
# The capture is complete when it has the last packet.
end() { # network, interface, address
  nsenter --net=/proc/$1/ns/net bash -c "echo the-end >/dev/udp/$3/9" || true
  for wait in $(seq 1000); do grep -q the-end $2.pcapng && break; sleep 0.02; done
}
[ -z "$captures" ] || { end $caller va $b1; end $server vc $b2; }
[ -z "$captures" ] || { kill -INT $captures; wait $captures || true; }
kill -INT $border
wait $border
"#;

/// Address family: the beginning of addresses, and the prefix length.
#[derive(Clone, Copy)]
struct Family(&'static str, &'static str);

const V4: Family = Family("10.9.", "/24");
const V6: Family = Family("fd09:", "/64");

impl Family {
    /// Host 1 is the far end, 2 the border.
    fn address(self, network: u8, host: u8) -> String {
        let between = if self.0.ends_with(':') { "::" } else { "." };
        format!("{}{network}{between}{host}", self.0)
    }

    fn end(self, network: u8, host: u8) -> String {
        match self.address(network, host) {
            address if address.contains(':') => format!("[{address}]:5060"),
            address => format!("{address}:5060"),
        }
    }
}

/// `media`: content of that table.
fn configuration(media: &str, family: Family) -> String {
    let [access, core] = [1, 2].map(|network| family.end(network, 2));
    let [access_media, core_media] = [1, 2].map(|network| family.address(network, 2));
    let (callers, length) = (family.address(1, 0), family.1);
    let server = family.end(2, 1);
    format!(
        "[[interface]]\nname = \"access\"\nkind = \"access\"\nlisten = \"udp:{access}\"\nallow = \"{callers}{length}\"\n\
         media = {{ address = \"{access_media}\", ports = \"20000-20999\" }}\n\
         [[interface]]\nname = \"core\"\nkind = \"core\"\nlisten = \"udp:{core}\"\n\
         media = {{ address = \"{core_media}\", ports = \"21000-21999\" }}\n\
         [[trunk]]\nname = \"server\"\ninterface = \"core\"\ntarget = \"udp:{server}\"\n\
         [[route]]\ntrunk = \"server\"\n[media]\n{media}\n"
    )
}

/// The border's log of two calls; `None` without the rights for namespaces or XDP programs.
fn log_of(folder: &Path, media: &str, gathers: [&str; 2], family: Family) -> Option<String> {
    if !installed(&["sipp", "ethtool", "nsenter", "ip", "unshare"]) {
        return None;
    }
    let able = "ip link add near type veth peer name far && ethtool -K near gro on";
    let able = Command::new("unshare")
        .args(["-n", "sh", "-c", able])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !Path::new(SPEECH).exists() {
        eprintln!("skipped: not installed: {SPEECH} (Debian: sip-tester)");
        return None;
    }
    if !able.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to a network namespace");
        return None;
    }
    std::fs::write(folder.join("border.toml"), configuration(media, family)).unwrap();
    let scenario = root().join("crates/hornwork/tests/sipp/uac-speech.xml");
    let scenario = scenario.canonicalize().unwrap();
    let ended = Command::new("unshare")
        .args(["-n", "sh", "-c", SCRIPT, "sh"])
        .arg(folder.canonicalize().unwrap())
        .arg(PROGRAM)
        .arg(scenario)
        .args(gathers)
        .args([family.0, family.1])
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

/// Values of a field in all events of this name.
fn values(log: &str, event: &str, field: &str) -> Vec<u64> {
    log.lines()
        .filter(|line| line.contains(event))
        .filter_map(|line| {
            let value = line.split(&format!(" {field}=")).nth(1)?;
            value.split_whitespace().next()?.parse().ok()
        })
        .collect()
}

/// The calls' speech passed the kernel relay as far as possible.
fn assert_kernel_share(log: &str) {
    for side in ["caller", "callee"] {
        let came = values(log, "media_relayed_in_kernel", &format!("{side}_packets"));
        let passed = values(log, "media_relayed_in_kernel", &format!("{side}_relayed"));
        assert_eq!((came.len(), passed.len()), (2, 2), "{log}");
        for (came, passed) in came.iter().zip(&passed) {
            // Nearly 5 s of 20 ms packets, less the first ones and those around a loss.
            assert!(*came > 100 && *passed <= *came, "{log}");
            assert!(*passed > came / 2, "{log}");
        }
    }
    assert_eq!(log.matches(" path=kernel codec=").count(), 2, "{log}");
}

/// Streams of a capture in tshark's figures: source, packets, lost, mean jitter in milliseconds.
fn streams(capture: &Path) -> Vec<(String, u64, i64, f64)> {
    let done = Command::new("tshark")
        .args(["-q", "-z", "rtp,streams", "-r"])
        .arg(capture)
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&done.stdout).into_owned();
    // Start, end, source, port, destination, port, SSRC, payload, packets, lost, (percent), minimum, mean and maximum
    // delta, and jitter.
    let lines = messages.lines().filter(|line| line.contains(" 0x"));
    let streams: Vec<_> = lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| word.starts_with("0x"));
            let at = at.unwrap_or_else(|| panic!("{messages}"));
            // The payload name may consist of several words.
            let percent = words.iter().position(|word| word.starts_with('('));
            let percent = percent.unwrap_or_else(|| panic!("{messages}"));
            (
                words[at - 4].to_owned(),
                words[percent - 2].parse().unwrap(),
                words[percent - 1].parse().unwrap(),
                words[percent + 5].parse().unwrap(),
            )
        })
        .collect();
    assert!(done.status.success() && !streams.is_empty(), "{messages}");
    streams
}

/// Packets that tshark captured at the far ends match our figures, and all of them reached the other end.
fn assert_tshark_figures(folder: &Path, log: &str, family: Family) {
    if !installed(&["tshark"]) {
        return;
    }
    for (capture, side, network, other) in [
        ("va.pcapng", "caller", 1, "vc.pcapng"),
        ("vc.pcapng", "callee", 2, "va.pcapng"),
    ] {
        let of = |capture: &str, from: &str| {
            let mut streams = streams(&folder.join(capture));
            streams.retain(|stream| stream.0 == from);
            streams.sort_by_key(|stream| stream.1);
            streams
        };
        let ours = |what: &str| values(log, "media_relayed_in_kernel", &format!("{side}{what}"));
        let sent = of(capture, &family.address(network, 1));
        let arrived = of(other, &family.address(3 - network, 2));
        let mut packets = ours("_packets");
        packets.sort_unstable();
        let theirs: Vec<u64> = sent.iter().map(|stream| stream.1).collect();
        assert_eq!(packets, theirs, "{side}\n{log}");
        let reached: Vec<u64> = arrived.iter().map(|stream| stream.1).collect();
        assert_eq!(reached, theirs, "{side}\n{log}");
        let sum = |streams: &[(String, u64, i64, f64)]| streams.iter().map(|s| s.2).sum::<i64>();
        assert_eq!(
            ours("_lost").iter().sum::<u64>() as i64,
            sum(&sent),
            "{log}"
        );
        assert_eq!(sum(&arrived), sum(&sent), "{log}");
        // Of both calls together: captured at the other end of a link, with another program's clock.
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let jitter: Vec<f64> = ours("_jitter_us")
            .iter()
            .map(|us| *us as f64 / 1e3)
            .collect();
        let theirs: Vec<f64> = sent.iter().map(|stream| stream.3).collect();
        let (ours, theirs) = (mean(&jitter), mean(&theirs));
        assert!(
            (ours - theirs).abs() < 2.0 + theirs * 0.25,
            "{side}: {ours} ms, tshark {theirs} ms"
        );
    }
}

fn speech_passes(folder: &Path, family: Family) {
    let Some(log) = log_of(folder, KERNEL_AUTO, ["on"; 2], family) else {
        return;
    };
    if !log.contains("media_path path=kernel_relay") {
        let why = log.lines().find(|line| line.contains("media_path"));
        eprintln!("skipped: this kernel relays nothing: {why:?}");
        return;
    }
    assert_kernel_share(&log);
    assert_tshark_figures(folder, &log, family);
}

#[test]
fn speech_passes_kernel_relay_if_configured() {
    speech_passes(&scratch("relay-auto"), V4);
}

#[test]
fn speech_passes_through_the_kernel_over_ipv6() {
    speech_passes(&scratch("relay-auto6"), V6);
}

#[test]
fn required_kernel_relay_runs_or_prevents_the_start() {
    let Some(log) = log_of(&scratch("relay-able"), KERNEL_AUTO, ["on"; 2], V4) else {
        return;
    };
    if !log.contains("media_path path=kernel_relay") {
        eprintln!("skipped: this kernel relays nothing");
        return;
    }
    let log = log_of(&scratch("relay-require"), KERNEL_REQUIRE, ["on"; 2], V4).unwrap();
    assert!(log.contains("media_path path=kernel_relay"), "{log}");
    assert_kernel_share(&log);
    let folder = scratch("relay-require-not");
    let refused = |name: &str, able: &[&str], media: &str| {
        let file = folder.join(name);
        let text = configuration(KERNEL_REQUIRE, V4).replace("10.9.2.2:5060", "10.9.2.2:5062");
        let text = text
            .replace("10.9.1.2", media)
            .replace("10.9.2.2", media)
            .replace("10.9.1.0/24", "0.0.0.0/0");
        std::fs::write(&file, text).unwrap();
        let (first, words) = able.split_first().unwrap();
        let done = Command::new(first)
            .args(words)
            .args([PROGRAM, "run", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(3), "{name}: {messages}");
        assert!(
            messages.contains("cannot start the kernel relay: "),
            "{messages}"
        );
        assert!(
            messages.contains("remedy: set `[media] kernel_relay"),
            "{messages}"
        );
        messages
    };
    // An interface that does not support such a program.
    let messages = refused(
        "loopback.toml",
        &[
            "unshare",
            "-n",
            "sh",
            "-c",
            "ip link set lo up; exec \"$@\"",
            "sh",
        ],
        "127.0.0.1",
    );
    assert!(messages.contains("127.0.0.1"), "{messages}");
    // A far end that does not receive redirected frames, and no right to load a program there.
    let wire = "ip link set lo up; ip link add near type veth peer name far; ip addr add 10.9.3.1/24 dev near;
        ip link set near up; ip link set far up; exec \"$@\"";
    let messages = refused(
        "far.toml",
        &["unshare", "-n", "sh", "-c", wire, "sh"],
        "10.9.3.1",
    );
    assert!(
        messages.contains("does not transmit redirected frames"),
        "{messages}"
    );
    if installed(&["setpriv"]) {
        let bare = "setpriv --bounding-set=-bpf,-net_admin,-sys_admin,-perfmon --inh-caps=-all";
        let wire = wire.replace("exec", &format!("ethtool -K far gro on; exec {bare}"));
        let messages = refused(
            "rights.toml",
            &["unshare", "-n", "sh", "-c", &wire, "sh"],
            "10.9.3.1",
        );
        assert!(messages.contains("not permitted"), "{messages}");
    }
}

/// Streams that do not pass the kernel relay are reported as passing sockets.
#[test]
fn media_through_sockets_is_reported_as_such() {
    // No frame can be redirected to the server.
    let Some(log) = log_of(&scratch("relay-half"), KERNEL_AUTO, ["on", "off"], V4) else {
        return;
    };
    if log.contains("the kernel does not") {
        eprintln!("skipped: this kernel relays nothing");
        return;
    }
    let path = log
        .lines()
        .find(|line| line.contains("media_path path=kernel_relay"));
    let path = path.unwrap_or_else(|| panic!("{log}"));
    assert!(
        path.contains("10.9.2.2: its interface does not transmit redirected frames"),
        "{log}"
    );
    assert!(!path.contains("10.9.1.2: "), "{log}");
    assert_eq!(
        values(&log, "media_relayed_in_kernel", "caller_relayed"),
        [0, 0],
        "{log}"
    );
    assert!(
        values(&log, "media_relayed_in_kernel", "callee_relayed")
            .iter()
            .all(|&n| n > 100),
        "{log}"
    );
    // Nor to the caller.
    let log = log_of(&scratch("relay-none"), KERNEL_AUTO, ["off"; 2], V4).unwrap();
    assert!(log.contains("media_path path=no_kernel_relay"), "{log}");
    assert!(!log.contains("media_path path=kernel_relay"), "{log}");
    for side in ["caller", "callee"] {
        assert!(
            values(&log, "media_relayed_in_kernel", &format!("{side}_packets"))
                .iter()
                .all(|&n| n > 100),
            "{log}"
        );
        assert_eq!(
            values(&log, "media_relayed_in_kernel", &format!("{side}_relayed")),
            [0, 0],
            "{log}"
        );
    }
}

/// Packets and lost packets of both directions, as captured by tshark at one far end and the other.
fn tshark_loss(folder: &Path, family: Family) -> [(u64, i64); 2] {
    let sum = |capture: &str, from: String| {
        let mut all = streams(&folder.join(capture));
        all.retain(|stream| stream.0 == from);
        assert_eq!(all.len(), 2, "{capture} {from}");
        all.iter()
            .fold((0, 0), |sum, stream| (sum.0 + stream.1, sum.1 + stream.2))
    };
    [("va.pcapng", 1, "vc.pcapng"), ("vc.pcapng", 2, "va.pcapng")].map(
        |(capture, network, other)| {
            let sent = sum(capture, family.address(network, 1));
            assert_eq!(sum(other, family.address(3 - network, 2)), sent);
            sent
        },
    )
}

fn speech_by_af_xdp(folder: &Path, wanted: &str, family: Family) {
    let media = format!("af_xdp = \"{wanted}\"");
    let Some(log) = log_of(folder, &media, ["off"; 2], family) else {
        return;
    };
    if log.contains("media_path path=no_af_xdp") {
        let why = log.lines().find(|line| line.contains("no_af_xdp"));
        eprintln!("skipped: no AF_XDP here: {why:?}");
        return;
    }
    let path = log
        .lines()
        .find(|line| line.contains("media_path path=af_xdp"));
    let path = path.unwrap_or_else(|| panic!("{log}"));
    assert!(path.contains("b1: ") && path.contains("b2: "), "{path}");
    assert_eq!(log.matches(" path=af_xdp codec=").count(), 2, "{log}");
    let of = |field: &str| {
        let values = values(&log, "af_xdp_statistics", field);
        assert_eq!(values.len(), 1, "{log}");
        values[0]
    };
    assert_eq!(of("dropped"), 0, "{log}");
    assert!(of("received") > 400 && of("sent") > 200, "{log}");
    if !installed(&["tshark"]) {
        return;
    }
    // All packets of the far ends arrived by AF_XDP, and left by it or by the sockets: RTP, and at most some RTCP of
    // ours.
    let [caller, callee] = tshark_loss(folder, family);
    assert_eq!(of("received"), caller.0 + callee.0, "{log}");
    let left = of("sent") + of("sent_by_sockets");
    assert!(
        left >= caller.0 + callee.0 && left < caller.0 + callee.0 + 20,
        "{log}"
    );
    assert!(of("sent") > left / 2, "{log}");
}

#[test]
fn speech_passes_af_xdp() {
    speech_by_af_xdp(&scratch("xsk-auto"), "auto", V4);
}

#[test]
fn speech_passes_by_af_xdp_over_ipv6() {
    speech_by_af_xdp(&scratch("xsk-require6"), "require", V6);
}

#[test]
fn unavailable_af_xdp_prevents_the_start_if_required() {
    if !installed(&["ip", "unshare", "setpriv"]) {
        return;
    }
    let folder = scratch("xsk-refused");
    let wire = "ip link set lo up; ip link add near type veth peer name far; ip addr add 10.9.1.2/24 dev near;
        ip addr add 10.9.2.2/24 dev near; ip link set near up; ip link set far up; exec";
    let able = Command::new("unshare")
        .args(["-n", "sh", "-c", &format!("{wire} true")])
        .stderr(Stdio::null())
        .status();
    if !able.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to a network namespace");
        return;
    }
    let bare =
        "setpriv --bounding-set=-bpf,-net_admin,-net_raw,-sys_admin,-perfmon --inh-caps=-all";
    let started = |wanted: &str| {
        let file = folder.join("border.toml");
        let media = format!("af_xdp = \"{wanted}\"");
        std::fs::write(&file, configuration(&media, V4)).unwrap();
        // A border that does start ends at once.
        Command::new("unshare")
            .args([
                "-n",
                "sh",
                "-c",
                &format!("{wire} {bare} timeout -s INT 6 \"$@\""),
                "sh",
            ])
            .args([PROGRAM, "run", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let done = started("require");
    let messages = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(3), "{messages}");
    assert!(
        messages.contains("cannot use AF_XDP for media: "),
        "{messages}"
    );
    assert!(messages.contains("not permitted"), "{messages}");
    assert!(
        messages.contains("remedy: set `[media] af_xdp"),
        "{messages}"
    );
    // If it is not required sockets are used, and the log contains the reason.
    let done = started("auto");
    let messages = [done.stdout, done.stderr].concat();
    let messages = String::from_utf8_lossy(&messages);
    let path = messages
        .lines()
        .find(|line| line.contains("media_path path=no_af_xdp"));
    assert!(
        path.is_some_and(|line| line.contains("not permitted")),
        "{messages}"
    );
    assert!(
        messages.contains("purpose=\"sip udp\" address=10.9.1.2:5060"),
        "{messages}"
    );
}

#[test]
fn kernel_relay_is_off_by_default() {
    let Some(log) = log_of(
        &scratch("relay-never"),
        "kernel_relay = \"never\"",
        ["on"; 2],
        V4,
    ) else {
        return;
    };
    assert!(!log.contains("path=kernel"), "{log}");
    assert!(!log.contains("media_relayed_in_kernel"), "{log}");
    assert!(
        !log.contains("af_xdp") && !log.contains("af_xdp_statistics"),
        "{log}"
    );
    assert_eq!(log.matches("call_ended").count(), 2, "{log}");
}
