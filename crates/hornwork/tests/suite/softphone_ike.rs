//! `hornwork phone --ike` between two network namespaces: two of our phones, and our phone with a stock strongSwan that
//! has its own data path (kernel-libipsec) and a phone in the clear behind it. Keys change under traffic; a peer
//! restarts; wrong settings and missing parts are named. A capture of the wire is read by tshark. Skipped without the
//! rights.

use crate::common::certificates::Authority;
use crate::common::installed;
use crate::common::network_case::NetworkCase;
use crate::common::phones::{correlation_of, voice};
use crate::gateway_ike::{COMMON, SECRET, able, far};
use crate::softphone::{MIN_CORRELATION, json, recorded};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

/// Functions of the scripts: a capture of the wire, a phone that answers, a phone that calls.
const PHONES: &str = r#"
capture() {
  tshark -q -i va -w wire.pcapng >tshark.log 2>&1 & capture=$!; jobs_of_test="$jobs_of_test $!"
  await tshark.log "Capturing on"; for n in $(seq 1500); do [ -s wire.pcapng ] && break; sleep 0.02; done
}
# The capture is complete when it has the last packet.
captured() {
  bash -c "echo the-end >/dev/udp/192.0.2.2/9" || true
  for n in $(seq 1500); do grep -q the-end wire.pcapng && break; sleep 0.02; done
  kill -INT $capture; wait $capture || true
}
# A phone that answers, in the network $1, with further arguments; its log has the line $2.
answer() {
  in=$1; line=$2; shift 2
  $in timeout 90 "$HORNWORK" phone answer "$@" --wait 30 --codec pcma --wav-in callee.wav --loop --wav-out callee-heard.wav --json callee.json </dev/null >answer.log 2>&1 &
  answer=$!; jobs_of_test="$jobs_of_test $!"
  await answer.log "$line"
}
# A phone that calls, in the network $1.
call() {
  in=$1; shift
  $in timeout 90 "$HORNWORK" phone call "$@" --codec pcma --wav-in caller.wav --loop --wav-out caller-heard.wav --json caller.json </dev/null >call.log 2>&1 || { code=$?; cat call.log answer.log; exit $code; }
}
# An expected exit status and text.
expect() { code=$1; text=$2; shift 2; said=$("$@" 2>&1 </dev/null) && got=0 || got=$?; [ $got = $code ] || { echo "$got: $said"; exit 1; }; echo "$said" | grep -q -- "$text" || { echo "no $text: $said"; exit 1; }; }
"#;

/// A case with audio for both phones, whose output has their logs.
fn case(name: &str) -> NetworkCase {
    let functions = format!("{COMMON}{PHONES}");
    let case = NetworkCase::new(
        &format!("softphone-ike-{name}"),
        functions,
        &["call.log", "answer.log"],
    );
    case.write("psk", &format!("{SECRET}\n"));
    voice(&case.folder, "caller.wav", codec::speech::speech());
    voice(&case.folder, "callee.wav", codec::speech::answer());
    case
}

