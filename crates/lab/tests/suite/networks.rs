//! Trials with `[network]`: links between the hosts and the SUT, in virtual time and in real time.

use lab::experiment::File;
use lab::figures::NOISE;
use lab::record::{AttemptKind, AttemptOutcome};
use lab::trial::{Outcomes, Trial, on_sockets, simulate};

fn trial(text: &str) -> Trial {
    let file = File::parse("test", text).unwrap();
    let experiment = file.levels().unwrap().remove(0).experiment;
    Trial {
        experiment,
        number: 0,
        seed: 7,
    }
}

/// Ten calls of four seconds, and the tables that follow.
fn calls(tables: &str) -> Trial {
    trial(&format!(
        "name = \"t\"\ntitle = \"t\"\n[callers]\nrate = 5.0\ntotal = 10\nhold_seconds = 4.0\nmedia = \"tone\"\n\
         [callees]\nmedia = \"tone\"\n{tables}"
    ))
}

/// Whether this machine permits links between network namespaces; prints the reason where it does not.
fn able() -> bool {
    let set_up = "ip link add near type veth peer name far && ethtool -K near gro on";
    let able = std::process::Command::new("unshare")
        .args(["-n", "sh", "-c", set_up])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    let able = able.is_ok_and(|status| status.success());
    if !able {
        eprintln!("skipped: no right to a network namespace, or not installed: ethtool");
    }
    able
}

fn completed(outcomes: &Outcomes) -> usize {
    let calls = outcomes.attempts.iter();
    let calls = calls.filter(|a| a.kind == AttemptKind::Call);
    calls
        .filter(|a| a.outcome == AttemptOutcome::Completed)
        .count()
}

/// Loss of the streams that `side` received, percent, and their shortest and longest mean one-way delay, milliseconds.
fn media(outcomes: &Outcomes, side: &str) -> (f64, f64, f64) {
    let streams = || outcomes.streams.iter().filter(|s| s.side == side);
    let lost: u64 = streams().map(|s| s.lost).sum();
    let expected: u64 = streams().map(|s| s.expected).sum();
    let delays = || streams().filter_map(|s| s.one_way_mean_ms);
    let (low, high) = (
        delays().fold(f64::MAX, f64::min),
        delays().fold(0.0, f64::max),
    );
    assert!(expected > 1_500, "{side}: {expected} packets");
    (lost as f64 * 100.0 / expected as f64, low, high)
}

/// Losses of the direction to the border only: each stream passes it once.
const ASYMMETRIC: &str = "[network]\ndelay_ms = 20.0\nloss_percent = 6.0\n[network.down]\nloss_percent = 0.0\ndelay_ms = 5.0";

/// Delay and loss of the directions as set, both in virtual and in real time.
fn check_asymmetric(outcomes: &Outcomes, beyond_ms: f64) {
    assert_eq!(completed(outcomes), 10, "{:?}", outcomes.remarks);
    for side in ["caller", "callee"] {
        let (loss, low, high) = media(outcomes, side);
        // About 2,000 packets: four times the standard deviation.
        assert!((3.8..8.2).contains(&loss), "{side}: {loss} % lost");
        assert!(
            low >= 24.9 && high < 25.5 + beyond_ms,
            "{side}: {low} to {high} ms"
        );
    }
}

#[test]
fn directions_differ_in_virtual_time() {
    let outcomes = simulate(&calls(ASYMMETRIC)).unwrap();
    check_asymmetric(&outcomes, 0.0);
    // Up and down together, both ways; the border takes no time in virtual time.
    let split = outcomes.delay_split.as_ref().unwrap();
    let means: Vec<_> = split
        .hops
        .iter()
        .map(|hop| (hop.hop.as_str(), hop.mean_ms))
        .collect();
    assert_eq!(
        means,
        [
            ("generator", Some(0.0)),
            ("link", Some(25.0)),
            ("SUT", Some(0.0))
        ]
    );
    let line = split.line();
    assert!(!line.contains("subject"), "{line}");
    assert_eq!((split.sum_ms, split.end_to_end.mean_ms), (25.0, Some(25.0)));
    let received: u64 = outcomes.streams.iter().map(|stream| stream.received).sum();
    assert_eq!(split.samples, received);
    let again = simulate(&calls(ASYMMETRIC)).unwrap();
    assert_eq!(outcomes.digest, again.digest);
    // Without a SUT: from callers to called sides and back.
    let direct = format!("[sut]\ndirect = true\n{ASYMMETRIC}");
    let outcomes = simulate(&calls(&direct)).unwrap();
    let (loss, low, high) = media(&outcomes, "callee");
    assert!(
        loss > 3.8 && low >= 19.9 && high < 20.5,
        "{loss} {low} {high}"
    );
    let (loss, low, high) = media(&outcomes, "caller");
    assert!(
        loss == 0.0 && low >= 4.9 && high < 5.5,
        "{loss} {low} {high}"
    );
}

