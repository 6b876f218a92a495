//! Workers of one border under overload; the test delivers their handoff messages.

use border::border::Border;
use config::parse;
use engine::{
    Control as _, Datagram, DropReason, Engine as _, Entropy, HandoffKind, HandoffMessage, Input,
    Output, SocketId, Time,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

const CONFIG: &str = "[[interface]]\nname='out'\nlisten='udp:192.0.2.1:5060'\n\
    [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
    [[trunk]]\nname='pbx'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
    [[route]]\ntrunk='pbx'\nmedia='bypass'\n[sip]\nworkers=2\n";

struct Workers {
    members: Vec<Border>,
    /// The socket at 192.0.2.1 of each worker.
    outside: Vec<SocketId>,
    handed: VecDeque<(usize, HandoffKind, Vec<u8>)>,
    sent: Vec<String>,
    socket_filters: BTreeMap<usize, u32>,
    now: Time,
    /// Handoff messages so far.
    handed_off: usize,
}

impl Workers {
    fn new() -> Workers {
        let config = parse(CONFIG, "t").unwrap();
        let members = Border::worker_pool(config, 2, Entropy::from_number(5));
        let mut pool = Workers {
            members,
            outside: vec![SocketId(0); 2],
            handed: VecDeque::new(),
            sent: Vec::new(),
            socket_filters: BTreeMap::new(),
            now: Time::from_secs(10),
            handed_off: 0,
        };
        pool.settle();
        pool
    }

    /// Handles all outputs of the workers.
    fn settle(&mut self) {
        for at in 0..self.members.len() {
            self.drain(at);
        }
        while let Some((at, head, bytes)) = self.handed.pop_front() {
            let handoff = HandoffMessage {
                kind: head,
                bytes: &bytes,
            };
            self.members[at].handle(Input::Handoff(handoff), self.now);
            self.drain(at);
        }
    }

    fn drain(&mut self, at: usize) {
        loop {
            let mut opened = Vec::new();
            while let Some(output) = self.members[at].next_output() {
                match output {
                    Output::OpenSocket { socket, local, .. } => opened.push((socket, local)),
                    Output::Datagram {
                        destination, bytes, ..
                    } if destination.ip().to_string() == "10.1.0.1" => {
                        self.sent.push(String::from_utf8_lossy(bytes).into_owned());
                    }
                    Output::HandOff {
                        worker,
                        message: handoff,
                    } => {
                        let handoff = (usize::from(worker), handoff.kind, handoff.bytes.to_vec());
                        self.handed.push_back(handoff);
                        self.handed_off += 1;
                    }
                    Output::SocketFilter { .. } => *self.socket_filters.entry(at).or_default() += 1,
                    _ => {}
                }
            }
            while self.members[at].next_command().is_some() {}
            if opened.is_empty() {
                return;
            }
            for (socket, local) in opened {
                if local.ip().to_string() == "192.0.2.1" && local.port() == 5060 {
                    self.outside[at] = socket;
                }
                self.members[at].handle(Input::Opened { socket, local }, self.now);
            }
        }
    }

    /// A datagram with this queueing delay arrives at a worker's socket.
    fn deliver(&mut self, at: usize, text: &str, waited: Duration) {
        let mut bytes = text.as_bytes().to_vec();
        let source: SocketAddr = "10.1.0.1:5060".parse().unwrap();
        let datagram = Datagram {
            socket: self.outside[at],
            source,
            arrived: Time(self.now.0 - waited.as_nanos() as u64),
            bytes: &mut bytes,
        };
        self.members[at].handle(Input::Datagram(datagram), self.now);
        self.settle();
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        for at in 0..self.members.len() {
            self.members[at].handle(Input::Timeout, self.now);
        }
        self.settle();
    }
}

fn invite(call: usize) -> String {
    // A longer request, because a 100 to an unknown source must not be longer than the request.
    let subject = "x".repeat(200);
    format!(
        "INVITE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bKi{call}\r\nFrom: <sip:1@10.1.0.1>;tag=c{call}\r\nTo: <sip:2000@192.0.2.1>\r\nCall-ID: call-{call}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nSubject: {subject}\r\nContact: <sip:1@10.1.0.1:5060>\r\nContent-Length: 0\r\n\r\n"
    )
}

fn ack(refusal: &str) -> String {
    let kept = |name: &str| {
        let mut lines = refusal.lines().filter(|line| line.starts_with(name));
        lines.next().unwrap_or_default().to_owned()
    };
    format!(
        "ACK sip:2000@192.0.2.1 SIP/2.0\r\n{}\r\n{}\r\n{}\r\n{}\r\nCSeq: 1 ACK\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
        kept("Via"),
        kept("From"),
        kept("To"),
        kept("Call-ID")
    )
}

/// Each worker refuses its own calls at whichever socket they arrive; known calls are not refused by another worker.
#[test]
fn each_worker_refuses_its_own_calls_in_a_flood() {
    let mut pool = Workers::new();
    // Calls without a queue.
    for call in 0..10 {
        pool.deliver(call % 2, &invite(call), Duration::ZERO);
    }
    let trying = pool
        .sent
        .iter()
        .filter(|text| text.starts_with("SIP/2.0 100"));
    assert_eq!(trying.count(), 10);
    pool.sent.clear();
    // From now on every datagram has too long a queueing delay.
    let late = Duration::from_millis(60);
    for call in 100..1_300 {
        pool.deliver(call % 2, &invite(call), late);
        pool.pass(Duration::from_millis(2));
    }
    let refusals: Vec<String> = std::mem::take(&mut pool.sent)
        .into_iter()
        .filter(|text| text.starts_with("SIP/2.0 503") && text.contains("Retry-After: "))
        .collect();
    assert!(refusals.len() > 100, "{}", refusals.len());
    // A retransmission at the other socket is no new call; a refused one is refused in the same way.
    pool.deliver(1, &invite(0), late);
    pool.deliver(0, &invite(0), late);
    assert!(
        pool.sent
            .iter()
            .all(|text| !text.starts_with("SIP/2.0 503")),
        "{:?}",
        pool.sent
    );
    pool.sent.clear();
    let last = refusals.last().and_then(|refusal| {
        let line = refusal.lines().find(|line| line.starts_with("Call-ID: "))?;
        line.rsplit('-').next()?.parse().ok()
    });
    let last = last.expect("the number of a call that was refused");
    pool.deliver(1, &invite(last), late);
    pool.deliver(0, &invite(last), late);
    let to = |text: &String| {
        let line = text.lines().find(|line| line.starts_with("To: "));
        line.unwrap_or_default().to_owned()
    };
    assert_eq!(pool.sent.len(), 2);
    assert_eq!(to(&pool.sent[0]), to(&pool.sent[1]));
    // The receiving worker handles ACKs of refusals.
    let before = pool.handed_off;
    for (number, refusal) in refusals.iter().enumerate() {
        pool.deliver(number % 2, &ack(refusal), late);
    }
    assert_eq!(pool.handed_off, before);
    let mut shed = Vec::new();
    let mut acks = 0;
    for member in &pool.members {
        shed.push(member.counters().shed);
        acks += member.drops().get(DropReason::SipRefusedAck);
        assert_eq!(member.drops().get(DropReason::SipStrayAck), 0);
    }
    assert!(shed.iter().all(|refused| *refused > 30), "{shed:?}");
    assert_eq!(acks, refusals.len() as u64);
    // Each worker sheds load at its own socket.
    assert!((0..2).all(|at| pool.socket_filters.get(&at).is_some_and(|count| *count > 0)));
}
