//! The integration tests of `net`, one program: shared start-up, one link.

mod common;
mod driver;
mod load;
mod paths;
mod relay;
mod rig;
mod tls;
mod websocket;
mod websocket_client;
mod xsk;
