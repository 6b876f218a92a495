//! The opening handshake, the side that asks (RFC 6455 section 4.1).

use super::opening::{MAX_LINES, list_has, proof, trim};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;

/// An answer beyond this is refused, bytes.
pub const MAX_ANSWER: usize = 8 << 10;
/// So much of what a server says is repeated in our words, characters.
const QUOTED: usize = 60;
/// How an answer begins.
const VERSION: &[u8] = b"HTTP/1.1 ";

/// A request to open a WebSocket, and the answer that it waits for.
#[derive(Clone, Debug)]
pub struct Asking {
    key: String,
    protocol: &'static str,
}

/// What came of an answer so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is not whole.
    Partial,
    /// The WebSocket does not come about, for this reason. Close the connection.
    Refused(String),
    /// The WebSocket is open; so many bytes were used.
    Open(usize),
}

impl Asking {
    /// A request for a subprotocol. `nonce`: 16 bytes by chance, other ones for each connection.
    pub fn new(nonce: [u8; 16], protocol: &'static str) -> Asking {
        Asking {
            key: STANDARD.encode(nonce),
            protocol,
        }
    }

    /// Appends the request: for `path` (with its slash) at `host`, as a URI has it, with the port where it is not the usual one.
    pub fn write(&self, path: &str, host: impl fmt::Display, out: &mut Vec<u8>) {
        let (key, protocol) = (&self.key, self.protocol);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        out.extend_from_slice(request.as_bytes());
    }

    /// Reads what came so far of the answer.
    pub fn answer(&self, bytes: &[u8]) -> Answer {
        let begins = bytes.len().min(VERSION.len());
        if !bytes.starts_with(VERSION.get(..begins).unwrap_or_default()) {
            return refused("the peer does not answer in HTTP/1.1");
        }
        let within = bytes.get(..MAX_ANSWER + 4).unwrap_or(bytes);
        let Some(end) = memchr::memmem::find(within, b"\r\n\r\n") else {
            return match bytes.len() >= MAX_ANSWER + 4 {
                true => refused("the answer is too large"),
                false => Answer::Partial,
            };
        };
        match self.judge(bytes.get(..end).unwrap_or_default()) {
            Ok(()) => Answer::Open(end + 4),
            Err(why) => Answer::Refused(why),
        }
    }

    /// What can be said against a whole answer.
    fn judge(&self, head: &[u8]) -> Result<(), String> {
        let mut lines = head.split(|byte| *byte == b'\n');
        let status = lines.next().unwrap_or_default();
        let status = trim(status.get(VERSION.len()..).unwrap_or_default());
        if status.get(..3) != Some(b"101") || status.get(3).is_some_and(|byte| *byte != b' ') {
            return Err(format!("the peer answers {}", quoted(status)));
        }
        let (mut upgrade, mut connection) = (false, false);
        let (mut accept, mut protocol) = (None, None);
        for (number, line) in lines.enumerate() {
            if number >= MAX_LINES {
                return Err("the answer has too many headers".to_owned());
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
                        "the peer has an extension that was not asked for: {}",
                        quoted(value)
                    ));
                }
                () => false,
            };
            if twice {
                return Err("a header that may stand once stands twice".to_owned());
            }
        }
        if !upgrade || !connection {
            return Err("the answer is no upgrade to WebSocket".to_owned());
        }
        if accept != Some(proof(self.key.as_bytes()).as_bytes()) {
            return Err("Sec-WebSocket-Accept does not fit our key".to_owned());
        }
        match protocol {
            Some(chosen) if chosen == self.protocol.as_bytes() => Ok(()),
            Some(chosen) => Err(format!(
                "the peer chose the subprotocol {}, not {}",
                quoted(chosen),
                self.protocol
            )),
            None => Err(format!(
                "the peer chose no subprotocol, not {}",
                self.protocol
            )),
        }
    }
}

fn refused(why: &str) -> Answer {
    Answer::Refused(why.to_owned())
}

/// A peer's words, as far as they belong into a line of ours.
fn quoted(words: &[u8]) -> String {
    let words = words.escape_ascii().to_string();
    words.chars().take(QUOTED).collect()
}
