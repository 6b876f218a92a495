//! The WebSocket client: frames and handshakes written by hand, by RFC 6455, and malicious servers.

use proptest::prelude::*;
use wire::ws::{
    ClientHandshake, CloseCode, FrameDecoder, FrameKind, Handshake, HandshakeResponse,
    MAX_RESPONSE, Mask, SIP_PROTOCOL, WsError, client_close, client_frame, handshake,
};

/// The nonce of RFC 6455 section 1.3.
fn client_handshake() -> ClientHandshake {
    ClientHandshake::new(*b"the sample nonce", SIP_PROTOCOL)
}

const ANSWER: [&str; 5] = [
    "HTTP/1.1 101 Switching Protocols",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    "Sec-WebSocket-Protocol: sip",
];

/// The response of RFC 7118 section 4.1 with one line replaced, or removed if `instead` is empty.
fn with(name: &str, instead: &str) -> Vec<u8> {
    let mut text = String::new();
    for line in ANSWER {
        let line = if line.starts_with(name) {
            instead
        } else {
            line
        };
        if !line.is_empty() {
            text.push_str(line);
            text.push_str("\r\n");
        }
    }
    text.push_str("\r\n");
    text.into_bytes()
}

fn good() -> Vec<u8> {
    with("none", "")
}

#[test]
fn client_request_matches_the_rfc_and_is_accepted() {
    let mut request = Vec::new();
    client_handshake().write("/chat", "server.example.com", &mut request);
    let text = String::from_utf8(request.clone()).unwrap();
    assert!(text.starts_with("GET /chat HTTP/1.1\r\nHost: server.example.com\r\n"));
    for line in [
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: sip",
    ] {
        assert!(text.contains(&format!("\r\n{line}\r\n")), "{text}");
    }
    assert!(text.ends_with("\r\n\r\n"));
    let mut reply = Vec::new();
    let opened = handshake(&request, SIP_PROTOCOL, &[], &[], &mut reply);
    assert_eq!(opened, Handshake::Open(request.len()));
    assert_eq!(
        client_handshake().parse_response(&reply),
        HandshakeResponse::Open(reply.len())
    );
}

#[test]
fn rfc_response_opens_and_later_bytes_are_left() {
    let bytes = good();
    for cut in 0..bytes.len() {
        assert_eq!(
            client_handshake().parse_response(&bytes[..cut]),
            HandshakeResponse::Partial,
            "{cut}"
        );
    }
    assert_eq!(
        client_handshake().parse_response(&bytes),
        HandshakeResponse::Open(bytes.len())
    );
    let longer = [&bytes[..], b"\x81\x00"].concat();
    assert_eq!(
        client_handshake().parse_response(&longer),
        HandshakeResponse::Open(bytes.len())
    );
    for valid in [
        with("Upgrade", "upgrade:WebSocket"),
        with("Connection", "CONNECTION: keep-alive , upgrade"),
        with("HTTP", "HTTP/1.1 101"),
        with("Connection", "Connection: Upgrade\r\nServer: a: b\r\nX:"),
        with(
            "Connection",
            "Connection: Upgrade\r\nSec-WebSocket-Extensions:",
        ),
    ] {
        let answer = client_handshake().parse_response(&valid);
        assert_eq!(
            answer,
            HandshakeResponse::Open(valid.len()),
            "{}",
            valid.escape_ascii()
        );
    }
}

