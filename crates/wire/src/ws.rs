//! WebSocket (RFC 6455), both sides, as far as SIP needs it (RFC 7118): the opening request is written and answered, frames are
//! taken apart and written. No extensions; one subprotocol, `sip` where nothing else is said. Randomness is given by whoever calls.

mod asking;
mod frames;
mod opening;

pub use asking::{Answer, Asking, MAX_ANSWER};
pub use frames::{
    CloseCode, Decoder, Kind, Mask, WsError, client_close, client_frame, close, frame,
};
pub use opening::{Handshake, MAX_REQUEST, SIP_PROTOCOL, handshake};

/// Takes any bytes as what a client sends, and as what a server does, for fuzzing: whole and in pieces the outcome must be the same.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else {
        return;
    };
    fuzz_client(usize::from(cut) + 1, data);
    let mut reply = Vec::new();
    let opened = handshake(data, SIP_PROTOCOL, &[], &[], &mut reply);
    if let Handshake::Open(used) = opened {
        assert!(used <= data.len(), "more is used than came");
    }
    let whole = decoded(data, data.len().max(1), false);
    let pieces = decoded(data, usize::from(cut) + 1, false);
    assert_eq!(whole, pieces, "the cuts of the network are not seen");
}

/// The client's part: an answer, and frames behind it or by themselves.
fn fuzz_client(size: usize, data: &[u8]) {
    // The key of RFC 6455 section 1.3, so that seeds have a proof that fits.
    let asking = Asking::new(*b"the sample nonce", SIP_PROTOCOL);
    let mut frames = data;
    match asking.answer(data) {
        Answer::Open(used) => {
            assert!(used <= data.len(), "more is used than came");
            let less = data.get(..used.saturating_sub(1)).unwrap_or_default();
            assert_eq!(asking.answer(less), Answer::Partial, "it was whole before");
            frames = data.get(used..).unwrap_or_default();
        }
        Answer::Partial => assert!(data.len() <= MAX_ANSWER + 3, "more is waited for"),
        Answer::Refused(why) => assert!(why.len() < 200, "a long story: {why}"),
    }
    let whole = decoded(frames, frames.len().max(1), true);
    let pieces = decoded(frames, size, true);
    assert_eq!(whole, pieces, "the cuts of the network are not seen");
}

/// Messages, replies and the outcome of `data` given in pieces of `size`. `server`: it is a server's.
fn decoded(data: &[u8], size: usize, server: bool) -> (Vec<Vec<u8>>, Vec<u8>, String) {
    const LIMIT: usize = 2_000;
    let mut decoder = Decoder::new(LIMIT);
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
            decoder.held() <= LIMIT + 14 + size,
            "more is held than a message"
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
    (messages, reply, outcome)
}
