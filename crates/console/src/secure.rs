//! The part of a message that is stored when its content must not be.

use engine::Transport;

/// Headers that identify a message and its call.
const KEPT: [&[u8]; 9] = [
    b"via", b"v", b"from", b"f", b"to", b"t", b"call-id", b"i", b"cseq",
];

/// Whether messages of this transport are stored in full only if the configuration allows it.
pub fn is_secure(transport: Transport) -> bool {
    matches!(transport, Transport::Tls | Transport::Ws | Transport::Wss)
}

/// Writes the start line and the headers Via, From, To, Call-ID and CSeq of a message into `out`, which is cleared
/// before.
pub fn reduce(message: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut keeps = true;
    for (index, line) in message.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let text = line.trim_ascii_end();
        if index > 0 && text.is_empty() {
            break;
        }
        if index > 0 && !matches!(line.first(), Some(b' ' | b'\t')) {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            let name = name.trim_ascii_end();
            keeps = KEPT.iter().any(|kept| name.eq_ignore_ascii_case(kept));
        }
        if keeps {
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_and_credentials_are_left_out() {
        let mut out = Vec::new();
        let message = b"INVITE sip:b@x SIP/2.0\r\nv: SIP/2.0/TLS h;branch=z\r\nAuthorization: Digest\r\n response=\"1\"\r\nFrom: <sip:a@x>\r\n ;tag=1\r\nCall-ID: 7\r\nCSeq: 1 INVITE\r\nContent-Length: 9\r\n\r\na=crypto:";
        reduce(message, &mut out);
        assert_eq!(
            String::from_utf8(out.clone()).unwrap(),
            "INVITE sip:b@x SIP/2.0\r\nv: SIP/2.0/TLS h;branch=z\r\nFrom: <sip:a@x>\r\n ;tag=1\r\nCall-ID: 7\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n"
        );
        let first = out.clone();
        reduce(&first, &mut out);
        assert_eq!(first, out);
    }
}
