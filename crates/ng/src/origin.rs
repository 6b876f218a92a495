//! The `o=` line (RFC 4566 section 5.2) of descriptions for a call that has moved to another node: each side sees the
//! same session, whose version is incremented with each change (RFC 3264 section 8).

use core::hash::Hasher as _;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// The last `o=` line sent to a side.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SdpOrigin {
    /// User name and session id.
    session: Box<[u8]>,
    version: u64,
    /// Network type, address type and address.
    address: Box<[u8]>,
    /// Hash of the other lines.
    content: u64,
}

/// The value of the `o=` line, and the text before and after it.
fn split(sdp: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut start = 0;
    for raw in sdp.split_inclusive(|&byte| byte == b'\n') {
        let line = raw.trim_ascii_end();
        if let Some(value) = line.strip_prefix(b"o=") {
            let end = start + line.len();
            return Some((sdp.get(..start + 2)?, value, sdp.get(end..)?));
        }
        start += raw.len();
    }
    None
}

impl SdpOrigin {
    /// The `o=` line of a description; `None` if it cannot be parsed.
    pub fn of(sdp: &[u8]) -> Option<SdpOrigin> {
        let (before, value, after) = split(sdp)?;
        let mut words = value.splitn(4, |&byte| byte == b' ');
        let (user, session) = (words.next()?, words.next()?);
        let version = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let mut hasher = SipHasher13::new();
        hasher.write(before);
        hasher.write(after);
        Some(SdpOrigin {
            session: [user, b" ", session].concat().into(),
            version,
            address: words.next()?.into(),
            content: hasher.finish(),
        })
    }

    /// The description with the session that the side knows.
    pub fn rewrite(&mut self, sdp: &[u8]) -> Vec<u8> {
        let (Some((before, _, after)), Some(new)) = (split(sdp), SdpOrigin::of(sdp)) else {
            return sdp.to_vec();
        };
        if new.content != self.content {
            self.version = self.version.wrapping_add(1);
            self.content = new.content;
        }
        let version = self.version.to_string();
        let parts: [&[u8]; 7] = [
            before,
            &self.session,
            b" ",
            version.as_bytes(),
            b" ",
            &self.address,
            after,
        ];
        parts.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sdp(origin: &str, port: u16) -> Vec<u8> {
        format!("v=0\r\no={origin}\r\ns=-\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n").into_bytes()
    }

    #[test]
    fn the_session_is_kept_and_its_version_counts_changes() {
        let mut origin = SdpOrigin::of(&sdp("bob 7 41 IN IP4 192.0.2.1", 4000)).unwrap();
        let changed = origin.rewrite(&sdp("bob 7 41 IN IP4 192.0.2.2", 5000));
        assert_eq!(changed, sdp("bob 7 42 IN IP4 192.0.2.1", 5000));
        let again = origin.rewrite(&sdp("bob 9 3 IN IP4 192.0.2.2", 5000));
        assert_eq!(again, changed, "nothing has changed");
        let back = origin.rewrite(&sdp("bob 9 4 IN IP4 192.0.2.2", 4000));
        assert_eq!(back, sdp("bob 7 43 IN IP4 192.0.2.1", 4000));
    }

    #[test]
    fn descriptions_without_valid_origin_are_unchanged() {
        assert_eq!(SdpOrigin::of(b"v=0\r\ns=-\r\n"), None);
        assert_eq!(
            SdpOrigin::of(b"v=0\r\no=bob 1 x IN IP4 192.0.2.1\r\n"),
            None
        );
        let mut origin = SdpOrigin::of(&sdp("bob 7 41 IN IP4 192.0.2.1", 4000)).unwrap();
        assert_eq!(origin.rewrite(b"v=0\r\no=x\r\n"), b"v=0\r\no=x\r\n");
    }
}
