//! Two gateways in network namespaces: ends by an error, tunnels that seal with one SPI, keys of another suite by a
//! reload, and outer packets that are longer than the path. Skipped without the rights.

use crate::common::pings::lossless;
use crate::common::{installed, scratch};
use crate::gateway::{SITES, config, lines, may_make_tun, read, run, text, write_keys};
use crate::softphone_esp::{GCM, Suite, key};
use std::path::Path;

const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const NETWORKS: [&str; 2] = ["10.1.0.0/24", "10.2.0.0/24"];

fn able() -> bool {
    installed(&["unshare", "nsenter", "ip", "timeout", "ping"]) && may_make_tun()
}

/// Writes keys and configurations of both ends, `near` and `far`.
fn write_sites(folder: &Path, more: &str) {
    for (end, side, own) in [("near", 0, "10.1.0.1"), ("far", 1, "10.2.0.1")] {
        let keys = format!("keys.{end}");
        write_keys(folder, &keys, &lines(GCM, ENDS, 1));
        let file = config(
            end,
            &keys,
            [ENDS[side], ENDS[1 - side]],
            [NETWORKS[side], NETWORKS[1 - side]],
            &format!("route_source = \"{own}\"\nnumbers_file = \"{end}.numbers\"\n{more}"),
        );
        std::fs::write(folder.join(format!("{end}.toml")), file).expect("file");
    }
}

/// The next sequence numbers of the file for sent packets.
fn next_numbers(folder: &Path, file: &str) -> Vec<u64> {
    let stored: serde_json::Value = serde_json::from_str(&read(folder, file)).expect("numbers");
    let outbound = stored["outbound"].as_object().expect("object");
    let next = |state: &serde_json::Value| state["next_sequence"].as_u64().expect("number");
    outbound.values().map(next).collect()
}

/// A path that is shorter than packets of the inside.
const SHORT_PATH: &str = r#"
gateway near ""
gateway far "$there"
ip link set va mtu 1300; $there ip link set vb mtu 1300
ping -c 10 -i 0.1 -W 1 -M do -s 1300 -I 10.1.0.1 10.2.0.1 > ping.log || true
loss ping.log
kill -TERM $near_pid $far_pid; wait $near_pid; wait $far_pid
"#;

#[test]
fn outer_packets_are_fragmented_if_dont_fragment_is_clear() {
    if !able() {
        return;
    }
    let folder = scratch("gateway-clear-bit");
    write_sites(&folder, "dont_fragment = \"clear\"");
    let output = run(&folder, &format!("{SITES}{SHORT_PATH}"), &[]);
    let logs = format!("{}\n{}", text(&output), read(&folder, "near.log"));
    assert!(output.status.success(), "{logs}");
    lossless(&logs, "ping.log", 10);
}

/// Manual keys of another suite by a reload, which seal once the peer has them.
const ANOTHER_SUITE: &str = r#"
gateway far "$there"
"$HORNWORK" run -c border.toml > near.log 2>&1 & near_pid=$!; jobs_of_test="$jobs_of_test $near_pid"
await near.log gateway_started
for n in $(seq 1500); do [ -S control.sock ] && break; sleep 0.02; done
tunnels() { "$HORNWORK" ctl --socket control.sock tunnels list --json > $1.json; "$HORNWORK" ctl --socket control.sock tunnels list > $1.txt; }
tunnels before
cp keys.new keys.tmp; mv keys.tmp keys.near; kill -HUP $near_pid; await near.log gateway_keys_loaded
tunnels loaded
cp keys.new keys.tmp; mv keys.tmp keys.far; kill -HUP $far_pid; await far.log gateway_keys_loaded
# The peer is ready when its packets have the new keys.
$there ping -c 20 -i 0.05 -W 1 -I 10.2.0.1 10.1.0.1 > ping.log || true; loss ping.log
await near.log gateway_rekeyed
tunnels after
kill -TERM $near_pid $far_pid; wait $near_pid; wait $far_pid
"#;

/// The tunnel's algorithms are those that seal: the old ones until the change of keys.
#[test]
fn operators_see_the_algorithms_of_reloaded_keys() {
    if !able() {
        return;
    }
    let folder = scratch("gateway-reloaded-suite");
    write_sites(&folder, "");
    let cbc = Suite("AES-CBC [RFC3602]", 16, "HMAC-SHA-256-128 [RFC4868]", 32);
    let both = lines(GCM, ENDS, 1) + &lines(cbc, ENDS, 2);
    write_keys(&folder, "keys.new", &both);
    // The far end seals with the new keys at once, so that its packets show that it is ready.
    let far = read(&folder, "far.toml").replace("route_source", "rekey_delay_s = 0\nroute_source");
    std::fs::write(folder.join("far.toml"), far).expect("file");
    let interface = "[[interface]]\nname = \"phones\"\nlisten = \"udp:127.0.0.1:5060\"\n[control]\nsocket = \"control.sock\"\n";
    let near =
        read(&folder, "near.toml").replace("route_source", "rekey_delay_s = 60\nroute_source");
    std::fs::write(folder.join("border.toml"), format!("{interface}{near}")).expect("file");
    let output = run(&folder, &format!("{SITES}{ANOTHER_SUITE}"), &[]);
    let said = format!("{}\n{}", text(&output), read(&folder, "near.log"));
    assert!(output.status.success(), "{said}");
    lossless(&said, "ping.log", 20);
    for (list, algorithms) in [
        ("before", "AES-GCM-16"),
        ("loaded", "AES-GCM-16"),
        ("after", "AES-CBC+HMAC-SHA2-256-128"),
    ] {
        let json: serde_json::Value =
            serde_json::from_str(&read(&folder, &format!("{list}.json"))).expect("json");
        assert_eq!(
            json[0]["algorithms"], algorithms,
            "{list}: {json:#}\n{said}"
        );
        let table = read(&folder, &format!("{list}.txt"));
        assert!(table.contains(algorithms), "{list}: {table}");
    }
}

