//! The index of one SIP message: start line, header spans, body.

use super::header_cache::HeaderCache;
use super::ids::{HEADER_IDS, HeaderId, Method};
use super::list::Values;
use super::vector::first;
pub(super) use crate::sip_text::{is_lws, number};
use smallvec::SmallVec;
use std::fmt;

/// Maximum number of header fields; more are [`Unparsable::TooManyHeaders`].
pub const MAX_HEADERS: usize = 250;

/// Each identifier has a bit in [`Message::repeated`].
const _: () = assert!(HEADER_IDS <= 128);

/// Longer messages are [`Unparsable::TooLong`]: spans are 32 bits wide, and real messages are far shorter.
pub const MAX_MESSAGE: usize = 16 << 20;

/// The reason for which bytes are no SIP message; each is a counted drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unparsable {
    /// Empty, or line ends only (which includes keep-alives of RFC 5626).
    Empty,
    /// The first line is neither a request line nor a status line of SIP.
    StartLine,
    /// More than [`MAX_HEADERS`] header fields.
    TooManyHeaders,
    /// Longer than [`MAX_MESSAGE`].
    TooLong,
}

impl fmt::Display for Unparsable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unparsable::Empty => "no message",
            Unparsable::StartLine => "no SIP start line",
            Unparsable::TooManyHeaders => "too many header fields",
            Unparsable::TooLong => "message too long",
        })
    }
}

impl std::error::Error for Unparsable {}

/// The transport determines the end of the body (RFC 3261 section 18.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One datagram: without Content-Length the body ends with it; octets after Content-Length are ignored.
    Datagram,
    /// One message of a stream, from [`super::StreamFramer`]: without Content-Length there is no body.
    Stream,
}

/// The spans of one header field, as offsets into the message's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderField {
    start: u32,
    value: u32,
    value_end: u32,
    end: u32,
    name_len: u16,
    id: HeaderId,
}

/// The first line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a> {
    Request {
        method: Method<'a>,
        uri: &'a [u8],
        version: &'a [u8],
    },
    Status {
        version: &'a [u8],
        status: u16,
        reason: &'a [u8],
    },
}

/// Faults found while indexing; [`Message::validate`] refuses them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageFaults {
    /// The blank line after the headers is missing.
    pub unfinished: bool,
    /// A header line without colon, without name, or with a name that is no token.
    pub bad_line: bool,
    /// White space in the start line at a position where none is allowed.
    pub loose_start_line: bool,
    /// A line that ends in LF alone.
    pub bare_lf: bool,
    /// Content-Length is no number, or differs between two fields.
    pub bad_length: bool,
    /// Content-Length exceeds the bytes.
    pub truncated: bool,
    /// Line ends between the headers and the body.
    pub lines: u32,
}

/// One header field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Identifier.
    pub id: HeaderId,
    /// The name, unmodified, possibly compact.
    pub name: &'a [u8],
    /// The value without white space around it; folds inside are kept.
    pub value: &'a [u8],
    /// The complete line or lines with line ends.
    pub raw: &'a [u8],
}

impl fmt::Debug for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            self.name.escape_ascii(),
            self.value.escape_ascii()
        )
    }
}

/// An index of the bytes of a SIP request or response: built in one pass, without copying; headers are parsed on
/// demand.
///
/// [`Message::parse`] accepts nearly any message, so that a malformed request can be answered; [`Message::validate`]
/// reports faults.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    pub(super) start: Start<'a>,
    fields: SmallVec<[HeaderField; 24]>,
    /// Index of the first field of each identifier plus one; zero if absent.
    first: [u8; HEADER_IDS],
    /// Identifiers that occur more than once, one bit each.
    repeated: u128,
    headers_start: u32,
    headers_end: u32,
    body_start: u32,
    pub(super) faults: MessageFaults,
    pub(super) cache: HeaderCache,
}

impl<'a> Message<'a> {
    /// The index of a datagram, see [`Message::parse_datagram`].
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Unparsable> {
        Self::parse_as(bytes, Framing::Datagram)
    }

