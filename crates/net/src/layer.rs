//! The layers between TCP and the engine on a connection: TLS, WebSocket, or WebSocket over TLS.

use crate::tls::{Sink, TlsFailure, TlsSession, WebSocketSettings as Settings};
use engine::Entropy;
use std::collections::VecDeque;
use std::sync::Arc;
use wire::ws::{self, ClientHandshake, FrameDecoder, Handshake, HandshakeResponse, Mask};

/// Received messages for the engine, concatenated.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) bytes: Vec<u8>,
    /// End offset of each message.
    pub(crate) ends: Vec<usize>,
}

impl Inbox {
    /// Ends a message with the bytes that were added since the last one.
    pub(crate) fn end_message(&mut self) {
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Buffers shared by all connections, and random numbers for masks.
#[derive(Debug)]
pub(crate) struct LayerBuffers {
    /// Outgoing TLS records.
    scratch: Vec<u8>,
    /// Decrypted bytes before WebSocket decoding.
    decrypted: Vec<u8>,
    /// Buffers returned by idle connections.
    spare: Vec<Vec<u8>>,
    entropy: Entropy,
}

/// Number of spare buffers, and the largest capacity of one that is kept.
const SPARE: usize = 64;
const SPARE_BYTES: usize = 64 << 10;

impl LayerBuffers {
    pub(crate) fn new(entropy: Entropy) -> LayerBuffers {
        LayerBuffers {
            scratch: Vec::new(),
            decrypted: Vec::new(),
            spare: Vec::new(),
            entropy,
        }
    }

    fn mask(&mut self) -> Mask {
        self.entropy.u32().to_ne_bytes()
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// Error that ends a connection.
#[derive(Debug)]
pub(crate) enum LayerError {
    Tls(TlsFailure),
    /// The WebSocket handshake failed.
    Handshake(String),
    /// A WebSocket protocol error; the close frame is queued.
    Frame(String),
}

/// Progress made by received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerProgress {
    /// The TLS handshake has just completed.
    pub(crate) established: bool,
    /// All handshakes have just completed.
    pub(crate) ready: bool,
    /// The peer has closed its side.
    pub(crate) closed: bool,
    /// A client of SIP over WebSocket has sent a ping.
    pub(crate) pinged: bool,
}

enum WebSocketState {
    AwaitingRequest {
        settings: Arc<Settings>,
        request: Vec<u8>,
        limit: usize,
    },
    /// Client: the request is sent.
    AwaitingResponse {
        asking: ClientHandshake,
        answer: Vec<u8>,
        /// Frames queued until the handshake is complete.
        queued: Vec<u8>,
        limit: usize,
    },
    Open {
        decoder: FrameDecoder,
        side: WebSocketSide,
    },
    Closed,
}

/// Our role on a WebSocket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WebSocketSide {
    Server,
    Client,
}

/// TLS, WebSocket, or one in the other.
pub(crate) struct Layer {
    tls: Option<TlsSession>,
    web: Option<WebSocketState>,
    /// Plaintext to be encrypted at the end of the turn: one record for all messages of a turn.
    plain: Vec<u8>,
    ready: bool,
    /// The peer has sent data.
    received: bool,
    /// The WebSocket carries SIP, and its client may keep it open by pings (RFC 7118 section 6).
    keeps_alive: bool,
}

impl Layer {
    /// Layers of an accepted connection. `websocket`: its settings, and the largest message, bytes.
    pub(crate) fn new(tls: Option<TlsSession>, websocket: Option<(Arc<Settings>, usize)>) -> Layer {
        let keeps_alive = websocket
            .as_ref()
            .is_some_and(|(settings, _)| settings.protocol.is_none());
        Layer {
            tls,
            keeps_alive,
            web: websocket.map(|(settings, limit)| WebSocketState::AwaitingRequest {
                settings,
                request: Vec::new(),
                limit,
            }),
            plain: Vec::new(),
            ready: false,
            received: false,
        }
    }

    /// Layers of an opened connection that requests a WebSocket for this path at this host. Messages sent before the
    /// handshake is complete are queued.
    pub(crate) fn asking(
        tls: Option<TlsSession>,
        (path, host): (&str, &str),
        limit: usize,
        shared: &mut LayerBuffers,
    ) -> Layer {
        let mut nonce = [0; 16];
        shared.entropy.fill(&mut nonce);
        let asking = ClientHandshake::new(nonce, ws::SIP_PROTOCOL);
        let mut plain = shared.spare.pop().unwrap_or_default();
        asking.write(path, host, &mut plain);
        Layer {
            tls,
            web: Some(WebSocketState::AwaitingResponse {
                asking,
                answer: Vec::new(),
                queued: Vec::new(),
                limit,
            }),
            plain,
            ready: false,
            received: false,
            keeps_alive: false,
        }
    }

    /// Whether the peer has sent any data.
    pub(crate) fn has_received(&self) -> bool {
        self.received
    }

    /// Whether all handshakes are complete.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether the TLS handshake is in progress.
    pub(crate) fn is_tls_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_established())
    }

