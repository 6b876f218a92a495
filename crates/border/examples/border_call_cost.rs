//! CPU time of a call through the border, in memory: its messages as a simple caller and called side write them, and
//! only the border's own work is timed. Two configurations alternate, so that the noise of the machine affects both.
//!
//! `cargo run --release -p border --example border_call_cost FILE [OTHER FILE] [calls]`; the first trunk of a file is
//! at 127.0.0.1:5080, its first interface at 127.0.0.1:5060 (`examples/loopback-bypass.toml`).

use border::border::Border;
use engine::{Datagram, Engine, Entropy, Input, MessageBatch, Output, SocketId, SocketKind, Time};
use std::net::SocketAddr;
use std::time::Instant;

const CALLER: &str = "127.0.0.1:5062";
const CALLED: &str = "127.0.0.1:5080";
const SDP: &str = "v=0\r\no=user1 53655765 2353687637 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";
/// Calls of one configuration before it is the other's turn.
const TURN: u64 = 500;
/// Between calls, in nanoseconds of virtual time: 4,000 a second.
const APART: u64 = 250_000;

/// A border, its output, and its CPU time.
struct Subject {
    border: Border,
    listener: SocketId,
    now: Time,
    next: u64,
    /// Of each turn, nanoseconds a call.
    turns: Vec<f64>,
    spent: u64,
    sent: Vec<(SocketAddr, Vec<u8>)>,
    /// Whether messages are recorded.
    records: bool,
}

impl Subject {
    fn new(text: &str) -> Subject {
        let config = config::parse(text, "file").expect("a configuration");
        let mut subject = Subject {
            border: Border::new(config, Entropy::from_number(1)),
            listener: SocketId(0),
            now: Time::ZERO,
            next: 0,
            turns: Vec::new(),
            spent: 0,
            sent: Vec::new(),
            records: false,
        };
        // With [store] messages and events are recorded, as by the program.
        subject.records = subject.border.config().store.is_some();
        subject.border.set_events_wanted(subject.records);
        if subject.records {
            subject
                .border
                .record_messages(Some(MessageBatch::new(1 << 20)));
        }
        let mut opened = Vec::new();
        while let Some(output) = subject.border.next_output() {
            if let Output::OpenSocket {
                socket,
                kind,
                local,
            } = output
            {
                opened.push((socket, kind, local));
            }
        }
        for (socket, kind, local) in opened {
            if kind == SocketKind::UdpSignalling && local.port() == 5060 {
                subject.listener = socket;
            }
            let now = subject.now;
            let input = Input::Opened { socket, local };
            subject.border.handle(input, now);
        }
        subject.drain();
        subject
    }

    fn drain(&mut self) {
        while let Some(output) = self.border.next_output() {
            if let Output::Datagram {
                destination, bytes, ..
            } = output
            {
                self.sent.push((destination, bytes.to_vec()));
            }
        }
        if let Some(batch) = self.border.recorded_messages()
            && batch.is_half_full()
        {
            batch.clear();
        }
    }

    /// Sends a peer's message and returns the border's message to `to` with this first line.
    fn give(&mut self, from: &str, text: &str, to: &str, begins: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        let source = from.parse().expect("an address");
        self.sent.clear();
        let start = Instant::now();
        let datagram = Datagram {
            socket: self.listener,
            source,
            arrived: self.now,
            bytes: &mut bytes,
        };
        self.border.handle(Input::Datagram(datagram), self.now);
        self.drain();
        self.spent += start.elapsed().as_nanos() as u64;
        if to.is_empty() {
            return String::new();
        }
        let to: SocketAddr = to.parse().expect("an address");
        let found = self.sent.iter().find(|(destination, bytes)| {
            *destination == to && bytes.starts_with(begins.as_bytes())
        });
        let (_, bytes) = found.unwrap_or_else(|| panic!("no {begins} to {to} for\n{text}"));
        String::from_utf8(bytes.clone()).expect("text")
    }

