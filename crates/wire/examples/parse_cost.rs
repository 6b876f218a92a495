//! Prints the cost of SIP parsing on this machine, in nanoseconds a message. The argument is the number of rounds (few,
//! for counting instructions).

use std::hint::black_box;
use std::time::Instant;
use wire::sip::{Edit, HeaderId, Message, emit};

const INVITE: &[u8] = b"INVITE sip:1001@192.0.2.10:5060;transport=udp SIP/2.0\r\n\
Via: SIP/2.0/UDP 198.51.100.20:5060;rport;branch=z9hG4bK-524287-1---0b6a1e33f2c9d5aa\r\n\
Max-Forwards: 70\r\n\
From: \"Caller One\" <sip:1000@198.51.100.20>;tag=7f3b1c2d\r\n\
To: <sip:1001@192.0.2.10>\r\n\
Call-ID: 0f6a3c9e-8f1b-4b7e-9a53-5b8f1f9f3b11@198.51.100.20\r\n\
CSeq: 1 INVITE\r\n\
Contact: <sip:1000@198.51.100.20:5060;transport=udp>\r\n\
Allow: INVITE, ACK, BYE, CANCEL, OPTIONS, UPDATE, PRACK, INFO\r\n\
Supported: replaces, 100rel, timer\r\n\
User-Agent: parse-cost\r\n\
Content-Type: application/sdp\r\n\
Content-Length: 152\r\n\r\n\
v=0\r\no=- 1 1 IN IP4 198.51.100.20\r\ns=-\r\nc=IN IP4 198.51.100.20\r\nt=0 0\r\nm=audio 20000 RTP/AVP 8 101\r\n\
a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n";

const OK: &[u8] = b"SIP/2.0 200 OK\r\n\
Via: SIP/2.0/UDP 198.51.100.20:5060;rport=5060;received=198.51.100.20;branch=z9hG4bK-524287-1---0b6a1e33f2c9d5aa\r\n\
From: \"Caller One\" <sip:1000@198.51.100.20>;tag=7f3b1c2d\r\n\
To: <sip:1001@192.0.2.10>;tag=a6c85cf\r\n\
Call-ID: 0f6a3c9e-8f1b-4b7e-9a53-5b8f1f9f3b11@198.51.100.20\r\n\
CSeq: 1 INVITE\r\n\
Contact: <sip:1001@192.0.2.10:5060>\r\n\
Content-Length: 0\r\n\r\n";

fn time(label: &str, mut work: impl FnMut()) {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(200_000u32);
    // The minimum of several rounds: other work on the machine only adds time.
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_nanos() as f64 / f64::from(rounds)
        })
        .fold(f64::MAX, f64::min);
    println!("{label:40} {best:8.1} ns");
}

fn main() {
    println!("INVITE {} bytes, 200 {} bytes", INVITE.len(), OK.len());
    time("index of an INVITE", || {
        let _ = black_box(Message::parse(black_box(INVITE)));
    });
    time("index of a 200", || {
        let _ = black_box(Message::parse(black_box(OK)));
    });
    let invite = Message::parse(INVITE).expect("sound");
    let ok = Message::parse(OK).expect("sound");
    time("validation of an INVITE", || {
        black_box(black_box(&invite).validate()).expect("sound");
    });
    time("validation of a 200", || {
        black_box(black_box(&ok).validate()).expect("sound");
    });
    let mut out = Vec::with_capacity(4096);
    time("emission of an INVITE with four edits", || {
        out.clear();
        let edits = [
            Edit::RequestUri(b"sip:1001@203.0.113.7"),
            Edit::Replace {
                id: HeaderId::Via,
                value: b"SIP/2.0/UDP 203.0.113.1;branch=z9hG4bKabc",
            },
            Edit::Replace {
                id: HeaderId::Contact,
                value: b"<sip:203.0.113.1>",
            },
            Edit::Replace {
                id: HeaderId::CallId,
                value: b"c2f1@203.0.113.1",
            },
        ];
        emit(black_box(&invite), &edits, &mut out);
        black_box(&out);
    });
}
