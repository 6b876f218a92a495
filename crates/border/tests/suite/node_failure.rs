//! Media nodes that die, or lose their calls, while calls stand: each call is re-anchored at another node or ended, none stays silent.

use crate::neighbourhood;
use crate::node_rig::{addr, port_of, rtp};
use crate::nodes::{Machine, OUT, World, config, seconds};

use engine::{Note, Time};
use neighbourhood::*;
use sip::{Content, Ending, LegId};
use std::time::Duration;
use wire::sip::Method;

fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

impl World {
    fn kill(&mut self, node: usize) {
        self.nodes[node].0.borrow_mut().dead = true;
    }

    /// A node is started anew, without calls.
    fn restart(&mut self, node: usize) {
        *self.nodes[node].0.borrow_mut() = Machine::new(node);
    }

    /// The description that a phone was given last, in a leg.
    fn given(&self, phone: usize, leg: Option<LegId>) -> String {
        let seen = self.net.seen(phone).iter().rev();
        let mut seen = seen.filter(|seen| leg.is_none() || seen.leg == leg);
        let found = seen.find(|seen| !seen.bytes.is_empty() && seen.body().contains("m=audio"));
        found.expect("a description").body()
    }

    /// Packets that arrive of five from each side, along the descriptions that the phones were given last.
    fn speech(&mut self) -> (usize, usize) {
        let target = |sdp: String| {
            let host = sdp.split("c=IN IP4 ").nth(1).unwrap();
            let host = host.split("\r\n").next().unwrap().to_owned();
            format!("{host}:{}", port_of(&sdp))
        };
        let there = target(self.given(self.alice, None));
        let back = target(self.given(self.bob, None));
        self.net.media.clear();
        for sequence in 0..5 {
            self.net.throw("10.1.0.1:4000", &there, &rtp(7, sequence));
            self.net.throw("10.2.0.1:5000", &back, &rtp(8, sequence));
            self.net.run(millis(20));
        }
        let came = |to: &str| {
            let to = addr(to);
            self.net.media.iter().filter(|(at, ..)| *at == to).count()
        };
        (came("10.2.0.1:5000"), came("10.1.0.1:4000"))
    }

    /// Moves of calls, as they were told: number, from, to, milliseconds, when.
    fn moves(&self) -> Vec<(u64, String, String, u64, Time)> {
        let notes = self.net.events.iter();
        notes
            .filter_map(|event| match &event.note {
                Note::CallReanchored {
                    call,
                    from,
                    to,
                    took_ms,
                } => Some((*call, from.clone(), to.clone(), *took_ms, event.at)),
                _ => None,
            })
            .collect()
    }

    /// When a node was found dead.
    fn noticed(&self) -> Time {
        let down = |event: &&engine::Event| matches!(event.note, Note::MediaNodeDown { .. });
        self.net.events.iter().find(down).expect("noticed").at
    }

    fn ended(&self, phone: usize) -> usize {
        let seen = self.net.seen(phone).iter();
        seen.filter(|seen| matches!(seen.told, Told::Ended(_)))
            .count()
    }

    fn bobs_leg(&self) -> LegId {
        let offered = self.net.last(self.bob, |told| *told == Told::Offered);
        offered.leg.unwrap()
    }
}