/// A border that ends because its address is not one of this host, after its gateway has begun.
const ERRORS: &str = r#"
for number in 1 2; do
  code=0; "$HORNWORK" run -c border.toml > border-$number.log 2>&1 || code=$?
  echo "run $number: exit $code"; cp near.numbers numbers-$number
done
# A device that is taken away ends the gateway, which has sealed three packets.
gateway far "$there"
gateway near ""
ping -c 3 -i 0.1 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
ip link del esp0
code=0; wait $near_pid || code=$?
echo "without a device: exit $code"
kill -TERM $far_pid; wait $far_pid
"#;

#[test]
fn ends_by_an_error_return_unused_sequence_numbers() {
    if !able() {
        return;
    }
    let folder = scratch("gateway-unused-numbers");
    write_sites(&folder, "");
    // That of another node, for example.
    let interface = "[[interface]]\nname = \"phones\"\nlisten = \"udp:192.0.2.77:5060\"\n";
    let border = format!("{interface}{}", read(&folder, "near.toml"));
    std::fs::write(folder.join("border.toml"), border).expect("file");
    let output = run(&folder, &format!("{SITES}{ERRORS}"), &[]);
    let logs = ["border-1.log", "border-2.log", "near.log"].map(|log| read(&folder, log));
    let said = format!("{}\n{}", text(&output), logs.concat());
    assert!(output.status.success(), "{said}");
    for (number, log) in [1, 2].into_iter().zip(&logs) {
        assert!(log.contains("gateway_started"), "{said}");
        assert!(said.contains(&format!("run {number}: exit 3")), "{said}");
        let next = next_numbers(&folder, &format!("numbers-{number}"));
        assert_eq!(next, [1_u64], "{said}");
    }
    lossless(&said, "ping.log", 3);
    assert!(said.contains("without a device: exit 3"), "{said}");
    assert_eq!(next_numbers(&folder, "near.numbers"), [4_u64], "{said}");
}

/// Two tunnels of one gateway, whose peers have chosen the same SPI; the second one has no peer that runs.
const ONE_SPI: &str = r#"
gateway far "$there"
gateway near ""
ping -c 20 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping.log; loss ping.log
# Numbers are stored every five seconds.
sleep 6; cp near.numbers while-running
ping -c 5 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-later.log; loss ping-later.log
kill -TERM $near_pid; wait $near_pid; cp near.numbers at-the-end; cp near.log near-first.log
gateway near ""
ping -c 20 -i 0.01 -I 10.1.0.1 10.2.0.1 > ping-restart.log; loss ping-restart.log
kill -TERM $near_pid $far_pid; wait $near_pid; wait $far_pid
"#;

#[test]
fn tunnels_that_seal_with_one_spi_keep_their_numbers_apart() {
    if !able() {
        return;
    }
    let folder = scratch("gateway-one-spi");
    write_sites(&folder, "");
    let Suite(encryption, length, ..) = GCM;
    let line = |from: &str, to: &str, spi: u32, of: u8| {
        format!(
            "\"IPv4\",\"{from}\",\"{to}\",\"0x{spi:08x}\",\"{encryption}\",\"{}\",\"NULL\",\"\"\n",
            key(length, of)
        )
    };
    // That of the first tunnel is 0x1002.
    let second = line(ENDS[0], "192.0.2.3", 0x1002, 9) + &line("192.0.2.3", ENDS[0], 0x1009, 10);
    write_keys(&folder, "keys.near", &(lines(GCM, ENDS, 1) + &second));
    let tunnel = "[[gateway.tunnel]]\nname = \"third\"\npeer = \"192.0.2.3\"\nlocal_networks = [\"10.1.0.0/24\"]\nremote_networks = [\"10.3.0.0/24\"]\n";
    let file = read(&folder, "near.toml") + tunnel;
    std::fs::write(folder.join("near.toml"), file).expect("file");
    let output = run(&folder, &format!("{SITES}{ONE_SPI}"), &[]);
    let said = format!("{}\n{}", text(&output), read(&folder, "near.log"));
    assert!(output.status.success(), "{said}");
    lossless(&said, "ping.log", 20);
    lossless(&said, "ping-later.log", 5);
    lossless(&said, "ping-restart.log", 20);
    let reserved: u64 = 1 << 24;
    let sorted = |file: &str| {
        let mut next = next_numbers(&folder, file);
        next.sort_unstable();
        next
    };
    let running = [1 + reserved, 21 + reserved];
    assert_eq!(sorted("while-running"), running, "{said}");
    // The second tunnel has sealed nothing.
    assert_eq!(sorted("at-the-end"), [1_u64, 26], "{said}");
    assert_eq!(sorted("near.numbers"), [1_u64, 46], "{said}");
}
