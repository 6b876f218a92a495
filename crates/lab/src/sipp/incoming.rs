//! The parts of a received message that scenarios use: found in one pass, without copies.

/// Most headers examined in one message.
const MAX_HEADERS: usize = 500;

/// The fields of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming<'m> {
    /// The whole message.
    pub bytes: &'m [u8],
    /// Status of a response.
    pub status: Option<u16>,
    /// Method: of the start line; of CSeq in a response.
    pub method: &'m [u8],
    /// Call-ID, without the part before `///`.
    pub call_id: &'m [u8],
    /// CSeq number.
    pub cseq: u32,
    /// Branch of the topmost Via.
    pub branch: &'m [u8],
    /// Tag of To.
    pub to_tag: &'m [u8],
    /// Tag of From.
    pub from_tag: &'m [u8],
    /// Offset of the body.
    pub body: usize,
}

impl<'m> Incoming<'m> {
    /// Reads a message; `None` if it is not SIP, or lacks Call-ID or CSeq.
    pub fn read(bytes: &'m [u8]) -> Option<Incoming<'m>> {
        let mut lines = HeaderLines::of(bytes);
        let start = lines.start;
        let mut words = start.split(|byte| *byte == b' ');
        let first = words.next()?;
        let second = words.next()?;
        let (status, mut method) = match first.get(..4) {
            Some(b"SIP/") => (Some(number(second)?.try_into().ok()?), &b""[..]),
            _ => (None, first),
        };
        if status.is_none() && !start.trim_ascii_end().ends_with(b"SIP/2.0") {
            return None;
        }
        let mut found = Incoming {
            bytes,
            status,
            method,
            call_id: b"",
            cseq: 0,
            branch: b"",
            to_tag: b"",
            from_tag: b"",
            body: bytes.len(),
        };
        let (mut via, mut cseq) = (false, false);
        for (name, value) in lines.by_ref() {
            match name.len() {
                1 => match name.first().map(u8::to_ascii_lowercase) {
                    Some(b'i') => found.call_id = value,
                    Some(b'v') if !via => {
                        found.branch = parameter(value, b"branch");
                        via = true;
                    }
                    Some(b't') => found.to_tag = tag(value),
                    Some(b'f') => found.from_tag = tag(value),
                    _ => {}
                },
                2 if name.eq_ignore_ascii_case(b"to") => found.to_tag = tag(value),
                3 if !via && name.eq_ignore_ascii_case(b"via") => {
                    found.branch = parameter(value, b"branch");
                    via = true;
                }
                4 if name.eq_ignore_ascii_case(b"from") => found.from_tag = tag(value),
                4 if name.eq_ignore_ascii_case(b"cseq") => {
                    let mut words = value.split(|byte| matches!(byte, b' ' | b'\t'));
                    found.cseq = number(words.next()?)?.try_into().ok()?;
                    let word = words.find(|word| !word.is_empty())?;
                    if status.is_some() {
                        method = word;
                    }
                    cseq = true;
                }
                7 if name.eq_ignore_ascii_case(b"call-id") => found.call_id = value,
                _ => {}
            }
        }
        found.method = method;
        found.body = lines.body;
        if let Some(at) = memchr::memmem::find(found.call_id, b"///") {
            found.call_id = found.call_id.get(at + 3..).unwrap_or_default();
        }
        (cseq && !found.call_id.is_empty()).then_some(found)
    }

    /// The body.
    pub fn body(&self) -> &'m [u8] {
        self.bytes.get(self.body..).unwrap_or_default()
    }
}

/// A hash of a whole message: equal messages are retransmissions. A collision gives an attacker no advantage.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15u64 ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x2545_f491_4f6c_dd1d);
        hash ^= hash >> 29;
    }
    for byte in chunks.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    }
    // Zero means "none".
    (hash ^ hash >> 32) | 1
}

fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || text.len() > 10 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u64::from(byte - b'0'))
    })
}

/// Header lines of a message: name and value, without surrounding space.
#[derive(Clone, Debug)]
pub struct HeaderLines<'m> {
    bytes: &'m [u8],
    at: usize,
    left: usize,
    /// The start line.
    pub start: &'m [u8],
    /// Offset of the body, valid after the last line.
    pub body: usize,
}

impl<'m> HeaderLines<'m> {
    /// The lines of a message.
    pub fn of(bytes: &'m [u8]) -> HeaderLines<'m> {
        let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        let start = bytes.get(..end).unwrap_or_default();
        HeaderLines {
            bytes,
            at: end + 1,
            left: MAX_HEADERS,
            start: start.strip_suffix(b"\r").unwrap_or(start),
            body: bytes.len(),
        }
    }

    /// The next line with its folded continuations.
    fn line(&mut self) -> Option<&'m [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let mut end = 0;
        loop {
            let tail = rest.get(end..)?;
            match memchr::memchr(b'\n', tail) {
                None => {
                    end = rest.len();
                    break;
                }
                Some(found) => {
                    end += found + 1;
                    if !matches!(rest.get(end), Some(b' ' | b'\t')) {
                        break;
                    }
                }
            }
        }
        self.at += end;
        let line = rest.get(..end)?;
        (!line.is_empty()).then_some(line)
    }
}

impl<'m> Iterator for HeaderLines<'m> {
    type Item = (&'m [u8], &'m [u8]);

    fn next(&mut self) -> Option<(&'m [u8], &'m [u8])> {
        while self.left > 0 {
            self.left -= 1;
            let line = self.line()?;
            if matches!(line, b"\r\n" | b"\n") {
                self.body = self.at.min(self.bytes.len());
                self.at = self.bytes.len();
                self.left = 0;
                return None;
            }
            if let Some(colon) = memchr::memchr(b':', line) {
                let (name, value) = line.split_at(colon);
                let value = value.get(1..).unwrap_or_default();
                return Some((name.trim_ascii_end(), value.trim_ascii()));
            }
        }
        None
    }
}

