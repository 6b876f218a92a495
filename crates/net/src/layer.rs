//! What lies between TCP and the engine on a connection: TLS, WebSocket, or one in the other.

use crate::tls::{Failure, Session, Sink, WebSocketSettings as Settings};
use engine::Entropy;
use std::collections::VecDeque;
use std::sync::Arc;
use wire::ws::{self, Answer, Asking, Decoder, Handshake, Mask};

/// Messages for the engine, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) bytes: Vec<u8>,
    /// Where each ends.
    pub(crate) ends: Vec<usize>,
}

impl Inbox {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Buffers that connections share, and chance for masks.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Records on their way out.
    scratch: Vec<u8>,
    /// What was opened, before it is taken out of its frames.
    opened: Vec<u8>,
    /// Buffers of connections that have nothing to say at present.
    spare: Vec<Vec<u8>>,
    entropy: Entropy,
}

/// Spare buffers at most, and how large one may be to be kept.
const SPARE: usize = 64;
const SPARE_BYTES: usize = 64 << 10;

impl Shared {
    pub(crate) fn new(entropy: Entropy) -> Shared {
        Shared {
            scratch: Vec::new(),
            opened: Vec::new(),
            spare: Vec::new(),
            entropy,
        }
    }

    fn mask(&mut self) -> Mask {
        self.entropy.u32().to_ne_bytes()
    }

    fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// How a layer ends its connection.
#[derive(Debug)]
pub(crate) enum Broken {
    Tls(Failure),
    /// The WebSocket was never opened.
    Handshake(String),
    /// A frame against the rules; the close frame is queued.
    Frame(String),
}

/// What came of received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// TLS stands since just now.
    pub(crate) secured: bool,
    /// Everything stands since just now.
    pub(crate) ready: bool,
    /// The peer sends no more.
    pub(crate) closed: bool,
}

enum Web {
    Opening {
        settings: Arc<Settings>,
        request: Vec<u8>,
        limit: usize,
    },
    /// We asked.
    Asking {
        asking: Asking,
        answer: Vec<u8>,
        /// Frames that wait until it stands.
        queued: Vec<u8>,
        limit: usize,
    },
    Open {
        decoder: Decoder,
        side: Side,
    },
    Closed,
}

/// Which side of a WebSocket we are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// TLS, WebSocket, or one in the other.
pub(crate) struct Layer {
    tls: Option<Session>,
    web: Option<Web>,
    /// In the clear, to be sealed at the end of the turn: one record for all messages of a turn.
    plain: Vec<u8>,
    ready: bool,
    /// The peer has said something.
    heard: bool,
}

impl Layer {
    /// `websocket`: the settings, and how large a message may be.
    pub(crate) fn new(tls: Option<Session>, websocket: Option<(Arc<Settings>, usize)>) -> Layer {
        Layer {
            tls,
            web: websocket.map(|(settings, limit)| Web::Opening {
                settings,
                request: Vec::new(),
                limit,
            }),
            plain: Vec::new(),
            ready: false,
            heard: false,
        }
    }

    /// The same towards a peer whom we ask for a WebSocket, for this path at this host. What is sent before it stands waits.
    pub(crate) fn asking(
        tls: Option<Session>,
        (path, host): (&str, &str),
        limit: usize,
        shared: &mut Shared,
    ) -> Layer {
        let mut nonce = [0; 16];
        shared.entropy.fill(&mut nonce);
        let asking = Asking::new(nonce, ws::SIP_PROTOCOL);
        let mut plain = shared.spare.pop().unwrap_or_default();
        asking.write(path, host, &mut plain);
        Layer {
            tls,
            web: Some(Web::Asking {
                asking,
                answer: Vec::new(),
                queued: Vec::new(),
                limit,
            }),
            plain,
            ready: false,
            heard: false,
        }
    }

