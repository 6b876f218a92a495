//! The opening handshake of the client (RFC 6455 section 4.1).

use super::server_handshake::{MAX_LINES, accept_value, list_has, trim};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;

/// Maximum size of a response, bytes.
pub const MAX_RESPONSE: usize = 8 << 10;
/// Maximum length of peer text in error messages, characters.
const MAX_QUOTED_CHARS: usize = 60;
/// Beginning of a response.
const VERSION: &[u8] = b"HTTP/1.1 ";

/// A request to open a WebSocket, for which a response is pending.
#[derive(Clone, Debug)]
pub struct ClientHandshake {
    key: String,
    protocol: &'static str,
}

/// The result of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeResponse {
    /// The response is incomplete.
    Partial,
    /// The handshake failed for this reason; the connection has to be closed.
    Refused(String),
    /// The WebSocket is open; the response has this many bytes.
    Open(usize),
}

impl ClientHandshake {
    /// A request for a subprotocol. `nonce`: 16 random bytes, different for each connection.
    pub fn new(nonce: [u8; 16], protocol: &'static str) -> ClientHandshake {
        ClientHandshake {
            key: STANDARD.encode(nonce),
            protocol,
        }
    }

    /// Appends the request for `path` (with its slash) at `host`, in URI form, with the port unless it is the default
    /// one.
    pub fn write(&self, path: &str, host: impl fmt::Display, out: &mut Vec<u8>) {
        let (key, protocol) = (&self.key, self.protocol);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        out.extend_from_slice(request.as_bytes());
    }

    /// Parses the received part of the response.
    pub fn parse_response(&self, bytes: &[u8]) -> HandshakeResponse {
        let begins = bytes.len().min(VERSION.len());
        if !bytes.starts_with(VERSION.get(..begins).unwrap_or_default()) {
            return refused("the peer does not respond in HTTP/1.1");
        }
        let within = bytes.get(..MAX_RESPONSE + 4).unwrap_or(bytes);
        let Some(end) = memchr::memmem::find(within, b"\r\n\r\n") else {
            return match bytes.len() >= MAX_RESPONSE + 4 {
                true => refused("the response is too large"),
                false => HandshakeResponse::Partial,
            };
        };
        match self.validate(bytes.get(..end).unwrap_or_default()) {
            Ok(()) => HandshakeResponse::Open(end + 4),
            Err(reason) => HandshakeResponse::Refused(reason),
        }
    }

    /// Validates a complete response.
    fn validate(&self, head: &[u8]) -> Result<(), String> {
        let mut lines = head.split(|byte| *byte == b'\n');
        let status = lines.next().unwrap_or_default();
        let status = trim(status.get(VERSION.len()..).unwrap_or_default());
        if status.get(..3) != Some(b"101") || status.get(3).is_some_and(|byte| *byte != b' ') {
            return Err(format!("the peer responded {}", quoted(status)));
        }
        let (mut upgrade, mut connection) = (false, false);
        let (mut accept, mut protocol) = (None, None);
        for (number, line) in lines.enumerate() {
            if number >= MAX_LINES {
                return Err("the response has too many headers".to_owned());
            }
            let colon = memchr::memchr(b':', line).ok_or("a header without a colon")?;
            let (name, value) = line.split_at_checked(colon).unwrap_or_default();
            let value = trim(value.get(1..).unwrap_or_default());
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            let twice = match () {
                () if is("upgrade") => {
                    upgrade |= value.eq_ignore_ascii_case(b"websocket");
                    false
                }
                () if is("connection") => {
                    connection |= list_has(value, b"upgrade");
                    false
                }
                () if is("sec-websocket-accept") => accept.replace(value).is_some(),
                () if is("sec-websocket-protocol") => protocol.replace(value).is_some(),
                () if is("sec-websocket-extensions") && !value.is_empty() => {
                    return Err(format!(
                        "the peer selected an extension that was not offered: {}",
                        quoted(value)
                    ));
                }
                () => false,
            };
            if twice {
                return Err("a header that is allowed once occurs twice".to_owned());
            }
        }
        if !upgrade || !connection {
            return Err("the response is no upgrade to WebSocket".to_owned());
        }
        if accept != Some(accept_value(self.key.as_bytes()).as_bytes()) {
            return Err("Sec-WebSocket-Accept does not match the key".to_owned());
        }
        match protocol {
            Some(chosen) if chosen == self.protocol.as_bytes() => Ok(()),
            Some(chosen) => Err(format!(
                "the peer selected the subprotocol {}, not {}",
                quoted(chosen),
                self.protocol
            )),
            None => Err(format!(
                "the peer selected no subprotocol, not {}",
                self.protocol
            )),
        }
    }
}

fn refused(reason: &str) -> HandshakeResponse {
    HandshakeResponse::Refused(reason.to_owned())
}

/// Text of the peer, truncated and escaped for an error message.
fn quoted(words: &[u8]) -> String {
    let words = words.escape_ascii().to_string();
    words.chars().take(MAX_QUOTED_CHARS).collect()
}
