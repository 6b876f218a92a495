//! The gateway's key exchange with a stock strongSwan, which has its own data path in user space (kernel-libipsec):
//! both ends initiate, change keys under traffic, and one restarts; a NAT with two peers behind it; certificates; a
//! thousand tunnels; wrong secrets; an unprivileged user. Skipped without the rights.

use crate::common::network_case::NetworkCase;
use crate::common::pings::lossless;
use crate::common::{installed, root};
use crate::gateway::may_make_tun;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");
pub const SECRET: &str = "a-secret-of-a-test-only";

/// Functions of all scripts: two sites with a link, a stock strongSwan, our gateway.
pub const COMMON: &str = r#"
set -e
jobs_of_test=
trap 'kill $jobs_of_test 2>/dev/null || true' EXIT
# A network namespace: its number in the variable $1, a command that enters it in $1_in.
site() { unshare -n sleep 300 & eval "$1=$!"; jobs_of_test="$jobs_of_test $!"; while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done; eval "$1_in='nsenter --net=/proc/$!/ns/net'"; nsenter --net=/proc/$!/ns/net ip link set lo up; }
await() { for n in $(seq ${3:-1500}); do grep -q "$2" "$1" 2>/dev/null && return 0; sleep 0.02; done; echo "no $2 in $1:"; cat "$1"; return 1; }
gateway() { $2 "$HORNWORK" run --role gateway -c $1.toml > $1.log 2>&1 & eval "$1_pid=\$!"; jobs_of_test="$jobs_of_test $!"; await $1.log gateway_started; }
# A stock strongSwan with the connections of $1.conf in the network $2.
charon() {
  mkdir -p $1.d; rm -f $1.d/vici
  cat > $1.d/strongswan.conf <<END
charon {
  load = random nonce openssl kdf pem pkcs1 pkcs8 x509 pubkey constraints socket-default kernel-libipsec kernel-netlink vici
  plugins { vici { socket = unix://$PWD/$1.d/vici }
    kernel-libipsec { allow_peer_ts = yes } }
  retransmit_timeout = 1
  retransmit_tries = 3
  block_threshold = 2000
  cookie_threshold_ip = 2000
  cookie_threshold = 5000
  filelog { log { path = $PWD/$1.d/log
    default = 1
    ike_name = yes
    flush_line = yes } }
}
END
  STRONGSWAN_CONF=$PWD/$1.d/strongswan.conf $2 unshare -m sh -c 'mount -t tmpfs tmpfs /run; exec /usr/lib/ipsec/charon' >$1.out 2>&1 &
  eval "$1_pid=\$!"; jobs_of_test="$jobs_of_test $!"
  for n in $(seq 1500); do [ -S $1.d/vici ] && break; sleep 0.02; done
  swanctl --load-all --file $1.conf --uri unix://$PWD/$1.d/vici >$1.load 2>&1 || { cat $1.load; exit 1; }
}
ip link set lo up
site far
ip link add va type veth peer name vb netns $far
ip addr add 192.0.2.1/24 dev va; ip link set va up
$far_in sh -c "ip addr add 192.0.2.2/24 dev vb; ip link set vb up"
ip addr add 10.1.0.1/24 dev lo; $far_in ip addr add 10.2.0.1/24 dev lo
"#;

pub fn able() -> bool {
    let programs = [
        "unshare", "nsenter", "ip", "timeout", "ping", "swanctl", "openssl",
    ];
    if !installed(&programs) {
        return false;
    }
    let parts = [
        "charon",
        "plugins/libstrongswan-vici.so",
        "plugins/libstrongswan-kernel-libipsec.so",
        "plugins/libstrongswan-openssl.so",
    ];
    let missing = |part: &&str| !Path::new("/usr/lib/ipsec").join(part).exists();
    if parts.iter().any(missing) {
        eprintln!("skipped: strongSwan with kernel-libipsec is not installed");
        return false;
    }
    may_make_tun()
}

/// A case whose output has the log of our end.
pub fn case(name: &str) -> NetworkCase {
    let case = NetworkCase::new(
        &format!("gateway-ike-{name}"),
        COMMON.to_owned(),
        &["near.log"],
    );
    case.write("psk", &format!("{SECRET}\n"));
    case
}

/// Nothing but keys in order: the last statistics have no packet that could not be opened.
pub fn check_statistics(case: &NetworkCase) {
    let log = case.read("near.log");
    let last = log
        .lines()
        .rfind(|line| line.contains("gateway_statistics"));
    let last = last.unwrap_or_else(|| panic!("{log}"));
    for fault in [
        "esp_authentication",
        "esp_replayed",
        "esp_too_old",
        "esp_unknown_spi",
        "esp_malformed",
        "esp_no_association",
        "esp_expired",
        "ike_overrun",
    ] {
        assert!(!last.contains(fault), "{last}");
    }
}

/// Our end of the tunnel to `far`.
pub fn near(ike: &str, tunnel: &str) -> String {
    format!(
        "[gateway]\nlocal = \"192.0.2.1\"\nroute_source = \"10.1.0.1\"\nrekey_grace_s = 5\n\n[gateway.ike]\n{ike}\n\n[[gateway.tunnel]]\nname = \"far\"\nlocal_networks = \"10.1.0.0/24\"\nremote_networks = \"10.2.0.0/24\"\n{tunnel}\n"
    )
}

/// The other end, as an engineer configures it.
pub fn far(esp: &str, rekey_s: u32) -> String {
    format!(
        "connections {{ t {{ version = 2
  local_addrs = 192.0.2.2
  remote_addrs = 192.0.2.1
  proposals = aes128-sha256-x25519
  local {{ auth = psk }}
  remote {{ auth = psk }}
  children {{ net {{ local_ts = 10.2.0.0/24
    remote_ts = 10.1.0.0/24
    esp_proposals = {esp}
    rekey_time = {rekey_s}s
    rand_time = 1s
    life_time = {}s }} }} }} }}
