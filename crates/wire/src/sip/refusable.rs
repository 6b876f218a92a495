//! A look at a request that takes in what its refusal needs and nothing else: where there is too much to do, a request that
//! is refused must cost a fraction of one that is read.

use super::ids::{HeaderId, Method};
use super::list::Values;
use super::message::is_token;
use super::typed::{NameAddr, Via};
use super::writer::Writer;
use memchr::memchr;
use std::net::SocketAddr;

/// Via fields of a request that a glance takes in; one with more is read in full.
const VIAS: usize = 8;
/// Header lines that are looked at; a request with more is read in full.
const LINES: usize = 64;

/// What a refusal of a request needs (RFC 3261 section 8.2.6.2), as it came. Lines are whole, with their line ends.
#[derive(Clone, Copy, Debug)]
pub struct Refusable<'a> {
    method: Method<'a>,
    uri: &'a [u8],
    vias: [&'a [u8]; VIAS],
    count: usize,
    from: &'a [u8],
    to: &'a [u8],
    call_id: &'a [u8],
    cseq: &'a [u8],
}

/// What one of these lines is.
enum Line {
    Via,
    From,
    To,
    CallId,
    CSeq,
    Other,
}

impl<'a> Refusable<'a> {
    /// A glance at a request; `None` where it is none, or not of the plainest form (a name is written unusually, a field is
    /// folded, missing or there twice, a line ends without CR): it has to be read in full then.
    pub fn at(bytes: &'a [u8]) -> Option<Refusable<'a>> {
        let end = memchr(b'\n', bytes)?;
        let line = bytes.get(..end)?.strip_suffix(b" SIP/2.0\r")?;
        let space = memchr(b' ', line)?;
        let (method, uri) = (line.get(..space)?, line.get(space + 1..)?);
        if uri.is_empty() || memchr(b' ', uri).is_some() {
            return None;
        }
        // The reader skips line ends in front of the start line.
        if method.is_empty() || !method.iter().copied().all(is_token) {
            return None;
        }
        let mut glance = Refusable {
            method: Method::from_bytes(method),
            uri,
            vias: [b""; VIAS],
            count: 0,
            from: b"",
            to: b"",
            call_id: b"",
            cseq: b"",
        };
        let mut rest = bytes.get(end + 1..)?;
        for _ in 0..LINES {
            let end = memchr(b'\n', rest)? + 1;
            let (line, behind) = rest.split_at_checked(end)?;
            if line == b"\r\n" {
                return glance.is_whole().then_some(glance);
            }
            glance.take(line)?;
            rest = behind;
        }
        None
    }

    fn is_whole(&self) -> bool {
        self.count > 0
            && [self.from, self.to, self.call_id, self.cseq]
                .iter()
                .all(|line| !line.is_empty())
    }

    fn take(&mut self, line: &'a [u8]) -> Option<()> {
        if !line.ends_with(b"\r\n") {
            return None;
        }
        let place = match kind(line)? {
            Line::Other => return Some(()),
            Line::Via => {
                let place = self.vias.get_mut(self.count)?;
                self.count += 1;
                place
            }
            Line::From => &mut self.from,
            Line::To => &mut self.to,
            Line::CallId => &mut self.call_id,
            Line::CSeq => &mut self.cseq,
        };
        if !place.is_empty() {
            return None;
        }
        *place = line;
        Some(())
    }

    /// The method.
    pub fn method(&self) -> Method<'a> {
        self.method
    }

