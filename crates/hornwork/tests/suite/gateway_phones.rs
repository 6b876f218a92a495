//! Calls with SIP over TCP and TLS inside of ESP: the softphones use the kernel's TCP, and two gateways carry its
//! packets, or the softphones themselves. A third party sees ESP in UDP and nothing else. Skipped without the rights.

use crate::common::certificates::Authority;
use crate::common::installed;
use crate::common::network_case::NetworkCase;
use crate::gateway::{config, lines, may_make_tun};
use crate::gateway_ike::COMMON;
use crate::softphone_esp::GCM;

const CALLS: &str = r#"
# Packets on the link: ESP in UDP, and others.
cat > wire.py <<END
import os, socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
wire.bind(("va", 0)); wire.settimeout(0.1)
print("ready", flush=True)
esp = 0
other = []
while not os.path.exists("end"):
    try: data, about = wire.recvfrom(3000)
    except TimeoutError: continue
    if about[1] != 0x800: continue
    in_udp = lambda ip: ip[9] == 17 and ip[22:24] == bytes([0x11, 0x94])
    # An end that has ended reports the last ESP packets of the other one as unreachable: ICMP type 3, with the packet.
    if in_udp(data): esp += 1
    elif not (data[9] == 1 and data[20] == 3 and in_udp(data[28:])): other.append(data[:60].hex())
print("wire:", esp, len(other), *other, flush=True)
END
python3 wire.py > wire.log & wire=$!; jobs_of_test="$jobs_of_test $wire"; await wire.log ready
if [ -n "$GATEWAYS" ]; then
  gateway near ""; gateway far "$far_in"; near_esp=""; far_esp=""
else
  # The inside exists in the tunnels of the phones only.
  ip addr del 10.1.0.1/24 dev lo; $far_in ip addr del 10.2.0.1/24 dev lo
  near_esp="--esp keys.near --esp-mode tunnel --esp-over udp"
  far_esp="--esp keys.far --esp-mode tunnel --esp-over udp --esp-remote 10.1.0.0/24"
fi
for transport in tcp tls; do
  case $transport in tls) own="--certificate far.pem --key far.key"; ca="--ca authority.pem" ;; *) own=""; ca="" ;; esac
  $far_in "$HORNWORK" phone answer --transport $transport --local 10.2.0.1 $own $far_esp --codec pcma --seconds 20 > answer-$transport.log 2>&1 & answer=$!; jobs_of_test="$jobs_of_test $answer"
  await answer-$transport.log "waiting for a call"
  "$HORNWORK" phone call "sip:600@10.2.0.1;transport=$transport" --local 10.1.0.1 $ca $near_esp --codec pcma --seconds 2 --json $transport.json > call-$transport.log 2>&1 || { cat call-$transport.log answer-$transport.log; exit 1; }
  wait $answer || true
done
touch end; wait $wire; tail -n 1 wire.log
if [ -n "$GATEWAYS" ]; then kill -TERM $near_pid $far_pid; wait $near_pid; wait $far_pid; exit 0; fi
# The devices have ended with the phones.
ip link show | grep -c hwp || true
# A device that is taken away ends the call.
$far_in "$HORNWORK" phone answer --transport tcp --local 10.2.0.1 $far_esp --codec pcma --seconds 20 > answer-gone.log 2>&1 & answer=$!; jobs_of_test="$jobs_of_test $answer"
await answer-gone.log "waiting for a call"
"$HORNWORK" phone call "sip:600@10.2.0.1;transport=tcp" --local 10.1.0.1 $near_esp --codec pcma --seconds 15 > gone.log 2>&1 & calling=$!; jobs_of_test="$jobs_of_test $calling"
await gone.log established
ip link del hwp$calling
wait $calling || echo "gone: $?"; cat gone.log
kill -TERM $answer; wait $answer || true
# Without the right the phone names it; callers of a phone that waits must be known; transport mode has no connections.
call="$HORNWORK phone call sip:600@10.2.0.1;transport=tcp --local 10.1.0.1"
setpriv --bounding-set=-net_admin --inh-caps=-net_admin $call $near_esp > refused.log 2>&1 || echo "exit $?"; cat refused.log
$call --esp keys.near > refused.log 2>&1 || echo "exit $?"; cat refused.log
$call $near_esp --esp-remote 192.0.2.0/24 > refused.log 2>&1 || echo "exit $?"; cat refused.log
$call $near_esp --esp-remote 10.9.0.0/24 > refused.log 2>&1 || echo "exit $?"; cat refused.log
"$HORNWORK" phone answer --transport tcp --local 10.1.0.1 $near_esp > refused.log 2>&1 || echo "exit $?"; cat refused.log
"#;

