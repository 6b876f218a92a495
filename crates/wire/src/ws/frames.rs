//! Frames (RFC 6455 section 5); those of clients are masked, those of servers are not.

use std::fmt;
use std::ops::Range;

/// Maximum payload of a control frame (RFC 6455 section 5.5).
const MAX_CONTROL: usize = 125;

/// Content type of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// UTF-8 text.
    Text,
    /// Binary data.
    Binary,
}

/// The status code of a close frame (RFC 6455 section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// 1000: normal closure.
    Normal,
    /// 1001: going away.
    GoingAway,
    /// 1002: protocol error.
    Protocol,
    /// 1007: text that is not valid UTF-8.
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

/// A protocol error. The close frame is written; the connection has to be closed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WsError {
    /// A reserved bit or opcode; no extension is supported.
    Reserved,
    /// An unmasked frame of a client (RFC 6455 section 5.1).
    Unmasked,
    /// A masked frame of a server (RFC 6455 section 5.1).
    Masked,
    /// A length that is not in its shortest form.
    Length,
    /// A control frame that is fragmented or above 125 bytes, or a close frame with half a code.
    Control,
    /// A continuation without a message, or a new message within a fragmented one.
    Order,
    /// A message above the limit.
    TooBig,
    /// Text that is not valid UTF-8.
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
            WsError::Unmasked => "an unmasked frame from a client",
            WsError::Masked => "a masked frame from a server",
            WsError::Length => "a length that is not in its shortest form",
            WsError::Control => "a malformed control frame",
            WsError::Order => "frames out of order",
            WsError::TooBig => "a message that is too large",
            WsError::NotText => "text that is not valid UTF-8",
        })
    }
}

impl std::error::Error for WsError {}

/// The mask of a client's frame (RFC 6455 section 5.3): a new, unpredictable one for each frame.
pub type Mask = [u8; 4];

/// Appends a data frame of a server.
pub fn frame(kind: FrameKind, payload: &[u8], out: &mut Vec<u8>) {
    write_unfragmented(kind.opcode(), None, payload, out);
}

/// Appends a data frame of a client.
pub fn client_frame(kind: FrameKind, mask: Mask, payload: &[u8], out: &mut Vec<u8>) {
    write_unfragmented(kind.opcode(), Some(mask), payload, out);
}

/// Appends a close frame of a server.
pub fn close(code: CloseCode, out: &mut Vec<u8>) {
    write_unfragmented(8, None, &code.number().to_be_bytes(), out);
}

/// Appends a close frame of a client.
pub fn client_close(code: CloseCode, mask: Mask, out: &mut Vec<u8>) {
    write_unfragmented(8, Some(mask), &code.number().to_be_bytes(), out);
}

impl FrameKind {
    fn opcode(self) -> u8 {
        match self {
            FrameKind::Text => 1,
            FrameKind::Binary => 2,
        }
    }
}