secrets {{ ike-t {{ secret = \"{SECRET}\" }} }}
",
        rekey_s + 60
    )
}

pub const PEER: &str = "peer = \"192.0.2.2\"\nsecret_file = \"psk\"";

/// Pings both ways, then 12 s of them while keys change.
const TRAFFIC: &str = r#"
charon far "$far_in"
export RUST_LOG=debug
gateway near ""
await near.log gateway_tunnel_up
ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-there.log; loss ping-there.log
$far_in ping -c 40 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-back.log; loss ping-back.log
# Figures follow the packets.
for n in $(seq 100); do curl -s http://127.0.0.1:9464/metrics > metrics.txt; [ $(grep -c '^hornwork_gateway_packets_total.* 80$' metrics.txt) = 2 ] && break; sleep 0.1; done
ping -c 1200 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-rekey.log & one=$!
$far_in ping -c 1200 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-rekey-back.log & two=$!
wait $one || true; wait $two || true; loss ping-rekey.log; loss ping-rekey-back.log
daemon=$(pgrep -P $near_pid); grep -q charon /proc/$daemon/cmdline
kill -TERM $near_pid; wait $near_pid
# Our end has deleted its associations at the peer, and its daemon has ended.
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null > far.sas; wc -c far.sas
[ ! -e /proc/$daemon ]
"#;

#[test]
fn keys_change_under_traffic_without_a_lost_packet() {
    if !able() || !installed(&["curl"]) {
        return;
    }
    for (name, esp, ours, theirs) in [
        ("gcm-ours", "aes128gcm16-x25519", 5, 3_600),
        ("cbc-theirs", "aes128-sha256-x25519", 3_600, 5),
        ("gcm-both", "aes256gcm16", 6, 6),
    ] {
        let case = case(name);
        let metrics = "[metrics]\nlisten = \"127.0.0.1:9464\"\n";
        let text = near(&format!("rekey_s = {ours}"), PEER);
        case.write("near.toml", &format!("{metrics}{text}"));
        case.write("far.conf", &far(esp, theirs));
        let said = case.run(TRAFFIC);
        for (log, packets) in [
            ("ping-there.log", 40),
            ("ping-back.log", 40),
            ("ping-rekey.log", 1_200),
            ("ping-rekey-back.log", 1_200),
        ] {
            lossless(&said, log, packets);
        }
        let rekeyed = said.matches("gateway_rekeyed").count();
        assert!(rekeyed >= 2, "{name}: {rekeyed}: {said}");
        assert!(said.contains("\n0 far.sas"), "{name}: {said}");
        let metrics = case.read("metrics.txt");
        for line in [
            "hornwork_gateway_tunnels_up 1",
            "hornwork_gateway_packets_total{direction=\"sealed\"} 80",
            "hornwork_gateway_packets_total{direction=\"opened\"} 80",
        ] {
            assert!(metrics.contains(line), "{name}: {line}: {metrics}");
        }
        // The secrets and keys are in no log, although everything else is.
        assert!(
            said.contains("charon: establishing CHILD_SA"),
            "{name}: {said}"
        );
        for secret in [SECRET, "initiator key", "responder key", "secret =>", "0: "] {
            let log = case.read("near.log");
            let line = log.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{name}: {secret}");
        }
        check_statistics(&case);
    }
}

const UNTIL_REKEYED: &str = r#"
charon far "$far_in"
gateway near ""
await near.log gateway_rekeyed
ping -c 3 -i 0.05 -W 1 -I 10.1.0.1 10.2.0.1 > ping.log || true; loss ping.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn weak_algorithms_are_logged_once() {
    if !able() {
        return;
    }
    let case = case("weak");
    let ike = "esp_proposals = \"aes128-md5-x25519\"\nrekey_s = 5";
    let allowed = near(ike, PEER).replace("[gateway]\n", "[gateway]\nallow_weak = true\n");
    case.write("near.toml", &allowed);
    case.write("far.conf", &far("aes128-md5-x25519", 3_600));
    let said = case.run(UNTIL_REKEYED);
    lossless(&said, "ping.log", 3);
    let log = case.read("near.log");
    let mut weak = log
        .lines()
        .filter(|line| line.contains("gateway_weak_algorithms"));
    let first = weak.next().unwrap_or_default();
    assert!(first.contains("MD5"), "{log}");
    assert_eq!(weak.next(), None);
}

/// The peer requests new keys; our messages about them are lost for a while, packets are not.
const LOST: &str = r#"
charon far "$far_in"
gateway near ""
await near.log gateway_tunnel_up
ping -c 900 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-there.log & one=$!
$far_in ping -c 900 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-back.log & two=$!
sleep 1
nft -f - <<END
table ip lossy {
  chain out {
    type filter hook output priority 0
    udp sport 4500 @th,64,32 0 counter drop
  }
}
END
sleep 4.5
nft list table ip lossy | grep -o "packets [0-9]*"
grep -c gateway_rekeyed near.log || true
nft delete table ip lossy
await near.log gateway_rekeyed
wait $one || true; wait $two || true; loss ping-there.log; loss ping-back.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn lost_messages_about_new_keys_lose_no_packet() {
    if !able() || !installed(&["nft"]) {
        return;
    }
    let case = case("lost");
    case.write("near.toml", &near("", PEER));
    case.write("far.conf", &far("aes128gcm16", 5));
    let said = case.run(LOST);
    let lost = said
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("packets "));
    assert!(lost.and_then(|lost| lost.parse().ok()) > Some(0), "{said}");
    assert_eq!(
        said.lines().nth(1),
        Some("0"),
        "new keys before the peer has them: {said}"
    );
    lossless(&said, "ping-there.log", 900);
    lossless(&said, "ping-back.log", 900);
    check_statistics(&case);
}

/// Both ends set the tunnel up at the same time.
const BOTH: &str = r#"
charon far "$far_in"
gateway near ""
await near.log gateway_tunnel_up
# The peer repeats its first message after a second: each end has set up an association of its own.
both() { [ $(grep -c "IKE_SA t.*established between" far.d/log) -ge 2 ]; }
for n in $(seq 1500); do both && break; sleep 0.02; done
both
ping -c 100 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-there.log; loss ping-there.log
$far_in ping -c 100 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-back.log; loss ping-back.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn both_ends_may_initiate() {
    if !able() {
        return;
    }
    let case = case("both");
    case.write("near.toml", &near("", PEER));
    let conf = far("aes128gcm16", 3_600);
    let conf = conf.replace("rand_time", "start_action = start\n    rand_time");
    case.write("far.conf", &conf);
    let said = case.run(BOTH);
    lossless(&said, "ping-there.log", 100);
    lossless(&said, "ping-back.log", 100);
}

/// UDP from a port to a port, which the other end sends back: prints whether an answer came.
const PORTS: &str = r#"
cat > echo.py <<END
import socket, select
socks = []
for port in (5060, 10005, 7000):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(("10.2.0.1", port)); socks.append(one)
print("ready", flush=True)
while True:
    for one in select.select(socks, [], [])[0]:
        data, peer = one.recvfrom(100); one.sendto(data, peer)
END
cat > ask.py <<END
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.settimeout(float(sys.argv[3]))
one.bind(("10.1.0.1", int(sys.argv[1]))); one.sendto(b"x", ("10.2.0.1", int(sys.argv[2])))
try: print(sys.argv[1], sys.argv[2], one.recv(100) == b"x")
except TimeoutError: print(sys.argv[1], sys.argv[2], False)
END
charon far "$far_in"
$far_in python3 echo.py > echo.log 2>&1 & jobs_of_test="$jobs_of_test $!"; await echo.log ready
gateway near ""
await near.log gateway_tunnel_up
python3 ask.py 5060 5060 5; python3 ask.py 5060 10005 5
python3 ask.py 5060 7000 0.5; python3 ask.py 5061 5060 0.5
ping -c 3 -i 0.05 -W 1 -I 10.1.0.1 10.2.0.1 > ping.log || true; loss ping.log
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null
kill -TERM $near_pid; wait $near_pid
"#;

/// The tunnel has UDP between two ports only. A peer that permits everything takes our narrower proposal; one with the
/// same selectors has them, too.
#[test]
fn tunnels_may_have_protocol_and_ports() {
    if !able() || !installed(&["python3"]) {
        return;
    }
    let limits =
        "protocol = \"udp\"\nlocal_ports = \"5060\"\nremote_ports = [\"5060\", \"10000-10010\"]";
    let open = far("aes128gcm16", 3_600);
    let limited = open
        .replace(
            "local_ts = 10.2.0.0/24",
            "local_ts = 10.2.0.0/24[udp/5060],10.2.0.0/24[udp/10000-10010]",
        )
        .replace(
            "remote_ts = 10.1.0.0/24",
            "remote_ts = 10.1.0.0/24[udp/5060]",
        );
    for (name, theirs) in [("ports-open", open), ("ports-limited", limited)] {
        let case = case(name);
        case.write("near.toml", &near("", &format!("{PEER}\n{limits}")));
        case.write("far.conf", &theirs);
        let said = case.run(PORTS);
        for line in [
            "5060 5060 True",
            "5060 10005 True",
            "5060 7000 False",
            "5061 5060 False",
        ] {
            assert!(said.contains(line), "{name}: {line}: {said}");
        }
        assert!(
            said.contains("3 packets transmitted, 0 received"),
            "{name}: {said}"
        );
        assert!(said.contains("10.1.0.0/24[udp/"), "{name}: {said}");
        let log = case.read("near.log");
        let last = log
            .lines()
            .rfind(|line| line.contains("gateway_statistics"));
        let last = last.unwrap_or_default();
        // Two datagrams and three pings.
        assert!(last.contains("esp_selector"), "{name}: {last}");
        check_statistics(&case);
    }
}

/// A peer of any address sets the tunnel up from an address that is routed into the tunnel.
const LOOPING: &str = r#"
# A kernel with strict reverse path filtering would not even deliver the peer's messages.
for filter in all va; do echo 0 > /proc/sys/net/ipv4/conf/$filter/rp_filter; done
gateway near ""
charon far "$far_in"
await near.log gateway_peer_loop
sleep 1
grep -c "gateway_tunnel_up" near.log || true
grep -c "gateway_peer_loop" near.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn peer_behind_its_own_tunnel_is_refused() {
    if !able() {
        return;
    }
    let case = case("loop");
    let tunnel = "peer = \"any\"\nremote_id = \"192.0.2.2\"\nsecret_file = \"psk\"";
    let text = near("", tunnel).replace(
        "remote_networks = \"10.2.0.0/24\"",
        "remote_networks = [\"10.2.0.0/24\", \"192.0.2.2/32\"]",
    );
    case.write("near.toml", &text);
    let theirs = far("aes128gcm16", 3_600);
    case.write(
        "far.conf",
        &theirs.replace("rand_time", "start_action = start\n    rand_time"),
    );
    let said = case.run(LOOPING);
    let counts: Vec<&str> = said
        .lines()
        .filter(|line| line.parse::<u32>().is_ok())
        .collect();
    assert_eq!(counts, ["0", "1"], "{said}");
    assert!(
        said.contains("peer=192.0.2.2") && said.contains("network=192.0.2.2/32"),
        "{said}"
    );
}

/// A border in the same process, whose operators see the tunnel.
const OPERATORS: &str = r#"
charon far "$far_in"
"$HORNWORK" run -c near.toml > near.log 2>&1 & near_pid=$!; jobs_of_test="$jobs_of_test $near_pid"
await near.log gateway_tunnel_up
ping -c 10 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
# Figures follow the packets.
for n in $(seq 50); do "$HORNWORK" ctl --socket control.sock tunnels list --json > up.json; grep -Eq '"opened": ?10\b' up.json && break; sleep 0.2; done
"$HORNWORK" ctl --socket control.sock tunnels list
curl -s http://127.0.0.1:8080/api/v1/tunnels > console.json
kill -KILL $far_pid; await near.log gateway_tunnel_down 1500
"$HORNWORK" ctl --socket control.sock tunnels list --json > down.json
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn operators_see_tunnels() {
    if !able() || !installed(&["curl"]) {
        return;
    }
    let case = case("operators");
    let border = "[[interface]]\nname = \"phones\"\nlisten = \"udp:127.0.0.1:5060\"\n[control]\nsocket = \"control.sock\"\n[console]\nlisten = \"127.0.0.1:8080\"\n";
    let text = near("dead_peer_s = 1", PEER);
    case.write("near.toml", &format!("{border}{text}"));
    case.write("far.conf", &far("aes128gcm16", 3_600));
    let said = case.run(OPERATORS);
    let tunnel = |file: &str| -> serde_json::Value {
        let mut json: serde_json::Value = serde_json::from_str(&case.read(file)).expect("json");
        json[0].take()
    };
    let up = tunnel("up.json");
    assert_eq!(up["name"], "far", "{up:#}");
    assert_eq!(up["up"], true, "{up:#}");
    assert_eq!(up["peer"], "192.0.2.2:4500", "{up:#}");
    assert_eq!(up["identity"], "192.0.2.2", "{up:#}");
    assert_eq!(up["algorithms"], "AES-GCM-16", "{up:#}");
    assert_eq!(
        (&up["sealed"], &up["opened"]),
        (&10.into(), &10.into()),
        "{up:#}"
    );
    let console: serde_json::Value =
        serde_json::from_str(&case.read("console.json")).expect("json");
    assert_eq!(console["tunnels"][0], up);
    let down = tunnel("down.json");
    assert_eq!(down["up"], false, "{down:#}");
    assert!(down["since"].as_str() > up["since"].as_str(), "{down:#}");
    assert!(said.contains("ALGORITHMS"), "{said}");
}

/// The peer is killed without a word and started again; then our own end.
const RESTART: &str = r#"
charon far "$far_in"
gateway near ""
await near.log gateway_tunnel_up
kill -KILL $far_pid; wait $far_pid 2>/dev/null || true
await near.log gateway_tunnel_down 1500
charon far "$far_in"
for n in $(seq 1500); do [ $(grep -c gateway_tunnel_up near.log) -ge 2 ] && break; sleep 0.02; done
ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-peer.log; loss ping-peer.log
# Our own end, without a word: the daemon ends with it, and the peer takes the new tunnel for the old one.
daemon=$(pgrep -P $near_pid); grep -q charon /proc/$daemon/cmdline
kill -KILL $near_pid; wait $near_pid 2>/dev/null || true
for n in $(seq 1500); do [ -e /proc/$daemon ] || break; sleep 0.02; done
[ ! -e /proc/$daemon ]
cp near.log near-first.log
gateway near ""
await near.log gateway_tunnel_up
ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-own.log; loss ping-own.log
# The daemon alone: it is started again, and packets pass meanwhile.
ping -c 300 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-daemon.log & pinging=$!
kill -KILL $(pgrep -P $near_pid)
await near.log gateway_ike_failed
for n in $(seq 1500); do [ $(grep -c gateway_tunnel_up near.log) -ge 2 ] && break; sleep 0.02; done
wait $pinging || true; loss ping-daemon.log
grep -c gateway_tunnel_up near.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn a_peer_and_this_end_may_restart() {
    if !able() {
        return;
    }
    let case = case("restart");
    case.write("near.toml", &near("dead_peer_s = 1", PEER));
    case.write("far.conf", &far("aes128gcm16", 3_600));
    let said = case.run(RESTART);
    lossless(&said, "ping-peer.log", 40);
    lossless(&said, "ping-own.log", 40);
    // The peer forgets the old association before this end has the message that says so.
    let answered = (298..=300)
        .any(|count| said.contains(&format!("300 packets transmitted, {count} received")));
    assert!(answered, "{said}");
    assert!(said.contains("\n2\n"), "{said}");
}

/// Two peers behind a NAT with one address, and our end waits for them.
const NAT: &str = r#"
# far becomes the NAT: the two phones' gateways are behind it.
site one; site two
for peer in one two; do
  eval "in=\$${peer}_in"; eval "pid=\$$peer"
  case $peer in one) net=1 ;; two) net=2 ;; esac
  $far_in ip link add to-$peer type veth peer name eth0 netns $pid
  $far_in ip addr add 172.16.$net.1/24 dev to-$peer; $far_in ip link set to-$peer up
  $in sh -c "ip addr add 172.16.$net.2/24 dev eth0; ip link set eth0 up; ip route add default via 172.16.$net.1; ip addr add 10.$((10 + net)).0.1/24 dev lo"