    /// The index of one datagram: octets after Content-Length are ignored; with a Content-Length beyond the datagram
    /// the body ends with the datagram, and [`Message::validate`] refuses the message.
    pub fn parse_datagram(bytes: &'a [u8]) -> Result<Message<'a>, Unparsable> {
        Self::parse_as(bytes, Framing::Datagram)
    }

    /// The index of one message from a [`super::StreamFramer`].
    pub fn parse_framed(bytes: &'a [u8]) -> Result<Message<'a>, Unparsable> {
        Self::parse_as(bytes, Framing::Stream)
    }

    /// The index of `bytes`. Line ends before the start line are skipped (RFC 3261 section 7.5).
    pub fn parse_as(bytes: &'a [u8], framing: Framing) -> Result<Message<'a>, Unparsable> {
        let skipped = bytes
            .iter()
            .position(|byte| !matches!(byte, b'\r' | b'\n'))
            .ok_or(Unparsable::Empty)?;
        let bytes = bytes.get(skipped..).unwrap_or_default();
        if bytes.len() > MAX_MESSAGE {
            return Err(Unparsable::TooLong);
        }
        let mut faults = MessageFaults::default();
        let line_end = first(b'\n', bytes).ok_or(Unparsable::StartLine)?;
        let line = bytes.get(..line_end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or_else(|| {
            faults.bare_lf = true;
            line
        });
        let start = start_line(line, &mut faults).ok_or(Unparsable::StartLine)?;
        let headers_start = (line_end + 1) as u32;
        // Constructed in the place of the return value: it is large, and a move costs more than some of the parsing.
        let mut result = Ok(Message {
            bytes,
            start,
            fields: SmallVec::new(),
            first: [0; HEADER_IDS],
            repeated: 0,
            headers_start,
            headers_end: headers_start,
            body_start: headers_start,
            faults,
            cache: HeaderCache::default(),
        });
        let refused = match &mut result {
            Ok(message) => message.index(framing).err(),
            Err(_) => None,
        };
        if let Some(reason) = refused {
            result = Err(reason);
        }
        result
    }

    /// Indexes the header fields and sets the end of the body.
    #[inline]
    fn index(&mut self, framing: Framing) -> Result<(), Unparsable> {
        self.index_headers()?;
        self.delimit_body(framing);
        Ok(())
    }

    /// Reads the header lines up to the blank line; sets `headers_end` and `body_start`.
    fn index_headers(&mut self) -> Result<(), Unparsable> {
        let bytes = self.bytes;
        let mut at = self.headers_start as usize;
        loop {
            match bytes.get(at..).unwrap_or_default() {
                [b'\r', b'\n', ..] => return self.headers_end_at(at, at + 2),
                [b'\n', ..] => {
                    self.faults.bare_lf = true;
                    return self.headers_end_at(at, at + 1);
                }
                [] => {
                    self.faults.unfinished = true;
                    return self.headers_end_at(at, at);
                }
                _ => at = self.index_field(at)?,
            }
        }
    }

    fn headers_end_at(&mut self, headers_end: usize, body_start: usize) -> Result<(), Unparsable> {
        self.headers_end = headers_end as u32;
        self.body_start = body_start as u32;
        Ok(())
    }

    /// Indexes the field at `start`; returns the offset of the next line.
    #[inline]
    fn index_field(&mut self, start: usize) -> Result<usize, Unparsable> {
        let bytes = self.bytes;
        let rest = bytes.get(start..).unwrap_or_default();
        if let Some((id, name_len)) = HeaderId::at(rest) {
            return self.push_field(start, name_len, name_len + 1, id);
        }
        // Names are short: a plain loop is faster than a vector search, and it checks the characters as well.
        let name_len = rest
            .iter()
            .position(|byte| !is_token(*byte))
            .unwrap_or(rest.len());
        let blanks = rest
            .get(name_len..)
            .unwrap_or_default()
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t'))
            .unwrap_or(0);
        let colon = name_len + blanks;
        let named = name_len > 0 && name_len <= 0xffff && rest.get(colon) == Some(&b':');
        match named {
            true => {
                let id = HeaderId::from_token(rest.get(..name_len).unwrap_or_default());
                self.push_field(start, name_len, colon + 1, id)
            }
            false => {
                self.faults.bad_line = true;
                self.push_field(start, 0, 0, HeaderId::Other)
            }
        }
    }

    /// Indexes the field at `start` with a name of `name_len` bytes and its value at `value`, or after blanks.
    #[inline]
    fn push_field(
        &mut self,
        start: usize,
        name_len: usize,
        mut value: usize,
        id: HeaderId,
    ) -> Result<usize, Unparsable> {
        let rest = self.bytes.get(start..).unwrap_or_default();
        let (mut value_end, end) = self.field_end(start, value);
        while value < value_end && rest.get(value).copied().is_some_and(is_lws) {
            value += 1;
        }
        while value_end > value && rest.get(value_end - 1).copied().is_some_and(is_lws) {
            value_end -= 1;
        }
        if self.fields.len() >= MAX_HEADERS {
            return Err(Unparsable::TooManyHeaders);
        }
        self.fields.push(HeaderField {
            start: start as u32,
            value: (start + value) as u32,
            value_end: (start + value_end) as u32,
            end: (start + end) as u32,
            name_len: name_len as u16,
            id,
        });
        let first = &mut self.first[id as usize];
        match *first {
            0 => *first = self.fields.len() as u8,
            _ => self.repeated |= 1 << id as u8,
        }
        Ok(start + end)
    }

    /// The end of the field at `start`, searched from `from`: offsets before and after its last line end, relative to
    /// `start`. A line that begins with a blank belongs to the field.
    #[inline]
    fn field_end(&mut self, start: usize, from: usize) -> (usize, usize) {
        let rest = self.bytes.get(start..).unwrap_or_default();
        let mut at = from;
        loop {
            let Some(found) = first(b'\n', rest.get(at..).unwrap_or_default()) else {
                self.faults.unfinished = true;
                return (rest.len(), rest.len());
            };
            let line_end = at + found;
            self.faults.lines += 1;
            if line_end == 0 || rest.get(line_end - 1) != Some(&b'\r') {
                self.faults.bare_lf = true;
            }
            at = line_end + 1;
            if !matches!(rest.get(at), Some(b' ' | b'\t')) {
                return (line_end, at);
            }
        }
    }

    /// Sets the end of the body from Content-Length and framing.
    fn delimit_body(&mut self, framing: Framing) {
        let available = self.bytes.len() - self.body_start as usize;
        let mut length = None;
        let mut bad = false;
        for value in self.all(HeaderId::ContentLength) {
            match (number(value), length) {
                (Some(new), None) => length = Some(new),
                (Some(new), Some(old)) if new == old => {}
                _ => bad = true,
            }
        }
        self.faults.bad_length = bad;
        let body = match length {
            Some(length) if length <= available as u64 => length as usize,
            Some(_) => {
                self.faults.truncated = true;
                available
            }
            None if framing == Framing::Stream && !self.faults.bad_length => 0,
            None => available,
        };
        let end = self.body_start as usize + body;
        self.bytes = self.bytes.get(..end).unwrap_or(self.bytes);
    }

    /// The message's bytes from the start line to the end of the body.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether this is a request.
    pub fn is_request(&self) -> bool {
        matches!(self.start, Start::Request { .. })
    }

    /// The method of a request; of a response the method in CSeq (`Other("")` if absent).
    pub fn method(&self) -> Method<'a> {
        match self.start {
            Start::Request { method, .. } => method,
            Start::Status { .. } => self.cseq().map_or(Method::Other(b""), |cseq| cseq.method),
        }
    }

    /// The Request-URI, unmodified; empty for responses.
    pub fn request_uri(&self) -> &'a [u8] {
        match self.start {
            Start::Request { uri, .. } => uri,
            Start::Status { .. } => b"",
        }
    }

    /// The status code; 0 for requests.
    pub fn status(&self) -> u16 {
        match self.start {
            Start::Request { .. } => 0,
            Start::Status { status, .. } => status,
        }
    }

    /// The reason phrase of a response, possibly empty; UTF-8 if the peer conforms to the RFC.
    pub fn reason(&self) -> &'a [u8] {
        match self.start {
            Start::Request { .. } => b"",
            Start::Status { reason, .. } => reason,
        }
    }

    /// The version, unmodified, for example `SIP/2.0`.
    pub fn version(&self) -> &'a [u8] {
        match self.start {
            Start::Request { version, .. } | Start::Status { version, .. } => version,
        }
    }

