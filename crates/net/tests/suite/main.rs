//! The integration tests of `net` in one program: one link step and shared fixtures.

mod common;
mod driver;
mod load;
mod media_clock;
mod paths;
mod recordings;
mod relay;
mod rig;
mod streams;
mod tls;
mod tunnel;
mod websocket;
mod websocket_client;
mod xsk;
