//! Several workers of one border under overload, by hand: what comes to one and belongs to another is handed over here.

use border::border::Border;
use border::config::parse;
use engine::{
    Control as _, Datagram, DropReason, Engine as _, Entropy, Input, Output, Parcel, ParcelHead,
    SocketId, Time,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

const CONFIG: &str = "[[interface]]\nname='out'\nlisten='udp:192.0.2.1:5060'\n\
    [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
    [[trunk]]\nname='pbx'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
    [[route]]\ntrunk='pbx'\nmedia='bypass'\n[sip]\nworkers=2\n";

struct Crew {
    members: Vec<Border>,
    /// The socket at 192.0.2.1, of each.
    outside: Vec<SocketId>,
    handed: VecDeque<(usize, ParcelHead, Vec<u8>)>,
    said: Vec<String>,
    sieves: BTreeMap<usize, u32>,
    now: Time,
    /// What was handed over so far.
    carried: usize,
}

impl Crew {
    fn new() -> Crew {
        let config = parse(CONFIG, "t").unwrap();
        let members = Border::crew(config, 2, Entropy::from_number(5));
        let mut crew = Crew {
            members,
            outside: vec![SocketId(0); 2],
            handed: VecDeque::new(),
            said: Vec::new(),
            sieves: BTreeMap::new(),
            now: Time::from_secs(10),
            carried: 0,
        };
        crew.settle();
        crew
    }

    /// Carries out everything that the workers have to say.
    fn settle(&mut self) {
        for at in 0..self.members.len() {
            self.drain(at);
        }
        while let Some((at, head, bytes)) = self.handed.pop_front() {
            let parcel = Parcel {
                head,
                bytes: &bytes,
            };
            self.members[at].handle(Input::Handed(parcel), self.now);
            self.drain(at);
        }
    }

    fn drain(&mut self, at: usize) {
        loop {
            let mut opened = Vec::new();
            while let Some(output) = self.members[at].next_output() {
                match output {
                    Output::Open { socket, local, .. } => opened.push((socket, local)),
                    Output::Datagram {
                        destination, bytes, ..
                    } if destination.ip().to_string() == "10.1.0.1" => {
                        self.said.push(String::from_utf8_lossy(bytes).into_owned());
                    }
                    Output::Hand { worker, parcel } => {
                        let parcel = (usize::from(worker), parcel.head, parcel.bytes.to_vec());
                        self.handed.push_back(parcel);
                        self.carried += 1;
                    }
                    Output::Sieve { .. } => *self.sieves.entry(at).or_default() += 1,
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

    /// A datagram that waited so long at the socket of a worker.
    fn comes(&mut self, at: usize, text: &str, waited: Duration) {
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
    // As long as others: a shorter one leaves no room for a 100 to a source that is not known.
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

/// Each worker refuses what is its own, whichever way it comes; what is known to one is not refused by another.
#[test]
fn of_a_flood_each_worker_refuses_its_own() {
    let mut crew = Crew::new();
    // Calls while there is no queue.
    for call in 0..10 {
        crew.comes(call % 2, &invite(call), Duration::ZERO);
    }
    let trying = crew
        .said
        .iter()
        .filter(|text| text.starts_with("SIP/2.0 100"));
    assert_eq!(trying.count(), 10);
    crew.said.clear();
    // Everything waits too long from now on.
    let late = Duration::from_millis(60);
    for call in 100..1_300 {
        crew.comes(call % 2, &invite(call), late);
        crew.pass(Duration::from_millis(2));
    }
    let refusals: Vec<String> = std::mem::take(&mut crew.said)
        .into_iter()
        .filter(|text| text.starts_with("SIP/2.0 503") && text.contains("Retry-After: "))
        .collect();
    assert!(refusals.len() > 100, "{}", refusals.len());
    // A repetition by the other way of one that is known is no new call; of one that was refused it is refused the same way.
    crew.comes(1, &invite(0), late);
    crew.comes(0, &invite(0), late);
    assert!(
        crew.said
            .iter()
            .all(|text| !text.starts_with("SIP/2.0 503")),
        "{:?}",
        crew.said
    );
    crew.said.clear();
    let last = refusals.last().and_then(|refusal| {
        let line = refusal.lines().find(|line| line.starts_with("Call-ID: "))?;
        line.rsplit('-').next()?.parse().ok()
    });
    let last = last.expect("the number of a call that was refused");
    crew.comes(1, &invite(last), late);
    crew.comes(0, &invite(last), late);
    let to = |text: &String| {
        let line = text.lines().find(|line| line.starts_with("To: "));
        line.unwrap_or_default().to_owned()
    };
    assert_eq!(crew.said.len(), 2);
    assert_eq!(to(&crew.said[0]), to(&crew.said[1]));
    // Confirmations are taken in by whoever reads them.
    let before = crew.carried;
    for (number, refusal) in refusals.iter().enumerate() {
        crew.comes(number % 2, &ack(refusal), late);
    }
    assert_eq!(crew.carried, before);
    let mut shed = Vec::new();
    let mut acks = 0;
    for member in &crew.members {
        shed.push(member.counters().shed);
        acks += member.drops().get(DropReason::SipRefusedAck);
        assert_eq!(member.drops().get(DropReason::SipStrayAck), 0);
    }
    assert!(shed.iter().all(|refused| *refused > 30), "{shed:?}");
    assert_eq!(acks, refusals.len() as u64);
    // Each sifts before its own socket.
    assert!((0..2).all(|at| crew.sieves.get(&at).is_some_and(|count| *count > 0)));
}
