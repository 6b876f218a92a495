//! The gateway's key exchange with a stock strongSwan over other paths: IPv6 outside with both families inside, and a
//! NAT before our end; and with another gateway of ours, or a peer that begins early. Keys change under traffic.
//! Skipped without the rights.

use crate::common::installed;
use crate::common::pings::lossless;
use crate::gateway_ike::{PEER, able, case, check_statistics, far, near};

/// Both families inside of IPv6, both ways, while this end renews keys.
const IPV6: &str = r#"
ip addr add 2001:db8::1/64 dev va nodad; $far_in ip addr add 2001:db8::2/64 dev vb nodad
ip addr add fd01::1/64 dev lo nodad; $far_in ip addr add fd02::1/64 dev lo nodad
charon far "$far_in"
gateway near ""
await near.log gateway_tunnel_up
ping -c 500 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-v4.log & v4=$!
$far_in ping -c 40 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-v4-back.log; loss ping-v4-back.log
ping -c 500 -i 0.01 -I fd01::1 fd02::1 > ping-v6.log & v6=$!
$far_in ping -c 500 -i 0.01 -I fd02::1 fd01::1 > ping-v6-back.log || true
wait $v4 || true; wait $v6 || true
loss ping-v4.log; loss ping-v6.log; loss ping-v6-back.log
# Fragments outside: inner packets of 1,280 bytes pass any path of IPv6. The first ones tell both ends about the path.
ip link set va mtu 1280; $far_in ip link set vb mtu 1280
ping -q -c 2 -i 0.4 -W 1 -s 1232 -I fd01::1 fd02::1 >/dev/null || true
ping -c 5 -i 0.01 -s 1232 -I fd01::1 fd02::1 > ping-long.log || true; loss ping-long.log
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null
kill -TERM $near_pid; wait $near_pid
"#;

#[test]
fn tunnels_by_ipv6_carry_both_families() {
    if !able() {
        return;
    }
    let case = case("ipv6");
    let both = |text: String| {
        let text = text.replace("192.0.2.", "2001:db8::");
        let text = text.replace("\"10.1.0.0/24\"", "[\"10.1.0.0/24\", \"fd01::/64\"]");
        let text = text.replace("\"10.2.0.0/24\"", "[\"10.2.0.0/24\", \"fd02::/64\"]");
        text.replace("\"10.1.0.1\"", "[\"10.1.0.1\", \"fd01::1\"]")
    };
    case.write("near.toml", &both(near("rekey_s = 5", PEER)));
    let theirs = far("aes128gcm16", 3_600)
        .replace("192.0.2.", "2001:db8::")
        .replace("ts = 10.1.0.0/24", "ts = 10.1.0.0/24,fd01::/64")
        .replace("ts = 10.2.0.0/24", "ts = 10.2.0.0/24,fd02::/64");
    case.write("far.conf", &theirs);
    let said = case.run(IPV6);
    for (log, packets) in [
        ("ping-v4.log", 500),
        ("ping-v4-back.log", 40),
        ("ping-v6.log", 500),
        ("ping-v6-back.log", 500),
        ("ping-long.log", 5),
    ] {
        lossless(&said, log, packets);
    }
    assert!(said.contains("gateway_rekeyed"), "{said}");
    assert!(said.contains("peer=[2001:db8::2]:4500"), "{said}");
    assert!(said.contains("@ 2001:db8::1[4500]"), "{said}");
    assert!(said.contains("remote 10.1.0.0/24 fd01::/64"), "{said}");
    check_statistics(&case);
}