done
$far_in sh -c "echo 1 > /proc/sys/net/ipv4/ip_forward"
$far_in nft -f - <<END
table ip nat {
  chain post {
    type nat hook postrouting priority 100
    oifname "vb" masquerade random
  }
}
END
gateway near ""
charon one "$one_in"
charon two "$two_in"
for n in $(seq 1500); do [ $(grep -c gateway_tunnel_up near.log) -ge 2 ] && break; sleep 0.02; done
for peer in 1 2; do
  ping -c 100 -i 0.01 -I 10.1.0.1 10.1$peer.0.1 > ping-$peer.log & pings="$pings $!"
done
for ping in $pings; do wait $ping || true; done
loss ping-1.log; loss ping-2.log
$one_in ping -c 20 -i 0.01 -I 10.11.0.1 10.1.0.1 > ping-back.log; loss ping-back.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn two_peers_behind_one_nat_have_tunnels() {
    if !able() || !installed(&["nft"]) {
        return;
    }
    let case = case("nat");
    let mut text =
        "[gateway]\nlocal = \"192.0.2.1\"\nroute_source = \"10.1.0.1\"\n[gateway.ike]\nlocal_id = \"centre.example\"\n"
            .to_owned();
    for (number, peer) in [(1, "one"), (2, "two")] {
        let secret = format!("secret-of-{peer}-in-a-test");
        case.write(&format!("psk-{peer}"), &format!("{secret}\n"));
        text.push_str(&format!(
            "[[gateway.tunnel]]\nname = \"{peer}\"\npeer = \"any\"\nremote_id = \"{peer}.example\"\nsecret_file = \"psk-{peer}\"\nlocal_networks = \"10.1.0.0/24\"\nremote_networks = \"10.1{number}.0.0/24\"\n"
        ));
        let conf = format!(
            "connections {{ t {{ version = 2
  local_addrs = 172.16.{number}.2
  remote_addrs = 192.0.2.1
  local {{ auth = psk
    id = {peer}.example }}
  remote {{ auth = psk
    id = centre.example }}
  children {{ net {{ local_ts = 10.1{number}.0.0/24
    remote_ts = 10.1.0.0/24
    esp_proposals = aes128gcm16
    start_action = start }} }} }} }}
