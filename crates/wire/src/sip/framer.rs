//! Framing of SIP messages in a byte stream (RFC 3261 section 18.3), with the keep-alives of RFC 5626 section 3.5.1.

use super::ids::HeaderId;
use super::list::trim;
use super::message::number;
use std::fmt;

/// Size limits of a [`StreamFramer`].
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    /// Maximum size of start line and headers together, bytes.
    pub headers: usize,
    /// Maximum size of a body, bytes.
    pub body: usize,
}

impl Default for FrameLimits {
    /// 64 KiB each.
    fn default() -> Self {
        FrameLimits {
            headers: 64 << 10,
            body: 64 << 10,
        }
    }
}

/// The reason why no further message can be found in a stream; the connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameError {
    /// Start line and headers beyond [`FrameLimits::headers`].
    HeadersTooLong,
    /// Content-Length beyond [`FrameLimits::body`].
    BodyTooLong,
    /// Content-Length is no number, or two differ.
    BadContentLength,
    /// The stream does not begin with SIP.
    NotSip,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameError::HeadersTooLong => "header section too long",
            FrameError::BodyTooLong => "body too long",
            FrameError::BadContentLength => "bad Content-Length in a stream",
            FrameError::NotSip => "not SIP",
        })
    }
}

impl std::error::Error for FrameError {}

/// One element of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFrame<'f> {
    /// One complete message, for [`super::Message::parse_framed`].
    Message(&'f [u8]),
    /// A double CRLF between messages: answer with [`StreamFramer::PONG`].
    Ping,
    /// A single CRLF between messages: the answer to a ping.
    Pong,
    /// A complete header section from which the end of the message cannot be determined. It may be answered (RFC 4475
    /// section
    /// 3.1.2.3); [`StreamFrame::Error`] follows.
    Unframed(&'f [u8], FrameError),
    /// The framing is lost; every further call returns this again.
    Error(FrameError),
}

/// State of the framer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between messages, or in the header section.
    Head,
    /// The header section is complete; the message ends at this offset of the buffer, relative to its start.
    Body { length: usize },
    /// The header section is complete and of this length; the end of the message cannot be determined.
    Unframed { length: usize, error: FrameError },
    /// The framing is lost.
    Broken(FrameError),
}

/// Splits the stream of one connection into messages. Buffers at most one header section, one body and the bytes pushed
/// last; every byte is searched once, regardless of the size of the pieces.
#[derive(Clone, Debug)]
pub struct StreamFramer {
    buffer: Vec<u8>,
    /// Offset of the next frame.
    start: usize,
    /// Offset up to which the head was searched for its end.
    searched: usize,
    state: State,
    limits: FrameLimits,
    /// A single CRLF was read before a message; the next byte or call decides whether it is a pong or half a ping.
    pending_pong: bool,
}

impl StreamFramer {
    /// The answer to a ping (RFC 5626 section 4.4.1).
    pub const PONG: &'static [u8] = b"\r\n";
    /// A ping: the request for a pong.
    pub const PING: &'static [u8] = b"\r\n\r\n";

    /// A framer at the beginning of a stream.
    pub fn new(limits: FrameLimits) -> StreamFramer {
        StreamFramer {
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            state: State::Head,
            limits,
            pending_pong: false,
        }
    }

