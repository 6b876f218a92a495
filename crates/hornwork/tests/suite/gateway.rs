//! The IPsec gateway in network namespaces: two gateways with the kernel's ping and iperf3 through their tunnel, a
//! capture of the wire opened by tshark with the same keys, strongSwan's data path as the peer, missing rights, and the
//! how-to page. Skipped without the rights.

use crate::common::pings::{LOSS, lossless};
use crate::common::{installed, root, scratch};
use crate::softphone_esp::{GCM, Suite, key};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

/// Two sites with a link between them. A script that follows runs in `$there` for the far one.
pub(crate) const SITES: &str = r#"
set -e
unshare -n sleep 300 & far=$!
jobs_of_test=$far
trap 'kill $jobs_of_test 2>/dev/null || true' EXIT
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
there="nsenter --net=/proc/$far/ns/net"
ip link set lo up; $there ip link set lo up
ip link add va type veth peer name vb netns $far
ip addr add 192.0.2.1/24 dev va; ip addr add fd09:1::1/64 dev va nodad; ip link set va up
$there sh -c "ip addr add 192.0.2.2/24 dev vb; ip addr add fd09:1::2/64 dev vb nodad; ip link set vb up"
ip addr add 10.1.0.1/24 dev lo; $there ip addr add 10.2.0.1/24 dev lo
ip addr add fd01::1/64 dev lo nodad; $there ip addr add fd02::1/64 dev lo nodad
await() { for n in $(seq 1500); do grep -q "$2" "$1" 2>/dev/null && return 0; sleep 0.02; done; echo "no $2 in $1:"; cat "$1"; return 1; }
gateway() { rm -f $1.log; $2 "$HORNWORK" run --role gateway -c $1.toml > $1.log 2>&1 & eval "$1_pid=\$!"; jobs_of_test="$jobs_of_test $!"; await $1.log gateway_started; }
"#;

/// Traffic of two of our gateways, a change of keys under it, a restart, and a path with a smaller MTU.
const TRAFFIC: &str = r#"
tshark -q -i va -w wire.pcapng >tshark.log 2>&1 & capture=$!; jobs_of_test="$jobs_of_test $capture"
await tshark.log "Capturing on"
gateway near ""
gateway far "$there"
ping -c 40 -i 0.01 $PING_NEAR > ping-there.log; loss ping-there.log
$there ping -c 40 -i 0.01 $PING_FAR > ping-back.log; loss ping-back.log
# The capture is complete when it has the last packet.
bash -c "echo the-end >/dev/udp/192.0.2.2/9" || true
for n in $(seq 1500); do grep -q the-end wire.pcapng && break; sleep 0.02; done
kill -INT $capture; wait $capture || true
if [ -n "$REKEY" ]; then
$there iperf3 -s -1 >/dev/null 2>&1 & await /proc/net/dev va
for n in $(seq 1500); do $there ss -tln | grep -q :5201 && break; sleep 0.02; done
iperf3 -c $FAR -B $NEAR -t 1 -J > iperf.json
# New keys under traffic: one end first, the other half a second later.
ping -c 400 -i 0.01 $PING_NEAR > ping-rekey.log & pinging=$!
sleep 0.3; cp keys.new keys.near.tmp; mv keys.near.tmp keys.near; kill -HUP $near_pid; await near.log gateway_keys_loaded
sleep 0.5; cp keys.new keys.far.tmp; mv keys.far.tmp keys.far; kill -HUP $far_pid; await far.log gateway_keys_loaded
wait $pinging || true; loss ping-rekey.log
await near.log gateway_rekeyed; await far.log gateway_rekeyed
fi
# A restart continues with unused sequence numbers, and accepts none twice.
kill -TERM $near_pid; wait $near_pid; cp near.log near-first.log
gateway near ""
ping -c 20 -i 0.01 $PING_NEAR > ping-restart.log; loss ping-restart.log
# A shorter path: the sender is told by ICMP from the gateway.
ip link set va mtu 1300; $there ip link set vb mtu 1300
ping -c 4 -i 0.3 -W 1 -M do -s 1320 $PING_NEAR > ping-long.log || true
# The far end learns the path by its first reply.
ping -q -c 2 -i 0.4 -W 1 -M do -s $FITS $PING_NEAR >/dev/null || true
ping -c 5 -i 0.01 -M do -s $FITS $PING_NEAR > ping-fits.log; loss ping-fits.log
kill -TERM $near_pid $far_pid; wait $near_pid; wait $far_pid
"#;