secrets {{ ike-t {{ secret = \"{secret}\" }} }}
"
        );
        case.write(&format!("{peer}.conf"), &conf);
    }
    case.write("near.toml", &text);
    let said = case.run(NAT);
    lossless(&said, "ping-1.log", 100);
    lossless(&said, "ping-2.log", 100);
    lossless(&said, "ping-back.log", 20);
    for peer in ["one", "two"] {
        let up = format!("tunnel={peer} peer=192.0.2.2:");
        let line = said
            .lines()
            .find(|line| line.contains("gateway_tunnel_up") && line.contains(&up));
        let line = line.unwrap_or_else(|| panic!("{peer}: {said}"));
        assert!(line.contains(&format!("identity={peer}.example")), "{line}");
        assert!(
            !line.contains(":4500 "),
            "the NAT has changed the port: {line}"
        );
    }
    check_statistics(&case);
}

/// An authority, and an intermediate one that has signed our certificate; our key is one of a curve. Files as operators
/// have them: a chain, the former authority before the present one, and the parameters of the curve before the key.
const CERTIFICATES: &str = r#"
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 30 -subj "/CN=test authority" 2>openssl.log
printf "basicConstraints=critical,CA:TRUE\n" > issuing.ext
for name in near far; do printf "subjectAltName=DNS:$name.example\n" > $name.ext; done
for pair in issuing:ca far:ca near:issuing; do
  name=${pair%:*} by=${pair#*:}
  openssl ecparam -name prime256v1 -genkey -noout -out $name.ec 2>>openssl.log
  openssl pkcs8 -topk8 -nocrypt -in $name.ec -out $name.key
  openssl req -new -key $name.key -out $name.csr -subj "/CN=$name.example" 2>>openssl.log
  openssl x509 -req -in $name.csr -CA $by.pem -CAkey $by.key -CAcreateserial -days 30 -extfile $name.ext -out $name.pem 2>>openssl.log
done
cat issuing.pem >> near.pem
mkdir -p x509 x509ca private; cp far.pem x509/; cp ca.pem x509ca/; cp far.key private/
openssl req -x509 -newkey rsa:2048 -nodes -keyout old.key -out old.pem -days 30 -subj "/CN=former authority" 2>>openssl.log
cat old.pem ca.pem > both.pem
(openssl ecparam -name prime256v1; cat near.key) > near.both
"$HORNWORK" check -c near.toml
charon far "$far_in"
gateway near ""
await near.log gateway_tunnel_up
ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn certificates_prove_both_ends() {
    if !able() {
        return;
    }
    let case = case("certificates");
    let ike = "local_id = \"near.example\"\ncertificate = \"near.pem\"\nprivate_key = \"near.both\"\nauthority = \"both.pem\"";
    let tunnel = "peer = \"192.0.2.2\"\nremote_id = \"far.example\"";
    case.write("near.toml", &near(ike, tunnel));
    let certificate = case.folder.join("far.pem");
    let conf = format!(
        "connections {{ t {{ version = 2
  local_addrs = 192.0.2.2
  remote_addrs = 192.0.2.1
  local {{ auth = pubkey
    id = far.example
    certs = {} }}
  remote {{ auth = pubkey
    id = near.example }}
  children {{ net {{ local_ts = 10.2.0.0/24
    remote_ts = 10.1.0.0/24
    esp_proposals = chacha20poly1305 }} }} }} }}