    /// The body; empty if there is none.
    pub fn body(&self) -> &'a [u8] {
        self.span(self.body_start as usize, self.bytes.len())
    }

    /// The start line with its line end.
    pub(super) fn raw_start_line(&self) -> &'a [u8] {
        self.span(0, self.headers_start as usize)
    }

    /// The blank line between headers and body (empty for a truncated message).
    pub(super) fn raw_separator(&self) -> &'a [u8] {
        self.span(self.headers_end as usize, self.body_start as usize)
    }

    /// All header fields, in order.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header<'a>> + '_ {
        self.fields.iter().map(|field| self.view(field))
    }

    /// The value of the first field with this identifier.
    pub fn header(&self, id: HeaderId) -> Option<&'a [u8]> {
        self.first_index(id)
            .and_then(|index| self.fields.get(index))
            .map(|field| self.value(field))
    }

    /// Whether there are several fields with this identifier.
    pub fn is_repeated(&self, id: HeaderId) -> bool {
        self.repeated >> id as u8 & 1 == 1
    }

    /// Whether there is a field with this identifier.
    pub fn has(&self, id: HeaderId) -> bool {
        self.first_index(id).is_some()
    }

    /// The values of all fields with this identifier, in order, one for each field.
    pub fn all(&self, id: HeaderId) -> impl Iterator<Item = &'a [u8]> + Clone + '_ {
        let from = self.first_index(id).unwrap_or(self.fields.len());
        self.fields
            .get(from..)
            .unwrap_or_default()
            .iter()
            .filter(move |field| field.id == id)
            .map(|field| self.value(field))
    }

    /// All values with this identifier, in order; fields of list headers are split at commas outside quotes and `<>`.
    /// Empty list elements are skipped.
    pub fn values(&self, id: HeaderId) -> impl Iterator<Item = &'a [u8]> + Clone + '_ {
        let list = id.is_list();
        self.all(id).flat_map(move |value| match list {
            true => Values::list(value),
            false => Values::whole(value),
        })
    }

    /// The value of the first field with this name, for names without an identifier. Compact forms are not recognised.
    pub fn header_named(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.fields
            .iter()
            .find(|field| self.name(field).eq_ignore_ascii_case(name))
            .map(|field| self.value(field))
    }

    /// Index of the first field with this identifier, in the order of [`Message::headers`].
    pub(super) fn first_field(&self, id: HeaderId) -> Option<usize> {
        self.first_index(id)
    }

    fn first_index(&self, id: HeaderId) -> Option<usize> {
        usize::from(self.first[id as usize]).checked_sub(1)
    }

    fn view(&self, field: &HeaderField) -> Header<'a> {
        Header {
            id: field.id,
            name: self.name(field),
            value: self.value(field),
            raw: self.span(field.start as usize, field.end as usize),
        }
    }

    fn name(&self, field: &HeaderField) -> &'a [u8] {
        let start = field.start as usize;
        self.span(start, start + usize::from(field.name_len))
    }

    fn value(&self, field: &HeaderField) -> &'a [u8] {
        self.span(field.value as usize, field.value_end as usize)
    }

    fn span(&self, start: usize, end: usize) -> &'a [u8] {
        self.bytes.get(start..end).unwrap_or_default()
    }
}