    pub(crate) fn session(&self) -> Option<&TlsSession> {
        self.tls.as_ref()
    }

    /// Bytes queued for encryption, or until the WebSocket is open.
    pub(crate) fn queued_bytes(&self) -> usize {
        let queued = match &self.web {
            Some(WebSocketState::AwaitingResponse { queued, .. }) => queued.len(),
            _ => 0,
        };
        self.plain.len() + queued
    }

    /// Processes received bytes; called without any, a client starts its handshake.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        inbox: &mut Inbox,
        out: &mut VecDeque<u8>,
        shared: &mut LayerBuffers,
    ) -> Result<LayerProgress, LayerError> {
        self.received |= !bytes.is_empty();
        let mut progress = LayerProgress::default();
        let mut decrypted = std::mem::take(&mut shared.decrypted);
        decrypted.clear();
        let result = self.open(bytes, &mut decrypted, inbox, out, shared, &mut progress);
        shared.decrypted = decrypted;
        result?;
        let all_complete = self.tls.as_ref().is_none_or(TlsSession::is_established)
            && !matches!(
                self.web,
                Some(
                    WebSocketState::AwaitingRequest { .. }
                        | WebSocketState::AwaitingResponse { .. }
                )
            );
        progress.ready = all_complete && !self.ready;
        self.ready |= all_complete;
        Ok(progress)
    }

    fn open(
        &mut self,
        bytes: &mut [u8],
        decrypted: &mut Vec<u8>,
        inbox: &mut Inbox,
        out: &mut VecDeque<u8>,
        shared: &mut LayerBuffers,
        progress: &mut LayerProgress,
    ) -> Result<(), LayerError> {
        let plain: &mut [u8] = match &mut self.tls {
            Some(tls) => {
                let sink = Sink {
                    out,
                    scratch: &mut shared.scratch,
                };
                let tls_progress = tls
                    .receive(bytes, decrypted, sink)
                    .map_err(LayerError::Tls)?;
                progress.established = tls_progress.established;
                progress.closed = tls_progress.closed;
                decrypted
            }
            None => bytes,
        };
        let Some(web) = &mut self.web else {
            if !plain.is_empty() {
                inbox.bytes.extend_from_slice(plain);
                inbox.end_message();
            }
            return Ok(());
        };
        if self.plain.capacity() == 0 && !plain.is_empty() {
            self.plain = shared.spare.pop().unwrap_or_default();
        }
        let closed = web.receive(plain, inbox, &mut self.plain, shared)?;
        progress.closed |= closed;
        if let WebSocketState::Open { decoder, .. } = web {
            progress.pinged = decoder.take_pinged() && self.keeps_alive;
        }
        Ok(())
    }

    /// Queues a message of the engine; `false` if it cannot be sent: the peer has not requested a WebSocket yet, or
    /// it is closed.
    #[must_use]
    pub(crate) fn send(&mut self, bytes: &[u8], shared: &mut LayerBuffers) -> bool {
        if self.plain.capacity() == 0 {
            self.plain = shared.spare.pop().unwrap_or_default();
        }
        let kind = || match std::str::from_utf8(bytes) {
            Ok(_) => ws::FrameKind::Text,
            Err(_) => ws::FrameKind::Binary,
        };
        match &mut self.web {
            None => self.plain.extend_from_slice(bytes),
            Some(WebSocketState::AwaitingResponse { queued, .. }) => {
                ws::client_frame(kind(), shared.mask(), bytes, queued);
            }
            Some(WebSocketState::Open { side, .. }) => match side {
                WebSocketSide::Server => ws::frame(kind(), bytes, &mut self.plain),
                WebSocketSide::Client => {
                    ws::client_frame(kind(), shared.mask(), bytes, &mut self.plain);
                }
            },
            Some(WebSocketState::AwaitingRequest { .. } | WebSocketState::Closed) => return false,
        }
        true
    }

    /// Encrypts the queued messages, as far as the handshake allows; into one record if they fit.
    pub(crate) fn flush(
        &mut self,
        out: &mut VecDeque<u8>,
        shared: &mut LayerBuffers,
    ) -> Result<(), TlsFailure> {
        if self.plain.is_empty() || self.is_tls_handshaking() {
            return Ok(());
        }
        match &mut self.tls {
            Some(tls) => tls.send(
                &self.plain,
                Sink {
                    out,
                    scratch: &mut shared.scratch,
                },
            )?,
            None => out.extend(&self.plain),
        }
        shared.recycle(std::mem::take(&mut self.plain));
        Ok(())
    }

    /// Queues the closing messages of the layers after the queued data.
    pub(crate) fn close(&mut self, out: &mut VecDeque<u8>, shared: &mut LayerBuffers) {
        if let Some(WebSocketState::Open { side, .. }) = self.web {
            let code = ws::CloseCode::GoingAway;
            match side {
                WebSocketSide::Server => ws::close(code, &mut self.plain),
                WebSocketSide::Client => ws::client_close(code, shared.mask(), &mut self.plain),
            }
            self.web = Some(WebSocketState::Closed);
        }
        // If encryption fails, the connection ends without a close message.
        let _ = self.flush(out, shared);
        if let Some(tls) = &mut self.tls {
            tls.close(Sink {
                out,
                scratch: &mut shared.scratch,
            });
        }
    }
}