/// This network becomes a NAT, with our end behind it, which forgets flows after 2 s. The peer renews keys under
/// traffic; then the tunnel is idle, and the peer sends first.
const BEHIND: &str = r#"
ip addr del 10.1.0.1/24 dev lo
site home
ip link add to-home type veth peer name eth0 netns $home
ip addr add 172.16.0.1/24 dev to-home; ip link set to-home up
$home_in sh -c "ip addr add 172.16.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 172.16.0.1; ip addr add 10.1.0.1/24 dev lo"
echo 1 > /proc/sys/net/ipv4/ip_forward
nft -f - <<END
table ip nat {
  chain pre {
    type nat hook prerouting priority -100
    $FORWARDED
  }
  chain post {
    type nat hook postrouting priority 100
    oifname "va" masquerade random
  }
}
END
for timer in udp_timeout udp_timeout_stream; do echo 2 > /proc/sys/net/netfilter/nf_conntrack_$timer; done
if [ -n "$FORWARDED" ]; then gateway near "$home_in"; charon far "$far_in"; else charon far "$far_in"; gateway near "$home_in"; fi
await near.log gateway_tunnel_up
$home_in ping -c 40 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-there.log; loss ping-there.log
$far_in ping -c 40 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-back.log; loss ping-back.log
$home_in ping -c 250 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-rekey.log & one=$!
$far_in ping -c 250 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-rekey-back.log & two=$!
sleep 1; swanctl --rekey --child net --uri unix://$PWD/far.d/vici > rekey.log 2>&1
wait $one || true; wait $two || true; loss ping-rekey.log; loss ping-rekey-back.log
sleep 4
$far_in ping -c 20 -i 0.01 -W 1 -I 10.2.0.1 10.1.0.1 > ping-idle.log || true; loss ping-idle.log
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null
kill -TERM $near_pid; wait $near_pid
"#;

/// Our end behind a NAT begins the exchange, and answers at ports that the NAT forwards. Keep-alives hold the path
/// open.
#[test]
fn our_end_may_be_behind_a_nat() {
    if !able() || !installed(&["nft"]) {
        return;
    }
    for (name, forwarded, tunnel, theirs) in [
        ("begins", "", PEER.to_owned(), ""),
        (
            "answers",
            "iifname \"va\" udp dport { 500, 4500 } dnat to 172.16.0.2",
            format!("{PEER}\ninitiate = false"),
            "start_action = start\n    ",
        ),
    ] {
        let case = case(&format!("behind-nat-{name}"));
        let text = near("local_id = \"near.example\"", &tunnel)
            .replace("local = \"192.0.2.1\"", "local = \"172.16.0.2\"")
            .replace("rekey_grace_s", "keep_alive_s = 1\nrekey_grace_s");
        case.write("near.toml", &text);
        let conf = far("aes128gcm16", 3_600)
            .replace("rand_time", &format!("{theirs}rand_time"))
            .replace(
                "remote { auth = psk }",
                "remote { auth = psk\n    id = near.example }",
            );
        // Where our end begins, its address is that of the NAT, which the peer need not know.
        let conf = match forwarded.is_empty() {
            true => conf.replace("remote_addrs = 192.0.2.1", "remote_addrs = %any"),
            false => conf,
        };
        case.write("far.conf", &conf);
        let said = case.run(&format!("FORWARDED='{forwarded}'{BEHIND}"));
        for (log, packets) in [
            ("ping-there.log", 40),
            ("ping-back.log", 40),
            ("ping-rekey.log", 250),
            ("ping-rekey-back.log", 250),
            ("ping-idle.log", 20),
        ] {
            lossless(&said, log, packets);
        }
        assert!(said.contains("gateway_rekeyed"), "{name}: {said}");
        let remote = said
            .lines()
            .find(|line| line.contains("remote 'near.example' @ 192.0.2.1["));
        let remote = remote.unwrap_or_else(|| panic!("{name}: {said}"));
        // The peer sees the port of the NAT.
        let changed = !remote.contains("[4500]");
        assert_eq!(changed, forwarded.is_empty(), "{name}: {remote}");
        check_statistics(&case);
    }
}

/// Two gateways of ours start together, and both initiate. The number of IKE associations is that of those deleted at
/// the end.
const TWO: &str = r#"
export RUST_LOG=debug
"$HORNWORK" run --role gateway -c near.toml > near.log 2>&1 & near_pid=$!
$far_in "$HORNWORK" run --role gateway -c far.toml > far.log 2>&1 & far_pid=$!
jobs_of_test="$jobs_of_test $near_pid $far_pid"
await near.log gateway_tunnel_up; await far.log gateway_tunnel_up
ping -c 2000 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-there.log & one=$!
$far_in ping -c 2000 -i 0.01 -I 10.2.0.1 10.1.0.1 > ping-back.log & two=$!
wait $one || true; wait $two || true; loss ping-there.log; loss ping-back.log
echo "far rekeyed: $(grep -c gateway_rekeyed far.log)"
before=$(grep -c "charon: deleting IKE_SA" near.log || true)
kill -TERM $near_pid; wait $near_pid
echo "associations at the end: $(( $(grep -c "charon: deleting IKE_SA" near.log) - before ))"
kill -TERM $far_pid; wait $far_pid
"#;

