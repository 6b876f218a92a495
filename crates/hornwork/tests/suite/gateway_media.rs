//! Calls through a border whose caller is inside of a tunnel: media passes between ESP and forwarder, or through the
//! kernel (`media` of `[gateway]`). Peers are our gateway with manual keys, and a stock strongSwan. Skipped without the
//! rights.

use crate::common::installed;
use crate::common::network_case::NetworkCase;
use crate::common::pings::lossless;
use crate::gateway::{lines, may_make_tun};
use crate::gateway_ike;
use crate::softphone_esp::GCM;

const PROGRAMS: [&str; 7] = [
    "unshare", "nsenter", "ip", "timeout", "ping", "curl", "python3",
];

/// A border with a phone behind its trunk, at the near end.
const BORDER: &str = r#"
[metrics]
listen = "127.0.0.1:9464"
[[interface]]
name = "site"
kind = "access"
listen = "udp:10.1.0.1:5060"
allow = "10.0.0.0/8"
media = { address = "10.1.0.1", ports = "20000-20019" }
[[trunk]]
name = "phone"
target = "udp:10.1.0.1:5080"
[[route]]
trunk = "phone"
"#;

const FUNCTIONS: &str = r#"
border() { "$HORNWORK" run -c near.toml > near.log 2>&1 & near_pid=$!; jobs_of_test="$jobs_of_test $!"; await near.log gateway_started; }
# A call of $1 seconds from the far end, with the options $2; the statistics of both ends are in files of this name.
call() {
  "$HORNWORK" phone answer --local 10.1.0.1:5080 --codec pcma --seconds 60 --json answer.json > answer.log 2>&1 & answer=$!; jobs_of_test="$jobs_of_test $answer"
  await answer.log "waiting for a call"
  $far_in "$HORNWORK" phone call "sip:600@10.1.0.1" --local 10.2.0.1 --codec pcma --seconds $1 $2 --json call.json > call.log 2>&1 & calling=$!; jobs_of_test="$jobs_of_test $calling"
  await call.log established || { cat answer.log near.log; return 1; }
}
end_call() { wait $calling || { cat call.log answer.log; exit 1; }; wait $answer || { cat answer.log; exit 1; }; sleep 0.3; curl -s http://127.0.0.1:9464/metrics > $1; }
"#;

/// Packets that must not reach a call, from the far end: repeated and changed ones from the wire, and ones that its
/// gateway seals for it, with an address that is not behind the tunnel, and with a wrong UDP checksum.
const FAULTS: &str = r#"
import socket, struct, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("vb", 0))
frames = []
while len(frames) < 3:
    frame, about = wire.recvfrom(3000)
    # Sent ESP packets of the length of voice.
    if about[2] == 4 and frame[23] == 17 and frame[36:38] == bytes([0x11, 0x94]) and len(frame) > 200: frames.append(frame)
for frame in frames:
    wire.send(frame)
    # With a sequence number that was not used yet, which is checked first.
    number = struct.unpack("!I", frame[46:50])[0] + 1000
    wire.send(frame[:46] + struct.pack("!I", number) + frame[50:])
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def send(source, port, checksum):
    udp = struct.pack("!HHHH", 4000, port, 20, checksum) + bytes(12)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 7, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton("10.1.0.1"))
    raw.sendto(ip + udp, ("10.1.0.1", 0))
for n in range(4): send("10.9.0.1", 20000, 0)
# Each port of the call, of both sides.
for port in range(20000, 20020): send("10.2.0.1", port, 0x1234)
print("sent", flush=True)
"#;