/// Packets of the wire that a filter of tshark shows.
fn count(case: &NetworkCase, filter: &str) -> usize {
    let output = Command::new("tshark")
        .args(["-r", "wire.pcapng", "-o", "rtp.heuristic_rtp:TRUE"])
        .args(["--enable-heuristic", "rtp_udp", "-Y", filter])
        .current_dir(&case.folder)
        .output()
        .expect("tshark");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// On the wire is nothing of the call but ESP in UDP, and the key exchange.
fn check_wire(case: &NetworkCase, least: usize) {
    let esp = count(case, "esp && udp.port == 4500");
    assert!(esp > least, "{esp} ESP packets");
    assert!(count(case, "isakmp") >= 4);
    for clear in ["sip", "rtp", "udp.port == 5060", "ip.addr == 10.0.0.0/8"] {
        assert_eq!(count(case, clear), 0, "{clear}");
    }
    let other =
        "udp && !(udp.port == 4500) && !(udp.port == 500) && !(udp.port == 9) && !icmp && !mdns";
    assert_eq!(count(case, other), 0, "{other}");
}

fn number(figures: &Value, pointer: &str) -> u64 {
    figures
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{pointer}: {figures:#}"))
}

/// A call with audio and without a lost packet.
fn good(figures: &Value, packets: u64, said: &str) {
    assert_eq!(figures["established"], true, "{said}");
    assert!(number(figures, "/received") > packets, "{figures:#}");
    assert_eq!(number(figures, "/lost"), 0, "{figures:#}\n{said}");
    assert!(figures["mos"].as_f64() > Some(4.0), "{figures:#}");
}

/// Keys of IKEv2 with `rekeyed` changes at least, and no packet that was dropped.
fn negotiated(figures: &Value, suite: &str, rekeyed: u64, said: &str) {
    assert_eq!(figures["protection"], "esp-tunnel", "{said}");
    assert_eq!(figures["esp"]["keys"], "IKEv2");
    assert_eq!(figures["esp"]["suite"], suite);
    assert!(number(figures, "/esp/rekeyed") >= rekeyed, "{figures:#}");
    assert_eq!(number(figures, "/esp/dropped"), 0, "{figures:#}\n{said}");
    assert_eq!(number(figures, "/esp/ike_overruns"), 0, "{figures:#}");
}

/// Two of our phones: new keys of the caller's choice, then of both.
const OURS: &str = r#"
capture
answer "$far_in" "waiting for the peer" --ike far.toml
call "" sip:600@192.0.2.2 --ike near.toml --seconds 14
wait $answer
captured
"#;

#[test]
fn two_phones_change_keys_in_a_call_without_a_lost_packet() {
    if !able() || !installed(&["tshark"]) {
        return;
    }
    for (name, proposal, suite, theirs) in [
        ("gcm", "aes128gcm16-x25519", "AES-GCM-16", 3_600),
        (
            "cbc-both",
            "aes256-sha256-ecp256",
            "AES-CBC, HMAC-SHA2-256-128",
            5,
        ),
    ] {
        let case = case(name);
        case.write(
            "near.toml",
            &format!("peer = \"192.0.2.2\"\nsecret_file = \"psk\"\n[ike]\nrekey_s = 5\nesp_proposals = \"{proposal}\"\n"),
        );
        // The peer of any address has an identity: here it is its address.
        case.write(
            "far.toml",
            &format!("local = \"192.0.2.2\"\npeer = \"any\"\nremote_id = \"192.0.2.1\"\nsecret_file = \"psk\"\n[ike]\nrekey_s = {theirs}\n"),
        );
        let said = case.run(OURS);
        let [caller, callee] = ["caller.json", "callee.json"].map(|file| json(&case.folder, file));
        for figures in [&caller, &callee] {
            good(figures, 600, &said);
            negotiated(figures, &suite_name(&caller, suite), 2, &said);
        }
        for (file, audio) in [
            ("caller-heard.wav", codec::speech::answer()),
            ("callee-heard.wav", codec::speech::speech()),
        ] {
            let correlation = correlation_of(&recorded(&case.folder, file).0, audio);
            assert!(
                correlation > MIN_CORRELATION,
                "{file}: {correlation}: {said}"
            );
        }
        assert!(said.contains("IKEv2: tunnel to 192.0.2.1:4500"), "{said}");
        check_wire(&case, 1_200);
        assert!(!said.contains(SECRET), "{said}");
    }
}

/// The name of the algorithms, which both ends report in the same words.
fn suite_name(figures: &Value, words: &str) -> String {
    let name = figures["esp"]["suite"].as_str().unwrap_or_default();
    for word in words.split(", ") {
        assert!(name.contains(word), "{name}: {words}");
    }
    name.to_owned()
}

/// A stock strongSwan with a phone in the clear behind it: our phone begins, then strongSwan does.
const STOCK: &str = r#"
charon far "$far_in"
capture
answer "$far_in" "waiting for a call" --local 10.2.0.1:5060
call "" sip:600@10.2.0.1 --local 10.1.0.1 --ike near.toml --seconds 12
wait $answer
captured
cp caller.json first.json; cp answer.log first-answer.log; cp wire.pcapng first.pcapng
# Our phone waits, at port 500 too.
answer "" "waiting for the peer" --local 10.1.0.1:5060 --ike wait.toml
swanctl --initiate --child net --timeout 10 --uri unix://$PWD/far.d/vici >initiate.log 2>&1 || { cat initiate.log answer.log; exit 1; }
await answer.log "waiting for a call"
call "$far_in" sip:600@10.1.0.1 --local 10.2.0.1:5070 --seconds 3
wait $answer
# Our ends have deleted their associations at the peer.
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null > far.sas; wc -c far.sas
"#;

#[test]
fn a_phone_behind_a_stock_strongswan_is_called() {
    if !able() || !installed(&["tshark"]) {
        return;
    }
    let case = case("stock");
    let ends = "local = \"192.0.2.1\"\npeer = \"192.0.2.2\"\nremote_networks = \"10.2.0.0/24\"\nsecret_file = \"psk\"\n";
    case.write("near.toml", &format!("{ends}[ike]\nrekey_s = 6\n"));
    case.write("wait.toml", ends);
    case.write("far.conf", &far("aes128gcm16-x25519", 5));
    let said = case.run(STOCK);
    let first = json(&case.folder, "first.json");
    good(&first, 500, &said);
    negotiated(&first, "AES-GCM-16", 2, &said);
    check_wire(&case, 1_000);
    let answered = json(&case.folder, "callee.json");
    good(&answered, 100, &said);
    negotiated(&answered, "AES-GCM-16", 0, &said);
    assert!(
        said.contains("\n0 far.sas") || said.starts_with("0 far.sas"),
        "{said}"
    );
}

/// SIP over TCP and TLS: the kernel's connections are in a TUN device of our phone, the phone behind strongSwan is in
/// the clear. Keys change in each call. Then our phone waits for the peer and for a call.
const STREAMS: &str = r#"
# Our address of the inside exists in the tunnel only.
ip addr del 10.1.0.1/24 dev lo
opened() { $far_in cat /proc/net/snmp | awk '/^Tcp:/ { count = $7 } END { print count }'; }
charon far "$far_in"
capture
for transport in tcp tls; do
  case $transport in tls) own="--certificate far.pem --key far.key"; ca="--ca authority.pem" ;; *) own=""; ca="" ;; esac
  answer "$far_in" "waiting for a call" --transport $transport --local 10.2.0.1 $own
  call "" "sip:600@10.2.0.1;transport=$transport" --local 10.1.0.1 --ike near.toml $ca --seconds 10
  wait $answer
  cp caller.json caller-$transport.json; cp callee.json callee-$transport.json
  echo "$transport: $(opened) connections"