    /// Adds received bytes; call [`StreamFramer::next`] until it returns `None` before pushing more.
    pub fn push(&mut self, bytes: &[u8]) {
        if matches!(self.state, State::Broken(_)) {
            return;
        }
        // Move the remaining bytes to the front, once per push and only if enough of the buffer is used up.
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.searched = 0;
            self.start = 0;
        } else if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Number of buffered bytes that belong to no frame returned yet.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The next frame, or `None` if more bytes are needed.
    #[allow(clippy::should_implement_trait)] // the frame borrows the framer, which Iterator cannot express
    pub fn next(&mut self) -> Option<StreamFrame<'_>> {
        if self.state == State::Head {
            if let Some(frame) = self.keep_alive() {
                return Some(frame);
            }
            if let Err(error) = self.search_head() {
                self.state = State::Broken(error);
            }
        }
        match self.state {
            State::Head => None,
            State::Unframed { length, error } => {
                self.state = State::Broken(error);
                let head = self.buffer.get(self.start..self.start + length);
                Some(StreamFrame::Unframed(head.unwrap_or_default(), error))
            }
            State::Broken(error) => {
                self.buffer = Vec::new();
                (self.start, self.searched) = (0, 0);
                Some(StreamFrame::Error(error))
            }
            State::Body { length } if self.pending() < length => None,
            State::Body { length } => {
                let from = self.start;
                self.start += length;
                self.searched = self.start;
                self.state = State::Head;
                Some(StreamFrame::Message(
                    self.buffer.get(from..from + length).unwrap_or_default(),
                ))
            }
        }
    }

    /// Line ends between messages. A single CRLF at the end of the received bytes may be half a ping: it is pending
    /// until the next byte decides, or [`StreamFramer::flush_pong`] reports that the read brought no more bytes.
    fn keep_alive(&mut self) -> Option<StreamFrame<'static>> {
        loop {
            let rest = self.buffer.get(self.start..).unwrap_or_default();
            match rest {
                [b'\r', b'\n', b'\r', b'\n', ..] => {
                    self.advance(4);
                    self.pending_pong = false;
                    return Some(StreamFrame::Ping);
                }
                [b'\r', b'\n'] | [b'\r', b'\n', b'\r'] => {
                    self.pending_pong = true;
                    return None;
                }
                [b'\r', b'\n', ..] => {
                    self.advance(2);
                    self.pending_pong = false;
                    return Some(StreamFrame::Pong);
                }
                [b'\n', ..] => self.advance(1),
                _ => return None,
            }
        }
    }

    /// Returns the pong of a single CRLF at the end of the received bytes. To be called after a read that brought no
    /// more bytes: a peer sends the four bytes of a ping in one piece.
    pub fn flush_pong(&mut self) -> Option<StreamFrame<'static>> {
        let lone = self.state == State::Head
            && self.pending_pong
            && self.buffer.get(self.start..) == Some(b"\r\n");
        lone.then(|| {
            self.pending_pong = false;
            self.advance(2);
            StreamFrame::Pong
        })
    }

    fn advance(&mut self, count: usize) {
        self.start += count;
        self.searched = self.searched.max(self.start);
    }

    /// Searches for the blank line; on success reads Content-Length and sets `State::Body`.
    fn search_head(&mut self) -> Result<(), FrameError> {
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        if let Some(first) = rest.first()
            && !first.is_ascii_graphic()
            && *first != b'\r'
        {
            return Err(FrameError::NotSip);
        }
        let mut at = self.searched - self.start;
        while let Some(found) = memchr::memchr(b'\n', rest.get(at..).unwrap_or_default()) {
            let line_end = at + found;
            let after = match rest.get(line_end + 1..).unwrap_or_default() {
                [b'\r', b'\n', ..] => line_end + 3,
                [b'\n', ..] => line_end + 2,
                // The rest of the blank line may not have been received yet: search this line end again.
                [] | [b'\r'] => {
                    self.searched = self.start + line_end;
                    return self.check_head_length(rest.len());
                }
                _ => {
                    at = line_end + 1;
                    continue;
                }
            };
            self.check_head_length(after)?;
            let head = rest.get(..after).unwrap_or_default();
            self.state = match content_length(head) {
                Ok(body) if body <= self.limits.body as u64 => State::Body {
                    length: after + body as usize,
                },
                Ok(_) => State::Unframed {
                    length: after,
                    error: FrameError::BodyTooLong,
                },
                Err(error @ FrameError::BadContentLength) => State::Unframed {
                    length: after,
                    error,
                },
                Err(error) => return Err(error),
            };
            return Ok(());
        }
        self.searched = self.buffer.len();
        self.check_head_length(rest.len())
    }

    fn check_head_length(&self, length: usize) -> Result<(), FrameError> {
        match length > self.limits.headers {
            true => Err(FrameError::HeadersTooLong),
            false => Ok(()),
        }
    }
}

/// Content-Length of a header section; 0 if absent. The start line must be one of SIP.
fn content_length(head: &[u8]) -> Result<u64, FrameError> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let start = lines.next().unwrap_or_default().trim_ascii();
    let is_sip = |word: &[u8]| {
        word.get(..4)
            .is_some_and(|word| word.eq_ignore_ascii_case(b"SIP/"))
    };
    let last = start
        .rsplit(|byte| *byte == b' ')
        .next()
        .unwrap_or_default();
    if !is_sip(start) && !is_sip(last) {
        return Err(FrameError::NotSip);
    }
    let mut length = None;
    let mut lines = lines.peekable();
    while let Some(line) = lines.next() {
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let name = line.get(..colon).unwrap_or_default();
        if matches!(name, [b' ' | b'\t', ..])
            || HeaderId::from_name(trim(name)) != HeaderId::ContentLength
        {
            continue;
        }
        let mut value = trim(line.get(colon + 1..).unwrap_or_default());
        // A folded number: `Content-Length:` with the figure on the next line.
        while let Some([b' ' | b'\t', ..]) = lines.peek().copied() {
            let folded = trim(lines.next().unwrap_or_default());
            match (value.is_empty(), folded.is_empty()) {
                (true, _) => value = folded,
                (false, true) => {}
                (false, false) => return Err(FrameError::BadContentLength),
            }
        }
        match (number(value), length) {
            (Some(new), None) => length = Some(new),
            (Some(new), Some(old)) if new == old => {}
            _ => return Err(FrameError::BadContentLength),
        }
    }
    Ok(length.unwrap_or(0))
}