    /// The Request-URI.
    pub fn uri(&self) -> &'a [u8] {
        self.uri
    }

    /// The topmost Via; `None` where it cannot be read.
    pub fn via(&self) -> Option<Via<'a>> {
        Via::parse(Values::list(value(self.vias[0])).next()?)
    }

    /// The Via fields, topmost first.
    pub fn via_lines(&self) -> &[&'a [u8]] {
        self.vias.get(..self.count).unwrap_or_default()
    }

    /// Appends a refusal: `start` (status line, with its line end), the fields of the request with `received` and `rport` for
    /// `source` (RFC 3261 section 18.2.1, RFC 3581 section 4) and `tag`, then `tail` (the other fields and the blank line);
    /// `feedback` takes the place of `oc` in the topmost Via.
    /// `false`, and nothing is appended, where the topmost Via cannot be read or shares its field with another.
    pub fn refuse(
        &self,
        start: &[u8],
        source: SocketAddr,
        tag: &[u8],
        (feedback, tail): (&[u8], &[u8]),
        out: &mut Vec<u8>,
    ) -> bool {
        let mut tops = Values::list(value(self.vias[0]));
        let (Some(Some(via)), None) = (tops.next().map(Via::parse), tops.next()) else {
            return false;
        };
        out.extend_from_slice(start);
        let mut writer = Writer { out };
        writer.begin(HeaderId::Via);
        writer.received_via(&via, source, feedback);
        writer.end_line();
        for line in self.via_lines().iter().skip(1) {
            out.extend_from_slice(line);
        }
        out.extend_from_slice(self.from);
        out.extend_from_slice(self.to.trim_ascii_end());
        out.extend_from_slice(b";tag=");
        out.extend_from_slice(tag);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.call_id);
        out.extend_from_slice(self.cseq);
        out.extend_from_slice(tail);
        true
    }

    /// The field From.
    pub fn from_line(&self) -> &'a [u8] {
        self.from
    }

    /// The field To.
    pub fn to_line(&self) -> &'a [u8] {
        self.to
    }

    /// To; `None` where it cannot be read.
    pub fn to(&self) -> Option<NameAddr<'a>> {
        NameAddr::parse(value(self.to))
    }

    /// The field Call-ID.
    pub fn call_id_line(&self) -> &'a [u8] {
        self.call_id
    }

    /// The Call-ID.
    pub fn call_id(&self) -> &'a [u8] {
        value(self.call_id)
    }

    /// The field CSeq.
    pub fn cseq_line(&self) -> &'a [u8] {
        self.cseq
    }
}

/// What is behind the colon of a line, without blanks around it.
fn value(line: &[u8]) -> &[u8] {
    let colon = memchr(b':', line).map_or(line.len(), |at| at + 1);
    line.get(colon..).unwrap_or_default().trim_ascii()
}