const CALL: &str = r#"
$far_in ip addr add 10.9.0.1/24 dev lo
gateway far "$far_in"
border
call 6 "--hold-at 2 --resume-at 3"
ping -c 40 -i 0.02 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
# A port of another program.
python3 -c '
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(("10.1.0.1", 7000)); one.settimeout(5)
print("ready", flush=True); print(one.recv(100).decode(), flush=True)' > other.log & other=$!; await other.log ready
$far_in bash -c "echo through-the-tunnel >/dev/udp/10.1.0.1/7000"; wait $other; cat other.log
if [ -n "$FAULTS" ]; then $far_in python3 faults.py; fi
# New keys under media.
cp keys.new keys.tmp; mv keys.tmp keys.near; kill -HUP $near_pid; await near.log gateway_keys_loaded
cp keys.new keys.tmp; mv keys.tmp keys.far; kill -HUP $far_pid; await far.log gateway_keys_loaded
await near.log gateway_rekeyed; await far.log gateway_rekeyed
end_call metrics.txt
kill -TERM $near_pid; wait $near_pid; kill -TERM $far_pid; wait $far_pid
"#;

fn able() -> bool {
    installed(&PROGRAMS) && may_make_tun()
}

/// A metric.
fn value(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

/// Both ends of the call: the number of packets that the caller has received.
fn check_call(case: &NetworkCase, said: &str) -> u64 {
    let ends = ["call.json", "answer.json"].map(|file| {
        let call: serde_json::Value = serde_json::from_str(&case.read(file)).expect("JSON");
        assert_eq!(call["established"], true, "{call:#}\n{said}");
        assert_eq!(call["lost"], 0, "{file}: {call:#}\n{said}");
        call["received"].as_u64().expect("number")
    });
    assert!(ends[0] > 100 && ends[1] > 100, "{ends:?}: {said}");
    ends[0]
}

/// Keys and configurations of both ends.
fn case(name: &str, media: &str) -> NetworkCase {
    let functions = format!("{}{FUNCTIONS}", gateway_ike::COMMON);
    let case = NetworkCase::new(name, functions, &["near.log"]);
    let ends = ["192.0.2.1", "192.0.2.2"];
    let old = lines(GCM, ends, 1);
    case.write("keys.near", &old);
    case.write("keys.far", &old);
    case.write("keys.new", &(old + &lines(GCM, ends, 2)));
    case.write("faults.py", FAULTS);
    let gateway = |local: &str, key_file: &str, more: &str| {
        format!(
            "[gateway]\nlocal = \"{local}\"\nkey_file = \"{key_file}\"\nrekey_delay_s = 2\n{more}\n"
        )
    };
    let near = gateway(
        "192.0.2.1",
        "keys.near",
        &format!(
            "route_source = \"10.1.0.1\"\nnumbers_file = \"near.numbers\"\n{media}\n[[gateway.tunnel]]\nname = \"far\"\npeer = \"192.0.2.2\"\nlocal_networks = \"10.1.0.0/24\"\nremote_networks = \"10.2.0.0/24\""
        ),
    );
    let far = gateway(
        "192.0.2.2",
        "keys.far",
        "route_source = \"10.2.0.1\"\n[[gateway.tunnel]]\nname = \"near\"\npeer = \"192.0.2.1\"\nlocal_networks = [\"10.2.0.0/24\", \"10.9.0.0/24\"]\nremote_networks = \"10.1.0.0/24\"",
    );
    case.write("near.toml", &format!("{BORDER}{near}"));
    case.write("far.toml", &far);
    case
}

fn run_case(name: &str, media: &str, faults: bool) -> (NetworkCase, String, String) {
    let case = case(name, media);
    let faults = if faults { "yes" } else { "" };
    let said = case.run(&format!("FAULTS={faults}\n{CALL}"));
    lossless(&said, "ping.log", 40);
    assert!(said.contains("through-the-tunnel"), "{said}");
    let metrics = case.read("metrics.txt");
    (case, said, metrics)
}

#[test]
fn media_passes_between_tunnel_and_forwarder() {
    if !able() {
        return;
    }
    let (case, said, metrics) = run_case("gateway-media-direct", "", true);
    let received = check_call(&case, &said);
    let of = |direction: &str| {
        let label = format!("{{direction=\"{direction}\"}}");
        value(
            &metrics,
            &format!("hornwork_gateway_direct_packets_total{label}"),
        )
    };
    // RTP and RTCP.
    assert!(of("sealed") >= received, "{received}: {metrics}");
    assert!(of("opened") > 200, "{metrics}");
    let dropped = |reason: &str| {
        let label = format!("{{reason=\"{reason}\"}}");
        value(&metrics, &format!("hornwork_gateway_drops_total{label}"))
    };
    assert_eq!(dropped("esp_replayed"), 3, "{metrics}");
    assert_eq!(dropped("esp_authentication"), 3, "{metrics}");
    // The kernel has some packets of IPv6 for the device, too, for which there is no tunnel.
    let selector = dropped("esp_selector");
    assert!((4..=10).contains(&selector), "{metrics}");
    // Both sides of the call, and other ports that the border has open.
    let malformed = value(&metrics, "hornwork_drops_total{reason=\"media_malformed\"}");
    assert!((2..=20).contains(&malformed), "{metrics}");
    assert!(said.contains("media=direct"), "{said}");
}

#[test]
fn media_passes_the_kernel_if_configured() {
    if !able() {
        return;
    }
    let (case, said, metrics) = run_case("gateway-media-kernel", "media = \"kernel\"", false);
    check_call(&case, &said);
    assert!(metrics.contains("hornwork_gateway_direct_packets_total{direction=\"opened\"} 0"));
    assert!(metrics.contains("hornwork_gateway_direct_packets_total{direction=\"sealed\"} 0"));
    assert!(said.contains("media=kernel"), "{said}");
}

/// A caller that moves its media to another port by a re-INVITE.
const MOVING: &str = r#"
import re, socket, struct, time
sip = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sip.bind(("10.2.0.1", 5070)); sip.settimeout(5)
border = ("10.1.0.1", 5060)
ends = {}
for port in (4000, 4100):
    ends[port] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); ends[port].bind(("10.2.0.1", port)); ends[port].setblocking(False)
