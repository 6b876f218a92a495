//! The integration tests of `wire` in one program, to link once.

mod ng;
mod packets;
mod sdp_corpus;
mod sdp_rewrite;
mod sip_corpus;
mod sip_message;
mod websocket;
mod websocket_client;
