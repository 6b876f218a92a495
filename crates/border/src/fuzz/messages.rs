//! Messages of peers for the fuzzed border, built from its own messages so that they match its transactions, dialogs
//! and challenges; then modified by the input's bytes.

use super::media_security;
use engine::Entropy;
use protect::digest::{Challenge, ClientSession, Secret};
use wire::sip::{HeaderId, Message, Response};

const AUDIO: &str = "v=0\r\no=- 1 1 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0 101\r\na=rtpmap:101 telephone-event/8000\r\n";
const HOLD: &str = "v=0\r\no=- 1 2 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\na=sendonly\r\n";
const BOTH: &str = "v=0\r\no=- 1 3 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\na=group:BUNDLE a v\r\nm=audio 4000 RTP/AVP 0\r\na=rtcp-mux\r\na=mid:a\r\nm=video 4002 RTP/AVP 97\r\na=rtcp:4005\r\na=mid:v\r\nm=message 7 TCP/MSRP *\r\na=mid:m\r\n";
const SIX: &str = "v=0\r\no=- 1 4 IN IP6 2001:db8::9\r\ns=-\r\nc=IN IP6 2001:db8::9\r\nt=0 0\r\nm=audio 4000 RTP/AVP 8\r\na=rtcp-mux\r\n";
const REJECTED: &str = "v=0\r\no=- 1 5 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 0 RTP/AVP 0\r\nm=video 0 RTP/AVP 97\r\n";

/// A body by number, with its type.
fn body(number: u8, extra: &[u8]) -> (&'static str, Vec<u8>) {
    let text = match number % 15 {
        0 | 1 => AUDIO,
        2 => HOLD,
        3 => BOTH,
        4 => SIX,
        5 => REJECTED,
        6 => return ("application/sdp", extra.to_vec()),
        7 => {
            let parts = format!(
                "--b\r\nContent-Type: application/sdp\r\n\r\n{AUDIO}\r\n--b\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--\r\n"
            );
            return ("multipart/mixed;boundary=b", parts.into_bytes());
        }
        8 => {
            return (
                "message/sipfrag;version=2.0",
                b"SIP/2.0 200 OK\r\n".to_vec(),
            );
        }
        9 => return ("", Vec::new()),
        index => {
            media_security::DESCRIPTIONS[usize::from(index) % media_security::DESCRIPTIONS.len()]
        }
    };
    ("application/sdp", text.as_bytes().to_vec())
}