/// A number for the call of a message, computed from its Call-ID: equal for equal Call-IDs. 0 for a message without a
/// Call-ID in the long form that this crate writes. The hash is not keyed: it serves to group a batch by calls, not as
/// a table key.
pub fn call_number(bytes: &[u8]) -> u32 {
    const NAME: &[u8] = b"\r\nCall-ID:";
    let mut from = 0;
    // Few lines begin with the first letter of the name, so that searching for it finds the field quickly.
    while let Some(found) = first(b'C', bytes.get(from..).unwrap_or_default()) {
        let at = from + found;
        let line = at.checked_sub(2).and_then(|start| bytes.get(start..));
        match line.and_then(|line| line.strip_prefix(NAME)) {
            None => from = at + 1,
            Some(value) => {
                let end = first(b'\r', value).unwrap_or(value.len());
                let value = value.get(..end).unwrap_or_default().trim_ascii();
                let mix = |hash: u64, word: u64| {
                    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
                    (product >> 64) as u64 ^ product as u64
                };
                let (words, rest) = value.as_chunks::<8>();
                let hash = words
                    .iter()
                    .fold(value.len() as u64 ^ 0xcbf2_9ce4_8422_2325, |hash, word| {
                        mix(hash, u64::from_le_bytes(*word))
                    });
                let rest = rest
                    .iter()
                    .fold(0, |rest, byte| rest << 8 | u64::from(*byte));
                let hash = mix(hash, rest);
                return ((hash >> 32) as u32 ^ hash as u32) | 1;
            }
        }
    }
    0
}

