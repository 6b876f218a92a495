//! The packaged systemd unit permits media over AF_XDP and a key exchange: the program runs with only the capabilities
//! of the unit and its drop-ins, and its system calls are compared with the permitted ones. Skipped without a network
//! namespace or strace.

use crate::common;
use crate::gateway_ike;

use common::{installed, root, scratch};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

/// The settings of the unit, followed by those of these drop-ins, by key and in order.
fn settings(drop_ins: [&str; 2]) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    for name in [&["hornwork.service"][..], &drop_ins].concat() {
        let text = std::fs::read_to_string(root().join("packaging").join(name)).expect("file");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (key, value) in lines.filter_map(|line| line.split_once('=')) {
            settings.push((key.to_owned(), value.to_owned()));
        }
    }
    settings
}

/// All words of a key, accumulated as in systemd.
fn words(settings: &[(String, String)], key: &str) -> Vec<String> {
    let values = settings.iter().filter(|(name, _)| name == key);
    values
        .flat_map(|(_, value)| value.split(' ').map(str::to_owned))
        .collect()
}

/// The system calls of a systemd group, or the call itself.
fn calls(name: &str, into: &mut BTreeSet<String>) {
    if !name.starts_with('@') {
        into.insert(name.to_owned());
        return;
    }
    let output = Command::new("systemd-analyze")
        .args(["syscall-filter", name])
        .output()
        .expect("systemd-analyze starts");
    assert!(output.status.success(), "{name}");
    let output = String::from_utf8(output.stdout).expect("text");
    for line in output.lines().skip(1).map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            calls(line, into);
        }
    }
}

/// The permitted system calls.
fn allowed(settings: &[(String, String)]) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for (_, value) in settings.iter().filter(|(key, _)| key == "SystemCallFilter") {
        let (takes_away, names) = match value.strip_prefix('~') {
            Some(names) => (true, names),
            None => (false, &**value),
        };
        let mut named = BTreeSet::new();
        for name in names.split(' ') {
            calls(name, &mut named);
        }
        match takes_away {
            true => allowed.retain(|call| !named.contains(call)),
            false => allowed.extend(named),
        }
    }
    allowed
}

/// Two media networks at one interface, without the host's settings in /proc, as with `ProcSubset=pid`.
const SCRIPT: &str = r#"
ip link set lo up
ip link add near type veth peer name far
ip addr add 10.9.1.2/24 dev near
ip link set near up; ip link set far up
mount -t proc -o subset=pid proc /proc 2>/dev/null || true
ulimit -l "$1" 2>/dev/null || more=,+ipc_lock
strace -f -qq -s 400 -o "$2/trace" -- sh -c 'echo $$ >"$0"; exec setpriv "$@"' "$2/pid" \
  --bounding-set="-all,$3$more" --inh-caps=-all --no-new-privs "$4" run -c "$2/border.toml" >"$2/log" 2>&1 & tracer=$!
for wait in $(seq 600); do
  grep -q 'purpose="sip udp"' "$2/log" && break
  kill -0 $tracer 2>/dev/null || break
  sleep 0.1
done
kill -INT "$(cat "$2/pid")" 2>/dev/null
wait $tracer
cat "$2/log"
"#;

/// The names of the system calls in a trace of strace, from the start of the program on, and the families of the
/// sockets.
fn system_calls(trace: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let begun = trace.find(&format!("execve(\"{PROGRAM}\"")).expect("start");
    // System calls of strace and of the starting shell do not count.
    let (before, rest) = trace.split_at(begun);
    let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let own = before.lines().last().map(id);
    let mut others: BTreeSet<String> = before.lines().map(id).collect();
    others.remove(&own.expect("its number"));
    let (mut made, mut families) = (BTreeSet::new(), BTreeSet::new());
    for line in rest.lines().skip(1) {
        let Some((_, call)) = line.split_once(' ').filter(|(id, _)| !others.contains(*id)) else {
            continue;
        };
        let Some((name, arguments)) = call.trim_start().split_once('(') else {
            continue;
        };
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            continue;
        }
        made.insert(name.to_owned());
        if name == "socket" {
            let family = arguments.split(',').next().unwrap_or_default();
            families.insert(family.to_owned());
        }
        // MemoryDenyWriteExecute
        assert!(!line.contains("PROT_WRITE|PROT_EXEC"), "{line}");
    }
    (made, families)
}

/// Compares system calls and families of sockets with those that the unit permits.
fn check(settings: &[(String, String)], made: &BTreeSet<String>, families: &BTreeSet<String>) {
    let allowed = allowed(settings);
    let refused: Vec<&String> = made.difference(&allowed).collect();
    assert!(
        refused.is_empty(),
        "system calls that the unit refuses: {refused:?}"
    );
    let known: BTreeSet<String> = words(settings, "RestrictAddressFamilies")
        .into_iter()
        .collect();
    let refused: Vec<&String> = families.difference(&known).collect();
    assert!(
        refused.is_empty(),
        "address families that the unit refuses: {refused:?}"
    );
}