/// Which of the fields a line is; `None` where a fold or an unusual way of writing makes it uncertain.
fn kind(line: &[u8]) -> Option<Line> {
    let named = |name: &[u8]| {
        let (start, rest) = line.split_at_checked(name.len())?;
        (start.eq_ignore_ascii_case(name) && rest.first() == Some(&b':')).then_some(())
    };
    // A blank before the colon is legal, and rare enough to be left to the reader.
    let loose = |length: usize| matches!(line.get(length), Some(b' ' | b'\t'));
    let long = |name: &[u8], compact: u8, line_is: Line| match named(name) {
        Some(()) => Some(line_is),
        None if line.get(1) == Some(&b':') && line.first()?.eq_ignore_ascii_case(&compact) => {
            Some(line_is)
        }
        None if loose(name.len()) && line.get(..name.len())?.eq_ignore_ascii_case(name) => None,
        None if loose(1) => None,
        None => Some(Line::Other),
    };
    match line.first()? {
        b'V' | b'v' => long(b"Via", b'v', Line::Via),
        b'F' | b'f' => long(b"From", b'f', Line::From),
        b'T' | b't' => long(b"To", b't', Line::To),
        b'I' | b'i' => long(b"Call-ID", b'i', Line::CallId),
        b'C' | b'c' => match line.get(1)? {
            b'S' | b's' => long(b"CSeq", 0, Line::CSeq),
            b'A' | b'a' => long(b"Call-ID", 0, Line::CallId),
            _ => Some(Line::Other),
        },
        // A fold: of what, only a reader knows.
        b' ' | b'\t' => None,
        _ => Some(Line::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sip::{HeaderId, Message};

    const INVITE: &str = "INVITE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bKa;rport\r\n\
        v: SIP/2.0/UDP 10.1.0.2;branch=z9hG4bKb\r\nMax-Forwards: 70\r\nFrom: <sip:a@b>;tag=1\r\nt: <sip:2000@192.0.2.1>\r\n\
        CALL-ID:  x@y \r\nCSeq: 1 INVITE\r\nContact: <sip:a@10.1.0.1>\r\nContent-Length: 3\r\n\r\nv=0";

    #[test]
    fn a_glance_sees_what_a_reader_sees() {
        let glance = Refusable::at(INVITE.as_bytes()).unwrap();
        let message = Message::parse(INVITE.as_bytes()).unwrap();
        assert_eq!(glance.method(), Method::Invite);
        assert_eq!(glance.uri(), message.request_uri());
        assert_eq!(glance.call_id(), message.call_id().unwrap());
        assert_eq!(glance.via().unwrap().raw, message.via().unwrap().raw);
        assert_eq!(glance.via_lines().len(), 2);
        let raw = |id| message.headers().find(|h| h.id == id).unwrap().raw;
        assert_eq!(glance.from_line(), raw(HeaderId::From));
        assert_eq!(glance.to_line(), raw(HeaderId::To));
        assert_eq!(glance.call_id_line(), raw(HeaderId::CallId));
        assert_eq!(glance.cseq_line(), raw(HeaderId::CSeq));
        assert_eq!(glance.to().unwrap().tag(), None);
    }

    #[test]
    fn a_refusal_says_what_the_readers_says() {
        let source = "198.51.100.7:5088".parse().unwrap();
        let message = Message::parse(INVITE.as_bytes()).unwrap();
        let mut read = Vec::new();
        crate::sip::Response {
            to_tag: Some(b"abc"),
            source: Some(source),
            ..crate::sip::Response::new(&message, 503, b"Service Unavailable")
        }
        .write(
            |writer| {
                writer.header(HeaderId::RetryAfter, b"5");
            },
            &mut read,
        );
        let mut seen = Vec::new();
        let tail = b"Retry-After: 5\r\nContent-Length: 0\r\n\r\n";
        let start = b"SIP/2.0 503 Service Unavailable\r\n";
        let glance = Refusable::at(INVITE.as_bytes()).unwrap();
        assert!(glance.refuse(start, source, b"abc", (b"", tail), &mut seen));
        let of = |bytes: &[u8]| -> Vec<(HeaderId, String)> {
            let answer = Message::parse(bytes).unwrap();
            assert_eq!(answer.validate(), Ok(()));
            assert_eq!(answer.status(), 503);
            let headers = answer.headers();
            headers
                .map(|header| {
                    let value = String::from_utf8(header.value.to_vec()).unwrap();
                    (header.id, value)
                })
                .collect()
        };
        assert_eq!(of(&seen), of(&read));
        let list = INVITE.replacen(";rport", ";rport, SIP/2.0/UDP h;branch=z9hG4bKc", 1);
        seen.clear();
        let glance = Refusable::at(list.as_bytes()).unwrap();
        assert!(!glance.refuse(start, source, b"abc", (b"", tail), &mut seen));
        assert!(seen.is_empty());
    }

    #[test]
    fn what_is_written_unusually_is_left_to_the_reader() {
        let not = |from: &str, to: &str| {
            let text = INVITE.replacen(from, to, 1);
            assert_ne!(text, INVITE, "{from}");
            assert!(Refusable::at(text.as_bytes()).is_none(), "{to}");
        };
        not("From: <sip:a@b>", "From: <sip:a@b>\r\n ");
        not("From:", "From :");
        not("t:", "t :");
        not("CALL-ID:", "CALL-ID\t:");
        not("Max-Forwards: 70", "From: <sip:c@d>;tag=2");
        not("CSeq: 1 INVITE\r\n", "");
        not("CSeq: 1 INVITE\r\n", "CSeq: 1 INVITE\n");
        not(" SIP/2.0", " SIP/3.0");
        not("INVITE sip:2000@192.0.2.1", "INVITE  sip:2000@192.0.2.1");
        not("\r\n\r\n", "\r\n");
        not("Max-Forwards: 70", &"v: SIP/2.0/UDP h\r\n".repeat(8));
        not("Max-Forwards: 70\r\n", &"X: y\r\n".repeat(60));
        assert!(Refusable::at(b"SIP/2.0 200 OK\r\n\r\n").is_none());
        assert!(Refusable::at(b"").is_none());
    }

    #[test]
    fn no_bytes_make_it_panic_and_what_it_sees_the_reader_sees() {
        let mut state = 7u64;
        for _ in 0..20_000 {
            let mut bytes = INVITE.as_bytes().to_vec();
            for _ in 0..3 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = b" \r\n:;,<>\"VvTtIiCcFf\t0"[(state >> 20) as usize % 21];
            }
            let Some(glance) = Refusable::at(&bytes) else {
                continue;
            };
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(glance.method(), message.method());
            let same = |id, line: &[u8]| {
                assert!(!message.is_repeated(id));
                assert_eq!(value(line), message.header(id).unwrap(), "{id:?}");
            };
            same(HeaderId::From, glance.from_line());
            same(HeaderId::To, glance.to_line());
            same(HeaderId::CallId, glance.call_id_line());
            same(HeaderId::CSeq, glance.cseq_line());
            let vias = message.headers().filter(|h| h.id == HeaderId::Via);
            assert!(vias.map(|h| h.raw).eq(glance.via_lines().iter().copied()));
        }
    }
}
