//! WebSocket (RFC 6455) of both sides, to the extent that SIP requires it (RFC 7118): opening handshake and frames. No
//! extensions; one subprotocol, by default `sip`. Randomness is supplied by the caller.

mod client_handshake;
mod frames;
#[cfg(feature = "fuzz")]
mod fuzz;
mod server_handshake;

pub use client_handshake::{ClientHandshake, HandshakeResponse, MAX_RESPONSE};
pub use frames::{
    CloseCode, FrameDecoder, FrameKind, Mask, WsError, client_close, client_frame, close, frame,
};
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use fuzz::fuzz;
pub use server_handshake::{Handshake, MAX_REQUEST, SIP_PROTOCOL, handshake};