/// Appends body, type and length.
fn with_body(mut head: String, number: u8, extra: &[u8]) -> Vec<u8> {
    let (kind, body) = body(number, extra);
    if !kind.is_empty() {
        head.push_str(&format!("Content-Type: {kind}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let mut message = head.into_bytes();
    message.extend_from_slice(&body);
    message
}

fn text(message: &Message<'_>, id: HeaderId) -> String {
    String::from_utf8_lossy(message.header(id).unwrap_or_default()).into_owned()
}

fn tag_of(value: &str) -> &str {
    value
        .split(";tag=")
        .nth(1)
        .map_or("", |rest| rest.split(';').next().unwrap_or_default())
}

/// A Replaces value for the dialog of a message of the border.
fn replaces(last: Option<&Message<'_>>, swapped: bool) -> String {
    let Some(message) = last else {
        return String::new();
    };
    let (from, to) = (text(message, HeaderId::From), text(message, HeaderId::To));
    let (own, other) = if swapped { (&to, &from) } else { (&from, &to) };
    format!(
        "{};to-tag={};from-tag={}",
        text(message, HeaderId::CallId),
        tag_of(own),
        tag_of(other)
    )
}

/// URI of the last Contact of the border.
fn contact(last: Option<&Message<'_>>) -> String {
    last.and_then(|message| message.name_addrs(HeaderId::Contact).flatten().next())
        .map_or_else(
            || String::from("sip:bob@192.0.2.1"),
            |contact| String::from_utf8_lossy(contact.uri).into_owned(),
        )
}

/// An out-of-dialog request. `number` makes it unique; `last` is a message of the border.
pub(super) fn new_request(choice: u8, bytes: &[u8], number: u32, last: &[u8]) -> Vec<u8> {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let last = Message::parse(last).ok();
    let method = [
        "INVITE",
        "INVITE",
        "INVITE",
        "REGISTER",
        "INVITE",
        "OPTIONS",
        "MESSAGE",
        "SUBSCRIBE",
        "REGISTER",
        "PUBLISH",
        "REFER",
        "NOTIFY",
        "INFO",
        "BYE",
        "CANCEL",
        "INVITE",
    ][usize::from(choice & 15)];
    let uri = match byte(0) & 15 {
        0..=3 => String::from("sip:bob@192.0.2.1"),
        4 => String::from("sip:9123@192.0.2.1"),
        5 => String::from("sip:8123@192.0.2.1;user=phone"),
        6 => String::from("sip:1000@192.0.2.1"),
        7 => String::from("sip:1001@198.51.100.1"),
        8 => String::from("tel:+43-1-2345"),
        9 => String::from("sip:7@192.0.2.1"),
        10 => String::from("sip:us@carrier.example"),
        11 => String::from("sip:6123@192.0.2.5"),
        _ => contact(last.as_ref()),
    };
    let user = ["1000", "1001", "p", "1000"][usize::from(byte(0) >> 4 & 3)];
    let mut head = format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bKf{number};rport\r\n\
         Max-Forwards: {}\r\nFrom: \"x\" <sip:{user}@192.0.2.1>;tag=f{number}\r\nTo: <sip:{}@192.0.2.1>\r\n\
         Call-ID: c{number}@10.1.0.1\r\nCSeq: 1 {method}\r\n",
        if byte(0) & 0x40 == 0 { 70 } else { byte(4) },
        if method == "REGISTER" { user } else { "bob" },
    );
    match byte(1) & 15 {
        0 => head.push_str("Supported: 100rel, timer, replaces\r\n"),
        1 => head.push_str(
            "Require: 100rel\r\nSupported: timer\r\nSession-Expires: 90;refresher=uac\r\n",
        ),
        2 => head.push_str("Supported: timer\r\nSession-Expires: 10\r\n"),
        3 => head.push_str("Require: replaces\r\nAllow: UPDATE, INVITE\r\n"),
        4 => head.push_str(&format!("Replaces: {}\r\n", replaces(last.as_ref(), true))),
        5 => head.push_str(&format!(
            "Replaces: {};early-only\r\n",
            replaces(last.as_ref(), false)
        )),
        6 => head.push_str("Require: telepathy\r\n"),
        7 => head.push_str(
            "Record-Route: <sip:10.1.0.7;lr>, <sip:10.1.0.8>\r\nRoute: <sip:192.0.2.1;lr>\r\n",
        ),
        8 => head.push_str(
            "Privacy: id\r\nP-Asserted-Identity: <sip:+431@10.1.0.1>\r\nDiversion: <sip:7@x>\r\n",
        ),
        _ => {}
    }
    match byte(1) >> 4 & 7 {
        0 => head.push_str("Contact: <sip:x@10.1.0.1:5060>\r\n"),
        1 => head.push_str("Contact: <sip:x@192.168.1.1:5099;ob>;+sip.instance=\"<urn:uuid:1>\";reg-id=1\r\nSupported: outbound, path, gruu\r\n"),
        2 => head.push_str("Contact: <sip:y@10.1.0.2>;q=0.5, <sip:x@10.1.0.1>;expires=20\r\nPath: <sip:10.1.0.9;lr>\r\n"),
        3 => head.push_str("Contact: *\r\nExpires: 0\r\n"),
        4 => head.push_str("Contact: <sip:x@10.1.0.1;transport=tcp>\r\nExpires: 60\r\n"),
        5 => head.push_str("Contact: <sip:x@[2001:db8::9]:5060>\r\nExpires: 0\r\n"),
        6 => head.push_str("Contact: <sip:x@phone.example>\r\n"),
        _ => {}
    }
    match method {
        "SUBSCRIBE" | "NOTIFY" | "PUBLISH" => {
            head.push_str("Event: presence\r\nSubscription-State: active\r\nSIP-If-Match: a\r\n");
        }
        "REFER" => head.push_str("Refer-To: <sip:bob@192.0.2.1>\r\n"),
        _ => {}
    }
    with_body(head, byte(2), bytes.get(8..).unwrap_or_default())
}

/// A response to a request of the border.
pub(super) fn response(request: &[u8], choice: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    const STATUS: [u16; 24] = [
        100, 180, 183, 200, 200, 200, 302, 401, 407, 422, 481, 486, 491, 503, 500, 408, 423, 202,
        181, 305, 600, 199, 487, 433,
    ];
    let request = Message::parse(request).ok().filter(Message::is_request)?;
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let status = STATUS[usize::from(choice) % STATUS.len()];
    let tag = format!("t{}", byte(0) & 3);
    let (kind, body) = match byte(0) >> 2 & 3 {
        0 => body(byte(2), bytes.get(8..).unwrap_or_default()),
        _ => ("", Vec::new()),
    };
    let mut out = Vec::new();
    let mut response = Response::new(&request, status, b"X");
    response.to_tag = (choice != 0).then_some(tag.as_bytes());
    response.body = (!kind.is_empty()).then_some((kind.as_bytes(), body.as_slice()));
    response.write(
        |writer| {
            let mut put = |name: &[u8], value: &[u8]| {
                writer.header_named(name, value);
            };
            match byte(1) & 7 {
                0 | 1 => put(b"Contact", b"<sip:y@10.2.0.1:5060>"),
                2 => put(
                    b"Contact",
                    b"<sip:z@10.2.0.2;transport=tcp>, <sip:w@elsewhere.example>",
                ),
                3 => put(b"Contact", b"<sip:v6@[2001:db8::9]>;expires=60"),
                4 => {
                    for contact in request.all(HeaderId::Contact) {
                        put(b"Contact", contact);
                    }
                    put(b"Expires", b"40");
                }
                _ => {}
            }
            match byte(1) >> 3 & 7 {
                1 => {
                    put(b"Require", b"100rel");
                    put(b"RSeq", if byte(3) & 1 == 0 { b"1" } else { b"2" });
                }
                2 => put(b"Session-Expires", b"90;refresher=uac"),
                3 => {
                    put(b"Require", b"timer");
                    put(b"Session-Expires", b"90;refresher=uas");
                    put(b"Allow", b"INVITE, UPDATE");
                }
                4 => put(b"Record-Route", b"<sip:10.2.0.9;lr>, <sip:10.2.0.8:5070>"),
                5 => put(b"Retry-After", b"5"),
                _ => {}
            }
            match status {
                401 => put(
                    b"WWW-Authenticate",
                    b"Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=SHA-256",
                ),
                407 => put(
                    b"Proxy-Authenticate",
                    b"Digest realm=\"r\", nonce=\"m\", qop=\"auth-int\", stale=true",
                ),
                422 => put(b"Min-SE", b"300"),
                423 => put(b"Min-Expires", b"100"),
                _ => {}
            }
        },
        &mut out,
    );
    Some(out)
}

/// A request in the dialog of a message of the border. `refer_to` is another of its messages.
pub(super) fn in_dialog_request(
    sent: &[u8],
    choice: u8,
    bytes: &[u8],
    number: u32,
    refer_to: &[u8],
) -> Option<Vec<u8>> {
    const METHODS: [&str; 16] = [
        "ACK",
        "BYE",
        "INVITE",
        "UPDATE",
        "PRACK",
        "CANCEL",
        "INFO",
        "REFER",
        "NOTIFY",
        "MESSAGE",
        "ACK",
        "CANCEL",
        "SUBSCRIBE",
        "OPTIONS",
        "INVITE",
        "BYE",
    ];
    let message = Message::parse(sent).ok()?;
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let method = METHODS[usize::from(choice & 15)];
    let (from, to) = match message.is_request() {
        true => (HeaderId::To, HeaderId::From),
        false => (HeaderId::From, HeaderId::To),
    };
    let theirs = message.cseq().map_or(1, |cseq| cseq.number);
    let of_response = !message.is_request() && matches!(method, "ACK" | "CANCEL");
    let (via, number) = match of_response {
        true if byte(0) & 1 == 0 => (text(&message, HeaderId::Via), theirs),
        true => (branch(number), theirs),
        false if byte(0) & 2 == 0 => (branch(number), number + 100),
        false => (branch(number), theirs.saturating_add(1)),
    };
    let mut tags = [text(&message, from), text(&message, to)];
    if let [from, _] = &mut tags
        && message.is_request()
        && !from.contains("tag=")
    {
        from.push_str(&format!(";tag=t{}", byte(0) >> 2 & 3));
    }
    let [from, to] = tags;
    let to = match (method, to.split_once(";tag=")) {
        ("CANCEL", Some((bare, _))) => bare.to_owned(),
        _ => to,
    };
    let mut head = format!(
        "{method} {} SIP/2.0\r\nVia: {via}\r\nMax-Forwards: 70\r\nFrom: {from}\r\nTo: {to}\r\n\
         Call-ID: {}\r\nCSeq: {number} {method}\r\n",
        contact(Some(&message)),
        text(&message, HeaderId::CallId),
    );
    match method {
        "PRACK" => {
            let rseq = message.rseq().unwrap_or(1);
            head.push_str(&format!("RAck: {rseq} {theirs} INVITE\r\n"));
        }
        "REFER" => {
            let target = Message::parse(refer_to).ok();
            match byte(1) & 3 {
                0 => head
                    .push_str("Refer-To: <sip:bob@192.0.2.1>\r\nReferred-By: <sip:x@10.1.0.1>\r\n"),
                1 => head.push_str("Refer-To: <sip:9123@192.0.2.1>\r\nRefer-Sub: false\r\n"),
                _ => {
                    let replaces = replaces(target.as_ref(), byte(1) & 1 == 0)
                        .replace(';', "%3B")
                        .replace('=', "%3D");
                    head.push_str(&format!(
                        "Refer-To: <{}?Replaces={replaces}>\r\n",
                        contact(target.as_ref())
                    ));
                }
            }
        }
        "NOTIFY" => {
            head.push_str("Event: refer\r\nSubscription-State: terminated;reason=noresource\r\n")
        }
        "SUBSCRIBE" => head.push_str("Event: refer\r\nExpires: 0\r\n"),
        "INVITE" | "UPDATE" if byte(1) & 4 != 0 => {
            head.push_str("Supported: timer, 100rel\r\nSession-Expires: 90;refresher=uas\r\n");
        }
        _ => {}
    }
    if byte(1) & 8 == 0 {
        head.push_str("Contact: <sip:x@10.1.0.1:5062>\r\n");
    }
    let described = matches!(
        method,
        "INVITE" | "UPDATE" | "PRACK" | "ACK" | "NOTIFY" | "MESSAGE"
    );
    let number = if described { byte(2) } else { 9 };
    Some(with_body(head, number, bytes.get(8..).unwrap_or_default()))
}

fn branch(number: u32) -> String {
    format!("SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bKi{number};rport")
}

/// The request with credentials for the challenge.
pub(super) fn with_credentials(request: &[u8], challenge: &[u8], choice: u8) -> Option<Vec<u8>> {
    let message = Message::parse(request).ok().filter(Message::is_request)?;
    let response = Message::parse(challenge).ok()?;
    let user = ["1000", "1001"][usize::from(choice & 1)];
    let password: &[u8] = match choice & 6 {
        0 => b"wrong",
        _ if user == "1000" => b"hush-1000",
        _ => b"hush-1001",
    };
    let secret = Secret::Password(password.to_vec());
    let mut added = Vec::new();
    for (id, name) in [
        (HeaderId::WwwAuthenticate, "Authorization: "),
        (HeaderId::ProxyAuthenticate, "Proxy-Authorization: "),
    ] {
        let mut entropy = Entropy::from_number(u64::from(choice));
        for challenge in Challenge::choose(&response, id, &secret) {
            let session = ClientSession::new(challenge, user.as_bytes(), &secret, &mut entropy);
            let Some(mut session) = session else { continue };
            added.extend_from_slice(name.as_bytes());
            let (method, uri) = (message.method(), message.request_uri());
            session.write_credentials(method.as_bytes(), uri, message.body(), &mut added);
            added.extend_from_slice(b"\r\n");
        }
    }
    // Another branch and CSeq make it a new request.
    let line_end = request.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let (line, rest) = request.split_at(line_end);
    let rest = replace_first(rest, b"z9hG4bKf", b"z9hG4bKg");
    let rest = replace_first(&rest, b"CSeq: 1 ", b"CSeq: 2 ");
    Some([line, &added, &rest].concat())
}

/// `text` with the first `what` replaced by `with`.
fn replace_first(text: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    match text.windows(what.len()).position(|window| window == what) {
        Some(at) => {
            let (before, rest) = text.split_at(at);
            let (_, after) = rest.split_at(what.len());
            [before, with, after].concat()
        }
        None => text.to_vec(),
    }
}

/// Modifies bytes by groups of four: position (two bytes), operation, byte.
pub(super) fn mutate(message: &mut Vec<u8>, changes: &[u8]) {
    for change in changes.as_chunks::<4>().0 {
        let [high, low, what, byte] = *change;
        if message.is_empty() {
            return;
        }
        let at = usize::from(u16::from_be_bytes([high, low])) % message.len();
        match what % 5 {
            0 => message[at] = byte,
            1 => message.insert(at, byte),
            2 => {
                message.remove(at);
            }
            3 => {
                let end = (at + usize::from(byte)).min(message.len());
                let again: Vec<u8> = message[at..end].to_vec();
                message.splice(at..at, again);
            }
            _ => message.truncate(at),
        }
    }
}

/// A response to a DNS query of the border, by `choice`.
pub(super) fn dns_answer(query: &[u8], choice: u8, extra: &[u8]) -> Option<Vec<u8>> {
    let mut at = 12;
    while *query.get(at)? != 0 {
        at += 1 + usize::from(*query.get(at)?);
    }
    let kind = u16::from_be_bytes([*query.get(at + 1)?, *query.get(at + 2)?]);
    let mut answer = query.get(..at + 5)?.to_vec();
    let code = if choice & 0x70 == 0x70 {
        choice & 15
    } else {
        0
    };
    let mut records = Vec::new();
    let mut count = 0u16;
    for number in 0..=(choice & 1) {
        let data: Vec<u8> = match (kind, choice >> 1 & 3) {
            (_, 3) => extra.to_vec(),
            (1, _) => vec![10, 3, 0, 1 + number],
            (28, _) => [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[9 + number]].concat(),
            (33, _) => [
                &[0, number, 0, 5, 0x13, 0xc4][..],
                b"\x01a\x07carrier\x07example\x00",
            ]
            .concat(),
            (35, _) => {
                let service: &[u8] = if number == 0 {
                    b"\x01s\x07SIP+D2U\x00"
                } else {
                    b"\x01s\x07SIP+D2T\x00"
                };
                [
                    &[0, 1, 0, number][..],
                    service,
                    b"\x04_sip\x04_udp\x07carrier\x07example\x00",
                ]
                .concat()
            }
            _ => extra.to_vec(),
        };
        records.extend_from_slice(&[0xc0, 12]);
        records.extend_from_slice(&kind.to_be_bytes());
        records.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
        records.extend_from_slice(&(data.len() as u16).to_be_bytes());
        records.extend_from_slice(&data);
        count += 1;
    }
    if choice & 8 != 0 {
        (records, count) = (Vec::new(), 0);
    }
    let head = answer.get_mut(2..12)?;
    head.copy_from_slice(&[
        0x81,
        0x80 | code,
        0,
        1,
        (count >> 8) as u8,
        count as u8,
        0,
        0,
        0,
        0,
    ]);
    answer.extend_from_slice(&records);
    Some(answer)
}

/// Whether bytes are a challenge.
pub(super) fn is_challenge(bytes: &[u8]) -> bool {
    bytes.starts_with(b"SIP/2.0 401") || bytes.starts_with(b"SIP/2.0 407")
}

/// The Call-ID of a message.
pub(super) fn call_id(bytes: &[u8]) -> Option<Vec<u8>> {
    Message::parse(bytes)
        .ok()?
        .call_id()
        .ok()
        .map(<[u8]>::to_vec)
}