#[test]
fn links_carry_calls_through_the_border_in_real_time() {
    if !able() {
        return;
    }
    let outcomes = on_sockets(&calls(ASYMMETRIC), |_, _| ()).unwrap();
    // A stalled machine is late, but loses nothing beside the link.
    check_asymmetric(&outcomes, 25.0);
    assert_eq!(outcomes.links.len(), 2);
    for (link, name) in outcomes.links.iter().zip(["callers", "called side"]) {
        assert_eq!(link.name, name);
        // Half of the packets go up, and half down. A stalled machine is late.
        let [mean, p50, p99] = link.delay_ms.unwrap();
        assert!(
            (12.0..35.0).contains(&mean) && p50 <= p99 && p99 >= 19.9,
            "{:?}",
            link.delay_ms
        );
        let [up, down] = &link.directions[..] else {
            panic!("{link:?}");
        };
        assert_eq!(
            (&up["direction"], &down["direction"]),
            (&"up".into(), &"down".into())
        );
        assert!(up["offered"].as_u64() > Some(1_500) && down["offered"].as_u64() > Some(1_500));
        assert!(
            up["lost"].as_u64() > Some(50) && down["lost"] == 0,
            "{link:?}"
        );
        assert_eq!(
            (&up["loss_holds"], &up["refused"]),
            (&true.into(), &0.into())
        );
        assert!(link.remark.contains("loss=6%") && link.remark.contains("late p99"));
    }
    let own_error = |text: &String| text.starts_with("own error at");
    assert!(
        outcomes.remarks.iter().any(own_error),
        "{:?}",
        outcomes.remarks
    );
}

/// TLS and large messages pass a line with losses and a small MTU; IPv6 towards the called side.
#[test]
fn links_carry_tls_and_ipv6_in_real_time() {
    if !able() {
        return;
    }
    let text = calls("[sut]\nip = \"ipv4_to_ipv6\"\n[network]\nprofile = \"satellite\"\n");
    let mut tls = text.clone();
    tls.experiment.callers.as_mut().unwrap().transport = lab::experiment::TransportName::Tls;
    for trial in [text, tls] {
        let outcomes = on_sockets(&trial, |_, _| ()).unwrap();
        assert_eq!(completed(&outcomes), 10, "{:?}", outcomes.remarks);
        let (_, low, _) = media(&outcomes, "callee");
        assert!(low > 519.0, "{low} ms");
        let bytes = |index: usize| outcomes.links[index].directions[0]["bytes"].as_u64();
        assert!(bytes(0) > Some(300_000) && bytes(1) > Some(300_000));
    }
}

#[test]
fn echo_crosses_the_link_twice_and_faults_end() {
    if !able() {
        return;
    }
    let echo = trial(
        "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 10.0\ntotal = 10\nhold_seconds = 4.0\n\
         media = \"tone\"\n[callees]\nmedia = \"echo\"\n[network]\ndelay_ms = 30.0\nloss_percent = 50.0\nheal_seconds = 2.0\n",
    );
    let outcomes = on_sockets(&echo, |_, _| ()).unwrap();
    assert_eq!(outcomes.links.len(), 1);
    let streams = outcomes.streams.iter().filter(|s| s.side == "caller");
    let rounds: Vec<f64> = streams.filter_map(|s| s.round_trip_ms).collect();
    let least = rounds.iter().copied().fold(f64::MAX, f64::min);
    assert!((59.9..90.0).contains(&least), "{rounds:?}");
    let up = &outcomes.links[0].directions[0];
    assert_eq!(up["settings"]["loss_percent"], 0.0, "{up}");
    // Of the packets since then none is lost.
    assert!(
        up["lost"].as_u64() > Some(20) && up["loss_percent"] == 0.0,
        "{up}"
    );
    assert!(up["loss_packets"].as_u64() > Some(200), "{up}");
}

/// The kernel relay forwards media between both links.
#[test]
fn links_carry_media_of_the_kernel_relay() {
    if !able() {
        return;
    }
    let tables = format!("[sut]\nmedia = \"kernel_relay\"\n{ASYMMETRIC}");
    let outcomes = on_sockets(&calls(&tables), |_, _| ()).unwrap();
    check_asymmetric(&outcomes, 25.0);
    assert!(
        outcomes.kernel_relayed > Some(2_500),
        "{:?}",
        outcomes.kernel_relayed
    );
}

