//! The session description in a body: the body itself, or one part of a multipart body (RFC 2046 section 5.1, RFC
//! 5621).

use super::params::unquote;
use super::typed::MediaType;
use core::ops::Range;

/// Longest boundary (RFC 2046 section 5.1.1).
const MAX_BOUNDARY: usize = 70;
/// Maximum nesting depth of multipart bodies.
const MAX_DEPTH: u8 = 3;

/// Location of the session description in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Session {
    /// There is none.
    None,
    /// The body is one.
    Whole,
    /// It is a part of the body.
    Part(SessionPart),
    /// It is a part with a Content-Transfer-Encoding: it cannot be modified in place.
    Encoded,
}

/// A session description within a multipart body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPart {
    /// Its byte range in the body.
    range: Range<usize>,
    /// The digits of the part's own Content-Length, if present.
    length: Option<Range<usize>>,
}

impl Session {
    /// Searches for the session description in a body with this Content-Type. A body without a type is examined for the
    /// form of SDP.
    pub fn of(content_type: Option<&[u8]>, body: &[u8]) -> Session {
        if body.is_empty() {
            return Session::None;
        }
        let Some(value) = content_type else {
            return match body.starts_with(b"v=0") {
                true => Session::Whole,
                false => Session::None,
            };
        };
        match MediaType::parse(value) {
            Some(kind) if kind.is("application", "sdp") => Session::Whole,
            Some(kind) if kind.kind.eq_ignore_ascii_case(b"multipart") => {
                within(&kind, body, 0, MAX_DEPTH)
            }
            _ => Session::None,
        }
    }

    /// The description.
    pub fn bytes<'b>(&self, body: &'b [u8]) -> Option<&'b [u8]> {
        match self {
            Session::Whole => Some(body),
            Session::Part(part) => body.get(part.range.clone()),
            Session::None | Session::Encoded => None,
        }
    }

    /// Appends `body` with another session description; all other bytes stay the same.
    pub fn replace(&self, body: &[u8], write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
        let Session::Part(part) = self else {
            return write(out);
        };
        let before = body.get(..part.range.start).unwrap_or_default();
        let start = out.len();
        out.extend_from_slice(before);
        let from = out.len();
        write(out);
        let length = (out.len() - from).to_string();
        out.extend_from_slice(body.get(part.range.end..).unwrap_or_default());
        if let Some(digits) = &part.length {
            out.splice(start + digits.start..start + digits.end, length.bytes());
        }
    }
}

/// Searches the parts of `body`, which begins at `offset` of the whole.
fn within(kind: &MediaType<'_>, body: &[u8], offset: usize, depth: u8) -> Session {
    let Some(value) = kind.params.get(b"boundary") else {
        return Session::None;
    };
    let boundary = unquote(value);
    if boundary.is_empty() || boundary.len() > MAX_BOUNDARY || depth == 0 {
        return Session::None;
    }
    let mut found = Session::None;
    let mut part: Option<usize> = None;
    for delimiter in Delimiters::new(body, &boundary) {
        if let Some(start) = part {
            let end = delimiter.start.max(start);
            found = examine(
                body.get(start..end).unwrap_or_default(),
                offset + start,
                depth,
            );
            if found != Session::None {
                return found;
            }
        }
        if delimiter.last {
            return found;
        }
        part = Some(delimiter.end);
    }
    found
}

/// Examines one part, headers included.
fn examine(part: &[u8], offset: usize, depth: u8) -> Session {
    let Some((headers, content)) = split(part) else {
        return Session::None;
    };
    let mut length = None;
    let (mut kind, mut encoded, mut session) = (None, false, true);
    let mut at = 0;
    for line in headers.split_inclusive(|byte| *byte == b'\n') {
        let from = at;
        at += line.len();
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = line.split_at(colon);
        let (name, rest) = (name.trim_ascii(), value.get(1..).unwrap_or_default());
        let value = rest.trim_ascii();
        if name.eq_ignore_ascii_case(b"Content-Type") || name.eq_ignore_ascii_case(b"c") {
            kind = MediaType::parse(value);
        } else if name.eq_ignore_ascii_case(b"Content-Transfer-Encoding") {
            let plain: [&[u8]; 3] = [b"binary", b"8bit", b"7bit"];
            encoded = !plain.iter().any(|plain| value.eq_ignore_ascii_case(plain));
        } else if name.eq_ignore_ascii_case(b"Content-Disposition") {
            let word = value.split(|byte| *byte == b';').next().unwrap_or_default();
            session = word.trim_ascii().eq_ignore_ascii_case(b"session");
        } else if name.eq_ignore_ascii_case(b"Content-Length") || name.eq_ignore_ascii_case(b"l") {
            let lead = rest.len() - rest.trim_ascii_start().len();
            let start = offset + from + colon + 1 + lead;
            length = Some(start..start + value.len());
        }
    }
    let start = offset + content;
    let body = part.get(content..).unwrap_or_default();
    match kind {
        Some(kind) if kind.is("application", "sdp") && session && encoded => Session::Encoded,
        Some(kind) if kind.is("application", "sdp") && session && !body.is_empty() => {
            Session::Part(SessionPart {
                range: start..start + body.len(),
                length,
            })
        }
        Some(kind) if kind.kind.eq_ignore_ascii_case(b"multipart") && length.is_none() => {
            within(&kind, body, start, depth - 1)
        }
        _ => Session::None,
    }
}

/// The headers of a part, and the offset of its content.
fn split(part: &[u8]) -> Option<(&[u8], usize)> {
    if part.starts_with(b"\r\n") {
        return Some((b"", 2));
    }
    let mut at = 0;
    for line in part.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        if line == b"\r\n" || line == b"\n" {
            return Some((part.get(..at - line.len())?, at));
        }
    }
    None
}