to, target, number = "<sip:600@10.1.0.1>", "sip:600@10.1.0.1", 0
def request(method, cseq, body=""):
    head = [f"{method} {target} SIP/2.0", f"Via: SIP/2.0/UDP 10.2.0.1:5070;branch=z9hG4bK-{method}-{cseq}", "Max-Forwards: 70",
        "From: <sip:1000@10.2.0.1>;tag=one", f"To: {to}", "Call-ID: moving@10.2.0.1", f"CSeq: {cseq} {method}",
        "Contact: <sip:1000@10.2.0.1:5070>", "Content-Type: application/sdp", f"Content-Length: {len(body)}"]
    sip.sendto(("\r\n".join(head) + "\r\n\r\n" + body).encode(), border)
def answer(cseq, method):
    while True:
        text = sip.recv(3000).decode()
        if text.startswith("SIP/2.0 200") and f"CSeq: {cseq} {method}" in text: return text
def invite(cseq, port):
    global to, target
    request("INVITE", cseq, f"v=0\r\no=- 1 {cseq} IN IP4 10.2.0.1\r\ns=-\r\nc=IN IP4 10.2.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 8\r\n")
    text = answer(cseq, "INVITE")
    to = re.search(r"\r\nTo: (.*)\r\n", text).group(1)
    target = re.search(r"\r\nContact: <([^>]*)>", text).group(1)
    request("ACK", cseq)
    return int(re.search(r"m=audio (\d+)", text).group(1))
def received(port):
    count = 0
    while True:
        try: ends[port].recv(2000); count += 1
        except BlockingIOError: return count
def talk(own, port):
    global number
    for n in range(75):
        ends[own].sendto(struct.pack("!BBHII", 0x80, 8, number, number * 160, 7) + bytes(160), ("10.1.0.1", port))
        number += 1; time.sleep(0.02)
    return received(own)
