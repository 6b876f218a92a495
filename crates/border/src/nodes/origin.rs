//! The origin of descriptions (`o=`, RFC 4566 section 5.2) that a side is given by a call that has moved to another node: for the
//! side it is the same session, whose version grows with each change (RFC 3264 section 8).

use core::hash::Hasher as _;
use siphasher::sip::SipHasher13;

/// What a side was told last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// User name and session.
    session: Box<[u8]>,
    version: u64,
    /// Network, family and address.
    address: Box<[u8]>,
    /// Of the other lines.
    content: u64,
}

/// The value of the origin line, and all that is around it.
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

impl Origin {
    /// The origin of a description; `None` where it has none that can be read.
    pub(super) fn of(sdp: &[u8]) -> Option<Origin> {
        let (before, value, after) = split(sdp)?;
        let mut words = value.splitn(4, |&byte| byte == b' ');
        let (user, session) = (words.next()?, words.next()?);
        let version = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let mut hasher = SipHasher13::new();
        hasher.write(before);
        hasher.write(after);
        Some(Origin {
            session: [user, b" ", session].concat().into(),
            version,
            address: words.next()?.into(),
            content: hasher.finish(),
        })
    }

    /// A description for the side that was told this one last, with the origin that it knows.
    pub(super) fn follow(&mut self, sdp: &[u8]) -> Vec<u8> {
        let (Some((before, _, after)), Some(new)) = (split(sdp), Origin::of(sdp)) else {
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
    fn the_session_stays_and_its_version_grows_with_changes_alone() {
        let mut origin = Origin::of(&sdp("bob 7 41 IN IP4 192.0.2.1", 4000)).unwrap();
        let changed = origin.follow(&sdp("bob 7 41 IN IP4 192.0.2.2", 5000));
        assert_eq!(changed, sdp("bob 7 42 IN IP4 192.0.2.1", 5000));
        let again = origin.follow(&sdp("bob 9 3 IN IP4 192.0.2.2", 5000));
        assert_eq!(again, changed, "nothing has changed");
        let back = origin.follow(&sdp("bob 9 4 IN IP4 192.0.2.2", 4000));
        assert_eq!(back, sdp("bob 7 43 IN IP4 192.0.2.1", 4000));
    }

    #[test]
    fn what_cannot_be_read_stays_as_it_is() {
        assert_eq!(Origin::of(b"v=0\r\ns=-\r\n"), None);
        assert_eq!(Origin::of(b"v=0\r\no=bob 1 x IN IP4 192.0.2.1\r\n"), None);
        let mut origin = Origin::of(&sdp("bob 7 41 IN IP4 192.0.2.1", 4000)).unwrap();
        assert_eq!(origin.follow(b"v=0\r\no=x\r\n"), b"v=0\r\no=x\r\n");
    }
}
