//! Calls whose media goes through media nodes: which one, how descriptions go through it, what becomes of calls when it dies or leaves.

use crate::neighbourhood;
use crate::node_rig;

use engine::{Datagram, DropReason, Input, Time};
use neighbourhood::*;
use node_rig::{Rig, To, addr, port_of, rtp};
use sip::{Content, Ending, LegId};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

pub const OUT: &str = "192.0.2.1:5060";
const CONTROL: [&str; 2] = ["192.0.2.101:2223", "192.0.2.102:2223"];

pub fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// A border that anchors media at two nodes.
pub fn config(more: &str) -> String {
    format!(
        "{}[media]\nanchor='nodes'\n{more}[[media_node]]\nname='one'\ncontrol='udp:{}'\n\
         [[media_node]]\nname='two'\ncontrol='udp:{}'\n",
        PLAIN
            .replace("kind='access'", "kind='access'\nnode_interface='outside'")
            .replace("kind='core'", "kind='core'\nnode_interface='inside'"),
        CONTROL[0],
        CONTROL[1]
    )
}

/// A machine with a media node.
pub struct Machine {
    pub rig: Rig,
    pub control: SocketAddr,
    /// It takes nothing in and sends nothing.
    pub dead: bool,
    /// It says that it has no room.
    pub full: bool,
    /// Replies are kept back.
    pub mute: bool,
    pub kept: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    /// Commands that came, by name.
    pub commands: Vec<String>,
}

impl Machine {
    pub fn new(number: usize) -> Machine {
        let address = CONTROL[number].split(':').next().unwrap();
        let config = format!(
            "[node]\nlisten='udp:{}'\nallow='0.0.0.0/0'\n\
             [[node.interface]]\nname='outside'\nmedia={{address='{address}',ports='20000-20399'}}\n\
             [[node.interface]]\nname='inside'\nmedia={{address='198.51.100.{number}',ports='30000-30399'}}\n",
            CONTROL[number]
        );
        Machine {
            rig: Rig::seeded(&config, number as u64 + 1),
            control: addr(CONTROL[number]),
            dead: false,
            full: false,
            mute: false,
            kept: Vec::new(),
            commands: Vec::new(),
        }
    }

    pub fn calls(&self) -> usize {
        self.rig.node.census().calls
    }
}

#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Machine>>);

impl Program for Shared {
    fn is_at(&self, address: SocketAddr) -> bool {
        let machine = self.0.borrow();
        address == machine.control
            || machine
                .rig
                .sockets
                .values()
                .any(|(_, local)| *local == address)
    }

    fn hear(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)> {
        let mut machine = self.0.borrow_mut();
        if machine.dead {
            return Vec::new();
        }
        let span = Duration::from_nanos(now.0.saturating_sub(machine.rig.now.0));
        machine.rig.pass(span);
        if to != machine.control {
            // Media of calls; where it goes on is looked at by the tests.
            let sent = machine.rig.send(&from.to_string(), &to.to_string(), bytes);
            return sent
                .map(|(on, bytes)| (to, on, bytes))
                .into_iter()
                .collect();
        }
        let text = String::from_utf8_lossy(bytes).into_owned();
        let command = text.split("7:command").nth(1).unwrap_or_default();
        let command: String = command
            .chars()
            .skip_while(|letter| *letter != ':')
            .skip(1)
            .take_while(char::is_ascii_lowercase)
            .collect();
        let name = ["offer", "answer", "delete", "query", "ping", "statistics"]
            .into_iter()
            .find(|name| command.starts_with(name));
        machine.commands.push(name.unwrap_or("?").to_owned());
        if machine.full && name == Some("offer") {
            let cookie = text.split(' ').next().unwrap_or_default();
            let reply = format!("{cookie} d6:result10:load limite");
            return vec![(to, from, reply.into_bytes())];
        }
        let socket = machine.rig.socket(&to.to_string());
        let mut buffer = bytes.to_vec();
        let arrived = machine.rig.now;
        machine.rig.handle(Input::Datagram(Datagram {
            socket,
            source: from,
            arrived,
            bytes: &mut buffer,
        }));
        let said = std::mem::take(&mut machine.rig.said);
        let replies = said.into_iter().map(|(address, bytes)| match address {
            To::Datagram(address) => (to, address, bytes),
            To::Stream(_) => panic!("a stream out of nowhere"),
        });
        let replies: Vec<_> = replies.collect();
        if machine.mute {
            machine.kept.extend(replies);
            return Vec::new();
        }
        replies
    }
}