authorities {{ ca {{ cacert = {} }} }}
secrets {{ ecdsa-far {{ file = {} }} }}
",
        certificate.display(),
        case.folder.join("ca.pem").display(),
        case.folder.join("far.key").display(),
    );
    case.write("far.conf", &conf);
    let said = case.run(CERTIFICATES);
    lossless(&said, "ping.log", 40);
    assert!(said.contains("key exchange by IKEv2"), "{said}");
}

/// A wrong secret; then another secret by a reload.
const WRONG: &str = r#"
charon far "$far_in"
gateway near ""
await near.log gateway_ike_problem
grep -c gateway_tunnel_up near.log || true
cp psk.good psk.new; mv psk.new psk; kill -HUP $near_pid
await near.log gateway_tunnel_up 1500
ping -c 20 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn a_wrong_secret_is_named_and_replaced_by_a_reload() {
    if !able() {
        return;
    }
    let case = case("wrong");
    case.write("psk", "another-secret-of-a-test\n");
    case.write("psk.good", &format!("{SECRET}\n"));
    case.write("near.toml", &near("", PEER));
    case.write("far.conf", &far("aes128gcm16", 3_600));
    let said = case.run(WRONG);
    assert!(
        said.starts_with("0\n"),
        "no tunnel with a wrong secret: {said}"
    );
    assert!(
        said.contains("tunnel=far problem=\"received AUTHENTICATION_FAILED"),
        "{said}"
    );
    lossless(&said, "ping.log", 20);
}

