//! The opening handshake of the server (RFC 6455 section 4.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use std::fmt::Write as _;

/// Maximum size of a request, bytes.
pub const MAX_REQUEST: usize = 8 << 10;
/// Maximum number of header lines of a request or a response.
pub(super) const MAX_LINES: usize = 100;
/// Appended to the key before hashing (RFC 6455 section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The subprotocol of SIP (RFC 7118 section 4.1).
pub const SIP_PROTOCOL: &str = "sip";

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// The request is incomplete.
    Partial,
    /// The request is refused for this reason; the response is written. The connection has to be closed after it.
    Refused(&'static str),
    /// The WebSocket is open; the request has this many bytes, and the response is written.
    Open(usize),
}

/// The relevant headers, with the number of occurrences.
#[derive(Default)]
struct Request<'r> {
    host: Option<&'r [u8]>,
    upgrade: bool,
    connection: bool,
    key: Option<&'r [u8]>,
    version: Option<&'r [u8]>,
    /// Values of Sec-WebSocket-Protocol, unmodified.
    protocols: smallvec::SmallVec<[&'r [u8]; 1]>,
    origin: Option<&'r [u8]>,
    twice: bool,
}

/// Parses a request to open a WebSocket for a subprotocol and appends the response to `reply`. `origins`: accepted
/// values of Origin; if empty, any value or none. `hosts`: the same for Host, without regard to the port.
pub fn handshake(
    request: &[u8],
    protocol: &str,
    origins: &[String],
    hosts: &[String],
    reply: &mut Vec<u8>,
) -> Handshake {
    let mut refuse = |status: &str, more: &str, reason: &'static str| {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        reply.extend_from_slice(text.as_bytes());
        Handshake::Refused(reason)
    };
    let start = b"GET ";
    if !request.starts_with(start.get(..request.len().min(4)).unwrap_or_default()) {
        return refuse(
            "405 Method Not Allowed",
            "Allow: GET\r\n",
            "not a GET request",
        );
    }
    let Some(end) = memchr::memmem::find(request, b"\r\n\r\n") else {
        return match request.len() > MAX_REQUEST {
            true => refuse(
                "431 Request Header Fields Too Large",
                "",
                "the request is too large",
            ),
            false => Handshake::Partial,
        };
    };
    if end > MAX_REQUEST {
        return refuse(
            "431 Request Header Fields Too Large",
            "",
            "the request is too large",
        );
    }
    let head = request.get(..end).unwrap_or_default();
    let parsed = match parse(head) {
        Ok(parsed) => parsed,
        Err(reason) => return refuse("400 Bad Request", "", reason),
    };
    if parsed.twice {
        return refuse(
            "400 Bad Request",
            "",
            "a header that is allowed once occurs twice",
        );
    }
    let Some(host) = parsed.host.filter(|host| !host.is_empty()) else {
        return refuse("400 Bad Request", "", "no Host");
    };
    if !parsed.upgrade || !parsed.connection {
        let more = "Upgrade: websocket\r\n";
        return refuse("426 Upgrade Required", more, "no upgrade to WebSocket");
    }
    if parsed.version != Some(b"13") {
        let more = "Sec-WebSocket-Version: 13\r\n";
        return refuse("426 Upgrade Required", more, "not version 13 of WebSocket");
    }
    let Some(key) = parsed.key.filter(|key| is_key(key)) else {
        return refuse("400 Bad Request", "", "no valid Sec-WebSocket-Key");
    };
    if !parsed
        .protocols
        .iter()
        .any(|list| list_has(list, protocol.as_bytes()))
    {
        return refuse(
            "400 Bad Request",
            "",
            "the supported subprotocol is not among those offered",
        );
    }
    if !hosts.is_empty() && !hosts.iter().any(|known| same_host(host, known.as_bytes())) {
        return refuse("403 Forbidden", "", "a Host that is not served");
    }
    let origin_fits = parsed.origin.is_some_and(|origin| {
        origins
            .iter()
            .any(|known| known.as_bytes().eq_ignore_ascii_case(origin))
    });
    if !origins.is_empty() && !origin_fits {
        return refuse("403 Forbidden", "", "an Origin that is not allowed");
    }
    let accept_value = accept_value(key);
    reply.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ",
    );
    reply.extend_from_slice(accept_value.as_bytes());
    reply.extend_from_slice(b"\r\nSec-WebSocket-Protocol: ");
    reply.extend_from_slice(protocol.as_bytes());
    reply.extend_from_slice(b"\r\n\r\n");
    Handshake::Open(end + 4)
}

/// The value of Sec-WebSocket-Accept for a key.
pub(super) fn accept_value(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// Whether it is sixteen bytes in base64.
fn is_key(key: &[u8]) -> bool {
    key.len() == 24 && STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16)
}

fn same_host(host: &[u8], known: &[u8]) -> bool {
    let colon = host.iter().rposition(|byte| *byte == b':');
    let bare = match colon {
        Some(at)
            if host
                .get(at + 1..)
                .is_some_and(|port| port.iter().all(u8::is_ascii_digit)) =>
        {
            host.get(..at).unwrap_or(host)
        }
        _ => host,
    };
    bare.eq_ignore_ascii_case(known) || host.eq_ignore_ascii_case(known)
}

fn parse(head: &[u8]) -> Result<Request<'_>, &'static str> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = trim(lines.next().unwrap_or_default());
    let mut words = first.split(|byte| *byte == b' ');
    let (_, target, version) = (words.next(), words.next(), words.next());
    if target.is_none_or(<[u8]>::is_empty)
        || words.next().is_some()
        || !version.is_some_and(|version| version.starts_with(b"HTTP/1.") && version != b"HTTP/1.0")
    {
        return Err("not a request line of HTTP/1.1");
    }
    let mut request = Request::default();
    for (number, line) in lines.enumerate() {
        if number >= MAX_LINES {
            return Err("too many headers");
        }
        let colon = memchr::memchr(b':', line).ok_or("a header without a colon")?;
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = trim(value.get(1..).unwrap_or_default());
        request.take(name, value);
    }
    Ok(request)
}

impl<'r> Request<'r> {
    fn take(&mut self, name: &[u8], value: &'r [u8]) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let once = match () {
            () if is("host") => &mut self.host,
            () if is("sec-websocket-key") => &mut self.key,
            () if is("sec-websocket-version") => &mut self.version,
            () if is("origin") => &mut self.origin,
            () if is("upgrade") => {
                self.upgrade |= list_has(value, b"websocket");
                return;
            }
            () if is("connection") => {
                self.connection |= list_has(value, b"upgrade");
                return;
            }
            () if is("sec-websocket-protocol") => {
                self.protocols.push(value);
                return;
            }
            () => return,
        };
        self.twice |= once.replace(value).is_some();
    }
}

pub(super) fn list_has(list: &[u8], token: &[u8]) -> bool {
    list.split(|byte| *byte == b',')
        .any(|part| trim(part).eq_ignore_ascii_case(token))
}

pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}
