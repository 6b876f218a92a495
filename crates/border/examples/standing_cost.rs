//! What a standing call costs: many calls through the border in memory, media passed by, its caller and callee played
//! by ready-made messages. Prints bytes per standing call (of the heap, counted, and of the process) and the
//! border's own time per 7-message call. `standing_cost [CALLS]`, by default 100,000.

use border::border::Border;
use engine::{Datagram, Engine, Entropy, Input, Output, SocketId, Time};
use std::time::{Duration, Instant};
use wire::sip::{HeaderId, Message};

const CONFIG: &str = "[[interface]]\nname='a'\nkind='core'\nlisten='udp:192.0.2.1:5060'\n\
    [[trunk]]\nname='b'\ninterface='a'\ntarget='udp:198.51.100.1:5060'\n\
    [[route]]\ntrunk='b'\nmedia='bypass'\n";
const SDP: &str = "v=0\r\no=user1 53655765 2353687637 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

struct Bench {
    border: Border,
    now: Time,
    spent: Duration,
    socket: SocketId,
    out: Vec<Vec<u8>>,
}

impl Bench {
    fn drain(&mut self) {
        loop {
            match self.border.next_output() {
                None => break,
                Some(Output::Datagram { bytes, .. }) => self.out.push(bytes.to_vec()),
                Some(Output::Open { socket, .. }) => self.socket = socket,
                Some(_) => {}
            }
        }
    }

    /// Gives a datagram to the border; what it sends is in `out`. Only the border's own time is counted.
    fn give(&mut self, from: &str, mut bytes: Vec<u8>) {
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
        self.spent += begin.elapsed();
        self.drain();
    }

    fn tick(&mut self) {
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

fn reply(request: &[u8], status: &str, tag: &str, sdp: &str) -> Vec<u8> {
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

fn inside(call: usize, method: &str, cseq: u32, ok: &[u8]) -> Vec<u8> {
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

fn find(messages: &[Vec<u8>], start: &str) -> Vec<u8> {
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

const CALLER: &str = "203.0.113.1:5060";
const CALLEE: &str = "198.51.100.1:5060";

/// Sets a call up (INVITE, 100, 180, 200, ACK); the 200 that the caller got.
fn set_up(bench: &mut Bench, call: usize) -> Vec<u8> {
    bench.give(CALLER, invite(call));
    let offered = find(&bench.out, "INVITE");
    bench.give(
        CALLEE,
        reply(&offered, "180 Ringing", &format!("b{call}"), ""),
    );
    bench.give(CALLEE, reply(&offered, "200 OK", &format!("b{call}"), SDP));
    let ok = find(&bench.out, "SIP/2.0 200");
    bench.give(CALLER, inside(call, "ACK", 1, &ok));
    find(&bench.out, "ACK");
    ok
}

fn tear_down(bench: &mut Bench, call: usize, ok: &[u8]) {
    bench.give(CALLER, inside(call, "BYE", 2, ok));
    let bye = find(&bench.out, "BYE");
    bench.give(CALLEE, reply(&bye, "200 OK", "", ""));
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * 4096
}

fn main() {
    let calls: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(100_000);
    let config = border::config::parse(CONFIG, "bench").unwrap_or_else(|mistakes| {
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
    };
    bench.tick();
    bench.drain();
    // The standing calls first: in a fresh process, so that nothing is hidden in memory that was used before.
    let before = resident();
    let mut standing = Vec::with_capacity(calls);
    for call in 0..calls {
        bench.now += Duration::from_micros(500);
        bench.tick();
        let ok = set_up(&mut bench, call);
        standing.push(inside(call, "BYE", 2, &ok));
    }
    let kept: usize = standing.iter().map(|bye| bye.capacity() + 24).sum();
    for _ in 0..40_000 {
        bench.now += Duration::from_millis(1);
        bench.tick();
    }
    let grown = resident().saturating_sub(before);
    let census = bench.border.census();
    assert_eq!(census.calls, calls, "{census:?}");
    for bye in standing {
        bench.give(CALLER, bye);
        let bye = find(&bench.out, "BYE");
        bench.give(CALLEE, reply(&bye, "200 OK", "", ""));
    }
    for _ in 0..100_000 {
        bench.now += Duration::from_millis(1);
        bench.tick();
    }
    let left = bench.border.census();
    assert!(left.is_quiet(), "{left:?}");
    // Whole calls at 2,000 a second, ended transactions lingering as in service; the first half only warms.
    let timed = 50_000;
    for call in calls..calls + timed {
        bench.now += Duration::from_micros(500);
        bench.tick();
        let ok = set_up(&mut bench, call);
        tear_down(&mut bench, call, &ok);
        if call == calls + timed / 2 {
            bench.spent = Duration::ZERO;
        }
    }
    let per_call = bench.spent.as_nanos() / (timed as u128 / 2);
    println!("calls {calls}");
    println!("ns_per_call {per_call}");
    println!(
        "bytes_per_call {}",
        grown.saturating_sub(kept as u64) / calls as u64
    );
    println!("kept_bytes_per_call {}", census.sip.kept_bytes / calls);
    println!("{census:?}");
}
