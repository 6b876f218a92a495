//! ESP by the kernel (`data_path = "kernel"`): under a User-Mode Linux, whose kernel has ESP as modules, against a
//! stock strongSwan with its kernel-netlink and against our user space; on the kernel of this machine, the refusal.
//! Skipped without the rights, and the first without the User-Mode Linux.

use crate::common::installed;
use crate::common::network_case::NetworkCase;
use crate::common::pings::{LOSS, lossless};
use crate::gateway_ike::{COMMON, SECRET, able, far};
use std::path::Path;
use std::process::{Command, Stdio};

/// The first process of the guest, whose root file system is that of this machine, read only. `CASE` and `HORNWORK`
/// come from the command line of the kernel. Algorithms are loaded as the kernel asks for them.
const INIT: &str = r#"#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/mnt TMPDIR=/mnt
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /mnt
# A guest that hangs ends itself.
(sleep 250; echo "guest: no end in time"; echo o > /proc/sysrq-trigger) &
cp -r "$CASE"/. /mnt; cd /mnt
mkdir -p m/lib; ln -s /usr/lib/uml/modules m/lib/modules
printf '#!/bin/sh\nexec /usr/sbin/modprobe -d /mnt/m "$@"\n' > modprobe; chmod 755 modprobe
echo /mnt/modprobe > /proc/sys/kernel/modprobe
for module in tun veth xfrm_user esp4 esp6; do ./modprobe $module || echo "guest: no module $module"; done
bash script; echo "guest: exit $?"
sync; echo o > /proc/sysrq-trigger; sleep 10
"#;

/// Output of a guest that cannot set the registers of a process: its kernel is older than the processor.
const OLD_GUEST: &str = "ptrace set fp regs failed";

/// Runs a script in the guest; returns its output. None, with a printed reason, on a processor that the guest does not
/// know.
fn run_guest(case: &NetworkCase, script: &str) -> Option<String> {
    case.write("script", script);
    case.write("init", INIT);
    let folder = case.folder.display();
    let output = Command::new("timeout")
        .args(["-k", "5", "280", "linux.uml"])
        .args([
            "mem=512M",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "quiet",
        ])
        .args(["con=null", "con0=null,fd:1", "ssl=null"])
        .arg(format!("uml_dir={folder}/"))
        .arg("init=/bin/bash")
        .arg(format!("CASE={folder}"))
        .arg(format!("HORNWORK={}", env!("CARGO_BIN_EXE_hornwork")))
        .args(["--", &format!("{folder}/init")])
        .stdin(Stdio::null())
        .output()
        .expect("linux.uml");
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    if said.contains(OLD_GUEST) {
        eprintln!("skipped: User-Mode Linux does not run on this processor ({OLD_GUEST})");
        return None;
    }
    assert!(said.contains("guest: exit 0"), "{said}");
    Some(said)
}

/// Whether this machine has the guest and the rights.
fn has_guest() -> bool {
    if !able() || !installed(&["linux.uml", "modprobe", "python3", "nsenter"]) {
        return false;
    }
    let modules = Path::new("/usr/lib/uml/modules").is_dir();
    if !modules {
        eprintln!("skipped: the modules of user-mode-linux are not installed");
    }
    modules
}

/// Our end of the tunnel to `far`, with the outer and inner addresses of COMMON.
fn near(keys: &str, ike: &str) -> String {
    format!(
        "[gateway]\nlocal = \"192.0.2.1\"\nroute_source = \"10.1.0.1\"\nrekey_grace_s = 2\nstatistics_s = 0\n{keys}\n[gateway.ike]\n{ike}\n[[gateway.tunnel]]\nname = \"far\"\npeer = \"192.0.2.2\"\nsecret_file = \"psk\"\nlocal_networks = \"10.1.0.0/24\"\nremote_networks = \"10.2.0.0/24\"\n"
    )
}

/// Functions of the scripts in the guest.
const GUEST: &str = r#"
# Packets that leave the interface: ESP in UDP, IKE, and those that must not be seen.
cat > wire.py <<END
import os, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
wire.bind(("va", 0)); wire.settimeout(0.1)
print("ready", flush=True)
counts = {"esp": 0, "ike": 0, "clear": 0}
last = b""
while not os.path.exists(sys.argv[1] + ".end"):
    try: data, about = wire.recvfrom(2000)
    except TimeoutError: continue
    if about[2] != socket.PACKET_OUTGOING or about[1] != 0x800: continue
    payload = data[28:]
    if data[16] == 10 or data[12] == 10: counts["clear"] += 1
    # ICMP errors about a closed port.
    elif data[9] != 17: continue
    # At port 500 IKE has no marker.
    elif payload[:4] == bytes(4) or b"\x01\xf4" in (data[20:22], data[22:24]): counts["ike"] += 1
    elif len(payload) > 8: counts["esp"] += 1; last = data