fn able() -> bool {
    if !installed(&[
        "unshare", "nsenter", "ip", "tshark", "timeout", "ping", "iperf3", "ss",
    ]) {
        return false;
    }
    may_make_tun()
}

/// Whether this user may make a network namespace with a TUN device; otherwise it is said.
pub(crate) fn may_make_tun() -> bool {
    let able = Command::new("unshare")
        .args(["-n", "ip", "tuntap", "add", "dev", "try0", "mode", "tun"])
        .stderr(Stdio::null())
        .status();
    let able = able.is_ok_and(|status| status.success());
    if !able {
        eprintln!("skipped: no right to a network namespace with a TUN device");
    }
    able
}

const CBC: Suite = Suite("AES-CBC [RFC3602]", 16, "HMAC-SHA-256-128 [RFC4868]", 32);

/// The lines of both directions, of a generation of keys.
pub(crate) fn lines(
    Suite(encryption, length, integrity, integrity_length): Suite,
    [near, far]: [&str; 2],
    age: u8,
) -> String {
    let family = if near.contains(':') { "IPv6" } else { "IPv4" };
    let line = |from: &str, to: &str, direction: u8| {
        let of = age * 2 + direction;
        format!(
            "\"{family}\",\"{from}\",\"{to}\",\"0x{:08x}\",\"{encryption}\",\"{}\",\"{integrity}\",\"{}\"\n",
            0x1000 + u32::from(of),
            key(length, of),
            key(integrity_length, of)
        )
    };
    line(near, far, 0) + &line(far, near, 1)
}

