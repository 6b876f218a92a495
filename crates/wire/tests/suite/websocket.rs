//! The WebSocket server: frames and handshakes written by hand, by RFC 6455.

use proptest::prelude::*;
use wire::ws::{
    CloseCode, FrameDecoder, FrameKind, Handshake, MAX_REQUEST, SIP_PROTOCOL, WsError, close,
    frame, handshake,
};

/// The request of RFC 7118 section 4.1, with the key of RFC 6455 section 1.3.
fn request(edit: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let lines = [
        "GET / HTTP/1.1",
        "Host: sip-ws.example.com",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Origin: http://www.example.com",
        "Sec-WebSocket-Protocol: chat, sip",
        "Sec-WebSocket-Version: 13",
    ];
    let mut text = String::new();
    for line in lines {
        if let Some(line) = edit(line) {
            text.push_str(&line);
            text.push_str("\r\n");
        }
    }
    text.push_str("\r\n");
    text.into_bytes()
}

fn same(line: &str) -> Option<String> {
    Some(line.to_owned())
}

/// A request with one line replaced or removed.
fn with(name: &'static str, instead: Option<&'static str>) -> Vec<u8> {
    request(|line| match line.starts_with(name) {
        true => instead.map(str::to_owned),
        false => same(line),
    })
}

