//! Fast path for refusals: parses only the fields of a request that its refusal repeats. Under overload a refused
//! request must cost a fraction of a processed one.

use super::ids::{HeaderId, Method};
use super::list::Values;
use super::message::is_token;
use super::typed::{NameAddr, Via};
use super::writer::Writer;
use memchr::memchr;
use std::net::SocketAddr;

/// Maximum number of Via fields on the fast path; a request with more is parsed in full.
const VIAS: usize = 8;
/// Maximum number of header lines on the fast path; a request with more is parsed in full.
const LINES: usize = 64;

/// The fields of a request that its refusal repeats (RFC 3261 section 8.2.6.2), unmodified. Lines are complete, with
/// line ends.
#[derive(Clone, Copy, Debug)]
pub struct RefusableRequest<'a> {
    method: Method<'a>,
    uri: &'a [u8],
    vias: [&'a [u8]; VIAS],
    count: usize,
    from: &'a [u8],
    to: &'a [u8],
    call_id: &'a [u8],
    cseq: &'a [u8],
}

/// The header field of a line.
enum LineKind {
    Via,
    From,
    To,
    CallId,
    CSeq,
    Other,
}

impl<'a> RefusableRequest<'a> {
    /// Parses a request on the fast path. `None` for other input and for requests in an unusual form (unusual spelling
    /// of a name, a field folded, missing or repeated, a line end without CR): such a request has to be parsed in full.
    pub fn parse(bytes: &'a [u8]) -> Option<RefusableRequest<'a>> {
        let end = memchr(b'\n', bytes)?;
        let line = bytes.get(..end)?.strip_suffix(b" SIP/2.0\r")?;
        let space = memchr(b' ', line)?;
        let (method, uri) = (line.get(..space)?, line.get(space + 1..)?);
        if uri.is_empty() || memchr(b' ', uri).is_some() {
            return None;
        }
        // The full parser skips line ends before the start line.
        if method.is_empty() || !method.iter().copied().all(is_token) {
            return None;
        }
        let mut fields = RefusableRequest {
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
                return fields.is_whole().then_some(fields);
            }
            fields.take(line)?;
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
            LineKind::Other => return Some(()),
            LineKind::Via => {
                let place = self.vias.get_mut(self.count)?;
                self.count += 1;
                place
            }
            LineKind::From => &mut self.from,
            LineKind::To => &mut self.to,
            LineKind::CallId => &mut self.call_id,
            LineKind::CSeq => &mut self.cseq,
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

    /// The topmost Via; `None` if it is malformed.
    pub fn via(&self) -> Option<Via<'a>> {
        Via::parse(Values::list(value(self.vias[0])).next()?)
    }

    /// The Via fields, topmost first.
    pub fn via_lines(&self) -> &[&'a [u8]] {
        self.vias.get(..self.count).unwrap_or_default()
    }

    /// Appends a refusal: `start` (status line with line end), the fields of the request with `received` and `rport`
    /// for `source` (RFC 3261 section 18.2.1, RFC 3581 section 4) and `tag`, then `tail` (the other fields and the
    /// blank line); `feedback` replaces `oc` in the topmost Via. Returns `false` and appends nothing if the topmost Via
    /// is malformed or shares its field with another one.
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

    /// The From line.
    pub fn from_line(&self) -> &'a [u8] {
        self.from
    }

    /// The To line.
    pub fn to_line(&self) -> &'a [u8] {
        self.to
    }

    /// To; `None` if it is malformed.
    pub fn to(&self) -> Option<NameAddr<'a>> {
        NameAddr::parse(value(self.to))
    }

    /// The Call-ID line.
    pub fn call_id_line(&self) -> &'a [u8] {
        self.call_id
    }

    /// The Call-ID.
    pub fn call_id(&self) -> &'a [u8] {
        value(self.call_id)
    }

    /// The CSeq line.
    pub fn cseq_line(&self) -> &'a [u8] {
        self.cseq
    }
}

/// The value of a line, trimmed.
fn value(line: &[u8]) -> &[u8] {
    let colon = memchr(b':', line).map_or(line.len(), |at| at + 1);
    line.get(colon..).unwrap_or_default().trim_ascii()
}

