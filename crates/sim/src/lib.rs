//! The driver over virtual time: hosts, links, faults, one seed.
//!
//! [`World`] runs any number of [`engine::Engine`]s and [`engine::Control`]s with their forwarders over links that lose,
//! repeat, reorder and delay. Nothing in it depends on anything but its seed and what the program told it, so that the
//! same seed gives the same log, byte for byte.
#![forbid(unsafe_code)]

mod busy;
mod crew;
mod fault;
mod host;
pub mod link;
mod log;
mod stream;
mod tap;
mod transport;
mod world;

pub use fault::{Fault, Storm};
pub use host::HostId;
pub use link::{Delay, Link, LinkConfig, Loss};
pub use log::Detail;
pub use tap::{TapPoint, TapRecord, TapTransport};
pub use world::{Counts, World};
