//! The cookie before the dictionary, and the framing of messages in a stream.

use super::bencode::{BencodeError, Dictionary, Scanner};
use super::value::Value;
use core::fmt;

/// Maximum number of octets of a cookie.
pub const MAX_COOKIE: usize = 255;
/// Maximum number of octets of a message, those of a datagram.
pub const MAX_MESSAGE: usize = 65_535;

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NgError {
    /// There is no cookie of 1 to [`MAX_COOKIE`] printable octets with a space after it; a reply is impossible.
    NoCookie,
    /// More than [`MAX_MESSAGE`] octets.
    TooLarge,
    /// The cookie is followed by no dictionary in bencode.
    Bencode(BencodeError),
}

impl fmt::Display for NgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NgError::NoCookie => f.write_str("no cookie"),
            NgError::TooLarge => f.write_str("the message is too large"),
            NgError::Bencode(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NgError {}

/// A command or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgMessage<'a> {
    /// The cookie, which identifies the reply to a command, and retransmissions of a command.
    pub cookie: &'a [u8],
    /// The contents.
    pub body: Dictionary<'a>,
}

impl<'a> NgMessage<'a> {
    /// The cookie of a possibly malformed message, for an error reply.
    pub fn cookie_of(bytes: &[u8]) -> Option<&[u8]> {
        let window = bytes
            .get(..bytes.len().min(MAX_COOKIE + 1))
            .unwrap_or_default();
        let end = window.iter().position(|&byte| byte == b' ')?;
        let cookie = window.get(..end)?;
        (!cookie.is_empty() && cookie.iter().all(u8::is_ascii_graphic)).then_some(cookie)
    }

    /// Parses exactly one message.
    ///
    /// # Errors
    /// [`NgError`].
    pub fn parse(bytes: &'a [u8]) -> Result<NgMessage<'a>, NgError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(NgError::TooLarge);
        }
        let cookie = NgMessage::cookie_of(bytes).ok_or(NgError::NoCookie)?;
        let body = bytes.get(cookie.len() + 1..).unwrap_or_default();
        let body = Dictionary::parse(body).map_err(NgError::Bencode)?;
        Ok(NgMessage { cookie, body })
    }

    /// Appends a message.
    pub fn write(cookie: &[u8], body: &Value, out: &mut Vec<u8>) {
        out.extend_from_slice(cookie);
        out.push(b' ');
        body.write(out);
    }
}

/// Splits a stream into messages; line ends between them are skipped.
#[derive(Debug, Default)]
pub struct NgStreamFramer {
    buffer: Vec<u8>,
    /// Offset of the current message.
    start: usize,
    /// Offset after its cookie.
    body: Option<usize>,
    scanner: Scanner,
}

impl NgStreamFramer {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.body = self.body.map(|at| at - self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Number of buffered octets.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The next complete message, unparsed; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The stream contains no message, and framing is lost.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, NgError> {
        while self.body.is_none()
            && let Some(b'\r' | b'\n') = self.buffer.get(self.start)
        {
            self.start += 1;
        }
        let pending = self.buffer.get(self.start..).unwrap_or_default();
        let body = match self.body {
            Some(body) => body,
            None => match NgMessage::cookie_of(pending) {
                Some(cookie) => {
                    self.scanner = Scanner::new();
                    *self.body.insert(self.start + cookie.len() + 1)
                }
                None => {
                    let may_come =
                        pending.len() <= MAX_COOKIE && pending.iter().all(u8::is_ascii_graphic);
                    return match may_come {
                        true => Ok(None),
                        false => Err(NgError::NoCookie),
                    };
                }
            },
        };
        let whole = self
            .scanner
            .scan(self.buffer.get(body..).unwrap_or_default())
            .map_err(NgError::Bencode)?;
        let Some(length) = whole else {
            return match self.waiting() > MAX_MESSAGE {
                true => Err(NgError::TooLarge),
                false => Ok(None),
            };
        };
        let begin = self.start;
        self.start = body + length;
        self.body = None;
        Ok(self.buffer.get(begin..self.start))
    }
}
