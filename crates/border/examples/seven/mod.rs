//! The 7-message call through a border in memory, its caller and callee played by ready-made messages. Only the
//! border's own time is counted.
#![allow(dead_code)]

use border::border::Border;
use engine::{Datagram, Engine, Entropy, Input, Output, SocketId, Time};
use std::time::{Duration, Instant};
use wire::sip::{HeaderId, Message};

const SDP: &str = "v=0\r\no=user1 53655765 2353687637 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

/// A border and its last output.
pub struct Bench {
    pub border: Border,
    pub now: Time,
    pub spent: Duration,
    socket: SocketId,
    pub out: Vec<Vec<u8>>,
    /// Changed registrations that were drained, where the border tracks them.
    pub drained: usize,
}

impl Bench {
    /// A border by this configuration, which tells no events.
    pub fn new(config: &str) -> Bench {
        let config = config::parse(config, "bench").unwrap_or_else(|mistakes| {
            panic!(
                "{}",
                mistakes.iter().map(|m| m.to_string()).collect::<String>()
            )
        });
        let mut border = Border::new(config, Entropy::from_number(1));
        border.set_events_wanted(false);
        let mut bench = Bench {
            border,
            now: Time::from_millis(1),
            spent: Duration::ZERO,
            socket: SocketId(0),
            out: Vec::new(),
            drained: 0,
        };
        bench.tick();
        bench.drain();
        bench
    }

    pub fn drain(&mut self) {
        loop {
            match self.border.next_output() {
                None => break,
                Some(Output::Datagram { bytes, .. }) => self.out.push(bytes.to_vec()),
                Some(Output::OpenSocket { socket, .. }) => self.socket = socket,
                Some(_) => {}
            }
        }
    }

    /// Gives a datagram to the border; its output is in `out`. Only the border's own time is counted.
    pub fn give(&mut self, from: &str, mut bytes: Vec<u8>) {
        let source = from.parse().unwrap();
        self.out.clear();
        let begin = Instant::now();
        self.border.handle(
            Input::Datagram(Datagram {
                socket: self.socket,
                source,
                arrived: self.now,
                bytes: &mut bytes,
            }),
            self.now,
        );
        if self.border.has_registration_changes() {
            let drained = &mut self.drained;
            self.border.drain_registration_changes(&mut |registration| {
                *drained += 1;
                drop(registration);
                true
            });
        }
        self.spent += begin.elapsed();
        self.drain();
    }

    pub fn tick(&mut self) {
        let begin = Instant::now();
        if self
            .border
            .next_deadline()
            .is_some_and(|deadline| deadline.at <= self.now)
        {
            self.border.handle(Input::Timeout, self.now);
        }
        self.spent += begin.elapsed();
        self.drain();
    }
}

pub fn reply(request: &[u8], status: &str, tag: &str, sdp: &str) -> Vec<u8> {
    let request = Message::parse(request).unwrap();
    let mut out = format!("SIP/2.0 {status}\r\n").into_bytes();
    for header in request.headers() {
        match header.id {
            HeaderId::Via | HeaderId::From | HeaderId::CallId | HeaderId::CSeq => {
                out.extend_from_slice(header.raw);
            }
            HeaderId::To => {
                let tagged = request.to().unwrap().tag().is_some();
                let line = header.raw.strip_suffix(b"\r\n").unwrap();
                out.extend_from_slice(line);
                if !tagged {
                    out.extend_from_slice(format!(";tag={tag}").as_bytes());
                }
                out.extend_from_slice(b"\r\n");
            }
            _ => {}
        }
    }
    out.extend_from_slice(b"Contact: <sip:198.51.100.1:5060>\r\n");
    if !sdp.is_empty() {
        out.extend_from_slice(b"Content-Type: application/sdp\r\n");
    }
    out.extend_from_slice(format!("Content-Length: {}\r\n\r\n{sdp}", sdp.len()).as_bytes());
    out
}

fn invite(call: usize) -> Vec<u8> {
    format!(
        "INVITE sip:service@192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 203.0.113.1:5060;branch=z9hG4bK-{call}-0\r\n\
         From: sipp <sip:sipp@203.0.113.1:5060>;tag={call}SIPpTag00\r\nTo: service <sip:service@192.0.2.1:5060>\r\n\
         Call-ID: {call}-7@203.0.113.1\r\nCSeq: 1 INVITE\r\nContact: sip:sipp@203.0.113.1:5060\r\nMax-Forwards: 70\r\n\
         Subject: Performance Test\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{SDP}",
        SDP.len()
    )
    .into_bytes()
}

pub fn inside(call: usize, method: &str, cseq: u32, ok: &[u8]) -> Vec<u8> {
    let ok = Message::parse(ok).unwrap();
    let tag = String::from_utf8_lossy(ok.to().unwrap().tag().unwrap()).into_owned();
    let contact = String::from_utf8_lossy(ok.contact().unwrap().uri).into_owned();
    format!(
        "{method} {contact} SIP/2.0\r\nVia: SIP/2.0/UDP 203.0.113.1:5060;branch=z9hG4bK-{call}-{method}\r\n\
         From: sipp <sip:sipp@203.0.113.1:5060>;tag={call}SIPpTag00\r\nTo: service <sip:service@192.0.2.1:5060>;tag={tag}\r\n\
         Call-ID: {call}-7@203.0.113.1\r\nCSeq: {cseq} {method}\r\nContact: sip:sipp@203.0.113.1:5060\r\nMax-Forwards: 70\r\n\
         Subject: Performance Test\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

pub fn find(messages: &[Vec<u8>], start: &str) -> Vec<u8> {
    messages
        .iter()
        .find(|bytes| bytes.starts_with(start.as_bytes()))
        .unwrap_or_else(|| {
            panic!(
                "no {start} in {:?}",
                messages
                    .iter()
                    .map(|m| String::from_utf8_lossy(m).into_owned())
                    .collect::<Vec<_>>()
            )
        })
        .clone()
}

pub const CALLER: &str = "203.0.113.1:5060";
pub const CALLEE: &str = "198.51.100.1:5060";

/// Sets a call up (INVITE, 100, 180, 200, ACK); the 200 that the caller got. The border acknowledges the callee's 200
/// at once.
pub fn set_up(bench: &mut Bench, call: usize) -> Vec<u8> {
    bench.give(CALLER, invite(call));
    let offered = find(&bench.out, "INVITE");
    bench.give(
        CALLEE,
        reply(&offered, "180 Ringing", &format!("b{call}"), ""),
    );
    bench.give(CALLEE, reply(&offered, "200 OK", &format!("b{call}"), SDP));
    let ok = find(&bench.out, "SIP/2.0 200");
    find(&bench.out, "ACK");
    bench.give(CALLER, inside(call, "ACK", 1, &ok));
    ok
}

pub fn tear_down(bench: &mut Bench, call: usize, ok: &[u8]) {
    bench.give(CALLER, inside(call, "BYE", 2, ok));
    let bye = find(&bench.out, "BYE");
    bench.give(CALLEE, reply(&bye, "200 OK", "", ""));
}
