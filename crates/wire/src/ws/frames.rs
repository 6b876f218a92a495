//! Frames (RFC 6455 section 5), the server's side: what comes is masked, what goes is not.

use std::fmt;

/// Payload of a control frame at most (RFC 6455 section 5.5).
const MAX_CONTROL: usize = 125;

/// What a data frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// Why a WebSocket is closed (RFC 6455 section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// 1000: it has served its purpose.
    Normal,
    /// 1001: we go away, or have no more use for it.
    GoingAway,
    /// 1002: a breach of the protocol.
    Protocol,
    /// 1007: text that is no UTF-8.
    NotText,
    /// 1009: a message above the limit.
    TooBig,
}

impl CloseCode {
    fn number(self) -> u16 {
        match self {
            CloseCode::Normal => 1000,
            CloseCode::GoingAway => 1001,
            CloseCode::Protocol => 1002,
            CloseCode::NotText => 1007,
            CloseCode::TooBig => 1009,
        }
    }
}

/// A breach of the rules: the close frame is written; close the connection behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WsError {
    /// A bit or an opcode that no extension of ours gives a meaning.
    Reserved,
    /// A frame of a client's that is not masked (RFC 6455 section 5.1).
    Unmasked,
    /// A length that is not written in its shortest form.
    Length,
    /// A control frame in pieces or above 125 bytes, or a close frame with half a code.
    Control,
    /// A piece of no message, or a message in the middle of another.
    Order,
    /// A message above the limit.
    TooBig,
    /// Text that is no UTF-8.
    NotText,
}

impl WsError {
    fn code(self) -> CloseCode {
        match self {
            WsError::TooBig => CloseCode::TooBig,
            WsError::NotText => CloseCode::NotText,
            _ => CloseCode::Protocol,
        }
    }
}

impl fmt::Display for WsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WsError::Reserved => "a frame with reserved bits or a reserved opcode",
            WsError::Unmasked => "a frame that is not masked",
            WsError::Length => "a length that is not in its shortest form",
            WsError::Control => "a malformed control frame",
            WsError::Order => "frames out of order",
            WsError::TooBig => "a message that is too large",
            WsError::NotText => "text that is no UTF-8",
        })
    }
}

impl std::error::Error for WsError {}

/// Appends a data frame.
pub fn frame(kind: Kind, payload: &[u8], out: &mut Vec<u8>) {
    head(
        match kind {
            Kind::Text => 1,
            Kind::Binary => 2,
        },
        payload.len(),
        out,
    );
    out.extend_from_slice(payload);
}

/// Appends a close frame.
pub fn close(code: CloseCode, out: &mut Vec<u8>) {
    head(8, 2, out);
    out.extend_from_slice(&code.number().to_be_bytes());
}