#[test]
fn failed_handshake_responses_are_refused_with_reason() {
    let many = format!("Connection: Upgrade{}", "\r\na:b".repeat(1_000));
    let large = format!("Server: {}", "x".repeat(MAX_RESPONSE));
    let loud = format!("HTTP/1.1 503 {}\u{1}", "y".repeat(500));
    for (bytes, reason) in [
        (b"SIP/2.0 400 Bad Request\r\n".to_vec(), "HTTP/1.1"),
        (b"HTTP/2".to_vec(), "HTTP/1.1"),
        (with("HTTP", "HTTP/1.0 101 Switching Protocols"), "HTTP/1.1"),
        (b"\x16\x03\x01".to_vec(), "HTTP/1.1"),
        (with("HTTP", "HTTP/1.1 200 OK"), "responded 200 OK"),
        (
            with("HTTP", "HTTP/1.1 404 Not Found"),
            "responded 404 Not Found",
        ),
        (with("HTTP", "HTTP/1.1 1010 Ha"), "responded 1010"),
        (with("HTTP", "HTTP/1.1 "), "the peer responded"),
        (with("HTTP", &loud), "responded 503 yyy"),
        (with("Upgrade", ""), "no upgrade"),
        (with("Upgrade", "Upgrade: h2c"), "no upgrade"),
        (with("Connection", ""), "no upgrade"),
        (with("Connection", "Connection: close"), "no upgrade"),
        (with("Sec-WebSocket-Accept", ""), "does not match the key"),
        (
            with(
                "Sec-WebSocket-Accept",
                "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOO=",
            ),
            "does not match the key",
        ),
        (
            with(
                "Sec-WebSocket-Accept",
                "Sec-WebSocket-Accept: dGhlIHNhbXBsZSBub25jZQ==",
            ),
            "does not match the key",
        ),
        (with("Sec-WebSocket-Protocol", ""), "no subprotocol"),
        (
            with("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: chat"),
            "the subprotocol chat",
        ),
        (
            with(
                "Sec-WebSocket-Protocol",
                "Sec-WebSocket-Protocol: sip, chat",
            ),
            "the subprotocol sip, chat",
        ),
        (
            with(
                "Sec-WebSocket-Protocol",
                "Sec-WebSocket-Protocol: sip\r\nSec-WebSocket-Protocol: sip",
            ),
            "twice",
        ),
        (
            with(
                "Connection",
                "Connection: Upgrade\r\nSec-WebSocket-Extensions: permessage-deflate",
            ),
            "extension that was not offered: permessage-deflate",
        ),
        (with("Connection", "Connection Upgrade"), "colon"),
        (with("Connection", &many), "too many headers"),
        (with("Connection", &large), "too large"),
    ] {
        // The result does not depend on the segmentation, and is never success.
        for piece in [1, 7, bytes.len()] {
            let mut result = HandshakeResponse::Partial;
            let mut received = 0;
            while result == HandshakeResponse::Partial && received < bytes.len() {
                received = (received + piece).min(bytes.len());
                result = client_handshake().parse_response(&bytes[..received]);
            }
            let HandshakeResponse::Refused(error) = result else {
                panic!("{result:?} for {}", bytes.escape_ascii());
            };
            assert!(
                error.contains(reason),
                "{error} for {}",
                bytes.escape_ascii()
            );
            assert!(error.len() < 150 && !error.contains('\u{1}'), "{error}");
        }
    }
}

#[test]
fn endless_handshake_responses_are_refused() {
    let mut bytes = b"HTTP/1.1 101 Switching Protocols\r\n".to_vec();
    bytes.resize(MAX_RESPONSE, b'x');
    assert_eq!(
        client_handshake().parse_response(&bytes),
        HandshakeResponse::Partial
    );
    bytes.resize(MAX_RESPONSE + 4, b'x');
    assert_eq!(
        client_handshake().parse_response(&bytes),
        HandshakeResponse::Refused("the response is too large".to_owned())
    );
}

