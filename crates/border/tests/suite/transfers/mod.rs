//! Four phones around a border that carries out transfers: Alice outside; Bob, Carol and Dave inside.
#![allow(dead_code)]

use crate::neighbourhood::*;
use engine::Transport;
use sip::{Content, LegId};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

pub const DONE: [&str; 1] = ["SIP/2.0 200 OK"];

pub const OUT: &str = "192.0.2.1:5060";
pub const IN: &str = "198.51.100.1:5060";

/// Alice outside; Bob, Carol and Dave inside; each a trunk of his own whose transfers the border carries out.
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
    text + &format!("[session_timer]\nexpires=120\n[media]\ntimeout=0\n[sip]\nworkers={workers}\n")
}

pub struct Table {
    pub net: Neighbourhood,
    /// Alice, Bob, Carol, Dave.
    pub phones: [usize; 4],
    calls: u32,
    /// By which Carol's calls come.
    carol: Transport,
}

pub const ALICE: usize = 0;
pub const BOB: usize = 1;
pub const CAROL: usize = 2;
pub const DAVE: usize = 3;
pub const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// A call of somebody's: his leg, and the other one's.
pub type Legs = [LegId; 2];

impl Table {
    pub fn new(workers: u8) -> Table {
        Table::with(workers, Transport::Udp)
    }

    pub fn with(workers: u8, carol: Transport) -> Table {
        let over = match carol {
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            _ => "udp",
        };
        Table::of(&config(workers, over), carol)
    }

    pub fn of(config: &str, carol: Transport) -> Table {
        let mut net = Neighbourhood::crew(config, 3);
        let phones = [
            ("10.1.0.1", Transport::Udp),
            ("10.2.0.1", Transport::Udp),
            ("10.2.0.2", carol),
            ("10.2.0.3", Transport::Udp),
        ];
        let phones = phones.map(|(ip, transport)| {
            let manners = Manners::answering(&SDP_B.replace("10.2.0.1", ip));
            net.phone_over(&format!("{ip}:5060"), transport, manners)
        });
        Table {
            net,
            phones,
            calls: 0,
            carol,
        }
    }

    pub fn run(&mut self, span: Duration) {
        self.net.run(span);
    }

    /// One calls another, in a call of this worker.
    pub fn call(&mut self, from: usize, to: usize, worker: u8) -> Legs {
        let legs = self.calls(from, to, worker);
        let callee = self.phones[to];
        assert!(self.net.has(callee, |told| *told == Told::Acked));
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
        // A Call-ID that is as long as ours says whose it is.
        let call_id: &'static str = format!("{worker:02x}{:046x}", self.calls).leak();
        let sdp = self.net.phones[self.phones[from]].ears.manners.sdp.clone();
        let content = Content::sdp(sdp.as_bytes());
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
            .last(self.phones[to], |told| *told == Told::Offered)
            .leg;
        let legs = [leg, other.unwrap()];
        if let Some((_, tag)) = self.net.phones[self.phones[from]].endpoint.tags_of(leg)
            && !tag.is_empty()
        {
            assert_eq!(&tag[8..10], format!("{worker:02x}").as_bytes(), "its owner");
        }
        legs
    }