    fn call(&mut self) {
        self.now = Time(self.now.0 + APART);
        self.next += 1;
        let n = self.next;
        let timeout = Instant::now();
        self.border.handle(Input::Timeout, self.now);
        self.drain();
        self.spent += timeout.elapsed().as_nanos() as u64;
        let head = |method: &str, cseq: u32, uri: &str, to: &str| {
            format!(
                "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {CALLER};branch=z9hG4bK-{n}-{cseq}-{method}\r\nFrom: sipp <sip:sipp@{CALLER}>;tag={n}SIPpTag00\r\nTo: service <sip:service@127.0.0.1:5060>{to}\r\nCall-ID: {n}-4711@127.0.0.1\r\nCSeq: {cseq} {method}\r\nContact: sip:sipp@{CALLER}\r\nMax-Forwards: 70\r\nSubject: Performance Test\r\n"
            )
        };
        let uri = "sip:service@127.0.0.1:5060";
        let invite = format!(
            "{}Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{SDP}",
            head("INVITE", 1, uri, ""),
            SDP.len()
        );
        let inner = self.give(CALLER, &invite, CALLED, "INVITE ");
        let ringing = answer(&inner, "180 Ringing", "");
        self.give(CALLED, &ringing, CALLER, "SIP/2.0 180");
        let ok = answer(&inner, "200 OK", SDP);
        let answered = self.give(CALLED, &ok, CALLER, "SIP/2.0 200");
        let to = field(&answered, "To: ");
        let tag = to.find(";tag=").map_or("", |at| &to[at..]);
        let contact = field(&answered, "Contact: ");
        let uri = contact.trim_start_matches('<');
        let uri = uri.split('>').next().unwrap_or(uri);
        let ack = format!("{}Content-Length: 0\r\n\r\n", head("ACK", 1, uri, tag));
        // The border has acknowledged the 200 of the called side already.
        self.give(CALLER, &ack, "", "");
        let bye = format!("{}Content-Length: 0\r\n\r\n", head("BYE", 2, uri, tag));
        let inner = self.give(CALLER, &bye, CALLED, "BYE ");
        let ok = answer(&inner, "200 OK", "");
        // The border has answered for itself.
        self.give(CALLED, &ok, "", "");
    }

    fn turn(&mut self, calls: u64) {
        self.spent = 0;
        for _ in 0..calls {
            self.call();
        }
        self.turns.push(self.spent as f64 / calls as f64);
    }

    fn median(&mut self) -> f64 {
        self.turns.sort_by(f64::total_cmp);
        self.turns.get(self.turns.len() / 2).copied().unwrap_or(0.0)
    }
}

/// The value of a message's field.
fn field<'m>(message: &'m str, name: &str) -> &'m str {
    let mut lines = message.split("\r\n");
    lines
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default()
}

/// A response as a simple called side writes it.
fn answer(request: &str, status: &str, body: &str) -> String {
    let mut text = format!("SIP/2.0 {status}\r\n");
    for line in request.split("\r\n").take_while(|line| !line.is_empty()) {
        let copied = ["Via: ", "From: ", "Call-ID: ", "CSeq: "];
        if copied.iter().any(|name| line.starts_with(name)) {
            text += line;
            text += "\r\n";
        } else if line.starts_with("To: ") {
            text += line;
            text += match line.contains(";tag=") {
                true => "\r\n",
                false => ";tag=1SIPpTag01\r\n",
            };
        }
    }
    text += &format!("Contact: <sip:{CALLED};transport=UDP>\r\n");
    if !body.is_empty() {
        text += "Content-Type: application/sdp\r\n";
    }
    text + &format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

fn main() {
    let mut files = Vec::new();
    let mut calls = 200_000;
    for argument in std::env::args().skip(1) {
        match argument.parse() {
            Ok(number) => calls = number,
            Err(_) => files.push(argument),
        }
    }
    let mut subjects: Vec<Subject> = files
        .iter()
        .map(|file| Subject::new(&std::fs::read_to_string(file).expect("a file")))
        .collect();
    for turn in 0..calls / TURN {
        for subject in &mut subjects {
            subject.turn(TURN);
            // Until transactions begin to end, a call costs less than later.
            if turn * TURN * APART < 40_000_000_000 {
                subject.turns.clear();
            }
        }
    }
    for (file, subject) in files.iter().zip(&mut subjects) {
        let census = subject.border.census();
        println!(
            "{file}: {:.2} us a call (median of turns); {census:?}",
            subject.median() / 1e3
        );
    }
}