/// A tunnel from its start to its end, with the user and the capabilities of the unit.
const KEY_EXCHANGE: &str = r#"
chown -R nobody:nogroup .
mount -t tmpfs tmpfs /dev/net; mknod -m 666 /dev/net/tun c 10 200
charon far "$far_in"
strace -f -qq -s 400 -o trace -- sh -c 'echo $$ >pid; exec setpriv "$@"' sh --reuid=nobody --regid=nogroup --clear-groups \
  --inh-caps=-all,CAPS --ambient-caps=-all,CAPS --bounding-set=-all,CAPS --no-new-privs \
  "$HORNWORK" run --role gateway -c near.toml > near.log 2>&1 & tracer=$!; jobs_of_test="$jobs_of_test $!"
await near.log gateway_tunnel_up 1500 || { [ -e trace ] || echo 'no rights to trace'; exit 1; }
ping -c 3 -i 0.05 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
kill -TERM $(cat pid); wait $tracer
"#;

#[test]
fn unit_permits_the_system_calls_of_the_key_exchange() {
    if !gateway_ike::able() || !installed(&["setpriv", "strace", "systemd-analyze"]) {
        return;
    }
    let settings = settings(["hornwork-gateway.conf", "hornwork-ike.conf"]);
    let case = gateway_ike::case("system-calls");
    let reachable = Command::new("setpriv")
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
        .args(["test", "-x", PROGRAM])
        .status();
    if !reachable.is_ok_and(|status| status.success()) {
        eprintln!("skipped: another user cannot reach {PROGRAM}");
        return;
    }
    let rights = words(&settings, "CapabilityBoundingSet");
    let rights: BTreeSet<String> = rights
        .iter()
        .map(|right| format!("+{}", right.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let rights: Vec<String> = rights.into_iter().collect();
    case.write("near.toml", &gateway_ike::near("", gateway_ike::PEER));
    case.write("far.conf", &gateway_ike::far("aes128gcm16", 3_600));
    let said = case.run(&KEY_EXCHANGE.replace("CAPS", &rights.join(",")));
    crate::common::pings::lossless(&said, "ping.log", 3);
    let (made, families) = system_calls(&case.read("trace"));
    assert!(
        made.contains("unshare") && families.contains("AF_NETLINK"),
        "{made:?} {families:?}"
    );
    check(&settings, &made, &families);
}

#[test]
fn unit_permits_the_system_calls_of_af_xdp() {
    if !installed(&["ip", "unshare", "setpriv", "strace", "systemd-analyze"]) {
        return;
    }
    let folder = scratch("confined");
    let (file, trace) = (folder.join("border.toml"), folder.join("trace"));
    std::fs::write(
        &file,
        "[[interface]]\nname = \"access\"\nkind = \"access\"\nlisten = \"udp:10.9.1.2:5060\"\nmedia = { ports = \"20000-20999\" }\n\
         [[interface]]\nname = \"core\"\nkind = \"core\"\nlisten = \"udp:10.9.1.2:5070\"\nmedia = { ports = \"21000-21999\" }\n\
         [[trunk]]\nname = \"server\"\ninterface = \"core\"\ntarget = \"udp:10.9.1.9:5060\"\n\
         [[route]]\ntrunk = \"server\"\n[media]\naf_xdp = \"require\"\n",
    )
    .expect("file");
    let settings = settings(["hornwork-fast.conf", "hornwork-xdp.conf"]);
    let rights: Vec<String> = words(&settings, "CapabilityBoundingSet")
        .iter()
        .map(|right| format!("+{}", right.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let locked = words(&settings, "LimitMEMLOCK");
    assert_eq!(locked, ["1G"]);
    let done = Command::new("unshare")
        .args(["-n", "-m", "sh", "-c", SCRIPT, "sh", "1048576"])
        .arg(&folder)
        .arg(rights.join(","))
        .arg(PROGRAM)
        .stdin(Stdio::null())
        .output()
        .expect("unshare starts");
    let log = [done.stdout, done.stderr].concat();
    let log = String::from_utf8_lossy(&log);
    if !trace.exists() {
        eprintln!("skipped: no rights for networks of our own, or none to trace: {log}");
        return;
    }
    if log.contains("this build has no BPF programs") {
        eprintln!("skipped: no AF_XDP here: {log}");
        return;
    }
    assert!(log.contains("media_path path=af_xdp"), "{log}");
    let trace = std::fs::read_to_string(&trace).expect("trace");
    let (made, families) = system_calls(&trace);
    assert!(
        made.contains("bpf") && families.contains("AF_XDP"),
        "{made:?} {families:?}"
    );
    check(&settings, &made, &families);
}