pub struct World {
    pub net: Neighbourhood,
    pub nodes: [Shared; 2],
    pub alice: usize,
    pub bob: usize,
}

impl World {
    pub fn new(config: &str) -> World {
        World::seeded(config, 1)
    }

    pub fn seeded(config: &str, seed: u64) -> World {
        let nodes = [0, 1].map(|number| Shared(Rc::new(RefCell::new(Machine::new(number)))));
        let mut net = Neighbourhood::new(config, seed);
        for node in &nodes {
            net.programs.push(Box::new(node.clone()));
        }
        let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
        let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
        net.run(seconds(1));
        World {
            net,
            nodes,
            alice,
            bob,
        }
    }

    pub fn calls(&self) -> [usize; 2] {
        [0, 1].map(|number| self.nodes[number].0.borrow().calls())
    }

    pub fn commands(&self, number: usize, name: &str) -> usize {
        let machine = self.nodes[number].0.borrow();
        machine.commands.iter().filter(|n| *n == name).count()
    }

    pub fn offer(&mut self) -> LegId {
        let content = Content::sdp(SDP_A.as_bytes());
        self.net
            .call(self.alice, "sip:bob@192.0.2.1", OUT, &content)
    }

    /// A call that stands: the caller's leg.
    pub fn call(&mut self) -> LegId {
        let leg = self.offer();
        self.net.run(seconds(1));
        let answered = |seen: &&Seen| seen.leg == Some(leg) && seen.told == Told::Answered;
        assert!(
            self.net.seen(self.alice).iter().any(|seen| answered(&seen)),
            "{:#?}",
            self.net.told(self.alice)
        );
        leg
    }

    pub fn bye(&mut self, leg: LegId) {
        let alice = self.alice;
        self.net.tell(alice, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
        self.net.run(seconds(1));
    }

    pub fn told(&self, name: &str) -> usize {
        self.net.names().iter().filter(|n| **n == name).count()
    }

    /// Nothing of any call is left, here or at a node that lives.
    pub fn assert_quiet(&mut self) {
        self.net.assert_quiet();
        for node in &self.nodes {
            let machine = node.0.borrow();
            if !machine.dead {
                machine.rig.assert_quiet();
            }
        }
    }
}

#[test]
fn a_call_goes_through_a_node_and_its_media_too() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    assert_eq!(world.calls(), [1, 0]);
    assert_eq!(world.net.border.census().ports, 0, "no port of ours");
    let offered = world.net.find(world.bob, |told| *told == Told::Offered);
    let offered = offered.body();
    assert!(offered.contains("c=IN IP4 198.51.100.0"), "{offered}");
    assert!(!offered.contains("10.1.0.1"), "{offered}");
    let answered = world.net.find(world.alice, |told| *told == Told::Answered);
    let answered = answered.body();
    assert!(answered.contains("c=IN IP4 192.0.2.101"), "{answered}");
    assert!(!answered.contains("10.2.0.1"), "{answered}");
    let (to_alice, to_bob) = (port_of(&answered), port_of(&offered));
    for sequence in 0..5 {
        let there = format!("192.0.2.101:{to_alice}");
        world.net.throw("10.1.0.1:4000", &there, &rtp(7, sequence));
        let back = format!("198.51.100.0:{to_bob}");
        world.net.throw("10.2.0.1:5000", &back, &rtp(8, sequence));
        world.net.run(Duration::from_millis(20));
    }
    let came = |to: &str| {
        let to = addr(to);
        world.net.media.iter().filter(|(at, ..)| *at == to).count()
    };
    assert_eq!((came("10.2.0.1:5000"), came("10.1.0.1:4000")), (5, 5));
    world.bye(leg);
    let figures = world
        .net
        .events
        .iter()
        .rev()
        .find_map(|event| match &event.note {
            engine::Note::MediaNodeFigures {
                node,
                caller,
                callee,
                ..
            } => Some((node.clone(), *caller, *callee)),
            _ => None,
        });
    assert_eq!(figures, Some(("one".to_owned(), 5, 5)));
    let end = world.net.events.iter().find_map(|event| {
        let mut fields = Vec::new();
        let note = Some(&event.note).filter(|note| note.name() == "call_ended");
        note?.fields(&mut |name, value| fields.push(format!("{name}={value}")));
        Some(fields)
    });
    let end = end.expect("call_ended").join(" ");
    assert!(
        end.contains(
            " path=node codec=PCMU caller_loss_percent=0.00 caller_jitter_ms=0.00 caller_mos=4.40 \
             callee_loss_percent=0.00"
        ),
        "{end}"
    );
    assert_eq!(world.calls(), [0, 0]);
    world.assert_quiet();
}