    /// Whether the peer has said anything at all.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether every handshake is over.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether TLS is what is waited for.
    pub(crate) fn is_securing(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_established())
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        self.tls.as_ref()
    }

    /// Bytes that wait to be sealed, or for the WebSocket to stand.
    pub(crate) fn waiting(&self) -> usize {
        let queued = match &self.web {
            Some(Web::Asking { queued, .. }) => queued.len(),
            _ => 0,
        };
        self.plain.len() + queued
    }

    /// Takes in bytes; without any, a client says its first word.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        inbox: &mut Inbox,
        out: &mut VecDeque<u8>,
        shared: &mut Shared,
    ) -> Result<Heard, Broken> {
        self.heard |= !bytes.is_empty();
        let mut heard = Heard::default();
        let mut opened = std::mem::take(&mut shared.opened);
        opened.clear();
        let result = self.open(bytes, &mut opened, inbox, out, shared, &mut heard);
        shared.opened = opened;
        result?;
        let stands = self.tls.as_ref().is_none_or(Session::is_established)
            && !matches!(self.web, Some(Web::Opening { .. } | Web::Asking { .. }));
        heard.ready = stands && !self.ready;
        self.ready |= stands;
        Ok(heard)
    }

    fn open(
        &mut self,
        bytes: &mut [u8],
        opened: &mut Vec<u8>,
        inbox: &mut Inbox,
        out: &mut VecDeque<u8>,
        shared: &mut Shared,
        heard: &mut Heard,
    ) -> Result<(), Broken> {
        let plain: &mut [u8] = match &mut self.tls {
            Some(tls) => {
                let sink = Sink {
                    out,
                    scratch: &mut shared.scratch,
                };
                let got = tls.receive(bytes, opened, sink).map_err(Broken::Tls)?;
                heard.secured = got.established;
                heard.closed = got.closed;
                opened
            }
            None => bytes,
        };
        let Some(web) = &mut self.web else {
            if !plain.is_empty() {
                inbox.bytes.extend_from_slice(plain);
                inbox.ends.push(inbox.bytes.len());
            }
            return Ok(());
        };
        if self.plain.capacity() == 0 && !plain.is_empty() {
            self.plain = shared.spare.pop().unwrap_or_default();
        }
        let closed = web.receive(plain, inbox, &mut self.plain, shared)?;
        heard.closed |= closed;
        Ok(())
    }

    /// Queues what the engine says; `false` where nobody will hear it: before a peer has opened a WebSocket, when nobody has
    /// asked anything, and after its end.
    #[must_use]
    pub(crate) fn send(&mut self, bytes: &[u8], shared: &mut Shared) -> bool {
        if self.plain.capacity() == 0 {
            self.plain = shared.spare.pop().unwrap_or_default();
        }
        let kind = || match std::str::from_utf8(bytes) {
            Ok(_) => ws::Kind::Text,
            Err(_) => ws::Kind::Binary,
        };
        match &mut self.web {
            None => self.plain.extend_from_slice(bytes),
            Some(Web::Asking { queued, .. }) => {
                ws::client_frame(kind(), shared.mask(), bytes, queued);
            }
            Some(Web::Open { side, .. }) => match side {
                Side::Server => ws::frame(kind(), bytes, &mut self.plain),
                Side::Client => {
                    ws::client_frame(kind(), shared.mask(), bytes, &mut self.plain);
                }
            },
            Some(Web::Opening { .. } | Web::Closed) => return false,
        }
        true
    }

    /// Seals what is queued, as far as the handshake allows; one record where it fits into one.
    pub(crate) fn flush(
        &mut self,
        out: &mut VecDeque<u8>,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        if self.plain.is_empty() || self.is_securing() {
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
        shared.give_back(std::mem::take(&mut self.plain));
        Ok(())
    }

    /// Says, after what is queued, that we send no more.
    pub(crate) fn close(&mut self, out: &mut VecDeque<u8>, shared: &mut Shared) {
        if let Some(Web::Open { side, .. }) = self.web {
            let code = ws::CloseCode::GoingAway;
            match side {
                Side::Server => ws::close(code, &mut self.plain),
                Side::Client => ws::client_close(code, shared.mask(), &mut self.plain),
            }
            self.web = Some(Web::Closed);
        }
        // A connection whose records cannot be sealed ends without a word.
        let _ = self.flush(out, shared);
        if let Some(tls) = &mut self.tls {
            tls.close(Sink {
                out,
                scratch: &mut shared.scratch,
            });
        }
    }
}

impl Web {
    /// Takes in bytes; `true` where the peer has closed the WebSocket.
    fn receive(
        &mut self,
        bytes: &mut [u8],
        inbox: &mut Inbox,
        reply: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Result<bool, Broken> {
        match self {
            Web::Asking {
                asking,
                answer,
                queued,
                limit,
            } => {
                if bytes.is_empty() {
                    return Ok(false);
                }
                answer.extend_from_slice(bytes);
                let used = match asking.answer(answer) {
                    Answer::Partial => return Ok(false),
                    Answer::Refused(why) => return Err(Broken::Handshake(why)),
                    Answer::Open(used) => used,
                };
                let mut rest = answer.split_off(used);
                reply.append(queued);
                *self = Web::Open {
                    decoder: Decoder::new(*limit),
                    side: Side::Client,
                };
                self.receive(&mut rest, inbox, reply, shared)
            }
            Web::Opening {
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
                    Handshake::Refused(why) => return Err(Broken::Handshake(why.to_owned())),
                    Handshake::Open(used) => used,
                };
                let mut rest = request.split_off(used);
                *self = Web::Open {
                    decoder: Decoder::new(limit),
                    side: Side::Server,
                };
                self.receive(&mut rest, inbox, reply, shared)
            }
            Web::Open { decoder, side } => {
                let Inbox { bytes: all, ends } = inbox;
                let closed = match side {
                    Side::Server => decoder.receive(bytes, all, ends, reply),
                    Side::Client => {
                        let masks = &mut || shared.mask();
                        decoder.receive_from_server(bytes, all, ends, reply, masks)
                    }
                };
                match closed {
                    Ok(false) => Ok(false),
                    Ok(true) => {
                        *self = Web::Closed;
                        Ok(true)
                    }
                    Err(error) => {
                        *self = Web::Closed;
                        Err(Broken::Frame(error.to_string()))
                    }
                }
            }
            Web::Closed => Ok(true),
        }
    }
}
