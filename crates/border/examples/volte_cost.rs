//! CPU time of a call of twenty messages (preconditions, PRACK, UPDATE both ways) beside one of seven, in memory,
//! media passed by: the border's own time for each. `volte_cost [CALLS] [plain|volte]`; by default both, 20,000 calls.

mod seven;

use seven::{Bench, CALLEE, CALLER, find, set_up, tear_down};
use std::fmt::Write as _;
use std::time::Duration;
use wire::sip::{HeaderId, Message};

const CONFIG: &str = "[[interface]]\nname='a'\nkind='core'\nlisten='udp:192.0.2.1:5060'\nallow='203.0.113.0/24'\n\
    [[trunk]]\nname='b'\ninterface='a'\ntarget='udp:198.51.100.1:5060'\n\
    [[route]]\ntrunk='b'\nmedia='bypass'\n";

const ALLOW: &str = "Allow: INVITE, ACK, CANCEL, BYE, PRACK, UPDATE\r\n";
const ACCESS: &str =
    "P-Access-Network-Info: 3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=0010100010000001\r\n";

fn sdp(local: &str, remote: &str) -> String {
    format!(
        "v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 8\r\n\
         a=rtpmap:8 PCMA/8000\r\na=curr:qos local {local}\r\na=curr:qos remote {remote}\r\n\
         a=des:qos mandatory local sendrecv\r\na=des:qos mandatory remote sendrecv\r\n"
    )
}

