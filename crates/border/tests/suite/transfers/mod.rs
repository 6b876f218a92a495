//! Four phones around a border that carries out transfers: Alice on the access side; Bob, Carol and Dave on the core
//! side.
#![allow(dead_code)]

use crate::virtual_network::*;
use engine::Transport;
use engine::record::{CallRecord, RecordBuilder, RecordChange};
use sip::{LegId, MessageContent};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

pub const DONE: [&str; 1] = ["SIP/2.0 200 OK"];

pub const IN: &str = "198.51.100.1:5060";

/// Alice on the access side; Bob, Carol and Dave on the core side, each a trunk whose transfers the border carries out.
pub fn config(workers: u8, carol: &str) -> String {
    let mut text = String::from(
        "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
         [[interface]]\nname='in'\nkind='core'\nlisten=['udp:198.51.100.1:5060','tcp:198.51.100.1:5060','tls:198.51.100.1:5061']\n\
         media={address='198.51.100.1'}\ntls={certificate={chain='c.pem',key='c.key'}}\n",
    );
    let carol = format!("{carol}:10.2.0.2:5060");
    for (name, interface, target) in [
        ("alice", "out", "udp:10.1.0.1:5060"),
        ("bob", "in", "udp:10.2.0.1:5060"),
        ("carol", "in", &carol),
        ("dave", "in", "udp:10.2.0.3:5060"),
    ] {
        let tls = match target.starts_with("tls:") {
            true => format!("tls={{name='{name}.example'}}\n"),
            false => String::new(),
        };
        text += &format!(
            "[[trunk]]\nname='{name}'\ninterface='{interface}'\ntarget='{target}'\nrefer='act'\n{tls}\
             [[route]]\nto={{user='{name}'}}\ntrunk='{name}'\n"
        );
    }
    text + &format!(
        "[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n[sip]\nworkers={workers}\n"
    )
}

pub struct TransferRig {
    pub net: VirtualNetwork,
    /// Alice, Bob, Carol, Dave.
    pub phones: [usize; 4],
    calls: u32,
    /// Transport of Carol's calls.
    carol: Transport,
}

pub const ALICE: usize = 0;
pub const BOB: usize = 1;
pub const CAROL: usize = 2;
pub const DAVE: usize = 3;
pub const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// The two legs of a call: that of the given phone, and the other.
pub type Legs = [LegId; 2];

impl TransferRig {
    pub fn new(workers: u8) -> TransferRig {
        TransferRig::with(workers, Transport::Udp)
    }

    pub fn with(workers: u8, carol: Transport) -> TransferRig {
        let over = match carol {
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            _ => "udp",
        };
        TransferRig::of(&config(workers, over), carol)
    }

    pub fn of(config: &str, carol: Transport) -> TransferRig {
        let mut net = VirtualNetwork::with_workers(config, 3);
        let phones = [
            ("10.1.0.1", Transport::Udp),
            ("10.2.0.1", Transport::Udp),
            ("10.2.0.2", carol),
            ("10.2.0.3", Transport::Udp),
        ];
        let phones = phones.map(|(ip, transport)| {
            let behaviour = PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", ip));
            net.phone_over(&format!("{ip}:5060"), transport, behaviour)
        });
        TransferRig {
            net,
            phones,
            calls: 0,
            carol,
        }
    }

    pub fn run(&mut self, span: Duration) {
        self.net.run(span);
    }

    /// Sets up a call that belongs to this worker.
    pub fn call(&mut self, from: usize, to: usize, worker: u8) -> Legs {
        let legs = self.calls(from, to, worker);
        let callee = self.phones[to];
        assert!(self.net.has(callee, |event| *event == PhoneEvent::Acked));
        legs
    }

