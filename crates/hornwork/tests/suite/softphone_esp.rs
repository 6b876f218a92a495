//! `hornwork phone --esp` in a network namespace of its own: every mode and carrier, several algorithms, both families.
//! A capture of the wire is read by tshark with the same key file. Skipped without the rights.

use crate::common::phones::{correlation_of, voice};
use crate::common::{installed, scratch};
use crate::softphone::{MIN_CORRELATION, json, phone, recorded, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

/// Two namespaces with a link between them: a phone that answers in one, a phone that calls in the other, and a capture
/// of the link. `$1`: the folder, `$2`: the program, `$3`: arguments of the called phone, `$4`: of the calling one.
const SCRIPT: &str = r#"
set -e
cd "$1"
unshare -n sleep 300 & far=$!
trap 'kill $far $capture $answer 2>/dev/null || true' EXIT
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
there="nsenter --net=/proc/$far/ns/net"
ip link set lo up
$there ip link set lo up
ip link add va type veth peer name vb netns $far
ip addr add 10.9.1.1/24 dev va; ip addr add fd09:1::1/64 dev va nodad; ip link set va up
$there sh -c "ip addr add 10.9.1.2/24 dev vb; ip addr add fd09:1::2/64 dev vb nodad; ip link set vb up"
tshark -q -i va -w wire.pcapng >tshark.log 2>&1 & capture=$!
for wait in $(seq 1500); do grep -q "Capturing on" tshark.log && [ -s wire.pcapng ] && break; sleep 0.02; done
$there timeout 40 "$2" phone answer $3 </dev/null >answer.log 2>&1 & answer=$!
for wait in $(seq 1500); do grep -q "waiting for a call" answer.log && break; kill -0 $answer 2>/dev/null || break; sleep 0.02; done
code=0
timeout 40 "$2" phone call $4 </dev/null >call.log 2>&1 || code=$?
wait $answer || true
# The capture is complete when it has the last packet.
bash -c "echo the-end >/dev/udp/10.9.1.2/9" || true
for wait in $(seq 1500); do grep -q the-end wire.pcapng && break; sleep 0.02; done
kill -INT $capture; wait $capture || true
exit $code
"#;

fn able() -> bool {
    if !installed(&["unshare", "nsenter", "ip", "tshark", "timeout"]) {
        return false;
    }
    let able = Command::new("unshare")
        .args(["-n", "ip", "link", "add", "near", "type", "veth"])
        .stderr(Stdio::null())
        .status();
    let able = able.is_ok_and(|status| status.success());
    if !able {
        eprintln!("skipped: no right to a network namespace");
    }
    able
}

/// A key of `length` bytes that differs by direction.
pub fn key(length: usize, direction: u8) -> String {
    if length == 0 {
        return String::new();
    }
    let mut text = "0x".to_owned();
    for at in 0..length {
        let _ = write!(
            text,
            "{:02x}",
            (at as u8)
                .wrapping_mul(7)
                .wrapping_add(direction.wrapping_mul(100))
                .wrapping_add(1)
        );
    }
    text
}

/// Algorithms by Wireshark's names, with the lengths of their keys.
#[derive(Clone, Copy)]
pub struct Suite(pub &'static str, pub usize, pub &'static str, pub usize);

pub const GCM: Suite = Suite("AES-GCM with 16 octet ICV [RFC4106]", 20, "NULL", 0);
const CBC_SHA1: Suite = Suite("AES-CBC [RFC3602]", 16, "HMAC-SHA-1-96 [RFC2404]", 20);
const CBC_SHA256: Suite = Suite("AES-CBC [RFC3602]", 32, "HMAC-SHA-256-128 [RFC4868]", 32);
// ChaCha20-Poly1305 is not among them: tshark 4.0 has it not.
const CTR: Suite = Suite("AES-CTR [RFC3686]", 20, "HMAC-SHA-512-256 [RFC4868]", 64);
const TRIPLE_DES: Suite = Suite("TripleDES-CBC [RFC2451]", 24, "HMAC-MD5-96 [RFC2403]", 16);

impl Suite {
    /// The lines of both directions; `other` changes the keys.
    fn lines(self, [near, far]: [&str; 2], other: u8) -> String {
        let family = if near.contains(':') { "IPv6" } else { "IPv4" };
        let line = |from: &str, to: &str, spi: &str, direction: u8| {
            let Suite(encryption, length, integrity, integrity_length) = self;
            let direction = direction + other;
            format!(
                "\"{family}\",\"{from}\",\"{to}\",\"{spi}\",\"{encryption}\",\"{}\",\"{integrity}\",\"{}\"\n",
                key(length, direction),
                key(integrity_length, direction)
            )
        };
        line(near, far, "0x00001001", 0) + &line(far, near, "0x00001002", 1)
    }
}

fn write_keys(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("key file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
}

struct Ended {
    folder: PathBuf,
    code: Option<i32>,
    logs: String,
}

/// A call of three seconds between two namespaces, with further arguments of both phones.
fn call(folder: PathBuf, answer: &str, caller: &str) -> Ended {
    voice(&folder, "caller.wav", codec::speech::speech());
    voice(&folder, "callee.wav", codec::speech::answer());
    let wait = if answer.contains("--wait") {
        ""
    } else {
        "--wait 15"
    };
    let answer = format!(
        "{wait} --wav-in callee.wav --loop --wav-out callee-heard.wav --json callee.json --codec pcma {answer}"
    );
    let caller = format!(
        "{caller} --wav-in caller.wav --loop --wav-out caller-heard.wav --json caller.json --codec pcma --seconds 3"
    );
    let script = Command::new("unshare")
        .args(["-n", "bash", "-c", SCRIPT, "bash"])
        .arg(folder.canonicalize().expect("folder"))
        .args([PROGRAM, &answer, &caller])
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let logs = format!(
        "call: {}\nanswer: {}\nscript: {}",
        read("call.log"),
        read("answer.log"),
        text(&script)
    );
    Ended {
        folder,
        code: script.status.code(),
        logs,
    }
}

fn tshark(folder: &Path, arguments: &[&str], keys: Option<&str>) -> String {
    // Its own profile, so that no preference or key of the user counts.
    let home = folder.join("tshark-home");
    std::fs::create_dir_all(home.join(".config/wireshark")).expect("profile");
    let file = home.join(".config/wireshark/esp_sa");
    match keys {
        Some(keys) => std::fs::write(file, keys).expect("keys"),
        None => {
            let _ = std::fs::remove_file(file);
        }
    }
    let output = Command::new("tshark")
        .args([
            "-r",
            "wire.pcapng",
            "-o",
            "esp.enable_encryption_decode:TRUE",
        ])
        .args([
            "-o",
            "esp.enable_authentication_check:TRUE",
            "-o",
            "udp.check_checksum:TRUE",
        ])
        .args([
            "-o",
            "rtp.heuristic_rtp:TRUE",
            "--enable-heuristic",
            "rtp_udp",
        ])
        .args(arguments)
        .env("HOME", &home)
        .env_remove("XDG_CONFIG_HOME")
        .current_dir(folder)
        .output()
        .expect("tshark");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Packets of the wire that the filter shows.
fn count(folder: &Path, filter: &str, keys: Option<&str>) -> u64 {
    tshark(folder, &["-Y", filter], keys).lines().count() as u64
}

fn number(figures: &Value, pointer: &str) -> u64 {
    figures
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{pointer}: {figures:#}"))
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    suite: Suite,
    tunnel: bool,
    over: &'static str,
    v6: bool,
    weak: bool,
}

impl Case {
    fn outer(self) -> [&'static str; 2] {
        match self.v6 {
            false => ["10.9.1.1", "10.9.1.2"],
            true => ["fd09:1::1", "fd09:1::2"],
        }
    }

    /// Addresses of the phones; those inside of a tunnel are of the other family, and on no interface.
    fn phones(self) -> [&'static str; 2] {
        match (self.tunnel, self.v6) {
            (false, _) => self.outer(),
            (true, false) => ["fd77::1", "fd77::2"],
            (true, true) => ["10.77.0.1", "10.77.0.2"],
        }
    }

    fn run(self) -> Ended {
        let folder = scratch(&format!("softphone-esp-{}", self.name));
        write_keys(&folder, "keys", &self.suite.lines(self.outer(), 0));
        let mut options = format!("--esp keys --esp-over {}", self.over);
        if self.tunnel {
            options += " --esp-mode tunnel";
        }
        if self.weak {
            options += " --esp-allow-weak";
        }
        let [near, far] = self.phones().map(|ip| match ip.contains(':') {
            true => format!("[{ip}]"),
            false => ip.to_owned(),
        });
        call(
            folder,
            &format!("--local {far}:5060 {options}"),
            &format!("sip:600@{far} --local {near} {options}"),
        )
    }
}

const CASES: [Case; 7] = [
    Case {
        name: "transport-ip-gcm",
        suite: GCM,
        tunnel: false,
        over: "ip",
        v6: false,
        weak: false,
    },
    Case {
        name: "transport-udp-cbc",
        suite: CBC_SHA1,
        tunnel: false,
        over: "udp",
        v6: false,
        weak: false,
    },
    Case {
        name: "transport-ip-v6",
        suite: CTR,
        tunnel: false,
        over: "ip",
        v6: true,
        weak: false,
    },
    Case {
        name: "transport-udp-v6",
        suite: CBC_SHA256,
        tunnel: false,
        over: "udp",
        v6: true,
        weak: false,
    },
    Case {
        name: "tunnel-ip-cbc",
        suite: CBC_SHA256,
        tunnel: true,
        over: "ip",
        v6: false,
        weak: false,
    },
    Case {
        name: "tunnel-udp-gcm-v6",
        suite: GCM,
        tunnel: true,
        over: "udp",
        v6: true,
        weak: false,
    },
    Case {
        name: "transport-ip-3des",
        suite: TRIPLE_DES,
        tunnel: false,
        over: "ip",
        v6: false,
        weak: true,
    },
];

#[test]
fn calls_pass_through_esp_and_tshark_opens_them() {
    if !able() {
        return;
    }
    // Each capture is read beside the next call.
    std::thread::scope(|scope| {
        for case in CASES {
            let ended = case.run();
            scope.spawn(move || judge(case, ended));
        }
    });
}

fn judge(case: Case, ended: Ended) {
    let Ended { folder, code, logs } = ended;
    let name = case.name;
    assert_eq!(code, Some(0), "{name}: {logs}");
    let figures = [json(&folder, "caller.json"), json(&folder, "callee.json")];
    for figures in &figures {
        let mode = if case.tunnel { "tunnel" } else { "transport" };
        assert_eq!(figures["established"], true, "{name}: {logs}");
        assert_eq!(figures["protection"], format!("esp-{mode}"));
        assert_eq!(figures["esp"]["mode"], mode);
        assert_eq!(figures["esp"]["carrier"], case.over);
        assert_eq!(number(figures, "/esp/dropped"), 0, "{name}: {figures:#}");
        assert!(number(figures, "/received") > 80, "{name}: {figures:#}");
        assert_eq!(number(figures, "/lost"), 0, "{name}: {figures:#}");
    }
    let (samples, _) = recorded(&folder, "callee-heard.wav");
    let heard = correlation_of(&samples, codec::speech::speech());
    assert!(heard > MIN_CORRELATION, "{name}: correlation {heard}");
    // The judge: every packet of the call is ESP, opens with the key file, and has a right ICV and checksum.
    let keys = case.suite.lines(case.outer(), 0);
    let sealed = number(&figures[0], "/esp/sealed") + number(&figures[1], "/esp/sealed");
    // The last packet may find no phone any more: the ICMP message quotes it.
    let on_wire = count(&folder, "esp && !icmp && !icmpv6", None);
    assert_eq!(on_wire, sealed, "{name}: packets on the wire");
    let clear = count(
        &folder,
        "(sip || rtp || udp) && !esp && !(udp.port == 9) && !mdns",
        None,
    );
    assert_eq!(clear, 0, "{name}: in the clear");
    let keyed = Some(keys.as_str());
    let rtp = count(&folder, "esp && rtp", keyed);
    let sent = number(&figures[0], "/sent") + number(&figures[1], "/sent");
    println!("{name}: {on_wire} ESP packets, {rtp} RTP of {sent} sent");
    assert_eq!(rtp, sent, "{name}: RTP that tshark finds");
    assert!(count(&folder, "esp && sip", keyed) >= 4, "{name}: SIP");
    // The kernel leaves the checksum of an outer UDP header to the interface, which has none.
    let bad = match case.over {
        "udp" => "esp.icv_bad == 1",
        _ => "esp && (esp.icv_bad == 1 || udp.checksum.status == 0 || ip.checksum.status == 0)",
    };
    assert_eq!(count(&folder, bad, keyed), 0, "{name}: ICV or checksum");
    let wrong = case.suite.lines(case.outer(), 1);
    // Random bytes may look like RTP, but not like that of the call.
    let sources = tshark(
        &folder,
        &["-Y", "esp && rtp", "-T", "fields", "-e", "rtp.ssrc"],
        keyed,
    );
    let sources: BTreeSet<&str> = sources.lines().collect();
    assert_eq!(sources.len(), 2, "{name}: {sources:?}");
    for source in sources {
        let of_call = format!("esp && rtp.ssrc == {source}");
        assert!(count(&folder, &of_call, keyed) > 80, "{name}: {of_call}");
        assert_eq!(count(&folder, &of_call, Some(&wrong)), 0, "{name}");
    }
    let words = std::fs::read(folder.join("wire.pcapng")).expect("capture");
    let has_sip = words.windows(7).any(|bytes| bytes == b"SIP/2.0");
    assert!(!has_sip, "{name}: SIP in the clear");
    for log in ["call.log", "answer.log"] {
        let log = std::fs::read_to_string(folder.join(log)).expect("log");
        let secret = key(case.suite.1, 0);
        assert!(!log.contains(&secret[2..]), "{name}: a key was printed");
        assert_eq!(
            log.contains("is weak (RFC 8221)"),
            case.weak,
            "{name}: {log}"
        );
    }
}

#[test]
fn wrong_key_gives_no_call_and_counted_drops() {
    if !able() {
        return;
    }
    // An INVITE without answer takes 32 s (timer B): both at once.
    std::thread::scope(|scope| {
        for (name, suite) in [("gcm", GCM), ("cbc", CBC_SHA1)] {
            scope.spawn(move || assert_no_call_with_wrong_key(name, suite));
        }
    });
}

fn assert_no_call_with_wrong_key(name: &str, suite: Suite) {
    let folder = scratch(&format!("softphone-esp-wrong-key-{name}"));
    let ends = ["10.9.1.1", "10.9.1.2"];
    write_keys(&folder, "keys", &suite.lines(ends, 0));
    write_keys(&folder, "other", &suite.lines(ends, 1));
    let Ended { folder, code, logs } = call(
        folder,
        "--local 10.9.1.2 --esp other --esp-over udp --wait 4",
        "sip:600@10.9.1.2 --esp keys --esp-over udp --ring-seconds 2",
    );
    assert_eq!(code, Some(1), "{logs}");
    let callee = json(&folder, "callee.json");
    assert_eq!(callee["established"], false, "{callee:#}");
    assert!(
        number(&callee, "/esp/drops/esp_authentication") >= 1,
        "{callee:#}"
    );
    assert_eq!(number(&callee, "/esp/opened"), 0);
    assert_eq!(number(&callee, "/esp/sealed"), 0, "nothing was answered");
    assert!(logs.contains("esp_authentication"), "{logs}");
    let caller = json(&folder, "caller.json");
    let reason = caller["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("compare keys, SPIs"), "{caller:#}");
}

/// A later run continues the sequence numbers: a peer that kept running would take them for replays otherwise, and an
/// AEAD cipher would repeat a nonce.
#[test]
fn sequence_numbers_outlast_a_phone() {
    if !able() {
        return;
    }
    let folder = scratch("softphone-esp-numbers");
    let ends = ["10.9.1.1", "10.9.1.2"];
    write_keys(&folder, "keys", &GCM.lines(ends, 0));
    let mut last = 0;
    for _ in 0..2 {
        let ended = call(
            folder.clone(),
            "--local 10.9.1.2 --esp keys --esp-over udp",
            "sip:600@10.9.1.2 --esp keys --esp-over udp",
        );
        assert_eq!(ended.code, Some(0), "{}", ended.logs);
        let numbers = tshark(
            &folder,
            &[
                "-Y",
                "esp.spi == 0x1001",
                "-T",
                "fields",
                "-e",
                "esp.sequence",
            ],
            None,
        );
        let numbers: Vec<u64> = numbers.lines().map(|line| line.parse().unwrap()).collect();
        // As sealed, because the capture may lack the last packets of a phone.
        assert_eq!(numbers.first(), Some(&(last + 1)), "{numbers:?}");
        last += number(&json(&folder, "caller.json"), "/esp/sealed");
    }
    // New keys begin again.
    write_keys(&folder, "keys", &GCM.lines(ends, 1));
    let ended = call(
        folder.clone(),
        "--local 10.9.1.2 --esp keys --esp-over udp",
        "sip:600@10.9.1.2 --esp keys --esp-over udp",
    );
    assert_eq!(ended.code, Some(0), "{}", ended.logs);
    let first = tshark(
        &folder,
        &["-Y", "esp.spi == 0x1001 && esp.sequence == 1"],
        None,
    );
    assert_eq!(first.lines().count(), 1);
}

#[test]
fn mistakes_of_esp_options_are_named() {
    let folder = scratch("softphone-esp-mistakes");
    let ends = ["127.0.0.1", "127.0.0.2"];
    let uri = "sip:600@127.0.0.2";
    write_keys(&folder, "keys", &GCM.lines(ends, 0));
    write_keys(&folder, "weak", &TRIPLE_DES.lines(ends, 0));
    write_keys(&folder, "one", GCM.lines(ends, 0).lines().next().unwrap());
    write_keys(&folder, "bad", "\"IPv4\",\"*\"\n");
    let any = GCM.lines(ends, 0).replace("0x00001001", "*");
    write_keys(&folder, "any", &any);
    let unchecked = CBC_SHA1.lines(ends, 0).replace(
        "\"HMAC-SHA-1-96 [RFC2404]\"",
        "\"ANY 96 bit authentication [no checking]\"",
    );
    write_keys(&folder, "unchecked", &unchecked);
    let cases: [(&[&str], i32, &str); 11] = [
        (&["--esp", "missing"], 2, "missing"),
        (&["--esp", "bad"], 2, "line 1"),
        (&["--esp", "one"], 2, "one line for each direction"),
        (&["--esp", "any"], 2, "SPI has wildcards"),
        (&["--esp", "unchecked"], 2, "no checking"),
        (&["--esp", "weak"], 2, "--esp-allow-weak"),
        (&["--esp", "keys", "--transport", "tcp"], 2, "UDP only"),
        (&["--esp", "keys", "--esp-mode", "tunnel"], 2, "--local"),
        (&["--esp", "keys", "--esp-local", "127.0.0.9"], 2, "--local"),
        (
            &["--esp", "keys", "--esp-peer", "127.0.0.2:0"],
            2,
            "concrete",
        ),
        (&["--esp-over", "udp"], 2, "--esp"),
    ];
    for (arguments, code, named) in cases {
        let mut all = vec!["call", uri];
        all.extend(arguments);
        let output = phone(&folder, &all);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            text(&output)
        );
        assert!(
            text(&output).contains(named),
            "{arguments:?}: {}",
            text(&output)
        );
        assert!(
            !text(&output).contains(&key(20, 0)[2..]),
            "{}",
            text(&output)
        );
    }
    // A port in use, and a key file that others may read.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("port");
    let taken = socket.local_addr().expect("address").to_string();
    std::fs::set_permissions(folder.join("keys"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = phone(
        &folder,
        &[
            "call",
            uri,
            "--esp",
            "keys",
            "--esp-over",
            "udp",
            "--esp-local",
            &taken,
        ],
    );
    drop(socket);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(
        text(&output).contains("ESP over UDP at"),
        "{}",
        text(&output)
    );
    assert!(text(&output).contains("chmod 600"), "{}", text(&output));
}

/// A monitor that calls each minute must not use the keys up while it cannot call.
#[test]
fn errors_return_unused_sequence_numbers() {
    let folder = scratch("softphone-esp-unused");
    write_keys(&folder, "keys", &GCM.lines(["127.0.0.1", "127.0.0.2"], 0));
    // The next number after a run that cannot work.
    let next = |more: &[&str]| -> u64 {
        let mut all = vec!["call", "sip:600@127.0.0.2", "--esp", "keys"];
        all.extend(["--esp-over", "udp", "--ring-seconds", "1"]);
        all.extend(more);
        let output = phone(&folder, &all);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(3), "{more:?}: {said}");
        let stored = json(&folder, "keys.00001001.numbers");
        let outbound = stored["outbound"].as_object().expect("states");
        let states: Vec<&Value> = outbound.values().collect();
        assert_eq!(states.len(), 1, "{more:?}: {stored:#}");
        number(states[0], "/next_sequence")
    };
    for _ in 0..2 {
        assert_eq!(next(&["--json", "/nonexistent/x"]), 1);
        assert_eq!(next(&["--wav-out", "/nonexistent/x"]), 1);
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("port");
    let local = socket.local_addr().expect("address").to_string();
    assert_eq!(next(&["--esp-local", &local]), 1, "a port in use");
    drop(socket);
    // Offers that the peer does not answer are the only packets.
    let after = next(&["--esp-local", &local, "--esp-shortcut", "direct"]);
    assert!(after > 1 && after < 100, "{after}");
}

/// Without CAP_NET_RAW protocol 50 is refused by name, and UDP is the default.
#[test]
fn missing_right_is_named() {
    let folder = scratch("softphone-esp-rights");
    write_keys(&folder, "keys", &GCM.lines(["127.0.0.1", "127.0.0.2"], 0));
    if !installed(&["setpriv"]) {
        return;
    }
    let run = |more: &[&str]| {
        Command::new("setpriv")
            .args(["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"])
            .args([
                PROGRAM,
                "phone",
                "call",
                "sip:600@127.0.0.2",
                "--esp",
                "keys",
            ])
            .args(["--ring-seconds", "1"])
            .args(more)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()
            .expect("setpriv")
    };
    let output = run(&["--esp-over", "ip"]);
    if text(&output).contains("setpriv:") {
        eprintln!("skipped: {}", text(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("CAP_NET_RAW"), "{}", text(&output));
    let output = run(&["--esp-local", "127.0.0.1:45000"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("over udp"), "{}", text(&output));
}

/// Shortcuts between two phones of this program: on the wire, in both modes, and refused by a phone without them.
#[test]
fn shortcuts_are_agreed_and_on_the_wire() {
    if !able() {
        return;
    }
    let ends = ["10.9.1.1", "10.9.1.2"];
    let keys = GCM.lines(ends, 0);
    for (shortcut, mode, ip_protocol) in [
        ("rtp", "transport", None),
        ("rtp", "tunnel", Some(253)),
        ("direct", "transport", None),
        ("direct", "tunnel", None),
    ] {
        let name = format!("{shortcut} in {mode} mode");
        let folder = scratch("softphone-esp-shortcut");
        write_keys(&folder, "keys", &keys);
        let [near, far] = match mode {
            "tunnel" => ["10.77.0.1", "10.77.0.2"],
            _ => ends,
        };
        let options =
            format!("--esp keys --esp-over ip --esp-mode {mode} --esp-shortcut {shortcut}");
        let Ended { folder, code, logs } = call(
            folder,
            &format!("--local {far} {options}"),
            &format!("sip:600@{far} --local {near} {options}"),
        );
        assert_eq!(code, Some(0), "{name}: {logs}");
        let figures = [json(&folder, "caller.json"), json(&folder, "callee.json")];
        for figures in &figures {
            assert_eq!(figures["esp"]["shortcut"], shortcut, "{name}");
            assert_eq!(
                number(figures, "/esp/shortcut_sent"),
                number(figures, "/sent")
            );
            assert_eq!(
                number(figures, "/esp/shortcut_received"),
                number(figures, "/received")
            );
            assert!(number(figures, "/received") > 80, "{name}: {figures:#}");
            assert_eq!(number(figures, "/lost"), 0, "{name}");
            assert_eq!(number(figures, "/esp/dropped"), 0, "{name}: {figures:#}");
        }
        let (samples, _) = recorded(&folder, "callee-heard.wav");
        let heard = correlation_of(&samples, codec::speech::speech());
        assert!(heard > MIN_CORRELATION, "{name}: correlation {heard}");
        // tshark finds the next header, and no RTP in UDP.
        let sent = number(&figures[0], "/sent") + number(&figures[1], "/sent");
        let keyed = Some(keys.as_str());
        assert_eq!(count(&folder, "esp && rtp", keyed), 0, "{name}");
        let filter = match (shortcut, ip_protocol) {
            (_, Some(protocol)) => format!("esp && ip.proto == {protocol}"),
            // The last octet is the next header; tshark has no name for one that it does not know.
            ("rtp", None) => "esp.decrypted_data[-1:1] == fd".to_owned(),
            // Messages of the negotiation have the same one, and are shorter than voice.
            _ => "esp.decrypted_data[-1:1] == fe && frame.len > 150".to_owned(),
        };
        assert_eq!(count(&folder, &filter, keyed), sent, "{name}: {filter}");
    }
    // Without consent there is no call.
    for (answer, why) in [("", "refused"), ("--esp-shortcut direct", "refused")] {
        let folder = scratch("softphone-esp-no-shortcut");
        write_keys(&folder, "keys", &keys);
        let Ended { code, logs, .. } = call(
            folder,
            &format!("--local 10.9.1.2 --esp keys --esp-over ip --wait 2 {answer}"),
            "sip:600@10.9.1.2 --esp keys --esp-over ip --esp-shortcut rtp",
        );
        assert_eq!(code, Some(3), "{logs}");
        assert!(
            logs.contains(why) && logs.contains("ESP shortcut"),
            "{logs}"
        );
    }
}