/// A narrow line is full of the calls that it carries, in both directions of time.
#[test]
fn narrow_line_drops_excess_packets() {
    if !able() {
        return;
    }
    // Ten calls of 82 kbit/s with the framing; the direction back is wide.
    let tables = "[sut]\ndirect = true\n[network]\nrate_kbit = 500.0\nframing = \"hdlc\"\nqueue_packets = 20\n\
                  [network.down]\nrate_kbit = 0.0\nqueue_packets = 0\n";
    for (outcomes, what) in [
        (simulate(&calls(tables)).unwrap(), "simulation"),
        (on_sockets(&calls(tables), |_, _| ()).unwrap(), "sockets"),
    ] {
        let (loss, _, high) = media(&outcomes, "callee");
        assert!(
            loss > 5.0 && high > 20.0,
            "{what}: {loss} % lost, {high} ms"
        );
        let (loss, _, _) = media(&outcomes, "caller");
        assert_eq!(loss, 0.0, "{what}");
    }
}

/// Calls over two media nodes, which have an address in the network of each side.
#[test]
fn media_nodes_relay_between_the_links() {
    if !able() {
        return;
    }
    let tables = format!("[sut]\nmedia_nodes = 2\n{ASYMMETRIC}\n");
    let outcomes = on_sockets(&calls(&tables), |_, _| ()).unwrap();
    assert_eq!(completed(&outcomes), 10);
    assert_eq!(outcomes.links.len(), 2);
    let nodes = &outcomes.node_calls;
    assert!(nodes.len() == 2 && !nodes.contains(&0), "{nodes:?}");
    let (loss, low, _) = media(&outcomes, "callee");
    assert!((2.0..12.0).contains(&loss), "{loss} %");
    // 20 ms to the node, and 5 ms from it.
    assert!(low >= 25.0, "{low} ms");
    let (_, low, _) = media(&outcomes, "caller");
    assert!(low >= 25.0, "{low} ms");
}

/// Participants of a conference are behind a link; the probe hears the others with its delay and loss. The bypassing
/// streams, which show the host's jitter, do not pass it.
#[test]
fn conference_has_a_link_to_its_participants() {
    if !able() {
        return;
    }
    let text = "name = \"t\"\ntitle = \"t\"\n[conference]\ncount = 1\nparticipants = 3\nrate = 20.0\nwarm_up_seconds = 1.0\n\
                duration_seconds = 4.0\n[network]\ndelay_ms = 30.0\n[network.down]\ndelay_ms = 30.0\nloss_percent = 10.0\n";
    let outcomes = on_sockets(&trial(text), |_, _| ()).unwrap();
    // Three participants, and the three of the probe's conference.
    assert_eq!(completed(&outcomes), 6);
    assert_eq!(outcomes.links.len(), 1, "{:?}", outcomes.links);
    // On a busy machine the links' own error, measured before, can be out of bounds.
    let mut faults = outcomes.links[0].faults.iter();
    assert!(
        faults.all(|fault| fault.starts_with("own error")),
        "{:?}",
        outcomes.links
    );
    let streams = |bypassing: bool| {
        let all = outcomes.streams.iter();
        all.filter(move |stream| (stream.workload == NOISE) == bypassing)
    };
    let percent = |bypassing: bool| {
        let lost: u64 = streams(bypassing).map(|s| s.lost).sum();
        let expected: u64 = streams(bypassing).map(|s| s.expected).sum();
        assert!(expected > 300, "{expected} packets");
        lost as f64 * 100.0 / expected as f64
    };
    assert!(
        (6.0..14.0).contains(&percent(false)),
        "{} %",
        percent(false)
    );
    assert!(percent(true) < 1.0, "{} %", percent(true));
}

#[test]
fn network_that_cannot_be_part_of_a_trial_is_refused() {
    for (tables, reason) in [
        ("[sut]\nmedia = \"bypass\"\n", "media that bypasses"),
        ("[sut]\naddress = \"192.0.2.1:5060\"\n", "lab link"),
    ] {
        let trial = calls(&format!("{tables}[network]\ndelay_ms = 5.0\n"));
        let error = on_sockets(&trial, |_, _| ()).unwrap_err().to_string();
        assert!(
            error.contains("[network]") && error.contains(reason),
            "{tables}: {error}"
        );
    }
}

