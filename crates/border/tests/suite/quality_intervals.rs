//! Quality of media in intervals, while calls are stored.

use crate::ng_client;
use crate::virtual_network;

use border::admission::{MediaOffload, MediaPath};
use engine::{EventKind, Hundredths, MessageBatch, ReportedJitter};
use ng_client::World;
use sip::{LegId, MessageContent};
use std::time::Duration;
use virtual_network::*;

/// Figures of the caller and the callee in one interval: packets, lost, loss in hundredths of a percent, jitter, MOS.
type Side = (
    Option<u64>,
    Option<u64>,
    Option<Hundredths>,
    Option<Hundredths>,
    Option<Hundredths>,
);

/// The intervals of all calls: number of the call, milliseconds, sides.
fn intervals(net: &VirtualNetwork) -> Vec<(u64, u64, [Side; 2])> {
    let all = net.events.iter().filter_map(|event| match event.kind {
        EventKind::CallMediaInterval {
            call,
            interval_ms,
            caller_packets,
            caller_lost,
            caller_loss_percent,
            caller_jitter_ms,
            caller_mos,
            callee_packets,
            callee_lost,
            callee_loss_percent,
            callee_jitter_ms,
            callee_mos,
        } => Some((
            call,
            interval_ms,
            [
                (
                    caller_packets,
                    caller_lost,
                    caller_loss_percent,
                    caller_jitter_ms.map(ReportedJitter::hundredths),
                    caller_mos,
                ),
                (
                    callee_packets,
                    callee_lost,
                    callee_loss_percent,
                    callee_jitter_ms.map(ReportedJitter::hundredths),
                    callee_mos,
                ),
            ],
        )),
        _ => None,
    });
    all.collect()
}

fn with_store(interval: &str) -> String {
    format!("{PLAIN}[store]\nfolder=\"/var/lib/x\"\nquality_interval_s={interval}\n")
}

fn network(config: &str) -> (VirtualNetwork, usize, usize) {
    let mut net = VirtualNetwork::new(config, 1);
    net.border.record_messages(Some(MessageBatch::new(1 << 20)));
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    (net, alice, bob)
}

fn call(net: &mut VirtualNetwork, alice: usize) -> LegId {
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(Duration::from_millis(100));
    leg
}

fn hang_up(net: &mut VirtualNetwork, phone: usize, leg: LegId) {
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(Duration::from_secs(40));
}

fn rtp(sequence: u16, ssrc: u8) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 0, ssrc, 2, 3, 4];
    packet[2..4].copy_from_slice(&sequence.to_be_bytes());
    packet[4..8].copy_from_slice(&(u32::from(sequence) * 160).to_be_bytes());
    packet.extend([0x55; 160]);
    packet
}