    pub fn calls(&mut self, from: usize, to: usize, worker: u8) -> Legs {
        self.calls += 1;
        let (hop, host) = if from == ALICE {
            (OUT, "192.0.2.1")
        } else {
            (IN, "198.51.100.1")
        };
        let uri = format!("sip:{}@{host}", NAMES[to]);
        let carol = self.carol;
        // A Call-ID of the same length as the border's identifies the worker.
        let call_id: &'static str = format!("{worker:02x}{:046x}", self.calls).leak();
        let sdp = self.net.phones[self.phones[from]].log.behaviour.sdp.clone();
        let content = MessageContent::sdp(sdp.as_bytes());
        let leg = self
            .net
            .call_with(self.phones[from], &uri, hop, &content, |invite| {
                invite.call_id = Some(call_id.as_bytes());
                if from == CAROL {
                    let port = 5060 + u16::from(carol == Transport::Tls);
                    invite.target.flow.transport = carol;
                    invite.target.flow.remote.set_port(port);
                }
            });
        self.net.run(Duration::from_secs(1));
        let other = self
            .net
            .last(self.phones[to], |event| *event == PhoneEvent::Offered)
            .leg;
        let legs = [leg, other.unwrap()];
        if let Some((_, tag)) = self.net.phones[self.phones[from]].endpoint.tags_of(leg)
            && !tag.is_empty()
        {
            assert_eq!(
                &tag[8..10],
                format!("{worker:02x}").as_bytes(),
                "the owning worker"
            );
        }
        legs
    }