/// The header field of a line; `None` if a fold or an unusual spelling makes it uncertain.
fn kind(line: &[u8]) -> Option<LineKind> {
    let named = |name: &[u8]| {
        let (start, rest) = line.split_at_checked(name.len())?;
        (start.eq_ignore_ascii_case(name) && rest.first() == Some(&b':')).then_some(())
    };
    // A blank before the colon is legal, and rare enough to be left to the full parser.
    let loose = |length: usize| matches!(line.get(length), Some(b' ' | b'\t'));
    let long = |name: &[u8], compact: u8, line_is: LineKind| match named(name) {
        Some(()) => Some(line_is),
        None if line.get(1) == Some(&b':') && line.first()?.eq_ignore_ascii_case(&compact) => {
            Some(line_is)
        }
        None if loose(name.len()) && line.get(..name.len())?.eq_ignore_ascii_case(name) => None,
        None if loose(1) => None,
        None => Some(LineKind::Other),
    };
    match line.first()? {
        b'V' | b'v' => long(b"Via", b'v', LineKind::Via),
        b'F' | b'f' => long(b"From", b'f', LineKind::From),
        b'T' | b't' => long(b"To", b't', LineKind::To),
        b'I' | b'i' => long(b"Call-ID", b'i', LineKind::CallId),
        b'C' | b'c' => match line.get(1)? {
            b'S' | b's' => long(b"CSeq", 0, LineKind::CSeq),
            b'A' | b'a' => long(b"Call-ID", 0, LineKind::CallId),
            _ => Some(LineKind::Other),
        },
        // A fold: only the full parser determines the folded field.
        b' ' | b'\t' => None,
        _ => Some(LineKind::Other),
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
    fn fast_path_agrees_with_full_parser() {
        let fields = RefusableRequest::parse(INVITE.as_bytes()).unwrap();
        let message = Message::parse(INVITE.as_bytes()).unwrap();
        assert_eq!(fields.method(), Method::Invite);
        assert_eq!(fields.uri(), message.request_uri());
        assert_eq!(fields.call_id(), message.call_id().unwrap());
        assert_eq!(fields.via().unwrap().raw, message.via().unwrap().raw);
        assert_eq!(fields.via_lines().len(), 2);
        let raw = |id| message.headers().find(|h| h.id == id).unwrap().raw;
        assert_eq!(fields.from_line(), raw(HeaderId::From));
        assert_eq!(fields.to_line(), raw(HeaderId::To));
        assert_eq!(fields.call_id_line(), raw(HeaderId::CallId));
        assert_eq!(fields.cseq_line(), raw(HeaderId::CSeq));
        assert_eq!(fields.to().unwrap().tag(), None);
    }

    #[test]
    fn refusal_equals_that_of_the_full_path() {
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
        let fields = RefusableRequest::parse(INVITE.as_bytes()).unwrap();
        assert!(fields.refuse(start, source, b"abc", (b"", tail), &mut seen));
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
        let fields = RefusableRequest::parse(list.as_bytes()).unwrap();
        assert!(!fields.refuse(start, source, b"abc", (b"", tail), &mut seen));
        assert!(seen.is_empty());
    }

    #[test]
    fn unusual_spelling_is_left_to_the_full_parser() {
        let not = |from: &str, to: &str| {
            let text = INVITE.replacen(from, to, 1);
            assert_ne!(text, INVITE, "{from}");
            assert!(RefusableRequest::parse(text.as_bytes()).is_none(), "{to}");
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
        assert!(RefusableRequest::parse(b"SIP/2.0 200 OK\r\n\r\n").is_none());
        assert!(RefusableRequest::parse(b"").is_none());
    }

    #[test]
    fn arbitrary_bytes_do_not_panic_and_agree_with_the_full_parser() {
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
            let Some(fields) = RefusableRequest::parse(&bytes) else {
                continue;
            };
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(fields.method(), message.method());
            let same = |id, line: &[u8]| {
                assert!(!message.is_repeated(id));
                assert_eq!(value(line), message.header(id).unwrap(), "{id:?}");
            };
            same(HeaderId::From, fields.from_line());
            same(HeaderId::To, fields.to_line());
            same(HeaderId::CallId, fields.call_id_line());
            same(HeaderId::CSeq, fields.cseq_line());
            let vias = message.headers().filter(|h| h.id == HeaderId::Via);
            assert!(vias.map(|h| h.raw).eq(fields.via_lines().iter().copied()));
        }
    }
}