/// User and session, version, the rest of `o=`.
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
fn a_call_of_a_dead_node_moves_to_another() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    assert_eq!(world.calls(), [1, 0]);
    assert_eq!(world.speech(), (5, 5));
    let before = [world.alice, world.bob].map(|phone| origin(&world.given(phone, None)));
    let died = world.net.now;
    world.kill(0);
    world.net.run(seconds(3));
    let noticed = world.noticed();
    assert!(noticed.0 - died.0 <= 1_000_000_000, "{noticed} {died}");
    assert_eq!(world.speech(), (5, 5), "{:#?}", world.net.names());
    assert_eq!(world.calls()[1], 1);
    let moves = world.moves();
    assert_eq!(moves.len(), 1);
    let (_, from, to, took, _) = &moves[0];
    assert_eq!((from.as_str(), to.as_str()), ("one", "two"));
    assert!(*took <= 2_000, "{took}");
    for (phone, before) in [world.alice, world.bob].into_iter().zip(before) {
        let after = origin(&world.given(phone, None));
        assert_eq!(
            after,
            (before.0, before.1 + 1, before.2),
            "the same session"
        );
    }
    // A change by a phone later on counts on from there.
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    world.net.tell(world.alice, |endpoint, now| {
        let content = Content::sdp(hold.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    assert_eq!(origin(&world.given(world.bob, None)).1, 3);
    assert_eq!(world.ended(world.alice), 0);
    // The dead one comes back with the call that it had, and is told to forget it.
    world.nodes[0].0.borrow_mut().dead = false;
    world.net.run(seconds(2));
    assert_eq!(world.calls(), [0, 1]);
    assert_eq!(world.told("media_node_up"), 1);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn a_call_of_a_dead_node_is_ended_with_a_reason_where_that_is_wanted() {
    let mut world = World::new(&config("node_failure='end'\n"));
    world.call();
    world.kill(0);
    world.net.run(seconds(3));
    for phone in [world.alice, world.bob] {
        let bye = world
            .net
            .find(phone, |told| *told == Told::Ended(Ending::Peer));
        assert!(
            bye.header("Reason").contains("Media lost"),
            "{}",
            bye.text()
        );
        assert!(bye.at.0 - world.noticed().0 <= 2_000_000_000);
    }
    let lost = world.net.events.iter().find_map(|event| match &event.note {
        Note::MediaNodeLost { node, why, .. } => Some((node.clone(), why.clone())),
        _ => None,
    });
    assert_eq!(lost, Some(("one".to_owned(), "no answer".to_owned())));
    assert_eq!(world.told("call_reanchored"), 0);
    world.assert_quiet();
}

/// The host of the node says that nobody takes commands there.
#[test]
fn a_port_that_is_unreachable_is_a_dead_node_at_once() {
    let mut world = World::new(&config("node_failure='end'\n"));
    world.call();
    world.net.tells_of_nobody = true;
    world.net.programs.remove(0);
    let died = world.net.now;
    world.net.run(seconds(1));
    assert!(world.noticed().0 - died.0 <= 300_000_000);
    let why = world.net.events.iter().find_map(|event| match &event.note {
        Note::MediaNodeLost { why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("unreachable"));
    assert_eq!(world.ended(world.alice), 1);
}

#[test]
fn without_another_node_a_call_waits_for_one_and_ends_in_time() {
    let mut world = World::new(&config("node_keep=5\n"));
    world.call();
    world.kill(0);
    world.kill(1);
    world.net.run(seconds(4));
    assert_eq!(world.ended(world.alice), 0, "it waits");
    world.net.run(seconds(3));
    assert_eq!(world.ended(world.alice), 1);
    assert_eq!(world.ended(world.bob), 1);
    let why = world.net.events.iter().find_map(|event| match &event.note {
        Note::MediaNodeLost { why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("no other node"));
    world.assert_quiet();
}

#[test]
fn a_call_waits_for_ever_where_that_is_wanted_and_moves_to_the_first_node_that_comes() {
    let mut world = World::new(&config("node_keep=0\n"));
    let leg = world.call();
    world.kill(0);
    world.kill(1);
    world.net.run(seconds(100));
    assert_eq!(world.ended(world.alice), 0);
    world.restart(0);
    world.net.run(seconds(3));
    assert_eq!(world.calls()[0], 1, "its own node, started anew");
    assert_eq!(world.speech(), (5, 5));
    world.bye(leg);
    world.restart(1);
    world.assert_quiet();
}

/// The node was cut off alone: its calls are there still, and nobody is bothered.
#[test]
fn a_node_that_comes_back_with_its_calls_keeps_them() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    world.kill(0);
    world.kill(1);
    world.net.run(seconds(10));
    world.nodes[0].0.borrow_mut().dead = false;
    world.net.run(seconds(3));
    assert_eq!(world.calls(), [1, 0]);
    assert_eq!(world.speech(), (5, 5));
    assert!(
        !world
            .net
            .has(world.bob, |told| matches!(told, Told::Request(_)))
    );
    assert_eq!(world.told("call_reanchored"), 0);
    world.bye(leg);
    world.restart(1);
    world.assert_quiet();
}

/// It is back before anybody has missed it, and knows no call.
#[test]
fn a_node_that_was_started_anew_has_lost_its_calls() {
    let text = config("").replace("name='two'", "name='two'\ndrain=true");
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..6).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [6, 0]);
    world.restart(0);
    world.net.run(seconds(3));
    assert_eq!(world.told("media_node_down"), 0);
    assert_eq!(world.told("media_node_restarted"), 1);
    assert_eq!(world.told("call_reanchored"), 6);
    assert_eq!(world.calls(), [6, 0]);
    assert_eq!(world.speech(), (5, 5));
    for leg in legs {
        world.bye(leg);
    }
    world.assert_quiet();
}

#[test]
fn two_hundred_calls_move_in_time_the_oldest_first() {
    let text = config("").replace("name='two'", "name='two'\ndrain=true");
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..200).map(|_| world.offer()).collect();
    world.net.run(seconds(2));
    assert_eq!(world.calls(), [200, 0]);
    let open = border::config::parse(&config(""), "test.toml").unwrap();
    world.net.operate(|border, now| border.reload(open, now));
    world.kill(0);
    world.net.run(seconds(3));
    let moves = world.moves();
    assert_eq!(moves.len(), 200);
    let numbers: Vec<u64> = moves.iter().map(|moved| moved.0).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(moves.iter().all(|moved| moved.3 <= 2_000), "{moves:?}");
    // Not all at once: 25 in 10 ms.
    let spread = moves[199].4.0 - moves[0].4.0;
    assert!(spread >= 60_000_000, "{spread}");
    assert_eq!(world.calls()[1], 200);
    for leg in &legs {
        let sdp = world.given(world.alice, Some(*leg));
        assert!(sdp.contains("192.0.2.102"), "{sdp}");
    }
    for leg in legs {
        world.net.tell(world.alice, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
    }
    world.restart(0);
    world.net.run(seconds(1));
    world.assert_quiet();
}

#[test]
fn the_rate_of_moves_is_bounded() {
    let mut world = World::new(&config("node_failure_rate=10\n"));
    let legs: Vec<LegId> = (0..20).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [10, 10]);
    world.kill(0);
    world.net.run(seconds(3));
    let moves = world.moves();
    assert_eq!(moves.len(), 10);
    let spread = moves[9].4.0 - moves[0].4.0;
    assert!(spread >= 850_000_000, "{spread}");
    for leg in legs {
        world.bye(leg);
    }
    world.assert_quiet();
}

#[test]
fn glare_is_waited_out_on_both_sides() {
    for glare in ["alice", "bob"] {
        let mut world = World::new(&config(""));
        let leg = world.call();
        let phone = match glare {
            "alice" => world.alice,
            _ => world.bob,
        };
        world.net.phones[phone].ears.manners.inside = Some(491);
        world.kill(0);
        world.net.run(seconds(2));
        assert_eq!(world.told("call_reanchored"), 0);
        world.net.phones[phone].ears.manners.inside = Some(200);
        world.net.run(seconds(6));
        assert_eq!(world.told("call_reanchored"), 1, "{glare}");
        assert_eq!(world.speech(), (5, 5), "{glare}");
        world.bye(leg);
        world.assert_quiet();
    }
}

/// A re-INVITE of the caller's is under way when the node dies, and is answered later.
#[test]
fn a_call_that_changes_just_now_moves_afterwards() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    let bob = world.bob;
    world.net.phones[bob].ears.manners.inside = None;
    world.net.tell(world.alice, |endpoint, now| {
        let content = Content::sdp(SDP_A.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(millis(100));
    world.kill(0);
    world.net.run(seconds(3));
    assert_eq!(world.told("call_reanchored"), 0);
    let asked = world.net.last(bob, |told| matches!(told, Told::Request(_)));
    let Told::Request(transaction) = asked.told else {
        panic!("{asked:?}");
    };
    world.net.phones[bob].ears.manners.inside = Some(200);
    world.net.tell(bob, |endpoint, now| {
        let content = Content::sdp(SDP_B.as_bytes());
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    world.net.run(seconds(3));
    assert_eq!(world.told("call_reanchored"), 1, "{:#?}", world.net.names());
    assert_eq!(world.speech(), (5, 5));
    assert_eq!(world.ended(bob), 0);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn a_call_on_hold_stays_on_hold() {
    for holder in ["alice", "bob"] {
        let mut world = World::new(&config(""));
        let leg = world.call();
        let (holding, held, leg_of, sdp) = match holder {
            "alice" => (world.alice, world.bob, leg, SDP_A),
            _ => (world.bob, world.alice, world.bobs_leg(), SDP_B),
        };
        let hold = format!("{sdp}a=sendonly\r\n");
        world.net.phones[holding].ears.manners.sdp = hold.clone();
        world.net.tell(holding, |endpoint, now| {
            let content = Content::sdp(hold.as_bytes());
            endpoint
                .request(leg_of, Method::Invite, &content, now)
                .unwrap();
        });
        world.net.run(seconds(1));
        world.kill(0);
        world.net.run(seconds(3));
        assert_eq!(world.told("call_reanchored"), 1);
        let asked = world
            .net
            .last(holding, |told| matches!(told, Told::Request(_)));
        assert_eq!(asked.body(), "", "{holder} is asked for the offer");
        let offered = world
            .net
            .last(held, |told| matches!(told, Told::Request(_)));
        assert!(offered.body().contains("a=sendonly"), "{}", offered.text());
        world.bye(leg);
        world.assert_quiet();
    }
}

/// The called side rings when the node dies: the answer goes through another one, and both sides agree on it at once.
#[test]
fn a_call_that_rings_is_answered_through_another_node() {
    for early in [false, true] {
        let mut world = World::new(&config(""));
        let bob = world.bob;
        world.net.phones[bob].ears.manners.answer = None;
        if early {
            world.net.phones[bob].ears.manners.progress = vec![(183, false)];
        }
        let leg = world.offer();
        world.net.run(seconds(1));
        world.kill(0);
        world.net.run(seconds(3));
        assert_eq!(world.ended(world.alice), 0);
        let called = world.bobs_leg();
        world.net.tell(bob, |endpoint, now| {
            let content = Content::sdp(SDP_B.as_bytes());
            endpoint.answer(called, 200, &content, now).unwrap();
        });
        world.net.run(seconds(2));
        let answered = world.net.find(world.alice, |told| *told == Told::Answered);
        let answered = answered.body();
        assert!(answered.contains("192.0.2.102"), "{answered}");
        assert_eq!(world.told("call_reanchored"), 1);
        assert_eq!(world.speech(), (5, 5));
        assert_eq!(world.calls()[1], 1);
        world.bye(leg);
        world.restart(0);
        world.assert_quiet();
    }
}

#[test]
fn a_phone_that_takes_no_re_invite_without_an_offer_is_given_one() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    // It refuses the first, the empty one; the other side is asked then, and its offer is taken.
    world.net.phones[world.alice].ears.manners.inside = Some(488);
    world.kill(0);
    let mut refused = false;
    for _ in 0..300 {
        world.net.run(millis(10));
        if !refused
            && world
                .net
                .has(world.alice, |told| matches!(told, Told::Request(_)))
        {
            refused = true;
            world.net.phones[world.alice].ears.manners.inside = Some(200);
        }
    }
    assert!(refused);
    assert_eq!(world.told("call_reanchored"), 1, "{:#?}", world.net.names());
    assert_eq!(world.speech(), (5, 5));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn a_side_that_agrees_to_nothing_ends_the_call_with_a_reason() {
    let mut world = World::new(&config(""));
    world.call();
    world.net.phones[world.bob].ears.manners.inside = Some(488);
    world.kill(0);
    world.net.run(seconds(3));
    assert_eq!(world.ended(world.alice), 1);
    let bye = world
        .net
        .find(world.bob, |told| *told == Told::Ended(Ending::Peer));
    assert!(
        bye.header("Reason").contains("Media lost"),
        "{}",
        bye.text()
    );
    let why = world.net.events.iter().find_map(|event| match &event.note {
        Note::MediaNodeLost { why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("re-INVITE refused"));
    world.assert_quiet();
}

#[test]
fn a_side_that_hangs_up_meanwhile_ends_the_call_as_ever() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    world.net.phones[world.bob].ears.manners.inside = None;
    world.kill(0);
    world.net.run(seconds(2));
    assert_eq!(world.told("call_reanchored"), 0);
    world.bye(leg);
    world.net.run(seconds(1));
    assert_eq!(world.ended(world.bob), 1);
    assert_eq!(world.told("media_node_lost"), 0);
    world.assert_quiet();
}

#[test]
fn srtp_keys_are_new_at_the_new_node() {
    let text = config("").replace("name='out'", "name='out'\nsrtp='require'");
    let mut world = World::new(&text);
    let key =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj\r\n";
    let secure = SDP_A.replace("RTP/AVP", "RTP/SAVP") + key;
    world.net.phones[world.alice].ears.manners.sdp = secure.clone();
    let content = Content::sdp(secure.as_bytes());
    let leg = world
        .net
        .call(world.alice, "sip:bob@192.0.2.1", OUT, &content);
    world.net.run(seconds(1));
    let before = world.given(world.alice, None);
    world.kill(0);
    world.net.run(seconds(3));
    assert_eq!(world.told("call_reanchored"), 1);
    let after = world.given(world.alice, None);
    let key = |sdp: &str| sdp.split("inline:").nth(1).unwrap().to_owned();
    assert!(after.contains("192.0.2.102") && after.contains("RTP/SAVP"));
    assert_ne!(key(&before), key(&after));
    let bob = world.given(world.bob, None);
    assert!(bob.contains("RTP/AVP") && !bob.contains("crypto"), "{bob}");
    world.bye(leg);
    world.assert_quiet();
}

/// Over wires that lose and delay: after a while no call has its media at the dead node.
#[test]
fn on_lossy_wires_no_call_stays_silent() {
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let (mut moved, mut ended) = (0, 0);
    for seed in 0..seeds.unwrap_or(60u64) {
        let mut world = World::seeded(&config(""), seed);
        let legs: Vec<LegId> = (0..6).map(|_| world.call()).collect();
        let mut chance = engine::Entropy::from_number(seed ^ 0xfade);
        world.net.weather = Weather {
            loss: 0.3 * chance.unit(),
            repeat: 0.2 * chance.unit(),
            delay: millis(1 + chance.below(50)),
            jitter: millis(1 + chance.below(200)),
        };
        // Nodes stand beside the border: it is the phones that are far away.
        world.net.spared = vec![2223];
        world.kill(0);
        // Meanwhile phones change calls and end some.
        for leg in &legs {
            let what = chance.below(6);
            world.net.tell(world.alice, |endpoint, now| {
                let content = Content::sdp(SDP_A.as_bytes());
                let _ = match what {
                    0 => endpoint.bye(*leg, &Content::default(), now),
                    1 | 2 => endpoint
                        .request(*leg, Method::Invite, &content, now)
                        .map(|_| ()),
                    _ => Ok(()),
                };
            });
            world.net.run(millis(chance.below(700)));
        }
        world.net.run(seconds(120));
        world.net.weather = Weather::fine();
        world.net.run(seconds(10));
        moved += world.told("call_reanchored");
        for leg in legs {
            if world.net.phones[world.alice]
                .endpoint
                .state_of(leg)
                .is_none()
            {
                ended += 1;
                continue;
            }
            let sdp = world.given(world.alice, Some(leg));
            assert!(
                sdp.contains("192.0.2.102"),
                "seed {seed}: {sdp}\n{:#?}",
                world.net.events
            );
            world.net.tell(world.alice, |endpoint, now| {
                let _ = endpoint.hang_up(leg, &Content::default(), now);
            });
        }
        world.restart(0);
        world.net.run(seconds(10));
        world.assert_quiet();
    }
    assert!(moved > 60, "{moved} moved, {ended} ended");
}

/// Each worker looks after the calls that are its own.
#[test]
fn calls_of_several_workers_move() {
    let text = format!("{}[sip]\nworkers=2\n", config(""));
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..12).map(|_| world.call()).collect();
    world.kill(0);
    world.net.run(seconds(3));
    assert!(world.calls()[1] == 12, "{:?}", world.calls());
    assert!(world.told("call_reanchored") >= 4);
    for leg in legs {
        let sdp = world.given(world.alice, Some(leg));
        assert!(sdp.contains("192.0.2.102"), "{sdp}");
        world.bye(leg);
    }
    world.restart(0);
    world.assert_quiet();
}