if last: print("the last packet of ESP:", last.hex(), flush=True)
print(sys.argv[1], counts["esp"], "esp", counts["clear"], "clear", flush=True)
END
wire() { python3 wire.py $1 > $1.wire & wire=$!; jobs_of_test="$jobs_of_test $!"; await $1.wire ready; }
wire_end() { sleep 0.2; touch $1.end; wait $wire; tail -n 2 $1.wire; }
# Datagrams that the other end sends back.
cat > echo.py <<END
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(("10.2.0.1", 7000)); print("ready", flush=True)
while True:
    data, peer = one.recvfrom(3000); one.sendto(data, peer)
END
cat > ask.py <<END
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.settimeout(3); one.bind(("10.1.0.1", 7001))
got = 0
for size in [1, 160, 1200, 2900] * 10:
    one.sendto(bytes(size), ("10.2.0.1", 7000)); got += len(one.recv(3000)) == size
print("datagrams:", got, "of 40")
END
# Packets of the associations of the network, by direction and state.
seen() { $2 ip -s xfrm state > $1.states; grep -A3 "lifetime current" $1.states | grep -o "[0-9]*(packets)" | tr '\n' ' ' | sed "s/^/$1: /"; echo; }
left() { echo "$1: $(ip xfrm state | grep -c "^src") states $(ip xfrm policy | grep -c "tmpl") policies"; }
"#;

/// Traffic, new keys by the peer, a killed process; then new keys by this end, a tunnel that is down, the end.
const STOCK: &str = r#"
"$HORNWORK" check -c near.toml | grep "data path"
ip route add default via 192.0.2.2
charon far "$far_in"
vici="--uri unix://$PWD/far.d/vici"
gateway near ""
await near.log gateway_tunnel_up
$far_in python3 echo.py > echo.log & jobs_of_test="$jobs_of_test $!"; await echo.log ready
wire traffic
ping -c 40 -i 0.02 -I 10.1.0.1 10.2.0.1 > ping-there.log; loss ping-there.log
$far_in ping -c 40 -i 0.02 -I 10.2.0.1 10.1.0.1 > ping-back.log; loss ping-back.log
python3 ask.py
seen near ""; seen far "$far_in"
ip xfrm state | grep -m 1 -o "aead [^ ]*"
both() {
  ping -c $1 -i 0.02 -I 10.1.0.1 10.2.0.1 > $2.log & one=$!
  $far_in ping -c $1 -i 0.02 -I 10.2.0.1 10.1.0.1 > $2-back.log & two=$!
}
both_end() { wait $one || true; wait $two || true; loss $1.log; loss $1-back.log; }
both 250 ping-rekey
for n in 1 2; do sleep 1; swanctl --rekey --child net $vici > rekey.log 2>&1; done
both_end ping-rekey
wire_end traffic
echo "rekeyed by the peer: $(grep -c gateway_rekeyed near.log)"
# A killed process: nothing leaves in the clear, and the next one begins with an empty kernel.
daemon=$(pgrep -P $near_pid)
kill -KILL $near_pid; wait $near_pid 2>/dev/null || true
left killed
wire orphaned; ping -c 10 -i 0.02 -W 1 -I 10.1.0.1 10.2.0.1 > ping-orphaned.log || true; wire_end orphaned
for n in $(seq 1500); do [ -e /proc/$daemon ] || break; sleep 0.02; done
cp near.log near-first.log; sed -i "s/^rekey_s = .*/rekey_s = 5/" near.toml
gateway near ""
grep -o "removed .* of an earlier run" near.log
await near.log gateway_tunnel_up
both 300 ping-own; both_end ping-own
echo "rekeyed by this end: $(grep -c gateway_rekeyed near.log)"
# The peer deletes its keys, and refuses new ones: packets end at the device.
touch none.conf; swanctl --load-conns --file none.conf $vici > none.log 2>&1
swanctl --terminate --ike t $vici > terminate.log 2>&1
await near.log gateway_tunnel_down
wire down; ping -c 10 -i 0.02 -W 1 -I 10.1.0.1 10.2.0.1 > ping-down.log || true; wire_end down
loss ping-down.log
kill -TERM $near_pid; wait $near_pid
left ended
cat near-first.log near.log
"#;