done
answer "" "waiting for the peer" --transport tcp --local 10.1.0.1:5060 --ike wait.toml
swanctl --initiate --child net --timeout 10 --uri unix://$PWD/far.d/vici >initiate.log 2>&1 || { cat initiate.log answer.log; exit 1; }
await answer.log "waiting for a call"
# Its listener and its media sockets are bound to the device, so that nothing leaves beside the tunnel.
ss -Hltun > sockets; echo "bound: $(grep -c "%hwp" sockets) of $(grep -c "10.1.0.1" sockets)"
call "$far_in" "sip:600@10.1.0.1;transport=tcp" --local 10.2.0.1:5070 --seconds 3
wait $answer
captured
swanctl --list-sas --uri unix://$PWD/far.d/vici 2>/dev/null > far.sas; wc -c far.sas
ip link show | grep -c hwp || true
"#;

/// Figures of a phone above a TUN device: the kernel's own packets of IPv6 are for no tunnel.
fn above_device(mut figures: Value) -> Value {
    let drops = figures["esp"]["drops"].as_object().expect("drops");
    let mut reasons = drops.keys();
    assert!(
        reasons.all(|reason| reason == "esp_selector"),
        "{figures:#}"
    );
    figures["esp"]["dropped"] = 0.into();
    figures
}

#[test]
fn connections_inside_of_a_stock_strongswan_outlast_new_keys() {
    if !able() || !installed(&["tshark", "ss", "awk"]) {
        return;
    }
    let case = case("streams");
    let authority = Authority::new(&case.folder, "authority");
    authority.issue_address("far", [10, 2, 0, 1].into());
    let ends = "local = \"192.0.2.1\"\npeer = \"192.0.2.2\"\nremote_networks = \"10.2.0.0/24\"\nsecret_file = \"psk\"\n";
    case.write("near.toml", &format!("{ends}[ike]\nrekey_s = 5\n"));
    case.write("wait.toml", ends);
    case.write("far.conf", &far("aes128gcm16-x25519", 3_600));
    let said = case.run(STREAMS);
    for transport in ["tcp", "tls"] {
        let caller = above_device(json(&case.folder, &format!("caller-{transport}.json")));
        assert_eq!(caller["transport"], transport.to_uppercase(), "{caller:#}");
        good(&caller, 400, &said);
        negotiated(&caller, "AES-GCM-16", 1, &said);
        let callee = json(&case.folder, &format!("callee-{transport}.json"));
        good(&callee, 400, &said);
    }
    // One connection for each call, from INVITE to BYE.
    for count in ["tcp: 1 connections", "tls: 2 connections"] {
        assert!(said.contains(count), "{count}: {said}");
    }
    let answered = above_device(json(&case.folder, "callee.json"));
    good(&answered, 100, &said);
    negotiated(&answered, "AES-GCM-16", 0, &said);
    // TCP, RTP and RTCP at least.
    let bound = said.lines().find_map(|line| line.strip_prefix("bound: "));
    let (bound, all) = bound
        .and_then(|line| line.split_once(" of "))
        .expect("sockets");
    assert!(
        bound == all && bound.parse::<u32>().is_ok_and(|sockets| sockets >= 3),
        "{said}"
    );
    check_wire(&case, 1_500);
    assert_eq!(count(&case, "tcp"), 0);
    let ended = said.lines().any(|line| line == "0 far.sas");
    assert!(ended && said.lines().any(|line| line == "0"), "{said}");
}