fn port_of(body: &str) -> u16 {
    let rest = body.split("m=audio ").nth(1).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Audio of both sides; the packets of the caller that `lost` names are lost before the border.
fn speak(
    net: &mut VirtualNetwork,
    (alice, bob): (usize, usize),
    sequences: std::ops::Range<u16>,
    lost: impl Fn(u16) -> bool,
) {
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    let to_caller_side = format!("192.0.2.1:{}", port_of(&answered.body()));
    let to_callee_side = format!("198.51.100.1:{}", port_of(&offered.body()));
    for sequence in sequences {
        if !lost(sequence) {
            net.send_raw("10.1.0.1:4000", &to_caller_side, &rtp(sequence, 1));
        }
        net.send_raw("10.2.0.1:5000", &to_callee_side, &rtp(sequence, 9));
        net.run(Duration::from_millis(20));
    }
}

/// Loss that begins in the middle of a call is in the later intervals alone, and the intervals add up to the call.
#[test]
fn loss_shows_in_its_intervals() {
    let (mut net, alice, bob) = network(&with_store("5"));
    let leg = call(&mut net, alice);
    speak(&mut net, (alice, bob), 0..600, |_| false);
    speak(&mut net, (alice, bob), 600..1_100, |sequence| {
        sequence % 10 == 5
    });
    // The last interval of a call in progress.
    let live = net.border.calls_after(None, 1).remove(0).media;
    let codecs = live.each_ref().map(|side| side.codec.as_deref());
    assert_eq!(codecs, [Some("PCMU"), Some("PCMU")]);
    assert!(
        (940..=1_060).contains(&live[0].loss_percent.unwrap().0),
        "{live:?}"
    );
    assert!(live[0].mos < live[1].mos, "{live:?}");
    hang_up(&mut net, alice, leg);
    let all = intervals(&net);
    assert!((4..=6).contains(&all.len()), "{all:#?}");
    assert!(
        all[1..all.len() - 1]
            .iter()
            .all(|one| (4_900..=5_200).contains(&one.1)),
        "{all:#?}"
    );
    // 12 s without loss: the intervals that ended before.
    let mut elapsed = 0;
    for (_, span, [caller, callee]) in &all {
        elapsed += span;
        // The first one is up to half an interval longer or shorter.
        assert!(*span <= 7_600, "{all:#?}");
        if elapsed < 12_000 {
            assert_eq!(caller.1, Some(0), "{all:#?}");
            assert!(caller.4 > Some(Hundredths(430)), "{all:#?}");
        }
        assert_eq!(callee.1, Some(0), "{all:#?}");
    }
    // The last whole interval has loss alone: a tenth, give or take a packet.
    let [caller, callee] = all[all.len() - 2].2;
    let loss = caller.2.unwrap().0;
    assert!((940..=1_060).contains(&loss), "{all:#?}");
    assert!(
        caller.4 < Some(Hundredths(360)) && callee.4 > Some(Hundredths(430)),
        "{all:#?}"
    );
    let sum = |of: fn(&[Side; 2]) -> Option<u64>| -> u64 {
        all.iter().filter_map(|(_, _, sides)| of(sides)).sum()
    };
    assert_eq!(sum(|sides| sides[0].0), 1_050);
    assert_eq!(sum(|sides| sides[0].1), 50);
    assert_eq!(sum(|sides| sides[1].0), 1_100);
    assert_eq!(net.border.census().quality_intervals, 0);
}

/// Jitter of an interval is its own.
#[test]
fn jitter_shows_in_its_intervals() {
    let (mut net, alice, bob) = network(&with_store("5"));
    let leg = call(&mut net, alice);
    speak(&mut net, (alice, bob), 0..600, |_| false);
    net.link_conditions.jitter = Duration::from_millis(15);
    speak(&mut net, (alice, bob), 600..1_200, |_| false);
    net.link_conditions.jitter = Duration::ZERO;
    hang_up(&mut net, alice, leg);
    let all = intervals(&net);
    let jitter: Vec<u64> = all
        .iter()
        .map(|(_, _, sides)| sides[0].3.unwrap().0)
        .collect();
    assert_eq!(jitter[0], 0, "{all:#?}");
    // The mean difference of two uniform delays of 0 to 15 ms is 5 ms.
    assert!(
        (400..=600).contains(&jitter[jitter.len() - 2]),
        "{jitter:?}"
    );
}

/// Silence has intervals without figures; short calls have none; many calls are queried at different times.
#[test]
fn calls_are_queried_apart() {
    let (mut net, alice, _) = network(&with_store("5"));
    let legs: Vec<LegId> = (0..30).map(|_| call(&mut net, alice)).collect();
    net.run(Duration::from_secs(21));
    let all = intervals(&net);
    let of_call = |number: u64| all.iter().filter(|(call, ..)| *call == number).count();
    for number in 1..=30 {
        assert!(
            (3..=5).contains(&of_call(number)),
            "call {number}: {}",
            of_call(number)
        );
    }
    let times = net
        .events
        .iter()
        .filter_map(|event| (event.kind.name() == "call_media_interval").then_some(event.at));
    let mut counts = std::collections::BTreeMap::<_, usize>::new();
    for at in times {
        *counts.entry(at).or_default() += 1;
    }
    assert!(counts.values().all(|count| *count <= 2), "{counts:?}");
    assert!(
        all.iter().all(|(_, _, sides)| sides[0].0.is_none()),
        "{all:#?}"
    );
    for leg in legs {
        net.command(alice, |endpoint, now| {
            let _ = endpoint.bye(leg, &MessageContent::default(), now);
        });
    }
    net.run(Duration::from_secs(40));
    assert_eq!(net.border.census().quality_intervals, 0);
    let before = intervals(&net).len();
    let leg = call(&mut net, alice);
    hang_up(&mut net, alice, leg);
    assert_eq!(intervals(&net).len(), before, "shorter than an interval");
    net.assert_quiet();
}

/// While the kernel relays media, at most five calls are queried at a time; all get their turn.
#[test]
fn kernel_relay_is_queried_in_turns() {
    let (mut net, alice, _) = network(&with_store("5"));
    net.border.set_media_offload(MediaOffload {
        path: MediaPath::Kernel,
        ..MediaOffload::default()
    });
    // 5 s of 50 ticks with five calls are 250 calls: these need two and a half intervals.
    for _ in 0..600 {
        let offer = MessageContent::sdp(SDP_A.as_bytes());
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(Duration::from_millis(2));
    }
    net.run(Duration::from_secs(30));
    let all = intervals(&net);
    let mut times = std::collections::BTreeMap::<_, usize>::new();
    for event in net
        .events
        .iter()
        .filter(|event| event.kind.name() == "call_media_interval")
    {
        *times.entry(event.at).or_default() += 1;
    }
    assert!(times.values().all(|count| *count <= 5), "{times:?}");
    let calls: std::collections::BTreeSet<u64> = all.iter().map(|one| one.0).collect();
    let standing = net.border.call_numbers().len();
    assert!(
        standing > 300 && calls.len() == standing,
        "{} of {standing}",
        calls.len()
    );
}

/// Without a store, or with an interval of 0, there are none.
#[test]
fn intervals_can_be_off() {
    for config in [with_store("0"), PLAIN.to_owned()] {
        let (mut net, alice, bob) = network(&config);
        let leg = call(&mut net, alice);
        speak(&mut net, (alice, bob), 0..700, |_| false);
        hang_up(&mut net, alice, leg);
        assert_eq!(intervals(&net).len(), 0);
    }
}

/// A border with a store whose calls are at media nodes.
fn at_nodes() -> World {
    let store = "[store]\nfolder=\"/var/lib/x\"\nquality_interval_s=5\n";
    let mut world =
        World::new(&ng_client::config("").replacen("[media]", &format!("{store}[media]"), 1));
    let messages = Some(MessageBatch::new(1 << 20));
    world.net.border.record_messages(messages);
    world
}

/// Audio of both sides to the ports that they were given last; the packets of the caller that `lost` names are lost
/// before the node.
fn speak_at_node(world: &mut World, sequences: std::ops::Range<u16>, lost: impl Fn(u16) -> bool) {
    let address = |body: &str| {
        let rest = body.split("c=IN IP4 ").nth(1).unwrap();
        format!("{}:{}", rest.lines().next().unwrap(), port_of(body))
    };
    let from_caller = address(&world.last_description(world.alice, None));
    let from_callee = address(&world.last_description(world.bob, None));
    for sequence in sequences {
        if !lost(sequence) {
            let packet = rtp(sequence, 1);
            world.net.send_raw("10.1.0.1:4000", &from_caller, &packet);
        }
        let packet = rtp(sequence, 9);
        world.net.send_raw("10.2.0.1:5000", &from_callee, &packet);
        world.net.run(Duration::from_millis(20));
    }
}

/// The figures of a media node have intervals, too, which add up to the call.
#[test]
fn intervals_at_a_media_node_add_up_to_the_call() {
    let mut world = at_nodes();
    let leg = world.call();
    speak_at_node(&mut world, 0..600, |_| false);
    world.net.link_conditions.jitter = Duration::from_millis(15);
    speak_at_node(&mut world, 600..1_200, |sequence| sequence % 10 == 5);
    world.net.link_conditions.jitter = Duration::ZERO;
    let live = world.net.border.calls_after(None, 1).remove(0).media;
    assert_eq!(live[0].codec.as_deref(), Some("PCMU"));
    assert!(live[0].mos < live[1].mos, "{live:?}");
    world.bye(leg);
    let all = intervals(&world.net);
    assert!((4..=7).contains(&all.len()), "{all:#?}");
    let [first, _] = all[0].2;
    assert_eq!(
        (first.1, first.3),
        (Some(0), Some(Hundredths(0))),
        "{all:#?}"
    );
    assert!(first.4 > Some(Hundredths(430)), "{all:#?}");
    let [caller, callee] = all[all.len() - 2].2;
    assert!((900..=1_100).contains(&caller.2.unwrap().0), "{all:#?}");
    assert!((400..=700).contains(&caller.3.unwrap().0), "{all:#?}");
    assert!(caller.4 < Some(Hundredths(360)), "{all:#?}");
    assert_eq!(callee.1, Some(0), "{all:#?}");
    let sum = |of: fn(&[Side; 2]) -> Option<u64>| -> u64 {
        all.iter().filter_map(|(_, _, sides)| of(sides)).sum()
    };
    assert_eq!(sum(|sides| sides[0].0), 1_140);
    assert_eq!(sum(|sides| sides[0].1), 60);
    assert_eq!(sum(|sides| sides[1].0), 1_200);
    assert_eq!(world.net.border.census().quality_intervals, 0);
    world.assert_quiet();
}

/// Another node counts from its own begin: nothing that the first one counted is taken off.
#[test]
fn intervals_go_on_at_another_node() {
    let mut world = at_nodes();
    let leg = world.call();
    speak_at_node(&mut world, 0..600, |_| false);
    let first = usize::from(world.calls() == [0, 1]);
    world.nodes[first].0.borrow_mut().dead = true;
    world.net.run(Duration::from_secs(8));
    assert_eq!(world.event_count("call_reanchored"), 1);
    let before = intervals(&world.net).len();
    speak_at_node(&mut world, 600..1_200, |_| false);
    world.bye(leg);
    let all = intervals(&world.net);
    let later: u64 = all[before..]
        .iter()
        .filter_map(|(_, _, sides)| sides[1].0)
        .sum();
    assert_eq!(later, 600, "{all:#?}");
    assert_eq!(world.net.border.census().quality_intervals, 0);
}

/// A node that is restarted and gets its call again counts from zero.
#[test]
fn intervals_go_on_at_a_restarted_node() {
    let mut world = at_nodes();
    let leg = world.call();
    speak_at_node(&mut world, 0..600, |_| false);
    let home = usize::from(world.calls() == [0, 1]);
    // The other node is down: the call returns to its own one.
    world.nodes[1 - home].0.borrow_mut().dead = true;
    world.net.run(Duration::from_secs(2));
    world.restart(home);
    world.net.run(Duration::from_secs(6));
    assert_eq!(world.event_count("call_reanchored"), 1);
    assert_eq!(world.calls()[home], 1);
    let before = intervals(&world.net).len();
    speak_at_node(&mut world, 600..1_000, |_| false);
    world.bye(leg);
    let all = intervals(&world.net);
    let later = all[before..].iter().filter_map(|(_, _, sides)| sides[1].0);
    assert_eq!(later.sum::<u64>(), 400, "{all:#?}");
}
