//! Frames and authentication between test lab and agent.

use super::channel::{BoxedChannel, is_later};
use crate::error::LabError;
use aws_lc_rs::hmac;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// Largest frame, bytes.
pub(super) const MAX_FRAME: usize = 64 * 1024;
/// Bytes of a challenge and of a proof.
const CHALLENGE: usize = 32;
/// Begin of the greeting; the digit is the version of the protocol.
const GREETING: &[u8; 16] = b"hornwork agent 1";
/// Bounds of a token, bytes.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=256;

/// The token that both sides know.
#[derive(Clone)]
pub struct Token(hmac::Key);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A token of 16 to 256 bytes.
    ///
    /// # Errors
    /// If it is shorter or longer.
    pub fn new(text: &str) -> Result<Token, String> {
        match TOKEN_BYTES.contains(&text.len()) {
            true => Ok(Token(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))),
            false => Err(format!(
                "a token has {} to {} characters",
                TOKEN_BYTES.start(),
                TOKEN_BYTES.end()
            )),
        }
    }
}

/// Reads the token from the first line of a file that only its owner can read.
///
/// # Errors
/// If it cannot be read, is readable by others, or is too short.
pub fn read_token(path: &Path) -> Result<Token, LabError> {
    let bad = |why: String| LabError::bad_input(format!("{}: {why}", path.display()));
    let meta = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(bad(
            "the token can be read by others\n  remedy: chmod 600".to_owned()
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    Token::new(text.lines().next().unwrap_or_default().trim()).map_err(bad)
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Lab,
    Agent,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Side::Lab => b"lab",
            Side::Agent => b"agent",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Lab => Side::Agent,
            Side::Agent => Side::Lab,
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum WireError {
    /// The other side does not know the token, or a message was changed.
    Unauthenticated,
    /// The other side is no agent, or one of another version.
    NoAgent,
    /// A frame above [`MAX_FRAME`].
    Oversized(usize),
    /// Nothing came within the time.
    Silent,
    /// The other side closed the connection.
    Closed,
    /// This program was told to stop.
    Stopped,
    /// TLS failed: the certificate is not valid, or the other side does not use TLS.
    Tls(String),
    /// Another error of the connection.
    Io(io::Error),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Unauthenticated => f.write_str("the token is wrong"),
            WireError::NoAgent => f.write_str("it is no agent of this version"),
            WireError::Oversized(bytes) => {
                write!(
                    f,
                    "a message of {bytes} bytes; at most {MAX_FRAME} are accepted"
                )
            }
            WireError::Silent => f.write_str("no message in time"),
            WireError::Closed => f.write_str("it closed the connection"),
            WireError::Stopped => f.write_str("stopped"),
            WireError::Tls(error) => write!(f, "TLS: {error}"),
            WireError::Io(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> WireError {
        match error.kind() {
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => WireError::Closed,
            _ => WireError::Io(error),
        }
    }
}

/// An authenticated connection.
pub(super) struct Wire {
    stream: BoxedChannel,
    key: hmac::Key,
    side: Side,
    sent: u64,
    received: u64,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("side", &self.side).finish()
    }
}

/// Fills `bytes`; looks for a stop meanwhile.
fn read_exact(
    stream: &mut BoxedChannel,
    bytes: &mut [u8],
    limit: Duration,
    ends_on_signal: bool,
) -> Result<(), WireError> {
    let clock = net::Clock::new();
    let start = clock.now();
    let mut filled = 0;
    while filled < bytes.len() {
        if ends_on_signal && net::stops() > 0 {
            return Err(WireError::Stopped);
        }
        if clock.now().since(start) > limit {
            return Err(WireError::Silent);
        }
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(WireError::Closed),
            Ok(count) => filled += count,
            Err(error) if is_later(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Wire {
    /// Authenticates both sides of a new connection.
    ///
    /// # Errors
    /// If the other side does not know the token, or does not answer in time.
    pub fn open(
        mut stream: BoxedChannel,
        side: Side,
        token: &Token,
        limit: Duration,
    ) -> Result<Wire, WireError> {
        let mut own = [0; CHALLENGE];
        aws_lc_rs::rand::fill(&mut own)
            .map_err(|_| WireError::Io(io::Error::other("no random bytes")))?;
        let mut hello = GREETING.to_vec();
        hello.extend_from_slice(&own);
        stream.write_all(&hello)?;
        let mut theirs = [0; GREETING.len() + CHALLENGE];
        read_exact(&mut stream, &mut theirs, limit, true)?;
        if !theirs.starts_with(GREETING) {
            return Err(WireError::NoAgent);
        }
        let theirs = &theirs[GREETING.len()..];
        let (lab, agent) = match side {
            Side::Lab => (&own[..], theirs),
            Side::Agent => (theirs, &own[..]),
        };
        let text = |label: &[u8]| [label, lab, agent].concat();
        let mac = |side: Side| hmac::sign(&token.0, &text(side.label()));
        let check = |stream: &mut BoxedChannel| {
            let mut tag = [0; CHALLENGE];
            read_exact(stream, &mut tag, limit, true)?;
            // In constant time.
            hmac::verify(&token.0, &text(side.other().label()), &tag)
                .map_err(|_| WireError::Unauthenticated)
        };
        // The lab proves first, so that an agent proves nothing to an unknown source.
        match side {
            Side::Lab => {
                stream.write_all(mac(side).as_ref())?;
                check(&mut stream).map_err(|error| match error {
                    // An agent closes the connection without a word.
                    WireError::Closed => WireError::Unauthenticated,
                    other => other,
                })?;
            }
            Side::Agent => {
                check(&mut stream)?;
                stream.write_all(mac(side).as_ref())?;
            }
        }
        let key = hmac::sign(&token.0, &text(b"session"));
        Ok(Wire {
            stream,
            key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()),
            side,
            sent: 0,
            received: 0,
        })
    }

    fn tag(&self, side: Side, number: u64, body: &[u8]) -> Vec<u8> {
        [side.label(), &number.to_be_bytes(), body].concat()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the connection is broken, or the message is too long.
    pub fn send(&mut self, body: &[u8]) -> Result<(), WireError> {
        let length = body.len() + CHALLENGE;
        if length > MAX_FRAME {
            return Err(WireError::Oversized(length));
        }
        let tag = hmac::sign(&self.key, &self.tag(self.side, self.sent, body));
        self.sent += 1;
        let mut frame = (length as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(tag.as_ref());
        frame.extend_from_slice(body);
        Ok(self.stream.write_all(&frame)?)
    }

    /// Receives a message; a stop of this program ends the wait if `ends_on_signal`.
    ///
    /// # Errors
    /// If none comes in time, or it is too long or not authentic.
    pub fn receive(&mut self, limit: Duration, ends_on_signal: bool) -> Result<Vec<u8>, WireError> {
        let mut length = [0; 4];
        read_exact(&mut self.stream, &mut length, limit, ends_on_signal)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_FRAME {
            return Err(WireError::Oversized(length));
        }
        let mut frame = vec![0; length];
        read_exact(&mut self.stream, &mut frame, limit, ends_on_signal)?;
        let Some((tag, body)) = frame.split_at_checked(CHALLENGE) else {
            return Err(WireError::Unauthenticated);
        };
        let text = self.tag(self.side.other(), self.received, body);
        hmac::verify(&self.key, &text, tag).map_err(|_| WireError::Unauthenticated)?;
        self.received += 1;
        Ok(body.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::plain;
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const LIMIT: Duration = Duration::from_secs(5);

    fn pair(agent: &str, lab: &str) -> (Result<Wire, WireError>, Result<Wire, WireError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let token = Token::new(agent).unwrap();
        let agent =
            std::thread::spawn(move || Wire::open(plain(far, LIMIT)?, Side::Agent, &token, LIMIT));
        let near = plain(near, LIMIT).unwrap();
        let lab = Wire::open(near, Side::Lab, &Token::new(lab).unwrap(), LIMIT);
        (agent.join().unwrap(), lab)
    }

    #[test]
    fn messages_are_authentic_in_order_and_bounded() {
        let secret = "a secret of sixteen bytes";
        let (agent, lab) = pair(secret, secret);
        let (mut agent, mut lab) = (agent.unwrap(), lab.unwrap());
        lab.send(b"one").unwrap();
        assert_eq!(agent.receive(LIMIT, false).unwrap(), b"one");
        agent.send(b"two").unwrap();
        assert_eq!(lab.receive(LIMIT, false).unwrap(), b"two");
        assert!(matches!(
            lab.send(&[0; MAX_FRAME]),
            Err(WireError::Oversized(_))
        ));
        // A frame that says to be long is not waited for.
        lab.stream.write_all(&[0xff; 4]).unwrap();
        assert!(matches!(
            agent.receive(LIMIT, false),
            Err(WireError::Oversized(0xffff_ffff))
        ));
        // A replayed frame has an old number.
        agent.send(b"three").unwrap();
        agent.sent -= 1;
        agent.send(b"three").unwrap();
        assert_eq!(lab.receive(LIMIT, false).unwrap(), b"three");
        assert!(matches!(
            lab.receive(LIMIT, false),
            Err(WireError::Unauthenticated)
        ));
    }

    #[test]
    fn wrong_token_is_refused_by_both() {
        let (agent, lab) = pair("a secret of sixteen bytes", "another one of sixteen b");
        assert!(matches!(agent, Err(WireError::Unauthenticated)));
        assert!(matches!(lab, Err(WireError::Unauthenticated)));
        assert!(Token::new("short").is_err());
    }
}