fn head(opcode: u8, length: usize, out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => out.push(short),
        (_, Ok(medium)) => {
            out.push(126);
            out.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// A frame's head.
struct Head {
    last: bool,
    opcode: u8,
    mask: [u8; 4],
    /// Bytes of the head itself.
    size: usize,
    length: usize,
}

/// Reads a head; `None` until it is whole. What is wrong with it is said as soon as it can be seen.
fn parse(bytes: &[u8]) -> Result<Option<Head>, WsError> {
    let Some(&first) = bytes.first() else {
        return Ok(None);
    };
    let opcode = first & 0x0f;
    if first & 0x70 != 0 || !matches!(opcode, 0..=2 | 8..=10) {
        return Err(WsError::Reserved);
    }
    let last = first & 0x80 != 0;
    let Some(&second) = bytes.get(1) else {
        return Ok(None);
    };
    if second & 0x80 == 0 {
        return Err(WsError::Unmasked);
    }
    let short = second & 0x7f;
    if opcode >= 8 && (!last || usize::from(short) > MAX_CONTROL) {
        return Err(WsError::Control);
    }
    let (length, at) = match short {
        126 => {
            let Some(&[a, b]) = bytes.get(2..4).and_then(|b| b.first_chunk()) else {
                return Ok(None);
            };
            let length = u16::from_be_bytes([a, b]);
            if length < 126 {
                return Err(WsError::Length);
            }
            (usize::from(length), 4)
        }
        127 => {
            let Some(length) = bytes.get(2..10).and_then(|b| b.first_chunk::<8>()) else {
                return Ok(None);
            };
            let length = u64::from_be_bytes(*length);
            if length <= u64::from(u16::MAX) || length >> 63 != 0 {
                return Err(WsError::Length);
            }
            (usize::try_from(length).map_err(|_| WsError::TooBig)?, 10)
        }
        short => (usize::from(short), 2),
    };
    let Some(&mask) = bytes.get(at..at + 4).and_then(|b| b.first_chunk()) else {
        return Ok(None);
    };
    Ok(Some(Head {
        last,
        opcode,
        mask,
        size: at + 4,
        length,
    }))
}

/// Takes a client's stream apart into messages.
#[derive(Debug)]
pub struct Decoder {
    /// A frame that is not whole.
    partial: Vec<u8>,
    /// The pieces so far of a message that comes in several.
    message: Vec<u8>,
    kind: Option<Kind>,
    limit: usize,
    ended: bool,
}

impl Decoder {
    /// A decoder behind the handshake; messages above `limit` bytes are refused.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            partial: Vec::new(),
            message: Vec::new(),
            kind: None,
            limit,
            ended: false,
        }
    }

    /// Bytes held of what is not whole.
    pub fn held(&self) -> usize {
        self.partial.len() + self.message.len()
    }

    /// Takes in `bytes` (and unmasks in them): whole messages are appended to `messages`, the end of each to `ends`, and
    /// answers to control frames to `reply`. `true`: the peer has closed the WebSocket.
    ///
    /// # Errors
    /// Where the peer broke the rules; nothing more is taken from it.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        reply: &mut Vec<u8>,
    ) -> Result<bool, WsError> {
        if self.ended {
            return Ok(true);
        }
        let result = if self.partial.is_empty() {
            let result = self.frames(bytes, messages, ends, reply);
            let used = *result.as_ref().map_or(&bytes.len(), |(used, _)| used);
            self.partial = bytes.get(used..).unwrap_or_default().to_vec();
            result
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            let result = self.frames(&mut all, messages, ends, reply);
            if let Ok((used, _)) = result
                && used < all.len()
            {
                all.drain(..used);
                self.partial = all;
            }
            result
        };
        match result {
            Ok((_, closed)) => {
                self.ended = closed;
                Ok(closed)
            }
            Err(error) => {
                self.ended = true;
                (self.partial, self.message) = (Vec::new(), Vec::new());
                close(error.code(), reply);
                Err(error)
            }
        }
    }

    /// All whole frames: how many bytes they are, and whether the last one closed the WebSocket.
    fn frames(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        reply: &mut Vec<u8>,
    ) -> Result<(usize, bool), WsError> {
        let mut used = 0;
        loop {
            let rest = bytes.get_mut(used..).unwrap_or_default();
            let Some(head) = parse(rest)? else {
                return Ok((used, false));
            };
            self.check(&head)?;
            let end = head.size + head.length;
            let Some(payload) = rest.get_mut(head.size..end) else {
                return Ok((used, false));
            };
            for (byte, mask) in payload.iter_mut().zip(head.mask.iter().cycle()) {
                *byte ^= mask;
            }
            used += end;
            match head.opcode {
                8 => {
                    answer_close(payload, reply)?;
                    return Ok((used, true));
                }
                9 => {
                    self::head(10, payload.len(), reply);
                    reply.extend_from_slice(payload);
                }
                10 => {}
                _ => self.data(&head, payload, messages, ends)?,
            }
        }
    }

    /// What can be said against a frame by its head.
    fn check(&self, head: &Head) -> Result<(), WsError> {
        if head.opcode >= 8 {
            return Ok(());
        }
        if (head.opcode == 0) != self.kind.is_some() {
            return Err(WsError::Order);
        }
        match head.length > self.limit.saturating_sub(self.message.len()) {
            true => Err(WsError::TooBig),
            false => Ok(()),
        }
    }

    fn data(
        &mut self,
        head: &Head,
        payload: &[u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) -> Result<(), WsError> {
        let kind = match head.opcode {
            1 => Kind::Text,
            2 => Kind::Binary,
            _ => self.kind.unwrap_or(Kind::Binary),
        };
        if !head.last {
            self.kind = Some(kind);
            self.message.extend_from_slice(payload);
            return Ok(());
        }
        let first = std::mem::take(&mut self.message);
        self.kind = None;
        let start = messages.len();
        messages.extend_from_slice(&first);
        messages.extend_from_slice(payload);
        let whole = messages.get(start..).unwrap_or_default();
        if kind == Kind::Text && std::str::from_utf8(whole).is_err() {
            messages.truncate(start);
            return Err(WsError::NotText);
        }
        if !whole.is_empty() {
            ends.push(messages.len());
        }
        Ok(())
    }
}

/// A close frame is answered with its own code (RFC 6455 section 5.5.1).
fn answer_close(payload: &[u8], reply: &mut Vec<u8>) -> Result<(), WsError> {
    match payload {
        [] => close(CloseCode::Normal, reply),
        [_] => return Err(WsError::Control),
        [a, b, reason @ ..] => {
            let code = u16::from_be_bytes([*a, *b]);
            // Codes that may be sent (RFC 6455 section 7.4.2).
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(WsError::Control);
            }
            if std::str::from_utf8(reason).is_err() {
                return Err(WsError::NotText);
            }
            head(8, 2, reply);
            reply.extend_from_slice(&[*a, *b]);
        }
    }
    Ok(())
}