#[test]
fn calls_are_spread_by_load_and_weight() {
    let text = config("").replace("name='two'", "name='two'\nweight=3\nmax_calls=5");
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..4).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [1, 3]);
    let more: Vec<LegId> = (0..8).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [7, 5], "five at most at the second");
    for leg in legs.into_iter().chain(more) {
        world.bye(leg);
    }
    assert_eq!(world.calls(), [0, 0]);
    world.assert_quiet();
}

#[test]
fn load_that_others_make_counts_where_it_is_reported() {
    let text = config("").replace("name='one'", "name='one'\nload='reported'");
    let mut world = World::new(&text);
    for number in 0..3 {
        let call = format!("other{number}");
        let machine = &world.nodes[0].0;
        let mut machine = machine.borrow_mut();
        machine.rig.offer(
            &node_rig::sdp("10.9.0.1", 4000, "RTP/AVP", ""),
            &[("call-id", &call)],
        );
    }
    // The next check learns of them.
    world.net.run(seconds(6));
    let legs: Vec<LegId> = (0..3).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [3, 3], "three of others stand at the first");
    let last = [world.call(), world.call()];
    assert_eq!(world.calls(), [4, 4]);
    for leg in legs.into_iter().chain(last) {
        world.bye(leg);
    }
    assert_eq!(world.calls(), [3, 0]);
}