/// The files of both ends, with keys of this generation.
fn case(name: &str, age: u8) -> NetworkCase {
    let case = NetworkCase::new(name, COMMON.to_owned(), &[]);
    let outer = ["192.0.2.1", "192.0.2.2"];
    let networks = ["10.1.0.0/24", "10.2.0.0/24"];
    let keys = lines(GCM, outer, age);
    for (end, name) in ["near", "far"].into_iter().enumerate() {
        let pick = |both: [&'static str; 2]| [both[end], both[1 - end]];
        let file = format!("keys.{name}");
        let source = ["10.1.0.1", "10.2.0.1"][end];
        let more = format!("route_source = \"{source}\"");
        let other = ["far", "near"][end];
        case.write(&file, &keys);
        let text = config(other, &file, pick(outer), pick(networks), &more);
        case.write(&format!("{name}.toml"), &text);
    }
    let authority = Authority::new(&case.folder, "authority");
    authority.issue_address("far", [10, 2, 0, 1].into());
    case
}

fn able() -> bool {
    let programs = ["unshare", "nsenter", "ip", "timeout", "python3", "setpriv"];
    installed(&programs) && may_make_tun()
}

/// Both calls; returns their figures.
fn check_calls(case: &NetworkCase, said: &str) -> [serde_json::Value; 2] {
    let seen = said.lines().find_map(|line| line.strip_prefix("wire: "));
    let seen: Vec<u64> = seen
        .unwrap_or_else(|| panic!("{said}"))
        .split(' ')
        .filter_map(|count| count.parse().ok())
        .collect();
    // Two calls of two seconds, both ways, and their signalling; nothing in the clear.
    assert!(seen[0] > 320, "{said}");
    assert_eq!(seen[1], 0, "{said}");
    ["tcp", "tls"].map(|transport| {
        let text = case.read(&format!("{transport}.json"));
        let call: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(call["established"], true, "{call:#}");
        assert_eq!(call["transport"], transport.to_uppercase(), "{call:#}");
        assert!(call["received"].as_u64() > Some(80), "{call:#}");
        call
    })
}

#[test]
fn tcp_and_tls_pass_through_gateways() {
    if !able() {
        return;
    }
    let case = case("gateway-phones", 1);
    let said = case.run(&format!("GATEWAYS=yes\n{CALLS}"));
    check_calls(&case, &said);
}

#[test]
fn tcp_and_tls_pass_through_esp_of_the_phone() {
    if !able() {
        return;
    }
    let case = case("phones-esp-streams", 2);
    let said = case.run(&format!("GATEWAYS=\n{CALLS}"));
    for call in check_calls(&case, &said) {
        assert_eq!(call["protection"], "esp-tunnel", "{call:#}");
        let esp = &call["esp"];
        assert!(esp["sealed"].as_u64() > Some(80), "{call:#}");
        assert!(esp["opened"].as_u64() > Some(80), "{call:#}");
        // Of the kernel's own packets of IPv6 the device has some, for which there is no tunnel.
        let mut drops = esp["drops"].as_object().expect("drops").keys();
        assert!(drops.all(|reason| reason == "esp_selector"), "{call:#}");
    }
    // The used sequence numbers are stored, so that the second call continues.
    let numbers = case.read("keys.near.00001004.numbers");
    assert!(numbers.contains("next_sequence"), "{numbers}");
    for part in [
        "\n0\n",
        "exit 3\n",
        "gone: 3\n",
        "the TUN device is gone",
        "CAP_NET_ADMIN",
        "protect UDP only",
        "192.0.2.1 is an address of ESP packets",
        "10.2.0.1 is not behind the tunnel",
        "--esp-remote NETWORK",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(said.matches("exit 2").count(), 4, "{said}");
}
