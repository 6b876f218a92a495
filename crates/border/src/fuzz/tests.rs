use super::*;

/// Encodes a step.
fn step(kind: u8, choice: u8, bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    let mut out = vec![kind, choice, (padded.len() / 4) as u8];
    out.extend(padded);
    out
}

const AUDIO: u8 = 0;
const SDES: u8 = 10;
const NO_BODY: u8 = 9;

/// An INVITE to the trunk, answered, acknowledged on both sides, with a packet, and ended.
#[test]
fn steps_set_up_and_end_a_call() {
    let steps = [
        step(7, 0, &[0, 0x0f, AUDIO, 0, 0, 3]),
        step(9, 1, &[0, 0, AUDIO, 0]),
        step(9, 3, &[0, 0, AUDIO, 0]),
        step(11, 0, &[0, 0, NO_BODY, 0]),
        step(13, 0, &[0, 0]),
        step(5, 10, &[]),
        step(11, 1, &[0, 0, NO_BODY, 0]),
        step(9, 3, &[0, 0, NO_BODY, 0]),
    ]
    .concat();
    let reached = explore(&steps, None);
    println!("{reached:?}");
    assert_eq!(reached.counters.answered, 1);
    assert_eq!(reached.counters.completed, 1);
    assert!(reached.events.contains(&"call_ended"));
}

/// Number of a signalling socket in the first configuration, by its address.
fn socket_of(address: &str) -> u8 {
    let harness = FuzzHarness::new(&[], None);
    let mut sockets = harness
        .sockets
        .values()
        .filter(|(kind, _)| *kind == SocketKind::UdpSignalling);
    sockets
        .position(|(_, local)| *local == address.parse().unwrap())
        .unwrap() as u8
}

/// A call from the interface that requires SRTP: the caller's media socket is the first one.
fn call_with_srtp(body: u8) -> Vec<Vec<u8>> {
    let from = socket_of("192.0.2.5:5060");
    vec![
        // To the PBX, which has no SRTP.
        step(7, 0, &[0, 0x0f, body, 0, 70, from]),
        step(9, 1, &[4, 0, NO_BODY, 0]),
        step(9, 3, &[0, 0, AUDIO, 0]),
        step(11, 0, &[0, 0, NO_BODY, 0]),
    ]
}

/// Keys in SDP: SRTP packets of the peer are unprotected and relayed.
#[test]
fn srtp_packets_pass_in_a_call_with_sdes() {
    let mut steps = call_with_srtp(SDES);
    for socket in 0..8 {
        steps.push(step(13, socket << 3, &[0, 4]));
        steps.push(step(13, socket << 3, &[0, 5]));
    }
    let reached = explore(&steps.concat(), None);
    println!("{reached:?}");
    assert_eq!(reached.counters.answered, 1);
    assert!(reached.events.contains(&"media_security_agreed"));
    assert!(reached.forwarded > 0);
}

/// Random steps: a small fuzzer for machines without the real one.
#[test]
fn random_steps_hold_the_invariants() {
    let mut reached = std::collections::BTreeMap::new();
    let mut answered = 0;
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(400u64) {
        let mut entropy = Entropy::from_number(seed);
        let mut data = Vec::new();
        for _ in 0..60 {
            let mut bytes = vec![0; 4 * entropy.below(4) as usize];
            entropy.fill(&mut bytes);
            let what = entropy.u32().to_be_bytes();
            data.extend(step(what[0], what[1], &bytes));
        }
        let found = explore(&data, None);
        answered += found.counters.answered;
        for name in found.events {
            *reached.entry(name).or_insert(0) += 1;
        }
    }
    println!("{answered} {reached:?}");
    assert!(answered > 20, "{answered}");
}