/// Whether the two set-ups cross depends on the machine; then one of two associations is deleted under traffic, after
/// the keys of both have changed.
#[test]
fn two_gateways_that_initiate_keep_one_association() {
    if !able() {
        return;
    }
    let case = case("two");
    case.write("near.toml", &near("rekey_s = 5", PEER));
    case.write("far.toml", &other_end("rekey_s = 5", ""));
    let said = case.run(TWO);
    lossless(&said, "ping-there.log", 2_000);
    lossless(&said, "ping-back.log", 2_000);
    assert!(said.contains("associations at the end: 1\n"), "{said}");
    assert!(!said.contains("far rekeyed: 0\n"), "{said}");
    for log in ["near.log", "far.log"] {
        let text = case.read(log);
        let failed = text
            .lines()
            .find(|line| line.contains("gateway_ike_failed"));
        assert_eq!(failed, None, "{log}");
    }
    check_statistics(&case);
}

/// The other end of `near`, which is ours, too.
fn other_end(ike: &str, tunnel: &str) -> String {
    let tunnel = format!("peer = \"192.0.2.1\"\nsecret_file = \"psk\"\n{tunnel}");
    // Addresses of both ends are exchanged by way of a mark.
    near(ike, &tunnel)
        .replace("local = \"192.0.2.1\"", "local = \"192.0.2.2\"")
        .replace("10.1.0.", "10.*.0.")
        .replace("10.2.0.", "10.1.0.")
        .replace("10.*.0.", "10.2.0.")
}

/// A peer begins an exchange every 2 ms, from before the start of our end on. It prints the numbers of answers and of
/// those with NO_PROPOSAL_CHOSEN alone.
const EARLY: &str = r#"
cat > begin.py <<END
import os, socket, struct, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(("192.0.2.1", 500)); one.setblocking(False)
def transform(more, kind, number, attribute=b""):
    return struct.pack(">BBHBBH", 3 if more else 0, 0, 8 + len(attribute), kind, 0, number) + attribute
transforms = (transform(True, 1, 12, struct.pack(">HH", 0x800e, 128)) + transform(True, 2, 5)
    + transform(True, 3, 12) + transform(False, 4, 31))
proposal = struct.pack(">BBHBBBB", 0, 0, 8 + len(transforms), 1, 1, 0, 4) + transforms
def payload(following, body): return struct.pack(">BBH", following, 0, 4 + len(body)) + body
def first():
    body = payload(34, proposal) + payload(40, struct.pack(">HH", 31, 0) + os.urandom(32)) + payload(0, os.urandom(32))
    return b"\x01" + os.urandom(7) + bytes(8) + struct.pack(">BBBBII", 33, 0x20, 34, 0x08, 0, 28 + len(body)) + body
answers = refused = 0
end = None
print("begins", flush=True)
while end is None or time.monotonic() < end:
    if end is None and os.path.exists("started"): end = time.monotonic() + 0.5
    try: one.sendto(first(), ("192.0.2.2", 500))
    except OSError: pass
    time.sleep(0.002)
    while True:
        try: answer = one.recv(2000)
        except OSError: break
        answers += 1
        refused += len(answer) == 36 and answer[34:36] == b"\x00\x0e"
print("answers", answers > 0, "refused", refused, flush=True)
END
python3 begin.py > begin.log 2>&1 & begin=$!
jobs_of_test="$jobs_of_test $begin"
await begin.log begins
gateway far "$far_in"; touch started
wait $begin; cat begin.log
kill -TERM $far_pid; wait $far_pid
"#;

/// A peer takes NO_PROPOSAL_CHOSEN as final: it is not sent while the daemon has no connections yet.
#[test]
fn a_peer_that_begins_early_is_not_refused() {
    if !able() || !installed(&["python3"]) {
        return;
    }
    let case = case("early");
    let proposals = "ike_proposals = \"aes128-sha256-x25519\"";
    case.write("far.toml", &other_end(proposals, "initiate = false"));
    let said = case.run(EARLY);
    let log = case.read("far.log");
    assert!(said.contains("answers True refused 0"), "{said}\n{log}");
    assert!(!log.contains("NO_PROPOSAL_CHOSEN"), "{log}");
}