/// A user with the rights of the unit and no other.
const CONFINED: &str = r#"
chown -R nobody:nogroup .
# Distributions let all users open it; here it is made so for this test alone.
mount -t tmpfs tmpfs /dev/net; mknod -m 666 /dev/net/tun c 10 200
charon far "$far_in"
caps="net_admin,net_bind_service"
user="setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=-all,+net_admin,+net_bind_service --ambient-caps=-all,+net_admin,+net_bind_service --bounding-set=-all,+net_admin,+net_bind_service --no-new-privs"
$user "$HORNWORK" check -c near.toml
gateway near "$user"
await near.log gateway_tunnel_up
ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
kill -TERM $near_pid; wait $near_pid
# Without the right to a low port.
user="setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin --bounding-set=-all,+net_admin --no-new-privs"
$user "$HORNWORK" run --role gateway -c near.toml > refused.log 2>&1 || echo "exit $?"
grep CAP_NET_BIND_SERVICE refused.log
"#;

#[test]
fn the_rights_of_the_unit_suffice() {
    if !able() || !installed(&["setpriv"]) {
        return;
    }
    let program = root().join("target");
    let case = case("confined");
    let reachable = Command::new("setpriv")
        .args([
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            "test",
            "-x",
            PROGRAM,
        ])
        .status();
    if !reachable.is_ok_and(|status| status.success()) {
        eprintln!("skipped: another user cannot reach {}", program.display());
        return;
    }
    case.write("near.toml", &near("", PEER));
    case.write("far.conf", &far("aes128gcm16", 3_600));
    let said = case.run(CONFINED);
    lossless(&said, "ping.log", 40);
    assert!(said.contains("exit 3"), "{said}");
    assert!(said.contains("CAP_NET_BIND_SERVICE"), "{said}");
}