/// Former findings of the fuzzer.
#[test]
fn known_fuzz_findings_stay_fixed() {
    const FINDINGS: [&[u8]; 3] = [
        // A reload during a transfer: the new leg was removed from another trunk than it was counted on.
        &[7, 1, 0, 9, 3, 0, 11, 0, 0, 11, 7, 0, 15, 1, 13],
        // The new leg of a transfer ended before the transfer was complete: it stayed counted on its trunk.
        &[
            7, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 33, 0, 0, 0, 9, 3, 1, 0, 0, 0, 0, 11, 0, 1,
            0, 0, 9, 0, 11, 7, 1, 2, 0, 9, 0, 9, 3, 1, 0, 0, 2, 72, 72, 72, 72, 0, 8, 0, 0, 0, 3,
            1, 0, 0, 0, 0, 106, 0, 1, 0, 0, 9, 0, 0, 0, 3, 0, 0, 9, 0, 11, 7, 0, 2, 0, 15, 0, 0, 0,
            2, 0, 0, 9, 1, 1, 0, 1, 11, 255, 255, 255, 255, 7, 0, 0, 2, 0, 0, 9, 1, 1, 0, 0, 0, 0,
            2, 0, 15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 9, 3, 1, 0, 0, 0, 0, 11, 0, 1, 0, 0,
            9, 0, 15, 1, 0, 13, 0, 0, 15, 1, 0, 13, 0, 1, 0, 0, 0, 0, 11, 1, 1, 0, 220, 0, 2, 0,
            15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 9, 3, 1, 0, 0, 0, 13, 0, 0, 15, 1, 0, 13, 0,
            1, 0, 0, 0, 0, 11, 1, 1, 0, 220, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 9,
            3, 1, 0, 0, 0, 0, 11, 0, 1, 0, 0, 41, 0, 9, 0, 15, 0, 0, 7, 0, 2, 0, 15, 0, 0, 0, 3, 0,
            0, 9, 1, 1, 0, 0, 0, 0, 15, 2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0, 3, 0, 15, 0, 0,
            0, 2, 0, 0, 9, 1, 1, 0, 0, 0, 0, 11, 0, 0, 1, 11, 255, 255, 255, 255, 7, 0, 0, 2, 0, 0,
            9, 1, 1, 0, 0, 0, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 9, 3, 1, 0, 0, 0,
            0, 11, 0, 1, 0, 0, 9, 0, 15, 1, 0, 13, 0, 0, 15, 1, 0, 13, 0, 1, 0, 0, 0, 0, 11, 1, 1,
            0, 220, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 9, 3, 15, 0, 0, 0, 11, 0,
            0, 1, 11, 255, 255, 255, 0, 0, 9, 0, 15, 1, 0, 13, 0, 0, 15, 1, 0, 13, 0, 1, 9, 9, 3,
            133, 22, 1, 0, 1, 3, 1, 0, 0, 0, 0, 9, 0, 0, 0, 9, 39, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0,
            0, 0, 15, 2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 255, 255,
            255, 255, 255, 255, 255, 255, 255, 255, 102, 255, 255, 255, 255, 255, 255, 255,
        ],
        // A failed attended transfer: the leg of the other call stayed counted.
        &[
            7, 0, 2, 0, 7, 3, 2, 45, 3, 1, 0, 4, 9, 0, 7, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 9, 3,
            1, 0, 0, 0, 0, 11, 0, 1, 0, 0, 41, 0, 7, 0, 2, 0, 15, 0, 0, 0, 0, 1, 1, 0, 0, 2, 0, 15,
            0, 0, 0, 3, 0, 0, 9, 1, 1, 0, 0, 0, 0, 66, 9, 3, 1, 0, 0, 0, 0, 11, 0, 1, 0, 0, 41, 0,
            7, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0, 254, 1, 1, 0, 0, 0, 0, 9, 3, 1, 0, 0, 0, 0, 11, 0, 1,
            0, 0, 9, 0, 11, 7, 2, 213, 2, 2, 9, 0, 4, 0, 0, 0, 9, 3, 0, 0, 0, 0, 9, 3, 1, 0, 0, 0,
            0, 0, 9, 3, 1, 0, 0, 0, 0, 11, 0, 1, 0, 0, 41, 0, 7, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0,
            254, 1, 1, 0, 0, 0, 0, 9, 3, 1, 0, 0, 0, 0, 11, 0, 1, 0, 0, 9, 0, 11, 7, 2, 11, 0, 1,
            0, 0, 41, 0, 7, 0, 2, 0, 15, 0, 0, 0, 3, 0, 0, 254, 1, 1, 0, 9, 0, 11, 6, 2, 213, 2, 2,
            9, 0, 0, 9, 0, 11, 7, 2, 213, 2, 2, 9, 0, 4, 0,
        ],
    ];
    for finding in FINDINGS {
        explore(finding, None);
    }
}