    /// Replaces for a dialog of somebody's, as a URI has it.
    pub fn replaces(&mut self, whose: usize, leg: LegId) -> String {
        self.net.tell(self.phones[whose], |endpoint, _| {
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

    /// Somebody refers in a dialog of his.
    pub fn refer(&mut self, who: usize, leg: LegId, to: &str) {
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: to.as_bytes(),
        }];
        let content = Content::default().with(&edits);
        self.net.tell(self.phones[who], |endpoint, now| {
            endpoint.request(leg, Method::Refer, &content, now).unwrap();
        });
    }

    /// Attended transfer: in one call he refers to the other end of another one of his.
    pub fn attended(&mut self, who: usize, leg: LegId, consulted: LegId) {
        let replaces = self.replaces(who, consulted);
        self.refer(
            who,
            leg,
            &format!("<sip:x@198.51.100.1?Replaces={replaces}>"),
        );
    }

    /// What was answered to REFER.
    pub fn answered(&self, who: usize, status: u16) -> bool {
        self.net.has(
            self.phones[who],
            |told| matches!(told, Told::Response(answer, _) if *answer == status),
        )
    }

    /// First lines of what NOTIFY told.
    pub fn told(&self, who: usize) -> Vec<String> {
        let seen = self.net.seen(self.phones[who]).iter();
        seen.filter(|seen| seen.method() == "NOTIFY")
            .map(|seen| seen.body().lines().next().unwrap_or_default().to_owned())
            .collect()
    }

    /// What he does from now on with requests in his dialogs: a status, or nothing.
    pub fn says(&mut self, who: usize, inside: Option<u16>) {
        self.net.phones[self.phones[who]].ears.manners.inside = inside;
    }

    /// Answers the last re-INVITE that he kept waiting.
    pub fn answers(&mut self, who: usize, status: u16) {
        let phone = self.phones[who];
        let mut seen = self.net.seen(phone).iter().rev();
        let asked = seen.find_map(|seen| match seen.told {
            Told::Request(transaction) if seen.method() == "INVITE" => Some(transaction),
            _ => None,
        });
        let transaction = asked.expect("a re-INVITE");
        let sdp = self.net.phones[phone].ears.manners.sdp.clone();
        self.net.tell(phone, |endpoint, now| {
            let content = match status {
                ..300 => Content::sdp(sdp.as_bytes()),
                _ => Content::default(),
            };
            endpoint
                .respond(transaction, status, &content, now)
                .unwrap();
        });
    }

    /// He sends a request in his dialog.
    pub fn asks(&mut self, who: usize, leg: LegId, method: Method<'static>) {
        let phone = self.phones[who];
        let sdp = self.net.phones[phone].ears.manners.sdp.clone();
        let content = match method {
            Method::Invite => Content::sdp(sdp.as_bytes()),
            _ => Content::default(),
        };
        self.net.tell(phone, |endpoint, now| {
            endpoint.request(leg, method, &content, now).unwrap();
        });
    }

    /// Ports for media that calls have.
    pub fn ports(&mut self) -> usize {
        let ports = self.net.each_worker(|border, _| border.census().ports);
        ports.into_iter().sum()
    }

    pub fn legs(&self, who: usize) -> usize {
        self.net.phones[self.phones[who]].endpoint.census().legs
    }

    pub fn all_legs(&self) -> [usize; 4] {
        [ALICE, BOB, CAROL, DAVE].map(|who| self.legs(who))
    }

    /// Calls of each worker.
    pub fn calls_of_workers(&mut self) -> Vec<usize> {
        self.net.each_worker(|border, _| border.census().calls)
    }

    /// What one says in his dialog the other hears, and answers; INFO passes, and a re-INVITE.
    pub fn speaks_to(&mut self, (one, leg): (usize, LegId), (other, far): (usize, LegId)) {
        let (one, other) = (self.phones[one], self.phones[other]);
        for method in [Method::Info, Method::Invite] {
            let before = self.net.seen(other).len();
            let answers = self.net.seen(one).len();
            let sdp = self.net.phones[one].ears.manners.sdp.clone();
            let content = match method {
                Method::Invite => Content::sdp(sdp.as_bytes()),
                _ => Content::default(),
            };
            self.net.tell(one, |endpoint, now| {
                endpoint.request(leg, method, &content, now).unwrap();
            });
            self.net.run(Duration::from_secs(1));
            let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
            let heard = &self.net.seen(other)[before..];
            assert!(
                heard
                    .iter()
                    .any(|seen| seen.method() == name && seen.leg == Some(far)),
                "{name}: {heard:?}"
            );
            let answered = &self.net.seen(one)[answers..];
            assert!(
                answered
                    .iter()
                    .any(|seen| matches!(seen.told, Told::Response(200, _))),
                "{name}: {answered:?}"
            );
        }
    }

    pub fn talk(&mut self, one: (usize, LegId), other: (usize, LegId)) {
        self.speaks_to(one, other);
        self.speaks_to(other, one);
    }

    pub fn hang_up(&mut self, who: usize, leg: LegId) {
        self.net.tell(self.phones[who], |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
        self.net.run(Duration::from_secs(1));
    }

    /// He hangs up wherever he has a leg.
    pub fn leaves(&mut self, who: usize) {
        let phone = self.phones[who];
        let seen = self.net.seen(phone).iter().filter_map(|seen| seen.leg);
        let mut legs: Vec<LegId> = seen.collect();
        legs.dedup();
        self.net.tell(phone, |endpoint, now| {
            for leg in legs {
                let _ = endpoint.hang_up(leg, &Content::default(), now);
            }
        });
    }

    /// Whether he has this leg.
    pub fn has_leg(&self, who: usize, leg: LegId) -> bool {
        let endpoint = &self.net.phones[self.phones[who]].endpoint;
        endpoint.state_of(leg).is_some()
    }

    /// Nobody has a leg, and no worker anything.
    pub fn ends(&mut self) {
        assert_eq!(self.all_legs(), [0; 4]);
        self.net.assert_quiet();
    }
}
