//! The cookie in front of the dictionary; messages out of a stream.

use super::bencode::{BencodeError, Dictionary, Scanner};
use super::value::Value;
use core::fmt;

/// Octets of a cookie at most.
pub const MAX_COOKIE: usize = 255;
/// Octets of a message at most: what a datagram can carry.
pub const MAX_MESSAGE: usize = 65_535;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NgError {
    /// Without a cookie of 1 to [`MAX_COOKIE`] printable octets and the space behind it: nobody could be answered.
    NoCookie,
    /// More than [`MAX_MESSAGE`] octets.
    TooLarge,
    /// What follows the cookie is no dictionary in bencode.
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
pub struct Message<'a> {
    /// By it a reply is known, and a command that was sent again.
    pub cookie: &'a [u8],
    /// What is said.
    pub body: Dictionary<'a>,
}

impl<'a> Message<'a> {
    /// The cookie of bytes that may be no message: so that an error can be answered.
    pub fn cookie_of(bytes: &[u8]) -> Option<&[u8]> {
        let window = bytes
            .get(..bytes.len().min(MAX_COOKIE + 1))
            .unwrap_or_default();
        let end = window.iter().position(|&byte| byte == b' ')?;
        let cookie = window.get(..end)?;
        (!cookie.is_empty() && cookie.iter().all(u8::is_ascii_graphic)).then_some(cookie)
    }

    /// The message that `bytes` are.
    ///
    /// # Errors
    /// [`NgError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, NgError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(NgError::TooLarge);
        }
        let cookie = Message::cookie_of(bytes).ok_or(NgError::NoCookie)?;
        let body = bytes.get(cookie.len() + 1..).unwrap_or_default();
        let body = Dictionary::parse(body).map_err(NgError::Bencode)?;
        Ok(Message { cookie, body })
    }

    /// Appends a message.
    pub fn write(cookie: &[u8], body: &Value, out: &mut Vec<u8>) {
        out.extend_from_slice(cookie);
        out.push(b' ');
        body.write(out);
    }
}

/// Messages out of a stream, where one follows the other; line ends between them are passed over.
#[derive(Debug, Default)]
pub struct StreamFramer {
    buffer: Vec<u8>,
    /// Where the message at present begins.
    start: usize,
    /// Behind its cookie.
    body: Option<usize>,
    scanner: Scanner,
}

impl StreamFramer {
    /// Takes in received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.body = self.body.map(|at| at - self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Octets that wait.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The next whole message, still to be parsed; `None` until more has come.
    ///
    /// # Errors
    /// The stream holds none, and can no longer be followed.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, NgError> {
        while self.body.is_none()
            && let Some(b'\r' | b'\n') = self.buffer.get(self.start)
        {
            self.start += 1;
        }
        let pending = self.buffer.get(self.start..).unwrap_or_default();
        let body = match self.body {
            Some(body) => body,
            None => match Message::cookie_of(pending) {
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