/// The peer is killed without a word and started again during a call.
const RESTART: &str = r#"
charon far "$far_in"
answer "$far_in" "waiting for a call" --local 10.2.0.1:5060
call "" sip:600@10.2.0.1 --local 10.1.0.1 --ike near.toml --seconds 50 & calling=$!
await call.log "established"
sleep 2
kill -KILL $far_pid; wait $far_pid 2>/dev/null || true
await call.log "is down" 1700
charon far "$far_in"
for n in $(seq 1000); do [ $(grep -c "IKEv2: tunnel to" call.log) -ge 2 ] && break; sleep 0.02; done
wait $calling
wait $answer || true
"#;

#[test]
fn a_restarted_peer_negotiates_again_during_the_call() {
    if !able() {
        return;
    }
    let case = case("restart");
    case.write("near.toml", "peer = \"192.0.2.2\"\nremote_networks = \"10.2.0.0/24\"\nsecret_file = \"psk\"\n[ike]\ndead_peer_s = 1\n");
    case.write("far.conf", &far("aes128gcm16", 3_600));
    let said = case.run(RESTART);
    let tunnels = case.read("call.log").matches("IKEv2: tunnel to").count();
    assert!(tunnels >= 2, "{said}");
    let figures = json(&case.folder, "caller.json");
    assert!(number(&figures, "/esp/associations") >= 2, "{figures:#}");
    // Before and after the outage of about half a minute.
    assert!(number(&figures, "/received") > 400, "{figures:#}\n{said}");
    assert_eq!(figures["reason"], "ended by this phone", "{said}");
}

/// Failures of the negotiation end the phone.
const REFUSED: &str = r#"
charon far "$far_in"
call="timeout 60 $HORNWORK phone call sip:600@10.2.0.1 --local 10.1.0.1 --json out.json --ike"
expect 3 "received AUTHENTICATION_FAILED" $call secret.toml
expect 3 "compare the secrets" $call secret.toml
expect 3 "received NO_PROPOSAL_CHOSEN" $call ike.toml
expect 3 "NO_PROPOSAL_CHOSEN" $call esp.toml
expect 3 "TS_UNACCEPTABLE" $call networks.toml
kill -KILL $far_pid; wait $far_pid 2>/dev/null || true
expect 3 "IKEv2 with 192.0.2.2: giving up after" $call near.toml
# Ctrl-C of a terminal goes to all processes of the group: the daemon is in another one, and the phone ends in order.
set -m
"$HORNWORK" phone call sip:600@10.2.0.1 --local 10.1.0.1 --ike near.toml </dev/null >ctrl-c.log 2>&1 & interrupted=$!
set +m
await ctrl-c.log negotiating
for n in $(seq 1500); do pgrep -P $interrupted >/dev/null && break; sleep 0.02; done
kill -INT -- -$interrupted
wait $interrupted && code=0 || code=$?
[ $code = 130 ] || { echo "Ctrl-C: $code"; cat ctrl-c.log; exit 1; }
# A phone that waits for its peer ends in the time of --wait.
expect 1 "no call within the time of --wait" timeout 20 "$HORNWORK" phone answer --wait 1 --local 10.1.0.1:5060 --ike wait.toml
"#;

#[test]
fn failures_of_the_negotiation_are_named() {
    if !able() {
        return;
    }
    let case = case("refused");
    let near = "peer = \"192.0.2.2\"\nremote_networks = \"10.2.0.0/24\"\nsecret_file = \"psk\"\n";
    case.write("other", "another-secret-of-a-test\n");
    case.write("near.toml", near);
    case.write("wait.toml", &format!("local = \"192.0.2.1\"\n{near}"));
    case.write("secret.toml", &near.replace("psk", "other"));
    case.write("networks.toml", &near.replace("10.2.0.0/24", "10.9.0.0/24"));
    let with = |proposal: &str| format!("{near}[ike]\n{proposal}\n");
    case.write(
        "ike.toml",
        &with("ike_proposals = \"aes256-sha512-modp4096\""),
    );
    case.write("esp.toml", &with("esp_proposals = \"aes256-sha512\""));
    case.write("far.conf", &far("aes128gcm16", 3_600));
    case.run(REFUSED);
}