/// The tag of a From or To.
fn tag(value: &[u8]) -> &[u8] {
    parameter(after_address(value), b"tag")
}

/// The parameters after the address of a header.
fn after_address(value: &[u8]) -> &[u8] {
    match memchr::memrchr(b'>', value) {
        Some(at) => value.get(at + 1..).unwrap_or_default(),
        None => match memchr::memchr(b';', value) {
            Some(at) => value.get(at..).unwrap_or_default(),
            None => b"",
        },
    }
}

/// The value of a parameter `;name=value`.
fn parameter<'v>(value: &'v [u8], name: &[u8]) -> &'v [u8] {
    for part in value.split(|byte| matches!(byte, b';' | b',')).skip(1) {
        let part = part.trim_ascii();
        if let Some(rest) = part.get(name.len()..)
            && part
                .get(..name.len())
                .is_some_and(|word| word.eq_ignore_ascii_case(name))
            && let Some(value) = rest.trim_ascii_start().strip_prefix(b"=")
        {
            return value.trim_ascii();
        }
    }
    b""
}

/// The short form of a header's name (RFC 3261 section 7.3.3).
fn short(name: &[u8]) -> Option<u8> {
    const NAMES: [(&[u8], u8); 10] = [
        (b"Call-ID", b'i'),
        (b"Contact", b'm'),
        (b"Content-Encoding", b'e'),
        (b"Content-Length", b'l'),
        (b"Content-Type", b'c'),
        (b"From", b'f'),
        (b"Subject", b's'),
        (b"Supported", b'k'),
        (b"To", b't'),
        (b"Via", b'v'),
    ];
    NAMES
        .iter()
        .find(|(long, _)| long.eq_ignore_ascii_case(name))
        .map(|(_, letter)| *letter)
}

/// The values of all headers of this name in a message, also in compact form.
pub fn values<'m>(message: &'m [u8], name: &[u8]) -> impl Iterator<Item = &'m [u8]> {
    let letter = short(name);
    HeaderLines::of(message)
        .filter(move |(found, _)| {
            found.eq_ignore_ascii_case(name)
                || matches!((*found, letter), ([one], Some(letter)) if one.eq_ignore_ascii_case(&letter))
        })
        .map(|(_, value)| value)
}

/// The URI of an address header's value.
pub fn uri(value: &[u8]) -> &[u8] {
    if let Some(open) = memchr::memchr(b'<', value) {
        let rest = value.get(open + 1..).unwrap_or_default();
        let close = memchr::memchr(b'>', rest).unwrap_or(rest.len());
        return rest.get(..close).unwrap_or_default();
    }
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    value.get(..end).unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &[u8] = b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK-1;rport, SIP/2.0/UDP b;branch=2\r\n\
        v: SIP/2.0/UDP c;branch=3\r\nf: <sip:a@b;tag=no>;tag=from\r\nTo: \"x;tag=y\" <sip:a@b>;TAG= to\r\n\
        i: pre///7-1@x\r\nCSeq: 12\r\n  INVITE\r\nRecord-Route: <sip:p;lr>\r\n\r\nv=0\r\n";

    #[test]
    fn one_pass_reads_all_fields() {
        let found = Incoming::read(OK).unwrap();
        assert_eq!(found.status, Some(200));
        // A folded line counts as one line.
        let folded = OK
            .windows(4)
            .position(|bytes| bytes == b"12\r\n")
            .map(|_| found.method);
        assert_eq!(folded, Some(&b"INVITE"[..]));
        assert_eq!((found.cseq, found.call_id), (12, &b"7-1@x"[..]));
        assert_eq!((found.from_tag, found.to_tag), (&b"from"[..], &b"to"[..]));
        assert_eq!(
            (found.branch, found.body()),
            (&b"z9hG4bK-1"[..], &b"v=0\r\n"[..])
        );
        let vias: Vec<_> = values(OK, b"Via").collect();
        assert_eq!(vias.len(), 2);
        assert_eq!(uri(b"\"a\" <sip:x@y;z>;q"), b"sip:x@y;z");
        assert_eq!(uri(b"sip:x@y;tag=z"), b"sip:x@y");
    }

    #[test]
    fn request_fields_are_read() {
        let found = Incoming::read(b"BYE sip:x SIP/2.0\nCall-ID: a\nCSeq: 2 BYE\n\n").unwrap();
        assert_eq!(
            (found.status, found.method, found.body()),
            (None, &b"BYE"[..], &b""[..])
        );
    }

    #[test]
    fn invalid_messages_are_not_read() {
        for bytes in [
            &b""[..],
            b"\r\n\r\n",
            b"BYE sip:x SIP/2.0\r\nCSeq: 1 BYE\r\n\r\n",
            b"BYE sip:x SIP/2.0\r\nCall-ID: x\r\n\r\n",
            b"BYE sip:x SIP/2.0\r\nCall-ID: x\r\nCSeq: x BYE\r\n\r\n",
            b"SIP/2.0 99999999 OK\r\nCall-ID: x\r\nCSeq: 1 BYE\r\n\r\n",
            b"GET / HTTP/1.1\r\nCall-ID: x\r\nCSeq: 1 BYE\r\n\r\n",
        ] {
            assert_eq!(Incoming::read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn fingerprints_differ() {
        assert_eq!(fingerprint(OK), fingerprint(OK));
        for at in 0..OK.len() {
            let mut other = OK.to_vec();
            other[at] ^= 1;
            assert_ne!(fingerprint(OK), fingerprint(&other), "{at}");
        }
    }
}