/// A thousand tunnels to one machine, which has an identity and a network for each.
const THOUSAND: &str = r#"
for n in $(seq 0 999); do echo "addr add 10.$((100 + n / 250)).$((n % 250)).1/32 dev lo"; done > addresses
$far_in ip -batch addresses
charon far "$far_in"
begun=$(date +%s%N)
gateway near ""
for n in $(seq 3000); do [ $(grep -c gateway_tunnel_up near.log) -ge 1000 ] && break; sleep 0.02; done
echo "up: $(grep -c gateway_tunnel_up near.log) after $(( ($(date +%s%N) - begun) / 1000000 )) ms"
received=0
for n in $(seq 0 9 999); do
  if ping -q -c 1 -W 2 -I 10.1.0.1 10.$((100 + n / 250)).$((n % 250)).1 >/dev/null; then received=$((received + 1)); fi
done
echo "answers: $received of 112"
grep VmRSS /proc/$near_pid/status
kill -TERM $near_pid; wait $near_pid
"#;

/// Both ends of tunnels to one machine, which has an identity and a network for each.
pub fn many_tunnels(count: u32) -> (String, String) {
    let mut text =
        "[gateway]\nlocal = \"192.0.2.1\"\nroute_source = \"10.1.0.1\"\n[gateway.ike]\n".to_owned();
    let mut connections = String::new();
    for number in 0..count {
        let network = format!("10.{}.{}.0/24", 100 + number / 250, number % 250);
        text.push_str(&format!(
            "[[gateway.tunnel]]\nname = \"t{number}\"\npeer = \"192.0.2.2\"\nremote_id = \"t{number}.example\"\nsecret_file = \"psk\"\nlocal_networks = \"10.1.0.0/24\"\nremote_networks = \"{network}\"\n"
        ));
        connections.push_str(&format!(
            "t{number} {{ version = 2
  local_addrs = 192.0.2.2
  remote_addrs = 192.0.2.1
  unique = never
  local {{ auth = psk
    id = t{number}.example }}
  remote {{ auth = psk }}
  children {{ net {{ local_ts = {network}
    remote_ts = 10.1.0.0/24
    esp_proposals = aes128gcm16 }} }} }}\n"
        ));
    }
    let far = format!(
        "connections {{ {connections} }}\nsecrets {{ ike-t {{ secret = \"{SECRET}\" }}\n }}\n"
    );
    (text, far)
}

