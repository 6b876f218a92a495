//! WebSocket (RFC 6455), the server's side, as far as SIP needs it (RFC 7118): the opening request is answered, frames are
//! taken apart and written. No extensions; of subprotocols `sip` alone.

mod frames;
mod opening;

pub use frames::{CloseCode, Decoder, Kind, WsError, close, frame};
pub use opening::{Handshake, MAX_REQUEST, SIP_PROTOCOL, handshake};

/// Takes any bytes as what a client sends, for fuzzing: whole and in pieces the outcome must be the same.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else {
        return;
    };
    let mut reply = Vec::new();
    let opened = handshake(data, SIP_PROTOCOL, &[], &[], &mut reply);
    if let Handshake::Open(used) = opened {
        assert!(used <= data.len(), "more is used than came");
    }
    let whole = decoded(data, data.len().max(1));
    let pieces = decoded(data, usize::from(cut) + 1);
    assert_eq!(whole, pieces, "the cuts of the network are not seen");
}

/// Messages, replies and the outcome of `data` given in pieces of `size`.
fn decoded(data: &[u8], size: usize) -> (Vec<Vec<u8>>, Vec<u8>, String) {
    const LIMIT: usize = 2_000;
    let mut decoder = Decoder::new(LIMIT);
    let (mut messages, mut reply) = (Vec::new(), Vec::new());
    let mut outcome = String::from("open");
    for piece in data.chunks(size) {
        let mut piece = piece.to_vec();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let result = decoder.receive(&mut piece, &mut bytes, &mut ends, &mut reply);
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