pub(crate) fn write_keys(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("key file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
}

/// The configuration of one end.
pub(crate) fn config(
    end: &str,
    keys: &str,
    [local, peer]: [&str; 2],
    [inside, remote]: [&str; 2],
    more: &str,
) -> String {
    format!(
        "[gateway]\ndevice = \"esp0\"\nlocal = \"{local}\"\nkey_file = \"{keys}\"\n{more}\n\n[[gateway.tunnel]]\nname = \"{end}\"\npeer = \"{peer}\"\nlocal_networks = [\"{inside}\"]\nremote_networks = [\"{remote}\"]\n"
    )
}

pub(crate) fn run(folder: &Path, script: &str, variables: &[(&str, String)]) -> Output {
    Command::new("unshare")
        .args(["-n", "-m", "timeout", "240", "bash", "-c"])
        .arg(format!("{LOSS}{script}"))
        .current_dir(folder)
        .env("HORNWORK", PROGRAM)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()
        .expect("unshare")
}

pub(crate) fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A figure of iperf3.
fn iperf(folder: &Path, file: &str, pointer: &str) -> f64 {
    let json: serde_json::Value = serde_json::from_str(&read(folder, file)).expect("iperf3");
    json.pointer(pointer)
        .and_then(serde_json::Value::as_f64)
        .unwrap_or_else(|| panic!("{json:#}"))
}

/// Packets of the wire that a filter shows, with these keys.
fn count(folder: &Path, filter: &str, keys: &str) -> usize {
    // Its own profile, so that no preference or key of the user counts.
    let home = folder.join("tshark-home");
    std::fs::create_dir_all(home.join(".config/wireshark")).expect("profile");
    std::fs::write(home.join(".config/wireshark/esp_sa"), keys).expect("keys");
    let output = Command::new("tshark")
        .args(["-r", "wire.pcapng", "-Y", filter])
        .args(["-o", "esp.enable_encryption_decode:TRUE"])
        .args(["-o", "esp.enable_authentication_check:TRUE"])
        .env("HOME", &home)
        .env_remove("XDG_CONFIG_HOME")
        .current_dir(folder)
        .output()
        .expect("tshark");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

struct Case {
    name: &'static str,
    suite: Suite,
    outer: [&'static str; 2],
    inner_v6: bool,
    /// Changes keys under traffic, and measures TCP, which takes five seconds.
    rekeys: bool,
    more: &'static str,
}

impl Case {
    fn run(&self) {
        let folder = scratch(&format!("gateway-{}", self.name));
        let name = self.name;
        let [old, new] = [1, 2].map(|age| lines(self.suite, self.outer, age));
        for keys in ["keys.near", "keys.far"] {
            write_keys(&folder, keys, &old);
        }
        write_keys(&folder, "keys.new", &(old.clone() + &new));
        let (networks, ips) = match self.inner_v6 {
            false => (["10.1.0.0/24", "10.2.0.0/24"], ["10.1.0.1", "10.2.0.1"]),
            true => (["fd01::/64", "fd02::/64"], ["fd01::1", "fd02::1"]),
        };
        let [near, far] = [0, 1].map(|end: usize| {
            let pick = |both: [&'static str; 2]| [both[end], both[1 - end]];
            let more = format!("route_source = \"{}\"\n{}", ips[end], self.more);
            let names = ["near", "far"];
            let keys = format!("keys.{}", names[end]);
            config(
                names[1 - end],
                &keys,
                pick(self.outer),
                pick(networks),
                &more,
            )
        });
        std::fs::write(folder.join("near.toml"), near).expect("file");
        std::fs::write(folder.join("far.toml"), far).expect("file");
        let variables = [
            ("PING_NEAR", format!("-I {} {}", ips[0], ips[1])),
            ("PING_FAR", format!("-I {} {}", ips[1], ips[0])),
            ("NEAR", ips[0].to_owned()),
            ("FAR", ips[1].to_owned()),
            ("REKEY", if self.rekeys { "yes" } else { "" }.to_owned()),
            // With IPv6 1,280 bytes inside, which must pass any path; its outer packets are fragmented.
            (
                "FITS",
                if self.inner_v6 { "1232" } else { "1180" }.to_owned(),
            ),
        ];
        let script = format!("{SITES}{TRAFFIC}");
        let output = run(&folder, &script, &variables);
        let said = text(&output);
        let logs = format!(
            "{said}\nnear: {}\nfar: {}",
            read(&folder, "near.log"),
            read(&folder, "far.log")
        );
        assert!(output.status.success(), "{name}: {logs}");
        for (log, packets) in [
            ("there", 40),
            ("back", 40),
            ("rekey", 400),
            ("restart", 20),
            ("fits", 5),
        ] {
            if log == "rekey" && !self.rekeys {
                continue;
            }
            lossless(&logs, &format!("ping-{log}.log"), packets);
        }
        let long = read(&folder, "ping-long.log");
        // The header and padding of ESP differ by algorithm.
        let reported = long.contains("mtu = 12") || long.contains("mtu=12");
        assert!(
            reported && long.contains(" 0 received"),
            "{name}: {long}\n{logs}"
        );
        if self.rekeys {
            let bytes = iperf(&folder, "iperf.json", "/end/sum_received/bytes");
            assert!(bytes > 1e6, "{name}: {logs}");
        }
        self.check_capture(&folder, &old);
        for log in ["near.log", "far.log"] {
            let statistics = read(&folder, log);
            let last = statistics
                .lines()
                .rfind(|line| line.contains("gateway_statistics"));
            let last = last.unwrap_or_else(|| panic!("{name}: {logs}"));
            for fault in [
                "esp_authentication",
                "esp_replayed",
                "esp_too_old",
                "esp_unknown_spi",
                "esp_malformed",
            ] {
                assert!(!last.contains(fault), "{name}: {last}");
            }
        }
        assert!(
            read(&folder, "near.log").contains("gateway_path_mtu"),
            "{name}: {logs}"
        );
    }

    /// Both directions of the first pings: 160 packets, which tshark opens, whose ICVs it confirms.
    fn check_capture(&self, folder: &Path, keys: &str) {
        let echo = match self.inner_v6 {
            false => "icmp.type in {0, 8}",
            true => "icmpv6.type in {128, 129}",
        };
        let outer = match self.more.contains("\"ip\"") {
            true => "!udp",
            false => "udp.port == 4500",
        };
        let name = self.name;
        let good = format!("esp.icv_good == 1 && {outer} && {echo}");
        assert_eq!(count(folder, &good, keys), 160, "{name}");
        let without = count(folder, &format!("esp && {echo}"), "");
        assert_eq!(without, 0, "{name}: without the keys");
    }
}

#[test]
fn two_gateways_carry_traffic_that_tshark_opens() {
    if !able() {
        return;
    }
    for case in [
        Case {
            name: "udp-gcm",
            suite: GCM,
            outer: ["192.0.2.1", "192.0.2.2"],
            inner_v6: false,
            rekeys: true,
            more: "rekey_delay_s = 3",
        },
        Case {
            name: "ip-cbc-v6",
            suite: CBC,
            outer: ["fd09:1::1", "fd09:1::2"],
            inner_v6: true,
            rekeys: false,
            more: "encapsulation = \"ip\"",
        },
    ] {
        case.run();
    }
}

/// Datagrams of the far network that come beside the tunnel, before, while and after the gateway runs.
const CLEAR: &str = r#"
for name in all va; do echo 0 > /proc/sys/net/ipv4/conf/$name/rp_filter || true; done
$there ip route add 10.1.0.0/24 via 192.0.2.1 src 10.2.0.1
cat > listen.py <<END
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(("10.1.0.1", 7000)); one.settimeout(1)
print("ready", flush=True)
try: one.recv(100); print("came")
except TimeoutError: print("nothing")
END
clear() { python3 listen.py > $1.got & listening=$!; await $1.got ready; $there bash -c "echo hello >/dev/udp/10.1.0.1/7000"; wait $listening; tail -n 1 $1.got | sed "s/^/$1: /"; }
clear before
gateway near ""
clear beside
nft list table inet hornwork_esp0 | grep -o "packets [1-9]" || true
# The same packets in the tunnel.
$there ip route del 10.1.0.0/24
gateway far "$there"
clear inside
kill -TERM $far_pid; wait $far_pid
$there ip route add 10.1.0.0/24 via 192.0.2.1 src 10.2.0.1
kill -TERM $near_pid; wait $near_pid
clear after
"#;

#[test]
fn packets_of_a_remote_network_come_in_the_tunnel_only() {
    if !able() || !installed(&["python3", "nft"]) {
        return;
    }
    let folder = scratch("gateway-clear");
    let ends = ["192.0.2.1", "192.0.2.2"];
    let networks = ["10.1.0.0/24", "10.2.0.0/24"];
    let sides = [("near", 0, "10.1.0.1"), ("far", 1, "10.2.0.1")];
    for (end, side, own) in sides {
        write_keys(&folder, &format!("keys.{end}"), &lines(GCM, ends, 1));
        let text = config(
            end,
            &format!("keys.{end}"),
            [ends[side], ends[1 - side]],
            [networks[side], networks[1 - side]],
            &format!("route_source = \"{own}\""),
        );
        std::fs::write(folder.join(format!("{end}.toml")), text).expect("file");
    }
    let output = run(&folder, &format!("{SITES}{CLEAR}"), &[]);
    let log = read(&folder, "near.log");
    let said = format!("{}\n{log}", text(&output));
    assert!(output.status.success(), "{said}");
    if log.contains("are not filtered") {
        eprintln!("skipped: the kernel has no filter by routes: {log}");
        return;
    }
    for line in [
        "before: came",
        "beside: nothing",
        "inside: came",
        "after: came",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(said.contains("packets 1"), "{said}");
}

/// A border with a gateway in the same process.
const BORDER: &str = r#"
gateway far "$there"
"$HORNWORK" run -c near.toml > near.log 2>&1 & near_pid=$!; jobs_of_test="$jobs_of_test $near_pid"
await near.log gateway_started
ping -c 20 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
# Figures follow the packets.
for n in $(seq 100); do curl -s http://127.0.0.1:9464/metrics > metrics.txt; [ $(grep -c '^hornwork_gateway_packets_total.* 20$' metrics.txt) = 2 ] && break; sleep 0.1; done
cp keys.new keys.tmp; mv keys.tmp keys.near; kill -HUP $near_pid; await near.log gateway_keys_loaded
chmod 644 keys.near; kill -HUP $near_pid; await near.log "accessible by others"
ping -c 20 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-after.log; loss ping-after.log
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn a_border_and_a_gateway_share_a_process() {
    if !able() || !installed(&["curl"]) {
        return;
    }
    let folder = scratch("gateway-border");
    let ends = ["192.0.2.1", "192.0.2.2"];
    let old = lines(GCM, ends, 1);
    for keys in ["keys.near", "keys.far"] {
        write_keys(&folder, keys, &old);
    }
    write_keys(&folder, "keys.new", &(old + &lines(GCM, ends, 2)));
    let networks = ["10.1.0.0/24", "10.2.0.0/24"];
    let near = config("far", "keys.near", ends, networks, "rekey_delay_s = 60");
    let near = format!(
        "[[interface]]\nname = \"phones\"\nlisten = \"udp:127.0.0.1:5060\"\n[metrics]\nlisten = \"127.0.0.1:9464\"\n{near}"
    );
    let far = config(
        "near",
        "keys.far",
        [ends[1], ends[0]],
        [networks[1], networks[0]],
        "",
    );
    std::fs::write(folder.join("near.toml"), near).expect("file");
    std::fs::write(folder.join("far.toml"), far).expect("file");
    let output = run(&folder, &format!("{SITES}{BORDER}"), &[]);
    let said = text(&output);
    let logs = format!("{said}\n{}", read(&folder, "near.log"));
    assert!(output.status.success(), "{logs}");
    for log in ["ping", "ping-after"] {
        lossless(&logs, &format!("{log}.log"), 20);
    }
    let metrics = read(&folder, "metrics.txt");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.trim().parse().expect("number")
    };
    for direction in ["sealed", "opened"] {
        let label = format!("{{direction=\"{direction}\"}}");
        assert_eq!(
            value(&format!("hornwork_gateway_packets_total{label}")),
            20.0
        );
        assert_eq!(
            value(&format!("hornwork_gateway_bytes_total{label}")),
            20.0 * 84.0
        );
    }
    assert_eq!(value("hornwork_gateway_associations"), 2.0);
}

/// A stock strongSwan with its own data path in user space (kernel-libipsec) at both ends agrees on keys; then one end
/// is replaced by our gateway, with the keys of its log. `$ESP`: the proposal.
const STRONGSWAN: &str = r#"
charon() {
  mkdir -p $1
  cat > $1/strongswan.conf <<END
charon {
  load = random nonce openssl kdf pem pkcs1 socket-default kernel-libipsec kernel-netlink vici
  plugins { vici { socket = unix://$PWD/$1/vici } }
  filelog { log { path = $PWD/$1/log
    default = 1
    chd = 4
    flush_line = yes } }
}
END
  cat > $1/swanctl.conf <<END
connections { t { version = 2
  local_addrs = $2
  remote_addrs = $3
  proposals = aes128-sha256-x25519
  local { auth = psk }
  remote { auth = psk }
  children { net { local_ts = $4
    remote_ts = $5
    esp_proposals = $ESP
    rekey_time = 0 } }
  rekey_time = 0
  encap = yes } }
secrets { ike-t { secret = "not-a-secret" } }
END
  STRONGSWAN_CONF=$PWD/$1/strongswan.conf $6 unshare -m sh -c 'mount -t tmpfs tmpfs /run; exec /usr/lib/ipsec/charon' >$1.out 2>&1 &
  eval "$1_pid=\$!"; jobs_of_test="$jobs_of_test $!"
  for n in $(seq 1500); do [ -S $1/vici ] && break; sleep 0.02; done
  $6 swanctl --load-all --file $1/swanctl.conf --uri unix://$PWD/$1/vici >$1.load 2>&1
}
charon near 192.0.2.1 192.0.2.2 10.1.0.0/24 10.2.0.0/24 ""
charon far 192.0.2.2 192.0.2.1 10.2.0.0/24 10.1.0.0/24 "$there"
swanctl --initiate --child net --uri unix://$PWD/near/vici >initiate.log 2>&1 || { cat initiate.log; exit 1; }
# Without a word to the peer.
kill -KILL $near_pid; wait $near_pid 2>/dev/null || true
for n in $(seq 1500); do ip link show ipsec0 >/dev/null 2>&1 || break; sleep 0.02; done
(umask 077; awk -v encryption="$ENCRYPTION" -v integrity="$INTEGRITY" '
/ key => / { name = $2 "-" $3; next }
name != "" && /\[CHD\] +[0-9]+: / { hex = substr($0, index($0, ": ") + 2, 48); gsub(/ /, "", hex); key[name] = key[name] hex; next }
{ name = "" }
/ SPI 0x/ { spi[$5] = substr($3, 1, 10) }
function line(from, to, end,   mac) {
  mac = key["integrity-" end]; if (mac != "") mac = "0x" mac
  printf "\"IPv4\",\"%s\",\"%s\",\"%s\",\"%s\",\"0x%s\",\"%s\",\"%s\"\n", from, to, spi[from], encryption, key["encryption-" end], integrity, mac
}
END { line("192.0.2.1", "192.0.2.2", "initiator"); line("192.0.2.2", "192.0.2.1", "responder") }' near/log > keys.near)
gateway near ""
ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-there.log; loss ping-there.log
$there ping -c 40 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-back.log; loss ping-back.log
if [ -n "$STREAMS" ]; then
for port in 5201 5202; do
  $there iperf3 -s -1 -p $port >/dev/null 2>&1 &
  for n in $(seq 1500); do $there ss -tln | grep -q :$port && break; sleep 0.02; done
done
iperf3 -c 10.2.0.1 -B 10.1.0.1 -t 1 -J > tcp.json
# As G.711 in RTP, from there to here.
iperf3 -c 10.2.0.1 -B 10.1.0.1 -p 5202 -R -u -b 1376k -l 172 -t 1 -J > udp.json
fi
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn strongswan_and_the_gateway_exchange_packets() {
    let programs = ["swanctl", "awk"];
    let parts = [
        "charon",
        "plugins/libstrongswan-kernel-libipsec.so",
        "plugins/libstrongswan-openssl.so",
    ];
    let missing = |part: &&str| !Path::new("/usr/lib/ipsec").join(part).exists();
    if !able() || !installed(&programs) {
        return;
    }
    if parts.iter().any(missing) {
        eprintln!("skipped: strongSwan with kernel-libipsec is not installed");
        return;
    }
    for (proposal, Suite(encryption, _, integrity, _)) in
        [("aes128gcm16", GCM), ("aes128-sha256", CBC)]
    {
        let folder = scratch(&format!("gateway-strongswan-{proposal}"));
        let more = "route_source = \"10.1.0.1\"";
        let file = config(
            "far",
            "keys.near",
            ["192.0.2.1", "192.0.2.2"],
            ["10.1.0.0/24", "10.2.0.0/24"],
            more,
        );
        std::fs::write(folder.join("near.toml"), file).expect("file");
        let variables = [
            ("ESP", proposal.to_owned()),
            ("ENCRYPTION", encryption.to_owned()),
            ("INTEGRITY", integrity.to_owned()),
            (
                "STREAMS",
                if proposal.contains("gcm") { "yes" } else { "" }.to_owned(),
            ),
        ];
        let output = run(&folder, &format!("{SITES}{STRONGSWAN}"), &variables);
        let logs = format!("{}\n{}", text(&output), read(&folder, "near.log"));
        assert!(output.status.success(), "{proposal}: {logs}");
        for log in ["there", "back"] {
            lossless(&logs, &format!("ping-{log}.log"), 40);
        }
        if proposal == "aes128gcm16" {
            let bytes = iperf(&folder, "tcp.json", "/end/sum_received/bytes");
            assert!(bytes > 1e6, "{bytes}: {logs}");
            let packets = iperf(&folder, "udp.json", "/end/sum/packets");
            let lost = iperf(&folder, "udp.json", "/end/sum/lost_packets");
            // On a busy machine the socket of iperf3 loses some.
            assert!(packets > 900.0 && lost < 20.0, "{packets}, {lost}: {logs}");
        }
        let log = read(&folder, "near.log");
        let last = log
            .lines()
            .rfind(|line| line.contains("gateway_statistics"));
        let last = last.unwrap_or_else(|| panic!("{logs}"));
        for fault in [
            "esp_authentication",
            "esp_replayed",
            "esp_too_old",
            "esp_unknown_spi",
        ] {
            assert!(!last.contains(fault), "{proposal}: {last}");
        }
    }
}

#[test]
fn missing_rights_and_unsafe_keys_are_named() {
    if !able() || !installed(&["setpriv", "mount"]) {
        return;
    }
    let folder = scratch("gateway-rights");
    let ends = ["192.0.2.1", "192.0.2.2"];
    write_keys(&folder, "keys", &lines(GCM, ends, 1));
    let write = |name: &str, keys: &str, more: &str| {
        let text = config("far", keys, ends, ["10.1.0.0/24", "10.2.0.0/24"], more);
        std::fs::write(folder.join(name), text).expect("file");
    };
    write("udp.toml", "keys", "");
    write("ip.toml", "keys", "encapsulation = \"ip\"");
    write("both.toml", "keys", "ike = {}");
    write("open.toml", "open", "");
    write("none.toml", "none", "");
    write("weak.toml", "weak", "");
    write("half.toml", "half", "");
    // Without integrity there is no replay protection.
    let unproved = Suite("AES-CBC [RFC3602]", 16, "NULL", 0);
    let moving = config(
        "far",
        "unproved",
        ends,
        ["10.1.0.0/24", "10.2.0.0/24"],
        "allow_weak = true",
    ) + "peer_behind_nat = true\n";
    std::fs::write(folder.join("moving.toml"), moving).expect("file");
    write_keys(&folder, "open", &lines(GCM, ends, 1));
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(folder.join("open"), open).expect("mode");
    let weak = Suite("DES-CBC [RFC2405]", 8, "HMAC-MD5-96 [RFC2403]", 16);
    write_keys(&folder, "weak", &lines(weak, ends, 1));
    write_keys(&folder, "unproved", &lines(unproved, ends, 1));
    let half = lines(GCM, ends, 1);
    write_keys(&folder, "half", half.lines().next().expect("line"));
    let without = |right: &str| format!("setpriv --bounding-set=-{right} --inh-caps=-{right}");
    let admin = without("net_admin");
    let raw = without("net_raw");
    let no_tun = "unshare -m sh -c 'mount -t tmpfs tmpfs /dev/net; exec \"$0\" \"$@\"'".to_owned();
    let none = String::new();
    for (right, command, code, expected) in [
        (&none, "check -c udp.toml", 0, "IPsec gateway: device esp0"),
        (&none, "check -c ip.toml", 0, "IP protocol 50"),
        (&admin, "check -c udp.toml", 3, "CAP_NET_ADMIN"),
        (&admin, "run --role gateway -c udp.toml", 3, "CAP_NET_ADMIN"),
        (&raw, "check -c ip.toml", 3, "CAP_NET_RAW"),
        (&raw, "check -c udp.toml", 0, "IPsec gateway"),
        (
            &no_tun,
            "check -c udp.toml",
            3,
            "/dev/net/tun does not exist",
        ),
        (
            &none,
            "check -c both.toml",
            2,
            "`key_file` is for manual keys",
        ),
        (&none, "check -c open.toml", 2, "accessible by others"),
        (&none, "check -c none.toml", 2, "cannot be read"),
        (&none, "check -c weak.toml", 2, "allow_weak = true"),
        (
            &none,
            "check -c half.toml",
            2,
            "no line from 192.0.2.2 to 192.0.2.1, the other direction of SPI 0x",
        ),
        (
            &none,
            "check -c moving.toml",
            2,
            "peer_behind_nat needs an algorithm with integrity",
        ),
        (&none, "run -c udp.toml", 2, "--role gateway"),
    ] {
        let output = run(
            &folder,
            &format!("exec {right} \"$HORNWORK\" {command}"),
            &[],
        );
        let said = text(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{right} {command}: {said}"
        );
        assert!(said.contains(expected), "{right} {command}: {said}");
    }
    // The drop-in of the unit has the rights for both carriers.
    let unit = root().join("packaging/hornwork-gateway.conf");
    let unit = std::fs::read_to_string(unit).expect("drop-in");
    let rights = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let rights = rights.expect("rights").to_lowercase();
    let rights: String = rights
        .split(' ')
        .map(|right| format!(",+{}", right.trim_start_matches("cap_")))
        .collect();
    let script = format!(
        "exec setpriv --bounding-set=-all{rights} --inh-caps=-all --no-new-privs \"$HORNWORK\" check -c ip.toml"
    );
    let confined = run(&folder, &script, &[]);
    assert!(confined.status.success(), "{}", text(&confined));
    // An address of another host. (Without any address the kernel accepts it.)
    let script = "ip link set lo up; exec \"$HORNWORK\" run --role gateway -c udp.toml";
    let elsewhere = run(&folder, script, &[]);
    let said = text(&elsewhere);
    assert_eq!(elsewhere.status.code(), Some(3), "{said}");
    assert!(said.contains("cannot open UDP 192.0.2.1:4500"), "{said}");
    // A network that contains the peer takes its packets into the tunnel, unless there is a longer route to the peer.
    let looping = |remote: &str| config("far", "keys", ends, ["10.1.0.0/24", remote], "");
    std::fs::write(folder.join("loop.toml"), looping("192.0.2.0/24")).expect("file");
    std::fs::write(folder.join("full.toml"), looping("0.0.0.0/0")).expect("file");
    std::fs::write(folder.join("peer.toml"), looping("192.0.2.2/32")).expect("file");
    let script = "ip link set lo up; ip addr add 192.0.2.1/32 dev lo; exec \"$HORNWORK\" run --role gateway -c loop.toml";
    let refused = run(&folder, script, &[]);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(
        said.contains("contains the outer address of `peer`, 192.0.2.2"),
        "{said}"
    );
    let script = "ip link set lo up; ip link add d0 type veth peer name d1; ip addr add 192.0.2.1/24 dev d0; ip link set d0 up; ip link set d1 up; \"$HORNWORK\" run --role gateway -c full.toml >full.log 2>&1 & gateway=$!; for n in $(seq 1500); do grep -q gateway_started full.log && break; sleep 0.02; done; kill -TERM $gateway; wait $gateway; cat full.log; grep -q gateway_started full.log";
    let full = run(&folder, script, &[]);
    assert!(full.status.success(), "{}", text(&full));
    let own = run(&folder, "exec \"$HORNWORK\" check -c peer.toml", &[]);
    let said = text(&own);
    assert_eq!(own.status.code(), Some(2), "{said}");
    assert!(said.contains("is the outer address of `peer`"), "{said}");
    // Weak algorithms run where they are allowed.
    write("weak.toml", "weak", "allow_weak = true");
    let allowed = run(&folder, "\"$HORNWORK\" check -c weak.toml", &[]);
    assert!(allowed.status.success(), "{}", text(&allowed));
}

/// Runs the commands of a page as they are written, those of other terminals in the background, and ends with `tail`.
/// Returns their output, the logs of those in the background, and the result of the call.
pub(crate) fn run_page(name: &str, tail: &str) -> (String, String, serde_json::Value) {
    let page = std::fs::read_to_string(root().join("docs/how-to").join(name)).expect("page");
    let folder = scratch(&format!("guide-{name}"));
    let mut script = String::from(
        "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nmount -t tmpfs tmpfs /run\nawait() { for n in $(seq 1500); do grep -q \"$2\" \"$1\" 2>/dev/null && return 0; sleep 0.02; done; cat \"$1\"; return 1; }\n",
    );
    script
        .push_str("mkdir bin; ln -s \"$HORNWORK\" bin/hornwork; export PATH=\"$PWD/bin:$PATH\"\n");
    let mut file: Option<(String, String)> = None;
    let (mut commands, mut jobs) = (false, 0);
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("```") {
            if let Some((name, text)) = file.take() {
                std::fs::write(folder.join(name), text).expect("file");
            }
            commands = head == "sh" && !commands;
            if let Some((_, name)) = head.split_once(' ') {
                file = Some((name.to_owned(), String::new()));
            }
        } else if let Some((_, text)) = &mut file {
            text.push_str(line);
            text.push('\n');
        } else if commands {
            // The test is skipped where these packages are missing.
            if line.starts_with("apt install") {
                continue;
            }
            let waits = [
                ("hornwork run", "gateway_started"),
                ("phone answer", "waiting for a call"),
            ];
            if line.contains("/usr/lib/ipsec/charon") {
                jobs += 1;
                let _ = writeln!(
                    script,
                    "{line} >job{jobs}.log 2>&1 & job{jobs}=$!; for n in $(seq 1500); do [ -S office.vici ] && break; sleep 0.02; done"
                );
                continue;
            }
            match waits.iter().find(|(part, _)| line.contains(part)) {
                Some((_, until)) => {
                    jobs += 1;
                    let _ = writeln!(
                        script,
                        "{line} >job{jobs}.log 2>&1 & job{jobs}=$!; await job{jobs}.log '{until}'"
                    );
                }
                None => {
                    let _ = writeln!(script, "{line}");
                }
            }
            if line.starts_with("swanctl --load-all") {
                script.push_str("await job1.log gateway_tunnel_up\n");
            }
        }
    }
    script.push_str(tail);
    let output = run(&folder, &script, &[]);
    let said = text(&output);
    let logs: String = (1..=jobs)
        .map(|job| read(&folder, &format!("job{job}.log")))
        .collect();
    assert!(output.status.success(), "{said}\n{logs}");
    let call = serde_json::from_str(&read(&folder, "call.json")).expect("call");
    (said, logs, call)
}

#[test]
fn how_to_page_is_true() {
    if !able() || !installed(&["openssl"]) {
        return;
    }
    let tail = "wait $job3; kill -TERM $job1 $job2; wait $job1; wait $job2\n";
    let (said, logs, call) = run_page("ipsec-gateway.md", tail);
    assert!(said.contains(" 0% packet loss"), "{said}");
    assert_eq!(call["established"], true, "{call:#}");
    assert!(call["received"].as_u64() > Some(80), "{call:#}");
    assert_eq!(logs.matches("gateway_statistics").count(), 2, "{logs}");
}