#[test]
fn a_thousand_tunnels_are_negotiated() {
    if !able() {
        return;
    }
    let case = case("thousand");
    let (near, far) = many_tunnels(1_000);
    case.write("near.toml", &near);
    case.write("far.conf", &far);
    let said = case.run(THOUSAND);
    let short: Vec<&str> = said.lines().take(5).collect();
    eprintln!("{short:?}");
    assert!(said.contains("up: 1000 after"), "{short:?}");
    assert!(said.contains("answers: 112 of 112"), "{short:?}");
}

#[test]
fn how_to_page_is_true() {
    if !able() {
        return;
    }
    // The data centre restarts regularly, and is killed: the office sets the tunnel up again.
    let tail = r#"
again() {
  ip netns exec centre hornwork run --role gateway -c centre.toml >>job1.log 2>&1 & job1=$!
  until=$(($(date +%s) + $1))
  while [ $(date +%s) -lt $until ]; do ip netns exec office ping -q -c 1 -W 1 10.2.0.1 > /dev/null && { echo "tunnel is back $2"; break; }; sleep 0.2; done
}
wait $job3
kill -TERM $job1; wait $job1
again 60 "after its end"
kill -KILL $job1; wait $job1 || true
again 60 "after a kill"
kill -TERM $job2; wait $job2 || true
kill -TERM $job1; wait $job1
"#;
    let (said, logs, call) = crate::gateway::run_page("ipsec-ikev2.md", tail);
    assert!(said.contains(" 0% packet loss"), "{said}");
    for end in ["after its end", "after a kill"] {
        let text = format!("tunnel is back {end}");
        assert!(said.contains(&text), "{end}: {said}\n{logs}");
    }
    assert_eq!(call["established"], true, "{call:#}");
    assert!(call["received"].as_u64() > Some(80), "{call:#}");
    assert!(logs.contains("identity=office.example"), "{logs}");
    assert!(
        logs.contains("gateway_tunnel_down"),
        "the office has ended: {logs}"
    );
}

/// Missing parts of the key exchange are named by `check`, and at the start.
#[test]
fn missing_parts_are_named() {
    if !able() {
        return;
    }
    let case = case("missing");
    case.write("near.toml", &near("", PEER));
    case.write(
        "bad.toml",
        &near("ike_proposals = \"aes128-sha256-no\"", PEER),
    );
    case.write("open.toml", &near("", &PEER.replace("psk", "open")));
    case.write("open", "a-secret-that-others-read\n");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(case.folder.join("open"), open).expect("mode");
    let script = "
expect() { code=$1; text=$2; shift 2; said=$(\"$@\" 2>&1) && got=0 || got=$?; [ $got = $code ] || { echo \"$got: $said\"; exit 1; }; echo \"$said\" | grep -q \"$text\" || { echo \"$said\"; exit 1; }; }
expect 0 'key exchange by IKEv2' \"$HORNWORK\" check -c near.toml
expect 2 'readable or writable by others' \"$HORNWORK\" check -c open.toml
expect 3 'tunnel far: ' timeout 20 \"$HORNWORK\" run --role gateway -c bad.toml
expect 3 'strongswan-charon' unshare -m sh -c 'mount -t tmpfs tmpfs /usr/lib/ipsec; exec \"$HORNWORK\" check -c near.toml'
expect 3 'libcharon-extra-plugins' unshare -m sh -c 'mkdir e; cp /usr/lib/ipsec/plugins/*vici* e; mount --bind e /usr/lib/ipsec/plugins; exec \"$HORNWORK\" check -c near.toml'
expect 3 'cannot have a network of its own' unshare -U --map-root-user -n sh -c 'echo 0 > /proc/sys/user/max_net_namespaces; exec \"$HORNWORK\" check -c near.toml'
# The port is in use. The kernel may close the sockets of the gateway before a moment after its end.
python3 -c 'import socket,time
s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(500):
  try: s.bind((\"192.0.2.1\", 500)); break
  except OSError: time.sleep(0.02)
print(\"bound\", flush=True); time.sleep(20)' > port.log & jobs_of_test=\"$jobs_of_test $!\"
await port.log bound
expect 3 'cannot open UDP 192.0.2.1:500' timeout 20 \"$HORNWORK\" run --role gateway -c near.toml
";
    case.run(script);
}