/// The Request-URI of a request at the beginning of `bytes`, as read by [`Message::parse`], without parsing the rest.
pub fn request_uri(bytes: &[u8]) -> Option<&[u8]> {
    let skipped = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let bytes = bytes.get(skipped..)?;
    let line = bytes.get(..first(b'\n', bytes)?)?;
    match start_line(line, &mut MessageFaults::default())? {
        Start::Request { uri, .. } => Some(uri),
        Start::Status { .. } => None,
    }
}

/// The parts of a request line or status line; `None` for other lines.
fn start_line<'a>(line: &'a [u8], faults: &mut MessageFaults) -> Option<Start<'a>> {
    if line
        .get(..4)
        .is_some_and(|s| s.eq_ignore_ascii_case(b"SIP/"))
    {
        return status_line(line, faults);
    }
    let trimmed = line.trim_ascii_end();
    faults.loose_start_line |= trimmed.len() != line.len();
    let method_end = trimmed.iter().position(|byte| *byte == b' ')?;
    let version_at = memchr::memrchr(b' ', trimmed)? + 1;
    let version = trimmed.get(version_at..)?;
    let method = trimmed
        .get(..method_end)
        .filter(|method| !method.is_empty())?;
    if !version.get(..4)?.eq_ignore_ascii_case(b"SIP/") || version_at <= method_end + 1 {
        return None;
    }
    let uri = trimmed.get(method_end + 1..version_at - 1)?;
    let exact = uri.trim_ascii();
    faults.loose_start_line |= exact.len() != uri.len();
    Some(Start::Request {
        method: Method::from_bytes(method),
        uri: exact,
        version,
    })
}

fn status_line<'a>(line: &'a [u8], faults: &mut MessageFaults) -> Option<Start<'a>> {
    let version_end = line.iter().position(|byte| *byte == b' ')?;
    let version = line.get(..version_end)?;
    let rest = line.get(version_end + 1..)?;
    let digits = rest.get(..3)?;
    let status = number(digits)? as u16;
    let reason = match rest.get(3..)? {
        [b' ', reason @ ..] => reason,
        [] => {
            faults.loose_start_line = true;
            b""
        }
        _ => return None,
    };
    (100..=699).contains(&status).then_some(Start::Status {
        version,
        status,
        reason,
    })
}

/// Characters of `token` (RFC 3261 section 25.1).
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let letters = b"-.!%*_+`'~";
    let mut i = 0;
    while i < 256 {
        table[i] = (i as u8).is_ascii_alphanumeric();
        i += 1;
    }
    let mut i = 0;
    while i < letters.len() {
        table[letters[i] as usize] = true;
        i += 1;
    }
    table
};

/// Whether this byte is allowed in a token.
pub(super) fn is_token(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_uri_is_found_without_parsing_the_rest() {
        for text in [
            "INVITE sip:a@b SIP/2.0\r\n",
            "\r\n\r\nINVITE sip:a@b SIP/2.0\n",
            "INVITE  sip:a@b\t SIP/2.0 \r\nTo: x",
        ] {
            assert_eq!(request_uri(text.as_bytes()), Some(&b"sip:a@b"[..]));
        }
        for text in [
            "",
            "\r\n",
            "INVITE sip:a@b SIP/2.0",
            "SIP/2.0 200 OK\r\n",
            "INVITE\r\n",
        ] {
            assert_eq!(request_uri(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn call_number_depends_on_the_call_id() {
        let of = |text: &str| call_number(text.as_bytes());
        let one = of("BYE sip:a SIP/2.0\r\nCSeq: 1 BYE\r\nContact: c\r\nCall-ID: x1@h\r\n\r\n");
        assert_ne!(one, 0);
        assert_eq!(one, of("SIP/2.0 200 OK\r\nCall-ID:x1@h \r\nTo: C\r\n\r\n"));
        assert_ne!(one, of("SIP/2.0 200 OK\r\nCall-ID: x2@h\r\n\r\n"));
        // A compact name, no name, or one at the end of the bytes has no number: such a message keeps its position in
        // the batch.
        for faults in [
            "SIP/2.0 200 OK\r\ni: x1@h\r\n\r\n",
            "",
            "C",
            "\r\nCall-ID",
            "Call-ID: x",
        ] {
            assert_eq!(of(faults), 0, "{faults}");
        }
        assert_ne!(of("x\r\nCall-ID:"), 0);
    }
}