port = invite(1, 4000)
print("first:", talk(4000, port), flush=True)
port = invite(2, 4100)
# Packets on their way to the former port.
time.sleep(0.1); received(4000)
print("moved:", talk(4100, port), "left:", received(4000), flush=True)
request("BYE", 3); answer(3, "BYE")
"#;

const MOVED: &str = r#"
gateway far "$far_in"
border
"$HORNWORK" phone answer --local 10.1.0.1:5080 --codec pcma --seconds 60 --json answer.json > answer.log 2>&1 & answer=$!; jobs_of_test="$jobs_of_test $answer"
await answer.log "waiting for a call"
$far_in python3 moving.py
wait $answer; sleep 0.3; curl -s http://127.0.0.1:9464/metrics > metrics.txt
kill -TERM $near_pid; wait $near_pid; kill -TERM $far_pid; wait $far_pid
"#;

#[test]
fn media_follows_a_re_invite_to_another_port() {
    if !able() {
        return;
    }
    let case = case("gateway-media-moved", "");
    case.write("moving.py", MOVING);
    let said = case.run(MOVED);
    let count = |name: &str| -> u64 {
        let found = said.split(name).nth(1).unwrap_or_else(|| panic!("{said}"));
        let mut words = found.split_whitespace();
        words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("number")
    };
    assert!(count("first: ") >= 60 && count("moved: ") >= 60, "{said}");
    assert_eq!(count("left: "), 0, "{said}");
    let answer: serde_json::Value = serde_json::from_str(&case.read("answer.json")).expect("JSON");
    assert_eq!(answer["received"], 150, "{answer:#}");
    assert_eq!(answer["lost"], 0, "{answer:#}");
    let metrics = case.read("metrics.txt");
    let opened = "hornwork_gateway_direct_packets_total{direction=\"opened\"}";
    assert!(value(&metrics, opened) >= 150, "{metrics}");
}

/// A device that is taken away ends the border with the call, as it ends a gateway alone.
const GONE: &str = r#"
gateway far "$far_in"
border
call 5 ""
sleep 1
ip link del esp0
code=0; wait $near_pid || code=$?
echo "without a device: exit $code"
kill -TERM $calling $answer $far_pid; wait $calling || true; wait $answer || true; wait $far_pid
grep -o '"next_sequence": *[0-9]*' near.numbers
"#;

