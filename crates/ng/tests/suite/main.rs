//! The integration tests of `ng`, linked as one program.

mod rig;
mod server;
mod server_edges;
mod server_playback;