/// Mean one-way delay of the streams that `side` received, milliseconds.
fn mean_delay(outcomes: &Outcomes, side: &str) -> f64 {
    let streams = outcomes.streams.iter().filter(|s| s.side == side);
    let delays: Vec<f64> = streams.filter_map(|s| s.one_way_mean_ms).collect();
    assert!(!delays.is_empty(), "{side}: {:?}", outcomes.remarks);
    delays.iter().sum::<f64>() / delays.len() as f64
}

/// A figure of a trial that has one value.
fn measured(outcomes: &Outcomes, figure: &str) -> f64 {
    let record = outcomes.measures.iter().find(|m| m.figure == figure);
    record
        .unwrap_or_else(|| panic!("{figure}: {:?}", outcomes.measures))
        .samples[0]
}

/// The bytes of a protection decide whether a call fits into a line: G.729 has 27 kbit/s in the clear, and 60 in
/// OpenVPN.
#[test]
fn protections_fill_a_slow_line_in_virtual_time() {
    let on_line = |kind: &str| {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[callers]\nrate = 5.0\ntotal = 1\nhold_seconds = 6.0\nmedia = \"tone\"\ncodec = \"G729\"\n\
             [callees]\nmedia = \"tone\"\n[network]\nprofile = \"serial-38\"\n[protection]\nkind = \"{kind}\""
        );
        let outcomes = simulate(&trial(&text)).unwrap();
        assert_eq!(completed(&outcomes), 1, "{kind}: {:?}", outcomes.remarks);
        (
            mean_delay(&outcomes, "callee"),
            measured(&outcomes, "esp.call_kbit"),
        )
    };
    let (clear, clear_kbit) = on_line("none");
    let (firewall, firewall_kbit) = on_line("firewall");
    let (wireguard, wireguard_kbit) = on_line("wireguard");
    let (openvpn, openvpn_kbit) = on_line("openvpn-aes-256");
    let (esp, esp_kbit) = on_line("esp-aes-cbc-sha256-tunnel");
    assert!(
        clear < 60.0 && (clear - firewall).abs() < 1e-6,
        "{clear} {firewall}"
    );
    assert!((clear_kbit - firewall_kbit).abs() < 1e-6);
    // 124, 144 and 124 bytes of 60, each 20 ms, of which the line has room for 96 with those of HDLC. The border's
    // counters have the packets that it sends, and of those towards it only the ones that passed the full line: less
    // than twice as many bytes.
    for (delay, kbit) in [
        (wireguard, wireguard_kbit),
        (openvpn, openvpn_kbit),
        (esp, esp_kbit),
    ] {
        assert!(
            delay > clear + 200.0 && kbit > clear_kbit * 1.6,
            "{delay} {kbit}"
        );
    }
    assert!(openvpn > wireguard, "{openvpn} {wireguard}");
}

/// The examples of the page on links.
#[test]
fn examples_of_links_behind_a_protection_run() {
    let page = include_str!("../../../../docs/link.md");
    let lines = page
        .lines()
        .filter(|line| line.starts_with("hornwork lab run") && line.contains("protection.kind"));
    let lines: Vec<&str> = lines.collect();
    // 124 and 116 bytes each 20 ms, and signalling; 24 kbit/s in the clear.
    let wanted = [
        ("firewall and WireGuard", 49.0..60.0),
        ("ESP aes-gcm, tunnel mode", 46.0..57.0),
    ];
    assert_eq!(lines.len(), wanted.len(), "{lines:?}");
    for (line, (protection, range)) in lines.into_iter().zip(wanted) {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[3];
        let sets = words.windows(2).filter(|pair| pair[0] == "--set");
        let sets: Vec<String> = sets.map(|pair| pair[1].to_owned()).collect();
        assert_eq!(sets.len(), 4, "{words:?}");
        let text = lab::experiment::built_in(name).unwrap();
        let file = File::parse_with(name, text, &sets).unwrap();
        let experiment = file.levels().unwrap().remove(0).experiment;
        let outcomes = simulate(&Trial {
            experiment,
            number: 0,
            seed: 1,
        })
        .unwrap();
        assert_eq!(completed(&outcomes), 1, "{:?}", outcomes.remarks);
        let remark = outcomes.remarks.join(" ");
        assert!(remark.contains(protection), "{remark}");
        let kbit = measured(&outcomes, "esp.call_kbit");
        assert!(range.contains(&kbit), "{protection}: {kbit}");
    }
}