#[test]
fn rfc_sample_handshake_succeeds() {
    let bytes = request(same);
    let mut reply = Vec::new();
    assert_eq!(
        handshake(&bytes, SIP_PROTOCOL, &[], &[], &mut reply),
        Handshake::Open(bytes.len())
    );
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 101 "), "{reply}");
    assert!(reply.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    assert!(reply.contains("\r\nSec-WebSocket-Protocol: sip\r\n"));
    assert!(reply.ends_with("\r\n\r\n"));
    // In pieces it is incomplete until the last byte; bytes after it are not consumed.
    for cut in 0..bytes.len() {
        let mut reply = Vec::new();
        assert_eq!(
            handshake(&bytes[..cut], SIP_PROTOCOL, &[], &[], &mut reply),
            Handshake::Partial,
            "{cut}"
        );
        assert!(reply.is_empty());
    }
    let longer = [&bytes[..], b"\x81"].concat();
    assert_eq!(
        handshake(&longer, SIP_PROTOCOL, &[], &[], &mut Vec::new()),
        Handshake::Open(bytes.len())
    );
}

#[test]
fn invalid_handshakes_are_refused_with_a_status() {
    let huge: &'static str = Box::leak(format!("X: {}", "y".repeat(MAX_REQUEST)).into_boxed_str());
    for (bytes, status, reason) in [
        (b"POST / HTTP/1.1\r\n\r\n".to_vec(), "405", "GET"),
        (b"OPTIONS sip:x SIP/2.0\r\n".to_vec(), "405", "GET"),
        (with("GET", Some("GET / HTTP/1.0")), "400", "HTTP/1.1"),
        (with("GET", Some("GET /")), "400", "HTTP/1.1"),
        (with("Host", None), "400", "Host"),
        (with("Host", Some("Host:")), "400", "Host"),
        (with("Host", Some("Host: a\r\nHost: b")), "400", "twice"),
        (with("Host", Some("Host")), "400", "colon"),
        (with("Upgrade", None), "426", "upgrade"),
        (with("Upgrade", Some("Upgrade: h2c")), "426", "upgrade"),
        (
            with("Connection", Some("Connection: close")),
            "426",
            "upgrade",
        ),
        (
            with("Sec-WebSocket-Version", Some("Sec-WebSocket-Version: 8")),
            "426",
            "13",
        ),
        (with("Sec-WebSocket-Key", None), "400", "Key"),
        (
            with("Sec-WebSocket-Key", Some("Sec-WebSocket-Key: c2hvcnQ=")),
            "400",
            "Key",
        ),
        (with("Sec-WebSocket-Protocol", None), "400", "subprotocol"),
        (
            with(
                "Sec-WebSocket-Protocol",
                Some("Sec-WebSocket-Protocol: sipx"),
            ),
            "400",
            "subprotocol",
        ),
        (with("Origin", Some(huge)), "431", "large"),
    ] {
        let mut reply = Vec::new();
        let Handshake::Refused(error) = handshake(&bytes, SIP_PROTOCOL, &[], &[], &mut reply)
        else {
            panic!("taken: {}", bytes.escape_ascii());
        };
        assert!(
            error.contains(reason),
            "{error} for {}",
            bytes.escape_ascii()
        );
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        assert!(reply.ends_with("\r\n\r\n"));
    }
    let many: Vec<u8> = [
        b"GET / HTTP/1.1\r\n".to_vec(),
        b"a:b\r\n".repeat(1_000),
        b"\r\n".to_vec(),
    ]
    .concat();
    assert!(matches!(
        handshake(&many, SIP_PROTOCOL, &[], &[], &mut Vec::new()),
        Handshake::Refused("too many headers")
    ));
}

#[test]
fn origins_and_hosts_are_checked_against_the_lists() {
    let origins = vec!["http://www.EXAMPLE.com".to_owned()];
    let hosts = vec!["SIP-WS.example.com".to_owned()];
    let open = |bytes: &[u8]| {
        matches!(
            handshake(bytes, SIP_PROTOCOL, &origins, &hosts, &mut Vec::new()),
            Handshake::Open(_)
        )
    };
    assert!(open(&request(same)));
    assert!(open(&with("Host", Some("Host: sip-ws.example.com:443"))));
    assert!(!open(&with("Host", Some("Host: other.example.com"))));
    assert!(!open(&with("Origin", Some("Origin: http://evil.example"))));
    // With a list of origins, a client without Origin is refused too.
    assert!(!open(&with("Origin", None)));
    assert!(matches!(
        handshake(
            &with("Origin", None),
            SIP_PROTOCOL,
            &[],
            &hosts,
            &mut Vec::new()
        ),
        Handshake::Open(_)
    ));
}

/// A frame of a client.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = vec![first];
    match payload.len() {
        short @ ..126 => bytes.push(0x80 | short as u8),
        medium @ ..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    bytes
}

struct Outcome {
    messages: Vec<Vec<u8>>,
    reply: Vec<u8>,
    result: Result<bool, WsError>,
}

fn decode(bytes: &[u8], limit: usize, piece: usize) -> Outcome {
    let mut decoder = FrameDecoder::new(limit);
    let (mut messages, mut reply, mut result) = (Vec::new(), Vec::new(), Ok(false));
    for part in bytes.chunks(piece.max(1)) {
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        result = decoder.receive(&mut part.to_vec(), &mut all, &mut ends, &mut reply);
        let mut from = 0;
        for end in ends {
            messages.push(all[from..end].to_vec());
            from = end;
        }
        if result != Ok(false) {
            break;
        }
    }
    Outcome {
        messages,
        reply,
        result,
    }
}

#[test]
fn rfc_masked_hello_is_decoded() {
    // RFC 6455 section 5.7.
    let bytes = [
        0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    let outcome = decode(&bytes, 100, 100);
    assert_eq!(outcome.messages, [b"Hello".to_vec()]);
    assert_eq!(outcome.result, Ok(false));
    let mut out = Vec::new();
    frame(FrameKind::Text, b"Hello", &mut out);
    assert_eq!(out, [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
    out.clear();
    frame(FrameKind::Binary, &[7; 256], &mut out);
    assert_eq!(out[..4], [0x82, 0x7e, 0x01, 0x00]);
    out.clear();
    frame(FrameKind::Binary, &[7; 65_536], &mut out);
    assert_eq!(out[..10], [0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn fragments_are_joined_and_interleaved_pings_answered() {
    let bytes = [
        masked(0x01, b"Hel"),
        masked(0x89, b"are you there"),
        masked(0x00, b"l"),
        masked(0x8a, b"unasked pong"),
        masked(0x80, b"o"),
        masked(0x82, &[0xff; 300]),
    ]
    .concat();
    for piece in [1, 2, 3, 7, 1_000] {
        let outcome = decode(&bytes, 1_000, piece);
        assert_eq!(outcome.messages, [b"Hello".to_vec(), vec![0xff; 300]]);
        assert_eq!(outcome.reply, [&[0x8a, 13][..], b"are you there"].concat());
        assert_eq!(outcome.result, Ok(false));
    }
}

#[test]
fn ping_is_answered_before_the_error_behind_it() {
    let bytes = [masked(0x89, b"alive"), masked(0x80, b"no message began")].concat();
    for piece in [bytes.len(), 1] {
        let outcome = decode(&bytes, 100, piece);
        assert_eq!(outcome.result, Err(WsError::Order));
        assert_eq!(
            outcome.reply,
            [b"\x8a\x05alive".as_slice(), b"\x88\x02\x03\xea"].concat()
        );
    }
}

#[test]
fn of_several_pings_in_one_read_the_last_is_answered() {
    let pings = masked(0x89, &[0; 125]).repeat(500);
    let bytes = [pings, masked(0x89, b"last"), masked(0x81, b"hello")].concat();
    let outcome = decode(&bytes, 1_000, bytes.len());
    assert_eq!(outcome.messages, [b"hello".to_vec()]);
    assert_eq!(outcome.reply, [&[0x8a, 4][..], b"last"].concat());
    // The answer precedes that of a close.
    let bytes = [masked(0x89, b"last"), masked(0x88, b"")].concat();
    let outcome = decode(&bytes, 1_000, bytes.len());
    let closed = [0x8a, 4, b'l', b'a', b's', b't', 0x88, 2, 0x03, 0xe8];
    assert_eq!((outcome.reply, outcome.result), (closed.to_vec(), Ok(true)));
}

#[test]
fn a_close_is_answered_with_its_code() {
    let outcome = decode(&masked(0x88, &[0x03, 0xe9, b'b', b'y', b'e']), 100, 100);
    assert_eq!(outcome.result, Ok(true));
    assert_eq!(outcome.reply, [0x88, 2, 0x03, 0xe9]);
    assert_eq!(
        decode(&masked(0x88, b""), 100, 100).reply,
        [0x88, 2, 0x03, 0xe8]
    );
    let mut out = Vec::new();
    close(CloseCode::GoingAway, &mut out);
    assert_eq!(out, [0x88, 2, 0x03, 0xe9]);
}

#[test]
fn protocol_errors_are_closed_with_their_code() {
    let mut unmasked = masked(0x81, b"x");
    unmasked[1] &= 0x7f;
    let long_form = [0x82, 0x80 | 126, 0, 5, 0, 0, 0, 0].to_vec();
    let longest_form = [&[0x82, 0x80 | 127][..], &5u64.to_be_bytes(), &[0; 4]].concat();
    let negative = [&[0x82, 0x80 | 127][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    for (bytes, error, code) in [
        (unmasked, WsError::Unmasked, 1002u16),
        (masked(0xc1, b"x"), WsError::Reserved, 1002),
        (masked(0x83, b"x"), WsError::Reserved, 1002),
        (masked(0x8b, b"x"), WsError::Reserved, 1002),
        (long_form, WsError::Length, 1002),
        (longest_form, WsError::Length, 1002),
        (negative, WsError::Length, 1002),
        (masked(0x09, b"x"), WsError::Control, 1002),
        (masked(0x89, &[0; 126]), WsError::Control, 1002),
        (masked(0x88, &[3]), WsError::Control, 1002),
        (masked(0x88, &[0x03, 0xed]), WsError::Control, 1002),
        (masked(0x80, b"x"), WsError::Order, 1002),
        (
            [masked(0x01, b"x"), masked(0x81, b"y")].concat(),
            WsError::Order,
            1002,
        ),
        (masked(0x81, &[0xff]), WsError::NotText, 1007),
        (
            [masked(0x01, b"\xc3"), masked(0x80, b"\x28")].concat(),
            WsError::NotText,
            1007,
        ),
        (masked(0x82, &[0; 101]), WsError::TooBig, 1009),
        (
            [masked(0x02, &[0; 60]), masked(0x80, &[0; 60])].concat(),
            WsError::TooBig,
            1009,
        ),
    ] {
        for piece in [1, 1_000] {
            let outcome = decode(&bytes, 100, piece);
            assert_eq!(outcome.result, Err(error), "{}", bytes.escape_ascii());
            assert!(outcome.messages.is_empty());
            let want = [&[0x88, 2][..], &code.to_be_bytes()].concat();
            assert_eq!(outcome.reply, want, "{error}");
        }
    }
}

#[test]
fn oversized_frames_are_refused_by_their_header() {
    // Four gigabytes are announced, and 14 bytes are received.
    let bytes = [
        &[0x82, 0x80 | 127][..],
        &(1u64 << 32).to_be_bytes(),
        &[0; 4],
    ]
    .concat();
    assert_eq!(decode(&bytes, 65_535, 100).result, Err(WsError::TooBig));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_harmless(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        wire::ws::fuzz(&data);
    }

    #[test]
    fn sent_messages_are_received_unchanged(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8),
        piece in 1usize..50,
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|m| masked(0x82, m)).collect();
        let outcome = decode(&bytes, 300, piece);
        prop_assert_eq!(outcome.messages, messages);
    }
}

#[test]
fn fuzz_seeds_are_harmless() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/ws");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        wire::ws::fuzz(&std::fs::read(entry.path()).unwrap());
        count += 1;
    }
    assert!(count >= 5, "{count} seeds");
}

#[test]
fn other_subprotocols_are_served_when_configured() {
    let ng = wire::ng::WEBSOCKET_PROTOCOL;
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Protocol: other\r\nSec-WebSocket-Protocol: x, ng.rtpengine.com\r\n\r\n";
    let mut reply = Vec::new();
    let opened = handshake(request, ng, &[], &[], &mut reply);
    assert_eq!(opened, Handshake::Open(request.len()));
    let text = String::from_utf8(reply).unwrap();
    assert!(
        text.ends_with("\r\nSec-WebSocket-Protocol: ng.rtpengine.com\r\n\r\n"),
        "{text}"
    );
    let refused = handshake(request, SIP_PROTOCOL, &[], &[], &mut Vec::new());
    assert!(matches!(refused, Handshake::Refused(_)));
}