#[test]
fn a_node_that_has_no_room_sends_calls_to_another() {
    let mut world = World::new(&config(""));
    world.nodes[0].0.borrow_mut().full = true;
    let leg = world.call();
    assert_eq!(world.calls(), [0, 1]);
    assert_eq!(world.told("media_node_failed"), 1);
    assert_eq!(world.told("media_node_chosen"), 2);
    world.nodes[1].0.borrow_mut().full = true;
    let refused = world.offer();
    world.net.run(seconds(1));
    let failed = world
        .net
        .last(world.alice, |told| matches!(told, Told::Failed(_, 503)));
    assert_eq!(failed.leg, Some(refused));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn a_machine_that_says_nobody_is_there_is_believed_at_once() {
    let mut world = World::new(&config(""));
    world.net.tells_of_nobody = true;
    world.net.programs.remove(0);
    let leg = world.call();
    assert_eq!(world.calls(), [0, 1]);
    assert_eq!(world.told("media_node_down"), 1);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn without_any_node_calls_are_refused() {
    let mut world = World::new(&config(""));
    for node in &world.nodes {
        node.0.borrow_mut().dead = true;
    }
    world.offer();
    world.net.run(seconds(8));
    world
        .net
        .find(world.alice, |told| matches!(told, Told::Failed(_, 503)));
    assert_eq!(world.told("media_node_down"), 2);
    assert_eq!(world.told("call_routed"), 0, "nobody was called");
    world.assert_quiet();
}

#[test]
fn a_node_is_taken_out_of_service_gently() {
    let mut world = World::new(&config(""));
    let first = world.call();
    assert_eq!(world.calls(), [1, 0]);
    let text = config("").replace("name='one'", "name='one'\ndrain=true");
    let reloaded = border::config::parse(&text, "test.toml").unwrap();
    world
        .net
        .operate(|border, now| border.reload(reloaded, now));
    let others = [world.call(), world.call()];
    assert_eq!(world.calls(), [1, 2]);
    // Calls that stand may change all the same.
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    world.net.tell(world.alice, |endpoint, now| {
        let content = Content::sdp(hold.as_bytes());
        endpoint
            .request(first, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    world
        .net
        .find(world.alice, |told| matches!(told, Told::Response(200, _)));
    assert_eq!(world.told("media_node_drained"), 0);
    world.bye(first);
    assert_eq!(world.told("media_node_drained"), 1);
    // Back into service; then out of the file altogether.
    let back = border::config::parse(&config(""), "test.toml").unwrap();
    world.net.operate(|border, now| border.reload(back, now));
    let again = world.call();
    assert_eq!(world.calls(), [1, 2]);
    let text = config("");
    let at = text.find("[[media_node]]\nname='two'").unwrap();
    let one = border::config::parse(&text[..at], "test.toml").unwrap();
    world.net.operate(|border, now| border.reload(one, now));
    let last = world.call();
    assert_eq!(world.calls(), [2, 2]);
    for leg in others.into_iter().chain([again, last]) {
        world.bye(leg);
    }
    assert_eq!(world.calls(), [0, 0]);
    assert_eq!(world.told("media_node_drained"), 2);
    world.assert_quiet();
}

#[test]
fn hold_update_and_refused_offers_inside_a_call() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    let (alice, bob) = (world.alice, world.bob);
    let called = world
        .net
        .find(bob, |told| *told == Told::Offered)
        .leg
        .unwrap();
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    world.net.tell(alice, |endpoint, now| {
        let content = Content::sdp(hold.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    let seen = world
        .net
        .find(bob, |told| matches!(told, Told::Request(_)))
        .body();
    assert!(
        seen.contains("198.51.100.0") && seen.contains("sendonly"),
        "{seen}"
    );
    // The called side's own, by UPDATE.
    let own = SDP_B.replace("2 2 IN", "2 3 IN").replace("5000", "5002");
    world.net.tell(bob, |endpoint, now| {
        let content = Content::sdp(own.as_bytes());
        endpoint
            .request(called, Method::Update, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    let seen = world
        .net
        .last(alice, |told| matches!(told, Told::Request(_)));
    assert_eq!(seen.method(), "UPDATE");
    assert!(seen.body().contains("192.0.2.101"), "{}", seen.text());
    let answered = world
        .net
        .last(bob, |told| matches!(told, Told::Response(200, _)));
    assert!(
        answered.body().contains("198.51.100.0"),
        "{}",
        answered.text()
    );
    world.net.phones[bob].ears.manners.inside = Some(488);
    world.net.tell(alice, |endpoint, now| {
        let content = Content::sdp(SDP_A.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    world
        .net
        .find(alice, |told| matches!(told, Told::Response(488, _)));
    world.net.phones[bob].ears.manners.inside = Some(200);
    world.net.tell(alice, |endpoint, now| {
        let content = Content::sdp(SDP_A.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    assert_eq!(world.commands(0, "offer"), 5);
    assert_eq!(world.commands(0, "answer"), 4);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn early_media_asks_the_node_once_for_one_description() {
    let mut world = World::new(&config(""));
    world.net.phones[world.bob].ears.manners.progress =
        vec![(180, false), (183, false), (183, false)];
    let leg = world.call();
    let answer = world
        .net
        .find(world.alice, |told| *told == Told::Answered)
        .body();
    let early: Vec<String> = world
        .net
        .seen(world.alice)
        .iter()
        .filter(|seen| matches!(seen.told, Told::Progressed(183, ..)))
        .map(Seen::body)
        .collect();
    assert_eq!(early, [answer.clone(), answer]);
    assert_eq!(
        (world.commands(0, "offer"), world.commands(0, "answer")),
        (1, 1)
    );
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn reliable_provisionals_and_late_offers() {
    let mut world = World::new(&config(""));
    let (alice, bob) = (world.alice, world.bob);
    world.net.phones[bob].ears.manners.progress = vec![(183, true)];
    world.net.phones[bob].ears.manners.answer = None;
    let leg = world.offer();
    world.net.run(seconds(1));
    let early = world
        .net
        .find(alice, |told| matches!(told, Told::Progressed(183, true, _)));
    assert!(early.body().contains("192.0.2.101"), "{}", early.text());
    assert!(world.net.has(bob, |told| matches!(told, Told::Pracked(_))));
    let called = world
        .net
        .find(bob, |told| *told == Told::Offered)
        .leg
        .unwrap();
    world.net.tell(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &Content::default(), now)
            .unwrap();
    });
    world.net.run(seconds(1));
    assert!(world.net.has(alice, |told| *told == Told::Answered));
    world.bye(leg);
    world.net.phones[bob].ears.manners = Manners::answering(SDP_B);
    world.net.phones[alice].ears.manners.sdp = "late".into();
    let late = world
        .net
        .call(alice, "sip:bob@192.0.2.1", OUT, &Content::default());
    world.net.run(seconds(1));
    let answered = world.net.last(alice, |told| *told == Told::Answered);
    assert_eq!(answered.leg, Some(late));
    assert!(
        answered.body().contains("192.0.2.101"),
        "{}",
        answered.text()
    );
    let acked = world.net.last(bob, |told| *told == Told::Acked);
    assert!(acked.body().contains("198.51.100.0"), "{}", acked.text());
    world.bye(late);
    world.assert_quiet();
}

/// Whoever gives up while the node is being asked leaves nothing there.
#[test]
fn cancelled_while_the_node_thinks() {
    let mut world = World::new(&config(""));
    world.nodes[0].0.borrow_mut().mute = true;
    let leg = world.offer();
    world.net.run(Duration::from_millis(100));
    assert_eq!(
        world.calls(),
        [1, 0],
        "it has the call, and has not said so"
    );
    world.net.tell(world.alice, |endpoint, now| {
        endpoint.cancel(leg, &Content::default(), now).unwrap();
    });
    world.net.run(Duration::from_millis(100));
    assert_eq!(world.calls(), [0, 0]);
    let kept = {
        let mut machine = world.nodes[0].0.borrow_mut();
        machine.mute = false;
        std::mem::take(&mut machine.kept)
    };
    for (from, to, bytes) in kept {
        world.net.throw(&from.to_string(), &to.to_string(), &bytes);
    }
    world.net.run(seconds(1));
    assert!(world.net.border.drops().get(DropReason::NgLate) > 0);
    world.assert_quiet();
}

/// The answer waits at a node that has died: both sides are told of the end.
#[test]
fn an_answer_that_cannot_be_asked_about_ends_the_call() {
    let mut world = World::new(&config(""));
    world.net.phones[world.bob].ears.manners.answer = None;
    world.offer();
    world.net.run(seconds(1));
    for node in &world.nodes {
        node.0.borrow_mut().dead = true;
    }
    let called = world
        .net
        .find(world.bob, |told| *told == Told::Offered)
        .leg
        .unwrap();
    world.net.tell(world.bob, |endpoint, now| {
        let content = Content::sdp(SDP_B.as_bytes());
        endpoint.answer(called, 200, &content, now).unwrap();
    });
    // What comes meanwhile waits its turn.
    world.net.run(Duration::from_millis(50));
    world.net.run(seconds(5));
    world
        .net
        .find(world.alice, |told| matches!(told, Told::Failed(_, 503)));
    world
        .net
        .find(world.bob, |told| *told == Told::Ended(Ending::Peer));
    world.assert_quiet();
}

#[test]
fn what_nobody_asked_for_is_a_counted_drop() {
    let mut world = World::new(&config(""));
    world.net.run(seconds(1));
    let socket = world
        .net
        .wire
        .iter()
        .filter(|(to, _)| to.port() == 2223)
        .count();
    assert!(socket > 0, "nodes are asked whether they are there");
    // The command socket's address in this network.
    let here = (40_000..40_010u16)
        .map(|port| SocketAddr::from(([0, 0, 0, 0], port)))
        .find(|address| world.net.is_open(*address))
        .unwrap()
        .to_string();
    let before = world.net.border.drops().get(DropReason::NgUnasked);
    let far = "192.0.2.101:2223";
    for bytes in [
        &b""[..],
        b"x",
        b"1_0 d6:result4:ponge",
        b"1_0000000000000000 d6:result4:ponge",
        b"zz_0 d6:result4:pong",
        b" d6:result2:oke",
        &[0xff; 300],
    ] {
        world.net.throw(far, &here, bytes);
    }
    world.net.run(seconds(1));
    let after = world.net.border.drops().get(DropReason::NgUnasked);
    assert_eq!(after - before, 7);
    let leg = world.call();
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn srtp_on_one_side_is_the_nodes_work() {
    let text = config("").replace("name='out'", "name='out'\nsrtp='require'");
    let mut world = World::new(&text);
    let plain = world.offer();
    world.net.run(seconds(1));
    let refused = world
        .net
        .find(world.alice, |told| matches!(told, Told::Failed(_, 488)));
    assert_eq!(refused.leg, Some(plain));
    assert_eq!(world.told("media_not_keyed"), 1);
    let key =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj\r\n";
    let secure = SDP_A.replace("RTP/AVP", "RTP/SAVP") + key;
    let content = Content::sdp(secure.as_bytes());
    let leg = world
        .net
        .call(world.alice, "sip:bob@192.0.2.1", OUT, &content);
    world.net.run(seconds(1));
    let offered = world
        .net
        .find(world.bob, |told| *told == Told::Offered)
        .body();
    assert!(
        offered.contains("RTP/AVP") && !offered.contains("crypto"),
        "{offered}"
    );
    let answered = world
        .net
        .find(world.alice, |told| *told == Told::Answered)
        .body();
    assert!(
        answered.contains("RTP/SAVP") && answered.contains("a=crypto:1"),
        "{answered}"
    );
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn srtp_towards_the_called_side_has_suites_of_ours_alone() {
    let text = config("").replace("name='in'", "name='in'\nsrtp='require'");
    let mut world = World::new(&text);
    let bob = world.bob;
    let key = "a=crypto:1 AEAD_AES_256_GCM inline:9go2CEv5AQuOUex3SNUt6T44XKi4Y8Wyh0RSaLX1Don2dhRzQbcXM0RAxeY\r\n";
    world.net.phones[bob].ears.manners.sdp = SDP_B.replace("RTP/AVP", "RTP/SAVP") + key;
    let leg = world.call();
    let offered = world.net.find(bob, |told| *told == Told::Offered).body();
    assert!(offered.contains("RTP/SAVP"), "{offered}");
    assert!(offered.contains("AEAD_AES_256_GCM"), "{offered}");
    assert!(
        !offered.contains("NULL") && !offered.contains("AES_192"),
        "{offered}"
    );
    let answered = world.net.find(world.alice, |told| *told == Told::Answered);
    let answered = answered.body();
    assert!(
        answered.contains("RTP/AVP") && !answered.contains("crypto"),
        "{answered}"
    );
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn a_leg_of_a_call_at_a_node_is_not_replaced() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    let alice = world.alice;
    let carol = world.net.phone("10.1.0.3:5060", Manners::answering(SDP_A));
    let endpoint = &world.net.phones[alice].endpoint;
    let call_id = String::from_utf8(endpoint.call_id_of(leg).unwrap().to_vec()).unwrap();
    let answered = world.net.find(alice, |told| *told == Told::Answered);
    let tag = |header: &str| {
        let value = answered.header(header);
        value.split(";tag=").nth(1).unwrap_or_default().to_owned()
    };
    let value = format!("{call_id};to-tag={};from-tag={}", tag("To"), tag("From"));
    let replaces = [Edit::Add {
        id: HeaderId::Replaces,
        value: value.as_bytes(),
    }];
    let content = Content::sdp(SDP_A.as_bytes()).with(&replaces);
    world.net.call(carol, "sip:bob@192.0.2.1", OUT, &content);
    world.net.run(seconds(1));
    world
        .net
        .find(carol, |told| matches!(told, Told::Failed(_, 488)));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn what_does_not_go_together_with_nodes_is_refused_by_name() {
    let refused = |text: &str| {
        let mistakes = border::config::parse(text, "test.toml").expect_err(text);
        mistakes.iter().map(ToString::to_string).collect::<String>()
    };
    for (from, to, word) in [
        ("name='out'", "name='out'\nsrtp='prefer'", "prefer"),
        ("name='out'", "name='out'\ntranscode='PCMA'", "transcoding"),
        ("name='out'", "name='out'\nearly_media='gate'", "gate"),
        ("name='pbx'", "name='pbx'\nrefer='act'", "act"),
        ("node_interface='inside'", "", "node_interface"),
        ("anchor='nodes'", "anchor='here'", "no call uses them"),
        ("udp:192.0.2.101", "tcp:192.0.2.101", "not over tcp"),
        ("udp:192.0.2.101:2223", "udp:node:2223", "IP address"),
        ("udp:192.0.2.102", "udp:192.0.2.101", "takes commands there"),
        ("name='two'", "name='one'", "there already"),
    ] {
        let text = config("").replace(from, to);
        let why = refused(&text);
        assert!(why.contains(word), "{word}: {why}");
    }
    let why = refused(&format!("{PLAIN}[media]\nanchor='nodes'\n"));
    assert!(why.contains("no media node"), "{why}");
}