#[test]
fn protections_and_links_carry_calls_in_real_time() {
    let has = |program: &str| {
        std::process::Command::new(program)
            .arg("--version")
            .output()
            .is_ok()
    };
    if !able() || !has("nft") || !has("openvpn") {
        eprintln!("skipped: not installed: nft, openvpn");
        return;
    }
    let network = "[network]\ndelay_ms = 20.0\n[network.down]\ndelay_ms = 5.0";
    let mut bytes = Vec::new();
    for kind in ["tls-srtp", "openvpn-aes-128"] {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[callers]\nrate = 5.0\ntotal = 3\nhold_seconds = 2.0\nmedia = \"tone\"\n\
             [callees]\nmedia = \"tone\"\n{network}\n[protection]\nkind = \"{kind}\""
        );
        let outcomes = on_sockets(&trial(&text), |_, _| ()).unwrap();
        assert_eq!(completed(&outcomes), 3, "{kind}: {:?}", outcomes.remarks);
        // The link is on the access side alone: 20 ms towards the border, 5 ms back.
        let (up, down) = (
            mean_delay(&outcomes, "callee"),
            mean_delay(&outcomes, "caller"),
        );
        assert!((19.9..45.0).contains(&up), "{kind}: {up} ms");
        assert!((4.9..30.0).contains(&down), "{kind}: {down} ms");
        let [link] = &outcomes.links[..] else {
            panic!("{:?}", outcomes.links);
        };
        assert_eq!(link.name, "callers");
        bytes.push(measured(&outcomes, "esp.call_kbit"));
    }
    // A packet of G.711 has 212 bytes with SRTP and without the tunnel, and 272 in it.
    assert!(bytes[1] > bytes[0] * 1.1, "{bytes:?}");
}

/// Both modes of our own ESP. Its packets are on the link, with the bytes of the format: one with a changed bit, and a
/// second copy, are refused by the gateway and reach neither border nor callers.
#[test]
fn our_esp_carries_calls_over_a_link_in_real_time() {
    if !able() {
        return;
    }
    // IP packets with 200 bytes in the clear each 20 ms: 20 + 16 + 184 + 16 in transport mode with AES-GCM, and
    // 20 + 24 + 208 + 12 in tunnel mode with AES-CBC and HMAC-SHA1.
    for (kind, fault, count, bytes) in [
        ("esp-aes-gcm", "corrupt_percent", "corrupted", 236.0),
        (
            "esp-aes-cbc-sha1-tunnel",
            "duplicate_percent",
            "duplicated",
            264.0,
        ),
    ] {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[callers]\nrate = 5.0\ntotal = 3\nhold_seconds = 4.0\nmedia = \"tone\"\n\
             [callees]\nmedia = \"tone\"\n[network]\ndelay_ms = 20.0\n{fault} = 5.0\n\
             [network.down]\ndelay_ms = 5.0\n{fault} = 0.0\n[protection]\nkind = \"{kind}\"\ngateway = \"lab\""
        );
        let outcomes = on_sockets(&trial(&text), |_, _| ()).unwrap();
        assert_eq!(completed(&outcomes), 3, "{kind}: {:?}", outcomes.remarks);
        let (up, down) = (
            mean_delay(&outcomes, "callee"),
            mean_delay(&outcomes, "caller"),
        );
        assert!((19.9..45.0).contains(&up), "{kind}: {up} ms");
        assert!((4.9..30.0).contains(&down), "{kind}: {down} ms");
        let [link] = &outcomes.links[..] else {
            panic!("{:?}", outcomes.links);
        };
        // About 600 packets towards the border; the last ones may be under way when the gateways end.
        let faulty = link.directions[0][count].as_f64().unwrap();
        let refused = measured(&outcomes, "esp.refused_packets");
        assert!(
            faulty > 8.0 && (faulty - 3.0..=faulty).contains(&refused),
            "{kind}: {refused} of {faulty}"
        );
        let lost = |side: &str| -> u64 {
            let streams = outcomes.streams.iter().filter(|s| s.side == side);
            streams.map(|s| s.lost + s.duplicates).sum()
        };
        match count {
            "corrupted" => assert!((5..70).contains(&lost("callee")), "{}", lost("callee")),
            _ => assert_eq!(lost("callee"), 0),
        }
        assert_eq!(lost("caller"), 0, "{kind}");
        // Signalling is a part of it.
        let media_kbit = bytes * 8.0 * 50.0 / 1e3;
        let kbit = measured(&outcomes, "esp.call_kbit");
        assert!(
            (media_kbit * 0.96..media_kbit * 1.25).contains(&kbit),
            "{kind}: {kbit}, media {media_kbit}"
        );
        // The time of the gateways is without that of the link.
        let [_, median, _] = outcomes.protection_ms.unwrap();
        assert!(median.is_some_and(|ms| ms < 4.9), "{median:?}");
        assert!(measured(&outcomes, "esp.gateway_us") > 0.0);
    }
}
