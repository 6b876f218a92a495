//! Fuzzing of both sides of a WebSocket.

use super::*;

/// Fuzz entry: parses `data` as input from a client and from a server; the result must not depend on the segmentation.
pub fn fuzz(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else {
        return;
    };
    fuzz_client(usize::from(cut) + 1, data);
    let mut reply = Vec::new();
    let opened = handshake(data, SIP_PROTOCOL, &[], &[], &mut reply);
    if let Handshake::Open(used) = opened {
        assert!(used <= data.len(), "more bytes used than received");
    }
    let whole = decoded(data, data.len().max(1), false);
    let pieces = decoded(data, usize::from(cut) + 1, false);
    assert_eq!(
        whole, pieces,
        "the result does not depend on the segmentation"
    );
}

/// The client: a handshake response with frames after it, or frames only.
fn fuzz_client(size: usize, data: &[u8]) {
    // The key of RFC 6455 section 1.3, so that seeds contain a matching Sec-WebSocket-Accept.
    let handshake = ClientHandshake::new(*b"the sample nonce", SIP_PROTOCOL);
    let mut frames = data;
    match handshake.parse_response(data) {
        HandshakeResponse::Open(used) => {
            assert!(used <= data.len(), "more bytes used than received");
            let less = data.get(..used.saturating_sub(1)).unwrap_or_default();
            assert_eq!(
                handshake.parse_response(less),
                HandshakeResponse::Partial,
                "a shorter response was complete"
            );
            frames = data.get(used..).unwrap_or_default();
        }
        HandshakeResponse::Partial => assert!(
            data.len() <= MAX_RESPONSE + 3,
            "the response exceeds the limit"
        ),
        HandshakeResponse::Refused(reason) => {
            assert!(reason.len() < 200, "a long reason: {reason}")
        }
    }
    let whole = decoded(frames, frames.len().max(1), true);
    let pieces = decoded(frames, size, true);
    assert_eq!(
        whole, pieces,
        "the result does not depend on the segmentation"
    );
}

/// Messages, replies and result of `data` in pieces of `size`, from a client or a `server`.
fn decoded(data: &[u8], size: usize, server: bool) -> (Vec<Vec<u8>>, Replies, String) {
    const LIMIT: usize = 2_000;
    // A message in fragments up to the limit, and a control frame between them without its last byte.
    const HELD: usize = LIMIT + 2 + 4 + 125 - 1;
    let mut decoder = FrameDecoder::new(LIMIT);
    let (mut messages, mut reply) = (Vec::new(), Vec::new());
    let mut outcome = String::from("open");
    let mut count = 0u32;
    let mut masks = || {
        count += 1;
        count.to_be_bytes()
    };
    for piece in data.chunks(size) {
        let mut piece = piece.to_vec();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let result = match server {
            false => decoder.receive(&mut piece, &mut bytes, &mut ends, &mut reply),
            true => decoder
                .receive_from_server(&mut piece, &mut bytes, &mut ends, &mut reply, &mut masks),
        };
        let mut from = 0;
        for end in ends {
            assert!(end - from <= LIMIT, "a message beyond the limit");
            messages.push(bytes.get(from..end).unwrap_or_default().to_vec());
            from = end;
        }
        assert!(
            decoder.buffered() <= HELD + size,
            "more is buffered than a message"
        );
        match result {
            Ok(false) => {}
            Ok(true) => outcome = String::from("closed"),
            Err(error) => outcome = error.to_string(),
        }
        if outcome != "open" {
            break;
        }
    }
    (messages, replies(&reply, server), outcome)
}

/// The payloads of the last pong and of the close frame.
type Replies = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Reads replies, and takes masks away. Their number depends on the segmentation: of pings that arrive together the
/// last is answered.
fn replies(mut bytes: &[u8], masked: bool) -> Replies {
    let (mut pong, mut close) = (None, None);
    while let [first, second, rest @ ..] = bytes {
        assert!(close.is_none(), "a frame after the close frame");
        let size = usize::from(second & 0x7f);
        assert!(size <= 125, "a reply is a control frame");
        assert_eq!(second & 0x80 != 0, masked, "clients mask, servers do not");
        let (mask, rest) = rest.split_at(if masked { 4 } else { 0 });
        let (payload, rest) = rest.split_at(size);
        let masks = mask.iter().cycle().chain(core::iter::repeat(&0));
        let payload = payload.iter().zip(masks).map(|(byte, mask)| byte ^ mask);
        match first {
            0x8a => pong = Some(payload.collect()),
            0x88 => close = Some(payload.collect()),
            other => panic!("a reply with the first byte {other:#x}"),
        }
        bytes = rest;
    }
    assert!(bytes.is_empty(), "an incomplete reply");
    (pong, close)
}