/// Missing parts and rights, before a packet is sent; an end that begins needs no right of its own.
const MISSING: &str = r#"
call="timeout 60 $HORNWORK phone call sip:600@10.2.0.1 --local 10.1.0.1 --ike"
expect 2 "none.toml" $call none.toml
expect 2 "transport mode is not negotiated" $call transport.toml
expect 2 "readable or writable by others" $call open.toml
expect 2 "needs --local ADDRESS" timeout 20 "$HORNWORK" phone call sip:600@10.2.0.1 --ike near.toml
expect 2 "remote_networks in the file of --ike" $call hosts.toml --transport tcp
expect 2 "10.2.0.1 is not behind the tunnel" $call beside.toml --transport tcp
expect 3 "CAP_NET_ADMIN" setpriv --bounding-set=-net_admin --inh-caps=-net_admin $call near.toml --transport tcp
ip route add 10.2.0.0/24 dev va
expect 3 "route to 10.2.0.0/24: there is one already" $call near.toml --transport tcp
ip route del 10.2.0.0/24 dev va
expect 2 "cannot be used with" $call near.toml --esp keys
expect 3 "strongswan-charon" unshare -m sh -c "mount -t tmpfs tmpfs /usr/lib/ipsec; exec $call near.toml"
expect 3 "libcharon-extra-plugins" unshare -m sh -c "mkdir -p e; cp /usr/lib/ipsec/plugins/*vici* e; mount --bind e /usr/lib/ipsec/plugins; exec $call near.toml"
expect 3 "cannot have a network of its own" unshare -U --map-root-user -n sh -c "echo 0 > /proc/sys/user/max_net_namespaces; ip link set lo up; ip addr add 192.0.2.1/24 dev lo; exec $call near.toml"
python3 -c 'import socket,time
s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("192.0.2.1", 500))
print("bound", flush=True); time.sleep(30)' > port.log & jobs_of_test="$jobs_of_test $!"
await port.log bound
expect 3 "cannot open UDP 192.0.2.1:500" timeout 20 "$HORNWORK" phone answer --wait 1 --local 10.1.0.1:5060 --ike wait.toml
# Distributions let all users open it; here it is made so for this test alone.
mount -t tmpfs tmpfs /dev/net; mknod -m 666 /dev/net/tun c 10 200
chown -R nobody:nogroup .
if setpriv --reuid=nobody --regid=nogroup --clear-groups test -x "$HORNWORK"; then
  charon far "$far_in"
  answer "$far_in" "waiting for a call" --local 10.2.0.1:5060
  call "setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs" sip:600@10.2.0.1 --local 10.1.0.1 --ike near.toml --seconds 3
  wait $answer
  echo "unprivileged: called"
else
  echo "unprivileged: skipped"
fi
"#;

#[test]
fn missing_parts_are_named_and_no_right_is_needed_to_begin() {
    if !able() || !installed(&["setpriv", "python3"]) {
        return;
    }
    let case = case("missing");
    let near = "peer = \"192.0.2.2\"\nremote_networks = \"10.2.0.0/24\"\nsecret_file = \"psk\"\n";
    case.write("near.toml", near);
    case.write("wait.toml", &format!("local = \"192.0.2.1\"\n{near}"));
    case.write(
        "hosts.toml",
        "peer = \"192.0.2.2\"\nsecret_file = \"psk\"\n",
    );
    case.write("beside.toml", &near.replace("10.2.0.0/24", "10.9.0.0/24"));
    case.write("transport.toml", &format!("mode = \"transport\"\n{near}"));
    case.write("open.toml", &near.replace("psk", "open"));
    case.write("open", "a-secret-that-others-read\n");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(case.folder.join("open"), open).expect("mode");
    case.write("far.conf", &far("aes128gcm16", 3_600));
    let said = case.run(MISSING);
    match said.contains("unprivileged: called") {
        true => {
            let mut figures = json(&case.folder, "caller.json");
            good(&figures, 100, &said);
            // The kernel of the peer may answer the last packet of the call by an ICMP message in the tunnel, which the
            // selectors of a call do not allow.
            if figures["esp"]["drops"] == serde_json::json!({ "esp_selector": 1 }) {
                figures["esp"]["dropped"] = 0.into();
            }
            negotiated(&figures, "AES-GCM-16", 0, &said);
        }
        false => eprintln!("skipped: another user cannot reach {PROGRAM}"),
    }
}