#[test]
fn a_device_that_is_gone_ends_the_border() {
    if !able() {
        return;
    }
    let case = case("gateway-media-gone", "");
    let said = case.run(GONE);
    assert!(said.contains("without a device: exit 3"), "{said}");
    for part in [
        "the TUN device is gone",
        "the IPsec gateway has ended; the log has the reason",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Unused sequence numbers were returned.
    let next = said.lines().find(|line| line.contains("next_sequence"));
    let next = next.and_then(|line| line.rsplit([' ', ':']).next()?.parse::<u64>().ok());
    assert!(
        next.is_some_and(|next| (20..2_000).contains(&next)),
        "{said}"
    );
}

/// A call through the tunnel of a stock strongSwan, whose keys change under it.
const STRONGSWAN: &str = r#"
charon far "$far_in"
border
await near.log gateway_tunnel_up
call 8 ""
end_call metrics.txt
await near.log gateway_rekeyed
kill -TERM $near_pid; wait $near_pid
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null > far.sas; wc -c far.sas
"#;

#[test]
fn strongswan_and_the_direct_path_exchange_media() {
    if !able() || !gateway_ike::able() {
        return;
    }
    let case = gateway_ike::case("gateway-media-strongswan");
    let ike = gateway_ike::near("rekey_s = 5", gateway_ike::PEER);
    let ike = ike.replace("[gateway]\n", "[gateway]\ndata_path = \"user\"\n");
    case.write("near.toml", &format!("{BORDER}{ike}"));
    case.write("far.conf", &gateway_ike::far("aes128gcm16-x25519", 3_600));
    let said = case.run(&format!("{FUNCTIONS}{STRONGSWAN}"));
    let received = check_call(&case, &said);
    let metrics = case.read("metrics.txt");
    for direction in ["sealed", "opened"] {
        let name = format!("hornwork_gateway_direct_packets_total{{direction=\"{direction}\"}}");
        assert!(value(&metrics, &name) >= received, "{metrics}");
    }
    // The last message to the peer passed after the border had ended: it has no association any more.
    assert!(said.contains("0 far.sas"), "{said}");
    gateway_ike::check_statistics(&case);
}

/// A border that has 300 tunnels to negotiate: it answers SIP meanwhile, and obeys a signal.
const MANY_TUNNELS: &str = r#"
for n in $(seq 0 299); do echo "addr add 10.$((100 + n / 250)).$((n % 250)).1/32 dev lo"; done > addresses
$far_in ip -batch addresses
charon far "$far_in"
border
for n in $(seq 1500); do [ $(grep -c gateway_tunnel_up near.log) -ge 300 ] && break; sleep 0.02; done
echo "up: $(grep -c gateway_tunnel_up near.log)"
$far_in python3 burst.py 10.101.49.1 1
kill -TERM $near_pid; wait $near_pid; echo "border: exit $?"
"#;

#[test]
fn a_border_starts_with_three_hundred_ike_tunnels() {
    if !able() || !gateway_ike::able() {
        return;
    }
    let case = gateway_ike::case("gateway-media-many");
    let (near, far) = gateway_ike::many_tunnels(300);
    let near = near.replace("[gateway]\n", "[gateway]\ndata_path = \"user\"\n");
    case.write("near.toml", &format!("{BORDER}{near}"));
    case.write("far.conf", &far);
    case.write("burst.py", BURST);
    let said = case.run(&format!("{FUNCTIONS}{MANY_TUNNELS}"));
    for part in ["up: 300", "answers: 1 of 1", "border: exit 0"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Phones of a site that register at one moment, as after a power failure.
const BURST: &str = r#"
import re, socket, sys
own, count = sys.argv[1], int(sys.argv[2])
sip = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sip.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
sip.bind((own, 5070)); sip.settimeout(3)
messages = ["\r\n".join(["REGISTER sip:10.1.0.1 SIP/2.0", f"Via: SIP/2.0/UDP {own}:5070;branch=z9hG4bK-{n}", "Max-Forwards: 70",
    f"From: <sip:{n}@10.1.0.1>;tag={n}", f"To: <sip:{n}@10.1.0.1>", f"Call-ID: {n}@{own}", "CSeq: 1 REGISTER",
    f"Contact: <sip:{n}@{own}:5070>", "Expires: 60", "Content-Length: 0", "", ""]).encode() for n in range(count)]
for message in messages: sip.sendto(message, ("10.1.0.1", 5060))
answered = set()
while len(answered) < count:
    try: answered.add(re.search(r"\r\nCall-ID: *([^\r]*)", sip.recv(3000).decode()).group(1))
    except TimeoutError: break
print(f"answers: {len(answered)} of {count}", flush=True)
"#;

const BURST_CASE: &str = r#"
gateway far "$far_in"
border
$far_in python3 burst.py 10.2.0.1 1000
curl -s http://127.0.0.1:9464/metrics > metrics.txt
kill -TERM $near_pid; wait $near_pid; kill -TERM $far_pid; wait $far_pid
"#;

#[test]
fn a_burst_of_registers_passes_the_tunnel() {
    if !able() {
        return;
    }
    let case = case("gateway-media-burst", "");
    case.write("burst.py", BURST);
    let said = case.run(BURST_CASE);
    let metrics = case.read("metrics.txt");
    assert!(said.contains("answers: 1000 of 1000"), "{said}\n{metrics}");
}