/// Appends an unfragmented frame.
fn write_unfragmented(opcode: u8, mask: Option<Mask>, payload: &[u8], out: &mut Vec<u8>) {
    let length = payload.len();
    let bit = if mask.is_some() { 0x80 } else { 0 };
    out.push(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => out.push(bit | short),
        (_, Ok(medium)) => {
            out.push(bit | 126);
            out.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            out.push(bit | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let Some(mask) = mask else {
        out.extend_from_slice(payload);
        return;
    };
    out.extend_from_slice(&mask);
    let start = out.len();
    out.extend_from_slice(payload);
    apply(mask, out.get_mut(start..).unwrap_or_default());
}

/// Masks or unmasks a payload.
fn apply(mask: Mask, payload: &mut [u8]) {
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Outgoing replies to control frames.
struct Reply<'r> {
    out: &'r mut Vec<u8>,
    /// The source of masks, for a client.
    masks: Option<&'r mut dyn FnMut() -> Mask>,
}

impl Reply<'_> {
    fn write(&mut self, opcode: u8, payload: &[u8]) {
        let mask = self.masks.as_mut().map(|next| next());
        write_unfragmented(opcode, mask, payload, self.out);
    }

    fn close(&mut self, code: CloseCode) {
        self.write(8, &code.number().to_be_bytes());
    }
}

/// A frame header.
struct FrameHeader {
    last: bool,
    opcode: u8,
    /// The mask of a client's frame.
    mask: Option<Mask>,
    /// Length of the header, bytes.
    size: usize,
    length: usize,
}

/// Parses a frame header; `None` if it is incomplete. Errors are reported as early as possible. `masked`: whether the
/// frame must be masked.
fn parse(bytes: &[u8], masked: bool) -> Result<Option<FrameHeader>, WsError> {
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
    match (second & 0x80 != 0, masked) {
        (false, true) => return Err(WsError::Unmasked),
        (true, false) => return Err(WsError::Masked),
        _ => {}
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
    let (mask, size) = match masked {
        false => (None, at),
        true => match bytes.get(at..at + 4).and_then(|b| b.first_chunk()) {
            Some(&mask) => (Some(mask), at + 4),
            None => return Ok(None),
        },
    };
    Ok(Some(FrameHeader {
        last,
        opcode,
        mask,
        size,
        length,
    }))
}

/// Splits the stream of a peer into messages.
#[derive(Debug)]
pub struct FrameDecoder {
    /// An incomplete frame.
    partial: Vec<u8>,
    /// The received fragments of a message.
    message: Vec<u8>,
    kind: Option<FrameKind>,
    limit: usize,
    ended: bool,
    /// A ping was received.
    pinged: bool,
}

impl FrameDecoder {
    /// A decoder for the bytes after the handshake; messages above `limit` bytes are refused.
    pub fn new(limit: usize) -> FrameDecoder {
        FrameDecoder {
            partial: Vec::new(),
            message: Vec::new(),
            kind: None,
            limit,
            ended: false,
            pinged: false,
        }
    }

    /// Whether a ping was received since the last call.
    pub fn take_pinged(&mut self) -> bool {
        core::mem::replace(&mut self.pinged, false)
    }

    /// Number of buffered bytes.
    pub fn buffered(&self) -> usize {
        self.partial.len() + self.message.len()
    }

    /// Processes `bytes` of a client (and unmasks them in place): complete messages are appended to `messages`, the end
    /// offset of each to `ends`, and replies to control frames to `reply`. Returns `true` if the peer has closed the
    /// WebSocket.
    ///
    /// # Errors
    /// A protocol error; no further bytes of the peer are accepted.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        reply: &mut Vec<u8>,
    ) -> Result<bool, WsError> {
        let reply = Reply {
            out: reply,
            masks: None,
        };
        self.take(bytes, messages, ends, reply)
    }

    /// As [`FrameDecoder::receive`] for bytes of a server; `masks` supplies the mask of each reply.
    ///
    /// # Errors
    /// As [`FrameDecoder::receive`].
    pub fn receive_from_server(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        reply: &mut Vec<u8>,
        masks: &mut dyn FnMut() -> Mask,
    ) -> Result<bool, WsError> {
        let reply = Reply {
            out: reply,
            masks: Some(masks),
        };
        self.take(bytes, messages, ends, reply)
    }

    fn take(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        mut reply: Reply<'_>,
    ) -> Result<bool, WsError> {
        if self.ended {
            return Ok(true);
        }
        let reply = &mut reply;
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
                reply.close(error.code());
                Err(error)
            }
        }
    }

    /// Processes all complete frames: returns their length, and whether the last one closed the WebSocket. Of several
    /// pings only the last is answered (RFC 6455 section 5.5.3), so that replies do not grow with the received bytes;
    /// it is answered before an error behind it closes the WebSocket.
    fn frames(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        reply: &mut Reply<'_>,
    ) -> Result<(usize, bool), WsError> {
        let mut ping = None;
        let result = self.walk(bytes, messages, ends, reply.masks.is_none(), &mut ping);
        if let Some(payload) = ping.and_then(|place| bytes.get(place)) {
            reply.write(10, payload);
        }
        let (used, closed) = result?;
        let closed = closed.and_then(|place| bytes.get(place));
        closed.map_or(Ok(()), |payload| answer_close(payload, reply))?;
        Ok((used, closed.is_some()))
    }

    /// Walks over all complete frames: returns their length and the payload of a close frame; the payload of the last
    /// ping is left in `ping`, after an error too.
    fn walk(
        &mut self,
        bytes: &mut [u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        masked: bool,
        ping: &mut Option<Range<usize>>,
    ) -> Result<(usize, Option<Range<usize>>), WsError> {
        let mut used = 0;
        loop {
            let rest = bytes.get_mut(used..).unwrap_or_default();
            let Some(head) = parse(rest, masked)? else {
                return Ok((used, None));
            };
            self.check(&head)?;
            let end = head.size + head.length;
            let Some(payload) = rest.get_mut(head.size..end) else {
                return Ok((used, None));
            };
            if let Some(mask) = head.mask {
                apply(mask, payload);
            }
            let place = used + head.size..used + end;
            used += end;
            match head.opcode {
                8 => return Ok((used, Some(place))),
                9 => {
                    self.pinged = true;
                    *ping = Some(place);
                }
                10 => {}
                _ => self.data(&head, payload, messages, ends)?,
            }
        }
    }

    /// Validates a frame by its header.
    fn check(&self, head: &FrameHeader) -> Result<(), WsError> {
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
        head: &FrameHeader,
        payload: &[u8],
        messages: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) -> Result<(), WsError> {
        let kind = match head.opcode {
            1 => FrameKind::Text,
            2 => FrameKind::Binary,
            _ => self.kind.unwrap_or(FrameKind::Binary),
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
        if kind == FrameKind::Text && std::str::from_utf8(whole).is_err() {
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
fn answer_close(payload: &[u8], reply: &mut Reply<'_>) -> Result<(), WsError> {
    match payload {
        [] => reply.close(CloseCode::Normal),
        [_] => return Err(WsError::Control),
        [a, b, reason @ ..] => {
            let code = u16::from_be_bytes([*a, *b]);
            // Codes that are allowed in a frame (RFC 6455 section 7.4.2).
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(WsError::Control);
            }
            if std::str::from_utf8(reason).is_err() {
                return Err(WsError::NotText);
            }
            reply.write(8, &[*a, *b]);
        }
    }
    Ok(())
}
