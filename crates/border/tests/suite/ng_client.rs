//! Calls whose media goes through media nodes: selection of nodes, descriptions, failure and removal of nodes.

use crate::ng_server_rig;
use crate::virtual_network;

use engine::{Datagram, DropReason, EventKind, Input, Time};
use ng_server_rig::{Rig, To, addr, port_of, rtp};
use sip::{Ending, LegId, MessageContent};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

const CONTROL: [&str; 2] = ["192.0.2.101:2223", "192.0.2.102:2223"];

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

/// A host with a media node.
pub struct NodeHost {
    pub rig: Rig,
    pub control: SocketAddr,
    /// It neither receives nor sends.
    pub dead: bool,
    /// It refuses calls for lack of capacity.
    pub full: bool,
    /// Replies are held back.
    pub mute: bool,
    pub kept: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    /// Received commands by name.
    pub commands: Vec<String>,
}

impl NodeHost {
    pub fn new(number: usize) -> NodeHost {
        let address = CONTROL[number].split(':').next().unwrap();
        let config = format!(
            "[ng_server]\nlisten='udp:{}'\nallow='0.0.0.0/0'\n\
             [[ng_server.interface]]\nname='outside'\nmedia={{address='{address}',ports='20000-20399'}}\n\
             [[ng_server.interface]]\nname='inside'\nmedia={{address='198.51.100.{number}',ports='30000-30399'}}\n",
            CONTROL[number]
        );
        NodeHost {
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
pub struct Shared(pub Rc<RefCell<NodeHost>>);

impl Program for Shared {
    fn has_socket(&self, address: SocketAddr) -> bool {
        let machine = self.0.borrow();
        address == machine.control
            || machine
                .rig
                .sockets
                .values()
                .any(|(_, local)| *local == address)
    }

    fn receive(
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
            // Media of calls; the tests examine where it is relayed.
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
    pub net: VirtualNetwork,
    pub nodes: [Shared; 2],
    pub alice: usize,
    pub bob: usize,
}

impl World {
    pub fn new(config: &str) -> World {
        World::seeded(config, 1)
    }

    pub fn seeded(config: &str, seed: u64) -> World {
        let nodes = [0, 1].map(|number| Shared(Rc::new(RefCell::new(NodeHost::new(number)))));
        let mut net = VirtualNetwork::new(config, seed);
        for node in &nodes {
            net.programs.push(Box::new(node.clone()));
        }
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
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
        let content = MessageContent::sdp(SDP_A.as_bytes());
        self.net
            .call(self.alice, "sip:bob@192.0.2.1", OUT, &content)
    }

    /// Sets up a call; returns the caller's leg.
    pub fn call(&mut self) -> LegId {
        let leg = self.offer();
        self.net.run(seconds(1));
        let answered =
            |entry: &&LogEntry| entry.leg == Some(leg) && entry.event == PhoneEvent::Answered;
        assert!(
            self.net
                .log(self.alice)
                .iter()
                .any(|entry| answered(&entry)),
            "{:#?}",
            self.net.phone_events(self.alice)
        );
        leg
    }

    pub fn bye(&mut self, leg: LegId) {
        let alice = self.alice;
        self.net.command(alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
        self.net.run(seconds(1));
    }

    pub fn event_count(&self, name: &str) -> usize {
        self.net.names().iter().filter(|n| **n == name).count()
    }

    /// Nothing of any call is left, here or at a running node.
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
fn call_and_media_use_a_media_node() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    assert_eq!(world.calls(), [1, 0]);
    assert_eq!(world.net.border.census().ports, 0, "no port of the border");
    let offered = world
        .net
        .find(world.bob, |event| *event == PhoneEvent::Offered);
    let offered = offered.body();
    assert!(offered.contains("c=IN IP4 198.51.100.0"), "{offered}");
    assert!(!offered.contains("10.1.0.1"), "{offered}");
    let answered = world
        .net
        .find(world.alice, |event| *event == PhoneEvent::Answered);
    let answered = answered.body();
    assert!(answered.contains("c=IN IP4 192.0.2.101"), "{answered}");
    assert!(!answered.contains("10.2.0.1"), "{answered}");
    let (to_alice, to_bob) = (port_of(&answered), port_of(&offered));
    for sequence in 0..5 {
        let there = format!("192.0.2.101:{to_alice}");
        world
            .net
            .send_raw("10.1.0.1:4000", &there, &rtp(7, sequence));
        let back = format!("198.51.100.0:{to_bob}");
        world
            .net
            .send_raw("10.2.0.1:5000", &back, &rtp(8, sequence));
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
        .find_map(|event| match &event.kind {
            engine::EventKind::MediaNodeStatistics {
                node,
                caller_packets: caller,
                callee_packets: callee,
                ..
            } => Some((node.clone(), *caller, *callee)),
            _ => None,
        });
    assert_eq!(figures, Some(("one".to_owned(), 5, 5)));
    let end = world.net.events.iter().find_map(|event| {
        let mut fields = Vec::new();
        let note = Some(&event.kind).filter(|note| note.name() == "call_ended");
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
fn call_without_packets_at_a_node_has_its_codec() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    world.bye(leg);
    let codecs = world
        .net
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            engine::EventKind::CallEnded { path, codec, .. } => {
                Some((path.as_deref(), codec.as_deref()))
            }
            _ => None,
        });
    assert_eq!(codecs.collect::<Vec<_>>(), [(Some("node"), Some("PCMU"))]);
    world.assert_quiet();
}

#[test]
fn calls_are_distributed_by_load_and_weight() {
    let text = config("").replace("name='two'", "name='two'\nweight=3\nmax_calls=5");
    let mut world = World::new(&text);
    let legs: Vec<LegId> = (0..4).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [1, 3]);
    let more: Vec<LegId> = (0..8).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [7, 5], "at most five at the second");
    for leg in legs.into_iter().chain(more) {
        world.bye(leg);
    }
    assert_eq!(world.calls(), [0, 0]);
    world.assert_quiet();
}

#[test]
fn reported_load_of_a_node_counts() {
    let text = config("").replace("name='one'", "name='one'\nload='reported'");
    let mut world = World::new(&text);
    for number in 0..3 {
        let call = format!("other{number}");
        let machine = &world.nodes[0].0;
        let mut machine = machine.borrow_mut();
        machine.rig.offer(
            &ng_server_rig::sdp("10.9.0.1", 4000, "RTP/AVP", ""),
            &[("call-id", &call)],
        );
    }
    // The next check reports them.
    world.net.run(seconds(6));
    let legs: Vec<LegId> = (0..3).map(|_| world.call()).collect();
    assert_eq!(world.calls(), [3, 3], "the first has three calls of others");
    let last = [world.call(), world.call()];
    assert_eq!(world.calls(), [4, 4]);
    for leg in legs.into_iter().chain(last) {
        world.bye(leg);
    }
    assert_eq!(world.calls(), [3, 0]);
}

#[test]
fn full_node_fails_over_to_another() {
    let mut world = World::new(&config(""));
    world.nodes[0].0.borrow_mut().full = true;
    let leg = world.call();
    assert_eq!(world.calls(), [0, 1]);
    assert_eq!(world.event_count("media_node_failed"), 1);
    assert_eq!(world.event_count("media_node_chosen"), 2);
    world.nodes[1].0.borrow_mut().full = true;
    let refused = world.offer();
    world.net.run(seconds(1));
    let failed = world.net.last(world.alice, |event| {
        matches!(event, PhoneEvent::Failed(_, 503))
    });
    assert_eq!(failed.leg, Some(refused));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn unreachable_port_marks_the_node_down_at_once() {
    let mut world = World::new(&config(""));
    world.net.reports_unreachable = true;
    world.net.programs.remove(0);
    let leg = world.call();
    assert_eq!(world.calls(), [0, 1]);
    assert_eq!(world.event_count("media_node_down"), 1);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn calls_are_refused_without_nodes() {
    let mut world = World::new(&config(""));
    for node in &world.nodes {
        node.0.borrow_mut().dead = true;
    }
    world.offer();
    world.net.run(seconds(8));
    world.net.find(world.alice, |event| {
        matches!(event, PhoneEvent::Failed(_, 503))
    });
    assert_eq!(world.event_count("media_node_down"), 2);
    assert_eq!(world.event_count("call_routed"), 0, "no call was routed");
    world.assert_quiet();
}

/// A reload adds the first nodes while no socket can be opened, as at the limit of open files.
#[test]
fn command_socket_that_could_not_be_opened_is_tried_again() {
    let mut world = World::new(PLAIN);
    world.net.occupied = vec![addr("0.0.0.0:0")];
    let with_nodes = config::parse(&config(""), "test.toml").unwrap();
    world
        .net
        .control(|border, now| border.reload(with_nodes, now));
    world.net.run(seconds(5));
    let failures: Vec<(&str, &str)> = world
        .net
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::SocketFailed {
                purpose, address, ..
            } => Some((purpose.as_str(), address.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(failures, [("ng client", CONTROL[0])], "once");
    assert_eq!(world.event_count("media_node_down"), 2);
    world.net.occupied.clear();
    world.net.run(seconds(5));
    assert_eq!(world.event_count("media_node_up"), 2);
    let leg = world.call();
    assert_eq!(world.calls(), [1, 0]);
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn node_is_drained_from_service() {
    let mut world = World::new(&config(""));
    let first = world.call();
    assert_eq!(world.calls(), [1, 0]);
    let text = config("").replace("name='one'", "name='one'\ndrain=true");
    let reloaded = config::parse(&text, "test.toml").unwrap();
    world
        .net
        .control(|border, now| border.reload(reloaded, now));
    let others = [world.call(), world.call()];
    assert_eq!(world.calls(), [1, 2]);
    // Established calls may change nevertheless.
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    world.net.command(world.alice, |endpoint, now| {
        let content = MessageContent::sdp(hold.as_bytes());
        endpoint
            .request(first, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    world.net.find(world.alice, |event| {
        matches!(event, PhoneEvent::Response(200, _))
    });
    assert_eq!(world.event_count("media_node_drained"), 0);
    world.bye(first);
    assert_eq!(world.event_count("media_node_drained"), 1);
    // Back into service; then removed from the file.
    let back = config::parse(&config(""), "test.toml").unwrap();
    world.net.control(|border, now| border.reload(back, now));
    let again = world.call();
    assert_eq!(world.calls(), [1, 2]);
    let text = config("");
    let at = text.find("[[media_node]]\nname='two'").unwrap();
    let one = config::parse(&text[..at], "test.toml").unwrap();
    world.net.control(|border, now| border.reload(one, now));
    let last = world.call();
    assert_eq!(world.calls(), [2, 2]);
    for leg in others.into_iter().chain([again, last]) {
        world.bye(leg);
    }
    assert_eq!(world.calls(), [0, 0]);
    assert_eq!(world.event_count("media_node_drained"), 2);
    world.assert_quiet();
}

#[test]
fn hold_update_and_refused_offers_in_dialog() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    let (alice, bob) = (world.alice, world.bob);
    let called = world
        .net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    world.net.command(alice, |endpoint, now| {
        let content = MessageContent::sdp(hold.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    let entry = world
        .net
        .find(bob, |event| matches!(event, PhoneEvent::Request(_)))
        .body();
    assert!(
        entry.contains("198.51.100.0") && entry.contains("sendonly"),
        "{entry}"
    );
    // A re-offer of the callee by UPDATE.
    let own = SDP_B.replace("2 2 IN", "2 3 IN").replace("5000", "5002");
    world.net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(own.as_bytes());
        endpoint
            .request(called, Method::Update, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    let entry = world
        .net
        .last(alice, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(entry.method(), "UPDATE");
    assert!(entry.body().contains("192.0.2.101"), "{}", entry.text());
    let answered = world
        .net
        .last(bob, |event| matches!(event, PhoneEvent::Response(200, _)));
    assert!(
        answered.body().contains("198.51.100.0"),
        "{}",
        answered.text()
    );
    world.net.phones[bob].log.behaviour.inside = Some(488);
    world.net.command(alice, |endpoint, now| {
        let content = MessageContent::sdp(SDP_A.as_bytes());
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    world
        .net
        .find(alice, |event| matches!(event, PhoneEvent::Response(488, _)));
    world.net.phones[bob].log.behaviour.inside = Some(200);
    world.net.command(alice, |endpoint, now| {
        let content = MessageContent::sdp(SDP_A.as_bytes());
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

/// The callee offers in an early dialog, as in VoLTE: the call has the same ports at its node.
#[test]
fn update_of_the_callee_before_its_answer() {
    let mut world = World::new(&config(""));
    let (alice, bob) = (world.alice, world.bob);
    world.net.phones[bob].log.behaviour.progress = vec![(183, true)];
    world.net.phones[bob].log.behaviour.answer = None;
    let leg = world.offer();
    world.net.run(seconds(1));
    let early = world.net.find(alice, |event| {
        matches!(event, PhoneEvent::Progressed(183, true, _))
    });
    let invite = world.net.find(bob, |event| *event == PhoneEvent::Offered);
    let called = invite.leg.unwrap();
    let (to_alice, to_bob) = (port_of(&early.body()), port_of(&invite.body()));
    let own = SDP_B.replace("2 2 IN", "2 3 IN").replace("5000", "5002");
    world.net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(own.as_bytes());
        endpoint
            .request(called, Method::Update, &content, now)
            .unwrap();
    });
    world.net.run(seconds(1));
    let update = world
        .net
        .find(alice, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(update.method(), "UPDATE");
    assert_eq!(port_of(&update.body()), to_alice);
    let answer = world
        .net
        .find(bob, |event| matches!(event, PhoneEvent::Response(200, _)));
    assert_eq!(port_of(&answer.body()), to_bob);
    assert_eq!(world.nodes[0].0.borrow().rig.node.census().branches, 1);
    for (from, node, to) in [
        (
            "10.1.0.1:4000",
            format!("192.0.2.101:{to_alice}"),
            "10.2.0.1:5002",
        ),
        (
            "10.2.0.1:5002",
            format!("198.51.100.0:{to_bob}"),
            "10.1.0.1:4000",
        ),
    ] {
        world.net.send_raw(from, &node, &rtp(7, 1));
        world.net.run(Duration::from_millis(20));
        assert!(
            world.net.media.iter().any(|(at, ..)| *at == addr(to)),
            "{to}"
        );
    }
    world.net.command(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &MessageContent::default(), now)
            .unwrap();
    });
    world.net.run(seconds(1));
    assert!(world.net.has(alice, |event| *event == PhoneEvent::Answered));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn early_media_needs_one_node_command() {
    let mut world = World::new(&config(""));
    world.net.phones[world.bob].log.behaviour.progress =
        vec![(180, false), (183, false), (183, false)];
    let leg = world.call();
    let answer = world
        .net
        .find(world.alice, |event| *event == PhoneEvent::Answered)
        .body();
    let early: Vec<String> = world
        .net
        .log(world.alice)
        .iter()
        .filter(|entry| matches!(entry.event, PhoneEvent::Progressed(183, ..)))
        .map(LogEntry::body)
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
    world.net.phones[bob].log.behaviour.progress = vec![(183, true)];
    world.net.phones[bob].log.behaviour.answer = None;
    let leg = world.offer();
    world.net.run(seconds(1));
    let early = world.net.find(alice, |event| {
        matches!(event, PhoneEvent::Progressed(183, true, _))
    });
    assert!(early.body().contains("192.0.2.101"), "{}", early.text());
    assert!(
        world
            .net
            .has(bob, |event| matches!(event, PhoneEvent::Pracked(_)))
    );
    let called = world
        .net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    world.net.command(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &MessageContent::default(), now)
            .unwrap();
    });
    world.net.run(seconds(1));
    assert!(world.net.has(alice, |event| *event == PhoneEvent::Answered));
    world.bye(leg);
    world.net.phones[bob].log.behaviour = PhoneBehaviour::answering(SDP_B);
    world.net.phones[alice].log.behaviour.sdp = "late".into();
    let late = world
        .net
        .call(alice, "sip:bob@192.0.2.1", OUT, &MessageContent::default());
    world.net.run(seconds(1));
    let answered = world
        .net
        .last(alice, |event| *event == PhoneEvent::Answered);
    assert_eq!(answered.leg, Some(late));
    assert!(
        answered.body().contains("192.0.2.101"),
        "{}",
        answered.text()
    );
    let acked = world.net.last(bob, |event| *event == PhoneEvent::Acked);
    assert!(acked.body().contains("198.51.100.0"), "{}", acked.text());
    world.bye(late);
    world.assert_quiet();
}

/// A call cancelled while the node's reply is pending leaves nothing at the node.
#[test]
fn call_is_cancelled_while_a_node_reply_is_pending() {
    let mut world = World::new(&config(""));
    world.nodes[0].0.borrow_mut().mute = true;
    let leg = world.offer();
    world.net.run(Duration::from_millis(100));
    assert_eq!(
        world.calls(),
        [1, 0],
        "the node has the call without having replied"
    );
    world.net.command(world.alice, |endpoint, now| {
        endpoint
            .cancel(leg, &MessageContent::default(), now)
            .unwrap();
    });
    world.net.run(Duration::from_millis(100));
    assert_eq!(world.calls(), [0, 0]);
    let kept = {
        let mut machine = world.nodes[0].0.borrow_mut();
        machine.mute = false;
        std::mem::take(&mut machine.kept)
    };
    for (from, to, bytes) in kept {
        world
            .net
            .send_raw(&from.to_string(), &to.to_string(), &bytes);
    }
    world.net.run(seconds(1));
    assert!(world.net.border.drops().get(DropReason::NgLate) > 0);
    world.assert_quiet();
}

/// The answer waits for a node that has failed: the call ends on both sides.
#[test]
fn answer_without_node_reply_ends_the_call() {
    let mut world = World::new(&config(""));
    world.net.phones[world.bob].log.behaviour.answer = None;
    world.offer();
    world.net.run(seconds(1));
    for node in &world.nodes {
        node.0.borrow_mut().dead = true;
    }
    let called = world
        .net
        .find(world.bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    world.net.command(world.bob, |endpoint, now| {
        let content = MessageContent::sdp(SDP_B.as_bytes());
        endpoint.answer(called, 200, &content, now).unwrap();
    });
    // Meanwhile requests wait.
    world.net.run(Duration::from_millis(50));
    world.net.run(seconds(5));
    world.net.find(world.alice, |event| {
        matches!(event, PhoneEvent::Failed(_, 503))
    });
    world
        .net
        .find(world.bob, |event| *event == PhoneEvent::Ended(Ending::Peer));
    world.assert_quiet();
}

#[test]
fn unsolicited_node_replies_are_counted_drops() {
    let mut world = World::new(&config(""));
    world.net.run(seconds(1));
    let socket = world
        .net
        .wire
        .iter()
        .filter(|(to, _)| to.port() == 2223)
        .count();
    assert!(socket > 0, "nodes are checked");
    // Address of the command socket in this network.
    let here = (40_000..40_010u16)
        .map(|port| SocketAddr::from(([0, 0, 0, 0], port)))
        .find(|address| world.net.is_open(*address))
        .unwrap()
        .to_string();
    let before = world.net.border.drops().get(DropReason::NgUnexpectedReply);
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
        world.net.send_raw(far, &here, bytes);
    }
    world.net.run(seconds(1));
    let after = world.net.border.drops().get(DropReason::NgUnexpectedReply);
    assert_eq!(after - before, 7);
    let leg = world.call();
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn node_terminates_srtp_on_one_side() {
    let text = config("").replace("name='out'", "name='out'\nsrtp='require'");
    let mut world = World::new(&text);
    let plain = world.offer();
    world.net.run(seconds(1));
    let refused = world.net.find(world.alice, |event| {
        matches!(event, PhoneEvent::Failed(_, 488))
    });
    assert_eq!(refused.leg, Some(plain));
    assert_eq!(world.event_count("media_security_failed"), 1);
    let key =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj\r\n";
    let secure = SDP_A.replace("RTP/AVP", "RTP/SAVP") + key;
    let content = MessageContent::sdp(secure.as_bytes());
    let leg = world
        .net
        .call(world.alice, "sip:bob@192.0.2.1", OUT, &content);
    world.net.run(seconds(1));
    let offered = world
        .net
        .find(world.bob, |event| *event == PhoneEvent::Offered)
        .body();
    assert!(
        offered.contains("RTP/AVP") && !offered.contains("crypto"),
        "{offered}"
    );
    let answered = world
        .net
        .find(world.alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(
        answered.contains("RTP/SAVP") && answered.contains("a=crypto:1"),
        "{answered}"
    );
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn srtp_offer_to_the_callee_has_only_our_suites() {
    let text = config("").replace("name='in'", "name='in'\nsrtp='require'");
    let mut world = World::new(&text);
    let bob = world.bob;
    let key = "a=crypto:1 AEAD_AES_256_GCM inline:9go2CEv5AQuOUex3SNUt6T44XKi4Y8Wyh0RSaLX1Don2dhRzQbcXM0RAxeY\r\n";
    world.net.phones[bob].log.behaviour.sdp = SDP_B.replace("RTP/AVP", "RTP/SAVP") + key;
    let leg = world.call();
    let offered = world
        .net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .body();
    assert!(offered.contains("RTP/SAVP"), "{offered}");
    assert!(offered.contains("AEAD_AES_256_GCM"), "{offered}");
    assert!(
        !offered.contains("NULL") && !offered.contains("AES_192"),
        "{offered}"
    );
    let answered = world
        .net
        .find(world.alice, |event| *event == PhoneEvent::Answered);
    let answered = answered.body();
    assert!(
        answered.contains("RTP/AVP") && !answered.contains("crypto"),
        "{answered}"
    );
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn leg_of_a_call_at_a_node_is_not_replaced() {
    let mut world = World::new(&config(""));
    let leg = world.call();
    let alice = world.alice;
    let carol = world
        .net
        .phone("10.1.0.3:5060", PhoneBehaviour::answering(SDP_A));
    let endpoint = &world.net.phones[alice].endpoint;
    let call_id = String::from_utf8(endpoint.call_id_of(leg).unwrap().to_vec()).unwrap();
    let answered = world
        .net
        .find(alice, |event| *event == PhoneEvent::Answered);
    let tag = |header: &str| {
        let value = answered.header(header);
        value.split(";tag=").nth(1).unwrap_or_default().to_owned()
    };
    let value = format!("{call_id};to-tag={};from-tag={}", tag("To"), tag("From"));
    let replaces = [Edit::Add {
        id: HeaderId::Replaces,
        value: value.as_bytes(),
    }];
    let content = MessageContent::sdp(SDP_A.as_bytes()).with(&replaces);
    world.net.call(carol, "sip:bob@192.0.2.1", OUT, &content);
    world.net.run(seconds(1));
    world
        .net
        .find(carol, |event| matches!(event, PhoneEvent::Failed(_, 488)));
    world.bye(leg);
    world.assert_quiet();
}

#[test]
fn options_incompatible_with_nodes_are_refused_by_name() {
    let refused = |text: &str| {
        let mistakes = config::parse(text, "test.toml").expect_err(text);
        mistakes.iter().map(ToString::to_string).collect::<String>()
    };
    for (from, to, word) in [
        ("name='out'", "name='out'\nsrtp='prefer'", "prefer"),
        ("name='out'", "name='out'\ntranscode='PCMA'", "transcoding"),
        ("name='out'", "name='out'\nearly_media='gate'", "gate"),
        ("name='pbx'", "name='pbx'\nrefer='act'", "act"),
        ("node_interface='inside'", "", "node_interface"),
        (
            "anchor='nodes'",
            "anchor='here'",
            "configured, but not used",
        ),
        ("udp:192.0.2.101", "tcp:192.0.2.101", "over udp, not tcp"),
        ("udp:192.0.2.101:2223", "udp:node:2223", "IP address"),
        ("udp:192.0.2.102", "udp:192.0.2.101", "has the same address"),
        ("name='two'", "name='one'", "exists already"),
    ] {
        let text = config("").replace(from, to);
        let why = refused(&text);
        assert!(why.contains(word), "{word}: {why}");
    }
    let why = refused(&format!("{PLAIN}[media]\nanchor='nodes'\n"));
    assert!(why.contains("no media node"), "{why}");
}