/// A delimiter line between parts, with the line break before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delimiter {
    start: usize,
    end: usize,
    last: bool,
}

/// Iterator over the delimiter lines of a multipart body.
struct Delimiters<'b> {
    body: &'b [u8],
    boundary: &'b [u8],
    at: usize,
}

impl<'b> Delimiters<'b> {
    fn new(body: &'b [u8], boundary: &'b [u8]) -> Delimiters<'b> {
        Delimiters {
            body,
            boundary,
            at: 0,
        }
    }
}

impl Iterator for Delimiters<'_> {
    type Item = Delimiter;

    fn next(&mut self) -> Option<Delimiter> {
        while self.at < self.body.len() {
            let from = self.at;
            let rest = self.body.get(from..)?;
            let length = rest
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(rest.len(), |at| at + 1);
            self.at += length;
            let line = rest.get(..length)?;
            let Some(tail) = line
                .strip_prefix(b"--")
                .and_then(|line| line.strip_prefix(self.boundary))
            else {
                continue;
            };
            let last = tail.starts_with(b"--");
            if !last && !tail.trim_ascii().is_empty() {
                continue;
            }
            let before = self.body.get(..from).unwrap_or_default();
            let gap = match (before.ends_with(b"\r\n"), before.ends_with(b"\n")) {
                (true, _) => 2,
                (_, true) => 1,
                _ => 0,
            };
            return Some(Delimiter {
                start: from - gap,
                end: self.at,
                last,
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "preamble\r\n--b1\r\nContent-Type: application/pidf+xml\r\n\r\n<x>--b1 is here</x>\r\n--b1\r\n\
        content-type:application/sdp;x=y\r\nContent-Length:  5 \r\nContent-Disposition: session;handling=required\r\n\r\nv=0\r\nx\r\n\
        --b1 \r\nContent-Type: application/ISUP;base=x\r\nContent-Transfer-Encoding: binary\r\n\r\n\x00\x01\r\n\r\n--b1--\r\nend";

    fn changed(kind: &str, body: &[u8]) -> Option<String> {
        let session = Session::of(Some(kind.as_bytes()), body);
        session.bytes(body)?;
        let mut out = Vec::from(&b"kept"[..]);
        session.replace(
            body,
            |out| out.extend_from_slice(b"v=0\r\nlonger"),
            &mut out,
        );
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn only_the_session_description_is_replaced() {
        for kind in [
            "multipart/mixed;boundary=b1",
            "Multipart/Related; type=x; boundary=\"b1\"",
        ] {
            let session = Session::of(Some(kind.as_bytes()), MIXED.as_bytes());
            assert_eq!(session.bytes(MIXED.as_bytes()), Some(&b"v=0\r\nx"[..]));
            let expected = format!(
                "kept{}",
                MIXED
                    .replace("v=0\r\nx", "v=0\r\nlonger")
                    .replace("Content-Length:  5 ", "Content-Length:  11 ")
            );
            assert_eq!(changed(kind, MIXED.as_bytes()), Some(expected));
        }
    }

    #[test]
    fn plain_nested_and_absent_descriptions_are_located() {
        assert_eq!(
            Session::of(Some(b"application/sdp"), b"v=0"),
            Session::Whole
        );
        assert_eq!(Session::of(None, b"v=0\r\n"), Session::Whole);
        assert_eq!(Session::of(None, b"x"), Session::None);
        assert_eq!(Session::of(Some(b"application/sdp"), b""), Session::None);
        assert_eq!(
            changed("application/sdp", b"v=0").unwrap(),
            "keptv=0\r\nlonger"
        );
        let nested = format!(
            "--o\r\nContent-Type: multipart/alternative;boundary=b1\r\n\r\n{MIXED}\r\n--o--\r\n"
        );
        let expected = format!(
            "kept{}",
            nested
                .replace("v=0\r\nx", "v=0\r\nlonger")
                .replace("Content-Length:  5 ", "Content-Length:  11 ")
        );
        assert_eq!(
            changed("multipart/mixed;boundary=o", nested.as_bytes()),
            Some(expected)
        );
        for (kind, body) in [
            ("multipart/mixed", MIXED),
            ("multipart/mixed;boundary=b2", MIXED),
            ("multipart/mixed;boundary=\"\"", MIXED),
            ("text/plain", "v=0"),
            (
                "multipart/mixed;boundary=b",
                "--b\r\nContent-Type: application/sdp\r\n",
            ),
            ("multipart/mixed;boundary=b", "--b\r\n\r\nv=0\r\n--b--"),
            // A separate early media session (RFC 3959), not the session.
            (
                "multipart/mixed;boundary=b",
                "--b\r\nContent-Type: application/sdp\r\nContent-Disposition: early-session\r\n\r\nv=0\r\n--b--",
            ),
        ] {
            assert_eq!(
                Session::of(Some(kind.as_bytes()), body.as_bytes()),
                Session::None,
                "{kind} {body}"
            );
        }
        let encoded = MIXED.replace("Content-Length:  5 ", "Content-Transfer-Encoding: base64");
        assert_eq!(
            Session::of(Some(b"multipart/mixed;boundary=b1"), encoded.as_bytes()),
            Session::Encoded
        );
    }

    #[test]
    fn nesting_depth_is_limited() {
        let mut body = String::from("x");
        for level in 0..50 {
            body = format!(
                "--b{level}\r\nContent-Type: multipart/mixed;boundary=b{}\r\n\r\n{body}\r\n--b{level}--",
                level - 1
            );
        }
        assert_eq!(
            Session::of(Some(b"multipart/mixed;boundary=b49"), body.as_bytes()),
            Session::None
        );
    }
}