/// Headers, of which `more` are the last, and a body.
fn finish(mut text: String, more: &str, body: &str) -> Vec<u8> {
    text.push_str(more);
    if !body.is_empty() {
        text.push_str("Content-Type: application/sdp\r\n");
    }
    let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

fn answer(request: &[u8], status: &str, tag: &str, more: &str, body: &str) -> Vec<u8> {
    let request = Message::parse(request).unwrap();
    let mut text = format!("SIP/2.0 {status}\r\n");
    for header in request.headers() {
        let line = String::from_utf8_lossy(header.raw);
        match header.id {
            HeaderId::Via | HeaderId::From | HeaderId::CallId | HeaderId::CSeq => {
                text.push_str(&line);
            }
            HeaderId::To if request.to().unwrap().tag().is_some() => text.push_str(&line),
            HeaderId::To => {
                let _ = write!(text, "{};tag={tag}\r\n", line.trim_end());
            }
            _ => {}
        }
    }
    finish(text, more, body)
}

/// One end of a dialog.
struct End {
    host: &'static str,
    number: usize,
    target: String,
    from: String,
    to: String,
    call_id: String,
    cseq: u32,
}

impl End {
    fn request(&mut self, method: &str, more: &str, body: &str) -> Vec<u8> {
        self.cseq += u32::from(method != "ACK");
        let cseq = if method == "ACK" { 1 } else { self.cseq };
        let text = format!(
            "{method} {} SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bK-{}-{}-{method}\r\nMax-Forwards: 70\r\n\
             From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {cseq} {method}\r\n",
            self.target, self.host, self.number, self.cseq, self.from, self.to, self.call_id
        );
        finish(text, more, body)
    }
}

fn header(message: &[u8], id: HeaderId) -> String {
    let message = Message::parse(message).unwrap();
    String::from_utf8_lossy(message.header(id).unwrap()).into_owned()
}

fn contact(message: &[u8]) -> String {
    let message = Message::parse(message).unwrap();
    String::from_utf8_lossy(message.contact().unwrap().uri).into_owned()
}

fn call(bench: &mut Bench, number: usize) {
    let own = format!("Contact: <sip:a@{CALLER}>\r\n");
    let theirs = format!("Contact: <sip:{CALLEE}>\r\n");
    let mut caller = End {
        host: CALLER,
        number,
        target: "sip:b@192.0.2.1:5060".into(),
        from: format!("<sip:a@{CALLER}>;tag={number}a"),
        to: "<sip:b@192.0.2.1:5060>".into(),
        call_id: format!("{number}-20@{CALLER}"),
        cseq: 0,
    };
    let more = format!(
        "{own}{ALLOW}{ACCESS}Supported: 100rel, precondition\r\nP-Early-Media: supported\r\n\
         P-Preferred-Identity: <sip:a@{CALLER}>\r\nP-Preferred-Service: urn:urn-7:3gpp-service.ims.icsi.mmtel\r\n"
    );
    bench.give(
        CALLER,
        caller.request("INVITE", &more, &sdp("none", "none")),
    );
    let invite = find(&bench.out, "INVITE");
    let tag = format!("b{number}");
    let mut callee = End {
        host: CALLEE,
        number,
        target: contact(&invite),
        from: format!("{};tag={tag}", header(&invite, HeaderId::To)),
        to: header(&invite, HeaderId::From),
        call_id: header(&invite, HeaderId::CallId),
        cseq: 0,
    };
    bench.give(CALLEE, answer(&invite, "100 Trying", &tag, "", ""));
    let reliable = |rseq: u32| format!("{theirs}{ALLOW}Require: 100rel\r\nRSeq: {rseq}\r\n");
    let more = format!("{}Require: precondition\r\n", reliable(1));
    let body = sdp("none", "none") + "a=conf:qos remote sendrecv\r\n";
    let progress = answer(&invite, "183 Session Progress", &tag, &more, &body);
    bench.give(CALLEE, progress);
    let progress = find(&bench.out, "SIP/2.0 183");
    caller.to = header(&progress, HeaderId::To);
    caller.target = contact(&progress);
    let acknowledge = |bench: &mut Bench, caller: &mut End, response: &[u8]| {
        let rack = format!("RAck: {} 1 INVITE\r\n", header(response, HeaderId::RSeq));
        bench.give(CALLER, caller.request("PRACK", &rack, ""));
        let prack = find(&bench.out, "PRACK");
        bench.give(CALLEE, answer(&prack, "200 OK", "", "", ""));
        find(&bench.out, "SIP/2.0 200");
    };
    acknowledge(bench, &mut caller, &progress);
    let require = "Require: precondition\r\n";
    let more = format!("{own}{require}{ACCESS}");
    bench.give(
        CALLER,
        caller.request("UPDATE", &more, &sdp("sendrecv", "none")),
    );
    let update = find(&bench.out, "UPDATE");
    let more = format!("{theirs}{require}");
    let ok = answer(&update, "200 OK", "", &more, &sdp("none", "sendrecv"));
    bench.give(CALLEE, ok);
    find(&bench.out, "SIP/2.0 200");
    bench.give(
        CALLEE,
        callee.request("UPDATE", &more, &sdp("sendrecv", "sendrecv")),
    );
    let update = find(&bench.out, "UPDATE");
    let more = format!("{own}{require}");
    let ok = answer(&update, "200 OK", "", &more, &sdp("sendrecv", "sendrecv"));
    bench.give(CALLER, ok);
    find(&bench.out, "SIP/2.0 200");
    bench.give(
        CALLEE,
        answer(&invite, "180 Ringing", &tag, &reliable(2), ""),
    );
    let ringing = find(&bench.out, "SIP/2.0 180");
    acknowledge(bench, &mut caller, &ringing);
    let more = format!("{theirs}P-Early-Media: sendrecv\r\n");
    bench.give(CALLEE, callee.request("UPDATE", &more, ""));
    let update = find(&bench.out, "UPDATE");
    bench.give(CALLER, answer(&update, "200 OK", "", &own, ""));
    find(&bench.out, "SIP/2.0 200");
    let more = format!("{theirs}{ALLOW}");
    bench.give(CALLEE, answer(&invite, "200 OK", &tag, &more, ""));
    find(&bench.out, "SIP/2.0 200");
    // The border acknowledges the callee's 200 at once.
    find(&bench.out, "ACK");
    bench.give(CALLER, caller.request("ACK", "", ""));
    bench.give(CALLER, caller.request("UPDATE", &own, ""));
    let update = find(&bench.out, "UPDATE");
    bench.give(CALLEE, answer(&update, "200 OK", "", &theirs, ""));
    find(&bench.out, "SIP/2.0 200");
    bench.give(CALLER, caller.request("BYE", "", ""));
    let bye = find(&bench.out, "BYE");
    // The border has answered the caller already.
    bench.give(CALLEE, answer(&bye, "200 OK", "", "", ""));
}

/// Nanoseconds of the border's for each call; the first half only warms.
fn measure(calls: usize, volte: bool) -> u128 {
    let mut bench = Bench::new(CONFIG);
    for number in 0..calls {
        bench.now += Duration::from_micros(500);
        bench.tick();
        match volte {
            true => call(&mut bench, number),
            false => {
                let ok = set_up(&mut bench, number);
                tear_down(&mut bench, number, &ok);
            }
        }
        if number == calls / 2 {
            bench.spent = Duration::ZERO;
        }
    }
    let spent = bench.spent.as_nanos() * 2 / calls as u128;
    for _ in 0..100_000 {
        bench.now += Duration::from_millis(1);
        bench.tick();
    }
    let census = bench.border.census();
    assert!(census.is_quiet(), "{census:?}");
    spent
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = words.first().and_then(|word| word.parse().ok());
    let calls = number.unwrap_or(20_000);
    match words.get(1).map(String::as_str) {
        Some(flow) => println!("ns_per_call {flow} {}", measure(calls, flow == "volte")),
        None => {
            let (plain, volte) = (measure(calls, false), measure(calls, true));
            let ratio = volte as f64 / plain as f64;
            println!("ns_per_call plain {plain} volte {volte} ratio {ratio:.2}");
        }
    }
}