/// A frame of a server.
fn plain(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ ..126 => bytes.push(short as u8),
        medium @ ..65_536 => {
            bytes.push(126);
            bytes.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            bytes.push(127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

struct Outcome {
    messages: Vec<Vec<u8>>,
    reply: Vec<u8>,
    result: Result<bool, WsError>,
}

/// The masks are 1, 2, 3 and so on.
fn decode(bytes: &[u8], limit: usize, piece: usize) -> Outcome {
    let mut decoder = FrameDecoder::new(limit);
    let mut count: u32 = 0;
    let mut masks = || {
        count += 1;
        count.to_be_bytes()
    };
    let (mut messages, mut reply, mut result) = (Vec::new(), Vec::new(), Ok(false));
    for part in bytes.chunks(piece.max(1)) {
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        result = decoder.receive_from_server(
            &mut part.to_vec(),
            &mut all,
            &mut ends,
            &mut reply,
            &mut masks,
        );
        assert!(decoder.buffered() <= limit + 14 + piece);
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

/// A control frame of a client with a mask of [`decode`].
fn masked(first: u8, mask: u32, payload: &[u8]) -> Vec<u8> {
    let mask: Mask = mask.to_be_bytes();
    let mut bytes = vec![first, 0x80 | payload.len() as u8];
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    bytes
}

#[test]
fn rfc_hellos_are_decoded_and_encoded() {
    // RFC 6455 section 5.7: in one frame, in two, and the masked one of a client.
    for bytes in [&b"\x81\x05Hello"[..], &b"\x01\x03Hel\x80\x02lo"[..]] {
        for piece in [1, 100] {
            let outcome = decode(bytes, 100, piece);
            assert_eq!(outcome.messages, [b"Hello".to_vec()]);
            assert_eq!(outcome.result, Ok(false));
        }
    }
    let mut out = Vec::new();
    client_frame(
        FrameKind::Text,
        [0x37, 0xfa, 0x21, 0x3d],
        b"Hello",
        &mut out,
    );
    assert_eq!(
        out,
        [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58
        ]
    );
    out.clear();
    client_frame(FrameKind::Binary, [0; 4], &[7; 256], &mut out);
    assert_eq!(out[..9], [0x82, 0xfe, 1, 0, 0, 0, 0, 0, 7]);
    out.clear();
    client_frame(FrameKind::Binary, [1, 2, 3, 4], &[7; 65_536], &mut out);
    assert_eq!(
        out[..15],
        [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 6]
    );
    out.clear();
    client_close(CloseCode::GoingAway, [1, 1, 1, 1], &mut out);
    assert_eq!(out, [0x88, 0x82, 1, 1, 1, 1, 2, 0xe8]);
}

#[test]
fn each_pong_has_its_own_mask() {
    let bytes = [
        plain(0x01, b"Hel"),
        plain(0x89, b"are you there"),
        plain(0x00, b"l"),
        plain(0x8a, b"unasked pong"),
        plain(0x89, b""),
        plain(0x80, b"o"),
        plain(0x82, &[0xff; 300]),
    ]
    .concat();
    for piece in [1, 2, 3, 7, 1_000] {
        let outcome = decode(&bytes, 1_000, piece);
        assert_eq!(outcome.messages, [b"Hello".to_vec(), vec![0xff; 300]]);
        // Of two pings in one read the last is answered.
        let want = match piece {
            1_000 => masked(0x8a, 1, b""),
            _ => [masked(0x8a, 1, b"are you there"), masked(0x8a, 2, b"")].concat(),
        };
        assert_eq!(outcome.reply, want);
        assert_eq!(outcome.result, Ok(false));
    }
}

#[test]
fn a_close_is_answered_with_its_code() {
    let outcome = decode(&plain(0x88, &[0x03, 0xe9, b'b', b'y', b'e']), 100, 100);
    assert_eq!(outcome.result, Ok(true));
    assert_eq!(outcome.reply, masked(0x88, 1, &[0x03, 0xe9]));
    let outcome = decode(&plain(0x88, b""), 100, 100);
    assert_eq!(outcome.reply, masked(0x88, 1, &[0x03, 0xe8]));
}

#[test]
fn server_protocol_errors_are_closed_with_their_code() {
    let long_form = [0x82, 126, 0, 5].to_vec();
    let longest_form = [&[0x82, 127][..], &5u64.to_be_bytes()].concat();
    let negative = [&[0x82, 127][..], &u64::MAX.to_be_bytes()].concat();
    let huge = [&[0x82, 127][..], &(1u64 << 40).to_be_bytes()].concat();
    for (bytes, error, code) in [
        (masked(0x81, 9, b"x"), WsError::Masked, 1002u16),
        (masked(0x89, 9, b""), WsError::Masked, 1002),
        (plain(0xc1, b"x"), WsError::Reserved, 1002),
        (plain(0xa1, b"x"), WsError::Reserved, 1002),
        (plain(0x91, b"x"), WsError::Reserved, 1002),
        (plain(0x83, b"x"), WsError::Reserved, 1002),
        (plain(0x8b, b"x"), WsError::Reserved, 1002),
        (long_form, WsError::Length, 1002),
        (longest_form, WsError::Length, 1002),
        (negative, WsError::Length, 1002),
        (huge, WsError::TooBig, 1009),
        (plain(0x09, b"x"), WsError::Control, 1002),
        (plain(0x89, &[0; 126]), WsError::Control, 1002),
        (plain(0x88, &[3]), WsError::Control, 1002),
        (plain(0x88, &[0x03, 0xed]), WsError::Control, 1002),
        (plain(0x80, b"x"), WsError::Order, 1002),
        (
            [plain(0x01, b"x"), plain(0x81, b"y")].concat(),
            WsError::Order,
            1002,
        ),
        (plain(0x81, &[0xff]), WsError::NotText, 1007),
        (plain(0x88, &[0x03, 0xe8, 0xff]), WsError::NotText, 1007),
        (plain(0x82, &[0; 101]), WsError::TooBig, 1009),
        (
            [plain(0x02, &[0; 60]), plain(0x80, &[0; 60])].concat(),
            WsError::TooBig,
            1009,
        ),
    ] {
        for piece in [1, 1_000] {
            let outcome = decode(&bytes, 100, piece);
            assert_eq!(outcome.result, Err(error), "{}", bytes.escape_ascii());
            assert!(outcome.messages.is_empty());
            assert_eq!(
                outcome.reply,
                masked(0x88, 1, &code.to_be_bytes()),
                "{error}"
            );
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_responses_and_frames_are_harmless(
        data in proptest::collection::vec(any::<u8>(), 0..400),
        opened in any::<bool>(),
    ) {
        wire::ws::fuzz(&data);
        if opened {
            let cut = data.first().copied().unwrap_or(0);
            wire::ws::fuzz(&[&[cut][..], &good(), &data].concat());
        }
    }

    #[test]
    fn corrupted_accept_value_never_opens(at in 0usize..150, byte in any::<u8>()) {
        let mut bytes = good();
        let at = at % bytes.len();
        bytes[at] = byte;
        let accept = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        if let HandshakeResponse::Open(_) = client_handshake().parse_response(&bytes) {
            prop_assert!(bytes.windows(accept.len()).any(|part| part == accept));
        }
    }

    #[test]
    fn client_frames_are_decoded_by_the_server(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8),
        masks in any::<[u8; 4]>(),
        piece in 1usize..50,
    ) {
        let mut bytes = Vec::new();
        for message in &messages {
            client_frame(FrameKind::Binary, masks, message, &mut bytes);
        }
        let mut decoder = FrameDecoder::new(300);
        let mut read = Vec::new();
        for part in bytes.chunks(piece) {
            let (mut all, mut ends) = (Vec::new(), Vec::new());
            let result = decoder.receive(&mut part.to_vec(), &mut all, &mut ends, &mut Vec::new());
            prop_assert_eq!(result, Ok(false));
            let mut from = 0;
            for end in ends {
                read.push(all[from..end].to_vec());
                from = end;
            }
        }
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn server_messages_are_received_unchanged(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8),
        piece in 1usize..50,
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|m| plain(0x82, m)).collect();
        let outcome = decode(&bytes, 300, piece);
        prop_assert_eq!(outcome.messages, messages);
    }
}