impl WebSocketState {
    /// Processes received bytes; `true` if the peer has closed the WebSocket.
    fn receive(
        &mut self,
        bytes: &mut [u8],
        inbox: &mut Inbox,
        reply: &mut Vec<u8>,
        shared: &mut LayerBuffers,
    ) -> Result<bool, LayerError> {
        match self {
            WebSocketState::AwaitingResponse {
                asking,
                answer,
                queued,
                limit,
            } => {
                if bytes.is_empty() {
                    return Ok(false);
                }
                answer.extend_from_slice(bytes);
                let used = match asking.parse_response(answer) {
                    HandshakeResponse::Partial => return Ok(false),
                    HandshakeResponse::Refused(why) => return Err(LayerError::Handshake(why)),
                    HandshakeResponse::Open(used) => used,
                };
                let mut rest = answer.split_off(used);
                reply.append(queued);
                *self = WebSocketState::Open {
                    decoder: FrameDecoder::new(*limit),
                    side: WebSocketSide::Client,
                };
                self.receive(&mut rest, inbox, reply, shared)
            }
            WebSocketState::AwaitingRequest {
                settings,
                request,
                limit,
            } => {
                request.extend_from_slice(bytes);
                let limit = *limit;
                let protocol = settings.protocol.unwrap_or(ws::SIP_PROTOCOL);
                let Settings { origins, hosts, .. } = &**settings;
                let used = match ws::handshake(request, protocol, origins, hosts, reply) {
                    Handshake::Partial => return Ok(false),
                    Handshake::Refused(why) => return Err(LayerError::Handshake(why.to_owned())),
                    Handshake::Open(used) => used,
                };
                let mut rest = request.split_off(used);
                *self = WebSocketState::Open {
                    decoder: FrameDecoder::new(limit),
                    side: WebSocketSide::Server,
                };
                self.receive(&mut rest, inbox, reply, shared)
            }
            WebSocketState::Open { decoder, side } => {
                let Inbox { bytes: all, ends } = inbox;
                let closed = match side {
                    WebSocketSide::Server => decoder.receive(bytes, all, ends, reply),
                    WebSocketSide::Client => {
                        let masks = &mut || shared.mask();
                        decoder.receive_from_server(bytes, all, ends, reply, masks)
                    }
                };
                match closed {
                    Ok(false) => Ok(false),
                    Ok(true) => {
                        *self = WebSocketState::Closed;
                        Ok(true)
                    }
                    Err(error) => {
                        *self = WebSocketState::Closed;
                        Err(LayerError::Frame(error.to_string()))
                    }
                }
            }
            WebSocketState::Closed => Ok(true),
        }
    }
}
