//! Media nodes that fail or lose their calls: each call is re-anchored at another node or ended, and none stays silent.

use crate::ng_client::{NodeHost, World, config};
use crate::ng_server_rig::{addr, port_of, rtp};
use crate::virtual_network;

use engine::{EventKind, Time};
use sip::{Ending, LegId, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::sip::Method;

fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

impl World {
    fn kill(&mut self, node: usize) {
        self.nodes[node].0.borrow_mut().dead = true;
    }

    /// Restarts a node without its calls.
    pub fn restart(&mut self, node: usize) {
        *self.nodes[node].0.borrow_mut() = NodeHost::new(node);
    }

    /// The description that a phone received last in a leg.
    pub fn last_description(&self, phone: usize, leg: Option<LegId>) -> String {
        let entry = self.net.log(phone).iter().rev();
        let mut entry = entry.filter(|entry| leg.is_none() || entry.leg == leg);
        let found = entry.find(|entry| !entry.bytes.is_empty() && entry.body().contains("m=audio"));
        found.expect("a description").body()
    }

    /// Number of packets out of five from each side that arrive, using the last descriptions.
    fn relayed_packets(&mut self) -> (usize, usize) {
        let target = |sdp: String| {
            let host = sdp.split("c=IN IP4 ").nth(1).unwrap();
            let host = host.split("\r\n").next().unwrap().to_owned();
            format!("{host}:{}", port_of(&sdp))
        };
        let there = target(self.last_description(self.alice, None));
        let back = target(self.last_description(self.bob, None));
        self.net.media.clear();
        for sequence in 0..5 {
            self.net
                .send_raw("10.1.0.1:4000", &there, &rtp(7, sequence));
            self.net.send_raw("10.2.0.1:5000", &back, &rtp(8, sequence));
            self.net.run(millis(20));
        }
        let came = |to: &str| {
            let to = addr(to);
            self.net.media.iter().filter(|(at, ..)| *at == to).count()
        };
        (came("10.2.0.1:5000"), came("10.1.0.1:4000"))
    }

    /// The logged moves of calls: number, from, to, milliseconds, time.
    fn logged_moves(&self) -> Vec<(u64, String, String, u64, Time)> {
        let notes = self.net.events.iter();
        notes
            .filter_map(|event| match &event.kind {
                EventKind::CallReanchored {
                    call,
                    from_node: from,
                    to_node: to,
                    duration_ms: took_ms,
                } => Some((*call, from.clone(), to.clone(), *took_ms, event.at)),
                _ => None,
            })
            .collect()
    }

    /// When a node was detected as failed.
    fn failure_time(&self) -> Time {
        let down = |event: &&engine::Event| matches!(event.kind, EventKind::MediaNodeDown { .. });
        self.net.events.iter().find(down).expect("noticed").at
    }

    fn ended(&self, phone: usize) -> usize {
        let entry = self.net.log(phone).iter();
        entry
            .filter(|entry| matches!(entry.event, PhoneEvent::Ended(_)))
            .count()
    }

    fn bob_leg(&self) -> LegId {
        let offered = self
            .net
            .last(self.bob, |event| *event == PhoneEvent::Offered);
        offered.leg.unwrap()
    }
}

/// User and session, version, and the rest of `o=`.
fn origin(sdp: &str) -> (String, u64, String) {
    let line = sdp
        .split("o=")
        .nth(1)
        .unwrap()
        .split("\r\n")
        .next()
        .unwrap();
    let words: Vec<&str> = line.splitn(4, ' ').collect();
    let session = format!("{} {}", words[0], words[1]);
    (session, words[2].parse().unwrap(), words[3].to_owned())
}

#[test]
fn call_of_a_failed_node_moves_to_another() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    assert_eq!(world.calls(), [1, 0]);
    assert_eq!(world.relayed_packets(), (5, 5));
    let before = [world.alice, world.bob].map(|phone| origin(&world.last_description(phone, None)));
    let died = world.net.now;
    world.kill(0);
    world.net.run(seconds(3));
    let noticed = world.failure_time();
    assert!(noticed.0 - died.0 <= 1_000_000_000, "{noticed} {died}");
    assert_eq!(world.relayed_packets(), (5, 5), "{:#?}", world.net.names());
    assert_eq!(world.calls()[1], 1);
    let moves = world.logged_moves();
    assert_eq!(moves.len(), 1);
    let (_, from, to, took, _) = &moves[0];
    assert_eq!((from.as_str(), to.as_str()), ("one", "two"));
    assert!(*took <= 2_000, "{took}");
    for (phone, before) in [world.alice, world.bob].into_iter().zip(before) {
        let after = origin(&world.last_description(phone, None));
        assert_eq!(
            after,
            (before.0, before.1 + 1, before.2),
            "the same session"
        );
    }
    // A later change by a phone continues the version numbers.
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    world.net.command(world.alice, |endpoint, now| {
        let content = MessageContent::sdp(hold.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    assert_eq!(origin(&world.last_description(world.bob, None)).1, 3);
    assert_eq!(world.ended(world.alice), 0);
    // The failed node returns with its call, and gets a delete command.
    world.nodes[0].0.borrow_mut().dead = false;
    world.net.run(seconds(2));
    assert_eq!(world.calls(), [0, 1]);
    assert_eq!(world.event_count("media_node_up"), 1);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn call_of_a_failed_node_ends_with_a_reason_if_configured() {
    let mut world = World::new(&config("node_failure='end'\n"));
    world.call();
    world.kill(0);
    world.net.run(seconds(3));
    for phone in [world.alice, world.bob] {
        let bye = world
            .net
            .find(phone, |event| *event == PhoneEvent::Ended(Ending::Peer));
        assert!(
            bye.header("Reason").contains("Media lost"),
            "{}",
            bye.text()
        );
        assert!(bye.at.0 - world.failure_time().0 <= 2_000_000_000);
    }
    let lost = world.net.events.iter().find_map(|event| match &event.kind {
        EventKind::CallNotReanchored {
            node, reason: why, ..
        } => Some((node.clone(), why.clone())),
        _ => None,
    });
    assert_eq!(lost, Some(("one".to_owned(), "no answer".to_owned())));
    assert_eq!(world.event_count("call_reanchored"), 0);
    world.assert_quiet();
}

/// The node's host reports the command port as unreachable.
#[test]
fn unreachable_port_is_a_failed_node_at_once() {
    let mut world = World::new(&config("node_failure='end'\n"));
    world.call();
    world.net.reports_unreachable = true;
    world.net.programs.remove(0);
    let died = world.net.now;
    world.net.run(seconds(1));
    assert!(world.failure_time().0 - died.0 <= 300_000_000);
    let why = world.net.events.iter().find_map(|event| match &event.kind {
        EventKind::CallNotReanchored { reason: why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("unreachable"));
    assert_eq!(world.ended(world.alice), 1);
}

#[test]
fn call_without_another_node_waits_and_ends_in_time() {
    let mut world = World::new(&config("node_failure_wait_s=5\n"));
    world.call();
    world.kill(0);
    world.kill(1);
    world.net.run(seconds(4));
    assert_eq!(world.ended(world.alice), 0, "the call waits");
    world.net.run(seconds(3));
    assert_eq!(world.ended(world.alice), 1);
    assert_eq!(world.ended(world.bob), 1);
    let why = world.net.events.iter().find_map(|event| match &event.kind {
        EventKind::CallNotReanchored { reason: why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("no other node"));
    world.assert_quiet();
}

#[test]
fn call_waits_without_limit_if_configured_and_moves_to_the_first_node() {
    let mut world = World::new(&config("node_failure_wait_s=0\n"));
    let leg = world.call();
    world.kill(0);
    world.kill(1);
    world.net.run(seconds(100));
    assert_eq!(world.ended(world.alice), 0);
    world.restart(0);
    world.net.run(seconds(3));
    assert_eq!(world.calls()[0], 1, "its own node, restarted");
    assert_eq!(world.relayed_packets(), (5, 5));
    world.bye(leg);
    world.restart(1);
    world.assert_quiet();
}

/// Only the path to the node failed: its calls still exist and are not moved.
#[test]
fn returning_node_keeps_its_calls() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    world.kill(0);
    world.kill(1);
    world.net.run(seconds(10));
    world.nodes[0].0.borrow_mut().dead = false;
    world.net.run(seconds(3));
    assert_eq!(world.calls(), [1, 0]);
    assert_eq!(world.relayed_packets(), (5, 5));
    assert!(
        !world
            .net
            .has(world.bob, |event| matches!(event, PhoneEvent::Request(_)))
    );
    assert_eq!(world.event_count("call_reanchored"), 0);
    world.bye(leg);
    world.restart(1);
    world.assert_quiet();
}

/// The node returns before its failure was detected, without calls.
#[test]
fn restarted_node_has_lost_its_calls() {
    let text = config("").replace("name='two'", "name='two'\ndrain=true");
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..6).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [6, 0]);
    world.restart(0);
    world.net.run(seconds(3));
    assert_eq!(world.event_count("media_node_down"), 0);
    assert_eq!(world.event_count("media_node_restarted"), 1);
    assert_eq!(world.event_count("call_reanchored"), 6);
    assert_eq!(world.calls(), [6, 0]);
    assert_eq!(world.relayed_packets(), (5, 5));
    for leg in legs {
        world.bye(leg);
    }
    world.assert_quiet();
}

#[test]
fn two_hundred_calls_move_in_time_oldest_first() {
    let text = config("").replace("name='two'", "name='two'\ndrain=true");
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..200).map(|_| world.offer()).collect();
    world.net.run(seconds(2));
    assert_eq!(world.calls(), [200, 0]);
    let open = config::parse(&config(""), "test.toml").unwrap();
    world.net.control(|border, now| border.reload(open, now));
    world.kill(0);
    world.net.run(seconds(3));
    let moves = world.logged_moves();
    assert_eq!(moves.len(), 200);
    let numbers: Vec<u64> = moves.iter().map(|moved| moved.0).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(moves.iter().all(|moved| moved.3 <= 2_000), "{moves:?}");
    // Not all at once: 25 in 10 ms.
    let spread = moves[199].4.0 - moves[0].4.0;
    assert!(spread >= 60_000_000, "{spread}");
    assert_eq!(world.calls()[1], 200);
    for leg in &legs {
        let sdp = world.last_description(world.alice, Some(*leg));
        assert!(sdp.contains("192.0.2.102"), "{sdp}");
    }
    for leg in legs {
        world.net.command(world.alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
    }
    world.restart(0);
    world.net.run(seconds(1));
    world.assert_quiet();
}

#[test]
fn rate_of_moves_is_limited() {
    let mut world = World::new(&config("node_failure_calls_per_s=10\n"));
    let legs: Vec<LegId> = (0..20).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [10, 10]);
    world.kill(0);
    world.net.run(seconds(3));
    let moves = world.logged_moves();
    assert_eq!(moves.len(), 10);
    let spread = moves[9].4.0 - moves[0].4.0;
    assert!(spread >= 850_000_000, "{spread}");
    for leg in legs {
        world.bye(leg);
    }
    world.assert_quiet();
}

#[test]
fn moves_retry_after_glare_on_both_sides() {
    for glare in ["alice", "bob"] {
        let mut world = World::new(&config(""));
        let leg = world.call();
        let phone = match glare {
            "alice" => world.alice,
            _ => world.bob,
        };
        world.net.phones[phone].log.behaviour.inside = Some(491);
        world.kill(0);
        world.net.run(seconds(2));
        assert_eq!(world.event_count("call_reanchored"), 0);
        world.net.phones[phone].log.behaviour.inside = Some(200);
        world.net.run(seconds(6));
        assert_eq!(world.event_count("call_reanchored"), 1, "{glare}");
        assert_eq!(world.relayed_packets(), (5, 5), "{glare}");
        world.bye(leg);
        world.assert_quiet();
    }
}

/// A re-INVITE of the caller is in progress when the node fails, and is answered later.
#[test]
fn call_with_a_pending_re_invite_moves_afterwards() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    let bob = world.bob;
    world.net.phones[bob].log.behaviour.inside = None;
    world.net.command(world.alice, |endpoint, now| {
        let content = MessageContent::sdp(SDP_A.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(millis(100));
    world.kill(0);
    world.net.run(seconds(3));
    assert_eq!(world.event_count("call_reanchored"), 0);
    let asked = world
        .net
        .last(bob, |event| matches!(event, PhoneEvent::Request(_)));
    let PhoneEvent::Request(transaction) = asked.event else {
        panic!("{asked:?}");
    };
    world.net.phones[bob].log.behaviour.inside = Some(200);
    world.net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(SDP_B.as_bytes());
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    world.net.run(seconds(3));
    assert_eq!(
        world.event_count("call_reanchored"),
        1,
        "{:#?}",
        world.net.names()
    );
    assert_eq!(world.relayed_packets(), (5, 5));
    assert_eq!(world.ended(bob), 0);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn call_on_hold_stays_on_hold() {
    for holder in ["alice", "bob"] {
        let mut world = World::new(&config(""));
        let leg = world.call();
        let (holding, held, leg_of, sdp) = match holder {
            "alice" => (world.alice, world.bob, leg, SDP_A),
            _ => (world.bob, world.alice, world.bob_leg(), SDP_B),
        };
        let hold = format!("{sdp}a=sendonly\r\n");
        world.net.phones[holding].log.behaviour.sdp = hold.clone();
        world.net.command(holding, |endpoint, now| {
            let content = MessageContent::sdp(hold.as_bytes());
            endpoint
                .request(leg_of, Method::Invite, &content, now)
                .unwrap();
        });
        world.net.run(seconds(1));
        world.kill(0);
        world.net.run(seconds(3));
        assert_eq!(world.event_count("call_reanchored"), 1);
        let asked = world
            .net
            .last(holding, |event| matches!(event, PhoneEvent::Request(_)));
        assert_eq!(asked.body(), "", "{holder} is asked for the offer");
        let offered = world
            .net
            .last(held, |event| matches!(event, PhoneEvent::Request(_)));
        assert!(offered.body().contains("a=sendonly"), "{}", offered.text());
        world.bye(leg);
        world.assert_quiet();
    }
}

/// The callee rings when the node fails: the answer uses another node, and both sides agree on it at once.
#[test]
fn ringing_call_is_answered_through_another_node() {
    for early in [false, true] {
        let mut world = World::new(&config(""));
        let bob = world.bob;
        world.net.phones[bob].log.behaviour.answer = None;
        if early {
            world.net.phones[bob].log.behaviour.progress = vec![(183, false)];
        }
        let leg = world.offer();
        world.net.run(seconds(1));
        world.kill(0);
        world.net.run(seconds(3));
        assert_eq!(world.ended(world.alice), 0);
        let called = world.bob_leg();
        world.net.command(bob, |endpoint, now| {
            let content = MessageContent::sdp(SDP_B.as_bytes());
            endpoint.answer(called, 200, &content, now).unwrap();
        });
        world.net.run(seconds(2));
        let answered = world
            .net
            .find(world.alice, |event| *event == PhoneEvent::Answered);
        let answered = answered.body();
        assert!(answered.contains("192.0.2.102"), "{answered}");
        assert_eq!(world.event_count("call_reanchored"), 1);
        assert_eq!(world.relayed_packets(), (5, 5));
        assert_eq!(world.calls()[1], 1);
        world.bye(leg);
        world.restart(0);
        world.assert_quiet();
    }
}

#[test]
fn phone_refusing_an_empty_re_invite_gets_an_offer() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    // It refuses the empty re-INVITE; then the other side is asked for an offer, which it accepts.
    world.net.phones[world.alice].log.behaviour.inside = Some(488);
    world.kill(0);
    let mut refused = false;
    for _ in 0..300 {
        world.net.run(millis(10));
        if !refused
            && world
                .net
                .has(world.alice, |event| matches!(event, PhoneEvent::Request(_)))
        {
            refused = true;
            world.net.phones[world.alice].log.behaviour.inside = Some(200);
        }
    }
    assert!(refused);
    assert_eq!(
        world.event_count("call_reanchored"),
        1,
        "{:#?}",
        world.net.names()
    );
    assert_eq!(world.relayed_packets(), (5, 5));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn side_refusing_the_move_ends_the_call_with_a_reason() {
    let mut world = World::new(&config(""));
    world.call();
    world.net.phones[world.bob].log.behaviour.inside = Some(488);
    world.kill(0);
    world.net.run(seconds(3));
    assert_eq!(world.ended(world.alice), 1);
    let bye = world
        .net
        .find(world.bob, |event| *event == PhoneEvent::Ended(Ending::Peer));
    assert!(
        bye.header("Reason").contains("Media lost"),
        "{}",
        bye.text()
    );
    let why = world.net.events.iter().find_map(|event| match &event.kind {
        EventKind::CallNotReanchored { reason: why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("re-INVITE refused"));
    world.assert_quiet();
}

#[test]
fn side_hanging_up_during_a_move_ends_the_call() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    world.net.phones[world.bob].log.behaviour.inside = None;
    world.kill(0);
    world.net.run(seconds(2));
    assert_eq!(world.event_count("call_reanchored"), 0);
    world.bye(leg);
    world.net.run(seconds(1));
    assert_eq!(world.ended(world.bob), 1);
    assert_eq!(world.event_count("call_not_reanchored"), 0);
    world.assert_quiet();
}

#[test]
fn srtp_keys_are_new_at_the_new_node() {
    let text = config("").replace("name='out'", "name='out'\nsrtp='require'");
    let mut world = World::new(&text);
    let key =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj\r\n";
    let secure = SDP_A.replace("RTP/AVP", "RTP/SAVP") + key;
    world.net.phones[world.alice].log.behaviour.sdp = secure.clone();
    let content = MessageContent::sdp(secure.as_bytes());
    let leg = world
        .net
        .call(world.alice, "sip:bob@192.0.2.1", OUT, &content);
    world.net.run(seconds(1));
    let before = world.last_description(world.alice, None);
    world.kill(0);
    world.net.run(seconds(3));
    assert_eq!(world.event_count("call_reanchored"), 1);
    let after = world.last_description(world.alice, None);
    let key = |sdp: &str| sdp.split("inline:").nth(1).unwrap().to_owned();
    assert!(after.contains("192.0.2.102") && after.contains("RTP/SAVP"));
    assert_ne!(key(&before), key(&after));
    let bob = world.last_description(world.bob, None);
    assert!(bob.contains("RTP/AVP") && !bob.contains("crypto"), "{bob}");
    world.bye(leg);
    world.assert_quiet();
}

/// With loss and delay, no call has its media at the failed node after a while.
#[test]
fn no_call_stays_silent_on_lossy_links() {
    let (mut moved, mut ended) = (0, 0);
    for seed in 0..seeds(60) {
        let mut world = World::seeded(&config(""), seed);
        let legs: Vec<LegId> = (0..6).map(|_| world.call()).collect();
        let mut chance = engine::Entropy::from_number(seed ^ 0xfade);
        world.net.link_conditions = LinkConditions {
            loss: 0.3 * chance.unit(),
            repeat: 0.2 * chance.unit(),
            delay: millis(1 + chance.below(50)),
            jitter: millis(1 + chance.below(200)),
        };
        // The nodes are next to the border; the phones are remote.
        world.net.reliable_ports = vec![2223];
        world.kill(0);
        // Meanwhile phones change and end some calls.
        for leg in &legs {
            let what = chance.below(6);
            world.net.command(world.alice, |endpoint, now| {
                let content = MessageContent::sdp(SDP_A.as_bytes());
                let _ = match what {
                    0 => endpoint.bye(*leg, &MessageContent::default(), now),
                    1 | 2 => endpoint
                        .request(*leg, Method::Invite, &content, now)
                        .map(|_| ()),
                    _ => Ok(()),
                };
            });
            world.net.run(millis(chance.below(700)));
        }
        world.net.run(seconds(120));
        world.net.link_conditions = LinkConditions::ideal();
        world.net.run(seconds(10));
        moved += world.event_count("call_reanchored");
        for leg in legs {
            if world.net.phones[world.alice]
                .endpoint
                .state_of(leg)
                .is_none()
            {
                ended += 1;
                continue;
            }
            let sdp = world.last_description(world.alice, Some(leg));
            assert!(
                sdp.contains("192.0.2.102"),
                "seed {seed}: {sdp}\n{:#?}",
                world.net.events
            );
            world.net.command(world.alice, |endpoint, now| {
                let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
            });
        }
        world.restart(0);
        world.net.run(seconds(10));
        world.assert_quiet();
    }
    assert!(moved > 60, "{moved} moved, {ended} ended");
}

/// Each worker moves its own calls.
#[test]
fn calls_of_several_workers_move() {
    let text = format!("{}[sip]\nworkers=2\n", config(""));
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..12).map(|_| world.call()).collect();
    world.kill(0);
    world.net.run(seconds(3));
    assert!(world.calls()[1] == 12, "{:?}", world.calls());
    assert!(world.event_count("call_reanchored") >= 4);
    for leg in legs {
        let sdp = world.last_description(world.alice, Some(leg));
        assert!(sdp.contains("192.0.2.102"), "{sdp}");
        world.bye(leg);
    }
    world.restart(0);
    world.assert_quiet();
}