    /// The value of Replaces for a phone's dialog, escaped for a URI.
    pub fn replaces(&mut self, whose: usize, leg: LegId) -> String {
        self.net.command(self.phones[whose], |endpoint, _| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let id = text(endpoint.call_id_of(leg).unwrap());
            let (own, theirs) = endpoint.tags_of(leg).unwrap();
            format!(
                "{id}%3Bto-tag%3D{}%3Bfrom-tag%3D{}",
                text(theirs),
                text(&own)
            )
        })
    }

    /// Sends REFER in a dialog of the phone.
    pub fn refer(&mut self, index: usize, leg: LegId, to: &str) {
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: to.as_bytes(),
        }];
        let content = MessageContent::default().with(&edits);
        self.net.command(self.phones[index], |endpoint, now| {
            endpoint.request(leg, Method::Refer, &content, now).unwrap();
        });
    }

    /// Attended transfer: sends REFER in one call to the peer of the phone's other call.
    pub fn attended(&mut self, index: usize, leg: LegId, consulted: LegId) {
        let replaces = self.replaces(index, consulted);
        self.refer(
            index,
            leg,
            &format!("<sip:x@198.51.100.1?Replaces={replaces}>"),
        );
    }

    /// Whether REFER was answered with this status.
    pub fn refer_answered(&self, index: usize, status: u16) -> bool {
        self.net.has(
            self.phones[index],
            |event| matches!(event, PhoneEvent::Response(answer, _) if *answer == status),
        )
    }

    /// First lines of the bodies of received NOTIFY requests.
    pub fn notified(&self, index: usize) -> Vec<String> {
        let entry = self.net.log(self.phones[index]).iter();
        entry
            .filter(|entry| entry.method() == "NOTIFY")
            .map(|entry| entry.body().lines().next().unwrap_or_default().to_owned())
            .collect()
    }

    /// Sets the phone's responses to in-dialog requests: a status, or none.
    pub fn set_in_dialog_response(&mut self, index: usize, inside: Option<u16>) {
        self.net.phones[self.phones[index]].log.behaviour.inside = inside;
    }

    /// Answers the last re-INVITE that the phone received.
    pub fn answer_re_invite(&mut self, index: usize, status: u16) {
        let phone = self.phones[index];
        let mut entry = self.net.log(phone).iter().rev();
        let asked = entry.find_map(|entry| match entry.event {
            PhoneEvent::Request(transaction) if entry.method() == "INVITE" => Some(transaction),
            _ => None,
        });
        let transaction = asked.expect("a re-INVITE");
        let sdp = self.net.phones[phone].log.behaviour.sdp.clone();
        self.net.command(phone, |endpoint, now| {
            let content = match status {
                ..300 => MessageContent::sdp(sdp.as_bytes()),
                _ => MessageContent::default(),
            };
            endpoint
                .respond(transaction, status, &content, now)
                .unwrap();
        });
    }

    /// Sends a request in a dialog of the phone.
    pub fn send_request(&mut self, index: usize, leg: LegId, method: Method<'static>) {
        let phone = self.phones[index];
        let sdp = self.net.phones[phone].log.behaviour.sdp.clone();
        let content = match method {
            Method::Invite => MessageContent::sdp(sdp.as_bytes()),
            _ => MessageContent::default(),
        };
        self.net.command(phone, |endpoint, now| {
            endpoint.request(leg, method, &content, now).unwrap();
        });
    }

    /// Number of media ports in use by calls.
    pub fn ports(&mut self) -> usize {
        let ports = self.net.each_worker(|border, _| border.census().ports);
        ports.into_iter().sum()
    }

    pub fn legs(&self, index: usize) -> usize {
        self.net.phones[self.phones[index]].endpoint.census().legs
    }

    pub fn all_legs(&self) -> [usize; 4] {
        [ALICE, BOB, CAROL, DAVE].map(|index| self.legs(index))
    }

    /// Number of calls of each worker.
    pub fn calls_of_workers(&mut self) -> Vec<usize> {
        self.net.each_worker(|border, _| border.census().calls)
    }

    /// Checks that in-dialog requests pass between two phones: INFO and a re-INVITE.
    pub fn check_requests(&mut self, (one, leg): (usize, LegId), (other, far): (usize, LegId)) {
        let (one, other) = (self.phones[one], self.phones[other]);
        for method in [Method::Info, Method::Invite] {
            let before = self.net.log(other).len();
            let answers = self.net.log(one).len();
            let sdp = self.net.phones[one].log.behaviour.sdp.clone();
            let content = match method {
                Method::Invite => MessageContent::sdp(sdp.as_bytes()),
                _ => MessageContent::default(),
            };
            self.net.command(one, |endpoint, now| {
                endpoint.request(leg, method, &content, now).unwrap();
            });
            self.net.run(Duration::from_secs(1));
            let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
            let heard = &self.net.log(other)[before..];
            assert!(
                heard
                    .iter()
                    .any(|entry| entry.method() == name && entry.leg == Some(far)),
                "{name}: {heard:?}"
            );
            let answered = &self.net.log(one)[answers..];
            assert!(
                answered
                    .iter()
                    .any(|entry| matches!(entry.event, PhoneEvent::Response(200, _))),
                "{name}: {answered:?}"
            );
        }
    }

    pub fn check_connection(&mut self, one: (usize, LegId), other: (usize, LegId)) {
        self.check_requests(one, other);
        self.check_requests(other, one);
    }

    pub fn hang_up(&mut self, index: usize, leg: LegId) {
        self.net.command(self.phones[index], |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
        self.net.run(Duration::from_secs(1));
    }

    /// Ends all calls of the phone.
    pub fn hang_up_all(&mut self, index: usize) {
        let phone = self.phones[index];
        let entry = self.net.log(phone).iter().filter_map(|entry| entry.leg);
        let mut legs: Vec<LegId> = entry.collect();
        legs.dedup();
        self.net.command(phone, |endpoint, now| {
            for leg in legs {
                let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
            }
        });
    }

    /// Whether the phone has this leg.
    pub fn has_leg(&self, index: usize, leg: LegId) -> bool {
        let endpoint = &self.net.phones[self.phones[index]].endpoint;
        endpoint.state_of(leg).is_some()
    }

    /// Records of the calls that have ended.
    pub fn records(&self) -> Vec<CallRecord> {
        let mut records = RecordBuilder::new("1".to_owned());
        let events = self.net.events.iter();
        let changes = events.filter_map(|event| records.add(event.clone()));
        let ended = changes.filter_map(|change| match change {
            RecordChange::Ended(record) => Some(*record),
            _ => None,
        });
        ended.collect()
    }

    /// Ends all calls and checks that no phone has a leg and no worker has state.
    pub fn end_all(&mut self) {
        assert_eq!(self.all_legs(), [0; 4]);
        self.net.assert_quiet();
    }
}