/// The numbers of a line of the output.
fn numbers(said: &str, line: &str) -> Vec<u64> {
    let found = said.lines().find_map(|one| one.strip_prefix(line));
    let found = found.unwrap_or_else(|| panic!("{line}: {said}"));
    let words = found.split(|letter: char| !letter.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The functions of the scripts, with a strongSwan whose packets the kernel carries.
fn functions() -> String {
    let common = COMMON.replace("socket-default kernel-libipsec", "socket-default");
    assert_ne!(common, COMMON);
    format!("{LOSS}{common}{GUEST}")
}

#[test]
fn the_kernel_carries_packets_to_a_stock_peer() {
    if !has_guest() {
        return;
    }
    let case = NetworkCase::new("gateway-kernel-stock", String::new(), &[]);
    case.write("psk", &format!("{SECRET}\n"));
    case.write(
        "near.toml",
        &near("data_path = \"kernel\"", "rekey_s = 3600"),
    );
    case.write("far.conf", &far("aes128gcm16-x25519", 3_600));
    let Some(said) = run_guest(&case, &format!("{}{STOCK}", functions())) else {
        return;
    };
    assert!(said.contains("data path: the kernel (XFRM)"), "{said}");
    assert!(said.contains("data_path=kernel"), "{said}");
    for (log, packets) in [
        ("ping-there.log", 40),
        ("ping-back.log", 40),
        ("ping-rekey.log", 250),
        ("ping-rekey-back.log", 250),
        ("ping-own.log", 300),
        ("ping-own-back.log", 300),
    ] {
        lossless(&said, log, packets);
    }
    assert!(said.contains("datagrams: 40 of 40"), "{said}");
    assert!(said.contains("aead rfc4106(gcm(aes))"), "{said}");
    for by in ["rekeyed by the peer: ", "rekeyed by this end: "] {
        assert!(numbers(&said, by)[0] >= 1, "{by}: {said}");
    }
    // As many packets at the stock kernel as at ours, each way: pings with answers, and datagrams of which some are
    // several.
    let [mut ours, mut theirs] = ["near: ", "far: "].map(|line| numbers(&said, line));
    ours.sort_unstable();
    theirs.sort_unstable();
    assert!(
        ours == theirs && ours.len() == 2 && ours[0] >= 120,
        "{said}"
    );
    let [esp, clear] = numbers(&said, "traffic ")[..] else {
        panic!("{said}");
    };
    assert!(esp > 200 && clear == 0, "{said}");
    let killed = numbers(&said, "killed: ");
    assert!(killed[0] >= 2 && killed[1] == 3, "{said}");
    assert_eq!(numbers(&said, "orphaned "), [10, 0], "{said}");
    assert!(said.contains("policies of an earlier run"), "{said}");
    assert_eq!(numbers(&said, "down "), [0, 0], "{said}");
    let nothing = "ping-down.log: 10 packets transmitted, 0 received";
    assert!(said.contains(nothing), "{said}");
    assert!(said.contains("esp_no_association=10"), "{said}");
    assert_eq!(numbers(&said, "ended: "), [0, 0], "{said}");
    let statistics = said
        .lines()
        .rfind(|line| line.contains("gateway_statistics"));
    let statistics = statistics.unwrap_or_else(|| panic!("{said}"));
    assert!(statistics.contains("sealed=600 opened=600"), "{statistics}");
}

/// Our user space at the other end, by IPv6, with another suite; both ends renew keys.
const OURS: &str = r#"
"$HORNWORK" check -c near.toml | grep "data path"
ip addr add 2001:db8::1/64 dev va nodad; $far_in ip addr add 2001:db8::2/64 dev vb nodad
ip addr add fd01::1/64 dev lo; $far_in ip addr add fd02::1/64 dev lo
# A policy of an earlier run of the other end, which has another path now.
$far_in ip xfrm policy add src 10.2.0.0/24 dst 10.1.0.0/24 dir out tmpl src 2001:db8::2 dst 2001:db8::1 proto esp reqid $((0x48570000)) mode tunnel
gateway far "$far_in"
gateway near ""
await near.log gateway_tunnel_up
await far.log gateway_tunnel_up
ping -c 300 -i 0.02 -I 10.1.0.1 10.2.0.1 > ping-v4.log & one=$!
$far_in ping -c 300 -i 0.02 -I fd02::1 fd01::1 > ping-v6.log & two=$!
wait $one || true; wait $two || true; loss ping-v4.log; loss ping-v6.log
# A host behind this end: its packets are forwarded both ways, and long ones are answered by ICMP.
site lan
ip link add la type veth peer name lb netns $lan
ip link set la up; ip route add 10.1.0.9 dev la; echo 1 > /proc/sys/net/ipv4/ip_forward
$lan_in sh -c "ip addr add 10.1.0.9/24 dev lb; ip link set lb up; ip route add default via 10.1.0.1"
$lan_in ping -c 50 -i 0.02 10.2.0.1 > ping-lan.log || true; loss ping-lan.log
$far_in ping -c 50 -i 0.02 -I 10.2.0.1 10.1.0.9 > ping-to-lan.log || true; loss ping-to-lan.log
$lan_in ping -c 1 -W 2 -M do -s 1450 10.2.0.1 | grep -o "Frag needed and DF set" || true
ip xfrm state | grep -m 1 -o "enc cbc(aes)"
ip xfrm state | grep -m 1 -o "auth-trunc hmac(sha256)"
kill -TERM $near_pid; wait $near_pid
kill -TERM $far_pid; wait $far_pid
left ended
cat near.log far.log
"#;

#[test]
fn the_kernel_carries_packets_to_our_user_space() {
    if !has_guest() {
        return;
    }
    let case = NetworkCase::new("gateway-kernel-ours", String::new(), &[]);
    case.write("psk", &format!("{SECRET}\n"));
    let both = |text: String| {
        let text = text.replace("192.0.2.", "2001:db8::");
        let text = text.replace("\"10.1.0.0/24\"", "[\"10.1.0.0/24\", \"fd01::/64\"]");
        let text = text.replace("\"10.2.0.0/24\"", "[\"10.2.0.0/24\", \"fd02::/64\"]");
        text.replace("\"10.1.0.1\"", "[\"10.1.0.1\", \"fd01::1\"]")
    };
    let proposal = "esp_proposals = \"aes128-sha256\"";
    let here = both(near(
        "data_path = \"kernel\"",
        &format!("{proposal}\nrekey_s = 5"),
    ));
    let there = both(near("data_path = \"user\"", proposal));
    let there = there
        .replace("local = \"2001:db8::1\"", "local = \"2001:db8::2\"")
        .replace(
            "peer = \"2001:db8::2\"",
            "peer = \"2001:db8::1\"\ninitiate = false",
        )
        .replace("10.1.0.1", "10.2.0.1")
        .replace("fd01::1\"", "fd02::1\"")
        .replace("local_networks", "other_networks")
        .replace("remote_networks", "local_networks")
        .replace("other_networks", "remote_networks");
    case.write("near.toml", &here);
    case.write("far.toml", &there);
    let Some(said) = run_guest(&case, &format!("{}{OURS}", functions())) else {
        return;
    };
    lossless(&said, "ping-v4.log", 300);
    lossless(&said, "ping-v6.log", 300);
    lossless(&said, "ping-lan.log", 50);
    lossless(&said, "ping-to-lan.log", 50);
    assert!(said.contains("Frag needed and DF set"), "{said}");
    assert!(said.contains("enc cbc(aes)"), "{said}");
    assert!(said.contains("auth-trunc hmac(sha256)"), "{said}");
    assert!(said.contains("gateway_rekeyed"), "{said}");
    assert!(said.contains("data_path=user"), "{said}");
    assert!(
        said.contains("removed 0 associations and 1 policies"),
        "{said}"
    );
    // Each packet that one end has sealed was opened by the other: pings with answers, and those of the host behind.
    let counted = said.matches("sealed=700 opened=700").count();
    assert_eq!(counted, 2, "{said}");
    assert_eq!(numbers(&said, "ended: "), [0, 0], "{said}");
}

/// Where the kernel of this machine has no ESP, `auto` is the user space, and `kernel` is refused with the reason;
/// where it has, both are the kernel.
#[test]
fn a_kernel_without_esp_is_refused() {
    if !able() {
        return;
    }
    let case = NetworkCase::new("gateway-kernel-refused", COMMON.to_owned(), &[]);
    case.write("psk", &format!("{SECRET}\n"));
    case.write("auto.toml", &near("", ""));
    case.write("kernel.toml", &near("data_path = \"kernel\"", ""));
    let said = case.run(
        r#"
"$HORNWORK" check -c auto.toml | grep "data path"
"$HORNWORK" check -c kernel.toml > check.log 2>&1 && echo "check 0" || echo "check $?"
timeout -s INT 5 "$HORNWORK" run --role gateway -c kernel.toml > run.log 2>&1 && echo "run 0" || echo "run $?"
grep -h "data_path = " check.log run.log || true
"#,
    );
    if said.contains("data path: the kernel (XFRM)") {
        assert!(said.contains("check 0"), "{said}");
        return;
    }
    assert!(
        said.contains("data path: user space (the kernel has no"),
        "{said}"
    );
    assert!(said.contains("check 3\nrun 3\n"), "{said}");
    let refused = "[gateway] data_path = \"kernel\": the kernel has no";
    assert_eq!(said.matches(refused).count(), 2, "{said}");
}
